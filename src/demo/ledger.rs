//! The judge: what was promised to the producer, held against what can be read.
//!
//! Pure bookkeeping. Each record is one number of one key; numbers of a key ascend from 1.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

/// A record's identity: numbers count within a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId {
    pub key: u32,
    pub number: u64,
}

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub partition: i32,
    pub offset: i64,
}

/// What is known of a record that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Not answered yet, or failed with an unknown outcome: it may be there, once, or not.
    Open,
    /// The broker promised that it is there, at that place.
    Acknowledged(Place),
    /// The broker promised that it is there, and has forgotten where.
    AcknowledgedSomewhere,
    /// The client promised that it is not there.
    NotWritten,
}

/// Everything that was sent and what became of it.
///
/// Law: a record has one fate; only an open one changes.
#[derive(Default)]
pub struct Ledger {
    fates: HashMap<RecordId, Fate>,
    acknowledged: u64,
    failed: u64,
    gaps: HashMap<i32, Gap>,
}

/// The acknowledgements of one partition over time.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    last_ack: Duration,
    longest: Duration,
    longest_ended: Duration,
}

/// The longest silence of a partition that had records on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LongestGap {
    pub partition: i32,
    pub gap: Duration,
    /// When it ended, since the start of the traffic.
    pub ended_at: Duration,
}

impl Ledger {
    /// A record goes out.
    pub fn sent(&mut self, id: RecordId) {
        self.fates.insert(id, Fate::Open);
    }

    /// Its acknowledgement arrived, `at` after the start of the traffic.
    pub fn acknowledged(&mut self, id: RecordId, place: Place, at: Duration) {
        if let Some(fate @ Fate::Open) = self.fates.get_mut(&id) {
            *fate = Fate::Acknowledged(place);
            self.acknowledged += 1;
        }
        let gap = self.gaps.entry(place.partition).or_insert(Gap {
            last_ack: at,
            ..Gap::default()
        });
        let silence = at.saturating_sub(gap.last_ack);
        if silence > gap.longest {
            gap.longest = silence;
            gap.longest_ended = at;
        }
        gap.last_ack = at;
    }

    /// Its acknowledgement arrived without an offset.
    pub fn acknowledged_somewhere(&mut self, id: RecordId) {
        if let Some(fate @ Fate::Open) = self.fates.get_mut(&id) {
            *fate = Fate::AcknowledgedSomewhere;
            self.acknowledged += 1;
        }
    }

    /// It failed. `may_exist` is false where the client knows that it was not written.
    pub fn failed(&mut self, id: RecordId, may_exist: bool) {
        self.failed += 1;
        if let Some(fate @ Fate::Open) = self.fates.get_mut(&id)
            && !may_exist
        {
            *fate = Fate::NotWritten;
        }
    }

    /// Acknowledged so far.
    pub fn acknowledged_count(&self) -> u64 {
        self.acknowledged
    }

    /// Failed so far.
    pub fn failed_count(&self) -> u64 {
        self.failed
    }

    /// The longest silence of any one partition.
    pub fn longest_gap(&self) -> Option<LongestGap> {
        self.gaps
            .iter()
            .map(|(&partition, gap)| LongestGap {
                partition,
                gap: gap.longest,
                ended_at: gap.longest_ended,
            })
            .max_by_key(|gap| (gap.gap, -gap.partition))
    }

    /// Starts to compare with what can be read.
    pub fn audit(&self) -> Audit<'_> {
        Audit {
            ledger: self,
            seen: HashMap::new(),
            last_numbers: HashMap::new(),
            findings: Findings::default(),
        }
    }
}

/// What is wrong with the log; all zero is what we want.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Records read.
    pub read: u64,
    /// Acknowledged and not there.
    pub lost: u64,
    /// There more than once.
    pub duplicated: u64,
    /// Behind a later number of the same key.
    pub disordered: u64,
    /// Acknowledged at another place than where it is.
    pub moved: u64,
    /// Never sent, or promised not to be there.
    pub impossible: u64,
    /// The first few offenders, for people.
    pub examples: Vec<String>,
}

impl Findings {
    const EXAMPLES_MAX: usize = 10;

    /// Every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.lost + self.duplicated + self.disordered + self.moved + self.impossible == 0
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < Self::EXAMPLES_MAX {
            self.examples.push(text());
        }
    }
}

/// A comparison under way: feed it each partition from its start to its end.
pub struct Audit<'a> {
    ledger: &'a Ledger,
    seen: HashMap<RecordId, u32>,
    /// Per key: a key lives in one partition, so its numbers ascend within it.
    last_numbers: HashMap<u32, u64>,
    findings: Findings,
}

