//! Watches one replica's openraft instance: tells the machine of leaders, restarts after a panic.
//!
//! A storage error never restarts (law 3): after a failed flush the pages may read as clean.

use std::rc::{Rc, Weak};
use std::time::Duration;

use corduroy_record::{LogIndex, NodeId, ReplicaId, Term};
use corduroy_storage::StorageError;
use openraft_rt::WatchReceiver;

use crate::error::RaftError;
use crate::failover;
use crate::replica_core::{Core, Role};
use crate::revert::Revert;
use crate::shard::ShardInner;
use crate::state_machine::ReplicaEvent;

/// First pause before a restart; doubles.
const RESTART_PAUSE_MIN: Duration = Duration::from_millis(100);
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(10);

/// What the machine was told last.
#[derive(Default, PartialEq, Eq, Clone)]
struct Told {
    term: Term,
    leader: Option<(ReplicaId, NodeId)>,
    leads: bool,
    members: Vec<(ReplicaId, NodeId, bool)>,
}

pub(crate) fn spawn(shard: &Rc<ShardInner>, core: &Rc<Core>) {
    let task = core
        .env
        .spawn_local(supervise(Rc::downgrade(shard), core.clone()));
    *core.supervisor.borrow_mut() = Some(task);
}

async fn supervise(shard: Weak<ShardInner>, core: Rc<Core>) {
    let mut pause = RESTART_PAUSE_MIN;
    loop {
        watch(&core, &shard).await;
        let Some(shard) = shard.upgrade() else { return };
        if core.stopped.get() || shard.closed.get() {
            return;
        }
        let reason = core.storage_error.borrow().clone();
        if let Some(reason) = reason {
            give_up(&core, reason);
            stop_on_failed_disk(&shard);
            return;
        }
        shard.restarts.set(shard.restarts.get() + 1);
        tracing::error!(
            parent: &core.span(),
            group = %core.group, replica = %core.id, disk_full = core.disk_full.get(),
            "a replica ended unexpectedly and is restarted"
        );
        tokio::select! {
            () = core.env.sleep(pause) => {}
            () = core.until_stopped() => return,
        }
        pause = (pause * 2).min(RESTART_PAUSE_MAX);
        match restart(&shard, &core).await {
            Ok(()) => {}
            Err(Restart::Stopped) => return,
            Err(Restart::DiskFull) => core.disk_full.set(true),
            Err(Restart::Failed(reason)) => {
                give_up(&core, reason);
                return;
            }
        }
    }
}

/// Follows the instance until it ends.
async fn watch(core: &Rc<Core>, shard: &Weak<ShardInner>) {
    let Some(raft) = core.raft() else { return };
    let mut server = raft.server_metrics();
    let driver = core.driver.borrow().clone();
    let mut told = Told::default();
    loop {
        tell(core, &mut told);
        if let Some(shard) = shard.upgrade()
            && core.leader_is_gone()
        {
            failover::start(&shard, core);
        }
        tokio::select! {
            changed = server.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = driver.until_gone() => return,
            () = core.until_stopped() => return,
        }
    }
}

fn tell(core: &Rc<Core>, told: &mut Told) {
    let now = Told {
        term: core.term(),
        leader: core.leader(),
        leads: core.is_leader(),
        members: core.members(),
    };
    if now == *told {
        return;
    }
    if now.leads && (!told.leads || now.term != told.term) {
        core.progress.lead(core.env.now());
        core.touch();
        // Not for damage that a read has just met: that log is reopened, and then led by another.
        if core.revert.get() != Revert::None
            && let Some(end) = core.log.state().last
        {
            // Elected by replicas that lost log like this one: now its log is the log (law 8).
            core.revert.set(Revert::Until { end });
            core.check_revert();
        }
    } else if told.leads && !now.leads {
        core.progress.follow();
    }
    if (now.term, now.leader, now.leads) != (told.term, told.leader, told.leads) {
        core.event(&ReplicaEvent::LeaderChanged {
            term: now.term,
            leader: now.leader,
            is_self: now.leads,
        });
    }
    if now.members != told.members {
        core.event(&ReplicaEvent::MembersChanged);
    }
    *told = now;
    core.announce_ready();
}

fn give_up(core: &Rc<Core>, reason: String) {
    tracing::error!(parent: &core.span(), group = %core.group, replica = %core.id, reason, "a replica has stopped");
    core.resign();
    core.set_stopped();
    core.awake.remove(core.group);
    core.set_instance(None);
    core.door.stop();
    core.progress.follow();
    core.applied_changed.notify_waiters();
    *core.stop_reason.borrow_mut() = Some(reason.clone());
    core.event(&ReplicaEvent::Stopped { reason });
}

/// A failed flush ends every replica on that disk, also those that ask nothing of it just now: an
/// idle leader would lead on, and answer no read (DESIGN section 5.4, law 13).
pub(crate) fn stop_on_failed_disk(shard: &ShardInner) {
    let Some(reason) = shard.store.failed() else {
        return;
    };
    for core in shard.cores() {
        if core.stopped.get() || core.storage_error.borrow().is_some() {
            continue;
        }
        *core.storage_error.borrow_mut() = Some(reason.clone());
        // A replica between two instances finds the failed disk itself.
        let Some(raft) = core.raft() else { continue };
        // Its end is what its supervisor waits for.
        core.env
            .spawn_local(async move { drop(raft.shutdown().await) });
    }
}

/// Rebuilds the instance from what is durable. A leader that ended so leads again only in a new
/// term (law 2); its peers run their ticks until then (law 13).
async fn restart(shard: &Rc<ShardInner>, core: &Rc<Core>) -> Result<(), Restart> {
    core.resign();
    if let Some(old) = core.set_instance(None) {
        // Its tasks let go of log and machine before the next instance takes them.
        let _ = old.shutdown().await;
    }
    core.progress.follow();
    core.ready_term.set(None);
    tokio::select! {
        biased;
        // From here on nothing runs that would have to be ended.
        () = core.until_stopped() => Err(Restart::Stopped),
        rebuilt = rebuild(shard, core) => rebuilt,
    }
}

async fn rebuild(shard: &Rc<ShardInner>, core: &Rc<Core>) -> Result<(), Restart> {
    // Law 3: everything that was appended is durable before openraft sees the log again.
    core.log.flush().await.map_err(|error| match error {
        StorageError::DiskFull => Restart::DiskFull,
        error => Restart::Failed(error.to_string()),
    })?;
    core.disk_full.set(false);
    core.gone_end.set(LogIndex::new(0));
    core.door.restart();
    shard.start(core).await.map_err(|error| match error {
        RaftError::Stopped => Restart::Stopped,
        _ if core.disk_full.get() => Restart::DiskFull,
        error => Restart::Failed(error.to_string()),
    })
}

/// Why a restart did not succeed.
enum Restart {
    /// Tried again until there is room.
    DiskFull,
    Failed(String),
    /// The replica was closed meanwhile.
    Stopped,
}

/// Stops a replica for good. When it returns, nothing of it touches the log any more: whoever
/// closes a replica may open the log for the next one.
pub(crate) async fn stop(core: &Rc<Core>) {
    core.set_stopped();
    core.door.stop();
    core.progress.follow();
    core.applied_changed.notify_waiters();
    if let Some(raft) = core.set_instance(None) {
        let _ = raft.shutdown().await;
    }
    let supervisor = core.supervisor.borrow_mut().take();
    if let Some(supervisor) = supervisor {
        // It may be in the middle of a restart, which it then gives up.
        let _ = supervisor.await;
    }
    debug_assert!(core.role() == Role::Stopped);
}
