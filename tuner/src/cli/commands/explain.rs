//! `tilewright explain`.

use super::load;
use crate::cli::exit::Ended;
use crate::cli::{ExplainArguments, output};
use crate::explain::{Explanation, NamedDevice, lines};
use crate::wanted::Wanted;

/// Says why batches get the tiles that they get. Nothing is measured, and the device need not be here.
///
/// # Errors
/// An unknown device, scenarios that make no batches, tiles that the device cannot run, or stdout is closed.
pub fn explain(arguments: &ExplainArguments) -> anyhow::Result<Ended> {
    let selector = load(arguments.selector.as_deref())?;
    let device = match (arguments.device.as_deref(), selector.and_then(NamedDevice::of_selector)) {
        (None, Some(device)) => device,
        (name, _) => NamedDevice::find(name)?,
    };
    let wanted = Wanted {
        scenarios: arguments.scenarios.clone(),
        trees: arguments.trees.clone(),
        heads: arguments.heads.clone(),
        page_size: arguments.page_size,
        dtype: arguments.dtype,
    };
    let specs = wanted.specs(device.as_device().backend)?;
    let explanation = Explanation::of(&device, selector, &specs, &arguments.tiles)?;
    if arguments.json {
        output::json(&explanation)?;
    } else {
        output::lines(lines(&explanation))?;
    }
    Ok(Ended::Done)
}
