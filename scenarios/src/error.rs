//! What can be wrong with a scenario: which file, where, what, and what would be right.

use crate::TraceError;
use std::path::PathBuf;

/// Why a scenario is not one, or makes no batch.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The operating system refused.
    #[error("{path}: cannot read the scenario: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Not YAML, an unknown key, or a value that a key cannot have.
    #[error("{path}:{line}: {message}{hint}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
        /// What would be right; empty, or begins with a separator.
        hint: String,
    },
    /// The parts of a batch do not fit each other.
    #[error("{path}:{line}: {batch}: {message}")]
    Batch {
        /// The file.
        path: PathBuf,
        /// The line of the key that describes it, from 1.
        line: usize,
        /// The batch, or the key that describes it.
        batch: String,
        /// What is wrong.
        message: String,
    },
    /// The trace of a scenario cannot be used.
    #[error("{path}:{line}: {cause}")]
    Trace {
        /// The scenario's file.
        path: PathBuf,
        /// The line of the key that names the trace, or the times that are wanted of it, from 1.
        line: usize,
        /// What is wrong with the trace.
        cause: TraceError,
    },
}
