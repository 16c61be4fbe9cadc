//! Kernels compiled beside the measuring: one queue of all that a run is known to need, in the order in which it is needed. A stage waits for its own
//! kernels, and a piece of it for those of its tile.
//!
//! Cubins go to the cache, where the benches find them; a bench compiles what is not there. So a kernel that does not compile, or that ends its compiler, is
//! met again by the bench that asks for it, which records what became of it.

use super::Preparation;
use super::cuda_bench::kernels_of;
use crate::interrupt::Interrupt;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tilewright_heuristics::TileSetBuf;
use tilewright_kernel_templates::cuda::Kernel;
use tilewright_kernel_templates::{Class, Limits};

/// How often one who waits asks whether the user wants to stop.
const POLL: Duration = Duration::from_millis(50);
/// Compilers that a thread loses one after the other before it gives up.
const MAX_LOST: usize = 3;

/// A kernel to compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The kernel.
    pub kernel: Kernel,
    /// Grows with the time that it takes: of a stage's kernels the longest are begun first, so that none is left alone at its end.
    pub length: u32,
}

/// What became of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compiled {
    /// It is in the cache.
    Ready,
    /// It does not compile.
    Failed(String),
    /// The compiler was lost with it, or could not be started.
    Lost(String),
}

/// Compiles kernels, one after the other.
pub trait Compile: Send {
    /// Compiles a kernel into the cache.
    fn compile(&mut self, kernel: &Kernel) -> Compiled;
}

/// When a kernel is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// A bench waits for it.
    Waiting,
    /// In the stage in progress.
    Stage,
    /// In a later stage.
    Later,
}

/// The order of the queue: by need, then as asked for, then by length.
type Order = (Need, u64, Reverse<u32>);

#[derive(Debug)]
enum Job {
    Queued(Order, Kernel),
    Compiling,
    Done,
}

#[derive(Debug)]
struct State {
    /// By the kernel's name, which tells all that is compiled in.
    jobs: BTreeMap<String, Job>,
    asked: u64,
    /// Threads that still compile.
    compilers: usize,
    stopped: bool,
    compiled: usize,
    failed: usize,
    busy: Duration,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds kernels, or has those that wait come sooner.
    fn add(&mut self, wanted: &[Wanted], need: Need) {
        self.asked += 1;
        for Wanted { kernel, length } in wanted {
            let order = (need, self.asked, Reverse(*length));
            match self.jobs.get_mut(&kernel.name) {
                Some(Job::Queued(known, _)) => *known = order.min(*known),
                Some(Job::Compiling | Job::Done) => {}
                None => drop(self.jobs.insert(kernel.name.clone(), Job::Queued(order, kernel.clone()))),
            }
        }
    }

    fn next(&mut self) -> Option<Kernel> {
        let queued = self.jobs.values_mut().filter_map(|job| match job {
            Job::Queued(order, _) => Some((*order, job)),
            Job::Compiling | Job::Done => None,
        });
        let (_, job) = queued.min_by_key(|(order, _)| *order)?;
        match std::mem::replace(job, Job::Compiling) {
            Job::Queued(_, kernel) => Some(kernel),
            Job::Compiling | Job::Done => None,
        }
    }
}

/// The kernels of what is wanted; a processor has none.
pub(super) fn kernels(wanted: &[Preparation], sets: &[(TileSetBuf, Class)], limits: &Limits) -> Vec<Wanted> {
    match limits {
        Limits::Cuda(limits) => kernels_of(wanted, sets, limits),
        Limits::Cpu(_) => Vec::new(),
    }
}

/// The queue, and the threads that compile. These end with it, after the kernels that they are at.
#[derive(Debug)]
pub struct CompileAhead {
    queue: CompileQueue,
    threads: usize,
    begin: Instant,
}

