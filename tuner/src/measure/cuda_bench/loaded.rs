//! A batch on a GPU: its plans are captured, compared with each other, and replayed for each sample.

use super::pool::{Pool, Rows};
use super::spares::Spare;
use super::{CudaBench, failure_of, timeline};
use crate::measure::bench::rows_of;
use crate::measure::{
    BenchError, Execution, Failure, Loaded, PlanFacts, PlanId, PlanTiles, Planning, worst_row,
};
use crate::store::{Status, Timeline};
use tilewright_conformance::tolerance;
use tilewright_cuda::{CudaError, DeviceMemory, Graph, Launch, LaunchMode, Mix, RawArgs, RawScales};
use tilewright_heuristics::{Dtype, Geometry, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_plan::{ChooseTiles, PageTable, Plan};
use tilewright_scenarios::Batch;

/// Part of the free memory that a batch may take, and that it may take beside pages of other element types, which are given up for it otherwise.
const USABLE_MEMORY: f64 = 0.8;
const USABLE_BESIDE_OTHERS: f64 = 0.4;

/// Two bytes that no output has: NaN in every format.
const NEVER_WRITTEN: u16 = 0xffff;

/// A batch whose pages are the pool's.
pub(super) struct LoadedBatch<'a> {
    batch: &'a Batch,
    bench: &'a mut CudaBench,
    /// Queries and outputs, of which it has the first `row_bytes`; `None` once it is dropped.
    rows: Option<Rows>,
    row_bytes: usize,
    plans: Vec<Planned>,
}

/// A plan, and what became of it on the device.
struct Planned {
    plan: Plan,
    execution: Execution,
    captured: Result<Captured, Failure>,
}

/// A plan on the device, captured. Fields are dropped in this order: the graph before the memory that it names.
struct Captured {
    graph: Graph,
    memory: Spare,
}

impl<'a> LoadedBatch<'a> {
    pub(super) fn new(bench: &'a mut CudaBench, batch: &'a Batch) -> Result<Self, BenchError> {
        let geometry = batch.geometry;
        let device =
            |error: CudaError| BenchError::Device { batch: batch.name.clone(), message: error.to_string() };
        let token = (geometry.kv_heads * geometry.head_dim) as usize * geometry.dtype.kv_bytes();
        let bytes = batch.pages as usize * geometry.page_size as usize * token;
        let queries =
            batch.requests() * (geometry.q_heads * geometry.head_dim) as usize * geometry.dtype.query_bytes();
        let (dtype, query) = (geometry.dtype, geometry.dtype.query());
        if !bench.pools.iter().any(|pool| pool.serves(dtype, bytes)) {
            bench.pools.retain(|pool| !pool.is_of(dtype));
            let needed = 2 * bytes as u64;
            let has_room = |bench: &CudaBench, part: f64| -> Result<bool, CudaError> {
                Ok(needed as f64 <= bench.device.free_memory()? as f64 * part)
            };
            if !has_room(bench, USABLE_BESIDE_OTHERS).map_err(device)? {
                bench.pools.clear();
            }
            if !has_room(bench, USABLE_MEMORY).map_err(device)? {
                return Err(BenchError::TooLarge {
                    batch: batch.name.clone(),
                    needed_mb: needed >> 20,
                    available_mb: bench.device.free_memory().map_err(device)? >> 20,
                });
            }
            bench.pools.push(Pool::new(&bench.device, dtype, bytes).map_err(device)?);
        }
        let rows = match bench.rows.iter().position(|rows| rows.serves(query, queries)) {
            Some(found) => bench.rows.swap_remove(found),
            None => {
                bench.rows.retain(|rows| !rows.is_of(query));
                Rows::new(&bench.device, query, queries).map_err(device)?
            }
        };
        Ok(Self { batch, bench, rows: Some(rows), row_bytes: queries, plans: Vec::new() })
    }

    fn build(&self, planning: Planning, choose: impl ChooseTiles) -> Result<Plan, BenchError> {
        let Batch { page_table, max_pages, seq_lens, geometry, .. } = self.batch;
        let options = planning.options(self.bench.plan_options());
        let planned = PageTable::new(page_table, *max_pages, seq_lens, geometry.page_size)
            .and_then(|table| Plan::build(geometry, &table, &options, choose));
        planned.map_err(|source| BenchError::Plan { batch: self.batch.name.clone(), source })
    }

