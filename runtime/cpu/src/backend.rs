//! Executes a plan: forward by all threads, then the merge.
#![allow(unsafe_code)]

use super::arithmetic::QueryForms;
use super::kernel::{LOG2_E, Pass, Queries, Scratch, row_of_output};
use super::level::{Isa, Kernel, Level};
use super::mask::Masking;
use super::queue::{Queue, Unit, Work, lanes};
use super::shared::SharedSlice;
use super::team::{Pending, Team};
use super::timeline::{Clock, Recorder, UnitTimes};
use super::totals::add_chunk;
use super::{DecodeArgs, Element, KvCache, KvPages, Number, simd};
use crate::ExecError;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tilewright_kernel_templates::Class;
use tilewright_plan::{DIRECT, KvScales, Plan, Scale, UNTOUCHED, WorkItem};

/// Threads that execute plans. They are started once; a step allocates only when it needs more memory than any before it.
pub struct CpuBackend {
    team: Team,
    isa: Isa,
    scratch: Vec<Mutex<Scratch>>,
    queue: Queue,
    /// Partials of the plan: output `[partials, q_heads, head_dim]`, and maximum (base 2) and sum `[partials, q_heads]`.
    partial_output: Vec<f32>,
    partial_softmax: Vec<[f32; 2]>,
    /// Shares of the items that are open: output `[teams, lanes, m, head_dim]`, maximum and sum `[teams, lanes, m]`.
    lane_output: Vec<f32>,
    lane_softmax: Vec<[f32; 2]>,
}

impl std::fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuBackend").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

/// Places for shares: how many lanes and rows the largest shared tile has.
#[derive(Clone, Copy, Debug, Default)]
struct LaneSpace {
    lanes: usize,
    rows: usize,
}

impl LaneSpace {
    fn of(plan: &Plan) -> Self {
        plan.tile_groups().iter().fold(Self::default(), |space, group| match lanes(plan, group) as usize {
            1 => space,
            lanes => Self { lanes: space.lanes.max(lanes), rows: space.rows.max(usize::from(group.tile.m)) },
        })
    }

    /// The first row of a share.
    const fn row(&self, team: usize, lane: usize) -> usize {
        (team * self.lanes + lane) * self.rows
    }
}

impl CpuBackend {
    /// A backend of `threads` threads, at least one: that which decodes, and others that are started.
    ///
    /// # Panics
    /// If the system refuses to start threads.
    pub fn new(threads: u32) -> Self {
        let threads = threads.max(1) as usize;
        Self {
            team: Team::new(threads),
            isa: Isa::detect(),
            scratch: (0..threads).map(|_| Mutex::default()).collect(),
            queue: Queue::new(threads),
            partial_output: Vec::new(),
            partial_softmax: Vec::new(),
            lane_output: Vec::new(),
            lane_softmax: Vec::new(),
        }
    }

    /// Its threads.
    pub fn threads(&self) -> u32 {
        self.scratch.len() as u32
    }

    /// Computes attention for every query of the plan. The same plan and arguments give the same bits, whatever threads do.
    ///
    /// # Errors
    /// Arguments that do not fit the plan; nothing is written then.
    pub fn decode<E: Element, C: KvPages<E>>(
        &mut self,
        plan: &Plan,
        args: DecodeArgs<'_, E, C>,
    ) -> Result<(), ExecError> {
        C::execute(self, plan, args, None)
    }

    /// As [`CpuBackend::decode`]; when each unit of forward was computed, and by which thread.
    ///
    /// # Errors
    /// As [`CpuBackend::decode`].
    pub fn record<E: Element, C: KvPages<E>>(
        &mut self,
        plan: &Plan,
        args: DecodeArgs<'_, E, C>,
    ) -> Result<Vec<UnitTimes>, ExecError> {
        let recorder = Recorder::new(self.scratch.len());
        C::execute(self, plan, args, Some(&recorder))?;
        Ok(recorder.into_times())
    }

