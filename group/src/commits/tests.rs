//! Each rule a row.

use bytes::Bytes;
use corduroy_record::{LeaderEpoch, Offset, PartitionIndex};

use super::*;
use crate::records::{
    ClassicMemberValue, ClassicValue, ConsumerMemberValue, ConsumerValue, RegexValue,
};
use crate::table::GroupTable;

/// An offset of `topic`/0, committed at `commit_ms`.
fn offset(topic: &str, commit_ms: i64, expire_ms: Option<i64>) -> GroupRecord {
    GroupRecord::Offset {
        group: "g".to_owned(),
        partition: partition(topic),
        value: Some(OffsetValue {
            offset: Offset::new(1),
            leader_epoch: LeaderEpoch::NONE,
            metadata: String::new(),
            commit_timestamp_ms: commit_ms,
            expire_timestamp_ms: expire_ms,
            topic_id: None,
        }),
    }
}

fn partition(topic: &str) -> TopicPartition {
    TopicPartition {
        topic: topic.to_owned(),
        partition: PartitionIndex::new(0),
    }
}

/// A classic group of a type, with so many members, in its state since `since_ms`.
fn classic(protocol_type: &str, members: usize, since_ms: i64) -> GroupRecord {
    GroupRecord::Classic {
        group: "g".to_owned(),
        value: Some(ClassicValue {
            protocol_type: protocol_type.to_owned(),
            generation: 3,
            protocol: None,
            leader: None,
            state_timestamp_ms: since_ms,
            members: (0..members)
                .map(|member| ClassicMemberValue {
                    member_id: format!("m{member}"),
                    instance_id: None,
                    client_id: "c".to_owned(),
                    client_host: "/h".to_owned(),
                    rebalance_timeout_ms: 1,
                    session_timeout_ms: 1,
                    subscription: Bytes::new(),
                    assignment: Bytes::new(),
                })
                .collect(),
        }),
    }
}

/// A group of the consumer protocol, its member subscribed by name and by pattern (if it has one).
fn consumer(subscribed: Option<(&str, &str)>) -> Vec<GroupRecord> {
    let mut records = vec![GroupRecord::Consumer {
        group: "g".to_owned(),
        value: Some(ConsumerValue {
            epoch: 1,
            metadata_hash: 0,
        }),
    }];
    if let Some((name, matched)) = subscribed {
        records.push(GroupRecord::Regex {
            group: "g".to_owned(),
            regex: "r.*".to_owned(),
            value: Some(RegexValue {
                topics: vec![matched.to_owned()],
                version: 1,
                timestamp_ms: 1,
            }),
        });
        records.push(GroupRecord::ConsumerMember {
            group: "g".to_owned(),
            member: "m".to_owned(),
            value: Some(ConsumerMemberValue {
                instance_id: None,
                rack_id: None,
                client_id: "c".to_owned(),
                client_host: "/h".to_owned(),
                subscribed_topics: vec![name.to_owned()],
                subscribed_regex: Some("r.*".to_owned()),
                rebalance_timeout_ms: 1,
                server_assignor: None,
                classic: None,
            }),
        });
    }
    records
}

fn table(records: &[GroupRecord]) -> GroupTable {
    let mut table = GroupTable::new();
    for record in records {
        table.apply_record(record);
    }
    table
}

fn topics(names: &[&str]) -> Subscribed {
    Subscribed::Topics(names.iter().map(|&name| name.to_owned()).collect())
}

/// Tombstones as words: topics, and "group" for each record of the group itself.
fn words(records: &[GroupRecord]) -> Vec<String> {
    records
        .iter()
        .map(|record| {
            assert!(record.is_tombstone(), "{record:?}");
            assert_eq!(record.group(), "g");
            match record {
                GroupRecord::Offset { partition, .. } => partition.topic.clone(),
                _ => "group".to_owned(),
            }
        })
        .collect()
}

/// Name, records, what is subscribed to, the tombstones.
type ExpiryRow = (
    &'static str,
    Vec<GroupRecord>,
    Subscribed,
    &'static [&'static str],
);

