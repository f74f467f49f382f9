//! Replicas that lost log: they neither vote nor lead until they have caught up (law 8).

#![allow(dead_code)]

mod harness;

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use corduroy_raft::{ProposalOutcome, RaftConfig, Role};
use corduroy_record::LogIndex;
use corduroy_storage::LogConfig;
use harness::{Cluster, Stop, batch, run, run_paused, test_config, wait_for};

/// It comes back with an empty disk under its old replica id.
async fn start_empty(cluster: &mut Cluster, id: i32) {
    cluster.nodes.get_mut(&id).expect("a node").lose_disk = true;
    cluster.start(id).await;
}

async fn flag_falls(cluster: &Cluster, id: i32) {
    wait_for("the flag to fall", || {
        (!cluster.replica(id).log().state().no_vote).then_some(())
    })
    .await;
}

/// Three nodes with a leader. Each append carries one entry, and nobody is taken for down: a held
/// link carries no pings either. All reads go to the disk.
async fn slow_links() -> (Cluster, i32) {
    let config = RaftConfig {
        append_entries_max: 1,
        append_window_requests: 1,
        down_after: Duration::from_secs(60),
        election_min: Duration::from_secs(60),
        election_max: Duration::from_secs(90),
        ..test_config()
    };
    let mut cluster = Cluster::new(3, config);
    for node in cluster.nodes.values_mut() {
        node.cache_bytes = 0;
    }
    let leader = cluster.lead_all().await;
    (cluster, leader)
}

/// A follower misses what is `committed`, loses its disk, and gets back all but the last entry.
/// Returns it, and the end that it has to reach.
async fn start_short_of_its_end(
    cluster: &mut Cluster,
    leader: i32,
    committed: &[&str],
) -> (i32, LogIndex) {
    cluster.agree().await;
    let victim = cluster.other_than(leader);
    cluster.kill(victim).await;
    cluster.commit(committed).await;
    let end = cluster.log_end(leader).expect("entries");
    let index = LogIndex::new(end.get() - 1);
    cluster.links.stop(
        leader,
        victim,
        Stop {
            node: victim,
            index,
        },
    );
    start_empty(cluster, victim).await;
    let log = cluster.replica(victim).log().clone();
    wait_for("all but the last entry", || {
        (log.state().durable_last == Some(index)).then_some(())
    })
    .await;
    (victim, end)
}

#[test]
fn a_flagged_replica_refetches_and_then_votes_again() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a", "b", "c"]).await;
        cluster.agree().await;
        let victim = cluster.other_than(leader);
        cluster.kill(victim).await;
        start_empty(&mut cluster, victim).await;
        flag_falls(&cluster, victim).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
        // Now it counts: the group lives with it and one other.
        let other = (1..=3)
            .find(|id| *id != leader && *id != victim)
            .expect("a third");
        cluster.kill(other).await;
        cluster.commit(&["d"]).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c", "d"]);
    });
}

/// Law 8: what was written while a replica was down counts as well. It has all that it lost, and
/// all but the last entry of what a leader had after its restart, and still may not vote.
#[test]
fn a_flag_falls_only_at_the_end_that_a_leader_had_after_the_restart() {
    run(async {
        let (mut cluster, leader) = slow_links().await;
        cluster.commit(&["a", "b", "c"]).await;
        let (victim, end) = start_short_of_its_end(&mut cluster, leader, &["d", "e"]).await;
        let log = cluster.replica(victim).log().clone();
        // A change of the flag would be a record of its own, before this one.
        log.flush().await.expect("durable");
        assert!(log.state().no_vote, "it votes without {end}");
        cluster.commit(&["f"]).await;
        log.flush().await.expect("durable");
        assert!(log.state().no_vote, "it votes without {end}");
        cluster.links.heal_all();
        wait_for("the flag to fall", || (!log.state().no_vote).then_some(())).await;
        assert!(log.state().durable_last >= Some(end));
        assert_eq!(cluster.agree().await, ["a", "b", "c", "d", "e", "f"]);
        let metrics = cluster.nodes[&leader].shard().metrics();
        assert_eq!(metrics.possible_losses, 0, "nothing can be lost here");
    });
}

