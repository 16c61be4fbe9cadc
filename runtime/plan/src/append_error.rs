//! Errors of appending K and V of new tokens to pages, which every backend has.

/// Why tokens cannot be appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// There is no kernel for this head dimension.
    #[error("head_dim {head_dim} is not supported: it must be {supported}")]
    HeadDim {
        /// The head dimension.
        head_dim: u32,
        /// What would be right.
        supported: &'static str,
    },
    /// More than a launch counts.
    #[error("{0} tokens are more than one launch appends: append them in several calls")]
    TooManyTokens(usize),
    /// A slice has the wrong length.
    #[error("`{name}` has {found} elements, the append needs {needed}")]
    Length {
        /// The argument.
        name: &'static str,
        /// Its elements.
        found: usize,
        /// What is needed.
        needed: usize,
    },
    /// Elements that cannot be rotated.
    #[error("{dim} elements of {head_dim} cannot be rotated: a multiple of 16 can, up to the head dimension")]
    RotaryDim {
        /// Elements to rotate.
        dim: u32,
        /// Elements of a head.
        head_dim: u32,
    },
    /// The table of angles has no whole rows.
    #[error(
        "the rotary table has {found} numbers, which is no whole number of rows of {dim}: cosines, then sines of a position"
    )]
    Table {
        /// Its numbers.
        found: usize,
        /// Numbers of a row.
        dim: u32,
    },
    /// A token's position is not in the table of angles.
    #[error("token {token} has position {position}, the rotary table has {rows} positions")]
    Position {
        /// The token.
        token: usize,
        /// Its position.
        position: i64,
        /// Positions of the table.
        rows: usize,
    },
}
