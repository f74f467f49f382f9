//! Tables of cases: a request against a state, by what its asker would notice.

use std::collections::BTreeMap;

use super::*;
use crate::controller::codec;
use crate::controller::records::{Command, NodeRecord, TopicRecord};
use crate::controller::requests::{
    Assignment, ConfigAlteration, ConfigResource, ConfigStep, NewPartitions, NewTopic, NodeClaim,
    TopicRef,
};

mod leaving;
mod twins;

/// A cluster that is asked one thing after another, as its leader would be.
struct Cluster {
    state: ControllerState,
    down: BTreeSet<i32>,
    random: u64,
    requests: u8,
}

impl Cluster {
    fn of(nodes: i32) -> Cluster {
        let mut cluster = Cluster {
            state: ControllerState::default(),
            down: BTreeSet::new(),
            random: 0,
            requests: 0,
        };
        let founders = (1..=nodes)
            .map(|id| claim(id as u8, None).record(id, id as u64))
            .collect();
        let form = Request::Form {
            cluster_id: [9; 16],
            nodes: founders,
            configs: BTreeMap::new(),
        };
        assert_eq!(cluster.ask(form), Reply::Done);
        cluster
    }

    fn ask(&mut self, request: Request) -> Reply {
        let mut random = || {
            self.random += 1;
            self.random
        };
        let mut facts = Facts {
            down: &self.down,
            random: &mut random,
        };
        match judge(&self.state, &request, &mut facts) {
            Verdict::Answer(reply) => reply,
            Verdict::Commit { changes, reply } => {
                self.requests += 1;
                let bytes = codec::encode(&reply).expect("encodes");
                self.state.apply(&Command {
                    request: [self.requests; 16],
                    changes,
                    reply: bytes.to_vec(),
                });
                reply
            }
        }
    }

    fn create(&mut self, topic: NewTopic) -> Result<TopicRecord, Refusal> {
        self.one_topic(Request::CreateTopics {
            topics: vec![topic],
            validate_only: false,
        })
    }

    fn one_topic(&mut self, request: Request) -> Result<TopicRecord, Refusal> {
        match self.ask(request) {
            Reply::Topics(mut results) if results.len() == 1 => results.remove(0),
            other => panic!("one topic was asked for, the answer is {other:?}"),
        }
    }

    fn alter(
        &mut self,
        resource: ConfigResource,
        steps: &[(&str, ConfigStep)],
    ) -> Result<(), Refusal> {
        let steps = steps
            .iter()
            .map(|(name, step)| (name.to_string(), step.clone()))
            .collect();
        let alterations = vec![ConfigAlteration { resource, steps }];
        match self.ask(Request::AlterConfigs {
            alterations,
            validate_only: false,
        }) {
            Reply::Configs(mut results) if results.len() == 1 => results.remove(0),
            other => panic!("one resource was asked for, the answer is {other:?}"),
        }
    }

    fn register(&mut self, claim: NodeClaim) -> Result<i32, Refusal> {
        match self.ask(Request::RegisterNode(claim)) {
            Reply::Node(grant) => Ok(grant.node),
            Reply::Refused(refusal) => Err(refusal),
            other => panic!("a node was asked for, the answer is {other:?}"),
        }
    }
}

fn claim(uuid: u8, node: Option<i32>) -> NodeClaim {
    NodeClaim {
        uuid: [uuid; 16],
        node,
        kafka_host: "127.0.0.1".into(),
        kafka_port: 9092,
        rpc: ([127, 0, 0, 1], u16::from(uuid)).into(),
        admin: None,
        rack: None,
    }
}

fn topic(name: &str, partitions: i32, factor: i16) -> NewTopic {
    NewTopic {
        partitions: Some(partitions),
        replication_factor: Some(factor),
        ..NewTopic::with_defaults(name)
    }
}

fn assigned(name: &str, assignments: &[(i32, &[i32])]) -> NewTopic {
    let assignments = assignments
        .iter()
        .map(|(partition, nodes)| Assignment {
            partition: *partition,
            nodes: nodes.to_vec(),
        })
        .collect();
    NewTopic {
        assignments,
        ..NewTopic::with_defaults(name)
    }
}

