//! What `cluster status`, `cluster nodes` and `cluster health` print.

use std::fmt::Write;

use serde::Serialize;

use super::output::{Align, Grid, clean, plural};

/// A row of `cluster nodes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeRow {
    pub node: i32,
    /// Where clients reach it.
    pub address: String,
    pub rack: Option<String>,
    pub controller: bool,
    /// Its admin port; `None` where it does not tell or has none.
    pub admin: Option<String>,
    /// It answers us.
    pub reachable: bool,
    /// For how long it has not answered the cluster, if it is down.
    pub down_seconds: Option<u64>,
    /// Partitions that it leads.
    pub leaders: usize,
    /// Replicas that it holds.
    pub replicas: usize,
}

/// The table of `cluster nodes`.
pub fn nodes_text(nodes: &[NodeRow]) -> String {
    let mut grid = Grid::new(&[
        ("NODE", Align::Right),
        ("ADDRESS", Align::Left),
        ("RACK", Align::Left),
        ("STATE", Align::Left),
        ("LEADERS", Align::Right),
        ("REPLICAS", Align::Right),
        ("ADMIN", Align::Left),
    ]);
    for node in nodes {
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let state = match (node.reachable, node.down_seconds, node.controller) {
            (false, Some(seconds), _) => format!("down {}", elapsed_text(seconds)),
            (false, None, _) => "unreachable".to_owned(),
            (true, _, true) => "controller".to_owned(),
            (true, _, false) => "up".to_owned(),
        };
        grid.row([
            node.node.to_string(),
            node.address.clone(),
            dash(&node.rack),
            state,
            node.leaders.to_string(),
            node.replicas.to_string(),
            dash(&node.admin),
        ]);
    }
    grid.render()
}

/// For how long: the two largest units.
fn elapsed_text(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        (_, _, _) => format!("{days}d {}h", hours % 24),
    }
}

/// The answer of `cluster health`: derived from metadata and from who answers, so that it works on
/// any cluster and never contradicts `cluster nodes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HealthView {
    /// There is a controller and every partition has a leader.
    pub healthy: bool,
    pub reasons: Vec<String>,
    pub nodes: usize,
    /// Of those that `cluster nodes` shows.
    pub nodes_unreachable: usize,
    pub topics: usize,
    pub partitions: usize,
    pub leaderless: Vec<String>,
    pub under_replicated: Vec<String>,
}

/// What a partition says about its health.
#[derive(Clone, Debug)]
pub struct PartitionHealth {
    pub name: String,
    pub has_leader: bool,
    pub replicas: usize,
    pub in_sync: usize,
}

/// The most partitions that a reason names one by one.
const NAMED_MAX: usize = 10;

impl HealthView {
    /// Judges the metadata of a cluster.
    pub fn judge(
        nodes: usize,
        topics: usize,
        has_controller: bool,
        partitions: &[PartitionHealth],
    ) -> HealthView {
        let names = |pick: fn(&PartitionHealth) -> bool| -> Vec<String> {
            partitions
                .iter()
                .filter(|p| pick(p))
                .map(|p| p.name.clone())
                .collect()
        };
        let leaderless = names(|p| !p.has_leader);
        let under_replicated = names(|p| p.has_leader && p.in_sync < p.replicas);
        let mut reasons = Vec::new();
        if !has_controller {
            reasons.push("the controller has no leader".to_owned());
        }
        if !leaderless.is_empty() {
            reasons.push(format!("without a leader: {}", some_of(&leaderless)));
        }
        if !under_replicated.is_empty() {
            reasons.push(format!(
                "replicas out of sync: {}",
                some_of(&under_replicated)
            ));
        }
        HealthView {
            healthy: has_controller && leaderless.is_empty(),
            reasons,
            nodes,
            nodes_unreachable: 0,
            topics,
            partitions: partitions.len(),
            leaderless,
            under_replicated,
        }
    }

    /// Names the nodes that do not answer, as `/health/cluster` does: one that is missing degrades
    /// a cluster, and only what it leads makes it unhealthy.
    #[must_use]
    pub fn with_nodes(mut self, nodes: &[NodeRow]) -> HealthView {
        for node in nodes.iter().filter(|node| !node.reachable) {
            self.nodes_unreachable += 1;
            let NodeRow { node, address, .. } = node;
            self.reasons
                .push(format!("node {node} ({address}) is unreachable"));
        }
        self
    }

    /// What all the rest comes from.
    #[must_use]
    pub fn with_cause(mut self, cause: &str) -> HealthView {
        self.healthy = false;
        self.reasons.insert(0, cause.to_owned());
        self
    }

    /// Asks for a number of members too: a cluster that has not gathered yet is not healthy.
    #[must_use]
    pub fn with_nodes_min(mut self, nodes_min: usize) -> HealthView {
        if self.nodes < nodes_min {
            self.healthy = false;
            self.reasons
                .push(format!("{} of {nodes_min} nodes are members", self.nodes));
        }
        self
    }

