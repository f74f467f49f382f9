//! What somebody sees who has just begun: a node without flags, the cluster's own words, where
//! settings come from, a node that comes later, and one that starts again with other shards.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use serde_json::{Value, json};
use support::wire::{batch, values};
use support::{Cluster, alone, api_versions_request, corduroy, round_trip, wait_until};

const ANSWER: Duration = Duration::from_secs(10);

/// A child that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Already ended is what we want.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// The addresses come by the environment, because the default ones may be taken here; that they are
/// the default is `config::node`'s own test.
#[test]
fn a_node_without_flags_prints_what_it_chose() {
    let _alone = alone();
    let scratch = tempfile::tempdir().expect("a directory");
    let child = Command::new(corduroy())
        .arg("start")
        .current_dir(scratch.path())
        .env("CORDUROY_LISTEN", "127.0.0.1:0")
        .env("CORDUROY_RPC_LISTEN", "127.0.0.1:0")
        .env("CORDUROY_ADMIN_LISTEN", "127.0.0.1:0")
        .env_remove("CORDUROY_BINARY")
        .env_remove("CORDUROY_TEST_ROUNDS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let mut child = Killed(child);
    let stdout = child.0.stdout.take().expect("piped");
    let lines: Vec<String> = BufReader::new(stdout)
        .lines()
        .take(6)
        .map(|line| line.expect("UTF-8"))
        .collect();
    let cores = std::thread::available_parallelism().expect("cores").get();
    let plural = if cores == 1 { "" } else { "s" };
    let said = |line: usize, label: &str| {
        let rest = lines[line].trim_start().strip_prefix(label);
        let rest = rest.unwrap_or_else(|| panic!("no {label} in {lines:#?}"));
        rest.trim_start().to_owned()
    };
    assert_eq!(
        lines[0],
        format!("corduroy {}, node 1, is serving", env!("CARGO_PKG_VERSION"))
    );
    let kafka = said(1, "kafka");
    for address in [&kafka, &said(2, "rpc")] {
        let port = address.strip_prefix("127.0.0.1:").expect("loopback");
        assert_ne!(port.parse::<u16>().expect("a port"), 0, "the real one");
    }
    assert!(said(3, "admin").ends_with("(/metrics, /health/cluster)"));
    assert_eq!(
        said(4, "data"),
        format!("./corduroy-data  ({cores} shard{plural})")
    );
    assert!(scratch.path().join("corduroy-data/node.id").exists());
    // The last line is a command to paste.
    let line = said(5, "try");
    let words: Vec<&str> = line.split_whitespace().collect();
    let pasted = [
        "echo",
        "hi",
        "|",
        "corduroy",
        "produce",
        "greetings",
        "--brokers",
        &kafka,
    ];
    assert_eq!(words, pasted);
    let consumed = |from: &[&str]| {
        let output = Command::new(corduroy())
            .args(from)
            .args(["--brokers", &kafka])
            .stdin(Stdio::null())
            .output();
        output.expect("it runs")
    };
    let script = format!(
        "echo hi | {} produce greetings --brokers {kafka}",
        corduroy().display()
    );
    let shell = Command::new("sh").args(["-c", &script]).status();
    assert!(shell.expect("a shell").success());
    let read = consumed(&["consume", "greetings", "--exit"]);
    assert_eq!(String::from_utf8_lossy(&read.stdout), "hi\n");
}

/// One field of each row.
fn column<'a>(rows: &'a Value, name: &str) -> Vec<&'a Value> {
    let rows = rows.as_array().expect("a list");
    rows.iter().map(|row| &row[name]).collect()
}

fn json_of(cluster: &Cluster, args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
    serde_json::from_str(&cluster.must(&args)).expect("JSON")
}

