//! What grows old: the leader decides where the log starts and which producers are forgotten, and
//! replicates the decision, so that replicas agree (DESIGN section 6).

use std::rc::Rc;

use corduroy_raft::{Proposal, ProposalObserver, ProposalOutcome, ProposalPayload};
use corduroy_record::{LogIndex, Offset, Term};
use tracing::{debug, info, warn};

use super::{Partition, PartitionCommand, PartitionSettings};

/// What a segment tells retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentFacts {
    pub first_index: LogIndex,
    pub first_offset: Offset,
    pub bytes: u64,
    pub max_timestamp: i64,
}

/// Where the log should start, if later than it does: whole closed segments go, oldest first.
pub(super) fn decide(
    segments: &[SegmentFacts],
    settings: &PartitionSettings,
    now_ms: i64,
) -> Option<(LogIndex, Offset)> {
    if !settings.cleanup_delete {
        return None;
    }
    let mut kept_bytes: u64 = segments.iter().map(|s| s.bytes).sum();
    let mut start = None;
    for pair in segments.windows(2) {
        let [closed, next] = pair else { continue };
        let too_old = settings
            .retention_ms
            .is_some_and(|limit| now_ms.saturating_sub(closed.max_timestamp) > limit);
        let too_much = settings
            .retention_bytes
            .is_some_and(|limit| kept_bytes.saturating_sub(closed.bytes) >= limit);
        if !too_old && !too_much {
            break;
        }
        kept_bytes = kept_bytes.saturating_sub(closed.bytes);
        start = Some((next.first_index, next.first_offset));
    }
    start
}

struct Quiet;

impl ProposalObserver for Quiet {
    fn finished(self: Box<Self>, outcome: ProposalOutcome) {
        debug!(?outcome, "a decision on the log came to its end");
    }
}

impl Partition {
    /// Looks at the closed segments and proposes a new log start where retention asks for one. On
    /// every replica, a purge that failed is tried again.
    pub fn check_retention(self: &Rc<Self>) {
        self.purge_wanted();
        let boundaries = self.replica.log().segment_boundaries();
        if boundaries.len() < 2 {
            // The active segment stays, however old.
            return;
        }
        let view = self.replica.view();
        if !matches!(self.leading(&view), Ok(true)) {
            return;
        }
        let segments: Vec<SegmentFacts> = boundaries
            .into_iter()
            .map(|segment| SegmentFacts {
                first_index: segment.first_index,
                first_offset: segment.first_offset,
                bytes: segment.size_bytes,
                // Without records, or with timestamps of the future, the segment's own age counts.
                max_timestamp: segment.max_timestamp.max(segment.created_millis),
            })
            .collect();
        let Some((index, offset)) = decide(&segments, &self.settings.get(), self.env.unix_millis())
        else {
            return;
        };
        let watermarks = self.watermarks();
        if offset <= watermarks.log_start || offset > watermarks.high_watermark {
            return;
        }
        info!(parent: &self.span(), %offset, "retention moves the log's start");
        let command = PartitionCommand::LogStart {
            index: index.get(),
            offset: offset.get(),
        };
        self.propose_quietly(&command, view.term);
    }

    /// Proposes that the log begins at `offset`, and that entries below `index` may be purged; made in
    /// `term`.
    pub fn move_log_start(&self, index: LogIndex, offset: Offset, term: Term) {
        if offset <= self.watermarks().log_start {
            return;
        }
        let command = PartitionCommand::LogStart {
            index: index.get(),
            offset: offset.get(),
        };
        self.propose_quietly(&command, term);
    }

    /// Proposes to forget producers without a record for `producer.id.expiration.ms`. A group that
    /// sleeps is not woken for it: its table does no harm, and grows only with writes.
    pub fn check_producers(&self) {
        if self.replica.is_asleep() {
            return;
        }
        let view = self.replica.view();
        if !matches!(self.leading(&view), Ok(true)) {
            return;
        }
        let now_ms = self.env.unix_millis();
        let horizon_ms = now_ms.saturating_sub(self.settings.get().producer_expiration_ms);
        if self.machine.borrow().producers().reaches_behind(horizon_ms) {
            let command = PartitionCommand::ExpireProducers { horizon_ms };
            self.propose_quietly(&command, view.term);
        }
    }

    fn propose_quietly(&self, command: &PartitionCommand, term: Term) {
        match command.encode() {
            Ok(bytes) => {
                let payload = ProposalPayload::Internal(bytes);
                self.replica
                    .propose(Proposal { payload, term }, Box::new(Quiet));
            }
            Err(error) => {
                warn!(parent: &self.span(), %error, "a decision on the log cannot be encoded")
            }
        }
    }

    /// Purges what an applied decision has freed, beside everything else: it may take seconds, and
    /// whoever waits for the partition must not wait for it.
    pub(super) fn purge_decided(self: &Rc<Self>) {
        let decided = self.machine.borrow_mut().take_purge_target();
        if let Some(index) = decided {
            self.purges.borrow_mut().decided(index);
            self.purge_wanted();
        }
    }

    fn purge_wanted(self: &Rc<Self>) {
        let Some(first) = self.purges.borrow_mut().begin() else {
            return;
        };
        let partition = self.clone();
        self.env.spawn_local(async move {
            let mut next = Some(first);
            while let Some(index) = next {
                let result = partition.replica.purge_to(index).await;
                let failed = result.err().map(|error| error.to_string());
                let (mut purges, span) = (partition.purges.borrow_mut(), partition.span());
                next = purges.ended(index, failed.is_none());
                let Some(error) = failed else { continue };
                if purges.is_news(&error) {
                    warn!(parent: &span, %index, error, "the log could not be purged yet");
                } else {
                    debug!(parent: &span, %index, error, "the log cannot be purged yet");
                }
            }
        });
    }
}

