//! The life of batches in one partition's queue, told as stories.

use corduroy_protocol::ErrorCode;
use corduroy_record::{ProducerEpoch, ProducerId};
use futures::FutureExt;

use super::super::ticket::{RecordMetadata, Ticket};
use super::*;

const LINGER: Duration = Duration::from_millis(5);
const DELIVERY: Duration = Duration::from_secs(120);

/// A queue with a clock, and the batches that are out.
struct Story {
    rules: Rules,
    queue: PartitionQueue,
    began: Instant,
    millis: u64,
    identity: Option<Identity>,
    leader: LeaderSeen,
    out: Vec<(u64, Batch)>,
}

impl Story {
    fn new() -> Story {
        let rules = Rules {
            idempotent: true,
            window: 5,
            linger: LINGER,
            batch_bytes: 300,
            compression: Compression::None,
            delivery_timeout: DELIVERY,
            retries: u32::MAX,
        };
        Story {
            rules,
            queue: PartitionQueue::default(),
            began: Instant::now(),
            millis: 0,
            identity: Some(identity(7, 0)),
            leader: Some((1, 1)),
            out: Vec::new(),
        }
    }

    fn now(&self) -> Instant {
        self.began + Duration::from_millis(self.millis)
    }

    /// Queues one record.
    fn append(&mut self, value: &[u8]) -> Ticket {
        let now = self.now();
        let (completion, index, _) = self
            .queue
            .append(
                &self.rules,
                value.len() + 20,
                || (Completion::new("t".into(), 0), now),
                |builder| builder.push(1, None, Some(value), &[]),
            )
            .expect("fits");
        Ticket::new(completion, index, 1)
    }

    /// Queues a batch of `records` records, and closes it.
    fn batch(&mut self, records: usize) -> Vec<Ticket> {
        let tickets = (0..records).map(|_| self.append(b"v")).collect();
        self.queue.hurry();
        tickets
    }

    /// Takes the next batch and says where it stands: `epoch:sequence+records`.
    fn send(&mut self) -> Result<String, Idle> {
        self.send_into(Room {
            bytes: 1 << 20,
            alone: true,
        })
    }

    fn send_into(&mut self, room: Room) -> Result<String, Idle> {
        let mut settled = Vec::new();
        let now = self.now();
        let taken = self.queue.take(
            &self.rules,
            now,
            self.leader,
            self.identity,
            room,
            &mut settled,
        );
        settled.into_iter().for_each(Settled::tell);
        let parcel = taken?;
        let batch = match parcel.content {
            Content::Gathered(builder) => builder.finish(),
            Content::Sealed(batch) => batch,
        };
        let records = batch.header().record_count;
        let place = parcel.stamp.map_or("none".to_owned(), |stamp| {
            format!("{}:{}+{records}", stamp.identity.epoch, stamp.sequence)
        });
        self.out.push((parcel.order, batch));
        Ok(place)
    }

    fn send_all(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.send().ok()).collect()
    }

    /// Answers the batch that has been out for the longest.
    fn answer(&mut self, answer: Answer) -> Pause {
        let (order, batch) = self.out.remove(0);
        let mut settled = Vec::new();
        let now = self.now();
        let pause = self
            .queue
            .answer(&self.rules, now, order, batch, answer, &mut settled);
        settled.into_iter().for_each(Settled::tell);
        pause
    }

    fn refuse(&mut self, code: ErrorCode) -> Pause {
        self.answer(Answer::Refused {
            code,
            message: None,
            records: Vec::new(),
        })
    }

    fn written(&mut self, base_offset: i64) {
        let base_offset = Some(base_offset);
        self.answer(Answer::Written {
            base_offset,
            log_append_time: None,
        });
    }

    fn lost(&mut self) {
        self.answer(Answer::Lost(Error::new(ErrorKind::Disconnected, "gone")));
    }

    fn expire(&mut self) {
        let mut settled = Vec::new();
        let now = self.now();
        self.queue.expire(&self.rules, now, &mut settled);
        settled.into_iter().for_each(Settled::tell);
    }
}

fn identity(id: i64, epoch: i16) -> Identity {
    Identity {
        id: ProducerId::new(id),
        epoch: ProducerEpoch::new(epoch),
    }
}

fn result(ticket: Ticket) -> Option<Result<RecordMetadata, Error>> {
    ticket.now_or_never()
}

fn offset(ticket: Ticket) -> i64 {
    result(ticket)
        .expect("settled")
        .expect("written")
        .offset
        .expect("known")
}

fn failure(ticket: Ticket) -> Error {
    result(ticket).expect("settled").expect_err("failed")
}

#[test]
fn a_batch_waits_for_its_linger_and_not_longer() {
    let mut story = Story::new();
    let first = story.append(b"a");
    assert_eq!(story.send(), Err(Idle::Nothing));
    assert_eq!(
        story.queue.next_look(&story.rules),
        Some(story.began + LINGER)
    );
    story.millis = 4;
    let second = story.append(b"b");
    story.millis = 5;
    assert_eq!(story.send().as_deref(), Ok("0:0+2"));
    story.written(40);
    assert_eq!((offset(first), offset(second)), (40, 41));
    assert!(story.queue.is_empty());
}

