//! The bytes between nodes, kept: one frame of each kind of message. A change here is a change of
//! the protocol, and nodes of two releases meet during an upgrade.
//!
//! `UPDATE_GOLDEN=1 cargo test -p corduroy-raft --lib golden` writes the file anew.

use std::fmt::Write as _;

use super::frame::{FRAME_HEAD_BYTES, Frame, FrameEncoder};
use super::message::*;

const GOLDEN: &str = include_str!("golden.txt");

const ROUTE: Route = Route {
    group: WireGroup {
        topic: [0xa0; 16],
        partition: 7,
    },
    from: 0x1001,
    to: 0x1002,
};
const VOTE: WireVote = WireVote {
    term: 5,
    voted_for: 0x1001,
    committed: true,
};
const LAST: WireLogId = WireLogId { term: 4, index: 99 };

fn append() -> Append {
    let entry = |index, kind, payload_bytes| WireEntry {
        term: 5,
        index,
        base_offset: 1000,
        kind,
        payload_bytes,
    };
    Append {
        route: ROUTE,
        stream: 3,
        seq: 8,
        vote: VOTE,
        prev: Some(LAST),
        commit: None,
        entries: vec![
            entry(100, WireKind::Blank, 0),
            entry(101, WireKind::Batch { head: [0xb0; 16] }, 600),
            entry(102, WireKind::Internal, 12),
            entry(103, WireKind::Membership, 30),
        ],
    }
}

fn outcomes() -> Vec<AppendOutcome> {
    vec![
        AppendOutcome::Flushed,
        AppendOutcome::Conflict,
        AppendOutcome::HigherVote(VOTE),
        AppendOutcome::Refused(Refusal::UnknownReplica),
        AppendOutcome::Refused(Refusal::Stopped),
        AppendOutcome::Refused(Refusal::Malformed),
        AppendOutcome::Refused(Refusal::Reverted),
    ]
}

