//! One work item: a pass of at most m rows over a KV range, n tokens a step, with the online softmax in between.

use super::ahead::{Ahead, Heads};
use super::arithmetic::{self, Arithmetic, QueryForms, Widened};
use super::level::{Bf16Kernel, Bf16Level, Kernel, Level};
use super::mask::Masking;
use super::queue::{Unit, Work};
use super::simd::{self, InBf16, InF32};
use super::steps::{Step, Steps};
use super::totals::Totals;
use super::vectors::Vectors;
use super::{KvCache, Number};
use half::bf16;
use std::ops::Range;
use tilewright_heuristics::Tile;
use tilewright_heuristics::chunk::Chunks;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cpu::{self, KV_BLOCK};
use tilewright_plan::{KvStrides, Plan, Scale, WorkItem};

/// Queries of the heads that are computed together `[heads, rows, head_dim]`, in the form that the unit takes.
#[derive(Debug, Default)]
pub(super) struct Queries {
    /// In f32.
    pub(super) wide: Vec<f32>,
    /// As they were given.
    pub(super) bf16: Vec<bf16>,
}

impl Queries {
    fn reserve(&mut self, elements: usize, forms: QueryForms) {
        if forms.any_wide() {
            self.wide.resize(self.wide.len().max(elements), 0.0);
        }
        if forms.any_bf16() {
            self.bf16.resize(self.bf16.len().max(elements), bf16::ZERO);
        }
    }
}

/// Memory that one thread works in; sized by `kernel_templates::cpu`, so that feasibility rules speak of what is used.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) queries: Queries,
    scores: Vec<f32>,
    kv: Vec<f32>,
    /// Accumulated output `[heads, rows, head_dim]`, valid until the next item.
    pub(super) accumulators: Vec<f32>,
    /// Maximum (base 2) and sum of each row `[heads, rows]`.
    pub(super) softmax: Vec<[f32; 2]>,
    /// Of plans that are cut at absolute positions: the same of the chunks before, grown when first needed.
    totals: Totals,
    /// Where the tokens of a step of the next unit begin, `[most_tokens]`, then those of a step and of the steps that are fetched ahead:
    /// `[stages + 1, n]`.
    offsets: Vec<usize>,
    /// The largest n, and the most tokens of all steps of a ring.
    most_tokens: usize,
    most_in_ring: usize,
    /// The steps of these tokens: `[stages + 1]`.
    ring: Vec<Option<Step>>,
    /// Where each row's request ends; the same of the next unit.
    ends: Vec<u32>,
    next_ends: Vec<u32>,
    /// A unit of which so many steps are on their way.
    fetched: Option<(Unit, usize)>,
    /// 0, head_dim, 2 head_dim, …: where widened vectors lie.
    contiguous: Vec<usize>,
    /// What is fetched ahead while a head's step is computed.
    pieces: Vec<usize>,
}

impl Scratch {
    /// Grows to what a tile needs, with queries in the forms that a plan's units take.
    pub(super) fn reserve(&mut self, tile: &Tile, class: &Class, forms: QueryForms) {
        self.queries.reserve(cpu::query_elements(tile, class), forms);
        let grow = |memory: &mut Vec<f32>, len: usize| memory.resize(memory.len().max(len), 0.0);
        grow(&mut self.scores, cpu::score_elements(tile));
        grow(&mut self.kv, cpu::kv_elements(class));
        let rows = cpu::rows_at_once(tile, class);
        grow(&mut self.accumulators, rows * class.head_dim as usize);
        self.softmax.resize(self.softmax.len().max(rows), [0.0; 2]);
        for ends in [&mut self.ends, &mut self.next_ends] {
            ends.clear();
            ends.reserve(tile.m.into());
        }
        self.fetched = None;
        self.ring.clear();
        self.ring.reserve(usize::from(tile.stages) + 1);
        let n = usize::from(tile.n);
        self.most_tokens = self.most_tokens.max(n);
        self.most_in_ring = self.most_in_ring.max((usize::from(tile.stages) + 1) * n);
        self.offsets.resize(self.most_tokens + self.most_in_ring, 0);
        // One head may be computed while many are fetched.
        self.pieces.clear();
        self.pieces.reserve(n * cpu::heads_at_once(1, class.head_dim as usize));
        self.contiguous.clear();
        self.contiguous.extend((0..KV_BLOCK).map(|i| i * class.head_dim as usize));
    }
}

