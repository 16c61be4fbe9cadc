//! Every packing, split, tile, element type and layout against the f64 reference, on forests of all kinds.

use half::{bf16, f16};
use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_conformance as conformance;
use tilewright_conformance::reference::{self, Attention, relative_error};
use tilewright_cpu::ExecError;
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, KvCache};
use tilewright_heuristics::{Dtype, Geometry, Mask, PackShape, Tile};
use tilewright_plan::{KvStrides, Packing, PageTable, Plan, PlanOptions, Split};

/// A batch with K, V and queries; NaN wherever no request has a token.
struct Batch<E> {
    geometry: Geometry,
    entries: Vec<i32>,
    max_pages: usize,
    seq_lens: Vec<u32>,
    strides: KvStrides,
    keys: Vec<E>,
    values: Vec<E>,
    query: Vec<E>,
    scale: f32,
}

/// Requests as (pages of a prefix taken from request 0, own tokens).
fn batch<E: Element>(
    geometry: Geometry,
    requests: &[(usize, u32)],
    hnd: bool,
    amplitude: f32,
    seed: u64,
) -> Batch<E> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let page_size = geometry.page_size;
    let mut rows: Vec<Vec<i32>> = Vec::new();
    let mut seq_lens = Vec::new();
    let mut ids: Vec<i32> = Vec::new();
    for &(shared, own) in requests {
        // Shared pages are those of the previous request, so that trees of any depth come about.
        let mut row: Vec<i32> =
            rows.last().map_or(Vec::new(), |row: &Vec<i32>| row[..shared.min(row.len())].to_vec());
        let tokens = row.len() as u32 * page_size + own;
        while (row.len() as u32) < tokens.div_ceil(page_size) {
            row.push(ids.len() as i32);
            ids.push(0);
        }
        rows.push(row);
        seq_lens.push(tokens);
    }
    let pages = ids.len() + 2;
    let mut physical: Vec<i32> = (0..pages as i32).collect();
    physical.shuffle(&mut rng);
    let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0) + 1;
    let mut entries = Vec::new();
    let mut filled = vec![0u32; pages];
    for (row, &seq_len) in rows.iter().zip(&seq_lens) {
        for (column, &page) in row.iter().enumerate() {
            let page = physical[page as usize];
            entries.push(page);
            let tokens = (seq_len - column as u32 * page_size).min(page_size);
            filled[page as usize] = filled[page as usize].max(tokens);
        }
        entries.extend((row.len()..max_pages).map(|column| if column % 2 == 0 { -1 } else { i32::MAX }));
    }
    let strides = if hnd { KvStrides::hnd(&geometry) } else { KvStrides::nhd(&geometry) };
    let elements = pages * (page_size * geometry.kv_heads * geometry.head_dim) as usize;
    let mut cache = |amplitude: f32| {
        let mut cache = vec![E::from_f32(f32::NAN); elements];
        for (page, &tokens) in filled.iter().enumerate() {
            for token in 0..tokens as usize {
                for head in 0..geometry.kv_heads as usize {
                    let at = page * strides.page + token * strides.token + head * strides.head;
                    for element in &mut cache[at..at + geometry.head_dim as usize] {
                        *element = E::from_f32(rng.random_range(-amplitude..amplitude));
                    }
                }
            }
        }
        cache
    };
    let (keys, values) = (cache(amplitude), cache(1.0));
    let queries = requests.len() * (geometry.q_heads * geometry.head_dim) as usize;
    let query = (0..queries).map(|_| E::from_f32(rng.random_range(-1.0..1.0))).collect();
    let scale = 1.0 / (geometry.head_dim as f32).sqrt();
    Batch { geometry, entries, max_pages, seq_lens, strides, keys, values, query, scale }
}

