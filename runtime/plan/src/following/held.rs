//! The batch that a plan is of, and how the next one differs.

use crate::page_table::check_pages;
use crate::{PageRows, PageTable, PlanError};

/// Pages that rows get room for at once.
const ROOM: usize = 64;

/// The pages and tokens of each request.
#[derive(Debug, Default)]
pub(super) struct Held {
    entries: Vec<i32>,
    /// Entries that each row has room for.
    stride: usize,
    pages: Vec<u32>,
    pub(super) seq_lens: Vec<u32>,
}

/// A request with other pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) request: u32,
    /// First pages that stay, and pages behind them before and now.
    pub(super) kept: u32,
    pub(super) gone: u32,
    pub(super) new: u32,
}

/// How a batch differs from the one before.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    pub(super) moved: Vec<Moved>,
    /// The new pages of each of them, one behind the other.
    new_pages: Vec<i32>,
    /// Tokens of all requests.
    pub(super) seq_lens: Vec<u32>,
    /// The batch has another size.
    pub(super) resized: bool,
}

/// `clone_from` reuses memory, which a derived one does not.
impl Clone for Held {
    fn clone(&self) -> Self {
        let mut clone = Self::default();
        clone.clone_from(self);
        clone
    }

    fn clone_from(&mut self, other: &Self) {
        self.entries.clone_from(&other.entries);
        self.stride = other.stride;
        self.pages.clone_from(&other.pages);
        self.seq_lens.clone_from(&other.seq_lens);
    }
}

impl Held {
    pub(super) fn table(&self, page_size: u32) -> PageTable<'_> {
        PageTable::of_checked(&self.entries, self.stride, &self.pages, &self.seq_lens, page_size)
    }

    fn row(&self, request: usize) -> &[i32] {
        let pages = self.pages.get(request).map_or(0, |&pages| pages as usize);
        self.entries.get(request * self.stride..).map_or(&[], |row| &row[..pages])
    }

    /// Becomes the next batch.
    pub(super) fn apply(&mut self, changes: &Changes) {
        let batch = changes.seq_lens.len();
        let longest = changes.moved.iter().map(|moved| (moved.kept + moved.new) as usize).max().unwrap_or(0);
        if longest > self.stride {
            let stride = (longest + longest / 2).next_multiple_of(ROOM);
            let mut entries = vec![0; batch * stride];
            for (request, row) in entries.chunks_exact_mut(stride).enumerate() {
                let before = self.row(request);
                row[..before.len()].copy_from_slice(before);
            }
            (self.entries, self.stride) = (entries, stride);
        }
        self.entries.resize(batch * self.stride, 0);
        self.pages.resize(batch, 0);
        for (moved, new) in changes.moved() {
            let kept = moved.kept as usize;
            let begin = moved.request as usize * self.stride + kept;
            self.entries[begin..begin + new.len()].copy_from_slice(new);
            self.pages[moved.request as usize] = moved.kept + moved.new;
        }
        self.seq_lens.clear();
        self.seq_lens.extend_from_slice(&changes.seq_lens);
    }
}

impl Changes {
    /// Requests with other pages, and the new ones.
    pub(super) fn moved(&self) -> impl Iterator<Item = (&Moved, &[i32])> {
        let mut rest = &self.new_pages[..];
        self.moved.iter().map(move |moved| {
            let (new, behind) = rest.split_at(moved.new as usize);
            rest = behind;
            (moved, new)
        })
    }

    /// Becomes those of a batch that stays what it is.
    pub(super) fn clear(&mut self, held: &Held) {
        self.moved.clear();
        self.new_pages.clear();
        self.seq_lens.clone_from(&held.seq_lens);
        self.resized = false;
    }

    pub(super) fn new_pages(&self) -> &[i32] {
        &self.new_pages
    }

