//! The inner loops: dot products, weighted sums and exponentials in f32, for any SIMD level.
//!
//! A level is chosen once a work item; everything here is inlined into the function that is compiled for it. Rows are taken in blocks
//! whose sums stay in registers, so that K or V is read, and widened, once for several rows.
#![allow(unsafe_code)]

use super::ahead::Ahead;
use super::level::{Bf16Level, Level};
use super::load::Load;
use super::vectors::Vectors;
use half::bf16;

/// How queries and keys are multiplied. Products are added up in f32.
pub(super) trait Products<L: Level, K> {
    /// What queries are.
    type Query;
    /// Neighbouring elements of a query or a key, as they are multiplied.
    type Operand: Copy;
    /// Elements of an operand. They divide the head dimension.
    const WIDTH: usize;

    /// Reads an operand of a query.
    ///
    /// # Safety
    /// [`Products::WIDTH`] elements can be read at `from`.
    unsafe fn query(level: L, from: *const Self::Query) -> Self::Operand;

    /// Reads an operand of a key.
    ///
    /// # Safety
    /// As for [`Products::query`].
    unsafe fn key(level: L, from: *const K) -> Self::Operand;

    /// `q * k + sum`, where elements that share a lane are added in an order that nothing else changes.
    fn mul_add(level: L, q: Self::Operand, k: Self::Operand, sum: L::Vector) -> L::Vector;
}

/// Queries are f32, and keys are widened.
#[derive(Clone, Copy, Debug)]
pub(super) enum InF32 {}

impl<L: Level, K: Load> Products<L, K> for InF32 {
    type Query = f32;
    type Operand = L::Vector;
    const WIDTH: usize = L::LANES;

    #[inline(always)]
    unsafe fn query(level: L, from: *const f32) -> L::Vector {
        // SAFETY: the caller's.
        unsafe { level.load(from) }
    }

    #[inline(always)]
    unsafe fn key(level: L, from: *const K) -> L::Vector {
        // SAFETY: the caller's.
        unsafe { K::load(level, from) }
    }

    #[inline(always)]
    fn mul_add(level: L, q: L::Vector, k: L::Vector, sum: L::Vector) -> L::Vector {
        level.mul_add(q, k, sum)
    }
}

/// Both are bf16, and multiplied as they are: each product is exact.
#[derive(Clone, Copy, Debug)]
pub(super) enum InBf16 {}

impl<L: Bf16Level> Products<L, bf16> for InBf16 {
    type Query = bf16;
    type Operand = L::Pairs;
    const WIDTH: usize = 2 * L::LANES;

    #[inline(always)]
    unsafe fn query(level: L, from: *const bf16) -> L::Pairs {
        // SAFETY: the caller's.
        unsafe { level.load_pairs(from) }
    }

    #[inline(always)]
    unsafe fn key(level: L, from: *const bf16) -> L::Pairs {
        // SAFETY: the caller's.
        unsafe { level.load_pairs(from) }
    }

    #[inline(always)]
    fn mul_add(level: L, q: L::Pairs, k: L::Pairs, sum: L::Vector) -> L::Vector {
        level.mul_add_pairs(q, k, sum)
    }
}

/// Rows up to which each block of rows widens K and V itself; more read what was widened once. 16 bits are widened beside the multiply-adds, for nothing
/// (measured with AVX2 on a Zen 3, with AVX-512 on a newer EPYC). Not so FP8, which takes several instructions a vector.
pub(super) const fn rows_in_place<L: Level, K: Load>() -> usize {
    match (K::IS_F32, L::WIDENS) {
        (true, _) => usize::MAX,
        (false, false) => 0,
        (false, true) if size_of::<K>() == 2 => usize::MAX,
        (false, true) => 12,
    }
}

/// Turns of an inner loop before what is due is fetched ahead. Bursts wait for each other. With few rows memory is the limit, and each turn
/// asks for some lines; with more, products are, and every few turns do.
const fn turns<L: Level, const R: usize>() -> usize {
    if R <= 2 { 1 } else { 64 / L::LANES }
}

/// Rows of the next block, of so many that are left: as few blocks as can be of six rows at most, as even as can be. With six, and with five, each pair
/// of vectors of K feeds enough multiply-adds to hide their latency.
const fn rows_of_block(left: usize) -> usize {
    left.div_ceil(left.div_ceil(6))
}

