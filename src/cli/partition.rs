//! `corduroy partition`: act on one partition.

use std::net::SocketAddr;
use std::str::FromStr;

use clap::{Args, Subcommand};

use super::Context;
use super::admins::{Admins, find_admins};
use super::connect::connect;
use super::error::{CliError, CliResult};
use super::http::{self, escape_segment};
use super::output::{OutputArgs, OutputFormat, print, print_json};
use crate::admin::{LeadAnswer, Refusal};

#[derive(Debug, Subcommand)]
pub enum PartitionCommand {
    /// Let a node lead a partition
    #[command(after_help = "\
Examples:
  corduroy partition lead orders/3 2
      node 2 takes over partition 3 of topic orders
  corduroy partition lead orders/3 2 --admin 127.0.0.1:9644")]
    Lead(LeadArgs),
}

#[derive(Debug, Args)]
pub struct LeadArgs {
    /// The partition
    #[arg(value_name = "TOPIC/P")]
    partition: PartitionName,

    /// The id of the node that shall lead it; it must hold a replica in sync
    #[arg(value_name = "NODE")]
    node: i32,

    /// An admin port of the cluster [default: ask the brokers for theirs]
    #[arg(long, value_name = "HOST:PORT", env = "CORDUROY_ADMIN")]
    admin: Option<SocketAddr>,

    #[command(flatten)]
    output: OutputArgs,
}

/// A partition as people write it: `orders/3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionName {
    pub topic: String,
    pub partition: i32,
}

impl FromStr for PartitionName {
    type Err = String;

    fn from_str(text: &str) -> Result<PartitionName, String> {
        text.rsplit_once('/')
            .and_then(|(topic, number)| {
                let partition = number.parse().ok().filter(|&number| number >= 0)?;
                (!topic.is_empty()).then(|| PartitionName {
                    topic: topic.to_owned(),
                    partition,
                })
            })
            .ok_or_else(|| "write it as TOPIC/NUMBER, for instance orders/3".to_owned())
    }
}

pub(super) async fn run(context: &Context, command: PartitionCommand) -> CliResult {
    match command {
        PartitionCommand::Lead(args) => lead(context, &args).await,
    }
}

/// The status of an answer about a node that could not lead.
const NOT_IN_SYNC: u16 = 409;

/// How many nodes we let point us to another one before we call it a circle.
const REDIRECTS_MAX: usize = 4;

async fn lead(context: &Context, args: &LeadArgs) -> CliResult {
    let PartitionName { topic, partition } = &args.partition;
    let path = format!(
        "/v1/partitions/{}/{partition}/leader?node={}",
        escape_segment(topic),
        args.node
    );
    let admins = match args.admin {
        Some(addr) => Admins::given(addr),
        None => find_admins(&context.env, &connect(context).await?).await?,
    };
    let mut admin = admins.first();
    for _ in 0..=REDIRECTS_MAX {
        let answer = http::ask(&context.env, admin, "POST", &path)
            .await
            .map_err(|error| {
                CliError::failed(format!("cannot reach the admin port {admin}: {error}"))
                    .help("name one with --admin HOST:PORT; a node prints its own when it starts")
            })?;
        if answer.status == 200 {
            let answer: LeadAnswer = serde_json::from_str(&answer.body).map_err(|error| {
                CliError::failed(format!("cannot understand the admin port {admin}: {error}"))
            })?;
            return show(&answer, args.output.output);
        }
        let refusal: Refusal = serde_json::from_str(&answer.body).map_err(|_| {
            CliError::failed(format!(
                "{admin} answered {}: is it an admin port?",
                answer.status
            ))
        })?;
        match refusal
            .leader
            .and_then(|leader| admins.of(leader))
            .or(refusal.leader_admin)
        {
            Some(next) if answer.status == 421 && next != admin => admin = next,
            _ => {
                let mut error = CliError::failed(format!(
                    "node {} does not lead {topic}/{partition}: {}",
                    args.node, refusal.error
                ))
                .fact("asked", format!("the admin port {admin}"));
                if let Some(leader) = refusal.leader {
                    error = error.fact("leader", format!("node {leader}"));
                }
                let help = if answer.status == NOT_IN_SYNC {
                    format!(
                        "choose a node that is in sync, or wait until `corduroy topic describe \
                         {topic}` lists node {} in sync; its log says what keeps it out",
                        args.node
                    )
                } else {
                    format!("`corduroy topic describe {topic}` shows replicas and leaders")
                };
                return Err(error.help(help).into());
            }
        }
    }
    let error = CliError::failed(format!("no node admits to leading {topic}/{partition}"));
    Err(error.help("the leader may be moving; try again").into())
}

fn show(answer: &LeadAnswer, output: OutputFormat) -> CliResult {
    match output {
        OutputFormat::Json => print_json(answer)?,
        OutputFormat::Table => print(&format!(
            "{}/{} is led by node {} (epoch {})\n",
            answer.topic, answer.partition, answer.leader, answer.leader_epoch
        ))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let name: PartitionName = "a.b/c/12".parse().expect("the last slash counts");
        assert_eq!((name.topic.as_str(), name.partition), ("a.b/c", 12));
        for text in ["orders", "orders/", "/3", "orders/-1", "orders/x"] {
            assert!(text.parse::<PartitionName>().is_err(), "{text}");
        }
    }
}
