//! What tiles are verified by: conformance cases, with the numbers that they read and what they expect.

use super::super::{Coverage, Failure, Planning};
use crate::store::Status;
use half::{bf16, f16};
use tilewright_conformance::{self as conformance, ConformanceCase, CpuCase};
use tilewright_cpu::{CpuBackend, Element};
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;

/// Draws the conformance cases: the same for every tile and run, so that a failure can be looked at again.
const VERIFICATION_SEED: u64 = 7;

/// Awkward cases of the class that was verified last, with their numbers and what they expect. Only one class's: they take
/// some 200 MB, and tiles are verified class by class.
#[derive(Debug, Default)]
pub(super) struct ClassCases<E> {
    class: Option<Class>,
    pub(super) cases: Vec<CpuCase<E>>,
}

/// Those of each type of Q.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) f16: ClassCases<f16>,
    bf16: ClassCases<bf16>,
    f32: ClassCases<f32>,
}

/// An element of Q with references of its own.
pub(super) trait QueryElement: Element {
    fn of(references: &mut References) -> &mut ClassCases<Self>;
}

impl QueryElement for f16 {
    fn of(references: &mut References) -> &mut ClassCases<Self> {
        &mut references.f16
    }
}

impl QueryElement for bf16 {
    fn of(references: &mut References) -> &mut ClassCases<Self> {
        &mut references.bf16
    }
}

impl QueryElement for f32 {
    fn of(references: &mut References) -> &mut ClassCases<Self> {
        &mut references.f32
    }
}

impl References {
    /// The largest relative error of a tile on the cases of a class, on those of the tile, and on those of batch-invariant plans if it is theirs.
    pub(super) fn verify<E: QueryElement>(
        &mut self,
        backend: &mut CpuBackend,
        tile: &Tile,
        class: &Class,
        coverage: Coverage,
    ) -> Result<f64, Failure> {
        let plain = |cases: Vec<ConformanceCase>| {
            cases.into_iter().filter(ConformanceCase::is_plain).map(CpuCase::new).collect::<Vec<CpuCase<E>>>()
        };
        let kept = E::of(self);
        if kept.class != Some(*class) {
            *kept = ClassCases {
                class: Some(*class),
                cases: plain(conformance::cases(class, VERIFICATION_SEED)),
            };
        }
        let mut of_tile = plain(conformance::tile_cases(class, tile, VERIFICATION_SEED));
        if coverage.invariant {
            of_tile.extend(plain(conformance::invariant_cases(class, VERIFICATION_SEED)));
        }
        let mut worst: f64 = 0.0;
        let planned_so = |case: &&CpuCase<E>| !coverage.invariant || case.case.serves_invariant_plans();
        for case in kept.cases.iter().chain(&of_tile).filter(planned_so) {
            worst = worst.max(error(case, backend, tile, coverage.planning())?);
        }
        Ok(worst)
    }
}

/// The relative error of a case under one tile.
fn error<E: Element>(
    case: &CpuCase<E>,
    backend: &mut CpuBackend,
    tile: &Tile,
    planning: Planning,
) -> Result<f64, Failure> {
    let options = planning.options(case.case.options);
    let (output, lse) = case
        .run_on(backend, tile, options)
        .map_err(|message| Failure { status: Status::Runtime, message })?;
    case.case.check(&output, &lse).map_err(|message| Failure { status: Status::Correctness, message })
}
