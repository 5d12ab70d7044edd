//! A seeded random number generator (SplitMix64), and a deck of cards.

use std::time::Duration;

/// A random number generator. The same seed gives the same numbers.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
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
        let mut left = self.below(weighted.iter().map(|(weight, _)| weight).sum());
        for (weight, item) in weighted {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *item,
            }
        }
        unreachable!("the drawn number is less than the sum of weights")
    }

    /// Between the two, in steps of 10 ms.
    pub fn time(&mut self, from_ms: usize, to_ms: usize) -> Duration {
        Duration::from_millis((from_ms + 10 * self.below((to_ms - from_ms) / 10 + 1)) as u64)
    }
}

/// A deck of cards. Each card is drawn once before any is drawn again, so even a short run has all of them.
#[derive(Debug)]
pub struct Deck<T> {
    all: Vec<T>,
    ahead: Vec<T>,
}

impl<T: Copy> Deck<T> {
    /// Makes a deck of these cards; there is at least one.
    pub fn new(all: Vec<T>) -> Self {
        Self { all, ahead: Vec::new() }
    }

    /// The next one.
    pub fn draw(&mut self, rng: &mut Rng) -> T {
        if self.ahead.is_empty() {
            self.ahead.clone_from(&self.all);
        }
        self.ahead.swap_remove(rng.below(self.ahead.len()))
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::trouble::Broken;

    #[test]
    fn each_seed_draws_each_trouble_as_often_as_any_other_and_in_an_order_of_its_own() {
        let all = Broken::value_variants();
        let orders = (0..20).map(|seed| {
            let (mut deck, mut rng) = (Deck::new(all.to_vec()), Rng::new(seed));
            let drawn: Vec<Broken> = (0..3 * all.len()).map(|_| deck.draw(&mut rng)).collect();
            for kind in all {
                assert_eq!(drawn.iter().filter(|one| *one == kind).count(), 3, "{kind:?} of seed {seed}");
            }
            format!("{drawn:?}")
        });
        let different: std::collections::BTreeSet<String> = orders.collect();
        assert_eq!(different.len(), 20);
    }
}
