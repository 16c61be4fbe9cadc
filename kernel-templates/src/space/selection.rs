//! The tiles that a device gets: its selector, without what the rules say cannot run there.

use super::{Limits, Space, check};
use crate::Class;
use std::path::Path;
use std::sync::OnceLock;
use tilewright_heuristics::{Device, Selection, Selector, Tile, generated, lookup_among};

/// The folder whose `*.json` are selectors, which go before those that are compiled in.
const FOLDER: &str = "TILEWRIGHT_SELECTORS";

/// Every selector: those of the folder that `TILEWRIGHT_SELECTORS` names, then those that are compiled in. Files that are none are said once, as
/// warnings, and passed over.
pub fn selectors() -> &'static [&'static Selector] {
    static SELECTORS: OnceLock<Vec<&'static Selector>> = OnceLock::new();
    SELECTORS.get_or_init(|| {
        let folder = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty());
        let mut selectors = folder.map_or_else(Vec::new, |folder| loaded(Path::new(&folder)));
        selectors.extend(generated::SELECTORS);
        selectors
    })
}

fn loaded(folder: &Path) -> Vec<&'static Selector> {
    let all = Selector::load_folder(folder).unwrap_or_else(|error| vec![Err(error)]);
    let usable =
        |outcome: Result<&'static Selector, _>| outcome.inspect_err(|error| tracing::warn!("{error}")).ok();
    all.into_iter().filter_map(usable).collect()
}

/// How a device with these limits chooses tiles ([`tilewright_heuristics::lookup`]): by `own` if there is one, else by the best of
/// [`selectors`]. Tiles of another device's selector are left out for the classes of kernels that they cannot run here, and for classes that the
/// selector does not know PAT's rules choose among its tiles that they can run, or among the device's where these are few. `None` if the device can run no tile.
pub fn selection(device: &Device<'_>, limits: &Limits, own: Option<&'static Selector>) -> Option<Selection> {
    let space = Space::of(device.backend);
    let mut feasible = space.universally_feasible(limits);
    if feasible.is_empty() {
        return None;
    }
    feasible.extend(space.feasible_for_split_heads(limits));
    feasible.sort_unstable();
    feasible.dedup();
    let read_bandwidth = match limits {
        Limits::Cpu(_) => None,
        Limits::Cuda(limits) => Some(limits.read_bandwidth).filter(|&bandwidth| bandwidth > 0),
    };
    let known = match &own {
        Some(own) => std::slice::from_ref(own),
        None => selectors(),
    };
    let mut selection = lookup_among(known, device, read_bandwidth, &feasible);
    let mut tiles = selection.tiles();
    tiles.extend(&feasible);
    for class in Class::all(device.backend) {
        let selector = selection.matched.selector();
        let known = selector.is_none_or(|selector| selector.knows(class.head_dim, class.dtype));
        // What a selector was verified with on this very device needs no rule.
        if selection.is_exact() && known {
            continue;
        }
        let unfit: Vec<Tile> =
            tiles.iter().copied().filter(|tile| check(tile, &class, limits).is_err()).collect();
        selection.leave_out(class.head_dim, class.dtype, &unfit);
        selection.choose_by_rules(class.head_dim, class.dtype);
    }
    Some(selection)
}