fn with_config(name: &str, key: &str, value: Option<&str>) -> NewTopic {
    NewTopic {
        configs: vec![(key.to_owned(), value.map(str::to_owned))],
        ..NewTopic::with_defaults(name)
    }
}

#[track_caller]
fn check<T: std::fmt::Debug>(got: Result<T, Refusal>, code: ErrorCode, words: &str) {
    let refusal = got.expect_err("must be refused");
    assert_eq!(refusal.code, code.code(), "{refusal:?}");
    assert!(
        refusal.message.contains(words),
        "{:?} lacks {words:?}",
        refusal.message
    );
}

#[test]
fn topics_are_created_with_the_cluster_defaults() {
    for (nodes, factor) in [(1, 1), (2, 2), (3, 3), (5, 3)] {
        let mut cluster = Cluster::of(nodes);
        let created = cluster
            .create(NewTopic::with_defaults("orders"))
            .expect("created");
        assert_eq!(created.partitions.len(), 4);
        assert!(
            created
                .partitions
                .iter()
                .all(|replicas| replicas.len() == factor)
        );
        let image = cluster.state.image();
        assert_eq!(image.topics["orders"].replication_factor(), factor);
        assert_eq!(
            image
                .topic_by_id(image.topics["orders"].id)
                .map(|t| &t.name[..]),
            Some("orders")
        );
    }
}

#[test]
fn replica_ids_are_never_given_twice() {
    let mut cluster = Cluster::of(3);
    let mut seen: BTreeSet<u64> = (1..=3).collect();
    for round in 0..3 {
        let created = cluster.create(topic("orders", 4, 3)).expect("created");
        for replica in created.partitions.iter().flatten() {
            assert!(
                seen.insert(replica.replica),
                "replica {} again",
                replica.replica
            );
        }
        let request = Request::DeleteTopics {
            topics: vec![TopicRef::Name("orders".into())],
        };
        let deleted = cluster.one_topic(request).expect("deleted");
        assert_eq!(deleted.id, created.id, "round {round}");
        assert_eq!(cluster.state.replicas_on(1), 0);
    }
}

#[test]
fn a_recreated_topic_has_another_id() {
    let mut cluster = Cluster::of(1);
    let first = cluster
        .create(NewTopic::with_defaults("t"))
        .expect("created");
    cluster
        .one_topic(Request::DeleteTopics {
            topics: vec![TopicRef::Id(first.id)],
        })
        .expect("deleted");
    let second = cluster
        .create(NewTopic::with_defaults("t"))
        .expect("created");
    assert_ne!(first.id, second.id);
    let shown_since = cluster.state.image().version;
    let told = TopicId::from_bytes(second.id).made_in_version();
    assert_eq!(told, Some(shown_since), "and tells the later one");
}

