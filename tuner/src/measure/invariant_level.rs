//! The tiles of batch-invariant plans: their kernels are others than those that selectors choose among, so they are verified on their own, before whole
//! batches are executed with them.

use super::row::class_of;
use super::variants::verify_variants;
use super::{Coverage, Preparation, Session};
use crate::store::{Level, Measurement, Status};
use crate::workloads::Workload;
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::{BatchShape, Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Limits, invariant_set, invariant_sets};

/// The families of tiles of batch-invariant plans that may be timed, by class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvariantFamilies {
    by_class: BTreeMap<Class, TileSetBuf>,
}

impl InvariantFamilies {
    /// What a run verified: of each class the first family that its device can have and of which all tiles passed.
    fn of(rows: &[Measurement], classes: impl Iterator<Item = Class>, limits: &Limits) -> Self {
        let verified = rows.iter().filter(|row| row.level == Level::Invariant);
        let passed: BTreeSet<(&str, Option<Tile>)> = verified
            .filter(|row| row.status == Status::Correct)
            .map(|row| (row.workload.as_str(), row.tile))
            .collect();
        let family = |class: Class| {
            let name = class.to_string();
            let has = |tile: &Tile| passed.contains(&(name.as_str(), Some(*tile)));
            let family = invariant_sets(&class, limits).find(|set| set.tiles().iter().all(has))?;
            Some((class, TileSetBuf::from(family)))
        };
        Self { by_class: classes.filter_map(family).collect() }
    }

    /// The family of a batch's class; none where no batch of the class is executed with such plans, or the device can have none of its families.
    pub(super) fn of_batch(&self, batch: &BatchShape) -> Option<TileSetBuf> {
        self.by_class.get(&class_of(batch)?).copied()
    }
}

/// The classes of which batches are executed with batch-invariant plans.
fn classes(workloads: &[Workload]) -> BTreeSet<Class> {
    let wanted = workloads.iter().filter(|workload| workload.invariant());
    wanted.map(|workload| Class::of(workload.geometry())).collect()
}

/// What the verification of batch-invariant plans' tiles needs, if the selector of a run is executed on these workloads. Classes that have no family on
/// the device are left out.
pub fn to_prepare_invariant(workloads: &[Workload], limits: &Limits) -> Vec<Preparation> {
    let of_class = |class: Class| {
        let tiles = invariant_set(&class, limits)?.tiles().to_vec();
        Some(Preparation { tiles, class, coverage: Coverage::INVARIANT })
    };
    classes(workloads).into_iter().filter_map(of_class).collect()
}

/// Verifies the tiles of batch-invariant plans for the classes of these workloads, as far as the run has not. A tile that fails is recorded, and costs its
/// families alone. `None` if the user asked to stop.
///
/// # Errors
/// As [`verify_space`](super::verify_space).
pub fn verify_invariant(
    session: &mut Session<'_, '_>,
    workloads: &[Workload],
) -> anyhow::Result<Option<InvariantFamilies>> {
    let limits = session.benches.limits().clone();
    let known = |rows: &[Measurement], class: &Class, tile: &Tile| {
        let name = class.to_string();
        let is_known = |row: &Measurement| (row.workload.as_str(), row.tile) == (name.as_str(), Some(*tile));
        rows.iter().any(|row| row.level == Level::Invariant && is_known(row))
    };
    let mut wanted = to_prepare_invariant(workloads, &limits);
    for Preparation { tiles, class, .. } in &mut wanted {
        tiles.retain(|tile| !known(session.run.rows(), class, tile));
    }
    wanted.retain(|wanted| !wanted.tiles.is_empty());
    let names = ("verifying batch-invariant", "batch-invariant plans");
    let Some(failed) = verify_variants(session, &wanted, Level::Invariant, names)? else { return Ok(None) };
    for failed in failed {
        session.progress.note(&format!("no batch-invariant plan is timed with a tile that fails: {failed}"));
    }
    let classes = classes(workloads).into_iter();
    Ok(Some(InvariantFamilies::of(session.run.rows(), classes, &limits)))
}

#[cfg(test)]
#[path = "invariant_level_tests.rs"]
mod tests;