impl<E: Element> Batch<E> {
    fn table(&self) -> PageTable<'_> {
        PageTable::new(&self.entries, self.max_pages, &self.seq_lens, self.geometry.page_size).unwrap()
    }

    fn cache(&self) -> KvCache<'_, E> {
        KvCache { keys: &self.keys, values: &self.values, strides: self.strides }
    }

    fn decode(&self, backend: &mut CpuBackend, options: &PlanOptions, tile: Tile) -> (Vec<E>, Vec<f32>) {
        let plan = Plan::build(&self.geometry, &self.table(), options, tile).unwrap();
        let mut output = vec![E::from_f32(f32::NAN); self.query.len()];
        let mut lse = vec![f32::NAN; self.seq_lens.len() * self.geometry.q_heads as usize];
        let args = DecodeArgs {
            lse: Some(&mut lse),
            scale: Some(self.scale),
            ..DecodeArgs::new(&self.query, self.cache(), &mut output)
        };
        backend.decode(&plan, args).unwrap();
        (output, lse)
    }

    /// Panics unless output and LSE are within the element type's tolerance of the reference, over all and for each row.
    fn assert_correct(&self, backend: &mut CpuBackend, options: &PlanOptions, tile: Tile) {
        let (output, lse) = self.decode(backend, options, tile);
        let (expected, expected_lse) = reference::decode(
            &self.geometry,
            &self.table(),
            &self.query,
            &self.cache(),
            &Attention::plain(self.scale),
        );
        let tolerance = conformance::tolerance(E::DTYPE);
        let what = || format!("{:?} {options:?} {tile} lens {:?}", self.geometry, self.seq_lens);
        let output: Vec<f64> = output.iter().map(|x| f64::from(x.to_f32())).collect();
        let error = relative_error(&output, &expected);
        assert!(error < tolerance, "{error:.1e} over all: {}", what());
        let head_dim = self.geometry.head_dim as usize;
        for (row, (found, expected)) in output.chunks(head_dim).zip(expected.chunks(head_dim)).enumerate() {
            // Where V cancels, a row's norm says little about the size of what was summed.
            let error = relative_error(found, expected);
            assert!(error < 8.0 * tolerance, "{error:.1e} in row {row}: {}", what());
        }
        for (row, (found, expected)) in lse.iter().zip(&expected_lse).enumerate() {
            let found = f64::from(*found);
            let close = found == *expected || (found - expected).abs() <= tolerance * expected.abs().max(1.0);
            assert!(close, "LSE {found} for {expected} in row {row}: {}", what());
        }
    }
}

fn assert_all<E: Element>(geometry: Geometry, requests: &[(usize, u32)], hnd: bool, tile: Tile, seed: u64) {
    assert_all_scaled::<E>(geometry, requests, hnd, tile, 1.0, seed);
}

/// With so many times the usual scale.
fn assert_all_scaled<E: Element>(
    geometry: Geometry,
    requests: &[(usize, u32)],
    hnd: bool,
    tile: Tile,
    scale: f32,
    seed: u64,
) {
    let geometry = Geometry { dtype: E::DTYPE, ..geometry };
    let mut batch = batch::<E>(geometry, requests, hnd, 1.0, seed);
    batch.scale *= scale;
    let mut backend = CpuBackend::new(2);
    for packing in [Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerNode, Packing::PerRequest] {
        for split in [Split::None, Split::Mean] {
            batch.assert_correct(
                &mut backend,
                &PlanOptions { packing, split, ..PlanOptions::default() },
                tile,
            );
        }
    }
}

const GEOMETRY: Geometry =
    Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F32 };
