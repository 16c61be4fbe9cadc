//! The alike devices of a run, and the kernels that are compiled for them: what is asked of all of them, and what is known of one and true of each.

use super::compile_ahead::{CompileAhead, CompileQueue, Need, kernels};
use super::give_out::{Given, Order, Told};
use super::ready::{Awaited, Ready, Spent};
use super::{Bench, Preparation};
use crate::interrupt::Interrupt;
use crate::store::Resources;
use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tilewright_heuristics::{Prices, Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Limits};

/// Parts by which the bandwidth, and the cost of a launch, of alike devices differ at most; short times are measured less exactly.
const APART: [f64; 2] = [0.03, 0.10];
/// Pieces that each device gets of what is compiled: the last ones even the shares out.
const SHARES: usize = 2;

/// The alike devices of a run, at least one.
pub struct Benches<'a> {
    pub(super) benches: Vec<&'a mut dyn Bench>,
    pub(super) lost: Vec<bool>,
    /// Time on the clock in which all waited for kernels.
    compiled: Duration,
    undivided: f64,
    ahead: Option<CompileAhead>,
    pub(super) spent: Arc<Spent>,
}

impl<'a> Benches<'a> {
    /// One device.
    pub fn one(bench: &'a mut dyn Bench) -> Self {
        Self::new(vec![bench])
    }

    fn new(benches: Vec<&'a mut dyn Bench>) -> Self {
        Self {
            lost: vec![false; benches.len()],
            benches,
            compiled: Duration::ZERO,
            undivided: 0.0,
            ahead: None,
            spent: Arc::default(),
        }
    }

    /// Alike devices, and in what they differ, in sentences. All plan by the prices of one of them: those of the median bandwidth.
    ///
    /// # Panics
    /// There is none.
    pub fn of(benches: Vec<&'a mut dyn Bench>) -> (Self, Vec<String>) {
        assert!(!benches.is_empty(), "a run has a device");
        let mut benches = Self::new(benches);
        let differing = benches.agree();
        (benches, differing)
    }

    /// Hands the same prices to all, and says which devices differ from the one that measured them.
    fn agree(&mut self) -> Vec<String> {
        if self.benches.len() == 1 {
            return Vec::new();
        }
        let measured: Vec<(Prices, f64)> =
            self.benches.iter().map(|bench| (bench.prices(), bench.launch_us())).collect();
        let mut by_bandwidth: Vec<usize> = (0..measured.len()).collect();
        by_bandwidth.sort_by_key(|&i| measured[i].0.hbm_byte);
        let model = by_bandwidth[(measured.len() - 1) / 2];
        let (prices, launch_us) = measured[model];
        self.benches.iter_mut().for_each(|bench| bench.adopt_prices(prices));
        let mut said = Vec::new();
        for (i, (own, own_launch_us)) in measured.iter().enumerate() {
            let both = [
                ("reading a byte", own.hbm_byte as f64, prices.hbm_byte as f64),
                ("a launch", *own_launch_us, launch_us),
            ];
            for ((what, own, usual), most) in both.into_iter().zip(APART) {
                let apart = own / usual.max(f64::MIN_POSITIVE) - 1.0;
                if apart.abs() > most {
                    said.push(format!(
                        "Of the run's {} devices, the one with number {} takes {:+.1} % for {what}, compared with number {}: times of batches \
                         that it measured are as far off. Tune on the others, or when it is idle and cool.",
                        measured.len(),
                        i + 1,
                        apart * 100.0,
                        model + 1
                    ));
                }
            }
        }
        said
    }

    /// A device that is there: all of them have the same limits, prices and launch modes.
    pub fn first(&self) -> &dyn Bench {
        let first = self.lost.iter().position(|lost| !lost).unwrap_or(0);
        &*self.benches[first]
    }

    /// The same, to be measured on.
    pub fn first_mut(&mut self) -> &mut dyn Bench {
        let first = self.lost.iter().position(|lost| !lost).unwrap_or(0);
        &mut *self.benches[first]
    }

    /// What the feasibility rules see of the devices.
    pub fn limits(&self) -> &Limits {
        self.first().limits()
    }

    /// What a variant needs, as far as one of them has compiled it.
    pub fn resources(&self, tile: &Tile, class: &Class) -> Resources {
        let living = self.benches.iter().zip(&self.lost).filter(|(_, lost)| !**lost);
        let mut known = living.map(|(bench, _)| bench.resources(tile, class));
        known.find(|resources| *resources != Resources::default()).unwrap_or_default()
    }

    /// All devices that were there when the run began.
    pub fn all(&self) -> impl Iterator<Item = &dyn Bench> {
        self.benches.iter().map(|bench| &**bench as &dyn Bench)
    }