/// `scores[row][token] = q[row] . k[token]` for all rows and tokens.
///
/// `queries` is `[rows, head_dim]`, `scores` is `[rows, stride]`. Which rows and tokens are computed together changes no bit.
#[inline(always)]
pub(super) fn scores<L: Level, P: Products<L, K>, K: Load>(
    level: L,
    queries: &[P::Query],
    keys: &Vectors<'_, K>,
    scores: &mut [f32],
    stride: usize,
    ahead: &mut Ahead<'_>,
) {
    let head_dim = keys.head_dim();
    let rows = queries.len() / head_dim;
    let mut row = 0;
    while row < rows {
        let (q, s) = (&queries[row * head_dim..], &mut scores[row * stride..]);
        let block = rows_of_block(rows - row);
        match (block, L::REGISTERS >= 32) {
            (1, _) => score_rows::<L, P, K, 1, 8>(level, q, keys, s, stride, ahead),
            (2, false) => score_rows::<L, P, K, 2, 4>(level, q, keys, s, stride, ahead),
            (2, true) => score_rows::<L, P, K, 2, 8>(level, q, keys, s, stride, ahead),
            (3, _) => score_rows::<L, P, K, 3, 4>(level, q, keys, s, stride, ahead),
            (4, false) => score_rows::<L, P, K, 4, 2>(level, q, keys, s, stride, ahead),
            (4, true) => score_rows::<L, P, K, 4, 4>(level, q, keys, s, stride, ahead),
            (5, false) => score_rows::<L, P, K, 5, 2>(level, q, keys, s, stride, ahead),
            (5, true) => score_rows::<L, P, K, 5, 4>(level, q, keys, s, stride, ahead),
            (_, false) => score_rows::<L, P, K, 6, 2>(level, q, keys, s, stride, ahead),
            (_, true) => score_rows::<L, P, K, 6, 4>(level, q, keys, s, stride, ahead),
        }
        row += block;
    }
}

#[inline(always)]
fn score_rows<L: Level, P: Products<L, K>, K: Load, const R: usize, const T: usize>(
    level: L,
    queries: &[P::Query],
    keys: &Vectors<'_, K>,
    scores: &mut [f32],
    stride: usize,
    ahead: &mut Ahead<'_>,
) {
    let tokens = keys.len();
    assert!(keys.head_dim().is_multiple_of(P::WIDTH));
    assert!(queries.len() >= R * keys.head_dim() && scores.len() >= (R - 1) * stride + tokens);
    let mut token = 0;
    while token + T <= tokens {
        // SAFETY: there are so many rows of queries and of scores, and so many tokens.
        unsafe { dot_block::<L, P, K, R, T>(level, queries, keys, token, scores, stride, ahead) };
        token += T;
    }
    while token < tokens {
        // SAFETY: as above.
        unsafe { dot_block::<L, P, K, R, 1>(level, queries, keys, token, scores, stride, ahead) };
        token += 1;
    }
}

/// # Safety
/// There are `R` rows of queries and of scores, and `T` tokens from `token` on.
#[inline(always)]
unsafe fn dot_block<L: Level, P: Products<L, K>, K: Load, const R: usize, const T: usize>(
    level: L,
    queries: &[P::Query],
    keys: &Vectors<'_, K>,
    token: usize,
    scores: &mut [f32],
    stride: usize,
    ahead: &mut Ahead<'_>,
) {
    const { assert!(R * T <= 8 || matches!(R * T, 10 | 12 | 16 | 20 | 24)) };
    let head_dim = keys.head_dim();
    let mut sums = [[level.splat(0.0); T]; R];
    let mut column = 0;
    let columns = P::WIDTH.max(turns::<L, R>() * L::LANES);
    while column < head_dim {
        ahead.fetch(R * T * columns / L::LANES);
        let end = head_dim.min(column + columns);
        while column < end {
            // SAFETY: the head dimension is a multiple of the width, and the caller has `R` rows and these tokens.
            let query = |r: usize| unsafe { P::query(level, queries.as_ptr().add(r * head_dim + column)) };
            // SAFETY: as above.
            let key = |t: usize| unsafe { P::key(level, keys.at(token + t, column)) };
            // The fewer stay in registers, the others come one by one: sums and both would not fit.
            if R > T {
                let mut k = [key(0); T];
                for (t, k) in k.iter_mut().enumerate().skip(1) {
                    *k = key(t);
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let q = query(r);
                    for (sum, k) in sums.iter_mut().zip(k) {
                        *sum = P::mul_add(level, q, k, *sum);
                    }
                }
            } else {
                let mut q = [query(0); R];
                for (r, q) in q.iter_mut().enumerate().skip(1) {
                    *q = query(r);
                }
                for t in 0..T {
                    let k = key(t);
                    for (sums, q) in sums.iter_mut().zip(q) {
                        sums[t] = P::mul_add(level, q, k, sums[t]);
                    }
                }
            }
            column += P::WIDTH;
        }
    }
    // Vectors that are not there are zeros.
    let vector = |i: usize| if i < R * T { sums[i / T][i % T] } else { level.splat(0.0) };
    let mut dots = [0.0; 24];
    match R * T {
        10 | 12 => {
            dots[..8].copy_from_slice(&level.sums(std::array::from_fn(vector)));
            dots[8..12].copy_from_slice(&level.sums_of_four(std::array::from_fn(|i| vector(8 + i))));
        }
        16 => dots[..16].copy_from_slice(&level.sums_of_16(std::array::from_fn(vector))),
        20 => {
            dots[..16].copy_from_slice(&level.sums_of_16(std::array::from_fn(vector)));
            dots[16..20].copy_from_slice(&level.sums_of_four(std::array::from_fn(|i| vector(16 + i))));
        }
        24 => {
            dots[..16].copy_from_slice(&level.sums_of_16(std::array::from_fn(vector)));
            dots[16..].copy_from_slice(&level.sums(std::array::from_fn(|i| vector(16 + i))));
        }
        _ => dots[..8].copy_from_slice(&level.sums(std::array::from_fn(vector))),
    }
    for r in 0..R {
        let row = r * stride + token;
        // SAFETY: the caller has `R` rows of scores for these tokens.
        unsafe { scores.get_unchecked_mut(row..row + T) }.copy_from_slice(&dots[r * T..(r + 1) * T]);
    }
}

