//! One node: a `corduroy start` process with its directory, its log file and its switches.

use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use corduroy_env::Env;
use rustix::process::Signal;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::freezer;
use super::http;
use super::image::Image;
use super::lives::Lives;
use crate::clean::{self, RunFile};
use crate::faults::shim;
use crate::topology::{Place, Topology};

/// How long a node may take to answer a question about itself.
const STATUS_WAIT_MAX: Duration = Duration::from_secs(2);

/// The exit status of a Rust program that has panicked.
const PANICKED: i32 = 101;

/// How a process was brought to its end, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Nobody asked for it: an end is a crash.
    Unasked,
    /// A fault that a node may answer by ending is on, or was.
    Tolerated,
}

/// What is needed to start a node.
pub struct NodeSetup {
    /// The program.
    pub binary: PathBuf,
    /// All nodes' rpc addresses; empty for a cluster of one.
    pub seeds: String,
    /// Further arguments of `corduroy start`.
    pub extra: Vec<String>,
    /// Further variables of its environment.
    pub environment: Vec<(String, String)>,
    /// The library to load into it.
    pub shim: Option<PathBuf>,
}

/// A machine, and the node that lives on it, running or not. Where one has left for good, another
/// may take its place, under an id of its own.
pub struct Node {
    id: u32,
    /// Its addresses.
    pub place: Place,
    /// Its data directory.
    pub data_dir: PathBuf,
    /// Its disk, if it has one of its own.
    pub image: Option<Image>,
    /// Its faults inside the process, if they work here.
    pub control: Option<shim::Control>,
    /// Its control group, if one is used.
    pub cgroup: Option<PathBuf>,
    home: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    ending: Ending,
    lives: Lives,
    stopped: bool,
}

impl Node {
    /// A node that does not run yet, with everything of its own in `home`. Its id is the number of
    /// its host.
    pub fn new(place: Place, home: PathBuf, log: PathBuf) -> Node {
        Node {
            id: u32::from(place.host.number()),
            place,
            data_dir: home.join("data"),
            home,
            image: None,
            control: None,
            cgroup: None,
            log,
            child: None,
            ending: Ending::Unasked,
            lives: Lives::default(),
            stopped: false,
        }
    }

    /// Where everything of its own is but its log.
    pub fn home(&self) -> PathBuf {
        self.home.clone()
    }

