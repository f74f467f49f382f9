//! `corduroy demo`: what a newcomer types and reads, its verdict, and that it leaves nothing behind.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use support::{alone, corduroy, wait_until};

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).expect("lists").next().is_none()
}

#[test]
fn an_interrupted_demo_leaves_no_directory() {
    let _alone = alone();
    for args in [&["demo"][..], &["demo", "--for", "60s"][..]] {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut child = Command::new(corduroy())
            .args(args)
            .env("TMPDIR", scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        // The nodes begin to write; they have not met yet.
        wait_until("the nodes have a directory", || {
            std::fs::read_dir(scratch.path())
                .expect("lists")
                .flatten()
                .any(|entry| entry.path().join("node-1").exists())
        });
        let interrupted = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(interrupted.success());
        let mut code = None;
        wait_until("the demo ends", || {
            match child.try_wait().expect("a child") {
                Some(status) => {
                    code = status.code();
                    true
                }
                None => false,
            }
        });
        assert!(code.is_some(), "{args:?}: it ended by itself");
        assert!(is_empty(scratch.path()), "{args:?}: nothing is left");
    }
}

/// A demo at the keyboard: its lines as they come.
struct Played {
    child: Child,
    keyboard: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    said: Vec<String>,
    _scratch: tempfile::TempDir,
}

impl Played {
    fn start() -> Played {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut child = Command::new(corduroy())
            .args(["demo", "--rate", "200"])
            .env("TMPDIR", scratch.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let keyboard = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Played {
            child,
            keyboard,
            lines,
            said: Vec::new(),
            _scratch: scratch,
        }
    }

    /// Reads until a line has `text` in it; returns that line.
    fn until(&mut self, text: &str) -> String {
        for line in self.lines.by_ref() {
            let line = line.expect("UTF-8");
            self.said.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
        panic!("{text:?} was never said: {:#?}", self.said);
    }

    fn type_in(&mut self, line: &str) {
        writeln!(self.keyboard, "{line}").expect("the demo reads");
    }

    /// The rest of what it says, and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        let rest: Vec<String> = self
            .lines
            .by_ref()
            .map(|line| line.expect("UTF-8"))
            .collect();
        let status = self.child.wait().expect("it ends");
        (rest.join("\n"), status.code())
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        // Already ended is what we want.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

#[test]
fn a_node_is_killed_and_healed_by_typing_and_nothing_is_lost() {
    let _alone = alone();
    let mut demo = Played::start();
    let first = demo.until("first record readable");
    assert!(first.trim_end().ends_with("s after the start"), "{first}");
    demo.until("Things to try");
    demo.until("acknowledged, 0 failed");
    demo.type_in("kill 9");
    demo.until("no running node `9`; nodes are 1 to 3");
    demo.type_in("kill 2");
    demo.until("killed node 2 (");
    demo.type_in("status");
    demo.until("down: 2");
    demo.type_in("kill 2");
    demo.until("no running node `2`");
    demo.type_in("heal");
    demo.until("started node 2 again, it serves after ");
    demo.type_in("heal");
    demo.until("nothing to heal: every node is up");
    demo.type_in("dance");
    demo.until("commands: kill N, heal, status, quit");
    demo.type_in("quit");
    demo.until("verdict: passed");
    let (rest, code) = demo.end();
    assert!(
        rest.contains("0 lost, 0 duplicated, 0 out of order"),
        "{rest}"
    );
    assert_eq!(code, Some(0));
}

/// Somebody writes into the demo's topic what the demo never wrote: its promise is not kept, and
/// scripts learn of it by the exit code.
#[test]
fn a_broken_promise_is_told_and_exits_with_1() {
    let _alone = alone();
    let mut demo = Played::start();
    let brokers = demo.until("brokers");
    let brokers = brokers
        .split_whitespace()
        .nth(1)
        .expect("addresses")
        .to_owned();
    demo.until("Things to try");
    let script = format!(
        "echo intruder | {} produce orders --brokers {brokers}",
        corduroy().display()
    );
    let written = Command::new("sh").args(["-c", &script]).status();
    assert!(written.expect("a shell").success());
    demo.type_in("quit");
    demo.until("verdict: FAILED");
    let (rest, code) = demo.end();
    assert!(rest.contains("1 impossible"), "{rest}");
    assert!(rest.contains("impossible: foreign record at "), "{rest}");
    assert_eq!(code, Some(1));
}
