use crate::plan::{Plan, PlanOptions, Split, UNTOUCHED, max_segments};
use crate::{LivePlanner, Packing, PageTable, Prices};
use proptest::prelude::*;
use tilewright_heuristics::{Backend, Dtype, Geometry, Tile, TileSet, chunk};

const FAMILY: TileSet<'static> = family(Dtype::F16);

const fn family(dtype: Dtype) -> TileSet<'static> {
    chunk::families(Backend::Cuda, 128, dtype)[0]
}

/// Requests of up to three streams of pages, each from some column on.
fn rows() -> impl Strategy<Value = Vec<Vec<i32>>> {
    let row = (0i32..2, 0usize..30, 0i32..3, 0usize..60, 0usize..50);
    let row = row.prop_map(|(root, shared, branch, more, own)| {
        let mut pages: Vec<i32> = (0..shared as i32).map(|column| root * 1000 + column).collect();
        pages.extend((0..more as i32).map(|column| 10_000 + root * 1000 + branch * 100 + column));
        (pages, own)
    });
    prop::collection::vec(row, 1..20).prop_map(|rows| {
        let with_own = |(request, (mut pages, own)): (usize, (Vec<i32>, usize))| {
            pages.extend((0..own).map(|column| (20_000 + request * 100 + column) as i32));
            pages
        };
        rows.into_iter().enumerate().map(with_own).collect()
    })
}

/// One part of a request's tokens: which partial it goes to, and its positions.
fn parts(plan: &Plan, request: u32) -> Vec<(u32, Vec<std::ops::Range<u32>>)> {
    let tile = &plan.tile_groups()[0].tile;
    let part = chunk::part_tokens(tile, plan.geometry().head_dim);
    let shared = chunk::shared_tokens(tile, plan.geometry().head_dim);
    let chunks = chunk::Chunks::of(plan.geometry().kv_heads);
    let mut parts = Vec::new();
    for item in plan.work_items() {
        let requests = plan.requests_of(item.q_tile);
        let Some(member) = requests.iter().position(|&other| other == request) else { continue };
        let partial = plan.targets()[item.targets as usize + member].partial;
        let mut positions = Vec::new();
        for segment in &plan.segments()[item.segments.start as usize..item.segments.end as usize] {
            let begin = segment.kv_range.start.max(item.kv_range.start);
            let end = segment.kv_range.end.min(item.kv_range.end);
            if begin < end && segment.members.contains(&(member as u32)) {
                let place = |token| segment.position + (token - segment.kv_range.start);
                positions.push(place(begin)..place(end));
                // Tokens from one multiple of what has one maximum to the next have one, and are of one step.
                assert!(place(begin).is_multiple_of(shared));
                let (at, tokens) = (begin - item.kv_range.start, end - begin);
                assert!(at.is_multiple_of(shared) || at % part + tokens <= part, "{tokens} tokens at {at}");
                // Chunks end with a part of a step.
                if chunks.next_behind(place(begin)) <= place(end) {
                    assert_eq!(at % part, place(begin) % part, "{tokens} tokens at {at}");
                }
            }
        }
        assert_eq!(positions.is_empty(), partial == UNTOUCHED);
        if partial != UNTOUCHED {
            parts.push((partial, positions));
        }
    }
    parts.sort_by_key(|(partial, _)| *partial);
    parts
}

