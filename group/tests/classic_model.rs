//! Clients that behave, crash, come back, leave and are cut off, a disk that fails and coordinators
//! that come and go, in any order: the group keeps its laws, and once the faults end it settles.

mod classic_bench;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use classic_bench::{Bench, Disk, LIMITS, identity, request};
use corduroy_group::classic::{
    ClassicGroup, ClassicLimits, ClassicState, JoinRequest, MemberIdentity, SyncRequest, Ticket,
};
use corduroy_protocol::ErrorCode;
use proptest::prelude::*;

const CLIENTS: usize = 5;
/// Two static clients, three dynamic ones.
const STATIC_CLIENTS: usize = 2;
/// In how many seconds a group whose faults have ended has to settle: the rebalance timeout, a
/// session, and a rebalance timeout again for what the session's end sets off.
const SETTLE_SECONDS: u64 = 200;

#[derive(Clone, Debug)]
enum Step {
    /// The client does what a client does next.
    Act(usize),
    /// It sends again what it waits for, on another connection.
    Repeat(usize),
    /// It subscribes to something else, and rejoins.
    Change(usize, u8),
    /// It stops without a word; the coordinator sees the connection close, or not.
    Crash(usize, bool),
    /// Its process starts anew.
    Start(usize),
    Leave(usize),
    Pass(u64),
    Persist(Option<ErrorCode>),
    /// Somebody who is no member, or of another generation.
    Stranger(u8),
    /// Another coordinator takes over from the record; the write under way was in time for that, or
    /// not.
    Failover(bool),
    Limit(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 0..CLIENTS;
    let failure = prop_oneof![
        Just(ErrorCode::NotEnoughReplicas),
        Just(ErrorCode::NotCoordinator),
        Just(ErrorCode::RequestTimedOut),
    ];
    let step = prop_oneof![
        30 => client().prop_map(Step::Act),
        3 => client().prop_map(Step::Repeat),
        3 => (client(), 0..3_u8).prop_map(|(client, news)| Step::Change(client, news)),
        3 => (client(), any::<bool>()).prop_map(|(client, seen)| Step::Crash(client, seen)),
        6 => client().prop_map(Step::Start),
        2 => client().prop_map(Step::Leave),
        6 => (0..4000_u64).prop_map(Step::Pass),
        2 => (4000..70_000_u64).prop_map(Step::Pass),
        8 => Just(Step::Persist(None)),
        2 => failure.prop_map(|code| Step::Persist(Some(code))),
        2 => any::<u8>().prop_map(Step::Stranger),
        1 => any::<bool>().prop_map(Step::Failover),
        1 => (2..8_usize).prop_map(Step::Limit),
    ];
    prop::collection::vec(step, 0..120)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Not running.
    Down,
    /// Has to join.
    Out,
    Joining(Ticket),
    /// Knows its generation; the members, if it is to assign.
    Joined(Vec<String>),
    Syncing(Ticket, Vec<String>),
    /// Has an assignment, and heartbeats.
    In,
}

#[derive(Debug)]
struct Client {
    instance: Option<String>,
    id: String,
    generation: i32,
    metadata: u8,
    phase: Phase,
}

struct Model {
    bench: Bench,
    clients: Vec<Client>,
    /// What each member was assigned in each generation.
    assigned: BTreeMap<(i32, String), Bytes>,
    generation_seen: i32,
}

impl Model {
    fn new() -> Model {
        let mut bench = Bench::with(ClassicGroup::new(model_limits(8), 0));
        bench.disk = Disk::Slow;
        let clients = (0..CLIENTS)
            .map(|number| Client {
                instance: (number < STATIC_CLIENTS).then(|| format!("static{number}")),
                id: String::new(),
                generation: -1,
                metadata: 0,
                phase: Phase::Down,
            })
            .collect();
        Model {
            bench,
            clients,
            assigned: BTreeMap::new(),
            generation_seen: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Act(number) => self.act(number),
            Step::Repeat(number) => self.repeat(number),
            Step::Change(number, news) => {
                self.clients[number].metadata = news;
                if self.clients[number].phase == Phase::In {
                    self.clients[number].phase = Phase::Out;
                    self.act(number);
                }
            }
            Step::Crash(number, seen) => {
                let (Phase::Joining(ticket) | Phase::Syncing(ticket, _)) =
                    self.clients[number].phase
                else {
                    self.clients[number].phase = Phase::Down;
                    return;
                };
                self.clients[number].phase = Phase::Down;
                if seen && self.bench.is_parked(ticket) {
                    self.bench.forget(ticket);
                }
            }
            Step::Start(number) => {
                if self.clients[number].phase == Phase::Down {
                    self.clients[number].phase = Phase::Out;
                    self.clients[number].id.clear();
                }
            }
            Step::Leave(number) => self.leave(number),
            Step::Pass(ms) => self.bench.pass(Duration::from_millis(ms)),
            Step::Persist(outcome) => {
                if !self.bench.writes.is_empty() {
                    self.bench.persisted(outcome.map_or(Ok(()), Err));
                }
            }
            Step::Stranger(kind) => self.stranger(kind),
            Step::Failover(written) => self.fail_over(written),
            Step::Limit(members_max) => self.bench.group.set_limits(model_limits(members_max)),
        }
        self.hear();
        // I24: the generation of one coordinator only grows. (Another one begins at the record.)
        let generation = self.bench.group.generation();
        assert!(
            generation >= self.generation_seen,
            "the generation went back"
        );
        self.generation_seen = generation;
    }

