//! A selector: the decision tree of one device, as emitted.

use crate::{Device, Dtype, PackShape, Prices, Tile};

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

    /// What a tree of this domain is asked about a pack. Where no FP8 was measured, K and V in FP8 are taken for elements of the query's type;
    /// where no packs with tokens of single requests were, those packs of one run that come nearest.
    pub fn asked(&self, shape: &PackShape) -> PackShape {
        let shape = if self.lacks_own(shape) { shape.as_one_run() } else { *shape };
        match Dtype::from_code(shape.dtype) {
            Some(dtype) if shape.dtype > self.max.dtype => PackShape { dtype: dtype.query().code(), ..shape },
            _ => shape,
        }
    }

    /// Whether [`Domain::asked`] is about another shape than this one.
    #[inline]
    const fn translates(&self, shape: &PackShape) -> bool {
        self.lacks_own(shape) | (shape.dtype > self.max.dtype)
    }

    #[inline]
    const fn lacks_own(&self, shape: &PackShape) -> bool {
        (shape.own > 0) & (self.max.own == 0)
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
    /// What packs and splits are decided by on the device.
    pub prices: Prices,
    /// The decision tree, with the domain check inside.
    pub choose: fn(&PackShape) -> Tile,
}

impl Selector {
    /// The tile for a pack, or for the nearest that was measured; see [`Domain::asked`].
    #[inline]
    pub fn select(&self, shape: &PackShape) -> Tile {
        // Most shapes are asked about as they are. Copying each of them first took 15 ns a choice instead of 6.
        if self.domain.translates(shape) {
            (self.choose)(&self.domain.asked(shape))
        } else {
            (self.choose)(shape)
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Geometry};

    const SAFE: Tile = Tile { m: 16, n: 16, warps: 1, stages: 1 };

    /// Chooses m by the element type that it is asked for, among those up to `largest`.
    fn selector(largest: Dtype) -> Selector {
        let max = PackShape { dtype: largest.code(), ..PackShape::from_values([u32::MAX; PackShape::COUNT]) };
        Selector {
            device: Device { backend: Backend::Cuda, name: "any", capability: "sm_90a", units: 1 },
            domain: Domain { min: PackShape::from_values([0; PackShape::COUNT]), max },
            portfolio: &[],
            safe_default: SAFE,
            prices: Prices::H200,
            choose: |shape| Tile { m: 100 + shape.dtype as u16, ..SAFE },
        }
    }

    #[test]
    fn tokens_of_single_requests_are_asked_about_where_they_were_measured() {
        let geometry = Geometry { q_heads: 8, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
        let shape = PackShape::of_tree(&geometry, 4, 64, 32 + 4 * 32, 3);
        let mut measured = selector(Dtype::Bf16);
        assert_eq!(measured.domain.asked(&shape), shape);
        measured.domain.max.own = 0;
        assert_eq!(measured.domain.asked(&shape), shape.as_one_run());
        assert_ne!(shape, shape.as_one_run());
    }

    #[test]
    fn fp8_is_chosen_for_as_its_query_type_where_it_was_not_measured() {
        let asked = |largest: Dtype, dtype: Dtype| {
            let shape = PackShape { dtype: dtype.code(), ..PackShape::from_values([1; PackShape::COUNT]) };
            selector(largest).select(&shape).m - 100
        };
        assert_eq!(asked(Dtype::Bf16, Dtype::Fp8F16), 0);
        assert_eq!(asked(Dtype::Bf16, Dtype::Fp8Bf16), 1);
        assert_eq!(asked(Dtype::Bf16, Dtype::Bf16), 1);
        assert_eq!(asked(Dtype::Fp8Bf16, Dtype::Fp8F16), 3);
    }
}
