//! One partition's replica on its shard: leadership and order at the door, what clients may see.
//!
//! Produce: `produce.rs`. Fetch: `fetch.rs`. Offsets and epochs: `offsets.rs`. What the log
//! decides for every replica: `machine.rs` and `producers.rs`.

mod fetch;
mod in_flight;
mod internal;
mod machine;
mod offsets;
mod pending;
mod produce;
mod producers;
mod retention;
mod settings;

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use corduroy_env::Env;
use corduroy_env::planted::{self, Bug};
use corduroy_protocol::ErrorCode;
use corduroy_raft::{Replica, ReplicaView, Role};
use corduroy_record::{GroupId, LeaderEpoch, NodeId, Offset, TopicPartition};
use tokio::sync::Notify;
use tracing::Span;

pub use fetch::{FetchSpec, Fetched, Isolation};
pub use machine::{Changes, PartitionCommand, PartitionMachine};
pub use offsets::{EpochEnd, FoundOffset, OffsetTarget};
pub use produce::{Acks, ProduceSpec, Produced};
pub use settings::{PartitionSettings, TimestampType};

use in_flight::InFlight;
use produce::Line;
use retention::Purges;

/// Why a partition did not do what a client asked, in Kafka's words.
#[derive(Clone, Debug)]
pub struct PartitionError {
    /// Kafka's error code.
    pub code: ErrorCode,
    /// One sentence for people; empty where the code says it all.
    pub message: String,
    /// Where to go instead (KIP-951), if known.
    pub leader: Option<(NodeId, LeaderEpoch)>,
    /// First offset that can be read, where the asked one is out of range.
    pub log_start: Option<Offset>,
}

impl PartitionError {
    /// An error with a sentence.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            leader: None,
            log_start: None,
        }
    }

    /// The error of a node that does not host the partition.
    pub fn code(code: ErrorCode) -> Self {
        Self::new(code, "")
    }
}

/// The four offsets of a partition, as clients know them.
///
/// Law: `log_start <= last_stable <= high_watermark <= log_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// First offset that can be read.
    pub log_start: Offset,
    /// End of what a `read_committed` consumer sees. Equals the high watermark until
    /// transactions exist.
    pub last_stable: Offset,
    /// End of what is committed and applied.
    pub high_watermark: Offset,
    /// End of the log.
    pub log_end: Offset,
}

/// A partition's replica on this node. Lives on one shard; everyone else sends a message.
pub struct Partition {
    name: TopicPartition,
    env: Env,
    replica: Replica,
    machine: Rc<RefCell<PartitionMachine>>,
    settings: Cell<PartitionSettings>,
    in_flight: RefCell<InFlight>,
    waiting: RefCell<Line>,
    purges: RefCell<Purges>,
    role_changed: Rc<Notify>,
    news: Rc<Notify>,
    closed: Cell<bool>,
}

impl Partition {
    /// Wraps an opened replica. `machine` is the one that the replica applies to, `role_changed`
    /// the one that it was made with; `news` is notified when the leadership may have changed.
    pub fn new(
        env: Env,
        name: TopicPartition,
        replica: Replica,
        machine: Rc<RefCell<PartitionMachine>>,
        settings: PartitionSettings,
        role_changed: Rc<Notify>,
        news: Rc<Notify>,
    ) -> Rc<Partition> {
        Rc::new(Partition {
            name,
            env,
            replica,
            machine,
            settings: Cell::new(settings),
            in_flight: RefCell::default(),
            waiting: RefCell::default(),
            purges: RefCell::default(),
            role_changed,
            news,
            closed: Cell::new(false),
        })
    }

    /// The partition as users name it.
    pub fn name(&self) -> &TopicPartition {
        &self.name
    }

    /// Its Raft group.
    pub fn group(&self) -> GroupId {
        self.replica.group()
    }

    /// Its replica.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The span of lines about it: topic, partition, epoch, below those of node and shard.
    pub fn span(&self) -> Span {
        self.replica.span()
    }