#[test]
fn offsets_expire_by_the_rule_of_their_group() {
    use Subscribed::{Everything, Nothing};
    let together = |first: Vec<GroupRecord>, offsets: &[GroupRecord]| {
        first
            .into_iter()
            .chain(offsets.to_vec())
            .collect::<Vec<_>>()
    };
    // Now is 1000, retention 100: what ages since 900 or before goes.
    let old_new = [offset("new", 901, None), offset("old", 900, None)];
    let own = [
        offset("due", 999, Some(1000)),
        offset("later", 1, Some(1001)),
    ];
    let rows: Vec<ExpiryRow> = vec![
        (
            "simple: from the commit",
            old_new.to_vec(),
            Nothing,
            &["old"],
        ),
        (
            "simple: nothing left, and nothing else to delete",
            vec![offset("old", 900, None)],
            Nothing,
            &["old"],
        ),
        (
            "simple: an expiry of its own",
            own.to_vec(),
            Nothing,
            &["due"],
        ),
        (
            "simple: members are joining",
            old_new.to_vec(),
            Everything,
            &[],
        ),
        (
            "empty: not long enough",
            together(vec![classic("consumer", 0, 901)], &old_new),
            Nothing,
            &[],
        ),
        (
            "empty: long enough, whenever committed",
            together(vec![classic("consumer", 0, 900)], &old_new),
            Nothing,
            &["new", "old", "group"],
        ),
        (
            "empty: since when is unknown",
            together(vec![classic("consumer", 0, -1)], &old_new),
            Nothing,
            &["old"],
        ),
        (
            "empty: of another type",
            together(vec![classic("connect", 0, 900)], &old_new),
            Nothing,
            &["new", "old", "group"],
        ),
        (
            "empty: never had a type",
            together(vec![classic("", 0, 1)], &old_new),
            Nothing,
            &["old"],
        ),
        (
            "empty: an expiry of its own",
            together(vec![classic("consumer", 0, 1)], &own),
            Nothing,
            &["due"],
        ),
        (
            "empty: members are joining",
            together(vec![classic("consumer", 0, 900)], &old_new),
            Everything,
            &[],
        ),
        (
            "empty: members of a first generation are in no record yet",
            together(vec![classic("consumer", 0, 900)], &old_new),
            topics(&["old"]),
            &["new"],
        ),
        (
            "empty: no offsets",
            vec![classic("consumer", 0, 999)],
            Nothing,
            &["group"],
        ),
        (
            "stable: only what nobody subscribes to",
            together(vec![classic("consumer", 1, 1)], &old_new),
            topics(&["new"]),
            &["old"],
        ),
        (
            "stable: subscribed",
            together(vec![classic("consumer", 1, 1)], &old_new),
            topics(&["old"]),
            &[],
        ),
        (
            "stable: all gone, the group stays",
            together(vec![classic("consumer", 1, 1)], &[offset("old", 900, None)]),
            topics(&["new"]),
            &["old"],
        ),
        (
            "stable: subscriptions unknown",
            together(vec![classic("consumer", 1, 1)], &old_new),
            Everything,
            &[],
        ),
        (
            "stable: subscribed, an expiry of its own",
            together(vec![classic("consumer", 1, 1)], &own),
            topics(&["due"]),
            &[],
        ),
        (
            "simple: members of another type are joining",
            own.to_vec(),
            Subscribed::Foreign,
            &[],
        ),
        (
            "stable: of another type",
            together(vec![classic("connect", 1, 1)], &old_new),
            Nothing,
            &[],
        ),
        (
            "stable of another type: an expiry of its own",
            together(vec![classic("connect", 1, 1)], &own),
            Nothing,
            &[],
        ),
        (
            "consumer protocol: by name, by pattern, not at all",
            together(
                consumer(Some(("old", "pattern"))),
                &[
                    offset("free", 900, None),
                    offset("old", 900, None),
                    offset("pattern", 900, None),
                ],
            ),
            Nothing,
            &["free"],
        ),
        (
            "consumer protocol, no members: from the commit",
            together(consumer(None), &old_new),
            Nothing,
            &["old"],
        ),
        (
            "consumer protocol, no members: nothing left",
            together(consumer(None), &[offset("old", 900, None)]),
            Nothing,
            &["old", "group", "group"],
        ),
    ];
    for (row, records, subscribed, expected) in rows {
        let mut table = table(&records);
        let retention = Retention {
            now_ms: 1000,
            retention_ms: 100,
        };
        let state = table.get("g").unwrap();
        let found = expired("g", state, &subscribed, retention, OnItsWay::Nothing);
        let has = has_expired(state, || subscribed.clone(), retention);
        assert_eq!(has, !found.is_empty(), "{row}: found without building it");
        assert_eq!(words(&found), expected, "{row}");
        let left = state.offsets.len() - found.len().min(state.offsets.len());
        let members = state.has_members();
        for record in &found {
            table.apply_record(record);
        }
        let kept = left > 0 || members || subscribed != Nothing;
        assert_eq!(table.get("g").is_some(), kept, "{row}: the group");
    }
}

