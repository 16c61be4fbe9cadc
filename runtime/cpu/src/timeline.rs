//! When the threads of a step computed what, and which of them (PAT, figure 12).

use super::queue::Unit;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// When a thread computed a work item of a KV head, or its share of one. Times are nanoseconds since the first of them began. Of KV heads that
/// are computed together each gets an equal part of their time, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitTimes {
    /// Index into [`tilewright_plan::Plan::work_items`].
    pub item: u32,
    /// The KV head.
    pub kv_head: u32,
    /// Which share of the item, from 0; items of tiles with one warp have only one.
    pub share: u32,
    /// The thread, from 0.
    pub thread: u32,
    /// It turned to the item.
    pub begin: u64,
    /// The last token was computed.
    pub computed: u64,
    /// Its results were written, or its share of them was kept.
    pub end: u64,
}

/// What threads note while they take units.
#[derive(Debug)]
pub struct Recorder {
    origin: Instant,
    threads: Vec<Mutex<Vec<UnitTimes>>>,
}

/// One unit that is being computed.
pub(super) struct Clock<'a> {
    recorder: &'a Recorder,
    times: UnitTimes,
    heads: u32,
}

impl Recorder {
    pub(super) fn new(threads: usize) -> Self {
        Self { origin: Instant::now(), threads: (0..threads).map(|_| Mutex::default()).collect() }
    }

    /// A thread begins a unit.
    pub(super) fn begin(&self, unit: &Unit, thread: usize) -> Clock<'_> {
        let times = UnitTimes {
            item: unit.item as u32,
            kv_head: unit.kv_head,
            share: unit.lane,
            thread: thread as u32,
            begin: self.now(),
            computed: 0,
            end: 0,
        };
        Clock { recorder: self, times, heads: unit.heads }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// All units, in the order of work items, KV heads and shares.
    pub(super) fn into_times(self) -> Vec<UnitTimes> {
        let threads = self.threads.into_iter();
        let mut all: Vec<UnitTimes> =
            threads.flat_map(|thread| thread.into_inner().unwrap_or_else(PoisonError::into_inner)).collect();
        let first = all.iter().map(|times| times.begin).min().unwrap_or(0);
        for times in &mut all {
            for time in [&mut times.begin, &mut times.computed, &mut times.end] {
                *time -= first;
            }
        }
        all.sort_unstable_by_key(|times| (times.item, times.kv_head, times.share));
        all
    }
}

impl Clock<'_> {
    /// All tokens are computed.
    pub(super) fn computed(&mut self) {
        self.times.computed = self.recorder.now();
    }

    /// The unit is done.
    pub(super) fn end(mut self) {
        self.times.end = self.recorder.now();
        let thread = &self.recorder.threads[self.times.thread as usize];
        let UnitTimes { kv_head, begin, computed, end, .. } = self.times;
        let part = |time: u64, head: u32| (time - begin) * u64::from(head) / u64::from(self.heads);
        let of_head = |head: u32| UnitTimes {
            kv_head: kv_head + head,
            begin: begin + part(end, head),
            computed: begin + part(end, head) + part(computed, 1),
            end: begin + part(end, head + 1),
            ..self.times
        };
        thread.lock().unwrap_or_else(PoisonError::into_inner).extend((0..self.heads).map(of_head));
    }
}

#[cfg(test)]
mod tests {
    use crate::{CpuBackend, DecodeArgs, KvCache};
    use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
    use tilewright_plan::{KvStrides, PageTable, Plan, PlanOptions};

    #[test]
    fn every_share_of_every_item_is_recorded_once() {
        let geometry = Geometry { q_heads: 4, kv_heads: 2, head_dim: 64, page_size: 16, dtype: Dtype::F32 };
        let entries: Vec<i32> = (0..64).collect();
        let seq_lens = [40, 16, 256, 128];
        let table = PageTable::new(&entries, 16, &seq_lens, 16).unwrap();
        let tile = |warps| Tile::new(2, 16, warps, 1);
        let select = |shape: &PackShape| if shape.kv_len > 100 { tile(3) } else { tile(1) };
        let plan = Plan::build(&geometry, &table, &PlanOptions::default(), select).unwrap();
        let (pages, query) = (vec![0.5f32; 64 * 16 * 2 * 64], vec![0.25f32; 4 * 4 * 64]);
        let mut backend = CpuBackend::new(3);
        let mut outputs = [vec![0.0f32; query.len()], vec![1.0; query.len()]];
        let mut units = Vec::new();
        for (recorded, output) in [false, true].into_iter().zip(&mut outputs) {
            let cache = KvCache { keys: &pages, values: &pages, strides: KvStrides::nhd(&geometry) };
            let args = DecodeArgs { scale: Some(0.125), ..DecodeArgs::new(&query, cache, output) };
            match recorded {
                false => backend.decode(&plan, args).unwrap(),
                true => units = backend.record(&plan, args).unwrap(),
            }
        }
        assert_eq!(outputs[0], outputs[1]);

        let mut expected = Vec::new();
        for group in plan.tile_groups() {
            let shares = u32::from(group.tile.warps);
            let of = |item| (0..2).flat_map(move |head| (0..shares).map(move |share| (item, head, share)));
            expected.extend(group.items.clone().flat_map(of));
        }
        assert!(expected.iter().any(|&(_, _, share)| share == 2), "some items are shared");
        expected.sort_unstable();
        let found: Vec<_> = units.iter().map(|unit| (unit.item, unit.kv_head, unit.share)).collect();
        assert_eq!(found, expected);
        assert_eq!(units.iter().map(|unit| unit.begin).min(), Some(0));
        for unit in &units {
            assert!(unit.begin <= unit.computed && unit.computed <= unit.end && unit.thread < 3, "{unit:?}");
        }
        for thread in 0..3 {
            let mut own: Vec<_> = units.iter().filter(|unit| unit.thread == thread).collect();
            own.sort_unstable_by_key(|unit| (unit.begin, unit.end));
            assert!(own.is_sorted_by(|a, b| a.end <= b.begin), "{own:?}");
        }
    }
}
