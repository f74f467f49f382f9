//! What a client reads off the wire when something is not as it thought: a batch too large, an old
//! epoch, another leader, an older producer; and that the answers of a connection keep their order.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::time::Duration;

use corduroy_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use corduroy_protocol::messages::metadata_request::MetadataRequestTopic;
use corduroy_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use corduroy_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use corduroy_protocol::messages::{
    BrokerId, FetchRequest, InitProducerIdRequest, MetadataRequest, OffsetForLeaderEpochRequest,
    ProduceRequest, ProducerId as WireProducerId, TopicName, TransactionalId,
};
use corduroy_protocol::{
    ErrorCode, Request, Response, StrBytes, decode_fetch_response, decode_response,
};
use corduroy_record::{Batch, ProducerEpoch};
use support::wire::{Wire, batch, values};
use support::{Cluster, alone, rounds, wait_until};

const ANSWER: Duration = Duration::from_secs(10);

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

fn produce_request(topic: &str, batch: &Batch, transactional_id: Option<&str>) -> Request {
    let data = PartitionProduceData::default()
        .with_index(0)
        .with_records(Some(batch.to_bytes()));
    let data = TopicProduceData::default()
        .with_name(name(topic))
        .with_partition_data(vec![data]);
    let id = transactional_id.map(|id| TransactionalId(StrBytes::from_string(id.to_owned())));
    let request = ProduceRequest::default()
        .with_transactional_id(id)
        .with_acks(-1)
        .with_timeout_ms(20_000)
        .with_topic_data(vec![data]);
    Request::Produce(request)
}

#[test]
fn a_batch_above_max_message_bytes_is_refused_and_nothing_is_appended() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let fits = batch(None, &["x".repeat(900)]);
    let larger = batch(None, &["x".repeat(901)]);
    let limit = fits.to_bytes().len();
    assert_eq!(larger.to_bytes().len(), limit + 1);
    cluster.create_topic("limited", 1, &[&format!("max.message.bytes={limit}")]);
    let mut wire = cluster.wire(1);
    let mut send = |batch: &Batch| {
        let produced = wire.produce(("limited", 0), -1, ANSWER, batch);
        produced.expect("answered")
    };
    let refused = send(&larger);
    assert_eq!(
        (refused.error, refused.base_offset),
        (ErrorCode::MessageTooLarge, -1)
    );
    let taken = send(&fits);
    assert_eq!((taken.error, taken.base_offset), (ErrorCode::None, 0));
    // The topic's setting is live.
    let raised = format!("max.message.bytes={}", limit + 1);
    cluster.must(&["topic", "alter", "limited", "-c", &raised]);
    let taken = send(&larger);
    assert_eq!((taken.error, taken.base_offset), (ErrorCode::None, 1));
    assert_eq!(
        cluster.wire(1).list_offset("limited", 0, -1).expect("told"),
        (ErrorCode::None, 2)
    );
}

/// OffsetForLeaderEpoch version 4: error, epoch, end offset.
fn epoch_end(wire: &mut Wire, topic: &str, current: i32, asked: i32) -> (ErrorCode, i32, i64) {
    let question = OffsetForLeaderPartition::default()
        .with_partition(0)
        .with_current_leader_epoch(current)
        .with_leader_epoch(asked);
    let question = OffsetForLeaderTopic::default()
        .with_topic(name(topic))
        .with_partitions(vec![question]);
    let request = OffsetForLeaderEpochRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![question]);
    let answer = wire.call(4, &Request::OffsetForLeaderEpoch(request));
    let Ok(Response::OffsetForLeaderEpoch(response)) = answer else {
        panic!("not an answer to OffsetForLeaderEpoch");
    };
    let found = &response.topics[0].partitions[0];
    let error = ErrorCode::from_code(found.error_code);
    (error, found.leader_epoch, found.end_offset)
}

/// A Fetch of one partition: `from`, the leader's epoch as the client knows it, and the epoch of
/// the last record that the client has.
fn fetch_request(topic: &str, from: i64, current: i32, last_fetched: i32) -> FetchRequest {
    let question = FetchPartition::default()
        .with_partition(0)
        .with_current_leader_epoch(current)
        .with_fetch_offset(from)
        .with_last_fetched_epoch(last_fetched)
        .with_log_start_offset(-1)
        .with_partition_max_bytes(1 << 20);
    let question = FetchTopic::default()
        .with_topic(name(topic))
        .with_partitions(vec![question]);
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(500)
        .with_min_bytes(1)
        .with_max_bytes(1 << 20)
        .with_session_epoch(-1)
        .with_topics(vec![question])
}