#[test]
fn a_full_batch_goes_at_once_and_the_next_one_lingers() {
    let mut story = Story::new();
    for _ in 0..3 {
        drop(story.append(&[0; 100]));
    }
    assert_eq!(story.send_all(), ["0:0+2"]);
    story.millis = 5;
    assert_eq!(story.send_all(), ["0:2+1"]);
}

#[test]
fn five_are_in_flight_in_order_and_no_more() {
    let mut story = Story::new();
    for _ in 0..7 {
        story.batch(2);
    }
    assert_eq!(
        story.send_all(),
        ["0:0+2", "0:2+2", "0:4+2", "0:6+2", "0:8+2"]
    );
    story.written(0);
    assert_eq!(story.send_all(), ["0:10+2"]);
}

#[test]
fn records_wait_for_a_producer_id() {
    let mut story = Story::new();
    story.identity = None;
    story.batch(1);
    assert_eq!(story.send(), Err(Idle::NeedsIdentity));
    story.identity = Some(identity(9, 0));
    assert_eq!(story.send().as_deref(), Ok("0:0+1"));
}

#[test]
fn a_lost_connection_sends_everything_again_in_its_old_place() {
    let mut story = Story::new();
    let tickets: Vec<Ticket> = (0..3).flat_map(|_| story.batch(2)).collect();
    assert_eq!(story.send_all(), ["0:0+2", "0:2+2", "0:4+2"]);
    story.batch(2);
    (0..3).for_each(|_| story.lost());
    // What was lost goes before what was not sent yet.
    assert_eq!(story.send_all(), ["0:0+2", "0:2+2", "0:4+2", "0:6+2"]);
    for base in [10, 12, 14] {
        story.written(base);
    }
    let offsets: Vec<i64> = tickets.into_iter().map(offset).collect();
    assert_eq!(offsets, [10, 11, 12, 13, 14, 15]);
}

#[test]
fn the_gap_of_a_failed_predecessor_is_no_gap() {
    let mut story = Story::new();
    (0..3).for_each(|_| drop(story.batch(1)));
    story.send_all();
    assert_eq!(story.refuse(ErrorCode::NotEnoughReplicas), Pause::Backoff);
    assert_eq!(story.refuse(ErrorCode::OutOfOrderSequenceNumber), Pause::No);
    assert_eq!(story.refuse(ErrorCode::OutOfOrderSequenceNumber), Pause::No);
    assert_eq!(story.send_all(), ["0:0+1", "0:1+1", "0:2+1"]);
}

