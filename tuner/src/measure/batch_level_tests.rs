//! What whole batches are measured under, on a bench that only writes down what it is asked.

use super::super::batch_policies::PATS_LAUNCH_MODE;
use super::*;
use crate::emit::TreeModel;
use crate::measure::{Coverage, Failure, PlanFacts, PlanId, Planning, verify_invariant};
use crate::progress::Progress;
use crate::store::RunFolder;
use crate::store::{DeviceRecord, Resources, Start, Timeline, test_data};
use crate::workloads::{Scale, Workloads};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;
use tilewright_cuda::{Launch, MergeBy, Mix};
use tilewright_heuristics::{Backend, Domain, Dtype, PackShape, Prices};
use tilewright_kernel_templates::{CpuLimits, Limits};
use tilewright_plan::ChooseTiles as _;
use tilewright_scenarios::Batch;

pub(in crate::measure) const SMALL: Tile = Tile::of("m4n32w1s1");
pub(in crate::measure) const LARGE: Tile = Tile::of("m16n32w1s1");
pub(in crate::measure) const SAFE: Tile = Tile::of("m8n64w1s1");

/// Says of every plan and variant what the test wants, and has no mixes.
pub(crate) struct ScriptedBench {
    pub(crate) device: DeviceRecord,
    pub(crate) limits: Limits,
    launch_modes: Vec<LaunchMode>,
    facts: Option<PlanFacts>,
    pub(in crate::measure) planned: RefCell<Vec<(Execution, Vec<Tile>)>>,
    /// What becomes of the timelines that are asked for, one after the other; those behind them are recorded.
    pub(in crate::measure) timelines: RefCell<VecDeque<Outcome>>,
    lost: Cell<bool>,
    /// How long a sample or a verification takes.
    pub(in crate::measure) takes: Duration,
    /// The samples and verifications that it does, until it is lost.
    pub(in crate::measure) lives: Cell<usize>,
    /// Added to its times, by which they are known.
    pub(in crate::measure) slower_us: f64,
    /// The variants that are wrong: with `cp.async`, or with TMA.
    pub(crate) wrong: Vec<(Tile, Class, bool)>,
    /// The variants that are wrong with options alone.
    pub(crate) wrong_with_options: Vec<(Tile, Class)>,
    /// The variants of batch-invariant plans that do not compile.
    pub(in crate::measure) uncompiled: Vec<Tile>,
    /// Whether batches cannot be planned batch-invariant.
    pub(in crate::measure) refuses_invariant: bool,
    /// What was verified, in order.
    pub(crate) verified: Vec<(Tile, Class, Coverage)>,
    /// How often it verified, for others to see meanwhile.
    pub(in crate::measure) verifications: Arc<AtomicUsize>,
}

/// What becomes of a timeline.
#[derive(Clone, Copy, Debug)]
pub(in crate::measure) enum Outcome {
    Recorded,
    Failed,
    /// The device is lost with it.
    Lost,
}

impl ScriptedBench {
    pub(crate) fn new(launch_modes: Vec<LaunchMode>, facts: Option<PlanFacts>) -> Self {
        let limits = Limits::Cpu(CpuLimits { threads: 1, l1d_bytes: 1, l2_bytes: 1, llc_bytes: 1 });
        let (planned, timelines, lost, wrong, uncompiled, verified, verifications) = Default::default();
        let (takes, lives, slower_us) = (Duration::ZERO, Cell::new(usize::MAX), 0.0);
        Self {
            device: test_data::provenance().device,
            limits,
            launch_modes,
            facts,
            planned,
            timelines,
            lost,
            takes,
            lives,
            slower_us,
            wrong,
            wrong_with_options: Vec::new(),
            uncompiled,
            refuses_invariant: false,
            verified,
            verifications,
        }
    }

