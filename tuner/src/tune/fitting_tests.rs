//! What is fitted if a variant fails with `cp.async`, on a bench that says so.

use super::*;
use crate::interrupt::Interrupt;
use crate::measure::{Coverage, ScriptedBench, Verified};
use crate::progress::Progress;
use crate::store::RunFolder;
use crate::store::{Level, Measurement, Start, Status, test_data};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use tilewright_heuristics::{BatchShape, Dtype, Tile};
use tilewright_kernel_templates::{Class, CudaLimits, Limits};

const SMALL: Class = Class { head_dim: 64, dtype: Dtype::F16 };
const USUAL: Class = Class { head_dim: 128, ..SMALL };
/// All have two ways of copying.
const CLASSES: [Class; 3] = [SMALL, USUAL, Class { head_dim: 256, ..SMALL }];
/// Best for few rows, best for many, and second to each.
const TILES: [Tile; 4] = [FEW, MANY, FEW_ELSE, MANY_ELSE];
const FEW: Tile = Tile::of("m16n64w4s2");
const MANY: Tile = Tile::of("m64n64w4s2");
const FEW_ELSE: Tile = Tile::of("m32n64w2s2");
const MANY_ELSE: Tile = Tile::of("m64n64w8s2");

fn timed() -> Timed {
    Timed { classes: [(USUAL, 12)].into(), dtypes: [Dtype::F16].into(), ..Timed::default() }
}

/// A GPU with TMA, on which these tiles are wrong with `cp.async` for the usual class.
fn bench(wrong: &[Tile]) -> ScriptedBench {
    let mut bench = ScriptedBench::new(Vec::new(), None);
    bench.limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
    bench.wrong = wrong.iter().map(|&tile| (tile, USUAL, true)).collect();
    bench
}

/// What a run has when it comes to the fit.
fn measured(folder: &Path) -> RunFolder {
    let mut run = RunFolder::open(folder, test_data::provenance(), Start::Fresh).unwrap();
    let space = CLASSES.iter().flat_map(|class| {
        TILES.map(|tile| Measurement {
            level: Level::Space,
            ..test_data::measurement(&class.to_string(), &tile.to_string(), &[])
        })
    });
    run.append(space.collect()).unwrap();
    for i in 0..12 {
        let rows = 1 << i;
        let times = if rows <= 128 { [10.0, 40.0, 12.0, 50.0] } else { [40.0, 10.0, 50.0, 12.0] };
        let packs = TILES.iter().zip(times).map(|(tile, us)| Measurement {
            level: Level::Batch,
            batch: Some(of_rows(rows, USUAL)),
            ..test_data::measurement(&format!("rows {rows}"), &tile.to_string(), &[us; 9])
        });
        run.append(packs.collect()).unwrap();
    }
    run
}

/// Nothing beside a fit.
const ALONE: Beside<'static> = Beside { on_the_clock: &|time| time, meanwhile: &|_, _, _| Ok(true) };

/// The batches are few of each kind.
fn settings() -> FitSettings {
    FitSettings { least_rows: 3, ..FitSettings::default() }
}

fn fitted(bench: &mut ScriptedBench, run: &mut RunFolder) -> anyhow::Result<Option<Analysis>> {
    let settings = settings();
    fit_verified(
        &mut Session::new(bench, run, Progress::Silent, &Interrupt::default()),
        &[],
        &timed(),
        &settings,
        &ALONE,
        None,
    )
}

/// A batch in which tokens are seen by `rows` rows.
fn of_rows(rows: u32, class: Class) -> BatchShape {
    let some = BatchShape::from_values([8; BatchShape::COUNT]);
    BatchShape { mean_rows: rows, head_dim: class.head_dim, dtype: class.dtype.code(), ..some }
}

/// The tile that is chosen for a batch.
fn tile_of(analysis: &Analysis, batch: &BatchShape) -> Tile {
    analysis.model.choose(batch).single().unwrap()
}

/// What is chosen for batches of few rows, and of many.
fn chosen(analysis: &Analysis) -> [Tile; 2] {
    [4, 1024].map(|rows| tile_of(analysis, &of_rows(rows, USUAL)))
}

#[test]
fn cp_async_and_options_are_verified_for_what_the_selector_may_return() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let mut bench = bench(&[]);
    let analysis = fitted(&mut bench, &mut run).unwrap().unwrap();
    assert_eq!(chosen(&analysis), [FEW, MANY]);
    let tiles = analysis.model.tiles();
    let of_class = |class: Class| tiles.iter().map(move |&tile| (class, tile, class == USUAL, true));
    let with_options = tiles.iter().map(|&tile| (USUAL, tile, true, false));
    let expected: BTreeSet<_> = CLASSES.into_iter().flat_map(of_class).chain(with_options).collect();
    let verified: Vec<_> = bench
        .verified
        .iter()
        .map(|&(tile, class, Coverage { options, cp_async, trial, timeline, invariant })| {
            assert!(!trial && !timeline && !invariant);
            (class, tile, options, cp_async)
        })
        .collect();
    assert_eq!(verified.len(), expected.len());
    assert_eq!(verified.into_iter().collect::<BTreeSet<_>>(), expected);
}

