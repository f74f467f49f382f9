//! The records of `__consumer_offsets` against Kafka's own bytes.
//!
//! The bytes were written by the generated classes of Apache Kafka 4.1.1
//! (`org.apache.kafka.coordinator.group.generated`) from the same values, and follow from the
//! schemas: i16 kind or version, then the fields in the schema's order.

use bytes::Bytes;
use corduroy_group::records::{
    Assignment, ClassicMemberValue, ClassicProtocols, ClassicValue, ConsumerMemberValue,
    ConsumerValue, CurrentMemberValue, GroupRecord, MemberState, OffsetValue, RecordError,
    RegexValue, TEXT_BYTES_MAX, TargetAssignmentValue,
};
use corduroy_record::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};
use proptest::prelude::*;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(text: &str) -> String {
    text.to_owned()
}

fn offset_record(value: Option<OffsetValue>) -> GroupRecord {
    GroupRecord::Offset {
        group: text("g"),
        partition: TopicPartition {
            topic: text("t"),
            partition: PartitionIndex::new(7),
        },
        value,
    }
}

fn offset(leader_epoch: i32, expire_timestamp_ms: Option<i64>) -> GroupRecord {
    offset_record(Some(OffsetValue {
        offset: Offset::new(42),
        leader_epoch: LeaderEpoch::new(leader_epoch),
        metadata: text("note"),
        commit_timestamp_ms: 1000,
        expire_timestamp_ms,
        topic_id: None,
    }))
}

/// An offset that says which topic it is of: the id has the bytes 1 to 16.
fn offset_of_topic() -> GroupRecord {
    let mut record = offset(5, None);
    let id = std::array::from_fn(|at| at as u8 + 1);
    if let GroupRecord::Offset { value, .. } = &mut record {
        value.as_mut().unwrap().topic_id = Some(TopicId::from_bytes(id));
    }
    record
}

fn classic(
    state_timestamp_ms: i64,
    instance_id: Option<&str>,
    rebalance_timeout_ms: i32,
) -> GroupRecord {
    GroupRecord::Classic {
        group: text("g"),
        value: Some(ClassicValue {
            protocol_type: text("consumer"),
            generation: 3,
            protocol: Some(text("range")),
            leader: Some(text("m")),
            state_timestamp_ms,
            members: vec![ClassicMemberValue {
                member_id: text("m"),
                instance_id: instance_id.map(text),
                client_id: text("c"),
                client_host: text("/h"),
                rebalance_timeout_ms,
                session_timeout_ms: 10,
                subscription: Bytes::from_static(&[1, 2]),
                assignment: Bytes::from_static(&[3]),
            }],
        }),
    }
}

fn classic_empty() -> GroupRecord {
    GroupRecord::Classic {
        group: text("g"),
        value: Some(ClassicValue {
            protocol_type: text("consumer"),
            generation: 4,
            protocol: None,
            leader: None,
            state_timestamp_ms: 1000,
            members: vec![],
        }),
    }
}

fn consumer(metadata_hash: i64) -> GroupRecord {
    GroupRecord::Consumer {
        group: text("g"),
        value: Some(ConsumerValue {
            epoch: 9,
            metadata_hash,
        }),
    }
}

fn member(classic: Option<ClassicProtocols>) -> GroupRecord {
    GroupRecord::ConsumerMember {
        group: text("g"),
        member: text("m"),
        value: Some(ConsumerMemberValue {
            instance_id: None,
            rack_id: Some(text("r")),
            client_id: text("c"),
            client_host: text("/h"),
            subscribed_topics: vec![text("t"), text("u")],
            subscribed_regex: None,
            rebalance_timeout_ms: 300,
            server_assignor: Some(text("uniform")),
            classic,
        }),
    }
}

fn assignment(partitions: &[i32]) -> Assignment {
    let topic = std::array::from_fn(|at| at as u8 + 1);
    let partitions = partitions.iter().copied().map(PartitionIndex::new);
    Assignment::from([(TopicId::from_bytes(topic), partitions.collect())])
}

