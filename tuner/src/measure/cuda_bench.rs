//! An NVIDIA GPU as a bench: each sample replays a captured step on a cold second-level cache, timed by events on the device.

use super::verification::{CudaVerifier, Verdicts};
use super::{Bench, BenchError, Conditions, Failure, Loaded, PlanId, Sensors};
use crate::store::{DeviceRecord, Resources, Status};
use cudarc::driver::CudaStream;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use tilewright_heuristics::{Dtype, Geometry, PackShape, Tile};
use tilewright_kernel_templates::cuda::{AttentionOptions, CubinCache, CudaLimits, source_hash};
use tilewright_kernel_templates::{Class, Limits, check_compiled};
use tilewright_runtime::cuda::probe::{self, Flush, Prices};
use tilewright_runtime::cuda::{
    CudaBackend, CudaDevice, CudaError, DeviceMemory, DevicePlan, Graph, RawArgs, RowStrides, Timer,
};
use tilewright_runtime::{KvStrides, PageTable, Plan, PlanOptions};
use tilewright_scenarios::Batch;
