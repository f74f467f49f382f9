//! The report of a run: what a reader of `results.json` and of the page finds.

use std::collections::BTreeSet;

use corduroy_jepsen::checker;
use corduroy_jepsen::history::{
    Answer, Call, ClientSettings, Completion, Event, FORMAT, FaultEvent, FaultPhase, FinalSource,
    Header, History, Invocation, Key, Mark, Minima, Nanos, Outcome, PartitionRead, Plan, ProcessId,
    SendRecord, Value, WorkerId,
};
use corduroy_jepsen::report::{self, Results, RunSummary};
use corduroy_jepsen::verdict::{Class, Judgement};

/// A small generator, so that the same run comes out every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

const SECONDS: u64 = 120;
const HEALED_SECONDS: u64 = 105;
const MILLION: u64 = 1_000_000;
const PARTITIONS: u32 = 3;

/// The times of the faults of the made-up run.
const FAULTS: &[(&str, u64, u64, u32)] = &[
    ("kill", 10, 15, 1),
    ("partition", 22, 34, 2),
    ("pause", 40, 48, 3),
    ("slow-disk", 44, 56, 1),
    ("power-loss", 62, 68, 2),
    ("partition", 74, 84, 1),
    ("kill", 88, 93, 3),
    ("clock", 96, 102, 2),
];

struct Made {
    events: Vec<Event>,
    id: u64,
}

impl Made {
    fn call(&mut self, process: u32, at: u64, took: u64, call: Call, outcome: Outcome) {
        self.id += 1;
        self.events.push(Event::Invoke(Invocation {
            id: self.id,
            worker: WorkerId(process),
            process: ProcessId(process),
            at: Nanos(at * MILLION),
            call,
        }));
        self.events.push(Event::Complete(Completion {
            id: self.id,
            at: Nanos((at + took) * MILLION),
            outcome,
        }));
    }
}

fn read_of(key: &Key, from: i64, values: &[(i64, Value)]) -> PartitionRead {
    let next = values.last().map_or(from, |(offset, _)| offset + 1);
    PartitionRead {
        key: key.clone(),
        from,
        next,
        values: values.to_vec(),
        foreign: Vec::new(),
        log_start: Some(0),
        high_watermark: Some(next),
        leader_epoch: None,
        last_stable: None,
        asked: None,
        epochs: Vec::new(),
    }
}

