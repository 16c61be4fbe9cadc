//! How long the search for the best tree takes, on tables of the size that tuning produces at most.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Instant;
use tilewright_fit::{CostRow, CostTable, FitOptions, fit};

const ROWS: usize = 3000;
const CANDIDATES: usize = 16;
const FEATURES: usize = 12;

fn main() {
    println!("{ROWS} workloads x {CANDIDATES} candidates x {FEATURES} features");
    println!(
        "{:>8} {:>7} {:>6} {:>9} {:>10} {:>10} {:>8}",
        "values", "noise", "depth", "seconds", "objective", "bound", "leaves"
    );
    for (values, noise) in [(8, 0.02), (32, 0.02), (64, 0.02), (64, 0.5)] {
        let table = table(values, noise);
        for depth in [2, 3, 4] {
            let options = FitOptions {
                portfolio: 16,
                max_depth: depth,
                max_leaves: 64,
                leaf_price: 0.0,
                min_leaf_rows: 1,
                ..FitOptions::default()
            };
            let begin = Instant::now();
            let fit = fit(&table, &options).expect("the table is well formed");
            println!(
                "{values:>8} {noise:>7} {depth:>6} {:>9.2} {:>9.3} % {:>9.3} % {:>8}",
                begin.elapsed().as_secs_f64(),
                fit.regret * 100.0,
                fit.proof.lower_bound * 100.0,
                fit.tree.leaves()
            );
        }
    }
}

/// A device-like cost surface: which candidate is best moves with four of the features; the rest is noise.
fn table(values: u64, noise: f64) -> CostTable {
    let mut rng = ChaCha8Rng::seed_from_u64(values);
    let rows = (0..ROWS as u32)
        .map(|group| {
            let features: Vec<u64> = (0..FEATURES).map(|_| rng.random_range(0..values)).collect();
            let at = |f: usize| features[f] as f64 / values as f64;
            let costs = (0..CANDIDATES)
                .map(|c| {
                    let (a, b) = ((c % 4) as f64 / 4.0, (c / 4) as f64 / 4.0);
                    let miss = (at(0) - a).abs() + (at(1) * at(2) - b).abs() + 0.2 * at(3) * a;
                    Some((1.0 + 10.0 * at(1)) * (1.0 + miss) * (1.0 + noise * rng.random_range(0.0..1.0)))
                })
                .collect();
            CostRow { features, costs, weight: 1.0, noise: 0.0, group }
        })
        .collect();
    let names = |prefix: &str, count: usize| (0..count).map(|i| format!("{prefix}{i}")).collect();
    CostTable::new(names("f", FEATURES), names("c", CANDIDATES), rows).expect("the table is well formed")
}
