//! Admin calls, and connecting.

use std::time::Duration;

use corduroy_client::{
    Client, ConfigResource, ConfigSource, ErrorCode, ErrorKind, Isolation, OffsetSpec, Record,
};

use crate::broker::{Act, Cluster};
use crate::{connect, quick};

#[tokio::test]
async fn topics_are_created_listed_described_and_deleted() {
    let cluster = Cluster::start(2).await;
    let admin = connect(&cluster).await.admin();
    let created = admin
        .create_topic("b")
        .partitions(3)
        .replication(2)
        .await
        .expect("created");
    assert!(created.created);
    admin
        .create_topic("a")
        .validate_only()
        .await
        .expect("valid");
    assert_eq!(cluster.topics(), ["b"]);
    let error = admin.create_topic("b").await.expect_err("exists");
    assert_eq!(
        error.kind(),
        ErrorKind::Broker(ErrorCode::TopicAlreadyExists)
    );
    assert!(error.to_string().contains("says the mock"), "{error}");
    let ensured = admin.create_topic("b").ensure().await.expect("is there");
    assert_eq!((ensured.created, ensured.partitions), (false, Some(3)));

    cluster.create("a", 1, 2);
    let listed = admin.list_topics().await.expect("listed");
    let names: Vec<&str> = listed.iter().map(|topic| topic.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let topic = admin
        .describe_topic("a")
        .offsets()
        .await
        .expect("described");
    let partition = &topic.partitions[0];
    assert_eq!((partition.leader, partition.leader_epoch), (Some(2), 1));
    assert_eq!(
        partition.offsets.map(|offsets| offsets.high_watermark),
        Some(0)
    );

    admin.delete_topic("a").await.expect("deleted");
    assert_eq!(cluster.topics(), ["b"]);
    let error = admin.delete_topic("a").await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::UnknownTopic);
    let error = admin.describe_topic("a").await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::UnknownTopic);
}

#[tokio::test]
async fn a_topic_that_was_created_too_late_for_its_answer_is_created() {
    let cluster = Cluster::start(1).await;
    let admin = connect(&cluster).await.admin();
    // Created, but without leaders in time: the next try finds it there.
    cluster.script(1, [Act::AppendThenRefuse(ErrorCode::RequestTimedOut)]);
    let created = admin.create_topic("t").partitions(3).await.expect("ours");
    assert_eq!((created.created, created.partitions), (true, Some(3)));

    // Somebody else's is told by what nobody here asked for.
    let exists = ErrorKind::Broker(ErrorCode::TopicAlreadyExists);
    cluster.script(1, [Act::AppendThenRefuse(ErrorCode::RequestTimedOut)]);
    let error = admin.create_topic("u").replication(3).await;
    let error = error.expect_err("the mock gives one replica");
    assert_eq!(error.kind(), exists);
    // One try, one plain answer.
    let error = admin.create_topic("t").partitions(3).await;
    assert_eq!(error.expect_err("exists").kind(), exists);

    // Settings tell as well: one that is missing, the same one, and one that nobody here asked for.
    let late = [Act::AppendThenRefuse(ErrorCode::RequestTimedOut)];
    let short = |name| admin.create_topic(name).config("retention.ms", "5");
    cluster.script(1, late.clone());
    let error = short("v").await.expect_err("the mock sets nothing");
    assert_eq!(error.kind(), exists);
    admin
        .alter_configs(ConfigResource::Topic("w".to_owned()))
        .set("retention.ms", "5")
        .await
        .expect("the settings of all topics of the mock");
    cluster.script(1, late.clone());
    assert!(short("w").await.expect("ours").created);
    cluster.script(1, late);
    let error = admin.create_topic("x").await.expect_err("another's");
    assert_eq!(error.kind(), exists);
}

#[tokio::test]
async fn a_moved_controller_is_found() {
    let cluster = Cluster::start(3).await;
    let admin = connect(&cluster).await.admin();
    cluster.controller(3);
    admin.create_topic("t").await.expect("created");
    let described = admin.describe_cluster().await.expect("described");
    assert_eq!(described.controller, Some(3));
    assert_eq!(
        described
            .brokers
            .iter()
            .map(|broker| broker.id)
            .collect::<Vec<_>>(),
        [1, 2, 3]
    );
}

