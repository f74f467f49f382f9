//! Nodes join the running cluster, and others leave it for good, while everything else goes on.
//!
//! A newcomer has an empty disk and a new id. Who leaves is decommissioned as an operator does it:
//! up, if no replica lives on it, else dead for good. In some runs one of the first three leaves, and
//! with it a copy of everything. Afterwards its old process may start once more, or another one with
//! an empty disk may claim its id; neither may get in.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use corduroy_record::{GroupId, NodeId};

use crate::network::Host;
use crate::random::Random;
use crate::world::{HOSTS, HOSTS_OF_IMPOSTERS, World};

/// In one of so many runs without rotting bits one of the first nodes leaves.
const RUNS_WITH_LOSS: u64 = 3;
/// Nodes beside the first ones at the same time: with two of them, five vote on the metadata.
const NEWCOMERS_MAX: usize = 2;
/// Where bits rot, the fourth node only learns: of the three that vote one may be damaged, and no other
/// may be missing.
const NEWCOMERS_BESIDE_ROT_MAX: usize = 1;
/// How long one order to remove a node is waited for.
const ORDER_WAIT: Duration = Duration::from_secs(5);
/// Before an order that was refused is given again, in milliseconds.
const AGAIN_MILLIS: u64 = 400;
/// A node that is to leave while it runs, and holds replicas for so long, is not waited for.
const HOLDS_MILLIS_MAX: u64 = 6_000;
/// How long a removed node may go on finding out, in milliseconds.
const PARTING_MILLIS_MAX: u64 = 15_000;

/// What one order to remove a node came to; empty while it is under way.
type Answer = Rc<RefCell<Option<Result<(), String>>>>;

/// A node that is to leave.
struct Leaver {
    host: Host,
    began: u64,
    /// It runs, and holds no replica, or will hold none.
    stays_up: bool,
    order: Option<(u64, Answer)>,
}

/// What goes on.
enum Stage {
    /// Nothing; until `next_at`.
    Rest,
    /// A newcomer looks for the cluster.
    Joining(Host),
    /// A node is being removed.
    Leaving(Leaver),
    /// A process that is no member any more, or never was one, is to find it out.
    Parting { host: Host, until: u64 },
}

/// Who runs the cluster.
pub struct Membership {
    random: Random,
    stage: Stage,
    next_at: u64,
    next_host: Host,
    next_imposter: Host,
    newcomers_max: usize,
    /// The one of the first nodes that leaves in this run.
    victim: Option<Host>,
    victim_has_left: bool,
}

