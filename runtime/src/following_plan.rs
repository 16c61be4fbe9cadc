//! A plan that follows a batch by its page tables.

use crate::attention::{Attention, Backend, Planned};
use crate::{AttentionError, AttentionOptions};
use std::sync::Arc;
use tilewright_heuristics::Geometry;
use tilewright_plan::{FollowingPlanner, PageRows, Plan, Step};

/// A plan that follows a batch by its page table, which it compares with the one before: a step costs the comparison and what has changed.
/// [`LivePlan`](crate::LivePlan) is for engines that say what has changed. [`FollowingPlanner`] has the details.
#[derive(Debug)]
pub struct FollowingPlan<B: Backend> {
    planner: FollowingPlanner,
    geometry: Geometry,
    options: AttentionOptions,
    backend: Arc<B>,
    on_device: B::OnDevice,
}

impl<B: Backend> FollowingPlan<B> {
    pub(crate) fn new(attention: &Attention<B>, page_size: u32) -> Result<Self, AttentionError> {
        let geometry = attention.geometry(page_size);
        Ok(Self {
            planner: attention.following_planner(&geometry)?,
            geometry,
            options: attention.options,
            backend: Arc::clone(&attention.backend),
            on_device: B::on_device(&attention.backend),
        })
    }

    /// Compares a batch with the one before; [`FollowingPlan::update`] plans it. Rows up to `batch` that it does not have are of requests without
    /// tokens.
    ///
    /// # Errors
    /// Pages of another size, or a negative page.
    pub fn compare(&mut self, rows: &PageRows<'_>, batch: usize) -> Result<(), AttentionError> {
        Ok(self.planner.compare(rows, batch)?)
    }

    /// Plans the batch that was compared last.
    ///
    /// # Errors
    /// A batch beyond 32-bit counts. The plan is as it was then.
    pub fn update(&mut self) -> Result<&Plan, AttentionError> {
        let Self { planner, backend, on_device, .. } = self;
        backend.with_choice(&self.geometry, &self.options, |choose, _| {
            planner.update(choose, |_, step| {
                match step {
                    Step::Lengths => B::lengths_changed(on_device),
                    Step::Changes | Step::Anew => *on_device = B::on_device(backend),
                }
                Ok::<_, AttentionError>(true)
            })
        })?;
        Ok(self.planner.plan())
    }

    /// Gives the plan new lengths: requests have grown inside their last pages.
    ///
    /// # Errors
    /// Another number of lengths than queries, or a length that ends in another page.
    pub fn set_lengths(&mut self, seq_lens: &[u32]) -> Result<(), AttentionError> {
        let planner = &mut self.planner;
        self.backend
            .with_choice(&self.geometry, &self.options, |choose, _| planner.set_lengths(seq_lens, choose))?;
        B::lengths_changed(&self.on_device);
        Ok(())
    }
}

impl<B: Backend> Planned<B> for FollowingPlan<B> {
    fn plan(&self) -> &Plan {
        self.planner.plan()
    }

    fn on_device(&self) -> &B::OnDevice {
        &self.on_device
    }
}

impl<B: Backend> Attention<B> {
    /// A plan that follows a batch by its page tables, for pages of this size. Until the first update it is of an empty batch.
    ///
    /// # Errors
    /// A page size of 0, or a kernel that cannot be compiled.
    pub fn following_plan(&self, page_size: u32) -> Result<FollowingPlan<B>, AttentionError> {
        FollowingPlan::new(self, page_size)
    }

    /// What makes the plans of a batch that is followed.
    pub(crate) fn following_planner(&self, geometry: &Geometry) -> Result<FollowingPlanner, AttentionError> {
        self.backend.prepare(geometry, &self.options)?;
        let planner = self
            .backend
            .with_choice(geometry, &self.options, |_, options| FollowingPlanner::new(geometry, options));
        Ok(planner?)
    }
}