    /// Takes its time; fails if the device is lost.
    fn work(&self) -> Result<(), Failure> {
        std::thread::sleep(self.takes);
        match self.lives.get().checked_sub(1) {
            Some(lives) => self.lives.set(lives),
            None => {
                self.lost.set(true);
                return Err(Failure { status: Status::Runtime, message: "it died".to_owned() });
            }
        }
        Ok(())
    }
}

impl Bench for ScriptedBench {
    fn device(&self) -> DeviceRecord {
        self.device.clone()
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn prices(&self) -> Prices {
        Prices::CPU
    }

    fn adopt_prices(&mut self, _: Prices) {}

    fn launch_modes(&self) -> &[LaunchMode] {
        &self.launch_modes
    }

    fn facts(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn versions(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn kernel_hash(&self) -> String {
        String::new()
    }

    fn cold_caches(&self) -> String {
        String::new()
    }

    fn limit_method(&self) -> String {
        String::new()
    }

    fn launch_us(&self) -> f64 {
        1.0
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn resources(&self, _: &Tile, _: &Class) -> Resources {
        Resources::default()
    }

    fn verify(&mut self, tile: &Tile, class: &Class, coverage: Coverage) -> Result<f64, Failure> {
        self.work()?;
        self.verified.push((*tile, *class, coverage));
        self.verifications.fetch_add(1, Relaxed);
        if coverage.invariant && self.uncompiled.contains(tile) {
            return Err(Failure { status: Status::Compile, message: "too many registers".to_owned() });
        }
        let with_options =
            coverage.options && !coverage.cp_async && self.wrong_with_options.contains(&(*tile, *class));
        match with_options || self.wrong.contains(&(*tile, *class, coverage.cp_async)) {
            true => Err(Failure { status: Status::Correctness, message: "relative error 1".to_owned() }),
            false => Ok(0.0),
        }
    }

    fn load<'a>(&'a mut self, _: &'a Batch) -> Result<Box<dyn Loaded + 'a>, BenchError> {
        Ok(Box::new(ScriptedBatch(self)))
    }

    fn defect(&self) -> Option<BenchError> {
        self.lost.get().then(|| BenchError::Worker { message: "it is lost".to_owned() })
    }
}

struct ScriptedBatch<'a>(&'a ScriptedBench);

impl Loaded for ScriptedBatch<'_> {
    fn limit_us(&self) -> f64 {
        1.0
    }

    fn plan(&mut self, execution: &Execution, mut tiles: &PlanTiles) -> Result<PlanId, BenchError> {
        if execution.planning == Planning::Invariant && self.0.refuses_invariant {
            let source = tilewright_plan::PlanError::TooLarge("segments");
            return Err(BenchError::Plan { batch: "t".to_owned(), source });
        }
        let rows: &[u32] = match execution.planning {
            Planning::AsDecoders => &[4, 16],
            Planning::AsPat => &[4, 8, 16],
            Planning::Invariant => &[4],
        };
        let pack = |&rows: &u32| PackShape::from_values([rows, 64, 0, 1, 1, 1, rows, 4, 128, 32, 0]);
        let tiles = rows.iter().map(|rows| tiles.pack(&pack(rows))).collect();
        let mut planned = self.0.planned.borrow_mut();
        planned.push((execution.clone(), tiles));
        Ok(PlanId(planned.len() - 1))
    }

    fn plan_facts(&self, _: PlanId) -> Option<PlanFacts> {
        self.0.facts
    }

    fn sample(&mut self, plan: PlanId) -> Result<f64, Failure> {
        self.0.work()?;
        match self.0.planned.borrow()[plan.0].0.launch_mode.launch {
            Launch::Single => Err(Failure { status: Status::Constraints, message: "no room".to_owned() }),
            Launch::Serial | Launch::Streams => Ok(10.0 + plan.0 as f64 + self.0.slower_us),
        }
    }

    fn outputs(&mut self, _: PlanId, requests: &[usize]) -> Result<Vec<f32>, Failure> {
        Ok(vec![0.0; requests.len()])
    }

    fn timeline(&mut self, _: PlanId) -> Result<Timeline, Failure> {
        let outcome = self.0.timelines.borrow_mut().pop_front().unwrap_or(Outcome::Recorded);
        self.0.lost.set(matches!(outcome, Outcome::Lost));
        match outcome {
            Outcome::Recorded => Ok(test_data::batch_timeline("t").timeline),
            Outcome::Failed | Outcome::Lost => {
                Err(Failure { status: Status::Runtime, message: "it died".to_owned() })
            }
        }
    }
}

/// Up to eight requests both tiles, else the large one alone.
pub(in crate::measure) fn model() -> SelectorModel {
    let leaf = |set| Box::new(TreeModel::Leaf { ranked: vec![set], support: 1, regret: 0.0 });
    let (low, high) = ([0; BatchShape::COUNT], [u32::MAX; BatchShape::COUNT]);
    SelectorModel {
        device: test_data::provenance().device,
        domain: Domain { min: BatchShape::from_values(low), max: BatchShape::from_values(high) },
        sets: vec![both(), TileSetBuf::one(LARGE)],
        safe_default: SAFE,
        prices: Prices::CPU,
        feasible: BTreeMap::from([((128, 0), 0b11)]),
        tree: TreeModel::Split { feature: 0, threshold: 8, low: leaf(0), high: leaf(1) },
    }
}

/// The small tile for packs that it holds, the large one for others.
fn both() -> TileSetBuf {
    TileSetBuf::of(&[SMALL, LARGE]).unwrap()
}

const ONE_TREE: &str = "name: t\nheads: [[4, 1]]\ntrees: ['1,4_64,33']\n";

/// The batches of a scenario, and the class of the first one.
fn batches_of(folder: &Path, scenario: &str) -> (Vec<Workload>, Class) {
    let file = folder.join("trees.yaml");
    std::fs::write(&file, scenario).unwrap();
    let batches = Workloads::load(&[file], Backend::Cpu, &Scale::of(Backend::Cpu), None).unwrap().batches;
    let class = Class::of(batches[0].geometry());
    (batches, class)
}

/// The rows of a run over one batch.
fn measured(bench: &mut ScriptedBench) -> Vec<Measurement> {
    measured_of(bench, ONE_TREE)
}

#[test]
fn what_is_executed_under_a_selector_gets_enough_samples_whatever_the_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = ScriptedBench::new(Vec::new(), None);
    let (batches, class) = batches_of(folder.path(), ONE_TREE);
    let (model, interrupt) = (model(), Interrupt::default());
    let mut run = RunFolder::open(&folder.path().join("run"), test_data::provenance(), Start::Fresh).unwrap();
    let mut samples = |name: &str, enough: bool| {
        let policies = BatchPolicies::new(&model, name.to_owned(), None);
        let policies = if enough { policies.with_enough_samples() } else { policies };
        let verified = Verified::tried(&class, vec![SMALL, LARGE]);
        let session = &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
        measure_batches(session, &batches, &policies, &verified, Instant::now()).unwrap();
        let own = run.rows().iter().filter(|row| row.selector_hash == name);
        own.map(|row| row.samples_us.len()).collect::<BTreeSet<_>>()
    };
    assert_eq!(samples("few", false), [1].into());
    assert_eq!(samples("enough", true), [DECISION_SAMPLES].into());
}

#[test]
fn batches_of_a_level_that_is_not_over_are_raced_again_with_other_tiles() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = ScriptedBench::new(Vec::new(), None);
    let (batches, class) = batches_of(folder.path(), ONE_TREE);
    let (interrupt, until) = (Interrupt::default(), Instant::now() + Duration::from_secs(60));
    let mut run = RunFolder::open(&folder.path().join("run"), test_data::provenance(), Start::Fresh).unwrap();
    let mut race = |tile: Tile, is_over: bool| {
        let session = &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
        let tried = Verified::tried(&class, vec![tile]);
        measure_screening(session, (Level::Screen, is_over), &batches, &tried, until).unwrap();
        let choices: Vec<String> = run.rows().iter().map(|row| row.choice.clone()).collect();
        (choices, run.measured(Level::Screen).len())
    };
    let [small, large] = [SMALL, LARGE].map(|tile| tile.to_string());
    // A run that is stopped between both has none of the batches.
    assert_eq!(race(SMALL, false), (vec![small.clone()], 0));
    assert_eq!(race(LARGE, true), (vec![small.clone(), large.clone()], 1));
    assert_eq!(race(SAFE, true), (vec![small, large], 1), "it has all of them now");
}

