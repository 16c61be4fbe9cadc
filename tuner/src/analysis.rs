//! What measurements say: the fit, its validation, and the module; a pure function of a recording.

use crate::batch_regrets::batch_policies;
use crate::choice::SELECTOR;
use crate::costs::{Part, from_batches, from_screening};
use crate::emit::{Emitted, Header, ModelError, SelectorModel, module_name, render, selector_file};
use crate::fit::{
    Apart, CostRow, CostTable, Fit, FitError, FitOptions, Stayed, Validation, fit, fit_and_validate, judge,
};
use crate::fit_settings::FitSettings;
use crate::statistics::{geometric_mean, mean};
use crate::store::{Level, Measurement, Provenance, Recording};
use std::collections::BTreeMap;
use tilewright_heuristics::{Dtype, Tile, TileSetBuf};
use tilewright_kernel_templates::Class;

/// Tiles that a screening leaves: of the class with the most batches, and of each other one.
const SCREENED: [usize; 2] = [14, 7];

/// Why measurements cannot be analysed.
#[derive(Debug, thiserror::Error)]
pub enum AnalysisError {
    /// Nothing, or nothing that fits, was measured.
    #[error("no selector can be fitted: {0}")]
    Fit(#[from] FitError),
    /// The fit cannot be emitted.
    #[error("no selector can be emitted: {0}")]
    Model(#[from] ModelError),
}

/// Time over that of the best single tile of each batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverBestTile {
    /// Geometric mean over the batches.
    pub geometric_mean: f64,
    /// The largest.
    pub worst: f64,
    /// Batches.
    pub batches: usize,
}

impl std::fmt::Display for OverBestTile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { geometric_mean, worst, batches } = self;
        write!(
            f,
            "On {batches} batches that were not fitted the selector takes {geometric_mean:.3} of the time of the best single tile of each batch, \
             known in hindsight (geometric mean; {worst:.3} at worst)."
        )
    }
}

/// A recording, fitted and validated.
#[derive(Debug)]
pub struct Analysis {
    /// Costs of all sets on the batches that were fitted.
    pub table: CostTable,
    /// The same on the batches that are only judged; absent where none were measured.
    pub held_out: Option<CostTable>,
    /// The fitted tree, or the prior one if that is not clearly worse.
    pub fit: Fit,
    /// The prior tree, if some of it stays.
    stayed: Option<Prior>,
    /// Regret on batches that were not fitted: the held-out ones, or those of other folds where there are none.
    pub validation: Validation,
    /// The selector.
    pub model: SelectorModel,
}

impl Analysis {
    /// Fits the measurements of whole batches, and judges the fit on those that are held out.
    ///
    /// # Errors
    /// Nothing was measured, or no selector can be made of it.
    pub fn of(
        provenance: &Provenance,
        rows: &[Measurement],
        settings: &FitSettings,
    ) -> Result<Self, AnalysisError> {
        let table = from_batches(rows, Part::Fit)?;
        let held_out = from_batches(rows, Part::HeldOut).ok();
        // By work alone: a module must be the same wherever it is emitted from its recording.
        let options = FitOptions { clock: false, apart: classes_apart(&table), ..settings.options() };
        let (fit, stayed, validation) = match &held_out {
            Some(held_out) => {
                // The other half of the time is for a cross-validation, which held-out batches make unnecessary.
                let of_tree = FitOptions { time_limit: options.time_limit / 2, ..options.clone() };
                let (fit, stayed) = or_prior(fit(&table, &of_tree)?, provenance, &table, &options);
                let validation = judge(&table, &fit, held_out, &options)?;
                (fit, stayed, validation)
            }
            None => {
                // What is validated is the fit: folds know no prior.
                let (fit, validation) =
                    fit_and_validate(&table, &options, usize::from(settings.folds), &|_| ())?;
                let (fit, stayed) = or_prior(fit, provenance, &table, &options);
                (fit, stayed, validation)
            }
        };
        let model = SelectorModel::new(&provenance.device, provenance.prices(), rows, &table, &fit)?;
        Ok(Self { table, held_out, fit, stayed, validation, model })
    }

