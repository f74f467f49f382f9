//! Chance from a seed: the same seed plans the same faults.

/// A small generator (splitmix64). Not for secrets.
#[derive(Clone, Debug)]
pub struct Chance {
    state: u64,
}

impl Chance {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Chance {
        Chance { state: seed }
    }

    /// An independent sequence for a purpose, the same one each time.
    pub fn fork(seed: u64, purpose: u64) -> Chance {
        let mut mixed = Chance::new(seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let state = mixed.next();
        Chance { state }
    }

    /// The next number.
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, so it is no iterator"
    )]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 for a `bound` of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Whether something of this probability happens.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of them; `None` of none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let place = self.below(from.len() as u64);
        from.get(usize::try_from(place).unwrap_or(0))
    }

    /// Puts them in any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap_or(0);
            items.swap(last, other);
        }
    }
}
