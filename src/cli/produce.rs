//! `corduroy produce`: records from standard input into a topic.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use corduroy_client::{Acks, Client, Error, Producer, Record, Ticket};
use corduroy_record::Compression;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use super::Context;
use super::beside::meanwhile;
use super::connect::{client_error, connect};
use super::error::{CliError, CliResult, EXIT_FAILED, EXIT_OK};
use super::intake::{InputRecord, Intake, Next};
use super::output::{plural, show_bytes, show_duration_rate};

/// Bytes asked for in one read of standard input.
const READ_BYTES: usize = 256 * 1024;

/// Acknowledgements that may wait to be looked at; beyond it we stop reading the input.
const TICKETS_MAX: usize = 65_536;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  echo hi | corduroy produce greetings              one line, one record
  corduroy produce orders -k 42 < order.json        every line with the key 42
  corduroy produce orders -K: -z lz4 < pairs.txt    key:value lines
  corduroy produce orders -k 42 --tombstone         a null value for the key 42
  corduroy produce orders -f '%k %T %v\\n'           key, timestamp and value by a format
  corduroy produce orders --json < lines.txt        where each record went
  corduroy produce -f '%t %K{big32}%k%V{big32}%v'   topic and sized fields, for binary data

Formats: %k key, %v or %s value, %t topic, %p partition, %T or %d timestamp in milliseconds, %h
headers (a=1,b=2), %K and %V or %S the sizes of the next key and value; {hex}, {base64} for keys
and values, {big32}, {little16} and so on for sizes; \\n \\t \\xHH and %% as usual.

The exit code is 0 only if every record was acknowledged.")]
pub struct ProduceArgs {
    /// The topic; may be left out where the format holds %t
    #[arg(value_name = "TOPIC")]
    topic: Option<String>,

    /// The key of every record
    #[arg(short = 'k', long, value_name = "KEY", conflicts_with_all = ["key_separator", "format"])]
    key: Option<String>,

    /// Lines are KEY, this separator, VALUE; a line without it has no key
    #[arg(short = 'K', long, value_name = "SEPARATOR", conflicts_with = "format")]
    key_separator: Option<String>,

    /// A header of every record; repeatable
    #[arg(short = 'H', long = "header", value_name = "NAME=VALUE")]
    headers: Vec<Header>,

    /// The partition of every record [default: by the key's hash, else spread]
    #[arg(short = 'p', long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,

    /// Compress batches [default: none]
    #[arg(short = 'z', long, value_enum, value_name = "CODEC")]
    compression: Option<Codec>,

    /// When a record counts as written: never (0), by its leader (1), by all in sync [default: all]
    #[arg(long, value_enum, value_name = "0|1|all")]
    acks: Option<AcksArg>,

    /// Null values: for the key of -k, or one for each line of the input as a key
    #[arg(long, conflicts_with_all = ["key_separator", "format"])]
    tombstone: bool,

    /// Read the input by a percent format
    #[arg(short = 'f', long, value_name = "FORMAT")]
    format: Option<String>,

    /// Print a line of JSON for each acknowledged record: topic, partition, offset, timestamp
    #[arg(long)]
    json: bool,
}

/// `-H name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    name: String,
    value: String,
}

impl std::str::FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Header, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok(Header {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err("write it as NAME=VALUE".to_owned()),
        }
    }
}

/// `-z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Codec {
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl From<Codec> for Compression {
    fn from(codec: Codec) -> Compression {
        match codec {
            Codec::None => Compression::None,
            Codec::Gzip => Compression::Gzip,
            Codec::Snappy => Compression::Snappy,
            Codec::Lz4 => Compression::Lz4,
            Codec::Zstd => Compression::Zstd,
        }
    }
}

/// `--acks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AcksArg {
    #[value(name = "0")]
    None,
    #[value(name = "1")]
    Leader,
    #[default]
    #[value(name = "all", alias = "-1")]
    All,
}