const TILE: Tile = Tile::of("m4n32w1s1");

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn random_forests_agree_with_the_reference(
        requests in prop::collection::vec((0usize..8, 0u32..150), 1..9),
        (ratio, kv_heads) in prop_oneof![Just((1, 2)), Just((3, 1)), Just((4, 2)), Just((5, 1)), Just((8, 1))],
        page_size in prop_oneof![Just(1u32), Just(16), Just(32), Just(48)],
        head_dim in prop_oneof![4 => Just(64u32), 2 => Just(96), 2 => Just(128), 1 => Just(192), 1 => Just(256), 1 => Just(512)],
        m in prop_oneof![Just(1u16), Just(2), Just(4), Just(8), Just(16), Just(64)],
        n in prop_oneof![Just(16u16), Just(32), Just(64), Just(256)],
        warps in 1u16..5,
        stages in 1u16..4,
        dtype in 0u32..3,
        hnd: bool,
        scale in prop_oneof![3 => Just(1.0f32), 1 => Just(-1.0)],
        seed: u64,
    ) {
        let geometry = Geometry { q_heads: ratio * kv_heads, kv_heads, head_dim, page_size, dtype: Dtype::F32 };
        let tile = Tile::new(m, n, warps, stages);
        match Dtype::from_code(dtype) {
            Some(Dtype::F16) => assert_all_scaled::<f16>(geometry, &requests, hnd, tile, scale, seed),
            Some(Dtype::Bf16) => assert_all_scaled::<bf16>(geometry, &requests, hnd, tile, scale, seed),
            _ => assert_all_scaled::<f32>(geometry, &requests, hnd, tile, scale, seed),
        }
    }
}

#[test]
fn lengths_around_every_edge_agree_with_the_reference() {
    for tile in [TILE, Tile::of("m16n16w3s2")] {
        let requests: Vec<(usize, u32)> =
            [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 0, 1023].map(|own| (0, own)).to_vec();
        assert_all::<f32>(GEOMETRY, &requests, false, tile, 1);
    }
}

