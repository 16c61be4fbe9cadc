//! Batch-invariant attention on a GPU: a request has the same bits in every batch, in pages of any size, planned from nothing or live, launched
//! or captured, merged by either launch mode, and computed by any tile of the family, by `mma.sync` or by `wgmma`.
#![allow(unsafe_code)]

use crate::{device, into_cuda};
use cudarc::driver::{CudaSlice, CudaStream};
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::sync::Arc;
use tilewright_conformance::invariance::{Family, Pool, PoolBatch, SeenBits};
use tilewright_cpu::Element;
use tilewright_cuda::{
    CudaBackend, CudaDevice, CudaElement, DecodeArgs, DevicePlan, Graph, LaunchMode, MergeBy,
};
use tilewright_heuristics::{Dtype, Fp8, Mask, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_plan::{E4m3, E5m2, Plan, PlanOptions, Split};
use tilewright_runtime::{
    Attention, AttentionOptions, Cuda, DeviceCache, Heads, KvCache, LivePlan, PerRow, Planned,
};

const HEADS: Heads = Heads { query: 8, kv: 2, dim: 128 };
/// Heads that warps split among themselves.
const LONG_HEADS: Heads = Heads { dim: 512, ..HEADS };
const LONGEST: u32 = 2_600;
const PAGE_SIZES: [u32; 6] = [16, 32, 64, 48, 128, 256];
/// Requests of a family, and how often each lies in a pool.
const TEXTS: usize = 24;
const COPIES: usize = 4;
const BATCHES_A_POOL: u64 = 24;

/// Batches of one kind of attention.
struct Comparison<E: CudaElement> {
    attention: Attention<Cuda>,
    heads: Heads,
    stream: Arc<CudaStream>,
    family: Family,
    seen: SeenBits,
    output: CudaSlice<E>,
    lse: CudaSlice<f32>,
    sinks: Option<CudaSlice<f32>>,
    mask: Mask,
    /// How often each tile was launched.
    tiles: BTreeMap<Tile, u32>,
    /// Kernels whose last CTAs merge.
    last_cta: CudaBackend,
}

impl<E: CudaElement + Element> Comparison<E> {
    fn new(device: &CudaDevice, heads: Heads, options: AttentionOptions, sinks: bool) -> Self {
        let context = Arc::clone(device.context());
        let stream = context.new_stream().unwrap();
        let options = AttentionOptions { fetch_nvrtc: true, ..options };
        let family = Family::new(TEXTS, LONGEST, heads.dim, 5);
        let rows = TEXTS * COPIES * heads.query as usize;
        Self {
            heads,
            attention: Attention::cuda(context, heads, options).unwrap(),
            seen: SeenBits::new(&family),
            output: stream.clone_htod(&vec![E::from_f32(0.0); rows * heads.dim as usize]).unwrap(),
            lse: stream.alloc_zeros(rows).unwrap(),
            sinks: sinks.then(|| stream.clone_htod(&[0.5, -1.0, 3.0, 0.0, -9.0, 1.0, 2.0, 0.1]).unwrap()),
            stream,
            family,
            mask: options.mask,
            tiles: BTreeMap::new(),
            last_cta: CudaBackend::or_fetch(device).unwrap(),
        }
    }

    /// The tiles of batch-invariant plans for pages of this size, once it has planned for them; none of other options.
    fn family_of_tiles(&self, page_size: u32) -> &'static [Tile] {
        let class = Class::of(&self.attention.geometry(page_size));
        let set = self.attention.with_kernels(|tuned| tuned.invariant_set(&class));
        set.map_or(&[], |set| set.tiles())
    }

    /// Compares until there were so many pairs.
    fn run(mut self, pairs: u64) -> SeenBits {
        let fp8 = self.attention.geometry(16).dtype.fp8();
        let stream = Arc::clone(&self.stream);
        let scales = [0.5f32, 1.7].map(|scale| stream.clone_htod(&[scale]).unwrap());
        for pool_seed in 0.. {
            let page_size = PAGE_SIZES[pool_seed as usize % PAGE_SIZES.len()];
            let pool = Pool::new(&self.family, &self.attention.geometry(page_size), COPIES, pool_seed);
            if let Some(format) = fp8 {
                let [keys, values] = match format {
                    Fp8::E4m3 => bytes(pool.cache(&self.family), E4m3::to_bits),
                    Fp8::E5m2 => bytes(pool.cache(&self.family), E5m2::to_bits),
                };
                let [keys, values] = [keys, values].map(|bytes| stream.clone_htod(&bytes).unwrap());
                let cache = KvCache::nhd(&keys, &values).with_scales(&scales[0], &scales[1]);
                self.batches(&pool, pool_seed, page_size, &cache);
            } else {
                let (keys, values) = pool.cache::<E>(&self.family);
                let (keys, values) = (stream.clone_htod(&keys).unwrap(), stream.clone_htod(&values).unwrap());
                self.batches(&pool, pool_seed, page_size, &KvCache::nhd(&keys, &values));
            }
            if self.seen.pairs >= pairs {
                break;
            }
        }
        let used: Vec<Tile> = self.tiles.keys().copied().collect();
        println!("launches by tile: {:?}", self.tiles);
        let family = self.family_of_tiles(PAGE_SIZES[0]);
        assert!(family.iter().all(|tile| used.contains(tile)), "{used:?} of {family:?}");
        self.seen
    }

    fn batches(&mut self, pool: &Pool, pool_seed: u64, page_size: u32, cache: &impl DeviceCache<E>) {
        for seed in pool_seed * BATCHES_A_POOL..(pool_seed + 1) * BATCHES_A_POOL {
            let most = [3, 24, TEXTS * COPIES][seed as usize % 3];
            let batch = pool.batch(most, seed);
            let query = self.family.queries::<E>(&batch.texts, self.heads.query);
            let query = self.stream.clone_htod(&query).unwrap();
            match seed % 4 {
                0 => {
                    let mut plan = self.attention.live_plan(page_size).unwrap();
                    follow(&mut plan, &batch, page_size);
                    self.execute(&plan, &query, cache, false);
                }
                1 => {
                    let family = self.family_of_tiles(page_size);
                    let tile = family.get(seed as usize / 4 % family.len().max(1)).copied();
                    self.execute_with_last_cta(&batch, page_size, &query, cache, tile);
                }
                way => {
                    let plan = self.attention.plan(&batch.table().unwrap()).unwrap();
                    self.execute(&plan, &query, cache, way == 2);
                }
            }
            let bits = self.bits(&batch);
            for difference in self.seen.compare(&batch.texts, &bits) {
                let tokens = batch.seq_lens[difference.row];
                println!(
                    "batch {seed} in pages of {page_size}, {} requests, {tokens} tokens: {difference:x?}",
                    batch.texts.len()
                );
            }
        }
    }

    /// The bits of output and LSE of each request.
    fn bits(&self, batch: &PoolBatch) -> Vec<u32> {
        let rows = batch.texts.len() * self.heads.query as usize;
        let output = self.stream.clone_dtoh(&self.output.slice(..rows * self.heads.dim as usize)).unwrap();
        let lse = self.stream.clone_dtoh(&self.lse.slice(..rows)).unwrap();
        assert!(output.iter().all(|x| x.to_f32().is_finite()), "all is written");
        let of_request = (self.heads.query * self.heads.dim) as usize;
        let requests = output.chunks_exact(of_request).zip(lse.chunks_exact(self.heads.query as usize));
        let bits = requests.flat_map(|(row, lse)| {
            row.iter().map(|x| x.to_f32().to_bits()).chain(lse.iter().map(|x| x.to_bits()))
        });
        bits.collect()
    }

    /// Runs each of these batches with each tile of the family; how many requests have other bits than with the first.
    fn compare_tiles(&mut self, page_size: u32, cache: &impl DeviceCache<E>, batches: &[PoolBatch]) -> usize {
        let mut differ = 0;
        for batch in batches {
            let query = self.family.queries::<E>(&batch.texts, self.heads.query);
            let query = self.stream.clone_htod(&query).unwrap();
            self.attention.plan(&batch.table().unwrap()).unwrap(); // prepares the family
            let family = self.family_of_tiles(page_size);
            let by_tile = family.iter().map(|tile| {
                self.execute_with_last_cta(batch, page_size, &query, cache, Some(*tile));
                self.bits(batch)
            });
            let by_tile: Vec<Vec<u32>> = by_tile.collect();
            assert!(by_tile.len() > 1, "{family:?} is one tile");
            let of_request = by_tile[0].len() / batch.texts.len();
            for other in &by_tile[1..] {
                let both = by_tile[0].chunks_exact(of_request).zip(other.chunks_exact(of_request));
                differ += both.filter(|(first, other)| first != other).count();
            }
        }
        differ
    }

    /// Runs a plan; captured, and replayed after its output was forgotten.
    fn execute(
        &mut self,
        plan: &impl Planned<Cuda>,
        query: &CudaSlice<E>,
        cache: &impl DeviceCache<E>,
        captured: bool,
    ) {
        let Self { attention, stream, output, lse, sinks, tiles, .. } = self;
        for group in plan.plan().tile_groups() {
            *tiles.entry(group.tile).or_default() += 1;
        }
        let (stream, sinks) = (Arc::clone(stream), sinks.as_ref());
        let mut run = || {
            let per_row = PerRow { lse: Some(&mut *lse), sinks };
            attention.run_with(plan, &stream, query, cache, &mut *output, per_row)
        };
        run().unwrap();
        if captured {
            // SAFETY: what is captured outlives the graph, whose replay is waited for.
            let graph = unsafe { Graph::capture(&stream, || run().map_err(into_cuda)).unwrap() };
            forget(&stream, output);
            graph.launch(&stream).unwrap();
            stream.synchronize().unwrap();
        }
    }

    /// Runs a plan whose rows are merged by their last CTA; of a tile of the family, or that the planner chooses.
    fn execute_with_last_cta(
        &mut self,
        batch: &PoolBatch,
        page_size: u32,
        query: &CudaSlice<E>,
        cache: &impl DeviceCache<E>,
        tile: Option<Tile>,
    ) {
        let plan = self.attention.plan(&batch.table().unwrap()).unwrap();
        let geometry = self.attention.geometry(page_size);
        let plan_options = self.attention.with_kernels(|tuned| tuned.plan_options());
        let Self { stream, output, lse, sinks, mask, tiles, last_cta, .. } = self;
        let mode = LaunchMode { merge: MergeBy::LastCta, ..LaunchMode::DEFAULT };
        let of_tile = tile.map(|tile| {
            *tiles.entry(tile).or_default() += 1;
            let options = PlanOptions { split: Split::Invariant, ..plan_options };
            Plan::build(&geometry, &batch.table().unwrap(), &options, tile).unwrap()
        });
        let plan = of_tile.as_ref().unwrap_or(plan.plan());
        let of_plan: Vec<Tile> = plan.tile_groups().iter().map(|group| group.tile).collect();
        let options = KernelOptions {
            mask: mask.options(),
            sinks: sinks.is_some(),
            invariant: plan.is_invariant(),
            merge_by_last_cta: true,
            ..KernelOptions::for_pages(page_size)
        };
        let prepared = last_cta.prepare(&of_plan, &Class::of(&geometry), options, || ()).unwrap();
        prepared.into_iter().for_each(|prepared| _ = prepared.unwrap());
        let mut on_device = DevicePlan::with_launch_mode(last_cta.device(), mode);
        on_device.upload(plan, stream).unwrap();
        let mut workspace = stream.alloc_zeros::<u8>(on_device.workspace_bytes()).unwrap();
        let args = DecodeArgs {
            lse: Some(lse),
            mask: *mask,
            sinks: sinks.as_ref(),
            ..DecodeArgs::new(query, cache.pages(&geometry), output, &mut workspace)
        };
        last_cta.decode(stream, &on_device, args).unwrap();
        stream.synchronize().unwrap();
    }
}

