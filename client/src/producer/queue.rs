//! One partition's records on their way: gathering, in flight, waiting to be sent again. Pure: it
//! neither reads a clock nor does I/O.
//!
//! ```text
//! append ─> drafts ─(full, lingered, flushed)─> sent: in flight ─> settled
//!                                                  ^      │
//!                                                  └ waiting
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use corduroy_record::{Batch, BatchBuilder, BatchError, BuilderOptions, Compression};
use tokio::time::Instant;

use super::batch::{Content, Draft, Parcel, Settled, Slot, SlotState, halves};
use super::seal::{Identity, Stamp};
use super::ticket::{Completion, Resolution};
use super::verdict::{Answer, Facts, Pause, Renewal, Verdict, judge};
use crate::error::{Error, ErrorKind, Outcome};

/// What a queue obeys.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) idempotent: bool,
    /// Batches of one partition that may be in flight. At most five with idempotence: brokers
    /// remember that many of each producer.
    pub(crate) window: usize,
    pub(crate) linger: Duration,
    pub(crate) batch_bytes: usize,
    pub(crate) compression: Compression,
    pub(crate) delivery_timeout: Duration,
    pub(crate) retries: u32,
}

/// Why a queue has nothing to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Nothing is there, or nothing may go now.
    Nothing,
    /// Records wait for a producer id.
    NeedsIdentity,
}

/// The leader that was asked, as the metadata named it.
pub(crate) type LeaderSeen = Option<(i32, i32)>;

struct Paused {
    until: Instant,
    /// A newer leader ends the pause.
    leader: Option<LeaderSeen>,
}

/// Law: `sent` is in the order of its stamps; with idempotence at most `window` of it are in
/// flight; what is in `drafts` comes after what is in `sent`.
#[derive(Default)]
pub(crate) struct PartitionQueue {
    drafts: VecDeque<Draft>,
    sent: VecDeque<Slot>,
    next_order: u64,
    identity: Option<Identity>,
    next_sequence: i32,
    /// The order has to begin anew once nothing is in flight.
    reorder: Option<Renewal>,
    paused: Option<Paused>,
    /// Pauses in a row without a success in between.
    pub(crate) failures: u32,
    /// Whether the accumulator has it in line.
    pub(super) listed: bool,
}

