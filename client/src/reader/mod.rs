//! Reads a topic without a group: from a position of the caller's choice, to the high watermark or
//! on and on.

mod batch;
mod budget;
mod cursor;
pub(crate) mod fetcher;
mod places;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::sync::{mpsc, watch};

pub use batch::{ReadBatch, ReadRecord, Told};

use crate::client::ClientShared;
use crate::config::{Isolation, OutOfRange, ReaderSettings, Settings};
use crate::error::Error;
pub(crate) use budget::Budget;
use fetcher::{Fetcher, Plan, Source};
pub(crate) use places::Places;

/// Bytes that a reader fetches ahead of its user.
pub(crate) const PREFETCH_BYTES: usize = 8 * 1024 * 1024;

/// Where reading begins, in each partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// At the first record that is kept.
    #[default]
    Earliest,
    /// Behind the last record, as of the moment the reader starts.
    Latest,
    /// At this offset.
    Offset(i64),
    /// At the first record of this time or later, in milliseconds since the Unix epoch; behind the
    /// last record if there is none.
    Timestamp(i64),
    /// This many offsets before the end.
    Last(u64),
}

/// Sets up a [`Reader`]. Made by [`Client::read`](crate::Client::read).
#[must_use = "a builder does nothing until its reader starts"]
pub struct ReaderBuilder {
    client: Arc<ClientShared>,
    topic: String,
    partitions: Option<Vec<i32>>,
    from: From,
    prefetch_bytes: usize,
    settings: Settings,
    error: Option<Error>,
}

impl ReaderBuilder {
    pub(crate) fn new(client: Arc<ClientShared>, topic: String) -> ReaderBuilder {
        let settings = client.settings.clone();
        ReaderBuilder {
            client,
            topic,
            partitions: None,
            from: From::Earliest,
            prefetch_bytes: PREFETCH_BYTES,
            settings,
            error: None,
        }
    }

    fn edit(mut self, edit: impl FnOnce(&mut ReaderSettings)) -> ReaderBuilder {
        edit(&mut self.settings.reader);
        self
    }

    /// Reads this partition. Repeated: these partitions. Default: all that the topic has when the
    /// reader starts.
    pub fn partition(mut self, partition: i32) -> ReaderBuilder {
        self.partitions.get_or_insert_default().push(partition);
        self
    }

    /// Reads these partitions.
    pub fn partitions(mut self, partitions: impl IntoIterator<Item = i32>) -> ReaderBuilder {
        self.partitions.get_or_insert_default().extend(partitions);
        self
    }

    /// Where reading begins. Default: the earliest record.
    pub fn from(mut self, from: From) -> ReaderBuilder {
        self.from = from;
        self
    }

    /// `isolation.level`.
    pub fn isolation(self, isolation: Isolation) -> ReaderBuilder {
        self.edit(|settings| settings.isolation = isolation)
    }

    /// What happens where the offset does not exist (any more). Default: an error.
    pub fn on_out_of_range(self, action: OutOfRange) -> ReaderBuilder {
        self.edit(|settings| settings.out_of_range = action)
    }

    /// `fetch.max.wait.ms`: how long a broker waits for `fetch.min.bytes`.
    pub fn max_wait(self, limit: Duration) -> ReaderBuilder {
        self.edit(|settings| settings.wait_max = limit)
    }

    /// `fetch.min.bytes`.
    pub fn min_bytes(self, bytes: i32) -> ReaderBuilder {
        self.edit(|settings| settings.fetch_bytes_min = bytes)
    }

    /// `fetch.max.bytes`.
    pub fn max_bytes(self, bytes: i32) -> ReaderBuilder {
        self.edit(|settings| settings.fetch_bytes_max = bytes)
    }

    /// `max.partition.fetch.bytes`.
    pub fn max_partition_bytes(self, bytes: i32) -> ReaderBuilder {
        self.edit(|settings| settings.partition_bytes_max = bytes)
    }

    /// How many bytes are fetched ahead. At least one fetch is always on its way or waiting.
    pub fn prefetch_bytes(mut self, bytes: usize) -> ReaderBuilder {
        self.prefetch_bytes = bytes;
        self
    }

