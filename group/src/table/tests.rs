//! The table against a plain map of keys, which is what a compacted topic keeps.

use std::collections::BTreeMap;

use bytes::Bytes;
use corduroy_record::{LeaderEpoch, Offset, PartitionIndex, TopicId};
use proptest::prelude::*;

use super::*;
use crate::records::{
    Assignment, ClassicMemberValue, ConsumerMemberValue, ConsumerValue, CurrentMemberValue,
    MemberState, RegexValue, TargetAssignmentValue,
};

impl GroupTable {
    fn counted_bytes(&self) -> usize {
        self.groups
            .iter()
            .map(|(name, state)| size::group_bytes(name, state))
            .sum()
    }
}

/// Records of few keys, so that they meet.
fn record() -> impl Strategy<Value = GroupRecord> {
    let name = |names: &'static [&'static str]| prop::sample::select(names).prop_map(str::to_owned);
    let group = || name(&["g", "h", "i"]);
    let member = || name(&["m", "n"]);
    let offset = (
        (group(), name(&["t", "u"]), 0..3_i32),
        prop::option::weighted(
            0.7,
            (
                any::<i64>(),
                -1..9_i32,
                ".{0,4}",
                0..99_i64,
                prop::option::of(0..99_i64),
            ),
        ),
    )
        .prop_map(|((group, topic, partition), value)| GroupRecord::Offset {
            group,
            partition: TopicPartition {
                topic,
                partition: PartitionIndex::new(partition),
            },
            value: value.map(|(offset, epoch, metadata, commit, expire)| OffsetValue {
                offset: Offset::new(offset),
                leader_epoch: LeaderEpoch::new(epoch),
                metadata,
                commit_timestamp_ms: commit,
                expire_timestamp_ms: expire,
                topic_id: None,
            }),
        });
    let classic = (group(), prop::option::weighted(0.7, (0..9_i32, 0..3_usize))).prop_map(
        |(group, value)| GroupRecord::Classic {
            group,
            value: value.map(|(generation, members)| classic_value(generation, members)),
        },
    );
    let consumer =
        (group(), prop::option::weighted(0.7, (1..9_i32, 0..3_i64))).prop_map(|(group, value)| {
            GroupRecord::Consumer {
                group,
                value: value.map(|(epoch, metadata_hash)| ConsumerValue {
                    epoch,
                    metadata_hash,
                }),
            }
        });
    let told = (
        group(),
        member(),
        prop::option::weighted(0.7, prop::option::of(0..3_u8)),
    )
        .prop_map(|(group, member, value)| GroupRecord::ConsumerMember {
            group,
            member,
            value: value.map(member_value),
        });
    let epoch = (group(), prop::option::weighted(0.7, 1..9_i32)).prop_map(|(group, value)| {
        GroupRecord::TargetAssignment {
            group,
            value: value.map(|assignment_epoch| TargetAssignmentValue { assignment_epoch }),
        }
    });
    let target = (group(), member(), prop::option::weighted(0.7, assignment())).prop_map(
        |(group, member, value)| GroupRecord::TargetMember {
            group,
            member,
            value,
        },
    );
    let current = (
        group(),
        member(),
        prop::option::weighted(0.7, (1..9_i32, assignment(), assignment())),
    )
        .prop_map(|(group, member, value)| GroupRecord::CurrentMember {
            group,
            member,
            value: value.map(|(epoch, assigned, pending_revocation)| CurrentMemberValue {
                member_epoch: epoch,
                previous_member_epoch: epoch - 1,
                state: MemberState::UnreleasedPartitions,
                assigned,
                pending_revocation,
            }),
        });
    let regex = (
        group(),
        name(&["r.*", "s"]),
        prop::option::weighted(0.7, 0..3_usize),
    )
        .prop_map(|(group, regex, value)| GroupRecord::Regex {
            group,
            regex,
            value: value.map(|topics| RegexValue {
                topics: (0..topics).map(|topic| format!("r{topic}")).collect(),
                version: 1,
                timestamp_ms: 2,
            }),
        });
    // Offsets are most of what a table sees.
    prop_oneof![4 => offset, 2 => classic, 1 => consumer, 1 => told, 1 => epoch, 1 => target, 1 => current, 1 => regex]
}

fn classic_value(generation: i32, members: usize) -> ClassicValue {
    ClassicValue {
        protocol_type: "consumer".to_owned(),
        generation,
        protocol: (members > 0).then(|| "range".to_owned()),
        leader: (members > 0).then(|| "m0".to_owned()),
        state_timestamp_ms: 7,
        members: (0..members)
            .map(|member| ClassicMemberValue {
                member_id: format!("m{member}"),
                instance_id: (member == 1).then(|| "static".to_owned()),
                client_id: "c".to_owned(),
                client_host: "/h".to_owned(),
                rebalance_timeout_ms: 2,
                session_timeout_ms: 1,
                subscription: Bytes::from_static(b"subscription"),
                assignment: Bytes::from_static(b"assignment"),
            })
            .collect(),
    }
}