fn target_member(value: Option<Assignment>) -> GroupRecord {
    GroupRecord::TargetMember {
        group: text("g"),
        member: text("m"),
        value,
    }
}

fn current(state: MemberState) -> GroupRecord {
    GroupRecord::CurrentMember {
        group: text("g"),
        member: text("m"),
        value: Some(CurrentMemberValue {
            member_epoch: 9,
            previous_member_epoch: 8,
            state,
            assigned: assignment(&[0]),
            pending_revocation: assignment(&[2]),
        }),
    }
}

fn regex(topics: &[&str]) -> GroupRecord {
    GroupRecord::Regex {
        group: text("g"),
        regex: text("t.*"),
        value: Some(RegexValue {
            topics: topics.iter().copied().map(text).collect(),
            version: 77,
            timestamp_ms: 1000,
        }),
    }
}

/// What is written, and read again: (record, key, value).
fn written() -> Vec<(GroupRecord, &'static str, &'static str)> {
    let target = GroupRecord::TargetAssignment {
        group: text("g"),
        value: Some(TargetAssignmentValue {
            assignment_epoch: 9,
        }),
    };
    let protocols = ClassicProtocols {
        session_timeout_ms: 10,
        supported: vec![(text("range"), Bytes::from_static(&[1, 2]))],
    };
    vec![
        (
            offset(5, None),
            "000100016700017400000007",
            "0003000000000000002a0000000500046e6f746500000000000003e8",
        ),
        (
            offset_of_topic(),
            "000100016700017400000007",
            "0004000000000000002a00000005056e6f746500000000000003e80100100102030405060708090a0b0c0d0e0f10",
        ),
        (
            offset(-1, Some(2000)),
            "000100016700017400000007",
            "0001000000000000002a00046e6f746500000000000003e800000000000007d0",
        ),
        (
            classic(1000, Some("i"), 20),
            "0002000167",
            "00030008636f6e73756d657200000003000572616e676500016d00000000000003e80000000100016d00016900016300022f68000000140000000a0000000201020000000103",
        ),
        (
            classic_empty(),
            "0002000167",
            "00030008636f6e73756d657200000004ffffffff00000000000003e800000000",
        ),
        (consumer(0), "0003000167", "00000000000900"),
        (
            consumer(0x1122_3344_5566_7788),
            "0003000167",
            "0000000000090100081122334455667788",
        ),
        (
            member(None),
            "000500016700016d",
            "00000002720263032f680302740275000000012c08756e69666f726d00",
        ),
        (
            member(Some(protocols)),
            "000500016700016d",
            "00000002720263032f680302740275000000012c08756e69666f726d010011010000000a020672616e67650301020000",
        ),
        (target, "0006000167", "00000000000900"),
        (
            target_member(Some(assignment(&[0, 2]))),
            "000700016700016d",
            "0000020102030405060708090a0b0c0d0e0f100300000000000000020000",
        ),
        (
            current(MemberState::UnrevokedPartitions),
            "000800016700016d",
            "0000000000090000000801020102030405060708090a0b0c0d0e0f10020000000000020102030405060708090a0b0c0d0e0f1002000000020000",
        ),
        (
            regex(&["t", "u"]),
            "00100001670003742e2a",
            "00000302740275000000000000004d00000000000003e800",
        ),
    ]
}

#[test]
fn what_we_write_is_what_kafka_writes() {
    for (record, key, value) in written() {
        assert_eq!(to_hex(&record.encode_key()), key, "{record:?}");
        let found = record.encode_value().unwrap();
        assert_eq!(to_hex(&found), value, "{record:?}");
        assert_eq!(record.check(), Ok(()));
        let read = GroupRecord::decode(&hex(key), Some(&hex(value)));
        assert_eq!(read, Ok(Some(record)), "{key} {value}");
        let tombstone = GroupRecord::decode(&hex(key), None).unwrap().unwrap();
        assert!(tombstone.is_tombstone());
        assert_eq!(tombstone.group(), "g");
        assert_eq!(tombstone.encode_value(), None);
        assert_eq!(to_hex(&tombstone.encode_key()), key);
    }
}

