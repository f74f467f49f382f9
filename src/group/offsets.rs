//! Committed offsets: commits, fetches, deletion, expiry.

use std::rc::Rc;

use corduroy_group::classic::ClassicState;
use corduroy_group::commits::{
    Retention, Subscribed, delete_offsets, expired, judge_metadata, judge_simple,
};
use corduroy_group::consumer::{check_commit, check_fetch};
use corduroy_group::records::{GroupRecord, OffsetValue};
use corduroy_group::table::GroupKind;
use corduroy_protocol::ErrorCode;
use corduroy_record::TopicPartition;
use tracing::{info, warn};

use super::call::{CommitRequest, CommittedOffset, FetchOffsetsRequest, Reply};
use super::coordinator::{Coordinator, Moment};

impl Coordinator {
    pub(super) fn commit(
        self: &Rc<Self>,
        group: String,
        request: CommitRequest,
        reply: Reply<Vec<ErrorCode>>,
    ) {
        let mut answers = vec![ErrorCode::None; request.offsets.len()];
        let judged = self
            .serving()
            .and_then(|term| Ok((term, self.judge_commit(&group, &request)?)));
        let term = match judged {
            Ok((term, ())) => term,
            Err(code) => {
                answers.fill(code);
                let _gone = reply.send(answers);
                return;
            }
        };
        let metadata_max = self.configs().offset_metadata_max;
        let Moment { now_ms, .. } = self.moment();
        let mut records = Vec::with_capacity(request.offsets.len());
        for (answer, commit) in answers.iter_mut().zip(request.offsets) {
            let refused = commit.refused.or_else(|| {
                let judged = judge_metadata(&commit.metadata, metadata_max);
                judged.err().map(|error| error.code)
            });
            if let Some(code) = refused {
                *answer = code;
                continue;
            }
            records.push(GroupRecord::Offset {
                group: group.clone(),
                partition: commit.partition,
                value: Some(OffsetValue {
                    offset: commit.offset,
                    leader_epoch: commit.leader_epoch,
                    metadata: commit.metadata,
                    commit_timestamp_ms: now_ms,
                    expire_timestamp_ms: request
                        .retention_ms
                        .map(|retention| now_ms.saturating_add(retention)),
                }),
            });
        }
        let written = self.writer.write(term, &records);
        self.env.spawn_local(async move {
            if let Err(code) = written.await {
                for answer in answers.iter_mut().filter(|a| **a == ErrorCode::None) {
                    *answer = code;
                }
            }
            let _gone = reply.send(answers);
        });
    }

