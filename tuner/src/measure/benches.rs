//! The alike devices of a run: pieces of its work are given out to them, one after the other, so that none waits for another longer than a piece takes.
//!
//! Each device is driven by a thread of its own; what it measured is told on the caller's thread, which alone writes. A device that is lost leaves its
//! piece to the others. One device is driven by the caller itself, in the order in which the pieces are given.

use super::compile_ahead::{CompileAhead, CompileQueue, Need, Wanted, kernels};
use super::{Bench, BenchError, Preparation};
use crate::interrupt::Interrupt;
use crate::store::Resources;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tilewright_heuristics::{Prices, Tile, TileSetBuf};
use tilewright_kernel_templates::{Class, Limits};

/// How often a device that has nothing to do asks whether the user wants to stop.
const POLL: Duration = Duration::from_millis(50);
/// Parts by which the bandwidth, and the cost of a launch, of alike devices differ at most; short times are measured less exactly.
const APART: [f64; 2] = [0.03, 0.10];
/// Waits that are told ([`tracing::debug`]), at least.
const TOLD: Duration = Duration::from_millis(2);
/// Pieces that each device gets of what is compiled: the last ones even the shares out.
const SHARES: usize = 2;

/// The alike devices of a run, at least one.
pub struct Benches<'a> {
    benches: Vec<&'a mut dyn Bench>,
    lost: Vec<bool>,
    /// Time on the clock in which all waited for kernels.
    compiled: Duration,
    undivided: f64,
    ahead: Option<CompileAhead>,
    spent: Arc<Spent>,
}

/// What benches spent with pieces, in ns of one of them.
#[derive(Debug, Default)]
struct Spent {
    /// In all.
    worked: AtomicU64,
    /// Of it, waiting for kernels.
    waited: AtomicU64,
}

impl Spent {
    fn add(to: &AtomicU64, time: Duration) {
        to.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Adds a piece that began then and is over.
    fn work(&self, piece: &dyn fmt::Display, begin: Instant) {
        let took = begin.elapsed();
        Self::add(&self.worked, took);
        tracing::debug!("{piece}: took {:.3} s", took.as_secs_f64());
    }
}

/// What a piece of work waits for: its kernels, where they are compiled beside the measuring.
#[derive(Clone, Debug)]
pub struct Ready {
    queue: Option<CompileQueue>,
    limits: Limits,
    spent: Arc<Spent>,
    /// What benches had waited when the stage began, and which part of a bench's wait moves deadlines.
    before: u64,
    moving: f64,
    interrupt: Interrupt,
}

impl Ready {
    /// A deadline of the stage after what was waited for in it ([`Benches::moved`]).
    pub fn moved(&self, deadline: Instant) -> Instant {
        let waited = self.spent.waited.load(Relaxed).saturating_sub(self.before);
        deadline + Duration::from_nanos(waited).mul_f64(self.moving)
    }

