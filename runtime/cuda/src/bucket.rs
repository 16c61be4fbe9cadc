//! How large a plan may become: capacities that fix where its sections lie and how large each grid is, so that one captured graph serves
//! every batch that fits.

use super::packed_plan::{ItemGroup, Layout, Sections, Variant, wide_merges, workspace_bytes};
use super::{FitError, Launch, LaunchMode, MergeBy, Mix};
use tilewright_heuristics::{Geometry, Tile};
use tilewright_plan::Plan;

/// CTAs that a plan is cut into where it has fewer (`Split::Waves`): more than two on each SM of the largest devices.
const FILLED_CTAS: u32 = 512;
/// Levels of shared prefixes that a request has a pack of.
const LEVELS: u32 = 4;
/// Grids are counted in 31 bits.
const MOST_CTAS: u64 = (1 << 31) - 1;

/// Most of everything that a plan may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capacities {
    /// Requests of the batch.
    pub requests: u32,
    /// Work items of each tile, in the order of the bucket's tiles; of all tiles together, one number, where one launch serves all.
    pub items: Vec<u32>,
    /// Requests whose partials are merged.
    pub merges: u32,
    /// Segments of all Q tiles.
    pub segments: u32,
    /// Requests of all Q tiles: a request counts once for each of its packs.
    pub request_entries: u32,
    /// Pages of all segments.
    pub page_entries: u32,
    /// Destinations: requests of a Q tile, for each KV chunk.
    pub targets: u32,
    /// Partials.
    pub partials: u32,
}

/// A size of plans: layout, tiles, how they are launched, and capacities.
///
/// Every grid is as large as its capacity, and CTAs without an item end at once: 2048 of them take 8 us on an H200, 16384 of them 42 us, so a
/// bucket twice as large as its batches costs little, and one ten times as large a lot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    geometry: Geometry,
    launch_mode: LaunchMode,
    mix: Mix,
    capacities: Capacities,
    wide_merges: bool,
}

impl Bucket {
    /// A bucket with these capacities. A launch of the merge then reads each row with four warps.
    ///
    /// # Errors
    /// A layout that makes no sense, a number of item capacities other than that of the launches, or more than a grid can count.
    pub fn new(
        geometry: &Geometry,
        launch_mode: LaunchMode,
        tiles: &[Tile],
        capacities: Capacities,
    ) -> Result<Self, FitError> {
        geometry.validate()?;
        let mix = Mix::of(tiles);
        let launches = if launch_mode.launch == Launch::Single { 1 } else { mix.tiles().len() };
        if capacities.items.len() != launches || mix.tiles().is_empty() {
            return Err(FitError::Launches { found: capacities.items.len(), launches });
        }
        let bucket = Self { geometry: *geometry, launch_mode, mix, capacities, wide_merges: true };
        bucket.check_grids()?;
        Ok(bucket)
    }

    /// A bucket for batches of up to `requests` requests with up to `pages` entries of the page table between them (a page that two
    /// requests share counts twice). Both are rounded up to powers of two; with R requests and S = 512 / KV heads, the chunks that a
    /// batch too small for a device is cut into, the others are, rounded up alike, but for work items: grids are as large.
    ///
    /// | capacity | default |
    /// |---|---|
    /// | work items of each launch | 2 R + S |
    /// | merges | R |
    /// | runs, request entries | 4 R |
    /// | page entries | `pages` |
    /// | destinations, partials | 4 R + S x min(R, 16) |
    ///
    /// These are generous for trees of prefixes with up to four levels. A plan with more of something is refused and says of what;
    /// [`Bucket::grow_to`] makes room for it. Plans of a [`LivePlanner`](tilewright_plan::LivePlanner) have up to twice as many segments, request entries and
    /// page entries as they need: where one does not fit, that of [`Plan::build`] may.
    ///
    /// # Errors
    /// As [`Bucket::new`].
    pub fn for_batch(
        geometry: &Geometry,
        launch_mode: LaunchMode,
        tiles: &[Tile],
        requests: u32,
        pages: u32,
    ) -> Result<Self, FitError> {
        let too_large = || FitError::TooLarge("requests");
        let round = |value: u32| value.checked_next_power_of_two().ok_or_else(too_large);
        let sum = |a: u32, b: u32| a.checked_add(b).ok_or_else(too_large).and_then(round);
        let requests = round(requests)?;
        let chunks = FILLED_CTAS / geometry.kv_heads.clamp(1, FILLED_CTAS);
        let entries = requests.checked_mul(LEVELS).ok_or_else(too_large)?;
        let targets = sum(entries, chunks * requests.min(16))?;
        let launches = if launch_mode.launch == Launch::Single { 1 } else { Mix::of(tiles).tiles().len() };
        let capacities = Capacities {
            requests,
            items: vec![(entries / 2).checked_add(chunks).ok_or_else(too_large)?; launches],
            merges: requests,
            segments: entries,
            request_entries: entries,
            page_entries: round(pages)?,
            targets,
            partials: targets,
        };
        Self::new(geometry, launch_mode, tiles, capacities)
    }

