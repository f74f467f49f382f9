//! openraft's network: appends as a pipelined stream, beats gathered, the rest question and answer.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use corduroy_record::{NodeId, ReplicaId};
use corduroy_storage::SavedTables;
use futures::{Stream, StreamExt};
use openraft::EntryPayload;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{
    Backoff, NetBackoff, NetSnapshot, NetStreamAppend, NetTransferLeader, NetVote, RPCOption,
    RaftNetworkFactory,
};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;

use crate::counts::Counts;
use crate::machine::snapshot_parts;
use crate::replica_core::Core;
use crate::transport::{AskError, Outbox, StreamSlot};
use crate::types::{Body, LogId, MembershipRecord, RaftNode, RaftVote, TypeConfig, place};
use crate::wire::{
    Append, AppendOutcome, Beat, Message, Refusal, Route, SnapshotAnswer, SnapshotChunk,
    TransferAsk, VoteAnswer, VoteAsk, WireEntry, WireKind,
};

type AppendResult = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;

/// Makes the clients of one replica.
pub struct NetworkFactory {
    core: Rc<Core>,
}

/// Which of openraft's three conversations a client carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Heartbeat,
    Snapshot,
}

/// Speaks to one replica of the group.
pub struct Client {
    core: Rc<Core>,
    target: u64,
    node: NodeId,
    kind: Kind,
}

impl NetworkFactory {
    pub(crate) fn new(core: Rc<Core>) -> NetworkFactory {
        NetworkFactory { core }
    }

    fn client(&self, target: u64, node: &RaftNode, kind: Kind) -> Client {
        Client {
            core: self.core.clone(),
            target,
            node: node.node,
            kind,
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for NetworkFactory {
    type Network = Client;

    async fn new_client(&mut self, target: u64, node: &RaftNode) -> Client {
        self.client(target, node, Kind::Data)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &RaftNode) -> Client {
        self.client(target, node, Kind::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &RaftNode) -> Client {
        self.client(target, node, Kind::Snapshot)
    }
}

fn unreachable(what: &str) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::from_string(what))
}

fn broken(what: &str) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::from_string(what))
}

impl From<AskError> for RPCError<TypeConfig> {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Down => unreachable("the peer cannot be reached"),
            AskError::Timeout => broken("no answer in time"),
        }
    }
}

impl Client {
    fn route(&self) -> Route {
        Route::new(self.core.group, self.core.id, ReplicaId::new(self.target))
    }

    /// What a reply means for openraft. `last` is the request's last entry.
    fn outcome(
        &self,
        outcome: AppendOutcome,
        prev: Option<LogId>,
        last: Option<LogId>,
    ) -> AppendResult {
        match outcome {
            AppendOutcome::Flushed => {
                self.core.progress.note(
                    self.target,
                    last.as_ref().map(|id| place(id).1),
                    self.core.last(),
                    self.core.env.now(),
                );
                Ok(Ok(last))
            }
            AppendOutcome::Conflict => match prev {
                Some(prev) => Ok(Err(StreamAppendError::Conflict(prev))),
                None => Err(broken("a conflict with the beginning of the log")),
            },
            AppendOutcome::HigherVote(vote) => Ok(Err(StreamAppendError::HigherVote(vote.into()))),
            AppendOutcome::Refused(Refusal::Reverted) => {
                self.core.forget_follower(self.target);
                self.core.allow_revert(self.target, self.node);
                Err(broken("the follower's log is shorter than it was"))
            }
            AppendOutcome::Refused(Refusal::UnknownReplica) => {
                self.core.forget_follower(self.target);
                Err(unreachable("the peer has no such replica"))
            }
            AppendOutcome::Refused(Refusal::Stopped) => {
                self.core.forget_follower(self.target);
                Err(unreachable("the replica has stopped"))
            }
            AppendOutcome::Refused(Refusal::Malformed) => {
                Err(unreachable("the peer calls the request malformed"))
            }
        }
    }

