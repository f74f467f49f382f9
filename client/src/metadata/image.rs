//! What the client knows of its cluster: an immutable image, replaced as a whole. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::MetadataResponse;
use corduroy_protocol::messages::metadata_response::MetadataResponseTopic;
use uuid::Uuid;

/// A broker's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokerInfo {
    pub(crate) id: i32,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) rack: Option<String>,
    /// `id (host:port)`, for messages.
    pub(crate) label: Arc<str>,
}

impl BrokerInfo {
    pub(crate) fn new(id: i32, host: &str, port: i32, rack: Option<&str>) -> Option<BrokerInfo> {
        let port = u16::try_from(port).ok()?;
        Some(BrokerInfo {
            id,
            host: host.to_owned(),
            port,
            rack: rack.map(str::to_owned),
            label: format!("{id} ({host}:{port})").into(),
        })
    }
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartitionImage {
    pub(crate) leader: Option<i32>,
    /// The leader's epoch, -1 = unknown.
    pub(crate) epoch: i32,
    pub(crate) replicas: Vec<i32>,
    pub(crate) isr: Vec<i32>,
    pub(crate) offline: Vec<i32>,
}

impl PartitionImage {
    const UNKNOWN: PartitionImage = PartitionImage {
        leader: None,
        epoch: -1,
        replicas: Vec::new(),
        isr: Vec::new(),
        offline: Vec::new(),
    };

    /// Leader and epoch, to see whether they have changed.
    pub(crate) fn seen(&self) -> Option<(i32, i32)> {
        self.leader.map(|leader| (leader, self.epoch))
    }
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicImage {
    pub(crate) name: Arc<str>,
    pub(crate) id: Uuid,
    pub(crate) internal: bool,
    /// Why the topic is not usable.
    pub(crate) error: Option<ErrorCode>,
    /// By partition number.
    pub(crate) partitions: Vec<PartitionImage>,
}

/// The cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterImage {
    pub(crate) cluster_id: Option<String>,
    pub(crate) controller: Option<i32>,
    pub(crate) brokers: BTreeMap<i32, Arc<BrokerInfo>>,
    pub(crate) topics: HashMap<Arc<str>, Arc<TopicImage>>,
}

/// A leader that a broker named in passing (KIP-951).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaderHint {
    pub(crate) leader: i32,
    pub(crate) epoch: i32,
}

impl ClusterImage {
    pub(crate) fn partition(&self, topic: &str, partition: i32) -> Option<&PartitionImage> {
        let topic = self.topics.get(topic)?;
        topic.partitions.get(usize::try_from(partition).ok()?)
    }

    /// Takes in an answer. Topics that it does not mention stay as they were; a leader is not
    /// replaced by one of an older epoch (KIP-320: brokers learn of changes at different times).
    pub(crate) fn merged(&self, response: &MetadataResponse) -> ClusterImage {
        let mut image = self.clone();
        let brokers: BTreeMap<i32, Arc<BrokerInfo>> = response
            .brokers
            .iter()
            .filter_map(|broker| {
                let rack = broker.rack.as_deref();
                BrokerInfo::new(broker.node_id.0, &broker.host, broker.port, rack)
            })
            .map(|broker| (broker.id, Arc::new(broker)))
            .collect();
        // An answer without brokers comes from one that has not found its cluster yet.
        if !brokers.is_empty() {
            image.brokers = brokers;
        }
        if let Some(id) = &response.cluster_id {
            image.cluster_id = Some(id.to_string());
        }
        image.controller = Some(response.controller_id.0).filter(|id| *id >= 0);
        for topic in &response.topics {
            if let Some(name) = &topic.name {
                let old = self.topics.get(&***name).map(|old| &**old);
                let topic = Arc::new(TopicImage::merged(name, topic, old));
                image.topics.insert(topic.name.clone(), topic);
            }
        }
        image
    }

    /// The image with a hint taken in; `None` if it says nothing new.
    pub(crate) fn hinted(
        &self,
        topic: &str,
        partition: i32,
        hint: LeaderHint,
        endpoint: Option<BrokerInfo>,
    ) -> Option<ClusterImage> {
        let known = self.partition(topic, partition)?;
        let reachable = endpoint.is_some() || self.brokers.contains_key(&hint.leader);
        if hint.leader < 0 || hint.epoch <= known.epoch || !reachable {
            return None;
        }
        let mut image = self.clone();
        if let Some(broker) = endpoint {
            image.brokers.insert(broker.id, Arc::new(broker));
        }
        let topic = Arc::make_mut(image.topics.get_mut(topic)?);
        let place = &mut topic.partitions[partition as usize];
        place.leader = Some(hint.leader);
        place.epoch = hint.epoch;
        Some(image)
    }
}

