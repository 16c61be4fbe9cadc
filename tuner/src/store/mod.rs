//! Where measurements are kept: Parquet files that say how they came about, and the folder of a run that survives its end.

mod checksum;
mod error;
mod lock;
mod measurement;
mod parquet;
mod provenance;
mod run_folder;
#[cfg(test)]
pub(crate) mod test_data;
mod timeline;
mod timelines_file;

pub use error::StoreError;
pub use measurement::{Conditions, Level, Measurement, Resources, Status};
pub(crate) use measurement::{failed_since, failed_variants, unverified_variants};
pub(crate) use parquet::write_whole;
pub use parquet::{Recording, SCHEMA_VERSION, read, union, write};
pub use provenance::{DeviceRecord, Hashes, PricesRecord, Provenance, ScenarioRecord};
pub use run_folder::{Finished, RunFolder, Start};
pub use timeline::{
    BatchTimeline, Phases, SkippedTimeline, TilePlaces, Timeline, TimelineEntry, Timelines,
    is_timelines_path, timelines_path,
};
pub use timelines_file::{read_timelines, write_timelines, write_timelines_beside};
