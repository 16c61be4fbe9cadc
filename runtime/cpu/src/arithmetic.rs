//! What a step's products are computed in: f32 whatever K and V are, or QK^T in bf16 where the processor has an instruction for that.

use super::ahead::Ahead;
use super::kernel::Queries;
use super::level::{Bf16Level, Isa, Level};
use super::load::Load;
use super::simd::{self, InBf16, InF32, Products};
use super::vectors::Vectors;
use half::bf16;
use tilewright_kernel_templates::cpu::KV_BLOCK;
use tilewright_plan::Plan;

/// The fewest rows for which queries and K are multiplied in bf16: fewer are bound by memory, which half as many multiply-adds leave less time
/// to fetch ahead in (measured on an EPYC with AVX512-BF16).
const ROWS_IN_BF16: usize = 8;

/// Which units of a plan take their queries in bf16; the others take them in f32. A request may have tokens in both, so neither scales queries: the
/// logits of both have to agree to the last bit where all products sum up exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryForms {
    /// None.
    Wide,
    /// Those of [`ROWS_IN_BF16`] rows and more.
    ByRows,
    /// All: a batch-invariant plan's bits do not depend on which rows share a unit.
    Bf16,
}

impl QueryForms {
    /// Of a plan over K and V of type `K`.
    pub(super) fn of<K: Load>(isa: Isa, plan: &Plan) -> Self {
        match K::takes_bf16(isa, plan.geometry().head_dim as usize) {
            false => Self::Wide,
            true if plan.is_invariant() => Self::Bf16,
            true => Self::ByRows,
        }
    }

    /// Whether a unit of so many rows takes bf16.
    pub(super) fn is_bf16(self, rows: usize) -> bool {
        match self {
            Self::Wide => false,
            Self::ByRows => rows >= ROWS_IN_BF16,
            Self::Bf16 => true,
        }
    }

    /// Whether there may be a unit that takes bf16.
    pub(super) fn any_bf16(self) -> bool {
        self != Self::Wide
    }

    /// Whether there may be a unit that takes f32.
    pub(super) fn any_wide(self) -> bool {
        self != Self::Bf16
    }
}

/// Tokens of a block whose K and V are read in place: what a block of rows sums up is loaded and stored once for each.
const BLOCK_IN_PLACE: usize = 64;

/// Whether so many rows read K and V in place.
#[inline(always)]
fn in_place<L: Level, K: Load>(rows: usize) -> bool {
    rows <= simd::rows_in_place::<L, K>()
}

/// Tokens of a block of K or V for so many rows.
#[inline(always)]
pub(super) fn block_len<L: Level, K: Load>(rows: usize) -> usize {
    if in_place::<L, K>(rows) { BLOCK_IN_PLACE } else { KV_BLOCK }
}

/// Where a block of K or V is widened to.
pub(super) struct Widened<'a> {
    /// Its elements, one vector behind the other.
    pub(super) elements: &'a mut [f32],
    /// 0, head_dim, 2 head_dim, …
    pub(super) offsets: &'a [usize],
}

impl<'a> Widened<'a> {
    /// Widens a block.
    #[inline(always)]
    fn fill<L: Level, K: Load>(self, level: L, vectors: &Vectors<'_, K>) -> Vectors<'a, f32> {
        vectors.widen(level, self.elements);
        Vectors::new(self.elements, &self.offsets[..vectors.len()], 0, vectors.head_dim())
    }
}

/// How scores are computed: of queries in one of their forms.
pub(super) trait Arithmetic<L: Level, K: Load>: Products<L, K> {
    /// The queries in the form that it multiplies.
    fn queries(queries: &Queries) -> &[Self::Query];

    /// Scores of a block of tokens, as [`simd::scores`] computes them. Scores are `[rows, stride]`.
    fn scores(
        level: L,
        queries: &[Self::Query],
        keys: &Vectors<'_, K>,
        widened: Widened<'_>,
        scores: &mut [f32],
        stride: usize,
        ahead: &mut Ahead<'_>,
    );
}

impl<L: Level, K: Load> Arithmetic<L, K> for InF32 {
    #[inline(always)]
    fn queries(queries: &Queries) -> &[f32] {
        &queries.wide
    }

    #[inline(always)]
    fn scores(
        level: L,
        queries: &[f32],
        keys: &Vectors<'_, K>,
        widened: Widened<'_>,
        scores: &mut [f32],
        stride: usize,
        ahead: &mut Ahead<'_>,
    ) {
        if in_place::<L, K>(queries.len() / keys.head_dim()) {
            simd::scores::<L, Self, K>(level, queries, keys, scores, stride, ahead);
        } else {
            let keys = widened.fill(level, keys);
            simd::scores::<L, Self, f32>(level, queries, &keys, scores, stride, ahead);
        }
    }
}

impl<L: Bf16Level> Arithmetic<L, bf16> for InBf16 {
    #[inline(always)]
    fn queries(queries: &Queries) -> &[bf16] {
        &queries.bf16
    }

    #[inline(always)]
    fn scores(
        level: L,
        queries: &[bf16],
        keys: &Vectors<'_, bf16>,
        _: Widened<'_>,
        scores: &mut [f32],
        stride: usize,
        ahead: &mut Ahead<'_>,
    ) {
        simd::scores::<L, Self, bf16>(level, queries, keys, scores, stride, ahead);
    }
}

/// Adds a block's weighted V to the accumulators, as [`simd::accumulate`] does. Weights are `[rows, stride]`.
#[inline(always)]
pub(super) fn accumulate<L: Level, K: Load>(
    level: L,
    weights: &[f32],
    stride: usize,
    values: &Vectors<'_, K>,
    widened: Widened<'_>,
    accumulators: &mut [f32],
    ahead: &mut Ahead<'_>,
) {
    if in_place::<L, K>(accumulators.len() / values.head_dim()) {
        simd::accumulate(level, weights, stride, values, accumulators, ahead);
    } else {
        let values = widened.fill(level, values);
        simd::accumulate(level, weights, stride, &values, accumulators, ahead);
    }
}
