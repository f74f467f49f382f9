//! What this machine lets us do: tried, not guessed, and told for each fault before a run begins.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

use crate::cluster::freezer;
use crate::faults::{Asked, FaultKind, Need, shim};
use crate::topology::TopologyKind;

/// What was found.
pub struct Preflight {
    /// The best network that can be built.
    pub topology: TopologyKind,
    /// The library for faults inside the processes, built and tried.
    pub shim: Option<PathBuf>,
    /// Why a need is not met; those not named are.
    missing: BTreeMap<Need, String>,
}

impl Preflight {
    /// Looks at the machine. `scratch` is a directory for the library.
    pub fn look(scratch: &Path, nodes: u8, topology: Option<TopologyKind>) -> Preflight {
        let mut missing = BTreeMap::new();
        let namespaces = namespaces();
        let topology = match topology {
            Some(TopologyKind::Loopback) => {
                let why = "--topology loopback has proxies for streams, not packets";
                missing.insert(Need::Packets, why.to_owned());
                TopologyKind::Loopback
            }
            asked => match (&namespaces, asked) {
                (Ok(()), _) | (Err(_), Some(TopologyKind::Namespaces)) => TopologyKind::Namespaces,
                (Err(why), _) => {
                    missing.insert(Need::Packets, why.clone());
                    TopologyKind::Loopback
                }
            },
        };
        if let Err(why) = freezing() {
            missing.insert(Need::Freezer, why);
        }
        if let Err(why) = images() {
            missing.insert(Need::Images, why);
        }
        if nodes < 2 {
            missing.insert(Need::SeveralNodes, "there is one node".to_owned());
        }
        let shim = match shim::build(scratch) {
            Ok(library) if shim::works(&library, scratch) => Some(library),
            Ok(_) => {
                let why = "the library does not work in a process here (seccomp?)";
                missing.insert(Need::Shim, why.to_owned());
                None
            }
            Err(error) => {
                missing.insert(Need::Shim, format!("{error:#}"));
                None
            }
        };
        Preflight {
            topology,
            shim,
            missing,
        }
    }

    /// Why a fault is not possible here; `None` if it is.
    pub fn obstacle(&self, kind: FaultKind) -> Option<&str> {
        let missing = |need| self.missing.get(need).map(String::as_str);
        kind.needs().iter().find_map(missing)
    }

    /// One line for each fault.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("network: {}", self.topology.name())];
        for kind in FaultKind::ALL {
            let state = match self.obstacle(*kind) {
                None => format!("possible ({})", kind.about()),
                Some(why) => format!("not possible here: {why}"),
            };
            lines.push(format!("{:<17} {state}", kind.name()));
        }
        lines
    }

    /// What of the asked is possible.
    ///
    /// # Errors
    /// The faults that were asked for by name and are not possible, each with its reason.
    pub fn admit(&self, asked: &Asked) -> Result<BTreeSet<FaultKind>, Vec<String>> {
        let refused: Vec<String> = asked
            .by_name
            .iter()
            .filter_map(|kind| {
                let why = self.obstacle(*kind)?;
                Some(format!("{}: {why}", kind.name()))
            })
            .collect();
        if !refused.is_empty() {
            return Err(refused);
        }
        let possible = |kind: &&FaultKind| self.obstacle(**kind).is_none();
        Ok(asked.kinds.iter().filter(possible).copied().collect())
    }
}

fn is_root() -> bool {
    geteuid().is_root()
}

fn has_program(name: &str) -> bool {
    Command::new(name)
        .arg("--version")
        .output()
        .or_else(|_| Command::new(name).arg("-V").output())
        .is_ok()
}

fn namespaces() -> Result<(), String> {
    if !is_root() {
        return Err("network namespaces need root".to_owned());
    }
    if !has_program("ip") {
        return Err("network namespaces need iproute2 (`ip`)".to_owned());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err("the router needs /dev/net/tun".to_owned());
    }
    Ok(())
}

fn freezing() -> Result<(), String> {
    if !is_root() {
        return Err("control groups need root".to_owned());
    }
    if freezer::place("probe").is_none() {
        return Err("there is no freezer among the control groups".to_owned());
    }
    Ok(())
}

fn images() -> Result<(), String> {
    if !is_root() {
        return Err("disks of their own (ext4 in a file) need root".to_owned());
    }
    for program in ["losetup", "mkfs.ext4", "mount"] {
        if !has_program(program) {
            return Err(format!("disks of their own need `{program}`"));
        }
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err("disks of their own need loop devices".to_owned());
    }
    Ok(())
}
