//! Who computes what: threads take units from the plan until none is left.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::cpu::heads_at_once;
use tilewright_plan::{Plan, TileGroup, WorkItem};

/// What one thread takes: a work item, or one thread's share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Index into the plan's tile groups.
    pub(super) group: usize,
    /// Index into the plan's work items.
    pub(super) item: usize,
    /// The first KV head.
    pub(super) kv_head: u32,
    /// KV heads that are computed together; one where several threads share the item.
    pub(super) heads: u32,
    /// Which share, from 0.
    pub(super) lane: u32,
    /// How many shares the item has.
    pub(super) lanes: u32,
    /// Where the shares of this item are collected; meaningless for an item of one lane.
    pub(super) team: usize,
}

/// What a unit computes.
#[derive(Debug)]
pub(super) struct Work<'a> {
    pub(super) item: &'a WorkItem,
    pub(super) tile: &'a Tile,
    pub(super) kv_heads: Range<u32>,
    /// Tokens, counted along the Q tile's KV range: the item's, or one thread's share of them.
    pub(super) kv_range: Range<u32>,
}

impl<'a> Work<'a> {
    pub(super) fn of(plan: &'a Plan, unit: &Unit) -> Self {
        let (item, tile) = (&plan.work_items()[unit.item], &plan.tile_groups()[unit.group].tile);
        let kv_range = share(item, unit.lane, unit.lanes, u32::from(tile.n));
        Self { item, tile, kv_heads: unit.kv_head..unit.kv_head + unit.heads, kv_range }
    }
}

/// One thread's share of an item's tokens: whole steps of n tokens, as equal as can be. May be empty.
fn share(item: &WorkItem, lane: u32, lanes: u32, n: u32) -> Range<u32> {
    let Range { start, end } = item.kv_range;
    let steps = u64::from((end - start).div_ceil(n));
    let at = |lane: u32| {
        let tokens = steps * u64::from(lane) / u64::from(lanes) * u64::from(n);
        (u64::from(start) + tokens).min(u64::from(end)) as u32
    };
    at(lane)..if lane + 1 == lanes { end } else { at(lane + 1) }
}

/// Units for each thread, at least, before a thread computes several KV heads of an item together: threads that are done take what others would be
/// busy with. One unit is enough where a request has few rows, as reading takes most of the time then, and heads side by side are read in order.
const fn units_a_thread(gqa_ratio: u32) -> usize {
    if gqa_ratio <= 2 { 1 } else { 2 }
}
/// Items of KV heads for each thread that would share one: with as many, all threads are busy without sharing.
const ITEMS_A_LANE: usize = 8;

/// Threads that share an item of a tile group. Decided by the plan alone, as are the bits.
pub(super) fn lanes(plan: &Plan, group: &TileGroup) -> u32 {
    let warps = usize::from(group.tile.warps);
    let items = plan.work_items().len() * plan.geometry().kv_heads as usize;
    if items >= ITEMS_A_LANE * warps { 1 } else { warps as u32 }
}

