//! `tilewright completions`.

use crate::cli::exit::Ended;
use crate::cli::{Arguments, CompletionsArguments};
use clap::CommandFactory;
use std::io::Write as _;

/// Prints the completion script of a shell.
///
/// # Errors
/// stdout is closed.
pub fn completions(arguments: &CompletionsArguments) -> anyhow::Result<Ended> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "tilewright", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Ended::Done)
}
