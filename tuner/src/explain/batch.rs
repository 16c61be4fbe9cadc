//! One batch: its numbers, the path through the tree, its packs, and the predicted times of every set.

use super::NamedDevice;
use serde::Serialize;
use std::collections::BTreeMap;
use tilewright_heuristics::{
    BatchShape, Geometry, PackShape, Selection, Selector, TileSet, TileSetBuf, TreePath,
};
use tilewright_plan::{Forest, PageTable, Plan, PlanError, PlanOptions, Prediction, Split, batch_shape};
use tilewright_scenarios::Batch;

/// Why a batch gets its tiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchExplanation {
    /// The batch's name.
    pub name: String,
    /// The batch's numbers, as the selector is asked about them: [`BatchShape::NAMES`], in order.
    pub numbers: Vec<(&'static str, u32)>,
    /// Those outside of what was measured.
    pub outside: Vec<&'static str>,
    /// Whether no batch with such elements was measured, so that the tree is asked as if K and V were of the query's type.
    pub asked_as_query_type: bool,
    /// The questions of the tree, from the root; none where PAT's rules decide.
    pub path: Vec<PathStep>,
    /// The leaf at the end.
    pub leaf: Option<Leaf>,
    /// The chosen set.
    pub set: String,
    /// Alike packs together, those with the most tokens first.
    pub packs: Vec<PackRow>,
    /// CTAs, or teams of threads: the work items of all KV heads.
    pub ctas: u64,
    /// Partial results that are merged.
    pub partials: u32,
    /// What the plan is predicted to take.
    pub predicted: Predicted,
    /// The same of a batch-invariant plan, and its set; nothing where the device runs none of its tiles.
    pub invariant: Option<Predicted>,
    /// Microseconds to read all distinct K and V once at the measured rate.
    pub read_once_us: f64,
    /// What the selector's sets, and those that were asked for, are predicted to take: the fastest first.
    pub sets: Vec<Predicted>,
}

/// One question of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathStep {
    /// The number that is asked about.
    pub feature: &'static str,
    /// The batch's.
    pub value: u32,
    /// The largest that goes to the low side.
    pub threshold: u32,
    /// Whether the batch went there.
    pub at_most: bool,
}

/// Where the path ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leaf {
    /// The ranking: the first set that can run the batch is chosen.
    pub ranked: Vec<String>,
    /// Fitted batches that ended here.
    pub batches: u32,
    /// What they take beyond the best set of each, in percent, on average.
    pub regret_percent: f64,
}

/// Packs of one shape and tile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PackRow {
    /// How many.
    pub packs: usize,
    /// Query rows of one KV head.
    pub rows: u32,
    /// KV tokens that a request sees on average, in whole pages.
    pub kv_len: u32,
    /// Of these, tokens of one request alone.
    pub own: u32,
    /// Their tile.
    pub tile: String,
}

/// The predicted time of a set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// The set.
    pub set: String,
    /// Microseconds of the forward kernel.
    pub forward_us: f64,
    /// Microseconds of merging.
    pub merge_us: f64,
}

impl Predicted {
    fn new(set: String, prediction: Prediction) -> Self {
        let us = |attoseconds: u64| attoseconds as f64 / 1e12;
        Self { set, forward_us: us(prediction.forward), merge_us: us(prediction.merge) }
    }

    /// Both.
    pub fn us(&self) -> f64 {
        self.forward_us + self.merge_us
    }
}

