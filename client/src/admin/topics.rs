//! Topics: create, delete, grow, list, describe.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::sync::Arc;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use corduroy_protocol::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use corduroy_protocol::messages::delete_topics_request::DeleteTopicState;
use corduroy_protocol::messages::metadata_request::MetadataRequestTopic;
use corduroy_protocol::messages::{
    BrokerId, CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest,
    TopicName,
};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use super::configs::{ConfigResource, ConfigSource};
use super::log_end::log_ends;
use super::{Admin, AdminCall, check};
use crate::client::{ClientShared, Target};
use crate::config::Isolation;
use crate::error::{Error, ErrorKind, Outcome};
use crate::metadata::{Asker, ClusterImage, TopicImage, UNKNOWN_TOPIC_GRACE};
use crate::net::api::StrBytes;
use crate::offsets::{ListedOffset, OffsetSpec, Question, list_once};

/// A topic of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicListing {
    /// Its name.
    pub name: String,
    /// Its id; nil on clusters without topic ids (before Kafka 2.8).
    pub id: Uuid,
    /// It belongs to the cluster itself.
    pub internal: bool,
    /// How many partitions it has.
    pub partitions: usize,
    /// Replicas of its first partition.
    pub replication: usize,
}

/// A topic, in full.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicDescription {
    /// Its name.
    pub name: String,
    /// Its id; nil on clusters without topic ids.
    pub id: Uuid,
    /// It belongs to the cluster itself.
    pub internal: bool,
    /// Its partitions, by number.
    pub partitions: Vec<PartitionDescription>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionDescription {
    /// Its number.
    pub partition: i32,
    /// Its leader, if there is one.
    pub leader: Option<i32>,
    /// The leader's epoch, -1 = unknown.
    pub leader_epoch: i32,
    /// The brokers that hold it, the preferred leader first.
    pub replicas: Vec<i32>,
    /// Those that are in sync.
    pub isr: Vec<i32>,
    /// Those that are down.
    pub offline: Vec<i32>,
    /// Its offsets, where they were asked for and the leader answered.
    pub offsets: Option<PartitionOffsets>,
}

/// The offsets of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionOffsets {
    /// The first record that is kept.
    pub log_start: i64,
    /// Where reading ends.
    pub high_watermark: i64,
    /// Where reading ends for readers of committed records.
    pub last_stable: i64,
    /// The end of the leader's log, with what is not committed yet; `None` where it does not tell.
    pub log_end: Option<i64>,
}

impl Admin {
    /// Creates a topic: add what it should be, then await.
    pub fn create_topic(&self, name: impl Into<String>) -> CreateTopic {
        CreateTopic {
            client: self.client.clone(),
            name: name.into(),
            partitions: None,
            replication: None,
            assignment: Vec::new(),
            configs: Vec::new(),
            validate_only: false,
            ensure: false,
        }
    }

