//! The target assignment of a group: who takes part, what they subscribe to, what the assignor says.

use std::collections::BTreeMap;

use super::assign::{AssignInput, AssignMember, AssignTopic, Assignor, assign};
use super::state::ConsumerState;
use super::topics::{Topics, fingerprint};
use crate::records::{Assignment, ConsumerMemberValue, RegexValue};

/// What a decision is about to change in the state that it decides from.
pub(crate) struct Change<'a> {
    /// A member that goes, if any: the former id of a static member.
    pub(crate) removed: Option<&'a str>,
    /// The member that speaks.
    pub(crate) id: &'a str,
    /// What it says about itself from now on.
    pub(crate) value: &'a ConsumerMemberValue,
    /// Its target so far.
    pub(crate) previous: &'a Assignment,
    /// A regular expression that was resolved just now.
    pub(crate) regex: Option<(&'a str, &'a RegexValue)>,
}

/// A new target assignment.
pub(crate) struct Target {
    /// Hash of the topics that it is based on.
    pub(crate) metadata_hash: i64,
    /// Members whose target is another one than in the state, by ascending id.
    pub(crate) changed: Vec<(String, Assignment)>,
    /// The target of the member that speaks.
    pub(crate) own: Assignment,
}

/// Computes the target of every member, as the state will be after `change`.
pub(crate) fn compute(state: &ConsumerState, change: &Change<'_>, topics: &dyn Topics) -> Target {
    let members = members_after(state, change);
    let regex_topics = |regex: &str| -> &[String] {
        match change.regex {
            Some((name, value)) if name == regex => &value.topics,
            _ => state
                .regexes()
                .get(regex)
                .map_or(&[], |value| &value.topics),
        }
    };

    // Members mostly subscribe to the same topics, so each distinct subscription is resolved once.
    let mut names: BTreeMap<&str, Option<usize>> = BTreeMap::new();
    let mut resolved: BTreeMap<(&[String], Option<&str>), usize> = BTreeMap::new();
    let mut votes: BTreeMap<&str, u32> = BTreeMap::new();
    for (_, value, _) in &members {
        let key = subscription_of(value);
        if resolved.insert(key, 0).is_none() {
            names.extend(key.0.iter().map(|name| (name.as_str(), None)));
            if let Some(regex) = key.1 {
                names.extend(regex_topics(regex).iter().map(|name| (name.as_str(), None)));
            }
        }
        if let Some(assignor) = &value.server_assignor {
            *votes.entry(assignor).or_insert(0) += 1;
        }
    }
    let mut input = AssignInput::default();
    for (name, position) in &mut names {
        if let Some(facts) = topics.topic(name) {
            *position = Some(input.topics.len());
            input.topics.push(AssignTopic {
                id: facts.id,
                partitions: facts.partitions,
            });
        }
    }
    let mut sets: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
    for ((by_name, regex), subscription) in &mut resolved {
        let by_regex = regex.map_or(&[][..], regex_topics);
        let mut set: Vec<usize> = by_name
            .iter()
            .chain(by_regex)
            .filter_map(|name| names.get(name.as_str()).copied().flatten())
            .collect();
        set.sort_unstable();
        set.dedup();
        let next = sets.len();
        *subscription = *sets.entry(set).or_insert(next);
    }
    let mut subscriptions: Vec<(Vec<usize>, usize)> = sets.into_iter().collect();
    subscriptions.sort_unstable_by_key(|(_, number)| *number);
    input.subscriptions = subscriptions.into_iter().map(|(set, _)| set).collect();
    input.members = members
        .iter()
        .map(|(id, value, previous)| AssignMember {
            id,
            instance_id: value.instance_id.as_deref(),
            subscription: resolved
                .get(&subscription_of(value))
                .copied()
                .unwrap_or_default(),
            previous,
        })
        .collect();

    let assignor = preferred(votes.iter().map(|(name, count)| (*name, *count)));
    let targets = assign(assignor, &input);
    let mut own = Assignment::new();
    let mut changed = Vec::new();
    let nothing = Assignment::new();
    for ((id, _, _), target) in members.iter().zip(targets) {
        if *id == change.id {
            own = target.clone();
        }
        let before = state
            .members()
            .get(*id)
            .map_or(&nothing, |member| &member.target);
        if target != *before {
            changed.push(((*id).to_owned(), target));
        }
    }
    Target {
        metadata_hash: fingerprint(names.keys().copied(), topics),
        changed,
        own,
    }
}

type Taking<'a> = (&'a str, &'a ConsumerMemberValue, &'a Assignment);

/// The members as they will be, by ascending id.
fn members_after<'a>(state: &'a ConsumerState, change: &Change<'a>) -> Vec<Taking<'a>> {
    let mut members: Vec<Taking<'a>> = state
        .members()
        .iter()
        .map(|(id, member)| (id.as_str(), &member.value, &member.target))
        .filter(|(id, _, _)| *id != change.id && Some(*id) != change.removed)
        .collect();
    let at = members.partition_point(|(id, _, _)| *id < change.id);
    members.insert(at, (change.id, change.value, change.previous));
    members
}

fn subscription_of(value: &ConsumerMemberValue) -> (&[String], Option<&str>) {
    (&value.subscribed_topics, value.subscribed_regex.as_deref())
}

/// The assignor that most members ask for; between equals, and without wishes, the one that comes
/// first in [`Assignor::ALL`].
pub(crate) fn preferred<'a>(votes: impl Iterator<Item = (&'a str, u32)>) -> Assignor {
    votes
        .filter_map(|(name, count)| Some((count, Assignor::from_name(name)?)))
        .max_by_key(|(count, assignor)| (*count, std::cmp::Reverse(*assignor)))
        .map_or(Assignor::ALL[0], |(_, assignor)| assignor)
}

/// The hash of the topics to which members subscribe, with some regular expressions looked at anew.
pub(crate) fn metadata_hash(
    state: &ConsumerState,
    fresh: &BTreeMap<String, RegexValue>,
    topics: &dyn Topics,
) -> i64 {
    let mut names: Vec<&str> = state.topics_by_name().collect();
    for regex in state.regexes_in_use() {
        if let Some(value) = fresh.get(regex).or_else(|| state.regexes().get(regex)) {
            names.extend(value.topics.iter().map(String::as_str));
        }
    }
    names.sort_unstable();
    names.dedup();
    fingerprint(names.into_iter(), topics)
}