    /// Any reader property, by Kafka's name. A wrong one is the reader's first and only item.
    pub fn set(mut self, name: &str, value: &str) -> ReaderBuilder {
        if let Err(error) = self.settings.apply(name, value) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Starts a reader that ends at the high watermarks (the last stable offsets, for committed
    /// records) that hold when it starts.
    pub fn until_high_watermark(self) -> Reader {
        self.start(true)
    }

    /// Starts a reader that goes on for ever.
    pub fn follow(self) -> Reader {
        self.start(false)
    }

    fn start(self, bounded: bool) -> Reader {
        let (batches, receiver) = mpsc::unbounded_channel();
        let (started, starting) = watch::channel(None);
        let budget = Budget::new(self.prefetch_bytes);
        let reader = Reader {
            batches: receiver,
            budget: budget.clone(),
            starting,
        };
        if let Some(error) = self.error {
            // The receiver is ours, and open.
            let _ = batches.send(Err(error));
            return reader;
        }
        let plan = Plan {
            topic: self.topic,
            partitions: self.partitions,
            from: self.from,
            bounded,
        };
        let tasks = self.client.net.tasks.clone();
        let source = Source::Topic { plan, started };
        let settings = self.settings.reader;
        tasks.spawn(Fetcher::new(self.client, settings, source, budget, batches).run());
        reader
    }
}

/// A running reader: a stream of batches, or of [`records`](Reader::records).
///
/// Fetches ahead in the background, from when it is made until it is dropped. Records of one
/// partition come in order, those of different partitions interleaved. It gets over changes of
/// leaders and lost connections by itself; an error is its last item.
pub struct Reader {
    batches: mpsc::UnboundedReceiver<Result<ReadBatch, Error>>,
    budget: Budget,
    starting: watch::Receiver<Option<Vec<(i32, i64)>>>,
}

impl Reader {
    /// The next batch; `None` at the end.
    ///
    /// Cancel-safe: dropped halfway, no batch is lost.
    pub async fn next(&mut self) -> Option<Result<ReadBatch, Error>> {
        std::future::poll_fn(|cx| self.poll_batch(cx)).await
    }

    /// Waits until the reader knows where it begins: whatever is written to a partition after
    /// that, a reader [`From::Latest`] sees. Returns partitions with their first offsets; none if
    /// the reader failed, which the stream tells.
    ///
    /// Cancel-safe.
    pub async fn started(&mut self) -> Vec<(i32, i64)> {
        match self.starting.wait_for(Option::is_some).await {
            Ok(starts) => starts.clone().unwrap_or_default(),
            Err(_failed) => Vec::new(),
        }
    }

    /// The records of the batches, one by one.
    pub fn records(self) -> Records {
        Records {
            reader: self,
            current: None,
        }
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReadBatch, Error>>> {
        let item = std::task::ready!(self.batches.poll_recv(cx));
        if let Some(Ok(batch)) = &item {
            self.budget.free(batch.fetched_bytes);
        }
        Poll::Ready(item)
    }
}

impl Stream for Reader {
    type Item = Result<ReadBatch, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_batch(cx)
    }
}

/// The records of a [`Reader`], as a stream.
pub struct Records {
    reader: Reader,
    current: Option<std::vec::IntoIter<ReadRecord>>,
}

impl Records {
    /// The next record; `None` at the end.
    ///
    /// Cancel-safe: dropped halfway, no record is lost.
    pub async fn next(&mut self) -> Option<Result<ReadRecord, Error>> {
        std::future::poll_fn(|cx| self.poll_record(cx)).await
    }

    fn poll_record(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReadRecord, Error>>> {
        loop {
            if let Some(record) = self.current.as_mut().and_then(Iterator::next) {
                return Poll::Ready(Some(Ok(record)));
            }
            match std::task::ready!(self.reader.poll_batch(cx)) {
                Some(Ok(batch)) => self.current = Some(batch.into_iter()),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Stream for Records {
    type Item = Result<ReadRecord, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_record(cx)
    }
}
