//! JoinGroup and the join phase, row by row: what is answered in each state.

mod classic_bench;

use std::time::Duration;

use bytes::Bytes;
use classic_bench::{
    Bench, DELAY, LIMITS, REBALANCE, SESSION, identity, instance, member, protocols, request,
};
use corduroy_group::classic::{
    ClassicGroup, ClassicLimits, ClassicState, JoinRequest, validate_group_id,
};
use corduroy_protocol::ErrorCode;

fn with_id_required() -> JoinRequest {
    JoinRequest {
        requires_known_member_id: true,
        ..request()
    }
}

// JoinGroup

#[test]
fn join_with_an_empty_group_id() {
    let error = validate_group_id("").unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidGroupId);
    assert_eq!(validate_group_id(" "), Ok(()));
}

#[test]
fn join_with_a_session_timeout_outside_the_limits() {
    for (ms, allowed) in [
        (-1, false),
        (5_999, false),
        (6_000, true),
        (1_800_000, true),
        (1_800_001, false),
    ] {
        let mut bench = Bench::new();
        let ticket = bench.join(JoinRequest {
            session_timeout_ms: ms,
            ..request()
        });
        bench.pass(DELAY);
        if allowed {
            assert_eq!(bench.joined(ticket).generation, 1, "{ms}");
        } else {
            assert_eq!(
                bench.join_error(ticket),
                ErrorCode::InvalidSessionTimeout,
                "{ms}"
            );
        }
    }
}

#[test]
fn join_without_member_id_gets_one_and_is_pending_for_its_session_timeout() {
    let mut bench = Bench::new();
    let (early, late) = (
        bench.join(with_id_required()),
        bench.join(with_id_required()),
    );
    assert_eq!(bench.join_error(early), ErrorCode::MemberIdRequired);
    let (early, late) = (bench.id(early), bench.id(late));
    assert_ne!(early, late);
    assert_eq!(bench.group.state(), ClassicState::Empty);

    bench.pass(SESSION - Duration::from_millis(1));
    let joined = bench.join(member(&early));
    bench.pass(DELAY);
    assert_eq!(bench.joined(joined).leader, early);
    let refused = bench.join(member(&late));
    assert_eq!(bench.join_error(refused), ErrorCode::UnknownMemberId);
}

#[test]
fn a_join_phase_waits_for_pending_members_until_they_expire_or_leave() {
    let (mut bench, ids) = Bench::stable(&[request()]);
    let given = bench.join(with_id_required());
    let given = bench.id(given);
    assert_eq!(
        bench.group.state(),
        ClassicState::Stable,
        "an id is no rebalance"
    );
    let leader = bench.join(member(&ids[0]));
    assert!(bench.is_parked(leader), "the pending one is waited for");
    bench.pass(SESSION);
    assert_eq!(bench.joined(leader).members.len(), 1);

    // One that leaves is not waited for either.
    bench.assign(&ids);
    let other = bench.join(with_id_required());
    let other = bench.id(other);
    let leader = bench.join(member(&ids[0]));
    assert!(bench.is_parked(leader));
    assert_eq!(
        bench.leave(&[(&other, None), (&given, None)]),
        [Ok(()), Err(ErrorCode::UnknownMemberId)]
    );
    assert_eq!(bench.joined(leader).generation, 3);
}

#[test]
fn join_with_a_member_id_of_a_group_that_is_not_there() {
    let mut bench = Bench::new();
    let ticket = bench.join(member("somebody"));
    assert_eq!(bench.join_error(ticket), ErrorCode::UnknownMemberId);
    assert_eq!(bench.id(ticket), "somebody");
}

