//! A steady step allocates nothing: planning, from nothing or by changes, and the packed plan that goes up, in memory that has seen the largest
//! batch.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use tilewright_cuda::PackedPlan;
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
use tilewright_plan::{
    FollowingPlanner, Forest, LivePlanner, PackLayout, PageRows, PageTable, Plan, PlanError, PlanOptions,
    Planner, Priced, Prices, Queries, Step,
};

/// Counts what the current thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const GEOMETRY: Geometry =
    Geometry { q_heads: 32, kv_heads: 8, head_dim: 128, page_size: 16, dtype: Dtype::F16 };
const SHARED_PAGES: usize = 4;
const MAX_PAGES: usize = 12;

/// Requests of which each eight share pages, all of them the first two.
fn rows(requests: usize) -> Vec<i32> {
    let page = |request: usize, column: usize| match column {
        0..2 => column,
        2..SHARED_PAGES => 2 + request / 8 * 2 + column,
        _ => 100_000 + request * MAX_PAGES + column,
    };
    (0..requests).flat_map(|request| (0..MAX_PAGES).map(move |column| page(request, column) as i32)).collect()
}

#[test]
fn planning_batches_like_those_before_allocates_nothing() {
    check_steps(256, 100, None);
}

/// Forests of 25 to 49 nodes, whose decisions are compared by exact cost up to 32.
#[test]
fn planning_small_batches_allocates_nothing_either() {
    check_steps(44, 24, None);
}

#[test]
fn planning_several_queries_a_request_allocates_nothing_either() {
    check_steps(256, 100, Some(|request, step| (request + step) % 7));
}

/// Plans many steps twice over, of batches up to the largest and a few requests smaller, with as many queries of a request
/// in a step as this says, or one each.
fn check_steps(largest: usize, fewer: usize, queries_of: Option<fn(u32, u32) -> u32>) {
    let select = |shape: &PackShape| Tile::new(if shape.rows > 16 { 32 } else { 16 }, 64, 2, 2);
    let mut planner = Planner::new(PlanOptions::default());
    let mut packed = PackedPlan::default();
    let mut memory = Queries::default();
    let entries = rows(largest);
    const STEPS: u32 = 50;
    for step in 0..2 * STEPS {
        // The second time round everything was seen once.
        let (steady, step) = (step >= STEPS, step % STEPS);
        let requests = largest - (step as usize * 7) % fewer;
        let seq_lens: Vec<u32> =
            (0..requests as u32).map(|request| 120 + (request * 13 + step * 3) % 70).collect();
        let query_lens: Option<Vec<u32>> =
            queries_of.map(|count| (0..requests as u32).map(|request| count(request, step)).collect());
        let table = PageTable::new(&entries[..requests * MAX_PAGES], MAX_PAGES, &seq_lens, 16).unwrap();
        let before = ALLOCATIONS.with(Cell::get);
        let table = match &query_lens {
            None => table,
            Some(query_lens) => table.with_queries(query_lens, &mut memory).unwrap(),
        };
        let plan = planner.plan(&GEOMETRY, &table, select).unwrap();
        packed.fill(plan);
        if let Some(query_lens) = &query_lens {
            let mut visible = [0; 7 * 256];
            Queries::write_visible(&seq_lens, query_lens, &mut visible[..table.batch()]).unwrap();
            assert!(visible[..table.batch()].iter().copied().eq(table.seq_lens()));
        }
        let made = ALLOCATIONS.with(Cell::get) - before;
        let computed = query_lens.map_or(requests, |lens| lens.iter().filter(|&&count| count > 0).count());
        assert!(plan.segments().len() > computed, "prefixes are runs of their own");
        assert!(!steady || made == 0, "step {step} allocated {made} times");
        assert!(steady || step > 0 || made > 0, "the counter counts");
    }
}

#[test]
fn following_requests_that_grow_allocates_nothing() {
    check_growth::<256>();
}

#[test]
fn following_few_requests_that_grow_allocates_nothing_either() {
    check_growth::<24>();
}

