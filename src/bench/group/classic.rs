//! One member by the classic protocol: joins, shares out if it leads, sends heartbeats.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use corduroy_env::Env;
use corduroy_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use corduroy_protocol::messages::leave_group_request::MemberIdentity;
use corduroy_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use corduroy_protocol::messages::{
    GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    SyncGroupRequest,
};
use corduroy_protocol::{ErrorCode, Response, StrBytes};

use super::super::wire::{Link, RETRY_PAUSE, is_not_ready, text};
use crate::cli::{CliError, CliResult};

/// Java's defaults: `session.timeout.ms`, `max.poll.interval.ms`, `heartbeat.interval.ms`.
const SESSION_TIMEOUT_MS: i32 = 45_000;
const REBALANCE_TIMEOUT_MS: i32 = 300_000;
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);

const PROTOCOL_TYPE: &str = "consumer";

/// Kafka's name of what [`share_out`] does.
const ASSIGNOR: &str = "roundrobin";

/// A member with a connection of its own. It needs one: while its JoinGroup waits for the others,
/// a broker answers nothing behind it.
pub(in crate::bench) struct ClassicMember {
    env: Env,
    pub(in crate::bench) link: Link,
    group: StrBytes,
    topic: String,
    topic_partitions: i32,
    member_id: StrBytes,
    generation: i32,
}

impl ClassicMember {
    /// Not in the group so far.
    pub(in crate::bench) fn new(
        env: &Env,
        link: Link,
        group: &str,
        topic: &str,
        topic_partitions: i32,
    ) -> ClassicMember {
        ClassicMember {
            env: env.clone(),
            link,
            group: text(group),
            topic: topic.to_owned(),
            topic_partitions,
            member_id: StrBytes::default(),
            generation: -1,
        }
    }

    pub(in crate::bench) fn group(&self) -> GroupId {
        GroupId(self.group.clone())
    }

    /// Its id, as the coordinator gave it.
    pub(in crate::bench) fn member_id(&self) -> &StrBytes {
        &self.member_id
    }

    /// The generation that it is in.
    pub(in crate::bench) fn generation(&self) -> i32 {
        self.generation
    }

    /// Joins, again as often as it takes, and returns what it is to read.
    ///
    /// # Errors
    /// The connection's; a refusal that joining again does not help against.
    pub(in crate::bench) async fn join(&mut self) -> CliResult<Vec<i32>> {
        loop {
            let request = JoinGroupRequest::default()
                .with_group_id(self.group())
                .with_session_timeout_ms(SESSION_TIMEOUT_MS)
                .with_rebalance_timeout_ms(REBALANCE_TIMEOUT_MS)
                .with_member_id(self.member_id.clone())
                .with_protocol_type(StrBytes::from_static_str(PROTOCOL_TYPE))
                .with_protocols(vec![
                    JoinGroupRequestProtocol::default()
                        .with_name(StrBytes::from_static_str(ASSIGNOR))
                        .with_metadata(subscription(&self.topic)),
                ]);
            let Response::JoinGroup(joined) = self.link.call(request).await?.response else {
                return Err(self.link.another());
            };
            match ErrorCode::from_code(joined.error_code) {
                ErrorCode::None => {}
                ErrorCode::MemberIdRequired => {
                    self.member_id = joined.member_id;
                    continue;
                }
                ErrorCode::UnknownMemberId => {
                    self.member_id = StrBytes::default();
                    continue;
                }
                code if is_not_ready(code) || code == ErrorCode::RebalanceInProgress => {
                    self.env.sleep(RETRY_PAUSE).await;
                    continue;
                }
                _ => return Err(self.link.refused("JoinGroup", joined.error_code).into()),
            }
            self.member_id = joined.member_id.clone();
            self.generation = joined.generation_id;
            if let Some(partitions) = self.sync(joined).await? {
                return Ok(partitions);
            }
        }
    }

    /// `None` = the group went on to its next generation meanwhile.
    async fn sync(&mut self, joined: JoinGroupResponse) -> CliResult<Option<Vec<i32>>> {
        let is_leader = joined.leader == joined.member_id && !joined.skip_assignment;
        let assignments = if is_leader {
            let members = joined.members.iter().map(|member| member.member_id.clone());
            share_out(members.collect(), &self.topic, self.topic_partitions)
        } else {
            Vec::new()
        };
        let request = SyncGroupRequest::default()
            .with_group_id(self.group())
            .with_generation_id(self.generation)
            .with_member_id(self.member_id.clone())
            .with_protocol_type(Some(StrBytes::from_static_str(PROTOCOL_TYPE)))
            .with_protocol_name(Some(StrBytes::from_static_str(ASSIGNOR)))
            .with_assignments(assignments);
        let Response::SyncGroup(synced) = self.link.call(request).await?.response else {
            return Err(self.link.another());
        };
        match ErrorCode::from_code(synced.error_code) {
            ErrorCode::None => {}
            ErrorCode::RebalanceInProgress
            | ErrorCode::IllegalGeneration
            | ErrorCode::UnknownMemberId => return Ok(None),
            code if is_not_ready(code) => {
                self.env.sleep(RETRY_PAUSE).await;
                return Ok(None);
            }
            _ => return Err(self.link.refused("SyncGroup", synced.error_code).into()),
        }
        read_assignment(&synced.assignment)
            .map(Some)
            .ok_or_else(|| CliError::failed("cannot read an assignment").into())
    }

