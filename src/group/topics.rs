//! The cluster's topics as a group's assignors see them.

use std::sync::Arc;

use corduroy_group::consumer::{TopicFacts, Topics};
use corduroy_record::TopicId;

use crate::controller::MetadataImage;

/// One version of the cluster's topics.
pub(super) struct ImageTopics(pub(super) Arc<MetadataImage>);

impl Topics for ImageTopics {
    fn topic(&self, name: &str) -> Option<TopicFacts> {
        let topic = self.0.topics.get(name)?;
        Some(TopicFacts {
            id: topic.id,
            partitions: u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX),
        })
    }

    fn name(&self, id: TopicId) -> Option<&str> {
        self.0.topic_by_id(id).map(|topic| topic.name.as_str())
    }

    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        let names = self.0.topics.keys().map(String::as_str);
        Box::new(names.filter(|name| !name.starts_with("__")))
    }

    fn version(&self) -> i64 {
        i64::try_from(self.0.version).unwrap_or(i64::MAX)
    }
}
