//! What the command line says to the person who waits, asks unclearly or sets what has no effect.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive real processes with real time"
)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use corduroy_protocol::messages::create_topics_request::CreatableTopic;
use corduroy_protocol::messages::{CreateTopicsRequest, TopicName};
use corduroy_protocol::{ErrorCode, Request, Response, StrBytes};
use support::{Cluster, alone, corduroy, wait_until};

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_producer_that_waits_says_why() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    // One replica, two are needed: no write with acks=all can succeed.
    cluster.create_topic("stuck", 1, &["min.insync.replicas=2"]);
    let mut child = Command::new(corduroy())
        .args(["produce", "stuck", "--brokers", &cluster.bootstrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"hello\n").expect("sent");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let line = lines.next().expect("it says something").expect("UTF-8");
    assert!(line.starts_with("still trying: "), "{line}");
    assert!(line.contains("NOT_ENOUGH_REPLICAS"), "{line}");
    assert!(line.ends_with("(Ctrl-C to stop)"), "{line}");
    // The next words are the end's: once per cause.
    cluster.must(&["topic", "alter", "stuck", "-c", "min.insync.replicas=1"]);
    drop(stdin);
    let rest: Vec<String> = lines.map(|line| line.expect("UTF-8")).collect();
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert!(rest[0].starts_with("1 record acknowledged"), "{rest:?}");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn partitions_are_added_up_to_a_total_or_by_a_number_and_never_by_guess() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("grows", 2, &[]);
    let unclear = cluster.run(&["topic", "add-partitions", "grows", "8"]);
    assert_eq!(unclear.status.code(), Some(2));
    let words = said(&unclear);
    assert!(
        words.contains("--to 8") && words.contains("--by 8"),
        "{words}"
    );
    let to = cluster.run(&["topic", "add-partitions", "grows", "--to", "4"]);
    assert!(
        said(&to).contains("has 4 partitions now (2 before)"),
        "{to:?}"
    );
    let by = cluster.run(&["topic", "add-partitions", "grows", "--by", "3"]);
    assert!(
        said(&by).contains("has 7 partitions now (4 before)"),
        "{by:?}"
    );
}

#[test]
fn a_setting_without_effect_is_said_to_be_one() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let idle = "unclean.leader.election.enable=true";
    let created = cluster.run(&[
        "topic",
        "create",
        "warned",
        "-c",
        idle,
        "-c",
        "retention.ms=1000",
    ]);
    let warning = "warning: unclean.leader.election.enable is stored and described, and Corduroy \
                   does not act on it yet";
    assert!(created.status.success());
    assert!(said(&created).contains(warning), "{created:?}");
    assert!(!said(&created).contains("retention.ms"), "{created:?}");
    let altered = cluster.run(&["topic", "alter", "warned", "-c", idle]);
    assert!(said(&altered).contains(warning), "{altered:?}");
}

#[test]
fn a_dump_of_a_running_node_tells_what_it_cannot_see() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    cluster.create_topic("dumped", 1, &[]);
    let written = cluster.run_with_input(&["produce", "dumped"], b"one\ntwo\n");
    assert!(written.status.success(), "{written:?}");
    let dir = cluster.nodes[0].data_dir.display().to_string();
    let running = cluster.run(&["debug", "log-dump", &dir]);
    assert!(
        said(&running).contains("a node is running on"),
        "{running:?}"
    );
    let shown = String::from_utf8_lossy(&running.stdout).into_owned();
    assert!(shown.contains(" more in the journal: "), "{shown}");
    cluster.nodes[0].terminate();
    let stopped = cluster.run(&["debug", "log-dump", &dir, "--verify"]);
    assert!(
        stopped.status.success() && said(&stopped).is_empty(),
        "{stopped:?}"
    );
    let shown = String::from_utf8_lossy(&stopped.stdout).into_owned();
    assert!(!shown.contains(" more in the journal: "), "{shown}");
    assert!(shown.contains("batch"), "{shown}");
}

