//! Recovery: one pass over the journals of a data directory, before any store opens.
//!
//! Applies every journal record to its partition's state file, makes all that it accepted
//! durable (laws 3 and 4), and empties the journals. Logs are never scanned.

mod replay;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corduroy_record::GroupId;

use crate::disk::Disk;
use crate::error::{IoContext, StorageError};
use crate::journal::{JournalEnd, read_shard};
use crate::paths;
use crate::registry::{Registration, registered, registered_journals};
use crate::reserve::reserve_file;
use crate::state::StateImage;
use crate::store::load_replica;

use replay::Replay;

/// What recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Replicas registered in the data directory.
    pub partitions: usize,
    /// Whether every journal was empty: a clean stop, or a new directory.
    pub clean: bool,
    /// Replicas with damage below their end, and what it is. Each carries a durable no-vote
    /// flag.
    pub damaged: Vec<(GroupId, String)>,
    /// Journals whose last turn never became durable and was cut.
    pub torn_journals: usize,
    /// Replicas that lost the end of the last turn: bytes that it referred to were not there.
    pub torn_partitions: Vec<GroupId>,
    /// Entries taken from the journals.
    pub entries_replayed: u64,
    /// Turns read.
    pub turns: u64,
}

/// Runs recovery. Idempotent: a crash during it changes nothing about what the next one finds.
///
/// # Errors
/// The operating system's. Damage is no error: it ends in the report and in the flags.
pub fn recover(disk: &Arc<dyn Disk>, root: &Path) -> Result<RecoveryReport, StorageError> {
    match recover_once(&**disk, root) {
        Err(StorageError::DiskFull) if give_up_reserves(&**disk, root)? => {
            recover_once(&**disk, root)
        }
        result => result,
    }
}

/// What was accepted has to be recorded even where no byte is free. Whether there was a reserve.
fn give_up_reserves(disk: &dyn Disk, root: &Path) -> Result<bool, StorageError> {
    let mut found = false;
    for shard in shards(disk, root)? {
        let path = reserve_file(&paths::journal_dir(root, shard));
        if disk.exists(&path).during("look for", &path)? {
            tracing::error!(path = %path.display(),
                "the disk is full; the reserve is given up so that recovery can record what it found");
            disk.remove_file(&path).during("remove", &path)?;
            found = true;
        }
    }
    Ok(found)
}

fn recover_once(disk: &dyn Disk, root: &Path) -> Result<RecoveryReport, StorageError> {
    let mut groups: BTreeSet<GroupId> = registered(disk, root)
        .during("list", root)?
        .into_iter()
        .collect();
    groups.extend(restore_lost_registrations(disk, root, &groups)?);
    restore_registrations(disk, root, &groups)?;
    clear_removed(disk, root, &groups);
    let mut report = RecoveryReport {
        partitions: groups.len(),
        clean: true,
        ..RecoveryReport::default()
    };
    let mut replays: BTreeMap<GroupId, Option<Replay>> = BTreeMap::new();
    let mut journals = Vec::new();
    let mut damaged_journals: Vec<String> = Vec::new();
    let mut sound_sessions: BTreeSet<u64> = BTreeSet::new();
    for what in missing_journals(disk, root, !groups.is_empty())? {
        tracing::error!(%what, "a journal is damaged");
        report.clean = false;
        damaged_journals.push(what);
    }
    for shard in shards(disk, root)? {
        let dir = paths::journal_dir(root, shard);
        let mut journal = read_shard(disk, &dir)?;
        let session = journal.session();
        let mut of_this_shard: BTreeSet<GroupId> = BTreeSet::new();
        let (end, damage, last_turn) = journal.replay(disk, |turn, records| {
            report.turns += 1;
            for record in records {
                let header = record.header;
                if !groups.contains(&header.group) {
                    continue;
                }
                let replay = match replays.entry(header.group) {
                    std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                    std::collections::btree_map::Entry::Vacant(entry) => {
                        entry.insert(Replay::begin(disk, root, header.group)?)
                    }
                };
                let Some(replay) = replay else { continue };
                if !replay.takes(header.incarnation, session.unwrap_or(0), turn) {
                    continue;
                }
                of_this_shard.insert(header.group);
                replay.apply(disk, turn, record)?;
            }
            Ok(())
        })?;
        report.clean &= end == JournalEnd::Clean && damage.is_empty();
        report.torn_journals += usize::from(end == JournalEnd::Torn);
        for replay in replays.values_mut().flatten() {
            if of_this_shard.contains(&replay.group()) {
                replay.end_of_journal(disk, session.unwrap_or(0), last_turn)?;
            }
        }
        if damage.is_empty() {
            sound_sessions.extend(session);
        } else {
            for damage in damage {
                tracing::error!(shard, what = %damage.what, "a journal is damaged");
                damaged_journals.push(damage.what);
            }
        }
        journals.push(journal);
    }
    if !damaged_journals.is_empty() {
        flag_all(
            disk,
            root,
            &groups,
            &sound_sessions,
            &damaged_journals.join("; "),
            &mut replays,
        )?;
    }
    for (group, replay) in replays {
        let Some(replay) = replay else { continue };
        let outcome = replay.finish(disk, root)?;
        report.entries_replayed += outcome.entries;
        if let Some(what) = outcome.damage {
            report.damaged.push((group, what));
        }
        if outcome.torn {
            report.torn_partitions.push(group);
        }
    }
    for journal in journals {
        journal.free_all(disk)?;
    }
    tracing::info!(
        partitions = report.partitions,
        clean = report.clean,
        entries = report.entries_replayed,
        damaged = report.damaged.len(),
        "storage recovered"
    );
    Ok(report)
}

