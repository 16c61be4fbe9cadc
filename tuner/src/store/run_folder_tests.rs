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
    assert_eq!(run.measured(Level::Batch), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    run.append(vec![measurement("c", "m4n64w1s1", &[4.0])]).unwrap();
    let path = folder.path().join("all.parquet");
    run.write(&path).unwrap();
    run.retire(&path).unwrap();
    let workloads: Vec<String> = read(&path).unwrap().rows.into_iter().map(|row| row.workload).collect();
    assert_eq!(workloads, ["a", "b", "b", "c"]);
    assert!(!folder.path().join(PARTS).exists());
}

#[test]
fn a_stopped_run_is_not_overwritten_without_being_asked() {
    let folder = stopped_run();
    let error = open(folder.path(), Start::Fresh).unwrap_err();
    assert!(matches!(error, StoreError::Unfinished { parts: 2, .. }), "{error}");
    assert!(error.to_string().contains("`tilewright tune`"), "the command that began it: {error}");
    assert!(open(folder.path(), Start::Discard).unwrap().rows().is_empty());
    assert!(matches!(open(folder.path(), Start::Resume), Err(StoreError::NothingToResume { .. })));
}

#[test]
fn another_device_kernel_or_scenario_cannot_resume() {
    let folder = stopped_run();
    let mut device = provenance();
    device.device.name = "another".to_owned();
    let mut kernel = provenance();
    kernel.hashes.kernel = "changed".to_owned();
    let mut scenario = provenance();
    scenario.scenarios[0].hash = "changed".to_owned();
    let mut more = provenance();
    more.scenarios.push(ScenarioRecord { name: "more".to_owned(), hash: "h".to_owned() });
    let mut fewer = provenance();
    fewer.scenarios.clear();
    let others = [("device", device), ("kernel", kernel), ("scenarios", scenario), ("scenarios", more)];
    for (what, other) in others.into_iter().chain([("scenarios", fewer)]) {
        let error = RunFolder::open(folder.path(), other, Start::Resume).unwrap_err();
        assert!(matches!(&error, StoreError::OtherRun { what: found, .. } if *found == what), "{error}");
    }
    let mut command = provenance();
    command.command = "tilewright tune --resume".to_owned();
    assert!(RunFolder::open(folder.path(), command, Start::Resume).is_ok(), "another command may go on");
}

#[test]
fn a_run_of_other_workloads_does_not_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let of = |workloads: &str| Provenance { workloads: workloads.to_owned(), ..provenance() };
    let mut run = RunFolder::open(folder.path(), of("shard 1 of 2"), Start::Fresh).unwrap();
    run.append(vec![measurement("a", "m4n64w1s1", &[1.0])]).unwrap();
    drop(run);
    let error = RunFolder::open(folder.path(), of("shard 2 of 2"), Start::Resume).unwrap_err().to_string();
    assert!(error.contains("shard 1 of 2") && error.contains("shard 2 of 2"), "{error}");
    RunFolder::open(folder.path(), of("shard 1 of 2"), Start::Resume).unwrap();
}

#[test]
fn two_runs_do_not_measure_into_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let run = open(folder.path(), Start::Fresh).unwrap();
    for start in [Start::Fresh, Start::Resume, Start::Discard] {
        assert!(matches!(open(folder.path(), start), Err(StoreError::Locked { .. })));
    }
    drop(run);
    open(folder.path(), Start::Fresh).unwrap();
}

#[test]
fn a_damaged_part_costs_its_own_rows() {
    let folder = stopped_run();
    let path = folder.path().join("parts/000002.parquet");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.truncate(100);
    std::fs::write(&path, bytes).unwrap();
    let mut run = open(folder.path(), Start::Resume).unwrap();
    assert_eq!(run.measured(Level::Batch), BTreeSet::from(["a".to_owned()]));
    assert!(run.damaged().len() == 1 && run.damaged()[0].contains("000002"), "{:?}", run.damaged());
    run.append(vec![measurement("b", "m4n64w1s1", &[2.0])]).unwrap();
    drop(run);
    let run = open(folder.path(), Start::Resume).unwrap();
    assert_eq!((run.rows().len(), run.damaged().len()), (2, 0), "the damage is told once, and kept beside");
    assert!(folder.path().join("parts/000002.damaged").exists());
}

