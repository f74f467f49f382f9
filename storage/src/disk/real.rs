//! The operating system's files.

#![expect(clippy::disallowed_methods, reason = "this is the door to the disk")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::{Disk, DiskFile, OpenMode};

/// Chunks in one `pwritev`, the kernel's `IOV_MAX`.
const CHUNKS_PER_CALL_MAX: usize = 1024;

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

struct RealFile(File);

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(mode != OpenMode::Existing)
            .truncate(mode == OpenMode::Truncate)
            .open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn exchange(&self, from: &Path, to: &Path) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            // Not every file system swaps; all of them replace.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => fs::rename(from, to),
            Err(error) => Err(error.into()),
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is not UTF-8 is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match path.try_exists() {
            // Something else has the name of a directory above it.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(false),
            found => found,
        }
    }

    fn flush_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

impl DiskFile for RealFile {
    fn write_at(&self, mut offset: u64, chunks: &[IoSlice<'_>]) -> io::Result<()> {
        for chunks in chunks.chunks(CHUNKS_PER_CALL_MAX) {
            let wanted: usize = chunks.iter().map(|chunk| chunk.len()).sum();
            let mut done = loop {
                match rustix::io::pwritev(&self.0, chunks, offset) {
                    Err(rustix::io::Errno::INTR) => {}
                    result => break result?,
                }
            };
            if done == 0 && wanted > 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            // A short write is rare (a nearly full disk): the rest goes chunk by chunk, and its
            // error, if any, is the reason.
            if done < wanted {
                let mut at = offset;
                for chunk in chunks {
                    let skip = done.min(chunk.len());
                    self.0.write_all_at(&chunk[skip..], at + skip as u64)?;
                    done -= skip;
                    at += chunk.len() as u64;
                }
            }
            offset += wanted as u64;
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < buf.len() {
            match self.0.read_at(&mut buf[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(count) => got += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn start_flush(&self) {
        #[expect(unsafe_code, reason = "no safe wrapper has this call")]
        // SAFETY: the descriptor is open as long as `self` is, and the call takes no pointer.
        // Its result is left aside on purpose: an error in writing is the later flush's to tell.
        unsafe {
            libc::sync_file_range(self.0.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE);
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_looked_at_is_not_taken_for_absent() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path();
        assert!(RealDisk.exists(here).unwrap());
        assert!(!RealDisk.exists(&here.join("none/file")).unwrap());
        fs::write(here.join("file"), b"").unwrap();
        assert!(!RealDisk.exists(&here.join("file/below")).unwrap());
        // A circle: no way leads to what may be there, for root neither.
        std::os::unix::fs::symlink(here.join("circle"), here.join("circle")).unwrap();
        RealDisk.exists(&here.join("circle/file")).unwrap_err();
    }
}
