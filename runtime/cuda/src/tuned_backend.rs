//! A backend with the tiles of the device's selector compiled: what plans are made with, and how each is launched.

use super::args::DecodeArgs;
use super::{
    Bucket, CudaBackend, CudaDevice, CudaElement, CudaError, DevicePlan, FitError, KvPages, Launch,
    LaunchMode, MergeBy, Mix,
};
use cudarc::driver::CudaStream;
use tilewright_heuristics::{Geometry, Selection, Selector, Tile, TileSet};
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_kernel_templates::toolchain::CubinArchive;
use tilewright_kernel_templates::{Class, Limits, RotaryPairs, check, invariant_sets, selection};
use tilewright_plan::{BySelection, DeviceProfile, Plan, PlanOptions};

/// A [`CudaBackend`] that has the kernels of the device's selector, and knows how the plans that it chooses tiles for are launched.
#[derive(Debug)]
pub struct TunedBackend {
    backend: CudaBackend,
    selection: Selection,
    options: PlanOptions,
    launch_mode: LaunchMode,
    /// What single launches are compiled of, if it could be for all classes that were prepared since the forward was chosen.
    mix: Option<Mix>,
    /// The selector's sets of several tiles that have a kernel of their own, for some class that was prepared.
    sets: Vec<(Class, Mix)>,
    /// The tiles of batch-invariant plans, for classes that were prepared for them.
    invariant: Vec<(Class, TileSet<'static>)>,
}

impl TunedBackend {
    /// For a device. Says once, as a warning, if its tiles were not measured on this very device.
    ///
    /// # Errors
    /// NVRTC is missing, or newer than the driver.
    pub fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        Self::with(CudaBackend::new(device)?, None)
    }

    /// As [`TunedBackend::new`], but fetches NVRTC if this machine has none.
    ///
    /// # Errors
    /// NVRTC is missing and cannot be fetched, or is newer than the driver.
    pub fn or_fetch(device: &CudaDevice) -> Result<Self, CudaError> {
        Self::with(CudaBackend::or_fetch(device)?, None)
    }

    /// As [`TunedBackend::new`], with the kernels of an archive ([`CudaBackend::of_archive`]): where it has all that the selector may choose,
    /// no NVRTC is needed.
    ///
    /// # Errors
    /// The archive has none for the device, and NVRTC is missing or newer than the driver.
    pub fn of_archive(
        device: &CudaDevice,
        fetch: bool,
        archive: &'static CubinArchive,
    ) -> Result<Self, CudaError> {
        Self::with(CudaBackend::of_archive(device, fetch, archive)?, None)
    }

    /// The same by another selector ([`Selector::load`]), whatever device it was measured on. Has no kernels prepared.
    ///
    /// # Errors
    /// The device can run no tile.
    pub fn with_selector(self, selector: &'static Selector) -> Result<Self, CudaError> {
        Self::with(self.backend, Some(selector))
    }

    fn with(backend: CudaBackend, own: Option<&'static Selector>) -> Result<Self, CudaError> {
        let device = backend.device();
        let limits = Limits::Cuda(device.limits().clone());
        let selection = selection(&device.as_device(), &limits, own)
            .ok_or_else(|| CudaError::NoTile { device: device.name().to_owned() })?;
        if let Some(warning) = selection.warning(&device.as_device()) {
            tracing::warn!("{warning}");
        }
        let options = PlanOptions::on(DeviceProfile::of(&device.as_device(), &selection));
        Ok(Self {
            backend,
            selection,
            options,
            launch_mode: LaunchMode::default(),
            mix: None,
            sets: Vec::new(),
            invariant: Vec::new(),
        })
    }

    /// Launches plans in this mode from the next [`TunedBackend::prepare`] on, which has to be called for every class
    /// again if that is a single launch, or merges by the last CTA.
    pub fn set_launch_mode(&mut self, launch_mode: LaunchMode) {
        self.launch_mode = launch_mode;
        self.mix = None;
    }

    /// How plans of one tile are launched, and all others where [`TunedBackend::set_launch_mode`] chose so. See [`TunedBackend::launch_mode_for`].
    pub const fn launch_mode(&self) -> LaunchMode {
        self.launch_mode
    }

