//! The faults by name, when they come, and how they are done and undone.

pub mod damage;
pub mod inject;
pub mod membership;
pub mod network;
pub mod plan;
pub mod proof;
pub mod shim;
mod strike;

use std::collections::BTreeSet;
use std::time::Duration;

/// What a lease, and a leader that nobody hears, last at the nodes' default settings: what is shorter
/// shows neither an election nor a deposed leader.
const LEASE: Duration = Duration::from_secs(3);
/// The session of a member of a group, in the `group` workload; also more than the 5 s that clients
/// wait for one answer.
const SESSION: Duration = Duration::from_secs(6);
/// How often each kind comes at least in a full run.
pub const TIMES_EACH: usize = 3;
/// How many nodes are killed or paused: of one more than half of them a majority is gone, and nobody
/// may acknowledge anything to `acks=all`.
const ONE_NODE: &str = "one node";
const MOST_NODES: &str = "most nodes";
const ALL_NODES: &str = "all nodes";

/// A kind of fault, as one asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// SIGKILL; later a new process on the same files.
    Kill,
    /// SIGSTOP; later SIGCONT.
    Pause,
    /// The whole process group stopped at once by a control group.
    Freeze,
    /// SIGTERM and a new process, node by node.
    Restart,
    /// A leadership moved by command.
    Transfer,
    /// Nodes do not hear one another, silently.
    Partition,
    /// One direction does not carry.
    PartitionOneWay,
    /// Connections between nodes are reset.
    PartitionReset,
    /// Packets take longer, each another time.
    Delay,
    /// Packets are lost.
    Loss,
    /// Packets overtake one another.
    Reorder,
    /// Packets arrive twice.
    Duplicate,
    /// Links carry little.
    Bandwidth,
    /// Writes and flushes take long.
    DiskSlow,
    /// Some writes fail with EIO.
    DiskError,
    /// Some reads fail with EIO.
    ReadError,
    /// Some writes write only a part.
    DiskShort,
    /// No space is left.
    DiskFull,
    /// Flushes fail, and flush nothing.
    FlushFail,
    /// A node and its disk lose power: what was not flushed is gone.
    PowerOne,
    /// All nodes and disks lose power at once.
    PowerAll,
    /// Bits flip in the files of one node, always the same one.
    BitRot,
    /// Wall clocks jump.
    Clock,
    /// Nodes join, are removed for good, and others take their place.
    Membership,
}

/// What a machine must offer for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The router that sees packets.
    Packets,
    /// Control groups with a freezer.
    Freezer,
    /// The library inside the process.
    Shim,
    /// Disks of their own for the nodes.
    Images,
    /// More than one node.
    SeveralNodes,
    /// Enough nodes that one of them is a minority.
    Minority,
}

