//! Finds the selector of a device: exact device, else the most alike of the same capability, else of the nearest architecture, else PAT's
//! analytic rules. Never an error.

use crate::{
    Backend, BatchShape, Device, Dtype, Prices, Selector, Tile, TileSet, TreePath, analytic, generated,
};

/// How a device's choices are made.
#[derive(Clone, Copy, Debug)]
pub enum Match {
    /// A selector measured on this very device.
    Exact(&'static Selector),
    /// A selector measured on another device of the same capability: the most alike.
    SameCapability(&'static Selector),
    /// A selector measured on a device of another architecture: the nearest.
    OtherArchitecture(&'static Selector),
    /// PAT's analytic rules: nothing alike was measured.
    Analytic,
}

impl Match {
    /// The selector, if there is one.
    pub const fn selector(&self) -> Option<&'static Selector> {
        match *self {
            Self::Exact(selector) | Self::SameCapability(selector) | Self::OtherArchitecture(selector) => {
                Some(selector)
            }
            Self::Analytic => None,
        }
    }

    /// Its name for people.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Exact(_) => "exact",
            Self::SameCapability(_) => "same capability",
            Self::OtherArchitecture(_) => "other architecture",
            Self::Analytic => "analytic",
        }
    }
}

/// A class of kernels: head dimension and element types.
type Class = (u32, Dtype);

/// The choices for one device: a [`Match`] and the tiles that this device can run.
#[derive(Clone, Debug)]
pub struct Selection {
    /// How the choices are made.
    pub matched: Match,
    feasible: Vec<Tile>,
    prices: Option<Prices>,
    /// Tiles that were found not to run here, in order: rules ask of each tile whether it is one.
    left_out: Vec<(Class, Tile)>,
    /// For each class with such tiles, and for each that rules choose for, the selector's sets without any, one bit each.
    runnable: Vec<(Class, u64)>,
    /// Classes that the selector does not know.
    unknown: Vec<Class>,
}

impl Selection {
    /// What a user should know whose device has no selector of its own; `None` if it has one.
    pub fn warning(&self, device: &Device<'_>) -> Option<String> {
        let using = match self.matched {
            Match::Exact(_) => return None,
            Match::SameCapability(selector) => format!("using the selector of `{}`", selector.device.name),
            Match::OtherArchitecture(selector) => {
                format!("using the selector of `{}` ({})", selector.device.name, selector.device.capability)
            }
            Match::Analytic => "using PAT's analytic rules".to_owned(),
        };
        Some(format!(
            "no tile selector was measured on `{}` ({}): {using}; run `tilewright tune` to measure one",
            device.name, device.capability
        ))
    }

