//! `corduroy group`: list, describe, seek, delete.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, Subcommand};
use corduroy_client::{
    Admin, CommittedOffset, CommittedOffsets, Error, ErrorCode, ErrorKind, Isolation, OffsetSpec,
    TopicPartition,
};

use super::Context;
use super::connect::{client_error, connect, is_silence};
use super::error::{CliError, CliResult, Failures};
use super::group_seek::{Goal, Known, Move, Scope, target};
use super::group_view::{
    GroupRow, GroupView, LagRow, MemberRow, describe_text, list_text, plan_text, total_lag,
};
use super::output::{OutputArgs, OutputFormat, clean, plural, print, print_json};
use super::time::parse_instant;

#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List groups
    #[command(after_help = "\
Examples:
  corduroy group list
  corduroy group list -o json | jq -r '.[].group'")]
    List(ListArgs),
    /// Show a group: state, members, committed offsets and lag of each partition
    #[command(after_help = "\
Examples:
  corduroy group describe billing
  corduroy group describe billing -o json | jq .lag")]
    Describe(DescribeArgs),
    /// Move the committed offsets of a group that has no members; prints the plan first
    #[command(after_help = "\
Examples:
  corduroy group seek billing --to start --dry-run        only the plan
  corduroy group seek billing --to end                    skip what is there
  corduroy group seek billing --to @-1h                   the last hour again
  corduroy group seek billing --to -100 --topic orders/3  a hundred records back, one partition
  corduroy group seek billing --to start --topic new      a topic it has never read

No position goes outside of what a partition holds.")]
    Seek(SeekArgs),
    /// Delete groups with their committed offsets; they must have no members
    #[command(after_help = "\