    /// The bucket of a plan, every capacity rounded up to a power of two. A launch of the merge reads each row with as many warps as the
    /// plan's would.
    ///
    /// # Errors
    /// More than a grid can count.
    pub fn of(plan: &Plan, launch_mode: LaunchMode) -> Result<Self, FitError> {
        let tiles: Vec<Tile> = plan.tile_groups().iter().map(|group| group.tile).collect();
        let mix = Mix::of(&tiles);
        let launches = if launch_mode.launch == Launch::Single { 1 } else { mix.tiles().len() };
        let capacities = Capacities { items: vec![0; launches], ..Capacities::default() };
        let mut bucket =
            Self { geometry: *plan.geometry(), launch_mode, mix, capacities, wide_merges: wide_merges(plan) };
        bucket.grow_to(plan)?;
        Ok(bucket)
    }

    /// Makes room for a plan, every capacity that is too small rounded up to a power of two. What was captured or allocated for the bucket
    /// before is of its old size.
    ///
    /// # Errors
    /// Another layout, a tile that is not the bucket's, or more than a grid can count. The bucket is as before then.
    pub fn grow_to(&mut self, plan: &Plan) -> Result<(), FitError> {
        self.check_layout(plan)?;
        let mut grown = self.clone();
        let grow = |what, capacity: &mut u32, needed: u64| {
            if needed > u64::from(*capacity) || *capacity == 0 {
                let rounded = u32::try_from(needed).ok().and_then(u32::checked_next_power_of_two);
                *capacity = rounded.ok_or(FitError::TooLarge(what))?;
            }
            Ok(())
        };
        let capacities = &mut grown.capacities;
        self.each_launch(plan, |launch, _, needed| {
            grow("work items", &mut capacities.items[launch], needed)
        })?;
        for ((what, needed), capacity) in needs(plan).into_iter().zip(capacities.single_mut()) {
            grow(what, capacity, needed)?;
        }
        grown.check_grids()?;
        *self = grown;
        Ok(())
    }

    /// Whether a plan fits.
    ///
    /// # Errors
    /// Another layout, a tile that is not the bucket's, or the first capacity that is too small.
    pub fn check(&self, plan: &Plan) -> Result<(), FitError> {
        self.check_layout(plan)?;
        self.each_launch(plan, |launch, tile, needed| {
            let capacity = self.capacities.items[launch];
            if needed <= u64::from(capacity) {
                return Ok(());
            }
            Err(FitError::Items { tile, needed, capacity })
        })?;
        for ((what, needed), capacity) in needs(plan).into_iter().zip(self.capacities.single()) {
            if needed > u64::from(capacity) {
                return Err(FitError::Capacity { what, needed, capacity });
            }
        }
        Ok(())
    }

    /// Whether a plan fits; [`Bucket::check`] says why not.
    pub fn contains(&self, plan: &Plan) -> bool {
        self.check(plan).is_ok()
    }

    /// The layout of the attention layer.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// How its plans are launched.
    pub const fn launch_mode(&self) -> LaunchMode {
        self.launch_mode
    }

    /// The tiles that its plans may use: a launch of its own for each, or compiled together for one.
    pub const fn mix(&self) -> &Mix {
        &self.mix
    }

    /// Most of everything.
    pub const fn capacities(&self) -> &Capacities {
        &self.capacities
    }

    /// Bytes of device memory of a plan: its sections, and the counters of what has arrived where the last CTA merges.
    pub fn plan_bytes(&self) -> usize {
        self.layout().words() * 4 + self.arrival_bytes()
    }

    /// Bytes of the partials: (O, m, l) of every query head. At least 1.
    pub fn workspace_bytes(&self) -> usize {
        workspace_bytes(self.capacities.partials, &self.geometry).max(1)
    }

