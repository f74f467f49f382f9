//! What has to be durable before it is told: one write at a time.
//!
//! A write carries the whole group as it is when the write is handed out, so whatever gathers while
//! one is under way goes with the next. A write whose purpose has passed (a rebalance began) is
//! neither repeated nor undone: the next generation's write replaces what it left.

use std::time::Duration;

use corduroy_protocol::ErrorCode;

use super::group::refuse_join;
use super::members::{Member, MemberNumber, Standing};
use super::timers::Timer;
use super::{ClassicGroup, ClassicState, Effect, WriteId};
use crate::records::ClassicValue;
use crate::{GroupError, Now};

/// How long a group that became Empty waits before it tries a failed write again. Nobody waits for
/// it, but its record still names members.
const EMPTY_WRITE_PAUSE: Duration = Duration::from_secs(5);

/// Why the group is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The leader has assigned.
    Assignment { generation: i32 },
    /// A static member came back under another id, in Stable.
    Replacement {
        generation: i32,
        number: MemberNumber,
        member_id: String,
        /// Shown to the member as the leader instead of the true one.
        shown_leader: Option<String>,
    },
    /// The last member has gone.
    Emptied { generation: i32 },
}

/// Law: at most one write is under way.
#[derive(Debug, Default)]
pub(super) struct Writes {
    under_way: Option<(WriteId, Vec<Purpose>)>,
    queued: Vec<Purpose>,
    next: u64,
}

impl Writes {
    /// Whether an outcome is awaited.
    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Forgets what is under way and queued; outcomes that still come mean nothing.
    pub(super) fn clear(&mut self) {
        self.under_way = None;
        self.queued.clear();
    }
}

impl ClassicGroup {
    /// Whether a write is under way, whose outcome the group awaits.
    pub const fn is_writing(&self) -> bool {
        self.writes.is_under_way()
    }

    /// The outcome of a write. An id that is not under way means nothing.
    pub fn persisted(
        &mut self,
        id: WriteId,
        outcome: Result<(), ErrorCode>,
        now: Now,
        now_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        let Some((_, purposes)) = self
            .writes
            .under_way
            .take_if(|(under_way, _)| *under_way == id)
        else {
            return;
        };
        let current: Vec<Purpose> = purposes
            .into_iter()
            .filter(|purpose| self.is_current(purpose))
            .collect();
        match outcome {
            Ok(()) => {
                for purpose in current {
                    self.written(purpose, now, now_ms, out);
                }
            }
            Err(code) => self.unwritten(current, code, now, now_ms, out),
        }
        self.hand_out(out);
        self.assert_laws();
    }

    pub(super) fn request_write(&mut self, purpose: Purpose, out: &mut Vec<Effect>) {
        self.writes.queued.push(purpose);
        self.hand_out(out);
    }

    /// Makes it durable that nobody is left.
    pub(super) fn write_empty(&mut self, out: &mut Vec<Effect>) {
        if self.state == ClassicState::Empty {
            let generation = self.generation;
            self.request_write(Purpose::Emptied { generation }, out);
        }
    }

    fn hand_out(&mut self, out: &mut Vec<Effect>) {
        if self.writes.is_under_way() {
            return;
        }
        let queued = std::mem::take(&mut self.writes.queued);
        let current: Vec<Purpose> = queued
            .into_iter()
            .filter(|purpose| self.is_current(purpose))
            .collect();
        if current.is_empty() {
            return;
        }
        let id = WriteId(self.writes.next);
        self.writes.next += 1;
        let before = self.writes.under_way.replace((id, current));
        assert!(before.is_none(), "at most one write is under way");
        out.push(Effect::Persist(id, self.value()));
    }

    /// Whether the group is still where this write was wanted.
    fn is_current(&self, purpose: &Purpose) -> bool {
        let (state, of_generation) = match purpose {
            Purpose::Assignment { generation } => (ClassicState::CompletingRebalance, generation),
            Purpose::Emptied { generation } => (ClassicState::Empty, generation),
            Purpose::Replacement {
                generation,
                number,
                member_id,
                ..
            } => {
                let waits = self.members.get(*number).is_some_and(|member| {
                    member.id() == member_id && matches!(member.standing(), Standing::Replacing(_))
                });
                if !waits {
                    return false;
                }
                (ClassicState::Stable, generation)
            }
        };
        self.state == state && self.generation == *of_generation
    }

