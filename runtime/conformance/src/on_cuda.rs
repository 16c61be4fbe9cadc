//! Awkward cases on the CUDA backend.

use super::{CaseCache, ConformanceCase, Fp8Pages, Layout};
use cudarc::driver::{CudaContext, CudaStream, DeviceRepr};
use std::collections::HashMap;
use std::sync::Arc;
use tilewright_cpu::Element;
use tilewright_cuda::{
    CudaBackend, CudaDevice, CudaElement, CudaError, DeviceMemory, DevicePlan, RawArgs, RawScales,
    RowStrides, kv_load,
};
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
use tilewright_kernel_templates::cuda::KernelOptions;
use tilewright_plan::{E4m3, E5m2, PageTable, Plan, PlanError, PlanOptions, Queries, Split};

/// Elements that do not fit 32 bits.
const FAR_ELEMENTS: usize = 1 << 31;

/// A case with its K, V and Q in device memory, to be computed under many tiles.
#[derive(Debug)]
pub struct CudaCase {
    /// The case.
    pub case: ConformanceCase,
    keys: DeviceMemory,
    values: DeviceMemory,
    query: DeviceMemory,
    output: DeviceMemory,
    lse: DeviceMemory,
    sinks: DeviceMemory,
    scales: Option<Scales>,
    /// Pages before the case's first one.
    pages_before: i32,
    /// Uploaded plans by options and by m, on which alone of a tile they depend.
    plans: HashMap<(PlanOptions, u16), (DevicePlan, DeviceMemory)>,
}

/// Scales of FP8, one number or one a KV head.
#[derive(Debug)]
struct Scales {
    keys: DeviceMemory,
    values: DeviceMemory,
    per_head: bool,
}

