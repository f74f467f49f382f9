//! A group with members changes its protocol: up, and down again.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use corduroy_group::GroupError;
use corduroy_group::classic::{
    ClassicGroup, ClassicState, Effect, JoinRequest, MemberIdentity, SyncRequest, Ticket,
};
use corduroy_group::consumer::{
    Conversion, MigrationLimits, MigrationPolicy, classic_heartbeat, classic_join, downgrade,
    remove_members, upgrade,
};
use corduroy_group::records::{
    Assignment, ClassicMemberValue, ClassicValue, GroupRecord, MemberState,
};
use corduroy_group::table::{GroupKind, GroupTable};
use corduroy_protocol::ErrorCode;

use crate::world::{GROUP, World, classic, identity, joining};

const NOW: Duration = Duration::ZERO;

const OPEN: MigrationLimits = MigrationLimits {
    policy: MigrationPolicy::Bidirectional,
    members_max: 10,
};

fn member(world: &World, id: &str, owned: &str) -> ClassicMemberValue {
    let mut assignment = vec![0, 0];
    let owned = world.places(owned);
    assignment.extend((owned.len() as i32).to_be_bytes());
    for (topic, partitions) in owned {
        let name = world.show(&[(topic, vec![])].into());
        let name = name.trim_end_matches(':');
        assignment.extend((name.len() as i16).to_be_bytes());
        assignment.extend(name.as_bytes());
        assignment.extend((partitions.len() as i32).to_be_bytes());
        for partition in partitions {
            assignment.extend(partition.get().to_be_bytes());
        }
    }
    assignment.extend((-1_i32).to_be_bytes());
    ClassicMemberValue {
        member_id: id.to_owned(),
        instance_id: None,
        client_id: "app".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        rebalance_timeout_ms: 60_000,
        session_timeout_ms: 10_000,
        subscription: world.subscription(&["a"], &Assignment::new(), -1),
        assignment: assignment.into(),
    }
}

fn group_of(members: Vec<ClassicMemberValue>) -> ClassicValue {
    ClassicValue {
        protocol_type: "consumer".to_owned(),
        generation: 5,
        protocol: Some("range".to_owned()),
        leader: members.first().map(|member| member.member_id.clone()),
        state_timestamp_ms: 0,
        members,
    }
}

fn running(world: &World, value: &ClassicValue) -> ClassicGroup {
    ClassicGroup::from_value(world.classic, value, value.generation, NOW)
}

fn convert(
    world: &World,
    value: &ClassicValue,
    limits: MigrationLimits,
) -> Result<Conversion, GroupError> {
    let running = running(world, value);
    upgrade(
        GROUP,
        &running,
        Some(value),
        value.generation,
        &world.cluster,
        limits,
    )
}

/// A classic group of `m` and `n`, each with half of `a`, that has become a consumer group.
fn upgraded() -> World {
    let mut world = World::new(&[("a", 6)]);
    let value = group_of(vec![
        member(&world, "m", "a:0,1,2"),
        member(&world, "n", "a:3,4,5"),
    ]);
    let conversion = convert(&world, &value, OPEN).unwrap();
    world.state = Some(conversion.state);
    world
}

#[test]
fn members_stay_in_their_generation_with_what_they_have() {
    let world = World::new(&[("a", 6)]);
    let value = group_of(vec![
        member(&world, "m", "a:0,1,2"),
        member(&world, "n", "a:3,4,5"),
    ]);
    let conversion = convert(&world, &value, OPEN).unwrap();
    let state = &conversion.state;
    assert_eq!((state.epoch(), state.assignment_epoch()), (5, 5));
    for (id, has) in [("m", "a:0,1,2"), ("n", "a:3,4,5")] {
        let member = &state.members()[id];
        let current = member.current.as_ref().unwrap();
        assert_eq!(
            (current.member_epoch, current.state),
            (5, MemberState::Stable)
        );
        assert_eq!(world.show(&current.assigned), has);
        assert_eq!(world.show(&member.target), has);
        assert_eq!(member.value.subscribed_topics, ["a"]);
        let classic = member.value.classic.as_ref().unwrap();
        assert_eq!(classic.session_timeout_ms, 10_000);
        assert_eq!(classic.supported[0].0, "range");
        assert_eq!(classic_heartbeat(state, &identity(id, 5)), Ok(()));
    }
    // The records make that state, also in a table that has the classic group.
    let mut table = GroupTable::new();
    table.apply_record(&GroupRecord::Classic {
        group: GROUP.to_owned(),
        value: Some(value),
    });
    for record in &conversion.records {
        table.apply_record(record);
    }
    let kind = &table.get(GROUP).unwrap().kind;
    assert_eq!(kind, &GroupKind::Consumer(conversion.state));
}