    /// How many devices are left.
    pub fn living(&self) -> usize {
        self.lost.iter().filter(|lost| !**lost).count()
    }

    /// Has kernels compiled beside the measuring from now on.
    pub fn compile_ahead(&mut self, ahead: CompileAhead) {
        self.ahead = Some(ahead);
    }

    /// Whether kernels are compiled beside the measuring.
    pub fn compiles_ahead(&self) -> bool {
        self.queue().is_some()
    }

    /// What became of the kernels that were compiled beside the measuring, in a sentence.
    pub fn compiled_ahead(&self) -> Option<String> {
        self.ahead.as_ref().map(CompileAhead::to_string)
    }

    /// What a kernel takes on the clock while compilers beside the measuring are busy; `None` without any.
    pub fn compile_time(&self) -> Option<Duration> {
        self.ahead.as_ref().and_then(CompileAhead::time_of_one)
    }

    /// The queue, if it compiles.
    fn queue(&self) -> Option<&CompileQueue> {
        self.ahead.as_ref().map(CompileAhead::queue).filter(|queue| queue.works())
    }

    /// Time on the clock that was spent with waiting for kernels so far, in the mean of the benches.
    pub fn compiled(&self) -> Duration {
        let waited = Duration::from_nanos(self.spent.waited.load(Relaxed));
        self.compiled + waited / self.living().max(1) as u32
    }

    /// Time that the benches worked so far, in the mean of them.
    pub fn worked(&self) -> Duration {
        let [worked, waited] = [&self.spent.worked, &self.spent.waited].map(|spent| spent.load(Relaxed));
        Duration::from_nanos(worked.saturating_sub(waited)) / self.living().max(1) as u32
    }

    /// Has deadlines move by the part of compiling that several devices do no faster than one ([`Benches::moved`]).
    pub fn divide_time(&mut self) {
        self.undivided = 1.0 - 1.0 / self.living().max(1) as f64;
    }

    /// A deadline after the compiling since `compiled`. Where the run's time is that of one device, divided by the devices, time to measure is
    /// divided, and time to compile is not: all cores compile in any case.
    pub fn moved(&self, deadline: Instant, compiled: Duration) -> Instant {
        deadline + self.compiled().saturating_sub(compiled).mul_f64(self.undivided)
    }

    /// Has kernels that later stages need compiled when nothing else is, in the order in which they are asked for.
    pub fn ask(&self, wanted: &[Preparation], sets: &[(TileSetBuf, Class)]) {
        if let Some(queue) = self.queue() {
            queue.ask(&kernels(wanted, sets, self.limits()), Need::Later);
        }
    }

    /// Of these tiles one of so many whose kernels are not compiled yet: those that take longest.
    pub fn compiled_last(&self, wanted: &Preparation, one_of: usize) -> Vec<Tile> {
        let Some(queue) = self.queue().filter(|queue| queue.works()) else { return Vec::new() };
        let missing = |&tile: &Tile| {
            let kernels = kernels(std::slice::from_ref(&wanted.only(tile)), &[], self.limits());
            let longest =
                kernels.iter().map(|wanted| wanted.length).filter(|&length| length < u32::MAX).max();
            (!queue.has(&kernels)).then_some((longest, tile))
        };
        let mut missing: Vec<(Option<u32>, Tile)> = wanted.tiles.iter().filter_map(missing).collect();
        missing.sort_unstable_by_key(|&of_tile| Reverse(of_tile));
        missing.truncate(missing.len() / one_of);
        missing.into_iter().map(|(_, tile)| tile).collect()
    }

    /// Says what comes to be verified ([`Bench::expect`]).
    pub fn expect(&mut self, wanted: &[Preparation]) {
        let living = self.benches.iter_mut().zip(&self.lost).filter(|(_, lost)| !**lost);
        living.for_each(|(bench, _)| bench.expect(wanted));
    }

    /// Nothing more is measured ([`Bench::end`]).
    pub fn end(&mut self) {
        self.benches.iter_mut().for_each(|bench| bench.end());
    }

    /// The kernels of all of these, of which can be asked while devices measure whether nobody would wait for them.
    pub fn awaited(&self, wanted: &[Preparation]) -> Awaited {
        let queue = self.queue().cloned();
        Awaited::of(queue.map(|queue| (queue, kernels(wanted, &[], self.limits()))))
    }

    /// Drops what was asked for of later stages, and is not compiled.
    pub fn forget_asked(&self) {
        if let Some(queue) = self.queue() {
            queue.forget_later();
        }
    }

