//! The selector as data: exactly what is emitted, and what emitted code is compared with.

use crate::fit::{CostRow, CostTable, Fit, Tree};
use crate::store::{DeviceRecord, Level, Measurement, Status, failed_variants};
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::{Backend, BatchShape, Domain, Dtype, Prices, Tile, TileSetBuf, first_feasible};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::WarpSplit;

/// Why no selector can be made of a fit.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A candidate is no set of tiles of this workspace.
    #[error("candidate `{0}` is not a set of tiles, so it cannot be emitted as one")]
    NotASet(String),
    /// A feature is none of a batch's.
    #[error("the features are [{found}], a selector asks for [{}]", BatchShape::NAMES.join(", "))]
    OtherFeatures {
        /// The table's features.
        found: String,
    },
    /// No tile can stand for the unknown.
    #[error(
        "no measured tile is right for every head_dim and element type, so there is no safe default: {}; the recorded rows of level `space` say why",
        if without.is_empty() { "each fails for another one".to_owned() } else { format!("none is for {}", without.join(", ")) }
    )]
    NoSafeDefault {
        /// The classes of kernels for which all fail.
        without: Vec<String>,
    },
}

/// A fitted tree over a batch's features, with choices as indices into the selector's sets.
#[derive(Clone, Debug, PartialEq)]
pub enum TreeModel {
    /// `values[feature] <= threshold` goes to `low`.
    Split {
        /// Index into [`BatchShape::NAMES`].
        feature: usize,
        /// The largest value that goes to `low`.
        threshold: u32,
        /// Where small values go.
        low: Box<TreeModel>,
        /// Where large values go.
        high: Box<TreeModel>,
    },
    /// A choice.
    Leaf {
        /// Indices into the sets, the preferred one first.
        ranked: Vec<u8>,
        /// Fitted workloads that end here.
        support: usize,
        /// Their mean regret.
        regret: f64,
    },
}

impl TreeModel {
    /// The questions and rankings, parents first.
    fn choices(&self, lines: &mut Vec<String>) {
        match self {
            Self::Split { feature, threshold, low, high } => {
                lines.push(format!("{} <= {threshold}", BatchShape::NAMES[*feature]));
                low.choices(lines);
                high.choices(lines);
            }
            Self::Leaf { ranked, support: _, regret: _ } => lines.push(format!("{ranked:?}")),
        }
    }
}

/// A selector of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectorModel {
    /// The device.
    pub device: DeviceRecord,
    /// The batches that were measured.
    pub domain: Domain,
    /// Every set that the tree names.
    pub sets: Vec<TileSetBuf>,
    /// The tile for classes of kernels that were not measured.
    pub safe_default: Tile,
    /// What a plan's parts cost on the device. They decide no tile.
    pub prices: Prices,
    /// For each class of kernels (head_dim, dtype code) that was verified, one bit a set whose tiles can all run it.
    pub feasible: BTreeMap<(u32, u32), u64>,
    /// The tree.
    pub tree: TreeModel,
}

impl SelectorModel {
    /// Makes a selector of a fit over the features of batches.
    ///
    /// `rows` are the measurements that the table was made of: their [`Level::Space`] rows say what is feasible, their [`Level::CpAsync`]
    /// and [`Level::Options`] rows what is not for all that.
    ///
    /// # Errors
    /// A candidate that is no set, features that are not a batch's, or no tile that is feasible everywhere.
    pub fn new(
        device: &DeviceRecord,
        prices: Prices,
        rows: &[Measurement],
        table: &CostTable,
        fit: &Fit,
    ) -> Result<Self, ModelError> {
        if table.features() != BatchShape::NAMES {
            return Err(ModelError::OtherFeatures { found: table.features().join(", ") });
        }
        let candidates = table
            .candidates()
            .iter()
            .map(|name| name.parse().map_err(|_| ModelError::NotASet(name.clone())))
            .collect::<Result<Vec<TileSetBuf>, _>>()?;
        let verdicts = Verdicts::of(rows, device);
        let mut named = BTreeSet::new();
        collect_named(&fit.tree, &mut named);
        let named: Vec<usize> = named.into_iter().collect();
        let sets: Vec<TileSetBuf> = named.iter().map(|&i| candidates[i]).collect();
        let domain = domain(table);
        Ok(Self {
            device: device.clone(),
            domain,
            safe_default: safe_default(table, &candidates, fit, &verdicts)?,
            prices,
            feasible: verdicts.masks(&sets),
            tree: tree_model(&fit.tree, &named),
            sets,
        })
    }

