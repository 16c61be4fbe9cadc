//! Errors of [`LiveForest`](super::LiveForest).

/// Why a live forest cannot follow a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForestError {
    /// No request has this number.
    #[error("request {request} is not in the forest: add it first")]
    UnknownRequest {
        /// The number.
        request: u32,
    },
    /// Another request has this number.
    #[error("request {request} is in the forest already: remove or rename it first")]
    RequestPresent {
        /// The number.
        request: u32,
    },
    /// The number is no row of a batch.
    #[error("request {request} is out of range: number the rows of the batch from 0 to {}", limit - 1)]
    RequestNumber {
        /// The number.
        request: u32,
        /// Numbers are below this.
        limit: u32,
    },
    /// A request cannot keep pages that it does not have.
    #[error("request {request} has {pages} pages, it cannot keep {kept}; append the others")]
    Truncate {
        /// The request.
        request: u32,
        /// Pages that it has.
        pages: u32,
        /// Pages that it is to keep.
        kept: u32,
    },
    /// An entry names no page.
    #[error("request {request}, column {column}: page {page} is negative; give used entries only")]
    NegativePage {
        /// The request.
        request: u32,
        /// The column.
        column: u32,
        /// The entry.
        page: i32,
    },
    /// More columns than 32 bits count.
    #[error("request {request} has {has} pages, {given} more do not fit 32 bits")]
    TooManyPages {
        /// The request.
        request: u32,
        /// Pages that it has.
        has: u32,
        /// Pages to come.
        given: usize,
    },
}
