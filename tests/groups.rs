//! Consumer groups on real processes: what a coordinator promised holds after its death, its
//! successor goes on in the same generation, and stale members are told so.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use corduroy_protocol::ErrorCode;
use support::group::{Member, committed, delete_group};
use support::{Cluster, alone, wait_until};

const TOPIC: &str = "orders";

/// A cluster whose groups do not wait for more members, with a topic of four partitions.
fn cluster() -> Cluster {
    let cluster = Cluster::start(3);
    cluster.configure(&[("group.initial.rebalance.delay.ms", "0")]);
    cluster.create_topic(TOPIC, 4, &[]);
    cluster
}

/// The partition of `__consumer_offsets` that coordinates a group.
fn partition_of(group: &str) -> usize {
    let partition = corduroy_group::partition_of_group(group, 50);
    usize::try_from(partition.get()).expect("from 0")
}

/// Two members in one generation.
fn pair(cluster: &Cluster, group: &str) -> [Member; 2] {
    let mut members = [Member::new(group), Member::new(group)];
    let [first, second] = &mut members;
    first.settle(cluster);
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| second.settle(cluster));
        // The first one is told to rejoin, and both meet in the next generation.
        wait_until("the first member hears of the second", || {
            first.heartbeat(cluster).0 == ErrorCode::RebalanceInProgress || joining.is_finished()
        });
        first.settle(cluster);
        joining.join().expect("the second settles");
    });
    assert_eq!(
        members[0].generation, members[1].generation,
        "both are in one generation"
    );
    members
}

#[test]
fn a_coordinators_death_is_no_rebalance() {
    let _alone = alone();
    let mut cluster = cluster();
    let group = "billing";
    let members = pair(&cluster, group);
    for round in 0..3 {
        let offset = 100 + round;
        let [first, second] = &members;
        assert_eq!(first.commit(&cluster, (TOPIC, 0), offset), ErrorCode::None);
        let coordinator = cluster.leader("__consumer_offsets", partition_of(group));
        cluster.node(coordinator).kill();
        for member in [first, second] {
            let (error, node) = member.heartbeat(&cluster);
            assert_eq!(
                error,
                ErrorCode::None,
                "round {round}: a heartbeat of generation {}",
                member.generation
            );
            assert_ne!(node, coordinator, "another node answers");
        }
        assert_eq!(
            committed(&cluster, group, (TOPIC, 0)),
            (offset, 3, format!("up to {offset}")),
            "round {round}: the last acknowledged commit, its leader epoch and its metadata"
        );
        assert_eq!(
            second.commit(&cluster, (TOPIC, 1), offset),
            ErrorCode::None,
            "round {round}: a commit of the same generation"
        );
        cluster.node(coordinator).start();
        cluster.wait_healthy();
        cluster.wait_in_sync("__consumer_offsets", partition_of(group), 3);
    }
}

#[test]
fn groups_survive_a_restart_of_every_node() {
    let _alone = alone();
    let mut cluster = cluster();
    let group = "audit";
    let mut member = Member::new(group);
    member.settle(&cluster);
    let assignment = member.assignment.clone();
    assert_eq!(member.commit(&cluster, (TOPIC, 2), 77), ErrorCode::None);
    for id in 1..=3 {
        cluster.node(id).kill();
    }
    for id in 1..=3 {
        cluster.node(id).start();
    }
    cluster.wait_healthy();
    assert_eq!(
        member.heartbeat(&cluster).0,
        ErrorCode::None,
        "the member is known, in its generation"
    );
    assert_eq!(member.sync(&cluster, Vec::new()), ErrorCode::None);
    assert_eq!(member.assignment, assignment, "with its assignment");
    assert_eq!(
        committed(&cluster, group, (TOPIC, 2)),
        (77, 3, "up to 77".to_owned())
    );
    assert_eq!(
        committed(&cluster, group, (TOPIC, 3)).0,
        -1,
        "never committed"
    );
}

#[test]
fn a_commit_of_an_old_generation_changes_nothing() {
    let _alone = alone();
    let cluster = cluster();
    let group = "stale";
    let mut member = Member::new(group);
    member.settle(&cluster);
    assert_eq!(member.commit(&cluster, (TOPIC, 0), 10), ErrorCode::None);
    let old = member.generation;
    let others = pair_with(&cluster, &mut member);
    assert!(member.generation > old, "a new generation");
    let stale = Member {
        group: group.to_owned(),
        id: member.id.clone(),
        generation: old,
        instance: None,
        assignment: member.assignment.clone(),
    };
    assert_eq!(
        stale.commit(&cluster, (TOPIC, 0), 5),
        ErrorCode::IllegalGeneration
    );
    let stranger = Member {
        id: "nobody".to_owned(),
        ..stale
    };
    assert_eq!(
        stranger.commit(&cluster, (TOPIC, 0), 5),
        ErrorCode::UnknownMemberId
    );
    assert_eq!(
        committed(&cluster, group, (TOPIC, 0)).0,
        10,
        "neither went back"
    );
    assert_eq!(
        others.commit(&cluster, (TOPIC, 0), 11),
        ErrorCode::None,
        "a present member commits"
    );
    assert_eq!(committed(&cluster, group, (TOPIC, 0)).0, 11);
}