    fn identity(&self, number: usize) -> MemberIdentity {
        let client = &self.clients[number];
        MemberIdentity {
            member_id: client.id.clone(),
            instance_id: client.instance.clone(),
            generation: client.generation,
        }
    }

    fn act(&mut self, number: usize) {
        match self.clients[number].phase.clone() {
            Phase::Down | Phase::Joining(_) | Phase::Syncing(..) => {}
            Phase::Out => self.join(number),
            Phase::Joined(members) => self.sync(number, members),
            Phase::In => {
                let identity = self.identity(number);
                if let Err(error) = self.bench.heartbeat(&identity) {
                    self.cast_out(number, error);
                }
            }
        }
    }

    fn repeat(&mut self, number: usize) {
        match self.clients[number].phase.clone() {
            Phase::Joining(ticket) if self.bench.is_parked(ticket) => self.join(number),
            Phase::Syncing(ticket, members) if self.bench.is_parked(ticket) => {
                self.sync(number, members);
            }
            _ => {}
        }
    }

    fn join(&mut self, number: usize) {
        let client = &self.clients[number];
        let metadata = Bytes::copy_from_slice(&[client.metadata]);
        let request = JoinRequest {
            member_id: client.id.clone(),
            instance_id: client.instance.clone(),
            requires_known_member_id: number != 3,
            supports_skip_assignment: number.is_multiple_of(2),
            protocols: vec![("range".to_owned(), metadata)],
            ..request()
        };
        let ticket = self.bench.join(request);
        self.clients[number].phase = Phase::Joining(ticket);
    }

    fn sync(&mut self, number: usize, members: Vec<String>) {
        let identity = self.identity(number);
        let assignments = members
            .iter()
            .map(|id| {
                (
                    id.clone(),
                    Bytes::from(format!("{}/{id}", identity.generation)),
                )
            })
            .collect();
        let ticket = self.bench.sync_request(SyncRequest {
            identity,
            protocol_type: None,
            protocol: None,
            assignments,
        });
        self.clients[number].phase = Phase::Syncing(ticket, members);
    }

    fn leave(&mut self, number: usize) {
        if matches!(self.clients[number].phase, Phase::In | Phase::Joined(_)) {
            let identity = self.identity(number);
            self.bench
                .leave(&[(&identity.member_id, identity.instance_id.as_deref())]);
            self.clients[number].phase = Phase::Down;
        }
    }

    fn stranger(&mut self, kind: u8) {
        let generation = i32::from(kind / 4);
        match kind % 4 {
            0 => {
                let heard = self.bench.heartbeat(&identity("ghost", generation));
                assert_eq!(heard, Err(ErrorCode::UnknownMemberId));
            }
            1 => {
                let ticket = self.bench.sync(identity("ghost", generation), &[]);
                assert_eq!(self.bench.synced(ticket), Err(ErrorCode::UnknownMemberId));
            }
            2 => {
                let mut late = self.identity(usize::from(kind) % CLIENTS);
                late.generation = self.bench.group.generation() + 1;
                assert!(self.bench.heartbeat(&late).is_err());
                assert!(late.generation == 0 || self.bench.commit(&late).is_err());
            }
            _ => {
                let ticket = self.bench.join(JoinRequest {
                    protocol_type: String::new(),
                    ..request()
                });
                assert_eq!(
                    self.bench.join_error(ticket),
                    ErrorCode::InconsistentGroupProtocol
                );
            }
        }
    }

    fn fail_over(&mut self, written: bool) {
        if let (true, Some((_, value))) = (written, self.bench.writes.front()) {
            self.bench.durable = Some(value.clone());
        }
        self.bench.close(ErrorCode::NotCoordinator);
        assert_eq!(self.bench.open, BTreeSet::new(), "close answers everybody");
        self.hear();
        let last = self.generation_seen;
        let (now, limits) = (self.bench.now, model_limits(8));
        self.bench.group = match &self.bench.durable {
            Some(value) => ClassicGroup::from_value(limits, value, last, now),
            None => ClassicGroup::new(limits, last),
        };
        self.generation_seen = self.bench.group.generation();
        self.bench.group.verify().unwrap();
    }

