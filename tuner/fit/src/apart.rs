//! Parts of a table that have nothing to learn from each other, such as kernels of different head dimensions: each gets a portfolio and a tree of
//! its own, below the questions that tell them apart. One search over all of them would spend its candidates and leaves on the largest part.

use super::limits::Watch;
use super::regrets::Regrets;
use super::{CostTable, Ended, Fit, FitError, FitOptions, Proof, Tree, fit_within, portfolio};
use std::time::Instant;

/// Rows of a part for each leaf of its tree, at most: of 23 batches, two leaves took 1.06 of what one takes on others, where they saved 1.5 % on these.
const ROWS_A_LEAF: usize = 16;

/// A question that tells parts apart: rows whose `feature` is at most `threshold`, and the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// Index of the feature.
    pub feature: usize,
    /// Rows of at most this go low.
    pub threshold: u64,
}

/// A table, divided by the first question that divides it.
struct Divided {
    by: Apart,
    rows: [Vec<usize>; 2],
    /// The questions after that one.
    further: Vec<Apart>,
}

impl Divided {
    /// `None` where no question divides these rows into two that weigh something.
    fn of(table: &CostTable, rows: &[usize], questions: &[Apart]) -> Option<Self> {
        questions.iter().enumerate().find_map(|(at, &by)| {
            let goes_low = |row: &usize| table.rows()[*row].features[by.feature] <= by.threshold;
            let (low, high): (Vec<usize>, Vec<usize>) = rows.iter().partition(|row| goes_low(row));
            let weighs = |rows: &[usize]| rows.iter().any(|&row| table.rows()[row].weight > 0.0);
            let divides = weighs(&low) && weighs(&high);
            divides.then(|| Self { by, rows: [low, high], further: questions[at + 1..].to_vec() })
        })
    }
}

/// Fits each part in its share of the work; `None` where the table is one part.
pub(super) fn fit_apart(
    table: &CostTable,
    options: &FitOptions,
    work: u64,
    deadline: Instant,
    watch: Watch<'_>,
) -> Result<Option<Fit>, FitError> {
    let all: Vec<usize> = (0..table.rows().len()).collect();
    let Some(Divided { by, rows, further }) = Divided::of(table, &all, &options.apart) else {
        return Ok(None);
    };
    let of_parts = FitOptions { apart: further, ..options.clone() };
    let part = |rows: &Vec<usize>| {
        let share = (work as f64 * rows.len() as f64 / all.len() as f64) as u64;
        let max_leaves = options.max_leaves.min(rows.len() / ROWS_A_LEAF).max(1);
        let of_part = FitOptions { max_leaves, ..of_parts.clone() };
        fit_within(&table.subset(rows.iter().copied()), &of_part, share, deadline, watch)
    };
    // Side by side: a search has work for a few threads. Each part has its own share of the work, so that the result does not depend on the other.
    let [low, high] = std::thread::scope(|scope| {
        let high = scope.spawn(|| part(&rows[1]));
        [part(&rows[0]), high.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))]
    });
    let (low, high) = (low?, high?);
    let regrets = Regrets::of(table, options.noise);
    let weight = |rows: &[usize]| rows.iter().map(|&row| regrets.weight(row)).sum::<f64>();
    let (of_low, of_high) = (weight(&rows[0]), weight(&rows[1]));
    let mean = |of: &dyn Fn(&Fit) -> f64| of(&low) * of_low + of(&high) * of_high;

    let safe_default = portfolio::safe_default(table, &regrets);
    let tree = Tree::Split {
        feature: by.feature,
        threshold: by.threshold,
        low: Box::new(low.tree.clone()),
        high: Box::new(high.tree.clone()),
    };
    let regret = regrets.mean_of(|row| tree.choose(&table.rows()[row].features), safe_default);
    let proof = Proof {
        lower_bound: mean(&|fit| fit.proof.lower_bound).min(regret),
        optimal: low.proof.optimal && high.proof.optimal,
        unshaped: mean(&|fit| fit.proof.unshaped),
        depth: options.max_depth,
        thresholds: [low.proof.thresholds, high.proof.thresholds].into_iter().flatten().min(),
        ended: ended(low.proof.ended, high.proof.ended),
        parts: low.proof.parts + high.proof.parts,
    };
    let mut portfolio = [low.portfolio.clone(), high.portfolio.clone()].concat();
    portfolio.sort_unstable();
    portfolio.dedup();
    Ok(Some(Fit {
        portfolio_regret: mean(&|fit| fit.portfolio_regret).min(regret),
        uncovered: low.uncovered + high.uncovered,
        tree,
        portfolio,
        safe_default,
        regret,
        proof,
    }))
}

const fn ended(one: Ended, other: Ended) -> Ended {
    match (one, other) {
        (Ended::Clock, _) | (_, Ended::Clock) => Ended::Clock,
        (Ended::Work, _) | (_, Ended::Work) => Ended::Work,
        (Ended::Complete, Ended::Complete) => Ended::Complete,
    }
}

/// What is known of the rows of a part: no less than, and at most.
#[derive(Clone, Debug, Default)]
pub(super) struct Bounds(Vec<(usize, u64, u64)>);

impl Bounds {
    fn side(&self, by: Apart, low: bool) -> Self {
        let (from, to) = self.of(by.feature);
        let narrowed =
            if low { (from, to.min(by.threshold)) } else { (from.max(by.threshold.saturating_add(1)), to) };
        let mut all = self.0.clone();
        all.retain(|(feature, ..)| *feature != by.feature);
        all.push((by.feature, narrowed.0, narrowed.1));
        Self(all)
    }

    fn of(&self, feature: usize) -> (u64, u64) {
        let known = self.0.iter().find(|(known, ..)| *known == feature);
        known.map_or((0, u64::MAX), |&(_, from, to)| (from, to))
    }