    /// Deletes a topic.
    ///
    /// # Errors
    /// UnknownTopic; the controller's refusal. An unknown outcome means that the topic may be gone.
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let topic: Arc<str> = name.into();
        let deadline = self.client.api_deadline();
        let name = TopicName(StrBytes::from_string(name.to_owned()));
        let deleted = self
            .client
            .ask(
                Target::Controller,
                deadline,
                |version| {
                    let request = DeleteTopicsRequest::default()
                        .with_timeout_ms(timeout_ms(&self.client, deadline));
                    if version >= 6 {
                        let state = DeleteTopicState::default().with_name(Some(name.clone()));
                        return request.with_topics(vec![state]);
                    }
                    request.with_topic_names(vec![name.clone()])
                },
                |answer| match answer.responses.first() {
                    Some(part) => check(part.error_code, part.error_message.as_deref()),
                    None => Err(Error::new(
                        ErrorKind::Malformed,
                        "an answer without the topic",
                    )),
                },
            )
            .await;
        match deleted {
            Ok(_) => Ok(()),
            // An earlier try of ours was it.
            Err(error)
                if error.kind() == ErrorKind::UnknownTopic
                    && error.outcome() == Outcome::Unknown =>
            {
                Ok(())
            }
            Err(error) => Err(error.with_topic(&topic)),
        }
    }

    /// Grows a topic to `partitions` partitions. Keys then go to other partitions than before.
    ///
    /// # Errors
    /// UnknownTopic; the controller's refusal, INVALID_PARTITIONS where there are as many already.
    pub async fn create_partitions(&self, topic: &str, partitions: i32) -> Result<(), Error> {
        let name: Arc<str> = topic.into();
        let deadline = self.client.api_deadline();
        let grown = self
            .client
            .ask(
                Target::Controller,
                deadline,
                |_version| {
                    let grown = CreatePartitionsTopic::default()
                        .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
                        .with_count(partitions)
                        .with_assignments(None);
                    CreatePartitionsRequest::default()
                        .with_topics(vec![grown])
                        .with_timeout_ms(timeout_ms(&self.client, deadline))
                },
                |answer| match answer.results.first() {
                    Some(part) => check(part.error_code, part.error_message.as_deref()),
                    None => Err(Error::new(
                        ErrorKind::Malformed,
                        "an answer without the topic",
                    )),
                },
            )
            .await;
        match grown {
            Ok(_) => Ok(()),
            // An earlier try of ours was it, if there are as many as it asked for.
            Err(error)
                if error.kind() == ErrorKind::Broker(ErrorCode::InvalidPartitions)
                    && error.outcome() == Outcome::Unknown
                    && self.describe_topic(topic).await?.partitions.len() as i32 == partitions =>
            {
                Ok(())
            }
            Err(error) => Err(error.with_topic(&name)),
        }
    }

    /// All topics, by name.
    ///
    /// # Errors
    /// Why no broker answered.
    pub async fn list_topics(&self) -> Result<Vec<TopicListing>, Error> {
        let image = self.look(None).await?;
        let mut topics: Vec<TopicListing> = image
            .topics
            .values()
            .map(|topic| TopicListing {
                name: topic.name.to_string(),
                id: topic.id,
                internal: topic.internal,
                partitions: topic.partitions.len(),
                replication: topic
                    .partitions
                    .first()
                    .map_or(0, |first| first.replicas.len()),
            })
            .collect();
        topics.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(topics)
    }

    /// Describes a topic: await it, or ask for [`offsets`](DescribeTopic::offsets) as well.
    pub fn describe_topic(&self, name: impl Into<String>) -> DescribeTopic {
        DescribeTopic {
            admin: self.clone(),
            name: name.into(),
            offsets: false,
        }
    }

    /// Describes several topics, without offsets, in the order given.
    ///
    /// # Errors
    /// UnknownTopic for the first one that does not exist; why no broker answered.
    pub async fn describe_topics(&self, names: &[&str]) -> Result<Vec<TopicDescription>, Error> {
        let deadline = self.client.net.env.now() + UNKNOWN_TOPIC_GRACE;
        let mut attempts = 0;
        loop {
            let image = self.look(Some(names)).await?;
            let described: Result<Vec<TopicDescription>, Error> =
                names.iter().map(|name| describe(&image, name)).collect();
            attempts += 1;
            let again = self
                .client
                .net
                .retry_backoff()
                .wait(attempts, &self.client.net.env);
            let again = self.client.net.env.now() + again;
            match described {
                // A topic may have been created a moment ago, by way of another broker.
                Err(error) if error.is_passing() && again < deadline => sleep_until(again).await,
                described => return described,
            }
        }
    }

    /// Metadata, fresh from a broker; of all topics where `names` is `None`. Creates nothing.
    async fn look(&self, names: Option<&[&str]>) -> Result<ClusterImage, Error> {
        let wanted: Option<Vec<MetadataRequestTopic>> = names.map(|names| {
            let named = |name: &&str| {
                let name = TopicName(StrBytes::from_string((*name).to_owned()));
                MetadataRequestTopic::default().with_name(Some(name))
            };
            names.iter().map(named).collect()
        });
        let answer = self
            .client
            .ask_any(
                self.client.api_deadline(),
                |version| {
                    MetadataRequest::default()
                        .with_topics(wanted.clone())
                        .with_allow_auto_topic_creation(version < 4)
                },
                |_answer| Ok(()),
            )
            .await?;
        Ok(ClusterImage::default().merged(&answer))
    }
}

