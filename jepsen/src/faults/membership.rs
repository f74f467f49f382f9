//! Changes of membership: a further node joins, one is removed for good, a fresh one takes its place.
//!
//! Replicas stay where they were created: a partition whose node was removed is one short from then
//! on. So only a node is removed without which every partition that it has a replica of keeps a
//! majority; what is damaged, or is the node that bit rot strikes, is not counted on.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::chance::Chance;
use crate::cluster::members::Removal;
use crate::cluster::{Cluster, PartitionState};

/// How long a node may take to stop on SIGTERM.
const STOP_WAIT_MAX: Duration = Duration::from_secs(30);
/// Fewest members: of fewer, none is a minority.
const MEMBERS_MIN: usize = 3;
/// Percent of nodes that are stopped properly before they are removed; the others are killed.
const STOPPED_PERCENT: u64 = 50;

const JOIN: &str = "join";
const LEAVE: &str = "leave";
const REPLACE: &str = "replace";

/// What shall become of a node that is being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Its machine stays empty.
    Free,
    /// A fresh node takes its place.
    Replace,
}

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A fresh node is on its way in.
    Joining { node: u32 },
    /// A node that is down is to be removed.
    Removing { node: u32, then: Then },
    /// A node without replicas is to be removed while it runs.
    Dismissing { node: u32 },
    /// It was, and has to end.
    Ending { node: u32 },
}

/// A change that has begun.
#[derive(Debug)]
pub struct Change {
    stage: Stage,
    /// How often somebody was asked.
    turn: usize,
    /// What it waits for.
    waits_for: String,
    /// Nodes that gave way to others.
    succeeded: Option<(u32, u32)>,
}

/// What came of looking after a change.
#[derive(Debug, PartialEq, Eq)]
pub enum Advance {
    /// All of it is done.
    Done(String),
    /// The cluster refused it, and is as before.
    Refused(String),
    /// Not yet.
    Waits,
}

/// A change that has begun, for the history.
pub struct Begun {
    pub change: Change,
    pub targets: Vec<u32>,
    pub manner: String,
    pub detail: String,
}

/// Begins a change that is possible now: of those the one that came least often.
///
/// # Parameters
/// `fragile` is a node whose replicas may be damaged at any time. `times` says how often each manner
/// came so far.
///
/// # Errors
/// That none is possible; the operating system's.
pub async fn begin(
    cluster: &mut Cluster,
    fragile: Option<u32>,
    times: &mut BTreeMap<&'static str, u32>,
    chance: &mut Chance,
) -> anyhow::Result<Begun> {
    let partitions = cluster.partitions().await;
    let members = cluster.ids();
    let removable: Vec<u32> = members
        .iter()
        .copied()
        .filter(|id| may_go(*id, &partitions, &members, fragile))
        .collect();
    let holds_replicas = |id: u32| {
        let mut states = partitions.values();
        states.any(|state| state.replicas.contains(&id))
    };
    // Bit rot goes on where the one that it struck was.
    let free: Vec<u32> = removable
        .iter()
        .copied()
        .filter(|id| members.len() > MEMBERS_MIN && Some(*id) != fragile)
        .collect();
    let mut possible = Vec::new();
    if cluster.has_spare() {
        possible.push(JOIN);
    }
    if !free.is_empty() {
        possible.push(LEAVE);
    }
    if !removable.is_empty() {
        possible.push(REPLACE);
    }
    chance.shuffle(&mut possible);
    let manner = possible
        .into_iter()
        .min_by_key(|manner| times.get(manner).copied().unwrap_or(0))
        .context("without any node some partition would have no majority")?;
    let begun = match manner {
        JOIN => {
            let node = cluster.join()?;
            Begun::of(
                Stage::Joining { node },
                node,
                manner,
                format!("n{node} joins"),
            )
        }
        LEAVE => {
            let node = *chance.pick(&free).context("no node may leave")?;
            if !holds_replicas(node) {
                cluster.node(node)?.tolerate_end();
                let detail = format!("n{node} is removed while it runs, without replicas");
                Begun::of(Stage::Dismissing { node }, node, manner, detail)
            } else {
                let how = stop(cluster, node, chance).await?;
                let then = Then::Free;
                let detail = format!("n{node} {how} and is removed");
                Begun::of(Stage::Removing { node, then }, node, manner, detail)
            }
        }
        _ => {
            // One whose data goes with it, if there is one.
            let holders = removable.iter().copied().filter(|id| holds_replicas(*id));
            let holders: Vec<u32> = holders.collect();
            let from = if holders.is_empty() {
                &removable
            } else {
                &holders
            };
            let node = *chance.pick(from).context("no node may leave")?;
            let how = stop(cluster, node, chance).await?;
            let then = Then::Replace;
            let detail = format!("n{node} {how} and is removed, a fresh node takes its place");
            Begun::of(Stage::Removing { node, then }, node, manner, detail)
        }
    };
    *times.entry(manner).or_default() += 1;
    Ok(begun)
}