/// The whole answer, so that a field that changes its name or goes away is seen.
#[test]
fn the_cluster_tells_about_itself_in_the_same_words_every_time() {
    let _alone = alone();
    let cluster = Cluster::start(3);
    cluster.create_topic("told", 3, &[]);
    let status = json_of(&cluster, &["cluster", "status"]);
    let controller = status["controller"].as_i64().expect("a controller");
    let leaders: Vec<i64> = (1..=3)
        .map(|id| {
            let led = (0..3).filter(|partition| {
                let found = cluster.partition("told", *partition).expect("known");
                i64::from(found.leader) == id
            });
            i64::try_from(led.count()).expect("few")
        })
        .collect();
    let nodes: Vec<Value> = (1..=3usize)
        .map(|id| {
            let node = &cluster.nodes[id - 1];
            json!({
                "node": id,
                "address": node.kafka.to_string(),
                "rack": null,
                "controller": controller == i64::try_from(id).expect("small"),
                "admin": node.admin.to_string(),
                "reachable": true,
                "down_seconds": null,
                "leaders": leaders[id - 1],
                "replicas": 3,
            })
        })
        .collect();
    assert_eq!(json_of(&cluster, &["cluster", "nodes"]), json!(nodes));
    let cluster_id = status["cluster_id"].as_str().expect("an id").to_owned();
    assert!(!cluster_id.is_empty());
    assert_eq!(
        status,
        json!({
            "cluster_id": cluster_id,
            "controller": controller,
            "health": {
                "healthy": true, "reasons": [], "nodes": 3, "nodes_unreachable": 0,
                "topics": 1, "partitions": 3,
                "leaderless": [], "under_replicated": [],
            },
            "nodes": nodes,
        })
    );
    let text = cluster.must(&["cluster", "status"]);
    let mut lines = text.lines();
    let mut next = || lines.next().expect("a line").to_owned();
    assert_eq!(next(), format!("cluster     {cluster_id}"));
    assert_eq!(next(), format!("controller  node {controller}"));
    assert_eq!(next(), "healthy: 3 nodes, 1 topic, 3 partitions");
    assert_eq!(next(), "");
    let heads: Vec<String> = next().split_whitespace().map(str::to_owned).collect();
    assert_eq!(
        heads,
        [
            "NODE", "ADDRESS", "RACK", "STATE", "LEADERS", "REPLICAS", "ADMIN"
        ]
    );
    for (id, node) in (1..).zip(&cluster.nodes) {
        let row = next();
        let row: Vec<&str> = row.split_whitespace().collect();
        let state = if controller == id { "controller" } else { "up" };
        let leaders = leaders[usize::try_from(id - 1).expect("small")].to_string();
        assert_eq!(
            row,
            [
                id.to_string().as_str(),
                &node.kafka.to_string(),
                "-",
                state,
                &leaders,
                "3",
                &node.admin.to_string()
            ]
        );
    }
    // What is described ends where the log ends.
    let leader = cluster.leader("told", 0);
    let sent = batch(None, &["a", "b"]);
    let produced = cluster.wire(leader).produce(("told", 0), -1, ANSWER, &sent);
    assert_eq!(produced.expect("answered").error, ErrorCode::None);
    let described = json_of(&cluster, &["topic", "describe", "told"]);
    let partitions = &described["partitions"];
    assert_eq!(column(partitions, "log_end_offset"), [2, 0, 0]);
    assert_eq!(column(partitions, "high_watermark"), [2, 0, 0]);
    assert_eq!(column(partitions, "log_start_offset"), [0, 0, 0]);
}

#[test]
fn each_setting_is_shown_with_the_place_that_it_comes_from() {
    let _alone = alone();
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("corduroy.toml");
    let text =
        "[node]\nlisten = \"127.0.0.1:1001\"\nshards = 7\n[cluster]\n\"num.partitions\" = 9\n";
    std::fs::write(&file, text).expect("written");
    let output = Command::new(corduroy())
        .args(["config", "print", "-o", "json", "--shards", "3", "--config"])
        .arg(&file)
        .env("CORDUROY_LISTEN", "127.0.0.1:1002")
        .env_remove("CORDUROY_BINARY")
        .env_remove("CORDUROY_TEST_ROUNDS")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = rows.as_array().expect("a list");
    for (name, value, source) in [
        ("shards", json!("3"), "flag"),
        ("listen", json!("127.0.0.1:1002"), "environment"),
        ("num.partitions", json!("9"), "file"),
        ("rpc.listen", json!("127.0.0.1:33145"), "default"),
        ("broker.rack", json!(null), "default"),
    ] {
        let row = rows.iter().find(|row| row["name"] == name);
        let want = json!({"name": name, "value": value, "source": source});
        assert_eq!(row, Some(&want));
    }
    let wrong = Command::new(corduroy())
        .args(["config", "print", "--set", "shard=3"])
        .output()
        .expect("it runs");
    assert_eq!(wrong.status.code(), Some(2));
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.contains("did you mean shards?"), "{said}");
}

#[test]
fn shells_are_told_our_commands() {
    for (shell, wanted) in [
        ("bash", "complete -F _corduroy"),
        ("zsh", "#compdef corduroy"),
        ("fish", "complete -c corduroy"),
    ] {
        let output = Command::new(corduroy())
            .args(["completions", shell])
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{shell}: {output:?}");
        let script = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(script.contains(wanted), "{shell}:\n{script}");
        for command in ["produce", "topic", "completions"] {
            assert!(script.contains(command), "{shell} knows no {command}");
        }
    }
    let unknown = Command::new(corduroy())
        .args(["completions", "tcsh"])
        .output()
        .expect("it runs");
    assert_eq!(unknown.status.code(), Some(2));
}

