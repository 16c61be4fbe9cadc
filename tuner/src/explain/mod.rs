//! Why batches get the tiles that they get: the selector's path for each, its plan, and what the plan is predicted to take. Nothing is measured.

mod batch;
mod device;
mod text;

pub use batch::{BatchExplanation, Leaf, PackRow, PathStep, Predicted};
pub use device::NamedDevice;
pub use text::lines;

use anyhow::Context as _;
use serde::Serialize;
use tilewright_heuristics::{Selector, TileSetBuf};
use tilewright_kernel_templates::Class;
use tilewright_scenarios::BatchSpec;

/// The device and its selector, and every batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The device's name.
    pub device: String,
    /// `cpu` or `cuda`.
    pub backend: &'static str,
    /// Its architecture.
    pub capability: String,
    /// Its SMs or threads.
    pub units: u32,
    /// CTAs or threads that plans count on at once.
    pub slots: u32,
    /// `exact`, `same capability` or `analytic`.
    pub selector: &'static str,
    /// The device that the selector was measured on.
    pub measured_on: Option<&'static str>,
    /// The batches.
    pub batches: Vec<BatchExplanation>,
}

impl Explanation {
    /// Explains batches on a device, by a selector that was loaded or the best that is known; `others` are sets that are predicted beside those of the selector.
    ///
    /// # Errors
    /// A batch that cannot be built or planned, or a set of `others` that the device cannot run.
    pub fn of(
        device: &NamedDevice,
        own: Option<&'static Selector>,
        specs: &[BatchSpec],
        others: &[TileSetBuf],
    ) -> anyhow::Result<Self> {
        let selection = device.selection(own)?;
        let options = device.plan_options(&selection);
        let selector = selection.matched.name();
        let measured_on = selection.matched.selector().map(|selector| selector.device.name);
        let mut batches = Vec::with_capacity(specs.len());
        for spec in specs {
            let feasible = device.feasible(&Class::of(spec.geometry()));
            for set in others {
                let missing = set.tiles().iter().find(|tile| !feasible.contains(tile));
                anyhow::ensure!(
                    missing.is_none(),
                    "{}: {} cannot run {set} there; `tilewright space` says why",
                    spec.name(),
                    device.as_device().name
                );
            }
            let explained = BatchExplanation::of(device, &selection, &options, &spec.build()?, others);
            batches.push(explained.with_context(|| format!("{}: cannot be planned", spec.name()))?);
        }
        let known = device.as_device();
        Ok(Self {
            device: known.name.to_owned(),
            backend: known.backend.name(),
            capability: known.capability.to_owned(),
            units: known.units,
            slots: options.device.max_concurrent_ctas,
            selector,
            measured_on,
            batches,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wanted::Wanted;
    use tilewright_heuristics::BatchShape;

    fn explained(device: &str, scenario: &str, others: &[&str]) -> anyhow::Result<Explanation> {
        let device = NamedDevice::find(Some(device))?;
        let wanted = Wanted { scenarios: vec![scenario.into()], ..Wanted::default() };
        let others: Vec<TileSetBuf> = others.iter().map(|set| set.parse().unwrap()).collect();
        Explanation::of(&device, None, &wanted.specs(device.as_device().backend)?, &others)
    }

    #[test]
    fn what_is_told_is_what_the_selector_does() {
        let found = explained("h200", "mix-roots", &[]).unwrap();
        let selection = NamedDevice::find(Some("h200")).unwrap().selection(None).unwrap();
        assert_eq!((found.selector, found.slots, found.batches.len() > 1), ("exact", 264, true));
        for batch in &found.batches {
            let numbers: Vec<u32> = batch.numbers.iter().map(|(_, value)| *value).collect();
            let shape = BatchShape::from_values(numbers.try_into().unwrap());
            let set = selection.select(&shape);
            assert_eq!(batch.set, set.to_string());
            assert_eq!(batch.leaf.as_ref().unwrap().ranked[0], batch.set, "the leaf's first can run here");
            for step in &batch.path {
                let value = batch.numbers.iter().find(|(name, _)| *name == step.feature).unwrap().1;
                assert_eq!((step.value, step.at_most), (value, value <= step.threshold));
            }
            let tile = |pack: &PackRow| set.tiles().iter().any(|tile| tile.to_string() == pack.tile);
            assert!(!batch.packs.is_empty() && batch.packs.iter().all(tile));
            assert!(batch.predicted.us() > batch.read_once_us, "reading alone takes that long");
            assert!(batch.sets.contains(&batch.predicted));
            assert!(batch.sets.is_sorted_by(|a, b| a.us() <= b.us()));
        }
    }

    #[test]
    fn sets_that_are_asked_for_are_predicted_if_they_can_run() {
        let set = "m16n64w4s2+m64n64w4s2";
        let found = explained("h200", "mix-roots", &[set]).unwrap();
        assert!(found.batches.iter().all(|batch| batch.sets.iter().any(|other| other.set == set)));
        let error = format!("{:#}", explained("h200", "mix-roots", &["m16n16w4s2"]).unwrap_err());
        assert!(error.contains("m16n16w4s2") && error.contains("tilewright space"), "{error}");
    }

    #[test]
    fn a_gpu_of_another_architecture_gets_tiles_that_it_runs() {
        let found = explained("rtx-4090", "mix-roots", &[]).unwrap();
        assert_eq!(
            (found.selector, found.measured_on),
            ("other architecture", Some("NVIDIA H100 80GB HBM3"))
        );
        let class = Class { head_dim: 128, dtype: tilewright_heuristics::Dtype::F16 };
        let feasible = NamedDevice::find(Some("rtx-4090")).unwrap().feasible(&class);
        for batch in &found.batches {
            let set: TileSetBuf = batch.set.parse().unwrap();
            assert!(set.tiles().iter().all(|tile| feasible.contains(tile)), "{set}");
            assert!(batch.leaf.is_some() && batch.predicted.us() > 0.0);
        }
    }
}
