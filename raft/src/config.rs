//! What a shard's Raft is told from outside: timing, limits, who it is, where its peers listen.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corduroy_record::NodeId;
use tokio::sync::watch;
use uuid::Uuid;

use crate::incarnations::{Incarnations, Speaker, TwinRefusal};
use crate::wire::Hello;

/// Timing and limits. The defaults are for a data centre; tests shorten them.
///
/// openraft's own timers are the slow fallback: what makes a failover fast is the failure
/// detector (`ping_interval`, `down_after`).
#[derive(Clone, Debug)]
pub struct RaftConfig {
    /// How often an awake leader tells a quiet follower that it lives.
    pub heartbeat: Duration,
    /// Shortest election timeout of the fallback; above twice the heartbeat.
    pub election_min: Duration,
    /// Longest election timeout of the fallback. Also the leader's lease: a leader that has not
    /// heard a majority for this long takes no writes.
    pub election_max: Duration,
    /// Interval of the failure detector's pings.
    pub ping_interval: Duration,
    /// Silence after which a node counts as down.
    pub down_after: Duration,
    /// A node that has heard no majority for this long counts itself as isolated.
    pub isolated_after: Duration,
    /// A group without traffic for this long goes to sleep.
    pub hibernate_after: Duration,
    /// How often a sleeping group's leader says that it still runs; three misses wake a follower.
    pub asleep_beat: Duration,
    /// How long a proposal that met an expired lease is held, and proposed again, before it fails.
    pub propose_hold_max: Duration,
    /// A read barrier that no majority confirms in this time fails.
    pub read_barrier_max: Duration,
    /// A peer that does not answer an append for this long is given up and dialled again.
    pub append_reply_max: Duration,
    /// Deadline of one dial, hello included.
    pub connect_max: Duration,
    /// Least pause between two dials that failed.
    pub reconnect_min: Duration,
    /// Greatest pause between two dials that failed.
    pub reconnect_max: Duration,
    /// How long the survey before a fast failover waits for the other voters' answers.
    pub survey_max: Duration,
    /// Pause between two attempts of a fast failover; each replica adds a random share.
    pub failover_retry: Duration,
    /// How long a leadership transfer may take before the leader takes its leadership back.
    pub transfer_max: Duration,
    /// Bytes of entries that one append request carries, unless a single entry is larger.
    pub append_bytes_max: usize,
    /// Bytes of entries in flight to one follower of one group.
    pub append_window_bytes: usize,
    /// Append requests in flight to one follower of one group.
    pub append_window_requests: usize,
    /// Entries that one append request carries.
    pub append_entries_max: u64,
    /// Proposals of one replica that openraft holds at once; more wait at the door.
    pub propose_window: usize,
    /// Bytes of snapshot tables that one frame carries.
    pub snapshot_chunk_bytes: usize,
    /// Entries that purging keeps below the applied index. A purge that overtakes a queued apply
    /// and takes its first entry panics in openraft (#2116). One is enough against that: a queued
    /// apply begins behind what is applied by then, so behind what was applied when the purge was
    /// asked for, and the purge ends this far below that. More would only purge later.
    pub purge_behind_applied: u64,
}

impl Default for RaftConfig {
    fn default() -> Self {
        RaftConfig {
            heartbeat: Duration::from_millis(500),
            election_min: Duration::from_millis(1500),
            election_max: Duration::from_millis(3000),
            ping_interval: Duration::from_millis(100),
            down_after: Duration::from_millis(500),
            isolated_after: Duration::from_millis(2500),
            hibernate_after: Duration::from_secs(5),
            asleep_beat: Duration::from_secs(5),
            propose_hold_max: Duration::from_secs(1),
            read_barrier_max: Duration::from_secs(1),
            append_reply_max: Duration::from_secs(10),
            connect_max: Duration::from_secs(1),
            reconnect_min: Duration::from_millis(10),
            reconnect_max: Duration::from_millis(500),
            survey_max: Duration::from_millis(30),
            failover_retry: Duration::from_millis(60),
            transfer_max: Duration::from_secs(1),
            append_bytes_max: 1 << 20,
            append_window_bytes: 4 << 20,
            append_window_requests: 8,
            append_entries_max: 512,
            propose_window: 1024,
            snapshot_chunk_bytes: 1 << 20,
            purge_behind_applied: 1,
        }
    }
}

/// The cluster that this node belongs to, unknown until it has formed or joined one. Set once.
#[derive(Clone, Debug, Default)]
pub struct ClusterTag(Arc<OnceLock<Uuid>>);

impl ClusterTag {
    /// A tag that is not known yet.
    pub fn unknown() -> ClusterTag {
        ClusterTag::default()
    }

    /// Sets the cluster's id; `false` if another one was set before.
    pub fn set(&self, cluster: Uuid) -> bool {
        *self.0.get_or_init(|| cluster) == cluster
    }

    /// The cluster's id, if known.
    pub fn get(&self) -> Option<Uuid> {
        self.0.get().copied()
    }
}

/// Who speaks.
#[derive(Clone, Debug)]
pub struct Identity {
    /// This node.
    pub node: NodeId,
    /// Random in each process, so that peers tell a restart from a short silence.
    pub incarnation: u64,
    /// This shard, from 0.
    pub shard: u16,
    /// Shards of this node.
    pub shards: u16,
    /// The cluster, once known.
    pub cluster: ClusterTag,
    /// Who speaks for the other nodes; one table for all shards.
    pub incarnations: Incarnations,
}

