//! What a run made on the machine, and its removal: processes, namespaces, mounts, loop devices,
//! cgroups. Everything is noted in the run's file **before** it is made, so that `clean` finds it
//! after a crash of the harness too; each thing is checked to be the one that was noted before it
//! is removed.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use corduroy_env::Env;
use rustix::process::{Pid, Signal, getuid, kill_process};
use serde::{Deserialize, Serialize};

use crate::topology::namespace::NAMESPACES_DIR;

/// What every name that a run gives to something on the machine begins with.
const NAME_PREFIX: &str = "cdj";
/// What the name of every scratch directory begins with.
const SCRATCH_PREFIX: &str = "corduroy-";
/// How long a killed process may take to be gone.
const END_WAIT_MAX: Duration = Duration::from_secs(5);

/// Something on the machine that a run made. One line of the run's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Made {
    /// The harness itself; not removed, but nothing is while it lives.
    Harness { pid: u32, start_ticks: u64 },
    /// A child process, as far as it is still the one that was started.
    Process { pid: u32, start_ticks: u64 },
    /// A network namespace.
    Namespace { name: String },
    /// A loop device with this image behind it, found by the image.
    Loop { image: PathBuf },
    /// A mounted filesystem.
    Mount { path: PathBuf },
    /// A control group without processes.
    Cgroup { path: PathBuf },
    /// A file that only the run needed.
    File { path: PathBuf },
    /// A directory of [`scratch`], with all that is in it.
    Scratch { path: PathBuf },
}

/// The file in which a run notes what it makes.
pub struct RunFile {
    prefix: String,
    path: PathBuf,
    file: File,
    made: Vec<Made>,
}

impl RunFile {
    /// Begins the file of a new run, under a name that no other run has.
    ///
    /// # Errors
    /// A directory that is not ours alone, or the operating system's.
    pub fn begin(env: &Env) -> anyhow::Result<RunFile> {
        let dir = runs_dir()?;
        let prefix = format!("{NAME_PREFIX}{:06x}", env.random_below(1 << 24));
        let path = dir.join(format!("{prefix}.jsonl"));
        let file =
            File::create_new(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let mut run_file = RunFile {
            prefix,
            path,
            file,
            made: Vec::new(),
        };
        let pid = std::process::id();
        let start_ticks = start_ticks(pid).context("cannot read this process's start time")?;
        run_file.note(Made::Harness { pid, start_ticks })?;
        Ok(run_file)
    }

    /// What the names of this run begin with: unique on the machine, 9 letters.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Notes something that is about to be made (a process: that has just been).
    ///
    /// # Errors
    /// The operating system's.
    pub fn note(&mut self, made: Made) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&made)?;
        line.push('\n');
        self.file
            .write_all(line.as_bytes())
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.made.push(made);
        Ok(())
    }

    /// Notes a child.
    ///
    /// # Errors
    /// The operating system's.
    pub fn note_process(&mut self, pid: u32) -> anyhow::Result<()> {
        // A child that has ended already needs no removal.
        match start_ticks(pid) {
            Some(start_ticks) => self.note(Made::Process { pid, start_ticks }),
            None => Ok(()),
        }
    }

    /// Leaves everything that the run made where it is, for people to look at, and removes the file.
    ///
    /// # Errors
    /// The operating system's.
    pub fn keep_all(self) -> anyhow::Result<()> {
        fs::remove_file(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))
    }

    /// Removes everything that the run made, and the file.
    ///
    /// # Errors
    /// What could not be removed; the file stays then.
    pub async fn remove_all(self, env: &Env) -> anyhow::Result<()> {
        remove(env, &self.made).await?;
        fs::remove_file(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

/// A fresh directory for what is needed for a while, noted like everything that is made: its path is
/// `corduroy-NAME-RANDOM` in the directory for such.
///
/// # Errors
/// The operating system's.
pub fn scratch(env: &Env, name: &str) -> anyhow::Result<(PathBuf, RunFile)> {
    let mut run_file = RunFile::begin(env)?;
    let name = format!("{SCRATCH_PREFIX}{name}-{:x}", env.random_u64());
    let path = std::env::temp_dir().join(name);
    run_file.note(Made::Scratch { path: path.clone() })?;
    DirBuilder::new()
        .mode(0o700)
        .create(&path)
        .with_context(|| format!("cannot create {}", path.display()))?;
    Ok((path, run_file))
}

/// Removes a scratch directory: one of that name, and of this user.
fn remove_scratch(path: &Path) -> anyhow::Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy());
    if !name.is_some_and(|name| name.starts_with(SCRATCH_PREFIX)) {
        return Ok(());
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() && found.uid() == getuid().as_raw() => {
            fs::remove_dir_all(path).map_err(Into::into)
        }
        _ => Ok(()),
    }
}

/// What [`clean`] did.
#[derive(Debug, Default)]
pub struct Cleaned {
    /// Runs whose leftovers are gone.
    pub runs: Vec<String>,
    /// Runs that go on: nothing of theirs was touched.
    pub running: Vec<String>,
}

/// Removes what crashed runs of this user left behind.
///
/// # Errors
/// What could not be removed.
pub async fn clean(env: &Env) -> anyhow::Result<Cleaned> {
    let mut cleaned = Cleaned::default();
    for entry in fs::read_dir(runs_dir()?)? {
        let path = entry?.path();
        let name = path
            .file_stem()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if path.extension().is_none_or(|ending| ending != "jsonl") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        // A last line that was cut off was about something that was not made yet.
        let made: Vec<Made> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let lives = made.iter().any(|made| match made {
            Made::Harness { pid, start_ticks } => is_same_process(*pid, *start_ticks),
            _ => false,
        });
        if lives {
            cleaned.running.push(name);
            continue;
        }
        remove(env, &made)
            .await
            .with_context(|| format!("cannot clean up after run {name}"))?;
        fs::remove_file(&path)?;
        cleaned.runs.push(name);
    }
    Ok(cleaned)
}