#[test]
fn what_is_on_its_way_has_the_last_word() {
    let retention = Retention {
        now_ms: 1000,
        retention_ms: 100,
    };
    let old = offset("old", 900, None);
    let groups = [
        ("simple", vec![old.clone()]),
        ("empty", vec![classic("consumer", 0, 900), old.clone()]),
        (
            "consumer protocol",
            consumer(None).into_iter().chain([old]).collect(),
        ),
    ];
    for (row, records) in groups {
        let mut table = table(&records);
        let expired = |table: &GroupTable, on_its_way| {
            let state = table.get("g").unwrap();
            expired("g", state, &Subscribed::Nothing, retention, on_its_way)
        };
        assert_eq!(
            expired(&table, OnItsWay::Group),
            [],
            "{row}: its members may be changing"
        );
        // A commit that was decided before the tombstones, and lies behind them.
        let epoch = |table: &GroupTable| table.get("g").map(|state| state.kind.clone());
        let before = epoch(&table);
        let found = expired(&table, OnItsWay::Offsets);
        assert_eq!(
            words(&found),
            ["old"],
            "{row}: the group's own record stays"
        );
        for record in found.iter().chain([&offset("old", 999, None)]) {
            table.apply_record(record);
        }
        if row != "simple" {
            assert_eq!(epoch(&table), before, "{row}");
        }
        let kept = table
            .get("g")
            .and_then(|state| state.offsets.get(&partition("old")));
        assert_eq!(
            kept.map(|value| value.commit_timestamp_ms),
            Some(999),
            "{row}"
        );
    }
}

/// Name, records, generation, member id, version of OffsetCommit, the verdict.
type CommitRow<'a> = (
    &'a str,
    &'a [GroupRecord],
    i32,
    &'a str,
    i16,
    Result<(), ErrorCode>,
);

#[test]
fn who_may_commit_without_members() {
    use ErrorCode::{GroupIdNotFound, IllegalGeneration, UnknownMemberId};
    let simple = [offset("t", 1, None)];
    let empty = [classic("consumer", 0, 1)];
    let full = [classic("consumer", 1, 1)];
    let modern = consumer(None);
    let modern_full = consumer(Some(("t", "u")));
    let rows: [CommitRow; 12] = [
        ("no group, from outside", &[], -1, "", 8, Ok(())),
        (
            "no group, a generation",
            &[],
            0,
            "m",
            8,
            Err(IllegalGeneration),
        ),
        (
            "no group, newer client",
            &[],
            0,
            "m",
            9,
            Err(GroupIdNotFound),
        ),
        ("simple, from outside", &simple, -1, "", 8, Ok(())),
        (
            "simple, a generation",
            &simple,
            1,
            "m",
            8,
            Err(UnknownMemberId),
        ),
        ("empty, from outside", &empty, -1, "", 8, Ok(())),
        (
            "empty, from outside with a name",
            &empty,
            -1,
            "m",
            8,
            Ok(()),
        ),
        (
            "empty, a generation",
            &empty,
            3,
            "m",
            9,
            Err(UnknownMemberId),
        ),
        (
            "members, from outside",
            &full,
            -1,
            "",
            8,
            Err(UnknownMemberId),
        ),
        ("consumer protocol, empty", &modern, -1, "", 9, Ok(())),
        (
            "consumer protocol, an epoch",
            &modern,
            1,
            "m",
            9,
            Err(UnknownMemberId),
        ),
        (
            "consumer protocol, members",
            &modern_full,
            -1,
            "",
            9,
            Err(UnknownMemberId),
        ),
    ];
    for (row, records, generation, member_id, version, expected) in rows {
        let table = table(records);
        let identity = MemberIdentity {
            member_id: member_id.to_owned(),
            instance_id: None,
            generation,
        };
        let found = judge_simple(table.get("g"), &identity, version);
        assert_eq!(found.map_err(|error| error.code), expected, "{row}");
    }
}

#[test]
fn metadata_has_a_limit() {
    let too_large = Err(GroupError::from(ErrorCode::OffsetMetadataTooLarge));
    assert_eq!(judge_metadata("", 0), Ok(()));
    assert_eq!(judge_metadata("1234", 4), Ok(()));
    assert_eq!(judge_metadata("12345", 4), too_large);
    // Two bytes each, one unit each; a character outside the basic plane is two units.
    assert_eq!(judge_metadata("\u{e4}\u{e4}\u{e4}\u{e4}", 4), Ok(()));
    assert_eq!(judge_metadata("\u{1f600}\u{1f600}", 3), too_large);
    let longest = "x".repeat(TEXT_BYTES_MAX);
    assert_eq!(judge_metadata(&longest, usize::MAX), Ok(()));
    assert_eq!(judge_metadata(&(longest + "x"), usize::MAX), too_large);
}