#[test]
fn what_other_versions_wrote_is_read() {
    let rows = [
        (
            "000000016700017400000007",
            "0000000000000000002a00046e6f746500000000000003e8",
            offset(-1, None),
        ),
        (
            "000100016700017400000007",
            "0000000000000000002a00046e6f746500000000000003e8",
            offset(-1, None),
        ),
        (
            "000100016700017400000007",
            "0002000000000000002a00046e6f746500000000000003e8",
            offset(-1, None),
        ),
        (
            "000100016700017400000007",
            "0004000000000000002a00000005056e6f746500000000000003e800",
            offset(5, None),
        ),
        (
            "000100016700017400000007",
            "0004000000000000002a00000005056e6f746500000000000003e801001000000000000000000000000000000000",
            offset(5, None),
        ),
        // Beside the id a tagged field of a version to come.
        (
            "000100016700017400000007",
            "0004000000000000002a00000005056e6f746500000000000003e80200100102030405060708090a0b0c0d0e0f100702ffff",
            offset_of_topic(),
        ),
        (
            "0002000167",
            "00000008636f6e73756d657200000003000572616e676500016d0000000100016d00016300022f680000000a0000000201020000000103",
            classic(-1, None, 10),
        ),
        (
            "0002000167",
            "00010008636f6e73756d657200000003000572616e676500016d0000000100016d00016300022f68000000140000000a0000000201020000000103",
            classic(-1, None, 20),
        ),
        (
            "0002000167",
            "00020008636f6e73756d657200000003000572616e676500016d00000000000003e80000000100016d00016300022f68000000140000000a0000000201020000000103",
            classic(1000, None, 20),
        ),
        (
            "0002000167",
            "000409636f6e73756d6572000000030672616e6765026d00000000000003e802026d02690263032f68000000140000000a03010202030000",
            classic(1000, Some("i"), 20),
        ),
        ("0003000167", "000000000009010103010203", consumer(0)),
    ];
    for (key, value, record) in rows {
        let read = GroupRecord::decode(&hex(key), Some(&hex(value)));
        assert_eq!(read, Ok(Some(record)), "{key} {value}");
    }
    // The key of version 0 names the same offset as that of version 1.
    let tombstone = GroupRecord::decode(&hex("000000016700017400000007"), None);
    assert_eq!(tombstone, Ok(Some(offset_record(None))));
}

#[test]
fn a_length_of_two_bytes() {
    let long = "t".repeat(300);
    let value = format!(
        "0000 02 ad02 {} 000000000000004d 00000000000003e8 00",
        "74".repeat(300)
    )
    .replace(' ', "");
    let record = regex(&[&long]);
    assert_eq!(to_hex(&record.encode_value().unwrap()), value);
    let read = GroupRecord::decode(&hex("00100001670003742e2a"), Some(&hex(&value)));
    assert_eq!(read, Ok(Some(record)));
}

#[test]
fn an_offset_with_its_own_expiry_has_no_leader_epoch_and_no_topic_id() {
    let mut record = offset_of_topic();
    if let GroupRecord::Offset { value, .. } = &mut record {
        value.as_mut().unwrap().expire_timestamp_ms = Some(2000);
    }
    let value = record.encode_value().unwrap();
    let read = GroupRecord::decode(&record.encode_key(), Some(&value));
    assert_eq!(read, Ok(Some(offset(-1, Some(2000)))));
    // Version 1 says -1 where there is none.
    let none = hex("0001000000000000002a00046e6f746500000000000003e8ffffffffffffffff");
    let read = GroupRecord::decode(&record.encode_key(), Some(&none));
    assert_eq!(read, Ok(Some(offset(-1, None))));
}

