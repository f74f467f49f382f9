//! Seeds that once broke a law. A seed is another run as soon as anybody draws one number more:
//! each stands here beside the fault that it found, not in its place.
#![allow(clippy::disallowed_methods, reason = "a test drives real processes")]

use std::process::{Command, Stdio};

/// The seed, and what was wrong in the product.
const SEEDS: &[(u64, &str)] = &[
    (
        4,
        "a client asked the one broker without a disk for a producer id, again and again",
    ),
    (
        13,
        "campaigns followed each other faster than a slow disk made votes durable",
    ),
    (
        16,
        "a node with a failed disk announced itself without a pause",
    ),
];

#[test]
fn seeds_that_once_failed() {
    let run = |seed: &u64| {
        Command::new(env!("CARGO_BIN_EXE_corduroy-sim"))
            .args(["--seed", &seed.to_string(), "--seconds", "25"])
            // Classes that came later: with them the seeds would be other runs.
            .args(["--without", "disk-full", "--without", "bit-rot"])
            .args(["--without", "recreate", "--without", "groups"])
            .args(["--without", "membership", "--without", "fencing"])
            .args(["--without", "latest"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the simulator starts")
    };
    let running: Vec<_> = SEEDS
        .iter()
        .map(|(seed, fault)| (seed, fault, run(seed)))
        .collect();
    for (seed, fault, child) in running {
        let output = child.wait_with_output().expect("it ends");
        assert!(
            output.status.success(),
            "seed {seed} ({fault}): {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