/// `accumulators[row] += sum over tokens of weights[row][token] * v[token]`.
///
/// `accumulators` is `[rows, head_dim]`, `weights` is `[rows, stride]`. Which rows and columns are computed together changes no bit.
#[inline(always)]
pub(super) fn accumulate<L: Level, K: Load>(
    level: L,
    weights: &[f32],
    stride: usize,
    values: &Vectors<'_, K>,
    accumulators: &mut [f32],
    ahead: &mut Ahead<'_>,
) {
    let head_dim = values.head_dim();
    let rows = accumulators.len() / head_dim;
    let mut row = 0;
    while row < rows {
        let (w, a) = (&weights[row * stride..], &mut accumulators[row * head_dim..]);
        let block = rows_of_block(rows - row);
        match (block, L::REGISTERS >= 32) {
            (1, _) => accumulate_rows::<L, K, 1, 8>(level, w, stride, values, a, ahead),
            (2, _) => accumulate_rows::<L, K, 2, 4>(level, w, stride, values, a, ahead),
            (3, _) => accumulate_rows::<L, K, 3, 4>(level, w, stride, values, a, ahead),
            (4, false) => accumulate_rows::<L, K, 4, 2>(level, w, stride, values, a, ahead),
            (4, true) => accumulate_rows::<L, K, 4, 4>(level, w, stride, values, a, ahead),
            (5, false) => accumulate_rows::<L, K, 5, 2>(level, w, stride, values, a, ahead),
            (5, true) => accumulate_rows::<L, K, 5, 4>(level, w, stride, values, a, ahead),
            (_, false) => accumulate_rows::<L, K, 6, 2>(level, w, stride, values, a, ahead),
            (_, true) => accumulate_rows::<L, K, 6, 4>(level, w, stride, values, a, ahead),
        }
        row += block;
    }
}

/// `R` rows, `C` vectors of the head dimension at a time; what is left goes one vector at a time.
#[inline(always)]
fn accumulate_rows<L: Level, K: Load, const R: usize, const C: usize>(
    level: L,
    weights: &[f32],
    stride: usize,
    values: &Vectors<'_, K>,
    accumulators: &mut [f32],
    ahead: &mut Ahead<'_>,
) {
    let head_dim = values.head_dim();
    assert!(weights.len() >= (R - 1) * stride + values.len() && accumulators.len() >= R * head_dim);
    let mut column = 0;
    while column + C * L::LANES <= head_dim {
        // SAFETY: there are so many rows of weights and accumulators, and so many columns.
        unsafe {
            accumulate_block::<L, K, R, C>(level, weights, stride, values, column, accumulators, ahead)
        };
        column += C * L::LANES;
    }
    while column < head_dim {
        // SAFETY: as above; the head dimension is a multiple of the lanes.
        unsafe {
            accumulate_block::<L, K, R, 1>(level, weights, stride, values, column, accumulators, ahead)
        };
        column += L::LANES;
    }
}

