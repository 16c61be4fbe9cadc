//! Rotary position embedding, as far as all backends have to agree on it.

/// Which elements of a key are rotated together, by one angle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RotaryPairs {
    /// Elements i and i + dim / 2 (GPT-NeoX, Llama as Hugging Face has it).
    Halves,
    /// Elements 2 i and 2 i + 1 (GPT-J).
    Interleaved,
}

impl RotaryPairs {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Halves, Self::Interleaved];

    /// The two elements of angle `angle`, where `dim` elements are rotated.
    pub const fn elements(self, angle: usize, dim: usize) -> (usize, usize) {
        match self {
            Self::Halves => (angle, angle + dim / 2),
            Self::Interleaved => (2 * angle, 2 * angle + 1),
        }
    }

    /// Whether the kernels can rotate this many elements of a head: a multiple of 16, so that the elements of both halves are loaded 16 bytes
    /// at a time.
    pub const fn serves(dim: u32, head_dim: u32) -> bool {
        dim > 0 && dim.is_multiple_of(16) && dim <= head_dim
    }
}
