//! Fetching cache lines ahead of their use.
#![allow(unsafe_code)]

/// Bytes of a cache line.
const LINE: usize = 64;
/// The credit that a line costs.
const ONE: usize = 1 << 16;

/// The KV heads of a token that a thread computes together, in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    /// Where the first one lies behind the token's first element.
    pub(super) first: usize,
    pub(super) count: usize,
    /// From head to head.
    pub(super) stride: usize,
    pub(super) head_dim: usize,
}

/// K or V of a later step, fetched to the caches while another step is computed: a line each time that so much of the work is done, in the order of
/// addresses. A core has room for some twenty lines on their way and waits when more are asked for at once; and lines in order wake the
/// processor's own prefetcher, which has room for more.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    start: *const u8,
    /// Where tokens, counted from `start` in elements, begin: those after the present one.
    offsets: std::slice::Iter<'a, usize>,
    bytes_of_element: usize,
    /// Lines of a token.
    run: usize,
    /// The next line, and how many the present token has from it on.
    line: *const u8,
    left_in_run: usize,
    left: usize,
    /// What a unit of work gives, and what was given and not spent.
    price: usize,
    credit: usize,
}

impl<'a> Ahead<'a> {
    /// What the `part`th of `parts` heads fetches of a step's tokens while it does so much `work`.
    ///
    /// Where a token's heads lie side by side, each part is some of the tokens with all heads; else it is all tokens of one head.
    #[inline(always)]
    pub(super) fn new<K>(
        elements: &'a [K],
        offsets: &'a [usize],
        heads: &Heads,
        (part, parts): (usize, usize),
        work: usize,
    ) -> Self {
        let (first, width, lines) = if heads.stride == heads.head_dim {
            let run = (heads.count * heads.head_dim * size_of::<K>()).div_ceil(LINE);
            let lines = offsets.len() * run;
            (heads.first, run, lines * part / parts..lines * (part + 1) / parts)
        } else {
            // Units may have more heads than the one before, or fewer.
            let run = (heads.head_dim * size_of::<K>()).div_ceil(LINE);
            let tokens = if part < heads.count { offsets.len() } else { 0 };
            (heads.first + part * heads.stride, run, 0..tokens * run)
        };
        let start: *const u8 = elements.as_ptr().wrapping_add(first).cast();
        let mut ahead = Self {
            start,
            offsets: offsets[lines.start / width..].iter(),
            bytes_of_element: size_of::<K>(),
            run: width,
            line: start,
            left_in_run: 0,
            left: lines.len(),
            price: (lines.len() * ONE).div_ceil(work.max(1)),
            credit: 0,
        };
        ahead.begin_token(lines.start % width);
        ahead
    }

    /// Goes on to the next token, if there is one, behind so many of its lines.
    #[inline(always)]
    fn begin_token(&mut self, lines: usize) {
        if let Some(offset) = self.offsets.next() {
            self.line = self.start.wrapping_add(offset * self.bytes_of_element + lines * LINE);
            self.left_in_run = self.run - lines;
        }
    }

    /// Asks for the lines that are due when so much more work is done.
    #[inline(always)]
    pub(super) fn fetch(&mut self, work: usize) {
        self.take(work, prefetch);
    }

    /// Asks for all lines that are left.
    #[inline(always)]
    pub(super) fn fetch_all(&mut self) {
        self.take_lines(self.left, prefetch);
    }

    #[inline(always)]
    fn take(&mut self, work: usize, each: impl FnMut(*const u8)) {
        self.credit += work * self.price;
        let due = (self.credit / ONE).min(self.left);
        self.credit %= ONE;
        self.take_lines(due, each);
    }

    #[inline(always)]
    fn take_lines(&mut self, lines: usize, mut each: impl FnMut(*const u8)) {
        self.left -= lines;
        let mut due = lines;
        while due > 0 {
            let now = due.min(self.left_in_run);
            for line in 0..now {
                each(self.line.wrapping_add(line * LINE));
            }
            self.line = self.line.wrapping_add(now * LINE);
            self.left_in_run -= now;
            due -= now;
            if self.left_in_run == 0 {
                self.begin_token(0);
            }
        }
    }
}

/// Asks the processor for a cache line. Where it has no such instruction, nothing is fetched ahead.
#[inline(always)]
fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and never faults, whatever the address. SSE is part of x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    proptest! {
        /// All parts together take each line of each head of each token once, a token's in order, and as much of them as of the work.
        #[test]
        fn every_line_is_asked_for_once_and_in_time(
            count in 1usize..6,
            dim in 1usize..9,
            tokens in 0usize..20,
            first in 0usize..3,
            neighbours: bool,
            pieces in 1usize..40,
        ) {
            let head_dim = 32 * dim;
            let cache = vec![f16::ZERO; 1 << 16];
            let offsets: Vec<usize> = (0..tokens).map(|token| (tokens - token) * 2048).collect();
            let stride = if neighbours { head_dim } else { head_dim + 512 };
            let heads = Heads { first: first * stride, count, stride, head_dim };
            let mut taken = Vec::new();
            for part in 0..count {
                // More pieces of work than announced take nothing more.
                let work = pieces * 12;
                let mut ahead = Ahead::new(&cache, &offsets, &heads, (part, count), work);
                let before = taken.len();
                for piece in 1..pieces + 3 {
                    ahead.take(12, |line| taken.push(line as usize - cache.as_ptr() as usize));
                    let all = taken.len() - before + ahead.left;
                    let due = (all * piece).div_ceil(pieces).min(all);
                    prop_assert!((due.saturating_sub(1)..=due).contains(&(taken.len() - before)), "{piece} of {pieces}");
                }
                prop_assert_eq!(ahead.left, 0);
            }
            let mut expected = Vec::new();
            for offset in &offsets {
                for head in 0..count {
                    let begin = 2 * (offset + heads.first + head * stride);
                    expected.extend((begin..begin + 2 * head_dim).step_by(LINE));
                }
            }
            if neighbours {
                prop_assert_eq!(taken, expected);
            } else {
                taken.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(taken, expected);
            }
        }
    }
}