/// # Safety
/// There are `R` rows of weights and of accumulators, and `C` vectors from `column` on.
#[inline(always)]
unsafe fn accumulate_block<L: Level, K: Load, const R: usize, const C: usize>(
    level: L,
    weights: &[f32],
    stride: usize,
    values: &Vectors<'_, K>,
    column: usize,
    accumulators: &mut [f32],
    ahead: &mut Ahead<'_>,
) {
    let head_dim = values.head_dim();
    let mut sums = [[level.splat(0.0); C]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        for (c, sum) in sums.iter_mut().enumerate() {
            let at = r * head_dim + column + c * L::LANES;
            // SAFETY: the caller has these rows and columns.
            *sum = unsafe { level.load(accumulators.as_ptr().add(at)) };
        }
    }
    let turns = turns::<L, R>();
    let mut token = 0;
    while token < values.len() {
        ahead.fetch(R * C * turns);
        let end = values.len().min(token + turns);
        while token < end {
            // SAFETY: the caller has these columns.
            let value = |c: usize| unsafe { values.load(level, token, column + c * L::LANES) };
            // SAFETY: the caller has `R` rows of weights.
            let weight = |r: usize| level.splat(unsafe { *weights.get_unchecked(r * stride + token) });
            // As for the dot products.
            if R < C {
                let mut w = [level.splat(0.0); R];
                for (r, w) in w.iter_mut().enumerate() {
                    *w = weight(r);
                }
                for c in 0..C {
                    let v = value(c);
                    for (sums, w) in sums.iter_mut().zip(w) {
                        sums[c] = level.mul_add(w, v, sums[c]);
                    }
                }
            } else {
                let mut v = [level.splat(0.0); C];
                for (c, v) in v.iter_mut().enumerate() {
                    *v = value(c);
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let w = weight(r);
                    for (sum, v) in sums.iter_mut().zip(v) {
                        *sum = level.mul_add(w, v, *sum);
                    }
                }
            }
            token += 1;
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            let at = r * head_dim + column + c * L::LANES;
            // SAFETY: the caller has these rows and columns.
            unsafe { level.store(accumulators.as_mut_ptr().add(at), *sum) };
        }
    }
}

/// The largest element; -inf for none.
#[inline(always)]
pub(super) fn max(elements: &[f32]) -> f32 {
    const LANES: usize = 16;
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = elements.as_chunks::<LANES>();
    for chunk in chunks {
        for (largest, element) in largest.iter_mut().zip(chunk) {
            *largest = larger(*element, *largest);
        }
    }
    largest.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
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
/// A polynomial on [-1/2, 1/2] times a power of two made of its bits: relative error below 2e-7, exactly 1 of 0, and 0 below 2^-127. An
/// element's power has the same bits in every place.
#[inline(always)]
pub(super) fn exp2_and_sum<L: Level>(_: L, elements: &mut [f32], shift: f32) -> f32 {
    // 1.5 x 2^23: added to a small number, the low bits of the sum are the number rounded to an integer.
    const ROUND: f32 = 12_582_912.0;
    // The best in relative error (2.6e-9) of those that are 1 at 0.
    const C: [f32; 6] =
        [0.693_147_24, 0.240_226_52, 0.055_503_104, 0.009_617_693, 0.001_340_664_3, 0.000_155_946_78];
    const LANES: usize = 16;
    let mul_add = |a: f32, b: f32, c: f32| if L::FUSES { a.mul_add(b, c) } else { a * b + c };
    let exp2 = |x: f32| {
        // Of -127 the power of two is made of zeros, and is zero: so is what is masked.
        let clamped = if x > -127.0 { x } else { -127.0 };
        let rounded = clamped + ROUND;
        let f = clamped - (rounded - ROUND);
        let p = C[..5].iter().rev().fold(C[5], |p, &c| mul_add(p, f, c));
        let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
        mul_add(p, f, 1.0) * power
    };
    let mut sums = [0.0f32; LANES];
    let (chunks, rest) = elements.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (element, sum) in chunk.iter_mut().zip(&mut sums) {
            *element = exp2(*element - shift);
            *sum += *element;
        }
    }
    // Halves are added, and theirs: one after the other they would wait for each other.
    let mut lanes = LANES / 2;
    while lanes > 0 {
        for lane in 0..lanes {
            sums[lane] += sums[lane + lanes];
        }
        lanes /= 2;
    }
    let mut total = sums[0];
    for element in rest {
        *element = exp2(*element - shift);
        total += *element;
    }
    total
}

#[cfg(test)]
#[path = "simd_tests.rs"]
mod tests;
