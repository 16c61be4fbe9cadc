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
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let format = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (cell, &width) in cells.zip(&widths) {
            let number = cell.starts_with(|c: char| c.is_ascii_digit()) && cell.parse::<f64>().is_ok();
            let cell = if number { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            line.push_str(&cell);
            line.push_str("  ");
        }
        line.trim_end().to_owned()
    };
    let head = format(&mut header.iter().copied());
    lines(std::iter::once(head).chain(rows.iter().map(|row| format(&mut row.iter().map(String::as_str)))))
}

/// A regret as text.
pub(super) fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}
