//! What the planner knows of a device. Everything that was measured on one GPU is here or in [`InvariantProfile`], and nowhere else in the planner.

use crate::InvariantProfile;
use crate::plan::{GRANULE, WARP_ROWS};
use tilewright_heuristics::{Backend, Device, Geometry, Prices, Selection, Tile};

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
    /// What the products of a row that sees a token take, in 64ths of their time at the peak that [`Prices::flop`] is of. 0 where a token takes as long
    /// whatever the rows, as those of a tile that are not there are computed, too.
    pub products_over_peak: u64,
    /// How batch-invariant plans are cut and weighed.
    pub invariant: InvariantProfile,
}

/// How many CTAs an SM runs at once, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Occupancy {
    /// CTAs of an SM that prices and [`DeviceProfile::max_concurrent_ctas`] are of: as many of the common tiles as an H200 has room for.
    pub ctas_per_sm: u32,
    /// Bytes of shared memory of an SM; `u32::MAX` where nothing but threads counts.
    pub shared_bytes: u32,
    /// Whether warps of their own copy K and V (TMA), as from compute capability 9.0 on.
    pub producer_warps: bool,
    /// Time of a token of a CTA that has an SM for itself, in 16ths of the time while every SM is full.
    pub pace_alone: u64,
    /// The least time of a token where CTAs share an SM, in the same 16ths.
    pub pace_shared: u64,
}

impl Occupancy {
    /// Parts of an SM, each with its own tensor cores and registers. A warp computes on one of them.
    pub const SM_PARTS: u32 = 4;
    /// Registers of a part, of 32 bits.
    const PART_REGISTERS: u32 = 16 << 10;

    /// Measured on an H200: 17 ns a token alone, 25 ns beside another CTA, 31 ns while all SMs are full.
    pub const H200: Self = Self {
        ctas_per_sm: 2,
        shared_bytes: 228 << 10,
        producer_warps: true,
        pace_alone: 9,
        pace_shared: 13,
    };

    /// A processor: as many items at once as threads, whatever their tile. Threads multiply, and are no faster beside idle ones.
    pub const CPU: Self = Self {
        ctas_per_sm: 1,
        shared_bytes: u32::MAX,
        producer_warps: false,
        pace_alone: 16,
        pace_shared: 16,
    };

    /// A GPU of a compute capability, such as `sm_90a`: what an H200 has, if it is not known.
    #[must_use]
    pub fn of_capability(capability: &str) -> Self {
        let shared_bytes = match capability.trim_start_matches("sm_").trim_end_matches(char::is_alphabetic) {
            "80" | "87" => 164 << 10,
            "86" | "89" | "120" | "121" => 100 << 10,
            _ => Self::H200.shared_bytes,
        };
        let producer_warps = !capability.starts_with("sm_8");
        Self { shared_bytes, producer_warps, ..Self::H200 }
    }

    /// CTAs of a tile that an SM runs at once, at least 1: by registers and shared memory, as kernels without options take them. More of them hide each
    /// other's latencies, and KV ranges are cut for as many: planned for two where an SM holds four, half of it is idle.
    pub fn of(&self, tile: &Tile, geometry: &Geometry, invariant: bool) -> u32 {
        if self.shared_bytes == u32::MAX {
            return self.ctas_per_sm;
        }
        let kernel = KernelNeeds::of(self, tile, geometry, invariant);
        let warps = Self::SM_PARTS * (Self::PART_REGISTERS / (kernel.registers * WARP_THREADS)).max(1);
        let by_shared_memory = u64::from(self.shared_bytes) / kernel.shared_bytes;
        (warps / kernel.warps).min(u32::try_from(by_shared_memory).unwrap_or(u32::MAX)).max(1)
    }
}

const WARP_THREADS: u32 = 32;

/// What a CTA of a kernel takes of an SM. Registers are those of kernels compiled for `sm_90a`, rounded up; `kernel-templates/tests` compares the outcome
/// with compiled kernels.
#[derive(Clone, Copy, Debug)]
struct KernelNeeds {
    warps: u32,
    /// Of a thread.
    registers: u32,
    shared_bytes: u64,
}

impl KernelNeeds {
    /// Shared memory of any CTA, and for each of its rows: what it knows of its item, barriers, and what the driver keeps.
    const SHARED_OF_ANY: u64 = 2304;
    const SHARED_OF_ROW: u64 = 48;

