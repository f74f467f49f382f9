//! What single faults do to nodes and their disks, and how that is undone.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use rustix::process::Signal;

use super::membership::Change;
use super::shim::Writes;
use super::{ALL_NODES, FaultKind, MOST_NODES, ONE_NODE, damage};
use crate::chance::Chance;
use crate::cluster::Cluster;
use crate::topology::link::Host;

/// Percent of kills and pauses that strike every node, and more than half of them.
const EVERYBODY_PERCENT: u64 = 15;
const MOST_PERCENT: u64 = 20;

/// How a fault is undone.
pub(super) enum Undo {
    Nothing,
    Start(Vec<u32>),
    Resume(Vec<u32>),
    Network(u64),
    /// The disk works again; the process, which may not trust it any more, is replaced.
    MendAndReplace(u32),
    /// The disk works again; the process has to go on by itself.
    Mend(u32),
    PowerOn(Vec<u32>),
    Clocks(Vec<Host>),
    /// It is no fault to undo, but has to come to its end.
    Change(Change),
}

/// What was done, before it is noted.
pub(super) struct Done {
    pub(super) targets: Vec<u32>,
    pub(super) manner: String,
    pub(super) detail: String,
    pub(super) undo: Undo,
}

/// Those of them that have a process.
pub(super) fn running(cluster: &mut Cluster, ids: Vec<u32>) -> anyhow::Result<Vec<u32>> {
    cluster.notice_ends();
    let nodes = cluster.nodes().iter();
    let running: Vec<u32> = nodes
        .filter(|node| node.is_running() && ids.contains(&node.id()))
        .map(crate::cluster::node::Node::id)
        .collect();
    if running.is_empty() {
        bail!("no process of {ids:?} runs");
    }
    Ok(running)
}

pub(super) fn how_many(targets: &[u32], all: &[u32]) -> String {
    let manner = match targets.len() {
        0 | 1 => ONE_NODE,
        some if some < all.len() => MOST_NODES,
        _ => ALL_NODES,
    };
    manner.to_owned()
}

/// One node, more than half of them, or all, as it is wanted or drawn.
pub(super) fn some_of(ids: &[u32], wanted: Option<&'static str>, chance: &mut Chance) -> Vec<u32> {
    let mut order = ids.to_vec();
    chance.shuffle(&mut order);
    let drawn = match chance.below(100) {
        percent if percent < EVERYBODY_PERCENT => ALL_NODES,
        percent if percent < EVERYBODY_PERCENT + MOST_PERCENT => MOST_NODES,
        _ => ONE_NODE,
    };
    order.truncate(match wanted.unwrap_or(drawn) {
        ALL_NODES => order.len(),
        MOST_NODES => order.len() / 2 + 1,
        _ => 1,
    });
    order.sort_unstable();
    order
}

/// Moves one to three leaderships to other replicas in sync.
pub(super) async fn transfer(cluster: &Cluster, chance: &mut Chance) -> anyhow::Result<Done> {
    let mut moves = Vec::new();
    for ((topic, partition), state) in cluster.partitions().await {
        let others: Vec<u32> = state
            .in_sync
            .iter()
            .copied()
            .filter(|id| Some(*id) != state.leader)
            .collect();
        if state.leader.is_some()
            && let Some(target) = chance.pick(&others)
        {
            moves.push((topic, partition, *target));
        }
    }
    chance.shuffle(&mut moves);
    moves.truncate(usize::try_from(chance.between(1, 3))?);
    let mut done = Vec::new();
    let mut targets = Vec::new();
    let mut last = None;
    for (topic, partition, target) in moves {
        match cluster.lead(&topic, partition, target).await {
            Ok(()) => {
                done.push(format!("{topic}/{partition} to n{target}"));
                targets.push(target);
            }
            Err(error) => last = Some(error),
        }
    }
    if done.is_empty() {
        return Err(last.unwrap_or_else(|| anyhow::anyhow!("no leadership can be moved now")));
    }
    Ok(Done {
        targets,
        manner: String::new(),
        detail: done.join(", "),
        undo: Undo::Nothing,
    })
}

