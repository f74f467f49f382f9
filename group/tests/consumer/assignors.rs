//! The laws of the assignors.

use std::collections::BTreeMap;

use corduroy_group::consumer::assign::{AssignInput, AssignMember, AssignTopic, Assignor, assign};
use corduroy_group::records::Assignment;
use corduroy_record::{PartitionIndex, TopicId};
use proptest::prelude::*;

fn topic_id(number: usize) -> TopicId {
    let mut bytes = [0; 16];
    bytes[15] = number as u8;
    TopicId::from_bytes(bytes)
}

/// Partitions per topic, and which topics each member subscribes to.
#[derive(Clone, Debug)]
struct Case {
    partitions: Vec<u32>,
    subscriptions: Vec<Vec<usize>>,
    members: Vec<(String, usize)>,
}

impl Case {
    fn run(
        &self,
        assignor: Assignor,
        previous: &BTreeMap<String, Assignment>,
    ) -> BTreeMap<String, Assignment> {
        let nothing = Assignment::new();
        let input = AssignInput {
            topics: (0..)
                .zip(&self.partitions)
                .map(|(number, partitions)| AssignTopic {
                    id: topic_id(number),
                    partitions: *partitions,
                })
                .collect(),
            subscriptions: self.subscriptions.clone(),
            members: self
                .members
                .iter()
                .map(|(id, subscription)| AssignMember {
                    id,
                    instance_id: None,
                    subscription: *subscription,
                    previous: previous.get(id).unwrap_or(&nothing),
                })
                .collect(),
        };
        let ids = self.members.iter().map(|(id, _)| id.clone());
        ids.zip(assign(assignor, &input)).collect()
    }

    fn subscribes(&self, member: usize, topic: usize) -> bool {
        self.subscriptions[self.members[member].1].contains(&topic)
    }

    /// Every partition that somebody subscribes to has one owner, and that one subscribes to it.
    fn check_complete(&self, targets: &BTreeMap<String, Assignment>) {
        for (topic, partitions) in self.partitions.iter().enumerate() {
            let wanted = (0..self.members.len()).any(|member| self.subscribes(member, topic));
            for partition in 0..*partitions as i32 {
                let owners: Vec<usize> = (0..self.members.len())
                    .filter(|member| {
                        targets[&self.members[*member].0]
                            .get(&topic_id(topic))
                            .is_some_and(|owned| owned.contains(&PartitionIndex::new(partition)))
                    })
                    .collect();
                assert_eq!(owners.len(), usize::from(wanted), "{topic}-{partition}");
                assert!(owners.iter().all(|member| self.subscribes(*member, topic)));
            }
        }
        let total: usize = targets.values().map(load).sum();
        let wanted: u32 = (0..self.partitions.len())
            .filter(|topic| (0..self.members.len()).any(|member| self.subscribes(member, *topic)))
            .map(|topic| self.partitions[topic])
            .sum();
        assert_eq!(
            total, wanted as usize,
            "nothing that does not exist is assigned"
        );
    }
}

fn load(assignment: &Assignment) -> usize {
    assignment.values().map(Vec::len).sum()
}

/// Partitions that one member had and another one has now.
fn moved(before: &BTreeMap<String, Assignment>, after: &BTreeMap<String, Assignment>) -> usize {
    let owners =
        |targets: &BTreeMap<String, Assignment>| -> BTreeMap<(TopicId, PartitionIndex), String> {
            targets
                .iter()
                .flat_map(|(id, assignment)| {
                    assignment.iter().flat_map(move |(topic, partitions)| {
                        partitions
                            .iter()
                            .map(move |partition| ((*topic, *partition), id.clone()))
                    })
                })
                .collect()
        };
    let after = owners(after);
    owners(before)
        .iter()
        .filter(|(place, owner)| after.get(place).is_some_and(|now| now != *owner))
        .count()
}

fn member(number: usize) -> String {
    format!("m{number:03}")
}

fn homogeneous() -> impl Strategy<Value = Case> {
    (prop::collection::vec(0_u32..12, 1..6), 1_usize..12).prop_map(|(partitions, members)| Case {
        subscriptions: vec![(0..partitions.len()).collect()],
        partitions,
        members: (0..members).map(|number| (member(number), 0)).collect(),
    })
}

fn heterogeneous() -> impl Strategy<Value = Case> {
    (
        prop::collection::vec(0_u32..8, 5),
        prop::collection::vec(prop::collection::btree_set(0_usize..5, 0..5), 1..5),
        prop::collection::vec(0_usize..5, 1..10),
    )
        .prop_map(|(partitions, sets, members)| Case {
            partitions,
            members: members
                .iter()
                .enumerate()
                .map(|(number, set)| (member(number), set % sets.len()))
                .collect(),
            subscriptions: sets
                .into_iter()
                .map(|set| set.into_iter().collect())
                .collect(),
        })
}