#[test]
fn partitions_come_ascending_and_once() {
    let topic = "0102030405060708090a0b0c0d0e0f10";
    let value = format!("0000 03 {topic} 03 00000003 00000001 00 {topic} 02 00000003 00 00");
    let read = GroupRecord::decode(
        &hex("000700016700016d"),
        Some(&hex(&value.replace(' ', ""))),
    );
    assert_eq!(read, Ok(Some(target_member(Some(assignment(&[1, 3]))))));
}

#[test]
fn other_kinds_are_not_ours() {
    // Kafka 4.0's partition counts, share and streams groups, and what is yet to come.
    for kind in [4_i16, 9, 10, 11, 15, 17, 99, -1, i16::MAX] {
        let key = kind.to_be_bytes();
        assert_eq!(GroupRecord::decode(&key, None), Ok(None), "{kind}");
        assert_eq!(GroupRecord::decode(&key, Some(b"anything")), Ok(None));
    }
}

#[test]
fn damage_has_a_name() {
    let read = |key: &str, value: Option<&str>| {
        let value = value.map(|value| hex(&value.replace(' ', "")));
        GroupRecord::decode(&hex(&key.replace(' ', "")), value.as_deref()).unwrap_err()
    };
    let length = |field, length| RecordError::Length { field, length };
    let rows = [
        ("", None, RecordError::Cut("kind")),
        ("0002", None, RecordError::Cut("group")),
        ("0002 0002 67", None, RecordError::Cut("group")),
        ("0002 ffff", None, length("group", -1)),
        ("0002 8000", None, length("group", -32768)),
        ("0002 0001 ff", None, RecordError::Text("group")),
        (
            "0002 0001 67 00",
            None,
            RecordError::Trailing {
                what: "the key",
                bytes: 1,
            },
        ),
        ("0002 0001 67", Some(""), RecordError::Cut("version")),
        (
            "0002 0001 67",
            Some("0005"),
            RecordError::Version {
                value: "GroupMetadataValue",
                version: 5,
            },
        ),
        (
            "0003 0001 67",
            Some("ffff"),
            RecordError::Version {
                value: "ConsumerGroupMetadataValue",
                version: -1,
            },
        ),
        (
            "0003 0001 67",
            Some("0000 00000009 00 00"),
            RecordError::Trailing {
                what: "ConsumerGroupMetadataValue",
                bytes: 1,
            },
        ),
        // A tagged field of 9 bytes where the schema says 8.
        (
            "0003 0001 67",
            Some("0000 00000009 01 00 09 112233445566778899"),
            RecordError::Trailing {
                what: "tagged fields",
                bytes: 1,
            },
        ),
        (
            "0003 0001 67",
            Some("0000 00000009 01 ffffffffff"),
            RecordError::Varint("tagged fields"),
        ),
        // Two thousand million members.
        (
            "0002 0001 67",
            Some("0000 0000 00000003 ffff ffff 7fffffff 00"),
            RecordError::Cut("members"),
        ),
        (
            "0002 0001 67",
            Some("0000 0000 00000003 ffff ffff ffffffff"),
            length("members", -1),
        ),
        // Four thousand million topics, as a varint.
        (
            "0010 0001 67 0001 72",
            Some("0000 ffffffff0f 00"),
            RecordError::Cut("topics"),
        ),
    ];
    for (key, value, expected) in rows {
        assert_eq!(read(key, value), expected, "{key} {value:?}");
    }
}

#[test]
fn a_text_that_no_record_can_hold_is_found_and_never_written_as_nonsense() {
    // Two bytes each: the limit falls inside a character.
    let long = "\u{e4}".repeat(TEXT_BYTES_MAX / 2 + 1);
    let with_group = |group: &str| GroupRecord::Consumer {
        group: text(group),
        value: None,
    };
    let record = with_group(&long);
    let expected = RecordError::TooLong {
        field: "group",
        bytes: TEXT_BYTES_MAX + 1,
    };
    assert_eq!(record.check(), Err(expected));
    let read = GroupRecord::decode(&record.encode_key(), None).unwrap();
    assert_eq!(read, Some(with_group(&long[..TEXT_BYTES_MAX - 1])));
    assert_eq!(with_group(&"x".repeat(TEXT_BYTES_MAX)).check(), Ok(()));

    let mut classic = classic(1, None, 1);
    if let GroupRecord::Classic {
        value: Some(value), ..
    } = &mut classic
    {
        value.members[0].instance_id = Some(long.clone());
    }
    assert!(matches!(
        classic.check(),
        Err(RecordError::TooLong {
            field: "instance id",
            ..
        })
    ));
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![".{0,8}", Just(String::new()), Just("x".repeat(130))]
}

