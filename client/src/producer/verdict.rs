//! What an answer means for a batch: decided from facts alone.

use corduroy_protocol::ErrorCode;

use crate::error::{Error, Outcome};

/// What came back for a batch.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The broker has it. No offset with `acks=0`.
    Written {
        base_offset: Option<i64>,
        log_append_time: Option<i64>,
    },
    /// The broker said no.
    Refused {
        code: ErrorCode,
        message: Option<String>,
        /// Which records it found fault with, by their place in the batch.
        records: Vec<i32>,
    },
    /// No byte of it left this machine.
    Unsent(Error),
    /// It left, and nobody knows what became of it.
    Lost(Error),
}

impl Answer {
    /// What went wrong, if it is not that the broker has it.
    pub(crate) fn error(&self) -> Option<Error> {
        match self {
            Answer::Written { .. } => None,
            Answer::Refused { code, message, .. } => Some(Error::broker(*code, message.as_deref())),
            Answer::Unsent(error) | Answer::Lost(error) => Some(error.clone()),
        }
    }
}

/// What is known when an answer comes in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The batch carries a producer id and sequence numbers.
    pub(crate) idempotent: bool,
    /// When it was sent, every earlier batch of its partition had been settled.
    pub(crate) led: bool,
    /// Its records.
    pub(crate) records: u32,
    /// An earlier attempt may have been written.
    pub(crate) maybe_written: bool,
    /// It may be sent again: `retries` are left and its time has not run out.
    pub(crate) may_retry: bool,
}

/// What to do with the batch.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Written {
        base_offset: Option<i64>,
        log_append_time: Option<i64>,
    },
    /// Send the same batch again, in the same place.
    Again { maybe_written: bool, pause: Pause },
    /// The broker does not know this place in the order, and certainly has not written the batch:
    /// begin a new order and send it there.
    Reorder { identity: Renewal },
    /// Too large as a whole: send its halves.
    Split,
    Fail {
        error: Error,
        outcome: Outcome,
        reorder: Option<Renewal>,
    },
}

/// How a new order of sequences begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// With the next epoch of the same producer id (KIP-360).
    NextEpoch,
    /// With a new producer id.
    NewId,
}

/// Whether a partition waits before it sends again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    No,
    /// A moment: the broker is in trouble.
    Backoff,
    /// Until the metadata says something new, or a moment has passed: the leader has moved.
    Leader,
}

/// Decides.
pub(crate) fn judge(facts: Facts, answer: Answer) -> Verdict {
    match answer {
        Answer::Written {
            base_offset,
            log_append_time,
        } => Verdict::Written {
            base_offset,
            log_append_time,
        },
        Answer::Unsent(error) if facts.may_retry && error.is_retriable() => Verdict::Again {
            maybe_written: facts.maybe_written,
            pause: Pause::Leader,
        },
        Answer::Unsent(error) => fail(error, facts.maybe_written),
        Answer::Lost(_) if facts.may_retry => Verdict::Again {
            maybe_written: true,
            pause: Pause::Leader,
        },
        Answer::Lost(error) => fail(error, true),
        Answer::Refused {
            code,
            message,
            records,
        } => match refused(facts, code, message.as_deref()) {
            Verdict::Fail {
                error,
                outcome,
                reorder,
            } => Verdict::Fail {
                error: error.with_fault_at(records),
                outcome,
                reorder,
            },
            verdict => verdict,
        },
    }
}

fn refused(facts: Facts, code: ErrorCode, message: Option<&str>) -> Verdict {
    let error = || Error::broker(code, message);
    match code {
        // A batch that the broker has already, but whose offset it no longer remembers.
        ErrorCode::DuplicateSequenceNumber => Verdict::Written {
            base_offset: None,
            log_append_time: None,
        },
        ErrorCode::OutOfOrderSequenceNumber
        | ErrorCode::UnknownProducerId
        | ErrorCode::InvalidProducerEpoch
            if facts.idempotent =>
        {
            // An earlier batch was on its way when this one was sent: its failure explains the
            // gap, and its retry will close it.
            if !facts.led && facts.may_retry {
                return Verdict::Again {
                    maybe_written: facts.maybe_written,
                    pause: Pause::No,
                };
            }
            let identity = match code {
                ErrorCode::InvalidProducerEpoch => Renewal::NewId,
                _ => Renewal::NextEpoch,
            };
            // Under another identity the broker can't recognise a batch that it has already. One
            // that may have been written once is therefore never sent under a second identity.
            if facts.maybe_written || !facts.may_retry {
                let outcome = outcome(facts.maybe_written);
                return Verdict::Fail {
                    error: error(),
                    outcome,
                    reorder: Some(identity),
                };
            }
            Verdict::Reorder { identity }
        }
        ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge
            if facts.records > 1 && !facts.maybe_written =>
        {
            Verdict::Split
        }
        _ if code.is_retriable() && facts.may_retry => Verdict::Again {
            maybe_written: facts.maybe_written || may_be_written(code),
            pause: if code.refreshes_metadata() {
                Pause::Leader
            } else {
                Pause::Backoff
            },
        },
        _ => fail(error(), facts.maybe_written || may_be_written(code)),
    }
}

fn fail(error: Error, maybe_written: bool) -> Verdict {
    Verdict::Fail {
        error,
        outcome: outcome(maybe_written),
        reorder: None,
    }
}

fn outcome(maybe_written: bool) -> Outcome {
    if maybe_written {
        Outcome::Unknown
    } else {
        Outcome::NotWritten
    }
}

