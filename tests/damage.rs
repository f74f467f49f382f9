//! Disks that lie and disks that are full.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use support::traffic::{block_on, client, read_all};
use support::wire::batch;
use support::{Cluster, alone, wait_until};

const ANSWER: Duration = Duration::from_secs(10);

/// The largest segment file of a topic's only partition on a node.
fn segment(data_dir: &Path) -> PathBuf {
    let mut largest = (0, PathBuf::new());
    let mut dirs = vec![data_dir.join("partitions")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory").flatten() {
            let meta = entry.metadata().expect("metadata");
            let path = entry.path();
            if meta.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "log") && meta.len() > largest.0 {
                largest = (meta.len(), path);
            }
        }
    }
    largest.1
}

/// Flips one bit of the record that carries `needle`.
fn flip(path: &Path, needle: &str) {
    let bytes = fs::read(path).expect("a segment");
    let at = bytes
        .windows(needle.len())
        .position(|window| window == needle.as_bytes())
        .expect("the record is in the segment");
    let file = fs::File::options()
        .write(true)
        .open(path)
        .expect("writable");
    file.write_at(&[bytes[at] ^ 1], at as u64).expect("written");
}

fn produce(cluster: &Cluster, topic: &str, value: &str) {
    wait_until("a record is acknowledged", || {
        let leader = cluster.leader(topic, 0);
        cluster
            .wire(leader)
            .produce((topic, 0), -1, ANSWER, &batch(None, &[value]))
            .is_ok_and(|produced| produced.error == ErrorCode::None)
    });
}

/// Has the node notice damage and make it good: it says so, counts it, refetches, and votes again.
fn wait_refetched(cluster: &Cluster, node: i32, log_before: usize) {
    let node = &cluster.nodes[usize::try_from(node - 1).expect("an id")];
    wait_until("the damage is noticed and made good", || {
        let log = node.log();
        log[log_before..].contains("this replica may vote again")
    });
    let found = node.metric("corduroy_storage_corruptions_total");
    assert!(found >= Some(1.0), "counted: {found:?}");
}

/// Where damage is done, after the node has stopped.
type Damage = fn(&Path);

fn flip_a_record(data_dir: &Path) {
    flip(&segment(data_dir), "record number 0030");
}

/// The file that holds the vote, the log's start and its end; any bit of it is under one checksum.
fn flip_the_vote(data_dir: &Path) {
    let mut dirs = vec![data_dir.join("partitions")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.file_name().is_some_and(|name| name == "state") {
                let bytes = fs::read(&path).expect("a state file");
                let length: [u8; 4] = bytes[12..16].try_into().expect("four bytes");
                let at = u32::from_le_bytes(length) as usize / 2;
                let file = fs::File::options().write(true).open(&path);
                file.expect("writable")
                    .write_at(&[bytes[at] ^ 1], at as u64)
                    .expect("written");
                return;
            }
        }
    }
    panic!("no state file");
}

/// Flips a bit in the middle of a file.
fn flip_in(path: &Path) {
    let bytes = fs::read(path).expect("a file");
    let at = bytes.len().min(80) / 2;
    let file = fs::File::options().write(true).open(path);
    file.expect("writable")
        .write_at(&[bytes[at] ^ 1], at as u64)
        .expect("written");
}

/// Flips a bit in each registration, the controller's too or alone.
fn flip_registrations(data_dir: &Path, is_struck: fn(&str) -> bool) {
    let mut count = 0;
    for entry in fs::read_dir(data_dir.join("registry")).expect("a directory") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("journal-") && is_struck(&name) {
            flip_in(&entry.path());
            count += 1;
        }
    }
    assert!(count > 0, "nothing was struck");
}

/// A registration's name begins with the topic's id; the controller's is all zeros.
fn is_controllers(name: &str) -> bool {
    name.starts_with("00000000-0000-0000-0000-000000000000-")
}

fn flip_the_registrations(data_dir: &Path) {
    flip_registrations(data_dir, |_| true);
}

/// Neither of the two files that say which replica it is can be read.
fn flip_the_registrations_and_the_vote(data_dir: &Path) {
    flip_registrations(data_dir, |_| true);
    flip_the_vote(data_dir);
}

