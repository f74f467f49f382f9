//! Disks that lie and disks that are full.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

/// How the fault tests make a node's flushes fail: one owner of that library's layout.
#[path = "../jepsen/src/faults/shim.rs"]
#[allow(dead_code, reason = "one of its faults is enough here")]
mod shim;
mod support;

use std::collections::BTreeMap;
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

/// The files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The files of all partitions that are called so.
fn of_partitions(data_dir: &Path, is_wanted: fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = files(&data_dir.join("partitions"));
    found.retain(|path| is_wanted(&path.file_name().expect("a name").to_string_lossy()));
    found
}

/// The largest segment file of a topic's only partition on a node.
fn segment(data_dir: &Path) -> PathBuf {
    let segments = of_partitions(data_dir, |name| name.ends_with(".log"));
    let bytes = |path: &PathBuf| fs::metadata(path).expect("a segment").len();
    segments.into_iter().max_by_key(bytes).expect("a segment")
}

/// Flips one bit of the byte at a place.
fn flip_at(path: &Path, at: usize) {
    let bytes = fs::read(path).expect("a file");
    let file = fs::File::options().write(true).open(path);
    file.expect("writable")
        .write_at(&[bytes[at] ^ 1], at as u64)
        .expect("written");
}

/// Flips one bit of the record that carries `needle`.
fn flip(path: &Path, needle: &str) {
    let bytes = fs::read(path).expect("a segment");
    let at = bytes
        .windows(needle.len())
        .position(|window| window == needle.as_bytes())
        .expect("the record is in the segment");
    flip_at(path, at);
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
    let states = of_partitions(data_dir, |name| name == "state");
    let state = states.first().expect("a state file");
    let bytes = fs::read(state).expect("a state file");
    let length: [u8; 4] = bytes[12..16].try_into().expect("four bytes");
    flip_at(state, u32::from_le_bytes(length) as usize / 2);
}

/// The oldest turn of each shard's journal, behind which others follow: not a torn tail.
fn flip_the_journals(data_dir: &Path) {
    const PAGE_BYTES: usize = 4096;
    let number = |bytes: &[u8], at: usize| {
        let field = bytes[at..at + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(field)
    };
    let mut oldest: BTreeMap<PathBuf, (u64, PathBuf)> = BTreeMap::new();
    for path in files(&data_dir.join("journal")) {
        let bytes = fs::read(&path).expect("a journal file");
        // In use; and by its own number in order (docs/design/log-format.md, 11).
        if bytes.starts_with(b"CRDYJRNL") && bytes[12] == 1 {
            let turns = bytes.chunks(PAGE_BYTES).skip(1);
            let turns = turns.filter(|page| page.starts_with(b"TURN")).count();
            assert!(turns > 1, "{} has {turns} turns", path.display());
            let shard = path.parent().expect("a shard's directory").to_owned();
            let found = (number(&bytes, 24), path.clone());
            let kept = oldest.entry(shard).or_insert_with(|| found.clone());
            *kept = found.min(kept.clone());
        }
    }
    // A shard that holds nothing has not begun its own.
    assert!(!oldest.is_empty(), "no journal is in use");
    for (_, path) in oldest.values() {
        flip_at(path, PAGE_BYTES + 60);
    }
}

/// Each row of each index.
fn flip_the_indices(data_dir: &Path) {
    const ROW_BYTES: usize = 36;
    let mut rows = 0;
    for index in of_partitions(data_dir, |name| name.ends_with(".index")) {
        let bytes = fs::metadata(&index).expect("an index").len();
        for row in 0..usize::try_from(bytes).expect("small") / ROW_BYTES {
            flip_at(&index, row * ROW_BYTES + 10);
            rows += 1;
        }
    }
    assert!(rows > 2, "{rows} rows");
}

fn flip_the_snapshot(data_dir: &Path) {
    let snapshots = of_partitions(data_dir, |name| name == "snapshot");
    flip_in(snapshots.first().expect("a snapshot"));
}

/// Flips a bit in the middle of a file.
fn flip_in(path: &Path) {
    let bytes = fs::metadata(path).expect("a file").len();
    flip_at(path, usize::try_from(bytes.min(80)).expect("small") / 2);
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

/// A damage, and what it is done to.
struct Case {
    settings: &'static [&'static str],
    /// Settings of the topic. One with settings does not keep every record.
    configs: &'static [&'static str],
    stop: fn(&mut support::Node),
    damage: Damage,
    /// Whether it costs a replica its vote; else it goes on at once with what it has.
    costs_the_vote: bool,
}

/// Three nodes as they are set by default, one of them stopped in order.
const DAMAGED: Case = Case {
    settings: &[],
    configs: &[],
    stop: support::Node::terminate,
    damage: |_| {},
    costs_the_vote: true,
};

