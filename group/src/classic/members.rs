//! The members of one group, in the order in which they joined.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::{JoinRequest, Ticket};
use crate::records::ClassicMemberValue;

/// A member's place in the order of joining; never given twice. A static member keeps it when it
/// comes back under another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberNumber(u64);

/// Where a member is on its way through a generation. A ticket is who waits for the answer; `None`
/// there: the client has gone away, and what it asked for still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has not come (again) for the generation that is being made; in later phases: a static
    /// member that did not come and is kept for its session timeout.
    Away,
    /// PreparingRebalance: it came, and waits for the others.
    Joined(Option<Ticket>),
    /// It was told the generation and has to sync.
    OwesSync,
    /// It has synced; with a ticket: it waits until the assignment is durable.
    Synced(Option<Ticket>),
    /// Stable: it took over the id of a static member, and waits until that is durable.
    Replacing(Option<Ticket>),
}

impl Standing {
    /// Who waits.
    pub(super) const fn ticket(self) -> Option<Ticket> {
        match self {
            Standing::Away | Standing::OwesSync => None,
            Standing::Joined(ticket) | Standing::Synced(ticket) | Standing::Replacing(ticket) => {
                ticket
            }
        }
    }

    /// The same without its ticket.
    const fn forgotten(self) -> Standing {
        match self {
            Standing::Away => Standing::Away,
            Standing::OwesSync => Standing::OwesSync,
            Standing::Joined(_) => Standing::Joined(None),
            Standing::Synced(_) => Standing::Synced(None),
            Standing::Replacing(_) => Standing::Replacing(None),
        }
    }
}

/// How much is known of a member's protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProtocolsKnown {
    /// What its last JoinGroup named.
    All,
    /// Only the chosen one: the member was read from a record after a failover.
    Chosen,
}

/// One member.
#[derive(Debug)]
pub(super) struct Member {
    id: String,
    instance_id: Option<String>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) session_timeout_ms: i32,
    pub(super) rebalance_timeout_ms: i32,
    /// Invariant: each name once.
    protocols: Vec<(String, Bytes)>,
    protocols_known: ProtocolsKnown,
    pub(super) assignment: Bytes,
    standing: Standing,
}

impl Member {
    /// A member that joins now, under `id`.
    pub(super) fn joining(id: String, request: JoinRequest, ticket: Ticket) -> Member {
        Member {
            id,
            instance_id: request.instance_id,
            client_id: request.client_id,
            client_host: request.client_host,
            session_timeout_ms: request.session_timeout_ms,
            rebalance_timeout_ms: request.rebalance_timeout_ms,
            protocols: without_repetition(request.protocols),
            protocols_known: ProtocolsKnown::All,
            assignment: Bytes::new(),
            standing: Standing::Joined(Some(ticket)),
        }
    }

