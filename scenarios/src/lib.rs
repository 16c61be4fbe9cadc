//! What tiles are measured on: YAML scenarios, and the decode batches made from them.
//!
//! A [`Scenario`] is one strict YAML file (`README.md` has the format). It yields light [`BatchSpec`]s, which can be scaled down
//! to a device and built into [`Batch`]es: page table, lengths, and how they came about. Same file and seed, same batch.

mod batch;
mod catalogue;
mod error;
mod file;
mod geometries;
mod input;
mod layout;
mod locate;
mod range;
mod replay;
mod scale;
mod scenario;
mod spec;
mod tenants;
mod times;
mod trace;
mod tree;
mod words;

pub use batch::{Batch, Provenance};
pub use catalogue::catalogue;
pub use error::ScenarioError;
pub use layout::{Layout, LayoutNode, LayoutRequest};
pub use replay::{Replay, Running};
pub use scenario::{Scenario, Use};
pub use spec::BatchSpec;
pub use trace::{BLOCK_TOKENS, Generator, Trace, TraceError, TraceRequest};
pub use tree::{ParseTreeError, Tree};
