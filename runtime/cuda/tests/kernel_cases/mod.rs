//! Batches that the emulated kernels are checked with: what one launch is checked with, and how, against the f64 reference.

#![allow(unsafe_code)]

mod guarded;

use crate::emulation::{Emulator, describe_tensors};
use guarded::Guarded;
use half::{bf16, f16};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::sync::Mutex;
use tilewright_conformance::reference::{self, Attention, norm, relative_error};
use tilewright_conformance::{CaseCache, ConformanceCase, Fp8Pages, tolerance};
use tilewright_cpu::{Element, Fp8Number, KvCache, Number};
use tilewright_cuda::{Mix, PackedPlan};
use tilewright_heuristics::{Dtype, Fp8, Geometry, Mask, MaskOptions, PackShape, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{
    Arguments, Kernel, KernelOptions, KvLoad, MERGE_WARPS, MaskArguments, TimelineEntry, WorkItem,
};
use tilewright_plan::{KvStrides, Packing, PageTable, Plan, PlanOptions, Queries, Split};

pub(crate) const WINDOW: MaskOptions = Mask::window(1).options();
pub(crate) const SOFTCAP: MaskOptions = Mask::softcap(1.0).options();

/// The numbers that the options of a mask are checked with.
fn mask_with(options: MaskOptions) -> Mask {
    Mask { window: options.window.then_some(45), softcap: options.softcap.then_some(2.0) }
}

/// What one launch is checked with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) tile: Tile,
    pub(crate) class: Class,
    pub(crate) options: KernelOptions,
    pub(crate) gqa_ratio: u32,
    pub(crate) kv_heads: u32,
    pub(crate) page_size: u32,
    pub(crate) packing: Packing,
    /// The plan is made when requests have one token in their last page.
    pub(crate) grown: bool,
    pub(crate) hnd: bool,
    /// Tokens by which the requests that fill a tile have more of their own.
    pub(crate) own: u32,
    /// Query tokens of a request: from 1 to this, as far as it has tokens; 0 stands for one each, of requests without tokens too.
    pub(crate) queries: u32,
    pub(crate) seed: u64,
    /// On a device where four warps multiply together.
    pub(crate) warpgroups: bool,
    /// Tiles of one kernel, in their order, that packs get instead of `tile`.
    pub(crate) mixed: &'static [Tile],
}

impl Case {
    pub(crate) fn kernel(&self) -> Kernel {
        let arch = if self.warpgroups { "sm_90a" } else { "sm_80" };
        let kv_load = self.options.kv_load.max(KernelOptions::for_pages(self.page_size).kv_load);
        // Each launch says who merges.
        let options = KernelOptions { kv_load, merge_by_last_cta: true, ..self.options };
        match self.mixed {
            [] => Kernel::decode(&self.tile, &self.class, options, arch.parse().unwrap()),
            tiles => Kernel::decode_mix(tiles, &self.class, options, arch.parse().unwrap()),
        }
    }

    /// The tile of a pack: of a mix any, whether it holds the pack's rows or not.
    fn tile_of(&self, shape: &PackShape) -> Tile {
        match self.mixed {
            [] => self.tile,
            tiles => tiles[(shape.rows + shape.kv_len / 5) as usize % tiles.len()],
        }
    }

