//! What is known of a device before it is tuned: the selector that it would use now, its own or that of the most alike device.

use crate::prior::Prior;
use crate::store::DeviceRecord;
use tilewright_heuristics::{BatchShape, Selection, Tile, TileSetBuf};
use tilewright_kernel_templates::{Limits, Space, selection};

/// How the device would choose now.
#[derive(Debug)]
pub(super) struct Known {
    selection: Option<Selection>,
}

impl Known {
    pub(super) fn of(device: &DeviceRecord, limits: &Limits) -> Self {
        Self { selection: device.as_device().and_then(|device| selection(&device, limits, None)) }
    }

    /// The selector; none where rules would decide.
    pub(super) fn prior(&self) -> Option<Prior> {
        Prior::of(self.selection.as_ref()?.matched.selector()?)
    }

    /// Its sets, and each of their tiles alone: the fallback of a class of kernels is one of them.
    pub(super) fn sets(&self) -> Vec<TileSetBuf> {
        let sets = self.selection.iter().flat_map(|selection| selection.sets());
        let mut known: Vec<TileSetBuf> = sets.filter_map(|set| TileSetBuf::of(set.tiles())).collect();
        let single: Vec<TileSetBuf> =
            known.iter().flat_map(|set| set.tiles().iter().copied().map(TileSetBuf::one)).collect();
        known.extend(single);
        known.sort_unstable();
        known.dedup();
        known
    }

    /// Its tiles, which are raced on all batches again.
    pub(super) fn tiles(&self, space: &Space) -> Vec<Tile> {
        let selector = self.selection.as_ref().and_then(|selection| selection.matched.selector());
        let mut tiles = selector.map_or_else(Vec::new, |selector| selector.tiles());
        tiles.retain(|tile| space.tiles().contains(tile));
        tiles
    }

    /// The same, or what rules choose: tiles that every shard of a run verifies and races, whatever its own screening has kept. Shards that
    /// kept different ones would have none in common, and what they unite to no safe default.
    pub(super) fn tiles_or_rules(&self, space: &Space) -> Vec<Tile> {
        let batch = |rows| BatchShape {
            requests: rows,
            all_rows: rows,
            mean_rows: rows,
            shared_rows: rows,
            longest: 1024,
            ..BatchShape::from_values([1; BatchShape::COUNT])
        };
        match (&self.selection, self.tiles(space)) {
            (Some(selection), tiles) if tiles.is_empty() => {
                [1, 16, 128].map(|rows| selection.select(&batch(rows)).tiles().to_vec()).concat()
            }
            (_, tiles) => tiles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::Backend;
    use tilewright_kernel_templates::{CpuLimits, CudaLimits};

    fn device(backend: Backend, name: &str, capability: &str, units: u32) -> DeviceRecord {
        DeviceRecord {
            backend: backend.name().to_owned(),
            name: name.to_owned(),
            capability: capability.to_owned(),
            units,
        }
    }

    #[test]
    fn a_gpu_without_a_module_races_the_tiles_of_the_most_alike() {
        let device = device(Backend::Cuda, "NVIDIA H100 NVL", "sm_90a", 132);
        let known = Known::of(&device, &Limits::Cuda(CudaLimits::named("h100-sxm").unwrap()));
        let sets = known.sets();
        assert!((4..=24).contains(&sets.len()), "{sets:?}");
        assert!(sets.iter().any(|set| set.single().is_some()));
        let space = Space::of(Backend::Cuda);
        let tiles = known.tiles(&space);
        assert!(tiles.len() >= 4 && tiles.iter().all(|tile| space.tiles().contains(tile)), "{tiles:?}");
        let prior = known.prior().unwrap();
        assert!(prior.device.starts_with("NVIDIA H"), "{}", prior.device);
        assert_eq!(known.tiles_or_rules(&space), tiles);
    }

    #[test]
    fn shards_have_tiles_in_common_that_run_everywhere() {
        let cuda = Limits::Cuda(CudaLimits::named("a100-80gb").unwrap());
        let cpu = Limits::Cpu(CpuLimits { threads: 64, ..CpuLimits::BASELINE });
        for (device, limits) in [
            (device(Backend::Cuda, "nobody's", "sm_80", 64), cuda),
            (device(Backend::Cpu, "nobody's", "none", 64), cpu),
        ] {
            let space = Space::of(limits.backend());
            let everywhere = space.universally_feasible(&limits);
            let common = Known::of(&device, &limits).tiles_or_rules(&space);
            assert!(common.iter().any(|tile| everywhere.contains(tile)), "{device}: {common:?}");
            assert_eq!(common, Known::of(&device, &limits).tiles_or_rules(&space));
        }
    }
}
