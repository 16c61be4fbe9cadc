//! The few candidates that a tree chooses from: together they must serve every row, and be good on it.

use super::CostTable;
use super::cover::{Cover, cover};
use super::options::FitOptions;
use super::regrets::Regrets;
use std::cmp::Ordering;

/// Mean regret that a further candidate must save, as a part of the noise: less cannot be measured.
const WORTH_ADDING: f64 = 0.02;

/// At most `options.portfolio` candidates with little mean regret of each row's best: added greedily, then exchanged one by one as
/// long as that helps. Candidates in order.
///
/// Rows on which none of them is valid count before any regret; where some are left, a search says whether other candidates could serve
/// them all.
pub(super) fn choose(regrets: &Regrets, options: &FitOptions) -> Vec<usize> {
    let costs = Costs::of(regrets);
    let worth = WORTH_ADDING * options.noise;
    let mut chosen = costs.grown(Vec::new(), options.portfolio, worth);
    if costs.reached(&costs.best_of(&chosen)).uncovered > 0 {
        let price: Vec<f64> =
            (0..regrets.candidates()).map(|candidate| costs.with(&costs.none(), candidate).cost).collect();
        let valid = |row: usize, candidate: usize| regrets.get(row, candidate).is_some();
        let found = cover(regrets.rows(), regrets.candidates(), options.portfolio, valid, &price);
        if let Cover::By(covering) = found {
            chosen = costs.grown(covering, options.portfolio, worth);
        }
    }
    // Places that are left go to compromises: good everywhere, if best nowhere. A tree of few leaves needs them.
    let alone = costs.none();
    let mut rest: Vec<(Reached, usize)> = (0..regrets.candidates())
        .filter(|candidate| !chosen.contains(candidate))
        .map(|candidate| (costs.with(&alone, candidate), candidate))
        .collect();
    rest.sort_by(|a, b| a.0.order(&b.0));
    rest.truncate(options.portfolio.saturating_sub(chosen.len()));
    chosen.extend(rest.into_iter().map(|(_, candidate)| candidate));
    chosen.sort_unstable();
    chosen
}

/// What some candidates reach together.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reached {
    /// Rows on which none is valid.
    uncovered: usize,
    /// Mean regret of the others, each with its best.
    cost: f64,
}

impl Reached {
    fn order(&self, other: &Self) -> Ordering {
        self.uncovered.cmp(&other.uncovered).then(self.cost.total_cmp(&other.cost))
    }

    /// Whether this serves more rows than `other`, or those with a regret that is less by more than `by`.
    fn saves(&self, other: &Self, by: f64) -> bool {
        self.uncovered < other.uncovered || (self.uncovered == other.uncovered && other.cost - self.cost > by)
    }
}

/// Weighted regrets by candidate; infinite where it is invalid.
struct Costs {
    by_candidate: Vec<Vec<f64>>,
    rows: usize,
}

impl Costs {
    fn of(regrets: &Regrets) -> Self {
        let cell = |row: usize, candidate: usize| {
            regrets.get(row, candidate).map_or(f64::INFINITY, |regret| regret * regrets.weight(row))
        };
        let column = |candidate: usize| (0..regrets.rows()).map(|row| cell(row, candidate)).collect();
        Self { by_candidate: (0..regrets.candidates()).map(column).collect(), rows: regrets.rows() }
    }

    fn none(&self) -> Vec<f64> {
        vec![f64::INFINITY; self.rows]
    }

    fn add(&self, best: &mut [f64], candidate: usize) {
        for (best, cost) in best.iter_mut().zip(&self.by_candidate[candidate]) {
            *best = best.min(*cost);
        }
    }

    fn best_of(&self, chosen: &[usize]) -> Vec<f64> {
        let mut best = self.none();
        chosen.iter().for_each(|&candidate| self.add(&mut best, candidate));
        best
    }

    fn reached(&self, best: &[f64]) -> Reached {
        sum(best.iter().copied())
    }

    fn with(&self, best: &[f64], candidate: usize) -> Reached {
        sum(best.iter().zip(&self.by_candidate[candidate]).map(|(best, cost)| best.min(*cost)))
    }

    /// The candidate that is not chosen yet with which most is reached; the first of equals.
    fn best_addition(&self, best: &[f64], chosen: &[usize]) -> Option<(usize, Reached)> {
        (0..self.by_candidate.len())
            .filter(|candidate| !chosen.contains(candidate))
            .map(|candidate| (candidate, self.with(best, candidate)))
            .min_by(|a, b| a.1.order(&b.1))
    }

    /// `chosen` with further candidates as long as they are worth it, and then exchanged for better ones.
    fn grown(&self, mut chosen: Vec<usize>, size: usize, worth: f64) -> Vec<usize> {
        let mut best = self.best_of(&chosen);
        while chosen.len() < size {
            let Some((candidate, reached)) = self.best_addition(&best, &chosen) else { break };
            if !chosen.is_empty() && !reached.saves(&self.reached(&best), worth) {
                break;
            }
            self.add(&mut best, candidate);
            chosen.push(candidate);
        }
        self.exchange(&mut chosen);
        chosen
    }

    /// Replaces one candidate by another as long as that saves something.
    fn exchange(&self, chosen: &mut [usize]) {
        // Each exchange reaches more; a few rounds find what there is to find.
        for _ in 0..8 {
            let mut changed = false;
            for place in 0..chosen.len() {
                let others: Vec<usize> =
                    chosen.iter().enumerate().filter(|(i, _)| *i != place).map(|(_, other)| *other).collect();
                let best = self.best_of(&others);
                let current = self.with(&best, chosen[place]);
                let Some((candidate, reached)) = self.best_addition(&best, chosen) else { continue };
                if reached.saves(&current, 1e-9 * current.cost) {
                    chosen[place] = candidate;
                    changed = true;
                }
            }
            if !changed {
                return;
            }
        }
    }
}

fn sum(best: impl Iterator<Item = f64>) -> Reached {
    best.fold(Reached { uncovered: 0, cost: 0.0 }, |Reached { uncovered, cost }, best| {
        if best.is_finite() {
            Reached { uncovered, cost: cost + best }
        } else {
            Reached { uncovered: uncovered + 1, cost }
        }
    })
}

/// The candidate that is valid on most rows, the one with the least mean regret among those.
pub(super) fn safe_default(table: &CostTable, regrets: &Regrets) -> usize {
    let key = |candidate: usize| {
        let valid = table.rows().iter().filter(|row| row.costs[candidate].is_some()).count();
        let regret: f64 = (0..regrets.rows())
            .filter_map(|row| regrets.get(row, candidate).map(|regret| regret * regrets.weight(row)))
            .sum();
        (std::cmp::Reverse(valid), regret)
    };
    let keys: Vec<_> = (0..table.candidates().len()).map(key).collect();
    let order = |a: &usize, b: &usize| keys[*a].0.cmp(&keys[*b].0).then(keys[*a].1.total_cmp(&keys[*b].1));
    (0..keys.len()).min_by(order).unwrap_or(0)
}
