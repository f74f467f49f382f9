//! `corduroy topic`: create, list, describe, change, grow, delete.

use std::str::FromStr;

use clap::{Args, Subcommand};
use corduroy_client::{
    Admin, ConfigEntry, ConfigResource, ConfigSource, ErrorKind, PartitionDescription,
};

use super::Context;
use super::connect::{client_error, connect, connect_silently, is_silence, lost_majority};
use super::error::{CliError, CliResult, Failures};
use super::output::{OutputArgs, OutputFormat, clean, plural, print, print_json};
use super::topic_view::{ConfigRow, PartitionRow, TopicRow, TopicView, describe_text, list_text};
use crate::config::{DefaultValue, Scope, table};
use crate::group::is_internal;

#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// Create topics
    #[command(after_help = "\
Examples:
  corduroy topic create orders                                  the cluster's defaults
  corduroy topic create orders -p 6 -r 3 -c min.insync.replicas=2
  corduroy topic create orders --assign 1,2,3 --assign 2,3,1    two partitions, placed by hand
  corduroy topic create orders --if-not-exists")]
    Create(CreateArgs),
    /// List topics
    #[command(after_help = "\
Examples:
  corduroy topic list
  corduroy topic list -o json | jq -r '.[].name'")]
    List(ListArgs),
    /// Show a topic: partitions, leaders, replicas, offsets, settings
    #[command(after_help = "\
Examples:
  corduroy topic describe orders
  corduroy topic describe orders --all-configs
  corduroy topic describe orders -o json | jq '.partitions[].leader'")]
    Describe(DescribeArgs),
    /// Change a topic's settings
    #[command(after_help = "\
Examples:
  corduroy topic alter orders -c retention.ms=86400000
  corduroy topic alter orders --delete retention.ms              back to the default
  corduroy topic alter orders --append cleanup.policy=compact    add to a list")]
    Alter(AlterArgs),
    /// Add partitions to a topic; keys then go to other partitions than before
    #[command(after_help = "\
Examples:
  corduroy topic add-partitions orders --to 12  twelve altogether
  corduroy topic add-partitions orders --by 2   two more than there are")]
    AddPartitions(AddPartitionsArgs),
    /// Delete topics with all their records
    #[command(after_help = "\
Examples:
  corduroy topic delete orders
  corduroy topic delete orders payments")]
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// How many partitions [default: the cluster's num.partitions]
    #[arg(short = 'p', long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..),
          conflicts_with = "assign")]
    partitions: Option<i32>,

    /// How many replicas of each [default: the cluster's default.replication.factor]
    #[arg(short = 'r', long, value_name = "N", value_parser = clap::value_parser!(i16).range(1..),
          conflicts_with = "assign")]
    replication: Option<i16>,

    /// A setting; repeatable
    #[arg(short = 'c', long = "config", value_name = "KEY=VALUE")]
    configs: Vec<Setting>,

    /// The nodes of the next partition, its preferred leader first; repeat for each partition
    #[arg(long, value_name = "NODE,NODE,…")]
    assign: Vec<NodeList>,

    /// A topic that exists already is fine
    #[arg(long)]
    if_not_exists: bool,

    /// Only check whether the topics could be created
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Show the cluster's own topics too
    #[arg(long)]
    internal: bool,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct DescribeArgs {
    #[arg(value_name = "NAME")]
    name: String,

    /// Show the settings that nobody changed too (JSON always has them)
    #[arg(long)]
    all_configs: bool,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub struct AlterArgs {
    #[arg(value_name = "NAME")]
    name: String,

    /// Set a value; repeatable
    #[arg(
        short = 'c',
        long = "config",
        value_name = "KEY=VALUE",
        group = "change"
    )]
    configs: Vec<Setting>,

    /// Go back to the default; repeatable
    #[arg(long, value_name = "KEY", group = "change")]
    delete: Vec<String>,

    /// Add to a list; repeatable
    #[arg(long, value_name = "KEY=VALUE", group = "change")]
    append: Vec<Setting>,

    /// Take out of a list; repeatable
    #[arg(long, value_name = "KEY=VALUE", group = "change")]
    subtract: Vec<Setting>,

    /// Only check whether the changes would be accepted
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("how-many").required(true))]
pub struct AddPartitionsArgs {
    #[arg(value_name = "NAME")]
    name: String,

