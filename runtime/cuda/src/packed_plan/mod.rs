//! A plan as the kernels read it: one buffer of 32-bit words, so that it goes up in one copy.

mod l2_policy;
mod layout;
mod words;

use super::{Bucket, FitError, Mix};
use l2_policy::L2Policy;
use layout::{ITEM, LAUNCH};
pub(super) use layout::{Layout, Sections};
use std::cmp::Reverse;
use std::ops::Range;
use tilewright_heuristics::{Geometry, Tile};
use tilewright_kernel_templates::cuda::{Arguments, FastDiv};
use tilewright_plan::{self as plan, Plan};
use words::{put, words_of_item, words_of_merge, words_of_segment, words_of_target};

/// What computes a launch's items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// All of them one tile.
    Tile(Tile),
    /// Each the tile that it names.
    Mix(Mix),
}

/// The work items of one launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ItemGroup {
    pub(super) variant: Variant,
    /// The first among all items.
    pub(super) begin: u32,
    pub(super) count: u32,
    /// Items that the grid is made for: `count`, or what a bucket has room for.
    pub(super) grid: u32,
}

/// A plan's words and where its sections begin.
#[derive(Clone, Debug, Default)]
pub struct PackedPlan {
    words: Vec<u32>,
    layout: Layout,
    /// Words up to the end of the last entry of the last section that has one.
    used: usize,
    pub(super) groups: Vec<ItemGroup>,
    /// Merges that a launch's grid is made for.
    pub(super) merge_grid: u32,
    pub(super) merge_count: u32,
    /// Whether a merge's launch reads a row with four warps.
    pub(super) wide_merges: bool,
    /// Partials that the workspace has room for.
    partials: u32,
    pub(super) batch: usize,
    /// The largest page id; -1 without pages.
    pub(super) largest_page: i32,
    /// Items in the order of a single launch: tokens, rows, index, tile of the mix.
    order: Vec<(Reverse<u32>, Reverse<u32>, u32, u8)>,
    /// Whose pages several items read.
    l2_policy: L2Policy,
}

impl PackedPlan {
    /// The same for a device with this much L2; without it, that of an H200.
    #[must_use]
    pub fn with_l2(self, l2_bytes: u64) -> Self {
        Self { l2_policy: L2Policy::new(l2_bytes), ..self }
    }

    /// The packed form of a plan, with a launch for each tile.
    pub fn of(plan: &Plan) -> Self {
        let mut packed = Self::default();
        packed.fill(plan);
        packed
    }

    /// The packed form of no plan yet, in a bucket.
    pub fn in_bucket(bucket: &Bucket) -> Self {
        let layout = bucket.layout();
        Self {
            words: vec![0; layout.words()],
            used: 1 + LAUNCH * bucket.capacities().items.len(),
            layout,
            groups: bucket.groups(),
            merge_grid: bucket.capacities().merges,
            wide_merges: bucket.wide_merges(),
            partials: bucket.capacities().partials,
            largest_page: -1,
            ..Self::default()
        }
    }

    /// Becomes the packed form of another plan, with a launch for each tile, in the same memory where that is large enough.
    pub fn fill(&mut self, plan: &Plan) {
        self.groups.clear();
        self.groups.extend(plan.tile_groups().iter().map(|group| ItemGroup {
            variant: Variant::Tile(group.tile),
            begin: group.items.start,
            count: group.items.end - group.items.start,
            grid: group.items.end - group.items.start,
        }));
        self.lay_out(plan);
        self.l2_policy.decide(plan);
        self.write_items_per_tile(plan, |index, group| (index, group.items.start));
        self.write_rest(plan);
    }

