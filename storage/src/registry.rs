//! What was created in a data directory, kept apart from the data: a replica that lost its files
//! is damaged, not new (law 7), and so is a journal.

use std::io;
use std::path::Path;

use corduroy_record::{GroupId, ReplicaId};

use crate::checksum::checksum;
use crate::codec::{Decode, Encode, Short};
use crate::disk::{Disk, create_dir_durably, read_file, replace_file};
use crate::error::{IoContext, StorageError};
use crate::paths;

const MAGIC: &[u8; 8] = b"CRDYREPL";
const VERSION: u32 = 1;
const FILE_BYTES_MAX: u64 = 4096;

/// One registered replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub group: GroupId,
    pub replica: ReplicaId,
    /// Random; journal records of another incarnation are not this replica's.
    pub incarnation: u64,
}

impl Registration {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(52);
        bytes.bytes(MAGIC);
        bytes.u32(VERSION);
        bytes.bytes(&self.group.topic.bytes());
        bytes.i32(self.group.partition.get());
        bytes.u64(self.replica.get());
        bytes.u64(self.incarnation);
        bytes.u32(checksum(&bytes));
        bytes
    }

    fn decode(bytes: &[u8], group: GroupId) -> Result<Option<Registration>, Short> {
        let Some((front, crc)) = bytes.split_last_chunk::<4>() else {
            return Ok(None);
        };
        if checksum(front) != u32::from_le_bytes(*crc) {
            return Ok(None);
        }
        let mut fields = Decode::new(front);
        if fields.take(8)? != MAGIC || fields.u32()? != VERSION {
            return Ok(None);
        }
        if fields.bytes16()? != group.topic.bytes() || fields.i32()? != group.partition.get() {
            return Ok(None);
        }
        let replica = ReplicaId::new(fields.u64()?);
        Ok(Some(Registration {
            group,
            replica,
            incarnation: fields.u64()?,
        }))
    }

    /// Writes the registration; durable when it returns.
    pub(crate) fn save(&self, disk: &dyn Disk, root: &Path) -> Result<(), StorageError> {
        let dir = paths::registry_dir(root);
        if !disk.exists(&dir).during("look for", &dir)? {
            create_dir_durably(disk, root, &dir).during("create", &dir)?;
        }
        let path = paths::registration(root, self.group);
        replace_file(disk, &path, &[&self.encode()]).during("write", &path)
    }

    /// Reads one. `Ok(None)`: not registered.
    pub(crate) fn load(
        disk: &dyn Disk,
        root: &Path,
        group: GroupId,
    ) -> Result<Option<Registration>, StorageError> {
        let path = paths::registration(root, group);
        match read_file(disk, &path, FILE_BYTES_MAX) {
            Ok(bytes) => match Registration::decode(&bytes, group) {
                Ok(Some(registration)) => Ok(Some(registration)),
                _ => Err(StorageError::damaged(
                    group,
                    format!("{}: bad checksum", path.display()),
                )),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::io("read", &path, &error)),
        }
    }

    /// Durably says that a replica was registered here, and not which: its files do not say it.
    pub(crate) fn save_unreadable(
        disk: &dyn Disk,
        root: &Path,
        group: GroupId,
    ) -> Result<(), StorageError> {
        let dir = paths::registry_dir(root);
        create_dir_durably(disk, root, &dir).during("create", &dir)?;
        let path = paths::registration(root, group);
        replace_file(disk, &path, &[]).during("write", &path)
    }

    /// Forgets one; durable when it returns.
    pub(crate) fn remove(disk: &dyn Disk, root: &Path, group: GroupId) -> Result<(), StorageError> {
        let path = paths::registration(root, group);
        match disk.remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StorageError::io("remove", &path, &error));
            }
            _ => {}
        }
        let dir = paths::registry_dir(root);
        disk.flush_dir(&dir).during("flush", &dir)
    }
}

/// Notes durably that a shard has a journal: from then on its absence is damage. The file says so
/// by its name alone.
pub(crate) fn register_journal(
    disk: &dyn Disk,
    root: &Path,
    shard: usize,
) -> Result<(), StorageError> {
    let path = paths::journal_registration(root, shard);
    if disk.exists(&path).during("look for", &path)? {
        return Ok(());
    }
    let dir = paths::registry_dir(root);
    create_dir_durably(disk, root, &dir).during("create", &dir)?;
    replace_file(disk, &path, &[]).during("write", &path)
}

/// The shards whose journal was registered.
pub(crate) fn registered_journals(disk: &dyn Disk, root: &Path) -> io::Result<Vec<usize>> {
    let names = match disk.list(&paths::registry_dir(root)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    let shards = names.iter();
    Ok(shards
        .filter_map(|name| paths::parse_journal_registration(name))
        .collect())
}

/// The groups whose registration file is there, readable or not, in order.
pub(crate) fn registered(disk: &dyn Disk, root: &Path) -> io::Result<Vec<GroupId>> {
    let names = match disk.list(&paths::registry_dir(root)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        names => names?,
    };
    let mut groups: Vec<GroupId> = names
        .iter()
        .filter_map(|name| paths::parse_registration(name))
        .collect();
    groups.sort_unstable();
    Ok(groups)
}

/// All replicas registered in a data directory.
///
/// # Errors
/// The operating system's. A registration that cannot be read is left out; recovery has said so.
pub fn list_groups(disk: &dyn Disk, root: &Path) -> io::Result<Vec<(GroupId, ReplicaId)>> {
    let mut found = Vec::new();
    for group in registered(disk, root)? {
        match Registration::load(disk, root, group) {
            Ok(Some(registration)) => found.push((group, registration.replica)),
            Ok(None) => {}
            Err(StorageError::Damaged { .. }) => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(found)
}
