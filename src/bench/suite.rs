//! `bench suite`: every row of docs/benchmarks.md against three nodes of its own.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use corduroy_client::Client;
use corduroy_env::Env;

use super::load::BenchTopic;
use super::options::{EndToEndArgs, LoadArgs, ProduceArgs, ProducerArgs};
use super::report::{AnyReport, Report, markdown_head, markdown_row};
use super::spawned::SpawnedCluster;
use super::suite_groups::{self, GroupsRow};
use super::suite_nodes;
use super::target::wait_for;
use super::{consume, end_to_end, produce, unless};
use crate::cli::{
    AcksArg, CliError, CliResult, Codec, Interrupt, parse_duration, print, print_json,
};

/// Bytes that a row for reading writes first, and at most so many records: small ones take longer to
/// write than to read.
const CONSUME_BYTES: u64 = 512 << 20;
const CONSUME_RECORDS_MAX: u64 = 3_000_000;

/// Records a second of the rows that measure from end to end: of large ones fewer, so that the bytes
/// stay below what the nodes take.
const END_TO_END_RATE: u32 = 1_000;
const END_TO_END_RATE_LARGE: u32 = 200;

#[derive(Clone, Debug, Args)]
pub struct SuiteArgs {
    /// How long each row runs
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub duration: Duration,

    /// Nodes to start
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u8).range(1..=7))]
    pub nodes: u8,

    /// Run only rows whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,

    /// Where the nodes keep their data [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Print JSON instead of a markdown table
    #[arg(long)]
    pub json: bool,
}

/// What each kind of load is measured with: every record size with every number of partitions, and
/// where it writes, with every kind of acknowledgement.
const RECORD_BYTES: [u32; 3] = [100, 1024, LARGE_BYTES];
const PARTITIONS: [i32; 3] = [1, 16, 100];
const LARGE_BYTES: u32 = 65_536;

/// What a row measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Produce,
    Consume,
    EndToEnd,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    kind: Kind,
    record_bytes: u32,
    partitions: i32,
    acks: AcksArg,
    window: u32,
    linger: Duration,
    rate: Option<u32>,
}

impl Row {
    const fn produce(record_bytes: u32, partitions: i32, acks: AcksArg) -> Row {
        Row {
            kind: Kind::Produce,
            record_bytes,
            partitions,
            acks,
            window: 32_768,
            linger: Duration::from_millis(5),
            rate: None,
        }
    }

    const fn one_at_a_time(acks: AcksArg) -> Row {
        Row {
            window: 1,
            linger: Duration::ZERO,
            ..Row::produce(1024, 1, acks)
        }
    }

    const fn consume(record_bytes: u32, partitions: i32) -> Row {
        Row {
            kind: Kind::Consume,
            ..Row::produce(record_bytes, partitions, AcksArg::All)
        }
    }

    const fn end_to_end(record_bytes: u32, partitions: i32, acks: AcksArg) -> Row {
        Row {
            kind: Kind::EndToEnd,
            linger: Duration::ZERO,
            rate: Some(match record_bytes {
                LARGE_BYTES.. => END_TO_END_RATE_LARGE,
                _ => END_TO_END_RATE,
            }),
            ..Row::produce(record_bytes, partitions, acks)
        }
    }

    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Produce => "produce",
            Kind::Consume => "consume",
            Kind::EndToEnd => "end-to-end",
        };
        let acks = match self.acks {
            AcksArg::None => "0",
            AcksArg::Leader => "1",
            AcksArg::All => "all",
        };
        format!(
            "{kind} {} B, {} partitions, acks={acks}, window {}",
            self.record_bytes, self.partitions, self.window
        )
    }
}

/// The rows of docs/benchmarks.md, in its order.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let matrix = || {
        let partitions = PARTITIONS.into_iter();
        partitions.flat_map(|partitions| RECORD_BYTES.map(|bytes| (bytes, partitions)))
    };
    for acks in [AcksArg::All, AcksArg::Leader] {
        rows.extend(matrix().map(|(bytes, partitions)| Row::produce(bytes, partitions, acks)));
        rows.push(Row::one_at_a_time(acks));
        rows.push(Row {
            window: 64,
            linger: Duration::ZERO,
            ..Row::produce(1024, 1, acks)
        });
    }
    rows.extend(matrix().map(|(bytes, partitions)| Row::consume(bytes, partitions)));
    for acks in [AcksArg::All, AcksArg::Leader] {
        rows.extend(matrix().map(|(bytes, partitions)| Row::end_to_end(bytes, partitions, acks)));
    }
    rows.push(Row {
        rate: Some(5_000),
        ..Row::end_to_end(1024, 16, AcksArg::All)
    });
    rows
}

