//! The nodes of a run, and what the harness does to them and asks them.

pub mod freezer;
pub mod http;
pub mod image;
mod lives;
pub mod members;
pub mod node;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use corduroy_env::Env;
use serde_json::Value;

use crate::clean::{Made, RunFile};
use crate::faults::shim;
use crate::topology::Topology;
use image::Image;
use node::{Node, NodeSetup};

/// How long a leadership transfer may take to be answered.
const LEAD_WAIT_MAX: Duration = Duration::from_secs(10);
/// SIGTERM's number, as an exit status names it.
const SIGTERM: i32 = 15;
/// How often a state that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What a cluster needs of the machine.
pub struct ClusterSetup {
    /// The program.
    pub binary: PathBuf,
    /// Nodes that form the cluster. The other places of the network are free for nodes that join.
    pub founders: u8,
    /// Where logs and data go.
    pub dir: PathBuf,
    /// Where each node's disk image goes; `None`: no disks of their own.
    pub images: Option<PathBuf>,
    /// Whether each node gets a control group.
    pub freezer: bool,
    /// The library for faults inside the process.
    pub shim: Option<PathBuf>,
    /// Further arguments of `corduroy start`.
    pub extra: Vec<String>,
    /// Further variables of the nodes' environment.
    pub environment: Vec<(String, String)>,
}

/// What nodes say of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionState {
    /// Its leader, if it has one.
    pub leader: Option<u32>,
    /// That leader's epoch.
    pub leader_epoch: i64,
    /// Nodes with a replica.
    pub replicas: Vec<u32>,
    /// Those that are in sync.
    pub in_sync: Vec<u32>,
    /// Of those, nodes whose own replica says that it is damaged.
    pub damaged: Vec<u32>,
}

/// The nodes of a run.
pub struct Cluster {
    /// The network.
    pub topology: Topology,
    /// What was made on the machine.
    pub run_file: RunFile,
    /// The members, and those on their way in or out.
    nodes: Vec<Node>,
    /// Machines on which nobody lives.
    spares: Vec<Node>,
    setup: NodeSetup,
    /// Where logs go.
    dir: PathBuf,
    /// The id of the next node that joins: none is used twice.
    next_id: u32,
    env: Env,
    crashes: Vec<String>,
}

