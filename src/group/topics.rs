//! The cluster's topics as groups see them: what assignors assign, and what has gone.

use std::cell::RefCell;
use std::sync::Arc;

use corduroy_group::consumer::{TopicFacts, Topics};
use corduroy_group::records::OffsetValue;
use corduroy_record::{TopicId, TopicPartition};

use crate::controller::{MetadataImage, TopicInfo};

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

/// What a coordinator knows of a committed position's topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The topic of this name is the one that the position is of, or the position does not say.
    Lives,
    /// The topic has ended, whether or not another one has its name.
    Dead,
    /// The topic is newer than this node's image. Whoever took the commit had a newer one.
    Ahead,
}

/// Judges a committed position by the topic that its record names.
///
/// Law: identity decides, and no clock. A position is dead exactly if the image that is looked at
/// was made with the topic or after it, and does not show it under the position's name. Ids of
/// topics tell since which version they are there ([`TopicId::made_in_version`]); ids that do not
/// are from before all that do.
pub(super) fn standing(
    image: &MetadataImage,
    partition: &TopicPartition,
    value: &OffsetValue,
) -> Standing {
    let Some(id) = value.topic_id else {
        return Standing::Lives;
    };
    let named = image.topics.get(&partition.topic);
    if named.is_some_and(|topic| topic.id == id) {
        Standing::Lives
    } else if id
        .made_in_version()
        .is_some_and(|since| since > image.version)
    {
        Standing::Ahead
    } else {
        Standing::Dead
    }
}

/// When a coordinator looks for positions of topics that have ended, to forget them.
#[derive(Default)]
pub(super) struct DeadOffsets(RefCell<Looking>);

#[derive(Default)]
struct Looking {
    /// The newest image that was looked at.
    image: Option<Arc<MetadataImage>>,
    is_due: bool,
    is_under_way: bool,
    /// The last look found positions that are ahead of its image.
    some_are_ahead: bool,
}

impl DeadOffsets {
    /// Compares with the image before: a look is due where a topic has ended since.
    pub(super) fn follow(&self, image: &Arc<MetadataImage>) {
        let mut looking = self.0.borrow_mut();
        let before = match looking.image.replace(image.clone()) {
            Some(before) if before.version != image.version => before,
            _ => return,
        };
        let has_ended = |topic: &TopicInfo| {
            let now = image.topics.get(&topic.name);
            now.is_none_or(|now| now.id != topic.id)
        };
        // A topic that came and went between two images is in neither.
        if looking.some_are_ahead || before.topics.values().any(has_ended) {
            looking.is_due = true;
        }
    }

    /// A look is due: positions of topics that ended under another coordinator may be left.
    pub(super) fn look_again(&self) {
        self.0.borrow_mut().is_due = true;
    }

    /// Takes the right to look, where that is due; one at a time.
    pub(super) fn begin(&self) -> bool {
        let mut looking = self.0.borrow_mut();
        if !looking.is_due || looking.is_under_way {
            return false;
        }
        looking.is_due = false;
        looking.is_under_way = true;
        true
    }

    /// The look is over: whether it left positions that are ahead of the image, or `None` where it
    /// could not be finished, and is due again.
    pub(super) fn end(&self, some_are_ahead: Option<bool>) {
        let mut looking = self.0.borrow_mut();
        looking.is_under_way = false;
        match some_are_ahead {
            Some(some_are_ahead) => looking.some_are_ahead = some_are_ahead,
            None => looking.is_due = true,
        }
    }
}
