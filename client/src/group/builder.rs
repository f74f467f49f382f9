//! What a user sets before a member joins.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout_at;

use super::Group;
use super::batch::Committer;
use super::classic::Classic;
use super::consumer::Consumer;
use super::driver::{Driver, Pace, Progress, Setup, Shared};
use super::ledger::Ledger;
use super::locate::Search;
use super::machine::{Identity, Machine, MemberConfig};
use super::pattern::Pattern;
use crate::client::ClientShared;
use crate::config::{
    GroupProtocol, GroupSettings, Isolation, OutOfRange, Settings, Strategy, validate_group,
};
use crate::error::{Error, ErrorKind};
use crate::reader::fetcher::{Fetcher, Source};
use crate::reader::{Budget, From, PREFETCH_BYTES};
use crate::sync::Lock;

/// When a group's positions are committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commits {
    /// What was processed, at an interval, before partitions are given up, and on leaving: at least
    /// once (`enable.auto.commit=true`). A batch counts as processed when the next one is asked
    /// for.
    #[default]
    AfterProcessing,
    /// Each batch before it is handed out: at most once. A crash loses what was handed out.
    BeforeProcessing,
    /// Only by [`Batch::commit`](crate::Batch::commit) and [`Group::commit`]
    /// (`enable.auto.commit=false`).
    Explicit,
}

/// Sets up a member of a group. Made by [`Client::group`](crate::Client::group).
#[must_use = "a builder does nothing until its member joins"]
pub struct GroupBuilder {
    client: Arc<ClientShared>,
    id: String,
    topics: BTreeSet<Arc<str>>,
    pattern: Option<Pattern>,
    from: Option<From>,
    commits: Option<Commits>,
    prefetch_bytes: usize,
    settings: Settings,
    error: Option<Error>,
}

impl GroupBuilder {
    pub(crate) fn new(client: Arc<ClientShared>, id: String) -> GroupBuilder {
        let settings = client.settings.clone();
        GroupBuilder {
            client,
            id,
            topics: BTreeSet::new(),
            pattern: None,
            from: None,
            commits: None,
            prefetch_bytes: PREFETCH_BYTES,
            settings,
            error: None,
        }
    }

    fn edit(mut self, edit: impl FnOnce(&mut GroupSettings)) -> GroupBuilder {
        edit(&mut self.settings.group);
        self
    }

    /// Reads these topics. One that does not exist (yet) is read once it does.
    pub fn topics<T: AsRef<str>>(mut self, topics: impl IntoIterator<Item = T>) -> GroupBuilder {
        self.topics
            .extend(topics.into_iter().map(|topic| Arc::from(topic.as_ref())));
        self
    }

