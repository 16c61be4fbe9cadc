//! Finds the selector of a device: exact device, else the nearest of the same capability, else PAT's analytic rules. Never an error.

use crate::{Backend, BatchShape, Device, Prices, Selector, Tile, TileSet, analytic, generated};

/// How a device's choices are made.
#[derive(Clone, Copy, Debug)]
pub enum Match {
    /// A selector measured on this very device.
    Exact(&'static Selector),
    /// A selector measured on another device of the same capability: the nearest in units.
    SameCapability(&'static Selector),
    /// PAT's analytic rules: nothing alike was measured.
    Analytic,
}

/// The choices for one device: a [`Match`] and the tiles that this device can run.
#[derive(Clone, Debug)]
pub struct Selection {
    /// How the choices are made.
    pub matched: Match,
    feasible: Vec<Tile>,
}

impl Selection {
    /// What a user should know whose device has no selector of its own; `None` if it has one.
    pub fn warning(&self, device: &Device<'_>) -> Option<String> {
        let using = match self.matched {
            Match::Exact(_) => return None,
            Match::SameCapability(selector) => format!("using the selector of `{}`", selector.device.name),
            Match::Analytic => "using PAT's analytic rules".to_owned(),
        };
        Some(format!(
            "no tile selector was measured on `{}` ({}): {using}; run `tilewright tune` to measure one",
            device.name, device.capability
        ))
    }

    /// The tiles for a batch. Where no selector matched, one tile for all packs: the one that PAT's rules choose, among the device's feasible tiles,
    /// for the pack that the batch would be if its requests shared evenly.
    #[inline]
    pub fn select(&self, batch: &BatchShape) -> TileSet<'_> {
        match self.matched {
            Match::Exact(selector) | Match::SameCapability(selector) => selector.select(batch),
            Match::Analytic => {
                let tile = analytic::pat(&self.feasible, &batch.as_pack());
                let at =
                    tile.and_then(|tile| self.feasible.iter().position(|&other| other == tile)).unwrap_or(0);
                TileSet::new(&self.feasible[at..=at])
            }
        }
    }

    /// Never chooses these tiles where no selector matched: they were found not to run here. The last tile stays.
    pub fn leave_out(&mut self, tiles: &[Tile]) {
        let last = self.feasible.last().copied();
        self.feasible.retain(|tile| !tiles.contains(tile));
        if self.feasible.is_empty() {
            self.feasible.extend(last);
        }
    }

    /// Every tile that packs may get.
    pub fn tiles(&self) -> Vec<Tile> {
        match self.matched {
            Match::Exact(selector) | Match::SameCapability(selector) => selector.tiles(),
            Match::Analytic => self.feasible.clone(),
        }
    }

    /// Every set that a batch may get; none where PAT's rules decide.
    pub fn sets(&self) -> &'static [TileSet<'static>] {
        match self.matched {
            Match::Exact(selector) | Match::SameCapability(selector) => selector.sets,
            Match::Analytic => &[],
        }
    }

    /// The prices measured with the selector; `None` where nothing alike was measured.
    pub const fn prices(&self) -> Option<Prices> {
        match self.matched {
            Match::Exact(selector) | Match::SameCapability(selector) => Some(selector.prices),
            Match::Analytic => None,
        }
    }

    /// Whether these choices come from measurements of this very device.
    pub const fn is_exact(&self) -> bool {
        matches!(self.matched, Match::Exact(_))
    }
}

/// The choices for `device` among the selectors emitted into this crate.
///
/// `feasible` are the tiles that can run every supported shape on the device.
///
/// # Panics
/// If `feasible` is empty: a device that can run no tile has no backend.
pub fn lookup(device: &Device<'_>, feasible: &[Tile]) -> Selection {
    lookup_among(generated::SELECTORS, device, feasible)
}

