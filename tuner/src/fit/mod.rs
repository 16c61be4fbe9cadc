//! Decision trees that minimise measured time.
//!
//! A [`CostTable`] is plain: whole-number features, one column of times a candidate, holes where a candidate is invalid. [`fit`]
//! first chooses a small portfolio of candidates for joint regret, then searches the tree over it with the least mean regret:
//! exactly, by dynamic programming over row sets with bounds, and with a proof of how good the found tree is. Label accuracy
//! plays no part: a wrong label that costs nothing is no error, and a right one says nothing about what the others cost.

mod baselines;
mod cost_table;
mod depth_two;
mod options;
mod portfolio;
mod problem;
mod search;
mod shaping;
mod thresholds;
mod tree;
mod validation;

pub use cost_table::{CostRow, CostTable, FitError};
pub use options::FitOptions;
pub use tree::Tree;
pub use validation::{CART, PolicyRegret, Validation, cross_validate, judge};

use problem::Problem;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Longer limits than this are none; the clock cannot hold the longest.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A fitted tree, and what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The tree.
    pub tree: Tree,
    /// The candidates that it may choose from, in order.
    pub portfolio: Vec<usize>,
    /// The candidate that is valid on most rows, the one with the least regret among those: the choice where nothing is known.
    pub safe_default: usize,
    /// Mean regret of `tree` on the table that it was fitted to.
    pub regret: f64,
    /// Mean regret if each row had its best candidate of the portfolio: no tree over it can have less.
    pub portfolio_regret: f64,
    /// What the search proves.
    pub proof: Proof,
}

/// What the search proves about trees of the asked depth over the portfolio, before splits that gain nothing beyond noise are
/// taken out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Proof {
    /// Mean regret of the best tree found.
    pub objective: f64,
    /// No tree has less.
    pub lower_bound: f64,
    /// Whether the two are equal.
    pub optimal: bool,
    /// The depth that this is about; deeper levels are refined without a proof.
    pub depth: usize,
}

/// Fits a tree to a cost table.
///
/// # Errors
/// Options that make no sense. A [`CostTable`] is checked when it is made.
pub fn fit(table: &CostTable, options: &FitOptions) -> Result<Fit, FitError> {
    options.check()?;
    let deadline = Instant::now() + options.time_limit.min(LONGEST);
    let regrets = problem::Regrets::of(table, options.noise);
    let portfolio = portfolio::choose(&regrets, options);
    let safe_default = portfolio::safe_default(table, &regrets);
    let problem = Problem::new(table, &regrets, &portfolio, options.thresholds_per_feature);
    let depth = options.max_depth.min(search::PROVEN_DEPTH);
    let found = search::solve(&problem, depth, deadline);
    let proof = Proof {
        objective: problem.mean_regret(found.cost),
        lower_bound: problem.mean_regret(found.lower),
        optimal: found.lower >= found.cost,
        depth,
    };
    let refined = search::refine(&problem, found.tree, options.max_depth - depth);
    let tree = shaping::shape(&problem, &refined, options);
    Ok(Fit {
        regret: regrets.mean_of(|row| tree.choose(&table.rows()[row].features).iter().copied(), safe_default),
        portfolio_regret: problem.mean_regret(problem.floor()),
        tree,
        portfolio,
        safe_default,
        proof,
    })
}

#[cfg(test)]
mod tests;