/// A description on its way. Await it.
#[must_use = "nothing is asked until it is awaited"]
pub struct DescribeTopic {
    admin: Admin,
    name: String,
    offsets: bool,
}

impl DescribeTopic {
    /// Asks the leaders for offsets as well. A partition whose leader does not answer at once has
    /// none.
    pub fn offsets(mut self) -> DescribeTopic {
        self.offsets = true;
        self
    }

    async fn run(self) -> Result<TopicDescription, Error> {
        let DescribeTopic {
            admin,
            name,
            offsets,
        } = self;
        let described = admin.describe_topics(&[&name]).await?;
        let Some(mut topic) = described.into_iter().next() else {
            return Err(Error::new(
                ErrorKind::Malformed,
                "an answer without the topic",
            ));
        };
        if offsets {
            admin.add_offsets(&mut topic).await;
        }
        Ok(topic)
    }
}

impl IntoFuture for DescribeTopic {
    type Output = Result<TopicDescription, Error>;
    type IntoFuture = AdminCall<TopicDescription>;

    fn into_future(self) -> AdminCall<TopicDescription> {
        Box::pin(self.run())
    }
}

impl Admin {
    async fn add_offsets(&self, topic: &mut TopicDescription) {
        let name: Arc<str> = topic.name.as_str().into();
        // The leaders are found by the shared image.
        let deadline = self.client.api_deadline();
        let known = self.client.metadata.topic(&name, Asker::Reader, deadline);
        if known.await.is_err() {
            return;
        }
        let ask = |spec, isolation| {
            let wanted: BTreeMap<i32, OffsetSpec> = topic
                .partitions
                .iter()
                .map(|partition| (partition.partition, spec))
                .collect();
            let question = Question {
                topic: &name,
                wanted,
                isolation,
            };
            async move { list_once(&self.client, &question).await.0 }
        };
        let numbers = topic.partitions.iter().map(|partition| partition.partition);
        let (starts, ends, stable, log_ends) = futures::join!(
            ask(OffsetSpec::Earliest, Isolation::ReadUncommitted),
            ask(OffsetSpec::Latest, Isolation::ReadUncommitted),
            ask(OffsetSpec::Latest, Isolation::ReadCommitted),
            log_ends(&self.client, &name, numbers),
        );
        for partition in &mut topic.partitions {
            let at = |found: &BTreeMap<i32, ListedOffset>| {
                found
                    .get(&partition.partition)
                    .and_then(|listed| listed.offset)
            };
            if let (Some(log_start), Some(high_watermark)) = (at(&starts), at(&ends)) {
                let last_stable = at(&stable).unwrap_or(high_watermark);
                partition.offsets = Some(PartitionOffsets {
                    log_start,
                    high_watermark,
                    last_stable,
                    // Asked beside the others: what has been committed meanwhile is in the log.
                    log_end: log_ends
                        .get(&partition.partition)
                        .map(|end| *end.max(&high_watermark)),
                });
            }
        }
    }
}

/// What became of a topic that was to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreatedTopic {
    /// Its name.
    pub name: String,
    /// Its id, where the cluster tells.
    pub id: Option<Uuid>,
    /// How many partitions it has, where the cluster tells.
    pub partitions: Option<i32>,
    /// How many replicas each has, where the cluster tells.
    pub replication: Option<i16>,
    /// `false`: it was there already ([`CreateTopic::ensure`]), or nothing was to be created
    /// ([`CreateTopic::validate_only`]).
    pub created: bool,
}

