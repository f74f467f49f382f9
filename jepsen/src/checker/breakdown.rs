//! What nodes did that they may not do under any fault, as the harness saw it.

use crate::history::Mark;
use crate::verdict::Class;

use super::collect::{Anomaly, Collector};
use super::index::Index;

pub fn check(index: &Index<'_>, found: &mut Collector<'_>) {
    for mark in &index.history.marks {
        let Mark::Breakdown { at, what } = mark else {
            continue;
        };
        found.add(Class::Breakdown, None, || Anomaly {
            key: None,
            what: format!("{what} (seen at {:.1} s)", at.seconds()),
            offsets: Vec::new(),
            values: Vec::new(),
            proof: Vec::new(),
        });
    }
}