/// A damaged registration is written again from the state file, which carries the same identity.
/// If that is damaged too, only whoever placed the replica knows which it is ([`Store::open_placed_log`]),
/// and the others are as they were.
///
/// [`Store::open_placed_log`]: crate::Store::open_placed_log
fn restore_registrations(
    disk: &dyn Disk,
    root: &Path,
    groups: &BTreeSet<GroupId>,
) -> Result<(), StorageError> {
    for group in groups {
        match Registration::load(disk, root, *group) {
            Ok(_) => {}
            Err(StorageError::Damaged { .. }) => match load_replica(disk, root, *group) {
                Ok(_) => tracing::warn!(%group, "a damaged registration was restored"),
                Err(error @ StorageError::Unidentified { .. }) => {
                    tracing::error!(%group, %error, "a replica cannot be identified");
                }
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A replica whose registration is gone is not new, and must not vote as one (law 7): it is
/// registered again as its state file says. If that cannot be read, its registration cannot either,
/// and whoever placed it opens it as damaged ([`Store::open_placed_log`]). A directory whose replica
/// was removed has the mark or no state; one whose creation was interrupted has the state of an empty
/// log, and is opened as such.
///
/// [`Store::open_placed_log`]: crate::Store::open_placed_log
fn restore_lost_registrations(
    disk: &dyn Disk,
    root: &Path,
    registered: &BTreeSet<GroupId>,
) -> Result<Vec<GroupId>, StorageError> {
    let mut restored = Vec::new();
    for (group, dir) in partition_dirs(disk, root)? {
        if registered.contains(&group) || !holds_replica(disk, &dir)? {
            continue;
        }
        match StateImage::load(disk, &dir, group)? {
            Ok(image) => {
                let registration = Registration {
                    group,
                    replica: image.replica,
                    incarnation: image.incarnation,
                };
                registration.save(disk, root)?;
                tracing::warn!(%group, "a lost registration was restored");
            }
            Err(what) => {
                Registration::save_unreadable(disk, root, group)?;
                tracing::error!(%group, %what, "a registration is lost, and nothing says which it was");
            }
        }
        restored.push(group);
    }
    Ok(restored)
}

/// Whether a directory holds a replica's state, readable or not, and its replica was not removed.
pub(crate) fn holds_replica(disk: &dyn Disk, dir: &Path) -> Result<bool, StorageError> {
    let (mark, state) = (paths::removed_mark(dir), paths::state_file(dir));
    Ok(!disk.exists(&mark).during("look for", &mark)?
        && disk.exists(&state).during("look for", &state)?)
}

/// The directories of partitions, and the controller's, by what their names say.
fn partition_dirs(disk: &dyn Disk, root: &Path) -> Result<Vec<(GroupId, PathBuf)>, StorageError> {
    let mut dirs = Vec::new();
    let controller = paths::partition_dir(root, GroupId::CONTROLLER);
    if disk.exists(&controller).during("look for", &controller)? {
        dirs.push((GroupId::CONTROLLER, controller));
    }
    let partitions = paths::partitions_dir(root);
    for topic in list_or_none(disk, &partitions)? {
        for partition in list_or_none(disk, &partitions.join(&topic))? {
            let group = paths::parse_registration(&format!("{topic}-{partition}"));
            dirs.extend(group.map(|group| (group, paths::partition_dir(root, group))));
        }
    }
    Ok(dirs)
}

/// The names in a directory; none if it is not there, or is none.
fn list_or_none(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, StorageError> {
    match disk.list(dir) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(Vec::new())
        }
        names => names.during("list", dir),
    }
}

/// Removes what the removal of a replica left behind when it was interrupted. Only directories
/// that carry the mark: a lost registration must not cost the data.
fn clear_removed(disk: &dyn Disk, root: &Path, groups: &BTreeSet<GroupId>) {
    let partitions = paths::partitions_dir(root);
    let registered: BTreeSet<_> = groups
        .iter()
        .map(|group| paths::partition_dir(root, *group))
        .collect();
    for topic in disk.list(&partitions).unwrap_or_default() {
        let topic = partitions.join(topic);
        for partition in disk.list(&topic).unwrap_or_default() {
            let dir = topic.join(partition);
            let is_removed = disk.exists(&paths::removed_mark(&dir)).unwrap_or(false);
            if is_removed && !registered.contains(&dir) {
                disk.remove_dir_all(&dir).ok();
            }
        }
        if disk.list(&topic).is_ok_and(|names| names.is_empty()) {
            disk.remove_dir_all(&topic).ok();
        }
    }
}

fn shards(disk: &dyn Disk, root: &Path) -> Result<Vec<usize>, StorageError> {
    let dir = paths::journals_dir(root);
    let names = match disk.list(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.during("list", &dir)?,
    };
    let mut shards: Vec<usize> = names.iter().filter_map(|name| name.parse().ok()).collect();
    shards.sort_unstable();
    Ok(shards)
}

/// Journals that were there once and are not, one line each. Of a directory that is older than the
/// registration of journals, only the loss of all of them is seen.
fn missing_journals(
    disk: &dyn Disk,
    root: &Path,
    has_replicas: bool,
) -> Result<Vec<String>, StorageError> {
    let registry = paths::registry_dir(root);
    let expected = registered_journals(disk, root).during("list", &registry)?;
    let is_there = |shard: usize| {
        let names = disk.list(&paths::journal_dir(root, shard));
        let names = names.unwrap_or_default();
        names
            .iter()
            .any(|name| paths::parse_journal(name).is_some())
    };
    let mut missing: Vec<String> = (expected.iter())
        .filter(|shard| !is_there(**shard))
        .map(|shard| {
            let dir = paths::journal_dir(root, *shard);
            format!("{}: the journal is gone", dir.display())
        })
        .collect();
    if expected.is_empty() && has_replicas && !shards(disk, root)?.into_iter().any(is_there) {
        let dir = paths::journals_dir(root);
        missing.push(format!("{}: the journals are gone", dir.display()));
    }
    Ok(missing)
}

/// A damaged journal may have held the vote of any partition that used it: all of them are
/// flagged (law 4). A partition is spared only if its state file names a sound journal.
fn flag_all(
    disk: &dyn Disk,
    root: &Path,
    groups: &BTreeSet<GroupId>,
    sound_sessions: &BTreeSet<u64>,
    what: &str,
    replays: &mut BTreeMap<GroupId, Option<Replay>>,
) -> Result<(), StorageError> {
    for group in groups {
        let replay = match replays.entry(*group) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Replay::begin(disk, root, *group)?)
            }
        };
        if let Some(replay) = replay
            && !sound_sessions.contains(&replay.session())
        {
            replay.flag(what.to_owned());
        }
    }
    Ok(())
}

/// Reads a replica's state for replay; a damaged one comes back empty and flagged.
fn load_for_replay(
    disk: &dyn Disk,
    root: &Path,
    group: GroupId,
) -> Result<Option<(StateImage, Option<String>)>, StorageError> {
    match load_replica(disk, root, group) {
        Ok(loaded) => Ok(loaded.map(|loaded| (loaded.image, loaded.damage))),
        // Neither its registration nor its state can be read: nothing says which replica it is.
        Err(StorageError::Unidentified { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
