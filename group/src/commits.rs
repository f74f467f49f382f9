//! Who may commit offsets, and when committed offsets expire.
//!
//! Members are judged by the machine of their protocol; here are the rules of groups without
//! members, and those that need no machine. Source: Apache Kafka's group coordinator
//! (`ClassicGroup`, `ConsumerGroup`, `OffsetMetadataManager`).

use std::collections::BTreeSet;

use corduroy_protocol::ErrorCode;
use corduroy_record::TopicPartition;

use crate::GroupError;
use crate::classic::MemberIdentity;
use crate::records::{GroupRecord, OffsetValue, TEXT_BYTES_MAX};
use crate::table::{GroupKind, GroupState};

/// The protocol type whose metadata says what its members subscribe to.
const CONSUMER_TYPE: &str = "consumer";

/// The first version of OffsetCommit that can say GROUP_ID_NOT_FOUND.
const NOT_FOUND_VERSION: i16 = 9;

/// Whether somebody may commit offsets to a group that has no members (`None`: no such group).
///
/// `api_version` is that of OffsetCommit. A group with members is its machine's to judge; here
/// nobody is known in it.
///
/// # Errors
///
/// ILLEGAL_GENERATION (from version 9 on GROUP_ID_NOT_FOUND) for a generation or member epoch of a
/// group that does not exist; UNKNOWN_MEMBER_ID for one of a group without members, and for anybody
/// where there are members.
pub fn judge_simple(
    state: Option<&GroupState>,
    identity: &MemberIdentity,
    api_version: i16,
) -> Result<(), GroupError> {
    let outside = identity.generation < 0;
    match state {
        None if outside => Ok(()),
        None if api_version >= NOT_FOUND_VERSION => Err(ErrorCode::GroupIdNotFound.into()),
        None => Err(ErrorCode::IllegalGeneration.into()),
        Some(state) if outside && !state.has_members() => Ok(()),
        Some(_) => Err(ErrorCode::UnknownMemberId.into()),
    }
}

/// Whether a committed offset's metadata is short enough.
///
/// `length_max` is `offset.metadata.max.bytes`. As in Kafka it counts UTF-16 units, whatever its
/// name says; beyond [`TEXT_BYTES_MAX`] bytes no record can hold it.
///
/// # Errors
///
/// OFFSET_METADATA_TOO_LARGE.
pub fn judge_metadata(metadata: &str, length_max: usize) -> Result<(), GroupError> {
    // A text has at most as many UTF-16 units as bytes: most need no count.
    let fits = metadata.len() <= length_max || metadata.encode_utf16().count() <= length_max;
    if fits && metadata.len() <= TEXT_BYTES_MAX {
        return Ok(());
    }
    Err(ErrorCode::OffsetMetadataTooLarge.into())
}

/// What the members of a group subscribe to, as far as the coordinator knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subscribed {
    /// There are no members.
    Nothing,
    /// These topics.
    Topics(BTreeSet<String>),
    /// Unknown: a member's metadata cannot be read, or (for expiry) members are joining. Nothing
    /// may be taken from them.
    Everything,
    /// There are members, of another type than "consumer": nobody else can tell what they need.
    Foreign,
}

impl Subscribed {
    fn contains(&self, topic: &str) -> bool {
        match self {
            Subscribed::Nothing => false,
            Subscribed::Topics(topics) => topics.contains(topic),
            Subscribed::Everything | Subscribed::Foreign => true,
        }
    }
}

/// What has been decided about a group already and comes behind what is decided now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnItsWay {
    /// Nothing.
    Nothing,
    /// Offsets: each has the last word on its key, and the group has something left.
    Offsets,
    /// What the group is, or who its members are: nothing is known before it is applied.
    Group,
}

/// What time it is, and how long offsets are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// `offsets.retention.minutes` in milliseconds.
    pub retention_ms: i64,
}

/// From when a group's offsets age.
enum Age {
    /// Each from its commit.
    Commit,
    /// All from when the group became empty, milliseconds since the Unix epoch.
    Empty(i64),
    /// Not at all.
    Never,
}

