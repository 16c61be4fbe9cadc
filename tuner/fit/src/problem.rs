//! The table as the search sees it: regrets, made whole numbers, and features, made bins.
//!
//! Sums of whole numbers below 2^53 are exact in f64, whatever their order: the search compares sums without rounding, finds the
//! same tree on every machine, and still gets the vector minimum that integers of this width lack. Costs are rounded down, so a bound
//! on the whole numbers is a bound on the costs.

use super::CostTable;
use super::grid::{self, Grid};
use super::options::MAX_PORTFOLIO;
use super::regrets::Regrets;
use std::sync::Arc;

/// Costs of the portfolio's candidates on one row; lanes beyond the portfolio repeat the first one.
pub(super) type Lanes = [f64; MAX_PORTFOLIO];

/// The whole numbers of all rows together stay below this.
const LARGEST_SUM: f64 = (1u64 << 52) as f64;

/// The search's input.
#[derive(Debug)]
pub(super) struct Problem {
    grid: Arc<Grid>,
    /// Costs of each row. Where a lane is invalid: what the row costs at least, whatever stands behind that lane in a ranking.
    costs: Vec<Lanes>,
    /// The least of each row's costs.
    least: Vec<f64>,
    /// One bit for each lane that is valid on a row, and one more for the safe default where it is no lane.
    valid: Vec<u32>,
    /// What each row costs under the safe default, where that is no lane and the row has an invalid one.
    by_default: Vec<f64>,
    /// The place of each row's validity among those that occur.
    pattern: Vec<u32>,
    patterns: usize,
    /// All lanes.
    full: u32,
    /// The portfolio, as candidates of the table; behind it the safe default if it is none of them.
    candidates: Vec<usize>,
    safe_default: usize,
    lanes: usize,
    /// Cost units of a mean regret of 1.
    unit: f64,
    /// Rows on which no candidate of the portfolio is valid.
    settled: Vec<bool>,
    /// Mean regret of the rows on which no candidate of the portfolio is valid: the same for every tree.
    constant: f64,
    /// Relative difference below which costs tie.
    pub(super) noise: f64,
    weights: Vec<f64>,
}

impl Problem {
    /// The problem of a portfolio. `cap` is a mean regret that some tree is known to stay below: a single row that costs more is in no
    /// better tree, and however much more makes no difference. So the numbers need only resolve what is below it, and a time-out of 1e9
    /// takes no digits from the rest.
    pub(super) fn new(
        grid: Arc<Grid>,
        regrets: &Regrets,
        portfolio: &[usize],
        safe_default: usize,
        cap: f64,
    ) -> Self {
        Self::resolved(grid, regrets, portfolio, safe_default, Some(cap))
    }

    /// The problem with its costs as they are, for what compares trees that may cost any amount: sums are rounded, so equals are equal only
    /// up to that.
    pub(super) fn unrounded(
        grid: Arc<Grid>,
        regrets: &Regrets,
        portfolio: &[usize],
        safe_default: usize,
    ) -> Self {
        Self::resolved(grid, regrets, portfolio, safe_default, None)
    }

    fn resolved(
        grid: Arc<Grid>,
        regrets: &Regrets,
        portfolio: &[usize],
        safe_default: usize,
        cap: Option<f64>,
    ) -> Self {
        let (rows, lanes) = (regrets.rows(), portfolio.len());
        let full = ((1u64 << lanes) - 1) as u32;
        let default_is_lane = portfolio.contains(&safe_default);
        let cell = |row: usize, candidate: usize| {
            let cost = regrets.get(row, candidate).map(|regret| regrets.weight(row) * regret);
            cost.map(|cost| cap.map_or(cost, |cap| cost.min(cap)))
        };
        let mut worst = 0.0;
        let mut constant = 0.0;
        let served = |row: usize| portfolio.iter().any(|&c| regrets.get(row, c).is_some());
        let settled: Vec<bool> = (0..rows).map(|row| !served(row)).collect();
        let valid: Vec<u32> = (0..rows)
            .map(|row| {
                let bit = |(lane, &c): (usize, &usize)| u32::from(regrets.get(row, c).is_some()) << lane;
                let valid: u32 = portfolio.iter().enumerate().map(bit).sum();
                if valid == 0 {
                    constant += regrets.weight(row) * regrets.of_ranking(row, &[], safe_default);
                    return full;
                }
                let mut cells = portfolio.iter().filter_map(|&c| cell(row, c)).fold(0.0, f64::max);
                let default = (valid != full && !default_is_lane).then(|| cell(row, safe_default)).flatten();
                cells = default.map_or(cells, |default| cells.max(default));
                worst += cells;
                valid | u32::from(default.is_some()) << lanes
            })
            .collect();
        let unit = if cap.is_some() && worst > 0.0 { LARGEST_SUM / worst } else { 1.0 };
        let whole = |cost: f64| if cap.is_some() { (cost * unit).floor() } else { cost };
        let mut by_default = vec![f64::INFINITY; rows];
        let mut costs = Vec::with_capacity(rows);
        for row in 0..rows {
            if valid[row] >> lanes != 0 {
                by_default[row] = cell(row, safe_default).map_or(f64::INFINITY, whole);
            }
            let known = portfolio.iter().map(|&c| cell(row, c).map(whole));
            let least = known.clone().flatten().fold(by_default[row], f64::min);
            let of_lane = |known: Option<f64>| if !settled[row] { known.unwrap_or(least) } else { 0.0 };
            let mut of_row = [of_lane(known.clone().next().flatten()); MAX_PORTFOLIO];
            for (lane, known) in of_row.iter_mut().zip(known) {
                *lane = of_lane(known);
            }
            costs.push(of_row);
        }
        let mut seen: Vec<u32> = valid.clone();
        seen.sort_unstable();
        seen.dedup();
        let pattern = valid.iter().map(|valid| seen.binary_search(valid).unwrap_or(0) as u32).collect();
        let mut candidates = portfolio.to_vec();
        if !default_is_lane {
            candidates.push(safe_default);
        }
        Self {
            grid,
            least: costs.iter().map(least).collect(),
            costs,
            by_default,
            pattern,
            patterns: seen.len(),
            valid,
            full,
            candidates,
            safe_default,
            lanes,
            unit,
            settled,
            constant,
            noise: regrets.noise,
            weights: (0..rows).map(|row| regrets.weight(row)).collect(),
        }
    }