/// Scores are computed to base 2: the scale takes log2(e) along, and an exponential is a power of two.
pub(super) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// One pass over a unit's tokens for its KV heads, whose queries are in the scratch; leaves unnormalised output, maximum and sum of each row
/// there. Heads are computed a step of tokens after another; which of them together changes no bit.
pub struct Pass<'a, K> {
    pub(super) plan: &'a Plan,
    pub(super) unit: &'a Unit,
    /// What the unit computes.
    pub(super) work: Work<'a>,
    pub(super) cache: &'a KvCache<'a, K>,
    /// Whether the unit's queries are in bf16.
    pub(super) in_bf16: bool,
    /// What makes scores of dot products, beside the scale of K.
    pub(super) score_scale: f32,
    /// Of K.
    pub(super) key_scale: Scale<'a>,
    /// Of V; 1 where the rows are scaled when they are written.
    pub(super) value_scale: Scale<'a>,
    pub(super) masking: Masking,
    pub(super) scratch: &'a mut Scratch,
    /// What this thread is likely to take next: its first steps are fetched during the last ones.
    pub(super) next: &'a dyn Fn() -> Option<Unit>,
}

impl<K: Number> Kernel for Pass<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self, level: L) {
        self.compute::<L, InF32>(level);
    }
}

impl Bf16Kernel for Pass<'_, bf16> {
    type Output = ();

    #[inline(always)]
    fn run<L: Bf16Level>(self, level: L) {
        self.compute::<L, InBf16>(level);
    }
}

impl<K: Number> Pass<'_, K> {
    #[inline(always)]
    fn compute<L: Level, A: Arithmetic<L, K>>(self, level: L) {
        let Self {
            plan, unit, work, cache, score_scale, key_scale, value_scale, masking, scratch, next, ..
        } = self;
        let Work { item, tile, kv_heads, kv_range } = work;
        let head_dim = plan.geometry().head_dim as usize;
        let (rows, heads, first_head) = (item.rows.len(), kv_heads.len(), kv_heads.start);
        let all_rows = heads * rows;
        scratch.accumulators[..all_rows * head_dim].fill(0.0);
        scratch.softmax[..all_rows].fill([f32::NEG_INFINITY, 0.0]);
        if plan.is_invariant() {
            scratch.totals.start(all_rows, head_dim);
        }
        let chunks = plan.is_invariant().then(|| Chunks::of(plan.geometry().kv_heads));
        let reader = Reader {
            plan,
            cache,
            kv_heads,
            rows,
            head_dim,
            masking,
            score_scale,
            key_scale,
            value_scale,
            chunks,
        };
        let fetched = match scratch.fetched.take() {
            Some((unit_of_steps, steps)) if unit_of_steps == *unit => steps,
            _ => 0,
        };
        let steps = Steps::new(plan, item, kv_range, tile.n, masking);
        pass_steps::<L, A, K>(level, &reader, steps, tile, fetched, next, scratch);
        if plan.is_invariant() {
            let Scratch { accumulators, softmax, totals, .. } = scratch;
            for head in 0..heads {
                let scale = value_scale.of_head(first_head as usize + head);
                let rows = head * rows..(head + 1) * rows;
                let accumulators = &mut accumulators[rows.start * head_dim..];
                let softmax = &mut softmax[rows.clone()];
                totals.add(rows, head_dim, scale, accumulators, softmax);
            }
            totals.finish(all_rows, head_dim, accumulators, softmax);
        }
    }
}

/// Computes the steps of a pass. `stages` of them are on their way while one is computed: first the pass's own, then those of the next unit.
/// The first ones are waited for, but for those that are `fetched`.
#[inline(always)]
fn pass_steps<L: Level, A: Arithmetic<L, K>, K: Number>(
    level: L,
    reader: &Reader<'_, K>,
    mut steps: Steps<'_>,
    tile: &Tile,
    fetched: usize,
    next: &dyn Fn() -> Option<Unit>,
    scratch: &mut Scratch,
) {
    let (cache, heads) = (reader.cache, reader.heads(&reader.kv_heads));
    let (n, ahead) = (usize::from(tile.n), usize::from(tile.stages));
    let slots = ahead + 1;
    let first = scratch.most_tokens;
    let place = |slot: usize, tokens: usize| first + slot * n..first + slot * n + tokens;
    steps.find_ends(&mut scratch.ends);
    scratch.ring.clear();
    for slot in 0..ahead {
        let offsets = &mut scratch.offsets[place(slot, n)];
        let step = steps.next(&scratch.ends, &cache.strides, offsets);
        let tokens = step.as_ref().map_or(0, |step| step.tokens);
        scratch.ring.push(step);
        for part in 0..if slot < fetched { 0 } else { heads.count } {
            heads.pieces::<K>(&offsets[..tokens], (part, heads.count), &mut scratch.pieces);
            for elements in [cache.keys, cache.values] {
                Ahead::new(elements, &scratch.pieces, &heads, 1).fetch_all();
            }
        }
    }
    scratch.ring.push(None);
    let mut after: Option<Option<Next<'_>>> = None;
    let mut slot = 0;
    loop {
        let last = (slot + ahead) % slots;
        let offsets = &mut scratch.offsets[place(last, n)];
        scratch.ring[last] = steps.next(&scratch.ends, &cache.strides, offsets);
        let Some(step) = scratch.ring[slot].take() else { break };
        let (later, later_heads) = match &scratch.ring[last] {
            Some(later) => (place(last, later.tokens), heads),
            None => {
                let after = after.get_or_insert_with(|| next().map(|unit| Next::of(unit, reader, scratch)));
                match after {
                    Some(after) => (after.locate(&cache.strides, scratch), after.heads),
                    None => (0..0, heads),
                }
            }
        };
        for head in 0..heads.count {
            let (now, later) = (place(slot, step.tokens), later.clone());
            let step = HeadStep { step: &step, now, later, later_heads, head, n };
            step.compute::<L, A, K>(level, reader, scratch);
        }
        slot = (slot + 1) % slots;
    }
    scratch.fetched = after.flatten().map(|after| (after.unit, after.fetched));
}