    fn of(occupancy: &Occupancy, tile: &Tile, geometry: &Geometry, invariant: bool) -> Self {
        let (m, n) = (u32::from(tile.m.max(1)), u32::from(tile.n));
        let (warps, head_dim) = (u32::from(tile.warps.max(1)), geometry.head_dim);
        let fp8 = geometry.dtype.has_fp8_kv();
        // Warps that share rows share a step's tokens, or long heads.
        let sharing = (warps.saturating_mul(WARP_ROWS) / m).max(1);
        let splits_head = head_dim > 256;
        let (warp_dim, warp_n) = if splits_head { (head_dim / sharing, n) } else { (head_dim, n / sharing) };
        // Producers are a warpgroup beside warpgroups, else one warp. FP8 with 96 elements has none, and some kernels of many registers.
        let warpgroups = m.is_multiple_of(64);
        // K and V in FP8 are left sides beside 32 rows, so that a warp has a quarter of the elements.
        let transposes =
            fp8 && (m, n, warps) == (32, 64, 4) && head_dim % 64 == 0 && !splits_head && !invariant;
        // Warps that share rows share out the tokens of K and the elements of V where bits matter, and beside long heads in FP8.
        let divides = n % (16 * sharing) == 0 && head_dim % (16 * sharing) == 0;
        let splits_step =
            !splits_head && sharing > 1 && (invariant || (fp8 && head_dim > 128 && m == 16 && divides));
        let totals_in_registers = splits_step && sharing == 4 && head_dim == 128 && !fp8 && tile.stages > 1;
        let crowded = !warpgroups && head_dim == 256 && !transposes && !splits_step;
        let producers = match (occupancy.producer_warps && !(fp8 && (head_dim == 96 || crowded)), warpgroups)
        {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 4,
        };
        let transposed = transposes && producers > 0;
        let registers = match (producers, warp_dim, warp_n) {
            _ if splits_step => match (sharing, head_dim) {
                _ if totals_in_registers => 128,
                (4.., ..=64) if n <= 64 => 72,
                (4.., 65..) if n > 64 => 128,
                (4.., _) | (_, ..=64) => 96,
                _ => 128,
            },
            _ if transposed => match head_dim {
                ..=128 => 128,
                129..=192 => 168,
                _ => 200,
            },
            // Alone on its SM, or the warpgroup leaves some of its own to the others.
            (4, 129.., _) if invariant && warps == 4 => 255,
            (4, ..) if warps > 4 => 168,
            (4, ..) => 128,
            (_, ..=64, ..=16) => 96,
            (_, ..=64, ..=32) | (_, ..=96, ..=16) => 128,
            (_, ..=96, ..=32) => 160,
            (_, ..=128, ..=32) | (_, ..=64, _) | (_, ..=192, ..=16) => 168,
            (_, ..=96, ..=64) if invariant || !warpgroups => 168,
            (_, ..=96, _) => 176,
            (_, ..=192, _) => 224,
            _ => 248,
        };
        let (m, n, head_dim) = (u64::from(m), u64::from(n), u64::from(head_dim));
        let element = geometry.dtype.kv_bytes() as u64;
        let buffers = (2 * u64::from(tile.stages) * n * element).saturating_mul(head_dim);
        // K and V widened for a warpgroup, twice where there is room.
        let few = if head_dim > 128 { n * head_dim <= 32 * 192 } else { n <= 64 };
        let twice = if invariant { head_dim > 128 } else { few };
        let widened = match (fp8 && producers == 4, twice) {
            (false, _) => 0,
            (true, false) => 4 * n * head_dim,
            (true, true) => 8 * n * head_dim,
        };
        // Queries that have no place in registers, or no way there through the buffers.
        let query = if transposed || warp_dim > 128 || m > n * element { 2 * m * head_dim + 64 } else { 0 };
        let totals = if invariant && !totals_in_registers { 4 * m * head_dim } else { 0 };
        let logits = if splits_head { u64::from(warps) * 64 * n } else { 0 };
        let weights = match (transposed, splits_step) {
            (true, _) => 4 * m * n,
            (false, true) if invariant => 6 * m * n + 4 * m * n / u64::from(GRANULE),
            (false, true) => 6 * m * n + 64 * u64::from(warps),
            _ => 0,
        };
        // Without producers where each token of the steps to come lies.
        let offsets = if producers == 0 { 8 * (u64::from(tile.stages) + 2) * n } else { 0 };
        let known = Self::SHARED_OF_ANY + Self::SHARED_OF_ROW * m + offsets;
        let shared_bytes = buffers.saturating_add(widened + query + totals + logits + weights + known);
        Self { warps: warps.saturating_add(producers), registers, shared_bytes }
    }
}

