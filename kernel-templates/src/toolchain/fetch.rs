//! Downloading the pinned wheels of NVIDIA's compiler and disassemblers, for machines without CUDA.
//!
//! pip does the work, so the user's index, proxy and certificate settings apply; the hashes here decide what it may install.

use super::{FetchError, NvrtcError};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A Python package at a version, with its wheel's SHA-256 on each kind of processor.
struct Wheel {
    package: &'static str,
    version: &'static str,
    x86_64: &'static str,
    aarch64: &'static str,
}

/// Wheels that are installed together, and what is wanted of them.
struct Bundle {
    /// Its folder's name in the cache.
    folder: &'static str,
    wheels: &'static [Wheel],
    /// The wanted files within that folder.
    files: &'static [&'static str],
    /// What to do where it cannot be fetched.
    instead: &'static str,
}

const NVRTC: Bundle = Bundle {
    folder: "nvrtc-13.0.88",
    wheels: &[Wheel {
        package: "nvidia-cuda-nvrtc",
        version: "13.0.88",
        x86_64: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
        aarch64: "d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b",
    }],
    files: &["nvidia/cu13/lib/libnvrtc.so.13"],
    instead: "install CUDA, or set TILEWRIGHT_NVRTC to a libnvrtc.so.13 or to its folder",
};

// 13.2 is the first version with wheels. Both in one folder, as cuobjdump runs the nvdisasm beside it.
const DISASSEMBLERS: Bundle = Bundle {
    folder: "disassemblers-13.2.78",
    wheels: &[
        Wheel {
            package: "nvidia-cuda-cuobjdump",
            version: "13.2.78",
            x86_64: "394087411405b846bf43aa52ca2ff603bbe18b3b8a1257cda0903e23c17bdbf3",
            aarch64: "c985f2ac62cc6b41cb3c612c4b8d117f4c30ff5c1a2f9e23ca3350e0090a85b6",
        },
        Wheel {
            package: "nvidia-cuda-nvdisasm",
            version: "13.2.78",
            x86_64: "b4ebcd3c5046bf8039ac52675b9dbefd843600969649ecaab0a42b0713a61dae",
            aarch64: "c338282695eca43de237929c5e3963d8d04f61d578d40f01bd04aca2bc29c233",
        },
    ],
    files: &["nvidia/cu13/bin/cuobjdump", "nvidia/cu13/bin/nvdisasm"],
    instead: "do without the disassembly",
};

/// Lines of pip's output that an error shows.
const TAIL: usize = 12;

/// NVIDIA's disassemblers of cubins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disassemblers {
    /// The executable `cuobjdump`: sections, resource use, code.
    pub cuobjdump: PathBuf,
    /// The executable `nvdisasm`: code with control flow and register life.
    pub nvdisasm: PathBuf,
}

/// Downloads NVRTC into the cache folder, unless it is there, and returns the library's path.
///
/// Any number of processes may call it at once: one downloads, the others wait for it.
///
/// # Errors
/// [`NvrtcError::Fetch`] says what is missing: python3, pip, the network, or a writable folder.
pub fn fetch(cache: &Path) -> Result<PathBuf, NvrtcError> {
    let folder = fetch_wheels(&NVRTC, cache, Path::new("python3"))?;
    Ok(folder.join(NVRTC.files[0]))
}

/// Downloads the disassemblers into the cache folder, unless they are there, and returns their paths.
///
/// # Errors
/// As [`fetch`].
pub fn fetch_disassemblers(cache: &Path) -> Result<Disassemblers, NvrtcError> {
    let folder = fetch_wheels(&DISASSEMBLERS, cache, Path::new("python3"))?;
    let [cuobjdump, nvdisasm] = [0, 1].map(|index| folder.join(DISASSEMBLERS.files[index]));
    Ok(Disassemblers { cuobjdump, nvdisasm })
}

/// The folder of a fetched NVRTC; it need not be there.
pub(super) fn nvrtc_folder(cache: &Path) -> PathBuf {
    cache.join(NVRTC.folder).join("nvidia/cu13/lib")
}

