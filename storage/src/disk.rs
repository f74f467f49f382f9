//! The seam to the disk: what the store asks of a file system.
//!
//! Assumptions about the media, stated once: a sector of 512 bytes is written whole or not at
//! all; a rename is seen whole or not at all; nothing else is promised before a flush returned.

mod real;
mod sim;

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use real::RealDisk;
pub use sim::{SimDisk, SimOptions};

/// How a file is opened. All modes read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist.
    Existing,
    /// Is created where absent; keeps its bytes where present.
    Create,
    /// Is created where absent and emptied where present.
    Truncate,
}

/// A file system. Paths are absolute or relative to the process; no call follows another's
/// order on disk unless a flush says so.
pub trait Disk: Send + Sync + 'static {
    /// Opens or creates a file. A created file survives a crash only after
    /// [`Disk::flush_dir`] of its directory.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates a directory and its parents.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Moves a file over another, atomically.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Swaps two files, atomically. Where the file system cannot, `from` may instead be moved
    /// over `to`.
    fn exchange(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes one file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all that is in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Names in a directory, sorted; `NotFound` if there is no such directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Whether a file or directory is there. An error says nothing about it: what cannot be seen
    /// just now is not gone (law 7).
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Makes a directory's entries (creations, renames, removals) durable.
    fn flush_dir(&self, dir: &Path) -> io::Result<()>;
    /// Bytes that may still be written on the file system that holds `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
    /// What passes on a simulated clock between a turn's writes and its flush. A real disk takes
    /// its time inside its calls.
    fn flush_delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Writes all chunks one after another from `offset` on. May have written some on error.
    fn write_at(&self, offset: u64, chunks: &[IoSlice<'_>]) -> io::Result<()>;
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Makes all bytes written through any descriptor of this file durable (fdatasync). After
    /// an error nothing is known about them, and asking again proves nothing.
    fn flush(&self) -> io::Result<()>;
    /// Has the operating system begin to write what [`DiskFile::flush`] will wait for. A hint:
    /// it promises nothing and reports nothing.
    fn start_flush(&self) {}
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file holds no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends (with zeros).
    fn set_len(&self, len: u64) -> io::Result<()>;
}

/// Creates a directory and makes it, and each directory above it up to and including `root`'s
/// own name, durable.
pub(crate) fn create_dir_durably(disk: &dyn Disk, root: &Path, dir: &Path) -> io::Result<()> {
    disk.create_dir_all(dir)?;
    let above = root
        .parent()
        .map(|above| match above.as_os_str().is_empty() {
            true => Path::new("."),
            false => above,
        });
    if let Some(above) = above
        && disk.exists(above)?
    {
        match disk.flush_dir(above) {
            // The directory above is not ours: it need not let us read it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            flushed => flushed?,
        }
    }
    let within: Vec<&Path> = dir
        .ancestors()
        .take_while(|at| at.starts_with(root))
        .collect();
    // From the top down: a name that was removed and made again above is settled before what
    // lies below it.
    for at in within.into_iter().rev() {
        disk.flush_dir(at)?;
    }
    Ok(())
}

/// Replaces a file by bytes so that a crash leaves the old or the new ones, never a mixture.
/// Durable when it returns.
pub(crate) fn replace_file(disk: &dyn Disk, path: &Path, bytes: &[&[u8]]) -> io::Result<()> {
    let temporary = path.with_added_extension("new");
    let file = disk.open(&temporary, OpenMode::Truncate)?;
    let chunks: Vec<IoSlice<'_>> = bytes.iter().map(|chunk| IoSlice::new(chunk)).collect();
    file.write_at(0, &chunks)?;
    file.flush()?;
    drop(file);
    disk.rename(&temporary, path)?;
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    disk.flush_dir(dir)
}

/// As [`replace_file`], for a file that is replaced often: what is replaced stays beside it as
/// the next one's place, so that a full disk does not matter, and no block is allocated.
pub(crate) fn swap_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_spare(disk, path, bytes)?.flush()?;
    swap_spare(disk, path)?;
    let dir = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    disk.flush_dir(dir)
}

/// The first step of [`swap_file`]: the new bytes beside the old ones, not durable yet.
pub(crate) fn write_spare(
    disk: &dyn Disk,
    path: &Path,
    bytes: &[u8],
) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.open(&path.with_added_extension("spare"), OpenMode::Create)?;
    file.write_at(0, &[IoSlice::new(bytes)])?;
    if file.len()? > bytes.len() as u64 {
        file.set_len(bytes.len() as u64)?;
    }
    Ok(file)
}

/// The step after the spare was flushed: it takes the name, durably once the directory is
/// flushed.
pub(crate) fn swap_spare(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let spare = path.with_added_extension("spare");
    if disk.exists(path)? {
        disk.exchange(&spare, path)
    } else {
        disk.rename(&spare, path)
    }
}

/// Reads a whole file that is at most `bytes_max` long.
pub(crate) fn read_file(disk: &dyn Disk, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Existing)?;
    let len = file.len()?;
    if len > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{len} bytes are more than the {bytes_max} expected at most"),
        ));
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    Ok(bytes)
}
