//! What a node does with each batch in memory, without disk and network: the CPU's part of a
//! produce request.
//!
//! `cargo bench -p corduroy --bench records [-- --millis N]`
//!
//! Printed for each size and codec: megabytes (10^6 bytes of the batch as it is on the wire) and
//! records a second on one core for the header's parse, the header with its CRC (what every replica
//! does), the look into the records (what the leader does once), and building a batch (what a
//! client does).

use std::hint::black_box;
use std::time::Duration;

use bytes::Bytes;
use corduroy_env::Env;
use corduroy_record::{
    Batch, BatchBuilder, BuilderOptions, Compression, InspectRules, KeyRule, ValidateRules,
};

/// A batch as producers send it.
const BATCH_BYTES: usize = 128 * 1024;
/// Kafka's `max.message.bytes`.
const BATCH_BYTES_MAX: usize = 1_048_588;
/// What compressed records may become.
const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Repetitions between two looks at the clock.
const BURST: u64 = 16;

fn millis() -> u64 {
    let mut millis = 300;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--millis" => {
                let value = arguments.next().expect("--millis needs a value");
                millis = value.parse().expect("--millis takes a number");
            }
            // `cargo bench` passes this on.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    millis
}

/// Text that compresses about as log lines do.
fn value(bytes: usize) -> Vec<u8> {
    let words = ["request", "served", "in", "42", "ms", "by", "node", "seven"];
    let text = words
        .iter()
        .cycle()
        .flat_map(|word| word.bytes().chain([b' ']));
    text.zip(0..bytes)
        .map(|(byte, place)| if place % 11 == 0 { place as u8 } else { byte })
        .collect()
}

fn build(compression: Compression, value: &[u8], records: usize) -> Batch {
    let mut builder = BatchBuilder::new(BuilderOptions {
        compression,
        ..BuilderOptions::default()
    });
    for number in 0..records {
        let key = number.to_be_bytes();
        builder
            .push(1_700_000_000_000, Some(&key), Some(value), &[])
            .expect("a record that fits");
    }
    builder.finish()
}

/// How often `act` runs in a second.
fn rate(env: &Env, span: Duration, mut act: impl FnMut()) -> f64 {
    let started = env.now();
    let mut runs = 0_u64;
    loop {
        for _ in 0..BURST {
            act();
        }
        runs += BURST;
        let elapsed = env.now() - started;
        if elapsed >= span {
            return runs as f64 / elapsed.as_secs_f64();
        }
    }
}

fn main() {
    let env = Env::real();
    let span = Duration::from_millis(millis());
    println!(
        "| record | codec | batch bytes | parse MB/s | with CRC MB/s | records read MB/s (records/s) | built MB/s |"
    );
    println!("|---|---|---|---|---|---|---|");
    for record_bytes in [100, 1024, 64 * 1024] {
        for (name, codec) in [
            ("none", Compression::None),
            ("lz4", Compression::Lz4),
            ("zstd", Compression::Zstd),
        ] {
            let value = value(record_bytes);
            let records = BATCH_BYTES / record_bytes;
            let wire: Bytes = build(codec, &value, records).to_bytes();
            let bytes = wire.len() as f64 / 1e6;
            let rules = ValidateRules::client(BATCH_BYTES_MAX);
            let inspect = InspectRules {
                output_bytes_max: OUTPUT_BYTES_MAX,
                keys: KeyRule::Optional,
            };
            let parse = rate(&env, span, || {
                black_box(Batch::parse(wire.clone()).expect("our own batch"));
            });
            let crc = rate(&env, span, || {
                let batch = Batch::parse(wire.clone()).expect("our own batch");
                black_box(batch.validate(&rules)).expect("our own batch");
            });
            let read = rate(&env, span, || {
                let batch = Batch::parse(wire.clone()).expect("our own batch");
                black_box(batch.inspect(&inspect)).expect("our own batch");
            });
            let built = rate(&env, span, || {
                black_box(build(codec, &value, records));
            });
            println!(
                "| {record_bytes} B | {name} | {} | {:.0} | {:.0} | {:.0} ({:.0}) | {:.0} |",
                wire.len(),
                parse * bytes,
                crc * bytes,
                read * bytes,
                read * records as f64,
                built * bytes,
            );
        }
    }
}
