//! ListGroups, DescribeGroups and DeleteGroups.

use corduroy_group::GroupError;
use corduroy_group::classic::ClassicState;
use corduroy_protocol::messages::{
    DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest, DescribeGroupsResponse,
    ListGroupsRequest, ListGroupsResponse,
    delete_groups_response::DeletableGroupResult,
    describe_groups_response::{DescribedGroup, DescribedGroupMember},
    list_groups_response::ListedGroup,
};
use corduroy_protocol::{ErrorCode, RequestHeader, StrBytes};
use corduroy_record::GroupId;
use futures::future::join_all;

use crate::group::{CONSUMER_OFFSETS, GroupCall, ListFilter};
use crate::kafka::context::KafkaContext;

use super::coordinator::{ask, ask_partition};

/// First version of DescribeGroups that says GROUP_ID_NOT_FOUND, with a message (KIP-1043).
const NOT_FOUND_SINCE: i16 = 6;
/// "Not asked for", and there is nothing to authorize yet.
const OPERATIONS_NOT_ASKED: i32 = i32::MIN;

/// ListGroups (versions 0 to 5): the groups that this node coordinates; clients ask every node.
pub async fn list_groups(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: ListGroupsRequest,
) -> ListGroupsResponse {
    let texts = |list: Vec<StrBytes>| list.into_iter().map(|text| text.to_string()).collect();
    let filter = ListFilter {
        states: texts(request.states_filter),
        types: texts(request.types_filter),
    };
    let image = ctx.metadata.image();
    let here: Vec<GroupId> = image
        .topics
        .get(CONSUMER_OFFSETS)
        .map(|topic| {
            let placed = topic.groups().zip(&topic.partitions);
            placed
                .filter(|(_, partition)| partition.replicas.iter().any(|(_, n)| *n == ctx.node))
                .map(|(group, _)| group)
                .collect()
        })
        .unwrap_or_default();
    let asked = here.into_iter().map(|place| {
        let filter = filter.clone();
        ask_partition(ctx, place, |reply| GroupCall::List { filter, reply })
    });
    let mut groups = Vec::new();
    let mut error = ErrorCode::None;
    for answer in join_all(asked).await {
        match answer.flatten() {
            Ok(listed) => groups.extend(listed),
            // No replica open here yet: its groups are another node's.
            Err(ErrorCode::NotCoordinator) => {}
            Err(code) => error = code,
        }
    }
    if error != ErrorCode::None {
        ctx.shard.counters().failed(header.api_key, error.name());
    }
    groups.sort_by(|a, b| a.group.cmp(&b.group));
    let groups = groups.into_iter().map(|group| {
        ListedGroup::default()
            .with_group_id(StrBytes::from_string(group.group).into())
            .with_protocol_type(StrBytes::from_string(group.protocol_type))
            .with_group_state(StrBytes::from_static_str(group.state))
            .with_group_type(StrBytes::from_static_str(group.kind))
    });
    ListGroupsResponse::default()
        .with_error_code(error.code())
        .with_groups(groups.collect())
}

/// DescribeGroups (versions 0 to 6): classic groups. Until version 5 an unknown one is "Dead", which
/// clients depend on.
pub async fn describe_groups(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let asked = request.groups.into_iter().map(|id| async move {
        let group = id.to_string();
        let asked = ask(ctx, &id, |reply| GroupCall::Describe { group, reply });
        let answer = asked.await.unwrap_or_else(|code| Err(code.into()));
        let row = DescribedGroup::default()
            .with_group_id(id)
            .with_authorized_operations(OPERATIONS_NOT_ASKED);
        match answer {
            Ok(group) => {
                let members = group.members.into_iter().map(|member| {
                    DescribedGroupMember::default()
                        .with_member_id(StrBytes::from_string(member.member_id))
                        .with_group_instance_id(member.instance_id.map(StrBytes::from_string))
                        .with_client_id(StrBytes::from_string(member.client_id))
                        .with_client_host(StrBytes::from_string(member.client_host))
                        .with_member_metadata(member.metadata)
                        .with_member_assignment(member.assignment)
                });
                row.with_group_state(StrBytes::from_static_str(group.state))
                    .with_protocol_type(StrBytes::from_string(group.protocol_type))
                    .with_protocol_data(StrBytes::from_string(group.protocol))
                    .with_members(members.collect())
            }
            Err(error) => not_described(ctx, header, row, error),
        }
    });
    DescribeGroupsResponse::default().with_groups(join_all(asked).await)
}

fn not_described(
    ctx: &KafkaContext,
    header: &RequestHeader,
    row: DescribedGroup,
    error: GroupError,
) -> DescribedGroup {
    let unknown = error.code == ErrorCode::GroupIdNotFound;
    let row = match unknown {
        true => row.with_group_state(StrBytes::from_static_str(ClassicState::Dead.name())),
        false => row,
    };
    if unknown && header.api_version < NOT_FOUND_SINCE {
        return row;
    }
    ctx.shard
        .counters()
        .failed(header.api_key, error.code.name());
    let row = row.with_error_code(error.code.code());
    match header.api_version >= NOT_FOUND_SINCE {
        true => row.with_error_message(Some(StrBytes::from_string(error.message))),
        false => row,
    }
}

/// DeleteGroups (versions 0 to 2).
pub async fn delete_groups(
    ctx: &KafkaContext,
    header: &RequestHeader,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let asked = request.groups_names.into_iter().map(|id| async move {
        let group = id.to_string();
        let asked = ask(ctx, &id, |reply| GroupCall::Delete { group, reply });
        let code = match asked.await.flatten() {
            Ok(()) => ErrorCode::None,
            Err(code) => {
                ctx.shard.counters().failed(header.api_key, code.name());
                code
            }
        };
        DeletableGroupResult::default()
            .with_group_id(id)
            .with_error_code(code.code())
    });
    DeleteGroupsResponse::default().with_results(join_all(asked).await)
}
