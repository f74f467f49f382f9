//! Planted bugs: defects that somebody put in on purpose, to see whether the fault tests find them.
//!
//! A test that has never been red proves little. A build with the cargo feature `planted-bugs`
//! holds every defect of [`Bug`] and behaves well until one of them is chosen: `corduroy` takes it
//! from the environment variable [`VARIABLE`], a test or a simulator says it to `choose` or
//! `with`. Each sits at its place as a condition on [`is`]. Without the feature, which no build has by default, `is`
//! is a constant `false` and the compiler drops the defects.
//!
//! docs/fault-tests.md has the table: what each breaks, how it shows, which faults bring it out.

#[cfg(feature = "planted-bugs")]
use std::cell::Cell;
#[cfg(feature = "planted-bugs")]
use std::sync::atomic::{AtomicU8, Ordering};

/// The environment variable that chooses a bug by its name, in a build that has them.
pub const VARIABLE: &str = "CORDUROY_PLANTED_BUG";

/// A defect that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A flush turn of entries is reported durable and not synced: the page cache has it until a
    /// vote or a checkpoint syncs the file.
    AckBeforeFlush = 1,
    /// A vote is answered when it is written; the next turn of entries syncs it.
    VoteNotFlushed,
    /// The high watermark is the end of the leader's log, committed or not.
    WatermarkIsLogEnd,
    /// A batch of an older producer epoch is taken: nobody is fenced.
    OlderEpochAccepted,
    /// A leader whose lease is over serves fetches to the end of its log, and no leader asks a
    /// majority before it names the latest offset.
    StaleLeaderServes,
    /// Checksums of the journal's turns and of frames are not compared: a torn turn is whole.
    TornTailAccepted,
    /// Recovery keeps entries whose bytes never reached their segment, as empty batches. All
    /// entries go to their segment by reference.
    ZeroTailIsBatch,
    /// A batch gets its base offset, and the answer to its producer, when it is proposed: the log's
    /// end of that moment.
    OffsetAtPropose,
    /// The idempotence window remembers one batch of each producer; an older one is taken as new.
    WindowOfOne,
    /// A truncation cuts the log and keeps the next offset, and nobody compares offsets.
    TruncationKeepsOffset,
    /// `acks=all` asks for a majority alone, whatever `min.insync.replicas` says.
    AckBelowMinInsync,
    /// A turn is reported durable when it is written; its journal file is synced by the next turn.
    CallbackBeforeSync,
    /// A leader whose lease lasts names the latest offset without asking a majority.
    LeaseRead,
    /// A commit counts whatever generation, epoch or member it comes from.
    OldGenerationCommits,
    /// A commit is acknowledged when it is decided, before it is written.
    CommitBeforeWrite,
    /// Every member of a classic group is handed what its leader has planned for one of them.
    PartitionGivenTwice,
    /// A replica that coordinates no more goes on to name committed positions.
    StalePositions,
}

impl Bug {
    /// All of them, in the order of the table.
    pub const ALL: [Bug; 17] = [
        Bug::AckBeforeFlush,
        Bug::VoteNotFlushed,
        Bug::WatermarkIsLogEnd,
        Bug::OlderEpochAccepted,
        Bug::StaleLeaderServes,
        Bug::TornTailAccepted,
        Bug::ZeroTailIsBatch,
        Bug::OffsetAtPropose,
        Bug::WindowOfOne,
        Bug::TruncationKeepsOffset,
        Bug::AckBelowMinInsync,
        Bug::CallbackBeforeSync,
        Bug::LeaseRead,
        Bug::OldGenerationCommits,
        Bug::CommitBeforeWrite,
        Bug::PartitionGivenTwice,
        Bug::StalePositions,
    ];

