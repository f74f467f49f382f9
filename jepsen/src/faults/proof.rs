//! What shows that a fault has hit something: one that hit nothing did not happen.

use super::shim::Control;
use crate::cluster::Cluster;

/// What shows that a fault has hit something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It was seen to be done.
    Done,
    /// The network's layer has touched packets, chunks or connections.
    Touched(u64),
    /// The library has hit calls.
    Calls,
    /// The disk said that it is full, or the node itself says so.
    Full,
    /// A shifted clock was looked at.
    Looks,
}

/// What was counted so far. At most one fault of the disks is on at a time, and one of the clocks,
/// so the nodes' numbers may be added up.
pub fn count(cluster: &Cluster, proof: Proof) -> u64 {
    // Also of machines that somebody has left: their numbers only grow.
    let controls = cluster.machines();
    let controls = controls.filter_map(|node| node.control.as_ref());
    match proof {
        Proof::Done => 0,
        Proof::Touched(layer) => cluster.topology.links.touched(layer),
        Proof::Calls => controls.map(Control::hits).sum(),
        Proof::Full => controls
            .map(|control| control.hits() + control.full())
            .sum(),
        Proof::Looks => controls.map(Control::wall_looks).sum(),
    }
}
