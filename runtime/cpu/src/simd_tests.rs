use super::super::ahead::Heads;
use super::super::level::{Bf16Kernel, Isa, Kernel};
use super::super::{Element, Number};
use super::*;
use half::{bf16, f16};
use proptest::prelude::*;
use tilewright_plan::{E4m3, E5m2};

/// Dot products, and weighted sums.
struct Products<'a, K> {
    queries: &'a [f32],
    vectors: Vectors<'a, K>,
    scores: &'a mut [f32],
    weights: &'a [f32],
    accumulators: &'a mut [f32],
    stride: usize,
}

impl<K: Load> Kernel for Products<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self, level: L) {
        let Self { queries, vectors, scores: out, weights, accumulators, stride } = self;
        // More than there is to compute, so that some are left.
        let pieces = vec![0; 50];
        let heads = Heads { first: 0, count: 1, stride: 0, head_dim: vectors.head_dim() };
        let fetch = || Ahead::new(queries, &pieces, &heads, 1);
        scores::<L, InF32, K>(level, queries, &vectors, out, stride, &mut fetch());
        accumulate(level, weights, stride, &vectors, accumulators, &mut fetch());
    }
}

/// Dot products of queries in bf16: in bf16 where the level multiplies it, else in f32.
struct Bf16Products<'a> {
    queries: &'a [bf16],
    keys: Vectors<'a, bf16>,
    scores: &'a mut [f32],
    stride: usize,
}

impl Kernel for Bf16Products<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self, level: L) {
        let wide: Vec<f32> = self.queries.iter().map(|query| query.to_f32()).collect();
        let heads = Heads { first: 0, count: 1, stride: 0, head_dim: self.keys.head_dim() };
        let mut fetch = Ahead::new(&wide, &[], &heads, 1);
        scores::<L, InF32, bf16>(level, &wide, &self.keys, self.scores, self.stride, &mut fetch);
    }
}

impl Bf16Kernel for Bf16Products<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Bf16Level>(self, level: L) {
        let pieces = vec![0; 50];
        let heads = Heads { first: 0, count: 1, stride: 0, head_dim: self.keys.head_dim() };
        let mut fetch = Ahead::new(self.queries, &pieces, &heads, 1);
        scores::<L, InBf16, bf16>(level, self.queries, &self.keys, self.scores, self.stride, &mut fetch);
    }
}

struct Widen<'a, K>(Vectors<'a, K>, &'a mut [f32]);

impl<K: Load> Kernel for Widen<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self, level: L) {
        self.0.widen(level, self.1);
    }
}

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    (0..count as u32).map(|i| ((i.wrapping_mul(2_654_435_761) ^ seed) % 2001) as f32 / 1000.0 - 1.0).collect()
}

struct Exponentials<'a>(&'a mut [f32]);

impl Kernel for Exponentials<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Level>(self, level: L) -> f32 {
        exp2_and_sum(level, self.0, 0.0)
    }
}

#[test]
fn exponentials_are_accurate_over_the_whole_range() {
    for isa in Isa::available() {
        let exponents: Vec<f32> = (0..=12_600).map(|i| -(i as f32) / 100.0).collect();
        let mut powers = exponents.clone();
        let sum = isa.run(Exponentials(&mut powers));
        let mut exact_sum = 0.0;
        for (x, power) in exponents.iter().zip(&powers) {
            let exact = f64::from(*x).exp2();
            exact_sum += exact;
            let error = (f64::from(*power) - exact).abs();
            assert!(error <= 2e-7 * exact + 2e-38, "{isa:?}: 2^{x} = {power} for {exact}");
            // Alone it is no part of a vector.
            let mut alone = [*x];
            assert_eq!((isa.run(Exponentials(&mut alone)), alone[0]), (*power, *power), "{isa:?}: 2^{x}");
        }
        assert!((f64::from(sum) / exact_sum - 1.0).abs() < 1e-6, "{isa:?}: {sum} for {exact_sum}");
        let mut edges = [0.0, f32::NEG_INFINITY, -1e30, -127.0];
        assert_eq!(isa.run(Exponentials(&mut edges)), 1.0);
        assert_eq!(edges, [1.0, 0.0, 0.0, 0.0]);
    }
}

