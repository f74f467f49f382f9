//! ConsumerGroupHeartbeat: join, stay, leave (KIP-848), decided from committed state.
//!
//! A decision's records begin with the group's new epoch. Whatever prefix of them survives a crash,
//! the group epoch is then ahead of the target's, and the next heartbeat computes the target anew.

use std::time::Duration;

use corduroy_protocol::ErrorCode;

use super::advance::{GivesUp, NO_TARGET, Says, Speaker, advance, push_regex_changes};
use super::assign::Assignor;
use super::reconcile::{self, Said};
use super::state::{
    ConsumerState, MEMBER_EPOCH_AWAY, MEMBER_EPOCH_JOIN, MEMBER_EPOCH_LEAVE, push_member_tombstones,
};
use super::topics::Topics;
use crate::GroupError;
use crate::records::{
    Assignment, ConsumerMemberValue, ConsumerValue, CurrentMemberValue, GroupRecord, MemberState,
};

/// The limits of groups of the consumer protocol (cluster configuration, live).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerLimits {
    /// `group.consumer.session.timeout.ms`: how long a member may be silent.
    pub session_timeout: Duration,
    /// `group.consumer.heartbeat.interval.ms`: how often members should speak.
    pub heartbeat_interval: Duration,
    /// `group.consumer.max.size`.
    pub members_max: usize,
    /// `group.consumer.assignors`: those that members may ask for; who asks for none has the first.
    pub assignors: Vec<Assignor>,
}

/// ConsumerGroupHeartbeat. What is `None` has not changed since the member's last request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatRequest {
    /// The member's id.
    pub member_id: String,
    /// The id of a member that joins without one: version 0, where the server names members.
    /// `None` for later versions, where members name themselves (KIP-1082).
    pub fresh_member_id: Option<String>,
    /// The member's epoch; 0 joins, -1 leaves, -2 leaves for a while (static members).
    pub member_epoch: i32,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// The client's rack.
    pub rack_id: Option<String>,
    /// How long revocations may take, milliseconds; -1: as before.
    pub rebalance_timeout_ms: i32,
    /// The client's name of itself.
    pub client_id: String,
    /// The client's address, as `/1.2.3.4`.
    pub client_host: String,
    /// Topics by name.
    pub subscribed_topics: Option<Vec<String>>,
    /// Topics by regular expression (version 1); empty: none any more.
    pub subscribed_regex: Option<String>,
    /// The assignor that the member asks for.
    pub server_assignor: Option<String>,
    /// What the member owns, in any order.
    pub owned: Option<Assignment>,
}

/// What ConsumerGroupHeartbeat answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// The member's id.
    pub member_id: String,
    /// The epoch that the member has from now on.
    pub member_epoch: i32,
    /// When it should speak again, milliseconds.
    pub heartbeat_interval_ms: i32,
    /// What it may own: after a full request and after a change, else `None` (as before).
    pub assignment: Option<Assignment>,
}

/// What a request does: the records to make durable, and what to answer once they are applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// To be proposed together, in this order; may be empty.
    pub records: Vec<GroupRecord>,
    /// To be sent when they have been applied.
    pub answer: HeartbeatAnswer,
}

/// Decides a heartbeat from the group's committed state (`None`: there is no such group).
///
/// Decisions of one group must follow one another: the next one is made when the records of the one
/// before have been applied. `now_ms` is wall time, for the record of a regular expression.
///
/// # Errors
///
/// INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION: the request is wrong.
/// GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED: the group cannot have the member.
/// UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID: the member is
/// not who it says.
pub fn heartbeat(
    group: &str,
    state: Option<&ConsumerState>,
    request: &HeartbeatRequest,
    topics: &dyn Topics,
    limits: &ConsumerLimits,
    now_ms: i64,
) -> Result<Decision, GroupError> {
    check_request(group, request, limits)?;
    let nothing = ConsumerState::default();
    let state = match state {
        Some(state) => state,
        None if request.member_epoch == MEMBER_EPOCH_JOIN => &nothing,
        None => {
            return Err(GroupError::new(
                ErrorCode::GroupIdNotFound,
                format!("there is no consumer group {group}"),
            ));
        }
    };
    match request.member_epoch {
        MEMBER_EPOCH_LEAVE | MEMBER_EPOCH_AWAY => leave(group, state, request, limits),
        _ => stay(group, state, request, topics, limits, now_ms),
    }
}

