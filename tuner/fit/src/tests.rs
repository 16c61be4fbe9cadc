//! The fitter against brute force, against noise, and against tables of all kinds.

use super::*;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

pub(super) fn table(features: &[&[u64]], costs: &[&[Option<f64>]]) -> CostTable {
    let rows = features
        .iter()
        .zip(costs)
        .enumerate()
        .map(|(i, (features, costs))| CostRow {
            features: features.to_vec(),
            costs: costs.to_vec(),
            weight: 1.0,
            noise: 0.0,
            group: i as u32,
        })
        .collect();
    let names = |prefix: &str, count: usize| (0..count).map(|i| format!("{prefix}{i}")).collect();
    CostTable::new(names("f", features[0].len()), names("c", costs[0].len()), rows).unwrap()
}

pub(super) fn exact() -> FitOptions {
    FitOptions {
        noise: 0.0,
        leaf_price: 0.0,
        min_leaf_rows: 1,
        portfolio: 16,
        max_leaves: 1 << 16,
        ..FitOptions::default()
    }
}

fn small_table() -> impl Strategy<Value = CostTable> {
    (1usize..4, 1usize..5, 1usize..13).prop_flat_map(|(features, candidates, rows)| {
        let cost = prop_oneof![8 => (1u32..40).prop_map(|c| Some(f64::from(c))), 1 => Just(None)];
        let row = (
            prop::collection::vec(0u64..5, features),
            prop::collection::vec(cost, candidates),
            prop_oneof![Just(1.0), Just(0.5), Just(3.0)],
            0u32..4,
        );
        prop::collection::vec(row, rows).prop_filter_map("some row has no valid candidate", move |rows| {
            let rows = rows.into_iter().map(|(features, costs, weight, group)| CostRow {
                features,
                costs,
                weight,
                noise: 0.0,
                group,
            });
            let names = |prefix: &str, count: usize| (0..count).map(|i| format!("{prefix}{i}")).collect();
            CostTable::new(names("f", features), names("c", candidates), rows.collect()).ok()
        })
    })
}

/// Rows of a device-like cost surface: features over a few powers of two, smooth costs, and noise.
fn realistic(
    rows: usize,
    candidates: usize,
    features: usize,
    values: u64,
    noise: f64,
    seed: u64,
) -> CostTable {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let rows = (0..rows)
        .map(|i| {
            let features: Vec<u64> = (0..features).map(|_| rng.random_range(0..values)).collect();
            let at = |f: usize| features[f % features.len()] as f64 / values as f64;
            let costs = (0..candidates)
                .map(|c| {
                    let (a, b) = (c % 4, c / 4);
                    let miss = (at(0) - a as f64 / 4.0).abs()
                        + (at(1) * at(2) - b as f64 / 10.0).abs()
                        + 0.2 * at(3) * a as f64;
                    Some((1.0 + 10.0 * at(1)) * (1.0 + miss) * (1.0 + noise * rng.random_range(-1.0..1.0)))
                })
                .collect();
            CostRow { features, costs, weight: 1.0, noise, group: i as u32 }
        })
        .collect();
    let names = |prefix: &str, count: usize| (0..count).map(|i| format!("{prefix}{i}")).collect();
    CostTable::new(names("f", features), names("c", candidates), rows).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_row_gets_a_valid_candidate(table in small_table(), depth in 0usize..6, portfolio in 2usize..5) {
        let fit = fit(&table, &FitOptions { max_depth: depth, portfolio, ..FitOptions::default() }).unwrap();
        for row in table.rows() {
            let ranked = fit.tree.choose(&row.features);
            let valid = ranked.iter().chain([&fit.safe_default]).any(|&candidate| row.costs[candidate].is_some());
            // With as many places as candidates every row can be covered.
            prop_assert!(valid || portfolio < table.candidates().len(), "{ranked:?} for {row:?}");
            prop_assert!(ranked.iter().all(|candidate| fit.portfolio.contains(candidate) || *candidate == fit.safe_default));
        }
    }

    #[test]
    fn no_path_asks_the_same_question_twice(table in small_table(), depth in 3usize..8) {
        fn walk(tree: &Tree, asked: &mut Vec<(usize, u64)>) -> bool {
            let Tree::Split { feature, threshold, low, high } = tree else { return true };
            if asked.contains(&(*feature, *threshold)) {
                return false;
            }
            asked.push((*feature, *threshold));
            let fine = walk(low, asked) && walk(high, asked);
            asked.pop();
            fine
        }
        let fit = fit(&table, &FitOptions { max_depth: depth, ..exact() }).unwrap();
        prop_assert!(walk(&fit.tree, &mut Vec::new()), "{:?}", fit.tree);
    }

    #[test]
    fn leaves_are_limited_and_cross_validation_covers_every_row(table in small_table(), leaves in 1usize..5, folds in 2usize..6) {
        let options = FitOptions { max_leaves: leaves, ..FitOptions::default() };
        prop_assert!(fit(&table, &options).unwrap().tree.leaves() <= leaves);
        let validation = cross_validate(&table, &options, folds).unwrap();
        prop_assert!(validation.policies.iter().all(|policy| policy.per_row.len() == table.rows().len()));
        prop_assert!(validation.policies.iter().flat_map(|policy| &policy.per_row).all(|r| r.is_finite() && *r >= 0.0));
    }
}