    /// As [`PackedPlan::fill`], with the items longest first, for one launch of a mix. Allocates nothing once it has seen the largest plan.
    ///
    /// # Errors
    /// A plan with a tile that the mix has not. The packed plan is as before then.
    pub fn fill_single(&mut self, plan: &Plan, mix: &Mix) -> Result<(), FitError> {
        self.order_items(plan, mix)?;
        let count = plan.work_items().len() as u32;
        self.groups.clear();
        self.groups.push(ItemGroup { variant: Variant::Mix(mix.clone()), begin: 0, count, grid: count });
        self.lay_out(plan);
        self.l2_policy.decide(plan);
        self.write_items_in_order(plan);
        self.write_rest(plan);
        Ok(())
    }

    /// The mix of a plan's tiles and no others: that of the last single launch, if it is the same.
    pub(super) fn mix_of(&self, plan: &Plan) -> Mix {
        // Groups are in the order of their tiles.
        let tiles = || plan.tile_groups().iter().map(|group| group.tile);
        match &self.groups[..] {
            [ItemGroup { variant: Variant::Mix(mix), .. }] if mix.tiles().iter().copied().eq(tiles()) => {
                mix.clone()
            }
            _ => Mix::of(&tiles().collect::<Vec<_>>()),
        }
    }

    /// As [`PackedPlan::fill`], as a bucket's forward is launched, with every section at the bucket's place. Allocates nothing.
    ///
    /// # Errors
    /// A plan that does not fit the bucket. The packed plan is as before then.
    pub fn fill_bucket(&mut self, plan: &Plan, bucket: &Bucket) -> Result<(), FitError> {
        bucket.check(plan)?;
        let layout = bucket.layout();
        let same = self.layout == layout && self.groups.len() == bucket.capacities().items.len();
        if !same || self.words.len() != layout.words() {
            let l2_policy = std::mem::take(&mut self.l2_policy);
            *self = Self { l2_policy, ..Self::in_bucket(bucket) };
        }
        for group in &mut self.groups {
            group.count = 0;
        }
        self.l2_policy.decide(plan);
        if let [ItemGroup { variant: Variant::Mix(_), count, .. }] = &mut self.groups[..] {
            *count = plan.work_items().len() as u32;
            self.order_items(plan, bucket.mix())?;
            self.write_items_in_order(plan);
        } else {
            // `check` has found every tile among the bucket's.
            let place = |tile: &Tile| usize::from(bucket.mix().index_of(tile).unwrap_or(0));
            for group in plan.tile_groups() {
                self.groups[place(&group.tile)].count = group.items.end - group.items.start;
            }
            let groups = std::mem::take(&mut self.groups);
            self.write_items_per_tile(plan, |_, group| {
                let index = place(&group.tile);
                (index, groups[index].begin)
            });
            self.groups = groups;
        }
        self.write_rest(plan);
        Ok(())
    }

    /// The words up to the last that is in use, as they are copied.
    pub fn words(&self) -> &[u32] {
        &self.words[..self.used]
    }

    /// Words that the sections span: what a bucket's plan has on the device.
    pub const fn span(&self) -> usize {
        self.layout.words()
    }

