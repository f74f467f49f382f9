//! Members of groups and what befalls them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corduroy_client::{
    Batch, Client, Commits, Error, ErrorKind, From, Group, GroupBuilder, GroupEvent, Record,
    Strategy, TopicPartition,
};
use corduroy_protocol::ErrorCode;

use crate::broker::Cluster;
use crate::{connect, quick};

/// Ten records in each partition, one batch each.
async fn filled(partitions: i32) -> (Cluster, Client) {
    let cluster = Cluster::start(2).await;
    cluster.create("t", partitions as usize, 1);
    cluster.group(|group| group.coordinator = 1);
    let client = connect(&cluster).await;
    write(&client, partitions, 10).await;
    (cluster, client)
}

async fn write(client: &Client, partitions: i32, count: i32) {
    let producer = client
        .producer()
        .batch_size(1)
        .linger(Duration::ZERO)
        .build();
    for number in 0..count {
        for partition in 0..partitions {
            let record = Record::to("t")
                .partition(partition)
                .value(format!("{partition}/{number}"));
            drop(producer.queue(record).await.expect("space"));
        }
    }
    producer.close().await.expect("written");
}

fn member(client: &Client) -> GroupBuilder {
    client
        .group("g")
        .topics(["t"])
        .from(From::Earliest)
        .heartbeat_interval(Duration::from_millis(20))
        // One record in each batch.
        .set("max.partition.fetch.bytes", "1")
        // Only what the protocol asks for is committed while a test runs.
        .commit_interval(Duration::from_secs(600))
}

async fn next(group: &mut Group) -> Batch {
    group.next().await.expect("goes on").expect("a batch")
}

/// Reads until `count` records have come.
async fn read(group: &mut Group, count: usize) -> Vec<(i32, i64)> {
    let mut records = Vec::new();
    while records.len() < count {
        let batch = next(group).await;
        records.extend(batch.records().iter().map(|r| (r.partition(), r.offset())));
    }
    records
}

fn offsets(cluster: &Cluster) -> Vec<i64> {
    cluster.group(|group| group.offsets.values().copied().collect())
}

#[tokio::test]
async fn what_was_processed_is_committed_on_leaving_and_the_next_member_goes_on_behind_it() {
    let (cluster, client) = filled(2).await;
    let mut first = member(&client).join().await.expect("joins");
    assert_eq!(read(&mut first, 20).await.len(), 20);
    assert!(offsets(&cluster).is_empty(), "nobody has asked for more");
    first.close().await;
    assert_eq!(offsets(&cluster), [10, 10]);
    assert_eq!(cluster.group(|group| group.left.len()), 1);
    let mut second = member(&client).join().await.expect("joins");
    write(&client, 2, 1).await;
    let mut records = read(&mut second, 2).await;
    records.sort_unstable();
    assert_eq!(records, [(0, 10), (1, 10)]);
}

#[tokio::test]
async fn a_batch_in_hand_is_not_processed_until_more_is_asked_for() {
    let (cluster, client) = filled(1).await;
    let mut group = member(&client).join().await.expect("joins");
    let first = next(&mut group).await;
    let second = next(&mut group).await;
    assert!(second.next_offset() > first.next_offset());
    drop(group);
    cluster.wait_for(|group| !group.left.is_empty()).await;
    assert_eq!(offsets(&cluster), [first.next_offset()]);
}

#[tokio::test]
async fn explicit_commits_cover_exactly_their_batch_and_never_go_back() {
    let (cluster, client) = filled(1).await;
    let mut group = member(&client)
        .commits(Commits::Explicit)
        .join()
        .await
        .expect("joins");
    let first = next(&mut group).await;
    let second = next(&mut group).await;
    second.commit().await.expect("committed");
    assert_eq!(offsets(&cluster), [second.next_offset()]);
    first.commit().await.expect("covered already");
    assert_eq!(offsets(&cluster), [second.next_offset()]);
    let third = next(&mut group).await;
    group.close().await;
    assert_eq!(
        offsets(&cluster),
        [second.next_offset()],
        "{third:?} was not committed"
    );
}