#[test]
fn bad_topics_are_refused_with_kafkas_codes() {
    use ErrorCode::{
        InvalidConfig, InvalidPartitions, InvalidReplicaAssignment, InvalidReplicationFactor,
        InvalidRequest, InvalidTopicException, TopicAlreadyExists,
    };
    let cases: Vec<(NewTopic, ErrorCode, &str)> = vec![
        (
            NewTopic::with_defaults("old.topic"),
            TopicAlreadyExists,
            "already exists",
        ),
        (
            NewTopic::with_defaults("old_topic"),
            InvalidTopicException,
            "collides",
        ),
        (NewTopic::with_defaults(""), InvalidTopicException, "empty"),
        (NewTopic::with_defaults("a/b"), InvalidTopicException, "'/'"),
        (
            NewTopic::with_defaults("__cluster_metadata"),
            InvalidRequest,
            "reserved",
        ),
        (topic("t", 0, 1), InvalidPartitions, "at least 1"),
        (topic("t", -5, 1), InvalidPartitions, "at least 1"),
        (topic("t", i32::MAX, 1), InvalidPartitions, "at most"),
        (topic("t", 1, 0), InvalidReplicationFactor, "factor of 0"),
        (topic("t", 1, -3), InvalidReplicationFactor, "factor of -3"),
        (topic("t", 1, 4), InvalidReplicationFactor, "there are 3"),
        (
            NewTopic {
                partitions: Some(1),
                ..assigned("t", &[(0, &[1])])
            },
            InvalidRequest,
            "not both",
        ),
        (
            assigned("t", &[(0, &[1]), (2, &[2])]),
            InvalidReplicaAssignment,
            "without gaps",
        ),
        (
            assigned("t", &[(0, &[1]), (0, &[2])]),
            InvalidReplicaAssignment,
            "without gaps",
        ),
        (
            assigned("t", &[(0, &[1, 1])]),
            InvalidReplicaAssignment,
            "twice",
        ),
        (
            assigned("t", &[(0, &[1, 9])]),
            InvalidReplicaAssignment,
            "no node 9",
        ),
        (
            assigned("t", &[(0, &[1, 2]), (1, &[3])]),
            InvalidReplicaAssignment,
            "needs 2 nodes",
        ),
        (
            assigned("t", &[(0, &[])]),
            InvalidReplicaAssignment,
            "at least one node",
        ),
        (
            with_config("t", "retention.msec", Some("1")),
            InvalidConfig,
            "did you mean retention.ms",
        ),
        (
            with_config("t", "retention.ms", Some("x")),
            InvalidConfig,
            "whole number",
        ),
        (
            with_config("t", "retention.ms", None),
            InvalidConfig,
            "no value",
        ),
    ];
    for (new, code, words) in cases {
        let mut cluster = Cluster::of(3);
        cluster
            .create(NewTopic::with_defaults("old.topic"))
            .expect("created");
        let before = cluster.state.clone();
        check(cluster.create(new), code, words);
        assert!(cluster.state == before, "a refusal changes nothing");
    }
}

#[test]
fn topics_of_one_request_see_each_other() {
    let mut cluster = Cluster::of(1);
    let topics = ["a.b", "a_b", "c"].map(NewTopic::with_defaults).to_vec();
    let Reply::Topics(results) = cluster.ask(Request::CreateTopics {
        topics,
        validate_only: false,
    }) else {
        panic!("topics were asked for");
    };
    let fates: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(fates, [true, false, true]);
    assert_eq!(
        cluster.state.topics().keys().collect::<Vec<_>>(),
        ["a.b", "c"]
    );
}

#[test]
fn validation_alone_changes_nothing() {
    let mut cluster = Cluster::of(1);
    let before = cluster.state.clone();
    let topics = vec![NewTopic::with_defaults("t")];
    cluster
        .one_topic(Request::CreateTopics {
            topics,
            validate_only: true,
        })
        .expect("it would be created");
    assert!(cluster.state == before);
}

#[test]
fn assignments_are_followed() {
    let mut cluster = Cluster::of(3);
    let created = cluster
        .create(assigned("t", &[(1, &[2, 1]), (0, &[3, 2])]))
        .expect("created");
    let nodes: Vec<Vec<i32>> = created
        .partitions
        .iter()
        .map(|p| p.iter().map(|r| r.node).collect())
        .collect();
    assert_eq!(nodes, [[3, 2], [2, 1]]);
}

#[test]
fn living_nodes_come_first_and_dead_ones_are_better_than_none() {
    let mut cluster = Cluster::of(3);
    cluster.down.insert(2);
    let created = cluster.create(topic("two", 6, 2)).expect("created");
    assert!(
        created
            .partitions
            .iter()
            .flatten()
            .all(|replica| replica.node != 2)
    );
    let created = cluster.create(topic("three", 1, 3)).expect("created");
    assert!(
        created.partitions[0]
            .iter()
            .any(|replica| replica.node == 2)
    );
}

