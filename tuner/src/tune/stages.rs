//! From the first look to the last race: what is tried, verified and raced, and in which order where kernels are compiled beside the measuring. Each stage returns
//! `false` if the user asked to stop.

use super::budget::{Budget, Phases};
use super::fitting;
use super::inputs::{Inputs, has_tiles_by_class};
use super::reserve::{Reserve, work};
use super::{TuneOptions, VERIFIED_UNTIL};
use crate::analysis::Analysis;
use crate::measure::{
    Candidates, Preparation, Session, Timed, Verified, candidate_sets, left_by_looks, look_at_classes,
    looks_at_others, measure_candidates, screen, to_prepare_invariant, verify_invariant, verify_space_with,
};
use crate::store::Level;
use crate::workloads::Workload;
use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tilewright_heuristics::{Backend, Tile, TileSetBuf};
use tilewright_kernel_templates::Class;

/// Part of the budget after which no race of the whole space begins another round.
const SCREENED_UNTIL: f64 = 0.4;
/// Part of the time left after verification in which whole batches are measured under all sets of tiles.
const CANDIDATES: f64 = 0.9;
/// Part of its time to race that the class which is verified first may take before the others are verified, whose verification is in that time, too.
const BEFORE_OTHERS: f64 = 0.85;
/// Cores from which on a GPU is measured while a selector is fitted, which takes eight.
const CORES_TO_FIT_BESIDE: usize = 16;

/// A run between its stages.
pub(super) struct Stages<'r, 'a, 'b> {
    pub session: Session<'a, 'b>,
    options: &'r TuneOptions,
    inputs: &'r Inputs,
    begin: Instant,
    budget: Budget,
    phases: Phases,
    /// The class with most batches, where it is raced as soon as it is screened and verified, while kernels of the others are compiled.
    first_class: Option<Class>,
    /// Classes that are screened at once; each of the others as its kernels come.
    at_once: usize,
    screening_until: Instant,
    screened_at: Instant,
    pub timed: Timed,
    /// What the screenings and the device's former selector leave to be verified.
    tiles: Vec<Tile>,
    candidates: Candidates,
    /// Sets of several tiles that are compiled beside the tiles alone, where something compiles beside; else those whose tiles passed, once it is known.
    ahead: Vec<(TileSetBuf, Class)>,
    /// When verification is over.
    deadline: Instant,
    reserve: Reserve,
    verified: Verified,
    /// What there was to race in, of which some is spent.
    pub left: Duration,
    /// Made beside the last races, where there are cores for it.
    pub first_fit: Option<Analysis>,
}

impl<'r, 'a, 'b> Stages<'r, 'a, 'b> {
    /// At the beginning of a session.
    pub(super) fn begin(
        session: Session<'a, 'b>,
        options: &'r TuneOptions,
        inputs: &'r Inputs,
        (begin, budget): (Instant, Budget),
    ) -> Self {
        let compiles_ahead = session.benches.compiles_ahead();
        let usual = inputs.timed.usual().filter(|_| compiles_ahead);
        let is_screened_first = |usual: &Class| inputs.screened.first().is_none_or(|first| first == usual);
        let first_class = usual.filter(is_screened_first);
        let all = inputs.screenings.len();
        let compiled = session.benches.compiled();
        let mut this = Self {
            options,
            inputs,
            begin,
            budget,
            phases: Phases::begin(),
            first_class,
            at_once: if first_class.is_some() { all.min(1) } else { all },
            screening_until: budget.deadline(SCREENED_UNTIL, compiled),
            screened_at: Instant::now(),
            timed: inputs.timed.clone(),
            tiles: Vec::new(),
            candidates: Candidates::default(),
            ahead: Vec::new(),
            deadline: Instant::now(),
            reserve: Reserve::new(0.0, Duration::ZERO),
            verified: Verified::default(),
            left: Duration::ZERO,
            first_fit: None,
            session,
        };
        this.expect();
        this.end("estimate");
        this
    }

    /// Says which classes come to be verified, that which is verified first before the others.
    fn expect(&mut self) {
        let Inputs { space, known_tiles, limits, .. } = self.inputs;
        let mut wanted = self.timed.to_prepare_space(space, known_tiles.all(), limits);
        wanted.sort_by_key(|wanted| Some(wanted.class) != self.first_class);
        wanted.extend(self.timed.to_prepare_returned(space, known_tiles.all(), known_tiles, limits));
        self.session.benches.expect(&wanted);
    }

