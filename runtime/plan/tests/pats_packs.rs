//! Small forests that cost less with PAT's packs than with any joins: `Packing::Priced` takes these, from a page table and step by step.

mod live;

use live::{Engine, canonical, tile};
use tilewright_cpu::CpuBackend;
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
use tilewright_plan::{
    DeviceProfile, Forest, LivePlanner, PackLayout, Packing, PageTable, Plan, PlanOptions, PlannedPack,
    Planner, Priced, Split,
};

const GEOMETRY: Geometry =
    Geometry { q_heads: 16, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F32 };
/// So few CTAs that tiles may be tall.
const OPTIONS: PlanOptions =
    PlanOptions { packing: Packing::Priced, split: Split::Waves, device: DeviceProfile::H200 }
        .with_max_concurrent_ctas(1);
/// Nodes of the largest forest that is compared with PAT's packs.
const SMALL: usize = 32;

/// A page that all share; behind it two that `many` share, and one that `few` share.
///
/// With 16 and 4, a tile of 128 rows holds the many at once. Joined with the few, these fill it to a quarter in a Q tile of their own;
/// apart, each of the few leaves two partials. PAT's packs read the first page once more instead, with a low tile.
fn engine(many: usize, few: usize, seed: u64) -> Engine {
    let mut engine = Engine::new(&GEOMETRY, OPTIONS, 64, seed);
    let first = engine.admit(Vec::new(), 3, 0);
    (1..many).for_each(|_| engine.fork(first));
    let shared = engine.rows[&first].0[..1].to_vec();
    let second = engine.admit(shared, 1, 0);
    (1..few).for_each(|_| engine.fork(second));
    engine
}

/// Whether PAT's packs cost less than the best of all joins.
fn prefers_pat(engine: &Engine) -> bool {
    let (entries, max_pages, seq_lens) = engine.entries();
    let table = PageTable::new(&entries, max_pages, &seq_lens, GEOMETRY.page_size).unwrap();
    let layout = PackLayout::new(&GEOMETRY).for_batch(table.batch(), &OPTIONS.device);
    let mut priced = Priced::new();
    priced.decide(&Forest::build(&table), &layout, &OPTIONS.device.prices);
    priced.prefers_pat()
}

/// Plans, compares with plans from nothing, and says whether the packs are PAT's.
fn check(engine: &mut Engine, planner: &mut Planner) -> bool {
    engine.planner.plan(tile).unwrap();
    let live = engine.planner.last();
    engine.check_cheaply(live);
    live::check_garbage(live);
    let found = canonical(live);
    assert_eq!(found, canonical(engine.rebuild(&GEOMETRY, planner)));
    let is_pat = prefers_pat(engine);
    if is_pat {
        let mut pat = Planner::new(PlanOptions { packing: Packing::Pat, ..OPTIONS });
        assert_eq!(found, canonical(engine.rebuild(&GEOMETRY, &mut pat)));
    }
    is_pat
}

#[test]
fn a_forest_that_is_cheaper_with_pats_packs_has_these() {
    let mut engine = engine(16, 4, 1);
    assert!(check(&mut engine, &mut Planner::new(OPTIONS)));
    // The first page twice, with 16 and with 4 requests, and nothing to merge.
    let plan = engine.planner.last();
    let has_tokens = |pack: &&PlannedPack| plan.q_tiles_of(pack).iter().any(|q_tile| q_tile.kv_len > 0);
    let packs = plan.packs().iter().filter(has_tokens);
    let packs: Vec<(u32, u32)> = packs.map(|pack| (pack.shape.rows, pack.shape.kv_len)).collect();
    assert_eq!(packs, [(128, 48), (32, 32)]);
    assert!(plan.merges().is_empty());
}

