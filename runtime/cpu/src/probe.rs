//! What the processor gives at most, measured: the limit that kernels are compared with, and the prices that plans go by.

mod prices;

pub use prices::prices;

use pulp::{Arch, Simd, WithSimd};
use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

/// Repetitions of each team of threads; the best one counts, since a limit is what nothing can be faster than.
const REPEATS: usize = 5;
/// Teams, one after another: the system puts some on fewer cores than they have threads, and leaves them there for as long as a probe may take.
const TEAMS: usize = 4;

/// Bytes per second that `threads` threads read together from `bytes` of memory, each its own part.
///
/// For the bandwidth of memory, `bytes` should be several times the last-level cache; for the cache's, half of it.
pub fn read_bandwidth(threads: u32, bytes: usize) -> f64 {
    let threads = threads.max(1) as usize;
    let elements = (bytes / size_of::<f32>()).max(threads);
    // Written by the threads that read it, so that it lies near them.
    let part = elements.div_ceil(threads);
    let seconds = together(
        threads,
        || vec![1.0f32; part],
        |part| {
            let mut sum = 0.0;
            Arch::new().dispatch(Sum { elements: part, sum: &mut sum });
            sum
        },
    );
    (part * threads * size_of::<f32>()) as f64 / seconds
}

/// Bytes per second that `threads` threads together write and read back, each its own part of `bytes`: a byte counts once. For what stays
/// in the last-level cache, `bytes` should be half of it.
pub fn exchange_bandwidth(threads: u32, bytes: usize) -> f64 {
    let threads = threads.max(1) as usize;
    let part = (bytes / size_of::<f32>()).max(threads).div_ceil(threads);
    let seconds = together(
        threads,
        || RefCell::new(vec![1.0f32; part]),
        |part| {
            let mut sum = 0.0;
            part.borrow_mut().fill(black_box(1.0));
            Arch::new().dispatch(Sum { elements: black_box(&part.borrow()), sum: &mut sum });
            sum
        },
    );
    (part * threads * size_of::<f32>()) as f64 / seconds
}

/// Floating-point operations per second (a multiply-add is two) of `threads` threads, from registers.
pub fn fma_flops(threads: u32) -> f64 {
    const ROUNDS: usize = 1 << 20;
    let threads = threads.max(1) as usize;
    let mut lanes = 0;
    let seconds = together(
        threads,
        || (),
        |()| {
            let mut sum = 0.0;
            Arch::new().dispatch(Multiply { rounds: ROUNDS, sum: &mut sum });
            sum
        },
    );
    Arch::new().dispatch(Lanes(&mut lanes));
    (2 * ROUNDS * CHAINS * lanes * threads) as f64 / seconds
}

/// Seconds until all of `threads` threads have done `work` on what each of them made before; the best of several times.
fn together<T>(threads: usize, make: impl Fn() -> T + Sync, work: impl Fn(&T) -> f32 + Sync) -> f64 {
    let teams = (0..TEAMS).map(|_| best_of_team(threads, &make, &work));
    teams.fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE)
}

/// The same of threads that are started for it.
fn best_of_team<T>(
    threads: usize,
    make: &(impl Fn() -> T + Sync),
    work: &(impl Fn(&T) -> f32 + Sync),
) -> f64 {
    let barrier = std::sync::Barrier::new(threads);
    let seconds: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let measure = || {
            let made = make();
            let mut times = Vec::with_capacity(REPEATS);
            for _ in 0..=REPEATS {
                barrier.wait();
                let begin = Instant::now();
                black_box(work(black_box(&made)));
                times.push((begin, Instant::now()));
            }
            times
        };
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(measure)).collect();
        handles.into_iter().map(|handle| handle.join().expect("the probe does not panic")).collect()
    });
    // The first time warms up. Each time lasts from the first thread's begin to the last one's end.
    let spans = (1..=REPEATS).map(|repeat| {
        let begin = seconds.iter().map(|times| times[repeat].0).min();
        let end = seconds.iter().map(|times| times[repeat].1).max();
        end.zip(begin).map_or(f64::INFINITY, |(end, begin)| (end - begin).as_secs_f64())
    });
    spans.fold(f64::INFINITY, f64::min)
}

struct Sum<'a> {
    elements: &'a [f32],
    sum: &'a mut f32,
}

impl WithSimd for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut sums = [simd.splat_f32s(0.0); 8];
        let (chunks, rest) = S::as_simd_f32s(self.elements).0.as_chunks::<8>();
        for chunk in chunks {
            for (sum, vector) in sums.iter_mut().zip(chunk) {
                *sum = simd.add_f32s(*sum, *vector);
            }
        }
        for vector in rest {
            sums[0] = simd.add_f32s(sums[0], *vector);
        }
        *self.sum = sums.iter().map(|sum| simd.reduce_sum_f32s(*sum)).sum();
    }
}

/// Independent multiply-adds in flight: more than latency times issue width of today's cores.
const CHAINS: usize = 12;

struct Multiply<'a> {
    rounds: usize,
    sum: &'a mut f32,
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut sums = [simd.splat_f32s(black_box(1.0)); CHAINS];
        let (a, b) = (simd.splat_f32s(black_box(0.999)), simd.splat_f32s(black_box(0.001)));
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(*sum, a, b);
            }
        }
        *self.sum = sums.iter().map(|sum| simd.reduce_sum_f32s(*sum)).sum();
    }
}

struct Lanes<'a>(&'a mut usize);

impl WithSimd for Lanes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        *self.0 = size_of::<S::f32s>() / size_of::<f32>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_a_computer() {
        let bandwidth = read_bandwidth(1, 64 << 20);
        assert!((1e8..1e13).contains(&bandwidth), "{bandwidth:e} bytes/s");
        let flops = fma_flops(1);
        assert!((1e8..1e13).contains(&flops), "{flops:e} FLOP/s");
    }
}
