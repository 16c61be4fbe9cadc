//! `tune` on several devices, each of which is the processor here, in a process of its own: they share one run, a process that is killed costs nothing of
//! it, and it goes on with another number of devices.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tilewright_tuner::device_name::DeviceName;
use tilewright_tuner::fleet::{Worker, run};
use tilewright_tuner::interrupt::Interrupt;
use tilewright_tuner::store::{Level, Recording, read};

/// What a sample is known by: workload, choice, and its time to the bit.
type Sample = (String, String, u64);

fn tune(folder: &Path, devices: &str) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("tilewright"));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.args(["-v", "tune", "packs.yaml", "trees.yaml", "--json", "--device", devices]);
    command.args(["--threads", "1", "--budget", "6", "--force", "--out", "out"]);
    command
}

fn scenarios(folder: &Path) {
    let packs = "name: few\nheads: [[4, 1]]\npacks:\n  rows: [4, 16]\n  kv_len: [32, 64, 128, 256]\n  packs: [1, 4]\n";
    std::fs::write(folder.join("packs.yaml"), packs).unwrap();
    let trees = "name: small\nheads: [[4, 1]]\ntrees: ['1,4_64,32', '8_96']\n";
    std::fs::write(folder.join("trees.yaml"), trees).unwrap();
}

/// The parts of the run in progress.
fn parts(folder: &Path) -> Vec<PathBuf> {
    let runs = std::fs::read_dir(folder.join("out")).into_iter().flatten().flatten();
    let parts = runs.flat_map(|run| std::fs::read_dir(run.path().join("parts")).into_iter().flatten());
    let paths = parts.flatten().map(|part| part.path());
    let is_part = |path: &PathBuf| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        path.extension().is_some_and(|e| e == "parquet") && stem.parse::<u32>().is_ok()
    };
    paths.filter(is_part).collect()
}

/// Waits until the run has measured something, which is on disk.
fn wait_for_parts(folder: &Path, count: usize) {
    let begin = Instant::now();
    while parts(folder).len() < count {
        assert!(begin.elapsed() < Duration::from_secs(120), "the run does not get on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The processes that a run has started.
fn children(run: &Child) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    let parent = |id: &u32| {
        // "1234 (a name) S 1230 ...": the parent follows the state.
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    ids.filter(|id| parent(id) == Some(run.id())).collect()
}

fn signal(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

fn samples(recording: &Recording) -> BTreeSet<Sample> {
    let of = |us: &f64, row: &tilewright_tuner::store::Measurement| {
        (row.workload.clone(), row.choice.clone(), us.to_bits())
    };
    recording.rows.iter().flat_map(|row| row.samples_us.iter().map(move |us| of(us, row))).collect()
}

/// The recording of a run that has ended well: all batches are in it.
fn finished(folder: &Path, run: Child) -> (Recording, String) {
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("tiles failed"), "a kernel is wrong on this processor: {said}");
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["measurements", "module", "report"] {
        assert!(folder.join(result[key].as_str().unwrap()).is_file(), "{key}: {result}");
    }
    let recording = read(&folder.join(result["measurements"].as_str().unwrap())).unwrap();
    let batches = recording.rows.iter().filter(|row| row.level == Level::Batch && !row.samples_us.is_empty());
    assert_eq!(batches.map(|row| row.workload.as_str()).collect::<BTreeSet<_>>().len(), 16 + 2);
    (recording, said)
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_that_is_killed_costs_nothing_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    scenarios(folder);
    let run = tune(folder, "cpu,cpu").spawn().unwrap();
    wait_for_parts(folder, 5);
    let workers = children(&run);
    assert_eq!(workers.len(), 2, "a process a device");
    signal("-KILL", workers[1]);
    let (_, said) = finished(folder, run);
    assert!(said.contains("the 2 devices are open") && said.contains("on 2 of them"), "{said}");
    for phase in [
        "phases: all",
        "screen",
        "verify",
        "candidates",
        "held-out",
        "timelines",
        "waiting for kernels, benches",
    ] {
        assert!(said.contains(phase), "{phase}: {said}");
    }
}

#[test]
fn a_run_that_is_stopped_goes_on_with_another_number_of_devices() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    scenarios(folder);
    let run = tune(folder, "cpu,cpu").spawn().unwrap();
    wait_for_parts(folder, 8);
    signal("-INT", run.id());
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("go on with `tilewright -v tune") && said.contains("--resume"), "{said}");
    let known: BTreeSet<Sample> =
        parts(folder).iter().flat_map(|part| samples(&read(part).unwrap())).collect();
    let (recording, _) = finished(folder, tune(folder, "cpu").arg("--resume").spawn().unwrap());
    let found = samples(&recording);
    assert!(known.is_subset(&found), "{} samples are gone", known.difference(&found).count());
}

#[test]
fn processes_of_several_models_are_waited_for_and_each_says_how_it_ended() {
    let worker = |device| Worker { devices: vec![device], out: PathBuf::from("out") };
    let workers = [worker(DeviceName::Cpu), worker(DeviceName::Cuda(1))];
    let arguments = [["completions", "bash"], ["completions", "no-such-shell"]];
    let arguments = arguments.map(|arguments| arguments.map(OsString::from).to_vec());
    let to_run: Vec<_> = workers.iter().zip(arguments).collect();
    let program = assert_cmd::cargo::cargo_bin("tilewright");
    let ended = run(&program, &to_run, &Interrupt::default()).unwrap();
    assert!(ended[0].status.success() && ended[0].stdout.contains("tilewright"), "{:?}", ended[0]);
    assert_eq!((ended[1].status.code(), ended[1].stdout.as_str()), (Some(2), ""));
    let error = run(Path::new("/no/such/program"), &to_run, &Interrupt::default()).unwrap_err();
    assert!(error.to_string().contains("cpu: cannot start"), "{error}");
}