/// Puts a bundle into the cache folder, unless it is there whole, and returns its folder.
fn fetch_wheels(bundle: &Bundle, cache: &Path, python: &Path) -> Result<PathBuf, FetchError> {
    // Absolute, as pip and the dynamic loader read a relative path in their own ways.
    let cache =
        &std::path::absolute(cache).map_err(|source| folder_error("find the folder", cache, source))?;
    let target = cache.join(bundle.folder);
    if missing(bundle, &target).is_none() {
        return Ok(target);
    }
    let requirements = requirements(bundle, std::env::consts::OS, std::env::consts::ARCH)?;

    fs::create_dir_all(cache).map_err(|source| folder_error("create", cache, source))?;
    let partial = format!(".{}.partial-", bundle.folder);
    let _lock = lock(&cache.join(format!(".{}.lock", bundle.folder)), cache, &partial);
    if missing(bundle, &target).is_none() {
        return Ok(target);
    }

    // Beside the target, so that it can be renamed into place whole.
    let aside = TempDir::with_prefix_in(&partial, cache)
        .map_err(|source| folder_error("create a folder in", cache, source))?;
    let list = aside.path().join("requirements.txt");
    fs::write(&list, requirements).map_err(|source| folder_error("write", &list, source))?;
    let fresh = aside.path().join("fresh");
    install(bundle, python, &list, &fresh)?;
    if let Some(file) = missing(bundle, &fresh) {
        let Wheel { package, version, .. } = bundle.wheels[0];
        return Err(FetchError::Incomplete { package, version, file, instead: bundle.instead });
    }

    // A damaged one is in the way: a folder that is not empty cannot be renamed over.
    let _ = fs::rename(&target, aside.path().join("damaged"));
    match fs::rename(&fresh, &target) {
        Ok(()) => Ok(target),
        // Where folders cannot be locked, another process may have been first.
        Err(_) if missing(bundle, &target).is_none() => Ok(target),
        Err(source) => Err(folder_error("move the download to", &target, source)),
    }
}

/// Waits until no other process fetches the same, then clears what killed ones left. Where the file system has no locks,
/// several download and the first one's result stays.
fn lock(file: &Path, cache: &Path, partial: &str) -> Option<File> {
    let lock = File::create(file).ok()?;
    lock.lock().ok()?;
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(partial) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Some(lock)
}

/// A requirements file that lets pip install these very wheels and nothing else.
fn requirements(bundle: &Bundle, system: &str, processor: &str) -> Result<String, FetchError> {
    let mut lines = String::new();
    for wheel in bundle.wheels {
        let hash = match (system, processor) {
            ("linux", "x86_64") => wheel.x86_64,
            ("linux", "aarch64") => wheel.aarch64,
            _ => {
                let platform = format!("{system} on {processor}");
                return Err(FetchError::Platform {
                    package: wheel.package,
                    platform,
                    instead: bundle.instead,
                });
            }
        };
        lines.push_str(&format!("{}=={} --hash=sha256:{hash}\n", wheel.package, wheel.version));
    }
    Ok(lines)
}

fn install(bundle: &Bundle, python: &Path, list: &Path, fresh: &Path) -> Result<(), FetchError> {
    let Wheel { package, version, .. } = bundle.wheels[0];
    let output = Command::new(python)
        .args([
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--no-compile",
        ])
        .args(["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--target"])
        .arg(fresh)
        .arg("-r")
        .arg(list)
        // Settings that refuse a target folder, though it leaves every environment as it is.
        .env("PIP_USER", "0")
        .env("PIP_REQUIRE_VIRTUALENV", "0")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| FetchError::Python { package, instead: bundle.instead, source })?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("No module named pip") {
        return Err(FetchError::Pip { package, instead: bundle.instead });
    }
    Err(FetchError::Download { package, version, instead: bundle.instead, tail: tail(&output) })
}

/// The end of what a failed process wrote, errors first, or its status if it wrote nothing.
fn tail(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = if errors.trim().is_empty() { String::from_utf8_lossy(&output.stdout) } else { errors };
    let lines: Vec<&str> = text.trim_end().lines().collect();
    match lines.as_slice() {
        [] => output.status.to_string(),
        lines => lines[lines.len().saturating_sub(TAIL)..].join("\n"),
    }
}

/// The first file of a bundle that is absent or not as long as its wheel says; `None` if all is there.
fn missing(bundle: &Bundle, folder: &Path) -> Option<PathBuf> {
    let unrecorded = bundle.wheels.iter().find_map(|wheel| {
        let info = format!("{}-{}.dist-info", wheel.package.replace('-', "_"), wheel.version);
        let record = Path::new(&info).join("RECORD");
        let Ok(text) = fs::read_to_string(folder.join(&record)) else { return Some(record) };
        text.lines()
            .filter_map(recorded)
            .find(|(file, bytes)| length(&folder.join(file)) != Some(*bytes))
            .map(|(file, _)| file)
    });
    unrecorded
        .or_else(|| bundle.files.iter().map(PathBuf::from).find(|file| length(&folder.join(file)).is_none()))
}

/// The file and length in a line of a wheel's RECORD: `path,hash,length`. Lines without a length are of no interest.
fn recorded(line: &str) -> Option<(PathBuf, u64)> {
    let (rest, bytes) = line.rsplit_once(',')?;
    let (file, _hash) = rest.rsplit_once(',')?;
    Some((PathBuf::from(file.trim_matches('"')), bytes.trim().parse().ok()?))
}

