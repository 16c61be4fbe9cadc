//! `tilewright replay`.

use super::{read_all, timelines_beside, tune::say};
use crate::analysis::Analysis;
use crate::cli::ReplayArguments;
use crate::cli::exit::Ended;
use crate::store::{write, write_timelines_beside};
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
    let folder = arguments.out.join(analysis.module_name());
    let measurements = folder.join("measurements.parquet");
    write(&measurements, &recording)?;
    write_timelines_beside(&measurements, &timelines)?;
    let outputs = write_outputs(&recording, &timelines, &analysis, &settings, None, &folder, measurements)?;
    say(&outputs, arguments.json)?;
    Ok(Ended::Done)
}
