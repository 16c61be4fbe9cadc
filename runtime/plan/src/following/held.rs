//! The batch that a plan is of, and how the next one differs.

use crate::page_table::check_pages;
use crate::{PageRows, PageTable, PlanError};

/// Pages that rows get room for at once.
const ROOM: usize = 64;
/// One request in this many may lose pages in a batch that is followed by its changes.
const LOSING: usize = 4;
/// Pages at its end that a request has gained at most where another row of the batch is looked for that it was.
const GAINED: usize = 2;
/// Rows that end in one page and are compared for that.
const NAMESAKES: usize = 4;

/// The pages and tokens of each request, by slots: a request that moves to another row of the batch keeps its slot.
#[derive(Debug, Default)]
pub(super) struct Held {
    entries: Vec<i32>,
    /// Entries that each slot has room for.
    stride: usize,
    pages: Vec<u32>,
    seq_lens: Vec<u32>,
    /// What the table said of the row when it was read ([`PageRows::with_writes`]); 0 if nothing.
    writes: Vec<u64>,
    twins: Vec<Twin>,
    /// The slot of each row.
    slots: Vec<u32>,
}

/// Another slot that begins with the same pages. One copy of what many share stays in the cache while all are compared.
#[derive(Clone, Copy, Debug, Default)]
struct Twin {
    slot: u32,
    pages: u32,
}

/// A request with other pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    /// Its row.
    request: u32,
    /// First pages that stay, and pages behind them before and now.
    pub(super) kept: u32,
    pub(super) gone: u32,
    pub(super) new: u32,
}

/// How a batch differs from the one before.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    moved: Vec<Moved>,
    /// The new pages of each of them, one behind the other.
    new_pages: Vec<i32>,
    /// Tokens of all requests, by rows.
    pub(super) seq_lens: Vec<u32>,
    writes: Vec<u64>,
    /// The slot of each row: that of the batch before, unless the row has another request of it.
    slots: Vec<u32>,
    /// The batch has another size.
    pub(super) resized: bool,
    /// Some row has another slot.
    renamed: bool,
    memory: Memory,
}

/// Memory of what is found on the way.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// Rows that may have others' requests, and their slots before.
    rows: Vec<u32>,
    before: Vec<u32>,
    /// The last page and the last write of slots that are looked for.
    ends: Vec<(i32, u32)>,
    written: Vec<(u64, u32)>,
    /// Of each slot, whether it is to be had.
    free: Vec<bool>,
    /// Of each slot, the pages that stay.
    cut: Vec<u32>,
    /// Of each slot that was cut, one that began with the same pages, and how many.
    heirs: Vec<Twin>,
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
        self.writes.clone_from(&other.writes);
        self.twins.clone_from(&other.twins);
        self.slots.clone_from(&other.slots);
    }
}

