//! The house rules that a compiler does not check, read from the sources, the manifests and the
//! documents: who may depend on whom, how long a file may be, which words stay out, and whether the
//! documents name what the code has.

#[path = "tidy/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use corduroy::config::{Scope, table};
use corduroy_env::planted::Bug;
use source::{SourceFile, code_of, crate_paths, names_word, tree};

/// A file longer than this says why in its head, by a line with [`LONG_FILE_MARK`].
const FILE_LINES_MAX: usize = 800;
/// What the head of a longer file has to hold, followed by the reason.
const LONG_FILE_MARK: &str = "long because:";
/// How far from the top [`LONG_FILE_MARK`] may stand.
const HEAD_LINES: usize = 12;

/// Who may depend on whom, in every kind of dependency (normal, build, dev). A crate of the
/// workspace that is not listed here fails the test: it needs a floor first.
const DEPENDENCY_LAW: &[(&str, &[&str])] = &[
    ("corduroy-env", &[]),
    ("corduroy-record", &[]),
    ("corduroy-protocol", &["corduroy-env", "corduroy-record"]),
    ("corduroy-storage", &["corduroy-env", "corduroy-record"]),
    (
        "corduroy-raft",
        &["corduroy-env", "corduroy-record", "corduroy-storage"],
    ),
    ("corduroy-group", &["corduroy-protocol", "corduroy-record"]),
    (
        "corduroy-client",
        &["corduroy-env", "corduroy-record", "corduroy-protocol"],
    ),
    (
        "corduroy",
        &[
            "corduroy-env",
            "corduroy-record",
            "corduroy-protocol",
            "corduroy-storage",
            "corduroy-raft",
            "corduroy-group",
            // Only for src/{cli,bench,demo}: `only_edges_name_the_client` checks that.
            "corduroy-client",
        ],
    ),
    (
        "corduroy-jepsen",
        &[
            "corduroy-env",
            "corduroy-record",
            "corduroy-protocol",
            "corduroy-client",
        ],
    ),
    (
        "corduroy-sim",
        &[
            "corduroy",
            "corduroy-env",
            "corduroy-record",
            "corduroy-protocol",
            "corduroy-storage",
            "corduroy-raft",
            "corduroy-group",
            "corduroy-client",
        ],
    ),
];

