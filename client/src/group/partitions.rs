//! Work on all partitions at the same time, and in order within each.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::driver::Command;
use super::ledger::Position;
use super::{Batch, Group, GroupEvent};
use crate::error::{Error, ErrorKind};
use crate::topic_partition::TopicPartition;

/// Batches of one partition that may wait; then it is not fetched until they are worked off.
const LANE_BATCHES_MAX: usize = 2;

/// One partition's batches: at most one is worked on.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Batch>,
    /// Since when a batch is worked on.
    busy_since: Option<Instant>,
    is_held: bool,
}

/// A batch whose work has ended.
struct Done<E> {
    at: TopicPartition,
    incarnation: u64,
    position: Position,
    /// `None` = the work panicked.
    result: Option<Result<(), E>>,
}

impl Group {
    /// Runs `work` for each batch: at the same time for different partitions (each batch is a task
    /// of its own), one after the other and in order within one. Goes on until something fails.
    ///
    /// A batch counts as processed when its work has succeeded, so a partition's position never
    /// passes over unfinished work. Before a partition is given to another member, the work on its
    /// current batch is waited for, and those behind it are left to the new owner. If `work` takes
    /// longer than `max.poll.interval.ms` for one batch, the member leaves, and joins again once
    /// that work has ended.
    ///
    /// Dropped halfway, no further batch is begun; work that is going on goes on, and its result is
    /// not committed.
    ///
    /// # Errors
    /// The first error of `work`, once the work on other partitions has ended and what succeeded is
    /// committed; errors of the group, as [`next`](Group::next) gives them.
    pub async fn for_each_partition<F, Fut, E>(self, work: F) -> Result<(), E>
    where
        F: Fn(Batch) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.for_each_partition_until(std::future::pending(), work)
            .await
    }

    /// The same until `stop` is ready: then no further batch is begun, the work that is going on is
    /// waited for, what succeeded is committed, and the member leaves.
    ///
    /// # Errors
    /// As [`for_each_partition`](Group::for_each_partition).
    pub async fn for_each_partition_until<S, F, Fut, E>(mut self, stop: S, work: F) -> Result<(), E>
    where
        S: Future<Output = ()>,
        F: Fn(Batch) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.is_accounted_by_others = true;
        let mut stop = pin!(stop);
        let work = Arc::new(work);
        let mut lanes: HashMap<TopicPartition, Lane> = HashMap::new();
        let mut running = FuturesUnordered::new();
        let result = loop {
            self.start_lanes(&mut lanes, &running, &work);
            tokio::select! {
                Some(done) = running.next(), if !running.is_empty() => {
                    if let Err(error) = self.finish(&mut lanes, done) {
                        break Err(error);
                    }
                }
                () = &mut stop => break Ok(()),
                event = self.next_event() => match event {
                    Some(Ok(event)) => {
                        let ended = self.take_event(&mut lanes, &mut running, event).await;
                        if let Err(error) = ended {
                            break Err(error);
                        }
                    }
                    Some(Err(error)) => break Err(error.into()),
                    None => break Ok(()),
                },
            }
        };
        // Work that is going on may have its effects already: its result is worth knowing.
        lanes.values_mut().for_each(|lane| lane.waiting.clear());
        let mut result = result;
        while let Some(done) = running.next().await {
            let finished = self.finish(&mut lanes, done);
            result = result.and(finished);
        }
        self.leave().await;
        result
    }

    /// Begins work on the first batch of each lane that has none.
    fn start_lanes<F, Fut, E>(
        &self,
        lanes: &mut HashMap<TopicPartition, Lane>,
        running: &Running<E>,
        work: &Arc<F>,
    ) where
        F: Fn(Batch) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Send + 'static,
    {
        let net = &self.committer.client.net;
        for (at, lane) in lanes.iter_mut() {
            let is_idle = lane.busy_since.is_none();
            let Some(batch) = is_idle.then(|| lane.waiting.pop_front()).flatten() else {
                continue;
            };
            lane.busy_since = Some(net.env.now());
            if lane.is_held && lane.waiting.is_empty() {
                lane.is_held = false;
                self.tell(Command::Hold(at.clone(), false));
            }
            let (at, position) = (at.clone(), batch.position());
            let incarnation = batch.read.incarnation;
            let (ended, end) = oneshot::channel();
            let work = work.clone();
            net.tasks.spawn(async move {
                // Who asked may have gone.
                let _ = ended.send(work(batch).await);
            });
            running.push(Box::pin(async move {
                Done {
                    at,
                    incarnation,
                    position,
                    result: end.await.ok(),
                }
            }));
        }
        self.account(lanes);
    }

    /// The member is as late as its latest work.
    fn account(&self, lanes: &HashMap<TopicPartition, Lane>) {
        let oldest = lanes.values().filter_map(|lane| lane.busy_since).min();
        self.shared.pace.lock().busy_since = oldest;
    }

    fn finish<E: From<Error>>(
        &self,
        lanes: &mut HashMap<TopicPartition, Lane>,
        done: Done<E>,
    ) -> Result<(), E> {
        if let Some(lane) = lanes.get_mut(&done.at) {
            lane.busy_since = None;
        }
        self.account(lanes);
        match done.result {
            Some(Ok(())) => {
                let mut ledger = self.shared.ledger.lock();
                ledger.processed(&done.at, done.incarnation, done.position);
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => {
                let message = "the work on a batch panicked";
                let error = Error::new(ErrorKind::Closed, message);
                Err(error
                    .with_partition(&done.at.topic, done.at.partition)
                    .into())
            }
        }
    }

    async fn take_event<E: From<Error>>(
        &self,
        lanes: &mut HashMap<TopicPartition, Lane>,
        running: &mut Running<E>,
        event: GroupEvent,
    ) -> Result<(), E> {
        match event {
            GroupEvent::Batch(batch) => {
                let at = batch.topic_partition();
                let lane = lanes.entry(at.clone()).or_default();
                lane.waiting.push_back(batch);
                if lane.waiting.len() >= LANE_BATCHES_MAX && !lane.is_held {
                    lane.is_held = true;
                    self.tell(Command::Hold(at, true));
                }
            }
            GroupEvent::Assigned { .. } => {}
            GroupEvent::Revoked(partitions) => {
                drop_waiting(lanes, &partitions);
                // Asking for the next event gives them back: first the work on them ends.
                let is_busy = |lanes: &HashMap<TopicPartition, Lane>| {
                    let lane = |at| lanes.get(at).is_some_and(|lane| lane.busy_since.is_some());
                    partitions.iter().any(lane)
                };
                while is_busy(lanes) {
                    let Some(done) = running.next().await else {
                        break;
                    };
                    self.finish(lanes, done)?;
                }
                lanes.retain(|at, _| !partitions.contains(at));
            }
            GroupEvent::Lost(partitions) => drop_waiting(lanes, &partitions),
        }
        Ok(())
    }
}

type Running<E> = FuturesUnordered<std::pin::Pin<Box<dyn Future<Output = Done<E>> + Send>>>;

fn drop_waiting(lanes: &mut HashMap<TopicPartition, Lane>, partitions: &[TopicPartition]) {
    for at in partitions {
        if let Some(lane) = lanes.get_mut(at) {
            lane.waiting.clear();
            // The next ownership begins without a hold.
            lane.is_held = false;
        }
    }
}
