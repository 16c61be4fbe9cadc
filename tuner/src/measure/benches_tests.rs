//! Pieces given out to several devices that only sleep: each is done once, by one of them, and none waits for long.

use super::*;
use crate::interrupt::Interrupt;
use crate::measure::batch_level::tests::{LARGE, SAFE, SMALL, ScriptedBench};
use crate::measure::space_level::try_tiles;
use crate::measure::{
    BenchError, Candidates, Coverage, Session, Timed, Verified, candidate_sets, measure_candidates,
    verify_space,
};
use crate::progress::Progress;
use crate::store::{Level, Measurement, RunFolder, Start, Status, test_data};
use crate::workloads::{Scale, Workload, Workloads};
use std::collections::{BTreeMap, BTreeSet};
use tilewright_heuristics::{Backend, Dtype};
use tilewright_kernel_templates::{CudaLimits, Space};

/// More than a thread's start takes, by far.
const PIECE: Duration = Duration::from_millis(20);

fn scripted(takes: Duration) -> ScriptedBench {
    let mut bench = ScriptedBench::new(Vec::new(), None);
    bench.takes = takes;
    bench
}

/// The benches of a test.
fn all(benches: &mut [ScriptedBench]) -> Benches<'_> {
    Benches::of(benches.iter_mut().map(|bench| bench as &mut dyn Bench).collect()).0
}

const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };

/// A piece that takes its time, and fails if its device is lost.
fn verify(bench: &mut dyn Bench, _: &usize, _: usize) -> anyhow::Result<bool> {
    Ok(bench.verify(&SMALL, &CLASS, Coverage::PLAIN).is_ok())
}

/// Gives numbers out; which were done, and how it ended.
fn give(benches: &mut Benches<'_>, count: usize, interrupt: &Interrupt) -> (Vec<usize>, Given, usize) {
    let pieces: Vec<usize> = (0..count).collect();
    let (mut done, mut lost) = (Vec::new(), 0);
    let given = benches.give_out(&pieces, Order::AsGiven, interrupt, &verify, |told| {
        match told {
            Told::Begun(_) | Told::NothingElse => {}
            Told::Done(piece, true) => done.push(*piece),
            Told::Done(_, false) | Told::Lost(..) => lost += 1,
        }
        Ok(())
    });
    (done, given.unwrap(), lost)
}

/// Whether what two devices took is at most this part of what one took; tried several times, as other programs may have the cores for a while.
fn saves_time(most: f64, took: impl Fn(usize) -> Duration) -> bool {
    (0..8).any(|_| took(2) < took(1).mul_f64(most))
}

#[test]
fn two_devices_take_half_of_the_time_and_do_each_piece_once() {
    let interrupt = Interrupt::default();
    let took = |count: usize| {
        let mut benches: Vec<_> = (0..count).map(|_| scripted(PIECE)).collect();
        let begin = Instant::now();
        let (mut done, given, lost) = give(&mut all(&mut benches), 20, &interrupt);
        let took = begin.elapsed();
        assert_eq!((given, lost), (Given::All, 0));
        done.sort_unstable();
        assert_eq!(done, (0..20).collect::<Vec<_>>());
        assert_eq!(benches.iter().map(|bench| bench.verified.len()).sum::<usize>(), 20);
        took
    };
    assert!(saves_time(0.6, took));
}

#[test]
fn what_a_lost_device_was_at_is_done_by_another() {
    let interrupt = Interrupt::default();
    // The second is lost in its third piece, or in the last one, when the others have nothing left to take.
    for (lives, count) in [(2, 12), (0, 2), (0, 12)] {
        let mut benches = [scripted(PIECE), scripted(PIECE * 2)];
        benches[1].lives.set(lives);
        let mut both = all(&mut benches);
        let (mut done, given, lost) = give(&mut both, count, &interrupt);
        assert_eq!((given, lost, both.living()), (Given::All, 1, 1));
        done.sort_unstable();
        assert_eq!(done, (0..count).collect::<Vec<_>>());
        // What comes after is done by the one that is left.
        assert_eq!(give(&mut both, 3, &interrupt).0, [0, 1, 2]);
        assert_eq!(benches[1].verified.len(), lives);
    }
}

