//! The simulated world: machines, network, clients, checker; and time, which passes in steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use corduroy_raft::Role;
use corduroy_record::GroupId;

use crate::checker::{Checker, Violation};
use crate::disk::MachineDisk;
use crate::ledger::Ledger;
use crate::machine::{Machine, NodeShape};
use crate::machines::Machines;
use crate::network::{Fabric, Host};
use crate::options::RunOptions;
use crate::random::Random;
use crate::trace::Trace;
use crate::twins::Twins;
use crate::workload::Workload;

/// The machines of the nodes that form the cluster.
pub const HOSTS: [Host; 3] = [1, 2, 3];
/// Machines of nodes that claim the id of one that was removed.
pub const HOSTS_OF_IMPOSTERS: std::ops::Range<Host> = 128..256;
/// What a node says that was removed, or whose id was another's that was removed.
const BURNT: &str = "was decommissioned";
/// What a node says that cannot begin for want of space.
const NO_SPACE: &str = "the disk is full";
/// What passes between two looks at the cluster.
const STEP: Duration = Duration::from_millis(10);

/// Set by the panic hook: a task that panics must not end in silence.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// A task has panicked: the run fails at its next step.
pub fn note_panic() {
    PANICKED.store(true, Ordering::Relaxed);
}

/// Everything that there is.
pub struct World {
    /// Machines that run.
    pub running: Machines,
    /// The network.
    pub fabric: Fabric,
    /// The nodes.
    pub nodes: BTreeMap<Host, Machine>,
    /// The checker.
    pub checker: Checker,
    /// What clients know.
    pub ledger: Ledger,
    /// The clients.
    pub workload: Workload,
    /// Everything that happens.
    pub trace: Trace,
    /// Chance for the scenario.
    pub random: Random,
    /// Disks of which an operation may fail, until their machine loses power.
    pub disk_troubles: BTreeMap<Host, bool>,
    /// Machines whose nodes are to run: those that faults strike, and that are started again.
    pub staff: BTreeSet<Host>,
    /// Machines with whose nodes the cluster may part.
    pub leaving: BTreeSet<Host>,
    /// A node and its copy, until one of them has ended.
    pub twins: Option<Twins>,
    /// Machines whose node has served.
    served: BTreeSet<Host>,
    shape: NodeShape,
}

impl World {
    /// Switched off. Call it inside the runtime.
    pub fn new(options: &RunOptions, trace: Trace) -> World {
        let mut random = Random::new(options.seed);
        let fabric = Fabric::new(random.fork(), trace.clone());
        let ledger = Ledger::default();
        let shape = NodeShape::draw(&mut random);
        tracing::info!(seed = options.seed, ?shape, "the world begins");
        let nodes = HOSTS
            .into_iter()
            .map(|host| {
                let disk = MachineDisk::new(host, random.fork(), trace.clone());
                let machine =
                    Machine::new((host, host), &HOSTS, shape.clone(), disk, random.fork());
                (host, machine)
            })
            .collect();
        World {
            running: Machines::default(),
            workload: Workload::new(&fabric, &HOSTS, ledger.clone(), &mut random),
            fabric,
            nodes,
            checker: Checker::new(trace.clone(), ledger.clone()),
            ledger,
            trace,
            random,
            disk_troubles: BTreeMap::new(),
            staff: HOSTS.into_iter().collect(),
            leaving: BTreeSet::new(),
            twins: None,
            served: BTreeSet::new(),
            shape,
        }
    }

    /// Another machine, with an empty disk, for a node that looks for the cluster where its staff is.
    pub fn add(&mut self, host: Host, node_id: u16, random: &mut Random) {
        let disk = MachineDisk::new(host, random.fork(), self.trace.clone());
        let seeds: Vec<Host> = self.staff.iter().copied().collect();
        let shape = self.shape.clone();
        let machine = Machine::new((host, node_id), &seeds, shape, disk, random.fork());
        self.nodes.insert(host, machine);
    }

