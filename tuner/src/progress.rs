//! Progress on stderr: a bar with ETA on a terminal, plain lines elsewhere.

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

/// At most one plain line in this time, the first and the last of a phase excepted.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// Where progress goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A bar.
    Bar,
    /// Lines.
    Plain,
    /// Lines that stay, and nothing of phases.
    Notes,
    /// Nowhere.
    Silent,
}

impl Progress {
    /// A bar if stderr is a terminal, else lines.
    pub fn detect() -> Self {
        if std::io::stderr().is_terminal() { Self::Bar } else { Self::Plain }
    }

    /// The same for a part of the work that is too short to be told.
    pub const fn without_phases(self) -> Self {
        match self {
            Self::Bar | Self::Plain | Self::Notes => Self::Notes,
            Self::Silent => Self::Silent,
        }
    }

    /// Begins a phase of `total` steps.
    pub fn phase(self, name: &'static str, total: usize) -> Phase {
        let bar = match self {
            Self::Bar => {
                let style = ProgressStyle::with_template(
                    "{prefix:>12} [{bar:30}] {pos}/{len}, {eta} left: {wide_msg}",
                )
                .expect("the template is well formed");
                ProgressBar::new(total as u64).with_style(style.progress_chars("=> ")).with_prefix(name)
            }
            Self::Plain | Self::Notes | Self::Silent => ProgressBar::hidden(),
        };
        let now = Instant::now();
        Phase { name, total, done: 0, begin: now, last_line: None, plain: self == Self::Plain, bar }
    }

    /// Says a line that stays.
    pub fn note(self, text: &str) {
        if self != Self::Silent {
            // A closed stderr is no reason to stop measuring.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }
}

/// A phase in progress.
#[derive(Debug)]
pub struct Phase {
    name: &'static str,
    total: usize,
    done: usize,
    begin: Instant,
    last_line: Option<Instant>,
    plain: bool,
    bar: ProgressBar,
}

impl Phase {
    /// Says what is being worked on.
    pub fn at(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        let due = self.last_line.is_none_or(|last| last.elapsed() >= PLAIN_INTERVAL);
        if self.plain && due {
            self.line(what);
        }
    }

    /// One step is done.
    pub fn step(&mut self) {
        self.done += 1;
        self.bar.inc(1);
    }

    /// The phase is over.
    pub fn finish(mut self, summary: &str) {
        let summary = &format!("{summary} ({:.1} s)", self.begin.elapsed().as_secs_f64());
        self.bar.finish_and_clear();
        if self.plain {
            self.line(summary);
        } else if !self.bar.is_hidden() {
            let _ = writeln!(std::io::stderr(), "{:>12} {summary}", self.name);
        }
    }

    fn line(&mut self, what: &str) {
        self.last_line = Some(Instant::now());
        let left = match self.done {
            0 => String::new(),
            done if done >= self.total => String::new(),
            done => {
                let left = self.begin.elapsed().mul_f64((self.total - done) as f64 / done as f64);
                format!(", about {} left", HumanDuration(left))
            }
        };
        let _ = writeln!(std::io::stderr(), "{}: {}/{}{left}: {what}", self.name, self.done, self.total);
    }
}
