//! How long KV ranges are cut: few long ones leave most of a GPU idle.

use super::waves::{KvWork, UNIT, Waves, WavesScratch};
use super::{GRANULE, max_segments};
use super::{KvSegment, Plan, PlanOptions, QTile, SHORTEST_CHUNK, Split};
use crate::{DeviceProfile, Occupancy};
use std::ops::Range;
use tilewright_heuristics::Geometry;

/// Tokens of a Q tile's KV range that one CTA a KV head takes, and the segments that they lie in.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) q_tile: u32,
    pub(super) kv_range: Range<u32>,
    pub(super) segments: Range<u32>,
    /// Its first work item, once they are listed.
    pub(super) item: u32,
}

/// Where the chunks of a KV range end, in tokens or what these count for.
#[derive(Clone, Copy, Debug)]
struct Ends {
    all: u64,
    chunks: u64,
    /// All chunks but the last ones take so much; 0 where all are equal.
    full: u64,
}

impl Ends {
    /// Of a KV range of so much work.
    #[inline]
    fn of(all: u64, limit: Limit) -> Self {
        let chunks = if all <= limit.work { 1 } else { all.div_ceil(limit.work.max(1)) };
        Self { all, chunks, full: if limit.equal { 0 } else { limit.work } }
    }

    /// The end of a chunk, counted from 1.
    #[inline]
    fn end(self, chunk: u64) -> u64 {
        let Self { all, chunks, full } = self;
        if full == 0 || chunk >= chunks {
            return chunk * all / chunks;
        }
        let rest = all - (chunks - 1) * full;
        // What is left is no chunk if it is short: the chunk before shares with it.
        let shares = chunk + 1 == chunks && rest < u64::from(SHORTEST_CHUNK);
        if shares { all - (full + rest) / 2 } else { chunk * full }
    }

    /// The first end behind a token, at whole units: what the tokens before it count for is `work`, and `token_at` is the token before which those count for so
    /// much. `None` in the last chunk.
    #[inline]
    fn behind(self, (token, work): (u32, u64), unit: u32, token_at: impl Fn(u64) -> u32) -> Option<u32> {
        // No earlier chunk ends behind it.
        let chunk = work.checked_div(self.full).unwrap_or(work * self.chunks / self.all.max(1));
        // Ends are rounded up: that of the chunk before may be behind the token still.
        let mut ends =
            (chunk.max(1)..self.chunks).map(|chunk| token_at(self.end(chunk)).next_multiple_of(unit));
        ends.find(|&end| end > token)
    }
}

/// What a token counts for by the rows that see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// Of one row, in 64ths of what a token counts for at least; 0 where it counts as much for any of them.
    each: u64,
    /// Most rows of a CTA.
    most: u64,
}

impl Rows {
    /// A token at least, in the units of its weight.
    const TOKEN: u64 = 64;

    /// What a token of a segment counts for.
    fn weight(self, rows: u32) -> u64 {
        (u64::from(rows).min(self.most) * self.each).max(Self::TOKEN)
    }
}

/// KV ranges of more work than this are cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    /// Tokens, or what they count for.
    pub(super) work: u64,
    /// [`Rows::each`].
    pub(super) row: u64,
    /// [`Cut::equal`].
    pub(super) equal: bool,
}

impl Plan {
    /// The chunks that each Q tile's KV range is cut into, in order.
    pub(super) fn split(&self, options: &PlanOptions, chunks: &mut Vec<Chunk>, waves: &mut WavesScratch) {
        let limit = self.chunk_limit(options, waves);
        chunks.clear();
        for index in 0..self.q_tiles.len() as u32 {
            self.cut_q_tile(index, limit, chunks);
        }
    }