    /// The name that chooses it.
    pub const fn name(self) -> &'static str {
        match self {
            Bug::AckBeforeFlush => "ack-before-flush",
            Bug::VoteNotFlushed => "vote-not-flushed",
            Bug::WatermarkIsLogEnd => "watermark-is-log-end",
            Bug::OlderEpochAccepted => "older-epoch-accepted",
            Bug::StaleLeaderServes => "stale-leader-serves",
            Bug::TornTailAccepted => "torn-tail-accepted",
            Bug::ZeroTailIsBatch => "zero-tail-is-batch",
            Bug::OffsetAtPropose => "offset-at-propose",
            Bug::WindowOfOne => "window-of-one",
            Bug::TruncationKeepsOffset => "truncation-keeps-offset",
            Bug::AckBelowMinInsync => "ack-below-min-insync",
            Bug::CallbackBeforeSync => "callback-before-sync",
            Bug::LeaseRead => "lease-read",
            Bug::OldGenerationCommits => "old-generation-commits",
            Bug::CommitBeforeWrite => "commit-before-write",
            Bug::PartitionGivenTwice => "partition-given-twice",
            Bug::StalePositions => "stale-positions",
        }
    }

    /// The bug of that name.
    pub fn of_name(name: &str) -> Option<Bug> {
        Bug::ALL.into_iter().find(|bug| bug.name() == name)
    }
}

/// Whether `bug` is the one that was chosen.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is(_bug: Bug) -> bool {
    false
}

/// The chosen bug's number, 0 = none. Of the process: it stands for how the binary was compiled.
#[cfg(feature = "planted-bugs")]
static CHOSEN: AtomicU8 = AtomicU8::new(0);

#[cfg(feature = "planted-bugs")]
thread_local! {
    /// What [`with`] chose for this thread.
    static HERE: Cell<Option<u8>> = const { Cell::new(None) };
}

/// Whether `bug` is the one that was chosen.
#[cfg(feature = "planted-bugs")]
#[inline]
pub fn is(bug: Bug) -> bool {
    let chosen = HERE.get().unwrap_or_else(|| CHOSEN.load(Ordering::Relaxed));
    chosen == bug as u8
}

/// Runs with one bug, or with none, on this thread alone, whatever the process has chosen: for
/// tests, of which a process runs several at a time.
#[cfg(feature = "planted-bugs")]
pub fn with<T>(bug: Option<Bug>, run: impl FnOnce() -> T) -> T {
    struct Before(Option<u8>);
    impl Drop for Before {
        fn drop(&mut self) {
            HERE.set(self.0);
        }
    }
    let _before = Before(HERE.replace(Some(bug.map_or(0, |bug| bug as u8))));
    run()
}

/// Switches one bug on for this process, or all of them off.
#[cfg(feature = "planted-bugs")]
pub fn choose(bug: Option<Bug>) {
    CHOSEN.store(bug.map_or(0, |bug| bug as u8), Ordering::Relaxed);
}

/// Chooses what [`VARIABLE`] names; unset or empty is none.
///
/// # Errors
/// The name, if no bug has it. Nothing is chosen then.
#[cfg(feature = "planted-bugs")]
pub fn choose_from_environment() -> Result<Option<Bug>, String> {
    let name = std::env::var_os(VARIABLE).unwrap_or_default();
    let name = name.to_string_lossy();
    let bug = match &*name {
        "" => None,
        name => Some(Bug::of_name(name).ok_or_else(|| name.to_owned())?),
    };
    choose(bug);
    Ok(bug)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_has_a_name_of_its_own() {
        for bug in Bug::ALL {
            assert_eq!(Bug::of_name(bug.name()), Some(bug), "{}", bug.name());
        }
        assert_eq!(Bug::of_name(""), None);
        assert_eq!(Bug::of_name("no-such-bug"), None);
    }

    #[cfg(not(feature = "planted-bugs"))]
    #[test]
    fn without_the_feature_none_can_be_on() {
        const {
            let mut number = 0;
            while number < Bug::ALL.len() {
                assert!(!is(Bug::ALL[number]));
                number += 1;
            }
        }
    }

    #[cfg(feature = "planted-bugs")]
    #[test]
    fn the_chosen_one_is_on_and_no_other() {
        for chosen in Bug::ALL {
            choose(Some(chosen));
            for bug in Bug::ALL {
                assert_eq!(is(bug), bug == chosen);
            }
        }
        let here = with(Some(Bug::WindowOfOne), || is(Bug::WindowOfOne));
        assert!(here && !is(Bug::WindowOfOne));
        choose(None);
        assert!(Bug::ALL.into_iter().all(|bug| !is(bug)));
    }
}
