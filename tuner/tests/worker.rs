//! The command `worker` as a run meets it: it measures like the bench itself, and its faults are cut off and recorded.

use assert_cmd::cargo::cargo_bin;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tilewright_heuristics::{Backend, Dtype, Tile, TileSetBuf};
use tilewright_kernel_templates::Class;
use tilewright_scenarios::Batch;
use tilewright_tuner::fit_settings::FitSettings;
use tilewright_tuner::interrupt::Interrupt;
use tilewright_tuner::measure::worker::FAULT_VARIABLE;
use tilewright_tuner::measure::{
    Bench, Candidates, Coverage, CpuBench, Execution, Session, TimeLimits, Verified, WorkerBench,
    WorkerCommand, measure_candidates,
};
use tilewright_tuner::progress::Progress;
use tilewright_tuner::store::{Hashes, Level, Measurement, Provenance, RunFolder, Start, Status, Timeline};
use tilewright_tuner::workloads::{Scale, Workload, Workloads};

const TILES: [&str; 3] = ["m4n32w1s1", "m4n64w1s1", "m4n64w1s2"];
const FAULTY: &str = TILES[1];

fn worker(fault: Option<&str>, sample: Duration) -> WorkerBench {
    let command = WorkerCommand {
        program: cargo_bin("tilewright"),
        arguments: ["worker", "--device", "cpu", "--threads", "1"].map(Into::into).to_vec(),
        environment: fault.map(|fault| (FAULT_VARIABLE.into(), fault.into())).into_iter().collect(),
    };
    WorkerBench::spawn(command, TimeLimits { sample, ..TimeLimits::default() }).unwrap()
}

fn workload(folder: &Path) -> Workload {
    let file = folder.join("packs.yaml");
    let text = "name: packs\nheads: [[4, 1]]\npacks:\n  rows: [4]\n  kv_len: [64]\n  packs: [3]\n";
    std::fs::write(&file, text).unwrap();
    Workloads::load(&[file], Backend::Cpu, &Scale::of(Backend::Cpu), None).unwrap().batches.remove(0)
}

fn tile(text: &str) -> Tile {
    text.parse().unwrap()
}

/// The row of a tile that passed.
fn passed(batch: &Batch, choice: &str) -> Measurement {
    Measurement {
        level: Level::Space,
        workload: Class::of(&batch.geometry).to_string(),
        scenario: String::new(),
        batch: None,
        held_out: false,
        choice: choice.to_owned(),
        tile: Some(tile(choice)),
        status: Status::Correct,
        survived: true,
        complete: true,
        samples_us: Vec::new(),
        limit_us: None,
        requests: None,
        unique_bytes: None,
        unshared_bytes: None,
        scaled: String::new(),
        relative_error: Some(0.0),
        conditions: Default::default(),
        resources: Default::default(),
        selector_hash: String::new(),
        message: String::new(),
    }
}

/// Races the tiles in a worker with a fault; the rows.
fn race_with(fault: &str, sample: Duration) -> Vec<Measurement> {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = worker(Some(fault), sample);
    let workload = workload(folder.path());
    let batch = workload.build().unwrap();
    let verified = Verified::of(&TILES.map(|choice| passed(&batch, choice)));
    let provenance = Provenance {
        device: bench.device(),
        limits: bench.facts(),
        prices: Some(bench.prices().into()),
        versions: bench.versions(),
        hashes: Hashes { kernel: bench.kernel_hash(), space: String::new() },
        scenarios: Vec::new(),
        workloads: String::new(),
        command: String::new(),
        started: String::new(),
        cold_caches: bench.cold_caches(),
        limit_method: bench.limit_method(),
        warnings: bench.warnings(),
        fit: FitSettings::default(),
        prior: None,
    };
    let mut run = RunFolder::open(&folder.path().join("run"), provenance, Start::Fresh).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let silent = Progress::Silent;
    let done = measure_candidates(
        &mut Session::new(&mut bench, &mut run, silent, &Interrupt::default()),
        &[workload],
        &Candidates { sets: TILES.map(|choice| TileSetBuf::one(tile(choice))).to_vec(), several_for: None },
        &verified,
        deadline,
    );
    assert!(done.unwrap());
    let rows = run.rows().to_vec();
    assert_eq!(rows.iter().map(|row| row.choice.as_str()).collect::<Vec<_>>(), TILES);
    for row in rows.iter().filter(|row| row.choice != FAULTY) {
        assert_eq!(row.status, Status::Correct, "{row:?}");
        assert!(!row.samples_us.is_empty(), "{row:?}");
    }
    rows
}

#[test]
fn a_worker_measures_like_the_bench_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut direct = CpuBench::new(Some(1));
    let mut bench = worker(None, Duration::from_secs(10));
    assert_eq!((bench.device(), bench.limits()), (direct.device(), direct.limits()));
    assert_eq!(bench.kernel_hash(), direct.kernel_hash());
    let class = Class { head_dim: 64, dtype: Dtype::F32 };
    let good = tile(TILES[0]);
    assert_eq!(bench.verify(&good, &class, Coverage::PLAIN), direct.verify(&good, &class, Coverage::PLAIN));
    assert_eq!(bench.resources(&good, &class), direct.resources(&good, &class));

    let batch = workload(folder.path()).build().unwrap();
    // Two processes measure two prices; with one of them the plans are the same.
    direct.adopt_prices(bench.prices());
    let (mut there, mut here) = (bench.load(&batch).unwrap(), direct.load(&batch).unwrap());
    assert!(there.limit_us() > 0.0);
    let execution = Execution::default();
    let (plan_there, plan_here) =
        (there.plan(&execution, &good.into()).unwrap(), here.plan(&execution, &good.into()).unwrap());
    assert_eq!(there.plan_facts(plan_there), here.plan_facts(plan_here));
    assert!(there.sample(plan_there).unwrap() > 0.0);
    assert!(here.sample(plan_here).unwrap() > 0.0);

    let (there, here) = (there.timeline(plan_there).unwrap(), here.timeline(plan_here).unwrap());
    assert_eq!((there.processors, &there.tiles), (here.processors, &here.tiles));
    assert_eq!(there.predicted_idle, here.predicted_idle, "by the same prices");
    let items = |timeline: &Timeline| -> Vec<(u32, u32)> {
        timeline.entries.iter().map(|entry| (entry.item, entry.kv_head)).collect()
    };
    assert_eq!(items(&there), items(&here));
    assert!(there.entries.len() >= 3 && there.entries.iter().all(|entry| entry.in_order() == *entry));
}

