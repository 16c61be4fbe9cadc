//! Timelines of whole batches: what their places' time was spent with, predicted beside measured.

use crate::data::{BatchTimeline, Timelines};
use crate::format::{NOTHING, micros, percent};
use crate::table::{Cell, Table};
use crate::timeline_plot::{PHASES, TimelinePlot, timeline_plot};

/// What the section shows.
pub(crate) struct TimelineSection {
    pub(crate) verdict: String,
    /// Batches without a timeline, and why.
    pub(crate) skipped: Vec<String>,
    pub(crate) table: Table,
    /// Name, caption and drawing of each.
    pub(crate) figures: Vec<TimelineFigure>,
    /// Each phase that is drawn, by the name of its style, and what it is.
    pub(crate) legend: Vec<(&'static str, &'static str)>,
}

/// One timeline.
pub(crate) struct TimelineFigure {
    pub(crate) name: String,
    pub(crate) caption: String,
    pub(crate) svg: String,
}

/// The section's contents.
pub(crate) fn timeline_section(timelines: &Timelines) -> TimelineSection {
    let Timelines { processor, batches, skipped } = timelines;
    let waits = batches.iter().any(|batch| batch.waiting.is_some());
    let meanings = ["waiting for first tokens", "computing", "writing results"];
    TimelineSection {
        verdict: verdict(batches),
        skipped: skipped.iter().map(|(name, reason)| format!("{name} has no timeline: {reason}")).collect(),
        table: table(batches),
        figures: batches.iter().enumerate().map(|(i, batch)| figure(batch, processor, i)).collect(),
        legend: PHASES.into_iter().zip(meanings).skip(usize::from(!waits)).collect(),
    }
}

fn verdict(batches: &[BatchTimeline]) -> String {
    let mean =
        |of: &dyn Fn(&BatchTimeline) -> f64| batches.iter().map(of).sum::<f64>() / batches.len() as f64;
    match batches.len() {
        0 => "No timeline was recorded.".to_owned(),
        count => format!(
            "Of the places' time {} was idle where {} was predicted (means over {count} {}).",
            percent(mean(&|batch| batch.measured_idle)),
            percent(mean(&|batch| batch.predicted_idle)),
            if count == 1 { "batch" } else { "batches" }
        ),
    }
}

/// The time of a batch in µs, until the last item ended.
fn span_us(batch: &BatchTimeline) -> f64 {
    batch.bars.iter().map(|bar| bar.end_ns).max().unwrap_or(0) as f64 / 1e3
}

fn tiles(batch: &BatchTimeline) -> String {
    let each = batch.tiles.iter().map(|(name, places)| format!("{name} ({places} places)"));
    each.collect::<Vec<_>>().join(", ")
}

fn figure(batch: &BatchTimeline, processor: &str, number: usize) -> TimelineFigure {
    let TimelinePlot { svg, every } = timeline_plot(batch, processor, number);
    let waiting = batch.waiting.map(|share| format!("{} waiting for first tokens, ", percent(share)));
    let drawn = match every {
        1 => String::new(),
        every => format!(" One {processor} of {every} is drawn."),
    };
    TimelineFigure {
        name: batch.name.clone(),
        caption: format!(
            "{} µs on {} {processor}s; idle share predicted {} / measured {}; {}{} computing, {} writing. Tiles: {}.{drawn}",
            micros(span_us(batch)),
            batch.processors,
            percent(batch.predicted_idle),
            percent(batch.measured_idle),
            waiting.unwrap_or_default(),
            percent(batch.computing),
            percent(batch.writing),
            tiles(batch),
        ),
        svg,
    }
}

fn table(batches: &[BatchTimeline]) -> Table {
    let header = [
        "batch",
        "forward µs",
        "idle, predicted",
        "idle, measured",
        "waiting",
        "computing",
        "writing",
        "bars",
        "tiles",
    ];
    let share = |share: f64| Cell::number(share, percent(share));
    let rows = batches.iter().map(|batch| {
        let span = span_us(batch);
        vec![
            Cell::text(&batch.name),
            Cell::number(span, micros(span)),
            share(batch.predicted_idle),
            share(batch.measured_idle),
            batch.waiting.map_or_else(|| Cell::number(f64::NAN, NOTHING.to_owned()), share),
            share(batch.computing),
            share(batch.writing),
            Cell::number(batch.bars.len() as f64, batch.bars.len().to_string()),
            Cell::text(tiles(batch)),
        ]
    });
    Table {
        caption: "Shares of the places' time from the first work item's begin to the last one's end"
            .to_owned(),
        header: header.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TimelineBar;

    fn batch(predicted_idle: f64, waiting: Option<f64>) -> BatchTimeline {
        let bar =
            TimelineBar { processor: 0, begin_ns: 0, ready_ns: None, computed_ns: 9_000, end_ns: 12_340 };
        BatchTimeline {
            name: "a".to_owned(),
            tiles: vec![("m16n64w4s2".to_owned(), 4), ("m64n64w4s2".to_owned(), 2)],
            processors: 2,
            predicted_idle,
            measured_idle: 0.25,
            waiting,
            computing: 0.5,
            writing: 0.125,
            bars: vec![bar; 2],
        }
    }

    fn section(batches: Vec<BatchTimeline>) -> TimelineSection {
        let skipped = vec![("b".to_owned(), "the budget was spent".to_owned())];
        timeline_section(&Timelines { processor: "SM".to_owned(), batches, skipped })
    }

    #[test]
    fn idle_time_is_stated_predicted_beside_measured() {
        let shown = section(vec![batch(0.125, Some(0.0625)), batch(0.25, None)]);
        insta::assert_snapshot!(
            shown.verdict,
            @"Of the places' time 25.0 % was idle where 18.8 % was predicted (means over 2 batches)."
        );
        insta::assert_snapshot!(
            shown.figures[0].caption,
            @"12.3 µs on 2 SMs; idle share predicted 12.5 % / measured 25.0 %; 6.2 % waiting for first tokens, 50.0 % computing, 12.5 % writing. Tiles: m16n64w4s2 (4 places), m64n64w4s2 (2 places)."
        );
        assert!(shown.figures[1].caption.contains("measured 25.0 %; 50.0 % computing"));
        assert_eq!(shown.skipped, ["b has no timeline: the budget was spent"]);
        assert_eq!(shown.legend.len(), 3);
        assert_eq!(shown.table.rows[1][4].text, NOTHING);
    }

    #[test]
    fn unknown_phases_have_no_mark() {
        let untold = section(vec![batch(0.125, None)]);
        assert_eq!(untold.legend, [("computing", "computing"), ("writing", "writing results")]);
        assert_eq!(section(Vec::new()).verdict, "No timeline was recorded.");
    }
}