    async fn beat(&self, request: AppendEntriesRequest<TypeConfig>) -> AppendResult {
        let prev = request.prev_log_id;
        let (route, vote) = (self.route(), (&request.vote).into());
        let commit = request.leader_commit.as_ref().map(Into::into);
        // Not the interval between two beats: an answer that is later than that, from a busy peer,
        // is still the answer, and a leader that throws it away hears nobody.
        let patience = self.core.config.election_min;
        let asked = self.core.board.ask(self.node, patience, |link, call| {
            let beat = Beat {
                route,
                call,
                vote,
                prev: prev.as_ref().map(Into::into),
                commit,
            };
            link.pack_beat(beat, self.core.beat_hold())
        });
        match asked.await? {
            (Message::BeatReplies(replies), _) if replies.len() == 1 => {
                self.outcome(replies[0].outcome, prev, prev)
            }
            _ => Err(broken("an answer to another question")),
        }
    }
}

impl NetBackoff<TypeConfig> for Client {
    fn backoff(&self) -> Option<Backoff> {
        None
    }
}

/// How long a request that only moves the follower's commit index waits for one that carries
/// entries and moves it as well. Nobody waits for a follower's commit index, and on its own it
/// costs both sides two wake-ups for each write.
const COMMIT_HOLD: Duration = Duration::from_millis(1);

/// A request on the wire.
struct InFlight {
    seq: u64,
    prev: Option<LogId>,
    last: Option<LogId>,
    bytes: usize,
}

/// A pipelined append stream: reads openraft's requests as long as the window is open, and hands
/// back replies in order. Runs inside openraft's replication task: no task of its own.
struct AppendStream<'s, S> {
    client: &'s Client,
    input: Option<S>,
    id: u64,
    slot: Rc<StreamSlot>,
    outbox: Rc<Outbox>,
    next_seq: u64,
    in_flight: VecDeque<InFlight>,
    bytes_in_flight: usize,
    /// Since when the oldest request waits.
    deadline: Pin<Box<tokio::time::Sleep>>,
    deadline_set: bool,
    /// The last entry that was sent, once one was.
    sent: Option<LogId>,
    /// A request that moves the commit index alone.
    held: Option<AppendEntriesRequest<TypeConfig>>,
    held_until: Pin<Box<tokio::time::Sleep>>,
    ended: bool,
}

impl<S> Drop for AppendStream<'_, S> {
    fn drop(&mut self) {
        self.client.core.board.close_stream(self.id);
    }
}

impl<S> AppendStream<'_, S>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin,
{
    fn end(&mut self, last: AppendResult) -> Poll<Option<AppendResult>> {
        self.ended = true;
        Poll::Ready(Some(last))
    }

    fn arm(&mut self) {
        let at = self.client.core.env.now() + self.client.core.config.append_reply_max;
        self.deadline.as_mut().reset(at);
        self.deadline_set = true;
    }

    fn window_open(&self) -> bool {
        let config = &self.client.core.config;
        self.in_flight.len() < config.append_window_requests
            && self.bytes_in_flight < config.append_window_bytes
    }

