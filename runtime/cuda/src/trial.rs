//! One launch of each kernel before it is trusted, on a batch whose answer is known without a reference.
//!
//! All tokens that a request sees have the same K and the same V. So its softmax is uniform: its output is that V, and its LSE follows from
//! one logit and the number of its tokens. What no request sees is large, in K as in V, so that a page, a token or a dimension that is read
//! from elsewhere shows. Requests share pages and nodes are packs of their own, so partials are merged too.
#![allow(unsafe_code)]

use super::side_streams::Stream;
use super::{CudaBackend, CudaError, DeviceMemory, DevicePlan, LaunchMode, MergeBy, Mix, RawArgs, RawScales};
use half::{bf16, f16};
use tilewright_heuristics::{Dtype, Fp8, Geometry, Mask, Tile};
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{KernelOptions, KvLoad};
use tilewright_plan::{E4m3, E5m2, Packing, PageTable, PlanOptions, Planner, Split};

const REQUESTS: usize = 3;
/// Tokens of each request; the last page is not full.
const SEQ_LENS: [u32; REQUESTS] = [83, 96, 131];
/// Pages that all requests share.
const SHARED_PAGES: usize = 3;
/// What no request sees.
const UNSEEN: f32 = 448.0;
const SINK: f32 = 0.5;
/// Differences that rounding to 8 bits of mantissa, and a hyperbolic tangent of the hardware, may make.
const TOLERANCE: f32 = 0.02;

/// The batch, and what has to come out of it.
#[derive(Debug)]
struct Trial {
    geometry: Geometry,
    options: KernelOptions,
    pages: Vec<i32>,
    max_pages: usize,
}

impl Trial {
    fn new(class: &Class, options: KernelOptions) -> Self {
        // TMA copies pages of multiples of 16 tokens.
        let page_size = if options.kv_load == KvLoad::Tma { 16 } else { 8 };
        let geometry =
            Geometry { q_heads: 8, kv_heads: 2, head_dim: class.head_dim, page_size, dtype: class.dtype };
        let max_pages = SEQ_LENS.iter().map(|len| len.div_ceil(page_size) as usize).max().unwrap_or(0);
        // Every second page is no request's.
        let mut next = 1;
        let mut page = || {
            next += 2;
            next
        };
        let shared: Vec<i32> = (0..SHARED_PAGES).map(|_| page()).collect();
        let mut pages = Vec::new();
        for len in SEQ_LENS {
            let used = len.div_ceil(page_size) as usize;
            pages.extend(&shared);
            pages.extend((SHARED_PAGES..used).map(|_| page()));
            pages.resize(pages.len() + max_pages - used, -1);
        }
        Self { geometry, options, pages, max_pages }
    }

