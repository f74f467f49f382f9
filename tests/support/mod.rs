//! Real processes for black-box tests: `corduroy start` on loopback, each with its own directory.
#![allow(dead_code, reason = "each test binary uses a part of this")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

pub mod group;
pub mod proxy;
pub mod traffic;
pub mod wire;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corduroy_protocol::ErrorCode;
use proxy::Proxy;
use wire::{PartitionMetadata, Wire, batch};

/// The binary under test; `CORDUROY_BINARY` names another build of it.
pub fn corduroy() -> PathBuf {
    match std::env::var_os("CORDUROY_BINARY") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_BIN_EXE_corduroy")),
    }
}

/// Rounds of the tests that repeat a fault; `CORDUROY_TEST_ROUNDS` asks for more.
pub fn rounds() -> u32 {
    std::env::var("CORDUROY_TEST_ROUNDS").map_or(10, |text| {
        text.parse().expect("CORDUROY_TEST_ROUNDS is a number")
    })
}

/// How long anything that must happen may take on a loaded machine before the test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long one node may take to answer a question before the next one is asked.
const ASK_WAIT: Duration = Duration::from_secs(2);

/// How long one record may take before it is sent again.
const PRODUCE_WAIT: Duration = Duration::from_secs(10);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Held by each test that starts a cluster: clusters of one test binary run one after another.
pub fn alone() -> MutexGuard<'static, ()> {
    // A test that failed before us left nothing behind that matters.
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Free loopback ports, all different.
pub fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"))
        .collect();
    held.iter()
        .map(|l| l.local_addr().expect("bound").port())
        .collect()
}

/// Polls `condition` until it holds; panics with `what` when patience ends.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "gave up waiting until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One node's place in a cluster, running or not.
pub struct Node {
    /// Its id.
    pub id: usize,
    /// Where clients reach it.
    pub kafka: SocketAddr,
    /// Where nodes reach it.
    pub rpc: SocketAddr,
    /// Where metrics and health are.
    pub admin: SocketAddr,
    /// Where it really listens for nodes, if something stands in between.
    rpc_behind: Option<SocketAddr>,
    /// Whether it names its id itself; else it is given one.
    pub claims_id: bool,
    /// Its directory.
    pub data_dir: PathBuf,
    /// Its shards; counts from the next start on.
    pub shards: u16,
    /// Environment variables that it is started with.
    pub variables: Vec<(&'static str, OsString)>,
    seeds: Vec<SocketAddr>,
    extra: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    stopped: bool,
}

impl Node {
    /// Starts the process; returns at once.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "node {} is running", self.id);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("a log file");
        let mut command = Command::new(corduroy());
        command
            .arg("start")
            .env_remove("CORDUROY_BINARY")
            .env_remove("CORDUROY_TEST_ROUNDS")
            .args(["--data-dir", &self.data_dir.to_string_lossy()])
            .args(["--listen", &self.kafka.to_string()])
            .args([
                "--rpc-listen",
                &self.rpc_behind.unwrap_or(self.rpc).to_string(),
            ])
            .args(["--admin-listen", &self.admin.to_string()])
            .args(["--shards", &self.shards.to_string()])
            .args(&self.extra)
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.claims_id {
            command.args(["--node-id", &self.id.to_string()]);
        }
        if self.rpc_behind.is_some() {
            command.args(["--set", &format!("rpc.advertised={}", self.rpc)]);
        }
        if !self.seeds.is_empty() {
            let seeds: Vec<String> = self.seeds.iter().map(ToString::to_string).collect();
            command.args(["--seeds", &seeds.join(",")]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the binary starts");
        self.child = Some(child);
        self.stopped = false;
    }

    /// Takes other addresses from the next start on.
    pub fn move_elsewhere(&mut self) {
        assert!(self.child.is_none(), "node {} is running", self.id);
        let addrs: Vec<SocketAddr> = free_ports(3)
            .into_iter()
            .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
            .collect();
        (self.kafka, self.rpc, self.admin) = (addrs[0], addrs[1], addrs[2]);
    }

    /// What this node says of a partition; `None` if it does not answer or knows no such topic.
    pub fn partition(&self, topic: &str, partition: usize) -> Option<PartitionMetadata> {
        let mut wire = Wire::try_connect(self.kafka, ASK_WAIT).ok()?;
        let (_, _, partitions) = wire.metadata(topic).ok()?;
        partitions.into_iter().nth(partition)
    }

    /// SIGSTOP; returns when nothing of the process runs any more. (The signal stops one thread,
    /// and that one the others, when it gets a CPU.)
    pub fn pause(&mut self) {
        self.signal("STOP");
        let tasks = PathBuf::from(format!("/proc/{}/task", self.pid()));
        wait_until(&format!("node {} stands still", self.id), || {
            let tasks = std::fs::read_dir(&tasks).expect("a process");
            tasks.flatten().all(|task| is_stopped(&task.path()))
        });
        self.stopped = true;
    }

    /// SIGCONT.
    pub fn resume(&mut self) {
        self.signal("CONT");
        self.stopped = false;
    }

    /// Waits until it answers clients.
    pub fn wait_ready(&self) {
        wait_until(&format!("node {} answers", self.id), || {
            Wire::try_connect(self.kafka, ASK_WAIT)
                .and_then(|mut wire| wire.metadata("any"))
                .is_ok()
        });
    }

    /// One number of its metrics page, without labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let mut stream = TcpStream::connect_timeout(&self.admin, ASK_WAIT).ok()?;
        stream.set_read_timeout(Some(ASK_WAIT)).ok()?;
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.admin
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        page.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        let id = self.child.as_ref().expect("running").id();
        i32::try_from(id).expect("a pid")
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Whether the process has ended by itself. [`Node::wait_ended`] says how.
    pub fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut().expect("running");
        child.try_wait().expect("a child").is_some()
    }