#[test]
fn a_run_ends_when_the_last_device_is_lost() {
    let interrupt = Interrupt::default();
    let mut benches = [scripted(PIECE), scripted(PIECE)];
    benches[0].lives.set(3);
    benches[1].lives.set(1);
    let mut both = all(&mut benches);
    let (done, given, lost) = give(&mut both, 12, &interrupt);
    assert_eq!((done.len(), lost), (4, 2));
    assert!(matches!(given, Given::Lost(BenchError::Worker { .. })), "{given:?}");
    assert_eq!(both.living(), 0);
    assert!(both.first().defect().is_some());
    let again = give(&mut both, 2, &interrupt);
    assert!(again.0.is_empty() && matches!(again.1, Given::Lost(_)), "nothing more is asked of it");
}

#[test]
fn an_interrupt_begins_no_other_piece_and_an_error_neither() {
    let interrupt = Interrupt::default();
    let mut benches = [scripted(PIECE), scripted(PIECE)];
    let pieces: Vec<usize> = (0..12).collect();
    let mut done = 0;
    let given = all(&mut benches).give_out(&pieces, Order::AsGiven, &interrupt, &verify, |told| {
        done += usize::from(matches!(told, Told::Done(..)));
        if done == 4 {
            interrupt.request();
        }
        Ok(())
    });
    assert_eq!(given.unwrap(), Given::Interrupted);
    assert!((4..=6).contains(&done), "{done}");

    let go_on = Interrupt::default();
    let fails = |_: &mut dyn Bench, piece: &usize, _: usize| -> anyhow::Result<()> {
        anyhow::ensure!(*piece != 1, "no such batch");
        Ok(())
    };
    let mut begun = 0;
    let error = all(&mut benches).give_out(&pieces, Order::AsGiven, &go_on, &fails, |told| {
        begun += usize::from(matches!(told, Told::Begun(_)));
        std::thread::sleep(PIECE);
        Ok(())
    });
    assert_eq!(error.unwrap_err().to_string(), "no such batch");
    let full = |_: Told<'_, usize, bool>| anyhow::bail!("the disk is full");
    let error = all(&mut benches).give_out(&pieces, Order::AsGiven, &go_on, &verify, full);
    assert_eq!(error.unwrap_err().to_string(), "the disk is full");
}

#[test]
fn what_ends_while_something_is_kept_is_kept_with_the_next() {
    let interrupt = Interrupt::default();
    let pieces: Vec<usize> = (0..24).collect();
    for devices in [1, 3] {
        let mut benches: Vec<_> = (0..devices).map(|_| scripted(Duration::from_millis(2))).collect();
        let (mut open, mut kept) = (0, Vec::new());
        let given = all(&mut benches).give_out(&pieces, Order::AsGiven, &interrupt, &verify, |told| {
            match told {
                Told::Done(..) => open += 1,
                Told::NothingElse if open > 0 => {
                    kept.push(std::mem::take(&mut open));
                    // Longer than a piece takes.
                    std::thread::sleep(PIECE);
                }
                Told::Begun(_) | Told::Lost(..) | Told::NothingElse => {}
            }
            Ok(())
        });
        assert_eq!((given.unwrap(), open), (Given::All, 0), "the last one is kept, too");
        assert_eq!(kept.iter().sum::<usize>(), pieces.len());
        if devices == 1 {
            assert!(kept.iter().all(|count| *count == 1), "one device waits: {kept:?}");
        } else {
            assert!(kept.len() <= pieces.len() / 2, "{kept:?}");
        }
    }
}

