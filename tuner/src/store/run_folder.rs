//! The folder of a run in progress: what is measured lies there in parts, so that a run may end at any moment and go on.
//!
//! Each finished workload is one small Parquet file under `parts/`, written aside and renamed. A ballast file holds a little
//! space: when the disk runs full it is given up for the last part, so that nothing measured is lost. A run that is over has its parts renamed,
//! all at once, once all of its files are written; then they are deleted. So a run that ends at any moment either has all of its parts or needs none.

use super::lock::FolderLock;
use super::measurement::coalesce;
use super::parquet::{self, Recording, write_whole};
use super::{
    BatchTimeline, Measurement, Provenance, ScenarioRecord, SkippedTimeline, StoreError, Timelines,
    read_timelines, write_timelines, write_timelines_beside,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const PARTS: &str = "parts";
/// The timelines recorded so far: a file that grows, since there are few.
const TIMELINES: &str = "parts/timelines.parquet";
const BALLAST: &str = "parts/.ballast";
const BALLAST_BYTES: usize = 1 << 20;
/// The parts of a run that is over, until they are deleted.
const RETIRED: &str = "parts.retired";
/// Of what the last run that is over made its measurements.
const FINISHED: &str = "finished.json";
/// What a part is called that cannot be read, beside its name.
const DAMAGED: &str = "damaged";

/// What to do with an unfinished run that already lies in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Refuse to touch it.
    Fresh,
    /// Go on with it.
    Resume,
    /// Throw it away.
    Discard,
}

/// The folder of a run in progress.
#[derive(Debug)]
pub struct RunFolder {
    folder: PathBuf,
    provenance: Provenance,
    parts: usize,
    rows: Vec<Measurement>,
    timelines: Timelines,
    damaged: Vec<String>,
    _lock: FolderLock,
}

impl RunFolder {
    /// Opens the folder for a run with this provenance, and takes up what an unfinished run left there.
    ///
    /// # Errors
    /// An unfinished run that `start` does not speak of, one that measured something else, or the file system's.
    pub fn open(folder: &Path, provenance: Provenance, start: Start) -> Result<Self, StoreError> {
        let lock = FolderLock::take(folder)?;
        // Of a run that is over, and was ended while it deleted them.
        remove_folder(&folder.join(RETIRED))?;
        let parts = part_files(folder)?;
        match start {
            Start::Fresh if !parts.is_empty() => {
                let command =
                    parts.iter().find_map(|part| Some(parquet::read(part).ok()?.provenance.command));
                let command = command.unwrap_or_else(|| "a command that no part tells".to_owned());
                return Err(StoreError::Unfinished { path: folder.to_owned(), command, parts: parts.len() });
            }
            Start::Resume if parts.is_empty() => {
                return Err(StoreError::NothingToResume { path: folder.to_owned() });
            }
            Start::Discard => retire_parts(folder)?,
            Start::Fresh | Start::Resume => {}
        }
        remove_if_there(&folder.join(FINISHED))?;
        let timelines = Timelines::none_of(provenance.device.clone());
        let mut run = Self {
            folder: folder.to_owned(),
            provenance,
            parts: 0,
            rows: Vec::new(),
            timelines,
            damaged: Vec::new(),
            _lock: lock,
        };
        if start == Start::Resume {
            run.take_up(parts)?;
        }
        std::fs::create_dir_all(run.folder.join(PARTS)).map_err(StoreError::io("create", &run.folder))?;
        run.load_ballast()?;
        Ok(run)
    }

    /// Whether a run was stopped in a folder, with parts to go on with.
    ///
    /// # Errors
    /// The file system's.
    pub fn is_stopped(folder: &Path) -> Result<bool, StoreError> {
        Ok(!part_files(folder)?.is_empty())
    }

