//! Compilers that only sleep: what is needed first is compiled first, and nobody waits for anything else.

use super::*;
use crate::measure::batch_level::tests::{LARGE, SAFE, SMALL, ScriptedBench};
use crate::measure::returned_level::verify_returned;
use crate::measure::space_level::try_tiles;
use crate::measure::{
    Bench, Benches, Candidates, Coverage, Preparation, Session, Timed, candidate_sets, measure_candidates,
    verify_space,
};
use crate::progress::Progress;
use crate::store::{Level, Measurement, RunFolder, Start, Status, test_data};
use crate::workloads::{Scale, Workloads};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use tilewright_heuristics::{Backend, Dtype, Tile};
use tilewright_kernel_templates::{Class, CudaLimits, Limits, Space};

/// The kernels that were compiled, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// Notes what it compiles; behaves by the kernel's name.
struct FakeCompiler {
    log: Log,
    takes: Duration,
    /// Says yes to one kernel each; `None` for a compiler that asks nobody.
    gate: Option<Receiver<()>>,
}

impl Compile for FakeCompiler {
    fn compile(&mut self, kernel: &Kernel) -> Compiled {
        if let Some(gate) = &self.gate {
            let _ = gate.recv();
        }
        // Those of later stages take long.
        std::thread::sleep(self.takes * if kernel.name.ends_with("_timeline") { 100 } else { 1 });
        self.log.lock().unwrap().push(kernel.name.clone());
        assert!(!kernel.name.contains("panics"), "as it is asked to");
        if kernel.name.contains("lost") {
            Compiled::Lost("signal 11".to_owned())
        } else if kernel.name.contains("fails") {
            Compiled::Failed("no such instruction".to_owned())
        } else {
            Compiled::Ready
        }
    }
}

fn wanted(names: &[(&str, u32)]) -> Vec<Wanted> {
    let kernel = |name: &str| Kernel { name: name.to_owned(), ..Kernel::default() };
    names.iter().map(|&(name, length)| Wanted { kernel: kernel(name), length }).collect()
}

fn compilers(count: usize, takes: Duration) -> (CompileAhead, Log) {
    let log = Log::default();
    let one = |_| Box::new(FakeCompiler { log: Arc::clone(&log), takes, gate: None }) as Box<dyn Compile>;
    (CompileAhead::start((0..count).map(one).collect()), log)
}

/// One compiler that takes a kernel only when it is told to go on.
fn gated() -> (CompileAhead, Log, Sender<()>) {
    let (log, (go_on, gate)) = (Log::default(), channel());
    let compiler = FakeCompiler { log: Arc::clone(&log), takes: Duration::ZERO, gate: Some(gate) };
    (CompileAhead::start(vec![Box::new(compiler)]), log, go_on)
}

