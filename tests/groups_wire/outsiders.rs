//! Commits from outside of a group: welcome while it has no members, refused from the moment on in
//! which it gets its first.

use corduroy_protocol::decode_response;

use super::*;

/// An identity of nobody.
fn outside(group: &str) -> (&str, &str, i32) {
    (group, "", -1)
}

fn newcomer_of(group: &str) -> ConsumerGroupHeartbeatRequest {
    newcomer(group).with_subscribed_topic_names(Some(vec![topic_name(TOPIC)]))
}

/// The commit lies in the log behind the member that made the group one with members, so it must not
/// be acknowledged, although that member is not yet durable when the commit is judged.
#[test]
fn nobody_outside_commits_behind_a_first_member_that_is_on_its_way() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&["modern"]);
    for round in 0..10 {
        let empty = commit(&mut wire, 8, outside("modern"), &[(0, round)]);
        assert_eq!(
            empty,
            [ErrorCode::None],
            "round {round}: a group without members"
        );

        let join = Request::ConsumerGroupHeartbeat(newcomer_of("modern"));
        let late = commit_request(8, outside("modern"), &[(0, 1_000)]);
        let late = Request::OffsetCommit(late);
        wire.send(1, &join).expect("sent");
        wire.send(8, &late).expect("sent");
        let (_, joined) = wire.receive().expect("answered");
        let (_, refused) = wire.receive().expect("answered");
        let joined = decode_response(join.key(), 1, joined).expect("an answer").1;
        let Response::ConsumerGroupHeartbeat(joined) = joined else {
            panic!("{joined:?}");
        };
        assert_eq!(code(joined.error_code), ErrorCode::None, "round {round}");
        let refused = decode_response(late.key(), 8, refused)
            .expect("an answer")
            .1;
        let Response::OffsetCommit(refused) = refused else {
            panic!("{refused:?}");
        };
        let error = code(refused.topics[0].partitions[0].error_code);
        assert_ne!(
            error,
            ErrorCode::None,
            "round {round}: a group with a member"
        );

        let left = newcomer("modern").with_member_epoch(-1);
        let left = answer!(wire, 1, ConsumerGroupHeartbeat, left);
        assert_eq!(code(left.error_code), ErrorCode::None, "round {round}");
    }
}

/// The coordinator still knows the classic group, and that it is empty. The group is another one by
/// now, and has a member.
#[test]
fn a_classic_group_that_was_says_nothing_about_its_successor() {
    let _alone = alone();
    let (_cluster, mut wire) = one_node(&["both"]);
    let (member, generation) = join(&mut wire, "both", "consumer", "range");
    let request = sync(
        "both",
        (&member, generation),
        [Some("consumer"), Some("range")],
    );
    let synced = answer!(wire, 5, SyncGroup, request);
    assert_eq!(code(synced.error_code), ErrorCode::None);
    let leave = LeaveGroupRequest::default()
        .with_group_id(group_id("both"))
        .with_members(vec![
            MemberIdentity::default().with_member_id(text(&member)),
        ]);
    let left = answer!(wire, 5, LeaveGroup, leave);
    assert_eq!(code(left.error_code), ErrorCode::None);
    let welcome = commit(&mut wire, 8, outside("both"), &[(0, 1)]);
    assert_eq!(welcome, [ErrorCode::None], "nobody is a member");

    join_consumer(&mut wire, newcomer_of("both"));
    let refused = commit(&mut wire, 8, outside("both"), &[(0, 1_000)]);
    assert_eq!(refused, [ErrorCode::UnknownMemberId], "somebody is");
}
