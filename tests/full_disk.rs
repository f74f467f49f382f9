//! Disks that are full.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use support::traffic::{block_on, client, read_all};
use support::wire::{batch, values};
use support::{Cluster, alone, wait_until};

const ANSWER: Duration = Duration::from_secs(10);

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

/// A cluster whose last node has a disk of 64 MiB.
struct SmallDisk {
    // Goes before the cluster, whose directory it is in.
    _tmpfs: Tmpfs,
    cluster: Cluster,
    data_dir: PathBuf,
}

impl SmallDisk {
    /// Starts `nodes` nodes; `None` without the right to mount a disk.
    fn start(nodes: usize, extra: &[&str]) -> Option<SmallDisk> {
        let mut cluster = Cluster::plan(nodes, &[&SMALL_DISK, extra].concat());
        let data_dir = cluster.nodes[nodes - 1].data_dir.clone();
        let Some(tmpfs) = Tmpfs::mount(&data_dir, 64 << 20) else {
            eprintln!("skipped: mounting a tmpfs needs root");
            return None;
        };
        for node in &mut cluster.nodes {
            node.start();
        }
        cluster.wait_healthy();
        Some(SmallDisk {
            _tmpfs: tmpfs,
            cluster,
            data_dir,
        })
    }

    fn filler(&self) -> PathBuf {
        self.data_dir.join("somebody-elses-file")
    }

    /// Somebody else takes the disk until so many bytes are left.
    fn fill(&self, left: u64) {
        let output = Command::new("df")
            .args(["--output=avail", "-B1"])
            .arg(&self.data_dir)
            .output();
        let text = String::from_utf8(output.expect("df").stdout).expect("UTF-8");
        let free = text.lines().nth(1).expect("a line").trim().parse::<u64>();
        let bytes = free.expect("a number").saturating_sub(left);
        let bytes = usize::try_from(bytes).expect("small");
        fs::write(self.filler(), vec![1u8; bytes]).expect("it fits");
    }

    /// And gives it back.
    fn make_room(&self) {
        fs::remove_file(self.filler()).expect("removed");
    }

    /// Whether the node with the small disk says that it is full.
    fn is_full(&self) -> bool {
        let node = self.cluster.nodes.last().expect("a node");
        node.metric("corduroy_storage_disk_full") == Some(1.0)
    }

    fn wait_roomy(&self) {
        let node = self.cluster.nodes.last().expect("a node");
        wait_until("it knows that it has room", || {
            node.metric("corduroy_storage_disk_full") == Some(0.0)
        });
    }
}

#[test]
fn a_full_disk_of_one_follower_stops_nobody_else() {
    let _alone = alone();
    let Some(mut small) = SmallDisk::start(3, &["--set", "replica.lag.time.max.ms=1000"]) else {
        return;
    };
    let cluster = &small.cluster;
    let topic = "one-full";
    cluster.create_topic(topic, 1, &["min.insync.replicas=2"]);
    cluster.lead(topic, 0, 1);
    cluster.produce(topic, "before");

    small.fill(64 << 10);
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

    small.make_room();
    cluster.wait_in_sync(topic, 0, 3);
    // What it missed is there: it leads, and reads all of it back.
    cluster.lead(topic, 0, 3);
    let found = block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await });
    assert_eq!(found[0], (0, "before".to_owned()));
    assert_eq!(found[1..], acked);
    small.cluster.node(3).kill();
}

/// Others have room: they lead, and the producer goes on after a refusal or two.
#[test]
fn a_leader_with_a_full_disk_hands_over_to_a_replica_with_room() {
    let _alone = alone();
    let Some(mut small) = SmallDisk::start(3, &[]) else {
        return;
    };
    let cluster = &small.cluster;
    let topic = "handed-over";
    cluster.create_topic(topic, 4, &["min.insync.replicas=2"]);
    for partition in 0..4 {
        cluster.lead(topic, partition, 3);
    }
    cluster.produce(topic, "before");
    // Nearly full: its own journal and its votes still have their reserve.
    small.fill(3 << 20);
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
    small.make_room();
    for partition in 0..4 {
        cluster.wait_in_sync(topic, partition, 3);
    }
    small.wait_roomy();
    for partition in 0..4 {
        cluster.lead(topic, partition, 3);
    }
    let found = block_on(async { read_all(&client(&cluster.bootstrap()).await, topic, 0).await });
    assert_eq!(found[0], (0, "before".to_owned()));
    assert!(found[1..].iter().any(|(_, value)| value == "after"));
    small.cluster.node(3).kill();
}

#[test]
fn a_full_disk_refuses_produce_and_recovers_without_a_restart() {
    let _alone = alone();
    let Some(mut small) = SmallDisk::start(1, &[]) else {
        return;
    };
    let cluster = &small.cluster;
    let topic = "full";
    cluster.create_topic(topic, 1, &[]);
    cluster.produce(topic, "before");

    let big = "b".repeat(60_000);
    let (mut acked, mut after) = (0, Vec::new());
    // First nearly full: every write still fits, and none comes to tell when there is room again.
    // Then full: a write meets the end of the disk.
    for left in [2 << 20, 64 << 10] {
        small.fill(left);
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

        small.make_room();
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
    let found = read(cluster);
    assert_eq!(found[0], (0, "before".to_owned()));
    for record in &after {
        assert!(found.contains(record), "{record:?} was acknowledged");
    }
    assert!(found.iter().filter(|(_, value)| *value == big).count() >= acked);
    let cluster = &mut small.cluster;
    cluster.node(1).kill();
    cluster.node(1).start();
    cluster.wait_healthy();
    cluster.leader(topic, 0);
    assert_eq!(read(cluster), found, "the same after kill -9");
    cluster.node(1).kill();
}

/// Votes and metadata have the reserve: the other two cannot elect, nor decide, without the full node.
#[test]
fn a_node_with_a_full_disk_votes_and_takes_metadata() {
    let _alone = alone();
    let Some(mut small) = SmallDisk::start(3, &[]) else {
        return;
    };
    let topic = "voted";
    small.cluster.create_topic(topic, 1, &[]);
    small.cluster.lead(topic, 0, 1);
    small.fill(0);
    // It looks when it writes, and the first write gives the reserve up.
    wait_until("node 3 says that it is full", || {
        small.cluster.produce(topic, "before");
        small.is_full()
    });
    let before = small.cluster.partition(topic, 0).expect("known");

    small.cluster.node(1).kill();
    let cluster = &small.cluster;
    // Whoever is elected: node 3 has no room for what clients send, node 2 has.
    wait_until("node 2 leads", || cluster.leader(topic, 0) == 2);
    let found = cluster.partition(topic, 0).expect("known");
    assert!(found.epoch > before.epoch, "with node 3's vote: {found:?}");
    let seen = cluster.wire(2).fetch(topic, 0, 0, ANSWER);
    let seen = seen.expect("answered");
    let first = values(&seen).into_iter().next();
    assert_eq!(first, Some((0, "before".to_owned())), "reads are served");
    cluster.must(&["topic", "create", "decided", "--assign", "2"]);
    wait_until("the full node hears of it", || {
        cluster.at(3).partition("decided", 0).is_some()
    });
    assert!(small.is_full(), "all of it on a full disk");

    small.make_room();
    small.wait_roomy();
    small.cluster.node(1).start();
    small.cluster.wait_in_sync(topic, 0, 3);
    small.cluster.lead(topic, 0, 3);
    small.cluster.produce(topic, "after");
    small.cluster.node(3).kill();
}
