//! Kernels that leave out a word, a barrier or a wait: each must fail.

use super::*;
use std::ops::Range;
use std::sync::Mutex;

/// A call that kernels may leave out.
struct Call {
    what: String,
    file: &'static str,
    line: usize,
    text: Range<usize>,
}

impl Call {
    fn new(what: &str, (file, source): (&'static str, &str), text: Range<usize>) -> Self {
        let line = source[..text.start].lines().count();
        Self { what: what.to_owned(), file, line, text }
    }
}

/// The sources, asking before each call whether it is left out: calls are counted from 1, in their order.
fn asking(calls: &[Call], name: &str, source: &str) -> String {
    let (mut text, mut end) = (String::new(), 0);
    for (number, Call { text: call, .. }) in (1..).zip(calls).filter(|(_, call)| call.file == name) {
        text += &source[end..call.start];
        text += &format!("(is_left_out({number}) ? void() : void({}))", &source[call.clone()]);
        end = call.end;
    }
    text + &source[end..]
}

/// A case that agrees with the reference, and the calls that it comes by.
struct Reached<'a> {
    case: &'a Case,
    emulator: &'a Emulator,
    calls: Vec<bool>,
}

/// Some case of some device comes by each call, and fails without it.
fn assert_each_is_noticed(calls: &[Call], devices: &[(&[Case], &[&str])]) {
    assert!(calls.len() < Emulator::CALLS, "{} calls", calls.len());
    let change = |name: &str, text: &str| asking(calls, name, text);
    let of_device =
        |(cases, flags): &(&[Case], &[&str])| Emulator::build_changed(&kernels_of(cases), flags, change);
    let emulators: Vec<Emulator> = devices.iter().map(of_device).collect();
    let cases: Vec<(&Case, &Emulator)> = devices
        .iter()
        .zip(&emulators)
        .flat_map(|((cases, _), emulator)| cases.iter().map(move |case| (case, emulator)))
        .collect();
    let reached = Mutex::new(Vec::new());
    for_all(&cases, |&(case, emulator)| {
        emulator.leave_out(0);
        case.check(emulator)?;
        let calls = (1..=calls.len() as u32).map(|call| emulator.was_reached(call)).collect();
        reached.lock().unwrap().push(Reached { case, emulator, calls });
        Ok(())
    });
    let reached = reached.into_inner().unwrap();
    let numbered: Vec<(u32, &Call)> = (1..).zip(calls).collect();
    for_all(&numbered, |&(number, Call { what, file, line, .. })| {
        let mut by_it = reached.iter().filter(|reached| reached.calls[number as usize - 1]).peekable();
        let place = format!("{what} in line {line} of {file}");
        if by_it.peek().is_none() {
            return Err(format!("no case comes by {place}"));
        }
        let is_noticed = |&Reached { case, emulator, .. }: &Reached<'_>| {
            emulator.leave_out(number);
            let noticed = case.check(emulator).is_err();
            emulator.leave_out(0);
            noticed
        };
        let noticed = by_it.any(is_noticed);
        noticed
            .then_some(())
            .ok_or_else(|| format!("nothing shows that {place} is missing: is it superfluous?"))
    });
}

/// Warps that leave weights for each other, in one step and many.
fn transposed_cases() -> Vec<Case> {
    // With K that is widened, and as it is.
    [(1, Dtype::Fp8F16), (2, Dtype::Fp8F16), (3, Dtype::Fp8F16), (1, Dtype::Fp8Bf16), (2, Dtype::Fp8Bf16)]
        .into_iter()
        .flat_map(|(stages, dtype)| {
            let (tile, class) = (Tile::new(32, 64, 4, stages), Class { head_dim: 128, dtype });
            let packing = |seed| if seed == 1 { Packing::PerTree } else { Packing::Pat };
            (0..2).map(move |seed| Case {
                tile,
                class,
                packing: packing(seed),
                own: 70,
                seed,
                warpgroups: true,
                ..CASE
            })
        })
        .collect()
}

/// What warps tell each other of the buffers: when they are full, and when they are free.
#[test]
fn a_missing_word_about_a_buffer_is_caught() {
    let of_tiles = |tiles: &[(u16, u16)], seeds: u64, options: KernelOptions| -> Vec<Case> {
        let case = Case { packing: Packing::PerTree, own: 70, warpgroups: true, options, ..CASE };
        let of_tile = |&(m, warps)| {
            let tile = Tile::new(m, 64, warps, 2);
            (0..seeds).map(move |seed| Case { tile, seed, ..case })
        };
        tiles.iter().flat_map(of_tile).collect()
    };
    let cases = of_tiles(&[(16, 4), (64, 4), (128, 8)], 2, CASE.options);
    let flags = &[WARPGROUPS, QUICK];
    // Those of the warps that widen: private KV phases that come first and last, one buffer and two.
    let widened: Vec<Case> = [(64, Dtype::Fp8F16), (96, Dtype::Fp8F16), (64, Dtype::Fp8Bf16)]
        .into_iter()
        .flat_map(|(n, dtype)| {
            let (tile, class) = (Tile::new(64, n, 4, 2), Class { head_dim: 128, dtype });
            (0..4).map(move |seed| Case {
                tile,
                class,
                packing: Packing::PerTree,
                own: 70 * (seed as u32 % 2),
                seed,
                warpgroups: true,
                ..CASE
            })
        })
        .collect();
    let widening = &[WARPGROUPS, QUICK, FP8_CONVERSION];
    let transposed = transposed_cases();
    // Chunks that begin anew, in steps of all rows and of one warp's.
    let chunks = KernelOptions { invariant: true, ..CASE.options };
    let invariant = of_tiles(&[(16, 1), (64, 4)], 4, chunks);
    let words =
        ["pipeline.wait_", "pipeline.release_", "pipeline.template wait_", "pipeline.template release_"];
    let mut calls = Vec::new();
    for &(file, text) in sources() {
        // What a part of another says is for timelines alone.
        let own = |place: usize| !text[..place].ends_with('.');
        let found = words.iter().flat_map(|word| text.match_indices(word)).filter(|(place, _)| own(*place));
        calls.extend(found.map(|(place, word)| {
            let end = place + text[place..].find(");").expect("a call ends") + 1;
            Call::new(&format!("`{word}...`"), (file, text), place..end)
        }));
    }
    calls.sort_by_key(|call| (call.file, call.text.start));
    let devices: [(&[Case], &[&str]); 4] =
        [(&cases, flags), (&invariant, flags), (&widened, widening), (&transposed, widening)];
    assert_each_is_noticed(&calls, &devices);
    assert!(calls.len() >= 18, "only {} words about buffers were found", calls.len());
}

