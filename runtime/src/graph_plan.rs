//! A plan at one place in device memory, for engines that capture their steps in CUDA graphs of their own.
#![allow(unsafe_code)]

use crate::on_cuda::{allocate, choice, refuse_capture};
use crate::{Attention, AttentionError, AttentionOptions, Cuda};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_cuda::{
    Bucket, Capacities, CudaError, DevicePlan, FitError, Launch, LaunchMode, Mix, RawArgs, TunedBackend,
    kv_load_up_to,
};
use tilewright_heuristics::{Geometry, Selection, Tile, TileSet, TileSetBuf};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::KvLoad;
use tilewright_plan::{
    BySelection, Choose, FollowingPlanner, Forest, KvStrides, Packing, PageRows, PageTable, Plan, Step,
    batch_shape,
};

/// Tiles of a graph plan for any batch: a launch each in every step, the CTAs of which have mostly nothing to do.
const LAUNCHES: usize = 2;
/// Tokens of the prefixes of the batches by which these are chosen, of what each query has behind one, and the queries of a group that shares one.
const PREFIXES: [u32; 3] = [512, 2048, 8192];
const OWN: u32 = 256;
const GROUP: u32 = 8;

/// A plan of fixed size at a fixed place: a graph that has captured [`GraphPlan::run_raw`] serves every batch that
/// [`GraphPlan::update`] takes. Neither allocates or compiles anything once it has been run, where the batch changes a little at each step.
///
/// An update compares the page table with the one before, and costs that and what has changed ([`FollowingPlanner`]).
///
/// All calls are ordered by the stream: an update is read by what is launched after it, and by nothing before.
#[derive(Debug)]
pub struct GraphPlan {
    attention: Attention<Cuda>,
    geometry: Geometry,
    planner: FollowingPlanner,
    on_device: DevicePlan,
    workspace: CudaSlice<u8>,
    /// What is chosen among where not all tiles are: what there is no room for is planned request by request, where this is of any batch.
    among: Among,
    /// Where the engine keeps the lengths of queries, if kernels read them there.
    lengths: Option<u64>,
    /// The caches that it was run with, and how their pages are loaded.
    run_with: Mutex<Vec<(KvStrides, KvLoad)>>,
}

/// The tiles that a graph plan has launches of, where choices are made among these alone.
#[derive(Clone, Debug, Default)]
struct Among {
    /// Of a plan for any batch.
    selection: Option<Selection>,
    /// Of batch-invariant plans: any tile of a family gives the same bits.
    family: Option<TileSetBuf>,
}

impl Among {
    /// Chooses tiles as a decoder does, but among these.
    fn choice<'a>(
        &'a self,
        tuned: &'a TunedBackend,
        geometry: &Geometry,
        options: &AttentionOptions,
    ) -> Choose<'a> {
        match (choice(tuned, geometry, options).0, self) {
            (Choose::Selection(_), Self { selection: Some(selection), .. }) => {
                Choose::Selection(BySelection::new(selection))
            }
            (Choose::Set(_), Self { family: Some(family), .. }) => Choose::Set(family.as_set()),
            (choose, _) => choose,
        }
    }
}