/// What can be said without looking at the group.
fn check_request(
    group: &str,
    request: &HeartbeatRequest,
    limits: &ConsumerLimits,
) -> Result<(), GroupError> {
    let invalid = |message: &str| Err(GroupError::new(ErrorCode::InvalidRequest, message));
    let blank = |text: &str| text.trim().is_empty();
    if blank(group) {
        return invalid("the group id is empty");
    }
    if request.instance_id.as_deref().is_some_and(blank) {
        return invalid("the instance id is empty");
    }
    if request.rack_id.as_deref().is_some_and(blank) {
        return invalid("the rack id is empty");
    }
    let named_by_server =
        request.member_epoch == MEMBER_EPOCH_JOIN && request.fresh_member_id.is_some();
    if blank(&request.member_id) && !named_by_server {
        return invalid("the member id is empty");
    }
    if request.rebalance_timeout_ms < -1 {
        return invalid("the rebalance timeout is negative");
    }
    match request.member_epoch {
        MEMBER_EPOCH_JOIN => {
            if request.rebalance_timeout_ms == -1 {
                return invalid("a member that joins must tell its rebalance timeout");
            }
            if request.owned.as_ref().is_none_or(|owned| !owned.is_empty()) {
                return invalid("a member that joins must own nothing, and say so");
            }
            // An empty list is a subscription too: such a member takes part and gets nothing.
            if request.subscribed_topics.is_none() && request.subscribed_regex.is_none() {
                return invalid("a member that joins must subscribe, by names or by an expression");
            }
        }
        MEMBER_EPOCH_AWAY if request.instance_id.is_none() => {
            return invalid("only a static member can leave for a while");
        }
        epoch if epoch < MEMBER_EPOCH_AWAY => {
            return invalid("the member epoch is below -2");
        }
        _ => {}
    }
    if let Some(name) = &request.server_assignor
        && Assignor::from_name(name).is_none_or(|named| !limits.assignors.contains(&named))
    {
        let known: Vec<&str> = limits.assignors.iter().map(|known| known.name()).collect();
        return Err(GroupError::new(
            ErrorCode::UnsupportedAssignor,
            format!(
                "there is no assignor {name}; there are {}",
                known.join(", ")
            ),
        ));
    }
    Ok(())
}