    /// Those of batch-invariant kernels have one warp a row.
    pub(crate) fn merges(&self) -> Vec<Kernel> {
        let warps = if self.options.invariant { &MERGE_WARPS[..1] } else { &MERGE_WARPS[..] };
        warps.iter().map(|&warps| Kernel::merge(warps, &self.class, self.options)).collect()
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            q_heads: self.gqa_ratio * self.kv_heads,
            kv_heads: self.kv_heads,
            head_dim: self.class.head_dim,
            page_size: self.page_size,
            dtype: self.class.dtype,
        }
    }

    /// Requests as (pages of a prefix taken from the previous one, own tokens): lengths around every edge of pages and steps, and enough
    /// requests on one prefix that its rows fill a tile.
    pub(crate) fn requests(&self) -> Vec<(usize, u32)> {
        let (n, page) = (u32::from(self.tile.n), self.page_size);
        let trunk = 3 * n + 5;
        let shared = (trunk / page) as usize;
        let mut requests = vec![(0, trunk)];
        requests.extend([1, 0, page, n - 1, n, n + 1].map(|own| (shared, own)));
        let fill = (u32::from(self.tile.m) / self.gqa_ratio).min(20) as usize;
        requests.extend((requests.len()..fill).map(|own| (shared, own as u32 + self.own)));
        let stages = u32::from(self.tile.stages);
        let alone = [0, 1, page - 1, page, page + 1, n - 1, n, n + 1, 2 * n, stages * n + 1];
        requests.extend(alone.map(|own| (0, own)));
        requests
    }

    pub(crate) fn plan_options(&self, split: Split) -> PlanOptions {
        PlanOptions { packing: self.packing, split, ..PlanOptions::default() }.with_max_concurrent_ctas(64)
    }

    /// Runs what the tuner verifies variants by, planned as it wants to be and as engines plan.
    pub(crate) fn check_case(&self, case: &ConformanceCase, emulator: &Emulator) -> Result<(), String> {
        let batch = Batch::<f16>::of(case);
        let as_engines = PlanOptions::default().with_max_concurrent_ctas(264);
        let mut plans = Vec::new();
        for options in [case.options, as_engines] {
            let invariant = self.options.invariant;
            let options =
                &PlanOptions { split: if invariant { Split::Invariant } else { options.split }, ..options };
            // Small batches are often planned alike; a launch of an equal plan, in the same order of warps, is the same one.
            let plan = batch.plan(self, options);
            if plans.contains(&plan) {
                continue;
            }
            plans.push(plan);
            for outcome in batch.launch(self, options, emulator, self.seed)? {
                case.check(&widened(&outcome.output), &widened(&outcome.lse))?;
            }
        }
        Ok(())
    }

    pub(crate) fn check(&self, emulator: &Emulator) -> Result<(), String> {
        match self.class.dtype {
            Dtype::F16 | Dtype::Fp8F16 | Dtype::E5m2F16 => Batch::<f16>::new(self).check(self, emulator),
            Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => Batch::<bf16>::new(self).check(self, emulator),
            Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F32 => Err("no kernel computes in f32".to_owned()),
        }
        .map_err(|error| format!("{error}: {self:?}"))
    }
}

/// A batch with K, V and queries; NaN wherever no request has a token, garbage in the table past each length.
pub(crate) struct Batch<E> {
    pub(crate) geometry: Geometry,
    pub(crate) entries: Vec<i32>,
    pub(crate) max_pages: usize,
    pub(crate) seq_lens: Vec<u32>,
    /// What its plan is made for, if not for what `seq_lens` have grown from.
    pub(crate) planned_lens: Option<Vec<u32>>,
    pub(crate) query_lens: Option<Vec<u32>>,
    pub(crate) strides: KvStrides,
    pub(crate) cache: CaseCache<E>,
    pub(crate) query: Vec<E>,
    pub(crate) sinks: Vec<f32>,
    pub(crate) scale: f32,
    pub(crate) mask: Mask,
    /// Pages that the cache has before those of `cache`; nothing may touch them.
    pub(crate) pages_before: i32,
}

/// K, V, their scales, Q, the sinks and the lengths as a kernel gets them.
struct Inputs {
    arrays: [Guarded; 7],
}

/// What a launch leaves.
pub(crate) struct Outcome<E> {
    pub(crate) output: Vec<E>,
    pub(crate) lse: Vec<f32>,
}