/// A run as a cluster might live through it. `lose`: take one acknowledged value out of the log,
/// as a leader does that answers before its disk has it.
fn run(lose: bool) -> History {
    let mut dice = Dice(7);
    let header = Header {
        format: FORMAT,
        workload: "queue".to_owned(),
        nodes: vec![1, 2, 3],
        seed: 7,
        started_unix_millis: 1_760_000_000_000,
        settings: ClientSettings::default(),
        plan: Plan {
            faults: FAULTS
                .iter()
                .map(|fault| fault.0.to_owned())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            load_seconds: SECONDS,
            minima: Minima {
                times_each_fault: 1,
                ..Minima::for_run(30)
            },
            ..Plan::default()
        },
    };
    let mut made = Made {
        events: vec![
            Event::Header(header),
            Event::Mark(Mark::LoadBegin { at: Nanos(0) }),
        ],
        id: 0,
    };
    let keys: Vec<Key> = (0..PARTITIONS)
        .map(|partition| Key::new("orders", partition))
        .collect();
    let mut logs: Vec<Vec<(i64, Value)>> = vec![Vec::new(); keys.len()];
    let mut positions = vec![0usize; keys.len()];
    let mut counter = 0;
    let mut lost = false;
    for millis in (0..SECONDS * 1000).step_by(20) {
        let second = millis / 1000;
        let active = FAULTS
            .iter()
            .find(|(_, begin, end, _)| (*begin..*end).contains(&second));
        let electing = active.is_some_and(|(name, begin, _, _)| {
            matches!(*name, "kill" | "partition" | "power-loss" | "pause")
                && millis < begin * 1000 + 1_400
        });
        for (partition, key) in keys.iter().enumerate() {
            counter += 1;
            let value = Value::of(partition as u32 + 1, counter);
            let send = Call::Send(SendRecord {
                key: key.clone(),
                value,
                session: 0,
                txn: None,
                producer: None,
            });
            let process = partition as u32 + 1;
            if electing && partition == 0 {
                let outcome = match dice.below(3) {
                    0 => Outcome::Unknown {
                        error: "REQUEST_TIMED_OUT".to_owned(),
                    },
                    _ => Outcome::Fail {
                        error: "NOT_ENOUGH_REPLICAS".to_owned(),
                    },
                };
                made.call(process, millis, 300 + dice.below(900), send, outcome);
                continue;
            }
            let slow = if active.is_some() { 4 } else { 1 };
            let tail = if dice.below(60) == 0 { 40 } else { 0 };
            let took = 2 + dice.below(4 * slow) + tail * slow;
            let log = &mut logs[partition];
            let offset = log.len() as i64;
            let answer = Answer::Sent {
                offset: Some(offset),
            };
            made.call(process, millis, took, send, Outcome::Ok(answer));
            // The power goes, and with it what was acknowledged last.
            if lose && partition == 0 && second == 61 && !lost {
                lost = true;
            } else {
                log.push((offset, value));
            }
        }
        let polling = !active
            .is_some_and(|(name, begin, _, _)| *name == "pause" && millis < begin * 1000 + 4_000);
        if millis % 200 == 0 && polling {
            for (partition, key) in keys.iter().enumerate() {
                let log = &logs[partition];
                // What was acknowledged a moment ago, no more than fits in one answer.
                let end = log.len().saturating_sub(2).min(positions[partition] + 60);
                let from = positions[partition].min(end);
                let read = read_of(key, from as i64, &log[from..end]);
                positions[partition] = end;
                let call = Call::Poll {
                    keys: vec![key.clone()],
                };
                made.call(
                    11,
                    millis + 5,
                    10,
                    call,
                    Outcome::Ok(Answer::Read(vec![read])),
                );
            }
        }
    }
    let load_end = SECONDS * 1000 + 500;
    let read_out = load_end + 1_000;
    for (partition, key) in keys.iter().enumerate() {
        let rest = &logs[partition][positions[partition]..];
        let read = read_of(key, positions[partition] as i64, rest);
        let keys = vec![key.clone()];
        let answer = Answer::Read(vec![read]);
        made.call(
            11,
            load_end + 300,
            200,
            Call::Poll { keys },
            Outcome::Ok(answer),
        );
    }
    for (partition, key) in keys.iter().enumerate() {
        let sources = [
            FinalSource::Client,
            FinalSource::Replica(1),
            FinalSource::Replica(2),
            FinalSource::Replica(3),
        ];
        for source in sources {
            let call = Call::FinalRead {
                key: key.clone(),
                source,
            };
            let read = read_of(key, 0, &logs[partition]);
            made.call(
                20,
                read_out + 1_000,
                150,
                call,
                Outcome::Ok(Answer::Read(vec![read])),
            );
        }
    }
    for (id, (name, begin, end, node)) in FAULTS.iter().enumerate() {
        for (phase, at) in [(FaultPhase::Begin, begin), (FaultPhase::End, end)] {
            made.events.push(Event::Fault(FaultEvent {
                id: id as u64,
                fault: (*name).to_owned(),
                phase,
                at: Nanos::from_seconds(*at as f64),
                targets: vec![*node],
                manner: String::new(),
                detail: String::new(),
            }));
        }
    }
    made.events.push(Event::Mark(Mark::Healed {
        at: Nanos(HEALED_SECONDS * 1000 * MILLION),
    }));
    made.events.push(Event::Mark(Mark::LoadEnd {
        at: Nanos(load_end * MILLION),
    }));
    made.events.push(Event::Mark(Mark::ReadOut {
        from: Nanos(load_end * MILLION),
        until: Nanos(read_out * MILLION),
    }));
    History::from_events(made.events).unwrap()
}

fn summary() -> RunSummary {
    RunSummary {
        command: "corduroy-jepsen run --time 120 --faults all --seed 7".to_owned(),
        product: "corduroy <0.1.0>".to_owned(),
        preflight: vec!["kill: possible".to_owned()],
        total_seconds: 141.0,
        node_logs: (1..=3).map(|node| format!("node-{node}.log")).collect(),
        ..RunSummary::default()
    }
}

fn report_of(history: &History) -> (Results, String) {
    let directory = tempfile::tempdir().unwrap();
    let verdict = checker::check(history, &history.header.settings);
    let files = report::write(directory.path(), &summary(), history, &verdict).unwrap();
    let results = serde_json::from_slice(&std::fs::read(&files.results).unwrap()).unwrap();
    let html = std::fs::read_to_string(&files.html).unwrap();
    // For looking at: CORDUROY_REPORT_DIR=/somewhere cargo test -p corduroy-jepsen --test report
    if let Some(kept) = std::env::var_os("CORDUROY_REPORT_DIR") {
        let name = format!("{:?}.html", verdict.judgement());
        std::fs::write(std::path::Path::new(&kept).join(name), &html).unwrap();
    }
    (results, html)
}

