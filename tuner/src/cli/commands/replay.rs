//! `tilewright replay`.

use super::{read_all, timelines_beside, tune::say};
use crate::analysis::Analysis;
use crate::cli::ReplayArguments;
use crate::cli::exit::Ended;
use crate::progress::Progress;
use crate::store::{unverified_variants, write, write_timelines_beside};
use crate::tune::write_outputs;

/// Runs fit, emit and report from recorded measurements.
///
/// # Errors
/// Files that are no measurements of one device, or the file system.
pub fn replay(arguments: &ReplayArguments) -> anyhow::Result<Ended> {
    let mut recording = read_all(&arguments.measurements)?;
    let timelines = timelines_beside(&arguments.measurements, &recording)?;
    let settings = arguments.fit.of(&recording.provenance.fit);
    recording.provenance.fit = settings.clone();
    let analysis = Analysis::of(&recording.provenance, &recording.rows, &settings)?;
    for ((class, with), tiles) in unverified_variants(&recording.rows, &analysis.model.tiles()) {
        let tiles: Vec<String> = tiles.iter().map(ToString::to_string).collect();
        let tiles = tiles.join(", ");
        tracing::warn!(
            "{class}: the selector may return {tiles}, never verified with {with}; `tune` does that"
        );
    }
    let folder = arguments.out.join(analysis.module_name());
    let measurements = folder.join("measurements.parquet");
    write(&measurements, &recording)?;
    write_timelines_beside(&measurements, &timelines)?;
    let outputs = write_outputs(
        &recording,
        &timelines,
        &analysis,
        &settings,
        (None, arguments.force),
        &folder,
        measurements,
    )?;
    say(&outputs, arguments.json, Progress::detect())
}
