//! `FollowingPlanner` against `Plan::build`, over page tables of random engines: whatever changes between them, and whatever is not taken.

mod live;

use live::{Canonical, Engine, Random, canonical, geometry, tile};
use proptest::prelude::*;
use tilewright_heuristics::{BatchShape, Geometry, PackShape, Tile, TileSet};
use tilewright_plan::{
    ChooseTiles, FollowingPlanner, LengthsError, Packing, PageRows, PageTable, Plan, PlanError, PlanOptions,
    Queries, Split, Step, UNTOUCHED,
};

/// Pages and tokens of each request.
type Rows = Vec<(Vec<i32>, u32)>;

/// A page table with columns behind the pages, and rows behind the requests if there are fewer than the plan has.
struct Table {
    entries: Vec<i32>,
    columns: usize,
    stride: usize,
    seq_lens: Vec<u32>,
}

impl Table {
    fn of(rows: &Rows, random: &mut Random) -> Self {
        let columns = rows.iter().map(|(pages, _)| pages.len()).max().unwrap_or(0);
        let stride = columns + random.index(3);
        let garbage = [-1, 0, i32::MIN, 7][random.index(4)];
        let mut entries = vec![garbage; rows.len() * stride];
        for ((pages, _), row) in rows.iter().zip(entries.chunks_exact_mut(stride.max(1))) {
            row[..pages.len()].copy_from_slice(pages);
        }
        Self { entries, columns, stride, seq_lens: rows.iter().map(|(_, tokens)| *tokens).collect() }
    }

    fn rows(&self, page_size: u32) -> PageRows<'_> {
        PageRows::dense(&self.entries, self.columns, self.stride, &self.seq_lens, page_size).unwrap()
    }
}

/// Each token of each request is read once, from its own page, and each request is written once or merged.
fn check_covers(plan: &Plan, rows: &Rows) {
    let page_size = plan.geometry().page_size;
    let mut seen: Vec<Vec<Option<i32>>> = rows.iter().map(|(pages, _)| vec![None; pages.len()]).collect();
    let mut tokens = vec![0; rows.len()];
    let mut written = vec![0u32; rows.len()];
    let mut walked = std::collections::BTreeSet::new();
    for item in plan.work_items() {
        if !walked.insert((item.q_tile, item.kv_range.start)) {
            continue; // another slice of the rows
        }
        let members = plan.requests_of(item.q_tile);
        for segment in &plan.segments()[item.segments.start as usize..item.segments.end as usize] {
            let begin = segment.kv_range.start.max(item.kv_range.start);
            let end = segment.kv_range.end.min(item.kv_range.end);
            for member in &members[segment.members.start as usize..segment.members.end as usize] {
                tokens[*member as usize] += u64::from(end - begin);
                for token in (begin..end).step_by(page_size as usize) {
                    let offset = token - segment.kv_range.start;
                    let column = (segment.position + offset) / page_size;
                    let page = plan.pages()[(segment.pages + offset / page_size) as usize];
                    seen[*member as usize][column as usize] = Some(page);
                }
            }
        }
        for (target, &request) in plan.targets()[item.targets as usize..].iter().zip(members) {
            written[request as usize] += u32::from(target.partial != UNTOUCHED);
        }
    }
    let mut partials = vec![1; rows.len()];
    for merge in plan.merges() {
        partials[merge.request as usize] = merge.partial_end - merge.partial_begin;
    }
    assert_eq!(written, partials);
    for (request, (pages, _)) in rows.iter().enumerate() {
        assert_eq!(tokens[request], pages.len() as u64 * u64::from(page_size), "request {request}");
        assert!(seen[request].iter().copied().eq(pages.iter().copied().map(Some)), "request {request}");
    }
    assert!(plan.seq_lens().iter().eq(rows.iter().map(|(_, tokens)| tokens)));
}

