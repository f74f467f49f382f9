//! Consumer groups on real processes: what a coordinator promised holds after its death, its
//! successor goes on in the same generation, and stale members are told so.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

#[path = "groups/purge.rs"]
mod purge;
mod support;

use corduroy_protocol::ErrorCode;
use std::time::Duration;

use corduroy_protocol::{Request, Response, decode_response};
use support::group::{Member, committed, delete_group, delete_offset_at};
use support::wire::{Wire, batch};
use support::{Cluster, alone, wait_until};

const TOPIC: &str = "orders";
/// Members of [`a_coordinators_death_is_no_rebalance`]'s group, where it is coordinated.
const MEMBERS: &str = "corduroy_group_members{group=\"billing\"}";
/// Generations and group epochs that began on a node.
const REBALANCES: &str = "corduroy_group_rebalances_total";

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
        wait_until("the coordinator counts its members", || {
            cluster.node(coordinator).metric(MEMBERS) == Some(2.0)
        });
        let rebalances = |cluster: &mut Cluster| {
            let counts = (1..=3).map(|id| cluster.node(id).metric(REBALANCES));
            counts.collect::<Vec<_>>()
        };
        let mut before = rebalances(&mut cluster);
        if round == 0 {
            let index = usize::try_from(coordinator - 1).expect("from 1");
            assert!(
                before[index] >= Some(2.0),
                "generations of the pair: {before:?}"
            );
        }
        cluster.node(coordinator).kill();
        let mut successor = 0;
        for member in [first, second] {
            let (error, node) = member.heartbeat(&cluster);
            successor = node;
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
        wait_until("the successor counts the same members", || {
            cluster.node(successor).metric(MEMBERS) == Some(2.0)
        });
        let mut after = rebalances(&mut cluster);
        for counts in [&mut before, &mut after] {
            counts.remove(usize::try_from(coordinator - 1).expect("from 1"));
        }
        assert_eq!(after, before, "round {round}: no generation began anywhere");
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
    let mut cluster = cluster();
    let member = Member::new("heirs");
    cluster.create_topic("kept", 1, &[]);
    assert_eq!(member.commit(&cluster, ("kept", 0), 7), ErrorCode::None);
    // Once while everybody runs, and once with all dying before the successor is made: nobody who
    // has seen the end is left.
    for dies in [false, true] {
        assert_eq!(member.commit(&cluster, (TOPIC, 1), 9), ErrorCode::None);
        cluster.must(&["topic", "delete", TOPIC]);
        if dies {
            restart(&mut cluster);
        }
        cluster.create_topic(TOPIC, 4, &[]);
        wait_until("the old topic's offset is hidden", || {
            committed(&cluster, "heirs", (TOPIC, 1)).0 == -1
        });
        assert_eq!(committed(&cluster, "heirs", ("kept", 0)).0, 7);
    }
    assert_eq!(member.commit(&cluster, (TOPIC, 1), 4), ErrorCode::None);
    restart(&mut cluster);
    assert_eq!(committed(&cluster, "heirs", (TOPIC, 1)).0, 4);
    assert_eq!(committed(&cluster, "heirs", ("kept", 0)).0, 7);
}

/// Everything dies, and comes back.
fn restart(cluster: &mut Cluster) {
    for id in 1..=3 {
        cluster.node(id).kill();
    }
    for id in 1..=3 {
        cluster.node(id).start();
    }
    cluster.wait_healthy();
}

/// A cluster with one coordinator.
fn one_coordinator(settings: &[(&str, &str)]) -> Cluster {
    coordinated_alone(Cluster::start(3), settings)
}

/// The same, and its log is looked after often.
fn one_busy_coordinator(settings: &[(&str, &str)]) -> Cluster {
    let cluster = Cluster::start_with(3, &["--set", "log.retention.check.interval.ms=100"]);
    coordinated_alone(cluster, settings)
}

fn coordinated_alone(cluster: Cluster, settings: &[(&str, &str)]) -> Cluster {
    cluster.configure(&[
        ("group.initial.rebalance.delay.ms", "0"),
        ("offsets.topic.num.partitions", "1"),
    ]);
    cluster.configure(settings);
    cluster.create_topic(TOPIC, 4, &[]);
    cluster
}

/// A connection to the coordinator of all groups.
fn coordinator(cluster: &Cluster) -> Wire {
    cluster.wire(cluster.leader("__consumer_offsets", 0))
}

