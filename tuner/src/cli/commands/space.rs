//! `tilewright space`.

use crate::cli::exit::Ended;
use crate::cli::{SpaceArguments, output};
use crate::device_name::DeviceName;
use anyhow::Context as _;
use serde::Serialize;
use std::collections::BTreeMap;
use tilewright_cpu::HostDevice;
use tilewright_cuda::CudaDevice;
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::cuda::{Kernel, KernelOptions};
use tilewright_kernel_templates::toolchain::{Compiler, Cubin, CubinCache};
use tilewright_kernel_templates::{
    Arch, Class, CudaLimits, Infeasible, Limits, Space, Verdict, bytes_in_flight, bytes_in_flight_needed,
    check_compiled, occupancy,
};

/// Those of usual engines: plain attention, and pages of a multiple of 16 tokens.
const OPTIONS: KernelOptions = KernelOptions::for_pages(16);

#[derive(Serialize)]
struct SpaceRow {
    name: String,
    parameters: BTreeMap<&'static str, u16>,
    feasible: bool,
    rule: Option<&'static str>,
    reason: Option<String>,
    #[serde(flatten)]
    compiled: Option<CompiledRow>,
}

/// What the machine code of a tile needs.
#[derive(Serialize)]
struct CompiledRow {
    registers: u32,
    shared_bytes: u32,
    local_bytes: u32,
    ctas_per_sm: u32,
    bytes_in_flight: u64,
}

/// Shows every tile of a device's space: feasible, or the reason why not. The device need not be here.
///
/// # Errors
/// An unknown device, a compiler that is missing or refuses a tile, or stdout is closed.
pub fn space(arguments: &SpaceArguments) -> anyhow::Result<Ended> {
    let limits = limits(arguments)?;
    let class = Class { head_dim: arguments.head_dim, dtype: arguments.dtype };
    let verdicts = Space::of(limits.backend()).survey(&class, &limits);
    let rows = match &limits {
        Limits::Cuda(limits) if !arguments.uncompiled => compiled(verdicts, &class, limits)?,
        _ => verdicts.into_iter().map(|verdict| row(verdict, None)).collect(),
    };
    if arguments.json {
        output::json(&rows)?;
        return Ok(Ended::Done);
    }
    print(&rows)?;
    let feasible = rows.iter().filter(|row| row.feasible).count();
    let device = match &limits {
        Limits::Cpu(_) => String::new(),
        Limits::Cuda(limits) => format!(
            " on {} ({}), which needs {} bytes in flight an SM",
            limits.name,
            limits.arch,
            bytes_in_flight_needed(limits)
        ),
    };
    eprintln!("{class}: {feasible} of {} tiles are feasible{device}", rows.len());
    Ok(Ended::Done)
}

/// The limits of the device that was named, or of this machine's first.
fn limits(arguments: &SpaceArguments) -> anyhow::Result<Limits> {
    let here = |ordinal| CudaDevice::open(ordinal).map(|device| device.limits().clone());
    let named = arguments.device.as_deref().map(|name| (name, name.parse::<DeviceName>()));
    let mut limits = match named {
        Some((_, Ok(DeviceName::Cpu))) => return Ok(Limits::Cpu(HostDevice::detect().limits)),
        Some((_, Ok(DeviceName::Cuda(ordinal)))) => here(ordinal)?,
        Some((name, Err(_))) => CudaLimits::named(name)?,
        None if CudaDevice::count() > 0 => here(0)?,
        None => match &arguments.arch {
            // An architecture alone: the first known device of it.
            Some(arch) => CudaLimits::NAMED
                .iter()
                .find(|limits| *limits.arch == *arch.to_string())
                .cloned()
                .with_context(|| format!("no device of {arch} is known; name one with `--device`"))?,
            None => return Ok(Limits::Cpu(HostDevice::detect().limits)),
        },
    };
    if let Some(arch) = &arguments.arch {
        limits.arch = arch.to_string().into();
    }
    Ok(Limits::Cuda(limits))
}

