//! What can be wrong with a file or folder of measurements.

use std::path::PathBuf;

/// What went wrong, where, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// What was being done, as a verb phrase.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not Parquet, or cut off.
    #[error(
        "{path}: not a complete Parquet file ({detail}); if it was being copied or written, fetch it again"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the reader stumbled over.
        detail: String,
    },
    /// Parquet, but not measurements of ours.
    #[error(
        "{path}: not a file of measurements: {detail}; for a plain cost table use `tilewright fit --costs`"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is missing or of another type.
        detail: String,
    },
    /// What lies beside measurements as their timelines is something else.
    #[error(
        "{path}: not a file of timelines: {detail}; remove it, and `tilewright tune` records timelines again"
    )]
    Timelines {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// Written under another schema.
    #[error(
        "{path}: schema version {found}, this tilewright reads version {expected}; \
         read it with the tilewright that wrote it, or measure again"
    )]
    SchemaVersion {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: String,
        /// The version that is read here.
        expected: u32,
    },
    /// The file was changed or damaged since it was written.
    #[error(
        "{path}: its checksum is not that of its contents: it was damaged or changed since it was written; fetch it again, or measure again"
    )]
    Checksum {
        /// The file.
        path: PathBuf,
    },
    /// Another run has the folder.
    #[error(
        "{path}: another run ({holder}) is measuring into this folder; wait for its end, or use `--out` to measure into another one"
    )]
    Locked {
        /// The run's folder.
        path: PathBuf,
        /// What the other run noted of itself.
        holder: String,
    },
    /// A cell that makes no sense.
    #[error("{path}: row {row}, column `{column}`: {detail}")]
    BadCell {
        /// The file.
        path: PathBuf,
        /// The row, counted from 0.
        row: usize,
        /// The column.
        column: String,
        /// What is wrong with it.
        detail: String,
    },
    /// A run that was stopped lies in the folder.
    #[error(
        "{path}: an unfinished run of {parts} measured parts is here; \
         add `--resume` to go on with it or `--discard` to start again; it was begun by `{command}`"
    )]
    Unfinished {
        /// The run's folder.
        path: PathBuf,
        /// The command that began it.
        command: String,
        /// How many parts it has measured; most are one workload.
        parts: usize,
    },
    /// `--resume` where nothing can be resumed.
    #[error("{path}: there is no unfinished run to resume here; leave out `--resume` to start one")]
    NothingToResume {
        /// The run's folder.
        path: PathBuf,
    },
    /// The unfinished run measured something else.
    #[error(
        "{path}: the unfinished run cannot go on: its {what} was `{recorded}`, now it is `{current}`; \
         go on with what it was begun with, use `--discard` to start again or `--out` to measure into another folder"
    )]
    OtherRun {
        /// The run's folder.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the unfinished run recorded.
        recorded: String,
        /// What it is now.
        current: String,
    },
    /// Measurements of different devices or schemas in one union.
    #[error("{path}: measured on `{other}`, the first file on `{first}`; a union holds one device")]
    MixedDevices {
        /// The file that differs.
        path: PathBuf,
        /// The device of the first file.
        first: String,
        /// The device of this one.
        other: String,
    },
    /// No space was left; nothing already measured is lost.
    #[error(
        "{path}: the disk is full; everything measured so far is kept in this folder: \
         free some space and go on with `--resume`"
    )]
    DiskFull {
        /// The run's folder.
        path: PathBuf,
    },
}

impl StoreError {
    pub(super) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