#[test]
fn cluster_settings_are_set_listed_and_taken_back() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let key = "group.initial.rebalance.delay.ms";
    cluster.must(&["config", "set", &format!("{key}=5")]);
    let listed = cluster.must(&["config", "list"]);
    let row: Vec<&str> = listed
        .lines()
        .find(|line| line.starts_with(key))
        .expect("the setting is listed")
        .split_whitespace()
        .collect();
    assert_eq!(row, [key, "5", "cluster"]);
    let wrong = cluster.run(&["config", "set", "group.initial.rebalance.delay=5"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        said(&wrong).contains(key),
        "it names the nearest: {}",
        said(&wrong)
    );
    cluster.must(&["config", "reset", key]);
    assert!(!cluster.must(&["config", "list"]).contains(key));
    assert!(cluster.must(&["config", "list", "--all"]).contains(key));
}

/// A command's standard output as JSON.
fn json(output: &str) -> serde_json::Value {
    serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// What `group describe` says of a group.
fn described(cluster: &Cluster, group: &str) -> serde_json::Value {
    json(&cluster.must(&["group", "describe", group, "-o", "json"]))
}

#[test]
fn a_group_is_shown_moved_and_deleted_and_only_without_members() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.must(&["config", "set", "group.initial.rebalance.delay.ms=0"]);
    cluster.create_topic("orders", 1, &[]);
    for records in [&b"0\n1\n2\n3\n4\n"[..], &b"5\n6\n7\n8\n9\n"[..]] {
        let produced = cluster.run_with_input(&["produce", "orders"], records);
        assert!(produced.status.success(), "{produced:?}");
    }
    let times: Vec<i64> = cluster
        .must(&["consume", "orders", "--exit", "-f", "%T\\n"])
        .lines()
        .map(|line| line.parse().expect("milliseconds"))
        .collect();
    let later = times.iter().position(|time| *time >= times[5]);
    let later = i64::try_from(later.expect("it is there")).expect("few");

    let printed = cluster.must(&["consume", "orders", "-g", "billing", "-n", "4"]);
    assert_eq!(printed, "0\n1\n2\n3\n");
    let shown = described(&cluster, "billing");
    assert_eq!(shown["state"], "Empty");
    assert_eq!(shown["lag"], 6);
    assert_eq!(shown["partitions"][0]["committed_offset"], 4);
    let listed = json(&cluster.must(&["group", "list", "-o", "json"]));
    assert_eq!(listed[0]["group"], "billing");
    assert_eq!(listed[0]["state"], "Empty");
    let printed = cluster.must(&["consume", "orders", "-g", "billing", "-n", "1"]);
    assert_eq!(printed, "4\n", "it goes on where it left off");

    let committed = || described(&cluster, "billing")["partitions"][0]["committed_offset"].clone();
    let seek = |rest: &[&str]| {
        let mut args = vec!["group", "seek", "billing"];
        args.extend(rest);
        cluster.run(&args)
    };
    let planned = seek(&["--to", "start", "--dry-run", "-o", "json"]);
    assert!(planned.status.success() && said(&planned).contains("nothing was moved"));
    let plan = json(&String::from_utf8_lossy(&planned.stdout));
    let step = serde_json::json!(
        {"topic": "orders", "partition": 0, "from": 5, "to": 0, "lag": 10}
    );
    assert_eq!(plan, serde_json::json!([step]));
    assert_eq!(committed(), 5);
    let time = format!("@{}", times[5]);
    for (to, expected) in [
        ("start", 0),
        ("+3", 3),
        ("end", 10),
        ("-2", 8),
        (&time, later),
        ("7", 7),
        ("+99", 10),
        ("6", 6),
    ] {
        let moved = seek(&["--to", to]);
        assert!(moved.status.success(), "{to}: {moved:?}");
        assert_eq!(committed(), expected, "{to}");
    }
    assert_eq!(seek(&["--to", "middle"]).status.code(), Some(2));

    let mut member = Command::new(corduroy())
        .args(["consume", "orders", "-g", "billing"])
        .args(["--brokers", &cluster.bootstrap()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(member.stdout.take().expect("piped")).lines();
    let line = lines.next().expect("a record").expect("UTF-8");
    assert_eq!(line, "6", "from where it was moved to");
    let shown = described(&cluster, "billing");
    assert_eq!(shown["state"], "Stable");
    assert_eq!(shown["members"].as_array().map(Vec::len), Some(1));
    for refused in [
        seek(&["--to", "start"]),
        cluster.run(&["group", "delete", "billing"]),
    ] {
        assert_eq!(refused.status.code(), Some(1));
        assert!(said(&refused).contains("it has members"), "{refused:?}");
    }
    let interrupted = Command::new("kill")
        .args(["-INT", &member.id().to_string()])
        .status();
    assert!(interrupted.expect("kill runs").success());
    let rest: Vec<String> = lines.map(|line| line.expect("UTF-8")).collect();
    member.wait().expect("it ends");
    assert!(rest.len() <= 3, "{rest:?}");
    assert_eq!(
        described(&cluster, "billing")["state"],
        "Empty",
        "it has left"
    );

    cluster.must(&["group", "delete", "billing"]);
    for gone in [
        cluster.run(&["group", "delete", "billing"]),
        cluster.run(&["group", "describe", "billing"]),
    ] {
        assert_eq!(gone.status.code(), Some(1));
        assert!(
            said(&gone).contains("there is no group `billing`"),
            "{gone:?}"
        );
    }
    assert_eq!(cluster.must(&["group", "list", "-o", "json"]).trim(), "[]");
}

/// A member of a group that has printed all records of `orders`, and what it says on standard error
/// once it has ended. It commits nothing by itself meanwhile.
struct Printing {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Printing {
    fn start(cluster: &Cluster, group: &str, records: usize) -> Printing {
        let config = cluster.scratch().join("client.properties");
        std::fs::write(&config, "auto.commit.interval.ms=3600000\n").expect("written");
        let mut child = Command::new(corduroy())
            .args(["consume", "orders", "-g", group])
            .args(["--brokers", &cluster.bootstrap()])
            .args(["--client-config", &config.to_string_lossy()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        for _ in 0..records {
            lines.next().expect("a record").expect("UTF-8");
        }
        Printing { child, lines }
    }

    fn signal(&self, name: &str) {
        send_signal(&self.child, name);
    }

    /// Waits for its end: the exit code and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        assert_eq!(self.lines.count(), 0, "nothing was printed twice");
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().expect("piped");
        stderr.read_to_string(&mut said).expect("UTF-8");
        (self.child.wait().expect("it ends").code(), said)
    }
}

fn send_signal(child: &Child, name: &str) {
    let signalled = Command::new("kill")
        .args([format!("-{name}"), child.id().to_string()])
        .status();
    // An error means that it has ended already.
    signalled.expect("kill runs");
}

#[test]
fn a_member_that_is_told_to_end_commits_or_says_what_is_read_again() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    cluster.must(&["config", "set", "group.initial.rebalance.delay.ms=0"]);
    cluster.create_topic("orders", 1, &[]);
    let written = cluster.run_with_input(&["produce", "orders"], b"0\n1\n2\n");
    assert!(written.status.success(), "{written:?}");

    for (signal, group) in [("INT", "interrupted"), ("TERM", "terminated")] {
        let member = Printing::start(&cluster, group, 3);
        member.signal(signal);
        assert_eq!(member.end(), (Some(0), String::new()));
        let shown = described(&cluster, group);
        assert_eq!(shown["state"], "Empty", "it has left");
        assert_eq!(shown["partitions"][0]["committed_offset"], 3);
    }

    let patient = Printing::start(&cluster, "patient", 3);
    let impatient = Printing::start(&cluster, "impatient", 3);
    cluster.nodes[0].pause();
    patient.signal("TERM");
    let (code, said) = patient.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("was not committed"), "{said}");
    assert!(said.contains("orders/0 from offset 0"), "{said}");
    let mut impatient = impatient;
    while impatient.child.try_wait().expect("a child").is_none() {
        impatient.signal("INT");
    }
    let (code, said) = impatient.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("by a second signal"), "{said}");
    cluster.nodes[0].resume();
    cluster.nodes[0].kill();
}

#[test]
fn a_producer_counts_what_is_written_and_names_the_line_that_is_not() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("split", 2, &[]);
    let mut input = b"0 9999999999999 bad\n".to_vec();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.expect("after 1970").as_millis();
    for good in 0..20 {
        input.extend(format!("1 {now} g{good}\n").bytes());
    }
    let mixed = cluster.run_with_input(&["produce", "split", "-f", "%p %T %v\\n"], &input);
    assert_eq!(mixed.status.code(), Some(1), "{mixed:?}");
    let words = said(&mixed);
    assert!(
        words.starts_with("20 records acknowledged, 1 failed, "),
        "{words}"
    );
    assert!(words.contains("INVALID_TIMESTAMP"), "{words}");
    assert!(words.contains("input  line 1\n"), "{words}");
    let kept = cluster.must(&["consume", "split", "--exit"]);
    assert_eq!(kept.lines().count(), 20, "{kept}");

    cluster.create_topic("long", 1, &[]);
    let input = [b"one\n".as_slice(), &[b'x'; 1_100_000], b"\nthree\n"].concat();
    let long = cluster.run_with_input(&["produce", "long"], &input);
    assert_eq!(long.status.code(), Some(1), "{long:?}");
    let words = said(&long);
    assert!(words.starts_with("1 record acknowledged, "), "{words}");
    assert!(words.contains("input  line 2\n"), "{words}");
    assert_eq!(cluster.must(&["consume", "long", "--exit"]), "one\n");

    // One record is refused, and the others of its batch with it.
    cluster.create_topic("keyed", 1, &["cleanup.policy=compact"]);
    let input = b"a:1\nnone\nb:2\n";
    let keyed = cluster.run_with_input(&["produce", "keyed", "-K", ":"], input);
    assert_eq!(keyed.status.code(), Some(1), "{keyed:?}");
    let words = said(&keyed);
    assert!(
        words.starts_with("0 records acknowledged, 3 failed, "),
        "{words}"
    );
    let place = "input  line 2; 2 records of its batch went with it\n";
    assert!(words.contains(place), "{words}");

    let unanswered = cluster.run_with_input(&["produce", "long", "--acks", "0"], b"a\nb\n");
    let words = said(&unanswered);
    assert!(unanswered.status.success(), "{words}");
    assert!(words.starts_with("2 records sent, "), "{words}");
}