/// Names that say nothing about what a file holds.
const EMPTY_NAMES: &[&str] = &[
    "util", "utils", "helper", "helpers", "manager", "managers", "misc",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rust_files() -> Vec<SourceFile> {
    let files: Vec<_> = tree(root())
        .into_iter()
        .filter(|file| file.has_ending("rs"))
        .collect();
    assert!(
        files.len() > 10,
        "the scan found only {} Rust files",
        files.len()
    );
    files
}

/// Fails with every fault on its own line, so that one run shows all of them.
#[track_caller]
fn none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn crates_depend_only_on_lower_floors() {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");

    let packages = metadata["packages"].as_array().expect("packages");
    let ours: BTreeSet<&str> = packages
        .iter()
        .map(|package| package["name"].as_str().expect("name"))
        .collect();
    let law: BTreeMap<&str, &[&str]> = DEPENDENCY_LAW.iter().copied().collect();
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"].as_str().expect("name");
        let Some(allowed) = law.get(name) else {
            faults.push(format!("{name}: no floor in tests/tidy.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("dependency name");
            if ours.contains(on) && !allowed.contains(&on) {
                faults.push(format!("{name} depends on {on}: allowed are {allowed:?}"));
            }
            if on.starts_with("openraft") && name != "corduroy-raft" {
                faults.push(format!(
                    "{name} depends on {on}: openraft has one door, raft/"
                ));
            }
            if on == "kafka-protocol" && name != "corduroy-protocol" {
                faults.push(format!(
                    "{name} depends on {on}: bodies come from corduroy-protocol"
                ));
            }
        }
    }
    none(faults);
}

#[test]
fn the_lock_file_has_one_openraft_and_no_other_source_than_crates_io() {
    let lock: toml::Value = toml::from_str(&read("Cargo.lock")).expect("Cargo.lock is TOML");
    let packages = lock["package"].as_array().expect("packages");
    let mut faults = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().expect("name");
        versions
            .entry(name)
            .or_default()
            .insert(package["version"].as_str().expect("version"));
        if let Some(source) = package.get("source").and_then(|source| source.as_str())
            && source != "registry+https://github.com/rust-lang/crates.io-index"
        {
            faults.push(format!("{name} comes from {source}"));
        }
    }
    for single in ["openraft", "tokio", "bytes", "kafka-protocol"] {
        let found = versions.get(single).map_or(0, BTreeSet::len);
        if found != 1 {
            faults.push(format!(
                "{single} is there in {found} versions: {:?}",
                versions.get(single)
            ));
        }
    }
    none(faults);
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    let mut faults = Vec::new();
    for file in tree(root()) {
        if file.name() != "Cargo.toml" || file.path.starts_with("tests/clients/") {
            continue;
        }
        let manifest: toml::Value = toml::from_str(&file.text).expect(&file.path);
        let inherits = manifest
            .get("lints")
            .and_then(|lints| lints.get("workspace"))
            .and_then(toml::Value::as_bool);
        if inherits != Some(true) {
            faults.push(format!("{}: lacks `[lints] workspace = true`", file.path));
        }
    }
    none(faults);
}

#[test]
fn files_are_short_or_say_why() {
    let mut faults = Vec::new();
    for file in tree(root()) {
        let code = ["rs", "py", "sh", "java"]
            .iter()
            .any(|ending| file.has_ending(ending));
        let lines = file.text.lines().count();
        let excused = file
            .text
            .lines()
            .take(HEAD_LINES)
            .any(|line| line.contains(LONG_FILE_MARK));
        if code && lines > FILE_LINES_MAX && !excused {
            faults.push(format!(
                "{}: {lines} lines; split it by noun, or say `{LONG_FILE_MARK} ...` in its head",
                file.path
            ));
        }
    }
    none(faults);
}

#[test]
fn no_file_is_named_after_nothing() {
    let mut faults = Vec::new();
    for file in rust_files() {
        let named_after_nothing = Path::new(&file.path)
            .with_extension("")
            .components()
            .any(|part| EMPTY_NAMES.contains(&part.as_os_str().to_string_lossy().as_ref()));
        if named_after_nothing {
            faults.push(format!("{}: name it by the noun that it owns", file.path));
        }
    }
    none(faults);
}

#[test]
fn no_unfinished_work_is_left_behind() {
    // Put together here, so that this file does not name them.
    let in_code = [
        ["to", "do!"].concat(),
        ["unimple", "mented!"].concat(),
        ["db", "g!"].concat(),
    ];
    let anywhere = [
        ["FIX", "ME"].concat(),
        ["XX", "X"].concat(),
        ["TO", "DO"].concat(),
    ];
    let mut faults = Vec::new();
    for file in tree(root()) {
        for (number, line) in file.text.lines().enumerate() {
            for word in &anywhere {
                if names_word(line, word) {
                    faults.push(format!("{}:{}: {word}", file.path, number + 1));
                }
            }
        }
        if file.has_ending("rs") {
            for (number, line) in code_of(&file.text).lines().enumerate() {
                for word in &in_code {
                    if names_word(line, word) {
                        faults.push(format!("{}:{}: {word}", file.path, number + 1));
                    }
                }
            }
        }
    }
    none(faults);
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let places = [
        ["/wo", "rk/"].concat(),
        ["/tmp/", "spec"].concat(),
        ["/ro", "ot/"].concat(),
    ];
    let mut faults = Vec::new();
    for file in tree(root()) {
        for (number, line) in file.text.lines().enumerate() {
            for place in places.iter().filter(|place| line.contains(place.as_str())) {
                faults.push(format!("{}:{}: {place}", file.path, number + 1));
            }
        }
    }
    none(faults);
}

#[test]
fn only_edges_name_the_client() {
    let mut faults = Vec::new();
    for file in rust_files() {
        let Some(inside) = file.path.strip_prefix("src/") else {
            continue;
        };
        let edge = ["cli", "bench", "demo"]
            .iter()
            .any(|edge| inside == format!("{edge}.rs") || inside.starts_with(&format!("{edge}/")));
        if !edge && names_word(&code_of(&file.text), "corduroy_client") {
            faults.push(format!(
                "{}: only src/{{cli,bench,demo}} may name the client",
                file.path
            ));
        }
    }
    none(faults);
}

#[test]
fn openraft_is_named_only_in_raft() {
    let mut faults = Vec::new();
    let mut inside = 0;
    for file in rust_files() {
        let code = code_of(&file.text);
        if !names_word(&code, "openraft") && !names_word(&code, "openraft_rt") {
            continue;
        }
        if file.path.starts_with("raft/") {
            inside += 1;
        } else {
            faults.push(format!("{}: openraft is named only in raft/", file.path));
        }
    }
    assert!(inside > 0, "the scan does not see openraft even in raft/");
    none(faults);
}

#[test]
fn the_core_does_not_see_the_kafka_api() {
    // Who may not see which sibling modules of src/. Whoever is not listed here may see all.
    let law: &[(&[&str], &[&str])] = &[
        (
            &[
                "shard",
                "controller",
                "partition",
                "metadata",
                "config",
                "group",
                "leadership",
                "walk",
            ],
            &["kafka", "admin", "console", "cli", "bench", "demo"],
        ),
        // What state is and what the log says of it: who serves it comes later.
        (
            &["controller", "partition", "config", "group", "leadership"],
            &["shard", "node"],
        ),
        // Puts everything together, and is started by the command line.
        (&["node"], &["cli", "bench", "demo"]),
        (&["kafka", "admin", "console"], &["cli", "bench", "demo"]),
    ];
    let mut faults = Vec::new();
    for file in rust_files() {
        let Some(inside) = file.path.strip_prefix("src/") else {
            continue;
        };
        let module = inside.split(['/', '.']).next().unwrap_or_default();
        let seen = crate_paths(&code_of(&file.text));
        for (viewers, hidden) in law {
            if !viewers.contains(&module) {
                continue;
            }
            for name in hidden.iter().filter(|name| seen.contains(**name)) {
                faults.push(format!("{}: `{module}` must not see `{name}`", file.path));
            }
        }
    }
    none(faults);
}

#[test]
fn storage_names_neither_raft_nor_kafkas_api() {
    let words = [
        "openraft",
        "corduroy_raft",
        "corduroy_protocol",
        "kafka_protocol",
    ];
    let mut faults = Vec::new();
    for file in rust_files()
        .iter()
        .filter(|file| file.path.starts_with("storage/"))
    {
        let code = code_of(&file.text);
        for word in words.iter().filter(|word| names_word(&code, word)) {
            faults.push(format!("{}: {word}", file.path));
        }
    }
    none(faults);
}

/// The first cell and the second of every table row of a document.
fn table_rows(document: &str) -> BTreeMap<String, String> {
    document
        .lines()
        .filter_map(|line| {
            let mut cells = line.trim().strip_prefix('|')?.split('|').map(str::trim);
            Some((
                cells.next()?.trim_matches('`').to_owned(),
                cells.next()?.to_owned(),
            ))
        })
        .collect()
}

#[test]
fn every_advertised_version_is_documented() {
    let rows = table_rows(&read("docs/kafka-compat.md"));
    let mut faults = Vec::new();
    for range in corduroy_protocol::SERVED {
        let name = format!("{:?}", range.key);
        let versions = format!("{}-{}", range.min, range.max);
        match rows.get(&name) {
            None => faults.push(format!("{name}: no row in docs/kafka-compat.md")),
            Some(documented) if *documented != versions => faults.push(format!(
                "{name}: docs/kafka-compat.md says {documented}, advertised is {versions}"
            )),
            Some(_) => {}
        }
    }
    assert!(
        !corduroy_protocol::SERVED.is_empty(),
        "nothing is advertised"
    );
    none(faults);
}

#[test]
fn every_config_key_is_documented() {
    let document = read("docs/config.md");
    let mut keys = 0;
    let mut faults = Vec::new();
    for scope in [Scope::Node, Scope::Cluster, Scope::Topic] {
        let title = match scope {
            Scope::Node => "## Node settings",
            Scope::Cluster => "## Cluster settings",
            Scope::Topic => "## Topic settings",
        };
        let (_, chapter) = document
            .split_once(title)
            .unwrap_or_else(|| panic!("no `{title}`"));
        let chapter = chapter.split("\n## ").next().unwrap_or_default();
        let rows = table_rows(chapter);
        for key in table::of(scope) {
            keys += 1;
            if !rows.contains_key(key.name) {
                faults.push(format!(
                    "{}: no row under `{title}` of docs/config.md",
                    key.name
                ));
            }
        }
    }
    assert!(keys > 50, "only {keys} keys are known");
    none(faults);
}

/// Asks cargo itself which features a build has that names none: defaults, and what one crate asks
/// of another.
#[test]
fn no_build_has_planted_bugs_unless_it_asks_for_them() {
    const FEATURE: &str = "planted-bugs";
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let offer = |package: &&serde_json::Value| package["features"].get(FEATURE).is_some();
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(
        packages.iter().filter(offer).count() >= 4,
        "the scan does not see the feature"
    );
    let nodes = metadata["resolve"]["nodes"].as_array().expect("nodes");
    let with_it = nodes.iter().filter(|node| {
        let features = node["features"].as_array().expect("features");
        features.iter().any(|feature| feature == FEATURE)
    });
    none(
        with_it
            .map(|node| format!("{}: `{FEATURE}` is on by default", node["id"]))
            .collect(),
    );
}

#[test]
fn every_planted_bug_has_a_place_a_row_and_a_hunt() {
    let rows = table_rows(&read("docs/fault-tests.md"));
    let hunted = read("jepsen/src/selftest/bugs.rs");
    let simulated = read("tests/sim/planted.list");
    let code: String = rust_files()
        .iter()
        .filter(|file| !file.path.starts_with("env/") && !file.path.contains("tests/"))
        .map(|file| code_of(&file.text))
        .collect();
    let mut faults = Vec::new();
    for bug in Bug::ALL {
        let name = bug.name();
        if !names_word(&code, &format!("Bug::{bug:?}")) {
            faults.push(format!("{name}: planted nowhere"));
        }
        if !rows.contains_key(name) {
            faults.push(format!("{name}: no row in docs/fault-tests.md"));
        }
        if !hunted.contains(&format!("id: \"{name}\"")) {
            faults.push(format!("{name}: the fault tests do not hunt it"));
        }
        if !simulated.contains(&format!("\n{name} ")) {
            faults.push(format!("{name}: the simulator does not hunt it"));
        }
    }
    none(faults);
}

/// ARCHITECTURE.md names a proof as `path/to/file.rs::test_name` or as a script path; each must
/// be there, so that a renamed test cannot leave the table behind.
#[test]
fn every_proof_that_the_architecture_names_exists() {
    let document = read("ARCHITECTURE.md");
    // Without the drawings: between fences a backtick may stand alone.
    let prose: String = document.split("```").step_by(2).collect();
    let mut proofs = 0;
    let mut faults = Vec::new();
    for quoted in prose.split('`').skip(1).step_by(2) {
        let (path, test) = match quoted.split_once("::") {
            Some((path, test)) if path.ends_with(".rs") => (path, Some(test)),
            None if [
                "tests/",
                "raft/tests/",
                "storage/",
                "docs/",
                "benches/",
                "src/",
                "jepsen/",
            ]
            .iter()
            .any(|place| quoted.starts_with(place)) =>
            {
                (quoted, None)
            }
            _ => continue,
        };
        proofs += 1;
        if path.contains('*') {
            continue;
        }
        let place = root().join(path);
        match test {
            None if !place.exists() => faults.push(format!("{path}: not there")),
            Some(test) => match std::fs::read_to_string(&place) {
                Ok(text) if names_word(&text, &format!("fn {test}")) => {}
                Ok(_) => faults.push(format!("{path}: no test `{test}`")),
                Err(error) => faults.push(format!("{path}: {error}")),
            },
            None => {}
        }
    }
    assert!(proofs > 0, "ARCHITECTURE.md names no proof");
    none(faults);
}