#[tokio::test]
async fn at_most_once_is_committed_before_it_is_handed_out() {
    let (cluster, client) = filled(1).await;
    let builder = member(&client).commits(Commits::BeforeProcessing);
    let mut group = builder.join().await.expect("joins");
    for _ in 0..3 {
        let batch = next(&mut group).await;
        assert_eq!(offsets(&cluster), [batch.next_offset()]);
    }
}

#[tokio::test]
async fn two_members_share_and_nothing_is_read_twice() {
    for strategy in [
        Strategy::Range,
        Strategy::RoundRobin,
        Strategy::Sticky,
        Strategy::CooperativeSticky,
    ] {
        let (cluster, client) = filled(4).await;
        let mut first = member(&client)
            .strategies([strategy])
            .join()
            .await
            .expect("joins");
        let mut seen = read(&mut first, 40).await;
        let joining = member(&client).strategies([strategy]).join();
        tokio::pin!(joining);
        let mut second = tokio::select! {
            joined = &mut joining => joined.expect("joins"),
            batch = first.next() => panic!("{strategy:?}: read again: {batch:?}"),
        };
        // Before it was given back, it was committed.
        let moved = async {
            while second.assignment().len() < 2 {
                if let Some(Ok(GroupEvent::Batch(batch))) = second.next_event().await {
                    panic!("{strategy:?}: read again: {batch:?}");
                }
            }
        };
        tokio::select! {
            () = moved => {}
            batch = first.next() => panic!("{strategy:?}: read again: {batch:?}"),
        }
        assert!(offsets(&cluster).iter().all(|offset| *offset == 10));
        write(&client, 4, 1).await;
        let (left, right) = tokio::join!(read(&mut first, 2), read(&mut second, 2));
        seen.extend(left.into_iter().chain(right));
        let distinct: BTreeSet<_> = seen.iter().copied().collect();
        assert_eq!((seen.len(), distinct.len()), (44, 44), "{strategy:?}");
    }
}

#[tokio::test]
async fn another_coordinator_is_no_rebalance() {
    let (cluster, client) = filled(1).await;
    let mut group = member(&client).join().await.expect("joins");
    let batch = next(&mut group).await;
    let joins = cluster.group(|group| group.joins);
    cluster.group(|group| group.coordinator = 2);
    batch
        .commit()
        .await
        .expect("committed at the next coordinator");
    assert_eq!(offsets(&cluster), [batch.next_offset()]);
    assert_eq!(read(&mut group, 9).await.len(), 9);
    assert_eq!(cluster.group(|group| group.joins), joins);
    assert_eq!(
        group.generation(),
        Some(cluster.group(|group| group.generation()))
    );
}

