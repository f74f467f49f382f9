//! Scenario scripts: text that one can read aloud.
//!
//! One command a line, `#` begins a comment. A node is its number, or a name that `let` gave it;
//! `others` are the running nodes that the last `leader` did not name, lowest first.
//!
//! ```text
//! cluster N                 N nodes, started, one group of all of them
//! segment-bytes N           before `cluster`: how soon logs roll
//! patient                   before `cluster`: only a refused connection means down, and nobody
//!                           campaigns for a silence of less than a minute
//! one-by-one                before `cluster`: one entry a request, one request at a time
//! let NAME = leader [of A B ...]     waits for one leader that the running nodes (or these) agree on
//! let NAME = claimant of A B ...     waits for one of these to lead, whoever has heard of it
//! let NAME = other K        the K-th of the others
//! commit VALUE...           through whoever leads, until applied
//! propose NODE VALUE...     without waiting; each gets an outcome under its own name
//! wait VALUE... OUTCOME     applied | refused | discarded | appended | open (nothing but appended)
//! cut A B | cut A | heal    one link; all links of a node; all links
//! stop A B when C grows [N]      what A sends to B passes until C's log is one entry (or N) longer
//! stop A B when C holds VALUE    ... until C's log has an entry in that value's place
//! stop A B when C passes VALUE   ... or one beyond it; answers of B pass, and `heal` ends it
//! kill A... | start A...    the process; its disk stays
//! transfer FROM TO          leadership, and waits until TO leads
//! campaign A                asks for an election by the plain rules
//! purge A                   retention up to the last segment of that node's log
//! agree                     all running replicas: same log, offsets, tables
//! committed VALUE...        `agree`, and exactly these values, in this order
//! committed-end VALUE...    `agree`, and the log ends with these values
//! absent VALUE...           `agree`, and none of these is there
//! end A = N                 that node's next offset
//! holds A VALUE...          waits until A has an entry in that place on its disk
//! heard A VALUE N           waits until A, which leads, knows N voters that hold that place
//! unapplied VALUE...        no running replica has applied anything in that place
//! shorter A B               A's log ends before B's
//! started A                 the log of A does not begin at its beginning any more
//! leads A                   A leads
//! ```

use std::collections::BTreeMap;

use std::time::Duration;

use corduroy_raft::{ProposalOutcome, RaftConfig, RaftError, Role, Unfit};
use corduroy_record::{LogIndex, NodeId, Offset};
use corduroy_storage::LogConfig;

use super::{Cluster, PATIENCE, Stop, Ticket, batch, test_config, wait_for};

/// Runs one script to its end; panics with the line that failed.
pub async fn run_script(name: &str, text: &str) {
    let mut runner = Runner::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let place = format!("{name}:{}: {line}", number + 1);
        println!("{place}");
        let words: Vec<&str> = line.split_whitespace().collect();
        tokio::time::timeout(PATIENCE * 2, runner.step(&words, &place))
            .await
            .unwrap_or_else(|_| panic!("{place}: takes too long"));
    }
}

#[derive(Default)]
struct Runner {
    cluster: Option<Cluster>,
    names: BTreeMap<String, i32>,
    others: Vec<i32>,
    tickets: BTreeMap<String, Ticket>,
    log_config: Option<LogConfig>,
    patient: bool,
    one_by_one: bool,
}

impl Runner {
    fn config(&self) -> RaftConfig {
        let mut config = test_config();
        if self.patient {
            config.election_min = Duration::from_secs(60);
            config.election_max = Duration::from_secs(90);
            config.down_after = Duration::from_secs(60);
        }
        if self.one_by_one {
            config.append_entries_max = 1;
            config.append_window_requests = 1;
        }
        config
    }

    /// Where a proposed value lies in the log that took it.
    fn place_of(&self, value: &str, place: &str) -> LogIndex {
        let appended = self.tickets.get(value).and_then(Ticket::appended);
        appended
            .unwrap_or_else(|| panic!("{place}: {value} was not appended"))
            .index
    }

    fn stop(&mut self, from: &str, to: &str, node: &str, index: LogIndex) {
        let (from, to, node) = (self.node(from), self.node(to), self.node(node));
        self.cluster().links.stop(from, to, Stop { node, index });
    }

    fn cluster(&mut self) -> &mut Cluster {
        self.cluster
            .as_mut()
            .expect("a script begins with `cluster`")
    }

    fn node(&self, name: &str) -> i32 {
        match name.parse() {
            Ok(id) => id,
            Err(_) => *self
                .names
                .get(name)
                .unwrap_or_else(|| panic!("no node {name:?}")),
        }
    }

