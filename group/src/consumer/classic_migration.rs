//! A group that changes its protocol while it has members (KIP-848, "online migration").
//!
//! Up: a member comes by ConsumerGroupHeartbeat to a classic group of type "consumer". The members
//! stay as classic members of a consumer group, in their generation as their epoch, with what they
//! were assigned. Down: the last member that speaks the consumer protocol goes, and classic ones
//! stay. They are a classic group again, in the group's epoch as their generation, and rebalance.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use corduroy_protocol::ErrorCode;

use super::changes::Conversion;
use super::classic_embedded::{PROTOCOL_TYPE, Subscription, decode_assignment, encode_assignment};
use super::classic_member::sorted;
use super::reconcile::normalise;
use super::state::{ConsumerMember, ConsumerState};
use super::target;
use super::topics::Topics;
use crate::GroupError;
use crate::classic::{ClassicGroup, ClassicState, MemberFacts};
use crate::records::{
    Assignment, ClassicMemberValue, ClassicProtocols, ClassicValue, ConsumerMemberValue,
    ConsumerValue, CurrentMemberValue, GroupRecord, MemberState, TargetAssignmentValue,
};

/// Which ways a group with members may change its protocol: `group.consumer.migration.policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationPolicy {
    /// None.
    Disabled,
    /// From the classic protocol to the consumer protocol.
    Upgrade,
    /// From the consumer protocol to the classic protocol.
    Downgrade,
    /// Both.
    Bidirectional,
}

impl MigrationPolicy {
    /// The policies, by the names that the configuration knows.
    pub const NAMES: &[(&str, MigrationPolicy)] = &[
        ("disabled", MigrationPolicy::Disabled),
        ("upgrade", MigrationPolicy::Upgrade),
        ("downgrade", MigrationPolicy::Downgrade),
        ("bidirectional", MigrationPolicy::Bidirectional),
    ];

    /// The policy of a name, in any case.
    pub fn from_name(name: &str) -> Option<MigrationPolicy> {
        let mut names = MigrationPolicy::NAMES.iter();
        names
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, policy)| *policy)
    }

    const fn upgrades(self) -> bool {
        matches!(
            self,
            MigrationPolicy::Upgrade | MigrationPolicy::Bidirectional
        )
    }

    const fn downgrades(self) -> bool {
        matches!(
            self,
            MigrationPolicy::Downgrade | MigrationPolicy::Bidirectional
        )
    }
}

/// What a migration needs beside the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationLimits {
    /// Which ways are open.
    pub policy: MigrationPolicy,
    /// The most members that the group may have by the other protocol.
    pub members_max: usize,
}

