//! Sleep of idle groups (law 13): their ticks stop, and no CPU is spent on them until a write, a
//! read barrier or a node's failure wakes them.

use std::rc::Rc;
use std::time::Duration;

use corduroy_record::{LogIndex, NodeId, ReplicaId, Term};
use futures::future::join_all;

use crate::failover;
use crate::replica_core::{Core, Sleep};
use crate::revert::Revert;
use crate::shard::ShardInner;
use crate::supervisor;
use crate::wire::{AsleepBeat, Message, Route, SleepAsk, WakeNote};

/// A follower that hears nothing of its sleeping leader for this many beats wakes.
const MISSED_BEATS: u32 = 3;

impl Core {
    /// A sleeping leader's sign of life; `false` if this replica does not sleep with it.
    pub(crate) fn sleep_heard(&self, term: Term) -> bool {
        match self.sleep.get() {
            Sleep::Asleep { term: own, .. } if own == term => {
                self.sleep.set(Sleep::Asleep {
                    term,
                    heard_at: self.env.now(),
                });
                true
            }
            _ => false,
        }
    }
}

/// One slow clock for all replicas of the shard.
pub(crate) fn spawn_ticker(shard: &Rc<ShardInner>) {
    let weak = Rc::downgrade(shard);
    let env = shard.env.clone();
    let period = (shard.config.heartbeat / 2).max(Duration::from_millis(10));
    let asleep_beat = shard.config.asleep_beat;
    env.clone().spawn_local(async move {
        let Some(awake) = weak.upgrade().map(|shard| shard.awake.clone()) else {
            return;
        };
        let mut beat_at = env.now() + asleep_beat;
        loop {
            // Nobody is awake: nothing to do before the next beat.
            if awake.is_empty() {
                tokio::select! {
                    () = awake.until_one() => {}
                    () = tokio::time::sleep_until(beat_at) => {}
                }
            } else {
                env.sleep(period).await;
            }
            let Some(shard) = weak.upgrade() else { return };
            if shard.closed.get() {
                return;
            }
            supervisor::stop_on_failed_disk(&shard);
            for core in awake.cores() {
                tick_awake(&shard, &core);
            }
            if env.now() >= beat_at {
                beat_at = env.now() + asleep_beat;
                for core in shard.cores() {
                    tick_asleep(&shard, &core);
                }
            }
        }
    });
}

fn tick_awake(shard: &Rc<ShardInner>, core: &Rc<Core>) {
    if core.stopped.get() {
        return;
    }
    core.notice_flag();
    if core.revert.get() != Revert::None {
        core.check_revert();
    }
    if may_sleep(core) {
        go_to_sleep(core);
    } else if core.no_vote() && failover::is_leader_silent(core) {
        // A flagged replica's own timeouts never campaign; the survey may find that most of the
        // group is flagged (law 8).
        failover::start(shard, core);
    }
}

fn tick_asleep(shard: &Rc<ShardInner>, core: &Rc<Core>) {
    let Sleep::Asleep { term, heard_at } = core.sleep.get() else {
        return;
    };
    if core.stopped.get() {
        return;
    }
    if core.is_leader() {
        if core.term() == term {
            say_asleep(shard, core, term);
        } else {
            core.wake();
        }
    } else if core.env.now() > heard_at + core.config.asleep_beat * MISSED_BEATS {
        core.wake();
    }
}

fn say_asleep(shard: &Rc<ShardInner>, core: &Core, term: Term) {
    for (id, node) in followers(core) {
        let beat = AsleepBeat {
            route: Route::new(core.group, core.id, id),
            term: term.get(),
        };
        let _ = shard.board.pack(node, |packed| packed.asleep.push(beat));
    }
}

fn followers(core: &Core) -> Vec<(ReplicaId, NodeId)> {
    core.members()
        .into_iter()
        .filter(|(id, _, _)| *id != core.id)
        .map(|(id, node, _)| (id, node))
        .collect()
}

/// Members on nodes that are up. A node that is down does not keep a group awake, which would cost
/// every group of it a heartbeat for ever: whoever is up sleeps, as long as that is a majority, and
/// the node's return wakes the group so that it catches up (`failover::node_up`).
fn living_followers(core: &Core) -> Vec<(ReplicaId, NodeId)> {
    let mut followers = followers(core);
    followers.retain(|(_, node)| !core.nodes.is_down(*node));
    followers
}

/// Idle for long enough, and every member that is up holds and the leader has applied all of it.
fn may_sleep(core: &Core) -> bool {
    let idle = core.env.now().duration_since(core.touched_at.get());
    if idle < core.config.hibernate_after || !core.is_leader() || core.is_joint() || core.no_vote()
    {
        return false;
    }
    let view = core.view();
    let state = core.log.state();
    let Some((_, last)) = state.last else {
        return false;
    };
    view.leader_ready
        && view.lease_valid
        && view.applied == last
        && state.durable_last == Some(last)
        && core.majority_up()
        && living_followers(core)
            .iter()
            .all(|(id, _)| core.progress.matched(id.get()) == Some(last))
}

fn go_to_sleep(core: &Rc<Core>) {
    let term = core.term();
    let Some(last) = core.last_log_id() else {
        return;
    };
    // Asked once a while, however it ends.
    let asked_at = core.env.now();
    core.touched_at.set(asked_at);
    let core = core.clone();
    let env = core.env.clone();
    env.spawn_local(async move {
        // A beat says that the leader is awake. One that still waited for others would follow the
        // question and wake whoever has just fallen asleep.
        let _hurry = core.hurry_beats();
        let followers = living_followers(&core);
        let asks = followers.iter().map(|(id, node)| {
            let route = Route::new(core.group, core.id, *id);
            let last = (&last).into();
            let board = core.board.clone();
            let deadline = core.config.read_barrier_max;
            async move {
                let asked = board.ask(*node, deadline, |link, call| {
                    let ask = SleepAsk {
                        route,
                        call,
                        term: term.get(),
                        last,
                    };
                    link.pack(|packed| packed.sleeps.push(ask))
                });
                matches!(
                    asked.await,
                    Ok((Message::SleepAnswers(answers), _))
                        if answers.first().is_some_and(|answer| answer.asleep)
                )
            }
        });
        let all = join_all(asks).await.into_iter().all(|asleep| asleep);
        let unchanged = core.touched_at.get() == asked_at
            && core.is_leader()
            && core.term() == term
            && core.last() == Some(LogIndex::new(last.index));
        if all && unchanged {
            core.fall_asleep(term);
            return;
        }
        for (id, node) in followers {
            let note = WakeNote {
                route: Route::new(core.group, core.id, id),
                resigned: None,
            };
            let _ = core.board.pack(node, |packed| packed.wakes.push(note));
        }
    });
}
