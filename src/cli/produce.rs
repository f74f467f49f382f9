//! `corduroy produce`: records from standard input into a topic.

use std::future::pending;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use corduroy_client::{Acks, Client, Error, ErrorKind, Producer, Record, Ticket};
use corduroy_env::Env;
use corduroy_record::Compression;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::Context;
use super::beside::meanwhile;
use super::connect::{client_error, connect, unmade_topic};
use super::error::{CliError, CliResult, EXIT_FAILED, EXIT_OK};
use super::intake::{InputRecord, Intake, Next};
use super::interrupt::{Interrupt, LEAVE_WAIT_MAX};
use super::output::{plural, show_bytes, show_count, show_duration_rate};

/// Bytes asked for in one read of standard input.
const READ_BYTES: usize = 256 * 1024;

/// Acknowledgements that may wait to be looked at; beyond it we stop reading the input.
const TICKETS_MAX: usize = 65_536;

/// How long a topic may be missing before the command gives up, and how often it is looked for. A
/// cluster that makes topics has made it by then.
const UNKNOWN_WAIT_MAX: Duration = Duration::from_secs(8);
const UNKNOWN_LOOK: Duration = Duration::from_secs(1);

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

Ctrl-C and SIGTERM end the input there and wait five seconds at most for what is on its way; a
second one ends it at once. The exit code is 0 only if the whole input was read and every record of
it acknowledged (with --acks 0: sent).")]
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

    /// The record for one piece of input, behind its topic; the command line fills what the input
    /// leaves open.
    fn record<'a>(&'a self, input: &'a InputRecord) -> CliResult<(&'a str, Record<'a>)> {
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
        Ok((topic, record))
    }
}