#[test]
#[should_panic(expected = "a scoped thread panicked")]
fn a_panic_of_one_thread_is_heard() {
    let panics = |bench: &mut dyn Bench, piece: &usize, devices: usize| {
        assert_ne!(*piece, 3);
        verify(bench, piece, devices)
    };
    let mut benches = [scripted(PIECE), scripted(PIECE)];
    let pieces: Vec<usize> = (0..12).collect();
    let _ = all(&mut benches).give_out(&pieces, Order::AsGiven, &Interrupt::default(), &panics, |_| Ok(()));
}

#[test]
fn what_is_made_ready_is_divided_and_all_of_it_is_there_once() {
    let tiles: Vec<Tile> = Space::of(Backend::Cuda).tiles()[..11].to_vec();
    let wide = Class { head_dim: 256, ..CLASS };
    let wanted = [(CLASS, 7), (wide, 4)].map(|(class, count)| Preparation {
        tiles: tiles[..count].to_vec(),
        class,
        coverage: Coverage::TRIAL,
    });
    let sets = [(TileSetBuf::of(&["m16n64w4s2", "m64n64w4s2"].map(Tile::of)).unwrap(), CLASS)];
    let parts = parts(&wanted, &sets, 4);
    assert_eq!((parts[0].sets.len(), parts[0].wanted.len()), (1, 0), "what takes longest comes first");
    let counts = |part: &Part| part.wanted.iter().map(|wanted| wanted.tiles.len()).sum::<usize>();
    assert_eq!(parts[1..].iter().map(counts).collect::<Vec<_>>(), [3, 3, 3, 2]);
    let mut of_class: BTreeMap<Class, Vec<Tile>> = BTreeMap::new();
    for part in parts.iter().flat_map(|part| &part.wanted) {
        of_class.entry(part.class).or_default().extend(&part.tiles);
    }
    assert_eq!(of_class, wanted.map(|wanted| (wanted.class, wanted.tiles)).into());
}

/// A run of four batches, of which one is long.
struct Fixture {
    _folder: tempfile::TempDir,
    batches: Vec<Workload>,
    verified: Verified,
    run: RunFolder,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trees.yaml");
        let text =
            "name: t\nheads: [[4, 1]]\ntrees: ['1,4_64,33', '8_96', '3_48', '8_1024', '2_40', '5_64']\n";
        std::fs::write(&file, text).unwrap();
        let scale = Scale::of(Backend::Cpu);
        let batches = Workloads::load(&[file], Backend::Cpu, &scale, None).unwrap().batches;
        let class = Class::of(&batches[0].build().unwrap().geometry).to_string();
        let passed = |tile: Tile| Measurement {
            level: Level::Space,
            ..test_data::measurement(&class, &tile.to_string(), &[])
        };
        let verified = Verified::of(&[SMALL, LARGE, SAFE].map(passed));
        let run = RunFolder::open(&folder.path().join("run"), test_data::provenance(), Start::Fresh);
        Self { _folder: folder, batches, verified, run: run.unwrap() }
    }

    /// Races three tiles on all batches.
    fn race(&mut self, benches: Benches<'_>) -> anyhow::Result<bool> {
        let interrupt = Interrupt::default();
        let later = Instant::now() + Duration::from_secs(60);
        let session =
            &mut Session { benches, run: &mut self.run, progress: Progress::Silent, interrupt: &interrupt };
        measure_candidates(
            session,
            &self.batches,
            &Candidates { sets: candidate_sets(&[SMALL, LARGE, SAFE], &[]), several_for: None },
            &self.verified,
            later,
        )
    }

    /// How many samples each batch's rows have, and whether they are of the slower device.
    fn samples(&self) -> BTreeMap<(String, String), (usize, bool)> {
        let rows = self.run.rows().iter();
        let row = |row: &Measurement| {
            let slower: BTreeSet<bool> = row.samples_us.iter().map(|&us| us >= 1000.0).collect();
            assert_eq!((slower.len(), row.complete), (1, true), "one device measures a batch: {row:?}");
            ((row.workload.clone(), row.choice.clone()), (row.samples_us.len(), slower.contains(&true)))
        };
        rows.map(row).collect()
    }
}