/// What this thread is likely to take next.
struct Next<'a> {
    unit: Unit,
    heads: Heads,
    steps: Steps<'a>,
    /// Steps that are on their way.
    fetched: usize,
}

impl<'a> Next<'a> {
    #[inline(always)]
    fn of<K>(unit: Unit, reader: &Reader<'a, K>, scratch: &mut Scratch) -> Self {
        let Work { item, tile, kv_heads, kv_range } = Work::of(reader.plan, &unit);
        let steps = Steps::new(reader.plan, item, kv_range, tile.n, reader.masking);
        steps.find_ends(&mut scratch.next_ends);
        Self { unit, heads: reader.heads(&kv_heads), steps, fetched: 0 }
    }

    /// Finds its next step's tokens, and says where among the offsets they stand.
    #[inline(always)]
    fn locate(&mut self, strides: &KvStrides, scratch: &mut Scratch) -> Range<usize> {
        let offsets = &mut scratch.offsets[..scratch.most_tokens];
        let step = self.steps.next(&scratch.next_ends, strides, offsets);
        self.fetched += usize::from(step.is_some());
        0..step.map_or(0, |step| step.tokens)
    }
}

/// A step of tokens for the rows of one KV head.
struct HeadStep<'a> {
    step: &'a Step,
    /// Where its tokens stand among the offsets.
    now: Range<usize>,
    /// The same of a later step, which is fetched meanwhile, and its heads.
    later: Range<usize>,
    later_heads: Heads,
    /// Counted from the first one that is computed.
    head: usize,
    n: usize,
}

