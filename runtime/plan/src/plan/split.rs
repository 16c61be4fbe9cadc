//! How long walks are cut: few long ones leave most of a GPU idle.

use super::options::ctas_per_sm;
use super::waves::{Walk, Waves, WavesScratch};
use super::{Block, Plan, PlanOptions, SHORTEST_PART, Split};
use super::{GRANULE, max_runs};
use std::ops::Range;
use tilewright_heuristics::Geometry;

/// Tokens of a block's walk that one CTA a KV head takes, and the runs that they lie in.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) block: u32,
    pub(super) walk: Range<u32>,
    pub(super) runs: Range<u32>,
    /// Its first work item, once they are listed.
    pub(super) item: u32,
}

/// Parts are whole multiples of this many tokens, or of a smaller page.
const UNIT: u32 = 64;

/// Where the equal parts of a walk end: at whole units, so each is less than a unit longer or shorter than its share.
struct Ends {
    walk: u32,
    parts: u32,
    unit: u32,
}

impl Ends {
    /// The first end behind a token.
    #[inline]
    fn behind(&self, token: u32) -> u32 {
        if self.parts == 1 {
            return self.walk;
        }
        let (walk, parts, unit) = (u64::from(self.walk), u64::from(self.parts), u64::from(self.unit));
        let end = |part: u64| (part * walk / parts).next_multiple_of(unit).min(walk);
        // Ends are rounded up: that of the part before may be behind the token still.
        let mut part = (u64::from(token) * parts / walk).max(1);
        while part < parts && end(part) <= u64::from(token) {
            part += 1;
        }
        end(part) as u32
    }
}

impl Plan {
    /// The parts that each block's walk is cut into, in order.
    pub(super) fn split(&self, options: &PlanOptions, parts: &mut Vec<Part>, waves: &mut WavesScratch) {
        let limit = self.part_limit(options, waves);
        parts.clear();
        for index in 0..self.blocks.len() as u32 {
            self.cut_block(index, limit, parts);
        }
    }

    /// Cuts a block's walk into equal parts of at most `limit` tokens, if whole units allow it.
    #[inline]
    pub(super) fn cut_block(&self, index: u32, limit: u64, parts: &mut Vec<Part>) {
        let block = &self.blocks[index as usize];
        let walk = u64::from(block.walk);
        if walk <= limit && block.runs.len() == 1 {
            // Most are so short and have one run: there is nothing to look for.
            return parts.push(Part { block: index, walk: 0..block.walk, runs: block.runs.clone(), item: 0 });
        }
        let page_size = self.geometry.page_size;
        let unit = if page_size.is_multiple_of(UNIT) {
            UNIT
        } else if page_size.is_multiple_of(GRANULE) {
            page_size.min(UNIT)
        } else {
            GRANULE
        };
        let room = max_runs(u32::from(self.packs[block.pack as usize].tile.m));
        let count = if walk <= limit { 1 } else { walk.div_ceil(limit.max(1)) };
        // At most as many as tokens.
        let ends = Ends { walk: block.walk, parts: count as u32, unit };
        self.cut(index, block, &ends, room, parts);
    }

    /// Cuts a walk into parts with these ends and of at most `room` runs. One without tokens is a part too.
    fn cut(&self, index: u32, block: &Block, ends: &Ends, room: u32, parts: &mut Vec<Part>) {
        if block.runs.is_empty() {
            parts.push(Part { block: index, walk: 0..0, runs: block.runs.clone(), item: 0 });
        }
        let (mut run, mut begin) = (block.runs.start, 0);
        while run < block.runs.end {
            let first = run;
            let mut end = ends.behind(begin);
            // To the run that the part's last token lies in; gaps between runs belong to nobody.
            while run + 1 < block.runs.end && self.runs[run as usize + 1].walk.start < end {
                run += 1;
                if run - first == room {
                    end = self.runs[run as usize].walk.start;
                    run -= 1;
                    break;
                }
            }
            end = end.min(self.runs[run as usize].walk.end);
            parts.push(Part { block: index, walk: begin..end, runs: first..run + 1, item: 0 });
            if end == self.runs[run as usize].walk.end {
                run += 1;
                begin = self.runs.get(run as usize).map_or(end, |run| run.walk.start);
            } else {
                begin = end;
            }
        }
    }

