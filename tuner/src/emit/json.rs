//! The selector as a file that the runtime loads.

use super::{SelectorModel, TreeModel};
use std::collections::BTreeMap;
use tilewright_heuristics::data::{ClassEntry, DeviceEntry, SCHEMA, SelectorFile, TreeEntry};
use tilewright_heuristics::{BatchShape, Prices};

/// The file of a model; `hashes` say where it comes from.
pub fn selector_file(model: &SelectorModel, hashes: BTreeMap<String, String>) -> SelectorFile {
    let SelectorModel { device, domain, sets, safe_default, prices, feasible, tree } = model;
    let features = |shape: &BatchShape| named(&BatchShape::NAMES, &shape.values());
    SelectorFile {
        schema: SCHEMA,
        device: DeviceEntry {
            backend: device.backend.clone(),
            name: device.name.clone(),
            capability: device.capability.clone(),
            units: device.units,
        },
        hashes,
        sets: sets.iter().map(ToString::to_string).collect(),
        safe_default: safe_default.to_string(),
        prices: named(&Prices::NAMES, &prices.values()),
        domain_min: features(&domain.min),
        domain_max: features(&domain.max),
        feasible: feasible
            .iter()
            .map(|(&(head_dim, dtype), &bits)| ClassEntry {
                head_dim,
                dtype,
                sets: (0..sets.len() as u8).filter(|set| bits & 1 << set != 0).collect(),
            })
            .collect(),
        tree: tree_entry(tree),
        checksum: String::new(),
    }
}

fn named<V: Copy>(names: &[&str], values: &[V]) -> BTreeMap<String, V> {
    names.iter().map(|name| (*name).to_owned()).zip(values.iter().copied()).collect()
}

/// A tree as data.
pub fn tree_entry(tree: &TreeModel) -> TreeEntry {
    match tree {
        TreeModel::Split { feature, threshold, low, high } => TreeEntry::Split {
            feature: BatchShape::NAMES[*feature].to_owned(),
            at_most: *threshold,
            low: Box::new(tree_entry(low)),
            high: Box::new(tree_entry(high)),
        },
        TreeModel::Leaf { ranked, support, regret } => TreeEntry::Leaf {
            ranked: ranked.clone(),
            batches: u32::try_from(*support).unwrap_or(u32::MAX),
            // As the emitted module has it.
            regret_percent: format!("{:.2}", regret * 100.0)
                .parse()
                .ok()
                .filter(|percent: &f64| percent.is_finite()),
        },
    }
}
