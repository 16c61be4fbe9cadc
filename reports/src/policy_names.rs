//! The names of what choices are compared with: pictures find their series by them.

/// The fitted selector.
pub const SELECTOR: &str = "selector";
/// The cheapest of all choices of each batch, known in hindsight; the choice stands in brackets behind it.
pub const ORACLE: &str = "oracle";
/// The tile that is best for all batches together; it stands in brackets behind it.
pub const BEST_SINGLE_TILE: &str = "best single tile";
/// PAT's analytic rules for tiles, on plans as ours are made.
pub const PAT_RULES: &str = "PAT's rules";
/// Batch-invariant plans, with the tiles of their family: another function than the others', so that it is compared with the selector alone.
pub const BATCH_INVARIANT: &str = "batch-invariant";
/// PAT's planner and rules, on our kernels: not PAT's own code, which is slower and faster in other places.
pub const PATS_PLANNER: &str = "PAT's planner on our kernels";
