//! Timelines of whole batches: when each work item of one execution ran, and where (PAT, figure 12).

use super::DeviceRecord;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tilewright_heuristics::Tile;

/// One execution of a plan's forward. Times are nanoseconds since the first work item began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Multiprocessors or threads of the device.
    pub processors: u32,
    /// The plan's tiles, in the order in which they were launched.
    pub tiles: Vec<TilePlaces>,
    /// The share of the places' time that the plan was predicted to leave idle, 0 to 1, by the prices that planned it.
    #[serde(with = "crate::serde_text")]
    pub predicted_idle: f64,
    /// One entry a work item and KV head, or a thread's share of that.
    pub entries: Vec<TimelineEntry>,
}

/// A tile, and its places: the CTAs or threads of it that the device holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TilePlaces {
    /// The tile.
    #[serde(with = "crate::serde_text")]
    pub tile: Tile,
    /// Its places.
    pub places: u32,
}

/// When a work item of a KV head ran, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// Its tile, as an index of [`Timeline::tiles`].
    pub tile: u32,
    /// The work item, in the plan's order.
    pub item: u32,
    /// The KV head.
    pub kv_head: u32,
    /// Which share of the item a thread took; 0 where items are not shared.
    pub share: u32,
    /// The multiprocessor or thread.
    pub processor: u32,
    /// It was turned to.
    pub begin_ns: u64,
    /// Its first tokens had arrived; absent where that is not told, or it has none.
    pub ready_ns: Option<u64>,
    /// Its last tokens were computed.
    pub computed_ns: u64,
    /// Its results were written.
    pub end_ns: u64,
}

impl TimelineEntry {
    /// The same with each time in the order in which things happen. Clocks of a device may differ by a tick.
    #[must_use]
    pub fn in_order(self) -> Self {
        let ready_ns = self.ready_ns.map(|ready| ready.max(self.begin_ns));
        let computed_ns = self.computed_ns.max(ready_ns.unwrap_or(self.begin_ns));
        Self { ready_ns, computed_ns, end_ns: self.end_ns.max(computed_ns), ..self }
    }
}

/// Shares of the places' time, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phases {
    /// From the begin of items until their first tokens had arrived; absent where no item tells it.
    pub waiting: Option<f64>,
    /// From then until their last tokens were computed.
    pub computing: f64,
    /// From then until their results were written.
    pub writing: f64,
    /// Idle.
    pub idle: f64,
}

impl Timeline {
    /// Until the last work item ended.
    pub fn span_ns(&self) -> u64 {
        self.entries.iter().map(|entry| entry.end_ns).max().unwrap_or(0)
    }

    /// What the places' time was spent with. A work item takes one of the places that its own tile has.
    pub fn phases(&self) -> Phases {
        let span = self.span_ns() as f64;
        let share = |of: &dyn Fn(&TimelineEntry) -> u64| {
            let places = |entry: &TimelineEntry| self.tiles.get(entry.tile as usize).map_or(1, |t| t.places);
            let each = self.entries.iter().map(|entry| of(entry) as f64 / f64::from(places(entry).max(1)));
            if span > 0.0 { each.sum::<f64>() / span } else { 0.0 }
        };
        let waiting = share(&|entry| entry.ready_ns.map_or(0, |ready| ready - entry.begin_ns));
        let computing = share(&|entry| entry.computed_ns - entry.ready_ns.unwrap_or(entry.begin_ns));
        let writing = share(&|entry| entry.end_ns - entry.computed_ns);
        let told = self.entries.iter().any(|entry| entry.ready_ns.is_some());
        let idle = if span > 0.0 { (1.0 - waiting - computing - writing).max(0.0) } else { 0.0 };
        Phases { waiting: told.then_some(waiting), computing, writing, idle }
    }
}

/// The timeline of a batch under a policy its tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchTimeline {
    /// The batch.
    pub batch: String,
    /// What it was executed under, as measurements name it.
    pub choice: String,
    /// Content hash of the selector that chose.
    pub selector_hash: String,
    /// The execution.
    pub timeline: Timeline,
}

/// A batch whose timeline was to be recorded and was not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkippedTimeline {
    /// The batch.
    pub batch: String,
    /// Content hash of the selector that was to choose.
    pub selector_hash: String,
    /// Why it was not.
    pub reason: String,
}

/// The timelines of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Timelines {
    /// The device.
    pub device: DeviceRecord,
    /// Those that were recorded, in that order.
    pub batches: Vec<BatchTimeline>,
    /// Those that were not.
    pub skipped: Vec<SkippedTimeline>,
}

impl Timelines {
    /// None yet, of a device.
    pub fn none_of(device: DeviceRecord) -> Self {
        Self { device, batches: Vec::new(), skipped: Vec::new() }
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.skipped.is_empty()
    }