    fn capture(&mut self, plan: &Plan, execution: &Execution) -> Result<Captured, Failure> {
        // Mostly they are there; a process that takes another's place has none yet.
        let tiles: Vec<Tile> = plan.tile_groups().iter().map(|group| group.tile).collect();
        let geometry = &self.batch.geometry;
        let class = Class::of(geometry);
        let arch = self.bench.backend.compiler().arch();
        let options =
            KernelOptions { invariant: plan.is_invariant(), ..KernelOptions::for_pages(geometry.page_size) };
        let options = options.on(&class, arch);
        self.bench.compile(&tiles, &class, options);
        for tile in &tiles {
            if let Some(Err(failure)) = self.bench.compiled.get(&(class, options, *tile)) {
                return Err(failure.clone());
            }
        }
        if execution.launch_mode == LaunchMode::DEFAULT {
            return self.capture_compiled(plan, execution).map_err(failure_of);
        }
        if execution.launch_mode.launch == Launch::Single {
            let mix = execution.mix.clone().unwrap_or_else(|| Mix::of(&tiles));
            self.bench.compile_mix(&mix, &class, options)?;
        }
        let captured = self.capture_compiled(plan, execution).map_err(failure_of)?;
        self.check(plan, &captured, &execution.launch_mode)?;
        Ok(captured)
    }

    fn capture_compiled(&mut self, plan: &Plan, execution: &Execution) -> Result<Captured, CudaError> {
        let single = execution.launch_mode.launch == Launch::Single;
        let mix = execution.mix.as_ref().filter(|_| single);
        let mut memory = self.bench.plan_memory(execution.launch_mode, mix)?;
        let CudaBench { device, backend, stream, .. } = &*self.bench;
        memory.uploaded.upload(plan, stream)?;
        let needed = memory.uploaded.workspace_bytes();
        if memory.workspace.bytes() < needed {
            memory.workspace = DeviceMemory::new(device.context(), needed)?;
        }
        let args = self.args(&memory.workspace);
        // SAFETY: all memory is as large as the batch and the plan say, and lives as long as the graph.
        let graph = unsafe {
            Graph::capture(stream, || backend.decode_raw(stream.cu_stream(), &memory.uploaded, &args))?
        };
        Ok(Captured { graph, memory })
    }

    fn args(&self, workspace: &DeviceMemory) -> RawArgs {
        let dtype = self.batch.geometry.dtype;
        let pool = self.bench.pools.iter().find(|pool| pool.is_of(dtype));
        let pool = pool.map(Pool::addresses).unwrap_or_default();
        let [query, output] =
            self.rows.as_ref().map_or([0; 2], |rows| [rows.query.address(), rows.output.address()]);
        RawArgs {
            query,
            keys: pool.keys,
            values: pool.values,
            output,
            workspace: workspace.address(),
            scales: Some(RawScales { keys: pool.scale, values: pool.scale, per_head: false }),
            ..RawArgs::dense(&self.batch.geometry)
        }
    }

    /// That a launch mode computes what the default does. Tiles were verified one by one under the default; another way is verified
    /// by this, before it is timed.
    fn check(&mut self, plan: &Plan, captured: &Captured, launch_mode: &LaunchMode) -> Result<(), Failure> {
        let reference = self.capture_compiled(plan, &Execution::default()).map_err(failure_of)?;
        let expected = self.bits(&reference).map_err(failure_of)?;
        let Captured { graph, memory } = reference;
        drop(graph);
        self.bench.keep(memory);
        let found = self.bits(captured).map_err(failure_of)?;
        // Mostly they are equal, each bit; what is never written is, too.
        if found == expected && !found.contains(&NEVER_WRITTEN) {
            return Ok(());
        }
        let (found, expected) = (self.numbers(&found), self.numbers(&expected));
        let Geometry { head_dim, dtype, .. } = self.batch.geometry;
        let (error, allowed) = (worst_row(&found, &expected, head_dim as usize), tolerance(dtype));
        if error < allowed {
            return Ok(());
        }
        let message = format!(
            "launched as {launch_mode}, a row differs from the default's by {error:.1e} of its norm, allowed {allowed:.0e}"
        );
        Err(Failure { status: Status::Correctness, message })
    }

