//! The one error of the crate.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use corduroy_protocol::ErrorCode;

/// Why an operation failed, what is known about its effect, and where it happened.
///
/// Cheap to clone: all records of a batch that failed share one.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    outcome: Outcome,
    message: String,
    context: ErrorContext,
    /// Which records of the batch the broker found fault with, by their place in it; empty where it
    /// named none.
    at_fault: Vec<i32>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Where an operation failed. Empty fields were not involved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorContext {
    /// Kafka's name of the API, such as `Produce`.
    pub api: Option<&'static str>,
    /// The broker, as `id (host:port)`.
    pub broker: Option<Arc<str>>,
    /// The topic.
    pub topic: Option<Arc<str>>,
    /// The partition.
    pub partition: Option<i32>,
    /// How often the operation was tried, 0 where trying again is not its way.
    pub attempts: u32,
}

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A broker answered with this error.
    Broker(ErrorCode),
    /// A connection could not be made, or broke.
    Disconnected,
    /// A broker is there and does not serve: it has no place in a cluster yet, or hears no majority
    /// of it. The message has its own words.
    NotServing,
    /// A broker did not answer within `request.timeout.ms`.
    RequestTimeout,
    /// A record was not acknowledged within `delivery.timeout.ms`.
    DeliveryTimeout,
    /// No buffer space, or no metadata, within `max.block.ms`.
    BlockTimeout,
    /// An operation with retries did not succeed within `default.api.timeout.ms`.
    ApiTimeout,
    /// The topic does not exist.
    UnknownTopic,
    /// The topic exists, the partition does not.
    UnknownPartition,
    /// The record exceeds `max.request.size`, `buffer.memory` or the topic's `max.message.bytes`.
    RecordTooLarge,
    /// The record can't be written as it is; of a ticket, that another record of its batch was
    /// refused and this one went with it.
    InvalidRecord,
    /// A reader's offset does not exist (any more).
    OffsetOutOfRange,
    /// The log that was read has been replaced from an earlier offset on (KIP-320).
    LogTruncated,
    /// A batch's partition was taken from the group's member that got it: its positions are no
    /// longer this member's to commit, and whoever has the partition now reads the batch again.
    StaleGeneration,
    /// A batch is damaged.
    Corrupt,
    /// A broker's answer could not be understood.
    Malformed,
    /// The broker speaks no version of an API that this client needs.
    Unsupported,
    /// A setting is wrong.
    Config,
    /// The handle was closed.
    Closed,
}

/// What is known about the effect of a failed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It had none, and will have none: it may be repeated without duplicates.
    NotWritten,
    /// It took effect.
    Written,
    /// It may have taken effect, or still may: to repeat it may duplicate it.
    Unknown,
}