/// Two devices that are told apart by their times.
fn pair(takes: Duration) -> [ScriptedBench; 2] {
    let mut benches = [scripted(takes), scripted(takes)];
    benches[1].slower_us = 1000.0;
    benches
}

#[test]
fn two_devices_race_the_same_batches_each_on_one_of_them() {
    let raced = |count: usize| {
        let mut fixture = Fixture::new();
        let mut benches = pair(Duration::from_millis(2));
        let begin = Instant::now();
        assert!(fixture.race(all(&mut benches[..count])).unwrap());
        (fixture, begin.elapsed())
    };
    let names = |fixture: &Fixture| fixture.samples().into_keys().collect::<BTreeSet<_>>();
    let (alone, shared) = (raced(1).0, raced(2).0);
    assert_eq!(names(&shared), names(&alone));
    assert_eq!(names(&alone).len(), alone.batches.len() * 3);
    let mut by_batch: BTreeMap<String, BTreeSet<bool>> = BTreeMap::new();
    for ((batch, _), (_, slower)) in shared.samples() {
        by_batch.entry(batch).or_default().insert(slower);
    }
    assert!(by_batch.values().all(|devices| devices.len() == 1), "{by_batch:?}");
    let used: BTreeSet<bool> = by_batch.into_values().flatten().collect();
    assert_eq!(used.len(), 2, "both measure");
    assert!(saves_time(0.75, |count| raced(count).1));
}

#[test]
fn a_batch_whose_device_is_lost_is_raced_anew_on_the_other() {
    let mut fixture = Fixture::new();
    let mut benches = pair(Duration::from_millis(1));
    // It has raced three tiles twice.
    benches[1].lives.set(7);
    assert!(fixture.race(all(&mut benches)).unwrap());
    let samples = fixture.samples();
    assert_eq!(samples.len(), fixture.batches.len() * 3);
    assert!(samples.values().all(|(_, slower)| !slower), "nothing is kept of the race that it was lost in");
}

#[test]
fn what_the_last_device_measured_is_kept_and_a_resumed_run_measures_the_rest() {
    let mut fixture = Fixture::new();
    let mut benches = pair(Duration::ZERO);
    benches[0].lives.set(40);
    benches[1].lives.set(0);
    let error = fixture.race(all(&mut benches)).unwrap_err();
    assert!(error.to_string().contains("it is lost"), "{error}");
    // It raced two batches, and died in the second round of the third.
    assert_eq!(fixture.samples().len(), 2 * 3);
    // With another number of devices.
    let mut bench = scripted(Duration::ZERO);
    assert!(fixture.race(Benches::one(&mut bench)).unwrap());
    let measured = fixture.run.measured(Level::Batch);
    assert_eq!(measured.len(), fixture.batches.len());
}

