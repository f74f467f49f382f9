//! What happens to bytes between two hosts, by direction.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// A host of the test network: a node by its id, or all clients together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host(u8);

impl Host {
    /// The harness and its clients.
    pub const CLIENTS: Host = Host(0);

    /// The node of this id (1 to 99).
    pub fn node(id: u8) -> Host {
        Host(id)
    }

    /// 0 for the clients, else the node's id.
    pub fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("clients"),
            id => write!(f, "n{id}"),
        }
    }
}

/// Whether a direction carries anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// It does.
    #[default]
    Open,
    /// Bytes vanish without a word, as behind a pulled cable. TCP sends them again after the heal.
    Silent,
    /// The sender gets a reset, as from a firewall that rejects.
    Reset,
}

/// One direction between two hosts. The default is a perfect cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Whether it carries anything.
    pub cut: Cut,
    /// Added to each packet's way.
    pub delay: Duration,
    /// Up to this much more, drawn for each packet.
    pub jitter: Duration,
    /// Packets of a thousand that are lost.
    pub loss_permille: u16,
    /// Packets of a thousand that arrive twice.
    pub duplicate_permille: u16,
    /// Packets of a thousand that later ones overtake.
    pub reorder_permille: u16,
    /// Bandwidth; `None` is unlimited.
    pub bytes_per_second: Option<u64>,
}

impl Link {
    /// What two faults on the same direction come to.
    pub fn and(self, other: Link) -> Link {
        let slower = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Link {
            cut: match (self.cut, other.cut) {
                (Cut::Silent, _) | (_, Cut::Silent) => Cut::Silent,
                (Cut::Reset, _) | (_, Cut::Reset) => Cut::Reset,
                (Cut::Open, Cut::Open) => Cut::Open,
            },
            delay: self.delay + other.delay,
            jitter: self.jitter + other.jitter,
            loss_permille: self.loss_permille.max(other.loss_permille),
            duplicate_permille: self.duplicate_permille.max(other.duplicate_permille),
            reorder_permille: self.reorder_permille.max(other.reorder_permille),
            bytes_per_second: slower(self.bytes_per_second, other.bytes_per_second),
        }
    }
}

/// All directions that are not perfect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkTable {
    links: BTreeMap<(Host, Host), Link>,
}

impl LinkTable {
    /// The direction from one host to another.
    pub fn link(&self, source: Host, target: Host) -> Link {
        self.links
            .get(&(source, target))
            .copied()
            .unwrap_or_default()
    }

    /// Adds a fault to a direction.
    pub fn add(&mut self, source: Host, target: Host, link: Link) {
        let both = self.link(source, target).and(link);
        self.links.insert((source, target), both);
    }
}

/// What was done to a packet, a chunk of a stream or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It did not pass, or was reset.
    Cut,
    /// It takes longer.
    Late,
    /// It was lost.
    Lost,
    /// It goes twice.
    Doubled,
    /// Later ones overtake it.
    Overtaken,
    /// It had to wait for the link, or found its queue full.
    Throttled,
}

impl Link {
    /// Whether this link does such a thing.
    fn does(self, touch: Touch) -> bool {
        match touch {
            Touch::Cut => self.cut != Cut::Open,
            // Packets that others overtake have a jitter of their own, which is no delay.
            Touch::Late => {
                self.reorder_permille == 0 && (!self.delay.is_zero() || !self.jitter.is_zero())
            }
            Touch::Lost => self.loss_permille > 0,
            Touch::Doubled => self.duplicate_permille > 0,
            Touch::Overtaken => self.reorder_permille > 0,
            Touch::Throttled => self.bytes_per_second.is_some(),
        }
    }
}

/// The table that those who carry bytes obey, and the faults that it comes from.
#[derive(Debug, Default)]
pub struct Wiring {
    sum: LinkTable,
    layers: Vec<Layer>,
}

#[derive(Clone, Debug)]
struct Layer {
    table: LinkTable,
    /// What it has touched: a fault that touched nothing did not happen.
    touched: Arc<AtomicU64>,
}

