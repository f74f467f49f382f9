//! The settings, typed.

use std::time::Duration;

use corduroy_record::Compression;

/// `retries` of 2147483647: the delivery timeout alone decides.
const UNLIMITED_RETRIES: u32 = i32::MAX as u32;

/// When the cluster acknowledges a record (`acks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Never: fire and forget. Errors and offsets are not reported, records can be lost.
    None,
    /// When the leader's log holds it. Lost if the leader dies before a follower has it.
    Leader,
    /// When all in-sync replicas hold it: the default, and the only one that is safe.
    All,
}

impl Acks {
    /// The value on the wire.
    pub(crate) const fn wire(self) -> i16 {
        match self {
            Acks::None => 0,
            Acks::Leader => 1,
            Acks::All => -1,
        }
    }
}

/// Which records a reader may see (`isolation.level`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Everything below the high watermark, aborted transactions included.
    #[default]
    ReadUncommitted,
    /// Only what lies below the last stable offset, without aborted transactions.
    ReadCommitted,
}

impl Isolation {
    /// The value on the wire.
    pub(crate) const fn wire(self) -> i8 {
        match self {
            Isolation::ReadUncommitted => 0,
            Isolation::ReadCommitted => 1,
        }
    }
}

/// What a reader does where its offset does not exist (any more), Kafka's `auto.offset.reset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfRange {
    /// Ends with an error of kind [`OffsetOutOfRange`](crate::ErrorKind::OffsetOutOfRange): the
    /// default of a reader without a group, which asked for exactly this position.
    #[default]
    Fail,
    /// Goes on at the first record that exists.
    Earliest,
    /// Goes on behind the last record, skipping what lies between.
    Latest,
}

/// What every part of a client obeys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClientSettings {
    pub(crate) bootstrap_servers: Vec<String>,
    pub(crate) client_id: String,
    pub(crate) request_timeout: Duration,
    pub(crate) api_timeout: Duration,
    pub(crate) retry_backoff: Duration,
    pub(crate) retry_backoff_max: Duration,
    pub(crate) reconnect_backoff: Duration,
    pub(crate) reconnect_backoff_max: Duration,
    pub(crate) connection_setup_timeout: Duration,
    pub(crate) connections_max_idle: Duration,
    pub(crate) metadata_max_age: Duration,
    pub(crate) metadata_max_idle: Duration,
    pub(crate) auto_create_topics: bool,
}

/// What a producer obeys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProducerSettings {
    pub(crate) acks: Acks,
    /// `None` = on wherever the other settings allow it.
    pub(crate) idempotence: Option<bool>,
    pub(crate) linger: Duration,
    pub(crate) batch_bytes: usize,
    pub(crate) buffer_bytes: usize,
    pub(crate) request_bytes_max: usize,
    pub(crate) in_flight_max: usize,
    pub(crate) delivery_timeout: Duration,
    /// Set by the user, as opposed to the default, which gives way to a larger linger or request
    /// timeout as in Kafka.
    pub(crate) delivery_timeout_explicit: bool,
    pub(crate) block_max: Duration,
    pub(crate) retries: u32,
    pub(crate) compression: Compression,
    pub(crate) ignore_keys: bool,
    pub(crate) adaptive: bool,
}

/// What a reader obeys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReaderSettings {
    pub(crate) fetch_bytes_min: i32,
    pub(crate) fetch_bytes_max: i32,
    pub(crate) partition_bytes_max: i32,
    pub(crate) wait_max: Duration,
    pub(crate) isolation: Isolation,
    pub(crate) check_crcs: bool,
    pub(crate) out_of_range: OutOfRange,
}

/// How members of a group agree on who reads what (`group.protocol`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupProtocol {
    /// Members rejoin together and one of them assigns: every broker knows it.
    #[default]
    Classic,
    /// The coordinator assigns and moves one partition after the other (KIP-848): Kafka 4.0 and
    /// later, Corduroy.
    Consumer,
}