/// One cluster, one move of the leadership, and all that its two epochs mean to clients.
#[test]
fn epochs_are_checked_a_diverging_reader_is_told_where_and_others_whom_to_ask() {
    let _alone = alone();
    let cluster = Cluster::start(3);
    let topic = "epochs";
    cluster.create_topic(topic, 1, &[]);
    let first = cluster.leader(topic, 0);
    let send = |leader: i32, value: &str| {
        let sent = batch(None, &[value]);
        let produced = cluster
            .wire(leader)
            .produce((topic, 0), -1, ANSWER, &sent)
            .expect("answered");
        assert_eq!(produced.error, ErrorCode::None);
    };
    for value in ["a", "b", "c"] {
        send(first, value);
    }
    let old = cluster.partition(topic, 0).expect("known").epoch;
    let leader = first % 3 + 1;
    cluster.lead(topic, 0, leader);
    for value in ["d", "e"] {
        send(leader, value);
    }
    let epoch = cluster.partition(topic, 0).expect("known").epoch;
    assert!(epoch > old, "{epoch} after {old}");

    let mut wire = cluster.wire(leader);
    let (newer, none) = (epoch + 1, ErrorCode::None);
    let cases = [
        ((epoch, old), (none, old, 3)),
        ((epoch, epoch), (none, epoch, 5)),
        ((-1, epoch), (none, epoch, 5)),
        ((epoch, newer), (none, -1, -1)),
        ((old, old), (ErrorCode::FencedLeaderEpoch, -1, -1)),
        ((newer, old), (ErrorCode::UnknownLeaderEpoch, -1, -1)),
    ];
    for ((current, asked), want) in cases {
        let told = epoch_end(&mut wire, topic, current, asked);
        assert_eq!(told, want, "current {current}, asked {asked}");
    }
    let mut fetch = |from, current, last| {
        let answer = wire.fetch_as(12, fetch_request(topic, from, current, last));
        answer.expect("answered")
    };
    assert_eq!(fetch(0, old, -1).error, ErrorCode::FencedLeaderEpoch);
    assert_eq!(fetch(0, newer, -1).error, ErrorCode::UnknownLeaderEpoch);
    let agreed = fetch(3, epoch, old);
    assert_eq!((agreed.error, agreed.diverging_epoch), (none, None));
    assert_eq!(
        values(&agreed),
        [(3, "d".to_owned()), (4, "e".to_owned())],
        "what follows the last record of the old epoch"
    );
    let diverged = fetch(4, epoch, old);
    assert_eq!(
        (diverged.error, diverged.diverging_epoch),
        (none, Some((old, 3))),
        "the old epoch has no fourth record"
    );
    assert!(diverged.records.is_empty(), "{:?}", values(&diverged));

    // A follower names the leader, its epoch and its address (KIP-951).
    let follower = (1..=3).find(|id| *id != leader).expect("three nodes");
    let mut wire = cluster.wire(follower);
    let mut hint = None;
    wait_until("the follower knows who leads", || {
        let request = fetch_request(topic, 0, -1, -1);
        let answer = wire.fetch_as(12, request).expect("answered");
        assert_eq!(answer.error, ErrorCode::NotLeaderOrFollower);
        hint = answer.current_leader;
        hint.is_some_and(|(node, _)| node >= 0)
    });
    assert_eq!(hint, Some((leader, epoch)), "in Fetch");
    let request = produce_request(topic, &batch(None, &["x"]), None);
    let Ok(Response::Produce(response)) = wire.call(10, &request) else {
        panic!("not an answer to Produce");
    };
    let refused = &response.responses[0].partition_responses[0];
    assert_eq!(
        ErrorCode::from_code(refused.error_code),
        ErrorCode::NotLeaderOrFollower
    );
    let named = &refused.current_leader;
    assert_eq!((named.leader_id.0, named.leader_epoch), (leader, epoch));
    let endpoints: Vec<(i32, String)> = response
        .node_endpoints
        .iter()
        .map(|node| (node.node_id.0, format!("{}:{}", node.host, node.port)))
        .collect();
    let address = cluster.nodes[usize::try_from(leader - 1).expect("an id")].kafka;
    assert_eq!(endpoints, [(leader, address.to_string())]);
}

