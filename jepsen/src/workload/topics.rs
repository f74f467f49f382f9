//! `topics`: each place's topic lives for a while, is deleted under load and created again under
//! the same name.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::keys::{self, LiveTopic};
use crate::chance::Chance;
use crate::history::WorkerId;

/// How long a topic lives.
const LIFE_MS: (u64, u64) = (2_000, 8_000);
/// Percent of topics that are deleted with writes on their way: their names are not used again.
const HARSH_PERCENT: u64 = 50;
/// How long to wait after a client that cannot connect.
const AGAIN: Duration = Duration::from_millis(500);

/// Creates and deletes the topic of a place, over and over.
pub async fn run(shared: Shared, worker: WorkerId, place: usize, prefix: Rc<str>, seed: u64) {
    let mut chance = Chance::fork(seed, u64::from(worker.0));
    let mut generation = 0;
    let mut incarnation = 0;
    while !shared.is_over() {
        let Ok(client) = shared.client("jepsen-topics").await else {
            shared.pause(AGAIN).await;
            continue;
        };
        while !shared.is_over() {
            let name: Arc<str> = format!("{prefix}-{place}-{generation}").into();
            let topic = LiveTopic {
                name,
                incarnation,
                partitions: 2,
                trims: false,
            };
            let Some(topic) = keys::create(&shared, &client, worker, topic).await else {
                return;
            };
            shared.keys.put(place, topic.clone());
            let life = chance.between(LIFE_MS.0, LIFE_MS.1);
            shared.pause(Duration::from_millis(life)).await;
            if shared.is_over() {
                return;
            }
            let is_harsh = chance.percent(HARSH_PERCENT);
            if is_harsh {
                // A write that is still on its way could land in a successor of the same name:
                // Kafka's Produce names topics, not their ids. So there will be none.
                generation += 1;
                incarnation = 0;
                if !keys::delete(&shared, &client, worker, &topic).await {
                    return;
                }
                shared.keys.remove(place);
            } else {
                shared.keys.remove(place);
                let settled = shared.wait_settled(&topic.name).await;
                if !keys::delete(&shared, &client, worker, &topic).await {
                    // Not deleted: the final read covers it.
                    shared.keys.put(place, topic);
                    return;
                }
                if settled {
                    incarnation += 1;
                } else {
                    generation += 1;
                    incarnation = 0;
                }
            }
        }
    }
}
