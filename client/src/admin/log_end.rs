//! Ends of logs: OffsetForLeaderEpoch of the epoch in which the leader leads now, whose end is the
//! end of its log, committed or not.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use corduroy_protocol::messages::{BrokerId, OffsetForLeaderEpochRequest, TopicName};
use futures::future::join_all;

use crate::client::ClientShared;
use crate::error::Error;
use crate::net::api::StrBytes;

/// The end of each of `partitions` whose leader answers at once.
pub(super) async fn log_ends(
    client: &ClientShared,
    topic: &Arc<str>,
    partitions: impl Iterator<Item = i32>,
) -> BTreeMap<i32, i64> {
    let image = client.metadata.image();
    let mut by_leader: HashMap<i32, Vec<OffsetForLeaderPartition>> = HashMap::new();
    for partition in partitions {
        let known = image.partition(topic, partition);
        // Before Metadata 7 the epoch is not told.
        if let Some((leader, epoch)) = known.and_then(|known| known.seen())
            && epoch >= 0
        {
            by_leader.entry(leader).or_default().push(
                OffsetForLeaderPartition::default()
                    .with_partition(partition)
                    .with_current_leader_epoch(epoch)
                    .with_leader_epoch(epoch),
            );
        }
    }
    let calls = by_leader.into_iter().map(|(leader, partitions)| {
        let image = image.clone();
        async move {
            let connection = client.metadata.pool().node(&image, leader).await?;
            let limit = client.net.settings.request_timeout;
            let answer = connection.call(limit, |_version| request(topic, partitions));
            answer.await
        }
    });
    let mut found = BTreeMap::new();
    for answer in join_all(calls).await {
        let answer: Result<_, Error> = answer;
        let Ok(response) = answer else { continue };
        let ends = response.topics.iter().flat_map(|topic| &topic.partitions);
        for end in ends {
            if ErrorCode::from_code(end.error_code) == ErrorCode::None && end.end_offset >= 0 {
                found.insert(end.partition, end.end_offset);
            }
        }
    }
    found
}

fn request(
    topic: &Arc<str>,
    partitions: Vec<OffsetForLeaderPartition>,
) -> OffsetForLeaderEpochRequest {
    OffsetForLeaderEpochRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![
            OffsetForLeaderTopic::default()
                .with_topic(TopicName(StrBytes::from_string(topic.to_string())))
                .with_partitions(partitions),
        ])
}