    /// The tiles for a batch: the selector's first choice that runs here. Where none does, or no selector matched or knows the class, one tile for all
    /// packs: the one that PAT's rules choose, among the selector's tiles that run here, or without any, or with less than half of them, among the device's
    /// feasible tiles, for the pack that the batch would be if its requests shared evenly.
    #[inline]
    pub fn select(&self, batch: &BatchShape) -> TileSet<'_> {
        let Some(selector) = self.matched.selector() else { return self.by_rules(batch) };
        if self.runnable.is_empty() {
            return selector.select(batch);
        }
        self.select_runnable(selector, batch)
    }

    /// The tiles for a batch, as [`Selection::select`], and the path through the selector's tree, if there is one.
    pub fn explain(&self, batch: &BatchShape) -> (TileSet<'_>, Option<TreePath>) {
        (self.select(batch), self.matched.selector().map(|selector| selector.explain(batch).1))
    }

    fn select_runnable(&self, selector: &'static Selector, batch: &BatchShape) -> TileSet<'_> {
        let dtype = Dtype::from_code(batch.dtype);
        let of_class =
            |&&(class, _): &&(Class, u64)| Some(class) == dtype.map(|dtype| (batch.head_dim, dtype));
        let Some(&(class, runnable)) = self.runnable.iter().find(of_class) else {
            return selector.select(batch);
        };
        if self.is_foreign(class, runnable, selector) {
            return self.by_rules(batch);
        }
        let ranked = selector.select_among(batch, runnable);
        ranked.or_else(|| among_single(selector, runnable, batch)).unwrap_or_else(|| self.by_rules(batch))
    }

    fn is_left_out(&self, class: Class, tile: &Tile) -> bool {
        self.left_out.binary_search(&(class, *tile)).is_ok()
    }

    /// Whether a selector's tiles are none for a class: it does not know it, and less than half of them run there.
    fn is_foreign(&self, class: Class, runnable: u64, selector: &Selector) -> bool {
        self.unknown.contains(&class) && 2 * (runnable.count_ones() as usize) < selector.sets.len()
    }

    fn by_rules(&self, batch: &BatchShape) -> TileSet<'_> {
        let class = Dtype::from_code(batch.dtype).map(|dtype| (batch.head_dim, dtype));
        let runs = |tile: &Tile| class.is_none_or(|class| !self.is_left_out(class, tile));
        let tile = analytic::pat(self.feasible.iter().copied().filter(runs), &batch.as_pack());
        let at = tile.and_then(|tile| self.feasible.iter().position(|&other| other == tile)).unwrap_or(0);
        TileSet::new(&self.feasible[at..=at])
    }

    /// Has PAT's rules choose among the selector's tiles for a class of kernels that it does not know ([`Selector::knows`]), rather than its safe
    /// default, whatever the batch is. Nothing changes for a class that it knows.
    pub fn choose_by_rules(&mut self, head_dim: u32, dtype: Dtype) {
        let known = self.matched.selector().is_none_or(|selector| selector.knows(head_dim, dtype));
        if !known && !self.unknown.contains(&(head_dim, dtype)) {
            self.unknown.push((head_dim, dtype));
            self.leave_out(head_dim, dtype, &[]);
        }
    }

    /// Never chooses these tiles for a class of kernels again: they were found not to run here.
    pub fn leave_out(&mut self, head_dim: u32, dtype: Dtype, tiles: &[Tile]) {
        let class = (head_dim, dtype);
        self.left_out.extend(tiles.iter().map(|&tile| (class, tile)));
        self.left_out.sort_unstable();
        self.left_out.dedup();
        let Some(selector) = self.matched.selector() else { return };
        let runs = |set: &TileSet<'_>| set.tiles().iter().all(|tile| !self.is_left_out(class, tile));
        let bits = selector.sets.iter().enumerate().filter(|(_, set)| runs(set));
        let mask = bits.fold(0u64, |mask, (bit, _)| mask | 1 << bit);
        self.runnable.retain(|(known, _)| *known != class);
        if mask.count_ones() as usize != selector.sets.len() || self.unknown.contains(&class) {
            self.runnable.push((class, mask));
        }
    }

    /// The same choices among these tiles alone, for batches of one class of kernels, which can run them: where each further tile costs a
    /// launch, as in graphs that serve any batch. Other classes are not to be asked about then.
    pub fn only(mut self, head_dim: u32, dtype: Dtype, tiles: &[Tile]) -> Self {
        // Where no set of a ranking is left, rules choose among what the device can run.
        self.feasible.extend_from_slice(tiles);
        self.feasible.sort_unstable();
        self.feasible.dedup();
        let mut others = self.tiles();
        others.extend_from_slice(&self.feasible);
        others.retain(|tile| !tiles.contains(tile));
        others.sort_unstable();
        others.dedup();
        self.leave_out(head_dim, dtype, &others);
        self
    }

    /// Every tile that packs of a class of kernels may get.
    pub fn tiles_of(&self, head_dim: u32, dtype: Dtype) -> Vec<Tile> {
        let class = (head_dim, dtype);
        let runs = |tile: &Tile| !self.is_left_out(class, tile);
        let mut tiles = self.tiles();
        tiles.retain(runs);
        if let (Some(selector), Some(&(_, runnable))) =
            (self.matched.selector(), self.runnable.iter().find(|(of, _)| *of == class))
            && self.is_foreign(class, runnable, selector)
        {
            tiles.clear();
        }
        if tiles.is_empty() {
            // Rules decide.
            tiles.extend(self.feasible.iter().copied().filter(runs));
        }
        tiles
    }

    /// Every tile that packs may get.
    pub fn tiles(&self) -> Vec<Tile> {
        match self.matched.selector() {
            Some(selector) => selector.tiles(),
            None => self.feasible.clone(),
        }
    }

    /// Every set that a batch may get; none where PAT's rules decide.
    pub fn sets(&self) -> &'static [TileSet<'static>] {
        self.matched.selector().map_or(&[], |selector| selector.sets)
    }

    /// The prices measured with the selector, scaled to this device if it is another; `None` where nothing alike was measured.
    pub const fn prices(&self) -> Option<Prices> {
        self.prices
    }

    /// Whether these choices come from measurements of this very device.
    pub const fn is_exact(&self) -> bool {
        matches!(self.matched, Match::Exact(_))
    }
}

