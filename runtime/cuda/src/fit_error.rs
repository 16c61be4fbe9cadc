//! Why a plan does not fit its bucket or its mix: said before anything is copied.

use super::Mix;
use tilewright_heuristics::{Geometry, GeometryError, Tile};

/// Why a plan cannot be laid out as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// The bucket has too little room for something.
    #[error(
        "the plan has {needed} {what}, its bucket room for {capacity}: take a larger bucket (`Bucket::grow_to`) and capture again"
    )]
    Capacity {
        /// What there is too much of.
        what: &'static str,
        /// How many the plan has.
        needed: u64,
        /// How many the bucket has room for.
        capacity: u32,
    },
    /// The bucket has too little room for work items.
    #[error(
        "the plan has {needed} work items{}, its bucket room for {capacity}: take a larger bucket (`Bucket::grow_to`) and capture again",
        tile.map(|tile| format!(" of tile {tile}")).unwrap_or_default()
    )]
    Items {
        /// Their tile; `None` where one launch serves all.
        tile: Option<Tile>,
        /// How many the plan has.
        needed: u64,
        /// How many the bucket has room for.
        capacity: u32,
    },
    /// A tile that there is no place for.
    #[error(
        "the plan uses tile {tile}, which is not among {mix}: prepare a mix, or make a bucket, that has it"
    )]
    Tile {
        /// The tile.
        tile: Tile,
        /// The tiles that there are.
        mix: Mix,
    },
    /// The plan was made for another layout.
    #[error("the plan is for {planned:?}, its bucket for {bucket:?}: each layout needs a bucket of its own")]
    Geometry {
        /// The plan's.
        planned: Geometry,
        /// The bucket's.
        bucket: Geometry,
    },
    /// A layout that makes no sense.
    #[error(transparent)]
    Layout(#[from] GeometryError),
    /// Capacities for another number of launches.
    #[error(
        "there are {found} capacities of work items for {launches} launches: give one for each, and at least one tile"
    )]
    Launches {
        /// Capacities.
        found: usize,
        /// Launches.
        launches: usize,
    },
    /// More than can be counted.
    #[error("too many {0} for a bucket to count: make smaller batches")]
    TooLarge(&'static str),
}
