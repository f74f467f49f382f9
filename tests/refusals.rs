//! What a node refuses to start with, said so that a person can act on it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use support::{Cluster, alone, corduroy, free_ports, wait_until};

/// Starts a node that is expected to end by itself; kills it if it does not.
fn start(args: &[&str]) -> Output {
    let mut child = Command::new(corduroy())
        .arg("start")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut ended = false;
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_until("the node refuses to start", || {
            ended = child.try_wait().expect("a child").is_some();
            ended
        });
    }));
    if !ended {
        let _ended = child.kill();
    }
    let output = child.wait_with_output().expect("it ended");
    if let Err(panic) = waited {
        eprintln!("{}", String::from_utf8_lossy(&output.stderr));
        std::panic::resume_unwind(panic);
    }
    output
}

fn check(name: &str, output: &Output, code: i32, wanted: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{name}: exit code; it said:\n{stderr}"
    );
    for part in wanted {
        assert!(stderr.contains(part), "{name}: no {part:?} in:\n{stderr}");
    }
    assert!(!stderr.contains("panicked"), "{name}: {stderr}");
}

fn node_args<'a>(dir: &'a Path, addresses: &'a [String; 3]) -> Vec<&'a str> {
    vec![
        "--data-dir",
        dir.to_str().expect("UTF-8"),
        "--listen",
        &addresses[0],
        "--rpc-listen",
        &addresses[1],
        "--admin-listen",
        &addresses[2],
        "--shards",
        "1",
    ]
}

fn addresses() -> [String; 3] {
    let ports = free_ports(3);
    [0, 1, 2].map(|i| format!("127.0.0.1:{}", ports[i]))
}

#[test]
fn a_data_directory_belongs_to_one_node_and_one_process() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    let dir = cluster.nodes[0].data_dir.clone();
    let addresses = addresses();
    let mut args = node_args(&dir, &addresses);
    check(
        "a directory in use",
        &start(&args),
        1,
        &["in use by another process", "--data-dir"],
    );
    cluster.nodes[0].terminate();
    args.extend(["--node-id", "2"]);
    check(
        "the directory of another node",
        &start(&args),
        1,
        &[
            "cannot start node 2: the data directory belongs to node 1",
            "node.id = 1",
            "--node-id 2",
            "start with --node-id 1, or give this node its own --data-dir",
        ],
    );
}

#[test]
fn a_port_that_is_taken_is_named_with_its_flag() {
    let dir = tempfile::tempdir().expect("a directory");
    for (index, flag) in ["--listen", "--rpc-listen", "--admin-listen"]
        .iter()
        .enumerate()
    {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut addresses = addresses();
        addresses[index] = taken.local_addr().expect("bound").to_string();
        let data_dir = dir.path().join(index.to_string());
        let output = start(&node_args(&data_dir, &addresses));
        check(
            flag,
            &output,
            1,
            &["cannot listen on", &addresses[index], flag],
        );
    }
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let addresses = addresses();
    let mut args = node_args(dir.path(), &addresses);
    args.extend(["--set", "raft.hibernat.after.ms=5"]);
    check(
        "an unknown key",
        &start(&args),
        2,
        &[
            "unknown configuration key \"raft.hibernat.after.ms\"",
            "raft.hibernate.after.ms",
        ],
    );
    let mut args = node_args(dir.path(), &addresses);
    args.extend(["--set", "raft.hibernate.after.ms=soon"]);
    check(
        "a value that is none",
        &start(&args),
        2,
        &["raft.hibernate.after.ms", "soon"],
    );
    let mut args = node_args(dir.path(), &addresses);
    args.extend(["--set", "novalue"]);
    check(
        "a setting without a value",
        &start(&args),
        2,
        &["novalue", "key=value"],
    );
}

#[test]
fn seeds_that_disagree_form_no_cluster() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (addresses(), addresses());
    let third = format!("127.0.0.1:{}", free_ports(1)[0]);
    let agreed = format!("{},{}", one[1], two[1]);
    let other = format!("{},{},{third}", one[1], two[1]);
    let (dir_one, dir_two) = (dir.path().join("1"), dir.path().join("2"));
    let outputs = std::thread::scope(|scope| {
        let starts = [
            (&dir_one, &one, &agreed, "1"),
            (&dir_two, &two, &other, "2"),
        ]
        .map(|(dir, addresses, seeds, id)| {
            scope.spawn(move || {
                let mut args = node_args(dir, addresses);
                args.extend(["--seeds", seeds, "--node-id", id]);
                start(&args)
            })
        });
        starts.map(|start| start.join().expect("it refused"))
    });
    // Whoever asks first names both lists; the other meets a seed that is gone or says the same.
    for output in &outputs {
        check(
            "a seed",
            output,
            1,
            &["the seeds disagree", &agreed, &other],
        );
    }
}
