//! The group APIs on a real node, one raw request at a time: the exact errors, shapes and versions
//! that clients depend on.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

/// One request, and the answer of the API that it is of.
macro_rules! answer {
    ($wire:expr, $version:expr, $api:ident, $body:expr) => {
        answer!($wire, $version, $api => $api, $body)
    };
    ($wire:expr, $version:expr, $request:ident => $api:ident, $body:expr) => {
        match $wire.call($version, &Request::$request($body)).expect("answered") {
            Response::$api(response) => response,
            other => panic!("{other:?}"),
        }
    };
}

#[path = "groups_wire/offsets.rs"]
mod offsets;
#[path = "groups_wire/outsiders.rs"]
mod outsiders;
#[path = "groups_wire/refusals.rs"]
mod refusals;
mod support;

use bytes::Bytes;
use corduroy_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use corduroy_protocol::messages::leave_group_request::MemberIdentity;
use corduroy_protocol::messages::metadata_request::MetadataRequestTopic;
use corduroy_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use corduroy_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use corduroy_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use corduroy_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    DescribeGroupsRequest, FindCoordinatorRequest, GroupId, JoinGroupRequest, LeaveGroupRequest,
    ListGroupsRequest, MetadataRequest, OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest,
    TopicName,
};
use corduroy_protocol::{ErrorCode, Request, Response, StrBytes};
use corduroy_record::TopicId;
use support::group::{Member, coordinator_at};
use support::wire::Wire;
use support::{Cluster, alone, wait_until};

const TOPIC: &str = "orders";
const CONSUMER_OFFSETS: &str = "__consumer_offsets";
const SESSION_MS: i32 = 60_000;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group_id(group: &str) -> GroupId {
    GroupId(text(group))
}

fn topic_name(topic: &str) -> TopicName {
    TopicName(text(topic))
}

fn code(error_code: i16) -> ErrorCode {
    ErrorCode::from_code(error_code)
}

/// One node whose groups wait for nobody, with a topic of two partitions, and coordinators of
/// `groups` that answer.
fn one_node(groups: &[&str]) -> (Cluster, Wire) {
    let cluster = Cluster::start(1);
    cluster.configure(&[("group.initial.rebalance.delay.ms", "0")]);
    cluster.create_topic(TOPIC, 2, &[]);
    let mut wire = cluster.wire(1);
    for group in groups {
        wait_until(&format!("the coordinator of {group} answers"), || {
            let (error, _) = coordinator_at(&mut wire, group).expect("answered");
            let request = OffsetFetchRequest::default()
                .with_group_id(group_id(group))
                .with_topics(None);
            let answer = answer!(wire, 7, OffsetFetch, request);
            error == ErrorCode::None && answer.error_code == 0
        });
    }
    (cluster, wire)
}

/// Key, error, node, host, port of each key asked for; below version 4 of the only one.
fn find(
    wire: &mut Wire,
    version: i16,
    key_type: i8,
    keys: &[&str],
) -> Vec<(String, ErrorCode, i32, String, i32)> {
    let request = FindCoordinatorRequest::default().with_key_type(key_type);
    if version < 4 {
        let [key] = keys else {
            panic!("version {version} asks for one key");
        };
        let found = answer!(wire, version, FindCoordinator, request.with_key(text(key)));
        let error = code(found.error_code);
        let place = (found.node_id.0, found.host.to_string(), found.port);
        return vec![((*key).to_owned(), error, place.0, place.1, place.2)];
    }
    let keys = keys.iter().map(|key| text(key)).collect();
    let found = answer!(
        wire,
        version,
        FindCoordinator,
        request.with_coordinator_keys(keys)
    );
    let rows = found.coordinators.into_iter();
    rows.map(|row| {
        let error = code(row.error_code);
        (
            row.key.to_string(),
            error,
            row.node_id.0,
            row.host.to_string(),
            row.port,
        )
    })
    .collect()
}

fn nobody(key: &str, error: ErrorCode) -> (String, ErrorCode, i32, String, i32) {
    (key.to_owned(), error, -1, String::new(), -1)
}

