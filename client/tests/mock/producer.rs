//! Producers and what befalls them.

use std::time::Duration;

use corduroy_client::{
    Acks, Compression, ErrorCode, ErrorKind, From, Outcome, Producer, Record, Ticket,
};
use futures::FutureExt;
use futures::future::join_all;

use crate::broker::{Act, Cluster};
use crate::{connect, quick};

/// Small batches, so that many are in flight.
async fn producer(cluster: &Cluster) -> Producer {
    connect(cluster)
        .await
        .producer()
        .batch_size(100)
        .linger(Duration::ZERO)
        .build()
}

async fn queue_numbers(producer: &Producer, numbers: std::ops::Range<u32>) -> Vec<Ticket> {
    let mut tickets = Vec::new();
    for number in numbers {
        let value = format!("value number {number:04}");
        let record = Record::to("t").partition(0).value(value);
        tickets.push(producer.queue(record).await.expect("there is space"));
    }
    tickets
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range
        .map(|number| format!("value number {number:04}"))
        .collect()
}

async fn offsets(tickets: Vec<Ticket>) -> Vec<i64> {
    join_all(tickets)
        .await
        .into_iter()
        .map(|written| written.expect("written").offset.expect("known"))
        .collect()
}

/// Every record is there once, in order, and its ticket says where.
async fn check_all_written(cluster: &Cluster, tickets: Vec<Ticket>) {
    let count = tickets.len() as u32;
    assert_eq!(
        offsets(tickets).await,
        (0..i64::from(count)).collect::<Vec<_>>()
    );
    assert_eq!(cluster.values("t", 0), numbers(0..count));
}

#[tokio::test]
async fn records_arrive_once_in_order_and_tickets_tell_where() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let producer = producer(&cluster).await;
    let tickets = queue_numbers(&producer, 0..200).await;
    check_all_written(&cluster, tickets).await;
    producer.close().await.expect("nothing failed");
}

#[tokio::test]
async fn keys_stay_in_their_partition_and_metadata_tells_it() {
    let cluster = Cluster::start(2).await;
    cluster.create("t", 8, 1);
    let producer = producer(&cluster).await;
    let mut home = None;
    for value in ["a", "b", "c"] {
        let record = Record::to("t")
            .key("42")
            .value(value)
            .header("h", "x")
            .timestamp(77);
        let written = producer.send(record).await.expect("written");
        assert_eq!(*home.get_or_insert(written.partition), written.partition);
        assert_eq!(written.timestamp, 77);
    }
    let home = home.expect("three were sent") as usize;
    assert_eq!(cluster.values("t", home), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_moved_leader_is_followed_by_its_hint_and_by_metadata() {
    for hints in [true, false] {
        let cluster = Cluster::start(3).await;
        if !hints {
            cluster.without_hints();
        }
        cluster.create("t", 1, 1);
        let producer = producer(&cluster).await;
        let mut tickets = queue_numbers(&producer, 0..20).await;
        producer.flush().await.expect("written");
        cluster.lead("t", 0, 2);
        tickets.extend(queue_numbers(&producer, 20..60).await);
        producer.flush().await.expect("written");
        cluster.lead("t", 0, 3);
        tickets.extend(queue_numbers(&producer, 60..100).await);
        check_all_written(&cluster, tickets).await;
    }
}

#[tokio::test]
async fn connections_that_break_before_and_after_the_append_lose_and_duplicate_nothing() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    cluster.script(
        1,
        [
            Act::Serve,
            Act::AppendThenDrop,
            Act::Drop,
            Act::Serve,
            Act::Serve,
            Act::AppendThenDrop,
            Act::AppendThenDrop,
            Act::Serve,
            Act::Drop,
        ],
    );
    let producer = producer(&cluster).await;
    let tickets = queue_numbers(&producer, 0..100).await;
    check_all_written(&cluster, tickets).await;
}

#[tokio::test]
async fn refusals_in_the_middle_of_five_in_flight_keep_the_order() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    cluster.script(
        1,
        [
            Act::Hold,
            Act::Refuse(ErrorCode::NotEnoughReplicas),
            Act::Serve,
            Act::AppendThenRefuse(ErrorCode::NotEnoughReplicasAfterAppend),
            Act::Refuse(ErrorCode::NotLeaderOrFollower),
            Act::Serve,
            Act::AppendThenRefuse(ErrorCode::RequestTimedOut),
        ],
    );
    let producer = producer(&cluster).await;
    let tickets = queue_numbers(&producer, 0..100).await;
    cluster.release();
    // The held request may not have arrived yet at the first release.
    let releases = async {
        loop {
            cluster.release();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = check_all_written(&cluster, tickets) => {}
        () = releases => {}
    }
}

#[tokio::test]
async fn a_broker_that_forgot_the_producer_gets_a_new_epoch_and_no_duplicates() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let producer = producer(&cluster).await;
    let mut tickets = queue_numbers(&producer, 0..10).await;
    producer.flush().await.expect("written");
    cluster.script(1, [Act::Forget]);
    tickets.extend(queue_numbers(&producer, 10..50).await);
    check_all_written(&cluster, tickets).await;
    let seen = cluster.seen();
    assert!(
        seen.iter()
            .any(|batch| batch.answer == ErrorCode::OutOfOrderSequenceNumber)
    );
    assert_eq!(seen.last().map(|batch| batch.epoch), Some(1));
}