/// A classic group with members becomes one of the consumer protocol, because a member comes that
/// speaks it. `running` is the group as it is, `durable` its record: assignments are taken from
/// there, since members were told those.
///
/// The caller answers whoever is parked in `running` with REBALANCE_IN_PROGRESS: they shall join
/// again, and find the other protocol's group.
///
/// # Errors
///
/// GROUP_ID_NOT_FOUND (Kafka's choice): the policy or the size forbids it, or the members do not
/// use the embedded protocol "consumer".
pub fn upgrade(
    group: &str,
    running: &ClassicGroup,
    durable: Option<&ClassicValue>,
    last_generation: i32,
    topics: &dyn Topics,
    limits: MigrationLimits,
) -> Result<Conversion, GroupError> {
    let refusal = |why: &str| {
        GroupError::new(
            ErrorCode::GroupIdNotFound,
            format!("group {group} has members that use the classic protocol, and {why}"),
        )
    };
    if !limits.policy.upgrades() {
        return Err(refusal("group.consumer.migration.policy keeps it so"));
    }
    if running.len() > limits.members_max {
        return Err(refusal("more than a consumer group may have"));
    }
    if running.protocol_type() != Some(PROTOCOL_TYPE) {
        return Err(refusal("their protocol type is not consumer"));
    }
    let generation = running.generation();
    let assigned: BTreeMap<&str, &Bytes> = durable
        .into_iter()
        .flat_map(|value| &value.members)
        .map(|member| (member.member_id.as_str(), &member.assignment))
        .collect();
    let mut taken = BTreeSet::new();
    let mut members = Vec::new();
    for facts in running.facts() {
        let bytes = assigned.get(facts.value.member_id.as_str());
        let mut assignment = decode_assignment(bytes.map_or(&[], |bytes| bytes), topics)
            .ok_or_else(|| refusal("an assignment of theirs cannot be read"))?;
        // A leader that gave a partition to two members: the first keeps it.
        for (topic, partitions) in &mut assignment {
            partitions.retain(|partition| taken.insert((*topic, *partition)));
        }
        normalise(&mut assignment);
        let value = consumer_value(&facts)
            .ok_or_else(|| refusal("their metadata is no subscription to topics"))?;
        members.push((facts.value.member_id, value, assignment));
    }
    // Between two generations members wait for a new assignment: an epoch that nobody is in brings
    // it about.
    let settled = running.state() == ClassicState::Stable;
    let epoch = generation
        .saturating_add(i32::from(!settled))
        .max(last_generation);
    let mut records = upgrade_records(group, members, generation, epoch);
    let mut state = ConsumerState::default();
    for record in &records {
        state.apply(record);
    }
    // Topics as the members found them: the group rebalances when they change, and not before.
    let seen = GroupRecord::Consumer {
        group: group.to_owned(),
        value: Some(ConsumerValue {
            epoch,
            metadata_hash: target::metadata_hash(&state, &BTreeMap::new(), topics),
        }),
    };
    state.apply(&seen);
    records.push(seen);
    Ok(Conversion { records, state })
}

/// A classic member as a member of a consumer group; `None` where its metadata cannot be read.
fn consumer_value(facts: &MemberFacts) -> Option<ConsumerMemberValue> {
    // Its first protocol counts, as when it joins.
    let (_, metadata) = facts.protocols.first()?;
    let subscription = Subscription::decode(metadata)?;
    Some(ConsumerMemberValue {
        instance_id: facts.value.instance_id.clone(),
        rack_id: subscription.rack.map(str::to_owned),
        client_id: facts.value.client_id.clone(),
        client_host: facts.value.client_host.clone(),
        subscribed_topics: sorted(&subscription.topics),
        subscribed_regex: None,
        rebalance_timeout_ms: facts.value.rebalance_timeout_ms,
        server_assignor: None,
        classic: Some(ClassicProtocols {
            session_timeout_ms: facts.value.session_timeout_ms,
            supported: facts.protocols.clone(),
        }),
    })
}

fn upgrade_records(
    group: &str,
    members: Vec<(String, ConsumerMemberValue, Assignment)>,
    generation: i32,
    epoch: i32,
) -> Vec<GroupRecord> {
    let group = || group.to_owned();
    let mut records = vec![
        GroupRecord::Classic {
            group: group(),
            value: None,
        },
        GroupRecord::Consumer {
            group: group(),
            value: Some(ConsumerValue {
                epoch,
                metadata_hash: 0,
            }),
        },
    ];
    for (member, value, assignment) in members {
        records.push(GroupRecord::ConsumerMember {
            group: group(),
            member: member.clone(),
            value: Some(value),
        });
        if !assignment.is_empty() {
            records.push(GroupRecord::TargetMember {
                group: group(),
                member: member.clone(),
                value: Some(assignment.clone()),
            });
        }
        records.push(GroupRecord::CurrentMember {
            group: group(),
            member,
            value: Some(CurrentMemberValue {
                member_epoch: generation,
                previous_member_epoch: generation,
                state: MemberState::Stable,
                assigned: assignment,
                pending_revocation: Assignment::new(),
            }),
        });
    }
    if generation > 0 {
        records.push(GroupRecord::TargetAssignment {
            group: group(),
            value: Some(TargetAssignmentValue {
                assignment_epoch: generation,
            }),
        });
    }
    records
}