/// The tombstones of what has expired in a group, the group's own last if nothing is left of it
/// and it has no members.
///
/// | group | an offset ages from |
/// |---|---|
/// | simple | its commit |
/// | classic, no members | when the group became empty; its commit where that is unknown |
/// | classic "consumer" with members, stable | its commit, if no member subscribes to its topic |
/// | classic of another type with members, or between two generations | never |
/// | consumer protocol | its commit, if no member subscribes to its topic |
///
/// An offset with an expiry of its own goes when that has come, in all rows but the fourth.
/// `subscribed` is what the classic machine knows ([`Subscribed::Everything`] while members join);
/// of a consumer group the state itself knows more, and both count. `on_its_way` is what will be
/// applied after these tombstones, whoever decided it before them.
pub fn expired(
    group: &str,
    state: &GroupState,
    subscribed: &Subscribed,
    retention: Retention,
    on_its_way: OnItsWay,
) -> Vec<GroupRecord> {
    if on_its_way == OnItsWay::Group {
        return Vec::new();
    }
    let mut records: Vec<GroupRecord> = expired_partitions(state, subscribed, retention)
        .map(|partition| offset_tombstone(group, partition))
        .collect();
    let nothing_left = records.len() == state.offsets.len() && !state.has_members();
    if nothing_left && *subscribed == Subscribed::Nothing && on_its_way == OnItsWay::Nothing {
        push_group_tombstones(group, state, &mut records);
    }
    records
}

/// Whether [`expired`] has tombstones for a group of which nothing is on its way, without building
/// them. `subscribed` is asked only where something is old enough.
pub fn has_expired(
    state: &GroupState,
    subscribed: impl FnOnce() -> Subscribed,
    retention: Retention,
) -> bool {
    let age = age_of_kind(state);
    let is_bare = state.offsets.is_empty() && !state.has_members();
    let is_old = |value: &OffsetValue| is_expired(value, &age, retention);
    if !is_bare && !state.offsets.values().any(is_old) {
        return false;
    }
    let subscribed = subscribed();
    if is_bare {
        return subscribed == Subscribed::Nothing && !matches!(state.kind, GroupKind::Simple);
    }
    expired_partitions(state, &subscribed, retention)
        .next()
        .is_some()
}

fn expired_partitions<'a>(
    state: &'a GroupState,
    subscribed: &'a Subscribed,
    retention: Retention,
) -> impl Iterator<Item = &'a TopicPartition> {
    let age = age(state, subscribed);
    let expired = state.offsets.iter().filter(move |(partition, value)| {
        is_expired(value, &age, retention) && !is_subscribed(state, subscribed, &partition.topic)
    });
    expired.map(|(partition, _)| partition)
}

fn age(state: &GroupState, subscribed: &Subscribed) -> Age {
    match subscribed {
        Subscribed::Everything | Subscribed::Foreign => Age::Never,
        Subscribed::Nothing | Subscribed::Topics(_) => age_of_kind(state),
    }
}

/// From when a group's offsets age where its members do not forbid it.
fn age_of_kind(state: &GroupState) -> Age {
    match &state.kind {
        GroupKind::Simple | GroupKind::Consumer(_) => Age::Commit,
        GroupKind::Classic(value) if value.protocol_type.is_empty() => Age::Commit,
        GroupKind::Classic(value) if value.members.is_empty() => match value.state_timestamp_ms {
            -1 => Age::Commit,
            since_ms => Age::Empty(since_ms),
        },
        GroupKind::Classic(value) if value.protocol_type == CONSUMER_TYPE => Age::Commit,
        GroupKind::Classic(_) => Age::Never,
    }
}

fn is_expired(value: &OffsetValue, age: &Age, retention: Retention) -> bool {
    let since_ms = match age {
        Age::Never => return false,
        Age::Commit => value.commit_timestamp_ms,
        Age::Empty(since_ms) => *since_ms,
    };
    match value.expire_timestamp_ms {
        Some(expire_ms) => retention.now_ms >= expire_ms,
        None => retention.now_ms.saturating_sub(since_ms) >= retention.retention_ms,
    }
}