#[test]
fn join_with_no_common_protocol_or_type() {
    let type_differs = JoinRequest {
        protocol_type: "connect".to_owned(),
        ..request()
    };
    let no_type = JoinRequest {
        protocol_type: String::new(),
        ..request()
    };
    let no_protocol = JoinRequest {
        protocols: Vec::new(),
        ..request()
    };
    let other_protocol = JoinRequest {
        protocols: protocols(&["sticky"]),
        ..request()
    };
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    for wrong in [
        type_differs,
        no_type.clone(),
        no_protocol.clone(),
        other_protocol.clone(),
    ] {
        let ticket = bench.join(wrong);
        assert_eq!(
            bench.join_error(ticket),
            ErrorCode::InconsistentGroupProtocol
        );
    }
    // One that is inside is bound by the others too.
    let ticket = bench.join(JoinRequest {
        member_id: ids[1].clone(),
        ..other_protocol.clone()
    });
    assert_eq!(
        bench.join_error(ticket),
        ErrorCode::InconsistentGroupProtocol
    );
    assert_eq!(bench.group.state(), ClassicState::Stable);
    for wrong in [no_type, no_protocol] {
        let mut bench = Bench::new();
        let ticket = bench.join(wrong);
        assert_eq!(
            bench.join_error(ticket),
            ErrorCode::InconsistentGroupProtocol
        );
    }
    // Alone, a member may change its mind.
    let (mut bench, ids) = Bench::stable(&[request()]);
    let ticket = bench.join(JoinRequest {
        member_id: ids[0].clone(),
        ..other_protocol
    });
    assert_eq!(bench.joined(ticket).protocol, "sticky");
}

#[test]
fn any_protocol_type_works_and_an_empty_group_takes_another() {
    let connect = JoinRequest {
        protocol_type: "connect".to_owned(),
        protocols: vec![("compatible".to_owned(), Bytes::from_static(b"\xff\x00"))],
        ..request()
    };
    let (mut bench, ids) = Bench::stable(&[connect]);
    assert_eq!(bench.group.protocol_type(), Some("connect"));
    assert_eq!(bench.group.protocol(), Some("compatible"));
    assert_eq!(bench.group.subscribed_topics(), None);
    bench.leave(&[(&ids[0], None)]);
    assert_eq!(
        bench.group.protocol_type(),
        Some("connect"),
        "kept for offsets' expiry"
    );
    bench.completing(&[request()]);
    assert_eq!(bench.group.protocol_type(), Some("consumer"));
}

#[test]
fn join_of_a_full_group() {
    let full = |bench: &mut Bench, members_max| {
        bench.group.set_limits(ClassicLimits {
            members_max,
            ..LIMITS
        });
    };
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    full(&mut bench, 3);
    let given = bench.join(with_id_required());
    let given = bench.id(given);
    // An id that was given out holds a place against those who have none.
    for request in [with_id_required(), request(), instance("i")] {
        let ticket = bench.join(request);
        assert_eq!(bench.join_error(ticket), ErrorCode::GroupMaxSizeReached);
    }
    assert_eq!(bench.group.state(), ClassicState::Stable);
    let third = bench.join(member(&given));
    let mut tickets = bench.rejoin(&[&ids[0], &ids[1]]);
    tickets.push(third);
    assert!(
        tickets
            .iter()
            .all(|ticket| bench.joined(*ticket).generation == 2)
    );
    // Lowered: whoever rejoins last is out.
    full(&mut bench, 2);
    bench.assign(&[ids[0].clone(), ids[1].clone(), given.clone()]);
    let tickets = bench.rejoin(&[&ids[0], &given, &ids[1]]);
    assert_eq!(bench.join_error(tickets[2]), ErrorCode::GroupMaxSizeReached);
    assert_eq!(bench.joined(tickets[0]).members.len(), 2);
}

#[test]
fn join_of_the_leader_in_stable_is_a_rebalance() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    let leader = bench.join(member(&ids[0]));
    assert_eq!(bench.group.state(), ClassicState::PreparingRebalance);
    assert_eq!(
        bench.heartbeat(&identity(&ids[1], 1)),
        Err(ErrorCode::RebalanceInProgress)
    );
    let follower = bench.join(member(&ids[1]));
    // No initial delay: the follow-up rebalances of cooperative members are quick.
    assert_eq!(bench.joined(leader).generation, 2);
    assert_eq!(bench.joined(leader).leader, ids[0]);
    assert_eq!(bench.joined(leader).members.len(), 2);
    assert_eq!(
        bench.joined(follower).members.len(),
        0,
        "for the leader alone"
    );
}

