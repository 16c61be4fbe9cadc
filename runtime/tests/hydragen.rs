//! Attention in parts, merged by their LSEs (Hydragen, section 3), is attention over the whole: on the CPU backend.

mod parts;

use half::{bf16, f16};
use parts::{Part, Parts, Shape};
use proptest::prelude::*;
use tilewright_conformance::reference::{self, Attention};
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, KvCache, State, merge_states};
use tilewright_heuristics::{Dtype, Geometry, Tile};
use tilewright_plan::{KvStrides, Plan, PlanOptions};

const GEOMETRY: Geometry =
    Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F32 };
const TILE: Tile = Tile::of("m16n32w2s1");

fn cache<E: Element>(parts: &Parts<E>) -> KvCache<'_, E> {
    KvCache { keys: &parts.keys, values: &parts.values, strides: KvStrides::nhd(&parts.geometry) }
}

fn plan<E: Element>(parts: &Parts<E>, part: &Part) -> Plan {
    let table = part.table(&parts.geometry);
    Plan::build(&parts.geometry, &table, &PlanOptions::default(), TILE).unwrap()
}

/// Attention over one part alone.
fn attend<E: Element>(parts: &Parts<E>, part: &Part, backend: &mut CpuBackend) -> (Vec<E>, Vec<f32>) {
    let mut output = vec![E::from_f32(f32::NAN); parts.query.len()];
    let mut lse = vec![f32::NAN; parts.rows()];
    let args = DecodeArgs {
        lse: Some(&mut lse),
        scale: Some(parts.scale()),
        ..DecodeArgs::new(&parts.query, cache(parts), &mut output)
    };
    backend.decode(&plan(parts, part), args).unwrap();
    (output, lse)
}

fn merge<E: Element>(parts: &Parts<E>, states: &[(Vec<E>, Vec<f32>)]) -> (Vec<E>, Vec<f32>) {
    let states: Vec<State<'_, E>> = states.iter().map(|(output, lse)| State { output, lse }).collect();
    let mut output = vec![E::from_f32(f32::NAN); parts.query.len()];
    let mut lse = vec![f32::NAN; parts.rows()];
    merge_states(&states, parts.geometry.head_dim, &mut output, Some(&mut lse)).unwrap();
    (output, lse)
}

fn check<E: Element>(geometry: Geometry, shape: &Shape, seed: u64) {
    let parts = Parts::<E>::new(geometry, shape, seed);
    let mut backend = CpuBackend::new(2);
    let states: Vec<_> = parts.parts.iter().map(|part| attend(&parts, part, &mut backend)).collect();
    let (output, lse) = merge(&parts, &states);
    parts.check(&output, &lse);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn parts_of_any_length_merge_to_the_whole(
        prefix in 0u32..150,
        groups in prop::collection::vec(0u32..60, 1..4),
        own in prop::collection::vec(prop_oneof![1 => Just(0u32), 3 => 1u32..70], 1..9),
        outsider in prop::option::of(0usize..8),
        (ratio, kv_heads) in prop_oneof![Just((1, 2)), Just((4, 2)), Just((3, 1))],
        page_size in prop_oneof![Just(1u32), Just(16), Just(48)],
        head_dim in prop_oneof![Just(64u32), Just(96), Just(128), Just(192)],
        dtype in 0u32..3,
        seed: u64,
    ) {
        let geometry = Geometry { q_heads: ratio * kv_heads, kv_heads, head_dim, page_size, ..GEOMETRY };
        let shape = Shape { prefix, groups, own, outsider };
        match Dtype::from_code(dtype) {
            Some(Dtype::F16) => check::<f16>(geometry, &shape, seed),
            Some(Dtype::Bf16) => check::<bf16>(geometry, &shape, seed),
            _ => check::<f32>(geometry, &shape, seed),
        }
    }
}

#[test]
fn a_prefix_is_one_pack_for_all_queries_and_still_exact() {
    let own: Vec<u32> = (0..32).map(|request| request % 7 * 5).collect();
    let shape = Shape { prefix: 1000, groups: vec![100, 33], own, outsider: None };
    let parts = Parts::<f16>::new(GEOMETRY, &shape, 1);
    let shared = plan(&parts, &parts.parts[0]);
    let sizes: Vec<usize> = shared.packs().iter().map(|pack| pack.shape.rows as usize).collect();
    assert_eq!(sizes, [32 * GEOMETRY.gqa_ratio() as usize], "the prefix is read for all requests at once");
    let mut backend = CpuBackend::new(2);
    let states: Vec<_> = parts.parts.iter().map(|part| attend(&parts, part, &mut backend)).collect();
    let (output, lse) = merge(&parts, &states);
    parts.check(&output, &lse);
    // Without one of the parts it is not attention over the whole: the check can tell.
    let (output, lse) = merge(&parts, &states[..2]);
    assert!(std::panic::catch_unwind(|| parts.check(&output, &lse)).is_err());
}

#[test]
fn a_part_that_something_else_computed_is_merged_with_a_plans() {
    let shape = Shape { prefix: 100, groups: vec![40], own: vec![3, 0, 17, 64], outsider: Some(2) };
    let parts = Parts::<f32>::new(GEOMETRY, &shape, 2);
    let mut backend = CpuBackend::new(1);
    let mut states: Vec<_> = parts.parts.iter().map(|part| attend(&parts, part, &mut backend)).collect();
    // The part in the middle by another implementation, which leaves garbage where it attended nothing.
    let table = parts.parts[1].table(&parts.geometry);
    let attention = Attention::plain(parts.scale());
    let (output, lse) = reference::decode(&parts.geometry, &table, &parts.query, &cache(&parts), &attention);
    states[1] = (output.iter().map(|&x| x as f32).collect(), lse.iter().map(|&x| x as f32).collect());
    let outsider = 2 * 8 * 64..3 * 8 * 64;
    assert!(states[1].1[2 * 8..3 * 8].iter().all(|&lse| lse == f32::NEG_INFINITY));
    states[1].0[outsider].fill(f32::NAN);
    let (output, lse) = merge(&parts, &states);
    parts.check(&output, &lse);
}