fn check_damaged(extra: &[&str], stop: fn(&mut support::Node), damage: Damage) {
    let mut cluster = Cluster::start_with(3, extra);
    let topic = "flipped";
    cluster.create_topic(topic, 1, &[]);
    let value = |n: i64| format!("record number {n:04} {}", "x".repeat(500));
    for n in 0..60 {
        produce(&cluster, topic, &value(n));
    }
    let victim = cluster.leader(topic, 0) % 3 + 1;
    stop(cluster.node(victim));
    let data_dir = cluster.node(victim).data_dir.clone();
    damage(&data_dir);
    let log_before = cluster.node(victim).log().len();
    cluster.node(victim).start();
    for n in 60..70 {
        produce(&cluster, topic, &value(n));
    }
    let expected: Vec<(i64, String)> = (0..70).map(|n| (n, value(n))).collect();
    // As leader it serves every record as it was written, whatever it takes to get there: either
    // the damage was met at the start and refetched, or the read meets it and another one leads.
    wait_until(
        "the node of the flipped bit leads and serves everything",
        || {
            cluster.wait_in_sync(topic, 0, 3);
            let _retried = cluster.run(&[
                "partition",
                "lead",
                &format!("{topic}/0"),
                &victim.to_string(),
            ]);
            let leads = || {
                cluster
                    .partition(topic, 0)
                    .is_some_and(|found| found.leader == victim)
            };
            if !leads() {
                return false;
            }
            let found = block_on(async {
                let client = client(&cluster.bootstrap()).await;
                let mut reader = client
                    .read(topic)
                    .partition(0)
                    .from(corduroy_client::From::Earliest)
                    .until_high_watermark();
                let mut found = Vec::new();
                let read = async {
                    while let Some(batch) = reader.next().await {
                        for record in batch.ok()?.records() {
                            let value = String::from_utf8(record.value()?.to_vec()).ok()?;
                            found.push((record.offset(), value));
                        }
                    }
                    Some(())
                };
                match tokio::time::timeout(ANSWER, read).await {
                    Ok(Some(())) => Some(found),
                    _ => None,
                }
            });
            let Some(found) = found else { return false };
            assert_eq!(
                found, expected,
                "a consumer sees what was written, or nothing"
            );
            leads()
        },
    );
    wait_refetched(&cluster, victim, log_before);
    // Not only in memory: the node's own files are whole again.
    cluster.node(victim).terminate();
    let dump = Command::new(support::corduroy())
        .args(["debug", "log-dump", &data_dir.to_string_lossy(), "--verify"])
        .output()
        .expect("it runs");
    assert!(
        dump.status.success(),
        "{}{}",
        String::from_utf8_lossy(&dump.stdout),
        String::from_utf8_lossy(&dump.stderr)
    );
    let others = block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await });
    assert_eq!(others, expected);
}

#[test]
fn a_flipped_bit_after_kill_9_is_refetched() {
    let _alone = alone();
    // By reference: the journal does not hold the bytes a second time.
    check_damaged(
        &["--set", "storage.inline.bytes.max=1"],
        support::Node::kill,
        flip_a_record,
    );
}

#[test]
fn a_flipped_bit_after_a_clean_stop_is_refetched() {
    let _alone = alone();
    check_damaged(&[], support::Node::terminate, flip_a_record);
}

#[test]
fn a_flipped_bit_beside_the_vote_is_refetched() {
    let _alone = alone();
    check_damaged(&[], support::Node::terminate, flip_the_vote);
}

#[test]
fn a_replica_that_nothing_identifies_is_refetched() {
    let _alone = alone();
    check_damaged(
        &[],
        support::Node::kill,
        flip_the_registrations_and_the_vote,
    );
}

/// The same where one of the two is gone: it is not taken for a new replica.
#[test]
fn a_lost_registration_beside_a_damaged_vote_is_refetched() {
    let _alone = alone();
    check_damaged(&[], support::Node::kill, |data_dir| {
        let registry = fs::read_dir(data_dir.join("registry")).expect("a directory");
        let paths = registry.map(|entry| entry.expect("an entry").path());
        let is_partitions = |path: &PathBuf| {
            let name = path.file_name().expect("a name").to_string_lossy();
            !name.starts_with("journal-") && !is_controllers(&name)
        };
        let struck: Vec<PathBuf> = paths.filter(is_partitions).collect();
        assert!(!struck.is_empty(), "nothing is struck");
        for path in struck {
            fs::remove_file(path).expect("removed");
        }
        flip_the_vote(data_dir);
    });
}

