//! Pieces of a run's work, given out to its devices one after the other.
//!
//! Each device is driven by a thread of its own; what it measured is told on the caller's thread, which alone writes. A device that is lost leaves its
//! piece to the others. One device is driven by the caller itself, in the order in which the pieces are given.

use super::{Bench, BenchError, Benches};
use crate::interrupt::Interrupt;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a device that has nothing to do asks whether the user wants to stop.
const POLL: Duration = Duration::from_millis(50);

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

impl Benches<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_stay_with_a_group_and_share_the_last() {
        let queue = Queue::new(vec![0, 0, 0, 1, 1, 2], 2);
        let go_on = Interrupt::default();
        let take = |group| queue.take(group, &go_on).unwrap();
        assert_eq!((take(None), take(None)), (0, 3), "each at a group of its own");
        assert_eq!((take(Some(1)), take(Some(0))), (4, 1));
        queue.done(3, false);
        queue.done(4, false);
        assert_eq!(take(Some(1)), 5, "one that nobody is at");
        queue.done(5, false);
        assert_eq!(take(Some(2)), 2, "then what is left of another's");
    }
}