    /// What a plan computes, as it lies in the output.
    fn bits(&self, captured: &Captured) -> Result<Vec<u16>, CudaError> {
        let stream = &self.bench.stream;
        let mut bits = vec![0u16; self.row_bytes / size_of::<u16>()];
        if let Some(Rows { output, .. }) = &self.rows {
            output.fill(NEVER_WRITTEN.to_le_bytes()[0], stream)?;
            captured.graph.launch(stream)?;
            output.read(0, &mut bits, stream)?;
        }
        Ok(bits)
    }

    fn numbers(&self, bits: &[u16]) -> Vec<f32> {
        let number = match self.batch.geometry.dtype.query() {
            Dtype::Bf16 => |bits| half::bf16::from_bits(bits).to_f32(),
            _ => |bits| half::f16::from_bits(bits).to_f32(),
        };
        bits.iter().map(|&bits| number(bits)).collect()
    }
}

impl Drop for LoadedBatch<'_> {
    fn drop(&mut self) {
        for planned in std::mem::take(&mut self.plans) {
            if let Ok(Captured { graph, memory }) = planned.captured {
                drop(graph);
                self.bench.keep(memory);
            }
        }
        // Nothing that was launched on them is still running.
        self.bench.rows.extend(self.rows.take());
    }
}

impl Loaded for LoadedBatch<'_> {
    fn limit_us(&self) -> f64 {
        let peak = match self.bench.cuda_limits().matrix_flops {
            0 => f64::INFINITY,
            flops => flops as f64,
        };
        let bytes = self.batch.unique_bytes() + 2 * self.row_bytes as u64;
        let figures = &self.bench.figures;
        figures.read_us(bytes).max(self.batch.flops() / peak * 1e6 + figures.launch_us)
    }

    fn plan(&mut self, execution: &Execution, tiles: &PlanTiles) -> Result<PlanId, BenchError> {
        let plan = self.build(execution.planning, tiles)?;
        let mut execution = execution.clone();
        if execution.launch_mode.launch == Launch::Single
            && execution.mix.is_some()
            && plan.tile_groups().len() == 1
        {
            // As decoders do: a plan that has one tile of its set is launched as that tile's kernel.
            (execution.launch_mode.launch, execution.mix) = (Launch::Serial, None);
        }
        // What cannot be captured fails when it is sampled: the other plans are measured all the same.
        let captured = self.capture(&plan, &execution);
        self.plans.push(Planned { plan, execution, captured });
        Ok(PlanId(self.plans.len() - 1))
    }

    fn plan_facts(&self, plan: PlanId) -> Option<PlanFacts> {
        self.plans.get(plan.0).map(|planned| PlanFacts::of(&planned.plan))
    }

    fn sample(&mut self, plan: PlanId) -> Result<f64, Failure> {
        let CudaBench { stream, timer, flush, .. } = &*self.bench;
        let Captured { graph, .. } = self.plans[plan.0].captured.as_ref().map_err(Clone::clone)?;
        flush.queue(stream).map_err(failure_of)?;
        timer.time_us(stream, || graph.launch(stream)).map_err(failure_of)
    }

    fn outputs(&mut self, plan: PlanId, requests: &[usize]) -> Result<Vec<f32>, Failure> {
        let captured = self.plans[plan.0].captured.as_ref().map_err(Clone::clone)?;
        let output = self.numbers(&self.bits(captured).map_err(failure_of)?);
        let Geometry { q_heads, head_dim, .. } = self.batch.geometry;
        rows_of(&output, (q_heads * head_dim) as usize, requests)
    }

    fn timeline(&mut self, plan: PlanId) -> Result<Timeline, Failure> {
        let Planned { plan, execution, captured } = &self.plans[plan.0];
        let Spare { uploaded, workspace, .. } = &captured.as_ref().map_err(Clone::clone)?.memory;
        if execution.launch_mode != LaunchMode::DEFAULT {
            let message = format!(
                "timelines are recorded as {}, not as {}",
                LaunchMode::DEFAULT,
                execution.launch_mode
            );
            return Err(Failure { status: Status::Constraints, message });
        }
        let args = self.args(workspace);
        // SAFETY: all memory is as large as the batch and the plan say; what is recorded is waited for.
        unsafe { timeline::record(self.bench, plan, execution.planning, uploaded, &args) }
    }
}
