//! What each API of groups says to whoever asks the wrong node, and of a group without a name; and
//! how members are named.

use corduroy_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use corduroy_protocol::messages::{DeleteGroupsRequest, HeartbeatRequest, OffsetDeleteRequest};

use super::*;

/// The answer of each API that is asked of one group, in the newest version.
fn everything(wire: &mut Wire, group: &str) -> Vec<(&'static str, ErrorCode)> {
    let id = || group_id(group);
    let member = || text("somebody");
    let joined = JoinGroupRequest::default()
        .with_group_id(id())
        .with_session_timeout_ms(SESSION_MS)
        .with_rebalance_timeout_ms(SESSION_MS)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![
            JoinGroupRequestProtocol::default().with_name(text("range")),
        ]);
    let joined = answer!(wire, 9, JoinGroup, joined).error_code;
    let synced = sync(group, ("somebody", 1), [Some("consumer"), Some("range")]);
    let synced = answer!(wire, 5, SyncGroup, synced).error_code;
    let heard = HeartbeatRequest::default()
        .with_group_id(id())
        .with_member_id(member())
        .with_generation_id(1);
    let heard = answer!(wire, 4, Heartbeat, heard).error_code;
    let left = LeaveGroupRequest::default()
        .with_group_id(id())
        .with_members(vec![MemberIdentity::default().with_member_id(member())]);
    let left = answer!(wire, 5, LeaveGroup, left).error_code;
    let committed = commit(wire, 9, (group, "somebody", 1), &[(0, 1)])[0];
    let fetched = answer!(wire, 9, OffsetFetch, batched(&[(group, Some(&[0]))], false));
    let fetched = fetched.groups[0].error_code;
    let topic = OffsetDeleteRequestTopic::default()
        .with_name(topic_name(TOPIC))
        .with_partitions(vec![OffsetDeleteRequestPartition::default()]);
    let forgotten = OffsetDeleteRequest::default()
        .with_group_id(id())
        .with_topics(vec![topic]);
    let forgotten = answer!(wire, 0, OffsetDelete, forgotten).error_code;
    let described = DescribeGroupsRequest::default().with_groups(vec![id()]);
    let described = answer!(wire, 6, DescribeGroups, described).groups[0].error_code;
    let deleted = DeleteGroupsRequest::default().with_groups_names(vec![id()]);
    let deleted = answer!(wire, 2, DeleteGroups, deleted).results[0].error_code;
    let beaten = newcomer(group).with_subscribed_topic_names(Some(vec![topic_name(TOPIC)]));
    let beaten = answer!(wire, 1, ConsumerGroupHeartbeat, beaten).error_code;
    let consumers = ConsumerGroupDescribeRequest::default().with_group_ids(vec![id()]);
    let consumers = answer!(wire, 1, ConsumerGroupDescribe, consumers).groups[0].error_code;
    vec![
        ("JoinGroup", code(joined)),
        ("SyncGroup", code(synced)),
        ("Heartbeat", code(heard)),
        ("LeaveGroup", code(left)),
        ("OffsetCommit", committed),
        ("OffsetFetch", code(fetched)),
        ("OffsetDelete", code(forgotten)),
        ("DescribeGroups", code(described)),
        ("DeleteGroups", code(deleted)),
        ("ConsumerGroupHeartbeat", code(beaten)),
        ("ConsumerGroupDescribe", code(consumers)),
    ]
}

/// NOT_COORDINATOR of everything.
pub(super) fn not_coordinated(elsewhere: &mut Wire, group: &str) {
    for (api, error) in everything(elsewhere, group) {
        assert_eq!(error, ErrorCode::NotCoordinator, "{api}");
    }
}

#[test]
fn a_group_without_a_name_has_no_members() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&[""]);
    let invalid = ErrorCode::InvalidGroupId;
    // As Kafka: consumers of old commit without a group's name, and what they left can be read and
    // deleted.
    let expected = [
        ("JoinGroup", invalid),
        ("SyncGroup", invalid),
        ("Heartbeat", invalid),
        ("LeaveGroup", invalid),
        ("OffsetCommit", ErrorCode::GroupIdNotFound),
        ("OffsetFetch", ErrorCode::None),
        ("OffsetDelete", invalid),
        ("DescribeGroups", ErrorCode::GroupIdNotFound),
        ("DeleteGroups", ErrorCode::GroupIdNotFound),
        ("ConsumerGroupHeartbeat", ErrorCode::InvalidRequest),
        ("ConsumerGroupDescribe", invalid),
    ];
    assert_eq!(everything(&mut wire, ""), expected);
    assert_eq!(
        commit(&mut wire, 9, ("", "", -1), &[(0, 1)]),
        [ErrorCode::None]
    );
}

/// `clientId-uuid` and `instanceId-uuid`: what people find in the descriptions of a group.
#[test]
fn members_are_named_after_their_client_or_their_instance() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&["named"]);
    let (first, _) = join(&mut wire, "named", "consumer", "range");
    let instance = JoinGroupRequest::default()
        .with_group_id(group_id("by-instance"))
        .with_group_instance_id(Some(text("kitchen-7")))
        .with_session_timeout_ms(SESSION_MS)
        .with_rebalance_timeout_ms(SESSION_MS)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![
            JoinGroupRequestProtocol::default().with_name(text("range")),
        ]);
    let mut second = answer!(wire, 9, JoinGroup, instance.clone());
    wait_until("the coordinator answers", || {
        second = answer!(wire, 9, JoinGroup, instance.clone());
        code(second.error_code) == ErrorCode::None
    });
    for (id, prefix) in [
        (first.as_str(), "test-"),
        (second.member_id.as_str(), "kitchen-7-"),
    ] {
        let random = id.strip_prefix(prefix).expect("named after what it is");
        let lengths: Vec<usize> = random.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "a uuid: {id}");
        let digits = |c: char| c == '-' || c.is_ascii_hexdigit();
        assert!(random.chars().all(digits), "a uuid: {id}");
    }
}