    /// Cuts a Q tile's KV range into chunks of at most this limit, if whole units allow it.
    #[inline]
    pub(super) fn cut_q_tile(&self, index: u32, limit: Limit, chunks: &mut Vec<Chunk>) {
        let q_tile = &self.q_tiles[index as usize];
        let work = self.work_of(q_tile, limit.row);
        if work <= limit.work && q_tile.segments.len() == 1 {
            // Most are so short and have one segment: there is nothing to look for.
            return chunks.push(Chunk {
                q_tile: index,
                kv_range: 0..q_tile.kv_len,
                segments: q_tile.segments.clone(),
                item: 0,
            });
        }
        let page_size = self.geometry.page_size;
        let unit = if page_size.is_multiple_of(UNIT) {
            UNIT
        } else if page_size.is_multiple_of(GRANULE) {
            page_size.min(UNIT)
        } else {
            GRANULE
        };
        let room = max_segments(u32::from(self.packs[q_tile.pack as usize].tile.m));
        let ends = Ends::of(work, limit);
        if ends.chunks == 1 {
            return self.cut(index, q_tile, |_| q_tile.kv_len, room, chunks);
        }
        let token_at = |work: u64| match limit.row {
            0 => work as u32,
            row => self.token_behind(q_tile, row, work),
        };
        let end_behind = |token: u32| {
            let from = (token, self.work_up_to(q_tile, limit.row, token));
            ends.behind(from, unit, token_at).map_or(q_tile.kv_len, |end| end.min(q_tile.kv_len))
        };
        self.cut(index, q_tile, end_behind, room, chunks);
    }

    /// What a Q tile's tokens count for.
    pub(super) fn work_of(&self, q_tile: &QTile, row: u64) -> u64 {
        self.work_up_to(q_tile, row, q_tile.kv_len)
    }

    /// What the tokens of a part of a Q tile's KV range count for.
    pub(super) fn work_within(&self, q_tile: &QTile, row: u64, kv_range: &Range<u32>) -> u64 {
        if row == 0 {
            return kv_range.len() as u64;
        }
        self.work_up_to(q_tile, row, kv_range.end) - self.work_up_to(q_tile, row, kv_range.start)
    }

    /// What the tokens of a Q tile's KV range before this one count for.
    #[inline]
    fn work_up_to(&self, q_tile: &QTile, row: u64, token: u32) -> u64 {
        if row == 0 {
            return u64::from(token);
        }
        let rows = self.weights(q_tile, row);
        let segments = self.segments[q_tile.segments.start as usize..q_tile.segments.end as usize].iter();
        let of = |segment: &KvSegment| {
            let tokens = segment.kv_range.end.min(token).saturating_sub(segment.kv_range.start);
            u64::from(tokens) * rows.weight(self.rows_of(segment))
        };
        segments.map(of).sum::<u64>() / Rows::TOKEN
    }

    /// The token before which those of a Q tile's KV range count for so much.
    fn token_behind(&self, q_tile: &QTile, row: u64, work: u64) -> u32 {
        let (rows, mut left) = (self.weights(q_tile, row), work * Rows::TOKEN);
        for segment in &self.segments[q_tile.segments.start as usize..q_tile.segments.end as usize] {
            let weight = rows.weight(self.rows_of(segment));
            let tokens = left.div_ceil(weight);
            if tokens <= segment.kv_range.len() as u64 {
                return segment.kv_range.start + tokens as u32;
            }
            left -= weight * segment.kv_range.len() as u64;
        }
        q_tile.kv_len
    }

    fn weights(&self, q_tile: &QTile, row: u64) -> Rows {
        Rows { each: row, most: self.packs[q_tile.pack as usize].tile.m.into() }
    }

    /// Rows of a KV head that see a segment.
    fn rows_of(&self, segment: &KvSegment) -> u32 {
        segment.members.len() as u32 * self.geometry.gqa_ratio()
    }

    /// Cuts a KV range into chunks with these ends and of at most `room` segments. One without tokens is a chunk too.
    #[inline]
    fn cut(
        &self,
        index: u32,
        q_tile: &QTile,
        end_behind: impl Fn(u32) -> u32,
        room: u32,
        chunks: &mut Vec<Chunk>,
    ) {
        if q_tile.segments.is_empty() {
            chunks.push(Chunk { q_tile: index, kv_range: 0..0, segments: q_tile.segments.clone(), item: 0 });
        }
        let (mut segment, mut begin) = (q_tile.segments.start, 0);
        while segment < q_tile.segments.end {
            let first = segment;
            let mut end = end_behind(begin);
            // To the segment that the chunk's last token lies in; gaps between segments belong to no chunk.
            while segment + 1 < q_tile.segments.end
                && self.segments[segment as usize + 1].kv_range.start < end
            {
                segment += 1;
                if segment - first == room {
                    end = self.segments[segment as usize].kv_range.start;
                    segment -= 1;
                    break;
                }
            }
            end = end.min(self.segments[segment as usize].kv_range.end);
            chunks.push(Chunk { q_tile: index, kv_range: begin..end, segments: first..segment + 1, item: 0 });
            if end == self.segments[segment as usize].kv_range.end {
                segment += 1;
                begin = self.segments.get(segment as usize).map_or(end, |segment| segment.kv_range.start);
            } else {
                begin = end;
            }
        }
    }

