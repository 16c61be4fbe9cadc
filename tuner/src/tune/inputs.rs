//! What a run is to measure, known before it begins.

use super::known::Known;
use super::{TuneOptions, quick};
use crate::emit::module_name;
use crate::fit_settings::FitSettings;
use crate::measure::{
    Benches, KnownTiles, Screening, Timed, needs_cp_async, pairs, screenings, to_prepare_first,
};
use crate::store::DeviceRecord;
use crate::workloads::{Scale, Workload, Workloads};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tilewright_heuristics::{Backend, Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Limits, Space};

/// Workloads, the space, and what is known of the device already.
#[derive(Debug)]
pub(super) struct Inputs {
    pub limits: Limits,
    pub backend: Backend,
    /// Name of the device's module.
    pub module: String,
    /// Of the run in progress.
    pub folder: PathBuf,
    pub scale: Scale,
    pub workloads: Workloads,
    /// The batches that are fitted, and those that are only judged.
    pub fitted: Vec<Workload>,
    pub held_out: Vec<Workload>,
    pub known: Known,
    /// Sets that a quick run races; none otherwise.
    pub known_sets: Vec<TileSetBuf>,
    /// Tiles that are verified whatever the screening finds.
    pub known_tiles: KnownTiles,
    pub space: Space,
    pub fit: FitSettings,
    pub screenings: Vec<Screening>,
    /// The classes of the screenings.
    pub screened: Vec<Class>,
    pub timed: Timed,
}

impl Inputs {
    /// # Errors
    /// Scenarios that make no batches, or none to fit; a quick run of a device like which none is known.
    pub(super) fn of(options: &TuneOptions, device: &DeviceRecord, limits: &Limits) -> anyhow::Result<Self> {
        let backend = limits.backend();
        let scale = Scale::on(limits, options.max_batch_mb);
        let mut workloads = Workloads::load(&options.scenarios, backend, &scale, options.shard)?;
        tracing::debug!("{} batches are known", workloads.batches.len());
        let known = Known::of(device, limits);
        let known_sets = if options.quick { known.sets() } else { Vec::new() };
        let space = Space::of(backend);
        let known_tiles: Vec<Tile> = if options.quick {
            let tiles: BTreeSet<Tile> = known_sets.iter().flat_map(|set| set.tiles()).copied().collect();
            tiles.into_iter().filter(|tile| space.tiles().contains(tile)).collect()
        } else if options.shard.is_some() {
            known.tiles_or_rules(&space)
        } else {
            known.tiles(&space)
        };
        if options.quick {
            anyhow::ensure!(
                !known_sets.is_empty(),
                "no selector of a device like {device} is known, whose tiles a quick run would race: leave out `--quick`"
            );
            quick::thin(&mut workloads);
        }
        let (fitted, held_out): (Vec<Workload>, Vec<Workload>) =
            workloads.batches.iter().cloned().partition(|workload| !workload.held_out());
        anyhow::ensure!(
            options.shard.is_some() || !fitted.is_empty(),
            "the scenarios have no batches to fit a selector to: add one that is not `use: held-out`"
        );
        let by_cp_async = workloads.batches.iter().filter(|workload| needs_cp_async(workload, limits));
        let known_tiles = if backend == Backend::Cuda && options.shard.is_none() {
            known.by_class(known_tiles, &space, limits)
        } else {
            // Shards have these tiles in common; a processor compiles none.
            KnownTiles::of_all_classes(known_tiles)
        };
        let mut timed = Timed {
            classes: workloads.classes(),
            dtypes: workloads.dtypes.clone(),
            // Batches whose pages TMA cannot load are measured with tiles that are verified with `cp.async`.
            cp_async: by_cp_async.map(|workload| Class::of(workload.geometry())).collect(),
            shard: options.shard,
            only: BTreeMap::new(),
        };
        if has_tiles_by_class(backend, options) {
            // Before the screening these are all that is known to be needed.
            timed.leave(backend, &BTreeMap::new(), &known_tiles);
        }
        let screenings = if options.quick { Vec::new() } else { screenings(&workloads.batches, limits) };
        let module = module_name(device);
        Ok(Self {
            limits: limits.clone(),
            backend,
            folder: options.out.join(&module),
            module,
            scale,
            workloads,
            fitted,
            held_out,
            known,
            known_sets,
            known_tiles,
            space,
            fit: if options.quick { quick::settings(&options.fit) } else { options.fit.clone() },
            screened: screenings.iter().map(|screening| screening.class).collect(),
            screenings,
            timed,
        })
    }

