//! What consumers were shown of what was acknowledged: all of it, once they had time to read on after
//! the load; and how long it took.

use crate::history::{Call, Nanos};
use crate::verdict::{Class, Delivery, Late};

use super::collect::{Anomaly, Collector};
use super::index::{Fate, Index, NONE, Write};

/// An acknowledged value that lies in the log, and that no consumer was shown.
///
/// Whoever acknowledges by whatever `acks` has the record in the log by now, so no setting excuses it.
pub fn check(index: &Index<'_>, found: &mut Collector<'_>) {
    let Some(seconds) = index.history.read_out_seconds() else {
        return;
    };
    let starved = index.history.starved_after_heal();
    let starved = starved.then_some("the harness did not get the processor to read to the end");
    for write in &index.writes {
        let is_missed = write.fate == Fate::Acked
            && write.is_read()
            && write.in_final
            && !index.deleted[write.key as usize]
            && shown_at(index, write).is_none();
        if !is_missed {
            continue;
        }
        found.add(Class::Unseen, starved, || Anomaly {
            key: Some(index.key(write.key)),
            what: format!(
                "{} was acknowledged and lies at offset {}, and no consumer was shown it, although \
                 they went on for {seconds:.0} s after the last write",
                write.value, write.first_offset
            ),
            offsets: vec![write.first_offset],
            values: vec![write.value],
            proof: vec![write.op, write.reader],
        });
    }
}

/// When a consumer was first shown a value. Final reads come after all of theirs.
fn shown_at(index: &Index<'_>, write: &Write) -> Option<Nanos> {
    let is_shown = write.reader != NONE
        && matches!(
            index.op(write.reader).call,
            Call::Poll { .. } | Call::ReadAll { .. }
        );
    is_shown.then_some(write.read_at)
}

/// The longest times from an acknowledgement to a consumer.
pub fn measure(index: &Index<'_>) -> Delivery {
    let healed = index.history.healed();
    let (mut longest, mut after) = (None, None);
    for write in index.writes.iter().filter(|it| it.fate == Fate::Acked) {
        let Some(shown) = shown_at(index, write) else {
            continue;
        };
        let acked = index.op(write.op).end();
        let late = (shown.since(acked), write.key, acked);
        longest = longest.max(Some(late));
        if healed.is_some_and(|healed| acked > healed) {
            after = after.max(Some(late));
        }
    }
    let told = |late: Option<(Nanos, u32, Nanos)>| {
        late.map(|(took, key, acked)| Late {
            seconds: took.seconds(),
            partition: index.key(key).to_string(),
            acked_seconds: acked.seconds(),
        })
    };
    Delivery {
        longest: told(longest),
        longest_after_heal: told(after),
    }
}
