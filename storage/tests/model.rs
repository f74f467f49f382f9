//! Sequences of operations against a vector: what a log reads is what was done to it, also
//! after a clean stop, with the journal holding entries or referring to them.

mod support;

use std::rc::Rc;

use corduroy_storage::SimDisk;
use proptest::prelude::*;
use support::{
    Action, Random, Subject, check_laws, observe, open_store, recover, simulate, small_log,
    small_store,
};

fn check(seed: u64, count: usize, inline_bytes_max: usize) {
    simulate(seed, |env| async move {
        let disk = SimDisk::new();
        assert!(recover(&disk).unwrap().clean);
        let store = open_store(&disk, small_store(inline_bytes_max), &env).unwrap();
        let mut subjects = Vec::new();
        for number in 0..3 {
            subjects.push(Subject::create(&store, number).await.unwrap());
        }
        let mut random = Random(seed);
        let mut store = store;
        for number in 0..count {
            let subject = &subjects[random.below(3) as usize];
            let action = Action::random(&mut random);
            subject.perform(&action).await.unwrap();
            if number % 97 == 96 {
                // A clean stop and a lazy start.
                store.close().await.unwrap();
                let report = recover(&disk).unwrap();
                assert!(report.clean, "a clean stop left journal records");
                assert_eq!(report.partitions, 3);
                store = open_store(&disk, small_store(inline_bytes_max), &env).unwrap();
                for subject in &subjects {
                    let log = store.open_log(subject.group, small_log()).unwrap();
                    let seen = observe(&log).await.unwrap();
                    assert_eq!(seen, *subject.model.borrow(), "after a clean stop");
                    check_laws(&log, &seen).await;
                    *subject.log.borrow_mut() = log;
                }
            }
        }
        for subject in &subjects {
            let log = subject.log.borrow().clone();
            log.flush().await.unwrap();
            let seen = observe(&log).await.unwrap();
            assert_eq!(seen, *subject.model.borrow());
            check_laws(&log, &seen).await;
        }
        let metrics = store.metrics();
        assert!(metrics.cold_reads > 0, "the cache was never too small");
        store.close().await.unwrap();
        drop(Rc::new(subjects));
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn inline(seed in any::<u64>()) {
        check(seed, 300, usize::MAX);
    }

    #[test]
    fn by_reference(seed in any::<u64>()) {
        check(seed, 300, 0);
    }

    #[test]
    fn mixed(seed in any::<u64>()) {
        check(seed, 300, 1500);
    }
}
