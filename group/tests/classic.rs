//! SyncGroup, Heartbeat, OffsetCommit, LeaveGroup, row by row: what is answered in each state.

mod classic_bench;

use std::time::Duration;

use bytes::Bytes;
use classic_bench::{Bench, Disk, SESSION, identity, instance, member, request, static_identity};
use corduroy_group::classic::{ClassicState, JoinRequest, SyncRequest};
use corduroy_protocol::ErrorCode;

fn with_id_required() -> JoinRequest {
    JoinRequest {
        requires_known_member_id: true,
        ..request()
    }
}

// SyncGroup

#[test]
fn sync_in_preparing_rebalance() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    bench.join(member(&ids[0]));
    let ticket = bench.sync(identity(&ids[1], 1), &[]);
    assert_eq!(bench.synced(ticket), Err(ErrorCode::RebalanceInProgress));
}

#[test]
fn sync_in_completing_rebalance_parks_followers_until_the_leaders_assignment_is_durable() {
    let mut bench = Bench::new();
    bench.disk = Disk::Slow;
    let ids = bench.completing(&[request(), request(), request()]);
    let follower = bench.sync(identity(&ids[1], 1), &[]);
    assert!(bench.is_parked(follower));
    let leader = bench.sync(
        identity(&ids[0], 1),
        &[(&ids[0], "p0"), (&ids[1], "p1"), ("nobody", "p3")],
    );
    assert!(
        bench.is_parked(leader) && bench.is_parked(follower),
        "nothing is told before it is durable"
    );
    assert_eq!(bench.group.state(), ClassicState::CompletingRebalance);
    bench.persisted(Ok(()));
    assert_eq!(bench.group.state(), ClassicState::Stable);
    assert_eq!(bench.synced(leader).as_deref(), Ok("p0"));
    assert_eq!(bench.synced(follower).as_deref(), Ok("p1"));
    let unmentioned = bench.sync(identity(&ids[2], 1), &[]);
    assert_eq!(
        bench.synced(unmentioned).as_deref(),
        Ok(""),
        "zero bytes, no error"
    );

    let durable = bench.durable.clone().unwrap();
    assert_eq!(durable.generation, 1);
    assert_eq!(durable.leader.as_deref(), Some(ids[0].as_str()));
    assert_eq!(durable.protocol.as_deref(), Some("range"));
    let stored: Vec<_> = durable
        .members
        .iter()
        .map(|member| (member.member_id.clone(), member.assignment.clone()))
        .collect();
    let wanted = [(&ids[0], "p0"), (&ids[1], "p1"), (&ids[2], "")];
    assert_eq!(
        stored,
        wanted.map(|(id, text)| (id.clone(), Bytes::from(text)))
    );
}

#[test]
fn sync_that_the_leader_repeats_changes_nothing() {
    let mut bench = Bench::new();
    bench.disk = Disk::Slow;
    let ids = bench.completing(&[request()]);
    let first = bench.sync(identity(&ids[0], 1), &[(&ids[0], "p0")]);
    let second = bench.sync(identity(&ids[0], 1), &[(&ids[0], "other")]);
    assert_eq!(bench.synced(first), Err(ErrorCode::RebalanceInProgress));
    bench.persisted(Ok(()));
    assert_eq!(bench.synced(second).as_deref(), Ok("p0"));
    assert!(bench.writes.is_empty());
}

#[test]
fn sync_in_stable() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    for (id, text) in [(&ids[0], "a0"), (&ids[1], "a1")] {
        let ticket = bench.sync(identity(id, 1), &[(id, "something else")]);
        assert_eq!(bench.synced(ticket).as_deref(), Ok(text));
    }
}

#[test]
fn sync_of_a_wrong_generation_an_unknown_member_or_another_protocol() {
    let (mut bench, ids) = Bench::stable(&[request()]);
    let sync = |bench: &mut Bench, id: &str, generation, kind: &str, protocol: &str| {
        let ticket = bench.sync_request(SyncRequest {
            identity: identity(id, generation),
            protocol_type: Some(kind.to_owned()),
            protocol: Some(protocol.to_owned()),
            assignments: Default::default(),
        });
        bench.synced(ticket)
    };
    let id = &ids[0];
    for generation in [-1, 0, 2] {
        let refused = sync(&mut bench, id, generation, "consumer", "range");
        assert_eq!(refused, Err(ErrorCode::IllegalGeneration));
    }
    let refused = sync(&mut bench, "x", 1, "consumer", "range");
    assert_eq!(refused, Err(ErrorCode::UnknownMemberId));
    for (kind, protocol) in [("connect", "range"), ("consumer", "roundrobin")] {
        let refused = sync(&mut bench, id, 1, kind, protocol);
        assert_eq!(refused, Err(ErrorCode::InconsistentGroupProtocol));
    }
    assert_eq!(
        sync(&mut bench, id, 1, "consumer", "range").as_deref(),
        Ok("a0")
    );
    let mut empty = Bench::new();
    let refused = sync(&mut empty, id, 0, "consumer", "range");
    assert_eq!(refused, Err(ErrorCode::UnknownMemberId));
}

