//! How tiles are measured: on a bench, verified first, raced against each other, kept as they come.

mod batch_level;
mod batch_policies;
mod bench;
mod benches;
mod compile_ahead;
mod cpu_bench;
mod cpu_timeline;
mod cuda_bench;
mod error;
mod estimate;
mod execution;
mod first_look;
mod give_out;
mod invariant_level;
mod known_tiles;
pub mod numbers;
mod plan_tiles;
mod race;
mod ready;
mod returned_level;
mod row;
mod screen_level;
mod sensors;
mod session;
mod space_level;
mod timed;
mod timeline_level;
mod variants;

pub mod worker;

#[cfg(test)]
pub(crate) use batch_level::tests::ScriptedBench;
pub use batch_level::{
    Candidates, candidate_sets, measure_batches, measure_candidates, measure_candidates_while,
    measure_decisions, pairs,
};
pub use batch_policies::BatchPolicies;
pub use bench::{Bench, BenchError, Coverage, Failure, Loaded, PlanId, Preparation};
pub use benches::Benches;
pub use compile_ahead::{Compile, CompileAhead, CompileQueue, Compiled, Need, Wanted};
pub use cpu_bench::CpuBench;
pub use cuda_bench::CudaBench;
pub use error::worst_row;
pub use estimate::time_to_verify;
pub use execution::{Execution, PlanFacts, Planning, execution_of_set};
pub use give_out::{Given, Order, Told, Work};
pub use invariant_level::{InvariantFamilies, to_prepare_invariant, verify_invariant};
pub use known_tiles::KnownTiles;
pub use plan_tiles::PlanTiles;
pub use race::{Contestant, Ended, RaceOptions, RaceResult, race};
pub use ready::{Awaited, Ready};
pub use returned_level::{Returned, ask_for_returned, verify_returned};
pub use screen_level::{
    Screening, left_by_looks, look_at_classes, looks_at_others, screen, screenings, to_prepare_first,
};
pub use session::Session;
pub use space_level::{Verified, verify_space, verify_space_with};
pub use timed::{Timed, needs_cp_async};
pub use timeline_level::{chosen_batches, record_timelines};
pub use worker::{TimeLimits, WorkerBench, WorkerCommand};
