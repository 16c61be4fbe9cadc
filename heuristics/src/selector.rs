//! A selector: the decision tree of one device, as emitted.

use crate::{Device, PackShape, Tile};

/// The box of pack shapes that were measured. Outside of it the safe default is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Smallest measured value of each feature.
    pub min: PackShape,
    /// Largest measured value of each feature.
    pub max: PackShape,
}

impl Domain {
    /// Whether every feature of `shape` lies in the measured range.
    #[inline]
    pub const fn contains(&self, shape: &PackShape) -> bool {
        let (min, max, values) = (self.min.values(), self.max.values(), shape.values());
        let mut i = 0;
        let mut inside = true;
        while i < PackShape::COUNT {
            inside &= min[i] <= values[i] && values[i] <= max[i];
            i += 1;
        }
        inside
    }
}

/// The tile selector of one device.
#[derive(Clone, Copy, Debug)]
pub struct Selector {
    /// The device that it was measured on.
    pub device: Device<'static>,
    /// The shapes that it was measured for.
    pub domain: Domain,
    /// Every tile that it may choose.
    pub portfolio: &'static [Tile],
    /// A tile that can run every supported shape; the choice outside of `domain`.
    pub safe_default: Tile,
    /// The decision tree, with the domain check inside.
    pub choose: fn(&PackShape) -> Tile,
}

impl Selector {
    /// The tile for a pack.
    #[inline]
    pub fn select(&self, shape: &PackShape) -> Tile {
        (self.choose)(shape)
    }
}

/// The first of `ranked` (indices into a portfolio) whose bit is set in `feasible`.
///
/// Emitted leaves call this where their best tile cannot run every shape that reaches them.
#[inline]
pub const fn first_feasible(ranked: &[u8], feasible: u32) -> Option<u8> {
    let mut i = 0;
    while i < ranked.len() {
        if feasible & (1 << ranked[i]) != 0 {
            return Some(ranked[i]);
        }
        i += 1;
    }
    None
}
