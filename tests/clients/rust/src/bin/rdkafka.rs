//! rust-rdkafka: create, idempotent produce in every codec, consume by assign, offsets, delete; the
//! word list.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use chrono::Utc;
use corduroy_rust_clients::words::{self, Received, Verb};
use corduroy_rust_clients::{CODECS, PARTITIONS, Planned, plan};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (brokers, verb) = words::arguments()?;
    match verb {
        Verb::Smoke => smoke(&brokers).await,
        Verb::Produce { topic, codec } => produce_words(&brokers, &topic, &codec).await,
        Verb::Read { topic, prefix } => read_words(&brokers, &topic, &prefix),
    }
}

async fn create(admin: &AdminClient<DefaultClientContext>, topic: &str) -> anyhow::Result<()> {
    let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(3))
        .set("min.insync.replicas", "2");
    for outcome in admin.create_topics([&new], &options()).await? {
        outcome.map_err(|(name, error)| anyhow::anyhow!("create {name}: {error}"))?;
    }
    Ok(())
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)))
}

async fn smoke(brokers: &str) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> = config(brokers).create()?;
    for codec in CODECS {
        let topic = format!("rdkafka-{codec}");
        create(&admin, &topic).await?;
        let sent = plan("rdkafka", codec, Utc::now().timestamp_millis() - 60_000);
        produce(brokers, &topic, codec, &sent).await?;
        consume(brokers, &topic, &sent)?;
        for outcome in admin.delete_topics(&[&topic], &options()).await? {
            outcome.map_err(|(name, error)| anyhow::anyhow!("delete {name}: {error}"))?;
        }
        println!("rust-rdkafka {codec}: {} records", sent.len());
    }
    Ok(())
}

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

fn producer_of(brokers: &str, codec: &str) -> anyhow::Result<FutureProducer> {
    let mut config = config(brokers);
    config.set("enable.idempotence", "true");
    config.set("acks", "all");
    config.set("linger.ms", "5");
    config.set("compression.type", codec);
    // As Java's does it; librdkafka's own default is another.
    config.set("partitioner", "murmur2_random");
    config.set("queue.buffering.max.messages", "1000000");
    Ok(config.create()?)
}

fn consumer_of(brokers: &str) -> anyhow::Result<BaseConsumer> {
    let mut config = config(brokers);
    config.set("group.id", "never-used");
    config.set("enable.auto.commit", "false");
    config.set("check.crcs", "true");
    Ok(config.create()?)
}

fn assign(consumer: &BaseConsumer, topic: &str, partitions: i32) -> anyhow::Result<()> {
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    Ok(consumer.assign(&assignment)?)
}

async fn produce(brokers: &str, topic: &str, codec: &str, sent: &[Planned]) -> anyhow::Result<()> {
    let producer = producer_of(brokers, codec)?;
    let mut acks = Vec::new();
    for one in sent {
        let mut headers = OwnedHeaders::new();
        for (key, value) in &one.headers {
            headers = headers.insert(Header {
                key,
                value: Some(value),
            });
        }
        let mut record = FutureRecord::to(topic)
            .partition(one.partition)
            .timestamp(one.timestamp_ms)
            .headers(headers);
        if let Some(key) = &one.key {
            record = record.key(key);
        }
        if let Some(value) = &one.value {
            record = record.payload(value);
        }
        match producer.send_result(record) {
            Ok(ack) => acks.push((one.partition, ack)),
            Err((error, _)) => bail!("send: {error}"),
        }
    }
    producer.flush(Duration::from_secs(30))?;
    let mut next = [0; PARTITIONS as usize];
    for (partition, ack) in acks {
        let acked = ack.await?.map_err(|(error, _)| error)?;
        let due = &mut next[partition as usize];
        ensure!(
            acked.offset == *due,
            "partition {partition}: acked at {}, not {due}",
            acked.offset
        );
        *due += 1;
    }
    Ok(())
}

fn consume(brokers: &str, topic: &str, sent: &[Planned]) -> anyhow::Result<()> {
    let consumer = consumer_of(brokers)?;
    assign(&consumer, topic, PARTITIONS)?;
    let mut wanted: Vec<_> = (0..PARTITIONS)
        .map(|number| {
            sent.iter()
                .filter(move |one| one.partition == number)
                .enumerate()
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut count = 0;
    while count < sent.len() {
        ensure!(
            Instant::now() < deadline,
            "only {count} of {} records in 30 s",
            sent.len()
        );
        let Some(message) = consumer.poll(Duration::from_secs(1)) else {
            continue;
        };
        let message = message?;
        let (place, due) = wanted[message.partition() as usize]
            .next()
            .context("one too many")?;
        let headers = message.headers().map_or(Vec::new(), |headers| {
            headers
                .iter()
                .map(|one| (one.key.to_owned(), one.value.unwrap_or_default().to_vec()))
                .collect()
        });
        let found = Planned {
            partition: message.partition(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers,
            timestamp_ms: message.timestamp().to_millis().context("a timestamp")?,
        };
        ensure!(
            message.offset() == place as i64,
            "{} where {place} is due",
            message.offset()
        );
        ensure!(found == *due, "{place}: {found:?} is not {due:?}");
        count += 1;
    }
    for partition in 0..PARTITIONS {
        let ends = consumer.fetch_watermarks(topic, partition, Duration::from_secs(10))?;
        ensure!(
            ends == (0, (sent.len() / PARTITIONS as usize) as i64),
            "watermarks {ends:?}"
        );
    }
    Ok(())
}

async fn produce_words(brokers: &str, topic: &str, codec: &str) -> anyhow::Result<()> {
    let admin: AdminClient<DefaultClientContext> = config(brokers).create()?;
    create(&admin, topic).await?;
    let producer = producer_of(brokers, codec)?;
    let lines = words::input()?;
    let mut acks = Vec::new();
    for (key, value) in &lines {
        match producer.send_result(FutureRecord::to(topic).key(key).payload(value)) {
            Ok(ack) => acks.push(ack),
            Err((error, _)) => bail!("send: {error}"),
        }
    }
    producer.flush(Duration::from_secs(60))?;
    for ack in acks {
        ack.await?.map_err(|(error, _)| error)?;
    }
    Ok(())
}

fn read_words(brokers: &str, topic: &str, prefix: &str) -> anyhow::Result<()> {
    let consumer = consumer_of(brokers)?;
    let timeout = Duration::from_secs(10);
    let metadata = consumer.fetch_metadata(Some(topic), timeout)?;
    let described = metadata
        .topics()
        .first()
        .context("the topic is not described")?;
    let partitions = described.partitions().len() as i32;
    let mut due = 0;
    for partition in 0..partitions {
        due += consumer.fetch_watermarks(topic, partition, timeout)?.1;
    }
    assign(&consumer, topic, partitions)?;
    let mut received = Received::new(partitions);
    let deadline = Instant::now() + Duration::from_secs(60);
    while received.count() < due {
        ensure!(
            Instant::now() < deadline,
            "only {} of {due} records in 60 s",
            received.count()
        );
        if let Some(message) = consumer.poll(Duration::from_secs(1)) {
            let message = message?;
            let key = message.key().context("a record without a key")?;
            let value = message.payload().context("a record without a value")?;
            received.add(message.partition(), message.offset(), (key, value))?;
        }
    }
    received.write(prefix)
}
