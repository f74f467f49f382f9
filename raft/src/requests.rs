//! What a shard does with the messages that reach it: the laws of votes and appends are kept here,
//! before openraft sees a request.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use corduroy_env::planted::{self, Bug};
use corduroy_record::{Batch, GroupId, LogIndex, NodeId, Offset, Term};
use corduroy_storage::{EntryHead, EntryKind};
use futures::FutureExt;
use futures::future::{LocalBoxFuture, join_all};
use openraft::EntryPayload;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest,
};

use crate::assembly::{Origin, Part, SNAPSHOT_BYTES_MAX, Taken};
use crate::counts::Counts;
use crate::failover;
use crate::machine::snapshot_from_parts;
use crate::replica_core::{Core, Lost};
use crate::revert::Revert;
use crate::shard::{ForwardedFrame, ShardInner};
use crate::transport::{ReplyPath, Requests};
use crate::types::{
    Body, LogEntry, LogId, MembershipRecord, Proposed, RaftVote, TypeConfig, log_id,
};
use crate::wire::{
    Append, AppendOutcome, AppendReply, AsleepBeat, Beat, BeatReply, Frame, FrameEncoder, Message,
    Refusal, RevertAllowed, Route, SleepAnswer, SleepAsk, SnapshotAnswer, SnapshotChunk,
    SurveyAnswer, SurveyAsk, SurveyState, TransferAsk, VoteAnswer, VoteAsk, VoteGrant, WakeNote,
    WireKind, WireVote,
};

/// The node id of a caller that has none yet.
const ANONYMOUS: NodeId = NodeId::new(-1);

type Work = Option<LocalBoxFuture<'static, ()>>;

impl Requests for ShardInner {
    fn request(&self, from: NodeId, message: Message, payload: Bytes, reply: ReplyPath) -> Work {
        if from == ANONYMOUS && !matches!(message, Message::Call { .. }) {
            return None;
        }
        match message {
            Message::Append(append) => self.append(append, payload, reply),
            Message::Beats(beats) => self.beats(from, beats, reply),
            Message::Vote(ask) => self.vote(from, ask, reply),
            Message::Transfer(ask) => self.transfer(ask, reply),
            Message::Snapshot(chunk) => self.snapshot(from, chunk, payload, reply),
            Message::Survey(asks) => {
                let here = self.split(from, asks, |ask| &ask.route, Message::Survey);
                for ask in here {
                    let answer = self.answer_survey(ask);
                    reply.pack(|packed| packed.survey_answers.push(answer));
                }
                None
            }
            Message::Sleep(asks) => {
                let here = self.split(from, asks, |ask| &ask.route, Message::Sleep);
                for ask in here {
                    let asleep = self.sleep(ask);
                    let answer = SleepAnswer {
                        call: ask.call,
                        asleep,
                    };
                    reply.pack(|packed| packed.sleep_answers.push(answer));
                }
                None
            }
            Message::Asleep(beats) => {
                for beat in self.split(from, beats, |beat| &beat.route, Message::Asleep) {
                    self.asleep_beat(from, beat);
                }
                None
            }
            Message::Wake(notes) => {
                for note in self.split(from, notes, |note| &note.route, Message::Wake) {
                    self.wake(note);
                }
                None
            }
            Message::RevertAllowed(note) => {
                self.revert_allowed(note);
                None
            }
            Message::Call { call } => {
                let answer = (self.hooks.on_call)(from, payload);
                Some(Box::pin(async move {
                    let bytes = answer.await;
                    reply.send(&Message::CallAnswer { call }, vec![bytes]);
                }))
            }
            Message::Cast => {
                (self.hooks.on_cast)(from, payload);
                None
            }
            // Answers were sorted out by the switchboard; pings have a connection of their own.
            _ => None,
        }
    }

    fn elsewhere(&self, message: &Message) -> Option<u16> {
        let route = match message {
            Message::Append(append) => &append.route,
            Message::Vote(ask) => &ask.route,
            Message::Transfer(ask) => &ask.route,
            Message::Snapshot(chunk) => &chunk.route,
            Message::RevertAllowed(note) => &note.route,
            _ => return None,
        };
        self.other_shard(route.group())
    }