    /// Launches of forward: the tile of each, `None` for a mix, and the items that its grid is made for, among all items.
    pub fn launches(&self) -> impl Iterator<Item = (Option<Tile>, Range<u32>)> + '_ {
        self.groups.iter().map(|group| {
            let tile = match group.variant {
                Variant::Tile(tile) => Some(tile),
                Variant::Mix(_) => None,
            };
            (tile, group.begin..group.begin + group.grid)
        })
    }

    /// Merges that the grid of a merge's launch is made for.
    pub const fn merge_grid(&self) -> u32 {
        self.merge_grid
    }

    /// Bytes of the partials of a batch: (O, m, l) of every query head.
    pub const fn workspace_bytes(&self, geometry: &Geometry) -> usize {
        workspace_bytes(self.partials, geometry)
    }

    /// The arguments that depend on the plan alone: its sections at `base`, partials in `workspace`.
    pub fn arguments(&self, geometry: &Geometry, base: u64, workspace: u64) -> Arguments {
        let at = |word: usize| base + 4 * word as u64;
        let rows = u64::from(self.partials) * u64::from(geometry.q_heads);
        Arguments {
            counts: at(0),
            items: at(self.layout.items),
            merges: at(self.layout.merges),
            segments: at(self.layout.segments),
            requests: at(self.layout.requests),
            page_ids: at(self.layout.page_ids),
            output_targets: at(self.layout.targets),
            lengths: at(self.layout.lengths),
            partial_output: workspace,
            partial_softmax: workspace + rows * u64::from(geometry.head_dim) * 4,
            q_heads: FastDiv::new(geometry.q_heads),
            kv_heads: FastDiv::new(geometry.kv_heads),
            gqa_ratio: FastDiv::new(geometry.gqa_ratio()),
            page_size: FastDiv::new(geometry.page_size),
            ..Arguments::default()
        }
    }

    /// The word that lengths begin with: what each query sees.
    pub(super) const fn lengths_at(&self) -> usize {
        self.layout.lengths
    }

    /// Gives all items another tile of the same m.
    pub(super) fn retile(&mut self, to: &Tile) {
        for group in &mut self.groups {
            match &mut group.variant {
                Variant::Tile(tile) if tile.m == to.m => *tile = *to,
                _ => {}
            }
        }
    }

    /// Places the sections of a plan as near to each other as they go.
    fn lay_out(&mut self, plan: &Plan) {
        self.layout = Layout::of(&Sections { launches: self.groups.len(), ..sections_of(plan) });
        self.words.resize(self.layout.words(), 0);
        self.merge_grid = plan.merges().len() as u32;
        self.wide_merges = wide_merges(plan);
        self.partials = plan.partials();
    }

    /// `place` says which launch a group's items are, and where among all items they begin.
    fn write_items_per_tile(&mut self, plan: &Plan, place: impl Fn(usize, &plan::TileGroup) -> (usize, u32)) {
        for (index, group) in plan.tile_groups().iter().enumerate() {
            let (launch, begin) = place(index, group);
            let items = &plan.work_items()[group.items.start as usize..group.items.end as usize];
            let words = items.iter().map(|item| words_of_item(plan, &self.l2_policy, item, launch as u8));
            put(&mut self.words, self.layout.items + begin as usize * ITEM, words);
        }
    }

    fn write_items_in_order(&mut self, plan: &Plan) {
        let words = self.order.iter().map(|&(_, _, index, tile)| {
            words_of_item(plan, &self.l2_policy, &plan.work_items()[index as usize], tile)
        });
        put(&mut self.words, self.layout.items, words);
    }

    /// Orders all items for one launch. A CTA reads K and V of its tokens once for all of its rows, so its time goes by tokens first; the
    /// index keeps the order of equal items fixed.
    fn order_items(&mut self, plan: &Plan, mix: &Mix) -> Result<(), FitError> {
        self.order.clear();
        for group in plan.tile_groups() {
            let tile = mix.index_of(&group.tile);
            let tile = tile.ok_or_else(|| FitError::Tile { tile: group.tile, mix: mix.clone() })?;
            for index in group.items.clone() {
                let item = &plan.work_items()[index as usize];
                let (tokens, rows) =
                    (item.kv_range.end - item.kv_range.start, item.rows.end - item.rows.start);
                self.order.push((Reverse(tokens), Reverse(rows), index, tile));
            }
        }
        self.order.sort_unstable();
        Ok(())
    }

    /// Everything but the items.
    fn write_rest(&mut self, plan: &Plan) {
        let Self { words, layout, groups, l2_policy, .. } = self;
        let head_major = u32::from(l2_policy.head_major());
        words[0] = plan.merges().len() as u32;
        put(words, 1, groups.iter().map(|group| [group.count, head_major]));
        words[layout.lengths..][..plan.batch()].copy_from_slice(plan.seq_lens());
        put(words, layout.merges, plan.merges().iter().map(words_of_merge));
        words[layout.requests..][..plan.requests().len()].copy_from_slice(plan.requests());
        put(words, layout.targets, plan.targets().iter().map(words_of_target));
        put(
            words,
            layout.segments,
            (0..plan.segments().len()).map(|segment| words_of_segment(plan, l2_policy, segment)),
        );
        put(words, layout.page_ids, plan.pages().iter().map(|&page| [page as u32]));
        let last_item =
            groups.iter().filter(|group| group.count > 0).map(|group| group.begin + group.count).max();
        self.used = layout.used(&Sections {
            launches: groups.len(),
            items: last_item.unwrap_or(0) as usize,
            ..sections_of(plan)
        });
        self.merge_count = plan.merges().len() as u32;
        self.batch = plan.batch();
        self.largest_page = plan.largest_page().unwrap_or(-1);
    }
}

