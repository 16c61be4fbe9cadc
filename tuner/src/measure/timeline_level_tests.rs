//! Which batches have their timelines recorded, and what becomes of those that cannot be.

use super::*;
use crate::choice::PATS_PLANNER;
use crate::interrupt::Interrupt;
use crate::measure::batch_level::tests::{LARGE, Outcome, SAFE, SMALL, ScriptedBench, model};
use crate::measure::{Execution, PlanFacts, Verified, measure_batches};
use crate::progress::Progress;
use crate::store::{Start, test_data};
use crate::workloads::{Scale, Workloads};
use std::time::Duration;
use tilewright_heuristics::{Backend, Tile};
use tilewright_kernel_templates::Class;

fn row(scenario: &str, workload: &str, us: f64, limit_us: f64) -> Measurement {
    Measurement {
        level: Level::Batch,
        scenario: scenario.to_owned(),
        limit_us: Some(limit_us),
        selector_hash: "hash".to_owned(),
        ..test_data::measurement(workload, "selector", &[us])
    }
}

#[test]
fn timelines_are_of_the_farthest_and_the_longest() {
    let mut rows = vec![
        row("one", "one/a", 40.0, 10.0),
        row("one", "one/b", 50.0, 10.0),
        row("one", "one/c", 30.0, 10.0),
        row("two", "two/a", 12.0, 10.0),
        row("two", "two/b", 13.0, 10.0),
        row("two", "two/long", 9_000.0, 8_900.0),
        row("three", "three/a", 11.0, 10.0),
        row("three", "three/b", 11.0, 10.0),
        row("three", "three/longer", 10_000.0, 9_990.0),
        row("four", "four/a", 10.5, 10.0),
    ];
    let expected = ["one/b", "one/a", "two/b", "two/a", "three/a", "three/b", "three/longer", "two/long"];
    assert_eq!(chosen_batches(&rows, "hash"), expected);
    rows.reverse();
    assert_eq!(chosen_batches(&rows, "hash"), expected, "the order of measuring does not matter");

    // Neither another selector's, nor what was launched otherwise, chosen otherwise or failed.
    let farthest = row("five", "five/a", 1_000.0, 1.0);
    let no = [
        Measurement { selector_hash: "other".to_owned(), ..farthest.clone() },
        Measurement { choice: "selector, streams+launch".to_owned(), ..farthest.clone() },
        Measurement { choice: PATS_PLANNER.to_owned(), ..farthest.clone() },
        Measurement { status: Status::Runtime, ..farthest.clone() },
        Measurement { samples_us: Vec::new(), ..farthest.clone() },
        Measurement { level: Level::Pack, ..farthest.clone() },
    ];
    rows.extend(no);
    assert_eq!(chosen_batches(&rows, "hash"), expected);
    rows.push(farthest);
    assert_eq!(chosen_batches(&rows, "hash")[0], "five/a");
    assert!(chosen_batches(&rows, "none").is_empty());
}

