//! Scripts: what happens on the left, what the member then does on the right.
//!
//! Partitions are written as `t0`; `ID@GENERATION` is who a request is signed by.

use std::collections::BTreeSet;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use tokio::time::Instant;
use uuid::Uuid;

use super::assignor::{Assignments, PartitionCounts, Subscriber};
use super::classic::Classic;
use super::consumer::{ById, Consumer, Pulse};
use super::embedded::Subscription;
use super::machine::{Act, Call, Identity, JoinRefusal, Joined, Machine, MemberConfig};
use super::pattern::Pattern;
use crate::backoff::Backoff;
use crate::config::Strategy;
use crate::error::{Error, ErrorKind};
use crate::topic_partition::TopicPartition;

fn config(strategy: Strategy, instance: Option<&str>) -> MemberConfig {
    MemberConfig {
        group: "g".into(),
        topics: ["t".into()].into(),
        pattern: None,
        instance_id: instance.map(str::to_owned),
        session_timeout: Duration::from_secs(45),
        rebalance_timeout: Duration::from_secs(300),
        heartbeat_interval: Duration::from_secs(3),
        strategies: vec![strategy],
        remote_assignor: None,
        backoff: Backoff {
            first: Duration::from_millis(100),
            max: Duration::from_secs(1),
        },
    }
}

fn set(words: &str) -> BTreeSet<TopicPartition> {
    let one = |word: &str| TopicPartition::new(&word[..1], word[1..].parse().expect("a number"));
    words.split_whitespace().map(one).collect()
}

fn show<'a>(partitions: impl IntoIterator<Item = &'a TopicPartition>) -> String {
    let one = |at: &TopicPartition| format!(" {}{}", at.topic, at.partition);
    partitions.into_iter().map(one).collect()
}

fn id_of(topic: &str) -> Uuid {
    Uuid::from_u128(u128::from(topic.as_bytes()[0]))
}

fn by_id(words: &str) -> ById {
    let mut all = ById::new();
    for at in set(words) {
        all.entry(id_of(&at.topic))
            .or_default()
            .insert(at.partition);
    }
    all
}

fn show_ids(all: &ById) -> String {
    let topic = |id: &Uuid| char::from(id.as_u128() as u8);
    let words = all.iter().flat_map(|(id, partitions)| {
        partitions
            .iter()
            .map(move |partition| format!(" {}{partition}", topic(id)))
    });
    words.collect()
}

fn who(identity: &Identity) -> String {
    format!("{}@{}", identity.member_id, identity.generation)
}

fn tell(act: &Act) -> String {
    match act {
        Act::Find => "find".to_owned(),
        Act::Send(Call::Join(wish)) => {
            // `t` alone is what the others want.
            let topics: Vec<&str> = wish.topics.iter().map(AsRef::as_ref).collect();
            let wants = match topics.join("+").as_str() {
                "t" => String::new(),
                "" => " wants nothing".to_owned(),
                topics => format!(" wants {topics}"),
            };
            format!("join {}{}{wants}", who(&wish.identity), show(&wish.owned))
        }
        Act::Send(Call::Sync {
            identity,
            assignments,
            ..
        }) => {
            let all = assignments
                .iter()
                .map(|(to, partitions)| format!(" {to}:{}", show(partitions).trim()));
            format!("sync {}{}", who(identity), all.collect::<String>())
        }
        Act::Send(Call::Heartbeat { identity }) => format!("beat {}", who(identity)),
        Act::Send(Call::ConsumerHeartbeat(beat)) => {
            let owned = beat
                .owned
                .as_ref()
                .map(|owned| format!(" owns{}", show_ids(owned)));
            let full = if beat.is_full { " full" } else { "" };
            format!(
                "beat {}{full}{}",
                who(&beat.identity),
                owned.unwrap_or_default()
            )
        }
        Act::Divide { members, .. } => {
            let ids: String = members
                .iter()
                .map(|m| format!(" {}", m.member_id))
                .collect();
            format!("divide{ids}")
        }
        Act::Assign(partitions) => format!("assign{}", show(partitions)),
        Act::Revoke(partitions) => format!("revoke{}", show(partitions)),
        Act::Lose(partitions) => format!("lose{}", show(partitions)),
        Act::Fail(error) => format!("fail {}", error.code().map_or("-", ErrorCode::name)),
    }
}

