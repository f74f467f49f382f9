//! The program as a script calls it: what it says, and its exit status.
#![allow(
    clippy::disallowed_methods,
    reason = "tests drive real processes with real threads"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use corduroy_jepsen::history::{Event, HistoryWriter, Mark};
use corduroy_jepsen::report::Results;
use corduroy_jepsen::selftest;
use corduroy_jepsen::verdict::{EXIT_COVERAGE, EXIT_HARNESS, EXIT_PASS, EXIT_VIOLATION};

/// Runs the program in `dir`, without what a user's environment may say to it.
fn program(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_corduroy-jepsen"))
        .args(args)
        .current_dir(dir)
        .env("TMPDIR", dir)
        .env_remove("CORDUROY_BINARY")
        .env_remove("CORDUROY_PLANTED_BUG")
        .env_remove("CORDUROY_PLANTED_BINARY")
        .output()
        .expect("the program starts")
}

fn ends(dir: &Path, args: &[&str], status: u8) -> String {
    let output = program(dir, args);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        output.status.code(),
        Some(i32::from(status)),
        "{args:?}: {said}"
    );
    said
}

/// A program that stands for a node.
fn node(dir: &Path, script: &str) -> PathBuf {
    let path = dir.join("corduroy");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// 2 is for scripts that try again longer: a mistyped call is no such thing.
#[test]
fn a_wrong_call_is_not_too_little_coverage() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    assert!(ends(at, &["run", "--faults", "kil"], EXIT_HARNESS).contains("`kil` is no fault"));
    ends(at, &["run", "--no-such-option"], EXIT_HARNESS);
    ends(at, &["run", "--time", "1"], EXIT_HARNESS);
    ends(at, &[], EXIT_HARNESS);
    ends(at, &["check", "nowhere"], EXIT_HARNESS);
    ends(at, &["--help"], EXIT_PASS);
    ends(at, &["--version"], EXIT_PASS);
}

/// librdkafka has no calls for what some workloads do: a run that says "librdkafka" is librdkafka's.
/// (A build without it refuses every one.)
#[test]
fn another_client_is_not_named_where_ours_would_work() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    for workload in ["group", "list-append", "register", "fencing"] {
        let args = ["run", "--client", "librdkafka", "--workload", workload];
        let said = ends(at, &args, EXIT_HARNESS);
        assert!(
            said.contains(&format!("the workload {workload} ")),
            "{said}"
        );
        assert!(said.contains("queue, topics and durability"), "{said}");
    }
}

#[test]
fn a_bug_needs_a_build_that_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let healthy = node(at, "echo corduroy 0.1.0");
    let binary = healthy.to_str().unwrap();
    let run = |bug| ["run", "--binary", binary, "--bug", bug, "--out", "out"];
    let said = ends(at, &run("lease-read"), EXIT_COVERAGE);
    assert!(said.contains("is a build without planted bugs"), "{said}");
    assert!(said.contains("--features planted-bugs"), "{said}");
    let nowhere = ["run", "--binary", "nowhere", "--bug", "lease-read"];
    let said = ends(at, &nowhere, EXIT_COVERAGE);
    assert!(said.contains("no program at nowhere"), "{said}");
    let said = ends(at, &run("no-such-bug"), EXIT_HARNESS);
    assert!(said.contains("no planted bug `no-such-bug`"), "{said}");
    assert!(said.contains("lease-read"), "{said}");
    assert!(!at.join("out").exists(), "nothing was begun");
}

/// The harness keeps its own environment from the nodes, but for this.
#[test]
fn the_bug_reaches_the_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let script = "case $1 in --version) echo corduroy 0.1.0+planted-bugs;; \
                  *) echo bug=$CORDUROY_PLANTED_BUG; exit 7;; esac";
    let planted = node(at, script);
    let binary = planted.to_str().unwrap();
    let args = [
        "run",
        "--binary",
        binary,
        "--bug",
        "lease-read",
        "--out",
        "out",
        "--faults",
        "none",
        "--topology",
        "loopback",
    ];
    let said = ends(at, &args, EXIT_HARNESS);
    assert!(said.contains("with the planted bug lease-read"), "{said}");
    assert!(said.contains("did not form a cluster"), "{said}");
    assert!(said.contains("bug=lease-read"), "its last words: {said}");
    let runs = fs::read_dir(at).unwrap().filter_map(Result::ok);
    let runs: Vec<_> = runs
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("corduroy-jepsen-")
        })
        .flat_map(|entry| fs::read_dir(entry.path()).unwrap())
        .collect();
    assert!(runs.is_empty(), "everything it made is gone: {runs:?}");
}

/// Whoever asks whether the checker can be trusted gets no "yes" from half of the answer.
#[test]
fn a_selftest_without_planted_bugs_is_no_pass() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let args = ["selftest", "--planted-binary", "nowhere"];
    let said = ends(at, &args, EXIT_COVERAGE);
    assert!(said.contains("planted bugs was hunted"), "{said}");
    assert!(said.contains("cargo build --profile planted"), "{said}");
    let said = ends(at, &["selftest", "--histories-only"], EXIT_PASS);
    assert!(said.contains("judged exactly"), "{said}");
    assert!(said.contains("no planted bug was hunted"), "{said}");
    ends(at, &["selftest", "--bug", "no-such-bug"], EXIT_HARNESS);
    node(at, "echo corduroy 0.1.0");
    let args = ["selftest", "--planted-binary", "corduroy"];
    let said = ends(at, &args, EXIT_COVERAGE);
    assert!(said.contains("without planted bugs"), "{said}");
}

#[test]
fn a_breakdown_is_found_again_from_the_history_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let cases = selftest::cases().unwrap();
    let case = cases.iter().find(|case| case.name == "enough").unwrap();
    let path = at.join("history.jsonl");
    let mut writer = HistoryWriter::create(&path, &case.history.header).unwrap();
    for event in case.history.events() {
        writer.append(&event).unwrap();
    }
    writer.flush().unwrap();
    let said = ends(at, &["check", "."], EXIT_PASS);
    assert!(said.contains("PASS"), "{said}");
    let mark = Mark::Breakdown {
        at: case.history.end(),
        what: "node 3 ended by itself".to_owned(),
    };
    writer.append(&Event::Mark(mark)).unwrap();
    writer.flush().unwrap();
    let said = ends(at, &["check", ".", "--out", "again"], EXIT_VIOLATION);
    assert!(said.contains("breakdown: node 3 ended by itself"), "{said}");
    assert!(said.contains("VIOLATION: breakdown x1"), "{said}");
    let results = fs::read(at.join("again/results.json")).unwrap();
    let results: Results = serde_json::from_slice(&results).unwrap();
    assert_eq!(results.exit_code, EXIT_VIOLATION);
}