#[test]
fn a_leaf_chooses_the_best_for_the_rows_that_can_have_it() {
    // Candidate 1 is best wherever it is valid; candidate 0 is valid everywhere, candidate 2 too, and worse.
    let features: Vec<[u64; 1]> = (0..8).map(|i| [i]).collect();
    let features: Vec<&[u64]> = features.iter().map(|row| &row[..]).collect();
    let costs: Vec<[Option<f64>; 3]> =
        (0..8).map(|i| [Some(1.2), (i != 3).then_some(1.0), Some(1.5)]).collect();
    let costs: Vec<&[Option<f64>]> = costs.iter().map(|row| &row[..]).collect();
    let fit = fit(&table(&features, &costs), &exact()).unwrap();
    assert_eq!(fit.tree, Tree::Leaf { ranked: vec![1, 0], support: 8, regret: 0.0 });
}

#[test]
fn two_questions_that_gain_nothing_alone_are_found_together() {
    // The best candidate is the parity of two features: no single question gains anything.
    let cost = |best: bool| if best { Some(1.0) } else { Some(2.0) };
    let rows: Vec<[u64; 3]> = (0..16).map(|i| [i % 2, i / 2 % 2, i / 4]).collect();
    let features: Vec<&[u64]> = rows.iter().map(|row| &row[..]).collect();
    let costs: Vec<[Option<f64>; 2]> =
        rows.iter().map(|row| [cost(row[0] == row[1]), cost(row[0] != row[1])]).collect();
    let costs: Vec<&[Option<f64>]> = costs.iter().map(|row| &row[..]).collect();
    let table = table(&features, &costs);
    let one = fit(&table, &FitOptions { max_depth: 1, ..exact() }).unwrap();
    assert_eq!(one.tree.leaves(), 1);
    let two = fit(&table, &FitOptions { max_depth: 2, ..exact() }).unwrap();
    assert_eq!((two.regret, two.tree.leaves()), (0.0, 4));
}

#[test]
fn trees_deeper_than_the_proof_are_refined_by_looking_ahead() {
    let table = realistic(200, 12, 4, 12, 0.0, 1);
    let regret = |max_depth| fit(&table, &FitOptions { max_depth, ..exact() }).unwrap().regret;
    let (shallow, deep) = (regret(3), regret(6));
    assert!(deep < 0.7 * shallow, "{deep} after {shallow}");
}

#[test]
fn a_second_measurement_changes_few_decisions() {
    let options = FitOptions::default();
    let (first, second) = (realistic(500, 4, 6, 12, 0.005, 2), realistic(500, 4, 6, 12, 0.005, 2));
    // Other noise on the same workloads: each cost moves by up to half a percent.
    let mut rng = ChaCha8Rng::seed_from_u64(99);
    let rows = second.rows().iter().map(|row| {
        let costs =
            row.costs.iter().map(|cost| cost.map(|cost| cost * rng.random_range(0.996..1.004))).collect();
        CostRow { costs, ..row.clone() }
    });
    let second =
        CostTable::new(second.features().to_vec(), second.candidates().to_vec(), rows.collect()).unwrap();
    let (a, b) = (fit(&first, &options).unwrap(), fit(&second, &options).unwrap());
    let changed = first
        .rows()
        .iter()
        .filter(|row| a.tree.choose(&row.features) != b.tree.choose(&row.features))
        .count();
    assert!(changed * 10 <= first.rows().len(), "{changed} of {} decisions changed", first.rows().len());
}

