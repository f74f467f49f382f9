//! `bench end-to-end`: from the moment a record is due to the moment a reader has it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use corduroy_client::{Client, From, Reader};
use corduroy_env::Env;
use tokio::time::Instant;

use super::load::{BenchTopic, Plan, build_producer, read_stamp, send};
use super::options::EndToEndArgs;
use super::produce::{own_cpu_seconds, refuse_silence, totals};
use super::report::{Latencies, Report};
use super::watch::Watch;
use crate::cli::{CliError, CliResult, Interrupt, client_error};

/// How long readers may take for the last records after they are acknowledged.
const DRAIN_WAIT_MAX: Duration = Duration::from_secs(30);

/// Measures and disposes of the topic.
pub(super) async fn run(
    env: &Env,
    client: &Client,
    args: &EndToEndArgs,
    interrupt: &mut Interrupt,
) -> CliResult<Report> {
    let topic = BenchTopic::prepare(env, client, &args.load).await?;
    let work = async |topic: &BenchTopic| measure(env, client, args, topic).await;
    topic.during(client, interrupt, work).await
}

/// What the readers have seen.
struct Seen {
    env: Env,
    /// The zero of the stamps: set when the load begins.
    started: Cell<Option<Instant>>,
    records: Cell<u64>,
    latencies: RefCell<Latencies>,
    error: RefCell<Option<String>>,
}

/// Measures on a topic that stays.
pub(super) async fn measure(
    env: &Env,
    client: &Client,
    args: &EndToEndArgs,
    topic: &BenchTopic,
) -> CliResult<Report> {
    let producer = build_producer(client, &args.producer);
    let seen = Rc::new(Seen {
        env: env.clone(),
        started: Cell::new(None),
        records: Cell::new(0),
        latencies: RefCell::new(Latencies::new()),
        error: RefCell::new(None),
    });
    // One reader for all partitions; it sees whatever is written after it has started.
    let mut reader = client.read(&topic.name).from(From::Latest).follow();
    reader.started().await;
    let reading = env.spawn_local(follow(reader, seen.clone()));
    let plan = Plan {
        limit: args.load.limit(),
        value_bytes: args.load.bytes as usize,
        window: args.producer.window,
        rate: args.producer.rate,
    };
    let watch = Watch::start(&args.load.watch_pid).map_err(CliError::failed)?;
    let cpu = own_cpu_seconds();
    let started = env.now();
    seen.started.set(Some(started));
    let result = send(env, &producer, topic, plan, (started, None)).await?;
    refuse_silence(&result)?;
    let deadline = env.now() + DRAIN_WAIT_MAX;
    while seen.records.get() < result.acknowledged && env.now() < deadline {
        env.sleep(Duration::from_millis(1)).await;
    }
    let cpu = own_cpu_seconds() - cpu;
    reading.abort();
    if seen.records.get() < result.acknowledged {
        let reason = seen
            .error
            .borrow()
            .clone()
            .unwrap_or_else(|| "no error".to_owned());
        return Err(
            CliError::failed("readers did not see every acknowledged record")
                .fact("acknowledged", result.acknowledged.to_string())
                .fact("read", seen.records.get().to_string())
                .fact("reader", reason)
                .into(),
        );
    }
    let mut report = Report::new(
        "end-to-end",
        &topic.name,
        topic.partitions as usize,
        plan.value_bytes,
        totals(&result, cpu),
    );
    report.settings = args.producer.describe();
    report.latency = seen.latencies.borrow().summary();
    report.watched = watch.read(result.elapsed.as_secs_f64());
    Ok(report)
}

async fn follow(mut reader: Reader, seen: Rc<Seen>) {
    while let Some(batch) = reader.next().await {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                let error = client_error(&error, "cannot follow").to_string();
                seen.error.borrow_mut().get_or_insert(error);
                return;
            }
        };
        let now = seen.env.now();
        for record in &batch {
            let Some(started) = seen.started.get() else {
                continue;
            };
            let Some((_, due)) = record.value().and_then(read_stamp) else {
                continue;
            };
            seen.records.set(seen.records.get() + 1);
            let latency = now.saturating_duration_since(started + due);
            seen.latencies.borrow_mut().record(latency);
        }
    }
}
