//! The textbook failover, and what a partition takes with too few replicas.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::time::{Duration, Instant};

use corduroy_client::{Acks, Record};
use corduroy_protocol::ErrorCode;
use support::traffic::{block_on, client, read_all};
use support::wire::{Wire, batch, values};
use support::{Cluster, alone, rounds, wait_until};

const ANSWER: Duration = Duration::from_secs(10);

/// DESIGN.md 5.5 says 3 s from the loss of the majority; a loaded machine may take longer.
const ISOLATED_MAX: Duration = Duration::from_secs(10);

#[test]
fn the_committed_survive_and_what_only_the_leader_held_vanishes() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = "textbook";
    cluster.create_topic(topic, 1, &[]);
    for n in 0..5 {
        assert_eq!(cluster.produce(topic, &format!("committed {n}")), n);
    }
    let leader = cluster.leader(topic, 0);
    let mut wire = cluster.wire(leader);
    let mut consumer = cluster.wire(leader);
    let followers: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
    for id in &followers {
        cluster.node(*id).pause();
    }
    // Taken while the lease lasts; the followers are frozen.
    for n in 0..3 {
        let produced = wire
            .produce(
                (topic, 0),
                1,
                ANSWER,
                &batch(None, &[format!("leader only {n}")]),
            )
            .expect("answered");
        assert_eq!(
            produced.error,
            ErrorCode::None,
            "acks=1 is taken while the lease lasts"
        );
        assert_eq!(produced.base_offset, 5 + n);
    }
    let seen = consumer
        .fetch(topic, 0, 0, Duration::from_millis(100))
        .expect("answered");
    assert_eq!(
        values(&seen).len(),
        5,
        "a consumer sees the committed records alone"
    );
    assert_eq!(seen.high_watermark, 5);
    let seen = consumer
        .fetch(topic, 0, 5, Duration::from_millis(500))
        .expect("answered");
    assert!(
        values(&seen).is_empty(),
        "nothing above the high watermark: {:?}",
        values(&seen)
    );

    cluster.node(leader).kill();
    // What the leader sent lies unread in the followers' sockets: thawed, they would read it after
    // its death, take it over and commit it, as they may. It dies with their sockets.
    for id in &followers {
        cluster.node(*id).kill();
        cluster.node(*id).start();
    }
    let successor = cluster.leader(topic, 0);
    assert_ne!(successor, leader);
    assert_eq!(
        cluster.produce(topic, "after"),
        5,
        "the vanished records' offsets are free"
    );
    let expected: Vec<(i64, String)> = (0..5)
        .map(|n| (n, format!("committed {n}")))
        .chain([(5, "after".to_owned())])
        .collect();
    let bootstrap = cluster.bootstrap();
    let read = || block_on(async { read_all(&client(&bootstrap).await, topic, 0).await });
    assert_eq!(read(), expected);

    // The old leader comes back, cuts what it held alone, and agrees: also when it leads again.
    cluster.node(leader).start();
    cluster.wait_in_sync(topic, 0, 3);
    cluster.lead(topic, 0, leader);
    assert_eq!(read(), expected, "as the old leader tells it");
}

#[test]
fn an_isolated_leader_refuses_and_stops_naming_itself() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = "isolated";
    cluster.create_topic(topic, 1, &["min.insync.replicas=2"]);
    cluster.produce(topic, "before");
    let leader = cluster.leader(topic, 0);
    let mut wire = cluster.wire(leader);
    let lost = Instant::now();
    for id in (1..=3).filter(|id| *id != leader) {
        cluster.node(id).pause();
    }
    wait_until("acks=all is refused at the door", || {
        let produced = wire
            .produce(
                (topic, 0),
                -1,
                Duration::from_secs(1),
                &batch(None, &["refused"]),
            )
            .expect("answered");
        assert_ne!(produced.error, ErrorCode::None, "acked by a minority");
        produced.error == ErrorCode::NotEnoughReplicas
    });
    wait_until("the leader stops naming itself", || {
        let (brokers, _, partitions) = wire.metadata(topic).expect("answered");
        partitions[0].leader != leader && !brokers.contains(&leader)
    });
    let took = lost.elapsed();
    assert!(
        took < ISOLATED_MAX,
        "it took {took:?} from the loss of the majority"
    );
    // Through our producer: the error is the broker's own word.
    let error = block_on(async {
        let address = cluster.nodes[usize::try_from(leader - 1).expect("an id")]
            .kafka
            .to_string();
        let client = client(&address).await;
        let producer = client
            .producer()
            .acks(Acks::All)
            .without_idempotence()
            .set("request.timeout.ms", "1000")
            .delivery_timeout(Duration::from_secs(4))
            .max_block(Duration::from_secs(4))
            .build();
        producer
            .send(Record::to(topic).partition(0).value("refused"))
            .await
    });
    error.expect_err("nothing is acknowledged by a minority");
    for id in (1..=3).filter(|id| *id != leader) {
        cluster.node(id).resume();
    }
    let offset = cluster.produce(topic, "after");
    let found = block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await });
    assert_eq!(found.last(), Some(&(offset, "after".to_owned())));
    assert_eq!(found[0].1, "before");
}