#[test]
fn an_empty_batch_and_empty_requests_are_ordinary() {
    for requests in [vec![], vec![(0, 0)], vec![(0, 0), (0, 40), (0, 0)]] {
        assert_all::<f32>(GEOMETRY, &requests, false, TILE, 2);
    }
    let batch = batch::<f32>(GEOMETRY, &[(0, 0)], false, 1.0, 2);
    let (output, lse) = batch.decode(&mut CpuBackend::new(1), &PlanOptions::default(), TILE);
    assert!(output.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
}

#[test]
fn identical_requests_and_ends_inside_a_shared_page_agree() {
    // Four identical ones, then one that shares three pages and all of whose own tokens are in a fourth.
    assert_all::<f16>(GEOMETRY, &[(0, 100), (7, 0), (7, 0), (3, 5), (3, 0)], true, TILE, 3);
    // The same page at different fill: the table names it, the lengths differ.
    let mut batch = batch::<f32>(GEOMETRY, &[(0, 64), (4, 0), (4, 0)], false, 1.0, 4);
    batch.seq_lens = vec![64, 50, 49];
    for packing in [Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerNode, Packing::PerRequest] {
        let options = PlanOptions { packing, split: Split::Mean, ..PlanOptions::default() };
        batch.assert_correct(&mut CpuBackend::new(2), &options, Tile { m: 16, ..TILE });
    }
}

#[test]
fn extreme_logits_do_not_overflow() {
    for amplitude in [1e4, 0.0] {
        let amplitude = f32::max(amplitude, f32::MIN_POSITIVE);
        let batch = batch::<f32>(GEOMETRY, &[(0, 200), (6, 20)], false, amplitude, 5);
        let (output, lse) = batch.decode(&mut CpuBackend::new(2), &PlanOptions::default(), TILE);
        let (expected, expected_lse) = reference::decode(
            &batch.geometry,
            &batch.table(),
            &batch.query,
            &batch.cache(),
            &Attention::plain(batch.scale),
        );
        let output: Vec<f64> = output.into_iter().map(f64::from).collect();
        // Logits of 1e4 carry an f32 rounding of 1e-3 into the exponent.
        assert!(relative_error(&output, &expected) < 5e-3);
        let lse: Vec<f64> = lse.into_iter().map(f64::from).collect();
        assert!(relative_error(&lse, &expected_lse) < 1e-5);
    }
}

#[test]
fn the_same_plan_gives_the_same_bits_whatever_threads_do() {
    let requests: Vec<(usize, u32)> = (0..24).map(|i| (i % 5, 30 + 37 * i as u32 % 300)).collect();
    let batch = batch::<f16>(Geometry { dtype: Dtype::F16, ..GEOMETRY }, &requests, false, 1.0, 6);
    for warps in [1, 3] {
        let tile = Tile { warps, ..TILE };
        let first = batch.decode(&mut CpuBackend::new(1), &PlanOptions::default(), tile);
        for threads in [2, 3, 8] {
            let mut backend = CpuBackend::new(threads);
            for _ in 0..20 {
                let again = batch.decode(&mut backend, &PlanOptions::default(), tile);
                assert!(again.0.iter().map(|x| x.to_bits()).eq(first.0.iter().map(|x| x.to_bits())));
                assert_eq!(again.1, first.1);
            }
        }
    }
}

#[test]
fn one_batch_may_use_many_tiles() {
    let requests: Vec<(usize, u32)> = (0..30).map(|i| (i % 5, 30 + 37 * i as u32 % 300)).collect();
    let batch = batch::<f32>(GEOMETRY, &requests, false, 1.0, 7);
    let mut asked = 0u16;
    let options = PlanOptions { packing: Packing::Pat, split: Split::Mean, ..PlanOptions::default() };
    let plan = Plan::build(&GEOMETRY, &batch.table(), &options, |_: &PackShape| {
        asked += 1;
        Tile::new(1 << (asked % 5), 16 << (asked % 3), 1 + asked % 4, 1 + asked % 2)
    })
    .unwrap();
    assert!(plan.tile_groups().len() > 8);
    let mut output = vec![f32::NAN; batch.query.len()];
    let args =
        DecodeArgs { scale: Some(batch.scale), ..DecodeArgs::new(&batch.query, batch.cache(), &mut output) };
    CpuBackend::new(3).decode(&plan, args).unwrap();
    let (expected, _) = reference::decode(
        &GEOMETRY,
        &batch.table(),
        &batch.query,
        &batch.cache(),
        &Attention::plain(batch.scale),
    );
    let output: Vec<f64> = output.into_iter().map(f64::from).collect();
    assert!(relative_error(&output, &expected) < 1e-5);
}

#[test]
fn misfit_arguments_are_refused_before_any_write() {
    let batch = batch::<f32>(GEOMETRY, &[(0, 40)], false, 1.0, 8);
    let plan = Plan::build(&GEOMETRY, &batch.table(), &PlanOptions::default(), TILE).unwrap();
    let mut backend = CpuBackend::new(1);
    let mut output = vec![7.0f32; batch.query.len()];
    let short = KvCache { keys: &batch.keys[..16], ..batch.cache() };
    let args = DecodeArgs::new(&batch.query, short, &mut output);
    assert!(matches!(backend.decode(&plan, args), Err(ExecError::PageOutside { name: "keys", .. })));
    let args =
        DecodeArgs { mask: Mask::window(0), ..DecodeArgs::new(&batch.query, batch.cache(), &mut output) };
    assert!(matches!(backend.decode(&plan, args), Err(ExecError::Option { name: "window", .. })));
    for softcap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let plain = DecodeArgs::new(&batch.query, batch.cache(), &mut output);
        let args = DecodeArgs { mask: Mask::softcap(softcap), ..plain };
        assert!(matches!(backend.decode(&plan, args), Err(ExecError::Option { name: "softcap", .. })));
    }
    let sinks = [0.0];
    let args =
        DecodeArgs { sinks: Some(&sinks), ..DecodeArgs::new(&batch.query, batch.cache(), &mut output) };
    assert!(matches!(backend.decode(&plan, args), Err(ExecError::Length { name: "sinks", .. })));
    let args = DecodeArgs::new(&batch.query[1..], batch.cache(), &mut output);
    assert!(matches!(backend.decode(&plan, args), Err(ExecError::Length { name: "query", .. })));
    let halves = vec![f16::ZERO; batch.keys.len()];
    let cache = KvCache { keys: &halves, values: &halves, strides: batch.strides };
    let mut half_output = vec![f16::ZERO; batch.query.len()];
    let half_query = half_output.clone();
    let args = DecodeArgs::new(&half_query, cache, &mut half_output);
    assert!(matches!(backend.decode(&plan, args), Err(ExecError::Dtype { given: Dtype::F16, .. })));
    assert!(output.iter().all(|&x| x == 7.0));
}