    /// Says that it lives. `true` = the group stands; `false` = it must join again.
    ///
    /// # Errors
    /// The connection's; a refusal that joining again does not help against.
    pub(super) async fn heartbeat(&mut self) -> CliResult<(bool, Duration)> {
        let request = HeartbeatRequest::default()
            .with_group_id(self.group())
            .with_generation_id(self.generation)
            .with_member_id(self.member_id.clone());
        let answer = self.link.call(request).await?;
        let Response::Heartbeat(body) = answer.response else {
            return Err(self.link.another());
        };
        let stands = match ErrorCode::from_code(body.error_code) {
            ErrorCode::None => true,
            ErrorCode::RebalanceInProgress
            | ErrorCode::IllegalGeneration
            | ErrorCode::UnknownMemberId => false,
            code if is_not_ready(code) => true,
            _ => return Err(self.link.refused("Heartbeat", body.error_code).into()),
        };
        Ok((stands, answer.latency))
    }

    /// Leaves the group.
    ///
    /// # Errors
    /// The connection's, or a refusal.
    pub(in crate::bench) async fn leave(&mut self) -> CliResult {
        let request = LeaveGroupRequest::default()
            .with_group_id(self.group())
            .with_members(vec![
                MemberIdentity::default().with_member_id(self.member_id.clone()),
            ]);
        let Response::LeaveGroup(left) = self.link.call(request).await?.response else {
            return Err(self.link.another());
        };
        let member = left.members.first().map_or(0, |member| member.error_code);
        match (left.error_code, member) {
            (0, 0) => Ok(()),
            (0, code) | (code, _) => Err(self.link.refused("LeaveGroup", code).into()),
        }
    }
}

/// Gives partition p to member p modulo their number.
fn share_out(
    members: Vec<StrBytes>,
    topic: &str,
    partitions: i32,
) -> Vec<SyncGroupRequestAssignment> {
    let mut shares: Vec<Vec<i32>> = vec![Vec::new(); members.len()];
    for (turn, partition) in (0..partitions).enumerate() {
        let taker = turn % members.len().max(1);
        if let Some(share) = shares.get_mut(taker) {
            share.push(partition);
        }
    }
    members
        .into_iter()
        .zip(shares)
        .map(|(member, share)| {
            SyncGroupRequestAssignment::default()
                .with_member_id(member)
                .with_assignment(assignment(topic, &share))
        })
        .collect()
}

/// Kafka's ConsumerProtocolSubscription, version 3: one topic, no user data, nothing owned, no
/// generation, no rack. Big-endian, as are all numbers of the protocol.
fn subscription(topic: &str) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(3);
    out.put_i32(1);
    put_string(&mut out, topic);
    out.put_i32(-1);
    out.put_i32(0);
    out.put_i32(-1);
    out.put_i16(-1);
    out.freeze()
}

/// Kafka's ConsumerProtocolAssignment, version 0: version (i16), topics (i32 count; each a string
/// and an array of i32), user data (null).
fn assignment(topic: &str, partitions: &[i32]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_i16(0);
    out.put_i32(1);
    put_string(&mut out, topic);
    out.put_i32(partitions.len() as i32);
    for &partition in partitions {
        out.put_i32(partition);
    }
    out.put_i32(-1);
    out.freeze()
}

fn put_string(out: &mut BytesMut, text: &str) {
    // Topic names have 249 characters at most.
    out.put_i16(text.len() as i16);
    out.put_slice(text.as_bytes());
}

/// The partitions of an [`assignment`]; no bytes are none of them. `None` for anything else.
fn read_assignment(bytes: &Bytes) -> Option<Vec<i32>> {
    let mut rest = bytes.clone();
    if rest.is_empty() {
        return Some(Vec::new());
    }
    rest.try_get_i16().ok()?;
    let topics = rest.try_get_i32().ok()?;
    let mut partitions = Vec::new();
    for _ in 0..topics {
        let name = usize::try_from(rest.try_get_i16().ok()?).ok()?;
        if rest.remaining() < name {
            return None;
        }
        rest.advance(name);
        for _ in 0..rest.try_get_i32().ok()? {
            partitions.push(rest.try_get_i32().ok()?);
        }
    }
    Some(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_is_shared_out_once_and_evenly() {
        let members: Vec<StrBytes> = ["a", "b", "c"].into_iter().map(text).collect();
        let shares: Vec<Vec<i32>> = share_out(members, "t", 7)
            .iter()
            .map(|share| read_assignment(&share.assignment).expect("our own bytes"))
            .collect();
        assert_eq!(shares, [vec![0, 3, 6], vec![1, 4], vec![2, 5]]);
        assert!(share_out(Vec::new(), "t", 7).is_empty());
    }

    #[test]
    fn a_cut_assignment_is_none() {
        let whole = assignment("orders", &[5, 8]);
        assert_eq!(read_assignment(&whole), Some(vec![5, 8]));
        assert_eq!(read_assignment(&Bytes::new()), Some(Vec::new()));
        // The last four bytes are user data, which is not read.
        for cut in 1..whole.len() - 4 {
            assert_eq!(read_assignment(&whole.slice(..cut)), None, "{cut} bytes");
        }
    }
}
