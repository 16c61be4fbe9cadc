//! Anybody's cost table, as CSV or Parquet: whole-number feature columns, one column a candidate, empty = invalid.

use crate::fit::{CostRow, CostTable, FitError};
use polars::prelude::*;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tilewright_heuristics::Tile;

/// Which columns are what. Columns that are not named are told apart by their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableColumns {
    /// The features; empty: every complete column of whole numbers that is not named like a tile.
    pub features: Vec<String>,
    /// How much a row counts; absent: all count the same.
    pub weight: Option<String>,
    /// Rows that stay together in a cross-validation.
    pub group: Option<String>,
    /// Columns to leave out.
    pub ignore: Vec<String>,
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
    /// No column is left for one of the parts.
    #[error(
        "{path}: no column is a {what}; name the features with `--features a,b,c`, all others are candidates"
    )]
    Nothing {
        /// The file.
        path: PathBuf,
        /// `candidate` here; a table without features is allowed.
        what: &'static str,
    },
    /// A cell that cannot be what its column is.
    #[error("{path}: row {row}, column `{column}`: {detail}")]
    BadCell {
        /// The file.
        path: PathBuf,
        /// The row, counted from 1 without the header.
        row: usize,
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
/// The file cannot be read, a named column is missing, or a cell makes no sense.
pub fn from_table(path: &Path, columns: &TableColumns) -> Result<CostTable, TableError> {
    let frame = read(path)?;
    let table = Table { path, frame: &frame };
    for name in columns.features.iter().chain(&columns.weight).chain(&columns.group).chain(&columns.ignore) {
        table.column(name)?;
    }
    let reserved = |name: &str| {
        [&columns.weight, &columns.group].into_iter().flatten().any(|reserved| reserved == name)
            || columns.ignore.iter().any(|ignored| ignored == name)
    };
    let is_feature = |column: &Column| {
        if columns.features.is_empty() {
            let whole = column.dtype().is_integer() && column.null_count() == 0;
            whole && column.name().parse::<Tile>().is_err()
        } else {
            columns.features.iter().any(|feature| feature == column.name().as_str())
        }
    };
    let (features, candidates): (Vec<&Column>, Vec<&Column>) = frame
        .columns()
        .iter()
        .filter(|column| !reserved(column.name()))
        .partition(|column| is_feature(column));
    if candidates.is_empty() {
        return Err(TableError::Nothing { path: path.to_owned(), what: "candidate" });
    }
    let feature_values = features.iter().map(|column| table.whole(column)).collect::<Result<Vec<_>, _>>()?;
    let costs = candidates.iter().map(|column| table.costs(column)).collect::<Result<Vec<_>, _>>()?;
    let weights = columns.weight.as_ref().map(|name| table.costs(table.column(name)?)).transpose()?;
    let groups = columns.group.as_ref().map(|name| table.whole(table.column(name)?)).transpose()?;
    let rows = (0..frame.height())
        .map(|row| CostRow {
            features: feature_values.iter().map(|values| values[row]).collect(),
            costs: costs.iter().map(|values| values[row]).collect(),
            weight: weights.as_ref().map_or(1.0, |weights| weights[row].unwrap_or(0.0)),
            noise: 0.0,
            group: groups.as_ref().map_or(row as u32, |groups| groups[row] as u32),
        })
        .collect();
    let names = |columns: &[&Column]| columns.iter().map(|column| column.name().to_string()).collect();
    CostTable::new(names(&features), names(&candidates), rows)
        .map_err(|source| TableError::Fit { path: path.to_owned(), source })
}

fn read(path: &Path) -> Result<DataFrame, TableError> {
    let unreadable = |detail: String| TableError::Unreadable { path: path.to_owned(), detail };
    let extension =
        path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    let file = File::open(path).map_err(|source| TableError::Io { path: path.to_owned(), source })?;
    // The reader panics on some damaged pages; for a user that is one more unreadable file.
    let read = catch_unwind(AssertUnwindSafe(|| match extension.as_str() {
        "parquet" => Some(ParquetReader::new(file).finish()),
        "csv" => Some(
            CsvReadOptions::default()
                .with_infer_schema_length(None)
                .into_reader_with_file_handle(file)
                .finish(),
        ),
        _ => None,
    }));
    match read {
        Ok(Some(frame)) => frame.map_err(|error| unreadable(error.to_string())),
        Ok(None) => Err(TableError::Extension { path: path.to_owned() }),
        Err(_) => Err(unreadable("its pages are damaged".to_owned())),
    }
}

struct Table<'a> {
    path: &'a Path,
    frame: &'a DataFrame,
}

