//! Classic members of a consumer group: what JoinGroup, SyncGroup, Heartbeat and LeaveGroup say.

use std::time::Duration;

use bytes::Bytes;
use corduroy_group::classic::{JoinRequest, Leaving, SyncRequest};
use corduroy_group::consumer::{
    Expiry, HeartbeatRequest, Timers, check_commit, classic_heartbeat, classic_leave, classic_sync,
};
use corduroy_group::records::{Assignment, ConsumerMemberValue};
use corduroy_protocol::ErrorCode;

use crate::world::{GROUP, World, classic, going_on, identity, joining, of_instance};

/// JoinGroup of a member that wants topic `a` and owns nothing.
fn wants_a(world: &World, id: &str) -> JoinRequest {
    let metadata = world.subscription(&["a"], &Assignment::new(), -1);
    classic(id, metadata)
}

fn owning(world: &World, id: &str, owned: &str, generation: i32) -> JoinRequest {
    classic(
        id,
        world.subscription(&["a"], &world.places(owned), generation),
    )
}

fn synced(world: &World, id: &str, generation: i32) -> Result<String, ErrorCode> {
    let answer = world.sync(id, generation).map_err(|error| error.code)?;
    Ok(world.show(&world.read_assignment(&answer.assignment)))
}

fn heartbeat(world: &World, id: &str, generation: i32) -> ErrorCode {
    match classic_heartbeat(world.state(), &identity(id, generation)) {
        Ok(()) => ErrorCode::None,
        Err(error) => error.code,
    }
}

/// A consumer group of one member of its own protocol, which has all of topic `a`.
fn one_member(partitions: u32) -> World {
    let mut world = World::new(&[("a", partitions)]);
    world.beat(&joining("own", &["a"])).unwrap();
    world
}

fn value<'a>(world: &'a World, id: &str) -> &'a ConsumerMemberValue {
    &world.state().members()[id].value
}

#[test]
fn a_member_without_id_is_given_one_first() {
    let mut world = one_member(2);
    let (id, answer) = world.join(&wants_a(&world, ""));
    assert_eq!(
        (id.as_str(), answer),
        ("fresh", Err(ErrorCode::MemberIdRequired))
    );
    assert!(!world.state().members().contains_key("fresh"));
    let mut old = wants_a(&world, "");
    old.requires_known_member_id = false;
    let (id, answer) = world.join(&old);
    assert_eq!(id, "fresh");
    assert!(answer.is_ok());
}

#[test]
fn a_member_joins_at_once_and_gets_what_is_free() {
    let mut world = one_member(4);
    let (id, joined) = world.join(&wants_a(&world, "m"));
    let joined = joined.unwrap();
    assert_eq!(id, "m");
    assert_eq!(joined.generation, 2);
    assert_eq!(
        (joined.protocol_type.as_str(), joined.protocol.as_str()),
        ("consumer", "range")
    );
    assert_eq!((joined.leader.as_str(), joined.members.len()), ("", 0));
    assert!(!joined.skip_assignment);
    assert_eq!(value(&world, "m").subscribed_topics, ["a"]);
    assert_eq!(synced(&world, "m", 2).as_deref(), Ok(""), "all is taken");
    assert_eq!(
        heartbeat(&world, "m", 2),
        ErrorCode::None,
        "nothing to do but wait"
    );

    // The other one gives up its half: now there is something to join for.
    world.settle(&["own"]);
    assert_eq!(heartbeat(&world, "m", 2), ErrorCode::RebalanceInProgress);
    assert_eq!(
        world
            .join(&owning(&world, "m", "", 2))
            .1
            .unwrap()
            .generation,
        2
    );
    assert_eq!(synced(&world, "m", 2).as_deref(), Ok("a:2,3"));
    assert_eq!(world.assigned("own"), "a:0,1");
    assert_eq!(heartbeat(&world, "m", 2), ErrorCode::None);
}

/// Member `m` with all of `a`, in epoch 1; then `n` joins: the group is in epoch 2.
fn shrinking() -> World {
    let mut world = World::new(&[("a", 4)]);
    world.join(&wants_a(&world, "m")).1.unwrap();
    assert_eq!(synced(&world, "m", 1).as_deref(), Ok("a:0,1,2,3"));
    world.beat(&joining("n", &["a"])).unwrap();
    assert_eq!(heartbeat(&world, "m", 1), ErrorCode::RebalanceInProgress);
    assert_eq!(synced(&world, "m", 1), Err(ErrorCode::RebalanceInProgress));
    world
}

#[test]
fn an_eager_member_has_given_up_when_it_joins() {
    let mut world = shrinking();
    assert_eq!(
        world
            .join(&owning(&world, "m", "", 1))
            .1
            .unwrap()
            .generation,
        2
    );
    assert_eq!(synced(&world, "m", 2).as_deref(), Ok("a:0,1"));
    assert_eq!(heartbeat(&world, "m", 2), ErrorCode::None);
    world.settle(&["n"]);
    assert_eq!(world.assigned("n"), "a:2,3");
}

