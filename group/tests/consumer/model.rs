//! Many members, failures and changing topics, in any order: what must hold at every step, and
//! where a group ends when it is left alone.
//!
//! Clients here do what real ones do: they own what they were told once they have given up the rest,
//! some time after they were told; they lose answers, die, come back under another id. Some speak the
//! classic protocol, and a client that comes back may speak another one than before. Records of a
//! decision may be cut anywhere (the coordinator died), and nobody hears of that decision.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_group::classic::{JoinRequest, Leaving, MemberIdentity, SyncRequest};
use corduroy_group::consumer::{
    ConsumerGroupState, ConsumerState, HeartbeatRequest, Topics, check_commit, classic_heartbeat,
    classic_leave, classic_sync, remove_members, topics_changed,
};
use corduroy_group::records::{Assignment, GroupRecord};
use corduroy_protocol::ErrorCode;
use corduroy_record::{PartitionIndex, TopicId};
use proptest::prelude::*;

use crate::world::{GROUP, World, classic, going_on, joining};

const CLIENTS: usize = 6;
const TOPICS: [&str; 4] = ["a", "b", "b-2", "c"];

/// What one client believes.
#[derive(Clone, Debug)]
struct Client {
    id: String,
    instance: Option<String>,
    epoch: i32,
    owned: Assignment,
    told: Option<Assignment>,
    /// It must say what it owns.
    must_say: bool,
    /// It does not know whether its last request arrived: it says everything.
    must_say_all: bool,
    topics: Vec<String>,
    regex: Option<String>,
    running: bool,
    speaks: Speaks,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Consumer,
    /// The classic protocol: it gives up everything before it joins.
    Eager,
    /// The classic protocol: it gives up what it is not told again, and joins once more.
    Cooperative,
}

/// What a classic client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Join,
    Sync,
    Rest,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Applied and answered.
    Answered,
    /// Applied; the answer is lost.
    Lost,
    /// Only so many of its records are applied; the answer is lost.
    Cut(usize),
}

