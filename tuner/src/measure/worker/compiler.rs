//! Kernels compiled in processes of their own: one that ends the compiler, or keeps it for too long, ends that process, and no run.

use super::client::Launch;
use super::connection::Connection;
use super::frames::{receive, send};
use super::process::WorkerCommand;
use super::protocol::{Answer, Request};
use crate::measure::Failure;
use crate::measure::compile_ahead::{Compile, Compiled};
use crate::store::Status;
use std::io::{self, Read, Write};
use std::time::Duration;
use tilewright_kernel_templates::cuda::Kernel;

/// How long a kernel may take, and the start of a process with it.
const LIMIT: Duration = Duration::from_secs(120);

/// Answers requests to compile until `input` ends.
///
/// # Errors
/// A malformed request, or a pipe that broke.
pub fn serve_compiler(
    compile: &dyn Fn(&Kernel) -> Result<(), String>,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> io::Result<()> {
    while let Some(request) = receive(input)? {
        let failed = |message: String| Answer::Failed(Failure { status: Status::Compile, message });
        let answer = match request {
            Request::Compile { name, text } => {
                let kernel = Kernel { name, text, ..Kernel::default() };
                compile(&kernel).map_or_else(failed, |()| Answer::Prepared)
            }
            other => failed(format!("this process compiles, and was asked for {other:?}")),
        };
        send(output, &answer)?;
    }
    Ok(())
}

/// A process that compiles, started when it is first needed and anew when it is lost.
pub struct CompileProcess {
    launch: Launch,
    limit: Duration,
    connection: Option<Connection>,
}

impl CompileProcess {
    /// One that this command starts.
    pub fn new(command: WorkerCommand) -> Self {
        Self::launched_by(Box::new(move || command.start()), LIMIT)
    }

    pub(super) fn launched_by(launch: Launch, limit: Duration) -> Self {
        Self { launch, limit, connection: None }
    }
}

impl Compile for CompileProcess {
    fn compile(&mut self, kernel: &Kernel) -> Compiled {
        let connection = match self.connection.take() {
            Some(connection) => Ok(connection),
            None => (self.launch)().map(Connection::of),
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(message) => return Compiled::Lost(message),
        };
        let request = Request::Compile { name: kernel.name.clone(), text: kernel.text.clone() };
        let outcome = match connection.exchange(request, Vec::new(), self.limit) {
            Ok(Answer::Prepared) => Compiled::Ready,
            Ok(Answer::Failed(failure)) => Compiled::Failed(failure.message),
            Ok(other) => return Compiled::Lost(format!("it answered {other:?}")),
            Err(failure) => return Compiled::Lost(failure.message),
        };
        self.connection = Some(connection);
        outcome
    }
}