    /// Sends a request, or holds it while it may be spared.
    fn take(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> Result<(), RPCError<TypeConfig>> {
        if let Some(held) = self.held.take() {
            // What comes after it says the same and more, or it has to go first.
            let is_spared = held.vote == request.vote
                && held.prev_log_id == request.prev_log_id
                && held.leader_commit <= request.leader_commit;
            if !is_spared {
                self.send(held)?;
            }
        }
        let only_commit =
            request.entries.is_empty() && self.sent.is_some() && self.sent == request.prev_log_id;
        if !only_commit {
            return self.send(request);
        }
        let until = self.client.core.env.now() + COMMIT_HOLD;
        self.held_until.as_mut().reset(until);
        self.held = Some(request);
        Ok(())
    }

    fn send(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
    ) -> Result<(), RPCError<TypeConfig>> {
        let client = self.client;
        let (entries, payload) = encode_entries(&request)?;
        let bytes = payload.iter().map(Bytes::len).sum();
        let seq = self.next_seq;
        self.next_seq += 1;
        let last = request
            .entries
            .last()
            .map(|entry| entry.id)
            .or(request.prev_log_id);
        if !entries.is_empty() {
            client.core.touch();
            self.sent = last;
        }
        let message = Message::Append(Append {
            route: client.route(),
            stream: self.id,
            seq,
            vote: (&request.vote).into(),
            prev: request.prev_log_id.as_ref().map(Into::into),
            commit: request.leader_commit.as_ref().map(Into::into),
            entries,
        });
        if !self.outbox.push(&message, payload) {
            return Err(unreachable("the peer does not take more"));
        }
        self.in_flight.push_back(InFlight {
            seq,
            prev: request.prev_log_id,
            last,
            bytes,
        });
        self.bytes_in_flight += bytes;
        if self.in_flight.len() == 1 {
            self.arm();
        }
        Ok(())
    }
}

impl<S> Stream for AppendStream<'_, S>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin,
{
    type Item = AppendResult;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AppendResult>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        loop {
            match this.slot.poll_reply(cx) {
                Poll::Ready(Some(reply)) => {
                    // A reply answers every request up to its own: they are handled in order.
                    let mut answered = None;
                    while let Some(front) = this.in_flight.front() {
                        if front.seq > reply.seq {
                            break;
                        }
                        this.bytes_in_flight -= front.bytes;
                        answered = this.in_flight.pop_front();
                    }
                    let Some(answered) = answered else { continue };
                    if this.in_flight.is_empty() {
                        this.deadline_set = false;
                    } else {
                        this.arm();
                    }
                    let result = this
                        .client
                        .outcome(reply.outcome, answered.prev, answered.last);
                    return match result {
                        Ok(Ok(_)) => Poll::Ready(Some(result)),
                        other => this.end(other),
                    };
                }
                Poll::Ready(None) => return this.end(Err(unreachable("the connection broke"))),
                Poll::Pending => {}
            }
            if !this.window_open() || !this.outbox.poll_room(cx) {
                break;
            }
            let Some(input) = this.input.as_mut() else {
                break;
            };
            match input.poll_next_unpin(cx) {
                Poll::Ready(Some(request)) => {
                    if let Err(error) = this.take(request) {
                        return this.end(Err(error));
                    }
                }
                Poll::Ready(None) => this.input = None,
                Poll::Pending => break,
            }
        }
        if this.held.is_some()
            && (this.input.is_none() || this.held_until.as_mut().poll(cx).is_ready())
            && let Some(held) = this.held.take()
            && let Err(error) = this.send(held)
        {
            return this.end(Err(error));
        }
        if this.input.is_none() && this.in_flight.is_empty() {
            this.ended = true;
            return Poll::Ready(None);
        }
        if this.deadline_set && this.deadline.as_mut().poll(cx).is_ready() {
            return this.end(Err(broken("the follower does not answer")));
        }
        Poll::Pending
    }
}

/// The entries' places for the envelope, and their bytes for beside it. Nothing is copied.
fn encode_entries(
    request: &AppendEntriesRequest<TypeConfig>,
) -> Result<(Vec<WireEntry>, Vec<Bytes>), RPCError<TypeConfig>> {
    let mut entries = Vec::with_capacity(request.entries.len());
    let mut payload = Vec::with_capacity(request.entries.len());
    for entry in &request.entries {
        let Some(head) = entry.head else {
            return Err(broken("an entry that was never stamped"));
        };
        let (kind, bytes) = match &entry.payload {
            EntryPayload::Blank => (WireKind::Blank, Bytes::new()),
            EntryPayload::Membership(members) => (
                WireKind::Membership,
                MembershipRecord::of(members, None).encode(),
            ),
            EntryPayload::Normal(proposed) => match &proposed.body {
                Body::Batch(batch) => {
                    (WireKind::Batch { head: batch.head() }, batch.body().clone())
                }
                Body::Internal(bytes) => (WireKind::Internal, bytes.clone()),
                Body::Applied(_) => return Err(broken("an entry without its bytes")),
            },
        };
        entries.push(WireEntry {
            term: head.term.get(),
            index: head.index.get(),
            base_offset: head.base_offset.get(),
            kind,
            payload_bytes: bytes.len() as u32,
        });
        if !bytes.is_empty() {
            payload.push(bytes);
        }
    }
    Ok((entries, payload))
}

