//! Network faults as link tables: shapes of partitions, and links that are bad.

use std::time::Duration;

use super::FaultKind;
use crate::chance::Chance;
use crate::topology::link::{Cut, Host, Link, LinkTable};

/// Shapes of a partition, as histories name them.
const ISOLATE: &str = "isolate";
const BRIDGE: &str = "bridge";
const HALVES: &str = "halves";
const RING: &str = "ring";
/// And of one that carries in one direction: a node does not hear, or is not heard.
pub const DEAF: &str = "deaf";
pub const MUTE: &str = "mute";
/// Percent of partitions that leave one node alone whatever else is possible.
const ISOLATE_PERCENT: u64 = 40;
/// Percent of partitions in which clients stay with one side.
const WITH_CLIENTS_PERCENT: u64 = 25;

/// A network fault, ready to be put on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkFault {
    /// What it does to which direction.
    pub table: LinkTable,
    /// Nodes that it strikes.
    pub targets: Vec<u32>,
    /// Its shape.
    pub manner: String,
    /// In words.
    pub detail: String,
}

/// A node and the host that it lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: u32,
    /// Whose cables it uses.
    pub host: Host,
}

fn ids(peers: &[Peer]) -> Vec<u32> {
    peers.iter().map(|peer| peer.id).collect()
}

/// The shapes of a partition that are possible among so many nodes.
pub fn shapes(nodes: usize) -> &'static [&'static str] {
    match nodes {
        // Three in halves are one that is alone.
        0..=2 => &[ISOLATE],
        3 => &[ISOLATE, BRIDGE],
        4 => &[ISOLATE, BRIDGE, HALVES],
        // Everybody hears a majority, nobody the same one: needs five.
        _ => &[ISOLATE, BRIDGE, HALVES, RING],
    }
}

/// Draws a fault of a network kind among these nodes, in the wanted manner or in any; `None` for any
/// other kind.
pub fn draw(
    kind: FaultKind,
    nodes: &[Peer],
    wanted: Option<&'static str>,
    chance: &mut Chance,
) -> Option<NetworkFault> {
    match kind {
        FaultKind::Partition => Some(partition(nodes, Cut::Silent, wanted, chance)),
        FaultKind::PartitionReset => Some(partition(nodes, Cut::Reset, wanted, chance)),
        FaultKind::PartitionOneWay => Some(one_way(nodes, wanted, chance)),
        _ => bad_link(kind, chance).map(|(link, what)| everywhere_near(nodes, link, what, chance)),
    }
}

fn cut(cut: Cut) -> Link {
    Link {
        cut,
        ..Link::default()
    }
}

/// Nodes as people name them: `n1 n3`.
fn names(nodes: &[Peer]) -> String {
    let names: Vec<String> = nodes.iter().map(|peer| format!("n{}", peer.id)).collect();
    names.join(" ")
}

