//! Chance for the simulation of the host: only tests use it.

/// A small generator: the seed is printed where a test fails, and gives the same run again.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    fn bits(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 >> 40).expect("24 bits")
    }

    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        f64::from(self.bits()) / f64::from(1_u32 << 24)
    }

    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }

    pub(super) fn below(&mut self, limit: u32) -> u32 {
        self.bits() % limit
    }
}
