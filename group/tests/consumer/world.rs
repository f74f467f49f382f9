//! A group and a cluster's topics, as a coordinator sees them: one heartbeat after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use corduroy_group::GroupError;
use corduroy_group::classic::{
    ClassicLimits, JoinRequest, Joined, MemberIdentity, SyncAnswer, SyncRequest,
};
use corduroy_group::consumer::assign::Assignor;
use corduroy_group::consumer::{
    ClassicJoin, ConsumerLimits, ConsumerState, Decision, HeartbeatAnswer, HeartbeatRequest,
    TopicFacts, Topics, classic_join, classic_sync, heartbeat,
};
use corduroy_group::records::{Assignment, GroupRecord};
use corduroy_protocol::ErrorCode;
use corduroy_record::{PartitionIndex, TopicId};

pub const GROUP: &str = "billing";

#[derive(Clone, Debug, Default)]
pub struct Cluster {
    topics: BTreeMap<String, TopicFacts>,
    created: u8,
    version: i64,
}

impl Cluster {
    pub fn create(&mut self, name: &str, partitions: u32) -> TopicId {
        self.created += 1;
        self.version += 1;
        let mut bytes = [0; 16];
        bytes[15] = self.created;
        let id = TopicId::from_bytes(bytes);
        self.topics
            .insert(name.to_owned(), TopicFacts { id, partitions });
        id
    }

    pub fn grow(&mut self, name: &str, partitions: u32) {
        self.version += 1;
        if let Some(facts) = self.topics.get_mut(name) {
            facts.partitions = facts.partitions.max(partitions);
        }
    }

    pub fn delete(&mut self, name: &str) {
        self.version += 1;
        self.topics.remove(name);
    }

    pub fn facts(&self) -> impl Iterator<Item = (&str, TopicFacts)> {
        self.topics
            .iter()
            .map(|(name, facts)| (name.as_str(), *facts))
    }
}

impl Topics for Cluster {
    fn topic(&self, name: &str) -> Option<TopicFacts> {
        self.topics.get(name).copied()
    }

    fn name(&self, id: TopicId) -> Option<&str> {
        self.facts()
            .find_map(|(name, facts)| (facts.id == id).then_some(name))
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.topics.keys().map(String::as_str))
    }

    fn version(&self) -> i64 {
        self.version
    }
}

pub struct World {
    pub cluster: Cluster,
    pub state: Option<ConsumerState>,
    pub limits: ConsumerLimits,
    pub classic: ClassicLimits,
}

impl World {
    pub fn new(topics: &[(&str, u32)]) -> World {
        let mut cluster = Cluster::default();
        for (name, partitions) in topics {
            cluster.create(name, *partitions);
        }
        World {
            cluster,
            state: None,
            limits: ConsumerLimits {
                session_timeout: Duration::from_secs(45),
                heartbeat_interval: Duration::from_secs(5),
                members_max: 100,
                assignors: Assignor::ALL.to_vec(),
            },
            classic: ClassicLimits {
                session_timeout_min: Duration::from_secs(6),
                session_timeout_max: Duration::from_secs(1800),
                initial_rebalance_delay: Duration::from_secs(3),
                members_max: 100,
            },
        }
    }

    pub fn decide_join(&self, request: &JoinRequest) -> ClassicJoin {
        let nothing = ConsumerState::default();
        classic_join(
            GROUP,
            self.state.as_ref().unwrap_or(&nothing),
            request,
            &self.cluster,
            (&self.limits, &self.classic),
            1_000,
        )
    }

    /// JoinGroup, applied: the member's id and what it was told.
    pub fn join(&mut self, request: &JoinRequest) -> (String, Result<Joined, ErrorCode>) {
        let decided = self.decide_join(request);
        self.apply(&decided.records);
        let answer = decided.answer;
        (answer.member_id, answer.result.map_err(|error| error.code))
    }

    pub fn sync(&self, member_id: &str, generation: i32) -> SyncAnswer {
        let request = SyncRequest {
            identity: identity(member_id, generation),
            protocol_type: None,
            protocol: None,
            assignments: BTreeMap::new(),
        };
        classic_sync(self.state(), &request, &self.cluster)
    }

    /// What a member reads in its assignment.
    pub fn read_assignment(&self, bytes: &[u8]) -> Assignment {
        let mut input = bytes;
        let mut take = |count: usize| {
            let (taken, rest) = input.split_at(count);
            input = rest;
            taken.to_vec()
        };
        let number = |bytes: Vec<u8>| bytes.iter().fold(0, |all, byte| all << 8 | *byte as usize);
        let version = number(take(2));
        assert!(version <= 3, "a version that members know");
        let mut assignment = Assignment::new();
        for _ in 0..number(take(4)) {
            let length = number(take(2));
            let name = String::from_utf8(take(length)).unwrap();
            let partitions = (0..number(take(4)))
                .map(|_| PartitionIndex::new(number(take(4)) as i32))
                .collect();
            assignment.insert(self.id(&name), partitions);
        }
        assert_eq!(take(4), [0xff; 4], "no user data");
        assert_eq!(input, [], "nothing more");
        assignment
    }