#[tokio::test]
async fn a_member_that_was_given_up_is_told_and_its_batches_commit_nothing() {
    let (cluster, client) = filled(1).await;
    let mut group = member(&client).join().await.expect("joins");
    let batch = next(&mut group).await;
    cluster.group(|state| {
        state.offsets.insert(("t".to_owned(), 0), 7);
        state.expel("m1");
    });
    let t0 = vec![TopicPartition::new("t", 0)];
    loop {
        match group
            .next_event()
            .await
            .expect("goes on")
            .expect("an event")
        {
            GroupEvent::Lost(partitions) => break assert_eq!(partitions, t0),
            GroupEvent::Batch(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let error = batch.commit().await.expect_err("somebody else's by now");
    assert_eq!(error.kind(), ErrorKind::StaleGeneration);
    assert_eq!(offsets(&cluster), [7]);
    // It has joined again, and goes on where the group is.
    assert_eq!(read(&mut group, 3).await, [(0, 7), (0, 8), (0, 9)]);
}

#[tokio::test]
async fn a_commit_outlasts_passing_troubles_and_tells_the_others() {
    let (cluster, client) = filled(1).await;
    let mut group = member(&client).join().await.expect("joins");
    let batch = next(&mut group).await;
    cluster.group(|group| {
        group.refusals = vec![
            ErrorCode::CoordinatorLoadInProgress,
            ErrorCode::NotCoordinator,
            ErrorCode::RebalanceInProgress,
        ];
    });
    batch.commit().await.expect("committed in the end");
    assert_eq!(offsets(&cluster), [batch.next_offset()]);
    let batch = next(&mut group).await;
    cluster.group(|group| group.refusals = vec![ErrorCode::OffsetMetadataTooLarge]);
    let error = batch.commit().await.expect_err("refused");
    assert_eq!(error.code(), Some(ErrorCode::OffsetMetadataTooLarge));
    cluster.group(|group| group.refusals = vec![ErrorCode::FencedInstanceId]);
    assert!(batch.commit().await.expect_err("fenced").is_fenced());
    let last = group
        .next()
        .await
        .expect("one last item")
        .expect_err("fenced");
    assert!(last.is_fenced());
    assert!(group.next().await.is_none());
}

#[tokio::test]
async fn partitions_are_worked_on_in_order_and_a_failure_commits_what_came_before() {
    let (cluster, client) = filled(3).await;
    let group = member(&client).join().await.expect("joins");
    let seen: Arc<Mutex<Vec<(i32, i64)>>> = Arc::default();
    let log = seen.clone();
    let result = group
        .for_each_partition(move |batch| {
            let log = log.clone();
            async move {
                tokio::task::yield_now().await;
                for record in &batch {
                    if (record.partition(), record.offset()) == (1, 5) {
                        return Err(batch_error());
                    }
                    log.lock()
                        .expect("no panics")
                        .push((record.partition(), record.offset()));
                }
                Ok(())
            }
        })
        .await;
    assert_eq!(
        result.expect_err("the work failed").kind(),
        ErrorKind::Config
    );
    let seen = seen.lock().expect("no panics").clone();
    let committed = cluster.group(|group| group.offsets.clone());
    for partition in 0..3 {
        let of_it: Vec<i64> = seen
            .iter()
            .filter(|at| at.0 == partition)
            .map(|at| at.1)
            .collect();
        assert!(
            of_it.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "{of_it:?}"
        );
        let position = committed
            .get(&("t".to_owned(), partition))
            .copied()
            .unwrap_or(0);
        assert!(
            position <= of_it.len() as i64,
            "never behind unfinished work"
        );
        if partition != 1 {
            assert_eq!(position, of_it.len() as i64);
        }
    }
}

fn batch_error() -> Error {
    corduroy_client::parse_bootstrap_servers("none").expect_err("no port")
}

#[tokio::test]
async fn a_slow_user_leaves_and_comes_back() {
    let (cluster, client) = filled(1).await;
    let builder = member(&client).max_poll_interval(Duration::from_millis(100));
    let mut group = builder.join().await.expect("joins");
    let batch = next(&mut group).await;
    cluster.wait_for(|group| group.left.contains("m1")).await;
    let error = batch.commit().await.expect_err("it has left");
    assert_eq!(error.kind(), ErrorKind::StaleGeneration);
    // Whatever waited for it meanwhile is not its any more; then it begins where the group is.
    assert_eq!(read(&mut group, 1).await[0], (0, 0));
    assert_ne!(group.member_id(), "m1");
}

#[tokio::test]
async fn a_missing_offset_is_an_error_only_where_the_user_says_so() {
    let (_cluster, client) = filled(1).await;
    let builder = client
        .group("g")
        .topics(["t"])
        .set("auto.offset.reset", "none");
    let mut group = builder.join().await.expect("joins");
    let error = group
        .next()
        .await
        .expect("one item")
        .expect_err("nowhere to begin");
    assert_eq!(error.kind(), ErrorKind::OffsetOutOfRange);
    assert!(group.next().await.is_none());
}

#[tokio::test]
async fn wrong_settings_are_told_before_anything_is_asked() {
    let (cluster, client) = filled(1).await;
    for builder in [
        client.group("").topics(["t"]),
        client.group("g"),
        client
            .group("g")
            .topics(["t"])
            .set("heartbeat.interval.ms", "45000"),
        client
            .group("g")
            .topics(["t"])
            .set("group.protocol", "share"),
        client.group("g").topics(["t"]).strategies([]),
        client.group("g").topics_matching("t("),
    ] {
        let error = builder.join().await.err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
    assert_eq!(cluster.group(|group| group.joins), 0);
}

#[tokio::test]
async fn a_static_member_comes_back_to_its_place_and_fences_an_older_one_of_its_name() {
    let (cluster, client) = filled(2).await;
    let named = || member(&client).instance_id("till-3").join();
    let mut first = named().await.expect("joins");
    assert_eq!(read(&mut first, 20).await.len(), 20);
    let (joins, generation) = (cluster.group(|group| group.joins), first.generation());
    first.close().await;
    assert!(
        cluster.group(|group| group.left.is_empty()),
        "its place is kept"
    );
    let mut second = named().await.expect("joins");
    assert_eq!(second.generation(), generation);
    assert_eq!(
        cluster.group(|group| group.joins),
        joins,
        "nobody rebalances"
    );
    write(&client, 2, 1).await;
    let mut records = read(&mut second, 2).await;
    records.sort_unstable();
    assert_eq!(records, [(0, 10), (1, 10)]);
    // Somebody else by the same name: the newer one has it.
    let third = named().await.expect("joins");
    let error = loop {
        match second.next().await.expect("one last item") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(error.is_fenced(), "{error}");
    let holder = cluster.group(|group| group.holder("till-3"));
    assert_eq!(holder, Some(third.member_id()));
}

#[tokio::test]
async fn a_pattern_finds_topics_also_those_that_come_later() {
    let cluster = Cluster::start(2).await;
    cluster.group(|group| group.coordinator = 1);
    for topic in ["logs-a", "logs-b", "other-logs-c"] {
        cluster.create(topic, 1, 1);
    }
    let client = quick(&cluster)
        .set("metadata.max.age.ms", "30")
        .connect()
        .await
        .expect("the mock answers");
    let mut group = client
        .group("g")
        .topics_matching("logs-.*")
        .heartbeat_interval(Duration::from_millis(20))
        .join()
        .await
        .expect("joins");
    let mut owned = BTreeSet::new();
    let mut generations = Vec::new();
    for wanted in [
        vec!["logs-a", "logs-b"],
        vec!["logs-a", "logs-b", "logs-new"],
    ] {
        while !owned
            .iter()
            .map(|at: &TopicPartition| &*at.topic)
            .eq(wanted.iter().copied())
        {
            match group
                .next_event()
                .await
                .expect("goes on")
                .expect("an event")
            {
                GroupEvent::Assigned {
                    partitions,
                    generation,
                } => {
                    owned.extend(partitions);
                    generations.push(generation);
                }
                GroupEvent::Revoked(partitions) => {
                    owned.retain(|at| !partitions.contains(at));
                }
                other => panic!("{other:?}"),
            }
        }
        cluster.create("logs-new", 1, 1);
    }
    assert_eq!(generations.last().copied(), group.generation());
    assert!(
        generations.is_sorted_by(|left, right| left < right),
        "{generations:?}"
    );
}

#[tokio::test]
async fn a_committed_position_that_was_truncated_away_goes_on_where_the_logs_part() {
    let (cluster, client) = filled(1).await;
    cluster.group(|group| {
        group.offsets.insert(("t".to_owned(), 0), 15);
        // A leader whose records nobody has any more.
        group.offset_epoch = Some(4);
        group.logs_part_at = 7;
    });
    let mut group = member(&client).join().await.expect("joins");
    assert_eq!(read(&mut group, 2).await, [(0, 7), (0, 8)]);
}
