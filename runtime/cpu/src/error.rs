//! Errors of executing a plan on the CPU.

use tilewright_heuristics::{Dtype, MaskError};
use tilewright_plan::AppendError;

/// Why a plan cannot be executed with these arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The plan was made for another element type.
    #[error("the plan is for {planned}, the arguments are {given}")]
    Dtype {
        /// The plan's.
        planned: Dtype,
        /// The arguments'.
        given: Dtype,
    },
    /// The kernels do not exist for this head dimension.
    #[error("head_dim {0} is not supported: it must be a multiple of 16")]
    HeadDim(u32),
    /// A slice has the wrong length.
    #[error("`{name}` has {found} elements, the plan needs {needed}")]
    Length {
        /// The argument.
        name: &'static str,
        /// Its elements.
        found: usize,
        /// What is needed.
        needed: usize,
    },
    /// An option of the attention has a value that means nothing.
    #[error("`{name}` is {value}: {message}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        message: &'static str,
    },
    /// A token's place lies outside of the cache.
    #[error(
        "token {token} goes to slot {slot}, which lies behind the cache's {found} elements: a slot is page x page_size + token of the page"
    )]
    Slot {
        /// The token.
        token: usize,
        /// Its slot.
        slot: i64,
        /// Elements of the cache.
        found: usize,
    },
    /// Tokens that cannot be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A page lies outside of the cache.
    #[error("page {page} reaches element {end} of `{name}`, which has {found}")]
    PageOutside {
        /// `keys` or `values`.
        name: &'static str,
        /// The largest page of the plan.
        page: i32,
        /// Where it ends.
        end: usize,
        /// Elements of the cache.
        found: usize,
    },
}

impl From<MaskError> for ExecError {
    fn from(MaskError { name, value, message }: MaskError) -> Self {
        Self::Option { name, value, message }
    }
}
