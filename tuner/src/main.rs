//! `tilewright`: finds, for a given device, the fastest tile of a decode-attention kernel for every shape of work.

use clap::Parser;
use std::process::ExitCode;
use tilewright_tuner::cli::{Arguments, Command, commands, exit, logging};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    logging::start(arguments.verbose);
    let outcome = match arguments.command {
        Command::Devices(arguments) => commands::devices(&arguments),
        Command::Space(arguments) => commands::space(&arguments),
        Command::Tune(arguments) => commands::tune(&arguments),
        Command::Compare(arguments) => commands::compare(&arguments),
        Command::Explain(arguments) => commands::explain(&arguments),
        Command::Fit(arguments) => commands::fit(&arguments),
        Command::Emit(arguments) => commands::emit(&arguments),
        Command::Report(arguments) => commands::report(&arguments),
        Command::Replay(arguments) => commands::replay(&arguments),
        Command::Doctor(arguments) => commands::doctor(&arguments),
        Command::Worker(arguments) => commands::worker(&arguments),
        Command::Completions(arguments) => commands::completions(&arguments),
    };
    exit::code(outcome)
}