fn error(word: &str) -> Error {
    match word {
        "disconnected" => Error::new(ErrorKind::Disconnected, "gone"),
        name => {
            let code = (0..130)
                .map(ErrorCode::from_code)
                .find(|code| code.name() == name);
            Error::broker(code.unwrap_or_else(|| panic!("no error {name}")), None)
        }
    }
}

struct Stage {
    machine: Machine,
    now: Instant,
    strategy: Strategy,
}

impl Stage {
    fn happen(&mut self, input: &str) {
        let (verb, rest) = input.split_once(' ').unwrap_or((input, ""));
        let now = self.now;
        let words: Vec<&str> = rest.split_whitespace().collect();
        match (verb, &mut self.machine) {
            ("start", _) => {}
            ("wait", _) => self.now += Duration::from_millis(rest.parse().expect("milliseconds")),
            ("found", machine) => machine.found(now, Ok(())),
            ("not-found", machine) => machine.found(now, Err(error(rest))),
            ("commit-says-not-coordinator", machine) => machine.coordinator_lost(),
            ("released", machine) => machine.released(now),
            ("polled", machine) => machine.polled(),
            ("id-required", Machine::Classic(machine)) => {
                machine.joined(now, Err(JoinRefusal::MemberIdRequired(rest.to_owned())));
            }
            ("joined", Machine::Classic(machine)) => {
                let (member_id, generation) = words[0].split_once('@').expect("who");
                let members = words[1..].iter().map(|id| Subscriber {
                    member_id: (*id).to_owned(),
                    instance_id: None,
                    subscription: Subscription::default(),
                });
                let members: Vec<Subscriber> = members.collect();
                machine.joined(
                    now,
                    Ok(Joined {
                        identity: Identity {
                            member_id: member_id.to_owned(),
                            generation: generation.parse().expect("a number"),
                        },
                        protocol: self.strategy.name().to_owned(),
                        lead: (!members.is_empty()).then_some(members),
                    }),
                );
            }
            ("join-fails", Machine::Classic(machine)) => {
                machine.joined(now, Err(JoinRefusal::Error(error(rest))));
            }
            ("divided", machine) => {
                let counts = PartitionCounts::from([("t".into(), 2)]);
                let all = Assignments::from([("a".to_owned(), set("t0 t1"))]);
                machine.divided(all, counts);
            }
            ("topics", Machine::Classic(machine)) => {
                let count = rest.parse().expect("a number");
                machine.topics_changed(&PartitionCounts::from([("t".into(), count)]));
            }
            ("match", Machine::Classic(machine)) => {
                machine.subscribe(words.iter().map(|topic| (*topic).into()).collect());
            }
            ("synced", Machine::Classic(machine)) => machine.synced(now, Ok(set(rest))),
            ("sync-fails", Machine::Classic(machine)) => machine.synced(now, Err(error(rest))),
            ("beaten", Machine::Classic(machine)) => machine.beaten(now, Ok(())),
            ("beat-fails", Machine::Classic(machine)) => machine.beaten(now, Err(error(rest))),
            ("beaten", Machine::Consumer(machine)) => {
                let (member_id, generation) = words[0].split_once('@').expect("who");
                let assignment = rest.split_once(" target").map(|(_, words)| by_id(words));
                machine.beaten(
                    now,
                    Ok(Pulse {
                        identity: Identity {
                            member_id: member_id.to_owned(),
                            generation: generation.parse().expect("a number"),
                        },
                        heartbeat_interval: Duration::from_secs(5),
                        assignment,
                    }),
                );
            }
            ("beat-fails", Machine::Consumer(machine)) => machine.beaten(now, Err(error(rest))),
            ("name", Machine::Consumer(machine)) => {
                machine.topics_changed(now, [(id_of(rest), rest.into())].into_iter());
            }
            _ => panic!("unknown input `{input}`"),
        }
    }