    /// How many altogether, as with Kafka's own tools
    #[arg(long, value_name = "TOTAL", value_parser = clap::value_parser!(i32).range(1..),
          group = "how-many", conflicts_with = "by")]
    to: Option<i32>,

    /// How many more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..),
          group = "how-many")]
    by: Option<i32>,

    /// A number alone: it could mean either
    #[arg(value_name = "N", hide = true, group = "how-many")]
    unclear: Option<i32>,

    /// Let one of the cluster's own topics grow, with what that breaks
    #[arg(long)]
    internal: bool,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// A topic that does not exist is fine
    #[arg(long)]
    if_exists: bool,

    /// Delete the cluster's own topics too, with what they hold
    #[arg(long)]
    internal: bool,
}

/// `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub(super) name: String,
    pub(super) value: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Setting, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok(Setting {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err("write it as KEY=VALUE, for instance retention.ms=86400000".to_owned()),
        }
    }
}

/// `1,2,3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeList(Vec<i32>);

impl FromStr for NodeList {
    type Err = String;

    fn from_str(text: &str) -> Result<NodeList, String> {
        let nodes: Result<Vec<i32>, _> = text.split(',').map(|id| id.trim().parse()).collect();
        nodes
            .map(NodeList)
            .map_err(|_| "write node ids with commas, for instance 1,2,3".to_owned())
    }
}

impl CreateArgs {
    /// The cluster makes its own topics, with the settings that they need.
    fn check(&self) -> CliResult {
        let Some(name) = self.names.iter().find(|name| is_internal(name)) else {
            return Ok(());
        };
        let cause =
            format!("`{name}` is the cluster's own: it makes it when the first group comes");
        Err(CliError::usage(cause)
            .help("offsets.topic.num.partitions and offsets.topic.replication.factor shape it")
            .into())
    }
}

impl DeleteArgs {
    /// Says what would be lost.
    fn check(&self) -> CliResult {
        let Some(name) = self.names.iter().find(|name| is_internal(name)) else {
            return Ok(());
        };
        if self.internal {
            return Ok(());
        }
        let cause = format!(
            "`{name}` is the cluster's own: with it go all consumer groups and all their committed \
             offsets"
        );
        Err(CliError::usage(cause)
            .help("--internal deletes it all the same")
            .into())
    }
}

impl AddPartitionsArgs {
    /// Asks back before anything is done.
    fn check(&self) -> CliResult {
        if is_internal(&self.name) && !self.internal {
            let (name, lost) = (
                &self.name,
                "the cluster would look for most groups in partitions \
                                             that do not hold them, and their positions be lost",
            );
            let cause = format!("`{name}` is the cluster's own: {lost}");
            return Err(CliError::usage(cause)
                .help("--internal does it all the same")
                .into());
        }
        let (Some(number), name) = (self.unclear, &self.name) else {
            return Ok(());
        };
        let cause = format!("{number} altogether, or {number} more?");
        let help = format!(
            "`corduroy topic add-partitions {name} --to {number}` (altogether, as with Kafka's own \
             tools) or `--by {number}` (more)"
        );
        Err(CliError::usage(cause).help(help).into())
    }
}

pub(super) async fn run(context: &Context, command: TopicCommand) -> CliResult {
    match &command {
        TopicCommand::AddPartitions(args) => args.check()?,
        TopicCommand::Create(args) => args.check()?,
        TopicCommand::Delete(args) => args.check()?,
        _ => {}
    }
    let client = match command {
        TopicCommand::List(_) => connect_silently(context).await?,
        _ => connect(context).await?,
    };
    let admin = client.admin();
    match command {
        TopicCommand::Create(args) => create(&admin, &args).await,
        TopicCommand::List(args) => list(&admin, &args).await,
        TopicCommand::Describe(args) => describe(&admin, &args).await,
        TopicCommand::Alter(args) => alter(&admin, &args).await,
        TopicCommand::AddPartitions(args) => add_partitions(&admin, &args).await,
        TopicCommand::Delete(args) => delete(&admin, &args).await,
    }
}