#[test]
fn expired_offsets_are_gone_on_every_replica_and_stay_away() {
    let _alone = alone();
    let mut cluster = one_coordinator(&[("offsets.retention.check.interval.ms", "100")]);
    let mut busy = Member::new("busy");
    busy.settle(&cluster);
    assert_eq!(busy.commit_for(&cluster, (TOPIC, 0), 3, 1), ErrorCode::None);
    let brief = Member::new("brief");
    assert_eq!(brief.commit(&cluster, (TOPIC, 1), 6), ErrorCode::None);
    // Committed last: the look that finds it has looked at the others.
    let expire = |group: &str| {
        let member = Member::new(group);
        assert_eq!(
            member.commit_for(&cluster, (TOPIC, 0), 5, 1),
            ErrorCode::None
        );
        wait_until(&format!("the offset of {group} expires"), || {
            committed(&cluster, group, (TOPIC, 0)).0 == -1
        });
    };
    expire("brief");
    assert_eq!(
        committed(&cluster, "busy", (TOPIC, 0)).0,
        3,
        "it has members"
    );
    assert_eq!(brief.commit(&cluster, (TOPIC, 0), 9), ErrorCode::None);
    expire("gone");
    assert_eq!(
        delete_group(&cluster, "gone"),
        ErrorCode::GroupIdNotFound,
        "nothing was left of it"
    );
    let check = |cluster: &Cluster, when: &str| {
        let found = ["busy", "brief", "gone"].map(|group| committed(cluster, group, (TOPIC, 0)).0);
        assert_eq!(found, [3, 9, -1], "{when}");
        assert_eq!(committed(cluster, "brief", (TOPIC, 1)).0, 6, "{when}");
    };
    for id in 1..=3 {
        cluster.lead("__consumer_offsets", 0, id);
        check(&cluster, &format!("as node {id} has it"));
    }
    restart(&mut cluster);
    check(&cluster, "after a restart");
    assert_eq!(busy.heartbeat(&cluster).0, ErrorCode::None);
    assert_eq!(busy.leave(&cluster), ErrorCode::None);
    wait_until("what was due goes with the last member", || {
        committed(&cluster, "busy", (TOPIC, 0)).0 == -1
    });
}

#[test]
fn a_commit_without_a_majority_is_answered_in_time_and_nothing_older_comes_behind_it() {
    let _alone = alone();
    let mut cluster = one_busy_coordinator(&[
        ("offsets.commit.timeout.ms", "100"),
        ("offsets.topic.segment.bytes", "16384"),
    ]);
    let mut busy = Member::new("busy");
    busy.settle(&cluster);
    let mut offset = 0;
    let mut unanswered = 0;
    for round in 0..20 {
        if unanswered == 2 {
            break;
        }
        offset += 1;
        assert_eq!(busy.commit(&cluster, (TOPIC, 0), offset), ErrorCode::None);
        cluster.wait_in_sync("__consumer_offsets", 0, 3);
        let leader = cluster.leader("__consumer_offsets", 0);
        let mut wire = cluster.wire(leader);
        let followers: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        for id in &followers {
            cluster.node(*id).pause();
        }
        let answer = busy.commit_at(&mut wire, (TOPIC, 0), offset + 1);
        for id in &followers {
            cluster.node(*id).resume();
        }
        cluster.wait_healthy();
        match answer.expect("an answer") {
            ErrorCode::CoordinatorNotAvailable => unanswered += 1,
            // It had found out before the commit came: the next round is quicker.
            ErrorCode::NotCoordinator | ErrorCode::CoordinatorLoadInProgress => continue,
            other => panic!("round {round}: {}", other.name()),
        }
        // Records keep their order: once this one is there, it is known whether the other came
        // through, and stays so.
        assert_eq!(busy.commit(&cluster, (TOPIC, 2), 1), ErrorCode::None);
        let settled = committed(&cluster, "busy", (TOPIC, 0)).0;
        assert!(
            (offset..=offset + 1).contains(&settled),
            "round {round}: {settled}"
        );
        offset = settled;
        let start = |cluster: &Cluster| {
            let found = coordinator(cluster).list_offset("__consumer_offsets", 0, -2);
            found.expect("an answer").1
        };
        let before = start(&cluster);
        let mut other = 0;
        wait_until("everything is written again", || {
            for _ in 0..50 {
                other += 1;
                assert_eq!(busy.commit(&cluster, (TOPIC, 1), other), ErrorCode::None);
            }
            assert_eq!(
                committed(&cluster, "busy", (TOPIC, 0)).0,
                settled,
                "round {round}"
            );
            start(&cluster) > before
        });
        assert_eq!(
            committed(&cluster, "busy", (TOPIC, 0)).0,
            settled,
            "round {round}"
        );
    }
    assert_eq!(unanswered, 2, "commits that had to wait");
    restart(&mut cluster);
    assert_eq!(committed(&cluster, "busy", (TOPIC, 0)).0, offset);
}