#[test]
fn what_is_waited_for_comes_first_then_the_stage_then_what_is_asked_for_ahead_each_longest_first() {
    let (ahead, log, go_on) = gated();
    let queue = ahead.queue().clone();
    queue.ask(&wanted(&[("first", 0)]), Need::Later);
    // It is taken before anything else is there.
    while !matches!(queue.0.state().jobs["first"], Job::Compiling) {
        std::thread::sleep(Duration::from_millis(1));
    }
    queue.ask(&wanted(&[("short", 1), ("long", 2), ("sooner", 0)]), Need::Later);
    queue.ask(&wanted(&[("later", 9)]), Need::Later);
    queue.ask(&wanted(&[("stage", 1), ("longest of the stage", 3), ("sooner", 2)]), Need::Stage);
    let waiting = std::thread::spawn({
        let queue = queue.clone();
        move || queue.wait(&wanted(&[("short", 1)]), Need::Waiting, &Interrupt::default())
    });
    let comes_first = |state: &State| matches!(state.jobs["short"], Job::Queued((Need::Waiting, ..), _));
    while !comes_first(&queue.0.state()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    (0..7).for_each(|_| go_on.send(()).unwrap());
    assert!(waiting.join().unwrap() > Duration::ZERO);
    queue.wait(&wanted(&[("later", 9), ("long", 2)]), Need::Later, &Interrupt::default());
    let order = ["first", "short", "longest of the stage", "sooner", "stage", "long", "later"];
    assert_eq!(*log.lock().unwrap(), order, "each once");
    assert_eq!(queue.wait(&wanted(&[("short", 1)]), Need::Waiting, &Interrupt::default()), Duration::ZERO);
}

#[test]
fn what_fails_keeps_nobody_and_lost_compilers_end_the_queue() {
    let go_on = Interrupt::default();
    let (ahead, log) = compilers(2, Duration::from_millis(1));
    let queue = ahead.queue();
    queue.wait(&wanted(&[("fails", 1), ("lost", 1), ("good", 1), ("panics", 0)]), Need::Waiting, &go_on);
    assert_eq!(log.lock().unwrap().len(), 4);
    assert!(queue.works(), "one compiler is left");
    assert!(ahead.to_string().starts_with("3 kernels compiled beside the measuring"), "{ahead}");
    assert!(ahead.to_string().ends_with("; 2 of them failed"), "{ahead}");
    // It takes three in a row to give the other one up; then nobody waits.
    queue.wait(&wanted(&[("good 1", 1)]), Need::Waiting, &go_on);
    queue.wait(&wanted(&[("lost 1", 9), ("lost 2", 8), ("good 2", 7)]), Need::Waiting, &go_on);
    assert!(queue.works());
    let lost: Vec<Wanted> = (3..9).flat_map(|i| wanted(&[(&format!("lost {i}"), 0)])).collect();
    queue.wait(&lost, Need::Waiting, &go_on);
    assert!(!queue.works());
    assert_eq!(log.lock().unwrap().len(), 4 + 1 + 3 + 3);
    queue.wait(&wanted(&[("never", 1)]), Need::Waiting, &go_on);
}

#[test]
fn an_interrupt_ends_the_wait_and_what_is_forgotten_is_not_compiled() {
    let (ahead, log, go_on) = gated();
    let queue = ahead.queue();
    queue.ask(&wanted(&[("ahead", 1), ("and more", 1)]), Need::Later);
    queue.ask(&wanted(&[("of the stage", 1)]), Need::Stage);
    let interrupt = Interrupt::default();
    interrupt.request();
    queue.wait(&wanted(&[("of the stage", 1)]), Need::Waiting, &interrupt);
    queue.forget_later();
    (0..3).for_each(|_| go_on.send(()).unwrap());
    queue.wait(&wanted(&[("last", 1)]), Need::Waiting, &Interrupt::default());
    let log = log.lock().unwrap();
    // One of the first may have been begun before it was forgotten.
    assert!(log.len() <= 3 && log.contains(&"of the stage".to_owned()), "{log:?}");
}

#[test]
fn one_can_ask_whether_kernels_are_there() {
    let (ahead, _, go_on) = gated();
    let mut bench = gpu();
    let mut benches = Benches::one(&mut bench);
    let wanted = [Preparation { tiles: vec![TILES[0]], class: CLASS, coverage: Coverage::PLAIN }];
    assert!(benches.awaited(&wanted).are_there(), "where nothing compiles beside, nothing is waited for");
    benches.compile_ahead(ahead);
    let awaited = benches.awaited(&wanted);
    benches.ask(&wanted, &[]);
    assert!(!awaited.are_there());
    // The tile's, and its merges.
    (0..3).for_each(|_| go_on.send(()).unwrap());
    benches.prepare(&wanted, &[], &Interrupt::default());
    assert!(awaited.are_there());
}

const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };
const TILES: [Tile; 3] = [Tile::of("m64n64w4s2"), Tile::of("m32n64w4s2"), Tile::of("m16n64w4s2")];

fn gpu() -> ScriptedBench {
    let mut bench = ScriptedBench::new(Vec::new(), None);
    bench.limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
    bench
}