async fn create(admin: &Admin, args: &CreateArgs) -> CliResult {
    let mut failures = Failures::default();
    for name in &args.names {
        let mut creation = admin.create_topic(name);
        if let Some(partitions) = args.partitions {
            creation = creation.partitions(partitions);
        }
        if let Some(replication) = args.replication {
            creation = creation.replication(replication);
        }
        if !args.assign.is_empty() {
            creation = creation.assignment(args.assign.iter().map(|list| list.0.clone()).collect());
        }
        for Setting { name, value } in &args.configs {
            creation = creation.config(name, value);
        }
        if args.if_not_exists {
            creation = creation.ensure();
        }
        if args.dry_run {
            creation = creation.validate_only();
        }
        let created = match creation.await {
            Ok(created) => created,
            Err(error) => {
                let failed = client_error(&error, &format!("cannot create the topic `{name}`"));
                failures.take(Err(failed), is_silence(&error))?;
                continue;
            }
        };
        let what = match (created.created, args.dry_run) {
            (true, _) => "created",
            (false, true) => "could create",
            (false, false) => "found",
        };
        let mut size = Vec::new();
        if let Some(partitions) = created
            .partitions
            .and_then(|count| u64::try_from(count).ok())
        {
            size.push(plural(partitions, "partition", "partitions"));
        }
        if let Some(replicas) = created
            .replication
            .and_then(|count| u64::try_from(count).ok())
        {
            size.push(plural(replicas, "replica", "replicas"));
        }
        let size = if size.is_empty() {
            String::new()
        } else {
            format!(" ({})", size.join(", "))
        };
        eprintln!("{what} topic {name}{size}");
    }
    warn_of_idle(Scope::Topic, args.configs.iter());
    failures.result()
}

/// What Corduroy keeps and describes, for tools that expect it, and does nothing about yet.
pub(super) fn warn_of_idle<'a>(scope: Scope, settings: impl Iterator<Item = &'a Setting>) {
    let names = settings.map(|setting| setting.name.as_str());
    for name in table::idle(scope, names) {
        eprintln!("warning: {name} is stored and described, and Corduroy does not act on it yet");
    }
}

async fn list(admin: &Admin, args: &ListArgs) -> CliResult {
    let topics = admin
        .list_topics()
        .await
        .map_err(|error| client_error(&error, "cannot list topics"))?;
    let rows: Vec<TopicRow> = topics
        .into_iter()
        .filter(|topic| args.internal || !topic.internal)
        .map(|topic| TopicRow {
            name: topic.name,
            topic_id: (!topic.id.is_nil()).then(|| topic.id.to_string()),
            partitions: topic.partitions,
            replication_factor: topic.replication,
            internal: topic.internal,
        })
        .collect();
    match args.output.output {
        OutputFormat::Json => print_json(&rows)?,
        OutputFormat::Table => {
            print(&list_text(&rows))?;
            if rows.is_empty() {
                eprintln!("no topics yet; `corduroy topic create NAME` makes one");
            }
        }
    }
    // What a node without a majority shows is what it remembers.
    match lost_majority(admin.describe_cluster().await.as_ref().err()) {
        Some(lost) => Err(lost.into()),
        None => Ok(()),
    }
}

async fn describe(admin: &Admin, args: &DescribeArgs) -> CliResult {
    let name = &args.name;
    let wrong = |error| client_error(&error, &format!("cannot describe the topic `{name}`"));
    let topic = admin.describe_topic(name).offsets().await.map_err(wrong)?;
    let configs = admin
        .describe_configs(&ConfigResource::Topic(name.clone()))
        .await
        .map_err(|error| client_error(&error, &format!("cannot read the settings of `{name}`")))?;
    let view = TopicView {
        name: topic.name,
        topic_id: (!topic.id.is_nil()).then(|| topic.id.to_string()),
        internal: topic.internal,
        partitions: topic.partitions.iter().map(partition_row).collect(),
        configs: configs.into_iter().map(config_row).collect(),
    };
    match args.output.output {
        OutputFormat::Json => print_json(&view)?,
        OutputFormat::Table => print(&describe_text(&view, args.all_configs))?,
    }
    Ok(())
}