#[test]
fn deciding_across_small_allocates_nothing() {
    let mut sizes = [24, 40].map(|requests| {
        let (entries, seq_lens) = (rows(requests), vec![MAX_PAGES as u32 * 16; requests]);
        let forest = Forest::build(&PageTable::new(&entries, MAX_PAGES, &seq_lens, 16).unwrap());
        let nodes: Vec<u32> = (0..forest.nodes().len() as u32).collect();
        (forest, nodes)
    });
    let [few, many] = &mut sizes;
    assert!(few.1.len() <= 32 && many.1.len() > 32);
    let (layout, prices) = (PackLayout::new(&GEOMETRY), Prices::default());
    let mut priced = Priced::new();
    priced.decide(&few.0, &layout, &prices);
    for round in 0..6 {
        // All nodes of one forest go, and those of the other come, of which some get the same numbers.
        let ((_, gone), (forest, nodes)) = if round % 2 == 0 { (&*few, &*many) } else { (&*many, &*few) };
        let before = ALLOCATIONS.with(Cell::get);
        let flipped = priced.update(forest, nodes, gone, &layout, &prices).len();
        let made = ALLOCATIONS.with(Cell::get) - before;
        assert_eq!(flipped, nodes.len());
        assert!(round < 2 || made == 0, "round {round} allocated {made} times");
        assert!(round > 0 || made > 0, "the counter counts");
    }
}

/// A page that all share, behind it two that 16 share and one that few share: with 4 of these, PAT's packs cost less than any joins.
#[test]
fn planning_and_following_pats_packs_allocates_nothing() {
    let geometry = Geometry { q_heads: 16, kv_heads: 2, head_dim: 64, dtype: Dtype::F32, ..GEOMETRY };
    let options = PlanOptions::default().with_max_concurrent_ctas(1);
    let tile = |_: &PackShape| Tile::of("m64n64w2s2");
    let entries: Vec<i32> = (0..20).flat_map(|request| [[0, 1, 2], [0, 3, -1]][request / 16]).collect();
    let seq_lens: Vec<u32> = (0..20).map(|request| [48, 32][request / 16]).collect();
    let table = PageTable::new(&entries, 3, &seq_lens, 16).unwrap();
    let few = PageTable::new(&entries[..17 * 3], 3, &seq_lens[..17], 16).unwrap();
    let mut planner = Planner::new(options);
    let mut live = LivePlanner::from_table(&geometry, options, &table).unwrap();
    let mut plans_like_pats = 0;
    for round in 0..8 {
        let before = ALLOCATIONS.with(Cell::get);
        let mut read_by_both =
            |plan: &Plan| plans_like_pats += usize::from(plan.merges().is_empty() && plan.packs().len() == 2);
        read_by_both(planner.plan(&geometry, &table, tile).unwrap());
        read_by_both(live.plan(tile).unwrap());
        (17..20).for_each(|request| live.remove(request).unwrap());
        read_by_both(planner.plan(&geometry, &few, tile).unwrap());
        read_by_both(live.plan(tile).unwrap());
        (17..20).for_each(|request| live.add(request, &[0, 3], 32).unwrap());
        let made = ALLOCATIONS.with(Cell::get) - before;
        assert!(round < 2 || made == 0, "round {round} allocated {made} times");
        assert!(round > 0 || made > 0, "the counter counts");
    }
    assert_eq!(plans_like_pats, 8 * 2);
}