    /// The tiles that are worth verifying and racing on all batches of each head dimension, those that are nearest to the best on average first, by the few batches of these classes that all were raced on; the first
    /// class is that of most batches. Where no tile of a class passed its trial, there are none.
    ///
    /// # Errors
    /// Nothing was measured.
    pub fn screened(
        rows: &[Measurement],
        classes: &[Class],
        settings: &FitSettings,
    ) -> Result<BTreeMap<u32, Vec<Tile>>, AnalysisError> {
        let (mut tiles, mut nothing) = (BTreeMap::new(), None);
        for (index, class) in classes.iter().enumerate() {
            let table = match from_screening(rows, Level::Screen, class) {
                Ok(table) => table,
                Err(error) => {
                    nothing = Some(error);
                    continue;
                }
            };
            let portfolio = SCREENED[index.min(1)];
            let options = FitOptions { portfolio, max_depth: 0, clock: false, ..settings.options() };
            let fit = fit(&table, &options)?;
            let mut wanted: Vec<usize> = fit.portfolio.iter().copied().chain([fit.safe_default]).collect();
            wanted.sort_by(|a, b| over_best(&table, *a).total_cmp(&over_best(&table, *b)).then(a.cmp(b)));
            wanted.dedup();
            let sets = wanted.into_iter().filter_map(|i| table.candidates()[i].parse::<TileSetBuf>().ok());
            let of_dim = sets.filter_map(|set| set.single()).collect();
            tiles.insert(class.head_dim, of_dim);
        }
        match nothing {
            Some(error) if tiles.is_empty() => Err(error.into()),
            _ => Ok(tiles),
        }
    }

    /// The set with the least mean regret alone, on the batches that were fitted.
    pub fn best_single_set(&self) -> Option<TileSetBuf> {
        self.table.candidates()[self.fit.safe_default].parse().ok()
    }

    /// The selector's time over that of the best single tile of each batch, known in hindsight, on the batches that were not fitted: its
    /// geometric mean, the worst, and the number of batches. `None` where no batch is held out.
    pub fn over_best_tile(&self) -> Option<OverBestTile> {
        let held_out = self.held_out.as_ref()?;
        let is_single = |name: &String| name.parse().is_ok_and(|set: TileSetBuf| set.single().is_some());
        let single: Vec<bool> = held_out.candidates().iter().map(is_single).collect();
        let ratio = |row: &CostRow| {
            let ranked = self.fit.tree.choose(&row.features).iter().chain([&self.fit.safe_default]);
            let chosen = ranked.copied().find_map(|candidate| row.costs[candidate])?;
            let singles = row.costs.iter().zip(&single).filter(|(_, single)| **single);
            let best = singles.filter_map(|(cost, _)| *cost).min_by(f64::total_cmp)?;
            Some(chosen / best)
        };
        let ratios: Vec<f64> = held_out.rows().iter().filter_map(ratio).collect();
        Some(OverBestTile {
            geometric_mean: geometric_mean(&ratios)?,
            worst: ratios.iter().copied().fold(0.0, f64::max),
            batches: ratios.len(),
        })
    }

    /// Name of the device's module.
    pub fn module_name(&self) -> String {
        module_name(&self.model.device)
    }

    /// The selector as a module, whose header says where it comes from and what it is worth, and as data.
    pub fn emitted(&self, recording: &Recording, settings: &FitSettings) -> Emitted {
        let hashes = &recording.provenance.hashes;
        let hashes = [
            ("kernel", hashes.kernel.clone()),
            ("space", hashes.space.clone()),
            ("selector", self.selector_hash()),
        ];
        let hashes = hashes.map(|(name, hash)| (name.to_owned(), hash)).into();
        Emitted {
            module: self.module_name(),
            rust: render(&self.model, &header(self, recording, settings)),
            json: selector_file(&self.model, hashes).to_text(),
        }
    }

    /// Content hash of the selector itself, without the header, and without the prices: they are a little different in every run, and
    /// decide no tile.
    pub fn selector_hash(&self) -> String {
        short_hash(self.model.choices().as_bytes())
    }

    /// The hash of the selector that whole batches were last measured with, if it is another than this one: a later version fits otherwise.
    pub fn other_selector<'a>(&self, rows: &'a [Measurement]) -> Option<&'a str> {
        let now = self.selector_hash();
        let mut hashes = rows.iter().rev().map(|row| row.selector_hash.as_str());
        hashes.find(|hash| !hash.is_empty()).filter(|hash| *hash != now)
    }

    /// What the fit proves about the tree, and which tree it is if it is the prior one, in a sentence.
    pub fn proof(&self) -> String {
        self.stayed.as_ref().map_or_else(|| self.fit.proved(), |prior| prior.said.clone())
    }

    /// Whether the whole tree is that of the selector that the device had.
    pub fn keeps_prior(&self) -> bool {
        self.stayed.as_ref().is_some_and(|prior| prior.whole)
    }
}

/// The mean of a candidate's time over the best of each batch, where it counts as twice as slow if it has none.
fn over_best(table: &CostTable, candidate: usize) -> f64 {
    let over = |row: &CostRow| {
        let best = row.costs.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        row.costs[candidate].map_or(2.0, |cost| (cost / best).min(2.0))
    };
    mean(&table.rows().iter().map(over).collect::<Vec<f64>>()).unwrap_or(f64::INFINITY)
}

