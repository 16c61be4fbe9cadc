//! What a fit is asked for.

use super::{Apart, FitError};
use std::time::Duration;

/// Most candidates of a portfolio: the width of the search's inner loop.
pub(super) const MAX_PORTFOLIO: usize = 16;
/// Most thresholds of a feature: pairs of features are counted in tables of this width.
pub(super) const MAX_THRESHOLDS: usize = 256;

/// The options of a fit.
#[derive(Clone, Debug, PartialEq)]
pub struct FitOptions {
    /// Candidates that the tree may choose from, 1 to 16.
    pub portfolio: usize,
    /// Questions on the longest path.
    pub max_depth: usize,
    /// Leaves, at least 1.
    pub max_leaves: usize,
    /// Time for the search. Its work is limited too, to what a machine of the day does in this time (`work`), so that the
    /// same table gives the same tree wherever that many seconds are enough for it.
    pub time_limit: Duration,
    /// Whether time ends the search too, and not its work alone: then a slow machine may find another tree than a fast one.
    pub clock: bool,
    /// Relative difference below which costs tie, also where a row's own noise is less.
    pub noise: f64,
    /// Regret that a leaf must save to be worth reading, of all rows together: 0.2 is 2 % of ten rows. What is little evidence does not
    /// become more because other rows have nothing to do with it.
    pub leaf_price: f64,
    /// Rows that a leaf must have: what a single workload says may be chance.
    pub min_leaf_rows: usize,
    /// Most thresholds that are searched for a feature, 1 to 256: fewer where a search over these would not come to an end. Features with more
    /// distinct values are cut where rows are most even.
    pub thresholds_per_feature: usize,
    /// Questions that are asked first, in this order, where they divide rows: each part has its own portfolio, depth and leaves.
    pub apart: Vec<Apart>,
}

impl Default for FitOptions {
    fn default() -> Self {
        Self {
            portfolio: 8,
            max_depth: 4,
            max_leaves: 12,
            time_limit: Duration::from_secs(60),
            clock: true,
            noise: 0.01,
            leaf_price: 0.2,
            min_leaf_rows: 3,
            thresholds_per_feature: 64,
            apart: Vec::new(),
        }
    }
}

/// Longer limits than this are none; the clock cannot hold the longest.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Steps of the search for a second of its time, so that on two threads of a Xeon of 2023 work ends it in about half of its seconds.
const WORK_A_SECOND: f64 = 2e8;

impl FitOptions {
    /// How long the fit may take by the clock.
    pub(super) fn longest(&self) -> Duration {
        if self.clock { self.time_limit.min(LONGEST) } else { LONGEST }
    }

    /// The work that the search may do.
    pub(super) fn work(&self) -> u64 {
        (self.time_limit.as_secs_f64() * WORK_A_SECOND) as u64
    }

    pub(super) fn check(&self) -> Result<(), FitError> {
        let whole = |name, value: usize, from: usize, to: usize| {
            if (from..=to).contains(&value) {
                Ok(())
            } else {
                Err(FitError::Option { name, message: format!("{value} must be from {from} to {to}") })
            }
        };
        whole("portfolio", self.portfolio, 1, MAX_PORTFOLIO)?;
        whole("max_depth", self.max_depth, 0, 16)?;
        whole("max_leaves", self.max_leaves, 1, 1 << 16)?;
        whole("thresholds_per_feature", self.thresholds_per_feature, 1, MAX_THRESHOLDS)?;
        for (name, value, most) in [("noise", self.noise, 1.0), ("leaf_price", self.leaf_price, 100.0)] {
            if !(0.0..=most).contains(&value) {
                return Err(FitError::Option { name, message: format!("{value} must be from 0 to {most}") });
            }
        }
        Ok(())
    }
}