fn member_value(seed: Option<u8>) -> ConsumerMemberValue {
    ConsumerMemberValue {
        instance_id: seed.map(|seed| format!("i{seed}")),
        rack_id: None,
        client_id: "c".to_owned(),
        client_host: "/h".to_owned(),
        subscribed_topics: seed.map(|seed| format!("t{seed}")).into_iter().collect(),
        subscribed_regex: seed.is_none().then(|| "r.*".to_owned()),
        rebalance_timeout_ms: 5,
        server_assignor: seed.map(|_seed| "range".to_owned()),
        classic: None,
    }
}

/// Not empty: no target and an empty one are the same to a table.
fn assignment() -> impl Strategy<Value = Assignment> {
    prop::collection::btree_set((0..2_u8, 0..4_i32), 1..5).prop_map(|pairs| {
        let mut assignment = Assignment::new();
        for (topic, partition) in pairs {
            assignment
                .entry(TopicId::from_bytes([topic; 16]))
                .or_default()
                .push(PartitionIndex::new(partition));
        }
        assignment
    })
}

/// The compacted topic: the last value of each key, without tombstones. What ends a protocol's
/// state is the one rule more.
#[derive(Default)]
struct Model(BTreeMap<Bytes, GroupRecord>);

impl Model {
    fn apply(&mut self, record: &GroupRecord) {
        let is_offset = |record: &GroupRecord| matches!(record, GroupRecord::Offset { .. });
        let is_classic = |record: &GroupRecord| matches!(record, GroupRecord::Classic { .. });
        let ends_all = matches!(record, GroupRecord::Consumer { value: None, .. });
        if !is_offset(record) && (!record.is_tombstone() || ends_all) {
            self.0.retain(|_, other| {
                let same_state = other.group() == record.group() && !is_offset(other);
                let keep = match ends_all {
                    true => is_classic(other),
                    false => is_classic(other) == is_classic(record),
                };
                !same_state || keep
            });
        }
        if record.is_tombstone() {
            self.0.remove(&record.encode_key());
        } else {
            self.0.insert(record.encode_key(), record.clone());
        }
    }

    /// As the table has it: a consumer group's epoch is 0 where no record says one.
    fn live(&self) -> BTreeMap<Bytes, Bytes> {
        let mut live = BTreeMap::new();
        for (key, record) in &self.0 {
            if let Some(value) = record.encode_value() {
                live.insert(key.clone(), value);
            }
            if !matches!(
                record,
                GroupRecord::Offset { .. } | GroupRecord::Classic { .. }
            ) {
                let epoch = GroupRecord::Consumer {
                    group: record.group().to_owned(),
                    value: Some(ConsumerValue {
                        epoch: 0,
                        metadata_hash: 0,
                    }),
                };
                if let Some(value) = epoch.encode_value() {
                    live.entry(epoch.encode_key()).or_insert(value);
                }
            }
        }
        live
    }
}