/// [`lookup`] among given selectors.
///
/// # Panics
/// If `feasible` is empty.
pub fn lookup_among(selectors: &[&'static Selector], device: &Device<'_>, feasible: &[Tile]) -> Selection {
    assert!(!feasible.is_empty(), "a device that can run no tile has no backend");
    let alike = || selectors.iter().copied().filter(|s| s.device.backend == device.backend);
    let exact = alike().find(|s| s.device.name == device.name && s.device.capability == device.capability);
    let same_capability = || {
        alike()
            .filter(|s| s.device.capability == device.capability && can_follow(s, device, feasible))
            .min_by_key(|s| s.device.units.abs_diff(device.units))
    };
    let matched = match exact {
        Some(selector) => Match::Exact(selector),
        None => same_capability().map_or(Match::Analytic, Match::SameCapability),
    };
    Selection { matched, feasible: feasible.to_vec() }
}

/// Whether what a selector of another device of the same capability chooses runs on this one.
fn can_follow(selector: &Selector, device: &Device<'_>, feasible: &[Tile]) -> bool {
    match device.backend {
        // Its tiles may share a work item among more threads than this processor has.
        Backend::Cpu => {
            selector.device.units <= device.units
                && selector.tiles().iter().all(|tile| feasible.contains(tile))
        }
        // GPUs of an architecture differ in SMs and memory, not in what a CTA may have, and the selector chooses for a class of kernels only tiles
        // that run it.
        Backend::Cuda => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;

    static SETS: [TileSet<'static>; 1] = [TileSet::new(&[TILE])];

    const TILE: Tile = Tile::of("m4n64w1s1");
    const ANY: Domain = Domain {
        min: BatchShape::from_values([0; BatchShape::COUNT]),
        max: BatchShape::from_values([u32::MAX; BatchShape::COUNT]),
    };

    const fn selector(name: &'static str, units: u32) -> Selector {
        let device = Device { backend: Backend::Cpu, name, capability: "avx2", units };
        let prices = Prices { cta: units as u64, ..Prices::CPU };
        Selector {
            device,
            domain: ANY,
            sets: &SETS,
            safe_default: TILE,
            prices,
            choose: |_| SETS[0],
            follow: |_, _| SETS[0],
        }
    }

    static SMALL: Selector = selector("small", 2);
    static LARGE: Selector = selector("large", 8);

    fn found(name: &str, capability: &str, units: u32) -> Match {
        let device = Device { backend: Backend::Cpu, name, capability, units };
        lookup_among(&[&SMALL, &LARGE], &device, &[TILE]).matched
    }

    #[test]
    fn the_exact_device_comes_first() {
        assert!(matches!(found("small", "avx2", 2), Match::Exact(s) if s.device.name == "small"));
    }

    #[test]
    fn a_gpu_follows_the_nearest_of_its_architecture() {
        let gpu = |selector: &Selector| Selector {
            device: Device { backend: Backend::Cuda, capability: "sm_90a", ..selector.device },
            ..*selector
        };
        let selectors: [&'static Selector; 2] = [&SMALL, &LARGE].map(|s| &*Box::leak(Box::new(gpu(s))));
        for (units, nearest) in [(1, "small"), (4, "small"), (6, "large"), (132, "large")] {
            let device = Device { backend: Backend::Cuda, name: "other", capability: "sm_90a", units };
            // No tile runs all classes of kernels, and no selector needs that.
            let matched = lookup_among(&selectors, &device, &[Tile { m: 1, ..TILE }]).matched;
            assert!(matches!(matched, Match::SameCapability(s) if s.device.name == nearest), "{units}");
        }
    }

    #[test]
    fn then_the_largest_alike_device_that_is_not_larger() {
        assert!(matches!(found("other", "avx2", 4), Match::SameCapability(s) if s.device.name == "small"));
        assert!(matches!(found("other", "avx2", 16), Match::SameCapability(s) if s.device.name == "large"));
    }

    #[test]
    fn then_the_analytic_rules() {
        assert!(matches!(found("other", "neon", 4), Match::Analytic));
        assert!(matches!(found("other", "avx2", 1), Match::Analytic));
    }

    #[test]
    fn rules_choose_among_tiles_that_run() {
        let device = Device { backend: Backend::Cpu, name: "other", capability: "neon", units: 4 };
        let [low, high] = [Tile { m: 1, ..TILE }, TILE];
        let mut selection = lookup_among(&[], &device, &[low, high]);
        let batch = BatchShape::from_values([4; BatchShape::COUNT]);
        let first = selection.select(&batch).tiles()[0];
        let other = if first == low { high } else { low };
        selection.leave_out(&[first]);
        assert_eq!(selection.select(&batch).tiles(), [other]);
        selection.leave_out(&[low, high]);
        assert_eq!(selection.tiles().len(), 1, "there is always a choice");
    }

    #[test]
    fn prices_come_with_the_selector() {
        let prices = |name, capability, units| {
            let device = Device { backend: Backend::Cpu, name, capability, units };
            lookup_among(&[&SMALL, &LARGE], &device, &[TILE]).prices()
        };
        assert_eq!(prices("large", "avx2", 8), Some(LARGE.prices));
        assert_eq!(prices("other", "avx2", 4), Some(SMALL.prices), "of the same capability");
        assert_eq!(prices("other", "neon", 4), None);
    }

    #[test]
    fn a_selector_without_a_runnable_tile_is_passed_over() {
        let device = Device { backend: Backend::Cpu, name: "other", capability: "avx2", units: 8 };
        let others = [Tile { m: 1, ..TILE }];
        let selection = lookup_among(&[&SMALL, &LARGE], &device, &others);
        assert!(matches!(selection.matched, Match::Analytic));
        assert_eq!(selection.select(&BatchShape::from_values([1; BatchShape::COUNT])).tiles(), others);
    }
}