    pub(super) fn execute<E: Element, C: KvPages<E>>(
        &mut self,
        plan: &Plan,
        args: DecodeArgs<'_, E, C>,
        recorder: Option<&Recorder>,
    ) -> Result<(), ExecError> {
        args.check(plan)?;
        let forms = QueryForms::of::<C::Stored>(self.isa, plan);
        self.reserve(plan, forms);
        let scale = args.scale_of(plan.geometry());
        let DecodeArgs { query, cache, output, lse, mask, sinks, .. } = args;
        let (cache, scales) = (cache.stored(), cache.scales());
        let lse = lse.map(SharedSlice::new);
        let step = Step {
            plan,
            query,
            cache,
            scales,
            scale,
            masking: Masking::new(mask),
            sinks,
            output: SharedSlice::new(output),
            lse: lse.as_ref(),
            partial_output: SharedSlice::new(&mut self.partial_output),
            partial_softmax: SharedSlice::new(&mut self.partial_softmax),
            lane_output: SharedSlice::new(&mut self.lane_output),
            lane_softmax: SharedSlice::new(&mut self.lane_softmax),
            lane_space: LaneSpace::of(plan),
            isa: self.isa,
            forms,
        };
        let (queue, scratch) = (&self.queue, &self.scratch);
        let (forward, merges, next_merge) = (Pending::new(queue.units()), plan.merges(), AtomicUsize::new(0));
        self.team.run(|thread| {
            let mut scratch = scratch[thread].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            while let Some(unit) = queue.take() {
                forward.piece(|| {
                    let mut clock = recorder.map(|recorder| recorder.begin(&unit, thread));
                    step.forward(&unit, queue, &mut scratch, clock.as_mut());
                    if let Some(clock) = clock {
                        clock.end();
                    }
                });
            }
            if merges.is_empty() {
                return;
            }
            forward.wait();
            while let Some(merge) = merges.get(next_merge.fetch_add(1, Ordering::Relaxed)) {
                step.merge(merge, &mut scratch);
            }
        });
        Ok(())
    }

    fn reserve(&mut self, plan: &Plan, forms: QueryForms) {
        let geometry = plan.geometry();
        let (q_heads, head_dim) = (geometry.q_heads as usize, geometry.head_dim as usize);
        let class = Class::of(geometry);
        for scratch in &mut self.scratch {
            let scratch = scratch.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            scratch.accumulators.resize(scratch.accumulators.len().max(head_dim), 0.0);
            for group in plan.tile_groups() {
                scratch.reserve(&group.tile, &class, forms);
            }
        }
        let rows = plan.partials() as usize * q_heads;
        grow(&mut self.partial_output, rows * head_dim, 0.0);
        grow(&mut self.partial_softmax, rows, [0.0; 2]);
        let space = LaneSpace::of(plan);
        let rows = space.row(Queue::teams(self.scratch.len()), 0);
        grow(&mut self.lane_output, rows * head_dim, 0.0);
        grow(&mut self.lane_softmax, rows, [0.0; 2]);
        self.queue.fill(plan);
    }
}

fn grow<T: Copy>(memory: &mut Vec<T>, len: usize, value: T) {
    if memory.len() < len {
        memory.resize(len, value);
    }
}

/// One decode step as all threads see it.
struct Step<'a, E, K> {
    plan: &'a Plan,
    query: &'a [E],
    cache: KvCache<'a, K>,
    scales: Option<KvScales<'a>>,
    scale: f32,
    masking: Masking,
    sinks: Option<&'a [f32]>,
    output: SharedSlice<'a, E>,
    lse: Option<&'a SharedSlice<'a, f32>>,
    partial_output: SharedSlice<'a, f32>,
    partial_softmax: SharedSlice<'a, [f32; 2]>,
    lane_output: SharedSlice<'a, f32>,
    lane_softmax: SharedSlice<'a, [f32; 2]>,
    lane_space: LaneSpace,
    isa: Isa,
    forms: QueryForms,
}