    fn table(&self) -> Result<PageTable<'_>, CudaError> {
        Ok(PageTable::new(&self.pages, self.max_pages, &SEQ_LENS, self.geometry.page_size)?)
    }

    /// An element of every K and V that is seen: both formats of FP8 have it exactly, and neighbours differ.
    fn seen(dim: usize) -> f32 {
        ((dim * 5 % 7) as f32 - 3.0) / 4.0
    }

    /// The dimension of each query head that is not zero in its query.
    const fn asked(&self, q_head: usize) -> usize {
        (q_head * 37 + 3) % self.geometry.head_dim as usize
    }

    /// `[batch, q_heads, head_dim]`.
    fn query(&self) -> Vec<f32> {
        let dims = self.geometry.head_dim as usize;
        let heads = self.geometry.q_heads as usize;
        let of_head = |head: usize| (0..dims).map(move |dim| if dim == self.asked(head) { 8.0 } else { 0.0 });
        (0..REQUESTS * heads).flat_map(|row| of_head(row % heads)).collect()
    }

    /// `[pages, page_size, kv_heads, head_dim]`, the same for K and V.
    fn cache(&self) -> Vec<f32> {
        let dims = self.geometry.head_dim as usize;
        let token = self.geometry.kv_heads as usize * dims;
        let page_size = self.geometry.page_size as usize;
        let last = self.pages.iter().copied().max().unwrap_or(0) as usize;
        let mut cache = vec![UNSEEN; (last + 2) * page_size * token];
        for (row, len) in self.pages.chunks(self.max_pages).zip(SEQ_LENS) {
            for seen in 0..len as usize {
                let begin = (row[seen / page_size] as usize * page_size + seen % page_size) * token;
                for (at, element) in cache[begin..begin + token].iter_mut().enumerate() {
                    *element = Self::seen(at % dims);
                }
            }
        }
        cache
    }

    fn scale(&self) -> f32 {
        1.0 / (self.geometry.head_dim as f32).sqrt()
    }

    /// A mask with all options that are compiled in. It hides no token.
    fn mask(&self) -> Mask {
        Mask::NONE.with(self.options.mask)
    }

    /// LSE of a row, and the share of its output that is its tokens' and not the sink's.
    fn expected(&self, request: usize, q_head: usize) -> (f32, f32) {
        let logit = 8.0 * Self::seen(self.asked(q_head)) * self.scale();
        let mut logits = vec![f64::from(logit); SEQ_LENS[request] as usize];
        self.mask().apply(&mut logits);
        let tokens = logits.iter().map(|logit| logit.exp()).sum::<f64>() as f32;
        let sink = if self.options.sinks { SINK.exp() } else { 0.0 };
        ((tokens + sink).ln(), tokens / (tokens + sink))
    }

    /// The first number that is not what it has to be.
    fn check(&self, output: &[f32], lse: &[f32]) -> Result<(), String> {
        let (heads, dims) = (self.geometry.q_heads as usize, self.geometry.head_dim as usize);
        let wrong = |found: f32, expected: f32| found.is_nan() || (found - expected).abs() > TOLERANCE;
        for (row, (output, &lse)) in output.chunks(dims).zip(lse).enumerate() {
            let (request, head) = (row / heads, row % heads);
            let (expected_lse, share) = self.expected(request, head);
            if wrong(lse, expected_lse) {
                return Err(format!(
                    "the LSE of request {request}, head {head} is {lse}, not {expected_lse}"
                ));
            }
            let differs =
                output.iter().enumerate().find(|&(dim, &found)| wrong(found, share * Self::seen(dim)));
            if let Some((dim, found)) = differs {
                let expected = share * Self::seen(dim);
                return Err(format!(
                    "element {dim} of request {request}, head {head} is {found}, not {expected}"
                ));
            }
        }
        Ok(())
    }
}

/// The batch on the device, for tiles of one class of kernels under the same options, one after another: several hundred KB, and a stream.
#[derive(Debug)]
pub struct TrialMemory {
    class: Class,
    trial: Trial,
    stream: Stream,
    on_device: DevicePlan,
    query: DeviceMemory,
    cache: DeviceMemory,
    output: DeviceMemory,
    lse: DeviceMemory,
    workspace: DeviceMemory,
    ones: DeviceMemory,
    sinks: DeviceMemory,
}

impl TrialMemory {
    /// Of a class of kernels and its options. Timelines are not recorded: the options are taken without.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(backend: &CudaBackend, class: &Class, options: KernelOptions) -> Result<Self, CudaError> {
        let options = KernelOptions { timeline: false, ..options.on(class, backend.compiler().arch()) };
        let trial = Trial::new(class, options);
        let device = backend.device();
        let context = device.context();
        let (query, cache) = (trial.query(), trial.cache());
        let of_query = class.dtype.query();
        let memory = |bytes: &[u8]| {
            let memory = DeviceMemory::new(context, bytes.len())?;
            memory.write(0, bytes).map(|()| memory)
        };
        let of_kv = match class.dtype.fp8() {
            None => bytes_of(&cache, of_query),
            Some(Fp8::E4m3) => cache.iter().map(|&value| E4m3::from_f32(value).to_bits()).collect(),
            Some(Fp8::E5m2) => cache.iter().map(|&value| E5m2::from_f32(value).to_bits()).collect(),
        };
        let ones = DeviceMemory::new(context, 4)?;
        ones.write(0, &[1f32])?;
        let sinks = DeviceMemory::new(context, 4 * trial.geometry.q_heads as usize)?;
        sinks.repeat(&[SINK])?;
        Ok(Self {
            class: *class,
            stream: Stream::new(context)?,
            on_device: DevicePlan::with_launch_mode(
                device,
                LaunchMode { merge: merge_by(options), ..LaunchMode::DEFAULT },
            ),
            query: memory(&bytes_of(&query, of_query))?,
            cache: memory(&of_kv)?,
            output: DeviceMemory::new(context, 2 * query.len())?,
            lse: DeviceMemory::new(context, 4 * REQUESTS * trial.geometry.q_heads as usize)?,
            workspace: DeviceMemory::new(context, 0)?,
            ones,
            sinks,
            trial,
        })
    }

    /// Whether it is for these kernels.
    pub fn serves(&self, backend: &CudaBackend, class: &Class, options: KernelOptions) -> bool {
        let options = KernelOptions { timeline: false, ..options.on(class, backend.compiler().arch()) };
        (self.class, self.trial.options) == (*class, options)
    }
}

