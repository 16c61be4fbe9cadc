//! Compiles the kernels that devices need before their first launch, and writes them to an archive (`CubinArchive`), which serves where there
//! is no NVRTC.
//!
//! ```sh
//! cargo run --release -p tilewright-kernel-templates --example cubin_archive -- FILE [--only NAME] [ARCH...]
//! ```
//!
//! Without architectures it is all that `SHIPPED_ARCHS` has; `--only` keeps the kernels whose names begin so. Kernels are compiled on all cores, and kept in the cache like others: a second
//! run, or one that goes on after a stop, compiles what is missing. NVRTC is fetched where the machine has none.

use std::collections::HashSet;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use tilewright_kernel_templates::toolchain::{ArchiveGroup, CachedCubin, Compiler, CubinArchive, CubinCache};
use tilewright_kernel_templates::{Arch, Class, SHIPPED_ARCHS, SHIPPED_CLASSES, shipped_kernels};

const USAGE: &str =
    "usage: cubin_archive FILE [--only NAME] [ARCH...], for example cubin_archive cubins.bin sm_90a";

fn main() -> ExitCode {
    let (mut file, mut only, mut archs) = (None, String::new(), Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--only" => only = arguments.next().unwrap_or_default(),
            option if option.starts_with('-') => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
            _ if file.is_none() => file = Some(PathBuf::from(argument)),
            _ => archs.push(argument),
        }
    }
    let Some(file) = file else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match write(file, &only, archs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(file: PathBuf, only: &str, archs: Vec<String>) -> Result<(), Box<dyn Error>> {
    let archs = if archs.is_empty() { SHIPPED_ARCHS.map(str::to_owned).to_vec() } else { archs };
    let archs: Vec<Arch> = archs.iter().map(|arch| arch.parse()).collect::<Result<_, _>>()?;
    let (folder, begun) = (CubinCache::default_folder()?, Instant::now());
    let (mut groups, mut nvrtc) = (Vec::new(), (0, 0));
    for arch in archs {
        let compiler = Compiler::or_fetch(arch, &folder)?;
        if !compiler.supports_arch() {
            let (major, minor) = compiler.nvrtc()?.version();
            return Err(format!("NVRTC {major}.{minor} does not know {arch}").into());
        }
        nvrtc = compiler.nvrtc()?.version();
        let mut known = HashSet::new();
        for class in &SHIPPED_CLASSES {
            let group = group(&compiler, class, only, &mut known)?;
            if group.kernels.is_empty() {
                continue;
            }
            let bytes: usize = group.kernels.iter().map(|(_, kernel)| kernel.cubin.len()).sum();
            let seconds = begun.elapsed().as_secs();
            eprintln!("{arch}, {class}: {} kernels, {bytes} bytes ({seconds} s)", group.kernels.len());
            groups.push(group);
        }
    }
    CubinArchive::write(&file, nvrtc, &groups)?;
    let archive = CubinArchive::open(&file)?;
    let bytes = std::fs::metadata(&file)?.len();
    eprintln!(
        "{}: {} kernels of NVRTC {}.{}, {bytes} bytes",
        file.display(),
        archive.len(),
        nvrtc.0,
        nvrtc.1
    );
    Ok(())
}

/// The kernels of a class that are not in another group. Classes share merges.
fn group(
    compiler: &Compiler,
    class: &Class,
    only: &str,
    known: &mut HashSet<String>,
) -> Result<ArchiveGroup, Box<dyn Error>> {
    let mut kernels = shipped_kernels(compiler.arch(), class);
    kernels.retain(|kernel| kernel.name.starts_with(only) && known.insert(kernel.name.clone()));
    let mut group = ArchiveGroup { arch: compiler.arch(), kernels: Vec::new() };
    for (kernel, cubin) in kernels.iter().zip(compiler.compile_all(&kernels, || ())) {
        let cubin = cubin?;
        let entry = CachedCubin { cubin: cubin.code, log: cubin.log };
        group.kernels.push((kernel.clone(), entry));
    }
    Ok(group)
}