/// Removes things in the reverse order of their making; goes on after a failure and reports the
/// first one.
async fn remove(env: &Env, made: &[Made]) -> anyhow::Result<()> {
    let mut first = Ok(());
    // Frozen processes do not die: their groups are thawed first.
    for made in made {
        if let Made::Cgroup { path } = made {
            crate::cluster::freezer::thaw(path);
        }
    }
    for made in made {
        if let Made::Process { pid, start_ticks } = made
            && is_same_process(*pid, *start_ticks)
        {
            signal(*pid, Signal::KILL);
        }
    }
    for made in made.iter().rev() {
        let removed = match made {
            Made::Harness { .. } => Ok(()),
            Made::Process { pid, start_ticks } => wait_gone(env, *pid, *start_ticks).await,
            Made::Namespace { name } => remove_namespace(name),
            Made::Loop { image } => detach(image),
            Made::Mount { path } => unmount(env, path).await,
            Made::Cgroup { path } => gone(fs::remove_dir(path)).map_err(Into::into),
            Made::File { path } => gone(fs::remove_file(path)).map_err(Into::into),
            Made::Scratch { path } => remove_scratch(path),
        };
        if first.is_ok() {
            first = removed.with_context(|| format!("cannot remove {made:?}"));
        }
    }
    first
}

/// Already gone is what we want.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn remove_namespace(name: &str) -> anyhow::Result<()> {
    if !name.starts_with(NAME_PREFIX) || !Path::new(NAMESPACES_DIR).join(name).exists() {
        return Ok(());
    }
    run("ip", &["netns", "del", name])
}

/// Detaches every loop device that has this image.
///
/// # Errors
/// What `losetup` says.
pub fn detach(image: &Path) -> anyhow::Result<()> {
    for device in loop_devices(image)? {
        run("losetup", &["-d", &device])?;
    }
    Ok(())
}

/// The loop devices with this image behind them.
fn loop_devices(image: &Path) -> anyhow::Result<Vec<String>> {
    if !image.exists() {
        return Ok(Vec::new());
    }
    let output = Command::new("losetup")
        .args(["--noheadings", "--output", "NAME", "--associated"])
        .arg(image)
        .output()
        .context("cannot run `losetup`")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().map(ToOwned::to_owned).collect())
}

/// Unmounts, waiting a moment for the last user to be gone.
///
/// # Errors
/// What the kernel says in the end.
pub async fn unmount(env: &Env, path: &Path) -> anyhow::Result<()> {
    let deadline = env.now() + END_WAIT_MAX;
    while is_mounted(path)? {
        match rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()) {
            Ok(()) => {}
            Err(rustix::io::Errno::BUSY) if env.now() < deadline => {
                env.sleep(Duration::from_millis(20)).await;
            }
            Err(error) => bail!("cannot unmount {}: {error}", path.display()),
        }
    }
    Ok(())
}

fn is_mounted(path: &Path) -> anyhow::Result<bool> {
    let text = path.to_string_lossy();
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the mounts")?;
    Ok(mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(&*text)))
}

async fn wait_gone(env: &Env, pid: u32, start_ticks: u64) -> anyhow::Result<()> {
    let deadline = env.now() + END_WAIT_MAX;
    while is_same_process(pid, start_ticks) && !is_zombie(pid) {
        if env.now() > deadline {
            bail!("process {pid} does not end");
        }
        env.sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// When a process started, in the kernel's ticks since boot: with its id, it names one process.
pub fn start_ticks(pid: u32) -> Option<u64> {
    stat_field(pid, 19)?.parse().ok()
}

fn is_same_process(pid: u32, ticks: u64) -> bool {
    start_ticks(pid) == Some(ticks)
}

fn is_zombie(pid: u32) -> bool {
    stat_field(pid, 0).is_some_and(|state| state == "Z")
}

/// A field of /proc/PID/stat, counted behind the name (which may hold anything, even spaces).
fn stat_field(pid: u32, place: usize) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = text.rsplit_once(')')?;
    behind
        .split_ascii_whitespace()
        .nth(place)
        .map(ToOwned::to_owned)
}

/// Sends a signal to a process that is known to be ours. That it has ended meanwhile is fine.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Runs a program to its end.
///
/// # Errors
/// That it is not there, or what it says.
pub fn run(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("cannot run `{program}`"))?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// Where this user's runs are noted: a directory that nobody else can write into, as `clean` acts
/// on what stands there.
fn runs_dir() -> anyhow::Result<PathBuf> {
    let uid = getuid().as_raw();
    let dir = std::env::temp_dir().join(format!("corduroy-jepsen-{uid}"));
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.with_context(|| format!("cannot create {}", dir.display()))?,
    }
    let found = fs::symlink_metadata(&dir)?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        bail!(
            "{} does not belong to this user alone\n  help    remove it, or set TMPDIR",
            dir.display()
        );
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_id_and_start() {
        let pid = std::process::id();
        let ticks = start_ticks(pid).expect("this process");
        assert!(is_same_process(pid, ticks));
        assert!(!is_same_process(pid, ticks + 1));
        assert!(!is_zombie(pid));
    }
}