#[test]
fn a_real_gap_begins_a_new_order_once_nothing_is_in_flight() {
    let mut story = Story::new();
    let tickets: Vec<Ticket> = (0..3).flat_map(|_| story.batch(2)).collect();
    story.send_all();
    story.refuse(ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(story.send(), Err(Idle::Nothing), "two are still in flight");
    story.refuse(ErrorCode::OutOfOrderSequenceNumber);
    story.refuse(ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(story.send_all(), ["1:0+2", "1:2+2", "1:4+2"]);
    (0..3).for_each(|batch| story.written(2 * batch));
    assert_eq!(
        tickets.into_iter().map(offset).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5]
    );
}

#[test]
fn what_may_be_written_never_gets_a_second_identity() {
    let mut story = Story::new();
    let first = story.batch(1);
    let second = story.batch(1);
    story.send_all();
    // The first one's answer is lost; then the broker turns out to have forgotten the producer.
    story.lost();
    story.refuse(ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(story.send_all(), ["0:0+1", "0:1+1"]);
    story.refuse(ErrorCode::OutOfOrderSequenceNumber);
    story.refuse(ErrorCode::OutOfOrderSequenceNumber);
    for ticket in first {
        let error = failure(ticket);
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    }
    // The second one was refused each time, so it certainly is not there.
    assert_eq!(story.send_all(), ["1:0+1"]);
    story.written(5);
    assert_eq!(second.into_iter().map(offset).collect::<Vec<_>>(), [5]);
}

#[test]
fn a_used_up_epoch_and_a_foreign_one_need_a_new_id() {
    for (epoch, code) in [
        (i16::MAX - 1, ErrorCode::OutOfOrderSequenceNumber),
        (3, ErrorCode::InvalidProducerEpoch),
    ] {
        let mut story = Story::new();
        story.identity = Some(identity(7, epoch));
        story.batch(1);
        story.batch(1);
        story.send_all();
        story.refuse(code);
        assert!(story.queue.needs_new_identity());
        story.refuse(code);
        story.identity = None;
        assert_eq!(story.send(), Err(Idle::NeedsIdentity));
        story.identity = Some(identity(8, 0));
        assert_eq!(story.send_all(), ["0:0+1", "0:1+1"]);
    }
}

#[test]
fn a_refused_batch_leaves_no_gap_behind_it() {
    let mut story = Story::new();
    let bad = story.batch(2);
    story.send_all();
    story.refuse(ErrorCode::InvalidRecord);
    for ticket in bad {
        assert_eq!(failure(ticket).outcome(), Outcome::NotWritten);
    }
    story.batch(1);
    assert_eq!(story.send_all(), ["0:0+1"]);
}

#[test]
fn a_batch_that_is_too_large_goes_in_halves() {
    let mut story = Story::new();
    let tickets = story.batch(5);
    let behind = story.batch(1);
    assert_eq!(story.send_all(), ["0:0+5", "0:5+1"]);
    story.refuse(ErrorCode::MessageTooLarge);
    story.refuse(ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(story.send_all(), ["0:0+2", "0:2+3", "0:5+1"]);
    story.written(20);
    story.refuse(ErrorCode::MessageTooLarge);
    story.written(90);
    assert_eq!(story.send_all(), ["0:2+1", "0:3+2"]);
    story.refuse(ErrorCode::MessageTooLarge);
    story.written(30);
    let results: Vec<Option<i64>> = tickets
        .into_iter()
        .map(|ticket| {
            result(ticket)
                .expect("settled")
                .ok()
                .and_then(|written| written.offset)
        })
        .collect();
    assert_eq!(results, [Some(20), Some(21), None, Some(30), Some(31)]);
    assert_eq!(behind.into_iter().map(offset).collect::<Vec<_>>(), [90]);
}

#[test]
fn a_record_that_is_never_sent_expires_as_not_written() {
    let mut story = Story::new();
    story.leader = None;
    let tickets = story.batch(1);
    story.millis = DELIVERY.as_millis() as u64;
    story.expire();
    for ticket in tickets {
        let error = failure(ticket);
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::DeliveryTimeout, Outcome::NotWritten)
        );
    }
}

#[test]
fn a_record_in_flight_expires_as_unknown_and_keeps_its_place_until_the_answer() {
    let mut story = Story::new();
    let tickets = story.batch(1);
    story.send_all();
    story.millis = DELIVERY.as_millis() as u64;
    let behind = story.batch(1);
    story.expire();
    for ticket in tickets {
        let error = failure(ticket);
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::DeliveryTimeout, Outcome::Unknown)
        );
    }
    assert_eq!(story.send_all(), ["0:1+1"], "the place may be taken");
    // It is not sent again, and its late answer is taken without a fuss.
    story.lost();
    story.refuse(ErrorCode::OutOfOrderSequenceNumber);
    // So it was not written: the one behind it leads now, and proves the gap.
    assert_eq!(story.send_all(), ["0:1+1"]);
    story.refuse(ErrorCode::OutOfOrderSequenceNumber);
    assert_eq!(story.send_all(), ["1:0+1"]);
    story.written(3);
    assert_eq!(behind.into_iter().map(offset).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_pause_ends_in_time_or_with_another_leader() {
    let mut story = Story::new();
    story.batch(1);
    story.send_all();
    assert_eq!(story.refuse(ErrorCode::NotLeaderOrFollower), Pause::Leader);
    let until = story.now() + Duration::from_millis(100);
    story.queue.pause(until, Some(story.leader));
    assert_eq!(story.send(), Err(Idle::Nothing));
    assert_eq!(story.queue.next_look(&story.rules), Some(until));
    story.leader = Some((2, 2));
    assert_eq!(story.send().as_deref(), Ok("0:0+1"));
    story.refuse(ErrorCode::NotEnoughReplicas);
    story.queue.pause(until, None);
    story.leader = Some((3, 3));
    assert_eq!(
        story.send(),
        Err(Idle::Nothing),
        "another leader does not help here"
    );
    story.millis = 100;
    assert_eq!(story.send().as_deref(), Ok("0:0+1"));
}

#[test]
fn a_request_without_room_leaves_the_batch_for_the_next() {
    let mut story = Story::new();
    story.batch(1);
    assert_eq!(
        story.send_into(Room {
            bytes: 10,
            alone: false
        }),
        Err(Idle::Nothing)
    );
    assert_eq!(
        story
            .send_into(Room {
                bytes: 10,
                alone: true
            })
            .as_deref(),
        Ok("0:0+1")
    );
    story.lost();
    assert_eq!(
        story.send_into(Room {
            bytes: 10,
            alone: false
        }),
        Err(Idle::Nothing)
    );
    assert_eq!(
        story
            .send_into(Room {
                bytes: 10,
                alone: true
            })
            .as_deref(),
        Ok("0:0+1")
    );
}

#[test]
fn few_retries_are_few() {
    let mut story = Story::new();
    story.rules.retries = 1;
    let tickets = story.batch(1);
    story.send_all();
    story.lost();
    story.send_all();
    story.lost();
    for ticket in tickets {
        let error = failure(ticket);
        assert_eq!(
            (error.kind(), error.outcome()),
            (ErrorKind::Disconnected, Outcome::Unknown)
        );
        assert_eq!(error.context().attempts, 2);
    }
}

#[test]
fn without_idempotence_nothing_is_stamped() {
    let mut story = Story::new();
    story.rules.idempotent = false;
    story.identity = None;
    story.batch(1);
    assert_eq!(story.send().as_deref(), Ok("none"));
    story.lost();
    assert_eq!(story.send().as_deref(), Ok("none"));
}