impl<'a> Table<'a> {
    fn column(&self, name: &str) -> Result<&'a Column, TableError> {
        self.frame.column(name).map_err(|_| TableError::NoColumn {
            path: self.path.to_owned(),
            column: name.to_owned(),
            present: self
                .frame
                .get_column_names()
                .iter()
                .map(|name| name.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    fn bad(&self, row: usize, column: &Column, detail: impl Into<String>) -> TableError {
        TableError::BadCell {
            path: self.path.to_owned(),
            row: row + 1,
            column: column.name().to_string(),
            detail: detail.into(),
        }
    }

    /// A column of whole numbers of at least 0, none missing.
    fn whole(&self, column: &Column) -> Result<Vec<u64>, TableError> {
        if !column.dtype().is_integer() {
            return Err(self.bad(
                0,
                column,
                format!("a feature must be whole numbers, this column is {}", column.dtype()),
            ));
        }
        let unreadable = |error: PolarsError| self.bad(0, column, error.to_string());
        // Unsigned 64-bit numbers may be beyond the signed ones; all others are not.
        let values: Vec<Option<i128>> = if let Ok(values) = column.u64() {
            values.iter().map(|value| value.map(i128::from)).collect()
        } else {
            let cast = column.cast(&DataType::Int64).map_err(unreadable)?;
            cast.i64().map_err(unreadable)?.iter().map(|value| value.map(i128::from)).collect()
        };
        let value = |(row, value): (usize, Option<i128>)| {
            let value = value.ok_or_else(|| self.bad(row, column, "a feature must not be empty"))?;
            u64::try_from(value).map_err(|_| self.bad(row, column, format!("{value} is below 0")))
        };
        values.into_iter().enumerate().map(value).collect()
    }

    /// A column of costs; empty and NaN are invalid.
    fn costs(&self, column: &Column) -> Result<Vec<Option<f64>>, TableError> {
        if !column.dtype().is_primitive_numeric() && column.null_count() < column.len() {
            return Err(self.bad(
                0,
                column,
                format!("a cost must be a number, this column is {}", column.dtype()),
            ));
        }
        let cast = column.cast(&DataType::Float64).map_err(|error| self.bad(0, column, error.to_string()))?;
        let values = cast.f64().map_err(|error| self.bad(0, column, error.to_string()))?;
        Ok(values.iter().map(|value| value.filter(|value| !value.is_nan())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csv(text: &str, columns: &TableColumns) -> Result<CostTable, TableError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs.csv");
        std::fs::write(&path, text).unwrap();
        from_table(&path, columns)
    }

    #[test]
    fn whole_numbers_are_features_and_the_rest_candidates() {
        let table = csv("rows,kv_len,a,b\n1,64,1.5,\n2,128,,2.5\n", &TableColumns::default()).unwrap();
        assert_eq!(table.features(), ["rows", "kv_len"]);
        assert_eq!(table.candidates(), ["a", "b"]);
        assert_eq!(table.rows()[0].costs, [Some(1.5), None]);
        assert_eq!(table.rows()[1].features, [2, 128]);
    }

    #[test]
    fn whole_costs_are_told_apart_by_name() {
        let text = "rows,fast,slow,weight,family\n1,10,20,2,7\n2,30,20,1,7\n";
        let columns = TableColumns {
            features: vec!["rows".to_owned()],
            weight: Some("weight".to_owned()),
            group: Some("family".to_owned()),
            ignore: Vec::new(),
        };
        let table = csv(text, &columns).unwrap();
        assert_eq!(table.candidates(), ["fast", "slow"]);
        assert_eq!((table.rows()[0].weight, table.rows()[0].group), (2.0, 7));
        let error = csv(text, &TableColumns::default()).unwrap_err();
        assert!(error.to_string().contains("--features"), "{error}");
    }

    #[test]
    fn columns_named_like_tiles_are_candidates() {
        let table = csv("rows,m4n64w1s1\n1,10\n2,20\n", &TableColumns::default()).unwrap();
        assert_eq!(table.candidates(), ["m4n64w1s1"]);
    }

    #[test]
    fn errors_name_the_file_the_row_and_the_column() {
        let negative = csv("rows,a\n-1,1.5\n", &TableColumns::default()).unwrap_err().to_string();
        assert!(
            negative.contains("costs.csv") && negative.contains("row 1") && negative.contains("`rows`"),
            "{negative}"
        );
        let missing = TableColumns { features: vec!["cols".to_owned()], ..TableColumns::default() };
        let missing = csv("rows,a\n1,1.5\n", &missing).unwrap_err().to_string();
        assert!(missing.contains("`cols`") && missing.contains("rows, a"), "{missing}");
        let text = csv("rows,a\n1,fast\n", &TableColumns::default()).unwrap_err().to_string();
        assert!(text.contains("must be a number"), "{text}");
        assert!(matches!(
            from_table(Path::new("x.txt"), &TableColumns::default()),
            Err(TableError::Io { .. })
        ));
    }

    #[test]
    fn foreign_parquet_is_read_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs.parquet");
        let columns = vec![
            Column::new("rows".into(), [1u32, 2]),
            Column::new("a".into(), [Some(1.0), None]),
            Column::new("b".into(), [2.0f32, f32::NAN]),
            Column::new("c".into(), [3.0, 4.0]),
        ];
        let mut frame = DataFrame::new(2, columns).unwrap();
        ParquetWriter::new(File::create(&path).unwrap()).finish(&mut frame).unwrap();
        let table = from_table(&path, &TableColumns::default()).unwrap();
        assert_eq!(table.rows()[1].costs, [None, None, Some(4.0)]);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(matches!(from_table(&path, &TableColumns::default()), Err(TableError::Unreadable { .. })));
    }
}
