//! What the data path needs of a topic, worked out once per image.

use std::collections::HashMap;

use corduroy_record::{GroupId, PartitionIndex, TopicId};

use crate::config::TopicConfigs;
use crate::controller::MetadataImage;

/// One topic, as produce needs it.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The topic's incarnation.
    pub topic: TopicId,
    /// Its number of partitions.
    pub partitions: i32,
    /// `max.message.bytes`.
    pub max_message_bytes: usize,
    /// Whether records need a key.
    pub compacted: bool,
}

impl Route {
    /// The group of one partition, if the topic has it.
    pub fn group(&self, partition: i32) -> Option<GroupId> {
        (0..self.partitions).contains(&partition).then(|| GroupId {
            topic: self.topic,
            partition: PartitionIndex::new(partition),
        })
    }
}

/// Routes of one image.
#[derive(Default)]
pub struct Routes {
    version: Option<u64>,
    routes: HashMap<String, Route>,
}

impl Routes {
    /// The route of a topic by `image`.
    pub fn find(&mut self, image: &MetadataImage, name: &str) -> Option<Route> {
        if self.version != Some(image.version) {
            self.version = Some(image.version);
            self.routes.clear();
        }
        if let Some(route) = self.routes.get(name) {
            return Some(*route);
        }
        let topic = image.topics.get(name)?;
        let replicas = topic.partitions.first().map_or(1, |p| p.replicas.len());
        let configs = TopicConfigs::resolve(&topic.configs, &image.cluster_configs, replicas);
        let route = Route {
            topic: topic.id,
            partitions: i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX),
            max_message_bytes: configs.max_message_bytes,
            compacted: configs.cleanup_policy.compact,
        };
        self.routes.insert(name.to_owned(), route);
        Some(route)
    }
}