    /// KV ranges longer than this are cut.
    pub(super) fn chunk_limit(&self, options: &PlanOptions, waves: &mut WavesScratch) -> Limit {
        let row = self.work_of_row(options);
        let length = |q_tile: &QTile| u64::from(q_tile.kv_len);
        let limit = match options.split {
            // Those of `Split::Invariant` are not cut by a limit.
            Split::None | Split::Invariant => u64::MAX,
            Split::Mean => {
                let longest = |pack| self.q_tiles_of(pack).iter().map(length).max();
                let packs = self.packs.iter().filter_map(longest).filter(|&longest| longest > 0);
                let (total, count) =
                    packs.fold((0, 0), |(total, count), longest| (total + longest, count + 1));
                total.div_ceil(u64::max(count, 1))
            }
            Split::Waves => {
                let kv_ranges = self.kv_ranges(options.device.occupancy, row);
                let cut = self.waves(options).cut(kv_ranges, || self.merges_uncut(), waves);
                return Limit { work: cut.limit.max(1).into(), row, equal: cut.equal };
            }
            Split::Fill => {
                let all: u64 = self
                    .kv_ranges(options.device.occupancy, 0)
                    .map(|kv_range| u64::from(kv_range.ctas) * u64::from(kv_range.tokens))
                    .sum();
                all.div_ceil(u64::from(options.device.max_concurrent_ctas.max(1)))
                    .max(u64::from(SHORTEST_CHUNK))
            }
        };
        Limit { work: limit.max(1), row, equal: true }
    }

    /// What a row that sees a token counts for, beside the time in which the token is read, in 64ths.
    pub(super) fn work_of_row(&self, options: &PlanOptions) -> u64 {
        let DeviceProfile { prices, products_over_peak, .. } = &options.device;
        if options.split != Split::Waves || *products_over_peak == 0 {
            return 0;
        }
        let bytes = 2 * u64::from(self.geometry.head_dim) * self.geometry.dtype.kv_bytes() as u64;
        let read = bytes.saturating_mul(prices.hbm_byte).max(1);
        let products = (4 * u64::from(self.geometry.head_dim)).saturating_mul(prices.flop);
        (products.saturating_mul(*products_over_peak) / read).clamp(1, 1 << 16)
    }

    /// What a limit is judged by: a CTA's time beyond its tokens, a partial's, and that of merging at all, as tokens of one CTA among all.
    pub(super) fn waves(&self, options: &PlanOptions) -> Waves {
        let Geometry { head_dim, dtype, .. } = self.geometry;
        let token = (2 * u64::from(head_dim) * dtype.kv_bytes() as u64)
            .saturating_mul(options.device.prices.hbm_byte);
        let in_tokens = |time: u64| u32::try_from(time.div_ceil(token.max(1))).unwrap_or(u32::MAX);
        let row = ((u64::from(head_dim) + 2) * 4).saturating_mul(options.device.prices.partial_byte);
        Waves {
            max_concurrent_ctas: options.device.max_concurrent_ctas,
            occupancy: options.device.occupancy,
            shortest: SHORTEST_CHUNK,
            cta: in_tokens(options.device.prices.cta),
            row: in_tokens(row),
            // No CTA computes meanwhile: it takes the time of all CTAs that run at once, and is divided by them as the price of a CTA is.
            merge: in_tokens(
                options.device.prices.merge.div_ceil(u64::from(options.device.max_concurrent_ctas.max(1))),
            ),
            // Threads of a processor take items as they get done, and gained nothing by it.
            uneven: self.work_of_row(options) == 0,
        }
    }

    /// Whether something is to be merged even if no KV range is cut for its length: partials of a request that is in several Q tiles, or of a
    /// Q tile with more segments than fit a chunk, whose requests all have its first segment.
    fn merges_uncut(&self) -> bool {
        let mut requests = 0;
        for pack in &self.packs {
            let room = max_segments(u32::from(pack.tile.m)) as usize;
            for q_tile in self.q_tiles_of(pack) {
                if q_tile.segments.len() > room {
                    return true;
                }
                requests += q_tile.requests.len();
            }
        }
        requests > self.batch()
    }

