//! Does faults to a cluster and undoes them: one at a time in the order of the plan, each held for
//! its time, and noted in the history when it has taken hold.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail};
use corduroy_env::Env;
use tokio::time::Instant;

use super::membership::{self, Advance, Change};
use super::plan::{Agenda, Schedule, Step, Turn, has_room};
use super::proof::{Proof, count};
use super::strike::{
    Done, Undo, break_disk, cut_power, how_many, mend, rot, running, some_of, transfer,
};
use super::{FaultKind, network};
use crate::chance::Chance;
use crate::cluster::Cluster;
use crate::history::FaultPhase;
use crate::workload::recorder::Recorder;

/// How long a node may take to stop on SIGTERM.
const STOP_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a restarted node may take to serve, before the next one is restarted all the same.
const BACK_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often a step that has to wait looks again.
const LOOK: Duration = Duration::from_millis(100);
/// How long a signal may take to stop a process.
const STOP_SEEN_MAX: Duration = Duration::from_secs(1);
/// For how long after a fault it is looked whether the cluster is whole again.
const RECOVERY_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a change of membership may take to come to its end after the heal.
const CHANGE_WAIT_MAX: Duration = Duration::from_secs(60);
/// The largest jump of a wall clock.
const CLOCK_JUMP_MS_MAX: u64 = 2 * 3600 * 1000;

struct Active {
    id: u64,
    turn: Turn,
    targets: Vec<u32>,
    /// In which of its manners, as far as that counts.
    manner: String,
    until: Instant,
    undo: Undo,
    proof: Proof,
    /// What was counted of it before.
    before: u64,
}

/// A fault whose cause is gone, and the cluster is not whole yet.
struct Recovering {
    id: u64,
    kind: FaultKind,
    targets: Vec<u32>,
    until: Instant,
}

/// Carries out a plan.
pub struct Injector {
    env: Env,
    recorder: Recorder,
    active: Vec<Active>,
    recovering: Vec<Recovering>,
    shown: Rc<RefCell<Vec<&'static str>>>,
    /// The node that bit rot strikes: always the same one, as a minority is all that may be
    /// damaged. If another node takes its place, that one.
    rot_target: Option<u32>,
    /// Whether there is one node only, so that whatever takes a node takes all.
    is_alone: bool,
    /// Whether it strikes in this run.
    rots: bool,
    /// Whether it has struck that very node.
    is_rotted: bool,
    /// How often each manner of change came.
    changes: BTreeMap<&'static str, u32>,
    /// How often each kind came in each of its manners.
    manners: BTreeMap<FaultKind, BTreeMap<String, u32>>,
    /// What has to come of each.
    due: BTreeMap<FaultKind, Due>,
    remarks: Vec<String>,
}

/// What has to come of a kind of fault in a full run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// How often.
    pub times: usize,
    /// In which manners, each at least once.
    pub manners: &'static [&'static str],
}

impl Due {
    /// The manner that has to come now, if all of them shall have come in the end: `came` says how
    /// often each did so far.
    fn wanted(&self, came: &BTreeMap<String, u32>, chance: &mut Chance) -> Option<&'static str> {
        let has_come = |manner: &&&str| came.get(**manner).is_some_and(|times| *times > 0);
        let open: Vec<&'static str> = self
            .manners
            .iter()
            .filter(|manner| !has_come(manner))
            .copied()
            .collect();
        let times = came.values().sum::<u32>() as usize;
        let is_time = self.times <= times + open.len();
        chance.pick(&open).copied().filter(|_| is_time)
    }
}

impl Injector {
    /// An injector for a run of these kinds.
    pub fn new(
        env: &Env,
        recorder: &Recorder,
        seed: u64,
        due: &BTreeMap<FaultKind, Due>,
        nodes: &[u32],
    ) -> Injector {
        let mut chance = Chance::fork(seed, 2);
        Injector {
            env: env.clone(),
            recorder: recorder.clone(),
            active: Vec::new(),
            recovering: Vec::new(),
            shown: Rc::default(),
            rot_target: chance.pick(nodes).copied(),
            is_alone: nodes.len() == 1,
            rots: due.contains_key(&FaultKind::BitRot),
            is_rotted: false,
            changes: BTreeMap::new(),
            manners: BTreeMap::new(),
            due: due.clone(),
            remarks: Vec::new(),
        }
    }

