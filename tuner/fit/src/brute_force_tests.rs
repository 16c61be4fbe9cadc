//! The fitter against brute force: every tree, every ranking at every leaf, under what emitted code does.

use super::*;
use proptest::prelude::*;
use std::time::Duration;
use tests::{exact, table};

/// The cost of the best ranking of at least one of `portfolio` for rows, each of which takes its first valid candidate, else the safe default.
fn best_ranking(table: &CostTable, rows: &[usize], portfolio: &[usize], default: usize) -> f64 {
    fn grow(
        table: &CostTable,
        rows: &[usize],
        whole: &[usize],
        default: usize,
        ranked: &mut Vec<usize>,
        best: &mut f64,
    ) {
        if !ranked.is_empty() {
            // What some candidate can run is never left to one that cannot.
            let valid =
                |row: usize, some: &[usize]| some.iter().any(|&i| table.rows()[row].costs[i].is_some());
            let served = |&row: &usize| valid(row, ranked) || valid(row, &[default]) || !valid(row, whole);
            if rows.iter().all(served) {
                let cost = rows.iter().map(|&row| row_cost(&table.rows()[row], ranked, default)).sum();
                *best = best.min(cost);
            }
        }
        for &candidate in whole {
            if !ranked.contains(&candidate) {
                ranked.push(candidate);
                grow(table, rows, whole, default, ranked, best);
                ranked.pop();
            }
        }
    }
    let mut best = f64::INFINITY;
    grow(table, rows, portfolio, default, &mut Vec::new(), &mut best);
    best
}

/// What a row costs under emitted code.
fn row_cost(row: &CostRow, ranked: &[usize], default: usize) -> f64 {
    let chosen = ranked.iter().chain([&default]).find_map(|&candidate| row.costs[candidate]);
    let worst = row.costs.iter().flatten().copied().fold(0.0, f64::max);
    row.weight * (chosen.unwrap_or(worst) / row.oracle() - 1.0)
}

/// The least cost of any tree of a depth: every feature, every gap.
fn brute_force(table: &CostTable, rows: &[usize], portfolio: &[usize], default: usize, depth: usize) -> f64 {
    let mut best = best_ranking(table, rows, portfolio, default);
    if depth > 0 {
        for feature in 0..table.features().len() {
            for &split in rows {
                let value = table.rows()[split].features[feature];
                let (low, high): (Vec<usize>, Vec<usize>) =
                    rows.iter().partition(|&&row| table.rows()[row].features[feature] <= value);
                if !low.is_empty() && !high.is_empty() {
                    let [low, high] =
                        [low, high].map(|part| brute_force(table, &part, portfolio, default, depth - 1));
                    best = best.min(low + high);
                }
            }
        }
    }
    best
}

fn optimum(table: &CostTable, fit: &Fit, depth: usize) -> f64 {
    let all: Vec<usize> = (0..table.rows().len()).collect();
    let weight: f64 = table.rows().iter().map(|row| row.weight).sum();
    brute_force(table, &all, &fit.portfolio, fit.safe_default, depth) / weight
}

/// Mean regret of a fit under emitted code.
fn emitted(table: &CostTable, fit: &Fit) -> f64 {
    let weight: f64 = table.rows().iter().map(|row| row.weight).sum();
    let cost = |row: &CostRow| row_cost(row, fit.tree.choose(&row.features), fit.safe_default);
    table.rows().iter().map(cost).sum::<f64>() / weight
}

/// Tables of up to `rows` rows in which a part of the cells is empty, with costs over as many powers of ten.
fn holes(rows: usize, decades: u32) -> impl Strategy<Value = CostTable> {
    (1usize..4, 1usize..5, 1usize..=rows, 1u32..=50).prop_flat_map(
        move |(features, candidates, rows, empty)| {
            let cost = (0u32..100, 1u32..40, 0u32..=decades).prop_map(move |(hole, digits, decade)| {
                (hole >= empty).then(|| f64::from(digits) * 10f64.powi(decade as i32))
            });
            let row = (
                prop::collection::vec(0u64..5, features),
                prop::collection::vec(cost, candidates),
                prop_oneof![Just(1.0), Just(0.5), Just(3.0)],
            );
            prop::collection::vec(row, rows).prop_filter_map("no row has a valid candidate", move |rows| {
                let rows = rows.into_iter().enumerate();
                let rows: Vec<CostRow> = rows
                    .map(|(group, (features, costs, weight))| CostRow {
                        features,
                        costs,
                        weight,
                        noise: 0.0,
                        group: group as u32,
                    })
                    .filter(|row| row.costs.iter().any(Option::is_some))
                    .collect();
                let names = |prefix: &str, count: usize| (0..count).map(|i| format!("{prefix}{i}")).collect();
                CostTable::new(names("f", features), names("c", candidates), rows).ok()
            })
        },
    )
}