#[test]
fn two_devices_verify_each_tile_once_and_say_what_one_says() {
    let space = Space::of(Backend::Cuda);
    let tiles = ["m64n64w4s2", "m32n64w4s2", "m16n64w4s2"].map(Tile::of);
    let timed = Timed {
        classes: [(CLASS, 2), (Class { head_dim: 64, ..CLASS }, 1)].into(),
        dtypes: [Dtype::F16].into(),
        cp_async: [CLASS].into(),
        ..Timed::default()
    };
    let later = Instant::now() + Duration::from_secs(600);
    let interrupt = Interrupt::default();
    let verified_by = |count: usize, lives: usize| {
        let mut benches: Vec<ScriptedBench> = (0..count).map(|_| scripted(PIECE / 4)).collect();
        for bench in &mut benches {
            bench.limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
            bench.wrong = vec![(tiles[0], CLASS, false), (tiles[1], CLASS, true)];
        }
        benches[count - 1].lives.set(lives);
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
        let session = &mut Session {
            benches: all(&mut benches),
            run: &mut run,
            progress: Progress::Silent,
            interrupt: &interrupt,
        };
        assert_eq!(try_tiles(session, &tiles, &CLASS).unwrap().unwrap(), tiles[1..]);
        let verified = verify_space(session, &space, &tiles, &timed, later).unwrap().unwrap();
        let key =
            |row: &Measurement| (row.level, row.workload.clone(), row.choice.clone(), row.message.clone());
        let mut rows: Vec<_> = run.rows().iter().map(key).collect();
        let failed = run.rows().iter().filter(|row| row.status == Status::Correctness).count();
        rows.sort();
        (verified, rows, failed, benches.iter().map(|bench| bench.verified.len()).collect::<Vec<_>>())
    };
    let (alone, rows, failed, counts) = verified_by(1, usize::MAX);
    assert_eq!(failed, 2);
    let (both, rows_of_both, _, counts_of_both) = verified_by(2, usize::MAX);
    assert_eq!((&both, &rows_of_both), (&alone, &rows));
    assert_eq!(counts_of_both.iter().sum::<usize>(), counts[0], "each once");
    assert!(counts_of_both.iter().all(|&count| count > 0), "{counts_of_both:?}");
    let (left, rows_of_left, _, counts_of_left) = verified_by(2, 4);
    assert_eq!((left, rows_of_left), (alone, rows), "also where one is lost");
    assert_eq!(counts_of_left.iter().sum::<usize>(), counts[0]);
}

/// A device with other prices than its like.
struct Priced(ScriptedBench, Prices, f64);

#[test]
fn alike_devices_adopt_one_set_of_prices_and_one_that_differs_is_said() {
    let of = |hbm_byte: u64, launch_us: f64| {
        Priced(scripted(Duration::ZERO), Prices { hbm_byte, ..Prices::H200 }, launch_us)
    };
    let mut benches = [of(1000, 2.0), of(1010, 2.1), of(1200, 2.5)];
    let (all, said) = Benches::of(benches.iter_mut().map(|bench| bench as &mut dyn Bench).collect());
    assert!(all.all().all(|bench| bench.prices().hbm_byte == 1010), "those of the median bandwidth");
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("number 3 takes +18.8 % for reading a byte, compared with number 2"),
        "{said:?}"
    );
    assert!(said[1].contains("number 3 takes +19.0 % for a launch"), "{said:?}");
    let (_, said) = Benches::of(vec![&mut of(1000, 2.0) as &mut dyn Bench]);
    assert!(said.is_empty());
}

impl Bench for Priced {
    fn prices(&self) -> Prices {
        self.1
    }

    fn adopt_prices(&mut self, prices: Prices) {
        self.1 = prices;
    }

    fn launch_us(&self) -> f64 {
        self.2
    }

    fn device(&self) -> crate::store::DeviceRecord {
        self.0.device()
    }

    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn facts(&self) -> Vec<(String, String)> {
        self.0.facts()
    }

    fn versions(&self) -> Vec<(String, String)> {
        self.0.versions()
    }

    fn kernel_hash(&self) -> String {
        self.0.kernel_hash()
    }

    fn cold_caches(&self) -> String {
        self.0.cold_caches()
    }

    fn limit_method(&self) -> String {
        self.0.limit_method()
    }

    fn warnings(&self) -> Vec<String> {
        self.0.warnings()
    }

    fn resources(&self, tile: &Tile, class: &Class) -> Resources {
        self.0.resources(tile, class)
    }

    fn verify(
        &mut self,
        tile: &Tile,
        class: &Class,
        coverage: Coverage,
    ) -> Result<f64, crate::measure::Failure> {
        self.0.verify(tile, class, coverage)
    }

    fn load<'a>(
        &'a mut self,
        batch: &'a tilewright_scenarios::Batch,
    ) -> Result<Box<dyn crate::measure::Loaded + 'a>, BenchError> {
        self.0.load(batch)
    }
}