impl<E: Element> Batch<E> {
    pub(crate) fn new(case: &Case) -> Self {
        let geometry = case.geometry();
        let page_size = geometry.page_size;
        let mut rng = ChaCha8Rng::seed_from_u64(case.seed);
        let (mut rows, mut seq_lens, mut pages) = (Vec::<Vec<usize>>::new(), Vec::new(), 0);
        for (shared, own) in case.requests() {
            let mut row: Vec<usize> =
                rows.last().map_or(Vec::new(), |row: &Vec<usize>| row[..shared.min(row.len())].to_vec());
            let tokens = row.len() as u32 * page_size + own;
            while (row.len() as u32) < tokens.div_ceil(page_size) {
                row.push(pages);
                pages += 1;
            }
            rows.push(row);
            seq_lens.push(tokens);
        }
        pages += 2;
        let mut physical: Vec<i32> = (0..pages as i32).collect();
        physical.shuffle(&mut rng);
        let max_pages = rows.iter().map(Vec::len).max().unwrap_or(0) + 1;
        let mut entries = Vec::new();
        let mut filled = vec![0u32; pages];
        for (row, &seq_len) in rows.iter().zip(&seq_lens) {
            for (column, &page) in row.iter().enumerate() {
                let page = physical[page];
                entries.push(page);
                let tokens = (seq_len - column as u32 * page_size).min(page_size);
                filled[page as usize] = filled[page as usize].max(tokens);
            }
            entries.extend((row.len()..max_pages).map(|column| if column % 2 == 0 { -1 } else { i32::MAX }));
        }
        let strides = if case.hnd { KvStrides::hnd(&geometry) } else { KvStrides::nhd(&geometry) };
        let mut random = random_numbers(case.seed);
        let cache = match geometry.dtype.fp8() {
            Some(Fp8::E4m3) => CaseCache::E4m3(fp8_pages_of(&geometry, &strides, &filled, case, &mut random)),
            Some(Fp8::E5m2) => CaseCache::E5m2(fp8_pages_of(&geometry, &strides, &filled, case, &mut random)),
            None => CaseCache::Plain {
                keys: pages_of(&geometry, &strides, &filled, || 3.0 * random()),
                values: pages_of(&geometry, &strides, &filled, &mut random),
            },
        };
        let query_lens: Option<Vec<u32>> = (case.queries > 0).then(|| {
            let planned = planned_lens(&seq_lens, page_size, case.grown);
            (0u32..).zip(planned).map(|(request, len)| (request * 5 % case.queries + 1).min(len)).collect()
        });
        let queries = query_lens.as_ref().map_or(seq_lens.len(), |lens| lens.iter().sum::<u32>() as usize);
        let elements = queries * (geometry.q_heads * geometry.head_dim) as usize;
        let query = (0..elements).map(|_| E::from_f32(3.0 * random())).collect();
        let sinks = (0..geometry.q_heads).map(|_| 1.5 + 3.5 * random()).collect();
        let scale = 1.0 / (geometry.head_dim as f32).sqrt();
        Self {
            geometry,
            entries,
            max_pages,
            seq_lens,
            planned_lens: None,
            query_lens,
            strides,
            cache,
            query,
            sinks,
            scale,
            mask: mask_with(case.options.mask),
            pages_before: 0,
        }
    }

    /// What the tuner verifies variants by.
    pub(crate) fn of(case: &ConformanceCase) -> Self {
        Self {
            geometry: case.geometry,
            entries: case.page_table.clone(),
            max_pages: case.max_pages,
            seq_lens: case.seq_lens.clone(),
            planned_lens: None,
            query_lens: case.query_lens.clone(),
            strides: case.strides(),
            cache: case.cache(),
            query: case.query(),
            sinks: case.sinks().unwrap_or_default(),
            scale: case.scale(),
            mask: case.mask,
            pages_before: 0,
        }
    }

    /// The same behind so many pages more: offsets of pages are as large as in a cache that has them.
    pub(crate) fn behind_pages(self, pages: i32) -> Self {
        Self { pages_before: pages, ..self }
    }

    /// The entries as kernels get them: behind all other pages. What lies past a request's length stays garbage.
    fn shifted_entries(&self) -> Vec<i32> {
        let mut entries = self.entries.clone();
        for (row, &len) in entries.chunks_mut(self.max_pages).zip(&self.seq_lens) {
            let used = len.div_ceil(self.geometry.page_size) as usize;
            row[..used].iter_mut().for_each(|page| *page += self.pages_before);
        }
        entries
    }

