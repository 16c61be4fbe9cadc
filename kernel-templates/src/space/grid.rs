//! The space: every tile of a backend, declared as one grid.

use super::{Infeasible, Limits, check};
use crate::Class;
use crate::cuda::WarpSplit;
use tilewright_heuristics::{Backend, Tile};

/// The values that each parameter may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Query rows of one pass.
    pub m: &'static [u16],
    /// KV tokens of one step.
    pub n: &'static [u16],
    /// Warps of a CTA, or threads that share a work item.
    pub warps: &'static [u16],
    /// KV tiles in flight.
    pub stages: &'static [u16],
}

/// The grid of the CPU backend. m reaches down to 1: without padding to a matrix unit a single row is worth its own kernel.
const CPU: Grid =
    Grid { m: &[1, 2, 4, 8, 16, 64], n: &[16, 32, 64, 128], warps: &[1, 2, 4, 8, 16], stages: &[1, 2] };

/// The grid of the CUDA backend. m are multiples of the 16 rows of a matrix product; beyond 128 rows a CTA has no registers for them.
/// n reaches from one product a warp to what still leaves room for two buffers.
const CUDA: Grid = Grid {
    m: &[16, 32, 64, 128],
    n: &[16, 32, 64, 96, 128, 256],
    warps: &[1, 2, 4, 8],
    stages: &[1, 2, 3, 4, 6],
};

/// Tiles for heads that warps split among themselves, where nothing was measured. On an H200 two CTAs an SM of one stage are faster than one of two stages,
/// but for 64 rows.
const SPLIT_HEADS: [Tile; 3] = [Tile::new(16, 32, 4, 1), Tile::new(32, 32, 8, 1), Tile::new(64, 32, 8, 2)];

impl Grid {
    /// The grid that is declared for a backend.
    pub const fn of(backend: Backend) -> &'static Self {
        match backend {
            Backend::Cpu => &CPU,
            Backend::Cuda => &CUDA,
        }
    }

    /// Every combination of the values, in the order of [`Tile`].
    pub fn tiles(&self) -> Vec<Tile> {
        // Named in full: a new parameter does not compile until the grid says its values.
        let Grid { m, n, warps, stages } = self;
        let mut tiles = Vec::with_capacity(m.len() * n.len() * warps.len() * stages.len());
        for &m in *m {
            for &n in *n {
                for &warps in *warps {
                    for &stages in *stages {
                        tiles.push(Tile { m, n, warps, stages });
                    }
                }
            }
        }
        tiles
    }
}

/// A tile with what the rules say about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The judged tile.
    pub tile: Tile,
    /// Why it is infeasible, if it is.
    pub infeasible: Option<Infeasible>,
}

/// Every tile of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    tiles: Vec<Tile>,
}

impl Space {
    /// The declared space of a backend.
    pub fn of(backend: Backend) -> Self {
        Self { tiles: Grid::of(backend).tiles() }
    }

    /// All tiles, in order.
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    /// Judges every tile for a class of kernels on a device.
    pub fn survey(&self, class: &Class, limits: &Limits) -> Vec<Verdict> {
        self.tiles
            .iter()
            .map(|&tile| Verdict { tile, infeasible: check(&tile, class, limits).err() })
            .collect()
    }

    /// The tiles that are feasible for a class of kernels on a device.
    pub fn feasible(&self, class: &Class, limits: &Limits) -> Vec<Tile> {
        self.tiles.iter().copied().filter(|tile| check(tile, class, limits).is_ok()).collect()
    }

    /// The tiles that are feasible for every class: what a device of unknown workloads may rely on. GPUs have other tiles for heads that warps split among
    /// themselves ([`Space::feasible_for_split_heads`]).
    pub fn universally_feasible(&self, limits: &Limits) -> Vec<Tile> {
        let backend = limits.backend();
        self.feasible_for(|class| backend == Backend::Cpu || !WarpSplit::splits_heads(class.head_dim), limits)
    }

