//! Which partitions' entries of a turn the journal itself holds, and which it refers to.
//!
//! Inline costs a second write of the bytes; by reference costs a flush of the segment in this
//! very turn. A few large writes are cheaper by reference. Many are not, however large: each of
//! their flushes is a commit of the file system, while inline they share the journal's.

use std::collections::HashMap;

use corduroy_record::GroupId;

/// Segments that a turn flushes beside the journal, as long as the journal has room for the
/// rest.
const REFERENCED_MAX: usize = 4;

/// What the choice depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementRules {
    /// Up to this many bytes of one partition are inline; 0 = never inline.
    pub inline_bytes_max: usize,
    /// Bytes that may be inline altogether.
    pub budget_bytes: usize,
}

/// What was chosen.
pub(crate) struct Placement {
    /// By group: whether its entries are inline.
    pub inline: HashMap<GroupId, bool>,
    pub inline_bytes: usize,
}

/// Chooses for each partition by its bytes in this turn. `groups` in the order of the turn, so
/// that equals are treated the same on every run.
pub(crate) fn place(mut groups: Vec<(GroupId, usize)>, rules: PlacementRules) -> Placement {
    let mut placement = Placement {
        inline: HashMap::with_capacity(groups.len()),
        inline_bytes: 0,
    };
    groups.sort_by_key(|(_, bytes)| *bytes);
    let count = groups.len();
    for (number, (group, bytes)) in groups.into_iter().enumerate() {
        let is_small = bytes <= rules.inline_bytes_max;
        let is_one_of_many = rules.inline_bytes_max > 0 && number + REFERENCED_MAX < count;
        let fits = placement.inline_bytes + bytes <= rules.budget_bytes;
        let inline = fits && (is_small || is_one_of_many);
        if inline {
            placement.inline_bytes += bytes;
        }
        placement.inline.insert(group, inline);
    }
    placement
}

#[cfg(test)]
mod tests {
    use corduroy_record::{PartitionIndex, TopicId};

    use super::*;

    fn check(bytes: &[usize], inline_bytes_max: usize, budget_bytes: usize) -> Vec<bool> {
        let group = |number: usize| GroupId {
            topic: TopicId::from_bytes([0; 16]),
            partition: PartitionIndex::new(number as i32),
        };
        let groups = bytes
            .iter()
            .enumerate()
            .map(|(number, bytes)| (group(number), *bytes));
        let rules = PlacementRules {
            inline_bytes_max,
            budget_bytes,
        };
        let placement = place(groups.collect(), rules);
        (0..bytes.len())
            .map(|number| placement.inline[&group(number)])
            .collect()
    }

    #[test]
    fn small_ones_are_inline_and_a_few_large_ones_are_not() {
        assert_eq!(check(&[10, 200, 100], 100, 1000), [true, false, true]);
    }

    #[test]
    fn of_many_large_ones_only_the_largest_are_flushed_on_their_own() {
        let bytes = [500, 501, 502, 503, 504, 505, 506];
        let chosen = check(&bytes, 100, 10_000);
        assert_eq!(chosen, [true, true, true, false, false, false, false]);
    }

    #[test]
    fn the_budget_holds_and_zero_forces_references() {
        assert_eq!(check(&[60, 50, 40], 100, 100), [false, true, true]);
        assert_eq!(check(&[1; 9], 0, 1000), [false; 9]);
        assert_eq!(check(&[1 << 20; 2], usize::MAX, usize::MAX), [true; 2]);
    }
}