Examples:
  corduroy group delete billing
  corduroy group delete billing payments")]
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct DescribeArgs {
    #[arg(value_name = "GROUP")]
    group: String,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct SeekArgs {
    #[arg(value_name = "GROUP")]
    group: String,

    /// Where to: start, end, +N or -N from the committed offset, an offset, @TIME
    #[arg(long, value_name = "POSITION", allow_hyphen_values = true)]
    to: Goal,

    /// Only this topic or partition; repeatable [default: all that the group has committed]
    #[arg(long = "topic", value_name = "TOPIC[/PARTITION]")]
    topics: Vec<Scope>,

    /// Only print the plan
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[arg(value_name = "GROUP", required = true)]
    groups: Vec<String>,
}

pub(super) async fn run(context: &Context, command: GroupCommand) -> CliResult {
    let client = connect(context).await?;
    let admin = client.admin();
    match command {
        GroupCommand::List(args) => list(&admin, &args).await,
        GroupCommand::Describe(args) => describe(&admin, &args).await,
        GroupCommand::Seek(args) => seek(context, &admin, &args).await,
        GroupCommand::Delete(args) => delete(&admin, &args).await,
    }
}

fn wrong(error: &Error, group: &str, what: &str) -> CliError {
    let cause = format!("cannot {what} the group `{group}`");
    match error.kind() {
        ErrorKind::Broker(ErrorCode::GroupIdNotFound) => {
            CliError::failed(format!("there is no group `{group}`"))
                .help("`corduroy group list` shows those that exist")
        }
        ErrorKind::Broker(ErrorCode::NonEmptyGroup | ErrorCode::UnknownMemberId) => {
            CliError::failed(format!("{cause}: it has members")).help(format!(
                "stop its members first; `corduroy group describe {group}` shows them"
            ))
        }
        _ => client_error(error, &cause),
    }
}

async fn list(admin: &Admin, args: &ListArgs) -> CliResult {
    let groups = admin
        .list_groups()
        .await
        .map_err(|error| client_error(&error, "cannot list groups"))?;
    let rows: Vec<GroupRow> = groups
        .into_iter()
        .map(|group| GroupRow {
            group: group.id,
            state: group.state,
            group_type: group.group_type,
            protocol_type: group.protocol_type,
            coordinator: group.coordinator,
        })
        .collect();
    match args.output.output {
        OutputFormat::Json => print_json(&rows)?,
        OutputFormat::Table => {
            print(&list_text(&rows))?;
            if rows.is_empty() {
                eprintln!("no groups yet; `corduroy consume TOPIC -g NAME` makes one");
            }
        }
    }
    Ok(())
}

async fn describe(admin: &Admin, args: &DescribeArgs) -> CliResult {
    let group = &args.group;
    let described = admin
        .describe_group(group)
        .await
        .map_err(|error| wrong(&error, group, "describe"))?;
    let committed = admin
        .group_offsets(group)
        .await
        .map_err(|error| wrong(&error, group, "read the offsets of"))?;
    let owners: BTreeMap<&TopicPartition, &str> = described
        .members
        .iter()
        .flat_map(|member| member.assignment.iter().map(|at| (at, member.id.as_str())))
        .collect();
    let all: BTreeSet<&TopicPartition> = committed.keys().chain(owners.keys().copied()).collect();
    let ends = ends(admin, &all).await;
    let partitions: Vec<LagRow> = all
        .into_iter()
        .map(|at| {
            let committed = committed.get(at);
            let (offset, end) = (committed.map(|committed| committed.offset), ends.get(at));
            let end = end.copied();
            LagRow {
                topic: at.topic.to_string(),
                partition: at.partition,
                committed_offset: offset,
                end_offset: end,
                lag: end.zip(offset).map(|(end, offset)| (end - offset).max(0)),
                member_id: owners.get(at).map(|owner| (*owner).to_owned()),
                metadata: committed.and_then(|committed| committed.metadata.clone()),
            }
        })
        .collect();
    let view = GroupView {
        group: described.id,
        state: described.state,
        group_type: described.group_type,
        protocol_type: described.protocol_type,
        assignor: Some(described.assignor).filter(|assignor| !assignor.is_empty()),
        epoch: described.epoch,
        coordinator: described.coordinator,
        lag: total_lag(&partitions),
        members: described
            .members
            .into_iter()
            .map(|member| MemberRow {
                member_id: member.id,
                instance_id: member.instance_id,
                client_id: member.client_id,
                host: member.host,
                partitions: member.assignment.len(),
            })
            .collect(),
        partitions,
    };
    match args.output.output {
        OutputFormat::Json => print_json(&view)?,
        OutputFormat::Table => print(&describe_text(&view))?,
    }
    Ok(())
}

/// The ends of those partitions whose topics are still there: a group outlives what it has read.
async fn ends(admin: &Admin, all: &BTreeSet<&TopicPartition>) -> BTreeMap<TopicPartition, i64> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for at in all {
        topics.entry(&at.topic).or_default().push(at.partition);
    }
    let mut ends = BTreeMap::new();
    for (topic, partitions) in topics {
        let (spec, isolation) = (OffsetSpec::Latest, Isolation::ReadUncommitted);
        match admin
            .list_offsets(topic, &partitions, spec, isolation)
            .await
        {
            Ok(listed) => {
                let found = listed.into_iter().filter_map(|(partition, listed)| {
                    Some((TopicPartition::new(topic, partition), listed.offset?))
                });
                ends.extend(found);
            }
            Err(error) => tracing::debug!(topic, %error, "no end offsets"),
        }
    }
    ends
}

async fn seek(context: &Context, admin: &Admin, args: &SeekArgs) -> CliResult {
    let group = &args.group;
    let committed = admin
        .group_offsets(group)
        .await
        .map_err(|error| wrong(&error, group, "read the offsets of"))?;
    let moves = plan(context, admin, args, &committed).await?;
    if moves.is_empty() {
        return Err(
            CliError::failed(format!("the group `{group}` has no offsets to move"))
                .help("--topic NAME names a topic that it has not read yet")
                .into(),
        );
    }
    match args.output.output {
        OutputFormat::Json => print_json(&moves)?,
        OutputFormat::Table => print(&plan_text(&moves))?,
    }
    if args.dry_run {
        eprintln!("nothing was moved (--dry-run)");
        return Ok(());
    }
    let offsets: CommittedOffsets = moves
        .iter()
        .map(|step| {
            let at = TopicPartition::new(step.topic.as_str(), step.partition);
            (at, CommittedOffset::at(step.to))
        })
        .collect();
    admin
        .set_group_offsets(group, &offsets)
        .await
        .map_err(|error| wrong(&error, group, "move"))?;
    let count = plural(offsets.len() as u64, "partition", "partitions");
    eprintln!("moved {count} of group {group}");
    Ok(())
}

