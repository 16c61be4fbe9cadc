//! The launch modes a plan, on the host: several tiles compiled into one launch, and plan after plan at the addresses and with the grids
//! of one bucket. Both must give the bits that a launch for each tile gives.

mod aligned;
mod emulation;

use aligned::Aligned;
use emulation::{Emulator, describe_tensors};
use half::f16;
use std::collections::BTreeSet;
use tilewright_conformance::reference::{self, Attention};
use tilewright_cpu::KvCache;
use tilewright_cuda::{Bucket, Launch, LaunchMode, MergeBy, Mix, PackedPlan};
use tilewright_heuristics::{Dtype, Geometry, Mask, PackShape, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{
    Arguments, Kernel, KernelOptions, MERGE_WARPS, MaskArguments, WorkItem,
};
use tilewright_plan::{KvStrides, LivePlanner, Packing, PageTable, Plan, PlanOptions, Prices, Split};

const GEOMETRY: Geometry =
    Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
const PAGES: usize = 64;
const MAX_PAGES: usize = 12;

const fn tile(m: u16, n: u16, warps: u16, stages: u16) -> Tile {
    Tile::new(m, n, warps, stages)
}

/// A set of tiles, and the device that they are compiled for.
#[derive(Clone, Copy)]
struct Set {
    arch: &'static str,
    flags: &'static [&'static str],
    /// Of few rows over few tokens and over many, and of more rows.
    tiles: [Tile; 4],
}

/// CTAs of 32, 64, 128 and 256 threads, all of which copy.
const OF_ANY_SIZE: Set = Set {
    arch: "sm_80",
    flags: &[],
    tiles: [tile(16, 32, 1, 2), tile(16, 64, 4, 3), tile(32, 32, 2, 1), tile(64, 32, 8, 2)],
};
const WARPGROUPS: &[&str] = &["-DTILEWRIGHT_EMULATE_WARPGROUPS"];
/// Four and eight consumer warps beside a producer warpgroup.
const BESIDE_PRODUCERS: [Set; 2] = [
    Set {
        arch: "sm_90a",
        flags: WARPGROUPS,
        tiles: [tile(16, 64, 4, 2), tile(16, 128, 4, 1), tile(32, 64, 4, 2), tile(64, 64, 4, 2)],
    },
    Set {
        arch: "sm_90a",
        flags: WARPGROUPS,
        tiles: [tile(16, 128, 8, 2), tile(32, 64, 8, 3), tile(64, 64, 8, 3), tile(128, 64, 8, 2)],
    },
];

impl Set {
    fn select(&self, shape: &PackShape) -> Tile {
        self.tiles[match shape.rows {
            ..=4 if shape.kv_len > 60 => 1,
            ..=4 => 0,
            5..=24 => 2,
            _ => 3,
        }]
    }

    fn mix(&self) -> Mix {
        Mix::of(&self.tiles)
    }

    fn of_tile(&self, tile: &Tile) -> Kernel {
        Kernel::decode(tile, &class(), OPTIONS, self.arch.parse().unwrap())
    }

    fn of_mix(&self) -> Kernel {
        let arch = self.arch.parse().unwrap();
        Kernel::decode_mix(self.mix().tiles(), &class(), OPTIONS, arch)
    }
}

/// Requests over shared pages; each is its pages and its tokens.
#[derive(Clone, Default)]
struct Batch {
    requests: Vec<(Vec<i32>, u32)>,
}

impl Batch {
    /// So many requests on a trunk, each with pages of its own after it, and some alone.
    fn tree(requests: usize, trunk: usize, seed: usize) -> Self {
        let page = |index: usize| ((index * 37 + seed * 11) % PAGES) as i32;
        let mut batch = Self::default();
        for request in 0..requests {
            let shared = if request % 5 == 4 { 0 } else { trunk };
            let own = (request * 3 + seed) % (MAX_PAGES - trunk);
            let mut pages: Vec<i32> = (0..shared).map(page).collect();
            pages.extend((0..own).map(|column| page(trunk + request * 7 + column)));
            let last = (request * 5 + seed) as u32 % GEOMETRY.page_size;
            let tokens = (pages.len() as u32 * GEOMETRY.page_size).saturating_sub(last);
            batch.requests.push((pages, tokens));
        }
        batch
    }

    fn entries(&self) -> Vec<i32> {
        let row = |(pages, _): &(Vec<i32>, u32)| {
            let mut row = pages.clone();
            row.resize(MAX_PAGES, -1);
            row
        };
        self.requests.iter().flat_map(row).collect()
    }

    fn seq_lens(&self) -> Vec<u32> {
        self.requests.iter().map(|(_, tokens)| *tokens).collect()
    }