/// The same run with batches of the small class, too, on which the tiles are best that are second to the others in the usual one. Each part of the tree has enough
/// batches for two leaves.
fn measured_of_two(folder: &Path) -> RunFolder {
    let mut run = measured(folder);
    let of_usual: Vec<Measurement> =
        run.rows().iter().filter(|row| row.level == Level::Batch).cloned().collect();
    let again = |row: &Measurement, name: &str| Measurement {
        workload: format!("{name} {}", row.workload),
        ..row.clone()
    };
    let small = |row: &Measurement, name: &str| {
        let place = TILES.iter().position(|tile| Some(*tile) == row.tile).unwrap();
        let other = TILES[(place + 2) % TILES.len()];
        Measurement {
            batch: row.batch.map(|batch| BatchShape { head_dim: SMALL.head_dim, ..batch }),
            choice: other.to_string(),
            tile: Some(other),
            ..again(row, name)
        }
    };
    for name in ["second", "third"] {
        run.append(of_usual.iter().map(|row| again(row, name)).collect()).unwrap();
    }
    for name in ["small", "second small", "third small"] {
        run.append(of_usual.iter().map(|row| small(row, name)).collect()).unwrap();
    }
    run
}

/// The tiles that were verified of a class with `cp.async`, or with TMA and options.
fn verified_of(bench: &ScriptedBench, class: Class, cp_async: bool) -> BTreeSet<Tile> {
    let of_class = bench.verified.iter().filter(|(_, of, _)| *of == class);
    of_class.filter(|(.., coverage)| coverage.cp_async == cp_async).map(|(tile, ..)| *tile).collect()
}

#[test]
fn a_class_is_verified_once_more_for_what_its_part_of_the_tree_returns() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured_of_two(folder.path());
    let mut bench = bench(&[]);
    let analysis = fitted(&mut bench, &mut run).unwrap().unwrap();
    let of_small = [4, 1024].map(|rows| tile_of(&analysis, &of_rows(rows, SMALL)));
    assert_eq!((chosen(&analysis), of_small), ([FEW, MANY], [FEW_ELSE, MANY_ELSE]));
    let safe_default = analysis.model.safe_default;
    let mut count = 0;
    for class in CLASSES {
        // What was not measured gets what the nearest head dimension does.
        let returned = if class == SMALL { of_small } else { [FEW, MANY] };
        let expected: BTreeSet<Tile> = returned.into_iter().chain([safe_default]).collect();
        assert_eq!(verified_of(&bench, class, true), expected, "{class}");
        let with_options = if class == USUAL { expected } else { BTreeSet::new() };
        assert_eq!(verified_of(&bench, class, false), with_options, "{class}");
        count += verified_of(&bench, class, true).len() + with_options.len();
    }
    assert_eq!(bench.verified.len(), count, "once");
}

#[test]
fn another_tile_is_returned_and_verified_for_a_class_in_which_one_fails() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured_of_two(folder.path());
    let mut bench = bench(&[]);
    bench.wrong = vec![(MANY_ELSE, SMALL, true)];
    let analysis = fitted(&mut bench, &mut run).unwrap().unwrap();
    let of_small = [4, 1024].map(|rows| tile_of(&analysis, &of_rows(rows, SMALL)));
    assert_eq!((chosen(&analysis), of_small), ([FEW, MANY], [FEW_ELSE, MANY]));
    for class in CLASSES {
        let verified = verified_of(&bench, class, true);
        assert!(returned_by(&analysis.model, &class).is_subset(&verified), "{class}: {verified:?}");
    }
    assert!(!verified_of(&bench, USUAL, true).contains(&MANY_ELSE), "no batch of the class gets it");
}

#[test]
fn a_processor_has_one_way_of_copying_and_verifies_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let mut bench = ScriptedBench::new(Vec::new(), None);
    let rows = run.rows().len();
    assert!(fitted(&mut bench, &mut run).unwrap().is_some());
    assert!(bench.verified.is_empty());
    assert_eq!(run.rows().len(), rows);
}

#[test]
fn a_selector_is_fitted_again_until_none_of_its_tiles_fails() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let before = Analysis::of(run.provenance(), run.rows(), &settings()).unwrap();
    // The second one may be known to the selector only when the first one is gone.
    let mut bench = bench(&[MANY, FEW]);
    let analysis = fitted(&mut bench, &mut run).unwrap().unwrap();
    assert_eq!(chosen(&before), [FEW, MANY]);
    assert_eq!(chosen(&analysis), [FEW_ELSE, MANY_ELSE]);
    let tiles = analysis.model.tiles();
    assert!(!tiles.contains(&MANY) && !tiles.contains(&FEW), "{tiles:?}");

    let failed: BTreeSet<_> = run
        .rows()
        .iter()
        .filter(|row| row.level == Level::CpAsync && row.status != Status::Correct)
        .map(|row| (row.tile.unwrap(), row.workload.as_str(), row.status, row.message.as_str()))
        .collect();
    let expected =
        [FEW, MANY].map(|tile| (tile, "head_dim 128 f16", Status::Correctness, "relative error 1"));
    assert_eq!(failed, expected.into());
    let verified = Verified::of(run.rows());
    assert_eq!(verified.tiles(&USUAL), [FEW_ELSE, MANY_ELSE]);
    assert_eq!(verified.tiles(&SMALL), TILES, "another class is another kernel");
    for (i, verified) in bench.verified.iter().enumerate() {
        assert!(!bench.verified[..i].contains(verified), "{verified:?} once");
    }
}