impl FaultKind {
    /// All of them.
    pub const ALL: &'static [FaultKind] = &[
        FaultKind::Kill,
        FaultKind::Pause,
        FaultKind::Freeze,
        FaultKind::Restart,
        FaultKind::Transfer,
        FaultKind::Partition,
        FaultKind::PartitionOneWay,
        FaultKind::PartitionReset,
        FaultKind::Delay,
        FaultKind::Loss,
        FaultKind::Reorder,
        FaultKind::Duplicate,
        FaultKind::Bandwidth,
        FaultKind::DiskSlow,
        FaultKind::DiskError,
        FaultKind::ReadError,
        FaultKind::DiskShort,
        FaultKind::DiskFull,
        FaultKind::FlushFail,
        FaultKind::PowerOne,
        FaultKind::PowerAll,
        FaultKind::BitRot,
        FaultKind::Clock,
        FaultKind::Membership,
    ];

    /// Its name on the command line and in histories.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Kill => "kill",
            FaultKind::Pause => "pause",
            FaultKind::Freeze => "freeze",
            FaultKind::Restart => "restart",
            FaultKind::Transfer => "leadership-transfer",
            FaultKind::Partition => "partition",
            FaultKind::PartitionOneWay => "partition-one-way",
            FaultKind::PartitionReset => "connection-reset",
            FaultKind::Delay => "delay",
            FaultKind::Loss => "loss",
            FaultKind::Reorder => "reorder",
            FaultKind::Duplicate => "duplicate",
            FaultKind::Bandwidth => "bandwidth",
            FaultKind::DiskSlow => "disk-slow",
            FaultKind::DiskError => "disk-error",
            FaultKind::ReadError => "read-error",
            FaultKind::DiskShort => "short-write",
            FaultKind::DiskFull => "disk-full",
            FaultKind::FlushFail => "flush-fail",
            FaultKind::PowerOne => "power-loss",
            FaultKind::PowerAll => "power-loss-all",
            FaultKind::BitRot => "bit-rot",
            FaultKind::Clock => "clock",
            FaultKind::Membership => "membership",
        }
    }

    /// What it does, in a line.
    pub fn about(self) -> &'static str {
        match self {
            FaultKind::Kill => "SIGKILL, later a new process on the same files",
            FaultKind::Pause => "SIGSTOP, later SIGCONT",
            FaultKind::Freeze => "all threads stopped at once, as a virtual machine stops",
            FaultKind::Restart => "SIGTERM and a new process, node by node",
            FaultKind::Transfer => "leaderships moved by command",
            FaultKind::Partition => "isolated nodes, halves, a bridge, a ring; silent",
            FaultKind::PartitionOneWay => "one direction between nodes is silent",
            FaultKind::PartitionReset => "connections between nodes are reset",
            FaultKind::Delay => "packets take 10 to 200 ms longer",
            FaultKind::Loss => "1 to 20 % of packets are lost",
            FaultKind::Reorder => "packets overtake one another",
            FaultKind::Duplicate => "packets arrive twice",
            FaultKind::Bandwidth => "links carry 50 to 500 kB/s",
            FaultKind::DiskSlow => "writes and flushes take 5 to 200 ms longer",
            FaultKind::DiskError => "writes fail with EIO",
            FaultKind::ReadError => "reads fail with EIO",
            FaultKind::DiskShort => "writes write only a part",
            FaultKind::DiskFull => "no space is left",
            FaultKind::FlushFail => "flushes fail and flush nothing",
            FaultKind::PowerOne => "a node and its disk lose power, unflushed data is gone",
            FaultKind::PowerAll => "all nodes and disks lose power at once",
            FaultKind::BitRot => "bits flip in the files of one node",
            FaultKind::Clock => "wall clocks jump up to two hours, either way",
            FaultKind::Membership => "nodes join, are removed for good, are replaced by fresh ones",
        }
    }

    /// What the machine must offer for it.
    pub fn needs(self) -> &'static [Need] {
        match self {
            FaultKind::Kill | FaultKind::Pause | FaultKind::Restart => &[],
            FaultKind::Freeze => &[Need::Freezer],
            FaultKind::Transfer
            | FaultKind::Partition
            | FaultKind::PartitionOneWay
            | FaultKind::PartitionReset
            | FaultKind::Delay
            | FaultKind::Bandwidth => &[Need::SeveralNodes],
            FaultKind::BitRot | FaultKind::Membership => &[Need::Minority],
            FaultKind::Loss | FaultKind::Reorder | FaultKind::Duplicate => {
                &[Need::SeveralNodes, Need::Packets]
            }
            FaultKind::DiskSlow
            | FaultKind::DiskError
            | FaultKind::ReadError
            | FaultKind::DiskShort
            | FaultKind::DiskFull
            | FaultKind::FlushFail
            | FaultKind::Clock => &[Need::Shim],
            FaultKind::PowerOne | FaultKind::PowerAll => &[Need::Images],
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<FaultKind> {
        FaultKind::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == name)
    }

    /// What it has to outlast at least once in a run, with the reason: what it can bring out shows
    /// only then. Nothing for those that end by themselves.
    pub fn outlasts(self) -> Option<(Duration, &'static str)> {
        match self {
            FaultKind::Restart | FaultKind::Transfer | FaultKind::Membership => None,
            FaultKind::Kill
            | FaultKind::DiskSlow
            | FaultKind::DiskError
            | FaultKind::ReadError
            | FaultKind::DiskShort
            | FaultKind::DiskFull
            | FaultKind::FlushFail
            | FaultKind::PowerOne
            | FaultKind::PowerAll
            | FaultKind::BitRot => Some((LEASE, "a lease")),
            FaultKind::Pause
            | FaultKind::Freeze
            | FaultKind::Partition
            | FaultKind::PartitionOneWay
            | FaultKind::PartitionReset
            | FaultKind::Delay
            | FaultKind::Loss
            | FaultKind::Reorder
            | FaultKind::Duplicate
            | FaultKind::Bandwidth
            | FaultKind::Clock => Some((SESSION, "a group's session")),
        }
    }

    /// Whether it is one of the network between nodes.
    pub fn is_network(self) -> bool {
        matches!(
            self,
            FaultKind::Partition
                | FaultKind::PartitionOneWay
                | FaultKind::PartitionReset
                | FaultKind::Delay
                | FaultKind::Loss
                | FaultKind::Reorder
                | FaultKind::Duplicate
                | FaultKind::Bandwidth
        )
    }

    /// The manners of which each has to come at least once in a full run, by how a history names them
    /// (up to a comma). `trims`: whether old records are removed in the run, without which replicas
    /// have no snapshots, and only the segment that is written to.
    pub fn manners_due(self, nodes: usize, trims: bool) -> &'static [&'static str] {
        match self {
            FaultKind::Kill if nodes >= 3 => &[ONE_NODE, MOST_NODES],
            FaultKind::Partition | FaultKind::PartitionReset => network::shapes(nodes),
            FaultKind::PartitionOneWay => &[network::DEAF, network::MUTE],
            FaultKind::BitRot if trims => &["segment", "index", "snapshot", "state"],
            FaultKind::BitRot => &["segment", "state"],
            _ => &[],
        }
    }

    /// How often it has to come at least in a full run.
    pub fn times_due(self, nodes: usize, trims: bool) -> usize {
        self.manners_due(nodes, trims).len().max(TIMES_EACH)
    }

    /// Whether it takes a node out of service, so that no second one may at the same time.
    pub fn takes_a_node(self) -> bool {
        matches!(
            self,
            FaultKind::Kill
                | FaultKind::Pause
                | FaultKind::Freeze
                | FaultKind::Restart
                | FaultKind::DiskSlow
                | FaultKind::DiskError
                | FaultKind::ReadError
                | FaultKind::DiskShort
                | FaultKind::DiskFull
                | FaultKind::FlushFail
                | FaultKind::PowerOne
                | FaultKind::PowerAll
                | FaultKind::BitRot
                | FaultKind::Membership
        )
    }
}

