//! The journal under load: partitions x batch size, on this machine's disk.
//!
//! `cargo bench -p corduroy-storage [-- --dir DIR] [--millis N] [--inline BYTES]`
//!
//! Every partition keeps a few appends in flight and sends the next when one is durable. A
//! turn's latency is measured from its append to its callback. Printed beside each case: how
//! many bytes were written for each byte appended, how many flushes and checkpoints a second it
//! took, and how many turns had to wait because checkpoints did not keep up.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_record::{
    Batch, BatchBuilder, BuilderOptions, GroupId, LogIndex, PartitionIndex, ReplicaId, Term,
    TopicId,
};
use corduroy_storage::{
    AppendDone, Disk, Log, LogConfig, NewEntry, Payload, RealDisk, Store, StoreConfig,
};

struct Options {
    dir: Option<PathBuf>,
    millis: u64,
    inline: Option<usize>,
    partitions: Vec<u32>,
}

fn options() -> Options {
    let mut options = Options {
        dir: None,
        millis: 1500,
        inline: None,
        partitions: vec![1, 16, 100, 1000],
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .unwrap_or_else(|| panic!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--dir" => options.dir = Some(value().into()),
            "--millis" => options.millis = value().parse().expect("--millis takes a number"),
            "--inline" => options.inline = Some(value().parse().expect("--inline takes bytes")),
            "--partitions" => {
                let list = value();
                let parse = |part: &str| part.parse().expect("--partitions takes numbers");
                options.partitions = list.split(',').map(parse).collect();
            }
            // `cargo bench` passes this on.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    options
}

fn main() {
    let options = options();
    println!(
        "{:>10} {:>8} {:>6} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}",
        "partitions",
        "batch",
        "depth",
        "MB/s",
        "batches/s",
        "p50 us",
        "p99 us",
        "max us",
        "written/B",
        "flushes/s",
        "inline %",
        "ckpts/s",
        "stalls"
    );
    for &partitions in &options.partitions {
        for (batch_bytes, depth) in [(1 << 10, 1), (1 << 10, 16), (64 << 10, 1), (64 << 10, 4)] {
            // Bytes in flight stay within a few MiB, as in a node.
            let depth_max = ((8 << 20) / (batch_bytes * partitions as usize)).max(1);
            if depth > 1 && depth > depth_max {
                continue;
            }
            case(&options, partitions, batch_bytes, depth);
        }
    }
}

/// One partition's closed loop.
struct Writer {
    log: Log,
    batch: Batch,
    next: Cell<u64>,
    load: Rc<Load>,
}

struct Load {
    env: Env,
    stopped: Cell<bool>,
    in_flight: Cell<u64>,
    latencies: RefCell<Vec<u32>>,
}

fn send(writer: &Rc<Writer>) {
    let index = writer.next.get();
    writer.next.set(index + 1);
    let started = writer.load.env.now();
    let again = writer.clone();
    let entry = NewEntry {
        term: Term::new(1),
        index: LogIndex::new(index),
        base_offset: None,
        payload: Payload::Batch(writer.batch.clone()),
    };
    let done = AppendDone::durable(move |result| {
        result.expect("the disk works");
        let micros = again.load.env.now().duration_since(started).as_micros();
        again
            .load
            .latencies
            .borrow_mut()
            .push(u32::try_from(micros).unwrap_or(u32::MAX));
        again.load.in_flight.set(again.load.in_flight.get() - 1);
        if !again.load.stopped.get() {
            send(&again);
        }
    });
    writer.load.in_flight.set(writer.load.in_flight.get() + 1);
    writer
        .log
        .append(vec![entry], done)
        .expect("the log takes entries");
}

fn case(options: &Options, partitions: u32, batch_bytes: usize, depth: usize) {
    let temporary = match &options.dir {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    let root = temporary.expect("a directory to write to");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let local = tokio::task::LocalSet::new();
    local.block_on(
        &runtime,
        run(options, root.path(), partitions, batch_bytes, depth),
    );
}

async fn run(options: &Options, root: &Path, partitions: u32, batch_bytes: usize, depth: usize) {
    let env = Env::real();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut config = StoreConfig::new(root.to_owned(), 0);
    if let Some(inline) = options.inline {
        config.inline_bytes_max = inline;
    }
    let store = Store::open(disk, config, env.clone()).expect("a store");
    let running = env.spawn_local(store.clone().run());
    let load = Rc::new(Load {
        env: env.clone(),
        stopped: Cell::new(false),
        in_flight: Cell::new(0),
        latencies: RefCell::default(),
    });
    let mut writers = Vec::new();
    for number in 0..partitions {
        let topic = TopicId::from_bytes([7; 16]);
        let group = GroupId {
            topic,
            partition: PartitionIndex::new(number as i32),
        };
        let log_config = LogConfig {
            segment_bytes: 128 << 20,
            ..LogConfig::default()
        };
        let log = store
            .create_log(group, ReplicaId::new(1), log_config)
            .await
            .expect("a log");
        let mut builder = BatchBuilder::new(BuilderOptions::default());
        builder
            .push(0, None, Some(&vec![7; batch_bytes - 80]), &[])
            .expect("a record");
        let (batch, load) = (builder.finish(), load.clone());
        writers.push(Rc::new(Writer {
            log,
            batch,
            next: Cell::new(0),
            load,
        }));
    }
    for writer in &writers {
        for _ in 0..depth {
            send(writer);
        }
    }
    // Warm up, then measure.
    env.sleep(Duration::from_millis(options.millis / 5)).await;
    load.latencies.borrow_mut().clear();
    let (before, started) = (store.metrics(), env.now());
    env.sleep(Duration::from_millis(options.millis)).await;
    let (after, seconds) = (
        store.metrics(),
        env.now().duration_since(started).as_secs_f64(),
    );
    let mut latencies = load.latencies.take();
    load.stopped.set(true);
    while load.in_flight.get() > 0 {
        env.sleep(Duration::from_millis(1)).await;
    }
    latencies.sort_unstable();
    let quantile = |part: f64| {
        let at = (latencies.len() as f64 * part) as usize;
        latencies
            .get(at.min(latencies.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    };
    let batches = latencies.len() as f64;
    let appended = batches * batch_bytes as f64;
    let written =
        (after.journal_bytes - before.journal_bytes) + (after.segment_bytes - before.segment_bytes);
    let inline = after.inline_entries - before.inline_entries;
    let entries = inline + after.referenced_entries - before.referenced_entries;
    println!(
        "{partitions:>10} {batch_bytes:>8} {depth:>6} {:>9.1} {:>10.0} {:>9} {:>9} {:>9} {:>9.2} {:>9.0} {:>9.0} {:>9.0} {:>6}",
        appended / seconds / 1e6,
        batches / seconds,
        quantile(0.5),
        quantile(0.99),
        quantile(1.0),
        written as f64 / appended.max(1.0),
        (after.flushes - before.flushes) as f64 / seconds,
        100.0 * inline as f64 / (entries.max(1)) as f64,
        (after.checkpoints - before.checkpoints) as f64 / seconds,
        after.stalls - before.stalls,
    );
    store.close().await.expect("a clean stop");
    running.await.expect("the loop ends");
}
