//! How much memory groups take, estimated: texts and bytes as they are, the rest by constants.

use corduroy_record::TopicPartition;

use super::GroupKind;
#[cfg(test)]
use super::GroupState;
use crate::consumer::{ConsumerMember, ConsumerState};
use crate::records::{
    Assignment, ClassicMemberValue, ClassicValue, GroupRecord, OffsetValue, RegexValue,
};

/// A group's place in the table: the state itself and its share of a tree's node.
const GROUP_BYTES: usize = 640;
/// An offset's place: key and value (112 bytes) in a tree's nodes that are two thirds full, and the
/// allocator's share of two texts.
const OFFSET_BYTES: usize = 200;
/// A member of either protocol: the struct, and the allocator's share of its texts.
const MEMBER_BYTES: usize = 480;
/// One more text or list: its header, the allocator's share.
const TEXT_BYTES: usize = 40;
/// A partition in an assignment, and its place among the holders of a consumer group.
const PARTITION_BYTES: usize = 48;

/// A group without offsets and members.
pub(super) fn empty_group_bytes(name: &str) -> usize {
    GROUP_BYTES + name.len()
}

pub(super) fn offset_bytes(partition: &TopicPartition, value: &OffsetValue) -> usize {
    OFFSET_BYTES + partition.topic.len() + value.metadata.len()
}

/// The whole of a group, counted anew: what the parts that changed must add up to.
#[cfg(test)]
pub(super) fn group_bytes(name: &str, state: &GroupState) -> usize {
    let offsets_bytes: usize = state
        .offsets
        .iter()
        .map(|(partition, value)| offset_bytes(partition, value))
        .sum();
    empty_group_bytes(name) + offsets_bytes + kind_bytes(&state.kind)
}

pub(super) fn kind_bytes(kind: &GroupKind) -> usize {
    match kind {
        GroupKind::Simple => 0,
        GroupKind::Classic(value) => classic_bytes(value),
        GroupKind::Consumer(state) => consumer_bytes(state),
    }
}

/// The part of a consumer group that a record may change.
pub(super) fn touched_bytes(state: &ConsumerState, record: &GroupRecord) -> usize {
    match record {
        GroupRecord::ConsumerMember { member, .. }
        | GroupRecord::TargetMember { member, .. }
        | GroupRecord::CurrentMember { member, .. } => state
            .members()
            .get(member)
            .map_or(0, |value| member_bytes(member, value)),
        GroupRecord::Regex { regex, .. } => state
            .regexes()
            .get(regex)
            .map_or(0, |value| regex_bytes(regex, value)),
        GroupRecord::Offset { .. }
        | GroupRecord::Classic { .. }
        | GroupRecord::Consumer { .. }
        | GroupRecord::TargetAssignment { .. } => 0,
    }
}

fn classic_bytes(value: &ClassicValue) -> usize {
    value.protocol_type.len()
        + text_bytes(value.protocol.as_deref())
        + text_bytes(value.leader.as_deref())
        + value
            .members
            .iter()
            .map(classic_member_bytes)
            .sum::<usize>()
}

fn classic_member_bytes(member: &ClassicMemberValue) -> usize {
    MEMBER_BYTES
        + member.member_id.len()
        + text_bytes(member.instance_id.as_deref())
        + member.client_id.len()
        + member.client_host.len()
        + member.subscription.len()
        + member.assignment.len()
}

fn consumer_bytes(state: &ConsumerState) -> usize {
    let members_bytes: usize = state
        .members()
        .iter()
        .map(|(id, member)| member_bytes(id, member))
        .sum();
    let regexes_bytes: usize = state
        .regexes()
        .iter()
        .map(|(regex, value)| regex_bytes(regex, value))
        .sum();
    members_bytes + regexes_bytes
}

fn member_bytes(id: &str, member: &ConsumerMember) -> usize {
    let value = &member.value;
    let topics_bytes: usize = value
        .subscribed_topics
        .iter()
        .map(|topic| TEXT_BYTES + topic.len())
        .sum();
    let protocols_bytes: usize = value
        .classic
        .iter()
        .flat_map(|classic| &classic.supported)
        .map(|(name, metadata)| 2 * TEXT_BYTES + name.len() + metadata.len())
        .sum();
    let current_bytes = member.current.as_ref().map_or(0, |current| {
        assignment_bytes(&current.assigned) + assignment_bytes(&current.pending_revocation)
    });
    MEMBER_BYTES
        + id.len()
        + text_bytes(value.instance_id.as_deref())
        + text_bytes(value.rack_id.as_deref())
        + value.client_id.len()
        + value.client_host.len()
        + text_bytes(value.subscribed_regex.as_deref())
        + text_bytes(value.server_assignor.as_deref())
        + topics_bytes
        + protocols_bytes
        + assignment_bytes(&member.target)
        + current_bytes
}

fn regex_bytes(regex: &str, value: &RegexValue) -> usize {
    let topics_bytes: usize = value
        .topics
        .iter()
        .map(|topic| TEXT_BYTES + topic.len())
        .sum();
    2 * TEXT_BYTES + regex.len() + topics_bytes
}

fn assignment_bytes(assignment: &Assignment) -> usize {
    assignment
        .values()
        .map(|partitions| 2 * TEXT_BYTES + partitions.len() * PARTITION_BYTES)
        .sum()
}

fn text_bytes(text: Option<&str>) -> usize {
    text.map_or(0, |text| TEXT_BYTES + text.len())
}
