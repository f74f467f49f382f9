//! The segments of a log follow each other without gap or overlap.

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct SegmentsFollow;

impl Invariant for SegmentsFollow {
    fn name(&self) -> &'static str {
        "segments_follow"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        for (host, group, replica) in moment.seen.running() {
            let segments = &replica.slow.segments;
            let follow = segments.windows(2).all(|pair| {
                // A roll that a full disk took back leaves an empty segment, and the next roll begins
                // where it did.
                let is_left_over = pair[0].size_bytes == 0 && moment.seen.may_begin_anew(host);
                (pair[0].first_index < pair[1].first_index
                    || is_left_over && pair[0].first_index == pair[1].first_index)
                    && pair[0].first_offset <= pair[1].first_offset
            });
            let next = replica.log.last.map(|(_, last)| last.next());
            let beyond = segments
                .last()
                .is_some_and(|last| next.is_some_and(|next| last.first_index > next));
            let late = segments
                .first()
                .is_some_and(|first| first.first_index > replica.log.log_start.index);
            if !follow || beyond || late {
                return Err(format!(
                    "the segments of {group} on node {host}: {segments:?}; its log: {:?}",
                    replica.log
                ));
            }
        }
        Ok(())
    }
}
