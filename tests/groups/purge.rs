//! What is left in `__consumer_offsets` when old segments have gone: everything that holds.

use std::collections::BTreeMap;

use corduroy_group::records::{Assignment, ClassicValue};
use corduroy_group::table::{GroupKind, GroupTable};
use corduroy_protocol::StrBytes;
use corduroy_protocol::messages::consumer_group_describe_response::DescribedGroup;
use corduroy_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    GroupId, OffsetFetchRequest, TopicName,
};
use corduroy_record::{PartitionIndex, TopicId, parse_many};
use support::group::at_coordinator;

use super::*;

const OFFSETS: &str = "__consumer_offsets";
const MODERN: &str = "modern";
const MODERN_MEMBER: &str = "m";

/// Offset, leader epoch and metadata of what a group has committed, by topic and partition.
type Positions = BTreeMap<(String, i32), (i64, i32, String)>;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// Where the coordinator's log begins.
fn start(cluster: &Cluster) -> i64 {
    let (error, start) = coordinator(cluster)
        .list_offset(OFFSETS, 0, -2)
        .expect("an answer");
    assert_eq!(error, ErrorCode::None);
    start
}

/// What a tool makes of the log that reads it from its start, as Burrow and its like do.
fn replayed(cluster: &Cluster) -> GroupTable {
    let mut wire = coordinator(cluster);
    let (_, end) = wire.list_offset(OFFSETS, 0, -1).expect("an answer");
    let mut from = start(cluster);
    assert!(from > 0, "nothing has gone");
    let mut table = GroupTable::new();
    while from < end {
        let fetched = wire
            .fetch(OFFSETS, 0, from, Duration::from_secs(1))
            .expect("an answer");
        assert_eq!(fetched.error, ErrorCode::None);
        for batch in parse_many(fetched.records) {
            let batch = batch.expect("a whole batch");
            for record in batch.records(64 << 20).expect("records") {
                let record = record.expect("a record");
                let key = record.key.expect("every record has a key");
                let applied = table.apply(&key, record.value.as_deref());
                applied.expect("a record of Kafka's");
            }
            from = batch.header().next_offset().get();
        }
    }
    assert_eq!(table.passed_over(), 0, "kinds of records that nobody reads");
    table
}

/// What OffsetFetch says of everything that a group has committed.
fn fetched(cluster: &Cluster, group: &str) -> Positions {
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_topics(None);
    let (error, topics, _) = at_coordinator(cluster, group, |wire| {
        let request = Request::OffsetFetch(request.clone());
        let Response::OffsetFetch(response) = wire.call(7, &request)? else {
            panic!("not an answer to OffsetFetch");
        };
        Ok((ErrorCode::from_code(response.error_code), response.topics))
    });
    assert_eq!(error, ErrorCode::None);
    let partitions = topics.into_iter().flat_map(|topic| {
        let name = topic.name.0.to_string();
        topic.partitions.into_iter().map(move |partition| {
            let metadata = partition.metadata.map_or(String::new(), |m| m.to_string());
            let place = (name.clone(), partition.partition_index);
            let epoch = partition.committed_leader_epoch;
            (place, (partition.committed_offset, epoch, metadata))
        })
    });
    partitions.collect()
}

/// The same in the log.
fn positions(table: &GroupTable, group: &str) -> Positions {
    let state = table.get(group).expect("the log names the group");
    let positions = state.offsets.iter().map(|(partition, value)| {
        let place = (partition.topic.clone(), partition.partition.get());
        let (offset, epoch) = (value.offset.get(), value.leader_epoch.get());
        (place, (offset, epoch, value.metadata.clone()))
    });
    positions.collect()
}

fn classic<'a>(table: &'a GroupTable, group: &str) -> &'a ClassicValue {
    match table.get(group).map(|state| &state.kind) {
        Some(GroupKind::Classic(value)) => value,
        other => panic!("{group} is {other:?} in the log"),
    }
}

/// ConsumerGroupHeartbeat of the only member.
fn beat(cluster: &Cluster, epoch: i32) -> ConsumerGroupHeartbeatResponse {
    let mut request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(MODERN)))
        .with_member_id(text(MODERN_MEMBER))
        .with_member_epoch(epoch);
    if epoch == 0 {
        request = request
            .with_rebalance_timeout_ms(60_000)
            .with_subscribed_topic_names(Some(vec![TopicName(text(TOPIC))]))
            .with_subscribed_topic_regex(None)
            .with_topic_partitions(Some(Vec::new()));
    }
    let (error, answer, _) = at_coordinator(cluster, MODERN, |wire| {
        let request = Request::ConsumerGroupHeartbeat(request.clone());
        let Response::ConsumerGroupHeartbeat(response) = wire.call(1, &request)? else {
            panic!("not an answer to ConsumerGroupHeartbeat");
        };
        Ok((ErrorCode::from_code(response.error_code), response))
    });
    assert_eq!(error, ErrorCode::None, "{:?}", answer.error_message);
    answer
}

