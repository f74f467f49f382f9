//! A topic that is deleted and created again under its old name, with records in it each time
//! (DESIGN 4.5: a recreated topic shares nothing with its ancestor).

use std::time::Duration;

use corduroy_client::{Client, ErrorKind, From, Record};

use crate::ledger::Place;
use crate::random::Random;
use crate::workload::{PATIENT, Workload, decode, encode};

/// Its name.
pub const FLEETING: &str = "fleeting";
/// Records of one life, at most.
const RECORDS_MAX: u64 = 12;
/// How long one read of it is waited for: its node may be gone for longer.
const READ_WAIT_MAX: Duration = Duration::from_secs(15);
/// Before a call that failed is made again.
const AGAIN: Duration = Duration::from_millis(200);

/// The place of a record in one life of the topic.
fn place(life: u64, partition: i32, offset: i64) -> Place {
    (format!("{FLEETING}#{life}"), partition, offset)
}

/// Creates the topic, writes, reads, deletes it, and begins anew, until told to end.
pub async fn run(workload: Workload, mut random: Random) {
    let client = workload.connect(PATIENT).await;
    let mut life = 0;
    loop {
        life += 1;
        let partitions = 1 + random.below(2) as i32;
        if !create(&workload, &client, partitions).await {
            return;
        }
        if life > 1 {
            workload.ledger().recreated();
        }
        let producer = workload.producer(&client, PATIENT);
        let mut sent = Vec::new();
        for _ in 0..1 + random.below(RECORDS_MAX) {
            let value = workload.ledger().open_in_life(life);
            let partition = random.below(partitions as u64) as i32;
            let bytes = encode(value, random.below(200) as usize);
            let record = Record::to(FLEETING).partition(partition).value(&bytes);
            match producer.queue(record).await {
                Ok(ticket) => sent.push((value, partition, ticket)),
                Err(error) => workload.settle(value, &error),
            }
        }
        for (value, partition, ticket) in sent {
            match ticket.await {
                Ok(meta) => {
                    let place = meta.offset.map(|offset| place(life, partition, offset));
                    workload.ledger().acked_in_life(value, place);
                }
                Err(error) => workload.settle(value, &error),
            }
        }
        for partition in 0..partitions {
            let read = read(&workload, &client, life, partition);
            // One that does not come to its end has seen nothing wrong.
            let _late = tokio::time::timeout(READ_WAIT_MAX, read).await;
        }
        workload.pause(random.between(1, 800)).await;
        if !delete(&workload, &client).await {
            return;
        }
        // Often at once: the old one may not be gone everywhere.
        if random.one_in(2) {
            workload.pause(random.between(1, 1_500)).await;
        }
    }
}

/// Whether it is there; not if clients are to end.
async fn create(workload: &Workload, client: &Client, partitions: i32) -> bool {
    while !workload.is_quiet() {
        let created = client
            .admin()
            .create_topic(FLEETING)
            .partitions(partitions)
            .replication(3)
            .config("segment.bytes", "8192")
            // A call whose answer was lost has done it: only this client creates it.
            .ensure();
        match created.await {
            Ok(_) => return true,
            Err(error) => tracing::debug!(%error, "the fleeting topic is not there yet"),
        }
        workload.pause(AGAIN.as_millis() as u64).await;
    }
    false
}

/// Whether it is gone; not if clients are to end.
async fn delete(workload: &Workload, client: &Client) -> bool {
    while !workload.is_quiet() {
        match client.admin().delete_topic(FLEETING).await {
            Ok(()) => return true,
            Err(error) if error.kind() == ErrorKind::UnknownTopic => return true,
            Err(error) => tracing::debug!(%error, "the fleeting topic is not gone yet"),
        }
        workload.pause(AGAIN.as_millis() as u64).await;
    }
    false
}

async fn read(workload: &Workload, client: &Client, life: u64, partition: i32) {
    let mut reader = client
        .read(FLEETING)
        .partition(partition)
        .from(From::Earliest)
        .until_high_watermark();
    while let Some(Ok(batch)) = reader.next().await {
        for record in batch.records() {
            let place = place(life, partition, record.offset());
            match record.value().and_then(decode) {
                Some(value) => workload.ledger().read_in_life(life, place, value),
                None => {
                    let bytes = record.value().unwrap_or_default();
                    workload.ledger().read_garbage(&place, bytes);
                }
            }
        }
    }
}