pub(super) async fn run(env: &Env, args: &SuiteArgs, interrupt: &mut Interrupt) -> CliResult {
    let began = env.now();
    let is_asked = |name: String| args.only.as_ref().is_none_or(|only| name.contains(only));
    let mut rows = rows();
    rows.retain(|row| is_asked(row.name()));
    let mut groups = suite_groups::rows();
    groups.retain(|row| is_asked(row.name()));
    let mut nodes = suite_nodes::rows();
    nodes.retain(|row| is_asked(row.name()));
    if rows.is_empty() && groups.is_empty() && nodes.is_empty() {
        return Err(CliError::usage("no row has a name with that text").into());
    }
    let mut reports: Vec<AnyReport> = Vec::new();
    if !args.json {
        print(&format!("{}\n", machine(args)))?;
    }
    if !rows.is_empty() || !groups.is_empty() {
        let mut cluster =
            SpawnedCluster::start(env, args.nodes.into(), args.dir.as_deref()).await?;
        let result = measure_all(env, args, &rows, &groups, &mut cluster, interrupt).await;
        cluster.stop(env).await;
        reports.extend(result?);
    }
    let mut table = None;
    for row in nodes {
        eprintln!("{}", row.name());
        let report = unless(interrupt, row.measure(env, args)).await?;
        if args.json {
            reports.push(report);
            continue;
        }
        if table.replace(row.table()) != Some(row.table()) {
            print(&format!("\n{}", row.head()))?;
        }
        print(&report.markdown_row())?;
    }
    if args.json {
        print_json(&reports)?;
    }
    let minutes = (env.now() - began).as_secs_f64() / 60.0;
    eprintln!("the suite took {minutes:.1} minutes");
    Ok(())
}

/// The rows that share three nodes; what is not printed at once comes back.
async fn measure_all(
    env: &Env,
    args: &SuiteArgs,
    rows: &[Row],
    groups: &[GroupsRow],
    cluster: &mut SpawnedCluster,
    interrupt: &mut Interrupt,
) -> CliResult<Vec<AnyReport>> {
    let client = unless(interrupt, wait_for(env, cluster, args.nodes)).await?;
    let mut reports: Vec<AnyReport> = Vec::new();
    if !args.json && !rows.is_empty() {
        print(&format!("\n{}", markdown_head()))?;
    }
    for row in rows {
        eprintln!("{}", row.name());
        cluster.check()?;
        let report = measure(env, &client, args, row, &cluster.pids(), interrupt).await?;
        if args.json {
            reports.push(report.into());
        } else {
            print(&markdown_row(&report))?;
        }
    }
    let mut table = None;
    for row in groups {
        eprintln!("{}", row.name());
        cluster.check()?;
        let pids = cluster.pids();
        let report = row.measure(env, &client, args, &pids, interrupt).await?;
        if args.json {
            reports.push(report);
            continue;
        }
        if table.replace(row.table()) != Some(row.table()) {
            print(&format!("\n{}", row.head()))?;
        }
        print(&report.markdown_row())?;
    }
    Ok(reports)
}

async fn measure(
    env: &Env,
    client: &Client,
    args: &SuiteArgs,
    row: &Row,
    pids: &[u32],
    interrupt: &mut Interrupt,
) -> CliResult<Report> {
    let load = LoadArgs {
        topic: None,
        partitions: row.partitions,
        replication: Some(i16::from(args.nodes.min(3))),
        records: (row.kind == Kind::Consume).then(|| {
            let records = CONSUME_BYTES / u64::from(row.record_bytes).max(1);
            records.min(CONSUME_RECORDS_MAX)
        }),
        bytes: row.record_bytes,
        duration: (row.kind != Kind::Consume).then_some(args.duration),
        watch_pid: pids.to_vec(),
        json: false,
    };
    let producer = ProducerArgs {
        acks: row.acks,
        window: row.window,
        linger: row.linger,
        batch_bytes: 131_072,
        rate: row.rate,
        compression: Codec::None,
    };
    let topic = BenchTopic::prepare(env, client, &load).await?;
    let work = async |topic: &BenchTopic| match row.kind {
        Kind::Produce => {
            produce::measure(env, client, &ProduceArgs { load, producer }, topic).await
        }
        Kind::EndToEnd => {
            end_to_end::measure(env, client, &EndToEndArgs { load, producer }, topic).await
        }
        Kind::Consume => {
            consume::fill(env, client, &load, topic, None).await?;
            consume::measure(env, client, &load, topic).await
        }
    };
    topic.during(client, interrupt, work).await
}

/// What the numbers were measured on.
fn machine(args: &SuiteArgs) -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| {
            line.strip_prefix("model name")?
                .split_once(':')
                .map(|(_, name)| name)
        })
        .map_or("unknown processor", str::trim);
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let build = if cfg!(debug_assertions) {
        "debug build"
    } else {
        "release build"
    };
    format!(
        "corduroy {} ({build}), {} nodes and the client on one machine: {cores} cores of {model}; \
         {} s a row",
        env!("CARGO_PKG_VERSION"),
        args.nodes,
        args.duration.as_secs_f64(),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own() {
        let rows = rows();
        let names: HashSet<String> = rows
            .iter()
            .map(|row| format!("{} {:?}", row.name(), row.rate))
            .collect();
        assert_eq!(names.len(), rows.len());
        // The matrix that is promised: whoever takes a cell out has to say so here.
        for bytes in [100, 1024, 65_536] {
            for partitions in [1, 16, 100] {
                let has = |kind: Kind, acks: AcksArg| {
                    let is_it = |row: &&Row| {
                        (row.kind, row.acks) == (kind, acks)
                            && (row.record_bytes, row.partitions) == (bytes, partitions)
                    };
                    assert!(
                        rows.iter().find(is_it).is_some(),
                        "{kind:?} {bytes} {partitions} {acks:?}"
                    );
                };
                has(Kind::Consume, AcksArg::All);
                for acks in [AcksArg::Leader, AcksArg::All] {
                    has(Kind::Produce, acks);
                    has(Kind::EndToEnd, acks);
                }
            }
        }
    }
}
