//! One file a command.

mod compare;
mod completions;
mod devices;
mod doctor;
mod emit;
mod explain;
mod fit;
mod replay;
mod report;
mod space;
mod tune;
mod tune_several;
mod worker;

pub use compare::compare;
pub use completions::completions;
pub use devices::devices;
pub use doctor::doctor;
pub use emit::emit;
pub use explain::explain;
pub use fit::fit;
pub use replay::replay;
pub use report::report;
pub use space::space;
pub use tune::tune;
pub use worker::worker;

use crate::emit::Heuristics;
use crate::store::{Recording, StoreError, Timelines, read, read_timelines, timelines_path, union};
use std::path::{Path, PathBuf};
use tilewright_heuristics::Selector;

/// The selector of a file that the user named.
fn load(path: Option<&Path>) -> anyhow::Result<Option<&'static Selector>> {
    Ok(path.map(Selector::load).transpose()?)
}

/// Reads files of measurements of one device as one recording.
fn read_all(paths: &[PathBuf]) -> anyhow::Result<Recording> {
    let recordings =
        paths.iter().map(|path| Ok((path.clone(), read(path)?))).collect::<anyhow::Result<Vec<_>>>()?;
    union(recordings)?.ok_or_else(|| anyhow::anyhow!("no file of measurements was named"))
}

/// The timelines beside files of measurements; none where there are no such files.
fn timelines_beside(paths: &[PathBuf], recording: &Recording) -> anyhow::Result<Timelines> {
    let device = &recording.provenance.device;
    let mut all = Timelines::none_of(device.clone());
    for path in paths.iter().map(|path| timelines_path(path)) {
        let Some(timelines) = read_timelines(&path)? else { continue };
        if timelines.device != *device {
            let (first, other) = (device.to_string(), timelines.device.to_string());
            return Err(StoreError::MixedDevices { path, first, other }.into());
        }
        all.extend(timelines);
    }
    Ok(all)
}

/// The `heuristics` crate that a command works on.
fn heuristics(named: Option<&PathBuf>) -> anyhow::Result<Heuristics> {
    if let Some(folder) = named {
        return Ok(Heuristics::at(folder));
    }
    let current = std::env::current_dir()?;
    Heuristics::around(&current).ok_or_else(|| {
        anyhow::anyhow!(
            "{}: there is no workspace with a `heuristics` crate around this folder; name one with `--heuristics`",
            current.display()
        )
    })
}