/// It may have voted for node 3 and forgotten it: nobody takes it back before node 3 has been asked. An
/// operator sees what is missing, and that it comes by itself.
#[test]
fn a_damaged_replica_is_shown_and_waits_for_the_voter_that_may_know_more() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic("shown", 1, &[]);
    produce(&cluster, "shown", "before");
    cluster.wait_in_sync("shown", 0, 3);
    wait_until("node 1 leads", || {
        let _retried = cluster.run(&["partition", "lead", "shown/0", "1"]);
        cluster.leader("shown", 0) == 1
    });
    for node in [2, 3] {
        cluster.node(node).terminate();
    }
    flip_the_vote(&cluster.node(2).data_dir.clone());
    cluster.node(2).start();
    cluster.node(2).wait_ready();
    let damaged = "a replica of this node is damaged (shown/0): it neither votes nor leads";
    wait_until("health names the replica", || {
        let health = cluster.nodes[1].admin_get("/health/cluster");
        health.is_some_and(|(_, body)| {
            body.contains(damaged) && body.contains(r#""replicas_damaged":1"#)
        })
    });
    let metric = cluster.nodes[1].metric("corduroy_raft_damaged_replicas");
    assert_eq!(metric, Some(1.0));
    wait_until("the command line shows it", || {
        let shown = cluster.run(&["cluster", "status"]);
        String::from_utf8_lossy(&shown.stdout).contains(&format!("node 2: {damaged}"))
    });
    wait_until("its leader says what it waits for", || {
        let log = cluster.nodes[0].log();
        log.contains("a follower that lost log waits for other voters")
    });

    cluster.node(3).start();
    cluster.wait_in_sync("shown", 0, 3);
    wait_until("nothing is damaged any more", || {
        cluster.nodes[1].metric("corduroy_raft_damaged_replicas") == Some(0.0)
    });
    let found = block_on(async { read_all(&client(&cluster.bootstrap()).await, "shown", 0).await });
    assert_eq!(found, [(0, "before".to_owned())]);
}

/// Its state file says the same: nothing is lost.
#[test]
fn damaged_registrations_are_written_again() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic("kept", 2, &[]);
    produce(&cluster, "kept", "before");
    for damage in [flip_the_registrations as Damage, |data_dir| {
        flip_registrations(data_dir, is_controllers)
    }] {
        cluster.node(2).terminate();
        let data_dir = cluster.node(2).data_dir.clone();
        let from = cluster.node(2).log().len();
        damage(&data_dir);
        cluster.node(2).start();
        cluster.node(2).wait_ready();
        cluster.wait_in_sync("kept", 0, 3);
        let log = cluster.nodes[1].log();
        assert!(log[from..].contains("a damaged registration was restored"));
        assert!(
            !log[from..].contains("neither votes nor leads"),
            "{}",
            &log[from..]
        );
    }
}

/// The controller's replica is one like any other: what its node lost of it comes from the leader.
fn check_controller_damaged(damage: Damage) {
    let mut cluster = Cluster::start(3);
    for topic in ["first", "second", "third"] {
        cluster.create_topic(topic, 1, &[]);
    }
    cluster.node(2).terminate();
    let data_dir = cluster.node(2).data_dir.clone();
    let from = cluster.node(2).log().len();
    damage(&data_dir);
    cluster.node(2).start();
    cluster.node(2).wait_ready();
    wait_until("it has its vote again", || {
        cluster.nodes[1].log()[from..].contains("this replica may vote again")
    });
    assert!(cluster.nodes[1].partition("third", 0).is_some());
    // Without it nothing is decided.
    cluster.node(3).kill();
    let mut attempts = 0;
    wait_until("two nodes decide", || {
        attempts += 1;
        let topic = format!("fourth-{attempts}");
        let create = ["topic", "create", &topic, "-p", "1", "-r", "2"];
        cluster.run(&create).status.success()
    });
}

#[test]
fn a_flipped_bit_in_the_controllers_state_is_refetched() {
    let _alone = alone();
    check_controller_damaged(|data_dir| flip_in(&data_dir.join("controller/state")));
}