fn partition(
    nodes: &[Peer],
    how: Cut,
    wanted: Option<&'static str>,
    chance: &mut Chance,
) -> NetworkFault {
    let mut order = nodes.to_vec();
    chance.shuffle(&mut order);
    let count = order.len();
    let manner = if how == Cut::Reset {
        "with resets"
    } else {
        "silently"
    };
    let mut table = LinkTable::default();
    let mut apart = |one: Peer, other: Peer| {
        table.add(one.host, other.host, cut(how));
        table.add(other.host, one.host, cut(how));
    };
    let drawn = match chance.percent(ISOLATE_PERCENT) {
        true => ISOLATE,
        false => chance.pick(shapes(count)).copied().unwrap_or(ISOLATE),
    };
    match wanted.unwrap_or(drawn) {
        RING => {
            for (place, one) in order.iter().enumerate() {
                for (other_place, other) in order.iter().enumerate().skip(place + 1) {
                    let distance = other_place - place;
                    if distance != 1 && distance != count - 1 {
                        apart(*one, *other);
                    }
                }
            }
            NetworkFault {
                table,
                manner: RING.to_owned(),
                detail: format!("ring {}, {manner}", names(&order)),
                targets: ids(&order),
            }
        }
        BRIDGE => {
            let (bridge, rest) = order.split_at(1);
            let (left, right) = rest.split_at(rest.len() / 2);
            for one in left {
                for other in right {
                    apart(*one, *other);
                }
            }
            NetworkFault {
                manner: BRIDGE.to_owned(),
                detail: format!(
                    "bridge: {} | {} with {} between, {manner}",
                    names(left),
                    names(right),
                    names(bridge)
                ),
                targets: ids(rest),
                table,
            }
        }
        shape => {
            let size = if shape == HALVES { count / 2 } else { 1 };
            let (minority, rest) = order.split_at(size.max(1).min(count));
            for one in minority {
                for other in rest {
                    apart(*one, *other);
                }
            }
            let mut clients = "";
            if chance.percent(WITH_CLIENTS_PERCENT) {
                for one in minority {
                    table.add(one.host, Host::CLIENTS, cut(how));
                    table.add(Host::CLIENTS, one.host, cut(how));
                }
                clients = ", with clients";
            }
            NetworkFault {
                manner: format!("{shape}{clients}"),
                detail: format!("{} | {}{clients}, {manner}", names(minority), names(rest)),
                targets: ids(minority),
                table,
            }
        }
    }
}

/// A node that does not hear others, or is not heard by them.
fn one_way(nodes: &[Peer], wanted: Option<&'static str>, chance: &mut Chance) -> NetworkFault {
    let mut order = nodes.to_vec();
    chance.shuffle(&mut order);
    let (one, rest) = order.split_at(1);
    // One link, or all of that node.
    let others = if chance.percent(50) {
        &rest[..rest.len().min(1)]
    } else {
        rest
    };
    let drawn = chance.percent(50);
    let is_deaf = wanted.map_or(drawn, |wanted| wanted == DEAF);
    let mut table = LinkTable::default();
    for one in one {
        for other in others {
            let (source, target) = if is_deaf { (other, one) } else { (one, other) };
            table.add(source.host, target.host, cut(Cut::Silent));
        }
    }
    let verb = if is_deaf {
        "does not hear"
    } else {
        "is not heard by"
    };
    NetworkFault {
        table,
        manner: if is_deaf { DEAF } else { MUTE }.to_owned(),
        targets: ids(one),
        detail: format!("{} {verb} {}", names(one), names(others)),
    }
}

fn bad_link(kind: FaultKind, chance: &mut Chance) -> Option<(Link, String)> {
    let perfect = Link::default();
    Some(match kind {
        FaultKind::Delay => {
            let delay = Duration::from_millis(chance.between(10, 200));
            let jitter = Duration::from_millis(chance.between(0, 100));
            let link = Link {
                delay,
                jitter,
                ..perfect
            };
            (link, format!("{delay:?} more, and up to {jitter:?}"))
        }
        FaultKind::Loss => {
            let loss_permille = chance.between(10, 200) as u16;
            let link = Link {
                loss_permille,
                ..perfect
            };
            (link, format!("{loss_permille} of 1000 packets lost"))
        }
        FaultKind::Duplicate => {
            let duplicate_permille = chance.between(50, 500) as u16;
            let link = Link {
                duplicate_permille,
                ..perfect
            };
            (link, format!("{duplicate_permille} of 1000 packets twice"))
        }
        FaultKind::Reorder => {
            let reorder_permille = chance.between(50, 300) as u16;
            let link = Link {
                reorder_permille,
                jitter: Duration::from_millis(5),
                ..perfect
            };
            (link, format!("{reorder_permille} of 1000 packets late"))
        }
        FaultKind::Bandwidth => {
            let rate = chance.between(50_000, 500_000);
            let link = Link {
                bytes_per_second: Some(rate),
                ..perfect
            };
            (link, format!("{} kB/s", rate / 1000))
        }
        _ => return None,
    })
}