#[tokio::test]
async fn configurations_are_changed_and_described_and_topics_grow() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 2, 1);
    let client = connect(&cluster).await;
    let admin = client.admin();
    for resource in [
        ConfigResource::Topic("t".to_owned()),
        ConfigResource::Broker(1),
        ConfigResource::Cluster,
    ] {
        let change = admin.alter_configs(resource.clone());
        change
            .set("retention.ms", "5")
            .set("segment.bytes", "6")
            .await
            .expect("changed");
        admin
            .alter_configs(resource.clone())
            .delete("segment.bytes")
            .await
            .expect("changed");
        let entries = admin.describe_configs(&resource).await.expect("described");
        let found: Vec<(&str, Option<&str>)> = entries
            .iter()
            .map(|entry| (entry.name.as_str(), entry.value.as_deref()))
            .collect();
        assert_eq!(found, [("retention.ms", Some("5"))]);
        assert_eq!(entries[0].source, ConfigSource::Topic);
    }
    let producer = client.producer().build();
    producer
        .send(Record::to("t").partition(1).value("x"))
        .await
        .expect("written");
    admin.create_partitions("t", 5).await.expect("grown");
    assert_eq!(
        admin
            .describe_topic("t")
            .await
            .expect("described")
            .partitions
            .len(),
        5
    );
    // The producer learns of it when a record asks for it.
    producer
        .send(Record::to("t").partition(4).value("x"))
        .await
        .expect("written");
}

#[tokio::test]
async fn offsets_are_listed_by_time() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 2, 1);
    let client = connect(&cluster).await;
    let producer = client.producer().build();
    for time in [100, 200] {
        let record = Record::to("t").partition(1).value("x").timestamp(time);
        producer.send(record).await.expect("written");
    }
    let listed = client
        .admin()
        .list_offsets(
            "t",
            &[],
            OffsetSpec::Timestamp(150),
            Isolation::ReadUncommitted,
        )
        .await
        .expect("listed");
    assert_eq!(listed[&0].offset, None);
    assert_eq!(
        (listed[&1].offset, listed[&1].timestamp),
        (Some(1), Some(200))
    );
}

#[tokio::test]
async fn nobody_there_is_told_at_once_and_one_of_many_is_enough() {
    let cluster = Cluster::start(1).await;
    let dead = "127.0.0.1:1";
    let error = Client::connect(dead).await.err().expect("nobody listens");
    assert_eq!(error.kind(), ErrorKind::Disconnected);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    let both = format!("{dead},{}", cluster.bootstrap());
    Client::connect(&both).await.expect("one of them answers");
}

#[tokio::test]
async fn a_stopped_broker_does_not_keep_a_client_from_the_others() {
    let cluster = Cluster::start(2).await;
    cluster.create("t", 1, 2);
    cluster.stop(1);
    let began = tokio::time::Instant::now();
    let client = connect(&cluster).await;
    client
        .producer()
        .build()
        .send(Record::to("t").value("x"))
        .await
        .expect("written");
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[tokio::test]
async fn properties_of_a_standard_file_are_obeyed() {
    let cluster = Cluster::start(1).await;
    cluster.create("t", 1, 1);
    let text = format!(
        "# a comment\nbootstrap.servers={}\nclient.id=me\nacks=1\nlinger.ms=0\n\
         security.protocol=PLAINTEXT\n",
        cluster.bootstrap()
    );
    let client = Client::from_properties(&text).await.expect("connects");
    client
        .producer()
        .build()
        .send(Record::to("t").value("x"))
        .await
        .expect("written");
    // acks=1 gives up idempotence.
    assert_eq!(cluster.seen()[0].sequence, -1);
    let error = quick(&cluster)
        .set("security.protocol", "SSL")
        .connect()
        .await;
    assert_eq!(
        error.err().map(|error| error.kind()),
        Some(ErrorKind::Config)
    );
}
