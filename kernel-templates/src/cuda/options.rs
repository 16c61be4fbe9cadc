//! What is compiled into a kernel beside its tile and class.

use super::abi::GRANULE;
use super::kernel_traits::has_tma_producers;
use crate::{Arch, Class};

/// How K and V get into shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KvLoad {
    /// By TMA, in kernels that have TMA producer warps ([`has_tma_producers`]); `cp.async` in the others. Needs pages of a multiple of
    /// [`GRANULE`] tokens, at strides that are multiples of that of KV heads.
    #[default]
    Tma,
    /// Token by token with `cp.async`, by all warps.
    CpAsync,
}

/// What is compiled into a kernel beside its tile and class. A window's length, a soft-cap's bound and the sinks are given at each launch;
/// whether they exist is compiled in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelOptions {
    /// A row sees its last tokens only.
    pub window: bool,
    /// Logits are bounded by a scaled tanh.
    pub softcap: bool,
    /// Every row has a logit beside its tokens.
    pub sinks: bool,
    /// CTAs write timestamps ([`super::TimelineEntry`]). The results are the same.
    pub timeline: bool,
    /// How K and V get into shared memory. The results are the same.
    pub kv_load: KvLoad,
}

impl KernelOptions {
    /// Plain attention over pages of `page_size` tokens whose stride is a multiple of that of KV heads. Other options go beside it:
    /// `KernelOptions { window: true, ..KernelOptions::for_pages(page_size) }`.
    pub const fn for_pages(page_size: u32) -> Self {
        let kv_load = if page_size.is_multiple_of(GRANULE) { KvLoad::Tma } else { KvLoad::CpAsync };
        Self { window: false, softcap: false, sinks: false, timeline: false, kv_load }
    }

    /// The options that change the kernels of a class on an architecture: without TMA producers, both loads are the same kernel.
    pub const fn on(self, class: &Class, arch: Arch) -> Self {
        let kv_load = if has_tma_producers(class, arch) { self.kv_load } else { KvLoad::Tma };
        Self { kv_load, ..self }
    }

    /// Every combination of what changes results.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..8u8).map(|bits| Self {
            window: bits & 1 != 0,
            softcap: bits & 2 != 0,
            sinks: bits & 4 != 0,
            ..Self::default()
        })
    }

    /// The type in `options.cuh`. How K and V are loaded follows from the producer warps.
    pub(super) fn template(self) -> String {
        let Self { window, softcap, sinks, timeline, kv_load: _ } = self;
        format!("KernelOptions<{window}, {softcap}, {sinks}, {timeline}>")
    }

    /// A suffix for names; empty without options.
    pub(super) fn suffix(self) -> String {
        let names = [
            (self.window, "_window"),
            (self.softcap, "_softcap"),
            (self.sinks, "_sinks"),
            (self.timeline, "_timeline"),
            (self.kv_load == KvLoad::CpAsync, "_cp_async"),
        ];
        names.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect()
    }
}