#[test]
fn a_place_that_is_not_there_is_told_from_a_topic_that_is_not_there() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("small", 2, &[]);
    let written = cluster.run_with_input(&["produce", "small", "-p", "0"], b"0\n1\n2\n");
    assert!(written.status.success(), "{written:?}");
    for rest in [&[][..], &["--exit"][..]] {
        let mut args = vec!["consume", "small", "-p", "0", "-o", "100000000"];
        args.extend(rest);
        let beyond = cluster.run(&args);
        assert_eq!(beyond.status.code(), Some(1), "{beyond:?}");
        let bounds = "the log starts at 0, its high watermark is 3";
        assert!(said(&beyond).contains(bounds), "{beyond:?}");
    }
    let args = ["consume", "small", "-p", "0", "-o", "3", "--exit"];
    assert_eq!(cluster.must(&args), "", "the end is a place");
    let args = ["group", "seek", "g", "--to", "start", "--topic", "small/9"];
    let seek = cluster.run(&args);
    assert_eq!(seek.status.code(), Some(1));
    let words = said(&seek);
    assert!(
        words.contains("no partition 9") && words.contains("`small` has 2 partitions"),
        "{words}"
    );
    assert!(!words.contains("there is no topic"), "{words}");
}

#[test]
fn what_is_done_to_several_names_is_tried_for_each() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.create_topic("kept", 1, &[]);
    for group in ["first", "third"] {
        let args = ["group", "seek", group, "--to", "end", "--topic", "kept"];
        cluster.must(&args);
    }
    let deleted = cluster.run(&["group", "delete", "first", "second", "third"]);
    assert_eq!(deleted.status.code(), Some(1));
    let words = said(&deleted);
    assert!(words.contains("there is no group `second`"), "{words}");
    assert!(words.contains("deleted group third"), "{words}");
    assert_eq!(cluster.must(&["group", "list", "-o", "json"]).trim(), "[]");

    let created = cluster.run(&["topic", "create", "a", "kept", "b"]);
    assert_eq!(created.status.code(), Some(1), "{created:?}");
    let deleted = cluster.run(&["topic", "delete", "a", "missing", "b"]);
    assert_eq!(deleted.status.code(), Some(1));
    let words = said(&deleted);
    assert!(words.contains("there is no topic `missing`"), "{words}");
    assert!(words.contains("deleted topic b"), "{words}");
    let left = json(&cluster.must(&["topic", "list", "-o", "json"]));
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");

    // The cluster's own topic takes a word more.
    for refused in [
        cluster.run(&["topic", "delete", "__consumer_offsets"]),
        cluster.run(&["topic", "create", "__consumer_offsets"]),
        cluster.run(&["topic", "add-partitions", "__consumer_offsets", "--by", "1"]),
    ] {
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            said(&refused).contains("is the cluster's own"),
            "{refused:?}"
        );
    }
    cluster.must(&["topic", "delete", "__consumer_offsets", "--internal"]);
}

