//! A whole run of scripted GPUs beside compilers that only sleep: it comes to its end, and what it says rests on what it should.

use super::known::Known;
use super::*;
use crate::emit::SelectorModel;
use crate::measure::{Bench, Compile, CompileAhead, Compiled, ScriptedBench};
use crate::returned::returned_by;
use crate::store::{DeviceRecord, Level, Measurement, Recording, Status};
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::{Dtype, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::CudaLimits;
use tilewright_kernel_templates::cuda::Kernel;

/// Takes longer than a race of a batch does.
struct SlowCompiler;

impl Compile for SlowCompiler {
    fn compile(&mut self, _: &Kernel) -> Compiled {
        std::thread::sleep(Duration::from_millis(2));
        Compiled::Ready
    }
}

/// A GPU with TMA, on which these variants are wrong.
fn gpu(wrong: &[(Tile, Class, bool)]) -> ScriptedBench {
    let mut bench = ScriptedBench::new(Vec::new(), None);
    bench.limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
    bench.wrong = wrong.to_vec();
    bench
}

/// The same, with a selector of its own.
fn of_h200(wrong: &[(Tile, Class, bool)]) -> ScriptedBench {
    let mut bench = gpu(wrong);
    bench.device = DeviceRecord {
        backend: Backend::Cuda.name().to_owned(),
        name: "NVIDIA H200".to_owned(),
        capability: "sm_90a".to_owned(),
        units: 132,
    };
    bench
}

/// What a run of these GPUs recorded, with so many compilers.
fn run(mut gpus: Vec<ScriptedBench>, compilers: usize) -> Recording {
    let folder = tempfile::tempdir().unwrap();
    let scenario = |name: &str, purpose: &str, heads: &str| {
        let path = folder.path().join(format!("{name}.yaml"));
        let text = format!(
            "name: {name}\nuse: {purpose}\nheads: {heads}\nhead_dims: [64, 128]\npage_sizes: [16]\n\
             trees: ['1,4_64,33', '1,8_256,32', '4_512', '16_96', '1,2,8_64,64,64', '32_160', '1,16_128,16']\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let options = TuneOptions {
        scenarios: vec![
            scenario("fitted", "fit", "[[8, 2], [4, 1]]"),
            scenario("judged", "held-out", "[[8, 1]]"),
        ],
        heuristics: Some(folder.path().join("heuristics")),
        fit: FitSettings { fit_seconds: 4, ..FitSettings::default() },
        ..TuneOptions::of_catalogue(&folder.path().join("out"))
    };
    let benches = gpus.iter_mut().map(|bench| bench as &mut dyn Bench).collect();
    let (mut benches, differing) = Benches::of(benches);
    let limits = benches.limits().clone();
    let ahead =
        CompileAhead::start((0..compilers).map(|_| Box::new(SlowCompiler) as Box<dyn Compile>).collect());
    ahead.ask(&to_compile_first(&options, &limits), &limits);
    benches.compile_ahead(ahead);
    let tuned = tune(&options, (benches, differing), Progress::Silent, &Interrupt::default()).unwrap();
    let Tuned::Done(outputs) = tuned else { panic!("it was not stopped: {tuned:?}") };
    read(&outputs.measurements).unwrap()
}

#[test]
fn batches_are_raced_while_kernels_are_compiled_and_every_row_is_there() {
    for gpus in [1, 2] {
        let rows = run((0..gpus).map(|_| gpu(&[])).collect(), 2).rows;
        let of = |held_out, selector: bool| {
            let rows = rows.iter().filter(|row| row.level == Level::Batch && row.held_out == held_out);
            let own = rows.filter(|row| row.selector_hash.is_empty() != selector);
            own.map(|row| row.workload.as_str()).collect::<BTreeSet<_>>().len()
        };
        assert_eq!((of(false, false), of(true, false)), (2 * 2 * 7, 2 * 7), "{gpus}");
        assert_eq!(of(true, true), 2 * 7, "executed under the selector");
        // Tiles whose kernels take longest are raced after the others, on the same batches.
        let mut screened: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let is_usual = |row: &&Measurement| row.batch.is_some_and(|batch| batch.head_dim == 128);
        for row in rows.iter().filter(|row| row.level == Level::Screen).filter(is_usual) {
            screened.entry(&row.workload).or_default().insert(&row.choice);
        }
        let most = screened.values().max_by_key(|tiles| tiles.len()).unwrap();
        assert!(most.len() > 12 && screened.values().all(|tiles| tiles == most), "{gpus}: {screened:?}");
        // What the selector may return is verified with `cp.async`, whenever its kernels were there.
        let by_cp_async = rows.iter().filter(|row| row.level == Level::CpAsync).map(|row| &row.workload);
        assert!(by_cp_async.collect::<BTreeSet<_>>().len() >= 2, "{gpus}");
        let executed =
            rows.iter().filter(|row| !row.selector_hash.is_empty() && row.status == Status::Correct);
        assert!(executed.map(|row| row.samples_us.len()).min() >= Some(7), "{gpus}");
    }
}

/// The tiles that passed for a class.
fn passed(rows: &[Measurement], level: Level, class: &Class) -> BTreeSet<Tile> {
    let of_level = rows.iter().filter(|row| row.level == level && row.status == Status::Correct);
    of_level.filter(|row| row.workload == class.to_string()).filter_map(|row| row.tile).collect()
}

/// The fitted selector of a run, of which all that it can return for a class was verified there, in all ways that it is used.
fn verified_selector(Recording { provenance, rows }: &Recording) -> SelectorModel {
    let model = Analysis::of(provenance, rows, &provenance.fit).unwrap().model;
    let is_known = |class: &Class| model.feasible.contains_key(&(class.head_dim, class.dtype.code()));
    for class in Class::all(Backend::Cuda).filter(is_known) {
        // What does not run there is never returned.
        let of_space = passed(rows, Level::Space, &class);
        let returned: BTreeSet<Tile> = returned_by(&model, &class).intersection(&of_space).copied().collect();
        assert!(returned.contains(&model.safe_default), "{class}: {returned:?}");
        assert!(returned.is_subset(&passed(rows, Level::CpAsync, &class)), "{class}: {returned:?}");
    }
    let options: BTreeSet<&str> =
        rows.iter().filter(|row| row.level == Level::Options).map(|row| row.workload.as_str()).collect();
    let usual = Class::all(Backend::Cuda).filter(|class| options.contains(class.to_string().as_str()));
    let [usual] = usual.collect::<Vec<_>>()[..] else { panic!("the most frequent class alone: {options:?}") };
    assert!(returned_by(&model, &usual).is_subset(&passed(rows, Level::Options, &usual)));
    model
}

#[test]
fn whatever_the_selector_of_a_run_returns_for_a_class_was_verified_there_in_all_ways() {
    verified_selector(&run(vec![gpu(&[])], 2));
}

#[test]
fn a_known_gpu_verifies_few_tiles_of_a_class_and_has_a_safe_default_though_one_fails() {
    let known = Known::of(&of_h200(&[]).device, &gpu(&[]).limits);
    let selector = known.prior().unwrap();
    let safe = Tile::of("m16n64w4s2");
    // No batch of the run is of this class: it has what is known of it.
    let wide = Class { head_dim: 256, dtype: Dtype::F16 };
    let recording = run(vec![of_h200(&[(safe, wide, false)])], 2);
    let model = verified_selector(&recording);
    assert_ne!(model.safe_default, safe, "it fails in a class");
    let of_wide = passed(&recording.rows, Level::Space, &wide);
    assert!((2..=4).contains(&of_wide.len()) && of_wide.len() < selector.sets.len(), "{of_wide:?}");
    assert!(!of_wide.contains(&safe));
}
