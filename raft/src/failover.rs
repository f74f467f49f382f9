//! Fast failover: when the detector calls a leader's node down, the live voter with the longest
//! log campaigns at once (law 12).
//!
//! It stays a normal Raft election. Only the order of the candidates is arranged: the live voters
//! tell each other their last entries, the highest campaigns, ties go to the higher replica id,
//! and retries are staggered so that two never duel for long.
//!
//! A node's death, or everyone's restart, concerns all groups at once. They take turns: what a
//! thousand surveys and campaigns at the same time cost makes each of them late, and whoever is
//! late is asked again, so that a slow machine would do nothing else for ever.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use corduroy_record::{GroupId, NodeId, ReplicaId};
use futures::FutureExt;
use futures::future::join_all;
use openraft::raft::TransferLeaderRequest;
use openraft_rt::WatchReceiver;
use tokio::sync::SemaphorePermit;

use crate::error::Unfit;
use crate::replica_core::{Core, Lost, Role};
use crate::shard::ShardInner;
use crate::types::{LogId, Raft, RaftVote};
use crate::wire::{Message, Route, SurveyAsk, SurveyState};

/// After this many attempts openraft's own election timeouts take over.
const ATTEMPTS_MAX: u32 = 100;
/// Attempts during which a group's own election timeouts rest: it has, or waits for, its turn. With
/// the pauses between them some seconds.
const ATTEMPTS_ALONE_MAX: u32 = 8;
/// Attempts with the shortest pause between them; it doubles from then on.
const ATTEMPTS_QUICK_MAX: u32 = 3;
/// Groups of one shard that survey or campaign at the same time. The controller's takes no turn:
/// without it nothing else goes on.
pub(crate) const TURNS_MAX: usize = 64;

/// No replica has this id: a survey that names it as the lost leader only asks.
pub(crate) const NO_REPLICA: u64 = u64::MAX;

/// A node is down: wakes every replica that has a member there, fails over those that it led.
pub(crate) fn node_down(shard: &Rc<ShardInner>, node: NodeId) {
    for core in shard.cores() {
        let mut is_member = false;
        for (id, _, _) in core.members().iter().filter(|(_, at, _)| *at == node) {
            is_member = true;
            // It may come back with less than it had: it is in sync again once it says so.
            core.forget_follower(id.get());
        }
        if !is_member {
            continue;
        }
        core.wake();
        let Some(vote) = core.vote() else { continue };
        let leader = vote.leader_id.voted_for;
        if core.node_of(leader) == Some(node) {
            // It stays lost when the node is up again a moment later, for its process may have
            // restarted, until it speaks as that leader.
            core.note_leader_lost(leader, vote.leader_id.term, Lost::Detected);
        }
        if core.leader_node().is_none_or(|leader| leader == node) {
            start(shard, &core);
        }
    }
}

/// A node is back, or has restarted: its replicas need to hear their leaders.
pub(crate) fn node_up(shard: &Rc<ShardInner>, node: NodeId) {
    for core in shard.cores() {
        let members = core.members();
        let there: Vec<u64> = members
            .iter()
            .filter(|(id, member, _)| *member == node && *id != core.id)
            .map(|(id, _, _)| id.get())
            .collect();
        if there.is_empty() {
            continue;
        }
        core.wake();
        // It may be the one whose word was missing.
        core.ask_again();
        if core.is_leader()
            && let Some(raft) = core.raft()
        {
            // Our channel takes commands without waiting.
            let _ = raft.trigger().reset_backoff(there).now_or_never();
            let _ = raft.trigger().heartbeat().now_or_never();
        }
    }
}

/// Runs the failover of one group, once at a time.
pub(crate) fn start(shard: &Rc<ShardInner>, core: &Rc<Core>) {
    if core.failover_running.replace(true) {
        return;
    }
    let (shard, core) = (Rc::downgrade(shard), core.clone());
    let env = core.env.clone();
    env.spawn_local(async move {
        let mut pause = core.config.failover_retry;
        for attempt in 0..ATTEMPTS_MAX {
            let open = shard.upgrade().is_some_and(|shard| !shard.closed.get());
            if !open || core.stopped.get() || is_settled(&core) {
                break;
            }
            core.allow_elections(attempt >= ATTEMPTS_ALONE_MAX);
            let turn = take_turn(&core).await;
            if core.stopped.get() || is_settled(&core) {
                break;
            }
            let share = core
                .env
                .random_below(core.config.failover_retry.as_micros() as u64 + 1);
            let stagger = Duration::from_micros(share) * (attempt.min(4) + 1);
            let has_campaigned = attempt_once(&core, attempt).await;
            if has_campaigned && attempt > 0 || attempt >= ATTEMPTS_QUICK_MAX {
                // Votes have to reach disks, its own and the voters': campaigns that follow each
                // other faster than a slow one flushes would each supersede the one before.
                pause = (pause * 2).min(core.config.election_min);
            }
            if has_campaigned {
                // The turn lasts until the votes are there.
                until_settled(&core, pause + stagger).await;
                drop(turn);
            } else {
                drop(turn);
                core.env.sleep(pause + stagger).await;
            }
        }
        core.failover_running.set(false);
        core.allow_elections(true);
    });
}

