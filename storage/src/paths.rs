//! Where each file of a data directory is.

use std::path::{Path, PathBuf};

use corduroy_record::{GroupId, PartitionIndex, TopicId};
use uuid::Uuid;

/// `registry/`: one small file per replica that was created here.
pub(crate) fn registry_dir(root: &Path) -> PathBuf {
    root.join("registry")
}

pub(crate) fn registration(root: &Path, group: GroupId) -> PathBuf {
    registry_dir(root).join(format!("{}-{}", group.topic, group.partition))
}

/// Says that a shard has a journal.
pub(crate) fn journal_registration(root: &Path, shard: usize) -> PathBuf {
    registry_dir(root).join(format!("journal-{shard}"))
}

/// Reads the name of a journal's registration file.
pub(crate) fn parse_journal_registration(name: &str) -> Option<usize> {
    name.strip_prefix("journal-")?.parse().ok()
}

/// Reads the name of a registration file.
pub(crate) fn parse_registration(name: &str) -> Option<GroupId> {
    let (topic, partition) = name.rsplit_once('-')?;
    let topic = TopicId::new(Uuid::try_parse(topic).ok()?);
    let partition = PartitionIndex::new(partition.parse().ok()?);
    let group = GroupId { topic, partition };
    (format!("{topic}-{partition}") == name).then_some(group)
}

/// A partition's directory.
pub(crate) fn partition_dir(root: &Path, group: GroupId) -> PathBuf {
    if group == GroupId::CONTROLLER {
        return root.join("controller");
    }
    partitions_dir(root)
        .join(group.topic.to_string())
        .join(group.partition.to_string())
}

pub(crate) fn state_file(dir: &Path) -> PathBuf {
    dir.join("state")
}

/// Marks a directory whose replica was removed: it may be cleared away.
pub(crate) fn removed_mark(dir: &Path) -> PathBuf {
    dir.join("removed")
}

pub(crate) fn partitions_dir(root: &Path) -> PathBuf {
    root.join("partitions")
}

pub(crate) fn snapshot_file(dir: &Path) -> PathBuf {
    dir.join("snapshot")
}

pub(crate) fn tables_file(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("{index:020}.tables"))
}

pub(crate) fn parse_tables(name: &str) -> Option<u64> {
    name.strip_suffix(".tables")?.parse().ok()
}

/// Segments are named by base offset; the number after it tells segments apart that hold no
/// records, and is never used twice within a replica.
pub(crate) fn segment_file(dir: &Path, base_offset: i64, id: u32) -> PathBuf {
    dir.join(format!("{base_offset:020}-{id}.log"))
}

pub(crate) fn index_file(dir: &Path, base_offset: i64, id: u32) -> PathBuf {
    dir.join(format!("{base_offset:020}-{id}.index"))
}

/// Digits of the base offset in the names of segments.
const BASE_DIGITS: usize = 20;

/// The number of a segment or index file's name.
pub(crate) fn parse_segment(name: &str) -> Option<u32> {
    let stem = name
        .strip_suffix(".log")
        .or_else(|| name.strip_suffix(".index"))?;
    let (base, id) = stem.split_once('-')?;
    let is_base = base.len() == BASE_DIGITS && base.bytes().all(|digit| digit.is_ascii_digit());
    if is_base { id.parse().ok() } else { None }
}

/// `journal/`: one directory per shard.
pub(crate) fn journals_dir(root: &Path) -> PathBuf {
    root.join("journal")
}

pub(crate) fn journal_dir(root: &Path, shard: usize) -> PathBuf {
    journals_dir(root).join(shard.to_string())
}

pub(crate) fn journal_file(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:04}.journal"))
}

pub(crate) fn parse_journal(name: &str) -> Option<u32> {
    name.strip_suffix(".journal")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_names_read_back() {
        let group = GroupId {
            topic: TopicId::new(Uuid::from_u128(7)),
            partition: PartitionIndex::new(12),
        };
        let path = registration(Path::new("/r"), group);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(parse_registration(name), Some(group));
        assert_eq!(parse_registration("x"), None);
        assert_eq!(parse_registration("journal-1"), None);
        assert_eq!(parse_journal_registration("journal-1"), Some(1));
        assert_eq!(parse_journal_registration(name), None);
        assert_eq!(parse_registration(&format!("{name}.new")), None);
    }
}