    /// Takes up the parts of a run that was stopped. A damaged one costs its own rows, which are measured again, as long as others can be read.
    fn take_up(&mut self, parts: Vec<PathBuf>) -> Result<(), StoreError> {
        let mut damaged = Vec::new();
        for path in parts {
            self.parts = self.parts.max(part_number(&path).unwrap_or(0));
            let part = match parquet::read(&path) {
                Ok(part) => part,
                Err(error @ StoreError::Io { .. }) => return Err(error),
                Err(error) => {
                    damaged.push((path, error));
                    continue;
                }
            };
            self.check_same(&part.provenance)?;
            // The run began when its first part did, and its fit is repeated with what is asked for now.
            self.provenance.started = part.provenance.started;
            self.rows.extend(part.rows);
        }
        // A run of another tilewright is not damage.
        if self.rows.is_empty()
            && let Some(at) =
                damaged.iter().position(|(_, error)| matches!(error, StoreError::SchemaVersion { .. }))
        {
            return Err(damaged.swap_remove(at).1);
        }
        for (path, error) in damaged {
            std::fs::rename(&path, path.with_extension(DAMAGED)).map_err(StoreError::io("rename", &path))?;
            self.damaged.push(error.to_string());
        }
        match read_timelines(&self.folder.join(TIMELINES)) {
            Ok(timelines) => timelines.into_iter().for_each(|timelines| self.timelines.extend(timelines)),
            Err(error @ StoreError::Io { .. }) => return Err(error),
            Err(error) => self.damaged.push(error.to_string()),
        }
        Ok(())
    }

    /// What of the run's files could not be read: it is measured again.
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    /// What decides a result must not change between the parts of one run; everything else may.
    fn check_same(&self, recorded: &Provenance) -> Result<(), StoreError> {
        let current = &self.provenance;
        let differing = [
            ("device", recorded.device.to_string(), current.device.to_string()),
            ("kernel", recorded.hashes.kernel.clone(), current.hashes.kernel.clone()),
            ("space", recorded.hashes.space.clone(), current.hashes.space.clone()),
        ]
        .into_iter()
        // Runs of before do not say.
        .chain(
            (!recorded.workloads.is_empty())
                .then(|| ("workloads", recorded.workloads.clone(), current.workloads.clone())),
        )
        .chain([(
            "scenarios",
            said(&recorded.scenarios, &current.scenarios),
            said(&current.scenarios, &recorded.scenarios),
        )])
        .find(|(_, recorded, current)| recorded != current);
        match differing {
            None => Ok(()),
            Some((what, recorded, current)) => {
                Err(StoreError::OtherRun { path: self.folder.clone(), what, recorded, current })
            }
        }
    }

    /// Everything measured so far as the finished file will hold it: one row a choice and workload.
    pub fn united_rows(&self) -> Vec<Measurement> {
        coalesce(self.rows.clone())
    }

    /// Everything measured so far, in order.
    pub fn rows(&self) -> &[Measurement] {
        &self.rows
    }

    /// The run's provenance.
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// Names of the workloads of a level whose races were run to their end.
    pub fn measured(&self, level: super::Level) -> BTreeSet<String> {
        self.rows
            .iter()
            .filter(|row| row.level == level && row.complete)
            .map(|row| row.workload.clone())
            .collect()
    }

    /// Keeps the measurements of one workload: they are on disk when this returns.
    ///
    /// # Errors
    /// The file system's. On a full disk the ballast makes room for these rows; then the run must stop, and
    /// [`StoreError::DiskFull`] says how to go on.
    pub fn append(&mut self, rows: Vec<Measurement>) -> Result<(), StoreError> {
        let path = self.folder.join(PARTS).join(format!("{:06}.parquet", self.parts + 1));
        let part = Recording { provenance: self.provenance.clone(), rows };
        let written = parquet::write(&path, &part);
        let full = matches!(&written, Err(StoreError::Io { source, .. }) if is_full(source));
        if full {
            let ballast = self.folder.join(BALLAST);
            std::fs::remove_file(&ballast).map_err(StoreError::io("give up the ballast", &ballast))?;
            parquet::write(&path, &part)?;
        } else {
            written?;
        }
        self.parts += 1;
        self.rows.extend(part.rows);
        if full { Err(StoreError::DiskFull { path: self.folder.clone() }) } else { Ok(()) }
    }

    /// The timelines recorded so far.
    pub fn timelines(&self) -> &Timelines {
        &self.timelines
    }

    /// Keeps the timeline of a batch: it is on disk when this returns.
    ///
    /// # Errors
    /// The file system's; the measurements are kept in any case.
    pub fn keep_timeline(&mut self, timeline: BatchTimeline) -> Result<(), StoreError> {
        self.timelines.keep(timeline);
        self.write_timelines()
    }

