//! Launch modes: which is best, in a sentence and in tables.

use crate::data::{LaunchModeResult, Launching};
use crate::format::{NOTHING, micros, ratio};
use crate::table::{Cell, Table};

/// What the section shows.
pub(crate) struct Launches {
    pub(crate) verdict: String,
    /// Why some modes could not be had everywhere.
    pub(crate) failures: Vec<String>,
    pub(crate) modes: Table,
    pub(crate) families: Table,
    pub(crate) batches: Table,
}

/// The section's contents.
pub(crate) fn launches(launching: &Launching) -> Launches {
    let failed = launching.modes.iter().filter(|mode| mode.failed > 0);
    Launches {
        verdict: verdict(launching),
        failures: failed
            .map(|mode| {
                format!("{} failed on {} batches; on one of them: {}", mode.name, mode.failed, mode.failure)
            })
            .collect(),
        modes: modes(launching),
        families: families(launching),
        batches: batches(launching),
    }
}

fn verdict(launching: &Launching) -> String {
    let count = launching.batches.len();
    let Some(default) = launching.modes.first() else { return "No launch mode was measured.".to_owned() };
    // Of modes that are equally good the first is named, and the default is the first.
    let mut best: &LaunchModeResult = default;
    for mode in &launching.modes {
        if mode.over_default < best.over_default {
            best = mode;
        }
    }
    if best.name == default.name {
        format!("Over all {count} batches no launch mode is better than the default, {}.", default.name)
    } else {
        format!(
            "Over all {count} batches the best launch mode is {}: {} of the time of the default, {} (geometric mean). It is the \
             fastest on {} of them.",
            best.name,
            ratio(best.over_default),
            default.name,
            best.fastest
        )
    }
}

fn figure(value: f64) -> Cell {
    Cell::number(value, ratio(value))
}

fn count(value: u64) -> Cell {
    Cell::number(value as f64, value.to_string())
}

fn header(first: &[&str], launching: &Launching) -> Vec<String> {
    let names = launching.modes.iter().map(|mode| mode.name.clone());
    first.iter().map(|name| (*name).to_owned()).chain(names).collect()
}

fn modes(launching: &Launching) -> Table {
    let names =
        ["mode", "over the default, all", "over the default, timed", "timed on", "fastest on", "failed on"];
    let rows = launching.modes.iter().map(|mode| {
        vec![
            Cell::text(&mode.name),
            figure(mode.over_default),
            figure(mode.measured_over_default.unwrap_or(f64::NAN)),
            count(mode.measured),
            count(mode.fastest),
            count(mode.failed),
        ]
    });
    Table {
        caption: "Time over the default's: geometric means over all batches, and over those on which the mode was timed".to_owned(),
        header: names.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

fn families(launching: &Launching) -> Table {
    let rows = launching.families.iter().map(|family| {
        let figures = family.over_default.iter().copied().map(figure);
        [Cell::text(&family.name), count(family.batches)].into_iter().chain(figures).collect()
    });
    Table {
        caption: "Time over the default's, geometric mean over the batches of each scenario".to_owned(),
        header: header(&["scenario", "batches"], launching),
        rows: rows.collect(),
    }
}

fn batches(launching: &Launching) -> Table {
    let rows = launching.batches.iter().map(|batch| {
        let figures = batch.over_default.iter().map(|over| match over {
            Some(over) => figure(*over),
            None => Cell::number(f64::NAN, NOTHING.to_owned()),
        });
        let default = Cell::number(batch.default_us, micros(batch.default_us));
        [Cell::text(&batch.name), default].into_iter().chain(figures).collect()
    });
    Table {
        caption: "Median over the default's median; a dash where a mode was not timed".to_owned(),
        header: header(&["batch", "default µs"], launching),
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::LaunchBatch;

    fn mode(name: &str, over_default: f64) -> LaunchModeResult {
        LaunchModeResult {
            name: name.to_owned(),
            over_default,
            measured_over_default: None,
            measured: 0,
            fastest: 1,
            failed: 0,
            failure: String::new(),
        }
    }

    fn launching(modes: Vec<LaunchModeResult>) -> Launching {
        let batch = LaunchBatch { name: "b".to_owned(), default_us: 1.0, over_default: Vec::new() };
        Launching { modes, families: Vec::new(), batches: vec![batch; 3] }
    }

    #[test]
    fn the_best_way_is_named_and_the_default_where_none_is_better() {
        let best = [mode("serial", 1.0), mode("streams", 0.9), mode("single", 0.812)];
        insta::assert_snapshot!(
            verdict(&launching(best.to_vec())),
            @"Over all 3 batches the best launch mode is single: 0.81 of the time of the default, serial (geometric mean). It is the fastest on 1 of them."
        );
        insta::assert_snapshot!(
            verdict(&launching(vec![mode("serial", 1.0), mode("streams", 1.0), mode("single", f64::NAN)])),
            @"Over all 3 batches no launch mode is better than the default, serial."
        );
        assert_eq!(verdict(&launching(Vec::new())), "No launch mode was measured.");
    }

    #[test]
    fn ways_that_failed_say_why() {
        let failed = LaunchModeResult { failed: 2, failure: "no room".to_owned(), ..mode("single", 1.0) };
        let shown = launches(&launching(vec![mode("serial", 1.0), failed]));
        assert_eq!(shown.failures, ["single failed on 2 batches; on one of them: no room"]);
    }
}
