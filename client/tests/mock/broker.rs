//! A scripted cluster: real sockets, real frames, a log in memory, and faults on demand.
//!
//! It keeps Kafka's idempotence table (window of five batches), so that a client which duplicates,
//! loses or reorders is found out by the log alone.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use corduroy_env::{Env, Stream};
use corduroy_protocol::messages::api_versions_response::ApiVersion;
use corduroy_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use corduroy_protocol::messages::create_topics_response::CreatableTopicResult;
use corduroy_protocol::messages::delete_topics_response::DeletableTopicResult;
use corduroy_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use corduroy_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult,
};
use corduroy_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use corduroy_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use corduroy_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use corduroy_protocol::messages::produce_response::{
    LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use corduroy_protocol::messages::{
    ApiVersionsResponse, BrokerId, CreatePartitionsResponse, CreateTopicsResponse,
    DeleteTopicsResponse, DescribeClusterResponse, DescribeConfigsResponse, FetchRequest,
    IncrementalAlterConfigsResponse, InitProducerIdResponse, ListOffsetsRequest,
    ListOffsetsResponse, MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse,
    ProducerId, TopicName,
};
use corduroy_protocol::{
    ErrorCode, FetchPartitionData, FetchResponseData, FetchTopicData, Request, RequestHeader,
    Response, SERVED, StrBytes, decode_request, encode_fetch_response, encode_response,
};
use corduroy_record::{Batch, ValidateRules, parse_single};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use crate::group_broker::MockGroup;
use crate::partition::Partition;

/// What to do with a Produce request.
#[derive(Clone, Debug)]
pub enum Act {
    /// As a broker should.
    Serve,
    /// Appends nothing and answers this.
    Refuse(ErrorCode),
    /// Appends nothing and closes the connection.
    Drop,
    /// Appends, then closes the connection without an answer.
    AppendThenDrop,
    /// Appends, then answers this.
    AppendThenRefuse(ErrorCode),
    /// Waits for [`Cluster::release`], then serves.
    Hold,
    /// Forgets the producers of the partition, then serves.
    Forget,
}

/// A batch that a broker took in or refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub node: i32,
    pub partition: i32,
    pub epoch: i16,
    pub sequence: i32,
    pub records: i32,
    pub answer: ErrorCode,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<i32, SocketAddr>,
    /// Nodes that answer nothing although their connections stay.
    stopped: Vec<i32>,
    topics: BTreeMap<String, (u128, Vec<Partition>)>,
    next_topic: u128,
    next_producer: i64,
    auto_create: Option<usize>,
    script: HashMap<i32, VecDeque<Act>>,
    seen: Vec<Seen>,
    fetches: usize,
    fetch_drops: usize,
    versions: BTreeMap<i16, i16>,
    hints: bool,
    batch_bytes_max: usize,
    controller: i32,
    configs: BTreeMap<String, String>,
    group: MockGroup,
}

#[derive(Clone)]
pub struct Cluster {
    state: Arc<Mutex<State>>,
    group_changed: Arc<Notify>,
    changed: Arc<Notify>,
    released: Arc<Notify>,
}

