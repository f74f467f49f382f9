//! A group on a bench: requests go in, answers are kept by ticket, the clock and the disk obey.
//!
//! After every call the group's laws are walked, and no ticket is ever answered twice.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use corduroy_group::classic::{
    ClassicGroup, ClassicLimits, Effect, JoinAnswer, JoinRequest, Joined, Leaving, MemberIdentity,
    SyncAnswer, SyncRequest, Ticket, WriteId,
};
use corduroy_group::records::ClassicValue;
use corduroy_protocol::ErrorCode;

pub const SESSION: Duration = Duration::from_secs(10);
pub const REBALANCE: Duration = Duration::from_secs(60);
pub const DELAY: Duration = Duration::from_secs(3);

pub const LIMITS: ClassicLimits = ClassicLimits {
    session_timeout_min: Duration::from_secs(6),
    session_timeout_max: Duration::from_secs(1800),
    initial_rebalance_delay: DELAY,
    members_max: 1000,
};

/// What becomes of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Durable at once.
    Quick,
    /// When the test says so.
    Slow,
}

pub struct Bench {
    pub group: ClassicGroup,
    pub now: Duration,
    pub disk: Disk,
    pub writes: VecDeque<(WriteId, ClassicValue)>,
    /// The last value that was durable.
    pub durable: Option<ClassicValue>,
    pub joins: BTreeMap<Ticket, JoinAnswer>,
    pub syncs: BTreeMap<Ticket, SyncAnswer>,
    pub open: BTreeSet<Ticket>,
    pub notes: Vec<String>,
    /// Walk the laws after every so many calls; 1 where a group is small.
    pub walk_each: u64,
    calls: u64,
    ticket_last: u64,
    id_last: u64,
}

