//! `LivePlanner` against `Plan::build`, after every few of many random changes; what it refuses; another thread.

mod live;

use live::{Engine, canonical, geometry, refused, tile};
use proptest::prelude::*;
use tilewright_cpu::CpuBackend;
use tilewright_heuristics::{BatchShape, Dtype, Geometry, PackShape, Tile, TileSet};
use tilewright_plan::{
    ChooseTiles, ForestError, LiveError, LivePlanner, Packing, PageTable, Plan, PlanError, PlanOptions,
    Planner, Prices, Queries, Split,
};

/// Partials cheap, as they are, and dear; reading again cheap and dear: packs small and large. Merging at all for nothing, and dear.
fn prices() -> impl Strategy<Value = Prices> {
    let default = Prices::default();
    prop::sample::select(vec![
        default,
        Prices { partial_byte: default.partial_byte / 64, ..default },
        Prices { partial_byte: default.partial_byte * 4, l2_byte: default.l2_byte / 16, ..default },
        Prices { l2_byte: default.l2_byte * 16, cta: default.cta * 8, ..default },
        Prices { merge: 0, ..default },
        Prices { merge: default.merge * 64, ..default },
    ])
}

fn options() -> impl Strategy<Value = PlanOptions> {
    let splits = prop::sample::select(vec![Split::None, Split::Mean, Split::Fill, Split::Waves]);
    let products = prop::sample::select(vec![0, 128, 8192]);
    let slots = prop::sample::select(vec![2, 7, 264]);
    (splits, slots, prices(), products).prop_map(|(split, slots, prices, products)| {
        let mut options = PlanOptions { packing: Packing::Priced, split, ..PlanOptions::default() }
            .with_max_concurrent_ctas(slots)
            .with_prices(prices);
        options.device.products_over_peak = products;
        options
    })
}

proptest! {
    #[test]
    fn a_plan_that_was_patched_is_that_of_a_rebuild(
        seed: u64,
        gqa_ratio in prop::sample::select(vec![1, 3, 4, 8, 40]),
        page_size in prop::sample::select(vec![1, 16, 32, 128]),
        options in options(),
        most in prop::sample::select(vec![3, 12, 60]),
    ) {
        let geometry = geometry(gqa_ratio, page_size);
        let mut engine = Engine::new(&geometry, options, most, seed);
        let mut planner = Planner::new(options);
        for _ in 0..60 {
            for _ in 0..=engine.random.below(4) {
                engine.step();
            }
            engine.planner.plan(tile).unwrap();
            let live = engine.planner.last();
            engine.check_cheaply(live);
            live::check_garbage(live);
            prop_assert_eq!(canonical(live), canonical(engine.rebuild(&geometry, &mut planner)));
        }
    }

    #[test]
    fn where_requests_only_grow_the_plan_is_that_of_a_rebuild_too(
        seed: u64,
        gqa_ratio in prop::sample::select(vec![1, 4, 8]),
        page_size in prop::sample::select(vec![1, 16, 32]),
        options in options(),
    ) {
        let geometry = geometry(gqa_ratio, page_size);
        let mut engine = Engine::new(&geometry, options, 40, seed);
        (0..60).for_each(|_| engine.step());
        let mut planner = Planner::new(options);
        for _ in 0..60 {
            let slots: Vec<u32> = engine.rows.keys().copied().collect();
            for slot in slots {
                if engine.random.below(3) == 0 {
                    engine.grow(slot);
                }
            }
            engine.planner.plan(tile).unwrap();
            prop_assert_eq!(canonical(engine.planner.last()), canonical(engine.rebuild(&geometry, &mut planner)));
        }
    }

    #[test]
    fn growing_all_at_once_is_growing_one_by_one(
        seed: u64,
        page_size in prop::sample::select(vec![1, 3, 16, 24, 32, 128]),
        most in prop::sample::select(vec![3, 12, 60]),
    ) {
        let mut engine = Engine::new(&geometry(4, page_size), PlanOptions::default(), most, seed);
        for _ in 0..40 {
            (0..=engine.random.below(6)).for_each(|_| engine.step());
            // Of some batches all requests stay on their last pages; of others some go back to earlier ones, or on to later ones that they
            // have already or not, or come to have tokens or none.
            let far = engine.random.below(3) == 0;
            let mut tokens = vec![0; engine.planner.plan(tile).unwrap().batch()];
            for (&slot, (row, before)) in &engine.rows {
                let first = before.saturating_sub(1) / page_size * page_size;
                let of_page = if row.is_empty() { 0 } else { engine.random.below(page_size.into()) as u32 + 1 };
                tokens[slot as usize] = match engine.random.below(if far { 8 } else { 1 }) {
                    7 => engine.random.below(2 + row.len() as u64 * u64::from(page_size)) as u32,
                    6 => *before,
                    _ => first + of_page,
                };
            }
            if far && engine.random.below(8) == 0 && let Some(last) = tokens.last_mut() {
                *last = u32::MAX - *last;
            }
            let mut one_by_one = engine.planner.clone();
            let slots = (0..).zip(&tokens);
            let refused = slots
                .filter(|(slot, tokens)| **tokens > 0 || one_by_one.tokens(*slot).is_some())
                .map(|(slot, tokens)| (slot, *tokens))
                .collect::<Vec<_>>()
                .into_iter()
                .find_map(|(slot, tokens)| one_by_one.grow(slot, tokens).err());
            let mut at_once = engine.planner.clone();
            prop_assert_eq!(at_once.grow_all(&tokens).err(), refused.clone());
            let expected = if refused.is_some() { &mut engine.planner } else { &mut one_by_one };
            prop_assert_eq!(canonical(at_once.plan(tile).unwrap()), canonical(expected.plan(tile).unwrap()));
            prop_assert_eq!(at_once.last().seq_lens(), expected.last().seq_lens());
        }
    }
}

