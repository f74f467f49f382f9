//! A change of the cluster reaches every node within 100 ms. On a simulated clock, which stands still
//! while anybody has something to do: what is measured are the waits that the nodes themselves make.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the network of this test is a table of pipes"
)]

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use corduroy::config::{Layers, NodeConfig};
use corduroy::node::{LocalNode, LocalServing};
use corduroy_env::{
    Env, Listener, Network, NetworkFuture, SimulatedListener, SimulatedStream, Simulation, Stream,
    WriteHalf,
};
use corduroy_protocol::messages::create_topics_request::CreatableTopic;
use corduroy_protocol::messages::metadata_request::MetadataRequestTopic;
use corduroy_protocol::messages::{
    CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest, TopicName,
};
use corduroy_protocol::{Request, Response, StrBytes, decode_response, encode_request};
use corduroy_storage::{Disk, SimDisk};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::Instant;

const NODES: u16 = 3;
const DATA_DIR: &str = "/data";
const PUSHED_MAX: Duration = Duration::from_millis(100);
/// Simulated time is free.
const PATIENCE: Duration = Duration::from_secs(120);

fn address(node: u16, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(node).expect("few")], port))
}

type Accepting = mpsc::UnboundedSender<(Stream, SocketAddr)>;

/// Who listens where.
#[derive(Clone, Default)]
struct Pipes(Arc<Mutex<HashMap<SocketAddr, Accepting>>>);

/// The pipes as one machine sees them.
struct Machine {
    pipes: Pipes,
    own: SocketAddr,
}

struct Pipe {
    bytes: DuplexStream,
    local: SocketAddr,
    peer: SocketAddr,
}

struct Ear {
    incoming: tokio::sync::Mutex<mpsc::UnboundedReceiver<(Stream, SocketAddr)>>,
    local: SocketAddr,
}

impl Network for Machine {
    fn listen(&self, addr: SocketAddr) -> NetworkFuture<'_, Listener> {
        let (sender, incoming) = mpsc::unbounded_channel();
        self.pipes
            .0
            .lock()
            .expect("one thread")
            .insert(addr, sender);
        let ear = Ear {
            incoming: tokio::sync::Mutex::new(incoming),
            local: addr,
        };
        Box::pin(async move { Ok(Listener::simulated(Box::new(ear))) })
    }

    fn connect(&self, addr: SocketAddr) -> NetworkFuture<'_, Stream> {
        let found = self.pipes.0.lock().expect("one thread").get(&addr).cloned();
        let own = self.own;
        Box::pin(async move {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let accepting = found.ok_or_else(refused)?;
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            let pipe =
                |bytes, local, peer| Stream::simulated(Box::new(Pipe { bytes, local, peer }));
            let sent = accepting.send((pipe(theirs, addr, own), own));
            sent.map_err(|_| refused())?;
            Ok(pipe(ours, own, addr))
        })
    }
}

impl SimulatedListener for Ear {
    fn accept(&self) -> NetworkFuture<'_, (Stream, SocketAddr)> {
        Box::pin(async move {
            let next = self.incoming.lock().await.recv().await;
            next.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }
}

impl SimulatedStream for Pipe {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_read(context, buffer)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.bytes).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_shutdown(context)
    }
}

fn config(node: u16) -> NodeConfig {
    let seeds: Vec<String> = (1..=NODES).map(|n| address(n, 33145).to_string()).collect();
    let flags = [
        ("node.id", node.to_string()),
        ("data.dir", DATA_DIR.to_owned()),
        ("listen", address(node, 9092).to_string()),
        ("rpc.listen", address(node, 33145).to_string()),
        ("seeds", seeds.join(",")),
        ("admin.listen", "off".to_owned()),
        ("shards", "2".to_owned()),
    ];
    let layers = Layers {
        flags: flags
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        ..Layers::default()
    };
    let mut config = NodeConfig::from_layers(&layers).expect("valid settings");
    config.journal_file_bytes = 64 << 10;
    config.journal_files_max = 6;
    config.reserve_bytes = 64 << 10;
    config.disk_low_bytes = 0;
    config.disk_critical_bytes = 0;
    config
}

/// Sends a request to a node and does not wait for what it says.
async fn ask(
    machine: &Machine,
    node: u16,
    version: i16,
    request: &Request,
) -> (WriteHalf, JoinHandle<()>) {
    let stream = machine.connect(address(node, 9092)).await;
    let (mut read, mut write) = stream.expect("it listens").into_split();
    let frame = encode_request(request.key(), version, 1, Some("test"), request);
    let frame = frame.expect("the request can be encoded");
    write.write_all(&frame).await.expect("sent");
    let reader = tokio::task::spawn_local(async move {
        // An answer that nobody reads would be one that nobody can write.
        let mut sink = Vec::new();
        let _ended = read.read_to_end(&mut sink).await;
    });
    (write, reader)
}

/// Sends a request to a node; what it says.
async fn call(machine: &Machine, node: u16, version: i16, request: &Request) -> Response {
    let stream = machine.connect(address(node, 9092)).await;
    let (mut read, mut write) = stream.expect("it listens").into_split();
    let frame = encode_request(request.key(), version, 1, Some("test"), request);
    let frame = frame.expect("the request can be encoded");
    write.write_all(&frame).await.expect("sent");
    let length = read.read_u32().await.expect("an answer");
    let mut answer = vec![0; length as usize];
    read.read_exact(&mut answer).await.expect("an answer");
    let (_, response) = decode_response(request.key(), version, answer.into()).expect("an answer");
    response
}

