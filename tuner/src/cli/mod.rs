//! The command line: arguments, commands, exit codes, logging.

mod arguments;
pub mod commands;
mod compare_arguments;
pub mod exit;
mod explain_arguments;
pub mod logging;
mod output;

pub use arguments::{
    Arguments, Command, CompletionsArguments, DeviceName, DevicesArguments, DoctorArguments, EmitArguments,
    FitArguments, ReplayArguments, ReportArguments, Shard, SpaceArguments, TuneArguments, WorkerArguments,
};
pub use compare_arguments::CompareArguments;
pub use explain_arguments::ExplainArguments;
