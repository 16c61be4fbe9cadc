//! How long a run's trials and verification take: known before they begin, as a budget that they would spend alone is refused.

use super::first_look::Look;
use super::timed::Timed;
use super::{Bench, Benches, Coverage, Preparation};
use crate::interrupt::Interrupt;
use std::time::{Duration, Instant};
use tilewright_heuristics::{Backend, Tile};
use tilewright_kernel_templates::{Class, Space};

/// Tiles that [`super::verify_space`] has of a class, about: those that a screening leaves, and those that are known; and of a class that is not timed.
const MOST_VERIFIED: usize = 18;
const KNOWN: usize = 8;

/// Sets of options that [`Coverage::options`] has beside the plain one, each kernels of its own.
const OPTION_SETS: f64 = 2.0;

/// Tiles of the sample that are checked against f64, beside the first.
const CHECKED: usize = 5;

/// How long it would take to try all tiles of these classes, and to verify the few that are left ([`super::verify_space`]), within a factor of two or so,
/// by what some tiles of the most timed class do. It is the time of one device.
pub fn time_to_verify(
    benches: &mut Benches<'_>,
    space: &Space,
    tried: &[Class],
    timed: &Timed,
    interrupt: &Interrupt,
) -> Duration {
    let limits = benches.limits().clone();
    let backend = limits.backend();
    let classes = timed.to_verify(backend);
    let Some(usual) = timed.first(backend).first().copied() else { return Duration::ZERO };
    // Of those that are tried first, two for each thread that compiles a GPU's; none is compiled a second time.
    let of_usual = space.feasible(&usual, &limits);
    let of_usual = Look::AT[0].first(&of_usual);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let most = match backend {
        Backend::Cpu => 8,
        Backend::Cuda => (2 * threads).max(8),
    };
    let stride = of_usual.len().div_ceil(most).max(1);
    let sample: Vec<Tile> = of_usual.iter().copied().step_by(stride).collect();
    let Some((first, others)) = sample.split_first() else { return Duration::ZERO };
    let others = &others[..others.len().min(CHECKED)];
    let checks = &sample[..sample.len().min(1 + CHECKED)];
    // What fails is told when the space is verified. Where kernels are compiled beside the measuring, no others are waited for.
    let begin = Instant::now();
    let tiles = if benches.compiles_ahead() { checks.to_vec() } else { sample.clone() };
    let count = tiles.len() as f64;
    benches.prepare(&[Preparation { tiles, class: usual, coverage: Coverage::PLAIN }], &[], interrupt);
    let compiled = benches.compile_time().unwrap_or_else(|| begin.elapsed().div_f64(count)).as_secs_f64();
    let bench = benches.first_mut();
    let took = |bench: &mut dyn Bench, tiles: &[Tile]| {
        let begin = Instant::now();
        tiles.iter().for_each(|tile| drop(bench.verify(tile, &usual, Coverage::PLAIN)));
        begin.elapsed().as_secs_f64()
    };
    // The first one also draws the class's batches and computes their reference.
    let drawn = took(bench, std::slice::from_ref(first));
    let checked = took(bench, others) / others.len().max(1) as f64;
    let each = compiled + checked;
    let feasible = |class: &Class| space.feasible(class, &limits);
    let look = |(index, class): (usize, &Class)| Look::AT[index.min(1)].tried(&feasible(class));
    let tried: usize = tried.iter().enumerate().map(look).sum();
    let trial = if backend == Backend::Cpu { each } else { compiled };
    let of_class = |class: &Class| {
        let most = if timed.classes.contains_key(class) { MOST_VERIFIED } else { KNOWN };
        drawn + each * feasible(class).len().min(most) as f64
    };
    let with_options = if timed.options_later(&usual, backend) { KNOWN } else { MOST_VERIFIED };
    let verified = classes.iter().map(of_class).sum::<f64>() + OPTION_SETS * each * with_options as f64;
    Duration::from_secs_f64(trial * tried as f64 + verified)
}