/// What a run of these benches has, with these compilers.
fn run(folder: &std::path::Path) -> RunFolder {
    RunFolder::open(folder, test_data::provenance(), Start::Fresh).unwrap()
}

fn benches(scripted: &mut [ScriptedBench], ahead: CompileAhead) -> Benches<'_> {
    let (mut benches, _) = Benches::of(scripted.iter_mut().map(|bench| bench as &mut dyn Bench).collect());
    benches.compile_ahead(ahead);
    benches
}

#[test]
fn measuring_begins_before_all_is_compiled_and_waits_for_its_own_kernels_alone() {
    for count in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let (interrupt, mut run) = (Interrupt::default(), run(folder.path()));
        let (ahead, log) = compilers(1, Duration::from_millis(1));
        let mut scripted: Vec<ScriptedBench> = (0..count).map(|_| gpu()).collect();
        let benches = benches(&mut scripted, ahead);
        let later: Vec<Tile> = Space::of(Backend::Cuda).feasible(&CLASS, benches.limits());
        let timelines = Coverage { timeline: true, ..Coverage::PLAIN };
        benches.ask(&[Preparation { tiles: later.clone(), class: CLASS, coverage: timelines }], &[]);
        let session =
            &mut Session { benches, run: &mut run, progress: Progress::Silent, interrupt: &interrupt };
        assert_eq!(try_tiles(session, &TILES, &CLASS).unwrap().unwrap(), TILES);
        assert!(session.benches.compiled() > Duration::ZERO);
        // Verification needs the same kernels, and once more those of two sets of options.
        let timed = Timed {
            classes: [(CLASS, 1)].into(),
            dtypes: [Dtype::F16].into(),
            only: Class::all(Backend::Cuda).map(|class| (class, TILES.into())).collect(),
            ..Timed::default()
        };
        let hour = Instant::now() + Duration::from_secs(3600);
        verify_space(session, &Space::of(Backend::Cuda), &TILES, &timed, hour).unwrap().unwrap();
        let returned =
            |class: &Class| if *class == CLASS { TILES.into() } else { std::collections::BTreeSet::new() };
        assert_eq!(verify_returned(session, &returned, &timed).unwrap(), Some(0));
        let names = log.lock().unwrap().clone();
        let ahead = names.iter().filter(|name| name.ends_with("_timeline")).count();
        assert!(ahead < later.len(), "all {ahead} kernels of later stages were waited for");
        for tile in TILES {
            for options in ["", "_window_softcap_sinks"] {
                let name = format!("decode_{tile}_d128_f16{options}");
                assert_eq!(names.iter().filter(|known| **known == name).count(), 1, "{name}: {names:?}");
            }
        }
        assert!(!scripted[0].verified.is_empty());
    }
}

