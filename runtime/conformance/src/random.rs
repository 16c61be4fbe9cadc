//! A tiny deterministic generator: the same numbers on every machine, and no dependency for it.

/// SplitMix64 (Steele, Lea and Flood, 2014): a counter whose bits are mixed, so that its n-th number can also be had at once.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Below `bound`; 0 if that is 0. Its bias is beyond what tests could notice.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// In [-2, 2), a multiple of 2^-22: exact in f32.
    pub(super) const fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 22) as f32 - 2.0
    }

    /// -1 or 1.
    pub(super) const fn sign(&mut self) -> f32 {
        if self.next() >> 63 == 0 { 1.0 } else { -1.0 }
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// A seed of its own for each place of something, whatever order they are asked in.
pub(super) fn seed_of(seed: u64, place: &[u64]) -> u64 {
    place.iter().fold(mix(seed), |seed, &part| mix(seed.wrapping_add(STEP) ^ mix(part)))
}

/// The same for a text.
pub(super) fn seed_of_name(seed: u64, name: &str) -> u64 {
    name.bytes().fold(mix(seed), |seed, byte| mix(seed.wrapping_add(STEP) ^ u64::from(byte)))
}

const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let published = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.next(), random.next(), random.next()], published);
    }

    #[test]
    fn numbers_fill_their_range() {
        let mut random = Random::new(1);
        let mut counts = [0u32; 5];
        let mut sum = 0.0;
        for _ in 0..10_000 {
            counts[random.below(5)] += 1;
            let x = random.uniform();
            assert!((-2.0..2.0).contains(&x));
            sum += x;
        }
        assert!(counts.iter().all(|&count| (1800..2200).contains(&count)), "{counts:?}");
        assert!(sum.abs() < 500.0, "{sum}");
        let mut items: Vec<u32> = (0..100).collect();
        random.shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
        assert_eq!(random.below(0), 0);
    }
}
