//! One work item: a pass of at most m rows over a KV range, n tokens a step, with the online softmax in between.

use super::simd;
use super::{Element, KvCache};
use crate::plan::{Plan, PlannedPack, WorkItem};
use pulp::{Simd, WithSimd};
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cpu::{self, KV_BLOCK};

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
const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// One pass over `kv` of a work item's KV range; leaves unnormalised output, maximum and sum of each row in the scratch.
pub(super) struct Pass<'a, E> {
    pub(super) plan: &'a Plan,
    pub(super) item: &'a WorkItem,
    pub(super) tile: &'a Tile,
    /// Tokens of this pass: the item's, or one thread's share of them.
    pub(super) kv: std::ops::Range<u32>,
    pub(super) query: &'a [E],
    pub(super) cache: &'a KvCache<'a, E>,
    pub(super) scale: f32,
    pub(super) scratch: &'a mut Scratch,
}

impl<E: Element> WithSimd for Pass<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { plan, item, tile, kv, query, cache, scale, scratch } = self;
        let geometry = plan.geometry();
        let head_dim = geometry.head_dim as usize;
        let rows = (item.row_end - item.row_begin) as usize;
        let n = usize::from(tile.n);
        let Scratch { queries, scores, kv: wide, accumulators, softmax, offsets, contiguous } = scratch;
        let queries = &mut queries[..rows * head_dim];
        let accumulators = &mut accumulators[..rows * head_dim];
        let softmax = &mut softmax[..rows];
        let pack = &plan.packs()[item.pack as usize];

        for (row, wide) in queries.chunks_exact_mut(head_dim).enumerate() {
            let row = row_of_output(plan, pack, item, row);
            E::widen(&query[row * head_dim..][..head_dim], wide);
            simd::scale(wide, scale * LOG2_E);
        }
        accumulators.fill(0.0);
        softmax.fill([f32::NEG_INFINITY, 0.0]);

        let reader = Reader { plan, pack, cache, kv_head: item.kv_head, head_dim };
        let ahead = (u32::from(tile.stages) - 1) * u32::from(tile.n);
        let mut begin = kv.start;
        while begin < kv.end {
            let end = kv.end.min(begin.saturating_add(u32::from(tile.n)));
            let tokens = (end - begin) as usize;
            let offsets = &mut offsets[..tokens];
            reader.locate(begin, offsets);
            // One stage is this tile alone: nothing is fetched ahead.
            let ahead_begin = begin.saturating_add(ahead);
            let ahead_end = if ahead == 0 { ahead_begin } else { kv.end };
            let padded = tokens.next_multiple_of(16).min(n);
            for (block, offsets) in offsets.chunks(KV_BLOCK).enumerate() {
                let first = block * KV_BLOCK;
                reader.prefetch(cache.keys, ahead_begin, ahead_end, first);
                let (keys, at) = reader.rows(cache.keys, offsets, wide, contiguous);
                simd::scores(simd, queries, keys, at, head_dim, &mut scores[first..], n);
            }
            for row in 0..rows {
                let scores = &mut scores[row * n..][..padded];
                scores[tokens..].fill(f32::NEG_INFINITY);
                let own_end = plan.seq_lens()[request_of(plan, pack, item, row)];
                if own_end < end {
                    // This request ends before others of the pack do.
                    scores[own_end.saturating_sub(begin) as usize..].fill(f32::NEG_INFINITY);
                }
                let [max, sum] = &mut softmax[row];
                let new_max = max.max(simd::max(simd, scores));
                if new_max == f32::NEG_INFINITY {
                    scores.fill(0.0);
                    continue;
                }
                if new_max > *max {
                    let rescale = if *max == f32::NEG_INFINITY { 0.0 } else { (*max - new_max).exp2() };
                    simd::scale(&mut accumulators[row * head_dim..][..head_dim], rescale);
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
            begin = end;
        }
    }
}

/// The request of a row of a work item.
#[inline(always)]
pub(super) fn request_of(plan: &Plan, pack: &PlannedPack, item: &WorkItem, row: usize) -> usize {
    let member = (item.row_begin as usize + row) / plan.geometry().gqa_ratio() as usize;
    plan.requests()[pack.requests.start as usize + member] as usize
}

/// The row of the output `[batch, q_heads]` that a row of a work item computes.
#[inline(always)]
pub(super) fn row_of_output(plan: &Plan, pack: &PlannedPack, item: &WorkItem, row: usize) -> usize {
    let ratio = plan.geometry().gqa_ratio() as usize;
    let head = item.kv_head as usize * ratio + (item.row_begin as usize + row) % ratio;
    request_of(plan, pack, item, row) * plan.geometry().q_heads as usize + head
}

/// Finds the tokens of a pack in the cache.
struct Reader<'a, E> {
    plan: &'a Plan,
    pack: &'a PlannedPack,
    cache: &'a KvCache<'a, E>,
    kv_head: u32,
    head_dim: usize,
}

impl<E: Element> Reader<'_, E> {
    #[inline(always)]
    fn offset(&self, token: u32) -> usize {
        let page_size = self.plan.geometry().page_size;
        let within = token - self.pack.kv_begin;
        let page = self.plan.pages()[(self.pack.pages.start + within / page_size) as usize];
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
            let left_in_page = page_size - (token - self.pack.kv_begin) % page_size;
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
        elements: &'b [E],
        offsets: &'b [usize],
        wide: &'b mut [f32],
        contiguous: &'b [usize],
    ) -> (&'b [f32], &'b [usize]) {
        if let Some(in_place) = E::as_f32(elements) {
            return (in_place, offsets);
        }
        for (wide, &offset) in wide.chunks_exact_mut(self.head_dim).zip(offsets) {
            E::widen(&elements[offset..offset + self.head_dim], wide);
        }
        (wide, &contiguous[..offsets.len()])
    }

    /// Asks for a block of vectors, from the `first`-th token after `begin` on, as far as they lie before `end`.
    #[inline(always)]
    fn prefetch(&self, elements: &[E], begin: u32, end: u32, first: usize) {
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
