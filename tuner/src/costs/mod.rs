//! Cost tables: what the fitter sees of measurements, and of anybody's plain table.

mod from_measurements;
mod from_table;

pub use from_measurements::from_measurements;
pub use from_table::{TableColumns, TableError, from_table};