    /// Clients read their answers.
    fn hear(&mut self) {
        for number in 0..CLIENTS {
            match self.clients[number].phase.clone() {
                Phase::Joining(ticket) => self.hear_join(number, ticket),
                Phase::Syncing(ticket, _) => self.hear_sync(number, ticket),
                _ => {}
            }
        }
    }

    fn hear_join(&mut self, number: usize, ticket: Ticket) {
        let Some(answer) = self.bench.joins.get(&ticket).cloned() else {
            return;
        };
        match answer.result {
            Ok(joined) => {
                let client = &mut self.clients[number];
                let leads = joined.leader == answer.member_id && !joined.skip_assignment;
                assert!(leads || joined.skip_assignment || joined.members.is_empty());
                client.id = answer.member_id;
                client.generation = joined.generation;
                let members = joined.members.into_iter().map(|member| member.member_id);
                let members: Vec<String> = if leads { members.collect() } else { Vec::new() };
                assert!(!leads || members.contains(&client.id));
                client.phase = Phase::Joined(members);
            }
            Err(error) => {
                if error.code == ErrorCode::MemberIdRequired {
                    self.clients[number].id = answer.member_id;
                }
                self.cast_out(number, error.code);
            }
        }
    }

    fn hear_sync(&mut self, number: usize, ticket: Ticket) {
        let Some(answer) = self.bench.syncs.get(&ticket).cloned() else {
            return;
        };
        match answer {
            Ok(synced) => {
                let client = &mut self.clients[number];
                client.phase = Phase::In;
                // What this generation's leader assigned; a static member's to the id that it had.
                let text = String::from_utf8(synced.assignment.to_vec()).unwrap();
                let (generation, id) = text.split_once('/').expect("the leader mentions all");
                assert_eq!(generation, client.generation.to_string());
                match &client.instance {
                    Some(instance) => assert!(id.starts_with(instance.as_str()), "{id}"),
                    None => assert_eq!(id, client.id),
                }
                let key = (client.generation, client.id.clone());
                let before = self.assigned.insert(key, synced.assignment.clone());
                assert!(
                    before.is_none_or(|before| before == synced.assignment),
                    "two assignments"
                );
            }
            Err(error) => self.cast_out(number, error.code),
        }
    }

    fn cast_out(&mut self, number: usize, error: ErrorCode) {
        let client = &mut self.clients[number];
        client.phase = Phase::Out;
        if error == ErrorCode::UnknownMemberId || error == ErrorCode::FencedInstanceId {
            client.id.clear();
        }
    }

    fn has_settled(&self) -> bool {
        let up: Vec<&Client> = self
            .clients
            .iter()
            .filter(|client| client.phase != Phase::Down)
            .collect();
        let members: BTreeSet<&str> = self
            .bench
            .group
            .members()
            .map(|member| member.member_id)
            .collect();
        let state = match up.is_empty() {
            true => ClassicState::Empty,
            false => ClassicState::Stable,
        };
        let generation = self.bench.group.generation();
        self.bench.group.state() == state
            && members == up.iter().map(|client| client.id.as_str()).collect()
            && up
                .iter()
                .all(|client| client.phase == Phase::In && client.generation == generation)
    }

    /// No more faults: whoever is up behaves.
    fn settle(&mut self) {
        self.bench.group.set_limits(model_limits(100));
        self.bench.disk = Disk::Quick;
        if !self.bench.writes.is_empty() {
            self.bench.persisted(Ok(()));
        }
        for _ in 0..SETTLE_SECONDS {
            self.hear();
            for number in 0..CLIENTS {
                self.act(number);
                self.hear();
            }
            if self.has_settled() {
                break;
            }
            self.step(&Step::Pass(1000));
        }
        assert!(
            self.has_settled(),
            "after {SETTLE_SECONDS} s: {:?}\n{:?}\n{}",
            self.clients,
            self.bench.group,
            self.bench.notes.join("\n")
        );
        assert_eq!(self.bench.open, BTreeSet::new(), "nobody is forgotten");
        // An Empty group may still be about to repeat the write that says so.
        self.bench.pass(Duration::from_secs(5));
        let durable = self
            .bench
            .durable
            .as_ref()
            .map_or(0, |value| value.members.len());
        assert_eq!(
            durable,
            self.bench.group.len(),
            "the record says what the group is"
        );
    }
}

fn model_limits(members_max: usize) -> ClassicLimits {
    ClassicLimits {
        members_max,
        ..LIMITS
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_group_keeps_its_laws_under_faults_and_settles_after_them(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        model.settle();
    }
}