#[test]
fn members_that_never_sync_are_removed_and_a_rebalance_begins() {
    let mut bench = Bench::new();
    let ids = bench.completing(&[request(), request(), request()]);
    let parked = bench.sync(identity(&ids[1], 1), &[]);
    for _ in 0..11 {
        bench.pass(Duration::from_secs(5));
        for id in [&ids[0], &ids[2]] {
            assert_eq!(bench.heartbeat(&identity(id, 1)), Ok(()));
        }
    }
    assert!(bench.is_parked(parked), "who is parked does not expire");
    bench.pass(Duration::from_secs(5));
    assert_eq!(bench.synced(parked), Err(ErrorCode::RebalanceInProgress));
    let again = bench.join(member(&ids[1]));
    assert_eq!(bench.joined(again).generation, 2);
    assert_eq!(
        bench.joined(again).leader,
        ids[1],
        "the leader never synced and is gone"
    );
    assert_eq!(bench.joined(again).members.len(), 1);

    // Also when the leader has made the group Stable.
    let mut bench = Bench::new();
    let ids = bench.completing(&[request(), request()]);
    bench.sync(identity(&ids[0], 1), &[]);
    for _ in 0..12 {
        bench.pass(Duration::from_secs(5));
        bench.heartbeat(&identity(&ids[0], 1)).ok();
        bench.heartbeat(&identity(&ids[1], 1)).ok();
    }
    assert_eq!(bench.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(bench.group.len(), 1);
}

// Heartbeat

#[test]
fn heartbeat_in_preparing_rebalance_resets_the_session() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    bench.join(member(&ids[0]));
    for _ in 0..5 {
        bench.pass(SESSION - Duration::from_millis(1));
        let heard = bench.heartbeat(&identity(&ids[1], 1));
        assert_eq!(heard, Err(ErrorCode::RebalanceInProgress));
    }
    bench.pass(SESSION - Duration::from_millis(1));
    assert_eq!(bench.group.len(), 2);
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.group.len(), 1);
}

#[test]
fn heartbeat_in_completing_rebalance_and_stable_resets_the_session() {
    let mut bench = Bench::new();
    let ids = bench.completing(&[request(), request()]);
    for state in [ClassicState::CompletingRebalance, ClassicState::Stable] {
        assert_eq!(bench.group.state(), state);
        for _ in 0..3 {
            bench.pass(SESSION - Duration::from_millis(1));
            for id in &ids {
                assert_eq!(bench.heartbeat(&identity(id, 1)), Ok(()));
            }
        }
        if state == ClassicState::CompletingRebalance {
            bench.assign(&ids);
        }
    }
    assert_eq!(
        bench.heartbeat(&identity(&ids[0], 2)),
        Err(ErrorCode::IllegalGeneration)
    );
    bench.pass(SESSION - Duration::from_millis(1));
    assert_eq!(bench.heartbeat(&identity(&ids[0], 1)), Ok(()));
    bench.pass(Duration::from_millis(1));
    // The other was silent for a whole session.
    assert_eq!(
        bench.heartbeat(&identity(&ids[1], 1)),
        Err(ErrorCode::UnknownMemberId)
    );
    assert_eq!(
        bench.heartbeat(&identity(&ids[0], 1)),
        Err(ErrorCode::RebalanceInProgress)
    );
}

#[test]
fn heartbeat_in_empty() {
    let mut bench = Bench::new();
    assert_eq!(
        bench.heartbeat(&identity("x", 0)),
        Err(ErrorCode::UnknownMemberId)
    );
}

// OffsetCommit

#[test]
fn commit_without_generation_in_empty() {
    let mut bench = Bench::new();
    assert_eq!(bench.commit(&identity("", -1)), Ok(()));
    assert_eq!(bench.commit(&identity("x", -1)), Ok(()));
    assert_eq!(
        bench.commit(&identity("x", 0)),
        Err(ErrorCode::UnknownMemberId)
    );
}