fn votes() -> [(&'static str, Message); 4] {
    let ask = VoteAsk {
        route: ROUTE,
        call: 11,
        pre_vote: true,
        vote: WireVote {
            committed: false,
            ..VOTE
        },
        last: Some(LAST),
        leadership_transfer: true,
        all_answered: false,
    };
    let grant = VoteGrant {
        vote: VOTE,
        granted: true,
        last: Some(LAST),
    };
    let answer = |answer| Message::VoteAnswer(VoteAnswer { call: 11, answer });
    let transfer = TransferAsk {
        route: ROUTE,
        call: 12,
        leader: VOTE,
        target: 0x1003,
        last: Some(LAST),
    };
    [
        ("vote", Message::Vote(ask)),
        ("vote answer", answer(Some(grant))),
        ("vote answer, none", answer(None)),
        ("transfer", Message::Transfer(transfer)),
    ]
}

fn snapshots() -> [(&'static str, Message); 2] {
    let chunk = SnapshotChunk {
        route: ROUTE,
        call: 13,
        vote: VOTE,
        last: LAST,
        next_offset: 1000,
        membership_bytes: 40,
        tables_bytes: 70_000,
        position: 65_536,
    };
    let answer = SnapshotAnswer {
        call: 13,
        vote: Some(VOTE),
        received: 70_040,
    };
    [
        ("snapshot", Message::Snapshot(chunk)),
        ("snapshot answer", Message::SnapshotAnswer(answer)),
    ]
}

fn gathered() -> [(&'static str, Message); 8] {
    let beat = Beat {
        route: ROUTE,
        call: 14,
        vote: VOTE,
        prev: None,
        commit: Some(LAST),
    };
    let replies = outcomes()
        .into_iter()
        .map(|outcome| BeatReply { call: 14, outcome });
    let survey = SurveyAsk {
        route: ROUTE,
        call: 15,
        leader: 0x1001,
        term: 5,
    };
    let state = SurveyState {
        vote: VOTE,
        last: Some(LAST),
        leader_down: true,
        no_vote: false,
    };
    let survey_answer = |state| SurveyAnswer { call: 15, state };
    let sleep = SleepAsk {
        route: ROUTE,
        call: 16,
        term: 5,
        last: LAST,
    };
    let slept = SleepAnswer {
        call: 16,
        asleep: true,
    };
    let asleep = AsleepBeat {
        route: ROUTE,
        term: 5,
    };
    let wake = |resigned| WakeNote {
        route: ROUTE,
        resigned,
    };
    [
        ("beats", Message::Beats(vec![beat, beat])),
        ("beat replies", Message::BeatReplies(replies.collect())),
        ("survey", Message::Survey(vec![survey])),
        (
            "survey answers",
            Message::SurveyAnswers(vec![survey_answer(Some(state)), survey_answer(None)]),
        ),
        ("sleep", Message::Sleep(vec![sleep])),
        ("sleep answers", Message::SleepAnswers(vec![slept])),
        ("asleep", Message::Asleep(vec![asleep])),
        ("wake", Message::Wake(vec![wake(Some(5)), wake(None)])),
    ]
}

/// One of each kind, in the order of their numbers within the groups.
fn messages() -> Vec<(&'static str, Message)> {
    let reply = AppendReply {
        stream: 3,
        seq: 8,
        outcome: AppendOutcome::Flushed,
    };
    let revert = RevertAllowed {
        route: ROUTE,
        term: 5,
        end: LAST,
    };
    let accepted = Message::TransferAnswer {
        call: 12,
        accepted: true,
    };
    let mut all = vec![
        ("append", Message::Append(append())),
        ("append reply", Message::AppendReply(reply)),
        ("transfer answer", accepted),
        ("revert allowed", Message::RevertAllowed(revert)),
        ("call", Message::Call { call: 17 }),
        ("call answer", Message::CallAnswer { call: 17 }),
        ("cast", Message::Cast),
        ("ping", Message::Ping { count: 18 }),
        ("pong", Message::Pong { count: 18 }),
    ];
    all.extend(votes());
    all.extend(snapshots());
    all.extend(gathered());
    all
}

/// A kind that is not in the list does not compile here.
fn kind(message: &Message) -> usize {
    match message {
        Message::Append(_) => 0,
        Message::AppendReply(_) => 1,
        Message::Beats(_) => 2,
        Message::BeatReplies(_) => 3,
        Message::Vote(_) => 4,
        Message::VoteAnswer(_) => 5,
        Message::Transfer(_) => 6,
        Message::TransferAnswer { .. } => 7,
        Message::Snapshot(_) => 8,
        Message::SnapshotAnswer(_) => 9,
        Message::Survey(_) => 10,
        Message::SurveyAnswers(_) => 11,
        Message::Sleep(_) => 12,
        Message::SleepAnswers(_) => 13,
        Message::Asleep(_) => 14,
        Message::Wake(_) => 15,
        Message::RevertAllowed(_) => 16,
        Message::Call { .. } => 17,
        Message::CallAnswer { .. } => 18,
        Message::Cast => 19,
        Message::Ping { .. } => 20,
        Message::Pong { .. } => 21,
    }
}

const KINDS: usize = 22;

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").expect("to memory");
    }
    text
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digits).collect()
}

#[test]
fn every_kind_of_message_keeps_its_golden_bytes() {
    let mut kinds = std::collections::BTreeSet::new();
    let mut written = String::new();
    for (name, message) in messages() {
        kinds.insert(kind(&message));
        let bytes = FrameEncoder::default().encode(&message, 5).expect("small");
        writeln!(written, "{name}: {}", hex(&bytes)).expect("to memory");
    }
    assert_eq!(kinds.len(), KINDS, "a kind has no golden frame: {kinds:?}");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire/golden.txt");
        std::fs::write(path, &written).expect("written");
        return;
    }
    for (found, kept) in written.lines().zip(GOLDEN.lines()) {
        assert_eq!(found, kept);
    }
    assert_eq!(written.lines().count(), GOLDEN.lines().count());
}

/// What another release sent is read as what it meant.
#[test]
fn golden_bytes_are_read_back() {
    for ((name, message), line) in messages().into_iter().zip(GOLDEN.lines()) {
        let (kept_name, bytes) = line.split_once(": ").expect("a name and bytes");
        assert_eq!(name, kept_name);
        let bytes = unhex(bytes);
        let frame = Frame {
            envelope: bytes::Bytes::copy_from_slice(&bytes[FRAME_HEAD_BYTES..]),
            payload: bytes::Bytes::new(),
        };
        assert_eq!(frame.message().expect("ours"), message, "{name}");
    }
}
