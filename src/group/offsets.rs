//! Committed offsets: commits, fetches, deletion.

use std::rc::Rc;

use corduroy_env::planted::{self, Bug};
use corduroy_group::commits::{delete_offsets, judge_metadata, judge_simple};
use corduroy_group::consumer::{check_commit, check_fetch};
use corduroy_group::records::{GroupRecord, OffsetValue};
use corduroy_group::table::GroupKind;
use corduroy_protocol::ErrorCode;
use corduroy_record::{TopicId, TopicPartition};

use crate::controller::MetadataImage;

use super::call::{AskedOffset, CommitRequest, CommittedOffset, FetchOffsetsRequest, Reply};
use super::coordinator::{Coordinator, Moment};
use super::expiry::Joining;
use super::topics::{Standing, standing};

/// First version of OffsetCommit for members of the consumer protocol: what stands in the place of
/// their epoch before is a generation.
const MEMBER_EPOCH_SINCE: i16 = 9;

/// Bytes of names and metadata of one commit.
const COMMIT_BYTES_MAX: usize = 16 * 1024 * 1024;

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
        // Before anything is built: every record carries the group's name.
        let bytes = request
            .offsets
            .iter()
            .map(|commit| group.len() + commit.partition.topic.len() + commit.metadata.len());
        if bytes.sum::<usize>() > COMMIT_BYTES_MAX {
            answers.fill(ErrorCode::OffsetMetadataTooLarge);
            let _gone = reply.send(answers);
            return;
        }
        let metadata_max = self.configs().offset_metadata_max;
        let Moment { now_ms, .. } = self.moment();
        let image = self.metadata.image();
        let mut records = Vec::with_capacity(request.offsets.len() + 1);
        records.extend(self.owed(&group));
        for (answer, commit) in answers.iter_mut().zip(request.offsets) {
            let judged = match commit.refused {
                Some(code) => Err(code),
                None => judge_metadata(&commit.metadata, metadata_max)
                    .map_err(|error| error.code)
                    .and_then(|()| {
                        self.judge_topic(&image, &group, &commit.partition, commit.topic_id)
                    }),
            };
            let topic_id = match judged {
                Ok(id) => id,
                Err(code) => {
                    *answer = code;
                    continue;
                }
            };
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
                    topic_id: Some(topic_id),
                }),
            });
        }
        let written = self.writer.write(term, &records);
        self.env.spawn_local(async move {
            if planted::is(Bug::CommitBeforeWrite) {
                let _gone = reply.send(answers);
                return;
            }
            if let Err(code) = written.await {
                for answer in answers.iter_mut().filter(|a| **a == ErrorCode::None) {
                    *answer = code;
                }
            }
            let _gone = reply.send(answers);
        });
    }

    /// The topic that a commit is of, which its record names: the one that has the name now. `asked`:
    /// the one that the client names by id.
    fn judge_topic(
        &self,
        image: &MetadataImage,
        group: &str,
        partition: &TopicPartition,
        asked: Option<TopicId>,
    ) -> Result<TopicId, ErrorCode> {
        if let Some(code) = is_of_another(image, partition, asked) {
            return Err(code);
        }
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(group));
        let before = state.and_then(|state| state.offsets.get(partition));
        if before.is_some_and(|value| standing(image, partition, value) == Standing::Ahead) {
            // Decided by this image the commit would be of an ancestor, and forgotten soon.
            return Err(ErrorCode::CoordinatorLoadInProgress);
        }
        // Deleted since the client's shard looked the name up.
        let topic = image.topics.get(&partition.topic);
        topic
            .map(|topic| topic.id)
            .ok_or(ErrorCode::UnknownTopicOrPartition)
    }

    /// Whether a commit is of the group's current generation, or from outside of a group without
    /// members.
    fn judge_commit(
        self: &Rc<Self>,
        group: &str,
        request: &CommitRequest,
    ) -> Result<(), ErrorCode> {
        if planted::is(Bug::OldGenerationCommits) {
            return Ok(());
        }
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
                let member = consumer.members().get(&identity.member_id);
                let speaks_epochs = member.is_some_and(|member| member.value.classic.is_none());
                if speaks_epochs && request.api_version < MEMBER_EPOCH_SINCE {
                    Err(ErrorCode::UnsupportedVersion.into())
                } else {
                    check_commit(consumer, &identity.member_id, identity.generation)
                }
            }
            // Members that do not run: their group is just becoming one of the consumer protocol.
            Some(GroupKind::Classic(value))
                if !value.members.is_empty() && self.running(group, |_| ()).is_none() =>
            {
                return Err(ErrorCode::CoordinatorLoadInProgress);
            }
            _ => judge_simple(state, &request.identity, request.api_version),
        };
        if judged.is_ok() && !self.has_room(group) {
            return Err(self.too_many_groups().code);
        }
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
        if !planted::is(Bug::StalePositions) {
            self.serving()?;
            if self.partition.replica().read_barrier().await.is_err() {
                return Err(ErrorCode::NotCoordinator);
            }
            self.serving()?;
        }
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(group));
        if let (Some((member, epoch)), Some(state)) = (&request.member, state)
            && let GroupKind::Consumer(consumer) = &state.kind
        {
            check_fetch(consumer, member.as_deref(), *epoch).map_err(|error| error.code)?;
        }
        let image = self.metadata.image();
        let topic_id = |partition: &TopicPartition| {
            let topic = image.topics.get(&partition.topic);
            topic.map(|topic| topic.id)
        };
        // The offset of a topic that has ended is there until its tombstone is written, and is not
        // one of its successor.
        let lives = |partition: &TopicPartition, value: &&OffsetValue| {
            standing(&image, partition, value) != Standing::Dead
        };
        let offsets = state.map(|state| &state.offsets);
        Ok(match request.partitions {
            None => offsets
                .into_iter()
                .flatten()
                .filter(|(partition, value)| lives(partition, value))
                .map(|(partition, value)| CommittedOffset {
                    partition: partition.clone(),
                    topic_id: value.topic_id.or_else(|| topic_id(partition)),
                    value: Ok(Some(value.clone())),
                })
                .collect(),
            Some(asked) => asked
                .into_iter()
                .map(
                    |AskedOffset {
                         partition,
                         topic_id: asked,
                     }| {
                        let offset = offsets.and_then(|offsets| offsets.get(&partition));
                        // One that is ahead of the image is not of the topic that was asked for.
                        let is_asked = |value: &&OffsetValue| match (asked, value.topic_id) {
                            (Some(asked), Some(id)) => asked == id,
                            _ => true,
                        };
                        let offset = offset
                            .filter(|value| lives(&partition, value))
                            .filter(is_asked);
                        CommittedOffset {
                            topic_id: topic_id(&partition),
                            value: match is_of_another(&image, &partition, asked) {
                                Some(code) => Err(code),
                                None => Ok(offset.cloned()),
                            },
                            partition,
                        }
                    },
                )
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
        self.serving()?;
        // The last member may have left just now.
        self.writer.settled().await;
        let term = self.serving()?;
        let mut decided = Err(ErrorCode::NotCoordinator);
        let written = self.writer.write_alone(term, || {
            let subscribed = self.subscribed(group, Joining::KnowBefore);
            let machine = self.partition.machine();
            let state = machine.groups().and_then(|table| table.get(group));
            match delete_offsets(group, state, &subscribed, partitions) {
                Ok(deleted) => {
                    decided = Ok(deleted.results);
                    deleted.records
                }
                Err(error) => {
                    decided = Err(error.code);
                    Vec::new()
                }
            }
        });
        written.await?;
        let codes = decided?.into_iter();
        Ok(codes
            .map(|result| result.err().unwrap_or(ErrorCode::None))
            .collect())
    }
}

/// Why a topic that a client names by id is not the one of this name now: it was deleted, and
/// perhaps another one made, after the client's shard had looked the name up.
fn is_of_another(
    image: &MetadataImage,
    partition: &TopicPartition,
    asked: Option<TopicId>,
) -> Option<ErrorCode> {
    let asked = asked?;
    let topic = image.topics.get(&partition.topic);
    let is_same = topic.is_some_and(|topic| topic.id == asked);
    (!is_same).then_some(ErrorCode::UnknownTopicId)
}
