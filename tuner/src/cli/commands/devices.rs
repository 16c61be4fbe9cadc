//! `tilewright devices`.

use crate::cli::exit::Ended;
use crate::cli::{DevicesArguments, output};
use serde::Serialize;
use tilewright_cpu::HostDevice;
use tilewright_cuda::CudaDevice;
use tilewright_heuristics::Device;
use tilewright_kernel_templates::{Limits, selection};

#[derive(Serialize)]
struct DeviceRow {
    backend: &'static str,
    name: String,
    capability: String,
    units: u32,
    /// `exact`, `same capability`, `other architecture` or `analytic`.
    selector: &'static str,
    /// The device that the selector was measured on.
    measured_on: Option<&'static str>,
}

/// Lists the devices of this machine and the selector that each would use.
///
/// # Errors
/// stdout is closed.
pub fn devices(arguments: &DevicesArguments) -> anyhow::Result<Ended> {
    let host = HostDevice::detect();
    let mut rows = vec![row(&host.as_device(), &Limits::Cpu(host.limits.clone()))];
    for ordinal in 0..CudaDevice::count() {
        match CudaDevice::open(ordinal) {
            Ok(device) => rows.push(row(&device.as_device(), &Limits::Cuda(device.limits().clone()))),
            Err(error) => tracing::warn!("cuda:{ordinal}: {error}"),
        }
    }
    if arguments.json {
        output::json(&rows)?;
    } else {
        let cells = |row: &DeviceRow| {
            let selector = match row.measured_on {
                Some(device) => format!("{} ({device})", row.selector),
                None => format!("{} (run `tilewright tune`)", row.selector),
            };
            vec![
                row.backend.to_owned(),
                row.name.clone(),
                row.capability.clone(),
                row.units.to_string(),
                selector,
            ]
        };
        let cells: Vec<_> = rows.iter().map(cells).collect();
        output::table(&["backend", "device", "capability", "units", "selector"], &cells)?;
    }
    Ok(Ended::Done)
}

fn row(device: &Device<'_>, limits: &Limits) -> DeviceRow {
    let matched = selection(device, limits, None).map(|selection| selection.matched);
    let selector = matched.map_or("none: no tile runs here", |matched| matched.name());
    let measured_on = matched.and_then(|matched| matched.selector()).map(|selector| selector.device.name);
    DeviceRow {
        backend: device.backend.name(),
        name: device.name.to_owned(),
        capability: device.capability.to_owned(),
        units: device.units,
        selector,
        measured_on,
    }
}
