//! The numbers that batches hold: K, V and Q are a function of where an element lies, so that every process makes the same
//! one. Their values decide no time, but zeros might.
//!
//! An element is drawn by the finalizer of MurmurHash3 (Appleby, 2011) from its place in one block; memory holds copies of that block. Its
//! length divides no page, so that pages differ. `tilewright compare` has other programs compute the same batches: its script draws the same
//! numbers.

/// Elements of a block: a prime number of pairs, which no page is a multiple of.
pub const BLOCK: usize = 2 * 524_309;

/// What numbers are for: K, V and Q are drawn apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Elements of K.
    Keys = 1,
    /// Elements of V.
    Values = 2,
    /// Elements of Q.
    Query = 3,
}

/// Between the streams' first places.
const STREAM_STEP: u32 = 0x9e37_79b9;

/// The number at a place of a block: uniform in [-1, 1), a multiple of 2^-23, exact in f32. It is then rounded to the element type, to the
/// nearest.
pub const fn number(stream: Stream, place: u32) -> f32 {
    let bits = mix(place.wrapping_add((stream as u32).wrapping_mul(STREAM_STEP)));
    (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// The first `len` elements of a block, and no more than one block.
pub fn block<T>(stream: Stream, len: usize, element: impl Fn(f32) -> T) -> Vec<T> {
    (0u32..).take(len.min(BLOCK)).map(|place| element(number(stream, place))).collect()
}

const fn mix(mut bits: u32) -> u32 {
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_mix_is_murmurhash3s() {
        assert_eq!([0, 1, 2, u32::MAX].map(mix), [0, 0x514e_28b7, 0x30f4_c306, 0x81f1_6f39]);
    }

    #[test]
    fn streams_are_uniform_and_apart() {
        for stream in [Stream::Keys, Stream::Values, Stream::Query] {
            let numbers = block(stream, 1 << 16, f64::from);
            let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
            let square = numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len() as f64;
            assert!(mean.abs() < 0.01 && (square - 1.0 / 3.0).abs() < 0.01, "{stream:?}: {mean}, {square}");
        }
        let [keys, values] = [Stream::Keys, Stream::Values].map(|stream| block(stream, 1 << 12, |x| x));
        assert!(keys.iter().zip(&values).filter(|(k, v)| k == v).count() < 3);
    }

    proptest! {
        #[test]
        fn numbers_stay_in_their_range(place: u32) {
            for stream in [Stream::Keys, Stream::Values, Stream::Query] {
                let x = number(stream, place);
                prop_assert!((-1.0..1.0).contains(&x));
                prop_assert_eq!((x * (1 << 23) as f32).fract(), 0.0);
            }
        }

        #[test]
        fn no_two_pages_of_a_cache_begin_at_the_same_place(
            shift in 4u32..21, a in 0usize..65_536, b in 0usize..65_536,
        ) {
            // Pages of 16 to 2^20 elements.
            let page = 1usize << shift;
            prop_assert_eq!(a == b, a * page % BLOCK == b * page % BLOCK);
        }
    }
}
