//! Asks for a group's positions and its coordinator, over and over.

use std::time::Duration;

use corduroy_client::Admin;

use super::{Plan, key_of, unknown};
use crate::coverage::OFFSETS_TOPIC;
use crate::history::{Answer, Call, Key, Outcome, WorkerId};
use crate::workload::Shared;

/// Between two questions.
const EVERY: Duration = Duration::from_millis(300);
/// How long to wait after a client that cannot connect.
const AGAIN: Duration = Duration::from_millis(500);

/// Runs until clients stop.
pub async fn run(shared: Shared, worker: WorkerId, plan: Plan) {
    while !shared.is_over() {
        let Ok(client) = shared.client("jepsen-group-watcher").await else {
            shared.pause(AGAIN).await;
            continue;
        };
        let admin = client.admin();
        while !shared.is_over() {
            shared.pause(EVERY).await;
            positions(&shared, worker, &admin, plan.name).await;
            coordinator(&shared, worker, &admin, plan.name).await;
        }
    }
}

/// Asks for the committed positions. `None` if there was no answer.
pub async fn positions(
    shared: &Shared,
    worker: WorkerId,
    admin: &Admin,
    group: &str,
) -> Option<Vec<(Key, i64)>> {
    let call = Call::GroupPositions {
        group: group.to_owned(),
    };
    let recorder = &shared.recorder;
    let id = recorder.invoke(worker, recorder.process(), call);
    match admin.group_offsets(group).await {
        Ok(offsets) => {
            let positions: Vec<(Key, i64)> = offsets
                .iter()
                .map(|(at, committed)| (key_of(at), committed.offset))
                .collect();
            recorder.complete(id, Outcome::Ok(Answer::Positions(positions.clone())));
            Some(positions)
        }
        Err(error) => {
            recorder.complete(id, unknown(&error.to_string()));
            None
        }
    }
}

async fn coordinator(shared: &Shared, worker: WorkerId, admin: &Admin, group: &str) {
    let Ok(topic) = admin.describe_topic(OFFSETS_TOPIC).await else {
        return;
    };
    let count = u32::try_from(topic.partitions.len()).unwrap_or(0);
    let Some(partition) = partition_of(group, count) else {
        return;
    };
    let number = i32::try_from(partition).unwrap_or(i32::MAX);
    let state = topic.partitions.iter().find(|p| p.partition == number);
    let Some(state) = state else { return };
    let call = Call::Leadership {
        key: Key::new(OFFSETS_TOPIC, partition),
    };
    // What it says was true at some time since the question: noted as of now, it orders nothing.
    let recorder = &shared.recorder;
    let id = recorder.invoke(worker, recorder.process(), call);
    let answer = Answer::Leadership {
        node: state.leader.and_then(|id| u32::try_from(id).ok()),
        epoch: state.leader_epoch,
    };
    recorder.complete(id, Outcome::Ok(answer));
}

/// The partition of the offsets' topic that a group lives in: the absolute value of Java's hash of
/// its name, by Kafka's rule.
pub fn partition_of(group: &str, count: u32) -> Option<u32> {
    let hash = group.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    });
    hash.checked_abs()
        .unwrap_or(0)
        .unsigned_abs()
        .checked_rem(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Kafka's tools compute it.
    #[test]
    fn a_group_lives_where_java_puts_it() {
        assert_eq!(partition_of("hello", 50), Some(99_162_322 % 50));
        assert_eq!(
            partition_of("billing", 50),
            Some(109_829_509 % 50),
            "of -109829509"
        );
        assert_eq!(
            partition_of("polygenelubricants", 50),
            Some(0),
            "of the smallest number"
        );
        assert_eq!(partition_of("", 50), Some(0));
        assert_eq!(partition_of("hello", 0), None);
    }
}
