//! What is known of a device before it is tuned: the selector that it would use now, its own or that of the most alike device.

use crate::measure::KnownTiles;
use crate::prior::Prior;
use crate::returned::ranked_by;
use crate::store::DeviceRecord;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use tilewright_heuristics::data::TreeEntry;
use tilewright_heuristics::{BatchShape, Selection, Tile, TileSetBuf};
use tilewright_kernel_templates::cuda::{KernelOptions, WarpSplit, transposes};
use tilewright_kernel_templates::{Class, Limits, Space, selection};

/// Tiles that run everywhere and that every class of a GPU has, at most: one of them that passes everywhere becomes the safe default. The second and third are for
/// a kernel that fails in one class of twenty.
const FALLBACKS: usize = 3;

/// How the device would choose now.
#[derive(Debug)]
pub(super) struct Known {
    selection: Option<Selection>,
}

impl Known {
    pub(super) fn of(device: &DeviceRecord, limits: &Limits) -> Self {
        Self { selection: device.as_device().and_then(|device| selection(&device, limits, None)) }
    }

    /// The selector; none where rules would decide.
    pub(super) fn prior(&self) -> Option<Prior> {
        Prior::of(self.selection.as_ref()?.matched.selector()?)
    }

    /// Its sets, and each of their tiles alone: the fallback of a class of kernels is one of them.
    pub(super) fn sets(&self) -> Vec<TileSetBuf> {
        let sets = self.selection.iter().flat_map(|selection| selection.sets());
        let mut known: Vec<TileSetBuf> = sets.filter_map(|set| TileSetBuf::of(set.tiles())).collect();
        let single: Vec<TileSetBuf> =
            known.iter().flat_map(|set| set.tiles().iter().copied().map(TileSetBuf::one)).collect();
        known.extend(single);
        known.sort_unstable();
        known.dedup();
        known
    }

    /// Its tiles, which are raced on all batches again.
    pub(super) fn tiles(&self, space: &Space) -> Vec<Tile> {
        let selector = self.selection.as_ref().and_then(|selection| selection.matched.selector());
        let mut tiles = selector.map_or_else(Vec::new, |selector| selector.tiles());
        tiles.retain(|tile| space.tiles().contains(tile));
        tiles
    }

    /// The same, or what rules choose: tiles that every shard of a run verifies and races, whatever its own screening has kept. Shards that
    /// kept different ones would have none in common, and what they unite to no safe default.
    pub(super) fn tiles_or_rules(&self, space: &Space) -> Vec<Tile> {
        let batch = |rows| BatchShape {
            requests: rows,
            all_rows: rows,
            mean_rows: rows,
            shared_rows: rows,
            longest: 1024,
            ..BatchShape::from_values([1; BatchShape::COUNT])
        };
        match (&self.selection, self.tiles(space)) {
            (Some(selection), tiles) if tiles.is_empty() => {
                [1, 16, 128].map(|rows| selection.select(&batch(rows)).tiles().to_vec()).concat()
            }
            (_, tiles) => tiles,
        }
    }

