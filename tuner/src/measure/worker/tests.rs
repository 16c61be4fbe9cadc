//! A scripted bench on a thread in place of a process: what survives the trip, and what becomes of faults.

use super::client::{Launch, TimeLimits, WorkerBench};
use super::compiler::{CompileProcess, serve_compiler};
use super::connection::{Process, Started};
use super::serve::serve;
use super::wire::{BenchErrorRecord, ExecutionRecord};
use crate::interrupt::Interrupt;
use crate::measure::{
    Bench, BenchError, Compile as _, Compiled, Coverage, Execution, Failure, Loaded, PlanFacts, PlanId,
    PlanTiles, Planning, Session, Timed, verify_space,
};
use crate::progress::Progress;
use crate::store::{DeviceRecord, Resources, RunFolder, Start, Status, Timeline, test_data};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tilewright_cuda::{self as cuda, LaunchMode, MergeBy, Mix};
use tilewright_heuristics::{Backend, Dtype, GeometryError, PackShape, Prices, Tile, TileSetBuf};
use tilewright_kernel_templates::cuda::Kernel;
use tilewright_kernel_templates::{Class, CpuLimits, Limits, Space};
use tilewright_plan::{ChooseTiles as _, PlanError};
use tilewright_scenarios::{Batch, Scenario};

const CLASS: Class = Class { head_dim: 128, dtype: Dtype::Bf16 };
const GOOD: Tile = Tile::of("m4n64w1s1");
const OTHER: Tile = Tile::of("m8n64w1s1");
const HANGS: Tile = Tile::of("m1n16w1s1");
const DIES: Tile = Tile::of("m4n64w1s8");
const FAILS: Tile = Tile::of("m4n64w1s9");
const WRONG: Tile = Tile::of("m4n64w1s10");

const LIMITS: TimeLimits = TimeLimits {
    start: Duration::from_secs(10),
    prepare: Duration::from_secs(10),
    verify: Duration::from_millis(500),
    load: Duration::from_secs(10),
    sample: Duration::from_millis(500),
};

/// Launch modes that the fake has.
const LAUNCH_MODES: [LaunchMode; 2] = [
    LaunchMode { launch: cuda::Launch::Streams, merge: MergeBy::Launch },
    LaunchMode { launch: cuda::Launch::Single, merge: MergeBy::LastCta },
];

/// What the benches of one test did, one after the other.
type Log = Arc<Mutex<Vec<String>>>;

/// Behaves by the tile.
struct FakeBench {
    /// Which process this is, from 1.
    generation: usize,
    limits: Limits,
    prices: Prices,
    stopped: Arc<AtomicBool>,
    log: Log,
}

impl FakeBench {
    fn new(generation: usize, stopped: Arc<AtomicBool>, log: Log) -> Self {
        let limits =
            Limits::Cpu(CpuLimits { threads: 64, l1d_bytes: 1 << 20, l2_bytes: 1 << 24, llc_bytes: 0 });
        // No two processes measure the same.
        let prices = Prices { hbm_byte: u64::MAX, cta: generation as u64, ..Prices::H200 };
        Self { generation, limits, prices, stopped, log }
    }

    fn run(&self, tile: Tile) -> Result<f64, Failure> {
        let failure = |status, message: &str| Err(Failure { status, message: message.to_owned() });
        match tile {
            HANGS => {
                while !self.stopped.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                failure(Status::Runtime, "was stopped")
            }
            DIES => panic!("as the test asks"),
            FAILS => failure(Status::Runtime, "illegal address"),
            WRONG => failure(Status::Correctness, "relative error 1"),
            // No decimal fraction is equal to it.
            tile => Ok(f64::from(tile.m) / 3.0),
        }
    }

    fn log(&self, event: &str) {
        self.log.lock().unwrap().push(format!("{}: {event}", self.generation));
    }
}