    pub(crate) fn table<'a>(&'a self, seq_lens: &'a [u32], memory: &'a mut Queries) -> PageTable<'a> {
        self.table_over(&self.entries, seq_lens, memory)
    }

    fn table_over<'a>(
        &'a self,
        entries: &'a [i32],
        seq_lens: &'a [u32],
        memory: &'a mut Queries,
    ) -> PageTable<'a> {
        let table = PageTable::new(entries, self.max_pages, seq_lens, self.geometry.page_size).unwrap();
        match &self.query_lens {
            None => table,
            Some(query_lens) => table.with_queries(query_lens, memory).unwrap(),
        }
    }

    /// What the reference says.
    pub(crate) fn expected(&self, attention: &Attention<'_>) -> (Vec<f64>, Vec<f64>) {
        let mut memory = Queries::default();
        let (table, strides) = (self.table(&self.seq_lens, &mut memory), self.strides);
        match &self.cache {
            CaseCache::Plain { keys, values } => {
                let cache = KvCache { keys: &keys[..], values: &values[..], strides };
                reference::decode(&self.geometry, &table, &self.query, &cache, attention)
            }
            CaseCache::E4m3(pages) => {
                reference::decode(&self.geometry, &table, &self.query, &pages.on_cpu(strides), attention)
            }
            CaseCache::E5m2(pages) => {
                reference::decode(&self.geometry, &table, &self.query, &pages.on_cpu(strides), attention)
            }
        }
    }

    fn inputs(&self, lengths: &[i32]) -> Inputs {
        let [keys, values, key_scales, value_scales] = match &self.cache {
            CaseCache::Plain { keys, values } => {
                let none: &[f32] = &[];
                [
                    Guarded::read_only(keys),
                    Guarded::read_only(values),
                    Guarded::read_only(none),
                    Guarded::read_only(none),
                ]
            }
            CaseCache::E4m3(pages) => fp8_inputs(pages),
            CaseCache::E5m2(pages) => fp8_inputs(pages),
        };
        let [query, sinks] = [Guarded::read_only(&self.query), Guarded::read_only(&self.sinks)];
        let lengths = Guarded::read_only(lengths);
        Inputs { arrays: [keys, values, key_scales, value_scales, query, sinks, lengths] }
    }

    /// Where the inputs lie.
    fn input_arguments(&self, inputs: &Inputs, sinks: bool) -> Arguments {
        let [keys, values, key_scales, value_scales, query, sink_array, lengths] =
            inputs.arrays.each_ref().map(Guarded::address);
        // The page that the table names first stands where the array begins.
        let page = self.strides.page as u64 * self.geometry.dtype.kv_bytes() as u64;
        let before = u64::from(self.pages_before.unsigned_abs()) * page;
        let arguments = Arguments {
            query,
            keys: keys.wrapping_sub(before),
            values: values.wrapping_sub(before),
            lengths,
            sinks: if sinks { sink_array } else { 0 },
            ..Arguments::default()
        };
        let scales = match &self.cache {
            CaseCache::Plain { .. } => return arguments,
            CaseCache::E4m3(pages) => pages.key_scales.len(),
            CaseCache::E5m2(pages) => pages.key_scales.len(),
        };
        Arguments { key_scales, value_scales, scale_head: i64::from(scales > 1), ..arguments }
    }

    /// Rows (query, query head).
    pub(crate) fn rows(&self) -> usize {
        self.query.len() / self.geometry.head_dim as usize
    }

    /// Output and LSE that nothing was written to.
    fn outputs(&self) -> (Guarded, Guarded) {
        let output = Guarded::writable(&vec![E::from_f32(f32::NAN); self.query.len()]);
        (output, Guarded::writable(&vec![f32::NAN; self.rows()]))
    }

    /// How the batch is planned.
    fn plan(&self, case: &Case, options: &PlanOptions) -> Plan {
        let grown_from = || planned_lens(&self.seq_lens, self.geometry.page_size, case.grown);
        let planned = self.planned_lens.clone().unwrap_or_else(grown_from);
        let (mut memory, entries) = (Queries::default(), self.shifted_entries());
        let table = self.table_over(&entries, &planned, &mut memory);
        Plan::build(&self.geometry, &table, options, |shape: &PackShape| case.tile_of(shape)).unwrap()
    }

    /// Runs the case's kernel and each of the merges; one outcome a merge. `seed` is the order of warps.
    pub(crate) fn launch(
        &self,
        case: &Case,
        options: &PlanOptions,
        emulator: &Emulator,
        seed: u64,
    ) -> Result<Vec<Outcome<E>>, String> {
        let plan = self.plan(case, options);
        let mut grown = Queries::default();
        let mut packed = PackedPlan::default();
        match case.mixed {
            [] => packed.fill(&plan),
            tiles => packed.fill_single(&plan, &Mix::of(tiles)).unwrap(),
        }
        // Kernels load 16 bytes at once: whole ones end, and so begin, where such a load may.
        let mut words = packed.words().to_vec();
        words.resize(packed.span().max(words.len()).next_multiple_of(4), 0);
        let exact = Guarded::read_only(&words);
        // A captured grid is as large as its bucket, which has room for so many items: those of no plan are garbage.
        const MORE_CTAS: u32 = 3;
        words.extend([u32::MAX; MORE_CTAS as usize * size_of::<WorkItem>() / 4]);
        let of_bucket = Guarded::read_only(&words);
        let q_heads = self.geometry.q_heads;
        let lengths: Vec<i32> =
            self.table(&self.seq_lens, &mut grown).seq_lens().map(|len| len as i32).collect();
        let (output, lse) = self.outputs();
        // Exactly what a plan asks for.
        let workspace = Guarded::writable(&vec![f32::NAN; packed.workspace_bytes(&self.geometry) / 4]);
        let planned_at =
            |words: &Guarded| packed.arguments(&self.geometry, words.address(), workspace.address());
        // The lengths are what the requests have grown to since they were planned.
        let inputs = self.inputs(&lengths);
        let given = self.input_arguments(&inputs, case.options.sinks);
        let arguments = |planned: Arguments| Arguments {
            query: given.query,
            keys: given.keys,
            values: given.values,
            key_scales: given.key_scales,
            value_scales: given.value_scales,
            scale_head: given.scale_head,
            sinks: given.sinks,
            lengths: given.lengths,
            query_request: i64::from(q_heads * self.geometry.head_dim),
            query_head: i64::from(self.geometry.head_dim),
            output_request: i64::from(q_heads * self.geometry.head_dim),
            output_head: i64::from(self.geometry.head_dim),
            page: self.strides.page as i64,
            token: self.strides.token as i64,
            head: self.strides.head as i64,
            mask: MaskArguments::of(&self.mask, self.scale),
            ..planned
        };
        let planned = planned_at(&of_bucket);
        let mut args = arguments(planned_at(&of_bucket));
        describe_tensors(&mut args, &self.geometry, &self.strides);
        (args.output, args.lse) = (output.address(), lse.address());
        let mut timeline =
            vec![TimelineEntry::default(); plan.work_items().len() * self.geometry.kv_heads as usize + 3];
        for (index, (_, items)) in packed.launches().enumerate() {
            args.items = planned.items + u64::from(items.start) * size_of::<WorkItem>() as u64;
            let first = items.start * self.geometry.kv_heads;
            args.timeline = timeline[first as usize..].as_mut_ptr() as u64;
            args.group = index as u32;
            let ctas = items.len() as u32 * self.geometry.kv_heads + MORE_CTAS;
            emulator.run_decode(&case.kernel(), &args, ctas, seed)?;
        }
        if case.options.timeline {
            check_timeline(&timeline)?;
        }
        let mut outcomes = Vec::new();
        for merge in case.merges() {
            let merged =
                (Guarded::writable(&output.elements::<E>()), Guarded::writable(&lse.elements::<f32>()));
            (args.output, args.lse) = (merged.0.address(), merged.1.address());
            emulator.run_merge(&merge, &args, plan.merges().len() as u32 * q_heads, seed)?;
            outcomes.push(Outcome { output: merged.0.elements(), lse: merged.1.elements() });
        }
        let mut exactly = arguments(planned_at(&exact));
        describe_tensors(&mut exactly, &self.geometry, &self.strides);
        exactly.timeline = args.timeline;
        outcomes.push(self.launch_fused(case, &plan, &packed, &exactly, emulator, seed)?);
        Ok(outcomes)
    }

    /// The same where the last CTA of a row merges it; twice over where there is such a row, for a graph is launched again and again.
    pub(crate) fn launch_fused(
        &self,
        case: &Case,
        plan: &Plan,
        packed: &PackedPlan,
        args: &Arguments,
        emulator: &Emulator,
        seed: u64,
    ) -> Result<Outcome<E>, String> {
        let mut arrivals = vec![0u32; plan.merges().len() * self.geometry.kv_heads as usize + 1];
        let first_item = args.items;
        let mut outcome = None;
        let launches = if plan.merges().is_empty() { 1 } else { 2 };
        for _ in 0..launches {
            let (output, lse) = self.outputs();
            let mut args = Arguments {
                arrivals: arrivals.as_mut_ptr() as u64,
                output: output.address(),
                lse: lse.address(),
                ..*args
            };
            for (index, (_, items)) in packed.launches().enumerate() {
                args.items = first_item + u64::from(items.start) * size_of::<WorkItem>() as u64;
                args.group = index as u32;
                let ctas = items.len() as u32 * self.geometry.kv_heads;
                emulator.run_decode(&case.kernel(), &args, ctas, seed)?;
            }
            outcome = Some(Outcome { output: output.elements(), lse: lse.elements() });
        }
        if arrivals.iter().any(|&count| count != 0) {
            return Err("the counters of arrivals are not as they were before the launch".to_owned());
        }
        outcome.ok_or_else(|| "nothing was launched".to_owned())
    }

    pub(crate) fn check(&self, case: &Case, emulator: &Emulator) -> Result<(), String> {
        // Whole packs take many steps, cut ones are merged.
        let split = if case.seed.is_multiple_of(2) { Split::Mean } else { Split::Fill };
        self.check_plans(case, emulator, &[Split::None, split].map(|split| case.plan_options(split)))
    }

    /// The same, planned with these options.
    pub(crate) fn check_plans(
        &self,
        case: &Case,
        emulator: &Emulator,
        plans: &[PlanOptions],
    ) -> Result<(), String> {
        assert_eq!(self.mask.options(), case.options.mask);
        let attention = Attention {
            scale: self.scale,
            mask: self.mask,
            sinks: case.options.sinks.then_some(self.sinks.as_slice()),
        };
        let (expected, expected_lse) = self.expected(&attention);
        let tolerance = tolerance(E::DTYPE);
        let mut outcomes = Vec::new();
        for (options, seed) in plans.iter().zip(case.seed..) {
            outcomes.extend(self.launch(case, options, emulator, seed)?);
        }
        for outcome in outcomes {
            let (output, lse) = (widened(&outcome.output), widened(&outcome.lse));
            // Rows without tokens first: where -inf is expected, nothing else may be found.
            if let Some(row) = (0..lse.len())
                .find(|&row| lse[row].is_nan() || lse[row].is_infinite() != expected_lse[row].is_infinite())
            {
                return Err(format!("LSE {} for {} in row {row}", lse[row], expected_lse[row]));
            }
            let head_dim = self.geometry.head_dim as usize;
            let typical = norm(expected.iter().copied()) / (lse.len() as f64).sqrt();
            for (row, (found, expected)) in output.chunks(head_dim).zip(expected.chunks(head_dim)).enumerate()
            {
                let difference = norm(found.iter().zip(expected).map(|(a, b)| a - b));
                // Where V cancels or a sink takes nearly all weight, a row's norm says little about the size of what was summed.
                let error = difference / norm(expected.iter().copied()).max(0.1 * typical);
                if error.is_nan() || error >= 8.0 * tolerance {
                    return Err(format!("the output's error is {error:.1e} in row {row}"));
                }
            }
            let error = relative_error(&output, &expected);
            if error >= tolerance {
                return Err(format!("the output's error is {error:.1e}"));
            }
            let finite =
                |values: &[f64]| values.iter().copied().filter(|x| x.is_finite()).collect::<Vec<_>>();
            let error = relative_error(&finite(&lse), &finite(&expected_lse));
            if error >= tolerance {
                return Err(format!("the LSE's error is {error:.1e}"));
            }
        }
        Ok(())
    }
}

