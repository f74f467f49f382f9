//! A raw Kafka connection: exactly the frame that a test wants, exactly the answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use corduroy_protocol::messages::{
    BrokerId, FetchRequest, IncrementalAlterConfigsRequest, InitProducerIdRequest,
    ListOffsetsRequest, MetadataRequest, ProduceRequest, TopicName, TransactionalId,
    fetch_request::{FetchPartition, FetchTopic},
    incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig},
    list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic},
    metadata_request::MetadataRequestTopic,
    produce_request::{PartitionProduceData, TopicProduceData},
};
use corduroy_protocol::{
    ErrorCode, FetchedPartition, Request, Response, StrBytes, decode_fetch_response,
    decode_response, encode_request,
};
use corduroy_record::{Batch, BatchBuilder, BuilderOptions, ProducerEpoch, ProducerId, parse_many};

/// How long one raw answer may take.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// What Metadata says of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMetadata {
    /// -1 = none.
    pub leader: i32,
    /// Epoch of that leader.
    pub epoch: i32,
    /// Nodes that hold a replica.
    pub replicas: Vec<i32>,
    /// Nodes in sync.
    pub isr: Vec<i32>,
    /// Error of the partition.
    pub error: ErrorCode,
}

/// What a leader answered to one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Error of the partition.
    pub error: ErrorCode,
    /// Offset of the first record; -1 with an error.
    pub base_offset: i64,
}

/// One connection.
pub struct Wire {
    stream: TcpStream,
    correlation_id: i32,
}

impl Wire {
    /// Connects; panics if nobody listens.
    pub fn connect(addr: SocketAddr) -> Wire {
        Wire::try_connect(addr, ANSWER_WAIT).unwrap_or_else(|e| panic!("{addr}: {e}"))
    }

    /// Connects, with a limit for each answer.
    pub fn try_connect(addr: SocketAddr, answer_wait: Duration) -> io::Result<Wire> {
        let stream = TcpStream::connect_timeout(&addr, answer_wait)?;
        stream.set_read_timeout(Some(answer_wait))?;
        stream.set_nodelay(true)?;
        Ok(Wire {
            stream,
            correlation_id: 0,
        })
    }

    /// Sends a request without waiting for its answer; returns its correlation id, which counts
    /// from 1 on.
    pub fn send(&mut self, version: i16, request: &Request) -> io::Result<i32> {
        self.correlation_id += 1;
        let frame = encode_request(
            request.key(),
            version,
            self.correlation_id,
            Some("test"),
            request,
        )
        .expect("the request can be encoded");
        self.stream.write_all(&frame)?;
        Ok(self.correlation_id)
    }

