//! Committed offsets: OffsetCommit, OffsetFetch and OffsetDelete in their versions.

use corduroy_protocol::messages::OffsetDeleteRequest;
use corduroy_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use corduroy_protocol::{
    OffsetCommitByIdRequest, OffsetCommitByIdTopic, OffsetFetchByIdGroup, OffsetFetchByIdRequest,
    OffsetFetchByIdTopic,
};
use uuid::Uuid;

use super::*;

type FetchedRow = (i32, i64, i32, Option<StrBytes>, ErrorCode);

/// A topic's partitions, each with its offset and error.
type ByIdRow = (TopicId, Vec<(i32, i64, ErrorCode)>);

const NOTHING: (i64, i32) = (-1, -1);

#[test]
fn offsets_are_fetched_in_every_version_and_of_several_groups() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&["a", "b", "", "unknown"]);
    let (none, unknown) = (ErrorCode::None, ErrorCode::UnknownTopicOrPartition);
    for version in 2..=9 {
        let offsets = [(0, i64::from(version)), (7, 1)];
        let codes = commit(&mut wire, version, ("a", "", -1), &offsets);
        assert_eq!(codes, [none, unknown], "version {version}");
    }
    assert_eq!(
        commit(&mut wire, 7, ("b", "", -1), &[(0, 20), (1, 21)]),
        [none; 2]
    );
    assert_eq!(
        commit(&mut wire, 7, ("", "", -1), &[(1, 33)]),
        [none],
        "the empty group"
    );
    // A group with this member does not exist: said of the partition that exists.
    let illegal = ErrorCode::IllegalGeneration;
    let codes = commit(&mut wire, 7, ("unknown", "m", 1), &[(0, 1), (7, 1)]);
    assert_eq!(codes, [illegal, unknown]);

    let metadata = |known: bool| Some(text(if known { "up to here" } else { "" }));
    for version in 1..=7 {
        for (group, offset) in [("a", 9), ("", -1), ("unknown", -1)] {
            let topics = vec![
                OffsetFetchRequestTopic::default()
                    .with_name(topic_name(TOPIC))
                    .with_partition_indexes(vec![0]),
            ];
            let request = OffsetFetchRequest::default()
                .with_group_id(group_id(group))
                .with_topics(Some(topics))
                .with_require_stable(version >= 7);
            let answer = answer!(wire, version, OffsetFetch, request);
            let what = format!("version {version}, group {group:?}");
            assert_eq!(code(answer.error_code), none, "{what}");
            let found = &answer.topics[0].partitions[0];
            assert_eq!(found.committed_offset, offset, "{what}");
            assert_eq!(found.metadata, metadata(offset >= 0), "{what}");
            assert_eq!(code(found.error_code), none, "{what}");
            if version >= 5 {
                let epoch = if offset >= 0 { 3 } else { -1 };
                assert_eq!(found.committed_leader_epoch, epoch, "{what}");
            }
        }
    }
    for version in [8, 9] {
        let asked: [(&str, Option<&[i32]>); 4] = [
            ("b", Some(&[1, 0, 7])),
            ("unknown", Some(&[0])),
            ("a", None),
            ("unknown", None),
        ];
        let answer = answer!(wire, version, OffsetFetch, batched(&asked, true));
        let found: Vec<(String, ErrorCode, Vec<FetchedRow>)> = answer
            .groups
            .iter()
            .map(|group| {
                let partitions = group.topics.iter().flat_map(|topic| &topic.partitions);
                let rows = partitions.map(|p| {
                    let metadata = p.metadata.clone();
                    let (offset, epoch) = (p.committed_offset, p.committed_leader_epoch);
                    (
                        p.partition_index,
                        offset,
                        epoch,
                        metadata,
                        code(p.error_code),
                    )
                });
                let rows = rows.collect();
                (group.group_id.to_string(), code(group.error_code), rows)
            })
            .collect();
        let known = |partition, offset| (partition, offset, 3, metadata(true), none);
        let none_of = |partition| (partition, NOTHING.0, NOTHING.1, metadata(false), none);
        let expected = [
            (
                "b".to_owned(),
                none,
                vec![known(1, 21), known(0, 20), none_of(7)],
            ),
            ("unknown".to_owned(), none, vec![none_of(0)]),
            ("a".to_owned(), none, vec![known(0, 9)]),
            ("unknown".to_owned(), none, vec![]),
        ];
        assert_eq!(found, expected, "version {version}");
    }
}

