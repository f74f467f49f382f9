//! A harness that dies leaves nothing on the machine that `clean` does not remove.
#![allow(
    clippy::disallowed_methods,
    reason = "tests drive real processes with real threads"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use corduroy_jepsen::clean::{Made, start_ticks};

const NODES: usize = 3;
/// How long the harness may take to make everything.
const MAKE_WAIT_MAX: Duration = Duration::from_secs(120);
const SIGKILL: i32 = 9;

fn program(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corduroy-jepsen"));
    command
        .current_dir(dir)
        // The file in which a run notes what it makes lies there.
        .env("TMPDIR", dir)
        .env_remove("CORDUROY_BINARY")
        .env_remove("CORDUROY_PLANTED_BUG");
    command
}

/// The notes of the only run, if it has begun.
fn notes(dir: &Path) -> Option<PathBuf> {
    let mut runs = fs::read_dir(dir).unwrap().filter_map(Result::ok);
    let runs = runs.find(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("corduroy-jepsen-")
    })?;
    let mut files = fs::read_dir(runs.path()).unwrap().filter_map(Result::ok);
    files.next().map(|file| file.path())
}

fn noted(file: &Path) -> Vec<Made> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// What of a run is there, as the machine says it: not as the program remembers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Left {
    processes: Vec<u32>,
    namespaces: Vec<String>,
    mounts: Vec<String>,
    loops: Vec<String>,
    cgroups: Vec<PathBuf>,
    images: Vec<PathBuf>,
}

impl Left {
    /// Whether a run of [`NODES`] nodes has made everything that this looks at.
    fn is_complete(&self) -> bool {
        self.processes.len() == NODES
            && self.namespaces.len() >= NODES
            && self.mounts.len() >= NODES
            && self.loops.len() == NODES
            && self.cgroups.len() >= NODES
    }
}

/// What a `selftest` or `preflight` works in goes after a crash as well, and nothing of another name
/// does.
#[test]
fn clean_removes_the_scratch_directory_of_a_killed_harness() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("corduroy-selftest-5f");
    let other = dir.path().join("selftest-5f");
    for path in [&scratch, &other] {
        fs::create_dir_all(path.join("trial-1")).unwrap();
        fs::write(path.join("trial-1/history.jsonl"), "{}").unwrap();
    }
    // Whoever made this run's file, lives no more.
    assert!(program(dir.path()).arg("clean").status().unwrap().success());
    let runs = fs::read_dir(dir.path()).unwrap().flatten();
    let runs = runs.map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("corduroy-jepsen-")
    });
    let noted = [
        Made::Harness {
            pid: u32::MAX,
            start_ticks: 1,
        },
        Made::Scratch {
            path: scratch.clone(),
        },
        Made::Scratch {
            path: other.clone(),
        },
    ];
    let lines = noted.map(|made| serde_json::to_string(&made).unwrap() + "\n");
    fs::write(runs.unwrap().join("cdj00005f.jsonl"), lines.concat()).unwrap();
    assert!(program(dir.path()).arg("clean").status().unwrap().success());
    assert!(!scratch.exists());
    assert!(other.exists());
}

/// Ended, and its parent has not asked how: some machines' first process never does.
fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_none_or(|rest| rest.starts_with('Z'))
}

fn look(dir: &Path, prefix: &str, made: &[Made]) -> Left {
    let mut left = Left::default();
    for made in made {
        match made {
            Made::Process {
                pid,
                start_ticks: ticks,
            } if start_ticks(*pid) == Some(*ticks) && !is_zombie(*pid) => {
                left.processes.push(*pid);
            }
            Made::Cgroup { path } if path.exists() => left.cgroups.push(path.clone()),
            Made::Loop { image } if image.exists() => left.images.push(image.clone()),
            _ => {}
        }
    }
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) {
            left.namespaces.push(name);
        }
    }
    let place = dir.to_string_lossy();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let ours = mounts.lines().filter(|line| line.contains(&*place));
    left.mounts.extend(ours.map(str::to_owned));
    let loops = Command::new("losetup").arg("--list").output();
    let loops = loops.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let loops = loops.unwrap_or_default();
    let ours = loops.lines().filter(|line| line.contains(prefix));
    let ours = ours.filter(|line| !goes_by_itself(line));
    left.loops.extend(ours.map(str::to_owned));
    left
}

/// A loop device that is let go of and whose file is gone: the kernel frees it when the last copy of
/// its mount ends, and another run's nodes on this machine may have such a copy.
fn goes_by_itself(loop_line: &str) -> bool {
    let frees_itself = loop_line.split_ascii_whitespace().nth(3) == Some("1");
    frees_itself && loop_line.contains("(deleted)")
}

/// Ends the harness whatever becomes of the test, and lets it clean up.
struct Harness(Child, PathBuf);

impl Drop for Harness {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
        let _cleaned = program(&self.1).arg("clean").output();
    }
}

#[test]
fn clean_removes_what_a_killed_harness_left() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: namespaces, disks and control groups need root");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    // The kernel names mounts by their whole paths.
    let dir = fs::canonicalize(scratch.path()).unwrap();
    // Stands for a node: it never answers, so that the harness waits for it.
    let node = dir.join("corduroy");
    fs::write(&node, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&node, fs::Permissions::from_mode(0o755)).unwrap();
    let said = fs::File::create(dir.join("said")).unwrap();
    let child = program(&dir)
        .args(["run", "--out", "out", "--binary", "./corduroy"])
        .args(["--faults", "power-loss,freeze,loss"])
        .stdout(Stdio::null())
        .stderr(said)
        .spawn()
        .unwrap();
    let mut harness = Harness(child, dir.clone());
    let deadline = Instant::now() + MAKE_WAIT_MAX;
    let (file, prefix, made, before) = loop {
        if let Some(status) = harness.0.try_wait().unwrap() {
            let said = fs::read_to_string(dir.join("said")).unwrap();
            assert_eq!(status.code(), Some(2), "{said}");
            println!("skipped: not all of it is possible here: {said}");
            return;
        }
        let found = notes(&dir).map(|file| {
            let prefix = file.file_stem().unwrap().to_string_lossy().into_owned();
            let made = noted(&file);
            let there = look(&dir, &prefix, &made);
            (file, prefix, made, there)
        });
        // The last node's control group is made after its process was noted.
        if let Some(found) = found.clone().filter(|found| found.3.is_complete()) {
            break found;
        }
        assert!(
            Instant::now() < deadline,
            "the harness does not make all of it: {found:?}"
        );
        std::thread::yield_now();
    };

    // What belongs to a run that goes on is left alone.
    let output = program(&dir).arg("clean").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("left alone"), "{said}");
    assert_eq!(look(&dir, &prefix, &made), before);

    harness.0.kill().unwrap();
    assert_eq!(harness.0.wait().unwrap().signal(), Some(SIGKILL));
    let orphaned = look(&dir, &prefix, &made);
    assert_eq!(orphaned.processes, before.processes, "they outlive it");
    let output = program(&dir).arg("clean").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(said.contains("what it left is gone"), "{said}");
    assert_eq!(look(&dir, &prefix, &made), Left::default());
    assert!(!file.exists());
}