/// How many partitions of a topic have a leader in what a node says.
async fn led(machine: &Machine, node: u16, topic: &TopicName) -> usize {
    let topic = MetadataRequestTopic::default().with_name(Some(topic.clone()));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(false);
    let Response::Metadata(answer) = call(machine, node, 9, &Request::Metadata(request)).await
    else {
        panic!("not an answer to Metadata");
    };
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    partitions
        .filter(|found| found.error_code == 0 && found.leader_id.0 >= 0)
        .count()
}

/// Waits until a node knows that the topic is there, or is not; then until every node does. Returns
/// how long the others took.
async fn pushed(nodes: &[LocalNode], topic: &str, is_there: bool) -> Duration {
    let knows = |node: &LocalNode| {
        let image = node.image().expect("it runs");
        image.topics.contains_key(topic) == is_there
    };
    let deadline = Instant::now() + PATIENCE;
    let mut first = None;
    loop {
        if first.is_none() && nodes.iter().any(&knows) {
            first = Some(Instant::now());
        }
        if let Some(first) = first
            && nodes.iter().all(&knows)
        {
            return first.elapsed();
        }
        assert!(Instant::now() < deadline, "{topic}: it never came");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn boot(pipes: &Pipes) -> (Vec<LocalNode>, Vec<LocalServing>) {
    let mut nodes = Vec::new();
    let mut booting = Vec::new();
    for id in 1..=NODES {
        let env = Env::simulated(Simulation {
            seed: u64::from(id),
            unix_millis: 1_750_000_000_000,
            network: Box::new(Machine {
                pipes: pipes.clone(),
                own: address(id, 1),
            }),
        });
        let node = LocalNode::new();
        nodes.push(node.clone());
        let disk = Arc::new(SimDisk::new());
        let made = disk.create_dir_all(Path::new(DATA_DIR));
        made.expect("a directory on a fresh disk");
        booting.push(async move { node.boot(env, config(id), disk).await });
    }
    let booted = futures::future::join_all(booting).await;
    let serving = booted.into_iter().map(|node| node.expect("it boots"));
    (nodes, serving.collect())
}

/// Runs with three nodes that serve, on a paused clock.
fn with_cluster(run: impl AsyncFnOnce(&Machine, &[LocalNode])) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let pipes = Pipes::default();
        let (nodes, serving) = boot(&pipes).await;
        let machine = Machine {
            pipes,
            own: address(100, 1),
        };
        run(&machine, &nodes).await;
        drop(serving);
    });
}

#[test]
fn a_change_reaches_every_node_within_100_ms() {
    with_cluster(async |machine, nodes| {
        for round in 0..20u16 {
            let topic = format!("pushed-{round}");
            let name = TopicName(StrBytes::from_string(topic.clone()));
            // Asked of each in turn: only one of them leads the controller.
            let asked = round % NODES + 1;
            let create = CreatableTopic::default()
                .with_name(name.clone())
                .with_num_partitions(3)
                .with_replication_factor(3);
            let create = CreateTopicsRequest::default()
                .with_topics(vec![create])
                .with_timeout_ms(30_000);
            let open = ask(machine, asked, 5, &Request::CreateTopics(create)).await;
            let took = pushed(nodes, &topic, true).await;
            assert!(took <= PUSHED_MAX, "{topic} came after {took:?}");
            drop(open);
            // Idle for a while: what sleeps must be told as well.
            tokio::time::sleep(Duration::from_secs(u64::from(round))).await;
            let delete = DeleteTopicsRequest::default()
                .with_topic_names(vec![name])
                .with_timeout_ms(30_000);
            let open = ask(machine, asked, 3, &Request::DeleteTopics(delete)).await;
            let took = pushed(nodes, &topic, false).await;
            assert!(took <= PUSHED_MAX, "{topic} went after {took:?}");
            drop(open);
        }
    });
}

/// CreateTopics answers once leaders exist, and clients ask anybody at once.
#[test]
fn every_node_names_every_leader_once_create_topics_has_answered() {
    const PARTITIONS: usize = 12;
    with_cluster(async |machine, _| {
        for round in 0..6u16 {
            let name = TopicName(StrBytes::from_string(format!("led-{round}")));
            let asked = round % NODES + 1;
            let create = CreatableTopic::default()
                .with_name(name.clone())
                .with_num_partitions(PARTITIONS as i32)
                .with_replication_factor(3);
            let create = CreateTopicsRequest::default()
                .with_topics(vec![create])
                .with_timeout_ms(30_000);
            let create = Request::CreateTopics(create);
            let Response::CreateTopics(answer) = call(machine, asked, 5, &create).await else {
                panic!("not an answer to CreateTopics");
            };
            assert_eq!(answer.topics[0].error_code, 0, "{answer:?}");
            let answered = Instant::now();
            // Whom the client has asked, first: it need not wait at all.
            let own = led(machine, asked, &name).await;
            assert_eq!(own, PARTITIONS, "at node {asked}, which answered");
            for node in (1..=NODES).filter(|node| *node != asked) {
                while led(machine, node, &name).await < PARTITIONS {
                    let took = answered.elapsed();
                    assert!(
                        took <= PUSHED_MAX,
                        "node {node} does not know after {took:?}"
                    );
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            let took = answered.elapsed();
            assert!(took <= PUSHED_MAX, "{took:?} until everybody knew");
            tokio::time::sleep(Duration::from_secs(u64::from(round))).await;
        }
    });
}