fn built(geometry: &Geometry, rows: &Rows, options: &PlanOptions, choose: impl ChooseTiles) -> Plan {
    let table = Table::of(rows, &mut Random::new(1));
    let table = PageTable::new(&table.entries, table.stride, &table.seq_lens, geometry.page_size).unwrap();
    Plan::build(geometry, &table, options, choose).unwrap()
}

/// What an engine does to its rows between two steps that is no change of one request: they move up where one is gone, swap places, are put in
/// another order, lose what is behind a window, or wait without tokens.
#[derive(Default)]
struct Scheduler {
    order: Vec<u32>,
    /// Requests whose first pages are page 0.
    windowed: std::collections::BTreeMap<u32, usize>,
}

impl Scheduler {
    fn rows(&mut self, engine: &mut Engine) -> Rows {
        self.order.retain(|slot| engine.rows.contains_key(slot));
        self.windowed.retain(|slot, _| engine.rows.contains_key(slot));
        for slot in engine.rows.keys() {
            if !self.order.contains(slot) {
                self.order.push(*slot);
            }
        }
        let (random, count) = (&mut engine.random, self.order.len());
        if count > 1 {
            match random.below(16) {
                0 => self.order.reverse(),
                1 => self.order.rotate_left(1),
                2 | 3 => self.order.swap(random.index(count), random.index(count)),
                4 => {
                    let slot = self.order[random.index(count)];
                    let pages = engine.rows[&slot].0.len();
                    self.windowed.insert(slot, random.index(pages + 1));
                }
                _ => {}
            }
        }
        let preempted = (random.below(8) == 0 && count > 0).then(|| self.order[random.index(count)]);
        let of = |slot: &u32| {
            let (pages, tokens) = &engine.rows[slot];
            let mut pages = pages.clone();
            let behind =
                self.windowed.get(slot).map_or(0, |&behind| behind.min(pages.len().saturating_sub(1)));
            pages[..behind].fill(0);
            if preempted == Some(*slot) { (Vec::new(), 0) } else { (pages, *tokens) }
        };
        self.order.iter().map(of).collect()
    }
}

/// The plan, and the rows, by the numbers that the planner knows requests by.
fn of_numbers(planner: &FollowingPlanner, rows: &Rows) -> (Canonical, Rows) {
    let mut of_numbers: Vec<Option<(Vec<i32>, u32)>> = vec![None; rows.len()];
    for (row, &number) in rows.iter().zip(planner.numbers()) {
        assert_eq!(of_numbers[number as usize].replace(row.clone()), None, "two rows have one number");
    }
    let rows = of_numbers.into_iter().map(|row| row.expect("each row has a number")).collect();
    (canonical(planner.plan()).renamed(planner.numbers()), rows)
}

/// Numbers rows by what was written to them; every seventh write is not counted.
#[derive(Default)]
struct Written(std::collections::HashMap<Vec<i32>, u64>);

impl Written {
    fn numbers(&mut self, rows: &Rows) -> Vec<u64> {
        let number = |(pages, _): &(Vec<i32>, u32)| {
            let next = self.0.len() as u64 + 1;
            let number = *self.0.entry(pages.clone()).or_insert(next);
            if number.is_multiple_of(7) { 0 } else { number }
        };
        rows.iter().map(number).collect()
    }
}

fn options() -> impl Strategy<Value = PlanOptions> {
    let splits =
        prop::sample::select(vec![Split::None, Split::Mean, Split::Fill, Split::Waves, Split::Invariant]);
    let products = prop::sample::select(vec![0, 8192]);
    (splits, prop::sample::select(vec![2, 7, 264]), products).prop_map(|(split, slots, products)| {
        let mut options = PlanOptions { packing: Packing::Priced, split, ..PlanOptions::default() }
            .with_max_concurrent_ctas(slots);
        options.device.products_over_peak = products;
        options
    })
}