impl From<AcksArg> for Acks {
    fn from(acks: AcksArg) -> Acks {
        match acks {
            AcksArg::None => Acks::None,
            AcksArg::Leader => Acks::Leader,
            AcksArg::All => Acks::All,
        }
    }
}

impl ProduceArgs {
    fn intake(&self) -> CliResult<Intake> {
        if let Some(format) = &self.format {
            return Ok(Intake::from_format(format).map_err(|error| {
                CliError::usage(format!("cannot read by the format `{format}`: {error}"))
            })?);
        }
        if self.topic.is_none() {
            return Err(CliError::usage("no topic was named")
                .help("`corduroy produce TOPIC`, or a format with %t")
                .into());
        }
        Ok(match &self.key_separator {
            Some(separator) if separator.is_empty() => {
                return Err(CliError::usage("the key separator is empty").into());
            }
            Some(separator) => Intake::KeyedLines {
                separator: separator.as_bytes().to_vec(),
            },
            None if self.tombstone => Intake::Tombstones,
            None => Intake::Lines,
        })
    }

    /// The record for one piece of input; the command line fills what the input leaves open.
    fn record<'a>(&'a self, input: &'a InputRecord) -> CliResult<Record<'a>> {
        let topic = input
            .topic
            .as_deref()
            .or(self.topic.as_deref())
            .ok_or_else(|| CliError::usage("the format holds no %t, and no topic was named"))?;
        let mut record = Record::to(topic);
        match (&input.key, &self.key) {
            (Some(key), _) => record = record.key(key),
            (None, Some(key)) => record = record.key(key),
            (None, None) => {}
        }
        if let Some(value) = &input.value {
            record = record.value(value);
        }
        if let Some(partition) = self.partition.or(input.partition) {
            record = record.partition(partition);
        }
        if let Some(timestamp) = input.timestamp {
            record = record.timestamp(timestamp);
        }
        for (name, value) in &input.headers {
            record = record.header(name.as_str(), value);
        }
        for Header { name, value } in &self.headers {
            record = record.header(name.as_str(), value);
        }
        Ok(record)
    }
}

pub(super) async fn run(context: &Context, args: ProduceArgs) -> CliResult<ExitCode> {
    let intake = args.intake()?;
    let client = connect(context).await?;
    let producer = producer(&client, &args);
    let started = context.env.now();
    let (tickets_tx, tickets_rx) = mpsc::channel(TICKETS_MAX);
    let receipts = meanwhile(&context.env, collect(tickets_rx, args.json));

    // What the input says, or why it can't be read; either way the receipts are waited for.
    let fed = if args.tombstone && args.key.is_some() {
        let tombstone = InputRecord::default();
        send(&producer, args.record(&tombstone)?, &tickets_tx)
            .await
            .map(|_| 0)
    } else {
        feed(&args, &intake, &producer, &tickets_tx).await
    };
    drop(tickets_tx);
    let receipts = receipts
        .await
        .map_err(|_| CliError::failed("the task that counts acknowledgements panicked"))??;
    let bytes = fed?;
    summarize(&receipts, bytes, context.env.now() - started);
    match receipts.first_error {
        None => Ok(ExitCode::from(EXIT_OK)),
        Some(error) => {
            eprintln!(
                "error: {}",
                client_error(&error, "records could not be written")
            );
            Ok(ExitCode::from(EXIT_FAILED))
        }
    }
}

/// Flags win over the properties file, which wins over the defaults.
fn producer(client: &Client, args: &ProduceArgs) -> Producer {
    let mut builder = client.producer();
    if let Some(acks) = args.acks {
        builder = builder.acks(acks.into());
    }
    if let Some(codec) = args.compression {
        builder = builder.compression(codec.into());
    }
    builder.build()
}

