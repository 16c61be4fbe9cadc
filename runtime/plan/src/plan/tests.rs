use super::*;
use crate::{DeviceProfile, Occupancy, Packing, Prices};
use proptest::prelude::*;
use tilewright_heuristics::Backend;

fn geometry(page_size: u32) -> Geometry {
    Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size, dtype: Dtype::F32 }
}

const TILE: Tile = Tile::of("m4n16w1s1");

fn plan_with(rows: &[Vec<i32>], seq_lens: &[u32], page_size: u32, options: &PlanOptions, tile: Tile) -> Plan {
    let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0);
    let entries: Vec<i32> = rows
        .iter()
        .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(-1, max_pages - row.len())))
        .collect();
    let table = PageTable::new(&entries, max_pages, seq_lens, page_size).unwrap();
    Plan::build(&geometry(page_size), &table, options, tile).unwrap()
}

fn plan(rows: &[Vec<i32>], seq_lens: &[u32], page_size: u32, options: &PlanOptions) -> Plan {
    plan_with(rows, seq_lens, page_size, options, TILE)
}

#[test]
fn requests_alone_are_written_directly_and_so_are_empty_ones() {
    let plan = plan(&[vec![1, 2], vec![]], &[20, 0], 16, &PlanOptions::default());
    assert!(plan.targets().iter().all(|target| target.partial == DIRECT) && plan.merges().is_empty());
    assert_eq!(plan.work_items().len(), 2, "one that reads, one that writes zeros");
    let kv_ranges: Vec<_> = plan.work_items().iter().map(|item| item.kv_range.clone()).collect();
    assert_eq!(kv_ranges, [0..32, 0..0]);
    assert_eq!((plan.packs()[0].shape.kv_len, plan.packs().len()), (32, 2));
}

#[test]
fn the_mean_rule_cuts_long_packs_into_equal_chunks() {
    let rows = [(0..10).collect(), vec![20], vec![21]];
    let plan = plan(&rows, &[160, 16, 16], 16, &PlanOptions { split: Split::Mean, ..PlanOptions::default() });
    // The mean is 64 tokens: 160 are cut into three parts of at most 64, as equal as pages allow.
    let mut kv_ranges: Vec<_> =
        plan.work_items().iter().filter(|item| item.q_tile == 0).map(|item| item.kv_range.clone()).collect();
    kv_ranges.sort_by_key(|kv_range| kv_range.start);
    assert_eq!(kv_ranges, [0..64, 64..112, 112..160]);
    assert_eq!(plan.partials(), 3);
}

#[test]
fn one_long_pack_fills_all_ctas_and_many_packs_are_left_whole() {
    let options = merge_at(0, PlanOptions::default().with_max_concurrent_ctas(16));
    // Two KV heads over 16 CTAs: eight chunks each.
    let alone = plan(&[(0..128).collect()], &[2048], 16, &options);
    assert_eq!(alone.work_items().len(), 8);
    assert!(alone.work_items().iter().all(|item| item.kv_range.len() == 256));
    let rows: Vec<Vec<i32>> = (0..16).map(|request| (request * 8..request * 8 + 8).collect()).collect();
    let many = plan(&rows, &[128; 16], 16, &options);
    assert_eq!((many.work_items().len(), many.partials()), (16, 0));
    let short = plan(&[(0..8).collect()], &[128], 16, &options);
    assert_eq!(short.partials(), 0, "128 tokens are not worth cutting");
}

#[test]
fn rows_of_a_q_tile_are_those_of_whole_requests_or_some_of_one() {
    let rows = vec![vec![1], vec![1], vec![1]];
    let rows_of = |m| {
        let plan = plan_with(&rows, &[16; 3], 16, &PlanOptions::default(), Tile { m, ..TILE });
        plan.work_items().iter().map(|item| (item.q_tile, item.rows.clone())).collect::<Vec<_>>()
    };
    assert_eq!(rows_of(5), [(0, 0..4), (1, 0..2)], "the fifth row would be half of a request");
    assert_eq!(rows_of(1), [(0, 0..1), (0, 1..2), (1, 0..1), (1, 1..2), (2, 0..1), (2, 1..2)]);
}

