//! The batch-invariant kernels are compiled for every architecture, with no GPU: each has a tile that fits its registers.

mod machine_code;

use std::path::PathBuf;
use tilewright_heuristics::{Backend, Dtype, Geometry, MaskOptions, chunk};
use tilewright_kernel_templates::cuda::{Kernel, KernelOptions, MERGE_WARPS};
use tilewright_kernel_templates::toolchain::Compiler;
use tilewright_kernel_templates::{Arch, Class, CudaLimits, check_compiled, occupancy};

fn cache() -> PathBuf {
    std::env::var_os("TILEWRIGHT_CACHE")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cache"), PathBuf::from)
}

/// Each class has a family on a device whose compiled tiles pass the rules. Returns the fewest CTAs of the usual class that an SM holds, and whether
/// all classes have their first family.
fn check(device: &str, classes: &[(u32, Dtype)]) -> (u32, bool) {
    let limits = CudaLimits::named(device).unwrap();
    let compiler = Compiler::or_fetch(limits.arch.parse::<Arch>().unwrap(), &cache()).unwrap();
    let plain = KernelOptions { invariant: true, ..KernelOptions::for_pages(16) };
    let all = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..plain };
    // On all cores: what follows finds them in the cache.
    let of_class = |&(head_dim, dtype): &(u32, Dtype)| {
        let tiles = chunk::families(Backend::Cuda, head_dim, dtype)[0].tiles().iter();
        let of_tile = |tile| {
            [plain, all]
                .map(|options| Kernel::decode(tile, &Class { head_dim, dtype }, options, compiler.arch()))
        };
        tiles.flat_map(of_tile).collect::<Vec<_>>()
    };
    let first: Vec<Kernel> = classes.iter().flat_map(of_class).collect();
    compiler.compile_all(&first, || ());
    let (mut least, mut first) = (u32::MAX, true);
    for &(head_dim, dtype) in classes {
        let class = Class { head_dim, dtype };
        let usual = (head_dim, dtype) == (128, Dtype::F16);
        for options in [plain, all] {
            let sets = chunk::families(Backend::Cuda, head_dim, dtype);
            let fits = sets.iter().find_map(|set| {
                let of_tile = set.tiles().iter().map(|tile| {
                    let kernel = Kernel::decode(tile, &class, options, compiler.arch());
                    let cubin = compiler.compile(&kernel).unwrap();
                    machine_code::assert_arrivals_wait(&kernel, head_dim, &limits.arch, &cubin.code);
                    let bytes = kernel.shared_bytes + cubin.usage.static_shared_bytes;
                    let held = occupancy(&limits, kernel.threads, cubin.usage.registers, bytes).ctas_per_sm;
                    let passed = check_compiled(tile, &class, options, &limits, &cubin.usage, &cubin.report);
                    println!(
                        "{device} {class} {tile}: {held} CTAs an SM, {} registers, {passed:?}",
                        cubin.usage.registers
                    );
                    if passed.is_err() {
                        return 0;
                    }
                    // Plans are made for as many.
                    let geometry = Geometry { q_heads: 32, kv_heads: 8, head_dim, page_size: 16, dtype };
                    let planned =
                        tilewright_plan::Occupancy::of_capability(&limits.arch).of(tile, &geometry, true);
                    assert!(
                        device != "h200" || held == planned,
                        "{class} {tile}: {held}, planned for {planned}"
                    );
                    held
                });
                of_tile.min().filter(|&held| held > 0).map(|held| (set, held))
            });
            let (set, held) = fits.unwrap_or_else(|| panic!("no family for {class} on {device}"));
            println!("{device} {class}: {set}");
            first &= set == &sets[0];
            least = if usual { least.min(held) } else { least };
        }
        compiler.compile(&Kernel::merge(MERGE_WARPS[0], &class, plain)).unwrap();
    }
    (least, first)
}

#[test]
fn batch_invariant_kernels_fit_an_h200() {
    let types = [Dtype::F16, Dtype::Fp8F16, Dtype::Fp8Bf16];
    let classes: Vec<(u32, Dtype)> =
        [64, 96, 128, 192, 256, 512].into_iter().flat_map(|dim| types.map(|dtype| (dim, dtype))).collect();
    // As many as of the same tiles without being invariant, and all classes have the first family.
    assert_eq!(check("h200", &classes), (2, true));
}

#[test]
fn batch_invariant_kernels_fit_older_devices() {
    assert!(check("a100-80gb", &[(128, Dtype::F16)]).0 >= 1);
}
