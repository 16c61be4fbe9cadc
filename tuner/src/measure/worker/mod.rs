//! A bench in a process of its own: a variant that crashes or hangs ends that process, not the run.
//!
//! [`WorkerBench`] stands in for the bench and sends what is asked of it to a child, in which [`serve()`] asks the real one. Every
//! exchange has a time limit. A child that does not keep it is stopped, one that dies is replaced; the variant is recorded as
//! such, and the run goes on.

mod client;
mod compiler;
mod connection;
mod fault;
mod frames;
mod loaded;
mod process;
mod protocol;
mod serve;
#[cfg(test)]
mod tests;
mod wire;

pub use client::{TimeLimits, WorkerBench};
pub use compiler::{CompileProcess, serve_compiler};
pub(crate) use connection::{Process, Started};
pub use fault::{FAULT_VARIABLE, Fault, FaultyBench};
pub use process::WorkerCommand;
pub use serve::serve;