/// Compiles what the declared limits allow, and judges what came out.
fn compiled(verdicts: Vec<Verdict>, class: &Class, limits: &CudaLimits) -> anyhow::Result<Vec<SpaceRow>> {
    let arch: Arch = limits.arch.parse()?;
    let compiler = Compiler::or_fetch(arch, &CubinCache::default_folder()?)?;
    let kernel = |verdict: &Verdict| Kernel::decode(&verdict.tile, class, OPTIONS, arch);
    let feasible = || verdicts.iter().filter(|verdict| verdict.infeasible.is_none());
    let kernels: Vec<Kernel> = feasible().map(kernel).collect();
    let tiles: Vec<Tile> = feasible().map(|verdict| verdict.tile).collect();
    let cubins = compiler.compile_all(&kernels, || ());
    let cubins: BTreeMap<Tile, Cubin> = tiles
        .into_iter()
        .zip(cubins)
        .map(|(tile, cubin)| Ok((tile, cubin?)))
        .collect::<anyhow::Result<_>>()?;
    let judge = |verdict: Verdict| match cubins.get(&verdict.tile) {
        None => row(verdict, None),
        Some(cubin) => {
            let infeasible =
                check_compiled(&verdict.tile, class, OPTIONS, limits, &cubin.usage, &cubin.report).err();
            let needs = needs(&verdict.tile, class, limits, cubin);
            row(Verdict { infeasible, ..verdict }, Some(needs))
        }
    };
    Ok(verdicts.into_iter().map(judge).collect())
}

fn needs(tile: &Tile, class: &Class, limits: &CudaLimits, cubin: &Cubin) -> CompiledRow {
    let shared_bytes = limits.shared_bytes(tile, class, OPTIONS) + cubin.usage.static_shared_bytes;
    let threads = limits.threads(tile, class, OPTIONS);
    let held = occupancy(limits, threads, cubin.usage.registers, shared_bytes);
    CompiledRow {
        registers: cubin.usage.registers,
        shared_bytes,
        local_bytes: cubin.usage.local_bytes,
        ctas_per_sm: held.ctas_per_sm,
        bytes_in_flight: bytes_in_flight(
            tile.stages.into(),
            tile.n.into(),
            class.head_dim,
            class.dtype.kv_bytes() as u32,
            held.ctas_per_sm,
        ),
    }
}

fn row(verdict: Verdict, compiled: Option<CompiledRow>) -> SpaceRow {
    let Verdict { tile, infeasible } = verdict;
    SpaceRow {
        name: tile.to_string(),
        parameters: Tile::NAMES.into_iter().zip(tile.values()).collect(),
        feasible: infeasible.is_none(),
        rule: infeasible.as_ref().map(|infeasible: &Infeasible| infeasible.rule),
        reason: infeasible.map(|infeasible| infeasible.reason),
        compiled,
    }
}

fn print(rows: &[SpaceRow]) -> anyhow::Result<()> {
    let with_code = rows.iter().any(|row| row.compiled.is_some());
    let code: &[&str] = if with_code { &["registers", "shared", "CTAs an SM", "in flight"] } else { &[] };
    let header: Vec<&str> =
        std::iter::once("tile").chain(Tile::NAMES).chain(code.iter().copied()).chain(["verdict"]).collect();
    let cells = |row: &SpaceRow| -> Vec<String> {
        let mut cells = vec![row.name.clone()];
        cells.extend(Tile::NAMES.iter().map(|name| row.parameters[name].to_string()));
        if with_code {
            let figures = row.compiled.as_ref().map(|code| {
                [
                    code.registers.to_string(),
                    format!("{} KB", code.shared_bytes.div_ceil(1024)),
                    code.ctas_per_sm.to_string(),
                    format!("{} KB", code.bytes_in_flight >> 10),
                ]
            });
            cells.extend(figures.unwrap_or_default());
        }
        cells.push(match (&row.rule, &row.reason) {
            (Some(rule), Some(reason)) => format!("{rule}: {reason}"),
            _ => "feasible".to_owned(),
        });
        cells
    };
    output::table(&header, &rows.iter().map(cells).collect::<Vec<_>>())
}
