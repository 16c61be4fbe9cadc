//! The selector of what was measured, and of nothing that fails.

use crate::analysis::Analysis;
use crate::fit_settings::FitSettings;
use crate::interrupt::Interrupt;
use crate::measure::{Bench, Timed, verify_cp_async};
use crate::progress::Progress;
use crate::store::RunFolder;
use tilewright_heuristics::Tile;

/// Fits the selector, and verifies the tiles that it may return where they copy token by token; as long as one of them fails, another
/// selector is fitted without it. Each time there are fewer tiles, so this ends. `None` if the user asked to stop.
///
/// # Errors
/// Nothing to fit, a bench that cannot go on, or the run's folder.
pub(super) fn fit_verified(
    bench: &mut dyn Bench,
    timed: &Timed,
    run: &mut RunFolder,
    settings: &FitSettings,
    progress: Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<Analysis>> {
    progress.note("fitting the selector");
    loop {
        let analysis = Analysis::of(run.provenance(), &run.united_rows(), settings)?;
        let tiles: Vec<Tile> = analysis.model.tiles().into_iter().collect();
        match verify_cp_async(bench, &tiles, &|_| true, timed, run, progress, interrupt)? {
            None => return Ok(None),
            Some(0) => return Ok(Some(analysis)),
            Some(failed) => {
                progress.note(&format!("fitting the selector again, without {failed} variants that failed"))
            }
        }
    }
}

#[cfg(test)]
#[path = "fitting_tests.rs"]
mod tests;