/// Why a case gave no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// It cannot be launched or finished.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl CudaCase {
    /// Draws K, V and Q, and uploads them.
    ///
    /// # Errors
    /// The driver's.
    pub fn new<E: CudaElement + Element>(
        case: ConformanceCase,
        device: &CudaDevice,
    ) -> Result<Self, CudaError> {
        Self::with_pages_before::<E>(case, device, 0)
    }

    /// The same behind unused pages of more than 2^31 elements: 32-bit offsets would read elsewhere.
    ///
    /// # Errors
    /// The driver's; 8 GB of device memory are needed.
    pub fn far<E: CudaElement + Element>(
        case: ConformanceCase,
        device: &CudaDevice,
    ) -> Result<Self, CudaError> {
        let pages = FAR_ELEMENTS.div_ceil(case.strides().page);
        Self::with_pages_before::<E>(case, device, i32::try_from(pages).unwrap_or(i32::MAX / 2))
    }

    fn with_pages_before<E: CudaElement + Element>(
        case: ConformanceCase,
        device: &CudaDevice,
        pages_before: i32,
    ) -> Result<Self, CudaError> {
        let context = device.context();
        let before = pages_before as usize * case.strides().page * case.geometry.dtype.kv_bytes();
        let query = case.query::<E>();
        let heads = case.queries() * case.geometry.q_heads as usize;
        let without = || vec![f32::NEG_INFINITY; case.geometry.q_heads as usize];
        let sinks = case.sinks().unwrap_or_else(without);
        let on_device = DeviceMemory::new(context, size_of_val(&sinks[..]))?;
        on_device.write(0, &sinks)?;
        let (keys, values, scales) = match case.cache::<E>() {
            CaseCache::Plain { keys, values } => {
                (upload(context, &keys, before)?, upload(context, &values, before)?, None)
            }
            CaseCache::E4m3(pages) => upload_fp8(context, &pages, E4m3::to_bits, before)?,
            CaseCache::E5m2(pages) => upload_fp8(context, &pages, E5m2::to_bits, before)?,
        };
        let mut this = Self {
            keys,
            values,
            scales,
            output: DeviceMemory::new(context, 0)?,
            query: DeviceMemory::new(context, 0)?,
            lse: DeviceMemory::new(context, heads * 4)?,
            sinks: on_device,
            pages_before,
            plans: HashMap::new(),
            case,
        };
        let mut spread = vec![E::from_f32(f32::NAN); this.row_elements()];
        for (vector, at) in query.chunks(this.case.geometry.head_dim as usize).zip(this.vectors()) {
            spread[at..at + vector.len()].copy_from_slice(vector);
        }
        this.query = upload(context, &spread, 0)?;
        this.output = DeviceMemory::new(context, size_of_val(&spread[..]))?;
        Ok(this)
    }

    /// What its kernels have compiled in.
    pub fn options(&self) -> KernelOptions {
        options_of(&self.case)
    }

    /// Output and LSE under one tile, for [`ConformanceCase::check`]. The tile must be prepared for the case's class and options.
    ///
    /// # Errors
    /// Why it cannot be planned, launched or finished.
    pub fn run(
        &mut self,
        backend: &CudaBackend,
        stream: &CudaStream,
        tile: &Tile,
    ) -> Result<(Vec<f64>, Vec<f64>), RunError> {
        self.run_on(backend, stream, tile, self.options(), self.case.options)
    }

    /// As [`CudaCase::run`], planned in another way, and on a variant that may have mask options
    /// ([`tilewright_heuristics::MaskOptions::serves`]) and sinks that the case has not: a window of all tokens and sinks of -inf then stand
    /// for none.
    ///
    /// # Errors
    /// As [`CudaCase::run`].
    pub fn run_on(
        &mut self,
        backend: &CudaBackend,
        stream: &CudaStream,
        tile: &Tile,
        options: KernelOptions,
        planned: PlanOptions,
    ) -> Result<(Vec<f64>, Vec<f64>), RunError> {
        let key = (planned, tile.m);
        if !self.plans.contains_key(&key) {
            let plan = self.planned(planned, |_| *tile)?;
            let mut uploaded = DevicePlan::new(backend.device());
            uploaded.upload(&plan, stream)?;
            let workspace = DeviceMemory::new(backend.device().context(), uploaded.workspace_bytes())?;
            self.plans.insert(key, (uploaded, workspace));
        }
        let Some((uploaded, _)) = self.plans.get_mut(&key) else { return Ok(Default::default()) };
        uploaded.retile(tile);
        let Some((uploaded, workspace)) = self.plans.get(&key) else { return Ok(Default::default()) };
        self.execute(backend, stream, (uploaded, workspace), options)
    }

    /// As [`CudaCase::run`], under several tiles at once, of which `select` chooses one for each pack, and launched as `plan` wants to be.
    ///
    /// # Errors
    /// As [`CudaCase::run`].
    pub fn run_in(
        &self,
        backend: &CudaBackend,
        stream: &CudaStream,
        plan: &mut DevicePlan,
        planned: PlanOptions,
        select: impl FnMut(&PackShape) -> Tile,
    ) -> Result<(Vec<f64>, Vec<f64>), RunError> {
        plan.upload(&self.planned(planned, select)?, stream)?;
        let workspace = DeviceMemory::new(backend.device().context(), plan.workspace_bytes())?;
        self.execute(backend, stream, (plan, &workspace), self.options())
    }

    fn planned(
        &self,
        options: PlanOptions,
        select: impl FnMut(&PackShape) -> Tile,
    ) -> Result<Plan, PlanError> {
        let shifted: Vec<i32> = self.case.page_table.iter().map(|page| self.shift(*page)).collect();
        let geometry = &self.case.geometry;
        let table = PageTable::new(&shifted, self.case.max_pages, &self.case.seq_lens, geometry.page_size)?;
        let mut queries = Queries::default();
        let table = self.case.with_queries(table, &mut queries)?;
        Plan::build(geometry, &table, &options, select)
    }

    /// As [`CudaCase::run`], under a plan that was made when requests had these lengths, and with the lengths of the case on the device:
    /// requests grow inside their pages without a new plan.
    ///
    /// # Errors
    /// As [`CudaCase::run`].
    pub fn run_grown(
        &mut self,
        backend: &CudaBackend,
        stream: &CudaStream,
        tile: &Tile,
        planned: &[u32],
    ) -> Result<(Vec<f64>, Vec<f64>), RunError> {
        let geometry = &self.case.geometry;
        let table = PageTable::new(&self.case.page_table, self.case.max_pages, planned, geometry.page_size)?;
        let mut queries = Queries::default();
        let table = self.case.with_queries(table, &mut queries)?;
        let plan = Plan::build(geometry, &table, &self.case.options, *tile)?;
        let mut uploaded = DevicePlan::new(backend.device());
        uploaded.upload(&plan, stream)?;
        match &self.case.query_lens {
            None => uploaded.set_lengths(&self.case.seq_lens, stream)?,
            Some(query_lens) => {
                let mut visible = vec![0; uploaded.batch()];
                Queries::write_visible(&self.case.seq_lens, query_lens, &mut visible)?;
                uploaded.set_lengths(&visible, stream)?;
            }
        }
        let workspace = DeviceMemory::new(backend.device().context(), uploaded.workspace_bytes())?;
        self.execute(backend, stream, (&uploaded, &workspace), self.options())
    }

    /// Distances of the query and the output: gaps where K and V have some.
    fn row_strides(&self) -> RowStrides {
        let Geometry { q_heads, head_dim, .. } = self.case.geometry;
        match self.case.layout {
            Layout::Nhd | Layout::Hnd => RowStrides::dense(&self.case.geometry),
            Layout::Gapped => {
                let head = head_dim as usize + 8;
                RowStrides { request: head * q_heads as usize + 24, head }
            }
        }
    }

    /// Elements of the query and of the output, gaps among them.
    fn row_elements(&self) -> usize {
        self.case.queries() * self.row_strides().request
    }

    /// Where the vectors of the query and the output begin, in the order of `[queries, q_heads]`.
    fn vectors(&self) -> impl Iterator<Item = usize> + use<> {
        let (strides, q_heads) = (self.row_strides(), self.case.geometry.q_heads as usize);
        (0..self.case.queries() * q_heads)
            .map(move |row| row / q_heads * strides.request + row % q_heads * strides.head)
    }

    /// Executes an uploaded plan.
    fn execute(
        &self,
        backend: &CudaBackend,
        stream: &CudaStream,
        (uploaded, workspace): (&DevicePlan, &DeviceMemory),
        options: KernelOptions,
    ) -> Result<(Vec<f64>, Vec<f64>), RunError> {
        let geometry = &self.case.geometry;
        // Poison shows what was never written; it is NaN in every element type.
        self.output.fill(0xff, stream)?;
        self.lse.fill(0xff, stream)?;
        workspace.fill(0xff, stream)?;
        let args = RawArgs {
            query: self.query.address(),
            query_strides: self.row_strides(),
            keys: self.keys.address(),
            values: self.values.address(),
            kv_strides: self.case.strides(),
            output: self.output.address(),
            output_strides: self.row_strides(),
            lse: Some(self.lse.address()),
            workspace: workspace.address(),
            scale: self.case.scale(),
            mask: self.case.mask.with(options.mask),
            sinks: options.sinks.then_some(self.sinks.address()),
            scales: self.scales.as_ref().map(|scales| RawScales {
                keys: scales.keys.address(),
                values: scales.values.address(),
                per_head: scales.per_head,
            }),
            lengths: None,
            timeline: None,
        };
        // SAFETY: all memory is as large as the case says, and outlives the work: the reads below wait for it.
        #[allow(unsafe_code)]
        unsafe {
            backend.decode_raw(stream.cu_stream(), uploaded, &args)?;
        }
        let output = match geometry.dtype {
            Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => self.read::<half::bf16>(stream)?,
            Dtype::F16 | Dtype::Fp8F16 | Dtype::E5m2F16 | Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F32 => {
                self.read::<half::f16>(stream)?
            }
        };
        let mut lse = vec![0.0f32; self.lse.bytes() / 4];
        self.lse.read(0, &mut lse, stream)?;
        Ok((output, lse.into_iter().map(f64::from).collect()))
    }

    fn read<E: CudaElement + Element>(&self, stream: &CudaStream) -> Result<Vec<f64>, CudaError> {
        let mut output = vec![E::from_f32(0.0); self.output.bytes() / size_of::<E>()];
        self.output.read(0, &mut output, stream)?;
        let head_dim = self.case.geometry.head_dim as usize;
        let vectors = self.vectors().flat_map(|at| &output[at..at + head_dim]);
        Ok(vectors.map(|x| f64::from(x.to_f32())).collect())
    }

    /// Garbage past a request's pages stays garbage.
    const fn shift(&self, page: i32) -> i32 {
        if page < 0 || page as usize >= self.case.pages { page } else { page + self.pages_before }
    }
}

