//! Fetching cache lines ahead of their use.
#![allow(unsafe_code)]

use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 64;
/// The credit that a piece costs.
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

impl Heads {
    /// Bytes of a head's vector.
    const fn bytes<K>(&self) -> usize {
        self.head_dim * size_of::<K>()
    }

    /// Finds the pieces that are fetched while the `part`th of `parts` heads is computed: K or V of a token and a head each, in bytes from the cache's
    /// begin on, in the order of addresses. `offsets` are where the tokens begin.
    ///
    /// Where a token's heads lie side by side, a part is some of the tokens with all heads; else it is all tokens of one head.
    #[inline(always)]
    pub(super) fn pieces<K>(
        &self,
        offsets: &[usize],
        (part, parts): (usize, usize),
        pieces: &mut Vec<usize>,
    ) {
        pieces.clear();
        let stride = self.stride * size_of::<K>();
        let mut token = |offset: usize, heads: Range<usize>| {
            let first = (offset + self.first) * size_of::<K>();
            pieces.extend(heads.map(|head| first + head * stride));
        };
        if self.stride != self.head_dim {
            // Units may have more heads than the one before, or fewer.
            if part < self.count {
                for offset in offsets {
                    token(*offset, part..part + 1);
                }
            }
            return;
        }
        let all = offsets.len() * self.count;
        let (mut at, end) = (all * part / parts, all * (part + 1) / parts);
        if self.count == 1 {
            pieces.extend(offsets[at..end].iter().map(|offset| (offset + self.first) * size_of::<K>()));
            return;
        }
        if at == end {
            return;
        }
        let mut head = at % self.count;
        for offset in &offsets[at / self.count..] {
            let last = self.count.min(head + (end - at));
            token(*offset, head..last);
            at += last - head;
            if at == end {
                break;
            }
            head = 0;
        }
    }
}

/// K or V of a later step, fetched to the caches while another step is computed: a piece each time that so much of the work is done, in the order of
/// addresses. A core has room for some twenty lines on their way and waits when more are asked for at once; and lines in order wake the
/// processor's own prefetcher, which has room for more.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    start: *const u8,
    pieces: &'a [usize],
    lines: usize,
    /// The next piece.
    next: usize,
    /// What a unit of work gives, and what was given.
    price: usize,
    credit: usize,
}

impl<'a> Ahead<'a> {
    /// Fetches pieces of `elements` while so much `work` is done.
    #[inline(always)]
    pub(super) fn new<K>(elements: &'a [K], pieces: &'a [usize], heads: &Heads, work: usize) -> Self {
        Self {
            start: elements.as_ptr().cast(),
            pieces,
            lines: heads.bytes::<K>().div_ceil(LINE),
            next: 0,
            price: (pieces.len() * ONE).div_ceil(work.max(1)),
            credit: 0,
        }
    }

    /// Asks for the pieces that are due when so much more work is done.
    #[inline(always)]
    pub(super) fn fetch(&mut self, work: usize) {
        self.take(work, prefetch);
    }

    /// Asks for all pieces that are left.
    #[inline(always)]
    pub(super) fn fetch_all(&mut self) {
        self.take_until(self.pieces.len(), prefetch);
    }

    #[inline(always)]
    fn take(&mut self, work: usize, mut each: impl FnMut(*const u8)) {
        self.credit += work * self.price;
        while self.credit >= ONE && self.next < self.pieces.len() {
            self.credit -= ONE;
            self.take_until(self.next + 1, &mut each);
        }
    }

    #[inline(always)]
    fn take_until(&mut self, due: usize, mut each: impl FnMut(*const u8)) {
        while self.next < due {
            let piece = self.start.wrapping_add(self.pieces[self.next]);
            self.next += 1;
            if self.lines == 4 {
                for line in 0..4 {
                    each(piece.wrapping_add(line * LINE));
                }
            } else {
                for line in 0..self.lines {
                    each(piece.wrapping_add(line * LINE));
                }
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
            let mut list = Vec::new();
            for part in 0..count {
                // More pieces of work than announced take nothing more.
                let work = pieces * 12;
                heads.pieces::<f16>(&offsets, (part, count), &mut list);
                let mut ahead = Ahead::new(&cache, &list, &heads, work);
                for piece in 1..pieces + 3 {
                    ahead.take(12, |line| taken.push(line as usize - cache.as_ptr() as usize));
                    let due = (list.len() * piece).div_ceil(pieces).min(list.len());
                    prop_assert!((due.saturating_sub(1)..=due).contains(&ahead.next), "{piece} of {pieces}");
                }
                prop_assert_eq!(ahead.next, list.len());
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
