//! From the command line to a connected client, and from a client's error to a sentence with a
//! way out.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use corduroy_client::{Client, Error, ErrorCode, ErrorKind};

use super::Context;
use super::error::{CliError, CliResult};

/// Where a cluster is looked for if nobody says where: a node's own default.
const BROKERS_DEFAULT: &str = "127.0.0.1:9092";

/// Where [`BROKERS_DEFAULT`] is said to come from.
const SOURCE_DEFAULT: &str = "the default";

/// How long a command tries before it gives up, unless the properties file says otherwise. Shorter
/// than Kafka's minute: somebody is waiting at a terminal.
const API_WAIT_MAX: Duration = Duration::from_secs(20);

/// What to do about nodes that are missed.
const START_THEM: &str = "start the nodes that are missing: until then nothing is written or decided; \
                          `corduroy cluster health --wait 60s` returns when all is well";

/// Where to find the cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct ConnectArgs {
    /// Brokers to ask first [env: CORDUROY_BROKERS, KAFKA_BOOTSTRAP_SERVERS] [default:
    /// 127.0.0.1:9092]
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT,…",
        help_heading = "Connection"
    )]
    pub brokers: Option<String>,

    /// A standard client .properties file
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Connection",
        env = "CORDUROY_CLIENT_CONFIG"
    )]
    pub client_config: Option<PathBuf>,
}

/// Where the address of the cluster came from, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Brokers {
    source: &'static str,
    servers: String,
}

/// The nearest word wins: the flag, the environment, the default. A properties file stands
/// between flag and environment, since it was named for this call.
fn brokers(flag: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Brokers {
    if let Some(servers) = flag {
        return Brokers {
            source: "--brokers",
            servers: servers.to_owned(),
        };
    }
    for source in ["CORDUROY_BROKERS", "KAFKA_BOOTSTRAP_SERVERS"] {
        if let Some(servers) = variable(source).filter(|servers| !servers.is_empty()) {
            return Brokers { source, servers };
        }
    }
    Brokers {
        source: SOURCE_DEFAULT,
        servers: BROKERS_DEFAULT.to_owned(),
    }
}

/// Whether anybody said which cluster is meant: the command line, a properties file or the
/// environment.
pub(crate) fn names_a_cluster(args: &ConnectArgs) -> bool {
    let found = brokers(args.brokers.as_deref(), |name| std::env::var(name).ok());
    args.client_config.is_some() || found.source != SOURCE_DEFAULT
}

/// How often it is looked whether the cluster still has a majority. What is looked at is in memory.
const MAJORITY_LOOK: Duration = Duration::from_secs(1);

/// Connects as the command line says. If the cluster has no majority, now or later while the command
/// runs, that is told on standard error: whatever the command waits for, it waits for that.
///
/// # Errors
/// An unreadable or wrong properties file; a cluster that does not answer.
pub(crate) async fn connect(context: &Context) -> CliResult<Client> {
    Ok(watched(context, connect_silently(context).await?).await)
}

/// Connects as [`connect`] does, for measurements: they make their topics themselves, and what is still
/// on its way when one ends must not make a deleted topic anew.
///
/// # Errors
/// As [`connect`].
pub(crate) async fn connect_to_measure(context: &Context) -> CliResult<Client> {
    let client = open(context, &[("allow.auto.create.topics", "false")]).await?;
    Ok(watched(context, client).await)
}

async fn watched(context: &Context, client: Client) -> Client {
    let mut majority = Majority::default();
    majority.look(&client).await;
    let (env, watched) = (context.env.clone(), client.clone());
    context.env.spawn_local(async move {
        loop {
            env.sleep(MAJORITY_LOOK).await;
            majority.look(&watched).await;
        }
    });
    client
}

/// What was told of the cluster's majority.
#[derive(Default)]
struct Majority {
    is_told: bool,
}

impl Majority {
    async fn look(&mut self, client: &Client) {
        if client.controller().is_some() {
            self.is_told = false;
            return;
        }
        // No controller for a moment is an election.
        if let Some(words) = lost_majority(client.admin().describe_cluster().await.as_ref().err())
            && !std::mem::replace(&mut self.is_told, true)
        {
            eprintln!("warning: {words}");
        }
    }
}

/// What to tell if this error means that the cluster has lost its majority.
pub(crate) fn lost_majority(error: Option<&Error>) -> Option<CliError> {
    let error = error.filter(|error| error.kind() == ErrorKind::NotServing)?;
    let cause = format!("the cluster has lost its majority: {error}");
    Some(CliError::failed(cause).help(START_THEM))
}

/// Connects as [`connect`] does, for a command that itself tells of a lost majority.
///
/// # Errors
/// As [`connect`].
pub(crate) async fn connect_silently(context: &Context) -> CliResult<Client> {
    open(context, &[]).await
}

async fn open(context: &Context, properties: &[(&str, &str)]) -> CliResult<Client> {
    let ConnectArgs {
        brokers: flag,
        client_config,
    } = &context.connect;
    let found = brokers(flag.as_deref(), |name| std::env::var(name).ok());
    let mut builder = Client::builder()
        .env(context.env.clone())
        .client_id("corduroy-cli")
        .api_timeout(API_WAIT_MAX)
        .bootstrap_servers(&found.servers);
    if let Some(path) = client_config {
        let text = fs::read_to_string(path).map_err(|error| {
            CliError::usage(format!(
                "cannot read the properties file {}: {error}",
                path.display()
            ))
        })?;
        builder = builder.properties(&text);
        if let Some(servers) = flag {
            builder = builder.bootstrap_servers(servers);
        }
    }
    for (name, value) in properties {
        builder = builder.set(name, value);
    }
    builder.connect().await.map_err(|error| {
        let cause = client_error(&error, "cannot reach the cluster");
        match client_config {
            Some(path) if flag.is_none() => cause.fact("from", path.display().to_string()),
            _ => cause.fact(
                "asked",
                format!("{} (from {})", found.servers, found.source),
            ),
        }
        .into()
    })
}

/// Connects to brokers that the program itself has started.
///
/// # Errors
/// A cluster that does not answer.
pub(crate) async fn connect_to(servers: &str) -> CliResult<Client> {
    Client::builder()
        .client_id("corduroy-cli")
        .api_timeout(API_WAIT_MAX)
        .bootstrap_servers(servers)
        .connect()
        .await
        .map_err(|error| client_error(&error, "cannot reach the cluster").into())
}

/// What a client's error means at the command line. `what` says what was tried ("cannot read the
/// topic `orders`").
pub(crate) fn client_error(error: &Error, what: &str) -> CliError {
    let cause = format!("{what}: {error}");
    let topic = error.context().topic.as_deref();
    let shown_topic = topic.unwrap_or("TOPIC");
    match error.kind() {
        ErrorKind::Config => CliError::usage(cause),
        ErrorKind::UnknownTopic => match topic {
            Some(topic) => unknown_topic(topic),
            None => CliError::failed(cause).help("`corduroy topic list` shows the topics"),
        },
        ErrorKind::UnknownPartition => CliError::failed(cause).help(format!(
            "`corduroy topic describe {shown_topic}` shows its partitions"
        )),
        ErrorKind::OffsetOutOfRange => CliError::failed(cause).help(format!(
            "`corduroy topic describe {shown_topic}` shows which offsets there are"
        )),
        ErrorKind::Disconnected | ErrorKind::RequestTimeout | ErrorKind::ApiTimeout => {
            CliError::failed(cause).help(
                "is a node running there? `corduroy start` runs one; --brokers HOST:PORT names \
                 another",
            )
        }
        ErrorKind::NotServing => CliError::failed(cause)
            .help("`corduroy cluster health --wait 60s` returns when all is well"),
        ErrorKind::RecordTooLarge => CliError::failed(cause)
            .help("the topic's limit is max.message.bytes, the client's max.request.size"),
        ErrorKind::Broker(ErrorCode::TopicAlreadyExists) => CliError::failed(cause)
            .help("--if-not-exists takes it as it is; `corduroy topic describe` shows it"),
        ErrorKind::Broker(ErrorCode::NotEnoughReplicas) => CliError::failed(cause).help(
            "too few nodes are up for acks=all: `corduroy cluster health` shows who is missing",
        ),
        _ => CliError::failed(cause),
    }
}

/// Whether an error means that no broker answers, so that the next question would wait in vain too.
pub(crate) fn is_silence(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Disconnected
            | ErrorKind::NotServing
            | ErrorKind::RequestTimeout
            | ErrorKind::ApiTimeout
    )
}

