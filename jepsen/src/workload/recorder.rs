//! Writes the history while it happens. One per run; everything that observes something holds it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use corduroy_env::Env;
use tokio::time::Instant;

use crate::history::{
    Answer, Call, Completion, Event, FaultEvent, FaultPhase, HistoryError, HistoryWriter,
    Invocation, Mark, Nanos, Outcome, ProcessId, WorkerId,
};

/// The history's writer, with the numbers that are handed out in it.
#[derive(Clone)]
pub struct Recorder {
    shared: Rc<RefCell<Shared>>,
    env: Env,
    began: Instant,
}

struct Shared {
    writer: HistoryWriter,
    failed: Option<HistoryError>,
    next_call: u64,
    next_process: u32,
    next_fault: u64,
    next_session: u64,
    open: u64,
    open_sends: BTreeSet<u64>,
    counts: Counts,
    starved_nanos: u64,
}

/// What has happened so far, for the progress line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Acknowledged sends.
    pub sent: u64,
    /// Failed sends.
    pub failed: u64,
    /// Sends of unknown outcome.
    pub unknown: u64,
    /// Values read.
    pub read: u64,
    /// Faults that took hold.
    pub faults: u64,
}

impl Recorder {
    /// Begins the run's clock.
    pub fn new(env: &Env, writer: HistoryWriter) -> Recorder {
        Recorder {
            shared: Rc::new(RefCell::new(Shared {
                writer,
                failed: None,
                next_call: 0,
                next_process: 0,
                next_fault: 0,
                next_session: 0,
                open: 0,
                open_sends: BTreeSet::new(),
                counts: Counts::default(),
                starved_nanos: 0,
            })),
            env: env.clone(),
            began: env.now(),
        }
    }

    /// The run's clock.
    pub fn now(&self) -> Nanos {
        self.nanos(self.env.now())
    }

    /// A moment, by the run's clock.
    pub fn nanos(&self, at: Instant) -> Nanos {
        let since = at.saturating_duration_since(self.began);
        Nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.shared.borrow().counts
    }

    /// Calls without an end so far.
    pub fn open(&self) -> u64 {
        self.shared.borrow().open
    }

    /// Sends without an end so far.
    pub fn open_sends(&self) -> usize {
        self.shared.borrow().open_sends.len()
    }

    /// A process id that was never used.
    pub fn process(&self) -> ProcessId {
        let mut shared = self.shared.borrow_mut();
        shared.next_process += 1;
        ProcessId(shared.next_process - 1)
    }

    /// A producer session that was never used.
    pub fn session(&self) -> u64 {
        let mut shared = self.shared.borrow_mut();
        shared.next_session += 1;
        shared.next_session - 1
    }

    /// A call that is about to be made.
    pub fn invoke(&self, worker: WorkerId, process: ProcessId, call: Call) -> u64 {
        let at = self.now();
        let id = {
            let mut shared = self.shared.borrow_mut();
            shared.next_call += 1;
            shared.open += 1;
            let id = shared.next_call - 1;
            if matches!(call, Call::Send(_)) {
                shared.open_sends.insert(id);
            }
            id
        };
        self.append(&Event::Invoke(Invocation {
            id,
            worker,
            process,
            at,
            call,
        }));
        id
    }

    /// The end of a call.
    pub fn complete(&self, id: u64, outcome: Outcome) {
        let at = self.now();
        {
            let shared = &mut *self.shared.borrow_mut();
            shared.open = shared.open.saturating_sub(1);
            shared.open_sends.remove(&id);
            let counts = &mut shared.counts;
            match &outcome {
                Outcome::Ok(Answer::Sent { .. }) => counts.sent += 1,
                Outcome::Ok(Answer::Read(reads)) => {
                    let values: usize = reads.iter().map(|read| read.values.len()).sum();
                    counts.read += values as u64;
                }
                Outcome::Ok(_) => {}
                Outcome::Fail { .. } => counts.failed += 1,
                Outcome::Unknown { .. } => counts.unknown += 1,
            }
        }
        self.append(&Event::Complete(Completion { id, at, outcome }));
    }

    /// A number for a fault: begin and end share it.
    pub fn fault_id(&self) -> u64 {
        let mut shared = self.shared.borrow_mut();
        shared.next_fault += 1;
        shared.next_fault - 1
    }

    /// A fault that is known to hold now, in one of its manners (nothing if it has one only).
    pub fn fault_began(&self, id: u64, fault: &str, manner: &str, targets: &[u32], detail: &str) {
        self.shared.borrow_mut().counts.faults += 1;
        self.append(&Event::Fault(FaultEvent {
            id,
            fault: fault.to_owned(),
            phase: FaultPhase::Begin,
            at: self.now(),
            targets: targets.to_vec(),
            manner: manner.to_owned(),
            detail: detail.to_owned(),
        }));
    }

    /// A further step of a fault, that is known to have happened.
    pub fn fault(&self, id: u64, fault: &str, phase: FaultPhase, targets: &[u32], detail: &str) {
        if phase == FaultPhase::Missed {
            let counts = &mut self.shared.borrow_mut().counts;
            counts.faults = counts.faults.saturating_sub(1);
        }
        self.append(&Event::Fault(FaultEvent {
            id,
            fault: fault.to_owned(),
            phase,
            at: self.now(),
            targets: targets.to_vec(),
            manner: String::new(),
            detail: detail.to_owned(),
        }));
    }

    /// A moment.
    pub fn mark(&self, mark: Mark) {
        if let Mark::Starved { from, until } = &mark {
            self.shared.borrow_mut().starved_nanos += until.since(*from).0;
        }
        self.append(&Event::Mark(mark));
    }

    /// For how long the harness was without the processor so far, in seconds.
    pub fn starved_seconds(&self) -> f64 {
        Nanos(self.shared.borrow().starved_nanos).seconds()
    }

    /// Something for people.
    pub fn note(&self, text: impl Into<String>) {
        let at = self.now();
        self.mark(Mark::Note {
            at,
            text: text.into(),
        });
    }

    fn append(&self, event: &Event) {
        let shared = &mut *self.shared.borrow_mut();
        if shared.failed.is_none()
            && let Err(error) = shared.writer.append(event)
        {
            shared.failed = Some(error);
        }
    }

    /// Hands what was written to the operating system.
    ///
    /// # Errors
    /// The first failure of any write so far: the history is not whole.
    pub fn flush(&self) -> Result<(), HistoryError> {
        let shared = &mut *self.shared.borrow_mut();
        match shared.failed.take() {
            Some(error) => Err(error),
            None => shared.writer.flush(),
        }
    }
}