    fn forward(&self, shard: u16, from: NodeId, frame: Frame) {
        let held = self.board.forwarding.count(frame.size_bytes());
        (self.hooks.forward)(shard, ForwardedFrame { from, frame, held });
    }

    fn connection_lost(&self, from: NodeId) {
        self.drop_assemblies_of(from);
    }
}

impl ShardInner {
    /// Law 7: the replica that a message names, or none. A message never creates one.
    fn target(&self, route: &Route) -> Option<Rc<Core>> {
        let core = self
            .core(route.group())
            .filter(|core| core.id.get() == route.to);
        if core.is_none() {
            Counts::add(&self.board.counts.misdirected, 1);
        }
        core
    }

    fn other_shard(&self, group: GroupId) -> Option<u16> {
        let shard = (self.hooks.shard_of)(group);
        (shard != self.board.identity.shard && shard < self.board.identity.shards).then_some(shard)
    }

    /// Keeps what is for this shard and sends the rest on.
    fn split<T>(
        &self,
        from: NodeId,
        items: Vec<T>,
        route_of: fn(&T) -> &Route,
        make: fn(Vec<T>) -> Message,
    ) -> Vec<T> {
        if self.board.identity.shards <= 1 {
            return items;
        }
        let mut here = Vec::with_capacity(items.len());
        let mut others: BTreeMap<u16, Vec<T>> = BTreeMap::new();
        for item in items {
            match self.other_shard(route_of(&item).group()) {
                Some(shard) => others.entry(shard).or_default().push(item),
                None => here.push(item),
            }
        }
        for (shard, items) in others {
            match FrameEncoder::default().frame(&make(items)) {
                Ok(frame) => self.forward(shard, from, frame),
                Err(error) => tracing::error!(%error, "messages for another shard are dropped"),
            }
        }
        here
    }

    fn append(&self, append: Append, payload: Bytes, reply: ReplyPath) -> Work {
        let (stream, seq) = (append.stream, append.seq);
        let refuse = |why| {
            let outcome = AppendOutcome::Refused(why);
            reply.send(
                &Message::AppendReply(AppendReply {
                    stream,
                    seq,
                    outcome,
                }),
                Vec::new(),
            );
            None
        };
        let Some(core) = self.target(&append.route) else {
            return refuse(Refusal::UnknownReplica);
        };
        let Some(raft) = core.raft() else {
            return refuse(Refusal::Stopped);
        };
        if core.revert.get() == Revert::Unannounced {
            return refuse(Refusal::Reverted);
        }
        let request = match decode_append(append, payload) {
            Ok(request) => request,
            Err(what) => {
                tracing::warn!(parent: &core.span(), group = %core.group, what, "a malformed append is refused");
                return refuse(Refusal::Malformed);
            }
        };
        core.touch();
        core.leader_heard(&request.vote);
        Some(Box::pin(async move {
            let outcome = outcome_of(raft.append_entries(request).await);
            reply.send(
                &Message::AppendReply(AppendReply {
                    stream,
                    seq,
                    outcome,
                }),
                Vec::new(),
            );
        }))
    }

