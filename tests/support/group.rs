//! A member of a consumer group, one raw request at a time.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corduroy_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use corduroy_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use corduroy_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use corduroy_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use corduroy_protocol::messages::{
    DeleteGroupsRequest, FindCoordinatorRequest, GroupId, HeartbeatRequest, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, OffsetCommitRequest, OffsetDeleteRequest,
    OffsetFetchRequest, SyncGroupRequest, TopicName, leave_group_request::MemberIdentity,
    offset_fetch_request::OffsetFetchRequestTopic,
};
use corduroy_protocol::{ErrorCode, Request, Response, StrBytes};

use super::Cluster;
use super::wire::Wire;

/// How long a member looks for a coordinator that answers.
const COORDINATOR_WAIT: Duration = Duration::from_secs(30);
/// Session and rebalance timeout of the members, milliseconds.
const SESSION_MS: i32 = 60_000;

/// One member.
pub struct Member {
    /// The group.
    pub group: String,
    /// Its id, once it has one.
    pub id: String,
    /// The generation that it is in.
    pub generation: i32,
    /// `group.instance.id`, if it is a static member.
    pub instance: Option<String>,
    /// What it was assigned.
    pub assignment: Bytes,
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group_id(group: &str) -> GroupId {
    GroupId(text(group))
}

/// The node that coordinates a group, as `from` says.
pub fn coordinator_at(from: &mut Wire, group: &str) -> io::Result<(ErrorCode, i32)> {
    let request = FindCoordinatorRequest::default()
        .with_key_type(0)
        .with_key(text(group));
    let Response::FindCoordinator(response) = from.call(3, &Request::FindCoordinator(request))?
    else {
        panic!("not an answer to FindCoordinator");
    };
    let error = ErrorCode::from_code(response.error_code);
    Ok((error, response.node_id.0))
}

/// Whether a member should look for its coordinator and ask again.
fn moved(error: ErrorCode) -> bool {
    matches!(
        error,
        ErrorCode::NotCoordinator
            | ErrorCode::CoordinatorNotAvailable
            | ErrorCode::CoordinatorLoadInProgress
    )
}

/// Runs `call` at the group's coordinator, wherever that is now, until it answers as one. Returns
/// its answer and the node.
pub fn at_coordinator<T>(
    cluster: &Cluster,
    group: &str,
    mut call: impl FnMut(&mut Wire) -> io::Result<(ErrorCode, T)>,
) -> (ErrorCode, T, i32) {
    let deadline = Instant::now() + COORDINATOR_WAIT;
    loop {
        for node in cluster.nodes.iter().filter(|node| node.is_running()) {
            let answer = Wire::try_connect(node.kafka, COORDINATOR_WAIT).and_then(|mut wire| {
                let (error, id) = coordinator_at(&mut wire, group)?;
                let index = usize::try_from(id - 1)
                    .ok()
                    .filter(|_| error == ErrorCode::None);
                let Some(node) = index.and_then(|index| cluster.nodes.get(index)) else {
                    return Ok(None);
                };
                let mut wire = Wire::try_connect(node.kafka, COORDINATOR_WAIT)?;
                let (error, value) = call(&mut wire)?;
                Ok((!moved(error)).then_some((error, value, id)))
            });
            if let Ok(Some(answer)) = answer {
                return answer;
            }
        }
        assert!(
            Instant::now() < deadline,
            "group {group} has no coordinator that answers"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Member {
    /// Somebody who has not joined yet.
    pub fn new(group: &str) -> Member {
        Member {
            group: group.to_owned(),
            id: String::new(),
            generation: -1,
            instance: None,
            assignment: Bytes::new(),
        }
    }

    /// Joins and, as the leader, gives each member its own id as its assignment; then syncs. For
    /// groups whose members all call this at the same time, or have one member.
    pub fn settle(&mut self, cluster: &Cluster) {
        for _ in 0..50 {
            let (error, joined) = self.join(cluster);
            match error {
                ErrorCode::None => {}
                ErrorCode::MemberIdRequired | ErrorCode::RebalanceInProgress => continue,
                other => panic!("join: {}", other.name()),
            }
            let leads = joined.leader.as_str() == self.id;
            let assignments = joined.members.iter().filter(|_| leads).map(|member| {
                SyncGroupRequestAssignment::default()
                    .with_member_id(member.member_id.clone())
                    .with_assignment(Bytes::from(format!("for {}", member.member_id.as_str())))
            });
            match self.sync(cluster, assignments.collect()) {
                ErrorCode::None => return,
                ErrorCode::RebalanceInProgress => {}
                other => panic!("sync: {}", other.name()),
            }
        }
        panic!("the group does not settle");
    }

    /// What [`Member::join`] asks, in version 7.
    pub fn join_request(&self) -> JoinGroupRequest {
        JoinGroupRequest::default()
            .with_group_id(group_id(&self.group))
            .with_member_id(text(&self.id))
            .with_group_instance_id(self.instance.as_deref().map(text))
            .with_session_timeout_ms(SESSION_MS)
            .with_rebalance_timeout_ms(SESSION_MS)
            .with_protocol_type(text("test"))
            .with_protocols(vec![
                JoinGroupRequestProtocol::default()
                    .with_name(text("own"))
                    .with_metadata(Bytes::from_static(b"wants all")),
            ])
    }

    /// JoinGroup.
    pub fn join(&mut self, cluster: &Cluster) -> (ErrorCode, JoinGroupResponse) {
        let request = self.join_request();
        let (error, joined, _) = at_coordinator(cluster, &self.group, |wire| {
            let request = Request::JoinGroup(request.clone());
            let Response::JoinGroup(response) = wire.call(7, &request)? else {
                panic!("not an answer to JoinGroup");
            };
            Ok((ErrorCode::from_code(response.error_code), response))
        });
        if !joined.member_id.is_empty() {
            self.id = joined.member_id.to_string();
        }
        if error == ErrorCode::None {
            self.generation = joined.generation_id;
        }
        (error, joined)
    }

    /// SyncGroup.
    pub fn sync(
        &mut self,
        cluster: &Cluster,
        assignments: Vec<SyncGroupRequestAssignment>,
    ) -> ErrorCode {
        let request = SyncGroupRequest::default()
            .with_group_id(group_id(&self.group))
            .with_member_id(text(&self.id))
            .with_group_instance_id(self.instance.as_deref().map(text))
            .with_generation_id(self.generation)
            .with_assignments(assignments);
        let (error, assignment, _) = at_coordinator(cluster, &self.group, |wire| {
            let request = Request::SyncGroup(request.clone());
            let Response::SyncGroup(response) = wire.call(3, &request)? else {
                panic!("not an answer to SyncGroup");
            };
            Ok((
                ErrorCode::from_code(response.error_code),
                response.assignment,
            ))
        });
        if error == ErrorCode::None {
            self.assignment = assignment;
        }
        error
    }

    /// Heartbeat; the answer, and the node that gave it.
    pub fn heartbeat(&self, cluster: &Cluster) -> (ErrorCode, i32) {
        let request = HeartbeatRequest::default()
            .with_group_id(group_id(&self.group))
            .with_member_id(text(&self.id))
            .with_group_instance_id(self.instance.as_deref().map(text))
            .with_generation_id(self.generation);
        let (error, (), node) = at_coordinator(cluster, &self.group, |wire| {
            let request = Request::Heartbeat(request.clone());
            let Response::Heartbeat(response) = wire.call(3, &request)? else {
                panic!("not an answer to Heartbeat");
            };
            Ok((ErrorCode::from_code(response.error_code), ()))
        });
        (error, node)
    }

    /// LeaveGroup.
    pub fn leave(&self, cluster: &Cluster) -> ErrorCode {
        let request = LeaveGroupRequest::default()
            .with_group_id(group_id(&self.group))
            .with_members(vec![
                MemberIdentity::default()
                    .with_member_id(text(&self.id))
                    .with_group_instance_id(self.instance.as_deref().map(text)),
            ]);
        let (error, (), _) = at_coordinator(cluster, &self.group, |wire| {
            let request = Request::LeaveGroup(request.clone());
            let Response::LeaveGroup(response) = wire.call(3, &request)? else {
                panic!("not an answer to LeaveGroup");
            };
            let own = response.members.first().map_or(0, |m| m.error_code);
            let code = if response.error_code == 0 {
                own
            } else {
                response.error_code
            };
            Ok((ErrorCode::from_code(code), ()))
        });
        error
    }

    /// JoinGroup, once, on this connection: whatever the answer is.
    pub fn join_at(&mut self, wire: &mut Wire) -> io::Result<ErrorCode> {
        let request = Request::JoinGroup(self.join_request());
        let Response::JoinGroup(response) = wire.call(7, &request)? else {
            panic!("not an answer to JoinGroup");
        };
        if !response.member_id.is_empty() {
            self.id = response.member_id.to_string();
        }
        Ok(ErrorCode::from_code(response.error_code))
    }

    /// OffsetCommit of one partition, once, on this connection: whatever the answer is.
    pub fn commit_at(
        &self,
        wire: &mut Wire,
        place: (&str, i32),
        offset: i64,
    ) -> io::Result<ErrorCode> {
        send_commit(wire, 7, self.commit_request(place, offset))
    }

    /// OffsetCommit of one partition that shall live for so long (version 2).
    pub fn commit_for(
        &self,
        cluster: &Cluster,
        place: (&str, i32),
        offset: i64,
        retention_ms: i64,
    ) -> ErrorCode {
        let mut request = self
            .commit_request(place, offset)
            .with_group_instance_id(None)
            .with_retention_time_ms(retention_ms);
        for partition in request.topics.iter_mut().flat_map(|t| &mut t.partitions) {
            // This version has none.
            partition.committed_leader_epoch = -1;
        }
        let (error, (), _) = at_coordinator(cluster, &self.group, |wire| {
            Ok((send_commit(wire, 2, request.clone())?, ()))
        });
        error
    }

    /// OffsetCommit of one partition, with metadata that names the offset.
    pub fn commit(&self, cluster: &Cluster, place: (&str, i32), offset: i64) -> ErrorCode {
        let request = self.commit_request(place, offset);
        let (error, (), _) = at_coordinator(cluster, &self.group, |wire| {
            Ok((send_commit(wire, 7, request.clone())?, ()))
        });
        error
    }

    /// OffsetCommit of one partition by a member of the consumer protocol, whose epoch stands in
    /// [`Member::generation`] (version 9).
    pub fn commit_by_epoch(&self, cluster: &Cluster, place: (&str, i32), offset: i64) -> ErrorCode {
        let request = self.commit_request(place, offset);
        let (error, (), _) = at_coordinator(cluster, &self.group, |wire| {
            Ok((send_commit(wire, 9, request.clone())?, ()))
        });
        error
    }

    fn commit_request(&self, place: (&str, i32), offset: i64) -> OffsetCommitRequest {
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(place.1)
            .with_committed_offset(offset)
            .with_committed_leader_epoch(3)
            .with_committed_metadata(Some(text(&format!("up to {offset}"))));
        let topic = OffsetCommitRequestTopic::default()
            .with_name(TopicName(text(place.0)))
            .with_partitions(vec![partition]);
        OffsetCommitRequest::default()
            .with_group_id(group_id(&self.group))
            .with_member_id(text(&self.id))
            .with_group_instance_id(self.instance.as_deref().map(text))
            .with_generation_id_or_member_epoch(self.generation)
            .with_topics(vec![topic])
    }
}

fn send_commit(
    wire: &mut Wire,
    version: i16,
    request: OffsetCommitRequest,
) -> io::Result<ErrorCode> {
    let Response::OffsetCommit(response) = wire.call(version, &Request::OffsetCommit(request))?
    else {
        panic!("not an answer to OffsetCommit");
    };
    let code = response.topics[0].partitions[0].error_code;
    Ok(ErrorCode::from_code(code))
}

/// OffsetDelete of one partition, once, on this connection: the code of all, or the partition's.
pub fn delete_offset_at(wire: &mut Wire, group: &str, place: (&str, i32)) -> io::Result<ErrorCode> {
    let partition = OffsetDeleteRequestPartition::default().with_partition_index(place.1);
    let topic = OffsetDeleteRequestTopic::default()
        .with_name(TopicName(text(place.0)))
        .with_partitions(vec![partition]);
    let request = OffsetDeleteRequest::default()
        .with_group_id(group_id(group))
        .with_topics(vec![topic]);
    let Response::OffsetDelete(response) = wire.call(0, &Request::OffsetDelete(request))? else {
        panic!("not an answer to OffsetDelete");
    };
    let own = response
        .topics
        .first()
        .map_or(0, |topic| topic.partitions[0].error_code);
    let code = if response.error_code == 0 {
        own
    } else {
        response.error_code
    };
    Ok(ErrorCode::from_code(code))
}

/// OffsetFetch of one partition: offset, leader epoch, metadata.
pub fn committed(cluster: &Cluster, group: &str, place: (&str, i32)) -> (i64, i32, String) {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(TopicName(text(place.0)))
        .with_partition_indexes(vec![place.1]);
    let request = OffsetFetchRequest::default()
        .with_group_id(group_id(group))
        .with_topics(Some(vec![topic]));
    let (error, found, _) = at_coordinator(cluster, group, |wire| {
        let request = Request::OffsetFetch(request.clone());
        let Response::OffsetFetch(response) = wire.call(7, &request)? else {
            panic!("not an answer to OffsetFetch");
        };
        let found = response.topics.first().map(|topic| {
            let partition = &topic.partitions[0];
            let metadata = partition.metadata.as_ref();
            (
                partition.committed_offset,
                partition.committed_leader_epoch,
                metadata.map(|text| text.to_string()).unwrap_or_default(),
            )
        });
        Ok((ErrorCode::from_code(response.error_code), found))
    });
    assert_eq!(error, ErrorCode::None, "OffsetFetch");
    found.expect("the partition that was asked for")
}

/// DeleteGroups of one group.
pub fn delete_group(cluster: &Cluster, group: &str) -> ErrorCode {
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group_id(group)]);
    let (error, (), _) = at_coordinator(cluster, group, |wire| {
        let request = Request::DeleteGroups(request.clone());
        let Response::DeleteGroups(response) = wire.call(2, &request)? else {
            panic!("not an answer to DeleteGroups");
        };
        Ok((ErrorCode::from_code(response.results[0].error_code), ()))
    });
    error
}