/// What to write instead of `records`, if these take the last member of the consumer protocol from
/// the group and leave classic ones: the group's end, and a classic group that owes its members a
/// rebalance (a record without a leader says so, see
/// [`ClassicGroup::from_value`]). `None`: `records` are right as they are.
///
/// The generation is the group's epoch: members that have reached it are told of the rebalance by
/// their next heartbeat and lose nothing; those behind it join anew.
pub fn downgrade(
    group: &str,
    state: &ConsumerState,
    records: &[GroupRecord],
    topics: &dyn Topics,
    limits: MigrationLimits,
    now_ms: i64,
) -> Option<Vec<GroupRecord>> {
    let takes_one = records.iter().any(|record| match record {
        GroupRecord::ConsumerMember {
            member,
            value: None,
            ..
        } => {
            let member = state.members().get(member);
            member.is_some_and(|member| member.value.classic.is_none())
        }
        _ => false,
    });
    if !takes_one || !limits.policy.downgrades() {
        return None;
    }
    let mut after = state.clone();
    for record in records {
        after.apply(record);
    }
    if after.members().is_empty() || after.members().len() > limits.members_max {
        return None;
    }
    let protocol = vote(&after)?;
    let members: Option<Vec<ClassicMemberValue>> = after
        .members()
        .iter()
        .map(|(id, member)| classic_value(id, member, &protocol, topics))
        .collect();
    let mut instead = Vec::new();
    state.tombstones(group, &mut instead);
    instead.push(GroupRecord::Classic {
        group: group.to_owned(),
        value: Some(ClassicValue {
            protocol_type: PROTOCOL_TYPE.to_owned(),
            generation: state.epoch(),
            protocol: Some(protocol),
            leader: None,
            state_timestamp_ms: now_ms,
            members: members?,
        }),
    });
    Some(instead)
}

/// The protocol that most members name first of those that all support; `None` where a member does
/// not speak the classic protocol, or where they have none in common.
fn vote(state: &ConsumerState) -> Option<String> {
    let mut supporters: BTreeMap<&str, usize> = BTreeMap::new();
    for member in state.members().values() {
        for (name, _) in &member.value.classic.as_ref()?.supported {
            *supporters.entry(name).or_insert(0) += 1;
        }
    }
    let all = state.members().len();
    let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
    for member in state.members().values() {
        let mut names = member.value.classic.as_ref()?.supported.iter();
        let (name, _) = names.find(|(name, _)| supporters.get(name.as_str()) == Some(&all))?;
        *votes.entry(name).or_insert(0) += 1;
    }
    votes
        .into_iter()
        .max_by_key(|(_, count)| *count)
        .map(|(name, _)| name.to_owned())
}

fn classic_value(
    id: &str,
    member: &ConsumerMember,
    protocol: &str,
    topics: &dyn Topics,
) -> Option<ClassicMemberValue> {
    let classic = member.value.classic.as_ref()?;
    let (_, subscription) = classic
        .supported
        .iter()
        .find(|(name, _)| name == protocol)?;
    let version = Subscription::decode(subscription).map_or(0, |known| known.version);
    // What it owns until the rebalance: the target may belong to others still.
    let mut owned = Assignment::new();
    if let Some(current) = &member.current {
        for (topic, partitions) in current.assigned.iter().chain(&current.pending_revocation) {
            owned.entry(*topic).or_default().extend(partitions);
        }
        normalise(&mut owned);
    }
    Some(ClassicMemberValue {
        member_id: id.to_owned(),
        instance_id: member.value.instance_id.clone(),
        client_id: member.value.client_id.clone(),
        client_host: member.value.client_host.clone(),
        rebalance_timeout_ms: member.value.rebalance_timeout_ms,
        session_timeout_ms: classic.session_timeout_ms,
        subscription: subscription.clone(),
        assignment: encode_assignment(&owned, version, topics),
    })
}
