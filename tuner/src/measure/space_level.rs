//! The space of a device: what the rules reject, and what the rest computes on awkward shapes, before anything is timed.

use super::{Bench, Coverage, Failure};
use crate::cli::Shard;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::store::{Conditions, Level, Measurement, RunFolder, Status};
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::{Backend, Dtype, Tile};
use tilewright_kernel_templates::{Class, Space};

/// The tiles that may be timed, for each class of kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    passed: BTreeMap<String, Vec<Tile>>,
}

impl Verified {
    /// What the recorded space says.
    pub fn of(rows: &[Measurement]) -> Self {
        let mut passed: BTreeMap<String, Vec<Tile>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.level == Level::Space && row.status == Status::Correct) {
            passed.entry(row.workload.clone()).or_default().extend(row.tile);
        }
        Self { passed }
    }

    /// The tiles that passed for a class.
    pub fn tiles(&self, class: &Class) -> &[Tile] {
        self.passed.get(&class.to_string()).map_or(&[], Vec::as_slice)
    }
}

/// Judges and verifies the space, one part of the run a class. Classes that the run already has are kept.
///
/// `timed` decides which classes are verified, and for which one the variants with options are, too. Returns what may be timed; `None` if
/// the user asked to stop.
///
/// # Errors
/// The run's folder, or a bench that cannot go on.
pub fn verify_space(
    bench: &mut dyn Bench,
    space: &Space,
    timed: &Timed,
    run: &mut RunFolder,
    progress: Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<Verified>> {
    let known = run.measured(Level::Space);
    let usual = timed.classes.iter().max_by_key(|(_, workloads)| **workloads).map(|(class, _)| *class);
    let classes: Vec<Class> = timed
        .to_verify(bench.limits().backend())
        .into_iter()
        .filter(|class| !known.contains(&class.to_string()))
        .collect();
    let mut phase = progress.phase("verify", classes.len());
    for class in classes {
        let verdicts = space.survey(&class, bench.limits());
        let feasible: Vec<Tile> = verdicts
            .iter()
            .filter(|verdict| verdict.infeasible.is_none())
            .map(|verdict| verdict.tile)
            .collect();
        phase.at(&format!("{class}: making {} tiles ready", feasible.len()));
        // Options are compiled into kernels of their own, which nobody times: they are verified where most is timed.
        let coverage = if Some(class) == usual { Coverage::Options } else { Coverage::Plain };
        bench.prepare(&feasible, &class, coverage);
        phase.at(&format!("{class} against the f64 reference"));
        let mut rows = Vec::with_capacity(verdicts.len());
        for verdict in verdicts {
            if interrupt.requested() {
                return Ok(None);
            }
            let outcome = match &verdict.infeasible {
                Some(reason) => Err(Failure { status: Status::Constraints, message: reason.to_string() }),
                None => bench.verify(&verdict.tile, &class, coverage),
            };
            if let Some(defect) = bench.defect() {
                return Err(defect.into());
            }
            rows.push(row(bench, &verdict.tile, &class, outcome));
        }
        run.append(rows)?;
        phase.step();
    }
    let verified = Verified::of(run.rows());
    let (mut correct, mut rejected, mut failed) = (0, 0, 0);
    for row in run.rows().iter().filter(|row| row.level == Level::Space) {
        match row.status {
            Status::Correct => correct += 1,
            Status::Constraints => rejected += 1,
            _ => failed += 1,
        }
    }
    phase.finish(&format!("{correct} variants correct, {rejected} infeasible, {failed} failed"));
    Ok(Some(verified))
}

/// What decides which classes are verified.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    /// The classes that will be timed, with how many workloads each has.
    pub classes: BTreeMap<Class, usize>,
    /// The element types that will be timed, by other shards too.
    pub dtypes: BTreeSet<Dtype>,
    /// Which shard this is.
    pub shard: Option<Shard>,
}