impl Attention<Cuda> {
    /// A plan for graphs, which begins with this batch. It has room for batches of as many queries, with `pages` entries of the page table
    /// between them, and for about as many work items as such batches have; a batch with more of something is refused by
    /// [`GraphPlan::update`].
    ///
    /// # Errors
    /// A page table that makes no sense, a kernel that cannot be compiled, or the driver's.
    pub fn graph_plan(
        &self,
        table: &PageTable<'_>,
        pages: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<GraphPlan, AttentionError> {
        refuse_capture(stream, "a plan is to be made")?;
        let among = Among::default();
        self.placed(table, among, false, stream, |tuned, plan| bucket_for(tuned, plan, pages))
    }

    /// A plan for graphs that serves every batch of as many queries and entries of the page table. A graph launches each of its tiles in every
    /// step, with grids for the largest batch, so it has two: those that the selector chooses most often for as many queries, whether they share
    /// nothing, or a prefix in groups or all together. Other batches get one of these. What there is too little room for is planned request by
    /// request. It begins with a batch without tokens.
    ///
    /// # Errors
    /// A kernel that cannot be compiled, a size that no grid can count, or the driver's.
    pub fn graph_plan_for_any(
        &self,
        page_size: u32,
        queries: u32,
        pages: u32,
        stream: &Arc<CudaStream>,
    ) -> Result<GraphPlan, AttentionError> {
        refuse_capture(stream, "a plan is to be made")?;
        self.prepare(page_size)?;
        let geometry = self.geometry(page_size);
        let class = Class::of(&geometry);
        let selection = self.with_kernels(|tuned| tuned.selection().clone());
        let tiles = match self.with_kernels(|tuned| tuned.invariant_set(&class)) {
            Some(set) if self.options.invariant => ends_of(set),
            _ => few_tiles(&selection, &geometry, queries, pages)?,
        };
        let among = Among {
            selection: Some(selection.only(class.head_dim, class.dtype, &tiles)),
            family: TileSetBuf::of(&tiles).filter(|_| self.options.invariant),
        };
        let lens = vec![0; queries as usize];
        let table = PageTable::new(&[], 0, &lens, page_size)?;
        self.placed(&table, among, true, stream, |tuned, plan| {
            let geometry = plan.geometry();
            let mode = LaunchMode { launch: Launch::Serial, ..tuned.launch_mode() };
            Bucket::for_batch(geometry, mode, &tiles, queries.max(1), pages.max(1))
        })
    }

    /// The plan at its place.
    fn placed(
        &self,
        table: &PageTable<'_>,
        mut among: Among,
        for_any: bool,
        stream: &Arc<CudaStream>,
        bucket: impl Fn(&TunedBackend, &Plan) -> Result<Bucket, FitError>,
    ) -> Result<GraphPlan, AttentionError> {
        let geometry = self.geometry(table.page_size());
        let mut planner = self.following_planner(&geometry)?;
        if for_any {
            planner = planner.with_last_resort(Packing::PerRequest);
        }
        planner.compare(&PageRows::from(*table), 0)?;
        let mut placed = None;
        self.with_kernels(|tuned| {
            planner.update(among.choice(tuned, &geometry, &self.options), |plan, _| {
                let bucket = bucket(tuned, plan).map_err(CudaError::from)?;
                let workspace = allocate(stream, bucket.workspace_bytes())?;
                let mut on_device = DevicePlan::with_bucket(tuned.backend().device(), bucket)?;
                on_device.upload(plan, stream)?;
                placed = Some((on_device, workspace));
                Ok::<_, AttentionError>(true)
            })
        })?;
        // The first plan that is offered is taken, or fails.
        let (on_device, workspace) = placed.ok_or(CudaError::NotUploaded)?;
        if self.options.invariant && !for_any {
            // Its launches are of the tile that this batch got.
            among.family = planner.plan().tile_groups().first().map(|group| TileSetBuf::one(group.tile));
        }
        let attention = self.clone();
        Ok(GraphPlan {
            attention,
            geometry,
            planner,
            on_device,
            workspace,
            among,
            lengths: None,
            run_with: Mutex::default(),
        })
    }
}

/// The lowest and the tallest tile of a family, as a plan for any batch has few launches.
fn ends_of(family: TileSet<'_>) -> Vec<Tile> {
    match family.tiles() {
        [lowest, .., tallest] => vec![*lowest, *tallest],
        tiles => tiles.to_vec(),
    }
}

/// The tiles that are chosen most often for as many queries, with as many entries of the page table, that share nothing, a prefix of
/// [`GROUP`] queries, or one of all.
fn few_tiles(
    selection: &Selection,
    geometry: &Geometry,
    queries: u32,
    pages: u32,
) -> Result<Vec<Tile>, AttentionError> {
    let longest = (pages / queries.max(1)).max(1);
    let own = (OWN / geometry.page_size).clamp(1, longest);
    let mut chosen: BTreeMap<Tile, usize> = BTreeMap::new();
    for prefix in PREFIXES {
        let prefix = (prefix / geometry.page_size).min(longest - own);
        let columns = prefix + own;
        let lens = vec![columns * geometry.page_size; queries as usize];
        for group in [1, GROUP, queries.max(1)] {
            // A group's pages are those of its first query, but for what each has behind the prefix.
            let page = |query: u32, column: u32| match column {
                column if column < prefix => query / group * group * columns + column,
                column => query * columns + column,
            };
            let entries = (0..queries).flat_map(|query| (0..columns).map(move |column| page(query, column)));
            let entries: Vec<i32> = entries.map(u32::cast_signed).collect();
            let table = PageTable::new(&entries, columns as usize, &lens, geometry.page_size)?;
            let set = selection.select(&batch_shape(geometry, &Forest::build(&table)));
            for tile in set.tiles() {
                *chosen.entry(*tile).or_default() += 1;
            }
        }
    }
    let mut tiles: Vec<(Tile, usize)> = chosen.into_iter().collect();
    tiles.sort_by_key(|&(_, times)| Reverse(times));
    tiles.truncate(LAUNCHES);
    Ok(tiles.into_iter().map(|(tile, _)| tile).collect())
}

/// Room for a plan's batch and those like it, in the tiles that it is launched with.
fn bucket_for(tuned: &TunedBackend, plan: &Plan, pages: u32) -> Result<Bucket, FitError> {
    let (mode, mix) = tuned.launch_of(plan);
    let tiles: Vec<Tile> = match mix {
        Some(mix) => mix.tiles().to_vec(),
        None => plan.tile_groups().iter().map(|group| group.tile).collect(),
    };
    let requests = u32::try_from(plan.batch()).map_err(|_| FitError::TooLarge("requests"))?;
    let mut bucket = if tiles.is_empty() {
        // A batch without tokens has no work item, of no tile.
        let set = tuned.invariant_set(&Class::of(plan.geometry())).filter(|_| plan.is_invariant());
        let tiles = set.map_or_else(|| tuned.selection().tiles(), |set| set.tiles().to_vec());
        let launches = if mode.launch == Launch::Single { 1 } else { Mix::of(&tiles).tiles().len() };
        let capacities = Capacities { items: vec![0; launches], ..Capacities::default() };
        Bucket::new(plan.geometry(), mode, &tiles, capacities)?
    } else {
        Bucket::for_batch(plan.geometry(), mode, &tiles, requests.max(1), pages.max(1))?
    };
    bucket.grow_to(plan)?;
    Ok(bucket)
}

impl GraphPlan {
    /// Kernels read the lengths of queries where the engine keeps them on the device: i32 `[queries]` at an address that is a multiple of 4.
    /// Updates then copy no lengths, and one by which requests only grow inside their pages makes no call of the driver.
    ///
    /// # Safety
    /// It was not run yet. Whenever a launch of it runs, the lengths of the last update before the launch are there, zeros for rows without
    /// tokens; the memory stays as long as the plan, and graphs that captured it.
    #[must_use]
    pub unsafe fn with_lengths_at(self, address: u64) -> Self {
        Self { lengths: Some(address), ..self }
    }

