//! The selector of what was measured, and of nothing that fails.

use crate::analysis::Analysis;
use crate::fit_settings::FitSettings;
use crate::measure::{Session, Timed, verify_cp_async};
use std::time::Instant;
use tilewright_heuristics::Tile;

/// Fits the selector, and verifies the tiles that it may return with `cp.async`, too; as long as one of them fails, another
/// selector is fitted without it. Each time there are fewer tiles, so this ends. `None` if the user asked to stop.
///
/// # Errors
/// Nothing to fit, a bench that cannot go on, or the run's folder.
pub(super) fn fit_verified(
    session: &mut Session<'_>,
    timed: &Timed,
    settings: &FitSettings,
) -> anyhow::Result<Option<Analysis>> {
    loop {
        let begin = Instant::now();
        session.progress.note("fitting the selector");
        let analysis = Analysis::of(session.run.provenance(), &session.run.united_rows(), settings)?;
        session.progress.note(&format!("the selector is fitted ({:.1} s)", begin.elapsed().as_secs_f64()));
        let tiles: Vec<Tile> = analysis.model.tiles().into_iter().collect();
        match verify_cp_async(session, &tiles, &|_| true, timed)? {
            None => return Ok(None),
            Some(0) => return Ok(Some(analysis)),
            Some(failed) => {
                session
                    .progress
                    .note(&format!("fitting the selector again, without {failed} variants that failed"));
            }
        }
    }
}

#[cfg(test)]
#[path = "fitting_tests.rs"]
mod tests;