    /// Bytes of the counters of what has arrived; 0 where a launch merges.
    pub(super) fn arrival_bytes(&self) -> usize {
        match self.launch_mode.merge {
            MergeBy::Launch => 0,
            MergeBy::LastCta => self.capacities.merges as usize * self.geometry.kv_heads as usize * 4,
        }
    }

    /// Whether the merge's launch reads a row with four warps. Fixed, as all of a captured launch is; both ways serve any length.
    pub(super) const fn wide_merges(&self) -> bool {
        self.wide_merges
    }

    /// Where the sections lie.
    pub(super) fn layout(&self) -> Layout {
        let Capacities {
            requests, ref items, merges, segments, request_entries, page_entries, targets, ..
        } = self.capacities;
        Layout::of(&Sections {
            launches: items.len(),
            requests: requests as usize,
            merges: merges as usize,
            request_entries: request_entries as usize,
            targets: targets as usize,
            items: items.iter().map(|&items| items as usize).sum(),
            segments: segments as usize,
            page_entries: page_entries as usize,
        })
    }

    /// Its launches, without a work item yet.
    pub(super) fn groups(&self) -> Vec<ItemGroup> {
        let variant = |launch: usize| match self.launch_mode.launch {
            Launch::Single => Variant::Mix(self.mix.clone()),
            Launch::Serial | Launch::Streams => Variant::Tile(self.mix.tiles()[launch]),
        };
        let mut begin = 0;
        let group = |(launch, &grid): (usize, &u32)| {
            let group = ItemGroup { variant: variant(launch), begin, count: 0, grid };
            begin += grid;
            group
        };
        self.capacities.items.iter().enumerate().map(group).collect()
    }

    fn check_layout(&self, plan: &Plan) -> Result<(), FitError> {
        if *plan.geometry() == self.geometry {
            return Ok(());
        }
        Err(FitError::Geometry { planned: *plan.geometry(), bucket: self.geometry })
    }

    /// Tells of each launch how many work items a plan has for it, and of which tile they are.
    fn each_launch(
        &self,
        plan: &Plan,
        mut each: impl FnMut(usize, Option<Tile>, u64) -> Result<(), FitError>,
    ) -> Result<(), FitError> {
        for group in plan.tile_groups() {
            let index = self.mix.index_of(&group.tile);
            let index = index.ok_or_else(|| FitError::Tile { tile: group.tile, mix: self.mix.clone() })?;
            if self.launch_mode.launch != Launch::Single {
                each(usize::from(index), Some(group.tile), group.items.len() as u64)?;
            }
        }
        match self.launch_mode.launch {
            Launch::Single => each(0, None, plan.work_items().len() as u64),
            Launch::Serial | Launch::Streams => Ok(()),
        }
    }

    fn check_grids(&self) -> Result<(), FitError> {
        let Capacities { items, merges, .. } = &self.capacities;
        let items: u64 = items.iter().map(|&items| u64::from(items)).sum();
        if items.saturating_mul(u64::from(self.geometry.kv_heads)) > MOST_CTAS {
            return Err(FitError::TooLarge("work items"));
        }
        if u64::from(*merges).saturating_mul(u64::from(self.geometry.q_heads)) > MOST_CTAS {
            return Err(FitError::TooLarge("merges"));
        }
        Ok(())
    }
}

impl Capacities {
    /// All but the work items, in the order of [`needs`].
    const fn single(&self) -> [u32; 7] {
        let Self { requests, merges, segments, request_entries, page_entries, targets, partials, .. } = *self;
        [requests, merges, segments, request_entries, page_entries, targets, partials]
    }

    fn single_mut(&mut self) -> [&mut u32; 7] {
        let Self { requests, items: _, merges, segments, request_entries, page_entries, targets, partials } =
            self;
        [requests, merges, segments, request_entries, page_entries, targets, partials]
    }
}

/// What a plan has of everything but work items.
fn needs(plan: &Plan) -> [(&'static str, u64); 7] {
    [
        ("requests", plan.batch() as u64),
        ("merges", plan.merges().len() as u64),
        ("segments", plan.segments().len() as u64),
        ("request entries", plan.requests().len() as u64),
        ("page entries", plan.pages().len() as u64),
        ("output targets", plan.targets().len() as u64),
        ("partials", u64::from(plan.partials())),
    ]
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
