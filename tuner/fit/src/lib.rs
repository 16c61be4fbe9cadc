//! Decision trees that minimise measured time.
//!
//! A [`CostTable`] is plain: whole-number features, one column of times a candidate, holes where a candidate is invalid. [`fit`]
//! first chooses a small portfolio of candidates for joint regret, then searches the tree over it with the least mean regret:
//! exactly, by dynamic programming over row sets with bounds, and with a proof of how good the found tree is. Label accuracy
//! plays no part: a wrong label that costs nothing is no error, and a right one says nothing about what the others cost.
//!
//! Parts of a table that [`FitOptions::apart`] tells apart are fitted alone, and joined by these questions.
//!
//! A leaf is a ranking: a row takes the first candidate of it that is valid there. That is what is emitted, so it is also what
//! the search, its bounds and every printed regret count.

mod apart;
mod baselines;
mod best_tree;
mod cost_table;
mod cover;
mod depth_two;
mod effort;
mod grid;
mod intervals;
mod label_tree;
mod limits;
mod options;
mod polish;
mod portfolio;
mod prior;
mod problem;
mod proof;
mod quadrants;
mod ranking;
mod regrets;
mod search;
mod shallow;
mod shaping;
mod sides;
pub mod statistics;
mod thresholds;
mod tree;
mod validation;

pub use apart::Apart;
pub use cost_table::{CostRow, CostTable, FitError};
pub use limits::{Event, Watch};
pub use options::FitOptions;
pub use prior::Stayed;
pub use proof::{Ended, Proof};
pub use tree::Tree;
pub use validation::{CART, PolicyRegret, Validation, cross_validate, fit_and_validate, judge};

use best_tree::{Asked, best_tree};
use depth_two::Scratch;
use limits::Limits;
use problem::Problem;
use ranking::Ranker;
use regrets::Regrets;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

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
    /// Rows on which no candidate of the portfolio is valid. They take the safe default, and count as their worst candidate where that is
    /// invalid too.
    pub uncovered: usize,
    /// What is proved about `tree`.
    pub proof: Proof,
}

/// Fits a tree to a cost table.
///
/// # Errors
/// Options that make no sense. A [`CostTable`] is checked when it is made.
pub fn fit(table: &CostTable, options: &FitOptions) -> Result<Fit, FitError> {
    fit_within(table, options, options.work(), Instant::now() + options.longest(), &|_| ())
}

/// Fits a tree within limits of work and time.
fn fit_within(
    table: &CostTable,
    options: &FitOptions,
    work: u64,
    deadline: Instant,
    watch: Watch<'_>,
) -> Result<Fit, FitError> {
    options.check()?;
    if let Some(fit) = apart::fit_apart(table, options, work, deadline, watch)? {
        return Ok(fit);
    }
    let clock = AtomicBool::new(false);
    let limits = Limits { work, deadline, clock: &clock, watch };
    let regrets = Regrets::of(table, options.noise);
    let portfolio = portfolio::choose(&regrets, options);
    let safe_default = portfolio::safe_default(table, &regrets);
    let asked = Asked {
        grid: effort::affordable(
            table,
            options.thresholds_per_feature,
            options.max_depth,
            portfolio.len(),
            work,
        ),
        regrets: &regrets,
        portfolio: &portfolio,
        safe_default,
        depth: options.max_depth,
    };
    let (problem, found) = best_tree(&asked, limits);
    let finer = Arc::new(asked.grid.finer(table));
    let unrounded = Problem::unrounded(finer.clone(), &regrets, &portfolio, safe_default);
    let polished = polish::polish(&unrounded, asked.grid.on(&finer, &found.tree), &mut Ranker::default());
    let unshaped = shallow::cost_of(&unrounded, &polished, &unrounded.all_rows(), &mut Scratch::default());
    let (tree, cost) = shaping::shape(&unrounded, &problem, &regrets, &polished, options);
    let regret = regrets.mean_of(|row| tree.choose(&table.rows()[row].features), safe_default);
    let ended = match (found.lower >= found.cost, limits.by_clock()) {
        (true, _) => Ended::Complete,
        (false, true) => Ended::Clock,
        (false, false) => Ended::Work,
    };
    let proof = Proof {
        lower_bound: problem.mean_regret(found.lower).min(regret),
        // Each row was rounded down by less than one: candidates that tie may differ by that.
        optimal: cost <= found.lower + table.rows().len() as f64,
        unshaped: unrounded.mean_regret(unshaped),
        depth: options.max_depth,
        thresholds: asked.grid.is_cut(table).then(|| asked.grid.most_thresholds()),
        ended,
        parts: 1,
    };
    Ok(Fit {
        portfolio_regret: problem.mean_regret(problem.floor()).min(regret),
        uncovered: (0..problem.rows() as u32).filter(|&row| problem.is_settled(row)).count(),
        regret,
        tree,
        portfolio,
        safe_default,
        proof,
    })
}

#[cfg(test)]
mod brute_force_tests;
#[cfg(test)]
mod sparse_tests;
#[cfg(test)]
mod tests;
