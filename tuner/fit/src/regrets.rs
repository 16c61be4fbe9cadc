//! What each candidate costs beyond the best of its row.

use super::{CostRow, CostTable};

/// Ties are never wider than this, however noisy a measurement was.
const WIDEST_TIE: f64 = 0.1;

/// Larger regrets are not told apart, so that their sums are numbers.
const LARGEST: f64 = 1e300;

/// cost / oracle - 1, also where the quotient is beyond what a number holds.
pub(super) fn relative(cost: f64, oracle: f64) -> f64 {
    (cost / oracle - 1.0).min(LARGEST)
}

/// Regret of every candidate on every row.
#[derive(Debug)]
pub(super) struct Regrets {
    /// `[row][candidate]`: what cost / oracle - 1 has beyond a tie, none where the candidate is invalid. Beyond, not all or nothing:
    /// a cost that noise moves over the edge of a tie must not jump.
    regrets: Vec<Vec<Option<f64>>>,
    /// Weights, with the sum 1.
    weights: Vec<f64>,
    /// The widest tie that is asked for on all rows.
    pub(super) noise: f64,
}

impl Regrets {
    pub(super) fn of(table: &CostTable, noise: f64) -> Self {
        let total: f64 = table.rows().iter().map(|row| row.weight).sum();
        let regrets = table.rows().iter().map(|row| {
            let (oracle, tie) = (row.oracle(), tie(row, noise));
            row.costs.iter().map(|cost| cost.map(|cost| (relative(cost, oracle) - tie).max(0.0))).collect()
        });
        let weights = table.rows().iter().map(|row| row.weight / total).collect();
        Self { regrets: regrets.collect(), weights, noise }
    }

    pub(super) fn rows(&self) -> usize {
        self.regrets.len()
    }

    pub(super) fn candidates(&self) -> usize {
        self.regrets.first().map_or(0, Vec::len)
    }

    pub(super) fn weight(&self, row: usize) -> f64 {
        self.weights[row]
    }

    pub(super) fn get(&self, row: usize, candidate: usize) -> Option<f64> {
        self.regrets[row][candidate]
    }

    /// Regret of a ranking on a row: its first valid candidate's, else the safe default's, else (where even that is invalid) that of
    /// the row's worst candidate.
    pub(super) fn of_ranking(&self, row: usize, ranked: &[usize], safe_default: usize) -> f64 {
        let chosen = ranked.iter().chain([&safe_default]).find_map(|&candidate| self.get(row, candidate));
        chosen.unwrap_or_else(|| self.regrets[row].iter().flatten().copied().fold(0.0, f64::max))
    }

    /// Mean regret of a policy.
    pub(super) fn mean_of<'a>(&self, ranked: impl Fn(usize) -> &'a [usize], safe_default: usize) -> f64 {
        let regret = |row: usize| self.weights[row] * self.of_ranking(row, ranked(row), safe_default);
        (0..self.rows()).map(regret).sum()
    }
}

/// The relative difference below which costs of a row tie.
fn tie(row: &CostRow, noise: f64) -> f64 {
    row.noise.min(WIDEST_TIE).max(noise)
}
