//! Seeded changes of valid input.

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// Numbers at which readers stumble.
const AWKWARD: [u8; 10] = [0, 1, 2, 0x3f, 0x40, 0x7f, 0x80, 0xfd, 0xfe, 0xff];
/// Longer than any frame that is read.
const LONGEST: usize = 2000;

/// A stream of inputs, the same for the same seed.
#[derive(Debug)]
pub struct Mutator {
    random: SmallRng,
}

impl Mutator {
    /// The stream with this number.
    pub fn new(seed: u64) -> Self {
        Self { random: SmallRng::seed_from_u64(seed) }
    }

    /// One of `seeds`, changed a few times; now and then bytes without any sense.
    pub fn next(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        if seeds.is_empty() || self.random.random_ratio(1, 64) {
            let mut noise = vec![0; self.random.random_range(0..300)];
            self.random.fill_bytes(&mut noise);
            return noise;
        }
        let mut input = seeds[self.random.random_range(0..seeds.len())].clone();
        for _ in 0..self.random.random_range(1..=6) {
            self.change(&mut input, seeds);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let random = &mut self.random;
        if input.is_empty() {
            input.push(random.random());
            return;
        }
        let at = random.random_range(0..input.len());
        match random.random_range(0..9) {
            0 => input[at] ^= 1 << random.random_range(0..8),
            1 => input[at] = random.random(),
            2 => input[at] = AWKWARD[random.random_range(0..AWKWARD.len())],
            3 => input[at] = input[at].wrapping_add(random.random_range(0..5)).wrapping_sub(2),
            4 => input.truncate(at),
            5 => {
                let length = random.random_range(1..40);
                input.splice(at..at, (0..length).map(|_| random.random::<u8>()));
            }
            6 => {
                let end = (at + random.random_range(1..40)).min(input.len());
                input.drain(at..end);
            }
            7 => {
                // A part of it again: options that come twice.
                let end = (at + random.random_range(1..40)).min(input.len());
                let part = input[at..end].to_vec();
                let to = random.random_range(0..=input.len());
                input.splice(to..to, part);
            }
            _ => {
                let other = &seeds[random.random_range(0..seeds.len())];
                let from = random.random_range(0..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
}