/// Memory with elements behind unused bytes.
fn upload<T: DeviceRepr>(
    context: &Arc<CudaContext>,
    elements: &[T],
    before: usize,
) -> Result<DeviceMemory, CudaError> {
    let memory = DeviceMemory::new(context, before + size_of_val(elements))?;
    memory.write(before, elements)?;
    Ok(memory)
}

/// K, V and their scales.
fn upload_fp8<F: Copy>(
    context: &Arc<CudaContext>,
    pages: &Fp8Pages<F>,
    to_bits: fn(F) -> u8,
    before: usize,
) -> Result<(DeviceMemory, DeviceMemory, Option<Scales>), CudaError> {
    let bits = |numbers: &[F]| numbers.iter().map(|&number| to_bits(number)).collect::<Vec<u8>>();
    let scales = Scales {
        keys: upload(context, &pages.key_scales, 0)?,
        values: upload(context, &pages.value_scales, 0)?,
        per_head: pages.key_scales.len() > 1,
    };
    let (keys, values) = (bits(&pages.keys), bits(&pages.values));
    Ok((upload(context, &keys, before)?, upload(context, &values, before)?, Some(scales)))
}

/// What the kernels of a case have compiled in.
pub fn options_of(case: &ConformanceCase) -> KernelOptions {
    KernelOptions {
        mask: case.mask.options(),
        sinks: case.sinks,
        timeline: false,
        kv_load: kv_load(&case.strides(), &case.geometry),
        invariant: case.options.split == Split::Invariant,
        merge_by_last_cta: false,
    }
}