/// A second member joins the group of the first.
fn pair_with(cluster: &Cluster, first: &mut Member) -> Member {
    let mut second = Member::new(&first.group);
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| second.settle(cluster));
        wait_until("the first member hears of the second", || {
            first.heartbeat(cluster).0 == ErrorCode::RebalanceInProgress || joining.is_finished()
        });
        first.settle(cluster);
        joining.join().expect("the second settles");
    });
    second
}

#[test]
fn a_group_is_deleted_as_soon_as_its_last_member_has_left() {
    let _alone = alone();
    let cluster = cluster();
    for round in 0..20 {
        let group = format!("brief-{round}");
        let mut member = Member::new(&group);
        member.settle(&cluster);
        assert_eq!(member.commit(&cluster, (TOPIC, 0), 3), ErrorCode::None);
        assert_eq!(delete_group(&cluster, &group), ErrorCode::NonEmptyGroup);
        assert_eq!(member.leave(&cluster), ErrorCode::None);
        let outsider = Member::new(&group);
        assert_eq!(outsider.commit(&cluster, (TOPIC, 0), 4), ErrorCode::None);
        assert_eq!(delete_group(&cluster, &group), ErrorCode::None, "{group}");
        assert_eq!(delete_group(&cluster, &group), ErrorCode::GroupIdNotFound);
        assert_eq!(committed(&cluster, &group, (TOPIC, 0)).0, -1);
    }
}

#[test]
fn a_recreated_topic_shares_no_committed_offsets() {
    let _alone = alone();
    let cluster = cluster();
    let member = Member::new("heirs");
    cluster.create_topic("kept", 1, &[]);
    assert_eq!(member.commit(&cluster, ("kept", 0), 7), ErrorCode::None);
    assert_eq!(member.commit(&cluster, (TOPIC, 1), 9), ErrorCode::None);
    cluster.must(&["topic", "delete", TOPIC]);
    cluster.create_topic(TOPIC, 4, &[]);
    wait_until("the old topic's offset is forgotten", || {
        committed(&cluster, "heirs", (TOPIC, 1)).0 == -1
    });
    assert_eq!(committed(&cluster, "heirs", ("kept", 0)).0, 7);
}

#[test]
fn offsets_outlive_the_purge_of_their_segments() {
    let _alone = alone();
    let mut cluster = Cluster::start_with(3, &["--set", "log.retention.check.interval.ms=200"]);
    cluster.configure(&[
        ("group.initial.rebalance.delay.ms", "0"),
        ("offsets.topic.segment.bytes", "16384"),
        ("offsets.topic.num.partitions", "1"),
    ]);
    cluster.create_topic(TOPIC, 4, &[]);
    let quiet = Member::new("quiet");
    assert_eq!(quiet.commit(&cluster, (TOPIC, 3), 42), ErrorCode::None);
    let mut busy = Member::new("busy");
    busy.settle(&cluster);
    let mut offset = 0;
    let start = |cluster: &Cluster| {
        let leader = cluster.leader("__consumer_offsets", 0);
        let (error, start) = cluster
            .wire(leader)
            .list_offset("__consumer_offsets", 0, -2)
            .expect("an answer");
        assert_eq!(error, ErrorCode::None);
        start
    };
    let mut starts = vec![start(&cluster)];
    wait_until("three purges", || {
        for _ in 0..50 {
            offset += 1;
            assert_eq!(busy.commit(&cluster, (TOPIC, 0), offset), ErrorCode::None);
        }
        let now = start(&cluster);
        if starts.last() < Some(&now) {
            starts.push(now);
        }
        starts.len() > 3
    });
    for id in 1..=3 {
        cluster.node(id).kill();
    }
    for id in 1..=3 {
        cluster.node(id).start();
    }
    cluster.wait_healthy();
    assert_eq!(
        committed(&cluster, "quiet", (TOPIC, 3)),
        (42, 3, "up to 42".to_owned()),
        "committed once, long before the log's start"
    );
    assert_eq!(committed(&cluster, "busy", (TOPIC, 0)).0, offset);
    assert_eq!(busy.heartbeat(&cluster).0, ErrorCode::None);
    assert_eq!(busy.leave(&cluster), ErrorCode::None);
}