fn identify<'a>(
    state: &'a ConsumerState,
    request: &'a HeartbeatRequest,
    said: Said<'_>,
    limits: &ConsumerLimits,
) -> Result<Speaker<'a>, GroupError> {
    let joins = said.epoch == MEMBER_EPOCH_JOIN;
    let id = match &request.fresh_member_id {
        Some(fresh) if joins && request.member_id.is_empty() => fresh.as_str(),
        _ => request.member_id.as_str(),
    };
    let known = state.members().get(id);
    let mut source = known;
    let mut replaces = None;
    if let Some(instance) = &request.instance_id {
        match state.instance(instance) {
            Some((former, _)) if former == id => {}
            Some((former, member)) if joins => {
                // A classic member is fenced by its instance id; one of this protocol must have
                // left, since two owners of its partitions could not be told apart.
                if member.epoch() != MEMBER_EPOCH_AWAY && member.value.classic.is_none() {
                    return Err(GroupError::new(
                        ErrorCode::UnreleasedInstanceId,
                        format!("instance {instance} is member {former}, which has not left"),
                    ));
                }
                source = Some(member);
                replaces = Some(former);
            }
            Some((former, _)) => {
                return Err(GroupError::new(
                    ErrorCode::FencedInstanceId,
                    format!("instance {instance} is member {former} now"),
                ));
            }
            None if joins => {}
            None => return Err(unknown_member(&format!("with instance id {instance}"))),
        }
    }
    if !joins && source.is_none() {
        return Err(unknown_member(id));
    }
    if known.is_none() && replaces.is_none() && state.members().len() >= limits.members_max {
        return Err(GroupError::new(
            ErrorCode::GroupMaxSizeReached,
            format!("the group has {} members already", limits.members_max),
        ));
    }
    let mut current = source
        .and_then(|member| member.current.clone())
        .unwrap_or_else(reconcile::newcomer);
    if joins && (current.member_epoch == MEMBER_EPOCH_AWAY || replaces.is_some()) {
        current.member_epoch = MEMBER_EPOCH_JOIN;
        current.previous_member_epoch = MEMBER_EPOCH_JOIN;
    }
    reconcile::check_epoch(&current, said)?;
    let gone = replaces.and_then(|former| state.members().get(former));
    let before = || known.into_iter().chain(gone);
    Ok(Speaker {
        id,
        value: source.map(|member| &member.value),
        target: source.map_or(&NO_TARGET, |member| &member.target),
        current,
        replaces,
        holds: before()
            .filter_map(|member| member.current.as_ref())
            .collect(),
        regexes: before()
            .filter_map(|member| member.value.subscribed_regex.as_deref())
            .collect(),
    })
}

pub(super) fn unknown_member(who: &str) -> GroupError {
    GroupError::new(
        ErrorCode::UnknownMemberId,
        format!("the group has no member {who}"),
    )
}

/// What the member says about itself from now on.
fn updated_value(
    before: Option<&ConsumerMemberValue>,
    request: &HeartbeatRequest,
    limits: &ConsumerLimits,
) -> ConsumerMemberValue {
    let before = before.cloned();
    let told = |new: &Option<String>, old: Option<String>| new.clone().or(old);
    let mut subscribed_topics = match (&request.subscribed_topics, &before) {
        (Some(names), _) => names.clone(),
        (None, Some(before)) => before.subscribed_topics.clone(),
        (None, None) => Vec::new(),
    };
    subscribed_topics.sort_unstable();
    subscribed_topics.dedup();
    let (instance_id, rack_id, regex, rebalance_timeout_ms, server_assignor) = match before {
        Some(before) => (
            before.instance_id,
            before.rack_id,
            before.subscribed_regex,
            before.rebalance_timeout_ms,
            before.server_assignor,
        ),
        None => (None, None, None, -1, None),
    };
    ConsumerMemberValue {
        instance_id: told(&request.instance_id, instance_id),
        rack_id: told(&request.rack_id, rack_id),
        client_id: request.client_id.clone(),
        client_host: request.client_host.clone(),
        subscribed_topics,
        subscribed_regex: told(&request.subscribed_regex, regex).filter(|regex| !regex.is_empty()),
        rebalance_timeout_ms: match request.rebalance_timeout_ms {
            -1 => rebalance_timeout_ms,
            told => told,
        },
        server_assignor: told(&request.server_assignor, server_assignor)
            .or_else(|| default_wish(limits)),
        // Whoever speaks this protocol does not speak the classic one any more.
        classic: None,
    }
}

/// The wish of a member that has none: none, where the setting begins as [`Assignor::ALL`] does.
fn default_wish(limits: &ConsumerLimits) -> Option<String> {
    let first = limits.assignors.first();
    let other = first.filter(|first| **first != Assignor::ALL[0]);
    other.map(|other| other.name().to_owned())
}