#[test]
fn a_new_member_makes_the_classic_ones_join_and_all_share() {
    let mut world = upgraded();
    world.beat(&joining("own", &["a"])).unwrap();
    for (id, owned) in [("m", "a:0,1,2"), ("n", "a:3,4,5")] {
        let told = classic_heartbeat(world.state(), &identity(id, 5));
        assert_eq!(told.unwrap_err().code, ErrorCode::RebalanceInProgress);
        // An eager member, which owned this until it joined.
        assert_eq!(world.assigned(id), owned);
        let metadata = world.subscription(&["a"], &Assignment::new(), 5);
        assert_eq!(world.join(&classic(id, metadata)).1.unwrap().generation, 6);
    }
    world.settle(&["own"]);
    for id in ["m", "n", "own"] {
        let member = &world.state().members()[id];
        assert!(member.is_reconciled_to(6), "{id}");
        assert_eq!(member.target.values().flatten().count(), 2, "{id}");
    }
}

#[test]
fn between_two_generations_everybody_shall_join() {
    let world = World::new(&[("a", 6)]);
    let value = group_of(vec![member(&world, "m", "a:0,1,2,3,4,5")]);
    let mut group = running(&world, &value);
    let metadata = world.subscription(&["a"], &Assignment::new(), -1);
    let mut out = Vec::new();
    let request = JoinRequest {
        requires_known_member_id: false,
        ..classic("", metadata.clone())
    };
    group.join(request, Ticket(1), NOW, 0, &mut out);
    assert_eq!(group.state(), ClassicState::PreparingRebalance);
    let last = value.generation;
    let conversion = upgrade(GROUP, &group, Some(&value), last, &world.cluster, OPEN).unwrap();
    let state = &conversion.state;
    assert_eq!((state.epoch(), state.assignment_epoch()), (6, 5));
    assert_eq!(state.members().len(), 2);
    let told = classic_heartbeat(state, &identity("m", 5));
    assert_eq!(told.unwrap_err().code, ErrorCode::RebalanceInProgress);
    // It joins, and the target is computed although nobody's subscription changed.
    let limits = (&world.limits, &world.classic);
    let join = classic("m", world.subscription(&["a"], &world.places("a:0"), 5));
    let decided = classic_join(GROUP, state, &join, &world.cluster, limits, 0);
    assert!(decided.records.iter().any(|record| matches!(
        record,
        GroupRecord::TargetAssignment { value: Some(value), .. } if value.assignment_epoch == 6
    )));
}

#[test]
fn groups_that_cannot_change_stay() {
    let world = World::new(&[("a", 6)]);
    let whole = group_of(vec![member(&world, "m", "a:0"), member(&world, "n", "")]);
    let policy = |policy| MigrationLimits { policy, ..OPEN };
    let other_type = ClassicValue {
        protocol_type: "connect".to_owned(),
        ..whole.clone()
    };
    let mut damaged = whole.clone();
    damaged.members[1].subscription = Bytes::from_static(b"\x00");
    let mut unreadable = whole.clone();
    unreadable.members[0].assignment = Bytes::from_static(b"\x00\x00\x00");
    let small = MigrationLimits {
        members_max: 1,
        ..OPEN
    };
    for (name, value, limits) in [
        ("disabled", &whole, policy(MigrationPolicy::Disabled)),
        ("one way", &whole, policy(MigrationPolicy::Downgrade)),
        ("size", &whole, small),
        ("type", &other_type, OPEN),
        ("metadata", &damaged, OPEN),
        ("assignment", &unreadable, OPEN),
    ] {
        let refused = convert(&world, value, limits);
        assert_eq!(
            refused.unwrap_err().code,
            ErrorCode::GroupIdNotFound,
            "{name}"
        );
    }
    assert!(convert(&world, &whole, policy(MigrationPolicy::Upgrade)).is_ok());
}

#[test]
fn a_partition_that_two_members_were_assigned_has_one_holder() {
    let world = World::new(&[("a", 2)]);
    let value = group_of(vec![
        member(&world, "m", "a:0,1"),
        member(&world, "n", "a:0,1"),
    ]);
    let state = convert(&world, &value, OPEN).unwrap().state;
    let has = |id: &str| state.members()[id].current.as_ref().unwrap().assigned.len();
    assert_eq!((has("m"), has("n")), (1, 0));
}

#[test]
fn policies_have_kafkas_names() {
    for (name, policy) in MigrationPolicy::NAMES {
        assert_eq!(MigrationPolicy::from_name(name), Some(*policy));
        assert_eq!(
            MigrationPolicy::from_name(&name.to_uppercase()),
            Some(*policy)
        );
    }
    assert_eq!(MigrationPolicy::from_name("sideways"), None);
}

