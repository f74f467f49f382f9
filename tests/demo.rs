//! `corduroy demo` leaves nothing behind, whenever it is told to stop.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

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