    /// Reads the topics whose whole name matches this regular expression, besides those of
    /// [`topics`](GroupBuilder::topics), also those that are created later. Internal topics never
    /// match.
    ///
    /// The consumer protocol leaves the match to the coordinator (KIP-848, RE2 syntax). Under the
    /// classic one the member looks at the topics every `metadata.max.age.ms`, and rejoins when
    /// others match than before. A wrong pattern is told by [`join`](GroupBuilder::join).
    pub fn topics_matching(mut self, pattern: &str) -> GroupBuilder {
        match Pattern::new(pattern) {
            Ok(pattern) => self.pattern = Some(pattern),
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
        self
    }

    /// Where reading begins in a partition of which the group has committed nothing. Default:
    /// `auto.offset.reset`, which is `latest` unless it was set.
    ///
    /// A committed offset that does not exist any more goes by it as well if it is
    /// [`From::Earliest`] or [`From::Latest`], and is an error otherwise.
    pub fn from(mut self, from: From) -> GroupBuilder {
        self.from = Some(from);
        self
    }

    /// When positions are committed.
    pub fn commits(mut self, commits: Commits) -> GroupBuilder {
        self.commits = Some(commits);
        self
    }

    /// `auto.commit.interval.ms`.
    pub fn commit_interval(self, interval: Duration) -> GroupBuilder {
        self.edit(|settings| settings.auto_commit_interval = interval)
    }

    /// `group.instance.id`: makes this a static member (KIP-345), which may restart within the
    /// session timeout without a rebalance.
    pub fn instance_id(self, name: impl Into<String>) -> GroupBuilder {
        self.edit(|settings| settings.instance_id = name.into())
    }

    /// `group.protocol`.
    pub fn protocol(self, protocol: GroupProtocol) -> GroupBuilder {
        self.edit(|settings| settings.protocol = protocol)
    }

    /// `partition.assignment.strategy`: the preferred one first.
    pub fn strategies(self, strategies: impl IntoIterator<Item = Strategy>) -> GroupBuilder {
        self.edit(|settings| settings.strategies = strategies.into_iter().collect())
    }

    /// `session.timeout.ms`.
    pub fn session_timeout(self, limit: Duration) -> GroupBuilder {
        self.edit(|settings| settings.session_timeout = limit)
    }

    /// `heartbeat.interval.ms`.
    pub fn heartbeat_interval(self, interval: Duration) -> GroupBuilder {
        self.edit(|settings| settings.heartbeat_interval = interval)
    }

    /// `max.poll.interval.ms`: the longest time for one batch.
    pub fn max_poll_interval(self, limit: Duration) -> GroupBuilder {
        self.edit(|settings| settings.poll_interval_max = limit)
    }

    /// `isolation.level`.
    pub fn isolation(mut self, isolation: Isolation) -> GroupBuilder {
        self.settings.reader.isolation = isolation;
        self
    }

    /// How many bytes are fetched ahead.
    pub fn prefetch_bytes(mut self, bytes: usize) -> GroupBuilder {
        self.prefetch_bytes = bytes;
        self
    }

    /// Any property of a reader or a group, by Kafka's name. A wrong one is told by
    /// [`join`](GroupBuilder::join).
    pub fn set(mut self, name: &str, value: &str) -> GroupBuilder {
        if let Err(error) = self.settings.apply(name, value) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Joins, and returns once this member has its first assignment, which may be of nothing: more
    /// members than partitions leave some idle.
    ///
    /// The others may take their time to rejoin, up to the rebalance timeout. Dropped halfway, the
    /// member leaves again.
    ///
    /// # Errors
    /// Config; the coordinator's refusal; why no coordinator was found within
    /// `default.api.timeout.ms`.
    pub async fn join(self) -> Result<Group, Error> {
        let (group, mut progress) = self.start()?;
        let deadline = group.committer.client.api_deadline();
        let found =
            progress.wait_for(|progress| progress.has_coordinator || progress.failed.is_some());
        if timeout_at(deadline, found).await.is_err() {
            let late = || Error::new(ErrorKind::ApiTimeout, "no coordinator in time");
            return Err(progress.borrow().not_found.clone().unwrap_or_else(late));
        }
        let joined = progress.wait_for(|progress| progress.has_joined || progress.failed.is_some());
        match joined.await.map(|progress| progress.failed.clone()) {
            Ok(None) => Ok(group),
            Ok(Some(error)) => Err(error),
            Err(_gone) => Err(Error::closed("the client")),
        }
    }

    fn start(self) -> Result<(Group, watch::Receiver<Progress>), Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let settings = &self.settings.group;
        validate_group(settings)?;
        if self.id.is_empty() || (self.topics.is_empty() && self.pattern.is_none()) {
            let message = "a group needs an id and at least one topic, or a pattern";
            return Err(Error::config(message.to_owned()));
        }
        let commits = self.commits.unwrap_or(match settings.auto_commit {
            true => Commits::AfterProcessing,
            false => Commits::Explicit,
        });
        let mut reader = self.settings.reader.clone();
        let from = match (self.from, settings.reset) {
            (Some(from), _) => Some(from),
            (None, Some(OutOfRange::Fail)) => None,
            (None, Some(OutOfRange::Earliest)) => Some(From::Earliest),
            (None, Some(OutOfRange::Latest) | None) => Some(From::Latest),
        };
        if settings.reset.is_none() {
            reader.out_of_range = match from {
                Some(From::Earliest) => OutOfRange::Earliest,
                Some(From::Latest) => OutOfRange::Latest,
                _ => OutOfRange::Fail,
            };
        }
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let group: Arc<str> = self.id.into();
        let config = MemberConfig {
            group: group.clone(),
            topics: self.topics,
            pattern: self.pattern,
            instance_id: text(&settings.instance_id),
            session_timeout: settings.session_timeout,
            rebalance_timeout: settings.poll_interval_max,
            heartbeat_interval: settings.heartbeat_interval,
            strategies: settings.strategies.clone(),
            remote_assignor: text(&settings.remote_assignor),
            backoff: self.client.net.retry_backoff(),
        };
        let net = &self.client.net;
        let machine = match settings.protocol {
            GroupProtocol::Classic => Machine::Classic(Classic::new(config.clone(), net.env.now())),
            GroupProtocol::Consumer => {
                let member_id = net.env.random_uuid().to_string();
                Machine::Consumer(Consumer::new(config.clone(), member_id, net.env.now()))
            }
        };
        let shared = Arc::new(Shared {
            ledger: Lock::new(Ledger::default()),
            pace: Lock::new(Pace::default()),
            identity: Lock::new(Identity {
                member_id: String::new(),
                generation: -1,
            }),
        });
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let (notice_sender, notices) = mpsc::unbounded_channel();
        let (changes, change_receiver) = mpsc::unbounded_channel();
        let (batch_sender, batches) = mpsc::unbounded_channel();
        let (progress, progress_receiver) = watch::channel(Progress::default());
        let search = Search {
            client: self.client.clone(),
            shared: shared.clone(),
            group: group.clone(),
            from,
            isolation: reader.isolation,
        };
        let interval = settings.auto_commit_interval.max(Duration::from_millis(1));
        let setup = Setup {
            client: self.client.clone(),
            config,
            search,
            poll_interval_max: settings.poll_interval_max,
            commit_interval: (commits == Commits::AfterProcessing).then_some(interval),
            shared: shared.clone(),
            commands: command_receiver,
            notices: notice_sender,
            changes,
            progress,
        };
        let poll_interval_max = settings.poll_interval_max;
        let budget = Budget::new(self.prefetch_bytes);
        let source = Source::Assigned(change_receiver);
        let fetcher = Fetcher::new(
            self.client.clone(),
            reader,
            source,
            budget.clone(),
            batch_sender,
        );
        self.client.net.tasks.spawn(fetcher.run());
        self.client
            .net
            .tasks
            .spawn(Driver::new(setup, machine).run());
        let group = Group {
            id: group,
            batches,
            notices,
            shared,
            committer: Committer {
                client: self.client,
                commands,
            },
            budget,
            commits,
            poll_interval_max,
            owned: BTreeSet::new(),
            revoking: HashMap::new(),
            ticket: None,
            paying: None,
            has_handed_out: false,
            is_accounted_by_others: false,
            has_ended: false,
        };
        Ok((group, progress_receiver))
    }
}