impl Timed {
    /// The classes that a selector must know tiles for, with every head dimension: a safe default has to serve them all. A GPU's are
    /// compiled first, so only the element types that are timed are verified; a processor's those and all without FP8, for which a
    /// selector answers where no FP8 was timed. Of those that it does not time, a shard takes every so many-th: together they have all.
    fn to_verify(&self, backend: Backend) -> Vec<Class> {
        let always = |dtype: Dtype| backend == Backend::Cpu && !dtype.has_fp8_kv();
        let needed = |class: &Class| always(class.dtype) || self.dtypes.contains(&class.dtype);
        let mine = |(index, class): &(usize, Class)| {
            self.classes.contains_key(class)
                || self.shard.is_none_or(|shard| index % shard.count == shard.index)
        };
        Class::all(backend).filter(needed).enumerate().filter(mine).map(|(_, class)| class).collect()
    }
}

fn row(bench: &dyn Bench, tile: &Tile, class: &Class, outcome: Result<f64, Failure>) -> Measurement {
    let (status, relative_error, message) = match outcome {
        Ok(error) => (Status::Correct, Some(error), String::new()),
        Err(failure) => (failure.status, None, failure.message),
    };
    Measurement {
        level: Level::Space,
        workload: class.to_string(),
        scenario: String::new(),
        shape: None,
        choice: tile.to_string(),
        tile: Some(*tile),
        status,
        survived: status == Status::Correct,
        complete: true,
        samples_us: Vec::new(),
        limit_us: None,
        requests: None,
        unique_bytes: None,
        unshared_bytes: None,
        scaled: String::new(),
        relative_error,
        resources: bench.resources(tile, class),
        conditions: Conditions::default(),
        selector_hash: String::new(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fp8_is_verified_where_it_is_timed() {
        let dtypes = |backend, dtypes: &[Dtype]| {
            let timed = Timed { dtypes: dtypes.iter().copied().collect(), ..Timed::default() };
            let classes = timed.to_verify(backend);
            let dtypes: BTreeSet<Dtype> = classes.iter().map(|class| class.dtype).collect();
            assert_eq!(
                classes.len(),
                Class::all(backend).filter(|class| dtypes.contains(&class.dtype)).count()
            );
            dtypes.into_iter().collect::<Vec<_>>()
        };
        let plain = [Dtype::F16, Dtype::Bf16, Dtype::F32];
        assert_eq!(dtypes(Backend::Cpu, &[]), plain);
        assert_eq!(dtypes(Backend::Cpu, &[Dtype::Fp8F32]), [&plain[..], &[Dtype::Fp8F32]].concat());
        assert_eq!(dtypes(Backend::Cuda, &[Dtype::Bf16]), [Dtype::Bf16]);
        assert_eq!(dtypes(Backend::Cuda, &[]), []);
    }

    #[test]
    fn shards_verify_what_they_time_and_together_all_classes() {
        let class = Class { head_dim: 128, dtype: Dtype::Bf16 };
        for backend in [Backend::Cpu, Backend::Cuda] {
            // What the second of three shards times is of another type than what the others do.
            let of = |shard: Option<usize>| {
                let classes = BTreeMap::from([(class, 1)]);
                let classes = if shard == Some(1) { classes } else { BTreeMap::new() };
                let shard = shard.map(|index| Shard { index, count: 3 });
                let dtypes = BTreeSet::from([Dtype::F16, Dtype::Bf16]);
                Timed { classes, dtypes, shard }.to_verify(backend)
            };
            let (alone, shards) = (of(None), [0, 1, 2].map(|index| of(Some(index))));
            let together: BTreeSet<Class> = shards.iter().flatten().copied().collect();
            assert_eq!(together, alone.iter().copied().collect());
            assert!(shards[1].contains(&class));
            assert!(shards.iter().all(|shard| shard.len() <= alone.len() / 3 + 1));
        }
    }
}