    /// Whether a commit is of the group's current generation, or from outside of a group without
    /// members.
    fn judge_commit(
        self: &Rc<Self>,
        group: &str,
        request: &CommitRequest,
    ) -> Result<(), ErrorCode> {
        let is_outside = request.identity.generation < 0;
        if is_outside && self.consumers.is_deciding(group) {
            // Its first member may be joining: from then on nobody outside commits.
            return Err(ErrorCode::CoordinatorLoadInProgress);
        }
        if let Some(judged) = self.check_classic_commit(group, &request.identity) {
            return judged.map_err(|error| error.code);
        }
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(group));
        let judged = match state.map(|state| &state.kind) {
            Some(GroupKind::Consumer(consumer)) if !consumer.members().is_empty() => {
                let identity = &request.identity;
                if self.consumers.is_deciding_about(group, &identity.member_id) {
                    // What it will be when the commit has its place is not known yet.
                    return Err(ErrorCode::CoordinatorLoadInProgress);
                }
                check_commit(consumer, &identity.member_id, identity.generation)
            }
            // Members that do not run: their group is just becoming one of the consumer protocol.
            Some(GroupKind::Classic(value))
                if !value.members.is_empty() && self.running(group, |_| ()).is_none() =>
            {
                return Err(ErrorCode::CoordinatorLoadInProgress);
            }
            _ => judge_simple(state, &request.identity, request.api_version),
        };
        judged.map_err(|error| error.code)
    }

    /// Answers after a read barrier: a coordinator that was deposed unnoticed has none of the
    /// commits since, and an old offset would make a consumer go back.
    pub(super) fn fetch_offsets(
        self: &Rc<Self>,
        group: String,
        request: FetchOffsetsRequest,
        reply: Reply<Result<Vec<CommittedOffset>, ErrorCode>>,
    ) {
        let coordinator = self.clone();
        self.env.spawn_local(async move {
            let _gone = reply.send(coordinator.read_offsets(&group, request).await);
        });
    }

    async fn read_offsets(
        self: Rc<Self>,
        group: &str,
        request: FetchOffsetsRequest,
    ) -> Result<Vec<CommittedOffset>, ErrorCode> {
        self.serving()?;
        if self.partition.replica().read_barrier().await.is_err() {
            return Err(ErrorCode::NotCoordinator);
        }
        self.serving()?;
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(group));
        if let (Some((member, epoch)), Some(state)) = (&request.member, state)
            && let GroupKind::Consumer(consumer) = &state.kind
        {
            check_fetch(consumer, member.as_deref(), *epoch).map_err(|error| error.code)?;
        }
        let offsets = state.map(|state| &state.offsets);
        Ok(match request.partitions {
            None => offsets
                .into_iter()
                .flatten()
                .map(|(partition, value)| CommittedOffset {
                    partition: partition.clone(),
                    value: Some(value.clone()),
                })
                .collect(),
            Some(partitions) => partitions
                .into_iter()
                .map(|partition| CommittedOffset {
                    value: offsets.and_then(|offsets| offsets.get(&partition)).cloned(),
                    partition,
                })
                .collect(),
        })
    }

    pub(super) fn delete_offsets(
        self: &Rc<Self>,
        group: String,
        partitions: Vec<TopicPartition>,
        reply: Reply<Result<Vec<ErrorCode>, ErrorCode>>,
    ) {
        let coordinator = self.clone();
        self.env.spawn_local(async move {
            let _gone = reply.send(coordinator.forget_offsets(&group, &partitions).await);
        });
    }

    async fn forget_offsets(
        self: Rc<Self>,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        // The last member may have left just now.
        self.writer.settled().await;
        let term = self.serving()?;
        let subscribed = self.subscribed(group, Joining::KnowBefore);
        let deleted = {
            let machine = self.partition.machine();
            let state = machine.groups().and_then(|table| table.get(group));
            delete_offsets(group, state, &subscribed, partitions).map_err(|error| error.code)?
        };
        self.writer.write(term, &deleted.records).await?;
        let codes = deleted.results.into_iter();
        Ok(codes
            .map(|result| result.err().unwrap_or(ErrorCode::None))
            .collect())
    }

    /// [`Coordinator::expire`], as often as `offsets.retention.check.interval.ms` says.
    pub fn check_expiry(self: &Rc<Self>) {
        let now = self.moment().now;
        if now >= self.expiry_looked_at() + self.configs().offsets_retention_check {
            self.look_at_expiry(now);
            self.expire();
        }
    }

    /// Forgets offsets that are older than `offsets.retention.minutes` by Kafka's rules, and groups
    /// of which nothing is left. The decision is replicated like everything else.
    fn expire(self: &Rc<Self>) {
        let Ok(term) = self.serving() else { return };
        let retention = Retention {
            now_ms: self.moment().now_ms,
            retention_ms: self.configs().offsets_retention_ms,
        };
        let names: Vec<String> = {
            let machine = self.partition.machine();
            let groups = machine
                .groups()
                .into_iter()
                .flat_map(|table| table.groups());
            groups.map(|(name, _)| name.to_owned()).collect()
        };
        for name in names {
            let subscribed = self.subscribed(&name, Joining::KnowNothing);
            let records = {
                let machine = self.partition.machine();
                let state = machine.groups().and_then(|table| table.get(&name));
                state.map(|state| expired(&name, state, &subscribed, retention))
            };
            let Some(records) = records.filter(|records| !records.is_empty()) else {
                continue;
            };
            info!(group = name, records = records.len(), "offsets expire");
            let written = self.writer.write(term, &records);
            self.env.spawn_local(async move {
                if let Err(code) = written.await {
                    warn!(
                        group = name,
                        code = code.name(),
                        "offsets could not be expired yet"
                    );
                }
            });
        }
    }

    /// Forgets the offsets of deleted topics, as Kafka does: a topic that gets the same name later
    /// shares nothing with its ancestor.
    pub(super) fn forget_gone_topics(self: &Rc<Self>) {
        let gone = self.gone_topics.take();
        let Ok(term) = self.serving() else { return };
        if gone.is_empty() {
            return;
        }
        let records: Vec<GroupRecord> = {
            let machine = self.partition.machine();
            let groups = machine
                .groups()
                .into_iter()
                .flat_map(|table| table.groups());
            let offsets = groups.flat_map(|(name, state)| {
                let offsets = state.offsets.iter();
                offsets.map(move |(partition, value)| (name, partition, value))
            });
            let of_the_dead = offsets.filter(|(_, partition, value)| {
                gone.iter().any(|(topic, seen_ms)| {
                    partition.topic == *topic && value.commit_timestamp_ms <= *seen_ms
                })
            });
            of_the_dead
                .map(|(name, partition, _)| GroupRecord::Offset {
                    group: name.to_owned(),
                    partition: partition.clone(),
                    value: None,
                })
                .collect()
        };
        if records.is_empty() {
            return;
        }
        info!(
            offsets = records.len(),
            "offsets of deleted topics are forgotten"
        );
        let written = self.writer.write(term, &records);
        self.env.spawn_local(async move {
            if let Err(code) = written.await {
                warn!(code = code.name(), "offsets of deleted topics stay for now");
            }
        });
    }

    /// What the running members of a group subscribe to.
    pub(super) fn subscribed(&self, name: &str, joining: Joining) -> Subscribed {
        let subscribed = self.running(name, |group| {
            if group.is_empty() {
                return Subscribed::Nothing;
            }
            let between = joining == Joining::KnowNothing && group.state() != ClassicState::Stable;
            match group.subscribed_topics().filter(|_| !between) {
                Some(topics) => Subscribed::Topics(topics),
                None => Subscribed::Everything,
            }
        });
        subscribed.unwrap_or_else(|| {
            let machine = self.partition.machine();
            let state = machine.groups().and_then(|table| table.get(name));
            match state.map(|state| &state.kind) {
                // Members that do not run: their group is just changing its protocol.
                Some(GroupKind::Classic(value)) if !value.members.is_empty() => {
                    Subscribed::Everything
                }
                _ => Subscribed::Nothing,
            }
        })
    }
}

/// What is known of members that join again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Joining {
    /// What they subscribed to before.
    KnowBefore,
    /// Nothing yet.
    KnowNothing,
}
