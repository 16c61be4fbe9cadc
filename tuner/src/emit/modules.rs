//! The folder that emitted modules and the measurements behind them live in.

use crate::store::{DeviceRecord, StoreError, is_timelines_path, write_whole};
use askama::Template;
use std::path::{Path, PathBuf};

/// Why a module could not be written or checked.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// The file system refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file could not be read.
    #[error("{path}: cannot read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The `heuristics` crate's folder: `src/generated/*.rs`, `selectors/*.json`, and `measurements/*.parquet` that they were fitted to, with the timelines beside
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heuristics {
    folder: PathBuf,
}

/// `src/generated/mod.rs`.
#[derive(Template)]
#[template(path = "list.rs.txt")]
struct List {
    modules: Vec<String>,
}

/// A device's selector in both forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The module's name.
    pub module: String,
    /// The Rust module.
    pub rust: String,
    /// The JSON file.
    pub json: String,
}

/// The module of a device: its name in lower case with `_` between the words, the SIMD level behind it for a CPU.
pub fn module_name(device: &DeviceRecord) -> String {
    let full = match device.backend.as_str() {
        "cpu" => format!("cpu {} {}", device.name, device.capability),
        _ => device.name.clone(),
    };
    let words: Vec<String> = full
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    let name = words.join("_");
    // A module's name may not begin with a digit.
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("device_{name}") } else { name }
}

impl Heuristics {
    /// The crate in this folder.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The crate of the workspace that contains `start`, found by walking up; `None` outside of a workspace.
    pub fn around(start: &Path) -> Option<Self> {
        start
            .ancestors()
            .map(|folder| folder.join("heuristics"))
            .find(|folder| folder.join("src/generated/mod.rs").is_file())
            .map(Self::at)
    }

    /// Where the module of a device lies.
    pub fn module_path(&self, module: &str) -> PathBuf {
        self.folder.join("src/generated").join(format!("{module}.rs"))
    }

    /// Where the selector of a device lies as data.
    pub fn selector_path(&self, module: &str) -> PathBuf {
        self.folder.join("selectors").join(format!("{module}.json"))
    }

    /// Where the measurements behind a module lie.
    pub fn measurements_path(&self, module: &str) -> PathBuf {
        self.folder.join("measurements").join(format!("{module}.parquet"))
    }

    /// All recorded measurements, by path. Timelines beside them are none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn recordings(&self) -> Result<Vec<PathBuf>, EmitError> {
        let mut files = files_with_extension(&self.folder.join("measurements"), "parquet")?;
        files.retain(|path| !is_timelines_path(path));
        Ok(files)
    }

    /// Writes a selector as a module and as data, and the list of modules.
    ///
    /// # Errors
    /// The file system's.
    pub fn write_module(&self, emitted: &Emitted) -> Result<PathBuf, EmitError> {
        let path = self.module_path(&emitted.module);
        write_whole(&path, emitted.rust.as_bytes())?;
        write_whole(&self.selector_path(&emitted.module), emitted.json.as_bytes())?;
        write_whole(&self.list_path(), self.render_list()?.as_bytes())?;
        Ok(path)
    }

    /// Compares files with what they should be; the first difference of each, in words.
    ///
    /// A module without measurements, and a list that is not up to date, are
    /// differences too.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn differences(&self, expected: &[Emitted]) -> Result<Vec<String>, EmitError> {
        let mut differences = Vec::new();
        for Emitted { module, rust, json } in expected {
            for (path, text) in [(self.module_path(module), rust), (self.selector_path(module), json)] {
                match std::fs::read_to_string(&path) {
                    Ok(found) => differences.extend(first_difference(&path, &found, text)),
                    Err(error) => differences.push(format!("{}: cannot read: {error}", path.display())),
                }
            }
        }
        for module in self.modules()? {
            if !expected.iter().any(|emitted| emitted.module == module) {
                let path = self.module_path(&module);
                differences.push(format!("{}: no measurements it could be emitted from", path.display()));
            }
        }
        let path = self.list_path();
        let found = std::fs::read_to_string(&path)
            .map_err(|source| EmitError::Read { path: path.clone(), source })?;
        differences.extend(first_difference(&path, &found, &self.render_list()?));
        Ok(differences)
    }

    fn list_path(&self) -> PathBuf {
        self.folder.join("src/generated/mod.rs")
    }

    /// The modules in the folder, in order.
    fn modules(&self) -> Result<Vec<String>, EmitError> {
        let files = files_with_extension(&self.folder.join("src/generated"), "rs")?;
        let stems = files.iter().filter_map(|path| path.file_stem()?.to_str().map(str::to_owned));
        Ok(stems.filter(|stem| stem != "mod").collect())
    }

    fn render_list(&self) -> Result<String, EmitError> {
        let list = List { modules: self.modules()? };
        Ok(list.render().expect("writing to a String") + "\n")
    }
}

fn files_with_extension(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, EmitError> {
    let read = |source| EmitError::Read { path: folder.to_owned(), source };
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(read)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn first_difference(path: &Path, found: &str, expected: &str) -> Option<String> {
    if found == expected {
        return None;
    }
    let mut lines = found.lines().zip(expected.lines()).enumerate();
    let detail = match lines.find(|(_, (found, expected))| found != expected) {
        Some((i, (found, expected))) => format!("line {}: is `{found}`, should be `{expected}`", i + 1),
        None => "one ends where the other goes on".to_owned(),
    };
    Some(format!("{}: {detail}", path.display()))
}
