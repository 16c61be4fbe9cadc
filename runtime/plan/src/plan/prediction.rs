//! How long a plan takes, predicted before it runs: list scheduling of its work items, by the prices that planned it.

use super::invariant::{add_chunks, compute_segment, pace, start_price};
use super::list_schedule::{BUSY, Pace, running};
use super::{Plan, PlanOptions, TileGroup, UNTOUCHED, WorkItem};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter::repeat_n;
use tilewright_heuristics::{Backend, Tile};

/// What a plan is predicted to take, in attoseconds, the host's part of a launch apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// From the first CTA's start to the last one's end; tiles that are launched one after the other follow each other.
    pub forward: u64,
    /// Merging partials; 0 where there are none.
    pub merge: u64,
}

impl Prediction {
    /// All of it, in microseconds.
    pub const fn us(&self) -> f64 {
        (self.forward.saturating_add(self.merge)) as f64 / 1e12
    }
}

impl Plan {
    /// Predicts the plan's time on a device of this backend that runs `options.device.max_concurrent_ctas` CTAs or threads at once. `together`: tiles share one launch,
    /// as those of a set do. A page that several items read is read from memory by the first of them, from the L2 cache by the others.
    pub fn predicted(&self, options: &PlanOptions, backend: Backend, together: bool) -> Prediction {
        let mut seen = vec![false; self.largest_page().map_or(0, |page| page as usize + 1)];
        let mut forward = 0u64;
        let mut times: Vec<u64> = Vec::new();
        let mut most_per_sm = 1;
        for TileGroup { tile, items } in &self.groups {
            if !together {
                times.clear();
                most_per_sm = 1;
            }
            most_per_sm = most_per_sm.max(options.device.occupancy.of(tile, &self.geometry, self.invariant));
            for item in &self.items[items.start as usize..items.end as usize] {
                let time = self.item_time(options, (tile, backend), item, &mut seen);
                let heads = self.geometry.kv_heads as usize;
                match backend {
                    Backend::Cuda => times.extend(repeat_n(time, heads)),
                    // Threads share the items of tiles with several warps.
                    Backend::Cpu => {
                        let shares = u64::from(tile.warps.max(1));
                        times.extend(repeat_n(time.div_ceil(shares), heads * shares as usize));
                    }
                }
            }
            if !together {
                forward = forward.saturating_add(elapsed(&mut times, options, most_per_sm, backend));
            }
        }
        if together {
            forward = elapsed(&mut times, options, most_per_sm, backend);
        }
        if self.invariant {
            let of_tiles = self.groups.iter().map(|group| pace(&group.tile, &self.geometry, &options.device));
            forward = forward.saturating_mul(of_tiles.max().unwrap_or(64)) / 64;
        }
        Prediction { forward, merge: if self.partials > 0 { options.device.prices.merge } else { 0 } }
    }