/// How the leader of a classic group spreads partitions (`partition.assignment.strategy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Per topic, a run of neighbouring partitions for each member.
    Range,
    /// All partitions in turn, one for each member.
    RoundRobin,
    /// Even, and each member gets back what it had, as far as that goes; everybody gives everything
    /// up before a rebalance. For groups that have used it all along.
    Sticky,
    /// Even, and each member keeps what it has: only what moves is taken away (KIP-429).
    CooperativeSticky,
}

impl Strategy {
    /// The name on the wire.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Strategy::Range => "range",
            Strategy::RoundRobin => "roundrobin",
            Strategy::Sticky => "sticky",
            Strategy::CooperativeSticky => "cooperative-sticky",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Strategy> {
        [
            Strategy::Range,
            Strategy::RoundRobin,
            Strategy::Sticky,
            Strategy::CooperativeSticky,
        ]
        .into_iter()
        .find(|strategy| strategy.name() == name)
    }
}

/// What a member of a group obeys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupSettings {
    pub(crate) session_timeout: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) poll_interval_max: Duration,
    pub(crate) auto_commit: bool,
    pub(crate) auto_commit_interval: Duration,
    /// Empty = a dynamic member.
    pub(crate) instance_id: String,
    pub(crate) protocol: GroupProtocol,
    pub(crate) strategies: Vec<Strategy>,
    /// Empty = the coordinator's default.
    pub(crate) remote_assignor: String,
    /// `auto.offset.reset` as the user set it: a group's default differs from a reader's.
    pub(crate) reset: Option<OutOfRange>,
}

/// All settings of a client.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) client: ClientSettings,
    pub(crate) producer: ProducerSettings,
    pub(crate) reader: ReaderSettings,
    pub(crate) group: GroupSettings,
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            bootstrap_servers: Vec::new(),
            client_id: String::new(),
            request_timeout: Duration::from_secs(30),
            api_timeout: Duration::from_secs(60),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
            reconnect_backoff: Duration::from_millis(50),
            reconnect_backoff_max: Duration::from_secs(1),
            connection_setup_timeout: Duration::from_secs(10),
            connections_max_idle: Duration::from_secs(540),
            metadata_max_age: Duration::from_secs(300),
            metadata_max_idle: Duration::from_secs(300),
            auto_create_topics: true,
        }
    }
}

impl Default for ProducerSettings {
    fn default() -> Self {
        ProducerSettings {
            acks: Acks::All,
            idempotence: None,
            linger: Duration::from_millis(5),
            batch_bytes: 16_384,
            buffer_bytes: 33_554_432,
            request_bytes_max: 1_048_576,
            in_flight_max: 5,
            delivery_timeout: Duration::from_secs(120),
            delivery_timeout_explicit: false,
            block_max: Duration::from_secs(60),
            retries: UNLIMITED_RETRIES,
            compression: Compression::None,
            ignore_keys: false,
            adaptive: true,
        }
    }
}

impl Default for ReaderSettings {
    fn default() -> Self {
        ReaderSettings {
            fetch_bytes_min: 1,
            fetch_bytes_max: 52_428_800,
            partition_bytes_max: 1_048_576,
            wait_max: Duration::from_millis(500),
            isolation: Isolation::ReadUncommitted,
            check_crcs: true,
            out_of_range: OutOfRange::Fail,
        }
    }
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings {
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            poll_interval_max: Duration::from_secs(300),
            auto_commit: true,
            auto_commit_interval: Duration::from_secs(5),
            instance_id: String::new(),
            protocol: GroupProtocol::Classic,
            strategies: vec![Strategy::Range, Strategy::CooperativeSticky],
            remote_assignor: String::new(),
            reset: None,
        }
    }
}

impl ProducerSettings {
    /// Whether batches carry a producer id and sequence numbers.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.idempotence
            .unwrap_or(self.acks == Acks::All && self.retries > 0 && self.in_flight_max <= 5)
    }
}
