//! Who should have which partition: the assignors of the server (KIP-848), as pure functions.

mod range;
mod uniform;

use std::collections::BTreeMap;

use corduroy_record::{PartitionIndex, TopicId};

use crate::records::Assignment;

/// An assignor of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Assignor {
    /// Balanced over all topics together; a member keeps what it had as far as balance allows.
    Uniform,
    /// Each topic apart, in contiguous ranges: topics with the same subscribers and as many
    /// partitions are divided alike, so that their partitions of one number meet at one member.
    Range,
}

impl Assignor {
    /// Every assignor; the first one is used where members ask for none.
    pub const ALL: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

    /// The name that clients ask for (`group.remote.assignor`).
    pub const fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    /// The assignor of a name.
    pub fn from_name(name: &str) -> Option<Assignor> {
        Assignor::ALL
            .into_iter()
            .find(|assignor| assignor.name() == name)
    }
}

/// A topic to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignTopic {
    /// Its id.
    pub id: TopicId,
    /// How many partitions it has.
    pub partitions: u32,
}

/// A member that takes part.
#[derive(Clone, Debug)]
pub struct AssignMember<'a> {
    /// Its id.
    pub id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// Which of [`AssignInput::subscriptions`] is its own.
    pub subscription: usize,
    /// Its target so far.
    pub previous: &'a Assignment,
}

/// What an assignor looks at.
#[derive(Clone, Debug, Default)]
pub struct AssignInput<'a> {
    /// Topics that exist and that somebody subscribes to; ids are distinct.
    pub topics: Vec<AssignTopic>,
    /// The distinct sets of topics that members subscribe to: ascending positions in `topics`.
    pub subscriptions: Vec<Vec<usize>>,
    /// The members, by ascending id.
    pub members: Vec<AssignMember<'a>>,
}

/// The target of every member, in the order of [`AssignInput::members`].
pub fn assign(assignor: Assignor, input: &AssignInput<'_>) -> Vec<Assignment> {
    let shares = match assignor {
        Assignor::Uniform => uniform::assign(input),
        Assignor::Range => range::assign(input),
    };
    shares
        .into_iter()
        .map(|mut share| {
            share.sort_unstable();
            let mut assignment: BTreeMap<TopicId, Vec<PartitionIndex>> = BTreeMap::new();
            for place in share {
                if let Some(topic) = input.topics.get(place.topic) {
                    assignment
                        .entry(topic.id)
                        .or_default()
                        .push(PartitionIndex::new(place.partition as i32));
                }
            }
            assignment
        })
        .collect()
}

/// A partition of a topic, both as positions: what assignors count with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    topic: usize,
    partition: u32,
}