/// All CTAs but the last three, which had nothing to do, have noted what came after what.
fn check_timeline(timeline: &[TimelineEntry]) -> Result<(), String> {
    let (worked, idle) = timeline.split_at(timeline.len() - 3);
    let wrong = worked.iter().find(|cta| {
        // A CTA whose requests have no tokens waits for none.
        let ready = if cta.ready == 0 { cta.begin } else { cta.ready };
        cta.begin == 0 || ready < cta.begin || cta.computed < ready || cta.end < cta.computed
    });
    match wrong.or_else(|| idle.iter().find(|cta| **cta != TimelineEntry::default())) {
        Some(cta) => Err(format!("a CTA notes {cta:?}")),
        None if worked.iter().all(|cta| cta.ready == 0) => Err("no CTA had tokens".to_owned()),
        None => Ok(()),
    }
}

fn widened<E: Element>(elements: &[E]) -> Vec<f64> {
    elements.iter().map(|x| f64::from(x.to_f32())).collect()
}

/// Pages whose first tokens hold numbers; all else is NaN.
pub(crate) fn pages_of<K: Number>(
    geometry: &Geometry,
    strides: &KvStrides,
    filled: &[u32],
    mut number: impl FnMut() -> f32,
) -> Vec<K> {
    let mut elements = vec![K::from_f32(f32::NAN); filled.len() * strides.page];
    for (page, &tokens) in filled.iter().enumerate() {
        for token in 0..tokens as usize {
            for head in 0..geometry.kv_heads as usize {
                let at = page * strides.page + token * strides.token + head * strides.head;
                let vector = &mut elements[at..at + geometry.head_dim as usize];
                vector.iter_mut().for_each(|element| *element = K::from_f32(number()));
            }
        }
    }
    elements
}