/// Reads the input to its end, or until a record fails. Returns the bytes read.
async fn feed(
    args: &ProduceArgs,
    intake: &Intake,
    producer: &Producer,
    tickets: &mpsc::Sender<Ticket>,
) -> CliResult<u64> {
    let mut input = tokio::io::stdin();
    let progress = progress_bar();
    let mut buffer: Vec<u8> = Vec::with_capacity(2 * READ_BYTES);
    let (mut at, mut total, mut is_end) = (0, 0, false);
    loop {
        match intake.next(&buffer[at..], is_end) {
            Ok(Next::Record { record, bytes }) => {
                let is_open = send(producer, args.record(&record)?, tickets).await?;
                at += bytes;
                if !is_open {
                    return Ok(total);
                }
            }
            Ok(Next::End) => {
                progress.finish_and_clear();
                return Ok(total);
            }
            Ok(Next::More) => {
                buffer.drain(..at);
                at = 0;
                let filled = buffer.len();
                buffer.resize(filled + READ_BYTES, 0);
                let read = input.read(&mut buffer[filled..]).await?;
                buffer.truncate(filled + read);
                total += read as u64;
                is_end = read == 0;
                progress.set_position(total);
            }
            Err(reason) => {
                progress.finish_and_clear();
                return Err(CliError::failed(format!("cannot read the input: {reason}")).into());
            }
        }
    }
}

/// Queues a record. `false` if receipts say that it is time to give up.
async fn send(
    producer: &Producer,
    record: Record<'_>,
    tickets: &mpsc::Sender<Ticket>,
) -> CliResult<bool> {
    match producer.queue(record).await {
        Ok(ticket) => Ok(tickets.send(ticket).await.is_ok()),
        Err(error) => Err(client_error(&error, "a record could not be sent").into()),
    }
}

/// What became of the records.
#[derive(Default)]
struct Receipts {
    acknowledged: u64,
    first_error: Option<Error>,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Receipt<'a> {
    topic: &'a str,
    partition: i32,
    offset: Option<i64>,
    timestamp: i64,
}

/// Awaits the acknowledgements in the order of the input; stops at the first failure.
async fn collect(mut tickets: mpsc::Receiver<Ticket>, is_json: bool) -> CliResult<Receipts> {
    let mut receipts = Receipts::default();
    let mut stdout = io::BufWriter::new(io::stdout());
    while let Some(ticket) = tickets.recv().await {
        match ticket.await {
            Ok(metadata) => {
                receipts.acknowledged += 1;
                if is_json {
                    let receipt = Receipt {
                        topic: &metadata.topic,
                        partition: metadata.partition,
                        offset: metadata.offset,
                        timestamp: metadata.timestamp,
                    };
                    serde_json::to_writer(&mut stdout, &receipt).map_err(io::Error::from)?;
                    stdout.write_all(b"\n")?;
                    if tickets.is_empty() {
                        stdout.flush()?;
                    }
                }
            }
            Err(error) => {
                receipts.first_error = Some(error);
                break;
            }
        }
    }
    stdout.flush()?;
    Ok(receipts)
}

fn summarize(receipts: &Receipts, bytes: u64, elapsed: Duration) {
    let records = plural(receipts.acknowledged, "record", "records");
    let bytes = show_bytes(bytes);
    eprintln!(
        "{records} acknowledged, {bytes} read, {}",
        show_duration_rate(receipts.acknowledged, elapsed)
    );
}

/// A bar for a file on a terminal, nothing elsewhere.
fn progress_bar() -> ProgressBar {
    let size = rustix::fs::fstat(io::stdin())
        .ok()
        .filter(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file())
        .and_then(|stat| u64::try_from(stat.st_size).ok());
    let is_dumb = std::env::var("TERM").is_ok_and(|terminal| terminal == "dumb");
    match size {
        Some(size) if io::stderr().is_terminal() && !is_dumb => {
            let bar = ProgressBar::new(size);
            if let Ok(style) = ProgressStyle::with_template(
                "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
            ) {
                bar.set_style(style);
            }
            bar
        }
        _ => ProgressBar::hidden(),
    }
}