    /// Runs a script of lines `input => act | act`.
    #[track_caller]
    fn run(mut self, script: &str) {
        for line in script
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
        {
            let (input, expected) = line.split_once("=>").unwrap_or((line, ""));
            let mut acts = Vec::new();
            match input.trim() {
                "stuck" => acts.extend(
                    self.machine
                        .stuck()
                        .map(|id| format!("sign-off {}", who(&id))),
                ),
                "leave" => acts.extend(
                    self.machine
                        .leave()
                        .map(|id| format!("sign-off {}", who(&id))),
                ),
                input => self.happen(input),
            }
            while let Some(act) = self.machine.step(self.now) {
                acts.push(tell(&act));
            }
            assert_eq!(
                acts.join(" | "),
                expected.trim(),
                "after `{}`",
                input.trim()
            );
        }
    }
}

fn classic(strategy: Strategy, instance: Option<&str>) -> Stage {
    let now = Instant::now();
    Stage {
        machine: Machine::Classic(Classic::new(config(strategy, instance), now)),
        now,
        strategy,
    }
}

fn eager() -> Stage {
    classic(Strategy::Range, None)
}

fn cooperative() -> Stage {
    classic(Strategy::CooperativeSticky, None)
}

fn consumer(instance: Option<&str>) -> Stage {
    let now = Instant::now();
    let config = config(Strategy::Range, instance);
    Stage {
        machine: Machine::Consumer(Consumer::new(config, "m".to_owned(), now)),
        now,
        strategy: Strategy::Range,
    }
}

#[test]
fn a_member_joins_syncs_and_shows_that_it_lives() {
    eager().run(
        "start => find
         found => join @-1
         id-required a => join a@-1
         joined a@1 => sync a@1
         synced t0 t1 => assign t0 t1
         wait 2999
         wait 1 => beat a@1
         beaten
         wait 3000 => beat a@1
         leave => sign-off a@1",
    );
}

#[test]
fn the_leader_divides_and_rejoins_when_topics_change() {
    eager().run(
        "start => find
         found => join @-1
         joined a@1 a b => divide a b
         divided => sync a@1 a:t0 t1
         synced t0 t1 => assign t0 t1
         topics 2
         topics 3 => revoke t0 t1
         topics 3
         released => join a@1",
    );
}

#[test]
fn an_eager_member_gives_everything_back_before_it_rejoins_and_beats_meanwhile() {
    eager().run(
        "start => find
         found => join @-1
         joined a@1 => sync a@1
         synced t0 => assign t0
         wait 3000 => beat a@1
         beat-fails REBALANCE_IN_PROGRESS => revoke t0
         wait 3000 => beat a@1
         beat-fails REBALANCE_IN_PROGRESS
         released => join a@1
         joined a@2 => sync a@2
         synced t1 => assign t1",
    );
}

#[test]
fn a_cooperative_member_keeps_what_stays_and_rejoins_once_the_rest_is_given_back() {
    cooperative().run(
        "start => find
         found => join @-1
         joined a@1 => sync a@1
         synced t0 t1 => assign t0 t1
         wait 3000 => beat a@1
         beat-fails REBALANCE_IN_PROGRESS => join a@1 t0 t1
         joined a@2 => sync a@2
         synced t0 t2 => assign t2 | revoke t1
         released => join a@2 t0 t2
         joined a@3 => sync a@3
         synced t0 t2 => assign",
    );
}