    /// How packs get their tiles.
    pub const fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Compiles and loads every tile that the selector may choose for a class of kernels, and launches each once on a small batch whose answer
    /// is known ([`CudaBackend::try_tile`]). The second time they come from the cache.
    ///
    /// The options begin with those of the pages: [`KernelOptions::for_pages`], and [`KernelOptions::kv_load`] by hand for a cache whose
    /// pages have other strides ([`super::kv_load`]). An engine with several such layouts prepares for each. Who merges is the launch mode's choice.
    ///
    /// For single launches all of them are compiled together too. Where that is not possible, because there are more than eight, a CTA of
    /// the greediest has no room on the device, or with TMA their numbers of warps differ, plans are launched one tile after the other ([`Launch::Serial`]); a warning says so.
    ///
    /// # Errors
    /// No tile can be compiled, loaded and launched, or NVRTC is gone. A tile that cannot, or that computes what is wrong, is left out,
    /// which is said once.
    pub fn prepare(&mut self, class: &Class, options: KernelOptions) -> Result<(), CudaError> {
        let merge_by_last_cta = self.launch_mode.merge == MergeBy::LastCta;
        let options = KernelOptions { merge_by_last_cta, ..options };
        if options.invariant {
            return self.prepare_invariant(class, options);
        }
        let Self { backend, selection, launch_mode, mix, sets, .. } = self;
        let limits = Limits::Cuda(backend.device().limits().clone());
        let (mut tiles, mut failed) =
            feasible(selection.tiles_of(class.head_dim, class.dtype), class, &limits);
        let infeasible = failed.len();
        for (tile, outcome) in tiles.iter().zip(backend.prepare(&tiles, class, options, || ())?) {
            if let Err(error) = outcome.and_then(|_| backend.try_tile(tile, None, class, options)) {
                failed.push((*tile, error));
            }
        }
        if failed.len() == tiles.len() + infeasible
            && let Some((_, error)) = failed.pop()
        {
            return Err(error);
        }
        for (_, error) in &failed {
            match error {
                // A selector never names it for the class.
                CudaError::Infeasible { .. } => tracing::info!("{error}: it is not chosen"),
                _ => tracing::warn!("{error}: it is not chosen"),
            }
        }
        // The ranking goes on without them, and the rules choose among the others.
        let failed: Vec<Tile> = failed.into_iter().map(|(tile, _)| tile).collect();
        selection.leave_out(class.head_dim, class.dtype, &failed);
        tiles.retain(|tile| !failed.contains(tile));
        let runs = |set: &&TileSet<'_>| set.tiles().iter().all(|tile| tiles.contains(tile));
        for set in selection.sets().iter().filter(|set| set.tiles().len() > 1).filter(runs) {
            match try_mix(backend, set.tiles(), class, options) {
                Ok(prepared) if sets.contains(&(*class, prepared.clone())) => {}
                Ok(prepared) => sets.push((*class, prepared)),
                // A class that cannot run the set is not given it.
                Err(CudaError::InfeasibleMix { .. } | CudaError::Infeasible { .. }) => {}
                Err(error) => {
                    tracing::warn!("{error}: batches that get the set are launched one tile after the other");
                }
            }
        }
        if launch_mode.launch != Launch::Single {
            return Ok(());
        }
        let wanted = Mix::of(&tiles);
        if wanted.tiles().len() > Mix::MOST {
            tracing::warn!(
                "{} tiles are too many for a single launch: one after the other is launched; `tilewright tune` measures a few that do",
                wanted.tiles().len()
            );
            return Ok(());
        }
        match try_mix(backend, &tiles, class, options) {
            Ok(prepared) => *mix = Some(prepared),
            Err(error @ (CudaError::InfeasibleMix { .. } | CudaError::Untrusted { .. })) => {
                tracing::warn!("{error}: one tile after the other is launched");
                (launch_mode.launch, *mix) = (Launch::Serial, None);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Batch-invariant kernels are of one family: the first of [`invariant_sets`] whose tiles the device all runs, for whichever options the class
    /// was first prepared.
    fn prepare_invariant(&mut self, class: &Class, options: KernelOptions) -> Result<(), CudaError> {
        let Self { backend, invariant, .. } = self;
        let known = invariant.iter().find(|(of, _)| of == class).map(|(_, set)| *set);
        let limits = Limits::Cuda(backend.device().limits().clone());
        let sets = match known {
            Some(set) => vec![set],
            None => families(class, &limits, backend.device().name())?,
        };
        let mut failed = Ok(());
        for set in &sets {
            let compiled = backend.prepare(set.tiles(), class, options, || ())?;
            let tried = set.tiles().iter().zip(compiled).try_for_each(|(tile, outcome)| {
                outcome.and_then(|_| backend.try_tile(tile, None, class, options))
            });
            if tried.is_ok() {
                if known.is_none() {
                    invariant.push((*class, *set));
                }
                return Ok(());
            }
            failed = failed.and(tried);
        }
        failed
    }

    /// The family of tiles of batch-invariant plans of a class, of which each plan has one; `None` before it was prepared with [`KernelOptions::invariant`].
    pub fn invariant_set(&self, class: &Class) -> Option<TileSet<'static>> {
        self.invariant.iter().find(|(of, _)| of == class).map(|(_, set)| *set)
    }

    /// As [`CudaBackend::prepare_merge_states`], for callers who merge by [`TunedBackend::backend`].
    ///
    /// # Errors
    /// As there.
    pub fn prepare_merge_states(&mut self, class: &Class) -> Result<(), CudaError> {
        self.backend.prepare_merge_states(class)
    }

    /// As [`CudaBackend::prepare_append`], for callers who append by [`TunedBackend::backend`].
    ///
    /// # Errors
    /// As there.
    pub fn prepare_append(&mut self, class: &Class, rotary: Option<RotaryPairs>) -> Result<(), CudaError> {
        self.backend.prepare_append(class, rotary)
    }

    /// What chooses the tiles of plans: for a [`tilewright_plan::LivePlanner`], or one plan by hand.
    pub fn choose(&self) -> BySelection<'_> {
        BySelection::new(&self.selection)
    }

    /// How plans are made for the device: by the prices that were measured with its selector, else those of its backend.
    pub const fn plan_options(&self) -> PlanOptions {
        self.options
    }

    /// A bucket for batches of up to `requests` requests with up to `pages` entries of the page table between them, whatever tiles they get
    /// ([`Bucket::for_batch`]).
    ///
    /// # Errors
    /// As [`Bucket::new`].
    pub fn bucket(&self, geometry: &Geometry, requests: u32, pages: u32) -> Result<Bucket, FitError> {
        Bucket::for_batch(geometry, self.launch_mode, &self.selection.tiles(), requests, pages)
    }

    /// How a plan is launched: what a [`Bucket`] for it is made with. A plan of several tiles of one of the selector's sets is one launch of
    /// their kernel; a plan that no kernel of several tiles serves is launched one tile after the other.
    pub fn launch_mode_for(&self, plan: &Plan) -> LaunchMode {
        self.launch_of(plan).0
    }

    /// How a plan is launched, and which tiles are compiled together for it: for [`DevicePlan::set_launch_mode`].
    pub fn launch_of(&self, plan: &Plan) -> (LaunchMode, Option<&Mix>) {
        let has = |mix: &Mix| plan.tile_groups().iter().all(|group| mix.index_of(&group.tile).is_some());
        let class = Class::of(plan.geometry());
        match self.launch_mode.launch {
            Launch::Single => match self.mix.as_ref().filter(|mix| has(mix)) {
                Some(mix) => (self.launch_mode, Some(mix)),
                None => (LaunchMode { launch: Launch::Serial, ..self.launch_mode }, None),
            },
            Launch::Serial if plan.tile_groups().len() > 1 => {
                let set = self.sets.iter().find(|(of, mix)| *of == class && has(mix));
                set.map_or((self.launch_mode, None), |(_, mix)| {
                    (LaunchMode { launch: Launch::Single, ..self.launch_mode }, Some(mix))
                })
            }
            Launch::Serial | Launch::Streams => (self.launch_mode, None),
        }
    }

    /// The kernels that it has prepared, for [`CudaBackend::decode_raw`].
    pub const fn backend(&self) -> &CudaBackend {
        &self.backend
    }

    /// Executes an uploaded plan on the stream.
    ///
    /// # Errors
    /// Shapes that do not fit the plan, or a class and options that were not prepared.
    pub fn execute<E: CudaElement, C: KvPages<E>>(
        &self,
        stream: &CudaStream,
        plan: &DevicePlan,
        args: DecodeArgs<'_, E, C>,
    ) -> Result<(), CudaError> {
        self.backend.decode(stream, plan, args)
    }
}

/// The tiles of a selector that some class of kernels has, and those that this class has not, with the rule that says so: no compiler is asked about them.
fn feasible(tiles: Vec<Tile>, class: &Class, limits: &Limits) -> (Vec<Tile>, Vec<(Tile, CudaError)>) {
    let mut failed = Vec::new();
    let runs = |tile: &Tile| match check(tile, class, limits) {
        Ok(()) => true,
        Err(error) => {
            let (tile, class, reason) = (*tile, *class, error.to_string());
            failed.push((tile, CudaError::Infeasible { tile, class, reason }));
            false
        }
    };
    let tiles = tiles.into_iter().filter(runs).collect();
    (tiles, failed)
}

/// Compiles tiles together, and launches each of them so once.
fn try_mix(
    backend: &mut CudaBackend,
    tiles: &[Tile],
    class: &Class,
    options: KernelOptions,
) -> Result<Mix, CudaError> {
    let (mix, _) = backend.prepare_mix(tiles, class, options)?;
    mix.tiles().iter().try_for_each(|tile| backend.try_tile(tile, Some(&mix), class, options))?;
    Ok(mix)
}

/// The families of tiles that batch-invariant plans of a class can have by the rules: at least one, as plans of other tiles would not be batch-invariant.
fn families(class: &Class, limits: &Limits, device: &str) -> Result<Vec<TileSet<'static>>, CudaError> {
    let sets: Vec<TileSet<'static>> = invariant_sets(class, limits).collect();
    if sets.is_empty() { Err(CudaError::NoTile { device: device.to_owned() }) } else { Ok(sets) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::{Backend, Device, Dtype};
    use tilewright_kernel_templates::CudaLimits;

    #[test]
    fn a_device_without_room_for_a_family_says_so() {
        let class = Class { head_dim: 128, dtype: Dtype::F16 };
        let on = |shared_bytes_per_cta| {
            let limits = CudaLimits { shared_bytes_per_cta, ..CudaLimits::named("rtx-4090").unwrap() };
            families(&class, &Limits::Cuda(limits), "a small one")
        };
        assert!(!on(99 << 10).unwrap().is_empty());
        let error = on(16 << 10).unwrap_err();
        assert!(matches!(&error, CudaError::NoTile { device } if device == "a small one"), "{error}");
    }

    /// A selector has the tiles of all head dimensions, of which heads of 512 elements have their own: others would not compile.
    #[test]
    fn tiles_of_other_classes_are_not_compiled() {
        let limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
        let device = Device { backend: Backend::Cuda, name: "NVIDIA H200", capability: "sm_90a", units: 132 };
        let selection = selection(&device, &limits, None).unwrap();
        let mut others = 0;
        for head_dim in Class::HEAD_DIMS {
            let class = Class { head_dim, dtype: Dtype::F16 };
            let known = selection.tiles_of(head_dim, Dtype::F16);
            let (tiles, failed) = feasible(known.clone(), &class, &limits);
            assert!(!tiles.is_empty() && tiles.len() + failed.len() == known.len(), "{class}");
            assert!(tiles.iter().all(|tile| check(tile, &class, &limits).is_ok()), "{class}: {tiles:?}");
            for (tile, error) in failed {
                assert!(matches!(error, CudaError::Infeasible { .. }), "{tile}: {error}");
                others += 1;
            }
        }
        assert!(others > 0, "every tile of the selector runs everywhere");
    }
}