fn cases(default: u32) -> ProptestConfig {
    // Anyone can run long: `PROPTEST_CASES=100000 cargo test -p tilewright-fit brute_force`.
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig { cases: default, ..ProptestConfig::default() },
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (a.abs() + b.abs()) + 1e-12
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn what_is_printed_is_the_best_of_all_trees(table in holes(12, 0), depth in 0usize..4) {
        let fit = fit(&table, &FitOptions { max_depth: depth, ..exact() }).unwrap();
        let expected = optimum(&table, &fit, depth);
        prop_assert!(close(fit.regret, emitted(&table, &fit)), "{} is {}", fit.regret, emitted(&table, &fit));
        prop_assert!(close(fit.regret, expected), "{} for {expected}", fit.regret);
        prop_assert!(fit.tree.depth() <= depth, "{:?}", fit.tree);
        prop_assert!(fit.proof.optimal && fit.proof.ended == Ended::Complete);
        prop_assert!(close(fit.proof.lower_bound, expected), "{:?} for {expected}", fit.proof);
    }

    #[test]
    fn ranges_of_twelve_decades_lose_nothing(table in holes(9, 12), depth in 0usize..3) {
        let fit = fit(&table, &FitOptions { max_depth: depth, ..exact() }).unwrap();
        let expected = optimum(&table, &fit, depth);
        prop_assert!(close(fit.regret, expected), "{} for {expected}", fit.regret);
        prop_assert!(fit.proof.optimal && fit.proof.lower_bound <= expected * (1.0 + 1e-12) + 1e-12);
    }

    #[test]
    fn a_small_portfolio_is_used_as_well_as_it_can_be(table in holes(10, 1), depth in 0usize..3, size in 1usize..4) {
        let fit = fit(&table, &FitOptions { max_depth: depth, portfolio: size, ..exact() }).unwrap();
        let expected = optimum(&table, &fit, depth);
        prop_assert!(close(fit.regret, emitted(&table, &fit)));
        prop_assert!(close(fit.regret, expected), "{} for {expected}", fit.regret);
        prop_assert!(fit.proof.optimal);
        // Every row is covered if any portfolio of this size can do that.
        let valid = |row: &CostRow| row.costs.iter().enumerate().fold(0u32, |set, (i, cost)| set | u32::from(cost.is_some()) << i);
        let covers = |set: u32| table.rows().iter().all(|row| valid(row) & set != 0);
        let possible = (0u32..1 << table.candidates().len()).any(|set| set.count_ones() as usize <= size && covers(set));
        prop_assert_eq!(fit.uncovered == 0, possible);
    }

    #[test]
    fn a_pruned_tree_is_judged_by_its_own_regret(table in holes(12, 0), depth in 0usize..3, least in 1usize..5, price in 0.0..0.9f64, leaves in 1usize..5) {
        let options = FitOptions { max_depth: depth, min_leaf_rows: least, leaf_price: price, max_leaves: leaves, ..exact() };
        let fit = fit(&table, &options).unwrap();
        let expected = optimum(&table, &fit, depth);
        prop_assert!(close(fit.regret, emitted(&table, &fit)));
        prop_assert!(fit.proof.lower_bound <= expected + 1e-9 * (1.0 + expected), "{:?} for {expected}", fit.proof);
        prop_assert!(!fit.proof.optimal || close(fit.regret, expected), "{:?} for {expected}", fit.proof);
        prop_assert_eq!(fit.proved().contains("no tree of depth") && !fit.proved().contains("above that"), fit.proof.optimal);
    }

    #[test]
    fn a_bound_is_one_wherever_the_work_ends(table in holes(12, 2), depth in 2usize..4, micros in 0u64..300) {
        let time_limit = Duration::from_micros(micros);
        let fit = fit(&table, &FitOptions { max_depth: depth, time_limit, ..exact() }).unwrap();
        let expected = optimum(&table, &fit, depth);
        prop_assert!(fit.proof.lower_bound <= expected + 1e-9 * (1.0 + expected), "{:?} for {expected}", fit.proof);
        prop_assert!(fit.regret >= expected - 1e-9 * (1.0 + expected));
        prop_assert!(!fit.proof.optimal || close(fit.regret, expected), "{:?} for {expected}", fit.proof);
    }
}

