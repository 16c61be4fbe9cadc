//! What planning costs the host: page table -> forest -> packs -> tiles -> work items, from nothing, and the image that goes up.
//!
//! `cargo bench -p tilewright-runtime --bench plan`

use std::time::Instant;
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
use tilewright_runtime::cuda::PlanImage;
use tilewright_runtime::{Forest, Packing, Packs, PageTable, Plan, PlanOptions, Planner, Split};
use tilewright_scenarios::Scenario;

const TREES: [&str; 3] = ["1,16,32,64,256,1024_256,128,64,32,32,32", "256_4096", "1,1024_2048,32"];
const ROUNDS: usize = 200;

fn main() {
    println!(
        "{:<44} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "tree, 32/8, page 32", "forest", "packs", "plan", "image", "items"
    );
    for tree in TREES {
        let text = format!("name: t\nheads: [[32, 8]]\npage_sizes: [32]\ntrees: ['{tree}']\n");
        let scenario = Scenario::parse(&text, "bench.yaml").expect("the scenario is well formed");
        let spec = scenario.batches().expect("it makes a batch").remove(0);
        let batch = spec.build().expect("it can be built");
        let geometry = Geometry { dtype: Dtype::F16, ..batch.geometry };
        let table = PageTable::new(&batch.page_table, batch.max_pages, &batch.seq_lens, geometry.page_size)
            .expect("the batch is well formed");
        let options = PlanOptions { split: Split::Fill { slots: 264 }, ..PlanOptions::default() };
        let select =
            |shape: &PackShape| Tile { m: if shape.rows > 16 { 32 } else { 16 }, n: 64, warps: 2, stages: 2 };
        let forest = Forest::build(&table);
        let plan = Plan::build(&geometry, &table, &options, select).expect("it can be planned");
        let mut image = PlanImage::default();
        let mut planner = Planner::new(options);
        println!(
            "{tree:<44} {:>5.0} us {:>5.0} us {:>5.0} us {:>5.0} us {:>8}",
            median_us(|| Forest::build(&table).nodes().len()),
            median_us(|| Packs::build(&forest, &table, Packing::Pat).packs().len()),
            median_us(|| planner.plan(&geometry, &table, select).map_or(0, |plan| plan.packs().len())),
            median_us(|| {
                image.fill(&plan);
                image.words().len()
            }),
            plan.work_items().len()
        );
    }
}

fn median_us(mut work: impl FnMut() -> usize) -> f64 {
    let mut samples: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            std::hint::black_box(work());
            begin.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[ROUNDS / 2]
}
