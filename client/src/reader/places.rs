//! Where reading begins and ends: positions turned into offsets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::From;
use crate::client::ClientShared;
use crate::config::Isolation;
use crate::error::{Error, ErrorKind};
use crate::offsets::{ListedOffset, OffsetSpec, Question, list};

/// How long the bounds of a partition are asked for, for a message.
const BOUNDS_WAIT_MAX: Duration = Duration::from_secs(2);

/// The refusal of an offset. `bounds`: the log's start and its high watermark, if they are known.
pub(crate) fn out_of_range(offset: i64, bounds: Option<(i64, i64)>) -> Error {
    let mut message = format!("offset {offset} does not exist");
    if let Some((start, high_watermark)) = bounds {
        message.push_str(&format!(
            "; the log starts at {start}, its high watermark is {high_watermark}"
        ));
    }
    Error::new(ErrorKind::OffsetOutOfRange, message)
}

/// Finds offsets of one topic.
pub(crate) struct Places {
    pub(crate) client: Arc<ClientShared>,
    pub(crate) topic: Arc<str>,
    pub(crate) isolation: Isolation,
}

impl Places {
    /// The first offset to read of each partition; `ends`, where they are known already.
    pub(crate) async fn starts(
        &self,
        from: From,
        partitions: &[i32],
        ends: Option<&BTreeMap<i32, i64>>,
        deadline: Instant,
    ) -> Result<BTreeMap<i32, i64>, Error> {
        let all = |offset: i64| {
            partitions
                .iter()
                .map(|partition| (*partition, offset))
                .collect()
        };
        match from {
            From::Offset(offset) => Ok(all(offset)),
            From::Earliest => {
                self.offsets(partitions, OffsetSpec::Earliest, deadline)
                    .await
            }
            From::Latest => match ends {
                Some(ends) => Ok(ends.clone()),
                None => self.offsets(partitions, OffsetSpec::Latest, deadline).await,
            },
            From::Timestamp(time) => {
                let found = self
                    .list(partitions, OffsetSpec::Timestamp(time), deadline)
                    .await?;
                let latest = self
                    .offsets(partitions, OffsetSpec::Latest, deadline)
                    .await?;
                let or_latest = |(partition, listed): (i32, ListedOffset)| {
                    let end = latest.get(&partition).copied().unwrap_or(0);
                    (partition, listed.offset.unwrap_or(end))
                };
                Ok(found.into_iter().map(or_latest).collect())
            }
            From::Last(count) => {
                let earliest = self
                    .offsets(partitions, OffsetSpec::Earliest, deadline)
                    .await?;
                let latest = match ends {
                    Some(ends) => ends.clone(),
                    None => {
                        self.offsets(partitions, OffsetSpec::Latest, deadline)
                            .await?
                    }
                };
                let back = i64::try_from(count).unwrap_or(i64::MAX);
                let start = |(partition, end): (i32, i64)| {
                    let first = earliest.get(&partition).copied().unwrap_or(0);
                    (partition, end.saturating_sub(back).max(first))
                };
                Ok(latest.into_iter().map(start).collect())
            }
        }
    }

    /// One offset of each partition; 0 where there is none.
    pub(crate) async fn offsets(
        &self,
        partitions: &[i32],
        spec: OffsetSpec,
        deadline: Instant,
    ) -> Result<BTreeMap<i32, i64>, Error> {
        let listed = self.list(partitions, spec, deadline).await?;
        Ok(listed
            .into_iter()
            .map(|(partition, listed)| (partition, listed.offset.unwrap_or(0)))
            .collect())
    }

    /// The refusal of an offset that a partition does not hold, with what it holds instead, if its
    /// leader says so soon.
    pub(crate) async fn out_of_range(&self, partition: i32, offset: i64) -> Error {
        let deadline = self.client.net.env.now() + BOUNDS_WAIT_MAX;
        let places = Places {
            client: self.client.clone(),
            topic: self.topic.clone(),
            // The high watermark, whatever the reader may see.
            isolation: Isolation::ReadUncommitted,
        };
        let ask = async |spec| {
            let found = places.offsets(&[partition], spec, deadline).await;
            found.ok()?.get(&partition).copied()
        };
        let start = ask(OffsetSpec::Earliest).await;
        let high_watermark = ask(OffsetSpec::Latest).await;
        out_of_range(offset, start.zip(high_watermark))
    }

    async fn list(
        &self,
        partitions: &[i32],
        spec: OffsetSpec,
        deadline: Instant,
    ) -> Result<BTreeMap<i32, ListedOffset>, Error> {
        let question = Question {
            topic: &self.topic,
            wanted: partitions
                .iter()
                .map(|partition| (*partition, spec))
                .collect(),
            isolation: self.isolation,
        };
        list(&self.client, question, deadline).await
    }
}
