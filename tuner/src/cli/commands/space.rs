//! `tilewright space`.

use crate::cli::exit::Ended;
use crate::cli::{SpaceArguments, output};
use serde::Serialize;
use std::collections::BTreeMap;
use tilewright_heuristics::{Backend, Tile};
use tilewright_kernel_templates::{Class, Limits, Space, Verdict};
use tilewright_runtime::cpu::HostDevice;

#[derive(Serialize)]
struct SpaceRow {
    name: String,
    parameters: BTreeMap<&'static str, u16>,
    feasible: bool,
    rule: Option<&'static str>,
    reason: Option<String>,
}

/// Shows every tile of this machine's space: feasible, or the reason why not.
///
/// # Errors
/// stdout is closed.
pub fn space(arguments: &SpaceArguments) -> anyhow::Result<Ended> {
    let limits = Limits::Cpu(HostDevice::detect().limits);
    let class = Class { head_dim: arguments.head_dim, dtype: arguments.dtype };
    let verdicts = Space::of(Backend::Cpu).survey(&class, &limits);
    if arguments.json {
        output::json(&verdicts.into_iter().map(row).collect::<Vec<_>>())?;
        return Ok(Ended::Done);
    }
    let header: Vec<&str> = std::iter::once("tile").chain(Tile::NAMES).chain(["verdict"]).collect();
    let cells = |verdict: &Verdict| {
        let said = verdict.infeasible.as_ref().map_or("feasible".to_owned(), ToString::to_string);
        let parameters = verdict.tile.values().into_iter().map(|value| value.to_string());
        std::iter::once(verdict.tile.to_string()).chain(parameters).chain([said]).collect()
    };
    output::table(&header, &verdicts.iter().map(cells).collect::<Vec<_>>())?;
    let feasible = verdicts.iter().filter(|verdict| verdict.infeasible.is_none()).count();
    eprintln!("{class}: {feasible} of {} tiles are feasible", verdicts.len());
    Ok(Ended::Done)
}

fn row(verdict: Verdict) -> SpaceRow {
    let Verdict { tile, infeasible } = verdict;
    SpaceRow {
        name: tile.to_string(),
        parameters: Tile::NAMES.into_iter().zip(tile.values()).collect(),
        feasible: infeasible.is_none(),
        rule: infeasible.as_ref().map(|infeasible| infeasible.rule),
        reason: infeasible.map(|infeasible| infeasible.reason),
    }
}