    /// Every tile that the selector may return.
    pub fn tiles(&self) -> BTreeSet<Tile> {
        let tiles = self.sets.iter().flat_map(|set| set.tiles()).copied();
        tiles.chain([self.safe_default]).collect()
    }

    /// What decides choices, a line each: for hashes. Neither prices nor how a module is written change it.
    pub fn choices(&self) -> String {
        let Self { device, domain, sets, safe_default, prices: _, feasible, tree } = self;
        let mut lines = vec![
            device.to_string(),
            format!("{:?}", domain.min.values()),
            format!("{:?}", domain.max.values()),
        ];
        lines.extend(sets.iter().map(ToString::to_string));
        lines.push(format!("else {safe_default}"));
        lines.extend(feasible.iter().map(|((head_dim, dtype), mask)| format!("{head_dim} {dtype} {mask:b}")));
        tree.choices(&mut lines);
        lines.join("\n")
    }

    /// The set for a batch, or for the nearest that was measured: what a selector answers that was emitted from this.
    pub fn select(&self, batch: &BatchShape) -> TileSetBuf {
        self.choose(&self.domain.asked(batch))
    }

    /// The set for a batch: what emitted code must choose.
    pub fn choose(&self, shape: &BatchShape) -> TileSetBuf {
        let feasible = self.feasible.get(&(shape.head_dim, shape.dtype)).copied().unwrap_or(0);
        let mut node = &self.tree;
        loop {
            match node {
                TreeModel::Split { feature, threshold, low, high } => {
                    node = if shape.values()[*feature] <= *threshold { low } else { high };
                }
                TreeModel::Leaf { ranked, .. } => {
                    let choice = first_feasible(ranked, feasible);
                    let default = TileSetBuf::one(self.safe_default);
                    return choice.map_or(default, |i| self.sets[usize::from(i)]);
                }
            }
        }
    }
}

/// What the recorded space says: the classes that each tile passed, and all classes.
struct Verdicts {
    passed: BTreeMap<Tile, BTreeSet<(u32, u32)>>,
    classes: BTreeSet<(u32, u32)>,
    /// Whether the device's warps split long heads: those classes have tiles of their own, and none in common with the others.
    splits_heads: bool,
}

impl Verdicts {
    fn of(rows: &[Measurement], device: &DeviceRecord) -> Self {
        let splits_heads = device.backend == Backend::Cuda.name();
        let mut verdicts = Self { passed: BTreeMap::new(), classes: BTreeSet::new(), splits_heads };
        let failed = failed_variants(rows);
        for row in rows.iter().filter(|row| row.level == Level::Space) {
            let (Some(tile), Some(class)) = (row.tile, class_of(&row.workload)) else { continue };
            verdicts.classes.insert(class);
            if row.status == Status::Correct && !failed.contains_key(&(row.workload.as_str(), tile)) {
                verdicts.passed.entry(tile).or_default().insert(class);
            }
        }
        verdicts
    }

    /// Whether the safe default has to serve heads of that many elements.
    fn is_usual(&self, head_dim: u32) -> bool {
        !(self.splits_heads && WarpSplit::splits_heads(head_dim))
    }

    fn passes_everywhere(&self, tile: &Tile) -> bool {
        let usual = || self.classes.iter().filter(|(head_dim, _)| self.is_usual(*head_dim));
        let Some(passed) = self.passed.get(tile) else { return false };
        usual().next().is_some() && usual().all(|class| passed.contains(class))
    }

