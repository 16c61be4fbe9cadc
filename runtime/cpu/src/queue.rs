//! Who computes what: threads take units from the plan until none is left.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use tilewright_plan::Plan;

/// What one thread takes: a work item, or one thread's share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Index into the plan's tile groups.
    pub(super) group: usize,
    /// Index into the plan's work items.
    pub(super) item: usize,
    /// The KV head.
    pub(super) kv_head: u32,
    /// Which share, from 0.
    pub(super) lane: u32,
    /// How many shares the item has.
    pub(super) lanes: u32,
    /// Where the shares of this item are collected; meaningless for an item of one lane.
    pub(super) team: usize,
}

/// Hands out the units of a plan. Items that several threads share come first, share behind share, so that at most as many of
/// them are open as there are threads; the others fill the end of the step.
#[derive(Debug)]
pub(super) struct Queue {
    /// Tile group, work items x KV heads, lanes.
    shared: Vec<(usize, std::ops::Range<usize>, u32)>,
    single: Vec<(usize, std::ops::Range<usize>)>,
    kv_heads: usize,
    singles: usize,
    next_shared: Mutex<Shared>,
    next_single: AtomicUsize,
    arrived: Vec<AtomicU32>,
}

#[derive(Debug, Default)]
struct Shared {
    group: usize,
    item: usize,
    lane: u32,
    team: usize,
    free: Vec<usize>,
}

impl Queue {
    /// A queue for a team of `threads` threads.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            shared: Vec::new(),
            single: Vec::new(),
            kv_heads: 1,
            singles: 0,
            next_shared: Mutex::default(),
            next_single: AtomicUsize::new(0),
            arrived: (0..Self::teams(threads)).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Shared items that may be open at once: each open one but the newest has a thread of its own working on it.
    pub(super) const fn teams(threads: usize) -> usize {
        threads + 1
    }

    /// Starts over with a plan. Keeps its memory.
    pub(super) fn fill(&mut self, plan: &Plan) {
        self.shared.clear();
        self.single.clear();
        self.singles = 0;
        self.kv_heads = plan.geometry().kv_heads as usize;
        for (index, group) in plan.tile_groups().iter().enumerate() {
            let items = group.items.start as usize * self.kv_heads..group.items.end as usize * self.kv_heads;
            if group.tile.warps > 1 {
                self.shared.push((index, items, u32::from(group.tile.warps)));
            } else {
                self.singles += items.len();
                self.single.push((index, items));
            }
        }
        *self.next_single.get_mut() = 0;
        let teams = self.arrived.len();
        let next = self.next_shared.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        (next.group, next.item, next.lane) = (0, self.shared.first().map_or(0, |group| group.1.start), 0);
        next.free.clear();
        next.free.extend(0..teams);
        for arrived in &mut self.arrived {
            *arrived.get_mut() = 0;
        }
    }

    /// The next unit; `None` when all are taken.
    pub(super) fn take(&self) -> Option<Unit> {
        self.take_shared().or_else(|| self.take_single())
    }

    fn take_shared(&self) -> Option<Unit> {
        if self.shared.is_empty() {
            return None;
        }
        let mut next = self.next_shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (group, items, lanes) = self.shared.get(next.group)?;
        if next.lane == 0 {
            next.team = next.free.pop().expect("fewer items are open than there are teams");
        }
        let unit = self.unit(*group, next.item, next.lane, *lanes, next.team);
        next.lane += 1;
        if next.lane == *lanes {
            next.lane = 0;
            next.item += 1;
            if next.item == items.end {
                next.group += 1;
                next.item = self.shared.get(next.group).map_or(0, |group| group.1.start);
            }
        }
        Some(unit)
    }

    fn take_single(&self) -> Option<Unit> {
        let mut index = self.next_single.fetch_add(1, Ordering::Relaxed);
        if index >= self.singles {
            return None;
        }
        for (group, items) in &self.single {
            if index < items.len() {
                return Some(self.unit(*group, items.start + index, 0, 1, 0));
            }
            index -= items.len();
        }
        None
    }

    const fn unit(&self, group: usize, index: usize, lane: u32, lanes: u32, team: usize) -> Unit {
        let (item, kv_head) = (index / self.kv_heads, (index % self.kv_heads) as u32);
        Unit { group, item, kv_head, lane, lanes, team }
    }

    /// Says that a share is done. The thread that is told `true` was the last of its team: it sees what the others wrote, and
    /// must call [`Queue::release`] when it has combined it.
    pub(super) fn arrive(&self, unit: &Unit) -> bool {
        self.arrived[unit.team].fetch_add(1, Ordering::AcqRel) + 1 == unit.lanes
    }

    /// Gives a team's place back.
    pub(super) fn release(&self, unit: &Unit) {
        self.arrived[unit.team].store(0, Ordering::Release);
        self.next_shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).free.push(unit.team);
    }
}
