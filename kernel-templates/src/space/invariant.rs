//! The tiles of batch-invariant plans.

use super::{Limits, check};
use crate::Class;
use crate::cuda::KernelOptions;
use tilewright_heuristics::{Tile, TileSet, chunk};

/// The family of tiles of batch-invariant plans of a class on a device: the first of [`invariant_sets`]. A GPU's backend compiles and tries them, and takes the
/// next family where that fails.
pub fn invariant_set(class: &Class, limits: &Limits) -> Option<TileSet<'static>> {
    invariant_sets(class, limits).next()
}

/// The families that a device can have for a class, best first: those of [`chunk::families`] that the rules allow and for whose totals a CTA has room. Tall tiles of
/// longer heads are for warpgroups, with which they were measured: without them a CTA has no private KV phase.
pub fn invariant_sets(class: &Class, limits: &Limits) -> impl Iterator<Item = TileSet<'static>> {
    let options = KernelOptions { invariant: true, ..KernelOptions::default() };
    let has_room = move |set: &TileSet<'_>| match limits {
        Limits::Cpu(_) => true,
        Limits::Cuda(limits) => set
            .tiles()
            .iter()
            .all(|tile| limits.shared_bytes(tile, class, options) <= limits.shared_bytes_per_cta),
    };
    let warpgroups = match limits {
        Limits::Cpu(_) => true,
        Limits::Cuda(limits) => limits.has_tma_producers(class),
    };
    let for_warpgroups = move |tile: &Tile| tile.m >= 64 && class.head_dim > 128;
    let runs = move |set: &&TileSet<'_>| {
        has_room(set)
            && (warpgroups || !set.tiles().iter().any(for_warpgroups))
            && set.tiles().iter().all(|tile| check(tile, class, limits).is_ok())
    };
    chunk::families(limits.backend(), class.head_dim, class.dtype).iter().filter(runs).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaLimits;
    use tilewright_heuristics::{Backend, Dtype};

    #[test]
    fn every_known_gpu_has_a_set_for_every_class() {
        for limits in CudaLimits::NAMED {
            for class in Class::all(Backend::Cuda) {
                assert!(
                    invariant_set(&class, &Limits::Cuda(limits.clone())).is_some(),
                    "{class} on {limits:?}"
                );
            }
        }
    }

    #[test]
    fn a_cta_has_room_for_its_totals() {
        let class = Class { head_dim: 128, dtype: Dtype::F16 };
        let on = |bytes| {
            let limits = CudaLimits { shared_bytes_per_cta: bytes, ..CudaLimits::named("rtx-4090").unwrap() };
            invariant_set(&class, &Limits::Cuda(limits)).unwrap().to_string()
        };
        // Buffers of two stages take 64 KB, the totals of 64 rows 32 KB.
        assert_eq!(on(163 << 10), "m16n64w4s2+m16n128w4s1+m64n64w4s2");
        assert_eq!(on(90 << 10), "m16n64w4s2+m64n64w4s1");
        assert_eq!(on(76 << 10), "m16n64w4s2+m64n64w4s1");
        assert_eq!(on(60 << 10), "m16n64w4s1");
    }

    #[test]
    fn longer_heads_have_tall_tiles_beside_warpgroups() {
        let on = |device, head_dim, dtype| {
            let limits = Limits::Cuda(CudaLimits::named(device).unwrap());
            invariant_set(&Class { head_dim, dtype }, &limits).unwrap().to_string()
        };
        assert_eq!(on("h200", 192, Dtype::F16), "m16n64w4s1+m64n64w4s2");
        assert_eq!(on("a100-80gb", 192, Dtype::F16), "m16n64w4s1");
        assert_eq!(on("h200", 256, Dtype::F16), "m16n32w2s1+m64n32w4s3");
        assert_eq!(on("a100-80gb", 256, Dtype::F16), "m16n32w2s1");
    }

    #[test]
    fn fp8_has_long_steps() {
        let on = |device, head_dim| {
            let limits = Limits::Cuda(CudaLimits::named(device).unwrap());
            invariant_set(&Class { head_dim, dtype: Dtype::Fp8Bf16 }, &limits).unwrap().to_string()
        };
        assert_eq!(on("h200", 128), "m16n128w4s1+m64n64w4s2");
        assert_eq!(on("h200", 192), "m16n128w4s1+m64n64w4s2");
        assert_eq!(on("h200", 256), "m16n128w4s1");
        for head_dim in [192, 256] {
            assert_eq!(on("a100-80gb", head_dim), "m16n128w4s1");
        }
        assert_eq!(on("rtx-4090", 192), "m16n128w4s1");
        assert_eq!(on("rtx-4090", 256), "m16n64w4s1");
    }
}
