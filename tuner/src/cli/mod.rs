//! The command line: arguments, commands, exit codes, logging.

mod arguments;
pub mod commands;
mod compare_arguments;
pub mod exit;
mod explain_arguments;
mod fit_flags;
pub mod logging;
mod output;

pub use arguments::{
    Arguments, Command, CompletionsArguments, DevicesArguments, DoctorArguments, EmitArguments, FitArguments,
    ReplayArguments, ReportArguments, SpaceArguments, TuneArguments, WorkerArguments,
};
pub use compare_arguments::CompareArguments;
pub use explain_arguments::ExplainArguments;
pub use fit_flags::{FitChanges, FitFlags};