fn check(plan: &Plan, rows: &[Vec<i32>], page_size: u32) {
    assert!(plan.is_invariant());
    let chunks = chunk::Chunks::of(plan.geometry().kv_heads);
    let [group] = plan.tile_groups() else { panic!("{:?} are several tiles", plan.tile_groups()) };
    let room = max_segments(group.tile.m.into());
    assert!(plan.work_items().iter().all(|item| item.segments.len() <= room as usize));
    for segment in plan.segments() {
        let request = plan.q_tiles().iter().find_map(|q_tile| {
            let of = &plan.segments()[q_tile.segments.start as usize..q_tile.segments.end as usize];
            let has = of.iter().any(|other| std::ptr::eq(other, segment));
            has.then(|| plan.requests()[(q_tile.requests.start + segment.members.start) as usize])
        });
        let row = &rows[request.unwrap() as usize];
        let (first, count) = (segment.position / page_size, segment.kv_range.len() as u32 / page_size);
        let pages = &plan.pages()[segment.pages as usize..][..count as usize];
        assert_eq!(pages, &row[first as usize..][..count as usize]);
    }
    for (request, row) in rows.iter().enumerate().filter(|(_, row)| !row.is_empty()) {
        let parts = parts(plan, request as u32);
        let mut next = 0;
        for (index, (_, positions)) in parts.iter().enumerate() {
            // Each part but the first is a chunk, and each begins with one.
            let first = positions[0].start;
            assert_eq!(first, chunks.begin_of(first));
            for positions in positions {
                assert_eq!(positions.start, next, "tokens come in order, each once");
                next = positions.end;
            }
            assert!(index == 0 || next <= chunks.next_behind(first), "{first}..{next} are several chunks");
        }
        assert_eq!(next, row.len() as u32 * page_size);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_request_has_its_tokens_once_in_steps_and_chunks_of_their_own(
        rows in rows(), page_size in prop::sample::select(vec![16u32, 48, 64, 128]),
        ctas in prop::sample::select(vec![1u32, 4, 40, 400]), q_heads in prop::sample::select(vec![2u32, 8]),
        // Steps of one softmax, and of two.
        dtype in prop::sample::select(vec![Dtype::F16, Dtype::Fp8F16]),
    ) {
        let geometry = Geometry { q_heads, kv_heads: 2, head_dim: 128, page_size, dtype };
        let family = family(dtype);
        let prices = Prices { cta: 0, merge: 0, partial_byte: 0, ..Prices::default() };
        let options = PlanOptions { split: Split::Invariant, ..PlanOptions::default() }
            .with_max_concurrent_ctas(ctas)
            .with_prices(prices);
        let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |row: &Vec<i32>| {
            row.iter().copied().chain(std::iter::repeat_n(-1, max_pages - row.len())).collect::<Vec<_>>()
        };
        let entries: Vec<i32> = rows.iter().flat_map(padded).collect();
        let lens: Vec<u32> = rows.iter().map(|row| (row.len() as u32 * page_size).saturating_sub(5)).collect();
        let table = PageTable::new(&entries, max_pages, &lens, page_size).unwrap();
        let plan = Plan::build(&geometry, &table, &options, family).unwrap();
        check(&plan, &rows, page_size);
        let mut live = LivePlanner::from_table(&geometry, options, &table).unwrap();
        let live = live.plan(family).unwrap();
        check(live, &rows, page_size);
        prop_assert_eq!(live.tile_groups()[0].tile, plan.tile_groups()[0].tile);
        for tile in family.tiles() {
            check(&Plan::build(&geometry, &table, &options, *tile).unwrap(), &rows, page_size);
        }
    }
}

/// The tile of `requests` that share `shared` pages and have `own` for themselves.
fn tile_of(requests: i32, (shared, own): (i32, i32), packing: Packing) -> Tile {
    let geometry = Geometry { q_heads: 32, kv_heads: 8, head_dim: 128, page_size: 16, dtype: Dtype::F16 };
    let of_request =
        |request: i32| (0..shared).chain((0..own).map(move |page| 10_000 + request * 1000 + page));
    let entries: Vec<i32> = (0..requests).flat_map(of_request).collect();
    let lens = vec![(shared + own) as u32 * 16; requests as usize];
    let table = PageTable::new(&entries, (shared + own) as usize, &lens, 16).unwrap();
    let options = PlanOptions { split: Split::Invariant, packing, ..PlanOptions::default() };
    let plan = Plan::build(&geometry, &table, &options, FAMILY).unwrap();
    let [group] = plan.tile_groups() else { panic!("{:?}", plan.tile_groups()) };
    group.tile
}

#[test]
fn a_batch_gets_the_tile_that_ends_first() {
    let [lowest, long_steps, tallest] = *FAMILY.tiles() else { panic!("{FAMILY} has not three tiles") };
    assert_eq!(lowest.m, long_steps.m);
    // CTAs that have an SM each, or follow each other, take less with long steps; with short ones an SM holds one more.
    assert_eq!(tile_of(1, (0, 400), Packing::Priced), long_steps, "one request");
    assert_eq!(tile_of(64, (0, 100), Packing::Priced), long_steps, "nothing is shared");
    assert_eq!(tile_of(48, (0, 30), Packing::Priced), lowest, "as many CTAs as an SM holds");
    assert_eq!(tile_of(256, (400, 2), Packing::Priced), tallest, "nearly all is shared by all");
    assert_eq!(tile_of(256, (400, 2), Packing::PerRequest), lowest, "planned request by request");
}