    fn beats(&self, from: NodeId, beats: Vec<Beat>, reply: ReplyPath) -> Work {
        let beats = self.split(from, beats, |beat| &beat.route, Message::Beats);
        let mut work = Vec::with_capacity(beats.len());
        for beat in beats {
            let answer = |reply: &ReplyPath, outcome| {
                let answer = BeatReply {
                    call: beat.call,
                    outcome,
                };
                reply.pack(|packed| packed.beat_replies.push(answer));
            };
            let Some(core) = self.target(&beat.route) else {
                answer(&reply, AppendOutcome::Refused(Refusal::UnknownReplica));
                continue;
            };
            let Some(raft) = core.raft() else {
                answer(&reply, AppendOutcome::Refused(Refusal::Stopped));
                continue;
            };
            if core.revert.get() == Revert::Unannounced {
                answer(&reply, AppendOutcome::Refused(Refusal::Reverted));
                continue;
            }
            // A beat is no traffic, but it says that the leader is awake.
            core.wake();
            let vote: RaftVote = beat.vote.into();
            core.leader_heard(&vote);
            let request = AppendEntriesRequest {
                vote,
                prev_log_id: beat.prev.map(Into::into),
                entries: Vec::new(),
                leader_commit: beat.commit.map(Into::into),
            };
            let reply = reply.clone();
            work.push(async move {
                let outcome = outcome_of(raft.append_entries(request).await);
                let answer = BeatReply {
                    call: beat.call,
                    outcome,
                };
                reply.pack(|packed| packed.beat_replies.push(answer));
            });
        }
        if work.is_empty() {
            return None;
        }
        Some(Box::pin(join_all(work).map(|_| ())))
    }

    fn vote(&self, from: NodeId, ask: VoteAsk, reply: ReplyPath) -> Work {
        let call = ask.call;
        let core = self.target(&ask.route);
        let Some((core, raft)) = core.and_then(|core| core.raft().map(|raft| (core, raft))) else {
            reply.send(
                &Message::VoteAnswer(VoteAnswer { call, answer: None }),
                Vec::new(),
            );
            return None;
        };
        if let Some(grant) = refuse_vote(&core, &ask) {
            // Whoever campaigns against a sleeping leader has not heard of it: wake it.
            if core.is_asleep() {
                core.wake();
                if let Some((leader, node)) = core.leader()
                    && leader != core.id
                {
                    let route = Route::new(core.group, core.id, leader);
                    let _ = self.board.pack(node, |packed| {
                        packed.wakes.push(WakeNote {
                            route,
                            resigned: None,
                        })
                    });
                }
            }
            let answer = Some(grant);
            reply.send(
                &Message::VoteAnswer(VoteAnswer { call, answer }),
                Vec::new(),
            );
            return None;
        }
        core.wake();
        let leadership_transfer = ask.leadership_transfer && honours_transfer(&core, &ask);
        if ask.leadership_transfer && !leadership_transfer {
            tracing::info!(
                parent: &core.span(),
                group = %core.group, candidate = ask.route.from, node = %from,
                "a campaign against a living leader gets no privilege"
            );
        }
        let request: VoteRequest<TypeConfig> = VoteRequest {
            vote: ask.vote.into(),
            last_log_id: ask.last.map(Into::into),
            leadership_transfer,
        };
        Some(Box::pin(async move {
            let voted = if ask.pre_vote {
                raft.pre_vote(request).await
            } else {
                raft.vote(request).await
            };
            let answer = voted.ok().map(|voted| VoteGrant {
                vote: (&voted.vote).into(),
                granted: voted.vote_granted,
                last: voted.last_log_id.as_ref().map(Into::into),
            });
            reply.send(
                &Message::VoteAnswer(VoteAnswer { call, answer }),
                Vec::new(),
            );
        }))
    }

    fn transfer(&self, ask: TransferAsk, reply: ReplyPath) -> Work {
        let call = ask.call;
        let core = self.target(&ask.route);
        let leads = ask.leader.committed && ask.leader.voted_for == ask.route.from;
        let Some((core, raft)) = core
            .filter(|core| leads && !(core.no_vote() && ask.target == core.id.get()))
            .and_then(|core| core.raft().map(|raft| (core, raft)))
        else {
            reply.send(
                &Message::TransferAnswer {
                    call,
                    accepted: false,
                },
                Vec::new(),
            );
            return None;
        };
        core.touch();
        core.ordered.set(Some((ask.leader.term, ask.target)));
        let request =
            TransferLeaderRequest::new(ask.leader.into(), ask.target, ask.last.map(Into::into));
        Some(Box::pin(async move {
            let accepted = matches!(raft.handle_transfer_leader(request).await, Ok(Ok(())));
            reply.send(&Message::TransferAnswer { call, accepted }, Vec::new());
        }))
    }

