//! What a report shows. The tuner fills this in; nothing here knows where the figures come from.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Everything that one report shows, for one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportData {
    /// The device's full name.
    pub device: String,
    /// `cpu` or `cuda`.
    pub backend: String,
    /// Name and value of what describes the run: versions, hashes, caches, clocks, counts; in the order to show.
    pub environment: Vec<(String, String)>,
    /// The exact command that made the measurements.
    pub command: String,
    /// How caches were made cold before each sample, in a sentence.
    pub cold_caches: String,
    /// How the limit was found, in a sentence.
    pub limit_method: String,
    /// What a reader must know before trusting the figures; each with its remedy.
    pub warnings: Vec<String>,
    /// What the selector is worth in a sentence; absent where nothing was held out.
    #[serde(default)]
    pub headline: Option<String>,
    /// Policies, compared on batches that were not fitted, the fitted selector first.
    pub held_out: Vec<Policy>,
    /// The selector and PAT compared on batches that were executed under each of them.
    pub batches: Vec<Policy>,
    /// What batch-invariant plans take over the selector; absent where no batch was executed with them.
    #[serde(default)]
    pub invariant: Option<InvariantCost>,
    /// Launch modes the selector's plans, compared on whole batches; absent where only the default was measured.
    #[serde(default)]
    pub launching: Option<Launching>,
    /// When each work item of a few whole batches ran, and where; absent where none was recorded.
    #[serde(default)]
    pub timelines: Option<Timelines>,
    /// One entry a scenario batch.
    pub scenarios: Vec<ScenarioResult>,
    /// Names of a batch's features, in the order of [`WorkloadResult::features`].
    pub features: Vec<String>,
    /// Names of a tile's parameters, in the order of [`TileResult::tile`] and [`SpaceRow::tile`]. `m` and `n` are among them.
    pub parameters: Vec<String>,
    /// One entry a batch that was measured under all sets of tiles.
    pub workloads: Vec<WorkloadResult>,
    /// Every tile of the space with its verdict, for each class of kernels.
    pub space: Vec<SpaceRow>,
    /// The fitted tree.
    pub tree: TreeNode,
    /// What the fit proves about the tree, in a sentence (optimal, or the gap that remains).
    pub proof: String,
    /// The sets that the tree may choose, by name, with the number of batches that choose each.
    pub portfolio: Vec<(String, u64)>,
    /// The tile for classes of kernels that were not measured.
    pub safe_default: String,
}

/// One policy, and its regret (time / oracle - 1, so 0.02 is 2 %).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Its name, of [`policy_names`](crate::policy_names) where that has one, e.g. `selector`, `best single tile (m4n64w1s1)`, `PAT's rules`, `winner-label CART`.
    pub name: String,
    /// Mean regret.
    pub mean: f64,
    /// 95th percentile of the regret.
    pub p95: f64,
    /// Largest regret.
    pub worst: f64,
    /// How many workloads or batches it was judged on.
    pub count: u64,
}

/// What batch-invariant plans take over the selector's plans of the same batches, which took turns with them. Ratios are absent where none was timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InvariantCost {
    /// Their time over the selector's, geometric mean.
    pub over_selector: Option<f64>,
    /// The same, 95th percentile.
    pub p95: Option<f64>,
    /// The same, the largest.
    pub worst: Option<f64>,
    /// The batch that it is of; empty if there is none.
    pub worst_batch: String,
    /// On how many batches they were timed.
    pub batches: u64,
    /// On how many batches they failed.
    pub failed: u64,
    /// Why, on one of them; empty if there is none.
    pub failure: String,
}

impl InvariantCost {
    /// What its row is called in tables of regrets, which are over the best set of each batch otherwise, and arithmetic means.
    pub const ROW: &str = "batch-invariant, over the selector (geometric mean)";
}

impl fmt::Display for InvariantCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batches, worst_batch, failed, failure, .. } = self;
        match (self.over_selector, self.worst) {
            (Some(over), Some(worst)) => write!(
                f,
                "Batch-invariant plans take {over:.3} of the selector's time on {batches} batches that were executed under both (geometric mean; {worst:.3} at \
                 worst, {worst_batch})."
            )?,
            _ => f.write_str("No batch-invariant plan was timed.")?,
        }
        if *failed > 0 {
            write!(f, " They failed on {failed} batches; on one of them: {failure}.")?;
        }
        Ok(())
    }
}

/// Launch modes the same plans, compared with one of them, the default. A batch on which a mode was not timed, for its launches would be
/// the default's or it cannot be had, counts as 1 in what is over all batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launching {
    /// The modes, the default first.
    pub modes: Vec<LaunchModeResult>,
    /// The modes on the batches of each scenario.
    pub families: Vec<LaunchFamily>,
    /// The modes on each batch.
    pub batches: Vec<LaunchBatch>,
}

/// One launch mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchModeResult {
    /// Its name, e.g. `single+last-cta`.
    pub name: String,
    /// Its time over the default's, geometric mean over all batches.
    pub over_default: f64,
    /// The same over those on which it was timed; absent if it never was.
    pub measured_over_default: Option<f64>,
    /// On how many batches it was timed.
    pub measured: u64,
    /// On how many batches it was the fastest.
    pub fastest: u64,
    /// On how many batches it could not be had or failed.
    pub failed: u64,
    /// Why, on one of them; empty if there is none.
    pub failure: String,
}