/// Runs a command against one node alone, with short limits, to its end.
fn ask_node(cluster: &Cluster, id: usize, args: &[&str]) -> std::process::Output {
    let limits = cluster.scratch().join("short.properties");
    let properties =
        "default.api.timeout.ms=4000\nrequest.timeout.ms=2000\ndelivery.timeout.ms=4000\n";
    std::fs::write(&limits, properties).expect("written");
    let kafka = cluster.nodes[id - 1].kafka.to_string();
    let mut child = Command::new(corduroy())
        .args(args)
        .args(["--brokers", &kafka, "--client-config"])
        .arg(&limits)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    // A command that ends without reading has closed it.
    let _closed = stdin.write_all(b"a line\n");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

#[test]
fn without_a_majority_every_command_says_so_and_who_is_missed() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    cluster.create_topic("t", 1, &[]);
    let addresses: Vec<String> = (1..=3)
        .map(|id| cluster.nodes[id - 1].kafka.to_string())
        .collect();
    let missed = format!("node 2 ({}), node 3 ({})", addresses[1], addresses[2]);
    cluster.node(2).kill();
    cluster.node(3).kill();
    wait_until("it knows that it is alone", || {
        cluster.nodes[0].metric("corduroy_node_isolated") == Some(1.0)
    });
    let commands: &[&[&str]] = &[
        &["cluster", "status"],
        &["cluster", "status", "-o", "json"],
        &["cluster", "health", "-o", "json"],
        &["cluster", "nodes"],
        &["topic", "list"],
        &["topic", "create", "new"],
        &["produce", "t"],
        &["consume", "t", "--exit"],
    ];
    for command in commands {
        let output = ask_node(&cluster, 1, command);
        let words = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            said(&output)
        );
        assert_eq!(output.status.code(), Some(1), "{command:?}: {words}");
        assert!(
            words.contains("the cluster has lost its majority"),
            "{command:?}: {words}"
        );
        assert!(words.contains(&missed), "{command:?}: {words}");
        assert!(!words.contains("0 nodes"), "{command:?}: {words}");
    }
    let listed = ask_node(&cluster, 1, &["topic", "list"]);
    assert!(
        String::from_utf8_lossy(&listed.stdout).contains('t'),
        "what it remembers is shown all the same"
    );

    // One that starts again does not serve at all.
    cluster.node(1).kill();
    cluster.node(1).start();
    wait_until("it misses both", || {
        let waits = cluster.nodes[0].admin_get("/health/ready");
        waits.is_some_and(|(_, body)| body.contains(&missed))
    });
    for command in commands {
        let output = ask_node(&cluster, 1, command);
        let words = said(&output);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {words}");
        assert!(
            words.contains("needs a majority of its cluster"),
            "{command:?}: {words}"
        );
        assert!(words.contains(&missed), "{command:?}: {words}");
    }
    cluster.node(2).start();
    cluster.node(3).start();
    cluster.must(&["cluster", "health", "--wait", "60s", "--nodes", "3"]);
}

