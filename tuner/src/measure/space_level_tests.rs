//! What is verified, for which classes, and what is recorded of it.

use super::*;
use crate::interrupt::Interrupt;
use crate::measure::{Benches, KnownTiles, ScriptedBench, time_to_verify};
use crate::progress::Progress;
use crate::shard::Shard;
use crate::store::{RunFolder, Start, failed_since, test_data};
use std::time::Duration;
use tilewright_heuristics::{Backend, Dtype};
use tilewright_kernel_templates::{CudaLimits, Limits};

#[test]
fn fp8_is_verified_where_it_is_timed() {
    let dtypes = |backend, dtypes: &[Dtype]| {
        let timed = Timed { dtypes: dtypes.iter().copied().collect(), ..Timed::default() };
        let classes = timed.to_verify(backend);
        let dtypes: BTreeSet<Dtype> = classes.iter().map(|class| class.dtype).collect();
        let usual = |class: &Class| [64, 128, 256].contains(&class.head_dim) && dtypes.contains(&class.dtype);
        assert_eq!(classes, Class::all(backend).filter(usual).collect::<Vec<_>>());
        dtypes.into_iter().collect::<Vec<_>>()
    };
    let plain = [Dtype::F16, Dtype::Bf16, Dtype::F32];
    assert_eq!(dtypes(Backend::Cpu, &[]), plain);
    assert_eq!(dtypes(Backend::Cpu, &[Dtype::Fp8F32]), [&plain[..], &[Dtype::Fp8F32]].concat());
    assert_eq!(dtypes(Backend::Cuda, &[Dtype::Bf16]), [Dtype::Bf16]);
    assert_eq!(dtypes(Backend::Cuda, &[Dtype::Fp8F16]), [Dtype::Fp8F16]);
    assert_eq!(dtypes(Backend::Cuda, &[Dtype::E5m2F16]), [Dtype::E5m2F16]);
    assert_eq!(dtypes(Backend::Cuda, &[]), []);
}

#[test]
fn seldom_head_dimensions_are_verified_where_they_are_timed() {
    for (backend, head_dim) in
        [Backend::Cpu, Backend::Cuda].into_iter().flat_map(|backend| [(backend, 96), (backend, 512)])
    {
        let class = Class { head_dim, dtype: Dtype::Bf16 };
        let dtypes = BTreeSet::from([Dtype::Bf16]);
        let timed = Timed { dtypes, ..Timed::default() };
        assert!(!timed.to_verify(backend).contains(&class));
        let verified = Timed { classes: [(class, 1)].into(), ..timed }.to_verify(backend);
        assert!(verified.contains(&class));
        assert!(verified.iter().all(|other| other == &class || [64, 128, 256].contains(&other.head_dim)));
    }
}

#[test]
fn shards_verify_what_they_time_and_together_all_classes() {
    let class = Class { head_dim: 128, dtype: Dtype::Bf16 };
    for backend in [Backend::Cpu, Backend::Cuda] {
        // What the second of three shards times is of another type than what the others do.
        let of = |shard: Option<usize>| {
            let classes = BTreeMap::from([(class, 1)]);
            let classes = if shard == Some(1) { classes } else { BTreeMap::new() };
            let shard = shard.map(|index| Shard { index, count: 3 });
            let dtypes = BTreeSet::from([Dtype::F16, Dtype::Bf16]);
            Timed { classes, dtypes, shard, ..Timed::default() }.to_verify(backend)
        };
        let (alone, shards) = (of(None), [0, 1, 2].map(|index| of(Some(index))));
        let together: BTreeSet<Class> = shards.iter().flatten().copied().collect();
        assert_eq!(together, alone.iter().copied().collect());
        assert!(shards[1].contains(&class));
        assert!(shards.iter().all(|shard| shard.len() <= alone.len() / 3 + 1));
    }
}

const USUAL: Class = Class { head_dim: 128, dtype: Dtype::F16 };
const OTHER: Class = Class { head_dim: 64, dtype: Dtype::F16 };

fn bench() -> ScriptedBench {
    let mut bench = ScriptedBench::new(Vec::new(), None);
    bench.limits = Limits::Cuda(CudaLimits::named("h200").unwrap());
    bench
}

