//! Requests that grow inside their last pages keep their plan.

use super::Plan;

/// Why a plan cannot have these lengths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LengthsError {
    /// Another number of lengths than the plan has queries.
    #[error("{found} lengths for a plan of {needed} queries")]
    Count {
        /// Lengths given.
        found: usize,
        /// Queries of the plan.
        needed: usize,
    },
    /// A length does not end in the last page that the plan reads.
    #[error(
        "request {request}: {tokens} tokens do not end in the last of its {pages} pages of {page_size}; make another plan"
    )]
    Pages {
        /// The request.
        request: usize,
        /// Its tokens.
        tokens: u32,
        /// Pages of the plan.
        pages: u32,
        /// Tokens of a page.
        page_size: u32,
    },
}

impl Plan {
    /// Gives requests new lengths inside the pages that they have.
    ///
    /// # Errors
    /// Another number of lengths than queries, or a length that needs another number of pages; nothing changes then. Where a request brings
    /// several queries every length is refused: which of its pages a query sees is part of the plan.
    pub fn set_lengths(&mut self, seq_lens: &[u32]) -> Result<(), LengthsError> {
        if seq_lens.len() != self.seq_lens.len() {
            return Err(LengthsError::Count { found: seq_lens.len(), needed: self.seq_lens.len() });
        }
        let page_size = self.geometry.page_size;
        for (request, (&tokens, &planned)) in seq_lens.iter().zip(&self.seq_lens).enumerate() {
            let pages = planned.div_ceil(page_size);
            if tokens.div_ceil(page_size) != pages || self.several_queries && tokens != planned {
                return Err(LengthsError::Pages { request, tokens, pages, page_size });
            }
        }
        self.seq_lens.copy_from_slice(seq_lens);
        Ok(())
    }

    /// Takes lengths that are known to end in the last pages of those before.
    pub(crate) fn take_lengths(&mut self, seq_lens: &[u32]) {
        self.seq_lens.clear();
        self.seq_lens.extend_from_slice(seq_lens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageTable, PlanOptions};
    use tilewright_heuristics::{Dtype, Geometry, Tile};

    #[test]
    fn lengths_change_inside_the_last_page_only() {
        let geometry = Geometry { q_heads: 2, kv_heads: 1, head_dim: 64, page_size: 16, dtype: Dtype::F16 };
        let table = PageTable::new(&[0, 1, 2, 3], 2, &[17, 5], 16).unwrap();
        let tile = Tile::of("m16n16w1s1");
        let mut plan = Plan::build(&geometry, &table, &PlanOptions::default(), tile).unwrap();
        plan.set_lengths(&[32, 16]).unwrap();
        assert_eq!(plan.seq_lens(), [32, 16]);
        for wrong in [[33, 16], [16, 16], [32, 0]] {
            let error = plan.set_lengths(&wrong).unwrap_err();
            assert!(matches!(error, LengthsError::Pages { .. }), "{wrong:?}: {error}");
        }
        assert_eq!(plan.set_lengths(&[32]), Err(LengthsError::Count { found: 1, needed: 2 }));
        assert_eq!(plan.seq_lens(), [32, 16], "what was refused changes nothing");
    }
}