impl DeviceProfile {
    /// Rows from which on a tile is tall: it has several warps along Q.
    pub const TALL: u32 = 64;

    /// Steps of 4 to 64 rows whose pages stay in the caches take about twice their products at the peak, with AVX2.
    const CPU_PRODUCTS_OVER_PEAK: u64 = 128;

    /// An NVIDIA H200. Tiles of 64 rows took 1.06 to 1.09 times as long as those of 16 on batches that share hardly anything; their first
    /// steps begin 4.5 to 5.6 us after a CTA's start, those of 16 rows after 3.0 us. Where batch-invariant plans wait in tall tiles: `docs/invariance.md`.
    pub const H200: Self = Self {
        prices: Prices::H200,
        max_concurrent_ctas: 132 * Occupancy::H200.ctas_per_sm,
        occupancy: Occupancy::H200,
        private_kv_in_tall_tiles: 70,
        start_in_low_tiles: 38,
        products_over_peak: 0,
        invariant: InvariantProfile::H200,
    };

    /// The device as ways to plan batch-invariant batches are weighed by: its prices are those of [`InvariantProfile`].
    #[must_use]
    pub const fn to_weigh_invariant_plans(&self) -> Self {
        let InvariantProfile { tall_tiles, long_steps, pace_alone, quarters, .. } = self.invariant;
        let mut weighed = *self;
        weighed.prices = self.invariant.of(&self.prices);
        if pace_alone > 0 {
            weighed.occupancy.pace_alone = pace_alone;
        }
        weighed.invariant = InvariantProfile { tall_tiles, long_steps, quarters, ..InvariantProfile::CPU };
        weighed
    }

    /// The profile of a device: its own prices if its selector has them, else those of its backend.
    pub fn of(device: &Device<'_>, selection: &Selection) -> Self {
        let prices = selection.prices().unwrap_or(Prices::default_for(device.backend));
        let profile = Self::of_units(device.backend, device.units);
        let occupancy = match device.backend {
            Backend::Cpu => profile.occupancy,
            Backend::Cuda => Occupancy::of_capability(device.capability),
        };
        Self { prices, occupancy, ..profile }
    }

    /// The profile of a device with this many SMs (CPU: threads), at default prices.
    pub const fn of_units(backend: Backend, units: u32) -> Self {
        let h200 = Self { prices: Prices::default_for(backend), ..Self::H200 };
        match backend {
            Backend::Cpu => Self {
                max_concurrent_ctas: units,
                occupancy: Occupancy::CPU,
                products_over_peak: Self::CPU_PRODUCTS_OVER_PEAK,
                invariant: InvariantProfile::CPU,
                ..h200
            },
            Backend::Cuda => {
                Self { max_concurrent_ctas: units.saturating_mul(Occupancy::H200.ctas_per_sm), ..h200 }
            }
        }
    }
}

