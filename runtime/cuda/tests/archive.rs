//! What an archive has is what plans ask for: batches of every kind, planned for devices that are not here.

use tilewright_cuda::CubinArchive;
use tilewright_heuristics::{Backend, Device, Geometry};
use tilewright_kernel_templates::cuda::{Kernel, KernelOptions, MERGE_WARPS};
use tilewright_kernel_templates::toolchain::{ArchiveGroup, CachedCubin};
use tilewright_kernel_templates::{
    Arch, CudaLimits, Limits, SHIPPED_ARCHS, SHIPPED_CLASSES, selection, shipped_kernels,
};
use tilewright_plan::{BySelection, DeviceProfile, PageTable, Plan, PlanOptions};

/// An archive of all kernels that are shipped, with their names as machine code.
fn archive() -> (tempfile::TempDir, CubinArchive) {
    let mut groups = Vec::new();
    for arch in SHIPPED_ARCHS {
        let arch: Arch = arch.parse().unwrap();
        let kernels = SHIPPED_CLASSES.iter().flat_map(|class| shipped_kernels(arch, class));
        let named = |kernel: Kernel| {
            let cubin = format!("{} for {arch}", kernel.name).into_bytes();
            (kernel, CachedCubin { cubin, log: String::new() })
        };
        groups.push(ArchiveGroup { arch, kernels: kernels.map(named).collect() });
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cubins.bin");
    CubinArchive::write(&path, (13, 0), &groups).unwrap();
    let archive = CubinArchive::open(&path).unwrap();
    (folder, archive)
}

/// Page tables: one long request, many short ones, two trees of many requests and one of few, all of pages of 16.
fn batches() -> Vec<(Vec<i32>, usize, Vec<u32>)> {
    let batch = |requests: usize, shared: usize, own: usize, trees: usize| {
        let columns = shared + own;
        let entry = |request: usize, column: usize| {
            let page = if column < shared {
                request % trees * shared + column
            } else {
                trees * shared + request * own + column - shared
            };
            page as i32
        };
        let entries =
            (0..requests).flat_map(|request| (0..columns).map(move |column| entry(request, column)));
        (entries.collect(), columns, vec![(columns * 16) as u32 - 3; requests])
    };
    vec![
        batch(1, 0, 4000, 1),
        batch(1, 0, 3, 1),
        batch(256, 0, 8, 1),
        batch(300, 60, 4, 2),
        batch(4, 500, 1, 1),
        batch(64, 20, 100, 8),
        batch(2000, 2, 2, 400),
    ]
}

#[test]
fn plans_of_the_default_selectors_find_all_their_kernels() {
    let (_folder, archive) = archive();
    let (mut plans, mut merging) = (0, 0);
    for name in SHIPPED_ARCHS {
        let arch: Arch = name.parse().unwrap();
        let limits = CudaLimits {
            arch: name.into(),
            sms: 100,
            ..CudaLimits::of_capability(arch.number() / 10, arch.number() % 10)
        };
        let device =
            Device { backend: Backend::Cuda, name: "NVIDIA X1", capability: name, units: limits.sms };
        let selection = selection(&device, &Limits::Cuda(limits), None).unwrap();
        let options = PlanOptions::on(DeviceProfile::of(&device, &selection));
        for class in SHIPPED_CLASSES {
            let of = |kernel: &Kernel| {
                let found = archive.get(kernel, arch).map(|found| String::from_utf8(found.cubin).unwrap());
                assert_eq!(found, Some(format!("{} for {name}", kernel.name)), "{class}");
            };
            for (entries, columns, lens) in batches() {
                let geometry = Geometry {
                    q_heads: 32,
                    kv_heads: 8,
                    head_dim: class.head_dim,
                    page_size: 16,
                    dtype: class.dtype,
                };
                let table = PageTable::new(&entries, columns, &lens, 16).unwrap();
                let plan = Plan::build(&geometry, &table, &options, BySelection::new(&selection)).unwrap();
                // In pages that TMA reads, and in those that it cannot.
                for options in [16, 1].map(KernelOptions::for_pages) {
                    for group in plan.tile_groups() {
                        of(&Kernel::decode(&group.tile, &class, options, arch));
                    }
                    MERGE_WARPS.iter().for_each(|&warps| of(&Kernel::merge(warps, &class, options)));
                }
                plans += 1;
                merging += usize::from(!plan.merges().is_empty());
            }
        }
    }
    assert!(plans == 6 * 6 * 7 && merging > 50, "{merging} of {plans} merge");
}