#[test]
fn a_controllers_replica_that_nothing_identifies_is_refetched() {
    let _alone = alone();
    check_controller_damaged(|data_dir| {
        flip_in(&data_dir.join("controller/state"));
        flip_registrations(data_dir, is_controllers);
    });
}

/// The segment of the controller's log on a node.
fn controller_segment(data_dir: &Path) -> PathBuf {
    let logs = fs::read_dir(data_dir.join("controller"))
        .expect("a directory")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "log"));
    logs.max().expect("a segment")
}

#[test]
fn a_flipped_bit_in_the_controllers_log_is_refetched() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    for topic in ["first", "second", "third"] {
        cluster.create_topic(topic, 1, &[]);
    }
    cluster.node(2).terminate();
    let data_dir = cluster.node(2).data_dir.clone();
    flip(&controller_segment(&data_dir), "second");
    cluster.node(2).start();
    cluster.node(2).wait_ready();
    // It has the whole history again, as its own files say, and its vote counts: with node 3 gone,
    // nothing is decided without it.
    wait_until("node 2 has what it lost", || {
        cluster.nodes[1].partition("third", 0).is_some()
    });
    cluster.create_topic("fourth", 1, &[]);
    cluster.node(2).terminate();
    let dump = Command::new(support::corduroy())
        .args(["debug", "log-dump", &data_dir.to_string_lossy(), "--verify"])
        .output()
        .expect("it runs");
    assert!(
        dump.status.success(),
        "{}",
        String::from_utf8_lossy(&dump.stdout)
    );
    cluster.node(2).start();
    cluster.node(2).wait_ready();
    cluster.node(3).kill();
    // Another topic each time: one that was placed before anybody knew of the death waits for it.
    let mut attempts = 0;
    wait_until("two nodes decide", || {
        attempts += 1;
        let topic = format!("fifth-{attempts}");
        cluster
            .run(&[
                "topic",
                "create",
                &topic,
                "--partitions",
                "1",
                "--replication",
                "2",
            ])
            .status
            .success()
    });
}

#[test]
fn damage_in_the_only_copy_of_the_controllers_log_is_said_and_cut_by_nobody() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    for topic in ["first", "second", "third"] {
        cluster.create_topic(topic, 1, &[]);
    }
    cluster.node(1).terminate();
    let segment = controller_segment(&cluster.node(1).data_dir);
    flip(&segment, "second");
    let damaged = fs::read(&segment).expect("the segment");
    for start in 1..=2 {
        cluster.node(1).start();
        let refusals = || cluster.nodes[0].log().matches("no other copy").count();
        wait_until("it refuses to start", || refusals() == start);
        let log = cluster.nodes[0].log();
        let file = segment.file_name().expect("a name").to_string_lossy();
        for said in ["log-dump", file.as_ref(), "put a sound copy of it in place"] {
            assert!(log.contains(said), "{said:?} is not in:\n{log}");
        }
        cluster.node(1).kill();
        assert_eq!(fs::read(&segment).expect("the segment"), damaged);
    }
}

