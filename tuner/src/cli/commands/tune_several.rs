//! `tilewright tune` on several models of device.

use crate::cli::exit::Ended;
use crate::cli::{TuneArguments, output};
use crate::fleet::{self, Worker, worker_arguments};
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::progress::Progress;
use crate::tune::command_to_go_on;
use anyhow::Context as _;

/// The exit code of a worker whose selector is doubted: its measurements and report are there.
const DOUBTED: i32 = 3;

/// Tunes each model of device by a process of its own.
///
/// # Errors
/// Workers that failed, by their devices: what all of them have measured is kept.
pub(super) fn tune_several(
    arguments: &TuneArguments,
    models: &[Worker],
    progress: Progress,
    interrupt: &Interrupt,
) -> anyhow::Result<Ended> {
    anyhow::ensure!(
        arguments.shard.is_none(),
        "these devices are of several models, and a shard is of one; name devices of one model"
    );
    let mut to_run = Vec::new();
    for worker in models {
        let start = match (arguments.resume, arguments.discard) {
            (_, true) => Some("--discard"),
            (true, _) if worker.has_begun()? => Some("--resume"),
            _ => None,
        };
        to_run.push((worker, worker_arguments(std::env::args_os().skip(1), worker, start)));
    }
    progress.note(&format!("{} models of device, a process each", models.len()));
    let program = std::env::current_exe().context("cannot find this program")?;
    let ended = fleet::run(&program, &to_run, interrupt)?;

    let mut failed = Vec::new();
    let (mut outcome, mut results) = (Ended::Done, Vec::new());
    for (worker, ended) in models.iter().zip(&ended) {
        match ended.status.code() {
            Some(0) => {}
            Some(DOUBTED) => outcome = Ended::Differs,
            _ => {
                failed.push(format!("{}: {}", worker.device_list(), ended.status));
                continue;
            }
        }
        let said: serde_json::Value =
            serde_json::from_str(&ended.stdout).context("a worker did not say what it wrote")?;
        if !arguments.json {
            let file = |key| Some(format!("{key:<13} {}", said[key].as_str()?));
            let files = ["measurements", "timelines", "module", "report"].into_iter().filter_map(file);
            output::lines(said["device"].as_str().map(str::to_owned).into_iter().chain(files))?;
        }
        results.push(said);
    }
    if interrupt.requested() || ended.iter().any(|ended| ended.status.code() == Some(EXIT_INTERRUPTED.into()))
    {
        progress.note(&format!(
            "stopped; everything measured so far is kept: go on with `{}`",
            command_to_go_on()
        ));
        return Ok(Ended::Interrupted);
    }
    anyhow::ensure!(
        failed.is_empty(),
        "workers failed ({}); what they said is above. Everything that was measured is kept: go on with `{}`",
        failed.join(", "),
        command_to_go_on()
    );
    if arguments.json {
        output::json(&results)?;
    }
    Ok(outcome)
}
