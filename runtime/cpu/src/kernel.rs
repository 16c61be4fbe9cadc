//! One work item: a pass of at most m rows over a KV range, n tokens a step, with the online softmax in between.

use super::mask::Masking;
use super::simd;
use super::totals::Totals;
use super::{Element, KvCache, Number};
use pulp::{Simd, WithSimd};
use std::ops::Range;
use tilewright_heuristics::{Tile, chunk};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cpu::{self, KV_BLOCK};
use tilewright_plan::{KvSegment, Plan, WorkItem};

/// f32 memory that one thread works in; sized by `kernel_templates::cpu`, so that feasibility rules speak of what is used.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    queries: Vec<f32>,
    scores: Vec<f32>,
    kv: Vec<f32>,
    /// Accumulated output `[rows, head_dim]`, valid until the next item.
    pub(super) accumulators: Vec<f32>,
    /// Maximum (base 2) and sum of each row.
    pub(super) softmax: Vec<[f32; 2]>,
    /// Of plans that are cut at absolute positions: the same of the chunks before, grown when first needed.
    totals: Totals,
    offsets: Vec<usize>,
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
        grow(&mut self.accumulators, usize::from(tile.m) * class.head_dim as usize);
        self.softmax.resize(self.softmax.len().max(usize::from(tile.m)), [0.0; 2]);
        self.offsets.resize(self.offsets.len().max(usize::from(tile.n)), 0);
        self.contiguous.clear();
        self.contiguous.extend((0..KV_BLOCK).map(|i| i * class.head_dim as usize));
    }
}

/// Scores are computed to base 2: the scale takes log2(e) along, and an exponential is a power of two.
pub(super) const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// One pass over some of a work item's tokens; leaves unnormalised output, maximum and sum of each row in the scratch.
pub(super) struct Pass<'a, E, K> {
    pub(super) plan: &'a Plan,
    pub(super) item: &'a WorkItem,
    pub(super) kv_head: u32,
    pub(super) tile: &'a Tile,
    /// Tokens of this pass, counted along the Q tile's KV range: the item's, or one thread's share of them.
    pub(super) kv_range: Range<u32>,
    pub(super) query: &'a [E],
    pub(super) cache: &'a KvCache<'a, K>,
    /// Of the logits, with the scale of K.
    pub(super) scale: f32,
    /// Of V; 1 where the rows are scaled when they are written.
    pub(super) value_scale: f32,
    pub(super) masking: Masking,
    pub(super) scratch: &'a mut Scratch,
}

impl<E: Element, K: Number> WithSimd for Pass<'_, E, K> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { plan, item, kv_head, tile, kv_range, query, cache, scale, value_scale, masking, scratch } =
            self;
        let head_dim = plan.geometry().head_dim as usize;
        let rows = item.rows.len();
        for (row, wide) in scratch.queries[..rows * head_dim].chunks_exact_mut(head_dim).enumerate() {
            let row = row_of_output(plan, item, kv_head, row);
            E::widen(&query[row * head_dim..][..head_dim], wide);
            simd::scale(wide, scale * LOG2_E);
        }
        scratch.accumulators[..rows * head_dim].fill(0.0);
        scratch.softmax[..rows].fill([f32::NEG_INFINITY, 0.0]);
        if plan.is_invariant() {
            scratch.totals.start(rows, head_dim);
        }
        for segment in &plan.segments()[item.segments.start as usize..item.segments.end as usize] {
            let ratio = plan.geometry().gqa_ratio();
            let first = (segment.members.start * ratio).max(item.rows.start) - item.rows.start;
            let last = (segment.members.end * ratio).min(item.rows.end).saturating_sub(item.rows.start);
            let tokens = segment.kv_range.start.max(kv_range.start)..segment.kv_range.end.min(kv_range.end);
            if first < last && !tokens.is_empty() {
                let reader = Reader { plan, segment, cache, kv_head, head_dim, masking, value_scale };
                pass_segment(simd, &reader, item, tile, tokens, first as usize..last as usize, scratch);
            }
        }
        if plan.is_invariant() {
            let Scratch { accumulators, softmax, totals, .. } = scratch;
            totals.add(0..rows, head_dim, value_scale, accumulators, softmax);
            totals.finish(rows, head_dim, accumulators, softmax);
        }
    }
}