impl Default for DeviceProfile {
    fn default() -> Self {
        Self::H200
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::Dtype;

    fn held(occupancy: &Occupancy, (tile, head_dim, dtype, invariant): (&str, u32, Dtype, bool)) -> u32 {
        let geometry = Geometry { q_heads: 32, kv_heads: 8, head_dim, page_size: 16, dtype };
        occupancy.of(&tile.parse().unwrap(), &geometry, invariant)
    }

    /// What NVRTC 13.2 gives kernels of `sm_90a`, by the rules of CUDA's occupancy calculator.
    #[test]
    fn an_h200_holds_as_many_ctas_as_compiled_kernels_say() {
        use Dtype::{F16, Fp8F16};
        let compiled = [
            (4, ("m16n64w4s2", 64, F16, false)),
            (3, ("m16n128w4s2", 64, F16, false)),
            (6, ("m16n32w2s2", 64, F16, false)),
            (2, ("m64n64w4s2", 64, F16, false)),
            (3, ("m16n64w4s2", 96, F16, false)),
            (4, ("m16n64w4s2", 96, Fp8F16, false)),
            (3, ("m64n32w4s3", 96, Fp8F16, false)),
            (2, ("m64n96w4s2", 96, Fp8F16, false)),
            (2, ("m64n64w4s2", 96, Fp8F16, false)),
            (3, ("m64n64w4s2", 96, Fp8F16, true)),
            (4, ("m32n64w2s2", 96, F16, false)),
            (2, ("m16n64w4s2", 128, F16, false)),
            (1, ("m16n128w4s2", 128, F16, false)),
            (2, ("m16n128w4s2", 128, Fp8F16, false)),
            (4, ("m16n32w2s2", 128, F16, false)),
            (2, ("m64n96w4s2", 128, Fp8F16, false)),
            (1, ("m64n128w8s3", 128, F16, false)),
            (3, ("m16n32w2s2", 192, F16, false)),
            (2, ("m64n32w4s3", 192, F16, false)),
            (1, ("m64n64w4s2", 192, F16, false)),
            (1, ("m16n64w4s2", 256, F16, false)),
            (2, ("m16n64w4s2", 256, Fp8F16, false)),
            (4, ("m16n64w4s1", 256, Fp8F16, false)),
            (2, ("m16n128w4s1", 256, Fp8F16, false)),
            (3, ("m16n64w4s2", 192, Fp8F16, false)),
            (3, ("m32n64w4s3", 64, Fp8F16, false)),
            (3, ("m32n64w4s2", 128, Fp8F16, false)),
            (3, ("m32n64w4s3", 128, Fp8F16, false)),
            (2, ("m32n64w4s2", 192, Fp8F16, false)),
            (1, ("m32n64w4s2", 256, Fp8F16, false)),
            (2, ("m64n32w4s2", 256, F16, false)),
            (1, ("m64n32w4s3", 256, F16, false)),
            (2, ("m16n32w4s1", 512, F16, false)),
            (1, ("m16n32w4s2", 512, F16, false)),
            (1, ("m64n32w8s2", 512, Fp8F16, false)),
            (4, ("m16n128w4s1", 64, F16, true)),
            (4, ("m16n128w4s1", 64, Fp8F16, true)),
            (2, ("m64n128w4s2", 64, Fp8F16, true)),
            (3, ("m16n128w4s1", 128, Fp8F16, true)),
            (5, ("m16n64w2s1", 96, F16, true)),
            (7, ("m16n64w2s1", 96, Fp8F16, true)),
            (3, ("m16n64w4s2", 128, F16, true)),
            (4, ("m16n64w4s1", 128, F16, true)),
            (4, ("m16n64w4s2", 128, Fp8F16, true)),
            (2, ("m64n64w4s2", 128, F16, true)),
            (2, ("m64n64w4s2", 128, Fp8F16, true)),
            (3, ("m16n64w4s1", 192, F16, true)),
            (4, ("m16n64w4s1", 192, Fp8F16, true)),
            (1, ("m64n64w4s2", 192, F16, true)),
            (1, ("m64n64w4s2", 192, Fp8F16, true)),
            (1, ("m64n32w4s3", 256, F16, true)),
            (1, ("m64n32w4s3", 256, Fp8F16, true)),
            (3, ("m16n32w2s1", 256, F16, true)),
            (2, ("m16n128w4s1", 192, Fp8F16, true)),
            (2, ("m16n128w4s1", 256, Fp8F16, true)),
            (3, ("m16n64w4s1", 256, Fp8F16, true)),
            (2, ("m16n32w4s1", 512, F16, true)),
            (2, ("m16n32w4s1", 512, Fp8F16, true)),
        ];
        for (ctas, kernel) in compiled {
            assert_eq!(held(&Occupancy::H200, kernel), ctas, "{kernel:?}");
        }
    }

    #[test]
    fn smaller_sms_hold_fewer_and_a_processor_whatever_there_is() {
        let wide = ("m64n64w4s2", 128, Dtype::F16, false);
        let on = |capability| held(&Occupancy::of_capability(capability), wide);
        assert_eq!([on("sm_80"), on("sm_89"), on("sm_90a"), on("sm_100a"), on("?")], [2, 1, 2, 2, 2]);
        for tile in ["m1n16w1s1", "m16n64w8s1"] {
            assert_eq!(held(&Occupancy::CPU, (tile, 128, Dtype::F32, true)), Occupancy::CPU.ctas_per_sm);
        }
        // No tile and no head is too large to be asked about.
        let largest = Tile { m: u16::MAX, n: u16::MAX, warps: u16::MAX, stages: u16::MAX };
        let geometry =
            Geometry { q_heads: 1, kv_heads: 1, head_dim: u32::MAX, page_size: 1, dtype: Dtype::F32 };
        assert_eq!(Occupancy::H200.of(&largest, &geometry, true), 1);
    }
}
