use super::*;
use crate::{Packing, Prices};
use proptest::prelude::*;

fn geometry(page_size: u32) -> Geometry {
    Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size, dtype: Dtype::F32 }
}

const TILE: Tile = Tile { m: 4, n: 16, warps: 1, stages: 1 };

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
    assert!(plan.slots().iter().all(|slot| slot.partial == DIRECT) && plan.merges().is_empty());
    assert_eq!(plan.work_items().len(), 2, "one that reads, one that writes zeros");
    let walks: Vec<_> = plan.work_items().iter().map(|item| item.walk.clone()).collect();
    assert_eq!(walks, [0..32, 0..0]);
    assert_eq!((plan.packs()[0].shape.kv_len, plan.packs().len()), (32, 2));
}

#[test]
fn the_mean_rule_cuts_long_packs_into_equal_parts() {
    let rows = [(0..10).collect(), vec![20], vec![21]];
    let plan = plan(&rows, &[160, 16, 16], 16, &PlanOptions { split: Split::Mean, ..PlanOptions::default() });
    // The mean is 64 tokens: 160 are cut into three parts of at most 64, as equal as pages allow.
    let mut walks: Vec<_> =
        plan.work_items().iter().filter(|item| item.block == 0).map(|item| item.walk.clone()).collect();
    walks.sort_by_key(|walk| walk.start);
    assert_eq!(walks, [0..64, 64..112, 112..160]);
    assert_eq!(plan.partials(), 3);
}

#[test]
fn one_long_pack_fills_the_slots_and_many_packs_are_left_whole() {
    let options = merge_at(0, PlanOptions { slots: 16, ..PlanOptions::default() });
    // Two KV heads over 16 slots: eight parts each.
    let alone = plan(&[(0..128).collect()], &[2048], 16, &options);
    assert_eq!(alone.work_items().len(), 8);
    assert!(alone.work_items().iter().all(|item| item.walk.len() == 256));
    let rows: Vec<Vec<i32>> = (0..16).map(|request| (request * 8..request * 8 + 8).collect()).collect();
    let many = plan(&rows, &[128; 16], 16, &options);
    assert_eq!((many.work_items().len(), many.partials()), (16, 0));
    let short = plan(&[(0..8).collect()], &[128], 16, &options);
    assert_eq!(short.partials(), 0, "128 tokens are not worth cutting");
}

