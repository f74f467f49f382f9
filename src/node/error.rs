//! Why a node does not start: cause, what was found, what to do.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use corduroy_storage::StorageError;

use crate::controller::ControllerError;

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error("cannot use the data directory {}: {source}\n  help    give the node a directory that it may write to: --data-dir DIR", path.display())]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Another process uses the data directory.
    #[error("the data directory {} is in use by another process\n  help    stop the other node, or give this one its own --data-dir", path.display())]
    DataDirInUse {
        /// The directory.
        path: PathBuf,
    },
    /// A listener's address cannot be had.
    #[error(
        "cannot listen on {addr} ({what}): {source}\n  help    stop what uses the port, or choose another with {flag}"
    )]
    Listen {
        /// What the listener is for.
        what: &'static str,
        /// The flag that changes it.
        flag: &'static str,
        /// The address.
        addr: SocketAddr,
        /// The operating system's reason.
        source: io::Error,
    },
    /// What is stored cannot be read.
    #[error("cannot open what the data directory holds: {0}")]
    Storage(#[from] StorageError),
    /// Identity, formation or joining failed.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// Another process speaks for this node: the data directory, or the other one's, is a copy.
    #[error("{0}")]
    Twin(String),
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// No runtime could be made.
    #[error("cannot start a runtime: {0}")]
    Runtime(io::Error),
    /// A shard ended while the node started.
    #[error("the node ended while it started (the log above says why)")]
    Ended,
}