#[test]
fn a_flagged_replica_does_not_help_to_elect_a_leader() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let rest: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        let (victim, behind) = (rest[0], rest[1]);
        // `behind` misses b; the victim had it and loses it; the leader dies.
        cluster.kill(behind).await;
        cluster.commit(&["b"]).await;
        cluster.agree().await;
        cluster.kill(leader).await;
        cluster.kill(victim).await;
        start_empty(&mut cluster, victim).await;
        cluster.start(behind).await;
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        for id in [victim, behind] {
            assert_ne!(
                cluster.replica(id).view().role,
                Role::Leader,
                "b would be lost"
            );
        }
        cluster.start(leader).await;
        cluster.commit(&["c"]).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
    });
}

/// Law 8: a replica that forgot its vote takes the first leader that speaks to it for the newest. An
/// older one, that has not heard of its end, would commit on its word what the newer one never saw.
#[test]
fn a_replica_that_forgot_its_vote_does_not_help_an_older_leader() {
    run(check_older_leader(false));
}

/// The same where the older leader has purged what the other lacks, and sends it a snapshot.
#[test]
fn a_snapshot_does_not_stand_for_a_forgotten_vote() {
    run(check_older_leader(true));
}

async fn check_older_leader(sends_snapshot: bool) {
    let mut cluster = Cluster::new(3, test_config());
    for node in cluster.nodes.values_mut() {
        node.log_config = small_segments();
    }
    let older = cluster.lead_all().await;
    cluster.commit(&["a"]).await;
    cluster.agree().await;
    let rest: Vec<i32> = (1..=3).filter(|id| *id != older).collect();
    if sends_snapshot {
        cluster.kill(rest[1]).await;
        for n in 0..60 {
            cluster.commit(&[&n.to_string()]).await;
        }
        cluster.agree().await;
        purge_to_last_segment(&cluster, older).await;
    }
    for other in &rest {
        cluster.links.cut(older, *other);
    }
    if sends_snapshot {
        cluster.start(rest[1]).await;
    }
    let newer = cluster.leader(&rest).await;
    for value in ["b", "c"] {
        let outcome = cluster.propose(newer, batch(value)).wait().await;
        assert!(
            matches!(outcome, ProposalOutcome::Applied(_)),
            "{outcome:?}"
        );
    }
    let victim = rest.iter().copied().find(|id| *id != newer).expect("one");
    cluster.kill(victim).await;
    cluster.nodes.get_mut(&victim).expect("a node").lose_disk = true;
    cluster.links.cut(newer, victim);
    cluster.links.heal(older, victim);
    cluster.start(victim).await;
    let stale = cluster.propose(older, batch("stale"));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let told = stale.outcome();
    assert!(
        !matches!(told, Some(ProposalOutcome::Applied(_))),
        "{told:?} on the word of one that forgot who leads"
    );
    assert!(cluster.replica(victim).log().state().no_vote);
    cluster.links.heal_all();
    cluster.commit(&["d"]).await;
    let values = cluster.agree().await;
    assert_eq!(values[values.len() - 3..], ["b", "c", "d"]);
    flag_falls(&cluster, victim).await;
}

fn small_segments() -> LogConfig {
    LogConfig {
        segment_bytes: 2048,
        ..LogConfig::default()
    }
}

async fn purge_to_last_segment(cluster: &Cluster, id: i32) {
    let replica = cluster.replica(id);
    let boundaries = replica.log().segment_boundaries();
    let last = boundaries.last().expect("segments").first_index;
    let before = LogIndex::new(last.get() - 1);
    replica.purge_to(before).await.expect("saved tables");
    assert!(replica.log().state().log_start.index > LogIndex::new(1));
}

/// Strikes the oldest segment of a node's log, and has a reader meet it.
async fn meet_damage(cluster: &Cluster, id: i32) {
    let disk = &cluster.nodes[&id].disk;
    let files = disk.files();
    let mut segments = (files.iter()).filter(|path| path.to_string_lossy().ends_with(".log"));
    let oldest = segments.next().expect("a segment");
    let length = disk.bytes(oldest).expect("a file").len() as u64;
    assert!(length > 120, "{length} bytes");
    disk.flip(oldest, 100, 0x10).expect("a byte");
    let log = cluster.replica(id).log().clone();
    let state = log.state();
    let end = state.last.expect("entries").1;
    let read = log.read(state.log_start.index, end, usize::MAX).await;
    assert!(
        log.must_reopen(),
        "nobody met it: {:?}",
        read.map(|entries| entries.len())
    );
}