/// What is verified of these tiles on a GPU with TMA, where some variants are wrong; the bench, and what may be timed.
fn verified_of(
    tiles: &[Tile],
    timed: Timed,
    wrong: &[(Tile, Class, bool)],
) -> (ScriptedBench, Verified, Vec<Measurement>) {
    let mut bench = bench();
    bench.wrong = wrong.to_vec();
    let timed = Timed { classes: [(USUAL, 2), (OTHER, 1)].into(), dtypes: [Dtype::F16].into(), ..timed };
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
    let (space, interrupt) = (Space::of(Backend::Cuda), Interrupt::default());
    let later = Instant::now() + Duration::from_secs(600);
    let mut verified = Verified::default();
    for _ in ["fresh", "resumed"] {
        let session = &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
        verified = verify_space(session, &space, tiles, &timed, later).unwrap().unwrap();
    }
    (bench, verified, run.rows().to_vec())
}

#[test]
fn what_fails_is_told_once_a_class_with_a_reason() {
    let [right, wrong, worse] = ["m16n32w4s2", "m16n64w4s2", "m64n32w4s2"].map(Tile::of);
    let failure = |message: &str| Failure { status: Status::Correctness, message: message.to_owned() };
    let outcome = |outcome| (outcome, Resources::default());
    let mut verified = Outcomes::from([(right, outcome(Ok(1e-4)))]);
    assert_eq!(failures(&USUAL, &verified), None);
    verified.insert(worse, outcome(Err(failure("other rows"))));
    verified.insert(wrong, outcome(Err(failure("wrong rows"))));
    let told = failures(&USUAL, &verified).unwrap();
    assert_eq!(
        told,
        "head_dim 128 f16: 2 of 3 tiles failed and are not returned for it; m16n64w4s2: wrong rows"
    );
}

fn all_tiles() -> Vec<Tile> {
    Space::of(Backend::Cuda).tiles().to_vec()
}

/// Classes of which tiles were verified with `cp.async`, or with TMA, with whether options were too and how many tiles.
fn coverages(bench: &ScriptedBench, cp_async: bool) -> BTreeMap<(Class, bool), usize> {
    let mut counts = BTreeMap::new();
    for (_, class, coverage) in bench.verified.iter().filter(|(_, _, coverage)| coverage.cp_async == cp_async)
    {
        assert!(!coverage.trial);
        *counts.entry((*class, coverage.options)).or_default() += 1;
    }
    counts
}

#[test]
fn cp_async_is_verified_first_only_if_it_is_timed() {
    const WIDE: Class = Class { head_dim: 256, ..USUAL };
    let (bench, all, _) = verified_of(&all_tiles(), Timed::default(), &[]);
    let feasible: BTreeMap<_, _> =
        [USUAL, OTHER, WIDE].map(|class| ((class, false), all.tiles(&class).len())).into();
    assert!(feasible.values().all(|tiles| *tiles > 50), "{feasible:?}");
    assert_eq!(coverages(&bench, false), feasible);
    assert!(coverages(&bench, true).is_empty());

    let cp_async = [OTHER, WIDE].into();
    let wrong = all.tiles(&OTHER)[7];
    let (bench, timed, _) =
        verified_of(&all_tiles(), Timed { cp_async, ..Timed::default() }, &[(wrong, OTHER, true)]);
    assert_eq!(coverages(&bench, false), feasible);
    assert_eq!(
        coverages(&bench, true),
        [OTHER, WIDE].map(|class| ((class, false), feasible[&(class, false)])).into()
    );
    let rest: Vec<Tile> = all.tiles(&OTHER).iter().copied().filter(|tile| *tile != wrong).collect();
    assert_eq!((timed.tiles(&OTHER), timed.tiles(&USUAL)), (rest.as_slice(), all.tiles(&USUAL)));

    let shard = Some(Shard { index: 0, count: 1 });
    let (bench, _, _) = verified_of(&all_tiles(), Timed { shard, ..Timed::default() }, &[]);
    let with_options: BTreeMap<_, _> =
        feasible.iter().map(|(&(class, _), &count)| ((class, class == USUAL), count)).collect();
    for cp_async in [false, true] {
        let all = coverages(&bench, cp_async);
        assert_eq!(all, with_options, "no shard can verify more when shards are fitted together");
    }
}

