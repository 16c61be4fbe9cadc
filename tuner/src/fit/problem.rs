//! The table as the search sees it: regrets, made whole numbers, and features, made bins.
//!
//! Sums of whole numbers below 2^53 are exact in f64, whatever their order: the search compares sums without rounding, finds the
//! same tree on every machine, and still gets the vector minimum that integers of this width lack.

use super::options::MAX_PORTFOLIO;
use super::thresholds;
use super::{CostRow, CostTable};

/// Costs of the portfolio's candidates on one row; lanes beyond the portfolio are as bad as invalid.
pub(super) type Lanes = [f64; MAX_PORTFOLIO];

/// Ties are never wider than this, however noisy a measurement was.
const WIDEST_TIE: f64 = 0.1;

/// Beyond a millionfold of the best, how bad a candidate is makes no difference; it must not drown everything else.
pub(super) const WORST_REGRET: f64 = 1e6;

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
            let regret = |cost: f64| (cost / oracle - 1.0).min(WORST_REGRET);
            row.costs.iter().map(|cost| cost.map(|cost| (regret(cost) - tie).max(0.0))).collect()
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

    /// Mean regret of a way to choose: each row takes the first valid one of its ranking, else the safe default, else (where even
    /// that is invalid) its worst candidate.
    pub(super) fn mean_of<R: Iterator<Item = usize>>(
        &self,
        ranked: impl Fn(usize) -> R,
        safe_default: usize,
    ) -> f64 {
        let regret = |row: usize| {
            let chosen = ranked(row).chain([safe_default]).find_map(|candidate| self.get(row, candidate));
            chosen.unwrap_or_else(|| self.regrets[row].iter().flatten().copied().fold(0.0, f64::max))
        };
        (0..self.rows()).map(|row| self.weights[row] * regret(row)).sum()
    }
}

/// The relative difference below which costs of a row tie.
fn tie(row: &CostRow, noise: f64) -> f64 {
    row.noise.min(WIDEST_TIE).max(noise)
}

/// The search's input.
#[derive(Debug)]
pub(super) struct Problem {
    /// Costs of each row.
    costs: Vec<Lanes>,
    /// The least of each row's costs.
    least: Vec<f64>,
    /// For each feature, the bin of each row: how many thresholds lie below its value.
    bins: Vec<Vec<u16>>,
    /// For each feature, its thresholds in order; a split after bin b asks for `value <= thresholds[b]`.
    thresholds: Vec<Vec<u64>>,
    /// The portfolio, as candidates of the table.
    pub(super) portfolio: Vec<usize>,
    /// Cost units of a mean regret of 1.
    unit: f64,
    /// Relative difference below which costs tie.
    pub(super) noise: f64,
    weights: Vec<f64>,
    valid: Vec<u32>,
    /// What rows take on which a leaf's choice is invalid, see [`substitute`].
    pub(super) substitute: Option<usize>,
}