    /// A phase is over.
    pub(super) fn end(&mut self, name: &'static str) {
        self.phases.end(name, self.begin, &self.session.benches);
    }

    /// Says where the time of the run went.
    pub(super) fn say_phases(&self) {
        tracing::info!("phases: {}", self.phases);
        if let Some(said) = self.session.benches.compiled_ahead() {
            tracing::info!("{said}");
        }
    }

    /// Whether a selector is fitted while the devices measure.
    pub(super) fn while_fitting(&self) -> bool {
        self.inputs.backend == Backend::Cuda
            && self.options.shard.is_none()
            && !self.inputs.fitted.is_empty()
            && self.inputs.held_out.len() > 1
            && std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= CORES_TO_FIT_BESIDE)
    }

    /// A time of one device, on the clock.
    pub(super) fn on_the_clock(&self) -> impl Fn(Duration) -> Duration + use<> {
        let budget = self.budget;
        move |time| budget.divided(time)
    }

    /// Looks at the class with most batches, or at all classes, and screens these.
    pub(super) fn screen_first(&mut self) -> anyhow::Result<bool> {
        let Inputs { space, screenings, limits, known_tiles, .. } = self.inputs;
        let (session, at_once) = (&mut self.session, self.at_once);
        if session.benches.compiles_ahead() {
            if !look_at_classes(session, space, screenings, 0..at_once, self.screening_until)? {
                return Ok(false);
            }
            // What is needed in any case, behind what the look has left: its kernels are waited for. Each of the others waits for the one before.
            let looks = looks_at_others(session.run.rows(), space, screenings, limits);
            let of_space = self.timed.to_prepare_space(space, known_tiles.all(), limits);
            let invariant = if self.options.quick || self.options.shard.is_some() {
                Vec::new()
            } else {
                to_prepare_invariant(self.inputs.judged(), limits)
            };
            let returned = self.timed.to_prepare_returned(space, known_tiles.all(), known_tiles, limits);
            for wanted in looks.into_iter().chain(of_space).chain(invariant).chain(returned) {
                session.benches.ask(&[wanted], &[]);
            }
        }
        if !screen(session, space, screenings, 0..at_once, self.screening_until)? {
            return Ok(false);
        }
        self.screened_at = Instant::now();
        self.tiles = if self.options.quick {
            known_tiles.all().to_vec()
        } else {
            self.left_by(&self.inputs.screened[..at_once])?
        };
        self.end("screen");
        self.choose_candidates();
        Ok(true)
    }

    /// What the screening of these classes leaves, and what is known.
    fn left_by(&mut self, classes: &[Class]) -> anyhow::Result<Vec<Tile>> {
        let Inputs { known_tiles, screened, .. } = self.inputs;
        let left = match Analysis::screened(&self.session.run.united_rows(), classes, &self.inputs.fit) {
            Ok(left) => left,
            // The others may have some.
            Err(_) if classes.len() < screened.len() => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| self.inputs.kept()),
        };
        // What other shards of the run keep is not known here.
        if has_tiles_by_class(self.inputs.backend, self.options) {
            self.timed.leave(self.inputs.backend, &left, known_tiles);
        }
        let mut tiles: Vec<Tile> = Vec::new();
        for tile in left.into_values().flatten().chain(known_tiles.all().iter().copied()) {
            if !tiles.contains(&tile) {
                tiles.push(tile);
            }
        }
        Ok(tiles)
    }

    /// The sets that batches are raced under, and the time that they have.
    fn choose_candidates(&mut self) {
        let Inputs { known_sets, space, limits, backend, .. } = self.inputs;
        let (quick, benches) = (self.options.quick, &self.session.benches);
        self.candidates = Candidates {
            sets: if quick {
                known_sets.clone()
            } else {
                candidate_sets(&self.tiles, &self.inputs.known_pairs())
            },
            several_for: self.timed.usual().filter(|_| *backend == Backend::Cuda && !quick),
        };
        if benches.compiles_ahead() || benches.living() > 1 {
            let classes = self.timed.classes.keys();
            let feasible: BTreeMap<Class, Vec<Tile>> =
                classes.map(|class| (*class, space.feasible(class, limits))).collect();
            let may_run = |class: &Class, tile: &Tile| feasible[class].contains(tile);
            self.ahead = self.candidates.several(self.timed.classes.keys(), &may_run);
        }
        self.deadline = self.budget.deadline(VERIFIED_UNTIL, benches.compiled());
        let racing = self.budget.left(Instant::now(), benches.compiled(), 1.0 - VERIFIED_UNTIL);
        let time = racing.mul_f64(CANDIDATES * BEFORE_OTHERS);
        self.reserve = Reserve::new(work(self.inputs.batches()), time);
    }

    /// Verifies the class with most batches, which is raced from then on whenever other work waits for its kernels.
    pub(super) fn verify_first(&mut self) -> anyhow::Result<bool> {
        let Some(first) = self.first_class.filter(|_| !self.tiles.is_empty()) else { return Ok(true) };
        let Inputs { space, known_tiles, limits, .. } = self.inputs;
        let session = &mut self.session;
        let of_space = self.timed.to_prepare_space(space, &self.tiles, limits);
        let returned = self.timed.to_prepare_returned(space, &self.tiles, known_tiles, limits);
        for wanted in of_space.into_iter().chain(returned) {
            session.benches.ask(&[wanted], &[]);
        }
        let is_first = |class: &Class| *class == first;
        let (tiles, timed) = ((&self.tiles[..], &self.ahead[..]), (&self.timed, &is_first as _));
        let of_first = verify_space_with(session, space, tiles, timed, self.deadline)?;
        let Some(of_first) = of_first else { return Ok(false) };
        self.verified = of_first;
        self.prepare_several();
        self.end("verify first class");
        self.reserve.add(self.inputs.batches(), &|class| *class == first);
        Ok(true)
    }

    /// Makes the sets of several tiles ready whose tiles passed. What has not failed since is there already if it was asked for ahead.
    fn prepare_several(&mut self) {
        let verified = &self.verified;
        let may_run = |class: &Class, tile: &Tile| verified.tiles(class).contains(tile);
        let sets = self.candidates.several(self.timed.classes.keys(), &may_run);
        self.session.benches.prepare(&[], &sets, self.session.interrupt);
    }

    /// Looks at each of the other classes and screens it as soon as its kernels are there, between batches of the first: what one look leaves is compiled
    /// behind the kernels of the other looks, before anything else.
    pub(super) fn screen_others(&mut self) -> anyhow::Result<bool> {
        let Inputs { space, screenings, limits, screened, .. } = self.inputs;
        if self.at_once == screenings.len() {
            return Ok(true);
        }
        let looks = looks_at_others(self.session.run.rows(), space, screenings, limits);
        if self.session.benches.compiles_ahead() {
            self.session.benches.getting_ready(&looks, &[], self.session.interrupt);
        }
        let of_class = |wanted: &[Preparation], index: usize| -> Vec<Preparation> {
            wanted.iter().filter(|wanted| wanted.class == screened[index]).cloned().collect()
        };
        for index in self.at_once..screenings.len() {
            if !self.race_until_ready(&of_class(&looks, index))? {
                return Ok(false);
            }
            let until = self.screening_until + self.screened_at.elapsed();
            if !look_at_classes(&mut self.session, space, screenings, index..index + 1, until)? {
                return Ok(false);
            }
        }
        for index in self.at_once..screenings.len() {
            let left = left_by_looks(self.session.run.rows(), space, screenings, limits);
            if !self.race_until_ready(&of_class(&left, index))? {
                return Ok(false);
            }
            let until = self.screening_until + self.screened_at.elapsed();
            if !screen(&mut self.session, space, screenings, index..index + 1, until)? {
                return Ok(false);
            }
        }
        self.tiles = self.left_by(screened)?;
        self.candidates.add_singles(&self.tiles);
        self.end("screen others, and first candidates");
        Ok(true)
    }

    /// Races batches of verified classes, as long as there are any, until the kernels of these are compiled.
    fn race_until_ready(&mut self, wanted: &[Preparation]) -> anyhow::Result<bool> {
        let awaited = self.session.benches.awaited(wanted);
        let are_there = || awaited.are_there();
        self.reserve.race_until(&mut self.session, &self.candidates, &self.verified, &are_there)
    }

    /// Verifies the classes that are not yet, when the kernels of all are there; until then batches of those that are verified are raced, as long as there are any.
    pub(super) fn verify_others(&mut self) -> anyhow::Result<bool> {
        let Inputs { space, limits, .. } = self.inputs;
        let mut open = self.timed.to_prepare_space(space, &self.tiles, limits);
        let of_space = self.session.run.rows().iter().filter(|row| row.level == Level::Space);
        let known: BTreeSet<(String, Tile)> =
            of_space.filter_map(|row| Some((row.workload.clone(), row.tile?))).collect();
        for Preparation { tiles, class, .. } in &mut open {
            tiles.retain(|tile| !known.contains(&(class.to_string(), *tile)));
        }
        if self.session.benches.compiles_ahead() {
            self.session.benches.getting_ready(&open, &[], self.session.interrupt);
        }
        while !open.is_empty() {
            if !self.race_until_ready(&open)? {
                return Ok(false);
            }
            let benches = &self.session.benches;
            let is_ready = |wanted: &Preparation| benches.awaited(std::slice::from_ref(wanted)).are_there();
            let (mut now, mut later): (Vec<Preparation>, Vec<Preparation>) =
                open.iter().cloned().partition(is_ready);
            if now.is_empty() {
                // Its kernels come before those of the others.
                now.push(later.remove(0));
            }
            let now: BTreeSet<Class> = now.iter().map(|wanted| wanted.class).collect();
            let wanted = |class: &Class| now.contains(class);
            let until = self.deadline + self.reserve.spent();
            let (tiles, timed) = ((&self.tiles[..], &self.ahead[..]), (&self.timed, &wanted as _));
            let passed = verify_space_with(&mut self.session, space, tiles, timed, until)?;
            let Some(passed) = passed else { return Ok(false) };
            self.verified = passed.or(&self.verified);
            open = later;
            if let Some(first) = self.first_class {
                let verified = &self.verified;
                let has_some = |class: &Class| !verified.tiles(class).is_empty();
                let is_new = |class: &Class| wanted(class) && *class != first && has_some(class);
                self.reserve.add(self.inputs.batches(), &is_new);
            }
        }
        self.verified = Verified::of(self.session.run.rows());
        if self.reserve.raced() > 0 {
            self.session.progress.note(&format!(
                "{} batches were raced while kernels of other work were compiled ({:.1} s)",
                self.reserve.raced(),
                self.reserve.spent().as_secs_f64()
            ));
        }
        Ok(true)
    }

    /// Races all batches that were not raced yet, some of those that are only judged beside a first fit.
    pub(super) fn race(&mut self) -> anyhow::Result<bool> {
        let compiling = Instant::now();
        self.prepare_several();
        self.end("verify, and further candidates");
        let Inputs { fitted, held_out, limits, .. } = self.inputs;
        let (quick, judged) = (self.options.quick, self.inputs.judged());
        let measuring = Instant::now();
        let raced = self.reserve.spent();
        // Where verification takes longer than estimated, the run does rather than measure nothing.
        let compiled = self.session.benches.compiled();
        self.left = raced + self.budget.left(measuring, compiled, 1.0 - VERIFIED_UNTIL);
        let to_race = self.left.mul_f64(CANDIDATES).saturating_sub(raced);
        let session = &mut self.session;
        session.progress.note(&format!(
            "{} sets of tiles, on {} batches that are fitted and {} that are only judged; kernels of several tiles were waited for for {:.1} s",
            self.candidates.sets.len(),
            fitted.len(),
            held_out.len(),
            (measuring - compiling).as_secs_f64()
        ));
        if !quick && self.options.shard.is_none() && session.benches.compiles_ahead() {
            // The fit forgets what was asked for ahead of knowing its tiles; these are needed whatever they are.
            session.benches.getting_ready(&to_prepare_invariant(judged, limits), &[], session.interrupt);
        }
        let deadline = measuring + to_race;
        if self.while_fitting() {
            let (candidates, verified, session) = (&self.candidates, &self.verified, &mut self.session);
            // One of those that are judged goes first: a fit is judged by them.
            let (judged_first, judged_later) = held_out.split_at(1);
            let before: Vec<Workload> = fitted.iter().chain(judged_first).cloned().collect();
            let open = self.reserve.open(&before);
            let part = open / (open + self.reserve.open(judged_later)).max(1.0);
            let until = measuring + to_race.mul_f64(part);
            if !measure_candidates(session, &before, candidates, verified, until)? {
                return Ok(false);
            }
            let (fitted, went_on) = fitting::fit_first_while(session, &self.inputs.fit, |session| {
                if !measure_candidates(session, judged_later, candidates, verified, deadline)? {
                    return Ok(false);
                }
                // Two GPUs are faster than the fit; what is verified here is known to all that follows.
                Ok(quick || verify_invariant(session, judged)?.is_some())
            })
            .with_context(|| self.inputs.kept())?;
            if !went_on {
                return Ok(false);
            }
            self.first_fit = Some(fitted);
        } else {
            let batches = self.inputs.batches();
            if !measure_candidates(&mut self.session, batches, &self.candidates, &self.verified, deadline)? {
                return Ok(false);
            }
        }
        self.end("candidates");
        Ok(true)
    }
}
