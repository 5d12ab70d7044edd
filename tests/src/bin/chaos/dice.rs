//! Chance that can be thrown again: SplitMix64.

use std::time::Duration;

/// A seeded source of decisions.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("less than a usize")
    }

    /// One of them, by weight.
    pub fn pick<T: Copy>(&mut self, weighted: &[(usize, T)]) -> T {
        let mut throw = self.below(weighted.iter().map(|(weight, _)| weight).sum());
        for (weight, item) in weighted {
            match throw.checked_sub(*weight) {
                Some(rest) => throw = rest,
                None => return *item,
            }
        }
        unreachable!("the throw is less than the sum of weights")
    }

    /// Between the two, in steps of 10 ms.
    pub fn time(&mut self, from_ms: usize, to_ms: usize) -> Duration {
        Duration::from_millis((from_ms + 10 * self.below((to_ms - from_ms) / 10 + 1)) as u64)
    }
}