/// What a run that ends between two steps of its end leaves behind, and what those who come later make of it.
#[test]
fn a_run_may_end_between_any_two_steps_of_its_end() {
    let rows = |folder: &Path| open(folder, Start::Resume).map(|run| run.rows().len());
    // Measurements written, or a module and a report besides: all parts are there.
    let folder = stopped_run();
    let path = folder.path().join("all.parquet");
    open(folder.path(), Start::Resume).unwrap().write(&path).unwrap();
    assert_eq!(rows(folder.path()).unwrap(), 3);
    assert_eq!(Finished::in_folder(folder.path()).unwrap(), None);

    // The note that it is over, and the parts still there: it goes on, and ends again.
    let note = Finished { measurements: path.clone(), scenarios: provenance().scenarios };
    let write_note = || {
        std::fs::write(folder.path().join(FINISHED), serde_json::to_vec(&note).unwrap()).unwrap();
    };
    write_note();
    assert_eq!(Finished::in_folder(folder.path()).unwrap(), None);
    assert_eq!(rows(folder.path()).unwrap(), 3);

    // Parts renamed, some of them deleted: it is over.
    write_note();
    std::fs::rename(folder.path().join(PARTS), folder.path().join(RETIRED)).unwrap();
    std::fs::remove_file(folder.path().join(RETIRED).join("000001.parquet")).unwrap();
    assert_eq!(Finished::in_folder(folder.path()).unwrap(), Some(note.clone()));
    assert_eq!(read(&path).unwrap().rows.len(), 3);
    // The next run does not take the rest for its own.
    assert!(open(folder.path(), Start::Fresh).unwrap().rows().is_empty());
    assert!(!folder.path().join(RETIRED).exists());
    assert_eq!(Finished::in_folder(folder.path()).unwrap(), None, "another run has begun");
}

#[test]
fn a_run_that_is_over_says_where_its_measurements_are() {
    let folder = stopped_run();
    let path = folder.path().join("all.parquet");
    let run = open(folder.path(), Start::Resume).unwrap();
    run.write(&path).unwrap();
    run.retire(&path).unwrap();
    let finished = Finished::in_folder(folder.path()).unwrap().unwrap();
    assert_eq!((finished.measurements, finished.scenarios), (path, provenance().scenarios));
    assert!(!folder.path().join(PARTS).exists() && !folder.path().join(RETIRED).exists());
}

#[test]
fn a_part_that_was_never_finished_is_ignored() {
    let folder = stopped_run();
    std::fs::write(folder.path().join("parts/.writing-xyz"), b"half").unwrap();
    assert_eq!(open(folder.path(), Start::Resume).unwrap().rows().len(), 3);
}

#[test]
fn timelines_are_on_disk_as_soon_as_they_are_kept() {
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
    run.write(&path).unwrap();
    let timelines = run.timelines().clone();
    run.retire(&path).unwrap();
    assert_eq!(timelines.batches, [batch_timeline("a"), batch_timeline("b")]);
    assert_eq!(read_timelines(&timelines_path(&path)).unwrap(), Some(timelines));

    // The next run records none: those of this one are not taken for its own.
    open(folder.path(), Start::Fresh).unwrap().write(&path).unwrap();
    assert_eq!(read_timelines(&timelines_path(&path)).unwrap(), None);
}

#[test]
fn a_run_that_is_thrown_away_takes_its_timelines_with_it() {
    let folder = stopped_run();
    open(folder.path(), Start::Resume).unwrap().keep_timeline(batch_timeline("a")).unwrap();
    assert!(open(folder.path(), Start::Discard).unwrap().timelines().is_empty());
    assert!(!folder.path().join(TIMELINES).exists());
}