#[test]
fn a_tile_is_measured_while_the_next_of_its_stage_is_compiled() {
    /// Compiles the lowest tile, which comes last, once another one was verified.
    struct Waits(Arc<AtomicUsize>, Arc<AtomicUsize>);
    impl Compile for Waits {
        fn compile(&mut self, kernel: &Kernel) -> Compiled {
            let begin = Instant::now();
            let last = kernel.name.contains(&TILES[2].to_string());
            while last && self.0.load(Relaxed) == 0 && begin.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if last {
                self.1.store(self.0.load(Relaxed), Relaxed);
            }
            Compiled::Ready
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let (interrupt, mut run) = (Interrupt::default(), run(folder.path()));
    let (mut scripted, before) = ([gpu()], Arc::<AtomicUsize>::default());
    let verifications = Arc::clone(&scripted[0].verifications);
    let waits = Waits(Arc::clone(&verifications), Arc::clone(&before));
    let benches = benches(&mut scripted, CompileAhead::start(vec![Box::new(waits)]));
    let session = &mut Session { benches, run: &mut run, progress: Progress::Silent, interrupt: &interrupt };
    assert_eq!(try_tiles(session, &TILES, &CLASS).unwrap().unwrap(), TILES);
    assert!((1..3).contains(&before.load(Relaxed)), "verified before the last was compiled: {before:?}");
    assert_eq!(verifications.load(Relaxed), 3);
}

#[test]
fn the_kernels_that_take_longest_are_known_until_they_are_there() {
    let (mut scripted, (ahead, _, go_on)) = ([gpu()], gated());
    let benches = benches(&mut scripted, ahead);
    let tiles = ["m16n32w1s2", "m128n128w8s1", "m64n64w4s2", "m128n128w8s3"].map(Tile::of);
    let wanted = Preparation { tiles: tiles.into(), class: CLASS, coverage: Coverage::TRIAL };
    assert_eq!(benches.compiled_last(&wanted, 2), [tiles[3], tiles[1]]);
    assert_eq!(benches.compiled_last(&wanted, 5), []);
    let all = kernels(std::slice::from_ref(&wanted), &[], benches.limits());
    benches.ask(std::slice::from_ref(&wanted), &[]);
    all.iter().for_each(|_| go_on.send(()).unwrap());
    let awaited = benches.awaited(std::slice::from_ref(&wanted));
    while !awaited.are_there() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(benches.compiled_last(&wanted, 1), []);
}

#[test]
fn a_kernel_that_fails_ahead_is_met_by_the_bench_which_records_it() {
    /// Compiles nothing of one tile.
    struct Refuses(Tile);
    impl Compile for Refuses {
        fn compile(&mut self, kernel: &Kernel) -> Compiled {
            match kernel.name.contains(&self.0.to_string()) {
                true => Compiled::Lost("signal 11".to_owned()),
                false => Compiled::Ready,
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let (interrupt, mut run) = (Interrupt::default(), run(folder.path()));
    let mut scripted = [gpu(), gpu()];
    for bench in &mut scripted {
        bench.wrong = vec![(TILES[1], CLASS, false)];
    }
    let ahead = CompileAhead::start(vec![Box::new(Refuses(TILES[1]))]);
    let benches = benches(&mut scripted, ahead);
    let session = &mut Session { benches, run: &mut run, progress: Progress::Silent, interrupt: &interrupt };
    assert_eq!(try_tiles(session, &TILES, &CLASS).unwrap().unwrap(), [TILES[0], TILES[2]]);
    let failed: Vec<_> = run.rows().iter().map(|row| (row.tile, row.status)).collect();
    assert_eq!(failed, [(Some(TILES[1]), Status::Correctness)], "by the bench, as without compilers ahead");
}

#[test]
fn a_processor_has_nothing_to_compile_and_races_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trees.yaml");
    std::fs::write(&file, "name: t\nheads: [[4, 1]]\ntrees: ['1,4_64,33', '8_96']\n").unwrap();
    let workloads = Workloads::load(&[file], Backend::Cpu, &Scale::of(Backend::Cpu), None).unwrap().batches;
    let class = Class::of(&workloads[0].build().unwrap().geometry).to_string();
    let passed = |tile: Tile| Measurement {
        level: Level::Space,
        ..test_data::measurement(&class, &tile.to_string(), &[])
    };
    let verified = crate::measure::Verified::of(&[SMALL, LARGE, SAFE].map(passed));
    let (interrupt, mut run) = (Interrupt::default(), run(&folder.path().join("run")));
    let (ahead, log, _go_on) = gated();
    let mut scripted = [ScriptedBench::new(Vec::new(), None)];
    let benches = benches(&mut scripted, ahead);
    let session = &mut Session { benches, run: &mut run, progress: Progress::Silent, interrupt: &interrupt };
    let candidates = Candidates { sets: candidate_sets(&[SMALL, LARGE, SAFE], &[]), several_for: None };
    let hour = Instant::now() + Duration::from_secs(3600);
    assert!(measure_candidates(session, &workloads, &candidates, &verified, hour).unwrap());
    assert!(log.lock().unwrap().is_empty());
    assert_eq!(session.benches.compiled(), Duration::ZERO);
    assert!(session.benches.worked() > Duration::ZERO);
}
