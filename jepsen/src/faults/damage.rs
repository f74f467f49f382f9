//! Bit rot: bytes of a stopped node's files that are no longer what was written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::chance::Chance;

/// The parts of a data directory that hold what a node has to tell from rubbish.
const PARTS: [&str; 4] = ["partitions", "journal", "controller", "registry"];
/// Places struck in one go, at most.
const FLIPS_MAX: u64 = 4;
/// The kind of a replica's registration and its state file, struck together: each says which replica
/// it is where the other does not.
const IDENTITY: &str = "identity";

/// What one damaged place was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    /// The file.
    pub path: PathBuf,
    /// The byte.
    pub position: u64,
    /// The bits that were flipped.
    pub mask: u8,
}

/// Flips bits in a few bytes of a node's files, all of one kind: segments, indices, states (with the
/// votes in them), snapshots, tables, journals, registrations; what the controller's directory holds
/// are kinds for themselves, and so is a registration with the state of its replica. Of the kinds that
/// are due those come first that were not struck yet; then the one that was damaged least often so far,
/// so that the few small ones get their share. Returns the kind and what was done; nothing if there is
/// nothing to damage.
///
/// # Errors
/// The operating system's.
pub fn rot(
    data_dir: &Path,
    before: &BTreeMap<String, u32>,
    due: &[&str],
    chance: &mut Chance,
) -> anyhow::Result<(String, Vec<Flip>)> {
    let mut files = Vec::new();
    for part in PARTS {
        let dir = data_dir.join(part);
        if dir.is_dir() {
            collect(&dir, &mut files)?;
        }
    }
    // What is struck together, by kind.
    let mut by_kind: BTreeMap<String, Vec<Vec<PathBuf>>> = BTreeMap::new();
    for path in &files {
        let Some(kind) = kind(path.strip_prefix(data_dir).unwrap_or(path)) else {
            continue;
        };
        let state = (kind == "registration")
            .then(|| state_of(data_dir, path))
            .flatten();
        if let Some(state) = state.filter(|state| files.contains(state)) {
            let both = vec![path.clone(), state];
            by_kind.entry(IDENTITY.to_owned()).or_default().push(both);
        }
        by_kind.entry(kind).or_default().push(vec![path.clone()]);
    }
    let times = |kind: &String| before.get(kind).copied().unwrap_or(0);
    let rank = |kind: &String| {
        (
            times(kind) > 0 || !due.contains(&kind.as_str()),
            times(kind),
        )
    };
    let first = by_kind.keys().map(rank).min();
    let kinds: Vec<&String> = by_kind
        .keys()
        .filter(|kind| Some(rank(kind)) == first)
        .collect();
    let mut flips = Vec::new();
    let count = chance.between(1, FLIPS_MAX);
    let Some(wanted) = chance.pick(&kinds).map(|kind| (*kind).clone()) else {
        return Ok((String::new(), flips));
    };
    let of_kind = by_kind.get(&wanted).map(Vec::as_slice).unwrap_or_default();
    let struck = (0..count).filter_map(|_| chance.pick(of_kind)).flatten();
    for path in struck.collect::<Vec<_>>() {
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let length = file.metadata()?.len();
        let position = place(&file, length, chance)?;
        let mask = 1u8 << chance.below(8);
        let mut byte = [0];
        file.read_exact_at(&mut byte, position)?;
        file.write_all_at(&[byte[0] ^ mask], position)?;
        flips.push(Flip {
            path: path.strip_prefix(data_dir).unwrap_or(path).to_owned(),
            position,
            mask,
        });
    }
    Ok((wanted, flips))
}

/// The state file of the replica of a registration, by its name: `TOPIC-PARTITION`.
fn state_of(data_dir: &Path, registration: &Path) -> Option<PathBuf> {
    let name = registration.file_name()?.to_str()?;
    let (topic, partition) = name.rsplit_once('-')?;
    let dir = match topic.bytes().all(|byte| matches!(byte, b'0' | b'-')) {
        true => data_dir.join("controller"),
        false => data_dir.join("partitions").join(topic).join(partition),
    };
    Some(dir.join("state"))
}