    /// The classes that a safe default has to serve and none of these candidates does alone.
    fn without(&self, candidates: &[TileSetBuf]) -> Vec<String> {
        let serves = |class: &(u32, u32)| {
            let passed = |tile| self.passed.get(&tile).is_some_and(|passed| passed.contains(class));
            candidates.iter().filter_map(TileSetBuf::single).any(passed)
        };
        let without = self.classes.iter().filter(|class| self.is_usual(class.0) && !serves(class));
        let named = |&(head_dim, dtype): &(u32, u32)| {
            let dtype = Dtype::from_code(dtype)?;
            Some(Class { head_dim, dtype }.to_string())
        };
        without.filter_map(named).collect()
    }

    fn masks(&self, sets: &[TileSetBuf]) -> BTreeMap<(u32, u32), u64> {
        let mask = |class: &(u32, u32)| {
            let passed = |tile: &Tile| self.passed.get(tile).is_some_and(|passed| passed.contains(class));
            let bits = sets.iter().enumerate().map(|(i, set)| u64::from(set.tiles().iter().all(passed)) << i);
            bits.sum::<u64>()
        };
        self.classes.iter().map(|class| (*class, mask(class))).collect()
    }
}

/// The class of a [`Level::Space`] row, by the text that `kernel_templates::Class` writes.
fn class_of(text: &str) -> Option<(u32, u32)> {
    let (head_dim, dtype) = text.strip_prefix("head_dim ")?.split_once(' ')?;
    Some((head_dim.parse().ok()?, dtype.parse::<Dtype>().ok()?.code()))
}

fn domain(table: &CostTable) -> Domain {
    let extreme = |pick: fn(u32, u32) -> u32, start: u32| {
        let mut values = [start; BatchShape::COUNT];
        for row in table.rows() {
            for (value, &feature) in values.iter_mut().zip(&row.features) {
                *value = pick(*value, u32::try_from(feature).unwrap_or(u32::MAX));
            }
        }
        BatchShape::from_values(values)
    };
    Domain { min: extreme(u32::min, u32::MAX), max: extreme(u32::max, 0) }
}

/// The fit's safe default if it is one tile and every class can run it, else the tile with the least regret among those that all can: every class but those
/// with heads that warps split.
fn safe_default(
    table: &CostTable,
    candidates: &[TileSetBuf],
    fit: &Fit,
    verdicts: &Verdicts,
) -> Result<Tile, ModelError> {
    let passing = |set: &TileSetBuf| set.single().filter(|tile| verdicts.passes_everywhere(tile));
    if let Some(fitted) = passing(&candidates[fit.safe_default]) {
        return Ok(fitted);
    }
    let head_dim = BatchShape::NAMES.iter().position(|name| *name == "head_dim");
    let is_usual = |row: &&CostRow| {
        head_dim.is_none_or(|at| u32::try_from(row.features[at]).is_ok_and(|dim| verdicts.is_usual(dim)))
    };
    let regret = |i: usize| -> Option<f64> {
        let usual = table.rows().iter().filter(is_usual);
        usual.map(|row| Some(row.costs[i]? / row.oracle() * row.weight)).sum()
    };
    (0..candidates.len())
        .filter_map(|i| Some((regret(i)?, passing(&candidates[i])?)))
        .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
        .map(|(_, tile)| tile)
        .ok_or_else(|| ModelError::NoSafeDefault { without: verdicts.without(candidates) })
}

fn collect_named(tree: &Tree, named: &mut BTreeSet<usize>) {
    match tree {
        Tree::Split { low, high, .. } => {
            collect_named(low, named);
            collect_named(high, named);
        }
        Tree::Leaf { ranked, .. } => named.extend(ranked),
    }
}

fn tree_model(tree: &Tree, named: &[usize]) -> TreeModel {
    match tree {
        Tree::Split { feature, threshold, low, high } => TreeModel::Split {
            feature: *feature,
            threshold: u32::try_from(*threshold).unwrap_or(u32::MAX),
            low: Box::new(tree_model(low, named)),
            high: Box::new(tree_model(high, named)),
        },
        Tree::Leaf { ranked, support, regret } => TreeModel::Leaf {
            ranked: ranked.iter().filter_map(|i| named.binary_search(i).ok()).map(|i| i as u8).collect(),
            support: *support,
            regret: *regret,
        },
    }
}