/// Who merges in launches of kernels with these options.
const fn merge_by(options: KernelOptions) -> MergeBy {
    if options.merge_by_last_cta { MergeBy::LastCta } else { MergeBy::Launch }
}

impl CudaBackend {
    /// Launches a prepared tile, by itself or in a prepared mix that has it, on a small batch whose answer is known, and waits for it. A tile
    /// that the driver refuses, or whose answer is wrong, must not be trusted with a user's.
    ///
    /// # Errors
    /// [`CudaError::Untrusted`] if the answer is wrong; the driver's refusal. A kernel that faults takes the context with it, as the driver
    /// has it: every call after it fails.
    pub fn try_tile(
        &self,
        tile: &Tile,
        mix: Option<&Mix>,
        class: &Class,
        options: KernelOptions,
    ) -> Result<(), CudaError> {
        self.try_tile_in(&mut TrialMemory::new(self, class, options)?, tile, mix)
    }

    /// As [`CudaBackend::try_tile`], in memory that serves many tiles: allocating it takes longer than the trial.
    ///
    /// # Errors
    /// As [`CudaBackend::try_tile`].
    pub fn try_tile_in(
        &self,
        memory: &mut TrialMemory,
        tile: &Tile,
        mix: Option<&Mix>,
    ) -> Result<(), CudaError> {
        let TrialMemory { class, trial, stream, on_device, output, lse, workspace, .. } = memory;
        let device = self.device();
        let stream = stream.cu_stream();
        let mut options = PlanOptions { packing: Packing::PerNode, ..device.plan_options() };
        if trial.options.invariant {
            options.split = Split::Invariant;
        }
        let mut planner = Planner::new(options);
        let plan = planner.plan(&trial.geometry, &trial.table()?, |_: &_| *tile)?;
        let mut of_mix;
        let on_device = match mix {
            Some(mix) => {
                of_mix = DevicePlan::with_mix(device, mix, merge_by(trial.options));
                &mut of_mix
            }
            None => on_device,
        };
        // SAFETY: the stream was made in this context.
        unsafe { on_device.upload_raw(plan, stream)? };
        let needed = on_device.workspace_bytes();
        if workspace.bytes() < needed {
            *workspace = DeviceMemory::new(device.context(), needed)?;
        }
        // What the tile before has left is no answer of this one: NaN is, in every format, what is never written.
        // SAFETY: the stream is the context's.
        unsafe {
            output.fill_raw(0xff, stream)?;
            lse.fill_raw(0xff, stream)?;
            workspace.fill_raw(0xff, stream)?;
        }
        let scales =
            RawScales { keys: memory.ones.address(), values: memory.ones.address(), per_head: false };
        let args = RawArgs {
            query: memory.query.address(),
            keys: memory.cache.address(),
            values: memory.cache.address(),
            output: output.address(),
            lse: Some(lse.address()),
            workspace: workspace.address(),
            mask: trial.mask(),
            sinks: trial.options.sinks.then_some(memory.sinks.address()),
            scales: class.dtype.has_fp8_kv().then_some(scales),
            ..RawArgs::dense(&trial.geometry)
        };
        // SAFETY: the stream is the context's; the memory is as large as the geometry, the pages and the plan say, and stays until it is read
        // below, which waits for the stream.
        unsafe { self.decode_raw(stream, on_device, &args)? };
        let mut found = vec![0u16; output.bytes() / 2];
        let mut found_lse = vec![0f32; lse.bytes() / 4];
        // SAFETY: the stream is the context's.
        unsafe {
            output.read_raw(0, &mut found, stream)?;
            lse.read_raw(0, &mut found_lse, stream)?;
        }
        let of_query = class.dtype.query();
        let widened: Vec<f32> = found.into_iter().map(|bits| widen(bits, of_query)).collect();
        let untrusted = |reason| CudaError::Untrusted { tile: *tile, class: *class, reason };
        trial.check(&widened, &found_lse).map_err(untrusted)
    }
}

