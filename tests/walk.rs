//! The walk of a record (ARCHITECTURE.md, "A produce request walks"), seen from the lines that
//! each room leaves at trace level: the rooms in order, one thread hop each way and none where the
//! connection and the partition share a shard, one flush turn, a majority on disk before the
//! commit.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real nodes with real time"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, Once, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use corduroy::config::{Layers, NodeConfig};
use corduroy::node::{self, NodeHandle};
use corduroy_protocol::ErrorCode;
use support::wire::{Wire, batch, values};
use support::{alone, corduroy, free_ports, wait_until};
use tracing::field::{Field, Visit};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

const TARGET: &str = "corduroy::walk";
const TOPIC: &str = "walks";
const WAIT: Duration = Duration::from_secs(20);
const PRODUCE: &str = "0";
const FETCH: &str = "1";

/// One line: who said it, where, and what.
#[derive(Clone, Debug)]
struct Line {
    thread: ThreadId,
    room: String,
    fields: BTreeMap<String, String>,
}

impl Line {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn is(&self, room: &str) -> bool {
        self.room == room
    }
}

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());
static START: Once = Once::new();

struct Collector;

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: tracing::Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let line = Line {
            thread: std::thread::current().id(),
            room: fields.0.remove("room").unwrap_or_default(),
            fields: fields.0,
        };
        lock().push(line);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Vec<Line>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen() {
    START.call_once(|| {
        let only = Targets::new().with_target(TARGET, LevelFilter::TRACE);
        tracing_subscriber::registry()
            .with(Collector.with_filter(only))
            .init();
    });
}

/// What is said while `act` runs and until `enough` of it is there.
fn lines_of(act: impl FnOnce(), enough: impl Fn(&[Line]) -> bool) -> Vec<Line> {
    lock().clear();
    act();
    // A client has its answer a moment before the node has said so.
    wait_until("every room has said its line", || enough(&lock()));
    lock().clone()
}

/// The reply to the request that `lines` show in room 3, not to an earlier one.
fn reply<'a>(lines: &'a [Line], api: &str) -> Option<&'a Line> {
    let third = lines.iter().position(|line| line.is("3"))?;
    lines[third..].iter().find(|line| {
        line.is("reply") && line.field("api_key") == api && line.thread == lines[third].thread
    })
}

fn config(dir: &Path, flags: &[(&str, String)]) -> NodeConfig {
    let own = [
        ("data.dir", dir.to_string_lossy().into_owned()),
        ("admin.listen", "off".to_owned()),
    ];
    let layers = Layers {
        flags: own
            .iter()
            .chain(flags)
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
        ..Layers::default()
    };
    NodeConfig::from_layers(&layers).expect("valid settings")
}

/// Makes the topic, waits until each partition has a leader, and has each of them take a first
/// record. Returns the leaders.
fn prepare(brokers: &[SocketAddr], partitions: i32) -> Vec<usize> {
    let made = Command::new(corduroy())
        .args([
            "topic",
            "create",
            TOPIC,
            "--brokers",
            &brokers[0].to_string(),
        ])
        .args(["--partitions", &partitions.to_string()])
        .output()
        .expect("the binary starts");
    assert!(made.status.success(), "{made:?}");
    let mut wire = Wire::connect(brokers[0]);
    let mut leaders = Vec::new();
    wait_until("the topic has leaders", || {
        let Ok((_, ErrorCode::None, found)) = wire.metadata(TOPIC) else {
            return false;
        };
        leaders = found
            .iter()
            .take(partitions as usize)
            .map(|p| p.leader)
            .collect();
        leaders.len() == partitions as usize && leaders.iter().all(|leader| *leader > 0)
    });
    let leaders: Vec<usize> = leaders.iter().map(|leader| *leader as usize - 1).collect();
    for (partition, leader) in (0..).zip(&leaders) {
        let mut wire = Wire::connect(brokers[*leader]);
        wait_until("the leader takes a record", || {
            wire.produce((TOPIC, partition), -1, WAIT, &batch(None, &["first"]))
                .is_ok_and(|produced| produced.error == ErrorCode::None)
        });
    }
    leaders
}