impl Bench for FakeBench {
    fn device(&self) -> DeviceRecord {
        test_data::provenance().device
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn prices(&self) -> Prices {
        self.prices
    }

    fn adopt_prices(&mut self, prices: Prices) {
        self.prices = prices;
    }

    fn launch_modes(&self) -> &[LaunchMode] {
        &LAUNCH_MODES
    }

    fn facts(&self) -> Vec<(String, String)> {
        vec![("process".to_owned(), self.generation.to_string())]
    }

    fn versions(&self) -> Vec<(String, String)> {
        vec![("driver".to_owned(), "1 \"beta\"".to_owned())]
    }

    fn kernel_hash(&self) -> String {
        "hash".to_owned()
    }

    fn cold_caches(&self) -> String {
        "cold".to_owned()
    }

    fn limit_method(&self) -> String {
        "method".to_owned()
    }

    fn launch_us(&self) -> f64 {
        2.9
    }

    fn warnings(&self) -> Vec<String> {
        vec!["µ".to_owned()]
    }

    fn resources(&self, tile: &Tile, _: &Class) -> Resources {
        Resources { registers: Some(u32::from(tile.n)), ..Resources::default() }
    }

    fn verify(&mut self, tile: &Tile, class: &Class, coverage: Coverage) -> Result<f64, Failure> {
        // One class is enough to wait for.
        if (*tile, *class == CLASS) == (HANGS, false) {
            return Ok(0.0);
        }
        let Coverage { options, cp_async, .. } = coverage;
        Ok(self.run(*tile)? + f64::from(u8::from(options)) + 2.0 * f64::from(u8::from(cp_async)))
    }

    fn load<'a>(&'a mut self, batch: &'a Batch) -> Result<Box<dyn Loaded + 'a>, BenchError> {
        self.log("load");
        match batch.name.as_str() {
            "too large" => {
                Err(BenchError::TooLarge { batch: batch.name.clone(), needed_mb: 7, available_mb: 3 })
            }
            "deadly" => panic!("as the test asks"),
            _ => Ok(Box::new(FakeBatch { bench: self, batch, plans: Vec::new() })),
        }
    }
}

/// More than reading a batch takes.
const LIMIT_OF_A_PRICE: f64 = 1e12;

/// The packs of any batch.
fn packs_of(planning: Planning) -> Vec<PackShape> {
    let rows: &[u32] = match planning {
        Planning::AsDecoders => &[4, 8, 4],
        Planning::AsPat => &[4, 4, 16, 32],
        Planning::Invariant => &[4],
    };
    rows.iter().map(|&rows| PackShape::from_values([rows, 64, 0, 3, 3, 3, 3 * rows, 4, 128, 32, 0])).collect()
}

struct FakeBatch<'a> {
    bench: &'a mut FakeBench,
    batch: &'a Batch,
    plans: Vec<(Execution, Vec<Tile>)>,
}

impl Loaded for FakeBatch<'_> {
    fn limit_us(&self) -> f64 {
        // Reads all that was sent.
        let entries: i64 = self.batch.page_table.iter().map(|&page| i64::from(page)).sum();
        let tokens: u32 = self.batch.seq_lens.iter().sum();
        let read = (entries as f64 + f64::from(tokens) + self.batch.unique_bytes() as f64) / 3.0;
        // Tells which prices the process has.
        read + self.bench.prices.cta as f64 * LIMIT_OF_A_PRICE
    }

    fn plan(&mut self, execution: &Execution, mut tiles: &PlanTiles) -> Result<PlanId, BenchError> {
        let tiles: Vec<Tile> = packs_of(execution.planning).iter().map(|pack| tiles.pack(pack)).collect();
        let name = match *execution == Execution::default() {
            true => String::new(),
            false => format!(" as {execution:?}"),
        };
        self.bench.log(&format!("plan {}{name}", tiles[1]));
        self.plans.push((execution.clone(), tiles));
        Ok(PlanId(self.plans.len() - 1))
    }

    fn plan_facts(&self, plan: PlanId) -> Option<PlanFacts> {
        let (_, tiles) = &self.plans[plan.0];
        Some(PlanFacts { tiles: tiles.len(), merges: tiles[0] == OTHER })
    }

    fn sample(&mut self, plan: PlanId) -> Result<f64, Failure> {
        let (execution, tiles) = &self.plans[plan.0];
        if execution.launch_mode.launch == cuda::Launch::Single && execution.mix.is_none() {
            return Err(Failure { status: Status::Constraints, message: "no mix".to_owned() });
        }
        let tile = tiles[1];
        self.bench.log(&format!("sample {tile}"));
        self.bench.run(tile)
    }

    fn outputs(&mut self, plan: PlanId, requests: &[usize]) -> Result<Vec<f32>, Failure> {
        let tile = self.plans[plan.0].1[1];
        let us = self.bench.run(tile)? as f32;
        Ok(requests.iter().flat_map(|&request| [request as f32 / 3.0, us, f32::NAN]).collect())
    }

    fn timeline(&mut self, plan: PlanId) -> Result<Timeline, Failure> {
        let tile = self.plans[plan.0].1[1];
        self.bench.log(&format!("timeline {tile}"));
        let us = self.bench.run(tile)?;
        Ok(Timeline { predicted_idle: us / 7.0, ..test_data::batch_timeline("t").timeline })
    }
}

