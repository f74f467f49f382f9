//! `bench consume`.

use std::time::Duration;

use corduroy_client::{Client, From, Reader};
use corduroy_env::Env;

use super::load::{BenchTopic, Plan, build_producer, send};
use super::options::{ConsumeArgs, Limit, LoadArgs, ProducerArgs};
use super::produce::{own_cpu_seconds, refuse_silence};
use super::progress::Progress;
use super::report::{Report, Totals};
use super::watch::Watch;
use crate::cli::{AcksArg, CliError, CliResult, Codec, Interrupt, client_error};

/// How long reading may take where nobody says.
const READ_WAIT_MAX: Duration = Duration::from_secs(600);

/// Records written into a fresh topic where nobody says how many.
const RECORDS_DEFAULT: u64 = 1_000_000;

/// Fills a topic unless one is named, measures, and disposes of it.
pub(super) async fn run(
    env: &Env,
    client: &Client,
    args: &ConsumeArgs,
    interrupt: &mut Interrupt,
) -> CliResult<Report> {
    let load = &args.load;
    let topic = BenchTopic::prepare(env, client, load).await?;
    let work = async |topic: &BenchTopic| {
        if load.topic.is_none() {
            let what = format!("filling {}", topic.name);
            let progress = Progress::start(env, what, load.records.unwrap_or(RECORDS_DEFAULT));
            fill(env, client, load, topic, Some(&progress)).await?;
        }
        measure(env, client, load, topic).await
    };
    topic.during(client, interrupt, work).await
}

/// Writes the records that will be read.
pub(super) async fn fill(
    env: &Env,
    client: &Client,
    args: &LoadArgs,
    topic: &BenchTopic,
    progress: Option<&Progress>,
) -> CliResult {
    let settings = ProducerArgs {
        acks: AcksArg::All,
        window: 32_768,
        linger: Duration::from_millis(5),
        batch_bytes: 131_072,
        rate: None,
        compression: Codec::None,
    };
    let producer = build_producer(client, &settings);
    let records = args.records.unwrap_or(RECORDS_DEFAULT);
    let plan = Plan {
        limit: Limit {
            records,
            duration: Duration::MAX,
        },
        value_bytes: args.bytes as usize,
        window: settings.window,
        rate: None,
    };
    let begin = (env.now(), progress);
    refuse_silence(&send(env, &producer, topic, plan, begin).await?)
}

/// Reads every partition from its start to the high watermark it has now.
pub(super) async fn measure(
    env: &Env,
    client: &Client,
    args: &LoadArgs,
    topic: &BenchTopic,
) -> CliResult<Report> {
    let watch = Watch::start(&args.watch_pid).map_err(CliError::failed)?;
    let mut counts = Counts {
        records: 0,
        bytes: 0,
    };
    let records_max = args.records.unwrap_or(u64::MAX);
    let cpu = own_cpu_seconds();
    let started = env.now();
    let reader = client
        .read(&topic.name)
        .from(From::Earliest)
        .until_high_watermark();
    let patience = args.duration.unwrap_or(READ_WAIT_MAX);
    // Time is up: what was read by then is the measurement.
    if let Ok(read) = tokio::time::timeout(patience, read(reader, records_max, &mut counts)).await {
        read?;
    }
    let elapsed_seconds = (env.now() - started).as_secs_f64();
    let totals = Totals {
        records: counts.records,
        bytes: counts.bytes,
        failed: 0,
        elapsed_seconds,
        client_cpu_seconds: own_cpu_seconds() - cpu,
    };
    let record_bytes = totals.bytes.checked_div(totals.records).unwrap_or(0);
    let partitions = topic.partitions as usize;
    let mut report = Report::new(
        "consume",
        &topic.name,
        partitions,
        record_bytes as usize,
        totals,
    );
    report.watched = watch.read(elapsed_seconds);
    Ok(report)
}

struct Counts {
    records: u64,
    bytes: u64,
}

async fn read(mut reader: Reader, records_max: u64, counts: &mut Counts) -> CliResult {
    while let Some(batch) = reader.next().await {
        let batch = batch.map_err(|error| client_error(&error, "cannot read"))?;
        for record in &batch {
            let bytes = record.key().map_or(0, <[u8]>::len) + record.value().map_or(0, <[u8]>::len);
            counts.records += 1;
            counts.bytes += bytes as u64;
        }
        if counts.records >= records_max {
            return Ok(());
        }
    }
    Ok(())
}
