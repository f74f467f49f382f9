//! The cluster's topics as groups see them: what assignors assign, and what has gone.

use std::cell::RefCell;
use std::sync::Arc;

use corduroy_group::consumer::{TopicFacts, Topics};
use corduroy_record::TopicId;

use crate::controller::MetadataImage;

use super::is_internal;

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
        Box::new(names.filter(|name| !is_internal(name)))
    }

    fn version(&self) -> i64 {
        i64::try_from(self.0.version).unwrap_or(i64::MAX)
    }
}

/// How long a topic's end is remembered by a coordinator that does not lead: whoever takes over
/// meanwhile forgets the topic's offsets.
const GONE_KEPT_MS: i64 = 600_000;

/// Topics that were deleted, also where another of the same name is there already: their committed
/// offsets mean nothing any more.
#[derive(Default)]
pub(super) struct GoneTopics(RefCell<Gone>);

#[derive(Default)]
struct Gone {
    image: Option<Arc<MetadataImage>>,
    /// Name, and when its end was seen, milliseconds since the Unix epoch.
    topics: Vec<(String, i64)>,
}

impl GoneTopics {
    /// Compares with the image before.
    pub(super) fn look(&self, image: &Arc<MetadataImage>, now_ms: i64) {
        let mut gone = self.0.borrow_mut();
        let before = match gone.image.replace(image.clone()) {
            Some(before) if before.version != image.version => before,
            _ => return,
        };
        let ended = before.topics.values().filter(|topic| {
            let now = image.topics.get(&topic.name);
            now.is_none_or(|now| now.id != topic.id)
        });
        let ended: Vec<(String, i64)> = ended.map(|t| (t.name.clone(), now_ms)).collect();
        gone.topics
            .retain(|(_, seen_ms)| now_ms.saturating_sub(*seen_ms) < GONE_KEPT_MS);
        gone.topics.extend(ended);
    }

    /// What was taken and could not be acted upon comes with the next call again.
    pub(super) fn put_back(&self, gone: Vec<(String, i64)>) {
        self.0.borrow_mut().topics.extend(gone);
    }

    /// What has gone since the last call. Only offsets that were committed before a topic's end was
    /// seen are those of the old topic.
    pub(super) fn take(&self) -> Vec<(String, i64)> {
        std::mem::take(&mut self.0.borrow_mut().topics)
    }
}