#[test]
fn topics_go_by_id_from_version_10_on() {
    let _alone = alone();
    let (cluster, mut wire) = one_node(&["by-id"]);
    cluster.create_topic("gone", 1, &[]);
    let (orders, gone) = (topic_id(&mut wire, TOPIC), topic_id(&mut wire, "gone"));
    let nobodys = TopicId::new(Uuid::from_u128(0xabc));
    let topic = |id: TopicId, partitions: &[(i32, i64)]| OffsetCommitByIdTopic {
        topic_id: id,
        partitions: partitions
            .iter()
            .map(|(p, offset)| commit_partition(*p, *offset))
            .collect(),
    };
    let commit = |wire: &mut Wire, topics: Vec<OffsetCommitByIdTopic>| {
        let request = OffsetCommitByIdRequest {
            group_id: group_id("by-id"),
            generation_id_or_member_epoch: -1,
            member_id: text(""),
            group_instance_id: None,
            topics,
        };
        let answer = answer!(wire, 10, OffsetCommitById => OffsetCommit, request);
        let topics = answer.topics.into_iter();
        topics
            .map(|topic| {
                assert_eq!(topic.name.as_str(), "");
                let partitions = topic.partitions.iter();
                let codes = partitions.map(|p| (p.partition_index, code(p.error_code)));
                (TopicId::new(topic.topic_id), codes.collect::<Vec<_>>())
            })
            .collect::<Vec<_>>()
    };
    let (none, unknown_id) = (ErrorCode::None, ErrorCode::UnknownTopicId);
    let unknown = ErrorCode::UnknownTopicOrPartition;
    let committed = commit(
        &mut wire,
        vec![
            topic(nobodys, &[(0, 1), (1, 1)]),
            topic(orders, &[(1, 11), (7, 1)]),
            topic(gone, &[(0, 5)]),
        ],
    );
    assert_eq!(
        committed,
        [
            (nobodys, vec![(0, unknown_id), (1, unknown_id)]),
            (orders, vec![(1, none), (7, unknown)]),
            (gone, vec![(0, none)]),
        ]
    );

    let fetch = |wire: &mut Wire, topics: Option<&[(TopicId, &[i32])]>| {
        let topics = topics.map(|topics| {
            let topics = topics.iter();
            topics
                .map(|(id, partitions)| OffsetFetchByIdTopic {
                    topic_id: *id,
                    partition_indexes: partitions.to_vec(),
                })
                .collect()
        });
        let request = OffsetFetchByIdRequest {
            groups: vec![OffsetFetchByIdGroup {
                group_id: group_id("by-id"),
                member_id: None,
                member_epoch: -1,
                topics,
            }],
            require_stable: true,
        };
        let answer = answer!(wire, 10, OffsetFetchById => OffsetFetch, request);
        assert_eq!(code(answer.groups[0].error_code), none);
        let topics = answer.groups[0].topics.iter();
        let mut rows: Vec<ByIdRow> = topics
            .map(|topic| {
                let partitions = topic.partitions.iter();
                let rows =
                    partitions.map(|p| (p.partition_index, p.committed_offset, code(p.error_code)));
                (TopicId::new(topic.topic_id), rows.collect())
            })
            .collect();
        rows.sort_by_key(|(id, _)| *id);
        rows
    };
    let sorted = |mut rows: Vec<ByIdRow>| {
        rows.sort_by_key(|(id, _)| *id);
        rows
    };
    let asked: &[(TopicId, &[i32])] = &[(orders, &[0, 1]), (nobodys, &[3]), (gone, &[0])];
    assert_eq!(
        fetch(&mut wire, Some(asked)),
        sorted(vec![
            (orders, vec![(0, -1, none), (1, 11, none)]),
            (nobodys, vec![(3, -1, unknown_id)]),
            (gone, vec![(0, 5, none)]),
        ])
    );
    let all = sorted(vec![
        (orders, vec![(1, 11, none)]),
        (gone, vec![(0, 5, none)]),
    ]);
    assert_eq!(fetch(&mut wire, None), all);

    // Another topic of the same name has another id: the old one names nothing any more.
    cluster.must(&["topic", "delete", "gone"]);
    cluster.create_topic("gone", 1, &[]);
    let again = topic_id(&mut wire, "gone");
    assert_ne!(again, gone);
    let refused = commit(&mut wire, vec![topic(gone, &[(0, 6)])]);
    assert_eq!(refused, [(gone, vec![(0, unknown_id)])]);
    let asked: &[(TopicId, &[i32])] = &[(gone, &[0])];
    assert_eq!(
        fetch(&mut wire, Some(asked)),
        [(gone, vec![(0, -1, unknown_id)])]
    );
}