    fn nodes(&self, names: &[&str]) -> Vec<i32> {
        names.iter().map(|name| self.node(name)).collect()
    }

    async fn step(&mut self, words: &[&str], place: &str) {
        match words {
            ["segment-bytes", bytes] => {
                let segment_bytes = bytes.parse().expect("a number");
                self.log_config = Some(LogConfig {
                    segment_bytes,
                    ..LogConfig::default()
                });
            }
            ["patient"] => self.patient = true,
            ["one-by-one"] => self.one_by_one = true,
            ["cluster", count] => {
                let config = self.config();
                let mut cluster = Cluster::new(count.parse().expect("a number"), config);
                if let Some(config) = self.log_config {
                    for node in cluster.nodes.values_mut() {
                        node.log_config = config;
                    }
                }
                cluster.start_all().await;
                self.cluster = Some(cluster);
            }
            ["let", name, "=", "leader"] => {
                let among = self.cluster().running();
                self.bind_leader(name, &among).await;
            }
            ["let", name, "=", "leader", "of", among @ ..] => {
                let among = self.nodes(among);
                self.bind_leader(name, &among).await;
            }
            ["let", name, "=", "claimant", "of", among @ ..] => {
                let among = self.nodes(among);
                let cluster = self.cluster();
                let claimant = wait_for(place, || {
                    let leads = |id: &i32| cluster.replica(*id).view().role == Role::Leader;
                    among.iter().copied().find(leads)
                })
                .await;
                self.bind(name, claimant);
            }
            ["let", name, "=", "other", place] => {
                let place: usize = place.parse().expect("a number");
                self.names
                    .insert((*name).to_owned(), self.others[place - 1]);
            }
            ["commit", values @ ..] => self.cluster().commit(values).await,
            ["propose", node, values @ ..] => {
                let node = self.node(node);
                for value in values {
                    let ticket = self.cluster().propose(node, batch(value));
                    self.tickets.insert((*value).to_owned(), ticket);
                }
            }
            ["wait", values @ .., outcome] => {
                for value in values {
                    self.await_outcome(value, outcome, place).await;
                }
            }
            ["cut", a, b] => {
                let (a, b) = (self.node(a), self.node(b));
                self.cluster().links.cut(a, b);
            }
            ["cut", a] => {
                let a = self.node(a);
                let all: Vec<i32> = self.cluster().nodes.keys().copied().collect();
                for b in all {
                    self.cluster().links.cut(a, b);
                }
            }
            ["stop", from, to, "when", node, "grows", by @ ..] => {
                let by: u64 = match by {
                    [] => 1,
                    [by] => by.parse().expect("a number"),
                    _ => panic!("{place}: by how much?"),
                };
                let id = self.node(node);
                let end = self.cluster().log_end(id).expect("entries");
                self.stop(from, to, node, LogIndex::new(end.get() + by));
            }
            ["stop", from, to, "when", node, "holds", value] => {
                let index = self.place_of(value, place);
                self.stop(from, to, node, index);
            }
            ["stop", from, to, "when", node, "passes", value] => {
                let index = self.place_of(value, place).next();
                self.stop(from, to, node, index);
            }
            ["holds", node, values @ ..] => {
                let node = self.node(node);
                for value in values {
                    let index = self.place_of(value, place);
                    let cluster = self.cluster();
                    wait_for(place, || {
                        let durable = cluster.replica(node).log().state().durable_last;
                        (durable >= Some(index)).then_some(())
                    })
                    .await;
                }
            }
            ["heard", leader, value, copies] => {
                let (leader, copies) = (self.node(leader), copies.parse().expect("a number"));
                let index = self.place_of(value, place);
                let deadline = tokio::time::Instant::now() + PATIENCE;
                let replica = self.cluster().replica(leader);
                let heard = replica.wait_replicated(index, copies, deadline).await;
                assert!(heard, "{place}");
            }
            ["unapplied", values @ ..] => {
                for value in values {
                    let index = self.place_of(value, place);
                    let cluster = self.cluster();
                    for id in cluster.running() {
                        let view = cluster.replica(id).view();
                        assert!(view.applied < index, "{place}: node {id} has {view:?}");
                    }
                }
            }
            ["heal"] => self.cluster().links.heal_all(),
            ["kill", nodes @ ..] => {
                for node in self.nodes(nodes) {
                    self.cluster().kill(node).await;
                }
            }
            ["start", nodes @ ..] => {
                for node in self.nodes(nodes) {
                    self.cluster().start(node).await;
                }
            }
            ["transfer", from, to] => {
                let (from, to) = (self.node(from), self.node(to));
                let cluster = self.cluster();
                let target = super::replica_id(to);
                // Right after `heal` the target may still be held down.
                let deadline = tokio::time::Instant::now() + PATIENCE;
                while let Err(error) = cluster.replica(from).transfer_leader(Some(target)).await {
                    let patient = tokio::time::Instant::now() < deadline;
                    let passes = matches!(
                        error,
                        RaftError::NoTarget | RaftError::Unfit(Unfit::Down | Unfit::Silent)
                    );
                    assert!(patient && passes, "{place}: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                let among = cluster.running();
                assert_eq!(cluster.leader(&among).await, to, "{place}");
            }
            ["campaign", node] => {
                let node = self.node(node);
                self.cluster()
                    .replica(node)
                    .campaign()
                    .await
                    .expect("running");
            }
            ["purge", node] => {
                let node = self.node(node);
                let replica = self.cluster().replica(node);
                let boundaries = replica.log().segment_boundaries();
                assert!(
                    boundaries.len() > 1,
                    "{place}: the log has one segment only"
                );
                let last = boundaries[boundaries.len() - 1].first_index;
                let before = LogIndex::new(last.get() - 1);
                replica
                    .purge_to(before)
                    .await
                    .unwrap_or_else(|error| panic!("{place}: {error}"));
            }
            ["agree"] => {
                self.cluster().agree().await;
            }
            ["committed", values @ ..] => {
                let found = self.cluster().agree().await;
                assert_eq!(found, values, "{place}");
            }
            ["committed-end", values @ ..] => {
                let found = self.cluster().agree().await;
                assert!(found.len() >= values.len(), "{place}: only {found:?}");
                assert_eq!(found[found.len() - values.len()..], *values, "{place}");
            }
            ["absent", values @ ..] => {
                let found = self.cluster().agree().await;
                for value in values {
                    assert!(
                        !found.iter().any(|v| v == value),
                        "{place}: {value} is there"
                    );
                }
            }
            ["end", node, "=", offset] => {
                let (node, offset) = (self.node(node), offset.parse().expect("a number"));
                let cluster = self.cluster();
                wait_for(place, || {
                    (cluster.next_offset(node) == Offset::new(offset)).then_some(())
                })
                .await;
            }
            ["shorter", a, b] => {
                let (a, b) = (self.node(a), self.node(b));
                let cluster = self.cluster();
                assert!(cluster.log_end(a) < cluster.log_end(b), "{place}");
            }
            ["started", node] => {
                let node = self.node(node);
                let start = self.cluster().replica(node).log().state().log_start;
                assert!(start.index > LogIndex::new(0), "{place}: {start:?}");
            }
            ["leads", node] => {
                let node = self.node(node);
                let view = self.cluster().replica(node).view();
                assert_eq!(view.role, Role::Leader, "{place}");
                assert_eq!(view.leader.map(|(_, node)| node), Some(NodeId::new(node)));
            }
            _ => panic!("{place}: no such command"),
        }
    }

    async fn bind_leader(&mut self, name: &str, among: &[i32]) {
        let leader = self.cluster().leader(among).await;
        self.bind(name, leader);
    }

    fn bind(&mut self, name: &str, leader: i32) {
        self.others = self
            .cluster()
            .running()
            .into_iter()
            .filter(|id| *id != leader)
            .collect();
        self.names.insert(name.to_owned(), leader);
    }

    async fn await_outcome(&mut self, value: &str, outcome: &str, place: &str) {
        let ticket = self
            .tickets
            .get(value)
            .unwrap_or_else(|| panic!("{place}: not proposed"));
        match outcome {
            "appended" => {
                wait_for(place, || ticket.appended()).await;
            }
            "open" => {
                wait_for(place, || ticket.appended()).await;
                assert_eq!(ticket.outcome(), None, "{place}");
            }
            "applied" => {
                let found = ticket.wait().await;
                assert!(
                    matches!(found, ProposalOutcome::Applied(_)),
                    "{place}: {found:?}"
                );
            }
            "refused" => {
                let found = ticket.wait().await;
                assert!(
                    matches!(found, ProposalOutcome::NotAppended(_)),
                    "{place}: {found:?}"
                );
            }
            "discarded" => assert_eq!(ticket.wait().await, ProposalOutcome::Discarded, "{place}"),
            other => panic!("{place}: no outcome {other:?}"),
        }
    }
}
