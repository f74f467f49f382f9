//! Static members (KIP-345), failed writes and failovers of the classic protocol.

mod classic_bench;

use std::time::Duration;

use classic_bench::{
    Bench, DELAY, Disk, LIMITS, REBALANCE, SESSION, identity, instance, member, protocols, request,
    static_identity,
};
use corduroy_group::classic::{ClassicGroup, ClassicLimits, ClassicState, JoinRequest};
use corduroy_protocol::ErrorCode;

#[test]
fn join_of_a_known_static_member_in_stable_is_no_rebalance() {
    let (mut bench, ids) = Bench::stable(&[request(), instance("i")]);
    bench.disk = Disk::Slow;
    let back = bench.join(instance("i"));
    assert!(bench.is_parked(back), "told when it is durable");
    assert_eq!(bench.group.state(), ClassicState::Stable);
    bench.persisted(Ok(()));
    let id = bench.id(back);
    assert_ne!(id, ids[1]);
    let joined = bench.joined(back);
    assert_eq!(
        (joined.generation, joined.leader.as_str()),
        (1, ids[0].as_str())
    );
    assert!(!joined.skip_assignment);
    let stored = &bench.durable.as_ref().unwrap().members[1];
    assert_eq!(
        (stored.member_id.as_str(), &stored.assignment[..]),
        (id.as_str(), &b"a1"[..])
    );
    // It has what its instance had, and nobody else noticed.
    let sync = bench.sync(static_identity(&id, "i", 1), &[]);
    assert_eq!(bench.synced(sync).as_deref(), Ok("a1"));
    assert_eq!(bench.heartbeat(&identity(&ids[0], 1)), Ok(()));
}

#[test]
fn the_old_id_of_a_static_member_is_fenced_everywhere() {
    let (mut bench, ids) = Bench::stable(&[request(), instance("i")]);
    bench.disk = Disk::Slow;
    let back = bench.join(instance("i"));
    for durable in [false, true] {
        if durable {
            bench.persisted(Ok(()));
        }
        let old = static_identity(&ids[1], "i", 1);
        let fenced = ErrorCode::FencedInstanceId;
        let join = bench.join(JoinRequest {
            member_id: ids[1].clone(),
            ..instance("i")
        });
        assert_eq!(bench.join_error(join), fenced);
        let sync = bench.sync(old.clone(), &[]);
        assert_eq!(bench.synced(sync), Err(fenced));
        assert_eq!(bench.heartbeat(&old), Err(fenced));
        assert_eq!(bench.commit(&old), Err(fenced));
        assert_eq!(bench.leave(&[(&ids[1], Some("i"))]), [Err(fenced)]);
        // Without its instance id it is simply unknown.
        let unknown = bench.heartbeat(&identity(&ids[1], 1));
        assert_eq!(unknown, Err(ErrorCode::UnknownMemberId));
    }
    let id = bench.id(back);
    assert_eq!(bench.heartbeat(&static_identity(&id, "i", 1)), Ok(()));
}

#[test]
fn a_static_leader_that_comes_back_does_not_assign_anew() {
    for skips in [true, false] {
        let (mut bench, ids) = Bench::stable(&[instance("i"), request()]);
        let back = bench.join(JoinRequest {
            supports_skip_assignment: skips,
            ..instance("i")
        });
        let joined = bench.joined(back);
        assert_eq!(joined.generation, 1);
        assert_eq!(joined.skip_assignment, skips);
        if skips {
            assert_eq!(joined.leader, bench.id(back));
            assert_eq!(joined.members.len(), 2);
        } else {
            assert_eq!(joined.leader, ids[0], "it takes itself for a follower");
            assert!(joined.members.is_empty());
        }
        let id = bench.id(back);
        let sync = bench.sync(static_identity(&id, "i", 1), &[(&id, "other")]);
        assert_eq!(bench.synced(sync).as_deref(), Ok("a0"));
        assert_eq!(bench.group.leader(), Some(id.as_str()));
    }
}