impl Problem {
    pub(super) fn new(
        table: &CostTable,
        regrets: &Regrets,
        portfolio: &[usize],
        thresholds_per_feature: usize,
    ) -> Self {
        let rows = regrets.rows();
        let worst = |row: usize| portfolio.iter().filter_map(|&c| regrets.get(row, c)).fold(0.0, f64::max);
        let all: f64 = (0..rows).map(|row| regrets.weight(row) * worst(row)).sum();
        // An invalid choice is worse than all regret there can be; together they stay far below 2^53.
        let invalid = 2.0 * all + 1e-9;
        let unit = 2f64.powi(50) / (invalid * (rows as f64 + 1.0) + all);
        let cost = |row: usize, candidate: usize| match regrets.get(row, candidate) {
            Some(regret) => (regrets.weight(row) * regret * unit).round(),
            None => (invalid * unit).round(),
        };
        let mut costs: Vec<Lanes> = (0..rows)
            .map(|row| {
                let mut lanes = [(invalid * unit).round(); MAX_PORTFOLIO];
                for (lane, &candidate) in lanes.iter_mut().zip(portfolio) {
                    *lane = cost(row, candidate);
                }
                lanes
            })
            .collect();
        let valid = |row: usize| {
            let bit = |(lane, &c): (usize, &usize)| u32::from(regrets.get(row, c).is_some()) << lane;
            portfolio.iter().enumerate().map(bit).sum()
        };
        let valid: Vec<u32> = (0..rows).map(valid).collect();
        let substitute = substitute(&costs, &valid, portfolio.len());
        if let Some(substitute) = substitute {
            for (lanes, valid) in costs.iter_mut().zip(&valid) {
                for lane in (0..portfolio.len()).filter(|lane| valid & (1 << lane) == 0) {
                    lanes[lane] = lanes[substitute];
                }
            }
        }
        let (mut bins, mut all_thresholds) = (Vec::new(), Vec::new());
        for feature in 0..table.features().len() {
            let values: Vec<u64> = table.rows().iter().map(|row| row.features[feature]).collect();
            let thresholds = thresholds::choose(&values, thresholds_per_feature);
            bins.push(
                values.iter().map(|&value| thresholds.partition_point(|&t| t < value) as u16).collect(),
            );
            all_thresholds.push(thresholds);
        }
        Self {
            least: costs.iter().map(least).collect(),
            costs,
            bins,
            thresholds: all_thresholds,
            portfolio: portfolio.to_vec(),
            unit,
            noise: regrets.noise,
            weights: (0..rows).map(|row| regrets.weight(row)).collect(),
            valid,
            substitute,
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.costs.len()
    }

    pub(super) fn features(&self) -> usize {
        self.bins.len()
    }

    pub(super) fn costs(&self, row: u32) -> &Lanes {
        &self.costs[row as usize]
    }

    pub(super) fn bin(&self, feature: usize, row: u32) -> u16 {
        self.bins[feature][row as usize]
    }

    /// Bins of a feature.
    pub(super) fn bin_count(&self, feature: usize) -> usize {
        self.thresholds[feature].len() + 1
    }

    pub(super) fn threshold(&self, feature: usize, bin: u16) -> u64 {
        self.thresholds[feature][usize::from(bin)]
    }

    pub(super) fn weight(&self, row: u32) -> f64 {
        self.weights[row as usize]
    }

    /// One bit a lane that is valid on a row.
    pub(super) fn valid(&self, row: u32) -> u32 {
        self.valid[row as usize]
    }

    /// What rows cost at least: each at its best.
    pub(super) fn least_of(&self, rows: &[u32]) -> f64 {
        rows.iter().map(|&row| self.least[row as usize]).sum()
    }

    /// What all rows cost at least.
    pub(super) fn floor(&self) -> f64 {
        self.least.iter().sum()
    }

    /// Costs of rows under each single candidate.
    pub(super) fn sum(&self, rows: &[u32]) -> Lanes {
        let mut sum = [0.0; MAX_PORTFOLIO];
        for &row in rows {
            for (sum, cost) in sum.iter_mut().zip(self.costs(row)) {
                *sum += cost;
            }
        }
        sum
    }

    /// A cost as mean regret over the table.
    pub(super) fn mean_regret(&self, cost: f64) -> f64 {
        cost / self.unit
    }

    /// A mean regret over the table as cost.
    pub(super) fn cost_of(&self, mean_regret: f64) -> f64 {
        mean_regret * self.unit
    }
}

/// The candidate that serves all rows on which some other is invalid (as a head dimension for which no tall tile has registers), the cheapest of
/// several on those rows. A leaf may then choose what is best on its other rows: its ranking has this one behind. None where every row has all
/// candidates, or none serves all the others: then a leaf's choice must be valid on all of its rows.
fn substitute(costs: &[Lanes], valid: &[u32], candidates: usize) -> Option<usize> {
    let incomplete = || costs.iter().zip(valid).filter(|(_, valid)| valid.count_ones() < candidates as u32);
    let serves = |lane: &usize| incomplete().all(|(_, valid)| valid & (1 << lane) != 0);
    let cost = |lane: usize| incomplete().map(|(lanes, _)| lanes[lane]).sum::<f64>();
    incomplete().next()?;
    (0..candidates).filter(serves).min_by(|&a, &b| cost(a).total_cmp(&cost(b)))
}

/// The least lane.
#[inline(always)]
pub(super) fn least(lanes: &Lanes) -> f64 {
    // In halves: four comparisons deep, and it vectorises.
    let mut half = [0.0; MAX_PORTFOLIO / 2];
    for i in 0..MAX_PORTFOLIO / 2 {
        half[i] =
            if lanes[i] < lanes[i + MAX_PORTFOLIO / 2] { lanes[i] } else { lanes[i + MAX_PORTFOLIO / 2] };
    }
    let mut quarter = [0.0; MAX_PORTFOLIO / 4];
    for i in 0..MAX_PORTFOLIO / 4 {
        quarter[i] =
            if half[i] < half[i + MAX_PORTFOLIO / 4] { half[i] } else { half[i + MAX_PORTFOLIO / 4] };
    }
    let low = if quarter[0] < quarter[2] { quarter[0] } else { quarter[2] };
    let high = if quarter[1] < quarter[3] { quarter[1] } else { quarter[3] };
    if low < high { low } else { high }
}
