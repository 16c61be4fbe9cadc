//! `tilewright report`.

use super::{read_all, timelines_beside};
use crate::analysis::Analysis;
use crate::cli::exit::Ended;
use crate::cli::{ReportArguments, output};
use crate::report_data::report_data;
use crate::store::{Recording, write_whole};
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use tilewright_reports::ReportData;

/// Writes the report of recorded measurements.
///
/// # Errors
/// Files that are no measurements of one device, or the file system.
pub fn report(arguments: &ReportArguments) -> anyhow::Result<Ended> {
    let recording = read_all(&arguments.measurements)?;
    let analysis = Analysis::of(&recording.provenance, &recording.rows, &recording.provenance.fit)?;
    let data = data(&recording, &analysis, &arguments.measurements)?;
    write_page(&data, &arguments.output)?;
    if let Some(path) = &arguments.picture {
        let svg = tilewright_reports::picture(&data).with_context(|| {
            format!("{}: no whole batch was timed: there is nothing to draw", path.display())
        })?;
        write_picture(&svg, path)?;
    }
    Ok(Ended::Done)
}

/// What the report of a recording shows, with the timelines beside its files.
pub(super) fn data(
    recording: &Recording,
    analysis: &Analysis,
    measurements: &[PathBuf],
) -> anyhow::Result<ReportData> {
    let timelines = timelines_beside(measurements, recording)?;
    Ok(report_data(recording, analysis, &timelines))
}

pub(super) fn write_page(data: &ReportData, path: &Path) -> anyhow::Result<()> {
    tilewright_reports::write(data, path)
        .with_context(|| format!("{}: cannot write the report", path.display()))?;
    output::lines([path.display().to_string()])?;
    Ok(())
}

pub(super) fn write_picture(svg: &str, path: &Path) -> anyhow::Result<()> {
    write_whole(path, svg.as_bytes())?;
    output::lines([path.display().to_string()])?;
    Ok(())
}
