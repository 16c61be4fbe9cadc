//! `tilewright emit`.

use super::report::{data, write_page, write_picture};
use super::{heuristics, read_all};
use crate::analysis::Analysis;
use crate::cli::exit::Ended;
use crate::cli::{EmitArguments, output};
use crate::store::{Recording, write};
use anyhow::Context as _;
use std::path::PathBuf;

/// Writes the modules of recorded measurements, or checks that they are up to date.
///
/// # Errors
/// Files that are no measurements, or the file system.
pub fn emit(arguments: &EmitArguments) -> anyhow::Result<Ended> {
    let heuristics = heuristics(arguments.heuristics.as_ref())?;
    let files: Vec<Vec<PathBuf>> = if arguments.measurements.is_empty() {
        heuristics.recordings()?.into_iter().map(|path| vec![path]).collect()
    } else {
        vec![arguments.measurements.clone()]
    };
    anyhow::ensure!(!files.is_empty(), "there are no measurements to emit from; run `tilewright tune` first");
    let recordings: Vec<Recording> = files.iter().map(|paths| read_all(paths)).collect::<Result<_, _>>()?;
    let mut modules = Vec::with_capacity(recordings.len());
    for (recording, paths) in recordings.iter().zip(&files) {
        let settings = &recording.provenance.fit;
        let analysis = Analysis::of(&recording.provenance, &recording.rows, settings)
            .with_context(|| recording.provenance.device.to_string())?;
        let emitted = analysis.emitted(recording, settings);
        if let Some(folder) = &arguments.reports {
            let data = data(recording, &analysis, paths)?;
            let page = folder.join(&emitted.module).with_extension("html");
            write_page(&data, &page)?;
            if let Some(svg) = tilewright_reports::picture(&data) {
                write_picture(&svg, &page.with_extension("svg"))?;
            }
        }
        modules.push(emitted);
    }
    if arguments.check {
        let differences = heuristics.differences(&modules)?;
        for difference in &differences {
            eprintln!("{difference}");
        }
        if !differences.is_empty() {
            eprintln!("run `tilewright emit` to write what the measurements give");
            return Ok(Ended::Differs);
        }
        return Ok(Ended::Done);
    }
    for (emitted, recording) in modules.iter().zip(&recordings) {
        let path = heuristics.write_module(emitted)?;
        // Measurements that came from elsewhere are kept beside the module, so that it can be checked from now on.
        let kept = heuristics.measurements_path(&emitted.module);
        if !arguments.measurements.is_empty() {
            write(&kept, recording)?;
        }
        output::lines([path.display().to_string()])?;
    }
    Ok(Ended::Done)
}