/// A JoinGroup of the newest version for "range" (first) and "roundrobin", with metadata "m".
pub fn request() -> JoinRequest {
    JoinRequest {
        member_id: String::new(),
        instance_id: None,
        fresh_member_id: String::new(),
        requires_known_member_id: false,
        supports_skip_assignment: true,
        client_id: "client".to_owned(),
        client_host: "/10.0.0.1".to_owned(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".to_owned(),
        protocols: protocols(&["range", "roundrobin"]),
        reason: None,
    }
}

pub fn protocols(names: &[&str]) -> Vec<(String, Bytes)> {
    names
        .iter()
        .map(|name| ((*name).to_owned(), Bytes::from_static(b"m")))
        .collect()
}

pub fn instance(id: &str) -> JoinRequest {
    JoinRequest {
        instance_id: Some(id.to_owned()),
        ..request()
    }
}

pub fn member(id: &str) -> JoinRequest {
    JoinRequest {
        member_id: id.to_owned(),
        ..request()
    }
}

pub fn identity(id: &str, generation: i32) -> MemberIdentity {
    MemberIdentity {
        member_id: id.to_owned(),
        instance_id: None,
        generation,
    }
}

pub fn static_identity(id: &str, instance: &str, generation: i32) -> MemberIdentity {
    MemberIdentity {
        instance_id: Some(instance.to_owned()),
        ..identity(id, generation)
    }
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with(ClassicGroup::new(LIMITS, 0))
    }

    pub fn with(group: ClassicGroup) -> Bench {
        Bench {
            group,
            now: Duration::from_secs(1000),
            disk: Disk::Quick,
            writes: VecDeque::new(),
            durable: None,
            joins: BTreeMap::new(),
            syncs: BTreeMap::new(),
            open: BTreeSet::new(),
            notes: Vec::new(),
            walk_each: 1,
            calls: 0,
            ticket_last: 0,
            id_last: 0,
        }
    }

    /// Milliseconds on the wall.
    pub fn now_ms(&self) -> i64 {
        1_700_000_000_000 + i64::try_from(self.now.as_millis()).unwrap()
    }

    pub fn ticket(&mut self) -> Ticket {
        self.ticket_last += 1;
        let ticket = Ticket(self.ticket_last);
        self.open.insert(ticket);
        ticket
    }

    pub fn join(&mut self, mut request: JoinRequest) -> Ticket {
        self.id_last += 1;
        let prefix = request.instance_id.as_deref().unwrap_or("member");
        request.fresh_member_id = format!("{prefix}-{}", self.id_last);
        let ticket = self.ticket();
        let mut out = Vec::new();
        let (now, now_ms) = (self.now, self.now_ms());
        self.group.join(request, ticket, now, now_ms, &mut out);
        self.take(out);
        ticket
    }

    pub fn sync_request(&mut self, request: SyncRequest) -> Ticket {
        let ticket = self.ticket();
        let mut out = Vec::new();
        self.group.sync(request, ticket, self.now, &mut out);
        self.take(out);
        ticket
    }

    /// SyncGroup of a member, with assignments if it leads.
    pub fn sync(&mut self, identity: MemberIdentity, assignments: &[(&str, &str)]) -> Ticket {
        self.sync_request(SyncRequest {
            identity,
            protocol_type: None,
            protocol: None,
            assignments: assignments
                .iter()
                .map(|(id, text)| ((*id).to_owned(), Bytes::copy_from_slice(text.as_bytes())))
                .collect(),
        })
    }

    pub fn heartbeat(&mut self, identity: &MemberIdentity) -> Result<(), ErrorCode> {
        let result = self.group.heartbeat(identity, self.now);
        self.take(Vec::new());
        result.map_err(|error| error.code)
    }

    pub fn commit(&mut self, identity: &MemberIdentity) -> Result<(), ErrorCode> {
        let result = self.group.check_commit(identity, self.now);
        self.take(Vec::new());
        result.map_err(|error| error.code)
    }

    pub fn leave(&mut self, leaving: &[(&str, Option<&str>)]) -> Vec<Result<(), ErrorCode>> {
        let leaving = leaving
            .iter()
            .map(|(id, instance)| Leaving {
                member_id: (*id).to_owned(),
                instance_id: instance.map(str::to_owned),
                reason: None,
            })
            .collect();
        let mut out = Vec::new();
        let (now, now_ms) = (self.now, self.now_ms());
        let results = self.group.leave(leaving, now, now_ms, &mut out);
        self.take(out);
        results
            .into_iter()
            .map(|result| result.map_err(|error| error.code))
            .collect()
    }

    pub fn forget(&mut self, ticket: Ticket) {
        assert!(self.open.remove(&ticket), "{ticket:?} has an answer");
        self.group.forget(ticket, self.now);
        self.take(Vec::new());
    }

    /// Lets time pass, deadline by deadline.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(deadline) = self.group.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(deadline);
            self.tick();
        }
        self.now = end;
    }

    pub fn tick(&mut self) {
        let mut out = Vec::new();
        let (now, now_ms) = (self.now, self.now_ms());
        self.group.tick(now, now_ms, &mut out);
        self.take(out);
    }

    /// Ends the write that is under way. One that timed out became durable all the same.
    pub fn persisted(&mut self, outcome: Result<(), ErrorCode>) {
        let (id, value) = self.writes.pop_front().expect("a write is under way");
        if matches!(outcome, Ok(()) | Err(ErrorCode::RequestTimedOut)) {
            self.durable = Some(value);
        }
        let mut out = Vec::new();
        let (now, now_ms) = (self.now, self.now_ms());
        self.group.persisted(id, outcome, now, now_ms, &mut out);
        self.take(out);
    }

    pub fn close(&mut self, error: ErrorCode) {
        let mut out = Vec::new();
        self.group.close(error, &mut out);
        self.writes.clear();
        self.take(out);
    }

    fn take(&mut self, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Join(ticket, answer) => {
                    assert!(
                        self.open.remove(&ticket),
                        "{ticket:?} answered twice or forgotten"
                    );
                    self.joins.insert(ticket, answer);
                }
                Effect::Sync(ticket, answer) => {
                    assert!(
                        self.open.remove(&ticket),
                        "{ticket:?} answered twice or forgotten"
                    );
                    self.syncs.insert(ticket, answer);
                }
                Effect::Persist(id, value) => self.writes.push_back((id, value)),
                Effect::Note(note) => self.notes.push(note),
            }
        }
        assert!(self.writes.len() <= 1, "one write at a time");
        self.calls += 1;
        if self.calls.is_multiple_of(self.walk_each)
            && let Err(law) = self.group.verify()
        {
            panic!("{law}\n{}", self.notes.join("\n"));
        }
        if self.disk == Disk::Quick && !self.writes.is_empty() {
            self.persisted(Ok(()));
        }
    }

    /// The answer to a join that was successful.
    pub fn joined(&self, ticket: Ticket) -> &Joined {
        let answer = self.joins.get(&ticket).expect("an answer");
        answer.result.as_ref().expect("a success")
    }

    pub fn join_error(&self, ticket: Ticket) -> ErrorCode {
        let answer = self.joins.get(&ticket).expect("an answer");
        answer.result.as_ref().expect_err("a refusal").code
    }

    /// The member id in the answer to a join.
    pub fn id(&self, ticket: Ticket) -> String {
        self.joins
            .get(&ticket)
            .expect("an answer")
            .member_id
            .clone()
    }

    /// What a sync was answered: the assignment as text.
    pub fn synced(&self, ticket: Ticket) -> Result<String, ErrorCode> {
        match self.syncs.get(&ticket).expect("an answer") {
            Ok(synced) => Ok(String::from_utf8(synced.assignment.to_vec()).unwrap()),
            Err(error) => Err(error.code),
        }
    }

    pub fn is_parked(&self, ticket: Ticket) -> bool {
        self.open.contains(&ticket)
    }

    /// A Stable group of members that joined together; their ids in order. The first one leads, and
    /// member n has assignment "a<n>".
    pub fn stable(requests: &[JoinRequest]) -> (Bench, Vec<String>) {
        let mut bench = Bench::new();
        bench.walk_each = (requests.len() as u64 / 10).max(1);
        let ids = bench.completing(requests);
        bench.assign(&ids);
        (bench, ids)
    }

    /// The same up to CompletingRebalance.
    pub fn completing(&mut self, requests: &[JoinRequest]) -> Vec<String> {
        let tickets: Vec<Ticket> = requests
            .iter()
            .map(|request| self.join(request.clone()))
            .collect();
        self.pass(DELAY);
        tickets.iter().map(|ticket| self.id(*ticket)).collect()
    }

    /// Everybody syncs, the leader last.
    pub fn assign(&mut self, ids: &[String]) {
        let generation = self.group.generation();
        let texts: Vec<(String, String)> = ids
            .iter()
            .enumerate()
            .map(|(number, id)| (id.clone(), format!("a{number}")))
            .collect();
        let assignments: Vec<(&str, &str)> = texts
            .iter()
            .map(|(id, text)| (id.as_str(), text.as_str()))
            .collect();
        let leader = self.group.leader().unwrap().to_owned();
        for id in ids.iter().filter(|id| **id != leader) {
            self.sync(identity(id, generation), &[]);
        }
        self.sync(identity(&leader, generation), &assignments);
    }

    /// Everybody rejoins; the tickets.
    pub fn rejoin(&mut self, ids: &[&str]) -> Vec<Ticket> {
        ids.iter().map(|id| self.join(member(id))).collect()
    }
}