#[test]
fn what_is_computed_by_pats_packs_is_right() {
    let mut backend = CpuBackend::new(2);
    for (seed, packs) in [(16, 4), (16, 5), (15, 4)].into_iter().enumerate() {
        let mut engine = engine(packs.0, packs.1, seed as u64);
        assert!(check(&mut engine, &mut Planner::new(OPTIONS)), "{packs:?}");
        engine.check_executed(&mut backend);
        // Requests that leave the pack above.
        let slots: Vec<u32> = engine.rows.keys().copied().collect();
        engine.grow_by(slots[3], 1);
        engine.grow_by(slots[17], 20);
        engine.planner.plan(tile).unwrap();
        engine.check_executed(&mut backend);
    }
}

#[test]
fn a_live_plan_takes_pats_packs_and_leaves_them() {
    let (mut steps, mut into, mut out, mut followed) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut engine = engine(16, 4, seed);
        let mut planner = Planner::new(OPTIONS);
        let mut was_pat = check(&mut engine, &mut planner);
        for _ in 0..40 {
            let slots: Vec<u32> = engine.rows.keys().copied().collect();
            let slot = slots[engine.random.index(slots.len())];
            match engine.random.below(40) {
                0..20 if slots.len() < 21 => engine.fork(slot),
                0..38 if slots.len() > 19 => engine.depart(slot),
                38 => engine.grow(slot),
                39 => engine.step(),
                _ => {}
            }
            let is_pat = check(&mut engine, &mut planner);
            steps += 1;
            into += usize::from(is_pat && !was_pat);
            out += usize::from(was_pat && !is_pat);
            followed += usize::from(was_pat && is_pat);
            was_pat = is_pat;
        }
    }
    println!("{steps} steps: {into} into PAT's packs, {out} out of them, {followed} from one to the next");
    assert!(into > 20 && out > 50 && followed > 100, "{into} {out} {followed}");
}

#[test]
fn a_forest_leaves_pats_packs_and_comes_back() {
    let (mut engine, mut planner) = (engine(16, 4, 3), Planner::new(OPTIONS));
    let mut alone = Vec::new();
    assert!(check(&mut engine, &mut planner));
    for round in 0..3 {
        // Three nodes, and one for each that comes.
        while alone.len() + 3 <= SMALL {
            alone.push(engine.admit(Vec::new(), 1, 0));
            assert_eq!(check(&mut engine, &mut planner), alone.len() + 3 <= SMALL, "{round}");
        }
        while let Some(slot) = alone.pop() {
            engine.depart(slot);
            assert_eq!(check(&mut engine, &mut planner), alone.len() + 3 <= SMALL, "{round}");
        }
    }
}

#[test]
fn growth_inside_pages_asks_no_selector_about_pats_packs() {
    let row = |request: u32| if request < 16 { vec![0, 1, 2] } else { vec![0, 3] };
    let mut planner = LivePlanner::new(&GEOMETRY, OPTIONS).unwrap();
    for request in 0..20 {
        let pages = row(request);
        planner.add(request, &pages, pages.len() as u32 * 16 - 9).unwrap();
    }
    let asked = std::cell::Cell::new(0);
    let tile = |shape: &PackShape| -> Tile {
        asked.set(asked.get() + 1);
        tile(shape)
    };
    assert_eq!(planner.plan(tile).unwrap().packs().len(), 2);
    assert_eq!(asked.replace(0), 2);
    (0..20).for_each(|request| planner.grow(request, row(request).len() as u32 * 16 - 3).unwrap());
    let seq_lens: Vec<u32> = (0..20).map(|request| row(request).len() as u32 * 16 - 3).collect();
    assert_eq!(planner.plan(tile).unwrap().seq_lens(), seq_lens);
    assert_eq!(asked.get(), 0);
    let entries: Vec<i32> =
        (0..20).flat_map(|request| row(request).into_iter().chain([-1]).take(3)).collect();
    let table = PageTable::new(&entries, 3, &seq_lens, 16).unwrap();
    let built = Plan::build(&GEOMETRY, &table, &OPTIONS, tile).unwrap();
    assert_eq!(canonical(planner.last()), canonical(&built));
}
