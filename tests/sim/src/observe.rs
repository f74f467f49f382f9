//! What the checker sees of a cluster at one moment, without touching it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use corduroy::controller::MetadataImage;
use corduroy::node::LocalNode;
use corduroy_group::table::GroupTable;
use corduroy_raft::{Replica, ReplicaView, Role};
use corduroy_record::{GroupId, LogIndex, NodeId, Offset, ReplicaId, Term};
use corduroy_storage::{EpochStart, LogState, SegmentBoundary};

use crate::history::VoterSets;
use crate::machine::Machine;
use crate::network::Host;
use crate::trace::mix_bytes;

/// One replica at one moment.
#[derive(Clone)]
pub struct ReplicaSeen {
    /// Which replica of the group it is.
    pub replica: ReplicaId,
    /// What Raft says.
    pub view: ReplicaView,
    /// Its log.
    pub log: LogState,
    /// Log start, last stable, high watermark, log end, where it is an open partition.
    pub marks: Option<[Offset; 4]>,
    /// Whether its group sleeps here.
    pub asleep: bool,
    /// The consumer groups, of a partition of `__consumer_offsets`.
    pub groups: Option<Rc<GroupTable>>,
    /// What changes with its log or its term only.
    pub slow: Rc<SlowSeen>,
    /// It was seen like this in an earlier life of its node, which has not opened it again.
    pub of_the_dead: bool,
}

/// What is looked at only when the log, the term or the role changed.
pub struct SlowSeen {
    /// Members: replica, node, whether it votes.
    pub members: Vec<(ReplicaId, NodeId, bool)>,
    /// The newest membership of the log, committed or not, and where it lies.
    pub membership: Option<(LogIndex, VoterSets)>,
    /// Where each term begins.
    pub epochs: Vec<EpochStart>,
    /// The segments.
    pub segments: Vec<SegmentBoundary>,
    /// A hash of the state machine's tables.
    pub tables: u64,
}

impl ReplicaSeen {
    /// Whether it leads and may serve.
    pub fn leads(&self) -> bool {
        !self.of_the_dead && self.view.role == Role::Leader && self.view.leader_ready
    }

    /// The replicas that vote, as far as it knows.
    pub fn voters(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        let members = self.slow.members.iter();
        members.filter(|(_, _, votes)| *votes).map(|(id, _, _)| *id)
    }

    /// The term of an entry of its log, from the epoch table.
    pub fn term_of(&self, index: LogIndex) -> Option<Term> {
        if self.log.last.is_none_or(|(_, last)| index > last) {
            return None;
        }
        if let Some((term, at)) = self.log.log_start.prev
            && at == index
        {
            return Some(term);
        }
        let before = self.slow.epochs.iter().rev();
        let start = before.into_iter().find(|start| start.first_index <= index);
        start.map(|start| start.term)
    }

    /// Whether its disk surely holds this entry, or a snapshot past it.
    pub fn holds_durably(&self, index: LogIndex, term: Term) -> bool {
        if index < self.log.log_start.index {
            return true;
        }
        self.log.durable_last >= Some(index) && self.term_of(index) == Some(term)
    }
}

/// One node at one moment.
#[derive(Clone, Default)]
pub struct NodeSeen {
    /// How often it was started.
    pub incarnation: u64,
    /// Whether there is a process.
    pub up: bool,
    /// Its replicas; those that it has not opened in this life as they were last.
    pub replicas: BTreeMap<GroupId, ReplicaSeen>,
    /// The controller's image, as the node has it.
    pub image: Option<Arc<MetadataImage>>,
    /// Why its disk takes nothing any more.
    pub disk_failure: Option<String>,
    /// Bytes queued to other nodes.
    pub queued_bytes: usize,
}

/// The cluster at one moment.
#[derive(Clone, Default)]
pub struct Seen {
    /// Since the run began, in simulated milliseconds.
    pub at_millis: u64,
    /// All nodes.
    pub nodes: BTreeMap<Host, NodeSeen>,
    /// The node whose files were damaged, if one was: what it had on disk may be gone.
    pub rotten: Option<Host>,
    /// Nodes that had no space, and until when, in simulated milliseconds, their replicas may begin
    /// anew within one process because of it.
    pub full_until: BTreeMap<Host, u64>,
    /// Groups of topics that were deleted. A node that has not heard of it may open one anew, and
    /// has nothing of it: nobody is promised anything any more.
    pub gone: Rc<BTreeSet<GroupId>>,
}

impl Seen {
    /// Notes groups that `newest`, the newest image so far, had and a newer one has not.
    pub fn note_gone(&mut self, newest: &mut Option<Arc<MetadataImage>>) {
        let Some(image) = self.image().cloned() else {
            return;
        };
        if newest
            .as_ref()
            .is_some_and(|known| known.version >= image.version)
        {
            return;
        }
        let groups = |image: &MetadataImage| -> BTreeSet<GroupId> {
            let topics = image.topics.values();
            topics.flat_map(|topic| topic.groups()).collect()
        };
        if let Some(known) = newest.replace(image.clone()) {
            let now = groups(&image);
            let before = groups(&known);
            let gone: Vec<GroupId> = before.difference(&now).copied().collect();
            if !gone.is_empty() {
                Rc::make_mut(&mut self.gone).extend(gone);
            }
        }
    }

