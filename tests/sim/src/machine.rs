//! One node's machine: its disk, its clock, and the production node that runs on it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use corduroy::config::{Layers, NodeConfig};
use corduroy::node::{LocalNode, LocalServing};
use corduroy_env::{Env, Simulation};
use tokio::time::Instant;

use crate::disk::{DATA_DIR, MachineDisk};
use crate::machines::Machines;
use crate::network::{Fabric, Host, address_of};
use crate::random::Random;

/// Where nodes listen for Kafka clients.
pub const KAFKA_PORT: u16 = 9092;
/// Where nodes listen for each other.
const RPC_PORT: u16 = 33145;
/// Where the wall clocks start, in milliseconds since the Unix epoch: well after 1970, so that a
/// clock may go back.
const WALL_MILLIS: i64 = 1_750_000_000_000;

/// How nodes of a run are set up: drawn once from the seed.
#[derive(Clone, Debug)]
pub struct NodeShape {
    /// Shards of each node.
    pub shards: usize,
    /// Bytes per turn and partition that go into the journal itself.
    pub inline_bytes_max: usize,
    /// Budget of the cache of recent entries, per shard.
    pub cache_bytes: usize,
    /// Silence after which a group sleeps, in milliseconds.
    pub hibernate_after_millis: u64,
}

impl NodeShape {
    /// Draws one.
    pub fn draw(random: &mut Random) -> NodeShape {
        NodeShape {
            shards: 1 + random.below(2) as usize,
            inline_bytes_max: random.pick(&[0, 1 << 10, 32 << 10]).unwrap_or(0),
            cache_bytes: random.pick(&[16 << 10, 256 << 10, 4 << 20]).unwrap_or(0),
            hibernate_after_millis: random.pick(&[400, 2_000, 5_000]).unwrap_or(5_000),
        }
    }
}

/// How a start went.
enum Life {
    /// No process.
    Down,
    /// The process runs and has not said that it serves.
    Booting,
    /// It serves.
    Serving(Box<LocalServing>),
    /// It is told to stop and does so.
    Stopping,
    /// It ended by itself: why.
    Ended(String),
}

/// One node's machine.
pub struct Machine {
    host: Host,
    node_id: u16,
    seeds: Vec<Host>,
    shape: NodeShape,
    disk: MachineDisk,
    random: Random,
    incarnation: u64,
    env: Option<Env>,
    began: Instant,
    wall_offset_millis: i64,
    node: LocalNode,
    life: Rc<RefCell<Life>>,
}

impl Machine {
    /// A machine that is switched off, for the node of this id, which looks for its cluster at
    /// `seeds`.
    pub fn new(
        (host, node_id): (Host, u16),
        seeds: &[Host],
        shape: NodeShape,
        disk: MachineDisk,
        random: Random,
    ) -> Machine {
        Machine {
            host,
            node_id,
            seeds: seeds.to_vec(),
            shape,
            disk,
            random,
            incarnation: 0,
            env: None,
            began: Instant::now(),
            wall_offset_millis: 0,
            node: LocalNode::new(),
            life: Rc::new(RefCell::new(Life::Down)),
        }
    }

    /// Another machine, switched off, with a copy of this one's disk: for the same node.
    pub fn copied(&self, host: Host, random: &mut Random) -> Machine {
        let disk = self.disk.copied(host, random.fork());
        let shape = self.shape.clone();
        let place = (host, self.node_id);
        Machine::new(place, &self.seeds, shape, disk, random.fork())
    }

    /// Gets a copy of another machine's disk in place of its own, as whoever runs both would make it.
    pub fn take_over(&mut self, other: &Machine) {
        let random = self.random.fork();
        self.disk = other.disk.copied(self.host, random);
    }

    /// Starts the node.
    pub fn start(&mut self, machines: &Machines, fabric: &Fabric) {
        fabric.bring_up(self.host);
        self.incarnation += 1;
        let env = Env::simulated(Simulation {
            seed: self.random.next(),
            unix_millis: WALL_MILLIS + self.began.elapsed().as_millis() as i64,
            network: Box::new(fabric.of(self.host)),
        });
        self.env = Some(env.clone());
        self.set_wall(self.wall_offset_millis);
        self.node = LocalNode::new();
        self.life = Rc::new(RefCell::new(Life::Booting));
        let (node, life, config) = (self.node.clone(), self.life.clone(), self.config());
        let disk = Arc::new(self.disk.clone());
        machines.start(self.host, async move {
            let after = match config {
                Ok(config) => match node.boot(env, config, disk).await {
                    Ok(serving) => Life::Serving(Box::new(serving)),
                    Err(error) => Life::Ended(error.to_string()),
                },
                Err(reason) => Life::Ended(reason),
            };
            *life.borrow_mut() = after;
        });
    }