    /// The next answer: its correlation id, and the frame without its length.
    pub fn receive(&mut self) -> io::Result<(i32, Bytes)> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut body)?;
        let id = body.first_chunk().expect("a correlation id");
        Ok((i32::from_be_bytes(*id), Bytes::from(body)))
    }

    fn exchange(&mut self, version: i16, request: &Request) -> io::Result<Bytes> {
        let asked = self.send(version, request)?;
        let (answered, body) = self.receive()?;
        assert_eq!(answered, asked, "answers keep their order");
        Ok(body)
    }

    /// One request, one answer.
    pub fn call(&mut self, version: i16, request: &Request) -> io::Result<Response> {
        let frame = self.exchange(version, request)?;
        let (_, response) = decode_response(request.key(), version, frame)
            .unwrap_or_else(|e| panic!("an answer that is no answer: {e}"));
        Ok(response)
    }

    /// Metadata of a topic, without creating it: (live brokers, error of the topic, partitions).
    pub fn metadata(
        &mut self,
        topic: &str,
    ) -> io::Result<(Vec<i32>, ErrorCode, Vec<PartitionMetadata>)> {
        let topic = MetadataRequestTopic::default().with_name(Some(name(topic)));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![topic]))
            .with_allow_auto_topic_creation(false);
        let Response::Metadata(response) = self.call(9, &Request::Metadata(request))? else {
            panic!("not an answer to Metadata");
        };
        let brokers = response.brokers.iter().map(|b| b.node_id.0).collect();
        let topic = response
            .topics
            .first()
            .expect("the topic that was asked for");
        let ids = |nodes: &[BrokerId]| nodes.iter().map(|n| n.0).collect::<Vec<_>>();
        let mut partitions: Vec<(i32, PartitionMetadata)> = topic
            .partitions
            .iter()
            .map(|p| {
                let partition = PartitionMetadata {
                    leader: p.leader_id.0,
                    epoch: p.leader_epoch,
                    replicas: ids(&p.replica_nodes),
                    isr: ids(&p.isr_nodes),
                    error: ErrorCode::from_code(p.error_code),
                };
                (p.partition_index, partition)
            })
            .collect();
        partitions.sort_by_key(|(index, _)| *index);
        Ok((
            brokers,
            ErrorCode::from_code(topic.error_code),
            partitions.into_iter().map(|(_, p)| p).collect(),
        ))
    }

    /// Sends one batch as it is. `acks` as on the wire: -1, 1.
    pub fn produce(
        &mut self,
        place: (&str, i32),
        acks: i16,
        timeout: Duration,
        batch: &Batch,
    ) -> io::Result<Produced> {
        let (topic, partition) = place;
        let data = PartitionProduceData::default()
            .with_index(partition)
            .with_records(Some(batch.to_bytes()));
        let data = TopicProduceData::default()
            .with_name(name(topic))
            .with_partition_data(vec![data]);
        let request = ProduceRequest::default()
            .with_acks(acks)
            .with_timeout_ms(i32::try_from(timeout.as_millis()).expect("short"))
            .with_topic_data(vec![data]);
        let Response::Produce(response) = self.call(9, &Request::Produce(request))? else {
            panic!("not an answer to Produce");
        };
        let partition = &response.responses[0].partition_responses[0];
        Ok(Produced {
            error: ErrorCode::from_code(partition.error_code),
            base_offset: partition.base_offset,
        })
    }

    /// ListOffsets: -1 latest, -2 earliest.
    pub fn list_offset(
        &mut self,
        topic: &str,
        partition: i32,
        timestamp: i64,
    ) -> io::Result<(ErrorCode, i64)> {
        let question = ListOffsetsPartition::default()
            .with_partition_index(partition)
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp);
        let question = ListOffsetsTopic::default()
            .with_name(name(topic))
            .with_partitions(vec![question]);
        let request = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![question]);
        let Response::ListOffsets(response) = self.call(4, &Request::ListOffsets(request))? else {
            panic!("not an answer to ListOffsets");
        };
        let partition = &response.topics[0].partitions[0];
        Ok((ErrorCode::from_code(partition.error_code), partition.offset))
    }

    /// One Fetch of one partition.
    pub fn fetch(
        &mut self,
        topic: &str,
        partition: i32,
        from: i64,
        wait: Duration,
    ) -> io::Result<FetchedPartition> {
        let mut fetched = self.fetch_within(topic, &[(partition, from)], wait, 32 << 20)?;
        Ok(fetched.remove(0))
    }

    /// One Fetch of several partitions, each from an offset, with a limit for the whole answer.
    pub fn fetch_within(
        &mut self,
        topic: &str,
        wanted: &[(i32, i64)],
        wait: Duration,
        bytes_max: i32,
    ) -> io::Result<Vec<FetchedPartition>> {
        let questions = wanted
            .iter()
            .map(|(partition, from)| {
                FetchPartition::default()
                    .with_partition(*partition)
                    .with_current_leader_epoch(-1)
                    .with_fetch_offset(*from)
                    .with_log_start_offset(-1)
                    .with_partition_max_bytes(8 << 20)
            })
            .collect();
        let question = FetchTopic::default()
            .with_topic(name(topic))
            .with_partitions(questions);
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(i32::try_from(wait.as_millis()).expect("short"))
            .with_min_bytes(1)
            .with_max_bytes(bytes_max)
            .with_session_epoch(-1)
            .with_topics(vec![question]);
        let frame = self.exchange(11, &Request::Fetch(request))?;
        let (_, view) = decode_fetch_response(11, frame).expect("an answer to Fetch");
        let topic = view
            .topics
            .into_iter()
            .next()
            .expect("the topic that was asked for");
        assert_eq!(
            topic.partitions.len(),
            wanted.len(),
            "every partition asked for"
        );
        Ok(topic.partitions)
    }

    /// A Fetch as it is given, of one partition; its answer.
    pub fn fetch_as(
        &mut self,
        version: i16,
        request: FetchRequest,
    ) -> io::Result<FetchedPartition> {
        let frame = self.exchange(version, &Request::Fetch(request))?;
        let (_, view) = decode_fetch_response(version, frame).expect("an answer to Fetch");
        let topic = view.topics.into_iter().next().expect("the topic asked for");
        let partition = topic.partitions.into_iter().next();
        Ok(partition.expect("the partition asked for"))
    }

    /// Sets a cluster setting.
    pub fn set_cluster_config(&mut self, key: &str, value: &str) -> io::Result<ErrorCode> {
        let config = AlterableConfig::default()
            .with_name(StrBytes::from_string(key.to_owned()))
            .with_config_operation(0)
            .with_value(Some(StrBytes::from_string(value.to_owned())));
        // Broker resources have type 4; the empty name is the whole cluster.
        let resource = AlterConfigsResource::default()
            .with_resource_type(4)
            .with_configs(vec![config]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let request = Request::IncrementalAlterConfigs(request);
        let Response::IncrementalAlterConfigs(response) = self.call(1, &request)? else {
            panic!("not an answer to IncrementalAlterConfigs");
        };
        Ok(ErrorCode::from_code(response.responses[0].error_code))
    }

    /// A fresh idempotent producer.
    pub fn producer_id(&mut self) -> io::Result<(ProducerId, ProducerEpoch)> {
        let answer = self.try_producer_id()?;
        Ok(answer.expect("InitProducerId gives an id"))
    }

    /// A fresh idempotent producer; `None` while nobody can give one.
    pub fn try_producer_id(&mut self) -> io::Result<Option<(ProducerId, ProducerEpoch)>> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None::<TransactionalId>)
            .with_transaction_timeout_ms(i32::MAX);
        let Response::InitProducerId(response) = self.call(2, &Request::InitProducerId(request))?
        else {
            panic!("not an answer to InitProducerId");
        };
        let given = (
            ProducerId::new(response.producer_id.0),
            ProducerEpoch::new(response.producer_epoch),
        );
        Ok((response.error_code == 0).then_some(given))
    }
}

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

/// A batch of these values; with a producer, idempotent from `sequence` on.
pub fn batch(
    producer: Option<(ProducerId, ProducerEpoch, i32)>,
    values: &[impl AsRef<[u8]>],
) -> Batch {
    let mut options = BuilderOptions::default();
    if let Some((id, epoch, sequence)) = producer {
        options.producer_id = id;
        options.producer_epoch = epoch;
        options.base_sequence = sequence;
    }
    let mut builder = BatchBuilder::new(options);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_millis();
    let now = i64::try_from(now).expect("before the year 292 million");
    for value in values {
        builder
            .push(now, None, Some(value.as_ref()), &[])
            .expect("it fits");
    }
    builder.finish()
}

/// The values in a fetched partition, with their offsets.
pub fn values(fetched: &FetchedPartition) -> Vec<(i64, String)> {
    let mut values = Vec::new();
    for batch in parse_many(fetched.records.clone()) {
        let batch = batch.expect("whole batches");
        for record in batch.records(64 << 20).expect("records") {
            let record = record.expect("a record");
            let value = record.value.expect("a value");
            let value = String::from_utf8(value.to_vec()).expect("UTF-8");
            values.push((record.offset.get(), value));
        }
    }
    values
}
