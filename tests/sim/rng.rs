//! The simulator's only source of chance: one seed, one sequence, on every machine. Must never read
//! a clock, an address or a hash order, or a seed would not replay.

/// SplitMix64 (Steele, Lea, Flood 2014): one word of state, passes BigCrush.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        rng.next();
        rng
    }

    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number from `low` to `high`, small ones more often: a random power of two bounds the draw.
    pub fn skewed(&mut self, low: u64, high: u64) -> u64 {
        let bits = u64::from(64 - (high - low).leading_zeros());
        let top = 1u64.checked_shl(self.below(bits + 1) as u32).unwrap_or(u64::MAX);
        low + self.below(top.min(high - low + 1))
    }

    /// True `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// An index below `len`; `None` when there is none.
    pub fn index(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.below(len as u64) as usize)
    }

    /// One of them; `None` when there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        self.index(from.len()).map(|at| from[at])
    }
}

/// A seed made of two numbers and a name.
pub fn mix(seed: u64, salt: u64, name: &str) -> u64 {
    let mut rng = Rng::new(seed ^ salt.rotate_left(32));
    name.bytes().fold(rng.next(), |hash, byte| Rng::new(hash ^ u64::from(byte)).next())
}
