//! The word list with keys: `words.py` says what it is, and judges what was read of it.

use std::io::Read;

use anyhow::{Context, ensure};

/// A record: its key and its value.
pub type Line = (Vec<u8>, Vec<u8>);

/// The lines of KEY:LINE on standard input.
pub fn input() -> anyhow::Result<Vec<Line>> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    text.strip_suffix(b"\n")
        .context("the last line does not end")?
        .split(|byte| *byte == b'\n')
        .map(|line| {
            let colon = line.iter().position(|byte| *byte == b':');
            let (key, value) = line.split_at(colon.context("a line without a key")?);
            Ok((key.to_vec(), value[1..].to_vec()))
        })
        .collect()
}

/// Where Kafka's partitioner sends a key: murmur2 of its bytes, the sign dropped, by the number of
/// partitions. For clients that have no partitioner.
pub fn partition_of(key: &[u8], partitions: i32) -> i32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ (word ^ (word >> 24)).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let rest = rest
            .iter()
            .rev()
            .fold(0, |all, byte| all << 8 | u32::from(*byte));
        hash = (hash ^ rest).wrapping_mul(FACTOR);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(FACTOR);
    ((hash ^ (hash >> 15)) & i32::MAX as u32) as i32 % partitions
}

/// What was read of a topic: the text of each partition.
pub struct Received(Vec<(i64, Vec<u8>)>);

impl Received {
    pub fn new(partitions: i32) -> Received {
        Received((0..partitions).map(|_| (0, Vec::new())).collect())
    }

    /// The next record of a partition.
    pub fn add(&mut self, partition: i32, offset: i64, line: (&[u8], &[u8])) -> anyhow::Result<()> {
        let (due, text) = &mut self.0[partition as usize];
        ensure!(
            offset == *due,
            "partition {partition}: offset {offset} where {due} is due"
        );
        *due += 1;
        for part in [line.0, b":", line.1, b"\n"] {
            text.extend_from_slice(part);
        }
        Ok(())
    }

    /// The number of records so far.
    pub fn count(&self) -> i64 {
        self.0.iter().map(|(next, _)| next).sum()
    }

    /// One file for each partition: PREFIX-0, PREFIX-1, ...
    pub fn write(&self, prefix: &str) -> anyhow::Result<()> {
        for (partition, (_, text)) in self.0.iter().enumerate() {
            std::fs::write(format!("{prefix}-{partition}"), text)?;
        }
        Ok(())
    }
}

/// What a client is asked to do: see `drive.sh`.
pub enum Verb {
    Smoke,
    Produce { topic: String, codec: String },
    Read { topic: String, prefix: String },
}

/// The brokers and the verb of the command line.
pub fn arguments() -> anyhow::Result<(String, Verb)> {
    let mut given = std::env::args().skip(1);
    let mut next = || given.next().context("an argument is missing");
    let (brokers, verb) = (next()?, next()?);
    let verb = match verb.as_str() {
        "smoke" => Verb::Smoke,
        "produce" => Verb::Produce {
            topic: next()?,
            codec: next()?,
        },
        "read" => Verb::Read {
            topic: next()?,
            prefix: next()?,
        },
        other => anyhow::bail!("{other} is none of smoke, produce, read"),
    };
    Ok((brokers, verb))
}
