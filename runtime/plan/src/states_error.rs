//! Errors of merging attention states by their LSE, which every backend has.

/// Why states cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StatesError {
    /// There is nothing to merge.
    #[error("no state was given: a merge takes at least one")]
    NoState,
    /// More states than a launch takes.
    #[error(
        "{found} states were given, a launch merges {most} at most: merge them in groups, whose results are states again"
    )]
    TooMany {
        /// States given.
        found: usize,
        /// States of a launch.
        most: usize,
    },
    /// There is no merge for this head dimension.
    #[error("head_dim {head_dim} is not supported: it must be {supported}")]
    HeadDim {
        /// The head dimension.
        head_dim: u32,
        /// What would be right.
        supported: &'static str,
    },
    /// The output is not of whole rows.
    #[error("`output` has {found} elements, which is no whole number of rows of {head_dim}")]
    Rows {
        /// Its elements.
        found: usize,
        /// Elements of a row.
        head_dim: u32,
    },
    /// More rows than a launch counts.
    #[error("{0} rows do not fit 32 bits: merge them in several calls")]
    TooManyRows(usize),
    /// A slice has the wrong length.
    #[error("`{name}`{} has {found} elements, the merge needs {needed}", of_state(*state))]
    Length {
        /// `output` or `lse`.
        name: &'static str,
        /// The state that it belongs to; `None` for the result.
        state: Option<usize>,
        /// Its elements.
        found: usize,
        /// What is needed.
        needed: usize,
    },
    /// An address that the kernel's loads cannot serve.
    #[error("`{name}`{} lies at {address:#x}: it must be a multiple of {multiple} bytes", of_state(*state))]
    Misaligned {
        /// `output` or `lse`.
        name: &'static str,
        /// The state that it belongs to; `None` for the result.
        state: Option<usize>,
        /// Where it lies.
        address: u64,
        /// What divides a good address.
        multiple: u64,
    },
    /// What is written overlaps a state.
    #[error(
        "the result's `{written}` overlaps `{read}` of state {state}: in place it may only be the very `{written}` of state 0"
    )]
    Overlap {
        /// `output` or `lse` of the result.
        written: &'static str,
        /// `output` or `lse` of the state.
        read: &'static str,
        /// The state.
        state: usize,
    },
}

fn of_state(state: Option<usize>) -> String {
    state.map_or_else(String::new, |state| format!(" of state {state}"))
}