/// A thread that stands for a process.
struct FakeProcess {
    thread: JoinHandle<()>,
    stopped: Arc<AtomicBool>,
}

impl Process for FakeProcess {
    fn alive(&mut self) -> bool {
        !self.thread.is_finished()
    }

    fn forget(&mut self) {}

    fn stop(&mut self, _: Duration) -> String {
        self.stopped.store(true, Ordering::Relaxed);
        "signal 11 (SIGSEGV)".to_owned()
    }
}

/// Starts benches on threads, at most `most` of them.
fn launch(most: usize, log: &Log) -> Launch {
    let (log, mut generation) = (Arc::clone(log), 0);
    Box::new(move || {
        generation += 1;
        if generation > most {
            return Err("the device is gone".to_owned());
        }
        let (mut requests, input) = io::pipe().unwrap();
        let (output, mut answers) = io::pipe().unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let mut bench = FakeBench::new(generation, Arc::clone(&stopped), Arc::clone(&log));
        let thread = std::thread::spawn(move || {
            // The caller that stopped it does not read the last answer.
            let _ = serve(&mut bench, &mut requests, &mut answers);
        });
        Ok(Started {
            input: Box::new(input),
            output: Box::new(output),
            process: Box::new(FakeProcess { thread, stopped }),
        })
    })
}

fn worker(most: usize) -> (WorkerBench, Log) {
    let log = Log::default();
    (WorkerBench::launch(launch(most, &log), LIMITS).unwrap(), log)
}

fn batch(name: &str) -> Batch {
    let text = "name: t\nheads: [[4, 1]]\ntrees: ['1,4_64,33']\n";
    let mut batch = Scenario::parse(text, "t.yaml").unwrap().batches().unwrap().remove(0).build().unwrap();
    batch.name = name.to_owned();
    batch
}

#[test]
fn everything_that_a_bench_says_survives_the_trip() {
    let (mut bench, _) = worker(1);
    let mut direct = FakeBench::new(1, Arc::default(), Log::default());
    assert_eq!(bench.device(), direct.device());
    assert_eq!(bench.limits(), direct.limits());
    assert_eq!(bench.facts(), direct.facts());
    assert_eq!(bench.prices(), direct.prices());
    assert_eq!(bench.launch_modes(), direct.launch_modes());
    assert_eq!(bench.versions(), direct.versions());
    assert_eq!(bench.kernel_hash(), direct.kernel_hash());
    assert_eq!(bench.cold_caches(), direct.cold_caches());
    assert_eq!(bench.limit_method(), direct.limit_method());
    assert_eq!(bench.launch_us(), direct.launch_us());
    assert_eq!(bench.warnings(), direct.warnings());
    for tile in [GOOD, WRONG] {
        for coverage in [(false, false), (true, false), (false, true), (true, true)] {
            let coverage = Coverage { options: coverage.0, cp_async: coverage.1, ..Coverage::PLAIN };
            let verified = bench.verify(&tile, &CLASS, coverage);
            assert_eq!(verified, direct.verify(&tile, &CLASS, coverage), "{coverage:?}");
        }
        assert_eq!(bench.resources(&tile, &CLASS), direct.resources(&tile, &CLASS));
    }
    let (good, large) = (batch("good"), batch("too large"));
    assert_eq!(bench.load(&large).err(), direct.load(&large).err());
    let (mut loaded, mut expected) = (bench.load(&good).unwrap(), direct.load(&good).unwrap());
    assert_eq!(loaded.limit_us(), expected.limit_us());
    // The second of the shapes has more rows than the smaller tile.
    let tiles = PlanTiles::Set(TileSetBuf::of(&[GOOD, OTHER]).unwrap());
    let execution = Execution::default();
    let (plan, wanted) =
        (loaded.plan(&execution, &tiles).unwrap(), expected.plan(&execution, &tiles).unwrap());
    assert_eq!(loaded.sample(plan), expected.sample(wanted));
    assert_eq!(loaded.sample(plan), Ok(8.0 / 3.0));
    let bits =
        |output: Result<Vec<f32>, Failure>| output.unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(loaded.outputs(plan, &[2, 0])), bits(expected.outputs(wanted, &[2, 0])));
    assert_eq!(loaded.outputs(plan, &[1]).unwrap().len(), 3);
    assert_eq!(loaded.timeline(plan), expected.timeline(wanted));
    assert_eq!(loaded.timeline(plan).unwrap().predicted_idle, 8.0 / 21.0);
}

