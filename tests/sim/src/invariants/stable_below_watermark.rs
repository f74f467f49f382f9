//! `log_start <= last_stable <= high_watermark <= log_end`, and the last stable offset never falls
//! while its replica lives.

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct StableBelowWatermark;

impl Invariant for StableBelowWatermark {
    fn name(&self) -> &'static str {
        "stable_below_watermark"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            let Some(marks) = replica.marks else { continue };
            let [_, stable, high, _] = marks;
            if !marks.is_sorted() {
                return Err(format!("the offsets of {group} on node {host}: {marks:?}"));
            }
            // Until transactions exist, nothing is held back.
            if stable != high {
                return Err(format!(
                    "the last stable offset of {group} on node {host} is {stable}, not {high}"
                ));
            }
        }
        Ok(())
    }
}
