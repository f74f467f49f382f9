//! The log after everything was healed: as a fresh client reads it, and as every replica holds it.
//!
//! Consumers read from leaders, so a replica is read by letting its node lead. That it led from
//! before the read until after it is asked of the nodes: else the read has failed and is tried
//! again.

use std::time::Duration;

use anyhow::{Context, bail};
use corduroy_client::{Client, ErrorKind, From, Isolation};
use futures::stream::{self, StreamExt};
use tokio::time::Instant;

use super::keys::LiveTopic;
use super::{Shared, take_record, take_told};
use crate::cluster::Cluster;
use crate::history::{Answer, Call, FinalSource, Foreign, Key, Outcome, PartitionRead, WorkerId};

/// Partitions that are read at the same time.
const AT_ONCE: usize = 6;
/// Tries for each partition and replica.
const TRIES: u32 = 8;
/// After so long nothing is tried again: a cluster that is broken for good would take for ever.
const ALL_MAX: Duration = Duration::from_secs(120);
/// Between tries.
const AGAIN: Duration = Duration::from_millis(300);
/// The longest a read of one partition may stand still.
const STALL_MAX: Duration = Duration::from_secs(20);
/// The worker under which final reads stand in the history.
const WORKER: WorkerId = WorkerId(u32::MAX);

/// Reads every partition of `topics` as a client does, then on each node of `nodes`.
///
/// # Errors
/// What could not be read, a sentence each; the history holds the failed calls.
pub async fn run(shared: &Shared, cluster: &Cluster, topics: &[LiveTopic]) -> Vec<String> {
    let keys: Vec<Key> = topics.iter().flat_map(LiveTopic::keys).collect();
    let sources = std::iter::once(FinalSource::Client)
        .chain(cluster.ids().into_iter().map(FinalSource::Replica));
    let mut missing = Vec::new();
    let deadline = shared.env.now() + ALL_MAX;
    // One node after the other: two that want to lead the same partition would only quarrel.
    for source in sources {
        let hosted = hosted(cluster, &keys, source).await;
        let failed: Vec<String> = stream::iter(hosted)
            .map(|key| read_one(shared, cluster, key, source, deadline))
            .buffer_unordered(AT_ONCE)
            .filter_map(async |failed| failed)
            .collect()
            .await;
        missing.extend(failed);
    }
    missing
}

/// The partitions that a source can be asked for: a node those that it has a replica of. Of whom
/// nobody says who has it, everybody is asked.
async fn hosted<'k>(cluster: &Cluster, keys: &'k [Key], source: FinalSource) -> Vec<&'k Key> {
    let FinalSource::Replica(id) = source else {
        return keys.iter().collect();
    };
    let partitions = cluster.partitions().await;
    let has = |key: &&Key| {
        let state = partitions.get(&(key.topic.to_string(), key.partition));
        state.is_none_or(|state| state.replicas.is_empty() || state.replicas.contains(&id))
    };
    keys.iter().filter(has).collect()
}

async fn read_one(
    shared: &Shared,
    cluster: &Cluster,
    key: &Key,
    source: FinalSource,
    deadline: Instant,
) -> Option<String> {
    let mut last = String::new();
    for attempt in 0..TRIES {
        if attempt > 0 {
            if shared.env.now() > deadline {
                break;
            }
            shared.env.sleep(AGAIN).await;
        }
        let process = shared.recorder.process();
        let call = Call::FinalRead {
            key: key.clone(),
            source,
        };
        let id = shared.recorder.invoke(WORKER, process, call);
        match read(shared, cluster, key, source).await {
            Ok(read) => {
                let answer = Answer::Read(vec![read]);
                shared.recorder.complete(id, Outcome::Ok(answer));
                return None;
            }
            Err(error) => {
                last = format!("{error:#}");
                let outcome = Outcome::Fail {
                    error: last.clone(),
                };
                shared.recorder.complete(id, outcome);
            }
        }
    }
    let from = match source {
        FinalSource::Client => "by a client".to_owned(),
        FinalSource::Replica(id) => format!("on node {id}"),
    };
    Some(format!("{key} could not be read {from}: {last}"))
}

async fn read(
    shared: &Shared,
    cluster: &Cluster,
    key: &Key,
    source: FinalSource,
) -> anyhow::Result<PartitionRead> {
    let FinalSource::Replica(id) = source else {
        return whole(shared, key).await;
    };
    if leads(cluster, key)
        .await
        .is_none_or(|(leader, _)| leader != id)
    {
        cluster.lead(&key.topic, key.partition, id).await?;
    }
    let before = leads(cluster, key).await;
    if before.is_none_or(|(leader, _)| leader != id) {
        bail!("node {id} does not lead it: {before:?}");
    }
    let read = whole(shared, key).await?;
    let after = leads(cluster, key).await;
    if after != before {
        bail!("its leader changed meanwhile: from {before:?} to {after:?}");
    }
    Ok(read)
}

/// The leader and its epoch.
async fn leads(cluster: &Cluster, key: &Key) -> Option<(u32, i64)> {
    let partitions = cluster.partitions().await;
    let state = partitions.get(&(key.topic.to_string(), key.partition))?;
    Some((state.leader?, state.leader_epoch))
}

/// Reads a partition from its start to its high watermark, with a new client.
///
/// # Errors
/// The client's, and an end that does not come.
pub async fn whole(shared: &Shared, key: &Key) -> anyhow::Result<PartitionRead> {
    let client = shared.client("jepsen-final").await?;
    whole_by(&client, key).await
}

/// Reads a partition from its start to the high watermark that its leader names now.
///
/// # Errors
/// The client's, and an end that does not come.
pub async fn whole_by(client: &Client, key: &Key) -> anyhow::Result<PartitionRead> {
    let partition = i32::try_from(key.partition)?;
    let mut reader = client
        .read(&*key.topic)
        .partition(partition)
        .from(From::Earliest)
        .isolation(Isolation::ReadCommitted)
        .until_high_watermark();
    let started = tokio::time::timeout(STALL_MAX, reader.started())
        .await
        .context("the reader does not start")?;
    let start = started
        .iter()
        .find(|(number, _)| *number == partition)
        .map_or(0, |(_, offset)| *offset);
    let mut read = PartitionRead::at(key.clone(), start);
    read.log_start = Some(start);
    loop {
        let next = tokio::time::timeout(STALL_MAX, reader.next())
            .await
            .with_context(|| format!("nothing comes after offset {}", read.next))?;
        match next {
            Some(Ok(batch)) => {
                for record in batch.records() {
                    take_record(
                        &mut read,
                        record.offset(),
                        record.leader_epoch(),
                        record.value(),
                    );
                }
                // It was asked for within the call.
                take_told(&mut read, &batch.told(), None);
                read.next = batch.next_offset();
            }
            // The node served bytes that nobody wrote. That is a finding, not a read that failed.
            Some(Err(error)) if error.kind() == ErrorKind::Corrupt => {
                read.foreign.push(Foreign {
                    offset: read.next,
                    reason: error.to_string(),
                    bytes: String::new(),
                });
                return Ok(read);
            }
            Some(Err(error)) => return Err(error.into()),
            None => return Ok(read),
        }
    }
}
