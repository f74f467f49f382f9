//! rskafka: create, produce in every codec, fetch, offsets, delete.

use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use corduroy_rust_clients::{CODECS, PARTITIONS, Planned, plan};
use rskafka::client::ClientBuilder;
use rskafka::client::partition::{Compression, OffsetAt, UnknownTopicHandling};
use rskafka::record::Record;

/// Records in one produce call.
const CHUNK_RECORDS: usize = 50;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let brokers = std::env::args().nth(1).context("BROKERS is missing")?;
    let client = ClientBuilder::new(brokers.split(',').map(str::to_owned).collect())
        .build()
        .await?;
    let controller = client.controller_client()?;
    for codec in CODECS {
        let topic = format!("rskafka-{codec}");
        controller
            .create_topic(&topic, PARTITIONS, 3, 30_000)
            .await?;
        let sent = plan("rskafka", codec, Utc::now().timestamp_millis() - 60_000);
        for number in 0..PARTITIONS {
            let wanted: Vec<_> = sent.iter().filter(|one| one.partition == number).collect();
            let partition = client
                .partition_client(&topic, number, UnknownTopicHandling::Retry)
                .await?;
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

            let mut next = 0;
            while next < end {
                let (read, _) = partition.fetch_records(next, 1..1_000_000, 1_000).await?;
                ensure!(!read.is_empty(), "nothing to read at {next} of {end}");
                // A fetch may begin before the offset asked for: batches come whole.
                let first = next;
                for found in read.into_iter().filter(|found| found.offset >= first) {
                    ensure!(
                        found.offset == next,
                        "offset {} where {next} is due",
                        found.offset
                    );
                    let due = record(wanted[next as usize]);
                    ensure!(
                        found.record == due,
                        "{next}: {:?} is not {due:?}",
                        found.record
                    );
                    next += 1;
                }
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