#[test]
fn a_tile_that_fails_with_options_is_chosen_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let mut bench = bench(&[]);
    bench.wrong_with_options = vec![(MANY, USUAL)];
    let analysis = fitted(&mut bench, &mut run).unwrap().unwrap();
    assert_eq!(chosen(&analysis), [FEW, MANY_ELSE]);
}

#[test]
fn a_tile_that_fails_in_one_class_is_still_chosen_in_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let of_small: Vec<Measurement> = run
        .rows()
        .iter()
        .filter(|row| row.level == Level::Batch)
        .map(|row| Measurement {
            workload: format!("small {}", row.workload),
            batch: row.batch.map(|batch| BatchShape { head_dim: SMALL.head_dim, ..batch }),
            ..row.clone()
        })
        .collect();
    run.append(of_small).unwrap();
    // One question, which is about rows: both classes come to the same leaf.
    let settings = FitSettings { max_depth: 1, ..settings() };
    let (mut bench, interrupt) = (bench(&[FEW]), Interrupt::default());
    let fitted = fit_verified(
        &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt),
        &[],
        &timed(),
        &settings,
        &ALONE,
        None,
    );
    let analysis = fitted.unwrap().unwrap();
    let chosen = |class: Class| tile_of(&analysis, &of_rows(4, class));
    assert_eq!((chosen(SMALL), chosen(USUAL)), (FEW, FEW_ELSE));
    assert_ne!(analysis.model.safe_default, FEW, "it has to serve all classes");
}

#[test]
fn a_run_that_goes_on_and_a_replay_know_what_failed() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let hash = fitted(&mut bench(&[MANY]), &mut run).unwrap().unwrap().selector_hash();
    drop(run);

    let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Resume).unwrap();
    let mut again = bench(&[]);
    assert_eq!(fitted(&mut again, &mut run).unwrap().unwrap().selector_hash(), hash);
    assert!(again.verified.is_empty(), "{:?}", again.verified);

    let recording = run.write(&folder.path().join("all.parquet")).unwrap();
    let read = crate::store::read(&folder.path().join("all.parquet")).unwrap();
    assert_eq!(read, recording);
    let replayed = Analysis::of(&read.provenance, &read.rows, &settings()).unwrap();
    assert_eq!(replayed.selector_hash(), hash);
}

#[test]
fn if_all_tiles_fail_nothing_is_emitted() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let error = fitted(&mut bench(&TILES), &mut run).unwrap_err();
    assert!(error.to_string().contains("no selector can be"), "{error}");
}

#[test]
fn a_class_for_which_all_tiles_fail_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let class = Class { head_dim: 96, ..SMALL };
    let failed = TILES.map(|tile| Measurement {
        level: Level::Space,
        status: Status::Correctness,
        ..test_data::measurement(&class.to_string(), &tile.to_string(), &[])
    });
    run.append(failed.to_vec()).unwrap();
    let error = Analysis::of(run.provenance(), run.rows(), &settings()).unwrap_err();
    assert!(error.to_string().contains("no safe default: none is for head_dim 96 f16;"), "{error}");
}

#[test]
fn a_user_who_asks_to_stop_gets_no_selector() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let interrupt = Interrupt::default();
    interrupt.request();
    let settings = settings();
    let fitted = fit_verified(
        &mut Session::new(&mut bench(&[]), &mut run, Progress::Silent, &interrupt),
        &[],
        &timed(),
        &settings,
        &ALONE,
        None,
    );
    assert!(fitted.unwrap().is_none());
}

#[test]
fn what_is_measured_beside_a_fit_is_of_the_selector_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = measured(folder.path());
    let (seen, settings) = (Cell::new(0), settings());
    let mut fit_beside = |goes_on: bool| {
        let meanwhile = |session: &mut Session<'_, '_>, analysis: &Analysis, fitting: &dyn Fn() -> bool| {
            seen.set(seen.get() + 1);
            assert_eq!(chosen(analysis), [FEW, MANY]);
            // It may measure until the fit is over.
            while fitting() {
                std::thread::yield_now();
            }
            session.run.append(Vec::new())?;
            Ok(goes_on)
        };
        let beside = Beside { meanwhile: &meanwhile, ..ALONE };
        let (mut bench, interrupt) = (bench(&[]), Interrupt::default());
        let mut session = Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
        fit_verified(&mut session, &[], &timed(), &settings, &beside, None).unwrap()
    };
    let analysis = fit_beside(true).unwrap();
    assert_eq!((chosen(&analysis), seen.get()), ([FEW, MANY], 1), "beside the second fit, not the first");
    assert!(fit_beside(false).is_none(), "the user asked to stop");
}