    /// A GPU's tiles for heads that warps split among themselves, where nothing was measured: a few that are feasible for every class with such heads. None for
    /// the CPU.
    pub fn feasible_for_split_heads(&self, limits: &Limits) -> Vec<Tile> {
        if limits.backend() == Backend::Cpu {
            return Vec::new();
        }
        let mut tiles = self.feasible_for(|class| WarpSplit::splits_heads(class.head_dim), limits);
        tiles.retain(|tile| SPLIT_HEADS.contains(tile));
        tiles
    }

    fn feasible_for(&self, of: impl Fn(&Class) -> bool, limits: &Limits) -> Vec<Tile> {
        let classes: Vec<Class> = Class::all(limits.backend()).filter(of).collect();
        let everywhere = |tile: &Tile| classes.iter().all(|class| check(tile, class, limits).is_ok());
        self.tiles.iter().copied().filter(everywhere).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuLimits;
    use crate::CudaLimits;
    use crate::cuda::{Kernel, KernelOptions, KvLoad};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use tilewright_heuristics::Dtype;

    #[test]
    fn the_cpu_space_is_its_grid_without_repeats() {
        let space = Space::of(Backend::Cpu);
        assert_eq!(space.tiles().len(), 6 * 4 * 5 * 2);
        assert_eq!(space.tiles().iter().collect::<BTreeSet<_>>().len(), space.tiles().len());
    }

    #[test]
    fn the_smallest_processor_runs_some_tile_of_every_class() {
        assert!(!Space::of(Backend::Cpu).universally_feasible(&Limits::Cpu(CpuLimits::BASELINE)).is_empty());
    }

    #[test]
    fn every_named_gpu_runs_enough_of_the_space() {
        for limits in CudaLimits::NAMED {
            let limits = Limits::Cuda(limits.clone());
            let space = Space::of(Backend::Cuda);
            assert!(!space.universally_feasible(&limits).is_empty(), "{limits:?}");
            let usual = Class { head_dim: 128, dtype: Dtype::F16 };
            assert!(space.feasible(&usual, &limits).len() >= 60, "{limits:?}");
        }
        let h200 = Limits::Cuda(CudaLimits::named("h200").unwrap());
        assert!(
            Space::of(Backend::Cuda).feasible(&Class { head_dim: 128, dtype: Dtype::F16 }, &h200).len()
                >= 150
        );
    }

    #[test]
    fn tiles_fit_the_99_kb_of_small_devices() {
        // Compute capability 12.0 has the instructions of data-center devices, and less than half of their shared memory.
        let b200 = CudaLimits::named("b200").unwrap();
        let small = CudaLimits {
            arch: "sm_120".into(),
            shared_bytes_per_sm: 100 << 10,
            shared_bytes_per_cta: 99 << 10,
            ..b200.clone()
        };
        let space = Space::of(Backend::Cuda);
        for class in Class::all(Backend::Cuda) {
            let tiles = space.feasible(&class, &Limits::Cuda(small.clone()));
            assert!(!tiles.is_empty(), "{class}");
            for tile in &tiles {
                for kv_load in [KvLoad::Tma, KvLoad::CpAsync] {
                    let options = KernelOptions { kv_load, ..KernelOptions::default() };
                    let bytes = Kernel::decode(tile, &class, options, "sm_120".parse().unwrap()).shared_bytes;
                    assert!(bytes <= 99 << 10, "{class} {tile}: {bytes}");
                }
            }
            assert!(tiles.len() < space.feasible(&class, &Limits::Cuda(b200.clone())).len(), "{class}");
        }
    }

    proptest! {
        #[test]
        fn a_better_processor_never_loses_a_tile(threads in 1u32..32, l2_kb in 64usize..4096, more in 1usize..4) {
            let class = Class { head_dim: 128, dtype: Dtype::F16 };
            let limits = CpuLimits { threads, l2_bytes: l2_kb << 10, ..CpuLimits::BASELINE };
            let better = CpuLimits { threads: threads * 2, l2_bytes: limits.l2_bytes * more, ..limits.clone() };
            let space = Space::of(Backend::Cpu);
            let feasible = space.feasible(&class, &Limits::Cpu(better));
            for tile in space.feasible(&class, &Limits::Cpu(limits)) {
                prop_assert!(feasible.contains(&tile));
            }
        }
    }
}