    /// The tree without the questions whose answer is known.
    pub(super) fn without_known(&self, tree: &Tree) -> Tree {
        match tree {
            Tree::Leaf { .. } => tree.clone(),
            Tree::Split { feature, threshold, low, high } => match self.of(*feature) {
                (_, to) if to <= *threshold => self.without_known(low),
                (from, _) if from > *threshold => self.without_known(high),
                _ => Tree::Split {
                    feature: *feature,
                    threshold: *threshold,
                    low: Box::new(self.without_known(low)),
                    high: Box::new(self.without_known(high)),
                },
            },
        }
    }
}

/// A tree of a tree for each part, which `of_part` is asked for with the part's rows and what is known of them.
pub(super) fn of_parts(
    table: &CostTable,
    rows: &[usize],
    questions: &[Apart],
    bounds: &Bounds,
    of_part: &mut dyn FnMut(&[usize], &Bounds) -> Tree,
) -> Tree {
    let Some(Divided { by, rows, further }) = Divided::of(table, rows, questions) else {
        return of_part(rows, bounds);
    };
    let mut side =
        |rows: &[usize], low| Box::new(of_parts(table, rows, &further, &bounds.side(by, low), of_part));
    Tree::Split {
        feature: by.feature,
        threshold: by.threshold,
        low: side(&rows[0], true),
        high: side(&rows[1], false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CostRow, fit};

    /// Rows of two kinds: of the first, 40, small values want candidate 0 and others 1; of the second, 6, all want 2, which is bad elsewhere.
    fn table() -> CostTable {
        let row = |kind: u64, value: u64| {
            let costs = match (kind, value <= 10) {
                (0, true) => [1.0, 1.5, 3.0],
                (0, false) => [1.5, 1.0, 3.0],
                _ => [1.4, 1.3, 1.0],
            };
            let costs = costs.map(Some).to_vec();
            CostRow { features: vec![kind, value], costs, weight: 1.0, noise: 0.0, group: value as u32 }
        };
        let rows = (1..=40).map(|value| row(0, value)).chain((1..=6).map(|value| row(1, value * 3)));
        let candidates = ["small", "large", "other"].map(str::to_owned).to_vec();
        CostTable::new(vec!["kind".to_owned(), "value".to_owned()], candidates, rows.collect()).unwrap()
    }

    fn options() -> FitOptions {
        FitOptions {
            portfolio: 2,
            max_depth: 1,
            noise: 0.0,
            min_leaf_rows: 1,
            leaf_price: 0.0,
            ..FitOptions::default()
        }
    }

    const KIND: Apart = Apart { feature: 0, threshold: 0 };

    #[test]
    fn each_part_has_candidates_and_questions_of_its_own() {
        let table = table();
        assert!(
            fit(&table, &options()).unwrap().regret > 0.01,
            "two candidates and one question are too few for all"
        );
        let apart = FitOptions { apart: vec![KIND], ..options() };
        let fit = fit(&table, &apart).unwrap();
        assert_eq!((fit.regret, fit.tree.leaves(), fit.tree.depth()), (0.0, 3, 2));
        assert_eq!((&fit.portfolio[..], fit.proof.parts, fit.proof.optimal), (&[0, 1, 2][..], 2, true));
        assert_eq!(fit.tree.choose(&[1, 30])[0], 2);
        assert!(fit.proved().contains("in each of 2 parts"), "{}", fit.proved());
    }

    #[test]
    fn a_small_part_has_few_leaves() {
        let table = table();
        let few = table.subset((0..20).chain(40..46));
        let fitted = fit(&few, &FitOptions { apart: vec![KIND], ..options() }).unwrap();
        assert_eq!(fitted.tree.leaves(), 2, "20 rows are one leaf: {:?}", fitted.tree);
        assert_eq!(
            fit(&few, &options()).unwrap().tree.leaves(),
            2,
            "alone they would be divided by their values"
        );
    }

    #[test]
    fn questions_that_divide_nothing_are_not_asked() {
        let table = table();
        let asked = |apart: Vec<Apart>| fit(&table, &FitOptions { apart, ..options() }).unwrap();
        let nothing = Apart { feature: 1, threshold: 40 };
        assert_eq!(asked(vec![nothing]), fit(&table, &options()).unwrap());
        assert_eq!(asked(vec![nothing, KIND, KIND]), asked(vec![KIND]));
    }

    #[test]
    fn a_part_stays_with_the_prior_tree_for_itself() {
        let table = table();
        let options = FitOptions { apart: vec![KIND], ..options() };
        let fitted = fit(&table, &options).unwrap();
        let leaf = |ranked: usize| Box::new(Tree::Leaf { ranked: vec![ranked], support: 0, regret: 0.0 });
        // As good for the first kind, and bad for the second, which it does not tell apart; its other question has one answer there.
        let split = |threshold, low, high| Tree::Split { feature: 1, threshold, low, high };
        let prior = split(10, leaf(0), Box::new(split(50, leaf(1), leaf(0))));
        let stayed = fitted.stay_with(&prior, &table, &options, 0.005).unwrap();
        assert_eq!((stayed.parts, stayed.of), (1, 2));
        assert_eq!((stayed.fit.regret, stayed.fit.tree.leaves()), (0.0, 4));
        assert_eq!(stayed.fit.tree.choose(&[1, 3])[0], 2);
        // The same tree again stays as it is, in both parts.
        let again = fitted.stay_with(&stayed.fit.tree, &table, &options, 0.0).unwrap();
        assert_eq!((again.parts, &again.fit.tree), (2, &stayed.fit.tree));
        // A bad one stays nowhere.
        assert_eq!(fitted.stay_with(&leaf(0), &table, &options, 0.005), None);
    }
}