/// The rows of a run over the first batch of a scenario, whose batch-invariant plans are verified.
fn measured_of(bench: &mut ScriptedBench, scenario: &str) -> Vec<Measurement> {
    let folder = tempfile::tempdir().unwrap();
    let (batches, class) = batches_of(folder.path(), scenario);
    let passed = |tile: Tile| Measurement {
        level: Level::Space,
        ..test_data::measurement(&class.to_string(), &tile.to_string(), &[])
    };
    let verified = Verified::of(&[SMALL, LARGE, SAFE].map(passed));
    let mut run = RunFolder::open(&folder.path().join("run"), test_data::provenance(), Start::Fresh).unwrap();
    let model = model();
    let deadline = Instant::now() + Duration::from_secs(60);
    let (silent, interrupt) = (Progress::Silent, Interrupt::default());
    let batches = &batches[..1];
    let families =
        verify_invariant(&mut Session::new(bench, &mut run, silent, &interrupt), batches).unwrap().unwrap();
    let policies = BatchPolicies::new(&model, "hash".to_owned(), Some(TileSetBuf::one(SAFE)));
    let policies = policies.with_invariant(families);
    assert!(
        measure_batches(
            &mut Session::new(bench, &mut run, silent, &interrupt),
            batches,
            &policies,
            &verified,
            deadline
        )
        .unwrap()
    );
    run.rows().to_vec()
}

