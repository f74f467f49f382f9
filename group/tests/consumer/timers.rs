//! Deadlines of members.

use std::time::Duration;

use corduroy_group::consumer::{Expiry, HeartbeatRequest, Timers, remove_members};

use crate::world::{GROUP, World, going_on, joining, of_instance};

const SESSION: Duration = Duration::from_secs(45);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_silent_member_expires_once_and_a_speaking_one_does_not() {
    let mut world = World::new(&[("a", 2)]);
    world.beat(&joining("m", &["a"])).unwrap();
    world.beat(&joining("n", &[])).unwrap();
    let mut timers = Timers::new(SESSION);
    assert_eq!(timers.next_deadline(), None);
    // A new coordinator gives everybody the whole time.
    timers.observe(world.state(), at(100));
    assert_eq!(timers.next_deadline(), Some(at(145)));
    timers.heard("m", at(110));
    timers.heard("stranger", at(110));
    assert_eq!(timers.expired(at(144)), []);
    assert_eq!(timers.expired(at(145)), [("n".to_owned(), Expiry::Session)]);
    assert_eq!(timers.expired(at(145)), []);
    assert_eq!(timers.next_deadline(), Some(at(155)));
    // The removal failed: the member has its time again.
    timers.observe(world.state(), at(150));
    assert_eq!(timers.expired(at(155)), [("m".to_owned(), Expiry::Session)]);
    assert_eq!(timers.next_deadline(), Some(at(195)));
    let records = remove_members(GROUP, world.state(), &["m", "n"]);
    world.apply(&records);
    timers.observe_records(world.state(), &records, at(156));
    assert_eq!(timers.next_deadline(), None);
}

/// KIP-848: -2 keeps a static member's place for its session timeout, and no longer.
#[test]
fn a_static_member_that_stays_away_loses_its_place_with_its_session() {
    let mut world = World::new(&[("a", 4)]);
    world.beat(&of_instance("i", joining("m", &["a"]))).unwrap();
    world.beat(&joining("n", &["a"])).unwrap();
    world.settle(&["m", "n"]);
    let mut timers = Timers::new(SESSION);
    timers.observe(world.state(), at(0));
    let decision = world.decide(&of_instance("i", going_on("m", -2))).unwrap();
    world.apply(&decision.records);
    timers.observe_records(world.state(), &decision.records, at(10));
    timers.heard("m", at(10));
    timers.heard("n", at(40));
    assert_eq!(timers.expired(at(54)), []);
    assert_eq!(world.state().members().len(), 2, "its place is kept");
    assert_eq!(timers.expired(at(55)), [("m".to_owned(), Expiry::Session)]);
    let records = remove_members(GROUP, world.state(), &["m"]);
    world.apply(&records);
    assert_eq!(world.state().instance("i"), None);
    world.settle(&["n"]);
    assert_eq!(world.assigned("n"), "a:0,1,2,3");
    // Too late: it is a newcomer.
    let answer = world
        .beat(&of_instance("i", joining("m2", &["a"])))
        .unwrap();
    assert_eq!(answer.assignment, Some(world.places("")));
    assert_eq!(
        world.beat(&of_instance("i", going_on("m", 2))),
        Err(corduroy_protocol::ErrorCode::FencedInstanceId)
    );
}

#[test]
fn who_does_not_give_up_in_time_expires_though_it_speaks() {
    let mut world = World::new(&[("a", 2)]);
    let mut timers = Timers::new(SESSION);
    let speak = |world: &mut World, timers: &mut Timers, request: HeartbeatRequest, now| {
        let decision = world.decide(&request).unwrap();
        world.apply(&decision.records);
        timers.observe_records(world.state(), &decision.records, now);
        timers.heard(&decision.answer.member_id, now);
    };
    speak(&mut world, &mut timers, joining("m", &["a"]), at(0));
    speak(&mut world, &mut timers, joining("n", &["a"]), at(0));
    // m has 60 s to give up a partition from here on.
    speak(&mut world, &mut timers, going_on("m", 1), at(10));
    for seconds in [20, 40, 60] {
        speak(&mut world, &mut timers, going_on("m", 1), at(seconds));
        speak(&mut world, &mut timers, going_on("n", 2), at(seconds));
        assert_eq!(timers.expired(at(seconds)), []);
    }
    assert_eq!(timers.next_deadline(), Some(at(70)));
    let mut late = timers.clone();
    assert_eq!(late.expired(at(70)), [("m".to_owned(), Expiry::Revocation)]);
    // In time: the deadline is gone.
    let owned = Some(world.places("a:0"));
    let request = HeartbeatRequest {
        owned,
        ..going_on("m", 1)
    };
    speak(&mut world, &mut timers, request, at(69));
    assert_eq!(timers.next_deadline(), Some(at(105)));
}