fn partition_row(partition: &PartitionDescription) -> PartitionRow {
    PartitionRow {
        partition: partition.partition,
        leader: partition.leader,
        leader_epoch: Some(partition.leader_epoch).filter(|&epoch| epoch >= 0),
        replicas: partition.replicas.clone(),
        in_sync: partition.isr.clone(),
        log_start_offset: partition.offsets.map(|offsets| offsets.log_start),
        high_watermark: partition.offsets.map(|offsets| offsets.high_watermark),
        last_stable_offset: partition.offsets.map(|offsets| offsets.last_stable),
        log_end_offset: partition.offsets.and_then(|offsets| offsets.log_end),
    }
}

fn config_row(config: ConfigEntry) -> ConfigRow {
    let default = match (config.source, table::find(Scope::Topic, &config.name)) {
        (ConfigSource::Default, _) => config.value.clone(),
        (_, Some(key)) => match key.default {
            DefaultValue::Fixed(value) => Some(value.to_owned()),
            DefaultValue::Computed(rule) => Some(rule.to_owned()),
            DefaultValue::Unset => None,
        },
        (_, None) => None,
    };
    let source = match config.source {
        ConfigSource::Topic => "topic",
        ConfigSource::Broker | ConfigSource::File => "node",
        ConfigSource::Cluster => "cluster",
        ConfigSource::Default => "default",
        _ => "unknown",
    };
    ConfigRow {
        name: config.name,
        value: config.value,
        default,
        source: source.to_owned(),
    }
}

async fn alter(admin: &Admin, args: &AlterArgs) -> CliResult {
    let name = &args.name;
    // A wrong name is told as such, not as a refused setting.
    admin
        .describe_topic(name)
        .await
        .map_err(|error| client_error(&error, &format!("cannot find the topic `{name}`")))?;
    let mut changes = admin.alter_configs(ConfigResource::Topic(name.clone()));
    for Setting { name, value } in &args.configs {
        changes = changes.set(name, value);
    }
    for key in &args.delete {
        changes = changes.delete(key);
    }
    for Setting { name, value } in &args.append {
        changes = changes.append(name, value);
    }
    for Setting { name, value } in &args.subtract {
        changes = changes.subtract(name, value);
    }
    if args.dry_run {
        changes = changes.validate_only();
    }
    changes
        .await
        .map_err(|error| client_error(&error, &format!("cannot change the topic `{name}`")))?;
    eprintln!(
        "{} topic {name}",
        if args.dry_run {
            "could change"
        } else {
            "changed"
        }
    );
    warn_of_idle(Scope::Topic, args.configs.iter().chain(&args.append));
    Ok(())
}

async fn add_partitions(admin: &Admin, args: &AddPartitionsArgs) -> CliResult {
    let name = &args.name;
    let topic = admin
        .describe_topic(name)
        .await
        .map_err(|error| client_error(&error, &format!("cannot find the topic `{name}`")))?;
    let now = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
    let total = match (args.by, args.to) {
        (Some(more), _) => now.saturating_add(more),
        (None, Some(total)) => total,
        (None, None) => return Err(CliError::usage("how many partitions?").into()),
    };
    admin
        .create_partitions(name, total)
        .await
        .map_err(|error| client_error(&error, &format!("cannot add partitions to `{name}`")))?;
    eprintln!("topic {name} has {total} partitions now ({now} before)");
    Ok(())
}

async fn delete(admin: &Admin, args: &DeleteArgs) -> CliResult {
    let mut failures = Failures::default();
    for name in &args.names {
        match admin.delete_topic(name).await {
            Ok(()) => eprintln!("deleted topic {}", clean(name)),
            Err(error) if args.if_exists && error.kind() == ErrorKind::UnknownTopic => {
                eprintln!("there is no topic {}", clean(name));
            }
            Err(error) => {
                let failed = client_error(&error, &format!("cannot delete the topic `{name}`"));
                failures.take(Err(failed), is_silence(&error))?;
            }
        }
    }
    failures.result()
}