fn is_subscribed(state: &GroupState, subscribed: &Subscribed, topic: &str) -> bool {
    match &state.kind {
        // Members of a first generation are in no record yet.
        GroupKind::Simple | GroupKind::Classic(_) => subscribed.contains(topic),
        GroupKind::Consumer(consumer) => consumer.subscribed(topic) || subscribed.contains(topic),
    }
}

/// The tombstones of a whole group, for DeleteGroups: offsets first, the group's own last.
///
/// # Errors
///
/// GROUP_ID_NOT_FOUND where there is no such group, NON_EMPTY_GROUP where it has members.
pub fn delete_group(
    group: &str,
    state: Option<&GroupState>,
) -> Result<Vec<GroupRecord>, GroupError> {
    let state = state.ok_or(ErrorCode::GroupIdNotFound)?;
    if state.has_members() {
        return Err(ErrorCode::NonEmptyGroup.into());
    }
    let mut records: Vec<GroupRecord> = state
        .offsets
        .keys()
        .map(|partition| offset_tombstone(group, partition))
        .collect();
    push_group_tombstones(group, state, &mut records);
    Ok(records)
}

/// What OffsetDelete does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetsDeleted {
    /// For each partition asked for, in that order: whether it may go (also if it was never there).
    pub results: Vec<Result<(), ErrorCode>>,
    /// The tombstones of those that are there.
    pub records: Vec<GroupRecord>,
}

/// The tombstones of some offsets, for OffsetDelete.
///
/// `subscribed` as in [`expired`], but what members that are joining again subscribed to before is
/// still known. A partition whose topic is subscribed to gives GROUP_SUBSCRIBED_TO_TOPIC.
///
/// # Errors
///
/// For the whole request: GROUP_ID_NOT_FOUND where there is no such group and nobody joins it,
/// NON_EMPTY_GROUP where a group of another type than "consumer" has members, also if these have
/// not left a record yet.
pub fn delete_offsets(
    group: &str,
    state: Option<&GroupState>,
    subscribed: &Subscribed,
    partitions: &[TopicPartition],
) -> Result<OffsetsDeleted, GroupError> {
    let nothing = GroupState::default();
    let state = match state {
        None if *subscribed == Subscribed::Nothing => {
            return Err(ErrorCode::GroupIdNotFound.into());
        }
        state => state.unwrap_or(&nothing),
    };
    let is_foreign = *subscribed == Subscribed::Foreign
        || matches!(&state.kind, GroupKind::Classic(value)
            if !value.members.is_empty() && value.protocol_type != CONSUMER_TYPE);
    if is_foreign {
        return Err(ErrorCode::NonEmptyGroup.into());
    }
    let mut gone = BTreeSet::new();
    let mut deleted = OffsetsDeleted {
        results: Vec::with_capacity(partitions.len()),
        records: Vec::new(),
    };
    for partition in partitions {
        if is_subscribed(state, subscribed, &partition.topic) {
            deleted.results.push(Err(ErrorCode::GroupSubscribedToTopic));
            continue;
        }
        deleted.results.push(Ok(()));
        if state.offsets.contains_key(partition) && gone.insert(partition) {
            deleted.records.push(offset_tombstone(group, partition));
        }
    }
    Ok(deleted)
}

fn offset_tombstone(group: &str, partition: &TopicPartition) -> GroupRecord {
    GroupRecord::Offset {
        group: group.to_owned(),
        partition: partition.clone(),
        value: None,
    }
}

fn push_group_tombstones(group: &str, state: &GroupState, records: &mut Vec<GroupRecord>) {
    match &state.kind {
        GroupKind::Simple => {}
        GroupKind::Classic(_) => records.push(GroupRecord::Classic {
            group: group.to_owned(),
            value: None,
        }),
        GroupKind::Consumer(consumer) => consumer.tombstones(group, records),
    }
}

#[cfg(test)]
mod tests;
