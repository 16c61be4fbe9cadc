//! Worker processes: started together, told to end together, each waited for.

use super::Worker;
use crate::interrupt::Interrupt;
use anyhow::Context as _;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;
use sysinfo::{Pid, ProcessesToUpdate, Signal, System};

/// How a worker ended.
#[derive(Debug)]
pub struct Ended {
    /// Its process's end.
    pub status: ExitStatus,
    /// What it wrote to stdout: JSON, if it succeeded.
    pub stdout: String,
}

struct Running {
    child: Child,
    stdout: JoinHandle<String>,
    stderr: JoinHandle<()>,
}

const POLL: Duration = Duration::from_millis(100);

/// Runs a program once for each worker, with these arguments, and waits for all of them. What they say on stderr comes with their devices' names.
/// If the user asks to stop, all are told to end in good order.
///
/// # Errors
/// A process that cannot be started; those that were are told to end.
pub fn run(
    program: &Path,
    workers: &[(&Worker, Vec<OsString>)],
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Ended>> {
    let mut running = Vec::new();
    for (worker, arguments) in workers {
        match start(program, worker, arguments) {
            Ok(started) => running.push(started),
            Err(error) => {
                running.iter_mut().for_each(tell_to_end);
                running.into_iter().try_for_each(|running| finish(running).map(drop))?;
                return Err(error);
            }
        }
    }
    let mut told = false;
    loop {
        let mut left = 0;
        for Running { child, .. } in &mut running {
            left += usize::from(child.try_wait().context("cannot wait for a worker")?.is_none());
        }
        if left == 0 {
            return running.into_iter().map(finish).collect();
        }
        // Once: a second signal would end them at once.
        if interrupt.requested() && !told {
            running.iter_mut().for_each(tell_to_end);
            told = true;
        }
        std::thread::sleep(POLL);
    }
}

fn start(program: &Path, worker: &Worker, arguments: &[OsString]) -> anyhow::Result<Running> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A terminal's Ctrl-C would reach them beside this process's word.
    command.process_group(0);
    let mut child =
        command.spawn().with_context(|| format!("{}: cannot start its worker", worker.device_list()))?;
    let name = worker.device_list().to_string();
    let stdout = child.stdout.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut text = String::new();
            // A worker that says no text has failed, and its status tells so.
            let _ = pipe.read_to_string(&mut text);
            text
        })
    });
    let stderr = child.stderr.take().map(|pipe| {
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                eprintln!("{name}: {line}");
            }
        })
    });
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else { anyhow::bail!("a worker has no pipes") };
    Ok(Running { child, stdout, stderr })
}

fn tell_to_end(running: &mut Running) {
    // Of one that has ended, the number may be another process's.
    if !matches!(running.child.try_wait(), Ok(None)) {
        return;
    }
    let pid = Pid::from_u32(running.child.id());
    let Ok(mut system) = System::new() else { return };
    system.refresh_processes(ProcessesToUpdate::Some(&[pid]), true);
    if let Some(process) = system.process(pid) {
        process.kill_with(Signal::Term);
    }
}

fn finish(mut running: Running) -> anyhow::Result<Ended> {
    let status = running.child.wait().context("cannot wait for a worker")?;
    let _ = running.stderr.join();
    Ok(Ended { status, stdout: running.stdout.join().unwrap_or_default() })
}