impl PartitionQueue {
    /// Whether there is nothing on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.drafts.is_empty() && self.sent.is_empty()
    }

    /// Batches that wait for their turn.
    pub(crate) fn waiting_batches(&self) -> usize {
        self.drafts.len()
    }

    /// Whether a record of `size_bytes` would close the open batch and begin another.
    pub(crate) fn would_overflow(&self, rules: &Rules, size_bytes: usize) -> bool {
        self.drafts.back().is_some_and(|last| {
            !last.closed && last.builder.size_estimate() + size_bytes > rules.batch_bytes
        })
    }

    /// Whether no batch is open for more records.
    pub(crate) fn is_full(&self) -> bool {
        self.drafts.back().is_none_or(|last| last.closed)
    }

    /// Adds a record of at most `size_bytes` with `push`, which writes it into the builder.
    /// Returns its batch and place, and whether the sender should look: a batch began or is full.
    ///
    /// # Errors
    /// Those of the builder; the queue is as before, but a batch may have been closed.
    pub(crate) fn append(
        &mut self,
        rules: &Rules,
        size_bytes: usize,
        new_batch: impl FnOnce() -> (Arc<Completion>, Instant),
        push: impl FnOnce(&mut BatchBuilder) -> Result<(), BatchError>,
    ) -> Result<(Arc<Completion>, u32, bool), BatchError> {
        let mut wake = false;
        if self.would_overflow(rules, size_bytes)
            && let Some(last) = self.drafts.back_mut()
        {
            last.close();
            wake = true;
        }
        if self.drafts.back().is_none_or(|last| last.closed) {
            let (completion, created_at) = new_batch();
            let options = BuilderOptions {
                compression: rules.compression,
                ..BuilderOptions::default()
            };
            let mut builder = BatchBuilder::new(options);
            push(&mut builder)?;
            let mut draft = Draft {
                builder,
                completion,
                reserved_bytes: size_bytes,
                created_at,
                closed: false,
            };
            if draft.builder.size_estimate() >= rules.batch_bytes {
                draft.close();
            }
            let completion = draft.completion.clone();
            self.drafts.push_back(draft);
            return Ok((completion, 0, true));
        }
        let Some(last) = self.drafts.back_mut() else {
            return Err(BatchError::Invalid {
                what: "no batch is open",
            });
        };
        push(&mut last.builder)?;
        last.reserved_bytes += size_bytes;
        let index = last.builder.record_count() as u32 - 1;
        if last.builder.size_estimate() >= rules.batch_bytes {
            last.close();
            wake = true;
        }
        Ok((last.completion.clone(), index, wake))
    }

    /// Lets no batch wait for more records: a flush. Adds what is not settled to `open`.
    pub(crate) fn flush(&mut self, open: &mut Vec<Arc<Completion>>) {
        open.extend(self.sent.iter().map(|slot| slot.completion.clone()));
        for draft in &mut self.drafts {
            draft.close();
            open.push(draft.completion.clone());
        }
    }

    /// Lets no batch wait for more records: buffer space has run out.
    pub(crate) fn hurry(&mut self) {
        if let Some(last) = self.drafts.back_mut() {
            last.close();
        }
    }

    /// The next batch to send, if one may go now and takes at most `room_bytes`. A batch larger
    /// than that alone is let through where `alone`.
    pub(crate) fn take(
        &mut self,
        rules: &Rules,
        now: Instant,
        leader: LeaderSeen,
        identity: Option<Identity>,
        room: Room,
        settled: &mut Vec<Settled>,
    ) -> Result<Parcel, Idle> {
        if let Some(paused) = &self.paused {
            let moved = paused.leader.is_some_and(|seen| seen != leader);
            if now < paused.until && !moved {
                return Err(Idle::Nothing);
            }
            self.paused = None;
        }
        let in_flight = self.in_flight();
        if let Some(renewal) = self.reorder {
            if in_flight > 0 {
                return Err(Idle::Nothing);
            }
            self.begin_order(renewal, settled);
        }
        if in_flight >= rules.window {
            return Err(Idle::Nothing);
        }
        let waiting = self
            .sent
            .iter()
            .position(|slot| matches!(slot.state, SlotState::Waiting(_)));
        if let Some(at) = waiting {
            return self.take_waiting(at, rules, identity, room);
        }
        self.take_draft(rules, now, identity, room)
    }

    fn take_waiting(
        &mut self,
        at: usize,
        rules: &Rules,
        identity: Option<Identity>,
        room: Room,
    ) -> Result<Parcel, Idle> {
        if rules.idempotent && self.sent[at].stamp.is_none() {
            // Its order began anew with a new producer id: all waiting ones get their places now.
            self.adopt(identity)?;
            for slot in &mut self.sent {
                let stamp = self.identity.map(|identity| Stamp {
                    identity,
                    sequence: self.next_sequence,
                });
                slot.stamp = stamp;
                if let Some(stamp) = stamp {
                    self.next_sequence = stamp.after(slot.range.len() as u32).sequence;
                }
            }
        }
        let slot = &mut self.sent[at];
        let in_flight = SlotState::InFlight {
            led: at == 0,
            expired: false,
        };
        match std::mem::replace(&mut slot.state, in_flight) {
            SlotState::Waiting(batch) if room.admits(batch.size_bytes()) => {
                slot.attempts += 1;
                let content = Content::Sealed(batch);
                Ok(Parcel {
                    order: slot.order,
                    content,
                    stamp: slot.stamp,
                })
            }
            state => {
                slot.state = state;
                Err(Idle::Nothing)
            }
        }
    }

    fn take_draft(
        &mut self,
        rules: &Rules,
        now: Instant,
        identity: Option<Identity>,
        room: Room,
    ) -> Result<Parcel, Idle> {
        if self.sent.len() >= rules.window {
            return Err(Idle::Nothing);
        }
        let more_behind = self.drafts.len() > 1;
        let ready = self.drafts.front().is_some_and(|draft| {
            (draft.closed || more_behind || now >= draft.created_at + rules.linger)
                && room.admits(draft.builder.size_estimate())
        });
        if !ready {
            return Err(Idle::Nothing);
        }
        if rules.idempotent {
            self.adopt(identity)?;
        }
        let Some(mut draft) = self.drafts.pop_front() else {
            return Err(Idle::Nothing);
        };
        draft.close();
        let records = draft.builder.record_count() as u32;
        let stamp = match self.identity.filter(|_| rules.idempotent) {
            Some(identity) => {
                let stamp = Stamp {
                    identity,
                    sequence: self.next_sequence,
                };
                self.next_sequence = stamp.after(records).sequence;
                Some(stamp)
            }
            None => None,
        };
        let order = self.next_order;
        self.next_order += 1;
        let led = self.sent.is_empty();
        self.sent.push_back(Slot {
            order,
            completion: draft.completion,
            range: 0..records,
            reserved_bytes: draft.reserved_bytes,
            created_at: draft.created_at,
            stamp,
            attempts: 1,
            maybe_written: false,
            last_error: None,
            state: SlotState::InFlight {
                led,
                expired: false,
            },
        });
        Ok(Parcel {
            order,
            content: Content::Gathered(draft.builder),
            stamp,
        })
    }

    /// Takes the producer's identity where this partition has none of its own yet.
    fn adopt(&mut self, identity: Option<Identity>) -> Result<(), Idle> {
        if self.identity.is_none() {
            self.identity = Some(identity.ok_or(Idle::NeedsIdentity)?);
            self.next_sequence = 0;
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.sent
            .iter()
            .filter(|slot| matches!(slot.state, SlotState::InFlight { .. }))
            .count()
    }

    /// A new order for all that waits, now that nothing is in flight.
    ///
    /// Law: a batch that may have been written under one identity is never sent under another.
    fn begin_order(&mut self, renewal: Renewal, settled: &mut Vec<Settled>) {
        self.reorder = None;
        self.identity = match renewal {
            Renewal::NextEpoch => self.identity.and_then(Identity::bumped),
            Renewal::NewId => None,
        };
        self.next_sequence = 0;
        for slot in std::mem::take(&mut self.sent) {
            if slot.maybe_written {
                let error = slot.last_error.clone().unwrap_or_else(|| {
                    Error::new(
                        ErrorKind::Disconnected,
                        "the order of the partition was lost",
                    )
                });
                settled.push(slot.fail(error, Outcome::Unknown));
            } else {
                self.sent.push_back(slot);
            }
        }
        for slot in &mut self.sent {
            slot.stamp = self.identity.map(|identity| {
                let stamp = Stamp {
                    identity,
                    sequence: self.next_sequence,
                };
                self.next_sequence = stamp.after(slot.range.len() as u32).sequence;
                stamp
            });
        }
    }

    /// Takes in the answer to the batch `order`, which comes back as `batch`.
    pub(crate) fn answer(
        &mut self,
        rules: &Rules,
        now: Instant,
        order: u64,
        batch: Batch,
        answer: Answer,
        settled: &mut Vec<Settled>,
    ) -> Pause {
        let Some(at) = self.sent.iter().position(|slot| slot.order == order) else {
            return Pause::No;
        };
        let slot = &mut self.sent[at];
        let SlotState::InFlight { led, expired } = slot.state else {
            return Pause::No;
        };
        slot.last_error = answer.error();
        let in_time = now < slot.created_at + rules.delivery_timeout;
        let facts = Facts {
            idempotent: slot.stamp.is_some(),
            led,
            records: slot.range.len() as u32,
            maybe_written: slot.maybe_written,
            may_retry: !expired && in_time && slot.attempts <= rules.retries,
        };
        match judge(facts, answer) {
            Verdict::Written {
                base_offset,
                log_append_time,
            } => {
                self.failures = 0;
                self.settle(
                    at,
                    Resolution::Written {
                        base_offset,
                        log_append_time,
                    },
                    settled,
                );
                Pause::No
            }
            Verdict::Again {
                maybe_written,
                pause,
            } => {
                slot.maybe_written = maybe_written;
                slot.state = SlotState::Waiting(batch);
                pause
            }
            Verdict::Reorder { identity } => {
                slot.state = SlotState::Waiting(batch);
                self.reorder = Some(identity);
                Pause::No
            }
            Verdict::Split => match halves(&batch) {
                Some(halves) => {
                    self.split(at, halves);
                    Pause::No
                }
                None => {
                    let error = Error::new(ErrorKind::RecordTooLarge, "the batch is too large");
                    self.give_up(at, error, Outcome::NotWritten, settled);
                    Pause::No
                }
            },
            Verdict::Fail {
                error,
                outcome,
                reorder,
            } => {
                if reorder.is_some() {
                    self.reorder = reorder;
                }
                let late = expired || !in_time;
                let error = if late {
                    self.timeout_error(at, rules, Some(&error))
                } else {
                    error
                };
                self.give_up(at, error, outcome, settled);
                Pause::No
            }
        }
    }

    /// Whether its next order needs a producer id that nobody has used yet.
    pub(crate) fn needs_new_identity(&self) -> bool {
        match self.reorder {
            Some(Renewal::NewId) => true,
            Some(Renewal::NextEpoch) => self
                .identity
                .is_some_and(|identity| identity.bumped().is_none()),
            None => false,
        }
    }

    /// Whether it rests in the hope of another leader than `leader`.
    pub(crate) fn awaits_leader(&self, leader: LeaderSeen) -> bool {
        self.paused
            .as_ref()
            .is_some_and(|paused| paused.leader == Some(leader))
    }

    /// Lets the partition rest until `until`; another leader than `leader` ends it early. The first
    /// of several batches that failed together decides.
    pub(crate) fn pause(&mut self, until: Instant, leader: Option<LeaderSeen>) {
        if self.paused.is_some() {
            return;
        }
        self.failures += 1;
        self.paused = Some(Paused { until, leader });
    }

    fn settle(&mut self, at: usize, resolution: Resolution, settled: &mut Vec<Settled>) {
        if let Some(slot) = self.sent.remove(at) {
            settled.push(slot.settle(resolution));
        }
    }

    fn give_up(&mut self, at: usize, error: Error, outcome: Outcome, settled: &mut Vec<Settled>) {
        let Some(slot) = self.sent.remove(at) else {
            return;
        };
        // What certainly was not written leaves no gap if nothing came after it.
        if outcome == Outcome::NotWritten
            && at == self.sent.len()
            && self.reorder.is_none()
            && let Some(stamp) = slot.stamp
            && Some(stamp.identity) == self.identity
        {
            self.next_sequence = stamp.sequence;
        }
        settled.push(slot.fail(error, outcome));
    }

    fn split(&mut self, at: usize, halves: [Batch; 2]) {
        let Some(slot) = self.sent.remove(at) else {
            return;
        };
        let [first, second] = halves;
        let middle = slot.range.start + first.header().record_count as u32;
        let half_bytes = slot.reserved_bytes / 2;
        let half = |order, range, stamp, reserved_bytes, batch| Slot {
            order,
            completion: slot.completion.clone(),
            range,
            reserved_bytes,
            created_at: slot.created_at,
            stamp,
            attempts: slot.attempts,
            maybe_written: false,
            last_error: slot.last_error.clone(),
            state: SlotState::Waiting(batch),
        };
        let first_records = middle - slot.range.start;
        let second_stamp = slot.stamp.map(|stamp| stamp.after(first_records));
        let second_bytes = slot.reserved_bytes - half_bytes;
        // The halves share the place of the whole: what comes after them keeps its own.
        let order = self.next_order;
        self.next_order += 2;
        let right = half(
            order + 1,
            middle..slot.range.end,
            second_stamp,
            second_bytes,
            second,
        );
        let left = half(
            order,
            slot.range.start..middle,
            slot.stamp,
            half_bytes,
            first,
        );
        self.sent.insert(at, right);
        self.sent.insert(at, left);
    }

    /// Gives up what is older than the delivery timeout.
    pub(crate) fn expire(&mut self, rules: &Rules, now: Instant, settled: &mut Vec<Settled>) {
        let is_late = |created_at: Instant| now >= created_at + rules.delivery_timeout;
        while self
            .drafts
            .front()
            .is_some_and(|draft| is_late(draft.created_at))
        {
            let Some(mut draft) = self.drafts.pop_front() else {
                break;
            };
            draft.close();
            let error = Error::new(
                ErrorKind::DeliveryTimeout,
                format!(
                    "not sent within {:?} (delivery.timeout.ms)",
                    rules.delivery_timeout
                ),
            );
            settled.push(draft.fail(error));
        }
        let mut at = 0;
        while at < self.sent.len() {
            if !is_late(self.sent[at].created_at) {
                break;
            }
            let error = self.timeout_error(at, rules, None);
            let slot = &mut self.sent[at];
            match slot.state {
                SlotState::Waiting(_) => {
                    let outcome = if slot.maybe_written {
                        Outcome::Unknown
                    } else {
                        Outcome::NotWritten
                    };
                    self.give_up(at, error, outcome, settled);
                }
                SlotState::InFlight { led, expired } => {
                    if !expired {
                        slot.state = SlotState::InFlight { led, expired: true };
                        let freed_bytes = std::mem::take(&mut slot.reserved_bytes);
                        let error = slot.located(error, Outcome::Unknown);
                        settled.push(Settled {
                            completion: slot.completion.clone(),
                            range: slot.range.clone(),
                            resolution: Resolution::Failed(error),
                            freed_bytes,
                        });
                    }
                    at += 1;
                }
            }
        }
    }

    fn timeout_error(&self, at: usize, rules: &Rules, last: Option<&Error>) -> Error {
        let after = format!(
            "not acknowledged within {:?} (delivery.timeout.ms)",
            rules.delivery_timeout
        );
        match last.or(self.sent[at].last_error.as_ref()) {
            Some(last) => Error::new(ErrorKind::DeliveryTimeout, format!("{after}; last: {last}"))
                .with_source(last.clone()),
            None => Error::new(ErrorKind::DeliveryTimeout, after),
        }
    }

    /// Fails everything that is not in flight.
    pub(crate) fn fail_all(&mut self, error: &Error, settled: &mut Vec<Settled>) {
        for mut draft in std::mem::take(&mut self.drafts) {
            draft.close();
            settled.push(draft.fail(error.clone()));
        }
        let waiting = |slot: &Slot| matches!(slot.state, SlotState::Waiting(_));
        while let Some(at) = self.sent.iter().position(waiting) {
            let maybe = self.sent[at].maybe_written;
            let outcome = if maybe {
                Outcome::Unknown
            } else {
                Outcome::NotWritten
            };
            self.give_up(at, error.clone(), outcome, settled);
        }
    }

    /// When to look again, if nothing else happens.
    pub(crate) fn next_look(&self, rules: &Rules) -> Option<Instant> {
        let expiry = |created_at: Instant| created_at + rules.delivery_timeout;
        let oldest_sent = self
            .sent
            .iter()
            .filter(|slot| !matches!(slot.state, SlotState::InFlight { expired: true, .. }))
            .map(|slot| expiry(slot.created_at))
            .min();
        let oldest_draft = self.drafts.front().map(|draft| expiry(draft.created_at));
        let lingers = self
            .drafts
            .front()
            .filter(|draft| !draft.closed && self.drafts.len() == 1)
            .map(|draft| draft.created_at + rules.linger);
        let resumes = self.paused.as_ref().map(|paused| paused.until);
        [oldest_sent, oldest_draft, lingers, resumes]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Space in a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) bytes: usize,
    /// Nothing else is in the request: a batch of any size may go.
    pub(crate) alone: bool,
}

impl Room {
    fn admits(self, bytes: usize) -> bool {
        self.alone || bytes <= self.bytes
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