#[test]
fn the_first_key_creates_the_topic_and_every_key_has_its_answer() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let mut wire = cluster.wire(1);
    let (_, error, _) = wire.metadata(CONSUMER_OFFSETS).expect("answered");
    assert_eq!(
        error,
        ErrorCode::UnknownTopicOrPartition,
        "nobody has asked yet"
    );

    let node = cluster.nodes[0].kafka;
    let here = |key: &str| {
        let (host, port) = (node.ip().to_string(), i32::from(node.port()));
        (key.to_owned(), ErrorCode::None, 1, host, port)
    };
    let found = find(&mut wire, 4, 0, &["a", "", "b"]);
    assert_eq!(found, [here("a"), here(""), here("b")]);
    let (_, error, partitions) = wire.metadata(CONSUMER_OFFSETS).expect("answered");
    assert_eq!((error, partitions.len()), (ErrorCode::None, 50));
    for version in 0..=3 {
        assert_eq!(
            find(&mut wire, version, 0, &["a"]),
            [here("a")],
            "version {version}"
        );
    }
    assert!(find(&mut wire, 6, 0, &[]).is_empty(), "nothing was asked");

    for version in 1..=6 {
        let found = find(&mut wire, version, 2, &["share"]);
        let expected = [nobody("share", ErrorCode::InvalidRequest)];
        assert_eq!(found, expected, "version {version}");
    }
}

#[test]
fn coordinators_are_not_available_until_they_are_and_each_node_lists_its_own_groups() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic(TOPIC, 1, &[]);
    cluster.node(2).kill();
    cluster.node(3).kill();
    let mut wire = cluster.wire(1);
    let found = find(&mut wire, 4, 0, &["a", "b"]);
    let unavailable = ErrorCode::CoordinatorNotAvailable;
    assert_eq!(found, [nobody("a", unavailable), nobody("b", unavailable)]);
    let found = find(&mut wire, 3, 0, &["a"]);
    assert_eq!(found, [nobody("a", unavailable)]);

    for id in [2, 3] {
        cluster.node(id).start();
        cluster.node(id).wait_ready();
    }
    cluster.wait_healthy();
    wait_until("both keys have a coordinator", || {
        let found = find(&mut wire, 4, 0, &["a", "b"]);
        found.iter().all(|(_, error, node, _, port)| {
            *error == ErrorCode::None && (1..=3).contains(node) && *port > 0
        })
    });

    let groups: Vec<String> = (0..12).map(|n| format!("listed-{n}")).collect();
    for group in &groups {
        let committed = Member::new(group).commit(&cluster, (TOPIC, 0), 5);
        assert_eq!(committed, ErrorCode::None, "{group}");
    }
    let list = |node: i32, states: &[&str], types: &[&str]| {
        let texts = |list: &[&str]| list.iter().map(|t| text(t)).collect::<Vec<_>>();
        let request = ListGroupsRequest::default()
            .with_states_filter(texts(states))
            .with_types_filter(texts(types));
        let listed = answer!(cluster.wire(node), 5, ListGroups, request);
        assert_eq!(listed.error_code, 0);
        for group in &listed.groups {
            assert_eq!(group.group_state.as_str(), "Empty");
            assert_eq!(group.group_type.as_str(), "classic");
            assert_eq!(group.protocol_type.as_str(), "");
        }
        let names = listed.groups.into_iter();
        let mut names: Vec<String> = names.map(|group| group.group_id.to_string()).collect();
        names.sort();
        names
    };
    let coordinated = |wire: &mut Wire, node: i32| {
        let here = groups.iter().filter(|group| {
            coordinator_at(wire, group).expect("answered") == (ErrorCode::None, node)
        });
        let mut here: Vec<String> = here.cloned().collect();
        here.sort();
        here
    };
    wait_until(
        "each node lists exactly the groups that it coordinates",
        || {
            let lists = [1, 2, 3].map(|node| list(node, &[], &[]));
            let same = [1, 2, 3].map(|node| coordinated(&mut wire, node)) == lists;
            same && lists.iter().map(Vec::len).sum::<usize>() == groups.len()
        },
    );
    for node in 1..=3 {
        assert_eq!(list(node, &["Stable"], &[]), [""; 0]);
        assert_eq!(list(node, &[], &["consumer"]), [""; 0]);
        assert_eq!(list(node, &["empty"], &["CLASSIC"]), list(node, &[], &[]));
    }

    let group = &groups[0];
    let (_, at) = coordinator_at(&mut wire, group).expect("answered");
    let mut elsewhere = cluster.wire(at % 3 + 1);
    not_coordinated_there(&mut elsewhere, group);
    refusals::not_coordinated(&mut elsewhere, group);
}

