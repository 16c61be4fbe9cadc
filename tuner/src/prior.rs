//! The selector that a device would use if it had not been tuned: of its own former run, or of the most alike device that is known. Its tree stays
//! where the fitted one is not clearly better, so that two runs on one GPU choose alike although noise decides which of many near-best trees a
//! search finds.

use crate::fit::{CostTable, Fit, FitOptions, Stayed, Tree};
use serde::{Deserialize, Serialize};
use tilewright_heuristics::data::TreeEntry;
use tilewright_heuristics::{BatchShape, Selector, TileSetBuf};

/// What a fitted tree has to save on the fitted batches to replace a former one, by geometric mean. A tree knows the batches that it was fitted
/// to: of two equally good ones it saves 1.0 to 1.3 % on these, and nothing on others (docs/tried.md).
pub(crate) const CLEARLY: f64 = 0.015;

/// A selector as it was when a run began; recorded with the measurements, so that a fit can be repeated to the byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prior {
    /// Name of the device that it was measured on.
    pub device: String,
    /// Every set that the tree may choose.
    pub sets: Vec<String>,
    /// The tree, without what its leaves say of fitted batches.
    pub tree: TreeEntry,
}

impl Prior {
    /// That of a selector; `None` for a loaded one whose tree contradicts itself.
    pub fn of(selector: &Selector) -> Option<Self> {
        Some(Self {
            device: selector.device.name.to_owned(),
            sets: selector.sets.iter().map(ToString::to_string).collect(),
            tree: TreeEntry::of(selector)?,
        })
    }

    /// The fit with this tree, if that is not clearly worse; `None` too if none of a leaf's sets was raced.
    pub(crate) fn stays(&self, fit: &Fit, table: &CostTable, options: &FitOptions) -> Option<Stayed> {
        let raced: Vec<Option<TileSetBuf>> =
            table.candidates().iter().map(|name| name.parse().ok()).collect();
        let candidate = |name: &String| {
            let set: TileSetBuf = name.parse().ok()?;
            raced.iter().position(|candidate| *candidate == Some(set))
        };
        let candidates: Vec<Option<usize>> = self.sets.iter().map(candidate).collect();
        fit.stay_with(&tree(&self.tree, &candidates)?, table, options, CLEARLY)
    }
}

/// The tree over a table's candidates, where each of the prior's sets has one or was not raced.
fn tree(entry: &TreeEntry, candidates: &[Option<usize>]) -> Option<Tree> {
    Some(match entry {
        TreeEntry::Split { feature, at_most, low, high } => Tree::Split {
            feature: BatchShape::NAMES.iter().position(|name| name == feature)?,
            threshold: u64::from(*at_most),
            low: Box::new(tree(low, candidates)?),
            high: Box::new(tree(high, candidates)?),
        },
        TreeEntry::Leaf { ranked, .. } => {
            let raced = |set: &u8| candidates.get(usize::from(*set)).copied().flatten();
            let ranked: Vec<usize> = ranked.iter().filter_map(raced).collect();
            (!ranked.is_empty()).then_some(())?;
            Tree::Leaf { ranked, support: 0, regret: 0.0 }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::Analysis;
    use crate::emit::{Heuristics, module_name};
    use crate::store::{Recording, read};
    use std::path::{Path, PathBuf};

    fn leaf(ranked: &[u8]) -> TreeEntry {
        TreeEntry::Leaf { ranked: ranked.to_vec(), batches: 0, regret_percent: None }
    }

    fn prior(low: &[u8], high: &[u8]) -> Prior {
        Prior {
            device: "NVIDIA H200".to_owned(),
            sets: ["m16n64w4s2", "m64n64w4s2", "m32n64w2s2"].map(str::to_owned).to_vec(),
            tree: TreeEntry::Split {
                feature: "mean_rows".to_owned(),
                at_most: 16,
                low: Box::new(leaf(low)),
                high: Box::new(leaf(high)),
            },
        }
    }

    #[test]
    fn sets_that_were_not_raced_are_passed_over() {
        let candidates = [Some(4), Some(0), None];
        let known = |low: &[u8], high: &[u8]| tree(&prior(low, high).tree, &candidates);
        let Some(Tree::Split { feature, threshold, low, high }) = known(&[2, 0], &[1, 0]) else { panic!() };
        assert_eq!((BatchShape::NAMES[feature], threshold), ("mean_rows", 16));
        assert_eq!(*low, Tree::Leaf { ranked: vec![4], support: 0, regret: 0.0 });
        assert_eq!(*high, Tree::Leaf { ranked: vec![0, 4], support: 0, regret: 0.0 });
        assert_eq!(known(&[2], &[1]), None, "a leaf without any");
        assert_eq!(known(&[9], &[1]), None, "a set that is not there");
    }

    /// A recording of a CPU whose times are off by up to 0.5 %, as another run's would be.
    fn repeated(seed: u64) -> Recording {
        let heuristics = Heuristics::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("../heuristics"));
        let of_cpu = |path: &PathBuf| path.to_string_lossy().contains("cpu_");
        let path = heuristics.recordings().unwrap().into_iter().find(of_cpu).unwrap();
        let mut recording = read(&path).unwrap();
        let module = module_name(&recording.provenance.device);
        let selector = Selector::load(&heuristics.selector_path(&module)).unwrap();
        recording.provenance.prior = Prior::of(selector);
        let mut state = seed;
        for row in &mut recording.rows {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let off = 1.0 + 0.01 * ((state >> 40) as f64 / (1u64 << 24) as f64 - 0.5);
            row.samples_us.iter_mut().for_each(|sample| *sample *= off);
        }
        recording
    }

    #[test]
    fn two_runs_choose_alike_unless_what_was_known_is_clearly_worse() {
        let fitted = |recording: &Recording| {
            let Recording { provenance, rows } = recording;
            Analysis::of(provenance, rows, &provenance.fit).unwrap()
        };
        let [first, second] = [repeated(1), repeated(2)].map(|recording| fitted(&recording));
        for analysis in [&first, &second] {
            assert!(analysis.proof().contains("which stays"), "{}", analysis.proof());
        }
        assert_eq!(first.model.choices(), second.model.choices());
        assert!(first.fit.tree.leaves() > 1);

        // One set for all batches, the worst of those that the selector knows, is replaced.
        let mut recording = repeated(1);
        let costs = |set: &String| {
            let candidate = first.table.candidates().iter().position(|name| name == set)?;
            first.table.rows().iter().map(|row| row.costs[candidate]).sum::<Option<f64>>()
        };
        let prior = recording.provenance.prior.as_mut().unwrap();
        let worst = (0..prior.sets.len()).filter(|&at| costs(&prior.sets[at]).is_some());
        let worst = worst.max_by(|&a, &b| costs(&prior.sets[a]).partial_cmp(&costs(&prior.sets[b])).unwrap());
        prior.tree = leaf(&[worst.unwrap() as u8]);
        let replaced = fitted(&recording);
        assert!(!replaced.proof().contains("which stays"), "{}", replaced.proof());
        assert!(replaced.fit.tree.leaves() > 1);
    }

    #[test]
    fn a_prior_is_recorded_as_text_and_whole_numbers() {
        let prior = prior(&[0], &[1]);
        let text = serde_json::to_string(&prior).unwrap();
        assert_eq!(serde_json::from_str::<Prior>(&text).unwrap(), prior);
    }
}
