//! Looks at the cluster after every step and holds it against the laws.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use corduroy::controller::MetadataImage;
use corduroy_group::consumer::ConsumerGroupState;
use corduroy_group::table::{GroupKind, GroupTable};
use corduroy_raft::{Replica, Role};
use corduroy_record::{GroupId, LogIndex, Term};

use crate::group_ledger::{Told, generation_of};
use crate::group_log::GroupLogs;
use crate::history::History;
use crate::invariants::{self, Invariant, Moment};
use crate::ledger::Ledger;
use crate::machine::Machine;
use crate::network::Host;
use crate::observe::{ReplicaSeen, Seen};
use crate::sometimes::Sometimes;
use crate::trace::Trace;

/// A law is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which law.
    pub law: &'static str,
    /// How.
    pub what: String,
    /// When, in simulated milliseconds.
    pub at_millis: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation {
            law,
            what,
            at_millis,
        } = self;
        write!(f, "{law} at {at_millis} ms: {what}")
    }
}

/// How long after its disk has space again a replica may still begin anew.
const BEGINS_ANEW_MILLIS_MAX: u64 = 3_000;

/// A group that gets another generation so soon after a failover was in the middle of one, or lost
/// members with it.
const FAILOVER_MILLIS_MAX: u64 = 2_000;

/// What it has seen, and what it looks for.
pub struct Checker {
    trace: Trace,
    ledger: Ledger,
    history: History,
    groups: GroupLogs,
    told: Vec<Told>,
    /// When a group with members last came to another coordinator, in simulated milliseconds.
    failed_over_at: Option<u64>,
    invariants: Vec<Box<dyn Invariant>>,
    before: Seen,
    seen: Seen,
    fresh: Vec<(GroupId, LogIndex)>,
    leaders: BTreeMap<GroupId, (Host, Term)>,
    image: Option<Arc<MetadataImage>>,
    known: BTreeMap<Host, Vec<Replica>>,
    sometimes: Sometimes,
}

impl Checker {
    /// Has seen nothing.
    pub fn new(trace: Trace, ledger: Ledger) -> Checker {
        Checker {
            trace,
            ledger,
            history: History::default(),
            groups: GroupLogs::default(),
            told: Vec::new(),
            failed_over_at: None,
            invariants: invariants::all(),
            before: Seen::default(),
            seen: Seen::default(),
            fresh: Vec::new(),
            leaders: BTreeMap::new(),
            image: None,
            known: BTreeMap::new(),
            sometimes: Sometimes::default(),
        }
    }

    /// The cluster as it was last.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// What was committed up to now.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The newest metadata that any node ever showed.
    pub fn newest_image(&self) -> Option<&Arc<MetadataImage>> {
        self.image.as_ref()
    }

    /// The points that were reached.
    pub fn sometimes(&mut self) -> &mut Sometimes {
        &mut self.sometimes
    }

    /// A node's disk is full until then.
    pub fn note_full(&mut self, host: Host, until_millis: u64) {
        self.seen
            .full_until
            .insert(host, until_millis + BEGINS_ANEW_MILLIS_MAX);
    }

    /// A node's files were damaged.
    pub fn note_rot(&mut self, host: Host) {
        self.seen.rotten = Some(host);
    }

    /// Looks at one machine; also the last thing before it dies.
    pub fn look(&mut self, host: Host, machine: &Machine) {
        let known = self.known.entry(host).or_default();
        self.seen.look(host, machine, known);
        for handle in known {
            let seen = self.seen.nodes.get(&host);
            let seen = seen.and_then(|node| node.replicas.get(&handle.group()));
            if let Some(seen) = seen {
                let life = (host, machine.incarnation());
                self.history.absorb(life, handle, seen, &mut self.fresh);
                if seen.groups.is_some() {
                    let is_rotten = self.seen.rotten == Some(host);
                    self.groups.absorb(handle, seen, is_rotten);
                }
            }
        }
    }

    /// Lets go of what a machine held that is no more.
    pub fn let_go(&mut self, host: Host) {
        self.known.remove(&host);
    }

    /// Looks at all machines and checks every law.
    ///
    /// # Errors
    /// The first law that is broken.
    pub fn check(&mut self, machines: &BTreeMap<Host, Machine>) -> Result<(), Violation> {
        self.seen.at_millis = self.trace.millis();
        for (host, machine) in machines {
            self.look(*host, machine);
        }
        self.seen.note_gone(&mut self.image);
        self.note();
        self.look_at_groups();
        let acks = self.ledger.take_fresh();
        let fresh = std::mem::take(&mut self.fresh);
        let moment = Moment {
            seen: &self.seen,
            before: &self.before,
            history: &self.history,
            fresh: &fresh,
            acks: &acks,
            told: &self.told,
            groups: &self.groups,
            ledger: &self.ledger,
        };
        for invariant in &mut self.invariants {
            if let Err(what) = invariant.check(&moment) {
                return Err(Violation {
                    law: invariant.name(),
                    what,
                    at_millis: self.seen.at_millis,
                });
            }
        }
        self.count();
        self.count_groups();
        self.groups.begin_look();
        self.before = self.seen.clone();
        Ok(())
    }

