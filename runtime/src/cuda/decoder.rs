//! What an engine calls at every step: plan with the device's selector, upload, forward, merge.

use super::args::DecodeArgs;
use super::{CudaBackend, CudaDevice, CudaElement, CudaError, DevicePlan, Forward, KvPages, Launch, Mix};
use crate::decoder::fallback_warning;
use crate::{LiveError, LivePlanner, PageTable, Plan, PlanError, PlanOptions};
use cudarc::driver::CudaStream;
use tilewright_heuristics::{Geometry, Match, Selection, Tile, lookup};
use tilewright_kernel_templates::cuda::AttentionOptions;
use tilewright_kernel_templates::{Class, Limits, Space};

/// Decode attention on a GPU, with the tiles that were found best for it.
#[derive(Debug)]
pub struct CudaDecoder {
    backend: CudaBackend,
    selection: Selection,
    tiles: Vec<Tile>,
    options: PlanOptions,
    forward: Forward,
    /// What single launches are compiled of, if it could be for all classes that were prepared since the forward was chosen.
    mix: Option<Mix>,
}

impl CudaDecoder {
    /// A decoder for a device. Says once, as a warning, if its tiles were not measured on this very device.
    ///
    /// # Errors
    /// NVRTC is missing, or newer than the driver.
    pub fn new(device: &CudaDevice) -> Result<Self, CudaError> {
        Ok(Self::with(CudaBackend::new(device)?))
    }

    /// As [`CudaDecoder::new`], but fetches NVRTC if this machine has none.
    ///
    /// # Errors
    /// NVRTC is missing and cannot be fetched, or is newer than the driver.
    pub fn or_fetch(device: &CudaDevice) -> Result<Self, CudaError> {
        Ok(Self::with(CudaBackend::or_fetch(device)?))
    }

    fn with(backend: CudaBackend) -> Self {
        let device = backend.device();
        let limits = Limits::Cuda(device.limits().clone());
        let feasible = Space::of(limits.backend()).universally_feasible(&limits);
        let selection = lookup(&device.as_device(), &feasible);
        if let Some(warning) = fallback_warning(&device.as_device(), &selection) {
            tracing::warn!("{warning}");
        }
        let tiles = match selection.matched {
            Match::Exact(selector) | Match::SameCapability(selector) => {
                let mut tiles = selector.portfolio.to_vec();
                tiles.push(selector.safe_default);
                tiles
            }
            Match::Analytic => feasible,
        };
        let options = backend.device().plan_options();
        let options = PlanOptions { prices: selection.prices().unwrap_or(options.prices), ..options };
        Self { backend, selection, tiles, options, forward: Forward::default(), mix: None }
    }

    /// Launches plans in another way than the default from the next [`CudaDecoder::prepare`] on, which has to be called for every class
    /// again if that is a single launch.
    pub fn set_forward(&mut self, forward: Forward) {
        self.forward = forward;
        self.mix = None;
    }

    /// How plans are launched.
    pub const fn forward(&self) -> Forward {
        self.forward
    }

    /// How packs get their tiles.
    pub const fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Compiles and loads every tile that the selector may choose for a class of kernels. The second time they come from the cache.
    ///
    /// The options begin with those of the pages: [`AttentionOptions::for_pages`], and [`AttentionOptions::gathers`] by hand for a cache whose
    /// pages lie at distances of their own ([`crate::KvStrides::gathers`] knows). Whoever serves several such layouts prepares for each.
    ///
    /// For single launches all of them are compiled together too. Where that is not possible, because there are more than eight, a CTA of
    /// the greediest has no room on the device, or with TMA their numbers of warps differ, plans are launched one tile after the other ([`Launch::Serial`]); a warning says so.
    ///
    /// # Errors
    /// A tile that cannot be compiled or loaded.
    pub fn prepare(&mut self, class: &Class, options: AttentionOptions) -> Result<(), CudaError> {
        let Self { backend, tiles, forward, mix, .. } = self;
        backend.prepare(tiles, class, options, || ())?.into_iter().try_for_each(|tile| tile.map(drop))?;
        if forward.launch != Launch::Single {
            return Ok(());
        }
        let wanted = Mix::of(tiles);
        if wanted.tiles().len() > Mix::MOST {
            tracing::warn!(
                "{} tiles are too many for a single launch: one after the other is launched; `tilewright tune` measures a few that do",
                wanted.tiles().len()
            );
            return Ok(());
        }
        match backend.prepare_mix(tiles, class, options) {
            Ok((prepared, _)) => *mix = Some(prepared),
            Err(error @ CudaError::InfeasibleMix { .. }) => {
                tracing::warn!("{error}: one tile after the other is launched");
                (forward.launch, *mix) = (Launch::Serial, None);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// As [`CudaBackend::prepare_merge_states`], for callers who merge by [`CudaDecoder::backend`].
    ///
    /// # Errors
    /// As there.
    pub fn prepare_merge_states(&mut self, class: &Class) -> Result<(), CudaError> {
        self.backend.prepare_merge_states(class)
    }

    /// Plans a batch, of one query a request or of several ([`PageTable::with_queries`]). A plan serves every layer of the step, and
    /// every step until the page table changes.
    ///
    /// # Errors
    /// A page table or layout that makes no sense.
    pub fn plan(&self, geometry: &Geometry, table: &PageTable<'_>) -> Result<Plan, PlanError> {
        Plan::build(geometry, table, &self.options, |shape| self.selection.select(shape))
    }

    /// A planner that follows a batch of this layout step by step, with the options of this decoder. Its tiles are asked of
    /// [`CudaDecoder::selection`]:
    /// `planner.plan(|shape| decoder.selection().select(shape))`.
    ///
    /// # Errors
    /// A layout that makes no sense.
    pub fn live_planner(&self, geometry: &Geometry) -> Result<LivePlanner, LiveError> {
        LivePlanner::new(geometry, self.options)
    }

    /// Starts the copy of a plan on the stream, for the decoder's way of launching it. A plan that a single launch cannot serve, for it has a
    /// tile that is not compiled with the others, is launched one tile after the other. A plan in a bucket is launched as the bucket says.
    ///
    /// # Errors
    /// As [`DevicePlan::upload`].
    pub fn upload(&self, plan: &Plan, to: &mut DevicePlan, stream: &CudaStream) -> Result<(), CudaError> {
        let has = |mix: &&Mix| plan.tile_groups().iter().all(|group| mix.index_of(&group.tile).is_some());
        let (forward, mix) = match (self.forward.launch, self.mix.as_ref().filter(has)) {
            (Launch::Single, None) => (Forward { launch: Launch::Serial, ..self.forward }, None),
            (Launch::Single, mix) => (self.forward, mix),
            (Launch::Serial | Launch::Streams, _) => (self.forward, None),
        };
        to.set_forward(forward, mix);
        to.upload(plan, stream)
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