impl Cluster {
    /// Starts `nodes` brokers with ids from 1 on.
    pub async fn start(nodes: i32) -> Cluster {
        let cluster = Cluster {
            state: Arc::default(),
            group_changed: Arc::default(),
            changed: Arc::default(),
            released: Arc::default(),
        };
        {
            let mut state = cluster.lock();
            state.hints = true;
            state.batch_bytes_max = 1 << 20;
            state.controller = 1;
        }
        for id in 1..=nodes {
            let listener = Env::real()
                .listen("127.0.0.1:0".parse().expect("an address"))
                .await
                .expect("loopback");
            let address = listener.local_addr().expect("bound");
            cluster.lock().nodes.insert(id, address);
            let cluster = cluster.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let cluster = cluster.clone();
                    tokio::spawn(async move { cluster.serve(id, stream).await });
                }
            });
        }
        cluster
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics in here")
    }

    pub fn bootstrap(&self) -> String {
        let all: Vec<String> = self
            .lock()
            .nodes
            .values()
            .map(SocketAddr::to_string)
            .collect();
        all.join(",")
    }

    /// A topic whose partitions all have the leader `leader`, in epoch 1.
    pub fn create(&self, topic: &str, partitions: usize, leader: i32) {
        let mut state = self.lock();
        state.next_topic += 1;
        let partition = || Partition {
            leader,
            epoch: 1,
            ..Partition::default()
        };
        let partitions = std::iter::repeat_with(partition).take(partitions).collect();
        let id = state.next_topic;
        state.topics.insert(topic.to_owned(), (id, partitions));
    }

    pub fn auto_create(&self, partitions: usize) {
        self.lock().auto_create = Some(partitions);
    }

    pub fn lead(&self, topic: &str, partition: usize, leader: i32) {
        let mut state = self.lock();
        let partition = &mut state.topics.get_mut(topic).expect("created").1[partition];
        partition.leader = leader;
        partition.epoch += 1;
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn without_hints(&self) {
        self.lock().hints = false;
    }

    /// Caps the version of an API that is offered.
    pub fn cap(&self, key: i16, version: i16) {
        self.lock().versions.insert(key, version);
    }

    pub fn max_batch(&self, bytes: usize) {
        self.lock().batch_bytes_max = bytes;
    }

    pub fn controller(&self, id: i32) {
        self.lock().controller = id;
    }

    /// What the node does with its next Produce and CreateTopics requests, one each.
    pub fn script(&self, node: i32, acts: impl IntoIterator<Item = Act>) {
        self.lock().script.entry(node).or_default().extend(acts);
    }

    pub fn release(&self) {
        self.released.notify_waiters();
    }

    /// Looks at the group, or changes it.
    pub fn group<T>(&self, look: impl FnOnce(&mut MockGroup) -> T) -> T {
        let looked = look(&mut self.lock().group);
        self.wake();
        looked
    }

    pub fn wake(&self) {
        self.group_changed.notify_waiters();
    }

    /// Waits until the group looks like this.
    pub async fn wait_for(&self, is_there: impl Fn(&MockGroup) -> bool) {
        loop {
            let changed = self.group_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_there(&self.lock().group) {
                return;
            }
            changed.await;
        }
    }

    pub fn coordinator(&self) -> (i32, SocketAddr) {
        let state = self.lock();
        let id = state.group.coordinator;
        (id, state.nodes[&id])
    }

    /// The node answers nothing from here on.
    pub fn stop(&self, node: i32) {
        self.lock().stopped.push(node);
    }

    /// The next fetches end in closed connections.
    pub fn drop_fetches(&self, count: usize) {
        self.lock().fetch_drops = count;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.lock().seen.clone()
    }

    pub fn fetches(&self) -> usize {
        self.lock().fetches
    }

    /// Cuts the start of a partition off.
    pub fn trim(&self, topic: &str, partition: usize, log_start: i64) {
        let mut state = self.lock();
        let partition = &mut state.topics.get_mut(topic).expect("created").1[partition];
        partition.log_start = log_start;
        partition
            .log
            .retain(|batch| batch.header().next_offset().get() > log_start);
    }

    /// The values of a partition's log, in order.
    pub fn values(&self, topic: &str, partition: usize) -> Vec<String> {
        let state = self.lock();
        let log = &state.topics[topic].1[partition].log;
        log.iter()
            .flat_map(|batch| batch.records(1 << 30).expect("readable"))
            .map(|record| record.expect("readable").value.unwrap_or_default())
            .map(|value| String::from_utf8_lossy(&value).into_owned())
            .collect()
    }

    pub fn topics(&self) -> Vec<String> {
        self.lock().topics.keys().cloned().collect()
    }

    async fn serve(&self, node: i32, mut stream: Stream) {
        while let Ok(length) = stream.read_i32().await {
            let mut frame = BytesMut::zeroed(length as usize);
            if stream.read_exact(&mut frame).await.is_err() {
                return;
            }
            if self.lock().stopped.contains(&node) {
                std::future::pending::<()>().await;
            }
            let (header, request) = match decode_request(frame.freeze()) {
                Ok(decoded) => decoded,
                Err(error) => {
                    let Some(header) = error.wants_api_versions_fallback() else {
                        return;
                    };
                    let fallback = corduroy_protocol::api_versions_fallback(header);
                    if stream.write_all(&fallback).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            let chunks = match request {
                Request::Produce(request) => {
                    let acks = request.acks;
                    match self.produce(node, request).await {
                        Some(_) if acks == 0 => Vec::new(),
                        Some(answer) => plain(&header, answer),
                        None => return,
                    }
                }
                Request::Fetch(request) => match self.fetch(node, &header, request).await {
                    Some(chunks) => chunks,
                    None => return,
                },
                other => match self.coordinate(node, &other).await {
                    Some(answer) => plain(&header, answer),
                    None => plain(&header, self.answer(node, &header, other)),
                },
            };
            if self.lock().stopped.contains(&node) {
                std::future::pending::<()>().await;
            }
            for chunk in chunks {
                if stream.write_all(&chunk).await.is_err() {
                    return;
                }
            }
        }
    }

    fn answer(&self, node: i32, header: &RequestHeader, request: Request) -> Response {
        match request {
            Request::ApiVersions(_) => self.versions().into(),
            Request::Metadata(request) => self.metadata(header, request).into(),
            Request::ListOffsets(request) => self.list_offsets(node, request).into(),
            Request::InitProducerId(_) => {
                let mut state = self.lock();
                state.next_producer += 1;
                InitProducerIdResponse::default()
                    .with_producer_id(ProducerId(state.next_producer))
                    .with_producer_epoch(0)
                    .into()
            }
            Request::CreateTopics(request) => {
                let topic = &request.topics[0];
                let name = topic.name.to_string();
                let is_controller = self.lock().controller == node;
                let exists = self.lock().topics.contains_key(&name);
                let code = match (is_controller, exists, self.next_act(node)) {
                    (false, ..) => ErrorCode::NotController,
                    (true, true, _) => ErrorCode::TopicAlreadyExists,
                    (true, false, Act::AppendThenRefuse(code)) => code,
                    (true, false, _) => ErrorCode::None,
                };
                if is_controller && !exists && !request.validate_only {
                    self.create(&name, topic.num_partitions.max(1) as usize, node);
                }
                let result = CreatableTopicResult::default()
                    .with_name(topic.name.clone())
                    .with_error_code(code.code())
                    .with_error_message(Some(StrBytes::from_static_str("says the mock")));
                CreateTopicsResponse::default()
                    .with_topics(vec![result])
                    .into()
            }
            Request::DeleteTopics(request) => {
                let by_state = request.topics.first().and_then(|topic| topic.name.clone());
                let name = by_state
                    .or(request.topic_names.first().cloned())
                    .expect("a name");
                let gone = self.lock().topics.remove(&name.to_string());
                let code = match gone {
                    Some(_) => ErrorCode::None,
                    None => ErrorCode::UnknownTopicOrPartition,
                };
                let result = DeletableTopicResult::default()
                    .with_name(Some(name))
                    .with_error_code(code.code());
                DeleteTopicsResponse::default()
                    .with_responses(vec![result])
                    .into()
            }
            Request::DescribeCluster(_) => {
                let state = self.lock();
                let brokers = state.nodes.iter().map(|(id, address)| {
                    DescribeClusterBroker::default()
                        .with_broker_id(BrokerId(*id))
                        .with_host(StrBytes::from_string(address.ip().to_string()))
                        .with_port(i32::from(address.port()))
                });
                DescribeClusterResponse::default()
                    .with_cluster_id(StrBytes::from_static_str("mock"))
                    .with_controller_id(BrokerId(state.controller))
                    .with_brokers(brokers.collect())
                    .into()
            }
            Request::CreatePartitions(request) => {
                let grown = &request.topics[0];
                let mut state = self.lock();
                let (_, partitions) = state
                    .topics
                    .get_mut(&grown.name.to_string())
                    .expect("created");
                let leader = partitions[0].leader;
                partitions.resize_with(grown.count as usize, || Partition {
                    leader,
                    epoch: 1,
                    ..Partition::default()
                });
                let result = CreatePartitionsTopicResult::default().with_name(grown.name.clone());
                CreatePartitionsResponse::default()
                    .with_results(vec![result])
                    .into()
            }
            Request::IncrementalAlterConfigs(request) => {
                let resource = &request.resources[0];
                let mut state = self.lock();
                for config in &resource.configs {
                    match &config.value {
                        Some(value) => {
                            state
                                .configs
                                .insert(config.name.to_string(), value.to_string());
                        }
                        None => drop(state.configs.remove(&config.name.to_string())),
                    }
                }
                let response = AlterConfigsResourceResponse::default()
                    .with_resource_type(resource.resource_type)
                    .with_resource_name(resource.resource_name.clone());
                IncrementalAlterConfigsResponse::default()
                    .with_responses(vec![response])
                    .into()
            }
            Request::DescribeConfigs(request) => {
                let state = self.lock();
                let configs = state.configs.iter().map(|(name, value)| {
                    DescribeConfigsResourceResult::default()
                        .with_name(StrBytes::from_string(name.clone()))
                        .with_value(Some(StrBytes::from_string(value.clone())))
                        .with_config_source(1)
                });
                let result = DescribeConfigsResult::default()
                    .with_resource_type(request.resources[0].resource_type)
                    .with_resource_name(request.resources[0].resource_name.clone())
                    .with_configs(configs.collect());
                DescribeConfigsResponse::default()
                    .with_results(vec![result])
                    .into()
            }
            other => panic!("the mock does not serve {other:?}"),
        }
    }

    fn versions(&self) -> ApiVersionsResponse {
        let state = self.lock();
        let keys = SERVED.iter().map(|range| {
            let key = range.key as i16;
            let max = state.versions.get(&key).copied().unwrap_or(range.max);
            ApiVersion::default()
                .with_api_key(key)
                .with_min_version(range.served_min)
                .with_max_version(max)
        });
        ApiVersionsResponse::default().with_api_keys(keys.collect())
    }

    fn metadata(&self, header: &RequestHeader, request: MetadataRequest) -> MetadataResponse {
        let wanted: Vec<String> = match &request.topics {
            None => self.topics(),
            Some(topics) => topics
                .iter()
                .filter_map(|topic| topic.name.as_ref())
                .map(|n| n.to_string())
                .collect(),
        };
        let auto_create = self
            .lock()
            .auto_create
            .filter(|_| request.allow_auto_topic_creation);
        for name in &wanted {
            if let Some(partitions) = auto_create
                && !self.topics().contains(name)
            {
                self.create(name, partitions, 1);
            }
        }
        let state = self.lock();
        let brokers = state.nodes.iter().map(|(id, address)| {
            MetadataResponseBroker::default()
                .with_node_id(BrokerId(*id))
                .with_host(StrBytes::from_string(address.ip().to_string()))
                .with_port(i32::from(address.port()))
        });
        let topics = wanted.iter().map(|name| {
            let topic = MetadataResponseTopic::default()
                .with_name(Some(TopicName(StrBytes::from_string(name.clone()))));
            let Some((id, partitions)) = state.topics.get(name) else {
                return topic.with_error_code(ErrorCode::UnknownTopicOrPartition.code());
            };
            let partitions = partitions.iter().zip(0..).map(|(partition, index)| {
                let answer = MetadataResponsePartition::default()
                    .with_partition_index(index)
                    .with_leader_id(BrokerId(partition.leader))
                    .with_replica_nodes(state.nodes.keys().copied().map(BrokerId).collect())
                    .with_isr_nodes(vec![BrokerId(partition.leader)]);
                if header.api_version >= 7 {
                    return answer.with_leader_epoch(partition.epoch);
                }
                answer
            });
            let topic = topic.with_partitions(partitions.collect());
            if header.api_version >= 10 {
                return topic.with_topic_id(uuid::Uuid::from_u128(*id));
            }
            topic
        });
        MetadataResponse::default()
            .with_brokers(brokers.collect())
            .with_controller_id(BrokerId(state.controller))
            .with_topics(topics.collect())
    }

    fn list_offsets(&self, node: i32, request: ListOffsetsRequest) -> ListOffsetsResponse {
        let state = self.lock();
        let topics = request.topics.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|asked| {
                let answer = ListOffsetsPartitionResponse::default()
                    .with_partition_index(asked.partition_index)
                    .with_timestamp(-1)
                    .with_offset(-1);
                let known = state.topics.get(&topic.name.to_string());
                let Some(partition) =
                    known.and_then(|known| known.1.get(asked.partition_index as usize))
                else {
                    return answer.with_error_code(ErrorCode::UnknownTopicOrPartition.code());
                };
                if partition.leader != node {
                    return answer.with_error_code(ErrorCode::NotLeaderOrFollower.code());
                }
                match asked.timestamp {
                    -1 => answer.with_offset(partition.next_offset),
                    -2 => answer.with_offset(partition.log_start),
                    time => {
                        let records = partition.log.iter().flat_map(|batch| {
                            batch
                                .records(1 << 30)
                                .expect("readable")
                                .map(|r| r.expect("readable"))
                        });
                        match records.into_iter().find(|record| record.timestamp >= time) {
                            Some(record) => answer
                                .with_offset(record.offset.get())
                                .with_timestamp(record.timestamp),
                            None => answer,
                        }
                    }
                }
            });
            ListOffsetsTopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(partitions.collect())
        });
        ListOffsetsResponse::default().with_topics(topics.collect())
    }

    fn next_act(&self, node: i32) -> Act {
        let mut state = self.lock();
        let act = state.script.get_mut(&node).and_then(VecDeque::pop_front);
        act.unwrap_or(Act::Serve)
    }

    /// `None` closes the connection.
    async fn produce(&self, node: i32, request: ProduceRequest) -> Option<Response> {
        let act = self.next_act(node);
        match act {
            Act::Hold => self.released.notified().await,
            Act::Drop => return None,
            _ => {}
        }
        let mut endpoints = Vec::new();
        let mut responses = Vec::new();
        for topic in request.topic_data {
            let name = topic.name.to_string();
            let mut parts = Vec::new();
            for data in topic.partition_data {
                let batch = parse_single(data.records.expect("records")).expect("one batch");
                let part = self.append(node, &name, data.index, batch, &act);
                if let Some(leader) = Some(part.current_leader.leader_id.0).filter(|id| *id >= 0) {
                    let address = self.lock().nodes[&leader];
                    endpoints.push(
                        NodeEndpoint::default()
                            .with_node_id(BrokerId(leader))
                            .with_host(StrBytes::from_string(address.ip().to_string()))
                            .with_port(i32::from(address.port())),
                    );
                }
                parts.push(part);
            }
            responses.push(
                TopicProduceResponse::default()
                    .with_name(topic.name)
                    .with_partition_responses(parts),
            );
        }
        self.changed.notify_waiters();
        if matches!(act, Act::AppendThenDrop) {
            return None;
        }
        let response = ProduceResponse::default()
            .with_responses(responses)
            .with_node_endpoints(endpoints);
        Some(response.into())
    }

    fn append(
        &self,
        node: i32,
        topic: &str,
        index: i32,
        batch: Batch,
        act: &Act,
    ) -> PartitionProduceResponse {
        let mut state = self.lock();
        let State {
            topics,
            seen,
            batch_bytes_max,
            hints,
            ..
        } = &mut *state;
        let hints = *hints;
        let answer = PartitionProduceResponse::default()
            .with_index(index)
            .with_base_offset(-1)
            .with_log_append_time_ms(-1);
        let header = *batch.header();
        let known = topics
            .get_mut(topic)
            .and_then(|topic| topic.1.get_mut(index as usize));
        let mut moved_to = None;
        let judged = match (act, known) {
            (Act::Refuse(code), _) => Err(*code),
            (_, None) => Err(ErrorCode::UnknownTopicOrPartition),
            (_, Some(partition)) if partition.leader != node => {
                moved_to = Some((partition.leader, partition.epoch));
                Err(ErrorCode::NotLeaderOrFollower)
            }
            (_, Some(partition)) => {
                if matches!(act, Act::Forget) {
                    partition.producers.clear();
                    // A broker that has lost its memory accepts any place; this one also says that
                    // it knows another one already, which is what a lost log looks like.
                    let producer = partition.producers.entry(header.producer_id.get());
                    producer.or_default().window.push_back((0, 1_000_000, 0));
                }
                batch
                    .validate(&ValidateRules::client(*batch_bytes_max))
                    .map_err(|error| match error {
                        corduroy_record::BatchError::TooLarge { .. } => ErrorCode::MessageTooLarge,
                        _ => ErrorCode::CorruptMessage,
                    })
                    .and_then(|()| partition.take_in(batch))
            }
        };
        let judged = match act {
            Act::AppendThenRefuse(code) => judged.and(Err(*code)),
            _ => judged,
        };
        seen.push(Seen {
            node,
            partition: index,
            epoch: header.producer_epoch.get(),
            sequence: header.base_sequence,
            records: header.record_count,
            answer: judged.err().unwrap_or(ErrorCode::None),
        });
        match judged {
            Ok(base_offset) => answer.with_base_offset(base_offset),
            Err(code) => {
                let answer = answer.with_error_code(code.code());
                match moved_to.filter(|_| hints) {
                    Some((leader, epoch)) => answer.with_current_leader(
                        LeaderIdAndEpoch::default()
                            .with_leader_id(BrokerId(leader))
                            .with_leader_epoch(epoch),
                    ),
                    None => answer,
                }
            }
        }
    }

    async fn fetch(
        &self,
        node: i32,
        header: &RequestHeader,
        request: FetchRequest,
    ) -> Option<Vec<Bytes>> {
        let deadline =
            tokio::time::Instant::now() + Duration::from_millis(request.max_wait_ms as u64);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (data, ready) = {
                let mut state = self.lock();
                state.fetches += 1;
                if state.fetch_drops > 0 {
                    state.fetch_drops -= 1;
                    return None;
                }
                fetched(&state, node, &request)
            };
            if ready || tokio::time::Instant::now() >= deadline {
                return Some(encode_fetch_response(header, &data));
            }
            self.lock().fetches -= 1;
            let _ = tokio::time::timeout_at(deadline, changed).await;
        }
    }
}