/// Breaks a node's disk. `serves`: whether anything has been promised there yet.
pub(super) fn break_disk(
    cluster: &mut Cluster,
    (kind, serves): (FaultKind, bool),
    target: u32,
    chance: &mut Chance,
) -> anyhow::Result<Done> {
    // A node may end, or stop its replicas, over a disk that fails; over a slow or partial one only
    // where it has not begun to serve. Before the disk breaks: it may do so at once.
    let node = cluster.node(target)?;
    let may_end = matches!(
        kind,
        FaultKind::DiskError | FaultKind::ReadError | FaultKind::FlushFail
    );
    if may_end || !serves {
        node.tolerate_end();
    }
    let broken = try_break_disk(cluster, kind, target, chance);
    if broken.is_err() {
        cluster.node(target)?.forbid_end();
    }
    broken
}

fn try_break_disk(
    cluster: &mut Cluster,
    kind: FaultKind,
    target: u32,
    chance: &mut Chance,
) -> anyhow::Result<Done> {
    let node = cluster.node(target)?;
    let control = node.control.as_ref().context("no library in the process")?;
    let permille = u32::try_from(chance.between(50, 1000))?;
    let (detail, undo) = match kind {
        FaultKind::DiskSlow => {
            let micros = u32::try_from(chance.between(5_000, 200_000))?;
            control.slow(micros, permille)?;
            let detail = format!(
                "{permille} of 1000 writes and flushes take {} ms more",
                micros / 1000
            );
            (detail, Undo::Mend(target))
        }
        FaultKind::DiskShort => {
            control.break_writes(Writes::Part, permille)?;
            let detail = format!("{permille} of 1000 writes write only a part");
            (detail, Undo::Mend(target))
        }
        FaultKind::DiskFull => match &node.image {
            Some(image) => {
                let bytes = image.fill()?;
                (format!("{} MB filled", bytes >> 20), Undo::Mend(target))
            }
            None => {
                control.break_writes(Writes::Full, 1000)?;
                ("no space for anything more".to_owned(), Undo::Mend(target))
            }
        },
        FaultKind::DiskError => {
            control.break_writes(Writes::Fail, permille)?;
            let detail = format!("{permille} of 1000 writes fail with EIO");
            (detail, Undo::MendAndReplace(target))
        }
        FaultKind::ReadError => {
            control.break_reads(permille)?;
            let detail = format!("{permille} of 1000 reads fail with EIO, of a new process");
            (detail, Undo::MendAndReplace(target))
        }
        FaultKind::FlushFail => {
            control.break_flushes()?;
            (
                "every flush fails with EIO".to_owned(),
                Undo::MendAndReplace(target),
            )
        }
        other => bail!("{} is no fault of a disk", other.name()),
    };
    Ok(Done {
        targets: vec![target],
        manner: String::new(),
        detail,
        undo,
    })
}

pub(super) fn mend(cluster: &mut Cluster, id: u32) -> anyhow::Result<()> {
    let node = cluster.node(id)?;
    if let Some(control) = &node.control {
        control.mend_disk()?;
    }
    if let Some(image) = &node.image {
        image.empty()?;
    }
    Ok(())
}

/// All processes stop first, so that none sees its disk die: then the disks, then the processes.
pub(super) async fn cut_power(cluster: &mut Cluster, targets: Vec<u32>) -> anyhow::Result<Done> {
    for id in &targets {
        cluster.node(*id)?.signal(Signal::STOP);
    }
    for id in &targets {
        let node = cluster.node(*id)?;
        let image = node.image.as_ref().context("no disk of its own")?;
        image.cut_power()?;
    }
    for id in &targets {
        cluster.kill(*id).await?;
    }
    Ok(Done {
        manner: String::new(),
        detail: "unflushed data is gone".to_owned(),
        undo: Undo::PowerOn(targets.clone()),
        targets,
    })
}

pub(super) async fn rot(
    cluster: &mut Cluster,
    target: u32,
    rotted: &BTreeMap<String, u32>,
    due: &[&str],
    chance: &mut Chance,
) -> anyhow::Result<Done> {
    cluster.kill(target).await?;
    let data_dir = cluster.node(target)?.data_dir.clone();
    let (kind, flips) = damage::rot(&data_dir, rotted, due, chance)?;
    if flips.is_empty() {
        cluster.start(target)?;
        bail!("node {target} has no files to damage yet");
    }
    let detail: Vec<String> = flips
        .iter()
        .map(|flip| {
            let path = flip.path.display();
            format!("{path} at {} ^ {:#04x}", flip.position, flip.mask)
        })
        .collect();
    Ok(Done {
        targets: vec![target],
        manner: kind,
        detail: detail.join(", "),
        undo: Undo::Start(vec![target]),
    })
}
