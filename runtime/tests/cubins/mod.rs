//! The suite's part about archives of compiled kernels: a process without NVRTC and with an empty cache decodes within a second.

use super::device;
use half::f16;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use tilewright_kernel_templates::toolchain::{
    ArchiveGroup, CachedCubin, CompileError, Compiler, Cubin, CubinArchive, CubinCache,
};
use tilewright_kernel_templates::{Class, shipped_kernels};
use tilewright_runtime::{Attention, AttentionOptions, Dtype, Heads, KvCache, PageTable};

/// The archive that the child decodes with; this program again, told to be one.
const ARCHIVE: &str = "TILEWRIGHT_TEST_ARCHIVE";

const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };

#[test]
fn a_process_without_nvrtc_decodes_within_a_second() {
    let device = device();
    let compiler = Compiler::or_fetch(device.arch(), &CubinCache::default_folder().unwrap()).unwrap();
    let kernels = shipped_kernels(device.arch(), &CLASS);
    let cubins = compiler.compile_all(&kernels, || ());
    let entry = |(kernel, cubin): (_, Result<Cubin, CompileError>)| {
        let Cubin { code, log, .. } = cubin.unwrap();
        (kernel, CachedCubin { cubin: code, log })
    };
    let kernels = kernels.into_iter().zip(cubins).map(entry).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cubins.bin");
    let group = ArchiveGroup { arch: device.arch(), kernels };
    CubinArchive::write(&path, compiler.nvrtc().unwrap().version(), &[group]).unwrap();

    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cubins::child", "--nocapture"])
        .env(ARCHIVE, &path)
        .env("TILEWRIGHT_NVRTC", folder.path().join("none"))
        .env("TILEWRIGHT_CACHE", folder.path().join("cache"))
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && said.contains("decoded after"), "{said}");
    println!("{said}");
}

#[test]
fn child() {
    let Some(path) = std::env::var_os(ARCHIVE) else { return };
    let device = device();
    let stream = device.context().new_stream().unwrap();
    let heads = Heads { query: 32, kv: 8, dim: 128 };
    let cache = vec![f16::ONE; 3 * 16 * 8 * 128];
    let [keys, values] = [&cache, &cache].map(|cache| stream.clone_htod(cache).unwrap());
    let query = stream.clone_htod(&vec![f16::ONE; 2 * 32 * 128]).unwrap();
    let mut output = stream.alloc_zeros::<f16>(2 * 32 * 128).unwrap();
    stream.synchronize().unwrap();

    let begun = Instant::now();
    let cubins = Some(CubinArchive::load(Path::new(&path)).unwrap());
    let options = AttentionOptions { cubins, ..AttentionOptions::default() };
    let attention = Attention::cuda(stream.context().clone(), heads, options).unwrap();
    let plan = attention.plan(&PageTable::new(&[0, 1, 0, 2], 2, &[32, 20], 16).unwrap()).unwrap();
    attention.run(&plan, &stream, &query, &KvCache::nhd(&keys, &values), &mut output).unwrap();
    let output = stream.clone_dtoh(&output).unwrap();
    let seconds = begun.elapsed().as_secs_f64();

    assert!(output.iter().all(|x| (x.to_f32() - 1.0).abs() < 1e-3));
    let libraries = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!libraries.contains("libnvrtc"), "{libraries}");
    println!("decoded after {seconds:.3} s");
    assert!(seconds < 1.0, "{seconds} s");
}