impl Wiring {
    /// The direction from one host to another.
    pub fn link(&self, source: Host, target: Host) -> Link {
        self.sum.link(source, target)
    }

    /// Something on that direction was touched: counts for each fault that does so there.
    pub fn touch(&self, (source, target): (Host, Host), touch: Touch) {
        let doing = self.layers.iter();
        for layer in doing.filter(|layer| layer.table.link(source, target).does(touch)) {
            layer.touched.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The network's state: one owner changes it, those that carry bytes look at it.
///
/// Law: the table is the sum of the layers, one for each network fault that is on.
pub struct Links {
    layers: BTreeMap<u64, Layer>,
    next_layer: u64,
    table: watch::Sender<Arc<Wiring>>,
}

impl Default for Links {
    fn default() -> Links {
        Links {
            layers: BTreeMap::new(),
            next_layer: 0,
            table: watch::Sender::new(Arc::default()),
        }
    }
}

impl Links {
    /// Puts a fault on top of those that are on; the number takes it off again.
    pub fn put(&mut self, layer: LinkTable) -> u64 {
        let number = self.next_layer;
        self.next_layer += 1;
        let layer = Layer {
            table: layer,
            touched: Arc::default(),
        };
        self.layers.insert(number, layer);
        self.publish();
        number
    }

    /// How many packets, chunks and connections a fault has touched so far.
    pub fn touched(&self, number: u64) -> u64 {
        let layer = self.layers.get(&number);
        layer.map_or(0, |layer| layer.touched.load(Ordering::Relaxed))
    }

    /// Takes a fault off.
    pub fn take(&mut self, number: u64) {
        self.layers.remove(&number);
        self.publish();
    }

    /// Takes everything off.
    pub fn heal(&mut self) {
        self.layers.clear();
        self.publish();
    }

    /// The table as it is and as it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<Wiring>> {
        self.table.subscribe()
    }

    fn publish(&self) {
        let mut sum = LinkTable::default();
        for layer in self.layers.values() {
            for ((source, target), link) in &layer.table.links {
                sum.add(*source, *target, *link);
            }
        }
        let layers = self.layers.values().cloned().collect();
        self.table.send_replace(Arc::new(Wiring { sum, layers }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heal_takes_off_one_fault_and_leaves_the_others() {
        let (a, b) = (Host::node(1), Host::node(2));
        let layer = |link: Link| {
            let mut table = LinkTable::default();
            table.add(a, b, link);
            table
        };
        let slow = Link {
            delay: Duration::from_millis(50),
            ..Link::default()
        };
        let cut = Link {
            cut: Cut::Silent,
            ..Link::default()
        };
        let mut links = Links::default();
        let watched = links.watch();
        let _slow = links.put(layer(slow));
        let number = links.put(layer(cut));
        assert_eq!(watched.borrow().link(a, b), slow.and(cut));
        assert_eq!(watched.borrow().link(b, a), Link::default());
        links.take(number);
        assert_eq!(watched.borrow().link(a, b), slow);
        links.heal();
        assert_eq!(watched.borrow().link(a, b), Link::default());
    }

    #[test]
    fn what_is_touched_counts_for_the_faults_that_do_so_there() {
        let (a, b) = (Host::node(1), Host::node(2));
        let layer = |source, target, link: Link| {
            let mut table = LinkTable::default();
            table.add(source, target, link);
            table
        };
        let silent = Link {
            cut: Cut::Silent,
            ..Link::default()
        };
        let lossy = Link {
            loss_permille: 10,
            ..Link::default()
        };
        let mut links = Links::default();
        let there = links.put(layer(a, b, silent));
        let back = links.put(layer(b, a, silent));
        let loss = links.put(layer(a, b, lossy));
        let wiring = links.watch().borrow().clone();
        wiring.touch((a, b), Touch::Cut);
        wiring.touch((a, b), Touch::Cut);
        wiring.touch((a, b), Touch::Late);
        assert_eq!(links.touched(there), 2);
        assert_eq!(links.touched(back), 0, "nothing came that way");
        assert_eq!(links.touched(loss), 0, "nothing was lost");
    }
}
