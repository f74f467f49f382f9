//! Everything that happened in a run, as one number: two runs of a seed must agree in it.

use std::fs::File;
use std::io::{BufWriter, Write};

use tokio::time::Instant;

use crate::shared::Shared;

/// Hashes what happens, in order. Clone = the same trace.
#[derive(Clone)]
pub struct Trace(Shared<Inner>);

struct Inner {
    began: Instant,
    hash: u64,
    events: u64,
    file: Option<BufWriter<File>>,
}

impl Trace {
    /// An empty trace that begins now; with a file, every event is a line in it.
    pub fn new(file: Option<File>) -> Trace {
        Trace(Shared::new(Inner {
            began: Instant::now(),
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            file: file.map(BufWriter::new),
        }))
    }

    /// Something happened: what, its numbers, the bytes that it moved.
    pub fn note(&self, what: &'static str, numbers: &[u64], bytes: &[u8]) {
        let mut inner = self.0.lock();
        let inner = &mut *inner;
        let micros = inner.began.elapsed().as_micros() as u64;
        let mut hash = mix(inner.hash, micros);
        hash = mix_bytes(hash, what.as_bytes());
        for number in numbers {
            hash = mix(hash, *number);
        }
        inner.hash = mix_bytes(hash, bytes);
        inner.events += 1;
        if let Some(file) = &mut inner.file {
            let content = mix_bytes(0, bytes);
            // A trace file that cannot be written is a shorter trace file, not another run.
            let _unwritten = writeln!(file, "{micros} {what} {numbers:?} {content:016x}");
        }
    }

    /// The number.
    pub fn hash(&self) -> u64 {
        self.0.lock().hash
    }

    /// How many events went into it.
    pub fn events(&self) -> u64 {
        self.0.lock().events
    }

    /// Since the trace began, on the simulated clock, in milliseconds.
    pub fn millis(&self) -> u64 {
        self.0.lock().began.elapsed().as_millis() as u64
    }

    /// Writes what is buffered of the file.
    pub fn flush(&self) {
        if let Some(file) = &mut self.0.lock().file {
            let _unwritten = file.flush();
        }
    }
}

/// One step of the hash.
pub fn mix(hash: u64, number: u64) -> u64 {
    (hash.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95)
}

/// The hash over bytes, eight at a time.
pub fn mix_bytes(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = word.try_into().map_or(0, u64::from_le_bytes);
        hash = mix(hash, word);
    }
    for byte in words.remainder() {
        hash = mix(hash, u64::from(*byte));
    }
    mix(hash, bytes.len() as u64)
}
