//! Where NVRTC may be: the places in which toolkits, distributions and Python wheels put it, best first.

use super::{NvrtcError, fetch};
use core::fmt;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The names to look for, best first: by SONAME, as a plain `libnvrtc.so` may be of any version.
const NAMES: [&str; 2] = ["libnvrtc.so.13", "libnvrtc.so.12"];

/// Folders of libraries within a toolkit.
const TOOLKIT: [&str; 4] = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];

/// Folders in which distributions put libraries.
const DISTRIBUTION: [&str; 7] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "opt/cuda/lib64",
    "opt/cuda/targets/x86_64-linux/lib",
];

/// A library to try.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Candidate {
    /// A file that is there.
    File(PathBuf),
    /// A name that the dynamic loader looks up on its own path.
    Loader(&'static str),
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Candidate::File(path) => write!(f, "{}", path.display()),
            Candidate::Loader(name) => write!(f, "{name} on the loader's path"),
        }
    }
}

/// What a search depends on besides the cache folder, so that a test can give its own.
pub struct Surroundings<'a> {
    /// Gives an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The root of the file system.
    pub root: &'a Path,
}

impl Surroundings<'static> {
    /// Those of this process.
    pub fn of_process() -> Self {
        Surroundings { variable: &|name| std::env::var_os(name), root: Path::new("/") }
    }
}

impl Surroundings<'_> {
    /// A variable's value; an empty one counts as not set.
    fn value(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    fn folder(&self, name: &str) -> Option<PathBuf> {
        self.value(name).map(PathBuf::from)
    }
}

/// The value of `TILEWRIGHT_NVRTC`, if it is set.
pub(super) fn setting(around: &Surroundings<'_>) -> Option<PathBuf> {
    around.folder("TILEWRIGHT_NVRTC")
}

/// All libraries worth trying, best first; only the one that `TILEWRIGHT_NVRTC` names if it is set.
///
/// # Errors
/// [`NvrtcError::Setting`] if `TILEWRIGHT_NVRTC` names no library.
pub fn candidates(around: &Surroundings<'_>, cache: &Path) -> Result<Vec<Candidate>, NvrtcError> {
    if let Some(value) = setting(around) {
        return set(&value).map(|file| vec![Candidate::File(file)]);
    }

    let mut found = Found::default();
    for home in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| around.folder(name)) {
        found.toolkit(&home);
    }
    found.list.extend(NAMES.map(Candidate::Loader));
    for home in local_toolkits(&around.root.join("usr/local")) {
        found.toolkit(&home);
    }
    for folder in DISTRIBUTION {
        found.folder(&around.root.join(folder));
    }
    for prefix in python_prefixes(around) {
        for folder in wheel_folders(&prefix) {
            found.folder(&folder);
        }
    }
    found.folder(&fetch::nvrtc_folder(cache));
    Ok(found.list)
}

/// The library that a set variable names: the file itself, or one in that folder or in that toolkit.
fn set(value: &Path) -> Result<PathBuf, NvrtcError> {
    let error = |reason: String| NvrtcError::Setting { value: value.to_owned(), reason };
    // Absolute, as the loader takes a path without a slash for a name to look up.
    let path = std::path::absolute(value).map_err(|source| error(source.to_string()))?;
    let metadata = std::fs::metadata(&path).map_err(|source| error(source.to_string()))?;
    if !metadata.is_dir() {
        return Ok(path);
    }
    std::iter::once(path.clone())
        .chain(TOOLKIT.iter().map(|folder| path.join(folder)))
        .flat_map(|folder| NAMES.map(|name| folder.join(name)))
        .find(|file| file.is_file())
        .ok_or_else(|| error(format!("neither {} nor {} is in that folder", NAMES[0], NAMES[1])))
}

/// Candidates so far. A library that several paths lead to counts once.
#[derive(Default)]
struct Found {
    list: Vec<Candidate>,
    seen: HashSet<PathBuf>,
}