/// A topic to create. Await it.
#[must_use = "nothing is created until it is awaited"]
pub struct CreateTopic {
    client: Arc<ClientShared>,
    name: String,
    partitions: Option<i32>,
    replication: Option<i16>,
    assignment: Vec<Vec<i32>>,
    configs: Vec<(String, String)>,
    validate_only: bool,
    ensure: bool,
}

impl CreateTopic {
    /// How many partitions. Default: the cluster's `num.partitions`.
    pub fn partitions(mut self, partitions: i32) -> CreateTopic {
        self.partitions = Some(partitions);
        self
    }

    /// How many replicas of each. Default: the cluster's `default.replication.factor`.
    pub fn replication(mut self, replicas: i16) -> CreateTopic {
        self.replication = Some(replicas);
        self
    }

    /// A configuration value.
    pub fn config(mut self, name: impl Into<String>, value: impl Into<String>) -> CreateTopic {
        self.configs.push((name.into(), value.into()));
        self
    }

    /// The brokers of each partition, the preferred leader first; instead of partitions and
    /// replication.
    pub fn assignment(mut self, replicas: Vec<Vec<i32>>) -> CreateTopic {
        self.assignment = replicas;
        self
    }

    /// Only checks whether the topic could be created.
    pub fn validate_only(mut self) -> CreateTopic {
        self.validate_only = true;
        self
    }

    /// A topic of this name that exists already is as good. It is not changed.
    pub fn ensure(mut self) -> CreateTopic {
        self.ensure = true;
        self
    }

    fn request(&self, version: i16, deadline: Instant) -> CreateTopicsRequest {
        // Defaults of the cluster are asked for by -1, since version 4 (KIP-464).
        let counted = |count: Option<i32>, oldest: i32| match count {
            Some(count) => count,
            None if version >= 4 || !self.assignment.is_empty() => -1,
            None => oldest,
        };
        let assignments = self.assignment.iter().zip(0..).map(|(replicas, index)| {
            CreatableReplicaAssignment::default()
                .with_partition_index(index)
                .with_broker_ids(replicas.iter().copied().map(BrokerId).collect())
        });
        let configs = self.configs.iter().map(|(name, value)| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_string(name.clone()))
                .with_value(Some(StrBytes::from_string(value.clone())))
        });
        let topic = CreatableTopic::default()
            .with_name(TopicName(StrBytes::from_string(self.name.clone())))
            .with_num_partitions(counted(self.partitions, 1))
            .with_replication_factor(counted(self.replication.map(i32::from), 1) as i16)
            .with_assignments(assignments.collect())
            .with_configs(configs.collect());
        CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(timeout_ms(&self.client, deadline))
            .with_validate_only(self.validate_only)
    }

    /// Whether a topic has the partitions, the replicas and the settings that were asked for, and no
    /// other settings of its own.
    async fn is_what_was_asked_for(&self, described: &TopicDescription) -> Result<bool, Error> {
        let has = |asked: Option<usize>, found: usize| asked.is_none_or(|asked| asked == found);
        let replicas = described.partitions.iter();
        let mut replicas = replicas.map(|partition| &partition.replicas);
        let asked = |count: i64| usize::try_from(count).unwrap_or(usize::MAX);
        let is_so_large = match self.assignment.is_empty() {
            true => {
                let partitions = self.partitions.map(|count| asked(count.into()));
                let replication = self.replication.map(|count| asked(count.into()));
                has(partitions, described.partitions.len())
                    && replicas.all(|replicas| has(replication, replicas.len()))
            }
            false => replicas.eq(self.assignment.iter()),
        };
        if !is_so_large {
            return Ok(false);
        }
        let resource = ConfigResource::Topic(self.name.clone());
        let entries = Admin::new(self.client.clone())
            .describe_configs(&resource)
            .await?;
        let own = entries
            .into_iter()
            .filter(|entry| entry.source == ConfigSource::Topic);
        let own: BTreeMap<String, Option<String>> =
            own.map(|entry| (entry.name, entry.value)).collect();
        let wanted: BTreeMap<String, Option<String>> = self
            .configs
            .iter()
            .map(|(name, value)| (name.clone(), Some(value.clone())))
            .collect();
        Ok(own == wanted)
    }

    async fn run(self) -> Result<CreatedTopic, Error> {
        let deadline = self.client.api_deadline();
        let name: Arc<str> = self.name.as_str().into();
        let asked = self
            .client
            .ask(
                Target::Controller,
                deadline,
                |version| self.request(version, deadline),
                |answer| match answer.topics.first() {
                    Some(part) => check(part.error_code, part.error_message.as_deref()),
                    None => Err(Error::new(
                        ErrorKind::Malformed,
                        "an answer without the topic",
                    )),
                },
            )
            .await;
        let exists = ErrorKind::Broker(ErrorCode::TopicAlreadyExists);
        match asked {
            Ok(response) => {
                let part = response.topics.into_iter().next().unwrap_or_default();
                if !self.validate_only {
                    self.client.metadata.refresh_soon();
                }
                Ok(CreatedTopic {
                    name: self.name,
                    id: Some(part.topic_id).filter(|id| !id.is_nil()),
                    partitions: Some(part.num_partitions).filter(|count| *count > 0),
                    replication: Some(part.replication_factor).filter(|count| *count > 0),
                    created: !self.validate_only,
                })
            }
            Err(error) if error.kind() == exists => {
                // An earlier try of ours was it, if what is there is what it asked for.
                let maybe_ours = error.outcome() == Outcome::Unknown && !self.validate_only;
                if !self.ensure && !maybe_ours {
                    return Err(error.with_topic(&name));
                }
                let described = Admin::new(self.client.clone())
                    .describe_topic(&*self.name)
                    .await?;
                let partitions = Some(described.partitions.len() as i32);
                let replication = described.partitions.first();
                let replication = replication.map(|first| first.replicas.len() as i16);
                let created = maybe_ours && self.is_what_was_asked_for(&described).await?;
                if !self.ensure && !created {
                    return Err(error.with_topic(&name));
                }
                Ok(CreatedTopic {
                    name: self.name,
                    id: Some(described.id).filter(|id| !id.is_nil()),
                    partitions,
                    replication,
                    created,
                })
            }
            Err(error) => Err(error.with_topic(&name)),
        }
    }
}