#[test]
fn a_timeline_that_ends_its_process_is_not_repeated() {
    let (mut bench, log) = worker(9);
    let batch = batch("good");
    let mut loaded = bench.load(&batch).unwrap();
    let plans = [DIES, OTHER, GOOD].map(|tile| loaded.plan(&Execution::default(), &tile.into()).unwrap());
    let died = loaded.timeline(plans[0]).unwrap_err();
    assert_eq!(died.message, "the process died: signal 11 (SIGSEGV)");
    assert_eq!(loaded.timeline(plans[0]), Err(died));
    log.lock().unwrap().clear();
    assert_eq!(loaded.timeline(plans[1]).unwrap().predicted_idle, 8.0 / 21.0);
    assert_eq!(loaded.timeline(plans[2]).unwrap().predicted_idle, 4.0 / 21.0);
    let expected = [
        "2: load",
        &format!("2: plan {OTHER}"),
        &format!("2: timeline {OTHER}"),
        &format!("2: plan {GOOD}"),
        &format!("2: timeline {GOOD}"),
    ];
    assert_eq!(*log.lock().unwrap(), expected);
    drop(loaded);
    assert_eq!(bench.defect(), None);
}

#[test]
fn a_way_of_planning_and_launching_survives_the_trip() {
    let mixes = [None, Some(Mix::of(&[])), Some(Mix::of(&[OTHER, GOOD]))];
    for planning in Planning::ALL {
        for launch_mode in LaunchMode::ALL {
            for mix in mixes.clone() {
                let execution = Execution { planning, launch_mode, mix };
                let text = serde_json::to_string(&ExecutionRecord::from(&execution)).unwrap();
                let back: ExecutionRecord = serde_json::from_str(&text).unwrap();
                assert_eq!(Execution::from(back), execution);
            }
        }
    }
}

#[test]
fn a_batch_is_planned_as_asked_again_after_a_death() {
    let (mut bench, log) = worker(9);
    let batch = batch("good");
    let mut loaded = bench.load(&batch).unwrap();
    let (execution, mixless) = (
        Execution {
            planning: Planning::AsPat,
            launch_mode: LAUNCH_MODES[1],
            mix: Some(Mix::of(&[OTHER, GOOD])),
        },
        Execution { launch_mode: LAUNCH_MODES[1], ..Execution::default() },
    );
    let planned = loaded.plan(&execution, &OTHER.into()).unwrap();
    assert_eq!(loaded.plan_facts(planned), Some(PlanFacts { tiles: 4, merges: true }));
    assert_eq!(loaded.sample(planned), Ok(8.0 / 3.0));
    let unmixed = loaded.plan(&mixless, &GOOD.into()).unwrap();
    assert_eq!(loaded.plan_facts(unmixed), Some(PlanFacts { tiles: 3, merges: false }));
    let refused = Failure { status: Status::Constraints, message: "no mix".to_owned() };
    assert_eq!(loaded.sample(unmixed), Err(refused), "what an execution needs is told, and ends no process");
    let deadly = loaded.plan(&Execution::default(), &DIES.into()).unwrap();
    loaded.sample(deadly).unwrap_err();
    log.lock().unwrap().clear();
    assert_eq!(loaded.sample(planned), Ok(8.0 / 3.0));
    let expected = ["2: load", &format!("2: plan {OTHER} as {execution:?}"), &format!("2: sample {OTHER}")];
    assert_eq!(*log.lock().unwrap(), expected);
    assert_eq!(loaded.plan_facts(PlanId(7)), None);
}