    /// Metadata of a classic member, version 3.
    pub fn subscription(&self, topics: &[&str], owned: &Assignment, generation: i32) -> Bytes {
        let mut out = BytesMut::new();
        let put_name = |out: &mut BytesMut, name: &str| {
            out.put_i16(name.len() as i16);
            out.put_slice(name.as_bytes());
        };
        out.put_i16(3);
        out.put_i32(topics.len() as i32);
        for topic in topics {
            put_name(&mut out, topic);
        }
        out.put_i32(-1);
        let named: Vec<_> = owned
            .iter()
            .filter_map(|(id, partitions)| Some((self.cluster.name(*id)?, partitions)))
            .collect();
        out.put_i32(named.len() as i32);
        for (name, partitions) in named {
            put_name(&mut out, name);
            out.put_i32(partitions.len() as i32);
            for partition in partitions {
                out.put_i32(partition.get());
            }
        }
        out.put_i32(generation);
        out.put_i16(-1);
        out.freeze()
    }

    pub fn decide(&self, request: &HeartbeatRequest) -> Result<Decision, GroupError> {
        heartbeat(
            GROUP,
            self.state.as_ref(),
            request,
            &self.cluster,
            &self.limits,
            1_000,
        )
    }

    pub fn apply(&mut self, records: &[GroupRecord]) {
        for record in records {
            self.state.get_or_insert_default().apply(record);
        }
    }

    pub fn beat(&mut self, request: &HeartbeatRequest) -> Result<HeartbeatAnswer, ErrorCode> {
        let decision = self.decide(request).map_err(|error| error.code)?;
        self.apply(&decision.records);
        Ok(decision.answer)
    }

    pub fn state(&self) -> &ConsumerState {
        self.state.as_ref().unwrap()
    }

    pub fn id(&self, topic: &str) -> TopicId {
        self.cluster.topic(topic).unwrap().id
    }

    /// `"a:0,1 b:2"` as an assignment.
    pub fn places(&self, text: &str) -> Assignment {
        text.split_whitespace()
            .map(|part| {
                let (topic, partitions) = part.split_once(':').unwrap();
                let partitions = partitions
                    .split(',')
                    .map(|number| PartitionIndex::new(number.parse().unwrap()))
                    .collect();
                (self.id(topic), partitions)
            })
            .collect()
    }

    /// An assignment as `"a:0,1 b:2"`; topics that are gone are shown as `?`.
    pub fn show(&self, assignment: &Assignment) -> String {
        let mut parts: Vec<String> = assignment
            .iter()
            .map(|(topic, partitions)| {
                let numbers: Vec<String> =
                    partitions.iter().map(|number| number.to_string()).collect();
                let name = self.cluster.name(*topic).unwrap_or("?");
                format!("{name}:{}", numbers.join(","))
            })
            .collect();
        parts.sort_unstable();
        parts.join(" ")
    }

    /// Heartbeats of all these members, with what they were told as what they own, until nothing
    /// changes any more.
    pub fn settle(&mut self, members: &[&str]) {
        for _ in 0..20 {
            let mut quiet = true;
            for id in members {
                let member = &self.state().members()[*id];
                let owned = member.current.as_ref().unwrap().assigned.clone();
                let request = HeartbeatRequest {
                    owned: Some(owned),
                    ..going_on(id, member.epoch())
                };
                let decision = self.decide(&request).unwrap();
                quiet &= decision.records.is_empty();
                self.apply(&decision.records);
            }
            if quiet {
                return;
            }
        }
        panic!("the group does not come to rest");
    }

    pub fn assigned(&self, id: &str) -> String {
        self.show(
            &self.state().members()[id]
                .current
                .as_ref()
                .unwrap()
                .assigned,
        )
    }
}

pub fn joining(id: &str, topics: &[&str]) -> HeartbeatRequest {
    HeartbeatRequest {
        member_id: id.to_owned(),
        rebalance_timeout_ms: 60_000,
        client_id: "app".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        subscribed_topics: Some(topics.iter().map(|topic| (*topic).to_owned()).collect()),
        owned: Some(Assignment::new()),
        ..HeartbeatRequest::default()
    }
}

pub fn going_on(id: &str, member_epoch: i32) -> HeartbeatRequest {
    HeartbeatRequest {
        member_id: id.to_owned(),
        member_epoch,
        rebalance_timeout_ms: -1,
        client_id: "app".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        ..HeartbeatRequest::default()
    }
}

pub fn of_instance(instance: &str, request: HeartbeatRequest) -> HeartbeatRequest {
    HeartbeatRequest {
        instance_id: Some(instance.to_owned()),
        ..request
    }
}

/// JoinGroup of a classic member; `member_id` empty: it has none yet.
pub fn classic(member_id: &str, metadata: Bytes) -> JoinRequest {
    JoinRequest {
        member_id: member_id.to_owned(),
        instance_id: None,
        fresh_member_id: "fresh".to_owned(),
        requires_known_member_id: true,
        supports_skip_assignment: true,
        client_id: "app".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".to_owned(),
        protocols: vec![("range".to_owned(), metadata)],
        reason: None,
    }
}

pub fn identity(member_id: &str, generation: i32) -> MemberIdentity {
    MemberIdentity {
        member_id: member_id.to_owned(),
        instance_id: None,
        generation,
    }
}
