//! The kernels that are worth compiling ahead of time: what devices of an architecture compile before their first launch, without options of
//! the mask.

use super::{CudaLimits, Limits, check_mix, selection};
use crate::cuda::{Kernel, KernelOptions, KvLoad, MERGE_WARPS};
use crate::{Arch, Class, RotaryPairs};
use tilewright_heuristics::{Backend, Device, Dtype, Selection, Tile};

/// The architectures that archives are made for.
pub const SHIPPED_ARCHS: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"];

/// The classes of kernels that archives are made for.
pub const SHIPPED_CLASSES: [Class; 6] = [
    Class { head_dim: 64, dtype: Dtype::F16 },
    Class { head_dim: 64, dtype: Dtype::Bf16 },
    Class { head_dim: 128, dtype: Dtype::F16 },
    Class { head_dim: 128, dtype: Dtype::Bf16 },
    Class { head_dim: 128, dtype: Dtype::Fp8F16 },
    Class { head_dim: 128, dtype: Dtype::Fp8Bf16 },
];

/// What a device compiles for a class of kernels before its first plan: forward of each tile that its selector may choose, and of each set of
/// several, and the merges.
pub fn selected_kernels(
    selection: &Selection,
    limits: &CudaLimits,
    arch: Arch,
    class: &Class,
    options: KernelOptions,
) -> Vec<Kernel> {
    let options = options.on(class, arch);
    // A selector has tiles for other classes, too, that this one cannot run.
    let runs = |tiles: &[Tile]| check_mix(tiles, class, options, limits).is_ok();
    let tiles = selection.tiles_of(class.head_dim, class.dtype).into_iter().filter(|tile| runs(&[*tile]));
    let mut kernels: Vec<Kernel> = tiles.map(|tile| Kernel::decode(&tile, class, options, arch)).collect();
    let mixes = selection.sets().iter().map(|set| set.tiles()).filter(|tiles| tiles.len() > 1 && runs(tiles));
    kernels.extend(mixes.map(|tiles| Kernel::decode_mix(tiles, class, options, arch)));
    kernels.extend(MERGE_WARPS.map(|warps| Kernel::merge(warps, class, options)));
    kernels
}

/// The kernels of an archive for an architecture and a class: those of all devices of the architecture, for pages of any size, and what writes
/// K and V to pages and merges states.
pub fn shipped_kernels(arch: Arch, class: &Class) -> Vec<Kernel> {
    let of_arch = |limits: &&CudaLimits| *limits.arch == *arch.to_string();
    let number = arch.number();
    let any =
        CudaLimits { arch: arch.to_string().into(), ..CudaLimits::of_capability(number / 10, number % 10) };
    let mut kernels = Vec::new();
    for limits in CudaLimits::NAMED.iter().filter(of_arch).chain([&any]) {
        let name = format!("NVIDIA {}", limits.name.to_uppercase());
        let device =
            Device { backend: Backend::Cuda, name: &name, capability: &limits.arch, units: limits.sms };
        let Some(selection) = selection(&device, &Limits::Cuda(limits.clone()), None) else { continue };
        for kv_load in [KvLoad::Tma, KvLoad::CpAsync] {
            let options = KernelOptions { kv_load, ..KernelOptions::default() };
            kernels.extend(selected_kernels(&selection, limits, arch, class, options));
        }
    }
    let rotary = [None, Some(RotaryPairs::Halves), Some(RotaryPairs::Interleaved)];
    kernels.extend(rotary.map(|rotary| Kernel::append(class, rotary)));
    kernels.push(Kernel::merge_states(class));
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    kernels.dedup();
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;
    use crate::space::selection::batches;
    use std::collections::HashSet;

    fn archs() -> impl Iterator<Item = Arch> {
        SHIPPED_ARCHS.into_iter().map(|arch| arch.parse().unwrap())
    }

    #[test]
    fn the_kernels_of_whatever_a_selector_chooses_are_shipped() {
        for arch in archs() {
            let name = arch.to_string();
            let number = arch.number();
            let limits = CudaLimits {
                arch: name.clone().into(),
                ..CudaLimits::of_capability(number / 10, number % 10)
            };
            let device = Device { backend: Backend::Cuda, name: "NVIDIA X1", capability: &name, units: 80 };
            let selection = selection(&device, &Limits::Cuda(limits), None).unwrap();
            for class in SHIPPED_CLASSES {
                let shipped: HashSet<Kernel> = shipped_kernels(arch, &class).into_iter().collect();
                for batch in batches(&class) {
                    for tile in selection.select(&batch).tiles() {
                        for options in [16, 1].map(KernelOptions::for_pages) {
                            let kernel = Kernel::decode(tile, &class, options, arch);
                            assert!(shipped.contains(&kernel), "{arch}: {}", kernel.name);
                        }
                    }
                }
            }
        }
    }

    /// An archive of which one kernel cannot be compiled is none.
    #[test]
    fn no_kernel_is_shipped_that_breaks_a_rule_of_its_class() {
        for limits in CudaLimits::NAMED {
            let arch = limits.arch.parse().unwrap();
            for class in Class::all(Backend::Cuda) {
                let fits =
                    |tile: &Tile| check_mix(&[*tile], &class, KernelOptions::default(), limits).is_ok();
                let broken: HashSet<String> = Space::of(Backend::Cuda)
                    .tiles()
                    .iter()
                    .filter(|tile| !fits(tile))
                    .map(|tile| format!("decode_{tile}_"))
                    .collect();
                for kernel in shipped_kernels(arch, &class) {
                    let of_tile = kernel.name.split_inclusive('_').take(2).collect::<String>();
                    assert!(!broken.contains(&of_tile), "{}: {}", limits.name, kernel.name);
                }
            }
        }
    }

    #[test]
    fn a_kernel_is_shipped_once() {
        for arch in archs() {
            let all: Vec<Kernel> =
                SHIPPED_CLASSES.iter().flat_map(|class| shipped_kernels(arch, class)).collect();
            let distinct: HashSet<&Kernel> = all.iter().collect();
            let names: HashSet<&str> = all.iter().map(|kernel| &*kernel.name).collect();
            assert_eq!(names.len(), distinct.len(), "{arch}");
            let has = |name: &str| names.iter().any(|known| known.starts_with(name));
            for name in ["merge_w1_d64_", "merge_w4_d128_", "merge_states_d64_"] {
                assert!(has(name), "{arch}: {name}");
            }
            // Which tiles these are is a matter of what was measured last.
            for class in ["_d64_f16", "_d128_fp8_bf16"] {
                let decodes = |name: &&str| name.starts_with("decode_") && name.contains(class);
                assert!(names.iter().any(decodes), "{arch}: {class}");
            }
            assert!(has("append_d128_fp8_f16_halves") && has("append_d64_bf16_interleaved"));
            // Pages that TMA cannot read have kernels of their own where others are read by it.
            assert_eq!(names.iter().any(|name| name.ends_with("_cp_async")), arch.number() == 90, "{arch}");
        }
    }
}