#[test]
fn classes_have_what_does_well_at_their_head_dimension_and_what_is_known() {
    let [known, small, usual] = ["m16n64w4s2", "m16n128w4s2", "m64n96w4s2"].map(Tile::of);
    let screened = [(64, [small].into()), (128, [usual].into())].into();
    let mut timed =
        Timed { classes: [(USUAL, 2), (OTHER, 1)].into(), dtypes: [USUAL.dtype].into(), ..Timed::default() };
    assert_eq!(timed.usual(), Some(USUAL));
    timed.leave(Backend::Cuda, &screened, &KnownTiles::default());
    assert!(timed.only.is_empty(), "with nothing known, no class has a tile in common with others");
    timed.leave(Backend::Cuda, &screened, &KnownTiles::of_all_classes(vec![known]));
    let of_dim = |dim: u32| match dim {
        64 => vec![small, known],
        128 => vec![known, usual],
        _ => vec![known],
    };
    for class in [USUAL, OTHER, Class { head_dim: 256, ..USUAL }] {
        let mut wanted = of_dim(class.head_dim);
        wanted.sort_unstable();
        assert_eq!(timed.only[&class].iter().copied().collect::<Vec<_>>(), wanted, "{class}");
    }
    let (bench, verified, _) = verified_of(&[known, small, usual], timed, &[]);
    for class in [USUAL, OTHER] {
        let mut wanted = of_dim(class.head_dim);
        wanted.sort_unstable();
        assert_eq!(verified.tiles(&class), wanted, "{class}");
    }
    assert!(bench.verified.iter().all(|(tile, class, _)| of_dim(class.head_dim).contains(tile)));
}

#[test]
fn a_class_has_of_what_is_known_what_is_returned_there_and_what_serves_all() {
    let [of_small, of_usual, safe, second, screened] =
        ["m16n128w4s2", "m64n96w4s2", "m16n64w4s2", "m64n64w4s2", "m32n64w2s2"].map(Tile::of);
    let known = [of_small, of_usual, safe, second];
    let wide = Class { head_dim: 256, ..USUAL };
    let returned = [(OTHER, [of_small].into()), (USUAL, [of_usual].into())].into();
    let by_class = KnownTiles::of_all_classes(known.to_vec()).by_class(returned, vec![safe, second]);
    let (space, limits) = (Space::of(Backend::Cuda), bench().limits);
    let mut timed =
        Timed { classes: [(USUAL, 2), (OTHER, 1)].into(), dtypes: [USUAL.dtype].into(), ..Timed::default() };
    let of = |wanted: &[Preparation], class: Class, cp_async: bool| -> BTreeSet<Tile> {
        let of_class =
            wanted.iter().filter(|wanted| wanted.class == class && wanted.coverage.cp_async == cp_async);
        of_class.flat_map(|wanted| wanted.tiles.clone()).collect()
    };
    for left in [None, Some(screened)] {
        let of_dim = left.map(|tile| (USUAL.head_dim, vec![tile])).into_iter().collect();
        timed.leave(Backend::Cuda, &of_dim, &by_class);
        let tiles: Vec<Tile> = known.into_iter().chain(left).collect();
        let of_space = timed.to_prepare_space(&space, &tiles, &limits);
        assert_eq!(of(&of_space, OTHER, false), [of_small, safe, second].into());
        assert_eq!(of(&of_space, USUAL, false), [of_usual, safe, second].into_iter().chain(left).collect());
        // Of others all that is known runs there.
        let of_wide: BTreeSet<Tile> = of(&of_space, wide, false);
        let feasible = space.feasible(&wide, &limits);
        assert_eq!(of_wide, known.into_iter().filter(|tile| feasible.contains(tile)).collect());
        // What a fitted selector returns is likely to be the same, with the same safe default.
        let later = timed.to_prepare_returned(&space, &tiles, &by_class, &limits);
        assert_eq!(of(&later, OTHER, true), [of_small, safe].into());
        assert_eq!(of(&later, USUAL, true), [of_usual, safe].into());
        assert_eq!(of(&later, USUAL, false), [of_usual, safe].into());
        assert_eq!(of(&later, wide, true), of_wide);
    }
    // Warps that split heads have tiles of their own.
    let long = Class { head_dim: 512, ..USUAL };
    let returned = [(long, [of_small].into())].into();
    let by_class = KnownTiles::of_all_classes(known.to_vec()).by_class(returned, vec![safe, second]);
    assert_eq!((by_class.of(&long), by_class.of(&USUAL)), (vec![of_small], known.to_vec()));
}