#[test]
fn join_of_a_follower_in_stable() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    let same = bench.join(member(&ids[1]));
    assert_eq!(bench.joined(same).generation, 1);
    assert_eq!(bench.joined(same).leader, ids[0]);
    assert_eq!(bench.group.state(), ClassicState::Stable);
    // With other metadata it is a rebalance.
    let other = bench.join(JoinRequest {
        protocols: vec![("range".to_owned(), Bytes::from_static(b"new topics"))],
        ..member(&ids[1])
    });
    assert!(bench.is_parked(other));
    let leader = bench.join(member(&ids[0]));
    assert_eq!(bench.joined(leader).members[1].metadata, "new topics");
}

#[test]
fn join_in_completing_rebalance() {
    let mut bench = Bench::new();
    let ids = bench.completing(&[request(), request()]);
    let same = bench.rejoin(&[&ids[0], &ids[1]]);
    assert_eq!(
        bench.joined(same[0]).members.len(),
        2,
        "the leader is told the members again"
    );
    assert_eq!(bench.joined(same[1]).generation, 1);
    assert_eq!(bench.group.state(), ClassicState::CompletingRebalance);
    // Whoever is parked in a sync has to join again when somebody brings news.
    let parked = bench.sync(identity(&ids[1], 1), &[]);
    let newcomer = bench.join(request());
    assert_eq!(bench.synced(parked), Err(ErrorCode::RebalanceInProgress));
    let tickets = bench.rejoin(&[&ids[0], &ids[1]]);
    assert_eq!(bench.joined(newcomer).generation, 2);
    assert_eq!(bench.joined(tickets[0]).members.len(), 3);
}

#[test]
fn a_join_that_is_repeated_replaces_the_parked_one() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    let first = bench.join(member(&ids[0]));
    let second = bench.join(member(&ids[0]));
    assert_eq!(bench.join_error(first), ErrorCode::RebalanceInProgress);
    bench.forget(second);
    let third = bench.join(member(&ids[0]));
    bench.join(member(&ids[1]));
    assert_eq!(bench.joined(third).generation, 2);
}

// The join phase

#[test]
fn the_first_join_phase_waits_for_the_initial_delay_after_the_last_newcomer() {
    let mut bench = Bench::new();
    let first = bench.join(request());
    bench.pass(DELAY - Duration::from_millis(1));
    let second = bench.join(request());
    bench.pass(DELAY - Duration::from_millis(1));
    assert!(bench.is_parked(first));
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.joined(first).members.len(), 2);
    assert_eq!(bench.joined(second).generation, 1);
}

#[test]
fn the_first_join_phase_is_no_longer_than_the_rebalance_timeout() {
    let mut bench = Bench::new();
    let first = bench.join(request());
    for _ in 0..29 {
        bench.pass(Duration::from_secs(2));
        bench.join(request());
        assert!(bench.is_parked(first));
    }
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.now, Duration::from_secs(1000) + REBALANCE);
    assert_eq!(bench.joined(first).members.len(), 30);
}

#[test]
fn without_initial_delay_the_first_generation_is_there_at_once() {
    let limits = ClassicLimits {
        initial_rebalance_delay: Duration::ZERO,
        ..LIMITS
    };
    let mut bench = Bench::with(ClassicGroup::new(limits, 0));
    let ticket = bench.join(request());
    assert_eq!(bench.joined(ticket).generation, 1);
}

