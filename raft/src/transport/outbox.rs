//! What waits to be written to one connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::time::{Duration, Instant, Sleep};

use crate::counts::Counts;
use crate::wire::{
    AsleepBeat, Beat, BeatReply, FrameEncoder, Message, SleepAnswer, SleepAsk, SurveyAnswer,
    SurveyAsk, WakeNote,
};

/// Beyond this many queued bytes append streams stop reading their logs.
const ROOM_BYTES: usize = 4 << 20;
/// Beyond this many queued bytes nothing is taken any more: the peer does not read.
const QUEUE_BYTES_MAX: usize = 256 << 20;
/// Chunks of one `writev`.
const CHUNKS_MAX: usize = 128;
/// Small messages that share one frame; keeps the envelope below its limit.
const PACKED_MAX: usize = 4096;
/// Small messages that are gathered while the writer is stuck; beyond it the peer does not read.
const GATHERED_MAX: usize = 64 << 10;

/// The queue of one connection's writer.
///
/// Messages of many groups that are small and frequent (beats, their answers, sleep, surveys) are
/// gathered and leave as one frame when the writer gets to run: one frame per turn of the shard,
/// whatever the number of groups. Beats nobody waits for: they are held a little longer, so that
/// those of all groups share a frame although each group has a clock of its own.
#[derive(Default)]
pub(crate) struct Outbox {
    chunks: RefCell<VecDeque<Bytes>>,
    packed: RefCell<Packed>,
    beats: Cell<BeatsDue>,
    encoder: RefCell<FrameEncoder>,
    bytes: Cell<usize>,
    closed: Cell<bool>,
    writer: RefCell<Option<Waker>>,
    room: RefCell<Vec<Waker>>,
    counts: Rc<Counts>,
}

/// When the beats that have gathered leave.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum BeatsDue {
    /// There are none.
    #[default]
    Never,
    At(Instant),
    Now,
}

/// Small messages that are gathered until the writer runs.
#[derive(Default)]
pub(crate) struct Packed {
    pub(crate) beats: Vec<Beat>,
    pub(crate) beat_replies: Vec<BeatReply>,
    pub(crate) surveys: Vec<SurveyAsk>,
    pub(crate) survey_answers: Vec<SurveyAnswer>,
    pub(crate) sleeps: Vec<SleepAsk>,
    pub(crate) sleep_answers: Vec<SleepAnswer>,
    pub(crate) asleep: Vec<AsleepBeat>,
    pub(crate) wakes: Vec<WakeNote>,
}

impl Packed {
    fn len(&self) -> usize {
        self.beats.len()
            + self.beat_replies.len()
            + self.surveys.len()
            + self.survey_answers.len()
            + self.sleeps.len()
            + self.sleep_answers.len()
            + self.asleep.len()
            + self.wakes.len()
    }

    /// What leaves now: all of it, the beats only if they are due.
    fn messages(&mut self, beats_are_due: bool) -> Vec<Message> {
        fn pack<T>(from: &mut Vec<T>, make: fn(Vec<T>) -> Message, to: &mut Vec<Message>) {
            while from.len() > PACKED_MAX {
                let rest = from.split_off(PACKED_MAX);
                to.push(make(std::mem::replace(from, rest)));
            }
            if !from.is_empty() {
                to.push(make(std::mem::take(from)));
            }
        }
        let mut messages = Vec::new();
        if beats_are_due {
            pack(&mut self.beats, Message::Beats, &mut messages);
        }
        pack(&mut self.beat_replies, Message::BeatReplies, &mut messages);
        pack(&mut self.surveys, Message::Survey, &mut messages);
        pack(
            &mut self.survey_answers,
            Message::SurveyAnswers,
            &mut messages,
        );
        pack(&mut self.sleeps, Message::Sleep, &mut messages);
        pack(
            &mut self.sleep_answers,
            Message::SleepAnswers,
            &mut messages,
        );
        pack(&mut self.asleep, Message::Asleep, &mut messages);
        pack(&mut self.wakes, Message::Wake, &mut messages);
        messages
    }
}

impl Outbox {
    /// An empty queue; `counts` learns of the beats that leave by it.
    pub(crate) fn new(counts: Rc<Counts>) -> Outbox {
        Outbox {
            counts,
            ..Outbox::default()
        }
    }