#[test]
fn what_a_screening_left_is_verified_for_all_classes_once() {
    // The second has no room for heads of 256 elements.
    let tiles = ["m64n64w4s2", "m64n128w8s3"].map(|tile| tile.parse::<Tile>().unwrap());
    let (bench, verified, rows) = verified_of(&tiles, Timed::default(), &[]);
    let wide = Class { head_dim: 256, ..USUAL };
    for class in [USUAL, OTHER] {
        assert_eq!(verified.tiles(&class), tiles, "{class}");
    }
    assert_eq!(verified.tiles(&wide), &tiles[..1]);
    assert_eq!(bench.verified.len(), 5, "once");
    let count = |class: Class, status| {
        let of_class = rows.iter().filter(|row| row.workload == class.to_string());
        of_class.filter(|row| row.status == status).count()
    };
    for class in [USUAL, OTHER, wide] {
        let told =
            [Status::Correct, Status::Constraints, Status::Unverified].map(|status| count(class, status));
        assert_eq!(told.iter().sum::<usize>(), all_tiles().len(), "{class}: every tile has a reason");
        assert!(told[2] > 50, "{class}: {told:?}");
    }
}

#[test]
fn what_fails_its_trial_is_recorded_and_not_verified() {
    let mut bench = bench();
    let tiles = ["m64n64w4s2", "m64n128w8s3"].map(|tile| tile.parse::<Tile>().unwrap());
    bench.wrong = vec![(tiles[0], USUAL, false)];
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
    let (space, interrupt) = (Space::of(Backend::Cuda), Interrupt::default());
    let session = &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
    let passed = try_tiles(session, &tiles, &USUAL).unwrap().unwrap();
    assert_eq!(passed, [tiles[1]]);
    let timed = Timed { classes: [(USUAL, 1)].into(), dtypes: [Dtype::F16].into(), ..Timed::default() };
    let later = Instant::now() + Duration::from_secs(600);
    let verified = verify_space(session, &space, &tiles, &timed, later).unwrap().unwrap();
    assert_eq!(verified.tiles(&USUAL), [tiles[1]]);
    let trials = bench.verified.iter().filter(|(tile, class, _)| (*tile, *class) == (tiles[0], USUAL));
    assert!(trials.map(|(_, _, coverage)| coverage.trial).eq([true]));
}

#[test]
fn tiles_are_raced_once_they_pass_without_options_and_fail_with_them_later() {
    let mut bench = bench();
    let tiles = ["m64n64w4s2", "m64n128w8s3"].map(|tile| tile.parse::<Tile>().unwrap());
    bench.wrong_with_options = vec![(tiles[0], USUAL)];
    let timed = Timed { classes: [(USUAL, 1)].into(), dtypes: [Dtype::F16].into(), ..Timed::default() };
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
    let interrupt = Interrupt::default();
    let session = &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
    let (space, later) = (Space::of(Backend::Cuda), Instant::now() + Duration::from_secs(600));
    let verified = verify_space(session, &space, &tiles, &timed, later).unwrap().unwrap();
    assert_eq!(verified.tiles(&USUAL), tiles);
    assert!(failed_since(session.run.rows()).is_empty());

    // What a selector does not return is not verified once more; nothing is twice.
    let mut verify = |of_usual: &[Tile]| {
        let returned = |class: &Class| {
            let of_class = if *class == USUAL { of_usual } else { &tiles };
            of_class.iter().copied().collect()
        };
        verify_returned(session, &returned, &timed).unwrap()
    };
    assert_eq!(verify(&tiles[1..]), Some(0));
    assert_eq!(verify(&tiles), Some(1));
    assert_eq!(verify(&tiles), Some(0));
    let at = |level| {
        let rows = session.run.rows().iter().filter(move |row| row.level == level);
        rows.map(|row| (row.tile.unwrap(), row.status)).collect::<BTreeSet<_>>()
    };
    let of_level = [(tiles[0], Status::Correctness), (tiles[1], Status::Correct)];
    assert_eq!(at(Level::Options), of_level.into());
    let usual = USUAL.to_string();
    assert_eq!(failed_since(session.run.rows()), [(usual.as_str(), tiles[0])].into());
    assert_eq!(Verified::of(session.run.rows()).tiles(&USUAL), &tiles[1..]);
    let by_tma = bench.verified.iter().filter(|(_, class, coverage)| *class == USUAL && !coverage.cp_async);
    assert_eq!(by_tma.clone().filter(|(.., coverage)| coverage.options).count(), 2);
    assert_eq!(by_tma.count(), 4);

    // What is known of other classes stays.
    let verified = Verified::tried(&USUAL, vec![tiles[1]]).or(&Verified::tried(&OTHER, tiles.to_vec()));
    let both = verified.clone().or(&Verified::tried(&USUAL, tiles.to_vec()));
    assert_eq!((both.tiles(&USUAL), both.tiles(&OTHER)), (&tiles[1..], &tiles[..]));
}

