//! The seed decides everything: the same one gives the same run in two processes.
#![allow(clippy::disallowed_methods, reason = "a test drives real processes")]

use std::process::Command;

/// The hash of everything that happened in a run of a seed, and how many events went into it.
fn trace_of(seed: u64) -> (String, u64) {
    let output = Command::new(env!("CARGO_BIN_EXE_corduroy-sim"))
        .args(["--seed", &seed.to_string(), "--seconds", "8"])
        .output()
        .expect("the simulator starts");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        output.status.success(),
        "seed {seed}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let word = |name: &str| {
        let mut words = text.split_whitespace();
        let found = words.find_map(|word| word.strip_prefix(name));
        found.expect("the report has it").to_owned()
    };
    (word("trace="), word("events=").parse().expect("a number"))
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another_one() {
    let (first, events) = trace_of(7);
    assert!(events > 1_000, "a run of {events} events proves little");
    assert_eq!((first.clone(), events), trace_of(7));
    assert_ne!(first, trace_of(8).0);
}
