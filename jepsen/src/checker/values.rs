//! Maps from values and partitions, fast: both are of our own making, so nobody chooses them to
//! collide, and one multiplication for each eight bytes spreads them well enough.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::history::Key;

/// A map keyed by values of a history.
pub type ValueMap<T> = HashMap<u64, T, BuildHasherDefault<QuickHasher>>;
/// A map keyed by partitions.
pub type KeyMap<T> = HashMap<Key, T, BuildHasherDefault<QuickHasher>>;

#[derive(Default)]
pub struct QuickHasher(u64);

impl Hasher for QuickHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        // Fibonacci hashing. The table looks at the top seven bits and at the low ones, so the
        // well mixed upper half is folded down.
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
