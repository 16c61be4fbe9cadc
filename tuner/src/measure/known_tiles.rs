//! The tiles of the selector that a device would use without the run, and which of them each class of kernels has.

use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::WarpSplit;

/// The tiles of the selector that a device would use without the run: they are verified and raced whatever a screening finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownTiles {
    all: Vec<Tile>,
    /// What the selector can return for a class, but for the safe default; absent where it has no tree for it.
    returned: BTreeMap<Class, BTreeSet<Tile>>,
    fallbacks: Vec<Tile>,
}

impl KnownTiles {
    /// These, which all classes have.
    pub const fn of_all_classes(all: Vec<Tile>) -> Self {
        Self { all, returned: BTreeMap::new(), fallbacks: Vec::new() }
    }

    /// The same of a GPU, but a class that `returned` names has only what a selector can return there, and these `fallbacks`: tiles that run everywhere but where
    /// warps split heads, the selector's safe default first. One of them is the next selector's safe default, which has to pass in all of these classes; without any,
    /// all classes have all tiles.
    #[must_use]
    pub fn by_class(self, returned: BTreeMap<Class, BTreeSet<Tile>>, fallbacks: Vec<Tile>) -> Self {
        if fallbacks.is_empty() { self } else { Self { returned, fallbacks, ..self } }
    }

    /// All of them.
    pub fn all(&self) -> &[Tile] {
        &self.all
    }

    /// Those that are verified and raced of a class.
    pub fn of(&self, class: &Class) -> Vec<Tile> {
        self.of_class(class, self.fallbacks.len())
    }

    /// Those that a fitted selector is likely to return for a class: what the known one can return, and its safe default.
    pub fn likely(&self, class: &Class) -> Vec<Tile> {
        self.of_class(class, 1)
    }

    /// Those of a class with the first fallbacks.
    fn of_class(&self, class: &Class, fallbacks: usize) -> Vec<Tile> {
        let Some(returned) = self.returned.get(class) else { return self.all.clone() };
        let fallbacks = if WarpSplit::splits_heads(class.head_dim) { 0 } else { fallbacks };
        let is_fallback = |tile: &Tile| self.fallbacks.iter().take(fallbacks).any(|other| other == tile);
        self.all.iter().copied().filter(|tile| returned.contains(tile) || is_fallback(tile)).collect()
    }
}
