//! What planning costs the host: page table -> forest -> packs -> tiles -> work items, from nothing, and the image that goes up; then
//! what it costs a live forest, and a live planner, to follow a step of the first tree.
//!
//! `cargo bench -p tilewright-plan --bench plan`

use criterion::Criterion;
use std::time::Instant;
use tilewright_cuda::PackedPlan;
use tilewright_heuristics::{Backend, Dtype, Geometry, PackShape, Tile, chunk};
use tilewright_plan::{
    DeviceProfile, Forest, LiveError, LiveForest, LivePlanner, PackLayout, Packing, Packs, PageTable, Plan,
    PlanOptions, Planner, PrefixTree, Priced, Prices, QTiles, Queries, Split,
};
use tilewright_scenarios::{Batch, Scenario};

const TREES: [&str; 3] = ["1,16,32,64,256,1024_256,128,64,32,32,32", "256_4096", "1,1024_2048,32"];
/// A forest so small that decisions are compared by their exact cost: 31 nodes.
const SMALL_TREE: &str = "1,2,4,8,16_128,64,32,32,32";
const ROUNDS: usize = 200;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    println!(
        "{:<44} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "tree, 32/8, page 32", "forest", "packs", "plan", "image", "items"
    );
    let trees = TREES.into_iter().map(|tree| (tree.to_owned(), batch(tree)));
    // KV ranges of tenants are of many lengths, and each length is a class to `Split::Waves`.
    let tenants = batches("seed: 21\ntenants:\n  batches: 4").into_iter();
    let tenants = tenants.map(|batch| (format!("tenants, {} requests", batch.requests()), batch));
    for (name, batch) in trees.chain(tenants) {
        let geometry = Geometry { dtype: Dtype::F16, ..batch.geometry };
        let table = PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, geometry.page_size)
            .expect("the batch is well formed");
        let options = PlanOptions::default();
        let select = |shape: &PackShape| Tile::new(if shape.rows > 16 { 32 } else { 16 }, 64, 2, 2);
        let forest = Forest::build(&table);
        let plan = Plan::build(&geometry, &table, &options, select).expect("it can be planned");
        let mut image = PackedPlan::default();
        let mut planner = Planner::new(options);
        println!(
            "{name:<44} {:>5.0} us {:>5.0} us {:>5.0} us {:>5.0} us {:>8}",
            median_us(|| Forest::build(&table).nodes().len()),
            median_us(|| Packs::build(&forest, &table, Packing::Pat).map_or(0, |packs| packs.packs().len())),
            median_us(|| planner.plan(&geometry, &table, select).map_or(0, |plan| plan.packs().len())),
            median_us(|| {
                image.fill(&plan);
                image.words().len()
            }),
            plan.work_items().len()
        );
        if name == TREES[0] {
            priced_packing(&mut criterion, &geometry, &forest, table.batch());
        }
    }
    batch_invariant_plans();
    small_packing(&mut criterion);
    several_queries(&batch(TREES[0]));
    live_forest(&batch(TREES[0]));
    live_plan(&batch(TREES[0]));
    criterion.final_summary();
}

/// Plans of one tile by default, and batch-invariant ones, which weigh up to 30 ways to plan.
fn batch_invariant_plans() {
    const CONVERSATIONS: &str = "seed: 23
trace:
  generate: {requests: 400, requests_per_second: 3.0, turn_tokens: 3000, output_tokens: 350, follow_ups: 0.4}
  max_batch: 64
  tokens_per_second: 25
  prefill_tokens_per_second: 20000
  at: {from: 35, to: 95, every: 20}";
    let trees = TREES.map(|tree| format!("trees: ['{tree}']"));
    let [first, second, third] = trees.each_ref().map(String::as_str);
    println!("\n{:<44} {:>12} {:>12}", "batches", "one tile", "batch-invariant");
    for (name, lines) in [
        ("tenants", "seed: 21\ntenants:\n  batches: 16"),
        ("conversations", CONVERSATIONS),
        (TREES[0], first),
        (TREES[1], second),
        (TREES[2], third),
    ] {
        let (mut usual, mut invariant) = (Vec::new(), Vec::new());
        for batch in batches(lines) {
            let geometry = Geometry { dtype: Dtype::F16, ..batch.geometry };
            let table =
                PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, geometry.page_size)
                    .expect("the batch is well formed");
            let family = chunk::families(Backend::Cuda, geometry.head_dim, geometry.dtype)[0];
            let options = PlanOptions::default();
            let mut planner = Planner::new(options);
            let tile = Tile::of("m64n64w4s2");
            usual.push(median_us(|| {
                planner.plan(&geometry, &table, tile).map_or(0, |plan| plan.packs().len())
            }));
            let mut planner = Planner::new(PlanOptions { split: Split::Invariant, ..options });
            invariant.push(median_us(|| {
                planner.plan(&geometry, &table, family).map_or(0, |plan| plan.packs().len())
            }));
        }
        let mean = |times: Vec<f64>| times.iter().sum::<f64>() / times.len() as f64;
        println!("{name:<44} {:>9.0} us {:>9.0} us", mean(usual), mean(invariant));
    }
    println!();
}

