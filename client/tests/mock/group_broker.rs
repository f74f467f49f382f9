//! A small group coordinator for the scripted cluster: Kafka's classic state machine without its
//! timers. Whoever is to be thrown out is thrown out by the test.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use corduroy_protocol::messages::find_coordinator_response::Coordinator;
use corduroy_protocol::messages::join_group_response::JoinGroupResponseMember;
use corduroy_protocol::messages::leave_group_response::MemberResponse;
use corduroy_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use corduroy_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use corduroy_protocol::messages::{
    BrokerId, FindCoordinatorResponse, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupResponse, OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest,
    OffsetFetchResponse, SyncGroupRequest, SyncGroupResponse,
};
use corduroy_protocol::{ErrorCode, Request, Response, StrBytes};

use crate::broker::Cluster;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Empty,
    Preparing,
    Completing,
    Stable,
}

#[derive(Default)]
struct Member {
    instance: Option<String>,
    metadata: Bytes,
    has_joined: bool,
    assignment: Bytes,
}

/// The one group of a mock cluster.
#[derive(Default)]
pub struct MockGroup {
    pub coordinator: i32,
    phase: Phase,
    generation: i32,
    members: BTreeMap<String, Member>,
    leader: String,
    named: usize,
    pub offsets: BTreeMap<(String, i32), i64>,
    /// Told with every committed offset.
    pub offset_epoch: Option<i32>,
    /// Where a log ends that a newer epoch than the partition's was read of.
    pub logs_part_at: i64,
    /// Every accepted commit, in order.
    pub commits: Vec<(i32, i64)>,
    /// What the next commits are answered with.
    pub refusals: Vec<ErrorCode>,
    pub joins: usize,
    pub left: BTreeSet<String>,
}

impl MockGroup {
    /// The member that holds a static name.
    pub fn holder(&self, instance: &str) -> Option<String> {
        let is_it = |member: &Member| member.instance.as_deref() == Some(instance);
        let mut found = self.members.iter().filter(|(_, member)| is_it(member));
        found.next().map(|(id, _)| id.clone())
    }

    /// As [`check`](MockGroup::check), for whoever may have a static name.
    fn check_named(&self, instance: Option<&StrBytes>, member: &str, generation: i32) -> ErrorCode {
        let holder = instance.and_then(|instance| self.holder(instance));
        if holder.is_some_and(|holder| holder != member) {
            return ErrorCode::FencedInstanceId;
        }
        self.check(member, generation)
    }

    /// A static member is back: it takes its predecessor's place, and nobody rebalances.
    fn replace(&mut self, old: &str, request: &JoinGroupRequest) -> JoinGroupResponse {
        self.named += 1;
        let id = format!("m{}", self.named);
        if let Some(member) = self.members.remove(old) {
            self.members.insert(id.clone(), member);
        }
        let is_leader = self.leader == old;
        if is_leader {
            self.leader = id.clone();
        }
        JoinGroupResponse::default()
            .with_generation_id(self.generation)
            .with_protocol_type(Some(request.protocol_type.clone()))
            .with_protocol_name(Some(request.protocols[0].name.clone()))
            .with_leader(StrBytes::from_string(self.leader.clone()))
            .with_skip_assignment(is_leader)
            .with_member_id(StrBytes::from_string(id))
    }

    fn check(&self, member: &str, generation: i32) -> ErrorCode {
        if !self.members.contains_key(member) {
            ErrorCode::UnknownMemberId
        } else if generation != self.generation {
            ErrorCode::IllegalGeneration
        } else {
            ErrorCode::None
        }
    }

    fn prepare(&mut self) {
        self.phase = match self.members.is_empty() {
            true => Phase::Empty,
            false => Phase::Preparing,
        };
        for member in self.members.values_mut() {
            member.has_joined = false;
        }
    }

    fn complete(&mut self) {
        if self.phase == Phase::Preparing && self.members.values().all(|member| member.has_joined) {
            self.phase = Phase::Completing;
            self.generation += 1;
            if !self.members.contains_key(&self.leader) {
                self.leader = self.members.keys().next().cloned().unwrap_or_default();
            }
        }
    }

