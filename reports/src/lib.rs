//! How it is shown: measurements and trees as one self-contained HTML file.
//!
//! [`render`] turns plain [`ReportData`] into a page that needs nothing else: styles, scripts and pictures are inside, nothing is
//! requested from anywhere, and every figure is exactly one of the data's.

mod data;
mod format;
mod heat_map;
mod latency_plot;
mod launching;
mod page;
mod palette;
pub mod policy_names;
mod samples_plot;
mod summary;
mod table;
mod timeline_plot;
mod timelines;
mod tree_picture;
mod verdict;

pub use data::{
    BatchTimeline, InvariantCost, LaunchBatch, LaunchFamily, LaunchModeResult, Launching, Policy,
    PolicyTiming, ReportData, ScenarioResult, SpaceRow, TileResult, TimelineBar, Timelines, TreeNode,
    WorkloadResult,
};
pub use page::{ReportError, render, write};
pub use summary::picture;