impl BatchExplanation {
    pub(super) fn of(
        device: &NamedDevice,
        selection: &Selection,
        options: &PlanOptions,
        batch: &Batch,
        others: &[TileSetBuf],
    ) -> Result<Self, PlanError> {
        let Batch { page_table, max_pages, seq_lens, geometry, .. } = batch;
        let table = PageTable::new(page_table, *max_pages, seq_lens, geometry.page_size)?;
        let shape = batch_shape(geometry, &Forest::build(&table));
        let (set, path) = selection.explain(&shape);
        let asked = selection.matched.selector().zip(path);
        let predict = |set: TileSet<'_>| -> Result<(Plan, Predicted), PlanError> {
            let plan = Plan::build(geometry, &table, options, set)?;
            // Tiles of a set share a launch.
            let prediction = plan.predicted(options, device.as_device().backend, true);
            Ok((plan, Predicted::new(set.to_string(), prediction)))
        };
        let (plan, predicted) = predict(set)?;
        let class = tilewright_kernel_templates::Class::of(geometry);
        let feasible = device.feasible(&class);
        let runs = |set: &TileSet<'_>| set.tiles().iter().all(|tile| feasible.contains(tile));
        let backend = device.as_device().backend;
        let invariant = device.invariant_set(&class).map(|set| -> Result<Predicted, PlanError> {
            let options = PlanOptions { split: Split::Invariant, ..*options };
            let plan = Plan::build(geometry, &table, &options, set)?;
            // One tile of the family, or none where there are no tokens.
            let tile = plan.tile_groups().first().map_or(set.to_string(), |group| group.tile.to_string());
            Ok(Predicted::new(tile, plan.predicted(&options, backend, true)))
        });
        let invariant = invariant.transpose()?;
        let known = selection.sets().iter().copied().filter(runs);
        let mut sets: Vec<Predicted> = Vec::new();
        for set in known.chain(others.iter().map(TileSetBuf::as_set)).chain([set]) {
            if sets.iter().all(|seen| seen.set != set.to_string()) {
                sets.push(predict(set)?.1);
            }
        }
        sets.sort_by(|a, b| a.us().total_cmp(&b.us()));
        let (path, leaf) =
            asked.as_ref().map_or((Vec::new(), None), |(selector, path)| path_of(selector, path));
        let kv_heads = u64::from(geometry.kv_heads);
        Ok(Self {
            name: batch.name.clone(),
            numbers: BatchShape::NAMES.into_iter().zip(shape.values()).collect(),
            outside: asked.as_ref().map_or(Vec::new(), |(selector, _)| outside(selector, &shape)),
            asked_as_query_type: asked
                .as_ref()
                .is_some_and(|(selector, _)| selector.domain.asked(&shape) != shape),
            path,
            leaf,
            set: set.to_string(),
            packs: packs(&plan),
            ctas: plan.work_items().len() as u64 * kv_heads,
            partials: plan.partials(),
            predicted,
            invariant,
            read_once_us: read_once_us(geometry, &shape, options),
            sets,
        })
    }
}

fn path_of(selector: &Selector, path: &TreePath) -> (Vec<PathStep>, Option<Leaf>) {
    let steps = path.questions.iter().map(|question| PathStep {
        feature: question.feature,
        value: question.value,
        threshold: question.threshold,
        at_most: question.at_most(),
    });
    let ranked = path.ranked.iter().map(|&index| selector.sets[usize::from(index)].to_string());
    let leaf = Leaf { ranked: ranked.collect(), batches: path.batches, regret_percent: path.regret };
    (steps.collect(), Some(leaf))
}

/// Numbers outside of what was measured.
fn outside(selector: &Selector, shape: &BatchShape) -> Vec<&'static str> {
    selector.domain.outside(&selector.domain.asked(shape)).collect()
}

/// Packs of the same shape and tile are one row.
fn packs(plan: &Plan) -> Vec<PackRow> {
    let mut counts: BTreeMap<(u64, u32, u32, u32, String), usize> = BTreeMap::new();
    for pack in plan.packs() {
        let PackShape { rows, kv_len, private_kv_len: own, .. } = pack.shape;
        let read = u64::from(rows) * u64::from(kv_len);
        *counts.entry((read, rows, kv_len, own, pack.tile.to_string())).or_default() += 1;
    }
    counts
        .into_iter()
        .rev()
        .map(|((_, rows, kv_len, own, tile), packs)| PackRow { packs, rows, kv_len, own, tile })
        .collect()
}

fn read_once_us(geometry: &Geometry, shape: &BatchShape, options: &PlanOptions) -> f64 {
    let bytes = f64::from(shape.unique_tokens) * geometry.kv_bytes_per_token() as f64;
    bytes * options.device.prices.hbm_byte as f64 / 1e12
}
