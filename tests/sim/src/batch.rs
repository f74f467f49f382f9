//! Many seeds: a process each, as many at a time as there are cores.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use anyhow::Context;
use corduroy_env::Env;
use corduroy_sim::{POINTS, Sometimes};

use super::{Arguments, BROKEN, TOO_LITTLE, VIOLATION};

/// A batch of fewer seeds, or of seeds without some faults, need not reach every point.
const SEEDS_FOR_EVERY_POINT: u64 = 50;

/// How long the allocator of a seed's process keeps freed pages before the system gets them back, in
/// milliseconds: for ever. Nodes that start and die all the time would ask for them again. Set by
/// whoever runs a batch, it is left alone.
const KEEP_PAGES: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "-1");

struct Done {
    seed: u64,
    output: std::io::Result<Output>,
}

#[derive(Default)]
struct Sum {
    violations: Vec<(u64, String)>,
    broken: Vec<(u64, String)>,
    sometimes: Sometimes,
    millis: u64,
    cpu_micros: u64,
    numbers: BTreeMap<&'static str, u64>,
}

/// Runs them all. Returns the exit status.
pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let program = std::env::current_exe().context("where is this program?")?;
    let jobs = match arguments.jobs {
        Some(jobs) => jobs.max(1),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let rest = rest_of_command(arguments);
    let keep_pages = std::env::var_os(KEEP_PAGES.0)
        .is_none()
        .then_some(KEEP_PAGES);
    let last = arguments.first + arguments.seeds;
    let next = Arc::new(AtomicU64::new(arguments.first));
    let (sender, finished) = mpsc::channel();
    for job in 0..jobs {
        let (program, rest) = (program.clone(), rest.clone());
        let (next, sender) = (next.clone(), sender.clone());
        Env::real().spawn_thread(&format!("job-{job}"), move || {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= last {
                    return;
                }
                let output = Command::new(&program)
                    .args(["--seed", &seed.to_string()])
                    .args(&rest)
                    .envs(keep_pages)
                    .stdin(Stdio::null())
                    .output();
                if sender.send(Done { seed, output }).is_err() {
                    return;
                }
            }
        })?;
    }
    drop(sender);
    let mut sum = Sum::default();
    for done in finished {
        sum.take(done, &rest);
        if arguments.until_violation && !sum.violations.is_empty() {
            next.store(last, Ordering::Relaxed);
        }
    }
    Ok(sum.judge(arguments))
}

/// What a child, and whoever repeats a failure, is given besides the seed.
fn rest_of_command(arguments: &Arguments) -> Vec<String> {
    let mut rest = match arguments.seconds {
        Some(seconds) => vec!["--seconds".to_owned(), seconds.to_string()],
        None => vec!["--minutes".to_owned(), arguments.minutes.to_string()],
    };
    for class in &arguments.without {
        rest.extend(["--without".to_owned(), class.to_string()]);
    }
    rest
}

impl Sum {
    fn take(&mut self, done: Done, rest: &[String]) {
        let Done { seed, output } = done;
        let output = match output {
            Ok(output) => output,
            Err(error) => {
                self.broken.push((seed, error.to_string()));
                return;
            }
        };
        let text = String::from_utf8_lossy(&output.stdout);
        let mut violation = None;
        for line in text.lines() {
            if let Some(what) = line.strip_prefix("violation ") {
                violation = Some(what.to_owned());
            } else if let Some(counts) = line.strip_prefix("reached ") {
                for (point, times) in pairs(counts) {
                    self.sometimes.add(point, times);
                }
            } else if line.starts_with("seed=") {
                self.add(line);
            }
        }
        match (output.status.code(), violation) {
            (Some(0), None) => {}
            (Some(code), Some(what)) if code == i32::from(VIOLATION) => {
                println!("seed {seed}: {what}");
                print_again(seed, rest);
                self.violations.push((seed, what));
            }
            (code, _) => {
                let told = String::from_utf8_lossy(&output.stderr);
                let last = told.lines().last().unwrap_or("no word").to_owned();
                println!("seed {seed}: the simulator failed ({code:?}): {last}");
                print_again(seed, rest);
                self.broken.push((seed, last));
            }
        }
    }

    fn add(&mut self, line: &str) {
        for (name, number) in pairs(line) {
            match name {
                "millis" => self.millis += number,
                "cpu_micros" => self.cpu_micros += number,
                _ => {
                    let kept = ["acked", "failed", "unknown", "read", "events"];
                    if let Some(kept) = kept.into_iter().find(|kept| *kept == name) {
                        *self.numbers.entry(kept).or_default() += number;
                    }
                }
            }
        }
    }

    fn judge(&self, arguments: &Arguments) -> u8 {
        let number = |name| self.numbers.get(name).copied().unwrap_or(0);
        println!(
            "seeds {} to {}: {} violations; {} records acknowledged, {} refused, {} of unknown fate, {} \
             read",
            arguments.first,
            arguments.first + arguments.seeds - 1,
            self.violations.len(),
            number("acked"),
            number("failed"),
            number("unknown"),
            number("read")
        );
        println!(
            "{} simulated s in {} s of CPU: {} times as fast, {} events",
            self.millis / 1_000,
            self.cpu_micros / 1_000_000,
            (self.millis * 1_000)
                .checked_div(self.cpu_micros)
                .unwrap_or(0),
            number("events")
        );
        println!("reached, in all seeds together:");
        for (point, count) in self.sometimes.counts() {
            let what = POINTS.iter().find(|(name, _)| *name == point);
            println!(
                "  {count:>8}  {point}: {}",
                what.map_or("", |(_, what)| what)
            );
        }
        if !self.broken.is_empty() {
            return BROKEN;
        }
        if !self.violations.is_empty() {
            return VIOLATION;
        }
        let missing = self.sometimes.missing();
        let whole = arguments.seeds >= SEEDS_FOR_EVERY_POINT && arguments.without.is_empty();
        if whole && !missing.is_empty() {
            println!("never reached: {}", missing.join(", "));
            return TOO_LITTLE;
        }
        0
    }
}

/// How whoever reads it repeats a seed.
fn print_again(seed: u64, rest: &[String]) {
    println!(
        "  again: cargo run --release -p corduroy-sim -- --seed {seed} {}",
        rest.join(" ")
    );
}

/// `name=number` pairs of a line; what is not one is passed over.
fn pairs(line: &str) -> impl Iterator<Item = (&str, u64)> {
    line.split_whitespace().filter_map(|word| {
        let (name, number) = word.split_once('=')?;
        Some((name, number.parse().ok()?))
    })
}
