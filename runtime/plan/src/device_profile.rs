//! What the planner knows of a device. Everything that was measured on one GPU is here, and nowhere else in the planner.

use tilewright_heuristics::{Backend, Device, Prices, Selection, Tile};

/// A device as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceProfile {
    /// What packing and splitting weigh against each other. `tilewright tune` measures them and emits them with the selector.
    pub prices: Prices,
    /// CTAs (CPU: threads) that the device runs at once.
    pub max_concurrent_ctas: u32,
    /// How CTAs share an SM.
    pub occupancy: Occupancy,
    /// Time of reading the KV of a single request in tiles of [`DeviceProfile::TALL`] rows or more, in 64ths of the time in lower tiles: one of the
    /// warps along Q computes it while the others wait.
    pub private_kv_in_tall_tiles: u64,
    /// Time from the start of a CTA to its first step in tiles of fewer rows than [`DeviceProfile::TALL`], in 64ths of [`Prices::cta`]: they have no
    /// producer warpgroup to set up.
    pub start_in_low_tiles: u64,
    /// What batch-invariant plans take in tall tiles, in 64ths of what prices say: steps of a warpgroup whose chunks are added up wait for each other.
    pub invariant_in_tall_tiles: u64,
    /// Parts of an SM, each with its own tensor cores, that a warp computes on one of.
    pub sm_parts: u32,
}

/// How many CTAs an SM runs at once, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Occupancy {
    /// CTAs that an SM runs at once, of the tiles that keep the most bytes in flight.
    pub ctas_per_sm: u32,
    /// Tiles of more warps leave no registers for a second CTA.
    pub shared_sm_warps: u16,
    /// Time of a token of a CTA that has an SM for itself, in 16ths of the time while every SM is full.
    pub pace_alone: u64,
    /// The least time of a token where CTAs share an SM, in the same 16ths.
    pub pace_shared: u64,
}

impl Occupancy {
    /// Measured on an H200: 260 of 276 variants of eight warps leave no registers for a second CTA; 17 ns a token alone, 25 ns beside another
    /// CTA, 31 ns while all SMs are full.
    pub const H200: Self = Self { ctas_per_sm: 2, shared_sm_warps: 4, pace_alone: 9, pace_shared: 13 };

    /// CTAs of a tile that an SM runs at once.
    pub const fn of(&self, tile: &Tile) -> u32 {
        if tile.warps > self.shared_sm_warps { 1 } else { self.ctas_per_sm }
    }
}

impl DeviceProfile {
    /// Rows from which on a tile is tall: it has several warps along Q.
    pub const TALL: u32 = 64;

    /// An NVIDIA H200. Tiles of 64 rows took 1.06 to 1.09 times as long as those of 16 on batches that share hardly anything; their first
    /// steps begin 4.5 to 5.6 us after a CTA's start, those of 16 rows after 3.0 us. Batch-invariant plans of 36 held-out batches take 1.05 and 1.3 of their
    /// prediction in tiles of 16 and of 64 rows; with 70 to 80 here the lower tile is taken where it is faster.
    pub const H200: Self = Self {
        prices: Prices::H200,
        max_concurrent_ctas: 132 * Occupancy::H200.ctas_per_sm,
        occupancy: Occupancy::H200,
        private_kv_in_tall_tiles: 70,
        start_in_low_tiles: 38,
        invariant_in_tall_tiles: 74,
        sm_parts: 4,
    };

    /// The profile of a device: its own prices if its selector has them, else those of its backend.
    pub fn of(device: &Device<'_>, selection: &Selection) -> Self {
        let prices = selection.prices().unwrap_or(Prices::default_for(device.backend));
        Self { prices, ..Self::of_units(device.backend, device.units) }
    }

    /// The profile of a device with this many SMs (CPU: threads), at default prices.
    pub const fn of_units(backend: Backend, units: u32) -> Self {
        let max_concurrent_ctas = match backend {
            Backend::Cpu => units,
            Backend::Cuda => units.saturating_mul(Occupancy::H200.ctas_per_sm),
        };
        Self { prices: Prices::default_for(backend), max_concurrent_ctas, ..Self::H200 }
    }
}

impl Default for DeviceProfile {
    fn default() -> Self {
        Self::H200
    }
}
