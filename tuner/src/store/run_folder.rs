//! The folder of a run in progress: what is measured lies there in parts, so that a run may end at any moment and go on.
//!
//! Each finished workload is one small Parquet file under `parts/`, written aside and renamed. A ballast file holds a little
//! space: when the disk runs full it is given up for the last part, so that nothing measured is lost.

use super::measurement::coalesce;
use super::parquet::{self, Recording, write_whole};
use super::{
    BatchTimeline, Measurement, Provenance, SkippedTimeline, StoreError, Timelines, read_timelines,
    write_timelines, write_timelines_beside,
};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const PARTS: &str = "parts";
/// The timelines recorded so far: a file that grows, since there are few.
const TIMELINES: &str = "parts/timelines.parquet";
const BALLAST: &str = "parts/.ballast";
const BALLAST_BYTES: usize = 1 << 20;

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
}

impl RunFolder {
    /// Opens the folder for a run with this provenance, and takes up what an unfinished run left there.
    ///
    /// # Errors
    /// An unfinished run that `start` does not speak of, one that measured something else, or the file system's.
    pub fn open(folder: &Path, provenance: Provenance, start: Start) -> Result<Self, StoreError> {
        let parts = part_files(folder)?;
        match start {
            Start::Fresh if !parts.is_empty() => {
                return Err(StoreError::Unfinished { path: folder.to_owned(), parts: parts.len() });
            }
            Start::Resume if parts.is_empty() => {
                return Err(StoreError::NothingToResume { path: folder.to_owned() });
            }
            Start::Discard => remove_parts(folder)?,
            Start::Fresh | Start::Resume => {}
        }
        let timelines = Timelines::none_of(provenance.device.clone());
        let mut run = Self { folder: folder.to_owned(), provenance, parts: 0, rows: Vec::new(), timelines };
        if start == Start::Resume {
            for path in parts {
                let part = parquet::read(&path)?;
                run.check_same(&part.provenance)?;
                // The run began when its first part did, and its fit is repeated with what is asked for now.
                run.provenance.started = part.provenance.started;
                run.parts = run.parts.max(part_number(&path).unwrap_or(0));
                run.rows.extend(part.rows);
            }
            if let Some(timelines) = read_timelines(&folder.join(TIMELINES))? {
                run.timelines.extend(timelines);
            }
        }
        std::fs::create_dir_all(run.folder.join(PARTS)).map_err(StoreError::io("create", &run.folder))?;
        run.load_ballast()?;
        Ok(run)
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
        .chain(recorded.scenarios.iter().filter_map(|old| {
            let new = current.scenarios.iter().find(|new| new.name == old.name)?;
            Some(("scenario", format!("{} {}", old.name, old.hash), format!("{} {}", new.name, new.hash)))
        }))
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

    /// Writes all measurements into one file and the timelines beside it, and removes the parts. Without timelines, those of an earlier run
    /// do not stay there: they are not of these measurements.
    ///
    /// # Errors
    /// The file system's; the parts stay until the files are there.
    pub fn finish(self, path: &Path) -> Result<(Recording, Timelines), StoreError> {
        let recording = Recording { provenance: self.provenance, rows: coalesce(self.rows) };
        // The parts may need the space that the ballast holds.
        remove_if_there(&self.folder.join(BALLAST))?;
        parquet::write(path, &recording)?;
        write_timelines_beside(path, &self.timelines)?;
        remove_parts(&self.folder)?;
        Ok((recording, self.timelines))
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

fn remove_parts(folder: &Path) -> Result<(), StoreError> {
    let parts = folder.join(PARTS);
    match std::fs::remove_dir_all(&parts) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", &parts)(error)),
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
