//! One process per data directory.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::StartError;

/// Held as long as the node runs; the kernel lets go of it when the process ends, however it ends.
pub struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Makes the directory, if need be, and locks it.
    pub fn take(path: &Path) -> Result<DirectoryLock, StartError> {
        let failed = |source: std::io::Error| StartError::DataDir {
            path: path.to_owned(),
            source,
        };
        fs::create_dir_all(path).map_err(failed)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("lock"))
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(DirectoryLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StartError::DataDirInUse {
                path: path.to_owned(),
            }),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_belongs_to_one_node_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = DirectoryLock::take(dir.path()).expect("free");
        assert!(matches!(
            DirectoryLock::take(dir.path()),
            Err(StartError::DataDirInUse { .. })
        ));
        drop(first);
        assert!(DirectoryLock::take(dir.path()).is_ok());
    }
}
