//! Archives for real: NVRTC makes a few small kernels, and a process without NVRTC gets them.

use std::path::{Path, PathBuf};
use std::process::Command;
use tilewright_heuristics::Dtype;
use tilewright_kernel_templates::cuda::{Kernel, KernelOptions};
use tilewright_kernel_templates::toolchain::{
    ArchiveGroup, CachedCubin, Compiler, CubinArchive, Nvrtc, Source,
};
use tilewright_kernel_templates::{Arch, Class};

/// The archive that the child serves from; this program again, told to be one.
const ARCHIVE: &str = "TILEWRIGHT_TEST_ARCHIVE";

const CLASS: Class = Class { head_dim: 64, dtype: Dtype::F16 };

/// Where downloads are kept from run to run.
fn cache() -> PathBuf {
    match std::env::var_os("TILEWRIGHT_CACHE") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"),
    }
}

fn arch() -> Arch {
    "sm_90a".parse().unwrap()
}

/// Those that compile soonest.
fn kernels() -> [Kernel; 3] {
    let merge = Kernel::merge(1, &CLASS, KernelOptions::default());
    [Kernel::merge_states(&CLASS), Kernel::append(&CLASS, None), merge]
}

/// An archive of all but the last.
fn archive(folder: &Path) -> PathBuf {
    let compiler = Compiler::or_fetch(arch(), &cache()).unwrap();
    let made = kernels().into_iter().take(2).map(|kernel| {
        let cubin = compiler.compile(&kernel).unwrap();
        (kernel, CachedCubin { cubin: cubin.code, log: cubin.log })
    });
    let group = ArchiveGroup { arch: arch(), kernels: made.collect() };
    let path = folder.join("cubins.bin");
    CubinArchive::write(&path, compiler.nvrtc().unwrap().version(), &[group]).unwrap();
    path
}

#[test]
fn a_process_without_nvrtc_has_the_kernels_of_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive(folder.path());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(ARCHIVE, &path)
        .env("TILEWRIGHT_NVRTC", folder.path().join("none"))
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && said.contains("served"), "{said}");
}

#[test]
fn child() {
    let Some(path) = std::env::var_os(ARCHIVE) else { return };
    let archive = CubinArchive::load(Path::new(&path)).unwrap();
    let folder = Path::new(&path).parent().unwrap();
    let compiler = Compiler::with_archive(arch(), folder, false, archive, (13, 0));
    let [states, append, merge] = kernels();
    for cubin in compiler.compile_all(&[states, append], || ()) {
        let cubin = cubin.unwrap();
        assert!(cubin.cached && cubin.usage.registers > 0 && cubin.log.contains("registers"));
    }
    assert_eq!(compiler.compiled(), 0);
    let libraries = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!libraries.contains("nvrtc"), "{libraries}");

    // What the archive lacks needs the compiler.
    let error = compiler.compile(&merge).unwrap_err().to_string();
    assert!(error.contains("merge_w1_d64_f16") && error.contains("TILEWRIGHT_NVRTC"), "{error}");
    println!("served");
}

#[test]
fn kernels_of_an_archive_are_those_that_are_compiled_here() {
    let folder = tempfile::tempdir().unwrap();
    let archive = CubinArchive::load(&archive(folder.path())).unwrap();
    let here = Compiler::or_fetch(arch(), &cache()).unwrap();
    let shipped = Compiler::with_archive(arch(), &cache(), true, archive, (13, 0));
    for kernel in kernels() {
        let [here, shipped] = [&here, &shipped].map(|compiler| compiler.compile(&kernel).unwrap());
        assert_eq!((here.code, here.usage, here.report), (shipped.code, shipped.usage, shipped.report));
    }
}

#[test]
fn a_compiler_that_is_newer_than_the_driver_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let archive = CubinArchive::load(&archive(folder.path())).unwrap();
    let compiler = Compiler::with_archive(arch(), &cache(), true, archive, (11, 8));
    let [states, _, merge] = kernels();
    compiler.compile(&states).unwrap();
    let error = compiler.compile(&merge).unwrap_err().to_string();
    let (major, minor) = compiler.nvrtc().unwrap().version();
    assert!(
        error.contains("supports CUDA 11.8") && error.contains(&format!("NVRTC {major}.{minor}")),
        "{error}"
    );
}

#[test]
fn every_architecture_of_archives_is_known_to_the_compiler() {
    let nvrtc = Nvrtc::load_or_fetch(&cache()).unwrap();
    let source = Source { name: "none.cu", text: "extern \"C\" __global__ void none() {}", headers: &[] };
    for arch in tilewright_kernel_templates::SHIPPED_ARCHS {
        let arch: Arch = arch.parse().unwrap();
        assert!(!nvrtc.compile(&source, &[arch.option()]).unwrap().cubin.is_empty(), "{arch}");
    }
}