/// A read may meet damage at any moment, just before its replica takes a leadership too: the flag
/// stays until the log was opened again without what is damaged.
#[test]
fn damage_that_a_read_has_met_is_not_forgiven_by_an_election() {
    run_paused(async {
        let mut cluster = Cluster::new(1, test_config());
        for node in cluster.nodes.values_mut() {
            node.log_config = small_segments();
            node.cache_bytes = 0;
        }
        let leader = cluster.lead_all().await;
        for n in 0..60 {
            cluster.commit(&[&n.to_string()]).await;
        }
        // What is struck is not needed to start.
        purge_to_last_segment(&cluster, leader).await;
        for n in 0..60 {
            cluster.commit(&[&n.to_string()]).await;
        }
        cluster.kill(leader).await;
        cluster.start(leader).await;
        assert_ne!(cluster.replica(leader).view().role, Role::Leader);
        meet_damage(&cluster, leader).await;
        wait_for("it to lead", || {
            (cluster.replica(leader).view().role == Role::Leader).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let log = cluster.replica(leader).log().clone();
        assert!(log.must_reopen() && log.state().no_vote && log.state().damaged);
    });
}

/// The same while a replica fetches what it had lost: its end is there, its middle is not.
#[test]
fn damage_that_a_read_meets_while_it_catches_up_keeps_the_flag() {
    run(async {
        let (mut cluster, leader) = slow_links().await;
        cluster.commit(&["a", "b", "c"]).await;
        let (victim, end) = start_short_of_its_end(&mut cluster, leader, &["d"]).await;
        let log = cluster.replica(victim).log().clone();
        meet_damage(&cluster, victim).await;
        cluster.links.heal_all();
        wait_for("its end", || {
            (log.state().durable_last >= Some(end)).then_some(())
        })
        .await;
        // A few looks at the flag later.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(log.must_reopen() && log.state().no_vote && log.state().damaged);
    });
}

/// What is damaged may go before the log is opened again: here a snapshot takes its place. Then there
/// is nothing to reopen, and the flag falls as that of any replica, by its leader's word.
#[test]
fn a_flag_falls_although_what_was_damaged_has_gone() {
    run(async {
        let mut cluster = Cluster::new(3, test_config());
        for node in cluster.nodes.values_mut() {
            node.log_config = small_segments();
            node.cache_bytes = 0;
        }
        let leader = cluster.lead_all().await;
        for n in 0..60 {
            cluster.commit(&[&n.to_string()]).await;
        }
        cluster.agree().await;
        let victim = cluster.other_than(leader);
        let rest: Vec<i32> = (1..=3).filter(|id| *id != victim).collect();
        cluster.kill(victim).await;
        for n in 0..60 {
            cluster.commit(&[&n.to_string()]).await;
        }
        cluster.agree().await;
        for id in &rest {
            purge_to_last_segment(&cluster, *id).await;
            cluster.links.cut(*id, victim);
        }
        cluster.start(victim).await;
        meet_damage(&cluster, victim).await;
        let log = cluster.replica(victim).log().clone();
        assert!(log.must_reopen() && log.state().no_vote);
        cluster.links.heal_all();
        wait_for("the snapshot", || (!log.must_reopen()).then_some(())).await;
        flag_falls(&cluster, victim).await;
        cluster.commit(&["last"]).await;
        cluster.agree().await;
    });
}

/// Who forgot a vote may have given it to a candidate that still waits for its other votes: what a
/// majority says counts once no such campaign can be under way, and at once if all have spoken.
#[test]
fn with_a_voter_away_nobody_is_taken_back_while_a_campaign_may_be_under_way() {
    run_paused(async {
        let config = test_config();
        let campaign = config.election_max + config.election_min;
        let mut cluster = Cluster::simulated(5, config);
        let leader = cluster.lead_all().await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let rest: Vec<i32> = (1..=5).filter(|id| *id != leader).collect();
        let victim = rest[0];
        for away in [None, Some(rest[1])] {
            cluster.kill(victim).await;
            if let Some(away) = away {
                cluster.kill(away).await;
            }
            cluster.commit(&["b"]).await;
            cluster.nodes.get_mut(&victim).expect("a node").lose_disk = true;
            let began = cluster.env.now();
            cluster.start(victim).await;
            flag_falls(&cluster, victim).await;
            let took = cluster.env.now().duration_since(began);
            assert_eq!(
                took < campaign,
                away.is_none(),
                "{took:?}, {away:?} is away"
            );
        }
        assert_eq!(cluster.agree().await, ["a", "b", "b"]);
    });
}

/// The voter whose word is missing may be away for hours: its leader says so once, and asks at once
/// when it is back.
#[test]
fn a_leader_says_once_that_a_follower_waits_for_a_voter_that_is_away() {
    run_paused(async {
        let config = test_config();
        let mut cluster = Cluster::simulated(3, config);
        let leader = cluster.lead_all().await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let rest: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        let (victim, away) = (rest[0], rest[1]);
        cluster.kill(away).await;
        cluster.kill(victim).await;
        cluster.nodes.get_mut(&victim).expect("a node").lose_disk = true;
        let (lines, _capture) = capture_lines();
        cluster.start(victim).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let waits = |line: &String| line.contains("waits for other voters");
        assert_eq!(lines.try_iter().filter(waits).count(), 1);
        assert!(cluster.replica(victim).log().state().no_vote);

        cluster.start(away).await;
        let returned = cluster.env.now();
        flag_falls(&cluster, victim).await;
        let took = cluster.env.now().duration_since(returned);
        assert!(took < Duration::from_secs(1), "{took:?}");
    });
}

/// What this thread logs from here on, as long as the guard lives.
fn capture_lines() -> (Receiver<String>, tracing::subscriber::DefaultGuard) {
    let (sender, lines) = channel();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || Lines(sender.clone()))
        .finish();
    (lines, tracing::subscriber::set_default(subscriber))
}

struct Lines(Sender<String>);

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Nobody listens once the test has ended.
        let _ = self.0.send(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// It still has its vote, for this very leader, and refuses an older one by itself: it comes back on
/// the leader's word alone, and the group goes on with the two.
#[test]
fn a_replica_that_kept_its_vote_comes_back_without_the_third() {
    run(async {
        let (mut cluster, leader) = Cluster::led(3, test_config()).await;
        cluster.commit(&["a"]).await;
        cluster.agree().await;
        let rest: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        let (victim, third) = (rest[0], rest[1]);
        cluster.kill(third).await;
        cluster.kill(victim).await;
        cluster.nodes.get_mut(&victim).expect("a node").flagged = true;
        cluster.start(victim).await;
        cluster.commit(&["b"]).await;
        flag_falls(&cluster, victim).await;
        assert_eq!(cluster.agree().await, ["a", "b"]);
    });
}

/// When most replicas lost log, nobody may lead on the word of a few: all voters have to answer,
/// then the longest log leads, and says so.
#[test]
fn when_a_majority_is_flagged_the_longest_log_leads_once_all_have_answered() {
    run(async {
        let mut config = test_config();
        config.election_min = std::time::Duration::from_millis(200);
        config.election_max = std::time::Duration::from_millis(300);
        config.heartbeat = std::time::Duration::from_millis(50);
        let (mut cluster, leader) = Cluster::led(3, config).await;
        cluster.commit(&["a", "b"]).await;
        cluster.agree().await;
        let rest: Vec<i32> = (1..=3).filter(|id| *id != leader).collect();
        for id in 1..=3 {
            cluster.kill(id).await;
        }
        for id in &rest {
            start_empty(&mut cluster, *id).await;
        }
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        for id in &rest {
            assert_ne!(
                cluster.replica(*id).view().role,
                Role::Leader,
                "one is still missing"
            );
        }
        let possible_losses = |cluster: &Cluster, id: i32| {
            let metrics = cluster.nodes[&id].shard().metrics();
            metrics.possible_losses
        };
        for id in &rest {
            assert_eq!(possible_losses(&cluster, *id), 0, "nobody leads yet");
        }
        cluster.start(leader).await;
        assert_eq!(
            cluster.leader(&[1, 2, 3]).await,
            leader,
            "it alone has the log"
        );
        assert!(
            possible_losses(&cluster, leader) > 0,
            "what only the two had may be lost, and nobody is told"
        );
        for id in &rest {
            assert_eq!(possible_losses(&cluster, *id), 0, "they do not lead");
        }
        cluster.commit(&["c"]).await;
        assert_eq!(cluster.agree().await, ["a", "b", "c"]);
        for id in 1..=3 {
            flag_falls(&cluster, id).await;
        }
    });
}
