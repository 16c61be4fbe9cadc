//! The batch-invariant kernels are compiled for every architecture, with no GPU: each has a tile that fits its registers.

use std::path::PathBuf;
use tilewright_heuristics::{Backend, Dtype, MaskOptions, chunk};
use tilewright_kernel_templates::cuda::{Kernel, KernelOptions, KvLoad, MERGE_WARPS};
use tilewright_kernel_templates::toolchain::Compiler;
use tilewright_kernel_templates::{Arch, Class, CudaLimits, occupancy};

fn cache() -> PathBuf {
    std::env::var_os("TILEWRIGHT_CACHE")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cache"), PathBuf::from)
}

/// The first tile of each class on a device, with its registers, bytes spilled, and CTAs an SM. Without and with all options.
fn check(device: &str) {
    let limits = CudaLimits::named(device).unwrap();
    let compiler = Compiler::or_fetch(limits.arch.parse::<Arch>().unwrap(), &cache()).unwrap();
    let plain = KernelOptions { invariant: true, ..KernelOptions::for_pages(16) };
    let all = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..plain };
    let cp_async = KernelOptions { kv_load: KvLoad::CpAsync, ..plain };
    let mut seen = Vec::new();
    for (head_dim, dtype) in
        [(128, Dtype::F16), (128, Dtype::Bf16), (64, Dtype::F16), (256, Dtype::F16), (128, Dtype::Fp8F16)]
    {
        let class = Class { head_dim, dtype };
        for options in [plain, all, cp_async] {
            let sets = chunk::tiles(Backend::Cuda, dtype, head_dim);
            let fits = sets.iter().find_map(|set| {
                let tile = set.tiles()[0];
                let kernel = Kernel::decode(&tile, &class, options, compiler.arch());
                let cubin = compiler.compile(&kernel).unwrap();
                let bytes = kernel.shared_bytes + cubin.usage.static_shared_bytes;
                let held = occupancy(&limits, kernel.threads, cubin.usage.registers, bytes).ctas_per_sm;
                let spilled = cubin.report.spill_store_bytes;
                println!(
                    "{device} {}: {} registers, {spilled} B spilled, {bytes} B shared, {held} CTAs an SM",
                    kernel.name, cubin.usage.registers
                );
                (held > 0 && spilled == 0).then_some((tile, held))
            });
            seen.push(fits.unwrap_or_else(|| panic!("no tile for {class} on {device}")));
        }
        compiler.compile(&Kernel::merge(MERGE_WARPS[0], &class, plain)).unwrap();
    }
    // Where warpgroups multiply and TMA copies, two CTAs share an SM, as they do without being invariant.
    if limits.arch == "sm_90a" {
        assert!(seen[..9].iter().all(|&(tile, held)| tile.m == 64 && held == 2), "{seen:?}");
    }
}

#[test]
fn batch_invariant_kernels_fit_an_h200() {
    check("h200");
}

#[test]
fn batch_invariant_kernels_fit_older_devices() {
    check("a100-80gb");
    check("l40s");
}