#[test]
fn the_largest_element_may_be_anywhere() {
    for len in [0, 1, 15, 16, 17, 48, 50] {
        for at in 0..len {
            let mut elements = vec![-1e9; len];
            elements[at] = -3.0;
            assert_eq!(max(&elements), -3.0, "{at} of {len}");
        }
    }
    assert_eq!(max(&[]), f32::NEG_INFINITY);
}

/// All numbers of a type, widened at every level.
fn every_number_widens<K: Number>(all: &[K]) {
    let head_dim = 16;
    let offsets: Vec<usize> = (0..all.len()).step_by(head_dim).collect();
    for isa in Isa::available() {
        let mut wide = vec![0.0; all.len()];
        isa.run(Widen(Vectors::new(all, &offsets, 0, head_dim), &mut wide));
        for (number, wide) in all.iter().zip(wide) {
            let expected = number.to_f32();
            let same = expected.to_bits() == wide.to_bits() || expected.is_nan() && wide.is_nan();
            assert!(same, "{isa:?}: {number:?} is {wide}");
        }
    }
}

#[test]
fn every_number_of_every_type_widens_to_itself() {
    every_number_widens(&(0..=u16::MAX).map(f16::from_bits).collect::<Vec<_>>());
    every_number_widens(&(0..=u16::MAX).map(bf16::from_bits).collect::<Vec<_>>());
    every_number_widens(&(0..=u8::MAX).map(E4m3::from_bits).collect::<Vec<_>>());
    every_number_widens(&(0..=u8::MAX).map(E5m2::from_bits).collect::<Vec<_>>());
    every_number_widens(&numbers(1024, 5));
}

/// Numbers of every magnitude, and what lies between two neighbours, are rounded as one at a time.
fn narrows<E: Element>(bits: impl Fn(E) -> u32) {
    let wide: Vec<f32> = (0..1u32 << 16)
        .map(|i| f32::from_bits(i << 16 | i.wrapping_mul(0x9e37_79b9) >> 16))
        .chain((0..1u32 << 16).map(|i| f32::from_bits(i << 16 | 0x8000)))
        .chain((0..1u32 << 16).map(|i| f32::from_bits(0x3800_0000 + (i << 12))))
        .collect();
    for isa in Isa::available() {
        let mut narrow = vec![E::from_f32(0.0); wide.len()];
        E::narrow_scaled(isa, &mut wide.clone(), 1.0, &mut narrow);
        for (wide, narrow) in wide.iter().zip(narrow) {
            let expected = E::from_f32(*wide);
            let both_nan = wide.is_nan() && narrow.to_f32().is_nan();
            assert!(bits(narrow) == bits(expected) || both_nan, "{isa:?}: {wide:e} is {narrow:?}");
        }
    }
}

#[test]
fn numbers_are_rounded_to_the_nearest() {
    narrows::<f16>(|x| x.to_bits().into());
    narrows::<bf16>(|x| x.to_bits().into());
    narrows::<f32>(f32::to_bits);
}

