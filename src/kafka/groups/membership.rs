//! JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

use bytes::Bytes;
use corduroy_group::GroupError;
use corduroy_group::classic::{JoinAnswer, JoinRequest, Leaving, MemberIdentity, SyncRequest};
use corduroy_protocol::messages::join_group_response::JoinGroupResponseMember;
use corduroy_protocol::messages::leave_group_response::MemberResponse;
use corduroy_protocol::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest,
    LeaveGroupResponse, SyncGroupRequest, SyncGroupResponse,
};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};

use crate::group::GroupCall;
use crate::kafka::context::KafkaContext;

use super::coordinator::ask;

/// First version of JoinGroup with a rebalance timeout of its own.
const REBALANCE_TIMEOUT_SINCE: i16 = 1;
/// First version of JoinGroup whose members come twice to get their id (KIP-394).
const MEMBER_ID_REQUIRED_SINCE: i16 = 4;
/// First version of JoinGroup whose answer may lack a protocol.
const PROTOCOL_NULLABLE_SINCE: i16 = 7;
/// First version of JoinGroup whose leader may be told to skip the assignment (KIP-814).
const SKIP_ASSIGNMENT_SINCE: i16 = 9;
/// First version of SyncGroup that names the protocol and its type (KIP-559).
const SYNC_PROTOCOL_SINCE: i16 = 5;
/// First version of LeaveGroup for several members.
const MEMBERS_SINCE: i16 = 3;

/// The name that a member gets: its instance's or client's name and 128 random bits.
pub(super) fn fresh_member_id(ctx: &KafkaContext, prefix: &str) -> String {
    format!("{prefix}-{}", ctx.env.random_uuid())
}

/// The client's address, as Kafka shows it.
pub(super) fn client_host(ctx: &KafkaContext) -> String {
    ctx.peer
        .map_or_else(|| "/unknown".to_owned(), |peer| format!("/{}", peer.ip()))
}

