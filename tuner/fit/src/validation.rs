//! What a fit is worth on rows that it has not seen.

use super::baselines::{self, Chooser};
use super::limits::{Event, Watch};
use super::regrets::relative;
use super::{CostRow, CostTable, Fit, FitError, FitOptions, fit_within};
use crate::statistics::quantile;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;
use tilewright_reports::policy_names::{BEST_SINGLE_TILE, PAT_RULES, SELECTOR};

/// Regret of one policy, on rows that it was not fitted to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyRegret {
    /// Its name.
    pub name: String,
    /// Weighted mean of cost / oracle - 1.
    pub mean: f64,
    /// 95th percentile.
    pub p95: f64,
    /// The worst row.
    pub worst: f64,
    /// Rows.
    pub count: usize,
    /// For each row of the table.
    pub per_row: Vec<f64>,
}

/// A cross-validation: policies, the fitted tree first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Validation {
    /// The policies.
    pub policies: Vec<PolicyRegret>,
    /// Ways that this table does not allow, and why.
    pub absent: Vec<(String, String)>,
    /// Folds; 1 means that there were too few groups, and everything was judged on what it was fitted to; 0 that rows were judged which
    /// are of no fit ([`judge`]).
    pub folds: usize,
}

/// Name of the fitted tree among the policies.
const FITTED: &str = SELECTOR;
const ORACLE_OF_PORTFOLIO: &str = "portfolio's oracle";
const BEST_SINGLE: &str = BEST_SINGLE_TILE;
/// Name of the label tree among the policies.
pub const CART: &str = "winner-label CART";

/// Fits a tree in half of the options' time, and cross-validates it in the other half.
///
/// # Errors
/// Options that make no sense.
pub fn fit_and_validate(
    table: &CostTable,
    options: &FitOptions,
    folds: usize,
    watch: Watch<'_>,
) -> Result<(Fit, Validation), FitError> {
    let begin = Instant::now();
    let whole = options.longest();
    let fit = fit_within(table, options, options.work() / 2, begin + whole / 2, watch)?;
    watch(Event::Done);
    let validation = validate(table, options, folds, options.work() / 2, begin + whole, watch)?;
    Ok((fit, validation))
}

/// Fits everything to all folds but one and judges it on that one, for each fold; the options' time is for all of them. Rows of one group
/// stay together, and groups go to folds in turn, so that the same table is always divided alike.
///
/// # Errors
/// Options that make no sense.
pub fn cross_validate(table: &CostTable, options: &FitOptions, folds: usize) -> Result<Validation, FitError> {
    validate(table, options, folds, options.work(), Instant::now() + options.longest(), &|_| ())
}

fn validate(
    table: &CostTable,
    options: &FitOptions,
    folds: usize,
    work: u64,
    deadline: Instant,
    watch: Watch<'_>,
) -> Result<Validation, FitError> {
    options.check()?;
    let fold_of = assign(table, folds.max(2));
    let folds = fold_of.iter().copied().max().map_or(1, |fold| fold + 1);
    let mut regrets: BTreeMap<&str, Vec<Option<f64>>> = BTreeMap::new();
    for fold in 0..folds {
        let judged: Vec<usize> = (0..fold_of.len()).filter(|&row| fold_of[row] == fold).collect();
        let fitted = if folds == 1 {
            table.clone()
        } else {
            table.subset((0..fold_of.len()).filter(|&row| fold_of[row] != fold))
        };
        if fitted.rows().iter().all(|row| row.weight == 0.0) {
            continue;
        }
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now) / (folds - fold) as u32;
        let of_fold = |event| match event {
            Event::At(text) => watch(Event::At(format!("fold {} of {folds}: {text}", fold + 1))),
            Event::Done => {}
        };
        of_fold(Event::At("fitting".to_owned()));
        let fit = fit_within(&fitted, options, work / folds as u64, now + left, &of_fold)?;
        watch(Event::Done);
        for (name, chooser, default) in choosers(&fitted, fit, options) {
            let of_policy = regrets.entry(name).or_insert_with(|| vec![None; fold_of.len()]);
            for &row in &judged {
                of_policy[row] = Some(regret(&table.rows()[row], &chooser(&table.rows()[row]), default));
            }
        }
    }
    let mut validation = Validation { policies: Vec::new(), absent: Vec::new(), folds };
    for name in [FITTED, BEST_SINGLE, PAT_RULES, CART, ORACLE_OF_PORTFOLIO] {
        let complete =
            regrets.get(name).and_then(|of_rows| of_rows.iter().copied().collect::<Option<Vec<f64>>>());
        match complete {
            Some(per_row) => validation.policies.push(summary(table, name, per_row)),
            None => validation.absent.push((name.to_owned(), why_absent(name).to_owned())),
        }
    }
    Ok(validation)
}