    /// The batch as of the last update.
    pub fn plan(&self) -> &Plan {
        self.planner.plan()
    }

    /// The layout of a layer.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The largest page that the plan reads; `None` without pages.
    pub const fn largest_page(&self) -> Option<i32> {
        self.on_device.largest_page()
    }

    /// Plans another batch, and queues the copy of its plan, or of its lengths where nothing else has changed.
    ///
    /// # Errors
    /// A page table that makes no sense. [`CudaError::Fit`] if there is too little room for its plan, or what was captured cannot count to
    /// its pages: another graph plan is needed, and another capture. The plan is as it was then. The driver's.
    pub fn update(&mut self, table: &PageTable<'_>, stream: &Arc<CudaStream>) -> Result<(), AttentionError> {
        self.compare(&PageRows::from(*table), 0)?;
        self.update_compared(|| Arc::clone(stream))
    }

    /// The first half of [`GraphPlan::update`]: compares a batch with the one before. Rows up to `batch` that it does not have are of requests
    /// without tokens.
    ///
    /// # Errors
    /// Pages of another size, or a negative page.
    pub fn compare(&mut self, rows: &PageRows<'_>, batch: usize) -> Result<(), AttentionError> {
        Ok(self.planner.compare(rows, batch)?)
    }

    /// The largest page among those that the compared batch has and the one before had not.
    pub fn largest_new_page(&self) -> Option<i32> {
        self.planner.largest_new_page()
    }

    /// Whether updating to the compared batch makes no call of the driver: only lengths differ, and kernels read the engine's
    /// ([`GraphPlan::with_lengths_at`]). It may make one nevertheless.
    pub const fn copies_nothing(&self) -> bool {
        self.lengths.is_some() && self.planner.stays_but_for_lengths()
    }

    /// The second half of [`GraphPlan::update`]: plans the batch that was compared last. The stream is asked for when something is to be copied.
    ///
    /// # Errors
    /// As there.
    pub fn update_compared(&mut self, stream: impl Fn() -> Arc<CudaStream>) -> Result<(), AttentionError> {
        let Self { attention, geometry, planner, on_device, among, run_with, lengths, .. } = self;
        let run_with = run_with.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut refused = FitError::TooLarge("page ids");
        let taken = attention.with_kernels(|tuned| {
            let choose = among.choice(tuned, geometry, &attention.options);
            planner.update(choose, |plan, step| {
                if step == Step::Lengths && lengths.is_some() {
                    return Ok(true);
                }
                let stream = &stream();
                refuse_capture(stream, "a plan is to be copied")?;
                if step == Step::Lengths {
                    on_device.set_lengths(plan.seq_lens(), stream)?;
                    return Ok(true);
                }
                let largest = plan.largest_page();
                if run_with
                    .iter()
                    .any(|(strides, load)| kv_load_up_to(strides, plan.geometry(), largest) != *load)
                {
                    refused = FitError::TooLarge("page ids");
                    return Ok(false);
                }
                match on_device.upload(plan, stream) {
                    Ok(()) => Ok(true),
                    Err(CudaError::Fit(error)) => {
                        refused = error;
                        Ok(false)
                    }
                    Err(error) => Err(AttentionError::from(error)),
                }
            })
        })?;
        if taken { Ok(()) } else { Err(CudaError::from(refused).into()) }
    }