    /// These of its tiles on a GPU, of each class of kernels those that the selector can return there, and a few for all. Each head dimension, and FP8 at each, has a tree
    /// of its own: most tiles of the others would be compiled, verified and raced to lose. Beside them each class has those whose kernels are of another kind there.
    pub(super) fn by_class(&self, tiles: Vec<Tile>, space: &Space, limits: &Limits) -> KnownTiles {
        let known = KnownTiles::of_all_classes(tiles.clone());
        let selector = self.selection.as_ref().and_then(|selection| selection.matched.selector());
        let Some((selector, tree)) = selector.and_then(|selector| Some((selector, TreeEntry::of(selector)?)))
        else {
            return known;
        };
        let returned = |class: Class| {
            let mut returned = ranked_by(selector, &tree, &class)?;
            let feasible = space.feasible(&class, limits);
            returned.retain(|tile| tiles.contains(tile) && feasible.contains(tile));
            // Where none of them runs on this device, rules would choose among all tiles.
            (!returned.is_empty()).then_some((class, returned))
        };
        let mut returned: BTreeMap<Class, BTreeSet<Tile>> =
            Class::all(limits.backend()).filter_map(returned).collect();
        // Those first that most classes have in any case.
        let classes = |tile: &Tile| returned.values().filter(|tiles| tiles.contains(tile)).count();
        let everywhere = space.universally_feasible(limits);
        let mut fallbacks: Vec<Tile> =
            tiles.iter().copied().filter(|tile| everywhere.contains(tile)).collect();
        fallbacks.sort_by_key(|tile| (*tile != selector.safe_default, Reverse(classes(tile))));
        fallbacks.truncate(FALLBACKS);
        let mut all = tiles;
        for (class, returned) in &mut returned {
            for tile in special(class, space, limits) {
                returned.insert(tile);
                if !all.contains(&tile) {
                    all.push(tile);
                }
            }
        }
        KnownTiles::of_all_classes(all).by_class(returned, fallbacks)
    }
}

/// Stages of the tiles of [`special`] whose products are transposed.
const TRANSPOSED_STAGES: RangeInclusive<u16> = 2..=3;

/// Tokens a step of those whose four warps share out a step, in one stage. On an H200 the one of 128 tokens was the fastest of 16 rows on small batches
/// (`docs/tried.md`).
const SPLIT_STEPS: RangeInclusive<u16> = 64..=128;

