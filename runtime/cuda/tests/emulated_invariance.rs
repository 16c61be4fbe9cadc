//! Batch-invariant kernels on the host: a request's bits depend on nothing else in the batch, nor on how it is launched; and what would make
//! them depend on it is seen.

mod aligned;
mod emulation;

use aligned::Aligned;
use emulation::{Emulator, describe_tensors};
use half::{bf16, f16};
use std::collections::BTreeSet;
use tilewright_conformance::invariance::{Family, Pool, PoolBatch, SeenBits};
use tilewright_conformance::reference::{self, Attention};
use tilewright_cpu::{Element, KvCache, Number};
use tilewright_cuda::{LaunchMode, MergeBy, PackedPlan};
use tilewright_heuristics::{Backend, Dtype, Fp8, Geometry, Mask, MaskOptions, Tile, TileSet, chunk};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{
    Arguments, Kernel, KernelOptions, KvLoad, MERGE_WARPS, MaskArguments, WorkItem,
};
use tilewright_plan::{E4m3, E5m2, KvStrides, LivePlanner, Plan, PlanOptions, Prices, Split};

const WARPGROUPS: &[&str] = &["-DTILEWRIGHT_EMULATE_WARPGROUPS"];
const LONGEST: u32 = 1300;
const SCALE: f32 = 0.125;
const SINKS: [f32; 4] = [0.5, -1.0, 3.0, 0.0];

/// A kind of kernels.
#[derive(Clone, Copy)]
struct Kind {
    arch: &'static str,
    dtype: Dtype,
    head_dim: u32,
    options: KernelOptions,
}

const PLAIN: KernelOptions = KernelOptions {
    mask: MaskOptions::NONE,
    sinks: false,
    timeline: false,
    kv_load: KvLoad::Tma,
    invariant: true,
    merge_by_last_cta: true,
};
const HOPPER: Kind = Kind { arch: "sm_90a", dtype: Dtype::F16, head_dim: 64, options: PLAIN };
/// Its steps of 128 tokens have two softmaxes.
const FP8: Kind = Kind { dtype: Dtype::Fp8F16, head_dim: 128, ..HOPPER };

/// A source with a change, where it is of that file.
fn changed(name: &str, text: &str, [file, from, to]: [&str; 3]) -> String {
    assert!(name != file || text.contains(from), "{file} has another text: {from}");
    if name == file { text.replace(from, to) } else { text.to_owned() }
}

impl Kind {
    fn geometry(&self, page_size: u32) -> Geometry {
        Geometry { q_heads: 4, kv_heads: 1, head_dim: self.head_dim, page_size, dtype: self.dtype }
    }

    fn class(&self) -> Class {
        Class::of(&self.geometry(16))
    }

