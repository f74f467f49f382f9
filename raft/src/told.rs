//! Which refused processes a person has been told of: a warning that comes at every question of theirs
//! is not read.

use std::collections::VecDeque;

/// Processes of one node of which a person has been told that are remembered. Two that are refused
/// in turn are told of once each; more copies than that at a time are worth saying again.
const TOLD_MAX: usize = 4;

/// The processes of a node of which a person has been told, the youngest last; at most [`TOLD_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Told(VecDeque<u64>);

impl Told {
    /// Whether a person is to be told of this one: not again of one that is remembered.
    pub(crate) fn note(&mut self, incarnation: u64) -> bool {
        if self.0.contains(&incarnation) {
            return false;
        }
        if self.0.len() == TOLD_MAX {
            self.0.pop_front();
        }
        self.0.push_back(incarnation);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_told_once_of_each_of_a_few() {
        let mut told = Told::default();
        let few = || 0..TOLD_MAX as u64;
        assert!(few().all(|incarnation| told.note(incarnation)));
        assert!(!few().any(|incarnation| told.note(incarnation)));
        assert!(told.note(99));
        assert_eq!(told.0.len(), TOLD_MAX);
        assert!(told.note(0), "forgotten");
    }
}