    /// The pairs of known tiles that are raced, on the class that is raced under pairs: those that the known selector returns, whose leaves would choose otherwise without
    /// them; else one of its tiles.
    pub(super) fn known_pairs(&self) -> Vec<TileSetBuf> {
        let Some(usual) = self.timed.usual() else { return Vec::new() };
        let tiles = self.known_tiles.of(&usual);
        let returned = self.known.sets().into_iter().filter(|set| set.single().is_none());
        let returned: Vec<TileSetBuf> =
            returned.filter(|set| set.tiles().iter().all(|tile| tiles.contains(tile))).collect();
        if returned.is_empty() { pairs(&tiles) } else { returned }
    }

    /// All batches.
    pub(super) fn batches(&self) -> &[Workload] {
        &self.workloads.batches
    }

    /// The batches that a selector is judged by: all, where none is held out.
    pub(super) fn judged(&self) -> &[Workload] {
        if self.held_out.is_empty() { self.batches() } else { &self.held_out }
    }

    /// What is said of an error after which a run can go on.
    pub(super) fn kept(&self) -> String {
        format!("{}: the measurements are kept", self.folder.display())
    }

    /// Has compiled first what is needed first, in that order.
    pub(super) fn ask_first(&self, benches: &Benches<'_>, quick: bool) {
        if !benches.compiles_ahead() {
            return;
        }
        for wanted in to_prepare_first(&self.space, &self.screenings, self.known_tiles.all(), &self.limits) {
            benches.ask(&[wanted], &[]);
        }
        // A pair of known tiles, whose kernel takes longest, and without which no batch is raced.
        if let Some(usual) = self.timed.usual().filter(|_| !quick) {
            let pairs: Vec<_> = self.known_pairs().into_iter().map(|pair| (pair, usual)).collect();
            benches.ask(&[], &pairs);
        }
    }
}

/// Whether classes of kernels have tiles of their own: on a GPU, which compiles each for each class. Shards verify what they have in common, and a quick run
/// races all that is known.
pub(super) fn has_tiles_by_class(backend: Backend, options: &TuneOptions) -> bool {
    backend == Backend::Cuda && options.shard.is_none() && !options.quick
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Preparation;
    use crate::shard::Shard;
    use std::path::Path;
    use tilewright_kernel_templates::CudaLimits;

    #[test]
    fn what_is_asked_for_before_the_screening_is_what_each_class_has_in_any_case() {
        let limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
        let device = DeviceRecord {
            backend: Backend::Cuda.name().to_owned(),
            name: "NVIDIA H200".to_owned(),
            capability: "sm_90a".to_owned(),
            units: 132,
        };
        let options = TuneOptions::of_catalogue(Path::new("unused"));
        let inputs = |options: &TuneOptions| Inputs::of(options, &device, &limits).unwrap();
        let of_space =
            |inputs: &Inputs| inputs.timed.to_prepare_space(&inputs.space, inputs.known_tiles.all(), &limits);
        let count = |wanted: &[Preparation]| wanted.iter().map(|wanted| wanted.tiles.len()).sum::<usize>();
        let whole = inputs(&options);
        let asked = of_space(&whole);
        assert!(asked.len() >= 24, "{}", asked.len());
        for Preparation { tiles, class, .. } in &asked {
            let (tiles, known) = (BTreeSet::from_iter(tiles), whole.known_tiles.of(class));
            assert_eq!(tiles, known.iter().collect(), "{class}");
        }
        let (pairs, usual) = (whole.known_pairs(), whole.timed.usual().unwrap());
        assert!(!pairs.is_empty());
        for pair in &pairs {
            assert!(pair.single().is_none());
            assert!(pair.tiles().iter().all(|tile| whole.known_tiles.of(&usual).contains(tile)), "{pair}");
        }
        // Those that the selector's tree returns.
        let selector = whole.known.prior().unwrap();
        let returned: BTreeSet<String> =
            selector.sets.iter().filter(|set| set.contains('+')).cloned().collect();
        let named: BTreeSet<String> = pairs.iter().map(ToString::to_string).collect();
        assert!(returned.is_empty() || named == returned, "{named:?} for {returned:?}");
        // These race all that is known, and shards what they have in common.
        let quick = inputs(&TuneOptions { quick: true, ..options.clone() });
        let shard = inputs(&TuneOptions { shard: Some(Shard { index: 0, count: 1 }), ..options });
        for others in [&quick, &shard] {
            assert!(others.timed.only.is_empty());
            assert!(count(&of_space(others)) > 3 * count(&asked) / 2);
        }
    }
}