/// Version 1 says it of each partition, later ones of the group alone.
fn not_coordinated_there(elsewhere: &mut Wire, group: &str) {
    let not_here = ErrorCode::NotCoordinator;
    for version in 1..=7 {
        let topics = vec![
            OffsetFetchRequestTopic::default()
                .with_name(topic_name(TOPIC))
                .with_partition_indexes(vec![0]),
        ];
        let request = OffsetFetchRequest::default()
            .with_group_id(group_id(group))
            .with_topics(Some(topics));
        let answer = answer!(elsewhere, version, OffsetFetch, request);
        if version == 1 {
            let partition = &answer.topics[0].partitions[0];
            assert_eq!(code(partition.error_code), not_here);
            assert_eq!(partition.committed_offset, -1);
            assert_eq!(partition.metadata, Some(text("")));
        } else {
            let found = (code(answer.error_code), answer.topics.len());
            assert_eq!(found, (not_here, 0), "version {version}");
        }
    }
    for version in [8, 9] {
        let request = batched(&[(group, Some(&[0]))], false);
        let answer = answer!(elsewhere, version, OffsetFetch, request);
        let found = (
            code(answer.groups[0].error_code),
            answer.groups[0].topics.len(),
        );
        assert_eq!(found, (not_here, 0), "version {version}");
    }
}

/// OffsetFetch from version 8 on: groups with the partitions of [`TOPIC`], or all.
fn batched(groups: &[(&str, Option<&[i32]>)], require_stable: bool) -> OffsetFetchRequest {
    let groups = groups.iter().map(|(group, partitions)| {
        let topics = partitions.map(|partitions| {
            vec![
                OffsetFetchRequestTopics::default()
                    .with_name(topic_name(TOPIC))
                    .with_partition_indexes(partitions.to_vec()),
            ]
        });
        OffsetFetchRequestGroup::default()
            .with_group_id(group_id(group))
            .with_member_epoch(-1)
            .with_topics(topics)
    });
    OffsetFetchRequest::default()
        .with_groups(groups.collect())
        .with_require_stable(require_stable)
}

fn commit_partition(partition: i32, offset: i64) -> OffsetCommitRequestPartition {
    OffsetCommitRequestPartition::default()
        .with_partition_index(partition)
        .with_committed_offset(offset)
        .with_committed_leader_epoch(3)
        .with_committed_metadata(Some(text("up to here")))
}

/// A commit to [`TOPIC`] in one version up to 9.
fn commit_request(
    version: i16,
    (group, member, generation): (&str, &str, i32),
    offsets: &[(i32, i64)],
) -> OffsetCommitRequest {
    let partitions = offsets
        .iter()
        .map(|(p, offset)| commit_partition(*p, *offset));
    let partitions = match version {
        0..=5 => partitions
            .map(|partition| partition.with_committed_leader_epoch(-1))
            .collect(),
        _ => partitions.collect(),
    };
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(TOPIC))
        .with_partitions(partitions);
    OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_generation_id_or_member_epoch(generation)
        .with_topics(vec![topic])
}

/// The error of each partition of a commit to [`TOPIC`] in one version up to 9.
fn commit(
    wire: &mut Wire,
    version: i16,
    identity: (&str, &str, i32),
    offsets: &[(i32, i64)],
) -> Vec<ErrorCode> {
    let request = commit_request(version, identity, offsets);
    let answer = answer!(wire, version, OffsetCommit, request);
    let partitions = answer.topics[0].partitions.iter();
    partitions
        .map(|partition| code(partition.error_code))
        .collect()
}