#[test]
fn what_is_asked_for_once_more_is_what_a_selector_is_likely_to_return() {
    let (space, limits) = (Space::of(Backend::Cuda), bench().limits);
    let tiles = ["m64n64w4s2", "m64n128w8s3"].map(|tile| tile.parse::<Tile>().unwrap());
    let timed =
        Timed { classes: [(USUAL, 2), (OTHER, 1)].into(), dtypes: [Dtype::F16].into(), ..Timed::default() };
    let of_usual = |timed: &Timed, known: &[Tile]| {
        let known = KnownTiles::of_all_classes(known.to_vec());
        let mut wanted = timed.to_prepare_returned(&space, &tiles, &known, &limits);
        wanted.retain(|wanted| wanted.class == USUAL);
        let later: Vec<bool> = wanted.iter().map(|wanted| wanted.coverage.cp_async).collect();
        assert_eq!(later, if timed.cp_async.is_empty() { vec![true, false] } else { vec![true] });
        assert!(wanted.iter().all(|wanted| wanted.coverage.options));
        wanted.into_iter().flat_map(|wanted| wanted.tiles).collect::<BTreeSet<_>>()
    };
    assert_eq!(of_usual(&timed, &tiles[..1]), tiles[..1].iter().copied().collect());
    assert_eq!(of_usual(&timed, &[]), tiles.into());
    // Batches whose pages TMA cannot load are raced under all.
    let timed = Timed { cp_async: [USUAL].into(), ..timed };
    assert_eq!(of_usual(&timed, &tiles[..1]), tiles.into());
    let of_space = |timed: &Timed| timed.to_prepare_space(&space, &tiles, &limits).swap_remove(0);
    assert_eq!((of_space(&timed).class, of_space(&timed).coverage.options), (USUAL, true));
    let timed = Timed { cp_async: BTreeSet::new(), ..timed };
    assert_eq!(of_space(&timed).coverage, Coverage::PLAIN);
}

#[test]
fn without_time_only_the_most_timed_class_is_timed() {
    let mut bench = bench();
    let timed =
        Timed { classes: [(OTHER, 1), (USUAL, 2)].into(), dtypes: [Dtype::F16].into(), ..Timed::default() };
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
    let (space, interrupt) = (Space::of(Backend::Cuda), Interrupt::default());
    let benches = &mut Benches::one(&mut bench);
    let needed = time_to_verify(benches, &space, &[USUAL], &timed, &interrupt);
    assert!(needed < Duration::from_secs(60));
    bench.verified.clear();
    let now = Instant::now();
    for _ in ["fresh", "resumed"] {
        let session = &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
        let verified = verify_space(session, &space, space.tiles(), &timed, now).unwrap().unwrap();
        assert!(!verified.tiles(&USUAL).is_empty() && verified.tiles(&OTHER).is_empty());
    }
}

#[test]
fn what_fails_in_the_default_way_is_not_verified_in_the_other() {
    let (_, all, _) = verified_of(&all_tiles(), Timed::default(), &[]);
    let wrong = all.tiles(&USUAL)[0];
    let timed = Timed { cp_async: [USUAL].into(), ..Timed::default() };
    let (bench, _, _) = verified_of(&all_tiles(), timed, &[(wrong, USUAL, false)]);
    let of_it: Vec<bool> = bench
        .verified
        .iter()
        .filter(|(tile, class, _)| (*tile, *class) == (wrong, USUAL))
        .map(|(_, _, coverage)| coverage.cp_async)
        .collect();
    assert_eq!(of_it, [false]);
}