#[test]
fn tables_and_geometries_of_different_page_sizes_are_refused() {
    let table = PageTable::new(&[1], 1, &[3], 16).unwrap();
    let error = Plan::build(&geometry(32), &table, &PlanOptions::default(), TILE).unwrap_err();
    assert_eq!(error, PlanError::PageSize { table: 16, geometry: 32 });
}

#[test]
fn segments_that_one_warp_has_alone_stand_behind_the_others() {
    // Two rows a request, so eight requests a warp. All share a page, the last four another one, and each has one of its own.
    let own = |request: i32| 10 + request;
    let rows: Vec<Vec<i32>> = (0..10)
        .map(|request| if request < 6 { vec![0, own(request)] } else { vec![0, 50, own(request)] })
        .collect();
    let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * 16).collect();
    let options = PlanOptions { packing: Packing::PerTree, ..PlanOptions::default() };
    let plan = plan_with(&rows, &seq_lens, 16, &options, Tile { m: 32, ..TILE });
    assert_eq!(plan.q_tiles().len(), 1);
    let of_segments: Vec<_> =
        plan.segments().iter().map(|segment| (segment.members.clone(), segment.kv_range.start)).collect();
    let expected = [(0..10, 0), (6..10, 16)].into_iter().chain((0..10).map(|i| (i..i + 1, 32 + 16 * i)));
    assert_eq!(
        of_segments,
        expected.collect::<Vec<_>>(),
        "the segment of both warps comes before those of the first"
    );
}

#[test]
fn threads_get_chunks_of_equal_work_where_products_take_the_time() {
    // 16 requests share 1024 tokens and have 256 each: 32 rows see the first ones, two the others.
    let rows: Vec<Vec<i32>> =
        (0..16).map(|request| (0..64).chain(64 + request * 16..80 + request * 16).collect()).collect();
    let device = DeviceProfile::of_units(Backend::Cpu, 8);
    let prices =
        Prices { hbm_byte: 1000, l2_byte: 1000, partial_byte: 1000, flop: 1000, cta: 1000, merge: 0 };
    let options = PlanOptions { packing: Packing::PerTree, ..PlanOptions::on(device) }.with_prices(prices);
    let tile = Tile { m: 32, ..TILE };
    let plan = plan_with(&rows, &[1280; 16], 16, &options, tile);
    // A row's products of a token take half of the time in which it is read, and twice that over the peak: as long.
    let (row, q_tile) = (plan.work_of_row(&options), &plan.q_tiles()[0]);
    let works: Vec<u64> =
        plan.work_items().iter().map(|item| plan.work_within(q_tile, row, &item.kv_range)).collect();
    assert_eq!(works.iter().sum::<u64>(), 1024 * 32 + 16 * 256 * 2);
    assert_eq!(works.len(), 4, "one for each of eight threads and two KV heads");
    assert!(works.is_sorted_by(|a, b| a >= b), "the most work first: {works:?}");
    // 64 tokens are a chunk's unit.
    assert!(works[0] - works[3] <= 2 * 64 * 32, "{works:?}");
    let tokens = |plan: &Plan| -> Vec<usize> {
        let mut tokens: Vec<usize> = plan.work_items().iter().map(|item| item.kv_range.len()).collect();
        tokens.sort_unstable();
        tokens
    };
    assert_eq!(tokens(&plan), [320, 320, 320, 4160]);
    // On a GPU a token takes as long for any rows of a tile.
    let device = DeviceProfile { products_over_peak: 0, ..options.device };
    let equal = plan_with(&rows, &[1280; 16], 16, &PlanOptions { device, ..options }, tile);
    assert_eq!(tokens(&equal), [1280; 4]);
}

/// What merging at all costs.
fn merge_at(price: u64, options: PlanOptions) -> PlanOptions {
    options.with_prices(Prices { merge: price, ..options.device.prices })
}

#[test]
fn a_cut_pays_for_the_merge_that_it_brings() {
    // 1024 pages are a gain in sixteen chunks for each of two KV heads; 16 save less than the merge takes.
    let mut options = PlanOptions::default().with_max_concurrent_ctas(32);
    options.device.occupancy = Occupancy::CPU; // as many of any tile
    let partials =
        |pages, options| plan(&[(0..pages).collect()], &[pages as u32 * 16], 16, options).partials();
    assert_eq!(partials(1024, &options), 16);
    assert_eq!((partials(16, &options), partials(16, &merge_at(0, options))), (0, 2));
}