fn choices(rows: &[Measurement]) -> Vec<&str> {
    rows.iter().map(|row| row.choice.as_str()).collect()
}

const COMMON: [&str; 6] = [
    "selector",
    "PAT's rules",
    crate::choice::PATS_PLANNER,
    "m4n32w1s1+m16n32w1s1",
    "m8n64w1s1",
    "m16n32w1s1",
];

#[test]
fn a_batch_is_measured_in_every_launch_mode() {
    let others: Vec<LaunchMode> =
        LaunchMode::ALL.into_iter().filter(|mode| *mode != LaunchMode::DEFAULT).collect();
    let mut bench = ScriptedBench::new(others.clone(), Some(PlanFacts { tiles: 2, merges: true }));
    let rows = measured(&mut bench);
    // A set of several tiles is in one launch by default.
    let single = LaunchMode { launch: Launch::Single, merge: MergeBy::Launch };
    let others: Vec<LaunchMode> = others.into_iter().filter(|&mode| mode != single).collect();
    let launched = others.iter().map(|launch_mode| format!("selector, {launch_mode}"));
    let expected: Vec<String> = COMMON.map(str::to_owned).into_iter().chain(launched).collect();
    assert_eq!(choices(&rows), expected);
    let planned = bench.planned.into_inner();
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(row.choice.parse::<Choice>().unwrap().to_string(), row.choice);
        if planned[i].0.launch_mode.launch == Launch::Single {
            assert_eq!((row.status, row.message.as_str()), (Status::Constraints, "no room"));
            assert!(row.samples_us.is_empty());
        } else {
            assert_eq!(row.status, Status::Correct, "{row:?}");
            assert!(row.samples_us.iter().all(|&us| us == 10.0 + i as f64) && row.samples_us.len() == 14);
        }
        assert_eq!(row.tile.is_some(), (4..6).contains(&i), "{}", row.choice);
        assert_eq!(row.selector_hash, "hash");
        assert_eq!(row.batch.map(|batch| (batch.requests, batch.trees)), Some((4, 1)));
    }

    let default = Execution::default();
    let together = Execution {
        planning: Planning::AsDecoders,
        launch_mode: single,
        mix: Some(Mix::of(&[SMALL, LARGE])),
    };
    assert_eq!(planned[0], (together.clone(), vec![SMALL, LARGE]));
    // PAT rounds m up, and its packs are others.
    assert_eq!(planned[1], (default.clone(), vec![SMALL, LARGE]));
    let pat = Execution { planning: Planning::AsPat, launch_mode: PATS_LAUNCH_MODE, mix: None };
    assert_eq!(planned[2], (pat, vec![SMALL, SAFE, LARGE]));
    assert_eq!(planned[3], (together, vec![SMALL, LARGE]));
    assert_eq!(planned[4], (default, vec![SAFE; 2]));
    for ((execution, tiles), launch_mode) in planned[6..].iter().zip(others) {
        let mix = (launch_mode.launch == Launch::Single).then(|| Mix::of(&[SMALL, LARGE]));
        assert_eq!(*execution, Execution { planning: Planning::AsDecoders, launch_mode, mix });
        assert_eq!(*tiles, planned[0].1, "the same plan, launched otherwise");
    }
}

