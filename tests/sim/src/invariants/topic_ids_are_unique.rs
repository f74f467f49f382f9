//! A topic id belongs to one name for ever, and what was deleted never comes back under it.

use std::collections::BTreeMap;

use corduroy_record::TopicId;

use super::{Invariant, Moment};

/// See the file's head.
#[derive(Default)]
pub struct TopicIdsAreUnique {
    names: BTreeMap<TopicId, String>,
    version: u64,
    gone: BTreeMap<TopicId, u64>,
}

impl Invariant for TopicIdsAreUnique {
    fn name(&self) -> &'static str {
        "topic_ids_are_unique"
    }

    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String> {
        let Some(image) = moment.seen.image() else {
            return Ok(());
        };
        if image.version <= self.version {
            return Ok(());
        }
        self.version = image.version;
        for (id, name) in &self.names {
            if image.topic_by_id(*id).is_none() {
                self.gone.entry(*id).or_insert_with(|| {
                    tracing::debug!(%name, "a topic is gone");
                    image.version
                });
            }
        }
        for topic in image.topics.values() {
            if let Some(version) = self.gone.get(&topic.id) {
                return Err(format!(
                    "topic {} is back under the id that was deleted in version {version}",
                    topic.name
                ));
            }
            let name = self
                .names
                .entry(topic.id)
                .or_insert_with(|| topic.name.clone());
            if *name != topic.name {
                return Err(format!("{name} and {} have the same id", topic.name));
            }
        }
        Ok(())
    }
}