fn fetched(state: &State, node: i32, request: &FetchRequest) -> (FetchResponseData, bool) {
    let mut ready = false;
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|asked| {
            let known = state.topics.get(&topic.topic.to_string());
            let Some(partition) = known.and_then(|known| known.1.get(asked.partition as usize))
            else {
                ready = true;
                let code = ErrorCode::UnknownTopicOrPartition;
                return FetchPartitionData::failed(asked.partition, code);
            };
            if partition.leader != node {
                ready = true;
                let code = ErrorCode::NotLeaderOrFollower;
                let mut answer = FetchPartitionData::failed(asked.partition, code);
                answer.current_leader =
                    Some((partition.leader, partition.epoch)).filter(|_| state.hints);
                return answer;
            }
            let offset = asked.fetch_offset;
            if asked.last_fetched_epoch > partition.epoch {
                ready = true;
                let mut answer = FetchPartitionData::failed(asked.partition, ErrorCode::None);
                answer.diverging_epoch = Some((partition.epoch, state.group.logs_part_at));
                return answer;
            }
            if !(partition.log_start..=partition.next_offset).contains(&offset) {
                ready = true;
                let code = ErrorCode::OffsetOutOfRange;
                let mut answer = FetchPartitionData::failed(asked.partition, code);
                answer.log_start_offset = partition.log_start;
                answer.high_watermark = partition.next_offset;
                return answer;
            }
            let mut bytes = 0;
            let batches: Vec<Batch> = partition
                .log
                .iter()
                .filter(|batch| batch.header().next_offset().get() > offset)
                .take_while(|batch| {
                    let is_first = bytes == 0;
                    bytes += batch.size_bytes();
                    is_first || bytes <= asked.partition_max_bytes as usize
                })
                .cloned()
                .collect();
            ready |= !batches.is_empty();
            let mut answer = FetchPartitionData::failed(asked.partition, ErrorCode::None);
            answer.high_watermark = partition.next_offset;
            answer.last_stable_offset = partition.next_offset;
            answer.log_start_offset = partition.log_start;
            answer.batches = batches;
            answer
        });
        FetchTopicData {
            name: topic.topic.0.clone(),
            partitions: partitions.collect(),
        }
    });
    let topics = topics.collect();
    (
        FetchResponseData {
            throttle_ms: 0,
            error: ErrorCode::None,
            session_id: 0,
            topics,
        },
        ready,
    )
}

fn plain(header: &RequestHeader, response: Response) -> Vec<Bytes> {
    vec![encode_response(header, &response).expect("the mock answers what the version has")]
}