proptest! {
    #[test]
    fn a_plan_that_followed_its_batch_is_that_from_nothing(
        seed: u64,
        gqa_ratio in prop::sample::select(vec![1, 4, 8]),
        page_size in prop::sample::select(vec![16, 48]),
        options in options(),
        most in prop::sample::select(vec![3, 12, 60]),
        padded in prop::sample::select(vec![0, 64]),
        counted: bool,
    ) {
        let geometry = geometry(gqa_ratio, page_size);
        let mut engine = Engine::new(&geometry, options, most, seed);
        let mut scheduler = Scheduler::default();
        let mut planner = FollowingPlanner::new(&geometry, options).unwrap();
        let tile = |shape: &PackShape| if options.split == Split::Invariant { Tile::of("m16n64w4s2") } else { tile(shape) };
        let mut written = Written::default();
        for _ in 0..60 {
            for _ in 0..engine.random.below(5) {
                engine.step();
            }
            let mut rows = scheduler.rows(&mut engine);
            let table = Table::of(&rows, &mut engine.random);
            let writes = written.numbers(&rows);
            let table = table.rows(page_size);
            let table = if counted { table.with_writes(&writes) } else { table };
            planner.compare(&table, padded).unwrap();
            prop_assert!(planner.update(tile, |_, _| Ok::<_, PlanError>(true)).unwrap());
            rows.resize(rows.len().max(padded), (Vec::new(), 0));
            check_covers(planner.plan(), &rows);
            let (found, expected) = of_numbers(&planner, &rows);
            prop_assert_eq!(found, canonical(&built(&geometry, &expected, &options, tile)));
        }
    }

    /// Whoever takes plans keeps what it took: it is told of lengths alone only if it has all else.
    #[test]
    fn what_was_taken_is_the_batch_and_what_was_not_changes_nothing(
        seed: u64,
        most in prop::sample::select(vec![3, 12, 40]),
        last_resort: bool,
    ) {
        let (geometry, options) = (geometry(4, 16), PlanOptions::default().with_max_concurrent_ctas(7));
        let mut engine = Engine::new(&geometry, options, most, seed);
        let mut scheduler = Scheduler::default();
        let mut planner = FollowingPlanner::new(&geometry, options).unwrap();
        if last_resort {
            planner = planner.with_last_resort(Packing::PerRequest);
        }
        let choose = Hysteresis::default();
        let (mut taken, mut device) = (Rows::new(), planner.plan().clone());
        let mut known = true;
        for _ in 0..80 {
            for _ in 0..engine.random.below(4) {
                engine.step();
            }
            let rows = scheduler.rows(&mut engine);
            let table = Table::of(&rows, &mut engine.random);
            planner.compare(&table.rows(16), 0).unwrap();
            // Refused a few times, by its size or by a driver, before it is taken, or never.
            let (mut refused, fails) = ([0, 0, 0, 1, 2, 3, 4][engine.random.index(7)], engine.random.below(12) == 0);
            let outcome = planner.update(choose, |plan, step| {
                if fails {
                    return Err(PlanError::TooLarge("anything"));
                }
                if step != Step::Lengths && refused > 0 {
                    refused -= 1;
                    return Ok(false);
                }
                if step == Step::Lengths {
                    assert!(known, "it does not have the plan");
                    let mut lens = device.clone();
                    // As a device is told: these are other numbers, and the pages are the same.
                    lens.set_lengths(plan.seq_lens()).unwrap();
                    device = lens;
                } else {
                    device = plan.clone();
                }
                known = true;
                Ok(true)
            });
            match outcome {
                Ok(true) => taken = rows,
                Ok(false) => {}
                Err(_) => known = false,
            }
            check_covers(planner.plan(), &taken);
            check_covers(&device, &taken);
            if engine.random.below(4) == 0 {
                // Requests grow inside their last pages, which the plan is told of.
                for (_, tokens) in &mut taken {
                    *tokens = tokens.next_multiple_of(16);
                }
                let lens: Vec<u32> = taken.iter().map(|(_, tokens)| *tokens).collect();
                planner.set_lengths(&lens, choose).unwrap();
                device.set_lengths(&lens).unwrap();
                check_covers(planner.plan(), &taken);
                check_covers(&device, &taken);
            }
        }
    }

    #[test]
    fn queries_of_a_request_are_followed(seed: u64) {
        let (geometry, options) = (geometry(4, 16), PlanOptions::default());
        let mut random = Random::new(seed);
        let mut planner = FollowingPlanner::new(&geometry, options).unwrap();
        let mut tokens = [40u32, 17, 90];
        for _ in 0..30 {
            let columns = 12;
            let entries: Vec<i32> = (0..3 * columns).map(|at| (at / columns * 100 + at % columns) as i32).collect();
            let query_lens = [0; 3].map(|_| random.below(4) as u32 + 1);
            let mut queries = Queries::default();
            let table = PageTable::new(&entries, columns, &tokens, 16).unwrap();
            let table = table.with_queries(&query_lens, &mut queries).unwrap();
            planner.compare(&table.into(), 0).unwrap();
            prop_assert!(planner.update(tile, |_, _| Ok::<_, PlanError>(true)).unwrap());
            let built = Plan::build(&geometry, &table, &options, tile).unwrap();
            prop_assert_eq!(canonical(planner.plan()), canonical(&built));
            tokens.iter_mut().for_each(|tokens| *tokens += random.below(4) as u32);
        }
    }
}

