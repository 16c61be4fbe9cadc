//! `tilewright report`.

use super::{read_all, timelines_beside};
use crate::analysis::Analysis;
use crate::cli::exit::Ended;
use crate::cli::{ReportArguments, output};
use crate::report_data::report_data;
use anyhow::Context as _;

/// Writes the report of recorded measurements.
///
/// # Errors
/// Files that are no measurements of one device, or the file system.
pub fn report(arguments: &ReportArguments) -> anyhow::Result<Ended> {
    let recording = read_all(&arguments.measurements)?;
    let analysis = Analysis::of(&recording.provenance, &recording.rows, &recording.provenance.fit)?;
    let timelines = timelines_beside(&arguments.measurements, &recording)?;
    let path = &arguments.output;
    tilewright_reports::write(&report_data(&recording, &analysis, &timelines), path)
        .with_context(|| format!("{}: cannot write the report", path.display()))?;
    output::lines([path.display().to_string()])?;
    Ok(Ended::Done)
}