pub(super) async fn run(context: &Context, args: ProduceArgs) -> CliResult<ExitCode> {
    let intake = args.intake()?;
    let client = connect(context).await?;
    let mut interrupt = Interrupt::listen(&context.env)?;
    let producer = producer(&client, &args);
    let started = context.env.now();
    let (tickets_tx, tickets_rx) = mpsc::channel(TICKETS_MAX);
    let (hurry_tx, hurry_rx) = watch::channel(None);
    let (failed_tx, mut failed_rx) = watch::channel(false);
    let collector = Collector {
        env: context.env.clone(),
        is_json: args.json,
        has_answers: matches!(args.acks, Some(AcksArg::Leader | AcksArg::All)),
        hurry: hurry_rx,
        failed: failed_tx,
    };
    let receipts = meanwhile(&context.env, collector.collect(tickets_rx));

    let way = Way {
        env: &context.env,
        client: &client,
        producer: &producer,
    };
    let mut input = Input::new(intake.unit());
    let mut cut = tokio::select! {
        cut = feed(&args, &intake, &way, &tickets_tx, &mut input) => cut?,
        // The task of the receipts lives until the tickets end.
        _ = failed_rx.wait_for(|failed| *failed) => Cut::Refused,
        name = interrupt.first() => Cut::Signal(name),
    };
    drop(tickets_tx);
    if !matches!(cut, Cut::End) {
        hurry_tx.send_replace(Some(context.env.now() + LEAVE_WAIT_MAX));
    }
    let mut receipts = pin!(receipts);
    let receipts = tokio::select! {
        biased;
        receipts = &mut receipts => receipts,
        name = interrupt.first(), if matches!(cut, Cut::End) => {
            cut = Cut::Signal(name);
            hurry_tx.send_replace(Some(context.env.now() + LEAVE_WAIT_MAX));
            receipts.await
        }
    };
    let receipts = receipts
        .map_err(|_| CliError::failed("the task that counts acknowledgements panicked"))??;
    let is_all = matches!(cut, Cut::End) && receipts.is_all();
    if receipts.total() > 0 || is_all || matches!(cut, Cut::Signal(_)) {
        summarize(&receipts, input.bytes, context.env.now() - started);
    }
    if let Some(error) = receipts.failure(input.unit) {
        eprintln!("error: {error}");
    }
    match cut {
        Cut::Failed(failure) => {
            let failure = failure.fact("input", format!("{} {}", input.unit, input.taken + 1));
            return Err(failure.into());
        }
        Cut::Signal(name) => eprintln!(
            "ended by {name} behind {} {} of the input",
            input.unit, input.taken
        ),
        Cut::Refused => eprintln!(
            "nothing behind {} {} of the input was sent",
            input.unit, input.taken
        ),
        Cut::End => {}
    }
    Ok(ExitCode::from(if is_all { EXIT_OK } else { EXIT_FAILED }))
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

/// What was read of the input.
struct Input {
    /// What one record is called: a line, or a record where they are not the same.
    unit: &'static str,
    bytes: u64,
    /// Records that have been queued.
    taken: u64,
}

impl Input {
    fn new(unit: &'static str) -> Input {
        Input {
            unit,
            bytes: 0,
            taken: 0,
        }
    }
}

/// Why no more is read.
enum Cut {
    /// It was the end.
    End,
    /// The next record can't be read or queued.
    Failed(CliError),
    /// A record that was sent was refused.
    Refused,
    Signal(&'static str),
}

/// A queued record: its number in the input, from 1, and its promise.
type Queued = (u64, Ticket);

/// Where records go.
struct Way<'a> {
    env: &'a Env,
    client: &'a Client,
    producer: &'a Producer,
}

/// Reads the input to its end, or until a record can't be queued. Cancel-safe: what was queued was
/// handed on.
async fn feed(
    args: &ProduceArgs,
    intake: &Intake,
    way: &Way<'_>,
    tickets: &mpsc::Sender<Queued>,
    input: &mut Input,
) -> CliResult<Cut> {
    if args.tombstone && args.key.is_some() {
        let tombstone = InputRecord::default();
        let sent = send(way, args.record(&tombstone)?, tickets, input).await;
        return Ok(sent.map_or_else(Cut::Failed, |()| Cut::End));
    }
    let mut stdin = tokio::io::stdin();
    let progress = Progress::new();
    let mut buffer: Vec<u8> = Vec::with_capacity(2 * READ_BYTES);
    let (mut at, mut is_end) = (0, false);
    loop {
        match intake.next(&buffer[at..], is_end) {
            Ok(Next::Record { record, bytes }) => {
                if let Err(failure) = send(way, args.record(&record)?, tickets, input).await {
                    return Ok(Cut::Failed(failure));
                }
                at += bytes;
            }
            Ok(Next::End) => return Ok(Cut::End),
            Ok(Next::More) => {
                buffer.drain(..at);
                at = 0;
                let filled = buffer.len();
                buffer.resize(filled + READ_BYTES, 0);
                let read = stdin.read(&mut buffer[filled..]).await?;
                buffer.truncate(filled + read);
                input.bytes += read as u64;
                is_end = read == 0;
                progress.0.set_position(input.bytes);
            }
            Err(reason) => {
                let failure = CliError::failed(format!("cannot read the input: {reason}"));
                return Ok(Cut::Failed(failure));
            }
        }
    }
}

/// Waits until a topic has been missing for so long that nobody is going to make it: the producer
/// itself waits for `max.block.ms`, a minute, as in Kafka. Ends only then.
async fn missing(env: &Env, client: &Client, topic: &str) {
    let deadline = env.now() + UNKNOWN_WAIT_MAX;
    loop {
        env.sleep(UNKNOWN_LOOK).await;
        let found = client.admin().describe_topic(topic).await;
        let is_missing = found.is_err_and(|error| error.kind() == ErrorKind::UnknownTopic);
        if !is_missing {
            // It is there, or nobody can say: what the producer waits for is something else.
            return pending().await;
        }
        if env.now() >= deadline {
            return;
        }
    }
}

/// Queues a record. The place for its promise comes first, so that none is queued and not counted.
async fn send(
    way: &Way<'_>,
    (topic, record): (&str, Record<'_>),
    tickets: &mpsc::Sender<Queued>,
    input: &mut Input,
) -> Result<(), CliError> {
    let place = tickets.reserve().await;
    let place = place.map_err(|_| CliError::failed("nobody counts acknowledgements any more"))?;
    let ticket = tokio::select! {
        // Nearly always at once: then nobody looks for the topic.
        biased;
        ticket = way.producer.queue(record) => ticket,
        () = missing(way.env, way.client, topic) => return Err(unmade_topic(topic)),
    };
    let ticket = ticket.map_err(|error| client_error(&error, "a record could not be sent"))?;
    input.taken += 1;
    place.send((input.taken, ticket));
    Ok(())
}

/// What became of the records.
#[derive(Default)]
struct Receipts {
    acknowledged: u64,
    /// Sent to a broker that was told not to answer.
    sent: u64,
    failed: Failed,
    /// Still on their way when patience ended.
    unanswered: u64,
}

/// Records that were refused or given up.
#[derive(Default)]
struct Failed {
    count: u64,
    /// The numbers of the first and the last of them.
    range: (u64, u64),
    /// The first failure that is one of its own, and the number of its record.
    first: Option<(u64, Error)>,
    /// How many only went with another record of their batch.
    along: u64,
}

impl Failed {
    fn add(&mut self, number: u64, error: Error) {
        let first = if self.count == 0 {
            number
        } else {
            self.range.0
        };
        self.range = (first, number);
        self.count += 1;
        // Of a ticket, this kind means that another record was at fault.
        let went_along = error.kind() == ErrorKind::InvalidRecord;
        self.along += u64::from(went_along);
        let knows_better =
            |(_, known): &(u64, Error)| went_along || known.kind() != ErrorKind::InvalidRecord;
        if !self.first.as_ref().is_some_and(knows_better) {
            self.first = Some((number, error));
        }
    }

    /// Where in the input. A broker that names no record has refused whole batches.
    fn place(&self, unit: &str) -> String {
        let (first, last) = self.range;
        match &self.first {
            _ if self.count == 1 => format!("{unit} {first}"),
            Some((number, _)) if self.along > 0 => {
                let along = plural(self.along, "record", "records");
                format!("{unit} {number}; {along} of its batch went with it")
            }
            _ => {
                let count = plural(self.count, "record", "records");
                format!("{count} of {unit}s {first} to {last}, in batches that went as a whole")
            }
        }
    }
}

impl Receipts {
    fn is_all(&self) -> bool {
        self.failed.count == 0 && self.unanswered == 0
    }

    fn total(&self) -> u64 {
        self.acknowledged + self.sent + self.failed.count + self.unanswered
    }

    /// What went wrong after records were queued.
    fn failure(&self, unit: &str) -> Option<CliError> {
        if let Some((_, error)) = &self.failed.first {
            let failure = client_error(error, "records could not be written");
            return Some(failure.fact("input", self.failed.place(unit)));
        }
        (self.unanswered > 0).then(|| {
            let records = plural(self.unanswered, "record was", "records were");
            let seconds = LEAVE_WAIT_MAX.as_secs();
            let cause = format!("{records} not acknowledged within {seconds} s");
            CliError::failed(cause).help("nobody knows whether they are written")
        })
    }
}

/// One line of `--json`.
#[derive(Serialize)]
struct Receipt<'a> {
    topic: &'a str,
    partition: i32,
    offset: Option<i64>,
    timestamp: i64,
}

/// Awaits the acknowledgements in the order of the input.
struct Collector {
    env: Env,
    is_json: bool,
    /// Brokers answer for sure. Otherwise (a properties file may say `acks=0`) an offset tells.
    has_answers: bool,
    /// Until when to wait, once somebody does not want to wait for ever.
    hurry: watch::Receiver<Option<Instant>>,
    /// Tells that a record has failed.
    failed: watch::Sender<bool>,
}

impl Collector {
    async fn collect(mut self, mut tickets: mpsc::Receiver<Queued>) -> CliResult<Receipts> {
        let mut receipts = Receipts::default();
        let mut stdout = io::BufWriter::new(io::stdout());
        while let Some((number, ticket)) = tickets.recv().await {
            let settled = tokio::select! {
                biased;
                settled = ticket => Some(settled),
                () = Self::patience(&self.env, &mut self.hurry) => None,
            };
            match settled {
                Some(Ok(metadata)) => {
                    let is_answer = self.has_answers || metadata.offset.is_some();
                    receipts.acknowledged += u64::from(is_answer);
                    receipts.sent += u64::from(!is_answer);
                    if self.is_json {
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
                Some(Err(error)) => {
                    receipts.failed.add(number, error);
                    self.failed.send_replace(true);
                }
                None => receipts.unanswered += 1,
            }
        }
        stdout.flush()?;
        Ok(receipts)
    }

    /// Ends when nobody wants to wait any longer.
    async fn patience(env: &Env, hurry: &mut watch::Receiver<Option<Instant>>) {
        let until = hurry.wait_for(Option::is_some).await.map(|until| *until);
        match until {
            Ok(Some(until)) => env.sleep(until.saturating_duration_since(env.now())).await,
            _ => pending().await,
        }
    }
}

fn summarize(receipts: &Receipts, bytes: u64, elapsed: Duration) {
    let mut counts = Vec::new();
    if receipts.acknowledged > 0 || receipts.sent == 0 {
        let records = plural(receipts.acknowledged, "record", "records");
        counts.push(format!("{records} acknowledged"));
    }
    if receipts.sent > 0 {
        let records = plural(receipts.sent, "record", "records");
        counts.push(format!("{records} sent"));
    }
    if receipts.failed.count > 0 {
        counts.push(format!("{} failed", show_count(receipts.failed.count)));
    }
    if receipts.unanswered > 0 {
        counts.push(format!("{} not answered", show_count(receipts.unanswered)));
    }
    counts.push(format!("{} read", show_bytes(bytes)));
    let written = receipts.acknowledged + receipts.sent;
    counts.push(show_duration_rate(written, elapsed));
    eprintln!("{}", counts.join(", "));
}

/// The bar; gone when this is.
struct Progress(ProgressBar);

impl Progress {
    fn new() -> Progress {
        Progress(progress_bar())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
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
