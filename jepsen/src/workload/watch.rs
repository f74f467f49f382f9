//! Watchers: ask for latest offsets and leaders all the time, as those answers have to keep up with
//! what was acknowledged.

use std::time::Duration;

use corduroy_client::{Isolation, OffsetSpec};

use super::Shared;
use crate::chance::Chance;
use crate::history::{Answer, Call, Outcome, WorkerId};

/// Between two questions.
const EVERY: Duration = Duration::from_millis(100);
/// How long to wait after a client that cannot connect.
const AGAIN: Duration = Duration::from_millis(500);

/// Asks for latest offsets and leaders in turn.
pub async fn run(shared: Shared, worker: WorkerId, seed: u64) {
    let mut chance = Chance::fork(seed, u64::from(worker.0));
    while !shared.is_over() {
        let Ok(client) = shared.client("jepsen-watcher").await else {
            shared.pause(AGAIN).await;
            continue;
        };
        let process = shared.recorder.process();
        while !shared.is_over() {
            shared.pause(EVERY).await;
            let topics = shared.keys.all();
            let Some(topic) = chance.pick(&topics) else {
                continue;
            };
            let partition = u32::try_from(chance.below(u64::from(topic.partitions))).unwrap_or(0);
            let number = i32::try_from(partition).unwrap_or(i32::MAX);
            let key = topic.key(partition);
            if chance.percent(50) {
                let call = Call::LatestOffset { key };
                let id = shared.recorder.invoke(worker, process, call);
                let asked = client
                    .admin()
                    .list_offsets(
                        &topic.name,
                        &[number],
                        OffsetSpec::Latest,
                        Isolation::ReadUncommitted,
                    )
                    .await;
                let outcome = match asked {
                    Ok(found) => match found.get(&number).and_then(|listed| listed.offset) {
                        Some(offset) => Outcome::Ok(Answer::Latest { offset }),
                        None => fail("an answer without an offset"),
                    },
                    Err(error) => fail(&error.to_string()),
                };
                shared.recorder.complete(id, outcome);
            } else {
                let call = Call::Leadership { key };
                let id = shared.recorder.invoke(worker, process, call);
                let outcome = match client.admin().describe_topic(&*topic.name).await {
                    Ok(found) => {
                        let state = found.partitions.iter().find(|p| p.partition == number);
                        match state {
                            Some(state) => Outcome::Ok(Answer::Leadership {
                                node: state.leader.and_then(|id| u32::try_from(id).ok()),
                                epoch: state.leader_epoch,
                            }),
                            None => fail("an answer without the partition"),
                        }
                    }
                    Err(error) => fail(&error.to_string()),
                };
                shared.recorder.complete(id, outcome);
            }
        }
    }
}

/// A question that got no answer has changed nothing.
fn fail(error: &str) -> Outcome {
    Outcome::Fail {
        error: error.to_owned(),
    }
}
