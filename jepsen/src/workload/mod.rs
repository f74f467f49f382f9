//! What the clients of a run do, and its history.

pub mod append;
pub mod consume;
pub mod ends;
pub mod fencing;
pub mod final_read;
pub mod group;
pub mod keys;
#[cfg(feature = "librdkafka")]
pub mod librdkafka;
pub mod produce;
pub mod recorder;
pub mod topics;
pub mod watch;

use std::rc::Rc;
use std::time::Duration;

use corduroy_client::{Client, ClientBuilder, Error, Told};
use corduroy_env::Env;
use tokio::sync::watch as channel;

use crate::cli::ClientKind;
use crate::history::{Acks, Foreign, Nanos, Outcome, PartitionRead, Payload, Value};
use keys::LiveKeys;
use recorder::Recorder;

/// Longest wait for one answer: short enough that a run sees what happens after it.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest time from queueing a record to its outcome.
pub const DELIVERY_WAIT_MAX: Duration = Duration::from_secs(15);
/// Longest wait for an admin call with its retries.
const API_WAIT_MAX: Duration = Duration::from_secs(15);
/// How often it is looked whether writes have ended.
const SETTLE_LOOK: Duration = Duration::from_millis(20);
/// Bytes of a foreign record that are kept.
const FOREIGN_BYTES_SHOWN: usize = 32;

/// Which clients a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WorkloadKind {
    /// Producers of unique values and consumers by assignment, over topics that come and go out of
    /// use.
    Queue,
    /// Appends to one partition, and reads of all of it.
    ListAppend,
    /// One record after the other in a few partitions: what was acknowledged last is what every
    /// read and every latest offset has to know.
    Register,
    /// Topics created, deleted and created again under load.
    Topics,
    /// Raw batches of fenced producers beside the queue.
    Fencing,
    /// The queue, read by members of groups that commit, crash, stand still, leave and come back.
    Group,
    /// The queue on one node: what it acknowledges must be on its disk.
    Durability,
}

impl WorkloadKind {
    /// Whether all that writes and reads in it are producers and consumers by assignment, so that
    /// another client can take their place. (Members of groups, readers of whole logs and raw batches
    /// are always ours.)
    pub fn is_all_of_producers_and_consumers(self) -> bool {
        match self {
            WorkloadKind::Queue | WorkloadKind::Topics | WorkloadKind::Durability => true,
            WorkloadKind::ListAppend
            | WorkloadKind::Register
            | WorkloadKind::Fencing
            | WorkloadKind::Group => false,
        }
    }

    /// Its name on the command line and in histories.
    pub fn name(self) -> &'static str {
        match self {
            WorkloadKind::Queue => "queue",
            WorkloadKind::ListAppend => "list-append",
            WorkloadKind::Register => "register",
            WorkloadKind::Topics => "topics",
            WorkloadKind::Fencing => "fencing",
            WorkloadKind::Group => "group",
            WorkloadKind::Durability => "durability",
        }
    }
}

/// What all clients of a run share.
#[derive(Clone)]
pub struct Shared {
    /// Time, chance, tasks.
    pub env: Env,
    /// Whose producers and consumers they are.
    pub client: ClientKind,
    /// What producers wait for, and whether they are idempotent.
    pub acks: Acks,
    pub idempotence: bool,
    /// The history.
    pub recorder: Recorder,
    /// Where clients begin.
    pub bootstrap: Rc<str>,
    /// The partitions that are in use.
    pub keys: Rc<LiveKeys>,
    /// Becomes true when clients shall stop.
    pub stop: channel::Receiver<bool>,
    /// Sends of all producers together.
    pub sends_per_second: u32,
    /// How often a client is dropped without a goodbye.
    pub crash_every: Duration,
    /// Replicas of each partition.
    pub replication: i16,
    /// `min.insync.replicas` of each topic, where there are replicas.
    pub min_insync: u32,
}

impl Shared {
    /// A new client, as a user would have it but for shorter waits.
    ///
    /// # Errors
    /// The client's.
    pub async fn client(&self, name: &str) -> Result<Client, Error> {
        self.builder(name).connect().await
    }

    /// The same, to be connected elsewhere.
    pub fn builder(&self, name: &str) -> ClientBuilder {
        Client::builder()
            .env(self.env.clone())
            .client_id(name)
            .request_timeout(REQUEST_WAIT_MAX)
            .api_timeout(API_WAIT_MAX)
            .set("allow.auto.create.topics", "false")
            .bootstrap_servers(&self.bootstrap)
    }

    /// Whether clients shall stop.
    pub fn is_over(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits until every write to a topic has ended. Whether the outcome of each is known: only
    /// then none can meet a topic of the same name later.
    pub async fn wait_settled(&self, topic: &str) -> bool {
        loop {
            match self.keys.unsettled(topic) {
                (0, unknown) => return unknown == 0,
                _ if self.is_over() => return false,
                _ => self.pause(SETTLE_LOOK).await,
            }
        }
    }

    /// Waits, but not longer than clients go on.
    pub async fn pause(&self, wait: Duration) {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = self.env.sleep(wait) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }
}

/// How a failed write is classified. Strict: only the client's proof that nothing was written, nor
/// will be, is a failure.
pub fn failed_write(error: &Error) -> Outcome {
    let text = error.to_string();
    match error.outcome() {
        corduroy_client::Outcome::NotWritten => Outcome::Fail { error: text },
        // Written with an error on top: readers will prove it.
        corduroy_client::Outcome::Written | corduroy_client::Outcome::Unknown => {
            Outcome::Unknown { error: text }
        }
    }
}

/// Sorts a record into a read.
pub fn take_record(read: &mut PartitionRead, offset: i64, epoch: i32, bytes: Option<&[u8]>) {
    if epoch >= 0 && read.epochs.last().is_none_or(|(_, last)| *last != epoch) {
        read.epochs.push((offset, epoch));
    }
    let bytes = bytes.unwrap_or_default();
    match Payload::decode(bytes) {
        Ok(value) => read.values.push((offset, value)),
        Err(reason) => {
            let shown = &bytes[..bytes.len().min(FOREIGN_BYTES_SHOWN)];
            read.foreign.push(Foreign {
                offset,
                reason: reason.to_string(),
                bytes: shown.iter().map(|byte| format!("{byte:02x}")).collect(),
            });
        }
    }
}

/// Notes what the leader told of a partition with a fetch. `asked`: when, if that may have been
/// before the call that is noted.
pub fn take_told(read: &mut PartitionRead, told: &Told, asked: Option<Nanos>) {
    let known = |number: i64| (number >= 0).then_some(number);
    read.high_watermark = known(told.high_watermark);
    read.last_stable = known(told.last_stable);
    read.leader_epoch = (told.leader_epoch >= 0).then_some(told.leader_epoch);
    read.asked = asked;
}

/// The bytes of a record: the payload, and zeros behind it.
pub fn record_bytes(value: Value, padding: usize) -> Vec<u8> {
    let mut bytes = Payload::encode(value).to_vec();
    bytes.resize(bytes.len() + padding, 0);
    bytes
}