#[test]
fn commit_without_generation_and_member_in_a_group_with_members() {
    let (mut bench, ids) = Bench::stable(&[request()]);
    assert_eq!(
        bench.commit(&identity("", -1)),
        Err(ErrorCode::UnknownMemberId)
    );
    assert_eq!(
        bench.commit(&identity(&ids[0], -1)),
        Err(ErrorCode::IllegalGeneration)
    );
    assert_eq!(
        bench.commit(&identity(&ids[0], 0)),
        Err(ErrorCode::IllegalGeneration)
    );
    assert_eq!(bench.commit(&identity(&ids[0], 1)), Ok(()));
    // A transaction of an old client names nobody.
    let now = bench.now;
    assert_eq!(
        bench
            .group
            .check_transactional_commit(&identity("", -1), now),
        Ok(())
    );
}

#[test]
fn commit_in_completing_rebalance() {
    let mut bench = Bench::new();
    let ids = bench.completing(&[request()]);
    let member = identity(&ids[0], 1);
    assert_eq!(bench.commit(&member), Err(ErrorCode::RebalanceInProgress));
    let now = bench.now;
    assert_eq!(bench.group.check_transactional_commit(&member, now), Ok(()));
}

#[test]
fn commit_in_preparing_rebalance_is_accepted_and_resets_the_session() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    bench.join(member(&ids[0]));
    for _ in 0..5 {
        bench.pass(SESSION - Duration::from_millis(1));
        assert_eq!(bench.commit(&identity(&ids[1], 1)), Ok(()));
    }
    assert_eq!(bench.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(bench.group.len(), 2);
    assert_eq!(
        bench.commit(&identity(&ids[1], 0)),
        Err(ErrorCode::IllegalGeneration)
    );
}

// LeaveGroup

#[test]
fn leave_of_several_members_answers_each() {
    let (mut bench, ids) = Bench::stable(&[request(), request(), instance("i"), instance("j")]);
    let given = bench.join(with_id_required());
    let given = bench.id(given);
    let left = bench.leave(&[
        (&ids[1], None),
        ("", Some("i")),
        ("", Some("unknown")),
        ("", None),
        (&ids[0], Some("j")),
        ("nobody", None),
        (&given, None),
        (&ids[1], None),
    ]);
    let unknown = Err(ErrorCode::UnknownMemberId);
    let fenced = Err(ErrorCode::FencedInstanceId);
    assert_eq!(
        left,
        [
            Ok(()),
            Ok(()),
            unknown,
            unknown,
            fenced,
            unknown,
            Ok(()),
            unknown
        ]
    );
    assert_eq!(bench.group.len(), 2);
    // One rebalance for all of them, without the initial delay.
    let tickets = bench.rejoin(&[&ids[0], &ids[3]]);
    assert_eq!(bench.joined(tickets[0]).generation, 2);
}

#[test]
fn leave_of_members_that_are_parked_answers_their_requests() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    let join = bench.join(member(&ids[0]));
    bench.leave(&[(&ids[0], None)]);
    assert_eq!(bench.join_error(join), ErrorCode::UnknownMemberId);
    let last = bench.join(member(&ids[1]));
    assert_eq!(bench.joined(last).leader, ids[1]);

    let mut bench = Bench::new();
    let ids = bench.completing(&[request(), request()]);
    let sync = bench.sync(identity(&ids[1], 1), &[]);
    bench.leave(&[(&ids[1], None)]);
    assert_eq!(bench.synced(sync), Err(ErrorCode::UnknownMemberId));
}

#[test]
fn leave_of_the_last_member_persists_an_empty_generation() {
    let (mut bench, ids) = Bench::stable(&[request()]);
    bench.disk = Disk::Slow;
    bench.leave(&[(&ids[0], None)]);
    assert_eq!(bench.group.state(), ClassicState::Empty);
    let since = bench.now_ms();
    // It fails, and is tried again until the record names nobody.
    bench.persisted(Err(ErrorCode::NotEnoughReplicas));
    bench.pass(Duration::from_secs(5));
    bench.persisted(Ok(()));
    let durable = bench.durable.clone().unwrap();
    assert_eq!((durable.generation, durable.members.len()), (2, 0));
    assert_eq!((durable.protocol, durable.leader), (None, None));
    assert_eq!(durable.protocol_type, "consumer");
    assert_eq!(
        durable.state_timestamp_ms, since,
        "offsets expire from when it became empty"
    );
    assert_eq!(bench.group.next_deadline(), None);
    bench.disk = Disk::Quick;
    let again = bench.completing(&[request()]);
    assert_eq!((bench.group.generation(), again.len()), (3, 1));
}

// Any request

