//! Random numbers: the system's, or a seeded sequence.

use std::sync::{Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Where random numbers come from.
pub(crate) struct Randomness {
    /// `None` = the thread's own generator, seeded by the operating system.
    seeded: Option<Mutex<StdRng>>,
}

impl Randomness {
    pub(crate) fn system() -> Randomness {
        Randomness { seeded: None }
    }

    pub(crate) fn seeded(seed: u64) -> Randomness {
        Randomness {
            seeded: Some(Mutex::new(StdRng::seed_from_u64(seed))),
        }
    }

    pub(crate) fn next_u64(&self) -> u64 {
        match &self.seeded {
            None => rand::rng().next_u64(),
            // A panic while the lock is held leaves a valid generator behind.
            Some(rng) => rng
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next_u64(),
        }
    }

    /// Uniform below `bound`; 0 for a `bound` of 0.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // Lemire's multiplication method: the high half of a 128-bit product, redrawn where the
        // low half falls into the part that does not divide evenly.
        let uneven = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if (product as u64) >= uneven {
                return (product >> 64) as u64;
            }
        }
    }
}
