//! How the values of other crates, and errors, are written in messages.

use crate::measure::{BenchError, Execution, Planning};
pub(super) use crate::serde_text as text;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use tilewright_cuda::{LaunchMode, Mix};
use tilewright_heuristics::{Dtype, Geometry, GeometryError, Tile};
use tilewright_kernel_templates::{Class, CpuLimits, CudaLimits, Limits};
use tilewright_plan::PlanError;
use tilewright_scenarios::{Batch, Provenance};

/// A number as its bits: exact, and defined for infinities and NaN, which JSON has no number for.
pub(super) mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        value.to_bits().serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

/// A tile in a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TileText(#[serde(with = "text")] pub(super) Tile);

/// A launch mode in a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LaunchModeText(#[serde(with = "text")] pub(super) LaunchMode);

/// [`Execution`] as it is sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ExecutionRecord {
    planning: Planning,
    launch_mode: LaunchModeText,
    mix: Option<Vec<TileText>>,
}

impl From<&Execution> for ExecutionRecord {
    fn from(Execution { planning, launch_mode, mix }: &Execution) -> Self {
        let tiles = |mix: &Mix| mix.tiles().iter().copied().map(TileText).collect();
        Self { planning: *planning, launch_mode: LaunchModeText(*launch_mode), mix: mix.as_ref().map(tiles) }
    }
}

impl From<ExecutionRecord> for Execution {
    fn from(ExecutionRecord { planning, launch_mode, mix }: ExecutionRecord) -> Self {
        let mix = mix.map(|tiles| Mix::of(&tiles.into_iter().map(|tile| tile.0).collect::<Vec<_>>()));
        Self { planning, launch_mode: launch_mode.0, mix }
    }
}

/// Writes [`Class`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Class")]
pub(super) struct ClassDef {
    head_dim: u32,
    #[serde(with = "text")]
    dtype: Dtype,
}

/// Writes [`Geometry`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Geometry")]
struct GeometryDef {
    q_heads: u32,
    kv_heads: u32,
    head_dim: u32,
    page_size: u32,
    #[serde(with = "text")]
    dtype: Dtype,
}

/// Writes [`Limits`]: each backend has a variant here and a struct with the fields of its limits.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Limits")]
pub(super) enum LimitsDef {
    Cpu(#[serde(with = "CpuLimitsDef")] CpuLimits),
    Cuda(#[serde(with = "CudaLimitsDef")] CudaLimits),
}

/// Writes [`CudaLimits`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "CudaLimits")]
struct CudaLimitsDef {
    name: Cow<'static, str>,
    arch: Cow<'static, str>,
    sms: u32,
    registers_per_sm: u32,
    max_registers_per_thread: u32,
    register_allocation_unit: u32,
    warp_slots_per_sm: u32,
    ctas_per_sm: u32,
    threads_per_cta: u32,
    shared_bytes_per_sm: u32,
    shared_bytes_per_cta: u32,
    shared_reserved_per_cta: u32,
    shared_allocation_unit: u32,
    l2_bytes: u64,
    memory_bytes: u64,
    read_bandwidth: u64,
    matrix_flops: u64,
    memory_latency_cycles: u32,
    clock_hz: u64,
}

/// Writes [`CpuLimits`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "CpuLimits")]
struct CpuLimitsDef {
    threads: u32,
    l1d_bytes: usize,
    l2_bytes: usize,
    llc_bytes: usize,
}

/// A batch without its page table and lengths, which follow as numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BatchHead {
    name: String,
    #[serde(with = "GeometryDef")]
    geometry: Geometry,
    max_pages: usize,
    pages: u32,
    file: String,
    scenario: String,
    hash: String,
    seed: u64,
    scaling: String,
    /// Entries of the page table.
    pub(super) entries: usize,
    /// Lengths.
    pub(super) requests: usize,
}

impl BatchHead {
    pub(super) fn of(batch: &Batch) -> Self {
        let Provenance { file, scenario, hash, seed, scaling } = batch.provenance.clone();
        Self {
            name: batch.name.clone(),
            geometry: batch.geometry,
            max_pages: batch.max_pages,
            pages: batch.pages,
            file: file.to_string_lossy().into_owned(),
            scenario,
            hash,
            seed,
            scaling,
            entries: batch.page_table.len(),
            requests: batch.seq_lens.len(),
        }
    }

    pub(super) fn with(self, page_table: Vec<i32>, seq_lens: Vec<u32>) -> Batch {
        let Self { name, geometry, max_pages, pages, file, scenario, hash, seed, scaling, .. } = self;
        let provenance = Provenance { file: file.into(), scenario, hash, seed, scaling };
        Batch::from_pages(name, geometry, page_table, max_pages, seq_lens, pages, provenance)
    }
}

/// [`BenchError`] as it is sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum BenchErrorRecord {
    TooLarge {
        batch: String,
        needed_mb: u64,
        available_mb: u64,
    },
    Plan {
        batch: String,
        #[serde(with = "PlanErrorDef")]
        source: PlanError,
    },
    Device {
        batch: String,
        message: String,
    },
    Worker {
        message: String,
    },
}

impl From<BenchError> for BenchErrorRecord {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::TooLarge { batch, needed_mb, available_mb } => {
                Self::TooLarge { batch, needed_mb, available_mb }
            }
            BenchError::Plan { batch, source } => Self::Plan { batch, source },
            BenchError::Device { batch, message } => Self::Device { batch, message },
            BenchError::Worker { message } => Self::Worker { message },
        }
    }
}

impl From<BenchErrorRecord> for BenchError {
    fn from(record: BenchErrorRecord) -> Self {
        match record {
            BenchErrorRecord::TooLarge { batch, needed_mb, available_mb } => {
                Self::TooLarge { batch, needed_mb, available_mb }
            }
            BenchErrorRecord::Plan { batch, source } => Self::Plan { batch, source },
            BenchErrorRecord::Device { batch, message } => Self::Device { batch, message },
            BenchErrorRecord::Worker { message } => Self::Worker { message },
        }
    }
}

/// A name in an error. (An alias, since serde would try to borrow a plain `&str` from the message.)
type Name = &'static str;

/// Names in errors are few, and an error ends the run: they may stay in memory.
fn kept<'de, D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
    Ok(String::deserialize(from)?.leak())
}

/// Writes [`PlanError`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "PlanError")]
enum PlanErrorDef {
    Geometry(#[serde(with = "GeometryErrorDef")] GeometryError),
    TableSize { found: usize, batch: usize, max_pages: usize },
    Order { found: usize, needed: usize },
    OrderRow { request: usize, row: i32, rows: usize },
    Rows { found: usize, needed: usize },
    Row { request: usize, begin: i32, end: i32, entries: usize },
    LastPage { request: usize, tokens: i32, page_size: u32 },
    TooLong { request: usize, seq_len: u32, needed: usize, max_pages: usize },
    NegativePage { request: usize, column: usize, page: i32 },
    QueryLens { found: usize, needed: usize },
    QueryLen { request: usize, query_len: u32, seq_len: u32 },
    Queries { found: usize, needed: usize },
    TooLarge(#[serde(deserialize_with = "kept")] Name),
    GqaRatio(u32),
    PageSize { table: u32, geometry: u32 },
}

/// Writes [`GeometryError`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "GeometryError")]
enum GeometryErrorDef {
    Zero(#[serde(deserialize_with = "kept")] Name),
    HeadsDoNotDivide { q_heads: u32, kv_heads: u32 },
}
