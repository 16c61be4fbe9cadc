//! Batches that can be raced while other work waits for its kernels: the devices have something to do as long as there are any.

use crate::measure::{Candidates, Session, Verified, measure_candidates_while};
use crate::store::Level;
use crate::workloads::Workload;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tilewright_kernel_templates::Class;

/// One of so many batches that are only judged is raced while a selector is fitted: two GPUs race them for as long as that takes.
const FOR_THE_FIT: usize = 3;

/// Batches of classes whose tiles may be raced, and what was raced of them.
#[derive(Debug)]
pub(super) struct Reserve {
    /// In the order in which they are raced.
    left: Vec<Workload>,
    raced: BTreeSet<String>,
    /// Time on the clock, all of it and so far.
    time: Duration,
    spent: Duration,
    /// Work of all batches of the run, and so far.
    whole: f64,
    done: f64,
}

impl Reserve {
    /// An empty one of a run whose batches are worth this work, and may take this time.
    pub(super) fn new(whole: f64, time: Duration) -> Self {
        Self { left: Vec::new(), raced: BTreeSet::new(), time, spent: Duration::ZERO, whole, done: 0.0 }
    }

    /// Adds batches of these classes, of all of a run: those that are fitted are raced before those that are only judged, of which some are left for the time in which
    /// a selector is fitted.
    pub(super) fn add(&mut self, batches: &[Workload], is_wanted: &dyn Fn(&Class) -> bool) {
        let held_out = batches.iter().filter(|workload| workload.held_out()).enumerate();
        let now =
            held_out.filter(|(index, _)| !index.is_multiple_of(FOR_THE_FIT)).map(|(_, workload)| workload);
        let fitted = batches.iter().filter(|workload| !workload.held_out());
        let wanted = fitted.chain(now).filter(|workload| is_wanted(&Class::of(workload.geometry())));
        self.left.extend(wanted.cloned());
        // So that no device is at a long one when the others have nothing left.
        self.left.sort_by_key(|workload| (workload.held_out(), Reverse(workload.sample_ns())));
    }

