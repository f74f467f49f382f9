//! `corduroy consume`: records of a topic to standard output.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use corduroy_client::{Client, Error, From, Group, Isolation, ReadRecord, Reader};
use tokio::time::timeout;

use super::Context;
use super::connect::{client_error, connect};
use super::error::{CliError, CliResult, Stop};
use super::format::{Printer, RecordView};
use super::interrupt::{Interrupt, LEAVE_WAIT_MAX};
use super::output::{clean, plural};
use super::position::Position;
use super::record_json;
use super::time::parse_instant;

/// Bytes of output that are gathered before they are written even though more records wait.
const OUTPUT_BYTES: usize = 64 * 1024;
/// Partitions that are named where the last commit failed.
const AGAIN_SHOWN_MAX: usize = 8;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  corduroy consume orders                           from the start, then follow; Ctrl-C ends it
  corduroy consume orders --exit                    what is there now
  corduroy consume orders -o end                    only what comes from now on
  corduroy consume orders -o -10 --exit             the last ten of each partition
  corduroy consume orders -o @-1h -n 100            a hundred of the last hour
  corduroy consume orders -f '%p %o %k %v\\n'        partition, offset, key, value
  corduroy consume orders --json | jq .value        one JSON object a line
  corduroy consume orders -g billing                as a member of a group, from where it left off

Formats: %k key, %v or %s value, %t topic, %p partition, %o offset, %T or %d timestamp in
milliseconds (%d{rfc3339} as text), %h headers, %H their number, %K and %V or %S the sizes of key
and value (-1 for null), %e leader epoch, %i running number; {hex}, {base64} for bytes, {big32},
{little16}, {hex} and so on for numbers; \\n \\t \\xHH and %% as usual.

Records of one partition come in order; partitions are interleaved.

Ctrl-C and SIGTERM end it; as a member of a group it commits what was printed first, for five
seconds at most, and exits with 1 where that was not acknowledged. A second one ends it at once.")]
pub struct ConsumeArgs {
    /// The topic
    #[arg(value_name = "TOPIC")]
    topic: String,

    /// Where to begin: start, end, an offset, -N before the end, @TIME
    #[arg(
        short = 'o',
        long,
        value_name = "POSITION",
        default_value = "start",
        allow_hyphen_values = true
    )]
    offset: Position,

    /// End after this many records
    #[arg(short = 'n', long, value_name = "N")]
    number: Option<u64>,

    /// Only this partition; repeatable
    #[arg(short = 'p', long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Vec<i32>,

    /// Read as a member of this group, which remembers what was printed; -o says where it begins
    /// where nothing is remembered
    #[arg(short = 'g', long, value_name = "GROUP", conflicts_with_all = ["partition", "exit"])]
    group: Option<String>,

    /// Print by a percent format [default: %v\n]
    #[arg(short = 'f', long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<String>,

    /// Print one JSON object a line
    #[arg(long)]
    json: bool,

    /// End at the high watermarks that hold when the command starts
    #[arg(long)]
    exit: bool,

    /// Which records of transactions to show [default: read_uncommitted]
    #[arg(long, value_enum, value_name = "LEVEL")]
    isolation: Option<IsolationArg>,
}

/// `--isolation`: everything below the high watermark, or only committed transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum IsolationArg {
    ReadUncommitted,
    ReadCommitted,
}

impl IsolationArg {
    fn level(self) -> Isolation {
        match self {
            IsolationArg::ReadUncommitted => Isolation::ReadUncommitted,
            IsolationArg::ReadCommitted => Isolation::ReadCommitted,
        }
    }
}

/// How records are printed.
enum Shape {
    Format(Printer),
    Json,
}

pub(super) async fn run(context: &Context, args: ConsumeArgs) -> CliResult {
    let shape = match (args.json, args.format.as_deref()) {
        (true, _) => Shape::Json,
        (false, format) => {
            let format = format.unwrap_or("%v\\n");
            Shape::Format(Printer::new(format).map_err(|error| {
                CliError::usage(format!("cannot print by the format `{format}`: {error}"))
            })?)
        }
    };
    let from = from(context, &args.offset)?;
    if args.number == Some(0) {
        return Ok(());
    }
    let client = connect(context).await?;
    let mut printing = Printing {
        shape,
        out: Vec::with_capacity(2 * OUTPUT_BYTES),
        left: args.number.unwrap_or(u64::MAX),
    };
    let mut interrupt = Interrupt::listen(&context.env)?;
    match &args.group {
        Some(id) => {
            let mut member = tokio::select! {
                joined = join(&client, &args, id, from) => joined?,
                // Nothing was printed, so there is nothing to commit.
                _ = interrupt.first() => return Ok(()),
            };
            let result = print_group(&mut member, &args, &mut interrupt, &mut printing).await;
            // The coordinator gives up a member that goes without a word by itself, only later.
            let leaving = timeout(LEAVE_WAIT_MAX, member.leave());
            let _ = interrupt.bound(leaving).await;
            result
        }
        None => {
            let reader = start(&client, &args, from);
            print_all(reader, &args, &mut interrupt, &mut printing).await
        }
    }
}

fn wrong(args: &ConsumeArgs, error: &Error) -> Stop {
    client_error(error, &format!("cannot read the topic `{}`", args.topic)).into()
}

/// Records on their way to standard output.
struct Printing {
    shape: Shape,
    out: Vec<u8>,
    /// How many may still be printed.
    left: u64,
}

