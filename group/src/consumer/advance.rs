//! What follows when a member has said something about itself, by either protocol: perhaps a new
//! group epoch, a new target for everybody, and this member's next step towards its own.

use super::reconcile::{self, Said};
use super::regex::TopicPattern;
use super::state::{ConsumerState, push_member_tombstones};
use super::target::{self, Change};
use super::topics::Topics;
use crate::GroupError;
use crate::records::{
    Assignment, ConsumerMemberValue, ConsumerValue, CurrentMemberValue, GroupRecord, MemberState,
    RegexValue, TargetAssignmentValue,
};

/// The member that speaks, as it was before.
pub(super) struct Speaker<'a> {
    pub(super) id: &'a str,
    /// `None`: it is new.
    pub(super) value: Option<&'a ConsumerMemberValue>,
    pub(super) target: &'a Assignment,
    pub(super) current: CurrentMemberValue,
    /// The former id of a static member, which goes.
    pub(super) replaces: Option<&'a str>,
    /// Whose partitions are its own or abandoned, so that they do not stand in its way.
    pub(super) holds: Vec<&'a CurrentMemberValue>,
    /// The regular expressions of the records that are overwritten or removed.
    pub(super) regexes: Vec<&'a str>,
}

pub(super) static NO_TARGET: Assignment = Assignment::new();

/// When a member has given up what it does not name any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivesUp {
    /// When it has been told, and has said so in a later request.
    Later,
    /// Before this request: a classic member takes nothing between its join and its sync.
    Already,
}

/// What a member says in a request.
pub(super) struct Says<'a> {
    /// What it is from now on.
    pub(super) value: ConsumerMemberValue,
    /// Its epoch, and what it owns. Of a member that joins (again) the epoch is
    /// [`MEMBER_EPOCH_JOIN`](super::state::MEMBER_EPOCH_JOIN).
    pub(super) said: Said<'a>,
    /// When it gives up.
    pub(super) gives_up: GivesUp,
}

/// A member's step.
pub(super) struct Step {
    /// To be proposed together, in this order.
    pub(super) records: Vec<GroupRecord>,
    /// What the member has when they are applied.
    pub(super) current: CurrentMemberValue,
}

/// Lets `speaker` go on.
pub(super) fn advance(
    group: &str,
    state: &ConsumerState,
    speaker: &Speaker<'_>,
    says: Says<'_>,
    topics: &dyn Topics,
    now_ms: i64,
) -> Result<Step, GroupError> {
    let Says {
        value,
        said,
        gives_up,
    } = says;
    let fresh_regex = match &value.subscribed_regex {
        // One that nobody uses is not looked at when topics change, so its topics may be old.
        Some(regex)
            if state.regex_subscribers(regex) == 0 || !state.regexes().contains_key(regex) =>
        {
            Some(TopicPattern::new(regex)?.resolve(topics, now_ms))
        }
        _ => None,
    };
    let subscription_changed = speaker.value.is_none_or(|before| {
        before.subscribed_topics != value.subscribed_topics
            || before.subscribed_regex != value.subscribed_regex
    }) || fresh_regex.is_some();
    let epoch = state
        .epoch()
        .saturating_add(i32::from(subscription_changed));
    let target = (epoch > state.assignment_epoch()).then(|| {
        target::compute(
            state,
            &Change {
                removed: speaker.replaces,
                id: speaker.id,
                value: &value,
                previous: speaker.target,
                regex: value.subscribed_regex.as_deref().zip(fresh_regex.as_ref()),
            },
            topics,
        )
    });
    let (target_epoch, own_target) = match &target {
        Some(target) => (epoch, &target.own),
        None => (state.assignment_epoch(), speaker.target),
    };
    let is_free = |topic, partition| {
        let own = speaker.holds.iter().filter(|current| {
            reconcile::has(&current.assigned, topic, partition)
                || reconcile::has(&current.pending_revocation, topic, partition)
        });
        state.holders(topic, partition) <= own.count() as u32
    };
    let mut current = reconcile::next(&speaker.current, said, target_epoch, own_target, &is_free)?;
    if gives_up == GivesUp::Already && current.state == MemberState::UnrevokedPartitions {
        let said = Said {
            epoch: current.member_epoch,
            owned: said.owned,
        };
        current = reconcile::next(&current, said, target_epoch, own_target, &is_free)?;
    }

    let mut records = Vec::new();
    let metadata_hash = target
        .as_ref()
        .map_or(state.metadata_hash(), |target| target.metadata_hash);
    if epoch != state.epoch() || metadata_hash != state.metadata_hash() {
        records.push(GroupRecord::Consumer {
            group: group.to_owned(),
            value: Some(ConsumerValue {
                epoch,
                metadata_hash,
            }),
        });
    }
    if let Some(former) = speaker.replaces {
        push_member_tombstones(group, former, &mut records);
    }
    push_regex_changes(
        group,
        state,
        &speaker.regexes,
        value.subscribed_regex.as_deref(),
        fresh_regex,
        &mut records,
    );
    if speaker.replaces.is_some() || speaker.value != Some(&value) {
        records.push(GroupRecord::ConsumerMember {
            group: group.to_owned(),
            member: speaker.id.to_owned(),
            value: Some(value),
        });
    }
    match target {
        Some(target) => {
            for (member, target) in target.changed {
                records.push(GroupRecord::TargetMember {
                    group: group.to_owned(),
                    member,
                    value: Some(target),
                });
            }
            records.push(GroupRecord::TargetAssignment {
                group: group.to_owned(),
                value: Some(TargetAssignmentValue {
                    assignment_epoch: epoch,
                }),
            });
        }
        None if speaker.replaces.is_some() => records.push(GroupRecord::TargetMember {
            group: group.to_owned(),
            member: speaker.id.to_owned(),
            value: Some(speaker.target.clone()),
        }),
        None => {}
    }
    let recorded = state
        .members()
        .get(speaker.id)
        .and_then(|member| member.current.as_ref());
    if recorded != Some(&current) {
        records.push(GroupRecord::CurrentMember {
            group: group.to_owned(),
            member: speaker.id.to_owned(),
            value: Some(current.clone()),
        });
    }
    Ok(Step { records, current })
}

/// A regular expression is kept as long as some member subscribes with it.
pub(super) fn push_regex_changes(
    group: &str,
    state: &ConsumerState,
    before: &[&str],
    after: Option<&str>,
    fresh: Option<RegexValue>,
    records: &mut Vec<GroupRecord>,
) {
    for (at, regex) in before.iter().enumerate() {
        let speakers = before.iter().filter(|other| *other == regex).count() as u32;
        let told = before[..at].contains(regex);
        if after != Some(*regex) && !told && state.regex_subscribers(regex) <= speakers {
            records.push(GroupRecord::Regex {
                group: group.to_owned(),
                regex: (*regex).to_owned(),
                value: None,
            });
        }
    }
    if let (Some(regex), Some(value)) = (after, fresh) {
        records.push(GroupRecord::Regex {
            group: group.to_owned(),
            regex: regex.to_owned(),
            value: Some(value),
        });
    }
}
