//! The few candidates that a tree chooses from: together they must be good on every row.

use super::CostTable;
use super::options::FitOptions;
use super::problem::Regrets;

/// Mean regret that a further candidate must save, as a part of the noise: less is a difference nobody can measure.
const WORTH_ADDING: f64 = 0.02;

/// At most `options.portfolio` candidates with little mean regret of each row's best: added greedily, then exchanged one by one as
/// long as that helps. Candidates in order.
///
/// A row on which none of them is valid counts as worse than any regret, so that rows are covered first.
pub(super) fn choose(regrets: &Regrets, options: &FitOptions) -> Vec<usize> {
    let costs = Costs::of(regrets);
    let mut chosen: Vec<usize> = Vec::new();
    let mut best = costs.none();
    let worth = WORTH_ADDING * options.noise;
    while chosen.len() < options.portfolio {
        let total: f64 = best.iter().sum();
        let Some((candidate, reached)) = costs.best_addition(&best, &chosen) else { break };
        if !chosen.is_empty() && total - reached <= worth {
            break;
        }
        costs.add(&mut best, candidate);
        chosen.push(candidate);
    }
    exchange(&costs, &mut chosen);
    // Places that are left go to compromises: good everywhere, if best nowhere. A tree of few leaves needs them.
    let alone = costs.none();
    let mut rest: Vec<usize> =
        (0..regrets.candidates()).filter(|candidate| !chosen.contains(candidate)).collect();
    rest.sort_by(|&a, &b| costs.total_with(&alone, a).total_cmp(&costs.total_with(&alone, b)));
    rest.truncate(options.portfolio.saturating_sub(chosen.len()));
    chosen.extend(rest);
    chosen.sort_unstable();
    chosen
}

/// Replaces one candidate by another as long as that saves something.
fn exchange(costs: &Costs, chosen: &mut [usize]) {
    // Each exchange lowers the total; a few rounds find what there is to find.
    for _ in 0..8 {
        let mut changed = false;
        for place in 0..chosen.len() {
            let mut best = costs.none();
            for &other in chosen.iter().enumerate().filter(|(i, _)| *i != place).map(|(_, other)| other) {
                costs.add(&mut best, other);
            }
            let current = costs.total_with(&best, chosen[place]);
            let Some((candidate, reached)) = costs.best_addition(&best, chosen) else { continue };
            if reached < current * (1.0 - 1e-9) {
                chosen[place] = candidate;
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

/// Weighted regrets by candidate; invalid cells dominate.
struct Costs {
    by_candidate: Vec<Vec<f64>>,
    invalid: f64,
}

impl Costs {
    fn of(regrets: &Regrets) -> Self {
        let cell = |row: usize, candidate: usize| {
            regrets.get(row, candidate).map(|regret| regret * regrets.weight(row))
        };
        let all: f64 = (0..regrets.rows())
            .map(|row| {
                (0..regrets.candidates()).filter_map(|candidate| cell(row, candidate)).fold(0.0, f64::max)
            })
            .sum();
        let invalid = 2.0 * all + 1.0;
        let by_candidate = (0..regrets.candidates())
            .map(|candidate| (0..regrets.rows()).map(|row| cell(row, candidate).unwrap_or(invalid)).collect())
            .collect();
        Self { by_candidate, invalid }
    }

    fn none(&self) -> Vec<f64> {
        vec![self.invalid; self.by_candidate.first().map_or(0, Vec::len)]
    }

    fn add(&self, best: &mut [f64], candidate: usize) {
        for (best, cost) in best.iter_mut().zip(&self.by_candidate[candidate]) {
            *best = best.min(*cost);
        }
    }

    fn total_with(&self, best: &[f64], candidate: usize) -> f64 {
        best.iter().zip(&self.by_candidate[candidate]).map(|(best, cost)| best.min(*cost)).sum()
    }

    /// The candidate that is not chosen yet with which the total is least; the first of equals.
    fn best_addition(&self, best: &[f64], chosen: &[usize]) -> Option<(usize, f64)> {
        (0..self.by_candidate.len())
            .filter(|candidate| !chosen.contains(candidate))
            .map(|candidate| (candidate, self.total_with(best, candidate)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }
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
    let order = |a: &usize, b: &usize| {
        let (a, b) = (key(*a), key(*b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    (0..table.candidates().len()).min_by(order).unwrap_or(0)
}
