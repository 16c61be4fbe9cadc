//! The inner loops: dot products, weighted sums and exponentials over f32, for any SIMD level.
//!
//! `pulp` dispatches once a work item; everything here is inlined into the dispatched function. Rows are taken in blocks
//! whose sums stay in registers, so that a load of K or V serves several rows.

use pulp::Simd;

/// Rows of a block: with four, each pair of K loads feeds eight multiply-adds.
pub(super) const ROW_BLOCK: usize = 4;

/// `scores[row][token] = q[row] . k[token]` for all rows and the tokens at `offsets` into `keys`.
///
/// `queries` is `[rows, head_dim]`, `scores` is `[rows, stride]`; `head_dim` is a multiple of 16.
#[inline(always)]
pub(super) fn scores<S: Simd>(
    simd: S,
    queries: &[f32],
    keys: &[f32],
    offsets: &[usize],
    head_dim: usize,
    scores: &mut [f32],
    stride: usize,
) {
    let rows = queries.len() / head_dim;
    let mut row = 0;
    while row < rows {
        let (q, s) = (&queries[row * head_dim..], &mut scores[row * stride..]);
        match rows - row {
            1 => score_rows::<S, 1, 4>(simd, q, keys, offsets, head_dim, s, stride),
            2 => score_rows::<S, 2, 4>(simd, q, keys, offsets, head_dim, s, stride),
            3 => score_rows::<S, 3, 2>(simd, q, keys, offsets, head_dim, s, stride),
            _ => score_rows::<S, ROW_BLOCK, 2>(simd, q, keys, offsets, head_dim, s, stride),
        }
        row += ROW_BLOCK;
    }
}

#[inline(always)]
fn score_rows<S: Simd, const R: usize, const T: usize>(
    simd: S,
    queries: &[f32],
    keys: &[f32],
    offsets: &[usize],
    head_dim: usize,
    scores: &mut [f32],
    stride: usize,
) {
    let mut q: [&[S::f32s]; R] = [&[]; R];
    for (r, q) in q.iter_mut().enumerate() {
        *q = S::as_simd_f32s(&queries[r * head_dim..][..head_dim]).0;
    }
    let blocks = offsets.chunks_exact(T);
    let rest = blocks.remainder();
    for (b, block) in blocks.enumerate() {
        let dots = dot_block::<S, R, T>(simd, &q, keys, block, head_dim);
        for r in 0..R {
            for t in 0..T {
                scores[r * stride + b * T + t] = dots[r][t];
            }
        }
    }
    for (i, offset) in rest.iter().enumerate() {
        let dots = dot_block::<S, R, 1>(simd, &q, keys, std::slice::from_ref(offset), head_dim);
        for r in 0..R {
            scores[r * stride + offsets.len() - rest.len() + i] = dots[r][0];
        }
    }
}

#[inline(always)]
fn dot_block<S: Simd, const R: usize, const T: usize>(
    simd: S,
    q: &[&[S::f32s]; R],
    keys: &[f32],
    offsets: &[usize],
    head_dim: usize,
) -> [[f32; T]; R] {
    let mut k: [&[S::f32s]; T] = [&[]; T];
    for (k, &offset) in k.iter_mut().zip(offsets) {
        *k = S::as_simd_f32s(&keys[offset..offset + head_dim]).0;
    }
    let lanes = k[0].len();
    // Equal lengths, said in a way that removes the bounds checks from the loop.
    assert!(k.iter().all(|k| k.len() == lanes) && q.iter().all(|q| q.len() == lanes));
    let mut sums = [[simd.splat_f32s(0.0); T]; R];
    for i in 0..lanes {
        for t in 0..T {
            let key = k[t][i];
            for r in 0..R {
                sums[r][t] = simd.mul_add_f32s(q[r][i], key, sums[r][t]);
            }
        }
    }
    let mut dots = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            dots[r][t] = simd.reduce_sum_f32s(sums[r][t]);
        }
    }
    dots
}

