//! Anybody's cost table, as CSV or Parquet: whole-number feature columns, one column a candidate, empty = invalid.

use super::columns::{self, Cells, RawColumn, RawTable};
use super::roles;
use crate::fit::{CostRow, CostTable, FitError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Which columns are what. Columns that are not named are told apart by their values, or asked about where these leave a doubt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableColumns {
    /// The features, in lists as CSV has them.
    pub features: Vec<String>,
    /// The candidates, in lists as CSV has them.
    pub candidates: Vec<String>,
    /// How much a row counts; absent: all count the same.
    pub weight: Option<String>,
    /// Rows that stay together in a cross-validation.
    pub group: Option<String>,
    /// Columns to leave out, in lists as CSV has them.
    pub ignore: Vec<String>,
}

/// A cost table that was read, and what became of the file's columns and rows.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignTable {
    /// The table.
    pub table: CostTable,
    /// Rows without any valid candidate, which are no part of the table.
    pub left_out: usize,
    /// Where the first of them is.
    pub first_left_out: Option<String>,
}

/// What is wrong with a table.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The operating system refused.
    #[error("{path}: cannot read: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Neither CSV nor Parquet by its name.
    #[error("{path}: write the table as `.csv` or `.parquet`")]
    Extension {
        /// The file.
        path: PathBuf,
    },
    /// The file is not what its name says.
    #[error("{path}: cannot be read as a table: {detail}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        detail: String,
    },
    /// Two columns cannot be told apart.
    #[error("{path}: two columns are called `{name}`; rename one of them")]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// Their name.
        name: String,
    },
    /// A column cannot be named.
    #[error(
        "{path}: column {column} has no name; give it one, or take it out (pandas: `to_csv(..., index=False)`)"
    )]
    NoName {
        /// The file.
        path: PathBuf,
        /// The column, from 1.
        column: usize,
    },
    /// A named column is not there.
    #[error("{path}: there is no column `{column}`; the columns are {present}")]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What there is.
        present: String,
    },
    /// A list of names is none.
    #[error("`{list}` is no list of columns: {detail}; write a,b or \"a,b\",c")]
    BadList {
        /// The list.
        list: String,
        /// What is wrong.
        detail: &'static str,
    },
    /// A column was given two parts.
    #[error("{path}: column `{column}` is both {first} and {second}; name it once")]
    TwoRoles {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// One part.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// The values do not say which columns are features.
    #[error(
        "{path}: {doubt}. Name the features (`--features a,b`) or the candidates (`--candidates c,d`); \
         by their values, features would be [{features}] and candidates [{candidates}]"
    )]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// What leaves a doubt.
        doubt: String,
        /// What looks like features.
        features: String,
        /// What looks like candidates.
        candidates: String,
    },
    /// A cell that cannot be what its column is.
    #[error("{path}: {place}, column `{column}`: {detail}")]
    BadCell {
        /// The file.
        path: PathBuf,
        /// The line of a text, else the row from 1.
        place: String,
        /// The column.
        column: String,
        /// What is wrong.
        detail: String,
    },
    /// The table as a whole cannot be fitted.
    #[error("{path}: {source}")]
    Fit {
        /// The file.
        path: PathBuf,
        /// What the fitter said.
        source: FitError,
    },
}

/// Reads a cost table.
///
/// # Errors
/// The file cannot be read, a named column is missing, it is not clear which columns are features, or a cell makes no sense.
pub fn from_table(path: &Path, columns: &TableColumns) -> Result<ForeignTable, TableError> {
    let raw = columns::read(path)?;
    let roles = roles::roles(path, &raw, columns)?;
    let table = Table { path, raw: &raw };
    let values = |columns: &[&RawColumn]| {
        columns.iter().map(|column| table.whole(column)).collect::<Result<Vec<_>, _>>()
    };
    let features = values(&roles.features)?;
    let costs = roles.candidates.iter().map(|column| table.costs(column)).collect::<Result<Vec<_>, _>>()?;
    let weights = roles.weight.map(|column| table.weights(column)).transpose()?;
    let groups = roles.group.map(groups);
    let valid = |row: usize| costs.iter().any(|values| values[row].is_some());
    let rows: Vec<CostRow> = (0..raw.rows)
        .filter(|&row| valid(row))
        .map(|row| CostRow {
            features: features.iter().map(|values| values[row]).collect(),
            costs: costs.iter().map(|values| values[row]).collect(),
            weight: weights.as_ref().map_or(1.0, |weights| weights[row]),
            noise: 0.0,
            group: groups.as_ref().map_or(row as u32, |groups| groups[row]),
        })
        .collect();
    let names = |columns: &[&RawColumn]| columns.iter().map(|column| column.name.clone()).collect();
    let left_out = raw.rows - rows.len();
    let table = CostTable::new(names(&roles.features), names(&roles.candidates), rows)
        .map_err(|source| TableError::Fit { path: path.to_owned(), source })?;
    let first_left_out = (0..raw.rows).find(|&row| !valid(row)).map(|row| raw.place(row));
    Ok(ForeignTable { table, left_out, first_left_out })
}

