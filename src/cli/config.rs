//! `corduroy config`: the cluster's settings, and what every setting does.

use clap::{Args, Subcommand};
use corduroy_client::{Admin, ConfigResource, ConfigSource};
use serde::Serialize;

use super::Context;
use super::connect::{client_error, connect};
use super::error::CliResult;
use super::output::{Align, Grid, OutputArgs, OutputFormat, print, print_json};
use super::start::StartArgs;
use super::topic::{Setting, warn_of_idle};
use crate::config::Scope;

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show the cluster's settings
    #[command(after_help = "\
Examples:
  corduroy config list                    what was set
  corduroy config list --all              defaults too
  corduroy config list --all | grep group")]
    List(ListArgs),
    /// Change the cluster's settings: live, on every node
    #[command(after_help = "\
Examples:
  corduroy config set group.initial.rebalance.delay.ms=0
  corduroy config set num.partitions=6 default.replication.factor=3
  corduroy config set replica.lag.time.max.ms=10000 --dry-run")]
    Set(SetArgs),
    /// Take settings back to their defaults
    #[command(after_help = "\
Examples:
  corduroy config reset group.initial.rebalance.delay.ms")]
    Reset(ResetArgs),
    /// Show the settings that a node would start with here, and where each comes from
    #[command(after_help = "\
Examples:
  corduroy config print                                  defaults and the environment
  corduroy config print --config corduroy.toml --shards 2
  corduroy config print | grep -v default                what somebody set

Takes the flags of `corduroy start`. Cluster settings are what a new cluster would begin with;
those of a running one: `corduroy config list`.")]
    Print(Box<PrintArgs>),
    /// Print the reference of all settings as markdown
    #[command(after_help = "\
Examples:
  corduroy config docs > config.md
  corduroy config docs | grep retention")]
    Docs,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Defaults too
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<Setting>,

    /// Only check
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub struct ResetArgs {
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
}

#[derive(Debug, Args)]
pub struct PrintArgs {
    #[command(flatten)]
    start: StartArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// A setting for people and programs.
#[derive(Serialize)]
struct Row {
    name: String,
    value: Option<String>,
    source: String,
}

pub(super) async fn run(context: &Context, command: ConfigCommand) -> CliResult {
    match command {
        ConfigCommand::Docs => Ok(print(&crate::config::docs::render())?),
        ConfigCommand::Print(args) => print_settings(&args),
        ConfigCommand::List(args) => list(&connect(context).await?.admin(), &args).await,
        ConfigCommand::Set(args) => set(&connect(context).await?.admin(), &args).await,
        ConfigCommand::Reset(args) => reset(&connect(context).await?.admin(), &args).await,
    }
}

async fn list(admin: &Admin, args: &ListArgs) -> CliResult {
    // The cluster's own resource holds what was set; any node knows the defaults as well.
    let resource = if args.all {
        let cluster = admin.describe_cluster().await;
        let cluster =
            cluster.map_err(|error| client_error(&error, "cannot describe the cluster"))?;
        match cluster.brokers.first() {
            Some(broker) => ConfigResource::Broker(broker.id),
            None => ConfigResource::Cluster,
        }
    } else {
        ConfigResource::Cluster
    };
    let mut entries = admin
        .describe_configs(&resource)
        .await
        .map_err(|error| client_error(&error, "cannot describe the cluster's settings"))?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let rows: Vec<Row> = entries
        .into_iter()
        .filter(|entry| args.all || entry.source != ConfigSource::Default)
        .map(|entry| Row {
            name: entry.name,
            value: entry.value,
            source: match entry.source {
                ConfigSource::Cluster => "cluster".to_owned(),
                ConfigSource::Default => "default".to_owned(),
                _ => "node".to_owned(),
            },
        })
        .collect();
    if rows.is_empty() && args.output.output != OutputFormat::Json {
        eprintln!("nothing was set; `corduroy config list --all` shows the defaults");
        return Ok(());
    }
    show(rows, args.output.output)
}

/// The settings of a node that would be started with these flags.
fn print_settings(args: &PrintArgs) -> CliResult {
    let config = args.start.load()?;
    for warning in &config.warnings {
        eprintln!("warning: {warning}");
    }
    let rows = config.print().into_iter().map(|(name, value, layer)| Row {
        name: name.to_owned(),
        value: Some(value).filter(|value| !value.is_empty()),
        source: layer.to_string(),
    });
    show(rows.collect(), args.output.output)
}

fn show(rows: Vec<Row>, output: OutputFormat) -> CliResult {
    if output == OutputFormat::Json {
        return Ok(print_json(&rows)?);
    }
    let mut grid = Grid::new(&[
        ("SETTING", Align::Left),
        ("VALUE", Align::Left),
        ("SOURCE", Align::Left),
    ]);
    for row in rows {
        let value = row.value.unwrap_or_else(|| "-".to_owned());
        grid.row([row.name, value, row.source]);
    }
    Ok(print(&grid.render())?)
}

async fn set(admin: &Admin, args: &SetArgs) -> CliResult {
    let mut changes = admin.alter_configs(ConfigResource::Cluster);
    for Setting { name, value } in &args.settings {
        changes = changes.set(name, value);
    }
    if args.dry_run {
        changes = changes.validate_only();
    }
    changes
        .await
        .map_err(|error| client_error(&error, "cannot change the cluster's settings"))?;
    let done = if args.dry_run { "could set" } else { "set" };
    for Setting { name, value } in &args.settings {
        eprintln!("{done} {name}={value}");
    }
    warn_of_idle(Scope::Cluster, args.settings.iter());
    Ok(())
}

async fn reset(admin: &Admin, args: &ResetArgs) -> CliResult {
    let mut changes = admin.alter_configs(ConfigResource::Cluster);
    for key in &args.keys {
        changes = changes.delete(key);
    }
    changes
        .await
        .map_err(|error| client_error(&error, "cannot change the cluster's settings"))?;
    for key in &args.keys {
        eprintln!("{key} is at its default");
    }
    Ok(())
}
