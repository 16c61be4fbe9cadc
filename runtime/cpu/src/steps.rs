//! The steps of a pass: n tokens at a time, along all segments of an item.

use super::kernel::request_of;
use super::mask::Masking;
use std::ops::Range;
use tilewright_plan::{KvSegment, KvStrides, Plan, WorkItem};

/// A step: up to n tokens of a segment, for the rows that share it.
#[derive(Debug)]
pub(super) struct Step {
    /// The first token's position in its request.
    pub(super) position: u32,
    /// Rows of the item.
    pub(super) rows: Range<usize>,
    pub(super) tokens: usize,
}

/// Finds the steps of a pass, one after another: first those of the first segment.
#[derive(Debug)]
pub(super) struct Steps<'a> {
    plan: &'a Plan,
    item: &'a WorkItem,
    kv_range: Range<u32>,
    masking: Masking,
    n: u32,
    /// Segments whose steps have not begun.
    segments: std::slice::Iter<'a, KvSegment>,
    /// The segment of the next step, and the rows that share it.
    segment: Option<(&'a KvSegment, Range<usize>)>,
    /// Tokens that its steps have left, counted along the Q tile's KV range.
    tokens: Range<u32>,
}

impl<'a> Steps<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        item: &'a WorkItem,
        kv_range: Range<u32>,
        n: u16,
        masking: Masking,
    ) -> Self {
        let segments = &plan.segments()[item.segments.start as usize..item.segments.end as usize];
        let segments = segments.iter();
        Self { plan, item, kv_range, masking, n: n.into(), segments, segment: None, tokens: 0..0 }
    }

    /// Where each row's request ends.
    pub(super) fn find_ends(&self, ends: &mut Vec<u32>) {
        ends.clear();
        ends.extend(
            (0..self.item.rows.len()).map(|row| self.plan.seq_lens()[request_of(self.plan, self.item, row)]),
        );
    }

    /// The next step. Writes where its tokens lie, in elements from the cache's begin on. `ends` are what [`Steps::find_ends`] found.
    #[inline(always)]
    pub(super) fn next(&mut self, ends: &[u32], strides: &KvStrides, offsets: &mut [usize]) -> Option<Step> {
        while self.tokens.is_empty() {
            self.begin_segment(ends)?;
        }
        let (segment, rows) = self.segment.as_ref()?;
        let begin = self.tokens.start;
        let tokens = (self.tokens.end - begin).min(self.n);
        self.tokens.start += tokens;
        let position = segment.position + (begin - segment.kv_range.start);
        locate(self.plan, segment, strides, begin, &mut offsets[..tokens as usize]);
        Some(Step { position, rows: rows.clone(), tokens: tokens as usize })
    }

    fn begin_segment(&mut self, ends: &[u32]) -> Option<()> {
        let segment = self.segments.next()?;
        let (ratio, first_row) = (self.plan.geometry().gqa_ratio(), self.item.rows.start);
        let first = (segment.members.start * ratio).max(first_row) - first_row;
        let last = (segment.members.end * ratio).min(self.item.rows.end).saturating_sub(first_row);
        let rows = if first < last { first as usize..last as usize } else { 0..0 };
        let ends = &ends[rows.clone()];
        let at =
            |position: u32| segment.kv_range.start.saturating_add(position.saturating_sub(segment.position));
        // Tokens that no row has are not even looked at: a page may be larger than what is in it.
        let longest = ends.iter().copied().max().unwrap_or(0);
        let end = segment.kv_range.end.min(self.kv_range.end).min(at(longest));
        // Nor are those before every row's window.
        let seen = ends.iter().map(|&end| self.masking.first_seen(end)).min().unwrap_or(0);
        let start = segment.kv_range.start.max(self.kv_range.start).max(at(seen));
        // Steps at multiples of their length, whatever is hidden.
        let start = if self.plan.is_invariant() && start < end {
            start - (start - segment.kv_range.start) % self.n
        } else {
            start
        };
        self.tokens = if rows.is_empty() { 0..0 } else { start..end };
        self.segment = Some((segment, rows));
        Some(())
    }
}

/// Where the tokens from `begin` on lie, a page at a time.
#[inline(always)]
fn locate(plan: &Plan, segment: &KvSegment, strides: &KvStrides, begin: u32, offsets: &mut [usize]) {
    let page_size = plan.geometry().page_size;
    let mut done = 0;
    while done < offsets.len() {
        let within = begin + done as u32 - segment.kv_range.start;
        let (page, slot) = (within / page_size, within % page_size);
        let count = ((page_size - slot) as usize).min(offsets.len() - done);
        let page = plan.pages()[(segment.pages + page) as usize];
        let first = page as usize * strides.page + slot as usize * strides.token;
        for (i, offset) in offsets[done..done + count].iter_mut().enumerate() {
            *offset = first + i * strides.token;
        }
        done += count;
    }
}
