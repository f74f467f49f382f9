//! rskafka: create, produce in every codec, fetch, offsets, delete; the word list.

use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use corduroy_rust_clients::words::{self, Received, Verb};
use corduroy_rust_clients::{CODECS, PARTITIONS, Planned, plan};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;

/// Records in one produce call.
const CHUNK_RECORDS: usize = 50;

/// The same for the word list, whose records are short.
const CHUNK_LINES: usize = 2_000;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (brokers, verb) = words::arguments()?;
    let client = ClientBuilder::new(brokers.split(',').map(str::to_owned).collect())
        .build()
        .await?;
    match verb {
        Verb::Smoke => smoke(&client).await,
        Verb::Produce { topic, codec } => produce_words(&client, &topic, &codec).await,
        Verb::Read { topic, prefix } => read_words(&client, &topic, &prefix).await,
    }
}

async fn smoke(client: &Client) -> anyhow::Result<()> {
    let controller = client.controller_client()?;
    for codec in CODECS {
        let topic = format!("rskafka-{codec}");
        controller
            .create_topic(&topic, PARTITIONS, 3, 30_000)
            .await?;
        let sent = plan("rskafka", codec, Utc::now().timestamp_millis() - 60_000);
        for number in 0..PARTITIONS {
            let wanted: Vec<_> = sent.iter().filter(|one| one.partition == number).collect();
            let partition = partition_of(client, &topic, number).await?;
            let mut offsets = Vec::new();
            for chunk in wanted.chunks(CHUNK_RECORDS) {
                let records = chunk.iter().map(|one| record(one)).collect();
                offsets.extend(partition.produce(records, compression(codec)).await?);
            }
            ensure!(
                offsets.iter().copied().eq(0..wanted.len() as i64),
                "acked at {offsets:?}"
            );
            let end = partition.get_offset(OffsetAt::Latest).await?;
            ensure!(end == wanted.len() as i64, "the end is {end}");
            ensure!(
                partition.get_offset(OffsetAt::Earliest).await? == 0,
                "the start is not 0"
            );

            for (place, found) in read_all(&partition).await?.into_iter().enumerate() {
                let due = record(wanted[place]);
                ensure!(found == due, "{place}: {found:?} is not {due:?}");
            }
        }
        controller.delete_topic(&topic, 30_000).await?;
        tokio::time::timeout(Duration::from_secs(10), async {
            while client
                .list_topics()
                .await?
                .iter()
                .any(|found| found.name == topic)
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        })
        .await
        .context("the deleted topic is still listed")??;
        println!("rskafka {codec}: {} records", sent.len());
    }
    Ok(())
}

async fn partition_of(
    client: &Client,
    topic: &str,
    number: i32,
) -> anyhow::Result<PartitionClient> {
    let retry = UnknownTopicHandling::Retry;
    Ok(client.partition_client(topic, number, retry).await?)
}

/// The records of a partition from its start to its end of now, at offsets without a hole.
async fn read_all(partition: &PartitionClient) -> anyhow::Result<Vec<Record>> {
    let end = partition.get_offset(OffsetAt::Latest).await?;
    let mut read = Vec::new();
    while (read.len() as i64) < end {
        let first = read.len() as i64;
        let (batch, _) = partition.fetch_records(first, 1..1_000_000, 1_000).await?;
        ensure!(!batch.is_empty(), "nothing to read at {first} of {end}");
        // A fetch may begin before the offset asked for: batches come whole.
        for found in batch.into_iter().filter(|found| found.offset >= first) {
            let due = read.len() as i64;
            ensure!(
                found.offset == due,
                "offset {} where {due} is due",
                found.offset
            );
            read.push(found.record);
        }
    }
    Ok(read)
}

/// rskafka has no partitioner: each key is sent to where others would send it.
async fn produce_words(client: &Client, topic: &str, codec: &str) -> anyhow::Result<()> {
    let controller = client.controller_client()?;
    controller
        .create_topic(topic, PARTITIONS, 3, 30_000)
        .await?;
    let mut records = vec![Vec::new(); PARTITIONS as usize];
    let now = Utc::now();
    for (key, value) in words::input()? {
        let partition = words::partition_of(&key, PARTITIONS);
        records[partition as usize].push(Record {
            key: Some(key),
            value: Some(value),
            headers: Default::default(),
            timestamp: now,
        });
    }
    for (number, records) in records.iter().enumerate() {
        let partition = partition_of(client, topic, number as i32).await?;
        for chunk in records.chunks(CHUNK_LINES) {
            partition
                .produce(chunk.to_vec(), compression(codec))
                .await?;
        }
    }
    Ok(())
}

async fn read_words(client: &Client, topic: &str, prefix: &str) -> anyhow::Result<()> {
    let topics = client.list_topics().await?;
    let topic = topics.iter().find(|found| found.name == topic);
    let topic = topic.context("the topic is not listed")?;
    let mut received = Received::new(topic.partitions.len() as i32);
    for number in topic.partitions.iter().copied() {
        let partition = partition_of(client, &topic.name, number).await?;
        for (offset, record) in read_all(&partition).await?.iter().enumerate() {
            let key = record.key.as_deref().context("a record without a key")?;
            let value = record
                .value
                .as_deref()
                .context("a record without a value")?;
            received.add(number, offset as i64, (key, value))?;
        }
    }
    received.write(prefix)
}

fn record(one: &Planned) -> Record {
    Record {
        key: one.key.clone(),
        value: one.value.clone(),
        headers: one.headers.iter().cloned().collect(),
        timestamp: DateTime::from_timestamp_millis(one.timestamp_ms).expect("a time of this age"),
    }
}

fn compression(codec: &str) -> Compression {
    match codec {
        "gzip" => Compression::Gzip,
        "snappy" => Compression::Snappy,
        "lz4" => Compression::Lz4,
        "zstd" => Compression::Zstd,
        _ => Compression::NoCompression,
    }
}
