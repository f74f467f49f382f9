//! Once everything is healed, every partition takes writes again.

use crate::history::Call;
use crate::verdict::Class;

use super::collect::{Anomaly, Collector};
use super::index::Index;

/// Clients have to have tried for at least this long after the heal before a partition counts as
/// stuck: an election and the clients' own back-off fit in several times over.
pub const TRIED_SECONDS_MIN: f64 = 10.0;

pub fn check(index: &Index<'_>, found: &mut Collector<'_>) {
    let history = index.history;
    let Some(healed) = history.healed() else {
        return;
    };
    let tried_seconds = history.load_after_heal_seconds();
    let tried_seconds = tried_seconds.unwrap_or_else(|| history.end().since(healed).seconds());
    if tried_seconds < TRIED_SECONDS_MIN {
        return;
    }
    let starved = history.starved_after_heal();
    let starved = starved.then_some("the harness did not get the processor to try");
    // By partition: a try that began after the heal, and whether any ended well after it.
    let mut tried = vec![None; index.keys.len()];
    let mut answered = vec![false; index.keys.len()];
    for (position, op) in history.operations.iter().enumerate() {
        let Call::Send(send) = &op.call else { continue };
        let Some(key) = index.key_id(&send.key) else {
            continue;
        };
        if op.invoked > healed {
            tried[key as usize].get_or_insert(position as u32);
        }
        answered[key as usize] |= op.is_ok() && op.end() > healed;
    }
    for (key, tried) in tried.into_iter().enumerate() {
        let Some(first) = tried else { continue };
        if answered[key] || index.deleted[key] {
            continue;
        }
        found.add(Class::Stuck, starved, || Anomaly {
            key: Some(&index.keys[key]),
            what: format!("no write was acknowledged in the {tried_seconds:.0} s after the heal"),
            offsets: Vec::new(),
            values: Vec::new(),
            proof: vec![first],
        });
    }
}