/// A byte that is in use: files are written ahead with zeros, and a flip among those says little.
fn place(file: &File, length: u64, chance: &mut Chance) -> anyhow::Result<u64> {
    let mut position = chance.below(length);
    for _ in 0..64 {
        let mut byte = [0];
        file.read_exact_at(&mut byte, position)?;
        if byte[0] != 0 {
            break;
        }
        position = chance.below(position.max(1));
    }
    Ok(position)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, files)?;
        } else if fs::metadata(&path)?.len() > 0 {
            files.push(path);
        }
    }
    Ok(())
}

/// What kind of file it is, by its path in the data directory (docs/design/log-format.md, section
/// 2); `None` if its bytes say nothing: marks, reserves, replacements that were not finished.
fn kind(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let part = path.components().next()?.as_os_str();
    if part == "registry" {
        // What the mark of a journal says, its name says.
        let is_mark = name.starts_with("journal-") || path.extension().is_some();
        return (!is_mark).then(|| "registration".to_owned());
    }
    let what = match path.extension().map(|ending| ending.to_string_lossy()) {
        Some(ending) => match &*ending {
            "log" => "segment",
            "index" => "index",
            "tables" => "tables",
            "journal" => "journal",
            "spare" => "state",
            _ => return None,
        },
        None => match &*name {
            "state" => "state",
            "snapshot" => "snapshot",
            _ => return None,
        },
    };
    match &*part.to_string_lossy() {
        "controller" => Some(format!("controller's {what}")),
        _ => Some(what.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rot_flips_single_bits_of_what_is_in_use_and_says_where() {
        let dir = tempfile::tempdir().expect("a directory");
        let partition = dir.path().join("partitions/id/0");
        fs::create_dir_all(&partition).expect("made");
        let before = vec![0xaa; 4096];
        for name in ["0000-1.log", "state"] {
            fs::write(partition.join(name), &before).expect("written");
        }
        let others = [
            "controller/0000-1.log",
            "controller/state",
            "journal/0/0001.journal",
            "registry/id-0",
        ];
        let untouched = [
            "journal/0/reserve",
            "node.id",
            "registry/journal-0",
            "registry/id-0.new",
        ];
        for name in others.iter().chain(&untouched) {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("in the directory")).expect("made");
            fs::write(path, &before).expect("written");
        }
        let mut times = BTreeMap::new();
        for seed in 0..35 {
            let due = ["snapshot", "state", "segment"];
            let struck = rot(dir.path(), &times, &due, &mut Chance::new(seed));
            let (kind, flips) = struck.expect("rot");
            assert!(!flips.is_empty());
            assert!(
                seed >= 2 || due.contains(&kind.as_str()),
                "those that are due come first"
            );
            *times.entry(kind).or_default() += 1;
            for flip in flips {
                assert_eq!(flip.mask.count_ones(), 1);
                let path = dir.path().join(&flip.path);
                let mut bytes = fs::read(&path).expect("read");
                bytes[usize::try_from(flip.position).expect("small")] ^= flip.mask;
                fs::write(&path, &bytes).expect("written");
            }
        }
        let expected = [
            "controller's segment",
            "controller's state",
            IDENTITY,
            "journal",
            "registration",
            "segment",
            "state",
        ];
        let expected = expected.map(|kind| (kind.to_owned(), 5));
        assert_eq!(times, BTreeMap::from(expected), "each has its share");
        for name in ["0000-1.log", "state"] {
            let bytes = fs::read(partition.join(name)).expect("read");
            assert_eq!(
                bytes, before,
                "undone flip by flip, nothing else has changed"
            );
        }
        for name in others.iter().chain(&untouched) {
            assert_eq!(fs::read(dir.path().join(name)).expect("read"), before);
        }
    }
}