/// What acks=all answers with so many living replicas of three and this `min.insync.replicas`.
fn expected(min_in_sync: usize, living: usize) -> ErrorCode {
    // A majority of three is two: with one left nothing commits, whatever the minimum.
    if living >= min_in_sync && living >= 2 {
        ErrorCode::None
    } else {
        ErrorCode::NotEnoughReplicas
    }
}

#[test]
fn min_insync_replicas_against_living_replicas() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = |min: usize| format!("min{min}");
    for min in 1..=3 {
        cluster.create_topic(&topic(min), 1, &[&format!("min.insync.replicas={min}")]);
    }
    let survivor = cluster.leader(&topic(1), 0);
    for min in 2..=3 {
        cluster.lead(&topic(min), 0, survivor);
    }
    let mut wire = cluster.wire(survivor);
    let mut counts = [0i64; 4];
    // Batches that may have been appended although they were not acknowledged: taken in before the
    // leader knew that somebody was missing.
    let mut maybe = [0i64; 4];
    for living in (1..=3usize).rev() {
        if living < 3 {
            let victim = (1..=3)
                .rev()
                .find(|id| *id != survivor && cluster.nodes[*id as usize - 1].is_running())
                .expect("another one");
            cluster.node(victim).kill();
        }
        for (min, (count, maybe)) in counts.iter_mut().zip(&mut maybe).enumerate().skip(1) {
            let topic = topic(min);
            wait_until("the leader knows who is left", || {
                cluster.partition(&topic, 0).is_some_and(|found| {
                    // Once it counts as isolated it names nobody.
                    found.isr.len() == living || (living == 1 && found.leader < 0)
                })
            });
            if living == 1 {
                // The leader knows that it is alone: it appends nothing, whatever the minimum, and
                // does not wait for its lease to run out.
                let produced = wire
                    .produce((&topic, 0), -1, ANSWER, &batch(None, &["x"]))
                    .expect("answered");
                assert_eq!(produced.error, ErrorCode::NotEnoughReplicas, "{topic}");
            }
            // The failure detector needs a moment to see the death; until then a batch may be taken
            // in and wait. It is never acknowledged by too few.
            wait_until(
                &format!("{topic} with {living} of 3 answers as it must"),
                || {
                    let produced = wire
                        .produce(
                            (&topic, 0),
                            -1,
                            Duration::from_secs(2),
                            &batch(None, &["x"]),
                        )
                        .expect("answered");
                    let want = expected(min, living);
                    match produced.error {
                        ErrorCode::None => {
                            assert_eq!(
                                want,
                                ErrorCode::None,
                                "{topic}, {living} living: acknowledged"
                            );
                            *count += 1;
                        }
                        ErrorCode::NotEnoughReplicas => {}
                        ErrorCode::NotEnoughReplicasAfterAppend | ErrorCode::RequestTimedOut => {
                            *maybe += 1;
                        }
                        other => panic!("{topic}, {living} living: {other:?}"),
                    }
                    produced.error == want
                },
            );
        }
    }
    assert!(
        counts[1] >= 2 && counts[2] >= 2 && counts[3] >= 1,
        "{counts:?}"
    );
    // Refused means that nothing was appended: not even after the others are back.
    for node in cluster.nodes.iter_mut().filter(|node| !node.is_running()) {
        node.start();
    }
    for min in 1..=3 {
        let topic = topic(min);
        cluster.wait_in_sync(&topic, 0, 3);
        let mut end = -1;
        wait_until("the leader says where the log ends", || {
            let mut wire = cluster.wire(cluster.leader(&topic, 0));
            let (error, offset) = wire.list_offset(&topic, 0, -1).expect("answered");
            end = offset;
            error == ErrorCode::None
        });
        let acked = counts[min];
        let most = acked + maybe[min];
        assert!(
            (acked..=most).contains(&end),
            "{topic} ends at {end}: {acked} acknowledged, {most} taken in at most"
        );
    }
}