/// Were requests served one after another, the fetch would wait for its whole minute; were answers
/// sent as they come, the later ones would be first.
#[test]
fn requests_in_flight_are_served_together_and_answered_in_their_order() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let topic = "ordered";
    cluster.create_topic(topic, 1, &[]);
    let mut wire = cluster.wire(1);
    let waiting = fetch_request(topic, 0, -1, -1).with_max_wait_ms(60_000);
    let metadata = MetadataRequest::default().with_topics(Some(Vec::new()));
    let requests = [
        (12, Request::Fetch(waiting)),
        (9, Request::Metadata(metadata)),
        (9, produce_request(topic, &batch(None, &["wakes"]), None)),
    ];
    for (version, request) in &requests {
        wire.send(*version, request).expect("sent");
    }
    let (id, frame) = wire.receive().expect("the fetch, first");
    assert_eq!(id, 1);
    let (_, fetched) = decode_fetch_response(12, frame).expect("an answer to Fetch");
    let found = values(&fetched.topics[0].partitions[0]);
    assert_eq!(found, [(0, "wakes".to_owned())]);
    let (id, frame) = wire.receive().expect("Metadata, second");
    assert_eq!(id, 2);
    let (_, answer) = decode_response(requests[1].1.key(), 9, frame).expect("an answer");
    assert!(matches!(answer, Response::Metadata(_)));
    let (id, frame) = wire.receive().expect("Produce, third");
    assert_eq!(id, 3);
    let (_, answer) = decode_response(requests[2].1.key(), 9, frame).expect("an answer");
    assert!(matches!(answer, Response::Produce(_)));
}

/// The error and the offset of an answer to Produce.
fn produced(frame: bytes::Bytes, request: &Request) -> (ErrorCode, i64) {
    let (_, answer) = decode_response(request.key(), 9, frame).expect("an answer");
    let Response::Produce(response) = answer else {
        panic!("not an answer to Produce");
    };
    let partition = &response.responses[0].partition_responses[0];
    (
        ErrorCode::from_code(partition.error_code),
        partition.base_offset,
    )
}

/// While the followers stand still nothing is committed: the first is in flight when the second
/// comes. It may come to nothing (a leader that misses its followers says so to both):
/// then another round, with another producer.
#[test]
fn a_batch_sent_again_while_it_is_in_flight_shares_the_first_ones_fate() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = "attached";
    cluster.create_topic(topic, 1, &[]);
    let mut shared = None;
    for _ in 0..rounds() {
        cluster.wait_in_sync(topic, 0, 3);
        let leader = cluster.leader(topic, 0);
        let mut wire = cluster.wire(leader);
        let (id, epoch) = wire.producer_id().expect("an id");
        let end = wire.list_offset(topic, 0, -1).expect("answered").1;
        let sent = produce_request(topic, &batch(Some((id, epoch, 0)), &["once"]), None);
        let followers: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        for id in &followers {
            cluster.node(*id).pause();
        }
        for _ in 0..2 {
            wire.send(9, &sent).expect("sent");
        }
        // A third request, answered at once: both have been taken in by now.
        let look = fetch_request(topic, 0, -1, -1).with_max_wait_ms(0);
        let before = cluster.wire(leader).fetch_as(12, look);
        for id in &followers {
            cluster.node(*id).resume();
        }
        let before = before.expect("answered");
        let answers = [(); 2].map(|()| produced(wire.receive().expect("an answer").1, &sent));
        if answers[0].0 == ErrorCode::None {
            assert_eq!(answers, [(ErrorCode::None, end); 2], "one append");
            assert_eq!(before.high_watermark, end, "nothing was committed yet");
            shared = Some(end);
            break;
        }
        assert!(
            answers.iter().all(|(error, _)| error.is_retriable()),
            "{answers:?}"
        );
    }
    let end = shared.expect("a round in which the leader kept its followers");
    let mut latest = -1;
    wait_until("the leader says where the log ends", || {
        let mut wire = cluster.wire(cluster.leader(topic, 0));
        let (error, offset) = wire.list_offset(topic, 0, -1).expect("answered");
        latest = offset;
        error == ErrorCode::None
    });
    assert_eq!(latest, end + 1, "once in the log");
}