#[test]
fn a_cooperative_member_gives_up_between_two_joins() {
    let mut world = shrinking();
    assert_eq!(
        world
            .join(&owning(&world, "m", "a:0,1,2,3", 1))
            .1
            .unwrap()
            .generation,
        1
    );
    world.settle(&["n"]);
    assert_eq!(world.assigned("n"), "", "not given up yet");
    // It learns by its sync what it keeps, and commits in the same generation.
    assert_eq!(synced(&world, "m", 1).as_deref(), Ok("a:0,1"));
    assert_eq!(check_commit(world.state(), "m", 1), Ok(()));
    assert_eq!(heartbeat(&world, "m", 1), ErrorCode::RebalanceInProgress);
    assert_eq!(
        world
            .join(&owning(&world, "m", "a:0,1", 1))
            .1
            .unwrap()
            .generation,
        2
    );
    world.settle(&["n"]);
    assert_eq!(world.assigned("n"), "a:2,3");
    assert_eq!(
        check_commit(world.state(), "m", 1).unwrap_err().code,
        ErrorCode::IllegalGeneration
    );
}

#[test]
fn a_join_of_an_older_generation_confirms_nothing() {
    let mut world = shrinking();
    world.join(&owning(&world, "m", "a:0,1,2,3", 1)).1.unwrap();
    // A JoinGroup that was sent before the member had anything, and comes only now.
    world.join(&owning(&world, "m", "", 0)).1.unwrap();
    world.settle(&["n"]);
    assert_eq!(world.assigned("n"), "");
}

#[test]
fn joins_that_are_refused() {
    let mut world = one_member(2);
    world.join(&wants_a(&world, "m")).1.unwrap();
    world.limits.members_max = 2;
    let base = || wants_a(&world, "x");
    let metadata = base().protocols[0].1.clone();
    let cases: Vec<(&str, JoinRequest, ErrorCode)> = vec![
        ("size", base(), ErrorCode::GroupMaxSizeReached),
        (
            "session timeout",
            JoinRequest {
                session_timeout_ms: 1,
                ..base()
            },
            ErrorCode::InvalidSessionTimeout,
        ),
        (
            "protocol type",
            JoinRequest {
                protocol_type: "connect".to_owned(),
                ..wants_a(&world, "m")
            },
            ErrorCode::InconsistentGroupProtocol,
        ),
        (
            "no protocol",
            JoinRequest {
                protocols: vec![],
                ..wants_a(&world, "m")
            },
            ErrorCode::InconsistentGroupProtocol,
        ),
        (
            "damaged metadata",
            classic("m", Bytes::from_static(b"\x00\x01\x00")),
            ErrorCode::InconsistentGroupProtocol,
        ),
    ];
    for (name, request, code) in cases {
        let decided = world.decide_join(&request);
        assert_eq!(decided.records, [], "{name}");
        assert_eq!(decided.answer.member_id, request.member_id, "{name}");
        assert_eq!(decided.answer.result.unwrap_err().code, code, "{name}");
    }
    world.limits.members_max = 3;
    let other = JoinRequest {
        protocols: vec![("sticky".to_owned(), metadata.clone())],
        ..wants_a(&world, "x")
    };
    assert_eq!(
        world.join(&other).1,
        Err(ErrorCode::InconsistentGroupProtocol)
    );
    // A member alone may change its mind: only the others bind it.
    let changed = JoinRequest {
        protocols: vec![("sticky".to_owned(), metadata)],
        ..wants_a(&world, "m")
    };
    assert_eq!(world.join(&changed).1.unwrap().protocol, "sticky");
}

#[test]
fn requests_of_a_stranger_or_of_another_generation_are_refused() {
    let mut world = one_member(2);
    world.join(&wants_a(&world, "m")).1.unwrap();
    for (id, generation, code) in [
        ("x", 2, ErrorCode::UnknownMemberId),
        ("own", 1, ErrorCode::UnknownMemberId),
        ("m", 1, ErrorCode::IllegalGeneration),
        ("m", 3, ErrorCode::IllegalGeneration),
        ("m", -1, ErrorCode::IllegalGeneration),
    ] {
        assert_eq!(heartbeat(&world, id, generation), code, "{id} {generation}");
        assert_eq!(
            synced(&world, id, generation),
            Err(code),
            "{id} {generation}"
        );
    }
    let sync = |protocol_type: &str, protocol: &str| {
        let request = SyncRequest {
            identity: identity("m", 2),
            protocol_type: Some(protocol_type.to_owned()),
            protocol: Some(protocol.to_owned()),
            assignments: [].into(),
        };
        classic_sync(world.state(), &request, &world.cluster).map_err(|error| error.code)
    };
    let inconsistent = Err(ErrorCode::InconsistentGroupProtocol);
    assert_eq!(sync("connect", "range"), inconsistent);
    assert_eq!(sync("consumer", "sticky"), inconsistent);
    assert_eq!(sync("consumer", "range").unwrap().protocol, "range");
}