#[test]
fn a_producer_does_not_wait_a_minute_for_a_topic_that_nobody_makes() {
    let _alone = alone();
    let cluster = Cluster::start_with(1, &["--set", "auto.create.topics.enable=false"]);
    let mut child = Command::new(corduroy())
        .args(["produce", "nowhere", "--brokers", &cluster.bootstrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"hello\n").expect("sent");
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let lines: Vec<String> = lines.map(|line| line.expect("UTF-8")).collect();
    assert_eq!(
        lines[0],
        "still trying: the topic does not exist (topic nowhere) (Ctrl-C to stop)"
    );
    let rest = lines[1..].join("\n");
    assert!(
        rest.starts_with(
            "error: there is no topic `nowhere`, and the cluster makes none for it \
             (UNKNOWN_TOPIC_OR_PARTITION)"
        ),
        "{rest}"
    );
    assert!(
        rest.contains("`corduroy topic create nowhere` makes it"),
        "{rest}"
    );
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}

/// As in Kafka: the topic of the groups is nobody's privilege, that of Kafka's controllers is nobody's.
#[test]
fn internal_topics_over_the_wire_are_made_as_kafka_makes_them() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let create = |name: &str, partitions: i32| {
        let topic = CreatableTopic::default()
            .with_name(TopicName(StrBytes::from_string(name.to_owned())))
            .with_num_partitions(partitions)
            .with_replication_factor(-1);
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(10_000);
        let answer = cluster.wire(1).call(7, &Request::CreateTopics(request));
        let Response::CreateTopics(answer) = answer.expect("answered") else {
            panic!("another API's answer");
        };
        ErrorCode::from_code(answer.topics[0].error_code)
    };
    assert_eq!(create("__cluster_metadata", 1), ErrorCode::InvalidRequest);
    assert_eq!(create("__consumer_offsets", 3), ErrorCode::None);
    assert_eq!(
        create("__consumer_offsets", 3),
        ErrorCode::TopicAlreadyExists
    );
    let described = cluster.must(&["topic", "describe", "__consumer_offsets", "-o", "json"]);
    let described = json(&described);
    assert_eq!(described["partitions"].as_array().map(Vec::len), Some(3));
    let configs = described["configs"].as_array().expect("a list").iter();
    let policy = configs.clone().find(|row| row["name"] == "cleanup.policy");
    assert_eq!(policy.expect("known")["value"], "compact", "as of its own");
    // Groups live in what the client made.
    cluster.create_topic("read", 1, &[]);
    let produced = cluster.run_with_input(&["produce", "read"], b"one\n");
    assert!(produced.status.success(), "{produced:?}");
    assert_eq!(
        cluster.must(&["consume", "read", "-g", "readers", "-o", "start", "-n", "1"]),
        "one\n"
    );
    assert_eq!(described_lag(&cluster, "readers"), 0);
}

