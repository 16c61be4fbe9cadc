//! What measurements say: the fit, its validation, and the module; a pure function of a recording.

use crate::choice::SELECTOR;
use crate::costs::from_measurements;
use crate::emit::{Header, ModelError, SelectorModel, module_name, render, render_choices};
use crate::fit::{CART, CostTable, Fit, FitError, FitOptions, Proof, Validation, cross_validate, fit};
use crate::fit_settings::FitSettings;
use crate::report_data::batch_policies;
use crate::store::{Level, Measurement, Provenance, Recording};
use std::collections::BTreeSet;
use tilewright_heuristics::Tile;

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

/// A recording, fitted and validated.
#[derive(Debug)]
pub struct Analysis {
    /// Costs of all tiles on all measured pack shapes.
    pub table: CostTable,
    /// The fitted tree.
    pub fit: Fit,
    /// Regret on workloads that were not fitted.
    pub validation: Validation,
    /// The selector.
    pub model: SelectorModel,
}

impl Analysis {
    /// Fits and validates the pack-level measurements of a recording.
    ///
    /// # Errors
    /// Nothing was measured, or no selector can be made of it.
    pub fn of(
        provenance: &Provenance,
        rows: &[Measurement],
        settings: &FitSettings,
    ) -> Result<Self, AnalysisError> {
        let table = from_measurements(rows)?;
        let options = settings.options();
        let fit = fit(&table, &options)?;
        let validation = cross_validate(&table, &options, usize::from(settings.folds))?;
        let model = SelectorModel::new(&provenance.device, provenance.prices(), rows, &table, &fit)?;
        Ok(Self { table, fit, validation, model })
    }

    /// The tiles that a selector will probably choose from, by what was measured so far: those worth measuring well.
    ///
    /// # Errors
    /// Nothing was measured.
    pub fn first_portfolio(rows: &[Measurement], settings: &FitSettings) -> Result<Vec<Tile>, AnalysisError> {
        let table = from_measurements(rows)?;
        // The widest portfolio: what is measured well may still be left out.
        let options = FitOptions { portfolio: 16, max_depth: 0, ..settings.options() };
        let fit = fit(&table, &options)?;
        let wanted = fit.portfolio.iter().chain([&fit.safe_default]);
        let tiles: BTreeSet<Tile> = wanted.filter_map(|&i| table.candidates()[i].parse().ok()).collect();
        Ok(tiles.into_iter().collect())
    }

    /// The tile with the least mean regret alone.
    pub fn best_single_tile(&self) -> Option<Tile> {
        self.table.candidates()[self.fit.safe_default].parse().ok()
    }

    /// Name of the device's module.
    pub fn module_name(&self) -> String {
        module_name(&self.model.device)
    }

    /// The module's text: the selector, and in its header where it comes from and what it is worth.
    pub fn module_text(&self, recording: &Recording, settings: &FitSettings) -> String {
        render(&self.model, &header(self, recording, settings))
    }

    /// Content hash of the selector itself, without the header, and without the prices: they are a little different in every run, and
    /// decide no tile.
    pub fn selector_hash(&self) -> String {
        short_hash(render_choices(&self.model).as_bytes())
    }

    /// The hash of the selector that whole batches were measured with, if it is another than this one: a later version fits otherwise.
    pub fn other_selector<'a>(&self, rows: &'a [Measurement]) -> Option<&'a str> {
        let now = self.selector_hash();
        let hashes = rows.iter().map(|row| row.selector_hash.as_str());
        hashes.into_iter().find(|hash| !hash.is_empty() && *hash != now)
    }

    /// What the fit proves about the tree, in a sentence.
    pub fn proof(&self) -> String {
        let Proof { depth, objective, lower_bound, optimal } = self.fit.proof;
        if optimal && self.fit.tree.depth() > depth {
            format!(
                "grown from the tree of depth {depth} with the least mean regret over this portfolio (proven)"
            )
        } else if optimal {
            format!("no tree of depth {depth} over this portfolio has less mean regret (proven)")
        } else {
            format!(
                "the best tree of depth {depth} that was found; one could at best have {:.2} % less mean regret",
                (objective - lower_bound).max(0.0) * 100.0
            )
        }
    }
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
    let samples: usize = measured(Level::Pack).map(|row| row.samples_us.len()).sum();
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
            "counts: {} workloads, {} tiles, {} measurements, {samples} samples",
            analysis.table.rows().len(),
            analysis.table.candidates().len(),
            measured(Level::Pack).count(),
        ),
        format!(
            "fit: portfolio {}, depth {}, leaves {}, ties below {:.1} %; {}",
            settings.portfolio,
            settings.max_depth,
            settings.max_leaves,
            f64::from(settings.noise_permille) / 10.0,
            analysis.proof(),
        ),
    ];
    if provenance.prices.is_none() {
        header.push("prices: not measured, the defaults of the backend".to_owned());
    }
    // The label tree breaks its ties at random: its figures are for reports, a module is the same to the byte each time.
    let reproducible = analysis.validation.policies.iter().filter(|policy| policy.name != CART);
    for policy in reproducible {
        header.push(format!(
            "regret on pack shapes not fitted, {}: mean {:.2} %, p95 {:.2} %, worst {:.2} %",
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
            "regret on whole batches, {}{which}: mean {:.2} %, p95 {:.2} %, worst {:.2} % of {}",
            policy.name,
            policy.mean * 100.0,
            policy.p95 * 100.0,
            policy.worst * 100.0,
            policy.count
        ));
    }
    header
}
