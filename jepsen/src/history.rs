//! What a run observed, in the order in which it was observed: every call of every client, every
//! fault, and a few marks. The checker and the report read nothing else.
//!
//! A history is a file of JSON lines (see [`HistoryWriter`] and [`History::read`]): first a
//! [`Header`], then an [`Event`] per line. A call takes two lines, [`Invocation`] before it is made
//! and [`Completion`] once its answer is known; a call without a completion is *unknown*.
//!
//! Times are nanoseconds of one monotonic clock since the run began, so they may be compared across
//! workers. They are read **before** a call is made and **after** its answer arrived.

mod file;
mod key;
mod payload;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use file::{HistoryError, HistoryWriter};
pub use key::{Key, KeyError};
pub use payload::{PAYLOAD_BYTES, Payload, PayloadError, WRITERS_MAX};

/// The format of history files. A reader refuses any other.
pub const FORMAT: u32 = 1;

/// Nanoseconds of the run's monotonic clock, from the run's start.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The whole and part seconds, for people.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    pub fn from_seconds(seconds: f64) -> Nanos {
        Nanos((seconds * 1e9) as u64)
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A place from which calls are made one after the other. It lives as long as the run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct WorkerId(pub u32);

/// One life of a client. A worker that opens a new client (after a crash, real or staged) takes a
/// new process id, so what is said about the order within a process never spans two clients.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ProcessId(pub u32);

/// What a record carried. Unique in the whole run; see [`Payload`] for its bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Value(pub u64);

/// One transaction of one producer; unique in the run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TxnId(pub u64);

/// One line of a history file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The first line, and only the first.
    Header(Header),
    Invoke(Invocation),
    Complete(Completion),
    Fault(FaultEvent),
    Mark(Mark),
}

/// What was asked for. A history can be judged again from its file alone, so everything that
/// decides a verdict stands here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// `queue`, `register`, `list-append`, `topics`, ...
    pub workload: String,
    /// Ids of the nodes at the start.
    pub nodes: Vec<u32>,
    pub seed: u64,
    /// Unix time of the run's start, in milliseconds. For people only.
    #[serde(default)]
    pub started_unix_millis: i64,
    pub settings: ClientSettings,
    pub plan: Plan,
}

/// What a run was meant to reach.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Names of the faults that were asked for, as [`FaultEvent::fault`] names them. Empty: none.
    pub faults: Vec<String>,
    /// For how long clients were to be loaded, in seconds, without start and final read.
    pub load_seconds: u64,
    /// Below this, a run without violations is "too little coverage", not a pass.
    pub minima: Minima,
    /// Names of faults that `all` stood for and that were not possible on that machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// By fault: the manners in which it has to have come, each at least once.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub manners: BTreeMap<String, Vec<String>>,
}

/// The least that a run has to have seen before its silence means something. All zero: anything
/// goes, for histories made by hand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Minima {
    /// How often each fault of the plan has to have taken hold.
    pub times_each_fault: u32,
    /// Acknowledged writes while a fault was active; in a run without faults, at all.
    pub writes_in_faults: u64,
    /// Successful reads while a fault was active; in a run without faults, at all.
    pub reads_in_faults: u64,
    /// How often each fault of the plan has to have outlasted what [`FaultKind::outlasts`] says.
    ///
    /// [`FaultKind::outlasts`]: crate::faults::FaultKind::outlasts
    #[serde(default)]
    pub long_holds: u32,
    /// Whether every partition must have been read to its end by a fresh client and on every node.
    pub final_read: bool,
    /// Whether entries of the controller's log, and of `__consumer_offsets`, have to have been
    /// compared between stopped nodes.
    #[serde(default)]
    pub controller_compared: bool,
    #[serde(default)]
    pub offsets_compared: bool,
    /// What a run with groups has to have seen of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupMinima>,
}

/// The least that a run has to have seen of its groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMinima {
    /// Generations in which partitions were given out, of all groups together.
    pub rebalances: u64,
    /// Acknowledged commits while a fault was active; in a run without faults, at all.
    pub commits_in_faults: u64,
    /// How often a coordinator gave way to the next one.
    pub coordinator_changes: u64,
    /// Partitions that have to be read to the end by each group after the heal.
    pub drained: u64,
}

/// How the clients were set up: decides which anomalies are legal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientSettings {
    pub acks: Acks,
    /// `enable.idempotence`
    pub idempotence: bool,
    /// Whether a client may send a batch again by itself.
    pub retries: bool,
    /// `max.in.flight.requests.per.connection`
    pub in_flight_max: u32,
    pub isolation: Isolation,
    pub assignment: Assignment,
    pub replication_factor: u32,
    pub min_insync_replicas: u32,
    /// Whether a replica that lacks acknowledged records may be made leader.
    pub unclean_election: bool,
    pub flush: Flush,
    /// Whether records may leave the log by age, size or DeleteRecords.
    pub retention: bool,
    pub compaction: bool,
    pub transactions: Transactions,
    /// Which client made the calls, for people.
    pub client: String,
}

