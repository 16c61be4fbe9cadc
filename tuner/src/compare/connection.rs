//! A running script and the pipes to it: lines there and back, each answer with a time limit.

use super::protocol::Answer;
use crate::measure::worker::{Process, Started};
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long a process that closed its pipe may take to end on its own.
const GRACE: Duration = Duration::from_secs(2);

/// A running script and the pipes to it.
pub(super) struct Connection {
    requests: Sender<String>,
    answers: Receiver<Result<Answer, String>>,
    process: Box<dyn Process>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    /// Takes over the pipes, each on a thread of its own: a script that hangs may do so in the middle of a line.
    pub(super) fn of(started: Started) -> Self {
        let Started { mut input, output, process } = started;
        let (requests, outgoing) = channel::<String>();
        let (incoming, answers) = channel();
        std::thread::spawn(move || {
            for line in outgoing {
                // A pipe that broke is found where the answer should be.
                let _ = writeln!(input, "{line}").and_then(|()| input.flush());
            }
        });
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let answer = match line {
                    Ok(line) => serde_json::from_str(&line)
                        .map_err(|error| format!("the script wrote what is no answer ({error})")),
                    Err(_) => break,
                };
                if incoming.send(answer).is_err() {
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

    /// Sends a line.
    pub(super) fn send(&mut self, line: String) {
        self.process.forget();
        // If the thread is gone, so is the process: the answer will tell.
        let _ = self.requests.send(line);
    }

    /// Waits for the next answer. After an error the process has ended.
    pub(super) fn receive(&mut self, limit: Duration) -> Result<Answer, String> {
        match self.answers.recv_timeout(limit) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                self.process.stop(Duration::ZERO);
                Err(error)
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(format!("the process died: {}", self.process.stop(GRACE)))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.process.stop(Duration::ZERO);
                Err(format!("nothing was heard for {} s; the process was stopped", limit.as_secs_f64()))
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.process.stop(Duration::ZERO);
    }
}
