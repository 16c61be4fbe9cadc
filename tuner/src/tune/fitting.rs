//! The selector of what was measured, of nothing that fails, and of decisions that rest on enough samples.

use crate::analysis::{Analysis, AnalysisError};
use crate::fit_settings::FitSettings;
use crate::measure::{Session, Timed, Verified, measure_decisions, verify_cp_async};
use crate::progress::Progress;
use crate::store::{Measurement, Provenance};
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
/// decision, it is raced again, and the selector is fitted to these times too; `on_the_clock` says how much of the clock's time devices that share it need.
/// The first fit may have been made already ([`fit_first_while`]). `None` if the user asked to stop.
///
/// # Errors
/// Nothing to fit, a bench that cannot go on, or the run's folder.
pub(super) fn fit_verified(
    session: &mut Session<'_, '_>,
    batches: &[Workload],
    timed: &Timed,
    settings: &FitSettings,
    on_the_clock: &dyn Fn(Duration) -> Duration,
    mut fitted: Option<Analysis>,
) -> anyhow::Result<Option<Analysis>> {
    let first = first_settings(settings);
    let mut again = 0;
    loop {
        let settings = if again == 0 { &first } else { settings };
        let analysis = match fitted.take() {
            Some(analysis) => analysis,
            None => fit(session.run.provenance(), &session.run.united_rows(), settings, session.progress)?,
        };
        let tiles: Vec<Tile> = analysis.model.tiles().into_iter().collect();
        // What was asked for ahead of knowing the selector's tiles is of no more use, and further fits want the cores.
        session.benches.forget_asked();
        match verify_cp_async(session, &tiles, &|_| true, timed)? {
            None => return Ok(None),
            Some(0) if again == AGAIN => return Ok(Some(analysis)),
            Some(0) => {
                let whole = again > 0;
                again += 1;
                let verified = Verified::of(session.run.rows());
                let deadline = Instant::now() + on_the_clock(DECISIONS);
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

/// How a selector is fitted that only says which decisions need samples.
fn first_settings(settings: &FitSettings) -> FitSettings {
    FitSettings { fit_seconds: (settings.fit_seconds / FIRST).max(1), ..settings.clone() }
}

fn fit(
    provenance: &Provenance,
    rows: &[Measurement],
    settings: &FitSettings,
    progress: Progress,
) -> Result<Analysis, AnalysisError> {
    let begin = Instant::now();
    progress.note("fitting the selector");
    let analysis = Analysis::of(provenance, rows, settings)?;
    progress.note(&format!("the selector is fitted ({:.1} s)", begin.elapsed().as_secs_f64()));
    Ok(analysis)
}

/// Fits the first selector to what the run has, which are all batches that are fitted, while `meanwhile` measures others; both of their results.
///
/// # Errors
/// As [`fit_verified`], or what `meanwhile` says.
pub(super) fn fit_first_while<'a, 'b, T>(
    session: &mut Session<'a, 'b>,
    settings: &FitSettings,
    meanwhile: impl FnOnce(&mut Session<'a, 'b>) -> anyhow::Result<T>,
) -> anyhow::Result<(Analysis, T)> {
    let (provenance, rows, progress) =
        (session.run.provenance().clone(), session.run.united_rows(), session.progress);
    let first = first_settings(settings);
    std::thread::scope(|scope| {
        let fitting = scope.spawn(|| fit(&provenance, &rows, &first, progress));
        let measured = meanwhile(session)?;
        let fitted = fitting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((fitted, measured))
    })
}

#[cfg(test)]
#[path = "fitting_tests.rs"]
mod tests;
