//! A run that is killed at random times, and gone on with: nothing that was measured is lost.
//!
//! `TILEWRIGHT_KILLS` says how often; a thousand take hours.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tilewright_tuner::store::read;

/// What a sample is known by: workload, choice, and its time to the bit.
type Sample = (String, String, u64);

fn start(folder: &Path, resume: bool) -> Child {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("tilewright"));
    command
        .current_dir(folder)
        .args([
            "tune",
            "packs.yaml",
            "trees.yaml",
            "--device",
            "cpu",
            "--budget",
            "6",
            "--force",
            "--out",
            "out",
        ])
        .args(resume.then_some("--resume"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

fn run_folder(folder: &Path) -> Option<PathBuf> {
    let mut entries = std::fs::read_dir(folder.join("out")).ok()?;
    Some(entries.next()?.ok()?.path())
}

/// Whether there is something to go on with: a run without a part begins anew.
fn has_parts(folder: &Path) -> bool {
    let parts = run_folder(folder).and_then(|run| std::fs::read_dir(run.join("parts")).ok());
    parts.into_iter().flatten().flatten().any(|part| part.path().extension().is_some_and(|e| e == "parquet"))
}

/// What lies on disk: in the parts, or in the finished file.
fn samples(folder: &Path) -> BTreeSet<Sample> {
    let Some(run) = run_folder(folder) else { return BTreeSet::new() };
    let parts =
        std::fs::read_dir(run.join("parts")).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_part = |path: &PathBuf| {
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        path.extension().is_some_and(|extension| extension == "parquet")
            && stem.is_some_and(|stem| stem.parse::<u32>().is_ok())
    };
    let mut files: Vec<PathBuf> = parts.filter(is_part).collect();
    if files.is_empty() {
        files.extend(Some(run.join("measurements.parquet")).filter(|path| path.exists()));
    }
    let mut found = BTreeSet::new();
    for file in files {
        for row in read(&file).expect("what is on disk can be read").rows {
            let known = |sample: &f64| (row.workload.clone(), row.choice.clone(), sample.to_bits());
            found.extend(row.samples_us.iter().map(known));
        }
    }
    found
}

#[test]
fn a_run_that_is_killed_at_any_time_loses_nothing() {
    let kills: u32 = std::env::var("TILEWRIGHT_KILLS").map_or(4, |kills| kills.parse().expect("a number"));
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let packs = "name: few\nheads: [[4, 1]]\npacks:\n  rows: [4, 16]\n  kv_len: [32, 256]\n  packs: [1, 4]\n";
    std::fs::write(folder.join("packs.yaml"), packs).unwrap();
    let trees = "name: small\nheads: [[4, 1]]\ntrees: ['1,4_64,32', '8_96']\n";
    std::fs::write(folder.join("trees.yaml"), trees).unwrap();

    let mut random = ChaCha8Rng::seed_from_u64(std::process::id().into());
    let mut known = BTreeSet::new();
    let (mut killed, mut ended) = (0, 0);
    while killed < kills {
        let mut child = start(folder, has_parts(folder));
        std::thread::sleep(Duration::from_millis(random.random_range(100..9_000)));
        if let Some(status) = child.try_wait().unwrap() {
            // It was over before: another one begins, whose measurements are its own.
            assert!(status.success(), "{:?}", child.wait_with_output().unwrap());
            let found = samples(folder);
            assert!(known.is_subset(&found), "{} samples are gone", known.difference(&found).count());
            std::fs::remove_dir_all(folder.join("out")).unwrap();
            (known, ended) = (BTreeSet::new(), ended + 1);
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
        let found = samples(folder);
        assert!(known.is_subset(&found), "{} samples are gone", known.difference(&found).count());
        known = found;
    }
    let output = start(folder, has_parts(folder)).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = samples(folder);
    assert!(known.is_subset(&found) && !found.is_empty(), "after {killed} kills and {ended} ends");
    let run = run_folder(folder).unwrap();
    assert!(run.join("report.html").is_file() && !run.join("parts").exists());
}
