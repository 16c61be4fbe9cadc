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
            eprintln!("error: {}", said_once(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, each text once: many errors already say their cause.
fn said_once(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if said.is_empty() {
            said = text;
        } else if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
    }
    said
}

/// The reader of stdout went away (`| head`): there is no reader to tell.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::said_once;

    #[test]
    fn a_cause_that_an_error_says_itself_is_not_said_again() {
        let cause = std::io::Error::other("no such file");
        let error =
            anyhow::Error::new(cause).context("x.yaml: cannot read: no such file").context("nothing loaded");
        assert_eq!(said_once(&error), "nothing loaded: x.yaml: cannot read: no such file");
    }
}
