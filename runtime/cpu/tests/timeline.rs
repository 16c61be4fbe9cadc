//! What a step records of itself.

use tilewright_cpu::{CpuBackend, DecodeArgs, KvCache};
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
use tilewright_plan::{KvStrides, PageTable, Plan, PlanOptions};

#[test]
fn every_share_of_every_item_is_recorded_once() {
    let geometry = Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F32 };
    let entries: Vec<i32> = (0..64).collect();
    let seq_lens = [40, 16, 256, 128];
    let table = PageTable::new(&entries, 16, &seq_lens, 16).unwrap();
    let tile = |warps| Tile::new(2, 16, warps, 1);
    let select = |shape: &PackShape| if shape.kv_len > 100 { tile(3) } else { tile(1) };
    let plan = Plan::build(&geometry, &table, &PlanOptions::default(), select).unwrap();
    let (pages, query) = (vec![0.5f32; 64 * 16 * 2 * 64], vec![0.25f32; 4 * 4 * 64]);
    let mut backend = CpuBackend::new(3);
    let mut outputs = [vec![0.0f32; query.len()], vec![1.0; query.len()]];
    let mut units = Vec::new();
    for (recorded, output) in [false, true].into_iter().zip(&mut outputs) {
        let cache = KvCache { keys: &pages, values: &pages, strides: KvStrides::nhd(&geometry) };
        let args = DecodeArgs { scale: Some(0.125), ..DecodeArgs::new(&query, cache, output) };
        match recorded {
            false => backend.decode(&plan, args).unwrap(),
            true => units = backend.record(&plan, args).unwrap(),
        }
    }
    assert_eq!(outputs[0], outputs[1]);

    let mut expected = Vec::new();
    for group in plan.tile_groups() {
        let shares = u32::from(group.tile.warps);
        let of = |item| (0..2).flat_map(move |head| (0..shares).map(move |share| (item, head, share)));
        expected.extend(group.items.clone().flat_map(of));
    }
    assert!(expected.iter().any(|&(_, _, share)| share == 2), "some items are shared");
    expected.sort_unstable();
    let found: Vec<_> = units.iter().map(|unit| (unit.item, unit.kv_head, unit.share)).collect();
    assert_eq!(found, expected);
    assert_eq!(units.iter().map(|unit| unit.begin).min(), Some(0));
    for unit in &units {
        assert!(unit.begin <= unit.computed && unit.computed <= unit.end && unit.thread < 3, "{unit:?}");
    }
    for thread in 0..3 {
        let mut own: Vec<_> = units.iter().filter(|unit| unit.thread == thread).collect();
        own.sort_unstable_by_key(|unit| (unit.begin, unit.end));
        assert!(own.is_sorted_by(|a, b| a.end <= b.begin), "{own:?}");
    }
}