/// What the host computes by a plan with entries that are no longer needed, against f64.
#[test]
fn unequal_chunks_are_followed() {
    // Requests of as many query heads as a tile has rows are a Q tile each, so that there are several to share few CTA slots.
    let geometry = geometry(16, 16);
    let default = Prices::default();
    let (cta, partial_byte) = (default.cta / 16, default.partial_byte / 64);
    let mut uneven = 0;
    for (seed, slots) in (0..40).zip([5, 9, 14, 23].into_iter().cycle()) {
        let options = PlanOptions::default().with_max_concurrent_ctas(slots).with_prices(Prices {
            cta,
            partial_byte,
            merge: 0,
            ..default
        });
        let mut engine = Engine::new(&geometry, options, 12, seed);
        let mut planner = Planner::new(options);
        for step in 0..60 {
            engine.step();
            let requests: Vec<u32> = engine.rows.keys().copied().collect();
            for request in requests {
                // Many tokens now and then, few in between: plans from nothing and patched ones.
                let most = if step % 4 == 0 { 1_200 } else { 20 };
                let more = 1 + engine.random.below(most) as u32;
                engine.grow_by(request, more);
            }
            engine.planner.plan(tile).unwrap();
            let live = engine.planner.last();
            uneven += u32::from(live::is_cut_unevenly(live));
            assert_eq!(canonical(live), canonical(engine.rebuild(&geometry, &mut planner)), "{seed}");
        }
    }
    assert!(uneven > 50, "{uneven} plans of 2400 have unequal chunks");
}

#[test]
fn a_plan_that_was_patched_can_be_executed() {
    let geometry = Geometry { dtype: Dtype::F32, ..geometry(4, 16) };
    let mut engine = Engine::new(&geometry, PlanOptions::default().with_max_concurrent_ctas(7), 24, 5);
    let mut backend = CpuBackend::new(2);
    let (mut patched, mut executed) = (0, 0);
    for step in 0..400 {
        engine.step();
        let plan = engine.planner.plan(tile).unwrap();
        let needed: usize = plan.packs().iter().map(|pack| pack.q_tiles.len()).sum();
        if step % 10 > 0 || plan.batch() == 0 {
            continue;
        }
        patched += usize::from(plan.q_tiles().len() > needed);
        executed += 1;
        engine.check_executed(&mut backend);
    }
    assert!(
        patched > 5 && executed > 30,
        "{patched} of {executed} plans have entries that are no longer needed"
    );
}

fn small() -> LivePlanner {
    let mut planner = LivePlanner::new(&geometry(4, 16), PlanOptions::default()).unwrap();
    planner.add(0, &[1, 2], 32).unwrap();
    planner.add(1, &[1, 3], 20).unwrap();
    planner
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut planner = small();
    let before = canonical(planner.plan(tile).unwrap());
    let tokens = |request, tokens, pages| LiveError::Tokens { request, tokens, pages, page_size: 16 };
    let unknown = |request| LiveError::Forest(ForestError::UnknownRequest { request });
    assert_eq!(refused(planner.add(2, &[1, 4], 33)), tokens(2, 33, 2));
    assert_eq!(
        refused(planner.add(2, &[1, -4], 32)),
        ForestError::NegativePage { request: 2, column: 1, page: -4 }.into()
    );
    assert_eq!(refused(planner.add(1, &[1], 16)), ForestError::RequestPresent { request: 1 }.into());
    assert_eq!(refused(planner.add(2, &[1, 4], 0)), tokens(2, 0, 2));
    assert_eq!(refused(planner.append(1, &[4], 49)), tokens(1, 49, 3));
    assert_eq!(refused(planner.append(5, &[4], 32)), unknown(5));
    assert_eq!(refused(planner.grow(0, 33)), tokens(0, 33, 2));
    assert_eq!(refused(planner.grow(9, 1)), unknown(9));
    assert_eq!(refused(planner.grow_all(&[31, 33])), tokens(1, 33, 2));
    assert_eq!(refused(planner.grow_all(&[31, 0])), tokens(1, 0, 2));
    assert_eq!(refused(planner.grow_all(&[31])), LiveError::Targets { found: 1, needed: 2 });
    assert_eq!(refused(planner.truncate(0, 1, 17)), tokens(0, 17, 1));
    assert_eq!(
        refused(planner.truncate(0, 3, 48)),
        ForestError::Truncate { request: 0, pages: 2, kept: 3 }.into()
    );
    assert_eq!(refused(planner.remove(7)), unknown(7));
    assert_eq!(refused(planner.rename(7, 8)), unknown(7));
    assert_eq!(refused(planner.rename(0, 1)), ForestError::RequestPresent { request: 1 }.into());
    assert_eq!((planner.tokens(0), planner.tokens(1), planner.tokens(2)), (Some(32), Some(20), None));
    assert_eq!(canonical(planner.plan(tile).unwrap()), before);
}

