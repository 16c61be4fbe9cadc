//! stdout: data for people as aligned tables, for programs as JSON.

use serde::Serialize;
use std::io::{self, Write};

/// Writes a value as JSON.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Writes lines of text.
pub(super) fn lines<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        writeln!(out, "{}", line.as_ref())?;
    }
    Ok(())
}

/// Writes a table: columns padded to their widest cell, numbers to the right.
pub(super) fn table(header: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
    lines(crate::text_table::table(header, rows))
}

/// A regret as text.
pub(super) fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}
