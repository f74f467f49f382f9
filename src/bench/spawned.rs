//! Three node processes of our own, on loopback, for as long as the suite runs.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use corduroy_env::Env;
use tempfile::TempDir;

use crate::cli::{CliError, CliResult};
use crate::demo::free_ports;

/// How long a node may take to end by itself before it is killed.
const STOP_WAIT_MAX: Duration = Duration::from_secs(10);

/// Node processes. Dropping them kills what still runs and removes their data.
pub(super) struct SpawnedCluster {
    nodes: Vec<Child>,
    commands: Vec<Command>,
    kafka: Vec<SocketAddr>,
    root: TempDir,
}

impl SpawnedCluster {
    /// Starts `nodes` processes of this very program; does not wait until they serve.
    pub(super) async fn start(
        env: &Env,
        nodes: usize,
        parent: Option<&Path>,
    ) -> CliResult<SpawnedCluster> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("corduroy-bench-");
        let root = match parent {
            Some(parent) => builder.tempdir_in(parent)?,
            None => builder.tempdir()?,
        };
        let ports = free_ports(env, nodes * 2).await?;
        let (kafka, rpc) = ports.split_at(nodes);
        let seeds = rpc
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",");
        let program = std::env::current_exe()?;
        let mut cluster = SpawnedCluster {
            nodes: Vec::new(),
            commands: Vec::new(),
            kafka: kafka.to_vec(),
            root,
        };
        for (index, (kafka, rpc)) in kafka.iter().zip(rpc).enumerate() {
            let number = index + 1;
            let log = File::create(cluster.root.path().join(format!("node-{number}.log")))?;
            let mut command = Command::new(&program);
            command
                .arg("start")
                .args(["--node-id", &number.to_string()])
                .arg("--data-dir")
                .arg(cluster.root.path().join(format!("node-{number}")))
                .args(["--listen", &kafka.to_string()])
                .args(["--rpc-listen", &rpc.to_string()])
                .args(["--admin-listen", "off"])
                // A Ctrl-C at the terminal is for this program, which then stops them.
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log);
            if nodes > 1 {
                command.args(["--seeds", &seeds]);
            }
            let child = command.spawn().map_err(|error| {
                CliError::failed(format!("cannot start {}: {error}", program.display()))
            })?;
            cluster.nodes.push(child);
            cluster.commands.push(command);
        }
        Ok(cluster)
    }

    /// Kills a node (counted from 0) as `kill -9` does.
    pub(super) fn kill(&mut self, node: usize) -> CliResult {
        let child = self
            .nodes
            .get_mut(node)
            .ok_or_else(|| CliError::failed("there is no such node"))?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Starts a killed node again, on its data.
    pub(super) fn restart(&mut self, node: usize) -> CliResult {
        let command = self.commands.get_mut(node);
        let command = command.ok_or_else(|| CliError::failed("there is no such node"))?;
        let child = command.spawn()?;
        if let Some(place) = self.nodes.get_mut(node) {
            *place = child;
        }
        Ok(())
    }

    /// Where clients begin.
    pub(super) fn brokers(&self) -> String {
        self.kafka
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// The nodes' processes.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(Child::id).collect()
    }

    /// An error with the end of its log if a node has ended.
    pub(super) fn check(&mut self) -> CliResult {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if let Some(status) = node.try_wait()? {
                let number = index + 1;
                let log = self.root.path().join(format!("node-{number}.log"));
                let log = std::fs::read_to_string(log).unwrap_or_default();
                let last = log.lines().last().unwrap_or("nothing").to_owned();
                return Err(CliError::failed(format!("node {number} ended: {status}"))
                    .fact("said", last)
                    .into());
            }
        }
        Ok(())
    }

    /// Ends the nodes as SIGTERM does.
    pub(super) async fn stop(mut self, env: &Env) {
        for node in &self.nodes {
            signal(node, rustix::process::Signal::TERM);
        }
        let deadline = env.now() + STOP_WAIT_MAX;
        for node in &mut self.nodes {
            while env.now() < deadline && matches!(node.try_wait(), Ok(None)) {
                env.sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

fn signal(node: &Child, signal: rustix::process::Signal) {
    let pid = i32::try_from(node.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It has ended by itself then, which is what we want.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

impl Drop for SpawnedCluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // An error means that it has ended already.
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}
