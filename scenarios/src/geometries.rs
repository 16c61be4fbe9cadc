//! Under which attention layouts batches are made: each under all of a file's, or each under one in turn.

use crate::file::File;
use tilewright_heuristics::{Dtype, Geometry};

/// The layouts of a file.
pub(crate) struct Geometries {
    /// Query heads and KV heads.
    heads: Vec<(u32, u32)>,
    /// Everything else: element type, head dimension, page size; the last one differs first.
    others: Vec<(Dtype, u32, u32)>,
}

impl Geometries {
    pub(crate) fn of(file: &File) -> Self {
        let File { heads, head_dims, dtypes, page_sizes, .. } = file;
        let mut others = Vec::new();
        for dtype in dtypes {
            for head_dim in head_dims {
                others.extend(page_sizes.iter().map(|page_size| (dtype.dtype(), head_dim.0, page_size.0)));
            }
        }
        Self { heads: heads.iter().map(|heads| heads.0).collect(), others }
    }

    /// All of them, heads differ first.
    pub(crate) fn all(&self) -> impl Iterator<Item = Geometry> {
        self.others.iter().flat_map(|&other| self.heads.iter().map(move |&heads| geometry(heads, other)))
    }

    /// The layout of a batch that is made under one only.
    ///
    /// Both heads and the rest differ from batch to batch. A round is as many batches as there are heads, and the rest moves on by one
    /// more from round to round, so heads x rest batches in a row have every layout exactly once.
    pub(crate) fn in_turn(&self, number: usize) -> Geometry {
        let (round, place) = (number / self.heads.len(), number % self.heads.len());
        geometry(self.heads[place], self.others[(place + round) % self.others.len()])
    }
}

fn geometry((q_heads, kv_heads): (u32, u32), (dtype, head_dim, page_size): (Dtype, u32, u32)) -> Geometry {
    Geometry { q_heads, kv_heads, head_dim, page_size, dtype }
}

/// The layout in a batch's name: heads always, the rest where the file lists several.
pub(crate) fn suffix(file: &File, geometry: &Geometry) -> String {
    let Geometry { q_heads, kv_heads, head_dim, page_size, dtype } = geometry;
    let mut suffix = format!("{q_heads}x{kv_heads}");
    if file.head_dims.len() > 1 {
        suffix += &format!("/hd{head_dim}");
    }
    if file.page_sizes.len() > 1 {
        suffix += &format!("/p{page_size}");
    }
    if file.dtypes.len() > 1 || *dtype != Dtype::F16 {
        suffix += &format!("/{dtype}");
    }
    suffix
}

/// The fewest tokens that fill whole pages of every size of a file; `None` where those are very many.
pub(crate) fn whole_pages(file: &File) -> Option<u32> {
    let common = |a: u64, b: u64| {
        let (mut x, mut y) = (a, b);
        while y > 0 {
            (x, y) = (y, x % y);
        }
        a / x * b
    };
    file.page_sizes
        .iter()
        .try_fold(1u64, |tokens, size| {
            Some(common(tokens, u64::from(size.0))).filter(|&tokens| tokens <= 4096)
        })
        .map(|tokens| tokens as u32)
}