    /// Finds how rows differ from a batch; `batch` counts those behind them, which have no tokens.
    ///
    /// # Errors
    /// A negative page: those that stay were looked at before.
    pub(super) fn find(&mut self, held: &Held, rows: &PageRows<'_>, batch: usize) -> Result<(), PlanError> {
        let batch = batch.max(rows.batch());
        self.moved.clear();
        self.new_pages.clear();
        self.seq_lens.clear();
        self.seq_lens.extend((0..rows.batch()).map(|query| rows.seq_len(query)));
        self.seq_lens.resize(batch, 0);
        self.resized = batch != held.seq_lens.len();
        for request in 0..batch {
            let now = if request < rows.batch() { rows.pages(request) } else { &[] };
            let before = held.row(request);
            // Of several queries of a request, some may see another number of pages, although the pages are the same.
            let sees_others = !ends_alike(
                held.seq_lens.get(request).copied().unwrap_or(0),
                self.seq_lens[request],
                rows.page_size(),
            );
            if now == before && !sees_others {
                continue;
            }
            let kept = common(before, now);
            let new = &now[kept..];
            check_pages(request, kept, new)?;
            let too_large = |_| PlanError::TooLarge("pages of a request");
            self.moved.push(Moved {
                request: u32::try_from(request).map_err(|_| PlanError::TooLarge("requests"))?,
                kept: u32::try_from(kept).map_err(too_large)?,
                gone: u32::try_from(before.len() - kept).map_err(too_large)?,
                new: u32::try_from(new.len()).map_err(too_large)?,
            });
            self.new_pages.extend_from_slice(new);
        }
        Ok(())
    }
}

/// Whether tokens end on the page that they ended on.
const fn ends_alike(before: u32, now: u32, page_size: u32) -> bool {
    // Mostly they are one more at most, and no division is needed to know.
    before == now
        || before > 0
            && now > 0
            && if page_size.is_power_of_two() {
                ((before - 1) ^ (now - 1)) < page_size
            } else {
                (before - 1) / page_size == (now - 1) / page_size
            }
}

/// Pages that two rows begin with.
fn common(before: &[i32], now: &[i32]) -> usize {
    const AT_ONCE: usize = 64;
    let chunks = before.chunks_exact(AT_ONCE).zip(now.chunks_exact(AT_ONCE));
    let begin = AT_ONCE * chunks.take_while(|(before, now)| before == now).count();
    let rest = before[begin..].iter().zip(&now[begin..]);
    begin + rest.take_while(|(before, now)| before == now).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_batch_that_takes_changes_is_the_next_batch(
            steps in prop::collection::vec(prop::collection::vec(prop::collection::vec(0i32..3, 0..150), 0..8), 1..6),
            page_size in prop::sample::select(vec![1u32, 16, 24]),
        ) {
            let (mut held, mut changes) = (Held::default(), Changes::default());
            for rows in steps {
                let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
                let entries: Vec<i32> = rows
                    .iter()
                    .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(-1, columns + 3 - row.len())))
                    .collect();
                let seq_lens: Vec<u32> = rows.iter().map(|row| (row.len() as u32 * page_size).saturating_sub(page_size / 3)).collect();
                let table = PageRows::dense(&entries, columns, columns + 3, &seq_lens, page_size).unwrap();
                changes.find(&held, &table, rows.len() + 2).unwrap();
                held.apply(&changes);
                prop_assert_eq!(&held.seq_lens[..rows.len()], &seq_lens[..]);
                prop_assert_eq!(held.seq_lens.len(), rows.len() + 2);
                let table = held.table(page_size);
                for (request, row) in rows.iter().enumerate() {
                    prop_assert_eq!(table.pages(request), &row[..]);
                }
                prop_assert!(table.pages(rows.len()).is_empty());
                let again = PageRows::from(table);
                changes.find(&held, &again, 0).unwrap();
                prop_assert!(changes.moved.is_empty() && !changes.resized);
            }
        }
    }

    #[test]
    fn tokens_end_alike_on_one_page() {
        for page_size in [1, 16, 24] {
            for before in 0..100u32 {
                for now in 0..100u32 {
                    let alike = before.div_ceil(page_size) == now.div_ceil(page_size);
                    assert_eq!(ends_alike(before, now, page_size), alike, "{before}, {now} of {page_size}");
                }
            }
        }
    }
}
