//! A plan that follows a batch step by step.

use crate::attention::{Attention, Backend, Planned};
use crate::{AttentionError, AttentionOptions};
use std::sync::Arc;
use tilewright_heuristics::Geometry;
use tilewright_plan::{LivePlanner, Plan};

/// A plan that follows a batch by its changes: a step costs what has changed. Requests are rows of the batch, numbered from 0.
///
/// [`LivePlan::update`] plans what has changed, and `run` computes it. [`LivePlanner`] has the details of each change.
#[derive(Debug)]
pub struct LivePlan<B: Backend> {
    planner: LivePlanner,
    geometry: Geometry,
    options: AttentionOptions,
    backend: Arc<B>,
    on_device: B::OnDevice,
    /// Some request has other pages than the plan on the device.
    moved: bool,
}

impl<B: Backend> LivePlan<B> {
    pub(crate) fn new(attention: &Attention<B>, page_size: u32) -> Result<Self, AttentionError> {
        let Attention { backend, options, .. } = attention;
        let geometry = attention.geometry(page_size);
        backend.prepare(&geometry, options)?;
        let planner = backend
            .with_choice(&geometry, options, |_, plan_options| LivePlanner::new(&geometry, plan_options))?;
        let options = *options;
        Ok(Self {
            planner,
            geometry,
            options,
            backend: Arc::clone(backend),
            on_device: B::on_device(backend),
            moved: true,
        })
    }

    /// Plans the batch as it is now.
    ///
    /// # Errors
    /// A batch beyond 32-bit counts.
    pub fn update(&mut self) -> Result<&Plan, AttentionError> {
        let plan =
            self.backend.with_choice(&self.geometry, &self.options, |choose, _| self.planner.plan(choose))?;
        if std::mem::take(&mut self.moved) {
            self.on_device = B::on_device(&self.backend);
        } else {
            B::lengths_changed(&self.on_device);
        }
        Ok(plan)
    }

    /// A request arrives with these pages, those that its tokens use.
    ///
    /// # Errors
    /// The number is taken or too large, a page is negative, or the tokens do not lie in the pages.
    pub fn add(&mut self, request: u32, pages: &[i32], tokens: u32) -> Result<(), AttentionError> {
        self.moved = true;
        Ok(self.planner.add(request, pages, tokens)?)
    }

    /// A request leaves.
    ///
    /// # Errors
    /// An unknown request.
    pub fn remove(&mut self, request: u32) -> Result<(), AttentionError> {
        self.moved = true;
        Ok(self.planner.remove(request)?)
    }

    /// A request has further pages, and this many tokens in all.
    ///
    /// # Errors
    /// An unknown request, a negative page, or tokens that do not lie in the pages.
    pub fn append(&mut self, request: u32, new_pages: &[i32], tokens: u32) -> Result<(), AttentionError> {
        self.moved = true;
        Ok(self.planner.append(request, new_pages, tokens)?)
    }

    /// A request keeps its first pages, and this many tokens.
    ///
    /// # Errors
    /// An unknown request, or more pages than it has.
    pub fn truncate(&mut self, request: u32, pages_kept: u32, tokens: u32) -> Result<(), AttentionError> {
        self.moved = true;
        Ok(self.planner.truncate(request, pages_kept, tokens)?)
    }

    /// A request gets another number, as when an engine moves its last row into a hole.
    ///
    /// # Errors
    /// An unknown request, or a number that is taken.
    pub fn rename(&mut self, from: u32, to: u32) -> Result<(), AttentionError> {
        self.moved = true;
        Ok(self.planner.rename(from, to)?)
    }

    /// A request has this many tokens, in the same pages.
    ///
    /// # Errors
    /// An unknown request, or tokens that need other pages.
    pub fn grow(&mut self, request: u32, tokens: u32) -> Result<(), AttentionError> {
        Ok(self.planner.grow(request, tokens)?)
    }

    /// All requests have these tokens, in the same pages.
    ///
    /// # Errors
    /// Another number of rows, or tokens that need other pages.
    pub fn grow_all(&mut self, tokens: &[u32]) -> Result<(), AttentionError> {
        Ok(self.planner.grow_all(tokens)?)
    }
}

impl<B: Backend> Planned<B> for LivePlan<B> {
    fn plan(&self) -> &Plan {
        self.planner.last()
    }

    fn on_device(&self) -> &B::OnDevice {
        &self.on_device
    }
}