/// ConsumerGroupDescribe of the only group.
fn described(cluster: &Cluster) -> DescribedGroup {
    let request =
        ConsumerGroupDescribeRequest::default().with_group_ids(vec![GroupId(text(MODERN))]);
    let (error, group, _) = at_coordinator(cluster, MODERN, |wire| {
        let request = Request::ConsumerGroupDescribe(request.clone());
        let Response::ConsumerGroupDescribe(mut response) = wire.call(1, &request)? else {
            panic!("not an answer to ConsumerGroupDescribe");
        };
        let group = response.groups.remove(0);
        Ok((ErrorCode::from_code(group.error_code), group))
    });
    assert_eq!(error, ErrorCode::None);
    group
}

/// Everything that the coordinator answers is in its log, in records that anybody can read.
fn compare(cluster: &Cluster, busy: &Member, when: &str) {
    let table = replayed(cluster);
    for group in ["quiet", "busy", MODERN] {
        let answered = fetched(cluster, group);
        assert!(!answered.is_empty(), "{when}: {group} has committed");
        assert_eq!(positions(&table, group), answered, "{when}: {group}");
    }
    assert_eq!(table.len(), 3, "{when}: groups");

    let value = classic(&table, "busy");
    assert_eq!(value.generation, busy.generation, "{when}");
    let members = value.members.iter();
    let members: Vec<_> = members.map(|m| (&m.member_id, &m.assignment)).collect();
    assert_eq!(members, [(&busy.id, &busy.assignment)], "{when}");

    let answered = described(cluster);
    let state = match table.get(MODERN).map(|state| &state.kind) {
        Some(GroupKind::Consumer(state)) => state,
        other => panic!("{when}: {MODERN} is {other:?} in the log"),
    };
    assert_eq!(state.epoch(), answered.group_epoch, "{when}");
    assert_eq!(state.assignment_epoch(), answered.assignment_epoch);
    let [told] = &answered.members[..] else {
        panic!("{when}: {} members", answered.members.len());
    };
    let member = &state.members()[told.member_id.as_str()];
    assert_eq!(state.members().len(), 1, "{when}");
    assert_eq!(member.epoch(), told.member_epoch, "{when}");
    assert_eq!(member.value.subscribed_topics, [TOPIC], "{when}");
    let assigned = told.assignment.topic_partitions.iter().map(|topic| {
        let id = TopicId::from_bytes(*topic.topic_id.as_bytes());
        let partitions = topic.partitions.iter().copied().map(PartitionIndex::new);
        (id, partitions.collect())
    });
    let assigned: Assignment = assigned.collect();
    assert_eq!(assigned.values().map(Vec::len).sum::<usize>(), 4);
    let current = member.current.as_ref().expect("it has been answered");
    assert_eq!(current.assigned, assigned, "{when}");
    assert_eq!(member.target, assigned, "{when}");
}

#[test]
fn whatever_holds_outlives_the_purge_of_its_segment() {
    let _alone = alone();
    let mut cluster = one_busy_coordinator(&[("offsets.topic.segment.bytes", "16384")]);
    let quiet = Member::new("quiet");
    assert_eq!(quiet.commit(&cluster, (TOPIC, 3), 42), ErrorCode::None);
    let mut joined = beat(&cluster, 0);
    wait_until("the member of the consumer protocol has partitions", || {
        joined = beat(&cluster, joined.member_epoch);
        let members = described(&cluster).members;
        members
            .iter()
            .any(|m| !m.assignment.topic_partitions.is_empty())
    });
    let mut modern = Member::new(MODERN);
    modern.id = MODERN_MEMBER.to_owned();
    modern.generation = joined.member_epoch;
    assert_eq!(
        modern.commit_by_epoch(&cluster, (TOPIC, 2), 8),
        ErrorCode::None
    );
    let mut busy = Member::new("busy");
    busy.settle(&cluster);
    let mut offset = 0;
    let mut starts = vec![start(&cluster)];
    wait_until("three purges", || {
        for _ in 0..50 {
            offset += 1;
            assert_eq!(busy.commit(&cluster, (TOPIC, 0), offset), ErrorCode::None);
        }
        beat(&cluster, joined.member_epoch);
        let now = start(&cluster);
        if starts.last() < Some(&now) {
            starts.push(now);
        }
        starts.len() > 3
    });
    compare(&cluster, &busy, "after purges");
    restart(&mut cluster);
    assert_eq!(
        committed(&cluster, "quiet", (TOPIC, 3)),
        (42, 3, "up to 42".to_owned()),
        "committed once, long before the log's start"
    );
    assert_eq!(committed(&cluster, "busy", (TOPIC, 0)).0, offset);
    assert_eq!(committed(&cluster, MODERN, (TOPIC, 2)).0, 8);
    compare(&cluster, &busy, "after a restart");
    assert_eq!(busy.heartbeat(&cluster).0, ErrorCode::None);
    assert_eq!(busy.leave(&cluster), ErrorCode::None);
}