    fn config(&self) -> Result<NodeConfig, String> {
        let seeds: Vec<String> = self
            .seeds
            .iter()
            .map(|host| address_of(*host, RPC_PORT).to_string())
            .collect();
        let flags = [
            ("node.id", self.node_id.to_string()),
            ("data.dir", DATA_DIR.to_owned()),
            ("listen", address_of(self.host, KAFKA_PORT).to_string()),
            ("rpc.listen", address_of(self.host, RPC_PORT).to_string()),
            ("seeds", seeds.join(",")),
            ("admin.listen", "off".to_owned()),
            ("shards", self.shape.shards.to_string()),
        ];
        let layers = Layers {
            flags: flags
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
            ..Layers::default()
        };
        let mut config = NodeConfig::from_layers(&layers).map_err(|error| error.to_string())?;
        // Small, so that files are reused, checkpointed and dropped within a simulated minute.
        config.journal_file_bytes = 64 << 10;
        config.journal_files_max = 6;
        config.reserve_bytes = 64 << 10;
        config.disk_low_bytes = 0;
        config.disk_critical_bytes = 0;
        config.inline_bytes_max = self.shape.inline_bytes_max;
        config.cache_bytes = self.shape.cache_bytes;
        config.retention_check = std::time::Duration::from_secs(2);
        config.hibernate_after =
            std::time::Duration::from_millis(self.shape.hibernate_after_millis);
        Ok(config)
    }

    /// The process dies where it stands. The power fails with it, or the machine lives on and
    /// keeps what was written.
    pub fn kill(&mut self, machines: &Machines, fabric: &Fabric, power_fails: bool) {
        fabric.take_down(self.host, !power_fails);
        machines.stop(self.host);
        *self.life.borrow_mut() = Life::Down;
        self.node = LocalNode::new();
        self.env = None;
        if power_fails {
            self.disk.sim().crash(self.random.next());
        } else {
            self.disk.sim().kill_process();
        }
    }

    /// Tells the node to stop in order; [`Machine::has_stopped`] says when it is done.
    pub fn stop(&mut self, machines: &Machines) {
        let life = std::mem::replace(&mut *self.life.borrow_mut(), Life::Stopping);
        match life {
            Life::Serving(serving) => {
                let life = self.life.clone();
                machines.spawn(self.host, async move {
                    serving.stop().await;
                    *life.borrow_mut() = Life::Ended(STOPPED.to_owned());
                });
            }
            other => *self.life.borrow_mut() = other,
        }
    }

    /// Whether an orderly stop is complete.
    pub fn has_stopped(&self) -> bool {
        matches!(&*self.life.borrow(), Life::Ended(reason) if reason == STOPPED)
    }

    /// Why the process ended by itself.
    pub fn ended(&self) -> Option<String> {
        match &*self.life.borrow() {
            Life::Ended(reason) if reason != STOPPED => Some(reason.clone()),
            _ => None,
        }
    }

    /// Why the cluster has parted with the node, told once: it was removed, and is to be stopped.
    pub fn parted(&self) -> Option<String> {
        match &mut *self.life.borrow_mut() {
            Life::Serving(serving) => serving.parted(),
            _ => None,
        }
    }

    /// Whether there is a process.
    pub fn is_up(&self) -> bool {
        !matches!(&*self.life.borrow(), Life::Down | Life::Ended(_))
    }

    /// Whether it was told to stop and has not yet.
    pub fn is_stopping(&self) -> bool {
        matches!(&*self.life.borrow(), Life::Stopping)
    }

    /// Whether it serves.
    pub fn is_serving(&self) -> bool {
        matches!(&*self.life.borrow(), Life::Serving(_))
    }

    /// Sets the wall clock this far off the true time, in milliseconds.
    pub fn set_wall(&mut self, offset_millis: i64) {
        self.wall_offset_millis = offset_millis;
        if let Some(env) = &self.env {
            env.set_wall_offset_millis(offset_millis);
        }
    }

    /// Its disk.
    pub fn disk(&self) -> &MachineDisk {
        &self.disk
    }

    /// The node, to be looked at.
    pub fn node(&self) -> &LocalNode {
        &self.node
    }

    /// How often it was started.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }
}

/// How an orderly stop ends.
const STOPPED: &str = "stopped";