/// The right to survey and to campaign, until it is dropped.
pub(crate) async fn take_turn(core: &Core) -> Option<SemaphorePermit<'_>> {
    match core.group {
        GroupId::CONTROLLER => None,
        _ => core.turns.acquire().await.ok(),
    }
}

/// Waits until a leader is known, or for `patience`.
pub(crate) async fn until_settled(core: &Rc<Core>, patience: Duration) {
    let Some(raft) = core.raft() else { return };
    let mut server = raft.server_metrics();
    let settled = async {
        while !core.stopped.get() && !is_settled(core) && server.changed().await.is_ok() {}
    };
    // Either way the caller looks again.
    let _ = tokio::time::timeout(patience, settled).await;
}

/// A leader is known and nothing says that it is gone.
fn is_settled(core: &Core) -> bool {
    if core.is_leader() {
        return true;
    }
    if core.no_vote() && is_leader_silent(core) {
        return false;
    }
    core.leader().is_some() && !core.leader_is_gone()
}

/// No leader has spoken for so long that openraft's own timeouts have passed.
pub(crate) fn is_leader_silent(core: &Core) -> bool {
    let silence = core.env.now().duration_since(core.leader_heard_at.get());
    !core.is_leader() && !core.is_asleep() && silence > core.config.election_max * 2
}

/// The leader of a group is known to be gone although its node may be up.
pub(crate) fn leader_lost(shard: &Rc<ShardInner>, core: &Rc<Core>) {
    core.wake();
    start(shard, core);
}

/// Returns whether it campaigned. Later attempts wait longer for answers: a peer that is up and
/// late would be asked again before it has answered.
async fn attempt_once(core: &Rc<Core>, attempt: u32) -> bool {
    let members = core.members();
    let is_voter = members
        .iter()
        .any(|(id, _, voter)| *id == core.id && *voter);
    if !is_voter || core.role() == Role::Stopped {
        return false;
    }
    let Some(vote) = core.vote() else {
        return false;
    };
    let leader = vote.leader_id.voted_for;
    let patience = core
        .config
        .survey_max
        .saturating_mul(1 << attempt.min(10))
        .min(core.config.election_min);
    let asks = members
        .iter()
        .filter(|(id, node, voter)| *id != core.id && *voter && !core.nodes.is_down(*node))
        .map(|(id, node, _)| survey(core, *id, *node, (leader, vote.leader_id.term), patience));
    let answers: Vec<(u64, SurveyState)> = join_all(asks).await.into_iter().flatten().collect();
    if is_settled(core) {
        return false;
    }
    let own = Candidate {
        id: core.id.get(),
        last: core.last_log_id(),
        no_vote: core.no_vote(),
    };
    let facts = Facts {
        own,
        leader_committed: vote.committed,
        term: vote.leader_id.term,
        answers: &answers,
        voters: members.iter().filter(|(_, _, voter)| *voter).count(),
    };
    match decide(&facts, |replicas| core.is_quorum(replicas)) {
        Verdict::Campaign => campaign(core).await,
        Verdict::CampaignFlagged => {
            tracing::error!(
                parent: &core.span(),
                group = %core.group,
                "most replicas lost log; the longest of them leads: records may be lost"
            );
            core.all_answered_until
                .set(Some(core.env.now() + core.config.election_max));
            core.flagged_campaign.set(Some(facts.term));
            campaign(core).await;
        }
        Verdict::Wait => return false,
    }
    true
}

/// One replica that could lead.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u64,
    last: Option<LogId>,
    no_vote: bool,
}