#[tokio::test]
async fn a_lost_answer_is_unknown_where_it_may_not_be_repeated() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let client = connect(&cluster).await;
    let once = client
        .producer()
        .acks(Acks::Leader)
        .retries(0)
        .linger(Duration::ZERO)
        .build();
    cluster.script(1, [Act::AppendThenDrop]);
    let error = once
        .send(Record::to("t").value("x"))
        .await
        .expect_err("no answer");
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::Disconnected, Outcome::Unknown)
    );
    assert_eq!(cluster.values("t", 0), ["x"]);
    cluster.script(1, [Act::Refuse(ErrorCode::NotEnoughReplicas)]);
    let error = once
        .send(Record::to("t").value("y"))
        .await
        .expect_err("refused");
    assert_eq!(
        error.kind(),
        ErrorKind::Broker(ErrorCode::NotEnoughReplicas)
    );
    assert_eq!(error.outcome(), Outcome::NotWritten);
    assert_eq!(error.context().topic.as_deref(), Some("t"));
    assert!(error.context().broker.is_none() || error.is_retriable());
    // Later records are not held up.
    assert_eq!(
        once.send(Record::to("t").value("z"))
            .await
            .expect("written")
            .offset,
        Some(1)
    );
}

#[tokio::test]
async fn the_delivery_timeout_tells_what_was_sent_from_what_was_not() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let client = quick(&cluster)
        .request_timeout(Duration::from_secs(5))
        .set("delivery.timeout.ms", "5000")
        .connect()
        .await
        .expect("the mock answers");
    let producer = client
        .producer()
        .linger(Duration::ZERO)
        .max_in_flight(1)
        .set("delivery.timeout.ms", "5000")
        .build();
    let contradiction = producer.send(Record::to("t")).await;
    assert!(contradiction.is_ok(), "5 s is linger + request timeout");

    let client = quick(&cluster)
        .request_timeout(Duration::from_millis(300))
        .connect()
        .await
        .expect("the mock answers");
    let producer = client
        .producer()
        .linger(Duration::ZERO)
        .max_in_flight(1)
        .delivery_timeout(Duration::from_millis(300))
        .build();
    producer
        .send(Record::to("t").value("warm"))
        .await
        .expect("written");
    cluster.stop(1);
    let sent = producer
        .queue(Record::to("t").value("sent"))
        .await
        .expect("space");
    tokio::task::yield_now().await;
    let waiting = producer
        .queue(Record::to("t").value("waiting"))
        .await
        .expect("space");
    let error = sent.await.expect_err("nobody answers");
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert_eq!(error.kind(), ErrorKind::DeliveryTimeout, "{error}");
    let error = waiting.await.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::DeliveryTimeout, "{error}");
}

#[tokio::test]
async fn a_record_without_a_leader_expires_as_not_written() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, -1);
    let client = quick(&cluster)
        .request_timeout(Duration::from_millis(100))
        .connect()
        .await
        .expect("the mock answers");
    let producer = client
        .producer()
        .linger(Duration::ZERO)
        .delivery_timeout(Duration::from_millis(200))
        .build();
    let error = producer
        .send(Record::to("t").value("x"))
        .await
        .expect_err("no leader");
    assert_eq!(error.kind(), ErrorKind::DeliveryTimeout);
    assert_eq!(error.outcome(), Outcome::NotWritten);
}

#[tokio::test]
async fn a_topic_that_rested_is_still_followed_to_its_new_leader() {
    let cluster = Cluster::start(2).await;
    cluster.create("t", 1, 1);
    cluster.without_hints();
    let idle = Duration::from_millis(50);
    let client = quick(&cluster)
        .set("metadata.max.idle.ms", "50")
        .connect()
        .await
        .expect("the mock answers");
    let producer = client.producer().linger(Duration::ZERO).build();
    producer
        .send(Record::to("t").value("a"))
        .await
        .expect("written");
    // Long enough for the client to stop refreshing the topic.
    tokio::time::sleep(2 * idle).await;
    client.admin().list_topics().await.expect("listed");
    cluster.lead("t", 0, 2);
    let sent = tokio::time::timeout(
        Duration::from_secs(5),
        producer.send(Record::to("t").value("b")),
    );
    assert_eq!(sent.await.expect("found").expect("written").offset, Some(1));
}

