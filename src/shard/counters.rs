//! What a shard's connections count: plain cells, added up when somebody asks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// One API's numbers.
#[derive(Clone, Debug, Default)]
pub struct ApiCount {
    /// Requests served.
    pub requests: u64,
    /// Error answers by Kafka's name of the error.
    pub errors: BTreeMap<&'static str, u64>,
    /// Microseconds from the end of the request to its reply, added up.
    pub micros_total: u64,
    /// Requests by time; see [`BUCKET_MICROS`], and one more for what is slower.
    pub buckets: [u64; BUCKET_MICROS.len() + 1],
}

/// Upper bounds of [`ApiCount::buckets`] in microseconds, but for the last.
pub const BUCKET_MICROS: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000,
];

/// A shard's counters.
#[derive(Default)]
pub struct Counters {
    /// Open client connections.
    pub connections: Cell<u64>,
    /// Bytes of batches produced.
    pub produced_bytes: Cell<u64>,
    /// Records produced.
    pub produced_records: Cell<u64>,
    /// Bytes of batches fetched.
    pub fetched_bytes: Cell<u64>,
    /// Records fetched.
    pub fetched_records: Cell<u64>,
    apis: RefCell<BTreeMap<i16, ApiCount>>,
}

/// A copy of the counters, to send elsewhere.
#[derive(Clone, Debug, Default)]
pub struct CounterValues {
    /// Open client connections.
    pub connections: u64,
    /// Bytes of batches produced.
    pub produced_bytes: u64,
    /// Records produced.
    pub produced_records: u64,
    /// Bytes of batches fetched.
    pub fetched_bytes: u64,
    /// Records fetched.
    pub fetched_records: u64,
    /// By API key.
    pub apis: BTreeMap<i16, ApiCount>,
}

impl Counters {
    /// Adds to one counter.
    pub fn add(cell: &Cell<u64>, by: u64) {
        cell.set(cell.get().wrapping_add(by));
    }

    /// Counts a served request.
    pub fn served(&self, api_key: i16, micros: u64) {
        let mut apis = self.apis.borrow_mut();
        let count = apis.entry(api_key).or_default();
        count.requests += 1;
        count.micros_total = count.micros_total.wrapping_add(micros);
        let bucket = BUCKET_MICROS.iter().position(|max| micros < *max);
        if let Some(slot) = count.buckets.get_mut(bucket.unwrap_or(BUCKET_MICROS.len())) {
            *slot += 1;
        }
    }

    /// Counts an error answer.
    pub fn failed(&self, api_key: i16, error: &'static str) {
        let mut apis = self.apis.borrow_mut();
        *apis
            .entry(api_key)
            .or_default()
            .errors
            .entry(error)
            .or_default() += 1;
    }

    /// A copy.
    pub fn values(&self) -> CounterValues {
        CounterValues {
            connections: self.connections.get(),
            produced_bytes: self.produced_bytes.get(),
            produced_records: self.produced_records.get(),
            fetched_bytes: self.fetched_bytes.get(),
            fetched_records: self.fetched_records.get(),
            apis: self.apis.borrow().clone(),
        }
    }
}
