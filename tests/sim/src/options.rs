//! What a run is told: its seed, its length, and which faults may happen in it.

use std::fmt;
use std::str::FromStr;

/// A class of faults. Each can be left out, to shrink a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultClass {
    /// A process dies; its machine and its page cache live.
    Kill,
    /// One machine loses power: what was not flushed is lost, in parts.
    Power,
    /// All machines lose power at once.
    PowerAll,
    /// Power fails in the middle of a chosen operation of the disk: torn and lost writes.
    Torn,
    /// A node is stopped in order and started again.
    Stop,
    /// Links are cut in both directions.
    Partition,
    /// A link is cut in one direction.
    OneWay,
    /// Links get slow, and connections overtake each other.
    Delay,
    /// A disk gets slow.
    SlowDisk,
    /// A flush fails; the node's process is restarted later.
    FailedFlush,
    /// Wall clocks jump.
    Clock,
    /// A disk has no space left for a while; its node goes on afterwards without a restart.
    DiskFull,
    /// Bits flip in the files of one node, in a run always the same one: a minority.
    BitRot,
    /// A topic is deleted and created again all the time. No fault, but what makes others worse.
    Recreate,
    /// Consumer groups, whose members come and go. No fault either.
    Groups,
    /// Nodes join, and others leave for good.
    Membership,
    /// Batches of a producer epoch that is over. No fault: what none of our clients sends.
    Fencing,
    /// The latest offset is asked for, of every node. No fault either.
    Latest,
    /// A copy of a node's disk is started beside it.
    Twin,
}

impl FaultClass {
    /// All of them.
    pub const ALL: [FaultClass; 19] = [
        FaultClass::Kill,
        FaultClass::Power,
        FaultClass::PowerAll,
        FaultClass::Torn,
        FaultClass::Stop,
        FaultClass::Partition,
        FaultClass::OneWay,
        FaultClass::Delay,
        FaultClass::SlowDisk,
        FaultClass::FailedFlush,
        FaultClass::Clock,
        FaultClass::DiskFull,
        FaultClass::BitRot,
        FaultClass::Recreate,
        FaultClass::Groups,
        FaultClass::Membership,
        FaultClass::Fencing,
        FaultClass::Latest,
        FaultClass::Twin,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FaultClass::Kill => "kill",
            FaultClass::Power => "power",
            FaultClass::PowerAll => "power-all",
            FaultClass::Torn => "torn",
            FaultClass::Stop => "stop",
            FaultClass::Partition => "partition",
            FaultClass::OneWay => "one-way",
            FaultClass::Delay => "delay",
            FaultClass::SlowDisk => "slow-disk",
            FaultClass::FailedFlush => "failed-flush",
            FaultClass::Clock => "clock",
            FaultClass::DiskFull => "disk-full",
            FaultClass::BitRot => "bit-rot",
            FaultClass::Recreate => "recreate",
            FaultClass::Groups => "groups",
            FaultClass::Membership => "membership",
            FaultClass::Fencing => "fencing",
            FaultClass::Latest => "latest",
            FaultClass::Twin => "twin",
        }
    }
}

impl fmt::Display for FaultClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FaultClass {
    type Err = String;

    fn from_str(text: &str) -> Result<FaultClass, String> {
        let known = FaultClass::ALL.into_iter();
        known
            .clone()
            .find(|class| class.name() == text)
            .ok_or_else(|| {
                let names: Vec<&str> = known.map(FaultClass::name).collect();
                format!(
                    "no class of faults has this name; there are {}",
                    names.join(", ")
                )
            })
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Everything that is drawn comes from it.
    pub seed: u64,
    /// Length of the phase with faults, in simulated seconds.
    pub fault_seconds: u64,
    /// Faults that do not happen.
    pub without: Vec<FaultClass>,
}

impl RunOptions {
    /// The classes that may happen.
    pub fn classes(&self) -> Vec<FaultClass> {
        let all = FaultClass::ALL.into_iter();
        all.filter(|class| !self.without.contains(class)).collect()
    }
}
