//! What members of consumer groups and whoever asks for committed offsets were told.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use corduroy_group::table::{GroupKind, GroupState, GroupTable};
use corduroy_record::GroupId;
use tokio::time::Instant;

/// A partition of a topic.
pub type At = (String, i32);

/// Who a member is: its id, and its generation or member epoch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// The member's id.
    pub member: String,
    /// Its generation, or its epoch under the consumer protocol.
    pub generation: i32,
}

impl Identity {
    /// The text that a commit carries to show who made it.
    pub fn signature(&self) -> String {
        format!("{}@{}", self.member, self.generation)
    }

    /// Reads a [`signature`](Identity::signature).
    pub fn of_signature(text: &str) -> Option<Identity> {
        let (member, generation) = text.rsplit_once('@')?;
        Some(Identity {
            member: member.to_owned(),
            generation: generation.parse().ok()?,
        })
    }

    /// Whether a group in this state knows this member in this generation.
    pub fn is_current(&self, state: &GroupState) -> bool {
        match &state.kind {
            GroupKind::Simple => false,
            GroupKind::Classic(value) => {
                let mut members = value.members.iter();
                value.generation == self.generation
                    && members.any(|member| member.member_id == self.member)
            }
            GroupKind::Consumer(consumer) => consumer
                .members()
                .get(&self.member)
                .is_some_and(|member| member.epoch() == self.generation),
        }
    }

    /// Whether this member will never again be in this generation, once the group is in this state.
    fn is_past(&self, state: &GroupState) -> bool {
        match &state.kind {
            GroupKind::Simple => false,
            GroupKind::Classic(value) => value.generation > self.generation,
            GroupKind::Consumer(consumer) => match consumer.members().get(&self.member) {
                Some(member) => member.epoch() > self.generation,
                None => consumer.epoch() > self.generation,
            },
        }
    }
}

/// The generation that a group is in, or its epoch under the consumer protocol.
pub fn generation_of(state: &GroupState) -> i32 {
    match &state.kind {
        GroupKind::Simple => state.last_generation,
        GroupKind::Classic(value) => value.generation.max(state.last_generation),
        GroupKind::Consumer(consumer) => consumer.epoch().max(state.last_generation),
    }
}

/// Something that a client was told.
#[derive(Clone, Debug)]
pub enum Told {
    /// A position is committed. With a text beside it, exactly that was written.
    Committed {
        group: &'static str,
        at: At,
        offset: i64,
        text: Option<String>,
    },
    /// These are the committed positions.
    Fetched {
        group: &'static str,
        began: Instant,
        offsets: BTreeMap<At, i64>,
    },
    /// A member has partitions of this generation. `above`: the generation that was durable when it
    /// began to join, at the first one after that. `instance`: what a static member is called in
    /// all its lives.
    Member {
        group: &'static str,
        who: Identity,
        above: Option<i32>,
        instance: Option<&'static str>,
    },
    /// A member got records of a partition.
    Owns {
        group: &'static str,
        who: Identity,
        at: At,
        instance: Option<&'static str>,
    },
    /// A commit by somebody who is known to be no member any more was refused.
    StaleRefused,
    /// Or it was not.
    StaleAccepted { group: &'static str, who: Identity },
    /// A member died where it stood.
    MemberDied,
}

/// Clone = the same ledger.
#[derive(Clone, Default)]
pub struct GroupLedger(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    told: Vec<Told>,
    past: Vec<Identity>,
    durable: BTreeMap<GroupId, Rc<GroupTable>>,
}

impl GroupLedger {
    /// A client was told something.
    pub fn note(&self, told: Told) {
        tracing::debug!(?told, "a member of a group was told");
        self.0.borrow_mut().told.push(told);
    }

    /// What was told since the last call.
    pub fn take_fresh(&self) -> Vec<Told> {
        std::mem::take(&mut self.0.borrow_mut().told)
    }

    /// The checker has seen this committed.
    pub fn publish(&self, partition: GroupId, table: Rc<GroupTable>) {
        self.0.borrow_mut().durable.insert(partition, table);
    }

    /// The generation of a group that is surely durable now.
    pub fn durable_generation(&self, group: &str) -> i32 {
        let inner = self.0.borrow();
        let states = inner.durable.values().filter_map(|table| table.get(group));
        states.map(generation_of).max().unwrap_or(0)
    }

    /// A member has been this.
    pub fn remember(&self, who: Identity) {
        let mut inner = self.0.borrow_mut();
        if inner.past.last() != Some(&who) {
            inner.past.push(who);
        }
    }

    /// Those who have been members of a group, in generations that are surely over.
    pub fn past_members(&self, group: &str) -> Vec<Identity> {
        let inner = self.0.borrow();
        let state = inner.durable.values().find_map(|table| table.get(group));
        let Some(state) = state else {
            return Vec::new();
        };
        let past = inner.past.iter().filter(|who| who.is_past(state));
        past.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use corduroy_group::records::{ClassicMemberValue, ClassicValue};

    use super::*;

    fn generation(generation: i32) -> GroupState {
        let member = ClassicMemberValue {
            member_id: "a@b".to_owned(),
            instance_id: None,
            client_id: String::new(),
            client_host: String::new(),
            rebalance_timeout_ms: 0,
            session_timeout_ms: 0,
            subscription: Default::default(),
            assignment: Default::default(),
        };
        let value = ClassicValue {
            protocol_type: "consumer".to_owned(),
            generation,
            protocol: None,
            leader: None,
            state_timestamp_ms: -1,
            members: vec![member],
        };
        GroupState {
            kind: GroupKind::Classic(value),
            ..GroupState::default()
        }
    }

    #[test]
    fn a_member_is_current_in_its_generation_only() {
        let who = Identity::of_signature("a@b@7").expect("a signature");
        assert_eq!(who.signature(), "a@b@7");
        assert!(who.is_current(&generation(7)) && !who.is_past(&generation(7)));
        assert!(!who.is_current(&generation(8)) && who.is_past(&generation(8)));
        assert!(!who.is_current(&generation(6)) && !who.is_past(&generation(6)));
        let another = Identity::of_signature("a@7").expect("a signature");
        assert!(!another.is_current(&generation(7)));
        assert_eq!(Identity::of_signature("write 7"), None);
    }
}