    /// What could not be done.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// The node whose files were damaged, if it is there.
    pub fn rotted(&self) -> Option<u32> {
        self.rot_target.filter(|_| self.is_rotted)
    }

    /// Names of the faults that are on, for whoever shows progress.
    pub fn shown(&self) -> Rc<RefCell<Vec<&'static str>>> {
        self.shown.clone()
    }

    fn show(&self) {
        let names = self
            .active
            .iter()
            .map(|active| active.turn.step.kind.name());
        *self.shown.borrow_mut() = names.collect();
    }

    /// Does the steps at their times, counted from `began`, until the last one is done or `until`
    /// is over. What is on then stays on: see [`Injector::undo_all`].
    ///
    /// # Errors
    /// Faults that could not be undone: the run is then of no use.
    pub async fn run(
        &mut self,
        cluster: &mut Cluster,
        schedule: Schedule,
        (began, until): (Instant, Instant),
    ) -> anyhow::Result<()> {
        let mut agenda = Agenda::new(schedule);
        loop {
            let now = self.env.now();
            if now >= until {
                return Ok(());
            }
            cluster.notice_ends();
            for turn in self.undo_due(cluster, now).await? {
                agenda.again(self.env.now() - began, turn);
            }
            self.notice_recovery(cluster).await;
            let next = agenda.next(self.env.now() - began, |step| self.has_room(step));
            let Some(turn) = next else {
                self.env.sleep(LOOK).await;
                continue;
            };
            if !self.inject(cluster, turn.clone(), began).await {
                agenda.again(self.env.now() - began, turn);
            }
            self.show();
        }
    }

    fn has_room(&self, step: &Step) -> bool {
        // Nothing is learnt from a cluster that never comes back: between two times that all nodes
        // are gone it is whole, and takes writes.
        let mut before = self.recovering.iter();
        let is_all_again =
            step.kind == FaultKind::PowerAll && before.any(|before| before.kind == step.kind);
        let is_only_one_again =
            self.is_alone && step.kind.takes_a_node() && !self.recovering.is_empty();
        if is_all_again || is_only_one_again {
            return false;
        }
        let on = self.active.iter().map(|active| active.turn.step.kind);
        has_room(step.kind, &on.collect::<Vec<_>>())
    }

    /// Counts a fault that took hold in one of its manners, which may say more after a comma.
    fn count_manner(&mut self, kind: FaultKind, manner: &str) -> String {
        let (manner, _) = manner.split_once(',').unwrap_or((manner, ""));
        let counts = self.manners.entry(kind).or_default();
        *counts.entry(manner.to_owned()).or_default() += 1;
        manner.to_owned()
    }

    /// Whether it took hold, as far as that can be said now.
    async fn inject(&mut self, cluster: &mut Cluster, turn: Turn, began: Instant) -> bool {
        let step = &turn.step;
        let id = self.recorder.fault_id();
        let name = step.kind.name();
        let mut chance = Chance::new(step.seed);
        if step.kind == FaultKind::Restart {
            // It takes its time: it begins with its first signal, not when all is over.
            let targets = cluster.ids();
            let detail = "SIGTERM and a new process, node by node";
            self.recorder.fault_began(id, name, "", &targets, detail);
            self.note_overtaken(|_| true);
            let restarted = self.rolling_restart(cluster, &targets).await;
            let end = restarted.map_or_else(|error| format!("{error:#}"), |()| String::new());
            self.recorder
                .fault(id, name, FaultPhase::End, &targets, &end);
            self.watch_recovery(id, step.kind, targets);
            return true;
        }
        let proofs = [Proof::Calls, Proof::Full, Proof::Looks];
        let before = proofs.map(|proof| (proof, count(cluster, proof)));
        match self.strike(cluster, step.kind, &mut chance).await {
            Ok(done) => {
                let Done {
                    targets,
                    manner,
                    detail,
                    undo,
                } = done;
                // From here on it is this one that clients feel.
                self.note_overtaken(|_| true);
                self.recorder
                    .fault_began(id, name, &manner, &targets, &detail);
                if matches!(undo, Undo::Nothing) {
                    self.recorder
                        .fault(id, name, FaultPhase::End, &targets, &detail);
                    return true;
                }
                let proof = proof_of(step.kind, &undo);
                let before = before.into_iter().find(|(of, _)| *of == proof);
                let manner = self.count_manner(step.kind, &manner);
                // Where striking took long, it holds all the same.
                let least = self.env.now() + turn.outlasts.unwrap_or_default() + LOOK;
                self.active.push(Active {
                    id,
                    targets,
                    manner,
                    until: (began + turn.until).max(least),
                    turn,
                    undo,
                    proof,
                    before: before.map_or(0, |(_, count)| count),
                });
                true
            }
            Err(error) => {
                let detail = format!("{error:#}");
                self.recorder
                    .fault(id, name, FaultPhase::Refused, &[], &detail);
                self.remarks.push(format!("{name} was refused: {detail}"));
                false
            }
        }
    }

    async fn strike(
        &mut self,
        cluster: &mut Cluster,
        kind: FaultKind,
        chance: &mut Chance,
    ) -> anyhow::Result<Done> {
        let ids = cluster.ids();
        let one = *chance.pick(&ids).context("there is no node")?;
        let none = BTreeMap::new();
        let came = self.manners.get(&kind).unwrap_or(&none);
        let due = self.due.get(&kind);
        let wanted = due.and_then(|due| due.wanted(came, chance));
        match kind {
            FaultKind::Kill => {
                let targets = running(cluster, some_of(&ids, wanted, chance))?;
                for id in &targets {
                    cluster.kill(*id).await?;
                }
                Ok(Done {
                    manner: how_many(&targets, &ids),
                    detail: "SIGKILL".to_owned(),
                    undo: Undo::Start(targets.clone()),
                    targets,
                })
            }
            FaultKind::Pause => {
                let targets = running(cluster, some_of(&ids, wanted, chance))?;
                for id in &targets {
                    cluster.node(*id)?.pause();
                }
                self.see_stopped(cluster, &targets).await?;
                Ok(Done {
                    manner: how_many(&targets, &ids),
                    detail: "SIGSTOP".to_owned(),
                    undo: Undo::Resume(targets.clone()),
                    targets,
                })
            }
            FaultKind::Freeze => {
                let targets = running(cluster, vec![one])?;
                cluster.node(one)?.freeze()?;
                self.see_stopped(cluster, &targets).await?;
                Ok(Done {
                    targets,
                    manner: String::new(),
                    detail: "frozen by its control group".to_owned(),
                    undo: Undo::Resume(vec![one]),
                })
            }
            FaultKind::Restart => bail!("a rolling restart strikes no single node"),
            FaultKind::Transfer => transfer(cluster, chance).await,
            FaultKind::Partition
            | FaultKind::PartitionOneWay
            | FaultKind::PartitionReset
            | FaultKind::Delay
            | FaultKind::Loss
            | FaultKind::Reorder
            | FaultKind::Duplicate
            | FaultKind::Bandwidth => {
                let peers = cluster.nodes().iter().map(|node| network::Peer {
                    id: node.id(),
                    host: node.place.host,
                });
                let peers: Vec<network::Peer> = peers.collect();
                let fault = network::draw(kind, &peers, wanted, chance);
                let fault = fault.context("no network fault")?;
                let layer = cluster.topology.links.put(fault.table);
                Ok(Done {
                    targets: fault.targets,
                    manner: fault.manner,
                    detail: fault.detail,
                    undo: Undo::Network(layer),
                })
            }
            FaultKind::DiskSlow
            | FaultKind::DiskError
            | FaultKind::ReadError
            | FaultKind::DiskShort
            | FaultKind::DiskFull
            | FaultKind::FlushFail => {
                let writers = membership::writers(&ids, &cluster.partitions().await);
                let one = *chance.pick(&writers).context("there is no node")?;
                running(cluster, vec![one])?;
                // One that still starts may refuse to: nobody has been promised anything yet.
                let serves = cluster.serves(one).await;
                let done = break_disk(cluster, (kind, serves), one, chance)?;
                if kind == FaultKind::ReadError {
                    // What it serves it mostly has in memory; what it reads for certain is what it
                    // starts from.
                    cluster.kill(one).await?;
                    cluster.start(one)?;
                    cluster.node(one)?.tolerate_end();
                }
                Ok(done)
            }
            FaultKind::PowerOne => cut_power(cluster, vec![one]).await,
            FaultKind::PowerAll => cut_power(cluster, ids).await,
            FaultKind::BitRot => {
                let target = self.rot_target.context("there is no node")?;
                if !membership::is_minority(target, &cluster.partitions().await, &ids) {
                    bail!("node {target} is no minority of some partition");
                }
                let first = due.map_or(&[][..], |due| due.manners);
                let done = rot(cluster, target, came, first, chance).await?;
                self.is_rotted = true;
                Ok(done)
            }
            FaultKind::Clock => {
                let size = chance.between(100, CLOCK_JUMP_MS_MAX);
                let millis = i64::try_from(size)? * if chance.percent(50) { 1 } else { -1 };
                let nanos = millis.saturating_mul(1_000_000);
                let node = cluster.node(one)?;
                let host = node.place.host;
                let control = node.control.as_ref();
                control
                    .context("no library in the process")?
                    .shift_wall(nanos)?;
                Ok(Done {
                    targets: vec![one],
                    manner: if millis < 0 { "back" } else { "forward" }.to_owned(),
                    detail: format!("the wall clock jumps by {:.1} s", millis as f64 / 1000.0),
                    undo: Undo::Clocks(vec![host]),
                })
            }
            FaultKind::Membership => {
                let fragile = self.rot_target.filter(|_| self.rots);
                let begun = membership::begin(cluster, fragile, &mut self.changes, chance).await?;
                Ok(Done {
                    targets: begun.targets,
                    manner: begun.manner,
                    detail: begun.detail,
                    undo: Undo::Change(begun.change),
                })
            }
        }
    }

    async fn rolling_restart(&mut self, cluster: &mut Cluster, ids: &[u32]) -> anyhow::Result<()> {
        for id in ids {
            cluster.terminate(*id, STOP_WAIT_MAX).await?;
            cluster.start(*id)?;
            let deadline = self.env.now() + BACK_WAIT_MAX;
            while !cluster.serves(*id).await && self.env.now() < deadline {
                let now = self.env.now();
                // A fault beside this one that hit nothing has its next turn in the plan.
                self.undo_due(cluster, now).await?;
                self.env.sleep(LOOK).await;
            }
        }
        Ok(())
    }

    /// Undoes what is over. Returns what has hit nothing.
    async fn undo_due(&mut self, cluster: &mut Cluster, now: Instant) -> anyhow::Result<Vec<Turn>> {
        let mut missed = Vec::new();
        while let Some(place) = self.active.iter().position(|active| active.until <= now) {
            let mut active = self.active.remove(place);
            let turn = active.turn.clone();
            if let Undo::Change(change) = &mut active.undo {
                match self.advance(cluster, change).await? {
                    Advance::Waits => {
                        active.until = self.env.now() + LOOK;
                        self.active.push(active);
                    }
                    over if self.end_change(active, &over) => {}
                    _ => missed.push(turn),
                }
                continue;
            }
            if !self.undo(cluster, active).await? {
                missed.push(turn);
            }
            self.show();
        }
        Ok(missed)
    }

    /// Undoes everything that is on, and lets changes of membership come to their end. Returns those
    /// that do not, a sentence each.
    ///
    /// # Errors
    /// What could not be undone.
    pub async fn undo_all(&mut self, cluster: &mut Cluster) -> anyhow::Result<Vec<String>> {
        let mut changes = Vec::new();
        while let Some(active) = self.active.pop() {
            match active.undo {
                Undo::Change(_) => changes.push(active),
                _ => {
                    self.undo(cluster, active).await?;
                }
            }
            self.show();
        }
        let mut stuck = Vec::new();
        for mut active in changes {
            let deadline = self.env.now() + CHANGE_WAIT_MAX;
            while let Undo::Change(change) = &mut active.undo {
                match self.advance(cluster, change).await? {
                    Advance::Waits if self.env.now() < deadline => self.env.sleep(LOOK).await,
                    Advance::Waits => {
                        let why = change.waits_for();
                        let limit = CHANGE_WAIT_MAX.as_secs();
                        stuck.push(format!(
                            "a change of membership does not end within {limit} s of the heal: {why}"
                        ));
                        break;
                    }
                    over => {
                        self.end_change(active, &over);
                        break;
                    }
                }
            }
        }
        Ok(stuck)
    }

    async fn advance(
        &mut self,
        cluster: &mut Cluster,
        change: &mut Change,
    ) -> anyhow::Result<Advance> {
        let advanced = change.advance(cluster).await?;
        if let Some((gone, fresh)) = change.take_succession()
            && self.rot_target == Some(gone)
        {
            self.rot_target = Some(fresh);
            self.is_rotted = false;
        }
        Ok(advanced)
    }

    /// Notes how a change of membership ended. Whether it took place.
    fn end_change(&mut self, active: Active, over: &Advance) -> bool {
        let name = active.turn.step.kind.name();
        let (phase, detail) = match over {
            Advance::Done(detail) => (FaultPhase::End, detail),
            Advance::Refused(detail) => (FaultPhase::Missed, detail),
            Advance::Waits => return false,
        };
        self.recorder
            .fault(active.id, name, phase, &active.targets, detail);
        self.watch_recovery(active.id, active.turn.step.kind, active.targets);
        self.show();
        phase == FaultPhase::End
    }

    /// Whether it has hit anything.
    async fn undo(&mut self, cluster: &mut Cluster, active: Active) -> anyhow::Result<bool> {
        let hits = self.hits(cluster, &active).await;
        let Active {
            id,
            turn,
            targets,
            manner,
            undo,
            proof,
            ..
        } = active;
        let kind = turn.step.kind;
        self.undo_by(cluster, undo)
            .await
            .with_context(|| format!("cannot undo {}", kind.name()))?;
        let detail = match proof {
            Proof::Done => String::new(),
            Proof::Touched(_) => format!("{hits} packets, chunks or connections were touched"),
            Proof::Calls => format!("{hits} calls were hit"),
            Proof::Full => format!("no space was said {hits} times"),
            Proof::Looks => format!("it was looked at {hits} times"),
        };
        let happened = proof == Proof::Done || hits > 0;
        let phase = match happened {
            true => FaultPhase::End,
            false => FaultPhase::Missed,
        };
        if !happened && let Some(times) = self.manners.entry(kind).or_default().get_mut(&manner) {
            *times = times.saturating_sub(1);
        }
        self.recorder
            .fault(id, kind.name(), phase, &targets, &detail);
        self.watch_recovery(id, kind, targets);
        Ok(happened)
    }

    /// What a fault has hit, as far as that is counted.
    async fn hits(&self, cluster: &mut Cluster, active: &Active) -> u64 {
        let counted = count(cluster, active.proof).saturating_sub(active.before);
        if active.proof != Proof::Full || counted > 0 {
            return counted;
        }
        // It may have looked before it wrote.
        let mut seen = 0;
        for id in &active.targets {
            if let Ok(node) = cluster.node(*id)
                && let Some(status) = node.status(&self.env).await
            {
                seen += u64::from(status["storage"]["is_disk_full"] == true);
            }
        }
        seen
    }

    /// Waits until every thread of these nodes stands still.
    async fn see_stopped(&self, cluster: &mut Cluster, ids: &[u32]) -> anyhow::Result<()> {
        let deadline = self.env.now() + STOP_SEEN_MAX;
        for id in ids {
            while !cluster.node(*id)?.is_seen_stopped() {
                if self.env.now() > deadline {
                    for id in ids {
                        cluster.node(*id)?.resume();
                    }
                    bail!("node {id} goes on");
                }
                self.env.sleep(STOP_SEEN_MAX / 100).await;
            }
        }
        Ok(())
    }

    fn watch_recovery(&mut self, id: u64, kind: FaultKind, targets: Vec<u32>) {
        self.recovering.push(Recovering {
            id,
            kind,
            targets,
            until: self.env.now() + RECOVERY_WAIT_MAX,
        });
    }

    /// Notes that the cluster is whole again. While another fault holds it is not asked: a node
    /// that does not answer would keep this one from being undone in time.
    async fn notice_recovery(&mut self, cluster: &Cluster) {
        let now = self.env.now();
        self.note_overtaken(|before| before.until <= now);
        if self.recovering.is_empty() || !self.active.is_empty() || !cluster.is_whole().await {
            return;
        }
        self.note_whole();
    }

    /// Notes that the cluster was not whole up to now after these, and looks no further.
    fn note_overtaken(&mut self, is_over: impl Fn(&Recovering) -> bool) {
        for before in self.recovering.extract_if(.., |before| is_over(before)) {
            let name = before.kind.name();
            let phase = FaultPhase::Overtaken;
            self.recorder
                .fault(before.id, name, phase, &before.targets, "");
        }
    }

    /// Notes that the cluster is whole.
    pub fn note_whole(&mut self) {
        for before in self.recovering.drain(..) {
            let name = before.kind.name();
            self.recorder
                .fault(before.id, name, FaultPhase::Recovered, &before.targets, "");
        }
    }

    async fn undo_by(&self, cluster: &mut Cluster, undo: Undo) -> anyhow::Result<()> {
        match undo {
            Undo::Nothing => {}
            Undo::Start(ids) => {
                for id in ids {
                    cluster.start(id)?;
                }
            }
            Undo::Resume(ids) => {
                for id in ids {
                    cluster.node(id)?.resume();
                }
            }
            Undo::Network(layer) => cluster.topology.links.take(layer),
            Undo::MendAndReplace(id) => {
                mend(cluster, id)?;
                cluster.kill(id).await?;
                cluster.start(id)?;
            }
            Undo::Mend(id) => {
                mend(cluster, id)?;
                // It may have refused to start on such a disk.
                cluster.start(id)?;
            }
            Undo::PowerOn(ids) => {
                for id in &ids {
                    let node = cluster.node(*id)?;
                    let image = node.image.as_ref().context("no disk of its own")?;
                    image.power_on(&self.env).await?;
                }
                for id in ids {
                    cluster.start(id)?;
                }
            }
            // It ends by itself.
            Undo::Change(_) => {}
            Undo::Clocks(hosts) => {
                for host in hosts {
                    let machine = cluster.machine(host);
                    if let Some(control) = machine.and_then(|node| node.control.as_ref()) {
                        control.shift_wall(0)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// What shows that a fault of this kind has hit something.
fn proof_of(kind: FaultKind, undo: &Undo) -> Proof {
    match (kind, undo) {
        (_, Undo::Network(layer)) => Proof::Touched(*layer),
        (FaultKind::DiskFull, _) => Proof::Full,
        (FaultKind::Clock, _) => Proof::Looks,
        (_, Undo::Mend(_) | Undo::MendAndReplace(_)) => Proof::Calls,
        _ => Proof::Done,
    }
}