    fn snapshot(
        &self,
        from: NodeId,
        chunk: SnapshotChunk,
        payload: Bytes,
        reply: ReplyPath,
    ) -> Work {
        let call = chunk.call;
        let answer = move |reply: &ReplyPath, vote: Option<WireVote>, received| {
            let answer = SnapshotAnswer {
                call,
                vote,
                received,
            };
            reply.send(&Message::SnapshotAnswer(answer), Vec::new());
        };
        let Some((core, raft)) = self
            .target(&chunk.route)
            .and_then(|core| core.raft().map(|raft| (core, raft)))
            .filter(|(core, _)| snapshot_is_sane(core, &chunk, payload.len() as u64))
            // Law 8: it would bring its sender's vote, and nobody could tell any more that another
            // one was forgotten. The sender backs off, and its beats hear of the loss.
            .filter(|(core, _)| core.revert.get() != Revert::Unannounced)
        else {
            answer(&reply, None, 0);
            return None;
        };
        core.touch();
        let total = u64::from(chunk.membership_bytes) + chunk.tables_bytes;
        let part = Part {
            origin: Origin {
                node: from,
                replica: chunk.route.from,
                last: chunk.last,
            },
            position: chunk.position,
            total_bytes: total,
            bytes: payload,
        };
        let taken = self.assemblies.borrow_mut().take(core.group, part);
        let bytes = match taken {
            Taken::Whole(bytes) => bytes,
            Taken::More(received) => {
                answer(&reply, Some(chunk.vote), received);
                return None;
            }
            Taken::OutOfOrder => {
                answer(&reply, Some(chunk.vote), 0);
                return None;
            }
            Taken::Full => {
                tracing::info!(
                    parent: &core.span(),
                    group = %core.group,
                    "a snapshot is put off: others are arriving and hold the shard's room for them"
                );
                answer(&reply, None, 0);
                return None;
            }
        };
        let membership = bytes.slice(..chunk.membership_bytes as usize);
        let tables = bytes.slice(chunk.membership_bytes as usize..);
        let at = (Term::new(chunk.last.term), LogIndex::new(chunk.last.index));
        let offset = Offset::new(chunk.next_offset);
        let snapshot = match snapshot_from_parts(at, offset, membership, tables) {
            Ok(snapshot) => snapshot,
            Err(error) => {
                tracing::warn!(parent: &core.span(), group = %core.group, %error, "a malformed snapshot is refused");
                answer(&reply, None, 0);
                return None;
            }
        };
        Some(Box::pin(async move {
            match raft
                .install_full_snapshot(chunk.vote.into(), snapshot)
                .await
            {
                Ok(installed) => answer(&reply, Some((&installed.vote).into()), total),
                Err(_) => answer(&reply, None, 0),
            }
        }))
    }

    /// What `node` had begun to send will not go on: whoever sends a snapshot begins anew.
    pub(crate) fn drop_assemblies_of(&self, node: NodeId) {
        self.assemblies.borrow_mut().forget_node(node);
    }

    fn answer_survey(&self, ask: SurveyAsk) -> SurveyAnswer {
        let state = self.target(&ask.route).and_then(|core| {
            core.wake();
            if ask.route.from == ask.leader
                && core.note_leader_lost(ask.leader, ask.term, Lost::Said)
            {
                // The leader itself asks: it has restarted (law 2).
                self.leader_lost(&core);
            }
            let vote = core.vote()?;
            Some(SurveyState {
                vote: (&vote).into(),
                last: core.last_log_id().as_ref().map(Into::into),
                leader_down: core.leader_is_gone(),
                no_vote: core.no_vote(),
            })
        });
        SurveyAnswer {
            call: ask.call,
            state,
        }
    }

    fn leader_lost(&self, core: &Rc<Core>) {
        if let Some(shard) = self.this.upgrade() {
            failover::leader_lost(&shard, core);
        }
    }

