//! How fast the checker is: values seen per second, on one core.
//!
//! `cargo bench -p corduroy-jepsen --bench checker [-- --values N] [--partitions N]`
//!
//! A clean queue run is made up in memory: every value is sent once, polled by two consumers and
//! read four times at the end, as with three replicas. A *value seen* is one `(offset, value)` pair
//! of one read. Reading the file is measured beside it. Times are the processor's, not the wall's, so
//! that a busy machine does not blur them.

use std::time::Duration;

use corduroy_jepsen::checker;
use corduroy_jepsen::history::{
    Answer, Call, ClientSettings, Completion, Event, FORMAT, FinalSource, Header, History,
    HistoryWriter, Invocation, Key, Nanos, Outcome, PartitionRead, Plan, ProcessId, SendRecord,
    Value, WorkerId,
};

/// Values that one poll returns.
const POLL_VALUES: u64 = 50;
const WRITERS: u64 = 8;

fn option(name: &str, default: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} takes a number"))
    })
}

struct Maker {
    events: Vec<Event>,
    id: u64,
    now: u64,
}

impl Maker {
    fn call(&mut self, process: u32, call: Call, answer: Answer) {
        self.id += 1;
        self.events.push(Event::Invoke(Invocation {
            id: self.id,
            worker: WorkerId(process),
            process: ProcessId(process),
            at: Nanos(self.now),
            call,
        }));
        self.events.push(Event::Complete(Completion {
            id: self.id,
            at: Nanos(self.now + 900),
            outcome: Outcome::Ok(answer),
        }));
        self.now += 1_000;
    }
}

fn read(key: &Key, values: Vec<(i64, Value)>) -> Answer {
    let next = values.last().map_or(0, |(offset, _)| offset + 1);
    Answer::Read(vec![PartitionRead {
        key: key.clone(),
        from: values.first().map_or(0, |(offset, _)| *offset),
        next,
        values,
        foreign: Vec::new(),
        log_start: Some(0),
        high_watermark: Some(next),
        leader_epoch: Some(1),
        last_stable: None,
        asked: None,
        epochs: Vec::new(),
    }])
}

fn make(values: u64, partitions: u64) -> Vec<Event> {
    let mut maker = Maker {
        events: vec![Event::Header(Header {
            format: FORMAT,
            workload: "queue".to_owned(),
            nodes: vec![1, 2, 3],
            seed: 0,
            started_unix_millis: 0,
            settings: ClientSettings::default(),
            plan: Plan::default(),
        })],
        id: 0,
        now: 0,
    };
    let per_partition = values / partitions;
    for partition in 0..partitions {
        let key = Key::new("bench", partition as u32);
        let value = |offset: u64| {
            let writer = offset % WRITERS;
            let counter = partition * per_partition + offset;
            (offset as i64, Value::of(writer as u32, counter))
        };
        for from in (0..per_partition).step_by(POLL_VALUES as usize) {
            let batch = from..(from + POLL_VALUES).min(per_partition);
            for offset in batch.clone() {
                let (at, value) = value(offset);
                let send = SendRecord {
                    key: key.clone(),
                    value,
                    session: 0,
                    txn: None,
                    producer: None,
                };
                let answer = Answer::Sent { offset: Some(at) };
                maker.call(value.writer(), Call::Send(send), answer);
            }
            for consumer in [100, 101] {
                let keys = vec![key.clone()];
                let answer = read(&key, batch.clone().map(value).collect());
                maker.call(consumer, Call::Poll { keys }, answer);
            }
        }
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
            let mut answer = read(&key, (0..per_partition).map(value).collect());
            if let Answer::Read(reads) = &mut answer {
                reads[0].from = 0;
            }
            maker.call(200, call, answer);
        }
    }
    maker.events
}

/// What this thread has had of the processor.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn rate(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64() / 1e6
}

fn main() {
    let (values, partitions) = (option("--values", 1_000_000), option("--partitions", 10));
    let events = make(values, partitions);

    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("history.jsonl");
    let Event::Header(header) = &events[0] else {
        unreachable!("a history begins with its header");
    };
    let mut writer = HistoryWriter::create(&path, header).expect("a history");
    for event in &events[1..] {
        writer.append(event).expect("a line");
    }
    writer.flush().expect("a flush");
    let began = cpu_time();
    let from_file = History::read(&path).expect("what was written");
    let parsed = cpu_time() - began;
    let bytes = std::fs::metadata(&path).expect("the file").len();

    let history = History::from_events(events).expect("a history");
    assert!(from_file == history, "the file holds what was written");
    drop(from_file);
    let mut best = Duration::MAX;
    let mut seen = 0;
    for _ in 0..5 {
        let began = cpu_time();
        let verdict = checker::check(&history, &history.header.settings);
        best = best.min(cpu_time() - began);
        assert!(verdict.violations.is_empty(), "{}", verdict.line());
        seen = verdict.counts.values_read;
    }
    println!(
        "checker: {values} values sent, {seen} seen, {} calls, {partitions} partitions",
        history.operations.len()
    );
    println!(
        "  check  {:>7.2} M values sent/s  {:>7.2} M values seen/s  ({:.3} s)",
        rate(values, best),
        rate(seen, best),
        best.as_secs_f64()
    );
    println!(
        "  file   {:>7.2} M values sent/s  {:>7.0} MB/s  ({:.3} s, {} MB)",
        rate(values, parsed),
        bytes as f64 / parsed.as_secs_f64() / 1e6,
        parsed.as_secs_f64(),
        bytes / 1_000_000
    );
}