/// Launch modes on the batches of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchFamily {
    /// The scenario.
    pub name: String,
    /// Its batches.
    pub batches: u64,
    /// Time over the default's, geometric mean over the scenario's batches, in the order of [`Launching::modes`].
    pub over_default: Vec<f64>,
}

/// Launch modes on one batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchBatch {
    /// The batch.
    pub name: String,
    /// Median of the default's samples.
    pub default_us: f64,
    /// Median over the default's, in the order of [`Launching::modes`]; absent where it was not timed.
    pub over_default: Vec<Option<f64>>,
}

/// Timelines of a few whole batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timelines {
    /// What work items run on: `SM` or `thread`.
    pub processor: String,
    /// Those that were recorded.
    pub batches: Vec<BatchTimeline>,
    /// Batches whose timelines were to be recorded and were not, each with its reason.
    pub skipped: Vec<(String, String)>,
}

/// One execution of a batch's plan. Shares are of the time of all places, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchTimeline {
    /// The batch.
    pub name: String,
    /// Its tiles by name, in the order in which they were launched, and how many work items of each the device holds at once: its places.
    pub tiles: Vec<(String, u32)>,
    /// Processors of the device.
    pub processors: u32,
    /// The share of CTA slots' time that was predicted to be idle.
    pub predicted_idle: f64,
    /// The share that was idle.
    pub measured_idle: f64,
    /// The share until first tokens had arrived; absent where that is not told.
    pub waiting: Option<f64>,
    /// The share from then until last tokens were computed.
    pub computing: f64,
    /// The share from then until results were written.
    pub writing: f64,
    /// The work items.
    pub bars: Vec<TimelineBar>,
}

/// A work item: nanoseconds since the first one began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineBar {
    /// Where it ran, from 0.
    pub processor: u32,
    /// It was turned to.
    pub begin_ns: u64,
    /// Its first tokens had arrived; absent where that is not told.
    pub ready_ns: Option<u64>,
    /// Its last tokens were computed.
    pub computed_ns: u64,
    /// Its results were written.
    pub end_ns: u64,
}

/// One whole batch, executed under several policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioResult {
    /// Whether no selector was fitted to it.
    #[serde(default)]
    pub held_out: bool,
    /// Scenario name with its variant, e.g. `pat-fig9/1,4,256_32,256,32/32x8`.
    pub name: String,
    /// Requests in the batch.
    pub requests: u64,
    /// How the scenario was scaled down to fit the device; empty if it was not.
    pub scaled: String,
    /// Bytes of distinct K and V.
    pub unique_bytes: u64,
    /// Bytes of K and V if nothing were shared.
    pub unshared_bytes: u64,
    /// The least time the hardware needs.
    pub limit_us: f64,
    /// Name of each policy with its time.
    pub timings: Vec<PolicyTiming>,
}

/// Time of one batch under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyTiming {
    /// Equal to a [`Policy::name`] of `ReportData::batches`, or `oracle (TILE)`.
    pub policy: String,
    /// Median over the samples.
    pub median_us: f64,
    /// Half the interquartile range over the samples; absent where there is only one.
    pub spread_us: Option<f64>,
    /// Number of samples.
    pub count: u64,
}

/// One batch, with every set of tiles that was tried on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadResult {
    /// Its name, e.g. `tenants-fit/t007/32x8/p16`.
    pub name: String,
    /// Values of the features.
    pub features: Vec<u64>,
    /// The least time the hardware needs.
    pub limit_us: f64,
    /// The set that the fitted tree chooses.
    pub chosen: String,
    /// Measured sets.
    pub tiles: Vec<TileResult>,
}

/// One set of tiles on one batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TileResult {
    /// The set's name.
    pub name: String,
    /// Values of the parameters of its tile; empty if it has several.
    pub tile: Vec<u64>,
    /// `correct` for a survivor of the race, `eliminated` for one that left it early, else `wrong` or `error`.
    pub status: String,
    /// Median over the samples; absent where nothing was timed.
    pub median_us: Option<f64>,
    /// Half the interquartile range over the samples; absent where there are fewer than two.
    pub spread_us: Option<f64>,
    /// All samples, in the order in which they were taken.
    pub samples_us: Vec<f64>,
    /// Error against the f64 reference, relative; absent where it was not run.
    pub relative_error: Option<f64>,
    /// What went wrong, if something did.
    pub message: String,
}

/// One tile of the space, judged for one class of kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpaceRow {
    /// The class, e.g. `head_dim 128 f16`.
    pub class: String,
    /// The tile's name.
    pub name: String,
    /// Values of the parameters.
    pub tile: Vec<u64>,
    /// Short name of the rule that rejects it; empty if it is feasible.
    pub rule: String,
    /// The reason with its numbers; empty if it is feasible.
    pub reason: String,
}

/// A node of the fitted tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TreeNode {
    /// `feature <= threshold` goes to `low`, everything else to `high`.
    Split {
        /// Name of the feature.
        feature: String,
        /// The largest value that goes to `low`.
        threshold: u64,
        /// Where small values go.
        low: Box<TreeNode>,
        /// Where large values go.
        high: Box<TreeNode>,
    },
    /// A choice.
    Leaf {
        /// Names of the sets, the preferred one first.
        ranked: Vec<String>,
        /// Fitted batches that end here.
        support: u64,
        /// Their mean regret.
        regret: f64,
    },
}
