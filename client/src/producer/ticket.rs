//! The promise of an acknowledgement: one shared completion per batch, one small ticket per record.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::Error;
use crate::sync::Lock;

/// Where an acknowledged record lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordMetadata {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its partition.
    pub partition: i32,
    /// Its offset. `None` where nobody tells: with `acks=0`, and for a batch that the broker knew
    /// already without remembering where.
    pub offset: Option<i64>,
    /// Its time in milliseconds since the Unix epoch: the producer's, or the broker's where the
    /// topic says `message.timestamp.type=LogAppendTime`.
    pub timestamp: i64,
}

/// What became of consecutive records of a batch.
#[derive(Clone, Debug)]
pub(crate) enum Resolution {
    /// Acknowledged. The offset is that of the first record of the range.
    Written {
        base_offset: Option<i64>,
        log_append_time: Option<i64>,
    },
    Failed(Error),
}

/// The shared end of a batch.
///
/// Law: every index is resolved exactly once; a range resolved twice keeps its first resolution.
pub(crate) struct Completion {
    topic: Arc<str>,
    partition: i32,
    state: Lock<State>,
}

struct State {
    /// Records in the batch, once it is closed.
    records: Option<u32>,
    resolved: Vec<(Range<u32>, Resolution)>,
    wakers: Vec<Option<Waker>>,
    /// Counts the times that `wakers` was emptied: a [`Slot`] of an earlier list is void.
    generation: u32,
}

/// The place of a waker in the list of its generation.
#[derive(Clone, Copy)]
struct Slot {
    generation: u32,
    place: usize,
}

impl State {
    fn is_done(&self) -> bool {
        let resolved: u32 = self
            .resolved
            .iter()
            .map(|(range, _)| range.len() as u32)
            .sum();
        self.records.is_some_and(|records| resolved >= records)
    }

    fn waker(&mut self, slot: Option<Slot>) -> Option<&mut Option<Waker>> {
        let slot = slot.filter(|slot| slot.generation == self.generation)?;
        self.wakers.get_mut(slot.place)
    }

    /// Remembers whom to wake, in the place that `slot` names.
    fn wait(&mut self, slot: &mut Option<Slot>, waker: &Waker) {
        match self.waker(*slot) {
            Some(Some(known)) if known.will_wake(waker) => {}
            Some(place) => *place = Some(waker.clone()),
            None => {
                *slot = Some(Slot {
                    generation: self.generation,
                    place: self.wakers.len(),
                });
                self.wakers.push(Some(waker.clone()));
            }
        }
    }
}

impl Completion {
    pub(crate) fn new(topic: Arc<str>, partition: i32) -> Arc<Completion> {
        Arc::new(Completion {
            topic,
            partition,
            state: Lock::new(State {
                records: None,
                resolved: Vec::new(),
                wakers: Vec::new(),
                generation: 0,
            }),
        })
    }

    pub(crate) fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    pub(crate) fn partition(&self) -> i32 {
        self.partition
    }

    /// Says how many records the batch has, now that no more come.
    pub(crate) fn close(&self, records: u32) {
        self.state.lock().records = Some(records);
    }

    /// Resolves the records of `range` and wakes who waits.
    pub(crate) fn resolve(&self, range: Range<u32>, resolution: Resolution) {
        let wakers = {
            let mut state = self.state.lock();
            let taken = |(old, _): &(Range<u32>, _)| old.start < range.end && range.start < old.end;
            if state.resolved.iter().any(taken) {
                return;
            }
            state.resolved.push((range, resolution));
            state.generation += 1;
            std::mem::take(&mut state.wakers)
        };
        for waker in wakers.into_iter().flatten() {
            waker.wake();
        }
    }

    /// What became of the record at `index`: its distance from the start of its range, and the
    /// range's resolution.
    fn poll_record(
        &self,
        index: u32,
        slot: &mut Option<Slot>,
        waker: &Waker,
    ) -> Poll<(i64, Resolution)> {
        let mut state = self.state.lock();
        let hit = state
            .resolved
            .iter()
            .find(|(range, _)| range.contains(&index));
        if let Some((range, resolution)) = hit {
            return Poll::Ready((i64::from(index - range.start), resolution.clone()));
        }
        state.wait(slot, waker);
        Poll::Pending
    }

    /// Waits until every record is resolved.
    ///
    /// # Errors
    /// The first failure among them.
    pub(crate) async fn finished(&self) -> Result<(), Error> {
        let mut slot = None;
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            if !state.is_done() {
                state.wait(&mut slot, cx.waker());
                return Poll::Pending;
            }
            let failed = state
                .resolved
                .iter()
                .find_map(|(_, resolution)| match resolution {
                    Resolution::Failed(error) => Some(error.clone()),
                    Resolution::Written { .. } => None,
                });
            Poll::Ready(failed.map_or(Ok(()), Err))
        })
        .await
    }
}