#[test]
fn tokens_on_the_last_countable_page_are_counted() {
    let mut planner = small();
    planner.add(2, &[], 0).unwrap();
    planner.plan(tile).unwrap();
    let error = LiveError::Tokens { request: 2, tokens: u32::MAX, pages: 0, page_size: 16 };
    assert_eq!(refused(planner.grow_all(&[32, 20, u32::MAX])), error);
    planner.grow_all(&[31, 21, 0]).unwrap();
    assert_eq!(planner.plan(tile).unwrap().seq_lens(), [31, 21, 0]);
}

#[test]
fn layouts_packings_and_tables_that_do_not_fit_are_refused() {
    let options = PlanOptions { packing: Packing::Pat, ..PlanOptions::default() };
    let refused = |geometry, options| LivePlanner::new(&geometry, options).map(drop).unwrap_err();
    assert_eq!(refused(geometry(4, 16), options), LiveError::Packing(Packing::Pat));
    let wide = refused(geometry(70_000, 16), PlanOptions::default());
    assert_eq!(wide, LiveError::Plan(PlanError::GqaRatio(70_000)));
    assert!(matches!(
        refused(geometry(4, 0), PlanOptions::default()),
        LiveError::Plan(PlanError::Geometry(_))
    ));
    let table = PageTable::new(&[1], 1, &[3], 16).unwrap();
    let error = LivePlanner::from_table(&geometry(4, 32), PlanOptions::default(), &table).unwrap_err();
    assert_eq!(error, LiveError::Plan(PlanError::PageSize { table: 16, geometry: 32 }));
}

#[test]
fn after_a_batch_that_was_too_large_the_planner_still_works() {
    // Two pages of 2^30 tokens are more than 31 bits of tokens.
    let geometry = geometry(4, 1 << 30);
    let mut planner = LivePlanner::new(&geometry, PlanOptions::default()).unwrap();
    planner.add(0, &[5], 7).unwrap();
    planner.plan(tile).unwrap();
    planner.append(0, &[6], 1 << 31).unwrap();
    assert!(matches!(planner.plan(tile), Err(PlanError::TooLarge(_))));
    assert!(matches!(planner.plan(tile), Err(PlanError::TooLarge(_))), "still too large");
    assert_eq!((planner.last().batch(), planner.last().work_items().len()), (0, 0));
    planner.truncate(0, 1, 9).unwrap();
    planner.add(1, &[5], 7).unwrap();
    let table = PageTable::new(&[5, 5], 1, &[9, 7], 1 << 30).unwrap();
    let built = Plan::build(&geometry, &table, &PlanOptions::default(), tile).unwrap();
    assert_eq!(canonical(planner.plan(tile).unwrap()), canonical(&built));
}

#[test]
fn a_planner_can_start_from_a_batch_and_be_emptied() {
    let (geometry, options) = (geometry(4, 16), PlanOptions::default());
    let table = PageTable::new(&[1, 2, 1, 3], 2, &[32, 20], 16).unwrap();
    let built = canonical(&Plan::build(&geometry, &table, &options, tile).unwrap());
    let mut planner = LivePlanner::from_table(&geometry, options, &table).unwrap();
    assert_eq!(canonical(planner.plan(tile).unwrap()), built);
    planner.append(1, &[7], 33).unwrap();
    let grown = PageTable::new(&[1, 2, -1, 1, 3, 7], 3, &[32, 33], 16).unwrap();
    let grown = canonical(&Plan::build(&geometry, &grown, &options, tile).unwrap());
    assert_eq!(canonical(planner.plan(tile).unwrap()), grown);
    planner.clear();
    assert_eq!(
        planner.plan(tile).unwrap(),
        &Plan::build(&geometry, &PageTable::new(&[], 0, &[], 16).unwrap(), &options, tile).unwrap()
    );
    planner.add(0, &[1, 2], 32).unwrap();
    planner.add(1, &[1, 3], 20).unwrap();
    assert_eq!(canonical(planner.plan(tile).unwrap()), built);
}

