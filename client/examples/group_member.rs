//! One member of a consumer group that tells what befalls it, as a line of JSON each.
//!
//! ```text
//! cargo run -p corduroy-client --example group_member -- billing orders --from earliest
//! cargo run -p corduroy-client --example group_member -- billing orders \
//!     --set group.protocol=consumer --set group.instance.id=till-3 --explicit
//! ```
//!
//! Start it several times: the members share the partitions. Ctrl-C leaves the group. Lines:
//!
//! | `what` | besides |
//! |---|---|
//! | `assigned`, `revoked`, `lost` | `partitions`: `[["orders",0],...]`; `assigned` also `generation` |
//! | `generation` | `generation`, when it has changed without an assignment |
//! | `batch` | `topic`, `partition`, `generation`, `records`: `[[offset, value],...]` |
//! | `committed` | `topic`, `partition`, `offset` (with `--explicit`) |
//! | `error`, `closed` | `error` also `text` |

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use corduroy_client::{
    Batch, Client, Commits, Error, ErrorKind, From, Group, GroupEvent, PROPERTIES, Scope,
    TopicPartition,
};

/// How long a member that is to stop may take to join.
const JOIN_WAIT_MAX: Duration = Duration::from_secs(10);

const USAGE: &str = "usage: group_member GROUP TOPIC[,TOPIC...]|--matching REGEX [--brokers HOST:PORT,...] \
    [--from earliest|latest] [--explicit] [--set NAME=VALUE]...";

struct Arguments {
    group: String,
    topics: Vec<String>,
    pattern: Option<String>,
    brokers: String,
    from: From,
    commits: Commits,
    /// Properties by Kafka's names.
    settings: Vec<(String, String)>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
        let mut places = Vec::new();
        let mut found = Arguments {
            group: String::new(),
            topics: Vec::new(),
            pattern: None,
            brokers: "127.0.0.1:9092".to_owned(),
            from: From::Latest,
            commits: Commits::AfterProcessing,
            settings: Vec::new(),
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--brokers" => found.brokers = words.next()?,
                "--from" => {
                    found.from = match words.next()?.as_str() {
                        "earliest" => From::Earliest,
                        "latest" => From::Latest,
                        _ => return None,
                    };
                }
                "--matching" => found.pattern = Some(words.next()?),
                "--explicit" => found.commits = Commits::Explicit,
                "--set" => {
                    let pair = words.next()?;
                    let (name, value) = pair.split_once('=')?;
                    found.settings.push((name.to_owned(), value.to_owned()));
                }
                option if option.starts_with("--") => return None,
                _ => places.push(word),
            }
        }
        let mut places = places.into_iter();
        found.group = places.next()?;
        if let Some(topics) = places.next() {
            found.topics = topics.split(',').map(str::to_owned).collect();
        }
        let is_asked = !found.topics.is_empty() || found.pattern.is_some();
        (is_asked && places.next().is_none()).then_some(found)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(arguments) = Arguments::parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let ended = run(&arguments).await;
    if let Err(error) = &ended {
        say("error", &[("text", text(&error.to_string()))]);
    }
    say("closed", &[]);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(_told) => ExitCode::FAILURE,
    }
}

async fn run(arguments: &Arguments) -> Result<(), Error> {
    let mut client = Client::builder().bootstrap_servers(&arguments.brokers);
    let mut settings = Vec::new();
    for (name, value) in &arguments.settings {
        let known = PROPERTIES.iter().find(|property| property.name == name);
        if known.is_some_and(|property| property.scope == Scope::Client) {
            client = client.set(name, value);
        } else {
            settings.push((name, value));
        }
    }
    let client = client.connect().await?;
    let mut builder = client
        .group(&arguments.group)
        .topics(&arguments.topics)
        .from(arguments.from)
        .commits(arguments.commits);
    if let Some(pattern) = &arguments.pattern {
        builder = builder.topics_matching(pattern);
    }
    for (name, value) in settings {
        builder = builder.set(name, value);
    }
    let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
    let mut joining = std::pin::pin!(builder.join());
    let mut group = tokio::select! {
        joined = &mut joining => joined?,
        _ = &mut stop => {
            // The others wait for a member that has begun to join: it joins, and takes its leave.
            if let Ok(joined) = tokio::time::timeout(JOIN_WAIT_MAX, joining).await {
                joined?.close().await;
            }
            return Ok(());
        }
    };
    let mut generation = None;
    loop {
        let event = tokio::select! {
            event = group.next_event() => event,
            _ = &mut stop => break,
        };
        match event {
            Some(Ok(event)) => {
                let batch = tell(&group, event, &mut generation);
                if let Some(batch) = batch.filter(|_| arguments.commits == Commits::Explicit) {
                    commit(&batch).await?;
                }
            }
            Some(Err(error)) => return Err(error),
            None => break,
        }
    }
    // What was handed out counts as processed; a dynamic member's partitions go to others at once.
    group.close().await;
    Ok(())
}

/// Says what happened. Returns the batch, if it was one.
fn tell(group: &Group, event: GroupEvent, told: &mut Option<i32>) -> Option<Batch> {
    let given = |partitions: &[TopicPartition]| ("partitions", places(partitions));
    match event {
        GroupEvent::Assigned {
            partitions,
            generation,
        } => {
            *told = Some(generation);
            let number = ("generation", generation.to_string());
            say("assigned", &[number, given(&partitions)]);
        }
        GroupEvent::Revoked(partitions) => say("revoked", &[given(&partitions)]),
        GroupEvent::Lost(partitions) => say("lost", &[given(&partitions)]),
        GroupEvent::Batch(batch) => {
            // The consumer protocol's epoch grows without a word when others' shares change.
            if group.generation() != *told
                && let Some(generation) = group.generation()
            {
                *told = Some(generation);
                say("generation", &[("generation", generation.to_string())]);
            }
            let record = |value: Option<&[u8]>, offset: i64| {
                let value = value.map_or("null".to_owned(), |value| {
                    text(&String::from_utf8_lossy(value))
                });
                format!("[{offset},{value}]")
            };
            let records = batch
                .records()
                .iter()
                .map(|one| record(one.value(), one.offset()));
            say(
                "batch",
                &[
                    ("topic", text(batch.topic())),
                    ("partition", batch.partition().to_string()),
                    ("generation", batch.generation().to_string()),
                    ("records", list(records)),
                ],
            );
            return Some(batch);
        }
        // Events that are added later do not matter here.
        _ => {}
    }
    None
}

async fn commit(batch: &Batch) -> Result<(), Error> {
    match batch.commit().await {
        Ok(()) => {
            say(
                "committed",
                &[
                    ("topic", text(batch.topic())),
                    ("partition", batch.partition().to_string()),
                    ("offset", batch.next_offset().to_string()),
                ],
            );
            Ok(())
        }
        // Its partitions are somebody else's by now, and the next event says so.
        Err(error) if error.kind() == ErrorKind::StaleGeneration => Ok(()),
        Err(error) => Err(error),
    }
}

fn say(what: &str, details: &[(&str, String)]) {
    let mut line = format!("{{\"what\":\"{what}\"");
    for (name, value) in details {
        line.push_str(&format!(",\"{name}\":{value}"));
    }
    // Whoever read this has gone: there is nobody left to tell.
    let _ = writeln!(std::io::stdout().lock(), "{line}}}");
}

fn places(partitions: &[TopicPartition]) -> String {
    list(
        partitions
            .iter()
            .map(|at| format!("[{},{}]", text(&at.topic), at.partition)),
    )
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// A string in JSON.
fn text(words: &str) -> String {
    let mut out = String::from('"');
    for letter in words.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}