impl Default for ClientSettings {
    /// The safe profile: what a user gets who asks for nothing, as consumers read committed data.
    fn default() -> ClientSettings {
        ClientSettings {
            acks: Acks::All,
            idempotence: true,
            retries: true,
            in_flight_max: 5,
            isolation: Isolation::ReadCommitted,
            assignment: Assignment::Assign,
            replication_factor: 3,
            min_insync_replicas: 2,
            unclean_election: false,
            flush: Flush::BeforeAck,
            retention: false,
            compaction: false,
            transactions: Transactions::None,
            client: "corduroy".to_owned(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Acks {
    #[serde(rename = "0")]
    None,
    #[serde(rename = "1")]
    Leader,
    #[serde(rename = "all")]
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    ReadUncommitted,
    ReadCommitted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assignment {
    /// Consumers choose their partitions.
    Assign,
    /// A group gives them out: they may move between two polls.
    Subscribe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flush {
    /// On disk before the answer: power loss loses nothing that was acknowledged.
    BeforeAck,
    /// `flush.policy=relaxed`: power loss of a majority may.
    Relaxed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transactions {
    None,
    /// Before KIP-890: a late EndTxn can meet the next transaction (KAFKA-17754).
    V1,
    /// KIP-890: a new producer epoch for each transaction.
    V2,
}

/// A call about to be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invocation {
    /// Unique in the run, and ascending in the order of the file.
    pub id: u64,
    pub worker: WorkerId,
    pub process: ProcessId,
    /// Before the call was made.
    pub at: Nanos,
    pub call: Call,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// One record. Answer: [`Answer::Sent`].
    Send(SendRecord),
    /// Whatever lies at the process' positions. Answer: [`Answer::Read`], in which a partition
    /// without records may be left out. `keys` are those polled.
    Poll {
        keys: Vec<Key>,
    },
    /// The whole log, from its start to the end that the leader names **after** the invocation.
    /// The linearizable read of `list-append` and `register`. Answer: [`Answer::Read`].
    ReadAll {
        key: Key,
    },
    /// The log after everything was healed. Answer: [`Answer::Read`] with one partition, read to
    /// the high watermark or the call has failed.
    FinalRead {
        key: Key,
        source: FinalSource,
    },
    /// ListOffsets(latest). Answer: [`Answer::Latest`].
    LatestOffset {
        key: Key,
    },
    /// Answer: [`Answer::Leadership`].
    Leadership {
        key: Key,
    },
    /// `key.incarnation` counts the creations of this topic name, from 0. The partition is unused.
    CreateTopic {
        key: Key,
        partitions: u32,
        /// Old records of it are removed while it is in use: its start moves.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        trims: bool,
    },
    DeleteTopic {
        key: Key,
    },
    /// The process takes exactly these partitions, by hand, from the earliest offset of those
    /// that it did not have.
    Assign {
        keys: Vec<Key>,
    },
    /// The next poll of this process begins at `offset`.
    Seek {
        key: Key,
        offset: i64,
    },
    /// Commits or aborts. A send with this transaction counts as written only by a commit.
    EndTxn {
        txn: TxnId,
        commit: bool,
    },
    /// The client is dropped without a goodbye. The worker goes on under another process id.
    Crash,
    /// The process becomes a member of a group, or tries to.
    GroupJoin {
        group: String,
    },
    /// Not a question, but what a member was told: these partitions are its own.
    GroupAssigned {
        group: String,
        /// Under which generation (or member epoch) it has them; absent where that is not certain.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<i32>,
        keys: Vec<Key>,
        /// Up to then nothing of it was known: the member has looked for committed positions later
        /// than this.
        since: Nanos,
    },
    /// These partitions were the member's and are not any more, whether it gave them back or was
    /// told that they were lost.
    GroupRevoked {
        group: String,
        keys: Vec<Key>,
    },
    /// The group goes on at `offset`. `generation`: that of the assignment by which the member got
    /// the partition.
    GroupCommit {
        group: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<i32>,
        key: Key,
        offset: i64,
    },
    /// What is committed. Answer: [`Answer::Positions`].
    GroupPositions {
        group: String,
    },
    /// After everything was healed and written: a member of the group has read the partition to
    /// its end. Answer: [`Answer::Latest`], the end.
    GroupDrain {
        group: String,
        key: Key,
    },
    /// Anything else, for the timeline only: leadership transfers, membership changes.
    Admin {
        what: String,
    },
}

/// A record to be appended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SendRecord {
    pub key: Key,
    pub value: Value,
    /// The producer session it went through. Two sessions of one process (a producer opened
    /// again) have two numbers; idempotence holds within one.
    #[serde(default)]
    pub session: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn: Option<TxnId>,
    /// Where known: who the batch said it was from. Only the `fencing` workload needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<Producer>,
}

/// A producer as the broker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Producer {
    pub id: i64,
    pub epoch: i16,
}

/// From where a final read was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinalSource {
    /// A fresh client, as a user reads: from the leader.
    Client,
    /// This node's own replica.
    Replica(u32),
}

/// A call's end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The invocation's.
    pub id: u64,
    /// After the answer had arrived.
    pub at: Nanos,
    pub outcome: Outcome,
}

/// How a call ended. Strict: only what **proves** that nothing happened is [`Outcome::Fail`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The call did what it says.
    Ok(Answer),
    /// The call certainly did nothing, and never will: the request was refused before any effect
    /// (MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS) or never left the client, and no earlier attempt
    /// may still be on its way.
    Fail { error: String },
    /// It may have happened, may not have, or may still happen: time out, a lost connection,
    /// NOT_ENOUGH_REPLICAS_AFTER_APPEND, any error that one does not know.
    Unknown { error: String },
}

/// What a successful call returned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The offset is absent where the answer carries none (`acks=0`, a duplicate acknowledged
    /// without one).
    Sent {
        offset: Option<i64>,
    },
    Read(Vec<PartitionRead>),
    /// The next offset to be written below which consumers may read.
    Latest {
        offset: i64,
    },
    Leadership {
        node: Option<u32>,
        epoch: i32,
    },
    /// The committed position of each partition that has one.
    Positions(Vec<(Key, i64)>),
    /// Everything that has nothing to say.
    Done,
}