fn check_even(targets: &BTreeMap<String, Assignment>) {
    let most = targets.values().map(load).max().unwrap();
    let least = targets.values().map(load).min().unwrap();
    assert!(most - least <= 1, "{least} to {most}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn uniform_is_even_and_a_newcomer_moves_only_its_share(case in homogeneous(), joins in 1_usize..4) {
        let before = case.run(Assignor::Uniform, &BTreeMap::new());
        case.check_complete(&before);
        check_even(&before);
        prop_assert_eq!(&case.run(Assignor::Uniform, &before), &before);

        let mut grown = case.clone();
        // Newcomers sort anywhere among the others.
        grown.members.extend((0..joins).map(|number| (format!("m{:03}x", number * 2), 0)));
        grown.members.sort();
        let after = grown.run(Assignor::Uniform, &before);
        grown.check_complete(&after);
        check_even(&after);
        let newcomers: usize = after
            .iter()
            .filter(|(id, _)| !before.contains_key(*id))
            .map(|(_, assignment)| load(assignment))
            .sum();
        prop_assert_eq!(moved(&before, &after), newcomers, "only what newcomers get has moved");

        // And away again: only what they had moves.
        let back = case.run(Assignor::Uniform, &after);
        case.check_complete(&back);
        check_even(&back);
        for (id, assignment) in &back {
            for (topic, partitions) in &after[id] {
                prop_assert!(partitions.iter().all(|partition| assignment[topic].contains(partition)));
            }
        }
    }

    #[test]
    fn uniform_with_several_subscriptions_has_no_move_that_helps(case in heterogeneous()) {
        let targets = case.run(Assignor::Uniform, &BTreeMap::new());
        case.check_complete(&targets);
        for (owner, (id, _)) in case.members.iter().enumerate() {
            for topic in (0..case.partitions.len()).filter(|topic| targets[id].contains_key(&topic_id(*topic))) {
                for (other, (other_id, _)) in case.members.iter().enumerate() {
                    if owner != other && case.subscribes(other, topic) {
                        prop_assert!(load(&targets[id]) <= load(&targets[other_id]) + 1);
                    }
                }
            }
        }
        prop_assert_eq!(&case.run(Assignor::Uniform, &targets), &targets);
    }

    #[test]
    fn range_is_contiguous_and_divides_alike(case in heterogeneous()) {
        let targets = case.run(Assignor::Range, &BTreeMap::new());
        case.check_complete(&targets);
        for (topic, partitions) in case.partitions.iter().enumerate() {
            let subscribers: Vec<usize> =
                (0..case.members.len()).filter(|member| case.subscribes(*member, topic)).collect();
            let mut next = 0;
            for (rank, member) in subscribers.iter().enumerate() {
                let count = *partitions as usize / subscribers.len()
                    + usize::from(rank < *partitions as usize % subscribers.len());
                let owned: Vec<i32> = targets[&case.members[*member].0]
                    .get(&topic_id(topic))
                    .map(|owned| owned.iter().map(|partition| partition.get()).collect())
                    .unwrap_or_default();
                prop_assert_eq!(owned, (next..next + count as i32).collect::<Vec<_>>());
                next += count as i32;
            }
        }
    }

    #[test]
    fn what_members_had_is_never_trusted(
        case in heterogeneous(),
        previous in prop::collection::btree_map(
            (0_usize..10).prop_map(member),
            prop::collection::btree_map(
                (0_usize..7).prop_map(topic_id),
                prop::collection::vec((-1_i32..10).prop_map(PartitionIndex::new), 0..5),
                0..4,
            ),
            0..10,
        ),
    ) {
        case.check_complete(&case.run(Assignor::Uniform, &previous));
    }
}

#[test]
fn a_share_that_shrinks_keeps_some_of_every_topic() {
    let case = |members: usize| Case {
        partitions: vec![6, 6],
        subscriptions: vec![vec![0, 1]],
        members: (0..members).map(|number| (member(number), 0)).collect(),
    };
    let two = case(2).run(Assignor::Uniform, &BTreeMap::new());
    let three = case(3).run(Assignor::Uniform, &two);
    for assignment in three.values() {
        assert_eq!(assignment[&topic_id(0)].len(), 2);
        assert_eq!(assignment[&topic_id(1)].len(), 2);
    }
}

#[test]
fn ranges_follow_the_instance_ids_of_static_members() {
    let nothing = Assignment::new();
    let member = |id, instance_id| AssignMember {
        id,
        instance_id,
        subscription: 0,
        previous: &nothing,
    };
    let input = AssignInput {
        topics: vec![AssignTopic {
            id: topic_id(0),
            partitions: 3,
        }],
        subscriptions: vec![vec![0]],
        members: vec![
            member("1", None),
            member("2", Some("b")),
            member("3", Some("a")),
        ],
    };
    let first: Vec<i32> = assign(Assignor::Range, &input)
        .iter()
        .map(|target| target[&topic_id(0)][0].get())
        .collect();
    assert_eq!(first, [2, 1, 0]);
}