async fn stop(
    cluster: &mut Cluster,
    node: u32,
    chance: &mut Chance,
) -> anyhow::Result<&'static str> {
    if !cluster.serves(node).await {
        bail!("node {node} does not serve");
    }
    if chance.percent(STOPPED_PERCENT) {
        cluster.terminate(node, STOP_WAIT_MAX).await?;
        Ok("stops")
    } else {
        cluster.kill(node).await?;
        Ok("dies")
    }
}

/// Whether every partition that the node has a replica of keeps a majority without it, and so does
/// the cluster.
fn may_go(
    node: u32,
    partitions: &BTreeMap<(String, u32), PartitionState>,
    members: &[u32],
    fragile: Option<u32>,
) -> bool {
    let fragile = fragile.filter(|fragile| *fragile != node);
    let counts = |state: &PartitionState, id: u32| {
        id != node
            && Some(id) != fragile
            && members.contains(&id)
            && state.in_sync.contains(&id)
            && !state.damaged.contains(&id)
    };
    let keeps_majority = |state: &PartitionState| {
        let replicas = state.replicas.iter().copied();
        let left = replicas.filter(|id| counts(state, *id)).count();
        left * 2 > state.replicas.len()
    };
    members.len() >= MEMBERS_MIN
        && partitions
            .values()
            .filter(|state| state.replicas.contains(&node))
            .all(keeps_majority)
}

/// Those of these nodes on whose disks something is written: a newcomer has no replica yet. All of them
/// where nothing is known.
pub fn writers(ids: &[u32], partitions: &BTreeMap<(String, u32), PartitionState>) -> Vec<u32> {
    let holds = |id: &u32| partitions.values().any(|state| state.replicas.contains(id));
    let writers: Vec<u32> = ids.iter().copied().filter(holds).collect();
    match writers.is_empty() {
        true => ids.to_vec(),
        false => writers,
    }
}

/// Whether nobody but this node is missing from any partition that it has a replica of: damage to it
/// alone is damage to a minority.
pub fn is_minority(
    node: u32,
    partitions: &BTreeMap<(String, u32), PartitionState>,
    members: &[u32],
) -> bool {
    partitions
        .values()
        .filter(|state| state.replicas.contains(&node))
        .all(|state| {
            let others = state.living(members).into_iter().filter(|id| *id != node);
            others.count() * 2 > state.replicas.len()
        })
}

impl Begun {
    fn of(stage: Stage, target: u32, manner: &str, detail: String) -> Begun {
        Begun {
            change: Change {
                stage,
                turn: 0,
                waits_for: String::new(),
                succeeded: None,
            },
            targets: vec![target],
            manner: manner.to_owned(),
            detail,
        }
    }
}

impl Change {
    /// What it waits for.
    pub fn waits_for(&self) -> &str {
        &self.waits_for
    }

    /// The node that was removed and the one that took its place, each time that is so once.
    pub fn take_succession(&mut self) -> Option<(u32, u32)> {
        self.succeeded.take()
    }

