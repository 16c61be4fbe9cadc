//! What can go wrong between wanting a kernel and having its cubin.

use super::Candidate;
use core::fmt;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A failure to find, load or use NVRTC.
#[derive(Debug, Error)]
pub enum NvrtcError {
    /// `TILEWRIGHT_NVRTC` is set to something unusable; nothing else is tried then.
    #[error(
        "TILEWRIGHT_NVRTC is {}: {reason}; set it to a libnvrtc.so.13 (or .12) or to its folder, or unset it to search \
         the usual places",
        value.display()
    )]
    Setting {
        /// Its value.
        value: PathBuf,
        /// What is wrong with that.
        reason: String,
    },
    /// No place had a library that works.
    #[error(
        "no usable NVRTC found{}; install CUDA 12 or 13 or the Python package nvidia-cuda-nvrtc, or set TILEWRIGHT_NVRTC \
         to a libnvrtc.so.13 or to its folder",
        Tried(rejected)
    )]
    NotFound {
        /// The libraries that were there, and why each was refused.
        rejected: Vec<Rejected>,
    },
    /// The library could not be downloaded.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The source does not compile.
    #[error("{name} does not compile with {}:\n{log}", options.join(" "))]
    Compile {
        /// The source's name.
        name: String,
        /// The options that it was compiled with.
        options: Vec<String>,
        /// The compiler's whole log.
        log: String,
    },
    /// NVRTC made no cubin, though it reported success.
    #[error(
        "NVRTC made no cubin of {name}: give it an architecture such as --gpu-architecture=sm_90a, not compute_90"
    )]
    NoCubin {
        /// The source's name.
        name: String,
    },
    /// A text has a NUL byte in it, which C takes for its end.
    #[error("{what} has a NUL byte in it: remove it, NVRTC would read only what is before")]
    Nul {
        /// Which text.
        what: String,
    },
    /// There are more headers or options than NVRTC can count.
    #[error("{count} {what} are more than NVRTC takes: pass fewer")]
    TooMany {
        /// Headers or options.
        what: &'static str,
        /// How many.
        count: usize,
    },
    /// A call failed for a reason other than the source.
    #[error("{function} failed: {message} (code {code}), in {}; try another library with TILEWRIGHT_NVRTC", library.display())]
    Call {
        /// NVRTC's function.
        function: &'static str,
        /// Its result.
        code: i32,
        /// The library's name for that.
        message: String,
        /// The library.
        library: PathBuf,
    },
}

/// A library that was found, and why it was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The library.
    pub candidate: Candidate,
    /// The reason, in words.
    pub reason: String,
}

struct Tried<'a>(&'a [Rejected]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = " (";
        for Rejected { candidate, reason } in self.0 {
            write!(f, "{before}{candidate}: {reason}")?;
            before = "; ";
        }
        if self.0.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// A failure to download a pinned wheel.
#[derive(Debug, Error)]
pub enum FetchError {
    /// NVIDIA publishes no wheel that is pinned here for this kind of processor or system.
    #[error("{package}: no wheel is known for {platform}, only for Linux on x86_64 and aarch64; {instead}")]
    Platform {
        /// The package.
        package: &'static str,
        /// The system and processor.
        platform: String,
        /// What to do without it.
        instead: &'static str,
    },
    /// There is no `python3` to run pip with.
    #[error(
        "{package} is downloaded with python3, which could not be run ({source}): install python3 with pip, or {instead}"
    )]
    Python {
        /// The package.
        package: &'static str,
        /// What to do without it.
        instead: &'static str,
        /// Why it could not be run.
        source: io::Error,
    },
    /// `python3` has no pip.
    #[error(
        "{package} is downloaded with pip, which python3 lacks: install it (on Debian and Ubuntu: python3-pip), or {instead}"
    )]
    Pip {
        /// The package.
        package: &'static str,
        /// What to do without it.
        instead: &'static str,
    },
    /// pip ran and failed.
    #[error(
        "pip could not download {package}=={version}: check the network and pip's index settings, or {instead}; \
         pip's last lines:\n{tail}"
    )]
    Download {
        /// The package.
        package: &'static str,
        /// Its version.
        version: &'static str,
        /// What to do without it.
        instead: &'static str,
        /// The end of what pip wrote.
        tail: String,
    },
    /// pip succeeded, but what it installed is not what is expected.
    #[error("pip installed {package}=={version} without a whole {}: {instead}", file.display())]
    Incomplete {
        /// The package.
        package: &'static str,
        /// Its version.
        version: &'static str,
        /// The file that is missing.
        file: PathBuf,
        /// What to do without it.
        instead: &'static str,
    },
    /// The cache folder could not be used.
    #[error("cannot {action} {}: {source}; make it writable, or set TILEWRIGHT_CACHE to a folder that is", path.display())]
    Folder {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}
