//! What the four sides of two questions cost at least, of many candidates: the innermost step of the search.

use super::problem::Lanes;

/// The instructions of a processor.
pub(super) trait Vectors: Copy {
    /// What the four sides of two questions cost at least, of `L` candidates: low in both, low in the first feature and high in the second,
    /// high and low, high in both. `sums` is the first of these, `row_total` all that is low in the first feature, `last` all that is low
    /// in the second, `beyond` all that is high in the first.
    fn quadrants<const L: usize>(
        self,
        sums: &Lanes,
        row_total: &Lanes,
        last: &Lanes,
        beyond: &Lanes,
    ) -> [f64; 4];
}

/// Any processor.
#[derive(Clone, Copy)]
pub(super) struct Any;

impl Vectors for Any {
    #[inline(always)]
    fn quadrants<const L: usize>(
        self,
        sums: &Lanes,
        row_total: &Lanes,
        last: &Lanes,
        beyond: &Lanes,
    ) -> [f64; 4] {
        let mut least = [f64::INFINITY; 4];
        for lane in 0..L {
            let high = last[lane] - sums[lane];
            let sides = [sums[lane], row_total[lane] - sums[lane], high, beyond[lane] - high];
            for (least, side) in least.iter_mut().zip(sides) {
                *least = lesser(side, *least);
            }
        }
        least
    }
}

/// Four sides at once, until four candidates of each are left; then these side by side.
#[cfg(target_arch = "x86_64")]
impl Vectors for pulp::x86::V3 {
    #[inline(always)]
    fn quadrants<const L: usize>(
        self,
        sums: &Lanes,
        row_total: &Lanes,
        last: &Lanes,
        beyond: &Lanes,
    ) -> [f64; 4] {
        let avx = self.avx;
        let four = |lanes: &Lanes, at: usize| {
            pulp::cast::<[f64; 4], core::arch::x86_64::__m256d>([
                lanes[at],
                lanes[at + 1],
                lanes[at + 2],
                lanes[at + 3],
            ])
        };
        let mut least = None;
        for at in (0..L).step_by(4) {
            let low = four(sums, at);
            let high = avx._mm256_sub_pd(four(last, at), low);
            let sides = [
                low,
                avx._mm256_sub_pd(four(row_total, at), low),
                high,
                avx._mm256_sub_pd(four(beyond, at), high),
            ];
            least = Some(match least {
                None => sides,
                Some(least) => {
                    let least: [_; 4] = least;
                    std::array::from_fn(|side| avx._mm256_min_pd(sides[side], least[side]))
                }
            });
        }
        let Some([ll, lh, hl, hh]) = least else { return [f64::INFINITY; 4] };
        let halves = |a, b| avx._mm256_min_pd(avx._mm256_unpacklo_pd(a, b), avx._mm256_unpackhi_pd(a, b));
        let (low, high) = (halves(ll, lh), halves(hl, hh));
        pulp::cast(avx._mm256_min_pd(
            avx._mm256_permute2f128_pd::<0x20>(low, high),
            avx._mm256_permute2f128_pd::<0x31>(low, high),
        ))
    }
}

/// One instruction, as costs are no NaN.
#[inline(always)]
pub(super) fn lesser(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::super::depth_two::WORK_LANES;
    use super::super::options::MAX_PORTFOLIO;
    use super::super::problem::least;
    use super::*;
    use proptest::prelude::*;

    fn lanes() -> impl Strategy<Value = Lanes> {
        prop::array::uniform16(0u32..1000).prop_map(|lanes| lanes.map(f64::from))
    }

    proptest! {
        #[test]
        fn sides_are_the_least_of_their_candidates_on_every_processor(
            sums in lanes(), low_high in lanes(), high_low in lanes(), high_high in lanes()
        ) {
            let sum = |a: &Lanes, b: &Lanes| -> Lanes { std::array::from_fn(|lane| a[lane] + b[lane]) };
            let (row_total, last, beyond) = (sum(&sums, &low_high), sum(&sums, &high_low), sum(&high_low, &high_high));
            let sides = [sums, low_high, high_low, high_high];
            let few = sides.map(|side| least(&std::array::from_fn(|lane| side[lane % WORK_LANES])));
            let all = sides.map(|side| least(&side));
            prop_assert_eq!(Any.quadrants::<WORK_LANES>(&sums, &row_total, &last, &beyond), few);
            prop_assert_eq!(Any.quadrants::<MAX_PORTFOLIO>(&sums, &row_total, &last, &beyond), all);
            #[cfg(target_arch = "x86_64")]
            if let Some(vectors) = pulp::x86::V3::try_new() {
                prop_assert_eq!(vectors.quadrants::<WORK_LANES>(&sums, &row_total, &last, &beyond), few);
                prop_assert_eq!(vectors.quadrants::<MAX_PORTFOLIO>(&sums, &row_total, &last, &beyond), all);
            }
        }
    }
}
