//! The selector of what was measured, of nothing that fails, and of decisions that rest on enough samples.

use crate::analysis::Analysis;
use crate::fit_settings::FitSettings;
use crate::measure::{Session, Timed, Verified, measure_decisions, verify_cp_async};
use crate::workloads::Workload;
use std::time::{Duration, Instant};
use tilewright_heuristics::Tile;

/// How often a selector is fitted again because decisions had too few samples, at most: each time most of its decisions stay.
const AGAIN: usize = 2;
/// The first fit says which decisions need samples, and no more: it takes this part of the time of the others.
const FIRST: u16 = 4;
/// Time in which the samples of such decisions are taken.
const DECISIONS: Duration = Duration::from_secs(10);

/// Fits the selector, and verifies the tiles that it may return with `cp.async`, too; as long as one of them fails, another
/// selector is fitted without it. Each time there are fewer tiles, so this ends. Where a batch's set left the race before it had the samples of a
/// decision, it is raced again, and the selector is fitted to these times too. `None` if the user asked to stop.
///
/// # Errors
/// Nothing to fit, a bench that cannot go on, or the run's folder.
pub(super) fn fit_verified(
    session: &mut Session<'_>,
    batches: &[Workload],
    timed: &Timed,
    settings: &FitSettings,
) -> anyhow::Result<Option<Analysis>> {
    let first = FitSettings { fit_seconds: (settings.fit_seconds / FIRST).max(1), ..settings.clone() };
    let mut again = 0;
    loop {
        let begin = Instant::now();
        session.progress.note("fitting the selector");
        let settings = if again == 0 { &first } else { settings };
        let analysis = Analysis::of(session.run.provenance(), &session.run.united_rows(), settings)?;
        session.progress.note(&format!("the selector is fitted ({:.1} s)", begin.elapsed().as_secs_f64()));
        let tiles: Vec<Tile> = analysis.model.tiles().into_iter().collect();
        match verify_cp_async(session, &tiles, &|_| true, timed)? {
            None => return Ok(None),
            Some(0) if again == AGAIN => return Ok(Some(analysis)),
            Some(0) => {
                let whole = again > 0;
                again += 1;
                let verified = Verified::of(session.run.rows());
                let deadline = Instant::now() + DECISIONS;
                match measure_decisions(session, batches, &analysis.model, &verified, deadline)? {
                    None => return Ok(None),
                    Some(0) if whole => return Ok(Some(analysis)),
                    Some(_) => {}
                }
            }
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