/// Pages of FP8, with numbers nearly as large as those of the query's type: their scales are from 1/8 to 1/2.
fn fp8_pages_of<F: Fp8Number>(
    geometry: &Geometry,
    strides: &KvStrides,
    filled: &[u32],
    case: &Case,
    mut random: impl FnMut() -> f32,
) -> Fp8Pages<F> {
    let heads = if case.seed.is_multiple_of(2) { 1 } else { geometry.kv_heads };
    let mut scales = || (0..heads).map(|_| 0.3125 + 0.1875 * random()).collect();
    let (key_scales, value_scales) = (scales(), scales());
    Fp8Pages {
        keys: pages_of(geometry, strides, filled, || 10.0 * random()),
        values: pages_of(geometry, strides, filled, || 4.0 * random()),
        key_scales,
        value_scales,
    }
}

fn fp8_inputs<F: Fp8Number>(pages: &Fp8Pages<F>) -> [Guarded; 4] {
    let Fp8Pages { keys, values, key_scales, value_scales } = pages;
    [
        Guarded::read_only(keys),
        Guarded::read_only(values),
        Guarded::read_only(key_scales),
        Guarded::read_only(value_scales),
    ]
}

/// The lengths that a case plans for: those of requests that grow afterwards end with the first token of their last page.
pub(crate) fn planned_lens(seq_lens: &[u32], page_size: u32, grown: bool) -> Vec<u32> {
    let planned = |&len: &u32| if grown { len - (len.max(1) - 1) % page_size } else { len };
    seq_lens.iter().map(planned).collect()
}

