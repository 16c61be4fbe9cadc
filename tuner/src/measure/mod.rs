//! How tiles are measured: on a bench, verified first, raced against each other, kept as they come.

mod batch_level;
mod bench;
mod cpu_bench;
mod cpu_timeline;
mod cuda_bench;
mod error;
pub mod numbers;
mod pack_level;
mod plan_tiles;
mod race;
mod sensors;
mod space_level;
mod timeline_level;
mod way;
pub mod worker;

#[cfg(test)]
pub(crate) use batch_level::tests::ScriptedBench;
pub use batch_level::{BatchPolicies, candidate_sets, measure_batches, measure_candidates, way_of_set};
pub use bench::{Bench, BenchError, Coverage, Failure, Loaded, PlanId};
pub use cpu_bench::CpuBench;
pub use cuda_bench::CudaBench;
pub use error::worst_row;
pub use pack_level::measure_packs;
pub use plan_tiles::PlanTiles;
pub use race::{Contestant, Ended, RaceOptions, RaceResult, race};
pub use space_level::{
    Timed, Verified, needs_cp_async, time_to_verify, verify_cp_async, verify_others, verify_space,
};
pub use timeline_level::{chosen_batches, record_timelines};
pub use way::{PlanFacts, Planning, Way};
pub use worker::{TimeLimits, WorkerBench, WorkerCommand};
