//! The batch-invariant kernels are compiled for every architecture, with no GPU: each has a tile that fits its registers.

use std::path::PathBuf;
use tilewright_heuristics::{Backend, Dtype, MaskOptions, chunk};
use tilewright_kernel_templates::cuda::{Kernel, KernelOptions, MERGE_WARPS};
use tilewright_kernel_templates::toolchain::Compiler;
use tilewright_kernel_templates::{Arch, Class, CudaLimits, occupancy};

fn cache() -> PathBuf {
    std::env::var_os("TILEWRIGHT_CACHE")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cache"), PathBuf::from)
}

/// Each class has a tile on a device without spills; of the usual one, the CTAs that an SM holds.
fn check(device: &str, classes: &[(u32, Dtype)]) -> u32 {
    let limits = CudaLimits::named(device).unwrap();
    let compiler = Compiler::or_fetch(limits.arch.parse::<Arch>().unwrap(), &cache()).unwrap();
    let plain = KernelOptions { invariant: true, ..KernelOptions::for_pages(16) };
    let all = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..plain };
    let mut least = u32::MAX;
    for &(head_dim, dtype) in classes {
        let class = Class { head_dim, dtype };
        let usual = (head_dim, dtype) == (128, Dtype::F16);
        for options in [plain, all].into_iter().take(if usual { 2 } else { 1 }) {
            let sets = chunk::tiles(Backend::Cuda, head_dim);
            let fits = sets.iter().find_map(|set| {
                let tile = set.tiles()[0];
                let kernel = Kernel::decode(&tile, &class, options, compiler.arch());
                let cubin = compiler.compile(&kernel).unwrap();
                let bytes = kernel.shared_bytes + cubin.usage.static_shared_bytes;
                let held = occupancy(&limits, kernel.threads, cubin.usage.registers, bytes).ctas_per_sm;
                let spilled = cubin.report.spill_store_bytes;
                (held > 0 && spilled == 0).then_some(held)
            });
            let held = fits.unwrap_or_else(|| panic!("no tile for {class} on {device}"));
            least = if usual { least.min(held) } else { least };
        }
        compiler.compile(&Kernel::merge(MERGE_WARPS[0], &class, plain)).unwrap();
    }
    least
}

#[test]
fn batch_invariant_kernels_fit_an_h200() {
    let classes = [(128, Dtype::F16), (256, Dtype::F16), (128, Dtype::Fp8F16)];
    // As many as of the same tile without being invariant.
    assert_eq!(check("h200", &classes), 2);
}

#[test]
fn batch_invariant_kernels_fit_older_devices() {
    assert!(check("a100-80gb", &[(128, Dtype::F16)]) >= 1);
}