/// Where each partition in question would go.
async fn plan(
    context: &Context,
    admin: &Admin,
    args: &SeekArgs,
    committed: &CommittedOffsets,
) -> CliResult<Vec<Move>> {
    let mut topics: BTreeMap<&str, BTreeSet<i32>> = BTreeMap::new();
    for at in committed.keys().filter(|_| args.topics.is_empty()) {
        topics.entry(&at.topic).or_default().insert(at.partition);
    }
    for scope in &args.topics {
        let name = &scope.topic;
        let wanted = topics.entry(name).or_default();
        let topic = admin
            .describe_topic(name)
            .await
            .map_err(|error| client_error(&error, &format!("cannot find the topic `{name}`")))?;
        let mut there = topic.partitions.iter().map(|row| row.partition);
        match scope.partition {
            Some(partition) if there.any(|known| known == partition) => {
                wanted.insert(partition);
            }
            Some(partition) => {
                let count = plural(topic.partitions.len() as u64, "partition", "partitions");
                let cause = format!("there is no partition {partition}: `{name}` has {count}");
                let help = format!("`corduroy topic describe {name}` shows its partitions");
                return Err(CliError::failed(cause).help(help).into());
            }
            None => wanted.extend(there),
        }
    }
    let time = match &args.to {
        Goal::Time(text) => {
            let now_ms = context.env.unix_millis();
            Some(parse_instant(text, now_ms).map_err(CliError::usage)?)
        }
        _ => None,
    };
    let mut moves = Vec::new();
    for (topic, partitions) in topics {
        let partitions: Vec<i32> = partitions.into_iter().collect();
        let list = async |spec| {
            let isolation = Isolation::ReadUncommitted;
            let listed = admin
                .list_offsets(topic, &partitions, spec, isolation)
                .await;
            listed.map_err(|error| {
                client_error(&error, &format!("cannot list the offsets of `{topic}`"))
            })
        };
        let starts = list(OffsetSpec::Earliest).await?;
        let ends = list(OffsetSpec::Latest).await?;
        let times = match time {
            Some(time) => list(OffsetSpec::Timestamp(time)).await?,
            None => BTreeMap::new(),
        };
        for &partition in &partitions {
            let offset = |listed: &BTreeMap<i32, corduroy_client::ListedOffset>| {
                listed.get(&partition).and_then(|listed| listed.offset)
            };
            let at = TopicPartition::new(topic, partition);
            let from = committed.get(&at).map(|committed| committed.offset);
            let known = Known {
                committed: from,
                start: offset(&starts).unwrap_or(0),
                end: offset(&ends).unwrap_or(0),
                at_time: offset(&times),
            };
            if let Some(to) = target(&args.to, known) {
                moves.push(Move {
                    topic: topic.to_owned(),
                    partition,
                    from,
                    to,
                    lag: (known.end - to).max(0),
                });
            }
        }
    }
    Ok(moves)
}

async fn delete(admin: &Admin, args: &DeleteArgs) -> CliResult {
    let mut failures = Failures::default();
    for group in &args.groups {
        let deleted = admin.delete_group(group).await;
        if deleted.is_ok() {
            eprintln!("deleted group {}", clean(group));
        }
        let is_silent = deleted.as_ref().is_err_and(is_silence);
        let deleted = deleted.map_err(|error| wrong(&error, group, "delete"));
        failures.take(deleted, is_silent)?;
    }
    failures.result()
}