#[test]
fn ties_prefer_few_distinct_candidates() {
    // Candidate 2 ties with the best everywhere; candidates 0 and 1 are each best on one half.
    let features: Vec<[u64; 1]> = (0..8).map(|i| [i]).collect();
    let features: Vec<&[u64]> = features.iter().map(|row| &row[..]).collect();
    let costs: Vec<[Option<f64>; 3]> = (0..8)
        .map(|i| {
            if i < 4 {
                [Some(100.0), Some(150.0), Some(100.5)]
            } else {
                [Some(150.0), Some(100.0), Some(100.5)]
            }
        })
        .collect();
    let costs: Vec<&[Option<f64>]> = costs.iter().map(|row| &row[..]).collect();
    let fit = fit(&table(&features, &costs), &FitOptions { noise: 0.01, ..FitOptions::default() }).unwrap();
    assert_eq!(fit.tree, Tree::Leaf { ranked: vec![2], support: 8, regret: 0.0 });
}

#[test]
fn the_same_table_gives_the_same_fit() {
    let table = realistic(300, 20, 6, 10, 0.01, 3);
    let options = FitOptions::default();
    let first = fit(&table, &options).unwrap();
    for _ in 0..3 {
        assert_eq!(fit(&table, &options).unwrap(), first);
    }
}

#[test]
fn eight_candidates_come_near_the_oracle_and_the_tree_near_them() {
    let table = realistic(600, 12, 6, 16, 0.01, 4);
    let fit = fit(&table, &FitOptions { max_depth: 4, ..FitOptions::default() }).unwrap();
    assert!(fit.portfolio.len() <= 8 && fit.portfolio_regret < 0.02, "{}", fit.portfolio_regret);
    let validation =
        cross_validate(&table, &FitOptions { max_depth: 3, ..FitOptions::default() }, 3).unwrap();
    let mean = |name: &str| validation.policies.iter().find(|policy| policy.name == name).unwrap().mean;
    assert!(
        mean("selector") < mean("best single tile") && mean("selector") < mean("winner-label CART"),
        "{validation:?}"
    );
}

#[test]
fn a_search_that_runs_out_of_time_returns_a_tree_and_a_bound() {
    let table = realistic(2000, 16, 12, 60, 0.05, 5);
    let options = FitOptions {
        max_depth: 4,
        portfolio: 16,
        time_limit: Duration::from_millis(300),
        ..FitOptions::default()
    };
    let begin = Instant::now();
    let fit = fit(&table, &options).unwrap();
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
    assert!(!fit.proof.optimal && fit.proof.lower_bound <= fit.regret);
    assert!(fit.proof.lower_bound >= fit.portfolio_regret - 1e-12);
    assert!(fit.tree.leaves() > 1);
}

/// Costs that are linear in the features, with as much noise as signal: no tree is good, and none is much better than many others.
fn noisy(rows: u32, features: usize, candidates: usize) -> CostTable {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let slopes: Vec<Vec<f64>> =
        (0..candidates).map(|_| (0..features).map(|_| rng.random_range(-1.5..1.5)).collect()).collect();
    let rows = (0..rows).map(|group| {
        let features: Vec<u64> = (0..features).map(|_| rng.random_range(0..1000)).collect();
        let at = |slopes: &[f64]| -> f64 {
            slopes.iter().zip(&features).map(|(slope, &value)| slope * value as f64 / 1000.0).sum()
        };
        let costs =
            slopes.iter().map(|slopes| Some(10.0 + at(slopes) + rng.random_range(-1.5..1.5))).collect();
        CostRow { features, costs, weight: 1.0, noise: 0.0, group }
    });
    let names = |prefix: &str, count: usize| (0..count).map(|i| format!("{prefix}{i}")).collect();
    CostTable::new(names("f", features), names("c", candidates), rows.collect()).unwrap()
}

