//! The controller's replica and its log, opened and, after damage, opened again.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use corduroy_raft::{RaftShard, Replica, ReplicaSpec};
use corduroy_record::GroupId;
use corduroy_storage::{Log, LogConfig, StorageError, Store};
use tracing::error;

use super::error::ControllerError;
use super::identity::{Identity, IdentityFile};
use super::machine::ControllerMachine;

/// A segment of the controller's log; the tables are saved at each boundary.
const SEGMENT_BYTES: u32 = 8 << 20;

const CONFIG: LogConfig = LogConfig {
    segment_bytes: SEGMENT_BYTES,
    segment_ms: i64::MAX,
    index_interval_bytes: 4096,
};

/// The controller's log, and whether nobody else has a copy of it. Created once; from then on its
/// absence is damage (a replica that forgot its votes must not vote again).
pub(super) async fn open_log(
    store: &Store,
    identity: &mut Identity,
    file: &IdentityFile,
) -> Result<(Log, bool), ControllerError> {
    let group = GroupId::CONTROLLER;
    let is_only_copy = identity.members.len() < 2;
    let log = if store.contains(group) && is_only_copy {
        let opened = store.open_only_copy(group, CONFIG);
        opened.map_err(|source| only_copy(file.dir(), source))?
    } else if store.contains(group) {
        store.open_placed_log(group, identity.controller_replica, CONFIG)?
    } else if identity.controller_created {
        return Err(ControllerError::ControllerLogLost {
            node: identity.node,
            path: file.dir().to_owned(),
        });
    } else {
        store
            .create_log(group, identity.controller_replica, CONFIG)
            .await?
    };
    if !identity.controller_created {
        identity.controller_created = true;
        file.save(identity)?;
    }
    Ok((log, is_only_copy))
}

/// Opens the replica. Damage that is met only now, while the log is read, is treated as damage
/// that recovery has found: unless this is the only copy, what is damaged is fetched again.
pub(super) async fn open_replica(
    raft: &RaftShard,
    store: &Store,
    log: Log,
    is_only_copy: bool,
    machine: &Rc<RefCell<ControllerMachine>>,
    data_dir: &Path,
) -> Result<Replica, ControllerError> {
    let error = match raft.open(spec(log.clone()), machine.clone()).await {
        Ok(replica) => return Ok(replica),
        Err(error) => error,
    };
    if is_only_copy {
        // Says where the damage is, and that nothing was cut.
        let opened = store.open_only_copy(GroupId::CONTROLLER, CONFIG);
        opened.map_err(|source| only_copy(data_dir, source))?;
    } else if log.must_reopen() {
        error!(%error, "the controller's log is damaged; what is lost is fetched from the others");
        return open_again(raft, store, &log, machine).await;
    }
    Err(error.into())
}

/// Closes a replica that has met damage in its log while it ran, and opens it again.
pub(super) async fn reopen_replica(
    raft: &RaftShard,
    store: &Store,
    replica: &Replica,
    machine: &Rc<RefCell<ControllerMachine>>,
) -> Result<Replica, ControllerError> {
    raft.close_replica(GroupId::CONTROLLER).await;
    open_again(raft, store, replica.log(), machine).await
}

async fn open_again(
    raft: &RaftShard,
    store: &Store,
    log: &Log,
    machine: &Rc<RefCell<ControllerMachine>>,
) -> Result<Replica, ControllerError> {
    // The flags first: a process that dies now finds them (laws 3 and 8).
    log.flush().await?;
    let log = store.open_log(GroupId::CONTROLLER, CONFIG)?;
    Ok(raft.open(spec(log), machine.clone()).await?)
}

fn only_copy(data_dir: &Path, error: StorageError) -> ControllerError {
    match error {
        source @ StorageError::Damaged { .. } => ControllerError::OnlyCopyDamaged {
            path: data_dir.to_owned(),
            source,
        },
        error => error.into(),
    }
}

fn spec(log: Log) -> ReplicaSpec {
    ReplicaSpec {
        group: GroupId::CONTROLLER,
        replica: log.replica(),
        log,
    }
}
