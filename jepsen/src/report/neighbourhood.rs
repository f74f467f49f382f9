//! The offsets around a violation: what each was acknowledged as, and who saw what there.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::history::{Answer, Call, FinalSource, History, Key, Outcome, Value};
use crate::verdict::Example;

use super::escape;

/// Offsets shown on either side of each offset of an example.
const AROUND: i64 = 5;
/// Rows of one table.
const ROWS_MAX: usize = 40;
/// Consumers named one by one for a value.
const SEERS_SHOWN: usize = 4;

#[derive(Default)]
struct Row {
    acked: Vec<Value>,
    /// By value: who was shown it here.
    seen: BTreeMap<Value, Vec<String>>,
    foreign: Vec<String>,
}

/// A table, or nothing for an example that names no offsets.
pub fn table(history: &History, example: &Example) -> Option<String> {
    let key = example.key.as_ref()?;
    if example.offsets.is_empty() {
        return None;
    }
    let near = |offset: i64| {
        let mut offsets = example.offsets.iter();
        offsets.any(|damaged| damaged.abs_diff(offset) <= AROUND as u64)
    };
    let mut rows: BTreeMap<i64, Row> = BTreeMap::new();
    for offset in &example.offsets {
        rows.entry(*offset).or_default();
    }
    gather(history, key, &near, &mut rows);
    let mut html = String::from(
        "<table class=\"log\"><thead><tr><th>offset</th><th>acknowledged</th><th>seen</th></tr></thead><tbody>",
    );
    for (offset, row) in rows.iter().take(ROWS_MAX) {
        let damaged = example.offsets.contains(offset);
        let acked: Vec<String> = row.acked.iter().map(Value::to_string).collect();
        let mut seen: Vec<String> = row
            .seen
            .iter()
            .map(|(value, by)| {
                let more = by.len().saturating_sub(SEERS_SHOWN);
                let mut names = by[..by.len() - more].join(", ");
                if more > 0 {
                    let _ = write!(names, " and {more} more");
                }
                format!("<b>{value}</b> by {}", escape(&names))
            })
            .collect();
        seen.extend(row.foreign.iter().map(|text| escape(text)));
        let _ = write!(
            html,
            "<tr{}><td>{offset}</td><td>{}</td><td>{}</td></tr>",
            if damaged { " class=\"damaged\"" } else { "" },
            acked.join(", "),
            match seen.is_empty() {
                true => "<i>by nobody</i>".to_owned(),
                false => seen.join("<br>"),
            }
        );
    }
    html.push_str("</tbody></table>");
    Some(html)
}

fn gather(history: &History, key: &Key, near: &dyn Fn(i64) -> bool, rows: &mut BTreeMap<i64, Row>) {
    for op in &history.operations {
        if let (Call::Send(send), Outcome::Ok(Answer::Sent { offset: Some(at) })) =
            (&op.call, &op.outcome)
            && send.key == *key
            && near(*at)
        {
            rows.entry(*at).or_default().acked.push(send.value);
        }
        let who = match op.call {
            Call::FinalRead {
                source: FinalSource::Client,
                ..
            } => "the final read".to_owned(),
            Call::FinalRead {
                source: FinalSource::Replica(node),
                ..
            } => format!("node {node}'s replica"),
            _ => format!("process {}", op.process.0),
        };
        for read in op.reads().iter().filter(|read| read.key == *key) {
            for (offset, value) in read.values.iter().filter(|(offset, _)| near(*offset)) {
                let seen = rows.entry(*offset).or_default();
                let by = seen.seen.entry(*value).or_default();
                if by.last() != Some(&who) {
                    by.push(who.clone());
                }
            }
            for record in read.foreign.iter().filter(|record| near(record.offset)) {
                let row = rows.entry(record.offset).or_default();
                row.foreign.push(format!("{} by {who}", record.reason));
            }
        }
    }
}