fn batch(tree: &str) -> Batch {
    batches(&format!("trees: ['{tree}']")).remove(0)
}

fn batches(lines: &str) -> Vec<Batch> {
    let text = format!("name: t\nheads: [[32, 8]]\npage_sizes: [32]\n{lines}\n");
    let scenario = Scenario::parse(&text, "bench.yaml").expect("the scenario is well formed");
    let specs = scenario.batches().expect("it makes batches");
    specs.into_iter().map(|spec| spec.build().expect("it can be built")).collect()
}

/// The first tree with more queries a request.
fn several_queries(batch: &Batch) {
    let geometry = Geometry { dtype: Dtype::F16, ..batch.geometry };
    let select = |_: &PackShape| Tile::of("m32n64w2s2");
    let (mut memory, mut planner) = (Queries::default(), Planner::new(PlanOptions::default()));
    for count in [1, 4, 8, 16] {
        let table = PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, geometry.page_size)
            .expect("the batch is well formed");
        let query_lens = vec![count; batch.seq_lens.len()];
        let queries = median_us(|| {
            table
                .with_queries(&query_lens, &mut memory)
                .map_or(0, |table| std::hint::black_box(table).batch())
        });
        let table = table.with_queries(&query_lens, &mut memory).expect("requests have as many tokens");
        println!(
            "{count:>2} queries a request: {queries:>3.0} us to number them, {:>4.0} us forest, {:>5.0} us plan",
            median_us(|| Forest::build(&table).nodes().len()),
            median_us(|| planner.plan(&geometry, &table, select).map_or(0, |plan| plan.packs().len()))
        );
    }
}

/// Changes of a decode step: 64 requests, spread over the batch, gain a page of their own; one arrives that shares all but the last
/// page of another; one leaves. Between the samples all is undone, outside of the time.
fn live_forest(batch: &Batch) {
    const GAINING: usize = 64;
    let page_size = batch.geometry.page_size;
    let table = PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, page_size)
        .expect("the batch is well formed");
    let mut forest = LiveForest::from_table(&table);
    let requests = table.batch() as u32;
    let fresh = batch.page_table.iter().max().map_or(0, |page| page + 1);
    let mut arriving = table.pages(table.batch() / 2).to_vec();
    if let Some(last) = arriving.last_mut() {
        *last = fresh;
    }
    let gaining: Vec<(u32, [i32; 1])> =
        (0..requests).step_by(table.batch() / GAINING).zip((fresh + 1..).map(|page| [page])).collect();

    let (mut appends, mut adds, mut removes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        forest.clear_touched();
        appends
            .push(timed_us(|| gaining.iter().try_for_each(|(request, page)| forest.append(*request, page))));
        for (request, _) in &gaining {
            let pages = forest.request_pages(*request).expect("it is there");
            forest.truncate(*request, pages - 1).expect("it has gained a page");
        }
        forest.clear_touched();
        adds.push(timed_us(|| forest.add(requests, &arriving)));
        forest.clear_touched();
        removes.push(timed_us(|| forest.remove(requests)));
    }
    println!(
        "\nlive forest: {} of {requests} requests gain a page {:>13.2} us",
        gaining.len(),
        median(appends)
    );
    println!("live forest: one arrives, {} pages {:>23.2} us", arriving.len(), median(adds));
    println!("live forest: one leaves {:>34.2} us", median(removes));
    println!(
        "live forest: from the page table {:>25.2} us",
        median_us(|| PrefixTree::capacity(&LiveForest::from_table(&table)))
    );
}