/// `replica.lag.time.max.ms` is live: with ten minutes a follower that stands still is in sync, with a
/// second it is not. The failure detector, which would say so itself, is told to wait.
#[test]
fn a_follower_that_stands_still_leaves_by_the_setting_as_it_is_now() {
    let _alone = alone();
    let patient = ["--set", "raft.down.after.ms=60000"];
    let mut cluster = Cluster::start_with(3, &patient);
    let lag = "replica.lag.time.max.ms";
    cluster.configure(&[(lag, "600000")]);
    let topic = "lagging";
    cluster.create_topic(topic, 1, &["min.insync.replicas=2"]);
    cluster.produce(topic, "first");
    let leader = cluster.leader(topic, 0);
    let status = cluster.must(&["cluster", "status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let idle = |id: &i32| *id != leader && status["controller"] != *id;
    let standing = (1..=3).find(idle).expect("three nodes");
    cluster.node(standing).pause();
    let mut wire = cluster.wire(leader);
    let mut send = |n: usize| {
        let sent = batch(None, &[format!("without it {n}")]);
        let produced = wire.produce((topic, 0), -1, ANSWER, &sent);
        assert_eq!(produced.expect("answered").error, ErrorCode::None);
    };
    let in_sync = || {
        cluster.wire(leader).metadata(topic).expect("answered").2[0]
            .isr
            .len()
    };
    // Longer than the second that follows: the records, and the looks that the leader takes at itself.
    let began = Instant::now();
    for n in 0.. {
        send(n);
        assert_eq!(in_sync(), 3, "after {:?}", began.elapsed());
        if began.elapsed() > Duration::from_secs(2) {
            break;
        }
    }
    let set = cluster.wire(leader).set_cluster_config(lag, "1000");
    assert_eq!(set.expect("answered"), ErrorCode::None);
    let mut n = 0;
    wait_until("the leader leaves it out", || {
        n += 1;
        send(n);
        in_sync() == 2
    });
    cluster.node(standing).resume();
    cluster.wait_in_sync(topic, 0, 3);
}

#[test]
fn the_latest_offset_never_falls_behind_an_ack() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = "latest";
    cluster.create_topic(topic, 1, &[]);
    for round in 0..rounds() {
        let acked = (0..20)
            .map(|n| cluster.produce(topic, &format!("{round}.{n}")))
            .max();
        let acked = acked.expect("twenty");
        let old = cluster.leader(topic, 0);
        let killed = round % 2 == 0;
        if killed {
            cluster.node(old).kill();
        } else {
            cluster.lead(topic, 0, old % 3 + 1);
        }
        // The first answer of whoever leads now is the one that counts.
        wait_until("somebody else leads and says where the log ends", || {
            let found = cluster
                .nodes
                .iter()
                .filter(|n| n.is_running())
                .find_map(|node| {
                    let mut wire = Wire::try_connect(node.kafka, Duration::from_secs(2)).ok()?;
                    let (error, latest) = wire.list_offset(topic, 0, -1).ok()?;
                    (error == ErrorCode::None).then_some((node.id, latest))
                });
            let Some((node, latest)) = found else {
                return false;
            };
            assert!(
                latest > acked,
                "round {round}: node {node} says the log ends at {latest}, but {acked} was acked"
            );
            true
        });
        if killed {
            cluster.node(old).start();
            cluster.wait_in_sync(topic, 0, 3);
        }
    }
}

#[test]
fn a_broker_that_has_just_died_stays_listed_and_leads_nothing() {
    // librdkafka gives up a broker that leaves the list, together with the partitions that it is
    // just moving away from it: it must learn of the new leader first.
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = "listed";
    cluster.create_topic(topic, 1, &[]);
    assert_eq!(cluster.produce(topic, "before"), 0);
    let leader = cluster.leader(topic, 0);
    let survivor = (1..=3).find(|id| *id != leader).expect("three nodes");
    let mut asking = cluster.wire(survivor);
    cluster.node(leader).kill();
    let mut brokers = Vec::new();
    wait_until("the survivor names a living leader", || {
        let (listed, _, partitions) = asking.metadata(topic).expect("answered");
        brokers = listed;
        partitions
            .first()
            .is_some_and(|p| p.error == ErrorCode::None && p.leader > 0 && p.leader != leader)
    });
    brokers.sort_unstable();
    assert_eq!(brokers, [1, 2, 3]);
}

/// An answer that waited for this would not come within the patience of a raw connection.
const FOR_EVER: Duration = Duration::from_secs(300);

/// Batches of nearly 1 MiB that fill the pipeline of a partition (32 MiB).
const FILLING_BATCHES: usize = 40;

#[test]
fn a_full_pipeline_does_not_hide_that_the_majority_is_lost() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = "full";
    cluster.create_topic(topic, 1, &["min.insync.replicas=2"]);
    let value = "f".repeat(1_000_000);
    let mut filled = false;
    let mut wire = cluster.wire(1);
    for _ in 0..rounds() {
        cluster.wait_in_sync(topic, 0, 3);
        let leader = cluster.leader(topic, 0);
        wire = cluster.wire(leader);
        let followers: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        for id in &followers {
            cluster.node(*id).pause();
        }
        // Taken while the lease lasts, committed by nobody.
        let taken = (0..FILLING_BATCHES)
            .take_while(|_| {
                let soon = Duration::from_millis(200);
                wire.produce((topic, 0), 1, soon, &batch(None, &[&value]))
                    .is_ok_and(|produced| produced.error == ErrorCode::None)
            })
            .count();
        filled = taken * value.len() >= 32 << 20;
        if filled {
            break;
        }
        for id in &followers {
            cluster.node(*id).resume();
        }
    }
    assert!(filled, "the lease never lasted for 32 MiB");
    // Both wait for room that never comes, or are refused at the door: told in either case.
    let refusals = [
        (-1, ErrorCode::NotEnoughReplicas),
        (1, ErrorCode::NotLeaderOrFollower),
    ];
    for when in ["as it is lost", "when it is known"] {
        for (acks, want) in refusals {
            let produced = wire.produce((topic, 0), acks, FOR_EVER, &batch(None, &["x"]));
            let produced = produced.unwrap_or_else(|e| panic!("acks={acks}, {when}: {e}"));
            assert_eq!(produced.error, want, "acks={acks}, {when}");
        }
    }
}

