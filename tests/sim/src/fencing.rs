//! Raw batches of one producer id in two epochs, the older one after the newer: no client library
//! sends them. Once the newer epoch is in the log, nothing of the older may get in. Their timestamps
//! lie anywhere around now, so that an index by time has something to get wrong.

use bytes::Bytes;
use corduroy_protocol::ErrorCode;
use corduroy_record::{BatchBuilder, BuilderOptions, ProducerEpoch, ProducerId};

use crate::ledger::Fate;
use crate::network::Host;
use crate::random::Random;
use crate::raw;
use crate::workload::{KEPT, KEPT_PARTITIONS, Workload, encode};

/// Batches of one producer id before the next one.
const BATCHES: u64 = 16;
/// How far from now a record's time lies at most, in milliseconds, either way.
const TIME_SPREAD_MILLIS: u64 = 600_000;

/// Sends until told to end.
pub async fn run(workload: Workload, mut random: Random) {
    while !workload.is_quiet() {
        if one_producer(&workload, &mut random).await.is_none() {
            workload.pause(300).await;
        }
    }
}

/// `None`: it is not known what the log holds of this producer, or it cannot be written to.
async fn one_producer(workload: &Workload, random: &mut Random) -> Option<()> {
    let (env, hosts) = workload.way();
    let hosts: Vec<Host> = hosts.to_vec();
    let (id, base) = raw::producer_id(env, &hosts).await?;
    let partition = random.below(KEPT_PARTITIONS as u64) as i32;
    // Of the older and the newer epoch: the next sequence.
    let mut next = [0; 2];
    let change = random.between(2, BATCHES / 2);
    for number in 0..BATCHES {
        if workload.is_quiet() {
            return Some(());
        }
        let is_newer = number >= change && (next[1] == 0 || random.one_in(2));
        let which = usize::from(is_newer);
        let value = workload.ledger().open();
        let epoch = base + i16::from(is_newer);
        let at = workload.unix_millis() + random.below(2 * TIME_SPREAD_MILLIS) as i64
            - TIME_SPREAD_MILLIS as i64;
        let batch = batch((id, epoch, next[which]), at, &encode(value, 20))?;
        match raw::produce(env, &hosts, (KEPT, partition), &batch).await {
            Some((ErrorCode::None, offset)) => {
                next[which] += 1;
                let place = (offset >= 0).then(|| (KEPT.to_owned(), partition, offset));
                workload.ledger().acked(value, place);
            }
            Some((ErrorCode::InvalidProducerEpoch, _)) => {
                workload.ledger().settled(value, Fate::Failed);
                workload.ledger().fenced();
            }
            answer => {
                tracing::debug!(value, ?answer, "a raw batch was not acknowledged");
                workload.ledger().settled(value, Fate::Unknown);
                return None;
            }
        }
        workload.pause(random.between(1, 60)).await;
    }
    Some(())
}

fn batch((id, epoch, sequence): (i64, i16, i32), at: i64, value: &[u8]) -> Option<Bytes> {
    let options = BuilderOptions {
        producer_id: ProducerId::new(id),
        producer_epoch: ProducerEpoch::new(epoch),
        base_sequence: sequence,
        ..BuilderOptions::default()
    };
    let mut builder = BatchBuilder::new(options);
    builder.push(at, None, Some(value), &[]).ok()?;
    Some(builder.finish().to_bytes())
}