#[test]
fn a_static_member_that_changes_the_choice_of_protocol_is_a_rebalance() {
    let both = |list: &[&str], instance_id| JoinRequest {
        protocols: protocols(list),
        ..instance(instance_id)
    };
    let (mut bench, ids) = Bench::stable(&[both(&["a", "b"], "i"), both(&["a", "b"], "j")]);
    let back = bench.join(both(&["b"], "j"));
    assert_eq!(bench.group.state(), ClassicState::PreparingRebalance);
    let other = bench.join(JoinRequest {
        member_id: ids[0].clone(),
        ..both(&["a", "b"], "i")
    });
    assert_eq!(bench.joined(back).generation, 2);
    assert_eq!(bench.joined(other).protocol, "b");
}

#[test]
fn a_static_member_that_comes_back_during_a_rebalance_joins_it() {
    // PreparingRebalance: the parked request of the old id is fenced.
    let (mut bench, ids) = Bench::stable(&[request(), instance("i")]);
    let old = bench.join(JoinRequest {
        member_id: ids[1].clone(),
        protocols: protocols(&["range"]),
        ..instance("i")
    });
    let back = bench.join(instance("i"));
    assert_eq!(bench.join_error(old), ErrorCode::FencedInstanceId);
    bench.join(member(&ids[0]));
    assert_eq!(bench.joined(back).generation, 2);

    // CompletingRebalance: the leader assigns to an id that is gone, so all join anew.
    let mut bench = Bench::new();
    let ids = bench.completing(&[request(), instance("i")]);
    let old = bench.sync(static_identity(&ids[1], "i", 1), &[]);
    let back = bench.join(instance("i"));
    assert_eq!(bench.synced(old), Err(ErrorCode::FencedInstanceId));
    let leader = bench.join(member(&ids[0]));
    assert_eq!(bench.joined(back).generation, 2);
    assert_eq!(bench.joined(leader).members[1].member_id, bench.id(back));
}

#[test]
fn a_static_member_that_misses_a_rebalance_is_kept_for_its_session_timeout() {
    let lasting = JoinRequest {
        session_timeout_ms: 150_000,
        ..instance("i")
    };
    let (mut bench, ids) = Bench::stable(&[request(), lasting]);
    let leader = bench.join(member(&ids[0]));
    bench.pass(REBALANCE);
    let joined = bench.joined(leader);
    assert_eq!(
        (joined.generation, joined.members.len()),
        (2, 2),
        "it is assigned to, and absent"
    );
    bench.sync(identity(&ids[0], 2), &[(&ids[0], "p0"), (&ids[1], "p1")]);
    // The time to sync (60 s) does not concern it.
    for _ in 0..17 {
        bench.pass(Duration::from_secs(5));
        assert_eq!(bench.heartbeat(&identity(&ids[0], 2)), Ok(()));
    }
    assert_eq!(bench.group.len(), 2);
    // It comes back under its instance's name, and has what was kept for it.
    let back = bench.join(instance("i"));
    let id = bench.id(back);
    assert_eq!(bench.joined(back).generation, 2);
    let sync = bench.sync(static_identity(&id, "i", 2), &[]);
    assert_eq!(bench.synced(sync).as_deref(), Ok("p1"));
    // If it is silent it goes, and that is a rebalance.
    bench.pass(SESSION - Duration::from_secs(1));
    assert_eq!(bench.heartbeat(&identity(&ids[0], 2)), Ok(()));
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(bench.group.len(), 1);
}