const LOW: Tile = Tile::of("m16n64w4s2");
const TALL: Tile = Tile::of("m64n64w4s2");

/// A low tile for small batches, a tall one for large ones.
#[derive(Clone, Copy, Default)]
struct Hysteresis(Option<Tile>);

impl ChooseTiles for Hysteresis {
    fn batch(&mut self, batch: &BatchShape) -> Option<[Tile; TileSet::MOST]> {
        let tile = if batch.requests < 8 { LOW } else { TALL };
        self.0 = Some(tile);
        Some([tile; TileSet::MOST])
    }

    fn pack(&mut self, _: &PackShape) -> Tile {
        self.0.expect("the batch comes first")
    }
}

fn step_of(planner: &mut FollowingPlanner, rows: &Rows) -> Step {
    step_with(planner, rows, &[])
}

fn step_with(planner: &mut FollowingPlanner, rows: &Rows, writes: &[u64]) -> Step {
    let table = Table::of(rows, &mut Random::new(3));
    planner.compare(&table.rows(16).with_writes(writes), 0).unwrap();
    let mut steps = Vec::new();
    let taken = planner.update(tile, |_, step| {
        steps.push(step);
        Ok::<_, PlanError>(true)
    });
    assert!(taken.unwrap());
    assert_eq!(steps.len(), 1, "the first plan is taken");
    check_covers(planner.plan(), rows);
    steps[0]
}

/// A prefix of four pages, two pages of each request's own, and room in the last one.
fn many() -> Rows {
    (0..64).map(|request| (vec![0, 1, 2, 3, 100 + 2 * request, 101 + 2 * request], 90)).collect()
}

#[test]
fn small_changes_are_followed_and_large_ones_planned_anew() {
    let mut planner = FollowingPlanner::new(&geometry(4, 16), PlanOptions::default()).unwrap();
    let mut rows = many();
    assert_eq!(step_of(&mut planner, &rows), Step::Anew);
    rows.iter_mut().for_each(|(_, tokens)| *tokens = 96);
    assert_eq!(step_of(&mut planner, &rows), Step::Lengths);
    assert_eq!(step_of(&mut planner, &rows), Step::Lengths, "nothing at all");
    // All need another page, several times: from the second time on it is worth it to follow them.
    for (time, step) in [Step::Anew, Step::Anew, Step::Changes, Step::Changes].into_iter().enumerate() {
        for (request, (pages, tokens)) in (0..).zip(&mut rows) {
            pages.push(1000 + 100 * time as i32 + request);
            *tokens += 16;
        }
        assert_eq!(step_of(&mut planner, &rows), step);
        assert_eq!(step_of(&mut planner, &rows), Step::Lengths);
    }
    // Another request in a row, one without tokens, one that shares less.
    rows[5] = (vec![0, 1, 700, 701], 60);
    rows[6] = (Vec::new(), 0);
    rows[7].0[2] = 702;
    assert_eq!(step_of(&mut planner, &rows), Step::Changes);
    rows.reverse();
    assert_eq!(step_of(&mut planner, &rows), Step::Changes, "the same requests in other rows");
    rows.iter_mut().step_by(3).for_each(|(pages, _)| pages.iter_mut().for_each(|page| *page += 9000));
    assert_eq!(step_of(&mut planner, &rows), Step::Anew, "one in three is another");
    rows[0].0[5] += 5000;
    assert_eq!(step_of(&mut planner, &rows), Step::Anew, "after a large change");
    rows.pop();
    assert_eq!(step_of(&mut planner, &rows), Step::Anew, "another size");
}