#[tokio::test]
async fn a_stopped_leader_is_left_as_soon_as_another_one_leads() {
    let cluster = Cluster::start(3).await;
    cluster.create("t", 1, 1);
    let producer = producer(&cluster).await;
    let mut tickets = queue_numbers(&producer, 0..5).await;
    producer.flush().await.expect("written");
    cluster.stop(1);
    tickets.extend(queue_numbers(&producer, 5..30).await);
    // As if it had been replaced while it was stopped. The request timeout is 30 s.
    cluster.lead("t", 0, 2);
    let written = tokio::time::timeout(Duration::from_secs(8), offsets(tickets)).await;
    assert_eq!(written.expect("long before the request timeout").len(), 30);
    assert_eq!(cluster.values("t", 0), numbers(0..30));
}

#[tokio::test]
async fn queueing_waits_for_space_and_a_dropped_call_queues_nothing() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let client = connect(&cluster).await;
    let producer = client
        .producer()
        .buffer_memory(400)
        .batch_size(200)
        .max_block(Duration::from_secs(5))
        .linger(Duration::from_secs(3600))
        .delivery_timeout(Duration::from_secs(7200))
        .build();
    cluster.script(1, std::iter::repeat_n(Act::Hold, 4));
    let fits = [b'x'; 150];
    let first = producer
        .queue(Record::to("t").value(&fits))
        .await
        .expect("space");
    let second = producer
        .queue(Record::to("t").value(&fits))
        .await
        .expect("space");
    {
        let dropped = producer.queue(Record::to("t").value(b"dropped record, which needs space"));
        assert!(dropped.now_or_never().is_none(), "there is no space");
    }
    let third = async {
        // Waits although a linger of an hour would hold the batches back.
        producer
            .queue(Record::to("t").value(&fits))
            .await
            .expect("space")
            .await
    };
    let releases = async {
        loop {
            cluster.release();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = releases => {}
        settled = async {
            let third = tokio::spawn({
                let producer = producer.clone();
                async move { producer.queue(Record::to("t").value([b'y'; 150].to_vec())).await }
            });
            first.await.expect("written");
            second.await.expect("written");
            let third = third.await.expect("no panic").expect("space");
            producer.flush().await.expect("written");
            third.await.expect("written");
        } => settled,
    }
    drop(third);
    let values = cluster.values("t", 0);
    assert_eq!(values.len(), 3);
    assert!(!values.iter().any(|value| value.starts_with("dropped")));
}

#[tokio::test]
async fn no_space_within_max_block_is_an_error_that_wrote_nothing() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let client = connect(&cluster).await;
    let producer = client
        .producer()
        .buffer_memory(200)
        .batch_size(200)
        .max_block(Duration::from_millis(50))
        .build();
    cluster.script(1, [Act::Hold]);
    let _held = producer
        .queue(Record::to("t").value(&[0; 150]))
        .await
        .expect("space");
    let error = producer
        .queue(Record::to("t").value(&[0; 150]))
        .await
        .expect_err("no space");
    assert_eq!(
        (error.kind(), error.outcome()),
        (ErrorKind::BlockTimeout, Outcome::NotWritten)
    );
}

#[tokio::test]
async fn unknown_topics_partitions_and_large_records_are_refused_before_they_are_sent() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 2, 1);
    let client = connect(&cluster).await;
    let producer = client
        .producer()
        .max_block(Duration::from_millis(100))
        .build();
    let cases = [
        (Record::to("nope").value("x"), ErrorKind::UnknownTopic),
        (
            Record::to("t").partition(2).value("x"),
            ErrorKind::UnknownPartition,
        ),
        (
            Record::to("t").value(vec![0; 2 << 20]),
            ErrorKind::RecordTooLarge,
        ),
    ];
    for (record, kind) in cases {
        let error = producer.queue(record).await.expect_err("refused");
        assert_eq!(
            (error.kind(), error.outcome()),
            (kind, Outcome::NotWritten),
            "{error}"
        );
    }
    assert!(cluster.seen().is_empty());
}

#[tokio::test]
async fn a_topic_is_created_by_writing_to_it_where_the_broker_allows() {
    let cluster = Cluster::start(1).await;
    cluster.auto_create(3);
    let producer = producer(&cluster).await;
    let written = producer
        .send(Record::to("fresh").value("x"))
        .await
        .expect("created");
    assert_eq!(written.offset, Some(0));
}