fn described_lag(cluster: &Cluster, group: &str) -> i64 {
    let rows = described(cluster, group);
    rows["partitions"][0]["lag"].as_i64().expect("a number")
}

#[test]
fn a_measurement_that_is_told_to_end_leaves_no_topic() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let brokers = cluster.bootstrap();
    for (signal, args) in [
        ("INT", ["bench", "consume", "--records", "1000000000"]),
        ("TERM", ["bench", "produce", "--duration", "1h"]),
    ] {
        let mut child = Command::new(corduroy())
            .args(args)
            .args(["--brokers", &brokers])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        if args[1] == "consume" {
            let line = lines.next().expect("it says what it does").expect("UTF-8");
            assert!(line.starts_with("filling bench-"), "{line}");
            assert!(line.ends_with(": 1,000,000,000 records"), "{line}");
        }
        wait_until("its topic is there", || {
            cluster.must(&["topic", "list"]).contains("bench-")
        });
        send_signal(&child, signal);
        let rest: Vec<String> = lines.map(|line| line.expect("UTF-8")).collect();
        assert_eq!(child.wait().expect("it ends").code(), Some(1), "{rest:?}");
        let last = rest.last().expect("it says why");
        assert!(last.starts_with("error: ended by SIG"), "{rest:?}");
        let left = cluster.must(&["topic", "list"]);
        assert!(!left.contains("bench-"), "{left}");
    }
}
