//! A row of what was measured.

use super::{BenchError, Contestant};
use crate::store::{Conditions, Level, Measurement, Resources, Status};
use crate::workloads::{Workload, batch_shape_of};
use tilewright_heuristics::{BatchShape, Dtype};
use tilewright_kernel_templates::Class;
use tilewright_scenarios::Batch;

/// A measurement of one contestant on a workload; what only its level knows is still open.
pub(super) fn measurement(
    workload: &Workload,
    level: Level,
    batch: &Batch,
    contestant: Contestant,
) -> Measurement {
    let Contestant { samples_us, survived, error } = contestant;
    let (status, message) = match error {
        Some(failure) => (failure.status, failure.message),
        None => (Status::Correct, String::new()),
    };
    Measurement {
        level,
        workload: workload.name().to_owned(),
        scenario: workload.scenario().to_owned(),
        batch: None,
        held_out: workload.held_out(),
        choice: String::new(),
        tile: None,
        status,
        survived,
        complete: true,
        samples_us,
        limit_us: None,
        requests: Some(batch.requests() as u64),
        unique_bytes: Some(batch.unique_bytes()),
        unshared_bytes: Some(batch.unshared_bytes()),
        scaled: batch.provenance.scaling.clone(),
        relative_error: None,
        resources: Resources::default(),
        conditions: Conditions::default(),
        selector_hash: String::new(),
        message,
    }
}

/// What a selector is told of a batch.
pub(super) fn batch_shape(batch: &Batch) -> Result<BatchShape, BenchError> {
    batch_shape_of(batch).map_err(|source| BenchError::Plan { batch: batch.name.clone(), source })
}

/// The class of a batch, as a selector is told of it.
pub(super) fn class_of(batch: &BatchShape) -> Option<Class> {
    Dtype::from_code(batch.dtype).map(|dtype| Class { head_dim: batch.head_dim, dtype })
}
