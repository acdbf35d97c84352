//! xorshift64*: the same seed gives the same run everywhere.

/// A stream of numbers. Several of one seed, by `lane`, so that leaving a fault
/// out does not change what the network does.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64, lane: u64) -> Self {
        let mixed = seed
            .wrapping_add(lane.wrapping_mul(0xD1B5_4A32_D192_ED03))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut rng = Self((mixed ^ (mixed >> 29)) | 1);
        for _ in 0..4 {
            rng.draw();
        }
        rng
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    /// Below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.draw() % (bound as u64).max(1)).unwrap_or(0)
    }

    /// From `low` to `high`, both inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high.saturating_sub(low) + 1)
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.draw() % 100 < percent
    }
}