fn topic_id(wire: &mut Wire, topic: &str) -> TopicId {
    let request = MetadataRequest::default().with_topics(Some(vec![
        MetadataRequestTopic::default().with_name(Some(topic_name(topic))),
    ]));
    let answer = answer!(wire, 12, Metadata, request);
    assert_eq!(answer.topics[0].error_code, 0, "{topic}");
    TopicId::new(answer.topics[0].topic_id)
}

/// Joins as the only member of a group of this protocol type: its id and generation.
fn join(wire: &mut Wire, group: &str, protocol_type: &str, protocol: &str) -> (String, i32) {
    let request = JoinGroupRequest::default()
        .with_group_id(group_id(group))
        .with_session_timeout_ms(SESSION_MS)
        .with_rebalance_timeout_ms(SESSION_MS)
        .with_protocol_type(text(protocol_type))
        .with_protocols(vec![
            JoinGroupRequestProtocol::default()
                .with_name(text(protocol))
                .with_metadata(Bytes::from_static(b"what it can")),
        ]);
    let named = answer!(wire, 9, JoinGroup, request.clone());
    assert_eq!(code(named.error_code), ErrorCode::MemberIdRequired);
    let request = request.with_member_id(named.member_id);
    let joined = answer!(wire, 9, JoinGroup, request);
    assert_eq!(code(joined.error_code), ErrorCode::None);
    assert_eq!(joined.protocol_type, Some(text(protocol_type)));
    assert_eq!(joined.protocol_name, Some(text(protocol)));
    assert_eq!(joined.leader, joined.member_id);
    (joined.member_id.to_string(), joined.generation_id)
}

fn sync(
    group: &str,
    (member, generation): (&str, i32),
    named: [Option<&str>; 2],
) -> SyncGroupRequest {
    SyncGroupRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text(member))
        .with_generation_id(generation)
        .with_protocol_type(named[0].map(text))
        .with_protocol_name(named[1].map(text))
        .with_assignments(vec![
            SyncGroupRequestAssignment::default()
                .with_member_id(text(member))
                .with_assignment(Bytes::from_static(b"two tasks")),
        ])
}

#[test]
fn a_group_of_connect_workers_is_served_like_any_other() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&["workers", "unknown"]);
    let (member, generation) = join(&mut wire, "workers", "connect", "sessioned");
    let identity = (member.as_str(), generation);
    let inconsistent = ErrorCode::InconsistentGroupProtocol;
    let named = [
        [None, None],
        [Some("connect"), None],
        [None, Some("sessioned")],
        [Some("consumer"), Some("sessioned")],
        [Some("connect"), Some("eager")],
    ];
    for named in named {
        let answer = answer!(wire, 5, SyncGroup, sync("workers", identity, named));
        assert_eq!(code(answer.error_code), inconsistent, "{named:?}");
    }
    // What is missing is said before whatever else is wrong.
    let answer = answer!(
        wire,
        5,
        SyncGroup,
        sync("unknown", ("nobody", 9), [None, None])
    );
    assert_eq!(code(answer.error_code), inconsistent);
    let named = [Some("connect"), Some("sessioned")];
    let answer = answer!(wire, 5, SyncGroup, sync("unknown", ("nobody", 9), named));
    assert_eq!(code(answer.error_code), ErrorCode::UnknownMemberId);

    let answer = answer!(wire, 5, SyncGroup, sync("workers", identity, named));
    assert_eq!(code(answer.error_code), ErrorCode::None);
    assert_eq!(answer.protocol_type, Some(text("connect")));
    assert_eq!(answer.protocol_name, Some(text("sessioned")));
    assert_eq!(&answer.assignment[..], b"two tasks");
    let older = answer!(wire, 4, SyncGroup, sync("workers", identity, [None, None]));
    assert_eq!(
        code(older.error_code),
        ErrorCode::None,
        "version 4 names nothing"
    );
    assert_eq!(&older.assignment[..], b"two tasks");

    for version in 0..=6 {
        let request = DescribeGroupsRequest::default().with_groups(vec![group_id("workers")]);
        let answer = answer!(wire, version, DescribeGroups, request);
        let group = &answer.groups[0];
        assert_eq!(code(group.error_code), ErrorCode::None, "version {version}");
        assert_eq!(group.group_state.as_str(), "Stable");
        assert_eq!(group.protocol_type.as_str(), "connect");
        assert_eq!(group.protocol_data.as_str(), "sessioned");
        let [described] = &group.members[..] else {
            panic!("{:?}", group.members);
        };
        assert_eq!(described.member_id.as_str(), member);
        assert_eq!(described.client_id.as_str(), "test");
        assert_eq!(described.client_host.as_str(), "/127.0.0.1");
        assert_eq!(&described.member_metadata[..], b"what it can");
        assert_eq!(&described.member_assignment[..], b"two tasks");
    }
}