#[test]
fn a_dead_coordinator_is_no_rebalance() {
    for away in [
        "NOT_COORDINATOR",
        "COORDINATOR_NOT_AVAILABLE",
        "disconnected",
    ] {
        eager().run(&format!(
            "start => find
             found => join @-1
             joined a@1 => sync a@1
             synced t0 => assign t0
             wait 3000 => beat a@1
             beat-fails {away}
             wait 200 => find
             not-found COORDINATOR_NOT_AVAILABLE
             wait 500 => find
             found => beat a@1
             beaten
             wait 3000 => beat a@1"
        ));
    }
}

#[test]
fn a_loading_coordinator_is_asked_again() {
    eager().run(
        "start => find
         found => join @-1
         join-fails COORDINATOR_LOAD_IN_PROGRESS
         wait 200 => join @-1
         joined a@1 => sync a@1
         synced t0 => assign t0
         wait 3000 => beat a@1
         beat-fails COORDINATOR_LOAD_IN_PROGRESS
         wait 200 => beat a@1",
    );
}

#[test]
fn a_commit_that_finds_the_coordinator_gone_is_believed() {
    eager().run(
        "start => find
         found => join @-1
         joined a@1 => sync a@1
         synced t0 => assign t0
         commit-says-not-coordinator => find
         found
         wait 3000 => beat a@1",
    );
}

#[test]
fn a_member_that_was_given_up_loses_everything_and_joins_anew() {
    for (code, again) in [("UNKNOWN_MEMBER_ID", "@-1"), ("ILLEGAL_GENERATION", "a@-1")] {
        for stage in [eager(), cooperative()] {
            stage.run(&format!(
                "start => find
                 found => join @-1
                 joined a@1 => sync a@1
                 synced t0 => assign t0
                 wait 3000 => beat a@1
                 beat-fails {code} => lose t0 | join {again}"
            ));
        }
    }
}

#[test]
fn a_rebalance_that_overtakes_a_sync_is_joined() {
    cooperative().run(
        "start => find
         found => join @-1
         joined a@1 => sync a@1
         sync-fails REBALANCE_IN_PROGRESS => join a@1
         joined a@2 => sync a@2
         sync-fails NOT_COORDINATOR
         wait 200 => find
         found => join a@2",
    );
}

#[test]
fn what_no_waiting_helps_against_ends_the_member() {
    for code in [
        "FENCED_INSTANCE_ID",
        "INCONSISTENT_GROUP_PROTOCOL",
        "INVALID_SESSION_TIMEOUT",
        "GROUP_AUTHORIZATION_FAILED",
        "GROUP_MAX_SIZE_REACHED",
    ] {
        eager().run(&format!(
            "start => find
             found => join @-1
             join-fails {code} => fail {code}
             wait 60000
             leave"
        ));
    }
    eager().run(
        "start => find\n not-found GROUP_AUTHORIZATION_FAILED => fail GROUP_AUTHORIZATION_FAILED",
    );
}

#[test]
fn a_slow_user_costs_the_membership_until_it_asks_again() {
    eager().run(
        "start => find
         found => join @-1
         joined a@1 => sync a@1
         synced t0 => assign t0
         stuck => sign-off a@1 | lose t0
         wait 60000
         stuck
         polled => join @-1",
    );
}

#[test]
fn a_static_member_does_not_sign_off() {
    for end in ["leave", "stuck => lose t0"] {
        classic(Strategy::Range, Some("one")).run(&format!(
            "start => find
             found => join @-1
             joined a@1 => sync a@1
             synced t0 => assign t0
             {end}"
        ));
    }
}

#[test]
fn the_consumer_protocol_hands_over_one_by_one() {
    consumer(None).run(
        "start => find
         found => beat m@0 full owns
         beaten m@1 target => assign
         wait 5000 => beat m@1
         name t
         beaten m@2 target t0 t1 => assign t0 t1 | beat m@2 owns t0 t1
         beaten m@2
         wait 5000 => beat m@2
         beaten m@3 target t1 t2 => revoke t0
         wait 5000 => beat m@3
         beaten m@3
         released => assign t2 | beat m@3 owns t1 t2
         beaten m@3
         leave => sign-off m@-1",
    );
}

