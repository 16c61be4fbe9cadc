//! Sortable tables.

use crate::format::sort_key;

/// A cell of a sortable table.
pub(crate) struct Cell {
    pub(crate) text: String,
    /// The figure to sort by, empty where there is none; absent in a cell of text.
    pub(crate) key: Option<String>,
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), key: None }
    }

    pub(crate) fn number(value: f64, text: String) -> Self {
        Self { text, key: Some(sort_key(value)) }
    }
}

/// A sortable table.
pub(crate) struct Table {
    pub(crate) caption: String,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
}