    fn written(&mut self, purpose: Purpose, now: Now, now_ms: i64, out: &mut Vec<Effect>) {
        match purpose {
            Purpose::Assignment { .. } => self.become_stable(now, now_ms, out),
            Purpose::Emptied { .. } => {}
            Purpose::Replacement {
                number,
                shown_leader,
                ..
            } => self.answer_replacement(number, shown_leader, now, out),
        }
    }

    fn answer_replacement(
        &mut self,
        number: MemberNumber,
        shown_leader: Option<String>,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let ticket = self
            .members
            .get(number)
            .and_then(|member| member.standing().ticket());
        self.owe_sync(number, now);
        let (Some(ticket), Some(mut answer)) = (ticket, self.answer_joined(number)) else {
            return;
        };
        if let Ok(joined) = &mut answer.result {
            match shown_leader {
                Some(id) => {
                    joined.leader = id;
                    joined.members.clear();
                }
                // The assignment that it made before stands (KIP-814).
                None => joined.skip_assignment = self.leader == Some(number),
            }
        }
        out.push(Effect::Join(ticket, answer));
    }

    /// A write failed, or nobody knows whether it did. Whoever waited for it is told, and the group
    /// rebalances instead of guessing what the record says.
    fn unwritten(
        &mut self,
        purposes: Vec<Purpose>,
        code: ErrorCode,
        now: Now,
        now_ms: i64,
        out: &mut Vec<Effect>,
    ) {
        if purposes.is_empty() {
            return;
        }
        let error = GroupError::from(answer_of_failed_write(code));
        out.push(Effect::Note(format!(
            "writing the group failed: {}",
            code.name()
        )));
        if self.state == ClassicState::Empty {
            let at = now.saturating_add(EMPTY_WRITE_PAUSE);
            self.timers.set(Timer::WriteAgain, at);
            return;
        }
        for purpose in purposes {
            match purpose {
                Purpose::Assignment { .. } => self.refuse_syncs(&error, now, out),
                Purpose::Replacement { number, .. } => {
                    let before = self.members.stand(number, Standing::Away);
                    self.heard(number, now);
                    if let Some(ticket) = before.and_then(Standing::ticket) {
                        out.push(refuse_join(ticket, "", error.clone()));
                    }
                }
                Purpose::Emptied { .. } => {}
            }
        }
        self.begin_rebalance("a write failed", now, now_ms, out);
        self.advance(now, now_ms, out);
    }

    fn refuse_syncs(&mut self, error: &GroupError, now: Now, out: &mut Vec<Effect>) {
        for number in self.members.numbers() {
            let standing = self.members.get(number).map(Member::standing);
            if let Some(Standing::Synced(Some(ticket))) = standing {
                self.members.stand(number, Standing::Away);
                self.heard(number, now);
                out.push(Effect::Sync(ticket, Err(error.clone())));
            }
        }
    }

    /// The group as its record shall have it.
    pub fn value(&self) -> ClassicValue {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        ClassicValue {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader().map(str::to_owned),
            state_timestamp_ms: self.state_since_ms,
            members: self
                .members
                .iter()
                .map(|(_, member)| member.value(protocol))
                .collect(),
        }
    }
}

/// What clients of groups are told when a write failed: they know the coordinator's errors and not
/// those of the partition below it (Kafka's mapping).
fn answer_of_failed_write(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::UnknownTopicOrPartition
        | ErrorCode::NotEnoughReplicas
        | ErrorCode::NotEnoughReplicasAfterAppend
        | ErrorCode::RequestTimedOut => ErrorCode::CoordinatorNotAvailable,
        ErrorCode::NotLeaderOrFollower | ErrorCode::KafkaStorageError => ErrorCode::NotCoordinator,
        ErrorCode::MessageTooLarge
        | ErrorCode::RecordListTooLarge
        | ErrorCode::InvalidFetchSize => ErrorCode::UnknownServerError,
        other => other,
    }
}