/// Batches of a class, of all sizes.
#[cfg(test)]
pub(super) fn batches(class: &Class) -> impl Iterator<Item = tilewright_heuristics::BatchShape> {
    use tilewright_heuristics::BatchShape;
    let (head_dim, dtype) = (class.head_dim, class.dtype.code());
    (1..200).map(move |seed: u32| {
        let values = std::array::from_fn(|i| 1 << ((seed * (i as u32 + 3)) % 17));
        BatchShape { head_dim, dtype, ..BatchShape::from_values(values) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaLimits;
    use tilewright_heuristics::{Backend, BatchShape, Choices, Dtype, TileSet, first_feasible};

    fn of_h200() -> &'static Selector {
        generated::SELECTORS.iter().find(|selector| selector.device.name == "NVIDIA H200").unwrap()
    }

    const fn is_seldom(head_dim: u32, dtype: Dtype) -> bool {
        head_dim == 512 || !head_dim.is_power_of_two() && dtype.has_fp8_kv()
    }

    /// The H200's selector, had nothing been measured of heads of 512 elements, nor of heads of 96 and 192 in FP8.
    fn that_knows_less() -> &'static Selector {
        fn ranked(batch: &BatchShape) -> (&'static [u8], u64) {
            let Choices::Code { ranked, .. } = of_h200().choices else { panic!("it is code") };
            let (ranked, feasible) = ranked(batch);
            let dtype = Dtype::from_code(batch.dtype).unwrap();
            (ranked, if is_seldom(batch.head_dim, dtype) { 0 } else { feasible })
        }
        fn choose(batch: &BatchShape) -> TileSet<'static> {
            let (ranked, feasible) = ranked(batch);
            first_feasible(ranked, feasible)
                .map_or(of_h200().safe_set, |set| of_h200().sets[usize::from(set)])
        }
        let choices = Choices::Code { choose, follow: |batch, _| choose(batch), ranked };
        Box::leak(Box::new(Selector { choices, ..*of_h200() }))
    }

    /// Rules choose by the batch for classes that a selector does not know, and not one tile for all. Few of its tiles run heads of 512 elements; those are
    /// chosen among what the device runs. Where e4m3 was measured, e5m2 is known as that.
    #[test]
    fn a_class_that_the_selector_does_not_know_gets_tiles_by_rules() {
        let h200 = Limits::Cuda(CudaLimits::named("h200").unwrap());
        let selector = that_knows_less();
        for name in ["NVIDIA H200", "NVIDIA H100 PCIe"] {
            let device = Device { backend: Backend::Cuda, name, capability: "sm_90a", units: 132 };
            let selection = selection(&device, &h200, Some(selector)).unwrap();
            assert_eq!(selection.is_exact(), name == "NVIDIA H200");
            let (known, unknown): (Vec<Class>, Vec<Class>) =
                Class::all(Backend::Cuda).partition(|class| selector.knows(class.head_dim, class.dtype));
            assert!(unknown.iter().all(|class| is_seldom(class.head_dim, class.dtype)), "{unknown:?}");
            assert_eq!(unknown.len(), 6 + 2 * 4, "{unknown:?}");
            for class in unknown {
                let mut chosen = std::collections::BTreeSet::new();
                for batch in batches(&class) {
                    let set = selection.select(&batch);
                    assert_eq!(set.tiles().len(), 1, "{set}");
                    assert!(selector.tiles().contains(&set.tiles()[0]) || class.head_dim == 512, "{set}");
                    assert!(selection.tiles_of(class.head_dim, class.dtype).contains(&set.tiles()[0]));
                    assert_eq!(check(&set.tiles()[0], &class, &h200), Ok(()));
                    chosen.insert(set.tiles()[0].m);
                }
                assert!(chosen.len() > 1, "{name} {class}: {chosen:?}");
            }
            for class in known {
                for batch in batches(&class) {
                    assert_eq!(selection.select(&batch), selector.select(&batch), "{name} {class}");
                }
            }
        }
    }

    #[test]
    fn every_known_gpu_gets_tiles_that_it_can_run() {
        for limits in CudaLimits::NAMED {
            let name = format!("NVIDIA {}", limits.name.to_uppercase());
            let device =
                Device { backend: Backend::Cuda, name: &name, capability: &limits.arch, units: limits.sms };
            let limits = Limits::Cuda(limits.clone());
            let selection = selection(&device, &limits, None).unwrap();
            for class in Class::all(Backend::Cuda) {
                for batch in batches(&class) {
                    let set = selection.select(&batch);
                    let wrong = set.tiles().iter().find_map(|tile| check(tile, &class, &limits).err());
                    assert!(wrong.is_none(), "{name} {class} gets {set}: {wrong:?}");
                }
            }
        }
    }
}
