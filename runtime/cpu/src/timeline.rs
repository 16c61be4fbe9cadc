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
