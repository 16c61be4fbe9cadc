//! What an engine can tell a live planner that makes no sense.

use crate::{ForestError, Packing, PlanError};

/// Why a live planner cannot follow a change. It is then as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// The request or its pages make no sense.
    #[error(transparent)]
    Forest(#[from] ForestError),
    /// More tokens than its pages hold, or pages without tokens.
    #[error(
        "request {request}: {tokens} tokens do not lie in {pages} pages of {page_size}: give the pages that its tokens use, and none to a \
         request without tokens"
    )]
    Tokens {
        /// The request.
        request: u32,
        /// Its tokens.
        tokens: u32,
        /// Its pages.
        pages: u64,
        /// Tokens of a page.
        page_size: u32,
    },
    /// Lengths for another number of rows than the batch has.
    #[error(
        "{found} lengths for {needed} rows of the batch: give one for each, and 0 where there is no request"
    )]
    Targets {
        /// Lengths given.
        found: usize,
        /// Slots of the batch.
        needed: usize,
    },
    /// Only packs by price are kept up to date.
    #[error("packing {0:?} is not followed step by step: use `Packing::Priced`, or a `Planner`")]
    Packing(Packing),
    /// The layout or the page table.
    #[error(transparent)]
    Plan(#[from] PlanError),
}