    /// The answer for people.
    pub fn text(&self) -> String {
        let verdict = match (self.healthy, self.reasons.is_empty()) {
            (true, true) => "healthy",
            (true, false) => "healthy, degraded",
            (false, _) => "unhealthy",
        };
        let count = |count: usize, one: &str, many: &str| plural(count as u64, one, many);
        let counts = [
            // Nobody knows, where nobody hears a majority.
            (self.nodes > 0).then(|| count(self.nodes, "node", "nodes")),
            Some(count(self.topics, "topic", "topics")),
            Some(count(self.partitions, "partition", "partitions")),
        ];
        let counts: Vec<String> = counts.into_iter().flatten().collect();
        let mut text = format!("{verdict}: {}\n", counts.join(", "));
        for reason in &self.reasons {
            // Writing to a String can't fail.
            let _ = writeln!(text, "  {}", clean(reason));
        }
        text
    }
}

fn some_of(names: &[String]) -> String {
    let mut text = names
        .iter()
        .take(NAMED_MAX)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > NAMED_MAX {
        // Writing to a String can't fail.
        let _ = write!(text, " and {} more", names.len() - NAMED_MAX);
    }
    text
}

/// The answer of `cluster status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatusView {
    pub cluster_id: Option<String>,
    pub controller: Option<i32>,
    pub health: HealthView,
    pub nodes: Vec<NodeRow>,
}

impl StatusView {
    /// The answer for people.
    pub fn text(&self) -> String {
        let cluster_id = self.cluster_id.as_deref().unwrap_or("unknown");
        let controller = self
            .controller
            .map_or_else(|| "none".to_owned(), |node| format!("node {node}"));
        let health = self.health.text();
        let mut text = format!("cluster     {cluster_id}\ncontroller  {controller}\n{health}");
        if !self.nodes.is_empty() {
            text.push('\n');
            text.push_str(&nodes_text(&self.nodes));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(name: &str, has_leader: bool, in_sync: usize) -> PartitionHealth {
        PartitionHealth {
            name: name.to_owned(),
            has_leader,
            replicas: 3,
            in_sync,
        }
    }

    #[test]
    fn only_a_missing_leader_is_unhealthy() {
        let well = HealthView::judge(3, 1, true, &[partition("t/0", true, 3)]);
        assert!(well.healthy && well.reasons.is_empty());
        let degraded = HealthView::judge(3, 1, true, &[partition("t/0", true, 2)]);
        assert!(degraded.healthy);
        assert_eq!(degraded.reasons, ["replicas out of sync: t/0"]);
        let ill = HealthView::judge(3, 1, true, &[partition("t/0", false, 0)]);
        assert!(!ill.healthy);
        assert_eq!(ill.reasons, ["without a leader: t/0"]);
        assert!(!HealthView::judge(3, 0, false, &[]).healthy);
        let gathering = HealthView::judge(2, 0, true, &[]).with_nodes_min(3);
        assert!(!gathering.healthy);
        assert_eq!(gathering.reasons, ["2 of 3 nodes are members"]);
    }

    #[test]
    fn a_long_list_is_cut() {
        let partitions: Vec<_> = (0..12)
            .map(|number| partition(&format!("t/{number}"), false, 0))
            .collect();
        let health = HealthView::judge(1, 1, true, &partitions);
        assert!(
            health.reasons[0].ends_with("t/9 and 2 more"),
            "{:?}",
            health.reasons
        );
        assert_eq!(health.leaderless.len(), 12);
    }

    #[test]
    fn how_long_a_node_is_down() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (61, "1m 1s"),
            (7_380, "2h 3m"),
            (180_000, "2d 2h"),
        ];
        for (seconds, text) in cases {
            assert_eq!(elapsed_text(seconds), text);
        }
    }

    #[test]
    fn the_status_for_people() {
        let nodes = vec![
            NodeRow {
                node: 1,
                address: "127.0.0.1:9092".to_owned(),
                rack: None,
                controller: true,
                admin: Some("127.0.0.1:9644".to_owned()),
                reachable: true,
                down_seconds: None,
                leaders: 1,
                replicas: 1,
            },
            NodeRow {
                node: 2,
                address: "127.0.0.1:9093".to_owned(),
                rack: Some("r1".to_owned()),
                controller: false,
                admin: None,
                reachable: false,
                down_seconds: None,
                leaders: 0,
                replicas: 1,
            },
            NodeRow {
                node: 3,
                address: "127.0.0.1:9094".to_owned(),
                rack: None,
                controller: false,
                admin: None,
                reachable: false,
                down_seconds: Some(75),
                leaders: 0,
                replicas: 1,
            },
        ];
        let health = HealthView::judge(2, 1, true, &[partition("t/0", true, 2)]);
        let status = StatusView {
            cluster_id: Some("c".to_owned()),
            controller: Some(1),
            health: health.with_nodes(&nodes),
            nodes,
        };
        let expected = "\
cluster     c
controller  node 1
healthy, degraded: 2 nodes, 1 topic, 1 partition
  replicas out of sync: t/0
  node 2 (127.0.0.1:9093) is unreachable
  node 3 (127.0.0.1:9094) is unreachable

NODE  ADDRESS         RACK  STATE        LEADERS  REPLICAS  ADMIN
   1  127.0.0.1:9092  -     controller         1         1  127.0.0.1:9644
   2  127.0.0.1:9093  r1    unreachable        0         1  -
   3  127.0.0.1:9094  -     down 1m 15s        0         1  -
";
        assert_eq!(status.text(), expected);
    }
}
