//! Cost tables: what the fitter sees of measurements, and of anybody's plain table.

mod columns;
mod csv_text;
mod from_batches;
mod from_table;
mod roles;

pub use from_batches::{Part, from_batches, from_screening};
pub use from_table::{ForeignTable, TableColumns, TableError, from_table};
