//! Memory for clients: requests pay before their bytes are read, answers before theirs are.

use std::sync::Arc;

use corduroy_protocol::FRAME_BYTES_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a frame that are paid for before any of them has arrived, from a purse of their own:
/// small requests wait for no large one.
pub const FRAME_CREDIT_BYTES: usize = 64 * 1024;

/// Bytes that the beginnings of all requests of one shard hold, up to [`FRAME_CREDIT_BYTES`] each.
pub const CREDIT_MEMORY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes that requests of one shard hold beyond their beginnings.
pub const REQUEST_MEMORY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Bytes of fetch answers that one shard's partitions have read and clients have not yet taken.
/// Beyond it an answer holds one batch (KIP-74: it must get further).
pub const ANSWER_MEMORY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The unit in which memory is counted.
const UNIT_BYTES: usize = 1024;

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

fn purse(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes.div_ceil(UNIT_BYTES)))
}

/// A shard's memory for requests.
///
/// Law: a frame that has begun can always end. Frames that hold a part of the memory and wait for
/// the rest of theirs would otherwise wait for one another for ever; so one of them at a time may
/// take its rest from a reserve that holds the largest frame there is.
#[derive(Clone)]
pub struct MemoryBudget {
    credit: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// One permit: [`FRAME_BYTES_MAX`] bytes for one frame.
    reserve: Arc<Semaphore>,
}

/// Memory that one request holds; given back on drop.
pub struct MemoryPermit {
    paid_bytes: usize,
    _credit: OwnedSemaphorePermit,
    large: Option<OwnedSemaphorePermit>,
    reserve: Option<OwnedSemaphorePermit>,
}

impl MemoryPermit {
    /// Bytes that may be read.
    pub fn paid_bytes(&self) -> usize {
        self.paid_bytes
    }
}

impl MemoryBudget {
    /// A budget of `bytes` beyond the beginnings of frames, and the reserve.
    pub fn new(bytes: usize) -> Self {
        Self {
            credit: purse(CREDIT_MEMORY_BYTES_MAX),
            large: purse(bytes),
            reserve: Arc::new(Semaphore::new(1)),
        }
    }

    /// Pays for the beginning of a frame of `length` bytes, waiting until others give back. `None`
    /// only when the shard is closing.
    pub async fn begin(&self, length: usize) -> Option<MemoryPermit> {
        let paid_bytes = length.min(FRAME_CREDIT_BYTES);
        let credit = self.credit.clone();
        Some(MemoryPermit {
            paid_bytes,
            _credit: credit.acquire_many_owned(units(paid_bytes)).await.ok()?,
            large: None,
            reserve: None,
        })
    }

    /// Pays for more of a frame of `length` bytes: as much again as it holds, or all of its rest
    /// from the reserve, whichever is there first. `None` only when the shard is closing.
    pub async fn extend(&self, permit: &mut MemoryPermit, length: usize) -> Option<()> {
        if permit.paid_bytes >= length {
            return Some(());
        }
        assert!(
            length <= FRAME_BYTES_MAX,
            "law: the reserve holds the largest frame"
        );
        let more = (length - permit.paid_bytes).min(permit.paid_bytes);
        tokio::select! {
            biased;
            large = self.large.clone().acquire_many_owned(units(more)) => {
                let large = large.ok()?;
                match &mut permit.large {
                    Some(held) => held.merge(large),
                    None => permit.large = Some(large),
                }
                permit.paid_bytes += more;
            }
            reserve = self.reserve.clone().acquire_owned() => {
                permit.reserve = Some(reserve.ok()?);
                permit.paid_bytes = length;
            }
        }
        Some(())
    }
}

/// A shard's memory for what fetches have read of its partitions.
#[derive(Clone)]
pub struct AnswerBudget(Arc<Semaphore>);

/// Memory that one answer holds; given back on drop, which is when it has been written.
pub struct AnswerPermit(OwnedSemaphorePermit);

impl AnswerBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self(purse(bytes))
    }

    /// Takes up to `bytes` of what is there now, and waits for nothing.
    pub fn take_up_to(&self, bytes: usize) -> Option<AnswerPermit> {
        loop {
            let there = u32::try_from(self.0.available_permits()).unwrap_or(u32::MAX);
            let wanted = units(bytes).min(there);
            // Another shard's thread gives back; only this one takes, so the second look succeeds.
            if let Ok(permit) = self.0.clone().try_acquire_many_owned(wanted) {
                return Some(AnswerPermit(permit));
            }
            if self.0.is_closed() {
                return None;
            }
        }
    }
}

impl AnswerPermit {
    /// Bytes that it stands for.
    pub fn bytes(&self) -> usize {
        self.0.num_permits() * UNIT_BYTES
    }

    /// Gives back what goes beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let rest = self
            .0
            .num_permits()
            .saturating_sub(bytes.div_ceil(UNIT_BYTES));
        drop(self.0.split(rest));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const MIB: usize = 1024 * 1024;

    /// Pays for a frame until it is whole or has to wait.
    fn pay(budget: &MemoryBudget, permit: &mut MemoryPermit, length: usize) -> bool {
        while permit.paid_bytes() < length {
            if budget.extend(permit, length).now_or_never().is_none() {
                return false;
            }
        }
        true
    }

    #[test]
    fn frames_that_hold_everything_together_still_end_one_by_one() {
        let budget = MemoryBudget::new(4 * MIB);
        let begin = |length| budget.begin(length).now_or_never().flatten();
        let mut frames: Vec<MemoryPermit> = (0..5).map(|_| begin(3 * MIB).expect("room")).collect();
        let mut whole = 0;
        while !frames.is_empty() {
            let before = frames.len();
            let paid: Vec<bool> = frames
                .iter_mut()
                .map(|frame| pay(&budget, frame, 3 * MIB))
                .collect();
            let mut ended = paid.iter();
            frames.retain(|_| !ended.next().copied().unwrap_or(false));
            whole += before - frames.len();
            assert!(
                frames.len() < before,
                "{whole} ended, the others wait for ever"
            );
            assert!(
                begin(100).is_some(),
                "a small request waits for none of them"
            );
        }
        assert_eq!(whole, 5);
        assert_eq!(budget.large.available_permits(), 4 * MIB / UNIT_BYTES);
        assert_eq!(budget.reserve.available_permits(), 1);
    }

    #[test]
    fn answers_take_what_is_there_and_give_back_what_they_do_not_use() {
        let budget = AnswerBudget::new(3 * MIB);
        let mut first = budget.take_up_to(2 * MIB).expect("open");
        assert_eq!(first.bytes(), 2 * MIB);
        let second = budget.take_up_to(2 * MIB).expect("open");
        assert_eq!(second.bytes(), MIB);
        assert_eq!(budget.take_up_to(MIB).expect("open").bytes(), 0);
        first.shrink_to(MIB / 2);
        assert_eq!(
            budget.take_up_to(9 * MIB).expect("open").bytes(),
            3 * MIB / 2
        );
        drop((first, second));
        assert_eq!(budget.take_up_to(9 * MIB).expect("open").bytes(), 3 * MIB);
    }
}
