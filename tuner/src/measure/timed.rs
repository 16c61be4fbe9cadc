//! Which classes of kernels are verified, of which tiles, and how far.

use super::{Coverage, KnownTiles, Preparation};
use crate::shard::Shard;
use crate::workloads::Workload;
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::{Backend, Dtype, Tile};
use tilewright_kernel_templates::{Class, Limits, Space, Verdict};

/// What decides which classes are verified.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    /// The classes that will be timed, with how many workloads each has.
    pub classes: BTreeMap<Class, usize>,
    /// The element types that will be timed, by other shards too.
    pub dtypes: BTreeSet<Dtype>,
    /// The classes of which all tiles are timed with `cp.async`, too.
    pub cp_async: BTreeSet<Class>,
    /// Which shard this is.
    pub shard: Option<Shard>,
    /// Tiles that are worth verifying for a class; all for those that it does not name.
    pub only: BTreeMap<Class, BTreeSet<Tile>>,
}

impl Timed {
    /// The class with the most workloads.
    pub fn usual(&self) -> Option<Class> {
        self.classes.iter().max_by_key(|(_, workloads)| **workloads).map(|(class, _)| *class)
    }

    /// Leaves of the classes that a selector must know tiles for those that do well at their head dimension (`screened`), and those that are `known` of the class.
    /// Classes that are not timed have the latter alone.
    pub fn leave(&mut self, backend: Backend, screened: &BTreeMap<u32, Vec<Tile>>, known: &KnownTiles) {
        if known.all().is_empty() {
            return;
        }
        for class in self.to_verify(backend) {
            let of_dim = screened.get(&class.head_dim).filter(|_| self.classes.contains_key(&class));
            let none = Vec::new();
            let tiles = of_dim.unwrap_or(&none).iter().copied().chain(known.of(&class)).collect();
            self.only.insert(class, tiles);
        }
    }

    /// What the verification of a run's classes needs, if it has these tiles.
    pub fn to_prepare_space(&self, space: &Space, tiles: &[Tile], limits: &Limits) -> Vec<Preparation> {
        let backend = limits.backend();
        let of_class = |class: &Class| self.to_prepare((class, backend), &space.survey(class, limits), tiles);
        let classes = self.first(backend).into_iter().chain(self.others(backend));
        classes.map(|class| of_class(&class)).collect()
    }

    /// The kernels with `cp.async` and with options that verification needs once a selector is fitted, if that returns for each class those of these tiles that the
    /// `known` one returns. Where nothing is known, it may be any.
    pub fn to_prepare_returned(
        &self,
        space: &Space,
        tiles: &[Tile],
        known: &KnownTiles,
        limits: &Limits,
    ) -> Vec<Preparation> {
        let mut wanted = self.to_prepare_space(space, tiles, limits);
        for wanted in &mut wanted {
            if !self.cp_async_first(&wanted.class) && !known.all().is_empty() {
                let likely = known.likely(&wanted.class);
                wanted.tiles.retain(|tile| likely.contains(tile));
            }
        }
        let options = wanted.iter().filter(|wanted| self.options_later(&wanted.class, limits.backend()));
        let options = options.map(|wanted| Self::with_options(wanted.tiles.clone(), wanted.class));
        let by_cp_async = wanted.iter().filter(|wanted| has_tma(&wanted.class, limits));
        let by_cp_async = by_cp_async.map(|wanted| self.with_cp_async(wanted.tiles.clone(), wanted.class));
        by_cp_async.chain(options).collect()
    }

    /// What verification needs of a class with these verdicts, if a run has these tiles.
    pub(super) fn to_prepare(
        &self,
        (class, backend): (&Class, Backend),
        verdicts: &[Verdict],
        tiles: &[Tile],
    ) -> Preparation {
        let wanted = |verdict: &&Verdict| {
            verdict.infeasible.is_none()
                && tiles.contains(&verdict.tile)
                && self.only.get(class).is_none_or(|only| only.contains(&verdict.tile))
        };
        let tiles = verdicts.iter().filter(wanted).map(|verdict| verdict.tile).collect();
        let options = self.has_options(class) && !self.options_later(class, backend);
        Preparation { tiles, class: *class, coverage: Coverage { options, ..Coverage::PLAIN } }
    }