    /// Takes one up, in place of what was known of its batch under the same selector.
    pub fn keep(&mut self, timeline: BatchTimeline) {
        self.forget(&timeline.batch, &timeline.selector_hash);
        self.batches.push(timeline);
    }

    /// Says of a batch why it has none.
    pub fn skip(&mut self, skipped: SkippedTimeline) {
        self.forget(&skipped.batch, &skipped.selector_hash);
        self.skipped.push(skipped);
    }

    /// Takes up all that others have.
    pub fn extend(&mut self, others: Self) {
        others.batches.into_iter().for_each(|timeline| self.keep(timeline));
        others.skipped.into_iter().for_each(|skipped| self.skip(skipped));
    }

    fn forget(&mut self, batch: &str, selector_hash: &str) {
        self.batches.retain(|known| known.batch != batch || known.selector_hash != selector_hash);
        self.skipped.retain(|known| known.batch != batch || known.selector_hash != selector_hash);
    }
}

/// How files of timelines end, behind the name of the measurements that they belong to.
const ENDING: &str = "timelines.parquet";

/// Where the timelines of measurements lie: beside them.
pub fn timelines_path(measurements: &Path) -> PathBuf {
    measurements.with_extension(ENDING)
}

/// Whether a file is one of timelines, by its name.
pub fn is_timelines_path(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_suffix(ENDING).is_some_and(|before| before.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_data::{batch_timeline, provenance};

    #[test]
    fn an_item_takes_one_of_the_places_of_its_own_tile() {
        // 100 ns: tile 0 has two places and one item of 10 + 50 + 20, tile 1 four places and one of 40 + 0.
        let Phases { waiting, computing, writing, idle } = batch_timeline("a").timeline.phases();
        assert!((waiting.unwrap() - 0.05).abs() < 1e-12, "{waiting:?}");
        assert!((computing - (0.25 + 0.1)).abs() < 1e-12, "{computing}");
        assert!((writing - 0.1).abs() < 1e-12, "{writing}");
        assert!((idle - 0.5).abs() < 1e-12, "{idle}");
        let mut untold = batch_timeline("a").timeline;
        untold.entries.iter_mut().for_each(|entry| entry.ready_ns = None);
        let phases = untold.phases();
        assert_eq!(phases.waiting, None);
        assert!((phases.computing - 0.4).abs() < 1e-12 && (phases.idle - 0.5).abs() < 1e-12, "{phases:?}");
        let nothing = Timeline { entries: Vec::new(), ..untold }.phases();
        assert_eq!((nothing.computing, nothing.idle), (0.0, 0.0));
    }

    #[test]
    fn times_are_put_in_order() {
        let entry = TimelineEntry { begin_ns: 9, ready_ns: Some(8), computed_ns: 7, end_ns: 6, ..entry() };
        let sorted = TimelineEntry { begin_ns: 9, ready_ns: Some(9), computed_ns: 9, end_ns: 9, ..entry };
        assert_eq!(entry.in_order(), sorted);
        assert_eq!(sorted.in_order(), sorted);
        let unready = TimelineEntry { begin_ns: 9, ready_ns: None, computed_ns: 10, end_ns: 11, ..entry };
        assert_eq!(unready.in_order(), unready);
    }

    fn entry() -> TimelineEntry {
        batch_timeline("a").timeline.entries[0]
    }

    #[test]
    fn the_last_word_on_a_batch_and_selector_counts() {
        let skipped = |batch: &str, selector: &str| SkippedTimeline {
            batch: batch.to_owned(),
            selector_hash: selector.to_owned(),
            reason: "no time".to_owned(),
        };
        let mut timelines = Timelines::none_of(provenance().device);
        assert!(timelines.is_empty());
        timelines.skip(skipped("a", "hash"));
        timelines.skip(skipped("a", "other"));
        timelines.keep(batch_timeline("a"));
        assert_eq!((timelines.batches.len(), &timelines.skipped[..]), (1, &[skipped("a", "other")][..]));
        let mut others = Timelines::none_of(provenance().device);
        others.keep(batch_timeline("a"));
        others.keep(batch_timeline("b"));
        others.skip(skipped("c", "hash"));
        timelines.extend(others);
        let names: Vec<&str> = timelines.batches.iter().map(|timeline| timeline.batch.as_str()).collect();
        assert_eq!((names, timelines.skipped.len()), (vec!["a", "b"], 2));
    }

    #[test]
    fn timelines_lie_beside_their_measurements() {
        let path = timelines_path(Path::new("folder/nvidia_h200.parquet"));
        assert_eq!(path, Path::new("folder/nvidia_h200.timelines.parquet"));
        assert!(is_timelines_path(&path));
        for other in ["folder/nvidia_h200.parquet", "folder.timelines.parquet/a.parquet", "timelines.parquet"]
        {
            assert!(!is_timelines_path(Path::new(other)), "{other}");
        }
    }
}
