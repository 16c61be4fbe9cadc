//! Tile selector of NVIDIA H200.

use crate::{Backend, BatchShape, Device, Domain, Prices, Selector, Tile, TileSet};

#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cuda, name: "NVIDIA H200", capability: "sm_90a", units: 132 },
    domain: Domain { min: BatchShape::from_values([0; BatchShape::COUNT]), max: BatchShape::from_values([u32::MAX; BatchShape::COUNT]) },
    sets: &SETS,
    safe_default: SAFE_DEFAULT,
    prices: Prices { first_byte: 220492, again_byte: 104951, partial_byte: 247061, flop: 1725, cta: 20715909847, merge: 4010666782657 },
    choose: |_| SETS[0],
};

static SETS: [TileSet<'static>; 1] = [TileSet::new(&[SAFE_DEFAULT])];
const SAFE_DEFAULT: Tile = Tile { m: 64, n: 64, warps: 4, stages: 2 };