impl HeadStep<'_> {
    #[inline(always)]
    fn compute<L: Level, A: Arithmetic<L, K>, K: Number>(
        &self,
        level: L,
        reader: &Reader<'_, K>,
        scratch: &mut Scratch,
    ) {
        let Reader { cache, ref kv_heads, head_dim, masking, score_scale, key_scale, value_scale, .. } =
            *reader;
        let Scratch {
            queries,
            scores,
            kv: wide,
            accumulators,
            softmax,
            totals,
            offsets,
            ends,
            contiguous,
            pieces,
            ..
        } = scratch;
        let (n, Step { position, rows: shared, .. }) = (self.n, self.step);
        let (position, kv_head) = (*position, kv_heads.start as usize + self.head);
        let first_row = self.head * reader.rows;
        let rows = first_row + shared.start..first_row + shared.end;
        let elements = rows.start * head_dim..rows.end * head_dim;
        let (queries, accumulators) = (&A::queries(queries)[elements.clone()], &mut accumulators[elements]);
        let (softmax, ends) = (&mut softmax[rows.clone()], &ends[shared.clone()]);
        if reader.chunks.is_some_and(|chunks| chunks.begin_of(position) == position) {
            let scale = value_scale.of_head(kv_head);
            totals.add(rows.clone(), head_dim, scale, accumulators, softmax);
        }
        let (now, later) = (&offsets[self.now.clone()], &offsets[self.later.clone()]);
        let tokens = now.len();
        let padded = tokens.next_multiple_of(16).min(n);
        let head = reader.head_offset(self.head);
        let work = rows.len() * tokens * (head_dim / L::LANES);
        self.later_heads.pieces::<K>(later, (self.head, kv_heads.len()), pieces);
        let ahead = |elements| Ahead::new(elements, pieces, &self.later_heads, work);
        let block_len = arithmetic::block_len::<L, K>(rows.len());
        let mut fetch = ahead(cache.keys);
        for (block, offsets) in now.chunks(block_len).enumerate() {
            let first = block * block_len;
            let keys = Vectors::new(cache.keys, offsets, head, head_dim);
            let widened = Widened { elements: wide, offsets: contiguous };
            A::scores(level, queries, &keys, widened, &mut scores[first..], n, &mut fetch);
        }
        let score_scale = score_scale * key_scale.of_head(kv_head);
        for (index, [max, sum]) in softmax.iter_mut().enumerate() {
            let scores = &mut scores[index * n..][..padded];
            simd::scale(&mut scores[..tokens], score_scale);
            scores[tokens..].fill(f32::NEG_INFINITY);
            // This request may end before others that share the segment do, and its window may begin after theirs.
            masking.apply(&mut scores[..tokens], position, ends[index]);
            let new_max = max.max(simd::max(scores));
            if new_max > *max {
                let rescale = if *max == f32::NEG_INFINITY { 0.0 } else { (*max - new_max).exp2() };
                simd::scale(&mut accumulators[index * head_dim..][..head_dim], rescale);
                *sum *= rescale;
                *max = new_max;
            }
        }
        // Rows beside each other do not wait for each other's sums.
        for (index, [max, sum]) in softmax.iter_mut().enumerate() {
            let scores = &mut scores[index * n..][..padded];
            // Of a row that has seen nothing yet all scores are -inf.
            *sum += simd::exp2_and_sum(level, scores, max.max(f32::MIN));
        }
        let mut fetch = ahead(cache.values);
        for (block, offsets) in now.chunks(block_len).enumerate() {
            let first = block * block_len;
            let values = Vectors::new(cache.values, offsets, head, head_dim);
            let widened = Widened { elements: wide, offsets: contiguous };
            arithmetic::accumulate(level, &scores[first..], n, &values, widened, accumulators, &mut fetch);
        }
    }
}

/// The request of a row of a work item.
#[inline(always)]
pub(super) fn request_of(plan: &Plan, item: &WorkItem, row: usize) -> usize {
    let member = (item.rows.start as usize + row) / plan.geometry().gqa_ratio() as usize;
    plan.requests_of(item.q_tile)[member] as usize
}

/// The row of the output `[batch, q_heads]` that a row of a work item computes.
#[inline(always)]
pub(super) fn row_of_output(plan: &Plan, item: &WorkItem, kv_head: u32, row: usize) -> usize {
    let ratio = plan.geometry().gqa_ratio() as usize;
    let head = kv_head as usize * ratio + (item.rows.start as usize + row) % ratio;
    request_of(plan, item, row) * plan.geometry().q_heads as usize + head
}

/// What all steps of a pass have in common.
struct Reader<'a, K> {
    plan: &'a Plan,
    cache: &'a KvCache<'a, K>,
    kv_heads: Range<u32>,
    /// Rows of the item.
    rows: usize,
    head_dim: usize,
    masking: Masking,
    score_scale: f32,
    key_scale: Scale<'a>,
    value_scale: Scale<'a>,
    /// Where chunks begin that are summed apart, in batch-invariant plans.
    chunks: Option<Chunks>,
}

impl<K> Reader<'_, K> {
    /// Where KV heads lie.
    #[inline(always)]
    fn heads(&self, kv_heads: &Range<u32>) -> Heads {
        let stride = self.cache.strides.head;
        let first = kv_heads.start as usize * stride;
        Heads { first, count: kv_heads.len(), stride, head_dim: self.head_dim }
    }

    /// Where a KV head, counted from the first one that is computed, lies behind the token's first one.
    #[inline(always)]
    const fn head_offset(&self, head: usize) -> usize {
        (self.kv_heads.start as usize + head) * self.cache.strides.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::{Dtype, Geometry};

    #[test]
    fn there_is_room_for_the_steps_of_every_tile_whatever_came_after_it() {
        let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 128, page_size: 16, dtype: Dtype::F16 };
        let tiles = [Tile::new(64, 64, 1, 5), Tile::new(16, 128, 1, 1), Tile::new(4, 16, 1, 3)];
        let mut scratch = Scratch::default();
        for tile in &tiles {
            scratch.reserve(tile, &Class::of(&geometry), QueryForms::Wide);
        }
        for Tile { n, stages, .. } in tiles {
            let (n, slots) = (usize::from(n), usize::from(stages) + 1);
            assert!(scratch.most_tokens >= n && scratch.offsets.len() >= scratch.most_tokens + slots * n);
        }
    }
}
