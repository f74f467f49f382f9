//! Faults, drawn from the seed: when, what, where, and for how long.

use std::path::{Path, PathBuf};

use crate::network::Host;
use crate::options::FaultClass;
use crate::random::Random;
use crate::workload::CLIENTS;
use crate::world::{HOSTS, World};

/// Longest pause between two faults, in milliseconds.
const PAUSE_MILLIS_MAX: u64 = 2_000;
/// A disk whose flushes fail is given up after this many milliseconds even if nobody noticed.
const FAILED_DISK_MILLIS: u64 = 5_000;

/// In one of so many runs bits rot.
const ROTTING_RUNS: u64 = 3;
/// In one of so many runs a copy of a node is started, once: nothing else happens while it is there.
const COPYING_RUNS: u64 = 3;
/// There, instead of one of so many faults.
const COPYING_FAULTS: u64 = 6;
/// Bytes that a full disk still takes, at most.
const SPACE_LEFT_BYTES_MAX: u64 = 96 << 10;
/// Bytes that are flipped at once, at most.
const FLIPS_MAX: u64 = 3;

/// What ends a fault.
#[derive(Clone, Copy, Debug)]
enum Cure {
    Start(Host),
    Heal(Host, Host),
    Calm(Host, Host),
    QuickDisk(Host),
    NewDisk(Host),
    TrueClock(Host),
    Space(Host),
}

/// What ails the node that is left out when a majority is healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plight {
    /// It is off.
    Dead,
    /// It hears nobody and nobody hears it.
    CutOff,
    /// It hears nobody.
    Deaf,
    /// Nobody hears it.
    Mute,
    /// It takes part, with a slow disk.
    Slow,
}

/// The state file of the replica whose registration `path` is: each says which replica it is where
/// the other does not.
fn state_of(path: &Path) -> Option<PathBuf> {
    let dir = path.parent()?;
    let root = dir.parent().filter(|_| dir.ends_with("registry"))?;
    let (topic, partition) = path.file_name()?.to_str()?.rsplit_once('-')?;
    let dir = match topic.bytes().all(|byte| matches!(byte, b'0' | b'-')) {
        true => root.join("controller"),
        false => root.join("partitions").join(topic).join(partition),
    };
    Some(dir.join("state"))
}

/// Done by clients, from before the first fault, or by whoever runs the cluster.
fn is_apart(class: FaultClass) -> bool {
    matches!(
        class,
        FaultClass::Recreate
            | FaultClass::Groups
            | FaultClass::Membership
            | FaultClass::Fencing
            | FaultClass::Latest
    )
}

/// Draws faults and cures them.
pub struct Faults {
    random: Random,
    classes: Vec<FaultClass>,
    next_at: u64,
    cures: Vec<(u64, Cure)>,
    stopping: Vec<Host>,
    /// Whose files rot; in some runs nobody's.
    rotting: Option<Host>,
    /// A copy may still be started in this run.
    may_copy: bool,
    /// No fault begins until it is.
    calms_down: bool,
}