#[test]
fn queries_of_a_request_are_slots_of_their_own() {
    let (geometry, options) = (geometry(4, 16), PlanOptions::default());
    let mut queries = Queries::default();
    let table = PageTable::new(&[1, 2, 3, 1, 4, -1], 3, &[34, 20], 16).unwrap();
    let table = table.with_queries(&[3, 1], &mut queries).unwrap();
    let built = canonical(&Plan::build(&geometry, &table, &options, tile).unwrap());
    let mut planner = LivePlanner::new(&geometry, options).unwrap();
    for query in 0..table.batch() {
        planner.add(query as u32, table.pages(query), table.seq_len(query)).unwrap();
    }
    assert_eq!(canonical(planner.plan(tile).unwrap()), built);
    assert_eq!(planner.last().seq_lens(), [32, 33, 34, 20]);
}

#[test]
fn growth_inside_pages_asks_no_selector_and_stores_the_lengths() {
    let mut planner = small();
    planner.plan(tile).unwrap();
    planner.grow(1, 25).unwrap();
    let asked = |_: &PackShape| -> Tile { panic!("no pack is another one") };
    assert_eq!(planner.plan(asked).unwrap().seq_lens(), [32, 25]);
    planner.grow_all(&[30, 26]).unwrap();
    assert_eq!(planner.plan(asked).unwrap().seq_lens(), [30, 26]);
}

#[test]
fn the_next_step_can_be_planned_by_another_thread() {
    let mut planner = small();
    let here = canonical(planner.plan(tile).unwrap());
    let mut planner = std::thread::spawn(move || {
        planner.append(0, &[9], 33).unwrap();
        planner.plan(tile).unwrap();
        planner
    })
    .join()
    .unwrap();
    assert_eq!(planner.last().largest_page(), Some(9));
    planner.truncate(0, 2, 32).unwrap();
    assert_eq!(canonical(planner.plan(tile).unwrap()), here);
}

const LOW: Tile = Tile::of("m16n64w4s2");
const TALL: Tile = Tile::of("m64n64w4s2");

/// A low tile for batches of fewer than 64 requests, a tall one for others; and what it was asked about.
#[derive(Default)]
struct Deciding {
    tile: Option<Tile>,
    asked: Vec<u32>,
}

impl ChooseTiles for &mut Deciding {
    fn batch(&mut self, batch: &BatchShape) -> Option<[Tile; TileSet::MOST]> {
        let tile = if batch.requests < 64 { LOW } else { TALL };
        self.tile = Some(tile);
        self.asked.push(batch.requests);
        Some([tile; TileSet::MOST])
    }

    fn pack(&mut self, _: &PackShape) -> Tile {
        self.tile.expect("the batch comes first")
    }
}

#[test]
fn a_batch_that_changes_a_little_keeps_its_tiles() {
    let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
    let mut planner = LivePlanner::new(&geometry, PlanOptions::default()).unwrap();
    let mut deciding = Deciding::default();
    let tile = |plan: &Plan| {
        let tiles: Vec<Tile> = plan.tile_groups().iter().map(|group| group.tile).collect();
        assert_eq!(tiles.len(), 1, "one decision a batch");
        tiles[0]
    };
    for request in 0..60 {
        planner.add(request, &[0, 1 + request as i32], 20).unwrap();
    }
    assert_eq!(tile(planner.plan(&mut deciding).unwrap()), LOW);
    // A tenth more: another answer if it were asked from nothing, but no other batch.
    for request in 60..66 {
        planner.add(request, &[0, 1 + request as i32], 20).unwrap();
        assert_eq!(tile(planner.plan(&mut deciding).unwrap()), LOW, "{request}");
    }
    assert!(deciding.asked.iter().all(|&requests| requests == 60), "{:?}", deciding.asked);
    for request in 66..80 {
        planner.add(request, &[0, 1 + request as i32], 20).unwrap();
        planner.plan(&mut deciding).unwrap();
    }
    assert_eq!(tile(planner.last()), TALL);
    // And back only when it has become smaller by as much again.
    for request in (62..80).rev() {
        planner.remove(request).unwrap();
        planner.plan(&mut deciding).unwrap();
    }
    let changes = deciding.asked.windows(2).filter(|pair| (pair[0] < 64) != (pair[1] < 64)).count();
    assert!(changes <= 2, "{:?}", deciding.asked);
}