/// Names that stand for several faults.
const GROUPS: &[(&str, &[FaultKind])] = &[
    ("all", FaultKind::ALL),
    ("none", &[]),
    (
        "process",
        &[
            FaultKind::Kill,
            FaultKind::Pause,
            FaultKind::Freeze,
            FaultKind::Restart,
            FaultKind::Transfer,
        ],
    ),
    (
        "network",
        &[
            FaultKind::Partition,
            FaultKind::PartitionOneWay,
            FaultKind::PartitionReset,
            FaultKind::Delay,
            FaultKind::Loss,
            FaultKind::Reorder,
            FaultKind::Duplicate,
            FaultKind::Bandwidth,
        ],
    ),
    (
        "disk",
        &[
            FaultKind::DiskSlow,
            FaultKind::DiskError,
            FaultKind::ReadError,
            FaultKind::DiskShort,
            FaultKind::DiskFull,
            FaultKind::FlushFail,
            FaultKind::BitRot,
        ],
    ),
    ("power", &[FaultKind::PowerOne, FaultKind::PowerAll]),
];

/// What `--faults` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The faults, each once.
    pub kinds: BTreeSet<FaultKind>,
    /// Whether each must be possible: not those that come by `all`.
    pub by_name: BTreeSet<FaultKind>,
}

/// Reads a comma separated list of faults and groups.
///
/// # Errors
/// A name that is none, with those that are.
pub fn parse(text: &str) -> Result<Asked, String> {
    let mut asked = Asked {
        kinds: BTreeSet::new(),
        by_name: BTreeSet::new(),
    };
    for name in text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        if let Some((group, kinds)) = GROUPS.iter().find(|(group, _)| *group == name) {
            asked.kinds.extend(kinds.iter());
            if *group != "all" {
                asked.by_name.extend(kinds.iter());
            }
            continue;
        }
        let kind = FaultKind::ALL.iter().find(|kind| kind.name() == name);
        match kind {
            Some(kind) => {
                asked.kinds.insert(*kind);
                asked.by_name.insert(*kind);
            }
            None => {
                let names: Vec<&str> = FaultKind::ALL.iter().map(|kind| kind.name()).collect();
                let groups: Vec<&str> = GROUPS.iter().map(|(group, _)| *group).collect();
                return Err(format!(
                    "`{name}` is no fault; faults are {}; groups are {}",
                    names.join(", "),
                    groups.join(", ")
                ));
            }
        }
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_asked_for_by_name_or_group() {
        let asked = parse("kill, power").expect("names");
        let kinds: Vec<&str> = asked.kinds.iter().map(|kind| kind.name()).collect();
        assert_eq!(kinds, ["kill", "power-loss", "power-loss-all"]);
        assert_eq!(asked.kinds, asked.by_name);
        let all = parse("all,clock").expect("names");
        assert_eq!(all.kinds.len(), FaultKind::ALL.len());
        assert_eq!(all.by_name.len(), 1, "only what was named must be possible");
        assert!(parse("none").expect("a group").kinds.is_empty());
        assert!(parse("kil").expect_err("no such fault").contains("kill"));
    }
}