    /// A node's machine.
    pub fn node(&mut self, host: Host) -> &mut Machine {
        self.nodes
            .get_mut(&host)
            .expect("law: hosts are those of the machines")
    }

    /// Now, in simulated milliseconds.
    pub fn now(&self) -> u64 {
        self.trace.millis()
    }

    /// Starts a node that is down.
    pub fn start(&mut self, host: Host) {
        let alone = self.nodes.values().all(|machine| !machine.is_up());
        if alone && self.node(host).incarnation() > 0 {
            self.checker.sometimes().reach("booted-alone");
        }
        let (running, fabric) = (self.running.clone(), self.fabric.clone());
        self.trace.note("start", &[u64::from(host)], &[]);
        tracing::info!(host, at = self.now(), "start");
        self.node(host).start(&running, &fabric);
    }

    /// A node dies.
    pub fn kill(&mut self, host: Host, power_fails: bool) {
        if let Some(machine) = self.nodes.get(&host) {
            self.checker.look(host, machine);
        }
        if let Some(node) = self.checker.seen().nodes.get(&host) {
            let leads = |group: &GroupId| node.replicas.get(group).is_some_and(|r| r.leads());
            let controller = leads(&GroupId::CONTROLLER);
            let mut others = node.replicas.keys();
            let partition = others.any(|group| *group != GroupId::CONTROLLER && leads(group));
            if controller {
                self.checker.sometimes().reach("controller-killed");
            }
            if partition {
                self.checker.sometimes().reach("leader-killed");
            }
        }
        let (running, fabric) = (self.running.clone(), self.fabric.clone());
        let how = u64::from(power_fails);
        self.trace.note("kill", &[u64::from(host), how], &[]);
        tracing::info!(host, power_fails, at = self.now(), "kill");
        self.checker.let_go(host);
        self.node(host).kill(&running, &fabric, power_fails);
        if power_fails {
            self.disk_troubles.insert(host, false);
        }
    }

    /// Lets one step pass, then looks at everything.
    ///
    /// # Errors
    /// The law that is broken.
    pub async fn step(&mut self) -> Result<(), Violation> {
        tokio::time::sleep(STEP).await;
        if PANICKED.load(Ordering::Relaxed) {
            return Err(self.violation("no_panics", "a task panicked (see above)"));
        }
        let hosts: Vec<Host> = self.nodes.keys().copied().collect();
        for host in hosts {
            self.look_after(host)?;
        }
        let (checker, nodes) = (&mut self.checker, &self.nodes);
        checker.check(nodes)
    }

    /// What happened to a machine by itself.
    fn look_after(&mut self, host: Host) -> Result<(), Violation> {
        let machine = self.node(host);
        if machine.disk().sim().crashed() {
            // The power failed during an operation of the disk.
            self.checker.sometimes().reach("journal-torn");
            self.kill(host, true);
            return Ok(());
        }
        if machine.has_stopped() {
            self.checker.sometimes().reach("stopped-in-order");
            self.kill(host, false);
            return Ok(());
        }
        let parted = machine.parted();
        let ended = machine.ended();
        let burnt = ended.clone().filter(|reason| reason.contains(BURNT));
        if let Some(reason) = burnt.or(parted) {
            if !self.leaving.contains(&host) {
                let what = format!("the cluster parts with node {host}, which stays: {reason}");
                return Err(self.violation("members_stay", &what));
            }
            tracing::info!(host, reason, at = self.now(), "parted");
            self.staff.remove(&host);
            if ended.is_some() {
                // One that claims the id of another never was a member.
                let point = match HOSTS_OF_IMPOSTERS.contains(&host) {
                    true => "burnt-id-refused",
                    false => "node-parted",
                };
                self.checker.sometimes().reach(point);
                self.kill(host, false);
            } else {
                self.checker.sometimes().reach("node-parted");
                let running = self.running.clone();
                self.node(host).stop(&running);
            }
            return Ok(());
        }
        if self.node(host).is_serving() {
            self.served.insert(host);
        }
        if let Some(reason) = ended {
            if self.end_twins(host, &reason)? {
                return Ok(());
            }
            // One that has nothing yet, and no space for it either, is started again by whoever runs
            // it.
            if reason.contains(NO_SPACE) && !self.served.contains(&host) {
                self.kill(host, false);
                return Ok(());
            }
            if !self.disk_troubles.get(&host).copied().unwrap_or(false) {
                let what = format!("node {host} ended by itself: {reason}");
                return Err(self.violation("nodes_start", &what));
            }
            self.kill(host, true);
        }
        Ok(())
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// The law that is broken.
    pub async fn pass(&mut self, duration: Duration) -> Result<(), Violation> {
        let end = self.now() + duration.as_millis() as u64;
        while self.now() < end {
            self.step().await?;
        }
        Ok(())
    }

    /// Lets time pass until something is so.
    ///
    /// # Errors
    /// The law that is broken, or that it took longer than `limit`.
    pub async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut so: impl FnMut(&mut World) -> bool,
    ) -> Result<(), Violation> {
        let began = self.now();
        while !so(self) {
            if self.now() - began > limit.as_millis() as u64 {
                let state = self.describe();
                let what = format!("{what}: not within {} s; {state}", limit.as_secs());
                return Err(self.violation("progress", &what));
            }
            self.step().await?;
        }
        Ok(())
    }