/// Hands out the units of a plan. Items that several threads share come first, share behind share, so that at most as many of
/// them are open as there are threads; the others fill the end of the step.
#[derive(Debug)]
pub(super) struct Queue {
    /// Tile group, work items x KV heads, lanes.
    shared: Vec<(usize, Range<usize>, u32)>,
    single: Vec<Unit>,
    kv_heads: usize,
    threads: usize,
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
            threads,
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
        let geometry = plan.geometry();
        self.kv_heads = geometry.kv_heads as usize;
        // So many units at least, where there are as many.
        let fair =
            plan.work_items().len() * self.kv_heads / (units_a_thread(geometry.gqa_ratio()) * self.threads);
        for (group, tile_group) in plan.tile_groups().iter().enumerate() {
            let lanes = lanes(plan, tile_group);
            let items = tile_group.items.start as usize..tile_group.items.end as usize;
            if lanes > 1 {
                let heads = items.start * self.kv_heads..items.end * self.kv_heads;
                self.shared.push((group, heads, lanes));
                continue;
            }
            for item in items {
                let rows = plan.work_items()[item].rows.len();
                let most = heads_at_once(rows.max(1), geometry.head_dim as usize);
                let most = most.min(fair.max(1)).min(self.kv_heads);
                // As many units as that takes, of as many heads each as can be.
                let most = self.kv_heads.div_ceil(self.kv_heads.div_ceil(most)) as u32;
                let mut kv_head = 0;
                while kv_head < geometry.kv_heads {
                    let heads = most.min(geometry.kv_heads - kv_head);
                    self.single.push(Unit { group, item, kv_head, heads, lane: 0, lanes: 1, team: 0 });
                    kv_head += heads;
                }
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

    /// All units of the plan.
    pub(super) fn units(&self) -> usize {
        self.single.len()
            + self.shared.iter().map(|(_, items, lanes)| items.len() * *lanes as usize).sum::<usize>()
    }

    /// The next unit; `None` when all are taken.
    pub(super) fn take(&self) -> Option<Unit> {
        self.take_shared().or_else(|| self.take_single())
    }

    /// The unit that the next thread will take, if it is no share of one: another thread may be faster.
    pub(super) fn peek(&self) -> Option<Unit> {
        if !self.shared.is_empty() {
            let next = self.next_shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if next.group < self.shared.len() {
                return None;
            }
        }
        self.single.get(self.next_single.load(Ordering::Relaxed)).copied()
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
        self.single.get(self.next_single.fetch_add(1, Ordering::Relaxed)).copied()
    }

    const fn unit(&self, group: usize, index: usize, lane: u32, lanes: u32, team: usize) -> Unit {
        let (item, kv_head) = (index / self.kv_heads, (index % self.kv_heads) as u32);
        Unit { group, item, kv_head, heads: 1, lane, lanes, team }
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

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::{Dtype, Geometry};
    use tilewright_plan::{PageTable, PlanOptions};

    /// A plan of requests that share nothing, each of them a work item.
    fn plan(requests: u32, kv_heads: u32, warps: u16) -> Plan {
        plan_with_ratio(4, requests, kv_heads, warps)
    }

    fn plan_with_ratio(ratio: u32, requests: u32, kv_heads: u32, warps: u16) -> Plan {
        let geometry =
            Geometry { q_heads: ratio * kv_heads, kv_heads, head_dim: 128, page_size: 16, dtype: Dtype::F16 };
        let pages: Vec<i32> = (0..requests as i32).collect();
        let seq_lens = vec![16; requests as usize];
        let table = PageTable::new(&pages, 1, &seq_lens, 16).unwrap();
        Plan::build(&geometry, &table, &PlanOptions::default(), Tile::new(4, 16, warps, 1)).unwrap()
    }

    /// All units, as threads would take them one after another.
    fn units(plan: &Plan, threads: usize) -> Vec<Unit> {
        let mut queue = Queue::new(threads);
        queue.fill(plan);
        let take = || {
            queue.take().inspect(|unit| {
                if unit.lanes > 1 && queue.arrive(unit) {
                    queue.release(unit)
                }
            })
        };
        let mut units = Vec::new();
        loop {
            let next = queue.peek();
            let Some(unit) = take() else { break };
            // What is fetched ahead of its turn is the right one.
            assert!(next.is_none_or(|next| next == unit) && (unit.lanes > 1 || next.is_some()));
            units.push(unit);
        }
        assert_eq!(units.len(), queue.units());
        units
    }

    #[test]
    fn every_head_of_every_item_is_taken_once() {
        for (requests, kv_heads, threads, heads) in
            [(40, 8, 2, 8), (40, 6, 2, 6), (40, 32, 2, 16), (3, 8, 2, 4), (1, 8, 8, 1)]
        {
            let plan = plan(requests, kv_heads, 1);
            let units = units(&plan, threads);
            assert_eq!(units.iter().map(|unit| unit.heads).max(), Some(heads), "{requests} x {kv_heads}");
            let mut taken: Vec<(usize, u32)> = units
                .iter()
                .flat_map(|unit| (unit.kv_head..unit.kv_head + unit.heads).map(|head| (unit.item, head)))
                .collect();
            taken.sort_unstable();
            let items = 0..plan.work_items().len();
            let expected: Vec<_> =
                items.flat_map(|item| (0..kv_heads).map(move |head| (item, head))).collect();
            assert_eq!(taken, expected);
        }
    }

    #[test]
    fn heads_of_few_rows_are_taken_together_sooner() {
        let most = |ratio, requests, kv_heads| {
            let units = units(&plan_with_ratio(ratio, requests, kv_heads, 1), 2);
            units.iter().map(|unit| unit.heads).max()
        };
        assert_eq!([most(1, 1, 4), most(2, 1, 4), most(4, 1, 4)], [Some(2), Some(2), Some(1)]);
        assert_eq!([most(1, 1, 2), most(4, 2, 4)], [Some(1), Some(2)]);
    }

    #[test]
    fn threads_share_items_only_where_there_are_few() {
        let lanes = |requests, warps| units(&plan(requests, 2, warps), 4)[0].lanes;
        assert_eq!([lanes(7, 2), lanes(8, 2), lanes(15, 4), lanes(16, 4), lanes(1, 1)], [2, 1, 4, 1, 1]);
    }

    #[test]
    fn shares_cover_an_item_without_gaps() {
        for (begin, end) in [(0, 1), (0, 16), (7, 400), (32, 33), (0, u32::MAX)] {
            let item = WorkItem { q_tile: 0, rows: 0..1, kv_range: begin..end, segments: 0..1, targets: 0 };
            for lanes in 1..9 {
                let mut next = begin;
                for lane in 0..lanes {
                    let share = share(&item, lane, lanes, 16);
                    assert_eq!(share.start, next);
                    next = share.end;
                }
                assert_eq!(next, end);
            }
        }
    }
}