#[test]
fn a_topic_without_a_name_waits_for_the_metadata() {
    consumer(None).run(
        "start => find
         found => beat m@0 full owns
         beaten m@1 target t0 => assign
         name t => assign t0 | beat m@1 owns t0
         beaten m@1",
    );
}

#[test]
fn a_fenced_epoch_loses_everything_and_a_lost_answer_is_told_again() {
    for code in ["UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"] {
        consumer(None).run(&format!(
            "start => find
             name t
             found => beat m@0 full owns
             beaten m@1 target t0 => assign t0 | beat m@1 owns t0
             beat-fails disconnected
             wait 200 => find
             found => beat m@1 full owns t0
             beaten m@1
             wait 5000 => beat m@1
             beat-fails {code} => lose t0 | beat m@0 full owns"
        ));
    }
}

#[test]
fn a_static_member_of_the_consumer_protocol_leaves_for_a_while() {
    consumer(Some("one")).run(
        "start => find
         found => beat m@0 full owns
         beaten m@1 target => assign
         leave => sign-off m@-2",
    );
    consumer(Some("one")).run(
        "start => find
         found => beat m@0 full owns
         beat-fails UNRELEASED_INSTANCE_ID => fail UNRELEASED_INSTANCE_ID",
    );
}

/// With a pattern instead of a name.
fn by_pattern(strategy: Strategy) -> Stage {
    let now = Instant::now();
    let config = MemberConfig {
        topics: BTreeSet::new(),
        pattern: Some(Pattern::new("t.*").expect("a pattern")),
        ..config(strategy, None)
    };
    Stage {
        machine: Machine::Classic(Classic::new(config, now)),
        now,
        strategy,
    }
}

#[test]
fn a_member_with_a_pattern_waits_for_the_topics_and_rejoins_when_others_match() {
    by_pattern(Strategy::Range).run(
        "start => find
         found
         match t => join @-1
         joined a@1 => sync a@1
         synced t0 => assign t0
         match t
         match t u => revoke t0
         released => join a@1 wants t+u
         joined a@2 => sync a@2
         synced t0 u0 => assign t0 u0",
    );
    by_pattern(Strategy::CooperativeSticky).run(
        "match => find
         found => join @-1 wants nothing
         joined a@1 => sync a@1
         match t
         synced => assign | join a@1
         match t u
         joined a@2 => sync a@2
         synced t0 => assign t0 | join a@2 t0 wants t+u
         match u
         joined a@3 => sync a@3
         synced u0 => assign u0 | revoke t0
         released => join a@3 u0 wants u",
    );
}

#[test]
fn a_sticky_member_remembers_what_it_gave_up() {
    let mut stage = classic(Strategy::Sticky, None);
    let now = stage.now;
    for input in ["found", "joined a@1", "synced t0 t1"] {
        stage.happen(input);
        while stage.machine.step(now).is_some() {}
    }
    stage.now += Duration::from_secs(3);
    while stage.machine.step(stage.now).is_some() {}
    for input in ["beat-fails REBALANCE_IN_PROGRESS", "released"] {
        stage.happen(input);
        if input == "released" {
            let Some(Act::Send(Call::Join(wish))) = stage.machine.step(stage.now) else {
                panic!("no join");
            };
            assert_eq!(wish.owned, set(""));
            let previous = (wish.previous.partitions, wish.previous.generation);
            assert_eq!(previous, (set("t0 t1"), 1));
        } else {
            assert_eq!(
                stage.machine.step(stage.now).as_ref().map(tell).as_deref(),
                Some("revoke t0 t1")
            );
        }
    }
}
