//! How tiles are found: measure, store, fit, emit, validate, and the command line `tilewright` over it.
//!
//! Data flows one way: [`scenarios`](tilewright_scenarios) -> workloads -> [`measure`] -> [`store`] -> [`costs`] -> [`fit`] ->
//! [`analysis`] -> [`emit`] and the report. Everything after [`store`] is a pure function of recorded measurements, so that
//! `replay` repeats it to the byte on any machine.

pub mod analysis;
pub mod batch_regrets;
pub mod choice;
pub mod cli;
pub mod compare;
pub mod costs;
pub mod device_list;
pub mod device_name;
pub mod emit;
pub mod explain;
pub mod fit_settings;
pub mod fleet;
pub mod gate;
pub mod interrupt;
pub mod invariant_cost;
pub mod measure;
pub mod prior;
pub mod progress;
pub mod report_data;
pub mod returned;
mod serde_text;
pub mod shard;
pub mod store;
pub mod system;
mod text_table;
pub mod tune;
pub mod wanted;
pub mod workloads;

pub use tilewright_fit::{self as fit, statistics};
