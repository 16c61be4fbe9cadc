//! One work item: a pass of at most m rows over a KV range, n tokens a step, with the online softmax in between.

use super::level::{Kernel, Level};
use super::mask::Masking;
use super::simd::{self, WIDENED_BY_EACH};
use super::totals::Totals;
use super::vectors::{Ahead, Vectors};
use super::{KvCache, Number};
use std::ops::Range;
use tilewright_heuristics::{Tile, chunk};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cpu::{self, KV_BLOCK};
use tilewright_plan::{KvSegment, Plan, Scale, WorkItem};

/// f32 memory that one thread works in; sized by `kernel_templates::cpu`, so that feasibility rules speak of what is used.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Scaled queries of the heads that are computed together `[heads, rows, head_dim]`.
    pub(super) queries: Vec<f32>,
    scores: Vec<f32>,
    kv: Vec<f32>,
    /// Accumulated output `[heads, rows, head_dim]`, valid until the next item.
    pub(super) accumulators: Vec<f32>,
    /// Maximum (base 2) and sum of each row `[heads, rows]`.
    pub(super) softmax: Vec<[f32; 2]>,
    /// Of plans that are cut at absolute positions: the same of the chunks before, grown when first needed.
    totals: Totals,
    /// Where the tokens of a step, and of those that are fetched ahead, begin: `[stages + 1, n]`.
    offsets: Vec<usize>,
    /// Where each row's request ends.
    ends: Vec<u32>,
    /// 0, head_dim, 2 head_dim, …: where widened vectors lie.
    contiguous: Vec<usize>,
}

impl Scratch {
    /// Grows to what a tile needs.
    pub(super) fn reserve(&mut self, tile: &Tile, class: &Class) {
        let grow = |memory: &mut Vec<f32>, len: usize| memory.resize(memory.len().max(len), 0.0);
        grow(&mut self.queries, cpu::query_elements(tile, class));
        grow(&mut self.scores, cpu::score_elements(tile));
        grow(&mut self.kv, cpu::kv_elements(class));
        let rows = cpu::rows_at_once(tile, class);
        grow(&mut self.accumulators, rows * class.head_dim as usize);
        self.softmax.resize(self.softmax.len().max(rows), [0.0; 2]);
        self.ends.resize(self.ends.len().max(usize::from(tile.m)), 0);
        let offsets = (usize::from(tile.stages) + 1) * usize::from(tile.n);
        self.offsets.resize(self.offsets.len().max(offsets), 0);
        self.contiguous.clear();
        self.contiguous.extend((0..KV_BLOCK).map(|i| i * class.head_dim as usize));
    }
}

/// Scores are computed to base 2: the scale takes log2(e) along, and an exponential is a power of two.
pub(super) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// One pass over some of a work item's tokens for some KV heads, whose queries are in the scratch; leaves unnormalised output, maximum and sum
/// of each row there. Heads are computed a step of tokens after another; which of them together changes no bit.
pub struct Pass<'a, K> {
    pub(super) plan: &'a Plan,
    pub(super) item: &'a WorkItem,
    pub(super) kv_heads: Range<u32>,
    pub(super) tile: &'a Tile,
    /// Tokens of this pass, counted along the Q tile's KV range: the item's, or one thread's share of them.
    pub(super) kv_range: Range<u32>,
    pub(super) cache: &'a KvCache<'a, K>,
    /// Of V; 1 where the rows are scaled when they are written.
    pub(super) value_scale: Scale<'a>,
    pub(super) masking: Masking,
    pub(super) scratch: &'a mut Scratch,
}

impl<K: Number> Kernel for Pass<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self, level: L) {
        let Self { plan, item, kv_heads, tile, kv_range, cache, value_scale, masking, scratch } = self;
        let head_dim = plan.geometry().head_dim as usize;
        let rows = item.rows.len();
        let all_rows = kv_heads.len() * rows;
        scratch.accumulators[..all_rows * head_dim].fill(0.0);
        scratch.softmax[..all_rows].fill([f32::NEG_INFINITY, 0.0]);
        for (row, end) in scratch.ends[..rows].iter_mut().enumerate() {
            *end = plan.seq_lens()[request_of(plan, item, row)];
        }
        if plan.is_invariant() {
            scratch.totals.start(all_rows, head_dim);
        }
        for segment in &plan.segments()[item.segments.start as usize..item.segments.end as usize] {
            let ratio = plan.geometry().gqa_ratio();
            let first = (segment.members.start * ratio).max(item.rows.start) - item.rows.start;
            let last = (segment.members.end * ratio).min(item.rows.end).saturating_sub(item.rows.start);
            let tokens = segment.kv_range.start.max(kv_range.start)..segment.kv_range.end.min(kv_range.end);
            if first < last && !tokens.is_empty() {
                let kv_heads = kv_heads.clone();
                let reader = Reader { plan, segment, cache, kv_heads, rows, head_dim, masking, value_scale };
                pass_segment(level, &reader, tile, tokens, first as usize..last as usize, scratch);
            }
        }
        if plan.is_invariant() {
            let Scratch { accumulators, softmax, totals, .. } = scratch;
            for head in 0..kv_heads.len() {
                let scale = value_scale.of_head(kv_heads.start as usize + head);
                let rows = head * rows..(head + 1) * rows;
                let accumulators = &mut accumulators[rows.start * head_dim..];
                let softmax = &mut softmax[rows.clone()];
                totals.add(rows, head_dim, scale, accumulators, softmax);
            }
            totals.finish(all_rows, head_dim, accumulators, softmax);
        }
    }
}

