//! Runs that end early.

use super::*;
use crate::store::test_data::{batch_timeline, measurement, provenance};
use crate::store::{Level, read, timelines_path};

fn open(folder: &Path, start: Start) -> Result<RunFolder, StoreError> {
    RunFolder::open(folder, provenance(), start)
}

fn stopped_run() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut run = open(folder.path(), Start::Fresh).unwrap();
    run.append(vec![measurement("a", "m4n64w1s1", &[1.0])]).unwrap();
    run.append(vec![measurement("b", "m4n64w1s1", &[2.0]), measurement("b", "m8n64w1s1", &[3.0])]).unwrap();
    folder
}

#[test]
fn a_stopped_run_goes_on_where_it_stopped() {
    let folder = stopped_run();
    let mut run = open(folder.path(), Start::Resume).unwrap();
    assert_eq!(run.measured(Level::Pack), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    run.append(vec![measurement("c", "m4n64w1s1", &[4.0])]).unwrap();
    let path = folder.path().join("all.parquet");
    run.finish(&path).unwrap();
    let workloads: Vec<String> = read(&path).unwrap().rows.into_iter().map(|row| row.workload).collect();
    assert_eq!(workloads, ["a", "b", "b", "c"]);
    assert!(!folder.path().join(PARTS).exists());
}

#[test]
fn a_stopped_run_is_not_overwritten_without_being_asked() {
    let folder = stopped_run();
    let error = open(folder.path(), Start::Fresh).unwrap_err();
    assert!(matches!(error, StoreError::Unfinished { parts: 2, .. }), "{error}");
    assert!(open(folder.path(), Start::Discard).unwrap().rows().is_empty());
    assert!(matches!(open(folder.path(), Start::Resume), Err(StoreError::NothingToResume { .. })));
}

#[test]
fn another_device_kernel_or_scenario_does_not_go_on_with_the_run() {
    let folder = stopped_run();
    let mut device = provenance();
    device.device.name = "another".to_owned();
    let mut kernel = provenance();
    kernel.hashes.kernel = "changed".to_owned();
    let mut scenario = provenance();
    scenario.scenarios[0].hash = "changed".to_owned();
    for (what, other) in [("device", device), ("kernel", kernel), ("scenario", scenario)] {
        let error = RunFolder::open(folder.path(), other, Start::Resume).unwrap_err();
        assert!(matches!(&error, StoreError::OtherRun { what: found, .. } if *found == what), "{error}");
    }
    let mut command = provenance();
    command.command = "tilewright tune --resume".to_owned();
    assert!(RunFolder::open(folder.path(), command, Start::Resume).is_ok(), "another command may go on");
}

#[test]
fn a_part_that_was_never_finished_is_ignored() {
    let folder = stopped_run();
    std::fs::write(folder.path().join("parts/.writing-xyz"), b"half").unwrap();
    assert_eq!(open(folder.path(), Start::Resume).unwrap().rows().len(), 3);
}

#[test]
fn timelines_are_on_disk_as_soon_as_they_are_kept_and_end_beside_the_measurements() {
    let folder = stopped_run();
    let path = folder.path().join("all.parquet");
    let skipped = |batch: &str| SkippedTimeline {
        batch: batch.to_owned(),
        selector_hash: "hash".to_owned(),
        reason: "no time".to_owned(),
    };
    let mut run = open(folder.path(), Start::Resume).unwrap();
    run.skip_timeline(skipped("a")).unwrap();
    run.skip_timeline(skipped("b")).unwrap();
    run.keep_timeline(batch_timeline("a")).unwrap();
    drop(run);

    let mut run = open(folder.path(), Start::Resume).unwrap();
    assert_eq!(run.rows().len(), 3, "they are no parts of the measurements");
    assert_eq!(run.timelines().batches, [batch_timeline("a")]);
    assert_eq!(run.timelines().skipped, [skipped("b")]);
    run.keep_timeline(batch_timeline("b")).unwrap();
    let (_, timelines) = run.finish(&path).unwrap();
    assert_eq!(timelines.batches, [batch_timeline("a"), batch_timeline("b")]);
    assert_eq!(read_timelines(&timelines_path(&path)).unwrap(), Some(timelines));

    // The next run records none: those of this one are not taken for its own.
    open(folder.path(), Start::Fresh).unwrap().finish(&path).unwrap();
    assert_eq!(read_timelines(&timelines_path(&path)).unwrap(), None);
}

#[test]
fn a_run_that_is_thrown_away_takes_its_timelines_with_it() {
    let folder = stopped_run();
    open(folder.path(), Start::Resume).unwrap().keep_timeline(batch_timeline("a")).unwrap();
    assert!(open(folder.path(), Start::Discard).unwrap().timelines().is_empty());
    assert!(!folder.path().join(TIMELINES).exists());
}