impl Error {
    /// An error without context. Its outcome is `NotWritten`.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            inner: Arc::new(Inner {
                kind,
                outcome: Outcome::NotWritten,
                message: message.into(),
                context: ErrorContext::default(),
                at_fault: Vec::new(),
                source: None,
            }),
        }
    }

    pub(crate) fn config(message: String) -> Error {
        Error::new(ErrorKind::Config, message)
    }

    pub(crate) fn closed(what: &str) -> Error {
        Error::new(ErrorKind::Closed, format!("{what} is closed"))
    }

    /// A broker's answer with an error code, and its own words where it had some.
    pub(crate) fn broker(code: ErrorCode, message: Option<&str>) -> Error {
        let kind = match code {
            ErrorCode::OffsetOutOfRange => ErrorKind::OffsetOutOfRange,
            ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId => {
                ErrorKind::UnknownTopic
            }
            ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge => ErrorKind::RecordTooLarge,
            other => ErrorKind::Broker(other),
        };
        let text = match message.filter(|text| !text.is_empty()) {
            Some(text) => format!("{}: {text}", code.name()),
            None => format!("{}: {}", code.name(), code.message()),
        };
        Error::new(kind, text)
    }

    fn edit(mut self, edit: impl FnOnce(&mut Inner)) -> Error {
        edit(Arc::make_mut(&mut self.inner));
        self
    }

    pub(crate) fn with_outcome(self, outcome: Outcome) -> Error {
        self.edit(|inner| inner.outcome = outcome)
    }

    pub(crate) fn with_api(self, api: &'static str) -> Error {
        self.edit(|inner| inner.context.api = Some(api))
    }

    pub(crate) fn with_broker(self, broker: &Arc<str>) -> Error {
        self.edit(|inner| inner.context.broker = Some(broker.clone()))
    }

    pub(crate) fn with_topic(self, topic: &Arc<str>) -> Error {
        self.edit(|inner| inner.context.topic = Some(topic.clone()))
    }

    pub(crate) fn with_partition(self, topic: &Arc<str>, partition: i32) -> Error {
        self.edit(|inner| {
            inner.context.topic = Some(topic.clone());
            inner.context.partition = Some(partition);
        })
    }

    pub(crate) fn with_attempts(self, attempts: u32) -> Error {
        self.edit(|inner| inner.context.attempts = attempts)
    }

    pub(crate) fn with_fault_at(self, records: Vec<i32>) -> Error {
        self.edit(|inner| inner.at_fault = records)
    }

    /// The failure of a batch as it concerns one of its records (KIP-467): where the broker found
    /// fault with others, that is what happened to this one.
    pub(crate) fn of_record(self, place: i64) -> Error {
        let at_fault = &self.inner.at_fault;
        if at_fault.is_empty() || at_fault.iter().any(|&found| i64::from(found) == place) {
            return self;
        }
        self.edit(|inner| {
            inner.message = format!(
                "not written, because another record of its batch was refused: {}",
                inner.message
            );
            inner.kind = ErrorKind::InvalidRecord;
        })
    }

    pub(crate) fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.edit(|inner| inner.source = Some(Arc::new(source)))
    }

    /// What kind of failure it is: what to branch on.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// What is known about the effect of the failed operation. Without meaning for operations that
    /// only read.
    pub fn outcome(&self) -> Outcome {
        self.inner.outcome
    }

    /// Where it happened.
    pub fn context(&self) -> &ErrorContext {
        &self.inner.context
    }

    /// Whether the same operation may succeed later, without a change by anybody. The client has
    /// already tried for as long as its timeouts allow. Whether to repeat a write is a question of
    /// its [`outcome`](Error::outcome) as well.
    pub fn is_retriable(&self) -> bool {
        match self.inner.kind {
            ErrorKind::Broker(code) => code.is_retriable(),
            ErrorKind::Disconnected
            | ErrorKind::NotServing
            | ErrorKind::RequestTimeout
            | ErrorKind::DeliveryTimeout
            | ErrorKind::BlockTimeout
            | ErrorKind::ApiTimeout => true,
            _ => false,
        }
    }

    /// Whether to try again for a moment: a topic or partition that somebody has just created is
    /// unknown to some brokers for a while.
    pub(crate) fn is_passing(&self) -> bool {
        let is_unknown = matches!(
            self.inner.kind,
            ErrorKind::UnknownTopic | ErrorKind::UnknownPartition
        );
        is_unknown || self.is_retriable()
    }

    /// Whether a newer instance has taken this one's place, so that it has to stop.
    pub fn is_fenced(&self) -> bool {
        matches!(
            self.inner.kind,
            ErrorKind::Broker(
                ErrorCode::ProducerFenced
                    | ErrorCode::InvalidProducerEpoch
                    | ErrorCode::FencedInstanceId
            )
        )
    }

    /// The broker's error code, where a broker answered.
    pub fn code(&self) -> Option<ErrorCode> {
        match self.inner.kind {
            ErrorKind::Broker(code) => Some(code),
            ErrorKind::OffsetOutOfRange => Some(ErrorCode::OffsetOutOfRange),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            message,
            context,
            outcome,
            kind,
            ..
        } = &*self.inner;
        if let Some(api) = context.api {
            write!(f, "{api}: ")?;
        }
        f.write_str(message)?;
        let mut place = Vec::new();
        match (&context.topic, context.partition) {
            (Some(topic), Some(partition)) => place.push(format!("partition {topic}/{partition}")),
            (Some(topic), None) => place.push(format!("topic {topic}")),
            _ => {}
        }
        if let Some(broker) = &context.broker {
            place.push(format!("broker {broker}"));
        }
        if context.attempts > 1 {
            place.push(format!("{} attempts", context.attempts));
        }
        if !place.is_empty() {
            write!(f, " ({})", place.join(", "))?;
        }
        let names_outcome = matches!(
            kind,
            ErrorKind::DeliveryTimeout
                | ErrorKind::RequestTimeout
                | ErrorKind::Disconnected
                | ErrorKind::Broker(_)
        );
        match outcome {
            Outcome::Unknown if names_outcome => {
                f.write_str("; it may or may not have taken effect")
            }
            Outcome::Written => f.write_str("; it took effect"),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            kind,
            outcome,
            message,
            context,
            source,
            at_fault: _,
        } = &*self.inner;
        f.debug_struct("Error")
            .field("kind", kind)
            .field("outcome", outcome)
            .field("message", message)
            .field("context", context)
            .field("source", source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner
            .source
            .as_ref()
            .map(|source| &**source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_cause_place_and_effect() {
        let topic: Arc<str> = "orders".into();
        let error = Error::broker(ErrorCode::NotLeaderOrFollower, Some("moved"))
            .with_api("Produce")
            .with_broker(&"2 (b:9092)".into())
            .with_partition(&topic, 7)
            .with_attempts(3)
            .with_outcome(Outcome::Unknown);
        assert_eq!(
            error.to_string(),
            "Produce: NOT_LEADER_OR_FOLLOWER: moved (partition orders/7, broker 2 (b:9092), \
             3 attempts); it may or may not have taken effect"
        );
        assert!(error.is_retriable());
        assert!(!error.is_fenced());
    }

    #[test]
    fn a_record_that_went_with_another_says_so() {
        let error = Error::broker(ErrorCode::InvalidTimestamp, Some("too far ahead"));
        assert_eq!(
            error.clone().of_record(0).kind(),
            error.kind(),
            "nobody named"
        );
        let error = error.with_fault_at(vec![2]);
        assert_eq!(error.clone().of_record(2).kind(), error.kind());
        let other = error.of_record(1);
        assert_eq!(other.kind(), ErrorKind::InvalidRecord);
        assert_eq!(
            other.to_string(),
            "not written, because another record of its batch was refused: INVALID_TIMESTAMP: too \
             far ahead"
        );
    }

    #[test]
    fn an_error_is_two_words_at_most_in_a_result() {
        assert!(size_of::<Result<u64, Error>>() <= 2 * size_of::<usize>());
    }
}