impl Audit<'_> {
    /// The next record of a partition, in offset order.
    pub fn read(&mut self, id: RecordId, place: Place) {
        self.findings.read += 1;
        let name = || {
            format!(
                "key {} number {} at {}/{}",
                id.key, id.number, place.partition, place.offset
            )
        };
        let times = self.seen.entry(id).or_default();
        *times += 1;
        if *times > 1 {
            self.findings.duplicated += 1;
            self.findings.example(|| format!("duplicate: {}", name()));
            return;
        }
        let last = self.last_numbers.entry(id.key).or_default();
        if id.number < *last {
            self.findings.disordered += 1;
            self.findings
                .example(|| format!("out of order: {}", name()));
        }
        *last = id.number.max(*last);
        match self.ledger.fates.get(&id) {
            Some(Fate::Acknowledged(promised)) if *promised != place => {
                let (partition, offset) = (promised.partition, promised.offset);
                self.findings.moved += 1;
                self.findings
                    .example(|| format!("moved: {}, promised at {partition}/{offset}", name()));
            }
            Some(Fate::Acknowledged(_) | Fate::AcknowledgedSomewhere | Fate::Open) => {}
            Some(Fate::NotWritten) | None => {
                self.findings.impossible += 1;
                self.findings.example(|| format!("impossible: {}", name()));
            }
        }
    }

    /// A record that no producer of ours wrote.
    pub fn read_foreign(&mut self, place: Place) {
        self.findings.read += 1;
        self.findings.impossible += 1;
        self.findings.example(|| {
            format!(
                "impossible: foreign record at {}/{}",
                place.partition, place.offset
            )
        });
    }

    /// All partitions have been read: what is missing?
    pub fn finish(mut self) -> Findings {
        let mut lost: Vec<(RecordId, Option<Place>)> = self
            .ledger
            .fates
            .iter()
            .filter(|(id, _)| !self.seen.contains_key(id))
            .filter_map(|(id, fate)| match fate {
                Fate::Acknowledged(place) => Some((*id, Some(*place))),
                Fate::AcknowledgedSomewhere => Some((*id, None)),
                Fate::Open | Fate::NotWritten => None,
            })
            .collect();
        lost.sort_unstable_by_key(|(id, _)| *id);
        for (id, place) in lost {
            self.findings.lost += 1;
            self.findings.example(|| match place {
                Some(Place { partition, offset }) => format!(
                    "lost: key {} number {}, promised at {partition}/{offset}",
                    id.key, id.number
                ),
                None => format!("lost: key {} number {}", id.key, id.number),
            });
        }
        self.findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn id(key: u32, number: u64) -> RecordId {
        RecordId { key, number }
    }

    const fn place(offset: i64) -> Place {
        Place {
            partition: 0,
            offset,
        }
    }

    /// Three records of key 1 are acknowledged at offsets 0 to 2; number 4 is open, number 5 is
    /// promised not to be there.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for number in 1..=5 {
            ledger.sent(id(1, number));
        }
        for (offset, number) in (1..=3).enumerate() {
            let at = Duration::from_millis(10 * number);
            ledger.acknowledged(id(1, number), place(offset as i64), at);
        }
        ledger.failed(id(1, 4), true);
        ledger.failed(id(1, 5), false);
        ledger
    }

    fn judged(records: &[(u64, i64)]) -> Findings {
        let ledger = ledger();
        let mut audit = ledger.audit();
        for &(number, offset) in records {
            audit.read(id(1, number), place(offset));
        }
        Findings {
            examples: Vec::new(),
            ..audit.finish()
        }
    }

    #[test]
    fn each_broken_promise_is_counted_as_what_it_is() {
        let clean = Findings {
            read: 3,
            ..Findings::default()
        };
        let cases: [(&[(u64, i64)], Findings); 7] = [
            (&[(1, 0), (2, 1), (3, 2)], clean.clone()),
            (
                &[(1, 0), (2, 1), (3, 2), (4, 3)],
                Findings {
                    read: 4,
                    ..clean.clone()
                },
            ),
            (
                &[(1, 0), (3, 2)],
                Findings {
                    read: 2,
                    lost: 1,
                    ..clean.clone()
                },
            ),
            (
                &[(1, 0), (2, 1), (3, 2), (2, 3)],
                Findings {
                    read: 4,
                    duplicated: 1,
                    ..clean.clone()
                },
            ),
            (
                &[(1, 0), (2, 7), (3, 2)],
                Findings {
                    moved: 1,
                    ..clean.clone()
                },
            ),
            (
                &[(2, 1), (1, 0), (3, 2)],
                Findings {
                    disordered: 1,
                    ..clean.clone()
                },
            ),
            (
                &[(1, 0), (2, 1), (3, 2), (5, 3), (6, 4)],
                Findings {
                    read: 5,
                    impossible: 2,
                    ..clean.clone()
                },
            ),
        ];
        for (records, expected) in cases {
            assert_eq!(judged(records), expected, "{records:?}");
        }
        assert!(clean.is_clean());
        assert!(!judged(&[]).is_clean());
    }

    #[test]
    fn offenders_are_named() {
        let ledger = ledger();
        let mut audit = ledger.audit();
        audit.read(id(1, 1), place(0));
        audit.read_foreign(place(1));
        assert_eq!(
            audit.finish().examples,
            [
                "impossible: foreign record at 0/1",
                "lost: key 1 number 2, promised at 0/1",
                "lost: key 1 number 3, promised at 0/2",
            ]
        );
    }

    #[test]
    fn the_longest_gap_is_that_of_one_partition() {
        let mut ledger = Ledger::default();
        let ms = Duration::from_millis;
        for (partition, at) in [(0, 0), (1, 5), (0, 10), (1, 500), (0, 400), (1, 510)] {
            let record = id(partition, at);
            ledger.sent(record);
            let place = Place {
                partition: partition as i32,
                offset: at as i64,
            };
            ledger.acknowledged(record, place, ms(at));
        }
        assert_eq!(
            ledger.longest_gap(),
            Some(LongestGap {
                partition: 1,
                gap: ms(495),
                ended_at: ms(500)
            })
        );
        assert_eq!(ledger.acknowledged_count(), 6);
    }
}