#[test]
fn a_replacement_process_plans_by_the_same_prices() {
    let (mut bench, _) = worker(9);
    let batch = batch("good");
    let prices_of =
        |bench: &mut WorkerBench| (bench.load(&batch).unwrap().limit_us() / LIMIT_OF_A_PRICE) as u64;
    let dies = |bench: &mut WorkerBench| bench.verify(&DIES, &CLASS, Coverage::PLAIN).unwrap_err();
    assert_eq!(prices_of(&mut bench), 1);
    dies(&mut bench);
    assert_eq!(prices_of(&mut bench), 1, "the second process measured another price");
    bench.adopt_prices(Prices { cta: 77, ..Prices::H200 });
    assert_eq!((prices_of(&mut bench), bench.prices().cta), (77, 77), "the process that there is is told");
    dies(&mut bench);
    bench.adopt_prices(Prices { cta: 78, ..Prices::H200 });
    assert_eq!(prices_of(&mut bench), 78, "and the next one, where there is none");
}

#[test]
fn a_worker_that_was_ended_is_started_again_if_it_is_needed() {
    let (mut bench, log) = worker(9);
    bench.end();
    bench.end();
    assert!(bench.load(&batch("good")).is_ok());
    assert_eq!(*log.lock().unwrap(), ["2: load"], "by the second process");
}

#[test]
fn errors_survive_the_trip() {
    let sources = [
        PlanError::Geometry(GeometryError::Zero("page_size")),
        PlanError::Geometry(GeometryError::HeadsDoNotDivide { q_heads: 3, kv_heads: 2 }),
        PlanError::TableSize { found: 1, batch: 2, max_pages: 3 },
        PlanError::TooLong { request: 1, seq_len: 2, needed: 3, max_pages: 4 },
        PlanError::NegativePage { request: 1, column: 2, page: -3 },
        PlanError::QueryLens { found: 1, needed: 2 },
        PlanError::QueryLen { request: 1, query_len: 3, seq_len: 2 },
        PlanError::Queries { found: 1, needed: 2 },
        PlanError::TooLarge("rows"),
        PlanError::PageSize { table: 16, geometry: 32 },
    ];
    let plan = |source| BenchError::Plan { batch: "b".to_owned(), source };
    let others = [
        BenchError::TooLarge { batch: "b".to_owned(), needed_mb: u64::MAX, available_mb: 0 },
        BenchError::Worker { message: "gone".to_owned() },
    ];
    for error in sources.into_iter().map(plan).chain(others) {
        let text = serde_json::to_string(&BenchErrorRecord::from(error.clone())).unwrap();
        let back: BenchErrorRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(BenchError::from(back), error);
    }
}

#[test]
fn a_variant_that_hangs_or_dies_is_reported() {
    let (mut bench, _) = worker(9);
    let begin = Instant::now();
    let hung = bench.verify(&HANGS, &CLASS, Coverage::PLAIN).unwrap_err();
    assert_eq!(hung.status, Status::Timeout);
    assert_eq!(hung.message, "did not end in 0.5 s; the process was stopped");
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert!(bench.verify(&GOOD, &CLASS, Coverage::PLAIN).is_ok());
    let died = bench.verify(&DIES, &CLASS, Coverage::PLAIN).unwrap_err();
    assert_eq!(died.status, Status::Runtime);
    assert_eq!(died.message, "the process died: signal 11 (SIGSEGV)");
    assert!(bench.verify(&GOOD, &CLASS, Coverage::PLAIN).is_ok());
    assert_eq!(bench.facts()[0].1, "1", "what the first process said is kept");
    assert_eq!(bench.prices().cta, 1, "its prices, too");
    assert_eq!(bench.defect(), None);
}