fn bytes_of(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let bits = |&value: &f32| match dtype {
        Dtype::Bf16 => bf16::from_f32(value).to_bits(),
        _ => f16::from_f32(value).to_bits(),
    };
    values.iter().flat_map(|value| bits(value).to_le_bytes()).collect()
}

fn widen(bits: u16, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Bf16 => bf16::from_bits(bits).to_f32(),
        _ => f16::from_bits(bits).to_f32(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_cpu::{CpuBackend, DecodeArgs, KvCache};
    use tilewright_heuristics::MaskOptions;
    use tilewright_plan::KvStrides;

    /// What the CPU backend computes of the batch: output and LSE.
    fn computed(trial: &Trial, cache: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let geometry = Geometry { dtype: Dtype::F32, ..trial.geometry };
        let mut planner = Planner::new(PlanOptions { packing: Packing::PerNode, ..PlanOptions::default() });
        let plan = planner.plan(&geometry, &trial.table().unwrap(), |_: &_| Tile::of("m16n32w1s1")).unwrap();
        assert!(!plan.merges().is_empty(), "partials are merged");
        let query = trial.query();
        let (mut output, mut lse) = (vec![0.0; query.len()], vec![0.0; REQUESTS * geometry.q_heads as usize]);
        let pages = KvCache { keys: cache, values: cache, strides: KvStrides::nhd(&geometry) };
        let sinks = vec![SINK; geometry.q_heads as usize];
        let args = DecodeArgs {
            lse: Some(&mut lse),
            mask: trial.mask(),
            sinks: trial.options.sinks.then_some(&sinks[..]),
            ..DecodeArgs::new(&query, pages, &mut output)
        };
        CpuBackend::new(1).decode(plan, args).unwrap();
        (output, lse)
    }

    fn trials() -> impl Iterator<Item = Trial> {
        let class = |head_dim| Class { head_dim, dtype: Dtype::F16 };
        let plain = KernelOptions::for_pages(16);
        let all = KernelOptions { mask: MaskOptions::ALL, sinks: true, ..KernelOptions::for_pages(1) };
        [(64, plain), (128, plain), (256, all), (128, all)]
            .into_iter()
            .map(move |(head_dim, options)| Trial::new(&class(head_dim), options))
    }

    #[test]
    fn attention_gives_the_answer_that_is_expected() {
        for trial in trials() {
            let (output, lse) = computed(&trial, &trial.cache());
            assert_eq!(trial.check(&output, &lse), Ok(()));
        }
    }

    #[test]
    fn a_wrong_page_token_or_dimension_is_found() {
        for trial in trials() {
            let (head_dim, page_size) = (trial.geometry.head_dim as usize, trial.geometry.page_size as usize);
            let token = head_dim * trial.geometry.kv_heads as usize;
            let page = trial.pages[SHARED_PAGES] as usize;
            let swapped = |cache: &mut Vec<f32>| {
                for vector in cache.chunks_mut(head_dim) {
                    vector.swap(0, 1);
                }
            };
            let token_lost = |cache: &mut Vec<f32>| {
                let begin = page * page_size * token;
                cache[begin..begin + token].fill(UNSEEN);
            };
            let page_lost = |cache: &mut Vec<f32>| {
                let begin = page * page_size * token;
                cache.copy_within(0..page_size * token, begin);
            };
            for damage in [&swapped as &dyn Fn(&mut Vec<f32>), &token_lost, &page_lost] {
                let mut cache = trial.cache();
                damage(&mut cache);
                let (output, lse) = computed(&trial, &cache);
                assert!(trial.check(&output, &lse).is_err());
            }
            let (mut output, lse) = computed(&trial, &trial.cache());
            output[5] = f32::NAN;
            assert!(trial.check(&output, &lse).is_err(), "nothing is no answer");
        }
    }
}