/// Products at every level, beside f64; and each row alone has the same bits as among others.
fn products<K: Number>(rows: usize, tokens: usize, head_dim: usize, seed: u32) -> Result<(), TestCaseError> {
    let stride = tokens + 3;
    let pool: Vec<K> = numbers(head_dim * (tokens + 5), seed).into_iter().map(K::from_f32).collect();
    // Tokens lie anywhere, also on top of each other.
    let offsets: Vec<usize> = (0..tokens).map(|t| (t * 7 % (tokens + 5)) * head_dim).collect();
    let vectors = Vectors::new(&pool, &offsets, 0, head_dim);
    let (queries, weights) = (numbers(rows * head_dim, !seed), numbers(rows * stride, seed ^ 2));
    let before = numbers(rows * head_dim, seed ^ 1);
    for isa in Isa::available() {
        let (mut scores, mut sums) = (vec![f32::NAN; rows * stride], before.clone());
        let (queries, weights) = (&queries[..], &weights[..]);
        isa.run(Products { queries, vectors, scores: &mut scores, weights, accumulators: &mut sums, stride });
        for r in 0..rows {
            let (mut alone, mut sum) = (vec![f32::NAN; stride], before[r * head_dim..][..head_dim].to_vec());
            let (queries, weights) = (&queries[r * head_dim..][..head_dim], &weights[r * stride..][..stride]);
            let accumulators = &mut sum[..];
            isa.run(Products { queries, vectors, scores: &mut alone, weights, accumulators, stride });
            prop_assert_eq!(&alone[..tokens], &scores[r * stride..][..tokens]);
            prop_assert_eq!(&sum[..], &sums[r * head_dim..][..head_dim]);
            for t in 0..tokens {
                let k = pool[offsets[t]..][..head_dim].iter().map(|k| f64::from(k.to_f32()));
                let exact: f64 = queries.iter().zip(k).map(|(q, k)| f64::from(*q) * k).sum();
                prop_assert!((f64::from(alone[t]) - exact).abs() < 1e-4);
            }
            for d in 0..head_dim {
                let v = |t: usize| f64::from(pool[offsets[t] + d].to_f32());
                let add: f64 = (0..tokens).map(|t| f64::from(weights[t]) * v(t)).sum();
                let exact = f64::from(before[r * head_dim + d]) + add;
                prop_assert!((f64::from(sum[d]) - exact).abs() < 1e-4);
            }
        }
    }
    Ok(())
}

/// Scores of bf16 within what their roundings allow; and each row and token alone has the same bits as among others.
fn products_of_bf16(rows: usize, tokens: usize, head_dim: usize, seed: u32) -> Result<(), TestCaseError> {
    let stride = tokens + 3;
    let narrow = |wide: Vec<f32>| wide.into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    let (pool, queries) =
        (narrow(numbers(head_dim * (tokens + 5), seed)), narrow(numbers(rows * head_dim, !seed)));
    let offsets: Vec<usize> = (0..tokens).map(|t| (t * 7 % (tokens + 5)) * head_dim).collect();
    for isa in Isa::available() {
        let compute = |queries: &[bf16], offsets: &[usize], stride: usize| {
            let mut scores = vec![f32::NAN; queries.len() / head_dim * stride];
            let keys = Vectors::new(&pool, offsets, 0, head_dim);
            isa.run_bf16(Bf16Products { queries, keys, scores: &mut scores, stride });
            scores
        };
        let together = compute(&queries, &offsets, stride);
        for (r, query) in queries.chunks(head_dim).enumerate() {
            let alone = compute(query, &offsets, stride);
            prop_assert_eq!(&alone[..tokens], &together[r * stride..][..tokens]);
            for (t, offset) in offsets.iter().enumerate() {
                prop_assert_eq!(compute(query, &[*offset], 1)[0], alone[t]);
                let products = || {
                    let pairs = query.iter().zip(&pool[*offset..]);
                    pairs.map(|(q, k)| f64::from(q.to_f32()) * f64::from(k.to_f32()))
                };
                let (exact, size): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
                // One lane adds all of them at worst, and lanes are added by four roundings at most.
                let roundings = (head_dim + 4) as f64;
                let bound = roundings * size * f64::from(f32::EPSILON) / 2.0;
                prop_assert!(
                    (f64::from(alone[t]) - exact).abs() <= bound,
                    "{isa:?}: {} for {exact}",
                    alone[t]
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn blocks_compute_what_plain_loops_do(rows in 1usize..10, tokens in 1usize..40, dim in 1usize..10, seed: u32) {
        products::<f32>(rows, tokens, dim * 16, seed)?;
        products::<f16>(rows, tokens, dim * 16, seed)?;
        products::<bf16>(rows, tokens, dim * 16, seed)?;
        products::<E4m3>(rows, tokens, dim * 16, seed)?;
        products::<E5m2>(rows, tokens, dim * 16, seed)?;
    }
    #[test]
    fn products_of_bf16_are_exact_and_each_sum_is_rounded_once(
        rows in 1usize..10,
        tokens in 1usize..20,
        dim in 1usize..5,
        seed: u32,
    ) {
        products_of_bf16(rows, tokens, dim * 32, seed)?;
    }
}
