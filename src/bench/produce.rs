//! `bench produce`.

use corduroy_client::Client;
use corduroy_env::Env;

use super::load::{BenchTopic, LoadResult, Plan, build_producer, send};
use super::options::ProduceArgs;
use super::report::{Report, Totals};
use super::watch::{Watch, usage};
use crate::cli::{CliError, CliResult, Interrupt};

/// Measures and disposes of the topic.
pub(super) async fn run(
    env: &Env,
    client: &Client,
    args: &ProduceArgs,
    interrupt: &mut Interrupt,
) -> CliResult<Report> {
    let topic = BenchTopic::prepare(env, client, &args.load).await?;
    let work = async |topic: &BenchTopic| measure(env, client, args, topic).await;
    topic.during(client, interrupt, work).await
}

/// Measures on a topic that stays.
pub(super) async fn measure(
    env: &Env,
    client: &Client,
    args: &ProduceArgs,
    topic: &BenchTopic,
) -> CliResult<Report> {
    let producer = build_producer(client, &args.producer);
    let plan = Plan {
        limit: args.load.limit(),
        value_bytes: args.load.bytes as usize,
        window: args.producer.window,
        rate: args.producer.rate,
    };
    let watch = Watch::start(&args.load.watch_pid).map_err(CliError::failed)?;
    let cpu = own_cpu_seconds();
    let result = send(env, &producer, topic, plan, (env.now(), None)).await?;
    let cpu = own_cpu_seconds() - cpu;
    let watched = watch.read(result.elapsed.as_secs_f64());
    refuse_silence(&result)?;
    let mut report = Report::new(
        "produce",
        &topic.name,
        topic.partitions as usize,
        plan.value_bytes,
        totals(&result, cpu),
    );
    report.settings = args.producer.describe();
    report.latency = result.latencies.summary();
    report.watched = watched;
    Ok(report)
}

/// The sums of a load.
pub(super) fn totals(result: &LoadResult, client_cpu_seconds: f64) -> Totals {
    Totals {
        records: result.acknowledged,
        bytes: result.bytes,
        failed: result.failed,
        elapsed_seconds: result.elapsed.as_secs_f64(),
        client_cpu_seconds,
    }
}

/// A measurement of nothing is an error, with the reason that the cluster gave.
pub(super) fn refuse_silence(result: &LoadResult) -> CliResult {
    match (&result.first_error, result.acknowledged) {
        (Some(error), 0) => Err(CliError::failed("no record was acknowledged")
            .fact("first", error)
            .into()),
        (Some(error), _) => {
            eprintln!(
                "warning: {} records failed, the first one: {error}",
                result.failed
            );
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

/// CPU seconds of this process so far.
pub(super) fn own_cpu_seconds() -> f64 {
    usage(std::process::id()).map_or(0.0, |usage| usage.cpu_seconds)
}