impl CompileAhead {
    /// A thread for each of these compilers.
    pub fn start(compilers: Vec<Box<dyn Compile>>) -> Self {
        let state = State {
            jobs: BTreeMap::new(),
            asked: 0,
            compilers: 0,
            stopped: false,
            compiled: 0,
            failed: 0,
            busy: Duration::ZERO,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let mut ahead = Self { queue: CompileQueue(shared), threads: 0, begin: Instant::now() };
        ahead.add(compilers);
        ahead
    }

    /// A thread more for each of these compilers.
    pub fn add(&mut self, compilers: Vec<Box<dyn Compile>>) {
        self.threads += compilers.len();
        self.queue.0.state().compilers += compilers.len();
        for mut compiler in compilers {
            let shared = Arc::clone(&self.queue.0);
            let compile = move || {
                let mut at = At { shared: &shared, kernel: None };
                drive(compiler.as_mut(), &mut at);
            };
            let thread = std::thread::Builder::new().name("compiler".to_owned());
            drop(thread.spawn(compile).expect("a compiler has a thread"));
        }
    }

    /// What a kernel takes on the clock while all compile, by those that are compiled; `None` without any.
    pub fn time_of_one(&self) -> Option<Duration> {
        let State { compiled, busy, .. } = *self.queue.0.state();
        (compiled > 0).then(|| busy.div_f64((compiled * self.threads.max(1)) as f64))
    }

    /// Asks for what is needed first on devices with these limits, before they are open.
    pub fn ask(&self, wanted: &[Preparation], limits: &Limits) {
        wanted.iter().for_each(|wanted| {
            self.queue.ask(&kernels(std::slice::from_ref(wanted), &[], limits), Need::Later)
        });
    }

    /// Asks for kernels that opening a device needs.
    pub fn ask_to_open(&self, kernels: Vec<Kernel>) {
        let wanted: Vec<Wanted> = kernels.into_iter().map(|kernel| Wanted { kernel, length: 0 }).collect();
        self.queue.ask(&wanted, Need::Later);
    }

    /// The queue, for those who ask and wait.
    pub fn queue(&self) -> &CompileQueue {
        &self.queue
    }
}

impl Drop for CompileAhead {
    fn drop(&mut self) {
        self.queue.0.state().stopped = true;
        self.queue.0.changed.notify_all();
    }
}

impl fmt::Display for CompileAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { compiled, failed, busy, .. } = *self.queue.0.state();
        let whole = self.begin.elapsed().as_secs_f64() * self.threads as f64;
        write!(
            f,
            "{compiled} kernels compiled beside the measuring in {:.1} s of {} compilers, which were busy {:.0} % of the time; {failed} of them failed",
            busy.as_secs_f64(),
            self.threads,
            100.0 * busy.as_secs_f64() / whole.max(f64::MIN_POSITIVE)
        )
    }
}

/// What is to be compiled.
#[derive(Clone, Debug)]
pub struct CompileQueue(Arc<Shared>);

impl CompileQueue {
    /// Whether anything compiles. If nothing does, nobody waits, and the benches compile for themselves.
    pub fn works(&self) -> bool {
        self.0.state().compilers > 0
    }

    /// Asks for kernels. Of those asked for at once the longest come first.
    pub fn ask(&self, wanted: &[Wanted], need: Need) {
        if !wanted.is_empty() {
            self.0.state().add(wanted, need);
            self.0.changed.notify_all();
        }
    }

    /// Drops what no stage in progress has asked for.
    pub fn forget_later(&self) {
        let later = |job: &Job| matches!(job, Job::Queued((Need::Later, ..), _));
        self.0.state().jobs.retain(|_, job| !later(job));
    }

    /// Whether all of these kernels are compiled, or have failed.
    pub fn has(&self, wanted: &[Wanted]) -> bool {
        let state = self.0.state();
        wanted.iter().all(|wanted| matches!(state.jobs.get(&wanted.kernel.name), Some(Job::Done)))
    }

    /// Waits until these kernels are compiled, or have failed; how long.
    pub fn wait(&self, wanted: &[Wanted], need: Need, interrupt: &Interrupt) -> Duration {
        let begin = Instant::now();
        let mut state = self.0.state();
        let open = |state: &State| {
            let open = |wanted: &Wanted| !matches!(state.jobs.get(&wanted.kernel.name), Some(Job::Done));
            wanted.iter().any(open)
        };
        if !open(&state) {
            return Duration::ZERO;
        }
        state.add(wanted, need);
        self.0.changed.notify_all();
        while open(&state) && state.compilers > 0 && !interrupt.requested() {
            state = self.0.changed.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        begin.elapsed()
    }
}

/// Has a compiler work as long as there is something to do, and it can.
fn drive(compiler: &mut dyn Compile, at: &mut At<'_>) {
    let (mut lost, shared) = (0, at.shared);
    while lost < MAX_LOST {
        let mut state = shared.state();
        let kernel = loop {
            if state.stopped {
                return;
            }
            match state.next() {
                Some(kernel) => break kernel,
                None => state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        at.kernel = Some(kernel.name.clone());
        let begin = Instant::now();
        let outcome = compiler.compile(&kernel);
        lost = if matches!(outcome, Compiled::Lost(_)) { lost + 1 } else { 0 };
        tracing::debug!("{}: compiled in {:.3} s", kernel.name, begin.elapsed().as_secs_f64());
        let mut state = shared.state();
        state.busy += begin.elapsed();
        state.compiled += 1;
        if let Compiled::Failed(message) | Compiled::Lost(message) = outcome {
            state.failed += 1;
            tracing::debug!("{}: left to the bench that needs it: {message}", kernel.name);
        }
        drop(state);
        at.done();
    }
    tracing::warn!("a compiler is given up, as {MAX_LOST} processes ended one after the other");
}

/// The kernel that a thread is at: nobody waits for it longer than for the thread, however that ends.
struct At<'a> {
    shared: &'a Shared,
    kernel: Option<String>,
}

impl At<'_> {
    fn done(&mut self) {
        if let Some(kernel) = self.kernel.take() {
            self.shared.state().jobs.insert(kernel, Job::Done);
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for At<'_> {
    fn drop(&mut self) {
        self.done();
        self.shared.state().compilers -= 1;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
#[path = "compile_ahead_tests.rs"]
mod tests;