fn maybe_text() -> impl Strategy<Value = Option<String>> {
    prop::option::of(any_text())
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

fn any_assignment() -> impl Strategy<Value = Assignment> {
    let partitions = prop::collection::btree_set(any::<i32>(), 0..4);
    prop::collection::btree_map(any::<[u8; 16]>(), partitions, 0..4).prop_map(|topics| {
        topics
            .into_iter()
            .map(|(topic, partitions)| {
                let partitions = partitions.into_iter().map(PartitionIndex::new);
                (TopicId::from_bytes(topic), partitions.collect())
            })
            .collect()
    })
}

fn any_classic_member() -> impl Strategy<Value = ClassicMemberValue> {
    (
        (any_text(), maybe_text(), any_text(), any_text()),
        (any::<i32>(), any::<i32>(), any_bytes(), any_bytes()),
    )
        .prop_map(|(names, rest)| ClassicMemberValue {
            member_id: names.0,
            instance_id: names.1,
            client_id: names.2,
            client_host: names.3,
            rebalance_timeout_ms: rest.0,
            session_timeout_ms: rest.1,
            subscription: rest.2,
            assignment: rest.3,
        })
}

fn any_consumer_member() -> impl Strategy<Value = ConsumerMemberValue> {
    let supported = prop::collection::vec((any_text(), any_bytes()), 0..4);
    let classic = prop::option::of((any::<i32>(), supported));
    (
        (maybe_text(), maybe_text(), any_text(), any_text()),
        prop::collection::vec(any_text(), 0..4),
        (maybe_text(), any::<i32>(), maybe_text(), classic),
    )
        .prop_map(|(names, subscribed_topics, rest)| ConsumerMemberValue {
            instance_id: names.0,
            rack_id: names.1,
            client_id: names.2,
            client_host: names.3,
            subscribed_topics,
            subscribed_regex: rest.0,
            rebalance_timeout_ms: rest.1,
            server_assignor: rest.2,
            classic: rest
                .3
                .map(|(session_timeout_ms, supported)| ClassicProtocols {
                    session_timeout_ms,
                    supported,
                }),
        })
}

fn any_record() -> impl Strategy<Value = GroupRecord> {
    let id = prop::option::of((1..u128::MAX).prop_map(|id| TopicId::from_bytes(id.to_be_bytes())));
    let offset = (any::<i64>(), any::<i32>(), any_text(), any::<i64>(), id).prop_map(
        |(offset, epoch, metadata, commit, topic_id)| OffsetValue {
            offset: Offset::new(offset),
            leader_epoch: LeaderEpoch::new(epoch),
            metadata,
            commit_timestamp_ms: commit,
            expire_timestamp_ms: None,
            topic_id,
        },
    );
    let offset = (
        any_text(),
        any_text(),
        any::<i32>(),
        prop::option::of(offset),
    )
        .prop_map(|(group, topic, partition, value)| GroupRecord::Offset {
            group,
            partition: TopicPartition {
                topic,
                partition: PartitionIndex::new(partition),
            },
            value,
        });
    let classic = (
        (
            any_text(),
            any::<i32>(),
            maybe_text(),
            maybe_text(),
            any::<i64>(),
        ),
        prop::collection::vec(any_classic_member(), 0..4),
    )
        .prop_map(|(rest, members)| ClassicValue {
            protocol_type: rest.0,
            generation: rest.1,
            protocol: rest.2,
            leader: rest.3,
            state_timestamp_ms: rest.4,
            members,
        });
    let classic = (any_text(), prop::option::of(classic))
        .prop_map(|(group, value)| GroupRecord::Classic { group, value });
    let consumer = (any_text(), any::<i32>(), any::<i64>()).prop_map(|(group, epoch, hash)| {
        GroupRecord::Consumer {
            group,
            value: Some(ConsumerValue {
                epoch,
                metadata_hash: hash,
            }),
        }
    });
    let member = (
        any_text(),
        any_text(),
        prop::option::of(any_consumer_member()),
    )
        .prop_map(|(group, member, value)| GroupRecord::ConsumerMember {
            group,
            member,
            value,
        });
    let target = (any_text(), any_text(), prop::option::of(any_assignment())).prop_map(
        |(group, member, value)| GroupRecord::TargetMember {
            group,
            member,
            value,
        },
    );
    let state = prop::sample::select(vec![
        MemberState::Stable,
        MemberState::UnrevokedPartitions,
        MemberState::UnreleasedPartitions,
        MemberState::Unknown,
    ]);
    let current = (
        any::<i32>(),
        any::<i32>(),
        state,
        any_assignment(),
        any_assignment(),
    )
        .prop_map(
            |(member_epoch, previous_member_epoch, state, assigned, pending_revocation)| {
                CurrentMemberValue {
                    member_epoch,
                    previous_member_epoch,
                    state,
                    assigned,
                    pending_revocation,
                }
            },
        );
    let current =
        (any_text(), any_text(), prop::option::of(current)).prop_map(|(group, member, value)| {
            GroupRecord::CurrentMember {
                group,
                member,
                value,
            }
        });
    let topics = prop::collection::vec(any_text(), 0..4);
    let regex = (any_text(), any_text(), topics, any::<i64>(), any::<i64>()).prop_map(
        |(group, regex, topics, version, timestamp_ms)| GroupRecord::Regex {
            group,
            regex,
            value: Some(RegexValue {
                topics,
                version,
                timestamp_ms,
            }),
        },
    );
    prop_oneof![offset, classic, consumer, member, target, current, regex]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn records_survive_their_bytes(record in any_record()) {
        let value = record.encode_value();
        let read = GroupRecord::decode(&record.encode_key(), value.as_deref());
        prop_assert_eq!(read, Ok(Some(record)));
    }

    /// Any bytes: refused, or a record that can be written and read again.
    #[test]
    fn hostile_bytes_never_panic(
        record in any_record(),
        kind in prop::option::of(0..17_i16),
        cut in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut key = record.encode_key().to_vec();
        if let Some(kind) = kind {
            key[..2].copy_from_slice(&kind.to_be_bytes());
        }
        let mut value = record.encode_value().unwrap_or_default().to_vec();
        for (at, byte) in changes {
            if !value.is_empty() {
                let at = at.index(value.len());
                value[at] = byte;
            }
        }
        let cut = cut.index(value.len() + 1);
        for value in [&value[..], &value[..cut]] {
            if let Ok(Some(read)) = GroupRecord::decode(&key, Some(value)) {
                let again = GroupRecord::decode(&read.encode_key(), read.encode_value().as_deref());
                prop_assert!(matches!(again, Ok(Some(_))), "{:?}", again);
            }
        }
        for end in 0..key.len() {
            let _either = GroupRecord::decode(&key[..end], None);
        }
    }

    #[test]
    fn noise_never_panics(
        kind in 0..17_i16,
        version in 0..5_i16,
        key in prop::collection::vec(any::<u8>(), 0..40),
        value in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let key = [&kind.to_be_bytes()[..], &key].concat();
        let value = [&version.to_be_bytes()[..], &value].concat();
        let _either = GroupRecord::decode(&key, Some(&value));
        // A key that is right, so that the value is looked at.
        let key = [&kind.to_be_bytes()[..], &[0, 1, b'g']].concat();
        let _either = GroupRecord::decode(&key, Some(&value));
    }
}