/// Whether a broker may answer `code` after it has appended the batch. A leader that is deposed
/// while it waits for its followers says "not leader" about a batch that may survive.
fn may_be_written(code: ErrorCode) -> bool {
    !matches!(
        code,
        ErrorCode::OutOfOrderSequenceNumber
            | ErrorCode::UnknownProducerId
            | ErrorCode::InvalidProducerEpoch
            | ErrorCode::ProducerFenced
            | ErrorCode::NotEnoughReplicas
            | ErrorCode::MessageTooLarge
            | ErrorCode::RecordListTooLarge
            | ErrorCode::CorruptMessage
            | ErrorCode::InvalidRecord
            | ErrorCode::InvalidRequest
            | ErrorCode::InvalidTimestamp
            | ErrorCode::InvalidRequiredAcks
            | ErrorCode::InvalidTopicException
            | ErrorCode::InvalidTxnState
            | ErrorCode::PolicyViolation
            | ErrorCode::TopicAuthorizationFailed
            | ErrorCode::ClusterAuthorizationFailed
            | ErrorCode::UnsupportedForMessageFormat
            | ErrorCode::UnsupportedCompressionType
            | ErrorCode::UnsupportedVersion
            | ErrorCode::FencedLeaderEpoch
            | ErrorCode::UnknownLeaderEpoch
            | ErrorCode::LeaderNotAvailable
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const SENT_ONCE: Facts = Facts {
        idempotent: true,
        led: true,
        records: 3,
        maybe_written: false,
        may_retry: true,
    };

    fn check(facts: Facts, code: ErrorCode, expected: &str) {
        let verdict = judge(
            facts,
            Answer::Refused {
                code,
                message: None,
                records: Vec::new(),
            },
        );
        let found = match verdict {
            Verdict::Written { .. } => "written".to_owned(),
            Verdict::Again {
                maybe_written,
                pause,
            } => format!(
                "again{}{}",
                if maybe_written { " maybe-written" } else { "" },
                match pause {
                    Pause::No => "",
                    Pause::Backoff => " backoff",
                    Pause::Leader => " leader",
                }
            ),
            Verdict::Reorder { identity } => format!("reorder {identity:?}"),
            Verdict::Split => "split".to_owned(),
            Verdict::Fail {
                outcome, reorder, ..
            } => format!("fail {outcome:?} {reorder:?}"),
        };
        assert_eq!(found, expected, "{} with {facts:?}", code.name());
    }

    #[test]
    fn answers_and_what_they_mean() {
        let maybe = Facts {
            maybe_written: true,
            ..SENT_ONCE
        };
        let behind = Facts {
            led: false,
            ..SENT_ONCE
        };
        let last = Facts {
            may_retry: false,
            ..SENT_ONCE
        };
        let plain = Facts {
            idempotent: false,
            ..SENT_ONCE
        };
        let single = Facts {
            records: 1,
            ..SENT_ONCE
        };
        use ErrorCode as E;
        check(SENT_ONCE, E::DuplicateSequenceNumber, "written");
        check(
            SENT_ONCE,
            E::NotLeaderOrFollower,
            "again maybe-written leader",
        );
        check(SENT_ONCE, E::NotEnoughReplicas, "again backoff");
        check(
            SENT_ONCE,
            E::NotEnoughReplicasAfterAppend,
            "again maybe-written backoff",
        );
        check(SENT_ONCE, E::RequestTimedOut, "again maybe-written backoff");
        check(last, E::NotLeaderOrFollower, "fail Unknown None");
        check(last, E::NotEnoughReplicas, "fail NotWritten None");
        check(SENT_ONCE, E::InvalidRecord, "fail NotWritten None");
        check(maybe, E::InvalidRecord, "fail Unknown None");
        check(SENT_ONCE, E::MessageTooLarge, "split");
        check(single, E::MessageTooLarge, "fail NotWritten None");
        check(
            SENT_ONCE,
            E::TopicAuthorizationFailed,
            "fail NotWritten None",
        );
        // Sequences: the gap of a predecessor, a real gap, and one that could duplicate.
        check(behind, E::OutOfOrderSequenceNumber, "again");
        check(SENT_ONCE, E::OutOfOrderSequenceNumber, "reorder NextEpoch");
        check(SENT_ONCE, E::UnknownProducerId, "reorder NextEpoch");
        check(SENT_ONCE, E::InvalidProducerEpoch, "reorder NewId");
        check(
            maybe,
            E::OutOfOrderSequenceNumber,
            "fail Unknown Some(NextEpoch)",
        );
        check(
            last,
            E::OutOfOrderSequenceNumber,
            "fail NotWritten Some(NextEpoch)",
        );
        check(plain, E::OutOfOrderSequenceNumber, "fail NotWritten None");
    }

    #[test]
    fn what_never_left_is_not_written_and_what_left_may_be() {
        let error = || Error::new(ErrorKind::Disconnected, "gone");
        let last = Facts {
            may_retry: false,
            ..SENT_ONCE
        };
        let outcome = |answer| match judge(last, answer) {
            Verdict::Fail { outcome, .. } => outcome,
            other => panic!("expected a failure, found {other:?}"),
        };
        assert_eq!(outcome(Answer::Unsent(error())), Outcome::NotWritten);
        assert_eq!(outcome(Answer::Lost(error())), Outcome::Unknown);
        let unsupported = Error::new(ErrorKind::Unsupported, "too old");
        let verdict = judge(SENT_ONCE, Answer::Unsent(unsupported));
        assert!(
            matches!(
                verdict,
                Verdict::Fail {
                    outcome: Outcome::NotWritten,
                    ..
                }
            ),
            "what cannot be sent at all is not tried again"
        );
    }
}
