//! The clients of a run: which ones there are for which workload.

use std::rc::Rc;
use std::time::Duration;

use anyhow::bail;
use corduroy_env::Env;
use tokio::sync::watch;

use super::RunPlan;
use crate::coverage::OFFSETS_TOPIC;
use crate::history::WorkerId;
use crate::workload::keys::{self, LiveKeys, LiveTopic};
use crate::workload::recorder::Recorder;
use crate::workload::{
    Shared, WorkloadKind, append, consume, ends, fencing, group, produce, topics, watch as watching,
};

/// Topics in use at the same time, by workload.
pub const QUEUE_PLACES: usize = 2;
const TOPICS_PLACES: usize = 3;
/// Beside them in the queue: topics whose old records are removed.
const TRIMMED_PLACES: usize = 1;
/// Partitions of a topic of the queue.
pub const QUEUE_PARTITIONS: u32 = 4;
/// Consumers of each topic.
const CONSUMERS_PER_PLACE: u32 = 2;
/// Readers of the list.
const LIST_READERS: u32 = 3;
/// Topics that one run uses up, about: each is read on every node in the end.
const TOPICS_PER_PLACE: u64 = 6;
/// Writes after which a topic of the queue is out of use, at least.
const WRITES_MIN: u64 = 4 * 1024;
/// Values of a list: each read takes all of them.
const LIST_WRITES_MAX: u64 = 2_000;
/// Registers, the values of each before a new one takes its place, and who asks for their ends.
const REGISTER_PLACES: usize = 3;
const REGISTER_WRITES_MAX: u64 = 500;
const REGISTER_WATCHERS: u32 = 4;
/// Fenced producers for each topic.
const FENCED_PER_PLACE: u32 = 2;
/// The list's producers send this much less than was asked for.
const LIST_RATE_SHARE: u32 = 4;
/// Clients crash so often on the average, in long runs.
const CRASH_EVERY: Duration = Duration::from_secs(30);
/// How often it is looked whether calls have ended.
const LOOK: Duration = Duration::from_millis(50);

/// The clients, while they run.
pub struct Load {
    shared: Shared,
    stop: watch::Sender<bool>,
    /// Consumers go on for a while when the others have stopped.
    stop_reading: watch::Sender<bool>,
}

impl Load {
    /// Starts the clients of the run's workload.
    pub fn start(env: &Env, run: &RunPlan, recorder: &Recorder, bootstrap: String) -> Load {
        let (stop, stopped) = watch::channel(false);
        let writes = u64::from(run.rate) * run.seconds;
        let (places, writes_max, rate) = match run.workload {
            WorkloadKind::Queue => {
                let places = QUEUE_PLACES + TRIMMED_PLACES;
                let each = writes / (places as u64 * TOPICS_PER_PLACE);
                (places, each.max(WRITES_MIN), run.rate)
            }
            WorkloadKind::Durability | WorkloadKind::Fencing => {
                let each = writes / (QUEUE_PLACES as u64 * TOPICS_PER_PLACE);
                (QUEUE_PLACES, each.max(WRITES_MIN), run.rate)
            }
            // The same topics for the whole run: what counts is who has which partition.
            WorkloadKind::Group => (QUEUE_PLACES, u64::MAX, run.rate),
            WorkloadKind::ListAppend => (1, LIST_WRITES_MAX, run.rate / LIST_RATE_SHARE),
            WorkloadKind::Register => (
                REGISTER_PLACES,
                REGISTER_WRITES_MAX,
                run.rate / LIST_RATE_SHARE,
            ),
            WorkloadKind::Topics => (TOPICS_PLACES, u64::MAX, run.rate),
        };
        let crash_every = CRASH_EVERY.min(Duration::from_secs(run.seconds) / 4);
        let shared = Shared {
            env: env.clone(),
            client: run.client,
            acks: run.acks,
            idempotence: run.idempotence,
            recorder: recorder.clone(),
            bootstrap: bootstrap.into(),
            keys: Rc::new(LiveKeys::new(places, writes_max)),
            stop: stopped,
            sends_per_second: rate.max(1),
            crash_every,
            replication: i16::from(run.nodes.min(3)),
            min_insync: run.min_insync.min(u32::from(run.nodes)),
        };
        let (stop_reading, stopped) = watch::channel(false);
        let reading = Shared {
            stop: stopped,
            ..shared.clone()
        };
        let load = Load {
            shared,
            stop,
            stop_reading,
        };
        load.spawn(run, places, &reading);
        load
    }