/// A tmpfs that goes away with its owner.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(dir: &Path, bytes: u64) -> Option<Tmpfs> {
        fs::create_dir_all(dir).expect("a directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(dir)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then(|| Tmpfs(dir.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Settings of a node whose disk has 64 MiB.
const SMALL_DISK: [&str; 10] = [
    "--set",
    "storage.journal.file.bytes=1048576",
    "--set",
    "storage.journal.files.max=4",
    "--set",
    "storage.reserve.bytes=1048576",
    "--set",
    "storage.disk.critical.bytes=4194304",
    "--set",
    "storage.disk.low.bytes=8388608",
];

/// Fills the disk of `dir` with `filler` until so many bytes are left.
fn fill(dir: &Path, filler: &Path, left: u64) {
    let output = Command::new("df")
        .args(["--output=avail", "-B1"])
        .arg(dir)
        .output();
    let text = String::from_utf8(output.expect("df").stdout).expect("UTF-8");
    let free: u64 = text
        .lines()
        .nth(1)
        .expect("a line")
        .trim()
        .parse()
        .expect("a number");
    let size = usize::try_from(free.saturating_sub(left)).expect("small");
    fs::write(filler, vec![1u8; size]).expect("it fits");
}

#[test]
fn a_full_disk_of_one_follower_stops_nobody_else() {
    let _alone = alone();
    let mut sets = SMALL_DISK.to_vec();
    sets.extend(["--set", "replica.lag.time.max.ms=1000"]);
    let mut cluster = Cluster::plan(3, &sets);
    let data_dir = cluster.nodes[2].data_dir.clone();
    let Some(_tmpfs) = Tmpfs::mount(&data_dir, 64 << 20) else {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    };
    for node in &mut cluster.nodes {
        node.start();
    }
    cluster.wait_healthy();
    let topic = "one-full";
    cluster.create_topic(topic, 1, &["min.insync.replicas=2"]);
    let place = format!("{topic}/0");
    wait_until("node 1 leads", || {
        let _retried = cluster.run(&["partition", "lead", &place, "1"]);
        cluster.leader(topic, 0) == 1
    });
    produce(&cluster, topic, "before");

    let filler = data_dir.join("somebody-elses-file");
    fill(&data_dir, &filler, 64 << 10);
    let big = "b".repeat(60_000);
    let mut wire = cluster.wire(1);
    let mut acked: Vec<(i64, String)> = Vec::new();
    let mut is_full = false;
    wait_until("the full node says that it is full", || {
        let produced = wire
            .produce((topic, 0), -1, ANSWER, &batch(None, &[&big]))
            .expect("answered");
        assert_eq!(
            produced.error,
            ErrorCode::None,
            "the other two go on, after {} records",
            acked.len()
        );
        acked.push((produced.base_offset, big.clone()));
        let metric = cluster.nodes[2].metric("corduroy_storage_disk_full");
        is_full |= metric == Some(1.0);
        let fallen_behind = cluster
            .partition(topic, 0)
            .is_some_and(|found| found.isr == [1, 2] || found.isr == [2, 1]);
        is_full && fallen_behind
    });
    assert!(
        cluster.nodes[2].log().contains("the disk is getting full"),
        "and its log says so"
    );
    assert_eq!(cluster.leader(topic, 0), 1, "nobody had to take over");

    fs::remove_file(&filler).expect("removed");
    cluster.wait_in_sync(topic, 0, 3);
    // What it missed is there: it leads, and reads all of it back.
    wait_until("node 3 leads", || {
        let _retried = cluster.run(&["partition", "lead", &place, "3"]);
        cluster.leader(topic, 0) == 3
    });
    let found = block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await });
    assert_eq!(found[0], (0, "before".to_owned()));
    assert_eq!(found[1..], acked);
    cluster.nodes[2].kill();
}

/// Others have room: they lead, and the producer goes on after a refusal or two.
#[test]
fn a_leader_with_a_full_disk_hands_over_to_a_replica_with_room() {
    let _alone = alone();
    let mut cluster = Cluster::plan(3, &SMALL_DISK);
    let data_dir = cluster.nodes[2].data_dir.clone();
    let Some(_tmpfs) = Tmpfs::mount(&data_dir, 64 << 20) else {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    };
    for node in &mut cluster.nodes {
        node.start();
    }
    cluster.wait_healthy();
    let topic = "handed-over";
    cluster.create_topic(topic, 4, &["min.insync.replicas=2"]);
    let lead_all = |cluster: &Cluster| {
        for partition in 0..4 {
            wait_until("node 3 leads", || {
                let place = format!("{topic}/{partition}");
                let _retried = cluster.run(&["partition", "lead", &place, "3"]);
                cluster.leader(topic, partition) == 3
            });
        }
    };
    lead_all(&cluster);
    produce(&cluster, topic, "before");
    // Nearly full: its own journal and its votes still have their reserve.
    let filler = data_dir.join("somebody-elses-file");
    fill(&data_dir, &filler, 3 << 20);
    let mut acked = Vec::new();
    for partition in 0..4i32 {
        let mut refusals = BTreeSet::new();
        wait_until("somebody with room leads and takes records", || {
            let leader = cluster.leader(topic, usize::try_from(partition).expect("small"));
            let sent = batch(None, &["after"]);
            let answer = cluster
                .wire(leader)
                .produce((topic, partition), -1, ANSWER, &sent);
            match answer.expect("answered").error {
                ErrorCode::None if leader != 3 => {
                    acked.push(partition);
                    return true;
                }
                // Before it has noticed that it is full.
                ErrorCode::None => {}
                error => drop(refusals.insert(format!("{error:?}"))),
            }
            false
        });
        let told = [
            "KafkaStorageError",
            "NotLeaderOrFollower",
            "NotEnoughReplicas",
        ];
        assert!(
            refusals.iter().all(|said| told.contains(&said.as_str())),
            "{refusals:?}"
        );
    }
    assert_eq!(acked, [0, 1, 2, 3]);
    let log = cluster.nodes[2].log();
    assert!(log.contains("others with room lead instead"), "it says why");
    // It has room again: it takes a leadership when it is given one, and has everything.
    fs::remove_file(&filler).expect("removed");
    for partition in 0..4 {
        cluster.wait_in_sync(topic, partition, 3);
    }
    wait_until("it knows that it has room", || {
        cluster.nodes[2].metric("corduroy_storage_disk_full") == Some(0.0)
    });
    lead_all(&cluster);
    let found = block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await });
    assert_eq!(found[0], (0, "before".to_owned()));
    assert!(found[1..].iter().any(|(_, value)| value == "after"));
    cluster.nodes[2].kill();
}

