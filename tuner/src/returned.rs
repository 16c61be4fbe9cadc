//! Which tiles a selector can return for a class of kernels: its tree has a part for each head dimension, and for K and V in FP8, so that most of its tiles are
//! returned in a few classes alone.

use crate::emit::{SelectorModel, tree_entry};
use std::collections::BTreeSet;
use tilewright_heuristics::data::TreeEntry;
use tilewright_heuristics::{BatchShape, Domain, Dtype, Selector, Tile, TileSetBuf};
use tilewright_kernel_templates::Class;

/// The tiles that a fitted selector can return for a class of kernels: those of all rankings that the class's batches end in, and the safe default. A ranking counts
/// as a whole: where its first set is left out (it does not compile, or a graph has other tiles), the next one is returned.
pub fn returned_by(model: &SelectorModel, class: &Class) -> BTreeSet<Tile> {
    let sets = sets_returned_by(model, class);
    sets.iter().flat_map(|set| set.tiles()).copied().chain([model.safe_default]).collect()
}

/// The sets of these rankings.
pub fn sets_returned_by(model: &SelectorModel, class: &Class) -> BTreeSet<TileSetBuf> {
    let ranked = Part::of(&tree_entry(&model.tree), &model.domain, class).ranked;
    ranked.into_iter().map(|set| model.sets[usize::from(set)]).collect()
}

/// The tiles of all rankings of an emitted or loaded selector that a class's batches end in, without the safe default. `None` for a class whose tree was fitted to batches
/// of others, and for one that the selector does not know.
pub fn ranked_by(selector: &Selector, tree: &TreeEntry, class: &Class) -> Option<BTreeSet<Tile>> {
    let part = Part::of(tree, &selector.domain, class);
    let is_known = part.is_own && selector.knows(class.head_dim, class.dtype);
    let sets = part.ranked.into_iter().filter_map(|set| selector.sets.get(usize::from(set)));
    is_known.then(|| sets.flat_map(|set| set.tiles()).copied().collect())
}

/// What a tree has for a class of kernels.
struct Part {
    /// The sets of all rankings that batches of the class can end in, as indices. Of the tree's questions only those about head dimension and element types are answered.
    ranked: BTreeSet<u8>,
    /// Whether it was fitted to batches of the class's head dimension, and of FP8 for a class with FP8: the tree asks about them first
    /// ([`Analysis::of`](crate::analysis::Analysis::of)).
    is_own: bool,
}

impl Part {
    fn of(tree: &TreeEntry, domain: &Domain, class: &Class) -> Self {
        let batch = BatchShape { head_dim: class.head_dim, dtype: class.dtype.code(), ..BatchShape::UNKNOWN };
        let BatchShape { head_dim, dtype, .. } = domain.asked(&batch);
        let has_fp8 = |dtype: u32| Dtype::from_code(dtype).is_some_and(Dtype::has_fp8_kv);
        let mut ranked = BTreeSet::new();
        let mut is_of_dim = head_dim == domain.max.head_dim;
        let mut is_of_type = class.dtype.has_fp8_kv() == has_fp8(domain.min.dtype);
        let mut open = vec![tree];
        while let Some(node) = open.pop() {
            let (feature, at_most, low, high) = match node {
                TreeEntry::Leaf { ranked: of_leaf, .. } => {
                    ranked.extend(of_leaf);
                    continue;
                }
                TreeEntry::Split { feature, at_most, low, high } => (feature, *at_most, low, high),
            };
            let value = match feature.as_str() {
                "head_dim" => {
                    is_of_dim |= at_most == head_dim;
                    Some(head_dim)
                }
                "dtype" => {
                    // Codes of types with FP8 are behind those of all others.
                    is_of_type |= has_fp8(dtype) && !has_fp8(at_most) && has_fp8(at_most + 1);
                    Some(dtype)
                }
                _ => None,
            };
            if value.is_none_or(|value| value <= at_most) {
                open.push(low);
            }
            if value.is_none_or(|value| value > at_most) {
                open.push(high);
            }
        }
        Self { ranked, is_own: is_of_dim && is_of_type }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::TreeModel;
    use crate::store::DeviceRecord;
    use std::collections::BTreeMap;
    use tilewright_heuristics::generated::SELECTORS;
    use tilewright_heuristics::{Backend, Prices};

    const CLASSES: [(u32, Dtype); 2] = [(64, Dtype::F16), (128, Dtype::Fp8F16)];

    fn class(head_dim: u32, dtype: Dtype) -> Class {
        Class { head_dim, dtype }
    }

    /// Batches of a class inside and outside of what was measured.
    fn batches(class: Class) -> impl Iterator<Item = BatchShape> {
        let mut state = 1u64;
        std::iter::repeat_with(move || {
            let values = std::array::from_fn(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (1 << ((state >> 33) % 18)) + ((state >> 51) % 7) as u32
            });
            let (head_dim, dtype) = (class.head_dim, class.dtype.code());
            BatchShape { head_dim, dtype, ..BatchShape::from_values(values) }
        })
    }