#[test]
fn each_of_several_that_leave_has_its_own_answer() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&["leaving", "unknown"]);
    for version in 3..=5 {
        let (member, _) = join(&mut wire, "leaving", "consumer", "range");
        let leave = |wire: &mut Wire, group: &str| {
            let identity = |id: &str, instance: Option<&str>| {
                MemberIdentity::default()
                    .with_member_id(text(id))
                    .with_group_instance_id(instance.map(text))
            };
            let members = vec![
                identity("stranger", None),
                identity(&member, None),
                identity("", Some("no-such-instance")),
            ];
            let request = LeaveGroupRequest::default()
                .with_group_id(group_id(group))
                .with_members(members);
            let answer = answer!(wire, version, LeaveGroup, request);
            let members = answer.members.iter();
            let codes = members.map(|m| (m.member_id.to_string(), code(m.error_code)));
            (code(answer.error_code), codes.collect::<Vec<_>>())
        };
        let unknown = ErrorCode::UnknownMemberId;
        let row = |id: &str, error| (id.to_owned(), error);
        let expected = [
            row("stranger", unknown),
            row(&member, ErrorCode::None),
            row("", unknown),
        ];
        let left = leave(&mut wire, "leaving");
        assert_eq!(
            left,
            (ErrorCode::None, expected.to_vec()),
            "version {version}"
        );
        let expected = [
            row("stranger", unknown),
            row(&member, unknown),
            row("", unknown),
        ];
        let left = leave(&mut wire, "unknown");
        assert_eq!(
            left,
            (ErrorCode::None, expected.to_vec()),
            "version {version}"
        );
    }
    for version in 0..=2 {
        let (member, _) = join(&mut wire, "leaving", "consumer", "range");
        let request = LeaveGroupRequest::default()
            .with_group_id(group_id("leaving"))
            .with_member_id(text(&member));
        let left = answer!(wire, version, LeaveGroup, request.clone());
        assert_eq!(code(left.error_code), ErrorCode::None, "version {version}");
        let left = answer!(wire, version, LeaveGroup, request);
        assert_eq!(
            code(left.error_code),
            ErrorCode::UnknownMemberId,
            "version {version}"
        );
    }
}

/// A member of the consumer protocol, as it joins in version 1.
fn newcomer(group: &str) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id(group))
        .with_member_id(text("m"))
        .with_member_epoch(0)
        .with_rebalance_timeout_ms(SESSION_MS)
        .with_topic_partitions(Some(Vec::new()))
}

/// Joins with a request of [`newcomer`]: the answer that brings the assignment.
fn join_consumer(
    wire: &mut Wire,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    let mut last = answer!(wire, 1, ConsumerGroupHeartbeat, request.clone());
    wait_until("the member has partitions", || {
        assert_eq!(
            code(last.error_code),
            ErrorCode::None,
            "{:?}",
            last.error_message
        );
        let has = last.assignment.as_ref();
        if has.is_some_and(|has| !has.topic_partitions.is_empty()) {
            return true;
        }
        let beat = request.clone().with_member_epoch(last.member_epoch);
        last = answer!(wire, 1, ConsumerGroupHeartbeat, beat);
        false
    });
    last
}