/// What one attempt knows.
struct Facts<'a> {
    own: Candidate,
    /// The dead leader was elected; otherwise nobody has a lease to protect.
    leader_committed: bool,
    /// This replica's term.
    term: u64,
    answers: &'a [(u64, SurveyState)],
    voters: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Campaign,
    /// A majority is flagged, every voter answered, and this one has the longest log (law 8).
    CampaignFlagged,
    Wait,
}

/// Who campaigns. Pure, so that a table can test it.
fn decide(facts: &Facts<'_>, is_quorum: impl Fn(&BTreeSet<u64>) -> bool) -> Verdict {
    // A leader of a newer term speaks up, unless whoever tells of it knows that it is gone: it may be
    // the answerer itself, which has restarted and leads no more (law 2), and has the shorter log.
    let newer = |state: &SurveyState| {
        state.vote.committed && state.vote.term > facts.term && !state.leader_down
    };
    if facts.answers.iter().any(|(_, state)| newer(state)) {
        return Verdict::Wait;
    }
    let all: Vec<Candidate> = facts
        .answers
        .iter()
        .map(|(id, state)| Candidate {
            id: *id,
            last: state.last.map(Into::into),
            no_vote: state.no_vote,
        })
        .chain([facts.own])
        .collect();
    let best = |of: &mut dyn Iterator<Item = &Candidate>| {
        of.max_by_key(|candidate| (candidate.last, candidate.id))
            .map(|candidate| candidate.id)
    };
    let free: BTreeSet<u64> = all
        .iter()
        .filter(|candidate| !candidate.no_vote)
        .map(|candidate| candidate.id)
        .collect();
    if is_quorum(&free) {
        // Votes are only worth asking for where the leader is held down too.
        let mut agree: BTreeSet<u64> = facts
            .answers
            .iter()
            .filter(|(_, state)| {
                state.leader_down || !facts.leader_committed || !state.vote.committed
            })
            .map(|(id, _)| *id)
            .filter(|id| free.contains(id))
            .collect();
        agree.insert(facts.own.id);
        let mut able = all.iter().filter(|candidate| !candidate.no_vote);
        if !facts.own.no_vote && is_quorum(&agree) && best(&mut able) == Some(facts.own.id) {
            return Verdict::Campaign;
        }
        return Verdict::Wait;
    }
    if all.len() < facts.voters || all.iter().all(|candidate| !candidate.no_vote) {
        return Verdict::Wait;
    }
    match best(&mut all.iter()) {
        Some(id) if id == facts.own.id => Verdict::CampaignFlagged,
        _ => Verdict::Wait,
    }
}

/// Whether a replica could lead, as it says itself; asked by its leader.
pub(crate) async fn look_at(core: &Rc<Core>, id: ReplicaId, node: NodeId) -> Result<(), Unfit> {
    let patience = core.config.transfer_max;
    match ask_survey(core, id, node, (NO_REPLICA, 0), patience).await {
        None => Err(Unfit::Silent),
        Some(None) => Err(Unfit::Stopped),
        Some(Some(state)) if state.no_vote => Err(Unfit::Flagged),
        Some(Some(_)) => Ok(()),
    }
}

/// What a replica says of itself and its id, if it runs and answers in time.
pub(crate) async fn survey(
    core: &Rc<Core>,
    id: ReplicaId,
    node: NodeId,
    lost: (u64, u64),
    patience: Duration,
) -> Option<(u64, SurveyState)> {
    let asked = ask_survey(core, id, node, lost, patience).await;
    asked.flatten().map(|state| (id.get(), state))
}

/// What a replica answers; `None`: nothing, `Some(None)`: that it does not run. `lost` is the
/// leader that is gone, and its term.
async fn ask_survey(
    core: &Rc<Core>,
    id: ReplicaId,
    node: NodeId,
    (leader, term): (u64, u64),
    patience: Duration,
) -> Option<Option<SurveyState>> {
    let route = Route::new(core.group, core.id, id);
    let asked = core.board.ask(node, patience, |link, call| {
        link.pack(|packed| {
            packed.surveys.push(SurveyAsk {
                route,
                call,
                leader,
                term,
            })
        })
    });
    match asked.await {
        Ok((Message::SurveyAnswers(answers), _)) => Some(answers.first()?.state),
        _ => None,
    }
}