    #[test]
    fn whatever_an_emitted_selector_returns_for_a_class_is_known_to_be_returned_there() {
        for selector in SELECTORS {
            let tree = TreeEntry::of(selector).unwrap();
            let (mut fewer, mut seen) = (0, 0);
            for class in Class::all(selector.device.backend) {
                let Some(known) = ranked_by(selector, &tree, &class) else {
                    continue;
                };
                for (at, batch) in batches(class).take(2000).enumerate() {
                    // Some sets may be left out, as where a graph has room for few tiles.
                    let runnable = if at % 2 == 0 { u64::MAX } else { 0x5a5a_a5a5_3c3c_9696 >> (at % 7) };
                    if let Some(set) = selector.select_among(&batch, runnable) {
                        let of_class = set.tiles().iter().all(|tile| known.contains(tile));
                        assert!(of_class, "{}: {class} gets {set}, not of {known:?}", selector.device.name);
                        seen += 1;
                    }
                }
                fewer += usize::from(known.len() < selector.tiles().len());
            }
            let is_gpu = selector.device.backend == Backend::Cuda;
            assert!(seen > 1000 && (fewer > 2 || !is_gpu), "{}: {fewer} {seen}", selector.device.name);
        }
    }

    /// Asks about the class first and then about requests.
    fn model() -> SelectorModel {
        let leaf = |ranked: &[u8]| TreeModel::Leaf { ranked: ranked.to_vec(), support: 1, regret: 0.0 };
        let split = |feature: &str, threshold, low, high| TreeModel::Split {
            feature: BatchShape::NAMES.iter().position(|name| *name == feature).unwrap(),
            threshold,
            low: Box::new(low),
            high: Box::new(high),
        };
        let of_64 = split("requests", 8, leaf(&[0]), leaf(&[1, 0]));
        let of_fp8 = split("dtype", 2, leaf(&[3]), leaf(&[2]));
        let sets = ["m16n64w4s2", "m64n64w4s2", "m16n128w4s2+m64n96w4s2", "m32n64w2s2"];
        let device = DeviceRecord {
            backend: Backend::Cuda.name().to_owned(),
            name: "any".to_owned(),
            capability: "sm_90a".to_owned(),
            units: 132,
        };
        let max =
            BatchShape { dtype: Dtype::Fp8Bf16.code(), ..BatchShape::from_values([1000; BatchShape::COUNT]) };
        SelectorModel {
            device,
            domain: Domain { min: BatchShape::from_values([1; BatchShape::COUNT]), max },
            sets: sets.map(|set| set.parse::<TileSetBuf>().unwrap()).to_vec(),
            safe_default: Tile::of("m32n32w2s2"),
            prices: Prices::H200,
            feasible: BTreeMap::from(CLASSES.map(|(dim, dtype)| ((dim, dtype.code()), 0b1111))),
            tree: split("head_dim", 64, of_64, of_fp8),
        }
    }

    #[test]
    fn a_class_has_the_rankings_of_its_part_of_the_tree_and_the_safe_default() {
        let model = model();
        let of = |head_dim, dtype| {
            let tiles: BTreeSet<String> =
                returned_by(&model, &class(head_dim, dtype)).iter().map(ToString::to_string).collect();
            tiles.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(64, Dtype::F16), "m16n64w4s2 m32n32w2s2 m64n64w4s2");
        assert_eq!(of(64, Dtype::Fp8F16), of(64, Dtype::F16), "nothing is asked about its type");
        assert_eq!(of(128, Dtype::F16), "m32n32w2s2 m32n64w2s2");
        assert_eq!(of(128, Dtype::Fp8F16), "m16n128w4s2 m32n32w2s2 m64n96w4s2", "all tiles of a set");
        // What was not measured is asked about as the nearest that was.
        assert_eq!(of(128, Dtype::E5m2F16), of(128, Dtype::Fp8F16));
        for (head_dim, dtype) in CLASSES {
            let known = returned_by(&model, &class(head_dim, dtype));
            for batch in batches(class(head_dim, dtype)).take(500) {
                assert!(model.select(&batch).tiles().iter().all(|tile| known.contains(tile)), "{batch:?}");
            }
        }
    }
}