/// A run over three batches that were measured, and what its timelines are recorded by.
struct Fixture {
    folder: tempfile::TempDir,
    workloads: Workloads,
    verified: Verified,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trees.yaml");
        std::fs::write(&file, "name: t\nheads: [[4, 1]]\ntrees: ['1,4_64,33', '8_96', '3_48']\n").unwrap();
        let workloads = Workloads::load(&[file], Backend::Cpu, &Scale::of(Backend::Cpu), None).unwrap();
        let class = Class::of(&workloads.batches[0].build().unwrap().geometry).to_string();
        let passed = |tile: Tile| Measurement {
            level: Level::Space,
            ..test_data::measurement(&class, &tile.to_string(), &[])
        };
        let verified = Verified::of(&[SMALL, LARGE, SAFE].map(passed));
        Self { folder, workloads, verified }
    }

    fn batches(&self) -> &[Workload] {
        &self.workloads.batches[..3]
    }

    fn open(&self, start: Start) -> RunFolder {
        RunFolder::open(&self.folder.path().join("run"), test_data::provenance(), start).unwrap()
    }

    /// Measures the batches and records their timelines within a time; the run, and how often a batch was planned for a timeline.
    fn run(&self, start: Start, outcomes: &[Outcome], time: Duration) -> (RunFolder, Vec<Execution>) {
        let mut bench = ScriptedBench::new(Vec::new(), Some(PlanFacts { tiles: 2, merges: true }));
        let (model, mut run) = (model(), self.open(start));
        let policies = BatchPolicies::new(&model, "hash".to_owned(), None);
        let (silent, interrupt) = (Progress::Silent, Interrupt::default());
        let far = Instant::now() + Duration::from_secs(60);
        let (batches, verified) = (self.batches(), &self.verified);
        let session = &mut Session::new(&mut bench, &mut run, silent, &interrupt);
        measure_batches(session, batches, &policies, verified, far).unwrap();
        bench.timelines.borrow_mut().extend(outcomes);
        bench.planned.borrow_mut().clear();
        let deadline = Instant::now() + time;
        let done = record_timelines(
            &mut Session::new(&mut bench, &mut run, silent, &interrupt),
            batches,
            &policies,
            deadline,
        );
        assert!(done.unwrap());
        (run, bench.planned.take().into_iter().map(|(execution, _)| execution).collect())
    }
}

const TIME: Duration = Duration::from_secs(60);

fn recorded(run: &RunFolder) -> Vec<&str> {
    run.timelines().batches.iter().map(|known| known.batch.as_str()).collect()
}

fn reasons(run: &RunFolder) -> Vec<&str> {
    run.timelines().skipped.iter().map(|skipped| skipped.reason.as_str()).collect()
}

#[test]
fn each_batch_is_recorded_once_under_the_selector() {
    let fixture = Fixture::new();
    let (run, executions) = fixture.run(Start::Fresh, &[], TIME);
    assert_eq!(executions, vec![Execution::default(); 3]);
    assert_eq!((recorded(&run).len(), reasons(&run).len()), (3, 0));
    for known in &run.timelines().batches {
        assert_eq!((known.choice.as_str(), known.selector_hash.as_str()), ("selector", "hash"));
        assert_eq!(known.timeline, test_data::batch_timeline("t").timeline);
    }
    drop(run);
    let (run, executions) = fixture.run(Start::Resume, &[], TIME);
    assert!(executions.is_empty(), "a run that goes on has them");
    assert_eq!(recorded(&run).len(), 3);
}

#[test]
fn one_that_fails_is_told_and_recorded_when_the_run_goes_on() {
    let fixture = Fixture::new();
    let (run, _) = fixture.run(Start::Fresh, &[Outcome::Recorded, Outcome::Failed], TIME);
    assert_eq!((recorded(&run).len(), reasons(&run)), (2, vec!["it died"]));
    drop(run);
    let (run, executions) = fixture.run(Start::Resume, &[], TIME);
    assert_eq!((executions.len(), recorded(&run).len(), reasons(&run).len()), (1, 3, 0));
}

#[test]
fn a_device_that_is_lost_ends_no_run() {
    let (run, executions) = Fixture::new().run(Start::Fresh, &[Outcome::Recorded, Outcome::Lost], TIME);
    assert_eq!((recorded(&run).len(), executions.len()), (1, 2), "nothing is asked of it any more");
    let reasons = reasons(&run);
    assert_eq!(reasons[0], "it died");
    assert!(reasons.len() == 2 && reasons[1].contains("it is lost"), "{reasons:?}");
}

#[test]
fn a_spent_budget_records_one_and_says_why_not_more() {
    let (run, executions) = Fixture::new().run(Start::Fresh, &[], Duration::ZERO);
    assert_eq!((recorded(&run).len(), executions.len()), (1, 1));
    let reasons = reasons(&run);
    assert!(reasons.len() == 2 && reasons.iter().all(|reason| reason.contains("budget")), "{reasons:?}");
}
