//! Tile selector of AMD EPYC x 2 threads.

use crate::{Backend, BatchShape, Device, Domain, Prices, Selector, Tile, TileSet};

#[rustfmt::skip]
pub(super) static SELECTOR: Selector = Selector {
    device: Device { backend: Backend::Cpu, name: "AMD EPYC x 2 threads", capability: "x86_64-avx2", units: 2 },
    domain: Domain { min: BatchShape::from_values([0; BatchShape::COUNT]), max: BatchShape::from_values([u32::MAX; BatchShape::COUNT]) },
    sets: &SETS,
    safe_default: SAFE_DEFAULT,
    prices: Prices::CPU,
    choose: |_| SETS[0],
};

static SETS: [TileSet<'static>; 1] = [TileSet::new(&[SAFE_DEFAULT])];
const SAFE_DEFAULT: Tile = Tile { m: 64, n: 128, warps: 1, stages: 1 };
