//! What an engine calls at every step: plan with the device's selector, forward, merge.

use crate::cpu::{CpuBackend, DecodeArgs, Element, HostDevice, KvPages};
use crate::{BySelection, ExecError, LiveError, LivePlanner, PageTable, Plan, PlanError, PlanOptions};
use tilewright_heuristics::{Device, Geometry, Match, Selection, lookup};
use tilewright_kernel_templates::{Limits, Space};

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
        if let Some(warning) = fallback_warning(&device, &selection) {
            tracing::warn!("{warning}");
        }
        let options = PlanOptions::of_decoder(&device, &selection);
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

/// What to tell a user whose device was not measured.
pub(crate) fn fallback_warning(device: &Device<'_>, selection: &Selection) -> Option<String> {
    let using = match selection.matched {
        Match::Exact(_) => return None,
        Match::SameCapability(selector) => format!("using the selector of `{}`", selector.device.name),
        Match::Analytic => "using PAT's analytic rules".to_owned(),
    };
    Some(format!(
        "no tile selector was measured on `{}` ({}): {using}; run `tilewright tune` to measure one",
        device.name, device.capability
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_heuristics::{Backend, Tile, lookup_among};

    #[test]
    fn an_unknown_device_is_told_which_command_tunes_it() {
        let device = Device { backend: Backend::Cpu, name: "Unheard Of", capability: "none", units: 1 };
        let selection = lookup_among(&[], &device, &[Tile { m: 1, n: 16, warps: 1, stages: 1 }]);
        let warning = fallback_warning(&device, &selection).expect("nothing was measured there");
        assert!(warning.contains("`Unheard Of`") && warning.contains("`tilewright tune`"), "{warning}");
    }
}
