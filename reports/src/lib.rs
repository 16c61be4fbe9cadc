//! How it is shown: measurements and trees as one self-contained HTML file.

mod data;

pub use data::{
    Policy, PolicyTiming, ReportData, ScenarioResult, SpaceRow, TileResult, TreeNode, WorkloadResult,
};