    /// Waits until the process ends by itself; its exit code.
    pub fn wait_ended(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("running");
        let mut ended = None;
        wait_until(&format!("node {} ends by itself", self.id), || {
            ended = child.try_wait().expect("a child");
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }

    /// One answer of its admin port: status and body.
    pub fn admin_get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.admin, ASK_WAIT).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.admin
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("running");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }

    /// SIGTERM, and waits for the end; panics unless it exits with 0.
    pub fn terminate(&mut self) {
        self.signal("TERM");
        let mut child = self.child.take().expect("running");
        let status = child.wait().expect("wait");
        assert!(
            status.success(),
            "node {} ended with {status} on SIGTERM",
            self.id
        );
    }

    /// Sends a signal by name (STOP, CONT, TERM).
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status()
            .expect("kill(1)");
        assert!(status.success());
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("a process's status");
        let line = status
            .lines()
            .find(|l| l.starts_with("VmRSS"))
            .expect("VmRSS");
        let kib: u64 = line
            .split_whitespace()
            .nth(1)
            .expect("a number")
            .parse()
            .expect("number");
        kib * 1024
    }
}

/// Whether a thread is stopped; one that has ended is as good.
fn is_stopped(task: &Path) -> bool {
    let Ok(stat) = std::fs::read_to_string(task.join("stat")) else {
        return true;
    };
    // The state is behind the name, which may hold anything.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    matches!(state, Some(Some('T' | 'Z' | 'X')))
}

/// Nodes that form one cluster. Whatever still runs is killed on drop.
pub struct Cluster {
    /// The nodes, by id from 1.
    pub nodes: Vec<Node>,
    /// Further processes on copies of data directories; no client is told of them.
    pub copies: Vec<Node>,
    root: tempfile::TempDir,
}

impl Cluster {
    /// Starts `count` nodes and waits until the cluster answers.
    pub fn start(count: usize) -> Cluster {
        Cluster::start_with(count, &[])
    }

    /// [`Cluster::start`] with further arguments for each node.
    pub fn start_with(count: usize, extra: &[&str]) -> Cluster {
        let mut cluster = Cluster::plan(count, extra);
        for node in &mut cluster.nodes {
            node.start();
        }
        cluster.wait_healthy();
        cluster
    }

    /// Plans a cluster without starting it.
    pub fn plan(count: usize, extra: &[&str]) -> Cluster {
        let root = tempfile::tempdir().expect("a directory");
        let ports = free_ports(count * 3);
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let seeds: Vec<SocketAddr> = if count == 1 {
            Vec::new()
        } else {
            (0..count).map(|i| local(ports[i * 3 + 1])).collect()
        };
        let nodes = (0..count)
            .map(|i| Node {
                id: i + 1,
                kafka: local(ports[i * 3]),
                rpc: local(ports[i * 3 + 1]),
                admin: local(ports[i * 3 + 2]),
                rpc_behind: None,
                claims_id: true,
                data_dir: root.path().join(format!("node-{}", i + 1)),
                shards: 2,
                variables: Vec::new(),
                seeds: seeds.clone(),
                extra: extra.iter().map(ToString::to_string).collect(),
                log: root.path().join(format!("node-{}.log", i + 1)),
                child: None,
                stopped: false,
            })
            .collect();
        Cluster {
            nodes,
            copies: Vec::new(),
            root,
        }
    }

