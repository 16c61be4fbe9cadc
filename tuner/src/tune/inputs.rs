//! What a run is to measure, known before it begins.

use super::known::Known;
use super::{TuneOptions, quick};
use crate::emit::module_name;
use crate::fit_settings::FitSettings;
use crate::measure::{
    Benches, Screening, Timed, candidate_sets, needs_cp_async, screenings, to_prepare_first,
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
    pub known_tiles: Vec<Tile>,
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
        let timed = Timed {
            classes: workloads.classes(),
            dtypes: workloads.dtypes.clone(),
            // Batches whose pages TMA cannot load are measured with tiles that are verified with `cp.async`.
            cp_async: by_cp_async.map(|workload| Class::of(workload.geometry())).collect(),
            shard: options.shard,
            only: BTreeMap::new(),
        };
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
        for wanted in to_prepare_first(&self.space, &self.screenings, &self.known_tiles, &self.limits) {
            benches.ask(&[wanted], &[]);
        }
        // A pair of known tiles, whose kernel takes longest, and without which no batch is raced.
        if let Some(usual) = self.timed.usual().filter(|_| !quick) {
            let sets = candidate_sets(&self.known_tiles, &self.known_tiles).into_iter();
            let pairs = sets.filter(|set| set.single().is_none()).map(|pair| (pair, usual));
            benches.ask(&[], &pairs.collect::<Vec<_>>());
        }
    }
}
