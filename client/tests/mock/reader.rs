//! Readers and what befalls them.

use std::time::Duration;

use corduroy_client::{Client, ErrorKind, From, OutOfRange, Reader, Record};
use futures::FutureExt;

use crate::broker::Cluster;
use crate::connect;

/// Ten records in each partition, one batch each, times 1000, 1001, ...
async fn filled(partitions: i32) -> (Cluster, Client) {
    let cluster = Cluster::start(2).await;
    cluster.create("t", partitions as usize, 1);
    let client = connect(&cluster).await;
    let producer = client
        .producer()
        .batch_size(1)
        .linger(Duration::ZERO)
        .build();
    for number in 0..10 {
        for partition in 0..partitions {
            let value = format!("{partition}/{number}");
            let record = Record::to("t")
                .partition(partition)
                .value(value)
                .timestamp(1000 + number);
            drop(producer.queue(record).await.expect("space"));
        }
    }
    producer.close().await.expect("written");
    (cluster, client)
}

async fn drain(mut reader: Reader) -> Vec<i64> {
    let mut offsets = Vec::new();
    while let Some(batch) = reader.next().await {
        offsets.extend(
            batch
                .expect("readable")
                .records()
                .iter()
                .map(|record| record.offset()),
        );
    }
    offsets
}

#[tokio::test]
async fn reading_begins_where_it_was_told_and_ends_at_the_high_watermark() {
    let (_cluster, client) = filled(1).await;
    let table: [(From, std::ops::Range<i64>); 8] = [
        (From::Earliest, 0..10),
        (From::Latest, 10..10),
        (From::Offset(4), 4..10),
        (From::Timestamp(1007), 7..10),
        (From::Timestamp(0), 0..10),
        (From::Timestamp(2000), 10..10),
        (From::Last(3), 7..10),
        (From::Last(99), 0..10),
    ];
    for (from, expected) in table {
        let offsets = drain(client.read("t").from(from).until_high_watermark()).await;
        assert_eq!(offsets, expected.collect::<Vec<_>>(), "{from:?}");
    }
}

#[tokio::test]
async fn all_partitions_are_read_each_in_order_or_only_those_named() {
    let (cluster, client) = filled(6).await;
    for partition in [1, 3] {
        cluster.lead("t", partition, 2);
    }
    for (partitions, named) in [((0..6).collect::<Vec<i32>>(), false), (vec![1, 4], true)] {
        let mut builder = client.read("t");
        if named {
            builder = builder.partitions(partitions.clone());
        }
        let mut records = builder.until_high_watermark().records();
        let mut next = vec![0; 6];
        while let Some(record) = records.next().await {
            let record = record.expect("readable");
            let partition = record.partition() as usize;
            let value = format!("{partition}/{}", next[partition]);
            assert_eq!(record.value(), Some(value.as_bytes()));
            assert_eq!(record.topic(), "t");
            next[partition] += 1;
        }
        for (partition, count) in (0..).zip(next) {
            assert_eq!(
                count,
                if partitions.contains(&partition) {
                    10
                } else {
                    0
                }
            );
        }
    }
}

#[tokio::test]
async fn a_follower_sees_what_is_written_after_it_started() {
    let (_cluster, client) = filled(1).await;
    let mut reader = client.read("t").partition(0).from(From::Latest).follow();
    assert_eq!(reader.started().await, [(0, 10)]);
    assert!(reader.next().now_or_never().is_none());
    let producer = client.producer().build();
    producer
        .send(Record::to("t").partition(0).value("new"))
        .await
        .expect("written");
    let batch = reader.next().await.expect("goes on").expect("readable");
    assert_eq!(batch.records()[0].value(), Some(&b"new"[..]));
    assert_eq!((batch.records()[0].offset(), batch.next_offset()), (10, 11));
}

#[tokio::test]
async fn a_reader_gets_over_moved_leaders_and_broken_connections() {
    for hints in [true, false] {
        let (cluster, client) = filled(1).await;
        if !hints {
            cluster.without_hints();
        }
        let mut reader = client.read("t").follow();
        let producer = client.producer().linger(Duration::ZERO).build();
        let mut expected = 0;
        for round in 0..6 {
            match round {
                1 => cluster.lead("t", 0, 2),
                2 => cluster.drop_fetches(2),
                4 => cluster.lead("t", 0, 1),
                _ => {}
            }
            producer
                .send(Record::to("t").partition(0).value("x"))
                .await
                .expect("written");
            while expected < 11 + round {
                for record in &reader.next().await.expect("goes on").expect("readable") {
                    assert_eq!(record.offset(), expected);
                    expected += 1;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_lost_place_is_an_error_or_goes_on_where_the_user_said() {
    let (cluster, client) = filled(1).await;
    cluster.trim("t", 0, 6);
    for from in [From::Offset(2), From::Offset(99)] {
        let mut reader = client.read("t").from(from).follow();
        let error = reader
            .next()
            .await
            .expect("an item")
            .expect_err("no such offset");
        assert_eq!(error.kind(), ErrorKind::OffsetOutOfRange);
        assert!(error.to_string().contains("the log starts at 6"), "{error}");
        assert!(reader.next().await.is_none(), "an error is the last item");
    }
    let reader = client
        .read("t")
        .from(From::Offset(2))
        .on_out_of_range(OutOfRange::Earliest);
    assert_eq!(drain(reader.until_high_watermark()).await, [6, 7, 8, 9]);
    let reader = client
        .read("t")
        .from(From::Offset(2))
        .on_out_of_range(OutOfRange::Latest);
    assert_eq!(drain(reader.until_high_watermark()).await, [0; 0]);
}

#[tokio::test]
async fn what_is_not_there_is_told_soon() {
    let (cluster, client) = filled(1).await;
    let mut unknown = client.read("nope").follow();
    let error = unknown
        .next()
        .await
        .expect("an item")
        .expect_err("no such topic");
    assert_eq!(error.kind(), ErrorKind::UnknownTopic);
    assert!(!cluster.topics().contains(&"nope".to_owned()));
    let mut unknown = client.read("t").partition(7).follow();
    let error = unknown
        .next()
        .await
        .expect("an item")
        .expect_err("no such partition");
    assert_eq!(error.kind(), ErrorKind::UnknownPartition);
}

#[tokio::test]
async fn a_recreated_topic_is_another_log() {
    let (cluster, client) = filled(1).await;
    let mut reader = client.read("t").from(From::Latest).follow();
    reader.started().await;
    cluster.create("t", 1, 1);
    let error = reader
        .next()
        .await
        .expect("an item")
        .expect_err("records of another log");
    // Whichever shows first: the new topic id, or the offset that its log does not have.
    let kinds = [ErrorKind::LogTruncated, ErrorKind::OffsetOutOfRange];
    assert!(kinds.contains(&error.kind()), "{error}");
}

#[tokio::test]
async fn a_slow_user_bounds_what_is_fetched_ahead() {
    let (cluster, client) = filled(1).await;
    // One batch per fetch, and room for about two.
    let mut reader = client
        .read("t")
        .max_partition_bytes(1)
        .prefetch_bytes(100)
        .until_high_watermark();
    let first = reader.next().await.expect("a batch").expect("readable");
    assert_eq!(first.len(), 1);
    while cluster.fetches() < 3 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(
        cluster.fetches() <= 4,
        "{} fetches for one batch taken",
        cluster.fetches()
    );
    assert_eq!(drain(reader).await, (1..10).collect::<Vec<i64>>());
}
