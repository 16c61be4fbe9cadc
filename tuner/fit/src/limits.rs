//! When a search has to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What a fit is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// In words.
    At(String),
    /// The tree, or that of a fold, is fitted.
    Done,
}

/// Who is told what a fit is at.
pub type Watch<'a> = &'a (dyn Fn(Event) + Sync);

/// The end of a search: an amount of work, which is the same on every machine, and a time, which is there for slow ones.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) work: u64,
    pub(super) deadline: Instant,
    /// Whether time was what ended it.
    pub(super) clock: &'a AtomicBool,
    pub(super) watch: Watch<'a>,
}

impl Limits<'_> {
    /// Whether the search ends after this work.
    pub(super) fn reached(&self, work: u64) -> bool {
        if work >= self.work {
            return true;
        }
        let late = Instant::now() >= self.deadline;
        if late {
            self.clock.store(true, Ordering::Relaxed);
        }
        late
    }

    /// The same with other work.
    pub(super) fn with_work(self, work: u64) -> Self {
        Self { work, ..self }
    }

    /// Whether time has ended it.
    pub(super) fn by_clock(&self) -> bool {
        self.clock.load(Ordering::Relaxed)
    }
}