/// The same by page tables: in a quarter of the steps a quarter of the requests gains a page, in the others all grow inside theirs. Then a quarter
/// after the other is what it was.
#[test]
fn following_page_tables_of_requests_that_grow_allocates_nothing_either() {
    const REQUESTS: usize = 256;
    const COLUMNS: usize = MAX_PAGES + 20;
    const STEPS: u32 = 80;
    let select = |shape: &PackShape| Tile::new(if shape.rows > 16 { 32 } else { 16 }, 64, 2, 2);
    let own = rows(REQUESTS);
    let mut entries = vec![-1; REQUESTS * COLUMNS];
    for (row, own) in entries.chunks_exact_mut(COLUMNS).zip(own.chunks_exact(MAX_PAGES)) {
        row[..MAX_PAGES].copy_from_slice(own);
        (MAX_PAGES..COLUMNS).for_each(|column| row[column] = row[MAX_PAGES - 1] + (10_000 * column) as i32);
    }
    let begin: [u32; REQUESTS] =
        std::array::from_fn(|request| MAX_PAGES as u32 * 16 - 4 * (request as u32 % 4));
    let mut planner = FollowingPlanner::new(&GEOMETRY, PlanOptions::default()).unwrap();
    let mut packed = PackedPlan::default();
    for round in 0..4 {
        let (before, mut lens, mut steps) = (ALLOCATIONS.with(Cell::get), begin, [0; 3]);
        for step in 0..STEPS + 4 {
            let table = PageRows::dense(&entries, COLUMNS, COLUMNS, &lens, 16).unwrap();
            planner.compare(&table, REQUESTS).unwrap();
            let taken = planner.update(select, |plan, step| {
                steps[step as usize] += 1;
                if step != Step::Lengths {
                    packed.fill(plan);
                }
                Ok::<_, PlanError>(true)
            });
            assert!(taken.unwrap());
            assert_eq!(planner.plan().seq_lens(), lens);
            match step.checked_sub(STEPS) {
                None => lens.iter_mut().for_each(|len| *len += 1),
                Some(quarter) => (quarter as usize..REQUESTS).step_by(4).for_each(|i| lens[i] = begin[i]),
            }
        }
        let made = ALLOCATIONS.with(Cell::get) - before;
        let anew = if round == 0 { 3 } else { 0 };
        assert_eq!(steps[Step::Anew as usize], anew);
        assert!(steps[Step::Changes as usize] >= 20 && steps[Step::Lengths as usize] >= 50, "{steps:?}");
        assert!(round < 2 || made == 0, "round {round} allocated {made} times");
        assert!(round > 0 || made > 0, "the counter counts");
    }
}

/// Requests grow by many pages and are cut to what they were, several times.
fn check_growth<const REQUESTS: usize>() {
    let select = |shape: &PackShape| Tile::new(if shape.rows > 16 { 32 } else { 16 }, 64, 2, 2);
    // Requests grow by this many pages, and then are what they were.
    const PAGES: u32 = 20;
    let (entries, seq_lens) = (rows(REQUESTS), [MAX_PAGES as u32 * 16; REQUESTS]);
    let table = PageTable::new(&entries, MAX_PAGES, &seq_lens, 16).unwrap();
    let mut planner = LivePlanner::from_table(&GEOMETRY, PlanOptions::default(), &table).unwrap();
    let mut packed = PackedPlan::default();
    planner.plan(select).unwrap();
    for round in 0..4 {
        let before = ALLOCATIONS.with(Cell::get);
        for step in 0..PAGES * 4 {
            // A quarter of the requests at each step, and all others inside their pages: one by one, or all at once.
            let mut lengths = [0; REQUESTS];
            for (request, length) in (0..).zip(&mut lengths) {
                let tokens = planner.tokens(request).unwrap();
                *length = if tokens.is_multiple_of(16) { tokens } else { tokens + 1 };
                if request % 4 == step % 4 {
                    let page = 200_000 + (request * PAGES + step / 4) as i32;
                    *length = tokens.next_multiple_of(16) + 1;
                    planner.append(request, &[page], *length).unwrap();
                } else if step % 2 == 0 {
                    planner.grow(request, *length).unwrap();
                }
            }
            planner.grow_all(&lengths).unwrap();
            packed.fill(planner.plan(select).unwrap());
        }
        assert!(planner.last().largest_page() > Some(200_000 + REQUESTS as i32 * PAGES as i32 - 2));
        for request in 0..REQUESTS as u32 {
            planner.truncate(request, MAX_PAGES as u32, seq_lens[0]).unwrap();
        }
        packed.fill(planner.plan(select).unwrap());
        let made = ALLOCATIONS.with(Cell::get) - before;
        assert!(round < 2 || made == 0, "round {round} allocated {made} times");
        assert!(round > 0 || made > 0, "the counter counts");
    }
}