    fn family(&self) -> TileSet<'static> {
        chunk::families(Backend::Cuda, self.head_dim, self.dtype)[0]
    }

    /// Forward of a tile by a load.
    fn forward(&self, tile: &Tile, kv_load: KvLoad) -> Kernel {
        let options = KernelOptions { kv_load, ..self.options };
        Kernel::decode(tile, &self.class(), options, self.arch.parse().unwrap())
    }

    fn merge(&self) -> Kernel {
        Kernel::merge(MERGE_WARPS[0], &self.class(), self.options)
    }

    fn emulator(&self) -> Emulator {
        let (kernels, flags) = self.kernels_and_flags();
        Emulator::build(&kernels, flags)
    }

    fn mutant(&self, change: impl Fn(&str, &str) -> String) -> Emulator {
        let (kernels, flags) = self.kernels_and_flags();
        Emulator::build_changed(&kernels, flags, change)
    }

    fn kernels_and_flags(&self) -> (Vec<Kernel>, &'static [&'static str]) {
        let of_tile = |tile| [KvLoad::Tma, KvLoad::CpAsync].map(|kv_load| self.forward(tile, kv_load));
        let mut kernels: Vec<Kernel> = self.family().tiles().iter().flat_map(of_tile).collect();
        kernels.push(self.merge());
        kernels.dedup();
        (kernels, if self.arch == "sm_90a" { WARPGROUPS } else { &[] })
    }

    fn mask(&self) -> Mask {
        Mask::NONE.with(self.options.mask)
    }

    /// Compares the rows of random batches until there were `pairs`, each executed in some launch mode by some kernel of some tile of the
    /// family; `checks` whether some of them are right, too.
    fn run<E: Element>(
        &self,
        emulator: &Emulator,
        split: Split,
        pairs: u64,
        checks: bool,
        bits: impl Fn(&[E]) -> Vec<u32>,
    ) -> Result<SeenBits, String> {
        let family = Family::new(12, LONGEST, self.head_dim, 3);
        let mut seen = SeenBits::new(&family);
        let (mut merges, mut shared, mut tiles) = (0, 0, BTreeSet::new());
        for pool_seed in 0.. {
            let geometry = self.geometry([16, 64, 48, 128][pool_seed as usize % 4]);
            let pool = Pool::new(&family, &geometry, 2, pool_seed);
            let caches = match self.dtype.fp8() {
                Some(Fp8::E4m3) => Caches::of_bytes(pool.cache(&family), E4m3::to_bits),
                Some(Fp8::E5m2) => Caches::of_bytes(pool.cache(&family), E5m2::to_bits),
                None => {
                    let (keys, values) = pool.cache::<E>(&family);
                    Caches::Plain(keys, values)
                }
            };
            for seed in pool_seed * 100..pool_seed * 100 + 8 {
                let batch = pool.batch(20, seed);
                let plan = self.plan(&geometry, &batch, split, seed);
                merges += plan.merges().len();
                tiles.extend(plan.tile_groups().iter().map(|group| group.tile));
                shared += plan.q_tiles().iter().filter(|q_tile| q_tile.requests.len() > 1).count();
                let query: Vec<E> = family.queries(&batch.texts, geometry.q_heads);
                let (output, lse) = self.launch(emulator, &plan, &query, &caches, seed)?;
                if checks && seed.is_multiple_of(8) && !self.dtype.has_fp8_kv() {
                    self.check(&geometry, &batch, &query, &caches, &output);
                }
                let row = (geometry.q_heads * geometry.head_dim) as usize;
                let rows = output.chunks_exact(row).zip(lse.chunks_exact(geometry.q_heads as usize));
                let found: Vec<u32> = rows
                    .flat_map(|(row, lse)| {
                        let mut found = bits(row);
                        found.extend(lse.iter().map(|lse| lse.to_bits()));
                        found
                    })
                    .collect();
                seen.compare(&batch.texts, &found);
            }
            if seen.pairs >= pairs {
                break;
            }
        }
        assert!(merges > 10 && shared > 10, "{merges} requests are merged, {shared} Q tiles are shared");
        assert!(tiles.iter().eq(self.family().tiles()), "{tiles:?} of {}", self.family());
        Ok(seen)
    }

    fn plan(&self, geometry: &Geometry, batch: &PoolBatch, split: Split, seed: u64) -> Plan {
        let prices = Prices { cta: 0, merge: 0, partial_byte: 0, ..Prices::default() };
        let options = PlanOptions { split, ..PlanOptions::default() }
            .with_max_concurrent_ctas([1, 8, 300][seed as usize % 3])
            .with_prices(prices);
        // The one that ends first, or any; each of them under each number of CTAs.
        let family = self.family();
        let set = match family.tiles().get(seed as usize / 3 % (family.tiles().len() + 1)) {
            Some(tile) => TileSet::new(std::slice::from_ref(tile)),
            None => family,
        };
        if !(seed / 8).is_multiple_of(4) {
            return Plan::build(geometry, &batch.table().unwrap(), &options, set).unwrap();
        }
        let mut planner = LivePlanner::new(geometry, options).unwrap();
        for (row, &tokens) in (0..).zip(&batch.seq_lens) {
            planner.add(row, batch.pages(row as usize), tokens).unwrap();
        }
        planner.plan(set).unwrap().clone()
    }

    fn launch<E: Element>(
        &self,
        emulator: &Emulator,
        plan: &Plan,
        query: &[E],
        caches: &Caches<E>,
        seed: u64,
    ) -> Result<(Vec<E>, Vec<f32>), String> {
        let geometry = plan.geometry();
        let packed = PackedPlan::of(plan);
        let mut words = packed.words().to_vec();
        // CTAs of an item lie side by side, or those of a KV head.
        (0..packed.launches().count()).for_each(|launch| words[2 + 2 * launch] = (seed / 2 % 2) as u32);
        let span = words.len().max(packed.span());
        let memory = Aligned::of(&words, span);
        let mut workspace = vec![f32::NAN; packed.workspace_bytes(geometry) / 4 + 1];
        let modes = [LaunchMode::ALL[0], LaunchMode::ALL[1]];
        let fused = modes[seed as usize % 2].merge == MergeBy::LastCta;
        let mut arrivals = vec![0u32; plan.merges().len() * geometry.kv_heads as usize + 1];
        let mut output = vec![E::from_f32(f32::NAN); query.len()];
        let mut lse = vec![f32::NAN; query.len() / geometry.head_dim as usize];
        let strides = KvStrides::nhd(geometry);
        let vector = i64::from(geometry.head_dim);
        let row = i64::from(geometry.q_heads) * vector;
        let (keys, values) = caches.addresses();
        let scales = [0.5f32, 1.7];
        let mut arguments = Arguments {
            query: query.as_ptr() as u64,
            keys,
            values,
            output: output.as_mut_ptr() as u64,
            lse: lse.as_mut_ptr() as u64,
            sinks: if self.options.sinks { SINKS.as_ptr() as u64 } else { 0 },
            key_scales: scales.as_ptr() as u64,
            value_scales: scales[1..].as_ptr() as u64,
            arrivals: if fused { arrivals.as_mut_ptr() as u64 } else { 0 },
            query_request: row,
            query_head: vector,
            output_request: row,
            output_head: vector,
            page: strides.page as i64,
            token: strides.token as i64,
            head: strides.head as i64,
            mask: MaskArguments::of(&self.mask(), SCALE),
            ..packed.arguments(geometry, memory.address(), workspace.as_mut_ptr() as u64)
        };
        describe_tensors(&mut arguments, geometry, &strides);
        let kv_load = if (seed / 4).is_multiple_of(2) { KvLoad::Tma } else { KvLoad::CpAsync };
        for (index, (tile, items)) in packed.launches().enumerate() {
            let forward = self.forward(&tile.unwrap(), kv_load);
            let arguments = Arguments {
                items: arguments.items + u64::from(items.start) * size_of::<WorkItem>() as u64,
                group: index as u32,
                ..arguments
            };
            let ctas = items.len() as u32 * geometry.kv_heads;
            emulator.run_decode(&forward, &arguments, ctas, seed)?;
        }
        if !fused {
            let rows = packed.merge_grid() * geometry.q_heads;
            emulator.run_merge(&self.merge(), &arguments, rows, seed)?;
        }
        Ok((output, lse))
    }

    fn check<E: Element>(
        &self,
        geometry: &Geometry,
        batch: &PoolBatch,
        query: &[E],
        caches: &Caches<E>,
        output: &[E],
    ) {
        let Caches::Plain(keys, values) = caches else { return };
        let cache = KvCache { keys, values, strides: KvStrides::nhd(geometry) };
        let sinks = self.options.sinks.then_some(&SINKS[..]);
        let attention = Attention { mask: self.mask(), sinks, ..Attention::plain(SCALE) };
        let (expected, _) = reference::decode(geometry, &batch.table().unwrap(), query, &cache, &attention);
        let (mut difference, mut norm) = (0.0, 0.0);
        for (found, expected) in output.iter().zip(&expected) {
            difference += (f64::from(found.to_f32()) - expected).powi(2);
            norm += expected.powi(2);
        }
        let error = (difference / norm).sqrt();
        assert!(error < 1.5e-2, "the output's error is {error:.1e}");
    }
}

