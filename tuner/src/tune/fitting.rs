//! The selector of what was measured, of nothing that fails, and of decisions that rest on enough samples.

use crate::analysis::{Analysis, AnalysisError};
use crate::fit_settings::FitSettings;
use crate::measure::{Session, Timed, Verified, ask_for_returned, measure_decisions, verify_returned};
use crate::progress::Progress;
use crate::returned::returned_by;
use crate::store::{Measurement, Provenance};
use crate::workloads::Workload;
use std::time::{Duration, Instant};
use tilewright_kernel_templates::Class;

/// How often a selector is fitted again because decisions had too few samples, at most: each time most of its decisions stay.
const AGAIN: usize = 2;
/// Time in which the samples of such decisions are taken.
const DECISIONS: Duration = Duration::from_secs(10);

/// What goes on beside a fit.
pub(super) struct Beside<'a> {
    /// How much of the clock's time devices that share it need.
    pub on_the_clock: &'a dyn Fn(Duration) -> Duration,
    /// What is measured while the selector is fitted again, given the one before; it ends when that says so. `false` if the user asked to stop.
    pub meanwhile: Meanwhile<'a>,
}

/// Measures by a fitted selector as long as the last argument says that another one is being fitted.
type Meanwhile<'a> = &'a dyn Fn(&mut Session<'_, '_>, &Analysis, &dyn Fn() -> bool) -> anyhow::Result<bool>;

/// Fits the selector, and verifies the tiles that it can return for each class with `cp.async` and with options, too; as long as one of them fails, another
/// selector is fitted without it. Each time there are fewer tiles, so this ends. Where a batch's set left the race before it had the samples of a
/// decision, it is raced again, and the selector is fitted to these times too.
/// The first fit may have been made already ([`fit_first_while`]). `None` if the user asked to stop.
///
/// # Errors
/// Nothing to fit, a bench that cannot go on, or the run's folder.
pub(super) fn fit_verified(
    session: &mut Session<'_, '_>,
    batches: &[Workload],
    timed: &Timed,
    settings: &FitSettings,
    beside: &Beside<'_>,
    mut fitted: Option<Analysis>,
) -> anyhow::Result<Option<Analysis>> {
    let (mut again, mut before) = (0, None::<Analysis>);
    loop {
        let analysis = match (fitted.take(), before.take()) {
            (Some(analysis), _) => analysis,
            (None, Some(before)) => {
                let (analysis, went_on) = fit_while(session, settings, |session, fitting| {
                    (beside.meanwhile)(session, &before, fitting)
                })?;
                if !went_on {
                    return Ok(None);
                }
                analysis
            }
            (None, None) => {
                fit(session.run.provenance(), &session.run.united_rows(), settings, session.progress)?
            }
        };
        let returned = |class: &Class| returned_by(&analysis.model, class);
        // What was asked for ahead of knowing the selector's tiles is of no more use, and further fits want the cores.
        session.benches.forget_asked();
        // Their kernels are compiled while decisions are raced.
        let variants = ask_for_returned(session, &returned, timed);
        let raced = if again == AGAIN {
            0
        } else {
            let verified = Verified::of(session.run.rows());
            let deadline = Instant::now() + (beside.on_the_clock)(DECISIONS);
            match measure_decisions(session, batches, &analysis.model, &verified, deadline)? {
                None => return Ok(None),
                Some(raced) => raced,
            }
        };
        // The next fit mostly has the same tiles, and goes on meanwhile.
        let failed = if again == 0 && !variants.are_there() {
            Some(0)
        } else {
            verify_returned(session, &returned, timed)?
        };
        match failed {
            None => return Ok(None),
            // Beside the first fit the batches that it is judged by were still raced.
            Some(0) if raced == 0 && again > 0 => return Ok(Some(analysis)),
            Some(0) => {
                again += 1;
                before = Some(analysis);
            }
            Some(failed) => {
                session
                    .progress
                    .note(&format!("fitting the selector again, without {failed} variants that failed"));
            }
        }
    }
}

fn fit(
    provenance: &Provenance,
    rows: &[Measurement],
    settings: &FitSettings,
    progress: Progress,
) -> Result<Analysis, AnalysisError> {
    let begin = Instant::now();
    progress.note("fitting the selector");
    tracing::debug!("fitting the selector");
    let analysis = Analysis::of(provenance, rows, settings)?;
    tracing::debug!("the selector is fitted");
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
    fit_while(session, settings, |session, _| meanwhile(session))
}

/// Fits a selector while `meanwhile` measures, which may ask whether it is still being fitted.
fn fit_while<'a, 'b, T>(
    session: &mut Session<'a, 'b>,
    settings: &FitSettings,
    meanwhile: impl FnOnce(&mut Session<'a, 'b>, &dyn Fn() -> bool) -> anyhow::Result<T>,
) -> anyhow::Result<(Analysis, T)> {
    let (provenance, rows, progress) =
        (session.run.provenance().clone(), session.run.united_rows(), session.progress);
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("fit".to_owned());
        let fitting = thread.spawn_scoped(scope, || fit(&provenance, &rows, settings, progress))?;
        let measured = meanwhile(session, &|| !fitting.is_finished())?;
        let fitted = fitting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((fitted, measured))
    })
}

#[cfg(test)]
#[path = "fitting_tests.rs"]
mod tests;
