//! The clients: the production client crate, on a machine of its own that never fails.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use corduroy_client::{Client, Error, ErrorKind, From, Outcome, Producer, Record};
use corduroy_env::{Env, Simulation};

use crate::ledger::{Fate, Ledger};
use crate::machine::KAFKA_PORT;
use crate::network::{Fabric, Host, address_of};
use crate::random::Random;

/// The machine of the clients; all machines above are clients' too, in the same place.
pub const CLIENTS: Host = 256;
/// A topic that keeps everything.
pub const KEPT: &str = "kept";
/// A topic whose log's start moves all the time.
pub const TRIMMED: &str = "trimmed";
/// A topic whose records are acknowledged when all three replicas have them.
pub const STRICT: &str = "strict";
/// Partitions of [`KEPT`].
pub const KEPT_PARTITIONS: i32 = 2;

/// How long a client waits.
#[derive(Clone, Copy)]
pub struct Patience {
    /// For one answer.
    request: Duration,
    /// For the fate of a record.
    delivery: Duration,
}

/// Outlasts most faults.
pub const PATIENT: Patience = Patience {
    request: Duration::from_secs(8),
    delivery: Duration::from_secs(20),
};
/// Gives up in the middle of them.
const HASTY: Patience = Patience {
    request: Duration::from_millis(1_500),
    delivery: Duration::from_secs(3),
};

/// What the clients share. Clone = the same.
#[derive(Clone)]
pub struct Workload {
    env: Env,
    fabric: Fabric,
    hosts: Vec<Host>,
    ledger: Ledger,
    quiet: Rc<Cell<bool>>,
}

impl Workload {
    /// Clients that know the nodes' addresses. Call it inside the runtime.
    pub fn new(fabric: &Fabric, hosts: &[Host], ledger: Ledger, random: &mut Random) -> Workload {
        let env = env_of(fabric, CLIENTS, random.next());
        Workload {
            env,
            fabric: fabric.clone(),
            hosts: hosts.to_vec(),
            ledger,
            quiet: Rc::default(),
        }
    }

    /// The same clients on another machine.
    pub fn on(&self, host: Host, seed: u64) -> Workload {
        Workload {
            env: env_of(&self.fabric, host, seed),
            ..self.clone()
        }
    }

    /// A machine of clients is no more; its kernel tells the peers, or goes with it.
    pub fn cut_off(&self, host: Host, machine_lives: bool) {
        self.fabric.take_down(host, machine_lives);
    }

    /// How to reach which nodes.
    pub fn way(&self) -> (&Env, &[Host]) {
        (&self.env, &self.hosts)
    }

    /// Producers end after what they are doing.
    pub fn end(&self) {
        self.quiet.set(true);
    }

    /// Whether clients are to end.
    pub fn is_quiet(&self) -> bool {
        self.quiet.get()
    }

    /// What clients were told.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The clients' wall clock, in milliseconds since the Unix epoch.
    pub fn unix_millis(&self) -> i64 {
        self.env.unix_millis()
    }

    /// Waits.
    pub async fn pause(&self, millis: u64) {
        self.env.sleep(Duration::from_millis(millis)).await;
    }