impl Held {
    /// The batch, whose rows have to be in the order of their slots.
    pub(super) fn table(&self, page_size: u32) -> PageTable<'_> {
        debug_assert!(self.is_in_order());
        PageTable::of_checked(&self.entries, self.stride, &self.pages, &self.seq_lens, page_size)
    }

    /// Rows of the batch.
    pub(super) const fn batch(&self) -> usize {
        self.slots.len()
    }

    /// The slot of each row.
    pub(super) fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Whether each row is its own slot.
    pub(super) fn is_in_order(&self) -> bool {
        are_in_order(&self.slots)
    }

    /// Tokens of each slot.
    pub(super) fn slot_lens(&self) -> &[u32] {
        &self.seq_lens
    }

    /// Tokens of each row.
    pub(super) fn row_lens(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.slots.iter().map(|&slot| self.seq_lens[slot as usize])
    }

    fn slot(&self, slot: u32) -> &[i32] {
        let slot = slot as usize;
        let pages = self.pages.get(slot).map_or(0, |&pages| pages as usize);
        self.entries.get(slot * self.stride..).map_or(&[], |entries| &entries[..pages])
    }

    /// Whether a slot has these pages.
    fn has(&self, slot: u32, pages: &[i32]) -> bool {
        let before = self.slot(slot);
        if before.len() != pages.len() {
            return false;
        }
        let Some(&twin) = self.twins.get(slot as usize) else { return pages.is_empty() };
        let (first, rest) = pages.split_at(twin.pages as usize);
        first == &self.slot(twin.slot)[..first.len()] && rest == &before[first.len()..]
    }

    /// Pages that a slot and a row begin with.
    fn common(&self, slot: u32, pages: &[i32]) -> usize {
        let before = self.slot(slot);
        let Some(&twin) = self.twins.get(slot as usize) else { return 0 };
        let (first, rest) = pages.split_at(pages.len().min(twin.pages as usize));
        let alike = &self.slot(twin.slot)[..first.len()];
        if first == alike { first.len() + common(&before[first.len()..], rest) } else { common(first, alike) }
    }

    /// Becomes the next batch of the same size, in the slots that the changes name.
    pub(super) fn apply(&mut self, changes: &mut Changes) {
        let batch = changes.seq_lens.len();
        let longest = changes.moved.iter().map(|moved| (moved.kept + moved.new) as usize).max().unwrap_or(0);
        if longest > self.stride {
            let stride = (longest + longest / 2).next_multiple_of(ROOM);
            let mut entries = vec![0; batch * stride];
            for (slot, to) in (0..).zip(entries.chunks_exact_mut(stride)) {
                let before = self.slot(slot);
                to[..before.len()].copy_from_slice(before);
            }
            (self.entries, self.stride) = (entries, stride);
        }
        self.entries.resize(batch * self.stride, 0);
        self.pages.resize(batch, 0);
        self.seq_lens.resize(batch, 0);
        self.writes.resize(batch, 0);
        self.twins.resize(batch, Twin::default());
        self.slots.clone_from(&changes.slots);
        self.cut_twins(changes);
        for (slot, moved, new) in changes.moved() {
            let kept = moved.kept as usize;
            let begin = slot as usize * self.stride + kept;
            self.entries[begin..begin + new.len()].copy_from_slice(new);
            self.pages[slot as usize] = moved.kept + moved.new;
        }
        for moved in changes.moved.iter().filter(|moved| moved.gone > 0 || moved.kept == 0) {
            self.find_twin(moved.request as usize);
        }
        for ((&slot, &tokens), &writes) in self.slots.iter().zip(&changes.seq_lens).zip(&changes.writes) {
            self.seq_lens[slot as usize] = tokens;
            self.writes[slot as usize] = writes;
        }
    }

    /// Slots that lose pages are nobody's twin in these.
    fn cut_twins(&mut self, changes: &mut Changes) {
        let Changes { moved, slots, memory: Memory { cut, heirs, .. }, .. } = changes;
        if moved.iter().all(|moved| moved.gone == 0) {
            return;
        }
        cut.clear();
        cut.resize(self.twins.len(), u32::MAX);
        heirs.clear();
        heirs.resize(self.twins.len(), Twin::default());
        for moved in moved.iter().filter(|moved| moved.gone > 0) {
            cut[slots[moved.request as usize] as usize] = moved.kept;
        }
        for (slot, twin) in (0..).zip(&mut self.twins) {
            twin.pages = twin.pages.min(cut[slot as usize]);
            let of = twin.slot as usize;
            if twin.pages <= cut[of] {
                continue;
            }
            // What they had in common, the others have in common with the first of them.
            if heirs[of].pages == 0 {
                heirs[of] = Twin { slot, pages: twin.pages };
                *twin = Twin { slot, pages: 0 };
            } else {
                *twin = Twin { slot: heirs[of].slot, pages: heirs[of].pages.min(twin.pages) };
            }
        }
    }

    /// Finds a slot that begins as that of a row: the one before, or what that one begins as. Trees lie side by side mostly.
    fn find_twin(&mut self, row: usize) {
        let slot = self.slots[row];
        let mut found = Twin { slot, pages: 0 };
        if let Some(before) = row.checked_sub(1).map(|row| self.slots[row]) {
            for other in [self.twins[before as usize].slot, before] {
                let pages = common(self.slot(other), self.slot(slot)) as u32;
                if other != slot && pages > found.pages {
                    found = Twin { slot: other, pages };
                }
            }
        }
        self.twins[slot as usize] = found;
    }

    /// Becomes the next batch, with its rows in the order of their slots.
    pub(super) fn become_next(&mut self, before: &Self, changes: &mut Changes) {
        let batch = changes.seq_lens.len();
        let in_order = batch == before.batch() && are_in_order(&changes.slots);
        if in_order {
            self.clone_from(before);
        } else {
            self.stride = before.stride;
            self.entries.clear();
            self.entries.resize(batch * self.stride, 0);
            self.pages.clear();
            for (row, &slot) in changes.slots.iter().enumerate() {
                let pages = before.slot(slot);
                self.entries[row * self.stride..][..pages.len()].copy_from_slice(pages);
                self.pages.push(pages.len() as u32);
            }
            self.twins.clear();
            self.twins.resize(batch, Twin::default());
        }
        changes.slots.clear();
        changes.slots.extend(0..batch as u32);
        self.apply(changes);
        if !in_order {
            (0..batch).for_each(|row| self.find_twin(row));
        }
    }

    /// Exchanges the lengths for those of the changes, which change nothing else.
    pub(super) fn exchange_lengths(&mut self, changes: &mut Changes) {
        for (&slot, tokens) in self.slots.iter().zip(&mut changes.seq_lens) {
            std::mem::swap(&mut self.seq_lens[slot as usize], tokens);
        }
        // The pages are the same, whatever becomes of the lengths.
        for (&slot, &writes) in self.slots.iter().zip(&changes.writes) {
            self.writes[slot as usize] = writes;
        }
    }
}