/// The set of one tile, of those that are `runnable`, that PAT's rules choose for a batch.
fn among_single(selector: &'static Selector, runnable: u64, batch: &BatchShape) -> Option<TileSet<'static>> {
    let sets = selector.sets.iter().enumerate().filter(|(bit, _)| runnable >> bit & 1 == 1);
    let single = sets.filter_map(|(_, set)| <[Tile; 1]>::try_from(set.tiles()).ok()).map(|[tile]| tile);
    let tile = analytic::pat(single, &batch.as_pack())?;
    selector.sets.iter().copied().find(|set| set.tiles() == [tile])
}

/// The choices for `device` among the selectors emitted into this crate.
///
/// `read_bandwidth` is what the device reads at most, in bytes a second, by its data sheet or driver; `None` if unknown. `feasible` are the
/// tiles that can run supported classes of kernels on the device; [`Selection::leave_out`] takes away what runs some of them only.
///
/// # Panics
/// If `feasible` is empty: a device that can run no tile has no backend.
pub fn lookup(device: &Device<'_>, read_bandwidth: Option<u64>, feasible: &[Tile]) -> Selection {
    lookup_among(generated::SELECTORS, device, read_bandwidth, feasible)
}

/// [`lookup`] among given selectors.
///
/// # Panics
/// If `feasible` is empty.
pub fn lookup_among(
    selectors: &[&'static Selector],
    device: &Device<'_>,
    read_bandwidth: Option<u64>,
    feasible: &[Tile],
) -> Selection {
    assert!(!feasible.is_empty(), "a device that can run no tile has no backend");
    let alike = || {
        let followed = selectors.iter().copied().filter(|s| s.device.backend == device.backend);
        followed.filter(|s| can_follow(s, device, feasible))
    };
    let nearest = |a: &&Selector, b: &&Selector| {
        let distance = |selector: &Selector| distance(selector, device, read_bandwidth);
        let far = |selector: &Selector| (other_architecture(selector, device), other_model(selector, device));
        far(a).cmp(&far(b)).then(distance(a).total_cmp(&distance(b)))
    };
    let exact = selectors.iter().copied().find(|s| {
        let Device { backend, name, capability, .. } = s.device;
        (backend, name, capability) == (device.backend, device.name, device.capability)
    });
    let matched = match (exact, alike().min_by(nearest)) {
        (Some(selector), _) => Match::Exact(selector),
        (_, Some(selector)) if selector.device.capability == device.capability => {
            Match::SameCapability(selector)
        }
        (_, Some(selector)) => Match::OtherArchitecture(selector),
        _ => Match::Analytic,
    };
    let prices = matched.selector().map(|selector| match matched {
        Match::Exact(_) => selector.prices,
        _ => selector.prices.scaled((selector.device.units, device.units), read_bandwidth),
    });
    let feasible = feasible.to_vec();
    Selection { matched, feasible, prices, left_out: Vec::new(), runnable: Vec::new(), unknown: Vec::new() }
}

/// Whether what a selector of another device chooses runs on this one.
fn can_follow(selector: &Selector, device: &Device<'_>, feasible: &[Tile]) -> bool {
    match device.backend {
        // Its tiles may share a work item among more threads than this processor has, and its SIMD level may be another.
        Backend::Cpu => {
            selector.device.capability == device.capability
                && selector.device.units <= device.units
                && selector.tiles().iter().all(|tile| feasible.contains(tile))
        }
        // A tile that does not run here is left out of its ranking.
        Backend::Cuda => true,
    }
}

/// How far a selector's architecture is from a device's: generations, then steps within one.
fn other_architecture(selector: &Selector, device: &Device<'_>) -> (u32, u32) {
    if selector.device.capability == device.capability {
        return (0, 0);
    }
    let number = |capability: &str| {
        capability.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(u32::MAX)
    };
    let (a, b) = (number(selector.device.capability), number(device.capability));
    ((a / 10).abs_diff(b / 10), (a % 10).abs_diff(b % 10).max(1))
}

/// Whether a selector was measured on another model: names of one model differ by memory and form factor only.
fn other_model(selector: &Selector, device: &Device<'_>) -> bool {
    model(selector.device.name) != model(device.name)
}

/// The first word with a digit that is no size of memory: `H100` of `NVIDIA H100 80GB HBM3`.
fn model(name: &str) -> Option<&str> {
    let is_model = |word: &&str| word.contains(|c: char| c.is_ascii_digit()) && !word.ends_with("GB");
    name.split(|c: char| !c.is_ascii_alphanumeric()).find(is_model)
}

/// How unlike two devices are, in natural logarithms of their ratios of units and read bandwidth.
fn distance(selector: &Selector, device: &Device<'_>, read_bandwidth: Option<u64>) -> f64 {
    let ratio = |a: f64, b: f64| (a.max(1.0) / b.max(1.0)).ln().abs();
    let bandwidth = read_bandwidth
        .map_or(0.0, |bandwidth| ratio(bandwidth as f64, selector.prices.read_bandwidth() as f64));
    ratio(f64::from(device.units), f64::from(selector.device.units)) + bandwidth
}

#[cfg(test)]
#[path = "lookup_tests.rs"]
mod tests;
