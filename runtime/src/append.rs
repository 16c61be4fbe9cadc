//! K and V of new tokens, on any backend.

use crate::attention::Backend;
use tilewright_kernel_templates::RotaryPairs;

/// K and V of new tokens, and where they go. Slices are of the backend's memory: host slices, or `CudaSlice`s.
pub struct NewTokens<'a, B: Backend, E> {
    /// `[tokens, KV heads, dim]`.
    pub keys: &'a B::Slice<E>,
    /// `[tokens, KV heads, dim]`.
    pub values: &'a B::Slice<E>,
    /// `[tokens]`: each token's page times the page size plus its place in the page, as vLLM's slot mappings and
    /// [`PageTable::slots`](crate::PageTable::slots) have it. A token with a negative slot is not written.
    pub slots: &'a B::Slice<i64>,
    /// How K is rotated; not at all if absent.
    pub rotary: Option<Rotary<'a, B>>,
}

impl<'a, B: Backend, E> NewTokens<'a, B, E> {
    /// Tokens whose K is written as it is.
    pub const fn new(keys: &'a B::Slice<E>, values: &'a B::Slice<E>, slots: &'a B::Slice<i64>) -> Self {
        Self { keys, values, slots, rotary: None }
    }

    /// Tokens whose K is rotated on its way.
    #[must_use]
    pub fn rotated(self, rotary: Rotary<'a, B>) -> Self {
        Self { rotary: Some(rotary), ..self }
    }
}

/// Rotary position embedding (RoPE) of keys: pairs of elements are rotated by the angles that the table has of a token's position.
pub struct Rotary<'a, B: Backend> {
    /// `[positions, dim]`: cosines of `dim / 2` angles, then their sines.
    pub table: &'a B::Slice<f32>,
    /// Elements of a head that are rotated, from the first on: a multiple of 16, up to the head dimension.
    pub dim: u32,
    /// Which of them together.
    pub pairs: RotaryPairs,
    /// Where the tokens stand.
    pub positions: Positions<'a, B>,
}

/// Where tokens stand in their requests, from 0 on. That of a token without a slot does not matter.
pub enum Positions<'a, B: Backend> {
    /// `[tokens]`.
    Given(&'a B::Slice<i64>),
    /// `[tokens]`: each token is the last of so many, as each request's newest one is in a decode step.
    OfLengths(&'a B::Slice<i32>),
}