impl Changes {
    /// Requests with other pages: the slot of each, and the new pages.
    pub(super) fn moved(&self) -> impl Iterator<Item = (u32, &Moved, &[i32])> {
        moved_of(&self.moved, &self.new_pages)
            .map(|(moved, new)| (self.slots[moved.request as usize], moved, new))
    }

    /// Whether all rows have the requests that they had, with the same pages.
    pub(super) const fn is_empty(&self) -> bool {
        self.moved.is_empty() && !self.resized && !self.renamed
    }

    /// Whether so little has changed that following it takes less time than a plan from nothing.
    pub(super) fn are_small(&self) -> bool {
        !self.resized && losing(&self.moved) * LOSING <= self.seq_lens.len()
    }

    /// The slot of each row.
    pub(super) fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Becomes those of a batch that stays what it is.
    pub(super) fn clear(&mut self, held: &Held) {
        self.moved.clear();
        self.new_pages.clear();
        self.seq_lens.clear();
        self.seq_lens.extend(held.row_lens());
        self.writes.clear();
        self.writes.extend(held.slots.iter().map(|&slot| held.writes[slot as usize]));
        self.slots.clone_from(&held.slots);
        (self.resized, self.renamed) = (false, false);
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
        self.writes.clear();
        self.writes.extend((0..rows.batch()).map(|query| rows.writes(query)));
        self.writes.resize(batch, 0);
        self.slots.clear();
        self.slots.extend_from_slice(&held.slots[..batch.min(held.batch())]);
        // Slots that nobody had.
        self.slots.extend(held.batch() as u32..batch as u32);
        (self.resized, self.renamed) = (batch != held.batch(), false);
        let mut written = std::mem::take(&mut self.memory.rows);
        written.clear();
        let may_move = !self.resized && !rows.has_queries();
        let result = (0..batch).try_for_each(|request| {
            let slot = self.slots[request];
            if self.is_as_written(held, rows, request, slot) {
                return Ok(());
            }
            let is_counted = self.writes[request] != 0 || request >= rows.batch();
            if may_move && is_counted && held.writes[slot as usize] != 0 {
                written.push(request as u32);
                return Ok(());
            }
            self.compare(held, rows, request, slot)
        });
        // Where many rows are others by their writes, most may be found by these, unread.
        let moves = written.len() * LOSING > batch && self.find_slots(held, rows, &written);
        self.renamed = moves;
        let result = result.and_then(|()| {
            let mut rest = written.iter().map(|&row| row as usize);
            rest.try_for_each(|row| match self.slots[row] {
                slot if moves && self.is_as_written(held, rows, row, slot) => Ok(()),
                slot => self.compare(held, rows, row, slot),
            })
        });
        self.memory.rows = written;
        result?;
        if may_move && !self.renamed && !self.are_small() {
            self.find_moves(held, rows)?;
        }
        Ok(())
    }

    /// Whether nothing was written to a row since a slot was made of it, which it still fills as far. Its last page is looked at all the same:
    /// another request's is another, if somebody wrote it without counting.
    fn is_as_written(&self, held: &Held, rows: &PageRows<'_>, request: usize, slot: u32) -> bool {
        let writes = held.writes.get(slot as usize).copied().unwrap_or(0);
        writes != 0
            && writes == self.writes[request]
            && self.ends_alike(held, request, slot, rows.page_size())
            && pages_of(rows, request).last() == held.slot(slot).last()
    }