impl NetStreamAppend<TypeConfig> for Client {
    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, AppendResult>, RPCError<TypeConfig>>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin + 'static,
    {
        Box::pin(async move {
            let client: &'s Client = self;
            if client.kind == Kind::Heartbeat {
                let Some(request) = input.next().await else {
                    let none: BoxStream<'s, AppendResult> = Box::pin(futures::stream::empty());
                    return Ok(none);
                };
                let beat: BoxStream<'s, AppendResult> =
                    Box::pin(futures::stream::once(client.beat(request)));
                return Ok(beat);
            }
            let board = &client.core.board;
            let Ok(outbox) = board.link(client.node).outbox() else {
                // openraft waits its backoff out inside the request stream: whoever fails without
                // reading a request is asked again at once, and never rests.
                let _unsent = input.next().await;
                Counts::add(&board.counts.streams_refused, 1);
                return Err(unreachable("the peer cannot be reached"));
            };
            let (id, slot) = board.open_stream(client.node);
            let stream: BoxStream<'s, AppendResult> = Box::pin(AppendStream {
                client,
                input: Some(input),
                id,
                slot,
                outbox,
                next_seq: 0,
                in_flight: VecDeque::new(),
                bytes_in_flight: 0,
                deadline: Box::pin(tokio::time::sleep(
                    Duration::MAX.min(client.core.config.append_reply_max),
                )),
                deadline_set: false,
                sent: None,
                held: None,
                held_until: Box::pin(tokio::time::sleep(COMMIT_HOLD)),
                ended: false,
            });
            Ok(stream)
        })
    }
}

impl Client {
    async fn ask_vote(
        &self,
        request: VoteRequest<TypeConfig>,
        pre_vote: bool,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let all_answered = self.core.all_answered();
        if self.core.no_vote() && !all_answered {
            // Law 8: a flagged replica does not campaign.
            return Err(unreachable("this replica may not lead"));
        }
        // The receiver decides whether it believes that the leader is gone (law 12).
        let succeeds_itself =
            self.core.own_lost_term.get().map(|term| term + 1) == Some(request.vote.leader_id.term);
        let route = self.route();
        let asked = self
            .core
            .board
            .ask(self.node, option.hard_ttl(), |link, call| {
                let ask = VoteAsk {
                    route,
                    call,
                    pre_vote,
                    vote: (&request.vote).into(),
                    last: request.last_log_id.as_ref().map(Into::into),
                    leadership_transfer: request.leadership_transfer || succeeds_itself,
                    all_answered,
                };
                link.send(&Message::Vote(ask), Vec::new())
            });
        match asked.await? {
            (
                Message::VoteAnswer(VoteAnswer {
                    answer: Some(grant),
                    ..
                }),
                _,
            ) => {
                let vote: RaftVote = grant.vote.into();
                Ok(VoteResponse::new(
                    vote,
                    grant.last.map(Into::into),
                    grant.granted,
                ))
            }
            (Message::VoteAnswer(_), _) => Err(unreachable("the peer has no such replica")),
            _ => Err(broken("an answer to another question")),
        }
    }
}

impl NetVote<TypeConfig> for Client {
    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_vote(request, false, option).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_vote(request, true, option).await
    }
}

