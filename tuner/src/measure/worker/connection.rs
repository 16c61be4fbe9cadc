//! A running worker and the pipes to it: each exchange has a time limit, and says how the worker ended if it did.

use super::frames::{receive, send};
use super::protocol::{Answer, Request};
use crate::measure::Failure;
use crate::store::Status;
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long a worker that closed its pipe may take to end on its own.
const GRACE: Duration = Duration::from_secs(2);

/// The process at the other end.
pub(crate) trait Process: Send {
    /// Whether it still runs.
    fn alive(&mut self) -> bool;
    /// Forgets what it said so far.
    fn forget(&mut self);
    /// Waits so long for its end, then ends it; says how it ended, and what it said last.
    fn stop(&mut self, grace: Duration) -> String;
}

/// A process that was just started, and its pipes.
pub(crate) struct Started {
    pub(crate) input: Box<dyn Write + Send>,
    pub(crate) output: Box<dyn Read + Send>,
    pub(crate) process: Box<dyn Process>,
}

/// A request with the numbers that follow it.
type Outgoing = (Request, Vec<u8>);

/// A running worker.
pub(super) struct Connection {
    requests: Sender<Outgoing>,
    answers: Receiver<io::Result<Option<Answer>>>,
    process: Box<dyn Process>,
}

impl Connection {
    /// Takes over the pipes. They are written and read on a thread of their own: a worker that hangs may do so before it has
    /// read all of a request.
    pub(super) fn of(started: Started) -> Self {
        let Started { mut input, mut output, process } = started;
        let (requests, outgoing) = channel::<Outgoing>();
        let (incoming, answers) = channel();
        std::thread::spawn(move || {
            for (request, numbers) in outgoing {
                // A pipe that broke is found again, with its reason, where the answer should be.
                let _ = send(&mut input, &request)
                    .and_then(|()| input.write_all(&numbers))
                    .and_then(|()| input.flush());
                if incoming.send(receive(&mut output)).is_err() {
                    break;
                }
            }
        });
        Self { requests, answers, process }
    }

    /// Whether the process still runs.
    pub(super) fn alive(&mut self) -> bool {
        self.process.alive()
    }

    /// Asks, and waits for the answer. After an error the process has ended and the connection is of no more use.
    pub(super) fn exchange(
        &mut self,
        request: Request,
        numbers: Vec<u8>,
        limit: Duration,
    ) -> Result<Answer, Failure> {
        self.process.forget();
        // If the thread is gone, so is the sender of answers.
        let _ = self.requests.send((request, numbers));
        match self.answers.recv_timeout(limit) {
            Ok(Ok(Some(answer))) => Ok(answer),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                self.process.stop(Duration::ZERO);
                Err(runtime(format!("the process wrote what is no answer ({error}); it was stopped")))
            }
            Ok(Ok(None) | Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                Err(runtime(format!("the process died: {}", self.process.stop(GRACE))))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.process.stop(Duration::ZERO);
                let message = format!("did not end in {} s; the process was stopped", limit.as_secs_f64());
                Err(Failure { status: Status::Timeout, message })
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.process.stop(Duration::ZERO);
    }
}

fn runtime(message: String) -> Failure {
    Failure { status: Status::Runtime, message }
}
