//! A request's bits on the CPU depend on nothing else in the batch, where plans are cut at absolute positions.

use half::{bf16, f16};
use tilewright_conformance::invariance::{Family, Pool, PoolBatch, SeenBits};
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, Fp8KvCache, KvCache, KvPages};
use tilewright_heuristics::{Backend, Dtype, Fp8, Geometry, Mask, chunk};
use tilewright_plan::{
    E4m3, E5m2, KvScales, KvStrides, LivePlanner, Plan, PlanOptions, Prices, Scale, Split,
};

const LONGEST: u32 = 1700;
const HEADS: usize = 4;
const HEAD_DIM: usize = 32;
const PAGE_SIZES: [u32; 6] = [16, 32, 48, 64, 128, 256];

/// What is compared.
#[derive(Clone, Copy)]
struct Comparison {
    dtype: Dtype,
    split: Split,
    mask: Mask,
    sinks: bool,
    pairs: u64,
}

const PLAIN: Comparison =
    Comparison { dtype: Dtype::F32, split: Split::Invariant, mask: Mask::NONE, sinks: false, pairs: 2_000 };

impl Comparison {
    fn geometry(&self, page_size: u32) -> Geometry {
        let (q_heads, head_dim) = (HEADS as u32, HEAD_DIM as u32);
        Geometry { q_heads, kv_heads: 2, head_dim, page_size, dtype: self.dtype }
    }

    /// A plan from nothing, or one that followed the batch as its rows came and grew.
    fn plan(&self, geometry: &Geometry, batch: &PoolBatch, seed: u64) -> Plan {
        let tile = chunk::families(Backend::Cpu, geometry.head_dim, self.dtype)[0];
        // Where a KV range is cut depends on how many threads it is planned for, and a cut costs nothing here.
        let ctas = [1, 3, 24, 400][seed as usize % 4];
        let prices = Prices { cta: 0, merge: 0, partial_byte: 0, ..Prices::default() };
        let options = PlanOptions { split: self.split, ..PlanOptions::default() }
            .with_max_concurrent_ctas(ctas)
            .with_prices(prices);
        if !seed.is_multiple_of(3) {
            return Plan::build(geometry, &batch.table().unwrap(), &options, tile).unwrap();
        }
        let mut planner = LivePlanner::new(geometry, options).unwrap();
        for (row, &tokens) in (0..).zip(&batch.seq_lens) {
            // It comes with its first page, and grows.
            let (pages, first) = (batch.pages(row as usize), geometry.page_size.min(tokens));
            planner.add(row, &pages[..1], first).unwrap();
            if row == 3 {
                planner.plan(tile).unwrap();
            }
            if tokens > first {
                planner.append(row, &pages[1..], tokens).unwrap();
            }
        }
        planner.plan(tile).unwrap().clone()
    }

    /// Compares the rows of random batches.
    fn run<E: Element>(&self, bits: impl Fn(E) -> u32) -> SeenBits {
        let mut backend = CpuBackend::new(2);
        let family = Family::new(14, LONGEST, HEAD_DIM as u32, 11);
        let mut seen = SeenBits::new(&family);
        let (mut merges, mut shared) = (0, 0);
        for pool_seed in 0.. {
            let geometry = self.geometry(PAGE_SIZES[pool_seed as usize % PAGE_SIZES.len()]);
            let pool = Pool::new(&family, &geometry, 2, pool_seed);
            let strides = KvStrides::nhd(&geometry);
            let scales = KvScales { keys: Scale::Tensor(0.5), values: Scale::Heads(&[0.3, 1.7]) };
            let of_pool = (pool_seed, &geometry);
            match self.dtype.fp8() {
                Some(Fp8::E4m3) => {
                    let (keys, values) = pool.cache::<E4m3>(&family);
                    let cache = || Fp8KvCache { keys: &keys[..], values: &values[..], strides, scales };
                    self.batches(&mut backend, &family, &pool, of_pool, cache, &bits, &mut seen);
                }
                Some(Fp8::E5m2) => {
                    let (keys, values) = pool.cache::<E5m2>(&family);
                    let cache = || Fp8KvCache { keys: &keys[..], values: &values[..], strides, scales };
                    self.batches(&mut backend, &family, &pool, of_pool, cache, &bits, &mut seen);
                }
                None => {
                    let (keys, values) = pool.cache::<E>(&family);
                    let cache = || KvCache { keys: &keys[..], values: &values[..], strides };
                    self.batches(&mut backend, &family, &pool, of_pool, cache, &bits, &mut seen);
                }
            }
            let plan = self.plan(&geometry, &pool.batch(28, pool_seed), 2);
            merges += plan.merges().len();
            shared += plan.q_tiles().iter().filter(|q_tile| q_tile.requests.len() > 1).count();
            if seen.pairs >= self.pairs {
                break;
            }
        }
        assert!(merges > 3 && shared > 3, "{merges} requests are merged, {shared} Q tiles are shared");
        seen
    }

