//! Cost tables: what the fitter sees of measurements, and of anybody's plain table.

mod from_batches;
mod from_measurements;
mod from_table;

pub use from_batches::{Part, from_batches};
pub use from_measurements::from_measurements;
pub use from_table::{TableColumns, TableError, from_table};