/// Goes along tokens of one segment with the rows that share it, n tokens a step.
#[inline(always)]
fn pass_segment<L: Level, K: Number>(
    level: L,
    reader: &Reader<'_, K>,
    tile: &Tile,
    tokens: Range<u32>,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let Reader { plan, segment, cache, ref kv_heads, masking, .. } = *reader;
    let n = tile.n as usize;
    let Scratch { offsets, ends, .. } = scratch;
    let ends = &ends[rows.clone()];
    // Tokens that no row has are not even looked at: a page may be larger than what is in it.
    let longest = ends.iter().copied().max().unwrap_or(0);
    let end = tokens.end.min(segment.kv_range.start.saturating_add(longest.saturating_sub(segment.position)));
    // Nor are those before every row's window.
    let first = ends.iter().map(|&end| masking.first_seen(end)).min().unwrap_or(0);
    let start =
        tokens.start.max(segment.kv_range.start.saturating_add(first.saturating_sub(segment.position)));
    // Steps at multiples of their length, whatever is hidden.
    let start = if plan.is_invariant() {
        start - (start - segment.kv_range.start) % u32::from(tile.n)
    } else {
        start
    };
    // So many steps are on their way while one is computed.
    let ahead = usize::from(tile.stages);
    let slots = ahead + 1;
    let mut steps = Steps { next: start, end, n, slot: 0 };
    for _ in 0..ahead {
        steps.locate(reader, &mut offsets[..slots * n]);
    }
    // Steps of the heads follow each other; what is fetched is so many of them ahead. `slot` is that of the first one's tokens.
    let at = |begin: u32, slot: usize, ahead: usize| {
        let (later, head) = (ahead / kv_heads.len(), ahead % kv_heads.len());
        let begin = begin.saturating_add((later * n) as u32);
        let first = (slot + later) % slots * n;
        (first..first + (end.saturating_sub(begin) as usize).min(n), head)
    };
    for pair in 0..ahead {
        let (tokens, head) = at(start, 0, pair);
        let head = reader.head_offset(head);
        for elements in [cache.keys, cache.values] {
            Ahead::new(elements, &offsets[tokens.clone()], head, reader.head_dim).fetch(n);
        }
    }
    let mut slot = 0;
    let mut begin = start;
    while begin < end {
        let step_end = end.min(begin.saturating_add(u32::from(tile.n)));
        steps.locate(reader, &mut scratch.offsets[..slots * n]);
        for head in 0..kv_heads.len() {
            let now = slot * n..slot * n + (step_end - begin) as usize;
            let (next, next_head) = at(begin, slot, head + ahead);
            let step = Step { begin, now, next, next_head, head, rows: rows.clone(), n };
            step.compute(level, reader, scratch);
        }
        slot = (slot + 1) % slots;
        begin = step_end;
    }
}

/// A step of tokens for the rows of one KV head.
struct Step {
    /// The first token, counted along the Q tile's KV range.
    begin: u32,
    /// Where the step's tokens stand in the ring of offsets.
    now: Range<usize>,
    /// The same of a later step, which is fetched meanwhile.
    next: Range<usize>,
    /// Its head.
    next_head: usize,
    /// Counted from the first one that is computed.
    head: usize,
    /// Rows of the item.
    rows: Range<usize>,
    n: usize,
}