    /// What its log says, as applied here.
    pub fn machine(&self) -> Ref<'_, PartitionMachine> {
        self.machine.borrow()
    }

    /// Takes changed settings; segment sizes apply from the next segment on.
    pub fn configure(&self, settings: PartitionSettings) {
        if self.settings.replace(settings) != settings {
            self.replica.log().set_config(settings.log_config());
            self.role_changed.notify_one();
        }
    }

    /// The four offsets.
    pub fn watermarks(&self) -> Watermarks {
        let machine = self.machine.borrow();
        let (log_start, mut high_watermark) = (machine.log_start(), machine.high_watermark());
        let log_end = self.replica.log().state().next_offset.max(high_watermark);
        if planted::is(Bug::WatermarkIsLogEnd) {
            high_watermark = log_end;
        }
        assert!(
            log_start <= high_watermark,
            "law: the log starts below its high watermark"
        );
        Watermarks {
            log_start,
            last_stable: high_watermark,
            high_watermark,
            log_end,
        }
    }

    /// Voters that keep up, leader first; empty where this replica does not lead.
    pub fn in_sync(&self) -> Vec<NodeId> {
        self.replica
            .in_sync(self.settings.get().replica_lag_max)
            .into_iter()
            .map(|(_, node)| node)
            .collect()
    }

    /// Serves the partition until it is closed: whatever waits for leadership goes on when it
    /// comes. No clock runs in here: an idle partition costs nothing.
    pub async fn run(self: Rc<Self>) {
        while !self.closed.get() {
            self.role_changed.notified().await;
            self.news.notify_one();
            self.drain_waiting();
            self.purge_decided();
        }
        self.drain_waiting();
    }

    /// Ends [`Partition::run`]; whatever waits is answered with NOT_LEADER_OR_FOLLOWER.
    pub fn close(&self) {
        self.closed.set(true);
        self.role_changed.notify_one();
        self.machine.borrow().changes().wake();
    }

    /// Whether it has been closed.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Whether this replica leads and may serve: its own term's first entry is applied.
    fn leading(&self, view: &ReplicaView) -> Result<bool, PartitionError> {
        if self.closed.get() || view.role != Role::Leader {
            return Err(self.not_leader(view));
        }
        Ok(view.leader_ready)
    }

    fn not_leader(&self, view: &ReplicaView) -> PartitionError {
        let elsewhere = view
            .leader
            .is_some_and(|(replica, _)| replica != self.replica.id());
        let leader = hint(view).filter(|_| elsewhere);
        let message = match (self.machine.borrow().stopped(), leader) {
            (Some(reason), _) => format!("the replica of {} stopped: {reason}", self.name),
            (None, Some((node, _))) => format!("node {node} leads {}", self.name),
            (None, None) => format!("{} has no leader that this node knows", self.name),
        };
        PartitionError {
            code: ErrorCode::NotLeaderOrFollower,
            message,
            leader,
            log_start: None,
        }
    }

    /// Kafka's check of a client's idea of the epoch (KIP-320); below 0 is "no idea".
    fn check_epoch(&self, view: &ReplicaView, asked: LeaderEpoch) -> Result<(), PartitionError> {
        let known = view.epoch;
        if asked.get() < 0 || asked == known {
            return Ok(());
        }
        let code = if asked > known {
            ErrorCode::UnknownLeaderEpoch
        } else {
            ErrorCode::FencedLeaderEpoch
        };
        let leader = hint(view);
        let message = format!("the leader epoch of {} is {known}, not {asked}", self.name);
        Err(PartitionError {
            code,
            message,
            leader,
            log_start: None,
        })
    }
}

/// Where to go instead (KIP-951): the leader with its own epoch, or nobody. The epoch that clients
/// are shown is that of the last applied entry; between a vote and the new leader's first entry it
/// belongs to the leader before, and a client that is given the two together believes neither news
/// that follows.
fn hint(view: &ReplicaView) -> Option<(NodeId, LeaderEpoch)> {
    let (_, node) = view.leader?;
    (view.epoch == LeaderEpoch::from_term(view.term)).then_some((node, view.epoch))
}

#[cfg(test)]
mod tests {
    use corduroy_record::{LogIndex, ReplicaId, Term};

    use super::*;

    #[test]
    fn a_leader_is_named_with_its_own_epoch_or_not_at_all() {
        let view = |term: u64, epoch: i32, leader: Option<i32>| ReplicaView {
            role: Role::Follower,
            term: Term::new(term),
            leader: leader.map(|node| (ReplicaId::new(7), NodeId::new(node))),
            leader_ready: false,
            lease_valid: false,
            epoch: LeaderEpoch::new(epoch),
            applied: LogIndex::new(9),
            high_watermark: Offset::new(9),
        };
        assert_eq!(
            hint(&view(16, 16, Some(1))),
            Some((NodeId::new(1), LeaderEpoch::new(16)))
        );
        assert_eq!(hint(&view(16, 15, Some(1))), None, "15 was another's epoch");
        assert_eq!(hint(&view(16, 16, None)), None);
    }
}