impl Identity {
    /// This process is the one of its node: another one that asks for its place is refused.
    pub(crate) fn refuse_own(&self, theirs: &Hello) -> Result<(), TwinRefusal> {
        if theirs.node != self.node || theirs.incarnation == self.incarnation {
            return Ok(());
        }
        self.incarnations.tell_of_own(Speaker::of(theirs));
        Err(TwinRefusal::AnotherLives)
    }
}

/// Where each node's RPC listener is, and which nodes have left for good. Each is one image, replaced
/// on change; readers never wait.
#[derive(Clone, Debug)]
pub struct AddressBook {
    addresses: watch::Sender<Arc<BTreeMap<NodeId, SocketAddr>>>,
    left: watch::Sender<Arc<BTreeSet<NodeId>>>,
}

impl AddressBook {
    /// An empty book.
    pub fn new() -> AddressBook {
        AddressBook {
            addresses: watch::Sender::new(Arc::default()),
            left: watch::Sender::new(Arc::default()),
        }
    }

    /// Enters or replaces a node's address.
    pub fn set(&self, node: NodeId, addr: SocketAddr) {
        self.addresses.send_if_modified(|book| {
            if book.get(&node) == Some(&addr) {
                return false;
            }
            Arc::make_mut(book).insert(node, addr);
            true
        });
    }

    /// Strikes a node out.
    pub fn remove(&self, node: NodeId) {
        self.addresses.send_if_modified(|book| {
            book.contains_key(&node) && Arc::make_mut(book).remove(&node).is_some()
        });
    }

    /// Notes that `node` has left the cluster and that its id never returns. One that has no address
    /// may only not be known yet.
    pub fn retire(&self, node: NodeId) {
        self.left
            .send_if_modified(|left| !left.contains(&node) && Arc::make_mut(left).insert(node));
    }

    /// Whether `node` has left for good.
    pub fn has_left(&self, node: NodeId) -> bool {
        self.left.borrow().contains(&node)
    }

    /// Where `node` listens.
    pub fn get(&self, node: NodeId) -> Option<SocketAddr> {
        self.addresses.borrow().get(&node).copied()
    }

    /// All known nodes.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.addresses.borrow().keys().copied().collect()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<BTreeMap<NodeId, SocketAddr>>> {
        self.addresses.subscribe()
    }
}

impl Default for AddressBook {
    fn default() -> Self {
        Self::new()
    }
}

/// What openraft is configured with. The laws behind it: DESIGN.md 6 and 12.2.
pub(crate) fn openraft_config(config: &RaftConfig) -> Result<openraft::Config, String> {
    let millis = |duration: Duration| duration.as_millis().min(u128::from(u64::MAX)) as u64;
    let heartbeat = millis(config.heartbeat).max(1);
    let min_interval = heartbeat / 2;
    openraft::Config {
        cluster_name: "corduroy".to_owned(),
        election_timeout_min: millis(config.election_min),
        election_timeout_max: millis(config.election_max),
        heartbeat_interval: heartbeat,
        heartbeat_min_interval: Some(min_interval),
        install_snapshot_timeout: millis(config.append_reply_max) * 6,
        max_payload_entries: config.append_entries_max,
        snapshot_policy: openraft::SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        purge_batch_size: 1,
        api_channel_size: Some(1024),
        notification_channel_size: Some(1024),
        state_machine_channel_size: Some(64),
        // openraft keeps six rings of this size for statistics that are compiled out: by default
        // 147 KB for each replica.
        log_stage_capacity: Some(1),
        // Leadership is transferred away before a leader is removed.
        removed_leader_step_down: openraft::StepDownPolicy::Never,
        quorum_loss_probe_interval: None,
        enable_pre_vote: Some(true),
        backoff: "10ms 20ms 40ms ..500ms".to_owned(),
        // Law 2: a leader that lost its instance leads again only in a new term.
        enable_leader_restore: Some(false),
        ..openraft::Config::default()
    }
    .validate()
    .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_a_configuration_that_openraft_takes() {
        let config = openraft_config(&RaftConfig::default()).expect("valid");
        assert_eq!(config.enable_leader_restore, Some(false));
        assert_eq!(config.enable_pre_vote, Some(true));
    }

    #[test]
    fn the_book_tells_a_change_once() {
        let book = AddressBook::new();
        let mut seen = book.subscribe();
        let addr: SocketAddr = "127.0.0.1:1".parse().expect("address");
        book.set(NodeId::new(1), addr);
        assert!(seen.has_changed().expect("open"));
        seen.mark_unchanged();
        book.set(NodeId::new(1), addr);
        assert!(!seen.has_changed().expect("open"));
        assert_eq!(book.get(NodeId::new(1)), Some(addr));
        book.remove(NodeId::new(1));
        assert_eq!(book.get(NodeId::new(1)), None);
    }

    #[test]
    fn a_cluster_tag_is_set_once() {
        let tag = ClusterTag::unknown();
        assert!(tag.set(Uuid::from_u128(1)));
        assert!(tag.set(Uuid::from_u128(1)));
        assert!(!tag.set(Uuid::from_u128(2)));
    }
}
