//! Where the sections of a packed plan lie.

use tilewright_kernel_templates::cuda::{KvSegment, MergeItem, OutputTarget, WorkItem};

/// Sections begin at multiples of 16 bytes.
pub(super) const ALIGNMENT: usize = 4;
/// Words of what is said of a launch, behind the number of merges.
pub(super) const LAUNCH: usize = 2;
/// Words of an item, a merge, a segment and a target.
pub(super) const ITEM: usize = size_of::<WorkItem>() / 4;
const MERGE: usize = size_of::<MergeItem>() / 4;
const SEGMENT: usize = size_of::<KvSegment>() / 4;
const TARGET: usize = size_of::<OutputTarget>() / 4;

/// Entries of each section.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sections {
    pub(crate) launches: usize,
    pub(crate) requests: usize,
    pub(crate) merges: usize,
    pub(crate) request_entries: usize,
    pub(crate) targets: usize,
    pub(crate) items: usize,
    pub(crate) segments: usize,
    pub(crate) page_entries: usize,
}

/// Words at which the sections begin, in their order: the one that is usually the longest, and the emptiest in a bucket, is last, so that a
/// copy ends where its entries do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(super) lengths: usize,
    pub(super) merges: usize,
    pub(super) requests: usize,
    pub(super) targets: usize,
    pub(super) items: usize,
    pub(super) segments: usize,
    pub(super) page_ids: usize,
    end: usize,
}

impl Layout {
    /// Room for `entries` entries.
    pub(crate) fn of(sections: &Sections) -> Self {
        let mut at = 0;
        let mut after = |words: usize| {
            at += words.next_multiple_of(ALIGNMENT);
            at
        };
        Self {
            lengths: after(1 + LAUNCH * sections.launches),
            merges: after(sections.requests),
            // One more, which may be read and is never used.
            requests: after((sections.merges + 1) * MERGE),
            targets: after(sections.request_entries),
            items: after(sections.targets * TARGET),
            segments: after(sections.items * ITEM),
            page_ids: after(sections.segments * SEGMENT),
            end: after(sections.page_entries),
        }
    }

    /// Words of all sections.
    pub(crate) const fn words(&self) -> usize {
        self.end
    }

    /// Words up to the end of the last entry of the last section that has one, by its entries in use.
    pub(super) fn used(&self, entries: &Sections) -> usize {
        let sections = [
            (self.page_ids, entries.page_entries),
            (self.segments, entries.segments * SEGMENT),
            (self.items, entries.items * ITEM),
            (self.targets, entries.targets * TARGET),
            (self.requests, entries.request_entries),
            (self.merges, entries.merges * MERGE),
            (self.lengths, entries.requests),
        ];
        let last = sections.into_iter().find(|(_, words)| *words > 0);
        last.map_or(1 + LAUNCH * entries.launches, |(begin, words)| begin + words)
    }
}