/// Safety law 14: a duplicate is answered under the condition of its own request.
#[test]
fn a_duplicate_is_acknowledged_with_as_many_copies_as_the_first_had_to_have() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let topic = "repeated";
    cluster.create_topic(topic, 1, &["min.insync.replicas=3"]);
    let leader = cluster.leader(topic, 0);
    let mut wire = cluster.wire(leader);
    let paused = leader % 3 + 1;
    let soon = Duration::from_millis(120);
    let mut appended = None;
    for _ in 0..rounds() {
        let (id, epoch) = wire.producer_id().expect("an id");
        let sent = batch(Some((id, epoch, 0)), &["once"]);
        cluster.wait_in_sync(topic, 0, 3);
        cluster.node(paused).pause();
        let first = wire.produce((topic, 0), -1, soon, &sent).expect("answered");
        if first.error == ErrorCode::NotEnoughReplicasAfterAppend {
            let again = wire.produce((topic, 0), -1, soon, &sent).expect("answered");
            assert!(
                matches!(
                    again.error,
                    ErrorCode::NotEnoughReplicasAfterAppend | ErrorCode::NotEnoughReplicas
                ),
                "the same batch with two copies: {:?}",
                again.error
            );
            // Not that it left the in-sync replicas meanwhile, which the door would have seen.
            if again.error == ErrorCode::NotEnoughReplicasAfterAppend {
                appended = Some(sent);
            }
        }
        cluster.node(paused).resume();
        if appended.is_some() {
            break;
        }
    }
    let sent = appended.expect("committed by two before the third was missed");
    cluster.wait_in_sync(topic, 0, 3);
    let wire = cluster
        .wire(cluster.leader(topic, 0))
        .produce((topic, 0), -1, ANSWER, &sent);
    let produced = wire.expect("answered");
    assert_eq!(produced.error, ErrorCode::None, "with three copies");
    let end = cluster
        .wire(cluster.leader(topic, 0))
        .list_offset(topic, 0, -1);
    let (_, end) = end.expect("answered");
    assert!(produced.base_offset < end, "where the first one went");
    assert_eq!(count_of(&cluster, topic, "once"), end, "each once");
}

/// How many records of a partition have this value.
fn count_of(cluster: &Cluster, topic: &str, value: &str) -> i64 {
    let bootstrap = cluster.bootstrap();
    let found = block_on(async { read_all(&client(&bootstrap).await, topic, 0).await });
    let count = found.iter().filter(|(_, found)| found == value).count();
    i64::try_from(count).expect("few")
}
