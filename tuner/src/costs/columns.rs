//! The columns of anybody's file, as whole numbers or others.

use super::csv_text;
use super::from_table::TableError;
use polars::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// What people and programs write where there is no number.
const MISSING: [&str; 9] = ["", "nan", "na", "n/a", "null", "none", "-", "#n/a", "<na>"];

/// A column.
#[derive(Debug)]
pub(super) struct RawColumn {
    pub(super) name: String,
    pub(super) cells: Cells,
}

/// The cells of a column.
#[derive(Debug)]
pub(super) enum Cells {
    /// Whole numbers.
    Whole(Vec<Option<i128>>),
    /// Other numbers; NaN is none.
    Real(Vec<Option<f64>>),
    /// What is no number: each cell as text, the first that is none, and what it is.
    Other { text: Vec<String>, row: usize, what: String },
}

/// What was read.
#[derive(Debug)]
pub(super) struct RawTable {
    pub(super) columns: Vec<RawColumn>,
    pub(super) rows: usize,
    /// Line of the file that each row begins on; absent where a file has no lines.
    lines: Option<Vec<usize>>,
}

impl RawTable {
    /// Where a row is, as every message says it: the line of a text, else the row from 1.
    pub(super) fn place(&self, row: usize) -> String {
        match &self.lines {
            Some(lines) => format!("line {}", lines.get(row).copied().unwrap_or(0)),
            None => format!("row {}", row + 1),
        }
    }
}

/// Reads a file by its extension.
pub(super) fn read(path: &Path) -> Result<RawTable, TableError> {
    let extension =
        path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    let io = |source| TableError::Io { path: path.to_owned(), source };
    let table = match extension.as_str() {
        "csv" => {
            let bytes = std::fs::read(path).map_err(io)?;
            let text = String::from_utf8(bytes).map_err(|error| TableError::Unreadable {
                path: path.to_owned(),
                detail: format!("it is no UTF-8 text: {}", error.utf8_error()),
            })?;
            csv(path, &text)?
        }
        "parquet" => parquet(path, File::open(path).map_err(io)?)?,
        _ => return Err(TableError::Extension { path: path.to_owned() }),
    };
    let mut names = BTreeSet::new();
    for (place, column) in table.columns.iter().enumerate() {
        if column.name.is_empty() {
            return Err(TableError::NoName { path: path.to_owned(), column: place + 1 });
        }
        if !names.insert(&column.name) {
            return Err(TableError::Duplicate { path: path.to_owned(), name: column.name.clone() });
        }
    }
    Ok(table)
}

fn csv(path: &Path, text: &str) -> Result<RawTable, TableError> {
    let unreadable = |line: usize, detail: &str| TableError::Unreadable {
        path: path.to_owned(),
        detail: format!("line {line}: {detail}"),
    };
    let records = csv_text::records(text).map_err(|error| unreadable(error.line, error.detail))?;
    let mut records = records.into_iter();
    let (_, header) = records.next().ok_or_else(|| unreadable(1, "there is no header"))?;
    let records: Vec<_> = records.collect();
    for (line, cells) in &records {
        if cells.len() != header.len() {
            let detail = format!("it has {} cells, the header has {}", cells.len(), header.len());
            return Err(unreadable(*line, &detail));
        }
    }
    let column = |(place, name): (usize, &Cow<'_, str>)| {
        let cells = || records.iter().map(|(_, cells)| cells[place].as_ref());
        RawColumn { name: name.to_string(), cells: parsed(cells) }
    };
    Ok(RawTable {
        columns: header.iter().enumerate().map(column).collect(),
        rows: records.len(),
        lines: Some(records.iter().map(|(line, _)| *line).collect()),
    })
}

/// Cells of a text as what all of them are.
fn parsed<'a, I: Iterator<Item = &'a str>>(cells: impl Fn() -> I) -> Cells {
    let missing = |cell: &str| MISSING.iter().any(|known| cell.trim().eq_ignore_ascii_case(known));
    let whole = |cell: &str| match cell.trim().parse::<i128>() {
        Ok(value) => Some(Some(value)),
        Err(_) => missing(cell).then_some(None),
    };
    if let Some(whole) = cells().map(whole).collect() {
        return Cells::Whole(whole);
    }
    let real = |cell: &str| match cell.trim().parse::<f64>() {
        Ok(value) => Some(Some(value).filter(|value| !value.is_nan())),
        Err(_) => missing(cell).then_some(None),
    };
    let Some((row, cell)) = cells().enumerate().find(|(_, cell)| real(cell).is_none()) else {
        return Cells::Real(cells().map(|cell| real(cell).flatten()).collect());
    };
    Cells::Other { text: cells().map(str::to_owned).collect(), row, what: format!("`{cell}` is no number") }
}

fn parquet(path: &Path, file: File) -> Result<RawTable, TableError> {
    let unreadable = |detail: String| TableError::Unreadable { path: path.to_owned(), detail };
    // The reader panics on some damaged pages; for a user that is one more unreadable file.
    let frame = catch_unwind(AssertUnwindSafe(|| ParquetReader::new(file).finish()))
        .map_err(|_| unreadable("its pages are damaged".to_owned()))?
        .map_err(|error| unreadable(error.to_string()))?;
    let columns = frame.columns().iter().map(|column| {
        let cells =
            typed(column).map_err(|error| unreadable(format!("column `{}`: {error}", column.name())))?;
        Ok(RawColumn { name: column.name().to_string(), cells })
    });
    Ok(RawTable { columns: columns.collect::<Result<_, TableError>>()?, rows: frame.height(), lines: None })
}

/// Cells of a typed column. Unsigned 64-bit numbers may be beyond the signed ones.
fn typed(column: &Column) -> PolarsResult<Cells> {
    let dtype = column.dtype();
    if *dtype == DataType::UInt64 {
        return Ok(Cells::Whole(column.u64()?.iter().map(|value| value.map(i128::from)).collect()));
    }
    if dtype.is_integer() {
        let wide = column.strict_cast(&DataType::Int64)?;
        return Ok(Cells::Whole(wide.i64()?.iter().map(|value| value.map(i128::from)).collect()));
    }
    if dtype.is_float() {
        let wide = column.cast(&DataType::Float64)?;
        let number = |value: Option<f64>| value.filter(|value| !value.is_nan());
        return Ok(Cells::Real(wide.f64()?.iter().map(number).collect()));
    }
    if column.null_count() == column.len() {
        return Ok(Cells::Real(vec![None; column.len()]));
    }
    let text: Vec<String> = (0..column.len())
        .map(|row| column.get(row).map(|cell| cell.to_string()))
        .collect::<Result<_, _>>()?;
    Ok(Cells::Other { text, row: 0, what: format!("its type is {dtype}, which is no number") })
}