impl Fate {
    fn cut(self, records: &[GroupRecord]) -> &[GroupRecord] {
        match self {
            Fate::Cut(count) => &records[..count.min(records.len())],
            Fate::Answered | Fate::Lost => records,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Beat(usize, Fate),
    /// The client gives up what it was not told again, or, with nothing to give up, takes the rest.
    Work(usize),
    Start(usize, Speaks),
    Kill(usize),
    Leave(usize),
    /// A static member closes, and starts again later.
    Away(usize),
    Subscribe(usize, Vec<usize>, bool),
    /// Session timeouts: whoever is not running is removed.
    Expire(Fate),
    Grow(usize, u32),
    Create(usize, u32),
    Delete(usize),
    TopicsChanged(Fate),
}

struct Model {
    world: World,
    clients: Vec<Client>,
    births: usize,
    steps: usize,
    epochs: (i32, i32),
}

impl Model {
    fn new() -> Model {
        let clients = (0..CLIENTS)
            .map(|number| Client {
                id: String::new(),
                // Every second one is static.
                instance: (number % 2 == 1).then(|| format!("instance-{number}")),
                epoch: 0,
                owned: Assignment::new(),
                told: None,
                must_say: false,
                must_say_all: true,
                topics: vec!["a".to_owned(), "b".to_owned()],
                regex: None,
                running: false,
                speaks: Speaks::Consumer,
                phase: Phase::Join,
            })
            .collect();
        Model {
            world: World::new(&[("a", 5), ("b", 2)]),
            clients,
            births: 0,
            steps: 0,
            epochs: (0, 0),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Beat(client, fate) => self.beat(*client, *fate),
            Step::Work(client) => self.work(*client),
            Step::Start(client, speaks) => self.start(*client, *speaks),
            Step::Kill(client) => self.clients[*client].stop(),
            Step::Leave(client) => self.leave(*client, -1),
            Step::Away(client) => self.leave(*client, -2),
            Step::Subscribe(client, topics, by_regex) => {
                let client = &mut self.clients[*client];
                client.topics = topics
                    .iter()
                    .map(|topic| TOPICS[*topic].to_owned())
                    .collect();
                client.regex = by_regex.then(|| "b.*".to_owned());
                match client.speaks {
                    Speaks::Consumer => client.must_say_all = true,
                    Speaks::Eager | Speaks::Cooperative => client.phase = Phase::Join,
                }
            }
            Step::Expire(fate) => self.expire(*fate),
            Step::Grow(topic, partitions) => self.world.cluster.grow(TOPICS[*topic], *partitions),
            Step::Create(topic, partitions) => {
                if !self.has_topic(*topic) {
                    self.world.cluster.create(TOPICS[*topic], *partitions);
                }
            }
            Step::Delete(topic) => {
                if self.has_topic(*topic) {
                    self.world.cluster.delete(TOPICS[*topic]);
                }
            }
            Step::TopicsChanged(fate) => self.topics_changed(*fate),
        }
        self.check();
        self.steps += 1;
        if self.steps.is_multiple_of(16) {
            self.check_records();
        }
    }

    fn has_topic(&self, topic: usize) -> bool {
        self.world
            .cluster
            .facts()
            .any(|(name, _)| name == TOPICS[topic])
    }

    fn start(&mut self, client: usize, speaks: Speaks) {
        if !self.clients[client].running {
            self.births += 1;
            let id = format!("client-{client}-{}", self.births);
            let client = &mut self.clients[client];
            client.stop();
            client.id = id;
            client.running = true;
            client.speaks = speaks;
        }
    }

    fn beat(&mut self, client: usize, fate: Fate) {
        if !self.clients[client].running {
            return;
        }
        if self.clients[client].speaks != Speaks::Consumer {
            return self.beat_classic(client, fate);
        }
        let request = self.clients[client].request();
        match self.world.decide(&request) {
            Ok(decision) => {
                self.world.apply(fate.cut(&decision.records));
                let answer = &decision.answer;
                if matches!(fate, Fate::Answered) {
                    assert!(answer.member_epoch <= self.world.state().epoch());
                    let client = &mut self.clients[client];
                    assert!(answer.member_epoch >= client.epoch, "member epochs go up");
                    assert!(answer.member_epoch > 0);
                    client.epoch = answer.member_epoch;
                    client.must_say_all = false;
                    if request.owned.is_some() {
                        client.must_say = false;
                    }
                    if let Some(told) = &answer.assignment {
                        client.told = Some(told.clone());
                    }
                } else {
                    self.clients[client].must_say_all = true;
                }
            }
            Err(error) => match error.code {
                ErrorCode::FencedMemberEpoch | ErrorCode::UnknownMemberId => {
                    self.clients[client].abandon();
                }
                // Its former self has not left (that answer was lost, or it was killed).
                ErrorCode::UnreleasedInstanceId => {}
                // Its instance was taken over: impossible, each instance has one client.
                code => panic!("{code}: {}", error.message),
            },
        }
    }

    fn beat_classic(&mut self, client: usize, fate: Fate) {
        let answered = matches!(fate, Fate::Answered);
        let outcome = match self.clients[client].phase {
            Phase::Join => self.join(client, fate),
            Phase::Sync => self.sync(client, answered),
            Phase::Rest => {
                let state = self.world.state.clone().unwrap_or_default();
                classic_heartbeat(&state, &self.clients[client].identity())
                    .map_err(|error| error.code)
            }
        };
        let client = &mut self.clients[client];
        match outcome {
            Ok(()) => {}
            Err(ErrorCode::RebalanceInProgress) => client.phase = Phase::Join,
            Err(
                ErrorCode::UnknownMemberId
                | ErrorCode::IllegalGeneration
                | ErrorCode::FencedInstanceId,
            ) => client.abandon(),
            Err(code) => panic!("{code}"),
        }
    }

    fn join(&mut self, client: usize, fate: Fate) -> Result<(), ErrorCode> {
        self.births += 1;
        let fresh = format!("client-{client}-{}", self.births);
        let client = &mut self.clients[client];
        // What has no name any more it cannot name.
        let cluster = &self.world.cluster;
        client.owned.retain(|id, _| cluster.name(*id).is_some());
        if client.speaks == Speaks::Eager {
            client.owned.clear();
        }
        let request = client.join_request(&self.world, fresh);
        let decided = self.world.decide_join(&request);
        self.world.apply(fate.cut(&decided.records));
        let joined = decided.answer.result.map_err(|error| error.code)?;
        if matches!(fate, Fate::Answered) {
            assert!(joined.generation >= client.epoch, "member epochs go up");
            assert!(joined.generation <= self.world.state().epoch());
            client.id = decided.answer.member_id;
            client.epoch = joined.generation;
            client.must_say_all = false;
            client.phase = Phase::Sync;
        } else {
            client.must_say_all = true;
        }
        Ok(())
    }

    fn sync(&mut self, client: usize, answered: bool) -> Result<(), ErrorCode> {
        let client = &mut self.clients[client];
        let request = SyncRequest {
            identity: client.identity(),
            protocol_type: Some("consumer".to_owned()),
            protocol: None,
            assignments: BTreeMap::new(),
        };
        let state = self.world.state.clone().unwrap_or_default();
        let synced = classic_sync(&state, &request, &self.world.cluster);
        if !answered {
            client.phase = Phase::Join;
            return Ok(());
        }
        let told = self
            .world
            .read_assignment(&synced.map_err(|error| error.code)?.assignment);
        let kept: BTreeSet<_> = places(&told).collect();
        client.phase = match places(&client.owned).all(|place| kept.contains(&place)) {
            true => Phase::Rest,
            false => Phase::Join,
        };
        client.owned = told;
        Ok(())
    }

    fn work(&mut self, client: usize) {
        let client = &mut self.clients[client];
        let Some(told) = client.told.clone() else {
            return;
        };
        let kept: Assignment = client
            .owned
            .iter()
            .map(|(topic, partitions)| {
                let told = told.get(topic).map_or(&[][..], Vec::as_slice);
                let kept = partitions.iter().filter(|place| told.contains(place));
                (*topic, kept.copied().collect::<Vec<_>>())
            })
            .filter(|(_, partitions)| !partitions.is_empty())
            .collect();
        if kept == client.owned {
            client.owned = told;
            client.told = None;
        } else {
            client.owned = kept;
        }
        client.must_say = true;
    }

    fn leave(&mut self, client: usize, epoch: i32) {
        let client = &mut self.clients[client];
        let epoch = if client.instance.is_none() { -1 } else { epoch };
        if client.speaks != Speaks::Consumer {
            // Static members of this protocol go without a word.
            if client.running && client.instance.is_none() {
                let leaving = Leaving {
                    member_id: client.id.clone(),
                    instance_id: None,
                    reason: None,
                };
                let state = self.world.state.clone().unwrap_or_default();
                let (records, _) = classic_leave(GROUP, &state, &[leaving]);
                self.world.apply(&records);
            }
            client.stop();
        } else if client.running && client.epoch > 0 {
            let request = HeartbeatRequest {
                instance_id: client.instance.clone(),
                ..going_on(&client.id, epoch)
            };
            client.stop();
            match self.world.beat(&request) {
                Ok(_) | Err(ErrorCode::UnknownMemberId) => {}
                Err(code) => panic!("{code}"),
            }
        }
    }

    fn expire(&mut self, fate: Fate) {
        let Some(state) = &self.world.state else {
            return;
        };
        let alive: BTreeSet<&str> = self
            .clients
            .iter()
            .filter(|client| client.running)
            .map(|client| client.id.as_str())
            .collect();
        let silent: Vec<&str> = state
            .members()
            .keys()
            .map(String::as_str)
            .filter(|id| !alive.contains(id))
            .collect();
        let records = remove_members(GROUP, state, &silent);
        self.world.apply(fate.cut(&records));
    }

    fn topics_changed(&mut self, fate: Fate) {
        if let Some(state) = &self.world.state {
            let records = topics_changed(GROUP, state, &self.world.cluster, 0);
            self.world.apply(fate.cut(&records));
        }
    }

    fn check(&mut self) {
        let Some(state) = &self.world.state else {
            return;
        };
        // Epochs.
        assert!(state.epoch() >= self.epochs.0, "the group epoch goes up");
        assert!(state.assignment_epoch() >= self.epochs.1);
        assert!(state.assignment_epoch() <= state.epoch());
        self.epochs = (state.epoch(), state.assignment_epoch());
        // I25: a partition is held by one member at most, as the coordinator sees it ...
        let mut held = BTreeMap::new();
        for (id, member) in state.members() {
            let current = member.current.iter();
            for (topic, partition) in
                current.flat_map(|now| places(&now.assigned).chain(places(&now.pending_revocation)))
            {
                let before = held.insert((topic, partition), id.as_str());
                assert_eq!(before, None, "{topic}-{partition} is held by {id} too");
                assert_eq!(state.holders(topic, partition), 1);
            }
        }
        // ... and what a member's client owns, it holds. The one exception: a request of it was not
        // answered, and it took what it had been told before. Then it cannot commit; nor can a
        // client that is no member any more.
        for client in self.clients.iter().filter(|client| client.running) {
            let holds_all =
                places(&client.owned).all(|place| held.get(&place) == Some(&client.id.as_str()));
            let is_member = state.members().contains_key(&client.id);
            if is_member && !holds_all {
                assert!(client.must_say_all, "{} was told so", client.id);
            }
            if client.epoch > 0 && !(is_member && holds_all) && !state.members().is_empty() {
                assert!(check_commit(state, &client.id, client.epoch).is_err());
            }
        }
    }

    /// The state is what its records say, in Kafka's bytes too.
    fn check_records(&self) {
        let Some(state) = &self.world.state else {
            return;
        };
        let mut records = Vec::new();
        state.records(GROUP, &mut records);
        let mut copy = ConsumerState::default();
        for record in &records {
            let value = record.encode_value();
            let read = GroupRecord::decode(&record.encode_key(), value.as_deref());
            copy.apply(&read.unwrap().unwrap());
        }
        assert_eq!(&copy, state);
    }

    /// No failures any more: everybody who runs speaks, works and speaks.
    fn heal(&mut self) {
        self.step(&Step::Expire(Fate::Answered));
        self.step(&Step::TopicsChanged(Fate::Answered));
        for _ in 0..25 {
            for client in 0..CLIENTS {
                self.step(&Step::Beat(client, Fate::Answered));
                self.step(&Step::Work(client));
                self.step(&Step::Work(client));
            }
        }
    }

    fn check_converged(&self) {
        let running: Vec<&Client> = self
            .clients
            .iter()
            .filter(|client| client.running)
            .collect();
        let Some(state) = &self.world.state else {
            assert!(running.is_empty());
            return;
        };
        if running.is_empty() {
            assert_eq!(state.state(), ConsumerGroupState::Empty);
            return;
        }
        assert_eq!(state.state(), ConsumerGroupState::Stable);
        assert_eq!(state.members().len(), running.len());
        let mut owned = BTreeSet::new();
        for client in &running {
            let member = &state.members()[&client.id];
            assert_eq!(client.owned, member.target, "{} has its target", client.id);
            assert_eq!(check_commit(state, &client.id, client.epoch), Ok(()));
            owned.extend(places(&client.owned));
        }
        let mut wanted = BTreeSet::new();
        for (name, facts) in self.world.cluster.facts() {
            if running.iter().any(|client| client.wants(name)) {
                let partitions = 0..facts.partitions as i32;
                wanted.extend(partitions.map(|number| (facts.id, PartitionIndex::new(number))));
            }
        }
        assert_eq!(
            owned, wanted,
            "every subscribed partition has an owner, and no other"
        );
        let first = running[0];
        if running
            .iter()
            .all(|client| client.topics == first.topics && client.regex() == first.regex())
        {
            let loads = || running.iter().map(|client| places(&client.owned).count());
            assert!(loads().max().unwrap() - loads().min().unwrap() <= 1);
        }
    }
}

impl Client {
    fn stop(&mut self) {
        self.running = false;
        self.abandon();
    }

    fn abandon(&mut self) {
        self.epoch = 0;
        self.owned.clear();
        self.told = None;
        self.must_say = false;
        self.must_say_all = true;
        self.phase = Phase::Join;
    }

    fn wants(&self, topic: &str) -> bool {
        self.topics.iter().any(|name| name == topic)
            || (self.regex().is_some() && topic.starts_with('b'))
    }

    /// Classic members subscribe by name only.
    fn regex(&self) -> Option<&String> {
        let regex = self.regex.as_ref();
        regex.filter(|_| self.speaks == Speaks::Consumer)
    }

    fn identity(&self) -> MemberIdentity {
        MemberIdentity {
            member_id: self.id.clone(),
            instance_id: self.instance.clone(),
            generation: self.epoch,
        }
    }

    fn join_request(&self, world: &World, fresh: String) -> JoinRequest {
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        let generation = if self.epoch > 0 { self.epoch } else { -1 };
        let metadata = world.subscription(&topics, &self.owned, generation);
        // A static member has no id before its first answer; a dynamic one has asked for one.
        let knows_id = self.epoch > 0 || self.instance.is_none();
        let mut request = classic(if knows_id { &self.id } else { "" }, metadata.clone());
        request.fresh_member_id = fresh;
        request.instance_id = self.instance.clone();
        if self.speaks == Speaks::Cooperative {
            let first = ("cooperative-sticky".to_owned(), metadata);
            request.protocols.insert(0, first);
        }
        request
    }

    fn request(&self) -> HeartbeatRequest {
        let all = self.must_say_all || self.epoch == 0;
        let base = if all {
            let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
            HeartbeatRequest {
                subscribed_regex: Some(self.regex.clone().unwrap_or_default()),
                ..joining(&self.id, &topics)
            }
        } else {
            going_on(&self.id, self.epoch)
        };
        HeartbeatRequest {
            member_epoch: self.epoch,
            instance_id: self.instance.clone(),
            owned: (all || self.must_say).then(|| self.owned.clone()),
            ..base
        }
    }
}

fn places(assignment: &Assignment) -> impl Iterator<Item = (TopicId, PartitionIndex)> {
    assignment
        .iter()
        .flat_map(|(topic, partitions)| partitions.iter().map(move |place| (*topic, *place)))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 0..CLIENTS;
    let topic = || 0..TOPICS.len();
    let fate = || {
        prop_oneof![
            6 => Just(Fate::Answered),
            1 => Just(Fate::Lost),
            1 => (0_usize..8).prop_map(Fate::Cut),
        ]
    };
    let speaks = prop_oneof![
        2 => Just(Speaks::Consumer),
        1 => Just(Speaks::Eager),
        1 => Just(Speaks::Cooperative),
    ];
    let subscription = prop::collection::btree_set(topic(), 0..3);
    let step = prop_oneof![
        12 => (client(), fate()).prop_map(|(client, fate)| Step::Beat(client, fate)),
        8 => client().prop_map(Step::Work),
        4 => (client(), speaks).prop_map(|(client, speaks)| Step::Start(client, speaks)),
        1 => client().prop_map(Step::Kill),
        1 => client().prop_map(Step::Leave),
        1 => client().prop_map(Step::Away),
        1 => (client(), subscription, any::<bool>()).prop_map(|(client, topics, by_regex)| {
            Step::Subscribe(client, topics.into_iter().collect(), by_regex)
        }),
        1 => fate().prop_map(Step::Expire),
        1 => (topic(), 1_u32..9).prop_map(|(topic, partitions)| Step::Grow(topic, partitions)),
        1 => (topic(), 1_u32..6).prop_map(|(topic, partitions)| Step::Create(topic, partitions)),
        1 => topic().prop_map(Step::Delete),
        2 => fate().prop_map(Step::TopicsChanged),
    ];
    prop::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn a_partition_has_one_owner_and_a_quiet_group_comes_to_rest(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        model.heal();
        model.check_converged();
        // At rest nothing is written any more.
        for client in model.clients.iter().filter(|client| client.running) {
            if client.speaks == Speaks::Consumer {
                let decision = model.world.decide(&client.request()).unwrap();
                assert_eq!(decision.records, []);
            } else {
                assert_eq!(classic_heartbeat(model.world.state(), &client.identity()), Ok(()));
            }
        }
    }
}