/// The lines of one request on its connection's thread, from the last frame before `room` 3.
struct Walk<'a> {
    lines: &'a [Line],
    group: String,
    connection: ThreadId,
    /// Lines of the walk, in order.
    rooms: Vec<&'a Line>,
}

impl<'a> Walk<'a> {
    /// Rooms 1 to 3, and the reply; what lies between is the caller's.
    fn of(lines: &'a [Line], partition: i32, api: &str) -> (Walk<'a>, &'a Line) {
        let third = lines
            .iter()
            .position(|line| line.is("3") && line.field("partition") == partition.to_string())
            .expect("room 3");
        let connection = lines[third].thread;
        let before = |room: &str| {
            lines[..third]
                .iter()
                .rfind(|line| line.is(room) && line.thread == connection)
                .unwrap_or_else(|| panic!("no room {room} in {lines:#?}"))
        };
        let rooms = vec![before("1"), before("2"), &lines[third]];
        assert_eq!(rooms[1].field("api_key"), api);
        assert_eq!(lines[third].field("topic"), TOPIC);
        let reply = reply(lines, api).expect("a reply");
        let walk = Walk {
            lines,
            group: lines[third].field("group").to_owned(),
            connection,
            rooms,
        };
        (walk, reply)
    }

    /// Adds every line of `rooms` about the group (and, where a line names it, the replica).
    fn add(&mut self, rooms: &[&str], replica: Option<&str>) {
        for line in self.lines {
            let named = line.field("replica");
            let ours = replica.is_none_or(|replica| named.is_empty() || named == replica);
            let wanted = rooms.iter().any(|room| line.is(room));
            if wanted && ours && line.field("group") == self.group && !line.is("3") {
                self.rooms.push(line);
            }
        }
    }

    fn names(&self) -> Vec<&str> {
        self.rooms.iter().map(|line| line.room.as_str()).collect()
    }

    /// How often the walk goes from one thread to another.
    fn hops(&self) -> usize {
        let pairs = self.rooms.iter().zip(self.rooms.iter().skip(1));
        pairs.filter(|(a, b)| a.thread != b.thread).count()
    }
}

/// The one turn that took the group's entry on the disk below `dir`: written once, then one flush
/// on the thread that wrote it, then the callback. Returns where the flush is in `lines`.
fn check_turn(lines: &[Line], group: &str, dir: &Path) {
    let dir = dir.to_string_lossy();
    let written: Vec<usize> = (0..lines.len())
        .filter(|at| {
            let line = &lines[*at];
            line.is("8")
                && line.field("group") == group
                && line.field("file").starts_with(dir.as_ref())
        })
        .collect();
    assert_eq!(written.len(), 1, "one turn takes the entry: {lines:#?}");
    let thread = lines[written[0]].thread;
    let flushed = lines[written[0]..]
        .iter()
        .find(|line| line.is("flush") && line.thread == thread)
        .expect("the turn is flushed");
    assert_eq!(flushed.field("syncs"), "1", "one sync makes it durable");
}