/// A plan's entries, without launches.
fn sections_of(plan: &Plan) -> Sections {
    Sections {
        launches: 0,
        requests: plan.batch(),
        merges: plan.merges().len(),
        request_entries: plan.requests().len(),
        targets: plan.targets().len(),
        items: plan.work_items().len(),
        segments: plan.segments().len(),
        page_entries: plan.pages().len(),
    }
}

/// Partials that one warp reads about as fast as four warps synchronise.
const FEW_PARTIALS: u32 = 8;

/// Whether a merge's launch should read the plan's rows with four warps.
pub(super) fn wide_merges(plan: &Plan) -> bool {
    plan.merges().iter().any(|merge| merge.partial_end - merge.partial_begin > FEW_PARTIALS)
}

pub(super) const fn workspace_bytes(partials: u32, geometry: &Geometry) -> usize {
    partials as usize * geometry.q_heads as usize * (geometry.head_dim as usize + 2) * 4
}

#[cfg(test)]
mod tests {
    use super::layout::ALIGNMENT;
    use super::*;
    use tilewright_heuristics::Dtype;
    use tilewright_plan::{PageTable, PlanOptions, Queries};

    #[test]
    fn an_image_holds_whole_pages_and_aligned_sections() {
        let geometry = Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
        let table = PageTable::new(&[5, 6, 7, 5, 6, 9], 3, &[40, 35], 16).unwrap();
        let tile = Tile::of("m16n32w1s2");
        let plan = Plan::build(&geometry, &table, &PlanOptions::default(), tile).unwrap();
        let packed = PackedPlan::of(&plan);
        assert_eq!(packed.span() % ALIGNMENT, 0);
        assert_eq!(packed.largest_page, 9);
        assert_eq!(packed.words[..2], [plan.merges().len() as u32, plan.work_items().len() as u32]);
        let items = &packed.words[packed.layout.items..][..12 * plan.work_items().len()];
        assert!(items.chunks(12).all(|item| item[5].is_multiple_of(16)), "{items:?}");
        let arguments = packed.arguments(&geometry, 1 << 40, 0);
        for address in
            [arguments.items, arguments.merges, arguments.segments, arguments.requests, arguments.page_ids]
        {
            assert!(address >= 1 << 40 && address.is_multiple_of(16), "{address:x}");
        }
        assert_eq!(&packed.words[packed.layout.lengths..][..2], [40, 35]);
    }

    #[test]
    fn an_image_holds_what_each_query_sees() {
        let geometry = Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
        let mut queries = Queries::default();
        let table = PageTable::new(&[5, 6, 7, 5, 6, 9], 3, &[40, 35], 16).unwrap();
        let table = table.with_queries(&[2, 3], &mut queries).unwrap();
        let tile = Tile::of("m16n32w1s2");
        let plan = Plan::build(&geometry, &table, &PlanOptions::default(), tile).unwrap();
        let packed = PackedPlan::of(&plan);
        assert_eq!((packed.batch, &packed.words[packed.lengths_at()..][..5]), (5, &[39, 40, 33, 34, 35][..]));
    }
}