    /// The coordinator gives a member up.
    pub fn expel(&mut self, member: &str) {
        self.members.remove(member);
        if self.members.is_empty() {
            self.phase = Phase::Empty;
        } else {
            self.prepare();
        }
    }

    pub fn generation(&self) -> i32 {
        self.generation
    }
}

impl Cluster {
    /// `None`: not a group's request.
    pub async fn coordinate(&self, node: i32, request: &Request) -> Option<Response> {
        let is_here = self.group(|group| group.coordinator) == node;
        let elsewhere = (!is_here).then_some(ErrorCode::NotCoordinator.code());
        Some(match request {
            Request::FindCoordinator(request) => {
                let (id, address) = self.coordinator();
                let found = Coordinator::default()
                    .with_key(
                        request
                            .coordinator_keys
                            .first()
                            .cloned()
                            .unwrap_or_default(),
                    )
                    .with_node_id(BrokerId(id))
                    .with_host(StrBytes::from_string(address.ip().to_string()))
                    .with_port(i32::from(address.port()));
                FindCoordinatorResponse::default()
                    .with_coordinators(vec![found])
                    .into()
            }
            Request::JoinGroup(request) => match elsewhere {
                Some(code) => JoinGroupResponse::default().with_error_code(code).into(),
                None => self.join(request).await.into(),
            },
            Request::SyncGroup(request) => match elsewhere {
                Some(code) => SyncGroupResponse::default().with_error_code(code).into(),
                None => self.sync(request).await.into(),
            },
            Request::Heartbeat(request) => {
                let code = elsewhere.unwrap_or_else(|| {
                    self.group(|group| {
                        let instance = request.group_instance_id.as_ref();
                        let (id, generation) = (&request.member_id, request.generation_id);
                        match group.check_named(instance, id, generation) {
                            ErrorCode::None if group.phase == Phase::Preparing => {
                                ErrorCode::RebalanceInProgress
                            }
                            code => code,
                        }
                    })
                    .code()
                });
                HeartbeatResponse::default().with_error_code(code).into()
            }
            Request::LeaveGroup(request) => {
                let member = request.members[0].member_id.to_string();
                self.group(|group| {
                    group.expel(&member);
                    group.left.insert(member.clone());
                });
                self.wake();
                let left =
                    MemberResponse::default().with_member_id(request.members[0].member_id.clone());
                LeaveGroupResponse::default()
                    .with_members(vec![left])
                    .into()
            }
            Request::OffsetCommit(request) => self.commit(request, elsewhere).into(),
            Request::OffsetFetch(request) => self.committed(request, elsewhere).into(),
            _ => return None,
        })
    }

    async fn join(&self, request: &JoinGroupRequest) -> JoinGroupResponse {
        let instance = request.group_instance_id.as_ref().map(ToString::to_string);
        if request.member_id.is_empty() {
            let replaced = self.group(|group| {
                let old = group.holder(instance.as_deref()?)?;
                (group.phase == Phase::Stable).then(|| group.replace(&old, request))
            });
            if let Some(answer) = replaced {
                return answer;
            }
        }
        if request.member_id.is_empty() {
            let id = self.group(|group| {
                group.named += 1;
                format!("m{}", group.named)
            });
            return JoinGroupResponse::default()
                .with_error_code(ErrorCode::MemberIdRequired.code())
                .with_member_id(StrBytes::from_string(id));
        }
        let id = request.member_id.to_string();
        self.group(|group| {
            group.joins += 1;
            if group.phase != Phase::Preparing {
                group.prepare();
            }
            group.phase = Phase::Preparing;
            let member = group.members.entry(id.clone()).or_default();
            member.instance = instance.clone();
            member.metadata = request.protocols[0].metadata.clone();
            member.has_joined = true;
            group.complete();
        });
        self.wake();
        self.wait_for(|group| group.phase != Phase::Preparing).await;
        self.group(|group| {
            let is_leader = group.leader == id;
            let members = group
                .members
                .iter()
                .filter(|_| is_leader)
                .map(|(id, member)| {
                    JoinGroupResponseMember::default()
                        .with_member_id(StrBytes::from_string(id.clone()))
                        .with_metadata(member.metadata.clone())
                });
            JoinGroupResponse::default()
                .with_generation_id(group.generation)
                .with_protocol_type(Some(request.protocol_type.clone()))
                .with_protocol_name(Some(request.protocols[0].name.clone()))
                .with_leader(StrBytes::from_string(group.leader.clone()))
                .with_member_id(request.member_id.clone())
                .with_members(members.collect())
        })
    }

