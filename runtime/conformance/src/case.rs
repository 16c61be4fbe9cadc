//! One conformance batch: what it is about, its page table, and what has to come out.

use super::check::Expected;
use super::{CaseCache, Values};
use crate::reference::{self, Attention};
use half::{bf16, f16};
use std::sync::{Arc, OnceLock};
use tilewright_cpu::{Element, KvCache, KvPages};
use tilewright_heuristics::{Dtype, Geometry, Mask};
use tilewright_plan::{ChooseTiles, KvStrides, PageTable, Plan, PlanError, PlanOptions, Queries};

/// How K and V lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// `[page, token, head, element]`.
    #[default]
    Nhd,
    /// `[page, head, token, element]`.
    Hnd,
    /// Like [`Layout::Nhd`], with gaps behind each vector, token and page: multiples of 16 elements, full of NaN.
    Gapped,
}

/// A small batch with something that goes wrong first. Its numbers are a function of its name and the seed; what it expects is
/// computed when first asked for, so changing its fields is sensible only before that.
#[derive(Clone, Debug)]
pub struct ConformanceCase {
    /// What it is about.
    pub name: &'static str,
    /// The layout of the attention layer.
    pub geometry: Geometry,
    /// `[batch, max_pages]`; garbage past each request's pages.
    pub page_table: Vec<i32>,
    /// Columns of the page table.
    pub max_pages: usize,
    /// Tokens of each request.
    pub seq_lens: Vec<u32>,
    /// Query tokens of each request, see [`PageTable::with_queries`]; one each if absent.
    pub query_lens: Option<Vec<u32>>,
    /// Physical pages; not all are in use.
    pub pages: usize,
    /// Which tokens queries see, and how logits are bounded.
    pub mask: Mask,
    /// Whether heads have sinks, those of [`ConformanceCase::sinks`].
    pub sinks: bool,
    /// How K and Q are drawn.
    pub values: Values,
    /// How K and V lie in memory.
    pub layout: Layout,
    /// How it has to be packed and split to be about what its name says.
    pub options: PlanOptions,
    pub(super) seed: u64,
    /// Shared by copies of the case that are made later.
    pub(super) expected: OnceLock<Arc<Expected>>,
    pub(super) known_queries: OnceLock<Queries>,
}

impl ConformanceCase {
    /// Whether it is attention without mask and sinks.
    pub fn is_plain(&self) -> bool {
        self.mask == Mask::NONE && !self.sinks
    }

    /// Whether batch-invariant plans can be made of it ([`tilewright_plan::Split::Invariant`]): by engines too, so for pages of whole granules of 16 tokens.
    pub const fn serves_invariant_plans(&self) -> bool {
        self.geometry.page_size.is_multiple_of(16)
    }

    /// Factor of the logits.
    pub fn scale(&self) -> f32 {
        1.0 / (self.geometry.head_dim as f32).sqrt()
    }

    /// Where a page, token and head lies in [`ConformanceCase::keys`] and [`ConformanceCase::values`].
    pub const fn strides(&self) -> KvStrides {
        let Geometry { kv_heads, head_dim, page_size, .. } = self.geometry;
        match self.layout {
            Layout::Nhd => KvStrides::nhd(&self.geometry),
            Layout::Hnd => KvStrides::hnd(&self.geometry),
            Layout::Gapped => {
                let head = head_dim as usize + 16;
                let token = head * kv_heads as usize + 32;
                KvStrides { page: token * page_size as usize + 64, token, head }
            }
        }
    }

    /// Its page table, with its queries.
    ///
    /// # Panics
    /// Never for a case of this module; its fields may have been changed to nonsense.
    pub fn table(&self) -> PageTable<'_> {
        let table = self.table_of_requests();
        match &self.query_lens {
            None => table,
            Some(query_lens) => table.with_known_queries(self.known_queries.get_or_init(|| {
                Queries::new(&self.seq_lens, query_lens).expect("conformance cases are well formed")
            })),
        }
    }

    /// Its page table with one query a request, whatever it has.
    pub(super) fn table_of_requests(&self) -> PageTable<'_> {
        PageTable::new(&self.page_table, self.max_pages, &self.seq_lens, self.geometry.page_size)
            .expect("conformance cases are well formed")
    }

    /// Gives another table of the same requests the queries of the case.
    pub(super) fn with_queries<'a>(
        &self,
        table: PageTable<'a>,
        memory: &'a mut Queries,
    ) -> Result<PageTable<'a>, PlanError> {
        match &self.query_lens {
            None => Ok(table),
            Some(query_lens) => table.with_queries(query_lens, memory),
        }
    }

    /// Queries of all requests: output and LSE have this times query heads rows.
    pub fn queries(&self) -> usize {
        self.table().batch()
    }

    /// Its plan under these tiles.
    ///
    /// # Errors
    /// As [`Plan::build`].
    pub fn plan(&self, choose: impl ChooseTiles) -> Result<Plan, PlanError> {
        self.plan_with(&self.options, choose)
    }

    /// Its plan by other options.
    ///
    /// # Errors
    /// As [`Plan::build`].
    pub fn plan_with(&self, options: &PlanOptions, choose: impl ChooseTiles) -> Result<Plan, PlanError> {
        Plan::build(&self.geometry, &self.table(), options, choose)
    }

    /// What the f64 reference says: output `[queries, q_heads, head_dim]` and natural-log LSE `[queries, q_heads]`.
    pub fn expected(&self) -> (&[f64], &[f64]) {
        let Expected { output, lse } = self.reference();
        (output, lse)
    }

    /// Whether what it expects was computed already.
    pub fn is_computed(&self) -> bool {
        self.expected.get().is_some()
    }

    pub(super) fn reference(&self) -> &Expected {
        self.expected.get_or_init(|| {
            Arc::new(match self.geometry.dtype {
                Dtype::F16 | Dtype::Fp8F16 | Dtype::E5m2F16 => self.compute::<f16>(),
                Dtype::Bf16 | Dtype::Fp8Bf16 | Dtype::E5m2Bf16 => self.compute::<bf16>(),
                Dtype::F32 | Dtype::Fp8F32 | Dtype::E5m2F32 => self.compute::<f32>(),
            })
        })
    }

    fn compute<E: Element>(&self) -> Expected {
        let strides = self.strides();
        match &self.cache::<E>() {
            CaseCache::Plain { keys, values } => self.attend::<E, _>(KvCache { keys, values, strides }),
            CaseCache::E4m3(pages) => self.attend::<E, _>(pages.on_cpu(strides)),
            CaseCache::E5m2(pages) => self.attend::<E, _>(pages.on_cpu(strides)),
        }
    }

    fn attend<E: Element, C: KvPages<E>>(&self, cache: C) -> Expected {
        let query = self.query::<E>();
        let sinks = self.sinks();
        let attention = Attention { scale: self.scale(), mask: self.mask, sinks: sinks.as_deref() };
        let (output, lse) = reference::decode(&self.geometry, &self.table(), &query, &cache, &attention);
        Expected { output, lse }
    }
}