#[test]
fn offsets_of_what_does_not_exist_are_not_deleted() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&["kept", "", "unknown"]);
    assert_eq!(
        commit(&mut wire, 7, ("kept", "", -1), &[(0, 4), (1, 5)]),
        [ErrorCode::None; 2]
    );
    let delete = |wire: &mut Wire, group: &str, topic: &str, partitions: &[i32]| {
        let partitions = partitions
            .iter()
            .map(|p| OffsetDeleteRequestPartition::default().with_partition_index(*p));
        let topic = OffsetDeleteRequestTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(partitions.collect());
        let request = OffsetDeleteRequest::default()
            .with_group_id(group_id(group))
            .with_topics(vec![topic]);
        let answer = answer!(wire, 0, OffsetDelete, request);
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let codes = partitions.map(|p| (p.partition_index, code(p.error_code)));
        (code(answer.error_code), codes.collect::<Vec<_>>())
    };
    let coordinator = corduroy_group::partition_of_group("kept", 50).get();
    let end = |wire: &mut Wire| wire.list_offset(CONSUMER_OFFSETS, coordinator, -1);
    let (none, unknown) = (ErrorCode::None, ErrorCode::UnknownTopicOrPartition);
    let before = end(&mut wire).expect("answered");
    assert_eq!(
        delete(&mut wire, "kept", TOPIC, &[7]),
        (none, vec![(7, unknown)])
    );
    assert_eq!(
        delete(&mut wire, "kept", "no-such", &[0]),
        (none, vec![(0, unknown)])
    );
    assert_eq!(
        end(&mut wire).expect("answered"),
        before,
        "no tombstone is written"
    );

    let deleted = delete(&mut wire, "kept", TOPIC, &[7, 0]);
    assert_eq!(deleted, (none, vec![(7, unknown), (0, none)]));
    let after = end(&mut wire).expect("answered");
    assert_eq!(after.1, before.1 + 1, "one tombstone");
    let left = answer!(wire, 8, OffsetFetch, batched(&[("kept", None)], false));
    let left = &left.groups[0].topics[0].partitions;
    assert_eq!(
        (
            left.len(),
            left[0].partition_index,
            left[0].committed_offset
        ),
        (1, 1, 5)
    );

    assert_eq!(
        delete(&mut wire, "", TOPIC, &[0]),
        (ErrorCode::InvalidGroupId, vec![])
    );
    assert_eq!(
        delete(&mut wire, "unknown", TOPIC, &[0]),
        (ErrorCode::GroupIdNotFound, vec![])
    );
}

/// Each committed offset carries its group's name. A commit that would be too much for a frame between
/// nodes would stop its coordinator for good.
#[test]
fn a_commit_that_no_frame_could_hold_is_refused() {
    let _alone = alone();
    let long = "g".repeat(4096);
    let (_cluster, mut wire) = one_node(&[long.as_str()]);
    let offsets = |count: i64| -> Vec<(i32, i64)> { (0..count).map(|n| (0, n)).collect() };
    assert_eq!(
        commit(&mut wire, 7, (&"g".repeat(4097), "", -1), &offsets(1)),
        [ErrorCode::InvalidGroupId]
    );
    assert_eq!(
        commit(&mut wire, 7, (&long, "", -1), &offsets(4096)),
        vec![ErrorCode::OffsetMetadataTooLarge; 4096],
        "16 MiB of names alone"
    );
    assert_eq!(
        commit(&mut wire, 7, (&long, "", -1), &offsets(100)),
        [ErrorCode::None; 100]
    );
    let many: Vec<i32> = vec![0; 256 * 1024 + 1];
    let asked = batched(&[(&long, Some(&many))], false);
    let answer = answer!(wire, 8, OffsetFetch, asked);
    assert_eq!(code(answer.groups[0].error_code), ErrorCode::InvalidRequest);
    let asked = batched(&[(&long, Some(&[0]))], false);
    let answer = answer!(wire, 8, OffsetFetch, asked);
    let partition = &answer.groups[0].topics[0].partitions[0];
    assert_eq!(partition.committed_offset, 99);
}
