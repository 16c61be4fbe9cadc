//! A plan that CUDA graphs capture once, for all batches of a bucket.
#![allow(unsafe_code)]

use crate::attention::{Attention, Planned};
use crate::on_cuda::refuse_capture;
use crate::{AttentionError, AttentionOptions, Cuda};
use cudarc::driver::CudaStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tilewright_cuda::{Bucket, CudaError, FitError, RawArgs, kv_load_up_to};
use tilewright_heuristics::Tile;
use tilewright_kernel_templates::Class;
use tilewright_kernel_templates::cuda::{KernelOptions, KvLoad};

/// What the graph of a decode step captures instead of one batch's plan: launches read the plan that was uploaded last, so that one graph of all
/// layers serves every batch that fits.
///
/// A plan fits if it has the tiles of the one that this was made for, or some of them, and no more of anything than there is room for. Grids are
/// as large as that room; CTAs without work end at once.
#[derive(Debug)]
pub struct GraphPlan {
    backend: Arc<Cuda>,
    options: AttentionOptions,
    bucket: Bucket,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    plan: tilewright_cuda::GraphPlan,
    /// The number of the plan that was uploaded last.
    uploaded: Option<u64>,
}

impl Attention<Cuda> {
    /// For plans like this one, with room for batches of up to `requests` queries with up to `pages` entries of the page table between them, and for
    /// the plan itself in any case. Both are rounded up to powers of two.
    ///
    /// # Errors
    /// More than a grid can count, or the driver's.
    pub fn graph_plan(
        &self,
        plan: &impl Planned<Cuda>,
        requests: u32,
        pages: u32,
    ) -> Result<GraphPlan, AttentionError> {
        let (plan, geometry) = (plan.plan(), plan.plan().geometry());
        self.with_kernels(|tuned| {
            let (mode, mix) = tuned.launch_of(plan);
            let tiles: Vec<Tile> = match mix {
                Some(mix) => mix.tiles().to_vec(),
                None => plan.tile_groups().iter().map(|group| group.tile).collect(),
            };
            let mut bucket = match tiles.is_empty() {
                true => tuned.bucket(geometry, requests, pages),
                false => Bucket::for_batch(geometry, mode, &tiles, requests, pages),
            }
            .map_err(CudaError::from)?;
            bucket.grow_to(plan).map_err(CudaError::from)?;
            let plan = tilewright_cuda::GraphPlan::new(tuned.backend().device(), bucket.clone())?;
            Ok(GraphPlan {
                backend: Arc::clone(&self.backend),
                options: self.options,
                bucket,
                state: Mutex::new(State { plan, uploaded: None }),
            })
        })
    }
}

impl GraphPlan {
    /// What plans it has room for.
    pub const fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Whether a plan fits.
    ///
    /// # Errors
    /// Another layout, a tile that is not the bucket's, or the first thing that there is too little room for.
    pub fn check(&self, plan: &impl Planned<Cuda>) -> Result<(), FitError> {
        self.bucket.check(plan.plan())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the copy of the plan that the next launches compute: of its lengths alone, if it was uploaded last and nothing else of it has
    /// changed. Called before each launch of a graph, on its stream.
    ///
    /// # Errors
    /// A plan that does not fit, or has a page that the captured kernels cannot count to: what was uploaded before stays. A stream that is being
    /// captured, or the driver's.
    pub fn upload(&self, plan: &impl Planned<Cuda>, stream: &Arc<CudaStream>) -> Result<(), AttentionError> {
        refuse_capture(stream, "a plan is to be copied")?;
        let (number, plan) = (plan.on_device().number(), plan.plan());
        let mut state = self.state();
        let known = state.uploaded.take() == Some(number);
        if known {
            state.plan.set_lengths(plan.seq_lens(), stream)?;
        } else {
            state.plan.upload(plan, stream)?;
        }
        state.uploaded = Some(number);
        Ok(())
    }

    /// Queues or captures one layer, from addresses, as [`Attention::run_raw`]. Query and output have as many rows as the bucket has room for
    /// requests; those of the uploaded plan's batch are computed, others are left as they are.
    ///
    /// # Errors
    /// Addresses or strides that are not aligned, missing scales, a kernel that is to be compiled while the stream is being captured, or the
    /// driver's.
    ///
    /// # Safety
    /// All addresses point to device memory as large as the bucket's requests and the page ids of every uploaded plan say, which stays as long as
    /// a graph names it. This outlives the graphs and their last launches, and a borrowed stream outlives this.
    pub unsafe fn run_raw(&self, stream: &Arc<CudaStream>, args: &RawArgs) -> Result<(), AttentionError> {
        let mut state = self.state();
        let geometry = *self.bucket.geometry();
        let kv_load = kv_load_up_to(&args.kv_strides, &geometry, state.plan.plan().largest_page());
        let sinks = args.sinks.is_some();
        if sinks || kv_load == KvLoad::CpAsync {
            let options = KernelOptions { sinks, kv_load, ..self.options.compiled(geometry.page_size) };
            self.backend.prepare_options(Class::of(&geometry), options, Some(stream))?;
        }
        let AttentionOptions { scale, mask, .. } = self.options;
        let args = RawArgs { mask, scale: scale.unwrap_or(args.scale), ..*args };
        let tuned = self.backend.tuned.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's promises.
        unsafe { state.plan.decode_raw(tuned.backend(), stream.cu_stream(), &args)? };
        Ok(())
    }
}