    fn plan(&self, set: &Set, split: Split) -> Plan {
        self.plan_by(
            set,
            &PlanOptions { packing: Packing::Pat, split, ..PlanOptions::default() }
                .with_max_concurrent_ctas(24),
        )
    }

    fn plan_by(&self, set: &Set, options: &PlanOptions) -> Plan {
        let (entries, lens) = (self.entries(), self.seq_lens());
        let table = PageTable::new(&entries, MAX_PAGES, &lens, GEOMETRY.page_size).unwrap();
        Plan::build(&GEOMETRY, &table, options, |shape: &PackShape| set.select(shape)).unwrap()
    }
}

/// K, V and queries for any of the batches, and the kernels.
struct World {
    set: Set,
    keys: Vec<f16>,
    values: Vec<f16>,
    query: Vec<f16>,
    emulator: Emulator,
}

const MOST_REQUESTS: usize = 24;
const SCALE: f32 = 0.125;

/// Each launch says who merges.
const OPTIONS: KernelOptions = KernelOptions { merge_by_last_cta: true, ..KernelOptions::for_pages(16) };

fn class() -> Class {
    Class::of(&GEOMETRY)
}

fn of_merge(warps: u32) -> Kernel {
    Kernel::merge(warps, &class(), OPTIONS)
}

/// Output and LSE, as bits: the same ones are the same numbers.
type Bits = (Vec<u16>, Vec<u32>);

impl World {
    fn new(set: Set) -> Self {
        let mut state = 1u64;
        let mut random = |amplitude: f32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f16::from_f32(amplitude * ((state >> 40) as f32 / (1u32 << 23) as f32 - 1.0))
        };
        let mut many = |count: usize, amplitude: f32| (0..count).map(|_| random(amplitude)).collect();
        let cache = PAGES * KvStrides::nhd(&GEOMETRY).page;
        let queries = MOST_REQUESTS * (GEOMETRY.q_heads * GEOMETRY.head_dim) as usize;
        let mut kernels: Vec<Kernel> = set.tiles.iter().map(|tile| set.of_tile(tile)).collect();
        kernels.push(set.of_mix());
        kernels.extend(MERGE_WARPS.map(of_merge));
        Self {
            set,
            keys: many(cache, 3.0),
            values: many(cache, 1.0),
            query: many(queries, 3.0),
            emulator: Emulator::build(&kernels, set.flags),
        }
    }

    /// Launches a packed plan that lies at `base`, in this mode; `arrivals` are the counters of the last CTAs.
    fn launch(
        &self,
        packed: &PackedPlan,
        (base, workspace): (u64, &mut [f32]),
        forward: LaunchMode,
        arrivals: &mut [u32],
        batch: &Batch,
        seed: u64,
    ) -> Bits {
        let vector = i64::from(GEOMETRY.head_dim);
        let row = i64::from(GEOMETRY.q_heads) * vector;
        let strides = KvStrides::nhd(&GEOMETRY);
        let mut output = vec![f16::NAN; batch.requests.len() * row as usize];
        let mut lse = vec![f32::NAN; batch.requests.len() * GEOMETRY.q_heads as usize];
        let fused = forward.merge == MergeBy::LastCta;
        let mut arguments = Arguments {
            query: self.query.as_ptr() as u64,
            keys: self.keys.as_ptr() as u64,
            values: self.values.as_ptr() as u64,
            output: output.as_mut_ptr() as u64,
            lse: lse.as_mut_ptr() as u64,
            arrivals: if fused { arrivals.as_mut_ptr() as u64 } else { 0 },
            query_request: row,
            query_head: vector,
            output_request: row,
            output_head: vector,
            page: strides.page as i64,
            token: strides.token as i64,
            head: strides.head as i64,
            mask: MaskArguments::of(&Mask::NONE, SCALE),
            ..packed.arguments(&GEOMETRY, base, workspace.as_mut_ptr() as u64)
        };
        describe_tensors(&mut arguments, &GEOMETRY, &strides);
        for (index, (kernel, items)) in packed.launches().enumerate() {
            let kernel = kernel.map_or_else(|| self.set.of_mix(), |tile| self.set.of_tile(&tile));
            let arguments = Arguments {
                items: arguments.items + u64::from(items.start) * size_of::<WorkItem>() as u64,
                group: index as u32,
                ..arguments
            };
            let ctas = items.len() as u32 * GEOMETRY.kv_heads;
            self.emulator.run_decode(&kernel, &arguments, ctas, seed).unwrap();
        }
        if !fused {
            let rows = packed.merge_grid() * GEOMETRY.q_heads;
            self.emulator.run_merge(&of_merge(MERGE_WARPS[0]), &arguments, rows, seed).unwrap();
        }
        assert!(arrivals.iter().all(|&count| count == 0), "{forward}: counters are as before a launch");
        (output.iter().map(|x| x.to_bits()).collect(), lse.iter().map(|x| x.to_bits()).collect())
    }

    /// One launch a tile, then a launch of the merge: what all others must equal.
    fn serial(&self, plan: &Plan, batch: &Batch) -> Bits {
        self.tight(plan, batch, LaunchMode::DEFAULT, 0)
    }

    fn tight(&self, plan: &Plan, batch: &Batch, forward: LaunchMode, seed: u64) -> Bits {
        let mut packed = PackedPlan::default();
        if forward.launch == Launch::Single {
            packed.fill_single(plan, &self.set.mix()).unwrap();
        } else {
            packed.fill(plan);
        }
        let mut words = packed.words().to_vec();
        // Whether CTAs of an item lie side by side or those of a KV head: either must give the same bits.
        (0..packed.launches().count()).for_each(|launch| words[2 + 2 * launch] = (seed % 2) as u32);
        let memory = Aligned::of(&words, packed.span());
        let mut workspace = vec![f32::NAN; packed.workspace_bytes(&GEOMETRY) / 4];
        let mut arrivals = vec![0; plan.merges().len() * GEOMETRY.kv_heads as usize];
        self.launch(&packed, (memory.address(), &mut workspace), forward, &mut arrivals, batch, seed)
    }

    fn check_reference(&self, batch: &Batch, (output, _): &Bits) {
        let (entries, lens) = (batch.entries(), batch.seq_lens());
        let table = PageTable::new(&entries, MAX_PAGES, &lens, GEOMETRY.page_size).unwrap();
        let strides = KvStrides::nhd(&GEOMETRY);
        let cache = KvCache { keys: &self.keys, values: &self.values, strides };
        let query = &self.query[..output.len()];
        let (expected, _) = reference::decode(&GEOMETRY, &table, query, &cache, &Attention::plain(SCALE));
        let (mut difference, mut norm) = (0.0, 0.0);
        for (&found, expected) in output.iter().zip(&expected) {
            difference += (f64::from(f16::from_bits(found).to_f32()) - expected).powi(2);
            norm += expected.powi(2);
        }
        let error = (difference / norm).sqrt();
        assert!(error < 2e-3, "the output's error is {error:.1e}");
    }
}