impl Found {
    fn toolkit(&mut self, home: &Path) {
        for folder in TOOLKIT {
            self.folder(&home.join(folder));
        }
    }

    fn folder(&mut self, folder: &Path) {
        for name in NAMES {
            // A link to nothing, and a folder that may not be read, count as absent.
            let Ok(folder) = std::path::absolute(folder) else { continue };
            let path = folder.join(name);
            let Ok(target) = path.canonicalize() else { continue };
            if target.is_file() && self.seen.insert(target) {
                self.list.push(Candidate::File(path));
            }
        }
    }
}

/// `/usr/local/cuda`, then `/usr/local/cuda-*` from the newest.
fn local_toolkits(local: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<(Vec<u32>, PathBuf)> = entries(local, "cuda-")
        .into_iter()
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // By number, as 12.10 is newer than 12.9.
            let version = name["cuda-".len()..].split('.').map(|part| part.parse().unwrap_or(0)).collect();
            (version, path)
        })
        .collect();
    versions.sort();
    std::iter::once(local.join("cuda")).chain(versions.into_iter().rev().map(|(_, path)| path)).collect()
}

/// Where Python may be installed: the active environments, then each `python3` on the path, then the user's own packages.
fn python_prefixes(around: &Surroundings<'_>) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| around.folder(name)).collect();
    let path = around.value("PATH").unwrap_or_default();
    for python in
        std::env::split_paths(&path).map(|folder| folder.join("python3")).filter(|file| file.exists())
    {
        // An environment's python3 is a link to the one that it was made from: packages may be in either prefix.
        let real = python.canonicalize().ok();
        for file in [Some(python), real].into_iter().flatten() {
            prefixes.extend(file.ancestors().nth(2).map(Path::to_owned));
        }
    }
    prefixes.extend(around.folder("HOME").map(|home| home.join(".local")));
    prefixes
}

/// Folders in which NVIDIA's wheels of CUDA 13 and 12 put libraries, within a Python prefix; they need not be there.
fn wheel_folders(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for python in ["lib", "lib64"].iter().flat_map(|lib| entries(&prefix.join(lib), "python3")) {
        for packages in ["site-packages", "dist-packages"] {
            for package in ["cu13", "cuda_nvrtc"] {
                folders.push(python.join(packages).join("nvidia").join(package).join("lib"));
            }
        }
    }
    folders
}