#[test]
fn what_clients_can_make_a_coordinator_hold_is_limited() {
    let _alone = alone();
    let cluster = one_coordinator(&[
        ("group.coordinator.max.groups", "2"),
        ("group.coordinator.max.pending.members", "1"),
    ]);
    for group in ["a", "b"] {
        let commit = Member::new(group).commit(&cluster, (TOPIC, 0), 1);
        assert_eq!(commit, ErrorCode::None, "{group}");
    }
    let mut wire = coordinator(&cluster);
    let full = ErrorCode::CoordinatorLoadInProgress;
    let mut third = Member::new("c");
    let commit = third
        .commit_at(&mut wire, (TOPIC, 0), 1)
        .expect("an answer");
    assert_eq!(commit, full, "a third group");
    assert_eq!(third.join_at(&mut wire).expect("an answer"), full);
    let commit = Member::new("a").commit(&cluster, (TOPIC, 0), 2);
    assert_eq!(commit, ErrorCode::None, "a group that is there");

    let (mut first, mut second) = (Member::new("a"), Member::new("b"));
    let given = first.join_at(&mut wire).expect("an answer");
    assert_eq!(given, ErrorCode::MemberIdRequired);
    let refused = second.join_at(&mut wire).expect("an answer");
    assert_eq!(refused, full, "a second member without id");
    first.settle(&cluster);
    let given = second.join_at(&mut wire).expect("an answer");
    assert_eq!(given, ErrorCode::MemberIdRequired, "the first one has come");

    assert_eq!(first.leave(&cluster), ErrorCode::None);
    assert_eq!(delete_group(&cluster, "a"), ErrorCode::None);
    assert_eq!(
        third.commit(&cluster, (TOPIC, 0), 1),
        ErrorCode::None,
        "there is room"
    );
}

#[test]
fn a_first_generation_counts_before_it_is_durable_and_a_stop_ends_its_wait() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    cluster.configure(&[
        ("group.initial.rebalance.delay.ms", "600000"),
        ("offsets.topic.num.partitions", "1"),
    ]);
    cluster.create_topic(TOPIC, 1, &[]);
    let mut member = Member::new("early");
    assert_eq!(member.commit(&cluster, (TOPIC, 0), 7), ErrorCode::None);
    let mut parked = coordinator(&cluster);
    let given = member.join_at(&mut parked).expect("an answer");
    assert_eq!(given, ErrorCode::MemberIdRequired);
    let join = Request::JoinGroup(member.join_request());
    parked.send(7, &join).expect("sent");
    let mut wire = coordinator(&cluster);
    wait_until("its join has arrived", || {
        delete_offset_at(&mut wire, "early", (TOPIC, 0)).expect("an answer")
            == ErrorCode::NonEmptyGroup
    });
    let outside = Member::new("early").commit_at(&mut wire, (TOPIC, 0), 8);
    assert_eq!(
        outside.expect("an answer"),
        ErrorCode::UnknownMemberId,
        "from the first join on nobody outside commits"
    );
    cluster.node(1).terminate();
    let (_, frame) = parked.receive().expect("an answer before the end");
    let (_, answer) = decode_response(join.key(), 7, frame).expect("an answer");
    let Response::JoinGroup(answer) = answer else {
        panic!("not an answer to JoinGroup");
    };
    assert_eq!(
        ErrorCode::from_code(answer.error_code),
        ErrorCode::CoordinatorNotAvailable
    );
}

#[test]
fn lag_counts_every_partition_wherever_its_replicas_are() {
    let _alone = alone();
    let mut cluster = one_coordinator(&[]);
    // One replica each: wherever the coordinator is, two partitions are elsewhere.
    let mut create = vec!["topic", "create", "spread"];
    create.extend(["--assign", "1", "--assign", "2", "--assign", "3"]);
    cluster.must(&create);
    let values: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    let reader = Member::new("reader");
    for partition in 0..3 {
        let leader = cluster.leader("spread", usize::try_from(partition).expect("from 0"));
        let place = ("spread", partition);
        let sent = cluster
            .wire(leader)
            .produce(place, -1, Duration::from_secs(30), &batch(None, &values))
            .expect("an answer");
        assert_eq!(sent.error, ErrorCode::None);
        assert_eq!(reader.commit(&cluster, place, 3), ErrorCode::None);
    }
    let coordinator = cluster.leader("__consumer_offsets", 0);
    let lag = "corduroy_group_lag{group=\"reader\",topic=\"spread\"}";
    let unknown = "corduroy_group_lag_unknown_partitions{group=\"reader\"}";
    wait_until("the lag is 7 of each partition", || {
        cluster.node(coordinator).metric(lag) == Some(21.0)
    });
    assert_eq!(cluster.node(coordinator).metric(unknown), Some(0.0));
    let other = (1..=3).find(|id| *id != coordinator).expect("three nodes");
    cluster.node(other).kill();
    wait_until("what nobody knows is left out, and said to be", || {
        let node = cluster.node(coordinator);
        node.metric(lag) == Some(14.0) && node.metric(unknown) == Some(1.0)
    });
}