impl Cluster {
    /// Makes directories, disks and switches; starts nothing. If that fails, what was made by then is
    /// gone again.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn prepare(
        env: &Env,
        topology: Topology,
        mut run_file: RunFile,
        setup: ClusterSetup,
    ) -> anyhow::Result<Cluster> {
        match Cluster::make_nodes(&topology, &mut run_file, &setup) {
            Ok(nodes) => Ok(Cluster::of(env, topology, run_file, setup, nodes)),
            Err(error) => {
                drop(topology);
                run_file
                    .remove_all(env)
                    .await
                    .with_context(|| format!("after: {error:#}"))?;
                Err(error)
            }
        }
    }

    fn make_nodes(
        topology: &Topology,
        run_file: &mut RunFile,
        setup: &ClusterSetup,
    ) -> anyhow::Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for place in topology.places.clone() {
            let id = place.host.number();
            let home = setup.dir.join(format!("node-{id}"));
            std::fs::create_dir_all(&home)?;
            let log = members::log_of(&setup.dir, u32::from(id));
            let mut node = Node::new(place, home, log);
            if let Some(images) = &setup.images {
                let image = images.join(format!("{}-n{id}.img", run_file.prefix()));
                let disk = node.home().join("disk");
                node.image = Some(Image::make(image, disk.clone(), run_file)?);
                node.data_dir = disk.join("data");
            }
            if setup.shim.is_some() {
                node.control = Some(shim::Control::make(node.home().join("faults"))?);
            }
            if setup.freezer {
                let name = format!("{}-n{id}", run_file.prefix());
                node.cgroup = freezer::place(&name);
                if let Some(path) = &node.cgroup {
                    run_file.note(Made::Cgroup { path: path.clone() })?;
                }
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    fn of(
        env: &Env,
        topology: Topology,
        run_file: RunFile,
        setup: ClusterSetup,
        mut nodes: Vec<Node>,
    ) -> Cluster {
        let spares = nodes.split_off(nodes.len().min(usize::from(setup.founders)));
        let seeds: Vec<String> = if nodes.len() == 1 {
            Vec::new()
        } else {
            nodes
                .iter()
                .map(|node| node.place.rpc.to_string())
                .collect()
        };
        Cluster {
            topology,
            run_file,
            next_id: u32::from(setup.founders) + 1,
            nodes,
            spares,
            dir: setup.dir,
            setup: NodeSetup {
                binary: setup.binary,
                seeds: seeds.join(","),
                extra: setup.extra,
                environment: setup.environment,
                shim: setup.shim,
            },
            env: env.clone(),
            crashes: Vec::new(),
        }
    }

    /// The ids of all members.
    pub fn ids(&self) -> Vec<u32> {
        self.nodes.iter().map(Node::id).collect()
    }

    /// Where clients begin.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<String> = self
            .nodes
            .iter()
            .map(|node| node.place.kafka.to_string())
            .collect();
        addresses.join(",")
    }

    /// The node of an id.
    ///
    /// # Errors
    /// That there is none.
    pub fn node(&mut self, id: u32) -> anyhow::Result<&mut Node> {
        self.nodes
            .iter_mut()
            .find(|node| node.id() == id)
            .with_context(|| format!("there is no node {id}"))
    }

    /// All members.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All machines, whoever lives there.
    pub fn machines(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().chain(&self.spares)
    }

    /// Starts a node; nothing happens if it runs.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(&mut self, id: u32) -> anyhow::Result<()> {
        let Cluster {
            nodes,
            setup,
            topology,
            run_file,
            ..
        } = self;
        let node = nodes
            .iter_mut()
            .find(|node| node.id() == id)
            .with_context(|| format!("there is no node {id}"))?;
        node.start(setup, topology, run_file)
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn kill(&mut self, id: u32) -> anyhow::Result<()> {
        self.notice_ends();
        let Cluster {
            nodes, topology, ..
        } = self;
        for node in nodes.iter_mut().filter(|node| node.id() == id) {
            node.kill(topology).await?;
        }
        Ok(())
    }

    /// SIGTERM, and waits for the end. Notes as a crash if it does not end rightly.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn terminate(&mut self, id: u32, limit: Duration) -> anyhow::Result<()> {
        self.notice_ends();
        // Before it answers anybody it has nothing to hand over or to flush: it may not even have
        // got as far as to listen to signals.
        let served = self.serves(id).await;
        let Cluster {
            nodes,
            topology,
            crashes,
            ..
        } = self;
        for node in nodes.iter_mut().filter(|node| node.id() == id) {
            if !node.is_running() {
                continue;
            }
            match node.terminate(topology, limit).await? {
                Some(status) if status.success() => {}
                Some(status) if !served && status.signal() == Some(SIGTERM) => {}
                Some(status) => crashes.push(format!("node {id} ended with {status} on SIGTERM")),
                None => crashes.push(format!("node {id} did not end within {limit:?} of SIGTERM")),
            }
        }
        Ok(())
    }

    /// Notices nodes that have ended by themselves.
    pub fn notice_ends(&mut self) {
        let Cluster {
            nodes,
            topology,
            crashes,
            ..
        } = self;
        for node in nodes {
            crashes.extend(node.notice_end(topology));
        }
    }

    /// Ends of nodes that no fault explains.
    pub fn crashes(&self) -> &[String] {
        &self.crashes
    }

    /// Replicas that stopped although the disk of their node did not fail, in any process of the run;
    /// a sentence each.
    ///
    /// # Errors
    /// A log of a node that cannot be read.
    pub fn stops(&self) -> anyhow::Result<Vec<String>> {
        let mut stops = Vec::new();
        for node in self.machines() {
            stops.extend(node.stops()?);
        }
        Ok(stops)
    }

    /// The partitions as the nodes that answer see them, by topic and number; the newest leader
    /// epoch wins.
    pub async fn partitions(&self) -> BTreeMap<(String, u32), PartitionState> {
        let asked = self
            .nodes
            .iter()
            .map(async |node| (node.id(), node.status(&self.env).await));
        let mut found: BTreeMap<(String, u32), PartitionState> = BTreeMap::new();
        for (id, status) in futures::future::join_all(asked).await {
            let Some(status) = status else { continue };
            let views = status["partitions"].as_array().cloned().unwrap_or_default();
            for view in &views {
                let (Some(topic), Some(partition)) =
                    (view["topic"].as_str(), number(&view["partition"]))
                else {
                    continue;
                };
                let state = found.entry((topic.to_owned(), partition)).or_default();
                if view["local"]["is_damaged"] == Value::Bool(true) {
                    state.damaged.push(id);
                }
                let epoch = view["leader_epoch"].as_i64().unwrap_or(-1);
                let leader = number(&view["leader"]);
                if (epoch, leader.is_some()) >= (state.leader_epoch, state.leader.is_some()) {
                    state.leader = leader;
                    state.leader_epoch = epoch;
                    state.replicas = numbers(&view["replicas"]);
                    state.in_sync = numbers(&view["in_sync"]);
                }
            }
        }
        found
    }

    /// Whether a node serves clients, as it says itself.
    pub async fn serves(&self, id: u32) -> bool {
        match self.nodes.iter().find(|node| node.id() == id) {
            Some(node) => {
                let status = node.status(&self.env).await;
                status.is_some_and(|status| status["is_serving"] == Value::Bool(true))
            }
            None => false,
        }
    }

    /// Waits until every node serves, every partition has a leader and all its replicas are in
    /// sync and whole.
    ///
    /// # Errors
    /// What is missing when `limit` is over.
    pub async fn wait_whole(&mut self, limit: Duration) -> anyhow::Result<()> {
        let deadline = self.env.now() + limit;
        loop {
            self.notice_ends();
            let missing = match self.missing().await {
                None => return Ok(()),
                Some(missing) => missing,
            };
            if self.env.now() > deadline {
                bail!("after {} s: {missing}", limit.as_secs());
            }
            self.env.sleep(LOOK).await;
        }
    }

    /// Whether every node serves, every partition has a leader and all its replicas in sync and
    /// whole.
    pub async fn is_whole(&self) -> bool {
        self.missing().await.is_none()
    }

    /// What keeps the cluster from being whole.
    async fn missing(&self) -> Option<String> {
        let mut members = self.ids();
        members.sort_unstable();
        for node in &self.nodes {
            let status = node.status(&self.env).await;
            match status {
                None => return Some(format!("node {} does not answer", node.id())),
                Some(status) if status["is_serving"] != Value::Bool(true) => {
                    return Some(format!("node {} does not serve", node.id()));
                }
                Some(status) => {
                    let known = members::known(&status);
                    if known != members {
                        return Some(format!("node {} knows the nodes {known:?}", node.id()));
                    }
                    if let Some(failure) = status["disk_failure"].as_str() {
                        return Some(format!("node {}: {failure}", node.id()));
                    }
                }
            }
        }
        for ((topic, partition), state) in self.partitions().await {
            if state.leader.is_none() {
                return Some(format!("{topic}/{partition} has no leader"));
            }
            let living = state.living(&members);
            if !living.iter().all(|id| state.in_sync.contains(id)) {
                return Some(format!(
                    "{topic}/{partition}: in sync are {:?} of {living:?}",
                    state.in_sync
                ));
            }
            if !state.damaged.is_empty() {
                return Some(format!(
                    "{topic}/{partition}: the replicas of nodes {:?} are damaged",
                    state.damaged
                ));
            }
        }
        None
    }

    /// Lets a node lead a partition.
    ///
    /// # Errors
    /// What the nodes say, or that none answers.
    pub async fn lead(&self, topic: &str, partition: u32, id: u32) -> anyhow::Result<()> {
        let path = format!("/v1/partitions/{topic}/{partition}/leader?node={id}");
        let mut last = "no node runs".to_owned();
        for node in self
            .nodes
            .iter()
            .filter(|node| node.is_running() && !node.is_stopped())
        {
            match http::ask(&self.env, node.place.admin, "POST", &path, LEAD_WAIT_MAX).await {
                Ok((200, _)) => return Ok(()),
                Ok((code, body)) => {
                    let said = body["error"].as_str().unwrap_or("no reason");
                    // 421: not the leader, the next one may be.
                    if code != 421 {
                        last = format!("node {}: {code}: {said}", node.id());
                    }
                }
                Err(error) => last = format!("node {}: {error:#}", node.id()),
            }
        }
        bail!("{topic}/{partition} cannot be led by node {id}: {last}")
    }

    /// Lets everything go on that is stopped, starts everything that has ended, heals the network
    /// and the disks. What fails is returned; the rest is done all the same.
    pub async fn heal(&mut self) -> anyhow::Result<()> {
        self.topology.links.heal();
        let mut first = Ok(());
        for id in self.ids() {
            let healed = self.heal_node(id).await;
            if first.is_ok() {
                first = healed;
            }
        }
        first
    }

    async fn heal_node(&mut self, id: u32) -> anyhow::Result<()> {
        let node = self.node(id)?;
        if node.is_stopped() {
            node.resume();
        }
        if let Some(control) = &node.control {
            control.mend_disk()?;
            control.shift_wall(0)?;
        }
        if let Some(image) = &node.image {
            image.empty()?;
        }
        self.notice_ends();
        self.start(id)
    }

    /// Copies data directories out of the disks that are about to go.
    ///
    /// # Errors
    /// The operating system's.
    pub fn keep_data(&self) -> anyhow::Result<()> {
        for node in &self.nodes {
            if node.image.is_some() {
                copy_tree(&node.data_dir, &node.kept())?;
            }
        }
        Ok(())
    }

    /// Ends all processes, removes what was made on the machine, and the nodes' own files unless
    /// they are to be kept.
    ///
    /// # Errors
    /// What could not be removed.
    pub async fn remove_all(mut self, env: &Env, with_files: bool) -> anyhow::Result<()> {
        for id in self.ids() {
            self.kill(id).await?;
        }
        let homes: Vec<PathBuf> = self.machines().map(Node::home).collect();
        let Cluster {
            run_file, topology, ..
        } = self;
        drop(topology);
        run_file.remove_all(env).await?;
        if with_files {
            for home in homes {
                std::fs::remove_dir_all(&home)
                    .with_context(|| format!("cannot remove {}", home.display()))?;
            }
        }
        Ok(())
    }
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

fn numbers(value: &Value) -> Vec<u32> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(number).collect()
}

fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in
        std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?
    {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
