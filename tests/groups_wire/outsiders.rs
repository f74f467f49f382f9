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
