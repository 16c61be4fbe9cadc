//! Tables as tuners of other kernels leave them: with holes everywhere, and with costs over many decades.

use super::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;
use tests::exact;

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}

fn options() -> FitOptions {
    FitOptions { max_depth: 4, time_limit: Duration::from_secs(2), clock: false, ..FitOptions::default() }
}

fn mean(validation: &Validation, name: &str) -> f64 {
    validation.policies.iter().find(|policy| policy.name == name).unwrap().mean
}

/// A smooth surface with a part of its cells empty.
fn smooth(rows: u32, candidates: usize, holes: f64, seed: u64) -> CostTable {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let rows = (0..rows).map(|group| {
        let features: Vec<u64> = (0..4).map(|_| rng.random_range(0..64)).collect();
        let at = |f: usize| features[f] as f64 / 64.0;
        let mut costs: Vec<Option<f64>> = (0..candidates)
            .map(|c| {
                let (a, b) = ((c % 4) as f64 / 4.0, (c / 4) as f64 / 4.0);
                let miss = (at(0) - a).abs() + (at(1) * at(2) - b).abs() + 0.2 * at(3) * a;
                (rng.random::<f64>() >= holes)
                    .then(|| (1.0 + 10.0 * at(1)) * (1.0 + miss) * (1.0 + 0.02 * rng.random::<f64>()))
            })
            .collect();
        costs[0] = costs[0].or(Some(20.0));
        CostRow { features, costs, weight: 1.0, noise: 0.0, group }
    });
    CostTable::new(names("f", 4), names("c", candidates), rows.collect()).unwrap()
}

/// Like a find database of convolutions: 17 solvers, each for some classes of problems, 13 062 problems over twelve decades of time.
fn find_database() -> CostTable {
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    let speed: Vec<f64> = (0..17).map(|_| rng.random_range(0.8..3.0)).collect();
    let slope: Vec<[f64; 3]> = (0..17).map(|_| [0; 3].map(|_| rng.random_range(-1.0..1.0))).collect();
    let rows = (0..13_062).map(|group| {
        let batch = 1u64 << rng.random_range(0..9);
        let channels = [3u64, 16, 64, 256, 1024][rng.random_range(0..5)];
        let size = [7u64, 14, 28, 56, 112, 224][rng.random_range(0..6)];
        let filter = [1u64, 1, 3, 3, 5, 7][rng.random_range(0..6)];
        let (stride, direction, kind) =
            (rng.random_range(1..3u64), rng.random_range(0..3u64), rng.random_range(0..3u64));
        let work = (batch * channels * channels * size * size * filter * filter) as f64;
        let at = [batch as f64 / 256.0, channels as f64 / 1024.0, size as f64 / 224.0];
        let mut cost = |solver: usize| {
            let runs = match solver % 4 {
                0 => filter == 3,
                1 => stride == 1 && direction != 2,
                2 => direction == (solver as u64 / 4) % 3,
                _ => kind == (solver as u64 / 4) % 3,
            };
            let trend: f64 = slope[solver].iter().zip(at).map(|(slope, at)| slope * at).sum();
            let cost = 1e-6 * work.powf(0.9) * speed[solver] * trend.exp() * rng.random_range(1.0..1.1);
            (runs && rng.random::<f64>() < 0.7).then_some(cost)
        };
        let mut costs: Vec<Option<f64>> = (0..16).map(&mut cost).collect();
        let naive = 3e-5 * work.powf(0.9);
        costs.push((costs.iter().all(Option::is_none) || rng.random::<f64>() < 0.1).then_some(naive));
        let features = vec![batch, channels, size, filter, stride, direction, kind];
        CostRow { features, costs, weight: 1.0, noise: 0.0, group }
    });
    CostTable::new(names("p", 7), names("solver", 17), rows.collect()).unwrap()
}

#[test]
fn a_few_holes_cost_about_as_little_as_they_are() {
    for holes in [0.01, 0.05] {
        let table = smooth(2000, 8, holes, 3);
        let validation = cross_validate(&table, &options(), 3).unwrap();
        let (selector, cart) = (mean(&validation, "selector"), mean(&validation, CART));
        assert!(selector < cart && selector < 0.03, "{holes}: {selector} against {cart}");
        let fit = fit(&table, &options()).unwrap();
        assert!(
            fit.proof.lower_bound <= fit.regret && fit.regret < 0.03,
            "{holes}: {} {:?}",
            fit.regret,
            fit.proof
        );
    }
}

#[test]
fn a_find_database_gets_a_better_tree_than_its_labels_say() {
    let table = find_database();
    let filled = table.rows().iter().map(|row| row.costs.iter().flatten().count()).sum::<usize>() as f64;
    let filled = filled / 13_062.0 / 17.0;
    assert!((0.2..0.35).contains(&filled), "{filled}");
    let options = FitOptions { portfolio: 16, ..options() };
    let validation = cross_validate(&table, &options, 2).unwrap();
    let (selector, cart) = (mean(&validation, "selector"), mean(&validation, CART));
    assert!(selector < 0.8 * cart, "{selector} against {cart}");
    let fit = fit(&table, &options).unwrap();
    assert_eq!(fit.uncovered, 0);
    assert!(fit.proof.lower_bound <= fit.regret);
}

#[test]
fn the_same_table_gives_the_same_bytes_at_the_work_limit() {
    let table = smooth(1500, 8, 0.1, 4);
    let options = FitOptions { time_limit: Duration::from_millis(30), ..options() };
    let whole = || {
        let (fit, validation) = fit_and_validate(&table, &options, 3, &|_| ()).unwrap();
        (fit.proof.ended, serde_json::to_string(&(fit, validation)).unwrap())
    };
    let first = whole();
    assert_eq!(first.0, Ended::Work);
    assert_eq!(whole(), first);
}

#[test]
fn a_fit_and_its_folds_keep_their_time() {
    let table = smooth(2500, 16, 0.02, 5);
    let options = FitOptions { portfolio: 16, time_limit: Duration::from_secs(3), clock: true, ..exact() };
    let events = std::sync::Mutex::new(Vec::new());
    let begin = Instant::now();
    fit_and_validate(&table, &options, 4, &|event| events.lock().unwrap().push(event)).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    let events = events.into_inner().unwrap();
    assert_eq!(events.iter().filter(|event| **event == Event::Done).count(), 5);
    assert!(events.iter().any(|event| matches!(event, Event::At(text) if text.starts_with("a tree of "))));
    assert!(events.iter().any(|event| matches!(event, Event::At(text) if text.starts_with("fold 4 of 4: "))));
}