    fn kv_ranges(&self, occupancy: Occupancy, row: u64) -> impl Iterator<Item = KvWork> {
        self.packs.iter().flat_map(move |pack| {
            let ctas_per_sm = occupancy.of(&pack.tile, &self.geometry, self.invariant);
            self.q_tiles_of(pack).iter().map(move |q_tile| {
                let (slices, rows) = (self.slices(q_tile), self.rows(q_tile));
                let rows = if slices == 1 { rows } else { rows / slices };
                let tokens = u32::try_from(self.work_of(q_tile, row)).unwrap_or(u32::MAX);
                KvWork { ctas: slices * self.geometry.kv_heads, tokens, rows, ctas_per_sm }
            })
        })
    }

    /// CTAs of a KV head that share a Q tile's KV range, each with some of its rows: more than one only where one request's are too many.
    #[inline]
    pub(super) fn slices(&self, q_tile: &QTile) -> u32 {
        let (m, rows) = (u32::from(self.packs[q_tile.pack as usize].tile.m.max(1)), self.rows(q_tile));
        // Divisions are slow, and hardly ever is there more than one.
        if rows <= m { 1 } else { rows.div_ceil(m) }
    }

    /// Rows of a KV head.
    #[inline]
    pub(super) fn rows(&self, q_tile: &QTile) -> u32 {
        // The shape knows the GQA ratio, which the layout would have to divide for.
        q_tile.requests.len() as u32 * self.packs[q_tile.pack as usize].shape.gqa_ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equal_chunks_are_as_many_as_asked_for_and_equal_but_for_a_unit(share in 1u32..500, more in 0u32..2_000, chunks in 1u32..40, unit in prop::sample::select(vec![16u32, 32, 64])) {
            let kv_range = share * unit * chunks + more;
            let limit = Limit { work: u64::from(kv_range).div_ceil(chunks.into()), row: 0, equal: true };
            let chunks = kv_range.div_ceil(limit.work as u32);
            let cut = cut(kv_range, limit, unit)?;
            prop_assert_eq!(cut.len() as u32, chunks);
            for length in cut {
                let (length, share) = (u64::from(length) * u64::from(chunks), u64::from(kv_range));
                prop_assert!(length.abs_diff(share) < u64::from(unit * chunks), "{length}");
            }
        }

        #[test]
        fn unequal_chunks_are_as_long_as_the_limit_but_for_the_last_ones(kv_range in 1u32..100_000, limit in 2u32..200, unit in prop::sample::select(vec![16u32, 32, 64])) {
            let limit = limit * UNIT;
            let cut = cut(kv_range, Limit { work: limit.into(), row: 0, equal: false }, unit)?;
            prop_assert_eq!(cut.len() as u32, kv_range.div_ceil(limit));
            let (last, others) = cut.split_last().unwrap();
            prop_assert!(*last <= limit);
            if kv_range > limit && kv_range % limit != 0 && kv_range % limit < SHORTEST_CHUNK {
                let (shares, others) = others.split_last().unwrap();
                prop_assert!(shares.abs_diff(*last) <= 2 * unit && *shares >= SHORTEST_CHUNK / 2, "{cut:?}");
                prop_assert!(others.iter().all(|&length| length == limit), "{cut:?}");
            } else {
                prop_assert!(others.iter().all(|&length| length == limit), "{cut:?}");
            }
        }
    }

    /// The lengths of a KV range's chunks. Wherever one looks from, the same ends are found.
    fn cut(kv_range: u32, limit: Limit, unit: u32) -> Result<Vec<u32>, TestCaseError> {
        let ends = Ends::of(kv_range.into(), limit);
        let behind = |token: u32| {
            let end = ends.behind((token, token.into()), unit, |work| work as u32);
            end.map_or(kv_range, |end| end.min(kv_range))
        };
        let (mut lengths, mut begin) = (Vec::new(), 0);
        while begin < kv_range {
            let end = behind(begin);
            prop_assert!(end > begin && (end.is_multiple_of(unit) || end == kv_range));
            prop_assert_eq!(behind(begin + (end - begin) / 2), end);
            lengths.push(end - begin);
            begin = end;
        }
        Ok(lengths)
    }
}