#[test]
fn a_static_member_that_lost_its_id_takes_its_place() {
    let mut world = World::new(&[("a", 2)]);
    let of = |world: &World, id: &str, fresh: &str| JoinRequest {
        instance_id: Some("i".to_owned()),
        fresh_member_id: fresh.to_owned(),
        ..wants_a(world, id)
    };
    let (first, joined) = world.join(&of(&world, "", "i-1"));
    assert_eq!((first.as_str(), joined.unwrap().generation), ("i-1", 1));
    let (second, joined) = world.join(&of(&world, "", "i-2"));
    let joined = joined.unwrap();
    assert_eq!(
        (second.as_str(), joined.generation),
        ("i-2", 1),
        "no rebalance"
    );
    assert_eq!(synced(&world, "i-2", 1).as_deref(), Ok("a:0,1"));
    let fenced = of(&world, "i-1", "i-3");
    assert_eq!(world.join(&fenced).1, Err(ErrorCode::FencedInstanceId));
    let stranger = JoinRequest {
        instance_id: Some("j".to_owned()),
        ..fenced
    };
    assert_eq!(world.join(&stranger).1, Err(ErrorCode::UnknownMemberId));

    // It comes back with the consumer protocol (a rolling upgrade), and again with the classic one.
    let own = of_instance("i", joining("own", &["a"]));
    let answer = world.beat(&own).unwrap();
    assert_eq!(world.show(answer.assignment.as_ref().unwrap()), "a:0,1");
    assert_eq!(world.state().members().len(), 1);
    assert_eq!(value(&world, "own").classic, None);
    let (third, _) = world.join(&of(&world, "", "i-3"));
    assert_eq!(synced(&world, &third, 1).as_deref(), Ok("a:0,1"));
    let late = HeartbeatRequest {
        instance_id: Some("i".to_owned()),
        ..going_on("own", 1)
    };
    assert_eq!(world.beat(&late), Err(ErrorCode::FencedInstanceId));
}

#[test]
fn members_leave_by_id_or_by_instance() {
    let mut world = one_member(2);
    world.join(&wants_a(&world, "m")).1.unwrap();
    let mut request = wants_a(&world, "");
    request.instance_id = Some("i".to_owned());
    world.join(&request).1.unwrap();
    let leaving = |id: &str, instance: Option<&str>| Leaving {
        member_id: id.to_owned(),
        instance_id: instance.map(str::to_owned),
        reason: None,
    };
    let all = [
        leaving("m", None),
        leaving("own", None),
        leaving("", Some("i")),
        leaving("", Some("j")),
        leaving("x", Some("i")),
    ];
    let epoch = world.state().epoch();
    let (records, results) = classic_leave(GROUP, world.state(), &all);
    let codes: Vec<ErrorCode> = results
        .into_iter()
        .map(|result| result.map_or_else(|error| error.code, |()| ErrorCode::None))
        .collect();
    assert_eq!(
        codes,
        [
            ErrorCode::None,
            ErrorCode::UnknownMemberId,
            ErrorCode::None,
            ErrorCode::UnknownMemberId,
            ErrorCode::FencedInstanceId,
        ]
    );
    world.apply(&records);
    assert_eq!(world.state().members().keys().collect::<Vec<_>>(), ["own"]);
    assert_eq!(world.state().epoch(), epoch + 1);
}

#[test]
fn a_classic_member_has_its_own_session_and_must_join_and_sync_in_time() {
    let at = Duration::from_secs;
    let mut world = one_member(2);
    world.join(&wants_a(&world, "m")).1.unwrap();
    let mut timers = Timers::new(at(45));
    timers.observe(world.state(), at(0));
    assert_eq!(
        timers.next_deadline(),
        Some(at(10)),
        "the session timeout of its JoinGroup"
    );
    let alive = |timers: &mut Timers, now| {
        timers.heard("m", now);
        timers.heard("own", now);
    };
    let member = world.state().members()["m"].clone();
    timers.owes_sync("m", &member, at(0));
    timers.synced("m");
    timers.owes_join("m", &member, at(1));
    timers.owes_join("m", &member, at(30));
    alive(&mut timers, at(60));
    assert_eq!(timers.expired(at(60)), []);
    assert_eq!(timers.expired(at(61)), [("m".to_owned(), Expiry::Join)]);
    timers.observe(world.state(), at(61));
    timers.owes_sync("m", &member, at(61));
    alive(&mut timers, at(120));
    assert_eq!(timers.expired(at(121)), [("m".to_owned(), Expiry::Sync)]);
}
