//! The tile selector's vocabulary and the selectors emitted for measured devices.
//!
//! A [`Selector`] maps what the host knows of a batch ([`BatchShape`]: whole numbers only) to the kernel variants that its packs get
//! ([`TileSet`]), in nanoseconds. `tilewright emit` writes one module a device into [`generated`]; [`lookup`] finds the one for a device and falls
//! back, in this order, to another device of the same capability, to one of another architecture and to PAT's [`analytic`] rules. This crate has no dependencies, so
//! that an engine that embeds a selector compiles nothing else; the feature `data` loads selectors from files, too.

pub mod analytic;
mod batch;
pub mod chunk;
#[cfg(feature = "data")]
pub mod data;
pub mod decision_tree;
mod device;
pub mod generated;
mod lookup;
mod mask;
mod path;
mod prices;
mod record;
mod selector;
mod shape;
mod tile;
mod tile_set;

pub use batch::{BatchShape, BatchSums};
pub use device::{Backend, Device, UnknownBackend};
pub use lookup::{Match, Selection, lookup, lookup_among};
pub use mask::{Mask, MaskError, MaskOptions};
pub use path::{Follow, Question, TreePath, Unfollowed};
pub use prices::Prices;
pub use selector::{Choices, Domain, Selector, first_feasible};
pub use shape::{Dtype, Fp8, Geometry, GeometryError, PackShape, PackSums, UnknownDtype};
pub use tile::{ParseTileError, Tile};
pub use tile_set::{ParseTileSetError, TileSet, TileSetBuf};