#[test]
fn ways_of_launching_that_come_to_the_same_are_not_measured() {
    let all = || LaunchMode::ALL.to_vec();
    let others = |facts| {
        let rows = measured(&mut ScriptedBench::new(all(), facts));
        let choices = choices(&rows);
        assert_eq!(choices[..6], COMMON);
        choices[6..].iter().map(|choice| (*choice).to_owned()).collect::<Vec<String>>()
    };
    let facts = |tiles, merges| Some(PlanFacts { tiles, merges });
    assert!(others(facts(1, false)).is_empty());
    assert_eq!(others(facts(2, false)), ["selector, streams+launch"]);
    assert_eq!(others(facts(1, true)), ["selector, serial+last-cta"]);
    assert!(others(None).is_empty(), "what is not known of a plan that failed is not tried");
}

/// A scenario of one batch that wants batch-invariant plans.
const INVARIANT: &str = "name: t\nheads: [[4, 1]]\ninvariant: true\ntrees: ['1,4_64,33']\n";

/// A bench whose device has a family of tiles, and plans of one tile.
fn with_family() -> ScriptedBench {
    let mut bench = ScriptedBench::new(Vec::new(), Some(PlanFacts { tiles: 1, merges: false }));
    let limits = CpuLimits { threads: 1, l1d_bytes: 32 << 10, l2_bytes: 1 << 20, llc_bytes: 16 << 20 };
    bench.limits = Limits::Cpu(limits);
    bench
}

#[test]
fn batches_whose_scenario_says_so_are_executed_with_batch_invariant_plans_too() {
    let mut bench = with_family();
    let rows = measured_of(&mut bench, INVARIANT);
    let (verified, executed): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row.level == Level::Invariant);
    let family = Tile::of("m16n64w1s1");
    assert_eq!(
        bench.verified.iter().map(|&(tile, _, of)| (tile, of)).collect::<Vec<_>>(),
        [(family, Coverage::INVARIANT)]
    );
    let kept = |row: &Measurement| (row.choice.clone(), row.tile, row.status, row.samples_us.is_empty());
    assert_eq!(
        verified.iter().map(kept).collect::<Vec<_>>(),
        [(family.to_string(), Some(family), Status::Correct, true)]
    );
    assert_eq!(choices(&executed), [&COMMON[..], &["batch-invariant"]].concat());
    let row = executed.last().unwrap();
    assert_eq!((row.status, row.samples_us.len(), row.tile), (Status::Correct, 14, None));
    // A fit takes rows of no selector alone.
    assert_eq!((row.selector_hash.as_str(), row.level), ("hash", Level::Batch));
    let planned = Execution { planning: Planning::Invariant, ..Execution::default() };
    assert_eq!(bench.planned.borrow().last(), Some(&(planned, vec![family])));
}

