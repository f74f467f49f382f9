//! Control groups that stop a node with all its threads at once, as a virtual machine stops.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where version 1 has its freezer, and where version 2 has everything.
const V1: &str = "/sys/fs/cgroup/freezer";
const V2: &str = "/sys/fs/cgroup";

/// Where a group of this name would be; `None` if this machine lets us make none.
pub fn place(name: &str) -> Option<PathBuf> {
    if Path::new(V1).is_dir() {
        return Some(Path::new(V1).join(name));
    }
    let is_v2 = Path::new(V2).join("cgroup.controllers").is_file();
    is_v2.then(|| Path::new(V2).join(name))
}

/// Makes the group and moves a process into it.
///
/// # Errors
/// The kernel's.
pub fn enclose(path: &Path, pid: u32) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    fs::write(path.join("cgroup.procs"), pid.to_string())
}

/// Stops everything in the group.
///
/// # Errors
/// The kernel's.
pub fn freeze(path: &Path) -> io::Result<()> {
    let v1 = path.join("freezer.state");
    if v1.exists() {
        fs::write(v1, "FROZEN")
    } else {
        fs::write(path.join("cgroup.freeze"), "1")
    }
}

/// Whether everything in the group stands still.
pub fn is_frozen(path: &Path) -> bool {
    let says = |file: &str, word: &str| {
        fs::read_to_string(path.join(file)).is_ok_and(|text| text.contains(word))
    };
    says("freezer.state", "FROZEN") || says("cgroup.events", "frozen 1")
}

/// Lets it go on. A group that is gone needs nothing.
pub fn thaw(path: &Path) {
    let v1 = path.join("freezer.state");
    let _ = if v1.exists() {
        fs::write(v1, "THAWED")
    } else {
        fs::write(path.join("cgroup.freeze"), "0")
    };
}