    /// Whether replicas of a node may end and begin anew within one process: it has no space, or had
    /// none a moment ago, or meets damage in its files.
    pub fn may_begin_anew(&self, host: Host) -> bool {
        let until = self.full_until.get(&host);
        self.rotten == Some(host) || until.is_some_and(|until| *until >= self.at_millis)
    }

    /// All replicas of all nodes.
    pub fn replicas(&self) -> impl Iterator<Item = (Host, GroupId, &ReplicaSeen)> {
        self.nodes.iter().flat_map(|(host, node)| {
            let replicas = node.replicas.iter();
            replicas.map(|(group, replica)| (*host, *group, replica))
        })
    }

    /// Replicas of processes that run now.
    pub fn running(&self) -> impl Iterator<Item = (Host, GroupId, &ReplicaSeen)> {
        self.replicas()
            .filter(|(_, _, replica)| !replica.of_the_dead)
    }

    /// All replicas of one group.
    pub fn of_group(&self, group: GroupId) -> impl Iterator<Item = (Host, &ReplicaSeen)> {
        self.nodes.iter().filter_map(move |(host, node)| {
            let replica = node.replicas.get(&group)?;
            Some((*host, replica))
        })
    }

    /// A replica, if its node lives the same life in `later`.
    pub fn in_life_of(&self, later: &Seen, host: Host, group: GroupId) -> Option<&ReplicaSeen> {
        let (then, now) = (self.nodes.get(&host)?, later.nodes.get(&host)?);
        let replica = then.replicas.get(&group)?;
        (then.incarnation == now.incarnation && !replica.of_the_dead).then_some(replica)
    }

    /// The newest image that any node has.
    pub fn image(&self) -> Option<&Arc<MetadataImage>> {
        let images = self.nodes.values().filter_map(|node| node.image.as_ref());
        images.max_by_key(|image| image.version)
    }

    /// How many replicas durably hold an entry. The one on a disk that was damaged on purpose may
    /// have held it.
    pub fn durable_copies(&self, group: GroupId, index: LogIndex, term: Term) -> usize {
        let replicas = self.of_group(group);
        replicas
            .filter(|(host, replica)| {
                replica.holds_durably(index, term) || self.rotten == Some(*host)
            })
            .count()
    }

    /// Replaces what was seen of one machine by what there is now. `known` are the replicas that it
    /// had at the last look of this life: what one did before it closed counts too.
    pub fn look(&mut self, host: Host, machine: &Machine, known: &mut Vec<Replica>) {
        let node = self.nodes.entry(host).or_default();
        let reborn = node.incarnation != machine.incarnation();
        node.incarnation = machine.incarnation();
        node.up = machine.is_up();
        if reborn || !node.up {
            for replica in node.replicas.values_mut() {
                replica.of_the_dead = true;
            }
            node.disk_failure = None;
            node.image = None;
            node.queued_bytes = 0;
        }
        if reborn {
            known.clear();
        }
        let local = machine.node();
        let handles = local.replicas();
        let open: Vec<GroupId> = handles.iter().map(Replica::group).collect();
        known.retain(|handle| open.binary_search(&handle.group()).is_err());
        for handle in known.iter().chain(&handles) {
            let before = node.replicas.get(&handle.group());
            let mut seen = look_at(handle, local, before);
            // One that was closed, as on an orderly stop, is still on the disk.
            if open.binary_search(&handle.group()).is_err() {
                seen.of_the_dead = true;
                if let Some(before) = before {
                    seen.view = before.view;
                }
            }
            node.replicas.insert(handle.group(), seen);
        }
        known.extend(handles);
        if !node.up {
            return;
        }
        node.image = local.image();
        node.disk_failure = local.disk_failure();
        node.queued_bytes = local.raft_metrics().iter().map(|m| m.queued_bytes).sum();
    }
}

fn look_at(handle: &Replica, local: &LocalNode, before: Option<&ReplicaSeen>) -> ReplicaSeen {
    let (view, log) = (handle.view(), handle.log().state());
    let same = before.filter(|before| {
        !before.of_the_dead
            && before.replica == handle.id()
            && before.view.term == view.term
            && before.view.role == view.role
            && before.view.applied == view.applied
            && before.log.last == log.last
            && before.log.log_start == log.log_start
    });
    let slow = match same {
        Some(before) => before.slow.clone(),
        None => Rc::new(SlowSeen {
            members: handle.members(),
            membership: handle.membership(),
            epochs: handle.log().epochs().starts().to_vec(),
            segments: handle.log().segment_boundaries(),
            tables: mix_bytes(0, &handle.tables()),
        }),
    };
    let known = same.and_then(|before| before.groups.clone());
    ReplicaSeen {
        replica: handle.id(),
        view,
        log,
        marks: local.watermarks(handle.group()),
        groups: known.or_else(|| local.groups(handle.group()).map(Rc::new)),
        asleep: handle.is_asleep(),
        slow,
        of_the_dead: false,
    }
}
