//! What is compiled into a kernel beside its tile and class.

use super::abi::GRANULE;
use super::kernel_traits::has_tma_producers;
use crate::{Arch, Class};
use tilewright_heuristics::{Mask, MaskOptions};

/// The numbers of a [`Mask`] as kernels read them; those of an option are read by kernels that have it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskArguments {
    /// A row sees its last `window` tokens. At most `i32::MAX`.
    pub window: u32,
    /// Factor of the logits times log2(e).
    pub scale_log2: f32,
    /// Bound of the logits.
    pub softcap: f32,
}

impl MaskArguments {
    /// Those of a mask, and the factor of the logits.
    pub fn of(mask: &Mask, scale: f32) -> Self {
        Self {
            window: mask.window.unwrap_or(u32::MAX).min(i32::MAX as u32),
            scale_log2: scale * std::f32::consts::LOG2_E,
            softcap: mask.softcap.unwrap_or(1.0),
        }
    }
}

impl Default for MaskArguments {
    fn default() -> Self {
        Self::of(&Mask::NONE, 0.0)
    }
}

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

/// What is compiled into a kernel beside its tile and class. The numbers of the mask and the sinks are given at each launch; whether they
/// exist is compiled in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelOptions {
    /// Which options the mask has.
    pub mask: MaskOptions,
    /// Every row has a logit beside its tokens.
    pub sinks: bool,
    /// CTAs write timestamps ([`super::TimelineEntry`]). The results are the same.
    pub timeline: bool,
    /// How K and V get into shared memory. The results are the same.
    pub kv_load: KvLoad,
    /// A row's bits depend on its own tokens alone: for plans of [`Split::Invariant`](tilewright_heuristics::chunk), whose tiles have warps
    /// of their own for each row.
    pub invariant: bool,
    /// The CTA that leaves a row's last partial may merge them ([`super::Arguments::arrivals`]): kernels without have less code to fetch.
    pub merge_by_last_cta: bool,
}

impl KernelOptions {
    /// Plain attention over pages of `page_size` tokens whose stride is a multiple of that of KV heads. Other options go beside it:
    /// `KernelOptions { mask: Mask::window(512).options(), ..KernelOptions::for_pages(page_size) }`.
    pub const fn for_pages(page_size: u32) -> Self {
        let kv_load = if page_size.is_multiple_of(GRANULE) { KvLoad::Tma } else { KvLoad::CpAsync };
        Self {
            mask: MaskOptions::NONE,
            sinks: false,
            timeline: false,
            kv_load,
            invariant: false,
            merge_by_last_cta: false,
        }
    }

    /// The options that change the kernels of a class on an architecture: without TMA producers, both loads are the same kernel.
    pub const fn on(self, class: &Class, arch: Arch) -> Self {
        let kv_load = if has_tma_producers(class, arch) { self.kv_load } else { KvLoad::Tma };
        Self { kv_load, ..self }
    }

    /// Every combination of what changes results.
    pub fn all() -> impl Iterator<Item = Self> {
        [false, true]
            .into_iter()
            .flat_map(|sinks| MaskOptions::all().map(move |mask| Self { mask, sinks, ..Self::default() }))
    }

    /// The type in `options.cuh`. How K and V are loaded follows from the producer warps.
    pub(super) fn template(self) -> String {
        let Self { mask, sinks, timeline, kv_load: _, invariant, merge_by_last_cta } = self;
        let mask: String = mask.values().iter().map(|option| format!("{option}, ")).collect();
        let others = match (invariant, merge_by_last_cta) {
            (_, true) => format!(", {invariant}, true"),
            (true, false) => ", true".to_owned(),
            (false, false) => String::new(),
        };
        format!("KernelOptions<{mask}{sinks}, {timeline}{others}>")
    }

    /// A suffix for names; empty without options.
    pub(super) fn suffix(self) -> String {
        let others = [
            ("sinks", self.sinks),
            ("timeline", self.timeline),
            ("invariant", self.invariant),
            ("last_cta", self.merge_by_last_cta),
            ("cp_async", self.kv_load == KvLoad::CpAsync),
        ];
        let all = MaskOptions::NAMES.into_iter().zip(self.mask.values()).chain(others);
        all.filter(|(_, on)| *on).map(|(name, _)| format!("_{name}")).collect()
    }
}
