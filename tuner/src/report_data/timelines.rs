//! Timelines of whole batches, as the report shows them.

use crate::store::{self, Phases};
use reports::{BatchTimeline, TimelineBar, Timelines};
use tilewright_heuristics::Backend;
use tilewright_reports as reports;

/// What was recorded; `None` if nothing was. A timeline under another selector than the report's says so in its name.
pub(super) fn timelines(recorded: &store::Timelines, selector_hash: &str) -> Option<Timelines> {
    if recorded.is_empty() {
        return None;
    }
    let named = |batch: &str, hash: &str| match hash == selector_hash {
        true => batch.to_owned(),
        false => format!("{batch} (under another selector, {hash})"),
    };
    let skipped = recorded.skipped.iter();
    Some(Timelines {
        processor: match recorded.device.backend.parse() {
            Ok(Backend::Cpu) => "thread".to_owned(),
            Ok(Backend::Cuda) | Err(_) => "SM".to_owned(),
        },
        batches: recorded
            .batches
            .iter()
            .map(|known| batch(named(&known.batch, &known.selector_hash), &known.timeline))
            .collect(),
        skipped: skipped.map(|skip| (named(&skip.batch, &skip.selector_hash), skip.reason.clone())).collect(),
    })
}

fn batch(name: String, timeline: &store::Timeline) -> BatchTimeline {
    let Phases { waiting, computing, writing, idle } = timeline.phases();
    let bar = |entry: &store::TimelineEntry| TimelineBar {
        processor: entry.processor,
        begin_ns: entry.begin_ns,
        ready_ns: entry.ready_ns,
        computed_ns: entry.computed_ns,
        end_ns: entry.end_ns,
    };
    BatchTimeline {
        name,
        tiles: timeline.tiles.iter().map(|tile| (tile.tile.to_string(), tile.places)).collect(),
        processors: timeline.processors,
        predicted_idle: timeline.predicted_idle,
        measured_idle: idle,
        waiting,
        computing,
        writing,
        bars: timeline.entries.iter().map(bar).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SkippedTimeline;
    use crate::store::test_data::{batch_timeline, provenance};

    #[test]
    fn what_was_recorded_is_shown_and_what_was_not_with_its_reason() {
        let mut recorded = store::Timelines::none_of(provenance().device);
        assert_eq!(timelines(&recorded, "hash"), None);
        recorded.keep(batch_timeline("a"));
        recorded.keep(store::BatchTimeline { selector_hash: "old".to_owned(), ..batch_timeline("b") });
        let reason = "the budget was spent".to_owned();
        let (batch, selector_hash) = ("c".to_owned(), "hash".to_owned());
        recorded.skip(SkippedTimeline { batch, selector_hash, reason: reason.clone() });
        let shown = timelines(&recorded, "hash").unwrap();
        assert_eq!(shown.processor, "thread");
        assert_eq!(shown.skipped, [("c".to_owned(), reason)]);
        let names: Vec<&str> = shown.batches.iter().map(|batch| batch.name.as_str()).collect();
        assert_eq!(names, ["a", "b (under another selector, old)"]);
        let first = &shown.batches[0];
        assert_eq!(first.tiles, [("m4n64w1s1".to_owned(), 2), ("m8n64w1s1".to_owned(), 4)]);
        assert!((first.measured_idle - 0.5).abs() < 1e-12 && first.predicted_idle == 1.0 / 3.0);
        let bar = TimelineBar { processor: 1, begin_ns: 60, ready_ns: None, computed_ns: 100, end_ns: 100 };
        assert_eq!((first.processors, first.bars[1]), (2, bar));
        recorded.device.backend = "cuda".to_owned();
        assert_eq!(timelines(&recorded, "hash").unwrap().processor, "SM");
    }
}