/// Asks for votes now, without waiting for leases that only protect a dead leader.
pub(crate) async fn campaign(core: &Rc<Core>) {
    let Some(raft) = core.raft() else { return };
    let Some(vote) = core.vote() else { return };
    core.wake();
    tracing::info!(parent: &core.span(), group = %core.group, replica = %core.id, "campaigns for a leader whose node is down");
    if vote.committed && vote.leader_id.voted_for == core.id.get() {
        // Law 13: an ex-leader. openraft has demoted its vote in memory only, and ignores without
        // a word a transfer that names the vote on disk. The privilege is added on the way out.
        core.own_lost_term.set(Some(vote.leader_id.term));
        let _ = raft.trigger().elect(false).await;
        return;
    }
    campaign_as(core, &raft, vote, core.config.failover_retry).await;
}

/// Campaigns as the one to whom the leader of `vote` hands over, if the log is flushed in time.
pub(crate) async fn campaign_as(core: &Core, raft: &Raft, vote: RaftVote, flush_max: Duration) {
    let request = TransferLeaderRequest::new(vote, core.id.get(), None);
    // It first waits until the log is flushed; a new attempt supersedes it.
    let flushed = tokio::time::timeout(flush_max, raft.handle_transfer_leader(request));
    if !matches!(flushed.await, Ok(Ok(Ok(())))) {
        // After a restart openraft does not know its vote as flushed: the plain way.
        let _ = raft.trigger().elect(false).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{WireLogId, WireVote};

    fn state(term: u64, index: u64, leader_down: bool, no_vote: bool) -> SurveyState {
        SurveyState {
            vote: WireVote {
                term: 3,
                voted_for: 1,
                committed: true,
            },
            last: Some(WireLogId { term, index }),
            leader_down,
            no_vote,
        }
    }

    /// Three voters 1, 2, 3; replica 1 led and is dead; we are 2 at (3, 10).
    fn check(answers: &[(u64, SurveyState)], own_no_vote: bool) -> Verdict {
        let own = Candidate {
            id: 2,
            last: Some(WireLogId { term: 3, index: 10 }.into()),
            no_vote: own_no_vote,
        };
        let facts = Facts {
            own,
            leader_committed: true,
            term: 3,
            answers,
            voters: 3,
        };
        decide(&facts, |replicas| replicas.len() >= 2)
    }

    #[test]
    fn the_longest_live_log_campaigns_and_ties_go_to_the_higher_id() {
        assert_eq!(
            check(&[(3, state(3, 9, true, false))], false),
            Verdict::Campaign
        );
        assert_eq!(
            check(&[(3, state(3, 11, true, false))], false),
            Verdict::Wait
        );
        assert_eq!(
            check(&[(3, state(2, 99, true, false))], false),
            Verdict::Campaign
        );
        assert_eq!(
            check(&[(3, state(3, 10, true, false))], false),
            Verdict::Wait
        );
    }

    /// All restart: the leader of the newest term was elected and never appended, and a replica with
    /// a longer log knows of it. Each would wait for the other.
    #[test]
    fn a_newer_leader_that_is_gone_holds_nobody_up() {
        let led_by_itself = |leader_down| SurveyState {
            vote: WireVote {
                term: 5,
                voted_for: 3,
                committed: true,
            },
            ..state(2, 8, leader_down, false)
        };
        assert_eq!(check(&[(3, led_by_itself(true))], false), Verdict::Campaign);
        assert_eq!(check(&[(3, led_by_itself(false))], false), Verdict::Wait);
    }

    #[test]
    fn nobody_campaigns_without_a_majority_that_holds_the_leader_down() {
        assert_eq!(check(&[], false), Verdict::Wait);
        assert_eq!(
            check(&[(3, state(3, 9, false, false))], false),
            Verdict::Wait
        );
    }

    #[test]
    fn nobody_campaigns_against_a_leader_of_a_later_term() {
        let mut later = state(3, 9, false, false);
        later.vote.term = 4;
        assert_eq!(check(&[(3, later)], false), Verdict::Wait);
    }

    #[test]
    fn a_flagged_replica_leads_only_when_all_voters_answer_and_most_are_flagged() {
        assert_eq!(check(&[(3, state(3, 9, true, false))], true), Verdict::Wait);
        assert_eq!(check(&[(3, state(3, 9, true, true))], true), Verdict::Wait);
        let all = [(1, state(3, 8, true, true)), (3, state(3, 9, true, true))];
        assert_eq!(check(&all, true), Verdict::CampaignFlagged);
        let longer = [(1, state(3, 8, true, false)), (3, state(3, 12, true, true))];
        assert_eq!(check(&longer, true), Verdict::Wait);
    }
}
