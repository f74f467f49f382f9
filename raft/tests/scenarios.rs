//! Runs every script of `scenarios/`. A failing test names the script and the line.

#![allow(dead_code)]

mod harness;

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let text = include_str!(concat!("scenarios/", stringify!($name), ".txt"));
                harness::run(harness::script::run_script(stringify!($name), text));
            }
        )*

        #[test]
        fn every_script_is_run() {
            let mut known = vec![$(concat!(stringify!($name), ".txt").to_owned()),*];
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
            let mut found: Vec<String> = std::fs::read_dir(dir)
                .expect("the scripts")
                .map(|entry| entry.expect("a file").file_name().into_string().expect("a name"))
                .collect();
            known.sort();
            found.sort();
            assert_eq!(known, found);
        }
    };
}

scenarios! {
    election
    cut_off_leader
    conflicting_suffix
    transfer
    behind_the_purge_point
    even_replicas
    restart_of_all
    commit_only_own_term
    acknowledged_twice
    single_replica
}