    /// Tiles of a class with the `cp.async` producer.
    pub(super) fn with_cp_async(&self, tiles: Vec<Tile>, class: Class) -> Preparation {
        let coverage = Coverage { options: self.has_options(&class), cp_async: true, ..Coverage::PLAIN };
        Preparation { tiles, class, coverage }
    }

    /// Tiles of a class with options.
    pub(super) const fn with_options(tiles: Vec<Tile>, class: Class) -> Preparation {
        Preparation { tiles, class, coverage: Coverage { options: true, ..Coverage::PLAIN } }
    }

    /// Whether a class's variants with options are verified: where most is timed. On a GPU they are kernels of their own, which are not timed.
    fn has_options(&self, class: &Class) -> bool {
        self.usual().is_some_and(|usual| usual == *class)
    }

    /// Whether they are verified of the tiles alone that a selector may return.
    pub(super) fn options_later(&self, class: &Class, backend: Backend) -> bool {
        self.has_options(class) && backend == Backend::Cuda && !self.cp_async_first(class)
    }

    /// Whether all tiles of a class are verified with `cp.async` before any is timed. The shards of a run are fitted together
    /// where there may be no device: which tiles a selector will return is not known while there is one.
    pub(super) fn cp_async_first(&self, class: &Class) -> bool {
        self.shard.is_some() || self.cp_async.contains(class)
    }

    /// The classes of which all tiles are verified: those that are timed, the most timed ones first. Shards are fitted together where there may
    /// be no device: each takes a part of the other classes, too.
    pub(super) fn first(&self, backend: Backend) -> Vec<Class> {
        let timed = |class: &Class| self.classes.get(class).copied().unwrap_or(0);
        let wanted = |class: &Class| self.shard.is_some() || timed(class) > 0;
        let mut classes: Vec<Class> = self.to_verify(backend).into_iter().filter(wanted).collect();
        classes.sort_by_key(|class| std::cmp::Reverse(timed(class)));
        classes
    }

    /// The classes of which only what a selector may return is verified.
    pub(super) fn others(&self, backend: Backend) -> Vec<Class> {
        let first = self.first(backend);
        self.to_verify(backend).into_iter().filter(|class| !first.contains(class)).collect()
    }

    /// The classes that a selector must know tiles for, with every head dimension: a safe default has to serve them all. A GPU's are
    /// compiled first, so only the element types that are timed are verified; a processor's those and all without FP8, for which a
    /// selector answers where no FP8 was timed. Of those that it does not time, a shard takes every `count`-th: together they have all.
    pub(super) fn to_verify(&self, backend: Backend) -> Vec<Class> {
        let always = |class: &Class| backend == Backend::Cpu && !class.dtype.has_fp8_kv();
        // What a selector knows of them would be the tile for all; of others rules choose by the batch.
        let seldom =
            |class: &Class| ![64, 128, 256].contains(&class.head_dim) && !self.classes.contains_key(class);
        let needed = |class: &Class| always(class) || self.dtypes.contains(&class.dtype);
        let needed = |class: &Class| needed(class) && !seldom(class);
        let mine = |(index, class): &(usize, Class)| {
            self.classes.contains_key(class)
                || self.shard.is_none_or(|shard| index % shard.count == shard.index)
        };
        Class::all(backend).filter(needed).enumerate().filter(mine).map(|(_, class)| class).collect()
    }
}

/// Whether kernels of a class load K and V by TMA on a device.
pub(super) fn has_tma(class: &Class, limits: &Limits) -> bool {
    match limits {
        Limits::Cuda(limits) => limits.has_tma_producers(class),
        Limits::Cpu(_) => false,
    }
}

/// Whether a workload is timed with kernels that use `cp.async` although its class has others with TMA.
pub fn needs_cp_async(workload: &Workload, limits: &Limits) -> bool {
    let geometry = workload.geometry();
    Coverage::for_pages(geometry.page_size).cp_async && has_tma(&Class::of(geometry), limits)
}
