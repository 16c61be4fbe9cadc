//! Errors of the facade.

use tilewright_cpu::ExecError;
use tilewright_cuda::CudaError;
use tilewright_heuristics::GeometryError;
use tilewright_plan::{LengthsError, LiveError, PlanError};

/// Why attention cannot be planned or computed.
#[derive(Debug, thiserror::Error)]
pub enum AttentionError {
    /// The heads make no sense.
    #[error(transparent)]
    Heads(#[from] GeometryError),
    /// The processor can run no tile.
    #[error("this processor can run no tile of the space; `tilewright space --device cpu` says why")]
    NoTile,
    /// Pages that batch-invariant attention does not serve.
    #[error(
        "batch-invariant attention needs pages of a multiple of 16 tokens, not of {page_size}: use such pages, or options that are not `invariant`"
    )]
    InvariantPages {
        /// Tokens of a page.
        page_size: u32,
    },
    /// The batch cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// New lengths do not fit the plan.
    #[error(transparent)]
    Lengths(#[from] LengthsError),
    /// A change does not fit the batch of a [`LivePlan`](crate::LivePlan).
    #[error(transparent)]
    Live(#[from] LiveError),
    /// What a graph must not repeat.
    #[error(
        "the stream is being captured and {what}: run once before the capture, and call `Attention::upload` with each plan that is captured"
    )]
    Captured {
        /// What is still to be done.
        what: &'static str,
    },
    /// The arguments do not fit the plan (CPU).
    #[error(transparent)]
    Cpu(#[from] ExecError),
    /// The arguments do not fit the plan, a kernel cannot be compiled, or the driver refused (CUDA).
    #[error(transparent)]
    Cuda(#[from] CudaError),
}