    async fn sync(&self, request: &SyncGroupRequest) -> SyncGroupResponse {
        let id = request.member_id.to_string();
        let generation = request.generation_id;
        let code = self.group(|group| {
            let is_leading = group.leader == id && group.phase == Phase::Completing;
            if is_leading && group.check(&id, generation) == ErrorCode::None {
                for assigned in &request.assignments {
                    if let Some(member) = group.members.get_mut(&assigned.member_id.to_string()) {
                        member.assignment = assigned.assignment.clone();
                    }
                }
                group.phase = Phase::Stable;
            }
            group.check(&id, generation)
        });
        if code != ErrorCode::None {
            return SyncGroupResponse::default().with_error_code(code.code());
        }
        self.wake();
        self.wait_for(|group| group.phase != Phase::Completing || group.generation != generation)
            .await;
        self.group(|group| match group.members.get(&id) {
            Some(member) if group.phase == Phase::Stable => {
                SyncGroupResponse::default().with_assignment(member.assignment.clone())
            }
            _ => {
                SyncGroupResponse::default().with_error_code(ErrorCode::RebalanceInProgress.code())
            }
        })
    }

    fn commit(
        &self,
        request: &OffsetCommitRequest,
        elsewhere: Option<i16>,
    ) -> OffsetCommitResponse {
        self.group(|group| {
            let refusal = (!group.refusals.is_empty()).then(|| group.refusals.remove(0).code());
            let checked = match request.generation_id_or_member_epoch {
                -1 if group.members.is_empty() => ErrorCode::None,
                generation => group.check(&request.member_id, generation),
            };
            let code = elsewhere.or(refusal).unwrap_or(checked.code());
            let topics = request.topics.iter().map(|topic| {
                let partitions = topic.partitions.iter().map(|partition| {
                    let (index, offset) = (partition.partition_index, partition.committed_offset);
                    if code == 0 {
                        group
                            .offsets
                            .insert((topic.name.to_string(), index), offset);
                        group.commits.push((index, offset));
                    }
                    OffsetCommitResponsePartition::default()
                        .with_partition_index(index)
                        .with_error_code(code)
                });
                OffsetCommitResponseTopic::default()
                    .with_name(topic.name.clone())
                    .with_partitions(partitions.collect())
            });
            OffsetCommitResponse::default().with_topics(topics.collect())
        })
    }

    fn committed(
        &self,
        request: &OffsetFetchRequest,
        elsewhere: Option<i16>,
    ) -> OffsetFetchResponse {
        self.group(|group| {
            let asked = &request.groups[0];
            let topics = asked.topics.iter().flatten().map(|topic| {
                let partitions = topic.partition_indexes.iter().map(|index| {
                    let known = group.offsets.get(&(topic.name.to_string(), *index));
                    OffsetFetchResponsePartitions::default()
                        .with_partition_index(*index)
                        .with_committed_offset(known.copied().unwrap_or(-1))
                        .with_committed_leader_epoch(group.offset_epoch.unwrap_or(-1))
                });
                OffsetFetchResponseTopics::default()
                    .with_name(topic.name.clone())
                    .with_partitions(partitions.collect())
            });
            let answer = OffsetFetchResponseGroup::default()
                .with_group_id(asked.group_id.clone())
                .with_error_code(elsewhere.unwrap_or(0))
                .with_topics(topics.collect());
            OffsetFetchResponse::default().with_groups(vec![answer])
        })
    }
}