impl Step {
    #[inline(always)]
    fn compute<L: Level, K: Number>(&self, level: L, reader: &Reader<'_, K>, scratch: &mut Scratch) {
        let Reader { plan, segment, cache, ref kv_heads, head_dim, masking, value_scale, .. } = *reader;
        let Scratch { queries, scores, kv: wide, accumulators, softmax, totals, offsets, ends, contiguous } =
            scratch;
        let n = self.n;
        let first_row = self.head * reader.rows;
        let rows = first_row + self.rows.start..first_row + self.rows.end;
        let elements = rows.start * head_dim..rows.end * head_dim;
        let (queries, accumulators) = (&queries[elements.clone()], &mut accumulators[elements]);
        let (softmax, ends) = (&mut softmax[rows.clone()], &ends[self.rows.clone()]);
        let position = segment.position + (self.begin - segment.kv_range.start);
        if plan.is_invariant() && chunk::begin_of(position) == position {
            let scale = value_scale.of_head(kv_heads.start as usize + self.head);
            totals.add(rows.clone(), head_dim, scale, accumulators, softmax);
        }
        let (now, next) = (&offsets[self.now.clone()], &offsets[self.next.clone()]);
        let tokens = now.len();
        let padded = tokens.next_multiple_of(16).min(n);
        let (head, next_head) = (reader.head_offset(self.head), reader.head_offset(self.next_head));
        // Several blocks of rows read what is widened once.
        let in_place = K::IS_F32 || L::WIDENS && rows.len() <= WIDENED_BY_EACH;
        for (block, offsets) in now.chunks(KV_BLOCK).enumerate() {
            let first = block * KV_BLOCK;
            let ahead = &mut Ahead::new(cache.keys, block_of(next, first), next_head, head_dim);
            let keys = Vectors::new(cache.keys, offsets, head, head_dim);
            if in_place {
                simd::scores(level, queries, &keys, &mut scores[first..], n, ahead);
            } else {
                keys.widen(level, wide);
                let keys = Vectors::new(&wide[..], &contiguous[..offsets.len()], 0, head_dim);
                simd::scores(level, queries, &keys, &mut scores[first..], n, ahead);
            }
        }
        for (index, [max, sum]) in softmax.iter_mut().enumerate() {
            let scores = &mut scores[index * n..][..padded];
            scores[tokens..].fill(f32::NEG_INFINITY);
            // This request may end before others that share the segment do, and its window may begin after theirs.
            masking.apply(&mut scores[..tokens], position, ends[index]);
            let new_max = max.max(simd::max(scores));
            if new_max == f32::NEG_INFINITY {
                scores.fill(0.0);
                continue;
            }
            if new_max > *max {
                let rescale = if *max == f32::NEG_INFINITY { 0.0 } else { (*max - new_max).exp2() };
                simd::scale(&mut accumulators[index * head_dim..][..head_dim], rescale);
                *sum *= rescale;
                *max = new_max;
            }
            *sum += simd::exp2_and_sum(scores, new_max);
        }
        for (block, offsets) in now.chunks(KV_BLOCK).enumerate() {
            let first = block * KV_BLOCK;
            let ahead = &mut Ahead::new(cache.values, block_of(next, first), next_head, head_dim);
            let values = Vectors::new(cache.values, offsets, head, head_dim);
            if in_place {
                simd::accumulate(level, &scores[first..], n, &values, accumulators, ahead);
            } else {
                values.widen(level, wide);
                let values = Vectors::new(&wide[..], &contiguous[..offsets.len()], 0, head_dim);
                simd::accumulate(level, &scores[first..], n, &values, accumulators, ahead);
            }
        }
    }
}

/// Finds the tokens of steps, one step after another, in a ring of their offsets.
struct Steps {
    next: u32,
    end: u32,
    n: usize,
    slot: usize,
}

impl Steps {
    /// Finds the next step's tokens, as many as there are: none behind the end.
    #[inline(always)]
    fn locate<K: Number>(&mut self, reader: &Reader<'_, K>, ring: &mut [usize]) {
        let first = self.slot * self.n;
        let tokens = (self.end.saturating_sub(self.next) as usize).min(self.n);
        if tokens > 0 {
            reader.locate(self.next, &mut ring[first..first + tokens]);
            self.next += tokens as u32;
            self.slot = if first + self.n == ring.len() { 0 } else { self.slot + 1 };
        }
    }
}

/// The block of tokens from the `first` on, as far as there are any.
#[inline(always)]
fn block_of(offsets: &[usize], first: usize) -> &[usize] {
    let first = first.min(offsets.len());
    &offsets[first..offsets.len().min(first + KV_BLOCK)]
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

/// Finds the tokens of a segment in the cache.
struct Reader<'a, K> {
    plan: &'a Plan,
    segment: &'a KvSegment,
    cache: &'a KvCache<'a, K>,
    kv_heads: Range<u32>,
    /// Rows of the item.
    rows: usize,
    head_dim: usize,
    masking: Masking,
    value_scale: Scale<'a>,
}

impl<K: Number> Reader<'_, K> {
    /// Where a KV head, counted from the first one that is computed, lies behind the token's first one.
    #[inline(always)]
    const fn head_offset(&self, head: usize) -> usize {
        (self.kv_heads.start as usize + head) * self.cache.strides.head
    }

    #[inline(always)]
    fn offset(&self, token: u32) -> usize {
        let page_size = self.plan.geometry().page_size;
        let within = token - self.segment.kv_range.start;
        let page = self.plan.pages()[(self.segment.pages + within / page_size) as usize];
        let strides = &self.cache.strides;
        page as usize * strides.page + (within % page_size) as usize * strides.token
    }

    /// Where the tokens from `begin` on lie, a page at a time.
    #[inline(always)]
    fn locate(&self, begin: u32, offsets: &mut [usize]) {
        let page_size = self.plan.geometry().page_size;
        let mut done = 0;
        while done < offsets.len() {
            let token = begin + done as u32;
            let left_in_page = page_size - (token - self.segment.kv_range.start) % page_size;
            let count = (left_in_page as usize).min(offsets.len() - done);
            let first = self.offset(token);
            for (i, offset) in offsets[done..done + count].iter_mut().enumerate() {
                *offset = first + i * self.cache.strides.token;
            }
            done += count;
        }
    }
}