    /// Bytes that are queued, those that the writer holds included.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Queues a message and the payload's chunks; `false` if the connection is gone, cannot take
    /// more, or the message is beyond the frame's limits.
    pub(crate) fn push(&self, message: &Message, payload: Vec<Bytes>) -> bool {
        if self.closed.get() || self.bytes.get() > QUEUE_BYTES_MAX {
            return false;
        }
        let payload_bytes = payload.iter().map(Bytes::len).sum();
        let head = match self.encoder.borrow_mut().encode(message, payload_bytes) {
            Ok(head) => head,
            Err(error) => {
                tracing::error!(%error, "a message does not fit a frame and is not sent");
                return false;
            }
        };
        self.bytes
            .set(self.bytes.get() + head.len() + payload_bytes);
        let mut chunks = self.chunks.borrow_mut();
        chunks.push_back(head);
        chunks.extend(payload.into_iter().filter(|chunk| !chunk.is_empty()));
        drop(chunks);
        self.wake_writer();
        true
    }

    /// Adds to the gathered messages; `false` if the connection is gone or cannot take more.
    pub(crate) fn pack(&self, add: impl FnOnce(&mut Packed)) -> bool {
        if self.closed.get() {
            return false;
        }
        let mut packed = self.packed.borrow_mut();
        if packed.len() >= GATHERED_MAX {
            return false;
        }
        add(&mut packed);
        drop(packed);
        self.wake_writer();
        true
    }

    /// Adds a beat, which waits for those of other groups, no longer than `hold`; `false` if the
    /// connection is gone or cannot take more.
    pub(crate) fn pack_beat(&self, beat: Beat, hold: Duration) -> bool {
        if self.closed.get() {
            return false;
        }
        let mut packed = self.packed.borrow_mut();
        if packed.len() >= GATHERED_MAX {
            return false;
        }
        packed.beats.push(beat);
        drop(packed);
        if hold.is_zero() {
            self.release_beats();
        } else if self.beats.get() == BeatsDue::Never {
            self.beats.set(BeatsDue::At(Instant::now() + hold));
            self.wake_writer();
        }
        true
    }

    /// Somebody waits for what the held beats ask: they leave at once.
    pub(crate) fn release_beats(&self) {
        if !self.packed.borrow().beats.is_empty()
            && self.beats.replace(BeatsDue::Now) != BeatsDue::Now
        {
            self.wake_writer();
        }
    }

    /// Whether held beats leave now; otherwise the writer is woken when they do.
    fn poll_beats(&self, mut alarm: Pin<&mut Sleep>, cx: &mut Context<'_>) -> bool {
        match self.beats.get() {
            BeatsDue::Never => false,
            BeatsDue::Now => true,
            BeatsDue::At(due) => {
                if alarm.deadline() != due {
                    alarm.as_mut().reset(due);
                }
                alarm.poll(cx).is_ready()
            }
        }
    }

