//! The suite's part about races in shared memory: a batch of tenants under every kind of kernel, then the same under compute-sanitizer.

use super::forward::{TILES, WIDE_TILES, of_either_merge, plan_for, prepare_tiles};
use super::{backend, device, upload};
use std::path::PathBuf;
use std::process::Command;
use tilewright_conformance::{self as conformance, ConformanceCase, options_of};
use tilewright_cuda::{CudaError, LaunchMode};
use tilewright_heuristics::{Dtype, PackShape, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{KernelOptions, KvLoad};

/// Each kind of CTA: one KV warp and several, mma and wgmma, one producer warp and a warpgroup of them, a private phase and none.
const KINDS: [&str; 7] =
    ["m16n128w8s3", "m64n64w8s3", "m16n64w1s2", "m32n64w4s2", "m64n64w4s2", "m64n128w8s1", "m128n64w8s2"];

/// The same for heads that warps split among themselves.
const SPLIT_KINDS: [&str; 3] = ["m16n32w4s2", "m32n32w8s2", "m64n32w8s1"];

/// Of longer heads in FP8: a query in shared memory, whose order a warpgroup changes there, beside widened K and V; warps that share out a step.
const LONG_FP8_KINDS: [&str; 3] = ["m64n32w4s2", "m64n64w8s1", "m16n64w4s1"];

/// Several prompts and requests of their own, on pages that steps do not divide.
fn tenants(class: &Class) -> ConformanceCase {
    let name = "tenants on pages of 48 tokens";
    conformance::cases(class, 21).into_iter().find(|case| case.name == name).unwrap()
}

#[test]
fn every_kind_of_kernel_is_right_for_tenants() {
    let device = device();
    let mut backend = backend(&device);
    let stream = device.context().new_stream().unwrap();
    let mut kernels = 0;
    let kinds: [(u32, Dtype, &[&str]); 4] = [
        (128, Dtype::F16, &KINDS),
        (128, Dtype::Fp8F16, &KINDS),
        (256, Dtype::Fp8Bf16, &LONG_FP8_KINDS),
        (512, Dtype::F16, &SPLIT_KINDS),
    ];
    for (head_dim, dtype, kinds) in kinds {
        let class = Class { head_dim, dtype };
        let mut case = upload(tenants(&class), &device);
        let (usual, planned) = (options_of(&case.case), case.case.options);
        let most = |error: f64| assert!(error < conformance::tolerance(class.dtype), "{class}: {error:.1e}");
        // With TMA where the GPU has it, and with cp.async.
        for options in [usual, KernelOptions { kv_load: KvLoad::CpAsync, ..usual }] {
            let tiles: Vec<Tile> = kinds.iter().map(|kind| Tile::of(kind)).collect();
            let prepared = backend.prepare(&tiles, &class, options, || ()).unwrap();
            for (tile, prepared) in tiles.iter().zip(prepared) {
                match prepared {
                    Ok(_) => {}
                    Err(CudaError::Infeasible { .. }) => continue,
                    Err(error) => panic!("{class} {tile} {options:?}: {error}"),
                }
                let (output, lse) = case.run_on(&backend, &stream, tile, options, planned).unwrap();
                most(case.case.check(&output, &lse).unwrap());
                kernels += 1;
            }
        }
        // Several tiles in one kernel.
        for tiles in [TILES, WIDE_TILES].into_iter().filter(|_| head_dim == 128) {
            for options in of_either_merge(usual) {
                prepare_tiles(&mut backend, &tiles, &class, options);
            }
            let select =
                |shape: &PackShape| tiles[usize::from(shape.rows > 16) + usize::from(shape.kv_len > 300)];
            for mode in LaunchMode::ALL {
                let mut plan = plan_for(&device, mode, &tiles);
                let (output, lse) = case.run_in(&backend, &stream, &mut plan, planned, select).unwrap();
                most(case.case.check(&output, &lse).unwrap());
            }
        }
    }
    assert!(kernels >= 20, "{kernels} kernels");
}

/// The CUDA toolkit's checker: on the path, or where toolkits are.
fn compute_sanitizer() -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let toolkits = ["/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"].map(PathBuf::from);
    std::env::split_paths(&folders)
        .chain(toolkits)
        .map(|folder| folder.join("compute-sanitizer"))
        .find(|program| program.is_file())
        .expect("this test needs compute-sanitizer: add the bin folder of a CUDA toolkit to PATH")
}

/// What one test of this suite says under the checker. It is far slower there, but for compiling.
#[test]
fn racecheck_finds_no_hazard_in_any_kind_of_kernel() {
    let checked = Command::new(compute_sanitizer())
        .args(["--tool", "racecheck", "--racecheck-report", "all", "--print-limit", "20"])
        .args(["--error-exitcode", "9"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "racecheck::every_kind_of_kernel_is_right_for_tenants", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(said.contains("1 passed"), "the batch is not decoded under the checker: {said}");
    assert!(
        said.contains("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"),
        "{}: {said}",
        checked.status
    );
}
