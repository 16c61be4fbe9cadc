//! A plan's words in memory, as kernels read them.

/// Sixteen bytes that may be loaded at once.
#[repr(align(16))]
#[derive(Clone, Copy)]
struct Quad([u32; 4]);

/// Words where 16 bytes may be loaded at once, with room behind them.
pub(crate) struct Aligned(Vec<Quad>);

impl Aligned {
    /// `words`, and ones up to `span` words.
    pub(crate) fn of(words: &[u32], span: usize) -> Self {
        let mut memory = Self(vec![Quad([u32::MAX; 4]); span.div_ceil(4)]);
        memory.write(words);
        memory
    }

    pub(crate) fn write(&mut self, words: &[u32]) {
        for (index, &word) in words.iter().enumerate() {
            self.0[index / 4].0[index % 4] = word;
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
}
