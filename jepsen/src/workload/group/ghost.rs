//! Commits in the name of generations that are over. No client would send them: one that knows
//! better does not, and one that does not know is dead.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anyhow::{Context, bail};
use corduroy_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use corduroy_protocol::messages::{GroupId, OffsetCommitRequest, TopicName};
use corduroy_protocol::{ErrorCode, Request, Response, StrBytes};

use super::watch::partition_of;
use super::{Plan, unknown};
use crate::chance::Chance;
use crate::coverage::OFFSETS_TOPIC;
use crate::history::{Answer, Call, Key, Outcome, WorkerId};
use crate::workload::Shared;
use crate::workload::fencing::Wire;

/// Between two commits.
const EVERY: Duration = Duration::from_millis(250);
/// Commits that are remembered, to be made again when their time is over.
const REMEMBERED_MAX: usize = 256;
/// The newest version that the classic and the consumer protocol share.
const VERSION: i16 = 9;

/// A commit that was taken once.
#[derive(Clone, Debug)]
pub struct Ghost {
    pub member_id: String,
    pub generation: i32,
    pub key: Key,
    pub offset: i64,
}

/// Commits of the past, and the newest generation of each partition.
#[derive(Default)]
pub struct Ghosts {
    remembered: VecDeque<Ghost>,
    newest: HashMap<Key, i32>,
}

impl Ghosts {
    /// A member has these partitions in this generation.
    pub fn owned(&mut self, keys: &[Key], generation: i32) {
        for key in keys {
            let newest = self.newest.entry(key.clone()).or_insert(generation);
            *newest = generation.max(*newest);
        }
    }

    /// A commit was taken.
    pub fn committed(&mut self, ghost: Ghost) {
        if self.remembered.len() >= REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back(ghost);
    }

    /// A commit whose time is over for certain.
    fn pick(&self, chance: &mut Chance) -> Option<Ghost> {
        let is_over = |ghost: &&Ghost| {
            let newest = self.newest.get(&ghost.key);
            newest.is_some_and(|newest| *newest > ghost.generation)
        };
        let over: Vec<&Ghost> = self.remembered.iter().filter(is_over).collect();
        chance.pick(&over).map(|ghost| (*ghost).clone())
    }
}

/// Runs until clients stop.
pub async fn run(shared: Shared, worker: WorkerId, plan: Plan, seed: u64) {
    let mut chance = Chance::fork(seed, u64::from(worker.0));
    let mut wire = None;
    while !shared.is_over() {
        shared.pause(EVERY).await;
        let ghost = plan.ghosts.borrow().pick(&mut chance);
        let Some(ghost) = ghost else { continue };
        if wire.is_none() {
            wire = connect(&shared, plan.name).await.ok();
        }
        let Some(open) = &mut wire else { continue };
        let call = Call::GroupCommit {
            group: plan.name.to_owned(),
            generation: Some(ghost.generation),
            key: ghost.key.clone(),
            offset: ghost.offset,
        };
        let process = shared.recorder.process();
        let id = shared.recorder.invoke(worker, process, call);
        let outcome = match commit(open, plan.name, &ghost).await {
            Ok(ErrorCode::None) => Outcome::Ok(Answer::Done),
            Ok(error) => {
                if error == ErrorCode::NotCoordinator {
                    wire = None;
                }
                Outcome::Fail {
                    error: error.name().to_owned(),
                }
            }
            Err(error) => {
                wire = None;
                unknown(&format!("{error:#}"))
            }
        };
        shared.recorder.complete(id, outcome);
    }
}

async fn connect(shared: &Shared, group: &str) -> anyhow::Result<Wire> {
    let client = shared.client("jepsen-ghost").await?;
    let topic = client.admin().describe_topic(OFFSETS_TOPIC).await?;
    let count = u32::try_from(topic.partitions.len())?;
    let partition = partition_of(group, count).context("no partitions")?;
    Wire::to_leader(shared, &Key::new(OFFSETS_TOPIC, partition)).await
}

async fn commit(wire: &mut Wire, group: &str, ghost: &Ghost) -> anyhow::Result<ErrorCode> {
    let text = |text: &str| StrBytes::from_string(text.to_owned());
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(i32::try_from(ghost.key.partition)?)
        .with_committed_offset(ghost.offset)
        .with_committed_leader_epoch(-1)
        .with_committed_metadata(Some(text("")));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(TopicName(text(&ghost.key.topic)))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id_or_member_epoch(ghost.generation)
        .with_member_id(text(&ghost.member_id))
        .with_topics(vec![topic]);
    let answer = wire.call(VERSION, &Request::OffsetCommit(request)).await?;
    let Response::OffsetCommit(answer) = answer else {
        bail!("not an answer to OffsetCommit");
    };
    let partition = answer
        .topics
        .first()
        .and_then(|topic| topic.partitions.first())
        .context("an answer without the partition")?;
    Ok(ErrorCode::from_code(partition.error_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A commit that the coordinator may still take would move the group back.
    #[test]
    fn only_commits_whose_generation_is_over_are_made_again() {
        let (here, there) = (Key::new("t", 0), Key::new("t", 1));
        let mut ghosts = Ghosts::default();
        let mut chance = Chance::new(1);
        for (key, generation) in [(&here, 3), (&there, 3)] {
            ghosts.owned(std::slice::from_ref(key), generation);
            ghosts.committed(Ghost {
                member_id: "m".to_owned(),
                generation,
                key: key.clone(),
                offset: 7,
            });
        }
        assert!(ghosts.pick(&mut chance).is_none());
        ghosts.owned(std::slice::from_ref(&there), 4);
        ghosts.owned(std::slice::from_ref(&there), 2);
        for _ in 0..10 {
            assert_eq!(ghosts.pick(&mut chance).unwrap().key, there);
        }
    }
}
