//! `tilewright compare`.

use super::load;
use super::tune::{named_or_first, open};
use crate::cli::exit::Ended;
use crate::cli::{CompareArguments, output};
use crate::compare::{
    BatchResult, Compared, Comparison, Contest, PeerOptions, Peers, compare as run, lines, require_compared,
};
use crate::device_name::DeviceName;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::store::write_whole;
use crate::wanted::Wanted;
use crate::workloads::Scale;
use anyhow::Context as _;
use std::path::Path;
use std::time::Duration;
use tilewright_heuristics::Backend;

/// How long the peers' imports may take.
const PEERS_START: Duration = Duration::from_secs(240);

/// Times ours and the installed peers on the same batches, and prints a table.
///
/// # Errors
/// Scenarios that make no batches, a bench that cannot run them, or the file system. What was measured until then is in `--out`.
pub fn compare(arguments: &CompareArguments) -> anyhow::Result<Ended> {
    let interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let progress = Progress::detect();
    if let Some(out) = &arguments.out {
        // Not only after the first batch.
        std::fs::create_dir_all(out).with_context(|| format!("{}: cannot make the folder", out.display()))?;
    }
    let device = named_or_first(arguments.device);
    let wanted = Wanted {
        scenarios: arguments.scenarios.clone(),
        trees: arguments.trees.clone(),
        heads: arguments.heads.clone(),
        page_size: arguments.page_size,
        dtype: arguments.dtype,
    };
    let backend = match device {
        DeviceName::Cpu => Backend::Cpu,
        DeviceName::Cuda(_) => Backend::Cuda,
    };
    // Before a device is probed for seconds.
    let selector = load(arguments.selector.as_deref())?;
    let specs = wanted.specs(backend)?;
    require_compared(&specs)?;
    let mut bench = open(device, arguments.threads, progress)?;
    let scale = Scale::on(bench.limits(), arguments.max_batch_mb);
    let specs = specs.into_iter().map(|spec| scale.fit(spec)).collect::<Result<Vec<_>, _>>()?;
    let mut peers = None;
    if !arguments.no_peers {
        let options = PeerOptions {
            python: arguments.python.clone(),
            device: device.to_string(),
            fa3: arguments.fa3.clone(),
            only: arguments.peers.clone(),
            start: PEERS_START,
            peer: Duration::from_secs(arguments.peer_timeout.into()),
        };
        progress.note("asking which peers there are");
        peers = Some(Peers::start(&options).context("cannot start the peers' script")?);
    }
    let contest = Contest { specs: &specs, tiles: &arguments.tiles, selector };
    let save = |comparison: &Comparison| arguments.out.as_deref().map_or(Ok(()), |out| save(comparison, out));
    let (comparison, ended) = run(contest, bench.as_mut(), peers.as_mut(), progress, &interrupt, save)?;
    if arguments.json {
        output::json(&comparison)?;
    } else {
        output::lines(lines(&comparison))?;
    }
    let doubtful = |batch: &BatchResult| batch.differs() || batch.ours.us().is_none();
    Ok(match ended {
        Compared::Interrupted => Ended::Interrupted,
        Compared::Done if comparison.batches.iter().any(doubtful) => Ended::Differs,
        Compared::Done => Ended::Done,
    })
}

fn save(comparison: &Comparison, out: &Path) -> anyhow::Result<()> {
    let json = serde_json::to_vec_pretty(comparison).context("the results cannot be written as JSON")?;
    write_whole(&out.join("compare.json"), &json)?;
    write_whole(&out.join("compare.txt"), (lines(comparison).join("\n") + "\n").as_bytes())?;
    Ok(())
}
