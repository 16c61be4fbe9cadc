//! Plan once a step, run once a layer.

use crate::{AttentionError, AttentionOptions, Heads, LivePlan};
use std::fmt;
use std::sync::Arc;
use tilewright_heuristics::Geometry;
use tilewright_plan::{Choose, PageTable, Plan, PlanOptions};

/// Where attention is computed: [`Cpu`](crate::Cpu) or [`Cuda`](crate::Cuda).
pub trait Backend: fmt::Debug + Sized {
    /// What a plan keeps on the device.
    type OnDevice: fmt::Debug;

    /// Elements in the backend's memory.
    type Slice<T>: ?Sized;

    /// The room for a plan on the device.
    #[doc(hidden)]
    fn on_device(this: &Arc<Self>) -> Self::OnDevice;

    /// The plan's lengths are others than the device has.
    #[doc(hidden)]
    fn lengths_changed(on_device: &Self::OnDevice);

    /// Compiles what plans for pages of this size may need; costs nothing the second time.
    #[doc(hidden)]
    fn prepare(&self, geometry: &Geometry, options: &AttentionOptions) -> Result<(), AttentionError>;

    /// Calls with what chooses the tiles of plans, and how plans are made for the device. What they are for is prepared.
    #[doc(hidden)]
    fn with_choice<T>(
        &self,
        geometry: &Geometry,
        options: &AttentionOptions,
        call: impl FnOnce(Choose<'_>, PlanOptions) -> T,
    ) -> T;
}

/// Decode attention of one kind of layer on one device. Cheap to clone; all methods take `&self`.
///
/// [`Attention::plan`] finds shared prefixes, chooses tiles and packs a batch: once a step, for all layers. `run` computes one layer.
#[derive(Debug)]
pub struct Attention<B> {
    pub(crate) heads: Heads,
    pub(crate) options: AttentionOptions,
    pub(crate) backend: Arc<B>,
}

impl<B> Clone for Attention<B> {
    fn clone(&self) -> Self {
        Self { heads: self.heads, options: self.options, backend: Arc::clone(&self.backend) }
    }
}

impl<B: Backend> Attention<B> {
    pub(crate) fn new(heads: Heads, options: AttentionOptions, backend: B) -> Result<Self, AttentionError> {
        heads.geometry(options.dtype, 1).validate()?;
        Ok(Self { heads, options, backend: Arc::new(backend) })
    }

    /// The layout of a layer with pages of this size, as the explicit forms take it.
    pub const fn geometry(&self, page_size: u32) -> Geometry {
        self.heads.geometry(self.options.dtype, page_size)
    }

    /// Compiles the kernels for pages of this size, which [`Attention::plan`] does otherwise when it first meets them. Compiled kernels are
    /// cached on disk.
    ///
    /// # Errors
    /// A kernel that cannot be compiled or loaded.
    pub fn prepare(&self, page_size: u32) -> Result<(), AttentionError> {
        self.backend.prepare(&self.geometry(page_size), &self.options)
    }

    /// Plans a batch. The plan serves all layers of the step, and later steps as long as no request needs another page.
    ///
    /// # Errors
    /// A page table that makes no sense, or a kernel that cannot be compiled.
    pub fn plan(&self, table: &PageTable<'_>) -> Result<AttentionPlan<B>, AttentionError> {
        let geometry = self.geometry(table.page_size());
        self.backend.prepare(&geometry, &self.options)?;
        let plan = self.backend.with_choice(&geometry, &self.options, |choose, options| {
            Plan::build(&geometry, table, &options, choose)
        })?;
        Ok(AttentionPlan { plan, on_device: B::on_device(&self.backend) })
    }

    /// A plan that follows a batch by its changes, for pages of this size: a step costs what has changed.
    ///
    /// # Errors
    /// A page size of 0, or a kernel that cannot be compiled.
    pub fn live_plan(&self, page_size: u32) -> Result<LivePlan<B>, AttentionError> {
        LivePlan::new(self, page_size)
    }
}

/// The plan of a batch.
#[derive(Debug)]
pub struct AttentionPlan<B: Backend> {
    plan: Plan,
    on_device: B::OnDevice,
}

impl<B: Backend> AttentionPlan<B> {
    /// Gives the plan new lengths: requests have grown inside their last pages, and need no other plan.
    ///
    /// # Errors
    /// Another number of lengths than queries, or a length that needs another number of pages.
    pub fn set_lengths(&mut self, seq_lens: &[u32]) -> Result<(), AttentionError> {
        self.plan.set_lengths(seq_lens)?;
        B::lengths_changed(&self.on_device);
        Ok(())
    }
}

/// What `run` takes: an [`AttentionPlan`], a [`LivePlan`] or a [`FollowingPlan`](crate::FollowingPlan).
pub trait Planned<B: Backend> {
    /// The work items, packs and merges.
    fn plan(&self) -> &Plan;

    /// What the device has of it.
    #[doc(hidden)]
    fn on_device(&self) -> &B::OnDevice;
}

impl<B: Backend> Planned<B> for AttentionPlan<B> {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn on_device(&self) -> &B::OnDevice {
        &self.on_device
    }
}
