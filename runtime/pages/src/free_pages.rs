//! The free pages: stacks over shards, and the gate through which one call takes from several of them at once. Lock-free.

use super::sync::{AtomicU64, Ordering, thread_index};

/// Most shards that there can be. The gate names one in `SHARD_BITS` bits.
pub(super) const MAX_SHARDS: usize = 64;
const SHARD_BITS: u32 = MAX_SHARDS.ilog2();

/// A word with a cache line of its own, and with the next one, which processors fetch together with it.
#[derive(Debug)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Free page ids. Each thread works at a shard of its own, and at the others' when its own has too few.
///
/// A shard is a stack, linked by index (Treiber's). Its head has a tag that every change increments, in all bits that the index
/// leaves: a head that was seen twice with the same tag was not changed in between. So a chain of k pages that was walked below an
/// unchanged head is the chain, and one compare-and-swap takes all of it: all or nothing, without a moment when others see a part
/// of it taken. Heads of all shards that were seen twice with the same tags were there together at some moment: that is how pages
/// are counted, and how a call learns that there are too few.
///
/// Pages are never moved from shard to shard, for on the way no thread could find them. They change shards with their owners: what
/// a thread stole, it gives back to its own shard. If all shards together have enough pages, but none alone, a call closes the gate:
///
/// 1. Open -> freezing. All heads are frozen, in any order. A frozen head is not changed otherwise.
/// 2. Freezing -> frozen: all are. The free pages are one list now, shard after shard, that no thread changes.
/// 3. Frozen -> thawing: one compare-and-swap of the gate is one whole call. It either takes the first pages of that list, as many as
///    it says, or puts a chain on one shard.
/// 4. The heads are thawed from the last shard to the first, each to what the call left of its stack. So while one is frozen, those
///    before it are too, and how many pages they have tells how many are taken from it. Thawing -> open.
///
/// A thread that meets a frozen head does what is left of steps 1 and 2, and step 3 for itself: no thread ever waits for another, and each
/// time round, one call is done. A helper that comes late changes nothing, as the tag of its gate or head is an old one.
///
/// With a pool of a million pages, tags of heads have 42 bits and those of the gate 34. A thread would have to sleep between two
/// instructions for exactly a multiple of 2^42, or 2^34, changes to be fooled.
#[derive(Debug)]
pub(super) struct FreePages {
    /// `tag | frozen | page`, the page is `links.len()` when nothing is free.
    heads: Box<[Line]>,
    /// `tag | stage | put | shard | page or count`.
    gate: Line,
    /// Of each free page: how many pages are free from it downwards (upper half), and the page below it (lower half).
    links: Box<[AtomicU64]>,
    index_bits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    Freezing,
    Frozen,
    Thawing,
}

/// What a call does to frozen shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// It only looks.
    Nothing,
    /// It takes the first pages.
    Take(u32),
    /// It puts on a shard what it has linked to the head.
    Put { shard: usize, top: u32 },
}

/// Shards at one moment.
enum Snapshot {
    /// Free pages of all, and of the shard with most.
    Still { free: u32, most: u32 },
    /// One is frozen.
    Frozen,
    /// Some were changed meanwhile.
    Changed,
}

impl FreePages {
    /// Pages 0 to `pages`, at most 2^31 - 1, spread evenly over `shards`, a power of two up to [`MAX_SHARDS`].
    pub(super) fn new(pages: u32, shards: usize) -> Self {
        let index_bits = u32::BITS - pages.leading_zeros();
        let begin = |shard: usize| (u64::from(pages) * shard as u64 / shards as u64) as u32;
        let mut links: Box<[AtomicU64]> = (0..pages).map(|_| AtomicU64::new(0)).collect();
        let mut fill = |shard| {
            let (begin, end) = (begin(shard), begin(shard + 1));
            for page in begin..end {
                let below = if page + 1 < end { page + 1 } else { pages };
                links[page as usize] = AtomicU64::new(pack(end - page, below));
            }
            Line(AtomicU64::new(u64::from(if begin < end { begin } else { pages })))
        };
        Self { heads: (0..shards).map(&mut fill).collect(), gate: Line(AtomicU64::new(0)), links, index_bits }
    }

    pub(super) fn shards(&self) -> usize {
        self.heads.len()
    }

    /// Pages, free or not.
    pub(super) fn total(&self) -> u32 {
        self.links.len() as u32
    }

    /// Free pages at some moment during the call.
    pub(super) fn count(&self) -> u32 {
        loop {
            match self.snapshot() {
                Snapshot::Still { free, .. } => return free,
                Snapshot::Frozen => {
                    if let Some(free) = self.pass_gate(|_, depths| (Change::Nothing, depths.iter().sum())) {
                        return free;
                    }
                }
                Snapshot::Changed => {}
            }
        }
    }

