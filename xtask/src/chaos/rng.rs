//! Randomness that a seed replays (splitmix64).

/// A sequence of numbers.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True `percent` times out of a hundred.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `all`.
    pub(super) fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(all.len()).ok().filter(|n| *n > 0)?;
        usize::try_from(self.below(count))
            .ok()
            .and_then(|at| all.get(at))
    }
}
