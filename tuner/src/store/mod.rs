//! Where measurements are kept: Parquet files that say how they came about, and the folder of a run that survives its end.

mod error;
mod measurement;
mod parquet;
mod provenance;
mod run_folder;
#[cfg(test)]
pub(crate) mod test_data;

pub use error::StoreError;
pub use measurement::{Conditions, Level, Measurement, Resources, Status};
pub(crate) use parquet::write_whole;
pub use parquet::{Recording, SCHEMA_VERSION, read, union, write};
pub use provenance::{DeviceRecord, Hashes, PricesRecord, Provenance, ScenarioRecord};
pub use run_folder::{RunFolder, Start};
