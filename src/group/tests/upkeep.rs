//! What a coordinator does by itself: writes live groups again so that older records can go, and
//! forgets what has expired; whatever the size of a group.

use super::*;

use corduroy_group::records::GroupRecord;
use corduroy_group::table::GroupTable;

use crate::partition::{FetchSpec, Isolation};

/// Milliseconds of a day.
const DAY_MS: i64 = 24 * 3_600_000;
/// Bytes that are read at once.
const FETCH_BYTES: usize = 32 << 20;
/// Every record carries it, so few records make a large group.
const LONG_NAME_BYTES: usize = 30_000;
/// Offsets of one commit by that name: nearly as much as a commit may hold.
const COMMIT_OFFSETS: i32 = 500;
/// Commits after which the group's state, and its tombstones, are more than one decision may hold.
const COMMITS: i32 = 5;

fn long_name() -> String {
    "g".repeat(LONG_NAME_BYTES)
}

impl World {
    /// A group that no decision could hold as a whole.
    async fn fill_large_group(&self) {
        for commit in 0..COMMITS {
            let offset = |partition| OffsetCommit {
                partition: TopicPartition {
                    topic: TOPIC.to_owned(),
                    partition: PartitionIndex::new(partition),
                },
                topic_id: None,
                offset: Offset::new(7),
                leader_epoch: LeaderEpoch::NONE,
                metadata: String::new(),
                refused: None,
            };
            let first = commit * COMMIT_OFFSETS;
            let request = CommitRequest {
                identity: identity("", -1),
                api_version: 9,
                retention_ms: None,
                offsets: (first..first + COMMIT_OFFSETS).map(offset).collect(),
            };
            let committed = self.ask(|reply| GroupCall::Commit {
                group: long_name(),
                request,
                reply,
            });
            let committed = committed.await.expect("an answer");
            assert!(committed.iter().all(|code| *code == ErrorCode::None));
        }
    }

    fn live_records(&self) -> Vec<GroupRecord> {
        let machine = self.coordinator.partition.machine();
        let table = machine.groups().expect("it holds groups");
        table.live_records().collect()
    }

    /// What somebody makes of the log who reads it from its start.
    async fn replayed(&self) -> Vec<GroupRecord> {
        let partition = &self.coordinator.partition;
        let marks = partition.watermarks();
        let mut from = marks.log_start;
        let mut table = GroupTable::new();
        while from < marks.log_end {
            let spec = FetchSpec {
                from,
                leader_epoch: LeaderEpoch::NONE,
                last_fetched_epoch: LeaderEpoch::NONE,
                bytes_max: FETCH_BYTES,
                isolation: Isolation::ReadUncommitted,
            };
            let fetched = partition.fetch(&spec, FETCH_BYTES).await.expect("it reads");
            for batch in &fetched.batches {
                for record in batch.records(usize::MAX).expect("our own batch") {
                    let record = record.expect("our own record");
                    let key = record.key.expect("every record has a key");
                    let applied = table.apply(&key, record.value.as_deref());
                    applied.expect("a record of groups");
                }
                from = batch.header().next_offset();
            }
        }
        table.live_records().collect()
    }

    /// Lets simulated time pass until the log starts later than at `start`.
    async fn purged(&self, start: Offset) {
        while self.coordinator.partition.watermarks().log_start <= start {
            calm().await;
        }
    }
}

#[test]
fn a_group_larger_than_a_decision_is_written_again_and_lost_by_no_purge() {
    run(|world| async move {
        let generation = world.settle().await;
        let partition = &world.coordinator.partition;
        let image = world.metadata.image();
        let mut settings = PartitionSettings::resolve(&image, &image.topics[CONSUMER_OFFSETS], 1);
        settings.segment_bytes = 32 << 20;
        partition.configure(settings);
        world.fill_large_group().await;
        let start = partition.watermarks().log_start;
        world.coordinator.check_size();
        world.purged(start).await;
        let live = world.live_records();
        assert_eq!(live.len(), 1 + (COMMITS * COMMIT_OFFSETS) as usize);
        assert_eq!(world.replayed().await, live);
        let heard = world.heartbeat(generation).await.expect("an answer");
        assert_eq!(heard, Ok(()));
    });
}

#[test]
fn a_group_larger_than_a_decision_expires_when_its_own_setting_says_so() {
    run(|world| async move {
        world.fill_large_group().await;
        world.env.set_wall_offset_millis(8 * DAY_MS);
        calm().await;
        assert!(!world.live_records().is_empty(), "nobody looks yet");
        world.set("offsets.retention.check.interval.ms", "1000");
        while !world.live_records().is_empty() {
            calm().await;
        }
        assert_eq!(world.replayed().await, []);
    });
}

#[test]
fn a_group_larger_than_a_decision_is_deleted() {
    run(|world| async move {
        world.fill_large_group().await;
        let delete = || {
            world.ask(|reply| GroupCall::Delete {
                group: long_name(),
                reply,
            })
        };
        assert_eq!(delete().await.expect("an answer"), Ok(()));
        assert!(world.live_records().is_empty());
        assert_eq!(
            delete().await.expect("an answer"),
            Err(ErrorCode::GroupIdNotFound)
        );
    });
}

/// The setting in whole minutes, with the clocks of the coordinator alone: each kind of group ages
/// from another moment.
#[test]
fn offsets_go_when_their_retention_is_over_and_not_before() {
    run(|world| async move {
        world.set("offsets.retention.check.interval.ms", "1000");
        world.set("offsets.retention.minutes", "3");
        let minute = Duration::from_secs(60);
        let looks = Duration::from_secs(2);
        let kept = || !world.live_records().is_empty();
        // A simple group: from the commit.
        assert_eq!(world.commit(None, 5).await, Ok(vec![ErrorCode::None]));
        tokio::time::sleep(3 * minute - looks).await;
        assert!(kept(), "a simple group before its time");
        tokio::time::sleep(2 * looks).await;
        assert!(!kept(), "a simple group after its time");
        // A classic group: from when it became empty, however old the commit is.
        let generation = world.settle().await;
        let member = identity("m1", generation);
        let committed = world.commit_as(member, None, 6).await;
        assert_eq!(committed, Ok(vec![ErrorCode::None]));
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let heard = world.heartbeat(generation).await.expect("an answer");
            assert_eq!(heard, Ok(()));
        }
        world.leave().await;
        tokio::time::sleep(3 * minute - looks).await;
        assert!(kept(), "a classic group before its time");
        tokio::time::sleep(2 * looks).await;
        assert!(!kept(), "a classic group after its time");
    });
}