fn live(table: &GroupTable) -> BTreeMap<Bytes, Bytes> {
    let mut live = BTreeMap::new();
    for record in table.live_records() {
        let before = live.insert(
            record.encode_key(),
            record.encode_value().expect("a live record has a value"),
        );
        assert_eq!(before, None, "a key twice: {record:?}");
    }
    live
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_table_is_the_compacted_topic(records in prop::collection::vec(record(), 0..60)) {
        let mut table = GroupTable::new();
        let mut by_bytes = GroupTable::new();
        let mut model = Model::default();
        for record in &records {
            table.apply_record(record);
            by_bytes.apply(&record.encode_key(), record.encode_value().as_deref()).unwrap();
            model.apply(record);
            prop_assert_eq!(table.size_bytes(), table.counted_bytes());
        }
        prop_assert_eq!(&by_bytes, &table);
        prop_assert_eq!(live(&table), model.live());

        let mut again = GroupTable::new();
        for record in table.live_records() {
            again.apply_record(&record);
        }
        let mut from_model = GroupTable::new();
        for (key, value) in model.live() {
            from_model.apply(&key, Some(&value)).unwrap();
        }
        prop_assert_eq!(live(&again), live(&table));
        prop_assert_eq!(live(&from_model), live(&table));
        prop_assert_eq!(again.size_bytes(), table.size_bytes());

        let decoded = GroupTable::decode(&table.encode()).unwrap();
        prop_assert_eq!(&decoded, &table);
        prop_assert_eq!(decoded.size_bytes(), table.size_bytes());
        prop_assert_eq!(decoded.encode(), table.encode());

        // Take all of it away again.
        let groups: Vec<String> = table.groups().map(|(name, _)| name.to_owned()).collect();
        for group in groups {
            let records: Vec<GroupRecord> = table.get(&group).unwrap().records(&group).collect();
            for record in records {
                table.apply(&record.encode_key(), None).unwrap();
            }
        }
        prop_assert_eq!((table.len(), table.size_bytes()), (0, 0));
    }

    /// The state written again in portions while records come between: who reads only what came
    /// since, has everything that lives.
    #[test]
    fn a_walk_passes_every_live_key_whatever_comes_between(
        before in prop::collection::vec(record(), 0..40),
        between in prop::collection::vec(prop::collection::vec(record(), 0..4), 0..20),
        portion in 1..4_usize,
    ) {
        let mut table = GroupTable::new();
        for record in &before {
            table.apply_record(record);
        }
        let mut since = GroupTable::new();
        let mut between = between.into_iter();
        let mut last: Option<LiveKey> = None;
        loop {
            let records: Vec<GroupRecord> =
                table.live_records_after(last.as_ref()).take(portion).collect();
            let Some(newest) = records.last() else { break };
            last = Some(newest.live_key());
            let unchanged = table.clone();
            for record in &records {
                since.apply_record(record);
                table.apply_record(record);
            }
            prop_assert_eq!(&unchanged, &table);
            for record in between.next().into_iter().flatten() {
                since.apply_record(&record);
                table.apply_record(&record);
            }
        }
        prop_assert_eq!(live(&since), live(&table));
    }

    #[test]
    fn damaged_snapshots_are_refused_or_read(
        records in prop::collection::vec(record(), 0..20),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut table = GroupTable::new();
        for record in &records {
            table.apply_record(record);
        }
        let mut bytes = table.encode().to_vec();
        let shorter = &bytes[..cut.index(bytes.len())];
        prop_assert!(GroupTable::decode(shorter).is_err());
        let place = place.index(bytes.len());
        bytes[place] = byte;
        let _either = GroupTable::decode(&bytes);
    }
}

#[test]
fn the_last_generation_outlives_the_value_and_travels_in_snapshots() {
    let mut table = GroupTable::new();
    let classic = |value| GroupRecord::Classic {
        group: "g".to_owned(),
        value,
    };
    let generation = |table: &GroupTable| table.get("g").map(|state| state.last_generation);
    table.note_generation("g", 9);
    assert_eq!(generation(&table), None);
    table.apply_record(&classic(Some(classic_value(4, 1))));
    assert_eq!(generation(&table), Some(4));
    table.note_generation("g", 7);
    table.note_generation("g", 6);
    table.apply_record(&classic(Some(classic_value(5, 0))));
    assert_eq!(generation(&table), Some(7));
    let decoded = GroupTable::decode(&table.encode()).unwrap();
    assert_eq!(generation(&decoded), Some(7));
    table.apply_record(&classic(None));
    assert_eq!(generation(&table), None);
}

#[test]
fn unknown_kinds_are_counted_and_hostile_bytes_change_nothing() {
    let mut table = GroupTable::new();
    table.apply_record(&GroupRecord::Classic {
        group: "g".to_owned(),
        value: Some(classic_value(4, 1)),
    });
    let before = table.clone();
    table.apply(&[0, 4, 0, 1, b'g'], Some(&[0, 0])).unwrap();
    table.apply(&[0, 99], None).unwrap();
    assert_eq!(table.passed_over(), 2);
    assert!(table.apply(&[0], None).is_err());
    assert!(table.apply(&[0, 2, 0, 1, b'g'], Some(&[0, 9])).is_err());
    assert_eq!(table, before);
    assert!(GroupTable::decode(&[0, 2, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
}

#[test]
fn a_thousand_groups_of_a_hundred_partitions_are_lean() {
    let mut table = GroupTable::new();
    for group in 0..1000 {
        for partition in 0..100 {
            table.apply_record(&GroupRecord::Offset {
                group: format!("group-{group}"),
                partition: TopicPartition {
                    topic: "orders".to_owned(),
                    partition: PartitionIndex::new(partition),
                },
                value: Some(OffsetValue {
                    offset: Offset::new(i64::from(group)),
                    leader_epoch: LeaderEpoch::new(1),
                    metadata: String::new(),
                    commit_timestamp_ms: 1,
                    expire_timestamp_ms: None,
                    topic_id: None,
                }),
            });
        }
    }
    assert!(table.size_bytes() < 30_000_000, "{}", table.size_bytes());
    assert_eq!(table.size_bytes(), table.counted_bytes());
    let bytes = table.encode();
    assert!(bytes.len() < 8_000_000, "{}", bytes.len());
    assert_eq!(GroupTable::decode(&bytes).unwrap(), table);
}
