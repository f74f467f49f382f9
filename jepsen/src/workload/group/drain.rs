//! After everything was healed and written, one member of each group reads what is left.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use corduroy_client::Client;

use super::watch::positions;
use super::{GROUPS, GroupEvent, Member, Plan};
use crate::history::{Answer, Call, Key, Outcome, WorkerId};
use crate::workload::{Shared, ends};

/// How long all groups together may take: sessions of members that crashed have to end first.
const ALL_MAX: Duration = Duration::from_secs(90);
/// Between two tries to join.
const AGAIN: Duration = Duration::from_millis(500);
/// The worker under which it stands in the history.
const WORKER: WorkerId = WorkerId(u32::MAX - 1);

/// Reads each group to the end of every partition. Returns what could not be, a sentence each.
pub async fn drain(shared: &Shared) -> Vec<String> {
    let deadline = shared.env.now() + ALL_MAX;
    let left = deadline.saturating_duration_since(shared.env.now());
    let mut missing = Vec::new();
    let known = async {
        let client = shared.client("jepsen-drain").await?;
        ends::of(&client, &shared.keys.all()).await
    };
    let ends = match tokio::time::timeout(left, known).await {
        Ok(Ok(ends)) => ends,
        Ok(Err(error)) => return vec![format!("the ends of partitions are not known: {error:#}")],
        Err(_late) => return vec!["the ends of partitions are not known in time".to_owned()],
    };
    for (name, division, _) in GROUPS {
        let plan = Plan {
            name,
            division: *division,
            ghosts: Rc::default(),
        };
        let left = deadline.saturating_duration_since(shared.env.now());
        let drained = tokio::time::timeout(left, drain_one(shared, &plan, &ends)).await;
        if drained.is_err() {
            missing.push(format!("{name} has not read to the end in time"));
        }
    }
    missing
}

async fn drain_one(shared: &Shared, plan: &Plan, ends: &BTreeMap<Key, i64>) {
    loop {
        let client = shared.client("jepsen-drain").await;
        if let Ok(client) = client
            && let Some(member) = Member::join(shared, WORKER, plan).await
            && read_out(shared, member, &client, ends).await
        {
            break;
        }
        shared.env.sleep(AGAIN).await;
    }
    for (key, end) in ends {
        let call = Call::GroupDrain {
            group: plan.name.to_owned(),
            key: key.clone(),
        };
        let recorder = &shared.recorder;
        let id = recorder.invoke(WORKER, recorder.process(), call);
        recorder.complete(id, Outcome::Ok(Answer::Latest { offset: *end }));
    }
}

/// Reads and commits until the group is at the end everywhere. `false`: the member has ended first.
async fn read_out(
    shared: &Shared,
    mut member: Member,
    client: &Client,
    ends: &BTreeMap<Key, i64>,
) -> bool {
    let admin = client.admin();
    let name = member.plan.name;
    loop {
        let Some((since, event)) = member.next().await else {
            // Nothing comes any more: is that because everything was read?
            let known = positions(shared, WORKER, &admin, name).await;
            let known: HashMap<Key, i64> = known.unwrap_or_default().into_iter().collect();
            let is_read = |(key, end): (&Key, &i64)| {
                *end == 0 || known.get(key).is_some_and(|position| position >= end)
            };
            if ends.iter().all(is_read) {
                member.leave().await;
                return true;
            }
            continue;
        };
        match event {
            Ok(GroupEvent::Batch(batch)) => {
                member.read(&batch);
                member.commit(&batch).await;
            }
            Ok(GroupEvent::Assigned { partitions, .. }) => {
                member.assigned(since, &partitions);
            }
            Ok(GroupEvent::Revoked(partitions) | GroupEvent::Lost(partitions)) => {
                member.revoked(&partitions);
            }
            Ok(_) => {}
            Err(_ended) => {
                member.crash().await;
                return false;
            }
        }
    }
}