impl<E: Element, K: Number> Step<'_, E, K> {
    fn head_dim(&self) -> usize {
        self.plan.geometry().head_dim as usize
    }

    /// Computes a unit. The last share of an item combines all of them, in the order of the lanes.
    fn forward(&self, unit: &Unit, queue: &Queue, scratch: &mut Scratch, clock: Option<&mut Clock<'_>>) {
        let (&Self { plan, ref cache, masking, .. }, head_dim) = (self, self.head_dim());
        let work = Work::of(plan, unit);
        let (item, kv_heads) = (work.item, work.kv_heads.clone());
        let rows = item.rows.len();
        let in_bf16 = self.forms.is_bf16(rows);
        for (head, kv_head) in kv_heads.clone().enumerate() {
            for row in 0..rows {
                let query = &self.query[row_of_output(plan, item, kv_head, row) * head_dim..][..head_dim];
                let elements = (head * rows + row) * head_dim..(head * rows + row + 1) * head_dim;
                let Queries { wide, bf16 } = &mut scratch.queries;
                match E::as_bf16(query).filter(|_| in_bf16) {
                    Some(query) => bf16[elements].copy_from_slice(query),
                    None => E::widen_vectors(self.isa, query, &mut wide[elements]),
                }
            }
        }
        let unscaled = Scale::Tensor(1.0);
        let value_scale = match self.scales {
            Some(scales) if plan.is_invariant() => scales.values,
            _ => unscaled,
        };
        K::pass(
            self.isa,
            Pass {
                plan,
                unit,
                work,
                cache,
                in_bf16,
                score_scale: self.scale * LOG2_E,
                key_scale: self.scales.map_or(unscaled, |scales| scales.keys),
                value_scale,
                masking,
                scratch,
                next: &|| queue.peek(),
            },
        );
        if let Some(clock) = clock {
            clock.computed();
        }
        if unit.lanes > 1 {
            self.keep_share(unit, item, scratch);
            if !queue.arrive(unit) {
                return;
            }
            self.combine_shares(unit, item, scratch);
            queue.release(unit);
        }
        for (head, kv_head) in kv_heads.enumerate() {
            self.write_rows(item, kv_head, head * rows, scratch);
        }
    }

    fn keep_share(&self, unit: &Unit, item: &WorkItem, scratch: &Scratch) {
        let (rows, head_dim) = (item.rows.len(), self.head_dim());
        let first = self.lane_space.row(unit.team, unit.lane as usize);
        // SAFETY: a team belongs to one open item, and a lane of it to the thread that took it; others read it only after
        // they were told by `arrive` that all lanes are done.
        let (output, softmax) = unsafe {
            (self.lane_output.range(first * head_dim, rows * head_dim), self.lane_softmax.range(first, rows))
        };
        output.copy_from_slice(&scratch.accumulators[..rows * head_dim]);
        softmax.copy_from_slice(&scratch.softmax[..rows]);
    }

    fn combine_shares(&self, unit: &Unit, item: &WorkItem, scratch: &mut Scratch) {
        let (rows, head_dim) = (item.rows.len(), self.head_dim());
        let first = |lane: u32| self.lane_space.row(unit.team, lane as usize);
        for row in 0..rows {
            let partials = (0..unit.lanes).map(|lane| {
                let at = first(lane) + row;
                // SAFETY: all lanes of the team are done, and the team is not released yet: only this thread uses its rows.
                unsafe {
                    (&*self.lane_output.range(at * head_dim, head_dim), self.lane_softmax.range(at, 1)[0])
                }
            });
            let output = &mut scratch.accumulators[row * head_dim..][..head_dim];
            scratch.softmax[row] = self.merge_into(partials, output);
        }
    }

    /// Writes the rows of an item, from row `first` of the scratch on: normalised where they are final, as partials where they are not.
    fn write_rows(&self, item: &WorkItem, kv_head: u32, first: usize, scratch: &mut Scratch) {
        let (rows, head_dim) = (item.rows.len(), self.head_dim());
        let geometry = self.plan.geometry();
        for row in 0..rows {
            let member = (item.rows.start as usize + row) / geometry.gqa_ratio() as usize;
            let partial = self.plan.targets()[item.targets as usize + member].partial;
            let row_of_output = row_of_output(self.plan, item, kv_head, row);
            let output = &mut scratch.accumulators[(first + row) * head_dim..][..head_dim];
            let softmax = scratch.softmax[first + row];
            // Where a chunk was added to others, it was scaled before.
            if let Some(scales) = self.scales.filter(|_| !self.plan.is_invariant()) {
                simd::scale(output, scales.values.of_head(kv_head as usize));
            }
            match partial {
                UNTOUCHED => continue,
                DIRECT => {
                    self.write_final(row_of_output, output, softmax);
                    continue;
                }
                _ => {}
            }
            let at = partial as usize * geometry.q_heads as usize + row_of_output % geometry.q_heads as usize;
            // SAFETY: the plan gives each row of each chunk a partial of its own, and merging begins when all are written.
            unsafe {
                self.partial_output.range(at * head_dim, head_dim).copy_from_slice(output);
                self.partial_softmax.range(at, 1)[0] = softmax;
            }
        }
    }

    /// Merges the partials of all heads of a request, in the plan's order.
    fn merge(&self, merge: &tilewright_plan::MergeItem, scratch: &mut Scratch) {
        let (q_heads, head_dim) = (self.plan.geometry().q_heads as usize, self.head_dim());
        for head in 0..q_heads {
            let partials = (merge.partial_begin..merge.partial_end).map(|partial| {
                let at = partial as usize * q_heads + head;
                // SAFETY: forward is over, so no thread writes partials, and those of a request are read by one thread only.
                unsafe {
                    (
                        &*self.partial_output.range(at * head_dim, head_dim),
                        self.partial_softmax.range(at, 1)[0],
                    )
                }
            });
            let output = &mut scratch.accumulators[..head_dim];
            let softmax = if self.plan.is_invariant() {
                output.fill(0.0);
                partials.fold([f32::NEG_INFINITY, 0.0], |mut total, (partial, softmax)| {
                    add_chunk(output, &mut total, partial, softmax, 1.0);
                    total
                })
            } else {
                self.merge_into(partials, output)
            };
            self.write_final(merge.request as usize * q_heads + head, output, softmax);
        }
    }

    /// Online softmax over partials (PAT, section 7): unnormalised output, and maximum and sum of all of them.
    fn merge_into<'p>(
        &self,
        partials: impl Iterator<Item = (&'p [f32], [f32; 2])> + Clone,
        output: &mut [f32],
    ) -> [f32; 2] {
        let max = partials.clone().map(|(_, [max, _])| max).fold(f32::NEG_INFINITY, f32::max);
        output.fill(0.0);
        if max == f32::NEG_INFINITY {
            return [max, 0.0];
        }
        let mut total = 0.0;
        for (partial, [own, sum]) in partials {
            // An empty range has the maximum -inf and weighs nothing.
            let weight = (own - max).exp2();
            total += sum * weight;
            self.isa.run(AddWeighted { partial, weight, output });
        }
        [max, total]
    }

    fn write_final(&self, row: usize, output: &mut [f32], softmax: [f32; 2]) {
        let head_dim = self.head_dim();
        let [max, sum] = match self.sinks {
            Some(sinks) => add_sink(output, softmax, sinks[row % sinks.len()]),
            None => softmax,
        };
        let factor = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        // SAFETY: a row of the output is written once: by its only partial's item, or by its request's merge.
        let target = unsafe { self.output.range(row * head_dim, head_dim) };
        E::narrow_scaled(self.isa, output, factor, target);
        if let Some(lse) = self.lse {
            let value =
                if sum > 0.0 { (max + sum.log2()) * std::f32::consts::LN_2 } else { f32::NEG_INFINITY };
            // SAFETY: as for the output.
            unsafe { lse.range(row, 1)[0] = value };
        }
    }
}

/// Adds the row's sink, which weighs zeros, to unnormalised output, maximum and sum.
fn add_sink(output: &mut [f32], [max, sum]: [f32; 2], sink: f32) -> [f32; 2] {
    let sink = sink * LOG2_E;
    let new_max = max.max(sink);
    if new_max == f32::NEG_INFINITY {
        return [max, sum];
    }
    // A row without tokens has the maximum -inf and a sum of 0.
    let weight = (max - new_max).exp2();
    simd::scale(output, weight);
    [new_max, sum * weight + (sink - new_max).exp2()]
}

struct AddWeighted<'a> {
    partial: &'a [f32],
    weight: f32,
    output: &'a mut [f32],
}

impl Kernel for AddWeighted<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self, _: L) {
        for (output, partial) in self.output.iter_mut().zip(self.partial) {
            *output += self.weight * partial;
        }
    }
}