fn assert_equal_bits(set: Set) {
    let world = World::new(set);
    let (mut used, mut merges) = (BTreeSet::new(), 0);
    for (seed, (requests, trunk)) in [(24, 5), (7, 3), (12, 4), (1, 2)].into_iter().enumerate() {
        let batch = Batch::tree(requests, trunk, seed);
        for split in [Split::None, Split::Mean, Split::Fill] {
            let plan = batch.plan(&set, split);
            used.extend(plan.tile_groups().iter().map(|group| group.tile));
            merges += plan.merges().len();
            let expected = world.serial(&plan, &batch);
            world.check_reference(&batch, &expected);
            for forward in LaunchMode::ALL {
                let found = world.tight(&plan, &batch, forward, seed as u64 + 1);
                assert!(found == expected, "{}: {forward}, {requests} requests, {split:?}", set.mix());
            }
        }
    }
    assert_eq!(used.len(), 4, "CTAs of every tile are used: {used:?}");
    assert!(merges > 20, "requests in several packs are merged");
}

#[test]
fn a_mix_of_tiles_in_one_launch_gives_the_bits_of_a_launch_each() {
    assert_equal_bits(OF_ANY_SIZE);
}

#[test]
fn a_mix_beside_producers_gives_the_bits_of_a_launch_each() {
    BESIDE_PRODUCERS.into_iter().for_each(assert_equal_bits);
}

/// Which work items begin first decides when the last one ends, so one launch has them all in one order, whatever their tiles are.
#[test]
fn one_launch_begins_with_the_longest_items_of_all_tiles() {
    let set = BESIDE_PRODUCERS[0];
    let plan = Batch::tree(24, 5, 0).plan(&set, Split::None);
    let mut packed = PackedPlan::default();
    packed.fill_single(&plan, &set.mix()).unwrap();
    let base = packed.arguments(&GEOMETRY, 0, 0).items as usize / 4;
    // As `WorkItem` lies: its tile, and the tokens of its KV range.
    let items: Vec<(u32, u32)> = packed.words()[base..][..12 * plan.work_items().len()]
        .chunks(12)
        .map(|words| (words[3] >> 16, words[5] - words[4]))
        .collect();
    assert!(items.is_sorted_by(|a, b| a.1 >= b.1), "{items:?}");
    assert!(!items.is_sorted_by_key(|item| item.0), "tile after tile: {items:?}");
}