    fn ends_alike(&self, held: &Held, request: usize, slot: u32, page_size: u32) -> bool {
        ends_alike(held.seq_lens.get(slot as usize).copied().unwrap_or(0), self.seq_lens[request], page_size)
    }

    /// Notes how a row differs from a slot, if it does.
    fn compare(
        &mut self,
        held: &Held,
        rows: &PageRows<'_>,
        request: usize,
        slot: u32,
    ) -> Result<(), PlanError> {
        let now = pages_of(rows, request);
        // Of several queries of a request, some may see another number of pages, although the pages are the same.
        if self.ends_alike(held, request, slot, rows.page_size()) && held.has(slot, now) {
            return Ok(());
        }
        self.push(held, request, slot, now)
    }

    /// Notes that a row has other pages than a slot.
    fn push(&mut self, held: &Held, request: usize, slot: u32, now: &[i32]) -> Result<(), PlanError> {
        let before = held.slot(slot);
        let kept = held.common(slot, now);
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
        Ok(())
    }

    /// Finds the requests that rows with other pages have now among those that such rows had.
    ///
    /// # Errors
    /// As [`Self::find`].
    fn find_moves(&mut self, held: &Held, rows: &PageRows<'_>) -> Result<(), PlanError> {
        let mut others = std::mem::take(&mut self.memory.rows);
        others.clear();
        others.extend(self.moved.iter().filter(|moved| moved.is_another()).map(|moved| moved.request));
        self.renamed = self.find_slots(held, rows, &others);
        let mut result = Ok(());
        if self.renamed {
            let (moved, new_pages) = (std::mem::take(&mut self.moved), std::mem::take(&mut self.new_pages));
            result = moved_of(&moved, &new_pages).try_for_each(|(moved, new)| {
                if moved.is_another() {
                    let row = moved.request as usize;
                    return self.compare(held, rows, row, self.slots[row]);
                }
                self.moved.push(*moved);
                self.new_pages.extend_from_slice(new);
                Ok(())
            });
        }
        self.memory.rows = others;
        result
    }

    /// Gives rows that are others the slots of their requests, as where rows move up when a request is gone. Does nothing, and returns false, where
    /// so many requests are new that the batch is planned from nothing all the same.
    fn find_slots(&mut self, held: &Held, rows: &PageRows<'_>, others: &[u32]) -> bool {
        let Self { slots, writes, seq_lens, memory: Memory { before, ends, written, free, .. }, .. } = self;
        before.clone_from(slots);
        ends.clear();
        written.clear();
        free.clear();
        free.resize(held.batch(), false);
        for &row in others {
            let slot = slots[row as usize];
            free[slot as usize] = true;
            written.push((held.writes[slot as usize], slot));
            ends.extend(held.slot(slot).last().map(|&page| (page, slot)));
        }
        ends.sort_unstable();
        written.sort_unstable();
        let mut lost = 0;
        for &row in others {
            let of = writes[row as usize];
            let as_written = written
                .get(written.partition_point(|&(writes, _)| writes < of))
                .filter(|&&(writes, slot)| of != 0 && writes == of && free[slot as usize])
                .filter(|(_, slot)| {
                    ends_alike(held.seq_lens[*slot as usize], seq_lens[row as usize], rows.page_size())
                });
            let found = as_written
                .map(|&(_, slot)| slot)
                .or_else(|| slot_that_was(held, ends, free, pages_of(rows, row as usize)));
            slots[row as usize] = found.unwrap_or(u32::MAX);
            match found {
                Some(slot) => free[slot as usize] = false,
                None => lost += 1,
            }
        }
        if lost * LOSING > seq_lens.len() {
            slots.clone_from(before);
            return false;
        }
        // The others keep their slots, or get those of requests that are gone: there are as many.
        for &row in others {
            let (slot, before) = (&mut slots[row as usize], before[row as usize]);
            if *slot == u32::MAX && std::mem::take(&mut free[before as usize]) {
                *slot = before;
            }
        }
        let mut left = (0..).zip(free.iter()).filter(|(_, free)| **free).map(|(slot, _)| slot);
        for slot in slots.iter_mut().filter(|slot| **slot == u32::MAX) {
            *slot = left.next().unwrap_or(u32::MAX);
        }
        true
    }
}

impl Moved {
    /// Whether the row may have another request: one that only gained pages has not.
    const fn is_another(&self) -> bool {
        self.gone > 0 || self.kept == 0
    }
}

