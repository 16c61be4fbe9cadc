//! `tune` on several devices, each of which is the processor here: they share the work, and one that fails costs nothing of the others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tilewright_tuner::store::{Level, Recording, read};

/// What a sample is known by: workload, choice, and its time to the bit.
type Sample = (String, String, u64);

fn tune(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("tilewright"));
    command.current_dir(folder).stdin(Stdio::null()).args(["tune", "packs.yaml", "trees.yaml", "--json"]);
    command.args(["--device", "cpu,cpu", "--threads", "1", "--budget", "6", "--force", "--out", "out"]);
    command
}

/// The folder of the one device in a worker's folder.
fn run_folder(folder: &Path, worker: &str) -> Option<PathBuf> {
    Some(std::fs::read_dir(folder.join("out/workers").join(worker)).ok()?.next()?.ok()?.path())
}

/// What lies on disk of a worker's measurements: in parts, or in its shard.
fn kept(folder: &Path, worker: &str) -> BTreeSet<Sample> {
    let Some(run) = run_folder(folder, worker) else { return BTreeSet::new() };
    let files =
        [run.join("parts"), run].map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let is_part = |path: &PathBuf| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        path.extension().is_some_and(|e| e == "parquet")
            && (stem.parse::<u32>().is_ok() || stem.starts_with("shard-"))
    };
    let files = files.into_iter().flatten().map(|entry| entry.path()).filter(is_part);
    files.flat_map(|file| samples(&read(&file).unwrap())).collect()
}

fn samples(recording: &Recording) -> Vec<Sample> {
    let of = |us: &f64, row: &tilewright_tuner::store::Measurement| {
        (row.workload.clone(), row.choice.clone(), us.to_bits())
    };
    recording.rows.iter().flat_map(|row| row.samples_us.iter().map(move |us| of(us, row))).collect()
}

#[test]
fn a_worker_that_is_killed_loses_nothing_and_all_unite() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let packs = "name: few\nheads: [[4, 1]]\npacks:\n  rows: [4, 16]\n  kv_len: [32, 64, 128, 256]\n  packs: [1, 4]\n";
    std::fs::write(folder.join("packs.yaml"), packs).unwrap();
    let trees = "name: small\nheads: [[4, 1]]\ntrees: ['1,4_64,32', '8_96']\n";
    std::fs::write(folder.join("trees.yaml"), trees).unwrap();

    let run = tune(folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    // It has measured something, which is on disk.
    let parts = || {
        run_folder(folder, "1-cpu")
            .map_or(0, |run| std::fs::read_dir(run.join("parts")).map_or(0, Iterator::count))
    };
    while parts() < 5 {
        assert!(begin.elapsed() < Duration::from_secs(120), "the worker does not get on");
        std::thread::sleep(Duration::from_millis(20));
    }
    let lock = std::fs::read_to_string(run_folder(folder, "1-cpu").unwrap().join(".lock")).unwrap();
    let process = lock.trim().strip_prefix("process ").unwrap();
    assert!(Command::new("kill").args(["-KILL", process]).status().unwrap().success());
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("workers failed (cpu: signal: 9") && said.contains("--resume"), "{said}");
    let known: BTreeSet<Sample> =
        ["0-cpu", "1-cpu"].into_iter().flat_map(|worker| kept(folder, worker)).collect();
    assert!(
        run_folder(folder, "0-cpu").unwrap().join("shard-1-of-2.parquet").is_file(),
        "the other is over: {said}"
    );
    assert!(!kept(folder, "1-cpu").is_empty());

    let output = tune(folder).arg("--resume").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results.as_array().unwrap().len(), 1, "one model of device");
    for key in ["measurements", "module", "report"] {
        assert!(folder.join(results[0][key].as_str().unwrap()).is_file(), "{key}: {results}");
    }
    let recording = read(&folder.join(results[0]["measurements"].as_str().unwrap())).unwrap();
    let found: BTreeSet<Sample> = samples(&recording).into_iter().collect();
    assert!(known.is_subset(&found), "{} samples are gone", known.difference(&found).count());
    let batches = recording.rows.iter().filter(|row| row.level == Level::Batch && !row.samples_us.is_empty());
    assert_eq!(batches.map(|row| row.workload.as_str()).collect::<BTreeSet<_>>().len(), 16 + 2);
}
