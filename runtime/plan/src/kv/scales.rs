//! Scales of K and V in FP8.

/// What the numbers of K or V are multiplied by to be the real ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale<'a> {
    /// One factor for all KV heads.
    Tensor(f32),
    /// A factor for each KV head, `[kv_heads]`.
    Heads(&'a [f32]),
}

impl Scale<'_> {
    /// That of a KV head.
    ///
    /// # Panics
    /// If there are fewer scales than heads; plans are executed only with enough of them.
    #[inline]
    pub const fn of_head(&self, kv_head: usize) -> f32 {
        match self {
            Self::Tensor(scale) => *scale,
            Self::Heads(scales) => scales[kv_head],
        }
    }

    /// How many heads it serves.
    pub const fn heads(&self) -> usize {
        match self {
            Self::Tensor(_) => usize::MAX,
            Self::Heads(scales) => scales.len(),
        }
    }
}

impl From<f32> for Scale<'_> {
    fn from(scale: f32) -> Self {
        Self::Tensor(scale)
    }
}

impl<'a> From<&'a [f32]> for Scale<'a> {
    fn from(scales: &'a [f32]) -> Self {
        Self::Heads(scales)
    }
}

/// The scales of a cache in FP8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KvScales<'a> {
    /// Of K.
    pub keys: Scale<'a>,
    /// Of V.
    pub values: Scale<'a>,
}

impl<'a> KvScales<'a> {
    /// Of K and of V: each one number, or a slice with one a KV head.
    pub fn new(keys: impl Into<Scale<'a>>, values: impl Into<Scale<'a>>) -> Self {
        Self { keys: keys.into(), values: values.into() }
    }
}