    pub(super) fn all_rows(&self) -> Vec<u32> {
        (0..self.rows() as u32).collect()
    }

    pub(super) fn grid(&self) -> &Arc<Grid> {
        &self.grid
    }

    pub(super) fn rows(&self) -> usize {
        self.costs.len()
    }

    pub(super) fn features(&self) -> usize {
        self.grid.features()
    }

    /// Candidates of the portfolio.
    pub(super) fn lanes(&self) -> usize {
        self.lanes
    }

    /// The candidate of a lane, or of the safe default behind them.
    pub(super) fn candidate(&self, lane: usize) -> usize {
        self.candidates[lane]
    }

    /// The candidate where nothing is known.
    pub(super) fn safe_default(&self) -> usize {
        self.safe_default
    }

    /// The lane that stands for the safe default at the end of a ranking, where it is no candidate of the portfolio.
    pub(super) fn default_lane(&self) -> Option<usize> {
        (self.candidates.len() > self.lanes).then_some(self.lanes)
    }

    pub(super) fn costs(&self, row: u32) -> &Lanes {
        &self.costs[row as usize]
    }

    pub(super) fn by_default(&self, row: u32) -> f64 {
        self.by_default[row as usize]
    }

    /// The cost of a row under a lane that is valid on it.
    pub(super) fn cost(&self, row: u32, lane: usize) -> f64 {
        if lane == self.lanes { self.by_default(row) } else { self.costs(row)[lane] }
    }

    pub(super) fn bin(&self, feature: usize, row: u32) -> u16 {
        self.grid.bin(feature, row)
    }

    /// Bins of a feature.
    pub(super) fn bin_count(&self, feature: usize) -> usize {
        self.grid.bin_count(feature)
    }

    pub(super) fn weight(&self, row: u32) -> f64 {
        self.weights[row as usize]
    }

    /// One bit a lane that is valid on a row, that of the default lane included.
    pub(super) fn valid(&self, row: u32) -> u32 {
        self.valid[row as usize]
    }

    /// Whether no candidate of the portfolio is valid on a row, so that no tree changes what it costs.
    pub(super) fn is_settled(&self, row: u32) -> bool {
        self.settled[row as usize]
    }

    /// Whether some lane is invalid on a row.
    pub(super) fn has_hole(&self, row: u32) -> bool {
        self.valid(row) & self.full != self.full
    }

    /// The place of a row's validity among the [`Problem::patterns`].
    pub(super) fn pattern(&self, row: u32) -> usize {
        self.pattern[row as usize] as usize
    }

    /// How many different validities there are.
    pub(super) fn patterns(&self) -> usize {
        self.patterns
    }

    /// All lanes, a bit each.
    pub(super) fn full(&self) -> u32 {
        self.full
    }

    /// What rows cost at least: each at its best.
    pub(super) fn least_of(&self, rows: &[u32]) -> f64 {
        rows.iter().map(|&row| self.least[row as usize]).sum()
    }

    /// What all rows cost at least.
    pub(super) fn floor(&self) -> f64 {
        self.least.iter().sum()
    }

    /// Costs of rows under each lane; where one is invalid, what the row costs at least.
    pub(super) fn sum(&self, rows: &[u32]) -> Lanes {
        let mut sum = [0.0; MAX_PORTFOLIO];
        for &row in rows {
            for (sum, cost) in sum.iter_mut().zip(self.costs(row)) {
                *sum += cost;
            }
        }
        sum
    }

    /// A mean regret over the table that a cost of at least this much means.
    pub(super) fn mean_regret(&self, cost: f64) -> f64 {
        cost / self.unit + self.constant
    }

    /// A mean regret over the table as cost.
    pub(super) fn cost_of(&self, mean_regret: f64) -> f64 {
        mean_regret * self.unit
    }
}

/// The bins of a table's features.
pub(super) fn grid(table: &CostTable, thresholds_per_feature: usize) -> Arc<Grid> {
    let features = (0..table.features().len()).map(|feature| grid::values(table, feature));
    Arc::new(Grid::new(features, thresholds_per_feature))
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