#[test]
fn after_a_reload_only_what_is_sampled_is_planned() {
    let (mut bench, log) = worker(9);
    let batch = batch("good");
    let mut loaded = bench.load(&batch).unwrap();
    let plans =
        [GOOD, DIES, OTHER, HANGS].map(|tile| loaded.plan(&Execution::default(), &tile.into()).unwrap());
    assert!(loaded.sample(plans[0]).is_ok());
    let died = loaded.sample(plans[1]).unwrap_err();
    log.lock().unwrap().clear();
    assert_eq!(loaded.sample(plans[1]), Err(died), "what ended a process is not run again");
    assert!(log.lock().unwrap().is_empty());
    assert_eq!(loaded.sample(plans[2]), Ok(8.0 / 3.0));
    assert_eq!(loaded.sample(plans[2]), Ok(8.0 / 3.0));
    assert_eq!(loaded.sample(plans[3]).unwrap_err().status, Status::Timeout);
    assert_eq!(loaded.sample(plans[0]), Ok(4.0 / 3.0));
    let expected = [
        "2: load",
        &format!("2: plan {OTHER}"),
        &format!("2: sample {OTHER}"),
        &format!("2: sample {OTHER}"),
        &format!("2: plan {HANGS}"),
        &format!("2: sample {HANGS}"),
        "3: load",
        &format!("3: plan {GOOD}"),
        &format!("3: sample {GOOD}"),
    ];
    assert_eq!(*log.lock().unwrap(), expected);
}

#[test]
fn after_a_failure_at_run_time_another_process_is_trusted() {
    let (mut bench, log) = worker(9);
    let failed = bench.verify(&FAILS, &CLASS, Coverage::PLAIN).unwrap_err();
    assert_eq!(failed, Failure { status: Status::Runtime, message: "illegal address".to_owned() });
    bench.load(&batch("good")).unwrap();
    assert_eq!(*log.lock().unwrap(), ["2: load"]);
    assert_eq!(bench.verify(&WRONG, &CLASS, Coverage::PLAIN).unwrap_err().status, Status::Correctness);
    bench.load(&batch("good")).unwrap();
    assert_eq!(log.lock().unwrap()[1], "2: load", "a wrong result breaks nothing");
}

#[test]
fn a_worker_that_cannot_start_again_is_given_up() {
    let (mut bench, _) = worker(1);
    bench.verify(&DIES, &CLASS, Coverage::PLAIN).unwrap_err();
    assert_eq!(bench.defect(), None, "nothing has tried yet");
    let failure = bench.verify(&GOOD, &CLASS, Coverage::PLAIN).unwrap_err();
    assert!(failure.message.contains("the device is gone"), "{}", failure.message);
    let defect = bench.defect().unwrap();
    assert_eq!(bench.load(&batch("good")).err(), Some(defect));
    assert_eq!(bench.resources(&GOOD, &CLASS), Resources::default());
    let none = WorkerBench::launch(launch(0, &Log::default()), LIMITS).unwrap_err();
    assert!(none.to_string().contains("the device is gone"), "{none}");
}

#[test]
fn a_batch_that_ends_every_worker_is_given_up() {
    let (mut bench, log) = worker(9);
    let deadly = batch("deadly");
    let error = bench.load(&deadly).err().unwrap();
    assert!(error.to_string().contains("deadly: 3 of them ended"), "{error}");
    assert_eq!(log.lock().unwrap().len(), 3);
    assert_eq!(bench.defect(), Some(error));
}

