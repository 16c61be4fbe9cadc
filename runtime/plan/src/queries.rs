//! Several query tokens a request: which request a query belongs to, and which tokens it sees.

#[cfg(doc)]
use crate::PageTable;
use crate::PlanError;

/// Memory for [`PageTable::with_queries`], reused from step to step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queries {
    requests: Vec<u32>,
    visible: Vec<u32>,
}

impl Queries {
    /// Writes how many tokens each query sees, the queries of a request one behind the other: query j of q (from 0 on) of a request sees
    /// its first `seq_len - q + j + 1` tokens. These are the lengths that a plan on a device takes, for engines that keep
    /// them in memory of their own. Allocates nothing.
    ///
    /// # Errors
    /// As [`PageTable::with_queries`], or another number of queries than `visible` has places; nothing is written then.
    pub fn write_visible(seq_lens: &[u32], query_lens: &[u32], visible: &mut [u32]) -> Result<(), PlanError> {
        let seq_lens = seq_lens.iter().copied();
        let needed = Self::count(seq_lens.clone(), query_lens)?;
        if visible.len() != needed {
            return Err(PlanError::Queries { found: visible.len(), needed });
        }
        visible.iter_mut().zip(visible_lens(seq_lens, query_lens)).for_each(|(place, len)| *place = len);
        Ok(())
    }

    /// The queries of all requests, if their counts make sense.
    fn count(seq_lens: impl ExactSizeIterator<Item = u32>, query_lens: &[u32]) -> Result<usize, PlanError> {
        if query_lens.len() != seq_lens.len() {
            return Err(PlanError::QueryLens { found: query_lens.len(), needed: seq_lens.len() });
        }
        let mut total = 0u32;
        for (request, (&query_len, seq_len)) in query_lens.iter().zip(seq_lens).enumerate() {
            if query_len > seq_len {
                return Err(PlanError::QueryLen { request, query_len, seq_len });
            }
            let sum = total.checked_add(query_len).filter(|&sum| i32::try_from(sum).is_ok());
            total = sum.ok_or(PlanError::TooLarge(QUERIES))?;
        }
        Ok(total as usize)
    }

    /// The queries of requests of these lengths.
    ///
    /// # Errors
    /// As [`PageTable::with_queries`](crate::PageTable::with_queries).
    pub fn new(seq_lens: &[u32], query_lens: &[u32]) -> Result<Self, PlanError> {
        let mut queries = Self::default();
        queries.fill(seq_lens.iter().copied(), query_lens)?;
        Ok(queries)
    }

    /// Becomes the queries of other requests, in the same memory.
    pub(crate) fn fill(
        &mut self,
        seq_lens: impl ExactSizeIterator<Item = u32> + Clone,
        query_lens: &[u32],
    ) -> Result<(), PlanError> {
        let total = Self::count(seq_lens.clone(), query_lens)?;
        self.requests.clear();
        self.visible.clear();
        for memory in [&mut self.requests, &mut self.visible] {
            memory.try_reserve(total).map_err(|_| PlanError::TooLarge(QUERIES))?;
        }
        for (request, &query_len) in (0..).zip(query_lens) {
            self.requests.extend(std::iter::repeat_n(request, query_len as usize));
        }
        self.visible.extend(visible_lens(seq_lens, query_lens));
        Ok(())
    }

    /// The request of each query.
    pub(crate) fn requests(&self) -> &[u32] {
        &self.requests
    }

    /// Tokens that each query sees.
    pub(crate) fn visible(&self) -> &[u32] {
        &self.visible
    }
}

const QUERIES: &str = "queries of all requests";

/// Tokens that each query sees; no request has more queries than tokens.
fn visible_lens(seq_lens: impl Iterator<Item = u32>, query_lens: &[u32]) -> impl Iterator<Item = u32> {
    let before_each = seq_lens.zip(query_lens).flat_map(|(seq_len, &query_len)| {
        // The query's own token is one more.
        seq_len.saturating_sub(query_len)..seq_len
    });
    before_each.map(|before| before + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_sees_all_tokens_up_to_its_own() {
        let mut queries = Queries::default();
        queries.fill([5, 9, 3, 0, u32::MAX].into_iter(), &[1, 0, 3, 0, 2]).unwrap();
        assert_eq!(queries.visible(), [5, 1, 2, 3, u32::MAX - 1, u32::MAX]);
        assert_eq!(queries.requests(), [0, 2, 2, 2, 4, 4]);
        queries.fill([7].into_iter(), &[0]).unwrap();
        assert_eq!(queries, Queries::default());
    }

    #[test]
    fn counts_that_make_no_sense_are_refused_and_nothing_is_written() {
        let mut visible = [77; 3];
        let mut write = |seq_lens: &[u32], query_lens: &[u32]| {
            Queries::write_visible(seq_lens, query_lens, &mut visible).map(|()| visible)
        };
        assert_eq!(write(&[4, 4], &[3]), Err(PlanError::QueryLens { found: 1, needed: 2 }));
        assert_eq!(
            write(&[4, 2], &[0, 3]),
            Err(PlanError::QueryLen { request: 1, query_len: 3, seq_len: 2 })
        );
        assert_eq!(write(&[4, 4], &[1, 1]), Err(PlanError::Queries { found: 3, needed: 2 }));
        let largest = [u32::MAX; 2];
        assert_eq!(write(&largest, &largest), Err(PlanError::TooLarge(QUERIES)));
        assert_eq!(write(&[4, 4], &[1, 2]), Ok([4, 3, 4]));
        assert_eq!(visible, [4, 3, 4]);
    }
}