/// Bytes that outlive their request without holding its whole frame.
fn own(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn text(text: Option<StrBytes>) -> Option<String> {
    text.map(|text| text.to_string())
}

fn some_text(text: impl Into<String>) -> Option<StrBytes> {
    Some(StrBytes::from_string(text.into()))
}

fn failed(ctx: &KafkaContext, header: &RequestHeader, error: &GroupError) -> i16 {
    ctx.shard
        .counters()
        .failed(header.api_key, error.code.name());
    error.code.code()
}

/// JoinGroup (versions 0 to 9). The answer comes when the join phase has ended.
pub async fn join_group(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: JoinGroupRequest,
) -> JoinGroupResponse {
    let version = header.api_version;
    let client_id = header.client_id.as_deref().unwrap_or_default().to_owned();
    let prefix = match &request.group_instance_id {
        Some(instance) => instance.to_string(),
        None => client_id.clone(),
    };
    let member_id = request.member_id.to_string();
    let join = JoinRequest {
        member_id: member_id.clone(),
        fresh_member_id: fresh_member_id(ctx, &prefix),
        instance_id: text(request.group_instance_id),
        requires_known_member_id: version >= MEMBER_ID_REQUIRED_SINCE,
        supports_skip_assignment: version >= SKIP_ASSIGNMENT_SINCE,
        client_id,
        client_host: client_host(ctx),
        session_timeout_ms: request.session_timeout_ms,
        rebalance_timeout_ms: match version >= REBALANCE_TIMEOUT_SINCE {
            true => request.rebalance_timeout_ms,
            false => request.session_timeout_ms,
        },
        protocol_type: request.protocol_type.to_string(),
        protocols: request
            .protocols
            .into_iter()
            .map(|protocol| (protocol.name.to_string(), own(&protocol.metadata)))
            .collect(),
        reason: text(request.reason),
    };
    let group = request.group_id.to_string();
    let asked = ask(ctx, &request.group_id, |reply| GroupCall::Join {
        group,
        request: join,
        reply,
    });
    let answer = asked.await.unwrap_or_else(|code| JoinAnswer {
        member_id,
        result: Err(code.into()),
    });
    let response =
        JoinGroupResponse::default().with_member_id(StrBytes::from_string(answer.member_id));
    match answer.result {
        Ok(joined) => {
            let members = joined.members.into_iter().map(|member| {
                JoinGroupResponseMember::default()
                    .with_member_id(StrBytes::from_string(member.member_id))
                    .with_group_instance_id(member.instance_id.map(StrBytes::from_string))
                    .with_metadata(member.metadata)
            });
            response
                .with_generation_id(joined.generation)
                .with_protocol_type(some_text(joined.protocol_type))
                .with_protocol_name(some_text(joined.protocol))
                .with_leader(StrBytes::from_string(joined.leader))
                .with_skip_assignment(joined.skip_assignment && version >= SKIP_ASSIGNMENT_SINCE)
                .with_members(members.collect())
        }
        Err(error) => response
            .with_error_code(failed(ctx, header, &error))
            .with_generation_id(-1)
            .with_protocol_name(match version >= PROTOCOL_NULLABLE_SINCE {
                true => None,
                false => some_text(""),
            }),
    }
}

/// SyncGroup (versions 0 to 5). The answer comes when the leader has assigned.
pub async fn sync_group(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: SyncGroupRequest,
) -> SyncGroupResponse {
    let names_protocol = request.protocol_type.is_some() && request.protocol_name.is_some();
    if header.api_version >= SYNC_PROTOCOL_SINCE && !names_protocol {
        let error = ErrorCode::InconsistentGroupProtocol.into();
        return SyncGroupResponse::default().with_error_code(failed(ctx, header, &error));
    }
    let group = request.group_id.to_string();
    let sync = SyncRequest {
        identity: MemberIdentity {
            member_id: request.member_id.to_string(),
            instance_id: text(request.group_instance_id),
            generation: request.generation_id,
        },
        protocol_type: text(request.protocol_type),
        protocol: text(request.protocol_name),
        assignments: request
            .assignments
            .into_iter()
            .map(|row| (row.member_id.to_string(), own(&row.assignment)))
            .collect(),
    };
    let asked = ask(ctx, &request.group_id, |reply| GroupCall::Sync {
        group,
        request: sync,
        reply,
    });
    let answer = asked.await.unwrap_or_else(|code| Err(code.into()));
    match answer {
        Ok(synced) => SyncGroupResponse::default()
            .with_protocol_type(some_text(synced.protocol_type))
            .with_protocol_name(some_text(synced.protocol))
            .with_assignment(synced.assignment),
        Err(error) => SyncGroupResponse::default().with_error_code(failed(ctx, header, &error)),
    }
}

/// Heartbeat (versions 0 to 4).
pub async fn heartbeat(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: HeartbeatRequest,
) -> HeartbeatResponse {
    let group = request.group_id.to_string();
    let identity = MemberIdentity {
        member_id: request.member_id.to_string(),
        instance_id: text(request.group_instance_id),
        generation: request.generation_id,
    };
    let asked = ask(ctx, &request.group_id, |reply| GroupCall::Heartbeat {
        group,
        identity,
        reply,
    });
    let response = HeartbeatResponse::default();
    match asked.await.unwrap_or_else(|code| Err(code.into())) {
        Ok(()) => response,
        Err(error) => response.with_error_code(failed(ctx, header, &error)),
    }
}

/// LeaveGroup (versions 0 to 5).
pub async fn leave_group(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: LeaveGroupRequest,
) -> LeaveGroupResponse {
    let several = header.api_version >= MEMBERS_SINCE;
    let leaving: Vec<Leaving> = match several {
        true => request
            .members
            .into_iter()
            .map(|member| Leaving {
                member_id: member.member_id.to_string(),
                instance_id: text(member.group_instance_id),
                reason: text(member.reason),
            })
            .collect(),
        false => vec![Leaving {
            member_id: request.member_id.to_string(),
            instance_id: None,
            reason: None,
        }],
    };
    let group = request.group_id.to_string();
    let members = leaving.clone();
    let asked = ask(ctx, &request.group_id, |reply| GroupCall::Leave {
        group,
        members,
        reply,
    });
    let response = LeaveGroupResponse::default();
    let results = match asked.await.unwrap_or_else(|code| Err(code.into())) {
        Ok(results) => results,
        Err(error) => return response.with_error_code(failed(ctx, header, &error)),
    };
    let codes = results.iter().map(|result| match result {
        Ok(()) => ErrorCode::None.code(),
        Err(error) => failed(ctx, header, error),
    });
    if !several {
        return response.with_error_code(codes.into_iter().next().unwrap_or(0));
    }
    let members = leaving.into_iter().zip(codes).map(|(member, code)| {
        MemberResponse::default()
            .with_member_id(StrBytes::from_string(member.member_id))
            .with_group_instance_id(member.instance_id.map(StrBytes::from_string))
            .with_error_code(code)
    });
    response.with_members(members.collect())
}
