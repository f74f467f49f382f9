//! `list-append`: appends to one partition, and reads of all of it that must hold everything that
//! was acknowledged before they began.

use std::time::Duration;

use super::Shared;
use super::final_read::whole_by;
use crate::chance::Chance;
use crate::history::{Answer, Call, Outcome, WorkerId};

/// Between two reads of one worker.
const EVERY: Duration = Duration::from_millis(200);
/// How long to wait after a client that cannot connect.
const AGAIN: Duration = Duration::from_millis(500);

/// Reads the whole log of the place's topic, over and over.
pub async fn run(shared: Shared, worker: WorkerId, place: usize, seed: u64) {
    let mut chance = Chance::fork(seed, u64::from(worker.0));
    while !shared.is_over() {
        let Ok(client) = shared.client("jepsen-list").await else {
            shared.pause(AGAIN).await;
            continue;
        };
        let process = shared.recorder.process();
        let half_ms = u64::try_from(shared.crash_every.as_millis() / 2).unwrap_or(u64::MAX);
        let end = shared.env.now() + Duration::from_millis(half_ms + chance.below(half_ms * 2));
        while !shared.is_over() && shared.env.now() < end {
            shared.pause(EVERY).await;
            // After the load: whatever nobody has read to its end.
            let topic = match shared.keys.unread_topics() {
                Some(unread) => chance.pick(&unread).cloned(),
                None => shared.keys.at(place),
            };
            let Some(topic) = topic else { continue };
            let key = topic.key(0);
            let call = Call::ReadAll { key: key.clone() };
            let id = shared.recorder.invoke(worker, process, call);
            let outcome = match whole_by(&client, &key).await {
                Ok(read) => {
                    shared.keys.read(&key, read.next);
                    Outcome::Ok(Answer::Read(vec![read]))
                }
                Err(error) => Outcome::Fail {
                    error: format!("{error:#}"),
                },
            };
            shared.recorder.complete(id, outcome);
        }
    }
}