#[test]
fn a_record_walks_through_eight_rooms_with_one_hop_each_way() {
    let _alone = alone();
    listen();
    let root = tempfile::tempdir().expect("a directory");
    let any = "127.0.0.1:0".to_owned();
    let flags = [
        ("listen", any.clone()),
        ("rpc.listen", any),
        ("shards", "2".to_owned()),
    ];
    let node = node::start(config(root.path(), &flags)).expect("it starts");
    prepare(&[node.kafka_addr()], 2);
    // Connections go to the shards in turn, and so do partitions: two of each meet in all ways.
    let mut wires = [
        Wire::connect(node.kafka_addr()),
        Wire::connect(node.kafka_addr()),
    ];
    let mut hops = Vec::new();
    for wire in &mut wires {
        for partition in 0..2 {
            hops.push(check_produce_alone(wire, partition, root.path()));
            let fetch_hops = check_fetch(wire, partition);
            assert_eq!(
                hops.last(),
                Some(&fetch_hops),
                "a fetch hops as a produce does"
            );
        }
    }
    hops.sort_unstable();
    assert_eq!(
        hops,
        [0, 0, 2, 2],
        "one hop to the owner and one back, or none"
    );
    node.stop();
}

fn check_produce_alone(wire: &mut Wire, partition: i32, dir: &Path) -> usize {
    let lines = lines_of(
        || {
            let produced = wire
                .produce((TOPIC, partition), -1, WAIT, &batch(None, &["walks"]))
                .expect("answered");
            assert_eq!(produced.error, ErrorCode::None);
        },
        |lines| reply(lines, PRODUCE).is_some(),
    );
    let (mut walk, reply) = Walk::of(&lines, partition, PRODUCE);
    walk.add(
        &[
            "4",
            "5",
            "6",
            "7",
            "durable",
            "committed",
            "applied",
            "ticket",
        ],
        None,
    );
    walk.rooms.push(reply);
    assert_eq!(
        walk.names(),
        [
            "1",
            "2",
            "3",
            "4",
            "5",
            "6",
            "7",
            "durable",
            "committed",
            "applied",
            "ticket",
            "reply"
        ],
        "{lines:#?}"
    );
    assert_eq!(reply.thread, walk.connection);
    assert_eq!(walk.rooms[0].field("node"), "1");
    assert_eq!(
        walk.rooms[3].field("partition"),
        format!("{TOPIC}/{partition}")
    );
    // Between rooms 7 and "durable" lies the disk: on its own thread, or here where it is quick.
    check_turn(&lines, &walk.group, dir);
    let shards: BTreeSet<String> = walk.rooms[..4]
        .iter()
        .map(|line| format!("{:?}", line.thread))
        .collect();
    let crosses = walk.rooms[0].field("shard") != walk.rooms[2].field("owner");
    assert_eq!(shards.len(), 1 + usize::from(crosses));
    walk.hops()
}

fn check_fetch(wire: &mut Wire, partition: i32) -> usize {
    let lines = lines_of(
        || {
            let fetched = wire.fetch(TOPIC, partition, 0, WAIT).expect("answered");
            let texts: Vec<String> = values(&fetched).into_iter().map(|(_, v)| v).collect();
            assert_eq!(texts[..2], ["first", "walks"]);
        },
        |lines| reply(lines, FETCH).is_some(),
    );
    let (mut walk, reply) = Walk::of(&lines, partition, FETCH);
    walk.add(&["4", "5"], None);
    let laid_out = lines.iter().find(|line| line.is("6"));
    walk.rooms.extend(laid_out);
    walk.rooms.push(reply);
    assert_eq!(
        walk.names(),
        ["1", "2", "3", "4", "5", "6", "reply"],
        "{lines:#?}"
    );
    assert_eq!(reply.field("writes"), "1", "one vectored write");
    let pieces: usize = reply.field("pieces").parse().expect("a number");
    let batches: usize = walk.rooms[4].field("batches").parse().expect("a number");
    assert!(
        pieces > batches,
        "batches go out as they are, beside the header"
    );
    assert_eq!(reply.thread, walk.connection);
    walk.hops()
}