#[test]
fn a_deleted_group_leaves_nothing() {
    let offsets = [offset("a", 1, None), offset("b", 1, Some(5))];
    for first in [vec![], vec![classic("connect", 0, 1)], consumer(None)] {
        let records: Vec<_> = first.into_iter().chain(offsets.clone()).collect();
        let mut table = table(&records);
        let found = delete_group("g", table.get("g")).unwrap();
        assert_eq!(words(&found)[..2], ["a", "b"]);
        for record in &found {
            table.apply_record(record);
        }
        assert_eq!(table, GroupTable::new(), "{records:?}");
    }
    let refused = |table: &GroupTable| delete_group("g", table.get("g")).unwrap_err().code;
    assert_eq!(refused(&GroupTable::new()), ErrorCode::GroupIdNotFound);
    for records in [vec![classic("consumer", 1, 1)], consumer(Some(("t", "u")))] {
        assert_eq!(refused(&table(&records)), ErrorCode::NonEmptyGroup);
    }
}

/// Name, records, what is subscribed to, the topics that go, those that are refused.
type DeleteRow = (
    &'static str,
    Vec<GroupRecord>,
    Subscribed,
    &'static [&'static str],
    &'static [&'static str],
);

#[test]
fn single_offsets_go_unless_somebody_subscribes() {
    let subscribed_error = Err(ErrorCode::GroupSubscribedToTopic);
    let offsets = [offset("a", 1, None), offset("b", 1, None)];
    let asked = [
        partition("a"),
        partition("b"),
        partition("c"),
        partition("a"),
    ];
    let rows: [DeleteRow; 9] = [
        ("simple", vec![], Subscribed::Nothing, &["a", "b"], &[]),
        (
            "a first generation is joining",
            vec![],
            Subscribed::Everything,
            &[],
            &["a", "b", "c"],
        ),
        (
            "a first generation has not synced",
            vec![],
            topics(&["a"]),
            &["b"],
            &["a"],
        ),
        (
            "empty, and members have come",
            vec![classic("consumer", 0, 1)],
            topics(&["b"]),
            &["a"],
            &["b"],
        ),
        (
            "empty",
            vec![classic("connect", 0, 1)],
            Subscribed::Nothing,
            &["a", "b"],
            &[],
        ),
        (
            "members",
            vec![classic("consumer", 1, 1)],
            topics(&["a"]),
            &["b"],
            &["a"],
        ),
        (
            "members, subscriptions unknown",
            vec![classic("consumer", 1, 1)],
            Subscribed::Everything,
            &[],
            &["a", "b", "c"],
        ),
        (
            "consumer protocol, no members",
            consumer(None),
            Subscribed::Nothing,
            &["a", "b"],
            &[],
        ),
        (
            "consumer protocol",
            consumer(Some(("a", "c"))),
            Subscribed::Nothing,
            &["b"],
            &["a", "c"],
        ),
    ];
    for (row, first, subscribed, gone, kept) in rows {
        let records: Vec<_> = first.into_iter().chain(offsets.clone()).collect();
        let table = table(&records);
        let found = delete_offsets("g", table.get("g"), &subscribed, &asked).unwrap();
        assert_eq!(words(&found.records), gone, "{row}");
        let expected: Vec<_> = asked
            .iter()
            .map(|partition| match kept.contains(&partition.topic.as_str()) {
                true => subscribed_error,
                false => Ok(()),
            })
            .collect();
        assert_eq!(found.results, expected, "{row}");
    }
    let refused = |table: &GroupTable| {
        let nothing = Subscribed::Nothing;
        let found = delete_offsets("g", table.get("g"), &nothing, &asked);
        found.unwrap_err().code
    };
    assert_eq!(refused(&GroupTable::new()), ErrorCode::GroupIdNotFound);
    let connect = table(&[classic("connect", 1, 1)]);
    assert_eq!(refused(&connect), ErrorCode::NonEmptyGroup);
    // Members that are joining for the first time: with offsets of before, and without anything.
    for before in [table(&offsets), GroupTable::new()] {
        let found = delete_offsets("g", before.get("g"), &Subscribed::Foreign, &asked);
        assert_eq!(found.unwrap_err().code, ErrorCode::NonEmptyGroup);
    }
    let unknown = delete_offsets("g", None, &Subscribed::Everything, &asked).unwrap();
    assert_eq!(unknown.results, [subscribed_error; 4]);
}