/// Numbers from -1 to 1 (xorshift). Millions are drawn, and in tests the crate's generators are not optimised.
pub(crate) fn random_numbers(seed: u64) -> impl FnMut() -> f32 {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

pub(crate) fn kernels_of(cases: &[Case]) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    for kernel in cases.iter().flat_map(|case| std::iter::once(case.kernel()).chain(case.merges())) {
        if !kernels.contains(&kernel) {
            kernels.push(kernel);
        }
    }
    kernels
}

/// Checks all cases; panics with what went wrong.
pub(crate) fn check_all(emulator: &Emulator, cases: &[Case]) {
    for_all(cases, |case| case.check(emulator));
}

/// Does it with all of them, on all processors; panics with what went wrong.
pub(crate) fn for_all<T: Sync>(all: &[T], check: impl Fn(&T) -> Result<(), String> + Sync) {
    let (next, failures) = (Mutex::new(all.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(one) = next.lock().unwrap().next() else { break };
                    if let Err(error) = check(one) {
                        failures.lock().unwrap().push(error);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), all.len(), failures.join("\n"));
}

pub(crate) const CASE: Case = Case {
    tile: Tile::of("m16n32w2s2"),
    class: Class { head_dim: 64, dtype: Dtype::F16 },
    options: KernelOptions {
        mask: MaskOptions::NONE,
        sinks: false,
        timeline: false,
        kv_load: KvLoad::Tma,
        invariant: false,
        merge_by_last_cta: false,
    },
    gqa_ratio: 4,
    kv_heads: 2,
    page_size: 16,
    packing: Packing::Pat,
    grown: false,
    hnd: false,
    own: 0,
    queries: 0,
    seed: 0,
    warpgroups: false,
    mixed: &[],
};