/// What a consumer reads; `None` if that took too long or was refused.
async fn read_soon(cluster: &Cluster, topic: &str) -> Option<Vec<(i64, String)>> {
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
    tokio::time::timeout(ANSWER, read).await.ok()??;
    Some(found)
}

fn check_damaged(case: Case) {
    let mut cluster = Cluster::start_with(3, case.settings);
    let topic = "flipped";
    cluster.create_topic(topic, 1, case.configs);
    let value = |n: i64| format!("record number {n:04} {}", "x".repeat(500));
    for n in 0..60 {
        cluster.produce(topic, &value(n));
    }
    let victim = cluster.leader(topic, 0) % 3 + 1;
    let data_dir = cluster.node(victim).data_dir.clone();
    let keeps_all = case.configs.is_empty();
    wait_until("the log begins later, where records expire", || {
        keeps_all || !of_partitions(&data_dir, |name| name == "snapshot").is_empty()
    });
    (case.stop)(cluster.node(victim));
    (case.damage)(&data_dir);
    let log_before = cluster.node(victim).log().len();
    cluster.node(victim).start();
    for n in 60..70 {
        cluster.produce(topic, &value(n));
    }
    let expected: Vec<(i64, String)> = (0..70).map(|n| (n, value(n))).collect();
    let check = |found: &[(i64, String)]| {
        let from = usize::try_from(found[0].0).expect("an offset");
        assert_eq!(
            found,
            &expected[from..],
            "a consumer sees what was written, or nothing"
        );
        assert_eq!(from == 0, keeps_all, "the first is at {from}");
    };
    // As leader it serves every record as it was written, whatever it takes to get there: either
    // the damage was met at the start and refetched, or the read meets it and another one leads.
    wait_until(
        "the node of the flipped bit leads and serves everything",
        || {
            cluster.wait_in_sync(topic, 0, 3);
            let place = format!("{topic}/0");
            let _retried = cluster.run(&["partition", "lead", &place, &victim.to_string()]);
            let leads = || {
                let found = cluster.partition(topic, 0);
                found.is_some_and(|found| found.leader == victim)
            };
            if !leads() {
                return false;
            }
            let Some(found) = block_on(read_soon(&cluster, topic)) else {
                return false;
            };
            check(&found);
            leads()
        },
    );
    if case.costs_the_vote {
        wait_refetched(&cluster, victim, log_before);
    } else {
        let log = cluster.at(victim).log();
        assert!(log[log_before..].contains("rebuilt from its segment"));
        assert!(!log[log_before..].contains("neither votes nor leads"));
    }
    // Not only in memory: the node's own files are whole again.
    cluster.node(victim).terminate();
    assert_sound(&data_dir);
    check(&block_on(async {
        read_all(&client(&cluster.bootstrap()).await, topic, 0).await
    }));
}

/// What the command says that looks at every file.
fn assert_sound(data_dir: &Path) {
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
}

#[test]
fn a_flipped_bit_after_kill_9_is_refetched() {
    let _alone = alone();
    // By reference: the journal does not hold the bytes a second time.
    check_damaged(Case {
        settings: &["--set", "storage.inline.bytes.max=1"],
        stop: support::Node::kill,
        damage: flip_a_record,
        ..DAMAGED
    });
}

#[test]
fn a_flipped_bit_after_a_clean_stop_is_refetched() {
    let _alone = alone();
    check_damaged(Case {
        damage: flip_a_record,
        ..DAMAGED
    });
}

#[test]
fn a_flipped_bit_beside_the_vote_is_refetched() {
    let _alone = alone();
    check_damaged(Case {
        damage: flip_the_vote,
        ..DAMAGED
    });
}

/// The shard's replicas, and the controller's, cannot know what they have promised.
#[test]
fn a_flipped_bit_in_the_journals_is_refetched() {
    let _alone = alone();
    check_damaged(Case {
        stop: support::Node::kill,
        damage: flip_the_journals,
        ..DAMAGED
    });
}

/// An index holds nothing that its segment does not.
#[test]
fn damaged_indices_are_rebuilt_and_cost_no_vote() {
    let _alone = alone();
    check_damaged(Case {
        damage: flip_the_indices,
        costs_the_vote: false,
        ..DAMAGED
    });
}

#[test]
fn a_flipped_bit_in_a_snapshot_is_refetched() {
    let _alone = alone();
    check_damaged(Case {
        settings: &["--set", "log.retention.check.interval.ms=200"],
        configs: &["segment.bytes=16384", "retention.bytes=16384"],
        damage: flip_the_snapshot,
        ..DAMAGED
    });
}

