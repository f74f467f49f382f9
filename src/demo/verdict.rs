//! Reading everything back, and saying what was found.

use std::cell::RefCell;
use std::fmt::Write;
use std::time::Duration;

use corduroy_client::{Client, From};

use super::ledger::{Findings, Ledger, LongestGap, Place};
use super::sample::{self, TOPIC};
use crate::cli::{CliResult, client_error, plural, show_duration};

/// What the demo found out.
pub(super) struct Verdict {
    findings: Findings,
    acknowledged: u64,
    failed: u64,
    longest_gap: Option<LongestGap>,
}

impl Verdict {
    /// Reads every partition from its start to its high watermark and holds it against the ledger.
    pub(super) async fn reach(client: &Client, ledger: &RefCell<Ledger>) -> CliResult<Verdict> {
        let mut records = Vec::new();
        let mut reader = client
            .read(TOPIC)
            .from(From::Earliest)
            .until_high_watermark();
        while let Some(batch) = reader.next().await {
            let batch = batch
                .map_err(|error| client_error(&error, "cannot read the demo's records back"))?;
            for record in &batch {
                let id = sample::identify(record.key(), record.value());
                let place = Place {
                    partition: record.partition(),
                    offset: record.offset(),
                };
                records.push((id, place));
            }
        }
        let ledger = ledger.borrow();
        let mut audit = ledger.audit();
        for (id, place) in records {
            match id {
                Some(id) => audit.read(id, place),
                None => audit.read_foreign(place),
            }
        }
        Ok(Verdict {
            findings: audit.finish(),
            acknowledged: ledger.acknowledged_count(),
            failed: ledger.failed_count(),
            longest_gap: ledger.longest_gap(),
        })
    }

    /// Every promise was kept, and there was at least one.
    pub(super) fn is_passed(&self) -> bool {
        self.findings.is_clean() && self.acknowledged > 0
    }

    /// The verdict for people.
    pub(super) fn text(&self) -> String {
        let Findings {
            read,
            lost,
            duplicated,
            disordered,
            moved,
            impossible,
            examples,
        } = &self.findings;
        let mut text = format!(
            "verdict: {}\n  acknowledged  {} ({} failed)\n  read back     {}: {lost} lost, \
             {duplicated} duplicated, {disordered} out of order, {moved} moved, {impossible} \
             impossible\n",
            if self.is_passed() { "passed" } else { "FAILED" },
            plural(self.acknowledged, "record", "records"),
            self.failed,
            plural(*read, "record", "records"),
        );
        if let Some(LongestGap {
            partition,
            gap,
            ended_at,
        }) = self.longest_gap
        {
            // Writing to a String can't fail.
            let _ = writeln!(
                text,
                "  longest gap   {} without an acknowledgement ({TOPIC}/{partition}, ended at {})",
                show_duration(gap),
                at(ended_at)
            );
        }
        for example in examples {
            let _ = writeln!(text, "  {example}");
        }
        text
    }
}

/// A moment of the demo: `6.7 s`.
pub(super) fn at(since_start: Duration) -> String {
    format!("{:.1} s", since_start.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lost: u64, acknowledged: u64) -> Verdict {
        Verdict {
            findings: Findings {
                read: 9_000,
                lost,
                ..Findings::default()
            },
            acknowledged,
            failed: 0,
            longest_gap: Some(LongestGap {
                partition: 3,
                gap: Duration::from_millis(412),
                ended_at: Duration::from_millis(7_100),
            }),
        }
    }

    #[test]
    fn a_kept_promise_reads_well() {
        let expected = "\
verdict: passed
  acknowledged  9,000 records (0 failed)
  read back     9,000 records: 0 lost, 0 duplicated, 0 out of order, 0 moved, 0 impossible
  longest gap   412 ms without an acknowledgement (orders/3, ended at 7.1 s)
";
        assert_eq!(verdict(0, 9_000).text(), expected);
    }

    #[test]
    fn one_lost_record_or_none_at_all_is_a_failure() {
        assert!(!verdict(1, 9_000).is_passed());
        assert!(verdict(1, 9_000).text().starts_with("verdict: FAILED"));
        assert!(!verdict(0, 0).is_passed());
    }
}