/// As vLLM's second model runner has them: rows move up, and requests that come are the last.
#[test]
fn requests_are_followed_to_other_rows() {
    let mut planner = FollowingPlanner::new(&geometry(4, 16), PlanOptions::default()).unwrap();
    let (mut rows, mut next) = (many(), 1000);
    step_of(&mut planner, &rows);
    let mut random = Random::new(7);
    let (mut steps, mut written) = (Vec::new(), Written::default());
    for step in 0..40 {
        let mut fresh = || {
            next += 1;
            next
        };
        for _ in 0..1 + step % 3 {
            rows.remove(random.index(rows.len()));
            rows.push((vec![0, 1, 2, 3, fresh()], 70));
        }
        for (pages, tokens) in &mut rows {
            *tokens += 1;
            if tokens.div_ceil(16) as usize > pages.len() {
                pages.push(fresh());
            }
        }
        let numbers = written.numbers(&rows);
        let counted = if step % 2 == 0 { &numbers[..] } else { &[] };
        steps.push(step_with(&mut planner, &rows, counted));
        let (found, expected) = of_numbers(&planner, &rows);
        let options = PlanOptions::default();
        assert_eq!(found, canonical(&built(&geometry(4, 16), &expected, &options, tile)));
        // Lengths alone, in other rows.
        rows.iter_mut().for_each(|(pages, tokens)| *tokens = 16 * pages.len() as u32);
        assert_eq!(step_of(&mut planner, &rows), Step::Lengths);
    }
    let anew = steps.iter().filter(|step| **step == Step::Anew).count();
    assert!(anew <= 2, "all but the first two are followed: {steps:?}");
}

#[test]
fn rows_are_read_where_writes_came_and_where_nobody_counts_them() {
    let mut planner = FollowingPlanner::new(&geometry(4, 16), PlanOptions::default()).unwrap();
    let mut rows = many();
    let mut writes: Vec<u64> = (1..=64).collect();
    let step = |planner: &mut FollowingPlanner, rows: &Rows, writes: &[u64]| {
        let table = Table::of(rows, &mut Random::new(3));
        planner.compare(&table.rows(16).with_writes(writes), 0).unwrap();
        let mut steps = Vec::new();
        let taken = planner.update(tile, |_, step| {
            steps.push(step);
            Ok::<_, PlanError>(true)
        });
        assert!(taken.unwrap());
        steps[0]
    };
    step(&mut planner, &rows, &writes);
    rows[5].0[2] = 700;
    // Said to be the same, it is not looked at, but for its last page: who counts writes counts all.
    assert_eq!(step(&mut planner, &rows, &writes), Step::Lengths);
    rows[5].0[2] = 2;
    rows[5].0[5] = 701;
    assert_ne!(
        step(&mut planner, &rows, &writes),
        Step::Lengths,
        "another request has its row, and nobody says so"
    );
    check_covers(planner.plan(), &rows);
    rows[5].0[2] = 700;
    writes[5] = 65;
    assert_ne!(step(&mut planner, &rows, &writes), Step::Lengths);
    check_covers(planner.plan(), &rows);
    rows[5].0[2] = 800;
    writes[5] = 0;
    assert_ne!(step(&mut planner, &rows, &writes), Step::Lengths, "nobody knows");
    check_covers(planner.plan(), &rows);
    rows[63].0[2] = 900;
    assert_ne!(step(&mut planner, &rows, &writes[..63]), Step::Lengths, "behind the numbers");
    check_covers(planner.plan(), &rows);
    // A row that needs another page of what was written before.
    let last = rows[9].0.pop();
    rows[9].1 = 80;
    writes[9] = 66;
    step(&mut planner, &rows, &writes);
    rows[9].0.extend(last);
    rows[9].1 = 81;
    assert_ne!(step(&mut planner, &rows, &writes), Step::Lengths);
    check_covers(planner.plan(), &rows);
}