    /// A client, as soon as a node answers.
    pub async fn connect(&self, patience: Patience) -> Client {
        let servers: Vec<String> = self
            .hosts
            .iter()
            .map(|host| address_of(*host, KAFKA_PORT).to_string())
            .collect();
        loop {
            let client = Client::builder()
                .bootstrap_servers(&servers.join(","))
                .request_timeout(patience.request)
                .env(self.env.clone())
                .connect();
            match client.await {
                Ok(client) => return client,
                Err(error) => tracing::debug!(%error, "no client yet"),
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
    }

    /// Creates the topics; returns when all are there.
    pub async fn create_topics(&self) {
        let client = self.connect(PATIENT).await;
        loop {
            let kept = client
                .admin()
                .create_topic(KEPT)
                .partitions(KEPT_PARTITIONS)
                .replication(3)
                .config("segment.bytes", "65536")
                .ensure();
            let trimmed = client
                .admin()
                .create_topic(TRIMMED)
                .partitions(1)
                .replication(3)
                .config("segment.bytes", "8192")
                .config("retention.bytes", "16384")
                .ensure();
            let strict = client
                .admin()
                .create_topic(STRICT)
                .partitions(1)
                .replication(3)
                .config("min.insync.replicas", "3")
                .ensure();
            let all = async {
                kept.await?;
                trimmed.await?;
                strict.await
            };
            match all.await {
                Ok(_) => return,
                Err(error) => tracing::debug!(%error, "topics are not there yet"),
            }
            self.env.sleep(Duration::from_millis(200)).await;
        }
    }

    /// An idempotent producer with `acks=all`.
    pub fn producer(&self, client: &Client, patience: Patience) -> Producer {
        client
            .producer()
            .linger(Duration::from_millis(2))
            .delivery_timeout(patience.delivery)
            .build()
    }

    /// One producer: sends until told to end, to the topics that two nodes can serve.
    pub async fn produce(self, mut random: Random) {
        let patience = random.pick(&[PATIENT, HASTY]).unwrap_or(PATIENT);
        let places = [(TRIMMED, 0), (KEPT, 0), (KEPT, 1)];
        self.produce_to(&places, patience, random).await;
    }

    /// One producer of [`STRICT`], which nobody can serve while a node is away.
    pub async fn produce_strictly(self, random: Random) {
        self.produce_to(&[(STRICT, 0)], HASTY, random).await;
    }

    async fn produce_to(
        &self,
        places: &[(&'static str, i32)],
        patience: Patience,
        mut random: Random,
    ) {
        let client = self.connect(patience).await;
        let mut producer = self.producer(&client, patience);
        while !self.quiet.get() {
            let mut tickets = Vec::new();
            for _ in 0..1 + random.below(6) {
                let value = self.ledger.open();
                let Some((topic, partition)) = random.pick(places) else {
                    return;
                };
                let size = if random.one_in(10) { 2_000 } else { 40 };
                let bytes = encode(value, random.below(size) as usize);
                let record = Record::to(topic).partition(partition).value(&bytes);
                match producer.queue(record).await {
                    Ok(ticket) => tickets.push((value, topic, ticket)),
                    Err(error) => self.settle(value, &error),
                }
                // Several batches of one partition in flight, sometimes.
                if random.one_in(2) {
                    let pause = random.between(1, 6);
                    self.env.sleep(Duration::from_millis(pause)).await;
                }
            }
            let mut fenced = false;
            for (value, topic, ticket) in tickets {
                match ticket.await {
                    Ok(meta) => {
                        let place = meta
                            .offset
                            .map(|offset| (topic.to_owned(), meta.partition, offset));
                        self.ledger.acked(value, place);
                    }
                    Err(error) => {
                        fenced |= error.is_fenced();
                        self.settle(value, &error);
                    }
                }
            }
            if fenced {
                producer = self.producer(&client, patience);
            }
            self.env
                .sleep(Duration::from_millis(random.between(1, 120)))
                .await;
        }
    }

    /// Notes what a failed send says of its record.
    pub fn settle(&self, value: u64, error: &Error) {
        tracing::debug!(value, %error, "a record was not acknowledged");
        let fate = match error.outcome() {
            Outcome::NotWritten => Fate::Failed,
            Outcome::Written | Outcome::Unknown => Fate::Unknown,
        };
        self.ledger.settled(value, fate);
    }

    /// One reader: follows a partition for ever.
    pub async fn follow(self, topic: &'static str, partition: i32) {
        let client = self.connect(PATIENT).await;
        let mut next = From::Earliest;
        loop {
            let reader = client.read(topic).partition(partition).from(next);
            let mut reader = reader.follow();
            while let Some(batch) = reader.next().await {
                match batch {
                    Ok(batch) => {
                        next = From::Offset(batch.next_offset());
                        for record in batch.records() {
                            self.note(topic, record.partition(), record.offset(), record.value());
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, topic, partition, "a reader starts again");
                        if error.kind() == ErrorKind::OffsetOutOfRange {
                            next = From::Earliest;
                        }
                        break;
                    }
                }
            }
            self.env.sleep(Duration::from_millis(50)).await;
        }
    }

    fn note(&self, topic: &str, partition: i32, offset: i64, value: Option<&[u8]>) {
        let place = (topic.to_owned(), partition, offset);
        match value.and_then(decode) {
            Some(value) => self.ledger.read(place, value),
            None => self.ledger.read_garbage(&place, value.unwrap_or_default()),
        }
    }

    /// Reads one partition from its start to its end: places with their values.
    ///
    /// # Errors
    /// What the client says.
    pub async fn read_all(&self, topic: &str, partition: i32) -> Result<Vec<(i64, u64)>, String> {
        let client = self.connect(PATIENT).await;
        let read = || {
            let reader = client.read(topic).partition(partition).from(From::Earliest);
            reader.until_high_watermark()
        };
        let mut reader = read();
        let mut found = Vec::new();
        while let Some(batch) = reader.next().await {
            let batch = match batch {
                // The log's start has overtaken the reader.
                Err(error) if topic == TRIMMED && error.kind() == ErrorKind::OffsetOutOfRange => {
                    reader = read();
                    continue;
                }
                batch => batch.map_err(|error| error.to_string())?,
            };
            for record in batch.records() {
                self.note(topic, record.partition(), record.offset(), record.value());
                let value = record.value().and_then(decode).unwrap_or(u64::MAX);
                found.push((record.offset(), value));
            }
        }
        Ok(found)
    }

    /// Sends one record to a partition and waits for its acknowledgement.
    ///
    /// # Errors
    /// What the client says.
    pub async fn send_one(&self, topic: &str, partition: i32) -> Result<(), String> {
        let client = self.connect(PATIENT).await;
        let producer = self.producer(&client, PATIENT);
        let value = self.ledger.open();
        let bytes = encode(value, 8);
        let record = Record::to(topic).partition(partition).value(&bytes);
        match producer.send(record).await {
            Ok(meta) => {
                let place = meta
                    .offset
                    .map(|offset| (topic.to_owned(), meta.partition, offset));
                self.ledger.acked(value, place);
                Ok(())
            }
            Err(error) => {
                self.settle(value, &error);
                Err(error.to_string())
            }
        }
    }
}

fn env_of(fabric: &Fabric, host: Host, seed: u64) -> Env {
    Env::simulated(Simulation {
        seed,
        unix_millis: 1_750_000_000_000,
        network: Box::new(fabric.of(host)),
    })
}

/// A value with some bytes behind it that follow from it.
pub fn encode(value: u64, padding: usize) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.extend(value.to_le_bytes().iter().cycle().take(padding));
    bytes
}

/// The value of [`encode`]; `None` for bytes that it never made.
pub fn decode(bytes: &[u8]) -> Option<u64> {
    let (head, padding) = bytes.split_first_chunk::<8>()?;
    let expected = head.iter().cycle().take(padding.len());
    let intact = padding.iter().eq(expected);
    intact.then(|| u64::from_le_bytes(*head))
}
