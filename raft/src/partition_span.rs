//! What a log line about a replica carries beside its words: topic, partition, epoch.

use std::cell::RefCell;

use corduroy_record::{GroupId, LeaderEpoch, PartitionIndex};
use tracing::Span;

/// The span of lines about a partition, below `parent`. At error level, so that a filter that drops
/// lines takes nothing from those that are left.
pub fn partition_span(
    parent: &Span,
    topic: &str,
    partition: PartitionIndex,
    epoch: LeaderEpoch,
) -> Span {
    tracing::error_span!(
        parent: parent,
        "partition",
        topic,
        partition = partition.get(),
        epoch = epoch.get()
    )
}

/// One replica's span. It is made when there is something to say and made anew when the epoch has
/// changed; a replica that says nothing has none, and no request enters one.
pub(crate) struct PartitionSpan {
    parent: Span,
    topic: String,
    partition: PartitionIndex,
    made: RefCell<Option<(LeaderEpoch, Span)>>,
}

impl PartitionSpan {
    /// Below the span of whoever opens the replica: its node and shard. Without a `topic` the
    /// group's own name stands for it.
    pub(crate) fn new(group: GroupId, topic: Option<String>) -> PartitionSpan {
        let topic = topic.unwrap_or_else(|| match group {
            GroupId::CONTROLLER => group.to_string(),
            _ => group.topic.to_string(),
        });
        PartitionSpan {
            parent: Span::current(),
            topic,
            partition: group.partition,
            made: RefCell::default(),
        }
    }

    pub(crate) fn at(&self, epoch: LeaderEpoch) -> Span {
        let mut made = self.made.borrow_mut();
        match &*made {
            Some((of, span)) if *of == epoch => span.clone(),
            _ => {
                let span = partition_span(&self.parent, &self.topic, self.partition, epoch);
                *made = Some((epoch, span.clone()));
                span
            }
        }
    }
}