/// Head dimensions, and K and V in FP8 beside those of 16 bits, have kernels that have nothing in common but their source: each of them is fitted alone. So what few
/// batches say of theirs does not have to outweigh what many say of others.
fn classes_apart(table: &CostTable) -> Vec<Apart> {
    let place = |name: &str| table.features().iter().position(|feature| feature == name);
    let mut questions = Vec::new();
    if let Some(feature) = place("head_dim") {
        let mut dims: Vec<u64> = table.rows().iter().map(|row| row.features[feature]).collect();
        dims.sort_unstable();
        dims.dedup();
        dims.pop();
        questions.extend(dims.into_iter().map(|threshold| Apart { feature, threshold }));
    }
    // Codes of types with FP8 are behind those of all others.
    let widest = Dtype::ALL.iter().filter(|dtype| !dtype.has_fp8_kv()).map(|dtype| dtype.code()).max();
    if let (Some(feature), Some(threshold)) = (place("dtype"), widest) {
        questions.push(Apart { feature, threshold: threshold.into() });
    }
    questions
}

/// A prior tree that stays.
#[derive(Clone, Debug)]
struct Prior {
    /// What is said of it.
    said: String,
    /// Whether it stays for all parts.
    whole: bool,
}

/// The fit with the prior's tree if that is not clearly worse, and what is said of it then.
fn or_prior(
    fit: Fit,
    provenance: &Provenance,
    table: &CostTable,
    options: &FitOptions,
) -> (Fit, Option<Prior>) {
    let stayed =
        provenance.prior.as_ref().and_then(|prior| Some((prior, prior.stays(&fit, table, options)?)));
    let Some((prior, Stayed { fit: stayed, over_fitted, parts, of })) = stayed else { return (fit, None) };
    let part = if of == 1 { String::new() } else { format!(" for {parts} of {of} parts") };
    let said = format!(
        "the tree of the selector of {}, which stays{part}: on the fitted batches it takes {over_fitted:.4} of the time of the best tree found; of \
         that: {}",
        prior.device,
        fit.proved()
    );
    (stayed, Some(Prior { said, whole: parts == of }))
}

/// The first 16 hexadecimal digits of a content hash: enough to tell versions apart.
pub fn short_hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

fn header(analysis: &Analysis, recording: &Recording, settings: &FitSettings) -> Header {
    let Recording { provenance, rows } = recording;
    let pairs = |pairs: &[(String, String)]| {
        pairs.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    let measured = |level| rows.iter().filter(move |row| row.level == level && !row.samples_us.is_empty());
    let samples: usize = measured(Level::Batch).map(|row| row.samples_us.len()).sum();
    let scenarios: Vec<String> =
        provenance.scenarios.iter().map(|s| format!("{} {}", s.name, s.hash)).collect();
    let mut header = vec![
        format!("limits: {}", pairs(&provenance.limits)),
        format!("versions: {}", pairs(&provenance.versions)),
        format!(
            "kernel {}, space {}, selector {}",
            provenance.hashes.kernel,
            provenance.hashes.space,
            analysis.selector_hash()
        ),
        format!("scenarios: {}", scenarios.join(", ")),
        format!("measured: {} by `{}`", provenance.started, provenance.command),
        format!(
            "counts: {} batches fitted, {} only judged, {} sets of tiles, {} measurements, {samples} samples",
            analysis.table.rows().len(),
            analysis.held_out.as_ref().map_or(0, |table| table.rows().len()),
            analysis.table.candidates().len(),
            measured(Level::Batch).count(),
        ),
        format!(
            "fit: portfolio {}, depth {}, leaves {} of at least {} rows at {:.2} each, ties below {:.1} %; {}",
            settings.portfolio,
            settings.max_depth,
            settings.max_leaves,
            settings.least_rows,
            f64::from(settings.leaf_price) / 100.0,
            f64::from(settings.noise_permille) / 10.0,
            analysis.proof(),
        ),
    ];
    if provenance.prices.is_none() {
        header.push("prices: not measured, the defaults of the backend".to_owned());
    }
    header.extend(analysis.over_best_tile().map(|over| over.to_string()));
    for policy in &analysis.validation.policies {
        header.push(format!(
            "regret on batches not fitted, {}: mean {:.2} %, p95 {:.2} %, worst {:.2} %",
            policy.name,
            policy.mean * 100.0,
            policy.p95 * 100.0,
            policy.worst * 100.0
        ));
    }
    let other = analysis.other_selector(rows).map(|hash| format!(" {hash}")).unwrap_or_default();
    for policy in batch_policies(rows) {
        let which = if policy.name == SELECTOR { &other } else { "" };
        header.push(format!(
            "regret on batches measured under the selector, {}{which}: mean {:.2} %, p95 {:.2} %, worst {:.2} % of {}",
            policy.name,
            policy.mean * 100.0,
            policy.p95 * 100.0,
            policy.worst * 100.0,
            policy.count
        ));
    }
    header
}