fn length(file: &Path) -> Option<u64> {
    fs::metadata(file).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len())
}

fn folder_error(action: &'static str, path: &Path, source: io::Error) -> FetchError {
    FetchError::Folder { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A `python3` that is a shell script.
    fn python(folder: &Path, script: &str) -> PathBuf {
        let file = folder.join("python3");
        // Renamed into place, as a file that a forked child still holds open for writing cannot be run.
        let draft = folder.join("draft");
        fs::write(&draft, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").args(["-p"]).arg(&draft).arg(&file).status().unwrap().success());
        file
    }

    /// Acts like pip: writes the wheel's files where `--target` says, and one byte a run into `runs`.
    const PIP: &str = r#"
printf x >> "$(dirname "$0")/runs"
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/nvidia/cu13/lib" "$2/nvidia_cuda_nvrtc-13.0.88.dist-info"
printf library > "$2/nvidia/cu13/lib/libnvrtc.so.13"
printf 'nvidia/cu13/lib/libnvrtc.so.13,sha256=x,7\na/b.pyc,,\n' > "$2/nvidia_cuda_nvrtc-13.0.88.dist-info/RECORD"
"#;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".lock"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn fetches_once_and_leaves_nothing_else() {
        let tools = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir().unwrap();
        let python = python(tools.path(), PIP);
        fs::create_dir(cache.path().join(".nvrtc-13.0.88.partial-killed")).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| fetch_wheels(&NVRTC, cache.path(), &python).unwrap());
            }
        });
        assert_eq!(fs::read_to_string(tools.path().join("runs")).unwrap(), "x");
        assert_eq!(names(cache.path()), ["nvrtc-13.0.88"]);
    }

    #[test]
    fn a_damaged_download_is_replaced() {
        let tools = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir().unwrap();
        let python = python(tools.path(), PIP);
        let folder = fetch_wheels(&NVRTC, cache.path(), &python).unwrap();
        let library = folder.join(NVRTC.files[0]);
        fs::write(&library, "libr").unwrap();
        fetch_wheels(&NVRTC, cache.path(), &python).unwrap();
        assert_eq!(fs::read_to_string(&library).unwrap(), "library");
        assert_eq!(fs::read_to_string(tools.path().join("runs")).unwrap(), "xx");
        assert_eq!(names(cache.path()), ["nvrtc-13.0.88"]);
    }

    #[test]
    fn each_failure_says_what_to_do() {
        let cache = tempfile::tempdir().unwrap();
        let failure = |script: &str| {
            let tools = tempfile::tempdir().unwrap();
            let python = python(tools.path(), script);
            fetch_wheels(&NVRTC, cache.path(), &python).unwrap_err()
        };
        let error = fetch_wheels(&NVRTC, cache.path(), Path::new("/no/python3")).unwrap_err();
        assert!(matches!(error, FetchError::Python { .. }) && error.to_string().contains("TILEWRIGHT_NVRTC"));

        let error = failure("echo '/usr/bin/python3: No module named pip' >&2; exit 1");
        assert!(matches!(error, FetchError::Pip { .. }) && error.to_string().contains("python3-pip"));

        let error = failure("seq 100 >&2; echo 'ERROR: no route to host' >&2; exit 1").to_string();
        assert!(
            error.contains("no route to host") && error.contains("nvidia-cuda-nvrtc==13.0.88"),
            "{error}"
        );
        assert!(error.contains("\n99\n") && !error.contains("\n88\n"), "{error}");

        let error = failure("kill -9 $$").to_string();
        assert!(error.contains("signal: 9"), "{error}");

        let error = failure("true");
        assert!(matches!(error, FetchError::Incomplete { .. }), "{error}");

        assert_eq!(names(cache.path()), [] as [&str; 0]);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let cache = tempfile::tempdir().unwrap();
        let file = cache.path().join("file");
        fs::write(&file, "").unwrap();
        let error = fetch_wheels(&NVRTC, &file.join("cache"), Path::new("python3")).unwrap_err();
        assert!(
            error.to_string().contains("file/cache") && error.to_string().contains("TILEWRIGHT_CACHE"),
            "{error}"
        );
    }

    #[test]
    fn requirements_pin_by_hash_on_known_platforms_only() {
        let text = requirements(&DISASSEMBLERS, "linux", "aarch64").unwrap();
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            let (name, hash) = line.split_once(" --hash=sha256:").unwrap();
            assert!(name.ends_with("==13.2.78") && hash.len() == 64, "{line}");
        }
        for (system, processor) in [("macos", "aarch64"), ("linux", "riscv64")] {
            let error = requirements(&NVRTC, system, processor).unwrap_err().to_string();
            assert!(error.contains(system) && error.contains(processor), "{error}");
        }
    }
}