#[test]
fn a_coordinator_that_stops_answers_everybody() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    let join = bench.join(member(&ids[0]));
    bench.close(ErrorCode::NotCoordinator);
    assert_eq!(bench.join_error(join), ErrorCode::NotCoordinator);
    assert_eq!(bench.id(join), ids[0], "it keeps its id");

    let mut bench = Bench::new();
    bench.disk = Disk::Slow;
    let ids = bench.completing(&[request(), instance("i")]);
    let sync = bench.sync(identity(&ids[0], 1), &[]);
    bench.close(ErrorCode::CoordinatorNotAvailable);
    assert_eq!(bench.synced(sync), Err(ErrorCode::CoordinatorNotAvailable));

    // Whatever still comes is refused, and never with UNKNOWN_MEMBER_ID: members would rejoin.
    let gone = ErrorCode::CoordinatorNotAvailable;
    let late = bench.join(member(&ids[0]));
    assert_eq!(bench.join_error(late), gone);
    let late = bench.sync(identity(&ids[0], 1), &[]);
    assert_eq!(bench.synced(late), Err(gone));
    assert_eq!(bench.heartbeat(&identity(&ids[0], 1)), Err(gone));
    assert_eq!(bench.commit(&identity(&ids[0], 1)), Err(gone));
    assert_eq!(bench.commit(&static_identity(&ids[1], "i", 1)), Err(gone));
    assert_eq!(bench.leave(&[(&ids[0], None)]), [Err(gone)]);
    assert_eq!(bench.group.next_deadline(), None);
}

#[test]
fn describing_shows_metadata_in_stable_and_assignments_until_the_next_generation() {
    let (mut bench, ids) = Bench::stable(&[instance("i"), request()]);
    let seen: Vec<_> = bench
        .group
        .members()
        .map(|member| {
            (
                member.member_id.to_owned(),
                member.instance_id.map(str::to_owned),
                member.metadata,
                member.assignment,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (
                ids[0].clone(),
                Some("i".to_owned()),
                Bytes::from("m"),
                Bytes::from("a0")
            ),
            (ids[1].clone(), None, Bytes::from("m"), Bytes::from("a1")),
        ]
    );
    bench.join(request());
    let rejoining: Vec<_> = bench
        .group
        .members()
        .map(|member| (member.metadata, member.assignment))
        .collect();
    assert_eq!(
        rejoining,
        [
            (Bytes::new(), Bytes::from("a0")),
            (Bytes::new(), Bytes::from("a1")),
            (Bytes::new(), Bytes::new()),
        ],
        "who waits for the next generation still has its partitions"
    );
    assert!(
        bench
            .group
            .members()
            .all(|member| member.client_host == "/10.0.0.1")
    );
}

#[test]
fn subscribed_topics_are_those_of_all_members() {
    let subscribing = |metadata: &'static [u8]| JoinRequest {
        protocols: vec![("range".to_owned(), Bytes::from_static(metadata))],
        ..request()
    };
    let (one, two) = (
        subscribing(b"\x00\x00\x00\x00\x00\x01\x00\x01a\xff\xff\xff\xff"),
        subscribing(b"\x00\x03\x00\x00\x00\x02\x00\x01a\x00\x01b\xff\xff\xff\xff"),
    );
    let (mut bench, ids) = Bench::stable(&[one.clone(), two]);
    let topics = bench.group.subscribed_topics().unwrap();
    assert_eq!(topics.into_iter().collect::<Vec<_>>(), ["a", "b"]);
    bench.leave(&[(&ids[0], None), (&ids[1], None)]);
    assert_eq!(
        bench.group.subscribed_topics(),
        Some(Default::default()),
        "nobody, nothing"
    );
    let (bench, _) = Bench::stable(&[one, request()]);
    assert_eq!(
        bench.group.subscribed_topics(),
        None,
        "not to be parsed: everything"
    );
}

#[test]
fn a_thousand_members_become_stable() {
    let requests = vec![request(); 1000];
    let (mut bench, ids) = Bench::stable(&requests);
    assert_eq!(bench.group.state(), ClassicState::Stable);
    assert_eq!(bench.durable.as_ref().unwrap().members.len(), 1000);
    let more = bench.join(request());
    assert_eq!(bench.join_error(more), ErrorCode::GroupMaxSizeReached);
    let all: Vec<&str> = ids.iter().map(String::as_str).collect();
    let tickets = bench.rejoin(&all);
    assert_eq!(bench.joined(tickets[999]).generation, 2);
    bench.pass(SESSION);
    assert_eq!(bench.group.state(), ClassicState::Empty, "all went silent");
    assert_eq!(bench.group.generation(), 3);
}
