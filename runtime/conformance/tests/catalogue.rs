//! Every scenario of the catalogue, scaled down, in every element type, against the f64 reference.

use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_conformance as conformance;
use tilewright_conformance::reference::{self, Attention};
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, KvCache};
use tilewright_heuristics::{Backend, Geometry, PackShape, Tile};
use tilewright_plan::{KvStrides, PageTable, Plan, PlanOptions};
use tilewright_scenarios::{Batch, catalogue};

/// Small enough for an f64 reference in a test, large enough that prefixes stay shared and long packs are split.
const MAX_BYTES: u64 = 384 << 10;
/// Products of rows and tokens beyond which a batch is scaled further.
const MAX_WORK: u64 = 150_000;

fn assert_correct<E: Element>(batch: &Batch, backend: &mut CpuBackend) {
    let geometry = Geometry { dtype: E::DTYPE, ..batch.geometry };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut numbers =
        |count: usize| (0..count).map(|_| E::from_f32(rng.random_range(-1.0..1.0))).collect::<Vec<E>>();
    let elements = (batch.pages * geometry.page_size * geometry.kv_heads * geometry.head_dim) as usize;
    let (keys, values) = (numbers(elements), numbers(elements));
    let query = numbers(batch.requests() * (geometry.q_heads * geometry.head_dim) as usize);
    let table =
        PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, geometry.page_size).unwrap();
    let cache = KvCache { keys: &keys, values: &values, strides: KvStrides::nhd(&geometry) };
    let scale = 1.0 / (geometry.head_dim as f32).sqrt();
    let (expected, expected_lse) =
        reference::decode(&geometry, &table, &query, &cache, &Attention::plain(scale));

    // Tiles change from pack to pack, as under a selector.
    let tile = |rows: u32, kv_len: u32| {
        Tile::new(
            if rows <= 4 { 4 } else { 16 },
            if kv_len <= 256 { 16 } else { 64 },
            if kv_len > 512 { 2 } else { 1 },
            2,
        )
    };
    let plan = Plan::build(&geometry, &table, &PlanOptions::default(), |shape: &PackShape| {
        tile(shape.rows, shape.kv_len)
    })
    .unwrap();
    let mut output = vec![E::from_f32(f32::NAN); query.len()];
    let mut lse = vec![f32::NAN; expected_lse.len()];
    let args =
        DecodeArgs { lse: Some(&mut lse), scale: Some(scale), ..DecodeArgs::new(&query, cache, &mut output) };
    backend.decode(&plan, args).unwrap();

    let tolerance = conformance::tolerance(E::DTYPE);
    let what = format!("{} {} ({})", batch.name, E::DTYPE, batch.provenance.scaling);
    let output: Vec<f64> = output.iter().map(|x| f64::from(x.to_f32())).collect();
    let lse: Vec<f64> = lse.into_iter().map(f64::from).collect();
    // The whole, and each row on its own.
    let head_dim = geometry.head_dim as usize;
    let found = conformance::compare((&expected, &expected_lse), (&output, &lse), head_dim, tolerance);
    assert!(found.is_ok(), "{what}: {found:?}");
}

#[test]
fn the_catalogue_agrees_with_the_reference_in_every_type() {
    let mut backend = CpuBackend::new(2);
    let mut checked = 0;
    for scenario in catalogue(Backend::Cpu) {
        for spec in scenario.batches().unwrap() {
            let mut max_bytes = MAX_BYTES;
            let batch = loop {
                let batch = spec.scaled(max_bytes).build().unwrap();
                let tokens: u64 = batch.seq_lens.iter().map(|&len| u64::from(len)).sum();
                if tokens * u64::from(batch.geometry.q_heads) <= MAX_WORK || max_bytes < 16 << 10 {
                    break batch;
                }
                max_bytes /= 2;
            };
            assert_correct::<f16>(&batch, &mut backend);
            assert_correct::<bf16>(&batch, &mut backend);
            assert_correct::<f32>(&batch, &mut backend);
            checked += 1;
        }
    }
    assert!(checked > 140, "the catalogue has only {checked} batches");
}