/// Requests that lost pages.
fn losing(moved: &[Moved]) -> usize {
    moved.iter().filter(|moved| moved.gone > 0).count()
}

fn moved_of<'a>(moved: &'a [Moved], new_pages: &'a [i32]) -> impl Iterator<Item = (&'a Moved, &'a [i32])> {
    let mut rest = new_pages;
    moved.iter().map(move |moved| {
        let (new, behind) = rest.split_at(moved.new as usize);
        rest = behind;
        (moved, new)
    })
}

fn are_in_order(slots: &[u32]) -> bool {
    (0..).zip(slots).all(|(row, &slot)| row == slot)
}

fn pages_of<'a>(rows: &PageRows<'a>, request: usize) -> &'a [i32] {
    if request < rows.batch() { rows.pages(request) } else { &[] }
}

/// The free slot whose pages a row begins with, but for those at its end that it may have gained. `ends` is sorted.
fn slot_that_was(held: &Held, ends: &[(i32, u32)], free: &[bool], now: &[i32]) -> Option<u32> {
    (0..=GAINED.min(now.len().saturating_sub(1))).find_map(|gained| {
        let pages = &now[..now.len() - gained];
        let last = *pages.last()?;
        let from = ends.partition_point(|&(page, _)| page < last);
        let alike = ends[from..].iter().take_while(|(page, _)| *page == last).map(|&(_, slot)| slot);
        alike.filter(|&slot| free[slot as usize]).take(NAMESAKES).find(|&slot| held.has(slot, pages))
    })
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

    fn next(held: &Held, changes: &mut Changes) -> Held {
        let mut next = Held::default();
        next.become_next(held, changes);
        next
    }

    proptest! {
        #[test]
        fn a_batch_that_takes_changes_is_the_next_batch(
            start in prop::collection::vec(prop::collection::vec(0i32..3, 0..150), 0..16),
            steps in prop::collection::vec((0usize..7, prop::collection::vec(0i32..3, 0..150), prop::sample::select(vec![16, 16, 16, 20])), 1..12),
            page_size in prop::sample::select(vec![1u32, 16, 24]),
        ) {
            let (mut held, mut changes) = (Held::default(), Changes::default());
            let mut rows = start;
            for (kind, row, batch) in steps {
                let at = row.len() % rows.len().max(1);
                match kind {
                    0 if !rows.is_empty() => drop(rows.remove(at)),
                    1 if !rows.is_empty() => drop(rows.swap_remove(at)),
                    2 if !rows.is_empty() => rows[at] = row,
                    3 if !rows.is_empty() => rows.rotate_left(at),
                    4 if !rows.is_empty() => rows[at].extend(row.first()),
                    5 if rows.len() < batch => rows.push(row),
                    _ => {}
                }
                let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
                let entries: Vec<i32> = rows
                    .iter()
                    .flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(-1, columns + 3 - row.len())))
                    .collect();
                let seq_lens: Vec<u32> = rows.iter().map(|row| (row.len() as u32 * page_size).saturating_sub(page_size / 3)).collect();
                let table = PageRows::dense(&entries, columns, columns + 3, &seq_lens, page_size).unwrap();
                let batch = batch.max(rows.len());
                changes.find(&held, &table, batch).unwrap();
                let in_slots = !changes.resized;
                let next = next(&held, &mut changes.clone());
                if in_slots {
                    held.apply(&mut changes);
                } else {
                    held = next.clone();
                }
                for held in [&held, &next] {
                    prop_assert!(held.row_lens().eq(seq_lens.iter().copied().chain(std::iter::repeat_n(0, batch - rows.len()))));
                    for (request, row) in rows.iter().enumerate() {
                        prop_assert_eq!(held.slot(held.slots[request]), &row[..]);
                    }
                    prop_assert!((rows.len()..batch).all(|request| held.slot(held.slots[request]).is_empty()));
                    let mut slots = held.slots.clone();
                    slots.sort_unstable();
                    prop_assert!(are_in_order(&slots));
                    for (slot, twin) in (0..).zip(&held.twins) {
                        let pages = twin.pages as usize;
                        prop_assert_eq!(&held.slot(slot)[..pages], &held.slot(twin.slot)[..pages]);
                    }
                    changes.find(held, &table, batch).unwrap();
                    prop_assert!(changes.is_empty());
                }
                let table = next.table(page_size);
                prop_assert!((0..rows.len()).all(|request| table.pages(request) == rows[request]));
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