    /// A member as the record of its group has it.
    pub(super) fn restored(value: &ClassicMemberValue, protocol: &str) -> Member {
        Member {
            id: value.member_id.clone(),
            instance_id: value.instance_id.clone(),
            client_id: value.client_id.clone(),
            client_host: value.client_host.clone(),
            session_timeout_ms: value.session_timeout_ms,
            rebalance_timeout_ms: value.rebalance_timeout_ms,
            protocols: vec![(protocol.to_owned(), value.subscription.clone())],
            protocols_known: ProtocolsKnown::Chosen,
            assignment: value.assignment.clone(),
            standing: Standing::Synced(None),
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn instance_id(&self) -> Option<&str> {
        self.instance_id.as_deref()
    }

    pub(super) fn protocols(&self) -> &[(String, Bytes)] {
        &self.protocols
    }

    pub(super) const fn is_static(&self) -> bool {
        self.instance_id.is_some()
    }

    pub(super) const fn standing(&self) -> Standing {
        self.standing
    }

    pub(super) fn session_timeout(&self) -> Duration {
        millis(self.session_timeout_ms)
    }

    pub(super) fn rebalance_timeout(&self) -> Duration {
        millis(self.rebalance_timeout_ms)
    }

    /// Its metadata for a protocol; `None` where it does not support it, or where that is unknown.
    pub(super) fn metadata(&self, protocol: &str) -> Option<&Bytes> {
        self.protocols
            .iter()
            .find(|(name, _)| name == protocol)
            .map(|(_, metadata)| metadata)
    }

    /// Whether a JoinGroup with `protocols` tells nothing new. Of a restored member the chosen
    /// protocol alone is compared: a failover is no reason for a rebalance.
    pub(super) fn matches(&self, protocols: &[(String, Bytes)]) -> bool {
        match self.protocols_known {
            ProtocolsKnown::All => self.protocols == without_repetition(protocols.to_vec()),
            ProtocolsKnown::Chosen => self.protocols.iter().all(|mine| protocols.contains(mine)),
        }
    }

    pub(super) fn value(&self, protocol: &str) -> ClassicMemberValue {
        ClassicMemberValue {
            member_id: self.id.clone(),
            instance_id: self.instance_id.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            session_timeout_ms: self.session_timeout_ms,
            subscription: self.metadata(protocol).cloned().unwrap_or_default(),
            assignment: self.assignment.clone(),
        }
    }
}

/// How many members stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Came to the join phase.
    pub(super) joined: usize,
    /// Have to sync.
    pub(super) owe_sync: usize,
    /// Wait for the assignment to be durable.
    pub(super) parked_sync: usize,
    /// Wait for their new id to be durable.
    pub(super) replacing: usize,
}

impl Counts {
    fn count(&mut self, standing: Standing, change: fn(usize) -> usize) {
        let counter = match standing {
            Standing::Away | Standing::Synced(None) => return,
            Standing::Joined(_) => &mut self.joined,
            Standing::OwesSync => &mut self.owe_sync,
            Standing::Synced(Some(_)) => &mut self.parked_sync,
            Standing::Replacing(_) => &mut self.replacing,
        };
        *counter = change(*counter);
    }
}

/// All members with what is counted and indexed about them.
///
/// Law: every index and counter below says what a walk over `by_number` would say
/// ([`Members::verify`]).
#[derive(Debug, Default)]
pub(super) struct Members {
    by_number: BTreeMap<MemberNumber, Member>,
    by_id: BTreeMap<String, MemberNumber>,
    by_instance: BTreeMap<String, MemberNumber>,
    by_ticket: BTreeMap<Ticket, MemberNumber>,
    /// How many members support a protocol.
    supported: BTreeMap<String, usize>,
    counts: Counts,
    next: u64,
}

impl Members {
    /// Adds a member whose id and instance id are new here.
    pub(super) fn add(&mut self, member: Member) -> MemberNumber {
        let number = MemberNumber(self.next);
        self.next += 1;
        let before = self.by_id.insert(member.id.clone(), number);
        assert!(before.is_none(), "a member id belongs to one member");
        if let Some(instance) = &member.instance_id {
            let before = self.by_instance.insert(instance.clone(), number);
            assert!(before.is_none(), "an instance id belongs to one member");
        }
        self.count_protocols(&member.protocols, |count| count + 1);
        self.counts.count(member.standing, |count| count + 1);
        if let Some(ticket) = member.standing.ticket() {
            self.by_ticket.insert(ticket, number);
        }
        self.by_number.insert(number, member);
        number
    }

    pub(super) fn remove(&mut self, number: MemberNumber) -> Option<Member> {
        let member = self.by_number.remove(&number)?;
        self.by_id.remove(&member.id);
        if let Some(instance) = &member.instance_id {
            self.by_instance.remove(instance);
        }
        self.count_protocols(&member.protocols, |count| count - 1);
        self.counts.count(member.standing, |count| count - 1);
        if let Some(ticket) = member.standing.ticket() {
            self.by_ticket.remove(&ticket);
        }
        Some(member)
    }

    /// A static member comes back under another id; its old id is unknown from now on.
    pub(super) fn rename(&mut self, number: MemberNumber, id: String) {
        let Some(member) = self.by_number.get_mut(&number) else {
            return;
        };
        self.by_id.remove(&member.id);
        let before = self.by_id.insert(id.clone(), number);
        assert!(before.is_none(), "a member id belongs to one member");
        member.id = id;
    }

    /// Takes over what a JoinGroup says about a member.
    pub(super) fn update(&mut self, number: MemberNumber, request: JoinRequest) {
        let Some(member) = self.by_number.get_mut(&number) else {
            return;
        };
        member.client_id = request.client_id;
        member.client_host = request.client_host;
        member.session_timeout_ms = request.session_timeout_ms;
        member.rebalance_timeout_ms = request.rebalance_timeout_ms;
        member.protocols_known = ProtocolsKnown::All;
        let after = without_repetition(request.protocols);
        let before = std::mem::replace(&mut member.protocols, after.clone());
        self.count_protocols(&before, |count| count - 1);
        self.count_protocols(&after, |count| count + 1);
    }

    /// Moves a member on; where it stood before.
    pub(super) fn stand(&mut self, number: MemberNumber, standing: Standing) -> Option<Standing> {
        let member = self.by_number.get_mut(&number)?;
        let before = std::mem::replace(&mut member.standing, standing);
        if let Some(ticket) = before.ticket() {
            self.by_ticket.remove(&ticket);
        }
        if let Some(ticket) = standing.ticket() {
            self.by_ticket.insert(ticket, number);
        }
        self.counts.count(before, |count| count - 1);
        self.counts.count(standing, |count| count + 1);
        Some(before)
    }