#[test]
fn newcomers_of_the_consumer_protocol_count_as_groups() {
    let _alone = alone();
    let (cluster, mut wire) = one_node(&["a"]);
    cluster.configure(&[("group.coordinator.max.groups", "1")]);
    // An image that has this topic has the limit too.
    cluster.create_topic("later", 1, &[]);
    // Fifty coordinators: names of one of them.
    let of = |name: &str| corduroy_group::partition_of_group(name, 50);
    let names = (0..).map(|n| format!("g{n}"));
    let same: Vec<String> = names.filter(|name| of(name) == of("a")).take(1).collect();
    let join = |wire: &mut Wire, group: &str| {
        let request = newcomer(group).with_subscribed_topic_names(Some(vec![topic_name(TOPIC)]));
        code(answer!(wire, 1, ConsumerGroupHeartbeat, request).error_code)
    };
    assert_eq!(join(&mut wire, "a"), ErrorCode::None);
    assert_eq!(
        join(&mut wire, &same[0]),
        ErrorCode::CoordinatorLoadInProgress
    );
    assert_eq!(
        join(&mut wire, "a"),
        ErrorCode::None,
        "a group that is there"
    );
}

#[test]
fn members_of_the_consumer_protocol_are_told_what_is_wrong() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&["modern", ""]);
    let beat = |wire: &mut Wire, request: ConsumerGroupHeartbeatRequest| {
        let answer = answer!(wire, 1, ConsumerGroupHeartbeat, request);
        let error = code(answer.error_code);
        assert_eq!(answer.error_message.is_some(), error != ErrorCode::None);
        assert_eq!(answer.assignment.is_some(), error == ErrorCode::None);
        error
    };
    let named = || newcomer("modern").with_subscribed_topic_names(Some(vec![topic_name(TOPIC)]));
    let refused = beat(
        &mut wire,
        named().with_server_assignor(Some(text("none-such"))),
    );
    assert_eq!(refused, ErrorCode::UnsupportedAssignor);
    let refused = beat(
        &mut wire,
        newcomer("modern").with_subscribed_topic_regex(Some(text("or(d"))),
    );
    assert_eq!(refused, ErrorCode::InvalidRegularExpression);
    let refused = beat(&mut wire, named().with_group_id(group_id("")));
    assert_eq!(refused, ErrorCode::InvalidRequest);
    let refused = beat(&mut wire, named().with_member_epoch(3));
    assert_eq!(refused, ErrorCode::GroupIdNotFound, "nobody has joined");

    let joined = join_consumer(&mut wire, named());
    let epoch = joined.member_epoch;
    assert!(epoch > 0);
    let refused = beat(&mut wire, named().with_member_epoch(epoch + 1));
    assert_eq!(refused, ErrorCode::FencedMemberEpoch);
    let refused = beat(
        &mut wire,
        named()
            .with_member_id(text("other"))
            .with_member_epoch(epoch),
    );
    assert_eq!(refused, ErrorCode::UnknownMemberId);

    let ours = |epoch| ("modern", "m", epoch);
    let stale = ErrorCode::StaleMemberEpoch;
    assert_eq!(
        commit(&mut wire, 9, ours(epoch + 1), &[(0, 1), (1, 1)]),
        [stale; 2]
    );
    assert_eq!(
        commit(&mut wire, 9, ours(epoch), &[(0, 1)]),
        [ErrorCode::None]
    );
    let unknown = ("modern", "other", epoch);
    for version in 2..=8 {
        // Below version 9 there is no epoch, only a generation.
        let codes = commit(&mut wire, version, ours(epoch), &[(0, 2), (1, 2)]);
        assert_eq!(
            codes,
            [ErrorCode::UnsupportedVersion; 2],
            "version {version}"
        );
        let codes = commit(&mut wire, version, unknown, &[(0, 2)]);
        assert_eq!(codes, [ErrorCode::UnknownMemberId], "version {version}");
    }

    let mut fetch = |member: &str, epoch: i32| {
        let mut request = batched(&[("modern", Some(&[0]))], true);
        request.groups[0].member_id = Some(text(member));
        request.groups[0].member_epoch = epoch;
        let answer = answer!(wire, 9, OffsetFetch, request);
        let topics = answer.groups[0].topics.iter();
        let offsets = topics.map(|topic| topic.partitions[0].committed_offset);
        (
            code(answer.groups[0].error_code),
            offsets.collect::<Vec<_>>(),
        )
    };
    assert_eq!(fetch("m", epoch), (ErrorCode::None, vec![1]));
    assert_eq!(fetch("m", epoch + 1), (stale, vec![]));
    assert_eq!(fetch("other", epoch), (ErrorCode::UnknownMemberId, vec![]));
}