#[test]
fn a_batch_that_has_no_invariant_plan_misses_its_row_alone() {
    let mut bench = ScriptedBench { refuses_invariant: true, ..with_family() };
    let rows = measured_of(&mut bench, INVARIANT);
    let (failed, others) = rows[1..].split_last().unwrap();
    assert_eq!(choices(others), COMMON);
    assert!(others.iter().all(|row| row.status == Status::Correct));
    assert_eq!((failed.choice.as_str(), failed.status), ("batch-invariant", Status::Runtime));
    assert!(failed.message.contains("segments") && failed.samples_us.is_empty(), "{}", failed.message);

    // Nor do tiles that do not compile cost more: they are recorded, and no plan is made of them.
    let families = tilewright_heuristics::chunk::families(Backend::Cpu, 128, Dtype::F32);
    let uncompiled = families.iter().flat_map(|family| family.tiles()).copied().collect();
    let mut bench = ScriptedBench { uncompiled, ..with_family() };
    let rows = measured_of(&mut bench, INVARIANT);
    let (failed, others) = rows.split_first().unwrap();
    assert_eq!((failed.level, failed.status), (Level::Invariant, Status::Compile));
    assert_eq!(failed.message, "too many registers");
    assert_eq!(choices(others), COMMON);
}

#[test]
fn candidates_are_tiles_alone_and_pairs_that_share_a_kernel() {
    let tile = |m, warps| Tile::new(m, 64, warps, 2);
    let tiles = [tile(16, 4), tile(16, 8), tile(32, 4), tile(64, 4), tile(128, 8)];
    let sets: Vec<String> = candidate_sets(&tiles, &[])[5..].iter().map(TileSetBuf::to_string).collect();
    assert_eq!(sets, ["m16n64w4s2+m64n64w4s2"]);
    let ranked = [tile(128, 8), tile(32, 4), tile(16, 8), tile(64, 4)];
    assert_eq!(candidate_sets(&ranked, &[])[4..], [TileSetBuf::of(&[tile(16, 8), tile(128, 8)]).unwrap()]);
    // Those that are known go first, if both are raced.
    let (low, tall) = (tile(16, 8), tile(128, 8));
    let known = TileSetBuf::of(&[low, tall]).unwrap();
    let unknown = TileSetBuf::of(&[low, tile(256, 8)]).unwrap();
    assert_eq!(candidate_sets(&tiles, &[unknown, known])[5..], [known]);
    assert_eq!(candidate_sets(&tiles, &[unknown])[5..], candidate_sets(&tiles, &[])[5..]);
    assert!(candidate_sets(&tiles, &[])[..5].iter().all(|set| set.single().is_some()));
}

#[test]
fn candidates_are_measured_once_and_know_what_they_are_for() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name: t\nheads: [[4, 1]]\ntrees: ['1,4_64,33', '1,2_64,33']\n";
    std::fs::write(folder.path().join("trees.yaml"), text).unwrap();
    let files = [folder.path().join("trees.yaml")];
    let workloads = Workloads::load(&files, Backend::Cpu, &Scale::of(Backend::Cpu), None).unwrap();
    let class = Class::of(&workloads.batches[0].build().unwrap().geometry);
    // The large tile cannot run: neither alone nor in a set.
    let passed = Measurement {
        level: Level::Space,
        ..test_data::measurement(&class.to_string(), &SMALL.to_string(), &[])
    };
    let verified = Verified::of(&[passed]);
    let mut run = RunFolder::open(&folder.path().join("run"), test_data::provenance(), Start::Fresh).unwrap();
    let sets = candidate_sets(&[SMALL, LARGE], &[]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut bench = ScriptedBench::new(Vec::new(), None);
    for rows in [2, 2] {
        let (silent, interrupt) = (Progress::Silent, Interrupt::default());
        let batches = &workloads.batches;
        assert!(
            measure_candidates(
                &mut Session::new(&mut bench, &mut run, silent, &interrupt),
                batches,
                &Candidates { sets: sets.clone(), several_for: None },
                &verified,
                deadline
            )
            .unwrap()
        );
        assert_eq!(run.rows().len(), rows);
    }
    let known = |row: &Measurement| (row.choice == SMALL.to_string(), row.held_out, row.batch.is_some());
    assert!(run.rows().iter().all(|row| known(row) == (true, false, true) && row.selector_hash.is_empty()));
}