    /// What one CTA of an item takes while all CTA slots are busy: its start, its tokens, and its partials. Prices are of the whole device, so that one
    /// of its CTA slots takes this many times as long.
    fn item_time(
        &self,
        options: &PlanOptions,
        (tile, backend): (&Tile, Backend),
        item: &WorkItem,
        seen: &mut [bool],
    ) -> u64 {
        let prices = &options.device.prices;
        let head_dim = u64::from(self.geometry.head_dim);
        let token_bytes = 2 * head_dim * self.geometry.dtype.kv_bytes() as u64;
        let page_size = self.geometry.page_size.max(1);
        // Rows come in sixteens on a tensor core; a processor computes only those that there are.
        let rows = u64::from(item.rows.end - item.rows.start);
        let rows = if tile.m >= 16 { rows.next_multiple_of(16).min(u64::from(tile.m)) } else { rows };
        let flops = rows.saturating_mul(4 * head_dim).saturating_mul(prices.flop);
        let mut time = if self.invariant { start_price(tile, &options.device) } else { prices.cta };
        for segment in &self.segments[item.segments.start as usize..item.segments.end as usize] {
            let from = item.kv_range.start.max(segment.kv_range.start);
            let end = item.kv_range.end.min(segment.kv_range.end);
            if from >= end {
                continue;
            }
            let first_page = segment.pages + (from - segment.kv_range.start) / page_size;
            let pages = first_page..segment.pages + (end - segment.kv_range.start).div_ceil(page_size);
            let new = self.pages[pages.start as usize..pages.end as usize]
                .iter()
                .filter(|&&page| !std::mem::replace(&mut seen[page as usize], true));
            let tokens = u64::from(end - from);
            let mut compute = flops.saturating_mul(tokens);
            if self.invariant {
                // Each chunk is added to those before it, and steps are whole: on a GPU also in their rows.
                let rows = if backend == Backend::Cuda { u32::from(tile.m) } else { rows as u32 };
                let begin = segment.position + (from - segment.kv_range.start);
                let positions = begin..begin + (end - from);
                time = time.saturating_add(add_chunks(&positions, tile, &self.geometry, prices));
                compute = compute_segment(tile, (&self.geometry, options), (end - from, rows));
            }
            let first = (new.count() as u64 * u64::from(page_size)).min(tokens);
            let read = first * prices.hbm_byte + (tokens - first) * prices.l2_byte;
            time = time.saturating_add(read.saturating_mul(token_bytes).max(compute));
        }
        let targets = &self.targets[item.targets as usize..][..self.requests_of(item.q_tile).len()];
        let partials = targets.iter().filter(|target| target.partial < UNTOUCHED).count() as u64;
        let row_bytes = partials * u64::from(self.geometry.gqa_ratio()) * (head_dim + 2) * 4;
        time.saturating_add(row_bytes.saturating_mul(prices.partial_byte))
            .saturating_mul(u64::from(options.device.max_concurrent_ctas.max(1)))
    }
}