#[test]
fn a_variant_that_hangs_is_cut_off_and_the_others_are_measured() {
    let rows = race_with(&format!("hang:{FAULTY}:sample"), Duration::from_secs(1));
    assert_eq!(rows[1].status, Status::Timeout);
    assert_eq!(rows[1].message, "did not end in 1 s; the process was stopped");
}

#[test]
fn a_variant_that_crashes_is_told_and_the_others_are_measured() {
    let aborted = &race_with(&format!("abort:{FAULTY}"), Duration::from_secs(10))[1];
    assert_eq!(aborted.status, Status::Runtime);
    assert!(aborted.message.starts_with("the process died: signal 6 (SIGABRT)"), "{}", aborted.message);
    let panicked = &race_with(&format!("panic:{FAULTY}"), Duration::from_secs(10))[1];
    assert_eq!(panicked.status, Status::Runtime);
    let told = panicked.message.starts_with("the process died: exit status 101: ")
        && panicked.message.contains(&format!("{FAULTY} was asked to panic"));
    assert!(told, "{}", panicked.message);
}

#[test]
fn a_timeline_that_crashes_is_told_and_the_next_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let batch = workload(folder.path()).build().unwrap();
    let mut bench = worker(Some(&format!("abort:{FAULTY}")), Duration::from_secs(10));
    let mut loaded = bench.load(&batch).unwrap();
    let [bad, good] =
        [FAULTY, TILES[0]].map(|choice| loaded.plan(&Execution::default(), &tile(choice).into()).unwrap());
    let failure = loaded.timeline(bad).unwrap_err();
    assert!(failure.message.starts_with("the process died: signal 6 (SIGABRT)"), "{}", failure.message);
    let timeline = loaded.timeline(good).unwrap();
    assert_eq!((timeline.processors, timeline.tiles[0].tile), (1, tile(TILES[0])));
    assert!(timeline.phases().idle < 1.0 && timeline.span_ns() > 0);
}

#[test]
fn a_verification_that_hangs_is_cut_off() {
    let command = WorkerCommand {
        program: cargo_bin("tilewright"),
        arguments: ["worker", "--device", "cpu", "--threads", "1"].map(Into::into).to_vec(),
        environment: vec![(FAULT_VARIABLE.into(), format!("hang:{FAULTY}").into())],
    };
    let limits = TimeLimits { verify: Duration::from_secs(2), ..TimeLimits::default() };
    let mut bench = WorkerBench::spawn(command, limits).unwrap();
    let class = Class { head_dim: 64, dtype: Dtype::F32 };
    assert_eq!(bench.verify(&tile(FAULTY), &class, Coverage::PLAIN).unwrap_err().status, Status::Timeout);
    assert!(bench.verify(&tile(TILES[0]), &class, Coverage::PLAIN).is_ok());
}

#[test]
fn a_worker_that_cannot_start_says_why() {
    let command = WorkerCommand {
        program: cargo_bin("tilewright"),
        arguments: ["worker", "--device", "cpu", "--threads", "1"].map(Into::into).to_vec(),
        environment: vec![(FAULT_VARIABLE.into(), "sulk:m4n64w1s1".into())],
    };
    let error = WorkerBench::spawn(command, TimeLimits::default()).unwrap_err().to_string();
    assert!(error.contains("exit status 1") && error.contains("`sulk:m4n64w1s1` is no fault"), "{error}");
    let command =
        WorkerCommand { program: "no-such-program".into(), arguments: Vec::new(), environment: Vec::new() };
    let error = WorkerBench::spawn(command, TimeLimits::default()).unwrap_err().to_string();
    assert!(error.contains("no-such-program: cannot start"), "{error}");
}

#[test]
fn a_worker_ends_with_the_run_even_if_a_variant_hangs() {
    let mut child = Command::new(cargo_bin("tilewright"))
        .args(["worker", "--device", "cpu", "--threads", "1"])
        .env(FAULT_VARIABLE, format!("hang:{FAULTY}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let class = r#"{"head_dim":64,"dtype":"f32"}"#;
    let coverage = r#"{"options":false,"cp_async":false,"trial":false,"timeline":false,"invariant":false}"#;
    let request = format!(r#"{{"Verify":{{"tile":"{FAULTY}","class":{class},"coverage":{coverage}}}}}"#);
    let mut input = child.stdin.take().unwrap();
    input.write_all(&(request.len() as u32).to_le_bytes()).unwrap();
    input.write_all(request.as_bytes()).unwrap();
    drop(input);
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it is still there");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // A request that it does not understand would have ended it, too.
    assert_eq!(io::read_to_string(child.stderr.take().unwrap()).unwrap(), "");
}