    #[expect(clippy::too_many_arguments, reason = "the state of one comparison")]
    fn batches<E: Element, C: KvPages<E>>(
        &self,
        backend: &mut CpuBackend,
        family: &Family,
        pool: &Pool,
        (pool_seed, geometry): (u64, &Geometry),
        cache: impl Fn() -> C,
        bits: impl Fn(E) -> u32,
        seen: &mut SeenBits,
    ) {
        for seed in pool_seed * 100..pool_seed * 100 + 30 {
            let batch = pool.batch(24, seed);
            let plan = self.plan(geometry, &batch, seed);
            let query: Vec<E> = family.queries(&batch.texts, geometry.q_heads);
            let mut output = vec![E::from_f32(f32::NAN); query.len()];
            let mut lse = vec![f32::NAN; batch.texts.len() * HEADS];
            let args = DecodeArgs {
                lse: Some(&mut lse),
                mask: self.mask,
                sinks: self.sinks.then_some(&[0.5, -1.0, 3.0, 0.0]),
                ..DecodeArgs::new(&query, cache(), &mut output)
            };
            backend.decode(&plan, args).unwrap();
            let rows = output.chunks_exact(HEADS * HEAD_DIM).zip(lse.chunks_exact(HEADS));
            let found: Vec<u32> = rows
                .flat_map(|(row, lse)| {
                    row.iter().map(|&value| bits(value)).chain(lse.iter().map(|lse| lse.to_bits()))
                })
                .collect();
            assert!(output.iter().all(|value| value.to_f32().is_finite()));
            seen.compare(&batch.texts, &found);
        }
    }
}

#[test]
fn a_request_has_the_same_bits_in_every_batch() {
    let window = Mask::window(700);
    let softcap = Mask { softcap: Some(20.0), ..Mask::window(1000) };
    let cases = [
        Comparison { pairs: 4_000, ..PLAIN },
        Comparison { mask: window, ..PLAIN },
        Comparison { mask: softcap, sinks: true, ..PLAIN },
    ];
    for case in cases {
        let seen = case.run::<f32>(f32::to_bits);
        assert_eq!(seen.differ, 0, "of {} pairs, {:?}", seen.pairs, case.mask);
        assert!(seen.pairs >= case.pairs);
    }
}

#[test]
fn so_it_has_in_other_element_types() {
    let half = Comparison { dtype: Dtype::F16, pairs: 1_000, ..PLAIN }.run::<f16>(|x| x.to_bits().into());
    let brain = Comparison { dtype: Dtype::Bf16, pairs: 1_000, ..PLAIN }.run::<bf16>(|x| x.to_bits().into());
    let e4m3 = Comparison { dtype: Dtype::Fp8F32, pairs: 1_000, ..PLAIN }.run::<f32>(f32::to_bits);
    let e5m2 = Comparison { dtype: Dtype::E5m2F32, pairs: 1_000, ..PLAIN }.run::<f32>(f32::to_bits);
    assert_eq!([half.differ, brain.differ, e4m3.differ, e5m2.differ], [0; 4]);
}

/// What these comparisons would see: with chunks that end where all threads are equally busy, bits are others.
#[test]
fn it_has_others_where_the_batch_decides_on_chunks() {
    let seen = Comparison { split: Split::Waves, ..PLAIN }.run::<f32>(f32::to_bits);
    assert!(seen.differ * 4 > seen.pairs, "{} of {}", seen.differ, seen.pairs);
}