struct Table<'a> {
    path: &'a Path,
    raw: &'a RawTable,
}

impl Table<'_> {
    fn bad(&self, row: usize, column: &RawColumn, detail: impl Into<String>) -> TableError {
        TableError::BadCell {
            path: self.path.to_owned(),
            place: self.raw.place(row),
            column: column.name.clone(),
            detail: detail.into(),
        }
    }

    /// A column of whole numbers of at least 0, none missing.
    fn whole(&self, column: &RawColumn) -> Result<Vec<u64>, TableError> {
        let missing = |row| self.bad(row, column, "a feature must not be empty");
        let values = match &column.cells {
            Cells::Whole(values) => values,
            Cells::Real(values) => {
                // Whole numbers that were written as others, as in a table of floats.
                let value = |(row, value): (usize, &Option<f64>)| {
                    let value = value.ok_or_else(|| missing(row))?;
                    if value.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&value) {
                        return Ok(value as u64);
                    }
                    let detail = format!(
                        "a feature must be a whole number from 0 on, {value} is none; multiply the column by what makes it one"
                    );
                    Err(self.bad(row, column, detail))
                };
                return values.iter().enumerate().map(value).collect();
            }
            Cells::Other { row, what, .. } => {
                return Err(self.bad(*row, column, format!("a feature must be a whole number: {what}")));
            }
        };
        let value = |(row, value): (usize, &Option<i128>)| {
            let value = value.ok_or_else(|| missing(row))?;
            let beyond = if value < 0 { "below 0".to_owned() } else { format!("above {}", u64::MAX) };
            u64::try_from(value).map_err(|_| self.bad(row, column, format!("{value} is {beyond}")))
        };
        values.iter().enumerate().map(value).collect()
    }

    /// A column of costs. Empty cells and NaN are invalid, and so is an infinite time.
    fn costs(&self, column: &RawColumn) -> Result<Vec<Option<f64>>, TableError> {
        let cost = |(row, value): (usize, Option<f64>)| match value {
            Some(f64::INFINITY) | None => Ok(None),
            Some(value) if value > 0.0 => Ok(Some(value)),
            Some(value) => {
                let detail = format!(
                    "{value} is no cost: a cost is above 0, and empty where the candidate is invalid"
                );
                Err(self.bad(row, column, detail))
            }
        };
        self.numbers(column, "cost")?.into_iter().enumerate().map(cost).collect()
    }

    fn weights(&self, column: &RawColumn) -> Result<Vec<f64>, TableError> {
        let weight = |(row, value): (usize, Option<f64>)| match value {
            Some(value) if value >= 0.0 && value.is_finite() => Ok(value),
            Some(value) => {
                Err(self.bad(row, column, format!("{value} is no weight: it must be finite and at least 0")))
            }
            None => Err(self.bad(row, column, "a weight must not be empty; 0 leaves a row out")),
        };
        self.numbers(column, "weight")?.into_iter().enumerate().map(weight).collect()
    }

    fn numbers(&self, column: &RawColumn, what_for: &str) -> Result<Vec<Option<f64>>, TableError> {
        match &column.cells {
            Cells::Whole(values) => Ok(values.iter().map(|value| value.map(|value| value as f64)).collect()),
            Cells::Real(values) => Ok(values.clone()),
            Cells::Other { row, what, .. } => Err(self.bad(
                *row,
                column,
                format!("a {what_for} must be a number: {what}; `--ignore` leaves a column out"),
            )),
        }
    }
}

/// A number for each value that occurs.
fn groups(column: &RawColumn) -> Vec<u32> {
    let text: Vec<String> = match &column.cells {
        Cells::Whole(values) => values.iter().map(|value| format!("{value:?}")).collect(),
        Cells::Real(values) => values.iter().map(|value| format!("{value:?}")).collect(),
        Cells::Other { text, .. } => text.clone(),
    };
    let mut numbers = BTreeMap::new();
    text.into_iter()
        .map(|value| {
            let next = numbers.len() as u32;
            *numbers.entry(value).or_insert(next)
        })
        .collect()
}

#[cfg(test)]
#[path = "from_table_tests.rs"]
mod tests;