impl Faults {
    /// Faults of these classes from now on.
    pub fn new(world: &mut World, mut classes: Vec<FaultClass>) -> Faults {
        let mut random = world.random.fork();
        classes.retain(|class| !is_apart(*class));
        let mut rotting = None;
        if classes.contains(&FaultClass::BitRot) {
            // Where bits rot, that node has to be the one that is left out at the end: it may lack
            // what only it and one other had. So not in every run.
            if random.one_in(ROTTING_RUNS) {
                rotting = random.pick(&HOSTS);
            }
            classes.retain(|class| *class != FaultClass::BitRot || rotting.is_some());
        }
        let may_copy = classes.contains(&FaultClass::Twin) && random.one_in(COPYING_RUNS);
        classes.retain(|class| *class != FaultClass::Twin);
        Faults {
            random,
            rotting,
            may_copy,
            calms_down: false,
            classes,
            next_at: world.now(),
            cures: Vec::new(),
            stopping: Vec::new(),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, world: &mut World) {
        if world.twins.is_some() {
            // A copy whose original is dead or cut off is let in, as a restored backup is.
            return;
        }
        let now = world.now();
        self.restart_the_dead(world);
        while let Some(at) = self.cures.iter().position(|(at, _)| *at <= now) {
            let (_, cure) = self.cures.remove(at);
            self.cure(world, cure);
        }
        if now < self.next_at {
            return;
        }
        self.next_at = now + self.random.between(50, PAUSE_MILLIS_MAX);
        if self.may_copy && (self.calms_down || self.random.one_in(COPYING_FAULTS)) {
            self.calms_down = true;
            if self.all_is_well(world)
                && let Some(original) = self.random.pick(&HOSTS)
            {
                let are_even = self.random.one_in(2);
                world.begin_twins(original, are_even, &mut self.random);
                (self.may_copy, self.calms_down) = (false, false);
            }
            return;
        }
        if let Some(class) = self.random.pick(&self.classes) {
            self.strike(world, class);
        }
    }

    /// Whether nothing ails any node that could keep it from knowing the others.
    fn all_is_well(&self, world: &mut World) -> bool {
        let staff = world.staff();
        let is_quiet = |cure: &Cure| matches!(cure, Cure::TrueClock(_));
        self.cures.iter().all(|(_, cure)| is_quiet(cure))
            && world.disk_troubles.values().all(|troubled| !troubled)
            && HOSTS
                .iter()
                .all(|host| staff.contains(host) && !world.leaving.contains(host))
            && staff.into_iter().all(|host| world.node(host).is_serving())
    }

    /// Whatever is down comes back after a while, however it went down.
    fn restart_the_dead(&mut self, world: &mut World) {
        for host in world.staff() {
            let planned = |(_, cure): &(u64, Cure)| matches!(cure, Cure::Start(at) if *at == host);
            if !world.node(host).is_up() && !self.cures.iter().any(planned) {
                let pause = self.pause(20, 6_000);
                self.cures.push((world.now() + pause, Cure::Start(host)));
            }
            if world.node(host).is_serving() {
                self.stopping.retain(|stopping| *stopping != host);
            }
        }
    }

    /// Short ones are as likely as long ones.
    fn pause(&mut self, low: u64, high: u64) -> u64 {
        let high = if self.random.one_in(2) {
            high
        } else {
            low + (high - low) / 8
        };
        self.random.between(low, high)
    }

    fn plan(&mut self, world: &World, low: u64, high: u64, cure: Cure) {
        let pause = self.pause(low, high);
        self.cures.push((world.now() + pause, cure));
    }

    fn strike(&mut self, world: &mut World, class: FaultClass) {
        let up: Vec<Host> = world
            .staff()
            .into_iter()
            .filter(|host| world.node(*host).is_up())
            .collect();
        let Some(host) = self.random.pick(&up) else {
            return;
        };
        tracing::info!(%class, host, at = world.now(), "fault");
        match class {
            FaultClass::Kill => world.kill(host, false),
            FaultClass::Power => world.kill(host, true),
            FaultClass::PowerAll => {
                for host in up {
                    world.kill(host, true);
                }
            }
            FaultClass::Torn => {
                let sim = world.node(host).disk().sim().clone();
                sim.crash_at_step(sim.steps() + self.random.below(60));
                world.disk_troubles.insert(host, true);
            }
            FaultClass::Stop => {
                let running = world.running.clone();
                if !self.stopping.contains(&host) && world.node(host).is_serving() {
                    self.stopping.push(host);
                    world.node(host).stop(&running);
                }
            }
            FaultClass::Partition => self.partition(world, host),
            FaultClass::OneWay => {
                let other = self.other(world, host);
                let (from, to) = if self.random.one_in(2) {
                    (host, other)
                } else {
                    (other, host)
                };
                if world.leaders().contains(&host) {
                    world.checker.sometimes().reach("one-way");
                }
                world.fabric.cut(from, to, true);
                self.plan(world, 200, 8_000, Cure::Heal(from, to));
            }
            FaultClass::Delay => {
                let other = self.other(world, host);
                let high = self.random.between(5_000, 300_000);
                for (from, to) in [(host, other), (other, host)] {
                    if self.random.one_in(3) {
                        continue;
                    }
                    world.fabric.delay(from, to, Some((500, high)));
                    self.plan(world, 500, 5_000, Cure::Calm(from, to));
                }
            }
            FaultClass::SlowDisk => {
                let high = self.random.between(10_000, 400_000);
                world
                    .node(host)
                    .disk()
                    .set_flush_micros(Some((2_000, high)));
                self.plan(world, 500, 6_000, Cure::QuickDisk(host));
            }
            FaultClass::FailedFlush => {
                // One disk at a time: a cluster with two failed disks of three is lost.
                let failing = world.disk_troubles.values().any(|troubled| *troubled);
                if !failing {
                    if world.leaders().contains(&host) {
                        world.checker.sometimes().reach("disk-failed-leader");
                    }
                    let after = self.random.below(8);
                    world.node(host).disk().sim().fail_flush("", after);
                    world.disk_troubles.insert(host, true);
                    let at = world.now() + self.random.between(100, FAILED_DISK_MILLIS);
                    self.cures.push((at, Cure::NewDisk(host)));
                }
            }
            FaultClass::Clock => {
                let hour = 3_600_000;
                let span = self.random.pick(&[2_000, 60_000, hour]).unwrap_or(hour);
                let millis = self.random.below(2 * span as u64) as i64 - span;
                if millis < 0 {
                    world.checker.sometimes().reach("clock-back");
                }
                world.node(host).set_wall(millis);
                self.plan(world, 1_000, 20_000, Cure::TrueClock(host));
            }
            FaultClass::DiskFull => {
                if world.leaders().contains(&host) {
                    world.checker.sometimes().reach("disk-full-leader");
                }
                let left = self.random.below(SPACE_LEFT_BYTES_MAX);
                world.node(host).disk().fill(left);
                let pause = self.pause(200, 8_000);
                let until = world.now() + pause;
                world.checker.note_full(host, until);
                self.cures.push((until, Cure::Space(host)));
            }
            FaultClass::BitRot => {
                if let Some(host) = self.rotting {
                    self.rot(world, host);
                }
            }
            FaultClass::Recreate
            | FaultClass::Groups
            | FaultClass::Membership
            | FaultClass::Fencing
            | FaultClass::Latest
            | FaultClass::Twin => {}
        }
    }

    fn other(&mut self, world: &World, host: Host) -> Host {
        let others: Vec<Host> = world
            .staff()
            .into_iter()
            .filter(|other| *other != host)
            .collect();
        self.random.pick(&others).unwrap_or(host)
    }

    fn partition(&mut self, world: &mut World, host: Host) {
        let mut cut: Vec<Host> = match self.random.below(3) {
            0 => vec![self.other(world, host)],
            _ => {
                let staff = world.staff().into_iter();
                staff.filter(|other| *other != host).collect()
            }
        };
        if cut.len() > 1 && world.leaders().contains(&host) {
            world.checker.sometimes().reach("isolated-leader");
        }
        if self.random.one_in(3) {
            cut.push(CLIENTS);
        }
        let pause = self.pause(200, 10_000);
        for other in cut {
            for (from, to) in [(host, other), (other, host)] {
                world.fabric.cut(from, to, true);
                let at = world.now() + pause;
                self.cures.push((at, Cure::Heal(from, to)));
            }
        }
    }

    /// Flips bits under a node whose process has just died, so that nothing of them is cached.
    fn rot(&mut self, world: &mut World, host: Host) {
        if world.node(host).is_up() {
            world.kill(host, false);
        }
        let sim = world.node(host).disk().sim().clone();
        let files: Vec<_> = sim
            .files()
            .into_iter()
            .filter(|path| {
                let in_use = |part: &str| path.components().any(|it| it.as_os_str() == part);
                let parts = ["partitions", "journal", "controller", "registry"];
                parts.into_iter().any(in_use)
            })
            .collect();
        for _ in 0..1 + self.random.below(FLIPS_MAX) {
            let at = self.random.below(files.len() as u64) as usize;
            let Some(path) = files.get(at) else { return };
            self.flip(world, host, path);
            if self.random.one_in(2)
                && let Some(state) = state_of(path).filter(|state| files.contains(state))
            {
                world.checker.sometimes().reach("identity-rot");
                self.flip(world, host, &state);
            }
        }
    }

    fn flip(&mut self, world: &mut World, host: Host, path: &Path) {
        let sim = world.node(host).disk().sim().clone();
        let bytes = sim.bytes(path).unwrap_or_default();
        // Files are written ahead with zeros: a flip there says little.
        let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
        let Some(offset) = self.random.pick(&used) else {
            return;
        };
        let mask = 1 << self.random.below(8);
        tracing::info!(host, path = %path.display(), offset, mask, "a bit flips");
        if sim.flip(path, offset as u64, mask).is_ok() {
            world.checker.note_rot(host);
            world.checker.sometimes().reach("bit-rot");
        }
    }

    /// The node whose files have rotted, if any.
    pub fn rotting(&self) -> Option<Host> {
        self.rotting
    }

    fn cure(&mut self, world: &mut World, cure: Cure) {
        match cure {
            Cure::Start(host) => {
                if !world.node(host).is_up() && world.staff.contains(&host) {
                    world.start(host);
                }
            }
            Cure::Heal(from, to) => world.fabric.cut(from, to, false),
            Cure::Calm(from, to) => world.fabric.delay(from, to, None),
            Cure::QuickDisk(host) => world.node(host).disk().set_flush_micros(None),
            Cure::NewDisk(host) => {
                // Only a reboot makes the pages honest again.
                if world.disk_troubles.get(&host) == Some(&true) {
                    world.kill(host, true);
                }
            }
            Cure::TrueClock(host) => world.node(host).set_wall(0),
            Cure::Space(host) => world.node(host).disk().empty(),
        }
    }

    /// What becomes of the node that is not healed with the majority: an uneven link is as likely
    /// as a dead machine, because healing everything hides what lives on noise alone.
    pub fn leave_out(&mut self, world: &mut World, host: Host) -> Plight {
        let plights = [
            Plight::Dead,
            Plight::CutOff,
            Plight::Deaf,
            Plight::Mute,
            Plight::Slow,
        ];
        let plight = self.random.pick(&plights).unwrap_or(Plight::Dead);
        if plight != Plight::Dead && !world.node(host).is_up() {
            world.start(host);
        }
        for other in world.staff().into_iter().chain([CLIENTS]) {
            if other == host {
                continue;
            }
            let deaf = matches!(plight, Plight::CutOff | Plight::Deaf);
            let mute = matches!(plight, Plight::CutOff | Plight::Mute);
            world.fabric.cut(other, host, deaf);
            world.fabric.cut(host, other, mute);
        }
        match plight {
            Plight::Dead if world.node(host).is_up() => world.kill(host, true),
            Plight::Slow => {
                let disk = world.node(host).disk();
                disk.set_flush_micros(Some((50_000, 400_000)));
            }
            _ => {}
        }
        plight
    }

    /// The faults are over for these nodes, for good: they run, reach each other and the clients,
    /// and their disks and clocks are well. What troubles the others goes on.
    pub fn spare(&mut self, world: &mut World, hosts: &[Host]) {
        for host in hosts {
            let others = hosts.iter().copied();
            for other in others.chain([CLIENTS]) {
                for (from, to) in [(*host, other), (other, *host)] {
                    world.fabric.cut(from, to, false);
                    world.fabric.delay(from, to, None);
                }
            }
            world.node(*host).disk().set_flush_micros(None);
            world.node(*host).disk().empty();
            world.node(*host).set_wall(0);
            if world.disk_troubles.get(host) == Some(&true) {
                world.kill(*host, true);
            } else if world.node(*host).is_stopping() {
                // Its order to stop was given before; nobody would start it again.
                world.kill(*host, false);
            }
            if !world.node(*host).is_up() {
                world.start(*host);
            }
        }
        self.cures.clear();
        self.classes.clear();
    }
}