fn forget<E: CudaElement + Element>(stream: &Arc<CudaStream>, output: &mut CudaSlice<E>) {
    let nothing = vec![E::from_f32(f32::NAN); output.len()];
    stream.memcpy_htod(&nothing, output).unwrap();
}

/// A plan that follows the rows of a batch as they come and grow.
fn follow(plan: &mut LivePlan<Cuda>, batch: &PoolBatch, page_size: u32) {
    for (row, &tokens) in (0..).zip(&batch.seq_lens) {
        let (pages, first) = (batch.pages(row as usize), page_size.min(tokens));
        plan.add(row, &pages[..1], first).unwrap();
        if row == 2 {
            plan.update().unwrap();
        }
        if tokens > first {
            plan.append(row, &pages[1..], tokens).unwrap();
        }
    }
    plan.update().unwrap();
}

/// K and V as their bits.
fn bytes<F>((keys, values): (Vec<F>, Vec<F>), to_bits: fn(F) -> u8) -> [Vec<u8>; 2] {
    [keys, values].map(|numbers| numbers.into_iter().map(to_bits).collect())
}

fn compare<E: CudaElement + Element>(heads: Heads, options: AttentionOptions, sinks: bool, pairs: u64) {
    let device = device();
    let seen = Comparison::<E>::new(&device, heads, options.invariant(), sinks).run(pairs);
    println!("{}, head dimension {}: {} pairs, {} differ", options.dtype, heads.dim, seen.pairs, seen.differ);
    assert_eq!(seen.differ, 0, "of {} pairs", seen.pairs);
}