/// Tiles whose kernels are of another kind in this class than in most: no race of another class tells how they do there.
fn special(class: &Class, space: &Space, limits: &Limits) -> Vec<Tile> {
    let Limits::Cuda(of_gpu) = limits else { return Vec::new() };
    let mut tiles = space.feasible(class, limits);
    let options = KernelOptions::for_pages(16);
    tiles.retain(|tile| {
        let transposed = transposes(tile, class, options) && TRANSPOSED_STAGES.contains(&tile.stages);
        let splits_step = WarpSplit::of(tile, class, false).splits_step
            && (tile.warps, tile.stages) == (4, 1)
            && SPLIT_STEPS.contains(&tile.n);
        (transposed || splits_step) && of_gpu.producer_warps(&[*tile], class, options) > 0
    });
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::decision_tree::{DecisionTree, Node};
    use tilewright_heuristics::{Backend, Choices, Device, Domain, Dtype, Prices, Selector, TileSet};
    use tilewright_kernel_templates::{CpuLimits, CudaLimits};

    fn device(backend: Backend, name: &str, capability: &str, units: u32) -> DeviceRecord {
        DeviceRecord {
            backend: backend.name().to_owned(),
            name: name.to_owned(),
            capability: capability.to_owned(),
            units,
        }
    }

    #[test]
    fn a_gpu_without_a_module_races_the_tiles_of_the_most_alike() {
        let device = device(Backend::Cuda, "NVIDIA H100 NVL", "sm_90a", 132);
        let known = Known::of(&device, &Limits::Cuda(CudaLimits::named("h100-sxm").unwrap()));
        let sets = known.sets();
        assert!((4..=24).contains(&sets.len()), "{sets:?}");
        assert!(sets.iter().any(|set| set.single().is_some()));
        let space = Space::of(Backend::Cuda);
        let tiles = known.tiles(&space);
        assert!(tiles.len() >= 4 && tiles.iter().all(|tile| space.tiles().contains(tile)), "{tiles:?}");
        let prior = known.prior().unwrap();
        assert!(prior.device.starts_with("NVIDIA H"), "{}", prior.device);
        assert_eq!(known.tiles_or_rules(&space), tiles);
    }

    fn of_h200() -> (Known, Limits) {
        let limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
        (Known::of(&device(Backend::Cuda, "NVIDIA H200", "sm_90a", 132), &limits), limits)
    }

    #[test]
    fn a_class_has_the_tiles_that_its_part_of_the_tree_returns_and_a_few_that_run_everywhere() {
        let (known, limits) = of_h200();
        let space = Space::of(Backend::Cuda);
        let selector = known.selection.as_ref().unwrap().matched.selector().unwrap();
        let tree = TreeEntry::of(selector).unwrap();
        let tiles = known.by_class(known.tiles(&space), &space, &limits);
        let everywhere = space.universally_feasible(&limits);
        let (mut pairs, mut of_all) = (0, 0);
        for class in Class::all(Backend::Cuda) {
            let of_class = tiles.of(&class);
            let ranked = ranked_by(selector, &tree, &class).expect("all were measured");
            let feasible = space.feasible(&class, &limits);
            let is_ranked = |tile: &Tile| ranked.contains(tile);
            assert!(ranked.iter().filter(|tile| feasible.contains(tile)).all(|tile| of_class.contains(tile)));
            let of_another_kind = special(&class, &space, &limits);
            assert!(of_another_kind.iter().all(|tile| of_class.contains(tile)));
            let expected = match (class.dtype.has_fp8_kv(), class.head_dim) {
                (true, 64 | 128) => "m32n64w4s2 m32n64w4s3",
                (true, 192 | 256) => "m16n64w4s1 m16n128w4s1 m32n64w4s2 m32n64w4s3",
                _ => "",
            };
            let names: Vec<String> = of_another_kind.iter().map(Tile::to_string).collect();
            assert_eq!(names.join(" "), expected, "{class}");
            let is_other = |tile: &Tile| !is_ranked(tile) && !of_another_kind.contains(tile);
            let others: Vec<Tile> = of_class.iter().copied().filter(is_other).collect();
            assert!(others.len() <= FALLBACKS && others.iter().all(|tile| everywhere.contains(tile)));
            let splits_heads = class.head_dim == 512;
            assert!(!splits_heads || others.is_empty(), "{class}: {others:?}");
            assert_eq!(of_class.contains(&selector.safe_default), !splits_heads, "{class}");
            // A fitted selector is likely to have the same tree and safe default.
            let likely = tiles.likely(&class);
            let is_likely = |tile: &Tile| !is_other(tile) || *tile == selector.safe_default;
            assert!(likely.iter().all(is_likely), "{class}");
            assert!(ranked.iter().filter(|tile| feasible.contains(tile)).all(|tile| likely.contains(tile)));
            (pairs, of_all) = (pairs + of_class.len(), of_all + tiles.all().len());
        }
        assert!(2 * pairs < of_all, "{pairs} of {of_all}");
        // Several tiles can be the next safe default, wherever one of them fails.
        let usual = Class::all(Backend::Cuda).filter(|class| class.head_dim != 512);
        let of_usual: Vec<Vec<Tile>> = usual.map(|class| tiles.of(&class)).collect();
        let common = |tile: &&Tile| of_usual.iter().all(|tiles| tiles.contains(tile));
        assert_eq!(everywhere.iter().filter(common).count(), FALLBACKS);
    }

    /// Of 16-bit types heads of 128 and 256 elements were measured, and FP8 with 128; all but heads of 512 were verified.
    fn measured_less() -> &'static Selector {
        const SETS: [TileSet<'static>; 3] = [
            TileSet::new(&[Tile::of("m16n64w4s2")]),
            TileSet::new(&[Tile::of("m64n64w4s2")]),
            TileSet::new(&[Tile::of("m64n32w4s3")]),
        ];
        let place = |feature| BatchShape::NAMES.iter().position(|name| *name == feature).unwrap();
        let leaf = |ranked| Node::Leaf { ranked, batches: 8, regret: 0.0 };
        let nodes = vec![
            Node::Split { feature: place("head_dim"), threshold: 128, low: 1, high: 4 },
            Node::Split { feature: place("dtype"), threshold: 2, low: 2, high: 3 },
            leaf(&[0]),
            leaf(&[1]),
            leaf(&[2]),
        ];
        let classes = Class::all(Backend::Cuda).filter(|class| class.head_dim != 512);
        let feasible = classes.map(|class| ((class.head_dim, class.dtype.code()), 0b111)).collect::<Vec<_>>();
        let max = BatchShape {
            head_dim: 256,
            dtype: Dtype::Fp8Bf16.code(),
            ..BatchShape::from_values([1000; BatchShape::COUNT])
        };
        Box::leak(Box::new(Selector {
            device: Device { backend: Backend::Cuda, name: "nobody's", capability: "sm_90a", units: 132 },
            domain: Domain { min: BatchShape::UNKNOWN, max },
            sets: &*Box::leak(Box::new(SETS)),
            safe_default: SETS[0].tiles()[0],
            safe_set: SETS[0],
            prices: Prices::H200,
            choices: Choices::Data(DecisionTree { nodes: nodes.leak(), feasible: feasible.leak() }),
        }))
    }

    #[test]
    fn a_class_of_which_no_batch_was_measured_has_all_known_tiles() {
        let limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
        let own = measured_less();
        let known = Known { selection: selection(&own.device, &limits, Some(own)) };
        let space = Space::of(Backend::Cuda);
        let by_class = known.by_class(known.tiles(&space), &space, &limits);
        // FP8 with 128 elements has tiles whose kernels are of another kind.
        let of_fp8 = special(&Class { head_dim: 128, dtype: Dtype::Fp8F16 }, &space, &limits);
        assert_eq!(by_class.all(), [known.tiles(&space), of_fp8.clone()].concat());
        for class in Class::all(Backend::Cuda) {
            let returned = match (class.head_dim, class.dtype.has_fp8_kv()) {
                (128, false) => Some(0),
                (128, true) => Some(1),
                (256, false) => Some(2),
                _ => None,
            };
            let likely: BTreeSet<Tile> = by_class.likely(&class).into_iter().collect();
            let mut expected: BTreeSet<Tile> = match returned {
                Some(set) => [own.safe_default, own.sets[set].tiles()[0]].into(),
                None => by_class.all().iter().copied().collect(),
            };
            expected.extend(of_fp8.iter().filter(|_| returned == Some(1)));
            assert_eq!(likely, expected, "{class}");
            if returned.is_none() {
                assert_eq!(by_class.of(&class), by_class.all(), "{class}");
            }
        }
    }

    #[test]
    fn without_a_selector_or_a_tile_that_runs_everywhere_all_classes_have_the_same() {
        let tile = Tile::of("m16n64w4s2");
        let class = Class { head_dim: 128, dtype: Dtype::F16 };
        let returned = BTreeMap::from([(class, BTreeSet::new())]);
        let tiles = KnownTiles::of_all_classes(vec![tile]);
        assert_eq!(tiles.clone().by_class(returned.clone(), Vec::new()).of(&class), [tile]);
        assert_eq!(tiles.clone().by_class(returned, vec![Tile::of("m32n32w2s2")]).of(&class), []);

        let cuda = Limits::Cuda(CudaLimits::named("h200").unwrap());
        let rules = Known { selection: None };
        let space = Space::of(Backend::Cuda);
        assert_eq!(rules.by_class(vec![tile], &space, &cuda), tiles);
    }

    #[test]
    fn shards_have_tiles_in_common_that_run_everywhere() {
        let cuda = Limits::Cuda(CudaLimits::named("a100-80gb").unwrap());
        let cpu = Limits::Cpu(CpuLimits { threads: 64, ..CpuLimits::BASELINE });
        for (device, limits) in [
            (device(Backend::Cuda, "nobody's", "sm_80", 64), cuda),
            (device(Backend::Cpu, "nobody's", "none", 64), cpu),
        ] {
            let space = Space::of(limits.backend());
            let everywhere = space.universally_feasible(&limits);
            let common = Known::of(&device, &limits).tiles_or_rules(&space);
            assert!(common.iter().any(|tile| everywhere.contains(tile)), "{device}: {common:?}");
            assert_eq!(common, Known::of(&device, &limits).tiles_or_rules(&space));
        }
    }
}