#[test]
fn empty_cells_are_fitted_as_they_are_emitted() {
    // No candidate is valid on every row that has a hole.
    let table = table(
        &[&[1], &[2], &[3], &[4], &[5], &[6]],
        &[
            &[Some(1.0), None, Some(3.0)],
            &[None, Some(1.0), Some(3.0)],
            &[Some(3.0), Some(1.0), None],
            &[Some(3.0), Some(1.0), None],
            &[None, Some(1.0), Some(3.0)],
            &[Some(1.0), None, Some(3.0)],
        ],
    );
    let fit = fit(&table, &FitOptions { max_depth: 1, ..exact() }).unwrap();
    assert_eq!((fit.regret, fit.proof.lower_bound, fit.proof.optimal), (0.0, 0.0, true));
    assert_eq!(fit.tree, Tree::Leaf { ranked: vec![1, 0], support: 6, regret: 0.0 });
}

#[test]
fn time_outs_leave_the_rest_its_resolution() {
    // A and B are 1 or 1e9 by x; C is 1.3 everywhere.
    for worst in [1e4, 1e9, 1e12, 1e200] {
        let rows = (0..20_000u32).map(|i| {
            let [a, b] = if i < 10_000 { [1.0, worst] } else { [worst, 1.0] };
            let features = vec![u64::from(i)];
            CostRow { features, costs: vec![Some(a), Some(b), Some(1.3)], weight: 1.0, noise: 0.0, group: i }
        });
        let names = ["A", "B", "C"].map(str::to_owned).to_vec();
        let table = CostTable::new(vec!["x".to_owned()], names, rows.collect()).unwrap();
        // The gap between 9 999 and 10 000 is among the thresholds only if all are.
        let fit = fit(&table, &FitOptions { max_depth: 2, ..FitOptions::default() }).unwrap();
        assert!(fit.regret < 0.005, "{worst}: {} {:?}", fit.regret, fit.tree);
        assert!(close(fit.regret, fit.proof.lower_bound), "{worst}: {} {:?}", fit.regret, fit.proof);
    }
}

#[test]
fn one_bad_cost_among_many_rows_hides_nothing() {
    // 1e5 rows, of which one has a cost of 1e4 under the candidate that is best by 5 % on half of the others.
    let rows = (0..100_000u32).map(|i| {
        let low = i % 2 == 0;
        let a = if i == 0 {
            1e4
        } else if low {
            1.0
        } else {
            1.05
        };
        let b = if low { 1.05 } else { 1.0 };
        CostRow {
            features: vec![u64::from(i % 2), u64::from(i)],
            costs: vec![Some(a), Some(b)],
            weight: 1.0,
            noise: 0.0,
            group: i,
        }
    });
    let table =
        CostTable::new(vec!["x".into(), "y".into()], vec!["a".into(), "b".into()], rows.collect()).unwrap();
    let fit = fit(&table, &FitOptions { max_depth: 2, ..exact() }).unwrap();
    assert!(fit.regret < 0.001 && fit.proof.optimal, "{} {:?}", fit.regret, fit.proof);
}

#[test]
fn a_leaf_of_the_safe_default_alone_breaks_no_bound() {
    // The default, A, is not in the portfolio of two. Alone it serves the rows of 3 and 4 best, but each lane of the portfolio is valid on one.
    let costs: [&[Option<f64>]; 9] = [
        &[Some(1.0), Some(1.0), None, None],
        &[Some(1.0), Some(20.0), None, None],
        &[Some(31.0), Some(70.0), Some(38.0), Some(38.0)],
        &[Some(150.0), Some(36.0), Some(100.0), Some(20.0)],
        &[Some(11.0), None, Some(7.0), Some(250.0)],
        &[Some(4.0), None, Some(140.0), Some(12.0)],
        &[None, None, Some(38.0), Some(310.0)],
        &[None, Some(200.0), Some(190.0), None],
        &[None, Some(4.0), None, Some(230.0)],
    ];
    let even = table(&[&[4], &[3], &[0], &[2], &[3], &[0], &[0], &[0], &[0]], &costs);
    let weights = [1.0, 3.0, 3.0, 3.0, 1.0, 3.0, 3.0, 3.0, 3.0];
    let rows = even.rows().iter().cloned().zip(weights).map(|(row, weight)| CostRow { weight, ..row });
    let (features, candidates) = (even.features().to_vec(), even.candidates().to_vec());
    let table = CostTable::new(features, candidates, rows.collect()).unwrap();
    for depth in 0..4 {
        let fit = fit(&table, &FitOptions { max_depth: depth, portfolio: 2, ..exact() }).unwrap();
        assert_eq!((&fit.portfolio[..], fit.safe_default), (&[1, 3][..], 0));
        let expected = optimum(&table, &fit, depth);
        assert!(close(fit.regret, expected), "{depth}: {} for {expected}", fit.regret);
        assert!(close(fit.regret, emitted(&table, &fit)) && fit.proof.optimal, "{depth}: {:?}", fit.proof);
    }
}
