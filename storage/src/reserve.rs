//! Space set aside: a pre-written file that is given up when the disk is full, so that what was
//! accepted can still be written, and votes and metadata go on.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use crate::disk::{Disk, OpenMode};

const ZEROS_BYTES: usize = 1 << 20;

/// Where the reserve of a journal's directory is.
pub(crate) fn reserve_file(journal_dir: &Path) -> PathBuf {
    journal_dir.join("reserve")
}

pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
    held: bool,
}

impl Reserve {
    /// Writes the file unless it is there or the disk has no room for it.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, bytes: u64) -> Reserve {
        let mut reserve = Reserve {
            path: reserve_file(dir),
            bytes,
            held: false,
        };
        reserve.refill(disk);
        reserve
    }

    /// Gives the space up; `true` if there was any, so that trying again makes sense.
    pub(crate) fn give_up(&mut self, disk: &dyn Disk) -> bool {
        if !std::mem::take(&mut self.held) {
            return false;
        }
        tracing::error!(path = %self.path.display(), bytes = self.bytes,
            "the disk is full; the reserve is given up so that what was accepted can be written");
        disk.remove_file(&self.path).is_ok()
    }

    /// Takes the space again once there is plenty.
    pub(crate) fn refill(&mut self, disk: &dyn Disk) {
        if self.held || self.bytes == 0 {
            return;
        }
        match self.write(disk) {
            Ok(()) => self.held = true,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "no room for the reserve");
                disk.remove_file(&self.path).ok();
            }
        }
    }

    fn write(&self, disk: &dyn Disk) -> io::Result<()> {
        let file = disk.open(&self.path, OpenMode::Create)?;
        let mut at = file.len()?;
        let zeros = vec![0; self.bytes.saturating_sub(at).min(ZEROS_BYTES as u64) as usize];
        while at < self.bytes {
            let count = (self.bytes - at).min(ZEROS_BYTES as u64);
            file.write_at(at, &[IoSlice::new(&zeros[..count as usize])])?;
            at += count;
        }
        // Space that a power failure takes back is not set aside.
        file.flush()?;
        match self.path.parent() {
            Some(dir) => disk.flush_dir(dir),
            None => Ok(()),
        }
    }
}
