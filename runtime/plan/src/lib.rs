//! From a page table to the plan of a decode step: prefix forest, packs, tiles, KV chunks, merge list. Whole numbers of the host only; no
//! device is known here.
//!
//! [`PageTable`] -> [`Forest`] -> [`Packs`] -> [`Plan`]. [`Planner`] reuses its memory from step to step; [`LivePlanner`] plans only what changed.

mod append_error;
mod choose;
mod device_profile;
mod error;
mod following;
mod forest;
mod invariant_profile;
pub mod kv;
mod live_planner;
mod packing;
mod page_table;
mod plan;
mod planner;
mod queries;
mod states_error;
mod tree;

pub use append_error::AppendError;
pub use choose::{BySelection, Choose, ChooseTiles, batch_shape};
pub use device_profile::{DeviceProfile, Occupancy};
pub use error::PlanError;
pub use following::{FollowingPlanner, Step};
pub use forest::{Forest, ForestError, LiveForest, Node, Touched};
pub use invariant_profile::InvariantProfile;
pub use kv::{E4m3, E5m2, KvScales, KvStrides, Scale};
pub use live_planner::{LiveError, LivePlanner};
pub use packing::{
    CostModel, NodeSegment, Pack, PackLayout, Packing, Packs, Priced, Prices, QTileNodes, QTiles,
};
pub use page_table::{PageRows, PageTable};
pub use plan::{
    DIRECT, GRANULE, KvSegment, LengthsError, MergeItem, OutputTarget, Plan, PlanOptions, PlannedPack,
    Prediction, QTile, SHORTEST_CHUNK, Split, TileGroup, UNTOUCHED, WARP_ROWS, WorkItem, max_segments,
};
pub use planner::Planner;
pub use queries::Queries;
pub use states_error::StatesError;
pub use tree::PrefixTree;