    /// Whether a stream may add an append; otherwise it is woken when it may.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> bool {
        if self.bytes.get() < ROOM_BYTES {
            return true;
        }
        let mut room = self.room.borrow_mut();
        if !room.iter().any(|known| known.will_wake(cx.waker())) {
            room.push(cx.waker().clone());
        }
        false
    }

    /// Takes no more; the writer ends once it has written what is queued.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.wake_writer();
        self.wake_room();
    }

    fn wake_writer(&self) {
        let waker = self.writer.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn wake_room(&self) {
        for waker in std::mem::take(&mut *self.room.borrow_mut()) {
            waker.wake();
        }
    }

    /// Moves all that is queued into `to`; `false` once closed and empty.
    async fn take(&self, to: &mut VecDeque<Bytes>, mut alarm: Pin<&mut Sleep>) -> bool {
        poll_fn(|cx| {
            let beats_are_due = self.poll_beats(alarm.as_mut(), cx);
            let packed = {
                let mut packed = self.packed.borrow_mut();
                if packed.len() == 0 {
                    Vec::new()
                } else {
                    packed.messages(beats_are_due)
                }
            };
            if beats_are_due {
                self.beats.set(BeatsDue::Never);
            }
            for message in packed {
                if matches!(message, Message::Beats(_) | Message::Asleep(_)) {
                    Counts::add(&self.counts.beat_frames, 1);
                }
                match self.encoder.borrow_mut().encode(&message, 0) {
                    Ok(head) => {
                        self.bytes.set(self.bytes.get() + head.len());
                        self.chunks.borrow_mut().push_back(head);
                    }
                    Err(error) => tracing::error!(%error, "gathered messages are not sent"),
                }
            }
            let mut chunks = self.chunks.borrow_mut();
            if !chunks.is_empty() {
                std::mem::swap(&mut *chunks, to);
                return Poll::Ready(true);
            }
            if self.closed.get() {
                return Poll::Ready(false);
            }
            *self.writer.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn written(&self, bytes: usize) {
        let before = self.bytes.get();
        let after = before.saturating_sub(bytes);
        self.bytes.set(after);
        if before >= ROOM_BYTES && after < ROOM_BYTES {
            self.wake_room();
        }
    }

    /// Writes what is queued, as vectored writes, until the outbox is closed or the socket fails.
    pub(crate) async fn write_to<W: AsyncWrite + Unpin>(&self, stream: &mut W) -> io::Result<()> {
        let mut chunks = VecDeque::new();
        let mut alarm = std::pin::pin!(tokio::time::sleep_until(Instant::now()));
        while self.take(&mut chunks, alarm.as_mut()).await {
            while !chunks.is_empty() {
                let written = poll_fn(|cx| write_some(stream, &chunks, cx)).await?;
                if written == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                self.written(written);
                advance(&mut chunks, written);
            }
        }
        Ok(())
    }
}

fn write_some<W: AsyncWrite + Unpin>(
    stream: &mut W,
    chunks: &VecDeque<Bytes>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut slices = [IoSlice::new(&[]); CHUNKS_MAX];
    let mut count = 0;
    for (slot, chunk) in slices.iter_mut().zip(chunks) {
        *slot = IoSlice::new(chunk);
        count += 1;
    }
    Pin::new(stream).poll_write_vectored(cx, &slices[..count])
}

fn advance(chunks: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = chunks.front_mut() {
        if written < front.len() {
            front.advance(written);
            return;
        }
        written -= front.len();
        chunks.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FrameReader;

    #[test]
    fn a_peer_that_reads_nothing_is_sent_no_more_than_the_queue_holds() {
        let counts = Rc::new(Counts::default());
        let outbox = Outbox::new(counts.clone());
        let mut cx = Context::from_waker(Waker::noop());
        let chunk = Bytes::from(vec![0; 1 << 20]);
        // Append streams look for room first: one of them may go beyond it, by one request.
        while outbox.poll_room(&mut cx) {
            assert!(outbox.push(&Message::Cast, vec![chunk.clone()]));
        }
        assert!(outbox.queued_bytes() < ROOM_BYTES + 2 * chunk.len());
        while outbox.push(&Message::Cast, vec![chunk.clone()]) {}
        assert!(outbox.queued_bytes() < QUEUE_BYTES_MAX + 2 * chunk.len());
        let note = |call| SleepAnswer { call, asleep: true };
        let mut taken = 0;
        while outbox.pack(|packed| packed.sleep_answers.push(note(taken))) {
            taken += 1;
        }
        assert_eq!(taken, GATHERED_MAX as u64);
        assert_eq!(counts.beat_frames.get(), 0, "nothing was a beat");
    }

    #[test]
    fn what_is_pushed_arrives_in_order_and_gathered_messages_share_a_frame() {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("runtime")
            .block_on(async {
                let outbox = Outbox::default();
                assert!(outbox.push(&Message::Call { call: 1 }, vec![Bytes::from_static(b"abc")]));
                for call in 0..10 {
                    outbox.pack(|packed| {
                        packed
                            .sleep_answers
                            .push(SleepAnswer { call, asleep: true });
                    });
                }
                outbox.close();
                let (mut near, far) = tokio::io::duplex(64);
                let write = async {
                    outbox.write_to(&mut near).await.expect("open");
                    drop(near);
                };
                let read = async {
                    let mut reader = FrameReader::new(far);
                    let first = reader.next().await.expect("frame");
                    assert_eq!(first.message().expect("message"), Message::Call { call: 1 });
                    assert_eq!(&first.payload[..], b"abc");
                    let second = reader
                        .next()
                        .await
                        .expect("frame")
                        .message()
                        .expect("message");
                    assert!(
                        matches!(second, Message::SleepAnswers(answers) if answers.len() == 10)
                    );
                };
                futures::join!(write, read);
                assert!(!outbox.push(&Message::Cast, vec![]));
            });
    }
}
