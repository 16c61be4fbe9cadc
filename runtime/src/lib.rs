//! Prefix-aware paged decode attention: page table -> forest -> packs -> plan -> forward -> merge.
//!
//! ```
//! use tilewright_heuristics::{Dtype, Geometry};
//! use tilewright_runtime::cpu::{DecodeArgs, KvCache};
//! use tilewright_runtime::{Decoder, KvStrides, PageTable};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F32 };
//! // Two requests that share page 0; the second one has 20 tokens.
//! let (entries, seq_lens) = ([0, 1, 0, 2], [32, 20]);
//! let table = PageTable::new(&entries, 2, &seq_lens, geometry.page_size)?;
//!
//! let pages = 3;
//! let keys = vec![0.1f32; pages * 16 * 2 * 64];
//! let values = vec![0.2f32; pages * 16 * 2 * 64];
//! let query = vec![0.3f32; 2 * 8 * 64];
//! let mut output = vec![0.0f32; 2 * 8 * 64];
//!
//! let mut decoder = Decoder::new();
//! let plan = decoder.plan(&geometry, &table)?; // once a step; it serves all layers
//! let cache = KvCache { keys: &keys, values: &values, strides: KvStrides::nhd(&geometry) };
//! decoder.execute(&plan, DecodeArgs::new(&query, cache, &mut output))?;
//! assert!(output.iter().all(|x| (x - 0.2).abs() < 1e-5));
//! # Ok(())
//! # }
//! ```

pub mod awkward;
mod choose;
pub mod cpu;
pub mod cuda;
mod decoder;
mod e4m3;
mod error;
mod forest;
mod kv_strides;
mod live_planner;
mod packing;
mod page_table;
pub mod pages;
mod plan;
mod planner;
mod queries;
pub mod reference;
mod tree;

pub use choose::{BySelection, ChooseTiles, batch_shape};
pub use decoder::{DecodeError, Decoder};
pub use e4m3::{E4m3, KvScales, Scale};
pub use error::{ExecError, ForestError, PlanError, StatesError};
pub use forest::{Forest, LiveForest, Node, Touched};
pub use kv_strides::KvStrides;
pub use live_planner::{LiveError, LivePlanner};
pub use packing::{BlockNodes, Blocks, CostModel, NodeRun, Pack, PackLayout, Packing, Packs, Priced, Prices};
pub use page_table::PageTable;
pub use plan::{
    Block, DIRECT, MergeItem, Plan, PlanOptions, PlannedPack, Prediction, Run, SHORTEST_PART, Slot, Split,
    TileGroup, UNTOUCHED, WorkItem,
};
pub use planner::Planner;
pub use queries::Queries;
pub use tree::PrefixTree;