#[test]
fn a_q_tile_of_too_many_segments_for_a_chunk_is_merged_anyway() {
    let geometry = Geometry { q_heads: 2, ..geometry(64) };
    // A binary tree of 64 requests: 127 segments, and a chunk has room for 96.
    let entries: Vec<i32> = (0..64)
        .flat_map(|request| (0..7).map(move |level| (1 << level) + (request >> (6 - level))))
        .collect();
    let table = PageTable::new(&entries, 7, &[448; 64], 64).unwrap();
    let plan =
        |options: &PlanOptions| Plan::build(&geometry, &table, options, Tile { m: 64, ..TILE }).unwrap();
    let options = PlanOptions { packing: Packing::PerTree, ..PlanOptions::default() };
    let uncut = plan(&PlanOptions { split: Split::None, ..options });
    assert_eq!((uncut.q_tiles().len(), uncut.segments().len(), uncut.work_items().len()), (1, 127, 2));
    assert!(!uncut.merges().is_empty());
    let (free, dear) = (plan(&merge_at(0, options)), plan(&merge_at(u64::MAX, options)));
    assert!(free.work_items().len() > 2);
    assert_eq!(free, dear);
}

fn rows() -> impl Strategy<Value = Vec<Vec<i32>>> {
    prop::collection::vec(prop::collection::vec(0i32..3, 0..7), 0..12)
}

/// Where a row of the output, or of a partial, is written.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Output(usize, u32),
    Partial(u32, u32),
}

