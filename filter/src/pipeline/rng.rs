//! Chance, seeded by whoever decides: a VM has no source of randomness of its own.

/// SplitMix64: small, fast, and good enough to break ties.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Equal seeds give equal sequences. Seed each VM differently.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A whole number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f32 {
        unit(self.bits())
    }
}

/// Scrambles 64 bits so that each bit of the answer depends on all of them.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The high bits as a number in [0, 1), in steps that an f32 holds exactly.
pub fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u32 << 24) as f32
}