#[test]
fn a_pipeline_that_reads_too_early_is_caught() {
    for stages in 1..=4 {
        let case = Case { tile: Tile { stages, ..CASE.tile }, ..CASE };
        let error = case.check(&Emulator::build(&kernels_of(&[case]), &[EARLY_READ])).unwrap_err();
        let named = ["nothing had been copied to yet", "which a copy filled without a barrier since"];
        assert!(named.iter().any(|part| error.contains(part)), "{stages} stages: {error}");
    }
}

/// Barriers of every source, also beside producers, whose buffers have mbarriers.
#[test]
fn a_missing_barrier_is_caught() {
    let cases: Vec<Case> = (1..=4)
        .flat_map(|stages| {
            let tile = Tile::new(32, 64, 8, stages);
            let head_dim = if stages % 2 == 0 { 64 } else { 256 };
            let class = Class { head_dim, ..CASE.class };
            let options =
                KernelOptions { mask: if stages == 3 { WINDOW } else { MaskOptions::NONE }, ..CASE.options };
            // Packs of one segment, and of several.
            let packing = |seed| if seed == 2 { Packing::Pat } else { Packing::Priced };
            (0..3).map(move |seed| Case { tile, class, options, packing: packing(seed), seed, ..CASE })
        })
        .collect();
    let beside_producers: Vec<Case> = (1..=3)
        .flat_map(|stages| {
            let tile = Tile::new(64, 64, 4, stages);
            // Of several segments, lengths of rows are read by other warps than wrote them.
            let packing = |seed| if seed == 1 { Packing::Priced } else { Packing::Pat };
            (0..2).map(move |seed| Case { tile, seed, packing: packing(seed), warpgroups: true, ..CASE })
        })
        .collect();
    // Warps that split a head meet for each step.
    let split: Vec<Case> = (0..4)
        .map(|seed| {
            let (tile, class) = (Tile::new(32, 16, 8, 2), Class { head_dim: 512, ..CASE.class });
            Case { tile, class, packing: Packing::PerTree, own: 70, seed, warpgroups: true, ..CASE }
        })
        .collect();
    // Warps that share out a step meet twice.
    let split_steps: Vec<Case> = (0..3)
        .map(|seed| {
            let (tile, class) = (Tile::new(16, 64, 4, 2), Class { head_dim: 256, dtype: Dtype::Fp8F16 });
            Case { tile, class, packing: Packing::PerTree, own: 70, seed, warpgroups: true, ..CASE }
        })
        .collect();
    let transposed = transposed_cases();
    // A query in two parts, which warps that share rows leave for each other.
    let shared_query: Vec<Case> = (0..3)
        .map(|seed| {
            // In one buffer, with items that begin with their private KV phase.
            let (tile, class) = (Tile::new(64, 128, 8, 1), Class { head_dim: 128, dtype: Dtype::Fp8Bf16 });
            Case { tile, class, packing: Packing::PerTree, seed, warpgroups: true, ..CASE }
        })
        .collect();
    let devices: [(&[Case], &[&str]); 6] = [
        (&cases, &[QUICK]),
        (&beside_producers, &[WARPGROUPS, QUICK]),
        (&split, &[WARPGROUPS, QUICK]),
        (&split_steps, &[WARPGROUPS, QUICK, FP8_CONVERSION]),
        (&transposed, &[WARPGROUPS, QUICK, FP8_CONVERSION]),
        (&shared_query, &[WARPGROUPS, QUICK, FP8_CONVERSION]),
    ];
    let mut calls = Vec::new();
    for &(file, text) in sources() {
        let barriers = text.match_indices("barrier();").chain(text.match_indices("meet();"));
        calls.extend(barriers.map(|(place, found)| {
            // Whose barrier it is goes with it. The semicolon stays: it may be all that a condition is about.
            let begin =
                text[..place].trim_end_matches(|c: char| c.is_alphanumeric() || c == '_' || c == '.').len();
            Call::new("the barrier", (file, text), begin..place + found.len() - 1)
        }));
    }
    calls.sort_by_key(|call| (call.file, call.text.start));
    assert_each_is_noticed(&calls, &devices);
    assert!(calls.len() >= 18, "only {} of the sources' barriers were found", calls.len());
}