    /// Keeps why a batch has no timeline.
    ///
    /// # Errors
    /// As [`RunFolder::keep_timeline`].
    pub fn skip_timeline(&mut self, skipped: SkippedTimeline) -> Result<(), StoreError> {
        self.timelines.skip(skipped);
        self.write_timelines()
    }

    fn write_timelines(&self) -> Result<(), StoreError> {
        match write_timelines(&self.folder.join(TIMELINES), &self.timelines) {
            Err(StoreError::Io { source, .. }) if is_full(&source) => {
                Err(StoreError::DiskFull { path: self.folder.clone() })
            }
            other => other,
        }
    }

    /// Writes all measurements into one file and the timelines beside it. Without timelines, those of an earlier run do not stay there: they are
    /// not of these measurements. The parts stay until [`RunFolder::retire`].
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, path: &Path) -> Result<Recording, StoreError> {
        let recording = Recording { provenance: self.provenance.clone(), rows: self.united_rows() };
        // The file may need the space that the ballast holds.
        remove_if_there(&self.folder.join(BALLAST))?;
        parquet::write(path, &recording)?;
        write_timelines_beside(path, &self.timelines)?;
        Ok(recording)
    }

    /// Ends the run whose measurements were written to `measurements`, and all that is made of them: notes that it is over, and removes its
    /// parts.
    ///
    /// # Errors
    /// The file system's; the parts are there, all of them, or are not needed.
    pub fn retire(self, measurements: &Path) -> Result<(), StoreError> {
        let measurements = std::path::absolute(measurements).map_err(StoreError::io("find", measurements))?;
        let finished = Finished { measurements, scenarios: self.provenance.scenarios };
        let json = serde_json::to_vec_pretty(&finished).expect("it holds only text");
        write_whole(&self.folder.join(FINISHED), &json)?;
        retire_parts(&self.folder)
    }

    fn load_ballast(&self) -> Result<(), StoreError> {
        let path = self.folder.join(BALLAST);
        match write_whole(&path, &[0x5a; BALLAST_BYTES]) {
            Err(StoreError::Io { source, .. }) if is_full(&source) => {
                Err(StoreError::DiskFull { path: self.folder.clone() })
            }
            other => other,
        }
    }
}

/// What is known of a run that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Its measurements.
    #[serde(serialize_with = "crate::serde_text::path")]
    pub measurements: PathBuf,
    /// The scenarios that it measured.
    pub scenarios: Vec<ScenarioRecord>,
}

impl Finished {
    /// The run that is over in a folder, if none is stopped there.
    ///
    /// # Errors
    /// The file system's.
    pub fn in_folder(folder: &Path) -> Result<Option<Self>, StoreError> {
        let path = folder.join(FINISHED);
        if !part_files(folder)?.is_empty() {
            return Ok(None);
        }
        match std::fs::read(&path) {
            Ok(json) => Ok(serde_json::from_slice(&json).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", &path)(error)),
        }
    }
}

/// The scenarios of one run that are not the same in another, or all their names where none differs.
fn said(scenarios: &[ScenarioRecord], others: &[ScenarioRecord]) -> String {
    let differing = scenarios.iter().filter(|scenario| !others.contains(scenario));
    let names: Vec<String> =
        differing.map(|scenario| format!("{} ({})", scenario.name, scenario.hash)).collect();
    match names.is_empty() && scenarios.len() == others.len() {
        true => String::new(),
        false if names.is_empty() => format!("{} scenarios", scenarios.len()),
        false => names.join(", "),
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn part_number(path: &Path) -> Option<usize> {
    path.file_stem()?.to_str()?.parse().ok()
}

fn part_files(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let parts = folder.join(PARTS);
    let entries = match std::fs::read_dir(&parts) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io("read", &parts)(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(StoreError::io("read", &parts))?.path();
        if path.extension().is_some_and(|extension| extension == "parquet") && part_number(&path).is_some() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Removes the parts all at once: they are renamed together, and then deleted one by one.
fn retire_parts(folder: &Path) -> Result<(), StoreError> {
    let (parts, retired) = (folder.join(PARTS), folder.join(RETIRED));
    remove_folder(&retired)?;
    match std::fs::rename(&parts, &retired) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::io("rename", &parts)(error)),
        Ok(()) => remove_folder(&retired),
    }
}

fn remove_folder(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "run_folder_tests.rs"]
mod tests;
