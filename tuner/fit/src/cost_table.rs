//! The plain table that everything is fitted to.

use std::collections::HashSet;

/// What can be wrong with a table or the options of a fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// There is nothing to fit.
    #[error("the table has no rows")]
    NoRows,
    /// There is nothing to choose from.
    #[error("the table has no candidates")]
    NoCandidates,
    /// Two columns have the same name.
    #[error("two columns are called `{0}`")]
    DuplicateName(String),
    /// A row is shorter or longer than the header.
    #[error(
        "row {row} has {features} features and {costs} costs, the table {expected_features} and {expected_costs}"
    )]
    Ragged {
        /// The row, from 0.
        row: usize,
        /// Its features.
        features: usize,
        /// Its costs.
        costs: usize,
        /// The table's features.
        expected_features: usize,
        /// The table's candidates.
        expected_costs: usize,
    },
    /// A cost is no time.
    #[error(
        "row {row}, candidate `{candidate}`: {cost} is no cost; a cost is finite and above 0, an invalid candidate has none"
    )]
    BadCost {
        /// The row, from 0.
        row: usize,
        /// The candidate.
        candidate: String,
        /// The cost.
        cost: f64,
    },
    /// A weight or noise is no such thing.
    #[error("row {row}: {what} {value} must be finite and at least 0")]
    BadNumber {
        /// The row, from 0.
        row: usize,
        /// `weight` or `noise`.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// Nothing can run a workload.
    #[error("row {row} has no valid candidate; leave it out")]
    NoValidCandidate {
        /// The row, from 0.
        row: usize,
    },
    /// All rows count nothing.
    #[error("all weights are 0")]
    NoWeight,
    /// The sum of the weights is beyond what a number holds.
    #[error("the weights are too large to add; divide them all by the largest")]
    WeightsTooLarge,
    /// An option is out of range.
    #[error("option `{name}`: {message}")]
    Option {
        /// The option.
        name: &'static str,
        /// What is wrong.
        message: String,
    },
}

/// One workload.
#[derive(Clone, Debug, PartialEq)]
pub struct CostRow {
    /// What the host knows of it, in the order of [`CostTable::features`].
    pub features: Vec<u64>,
    /// Time of each candidate, in any unit; none where it is invalid.
    pub costs: Vec<Option<f64>>,
    /// How much it counts.
    pub weight: f64,
    /// Relative noise of its costs; 0 if unknown.
    pub noise: f64,
    /// Rows of one group are never on both sides of a cross-validation.
    pub group: u32,
}

impl CostRow {
    /// The least cost of any candidate.
    pub fn oracle(&self) -> f64 {
        self.costs.iter().flatten().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Costs of candidates on workloads.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    features: Vec<String>,
    candidates: Vec<String>,
    rows: Vec<CostRow>,
}

impl CostTable {
    /// Checks a table.
    ///
    /// # Errors
    /// No rows, ragged rows, a cost that is none, or a row without a valid candidate.
    pub fn new(features: Vec<String>, candidates: Vec<String>, rows: Vec<CostRow>) -> Result<Self, FitError> {
        if rows.is_empty() {
            return Err(FitError::NoRows);
        }
        if candidates.is_empty() {
            return Err(FitError::NoCandidates);
        }
        let mut names = HashSet::new();
        if let Some(name) = features.iter().chain(&candidates).find(|name| !names.insert(name.as_str())) {
            return Err(FitError::DuplicateName(name.clone()));
        }
        for (index, row) in rows.iter().enumerate() {
            check_row(index, row, features.len(), &candidates)?;
        }
        let weight: f64 = rows.iter().map(|row| row.weight).sum();
        if weight <= 0.0 {
            return Err(FitError::NoWeight);
        }
        if weight.is_infinite() {
            return Err(FitError::WeightsTooLarge);
        }
        Ok(Self { features, candidates, rows })
    }

    /// Names of the features.
    pub fn features(&self) -> &[String] {
        &self.features
    }

    /// Names of the candidates.
    pub fn candidates(&self) -> &[String] {
        &self.candidates
    }

    /// The workloads.
    pub fn rows(&self) -> &[CostRow] {
        &self.rows
    }

    /// The table of some of its rows.
    pub(super) fn subset(&self, rows: impl Iterator<Item = usize>) -> Self {
        let rows = rows.map(|row| self.rows[row].clone()).collect();
        Self { features: self.features.clone(), candidates: self.candidates.clone(), rows }
    }
}

fn check_row(index: usize, row: &CostRow, features: usize, candidates: &[String]) -> Result<(), FitError> {
    if row.features.len() != features || row.costs.len() != candidates.len() {
        return Err(FitError::Ragged {
            row: index,
            features: row.features.len(),
            costs: row.costs.len(),
            expected_features: features,
            expected_costs: candidates.len(),
        });
    }
    let is_cost = |cost: f64| cost.is_finite() && cost > 0.0;
    for (candidate, cost) in candidates.iter().zip(&row.costs) {
        if let Some(cost) = cost.filter(|&cost| !is_cost(cost)) {
            return Err(FitError::BadCost { row: index, candidate: candidate.clone(), cost });
        }
    }
    for (what, value) in [("weight", row.weight), ("noise", row.noise)] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(FitError::BadNumber { row: index, what, value });
        }
    }
    if row.costs.iter().all(Option::is_none) {
        return Err(FitError::NoValidCandidate { row: index });
    }
    Ok(())
}