    /// Has the kernels of a stage compiled, each of these in its turn; pieces of the stage wait for their own. Without compilers beside the measuring all are
    /// made ready here.
    pub fn getting_ready(
        &mut self,
        wanted: &[Preparation],
        sets: &[(TileSetBuf, Class)],
        interrupt: &Interrupt,
    ) -> Ready {
        match self.queue() {
            Some(queue) => {
                // Kernels of several tiles take longest: begun last, they would be waited for alone.
                queue.ask(&kernels(&[], sets, self.limits()), Need::Stage);
                for wanted in wanted {
                    queue.ask(&kernels(std::slice::from_ref(wanted), &[], self.limits()), Need::Stage);
                }
            }
            None => self.prepare(wanted, sets, interrupt),
        }
        Ready {
            queue: self.queue().cloned(),
            limits: self.limits().clone(),
            spent: Arc::clone(&self.spent),
            before: self.spent.waited.load(Relaxed),
            moving: self.undivided / self.living().max(1) as f64,
            interrupt: interrupt.clone(),
        }
    }

    /// Makes tiles, and sets of several tiles that share a kernel, ready on all devices, where that is faster than one by one. What fails shows when
    /// they are verified or sampled.
    ///
    /// Several devices compile a part each, and then read what the others compiled from the cache. With compilers beside the measuring these are waited for.
    pub fn prepare(&mut self, wanted: &[Preparation], sets: &[(TileSetBuf, Class)], interrupt: &Interrupt) {
        let begin = Instant::now();
        if let Some(queue) = self.queue() {
            queue.wait(&kernels(wanted, sets, self.limits()), Need::Waiting, interrupt);
        } else if self.living() <= 1 {
            let bench = self.first_mut();
            if !wanted.is_empty() {
                bench.prepare(wanted);
            }
            if !sets.is_empty() {
                bench.prepare_sets(sets);
            }
        } else if !wanted.is_empty() || !sets.is_empty() {
            let parts = parts(wanted, sets, SHARES * self.living());
            let prepare = |bench: &mut dyn Bench, part: &Part, _: usize| {
                part.prepare(bench);
                Ok(())
            };
            let nothing = |_: Told<'_, Part, ()>| Ok(());
            // Whoever is lost here is found again where it has something to say.
            let given = self.give_out(&parts, Order::AsGiven, interrupt, &prepare, nothing);
            if matches!(given, Ok(Given::All)) {
                let all = Part { wanted: wanted.to_vec(), sets: sets.to_vec() };
                std::thread::scope(|scope| {
                    let living = self.benches.iter_mut().zip(&self.lost).filter(|(_, lost)| !**lost);
                    for (bench, _) in living {
                        let all = &all;
                        scope.spawn(move || all.prepare(&mut **bench));
                    }
                });
            }
        }
        self.compiled += begin.elapsed();
    }
}

/// A part of what is made ready.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    wanted: Vec<Preparation>,
    sets: Vec<(TileSetBuf, Class)>,
}

impl Part {
    fn prepare(&self, bench: &mut dyn Bench) {
        if !self.sets.is_empty() {
            bench.prepare_sets(&self.sets);
        }
        if !self.wanted.is_empty() {
            bench.prepare(&self.wanted);
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sets of tiles", self.sets.len())?;
        self.wanted.iter().try_for_each(|wanted| write!(f, ", {wanted}"))
    }
}

/// Divides what is made ready into about `count` parts of as many tiles. The sets come first: a kernel of several tiles takes as long to compile as all of
/// them, on one core, while the tiles alone keep the others at work.
fn parts(wanted: &[Preparation], sets: &[(TileSetBuf, Class)], count: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    if !sets.is_empty() {
        parts.push(Part { wanted: Vec::new(), sets: sets.to_vec() });
    }
    let tiles: usize = wanted.iter().map(|wanted| wanted.tiles.len()).sum();
    let each = tiles.div_ceil(count.max(1)).max(1);
    let (mut part, mut room) = (Vec::new(), each);
    for Preparation { tiles, class, coverage } in wanted {
        let mut tiles = tiles.as_slice();
        while !tiles.is_empty() {
            let (of_part, rest) = tiles.split_at(room.min(tiles.len()));
            part.push(Preparation { tiles: of_part.to_vec(), class: *class, coverage: *coverage });
            room -= of_part.len();
            tiles = rest;
            if room == 0 {
                parts.push(Part { wanted: std::mem::take(&mut part), sets: Vec::new() });
                room = each;
            }
        }
    }
    if !part.is_empty() {
        parts.push(Part { wanted: part, sets: Vec::new() });
    }
    parts
}

#[cfg(test)]
#[path = "benches_tests.rs"]
mod tests;
