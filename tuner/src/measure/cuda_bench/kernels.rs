//! The kernels that a bench compiles for what it is asked to make ready, for those who compile them before it is asked.

use super::cases::option_sets;
use crate::measure::Preparation;
use crate::measure::compile_ahead::Wanted;
use std::collections::BTreeMap;
use tilewright_heuristics::{Tile, TileSetBuf};
use tilewright_kernel_templates::cuda::{GRANULE, Kernel, KernelOptions, MERGE_WARPS};
use tilewright_kernel_templates::{Arch, Class, CudaLimits, check_mix};

/// The kernels of tiles and of sets of several tiles on these devices, each once. Sets that no device runs have none.
pub(in crate::measure) fn kernels_of(
    wanted: &[Preparation],
    sets: &[(TileSetBuf, Class)],
    limits: &CudaLimits,
) -> Vec<Wanted> {
    let Ok(arch) = limits.arch.parse::<Arch>() else { return Vec::new() };
    let mut kernels: BTreeMap<String, Wanted> = BTreeMap::new();
    let mut add = |tiles: &[Tile], class: &Class, options: KernelOptions| {
        let length = tiles.iter().map(|tile| length(tile, class)).sum();
        let kernel = Kernel::decode_mix(tiles, class, options, arch);
        kernels.entry(kernel.name.clone()).or_insert(Wanted { kernel, length });
        // Every tile of a class needs its merge: those are short, and come first.
        let KernelOptions { sinks, invariant, .. } = options;
        // Batch-invariant merges have one warp a row.
        let warps_of_merges = if invariant { &MERGE_WARPS[..1] } else { &MERGE_WARPS[..] };
        for &warps in warps_of_merges {
            let options = KernelOptions { sinks, invariant, ..KernelOptions::default() };
            let kernel = Kernel::merge(warps, &class.outputs(), options);
            kernels.entry(kernel.name.clone()).or_insert(Wanted { kernel, length: u32::MAX });
        }
    };
    for Preparation { tiles, class, coverage } in wanted {
        for options in option_sets(*coverage, class, arch) {
            tiles.iter().for_each(|tile| add(&[*tile], class, options));
        }
    }
    for (set, class) in sets {
        let options = KernelOptions::for_pages(GRANULE).on(class, arch);
        if check_mix(set.tiles(), class, options, limits).is_ok() {
            add(set.tiles(), class, options);
        }
    }
    kernels.into_values().collect()
}

/// About how long a tile takes to compile, beside others: NVRTC 13.0 takes 0.6 to 7 s, most for those whose warps have the most tokens of a step, as many more
/// as a token has elements.
fn length(tile: &Tile, class: &Class) -> u32 {
    let row_warps = u32::from(tile.m).div_ceil(16);
    u32::from(tile.n) * row_warps * class.head_dim / u32::from(tile.warps).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Coverage;
    use tilewright_heuristics::Dtype;

    const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };

    fn names(wanted: &[Preparation], sets: &[(TileSetBuf, Class)], device: &str) -> Vec<String> {
        let mut kernels = kernels_of(wanted, sets, &CudaLimits::named(device).unwrap());
        kernels.sort_by_key(|wanted| std::cmp::Reverse(wanted.length));
        kernels.into_iter().map(|wanted| wanted.kernel.name).collect()
    }

    #[test]
    fn a_tile_has_the_kernels_that_its_coverage_names_and_its_merges() {
        let tiles = vec![Tile::of("m16n64w4s2"), Tile::of("m64n64w4s2")];
        let of =
            |coverage| names(&[Preparation { tiles: tiles.clone(), class: CLASS, coverage }], &[], "h200");
        let plain = of(Coverage::PLAIN);
        assert_eq!(plain.len(), 2 + 2, "{plain:?}");
        assert!(plain[..2].iter().all(|name| name.starts_with("merge")), "{plain:?}");
        assert_eq!(plain[2..], ["decode_m64n64w4s2_d128_f16", "decode_m16n64w4s2_d128_f16"]);
        assert_eq!(of(Coverage::TRIAL), plain);
        // Two more sets of options, which have sinks, and so have their merges.
        assert_eq!(of(Coverage { options: true, ..Coverage::PLAIN }).len(), 3 * 2 + 2 * 2);
        let cp_async = of(Coverage { cp_async: true, ..Coverage::PLAIN });
        assert!(cp_async[2..].iter().all(|name| name.ends_with("_cp_async")), "{cp_async:?}");
        let timeline = of(Coverage { timeline: true, ..Coverage::PLAIN });
        assert!(timeline[2..].iter().all(|name| name.ends_with("_timeline")), "{timeline:?}");
        let invariant = of(Coverage::INVARIANT);
        assert_eq!(invariant.len(), 1 + 2, "{invariant:?}");
        assert!(invariant.iter().all(|name| name.contains("invariant")), "its merge, too: {invariant:?}");
    }

    #[test]
    fn a_set_is_one_kernel_where_it_can_run() {
        let set = |tiles: [&str; 2]| (TileSetBuf::of(&tiles.map(Tile::of)).unwrap(), CLASS);
        let runs = set(["m16n64w4s2", "m64n64w4s2"]);
        // Beside producer warps all tiles of a kernel have as many warps.
        let does_not = set(["m16n64w2s2", "m64n64w4s2"]);
        assert_eq!(names(&[], &[runs, does_not], "h200").len(), 1 + 2);
        assert_eq!(names(&[], &[does_not], "h200").len(), 0);
    }

    #[test]
    fn what_takes_longest_is_known() {
        let length = |tile: &str, head_dim| length(&Tile::of(tile), &Class { head_dim, ..CLASS });
        // 7.0, 3.3, 2.0 and 0.6 s.
        let falling =
            ["m32n256w2s1", "m32n128w2s2", "m64n64w4s2", "m16n64w4s2"].map(|tile| length(tile, 128));
        assert!(falling.is_sorted_by(|a, b| a > b), "{falling:?}");
        assert!(length("m32n128w2s1", 256) > length("m32n256w2s2", 64));
    }
}