#[test]
fn static_members_alone_that_miss_a_rebalance_have_time_until_their_sessions_end() {
    let lasting = |id| JoinRequest {
        session_timeout_ms: 300_000,
        ..instance(id)
    };
    let (mut bench, ids) = Bench::stable(&[request(), lasting("i"), lasting("j")]);
    bench.leave(&[(&ids[0], None)]);
    bench.pass(REBALANCE * 2);
    assert_eq!(bench.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(bench.group.generation(), 1, "a generation needs somebody");
    let back = bench.join(lasting("j"));
    bench.pass(REBALANCE);
    assert_eq!(bench.joined(back).generation, 2);
    assert_eq!(
        bench.joined(back).leader,
        bench.id(back),
        "whoever came leads"
    );
    assert_eq!(bench.joined(back).members.len(), 2);
    bench.pass(Duration::from_secs(300));
    assert_eq!(bench.group.len(), 0);
    assert_eq!(bench.group.state(), ClassicState::Empty);
}

#[test]
fn a_static_member_has_its_place_in_a_full_group() {
    let (mut bench, _) = Bench::stable(&[request(), instance("i")]);
    bench.group.set_limits(ClassicLimits {
        members_max: 2,
        ..LIMITS
    });
    let stranger = bench.join(instance("j"));
    assert_eq!(bench.join_error(stranger), ErrorCode::GroupMaxSizeReached);
    let back = bench.join(instance("i"));
    assert_eq!(bench.joined(back).generation, 1);
}

#[test]
fn many_static_members_that_come_back_share_writes() {
    let names: Vec<String> = (0..20).map(|number| format!("i{number}")).collect();
    let requests: Vec<JoinRequest> = names.iter().map(|name| instance(name)).collect();
    let (mut bench, _) = Bench::stable(&requests);
    bench.disk = Disk::Slow;
    let tickets: Vec<_> = requests
        .iter()
        .map(|request| bench.join(request.clone()))
        .collect();
    bench.persisted(Ok(()));
    assert_eq!(bench.joined(tickets[0]).generation, 1);
    assert!(
        tickets[1..].iter().all(|ticket| bench.is_parked(*ticket)),
        "not in that write"
    );
    bench.persisted(Ok(()));
    assert!(
        tickets
            .iter()
            .all(|ticket| bench.joined(*ticket).generation == 1)
    );
    assert!(bench.writes.is_empty());
    let stored = &bench.durable.as_ref().unwrap().members;
    assert!(
        stored
            .iter()
            .zip(&tickets)
            .all(|(member, ticket)| member.member_id == bench.id(*ticket))
    );
}

#[test]
fn a_rebalance_during_the_write_of_a_new_id_takes_its_member_along() {
    let (mut bench, ids) = Bench::stable(&[request(), instance("i")]);
    bench.disk = Disk::Slow;
    let back = bench.join(instance("i"));
    let leader = bench.join(member(&ids[0]));
    assert_eq!(
        bench.joined(back).generation,
        2,
        "it had asked to join, and all have come"
    );
    assert_eq!(bench.joined(leader).members[1].member_id, bench.id(back));
    // The old write's outcome is nobody's business any more, whatever it is.
    bench.persisted(Err(ErrorCode::RequestTimedOut));
    assert_eq!(bench.group.state(), ClassicState::CompletingRebalance);
    assert!(bench.writes.is_empty());
}

// Failed writes

#[test]
fn an_assignment_that_cannot_be_written_is_an_error_for_all_and_a_rebalance() {
    for (cause, told) in [
        (ErrorCode::NotCoordinator, ErrorCode::NotCoordinator),
        (
            ErrorCode::CoordinatorNotAvailable,
            ErrorCode::CoordinatorNotAvailable,
        ),
        (
            ErrorCode::NotEnoughReplicas,
            ErrorCode::CoordinatorNotAvailable,
        ),
        (
            ErrorCode::RequestTimedOut,
            ErrorCode::CoordinatorNotAvailable,
        ),
        (ErrorCode::NotLeaderOrFollower, ErrorCode::NotCoordinator),
        (ErrorCode::KafkaStorageError, ErrorCode::NotCoordinator),
        (ErrorCode::MessageTooLarge, ErrorCode::UnknownServerError),
    ] {
        let mut bench = Bench::new();
        bench.disk = Disk::Slow;
        let ids = bench.completing(&[request(), request()]);
        let follower = bench.sync(identity(&ids[1], 1), &[]);
        let leader = bench.sync(identity(&ids[0], 1), &[]);
        bench.persisted(Err(cause));
        assert_eq!(bench.synced(leader), Err(told), "{cause:?}");
        assert_eq!(bench.synced(follower), Err(told), "{cause:?}");
        assert_eq!(bench.group.state(), ClassicState::PreparingRebalance);
        let tickets = bench.rejoin(&[&ids[0], &ids[1]]);
        assert_eq!(bench.joined(tickets[0]).generation, 2);
    }
}

#[test]
fn a_new_id_that_cannot_be_written_is_an_error_for_its_member_and_a_rebalance() {
    let (mut bench, ids) = Bench::stable(&[request(), instance("i")]);
    bench.disk = Disk::Slow;
    let back = bench.join(instance("i"));
    bench.persisted(Err(ErrorCode::NotEnoughReplicas));
    assert_eq!(bench.join_error(back), ErrorCode::CoordinatorNotAvailable);
    assert_eq!(bench.group.state(), ClassicState::PreparingRebalance);
    let again = bench.join(instance("i"));
    bench.join(member(&ids[0]));
    assert_eq!(bench.joined(again).generation, 2);
    assert_eq!(bench.group.len(), 2);
}

#[test]
fn a_write_whose_rebalance_is_over_waits_for_the_one_before() {
    let mut bench = Bench::new();
    bench.disk = Disk::Slow;
    let ids = bench.completing(&[request()]);
    let old = bench.sync(identity(&ids[0], 1), &[(&ids[0], "old")]);
    let newcomer = bench.join(request());
    assert_eq!(bench.synced(old), Err(ErrorCode::RebalanceInProgress));
    bench.join(member(&ids[0]));
    let newcomer = bench.id(newcomer);
    let sync = bench.sync(
        identity(&ids[0], 2),
        &[(&ids[0], "new"), (&newcomer, "second")],
    );
    // The first write is still under way; its success makes nothing stable.
    bench.persisted(Ok(()));
    assert_eq!(bench.group.state(), ClassicState::CompletingRebalance);
    assert!(bench.is_parked(sync));
    bench.persisted(Ok(()));
    assert_eq!(bench.synced(sync).as_deref(), Ok("new"));
    assert_eq!(bench.durable.as_ref().unwrap().generation, 2);
}

// Failover

#[test]
fn a_failover_keeps_generation_members_and_assignments() {
    let (bench, ids) = Bench::stable(&[instance("i"), request()]);
    let value = bench.durable.clone().unwrap();
    let now = Duration::from_secs(5);
    let mut after = Bench::with(ClassicGroup::from_value(LIMITS, &value, 1, now));
    after.now = now;
    assert_eq!(after.group.state(), ClassicState::Stable);
    assert_eq!(after.group.leader(), Some(ids[0].as_str()));
    after.pass(SESSION - Duration::from_millis(1));
    // Every session began anew; heartbeats, commits and syncs go on in the same generation.
    assert_eq!(after.heartbeat(&static_identity(&ids[0], "i", 1)), Ok(()));
    assert_eq!(after.commit(&identity(&ids[1], 1)), Ok(()));
    let sync = after.sync(identity(&ids[1], 1), &[]);
    assert_eq!(after.synced(sync).as_deref(), Ok("a1"));
    let old: Vec<_> = bench.group.members().collect();
    let new: Vec<_> = after.group.members().collect();
    assert_eq!(old, new);
    // A follower that asks again with all its protocols is no news, nor is a static member's return.
    let again = after.join(member(&ids[1]));
    assert_eq!(after.joined(again).generation, 1);
    let back = after.join(instance("i"));
    assert_eq!(after.joined(back).generation, 1);
    assert_eq!(after.group.state(), ClassicState::Stable);
}

#[test]
fn a_generation_that_was_noted_is_not_given_again() {
    let (bench, ids) = Bench::stable(&[request()]);
    let value = bench.durable.clone().unwrap();
    // Generation 7 is noted beside the record (a snapshot carries it).
    let mut after = Bench::with(ClassicGroup::from_value(LIMITS, &value, 7, bench.now));
    assert_eq!(after.group.generation(), 1);
    let ticket = after.join(member(&ids[0]));
    assert_eq!(after.joined(ticket).generation, 8);
    let mut deleted = Bench::with(ClassicGroup::new(LIMITS, 8));
    deleted.join(request());
    deleted.pass(DELAY);
    assert_eq!(deleted.group.generation(), 9);
}

#[test]
fn a_damaged_record_makes_a_group_that_keeps_its_laws() {
    let (bench, _) = Bench::stable(&[instance("i"), request()]);
    let mut value = bench.durable.clone().unwrap();
    value.members.extend(value.members.clone());
    value.leader = Some("nobody".to_owned());
    value.protocol = None;
    for member in &mut value.members {
        member.session_timeout_ms = -5;
        member.rebalance_timeout_ms = i32::MIN;
    }
    let mut after = Bench::with(ClassicGroup::from_value(LIMITS, &value, -3, bench.now));
    assert_eq!(after.group.len(), 2);
    assert_eq!(after.group.verify(), Ok(()));
    after.now = bench.now;
    after.tick();
    assert_eq!(after.group.state(), ClassicState::Empty);
}