#[test]
fn one_page_anywhere_is_another_plan() {
    let mut planner = FollowingPlanner::new(&geometry(4, 16), PlanOptions::default()).unwrap();
    let mut rows = many();
    step_of(&mut planner, &rows);
    for column in 0..6 {
        for request in [0, 31, 63] {
            rows[request].0[column] += 5000;
            assert_ne!(step_of(&mut planner, &rows), Step::Lengths, "{request}, {column}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let geometry = geometry(4, 16);
    let mut planner = FollowingPlanner::new(&geometry, PlanOptions::default()).unwrap();
    let mut rows = many();
    step_of(&mut planner, &rows);
    let before = canonical(planner.plan());
    let entries = [0, 1, 2, 3, -4, 5];
    let negative = PageRows::dense(&entries, 6, 6, &[90], 16).unwrap();
    let error = PlanError::NegativePage { request: 0, column: 4, page: -4 };
    assert_eq!(planner.compare(&negative, 64), Err(error));
    let other = PageRows::dense(&[1], 1, 1, &[9], 32).unwrap();
    assert_eq!(planner.compare(&other, 0), Err(PlanError::PageSize { table: 32, geometry: 16 }));
    assert_eq!(planner.set_lengths(&[90], tile), Err(LengthsError::Count { found: 1, needed: 64 }));
    let mut lens = vec![90; 64];
    lens[3] = 97;
    let error = LengthsError::Pages { request: 3, tokens: 97, pages: 6, page_size: 16 };
    assert_eq!(planner.set_lengths(&lens, tile), Err(error));
    assert_eq!(canonical(planner.plan()), before);
    // Without a batch that was compared, and nothing else since, it stays.
    let update = |planner: &mut FollowingPlanner| {
        let mut steps = Vec::new();
        let taken = planner.update(tile, |_, step| {
            steps.push(step);
            Ok::<_, PlanError>(true)
        });
        assert!(taken.unwrap());
        (steps, canonical(planner.plan()) == before)
    };
    assert_eq!(update(&mut planner), (vec![Step::Lengths], true));
    rows[0].0[5] = 999;
    planner.compare(&Table::of(&rows, &mut Random::new(3)).rows(16), 0).unwrap();
    planner.set_lengths(&[90; 64], tile).unwrap();
    assert_eq!(update(&mut planner), (vec![Step::Lengths], true));
    assert_eq!(step_of(&mut planner, &rows), Step::Anew);
}

#[test]
fn the_largest_of_the_new_pages_is_known_before_the_plan() {
    let mut planner = FollowingPlanner::new(&geometry(4, 16), PlanOptions::default()).unwrap();
    let mut rows = many();
    let compare = |planner: &mut FollowingPlanner, rows: &Rows| {
        planner.compare(&Table::of(rows, &mut Random::new(3)).rows(16), 0).unwrap();
        planner.largest_new_page()
    };
    assert_eq!(compare(&mut planner, &rows), Some(101 + 2 * 63));
    step_of(&mut planner, &rows);
    assert_eq!(compare(&mut planner, &rows), None);
    rows[2].0[3] = 50;
    assert_eq!(compare(&mut planner, &rows), Some(105), "with those behind the changed one");
}