/// Goes along tokens of one segment with the rows that share it, n tokens a step.
#[inline(always)]
fn pass_segment<S: Simd, K: Number>(
    simd: S,
    reader: &Reader<'_, K>,
    item: &WorkItem,
    tile: &Tile,
    tokens: Range<u32>,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let Reader { plan, segment, cache, head_dim, masking, value_scale, .. } = *reader;
    let n = usize::from(tile.n);
    let Scratch { queries, scores, kv: wide, accumulators, softmax, totals, offsets, contiguous } = scratch;
    let elements = rows.start * head_dim..rows.end * head_dim;
    let (queries, accumulators) = (&queries[elements.clone()], &mut accumulators[elements]);
    let softmax = &mut softmax[rows.clone()];
    // Tokens that no row has are not even looked at: a page may be larger than what is in it.
    let position = |token: u32| segment.position + (token - segment.kv_range.start);
    let own_end = |row: usize| plan.seq_lens()[request_of(plan, item, row)];
    let longest = rows.clone().map(own_end).max().unwrap_or(0);
    let end = tokens.end.min(segment.kv_range.start.saturating_add(longest.saturating_sub(segment.position)));
    // Nor are those before every row's window.
    let first = rows.clone().map(|row| masking.first_seen(own_end(row))).min().unwrap_or(0);
    let start =
        tokens.start.max(segment.kv_range.start.saturating_add(first.saturating_sub(segment.position)));
    // Steps at multiples of their length, whatever is hidden.
    let start = if plan.is_invariant() {
        start - (start - segment.kv_range.start) % u32::from(tile.n)
    } else {
        start
    };
    let ahead = (u32::from(tile.stages) - 1) * u32::from(tile.n);
    let mut begin = start;
    while begin < end {
        if plan.is_invariant() && chunk::begin_of(position(begin)) == position(begin) {
            totals.add(rows.clone(), head_dim, value_scale, accumulators, softmax);
        }
        let step_end = end.min(begin.saturating_add(u32::from(tile.n)));
        let tokens = (step_end - begin) as usize;
        let offsets = &mut offsets[..tokens];
        reader.locate(begin, offsets);
        // One stage is this step alone: nothing is fetched ahead.
        let ahead_begin = begin.saturating_add(ahead);
        let ahead_end = if ahead == 0 { ahead_begin } else { end };
        let padded = tokens.next_multiple_of(16).min(n);
        for (block, offsets) in offsets.chunks(KV_BLOCK).enumerate() {
            let first = block * KV_BLOCK;
            reader.prefetch(cache.keys, ahead_begin, ahead_end, first);
            let (keys, at) = reader.rows(cache.keys, offsets, wide, contiguous);
            simd::scores(simd, queries, keys, at, head_dim, &mut scores[first..], n);
        }
        for (index, [max, sum]) in softmax.iter_mut().enumerate() {
            let scores = &mut scores[index * n..][..padded];
            scores[tokens..].fill(f32::NEG_INFINITY);
            // This request may end before others that share the segment do, and its window may begin after theirs.
            masking.apply(&mut scores[..tokens], position(begin), own_end(rows.start + index));
            let new_max = max.max(simd::max(simd, scores));
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
        for (block, offsets) in offsets.chunks(KV_BLOCK).enumerate() {
            let first = block * KV_BLOCK;
            reader.prefetch(cache.values, ahead_begin, ahead_end, first);
            let (values, at) = reader.rows(cache.values, offsets, wide, contiguous);
            simd::accumulate(simd, &scores[first..], n, values, at, head_dim, accumulators);
        }
        begin = step_end;
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

/// Finds the tokens of a segment in the cache.
struct Reader<'a, K> {
    plan: &'a Plan,
    segment: &'a KvSegment,
    cache: &'a KvCache<'a, K>,
    kv_head: u32,
    head_dim: usize,
    masking: Masking,
    value_scale: f32,
}

impl<K: Number> Reader<'_, K> {
    #[inline(always)]
    fn offset(&self, token: u32) -> usize {
        let page_size = self.plan.geometry().page_size;
        let within = token - self.segment.kv_range.start;
        let page = self.plan.pages()[(self.segment.pages + within / page_size) as usize];
        let strides = &self.cache.strides;
        page as usize * strides.page
            + (within % page_size) as usize * strides.token
            + self.kv_head as usize * strides.head
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

    /// The vectors at `offsets` as f32, and where each of them begins: f32 pages in place, others widened into `wide`.
    #[inline(always)]
    fn rows<'b>(
        &self,
        elements: &'b [K],
        offsets: &'b [usize],
        wide: &'b mut [f32],
        contiguous: &'b [usize],
    ) -> (&'b [f32], &'b [usize]) {
        if let Some(in_place) = K::as_f32(elements) {
            return (in_place, offsets);
        }
        for (wide, &offset) in wide.chunks_exact_mut(self.head_dim).zip(offsets) {
            K::widen(&elements[offset..offset + self.head_dim], wide);
        }
        (wide, &contiguous[..offsets.len()])
    }

    /// Asks for a block of vectors, from the `first`-th token after `begin` on, as far as they lie before `end`.
    #[inline(always)]
    fn prefetch(&self, elements: &[K], begin: u32, end: u32, first: usize) {
        let begin = begin.saturating_add(first as u32);
        for token in begin..begin.saturating_add(KV_BLOCK as u32).min(end) {
            let offset = self.offset(token);
            prefetch(&elements[offset..offset + self.head_dim]);
        }
    }
}

/// Asks the processor for the cache lines of these elements. Where it has no such instruction, nothing is fetched ahead.
#[inline(always)]
#[allow(unsafe_code)]
fn prefetch<E>(elements: &[E]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        let start = elements.as_ptr().cast::<i8>();
        for byte in (0..size_of_val(elements)).step_by(LINE) {
            // SAFETY: the address lies inside of the slice; a prefetch reads nothing and never faults. SSE is part of x86_64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(byte)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = elements;
}