    fn spawn(&self, run: &RunPlan, places: usize, reading: &Shared) {
        let shared = &self.shared;
        let env = &shared.env;
        let mut next_worker = 0;
        let mut worker = || {
            next_worker += 1;
            WorkerId(next_worker - 1)
        };
        let prefix: Rc<str> = run.workload.name().into();
        match run.workload {
            WorkloadKind::Topics => {
                for place in 0..places {
                    env.spawn_local(topics::run(
                        shared.clone(),
                        worker(),
                        place,
                        prefix.clone(),
                        run.seed,
                    ));
                }
            }
            WorkloadKind::ListAppend | WorkloadKind::Register => {
                let kept = keys::keep_filled(shared.clone(), worker(), prefix, 1, places);
                env.spawn_local(kept);
            }
            WorkloadKind::Queue
            | WorkloadKind::Durability
            | WorkloadKind::Fencing
            | WorkloadKind::Group => {
                let kept = keys::keep_filled(
                    shared.clone(),
                    worker(),
                    prefix,
                    QUEUE_PARTITIONS,
                    QUEUE_PLACES,
                );
                env.spawn_local(kept);
            }
        }
        for place in 0..places {
            if run.workload == WorkloadKind::Fencing {
                for _ in 0..FENCED_PER_PLACE {
                    env.spawn_local(fencing::run(shared.clone(), worker(), place, run.seed));
                }
            }
            if matches!(
                run.workload,
                WorkloadKind::ListAppend | WorkloadKind::Register
            ) {
                for _ in 0..LIST_READERS {
                    env.spawn_local(append::run(reading.clone(), worker(), place, run.seed));
                }
            } else {
                for _ in 0..CONSUMERS_PER_PLACE {
                    env.spawn_local(consume::run(reading.clone(), worker(), place, run.seed));
                }
            }
        }
        let watchers = match run.workload {
            WorkloadKind::Register => REGISTER_WATCHERS,
            _ => 1,
        };
        for _ in 0..watchers {
            env.spawn_local(watching::run(shared.clone(), worker(), run.seed));
        }
        for _ in 0..produce::SESSIONS {
            let first = worker().0;
            for _ in 1..produce::WORKERS_PER_SESSION {
                worker();
            }
            env.spawn_local(produce::run(shared.clone(), first, run.seed));
        }
        if run.workload == WorkloadKind::Group {
            // Members join once there is something to read.
            let (shared, seed) = (shared.clone(), run.seed);
            let mut next = next_worker;
            env.clone().spawn_local(async move {
                let has_all = || {
                    let mut places = 0..shared.keys.places();
                    places.all(|place| shared.keys.at(place).is_some())
                };
                while !has_all() && !shared.is_over() {
                    shared.pause(LOOK).await;
                }
                let worker = || {
                    next += 1;
                    WorkerId(next - 1)
                };
                group::start(&shared, worker, seed);
            });
        }
    }

    /// Lets each group read to the end, where the workload has any. Call it when the clients have
    /// stopped.
    ///
    /// # Errors
    /// What was not read to the end, a sentence each.
    pub async fn drain(&self, workload: WorkloadKind) -> Vec<String> {
        match workload {
            WorkloadKind::Group => group::drain(&self.shared).await,
            _ => Vec::new(),
        }
    }

    /// The id of `__consumer_offsets`, where there is one.
    pub async fn offsets_topic(&self) -> Option<String> {
        let client = self.shared.client("jepsen-ends").await.ok()?;
        let topic = client.admin().describe_topic(OFFSETS_TOPIC).await.ok()?;
        Some(topic.id.to_string())
    }

    /// What the clients share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Everything that was created and not deleted.
    pub fn topics(&self) -> Vec<LiveTopic> {
        self.shared.keys.all()
    }

    /// Waits until every place has its first topic.
    ///
    /// # Errors
    /// That they are not there in time.
    pub async fn wait_topics(&self, limit: Duration) -> anyhow::Result<()> {
        let deadline = self.shared.env.now() + limit;
        while (0..self.shared.keys.places()).any(|place| self.shared.keys.at(place).is_none()) {
            if self.shared.env.now() > deadline {
                bail!("the first topics could not be created within {limit:?}");
            }
            self.shared.env.sleep(LOOK).await;
        }
        Ok(())
    }

    /// Stops those who write and waits for their last answers, for so long.
    pub async fn stop_writing(&self, env: &Env, limit: Duration) {
        self.stop.send_replace(true);
        let deadline = env.now() + limit;
        while self.shared.recorder.open_sends() > 0 && env.now() < deadline {
            env.sleep(LOOK).await;
        }
    }

    /// Waits until consumers have read everything that was written, for so long. Returns what they
    /// have not, a sentence each.
    pub async fn read_out(&self, env: &Env, limit: Duration) -> Vec<String> {
        let deadline = env.now() + limit;
        let keys = &self.shared.keys;
        let ends = loop {
            let known = async {
                let client = self.shared.client("jepsen-ends").await?;
                ends::of(&client, &keys.all()).await
            };
            let left = deadline.saturating_duration_since(env.now());
            match tokio::time::timeout(left, known).await {
                Ok(Ok(ends)) => break ends,
                Ok(Err(_)) => env.sleep(LOOK).await,
                Err(_late) => return vec!["the ends of partitions are not known".to_owned()],
            }
        };
        keys.read_out(ends);
        loop {
            let unread = keys.unread().unwrap_or_default();
            if unread.is_empty() || env.now() >= deadline {
                let unread = unread.into_iter();
                let said = unread
                    .map(|(key, end)| format!("no consumer has read {key} to its end at {end}"));
                return said.collect();
            }
            env.sleep(LOOK).await;
        }
    }

    /// Stops the consumers and waits for the last answers of all, for so long.
    pub async fn stop(&self, env: &Env, limit: Duration) {
        self.stop_reading.send_replace(true);
        let deadline = env.now() + limit;
        while self.shared.recorder.open() > 0 && env.now() < deadline {
            env.sleep(LOOK).await;
        }
    }
}