/// The same changes, each of them followed by the plan. Where requests gain pages, all gain one once more after all others did, so
/// that trees and plan are those of many steps of decoding; then all start again, outside of the time.
fn live_plan(batch: &Batch) {
    const GAINING: usize = 64;
    const PAGES: usize = 8;
    let geometry = Geometry { dtype: Dtype::F16, ..batch.geometry };
    let page_size = geometry.page_size;
    let table = PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, page_size)
        .expect("the batch is well formed");
    let select = |shape: &PackShape| Tile::new(if shape.rows > 16 { 32 } else { 16 }, 64, 2, 2);
    let requests = table.batch();
    let fresh = batch.page_table.iter().max().map_or(0, |page| page + 1);
    let mut planner =
        LivePlanner::from_table(&geometry, PlanOptions::default(), &table).expect("it can be planned");
    planner.plan(select).expect("it can be planned");

    let (mut gains, mut grows, mut adds, mut removes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut lengths, mut rows) = (batch.seq_lens.clone(), Vec::new());
    for request in 0..requests {
        rows.push(table.pages(request).len() as u32);
    }
    for _ in 0..ROUNDS / PAGES {
        let mut page = fresh;
        for step in 0..PAGES * requests / GAINING {
            gains.push(timed_us(|| {
                for index in 0..GAINING {
                    let request = (step + index * (requests / GAINING)) % requests;
                    let tokens = rows[request] * page_size + 1;
                    planner.append(request as u32, &[page], tokens)?;
                    (lengths[request], rows[request], page) = (tokens, rows[request] + 1, page + 1);
                }
                planner.plan(select).map(drop).map_err(LiveError::from)
            }));
        }
        grows.push(timed_us(|| {
            for (request, tokens) in (0..).zip(&lengths) {
                planner.grow(request, tokens + 1)?;
            }
            planner.plan(select).map(drop).map_err(LiveError::from)
        }));
        for request in 0..requests {
            let (pages, tokens) = (table.pages(request).len() as u32, batch.seq_lens[request]);
            planner.truncate(request as u32, pages, tokens).expect("it has gained pages");
            (lengths[request], rows[request]) = (tokens, pages);
        }
        planner.plan(select).expect("it can be planned");
    }
    let mut arriving = table.pages(requests / 2).to_vec();
    if let Some(last) = arriving.last_mut() {
        *last = fresh;
    }
    let tokens = arriving.len() as u32 * page_size;
    for _ in 0..ROUNDS {
        adds.push(timed_us(|| {
            planner.add(requests as u32, &arriving, tokens)?;
            planner.plan(select).map(drop).map_err(LiveError::from)
        }));
        removes.push(timed_us(|| {
            planner.remove(requests as u32)?;
            planner.plan(select).map(drop).map_err(LiveError::from)
        }));
    }
    let mut planner =
        LivePlanner::from_table(&geometry, PlanOptions::default(), &table).expect("it can be planned");
    println!();
    let rebuilt = timed_us(|| planner.plan(select).map(drop));
    for (what, times) in [
        (format!("{GAINING} of {requests} requests gain a page"), gains),
        (format!("{requests} grow inside pages"), grows),
        ("one arrives".to_owned(), adds),
        ("one leaves".to_owned(), removes),
        ("decisions, packs and items from nothing".to_owned(), vec![rebuilt]),
    ] {
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        println!("live plan: {what:<45} {:>8.2} us, {mean:>8.2} us on average", median(times));
    }
}

fn timed_us<E: std::fmt::Debug>(work: impl FnOnce() -> Result<(), E>) -> f64 {
    let begin = Instant::now();
    let result = std::hint::black_box(work());
    let time = begin.elapsed().as_secs_f64() * 1e6;
    result.expect("the change fits the batch");
    time
}

fn priced_packing(criterion: &mut Criterion, geometry: &Geometry, forest: &Forest, batch: usize) {
    let layout = PackLayout::new(geometry).for_batch(batch, &DeviceProfile::H200);
    let prices = Prices::default();
    let mut priced = Priced::new();
    criterion.bench_function("priced packing", |bencher| {
        bencher.iter(|| priced.decide(std::hint::black_box(forest), &layout, &prices));
    });
    let leaf = [forest.nodes().len() as u32 - 1];
    criterion.bench_function("priced packing, one leaf changed", |bencher| {
        bencher.iter(|| priced.update(forest, std::hint::black_box(&leaf), &[], &layout, &prices).len());
    });
    let tops: Vec<(u32, u32)> = (0..forest.capacity() as u32)
        .filter_map(|node| priced.tile_rows(node).map(|rows| (node, rows / layout.gqa_ratio)))
        .collect();
    let mut q_tiles = QTiles::default();
    criterion.bench_function("priced packing, Q tiles", |bencher| {
        bencher.iter(|| {
            q_tiles.clear();
            for &(top, capacity) in &tops {
                q_tiles.push_pack(forest, top, |node| priced.joined(node), capacity);
            }
            q_tiles.q_tiles().len()
        });
    });
}

fn small_packing(criterion: &mut Criterion) {
    let batch = batch(SMALL_TREE);
    let geometry = Geometry { dtype: Dtype::F16, ..batch.geometry };
    let table = PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, geometry.page_size)
        .expect("the batch is well formed");
    let forest = Forest::build(&table);
    let nodes = forest.nodes().len();
    let all = PackLayout::new(&geometry);
    let (prices, mut priced) = (Prices::default(), Priced::new());
    // So few requests leave one height of tiles on a device of many slots.
    for (heights, layout) in
        [("all heights", all), ("264 slots", all.for_batch(table.batch(), &DeviceProfile::H200))]
    {
        criterion.bench_function(&format!("priced packing, {nodes} nodes, {heights}"), |bencher| {
            bencher.iter(|| priced.decide(std::hint::black_box(&forest), &layout, &prices));
        });
    }
}

fn median_us(mut work: impl FnMut() -> usize) -> f64 {
    let samples = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            std::hint::black_box(work());
            begin.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    median(samples)
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