    /// Law 13: only with a live leader whose whole log is applied here.
    fn sleep(&self, ask: SleepAsk) -> bool {
        let Some(core) = self.target(&ask.route) else {
            return false;
        };
        let Some(vote) = core.vote() else {
            return false;
        };
        let state = core.log.state();
        let last = Some((Term::new(ask.last.term), LogIndex::new(ask.last.index)));
        let sleeps = vote.committed
            && vote.leader_id.term == ask.term
            && vote.leader_id.voted_for == ask.route.from
            && !core.no_vote()
            && state.last == last
            && core.applied.get() == last
            && state.durable_last == last.map(|(_, index)| index)
            && core
                .leader_node()
                .is_some_and(|node| !self.nodes.is_down(node));
        if sleeps {
            core.fall_asleep(Term::new(ask.term));
        }
        sleeps
    }

    fn asleep_beat(&self, from: NodeId, beat: AsleepBeat) {
        let sleeps_with_it = self
            .target(&beat.route)
            .is_some_and(|core| !core.stopped.get() && core.sleep_heard(Term::new(beat.term)));
        if sleeps_with_it {
            return;
        }
        // A restart, another term, or no such replica here (any more). The leader has to speak
        // up: it learns from the answer who takes nothing.
        let route = beat.route.reversed();
        let _ = self.board.pack(from, |packed| {
            packed.wakes.push(WakeNote {
                route,
                resigned: None,
            })
        });
    }

    fn wake(&self, note: WakeNote) {
        let Some(core) = self.target(&note.route) else {
            return;
        };
        core.wake();
        if let Some(term) = note.resigned
            && core.note_leader_lost(note.route.from, term, Lost::Said)
        {
            self.leader_lost(&core);
        }
    }

    fn revert_allowed(&self, note: RevertAllowed) {
        let Some(core) = self.target(&note.route) else {
            return;
        };
        // One that a read has just flagged has told no leader yet: it is reopened first.
        if core.revert.get() != Revert::None && Term::new(note.term) >= core.term() {
            let end = (Term::new(note.end.term), LogIndex::new(note.end.index));
            core.revert.set(Revert::Until { end });
            core.check_revert();
        }
    }
}

/// What a vote request is answered with before openraft is asked: laws 8 and 12.
fn refuse_vote(core: &Core, ask: &VoteAsk) -> Option<VoteGrant> {
    let vote = core.vote()?;
    let now = core.env.now();
    let flagged = core.no_vote() && !ask.all_answered;
    // While a group sleeps, and just after, its leases are stale: the detector stands in.
    let stands_in = core.is_asleep() || now < core.stand_in_until.get();
    let leader_lives = vote.committed && !core.leader_is_gone();
    let protected = stands_in && leader_lives && !honours_transfer(core, ask);
    (flagged || protected).then(|| VoteGrant {
        vote: (&vote).into(),
        granted: false,
        last: core.last_log_id().as_ref().map(Into::into),
    })
}

/// Law 12: the privilege counts only if this node's own detector holds the leader down, or the
/// leader ordered this very campaign.
fn honours_transfer(core: &Core, ask: &VoteAsk) -> bool {
    if !ask.leadership_transfer {
        return false;
    }
    let Some(vote) = core.vote() else {
        return false;
    };
    if !vote.committed {
        // No leader is known, so there is no lease to protect.
        return true;
    }
    if core.ordered.get() == Some((vote.leader_id.term, ask.route.from)) {
        return true;
    }
    core.leader_is_gone()
}

fn snapshot_is_sane(core: &Core, chunk: &SnapshotChunk, payload_bytes: u64) -> bool {
    let total = u64::from(chunk.membership_bytes) + chunk.tables_bytes;
    let applied_before = core.applied.get().is_none_or(|(term, index)| {
        // Nothing committed lies beyond a later snapshot at a lower index.
        chunk.last.index > index.get() || chunk.last.term <= term.get()
    });
    total <= SNAPSHOT_BYTES_MAX
        && chunk.position.saturating_add(payload_bytes) <= total
        && (payload_bytes > 0 || total == 0)
        && chunk.vote.committed
        && chunk.last.term <= chunk.vote.term
        && applied_before
}

