//! What every phase of a run works with.

use super::Bench;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::store::RunFolder;

/// A run in progress: where it measures, what it has, whom it tells, and who may stop it.
pub struct Session<'a> {
    /// The bench of the device.
    pub bench: &'a mut dyn Bench,
    /// The measurements so far.
    pub run: &'a mut RunFolder,
    /// What the user sees.
    pub progress: Progress,
    /// Whether the user asked to stop.
    pub interrupt: &'a Interrupt,
}

impl<'a> Session<'a> {
    /// A session of a bench and a run.
    pub fn new(
        bench: &'a mut dyn Bench,
        run: &'a mut RunFolder,
        progress: Progress,
        interrupt: &'a Interrupt,
    ) -> Self {
        Self { bench, run, progress, interrupt }
    }
}
