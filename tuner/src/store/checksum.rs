//! The checksum of what a Parquet file says: pages have none that readers check, and a flipped bit gives another tree.
//!
//! It is taken of the decoded columns and of the texts of the metadata, so that it stays true whatever writes or compresses the pages, and lies
//! in the metadata, where other readers do not mind it.

use blake3::Hasher;
use polars::prelude::*;

/// Where the checksum lies in a file's metadata. Files of before have none.
pub(super) const KEY: &str = "tilewright.blake3";

/// The checksum of a table and the texts beside it, in hexadecimal.
///
/// # Errors
/// A column of a type that no file of ours has.
pub(super) fn checksum(texts: &[&str], frame: &DataFrame) -> PolarsResult<String> {
    let mut hasher = Hasher::new();
    for text in texts {
        put(&mut hasher, text.as_bytes());
    }
    for column in frame.columns() {
        put(&mut hasher, column.name().as_bytes());
        put_column(&mut hasher, column)?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// Bytes behind their number: what follows cannot be taken for a part of them.
fn put(hasher: &mut Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

fn put_column(hasher: &mut Hasher, column: &Column) -> PolarsResult<()> {
    put(hasher, column.dtype().to_string().as_bytes());
    match column.dtype() {
        DataType::String => column.str()?.iter().for_each(|cell| put_cell(hasher, cell.map(str::as_bytes))),
        DataType::Boolean => {
            column.bool()?.iter().for_each(|cell| put_cell(hasher, cell.map(|cell| [u8::from(cell)])));
        }
        DataType::UInt32 => {
            column.u32()?.iter().for_each(|cell| put_cell(hasher, cell.map(u32::to_le_bytes)));
        }
        DataType::UInt64 => {
            column.u64()?.iter().for_each(|cell| put_cell(hasher, cell.map(u64::to_le_bytes)));
        }
        DataType::Float64 => {
            column.f64()?.iter().for_each(|cell| put_cell(hasher, cell.map(f64::to_le_bytes)));
        }
        DataType::List(_) => {
            let list = column.list()?;
            for row in 0..list.len() {
                let Some(series) = list.get_as_series(row) else {
                    put_cell::<[u8; 0]>(hasher, None);
                    continue;
                };
                put(hasher, &(series.len() as u64).to_le_bytes());
                series.f64()?.iter().for_each(|cell| put_cell(hasher, cell.map(f64::to_le_bytes)));
            }
        }
        other => polars_bail!(ComputeError: "column `{}` has the type {other}", column.name()),
    }
    Ok(())
}

fn put_cell<B: AsRef<[u8]>>(hasher: &mut Hasher, cell: Option<B>) {
    match cell {
        Some(bytes) => put(hasher, bytes.as_ref()),
        None => _ = hasher.update(&u64::MAX.to_le_bytes()),
    }
}