#[tokio::test]
async fn batches_that_a_topic_finds_too_large_are_split() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    cluster.max_batch(400);
    let client = connect(&cluster).await;
    let producer = client.producer().linger(Duration::from_millis(1)).build();
    let mut tickets = queue_numbers(&producer, 0..40).await;
    let large = producer
        .queue(Record::to("t").partition(0).value(vec![b'x'; 500]))
        .await
        .expect("there is space");
    tickets.extend(queue_numbers(&producer, 40..45).await);
    let error = large.await.expect_err("larger than any batch may be");
    assert_eq!(error.kind(), ErrorKind::RecordTooLarge);
    assert_eq!(error.outcome(), Outcome::NotWritten);
    check_all_written(&cluster, tickets).await;
}

#[tokio::test]
async fn every_codec_and_every_old_version_comes_back_as_it_was_sent() {
    use Compression::{Gzip, Lz4, None, Snappy, Zstd};
    for (codec, produce, fetch) in [
        (None, 12, 12),
        (Gzip, 9, 12),
        (Snappy, 8, 11),
        (Lz4, 3, 4),
        (Zstd, 7, 10),
        (None, 3, 4),
    ] {
        let cluster = Cluster::start(1).await;
        cluster.create("t", 1, 1);
        cluster.cap(0, produce);
        cluster.cap(1, fetch);
        cluster.cap(2, if fetch == 4 { 1 } else { 7 });
        cluster.cap(3, if fetch == 4 { 1 } else { 12 });
        cluster.cap(18, if fetch == 4 { 0 } else { 4 });
        let client = connect(&cluster).await;
        let producer = client.producer().compression(codec).build();
        let tickets = queue_numbers(&producer, 0..50).await;
        check_all_written(&cluster, tickets).await;
        let mut records = client
            .read("t")
            .from(From::Earliest)
            .until_high_watermark()
            .records();
        let mut values = Vec::new();
        while let Some(record) = records.next().await {
            let record = record.expect("readable");
            values.push(String::from_utf8_lossy(record.value().expect("a value")).into_owned());
        }
        assert_eq!(
            values,
            numbers(0..50),
            "{codec:?} with Produce {produce}, Fetch {fetch}"
        );
    }
}

#[tokio::test]
async fn fire_and_forget_is_settled_when_it_is_on_the_wire() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let client = connect(&cluster).await;
    let producer = client.producer().acks(Acks::None).build();
    let written = producer
        .send(Record::to("t").value("x"))
        .await
        .expect("sent");
    assert_eq!(written.offset, None);
    producer.close().await.expect("sent");
    let mut reader = client.read("t").follow();
    let batch = reader.next().await.expect("a batch").expect("readable");
    assert_eq!(batch.records()[0].value(), Some(&b"x"[..]));
}

#[tokio::test]
async fn flush_and_close_tell_failures_that_no_ticket_waits_for() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let client = connect(&cluster).await;
    let producer = client.producer().linger(Duration::from_secs(60)).build();
    cluster.script(1, [Act::Refuse(ErrorCode::InvalidRecord), Act::Serve]);
    drop(
        producer
            .queue(Record::to("t").value("bad"))
            .await
            .expect("space"),
    );
    let error = producer.flush().await.expect_err("refused");
    assert_eq!(error.code(), Some(ErrorCode::InvalidRecord));
    drop(
        producer
            .queue(Record::to("t").value("good"))
            .await
            .expect("space"),
    );
    let other = producer.clone();
    producer.close().await.expect("written");
    assert_eq!(cluster.values("t", 0), ["good"]);
    let error = other.queue(Record::to("t")).await.expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_dropped_producer_still_sends_what_was_queued() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let client = connect(&cluster).await;
    let producer = client.producer().linger(Duration::from_secs(60)).build();
    let ticket = producer
        .queue(Record::to("t").value("x"))
        .await
        .expect("space");
    drop(producer);
    drop(client);
    assert_eq!(ticket.await.expect("written").offset, Some(0));
}

#[tokio::test]
async fn contradictory_settings_are_told_by_the_first_call() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let client = connect(&cluster).await;
    let wrong = [
        client
            .producer()
            .set("enable.idempotence", "true")
            .acks(Acks::Leader)
            .build(),
        client.producer().set("lingr.ms", "1").build(),
        client
            .producer()
            .delivery_timeout(Duration::from_secs(1))
            .build(),
    ];
    for producer in wrong {
        let error = producer
            .send(Record::to("t"))
            .await
            .expect_err("contradiction");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    }
}

#[test]
fn handles_and_their_futures_are_send() {
    fn is_send<T: Send>(_: &T) {}
    fn check(client: &corduroy_client::Client, producer: &Producer, ticket: Ticket) {
        is_send(client);
        is_send(producer);
        is_send(&producer.send(Record::to("t")));
        is_send(&producer.flush());
        is_send(&ticket);
        let mut reader = client.read("t").follow();
        is_send(&reader.next());
        is_send(&client.admin().list_topics());
        is_send(&std::future::IntoFuture::into_future(
            client.admin().create_topic("t"),
        ));
    }
    let _ = check;
}