#[test]
fn a_clean_run_reports_a_pass_with_its_numbers() {
    let (results, html) = report_of(&run(false));
    assert_eq!(results.judgement, Judgement::Pass, "{}", results.line);
    assert_eq!(results.exit_code, 0);
    assert_eq!(results.verdict.counts.lost, 0);
    assert_eq!(results.verdict.coverage.faults["partition"], 2);
    assert_eq!(
        results.verdict.coverage.partitions_compared,
        u64::from(PARTITIONS)
    );
    // The election of 1.4 s, and what the first write after it took.
    let gap = &results.verdict.availability.after_fault["power-loss"];
    assert!((1.3..1.7).contains(&gap.longest_seconds), "{gap:?}");
    assert_eq!(gap.partition, "orders/0");
    // The slow disk had ended before the power was lost, and is not blamed for that.
    let gap = &results.verdict.availability.after_fault["slow-disk"];
    assert!(gap.longest_seconds < 0.5, "{gap:?}");
    // While a node was paused nobody polled for four seconds; after the heal every poll was in time.
    let delivery = &results.verdict.delivery;
    let longest = delivery.longest.as_ref().unwrap().seconds;
    let after = delivery.longest_after_heal.as_ref().unwrap().seconds;
    assert!((4.0..9.0).contains(&longest), "{delivery:?}");
    assert!(after < 2.0, "{delivery:?}");
    assert!(html.contains("longest from an acknowledgement to a consumer"));
    assert!(html.contains("<h1>Pass</h1>"));
    assert!(html.contains("corduroy &lt;0.1.0&gt;"), "text is escaped");
    assert!(html.contains("Minima scaled down"));
    assert_eq!(html.matches("<figure>").count(), 5);
}

#[test]
fn a_lost_write_is_shown_with_its_neighbours() {
    let (results, html) = report_of(&run(true));
    assert_eq!(results.judgement, Judgement::Violation);
    let names: Vec<&str> = results
        .verdict
        .classes()
        .iter()
        .map(|class| class.name())
        .collect();
    assert!(names.contains(&Class::LostWrite.name()), "{names:?}");
    assert_eq!(results.verdict.counts.lost, 1);
    let lost = &results.verdict.violations[0];
    let offset = lost.examples[0].offsets[0];
    assert!(html.contains("<h1>Violation</h1>"));
    let row = format!("<tr class=\"damaged\"><td>{offset}</td>");
    assert!(html.contains(&row), "the damaged offset is marked");
    assert!(
        html.contains(&format!("<tr><td>{}</td>", offset - 1)),
        "its neighbour is there"
    );
    assert!(html.contains("node 2&#39;s replica") || html.contains("node 2's replica"));
}

/// It can be mailed: nothing is fetched, nothing runs, and it stays small.
#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let (_, html) = report_of(&run(true));
    for outside in ["<script", "http://", "https://", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.len() < 600_000, "{} bytes", html.len());
}

/// Nothing that clients saw is wrong, but a node ended by itself: whoever looks at any of the files
/// must see it.
#[test]
fn a_breakdown_is_a_violation_in_every_file() {
    let mut history = run(false);
    history.marks.push(Mark::Breakdown {
        at: Nanos(90_500 * MILLION),
        what: "node 2 ended by itself with signal: 6; its last words: <oh>".to_owned(),
    });
    let (results, html) = report_of(&history);
    assert_eq!(results.judgement, Judgement::Violation);
    assert_eq!(results.exit_code, 1);
    assert!(
        results.line.starts_with("VIOLATION: breakdown x1; "),
        "{}",
        results.line
    );
    assert_eq!(results.verdict.classes(), [Class::Breakdown]);
    assert!(html.contains("<h1>Violation</h1>"));
    assert!(html.contains("node 2 ended by itself with signal: 6; its last words: &lt;oh&gt;"));
}

/// `all` leaves out what a machine cannot do: the line says how much that was, the page what.
#[test]
fn faults_that_were_left_out_are_named() {
    let mut history = run(false);
    history.header.plan.skipped = vec!["loss".to_owned(), "power-loss-all".to_owned()];
    let (results, html) = report_of(&history);
    assert!(
        results.line.contains(", 2 faults not possible here"),
        "{}",
        results.line
    );
    assert!(html.contains("loss, power-loss-all"));
}