/// The answer to a name that nobody knows.
pub(crate) fn unknown_topic(topic: &str) -> CliError {
    CliError::failed(format!("there is no topic `{topic}`")).help(format!(
        "`corduroy topic list` shows those that exist; `corduroy topic create {topic}` makes it"
    ))
}

/// The answer to a name that nobody knows, where a record would have made the topic.
pub(crate) fn unmade_topic(topic: &str) -> CliError {
    let code = ErrorCode::UnknownTopicOrPartition.name();
    CliError::failed(format!(
        "there is no topic `{topic}`, and the cluster makes none for it ({code})"
    ))
    .help(format!(
        "`corduroy topic create {topic}` makes it; with auto.create.topics.enable=true a producer does"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_about_brokers_wins() {
        let variables = |name: &str| match name {
            "CORDUROY_BROKERS" => Some("own:1".to_owned()),
            "KAFKA_BOOTSTRAP_SERVERS" => Some("kafka:1".to_owned()),
            _ => None,
        };
        let kafka_only = |name: &str| variables(name).filter(|_| name.starts_with("KAFKA"));
        assert_eq!(brokers(Some("flag:1"), variables).servers, "flag:1");
        assert_eq!(brokers(None, variables).servers, "own:1");
        assert_eq!(brokers(None, kafka_only).servers, "kafka:1");
        assert_eq!(brokers(None, |_| None).servers, BROKERS_DEFAULT);
        assert_eq!(brokers(None, |_| Some(String::new())).source, "the default");
    }
}