#[test]
fn a_request_has_the_same_bits_in_a_hundred_thousand_pairs_of_batches() {
    compare::<f16>(HEADS, AttentionOptions::default(), false, 60_000);
    let mask = Mask { softcap: Some(20.0), ..Mask::window(1_500) };
    let bent = AttentionOptions { dtype: Dtype::Bf16, mask, ..AttentionOptions::default() };
    compare::<bf16>(HEADS, bent, true, 20_000);
    for dtype in [Dtype::Fp8F16, Dtype::E5m2F16] {
        compare::<f16>(HEADS, AttentionOptions { dtype, ..AttentionOptions::default() }, false, 10_000);
    }
    compare::<f16>(LONG_HEADS, AttentionOptions::default(), false, 4_000);
    for dtype in [Dtype::F16, Dtype::Fp8F16] {
        for dim in [192, 256] {
            let options = AttentionOptions { dtype, ..AttentionOptions::default() };
            compare::<f16>(Heads { dim, ..HEADS }, options, false, 4_000);
        }
    }
}

/// `mma.sync` and `wgmma` have to sum products alike, which no document promises.
#[test]
fn every_tile_of_the_family_gives_the_same_bits() {
    fn differ<E: CudaElement + Element>(device: &CudaDevice, options: AttentionOptions) -> usize {
        let mut comparison = Comparison::<E>::new(device, HEADS, options.invariant(), false);
        let mut differ = 0;
        for (pool_seed, page_size) in (500..).zip(PAGE_SIZES) {
            let geometry = comparison.attention.geometry(page_size);
            let pool = Pool::new(&comparison.family, &geometry, COPIES, pool_seed);
            let (keys, values) = pool.cache::<E>(&comparison.family);
            let [keys, values] = [keys, values].map(|side| comparison.stream.clone_htod(&side).unwrap());
            let batches = [3, 24, TEXTS * COPIES].map(|most| pool.batch(most, pool_seed));
            differ += comparison.compare_tiles(page_size, &KvCache::nhd(&keys, &values), &batches);
        }
        println!("launches by tile: {:?}", comparison.tiles);
        differ
    }
    let device = device();
    let f16 = differ::<f16>(&device, AttentionOptions::default());
    let bf16 =
        differ::<bf16>(&device, AttentionOptions { dtype: Dtype::Bf16, ..AttentionOptions::default() });
    assert_eq!(
        (f16, bf16),
        (0, 0),
        "requests whose bits depend on the tile: mma.sync and wgmma sum otherwise"
    );
}

/// What the comparison sees: without the option, many requests have other bits.
#[test]
fn requests_have_other_bits_where_the_batch_decides() {
    let device = device();
    let seen = Comparison::<f16>::new(&device, HEADS, AttentionOptions::default(), false).run(2_000);
    assert!(seen.differ * 10 > seen.pairs, "{} of {}", seen.differ, seen.pairs);
}
