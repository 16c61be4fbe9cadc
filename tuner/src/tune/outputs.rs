//! The files that a finished line leaves behind.

use crate::analysis::Analysis;
use crate::batch_regrets::batch_policies;
use crate::emit::Heuristics;
use crate::fit::PolicyRegret;
use crate::fit_settings::FitSettings;
use crate::gate::doubts;
use crate::invariant_cost::invariant_cost;
use crate::report_data::report_data;
use crate::store::{Recording, Timelines, timelines_path, write_whole};
use anyhow::Context as _;
use serde::Serialize;
use std::path::{Path, PathBuf};
use tilewright_reports::InvariantCost;

/// What was written, and what the selector is worth.
#[derive(Debug, Serialize)]
pub struct Outputs {
    /// The device.
    pub device: String,
    /// The measurements.
    #[serde(serialize_with = "crate::serde_text::path")]
    pub measurements: PathBuf,
    /// The timelines beside them, if any batch was to have one.
    #[serde(serialize_with = "crate::serde_text::optional_path")]
    pub timelines: Option<PathBuf>,
    /// The emitted module; none if the selector is doubted, without `--force`.
    #[serde(serialize_with = "crate::serde_text::optional_path")]
    pub module: Option<PathBuf>,
    /// The module that stays in the workspace, where the new one is not clearly better and lies in the run's folder.
    pub kept: Option<Kept>,
    /// Why the selector should not be used.
    pub doubts: Vec<String>,
    /// The report.
    #[serde(serialize_with = "crate::serde_text::path")]
    pub report: PathBuf,
    /// What the selector is worth, in a sentence; absent where nothing was held out.
    pub headline: Option<String>,
    /// Regret of each policy, on batches that were not fitted.
    pub held_out: Vec<Regret>,
    /// That of the selector and of PAT, on batches that were executed under each.
    pub batches: Vec<Regret>,
    /// What batch-invariant plans take over the selector; absent where none was executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invariant: Option<InvariantCost>,
}

/// A module that stays.
#[derive(Debug, Serialize)]
pub struct Kept {
    /// Where it lies.
    #[serde(serialize_with = "crate::serde_text::path")]
    pub module: PathBuf,
    /// Its time over the new selector's on the batches that were fitted, by geometric mean.
    pub over_new: f64,
}

/// Regret of one policy (time / oracle - 1).
#[derive(Debug, Serialize)]
pub struct Regret {
    /// Its name.
    pub policy: String,
    /// Mean.
    pub mean: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Worst.
    pub worst: f64,
}

impl Regret {
    fn of(policy: &PolicyRegret) -> Self {
        let PolicyRegret { name, mean, p95, worst, .. } = policy;
        Self { policy: name.clone(), mean: *mean, p95: *p95, worst: *worst }
    }
}

/// Writes the module and the report of an analysed recording that lies at `measurements`, its timelines beside it.
///
/// Without a `heuristics` crate the module and the selector as data lie in `folder`: the one to be copied into a crate, the other to be loaded. A selector that is doubted ([`doubts`]) has no module unless
/// `force` says so.
///
/// # Errors
/// The file system's, or a report that cannot be rendered.
pub fn write_outputs(
    recording: &Recording,
    timelines: &Timelines,
    analysis: &Analysis,
    settings: &FitSettings,
    (heuristics, force): (Option<&Heuristics>, bool),
    folder: &Path,
    measurements: PathBuf,
) -> anyhow::Result<Outputs> {
    let doubts = doubts(recording, analysis);
    let emitted = analysis.emitted(recording, settings);
    let module = match heuristics {
        _ if !doubts.is_empty() && !force => None,
        Some(heuristics) => Some(heuristics.write_module(&emitted)?),
        None => {
            let path = folder.join(format!("{}.rs", emitted.module));
            write_whole(&path, emitted.rust.as_bytes())?;
            write_whole(&path.with_extension("json"), emitted.json.as_bytes())?;
            Some(path)
        }
    };
    let report = folder.join("report.html");
    tilewright_reports::write(&report_data(recording, analysis, timelines), &report)
        .with_context(|| format!("{}: cannot write the report", report.display()))?;
    Ok(Outputs {
        device: recording.provenance.device.to_string(),
        timelines: (!timelines.is_empty()).then(|| timelines_path(&measurements)),
        measurements,
        module,
        kept: None,
        doubts,
        report,
        headline: analysis.over_best_tile().map(|over| over.to_string()),
        held_out: analysis.validation.policies.iter().map(Regret::of).collect(),
        batches: batch_policies(&recording.rows).iter().map(Regret::of).collect(),
        invariant: invariant_cost(&recording.rows),
    })
}
