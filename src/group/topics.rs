//! The cluster's topics as groups see them: what assignors assign, and what has gone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use corduroy_group::consumer::{TopicFacts, Topics};
use corduroy_group::records::OffsetValue;
use corduroy_record::{TopicId, TopicPartition};

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
///
/// Law: an offset is of a topic that has ended exactly if its commit's time is not after the one at
/// which the end was seen. So whoever decides a commit looks first, and takes its time from
/// [`GoneTopics::after_all_ends`].
#[derive(Default)]
pub(super) struct GoneTopics(RefCell<Gone>);

#[derive(Default)]
struct Gone {
    image: Option<Arc<MetadataImage>>,
    /// When the newest end of a topic of this name was seen, milliseconds since the Unix epoch.
    seen_ms: HashMap<String, i64>,
    /// The newest of all ends.
    last_ms: Option<i64>,
    is_being_forgotten: bool,
}

impl GoneTopics {
    /// Compares with the image before.
    pub(super) fn look(&self, image: &Arc<MetadataImage>, now_ms: i64) {
        let mut gone = self.0.borrow_mut();
        let before = match gone.image.replace(image.clone()) {
            Some(before) if before.version != image.version => before,
            _ => return,
        };
        gone.seen_ms
            .retain(|_, seen_ms| now_ms.saturating_sub(*seen_ms) < GONE_KEPT_MS);
        for topic in before.topics.values() {
            let now = image.topics.get(&topic.name);
            if now.is_none_or(|now| now.id != topic.id) {
                // Clocks of the wall may go back; ends do not.
                let seen_ms = now_ms.max(gone.last_ms.unwrap_or(now_ms));
                gone.last_ms = Some(seen_ms);
                gone.seen_ms.insert(topic.name.clone(), seen_ms);
            }
        }
    }

    /// The time of a commit that is decided now: after every end that has been seen.
    pub(super) fn after_all_ends(&self, now_ms: i64) -> i64 {
        let gone = self.0.borrow();
        gone.last_ms
            .map_or(now_ms, |last_ms| now_ms.max(last_ms.saturating_add(1)))
    }

    /// Whether a committed offset is of a topic that has ended.
    pub(super) fn is_of_the_dead(&self, partition: &TopicPartition, value: &OffsetValue) -> bool {
        let gone = self.0.borrow();
        let seen_ms = gone.seen_ms.get(&partition.topic);
        seen_ms.is_some_and(|seen_ms| value.commit_timestamp_ms <= *seen_ms)
    }

    /// Begins to forget the offsets of topics that have ended: which, each with when its end was
    /// seen. `None` where there are none, or somebody is at it.
    pub(super) fn begin(&self) -> Option<Vec<(String, i64)>> {
        let mut gone = self.0.borrow_mut();
        if gone.seen_ms.is_empty() || gone.is_being_forgotten {
            return None;
        }
        gone.is_being_forgotten = true;
        let all = gone.seen_ms.iter();
        Some(
            all.map(|(name, seen_ms)| (name.clone(), *seen_ms))
                .collect(),
        )
    }

    /// The offsets of the topics `done` are forgotten. Ends that were seen since then stay.
    pub(super) fn end(&self, done: &[(String, i64)]) {
        let mut gone = self.0.borrow_mut();
        gone.is_being_forgotten = false;
        for (name, done_ms) in done {
            if gone.seen_ms.get(name) == Some(done_ms) {
                gone.seen_ms.remove(name);
            }
        }
    }
}