/// How long these CTAs take that start longest first, each where a slot gets free first. On a GPU those that run beside few others are faster, but
/// for their start.
fn elapsed(times: &mut [u64], options: &PlanOptions, ctas_per_sm: u32, backend: Backend) -> u64 {
    times.sort_unstable_by_key(|&time| Reverse(time));
    let cta_slots = options.device.max_concurrent_ctas.max(1);
    let places = match backend {
        Backend::Cuda => running(cta_slots, &options.device.occupancy, ctas_per_sm),
        Backend::Cpu => cta_slots.into(),
    };
    let mut free: BinaryHeap<Reverse<u64>> = (0..places).map(|_| Reverse(0)).collect();
    for &time in &*times {
        if let Some(mut first) = free.peek_mut() {
            first.0 = first.0.saturating_add(time);
        }
    }
    let ends = free.into_sorted_vec().into_iter().rev().map(|Reverse(end)| end);
    if backend == Backend::Cpu {
        return ends.max().unwrap_or(0);
    }
    let start = options.device.prices.cta.saturating_mul(cta_slots.into());
    let pace = Pace::of(cta_slots, &options.device.occupancy, (times.len() as u64).min(places));
    let (mut done, mut busy, mut elapsed) = (0u64, places, 0u128);
    for end in ends {
        let starts = end.min(start).saturating_sub(done);
        let computes = u128::from(end - done - starts) * u128::from(pace.of_busy(busy)) / u128::from(BUSY);
        elapsed += u128::from(starts) + computes;
        (done, busy) = (end, busy - 1);
    }
    u64::try_from(elapsed).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageTable, Prices, Split};
    use tilewright_heuristics::{Dtype, Geometry, PackShape};

    const GEOMETRY: Geometry =
        Geometry { q_heads: 2, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
    const TILE: Tile = Tile::of("m64n64w4s2");
    /// Bytes of a token of one KV head.
    const TOKEN: u64 = 2 * 64 * 2;
    /// A byte takes an attosecond, again half of that; all else nothing.
    const PRICES: Prices = Prices { hbm_byte: 2, l2_byte: 1, partial_byte: 0, flop: 0, cta: 0, merge: 7 };

    fn plan(entries: &[i32], seq_lens: &[u32], options: &PlanOptions) -> Plan {
        let table = PageTable::new(entries, entries.len() / seq_lens.len(), seq_lens, 16).unwrap();
        Plan::build(&GEOMETRY, &table, options, |_: &PackShape| TILE).unwrap()
    }

    fn options(cta_slots: u32) -> PlanOptions {
        PlanOptions { split: Split::None, ..PlanOptions::default() }
            .with_max_concurrent_ctas(cta_slots)
            .with_prices(PRICES)
    }

    #[test]
    fn full_ctas_take_what_all_bytes_take() {
        // Four requests alone for two KV heads: eight CTAs on eight CTA slots.
        let entries: Vec<i32> = (0..16).collect();
        let plan = plan(&entries, &[64; 4], &options(8));
        let found = plan.predicted(&options(8), Backend::Cuda, true);
        assert_eq!(found, Prediction { forward: 4 * 64 * 2 * TOKEN * PRICES.hbm_byte, merge: 0 });
        assert_eq!(found, plan.predicted(&options(8), Backend::Cuda, false), "of one tile");
        // Two waves of four take as long; two CTAs of eight are faster alone, but not eight times.
        assert_eq!(plan.predicted(&options(4), Backend::Cuda, true), found);
        let few = plan.predicted(&options(64), Backend::Cuda, true);
        assert!(few.forward > found.forward && few.forward < 8 * found.forward, "{few:?} of {found:?}");
    }

    #[test]
    fn a_page_that_is_read_again_costs_less() {
        let options = PlanOptions { packing: crate::Packing::PerRequest, ..options(4) };
        let [shared, apart] = [[0, 1, 0, 1], [0, 1, 2, 3]].map(|entries| {
            plan(&entries, &[32; 2], &options).predicted(&options, Backend::Cuda, true).forward
        });
        assert_eq!(apart, 2 * 32 * 2 * TOKEN * PRICES.hbm_byte);
        assert!(shared < apart, "{shared}, {apart}");
    }

    #[test]
    fn batch_invariant_steps_are_whole_on_a_gpu() {
        let flops = Prices { hbm_byte: 0, l2_byte: 0, flop: 1, ..PRICES };
        let options = PlanOptions { split: Split::Invariant, ..options(4) }.with_prices(flops);
        let device = options.device;
        let plan = plan(&(0..5).collect::<Vec<_>>(), &[80], &options);
        let of = |rows: u64| rows * 80 * 4 * 64 * 4;
        let [on_gpu, threads] =
            [Backend::Cuda, Backend::Cpu].map(|backend| plan.predicted(&options, backend, true).forward);
        // All rows of the tile for one, on a GPU with little else to do.
        assert_eq!(on_gpu, of(64) * device.occupancy.pace_alone / BUSY * device.invariant.tall_tiles / 64);
        // The rows that there are, in sixteens; four threads share those of one KV head, then of the other.
        assert_eq!(threads, 2 * of(16) / 4 * device.invariant.tall_tiles / 64);
    }

    #[test]
    fn partials_are_merged_and_threads_share_nothing_but_items() {
        let options = PlanOptions { split: Split::Fill, ..PlanOptions::default() }
            .with_max_concurrent_ctas(4)
            .with_prices(PRICES);
        let entries: Vec<i32> = (0..64).collect();
        let plan = plan(&entries, &[1024], &options);
        assert!(plan.partials() > 0);
        assert_eq!(plan.predicted(&options, Backend::Cuda, true).merge, PRICES.merge);
        let threads = plan.predicted(&options, Backend::Cpu, true);
        assert_eq!(threads.forward, 1024 * 2 * TOKEN * PRICES.hbm_byte, "two parts of two KV heads");
        assert_eq!(Plan::default().predicted(&options, Backend::Cuda, true), Prediction::default());
    }
}
