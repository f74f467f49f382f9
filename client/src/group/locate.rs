//! Where a member begins to read what it was assigned: committed offsets, and what stands in for
//! those that are missing.

use std::sync::Arc;

use super::driver::Shared;
use super::ledger::Standing;
use super::offsets;
use crate::client::ClientShared;
use crate::config::Isolation;
use crate::error::{Error, ErrorKind};
use crate::reader::fetcher::Start;
use crate::reader::{From, Places};
use crate::topic_partition::TopicPartition;

/// What to find.
#[derive(Clone)]
pub(super) struct Search {
    pub(super) client: Arc<ClientShared>,
    pub(super) shared: Arc<Shared>,
    pub(super) group: Arc<str>,
    /// For partitions without a committed offset; `None` = that is an error.
    pub(super) from: Option<From>,
    pub(super) isolation: Isolation,
}

impl Search {
    /// Looks until it has found the starts of these partitions of one topic, or until none of them
    /// is owned any more.
    ///
    /// # Errors
    /// What no waiting helps against.
    pub(super) async fn run(
        self,
        topic: Arc<str>,
        mut wanted: Vec<(TopicPartition, u64)>,
    ) -> Result<Vec<Start>, Error> {
        let mut failures = 0;
        loop {
            wanted.retain(|(at, incarnation)| {
                self.shared.ledger.lock().standing(at, *incarnation) == Standing::Current
            });
            if wanted.is_empty() {
                return Ok(Vec::new());
            }
            match self.look(&topic, &wanted).await {
                Err(error) if error.is_passing() => {
                    tracing::debug!(%topic, %error, "no offsets yet");
                }
                found => return found,
            }
            failures += 1;
            let net = &self.client.net;
            net.env
                .sleep(net.retry_backoff().wait(failures, &net.env))
                .await;
        }
    }

    async fn look(
        &self,
        topic: &Arc<str>,
        wanted: &[(TopicPartition, u64)],
    ) -> Result<Vec<Start>, Error> {
        let deadline = self.client.api_deadline();
        let partitions: Vec<TopicPartition> = wanted.iter().map(|(at, _)| at.clone()).collect();
        let committed =
            offsets::fetch(&self.client, &self.group, Some(&partitions), deadline).await?;
        let fresh: Vec<i32> = partitions
            .iter()
            .filter(|at| !committed.contains_key(at))
            .map(|at| at.partition)
            .collect();
        let mut starts = std::collections::BTreeMap::new();
        if let Some(first) = fresh.first() {
            let Some(from) = self.from else {
                let message = "the group has committed no offset and auto.offset.reset is none";
                return Err(
                    Error::new(ErrorKind::OffsetOutOfRange, message).with_partition(topic, *first)
                );
            };
            let places = Places {
                client: self.client.clone(),
                topic: topic.clone(),
                isolation: self.isolation,
            };
            starts = places.starts(from, &fresh, None, deadline).await?;
        }
        let start = |(at, incarnation): &(TopicPartition, u64)| {
            let (offset, leader_epoch) = match committed.get(at) {
                Some(committed) => (committed.offset, committed.leader_epoch.unwrap_or(-1)),
                None => (*starts.get(&at.partition)?, -1),
            };
            Some(Start {
                at: at.clone(),
                offset,
                leader_epoch,
                incarnation: *incarnation,
            })
        };
        Ok(wanted.iter().filter_map(start).collect())
    }
}
