//! What this machine lets us do: tried, not guessed, and told for each fault before a run begins.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, bail};
use corduroy_env::Env;
use rustix::process::geteuid;

use crate::clean::{Made, RunFile, run};
use crate::cluster::freezer;
use crate::cluster::image::Image;
use crate::faults::{Asked, FaultKind, Need, shim};
use crate::topology::TopologyKind;

/// Fewer nodes have no minority.
const MINORITY_NODES: u8 = 3;
/// The size of the disk that is made to see whether one can be: the least that ext4 is at ease with.
const TRY_BYTES: u64 = 16 << 20;
/// How long a freezer may take.
const FREEZE_WAIT_MAX: Duration = Duration::from_secs(2);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// What a preflight looks at.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// A directory for the library and what else is tried.
    pub scratch: &'a Path,
    /// Nodes of the run.
    pub nodes: u8,
    /// The network that was asked for.
    pub topology: Option<TopologyKind>,
    /// The program under test, if there is one already.
    pub program: Option<&'a Path>,
}

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
    /// Looks at the machine: makes and removes one of each thing that faults need.
    pub async fn look(env: &Env, look: Look<'_>) -> Preflight {
        let Look {
            scratch,
            nodes,
            topology,
            program,
        } = look;
        let mut missing = BTreeMap::new();
        let tried = try_all(env, scratch).await;
        let namespaces = tried.namespaces;
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
        if let Err(why) = tried.freezing {
            missing.insert(Need::Freezer, why);
        }
        if let Err(why) = tried.images {
            missing.insert(Need::Images, why);
        }
        if nodes < 2 {
            missing.insert(Need::SeveralNodes, "there is one node".to_owned());
        }
        if nodes < MINORITY_NODES {
            let why = format!(
                "of {nodes} nodes none is a minority, which is all that may be damaged or replaced"
            );
            missing.insert(Need::Minority, why);
        }
        let program = program.unwrap_or(Path::new("true"));
        let built = shim::build(scratch).map_err(|error| format!("{error:#}"));
        let shim = built.and_then(|library| {
            shim::works(&library, scratch, program)?;
            Ok(library)
        });
        let shim = match shim {
            Ok(library) => Some(library),
            Err(why) => {
                missing.insert(Need::Shim, why);
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

/// What came of trying; why not, for people.
struct Tried {
    namespaces: Result<(), String>,
    freezing: Result<(), String>,
    images: Result<(), String>,
}

/// Makes one of each thing and removes it again. Like everything of a run it is noted first, so
/// that `clean` finds it after a crash.
async fn try_all(env: &Env, scratch: &Path) -> Tried {
    if !is_root() {
        let needs = |what: &str| Err(format!("{what} need root"));
        return Tried {
            namespaces: needs("network namespaces"),
            freezing: needs("control groups"),
            images: needs("disks of their own (ext4 in a file)"),
        };
    }
    let told = |tried: anyhow::Result<()>| tried.map_err(|error| format!("{error:#}"));
    let mut run_file = match RunFile::begin(env) {
        Ok(run_file) => run_file,
        Err(error) => {
            let why = || told(Err(anyhow::anyhow!("{error:#}")));
            return Tried {
                namespaces: why(),
                freezing: why(),
                images: why(),
            };
        }
    };
    let mut tried = Tried {
        namespaces: told(try_namespace(&mut run_file)),
        freezing: told(try_freezer(env, &mut run_file).await),
        images: told(try_image(scratch, &mut run_file)),
    };
    if let Err(error) = run_file.remove_all(env).await {
        // What cannot be removed is not made.
        let why = format!("what was tried could not be removed: {error:#}");
        tried.namespaces = tried.namespaces.and(Err(why.clone()));
        tried.freezing = tried.freezing.and(Err(why.clone()));
        tried.images = tried.images.and(Err(why));
    }
    tried
}

/// A namespace with a TUN device in it.
fn try_namespace(run_file: &mut RunFile) -> anyhow::Result<()> {
    let name = format!("{}-try", run_file.prefix());
    run_file.note(Made::Namespace { name: name.clone() })?;
    let ip = |args: &[&str]| run("ip", args).context("network namespaces need iproute2");
    ip(&["netns", "add", &name])?;
    let make = [
        "netns", "exec", &name, "ip", "tuntap", "add", "tun0", "mode", "tun",
    ];
    run("ip", &make).context("the router needs /dev/net/tun")
}

/// A process that is stopped by its control group.
async fn try_freezer(env: &Env, run_file: &mut RunFile) -> anyhow::Result<()> {
    let path = freezer::place(&format!("{}-try", run_file.prefix()))
        .context("there is no freezer among the control groups")?;
    run_file.note(Made::Cgroup { path: path.clone() })?;
    let mut child = Command::new("sleep").arg("60").spawn()?;
    let frozen = freeze_one(env, run_file, &path, &child).await;
    freezer::thaw(&path);
    child.kill()?;
    child.wait()?;
    frozen
}

async fn freeze_one(
    env: &Env,
    run_file: &mut RunFile,
    path: &Path,
    child: &Child,
) -> anyhow::Result<()> {
    run_file.note_process(child.id())?;
    freezer::enclose(path, child.id()).context("cannot use a control group")?;
    freezer::freeze(path).context("cannot freeze a control group")?;
    let deadline = env.now() + FREEZE_WAIT_MAX;
    while !freezer::is_frozen(path) {
        if env.now() > deadline {
            bail!("a control group does not freeze");
        }
        env.sleep(LOOK).await;
    }
    Ok(())
}

/// A filesystem in a file that takes a write.
fn try_image(scratch: &Path, run_file: &mut RunFile) -> anyhow::Result<()> {
    // The kernel names mounts by their whole paths.
    let scratch = std::fs::canonicalize(scratch)?;
    let mount = scratch.join("try-disk");
    let image = scratch.join(format!("{}-try.img", run_file.prefix()));
    Image::make_of(TRY_BYTES, image, mount.clone(), run_file)?;
    Ok(std::fs::write(mount.join("try"), "written")?)
}
