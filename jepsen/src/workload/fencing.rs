//! `fencing`: raw batches of one producer id in two epochs. Once a batch of the newer epoch is in
//! the log, none of the older may get in. No client library would send what this sends.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use corduroy_env::{Env, Stream};
use corduroy_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use corduroy_protocol::messages::{
    InitProducerIdRequest, ProduceRequest, TopicName, TransactionalId,
};
use corduroy_protocol::{ErrorCode, Request, Response, StrBytes, decode_response, encode_request};
use corduroy_record::{BatchBuilder, BuilderOptions, ProducerEpoch, ProducerId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Shared, record_bytes};
use crate::chance::Chance;
use crate::history::{
    Answer, Call, Key, Outcome, ProcessId, Producer, SendRecord, Value, WorkerId,
};

const PRODUCE_VERSION: i16 = 9;
const INIT_PRODUCER_ID_VERSION: i16 = 2;
/// How long one answer may take.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// An answer longer than this is none of ours.
const ANSWER_BYTES_MAX: u32 = 1 << 20;
/// Batches of one producer before the next one.
const BATCHES_PER_PRODUCER: u64 = 20;
/// How long to wait after a failure.
const AGAIN: Duration = Duration::from_millis(300);

/// Sends batches of a producer id in its old and its new epoch, over and over, one after the other.
pub async fn run(shared: Shared, worker: WorkerId, place: usize, seed: u64) {
    let mut chance = Chance::fork(seed, u64::from(worker.0));
    while !shared.is_over() {
        // What fails is in the history; then another producer, another connection.
        if one_producer(&shared, worker, place, &mut chance)
            .await
            .is_err()
        {
            shared.pause(AGAIN).await;
        }
    }
}

/// The next sequence of each epoch of one producer id.
struct Epochs {
    id: i64,
    base: i16,
    /// Of the old and of the new epoch.
    next: [i32; 2],
    is_new_there: bool,
}