#[test]
fn a_group_that_is_not_there_is_dead_or_not_found() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&["nobody", "modern", "classic", ""]);
    let modern = newcomer("modern").with_subscribed_topic_names(Some(vec![topic_name(TOPIC)]));
    join_consumer(&mut wire, modern);
    join(&mut wire, "classic", "consumer", "range");
    for version in 0..=6 {
        let asked = ["nobody", "modern", ""].map(group_id).to_vec();
        let request = DescribeGroupsRequest::default().with_groups(asked);
        let answer = answer!(wire, version, DescribeGroups, request);
        for group in &answer.groups {
            let what = format!("version {version}, group {:?}", group.group_id);
            assert_eq!(group.group_state.as_str(), "Dead", "{what}");
            assert_eq!(group.members, [], "{what}");
            let message = group.error_message.as_deref().unwrap_or_default();
            if version < 6 {
                assert_eq!(
                    (code(group.error_code), message),
                    (ErrorCode::None, ""),
                    "{what}"
                );
            } else {
                assert_eq!(code(group.error_code), ErrorCode::GroupIdNotFound, "{what}");
                assert!(
                    message.contains(group.group_id.as_str()),
                    "{what}: {message}"
                );
                assert!(!message.is_empty(), "{what}");
            }
        }
    }
    for version in [0, 1] {
        let asked = ["modern", "nobody", "classic", ""].map(group_id).to_vec();
        let request = ConsumerGroupDescribeRequest::default().with_group_ids(asked);
        let answer = answer!(wire, version, ConsumerGroupDescribe, request);
        let codes = answer.groups.iter().map(|group| code(group.error_code));
        let not_found = ErrorCode::GroupIdNotFound;
        let expected = [
            ErrorCode::None,
            not_found,
            not_found,
            ErrorCode::InvalidGroupId,
        ];
        assert_eq!(codes.collect::<Vec<_>>(), expected, "version {version}");
    }
}

/// Two underscores make no topic the cluster's own.
#[test]
fn an_expression_finds_every_topic_but_the_clusters_own() {
    let _alone = alone();
    let (cluster, mut wire) = one_node(&["patterns"]);
    cluster.create_topic("__audit", 1, &[]);
    let own = topic_id(&mut wire, "__audit");
    let joined = join_consumer(
        &mut wire,
        newcomer("patterns").with_subscribed_topic_regex(Some(text("__.*"))),
    );
    let assigned = joined
        .assignment
        .expect("it has partitions")
        .topic_partitions;
    let assigned = assigned
        .iter()
        .map(|t| (TopicId::new(t.topic_id), t.partitions.clone()));
    assert_eq!(assigned.collect::<Vec<_>>(), [(own, vec![0])]);

    let answer = answer!(
        wire,
        12,
        Metadata,
        MetadataRequest::default().with_topics(None)
    );
    let internal = answer.topics.iter().filter(|topic| topic.is_internal);
    let internal: Vec<String> = internal
        .filter_map(|topic| topic.name.as_ref().map(|name| name.to_string()))
        .collect();
    assert_eq!(internal, [CONSUMER_OFFSETS]);
}
