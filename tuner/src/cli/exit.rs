//! Exit codes, as `--help` documents them.

use crate::interrupt::EXIT_INTERRUPTED;
use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It did what it was asked.
    Done,
    /// It checked something and found it otherwise than it should be.
    Differs,
    /// The user stopped it; nothing measured is lost.
    Interrupted,
}

/// Shown by `--help`.
pub const HELP: &str = "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 a check found a difference or a problem; \
                        130 stopped by a signal, with everything measured kept";

/// The process's exit code. An error goes to stderr: what, where, what to do next.
pub fn code(outcome: anyhow::Result<Ended>) -> ExitCode {
    match outcome {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Differs) => ExitCode::from(3),
        Ok(Ended::Interrupted) => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The reader of stdout went away (`| head`): nobody is left to tell.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
