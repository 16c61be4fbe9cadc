//! Which tiles of batch-invariant plans are verified, and which families come of it.

use super::*;
use crate::interrupt::Interrupt;
use crate::measure::ScriptedBench;
use crate::progress::Progress;
use crate::store::{RunFolder, Start, test_data};
use crate::workloads::{Scale, Workloads};
use tilewright_heuristics::{Backend, Dtype};
use tilewright_kernel_templates::CudaLimits;

const F16: Class = Class { head_dim: 128, dtype: Dtype::F16 };
const WIDE: Class = Class { head_dim: 256, dtype: Dtype::F16 };
const LOW: Tile = Tile::of("m16n64w4s2");
const TALL: Tile = Tile::of("m64n64w4s2");

/// Two classes whose batches are executed with such plans, and one of which none is.
fn workloads() -> Vec<Workload> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, keys: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, format!("name: {name}\n{keys}\ntrees: ['1,4_64,33']\n")).unwrap();
        file
    };
    let files = [
        write("both", "head_dims: [128, 256]\ninvariant: true"),
        write("other", "dtypes: [bf16]\nuse: held-out"),
    ];
    Workloads::load(&files, Backend::Cuda, &Scale::of(Backend::Cuda), None).unwrap().batches
}

/// A GPU for which these tiles do not compile in batch-invariant kernels.
fn gpu(uncompiled: &[Tile]) -> ScriptedBench {
    let mut bench = ScriptedBench::new(Vec::new(), None);
    bench.limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
    bench.uncompiled = uncompiled.to_vec();
    bench
}

fn verified(bench: &mut ScriptedBench, run: &mut RunFolder) -> InvariantFamilies {
    let interrupt = Interrupt::default();
    let session = &mut Session::new(bench, run, Progress::Silent, &interrupt);
    verify_invariant(session, &workloads()).unwrap().unwrap()
}

fn run() -> (tempfile::TempDir, RunFolder) {
    let folder = tempfile::tempdir().unwrap();
    let run = RunFolder::open(&folder.path().join("run"), test_data::provenance(), Start::Fresh).unwrap();
    (folder, run)
}

#[test]
fn a_family_of_each_class_is_verified_once() {
    let (_folder, mut run) = run();
    let mut bench = gpu(&[]);
    let families = verified(&mut bench, &mut run);
    let classes: BTreeSet<Class> = bench.verified.iter().map(|&(_, class, _)| class).collect();
    assert_eq!(classes, [F16, WIDE].into());
    assert!(bench.verified.iter().all(|&(.., coverage)| coverage == Coverage::INVARIANT));
    let of = |class: &Class| families.by_class[class].to_string();
    assert_eq!(
        [F16, WIDE].map(|class| of(&class)),
        ["m16n64w4s2+m16n128w4s1+m64n64w4s2", "m16n32w2s1+m64n32w4s3"]
    );
    let rows = run.rows().len();
    assert_eq!(rows, 5);
    assert!(run.rows().iter().all(|row| row.level == Level::Invariant && row.status == Status::Correct));
    let mut again = gpu(&[]);
    assert_eq!(verified(&mut again, &mut run), families);
    assert!(again.verified.is_empty() && run.rows().len() == rows, "the run has them");
}

#[test]
fn a_tile_that_fails_costs_its_families_and_is_recorded() {
    let (_folder, mut run) = run();
    let mut bench = gpu(&[LOW]);
    let families = verified(&mut bench, &mut run);
    assert_eq!(families.by_class[&F16], TileSetBuf::one(TALL), "the next family has the tile that passed");
    assert!(families.by_class.contains_key(&WIDE));
    let failed: Vec<_> = run.rows().iter().filter(|row| row.status != Status::Correct).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(
        (failed[0].tile, failed[0].status, failed[0].workload.as_str(), failed[0].message.as_str()),
        (Some(LOW), Status::Compile, "head_dim 128 f16", "too many registers")
    );
    let mut bench = gpu(&[TALL]);
    let (_folder, mut run) = self::run();
    assert_eq!(verified(&mut bench, &mut run).by_class[&F16], TileSetBuf::one(LOW), "so has another one");
    let mut bench = gpu(&[LOW, TALL]);
    let (_folder, mut run) = self::run();
    assert_eq!(verified(&mut bench, &mut run).by_class.keys().collect::<Vec<_>>(), [&WIDE]);
}