    /// Where its data lies after the run, if it is kept.
    pub fn kept(&self) -> PathBuf {
        let name = self.data_dir.file_name();
        self.home.join(name.unwrap_or_else(|| "data".as_ref()))
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// From here on another node lives on this machine: it has its own id and log file, and nothing
    /// of what its predecessor has written. Nobody may run there.
    ///
    /// # Errors
    /// The operating system's, for the files of before.
    pub fn succeed(&mut self, id: u32, log: PathBuf) -> anyhow::Result<()> {
        self.wipe()?;
        self.data_dir.set_file_name(format!("data-{id}"));
        self.id = id;
        self.log = log;
        self.ending = Ending::Unasked;
        Ok(())
    }

    /// Removes what was written in its data directory.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wipe(&self) -> anyhow::Result<()> {
        match std::fs::remove_dir_all(&self.data_dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.data_dir.display()))
            }
            _ => Ok(()),
        }
    }

    /// Starts the process and returns at once. Nothing happens if it runs.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(
        &mut self,
        setup: &NodeSetup,
        topology: &Topology,
        run_file: &mut RunFile,
    ) -> anyhow::Result<()> {
        if self.child.is_some() {
            return Ok(());
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .with_context(|| format!("cannot open {}", self.log.display()))?;
        self.lives.begin(&self.log);
        let mut command = Command::new(&setup.binary);
        command
            .arg("start")
            .args(["--node-id", &self.id().to_string()])
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(["--listen", &self.place.kafka_listen.to_string()])
            .args(["--advertise", &self.place.kafka.to_string()])
            .args(["--rpc-listen", &self.place.rpc_listen.to_string()])
            .args(["--set", &format!("rpc.advertised={}", self.place.rpc)])
            .args(["--admin-listen", &self.place.admin.to_string()])
            .args(&setup.extra);
        for (name, _) in std::env::vars_os() {
            // What configures the harness or a user's own node is not meant for these.
            if name.to_string_lossy().starts_with("CORDUROY_") {
                command.env_remove(name);
            }
        }
        command.envs(setup.environment.iter().map(|(name, value)| (name, value)));
        if !setup.seeds.is_empty() {
            command.args(["--seeds", &setup.seeds]);
        }
        if let (Some(library), Some(control)) = (&setup.shim, &self.control) {
            command
                .env("LD_PRELOAD", library)
                .env(shim::VARIABLE, control.path());
        }
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A Ctrl-C at the terminal is for the harness, which then stops the nodes.
            .process_group(0);
        let child = topology.within(self.place.host, || {
            command
                .spawn()
                .with_context(|| format!("cannot start {}", setup.binary.display()))
        })?;
        if let Some(pid) = child.id() {
            run_file.note_process(pid)?;
            topology.set_pid(self.place.host, Some(pid));
            if let Some(cgroup) = &self.cgroup {
                freezer::enclose(cgroup, pid)
                    .with_context(|| format!("cannot use {}", cgroup.display()))?;
            }
        }
        self.child = Some(child);
        self.ending = Ending::Unasked;
        self.stopped = false;
        Ok(())
    }

    /// The id of its process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Whether it has a process, stopped or not.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Whether its process is stopped by SIGSTOP or frozen.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Whether the kernel says that it stands still.
    pub fn is_seen_stopped(&self) -> bool {
        let is_frozen = self.cgroup.as_deref().is_some_and(freezer::is_frozen);
        let stat = self.pid().and_then(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name before it, in brackets, may hold anything.
            let (_, behind) = stat.rsplit_once(')')?;
            behind.split_ascii_whitespace().next().map(str::to_owned)
        });
        is_frozen || stat.as_deref() == Some("T")
    }

    /// From here on a node that ends, or stops a replica, does so rightly: its disk fails.
    pub fn tolerate_end(&mut self) {
        self.ending = Ending::Tolerated;
        self.lives.excuse();
    }

    /// From here on an end is a crash again.
    pub fn forbid_end(&mut self) {
        self.ending = Ending::Unasked;
        self.lives.accuse();
    }

    /// Replicas that stopped here although the disk did not fail, a sentence for each process.
    ///
    /// # Errors
    /// A log that cannot be read.
    pub fn stops(&self) -> anyhow::Result<Vec<String>> {
        let stops = self.lives.stops();
        stops.with_context(|| format!("cannot read what {} wrote", self.home.display()))
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            clean::signal(pid, signal);
        }
    }

    /// SIGSTOP.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
        self.stopped = true;
    }

    /// SIGCONT, and out of the freezer.
    pub fn resume(&mut self) {
        if let Some(cgroup) = &self.cgroup {
            freezer::thaw(cgroup);
        }
        self.signal(Signal::CONT);
        self.stopped = false;
    }

    /// Stops it with all its threads at once.
    ///
    /// # Errors
    /// No control groups, or the kernel's.
    pub fn freeze(&mut self) -> anyhow::Result<()> {
        let cgroup = self.cgroup.as_ref().context("no freezer")?;
        freezer::freeze(cgroup)?;
        self.stopped = true;
        Ok(())
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn kill(&mut self, topology: &Topology) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            if self.stopped {
                self.resume();
            }
            child.kill().await?;
            topology.set_pid(self.place.host, None);
        }
        self.stopped = false;
        Ok(())
    }

    /// SIGTERM, and waits for the end for so long, then kills. `None` if it did not run or did not
    /// end.
    ///
    /// # Errors
    /// The operating system's.
    pub async fn terminate(
        &mut self,
        topology: &Topology,
        limit: Duration,
    ) -> anyhow::Result<Option<ExitStatus>> {
        if self.stopped {
            self.resume();
        }
        self.signal(Signal::TERM);
        let Some(child) = self.child.as_mut() else {
            return Ok(None);
        };
        let ended = tokio::time::timeout(limit, child.wait()).await;
        let status = match ended {
            Ok(status) => Some(status?),
            Err(_) => None,
        };
        if status.is_none() {
            self.kill(topology).await?;
        } else {
            self.child = None;
            topology.set_pid(self.place.host, None);
        }
        Ok(status)
    }

    /// Notices an end that nobody brought about. Returns what it says of itself if it counts as a
    /// crash.
    pub fn notice_end(&mut self, topology: &Topology) -> Option<String> {
        let child = self.child.as_mut()?;
        let Ok(Some(status)) = child.try_wait() else {
            return None;
        };
        self.child = None;
        topology.set_pid(self.place.host, None);
        // A panic is no answer to a disk that fails.
        let is_orderly = status.code().is_some_and(|code| code != PANICKED);
        if self.ending == Ending::Tolerated && is_orderly {
            return None;
        }
        Some(format!(
            "node {} ended by itself with {status}; its last words: {}",
            self.id(),
            self.last_words()
        ))
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(3).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        lines.join(" | ")
    }

    /// What it says of itself on its admin port.
    pub async fn status(&self, env: &Env) -> Option<Value> {
        if !self.is_running() || self.stopped {
            return None;
        }
        let answer = http::ask(env, self.place.admin, "GET", "/v1/status", STATUS_WAIT_MAX);
        match answer.await {
            Ok((200, status)) => Some(status),
            _ => None,
        }
    }
}
