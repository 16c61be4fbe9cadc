//! What an engine calls at every step: plan with the device's selector, upload, forward, merge.

use super::args::{CudaElement, DecodeArgs};
use super::{CudaBackend, CudaDevice, CudaError, DevicePlan};
use crate::decoder::fallback_warning;
use crate::{PageTable, Plan, PlanError, PlanOptions};
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
        Self { backend, selection, tiles, options }
    }

    /// How packs get their tiles.
    pub const fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Compiles and loads every tile that the selector may choose for a class of kernels. The second time they come from the cache.
    ///
    /// # Errors
    /// A tile that cannot be compiled or loaded.
    pub fn prepare(&mut self, class: &Class, options: AttentionOptions) -> Result<(), CudaError> {
        let Self { backend, tiles, .. } = self;
        backend.prepare(tiles, class, options, || ())?.into_iter().try_for_each(|tile| tile.map(drop))
    }

    /// As [`CudaBackend::prepare_merge_states`], for callers who merge by [`CudaDecoder::backend`].
    ///
    /// # Errors
    /// As there.
    pub fn prepare_merge_states(&mut self, class: &Class) -> Result<(), CudaError> {
        self.backend.prepare_merge_states(class)
    }

    /// Plans a batch. A plan serves every layer of the step, and every step until the page table changes.
    ///
    /// # Errors
    /// A page table or layout that makes no sense.
    pub fn plan(&self, geometry: &Geometry, table: &PageTable<'_>) -> Result<Plan, PlanError> {
        Plan::build(geometry, table, &self.options, |shape| self.selection.select(shape))
    }

    /// The kernels that it has prepared, for [`CudaBackend::decode_raw`].
    pub const fn backend(&self) -> &CudaBackend {
        &self.backend
    }

    /// Executes an uploaded plan on the stream.
    ///
    /// # Errors
    /// Shapes that do not fit the plan, or a class and options that were not prepared.
    pub fn execute<E: CudaElement>(
        &self,
        stream: &CudaStream,
        plan: &DevicePlan,
        args: DecodeArgs<'_, E>,
    ) -> Result<(), CudaError> {
        self.backend.decode(stream, plan, args)
    }
}