proptest! {
    #[test]
    fn every_token_of_every_row_is_computed_exactly_once(
        rows in rows(), cut in 0u32..16, m in 1u16..9, page_size in prop::sample::select(vec![1, 5, 16, 32]),
    ) {
        let seq_lens: Vec<u32> =
            rows.iter().map(|row| (row.len() as u32 * page_size).saturating_sub(cut % page_size)).collect();
        for packing in [Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerNode, Packing::PerRequest] {
            for (split, products_over_peak) in [(Split::None, 0), (Split::Mean, 0), (Split::Fill, 0), (Split::Waves, 0), (Split::Waves, 1 << 16)] {
                let tile = Tile { m, ..TILE };
                let mut options = PlanOptions { packing, split, ..PlanOptions::default() }.with_max_concurrent_ctas(7);
                options.device.products_over_peak = products_over_peak;
                let plan = plan_with(&rows, &seq_lens, page_size, &merge_at(0, options), tile);
                if packing == Packing::PerTree {
                    let roots: std::collections::BTreeSet<_> = rows.iter().filter_map(|row| row.first()).collect();
                    let packs = plan.packs().iter().filter(|pack| plan.q_tiles_of(pack)[0].kv_len > 0);
                    prop_assert_eq!(packs.count(), roots.len());
                }
                let mut computed: Vec<Vec<u32>> =
                    seq_lens.iter().flat_map(|&len| vec![vec![0; len as usize]; 2]).collect();
                let mut written = std::collections::BTreeMap::new();
                let mut arrivals = std::collections::BTreeMap::new();
                for item in plan.work_items() {
                    prop_assert!(!item.rows.is_empty() && item.rows.len() <= usize::from(m));
                    prop_assert!(item.kv_range.start.is_multiple_of(16));
                    let members = plan.requests_of(item.q_tile);
                    let segments = &plan.segments()[item.segments.start as usize..item.segments.end as usize];
                    prop_assert!(segments.first().is_none_or(|segment| segment.kv_range.contains(&item.kv_range.start)));
                    prop_assert!(segments.last().is_none_or(|segment| segment.kv_range.contains(&(item.kv_range.end - 1))));
                    for row in item.rows.clone() {
                        let (member, head) = (row / 2, row % 2);
                        let request = members[member as usize] as usize;
                        let mut touched = segments.is_empty();
                        for segment in segments.iter().filter(|segment| segment.members.contains(&member)) {
                            touched = true;
                            prop_assert!(segment.kv_range.start.is_multiple_of(16));
                            for token in segment.kv_range.clone().filter(|token| item.kv_range.contains(token)) {
                                let within = token - segment.kv_range.start;
                                let position = (segment.position + within) as usize;
                                let page = plan.pages()[(segment.pages + within / page_size) as usize];
                                prop_assert_eq!(page, rows[request][position / page_size as usize]);
                                if position < seq_lens[request] as usize {
                                    computed[request * 2 + head as usize][position] += 1;
                                }
                            }
                        }
                        let target = plan.targets()[(item.targets + member) as usize];
                        prop_assert_eq!(target.partial == UNTOUCHED, !touched);
                        let row_target = match target.partial {
                            UNTOUCHED => continue,
                            DIRECT => Target::Output(request, head),
                            partial => Target::Partial(partial, head),
                        };
                        if target.partial != DIRECT && (row == item.rows.start || head == 0) {
                            *arrivals.entry(target.merge).or_insert(0) += 1;
                        }
                        prop_assert!(written.insert(row_target, request).is_none(), "written twice");
                    }
                }
                prop_assert!(computed.iter().flatten().all(|&count| count == 1));
                for (index, merge) in plan.merges().iter().enumerate() {
                    prop_assert_eq!(arrivals.get(&(index as u32)), Some(&merge.arrivals));
                    for partial in merge.partial_begin..merge.partial_end {
                        for head in 0..2 {
                            let target = Target::Partial(partial, head);
                            prop_assert_eq!(written.get(&target), Some(&(merge.request as usize)));
                        }
                    }
                }
                let merged: u32 = plan.merges().iter().map(|merge| merge.partial_end - merge.partial_begin).sum();
                prop_assert_eq!(merged, plan.partials());
                let direct = written.keys().filter(|target| matches!(target, Target::Output(..))).count();
                prop_assert_eq!(direct + 2 * plan.merges().len(), 2 * rows.len(), "every row of the output is written once");
            }
        }
    }

    #[test]
    fn small_gains_are_cut_only_where_a_merge_happens_anyway(
        rows in rows(), m in 1u16..9, page_size in prop::sample::select(vec![48, 128, 1024]), max_ctas in 1u32..40,
        price in 0..100 * Prices::H200.merge,
    ) {
        let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * page_size).collect();
        for packing in [Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerNode, Packing::PerRequest] {
            let options = PlanOptions { packing, ..PlanOptions::default() }.with_max_concurrent_ctas(max_ctas);
            let plan = |options: &PlanOptions| plan_with(&rows, &seq_lens, page_size, options, Tile { m, ..TILE });
            let (free, dear) = (plan(&merge_at(0, options)), plan(&merge_at(u64::MAX, options)));
            let uncut = plan(&PlanOptions { split: Split::None, ..options });
            let expected = if uncut.merges().is_empty() { &uncut } else { &free };
            prop_assert_eq!(&dear, expected);
            let priced = plan(&merge_at(price, options));
            prop_assert!(priced == free || priced == dear);
        }
    }

    #[test]
    fn the_order_of_page_ids_decides_and_nothing_else_of_them(rows in rows()) {
        // Siblings are visited in the order of their pages; how far apart these lie in the pool is nothing.
        let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * 16).collect();
        let place = |page: i32| 5 * page + 3;
        let moved: Vec<Vec<i32>> = rows.iter().map(|row| row.iter().map(|&page| place(page)).collect()).collect();
        let [here, there] = [&rows, &moved].map(|rows| plan(rows, &seq_lens, 16, &PlanOptions::default()));
        prop_assert_eq!(here.packs(), there.packs());
        prop_assert_eq!((here.work_items(), here.q_tiles()), (there.work_items(), there.q_tiles()));
        prop_assert_eq!((here.targets(), here.merges()), (there.targets(), there.merges()));
        for segment in here.segments() {
            let pages = segment.pages as usize..segment.pages as usize + segment.kv_range.len().div_ceil(16);
            let expected: Vec<i32> = here.pages()[pages.clone()].iter().map(|&page| place(page)).collect();
            prop_assert_eq!(&there.pages()[pages], &expected[..]);
        }
    }
}
