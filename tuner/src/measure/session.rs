//! What every phase of a run works with.

use super::{Bench, Benches};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::store::RunFolder;

/// A run in progress: where it measures, what it has, whom it tells, and who may stop it.
pub struct Session<'a, 'b> {
    /// The benches of its devices, which are alike.
    pub benches: Benches<'b>,
    /// The measurements so far.
    pub run: &'a mut RunFolder,
    /// What the user sees.
    pub progress: Progress,
    /// Whether the user asked to stop.
    pub interrupt: &'a Interrupt,
}

impl<'a, 'b> Session<'a, 'b> {
    /// A session of one bench and a run.
    pub fn new(
        bench: &'b mut dyn Bench,
        run: &'a mut RunFolder,
        progress: Progress,
        interrupt: &'a Interrupt,
    ) -> Self {
        Self { benches: Benches::one(bench), run, progress, interrupt }
    }
}