#[test]
fn a_majority_has_the_record_on_disk_before_it_is_committed() {
    let _alone = alone();
    listen();
    let root = tempfile::tempdir().expect("a directory");
    let nodes = start_three(root.path());
    let brokers: Vec<SocketAddr> = nodes.iter().map(NodeHandle::kafka_addr).collect();
    lock().clear();
    let leader = prepare(&brokers, 1)[0];
    wait_until("every replica has the first record", || {
        durable(&lock()).len() == 3
    });
    let mut wire = Wire::connect(brokers[leader]);
    let all_durable = |lines: &[Line]| reply(lines, PRODUCE).is_some() && durable(lines).len() == 3;
    let lines = lines_of(
        || {
            let produced = wire
                .produce((TOPIC, 0), -1, WAIT, &batch(None, &["walks"]))
                .expect("answered");
            assert_eq!(produced.error, ErrorCode::None);
        },
        all_durable,
    );
    let (mut walk, reply) = Walk::of(&lines, 0, PRODUCE);
    let group = walk.group.clone();
    let door = lines.iter().find(|line| line.is("5")).expect("room 5");
    let own = door.field("replica");
    walk.add(
        &["4", "5", "6", "7", "committed", "applied", "ticket"],
        Some(own),
    );
    walk.rooms.push(reply);
    assert_eq!(
        walk.names(),
        [
            "1",
            "2",
            "3",
            "4",
            "5",
            "6",
            "7",
            "committed",
            "applied",
            "ticket",
            "reply"
        ],
        "{lines:#?}"
    );
    assert_eq!(
        walk.hops(),
        0,
        "one shard each: the leader's thread does it all"
    );
    for node in &nodes {
        check_turn(&lines, &group, node.data_dir());
    }
    let committed = lines
        .iter()
        .position(|line| line.is("committed") && line.field("replica") == own)
        .expect("committed");
    let copies = durable(&lines[..committed]);
    assert!(
        copies.len() >= 2,
        "committed with {copies:?} on disk: {lines:#?}"
    );
    let followers = durable(&lines)
        .into_iter()
        .filter(|replica| *replica != own);
    for replica in followers {
        let rooms: Vec<&str> = lines
            .iter()
            .filter(|line| line.field("replica") == replica && line.field("group") == group)
            .skip_while(|line| !line.is("6"))
            .map(|line| line.room.as_str())
            .filter(|room| *room != "committed")
            .collect();
        assert_eq!(rooms, ["6", "7", "durable"], "a follower's rooms");
    }
    for node in nodes {
        node.kill();
    }
}

/// The replicas on whose disks the entry is that went through the door.
fn durable(lines: &[Line]) -> BTreeSet<&str> {
    let Some(third) = lines.iter().find(|line| line.is("3")) else {
        return BTreeSet::new();
    };
    let group = third.field("group");
    let door = lines
        .iter()
        .position(|line| line.is("5") && line.field("group") == group);
    let Some(entry) = door.and_then(|at| lines[at..].iter().find(|line| line.is("6"))) else {
        return BTreeSet::new();
    };
    lines
        .iter()
        .filter(|line| line.is("durable"))
        .filter(|line| {
            ["group", "index"]
                .iter()
                .all(|f| line.field(f) == entry.field(f))
        })
        .map(|line| line.field("replica"))
        .collect()
}

/// Nodes 1 to 3, one shard each, formed.
fn start_three(root: &Path) -> Vec<NodeHandle> {
    let ports = free_ports(6);
    let local = |port: u16| format!("127.0.0.1:{port}");
    let seeds: Vec<String> = ports[..3].iter().map(|port| local(*port)).collect();
    let starts: Vec<_> = (0..3)
        .map(|index| {
            let flags = [
                ("node.id", (index + 1).to_string()),
                ("rpc.listen", seeds[index].clone()),
                ("listen", local(ports[3 + index])),
                ("seeds", seeds.join(",")),
                ("shards", "1".to_owned()),
            ];
            let config = config(&root.join(format!("node-{}", index + 1)), &flags);
            std::thread::spawn(move || node::start(config).expect("it starts"))
        })
        .collect();
    starts
        .into_iter()
        .map(|start| start.join().expect("no panic"))
        .collect()
}