#[test]
fn a_producer_of_an_older_epoch_and_a_transactional_one_are_refused_by_name() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let topic = "fenced";
    cluster.create_topic(topic, 1, &[]);
    let mut wire = cluster.wire(1);
    let (id, epoch) = wire.producer_id().expect("an id");
    let send = |wire: &mut Wire, epoch: i16, sequence: i32, value: &str| {
        let sent = batch(Some((id, ProducerEpoch::new(epoch), sequence)), &[value]);
        let produced = wire.produce((topic, 0), -1, ANSWER, &sent);
        produced.expect("answered").error
    };
    assert_eq!(send(&mut wire, epoch.get(), 0, "old"), ErrorCode::None);
    // KIP-360: whoever names its identity gets the next epoch of it.
    let init = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(i32::MAX);
    let bump = init
        .clone()
        .with_producer_id(WireProducerId(id.get()))
        .with_producer_epoch(epoch.get());
    let Ok(Response::InitProducerId(bumped)) = wire.call(4, &Request::InitProducerId(bump)) else {
        panic!("not an answer to InitProducerId");
    };
    assert_eq!(
        (
            bumped.error_code,
            bumped.producer_id.0,
            bumped.producer_epoch
        ),
        (0, id.get(), epoch.get() + 1)
    );
    assert_eq!(
        send(&mut wire, bumped.producer_epoch, 0, "new"),
        ErrorCode::None
    );
    assert_eq!(
        send(&mut wire, epoch.get(), 1, "late"),
        ErrorCode::InvalidProducerEpoch
    );
    assert_eq!(wire.list_offset(topic, 0, -1).expect("told").1, 2);

    let transactional = init
        .with_transactional_id(Some(TransactionalId(StrBytes::from_static_str("billing"))))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(WireProducerId(-1))
        .with_producer_epoch(-1);
    let answer = wire.call(4, &Request::InitProducerId(transactional));
    let Ok(Response::InitProducerId(refused)) = answer else {
        panic!("not an answer to InitProducerId");
    };
    assert_eq!(
        (
            ErrorCode::from_code(refused.error_code),
            refused.producer_id.0
        ),
        (ErrorCode::TransactionalIdAuthorizationFailed, -1)
    );
    let request = produce_request(topic, &batch(None, &["x"]), Some("billing"));
    let Ok(Response::Produce(response)) = wire.call(9, &request) else {
        panic!("not an answer to Produce");
    };
    let refused = &response.responses[0].partition_responses[0];
    assert_eq!(
        (
            ErrorCode::from_code(refused.error_code),
            refused.error_message.as_deref()
        ),
        (
            ErrorCode::TransactionalIdAuthorizationFailed,
            Some("transactions are not served yet")
        )
    );
}

/// The brokers of Metadata, as this connection is told of them.
fn brokers(wire: &mut Wire) -> Vec<String> {
    let topic = MetadataRequestTopic::default().with_name(Some(name("any")));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(false);
    let Ok(Response::Metadata(response)) = wire.call(9, &Request::Metadata(request)) else {
        panic!("not an answer to Metadata");
    };
    let brokers = response.brokers.iter();
    brokers.map(|b| format!("{}:{}", b.host, b.port)).collect()
}

/// The newcomer's worst trap (`advertised.listeners`): unset, each client is told the address that
/// it came by; set, everybody is told that one.
#[test]
fn clients_are_told_the_advertised_address_or_the_one_that_they_used() {
    let _alone = alone();
    let mut cluster = Cluster::plan(1, &[]);
    let port = cluster.nodes[0].kafka.port();
    cluster.nodes[0].kafka = ([0, 0, 0, 0], port).into();
    cluster.nodes[0].start();
    cluster.nodes[0].wait_ready();
    for host in ["127.0.0.1", "127.0.0.2"] {
        let address = format!("{host}:{port}");
        let mut wire = Wire::connect(address.parse().expect("an address"));
        assert_eq!(brokers(&mut wire), [address]);
    }
    cluster.nodes[0].terminate();
    cluster.nodes[0].variables.push((
        "CORDUROY_ADVERTISED_LISTENERS",
        "broker.example:19092".into(),
    ));
    cluster.nodes[0].start();
    cluster.nodes[0].wait_ready();
    for host in ["127.0.0.1", "127.0.0.2"] {
        let address = format!("{host}:{port}");
        let mut wire = Wire::connect(address.parse().expect("an address"));
        assert_eq!(brokers(&mut wire), ["broker.example:19092"]);
    }
}
