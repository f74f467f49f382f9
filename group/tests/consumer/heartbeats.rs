//! ConsumerGroupHeartbeat as a member sees it.

use corduroy_group::consumer::assign::Assignor;
use corduroy_group::consumer::{
    ConsumerGroupState, HeartbeatRequest, MemberType, check_commit, check_fetch, describe,
    from_classic, heartbeat, remove_members, to_classic, topics_changed,
};
use corduroy_group::records::{
    Assignment, ClassicValue, CurrentMemberValue, GroupRecord, MemberState,
};
use corduroy_protocol::ErrorCode;

use crate::world::{Cluster, GROUP, World, going_on, joining, of_instance};

#[test]
fn a_request_that_contradicts_itself_is_refused() {
    let join = || joining("m", &["a"]);
    let blank = || Some("  ".to_owned());
    let owned = World::new(&[("a", 2)]).places("a:0");
    let cases: Vec<(&str, HeartbeatRequest, ErrorCode)> = vec![
        (
            "no member id in version 1",
            HeartbeatRequest {
                member_id: String::new(),
                ..join()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "blank instance id",
            HeartbeatRequest {
                instance_id: blank(),
                ..join()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "blank rack",
            HeartbeatRequest {
                rack_id: blank(),
                ..join()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "no rebalance timeout",
            HeartbeatRequest {
                rebalance_timeout_ms: -1,
                ..join()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "no subscription",
            HeartbeatRequest {
                subscribed_topics: None,
                ..join()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "does not say what it owns",
            HeartbeatRequest {
                owned: None,
                ..join()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "owns something before it has joined",
            HeartbeatRequest {
                owned: Some(owned.clone()),
                ..join()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "a rebalance timeout below -1",
            HeartbeatRequest {
                rebalance_timeout_ms: -2,
                ..join()
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "a rebalance timeout below -1 while going on",
            HeartbeatRequest {
                rebalance_timeout_ms: -2,
                ..going_on("m", 3)
            },
            ErrorCode::InvalidRequest,
        ),
        (
            "epoch below -2",
            going_on("m", -3),
            ErrorCode::InvalidRequest,
        ),
        (
            "a dynamic member leaves for a while",
            going_on("m", -2),
            ErrorCode::InvalidRequest,
        ),
        (
            "no id while going on",
            going_on("", 3),
            ErrorCode::InvalidRequest,
        ),
        (
            "no id while leaving",
            going_on("", -1),
            ErrorCode::InvalidRequest,
        ),
        (
            "unknown assignor",
            HeartbeatRequest {
                server_assignor: Some("best".to_owned()),
                ..join()
            },
            ErrorCode::UnsupportedAssignor,
        ),
        (
            "wrong expression",
            HeartbeatRequest {
                subscribed_regex: Some("(".to_owned()),
                ..join()
            },
            ErrorCode::InvalidRegularExpression,
        ),
        (
            "no such group",
            going_on("m", 1),
            ErrorCode::GroupIdNotFound,
        ),
        (
            "no such group to leave",
            going_on("m", -1),
            ErrorCode::GroupIdNotFound,
        ),
    ];
    for (name, request, code) in cases {
        let mut world = World::new(&[("a", 2)]);
        assert_eq!(world.beat(&request), Err(code), "{name}");
    }
    for blank in ["", "  "] {
        let world = World::new(&[("a", 2)]);
        let decided = heartbeat(blank, None, &join(), &world.cluster, &world.limits, 1_000);
        let refused = decided.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRequest, "group {blank:?}");
    }
    let mut world = World::new(&[("a", 2)]);
    world.limits.assignors = vec![Assignor::Range];
    let uniform = HeartbeatRequest {
        server_assignor: Some("uniform".to_owned()),
        ..join()
    };
    assert_eq!(
        world.beat(&uniform),
        Err(ErrorCode::UnsupportedAssignor),
        "an assignor that the setting leaves out"
    );
    world.beat(&join()).unwrap();
    let state = world.state.as_ref().unwrap();
    assert_eq!(
        describe(state).assignor,
        Assignor::Range,
        "who asks for none has the first of the setting"
    );
    let mut world = World::new(&[("a", 2)]);
    world.limits.members_max = 1;
    world.beat(&join()).unwrap();
    for (name, request, code) in [
        (
            "one too many",
            joining("n", &["a"]),
            ErrorCode::GroupMaxSizeReached,
        ),
        (
            "unknown member",
            going_on("n", 1),
            ErrorCode::UnknownMemberId,
        ),
        (
            "unknown member leaves",
            going_on("n", -1),
            ErrorCode::UnknownMemberId,
        ),
        (
            "epoch ahead",
            going_on("m", 2),
            ErrorCode::FencedMemberEpoch,
        ),
        (
            "unknown instance",
            of_instance("i", going_on("m", 1)),
            ErrorCode::UnknownMemberId,
        ),
    ] {
        assert_eq!(world.beat(&request), Err(code), "{name}");
    }
}

#[test]
fn a_member_joins_stays_and_leaves() {
    let mut world = World::new(&[("a", 2), ("b", 1)]);
    let request = HeartbeatRequest {
        member_id: String::new(),
        fresh_member_id: Some("named-by-the-server".to_owned()),
        ..joining("", &["b", "a", "missing"])
    };
    let answer = world.beat(&request).unwrap();
    assert_eq!(answer.member_id, "named-by-the-server");
    assert_eq!(
        (answer.member_epoch, answer.heartbeat_interval_ms),
        (1, 5_000)
    );
    assert_eq!(answer.assignment, Some(world.places("a:0,1 b:0")));
    assert_eq!(world.state().state(), ConsumerGroupState::Stable);

    // Nothing new: nothing is written, nothing is told.
    let decision = world.decide(&going_on("named-by-the-server", 1)).unwrap();
    assert_eq!(decision.records, []);
    assert_eq!(
        (decision.answer.member_epoch, decision.answer.assignment),
        (1, None)
    );
    // A full request is told again.
    let full = HeartbeatRequest {
        member_epoch: 1,
        owned: Some(world.places("a:0,1 b:0")),
        ..joining("named-by-the-server", &["a", "b", "missing"])
    };
    let decision = world.decide(&full).unwrap();
    assert_eq!(decision.records, []);
    assert_eq!(decision.answer.assignment, Some(world.places("a:0,1 b:0")));

    let answer = world.beat(&going_on("named-by-the-server", -1)).unwrap();
    assert_eq!(answer.member_epoch, -1);
    assert_eq!(world.state().state(), ConsumerGroupState::Empty);
    assert_eq!(world.state().epoch(), 2);
    assert!(!world.state().subscribed("a"));
    // A group that exists does not know its former member.
    let gone = world.beat(&going_on("named-by-the-server", 1));
    assert_eq!(gone, Err(ErrorCode::UnknownMemberId));
}

#[test]
fn a_partition_moves_only_after_its_owner_has_given_it_up() {
    let mut world = World::new(&[("a", 4)]);
    world.beat(&joining("m", &["a"])).unwrap();
    // The second member gets an epoch, and nothing yet.
    let answer = world.beat(&joining("n", &["a"])).unwrap();
    assert_eq!(
        (answer.member_epoch, answer.assignment),
        (2, Some(Assignment::new()))
    );
    assert_eq!(world.state().state(), ConsumerGroupState::Reconciling);

    // The first one is told to give up, and keeps its epoch.
    let answer = world.beat(&going_on("m", 1)).unwrap();
    assert_eq!(
        (answer.member_epoch, &answer.assignment),
        (1, &Some(world.places("a:0,1")))
    );
    // Still revoking, whether it says nothing or that it owns them still.
    for owned in [
        None,
        Some(world.places("a:0,1,2,3")),
        Some(world.places("a:0,1,3")),
    ] {
        let request = HeartbeatRequest {
            owned,
            ..going_on("m", 1)
        };
        let answer = world.beat(&request).unwrap();
        assert_eq!((answer.member_epoch, answer.assignment), (1, None));
        let answer = world.beat(&going_on("n", 2)).unwrap();
        assert_eq!((answer.member_epoch, answer.assignment), (2, None));
    }
    // Given up: its epoch goes on, so that its commits for these partitions are stale.
    let request = HeartbeatRequest {
        owned: Some(world.places("a:0,1")),
        ..going_on("m", 1)
    };
    let answer = world.beat(&request).unwrap();
    assert_eq!((answer.member_epoch, answer.assignment), (2, None));
    assert_eq!(
        check_commit(world.state(), "m", 1).unwrap_err().code,
        ErrorCode::StaleMemberEpoch
    );
    let answer = world.beat(&going_on("n", 2)).unwrap();
    assert_eq!(
        (answer.member_epoch, answer.assignment),
        (2, Some(world.places("a:2,3")))
    );
    assert_eq!(world.state().state(), ConsumerGroupState::Stable);
}

#[test]
fn what_a_member_has_not_taken_yet_is_asked_back_all_the_same() {
    // The member was told a:0-3 and has not said that it took them; it may be about to.
    let mut world = World::new(&[("a", 4)]);
    world.beat(&joining("m", &["a"])).unwrap();
    world.beat(&joining("n", &["a"])).unwrap();
    let owned = Some(Assignment::new());
    let request = HeartbeatRequest {
        owned: owned.clone(),
        ..going_on("m", 1)
    };
    let answer = world.beat(&request).unwrap();
    assert_eq!(answer.assignment, Some(world.places("a:0,1")));
    assert_eq!(world.beat(&going_on("n", 2)).unwrap().assignment, None);
    // After that answer its word counts.
    world.beat(&request).unwrap();
    let answer = world.beat(&going_on("n", 2)).unwrap();
    assert_eq!(answer.assignment, Some(world.places("a:2,3")));
}

#[test]
fn a_lost_answer_does_not_fence() {
    let mut world = World::new(&[("a", 4)]);
    world.beat(&joining("m", &["a"])).unwrap();
    // Its answer was lost: it joins again, and is told the same.
    let again = world.beat(&joining("m", &["a"])).unwrap();
    assert_eq!(
        (again.member_epoch, &again.assignment),
        (1, &Some(world.places("a:0,1,2,3")))
    );
    // Two epochs in a row get lost.
    for (partitions, epoch) in [(5, 2), (6, 3)] {
        world.cluster.grow("a", partitions);
        let records = topics_changed(GROUP, world.state(), &world.cluster, 0);
        world.apply(&records);
        let request = HeartbeatRequest {
            owned: Some(world.places("a:0,1,2,3")),
            ..going_on("m", 1)
        };
        let answer = world.beat(&request).unwrap();
        assert_eq!(answer.member_epoch, epoch);
        assert!(answer.assignment.is_some());
    }
    // Who owns what it was never given is somebody else.
    let request = HeartbeatRequest {
        owned: Some(world.places("a:0,9")),
        ..going_on("m", 1)
    };
    assert_eq!(world.beat(&request), Err(ErrorCode::FencedMemberEpoch));
    assert_eq!(
        world.beat(&going_on("m", 1)),
        Err(ErrorCode::FencedMemberEpoch)
    );
    // A fenced member joins again under its id.
    assert_eq!(world.beat(&joining("m", &["a"])).unwrap().member_epoch, 3);
}

#[test]
fn a_member_that_joins_again_has_given_everything_up() {
    let mut world = World::new(&[("a", 4)]);
    world.beat(&joining("m", &["a"])).unwrap();
    world.beat(&joining("n", &["a"])).unwrap();
    world.beat(&going_on("m", 1)).unwrap();
    // It is asked to give up two partitions, and restarts instead.
    let answer = world.beat(&joining("m", &["a"])).unwrap();
    assert_eq!(
        (answer.member_epoch, &answer.assignment),
        (2, &Some(world.places("a:0,1")))
    );
    let answer = world.beat(&going_on("n", 2)).unwrap();
    assert_eq!(answer.assignment, Some(world.places("a:2,3")));
}

#[test]
fn a_static_member_that_comes_back_takes_its_assignment_over() {
    let mut world = World::new(&[("a", 4)]);
    world.beat(&of_instance("i", joining("m", &["a"]))).unwrap();
    world.beat(&joining("n", &["a"])).unwrap();
    world.settle(&["m", "n"]);
    assert_eq!(world.assigned("m"), "a:0,1");

    let usurper = of_instance("i", joining("m2", &["a"]));
    assert_eq!(world.beat(&usurper), Err(ErrorCode::UnreleasedInstanceId));
    let other = of_instance("i", going_on("m2", 2));
    assert_eq!(world.beat(&other), Err(ErrorCode::FencedInstanceId));
    let other = of_instance("i", going_on("m2", -1));
    assert_eq!(world.beat(&other), Err(ErrorCode::FencedInstanceId));

    let answer = world.beat(&of_instance("i", going_on("m", -2))).unwrap();
    assert_eq!((answer.member_epoch, answer.assignment), (-2, None));
    // While it is away nobody gets what it has, its old id is fenced and commits nothing.
    let decision = world.decide(&going_on("n", 2)).unwrap();
    assert_eq!(decision.records, []);
    assert_eq!(
        world.beat(&going_on("m", 2)),
        Err(ErrorCode::FencedMemberEpoch)
    );
    for epoch in [2, -2] {
        assert!(check_commit(world.state(), "m", epoch).is_err());
        assert!(check_fetch(world.state(), Some("m"), epoch).is_err());
    }

    let answer = world.beat(&usurper).unwrap();
    assert_eq!(
        (answer.member_epoch, &answer.assignment),
        (2, &Some(world.places("a:0,1")))
    );
    assert_eq!(world.state().epoch(), 2, "its return is no rebalance");
    assert_eq!(world.state().state(), ConsumerGroupState::Stable);
    assert_eq!(world.state().instance("i").unwrap().0, "m2");
    assert_eq!(
        world.beat(&of_instance("i", going_on("m", 2))),
        Err(ErrorCode::FencedInstanceId)
    );
    assert_eq!(
        world.beat(&going_on("m", 2)),
        Err(ErrorCode::UnknownMemberId)
    );

    // With the same id, and with another subscription.
    world.beat(&of_instance("i", going_on("m2", -2))).unwrap();
    let answer = world.beat(&of_instance("i", joining("m2", &[]))).unwrap();
    assert_eq!(
        (answer.member_epoch, answer.assignment),
        (3, Some(Assignment::new()))
    );
    let answer = world.beat(&going_on("n", 2)).unwrap();
    assert_eq!(answer.assignment, Some(world.places("a:0,1,2,3")));
}

#[test]
fn topics_that_come_grow_and_go_move_the_group() {
    let mut world = World::new(&[("orders-eu", 1), ("other", 1)]);
    let request = HeartbeatRequest {
        subscribed_topics: None,
        subscribed_regex: Some("orders-.*".to_owned()),
        ..joining("m", &[])
    };
    let answer = world.beat(&request).unwrap();
    assert_eq!(answer.assignment, Some(world.places("orders-eu:0")));
    assert!(world.state().subscribed("orders-eu") && !world.state().subscribed("other"));

    let change = |world: &mut World| {
        let records = topics_changed(GROUP, world.state(), &world.cluster, 7);
        world.apply(&records);
        records.len()
    };
    assert_eq!(change(&mut world), 0);
    world.cluster.create("other-2", 5);
    assert_eq!(change(&mut world), 0, "nobody subscribes to it");

    world.cluster.create("orders-us", 2);
    assert_eq!(change(&mut world), 2);
    assert_eq!(world.state().state(), ConsumerGroupState::Assigning);
    assert_eq!(
        world.state().regexes()["orders-.*"].topics,
        ["orders-eu", "orders-us"]
    );
    let answer = world.beat(&going_on("m", 1)).unwrap();
    assert_eq!(answer.member_epoch, 2);
    assert_eq!(
        answer.assignment,
        Some(world.places("orders-eu:0 orders-us:0,1"))
    );

    world.cluster.grow("orders-eu", 3);
    assert_eq!(change(&mut world), 1);
    let answer = world.beat(&going_on("m", 2)).unwrap();
    assert_eq!(
        answer.assignment,
        Some(world.places("orders-eu:0,1,2 orders-us:0,1"))
    );

    world.cluster.delete("orders-us");
    assert_eq!(change(&mut world), 2);
    let answer = world.beat(&going_on("m", 3)).unwrap();
    assert_eq!(answer.assignment, Some(world.places("orders-eu:0,1,2")));
    world.settle(&["m"]);

    // A topic of the same name is another topic.
    world.cluster.delete("orders-eu");
    world.cluster.create("orders-eu", 3);
    assert_eq!(change(&mut world), 1);
    world.settle(&["m"]);
    assert_eq!(world.assigned("m"), "orders-eu:0,1,2");

    // Names instead of the expression: its record goes with its last subscriber.
    let request = HeartbeatRequest {
        subscribed_topics: Some(vec!["other".to_owned()]),
        subscribed_regex: Some(String::new()),
        ..going_on("m", world.state().members()["m"].epoch())
    };
    world.beat(&request).unwrap();
    assert!(world.state().regexes().is_empty());
    world.settle(&["m"]);
    assert_eq!(world.assigned("m"), "other:0");
    assert_eq!(change(&mut world), 0);
}

#[test]
fn members_vote_for_the_assignor() {
    let mut world = World::new(&[("a", 2), ("b", 2)]);
    let asks = |id: &str, name: &str| HeartbeatRequest {
        server_assignor: Some(name.to_owned()),
        ..joining(id, &["a", "b"])
    };
    world.beat(&asks("m", "range")).unwrap();
    world.beat(&asks("n", "range")).unwrap();
    world.settle(&["m", "n"]);
    assert_eq!(
        (world.assigned("m"), world.assigned("n")),
        ("a:0 b:0".into(), "a:1 b:1".into())
    );
    assert_eq!(describe(world.state()).assignor.name(), "range");
    world.beat(&asks("o", "uniform")).unwrap();
    assert_eq!(describe(world.state()).assignor.name(), "range");
    world.beat(&asks("p", "uniform")).unwrap();
    // Two against two: the default.
    assert_eq!(describe(world.state()).assignor.name(), "uniform");
}

#[test]
fn commits_and_fetches_are_checked_against_the_member_epoch() {
    let mut world = World::new(&[("a", 1)]);
    world.beat(&joining("m", &["a"])).unwrap();
    world.beat(&joining("n", &["a"])).unwrap();
    world.settle(&["m", "n"]);
    let state = world.state();
    let code = |result: Result<(), corduroy_group::GroupError>| result.err().map(|e| e.code);
    let stale = Some(ErrorCode::StaleMemberEpoch);
    let unknown = Some(ErrorCode::UnknownMemberId);
    // m went from epoch 1 to 2.
    for (member, epoch, commit, fetch) in [
        ("m", 2, None, None),
        ("m", 1, stale, None),
        ("m", 0, stale, stale),
        ("m", 3, stale, stale),
        ("m", -1, stale, stale),
        ("x", 2, unknown, unknown),
        ("", -1, unknown, unknown),
    ] {
        assert_eq!(
            code(check_commit(state, member, epoch)),
            commit,
            "{member} {epoch}"
        );
        assert_eq!(
            code(check_fetch(state, Some(member), epoch)),
            fetch,
            "{member} {epoch}"
        );
    }
    assert_eq!(check_fetch(state, None, -1), Ok(()));
    // An administrator may commit while the group is empty.
    let records = remove_members(GROUP, state, &["n", "m", "nobody", "m"]);
    assert_eq!(
        check_commit(state, "", -1).unwrap_err().code,
        ErrorCode::UnknownMemberId
    );
    world.apply(&records);
    assert_eq!(check_commit(world.state(), "", -1), Ok(()));
    assert_eq!(
        world.state().epoch(),
        3,
        "one epoch for all who are removed together"
    );
    assert_eq!(remove_members(GROUP, world.state(), &["m"]), []);
}

#[test]
fn a_request_of_an_older_epoch_confirms_nothing() {
    let mut world = World::new(&[("a", 4)]);
    world.beat(&joining("m", &["a"])).unwrap();
    world.beat(&joining("n", &["a"])).unwrap();
    world.beat(&going_on("m", 1)).unwrap();
    // As if it had come to epoch 2 on the way, by an answer that it may not have seen.
    let mut current = world.state().members()["m"].current.clone().unwrap();
    current.previous_member_epoch = 1;
    current.member_epoch = 2;
    world.beat(&joining("o", &["a"])).unwrap();
    world.apply(&[GroupRecord::CurrentMember {
        group: GROUP.to_owned(),
        member: "m".to_owned(),
        value: Some(current),
    }]);
    let says = |epoch| HeartbeatRequest {
        owned: Some(Assignment::new()),
        ..going_on("m", epoch)
    };
    let decision = world.decide(&says(1)).unwrap();
    assert_eq!(
        (decision.records, decision.answer.member_epoch),
        (Vec::new(), 2)
    );
    assert!(
        decision.answer.assignment.is_some(),
        "it is told what it missed"
    );
    assert_eq!(world.beat(&says(2)).unwrap().member_epoch, 3);
}

#[test]
fn a_state_of_a_newer_version_fences_until_the_member_gives_everything_up() {
    let mut world = World::new(&[("a", 1)]);
    world.beat(&joining("m", &["a"])).unwrap();
    world.apply(&[GroupRecord::CurrentMember {
        group: GROUP.to_owned(),
        member: "m".to_owned(),
        value: Some(CurrentMemberValue {
            member_epoch: 1,
            previous_member_epoch: 0,
            state: MemberState::Unknown,
            assigned: world.places("a:0"),
            pending_revocation: Assignment::new(),
        }),
    }]);
    assert_eq!(
        world.beat(&going_on("m", 1)),
        Err(ErrorCode::FencedMemberEpoch)
    );
    let answer = world.beat(&joining("m", &["a"])).unwrap();
    assert_eq!(answer.assignment, Some(world.places("a:0")));
}

#[test]
fn an_empty_group_changes_its_protocol() {
    let classic = |members| ClassicValue {
        protocol_type: "consumer".to_owned(),
        generation: 4,
        protocol: None,
        leader: None,
        state_timestamp_ms: 0,
        members,
    };
    let converted = from_classic(GROUP, &classic(Vec::new()), 7).unwrap();
    let cluster = {
        let mut cluster = Cluster::default();
        cluster.create("a", 1);
        cluster
    };
    let mut world = World::new(&[]);
    world.cluster = cluster;
    world.apply(&converted.records);
    assert_eq!(world.state(), &converted.state);
    // Epochs go on where the generations ended.
    let decision = heartbeat(
        GROUP,
        Some(&converted.state),
        &joining("m", &["a"]),
        &world.cluster,
        &world.limits,
        0,
    )
    .unwrap();
    assert_eq!(decision.answer.member_epoch, 8);
    world.apply(&decision.records);
    assert_eq!(
        describe(world.state()).members[0].member_type,
        MemberType::Consumer
    );

    let refused = to_classic(GROUP, world.state()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InconsistentGroupProtocol);
    world.beat(&going_on("m", -1)).unwrap();
    let records = to_classic(GROUP, world.state()).unwrap();
    world.apply(&records);
    assert_eq!(
        world.state(),
        &corduroy_group::consumer::ConsumerState::default()
    );
}

#[test]
fn an_expression_that_nobody_used_meanwhile_is_looked_at_again() {
    let mut world = World::new(&[("b", 1)]);
    let request = HeartbeatRequest {
        subscribed_topics: None,
        subscribed_regex: Some("b.*".to_owned()),
        ..joining("m", &[])
    };
    // The coordinator dies between the record of the expression and that of the member.
    let decision = world.decide(&request).unwrap();
    world.apply(&decision.records[..2]);
    assert_eq!(world.state().regexes().len(), 1);
    assert!(world.state().members().is_empty());
    world.cluster.create("b-2", 1);
    let answer = world.beat(&request).unwrap();
    assert_eq!(answer.assignment, Some(world.places("b:0 b-2:0")));
    // Left behind, it is cleared away.
    world.apply(&[GroupRecord::ConsumerMember {
        group: GROUP.to_owned(),
        member: "m".to_owned(),
        value: None,
    }]);
    let records = topics_changed(GROUP, world.state(), &world.cluster, 0);
    world.apply(&records);
    assert!(world.state().regexes().is_empty());
}