impl Membership {
    /// Begins in some seconds. `rotting`: whose files rot in this run.
    pub fn new(world: &mut World, rotting: Option<Host>) -> Membership {
        let mut random = world.random.fork();
        // What only the rotting one and one other had must not leave with the other.
        let loses = rotting.is_none() && random.one_in(RUNS_WITH_LOSS);
        let victim = random.pick(&HOSTS).filter(|_| loses);
        let next_at = world.now() + random.between(2_000, 8_000);
        tracing::info!(?victim, "the cluster's members change");
        Membership {
            random,
            stage: Stage::Rest,
            next_at,
            next_host: HOSTS.len() as Host + 1,
            next_imposter: HOSTS_OF_IMPOSTERS.start,
            newcomers_max: match rotting {
                Some(_) => NEWCOMERS_BESIDE_ROT_MAX,
                None => NEWCOMERS_MAX,
            },
            victim,
            victim_has_left: false,
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, world: &mut World) {
        let now = world.now();
        match std::mem::replace(&mut self.stage, Stage::Rest) {
            Stage::Rest => {
                if now >= self.next_at {
                    self.begin(world);
                }
            }
            Stage::Joining(host) => {
                if is_member(world, host) {
                    world.checker.sometimes().reach("node-joined");
                    if self.victim_has_left {
                        world.checker.sometimes().reach("node-replaced");
                    }
                    self.rest(world, 8_000);
                } else {
                    self.stage = Stage::Joining(host);
                }
            }
            Stage::Leaving(leaver) => self.remove(world, leaver),
            Stage::Parting { host, until } => {
                if !world.leaving.contains(&host) || !world.node(host).is_up() {
                    self.rest(world, 4_000);
                } else if now >= until {
                    world.kill(host, true);
                    self.rest(world, 4_000);
                } else {
                    self.stage = Stage::Parting { host, until };
                }
            }
        }
    }

    fn rest(&mut self, world: &World, millis_max: u64) {
        self.stage = Stage::Rest;
        self.next_at = world.now() + self.random.between(200, millis_max);
    }

    fn begin(&mut self, world: &mut World) {
        let newcomers: Vec<Host> = world
            .staff()
            .into_iter()
            .filter(|host| !HOSTS.contains(host))
            .collect();
        let victim = self.victim.filter(|_| !self.victim_has_left);
        let may_join = newcomers.len() < self.newcomers_max;
        let leaver = match victim {
            Some(victim) if self.random.one_in(2) => Some(victim),
            _ => self.random.pick(&newcomers),
        };
        match leaver {
            Some(host) if !may_join || self.random.one_in(2) => self.dismiss(world, host),
            _ if may_join => {
                let host = self.next_host;
                self.next_host += 1;
                tracing::info!(host, at = world.now(), "a node joins");
                world.add(host, host, &mut self.random);
                world.staff.insert(host);
                world.start(host);
                self.stage = Stage::Joining(host);
            }
            _ => self.rest(world, 2_000),
        }
    }

    fn dismiss(&mut self, world: &mut World, host: Host) {
        // One of the first nodes holds replicas as long as it lives.
        let stays_up = !HOSTS.contains(&host) && self.random.one_in(2);
        tracing::info!(host, stays_up, at = world.now(), "a node is to leave");
        world.leaving.insert(host);
        if !stays_up {
            self.bury(world, host);
        }
        self.stage = Stage::Leaving(Leaver {
            host,
            began: world.now(),
            stays_up,
            order: None,
        });
    }

    /// A node dies and is not started again by anybody.
    fn bury(&mut self, world: &mut World, host: Host) {
        world.staff.remove(&host);
        if world.node(host).is_up() {
            let power_fails = self.random.one_in(2);
            world.kill(host, power_fails);
        }
    }

    fn remove(&mut self, world: &mut World, mut leaver: Leaver) {
        let now = world.now();
        if !is_member(world, leaver.host) {
            self.removed(world, &leaver);
            return;
        }
        if leaver.stays_up && now - leaver.began > HOLDS_MILLIS_MAX {
            leaver.stays_up = false;
            self.bury(world, leaver.host);
        }
        let answered = |(at, answer): &(u64, Answer)| {
            let late = now - at > 2 * ORDER_WAIT.as_millis() as u64;
            late || answer.borrow().is_some() && now - at >= AGAIN_MILLIS
        };
        if leaver.order.as_ref().is_none_or(answered) {
            leaver.order = self.order(world, leaver.host);
        }
        self.stage = Stage::Leaving(leaver);
    }

    /// Asks some node that serves to remove another one.
    fn order(&mut self, world: &mut World, leaver: Host) -> Option<(u64, Answer)> {
        let staff = world.staff();
        let serving: Vec<Host> = staff
            .into_iter()
            .filter(|host| *host != leaver && world.node(*host).is_serving())
            .collect();
        let asked = self.random.pick(&serving)?;
        let node = world.node(asked).node().clone();
        let answer = Answer::default();
        let slot = answer.clone();
        world.running.spawn(asked, async move {
            let leaver = NodeId::new(i32::from(leaver));
            let removed = node.remove_node(leaver, ORDER_WAIT).await;
            tracing::debug!(?removed, "an order to remove a node was answered");
            *slot.borrow_mut() = Some(removed);
        });
        Some((world.now(), answer))
    }

    fn removed(&mut self, world: &mut World, leaver: &Leaver) {
        let host = leaver.host;
        tracing::info!(host, at = world.now(), "a node has left");
        world.checker.sometimes().reach("node-removed");
        world.staff.remove(&host);
        if self.victim == Some(host) {
            self.victim_has_left = true;
            world.checker.sometimes().reach("copies-removed");
        }
        let until = world.now() + PARTING_MILLIS_MAX;
        if leaver.stays_up {
            // It runs, or another fault has it down just now.
            self.stage = Stage::Parting { host, until };
            return;
        }
        match self.random.below(3) {
            0 => {
                world.start(host);
                self.stage = Stage::Parting { host, until };
            }
            1 if self.next_imposter < HOSTS_OF_IMPOSTERS.end => {
                let imposter = self.next_imposter;
                self.next_imposter += 1;
                world.add(imposter, host, &mut self.random);
                world.leaving.insert(imposter);
                world.start(imposter);
                let host = imposter;
                self.stage = Stage::Parting { host, until };
            }
            _ => self.rest(world, 4_000),
        }
    }

    /// The phase of faults is over: who is no member ends; who is about to leave stays if it still
    /// can. Returns who may be left out while a majority is healed: not one of the first nodes if
    /// another of them is not there, and nobody while a node that is gone, or may be gone any moment,
    /// has a vote on the metadata.
    pub fn settle(&mut self, world: &mut World) -> Vec<Host> {
        match std::mem::replace(&mut self.stage, Stage::Rest) {
            Stage::Parting { host, .. } => {
                world.staff.remove(&host);
                if world.node(host).is_up() {
                    world.kill(host, true);
                }
            }
            // Without an order it is a member again. One that is on its way, or was carried out
            // unseen, takes its vote away after this.
            Stage::Leaving(leaver) => {
                world.staff.insert(leaver.host);
                return Vec::new();
            }
            Stage::Joining(_) | Stage::Rest => {}
        }
        let staff = world.staff();
        let whole = HOSTS
            .iter()
            .all(|host| staff.contains(host) && !world.leaving.contains(host));
        if votes_of_the_gone(world, &staff) {
            return Vec::new();
        }
        let mut may_be_out = staff;
        may_be_out.retain(|host| {
            let leaves = world.leaving.contains(host);
            !leaves && (whole || !HOSTS.contains(host))
        });
        may_be_out
    }
}

/// Whether a replica of the controller counts on the vote of a node that is not there: it was removed,
/// and the voters have not changed yet.
fn votes_of_the_gone(world: &World, staff: &[Host]) -> bool {
    let replicas = world.checker.seen().of_group(GroupId::CONTROLLER);
    let mut known = replicas.filter(|(host, _)| staff.contains(host));
    known.any(|(_, replica)| {
        let members = &replica.slow.members;
        let mut voters = members.iter().filter(|(_, _, votes)| *votes);
        voters.any(|(_, node, _)| !staff.contains(&(node.get() as Host)))
    })
}

/// Whether the newest metadata knows a node. Nothing is known while all are down.
fn is_member(world: &World, host: Host) -> bool {
    let id = NodeId::new(i32::from(host));
    let image = world.checker.newest_image();
    image.is_none_or(|image| image.nodes.contains_key(&id))
}
