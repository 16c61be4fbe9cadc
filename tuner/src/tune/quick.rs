//! A quick run: the tiles of the most alike device whose selector is known, on every third batch. It screens nothing, so it finds no tile that
//! nothing alike was measured to want, and takes a third of the time of a whole run.

use crate::fit_settings::FitSettings;
use crate::workloads::{Workload, Workloads};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tilewright_kernel_templates::Class;

/// One of so many batches is measured.
const EVERY: usize = 3;
/// Seconds that a quick fit may take.
const FIT_SECONDS: u16 = 10;
/// The time of a quick run, the fit apart.
pub(super) const BUDGET: Duration = Duration::from_secs(40);

/// How a quick run is fitted: not longer than it measures.
pub(super) fn settings(settings: &FitSettings) -> FitSettings {
    FitSettings { fit_seconds: settings.fit_seconds.min(FIT_SECONDS), ..settings.clone() }
}

/// Leaves every third batch of each scenario, and one of each class of kernels that would be left with none.
pub(super) fn thin(workloads: &mut Workloads) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let class = |workload: &Workload| Class::of(workload.geometry());
    let is_third: Vec<bool> = workloads
        .batches
        .iter()
        .map(|workload| {
            let seen = seen.entry(workload.scenario().to_owned()).or_default();
            *seen += 1;
            (*seen - 1).is_multiple_of(EVERY)
        })
        .collect();
    let thirds = workloads.batches.iter().zip(&is_third).filter(|(_, is_third)| **is_third);
    let mut left: BTreeSet<Class> = thirds.map(|(workload, _)| class(workload)).collect();
    let mut is_third = is_third.into_iter();
    workloads.batches.retain(|workload| is_third.next() == Some(true) || left.insert(class(workload)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::Scale;
    use tilewright_heuristics::Backend;

    #[test]
    fn a_third_of_each_scenario_is_left() {
        let whole = Workloads::load(&[], Backend::Cuda, &Scale::of(Backend::Cuda), None).unwrap();
        let mut thinned = whole.clone();
        thin(&mut thinned);
        let scenarios = |workloads: &Workloads| -> BTreeSet<String> {
            workloads.batches.iter().map(|workload| workload.scenario().to_owned()).collect()
        };
        assert_eq!(scenarios(&thinned), scenarios(&whole));
        let third = whole.batches.len() / 3;
        assert!((third..third + 20).contains(&thinned.batches.len()), "{}", thinned.batches.len());
        assert_eq!(thinned.classes().len(), whole.classes().len());
        assert!(thinned.batches.iter().any(|workload| workload.held_out()));
    }
}