#[test]
fn a_replica_that_nothing_identifies_is_refetched() {
    let _alone = alone();
    check_damaged(Case {
        stop: support::Node::kill,
        damage: flip_the_registrations_and_the_vote,
        ..DAMAGED
    });
}

/// The same where one of the two is gone: it is not taken for a new replica.
#[test]
fn a_lost_registration_beside_a_damaged_vote_is_refetched() {
    let _alone = alone();
    let damage: Damage = |data_dir| {
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
    };
    check_damaged(Case {
        stop: support::Node::kill,
        damage,
        ..DAMAGED
    });
}

/// It may have voted for node 3 and forgotten it: nobody takes it back before node 3 has been asked. An
/// operator sees what is missing, and that it comes by itself.
#[test]
fn a_damaged_replica_is_shown_and_waits_for_the_voter_that_may_know_more() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic("shown", 1, &[]);
    cluster.produce("shown", "before");
    cluster.wait_in_sync("shown", 0, 3);
    cluster.lead("shown", 0, 1);
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
    cluster.produce("kept", "before");
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

/// With node 3 gone, nothing is decided without node 2.
fn check_its_vote_counts(cluster: &mut Cluster) {
    cluster.node(3).kill();
    // Another topic each time: one that was placed before anybody knew of the death waits for it.
    let mut attempts = 0;
    wait_until("two nodes decide", || {
        attempts += 1;
        let topic = format!("decided-{attempts}");
        let create = ["topic", "create", &topic, "-p", "1", "-r", "2"];
        cluster.run(&create).status.success()
    });
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
    check_its_vote_counts(&mut cluster);
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
    // It has the whole history again, as its own files say, and its vote counts.
    wait_until("node 2 has what it lost", || {
        cluster.nodes[1].partition("third", 0).is_some()
    });
    cluster.create_topic("fourth", 1, &[]);
    cluster.node(2).terminate();
    assert_sound(&data_dir);
    cluster.node(2).start();
    cluster.node(2).wait_ready();
    check_its_vote_counts(&mut cluster);
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

/// After it the page cache may claim to be clean while the disk is not: nothing is tried again.
#[test]
fn a_failed_flush_ends_the_replicas_of_its_disk_until_a_restart() {
    let _alone = alone();
    let mut cluster = Cluster::plan(3, &["--set", "storage.inline.bytes.max=1"]);
    let scratch = cluster.scratch().to_owned();
    let library = shim::build(&scratch).expect("a C compiler");
    let disk = shim::Control::make(scratch.join("faults")).expect("a file");
    cluster.nodes[0].variables = vec![
        ("LD_PRELOAD", library.into()),
        (shim::VARIABLE, disk.path().into()),
    ];
    for node in &mut cluster.nodes {
        node.start();
    }
    cluster.wait_healthy();
    let topic = "unflushed";
    cluster.create_topic(topic, 1, &[]);
    cluster.lead(topic, 0, 1);
    let mut acked = vec![(cluster.produce(topic, "before"), "before".to_owned())];

    disk.break_flushes().expect("written");
    acked.push((cluster.produce(topic, "after"), "after".to_owned()));
    assert!(disk.hits() > 0, "a flush failed");
    let leader = cluster.leader(topic, 0);
    assert_ne!(leader, 1, "a leader that cannot flush leads no more");
    wait_until("it says so", || {
        let failed = cluster.at(1).metric("corduroy_storage_failed");
        let health = cluster.at(1).admin_get("/health/cluster");
        let shown = health.is_some_and(|(status, body)| {
            status == 503 && body.contains("the disk failed") && body.contains("(unflushed/0)")
        });
        failed == Some(1.0) && shown
    });

    // The disk works again. That proves nothing: the node helps nobody to a majority.
    disk.mend_disk().expect("written");
    let follower = 5 - leader;
    cluster.node(leader).kill();
    let mut wire = cluster.wire(follower);
    let refused = wire.produce((topic, 0), -1, ANSWER, &batch(None, &["alone"]));
    let refused = refused.expect("answered").error;
    assert_ne!(refused, ErrorCode::None, "its vote or its copy counted");
    let failed = cluster.at(1).metric("corduroy_storage_failed");
    assert_eq!(failed, Some(1.0), "it does not recover within the process");

    // A restart accepts what is durable, and has a vote again.
    cluster.node(1).kill();
    cluster.node(1).start();
    acked.push((cluster.produce(topic, "restarted"), "restarted".to_owned()));
    cluster.node(leader).start();
    cluster.wait_in_sync(topic, 0, 3);
    cluster.lead(topic, 0, 1);
    let found = block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await });
    for record in &acked {
        assert!(found.contains(record), "{record:?} was acknowledged");
    }
}