    /// Plans a further node, which is not one of the founders; returns its id.
    pub fn add_node(&mut self) -> i32 {
        let ports = free_ports(3);
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let founder = self.nodes.first().expect("a cluster");
        let id = self.nodes.len() + 1;
        let node = Node {
            id,
            kafka: local(ports[0]),
            rpc: local(ports[1]),
            admin: local(ports[2]),
            rpc_behind: None,
            claims_id: true,
            data_dir: self.root.path().join(format!("node-{id}")),
            shards: 2,
            variables: Vec::new(),
            seeds: founder.seeds.clone(),
            extra: founder.extra.clone(),
            log: self.root.path().join(format!("node-{id}.log")),
            child: None,
            stopped: false,
        };
        self.nodes.push(node);
        i32::try_from(id).expect("few")
    }

    /// Puts a place between a node and the others, which can be cut: what they send to it. Before
    /// its start.
    pub fn put_behind(&mut self, id: i32) -> Proxy {
        let node = self.node(id);
        assert!(!node.is_running(), "node {id} is running");
        let target = SocketAddr::from(([127, 0, 0, 1], free_ports(1)[0]));
        node.rpc_behind = Some(target);
        Proxy::start(node.rpc, target)
    }

    /// Copies a node's data directory as it is now; the copy is a node of the same id at other
    /// addresses, not started. Returns its place in [`Cluster::copies`].
    pub fn copy_node(&mut self, id: i32) -> usize {
        let place = self.copies.len();
        let name = format!("node-{id}-copy-{place}");
        let data_dir = self.root.path().join(&name);
        let log = self.root.path().join(format!("{name}.log"));
        let original = self.node(id);
        let copied = Command::new("cp")
            .arg("-r")
            .args([&original.data_dir, &data_dir])
            .status();
        assert!(copied.expect("cp(1)").success(), "the directory is copied");
        let mut copy = Node {
            data_dir,
            log,
            variables: original.variables.clone(),
            seeds: original.seeds.clone(),
            extra: original.extra.clone(),
            child: None,
            stopped: false,
            ..*original
        };
        copy.move_elsewhere();
        self.copies.push(copy);
        place
    }

    /// Every node's Kafka address, comma separated.
    pub fn bootstrap(&self) -> String {
        let addrs: Vec<String> = self.nodes.iter().map(|n| n.kafka.to_string()).collect();
        addrs.join(",")
    }

    /// A directory for the test's own files.
    pub fn scratch(&self) -> &Path {
        self.root.path()
    }

    /// The node of an id.
    pub fn at(&self, id: i32) -> &Node {
        let index = usize::try_from(id - 1).expect("an id from 1");
        self.nodes.get(index).expect("a node of that id")
    }

    /// The node of an id, to do something to it.
    pub fn node(&mut self, id: i32) -> &mut Node {
        let index = usize::try_from(id - 1).expect("an id from 1");
        self.nodes.get_mut(index).expect("a node of that id")
    }

    /// Waits until every partition has a leader and the cluster answers.
    pub fn wait_healthy(&self) {
        let output = self.run(&["cluster", "health", "--wait", "60s"]);
        assert!(
            output.status.success(),
            "the cluster did not become healthy: {}{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.nodes
                .iter()
                .map(|n| tail(&n.log()))
                .collect::<Vec<_>>()
                .join("\n---\n")
        );
    }

    /// What the nodes that run say of a partition, the newest; `None` while none knows the topic.
    pub fn partition(&self, topic: &str, partition: usize) -> Option<PartitionMetadata> {
        self.nodes
            .iter()
            .filter(|node| node.is_running() && !node.stopped)
            .filter_map(|node| node.partition(topic, partition))
            .max_by_key(|found| (found.leader >= 0, found.epoch))
    }

    /// Waits until a running node leads a partition and says so itself; returns its id.
    pub fn leader(&self, topic: &str, partition: usize) -> i32 {
        let mut leader = -1;
        wait_until(&format!("{topic}/{partition} has a living leader"), || {
            let Some(found) = self.partition(topic, partition) else {
                return false;
            };
            let Ok(index) = usize::try_from(found.leader - 1) else {
                return false;
            };
            let node = &self.nodes[index];
            leader = found.leader;
            node.is_running()
                && !node.stopped
                && node
                    .partition(topic, partition)
                    .is_some_and(|own| own.leader == leader)
        });
        leader
    }