    /// The cluster in some words, for whoever reads a violation.
    pub fn describe(&self) -> String {
        let mut words = Vec::new();
        for (host, machine) in &self.nodes {
            let state = match (machine.is_up(), machine.is_serving()) {
                (false, _) => "down",
                (true, false) => "booting",
                (true, true) => "serving",
            };
            words.push(format!("node {host} {state}"));
        }
        for (host, group, replica) in self.checker.seen().running() {
            let view = &replica.view;
            words.push(format!(
                "{host}/{group}: {:?}{} term {} applied {} last {:?} no-vote {}{}",
                view.role,
                if view.leader_ready { " ready" } else { "" },
                view.term,
                view.applied,
                replica.log.last,
                replica.log.no_vote,
                if replica.asleep { " asleep" } else { "" },
            ));
        }
        words.join("; ")
    }

    /// Whether one of these nodes leads each partition of the image, and the controller.
    pub fn all_led(&self, hosts: &[Host]) -> bool {
        let seen = self.checker.seen();
        let Some(image) = seen.image() else {
            return false;
        };
        let partitions = image.topics.values().flat_map(|topic| {
            let placed = topic.groups().zip(&topic.partitions);
            // Nothing moves a replica away from a node that has left: its place stays empty.
            let can_be_led = placed.filter(|(_, partition)| {
                let there = partition.replicas.iter();
                let there = there.filter(|(_, node)| hosts.contains(&(node.get() as Host)));
                2 * there.count() > partition.replicas.len()
            });
            can_be_led.map(|(group, _)| group)
        });
        let mut groups = partitions.chain([GroupId::CONTROLLER]);
        groups.all(|group| {
            let mut replicas = seen.of_group(group);
            replicas.any(|(host, replica)| hosts.contains(&host) && replica.leads())
        })
    }

    /// The machines of the staff.
    pub fn staff(&self) -> Vec<Host> {
        self.staff.iter().copied().collect()
    }

    /// Hosts that lead any partition.
    pub fn leaders(&self) -> Vec<Host> {
        let running = self.checker.seen().running();
        let leaders = running.filter(|(_, group, replica)| {
            *group != GroupId::CONTROLLER && replica.view.role == Role::Leader
        });
        let mut hosts: Vec<Host> = leaders.map(|(host, _, _)| host).collect();
        hosts.dedup();
        hosts
    }

    /// A violation that happened now.
    pub fn violation(&self, law: &'static str, what: &str) -> Violation {
        Violation {
            law,
            what: what.to_owned(),
            at_millis: self.now(),
        }
    }
}