#[test]
fn noise_is_searched_to_the_end_within_its_work() {
    let options = FitOptions {
        time_limit: Duration::from_secs(4),
        clock: false,
        max_leaves: 16,
        ..FitOptions::default()
    };
    let fit = fit(&noisy(1500, 8, 16), &options).unwrap();
    let Proof { optimal, ended, thresholds, lower_bound, .. } = fit.proof;
    assert!(optimal && ended == Ended::Complete, "{:?}", fit.proof);
    assert!(thresholds.is_some_and(|thresholds| thresholds >= 10) && lower_bound > 0.03, "{:?}", fit.proof);
    assert!(fit.proved().contains("thresholds a feature has less mean regret (proven)"), "{}", fit.proved());
}

#[test]
fn a_bound_holds_wherever_time_runs_out() {
    // Two values a feature: all first questions are taken up at once, and time can only run out inside them.
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let rows = (0..3000).map(|group| {
        let features: Vec<u64> = (0..8).map(|_| rng.random_range(0..2)).collect();
        let best = (0..4).map(|bit| (features[2 * bit] ^ features[2 * bit + 1]) << bit).sum::<u64>();
        let costs = (0..16).map(|c| Some(if c == best { 1.0 } else { rng.random_range(1.3..1.7) })).collect();
        CostRow { features, costs, weight: 1.0, noise: 0.0, group }
    });
    let names = |prefix: &str, count: usize| (0..count).map(|i| format!("{prefix}{i}")).collect();
    let table = CostTable::new(names("f", 8), names("c", 16), rows.collect()).unwrap();
    let proof = |time_limit| fit(&table, &FitOptions { max_depth: 4, time_limit, ..exact() }).unwrap().proof;
    let begin = Instant::now();
    let optimum = proof(Duration::MAX);
    let whole = begin.elapsed();
    assert!(optimum.optimal);
    for part in 0..40 {
        let cut = proof(whole * part / 40);
        assert!(cut.lower_bound <= optimum.unshaped, "{cut:?} though {optimum:?}");
    }
}

#[test]
fn odd_tables_are_fitted_without_panic() {
    let one = table(&[&[]], &[&[Some(1.0)]]);
    assert_eq!(fit(&one, &FitOptions::default()).unwrap().tree.leaves(), 1);
    let extreme = table(
        &[&[u64::MAX, 0], &[0, u64::MAX]],
        &[&[Some(1e300), Some(1e-300)], &[Some(1e-300), Some(1e300)]],
    );
    let fit_extreme = fit(&extreme, &exact()).unwrap();
    assert_eq!(fit_extreme.tree.leaves(), 2);
    let rows: Vec<[u64; 2]> = vec![[7, 7]; 3000];
    let features: Vec<&[u64]> = rows.iter().map(|row| &row[..]).collect();
    let costs: Vec<&[Option<f64>]> = vec![&[Some(1.0), Some(2.0)]; 3000];
    assert_eq!(fit(&table(&features, &costs), &FitOptions::default()).unwrap().tree.leaves(), 1);
    let validation = cross_validate(&one, &FitOptions::default(), 5).unwrap();
    assert_eq!(validation.folds, 1);
}

#[test]
fn bad_tables_and_options_are_refused_with_their_place() {
    let row =
        |costs: Vec<Option<f64>>| CostRow { features: vec![1], costs, weight: 1.0, noise: 0.0, group: 0 };
    let make =
        |rows: Vec<CostRow>| CostTable::new(vec!["f".to_owned()], vec!["a".to_owned(), "b".to_owned()], rows);
    assert_eq!(make(vec![]), Err(FitError::NoRows));
    assert_eq!(make(vec![row(vec![None, None])]), Err(FitError::NoValidCandidate { row: 0 }));
    for cost in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error =
            make(vec![row(vec![Some(1.0), Some(1.0)]), row(vec![Some(1.0), Some(cost)])]).unwrap_err();
        assert!(matches!(&error, FitError::BadCost { row: 1, candidate, .. } if candidate == "b"), "{error}");
    }
    assert!(matches!(make(vec![row(vec![Some(1.0)])]), Err(FitError::Ragged { .. })));
    let heavy = CostRow { weight: 1e308, ..row(vec![Some(1.0), Some(1.0)]) };
    assert_eq!(make(vec![heavy.clone(), heavy]), Err(FitError::WeightsTooLarge));
    let good = make(vec![row(vec![Some(1.0), None])]).unwrap();
    let error = fit(&good, &FitOptions { portfolio: 17, ..FitOptions::default() }).unwrap_err();
    assert!(error.to_string().contains("`portfolio`"), "{error}");
}