/// Judges a fit on rows of another table with the same features and candidates, and beside it what is as simple as can be: one candidate
/// for all, and those of the portfolio in hindsight.
///
/// # Errors
/// Options that make no sense.
pub fn judge(
    fitted: &CostTable,
    fit: &Fit,
    judged: &CostTable,
    options: &FitOptions,
) -> Result<Validation, FitError> {
    options.check()?;
    let mut validation = Validation { policies: Vec::new(), absent: Vec::new(), folds: 0 };
    for (name, chooser, default) in choosers(fitted, fit.clone(), options) {
        let of_row = |row: &CostRow| regret(row, &chooser(row), default);
        let per_row = judged.rows().iter().map(of_row).collect();
        validation.policies.push(summary(judged, name, per_row));
    }
    for name in [PAT_RULES, CART] {
        if validation.policies.iter().all(|policy| policy.name != name) {
            validation.absent.push((name.to_owned(), why_absent(name).to_owned()));
        }
    }
    Ok(validation)
}

fn why_absent(name: &str) -> &'static str {
    match name {
        PAT_RULES => "candidates must be named like tiles, and features `rows` and `kv_len` must exist",
        CART => "it cannot be fitted without features or questions",
        _ => "some fold had nothing to fit",
    }
}

/// A fold for each row.
fn assign(table: &CostTable, folds: usize) -> Vec<usize> {
    let mut groups: BTreeMap<u32, usize> = BTreeMap::new();
    for row in table.rows() {
        let next = groups.len();
        groups.entry(row.group).or_insert(next);
    }
    let folds = folds.min(groups.len());
    // Neighbouring groups are alike: in turn, so that every fold has some of each kind.
    table.rows().iter().map(|row| if folds < 2 { 0 } else { groups[&row.group] % folds }).collect()
}

/// Every policy, fitted to a table, with the candidate that it takes where its choice is invalid.
fn choosers(fitted: &CostTable, fit: Fit, options: &FitOptions) -> Vec<(&'static str, Chooser, usize)> {
    let default = fit.safe_default;
    let (tree, portfolio) = (fit.tree, fit.portfolio);
    let mut choosers: Vec<(&'static str, Chooser, usize)> = vec![
        (FITTED, Box::new(move |row| tree.choose(&row.features).to_vec()), default),
        (BEST_SINGLE, baselines::best_single(default), default),
        (ORACLE_OF_PORTFOLIO, Box::new(move |row| cheapest_first(row, &portfolio)), default),
    ];
    choosers.extend(baselines::pat_rules(fitted).map(|chooser| (PAT_RULES, chooser, default)));
    choosers.extend(
        baselines::winner_label_cart(fitted, options.max_depth).map(|chooser| (CART, chooser, default)),
    );
    choosers
}

fn cheapest_first(row: &CostRow, portfolio: &[usize]) -> Vec<usize> {
    let mut ranked: Vec<usize> =
        portfolio.iter().copied().filter(|&candidate| row.costs[candidate].is_some()).collect();
    ranked.sort_by(|&a, &b| row.costs[a].partial_cmp(&row.costs[b]).unwrap_or(std::cmp::Ordering::Equal));
    ranked
}

/// Regret of a ranking on a row: its first valid candidate's, else the default's, else the worst. As measured: what the fit treats as a
/// tie still counts here.
fn regret(row: &CostRow, ranked: &[usize], default: usize) -> f64 {
    let chosen = ranked.iter().copied().chain([default]).find_map(|candidate| row.costs[candidate]);
    let cost = chosen.unwrap_or_else(|| row.costs.iter().flatten().copied().fold(0.0, f64::max));
    relative(cost, row.oracle())
}

fn summary(table: &CostTable, name: &str, per_row: Vec<f64>) -> PolicyRegret {
    let total: f64 = table.rows().iter().map(|row| row.weight).sum();
    let mean =
        table.rows().iter().zip(&per_row).map(|(row, regret)| row.weight * regret).sum::<f64>() / total;
    PolicyRegret {
        name: name.to_owned(),
        mean,
        p95: quantile(&per_row, 0.95).unwrap_or(0.0),
        worst: quantile(&per_row, 1.0).unwrap_or(0.0),
        count: per_row.len(),
        per_row,
    }
}