    /// Does what can be done now.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn advance(&mut self, cluster: &mut Cluster) -> anyhow::Result<Advance> {
        self.turn += 1;
        match self.stage {
            Stage::Joining { node } => {
                if cluster.has_joined(node).await {
                    return Ok(Advance::Done(format!("n{node} serves, and all know it")));
                }
                self.waits_for = format!("n{node} has not joined");
            }
            Stage::Removing { node, then } => match cluster.decommission(node, self.turn).await {
                Removal::Done if then == Then::Free => {
                    cluster.dismiss(node)?;
                    return Ok(Advance::Done(format!("n{node} is gone for good")));
                }
                Removal::Done => {
                    let fresh = cluster.replace(node)?;
                    self.succeeded = Some((node, fresh));
                    self.stage = Stage::Joining { node: fresh };
                    self.waits_for = format!("n{fresh} has not joined in the place of n{node}");
                }
                Removal::Refused(why) | Removal::Unknown(why) => {
                    self.waits_for = format!("n{node} is not removed: {why}");
                }
            },
            Stage::Dismissing { node } => match cluster.decommission(node, self.turn).await {
                Removal::Done => {
                    self.stage = Stage::Ending { node };
                    self.waits_for = format!("n{node} was removed and does not end");
                }
                // A replica has come to it meanwhile.
                Removal::Refused(why) => {
                    cluster.node(node)?.forbid_end();
                    return Ok(Advance::Refused(why));
                }
                Removal::Unknown(why) => {
                    self.waits_for = format!("n{node} is not removed: {why}");
                }
            },
            Stage::Ending { node } => {
                cluster.notice_ends();
                if !cluster.node(node)?.is_running() {
                    cluster.dismiss(node)?;
                    return Ok(Advance::Done(format!(
                        "n{node} is gone for good, and has ended by itself"
                    )));
                }
            }
        }
        Ok(Advance::Waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(replicas: &[u32], in_sync: &[u32], damaged: &[u32]) -> PartitionState {
        PartitionState {
            leader: in_sync.first().copied(),
            leader_epoch: 1,
            replicas: replicas.to_vec(),
            in_sync: in_sync.to_vec(),
            damaged: damaged.to_vec(),
        }
    }

    fn those_that_may_go(states: &[PartitionState], members: &[u32], fragile: u32) -> Vec<u32> {
        let partitions = (0..).zip(states.iter().cloned());
        let partitions = partitions
            .map(|(number, state)| (("t".to_owned(), number), state))
            .collect();
        let fragile = Some(fragile).filter(|id| *id > 0);
        let ids = members.iter().copied();
        ids.filter(|id| may_go(*id, &partitions, members, fragile))
            .collect()
    }

    #[test]
    fn a_node_goes_only_if_every_partition_keeps_a_majority() {
        let whole = state(&[1, 2, 3], &[1, 2, 3], &[]);
        let all = [1, 2, 3];
        assert_eq!(
            those_that_may_go(std::slice::from_ref(&whole), &all, 0),
            all
        );
        // One that is behind, or damaged, does not count; nor does one that will be damaged.
        let behind = state(&[1, 2, 3], &[1, 3], &[]);
        assert_eq!(those_that_may_go(&[whole.clone(), behind], &all, 0), [2]);
        let damaged = state(&[1, 2, 3], &[1, 2, 3], &[1]);
        assert_eq!(those_that_may_go(&[damaged], &all, 0), [1]);
        assert_eq!(
            those_that_may_go(std::slice::from_ref(&whole), &all, 3),
            [3]
        );
        // Three was replaced by four: what is one short loses nobody more, what is newer may.
        let short = state(&[1, 2, 3], &[1, 2], &[]);
        let newer = state(&[1, 2, 4], &[1, 2, 4], &[]);
        let now = [1, 2, 4];
        assert_eq!(those_that_may_go(&[short, newer], &now, 0), [4]);
        // Two are never left alone.
        assert!(those_that_may_go(&[], &[1, 2], 0).is_empty());
    }

    #[test]
    fn damage_may_strike_a_minority_only() {
        let one = |state: PartitionState| BTreeMap::from([(("t".to_owned(), 0), state)]);
        let whole = one(state(&[1, 2, 3], &[1, 2, 3], &[]));
        assert!(is_minority(3, &whole, &[1, 2, 3]));
        assert!(!is_minority(2, &whole, &[1, 2, 4]), "three is gone");
        assert!(is_minority(4, &whole, &[1, 2, 4]), "it has none of it");
    }
}