fn assert_a_bucket_serves(set: Set) {
    let world = World::new(set);
    let tiles = set.mix();
    for forward in [LaunchMode::ALL[0], LaunchMode::ALL[1], LaunchMode::ALL[4], LaunchMode::ALL[5]] {
        let bucket = Bucket::for_batch(&GEOMETRY, forward, tiles.tiles(), MOST_REQUESTS as u32, 300).unwrap();
        let mut packed = PackedPlan::in_bucket(&bucket);
        let memory_bytes = bucket.plan_bytes();
        // What no CTA wrote is garbage, and a NaN.
        let mut memory = Aligned::of(&[], packed.span());
        let mut workspace = vec![f32::NAN; bucket.workspace_bytes() / 4];
        let arrivals = (bucket.capacities().merges * GEOMETRY.kv_heads) as usize;
        assert!(memory_bytes >= 4 * packed.span());
        let mut arrivals = vec![0; arrivals];
        let steps = [(3, 2), (24, 6), (1, 0), (10, 4), (23, 1), (0, 0), (8, 5)];
        for (seed, (requests, trunk)) in steps.into_iter().enumerate() {
            let batch = Batch::tree(requests, trunk, seed);
            let split = if seed % 2 == 0 { Split::Mean } else { Split::Fill };
            let plan = batch.plan(&set, split);
            packed.fill_bucket(&plan, &bucket).unwrap();
            assert!(packed.words().len() <= packed.span());
            memory.write(packed.words());
            let found = world.launch(
                &packed,
                (memory.address(), &mut workspace),
                forward,
                &mut arrivals,
                &batch,
                seed as u64,
            );
            assert!(found == world.serial(&plan, &batch), "{forward}, step {seed}");
        }
        let before = packed.words().to_vec();
        let batch = Batch::tree(MOST_REQUESTS + 9, 3, 1);
        let error = packed.fill_bucket(&batch.plan(&set, Split::None), &bucket).unwrap_err();
        assert!(error.to_string().contains("33 requests"), "{error}");
        assert_eq!(packed.words(), before, "what does not fit changes nothing");
    }
}

#[test]
fn a_bucket_serves_changing_batches_at_one_address() {
    assert_a_bucket_serves(OF_ANY_SIZE);
}

#[test]
fn a_bucket_serves_batches_beside_producers() {
    assert_a_bucket_serves(BESIDE_PRODUCERS[0]);
}

#[test]
fn a_plan_that_was_patched_gives_the_bits_of_one_from_nothing() {
    let set = OF_ANY_SIZE;
    let world = World::new(set);
    // Merging at all for nothing, or KV ranges as short as these would be left whole.
    let prices = Prices { merge: 0, ..Prices::default() };
    let options = PlanOptions::default().with_max_concurrent_ctas(24).with_prices(prices);
    let mut batch = Batch::default();
    (0..3).for_each(|seed| batch.requests.extend(Batch::tree(7, 2 + seed, seed).requests));
    let mut planner = LivePlanner::new(&GEOMETRY, options).unwrap();
    for (request, (pages, tokens)) in (0..).zip(&batch.requests) {
        planner.add(request, pages, *tokens).unwrap();
    }
    let (mut patched, mut merges) = (0, 0);
    for step in 0..12 {
        // A third of the requests gain a page, and every other step one leaves and another comes.
        for (request, (pages, tokens)) in batch.requests.iter_mut().enumerate() {
            if (request + step) % 3 == 0 && pages.len() < MAX_PAGES {
                let page = ((request * 5 + step * 3) % PAGES) as i32;
                pages.push(page);
                *tokens = pages.len() as u32 * GEOMETRY.page_size - 7;
                planner.append(request as u32, &[page], *tokens).unwrap();
            }
        }
        if step % 2 == 1 {
            planner.remove(step as u32).unwrap();
            batch.requests[step] = Batch::tree(step + 1, 3, step).requests[step].clone();
            let (pages, tokens) = &batch.requests[step];
            planner.add(step as u32, pages, *tokens).unwrap();
        }
        let plan = planner.plan(|shape: &PackShape| set.select(shape)).unwrap();
        let needed: usize = plan.packs().iter().map(|pack| pack.q_tiles.len()).sum();
        patched += usize::from(plan.q_tiles().len() > needed);
        merges += plan.merges().len();
        let expected = world.serial(&batch.plan_by(&set, &options), &batch);
        world.check_reference(&batch, &expected);
        for forward in [LaunchMode::ALL[0], LaunchMode::ALL[5]] {
            let found = world.tight(plan, &batch, forward, step as u64);
            assert!(found == expected, "{forward}, step {step}");
        }
    }
    assert!(patched > 3, "some plans have entries that are no longer needed: {patched}");
    assert!(merges > 20, "requests in several packs are merged: {merges}");
}
