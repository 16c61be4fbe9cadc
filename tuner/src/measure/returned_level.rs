//! What a selector can return for a class, verified once more once it is fitted: by `cp.async`, and with options. All of the space would take as long again as its
//! verification.

use super::space_level::Verified;
use super::timed::{Timed, has_tma};
use super::variants::verify_variants;
use super::{Awaited, Preparation, Session};
use crate::store::Level;
use std::collections::BTreeSet;
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;

/// Levels at which tiles that a selector may return are verified once more, with what a phase of it is called.
const ONCE_MORE: [(Level, &str); 2] =
    [(Level::CpAsync, "verifying cp.async"), (Level::Options, "verifying options")];

/// The tiles that a selector can return for a class; none for a class of which nothing is to be verified.
pub type Returned<'a> = &'a dyn Fn(&Class) -> BTreeSet<Tile>;

/// Verifies tiles once more: with the `cp.async` producer where their classes of kernels have TMA, for caches that TMA cannot load, and with mask options and sinks. The few that
/// a selector can return for a class are cheap, all of the space would take as long again as its verification. What the run already has is not repeated, and what failed
/// is left out.
///
/// Returns how many variants failed now: no selector may return them, so another has to be fitted. `None` if the user asked to stop.
///
/// # Errors
/// As [`verify_space`](super::verify_space).
pub fn verify_returned(
    session: &mut Session<'_, '_>,
    returned: Returned<'_>,
    timed: &Timed,
) -> anyhow::Result<Option<usize>> {
    let progress = session.progress;
    let mut count = 0;
    for (level, phase) in ONCE_MORE {
        let wanted = left_of_returned(session, returned, level, timed);
        let with = level.verified_with().unwrap_or_default();
        let Some(failed) = verify_variants(session, &wanted, level, (phase, with))? else {
            return Ok(None);
        };
        for failed in &failed {
            progress.note(&format!("no selector may return a tile that fails with {with}: {failed}"));
        }
        count += failed.len();
    }
    Ok(Some(count))
}

/// Has the kernels compiled that [`verify_returned`] needs for these tiles, before it is called; they can be waited for.
pub fn ask_for_returned(session: &mut Session<'_, '_>, returned: Returned<'_>, timed: &Timed) -> Awaited {
    let left = ONCE_MORE.map(|(level, _)| left_of_returned(session, returned, level, timed)).concat();
    if session.benches.compiles_ahead() {
        session.benches.getting_ready(&left, &[], session.interrupt);
    }
    session.benches.awaited(&left)
}

/// What of these tiles the run has not verified at one of these levels.
fn left_of_returned(
    session: &Session<'_, '_>,
    returned: Returned<'_>,
    level: Level,
    timed: &Timed,
) -> Vec<Preparation> {
    let Session { benches, run, .. } = session;
    let limits = benches.limits();
    let verified = Verified::of(run.rows());
    let known: BTreeSet<(&str, Option<Tile>)> = run
        .rows()
        .iter()
        .filter(|row| row.level == level)
        .map(|row| (row.workload.as_str(), row.tile))
        .collect();
    let missing = |class: Class| {
        let name = class.to_string();
        let returned = returned(&class);
        let missing =
            |tile: &&Tile| returned.contains(tile) && !known.contains(&(name.as_str(), Some(**tile)));
        let tiles = verified.tiles(&class).iter().filter(missing).copied().collect();
        match level {
            Level::Options => Timed::with_options(tiles, class),
            _ => timed.with_cp_async(tiles, class),
        }
    };
    let is_of_level = |class: &Class| match level {
        Level::Options => timed.options_later(class, limits.backend()),
        _ => has_tma(class, limits),
    };
    timed
        .to_verify(limits.backend())
        .into_iter()
        .filter(is_of_level)
        .map(missing)
        .filter(|wanted| !wanted.tiles.is_empty())
        .collect()
}
