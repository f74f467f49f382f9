//! Which nodes get a new partition's replicas.
//!
//! The first replica starts at a random node and moves on from partition to partition; the others
//! follow by a shift that grows with every full round, so that no two nodes share all their
//! partitions (Kafka's scheme). Where every node has a rack, nodes are taken in turn from the
//! racks, and a rack serves twice only when all others have served.

use std::collections::{BTreeMap, BTreeSet};

use corduroy_record::NodeId;

/// A node that may take replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// Its rack.
    pub rack: Option<String>,
}

/// What is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The index of the first partition; not 0 when partitions are added.
    pub first_partition: usize,
    /// How many partitions.
    pub partitions: usize,
    /// Replicas of each.
    pub replication_factor: usize,
    /// A random number for the start of the first replica.
    pub start: u64,
    /// A random number for the start of the shift.
    pub shift: u64,
}

/// The nodes of each partition, preferred leader first; none if there are too few candidates.
///
/// Deterministic: the randomness comes with `wanted`.
pub fn place(candidates: &[Candidate], wanted: Wanted) -> Option<Vec<Vec<NodeId>>> {
    let count = candidates.len();
    if wanted.replication_factor == 0 || wanted.replication_factor > count {
        return None;
    }
    let order = alternate_racks(candidates);
    let start = (wanted.start % count as u64) as usize;
    let mut shift = (wanted.shift % count as u64) as usize;
    let mut placed = Vec::with_capacity(wanted.partitions);
    for partition in wanted.first_partition..wanted.first_partition + wanted.partitions {
        if partition > 0 && partition % count == 0 {
            shift += 1;
        }
        placed.push(place_one(
            &order,
            (partition + start) % count,
            shift,
            wanted.replication_factor,
        ));
    }
    Some(placed)
}

fn place_one(order: &[&Candidate], first: usize, shift: usize, replicas: usize) -> Vec<NodeId> {
    let count = order.len();
    let mut chosen = vec![order[first]];
    // Every node once, the first one aside, starting behind the shift.
    let ring: Vec<&Candidate> = (0..count.saturating_sub(1))
        .map(|step| order[(first + 1 + (shift + step) % (count - 1)) % count])
        .collect();
    while chosen.len() < replicas {
        let racks_taken: BTreeSet<_> = chosen.iter().map(|c| c.rack.as_deref()).collect();
        let free = |candidate: &&&Candidate| !chosen.iter().any(|c| c.node == candidate.node);
        let fresh_rack = ring
            .iter()
            .filter(free)
            .find(|c| c.rack.is_some() && !racks_taken.contains(&c.rack.as_deref()));
        let Some(next) = fresh_rack.or_else(|| ring.iter().find(free)) else {
            break;
        };
        chosen.push(next);
    }
    chosen.into_iter().map(|candidate| candidate.node).collect()
}

/// The candidates with neighbours in different racks, as far as the racks allow; by node id where
/// a candidate has none.
fn alternate_racks(candidates: &[Candidate]) -> Vec<&Candidate> {
    let mut sorted: Vec<&Candidate> = candidates.iter().collect();
    sorted.sort_by_key(|candidate| candidate.node);
    if sorted.iter().any(|candidate| candidate.rack.is_none()) {
        return sorted;
    }
    let mut racks: BTreeMap<Option<&str>, Vec<&Candidate>> = BTreeMap::new();
    for candidate in &sorted {
        racks
            .entry(candidate.rack.as_deref())
            .or_default()
            .push(candidate);
    }
    let rounds = racks.values().map(Vec::len).max().unwrap_or(0);
    (0..rounds)
        .flat_map(|round| {
            racks
                .values()
                .filter_map(move |nodes| nodes.get(round).copied())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(racks: &[Option<&str>]) -> Vec<Candidate> {
        (1..)
            .zip(racks)
            .map(|(id, rack)| Candidate {
                node: NodeId::new(id),
                rack: rack.map(str::to_owned),
            })
            .collect()
    }

    fn wanted(partitions: usize, replication_factor: usize) -> Wanted {
        Wanted {
            first_partition: 0,
            partitions,
            replication_factor,
            start: 0,
            shift: 0,
        }
    }

    fn ids(placed: &[Vec<NodeId>]) -> Vec<Vec<i32>> {
        placed
            .iter()
            .map(|nodes| nodes.iter().map(|node| node.get()).collect())
            .collect()
    }

    #[test]
    fn leaders_go_round_and_followers_shift() {
        let placed = place(&candidates(&[None; 3]), wanted(6, 3)).expect("enough nodes");
        assert_eq!(
            ids(&placed),
            [
                [1, 2, 3],
                [2, 3, 1],
                [3, 1, 2],
                [1, 3, 2],
                [2, 1, 3],
                [3, 2, 1]
            ]
        );
    }

    #[test]
    fn the_start_is_random_and_added_partitions_go_on() {
        let all = place(
            &candidates(&[None; 4]),
            Wanted {
                start: 2,
                shift: 1,
                ..wanted(6, 2)
            },
        );
        let all = all.expect("enough nodes");
        assert_eq!(all[0][0], NodeId::new(3));
        let added = Wanted {
            first_partition: 1,
            start: 2,
            shift: 1,
            ..wanted(2, 2)
        };
        assert_eq!(
            place(&candidates(&[None; 4]), added).expect("enough nodes"),
            all[1..3]
        );
    }

    #[test]
    fn replicas_are_distinct_and_balanced() {
        for nodes in 1..=7 {
            for factor in 1..=nodes {
                let placed = place(
                    &candidates(&vec![None; nodes]),
                    Wanted {
                        start: 5,
                        shift: 3,
                        ..wanted(nodes * 6, factor)
                    },
                )
                .expect("enough nodes");
                let mut load = BTreeMap::new();
                for replicas in &placed {
                    let distinct: BTreeSet<_> = replicas.iter().collect();
                    assert_eq!(distinct.len(), factor);
                    for node in replicas {
                        *load.entry(*node).or_insert(0) += 1;
                    }
                }
                let (min, max) = (load.values().min(), load.values().max());
                assert_eq!(min, max, "{nodes} nodes, factor {factor}: {load:?}");
            }
        }
    }

    #[test]
    fn racks_are_spread() {
        let racks = [
            Some("a"),
            Some("a"),
            Some("a"),
            Some("b"),
            Some("b"),
            Some("c"),
        ];
        let nodes = candidates(&racks);
        let rack_of = |id: &NodeId| racks[id.get() as usize - 1];
        for start in 0..6 {
            for shift in 0..6 {
                let placed = place(
                    &nodes,
                    Wanted {
                        start,
                        shift,
                        ..wanted(12, 3)
                    },
                );
                for replicas in placed.expect("enough nodes") {
                    let distinct: BTreeSet<_> = replicas.iter().map(rack_of).collect();
                    assert_eq!(distinct.len(), 3, "{replicas:?}");
                }
            }
        }
    }

    #[test]
    fn too_few_nodes_is_none() {
        assert_eq!(place(&candidates(&[None; 2]), wanted(1, 3)), None);
        assert_eq!(place(&[], wanted(1, 1)), None);
        assert_eq!(place(&candidates(&[None; 2]), wanted(1, 0)), None);
    }
}
