//! Warps that only copy: where four warps multiply together (`wgmma`), others bring K and V meanwhile.

use super::{Arch, CudaLimits, WARP_THREADS};
use crate::Class;
use tilewright_heuristics::Tile;

/// Warps of a CTA beside a tile's own, which look up pages and copy K and V while the others compute: a warpgroup where the others are
/// warpgroups, none elsewhere. That is where the rows are whole 64 and the fragments of Q fit the registers, and K and V are not FP8.
pub fn loader_warps(tile: &Tile, class: &Class, arch: Arch) -> u32 {
    let together = arch.has_warpgroups()
        && tile.m.is_multiple_of(64)
        && class.head_dim <= 128
        && !class.dtype.has_fp8_kv();
    if together { 4 } else { 0 }
}

/// Threads of a CTA of a tile's kernel.
pub fn threads(tile: &Tile, class: &Class, arch: Arch) -> u32 {
    (u32::from(tile.warps) + loader_warps(tile, class, arch)) * WARP_THREADS
}

/// The same on a device. Where its architecture has no name that is known, no warp only copies.
pub fn threads_on(tile: &Tile, class: &Class, limits: &CudaLimits) -> u32 {
    let own = u32::from(tile.warps) * WARP_THREADS;
    limits.arch.parse().map_or(own, |arch| threads(tile, class, arch))
}

/// What a kernel of a tile says of itself to the compiler. Warps that copy leave registers to those that multiply, so there is a
/// number of them to begin with: the one that lets an SM hold two CTAs of four multiplying warps, or one of eight.
pub(super) fn launch_bounds(tile: &Tile, class: &Class, arch: Arch) -> String {
    let threads = threads(tile, class, arch);
    if loader_warps(tile, class, arch) == 0 {
        return format!("__launch_bounds__({threads})");
    }
    format!("__launch_bounds__({threads}, {})", if tile.warps == 4 { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::Dtype;

    #[test]
    fn a_warpgroup_copies_where_warpgroups_multiply() {
        let (hopper, ampere): (Arch, Arch) = ("sm_90a".parse().unwrap(), "sm_80".parse().unwrap());
        let class = Class { head_dim: 128, dtype: Dtype::F16 };
        let tile = Tile { m: 64, n: 64, warps: 4, stages: 2 };
        assert_eq!((threads(&tile, &class, hopper), threads(&tile, &class, ampere)), (256, 128));
        assert_eq!(threads(&Tile { m: 128, warps: 8, ..tile }, &class, hopper), 384);
        assert_eq!(threads(&Tile { m: 32, ..tile }, &class, hopper), 128);
        assert_eq!(threads(&tile, &Class { head_dim: 256, ..class }, hopper), 128);
        assert_eq!(threads(&tile, &Class { dtype: Dtype::Fp8F16, ..class }, hopper), 128);
        assert_eq!(threads(&tile, &class, "sm_90".parse().unwrap()), 128);
        assert_eq!(launch_bounds(&tile, &class, hopper), "__launch_bounds__(256, 2)");
        assert_eq!(launch_bounds(&tile, &class, ampere), "__launch_bounds__(128)");
    }
}