async fn one_producer(
    shared: &Shared,
    worker: WorkerId,
    place: usize,
    chance: &mut Chance,
) -> anyhow::Result<()> {
    let topic = shared.keys.at(place).context("no topic yet")?;
    let partition = u32::try_from(chance.below(u64::from(topic.partitions)))?;
    let key = topic.key(partition);
    let mut wire = Wire::to_leader(shared, &key).await?;
    let (id, base) = wire.producer_id().await?;
    let mut epochs = Epochs {
        id,
        base,
        next: [0, 0],
        is_new_there: false,
    };
    let process = shared.recorder.process();
    let session = shared.recorder.session();
    let change = chance.between(2, BATCHES_PER_PRODUCER / 2);
    for number in 0..BATCHES_PER_PRODUCER {
        if shared.is_over() {
            return Ok(());
        }
        // First the old epoch, then the new one, with the old one again in between.
        let is_new = number >= change && (!epochs.is_new_there || chance.percent(50));
        let value = Value::of(process.0, number);
        let place = Place {
            worker,
            process,
            session,
            key: &key,
        };
        send(shared, &mut wire, &mut epochs, is_new, value, place).await?;
        shared
            .pause(Duration::from_millis(chance.between(1, 50)))
            .await;
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Place<'a> {
    worker: WorkerId,
    process: ProcessId,
    session: u64,
    key: &'a Key,
}

async fn send(
    shared: &Shared,
    wire: &mut Wire,
    epochs: &mut Epochs,
    is_new: bool,
    value: Value,
    place: Place<'_>,
) -> anyhow::Result<()> {
    let which = usize::from(is_new);
    let epoch = epochs.base + i16::from(is_new);
    let call = Call::Send(SendRecord {
        key: place.key.clone(),
        value,
        session: place.session,
        txn: None,
        producer: Some(Producer {
            id: epochs.id,
            epoch,
        }),
    });
    let id = shared.recorder.invoke(place.worker, place.process, call);
    let batch = batch(shared, (epochs.id, epoch, epochs.next[which]), value)?;
    let answered = wire.produce(place.key, batch).await;
    let (outcome, end) = match answered {
        Ok((ErrorCode::None, offset)) => {
            epochs.next[which] += 1;
            epochs.is_new_there |= is_new;
            let offset = (offset >= 0).then_some(offset);
            (Outcome::Ok(Answer::Sent { offset }), Ok(()))
        }
        // What the old epoch gets: refused before the append, and the connection goes on.
        Ok((error @ ErrorCode::InvalidProducerEpoch, _)) => (fail(error), Ok(())),
        Ok((error, _)) => {
            let is_refusal = matches!(
                error,
                ErrorCode::OutOfOrderSequenceNumber
                    | ErrorCode::NotLeaderOrFollower
                    | ErrorCode::NotEnoughReplicas
                    | ErrorCode::UnknownTopicOrPartition
            );
            let outcome = if is_refusal {
                fail(error)
            } else {
                Outcome::Unknown {
                    error: error.name().to_owned(),
                }
            };
            (outcome, Err(anyhow::anyhow!("{}", error.name())))
        }
        Err(error) => {
            let outcome = Outcome::Unknown {
                error: format!("{error:#}"),
            };
            (outcome, Err(error))
        }
    };
    shared.recorder.complete(id, outcome);
    end
}

fn fail(error: ErrorCode) -> Outcome {
    Outcome::Fail {
        error: error.name().to_owned(),
    }
}

fn batch(
    shared: &Shared,
    (id, epoch, sequence): (i64, i16, i32),
    value: Value,
) -> anyhow::Result<Bytes> {
    let options = BuilderOptions {
        producer_id: ProducerId::new(id),
        producer_epoch: ProducerEpoch::new(epoch),
        base_sequence: sequence,
        ..BuilderOptions::default()
    };
    let mut builder = BatchBuilder::new(options);
    let now = shared.env.unix_millis();
    builder
        .push(now, None, Some(&record_bytes(value, 0)), &[])
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(builder.finish().to_bytes())
}

/// One connection: exactly the frames that are wanted.
pub(super) struct Wire {
    stream: Stream,
    correlation_id: i32,
}

impl Wire {
    /// Connects to a partition's leader.
    pub(super) async fn to_leader(shared: &Shared, key: &Key) -> anyhow::Result<Wire> {
        let client = shared.client("jepsen-fencing").await?;
        let admin = client.admin();
        let found = admin.describe_topic(&*key.topic).await?;
        let number = i32::try_from(key.partition)?;
        let leader = found
            .partitions
            .iter()
            .find(|partition| partition.partition == number)
            .and_then(|partition| partition.leader)
            .context("no leader")?;
        let cluster = admin.describe_cluster().await?;
        let broker = cluster
            .brokers
            .iter()
            .find(|broker| broker.id == leader)
            .context("the leader is no broker")?;
        let address: SocketAddr = format!("{}:{}", broker.host, broker.port).parse()?;
        Wire::connect(&shared.env, address).await
    }

    async fn connect(env: &Env, address: SocketAddr) -> anyhow::Result<Wire> {
        let stream = tokio::time::timeout(ANSWER_WAIT_MAX, env.connect(address)).await??;
        Ok(Wire {
            stream,
            correlation_id: 0,
        })
    }

    /// One request and its answer. A connection that fails once is of no use any more.
    pub(super) async fn call(
        &mut self,
        version: i16,
        request: &Request,
    ) -> anyhow::Result<Response> {
        tokio::time::timeout(ANSWER_WAIT_MAX, self.exchange(version, request)).await?
    }

    async fn exchange(&mut self, version: i16, request: &Request) -> anyhow::Result<Response> {
        self.correlation_id += 1;
        let frame = encode_request(
            request.key(),
            version,
            self.correlation_id,
            Some("jepsen-fencing"),
            request,
        )
        .map_err(|error| anyhow::anyhow!("{error}"))?;
        self.stream.write_all(&frame).await?;
        let length = self.stream.read_u32().await?;
        if length > ANSWER_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::InvalidData).into());
        }
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body).await?;
        let (_, response) = decode_response(request.key(), version, Bytes::from(body))
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(response)
    }

    async fn producer_id(&mut self) -> anyhow::Result<(i64, i16)> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None::<TransactionalId>)
            .with_transaction_timeout_ms(i32::MAX);
        let request = Request::InitProducerId(request);
        match self.call(INIT_PRODUCER_ID_VERSION, &request).await? {
            Response::InitProducerId(response) if response.error_code == 0 => {
                Ok((response.producer_id.0, response.producer_epoch))
            }
            other => bail!("no producer id: {other:?}"),
        }
    }

    async fn produce(&mut self, key: &Key, batch: Bytes) -> anyhow::Result<(ErrorCode, i64)> {
        let data = PartitionProduceData::default()
            .with_index(i32::try_from(key.partition)?)
            .with_records(Some(batch));
        let topic = TopicName(StrBytes::from_string(key.topic.to_string()));
        let data = TopicProduceData::default()
            .with_name(topic)
            .with_partition_data(vec![data]);
        let request = ProduceRequest::default()
            .with_acks(-1)
            .with_timeout_ms(i32::try_from(ANSWER_WAIT_MAX.as_millis())?)
            .with_topic_data(vec![data]);
        let Response::Produce(response) = self
            .call(PRODUCE_VERSION, &Request::Produce(request))
            .await?
        else {
            bail!("not an answer to Produce");
        };
        let partition = response
            .responses
            .first()
            .and_then(|topic| topic.partition_responses.first())
            .context("an answer without the partition")?;
        Ok((
            ErrorCode::from_code(partition.error_code),
            partition.base_offset,
        ))
    }
}