    /// Races the next ones until `is_enough`, or none is left. Returns `false` if the user asked to stop.
    pub(super) fn race_until(
        &mut self,
        session: &mut Session<'_, '_>,
        candidates: &Candidates,
        verified: &Verified,
        is_enough: &(dyn Fn() -> bool + Sync),
    ) -> anyhow::Result<bool> {
        while !self.left.is_empty() && !is_enough() {
            if !self.race_some(session, candidates, verified, is_enough)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Races those that are fitted, or that are only judged.
    fn race_some(
        &mut self,
        session: &mut Session<'_, '_>,
        candidates: &Candidates,
        verified: &Verified,
        is_enough: &(dyn Fn() -> bool + Sync),
    ) -> anyhow::Result<bool> {
        let fitted = self.left.iter().take_while(|workload| !workload.held_out()).count();
        let next = if fitted > 0 { fitted } else { self.left.len() };
        let some = &self.left[..next];
        let ended_early = AtomicBool::new(false);
        let goes_on = || {
            let enough = is_enough();
            ended_early.fetch_or(enough, Relaxed);
            !enough
        };
        let begin = Instant::now();
        // What those before left of their time is theirs.
        let part = (self.done + work(some)) / self.whole.max(1.0);
        let time = self.time.mul_f64(part.min(1.0)).saturating_sub(self.spent);
        let progress = session.progress;
        session.progress = progress.without_phases();
        let went_on = measure_candidates_while(session, some, candidates, verified, begin + time, &goes_on);
        session.progress = progress;
        self.spent += begin.elapsed();
        let of_batches = session.run.rows().iter().filter(|row| row.level == Level::Batch && row.complete);
        let raced: BTreeSet<&str> = of_batches.map(|row| row.workload.as_str()).collect();
        // Where nothing can be measured there are no rows.
        let is_over = |workload: &&Workload| !ended_early.load(Relaxed) || raced.contains(workload.name());
        for workload in some.iter().filter(is_over) {
            self.done += work_of(workload);
            self.raced.insert(workload.name().to_owned());
        }
        self.left.retain(|workload| !self.raced.contains(workload.name()));
        went_on
    }

    /// How many were raced so far.
    pub(super) fn raced(&self) -> usize {
        self.raced.len()
    }

    /// Time on the clock in which they were raced.
    pub(super) const fn spent(&self) -> Duration {
        self.spent
    }

    /// The work of those of these batches that were not raced.
    pub(super) fn open(&self, batches: &[Workload]) -> f64 {
        batches.iter().filter(|workload| !self.raced.contains(workload.name())).map(work_of).sum()
    }
}

/// What batches are worth in time.
pub(super) fn work(batches: &[Workload]) -> f64 {
    batches.iter().map(work_of).sum()
}

fn work_of(workload: &Workload) -> f64 {
    workload.sample_ns() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::measure::{ScriptedBench, candidate_sets};
    use crate::progress::Progress;
    use crate::store::{RunFolder, Start, test_data};
    use crate::workloads::{Scale, Workloads};
    use std::sync::atomic::AtomicUsize;
    use tilewright_heuristics::{Backend, Tile};

    const TILE: Tile = Tile::of("m4n32w1s1");

    /// The smallest batches of a class, some of which are only judged.
    fn batches() -> (Class, Vec<Workload>) {
        let all = Workloads::load(&[], Backend::Cpu, &Scale::of(Backend::Cpu), None).unwrap();
        let usual = all.classes().into_iter().max_by_key(|(_, count)| *count).unwrap().0;
        let mut of_class = all.batches;
        of_class.retain(|workload| Class::of(workload.geometry()) == usual);
        of_class.sort_by_key(|workload| (workload.held_out(), workload.sample_ns()));
        let fitted = of_class.iter().filter(|workload| !workload.held_out()).take(6);
        let held_out = of_class.iter().filter(|workload| workload.held_out()).take(6);
        (usual, fitted.chain(held_out).cloned().collect())
    }

    #[test]
    fn batches_are_raced_until_something_else_can_be_done_and_some_are_left_for_the_fit() {
        let (class, batches) = batches();
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
        let (mut bench, interrupt) = (ScriptedBench::new(Vec::new(), None), Interrupt::default());
        let session = &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
        let candidates = Candidates { sets: candidate_sets(&[TILE], &[]), several_for: None };
        let verified = Verified::tried(&class, vec![TILE]);
        let mut reserve = Reserve::new(work(&batches), Duration::from_secs(60));
        assert!(reserve.race_until(session, &candidates, &verified, &|| false).unwrap(), "there is nothing");
        reserve.add(&batches, &|other| *other != class);
        reserve.add(&batches, &|other| *other == class);

        // Asked once at first, and then before each batch.
        let asked = AtomicUsize::new(0);
        let enough = || asked.fetch_add(1, Relaxed) >= 4;
        assert!(reserve.race_until(session, &candidates, &verified, &enough).unwrap());
        assert_eq!(reserve.raced(), 3);
        assert!(session.run.rows().iter().all(|row| !row.held_out));
        assert!(reserve.open(&batches) < work(&batches));

        assert!(reserve.race_until(session, &candidates, &verified, &|| false).unwrap());
        let held_out: BTreeSet<&str> =
            session.run.rows().iter().filter(|row| row.held_out).map(|row| row.workload.as_str()).collect();
        assert_eq!((reserve.raced(), held_out.len()), (6 + 4, 4));
        let of_fit: Vec<Workload> =
            batches.iter().filter(|workload| !reserve.raced.contains(workload.name())).cloned().collect();
        assert_eq!(reserve.open(&batches), work(&of_fit));
    }

    #[test]
    fn batches_that_nothing_can_run_are_over_and_a_stopped_run_ends() {
        let (class, batches) = batches();
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunFolder::open(folder.path(), test_data::provenance(), Start::Fresh).unwrap();
        let (mut bench, interrupt) = (ScriptedBench::new(Vec::new(), None), Interrupt::default());
        let session = &mut Session::new(&mut bench, &mut run, Progress::Silent, &interrupt);
        let candidates = Candidates { sets: candidate_sets(&[TILE], &[]), several_for: None };
        let mut reserve = Reserve::new(work(&batches), Duration::from_secs(60));
        reserve.add(&batches, &|_| true);
        assert!(reserve.race_until(session, &candidates, &Verified::default(), &|| false).unwrap());
        assert!(reserve.left.is_empty() && session.run.rows().is_empty());

        reserve.raced.clear();
        reserve.add(&batches, &|_| true);
        interrupt.request();
        let verified = Verified::tried(&class, vec![TILE]);
        assert!(!reserve.race_until(session, &candidates, &verified, &|| false).unwrap());
    }
}