#[test]
fn a_full_disk_refuses_produce_and_recovers_without_a_restart() {
    let _alone = alone();
    let mut cluster = Cluster::plan(1, &SMALL_DISK);
    let data_dir = cluster.nodes[0].data_dir.clone();
    let Some(_tmpfs) = Tmpfs::mount(&data_dir, 64 << 20) else {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    };
    cluster.nodes[0].start();
    cluster.wait_healthy();
    let topic = "full";
    cluster.create_topic(topic, 1, &[]);
    produce(&cluster, topic, "before");

    let filler = data_dir.join("somebody-elses-file");
    let big = "b".repeat(60_000);
    let (mut acked, mut after) = (0, Vec::new());
    // First nearly full: every write still fits, and none comes to tell when there is room again.
    // Then full: a write meets the end of the disk.
    for left in [2 << 20, 64 << 10] {
        fill(&data_dir, &filler, left);
        let mut wire = cluster.wire(1);
        wait_until("produce is refused by name", || {
            let produced = wire
                .produce(
                    (topic, 0),
                    -1,
                    Duration::from_secs(3),
                    &batch(None, &[&big]),
                )
                .expect("the node lives and answers");
            match produced.error {
                ErrorCode::None => acked += 1,
                // The one that met the end of the disk; it may be there or not.
                ErrorCode::RequestTimedOut | ErrorCode::NotLeaderOrFollower => {}
                other => assert_eq!(other, ErrorCode::KafkaStorageError),
            }
            produced.error == ErrorCode::KafkaStorageError
        });
        eprintln!("{left} bytes left: {acked} records fitted so far");
        assert!(
            cluster.nodes[0]
                .metric("corduroy_storage_disk_free_bytes")
                .is_some(),
            "it lives"
        );
        let seen = wire
            .fetch(topic, 0, 0, Duration::from_secs(1))
            .expect("reads are served");
        assert_eq!(seen.error, ErrorCode::None, "reads are served");

        fs::remove_file(&filler).expect("removed");
        wait_until("produce is taken again without a restart", || {
            let produced = cluster.wire(1).produce(
                (topic, 0),
                -1,
                Duration::from_secs(3),
                &batch(None, &["after"]),
            );
            match produced {
                Ok(produced) if produced.error == ErrorCode::None => {
                    after.push((produced.base_offset, "after".to_owned()));
                    true
                }
                _ => false,
            }
        });
    }
    let read = |cluster: &Cluster| {
        block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await })
    };
    let found = read(&cluster);
    assert_eq!(found[0], (0, "before".to_owned()));
    for record in &after {
        assert!(found.contains(record), "{record:?} was acknowledged");
    }
    assert!(found.iter().filter(|(_, value)| *value == big).count() >= acked);
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    cluster.wait_healthy();
    cluster.leader(topic, 0);
    assert_eq!(read(&cluster), found, "the same after kill -9");
    cluster.nodes[0].kill();
}