/// The acknowledgement of one queued record, to be awaited.
///
/// The record is sent whether or not the ticket is awaited; dropping it only means that nobody
/// hears. Awaiting is cancel-safe: it may be dropped and the ticket awaited again.
#[must_use = "a ticket that nobody awaits hides a failure; `flush` reports it as well"]
pub struct Ticket {
    completion: Arc<Completion>,
    index: u32,
    timestamp: i64,
    slot: Option<Slot>,
}

impl Ticket {
    pub(crate) fn new(completion: Arc<Completion>, index: u32, timestamp: i64) -> Ticket {
        Ticket {
            completion,
            index,
            timestamp,
            slot: None,
        }
    }

    /// The partition that was chosen.
    pub fn partition(&self) -> i32 {
        self.completion.partition
    }
}

impl Future for Ticket {
    type Output = Result<RecordMetadata, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.get_mut();
        let (delta, resolution) = std::task::ready!(ticket.completion.poll_record(
            ticket.index,
            &mut ticket.slot,
            cx.waker()
        ));
        Poll::Ready(match resolution {
            Resolution::Failed(error) => Err(error.of_record(delta)),
            Resolution::Written {
                base_offset,
                log_append_time,
            } => Ok(RecordMetadata {
                topic: ticket.completion.topic.clone(),
                partition: ticket.completion.partition,
                offset: base_offset.map(|base| base + delta),
                timestamp: log_append_time.unwrap_or(ticket.timestamp),
            }),
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.slot.is_some()
            && let Some(place) = self.completion.state.lock().waker(self.slot)
        {
            *place = None;
        }
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("topic", &self.completion.topic)
            .field("partition", &self.completion.partition)
            .field("index", &self.index)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::executor::block_on;
    use futures::future::join_all;

    use super::*;
    use crate::error::ErrorKind;

    fn ticket(completion: &Arc<Completion>, index: u32) -> Ticket {
        Ticket::new(completion.clone(), index, 1000 + i64::from(index))
    }

    fn written(base_offset: i64) -> Resolution {
        Resolution::Written {
            base_offset: Some(base_offset),
            log_append_time: None,
        }
    }

    #[test]
    fn each_record_of_a_batch_gets_its_own_offset_and_time() {
        let completion = Completion::new("t".into(), 3);
        completion.close(3);
        let waiting = join_all((0..3).map(|index| ticket(&completion, index)));
        let (found, ()) = block_on(futures::future::join(waiting, async {
            completion.resolve(0..3, written(40));
        }));
        for (index, metadata) in found.into_iter().enumerate() {
            let metadata = metadata.expect("written");
            assert_eq!(metadata.partition, 3);
            assert_eq!(metadata.offset, Some(40 + index as i64));
            assert_eq!(metadata.timestamp, 1000 + index as i64);
        }
    }

    #[test]
    fn the_halves_of_a_split_batch_end_on_their_own() {
        let completion = Completion::new("t".into(), 0);
        completion.close(4);
        let mut first = ticket(&completion, 1);
        let mut second = ticket(&completion, 2);
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        assert!(completion.finished().now_or_never().is_none());
        completion.resolve(0..2, written(7));
        // Polled again after the list of wakers was emptied, both keep places of their own.
        assert!((&mut second).now_or_never().is_none());
        assert_eq!(block_on(first).expect("written").offset, Some(8));
        let error = Error::new(ErrorKind::RecordTooLarge, "too large");
        completion.resolve(2..4, Resolution::Failed(error));
        let error = block_on(second).expect_err("failed");
        assert_eq!(error.kind(), ErrorKind::RecordTooLarge);
        assert!(block_on(completion.finished()).is_err());
    }

    #[test]
    fn the_first_resolution_stays() {
        let completion = Completion::new("t".into(), 0);
        completion.close(1);
        completion.resolve(0..1, written(5));
        completion.resolve(0..1, Resolution::Failed(Error::closed("the producer")));
        assert_eq!(
            block_on(ticket(&completion, 0)).expect("written").offset,
            Some(5)
        );
    }

    #[test]
    fn a_dropped_ticket_takes_its_waker_along() {
        let completion = Completion::new("t".into(), 0);
        let mut dropped = ticket(&completion, 0);
        assert!((&mut dropped).now_or_never().is_none());
        drop(dropped);
        assert!(completion.state.lock().wakers.iter().all(Option::is_none));
    }
}