#[test]
fn partitions_only_grow() {
    use ErrorCode::{InvalidPartitions, InvalidReplicaAssignment, UnknownTopicOrPartition};
    let grow = |topic: &str, count, assignments: Option<Vec<Vec<i32>>>| {
        let topics = vec![NewPartitions {
            topic: topic.into(),
            count,
            assignments,
        }];
        Request::CreatePartitions {
            topics,
            validate_only: false,
        }
    };
    let mut cluster = Cluster::of(3);
    let before = cluster.create(topic("t", 3, 2)).expect("created");
    check(
        cluster.one_topic(grow("t", 3, None)),
        InvalidPartitions,
        "already has 3",
    );
    check(
        cluster.one_topic(grow("t", 2, None)),
        InvalidPartitions,
        "not be an increase",
    );
    check(
        cluster.one_topic(grow("t", -1, None)),
        InvalidPartitions,
        "not be an increase",
    );
    check(
        cluster.one_topic(grow("u", 9, None)),
        UnknownTopicOrPartition,
        "\"u\"",
    );
    let short = Some(vec![vec![1, 2]]);
    check(
        cluster.one_topic(grow("t", 5, short)),
        InvalidReplicaAssignment,
        "2 partitions",
    );
    let thin = Some(vec![vec![1]]);
    check(
        cluster.one_topic(grow("t", 4, thin)),
        InvalidReplicaAssignment,
        "needs 2 nodes",
    );

    let after = cluster.one_topic(grow("t", 5, None)).expect("grown");
    assert_eq!(after.partitions[..3], before.partitions[..]);
    assert_eq!(cluster.state.image().topics["t"].partitions.len(), 5);
    assert!(
        after.partitions[3..]
            .iter()
            .all(|replicas| replicas.len() == 2)
    );
}

#[test]
fn deletion_tells_names_from_ids() {
    let mut cluster = Cluster::of(1);
    let delete = |topic| Request::DeleteTopics {
        topics: vec![topic],
    };
    check(
        cluster.one_topic(delete(TopicRef::Name("t".into()))),
        ErrorCode::UnknownTopicOrPartition,
        "\"t\"",
    );
    check(
        cluster.one_topic(delete(TopicRef::Id([1; 16]))),
        ErrorCode::UnknownTopicId,
        "id",
    );
    let step = ConfigStep::Set("false".into());
    cluster
        .alter(ConfigResource::Cluster, &[("delete.topic.enable", step)])
        .expect("set");
    let Reply::Refused(refusal) = cluster.ask(delete(TopicRef::Name("t".into()))) else {
        panic!("deletion is off");
    };
    assert_eq!(refusal.code, ErrorCode::TopicDeletionDisabled.code());
}

#[test]
fn settings_are_set_appended_subtracted_and_deleted() {
    let set = |value: &str| ConfigStep::Set(value.into());
    let topic = || ConfigResource::Topic("t".into());
    let cases: Vec<(&str, ConfigStep, Option<&str>)> = vec![
        ("retention.ms", set("5"), Some("5")),
        ("retention.ms", ConfigStep::Delete, None),
        (
            "cleanup.policy",
            ConfigStep::Append("compact".into()),
            Some("delete,compact"),
        ),
        (
            "cleanup.policy",
            ConfigStep::Append("compact".into()),
            Some("delete,compact"),
        ),
        (
            "cleanup.policy",
            ConfigStep::Subtract("delete".into()),
            Some("compact"),
        ),
        (
            "cleanup.policy",
            ConfigStep::Subtract("delete".into()),
            Some("compact"),
        ),
        ("cleanup.policy", ConfigStep::Delete, None),
    ];
    let mut cluster = Cluster::of(1);
    cluster
        .create(NewTopic::with_defaults("t"))
        .expect("created");
    for (name, step, want) in cases {
        cluster
            .alter(topic(), &[(name, step.clone())])
            .expect("altered");
        let got = cluster.state.image().topics["t"].configs.get(name).cloned();
        assert_eq!(got.as_deref(), want, "after {name} {step:?}");
    }
}