impl NetTransferLeader<TypeConfig> for Client {
    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let route = self.route();
        let asked = self
            .core
            .board
            .ask(self.node, option.hard_ttl(), |link, call| {
                let ask = TransferAsk {
                    route,
                    call,
                    leader: request.from_leader().into(),
                    target: *request.to_node_id(),
                    last: request.last_log_id().map(Into::into),
                };
                link.send(&Message::Transfer(ask), Vec::new())
            });
        match asked.await? {
            (Message::TransferAnswer { accepted: true, .. }, _) => Ok(Ok(())),
            (
                Message::TransferAnswer {
                    accepted: false, ..
                },
                _,
            ) => Ok(Err(TransferLeaderError::LogNotFlushed {
                expected: request.last_log_id().copied(),
                actual: None,
            })),
            _ => Err(broken("an answer to another question")),
        }
    }
}

impl NetSnapshot<TypeConfig> for Client {
    type SnapshotData = SavedTables;

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: SnapshotOf<TypeConfig, SavedTables>,
        cancel: impl Future<Output = ReplicationClosed> + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let send = self.send_snapshot(vote, snapshot.snapshot, option.hard_ttl());
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = send => sent.map_err(StreamingError::from),
        }
    }
}

impl Client {
    /// Sends membership and tables in chunks, each after the answer to the one before.
    async fn send_snapshot(
        &self,
        vote: RaftVote,
        saved: SavedTables,
        deadline: Duration,
    ) -> Result<SnapshotResponse<TypeConfig>, RPCError<TypeConfig>> {
        let [membership, tables] = snapshot_parts(&saved);
        let total = (membership.len() + tables.len()) as u64;
        let mut position = 0u64;
        loop {
            let chunk = cut(
                [&membership, &tables],
                position as usize,
                self.core.config.snapshot_chunk_bytes.max(1),
            );
            let chunk_bytes: usize = chunk.iter().map(Bytes::len).sum();
            let route = self.route();
            let asked = self.core.board.ask(self.node, deadline, |link, call| {
                let message = Message::Snapshot(SnapshotChunk {
                    route,
                    call,
                    vote: (&vote).into(),
                    last: (&crate::types::log_id(saved.at.0, saved.at.1)).into(),
                    next_offset: saved.offset.get(),
                    membership_bytes: membership.len() as u32,
                    tables_bytes: tables.len() as u64,
                    position,
                });
                link.send(&message, chunk)
            });
            let (vote, received) = match asked.await? {
                (
                    Message::SnapshotAnswer(SnapshotAnswer {
                        vote: Some(vote),
                        received,
                        ..
                    }),
                    _,
                ) => (vote, received),
                (Message::SnapshotAnswer(_), _) => {
                    return Err(unreachable("the peer refused the snapshot"));
                }
                _ => return Err(broken("an answer to another question")),
            };
            position += chunk_bytes as u64;
            if received != position {
                return Err(broken("the peer lost part of the snapshot"));
            }
            if position >= total {
                return Ok(SnapshotResponse::new(vote.into()));
            }
        }
    }
}

/// `bytes_max` bytes from `position` on, of two runs laid end to end.
fn cut(parts: [&Bytes; 2], position: usize, bytes_max: usize) -> Vec<Bytes> {
    let mut chunks = Vec::new();
    let mut skip = position;
    let mut room = bytes_max;
    for part in parts {
        let from = skip.min(part.len());
        skip -= from;
        let upto = part.len().min(from + room);
        if from < upto {
            chunks.push(part.slice(from..upto));
            room -= upto - from;
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_cut_across_its_parts() {
        let (a, b) = (Bytes::from_static(b"abc"), Bytes::from_static(b"defgh"));
        let at = |position, max| {
            cut([&a, &b], position, max)
                .iter()
                .flat_map(|c| c.to_vec())
                .collect::<Vec<u8>>()
        };
        assert_eq!(at(0, 2), b"ab");
        assert_eq!(at(2, 3), b"cde");
        assert_eq!(at(5, 100), b"fgh");
        assert_eq!(at(8, 100), b"");
        let empty = Bytes::new();
        assert!(cut([&empty, &empty], 0, 10).is_empty());
    }
}
