//! What every API of groups says where a coordinator may not act, and of a group without a name.

use super::*;

use crate::group::ListFilter;

/// An answer that is still to come, as its error.
type Pending = std::pin::Pin<Box<dyn Future<Output = ErrorCode>>>;

fn pending<T: 'static>(
    answer: oneshot::Receiver<T>,
    code: impl Fn(T) -> ErrorCode + 'static,
) -> Pending {
    Box::pin(async move { code(answer.await.expect("an answer")) })
}

fn outcome<T, E: Into<GroupError>>(result: Result<T, E>) -> ErrorCode {
    result.map_or_else(|error| error.into().code, |_| ErrorCode::None)
}

impl World {
    /// Asks everything that can be asked of a group, by the API's name; of all groups last.
    fn ask_everything(&self, group: &str) -> Vec<(&'static str, Pending)> {
        let name = || group.to_owned();
        let member = || identity("m1", 1);
        let joined = self.ask(|reply| GroupCall::Join {
            group: name(),
            request: join_request("m1"),
            reply,
        });
        let synced = self.ask(|reply| GroupCall::Sync {
            group: name(),
            request: sync_request(1),
            reply,
        });
        let heard = self.ask(|reply| GroupCall::Heartbeat {
            group: name(),
            identity: member(),
            reply,
        });
        let left = self.ask(|reply| GroupCall::Leave {
            group: name(),
            members: Vec::new(),
            reply,
        });
        let committed = self.ask(|reply| GroupCall::Commit {
            group: name(),
            request: commit_request(member(), None, 1),
            reply,
        });
        let fetched = self.ask(|reply| GroupCall::FetchOffsets {
            group: name(),
            request: FetchOffsetsRequest {
                member: None,
                partitions: None,
            },
            reply,
        });
        let forgotten = self.ask(|reply| GroupCall::DeleteOffsets {
            group: name(),
            partitions: vec![place()],
            reply,
        });
        let described = self.ask(|reply| GroupCall::Describe {
            group: name(),
            reply,
        });
        let deleted = self.ask(|reply| GroupCall::Delete {
            group: name(),
            reply,
        });
        let beaten = self.ask(|reply| GroupCall::ConsumerHeartbeat {
            group: name(),
            request: consumer_request(),
            reply,
        });
        let consumer_described = self.ask(|reply| GroupCall::ConsumerDescribe {
            group: name(),
            reply,
        });
        let listed = self.ask(|reply| GroupCall::List {
            filter: ListFilter::default(),
            reply,
        });
        vec![
            ("JoinGroup", pending(joined, |a| outcome(a.result))),
            ("SyncGroup", pending(synced, outcome)),
            ("Heartbeat", pending(heard, outcome)),
            ("LeaveGroup", pending(left, outcome)),
            ("OffsetCommit", pending(committed, |codes| codes[0])),
            ("OffsetFetch", pending(fetched, outcome)),
            ("OffsetDelete", pending(forgotten, outcome)),
            ("DescribeGroups", pending(described, outcome)),
            ("DeleteGroups", pending(deleted, outcome)),
            ("ConsumerGroupHeartbeat", pending(beaten, outcome)),
            (
                "ConsumerGroupDescribe",
                pending(consumer_described, outcome),
            ),
            ("ListGroups", pending(listed, outcome)),
        ]
    }

    async fn all_say(&self, expected: ErrorCode) {
        for (api, answer) in self.ask_everything(GROUP) {
            assert_eq!(answer.await, expected, "{api}");
        }
    }
}

#[test]
fn every_call_is_told_that_the_coordinator_loads() {
    run(|world| async move {
        let generation = world.settle().await;
        let held = world.coordinator.writer.hold();
        let late = world.commit_as(identity("m1", generation), None, 9);
        // As at the end of a lease that is renewed in the same term.
        world.coordinator.abdicate(ErrorCode::NotCoordinator);
        world.all_say(ErrorCode::CoordinatorLoadInProgress).await;
        drop(held);
        assert_eq!(late.await.expect("an answer"), [ErrorCode::None]);
        calm().await;
        let heard = world.heartbeat(generation).await.expect("an answer");
        assert_eq!(heard, Ok(()), "nothing of all that has changed the group");
    });
}

#[test]
fn every_call_is_told_that_the_coordinator_stops() {
    run(|world| async move {
        world.settle().await;
        world.coordinator.stop();
        world.all_say(ErrorCode::CoordinatorNotAvailable).await;
    });
}

#[test]
fn members_that_are_parked_are_told_that_the_coordinator_stops() {
    run(|world| async move {
        world.set("group.initial.rebalance.delay.ms", "60000");
        let joined = world.join("");
        calm().await;
        world.coordinator.stop();
        let joined = joined.await.expect("an answer");
        assert_eq!(outcome(joined.result), ErrorCode::CoordinatorNotAvailable);
    });
}

#[test]
fn a_member_joins_no_group_without_a_name() {
    run(|world| async move {
        let members = ["JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"];
        let answers = world.ask_everything("").into_iter();
        for (api, answer) in answers.filter(|(api, _)| members.contains(api)) {
            assert_eq!(answer.await, ErrorCode::InvalidGroupId, "{api}");
        }
        assert!(!world.has_members_of(""));
    });
}