/// What was read from one partition in one call, in the order in which it came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartitionRead {
    pub key: Key,
    /// The first offset asked for.
    pub from: i64,
    /// Where the next read begins.
    pub next: i64,
    /// `(offset, value)`, as delivered.
    pub values: Vec<(i64, Value)>,
    /// Records whose payload is not one of ours, or damaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<Foreign>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_start: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_watermark: Option<i64>,
    /// The leader epoch in which it was served, where the answer or the client's metadata tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<i32>,
    /// Below it every transaction has ended, as the answer told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_stable: Option<i64>,
    /// When the answer that told all this was asked for, where that was before the call: clients
    /// fetch ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Nanos>,
    /// Where known: `(offset, leader epoch)` of the first record of each epoch in this read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<(i64, i32)>,
}

impl PartitionRead {
    /// A read that begins at an offset and has brought nothing so far.
    pub fn at(key: Key, from: i64) -> PartitionRead {
        PartitionRead {
            key,
            from,
            next: from,
            values: Vec::new(),
            foreign: Vec::new(),
            log_start: None,
            high_watermark: None,
            leader_epoch: None,
            last_stable: None,
            asked: None,
            epochs: Vec::new(),
        }
    }
}

/// A record that no client of this run can have written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    pub offset: i64,
    /// What is wrong with it: [`PayloadError`]'s text.
    pub reason: String,
    /// The first bytes in hexadecimal.
    pub bytes: String,
}

/// A step of a fault. Written when it is *known* to have happened, not when it was ordered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FaultEvent {
    /// Pairs a beginning with its end.
    pub id: u64,
    /// The name as on the command line: `kill`, `pause`, `partition`, ...
    pub fault: String,
    pub phase: FaultPhase,
    pub at: Nanos,
    /// Node ids.
    pub targets: Vec<u32>,
    /// Which of its manners, where a fault has several: `halves`, `ring`, `snapshot`. Told with its
    /// beginning.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub manner: String,
    /// What exactly, for people: "node 1 cannot send to node 2, silently".
    #[serde(default)]
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultPhase {
    /// It holds from here.
    Begin,
    /// It holds no longer. A fault of one moment (a kill with a restart elsewhere) ends when the
    /// node may work again.
    End,
    /// It holds no longer, and nothing has met it: no packet, no call, no process. It did not happen,
    /// and does not count.
    Missed,
    /// After the end: every node serves again, every partition has a leader and all its replicas.
    /// Until then clients still feel it. Absent where that never came, or was not looked for.
    Recovered,
    /// After the end: the cluster was not whole up to here, and nobody looks any further: another
    /// fault has begun, whose time it is now, or it took too long. Clients felt it until then.
    Overtaken,
    /// It could not be applied. Does not count as having happened.
    Refused,
}

/// So much of the time after the heal the harness may be without the processor, all pauses together.
pub const STARVED_SECONDS_MAX: f64 = 10.0;

