//! The worker as a child process.

use super::connection::{Process, Started};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lines that are kept of what a worker says.
const LAST_LINES: usize = 3;
/// How long its last words may take after its end.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How a worker is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to the environment.
    pub environment: Vec<(OsString, OsString)>,
}

impl WorkerCommand {
    /// The running program once more, with other arguments.
    ///
    /// # Errors
    /// The system does not say which program this is.
    pub fn this_program<T: Into<OsString>>(arguments: impl IntoIterator<Item = T>) -> io::Result<Self> {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Ok(Self { program: std::env::current_exe()?, arguments, environment: Vec::new() })
    }

    /// Starts a process.
    pub(crate) fn start(&self) -> Result<Started, String> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C at the terminal is for the run, which then ends the worker in good order.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child =
            command.spawn().map_err(|error| format!("{}: cannot start: {error}", self.program.display()))?;
        match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(input), Some(output), Some(said)) => Ok(Started {
                input: Box::new(input),
                output: Box::new(output),
                process: Box::new(WorkerProcess { child, said: Said::listen(said) }),
            }),
            _ => Err(format!("{}: started without its pipes", self.program.display())),
        }
    }
}

struct WorkerProcess {
    child: Child,
    said: Said,
}

impl Process for WorkerProcess {
    fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn forget(&mut self) {
        *self.said.words() = Words::default();
    }

    fn stop(&mut self, grace: Duration) -> String {
        let end = Instant::now() + grace;
        while self.alive() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        // It may have ended by now; either way it is waited for, so that it does not stay as a zombie.
        let _ = self.child.kill();
        let how = match self.child.wait() {
            // "signal: 11 (SIGSEGV)", "exit status: 101"
            Ok(status) => status.to_string().replacen(": ", " ", 1),
            Err(error) => format!("its end cannot be told ({error})"),
        };
        let _ = self.said.ended.recv_timeout(LAST_WORDS);
        let mut words = vec![how];
        words.extend(self.said.words().lines.drain(..));
        words.join(": ")
    }
}

/// The last lines that a worker said.
#[derive(Default)]
struct Words {
    lines: VecDeque<String>,
    /// Whether a backtrace goes on, which says less than the lines before it.
    backtrace: bool,
}

impl Words {
    fn hear(&mut self, line: &str) {
        self.backtrace |= line == "stack backtrace:";
        if self.backtrace || line.is_empty() || line.starts_with("note: run with `RUST_BACKTRACE") {
            return;
        }
        self.lines.push_back(line.to_owned());
        if self.lines.len() > LAST_LINES {
            self.lines.pop_front();
        }
    }
}

/// What a worker says on stderr: passed on, and the last lines kept.
struct Said {
    words: Arc<Mutex<Words>>,
    /// Disconnects when there is nothing more to come.
    ended: Receiver<()>,
}

impl Said {
    fn listen(stderr: ChildStderr) -> Self {
        let words = Arc::new(Mutex::new(Words::default()));
        let (open, ended) = channel();
        let said = Self { words: Arc::clone(&words), ended };
        std::thread::spawn(move || {
            let _open = open;
            let mut stderr = BufReader::new(stderr);
            let mut line = Vec::new();
            while matches!(stderr.read_until(b'\n', &mut line), Ok(1..)) {
                // A closed stderr is no reason to stop measuring.
                let _ = io::stderr().write_all(&line);
                let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                words.hear(String::from_utf8_lossy(&line).trim());
                line.clear();
            }
        });
        said
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn sh(script: &str) -> Started {
        let arguments = vec!["-c".into(), script.into()];
        WorkerCommand { program: "sh".into(), arguments, environment: Vec::new() }.start().unwrap()
    }

    #[test]
    fn the_end_is_told_with_the_last_words() {
        let mut started = sh("for i in 1 2 3 4; do echo line $i >&2; done; kill -KILL $$");
        let how = started.process.stop(Duration::from_secs(10));
        assert_eq!(how, "signal 9 (SIGKILL): line 2: line 3: line 4");
        let mut started = sh("echo why >&2; echo; echo stack backtrace: >&2; echo 0 main >&2; exit 3");
        assert_eq!(started.process.stop(Duration::from_secs(10)), "exit status 3: why");
        assert!(!started.process.alive());
    }

    #[test]
    fn one_that_does_not_end_is_stopped() {
        let mut started = sh("exec sleep 60");
        assert!(started.process.alive());
        let begin = Instant::now();
        assert_eq!(started.process.stop(Duration::ZERO), "signal 9 (SIGKILL)");
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_signal_from_the_terminal_does_not_reach_it() {
        // Such signals go to a process group: the fifth field, and the first is the process.
        let mut started = sh("cut -d' ' -f1,5 /proc/$$/stat; exit");
        let mut text = String::new();
        io::Read::read_to_string(&mut started.output, &mut text).unwrap();
        let (process, group) = text.trim().split_once(' ').unwrap();
        assert_eq!(process, group);
        started.process.stop(Duration::from_secs(10));
    }
}