impl Printing {
    /// Prints one record. `false` if it was the last one.
    fn print(&mut self, record: &ReadRecord) -> CliResult<bool> {
        let view = view(record);
        match &mut self.shape {
            Shape::Format(printer) => printer.print(&view, &mut self.out),
            Shape::Json => record_json::print(&view, &mut self.out),
        }
        self.left -= 1;
        if self.out.len() >= OUTPUT_BYTES || self.left == 0 {
            flush(&mut self.out)?;
        }
        Ok(self.left > 0)
    }
}

async fn print_all(
    mut reader: Reader,
    args: &ConsumeArgs,
    interrupt: &mut Interrupt,
    printing: &mut Printing,
) -> CliResult {
    loop {
        let batch = tokio::select! {
            batch = reader.next() => batch,
            // To end a reader that follows is no failure.
            _ = interrupt.first() => None,
        };
        let Some(batch) = batch else {
            return flush(&mut printing.out);
        };
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) => {
                flush(&mut printing.out)?;
                return Err(wrong(args, &error));
            }
        };
        for record in &batch {
            if !printing.print(record)? {
                return Ok(());
            }
        }
        flush(&mut printing.out)?;
    }
}

/// Prints until somebody or something ends it, and commits what was printed.
async fn print_group(
    member: &mut Group,
    args: &ConsumeArgs,
    interrupt: &mut Interrupt,
    printing: &mut Printing,
) -> CliResult {
    loop {
        let batch = tokio::select! {
            batch = member.next() => batch,
            _ = interrupt.first() => None,
        };
        let batch = match batch {
            Some(Ok(batch)) => batch,
            Some(Err(error)) => return Err(wrong(args, &error)),
            None => {
                let committed = interrupt.bound(member.commit()).await;
                return committed.map_or_else(
                    || Err(not_committed(member, None)),
                    |done| done.map_err(|error| not_committed(member, Some(&error))),
                );
            }
        };
        for record in &batch {
            if !printing.print(record)? {
                // The rest of the batch is somebody else's to print.
                let committed = interrupt.bound(batch.commit_through(record)).await;
                return match committed {
                    Some(Ok(())) => Ok(()),
                    Some(Err(error)) => Err(not_committed(member, Some(&error))),
                    None => Err(not_committed(member, None)),
                };
            }
        }
        flush(&mut printing.out)?;
    }
}

/// What was printed last may be printed again: the group does not know of it.
fn not_committed(member: &Group, error: Option<&Error>) -> Stop {
    let cause = "what was printed last was not committed";
    let failure = match error {
        Some(error) => client_error(error, cause),
        None => CliError::failed(format!(
            "{cause}: no answer within {} s",
            LEAVE_WAIT_MAX.as_secs()
        )),
    };
    let uncommitted = member.uncommitted();
    let mut again: Vec<String> = uncommitted
        .iter()
        .take(AGAIN_SHOWN_MAX)
        .map(|range| {
            let (topic, partition) = (clean(&range.at.topic), range.at.partition);
            format!("{topic}/{partition} from offset {}", range.from)
        })
        .collect();
    if uncommitted.len() > AGAIN_SHOWN_MAX {
        let more = (uncommitted.len() - AGAIN_SHOWN_MAX) as u64;
        again.push(plural(more, "more partition", "more partitions"));
    }
    if again.is_empty() {
        return failure.into();
    }
    let help = format!(
        "the next member of the group `{}` prints these records again",
        clean(member.id())
    );
    failure.fact("again", again.join(", ")).help(help).into()
}

async fn join(client: &Client, args: &ConsumeArgs, id: &str, from: From) -> CliResult<Group> {
    let mut builder = client.group(id).topics([&args.topic]).from(from);
    if let Some(isolation) = args.isolation {
        builder = builder.isolation(isolation.level());
    }
    builder
        .join()
        .await
        .map_err(|error| client_error(&error, &format!("cannot join the group `{id}`")).into())
}

fn from(context: &Context, position: &Position) -> CliResult<From> {
    Ok(match position {
        Position::Start => From::Earliest,
        Position::End => From::Latest,
        Position::Offset(offset) => From::Offset(*offset),
        Position::BeforeEnd(records) => From::Last(*records),
        Position::Time(text) => {
            let now_ms = context.env.unix_millis();
            From::Timestamp(parse_instant(text, now_ms).map_err(CliError::usage)?)
        }
    })
}

fn start(client: &Client, args: &ConsumeArgs, from: From) -> Reader {
    let mut builder = client.read(&args.topic).from(from);
    if !args.partition.is_empty() {
        let mut partitions = args.partition.clone();
        partitions.sort_unstable();
        partitions.dedup();
        builder = builder.partitions(partitions);
    }
    if let Some(isolation) = args.isolation {
        builder = builder.isolation(isolation.level());
    }
    if args.exit {
        builder.until_high_watermark()
    } else {
        builder.follow()
    }
}

fn view(record: &ReadRecord) -> RecordView<'_> {
    RecordView {
        topic: record.topic(),
        partition: record.partition(),
        offset: record.offset(),
        timestamp: record.timestamp(),
        leader_epoch: record.leader_epoch(),
        key: record.key(),
        value: record.value(),
        headers: record.headers().collect(),
    }
}

fn flush(out: &mut Vec<u8>) -> CliResult {
    let mut stdout = io::stdout().lock();
    stdout.write_all(out)?;
    stdout.flush()?;
    out.clear();
    Ok(())
}
