//! `tilewright report`.

use super::{read_all, timelines_beside};
use crate::analysis::Analysis;
use crate::cli::exit::Ended;
use crate::cli::{ReportArguments, output};
use crate::report_data::report_data;
use crate::store::write_whole;
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
    let data = report_data(&recording, &analysis, &timelines);
    tilewright_reports::write(&data, path)
        .with_context(|| format!("{}: cannot write the report", path.display()))?;
    output::lines([path.display().to_string()])?;
    if let Some(path) = &arguments.picture {
        let svg = tilewright_reports::picture(&data).with_context(|| {
            format!("{}: no whole batch was timed: there is nothing to draw", path.display())
        })?;
        write_whole(path, svg.as_bytes())?;
        output::lines([path.display().to_string()])?;
    }
    Ok(Ended::Done)
}