/// It is not among the seeds' list of founders, and takes its part all the same: it holds replicas,
/// leads one, and has on its own disk what was written.
#[test]
fn a_node_that_comes_later_gets_replicas_of_new_topics() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let id = cluster.add_node();
    cluster.node(id).start();
    cluster.node(id).wait_ready();
    let topic = "spread";
    cluster.must(&["topic", "create", topic, "-p", "8", "-r", "3"]);
    let mut held = Vec::new();
    wait_until("every replica is in sync", || {
        held.clear();
        (0..8usize).all(|partition| {
            let Some(found) = cluster.partition(topic, partition) else {
                return false;
            };
            if found.replicas.contains(&id) {
                held.push(partition);
            }
            let replicas: BTreeSet<i32> = found.replicas.iter().copied().collect();
            found.leader > 0 && found.isr.iter().copied().collect::<BTreeSet<_>>() == replicas
        })
    });
    // 24 replicas on four nodes, by a shift.
    assert_eq!(held.len(), 6, "its share: {held:?}");
    let partition = held[0];
    let number = i32::try_from(partition).expect("small");
    wait_until("it leads", || {
        let place = format!("{topic}/{partition}");
        let _retried = cluster.run(&["partition", "lead", &place, &id.to_string()]);
        cluster.leader(topic, partition) == id
    });
    let mut wire = cluster.wire(id);
    let sent = batch(None, &["by the fourth"]);
    let produced = wire.produce((topic, number), -1, ANSWER, &sent);
    assert_eq!(produced.expect("answered").error, ErrorCode::None);
    let read = wire.fetch(topic, number, 0, ANSWER).expect("answered");
    assert_eq!(values(&read), [(0, "by the fourth".to_owned())]);
}

#[test]
fn a_node_that_waits_for_its_seeds_tells_which() {
    let _alone = alone();
    let mut cluster = Cluster::plan(3, &[]);
    cluster.node(1).start();
    cluster.node(3).start();
    let silent = cluster.nodes[1].rpc;
    let waits = format!("to form the cluster it waits for seeds that do not answer ({silent})");
    wait_until("both say whom they wait for", || {
        [0, 2].iter().all(|place| {
            let ready = cluster.nodes[*place].admin_get("/health/ready");
            ready.is_some_and(|(code, body)| code == 503 && body.contains(&waits))
        })
    });
    let output = Command::new(corduroy())
        .args(["topic", "list", "--brokers"])
        .arg(cluster.nodes[0].kafka.to_string())
        .output()
        .expect("it runs");
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(words.contains("the node does not serve yet"), "{words}");
    assert!(words.contains(&waits), "{words}");
    // Anybody else sees the connection close, as before.
    let stranger = TcpStream::connect(cluster.nodes[0].kafka);
    let mut stranger = stranger.expect("it listens");
    let answer = round_trip(&mut stranger, &api_versions_request(1));
    assert!(answer.is_err(), "{answer:?}");

    cluster.node(2).start();
    cluster.must(&["cluster", "health", "--wait", "60s", "--nodes", "3"]);
}

/// Nobody who only asks what a script does wants it to install things.
#[test]
fn scripts_that_are_asked_for_help_do_nothing_else() {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let scripts = [
        "run",
        "run-rust",
        "faults",
        "groups",
        "kafka-python-suite",
        "librdkafka-groups",
    ];
    for name in scripts {
        let build = tempfile::tempdir().expect("a directory");
        for ask in ["--help", "-h"] {
            let output = Command::new(clients.join(name))
                .arg(ask)
                .env("CARGO_TARGET_DIR", build.path())
                .output()
                .expect("it runs");
            let words = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{name}: {output:?}");
            assert!(
                words.contains(&format!("  tests/clients/{name} ")),
                "{name}: {words}"
            );
        }
        let made = std::fs::read_dir(build.path()).expect("a directory");
        assert_eq!(made.count(), 0, "{name} has built something");
    }
}

const PARTITIONS: i32 = 7;

/// A changed number of shards moves partitions to other threads and other journals: everything is
/// still there, also after kill -9, and with more shards than the machine has cores.
#[test]
fn a_node_starts_again_with_other_shards_and_has_everything() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    let topic = "moved";
    cluster.create_topic(topic, 7, &[]);
    let cores = std::thread::available_parallelism().expect("cores").get();
    let many = u16::try_from(cores + 3).expect("few").max(5);
    for (written, shards) in (0i64..).zip([1, many, 2]) {
        let mut wire = cluster.wire(1);
        for partition in 0..PARTITIONS {
            let value = format!("{partition}.{written}");
            let sent = batch(None, &[&value]);
            let produced = wire.produce((topic, partition), -1, ANSWER, &sent);
            let produced = produced.expect("answered");
            assert_eq!(
                (produced.error, produced.base_offset),
                (ErrorCode::None, written)
            );
        }
        cluster.nodes[0].kill();
        cluster.nodes[0].shards = shards;
        cluster.nodes[0].start();
        cluster.wait_healthy();
        let said = format!("({shards} shard");
        assert!(
            cluster.nodes[0].log().contains(&said),
            "it runs {shards} shards"
        );
        for partition in 0..PARTITIONS {
            let expected: Vec<(i64, String)> = (0..=written)
                .map(|n| (n, format!("{partition}.{n}")))
                .collect();
            let mut found = Vec::new();
            wait_until("the partition is read back", || {
                let read = cluster.wire(1).fetch(topic, partition, 0, ANSWER);
                let read = read.expect("answered");
                found = values(&read);
                read.error == ErrorCode::None
            });
            assert_eq!(found, expected, "{shards} shards, partition {partition}");
        }
    }
}