/// A moment that the checker or a reader has to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// Clients begin.
    LoadBegin { at: Nanos },
    /// Everything is healed; clients go on for a while.
    Healed { at: Nanos },
    /// Whoever writes has stopped.
    LoadEnd { at: Nanos },
    /// For so long consumers went on after that: until they had been shown everything, or their time
    /// was over.
    ReadOut { from: Nanos, until: Nanos },
    /// The harness itself did not get the processor from `from` to `until`: nothing is said about
    /// availability then.
    Starved { from: Nanos, until: Nanos },
    /// A node did by itself what it may not, whatever clients saw: it ended, it did not come back
    /// after the heal, it left files that are not as they were written. A sentence.
    Breakdown { at: Nanos, what: String },
    /// The logs of so many partitions, as stopped nodes left them, were compared between their
    /// replicas, so many entries of them.
    LogsCompared {
        at: Nanos,
        partitions: u64,
        entries: u64,
        /// Of those, the controller's, and those of `__consumer_offsets`: no client reads them.
        #[serde(default)]
        controller_entries: u64,
        #[serde(default)]
        offsets_entries: u64,
    },
    /// When everything was healed: who the members were, and on which of them the replicas of each
    /// partition lay. These are whom the final read has to ask.
    Members {
        at: Nanos,
        nodes: Vec<u32>,
        replicas: Vec<ReplicasOf>,
    },
    /// For people.
    Note { at: Nanos, text: String },
}

/// The replicas of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicasOf {
    pub topic: String,
    pub partition: u32,
    /// The members that they lie on.
    pub nodes: Vec<u32>,
}

/// A whole history in memory, calls joined with their ends.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    pub header: Header,
    /// In the order of their invocations.
    pub operations: Vec<Operation>,
    pub faults: Vec<FaultEvent>,
    pub marks: Vec<Mark>,
    /// Whether the file ended within a line, as after a crash of the harness.
    pub torn: bool,
}

/// A call with its end, if it has one.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    pub id: u64,
    pub worker: WorkerId,
    pub process: ProcessId,
    pub invoked: Nanos,
    /// Absent: the history ended first.
    pub completed: Option<Nanos>,
    pub call: Call,
    /// [`Outcome::Unknown`] if the history ended first.
    pub outcome: Outcome,
}

impl Operation {
    pub fn is_ok(&self) -> bool {
        matches!(self.outcome, Outcome::Ok(_))
    }

    /// What a successful read returned; nothing for any other operation.
    pub fn reads(&self) -> &[PartitionRead] {
        match &self.outcome {
            Outcome::Ok(Answer::Read(reads)) => reads,
            _ => &[],
        }
    }

    /// When it ended, or never.
    pub fn end(&self) -> Nanos {
        self.completed.unwrap_or(Nanos(u64::MAX))
    }
}

impl History {
    /// The moment of the last thing in it.
    pub fn end(&self) -> Nanos {
        let operations = self
            .operations
            .iter()
            .map(|operation| operation.completed.unwrap_or(operation.invoked));
        let faults = self.faults.iter().map(|fault| fault.at);
        operations.chain(faults).max().unwrap_or_default()
    }

    /// When all was healed, or never.
    pub fn healed(&self) -> Option<Nanos> {
        self.marks.iter().rev().find_map(|mark| match mark {
            Mark::Healed { at } => Some(*at),
            _ => None,
        })
    }

    /// For how long consumers went on when nothing was written any more, if they did, in seconds.
    pub fn read_out_seconds(&self) -> Option<f64> {
        self.marks.iter().rev().find_map(|mark| match mark {
            Mark::ReadOut { from, until } => Some(until.since(*from).seconds()),
            _ => None,
        })
    }

    /// For how long clients went on to write after the heal, if both ends are known, in seconds.
    pub fn load_after_heal_seconds(&self) -> Option<f64> {
        let end = self.marks.iter().rev().find_map(|mark| match mark {
            Mark::LoadEnd { at } => Some(*at),
            _ => None,
        })?;
        Some(end.since(self.healed()?).seconds())
    }

    /// On which members the replicas of each partition lay in the end, by topic and partition.
    pub fn replicas_in_the_end(&self) -> BTreeMap<(&str, u32), &[u32]> {
        let last = self.marks.iter().rev().find_map(|mark| match mark {
            Mark::Members { replicas, .. } => Some(replicas.as_slice()),
            _ => None,
        });
        let all = last.unwrap_or_default().iter();
        all.map(|of| ((of.topic.as_str(), of.partition), of.nodes.as_slice()))
            .collect()
    }

    /// Whether the harness itself got so little of the processor after the heal that nothing can be
    /// said of what was not done in time.
    pub fn starved_after_heal(&self) -> bool {
        let Some(healed) = self.healed() else {
            return false;
        };
        let starved = self.marks.iter().filter_map(|mark| match mark {
            Mark::Starved { from, until } if *until > healed => {
                Some(until.since((*from).max(healed)).seconds())
            }
            _ => None,
        });
        starved.sum::<f64>() >= STARVED_SECONDS_MAX
    }
}