/// Paths of what is in `folder` and has a name that starts with `prefix`, sorted; none if the folder cannot be read.
fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(prefix)))
        .collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use tempfile::TempDir;

    /// A file system with libraries of no content in it, and an environment.
    struct World {
        root: TempDir,
        variables: BTreeMap<&'static str, OsString>,
    }

    impl World {
        fn new(files: &[&str]) -> Self {
            let root = tempfile::tempdir().unwrap();
            for file in files {
                let path = root.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            World { root, variables: BTreeMap::new() }
        }

        fn with(mut self, name: &'static str, folder: &str) -> Self {
            let value = self.root.path().join(folder);
            self.variables.insert(name, value.into());
            self
        }

        fn search(&self) -> Result<Vec<String>, NvrtcError> {
            let variable = |name: &str| self.variables.get(name).cloned();
            let around = Surroundings { variable: &variable, root: self.root.path() };
            let found = candidates(&around, &self.root.path().join("cache"))?;
            Ok(found
                .into_iter()
                .map(|candidate| match candidate {
                    Candidate::File(path) => {
                        path.strip_prefix(self.root.path()).unwrap().display().to_string()
                    }
                    Candidate::Loader(name) => format!("loader: {name}"),
                })
                .collect())
        }
    }

    const LOADER: [&str; 2] = ["loader: libnvrtc.so.13", "loader: libnvrtc.so.12"];

    #[test]
    fn nothing_but_the_loader_on_an_empty_machine() {
        assert_eq!(World::new(&[]).search().unwrap(), LOADER);
    }

    #[test]
    fn every_place_in_order() {
        let files = [
            "home/lib64/libnvrtc.so.12",
            "home/lib64/libnvrtc.so.13",
            "path/targets/sbsa-linux/lib/libnvrtc.so.13",
            "usr/local/cuda/lib64/libnvrtc.so.12",
            "usr/local/cuda-12.10/targets/x86_64-linux/lib/libnvrtc.so.12",
            "usr/local/cuda-12.9/lib64/libnvrtc.so.12",
            "usr/lib/x86_64-linux-gnu/libnvrtc.so.12",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "conda/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "opt/py/lib/python3/dist-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "me/.local/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "cache/nvrtc-13.0.88/nvidia/cu13/lib/libnvrtc.so.13",
        ];
        let world = World::new(&[&files[..], &["opt/py/bin/python3", "usr/lib/libnvrtc.so"]].concat())
            .with("CUDA_HOME", "home")
            .with("CUDA_PATH", "path")
            .with("VIRTUAL_ENV", "venv")
            .with("CONDA_PREFIX", "conda")
            .with("PATH", "opt/py/bin")
            .with("HOME", "me");
        let mut expected = files.to_vec();
        expected.swap(0, 1);
        expected.splice(3..3, LOADER);
        assert_eq!(world.search().unwrap(), expected);
    }

    #[test]
    fn libraries_count_once_and_dangling_links_not_at_all() {
        let world = World::new(&["usr/local/cuda-13.0/lib64/libnvrtc.so.13"]);
        let local = world.root.path().join("usr/local");
        std::os::unix::fs::symlink("cuda-13.0", local.join("cuda")).unwrap();
        fs::create_dir_all(world.root.path().join("usr/lib")).unwrap();
        std::os::unix::fs::symlink("gone", world.root.path().join("usr/lib/libnvrtc.so.12")).unwrap();
        assert_eq!(world.search().unwrap(), [&LOADER[..], &["usr/local/cuda/lib64/libnvrtc.so.13"]].concat());
    }

    #[test]
    fn a_python_that_is_a_link_leads_to_both_prefixes() {
        let wheel = "lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13";
        let world = World::new(&[&format!("base/{wheel}"), "base/bin/python3.12", "env/bin/activate"]);
        let link = world.root.path().join("env/bin/python3");
        std::os::unix::fs::symlink(world.root.path().join("base/bin/python3.12"), link).unwrap();
        let world = world.with("PATH", "env/bin");
        assert_eq!(world.search().unwrap()[2..], [format!("base/{wheel}")]);
    }

    #[test]
    fn the_setting_comes_alone_as_file_folder_or_toolkit() {
        let files = ["a/libnvrtc.so.13", "b/lib64/libnvrtc.so.12", "usr/lib/libnvrtc.so.13"];
        for (value, expected) in [
            ("a/libnvrtc.so.13", files[0]),
            ("a", files[0]),
            ("b/lib64/libnvrtc.so.12", files[1]),
            ("b", files[1]),
        ] {
            let world = World::new(&files).with("TILEWRIGHT_NVRTC", value).with("CUDA_HOME", "a");
            assert_eq!(world.search().unwrap(), [expected]);
        }
    }

    #[test]
    fn a_broken_setting_is_an_error_that_names_it() {
        for (value, why) in [("nowhere", "No such file"), ("empty", "is in that folder")] {
            let world =
                World::new(&["empty/readme", "usr/lib/libnvrtc.so.13"]).with("TILEWRIGHT_NVRTC", value);
            let error = world.search().unwrap_err().to_string();
            assert!(error.contains("TILEWRIGHT_NVRTC") && error.contains(value), "{error}");
            assert!(error.contains(why) && error.contains("unset"), "{error}");
        }
    }

    #[test]
    fn an_empty_setting_counts_as_none() {
        let mut world = World::new(&[]);
        world.variables.insert("TILEWRIGHT_NVRTC", OsString::new());
        assert_eq!(world.search().unwrap(), LOADER);
    }
}
