//! How far partitions reach once nothing is written any more.

use std::collections::BTreeMap;

use anyhow::Context;
use corduroy_client::{Client, ErrorKind, Isolation, OffsetSpec};

use super::keys::LiveTopic;
use crate::history::Key;

/// The ends of these topics' partitions. Topics that are gone have none.
///
/// # Errors
/// The client's, and a partition without an end.
pub async fn of(client: &Client, topics: &[LiveTopic]) -> anyhow::Result<BTreeMap<Key, i64>> {
    let mut ends = BTreeMap::new();
    for topic in topics {
        let partitions: Vec<i32> = (0..i32::try_from(topic.partitions)?).collect();
        let found = client
            .admin()
            .list_offsets(
                &topic.name,
                &partitions,
                OffsetSpec::Latest,
                Isolation::ReadCommitted,
            )
            .await;
        let found = match found {
            // A deletion that nobody heard the end of.
            Err(error) if error.kind() == ErrorKind::UnknownTopic => continue,
            found => found?,
        };
        for partition in partitions {
            let listed = found.get(&partition).and_then(|listed| listed.offset);
            let end = listed.context("a partition without an end")?;
            ends.insert(topic.key(u32::try_from(partition)?), end);
        }
    }
    Ok(ends)
}