enum Caches<E> {
    Plain(Vec<E>, Vec<E>),
    Fp8(Vec<u8>, Vec<u8>),
}

impl<E: Number> Caches<E> {
    fn of_bytes<F>((keys, values): (Vec<F>, Vec<F>), to_bits: fn(F) -> u8) -> Self {
        let bytes = |numbers: Vec<F>| numbers.into_iter().map(to_bits).collect();
        Self::Fp8(bytes(keys), bytes(values))
    }

    fn addresses(&self) -> (u64, u64) {
        match self {
            Self::Plain(keys, values) => (keys.as_ptr() as u64, values.as_ptr() as u64),
            Self::Fp8(keys, values) => (keys.as_ptr() as u64, values.as_ptr() as u64),
        }
    }
}

fn bits_of_f16(row: &[f16]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits().into()).collect()
}

fn bits_of_bf16(row: &[bf16]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits().into()).collect()
}

/// The emulation takes some milliseconds a batch, so these are hundreds of pairs of batches; the CPU's and the GPU's suites have thousands.
fn assert_equal_bits<E: Element>(kind: Kind, pairs: u64, bits: impl Fn(&[E]) -> Vec<u32>) {
    let seen = kind.run::<E>(&kind.emulator(), Split::Invariant, pairs, true, bits).unwrap();
    assert_eq!(seen.differ, 0, "of {} pairs", seen.pairs);
}

#[test]
fn a_request_has_the_same_bits_in_every_batch_and_launch() {
    assert_equal_bits(HOPPER, 400, bits_of_f16);
}

#[test]
fn so_it_has_with_all_options_and_without_warpgroups() {
    let all = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..PLAIN };
    assert_equal_bits(Kind { dtype: Dtype::Bf16, options: all, ..HOPPER }, 200, bits_of_bf16);
    assert_equal_bits(Kind { options: all, ..FP8 }, 60, bits_of_f16);
    assert_equal_bits(Kind { arch: "sm_80", ..HOPPER }, 200, bits_of_f16);
}

