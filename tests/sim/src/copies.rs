//! In the end every replica is read as it lies on its disk: it must hold what was committed, byte by
//! byte, and its index by time must find what a look at every batch finds (I17).

use std::collections::BTreeSet;

use corduroy_raft::Replica;
use corduroy_record::{LogIndex, Offset};
use corduroy_storage::{Entry, Payload};
use futures::FutureExt;

use crate::history::GroupHistory;
use crate::trace::mix_bytes;
use crate::world::World;

/// Payload bytes of one read.
const READ_BYTES_MAX: usize = 4 << 20;
/// Times that are asked for, of each replica, beside those that nothing reaches.
const TIMES_MAX: usize = 24;

/// A law and how it is broken.
pub type Broken = (&'static str, String);

/// Whether all replicas could be read to their ends. One that has met damage says so, and is asked
/// again when it has got what it lacks.
pub fn compare(world: &mut World) -> Result<bool, Broken> {
    let mut is_whole = true;
    for host in world.staff() {
        for replica in world.node(host).node().replicas() {
            let Some(history) = world.checker.history().group(replica.group()) else {
                continue;
            };
            let place = format!("{} on node {host}", replica.group());
            match read(&replica, history, &place)? {
                Some(times) => is_whole &= ask_by_time(&replica, &times, &place)?,
                None => is_whole = false,
            }
        }
    }
    Ok(is_whole)
}

/// Index and largest time of each batch; `None`: not readable just now.
fn read(
    replica: &Replica,
    history: &GroupHistory,
    place: &str,
) -> Result<Option<Vec<(LogIndex, i64)>>, Broken> {
    let state = replica.log().state();
    let mut next = state.log_start.index;
    let end = state.last.map_or(next, |(_, last)| last.next());
    let mut times = Vec::new();
    while next < end {
        let read = replica.log().read(next, end, READ_BYTES_MAX);
        let Some(Ok(entries)) = read.now_or_never() else {
            return Ok(None);
        };
        if entries.is_empty() {
            return Ok(None);
        }
        for entry in &entries {
            let index = entry.head.index;
            if let Some(what) = difference(entry, history) {
                let what = format!("{index} of {place} {what}");
                return Err(("copies_are_whole", what));
            }
            if let Payload::Batch(batch) = &entry.payload {
                times.push((index, batch.header().max_timestamp));
            }
            next = index.next();
        }
    }
    Ok(Some(times))
}

fn difference(entry: &Entry, history: &GroupHistory) -> Option<String> {
    let known = history.get(entry.head.index)?;
    let content = match &entry.payload {
        Payload::Batch(batch) => {
            if let Err(error) = batch.check_crc() {
                return Some(format!("is not what was written: {error}"));
            }
            u64::from(batch.header().crc)
        }
        Payload::Internal(bytes) | Payload::Membership(bytes) => mix_bytes(0, bytes),
        Payload::Blank => 0,
    };
    let found = (entry.head.term, entry.head.base_offset, content);
    let expected = (known.term, known.base_offset, known.content);
    (found != expected).then(|| format!("is {found:?}, and {expected:?} was committed"))
}

/// Asks for the first batch that reaches a time, for times below, at and above those that there are.
fn ask_by_time(replica: &Replica, times: &[(LogIndex, i64)], place: &str) -> Result<bool, Broken> {
    let all: BTreeSet<i64> = times.iter().map(|(_, time)| *time).collect();
    let step = (all.len() / TIMES_MAX).max(1);
    let chosen = all.iter().step_by(step);
    let asked: BTreeSet<i64> = chosen
        .flat_map(|time| [time - 1, *time, time + 1])
        .collect();
    for time in asked {
        let search =
            replica
                .log()
                .find_timestamp_from(LogIndex::new(0), time, Offset::new(i64::MAX));
        let Some(Ok(found)) = search.now_or_never() else {
            return Ok(false);
        };
        let found = found.map(|(index, _)| index);
        let reaching = times.iter().find(|(_, highest)| *highest >= time);
        let expected = reaching.map(|(index, _)| *index);
        if found != expected {
            let what = format!("{place} finds {found:?} for the time {time}, not {expected:?}");
            return Err(("time_index_answers", what));
        }
    }
    Ok(true)
}
