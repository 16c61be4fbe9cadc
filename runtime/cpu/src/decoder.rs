//! What an engine calls at every step: plan with the device's selector, forward, merge.

use crate::ExecError;
use crate::{CpuBackend, DecodeArgs, Element, HostDevice, KvPages};
use tilewright_heuristics::{Geometry, Selection, lookup};
use tilewright_kernel_templates::{Limits, Space};
use tilewright_plan::{
    BySelection, DeviceProfile, LiveError, LivePlanner, PageTable, Plan, PlanError, PlanOptions,
};

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The batch cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The arguments do not fit the batch.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// Decode attention on the host, with the tiles that were found best for it.
#[derive(Debug)]
pub struct Decoder {
    backend: CpuBackend,
    selection: Selection,
    options: PlanOptions,
}

impl Decoder {
    /// A decoder on all threads of the host. Says once, as a warning, if its tiles were not measured on this very device.
    pub fn new() -> Self {
        Self::on(&HostDevice::detect())
    }

    /// A decoder on so many threads.
    pub fn with_threads(threads: u32) -> Self {
        Self::on(&HostDevice::with_threads(threads))
    }

    fn on(host: &HostDevice) -> Self {
        let device = host.as_device();
        let feasible = Space::of(device.backend).universally_feasible(&Limits::Cpu(host.limits.clone()));
        let selection = lookup(&device, &feasible);
        if let Some(warning) = selection.warning(&device) {
            tracing::warn!("{warning}");
        }
        let options = PlanOptions::on(DeviceProfile::of(&device, &selection));
        Self { backend: CpuBackend::new(host.limits.threads), selection, options }
    }

    /// How packs get their tiles.
    pub const fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Plans a batch, of one query a request or of several ([`PageTable::with_queries`]). A plan serves every layer of the step, and
    /// every step until the page table changes.
    ///
    /// # Errors
    /// A page table or layout that makes no sense.
    pub fn plan(&self, geometry: &Geometry, table: &PageTable<'_>) -> Result<Plan, PlanError> {
        Plan::build(geometry, table, &self.options, self.choose())
    }

    /// What chooses the tiles of plans: for a [`LivePlanner`], or one plan by hand.
    pub fn choose(&self) -> BySelection<'_> {
        BySelection::new(&self.selection)
    }

    /// A planner that follows a batch of this layout step by step, with the options of this decoder:
    /// `planner.plan(decoder.choose())`.
    ///
    /// # Errors
    /// A layout that makes no sense.
    pub fn live_planner(&self, geometry: &Geometry) -> Result<LivePlanner, LiveError> {
        LivePlanner::new(geometry, self.options)
    }

    /// Executes a plan.
    ///
    /// # Errors
    /// Arguments that do not fit the plan.
    pub fn execute<E: Element, C: KvPages<E>>(
        &mut self,
        plan: &Plan,
        args: DecodeArgs<'_, E, C>,
    ) -> Result<(), ExecError> {
        self.backend.decode(plan, args)
    }

    /// Plans a batch and executes it: one call for one layer of one step.
    ///
    /// # Errors
    /// A page table or layout that makes no sense, or arguments that do not fit.
    pub fn decode<E: Element, C: KvPages<E>>(
        &mut self,
        geometry: &Geometry,
        table: &PageTable<'_>,
        args: DecodeArgs<'_, E, C>,
    ) -> Result<(), DecodeError> {
        let plan = self.plan(geometry, table)?;
        Ok(self.execute(&plan, args)?)
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}