    /// Takes `count` > 0 pages and appends them to `pages`; or takes none, and says how many there were at a moment of the call.
    pub(super) fn take(&self, count: u32, pages: &mut Vec<u32>) -> Result<(), u32> {
        let (start, home) = (pages.len(), self.home());
        'again: loop {
            for step in 0..self.shards() {
                let head = &self.heads[(home + step) & (self.shards() - 1)].0;
                let mut seen = head.load(Ordering::Acquire);
                // Others may change the links meanwhile: what they say is then wrong, leads anywhere in the pool, or to its end, and is
                // thrown away.
                while !self.is_frozen(seen) && self.depth(self.index(seen)) >= count {
                    let rest = self.walk(self.index(seen), count, |page| pages.push(page));
                    let new = self.next_head(seen, false, rest);
                    match head.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                        Ok(_) => return Ok(()),
                        Err(found) => seen = found,
                    }
                    pages.truncate(start);
                }
            }
            match self.snapshot() {
                Snapshot::Still { free, .. } if free < count => return Err(free),
                Snapshot::Still { most, .. } if most >= count => continue 'again,
                Snapshot::Still { .. } => self.close_gate(),
                Snapshot::Frozen => {}
                Snapshot::Changed => continue 'again,
            }
            let outcome = self.pass_gate(|heads, depths| {
                pages.truncate(start);
                let free: u32 = depths.iter().sum();
                if free < count {
                    return (Change::Take(0), Err(free));
                }
                let mut left = count;
                for (&head, &depth) in heads.iter().zip(depths) {
                    self.walk(self.index(head), depth.min(left), |page| pages.push(page));
                    left -= depth.min(left);
                }
                (Change::Take(count), Ok(()))
            });
            match outcome {
                Some(outcome) => return outcome,
                None => pages.truncate(start),
            }
        }
    }

    /// Puts pages that no other thread knows of onto the thread's shard, the first one on top.
    pub(super) fn put(&self, pages: &[u32]) {
        let Some(&top) = pages.first() else { return };
        let shard = self.home();
        let head = &self.heads[shard].0;
        let mut seen = head.load(Ordering::Acquire);
        loop {
            if self.is_frozen(seen) {
                let done = self.pass_gate(|heads, _| {
                    self.link(pages, self.index(heads[shard]));
                    (Change::Put { shard, top }, ())
                });
                if done.is_some() {
                    return;
                }
                seen = head.load(Ordering::Acquire);
                continue;
            }
            self.link(pages, self.index(seen));
            let new = self.next_head(seen, false, top);
            match head.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(found) => seen = found,
            }
        }
    }

    /// The shard of this thread.
    fn home(&self) -> usize {
        thread_index() & (self.shards() - 1)
    }

    fn snapshot(&self) -> Snapshot {
        let mut heads = [0; MAX_SHARDS];
        let (mut free, mut most) = (0u32, 0);
        for (seen, head) in heads.iter_mut().zip(&self.heads) {
            *seen = head.0.load(Ordering::Acquire);
            if self.is_frozen(*seen) {
                return Snapshot::Frozen;
            }
            let depth = self.depth(self.index(*seen));
            (free, most) = (free.saturating_add(depth), depth.max(most));
        }
        let unchanged =
            self.heads.iter().zip(heads).all(|(head, seen)| head.0.load(Ordering::Acquire) == seen);
        if unchanged { Snapshot::Still { free, most } } else { Snapshot::Changed }
    }

    /// Step 1, its beginning.
    fn close_gate(&self) {
        let gate = self.gate.0.load(Ordering::Acquire);
        if self.stage(gate) == Stage::Open {
            self.set_gate(gate, Stage::Freezing, Change::Nothing);
        }
    }

    /// Takes part in what happens behind the closed gate until the caller's change is made, or the gate is open. `decide` sees frozen
    /// heads and how many pages each has, and may be called several times; what it said last is what was done. It may see numbers
    /// without sense if others went on meanwhile; they are thrown away.
    fn pass_gate<T>(&self, mut decide: impl FnMut(&[u64], &[u32]) -> (Change, T)) -> Option<T> {
        loop {
            let gate = self.gate.0.load(Ordering::Acquire);
            match self.stage(gate) {
                Stage::Open => return None,
                Stage::Freezing => self.freeze(gate),
                Stage::Frozen => {
                    let (mut heads, mut depths) = ([0; MAX_SHARDS], [0; MAX_SHARDS]);
                    self.read_frozen(&mut heads, &mut depths);
                    if self.gate.0.load(Ordering::Acquire) != gate {
                        continue;
                    }
                    let (change, value) = decide(&heads[..self.shards()], &depths[..self.shards()]);
                    if change == Change::Nothing {
                        return Some(value);
                    }
                    if let Some(gate) = self.set_gate(gate, Stage::Thawing, change) {
                        // Not left to others: pages that they walk over have to stay as they are until all heads are thawed.
                        self.thaw(gate);
                        return Some(value);
                    }
                }
                Stage::Thawing => self.thaw(gate),
            }
        }
    }

    /// Steps 1 and 2.
    fn freeze(&self, gate: u64) {
        for head in &self.heads {
            let mut seen = head.0.load(Ordering::Acquire);
            while !self.is_frozen(seen) {
                // Who sees a thawed head sees the gate that it was thawed under, or a later one.
                if self.gate.0.load(Ordering::Acquire) != gate {
                    return;
                }
                let new = self.next_head(seen, true, self.index(seen));
                match head.0.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(found) => seen = found,
                }
            }
        }
        self.set_gate(gate, Stage::Frozen, Change::Nothing);
    }

    /// Step 4.
    fn thaw(&self, gate: u64) {
        let (mut heads, mut depths) = ([0; MAX_SHARDS], [0; MAX_SHARDS]);
        self.read_frozen(&mut heads, &mut depths);
        // Who sees a head that was frozen again sees the gate that it was frozen under, or a later one.
        if self.gate.0.load(Ordering::Acquire) != gate {
            return;
        }
        let change = self.change(gate);
        let mut before: u32 = depths.iter().sum();
        for (shard, head) in self.heads.iter().enumerate().rev() {
            let seen = heads[shard];
            before -= depths[shard];
            if !self.is_frozen(seen) {
                continue;
            }
            let top = match change {
                Change::Take(count) => {
                    let taken = count.saturating_sub(before).min(depths[shard]);
                    self.walk(self.index(seen), taken, |_| ())
                }
                Change::Put { shard: changed, top } if changed == shard => top,
                Change::Put { .. } | Change::Nothing => self.index(seen),
            };
            let new = self.next_head(seen, false, top);
            // A failure means that another thread has thawed it.
            let _ = head.0.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire);
        }
        self.set_gate(gate, Stage::Open, Change::Nothing);
    }

    /// Heads from the first to the last, and how many pages those that are frozen have.
    fn read_frozen(&self, heads: &mut [u64; MAX_SHARDS], depths: &mut [u32; MAX_SHARDS]) {
        // What does not fit is of different moments, and will be thrown away; it must not overflow, though.
        let mut left = self.total();
        for ((seen, depth), head) in heads.iter_mut().zip(depths).zip(&self.heads) {
            *seen = head.0.load(Ordering::Acquire);
            if self.is_frozen(*seen) {
                *depth = self.depth(self.index(*seen)).min(left);
                left -= *depth;
            }
        }
    }

    /// Links pages into a chain above another one.
    fn link(&self, pages: &[u32], mut below: u32) {
        let mut depth = self.depth(below);
        for &page in pages.iter().rev() {
            depth = depth.saturating_add(1);
            // Release: who reads this link, and took it for an older one, is sure to see the newer head or gate too.
            self.links[page as usize].store(pack(depth, below), Ordering::Release);
            below = page;
        }
    }

    /// The page that comes `count` pages below another one, as long as no thread changes the chain.
    fn walk(&self, mut page: u32, count: u32, mut visit: impl FnMut(u32)) -> u32 {
        for _ in 0..count {
            let Some(link) = self.links.get(page as usize) else { break };
            visit(page);
            page = link.load(Ordering::Acquire) as u32;
        }
        page
    }

    /// Free pages from `page` downwards, as long as no thread changes the chain.
    fn depth(&self, page: u32) -> u32 {
        self.links.get(page as usize).map_or(0, |link| (link.load(Ordering::Acquire) >> 32) as u32)
    }

    fn next_head(&self, head: u64, frozen: bool, page: u32) -> u64 {
        let tag = (head >> (self.index_bits + 1)).wrapping_add(1);
        (tag << 1 | u64::from(frozen)) << self.index_bits | u64::from(page)
    }

    fn is_frozen(&self, head: u64) -> bool {
        head >> self.index_bits & 1 == 1
    }

    fn index(&self, word: u64) -> u32 {
        (word & ((1 << self.index_bits) - 1)) as u32
    }

    /// Changes the gate if no other thread did; returns what it is then.
    fn set_gate(&self, gate: u64, stage: Stage, change: Change) -> Option<u64> {
        let (put, shard, operand) = match change {
            Change::Nothing => (0, 0, 0),
            Change::Take(count) => (0, 0, count),
            Change::Put { shard, top } => (1, shard as u64, top),
        };
        let tag = (gate >> (self.index_bits + SHARD_BITS + 3)).wrapping_add(1);
        let upper = ((tag << 2 | stage as u64) << 1 | put) << SHARD_BITS | shard;
        let new = upper << self.index_bits | u64::from(operand);
        let set = self.gate.0.compare_exchange(gate, new, Ordering::AcqRel, Ordering::Acquire);
        set.is_ok().then_some(new)
    }

    fn stage(&self, gate: u64) -> Stage {
        match gate >> (self.index_bits + SHARD_BITS + 1) & 3 {
            0 => Stage::Open,
            1 => Stage::Freezing,
            2 => Stage::Frozen,
            _ => Stage::Thawing,
        }
    }

    fn change(&self, gate: u64) -> Change {
        let (upper, operand) = (gate >> self.index_bits, self.index(gate));
        if upper >> SHARD_BITS & 1 == 0 {
            return Change::Take(operand);
        }
        Change::Put { shard: (upper & (MAX_SHARDS as u64 - 1)) as usize, top: operand }
    }
}

fn pack(depth: u32, next: u32) -> u64 {
    u64::from(depth) << 32 | u64::from(next)
}