/// Join, or go on.
fn stay(
    group: &str,
    state: &ConsumerState,
    request: &HeartbeatRequest,
    topics: &dyn Topics,
    limits: &ConsumerLimits,
    now_ms: i64,
) -> Result<Decision, GroupError> {
    let owned = request.owned.clone().map(|mut owned| {
        reconcile::normalise(&mut owned);
        owned
    });
    let said = Said {
        epoch: request.member_epoch,
        owned: owned.as_ref(),
    };
    let speaker = identify(state, request, said, limits)?;
    let value = updated_value(speaker.value, request, limits);
    let says = Says {
        value,
        said,
        gives_up: GivesUp::Later,
    };
    let step = advance(group, state, &speaker, says, topics, now_ms)?;
    let (records, current) = (step.records, step.current);

    // A full request, a change, or an answer that the member seems not to have seen.
    let is_full = said.epoch == MEMBER_EPOCH_JOIN
        || (request.rebalance_timeout_ms != -1
            && (request.subscribed_topics.is_some() || request.subscribed_regex.is_some())
            && request.owned.is_some());
    let tells = is_full
        || current.assigned != speaker.current.assigned
        || said.epoch != speaker.current.member_epoch;
    let answer = HeartbeatAnswer {
        member_id: speaker.id.to_owned(),
        member_epoch: current.member_epoch,
        heartbeat_interval_ms: millis(limits.heartbeat_interval),
        assignment: tells.then(|| current.assigned.clone()),
    };

    Ok(Decision { records, answer })
}

/// Leave, for good or for a while.
fn leave(
    group: &str,
    state: &ConsumerState,
    request: &HeartbeatRequest,
    limits: &ConsumerLimits,
) -> Result<Decision, GroupError> {
    let id = request.member_id.as_str();
    if let Some(instance) = &request.instance_id {
        match state.instance(instance) {
            Some((owner, _)) if owner == id => {}
            Some((owner, _)) => {
                return Err(GroupError::new(
                    ErrorCode::FencedInstanceId,
                    format!("instance {instance} is member {owner} now"),
                ));
            }
            None => return Err(unknown_member(&format!("with instance id {instance}"))),
        }
    }
    let Some(member) = state.members().get(id) else {
        return Err(unknown_member(id));
    };
    let records = if request.member_epoch == MEMBER_EPOCH_LEAVE {
        remove_members(group, state, &[id])
    } else {
        let before = member.current.clone().unwrap_or_else(reconcile::newcomer);
        let away = CurrentMemberValue {
            member_epoch: MEMBER_EPOCH_AWAY,
            previous_member_epoch: before.member_epoch,
            state: match before.state {
                // It has closed, so what it had to give up is given up.
                MemberState::UnrevokedPartitions => MemberState::Stable,
                other => other,
            },
            assigned: before.assigned,
            pending_revocation: Assignment::new(),
        };
        if before.member_epoch == MEMBER_EPOCH_AWAY {
            Vec::new()
        } else {
            vec![GroupRecord::CurrentMember {
                group: group.to_owned(),
                member: id.to_owned(),
                value: Some(away),
            }]
        }
    };
    Ok(Decision {
        records,
        answer: HeartbeatAnswer {
            member_id: id.to_owned(),
            member_epoch: request.member_epoch,
            heartbeat_interval_ms: millis(limits.heartbeat_interval),
            assignment: None,
        },
    })
}

/// Removes members that left, fell silent or did not give up their partitions in time; unknown ids
/// are passed over. What they held is free at once: their commits are refused from then on.
pub fn remove_members(group: &str, state: &ConsumerState, members: &[&str]) -> Vec<GroupRecord> {
    let mut gone: Vec<&str> = members
        .iter()
        .copied()
        .filter(|id| state.members().contains_key(*id))
        .collect();
    gone.sort_unstable();
    gone.dedup();
    let mut records = Vec::new();
    if gone.is_empty() {
        return records;
    }
    records.push(GroupRecord::Consumer {
        group: group.to_owned(),
        value: Some(ConsumerValue {
            epoch: state.epoch().saturating_add(1),
            metadata_hash: state.metadata_hash(),
        }),
    });
    let regexes: Vec<&str> = gone
        .iter()
        .filter_map(|id| state.members().get(*id)?.value.subscribed_regex.as_deref())
        .collect();
    for id in gone {
        push_member_tombstones(group, id, &mut records);
    }
    push_regex_changes(group, state, &regexes, None, None, &mut records);
    records
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}