/// `accumulators[row] += sum over tokens of weights[row][token] * v[token]`.
///
/// `accumulators` is `[rows, head_dim]`, `weights` is `[rows, stride]`.
#[inline(always)]
pub(super) fn accumulate<S: Simd>(
    simd: S,
    weights: &[f32],
    stride: usize,
    values: &[f32],
    offsets: &[usize],
    head_dim: usize,
    accumulators: &mut [f32],
) {
    let rows = accumulators.len() / head_dim;
    let mut row = 0;
    while row < rows {
        let (w, a) = (&weights[row * stride..], &mut accumulators[row * head_dim..]);
        match rows - row {
            1 => accumulate_rows::<S, 1, 8>(simd, w, stride, values, offsets, head_dim, a),
            2 => accumulate_rows::<S, 2, 4>(simd, w, stride, values, offsets, head_dim, a),
            3 => accumulate_rows::<S, 3, 2>(simd, w, stride, values, offsets, head_dim, a),
            _ => accumulate_rows::<S, ROW_BLOCK, 2>(simd, w, stride, values, offsets, head_dim, a),
        }
        row += ROW_BLOCK;
    }
}

/// `R` rows, `C` vectors of the head dimension at a time; what is left goes one vector at a time.
#[inline(always)]
fn accumulate_rows<S: Simd, const R: usize, const C: usize>(
    simd: S,
    weights: &[f32],
    stride: usize,
    values: &[f32],
    offsets: &[usize],
    head_dim: usize,
    accumulators: &mut [f32],
) {
    let lanes = size_of::<S::f32s>() / size_of::<f32>();
    let mut column = 0;
    while column + C * lanes <= head_dim {
        accumulate_block::<S, R, C>(simd, weights, stride, values, offsets, head_dim, column, accumulators);
        column += C * lanes;
    }
    while column < head_dim {
        accumulate_block::<S, R, 1>(simd, weights, stride, values, offsets, head_dim, column, accumulators);
        column += lanes;
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "an inner loop: its arguments are registers")]
fn accumulate_block<S: Simd, const R: usize, const C: usize>(
    simd: S,
    weights: &[f32],
    stride: usize,
    values: &[f32],
    offsets: &[usize],
    head_dim: usize,
    column: usize,
    accumulators: &mut [f32],
) {
    let width = C * size_of::<S::f32s>() / size_of::<f32>();
    let mut sums = [[simd.splat_f32s(0.0); C]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        let row = S::as_simd_f32s(&accumulators[r * head_dim + column..][..width]).0;
        sums.copy_from_slice(&row[..C]);
    }
    let mut rows: [&[f32]; R] = [&[]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &weights[r * stride..][..offsets.len()];
    }
    for (t, &offset) in offsets.iter().enumerate() {
        let v = S::as_simd_f32s(&values[offset + column..offset + column + width]).0;
        let v: &[S::f32s; C] = v[..C].try_into().expect("the slice has C vectors");
        for r in 0..R {
            let weight = simd.splat_f32s(rows[r][t]);
            for c in 0..C {
                sums[r][c] = simd.mul_add_f32s(weight, v[c], sums[r][c]);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let row = S::as_mut_simd_f32s(&mut accumulators[r * head_dim + column..][..width]).0;
        row[..C].copy_from_slice(sums);
    }
}

/// The largest element; -inf for none.
#[inline(always)]
pub(super) fn max<S: Simd>(simd: S, elements: &[f32]) -> f32 {
    let (head, tail) = S::as_simd_f32s(elements);
    let mut largest = simd.splat_f32s(f32::NEG_INFINITY);
    for &vector in head {
        largest = simd.max_f32s(largest, vector);
    }
    tail.iter().copied().fold(simd.reduce_max_f32s(largest), f32::max)
}

/// Multiplies all elements.
#[inline(always)]
pub(super) fn scale(elements: &mut [f32], factor: f32) {
    for element in elements {
        *element *= factor;
    }
}

/// Replaces each element by `2^(element - shift)` and returns their sum. Elements are at most `shift`.
///
/// A polynomial on [-1/2, 1/2] times a power of two made of its bits: relative error below 3e-7. Plain arithmetic without
/// fused operations, so that every SIMD level gives the same bits.
#[inline(always)]
pub(super) fn exp2_and_sum(elements: &mut [f32], shift: f32) -> f32 {
    // 1.5 x 2^23: added to a small number, the low bits of the sum are the number rounded to an integer.
    const ROUND: f32 = 12_582_912.0;
    // ln(2)^k / k!
    const C: [f32; 8] = [
        1.0,
        std::f32::consts::LN_2,
        0.240_226_5,
        0.055_504_11,
        0.009_618_129,
        0.001_333_355_8,
        0.000_154_035_3,
        0.000_015_252_734,
    ];
    const LANES: usize = 16;
    let exp2 = |x: f32| {
        // Below, the result would be subnormal: such a weight is nothing.
        let clamped = if x > -126.0 { x } else { -126.0 };
        let rounded = clamped + ROUND;
        let f = clamped - (rounded - ROUND);
        let p = C[0] + f * (C[1] + f * (C[2] + f * (C[3] + f * (C[4] + f * (C[5] + f * (C[6] + f * C[7]))))));
        let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
        if x > -126.0 { p * power } else { 0.0 }
    };
    let mut sums = [0.0f32; LANES];
    let (chunks, rest) = elements.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (element, sum) in chunk.iter_mut().zip(&mut sums) {
            *element = exp2(*element - shift);
            *sum += *element;
        }
    }
    let mut total: f32 = sums.iter().sum();
    for element in rest {
        *element = exp2(*element - shift);
        total += *element;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use pulp::{Arch, WithSimd};

    struct Dispatch<F>(F);

    trait Body {
        fn run<S: Simd>(self, simd: S);
    }

    impl<F: Body> WithSimd for Dispatch<F> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            self.0.run(simd);
        }
    }

    struct Product<'a> {
        left: &'a [f32],
        right: &'a [f32],
        offsets: &'a [usize],
        head_dim: usize,
        out: &'a mut [f32],
        stride: usize,
        scores: bool,
    }

    impl Body for Product<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            let Self { left, right, offsets, head_dim, out, stride, scores: qk } = self;
            if qk {
                scores(simd, left, right, offsets, head_dim, out, stride);
            } else {
                accumulate(simd, left, stride, right, offsets, head_dim, out);
            }
        }
    }

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        (0..count as u32)
            .map(|i| ((i.wrapping_mul(2_654_435_761) ^ seed) % 2001) as f32 / 1000.0 - 1.0)
            .collect()
    }

    #[test]
    fn exponentials_are_accurate_over_the_whole_range() {
        for i in 0..=12_600 {
            let x = -(i as f32) / 100.0;
            let mut one = [x];
            let sum = exp2_and_sum(&mut one, 0.0);
            let exact = f64::from(x).exp2();
            assert!(
                (f64::from(one[0]) - exact).abs() <= 3e-7 * exact + 2e-38,
                "2^{x} = {} for {exact}",
                one[0]
            );
            assert_eq!(sum, one[0]);
        }
        let mut edges = [0.0, f32::NEG_INFINITY, -1e30, -127.0];
        assert_eq!(exp2_and_sum(&mut edges, 0.0), 1.0);
        assert_eq!(edges, [1.0, 0.0, 0.0, 0.0]);
    }

    proptest! {
        #[test]
        fn blocks_compute_what_plain_loops_do(rows in 1usize..10, tokens in 1usize..40, dim in 1usize..5, seed: u32) {
            let (head_dim, stride) = (dim * 16, tokens + 3);
            let pool = numbers(head_dim * (tokens + 5), seed);
            // Tokens lie anywhere, also on top of each other.
            let offsets: Vec<usize> = (0..tokens).map(|t| (t * 7 % (tokens + 5)) * head_dim).collect();
            let queries = numbers(rows * head_dim, !seed);
            let mut found = vec![f32::NAN; rows * stride];
            Arch::new().dispatch(Dispatch(Product {
                left: &queries, right: &pool, offsets: &offsets, head_dim, out: &mut found, stride, scores: true,
            }));
            let mut sums = numbers(rows * head_dim, seed ^ 1);
            let before = sums.clone();
            let weights = numbers(rows * stride, seed ^ 2);
            Arch::new().dispatch(Dispatch(Product {
                left: &weights, right: &pool, offsets: &offsets, head_dim, out: &mut sums, stride, scores: false,
            }));
            for r in 0..rows {
                for t in 0..tokens {
                    let q = &queries[r * head_dim..][..head_dim];
                    let k = &pool[offsets[t]..][..head_dim];
                    let exact: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    prop_assert!((f64::from(found[r * stride + t]) - exact).abs() < 1e-4);
                }
                for d in 0..head_dim {
                    let add: f64 = (0..tokens)
                        .map(|t| f64::from(weights[r * stride + t]) * f64::from(pool[offsets[t] + d]))
                        .sum();
                    let exact = f64::from(before[r * head_dim + d]) + add;
                    prop_assert!((f64::from(sums[r * head_dim + d]) - exact).abs() < 1e-4);
                }
            }
        }
    }
}