    /// Gives the plan new lengths, and queues their copy: requests have grown inside their last pages.
    ///
    /// # Errors
    /// Another number of lengths than queries, or a length that needs another number of pages. The driver's.
    pub fn set_lengths(&mut self, seq_lens: &[u32], stream: &Arc<CudaStream>) -> Result<(), AttentionError> {
        if self.lengths.is_none() {
            refuse_capture(stream, "lengths are to be copied")?;
        }
        let Self { attention, geometry, planner, among, .. } = self;
        attention.with_kernels(|tuned| {
            planner.set_lengths(seq_lens, among.choice(tuned, geometry, &attention.options))
        })?;
        if self.lengths.is_none() {
            self.on_device.set_lengths(seq_lens, stream)?;
        }
        Ok(())
    }

    /// As [`Attention::run_raw`]; may be captured once it has been run with a cache of these strides, and with sinks if there are some.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there, for the batch of the plan, and of every update before the graph that captured it is last launched. The plan outlives such
    /// graphs.
    pub unsafe fn run_raw(&self, stream: &Arc<CudaStream>, args: &RawArgs) -> Result<(), AttentionError> {
        let load = kv_load_up_to(&args.kv_strides, &self.geometry, self.on_device.largest_page());
        self.attention.prepare_launch(&self.geometry, load, args.sinks.is_some(), stream)?;
        let mut run_with = self.run_with.lock().unwrap_or_else(PoisonError::into_inner);
        if !run_with.contains(&(args.kv_strides, load)) {
            run_with.push((args.kv_strides, load));
        }
        let (workspace, _guard) = self.workspace.device_ptr(stream);
        let args = RawArgs { lengths: self.lengths.or(args.lengths), ..*args };
        let args = self.attention.with_own_options(&args, workspace);
        self.attention.with_kernels(|tuned| {
            // SAFETY: the workspace is as large as the bucket needs, and all launches with it are on the caller's stream; the caller's promises.
            unsafe { tuned.backend().decode_raw(stream.cu_stream(), &self.on_device, &args) }
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::{Backend, BatchShape, Device, Dtype};
    use tilewright_kernel_templates::{CudaLimits, Limits, selection};

    fn geometry(q_heads: u32, kv_heads: u32) -> Geometry {
        Geometry { q_heads, kv_heads, head_dim: 128, page_size: 16, dtype: Dtype::Bf16 }
    }

    fn of_h200() -> Selection {
        let limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
        let device = Device { backend: Backend::Cuda, name: "NVIDIA H200", capability: "sm_90a", units: 132 };
        selection(&device, &limits, None).unwrap()
    }

    #[test]
    fn a_plan_for_any_batch_has_the_tiles_that_most_batches_get() {
        for (q_heads, kv_heads) in [(32, 8), (28, 4), (64, 8), (8, 1)] {
            for queries in [1, 8, 64, 512] {
                let tiles =
                    few_tiles(&of_h200(), &geometry(q_heads, kv_heads), queries, queries * 1024).unwrap();
                assert!((1..=LAUNCHES).contains(&tiles.len()), "{q_heads}/{kv_heads}, {queries}: {tiles:?}");
            }
        }
        let usual = few_tiles(&of_h200(), &geometry(32, 8), 64, 64 * 1024).unwrap();
        assert!(usual.len() > 1, "{usual:?}");
    }

    #[test]
    fn all_batches_get_the_few_tiles() {
        let geometry = geometry(32, 8);
        let tiles = few_tiles(&of_h200(), &geometry, 64, 64 * 1024).unwrap();
        let few = of_h200().only(128, Dtype::Bf16, &tiles);
        let mut others = 0;
        for seed in 1..2000u32 {
            let values = std::array::from_fn(|i| 1 << ((seed * (i as u32 + 3)) % 17));
            let batch =
                BatchShape { head_dim: 128, dtype: Dtype::Bf16.code(), ..BatchShape::from_values(values) };
            let set = few.select(&batch);
            assert!(set.tiles().iter().all(|tile| tiles.contains(tile)), "{batch:?} gets {set}");
            others += u32::from(set != of_h200().select(&batch));
        }
        let none =
            few.select(&BatchShape { head_dim: 128, dtype: Dtype::Bf16.code(), ..BatchShape::UNKNOWN });
        assert!(none.tiles().iter().all(|tile| tiles.contains(tile)), "{none}");
        assert!(others > 0, "some would have got another");
    }
}