fn every_class() -> Timed {
    let classes = Class::all(Backend::Cpu).map(|class| (class, 1)).collect();
    let dtypes = Class::all(Backend::Cpu).map(|class| class.dtype).collect();
    Timed { classes, dtypes, ..Timed::default() }
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

#[test]
fn a_run_ends_where_no_worker_can_be_had_and_blames_no_variant() {
    let (mut bench, _) = worker(1);
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
    let space = Space::of(Backend::Cpu);
    let error = verify_space(
        &mut Session::new(&mut bench, &mut run, Progress::Silent, &Interrupt::default()),
        &space,
        space.tiles(),
        &every_class(),
        later(),
    )
    .unwrap_err();
    assert!(error.to_string().contains("the device is gone"), "{error}");
    // The class in which the device was lost is verified again by the next process.
    let told = |status| matches!(status, Status::Correct | Status::Constraints);
    assert!(run.rows().iter().all(|row| told(row.status) && row.workload != CLASS.to_string()));
}

#[test]
fn a_hanging_variant_is_recorded_and_the_rest_verified() {
    let (mut bench, _) = worker(99);
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
    let space = Space::of(Backend::Cpu);
    let timed = every_class();
    let verified = verify_space(
        &mut Session::new(&mut bench, &mut run, Progress::Silent, &Interrupt::default()),
        &space,
        space.tiles(),
        &timed,
        later(),
    );
    let verified = verified.unwrap().unwrap();
    let rows = run.rows();
    assert_eq!(rows.len(), Class::all(Backend::Cpu).count() * space.tiles().len());
    for row in rows {
        let hangs = row.tile == Some(HANGS) && row.workload == CLASS.to_string();
        let expected = if hangs { Status::Timeout } else { Status::Correct };
        assert!(row.status == expected || row.status == Status::Constraints, "{row:?}");
    }
    for class in Class::all(Backend::Cpu) {
        let tiles = verified.tiles(&class);
        assert_eq!(tiles.contains(&HANGS), class != CLASS, "{class}");
    }
}

#[test]
fn what_is_no_message_is_an_error_on_both_sides() {
    let mut bench = FakeBench::new(1, Arc::default(), Log::default());
    for input in [&b"hello, world"[..], b"\x02\0\0\0{]", b"\x01", b"\x08\0\0\0\"Nosuch\""] {
        assert!(serve(&mut bench, &mut &*input, &mut Vec::new()).is_err(), "{input:?}");
    }
    assert!(serve(&mut bench, &mut io::empty(), &mut Vec::new()).is_ok());

    let garbage: Launch = Box::new(|| {
        Ok(Started {
            input: Box::new(io::sink()),
            output: Box::new(&b"printf says hello"[..]),
            process: Box::new(FakeProcess { thread: std::thread::spawn(|| ()), stopped: Arc::default() }),
        })
    });
    let error = WorkerBench::launch(garbage, LIMITS).unwrap_err();
    assert!(error.to_string().contains("wrote what is no answer"), "{error}");
}

/// Starts compilers on threads, at most `most` of them: they behave by the kernel's name.
fn launch_compiler(most: usize, log: &Log) -> Launch {
    let (log, mut generation) = (Arc::clone(log), 0);
    Box::new(move || {
        generation += 1;
        if generation > most {
            return Err("no such program".to_owned());
        }
        let (mut requests, input) = io::pipe().unwrap();
        let (output, mut answers) = io::pipe().unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let (own_log, own_stopped) = (Arc::clone(&log), Arc::clone(&stopped));
        let thread = std::thread::spawn(move || {
            let compile = |kernel: &Kernel| {
                own_log.lock().unwrap().push(format!("{generation}: {} {}", kernel.name, kernel.text));
                assert_ne!(kernel.name, "dies");
                while kernel.name == "hangs" && !own_stopped.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if kernel.name == "fails" { Err("line 1: no such type".to_owned()) } else { Ok(()) }
            };
            let _ = serve_compiler(&compile, &mut requests, &mut answers);
        });
        let process = Box::new(FakeProcess { thread, stopped });
        Ok(Started { input: Box::new(input), output: Box::new(output), process })
    })
}

#[test]
fn a_kernel_that_ends_its_compiler_costs_itself() {
    let log = Log::default();
    let mut compiler = CompileProcess::launched_by(launch_compiler(3, &log), Duration::from_millis(500));
    let mut compile = |name: &str| {
        let kernel = Kernel { name: name.to_owned(), text: format!("text of {name}"), ..Kernel::default() };
        compiler.compile(&kernel)
    };
    assert_eq!(compile("good"), Compiled::Ready);
    assert_eq!(compile("fails"), Compiled::Failed("line 1: no such type".to_owned()));
    for (name, why) in [("dies", "died: signal 11"), ("hangs", "did not end in 0.5 s")] {
        match compile(name) {
            Compiled::Lost(message) => assert!(message.contains(why), "{message}"),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(compile("good"), Compiled::Ready, "after {name}");
    }
    let expected = ["1: good", "1: fails", "1: dies", "2: good", "2: hangs", "3: good"];
    let expected = expected.map(|line| format!("{line} text of {}", &line[3..]));
    assert_eq!(*log.lock().unwrap(), expected);
    let mut none = CompileProcess::launched_by(launch_compiler(0, &log), Duration::from_secs(1));
    assert_eq!(none.compile(&Kernel::default()), Compiled::Lost("no such program".to_owned()));
}
