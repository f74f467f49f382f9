//! Bit rot: bytes of a stopped node's files that are no longer what was written.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::chance::Chance;

/// Bytes flipped in one go, at most.
const FLIPS_MAX: u64 = 4;

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

/// Flips bits in a few bytes of a node's partitions and journals: segments, indices, states (with
/// the votes in them), snapshots. The kind of file is drawn first, so that the few small ones get
/// their share. Returns what was done; nothing if there is nothing to damage.
///
/// # Errors
/// The operating system's.
pub fn rot(data_dir: &Path, chance: &mut Chance) -> anyhow::Result<Vec<Flip>> {
    let mut files = Vec::new();
    for part in ["partitions", "journal"] {
        let dir = data_dir.join(part);
        if dir.is_dir() {
            collect(&dir, &mut files)?;
        }
    }
    let mut flips = Vec::new();
    let count = chance.between(1, FLIPS_MAX);
    let wanted = kind_of(chance, &files);
    let of_kind: Vec<&PathBuf> = files.iter().filter(|path| kind(path) == wanted).collect();
    for _ in 0..count {
        let Some(path) = chance.pick(&of_kind) else {
            break;
        };
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
    Ok(flips)
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

/// What kind of file it is: its ending, or its name without digits.
fn kind(path: &Path) -> String {
    match path.extension() {
        Some(ending) => ending.to_string_lossy().into_owned(),
        None => path
            .file_name()
            .map(|name| {
                name.to_string_lossy()
                    .replace(|c: char| c.is_ascii_digit(), "")
            })
            .unwrap_or_default(),
    }
}

fn kind_of(chance: &mut Chance, files: &[PathBuf]) -> String {
    let mut kinds: Vec<String> = files.iter().map(|path| kind(path)).collect();
    kinds.sort();
    kinds.dedup();
    chance.pick(&kinds).cloned().unwrap_or_default()
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
        fs::write(dir.path().join("node.id"), b"1").expect("written");
        for seed in 0..20 {
            let flips = rot(dir.path(), &mut Chance::new(seed)).expect("rot");
            assert!(!flips.is_empty());
            for flip in flips {
                assert_eq!(flip.mask.count_ones(), 1);
                let path = dir.path().join(&flip.path);
                let mut bytes = fs::read(&path).expect("read");
                bytes[usize::try_from(flip.position).expect("small")] ^= flip.mask;
                fs::write(&path, &bytes).expect("written");
            }
        }
        for name in ["0000-1.log", "state"] {
            let bytes = fs::read(partition.join(name)).expect("read");
            assert_eq!(
                bytes, before,
                "undone flip by flip, nothing else has changed"
            );
        }
        assert_eq!(fs::read(dir.path().join("node.id")).expect("read"), b"1");
    }
}
