//! How much of a device a plan leaves idle, predicted before it runs: list scheduling of its work items, by the prices that planned it.

use super::list_schedule::Placed;
use super::{Plan, PlanOptions, TileGroup, UNTOUCHED};
use std::iter::repeat_n;
use std::ops::Range;
use tilewright_heuristics::Tile;

impl Plan {
    /// The share of all CTA slots' time that the plan leaves idle, 0 to 1, if CTAs take as long as their tokens and start in the plan's order.
    pub fn predicted_idle(&self, options: &PlanOptions) -> f64 {
        let times = self.item_times(options, 0..self.items.len() as u32);
        Placed::on(options.device.max_concurrent_ctas, times.flat_map(|time| self.of_kv_heads(time)))
            .idle_share(options.device.max_concurrent_ctas)
    }

    /// The same where the items of each tile are launched when those of the tile before have ended, and the device holds `places` CTAs of a
    /// tile at once: the share of the places' time, at each moment those of the tile that runs.
    pub fn predicted_idle_launched(&self, options: &PlanOptions, places: impl Fn(&Tile) -> u32) -> f64 {
        let (mut busy, mut end) = (0.0, 0);
        for TileGroup { tile, items } in &self.groups {
            let places = places(tile).max(1);
            let times = self.item_times(options, items.clone());
            let placed = Placed::on(places, times.flat_map(|time| self.of_kv_heads(time)));
            busy += placed.busy as f64 / f64::from(places);
            end += placed.end;
        }
        if end == 0 { 0.0 } else { 1.0 - busy / end as f64 }
    }

    /// The same where threads take the items, as on the CPU backend: those of tiles with several warps first, each in as many equal shares.
    pub fn predicted_idle_of_threads(&self, options: &PlanOptions, threads: u32) -> f64 {
        let (shared, single): (Vec<_>, Vec<_>) = self.groups.iter().partition(|group| group.tile.warps > 1);
        let times = shared.into_iter().chain(single).flat_map(|TileGroup { tile, items }| {
            let shares = u64::from(tile.warps.max(1));
            let times = self.item_times(options, items.clone()).flat_map(|time| self.of_kv_heads(time));
            times.flat_map(move |time| repeat_n(time.div_ceil(shares), shares as usize))
        });
        Placed::on(threads, times).idle_share(threads)
    }

    /// What a CTA of each of these items takes, as tokens of one CTA among all.
    fn item_times(&self, options: &PlanOptions, items: Range<u32>) -> impl Iterator<Item = u64> {
        let (waves, row) = (self.waves(options), self.work_of_row(options));
        self.items[items.start as usize..items.end as usize].iter().map(move |item| {
            let targets = &self.targets[item.targets as usize..][..self.requests_of(item.q_tile).len()];
            let partials = targets.iter().filter(|target| target.partial < UNTOUCHED).count() as u64;
            let rows = partials * u64::from(self.geometry.gqa_ratio());
            self.work_within(&self.q_tiles[item.q_tile as usize], row, &item.kv_range)
                + u64::from(waves.cta)
                + rows * u64::from(waves.row)
        })
    }

    /// An item's time, once for each KV head.
    fn of_kv_heads(&self, time: u64) -> impl Iterator<Item = u64> + use<> {
        repeat_n(time, self.geometry.kv_heads as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageTable, Prices, Split};
    use tilewright_heuristics::{Dtype, Geometry};

    const GEOMETRY: Geometry =
        Geometry { q_heads: 2, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
    const SHORT: Tile = Tile::of("m1n16w1s1");
    const LONG: Tile = Tile::of("m2n16w2s1");

    /// Three requests of 64, 64 and 256 tokens that share nothing; the longest has a tile of its own. Time is tokens.
    fn planned() -> (Plan, PlanOptions) {
        let entries: Vec<i32> = (0..48).collect();
        let table = PageTable::new(&entries, 16, &[64, 64, 256], 16).unwrap();
        let options = PlanOptions { split: Split::None, ..PlanOptions::default() }
            .with_max_concurrent_ctas(3)
            .with_prices(Prices { cta: 0, ..Prices::CPU });
        let select = |shape: &tilewright_heuristics::PackShape| if shape.kv_len > 64 { LONG } else { SHORT };
        (Plan::build(&GEOMETRY, &table, &options, select).unwrap(), options)
    }

    fn assert_share(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
    }

    #[test]
    fn serial_launches_leave_cta_slots_idle() {
        let (plan, options) = planned();
        let tiles: Vec<Tile> = plan.tile_groups().iter().map(|group| group.tile).collect();
        assert_eq!(tiles, [SHORT, LONG]);
        // CTAs of 64, 64, 64, 64, 256 and 256 tokens: two of three CTA slots end at 320, one at 128.
        assert_share(plan.predicted_idle(&options), 192.0 / (3.0 * 320.0));
        // All four of 64 side by side, then two of 256 in four places.
        assert_share(plan.predicted_idle_launched(&options, |_| 4), 2.0 * 256.0 / (4.0 * 320.0));
        // With two places of the second tile nothing is idle.
        let places = |tile: &Tile| if *tile == LONG { 2 } else { 4 };
        assert_share(plan.predicted_idle_launched(&options, places), 0.0);
        assert_share(Plan::default().predicted_idle_launched(&options, |_| 0), 0.0);
    }

    #[test]
    fn threads_share_items_of_several_warps_and_take_them_first() {
        let (plan, options) = planned();
        // Four shares of 128 tokens, then four items of 64: in the other order three threads would not end together.
        assert_share(plan.predicted_idle_of_threads(&options, 3), 0.0);
        assert_share(plan.predicted_idle_of_threads(&options, 16), 1.0 - 768.0 / (16.0 * 128.0));
    }
}