    /// Walks longer than this are cut.
    pub(super) fn part_limit(&self, options: &PlanOptions, waves: &mut WavesScratch) -> u64 {
        let length = |block: &Block| u64::from(block.walk);
        let limit = match options.split {
            Split::None => u64::MAX,
            Split::Mean => {
                let longest = |pack| self.blocks_of(pack).iter().map(length).max();
                let packs = self.packs.iter().filter_map(longest).filter(|&longest| longest > 0);
                let (total, count) =
                    packs.fold((0, 0), |(total, count), longest| (total + longest, count + 1));
                total.div_ceil(u64::max(count, 1))
            }
            Split::Waves => {
                u64::from(self.waves(options).part_limit(self.walks(), || self.merges_uncut(), waves))
            }
            Split::Fill => {
                let all: u64 = self.walks().map(|walk| u64::from(walk.ctas) * u64::from(walk.tokens)).sum();
                all.div_ceil(u64::from(options.slots.max(1))).max(u64::from(SHORTEST_PART))
            }
        };
        limit.max(1)
    }

    /// What a limit is judged by: a CTA's time beyond its tokens, a partial's, and that of merging at all, as tokens of one CTA among all.
    pub(super) fn waves(&self, options: &PlanOptions) -> Waves {
        let Geometry { head_dim, dtype, .. } = self.geometry;
        let token =
            (2 * u64::from(head_dim) * dtype.kv_bytes() as u64).saturating_mul(options.prices.first_byte);
        let in_tokens = |time: u64| u32::try_from(time.div_ceil(token.max(1))).unwrap_or(u32::MAX);
        let row = ((u64::from(head_dim) + 2) * 4).saturating_mul(options.prices.partial_byte);
        Waves {
            slots: options.slots,
            shortest: SHORTEST_PART,
            cta: in_tokens(options.prices.cta),
            row: in_tokens(row),
            // Nobody computes meanwhile: it takes the time of all CTAs that run at once, and is divided by them as the price of a CTA is.
            merge: in_tokens(options.prices.merge.div_ceil(u64::from(options.slots.max(1)))),
        }
    }

    /// Whether something is to be merged even if no walk is cut for its length: partials of a request that is in several blocks, or of a
    /// block with more runs than fit a part, whose requests all have its first run.
    fn merges_uncut(&self) -> bool {
        let mut requests = 0;
        for pack in &self.packs {
            let room = max_runs(u32::from(pack.tile.m)) as usize;
            for block in self.blocks_of(pack) {
                if block.runs.len() > room {
                    return true;
                }
                requests += block.requests.len();
            }
        }
        requests > self.batch()
    }

    fn walks(&self) -> impl Iterator<Item = Walk> {
        self.packs.iter().flat_map(|pack| self.blocks_of(pack)).map(|block| {
            let (slices, rows) = (self.slices(block), self.rows(block));
            let rows = if slices == 1 { rows } else { rows / slices };
            let ctas_per_sm = ctas_per_sm(&self.packs[block.pack as usize].tile);
            Walk { ctas: slices * self.geometry.kv_heads, tokens: block.walk, rows, ctas_per_sm }
        })
    }

    /// CTAs of a KV head that share a block's walk, each with some of its rows: more than one only where one request's are too many.
    #[inline]
    pub(super) fn slices(&self, block: &Block) -> u32 {
        let (m, rows) = (u32::from(self.packs[block.pack as usize].tile.m.max(1)), self.rows(block));
        // Divisions are slow, and hardly ever is there more than one.
        if rows <= m { 1 } else { rows.div_ceil(m) }
    }

    /// Rows of a KV head.
    #[inline]
    pub(super) fn rows(&self, block: &Block) -> u32 {
        // The shape knows the GQA ratio, which the layout would have to divide for.
        block.requests.len() as u32 * self.packs[block.pack as usize].shape.gqa_ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_as_many_as_asked_for_and_equal_but_for_a_unit(share in 1u32..500, more in 0u32..2_000, parts in 1u32..40, unit in prop::sample::select(vec![16u32, 32, 64])) {
            let walk = share * unit * parts + more;
            let ends = Ends { walk, parts, unit };
            let mut begins = vec![0];
            while begins[begins.len() - 1] < walk {
                begins.push(ends.behind(begins[begins.len() - 1]));
            }
            prop_assert_eq!(begins.len() as u32, parts + 1);
            for part in begins.windows(2) {
                prop_assert!(part[1].is_multiple_of(unit) || part[1] == walk);
                let (length, share) = (u64::from(part[1] - part[0]) * u64::from(parts), u64::from(walk));
                prop_assert!(length.abs_diff(share) < u64::from(unit * parts), "{:?}", part);
                // Wherever one looks from, the same ends are found.
                let middle = part[0] + (part[1] - part[0]) / 2;
                prop_assert_eq!(ends.behind(middle), part[1]);
            }
        }
    }
}
