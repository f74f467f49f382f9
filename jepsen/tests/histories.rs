//! The checker judges every hand-made history exactly, and histories survive their files.

use std::collections::BTreeSet;
use std::io::Write;

use corduroy_jepsen::checker;
use corduroy_jepsen::history::{FaultEvent, FaultPhase, History, HistoryWriter, Mark};
use corduroy_jepsen::selftest;
use corduroy_jepsen::verdict::{Class, EXIT_COVERAGE, EXIT_PASS, EXIT_VIOLATION};

#[test]
fn every_hand_made_history_is_judged_exactly() {
    let report = selftest::histories();
    println!("{report}");
    assert!(report.failed.is_empty(), "{:#?}", report.failed);
    assert!(report.passed >= 40, "only {} histories", report.passed);
}

/// Each class has a history in which it is a violation, and the clean ones are not few.
#[test]
fn every_class_is_found_in_some_history() {
    let cases = selftest::cases().unwrap();
    let found: BTreeSet<&str> = cases
        .iter()
        .flat_map(|case| case.violations.iter().map(|(name, _)| name.as_str()))
        .collect();
    for class in Class::ALL {
        assert!(found.contains(class.name()), "no history shows {class}");
    }
    let clean = cases.iter().filter(|case| case.violations.is_empty());
    assert!(clean.count() >= 20);
}

#[test]
fn exit_codes_follow_the_verdict() {
    let codes = |name: &str| {
        let cases = selftest::cases().unwrap();
        let case = cases.iter().find(|case| case.name == name).unwrap();
        let verdict = case.judge().unwrap();
        (verdict.exit_code(), verdict.line())
    };
    let (code, line) = codes("enough");
    assert_eq!(code, EXIT_PASS);
    assert!(line.starts_with("PASS: 1 acked, 0 lost"), "{line}");
    let (code, line) = codes("lost-write");
    assert_eq!(code, EXIT_VIOLATION);
    assert!(
        line.starts_with("VIOLATION: lost-write x1; 3 acked, 1 lost"),
        "{line}"
    );
    let (code, line) = codes("fault-did-not-happen");
    assert_eq!(code, EXIT_COVERAGE);
    assert!(line.contains("kill 0 of 1 times"), "{line}");
}

/// A violation names the calls that prove it.
#[test]
fn a_lost_write_names_its_send_and_who_read_on() {
    let cases = selftest::cases().unwrap();
    let case = cases
        .iter()
        .find(|case| case.name == "offset-given-twice")
        .unwrap();
    let verdict = case.judge().unwrap();
    let lost = verdict
        .violations
        .iter()
        .find(|found| found.class == Class::LostWrite)
        .unwrap();
    let example = &lost.examples[0];
    assert_eq!(example.key.as_ref().unwrap().to_string(), "t/0");
    assert_eq!(example.offsets, [1]);
    assert_eq!(
        example.what,
        "w0.2 was acknowledged at offset 1, where w0.3 lies"
    );
    let texts: Vec<&str> = example
        .evidence
        .iter()
        .map(|line| line.text.as_str())
        .collect();
    assert!(
        texts[0].contains("send w0.2 to t/0 -> acknowledged at offset 1"),
        "{texts:?}"
    );
    assert!(texts[1].contains("final read"), "{texts:?}");
    assert!(texts[1].contains("1=w0.3"), "{texts:?}");
}

#[test]
fn a_history_reads_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    for case in selftest::cases().unwrap() {
        let path = directory.path().join(format!("{}.jsonl", case.name));
        let mut writer = HistoryWriter::create(&path, &case.history.header).unwrap();
        for event in case.history.events() {
            writer.append(&event).unwrap();
        }
        writer.flush().unwrap();
        let read = History::read(&path).unwrap();
        assert_eq!(read, case.history, "{}", case.name);
        let settings = &read.header.settings;
        assert_eq!(
            checker::check(&read, settings),
            checker::check(&case.history, settings)
        );
        assert!(HistoryWriter::create(&path, &case.history.header).is_err());
    }
}

#[test]
fn a_torn_last_line_is_accepted_and_a_torn_middle_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.jsonl");
    let case = &selftest::cases().unwrap()[0];
    let mut writer = HistoryWriter::create(&path, &case.history.header).unwrap();
    for event in case.history.events() {
        writer.append(&event).unwrap();
    }
    writer.flush().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let last_line = whole[..whole.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .unwrap()
        + 1;
    for cut in last_line + 1..whole.len() - 1 {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let read = History::read(&path).unwrap();
        assert!(read.torn, "cut at {cut}");
        let last = read.operations.last().unwrap();
        assert!(!last.is_ok(), "the call whose end was torn off is unknown");
    }
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(
        !History::read(&path).unwrap().torn,
        "only the line's end is missing"
    );

    let mut damaged = whole.clone();
    damaged[whole.iter().position(|byte| *byte == b'\n').unwrap() + 5] = b'#';
    std::fs::write(&path, &damaged).unwrap();
    let error = History::read(&path).unwrap_err().to_string();
    assert!(error.contains("line 2: not an event"), "{error}");

    std::fs::write(&path, b"").unwrap();
    assert!(
        History::read(&path)
            .unwrap_err()
            .to_string()
            .contains("is empty")
    );
}

#[test]
fn a_history_that_contradicts_itself_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.jsonl");
    let case = &selftest::cases().unwrap()[0];
    let writer = HistoryWriter::create(&path, &case.history.header).unwrap();
    drop(writer);
    let header = std::fs::read(&path).unwrap();
    let lines = [
        (
            r#"{"complete":{"id":9,"at":5,"outcome":{"ok":"done"}}}"#,
            "call 9, which is not open",
        ),
        (r#"{"header":{"format":1}}"#, "not an event"),
        (
            "{\"invoke\":{\"id\":2,\"worker\":0,\"process\":0,\"at\":5,\"call\":\"crash\"}}\n\
             {\"invoke\":{\"id\":2,\"worker\":0,\"process\":0,\"at\":6,\"call\":\"crash\"}}",
            "line 3: call 2 after a call with a higher id",
        ),
        (
            "{\"invoke\":{\"id\":2,\"worker\":0,\"process\":0,\"at\":5,\"call\":\"crash\"}}\n\
             {\"complete\":{\"id\":2,\"at\":4,\"outcome\":{\"ok\":\"done\"}}}",
            "line 3: call 2 ends before it begins",
        ),
    ];
    for (line, reason) in lines {
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&header).unwrap();
        file.write_all(line.as_bytes()).unwrap();
        file.write_all(b"\n").unwrap();
        let error = History::read(&path).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// A fault that was asked for and could not be applied is said, and does not count.
#[test]
fn a_refused_fault_is_missing_coverage() {
    let cases = selftest::cases().unwrap();
    let case = cases.iter().find(|case| case.name == "enough").unwrap();
    let mut history = case.history.clone();
    history.faults = vec![FaultEvent {
        phase: FaultPhase::Refused,
        ..history.faults[0].clone()
    }];
    history.marks.push(Mark::Note {
        at: Default::default(),
        text: "no right to do so".to_owned(),
    });
    let verdict = checker::check(&history, &history.header.settings);
    assert_eq!(verdict.exit_code(), EXIT_COVERAGE);
    assert!(verdict.coverage.missing[0].contains("kill 0 of 1 times, 1 times in vain"));
}