#[test]
fn rows_of_a_block_are_those_of_whole_requests_or_some_of_one() {
    let rows = vec![vec![1], vec![1], vec![1]];
    let rows_of = |m| {
        let plan = plan_with(&rows, &[16; 3], 16, &PlanOptions::default(), Tile { m, ..TILE });
        plan.work_items().iter().map(|item| (item.block, item.rows.clone())).collect::<Vec<_>>()
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
fn runs_that_one_warp_has_alone_stand_behind_the_others() {
    // Two rows a request, so eight requests a warp. All share a page, the last four another one, and each has one of its own.
    let own = |request: i32| 10 + request;
    let rows: Vec<Vec<i32>> = (0..10)
        .map(|request| if request < 6 { vec![0, own(request)] } else { vec![0, 50, own(request)] })
        .collect();
    let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * 16).collect();
    let options = PlanOptions { packing: Packing::PerTree, ..PlanOptions::default() };
    let plan = plan_with(&rows, &seq_lens, 16, &options, Tile { m: 32, ..TILE });
    assert_eq!(plan.blocks().len(), 1);
    let of_runs: Vec<_> = plan.runs().iter().map(|run| (run.members.clone(), run.walk.start)).collect();
    let expected = [(0..10, 0), (6..10, 16)].into_iter().chain((0..10).map(|i| (i..i + 1, 32 + 16 * i)));
    assert_eq!(
        of_runs,
        expected.collect::<Vec<_>>(),
        "the run of both warps comes before those of the first"
    );
}

/// Merging at all costs so much.
fn merge_at(price: u64, options: PlanOptions) -> PlanOptions {
    PlanOptions { prices: Prices { merge: price, ..options.prices }, ..options }
}

#[test]
fn a_cut_pays_for_the_merge_that_it_brings() {
    // 1024 pages are a gain in sixteen parts for each of two KV heads; 16 save less than the merge takes.
    let options = PlanOptions { slots: 32, ..PlanOptions::default() };
    let partials =
        |pages, options| plan(&[(0..pages).collect()], &[pages as u32 * 16], 16, options).partials();
    assert_eq!(partials(1024, &options), 16);
    assert_eq!((partials(16, &options), partials(16, &merge_at(0, options))), (0, 2));
}

#[test]
fn a_block_of_too_many_runs_for_a_part_is_merged_anyway() {
    let geometry = Geometry { q_heads: 2, ..geometry(64) };
    // A binary tree of 64 requests: 127 runs, and a part has room for 96.
    let entries: Vec<i32> = (0..64)
        .flat_map(|request| (0..7).map(move |level| (1 << level) + (request >> (6 - level))))
        .collect();
    let table = PageTable::new(&entries, 7, &[448; 64], 64).unwrap();
    let plan =
        |options: &PlanOptions| Plan::build(&geometry, &table, options, Tile { m: 64, ..TILE }).unwrap();
    let options = PlanOptions { packing: Packing::PerTree, ..PlanOptions::default() };
    let uncut = plan(&PlanOptions { split: Split::None, ..options });
    assert_eq!((uncut.blocks().len(), uncut.runs().len(), uncut.work_items().len()), (1, 127, 2));
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
            for split in [Split::None, Split::Mean, Split::Fill] {
                let tile = Tile { m, ..TILE };
                let plan = plan_with(&rows, &seq_lens, page_size, &PlanOptions { packing, split, slots: 7, ..PlanOptions::default() }, tile);
                if packing == Packing::PerTree {
                    let roots: std::collections::BTreeSet<_> = rows.iter().filter_map(|row| row.first()).collect();
                    let packs = plan.packs().iter().filter(|pack| plan.blocks_of(pack)[0].walk > 0);
                    prop_assert_eq!(packs.count(), roots.len());
                }
                let mut computed: Vec<Vec<u32>> =
                    seq_lens.iter().flat_map(|&len| vec![vec![0; len as usize]; 2]).collect();
                let mut written = std::collections::BTreeMap::new();
                let mut arrivals = std::collections::BTreeMap::new();
                for item in plan.work_items() {
                    prop_assert!(!item.rows.is_empty() && item.rows.len() <= usize::from(m));
                    prop_assert!(item.walk.start.is_multiple_of(16));
                    let members = plan.requests_of(item.block);
                    let runs = &plan.runs()[item.runs.start as usize..item.runs.end as usize];
                    prop_assert!(runs.first().is_none_or(|run| run.walk.contains(&item.walk.start)));
                    prop_assert!(runs.last().is_none_or(|run| run.walk.contains(&(item.walk.end - 1))));
                    for row in item.rows.clone() {
                        let (member, head) = (row / 2, row % 2);
                        let request = members[member as usize] as usize;
                        let mut touched = runs.is_empty();
                        for run in runs.iter().filter(|run| run.members.contains(&member)) {
                            touched = true;
                            prop_assert!(run.walk.start.is_multiple_of(16));
                            for token in run.walk.clone().filter(|token| item.walk.contains(token)) {
                                let within = token - run.walk.start;
                                let position = (run.position + within) as usize;
                                let page = plan.pages()[(run.pages + within / page_size) as usize];
                                prop_assert_eq!(page, rows[request][position / page_size as usize]);
                                if position < seq_lens[request] as usize {
                                    computed[request * 2 + head as usize][position] += 1;
                                }
                            }
                        }
                        let slot = plan.slots()[(item.slots + member) as usize];
                        prop_assert_eq!(slot.partial == UNTOUCHED, !touched);
                        let target = match slot.partial {
                            UNTOUCHED => continue,
                            DIRECT => Target::Output(request, head),
                            partial => Target::Partial(partial, head),
                        };
                        if slot.partial != DIRECT && (row == item.rows.start || head == 0) {
                            *arrivals.entry(slot.merge).or_insert(0) += 1;
                        }
                        prop_assert!(written.insert(target, request).is_none(), "written twice");
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
    fn walks_are_cut_at_any_price_only_where_something_is_merged_anyway(
        rows in rows(), m in 1u16..9, page_size in prop::sample::select(vec![48, 128, 1024]), slots in 1u32..40,
        price in 0..100 * Prices::H200.merge,
    ) {
        let seq_lens: Vec<u32> = rows.iter().map(|row| row.len() as u32 * page_size).collect();
        for packing in [Packing::Priced, Packing::PerTree, Packing::Pat, Packing::PerNode, Packing::PerRequest] {
            let options = PlanOptions { packing, slots, ..PlanOptions::default() };
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
        prop_assert_eq!((here.work_items(), here.blocks()), (there.work_items(), there.blocks()));
        prop_assert_eq!((here.slots(), here.merges()), (there.slots(), there.merges()));
        for run in here.runs() {
            let pages = run.pages as usize..run.pages as usize + run.walk.len().div_ceil(16);
            let expected: Vec<i32> = here.pages()[pages.clone()].iter().map(|&page| place(page)).collect();
            prop_assert_eq!(&there.pages()[pages], &expected[..]);
        }
    }
}