fn outcome_of(
    answered: Result<AppendEntriesResponse<TypeConfig>, openraft::errors::RaftError<TypeConfig>>,
) -> AppendOutcome {
    match answered {
        Ok(AppendEntriesResponse::Success) => AppendOutcome::Flushed,
        // openraft's own receiver never answers so; the leader asks again.
        Ok(AppendEntriesResponse::PartialSuccess(_)) => AppendOutcome::Refused(Refusal::Stopped),
        Ok(AppendEntriesResponse::Conflict) => AppendOutcome::Conflict,
        Ok(AppendEntriesResponse::HigherVote(vote)) => AppendOutcome::HigherVote((&vote).into()),
        Err(_) => AppendOutcome::Refused(Refusal::Stopped),
    }
}

/// Checks what openraft takes for granted: places that follow each other, terms that do not fall,
/// bytes that add up.
pub(crate) fn decode_append(
    append: Append,
    payload: Bytes,
) -> Result<AppendEntriesRequest<TypeConfig>, &'static str> {
    if !append.vote.committed {
        return Err("an append from a candidate");
    }
    let vote: RaftVote = append.vote.into();
    let prev: Option<LogId> = append.prev.map(Into::into);
    if prev.is_some_and(|prev| prev.leader_id.term > append.vote.term || prev.index == u64::MAX) {
        return Err("a previous entry beyond the leader's term");
    }
    let mut place = prev.map(|prev| (prev.leader_id.term, prev.index));
    let mut at = 0usize;
    let mut entries = Vec::with_capacity(append.entries.len());
    for wire in &append.entries {
        let expected = place.map_or(0, |(_, index)| index + 1);
        if wire.index != expected || wire.index == u64::MAX {
            return Err("entries that do not follow each other");
        }
        if place.is_some_and(|(term, _)| wire.term < term) || wire.term > append.vote.term {
            return Err("terms that fall, or exceed the leader's");
        }
        place = Some((wire.term, wire.index));
        let upto = at
            .checked_add(wire.payload_bytes as usize)
            .filter(|end| *end <= payload.len());
        let Some(upto) = upto else {
            return Err("entries longer than the payload");
        };
        let bytes = payload.slice(at..upto);
        at = upto;
        let (kind, records, body) = match wire.kind {
            WireKind::Blank => (EntryKind::Blank, 0, EntryPayload::Blank),
            WireKind::Internal => (
                EntryKind::Internal,
                0,
                EntryPayload::Normal(Proposed {
                    body: Body::Internal(bytes),
                    ticket: None,
                }),
            ),
            WireKind::Membership => {
                let members = MembershipRecord::decode(&bytes)
                    .and_then(|record| record.membership())
                    .map_err(|_| "a membership that is none")?;
                (EntryKind::Membership, 0, EntryPayload::Membership(members))
            }
            WireKind::Batch { head } => {
                let batch = Batch::from_parts(head, bytes).map_err(|_| "a batch that is none")?;
                let header = *batch.header();
                let is_stamped = header.base_offset.get() == wire.base_offset
                    || planted::is(Bug::OffsetAtPropose);
                if !is_stamped || header.last_offset_delta < 0 {
                    return Err("a batch that was not stamped for its place");
                }
                let records = header.last_offset_delta as u32 + 1;
                let body = Proposed {
                    body: Body::Batch(batch),
                    ticket: None,
                };
                (EntryKind::Batch, records, EntryPayload::Normal(body))
            }
        };
        let (term, index) = (Term::new(wire.term), LogIndex::new(wire.index));
        let base_offset = Offset::new(wire.base_offset);
        entries.push(LogEntry {
            id: log_id(term, index),
            head: Some(EntryHead {
                term,
                index,
                base_offset,
                records,
                kind,
            }),
            payload: body,
        });
    }
    if at != payload.len() {
        return Err("a payload longer than its entries");
    }
    Ok(AppendEntriesRequest {
        vote,
        prev_log_id: prev,
        entries,
        leader_commit: append.commit.map(Into::into),
    })
}