#[test]
fn bad_settings_are_refused_and_the_whole_resource_with_them() {
    use ErrorCode::{InvalidConfig, InvalidRequest, UnknownTopicOrPartition};
    let set = |value: &str| ConfigStep::Set(value.into());
    let topic = || ConfigResource::Topic("t".into());
    type Case = (
        ConfigResource,
        Vec<(&'static str, ConfigStep)>,
        ErrorCode,
        &'static str,
    );
    let cases: Vec<Case> = vec![
        (
            ConfigResource::Topic("u".into()),
            vec![],
            UnknownTopicOrPartition,
            "\"u\"",
        ),
        (
            topic(),
            vec![("retention.mss", set("1"))],
            InvalidConfig,
            "did you mean retention.ms",
        ),
        (
            topic(),
            vec![("num.partitions", set("1"))],
            InvalidConfig,
            "cluster setting",
        ),
        (
            ConfigResource::Cluster,
            vec![("retention.ms", set("1"))],
            InvalidConfig,
            "topic setting",
        ),
        (
            topic(),
            vec![("retention.ms", set("-7"))],
            InvalidConfig,
            "at least -1",
        ),
        (
            topic(),
            vec![("segment.ms", ConfigStep::Append("1".into()))],
            InvalidConfig,
            "not a list",
        ),
        (
            topic(),
            vec![("cleanup.policy", ConfigStep::Subtract("delete".into()))],
            InvalidConfig,
            "at least one",
        ),
        (
            topic(),
            vec![("retention.ms", set("1")), ("retention.ms", set("2"))],
            InvalidRequest,
            "twice",
        ),
        (
            topic(),
            vec![("retention.ms", set("1")), ("segment.ms", set("0"))],
            InvalidConfig,
            "segment.ms",
        ),
    ];
    let mut cluster = Cluster::of(1);
    cluster
        .create(NewTopic::with_defaults("t"))
        .expect("created");
    let before = cluster.state.clone();
    for (resource, steps, code, words) in cases {
        check(cluster.alter(resource, &steps), code, words);
        assert!(cluster.state == before, "a refusal changes nothing");
    }
}

#[test]
fn cluster_settings_show_in_the_image() {
    let mut cluster = Cluster::of(3);
    let step = ConfigStep::Set("1000".into());
    let version = cluster.state.image().version;
    cluster
        .alter(
            ConfigResource::Cluster,
            &[("replica.lag.time.max.ms", step)],
        )
        .expect("set");
    let image = cluster.state.image();
    assert!(image.version > version);
    assert_eq!(image.cluster().replica_lag_time_max.as_millis(), 1000);
}

#[test]
fn a_node_id_is_bound_to_its_data_directory() {
    let mut cluster = Cluster::of(3);
    assert_eq!(
        cluster.register(claim(1, None)),
        Ok(1),
        "the same disk has the same id"
    );
    assert_eq!(cluster.register(claim(1, Some(1))), Ok(1));
    check(
        cluster.register(claim(1, Some(2))),
        ErrorCode::InvalidRequest,
        "--node-id 1",
    );
    let stranger = cluster.register(claim(77, Some(2)));
    let refusal = stranger.expect_err("another disk");
    for words in ["decommission 2", "--node-id 4", "another data directory"] {
        assert!(
            refusal.message.contains(words),
            "{:?} lacks {words:?}",
            refusal.message
        );
    }
    check(
        cluster.register(claim(78, Some(-1))),
        ErrorCode::InvalidRequest,
        "0 or more",
    );
    assert_eq!(
        cluster.register(claim(79, Some(20))),
        Ok(20),
        "a free claim is granted"
    );
    assert_eq!(
        cluster.register(claim(80, None)),
        Ok(21),
        "beyond every id seen"
    );
}

#[test]
fn a_removed_node_burns_its_id() {
    let mut cluster = Cluster::of(3);
    cluster.create(topic("t", 1, 3)).expect("created");
    let Reply::Refused(refusal) = cluster.ask(Request::RemoveNode { node: 3 }) else {
        panic!("it holds a replica");
    };
    for words in [
        "still holds replicas of t/0",
        "cannot be moved to another node yet",
    ] {
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
    cluster
        .one_topic(Request::DeleteTopics {
            topics: vec![TopicRef::Name("t".into())],
        })
        .expect("deleted");
    assert_eq!(cluster.ask(Request::RemoveNode { node: 3 }), Reply::Done);
    // Asked again (the answer got lost, say), it is done already.
    assert_eq!(cluster.ask(Request::RemoveNode { node: 3 }), Reply::Done);
    check(
        cluster.register(claim(3, Some(3))),
        ErrorCode::DuplicateBrokerRegistration,
        "decommissioned",
    );
    assert_eq!(cluster.register(claim(90, None)), Ok(4));
}

#[test]
fn a_new_address_is_taken_and_an_old_one_changes_nothing() {
    let mut cluster = Cluster::of(1);
    let before = cluster.state.image().version;
    cluster.register(claim(1, None)).expect("known");
    assert_eq!(cluster.state.image().version, before);
    let moved = NodeClaim {
        kafka_port: 19092,
        ..claim(1, None)
    };
    cluster.register(moved).expect("known");
    let image = cluster.state.image();
    assert_eq!(
        image.nodes.values().next().map(|node| node.kafka.port),
        Some(19092)
    );
    assert_eq!(image.version, before + 1);
}

#[test]
fn producer_id_blocks_do_not_overlap() {
    let mut cluster = Cluster::of(1);
    let mut next_wanted = 0;
    for _ in 0..3 {
        let Reply::ProducerIds { first, next } = cluster.ask(Request::AllocateProducerIds) else {
            panic!("a block was asked for");
        };
        assert_eq!((first, next), (next_wanted, next_wanted + 1000));
        next_wanted = next;
    }
}

#[test]
fn nothing_works_before_the_cluster_has_formed_and_it_forms_once() {
    let mut cluster = Cluster::of(1);
    cluster.state = ControllerState::default();
    let Reply::Refused(refusal) = cluster.ask(Request::AllocateProducerIds) else {
        panic!("there is no cluster");
    };
    assert_eq!(refusal.code, ErrorCode::CoordinatorNotAvailable.code());
    let form = |id| Request::Form {
        cluster_id: [id; 16],
        nodes: vec![NodeRecord {
            ..claim(1, None).record(1, 1)
        }],
        configs: BTreeMap::from([("num.partitions".to_owned(), "2".to_owned())]),
    };
    assert_eq!(cluster.ask(form(1)), Reply::Done);
    assert_eq!(cluster.ask(form(2)), Reply::Done);
    assert_eq!(cluster.state.cluster_id(), Some([1; 16]));
    assert_eq!(
        cluster
            .create(NewTopic::with_defaults("t"))
            .expect("created")
            .partitions
            .len(),
        2
    );
}

#[test]
fn saved_tables_restore_the_same_state_and_image() {
    let mut cluster = Cluster::of(3);
    cluster.create(topic("a", 3, 3)).expect("created");
    cluster
        .create(with_config("b.c", "retention.ms", Some("7")))
        .expect("created");
    cluster.ask(Request::AllocateProducerIds);
    let bytes = cluster.state.save().expect("saves");
    let restored = ControllerState::restore(&bytes).expect("restores");
    assert!(restored == cluster.state);
    assert_eq!(restored.image(), cluster.state.image());
    assert_eq!(restored.collision("b_c"), Some("b.c"));
    assert_eq!(restored.replicas_on(2), cluster.state.replicas_on(2));
    assert!(ControllerState::restore(&bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn a_retry_is_applied_once_and_remembered_within_bounds() {
    let mut state = ControllerState::default();
    let command = |request: u32, next| {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&request.to_be_bytes());
        Command {
            request: id,
            changes: vec![Change::ProducerIdsTaken { next }],
            reply: vec![1; 8],
        }
    };
    state.apply(&command(1, 1000));
    state.apply(&command(1, 5000));
    assert_eq!(
        state.next_producer(),
        1000,
        "the second is a retry of the first"
    );
    assert_eq!(state.remembered(&command(1, 0).request), Some(&[1; 8][..]));
    for request in 2..2 + super::super::state::REMEMBERED_MAX as u32 {
        state.apply(&command(request, 1000));
    }
    assert_eq!(
        state.remembered(&command(1, 0).request),
        None,
        "the oldest is forgotten"
    );
    let restored = ControllerState::restore(&state.save().expect("saves")).expect("restores");
    assert!(restored.remembered(&command(2, 0).request).is_some());
}
