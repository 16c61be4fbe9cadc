#![doc = include_str!("../README.md")]

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
pub use tilewright_heuristics::{Dtype, Geometry};
pub use tree::PrefixTree;