    /// Drops a ticket; the member that held it.
    pub(super) fn forget(&mut self, ticket: Ticket) -> Option<MemberNumber> {
        let number = *self.by_ticket.get(&ticket)?;
        let standing = self.by_number.get(&number)?.standing;
        self.stand(number, standing.forgotten());
        Some(number)
    }

    pub(super) fn set_assignment(&mut self, number: MemberNumber, assignment: Bytes) {
        if let Some(member) = self.by_number.get_mut(&number) {
            member.assignment = assignment;
        }
    }

    pub(super) fn get(&self, number: MemberNumber) -> Option<&Member> {
        self.by_number.get(&number)
    }

    pub(super) fn number_of(&self, member_id: &str) -> Option<MemberNumber> {
        self.by_id.get(member_id).copied()
    }

    pub(super) fn number_of_instance(&self, instance_id: &str) -> Option<MemberNumber> {
        self.by_instance.get(instance_id).copied()
    }

    /// In the order of joining.
    pub(super) fn iter(&self) -> impl Iterator<Item = (MemberNumber, &Member)> {
        self.by_number
            .iter()
            .map(|(number, member)| (*number, member))
    }

    /// All numbers, for walks that change members.
    pub(super) fn numbers(&self) -> Vec<MemberNumber> {
        self.by_number.keys().copied().collect()
    }

    /// The member that joined first.
    pub(super) fn eldest(&self) -> Option<MemberNumber> {
        self.by_number.keys().next().copied()
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    /// How long a rebalance may take: as long as the most patient member allows. O(n).
    pub(super) fn rebalance_timeout(&self) -> Duration {
        self.by_number
            .values()
            .map(Member::rebalance_timeout)
            .max()
            .unwrap_or_default()
    }

    /// Whether one of `protocols` is supported by every member but `except`.
    pub(super) fn all_support_one_of(
        &self,
        protocols: &[(String, Bytes)],
        except: Option<MemberNumber>,
    ) -> bool {
        let except = except.and_then(|number| self.by_number.get(&number));
        let others = self.by_number.len() - usize::from(except.is_some());
        let excepted: BTreeSet<&str> = except
            .iter()
            .flat_map(|member| &member.protocols)
            .map(|(name, _)| name.as_str())
            .collect();
        protocols.iter().any(|(name, _)| {
            let all = self.supported.get(name).copied().unwrap_or(0);
            all - usize::from(excepted.contains(name.as_str())) == others
        })
    }

    /// The protocol of the next generation: of those that all support each member votes for the one
    /// that it named first, and most votes win; between equals the vote of the eldest member decides.
    /// `None` without members. O(members x protocols).
    pub(super) fn vote(&self) -> Option<String> {
        let all = self.by_number.len();
        // Votes, and how early the first of them came.
        let mut votes: BTreeMap<&str, (usize, std::cmp::Reverse<usize>)> = BTreeMap::new();
        for (place, member) in self.by_number.values().enumerate() {
            let choice = member
                .protocols
                .iter()
                .find(|(name, _)| self.supported.get(name) == Some(&all));
            if let Some((name, _)) = choice {
                votes.entry(name).or_insert((0, std::cmp::Reverse(place))).0 += 1;
            }
        }
        votes
            .into_iter()
            .max_by_key(|(_, tally)| *tally)
            .map(|(name, _)| name.to_owned())
    }

    fn count_protocols(&mut self, protocols: &[(String, Bytes)], change: fn(usize) -> usize) {
        for (name, _) in protocols {
            let count = change(self.supported.get(name).copied().unwrap_or(0));
            if count == 0 {
                self.supported.remove(name);
            } else {
                self.supported.insert(name.clone(), count);
            }
        }
    }

    /// Checks the law of this table by a walk.
    pub(super) fn verify(&self) -> Result<(), String> {
        let mut walked = Members::default();
        for (number, member) in &self.by_number {
            walked.by_id.insert(member.id.clone(), *number);
            if let Some(instance) = &member.instance_id {
                walked.by_instance.insert(instance.clone(), *number);
            }
            if let Some(ticket) = member.standing.ticket() {
                walked.by_ticket.insert(ticket, *number);
            }
            walked.count_protocols(&member.protocols, |count| count + 1);
            walked.counts.count(member.standing, |count| count + 1);
        }
        let agree = walked.by_id == self.by_id
            && walked.by_instance == self.by_instance
            && walked.by_ticket == self.by_ticket
            && walked.supported == self.supported
            && walked.counts == self.counts;
        agree
            .then_some(())
            .ok_or_else(|| format!("an index of the members is wrong: {self:?}"))
    }
}

/// The first mention of each name.
fn without_repetition(mut protocols: Vec<(String, Bytes)>) -> Vec<(String, Bytes)> {
    let mut seen = BTreeSet::new();
    protocols.retain(|(name, _)| seen.insert(name.clone()));
    protocols
}

/// Milliseconds of the protocol; what is negative counts as none.
pub(super) fn millis(ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