/// A bad link around one node or between all, with clients or without.
fn everywhere_near(nodes: &[Peer], link: Link, what: String, chance: &mut Chance) -> NetworkFault {
    let around = if chance.percent(50) {
        chance.pick(nodes).copied()
    } else {
        None
    };
    let mut hosts: Vec<Host> = nodes.iter().map(|peer| peer.host).collect();
    let mut clients = "";
    if chance.percent(50) {
        hosts.push(Host::CLIENTS);
        clients = ", clients too";
    }
    let mut table = LinkTable::default();
    for source in &hosts {
        for target in &hosts {
            let is_near = around.is_none_or(|peer| *source == peer.host || *target == peer.host);
            if source != target && is_near {
                table.add(*source, *target, link);
            }
        }
    }
    let (targets, place) = match around {
        Some(peer) => (vec![peer.id], format!("around n{}", peer.id)),
        None => (ids(nodes), "everywhere".to_owned()),
    };
    NetworkFault {
        table,
        manner: if around.is_some() {
            "around one node"
        } else {
            "everywhere"
        }
        .to_owned(),
        targets,
        detail: format!("{what}, {place}{clients}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(id: u32) -> Host {
        Host::node(u8::try_from(id).expect("a host's number"))
    }

    fn peers(ids: &[u32]) -> Vec<Peer> {
        let peers = ids.iter().map(|id| Peer {
            id: *id,
            host: host(*id),
        });
        peers.collect()
    }

    fn silent(fault: &NetworkFault, one: u32, other: u32) -> bool {
        fault.table.link(host(one), host(other)).cut == Cut::Silent
    }

    #[test]
    fn a_partition_leaves_out_the_same_hosts_both_ways() {
        for seed in 0..200 {
            let nodes = peers(&[1, 2, 3]);
            let fault = partition(&nodes, Cut::Silent, None, &mut Chance::new(seed));
            let mut cuts = 0;
            for (one, other) in [(1, 2), (1, 3), (2, 3)] {
                assert_eq!(silent(&fault, one, other), silent(&fault, other, one));
                cuts += u32::from(silent(&fault, one, other));
            }
            assert!((1..=2).contains(&cuts), "{fault:?}");
        }
    }

    #[test]
    fn every_shape_that_is_possible_comes_when_it_is_wanted() {
        for count in 2..=5 {
            let nodes = peers(&(1..=count).collect::<Vec<_>>());
            for kind in [FaultKind::Partition, FaultKind::PartitionReset] {
                for shape in shapes(nodes.len()) {
                    let drawn = draw(kind, &nodes, Some(shape), &mut Chance::new(7));
                    let manner = drawn.expect("a network fault").manner;
                    assert!(manner.starts_with(shape), "{manner} of {count}");
                }
            }
            for manner in [DEAF, MUTE] {
                let kind = FaultKind::PartitionOneWay;
                let drawn = draw(kind, &nodes, Some(manner), &mut Chance::new(7));
                assert_eq!(drawn.expect("a network fault").manner, manner);
            }
        }
        assert_eq!(shapes(3), [ISOLATE, BRIDGE], "half of three is one");
    }

    #[test]
    fn in_a_ring_everybody_hears_two_others() {
        let nodes = [1, 2, 3, 4, 5];
        let mut rings = 0;
        for seed in 0..200 {
            let fault = partition(&peers(&nodes), Cut::Silent, None, &mut Chance::new(seed));
            if !fault.detail.starts_with("ring") {
                continue;
            }
            rings += 1;
            for one in nodes {
                let heard = nodes
                    .iter()
                    .filter(|other| **other != one && !silent(&fault, one, **other));
                assert_eq!(heard.count(), 2, "{}", fault.detail);
            }
        }
        assert!(rings > 10);
    }

    #[test]
    fn one_way_is_one_way() {
        for seed in 0..100 {
            let fault = one_way(&peers(&[1, 2, 3]), None, &mut Chance::new(seed));
            let cut = |one, other| silent(&fault, one, other);
            let pairs = [(1, 2), (1, 3), (2, 3)];
            assert!(pairs.iter().any(|(a, b)| cut(*a, *b) != cut(*b, *a)));
            assert!(!pairs.iter().any(|(a, b)| cut(*a, *b) && cut(*b, *a)));
        }
    }
}
