//! The rows of the suite that measure coordinators.

use corduroy_client::Client;
use corduroy_env::Env;

use super::commits::{self, CommitsArgs};
use super::group::{self, GroupArgs, ProtocolArg};
use super::report::AnyReport;
use super::suite::SuiteArgs;
use crate::cli::{CliResult, Interrupt, plural};

/// Commits that are made before they count.
const WARM_UP: std::time::Duration = std::time::Duration::from_secs(1);

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupsRow {
    Commits {
        groups: u32,
        partitions: i32,
        in_flight: u32,
    },
    Group {
        protocol: ProtocolArg,
        members: u32,
        partitions: i32,
    },
}

/// The tables that rows stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    Commits,
    Groups,
}

/// The rows: those that docs/benchmarks.md sets beside Apache Kafka, and what shows how they scale. Those
/// of the large topic come last: what it leaves behind would be in the others.
pub(super) fn rows() -> Vec<GroupsRow> {
    let commits = [
        (1, 1, 1),
        (64, 1, 1),
        (64, 10, 1),
        (64, 1, 16),
        (1000, 1, 1),
    ];
    let mut rows: Vec<GroupsRow> = commits
        .into_iter()
        .map(|(groups, partitions, in_flight)| GroupsRow::Commits {
            groups,
            partitions,
            in_flight,
        })
        .collect();
    for (members, partitions) in [(100, 100), (1000, 1000)] {
        for protocol in [ProtocolArg::Classic, ProtocolArg::Consumer] {
            rows.push(GroupsRow::Group {
                protocol,
                members,
                partitions,
            });
        }
    }
    rows
}

impl GroupsRow {
    pub(super) fn name(&self) -> String {
        match *self {
            GroupsRow::Commits {
                groups,
                partitions,
                in_flight,
            } => format!(
                "commits by {}, {} each, {in_flight} in flight",
                plural(groups.into(), "group", "groups"),
                plural(
                    u64::from(partitions.unsigned_abs()),
                    "partition",
                    "partitions"
                ),
            ),
            GroupsRow::Group {
                protocol,
                members,
                partitions,
            } => format!(
                "group of {members} members, {partitions} partitions, {} protocol",
                protocol.name()
            ),
        }
    }

    pub(super) fn table(&self) -> Table {
        match self {
            GroupsRow::Commits { .. } => Table::Commits,
            GroupsRow::Group { .. } => Table::Groups,
        }
    }

    pub(super) fn head(&self) -> String {
        match self.table() {
            Table::Commits => commits::markdown_head(),
            Table::Groups => group::report::markdown_head(),
        }
    }

    pub(super) async fn measure(
        &self,
        env: &Env,
        client: &Client,
        suite: &SuiteArgs,
        pids: &[u32],
        interrupt: &mut Interrupt,
    ) -> CliResult<AnyReport> {
        let replication = Some(i16::from(suite.nodes.min(3)));
        let duration = suite.duration;
        match *self {
            GroupsRow::Commits {
                groups,
                partitions,
                in_flight,
            } => {
                let args = CommitsArgs {
                    groups,
                    partitions,
                    in_flight,
                    replication,
                    duration,
                    warm_up: WARM_UP,
                    watch_pid: Vec::new(),
                    json: false,
                };
                let report = commits::measure(env, client, &args, pids, interrupt).await?;
                Ok(report.into())
            }
            GroupsRow::Group {
                protocol,
                members,
                partitions,
            } => {
                let args = GroupArgs {
                    members,
                    partitions,
                    protocol,
                    replication,
                    duration,
                    watch_pid: Vec::new(),
                    json: false,
                };
                let report = group::measure(env, client, &args, pids, interrupt).await?;
                Ok(report.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_tables_are_not_torn() {
        let rows = rows();
        let names: HashSet<String> = rows.iter().map(GroupsRow::name).collect();
        assert_eq!(names.len(), rows.len());
        let mut tables: Vec<Table> = rows.iter().map(GroupsRow::table).collect();
        tables.dedup();
        assert_eq!(tables, [Table::Commits, Table::Groups]);
    }
}