    /// What is known of groups by now, and what their members were told up to now.
    fn look_at_groups(&mut self) {
        for (_, group, replica) in self.seen.replicas() {
            if replica.groups.is_some() {
                self.groups.note_applied(group, replica.view.applied);
            }
        }
        let ledger = self.ledger.groups();
        self.told = ledger.take_fresh();
        for (partition, table) in self.groups.newest() {
            ledger.publish(partition, table.clone());
        }
    }

    fn count_groups(&mut self) {
        let now = self.seen.at_millis;
        let generation_began = self.groups.steps().iter().any(|step| {
            let mut groups = step.after.groups();
            groups.any(|(name, after)| {
                let before = step.before.get(name).map_or(0, generation_of);
                generation_of(after) > before
            })
        });
        let until = self.failed_over_at.map(|at| at + FAILOVER_MILLIS_MAX);
        if generation_began && until.is_some_and(|until| now <= until) {
            self.sometimes.reach("failover-rebalance");
        }
        for told in &self.told {
            match told {
                Told::StaleRefused => self.sometimes.reach("stale-commit-refused"),
                Told::MemberDied => self.sometimes.reach("member-died"),
                Told::Member {
                    who,
                    above: Some(above),
                    instance: Some(_),
                    ..
                } if who.generation == *above => self.sometimes.reach("static-returned"),
                _ => {}
            }
        }
    }

    /// Changed replicas go into the trace.
    fn note(&self) {
        for (host, group, replica) in self.seen.running() {
            let node = self.before.nodes.get(&host);
            let old = node.and_then(|node| node.replicas.get(&group));
            let (view, log) = (&replica.view, &replica.log);
            if old.is_some_and(|old| old.view == *view && old.log.last == log.last) {
                continue;
            }
            let last = log.last.map_or((0, 0), |(t, index)| (t.get(), index.get()));
            let numbers = [
                u64::from(host),
                group.partition.get() as u64,
                view.role as u64,
                view.term.get(),
                view.applied.get(),
                view.high_watermark.get() as u64,
                last.0,
                last.1,
                replica.slow.tables,
            ];
            self.trace.note("state", &numbers, &[]);
        }
    }

    /// Counts the points that lie between the look before and this one.
    fn count(&mut self) {
        let mut reached: Vec<&'static str> = Vec::new();
        for (host, group, replica) in self.seen.running() {
            let node = self.before.nodes.get(&host);
            let old = node.and_then(|node| node.replicas.get(&group));
            if let Some(old) = old.filter(|old| old.replica == replica.replica) {
                let same_life = self.before.in_life_of(&self.seen, host, group).is_some();
                compare(old, replica, same_life, &mut reached);
                let lead = old.leads() && replica.leads() && group == GroupId::CONTROLLER;
                if lead && old.voters().ne(replica.voters()) {
                    reached.push("controller-voters-changed");
                }
            }
            if replica.leads() {
                let now = (host, replica.view.term);
                let known = self.leaders.entry(group).or_insert(now);
                if now.1 > known.1 {
                    if now.0 != known.0 {
                        reached.push("leader-changed");
                        if replica
                            .groups
                            .as_ref()
                            .is_some_and(|groups| has_stable(groups))
                        {
                            reached.push("coordinator-failover");
                            self.failed_over_at = Some(self.seen.at_millis);
                        }
                    }
                    *known = now;
                }
            }
        }
        let there = |group: &&GroupId| !self.seen.gone.contains(group);
        for group in self.leaders.keys().filter(there) {
            let replicas = self.seen.of_group(*group);
            let leaders = replicas
                .filter(|(_, r)| !r.of_the_dead && r.view.role == Role::Leader)
                .count();
            match leaders {
                0 => reached.push("no-leader"),
                1 => {}
                _ => reached.push("two-leaders"),
            }
        }
        let started = self.seen.nodes.values().any(|node| node.incarnation > 1);
        if started && self.seen.nodes.values().all(|node| !node.up) {
            reached.push("all-down");
        }
        for point in reached {
            self.sometimes.reach(point);
        }
    }
}

/// Whether some group has members, each with what it is to have.
fn has_stable(groups: &GroupTable) -> bool {
    groups.groups().any(|(_, state)| match &state.kind {
        GroupKind::Simple => false,
        GroupKind::Classic(value) => !value.members.is_empty(),
        GroupKind::Consumer(consumer) => consumer.state() == ConsumerGroupState::Stable,
    })
}

fn compare(old: &ReplicaSeen, new: &ReplicaSeen, same_life: bool, reached: &mut Vec<&'static str>) {
    let (start, end) = (new.log.log_start.index, new.log.last);
    if !same_life {
        if old.log.last.map(|(_, index)| index) > end.map(|(_, index)| index) {
            reached.push("unflushed-lost");
        }
        return;
    }
    if let Some((term, index)) = old.log.last
        && index >= start
        && new.term_of(index) != Some(term)
    {
        reached.push("suffix-cut");
    }
    if start > old.log.log_start.index {
        let behind = old.log.last.is_none_or(|(_, last)| start > last.next());
        reached.push(if behind {
            "snapshot-installed"
        } else {
            "log-purged"
        });
    }
    if new.log.damaged && !old.log.damaged {
        reached.push("damage-found");
    }
    match (old.asleep, new.asleep) {
        (false, true) => reached.push("slept"),
        (true, false) => reached.push("woke"),
        _ => {}
    }
    if new.slow.segments.len() > old.slow.segments.len() {
        reached.push("segment-rolled");
    }
}