impl TopicImage {
    fn merged(name: &str, answer: &MetadataResponseTopic, old: Option<&TopicImage>) -> TopicImage {
        let error = (answer.error_code != 0).then(|| ErrorCode::from_code(answer.error_code));
        let same = old
            .filter(|old| old.id == answer.topic_id || old.id.is_nil() || answer.topic_id.is_nil());
        let count = answer
            .partitions
            .iter()
            .map(|p| p.partition_index + 1)
            .max()
            .unwrap_or(0);
        let mut partitions = vec![PartitionImage::UNKNOWN; count.max(0) as usize];
        for partition in &answer.partitions {
            let Ok(index) = usize::try_from(partition.partition_index) else {
                continue;
            };
            let ids = |ids: &[_]| {
                ids.iter()
                    .map(|id: &corduroy_protocol::messages::BrokerId| id.0)
                    .collect()
            };
            let mut fresh = PartitionImage {
                leader: Some(partition.leader_id.0).filter(|id| *id >= 0),
                epoch: partition.leader_epoch,
                replicas: ids(&partition.replica_nodes),
                isr: ids(&partition.isr_nodes),
                offline: ids(&partition.offline_replicas),
            };
            if let Some(old) = same.and_then(|old| old.partitions.get(index))
                && fresh.epoch >= 0
                && fresh.epoch < old.epoch
            {
                fresh.leader = old.leader;
                fresh.epoch = old.epoch;
            }
            partitions[index] = fresh;
        }
        if partitions.is_empty()
            && error.is_some_and(|error| error.is_retriable())
            && error != Some(ErrorCode::UnknownTopicOrPartition)
            && let Some(old) = same
        {
            // A passing difficulty does not make the topic unknown.
            return old.clone();
        }
        TopicImage {
            name: old.map_or_else(|| name.into(), |old| old.name.clone()),
            id: answer.topic_id,
            internal: answer.is_internal,
            error,
            partitions,
        }
    }
}

#[cfg(test)]
mod tests {
    use corduroy_protocol::messages::metadata_response::{
        MetadataResponseBroker, MetadataResponsePartition,
    };
    use corduroy_protocol::messages::{BrokerId, TopicName};

    use super::*;
    use crate::net::api::StrBytes;

    fn broker(id: i32) -> MetadataResponseBroker {
        MetadataResponseBroker::default()
            .with_node_id(BrokerId(id))
            .with_host(StrBytes::from_static_str("h"))
            .with_port(9092)
    }

    fn answer(id: u128, error: i16, leaders: &[(i32, i32)]) -> MetadataResponse {
        let partitions = leaders
            .iter()
            .enumerate()
            .map(|(index, (leader, epoch))| {
                MetadataResponsePartition::default()
                    .with_partition_index(index as i32)
                    .with_leader_id(BrokerId(*leader))
                    .with_leader_epoch(*epoch)
            })
            .collect();
        let topic = MetadataResponseTopic::default()
            .with_name(Some(TopicName(StrBytes::from_static_str("t"))))
            .with_topic_id(Uuid::from_u128(id))
            .with_error_code(error)
            .with_partitions(partitions);
        MetadataResponse::default()
            .with_brokers(vec![broker(1), broker(2)])
            .with_topics(vec![topic])
    }

    fn leaders(image: &ClusterImage) -> Vec<Option<(i32, i32)>> {
        image.topics["t"]
            .partitions
            .iter()
            .map(PartitionImage::seen)
            .collect()
    }

    #[test]
    fn an_older_epoch_does_not_bring_back_an_old_leader() {
        let image = ClusterImage::default().merged(&answer(1, 0, &[(1, 5), (2, 5)]));
        let image = image.merged(&answer(1, 0, &[(2, 4), (1, 6)]));
        assert_eq!(leaders(&image), [Some((1, 5)), Some((1, 6))]);
    }

    #[test]
    fn a_recreated_topic_starts_over() {
        let image = ClusterImage::default().merged(&answer(1, 0, &[(1, 5)]));
        let image = image.merged(&answer(2, 0, &[(2, 1)]));
        assert_eq!(leaders(&image), [Some((2, 1))]);
    }

    #[test]
    fn a_leaderless_partition_has_no_leader_and_a_hint_gives_it_one() {
        let image = ClusterImage::default().merged(&answer(1, 0, &[(-1, 5)]));
        assert_eq!(leaders(&image), [None]);
        let hinted = image.hinted(
            "t",
            0,
            LeaderHint {
                leader: 2,
                epoch: 6,
            },
            None,
        );
        assert_eq!(leaders(&hinted.expect("news")), [Some((2, 6))]);
        for (leader, epoch) in [(2, 5), (-1, 9), (7, 9)] {
            let stale = image.hinted("t", 0, LeaderHint { leader, epoch }, None);
            assert!(stale.is_none(), "leader {leader} epoch {epoch}");
        }
        let endpoint = BrokerInfo::new(7, "far", 1, None);
        let hinted = image.hinted(
            "t",
            0,
            LeaderHint {
                leader: 7,
                epoch: 9,
            },
            endpoint,
        );
        assert_eq!(hinted.expect("reachable now").brokers[&7].host, "far");
    }

    #[test]
    fn passing_difficulties_keep_what_is_known_and_deletion_does_not() {
        let known = ClusterImage::default().merged(&answer(1, 0, &[(1, 5)]));
        let busy = known.merged(&answer(0, ErrorCode::LeaderNotAvailable.code(), &[]));
        assert_eq!(leaders(&busy), [Some((1, 5))]);
        let gone = known.merged(&answer(0, ErrorCode::UnknownTopicOrPartition.code(), &[]));
        assert!(gone.topics["t"].partitions.is_empty());
        assert_eq!(
            gone.topics["t"].error,
            Some(ErrorCode::UnknownTopicOrPartition)
        );
    }
}