    /// Waits until these kernels are compiled, or have failed, which their bench is told when it asks for them.
    pub fn wait(&self, wanted: &Preparation) {
        if let Some(queue) = &self.queue {
            let kernels = kernels(std::slice::from_ref(wanted), &[], &self.limits);
            let waited = queue.wait(&kernels, Need::Waiting, &self.interrupt);
            Spent::add(&self.spent.waited, waited);
            if waited >= TOLD {
                tracing::debug!("waited {:.3} s for kernels of {wanted}", waited.as_secs_f64());
            }
        }
    }
}

/// Kernels that are compiled beside the measuring.
#[derive(Clone, Debug)]
pub struct Awaited(Option<(CompileQueue, Vec<Wanted>)>);

impl Awaited {
    /// Whether all of them are compiled, or have failed.
    pub fn are_there(&self) -> bool {
        self.0.as_ref().is_none_or(|(queue, kernels)| !queue.works() || queue.has(kernels))
    }
}

/// What the caller hears of its pieces.
#[derive(Debug)]
pub enum Told<'p, P, R> {
    /// A device begins it.
    Begun(&'p P),
    /// What it has come to.
    Done(&'p P, R),
    /// Its device is lost, and another one does it.
    Lost(&'p P, BenchError),
    /// Nothing else has come to an end yet: what was told is to be kept now. It comes after the last piece in any case.
    NothingElse,
}

/// How giving out ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// Every piece is done.
    All,
    /// The user asked to stop.
    Interrupted,
    /// No device is left.
    Lost(BenchError),
}

impl Given {
    /// Whether every piece is done; `false` if the user asked to stop.
    ///
    /// # Errors
    /// No device is left.
    pub fn went_on(self) -> Result<bool, BenchError> {
        match self {
            Self::All => Ok(true),
            Self::Interrupted => Ok(false),
            Self::Lost(defect) => Err(defect),
        }
    }
}

/// In which order several devices take pieces.
pub enum Order<'a, P> {
    /// As they are given.
    AsGiven,
    /// Each stays with the pieces of a group, for which it has made something ready; then it takes up a group that no other is at.
    ByGroup(&'a (dyn Fn(&P) -> usize + Sync)),
}

/// What a device does with a piece; it is told how many devices there are.
pub type Work<'a, P, R> = &'a (dyn Fn(&mut dyn Bench, &P, usize) -> anyhow::Result<R> + Sync);

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
        Awaited(queue.map(|queue| (queue, kernels(wanted, &[], self.limits()))))
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

    /// Has the devices do all pieces, each of which is done once: those of a device that is lost are done by others. `tell` is called on this thread,
    /// as pieces begin and end.
    ///
    /// # Errors
    /// What `work` or `tell` says. No other piece is begun then.
    pub fn give_out<P: Sync + fmt::Display, R: Send>(
        &mut self,
        pieces: &[P],
        order: Order<'_, P>,
        interrupt: &Interrupt,
        work: Work<'_, P, R>,
        tell: impl FnMut(Told<'_, P, R>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Given> {
        let defect = self.first().defect();
        if self.living() <= 1 || pieces.len() <= 1 && defect.is_none() {
            self.give_one(pieces, interrupt, work, tell)
        } else {
            self.give_several(pieces, order, interrupt, work, tell)
        }
    }

    /// To the device that is left, on this thread.
    fn give_one<P: fmt::Display, R>(
        &mut self,
        pieces: &[P],
        interrupt: &Interrupt,
        work: Work<'_, P, R>,
        mut tell: impl FnMut(Told<'_, P, R>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Given> {
        let mut next = 0;
        while let Some(piece) = pieces.get(next) {
            if interrupt.requested() {
                return Ok(Given::Interrupted);
            }
            let (living, first) = (self.living(), self.lost.iter().position(|lost| !lost).unwrap_or(0));
            let bench = &mut *self.benches[first];
            // One that cannot be used any more is asked for nothing.
            if let Some(defect) = bench.defect() {
                if living <= 1 {
                    return Ok(Given::Lost(defect));
                }
                self.lost[first] = true;
                continue;
            }
            tell(Told::Begun(piece))?;
            let begin = Instant::now();
            let outcome = work(bench, piece, 1);
            self.spent.work(piece, begin);
            match bench.defect() {
                Some(defect) if living > 1 => {
                    self.lost[first] = true;
                    tell(Told::Lost(piece, defect))?;
                }
                Some(defect) => {
                    // What was measured before it was lost is kept.
                    if let Ok(outcome) = outcome {
                        tell(Told::Done(piece, outcome))?;
                        tell(Told::NothingElse)?;
                    }
                    return Ok(Given::Lost(defect));
                }
                None => {
                    tell(Told::Done(piece, outcome?))?;
                    tell(Told::NothingElse)?;
                    next += 1;
                }
            }
        }
        Ok(Given::All)
    }

    /// To all devices that are left, each by a thread.
    fn give_several<P: Sync + fmt::Display, R: Send>(
        &mut self,
        pieces: &[P],
        order: Order<'_, P>,
        interrupt: &Interrupt,
        work: Work<'_, P, R>,
        mut tell: impl FnMut(Told<'_, P, R>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Given> {
        let group = |piece: &P| match order {
            Order::AsGiven => 0,
            Order::ByGroup(group) => group(piece),
        };
        let queue = Queue::new(pieces.iter().map(group).collect(), self.living());
        let (mut failed, mut ended, mut telling) = (None, Given::All, Duration::ZERO);
        std::thread::scope(|scope| {
            let (sender, events) = channel();
            for (index, (bench, lost)) in self.benches.iter_mut().zip(&self.lost).enumerate() {
                if !lost {
                    let (queue, sender, spent) = (&queue, sender.clone(), &*self.spent);
                    let work = move |bench: &mut dyn Bench, piece: &P, devices: usize| {
                        let begin = Instant::now();
                        let outcome = work(bench, piece, devices);
                        spent.work(piece, begin);
                        outcome
                    };
                    let drive = move || {
                        drive(&mut **bench, index, queue, pieces, interrupt, &work, &sender);
                        tracing::debug!("nothing left to take");
                    };
                    let thread = std::thread::Builder::new().name(format!("bench {index}"));
                    thread.spawn_scoped(scope, drive).expect("a device has a thread");
                }
            }
            drop(sender);
            // Ends when every thread has.
            let mut next = events.recv().ok();
            while let Some(event) = next {
                let begin = Instant::now();
                let told = match event {
                    Event::Begun(piece) => tell(Told::Begun(&pieces[piece])),
                    Event::Done(piece, Ok(outcome)) => tell(Told::Done(&pieces[piece], outcome)),
                    Event::Done(_, Err(error)) => Err(error),
                    Event::Lost { device, piece, defect, last } => {
                        self.lost[device] = true;
                        match last {
                            None => tell(Told::Lost(&pieces[piece], defect)),
                            Some(outcome) => {
                                ended = Given::Lost(defect);
                                outcome.map_or(Ok(()), |outcome| tell(Told::Done(&pieces[piece], outcome)))
                            }
                        }
                    }
                };
                next = events.try_recv().ok();
                // What has ended meanwhile is kept as one file: written batch by batch, files take longer than several devices do.
                let kept = if next.is_none() { tell(Told::NothingElse) } else { Ok(()) };
                telling += begin.elapsed();
                if let Err(error) = told.and(kept) {
                    queue.stop();
                    failed.get_or_insert(error);
                }
                next = next.or_else(|| events.recv().ok());
            }
        });
        tracing::debug!(
            "{} pieces are done; keeping their rows took {:.3} s",
            pieces.len(),
            telling.as_secs_f64()
        );
        if let Some(error) = failed {
            return Err(error);
        }
        if ended == Given::All && queue.has_left() {
            ended = Given::Interrupted;
        }
        Ok(ended)
    }
}

/// What a device's thread says.
enum Event<R> {
    Begun(usize),
    Done(usize, anyhow::Result<R>),
    Lost {
        device: usize,
        piece: usize,
        defect: BenchError,
        /// What it had come to, where no device is left to do it.
        last: Option<anyhow::Result<R>>,
    },
}

/// Has a device do pieces as long as there are any, and it is there.
fn drive<P, R>(
    bench: &mut dyn Bench,
    device: usize,
    queue: &Queue,
    pieces: &[P],
    interrupt: &Interrupt,
    work: Work<'_, P, R>,
    events: &Sender<Event<R>>,
) {
    let _stop = StopOnPanic(queue);
    let mut group = None;
    while let Some(piece) = queue.take(group, interrupt) {
        group = Some(queue.groups[piece]);
        // The receiver is there until every thread has ended.
        let _ = events.send(Event::Begun(piece));
        let outcome = match bench.defect() {
            Some(defect) => Err(defect.into()),
            None => work(bench, &pieces[piece], queue.living()),
        };
        if let Some(defect) = bench.defect() {
            let last = queue.leave(piece).then_some(outcome);
            let _ = events.send(Event::Lost { device, piece, defect, last });
            return;
        }
        let failed = outcome.is_err();
        let _ = events.send(Event::Done(piece, outcome));
        queue.done(piece, failed);
    }
}

/// The pieces that are left.
struct Queue {
    /// The group of each piece.
    groups: Vec<usize>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// In the order in which they are taken.
    left: Vec<usize>,
    /// Those that devices are at.
    open: Vec<usize>,
    living: usize,
    stopped: bool,
}

impl Queue {
    fn new(groups: Vec<usize>, living: usize) -> Self {
        let left = (0..groups.len()).collect();
        let state = State { left, open: Vec::new(), living, stopped: false };
        Self { groups, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece for a device that was at this group; `None` when all are done, or no other is to be begun. As long as another device may leave
    /// its piece, it is waited for.
    fn take(&self, group: Option<usize>, interrupt: &Interrupt) -> Option<usize> {
        let mut state = self.state();
        loop {
            if state.stopped || interrupt.requested() {
                return None;
            }
            if let Some(at) = self.next(&state, group) {
                let piece = state.left.remove(at);
                state.open.push(piece);
                return Some(piece);
            }
            if state.open.is_empty() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, POLL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Where the next piece of a device lies among those that are left.
    fn next(&self, state: &State, group: Option<usize>) -> Option<usize> {
        let of = |group: usize| state.left.iter().position(|&piece| self.groups[piece] == group);
        if let Some(at) = group.and_then(of) {
            return Some(at);
        }
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for &piece in &state.left {
            *counts.entry(self.groups[piece]).or_default() += 1;
        }
        let taken = |group: usize| state.open.iter().any(|&piece| self.groups[piece] == group);
        // Of groups that no device is at, the first; else that with most left.
        let free = counts.keys().copied().find(|&group| !taken(group));
        let most = counts.iter().max_by_key(|(_, count)| **count).map(|(group, _)| *group);
        free.or(most).and_then(of)
    }

    fn done(&self, piece: usize, failed: bool) {
        let mut state = self.state();
        state.open.retain(|&open| open != piece);
        state.stopped |= failed;
        drop(state);
        self.changed.notify_all();
    }

    /// A device is lost, and its piece is for another; whether there is none.
    fn leave(&self, piece: usize) -> bool {
        let mut state = self.state();
        state.open.retain(|&open| open != piece);
        state.living -= 1;
        let none = state.living == 0;
        state.left.insert(0, piece);
        state.stopped |= none;
        drop(state);
        self.changed.notify_all();
        none
    }

    fn living(&self) -> usize {
        self.state().living
    }

    fn stop(&self) {
        self.state().stopped = true;
        self.changed.notify_all();
    }

    fn has_left(&self) -> bool {
        !self.state().left.is_empty()
    }
}

/// Lets the other devices end when a thread panics, so that its panic is heard.
struct StopOnPanic<'a>(&'a Queue);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
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