/// Purges of one partition: one at a time, and what failed is wanted again.
///
/// Law: what is wanted only grows until it is done.
#[derive(Default)]
pub(super) struct Purges {
    wanted: Option<LogIndex>,
    running: bool,
    /// Purges that have failed since the last one that did not.
    failures: u32,
    /// Why they failed, as far as somebody was told.
    told: Option<String>,
}

/// So many purges in a row that fail are somebody's business.
const FAILURES_TOLD_FROM: u32 = 3;

impl Purges {
    /// Takes a decision in.
    fn decided(&mut self, index: LogIndex) {
        self.wanted = self.wanted.max(Some(index));
    }

    /// What to purge now, if anything; [`Purges::ended`] follows.
    fn begin(&mut self) -> Option<LogIndex> {
        if self.running {
            return None;
        }
        let index = self.wanted.take()?;
        self.running = true;
        Some(index)
    }

    /// Takes in how it ended. Returns what to purge next; after a failure nothing, until the next
    /// decision or the next look at retention.
    fn ended(&mut self, index: LogIndex, done: bool) -> Option<LogIndex> {
        self.running = false;
        if done {
            self.failures = 0;
            self.told = None;
            return self.begin();
        }
        self.failures = self.failures.saturating_add(1);
        self.decided(index);
        None
    }

    /// Whether somebody is to be told of a failure: of each cause once, until a purge succeeds. Not
    /// at first: soon after a start the saved tables may not reach as far yet as the decision.
    fn is_news(&mut self, cause: &str) -> bool {
        if self.failures < FAILURES_TOLD_FROM || self.told.as_deref() == Some(cause) {
            return false;
        }
        self.told = Some(cause.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::partition::TimestampType;

    fn settings(retention_ms: Option<i64>, retention_bytes: Option<u64>) -> PartitionSettings {
        PartitionSettings {
            min_insync_replicas: 1,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: i64::MAX,
            retention_ms,
            retention_bytes,
            cleanup_delete: true,
            segment_bytes: 100,
            segment_ms: 1,
            index_interval_bytes: 1,
            replica_lag_max: Duration::from_secs(1),
            producer_expiration_ms: 1,
        }
    }

    #[test]
    fn purges_run_one_at_a_time_and_what_failed_is_tried_again() {
        let index = LogIndex::new;
        let mut purges = Purges::default();
        assert_eq!(purges.begin(), None, "nothing is decided");
        purges.decided(index(10));
        assert_eq!(purges.begin(), Some(index(10)));
        purges.decided(index(20));
        assert_eq!(purges.begin(), None, "one is running");
        assert_eq!(purges.ended(index(10), true), Some(index(20)));
        assert_eq!(purges.ended(index(20), false), None, "not at once");
        assert_eq!(purges.begin(), Some(index(20)), "at the next look");
        purges.decided(index(30));
        assert_eq!(purges.ended(index(20), false), None);
        assert_eq!(purges.failures, 2, "not yet somebody's business");
        assert_eq!(purges.begin(), Some(index(30)), "the later one covers it");
        assert_eq!(purges.ended(index(30), true), None);
        assert_eq!(purges.failures, 0);
        assert_eq!(purges.begin(), None);
    }

    #[test]
    fn a_purge_that_fails_again_and_again_is_told_of_once_for_each_cause() {
        let index = LogIndex::new(10);
        let mut purges = Purges::default();
        let mut ended = |cause: Option<&str>| {
            purges.decided(index);
            purges.begin();
            purges.ended(index, cause.is_none());
            cause.is_some_and(|cause| purges.is_news(cause))
        };
        let young = Some("no saved tables reach that far");
        let mut run = |causes: &[Option<&str>]| -> Vec<bool> {
            causes.iter().map(|cause| ended(*cause)).collect()
        };
        assert_eq!(
            run(&[young; 6]),
            [false, false, true, false, false, false],
            "not at first, and then once"
        );
        assert_eq!(run(&[Some("the disk failed"); 2]), [true, false]);
        assert_eq!(run(&[young; 2]), [true, false], "it has changed");
        assert_eq!(run(&[None]), [false]);
        assert_eq!(run(&[young; 4]), [false, false, true, false], "anew");
    }

    #[test]
    fn whole_closed_segments_go_oldest_first() {
        let segments: Vec<SegmentFacts> = (0..4)
            .map(|i| SegmentFacts {
                first_index: LogIndex::new(i * 10),
                first_offset: Offset::new(i as i64 * 100),
                bytes: 1000,
                max_timestamp: i as i64 * 1000,
            })
            .collect();
        let start = |ms, bytes, now| {
            decide(&segments, &settings(ms, bytes), now).map(|(_, offset)| offset.get())
        };
        let cases = [
            ("keeps for ever", start(None, None, 1_000_000), None),
            (
                "the active segment stays, however old",
                start(Some(0), None, 1_000_000),
                Some(300),
            ),
            ("by age", start(Some(2_500), None, 4_000), Some(200)),
            ("young", start(Some(10_000), None, 4_000), None),
            ("by size", start(None, Some(2_000), 0), Some(200)),
            (
                "one goes only if enough is left without it",
                start(None, Some(3_500), 0),
                None,
            ),
            (
                "size of zero keeps the active one",
                start(None, Some(0), 0),
                Some(300),
            ),
        ];
        for (name, got, want) in cases {
            assert_eq!(got, want, "{name}");
        }
        let compacted = PartitionSettings {
            cleanup_delete: false,
            ..settings(Some(0), Some(0))
        };
        assert_eq!(
            decide(&segments, &compacted, 1_000_000),
            None,
            "compact alone deletes nothing"
        );
    }
}