    /// Moves the leadership of a partition, and waits until the node leads and says so itself.
    pub fn lead(&self, topic: &str, partition: usize, node: i32) {
        let place = format!("{topic}/{partition}");
        wait_until(&format!("node {node} leads {place}"), || {
            let _retried = self.run(&["partition", "lead", &place, &node.to_string()]);
            self.leader(topic, partition) == node
        });
    }

    /// Sends one record to whoever leads partition 0, until it is taken by all who must; its offset.
    pub fn produce(&self, topic: &str, value: &str) -> i64 {
        let mut offset = -1;
        wait_until(&format!("a record of {topic} is committed"), || {
            let leader = self.leader(topic, 0);
            let sent = batch(None, &[value]);
            // The leader may die in between.
            let answer = Wire::try_connect(self.at(leader).kafka, PRODUCE_WAIT)
                .and_then(|mut wire| wire.produce((topic, 0), -1, PRODUCE_WAIT, &sent));
            answer.is_ok_and(|produced| {
                offset = produced.base_offset;
                produced.error == ErrorCode::None
            })
        });
        offset
    }

    /// Waits until `count` replicas of a partition are in sync.
    pub fn wait_in_sync(&self, topic: &str, partition: usize, count: usize) {
        wait_until(
            &format!("{count} replicas of {topic}/{partition} are in sync"),
            || {
                self.partition(topic, partition)
                    .is_some_and(|found| found.leader >= 0 && found.isr.len() == count)
            },
        );
    }

    /// A raw connection to a node.
    pub fn wire(&self, id: i32) -> Wire {
        Wire::connect(self.at(id).kafka)
    }

    /// Sets cluster settings, as `(key, value)`.
    pub fn configure(&self, settings: &[(&str, &str)]) {
        for (key, value) in settings {
            // A node that is only just starting closes its connections.
            wait_until(&format!("{key}={value} is set"), || {
                let node = self.nodes.first().expect("a node");
                let wire = Wire::try_connect(node.kafka, Duration::from_secs(5));
                let set = wire.and_then(|mut wire| wire.set_cluster_config(key, value));
                matches!(set, Ok(ErrorCode::None))
            });
        }
    }

    /// Creates a topic and waits until all its replicas are in sync.
    pub fn create_topic(&self, topic: &str, partitions: usize, configs: &[&str]) {
        let count = partitions.to_string();
        let replicas = self.nodes.len().min(3);
        let replication = replicas.to_string();
        let mut args = vec!["topic", "create", topic, "-p", &count, "-r", &replication];
        for config in configs {
            args.extend(["-c", config]);
        }
        self.must(&args);
        for partition in 0..partitions {
            self.wait_in_sync(topic, partition, replicas);
        }
    }

    /// Runs `corduroy ARGS --brokers …` to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.run_with_input(args, b"")
    }

    /// [`Cluster::run`] with something on standard input.
    pub fn run_with_input(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(corduroy())
            .args(args)
            .args(["--brokers", &self.bootstrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_vec();
        let feeder = std::thread::spawn(move || {
            // A command that reads nothing closes the pipe: its own business.
            let _closed = stdin.write_all(&input);
        });
        let output = child.wait_with_output().expect("it ends");
        feeder.join().expect("the feeder ends");
        output
    }

    /// Runs a command that must succeed; returns what it printed.
    pub fn must(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(
            output.status.success(),
            "corduroy {} failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failing = std::thread::panicking();
        for node in self.nodes.iter_mut().chain(&mut self.copies) {
            if let Some(mut child) = node.child.take() {
                // Already ended is fine: that is what we want.
                let _ended = child.kill();
                let _reaped = child.wait();
            }
            if failing {
                eprintln!("--- node {}:\n{}", node.id, tail(&node.log()));
            }
        }
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// One request on a raw connection: a frame out, a frame in (without its length).
pub fn round_trip(stream: &mut TcpStream, frame: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = u32::try_from(frame.len()).expect("small");
    stream.write_all(&length.to_be_bytes())?;
    stream.write_all(frame)?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// ApiVersions version 0: the smallest request there is.
pub fn api_versions_request(correlation_id: i32) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&18i16.to_be_bytes());
    frame.extend_from_slice(&0i16.to_be_bytes());
    frame.extend_from_slice(&correlation_id.to_be_bytes());
    frame.extend_from_slice(&(-1i16).to_be_bytes());
    frame
}