impl IntoFuture for CreateTopic {
    type Output = Result<CreatedTopic, Error>;
    type IntoFuture = AdminCall<CreatedTopic>;

    fn into_future(self) -> AdminCall<CreatedTopic> {
        Box::pin(self.run())
    }
}

/// How long a broker may take over a change: what is left, but less than this client waits.
fn timeout_ms(client: &ClientShared, deadline: Instant) -> i32 {
    let left = deadline.saturating_duration_since(client.net.env.now());
    let limit = left.min(client.net.settings.request_timeout) * 9 / 10;
    i32::try_from(limit.as_millis()).unwrap_or(i32::MAX)
}

fn describe(image: &ClusterImage, name: &str) -> Result<TopicDescription, Error> {
    let topic: Arc<str> = name.into();
    let unknown = || Error::new(ErrorKind::UnknownTopic, "the topic does not exist");
    let known: &TopicImage = image
        .topics
        .get(name)
        .ok_or_else(|| unknown().with_topic(&topic))?;
    match known.error {
        Some(ErrorCode::UnknownTopicOrPartition) => return Err(unknown().with_topic(&topic)),
        Some(code) if known.partitions.is_empty() => {
            return Err(Error::broker(code, None).with_topic(&topic));
        }
        _ => {}
    }
    let partitions =
        known
            .partitions
            .iter()
            .zip(0..)
            .map(|(partition, number)| PartitionDescription {
                partition: number,
                leader: partition.leader,
                leader_epoch: partition.epoch,
                replicas: partition.replicas.clone(),
                isr: partition.isr.clone(),
                offline: partition.offline.clone(),
                offsets: None,
            });
    Ok(TopicDescription {
        name: known.name.to_string(),
        id: known.id,
        internal: known.internal,
        partitions: partitions.collect(),
    })
}