#[test]
fn when_the_last_member_of_the_new_protocol_leaves_the_rest_is_a_classic_group() {
    let mut world = upgraded();
    world.beat(&joining("own", &["a"])).unwrap();
    let metadata = world.subscription(&["a"], &Assignment::new(), 5);
    world.join(&classic("m", metadata)).1.unwrap();
    world.settle(&["own"]);
    let state = world.state().clone();
    let records = remove_members(GROUP, &state, &["own"]);
    let down = |limits| downgrade(GROUP, &state, &records, &world.cluster, limits, 77);
    for policy in [MigrationPolicy::Disabled, MigrationPolicy::Upgrade] {
        assert_eq!(down(MigrationLimits { policy, ..OPEN }), None);
    }
    let small = MigrationLimits {
        members_max: 1,
        ..OPEN
    };
    assert_eq!(down(small), None);

    let mut table = GroupTable::new();
    let mut before = Vec::new();
    state.records(GROUP, &mut before);
    for record in before.iter().chain(&down(OPEN).unwrap()) {
        table.apply_record(record);
    }
    let GroupKind::Classic(value) = &table.get(GROUP).unwrap().kind else {
        panic!("a classic group");
    };
    assert_eq!((value.generation, value.state_timestamp_ms), (6, 77));
    assert_eq!(
        (value.protocol_type.as_str(), value.protocol.as_deref()),
        ("consumer", Some("range"))
    );
    let ids: Vec<&str> = value.members.iter().map(|m| m.member_id.as_str()).collect();
    assert_eq!(ids, ["m", "n"]);
    assert_eq!(
        world.show(&world.read_assignment(&value.members[1].assignment)),
        "a:3,4,5"
    );
    // Nothing of the consumer group is left.
    assert_eq!(table.live_records().count(), 1);
}

#[test]
fn a_group_that_came_back_rebalances_and_members_of_its_generation_lose_nothing() {
    let mut world = upgraded();
    world.beat(&joining("own", &["a"])).unwrap();
    let metadata = world.subscription(&["a"], &Assignment::new(), 5);
    world.join(&classic("m", metadata.clone())).1.unwrap();
    let records = remove_members(GROUP, world.state(), &["own"]);
    let down = downgrade(GROUP, world.state(), &records, &world.cluster, OPEN, 0).unwrap();
    let Some(GroupRecord::Classic {
        value: Some(value), ..
    }) = down.last()
    else {
        panic!("the classic group comes last");
    };
    // Also after a failover: it begins as its record says.
    let mut group = running(&world, value);
    assert_eq!(group.state(), ClassicState::PreparingRebalance);
    let told = group.heartbeat(&identity("m", 6), NOW);
    assert_eq!(told.unwrap_err().code, ErrorCode::RebalanceInProgress);
    let behind = group.heartbeat(&identity("n", 5), NOW);
    assert_eq!(behind.unwrap_err().code, ErrorCode::IllegalGeneration);

    let mut out = Vec::new();
    for (ticket, id) in [(1, "m"), (2, "n")] {
        group.join(
            classic(id, metadata.clone()),
            Ticket(ticket),
            NOW,
            0,
            &mut out,
        );
    }
    let generations: Vec<(Ticket, i32)> = out
        .iter()
        .filter_map(|effect| match effect {
            Effect::Join(ticket, answer) => {
                Some((*ticket, answer.result.as_ref().unwrap().generation))
            }
            _ => None,
        })
        .collect();
    assert_eq!(generations, [(Ticket(1), 7), (Ticket(2), 7)]);
    let leader = group.leader().unwrap().to_owned();
    let request = SyncRequest {
        identity: MemberIdentity {
            member_id: leader.clone(),
            instance_id: None,
            generation: 7,
        },
        protocol_type: None,
        protocol: None,
        assignments: BTreeMap::from([(leader, Bytes::from_static(b"x"))]),
    };
    group.sync(request, Ticket(3), NOW, &mut out);
    assert!(out.iter().any(|effect| matches!(
        effect,
        Effect::Persist(_, value) if value.leader.is_some()
    )));
}

#[test]
fn members_of_both_kinds_that_stay_keep_the_protocol() {
    let mut world = upgraded();
    world.beat(&joining("own", &["a"])).unwrap();
    world.beat(&joining("other", &["a"])).unwrap();
    let one = remove_members(GROUP, world.state(), &["own"]);
    assert_eq!(
        downgrade(GROUP, world.state(), &one, &world.cluster, OPEN, 0),
        None
    );
    let all = remove_members(GROUP, world.state(), &["m", "n", "other", "own"]);
    assert_eq!(
        downgrade(GROUP, world.state(), &all, &world.cluster, OPEN, 0),
        None
    );
    let both = remove_members(GROUP, world.state(), &["other", "own"]);
    assert!(downgrade(GROUP, world.state(), &both, &world.cluster, OPEN, 0).is_some());
}
