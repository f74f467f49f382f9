//! A group and a cluster's topics, as a coordinator sees them: one heartbeat after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use corduroy_group::GroupError;
use corduroy_group::consumer::{
    ConsumerLimits, ConsumerState, Decision, HeartbeatAnswer, HeartbeatRequest, TopicFacts, Topics,
    heartbeat,
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
            },
        }
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