#[test]
fn so_it_has_with_fp8_and_with_long_vectors() {
    assert_equal_bits(FP8, 60, bits_of_f16);
    assert_equal_bits(Kind { dtype: Dtype::E5m2F16, ..FP8 }, 60, bits_of_f16);
    assert_equal_bits(Kind { dtype: Dtype::Fp8F16, ..HOPPER }, 60, bits_of_f16);
    for head_dim in [192, 256] {
        assert_equal_bits(Kind { head_dim, ..HOPPER }, 60, bits_of_f16);
        assert_equal_bits(Kind { dtype: Dtype::Fp8F16, head_dim, ..HOPPER }, 60, bits_of_f16);
    }
    assert_equal_bits(Kind { head_dim: 96, ..HOPPER }, 60, bits_of_f16);
    assert_equal_bits(Kind { head_dim: 512, ..HOPPER }, 40, bits_of_f16);
}

/// Longer requests than these batches have are cut alike, too.
#[test]
fn chunks_begin_in_kernels_where_plans_cut_them() {
    let emulator = Emulator::build(&[HOPPER.merge()], &[]);
    for kv_heads in [1, 7, 8, 32] {
        let chunks = chunk::Chunks::of(kv_heads);
        for position in (0..1 << 20).chain(u32::MAX - (1 << 20)..=u32::MAX).step_by(16) {
            let begins = chunks.begin_of(position) == position;
            assert_eq!(emulator.begins_chunk(position, kv_heads), begins, "{position}, {kv_heads} KV heads");
        }
    }
}

/// Each part of the argument is needed, and its absence is seen: kernels whose chunks do not begin anew or begin elsewhere than plans are cut, or
/// whose rows are brought under larger logits when another row of their warp is, or leave a chunk when another row does; warps that add up products in
/// another order than a warpgroup does; warps that share out a step, and add up their sums in another order than one warp does, have one softmax for a long step,
/// or do not begin one anew behind a chunk; rows that begin under a lower logit when another one does.
#[test]
fn what_would_make_bits_depend_on_the_batch_is_seen() {
    let mutations = [
        (
            HOPPER,
            "chunk.cuh",
            "return (position & within / 2) == 0;",
            "return false && (position & within / 2) == 0;",
        ),
        (
            HOPPER,
            "softmax_step.cuh",
            "return (max > under + SLACK) | below ?",
            "return any_in_warp(max > under + SLACK) & (max > under) ?",
        ),
        (
            HOPPER,
            "chunk.cuh",
            "return (position & within / 2) == 0;",
            "return position >= 128 && (position - 128 & within / 2) == 0;",
        ),
        (HOPPER, "totals.cuh", "row >= last.first_row() && row < last.last_row()", "true"),
        (
            HOPPER,
            "mma.cuh",
            "for (u32 k = 0; k < S::WARP_KEY_CHUNKS / 2; k++) {",
            "for (u32 k = S::WARP_KEY_CHUNKS / 2; k-- > 0;) {",
        ),
        (
            HOPPER,
            "softmax_step.cuh",
            "split.add_sums(acc.softmax, first + n);",
            "split.add_sums(acc.softmax, first + GRANULES_HERE - 1 - n);",
        ),
        (
            HOPPER,
            "softmax_step.cuh",
            "find_largest<2 * N, 2 * N + 2>(max[N], query, scores);",
            "find_largest<0, TILES>(max[N], query, scores);",
        ),
        (FP8, "split_step.cuh", "= own[i][half];", "= larger(own[0][half], own[1][half]);"),
        (FP8, "softmax_step.cuh", "if (Totals<S>{cta}.leaves(", "if (false && Totals<S>{cta}.leaves("),
        (
            HOPPER,
            "softmax_step.cuh",
            "| below ?",
            "| (any_in_warp(below) & !begun & (max > negative_infinity())) ?",
        ),
    ];
    for (kind, file, from, to) in mutations {
        let emulator = kind.mutant(|name, text| changed(name, text, [file, from, to]));
        let seen = kind.run::<f16>(&emulator, Split::Invariant, 100, false, bits_of_f16).unwrap();
        assert!(seen.differ > 0, "{from}: of {} pairs all are equal", seen.pairs);
    }
}

/// Warps that share out a step leave weights of two steps in turn: in one place they would be written where others still read those of the step before.
#[test]
fn weights_in_one_place_are_read_without_a_barrier() {
    let change = ["softmax_step.cuh", "acc.turn ^= 1;", "acc.turn ^= 0;"];
    let emulator = HOPPER.mutant(|name, text| changed(name, text, change));
    let seen = HOPPER.run::<f16>(&emulator, Split::Invariant, 100, false, bits_of_f16);
    assert!(seen.as_ref().is_err_and(|error| error.contains("without a barrier since")), "{:?}", seen.err());
}