#[test]
fn dynamic_members_that_do_not_rejoin_are_removed_at_the_longest_rebalance_timeout() {
    let patient = JoinRequest {
        rebalance_timeout_ms: 90_000,
        ..request()
    };
    let (mut bench, ids) = Bench::stable(&[request(), patient, request()]);
    let leader = bench.join(member(&ids[0]));
    let follower = bench.join(JoinRequest {
        rebalance_timeout_ms: 90_000,
        ..member(&ids[1])
    });
    // The third one heartbeats and does not come.
    for _ in 0..17 {
        bench.pass(Duration::from_secs(5));
        assert_eq!(
            bench.heartbeat(&identity(&ids[2], 1)),
            Err(ErrorCode::RebalanceInProgress)
        );
    }
    assert!(
        bench.is_parked(leader),
        "neither parked member has expired in 85 s"
    );
    bench.pass(Duration::from_secs(5));
    assert_eq!(bench.joined(leader).members.len(), 2);
    assert_eq!(bench.joined(follower).generation, 2);
    assert_eq!(
        bench.heartbeat(&identity(&ids[2], 2)),
        Err(ErrorCode::UnknownMemberId)
    );
}

#[test]
fn a_new_member_whose_client_is_gone_does_not_wait_for_ever() {
    let (mut bench, _) = Bench::stable(&[JoinRequest {
        session_timeout_ms: 1_800_000,
        rebalance_timeout_ms: 3_600_000,
        ..request()
    }]);
    let lost = bench.join(request());
    bench.pass(Duration::from_secs(299));
    assert!(bench.is_parked(lost));
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.join_error(lost), ErrorCode::UnknownMemberId);
    // If it is seen to go, its session timeout is enough.
    let seen = bench.join(request());
    bench.forget(seen);
    bench.pass(SESSION);
    assert_eq!(bench.group.len(), 1);
}

#[test]
fn the_leader_stays_while_it_is_there_and_the_eldest_follows_it() {
    let (mut bench, ids) = Bench::stable(&[request(), request(), request()]);
    bench.join(member(&ids[0]));
    bench.rejoin(&[&ids[2], &ids[1]]);
    assert_eq!(bench.group.leader(), Some(ids[0].as_str()));
    bench.leave(&[(&ids[0], None)]);
    bench.rejoin(&[&ids[2], &ids[1]]);
    assert_eq!(bench.group.leader(), Some(ids[1].as_str()));
    assert_eq!(bench.group.generation(), 3);
}

#[test]
fn somebody_whose_client_is_gone_leads_only_if_there_is_nobody_else() {
    let (mut bench, ids) = Bench::stable(&[request(), request()]);
    let gone = bench.join(member(&ids[0]));
    bench.forget(gone);
    let follower = bench.join(member(&ids[1]));
    // It counts as having come: the others are not kept waiting for it.
    assert_eq!(bench.joined(follower).leader, ids[1]);
    assert_eq!(bench.joined(follower).members.len(), 2);
    // It never learns of the generation, and its session ends.
    bench.sync(identity(&ids[1], 2), &[]);
    bench.pass(SESSION - Duration::from_millis(1));
    assert_eq!(bench.heartbeat(&identity(&ids[1], 2)), Ok(()));
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.group.len(), 1);
}

#[test]
fn the_protocol_is_voted_among_those_that_all_support() {
    let votes = |lists: &[&[&str]]| {
        let requests: Vec<JoinRequest> = lists
            .iter()
            .map(|list| JoinRequest {
                protocols: protocols(list),
                ..request()
            })
            .collect();
        let mut bench = Bench::new();
        bench.completing(&requests);
        bench.group.protocol().unwrap().to_owned()
    };
    assert_eq!(votes(&[&["a", "b"], &["b", "a"], &["b", "a"]]), "b");
    assert_eq!(
        votes(&[&["a", "b"], &["a", "b"], &["b"]]),
        "b",
        "not all support a"
    );
    assert_eq!(
        votes(&[&["b", "a"], &["a", "b"]]),
        "b",
        "the eldest decides between equals"
    );
    assert_eq!(
        votes(&[&["a", "a", "b"], &["b"]]),
        "b",
        "a repeated name counts once"
    );
}