#[test]
fn where_there_is_one_way_of_launching_pat_is_launched_in_it() {
    let mut bench = ScriptedBench::new(Vec::new(), Some(PlanFacts { tiles: 2, merges: true }));
    assert_eq!(choices(&measured(&mut bench)), COMMON);
    let (execution, _) = &bench.planned.borrow()[2];
    assert_eq!((execution.planning, execution.launch_mode), (Planning::AsPat, LaunchMode::DEFAULT));
}

#[test]
fn a_decision_with_few_samples_is_raced_again_beside_the_fastest() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trees.yaml");
    std::fs::write(&file, "name: t\nheads: [[4, 1]]\ntrees: ['1,4_64,33']\n").unwrap();
    let workloads = Workloads::load(&[file], Backend::Cpu, &Scale::of(Backend::Cpu), None).unwrap();
    let workload = &workloads.batches[0];
    let batch = workload.build().unwrap();
    let (class, shape, model) = (Class::of(&batch.geometry), batch_shape(&batch).unwrap(), model());
    let chosen = model.choose(&shape);
    let fastest = TileSetBuf::one(SAFE);
    assert_ne!(chosen, fastest);
    let mut run = RunFolder::open(&folder.path().join("run"), test_data::provenance(), Start::Fresh).unwrap();
    let row = |set: &TileSetBuf, samples: &[f64], held_out: bool| Measurement {
        level: Level::Batch,
        batch: Some(shape),
        held_out,
        ..test_data::measurement(workload.name(), &set.to_string(), samples)
    };
    run.append(vec![row(&chosen, &[12.0; 3], false), row(&fastest, &[8.0; 9], false)]).unwrap();
    run.append(vec![row(&chosen, &[1.0; 2], true)]).unwrap();
    let passed = |tile: Tile| Measurement {
        level: Level::Space,
        ..test_data::measurement(&class.to_string(), &tile.to_string(), &[])
    };
    let verified = Verified::of(&[SMALL, LARGE, SAFE].map(passed));
    let mut bench = ScriptedBench::new(Vec::new(), None);
    let (interrupt, later) = (Interrupt::default(), Instant::now() + Duration::from_secs(60));
    let mut decide = |run: &mut RunFolder| {
        let session = &mut Session::new(&mut bench, run, Progress::Silent, &interrupt);
        measure_decisions(session, &workloads.batches, &model, &verified, later).unwrap()
    };
    assert_eq!(decide(&mut run), Some(1));
    let again: Vec<(String, usize)> =
        run.rows()[3..].iter().map(|row| (row.choice.clone(), row.samples_us.len())).collect();
    assert_eq!(again.iter().map(|(_, samples)| *samples).collect::<Vec<_>>(), [11, 11], "a processor's");
    let sets: BTreeSet<&str> = again.iter().map(|(set, _)| set.as_str()).collect();
    assert_eq!(sets, [chosen, fastest].map(|set| set.to_string()).iter().map(String::as_str).collect());
    assert_eq!(decide(&mut run), Some(0), "those are enough");
}
