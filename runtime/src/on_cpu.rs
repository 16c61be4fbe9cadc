//! Attention on the CPU.

use crate::attention::{Attention, Backend, Planned};
use crate::{AttentionError, AttentionOptions, Heads, KvCache, PerRow};
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, Fp8KvCache, Fp8Number, HostDevice, KvPages};
use tilewright_heuristics::{Geometry, Selection, TileSet};
use tilewright_kernel_templates::{Class, Limits, invariant_set, selection};
use tilewright_plan::{BySelection, Choose, DeviceProfile, KvScales, PlanOptions, Scale, Split};

/// The CPU backend of [`Attention`].
#[derive(Debug)]
pub struct Cpu {
    backend: Mutex<CpuBackend>,
    selection: Selection,
    options: PlanOptions,
    limits: Limits,
}

impl Cpu {
    fn new(options: &AttentionOptions) -> Result<Self, AttentionError> {
        let host = options.threads.map_or_else(HostDevice::detect, HostDevice::with_threads);
        let device = host.as_device();
        let limits = Limits::Cpu(host.limits.clone());
        let selection = selection(&device, &limits, options.selector).ok_or(AttentionError::NoTile)?;
        if let Some(warning) = selection.warning(&device) {
            tracing::warn!("{warning}");
        }
        let options = PlanOptions::on(DeviceProfile::of(&device, &selection));
        Ok(Self { backend: Mutex::new(CpuBackend::new(host.limits.threads)), selection, options, limits })
    }

    /// The tiles of batch-invariant plans.
    fn invariant_set(&self, geometry: &Geometry) -> Option<TileSet<'static>> {
        invariant_set(&Class::of(geometry), &self.limits)
    }
}

impl Backend for Cpu {
    type OnDevice = ();
    type Slice<T> = [T];

    fn on_device(_: &Arc<Self>) {}

    fn lengths_changed((): &()) {}

    fn prepare(&self, geometry: &Geometry, options: &AttentionOptions) -> Result<(), AttentionError> {
        geometry.validate()?;
        options.check_invariant(geometry)?;
        if options.invariant && self.invariant_set(geometry).is_none() {
            return Err(AttentionError::NoTile);
        }
        Ok(())
    }

    fn with_choice<T>(
        &self,
        geometry: &Geometry,
        options: &AttentionOptions,
        call: impl FnOnce(Choose<'_>, PlanOptions) -> T,
    ) -> T {
        match self.invariant_set(geometry).filter(|_| options.invariant) {
            Some(set) => call(Choose::Set(set), PlanOptions { split: Split::Invariant, ..self.options }),
            None => call(Choose::Selection(BySelection::new(&self.selection)), self.options),
        }
    }
}

/// Scales of a cache in host memory: none, or of K and V one number or `[kv heads]`.
pub trait HostScales {
    #[doc(hidden)]
    fn scales(&self) -> KvScales<'_>;
}

impl<F: AsRef<[f32]> + ?Sized> HostScales for (&F, &F) {
    fn scales(&self) -> KvScales<'_> {
        fn scale(numbers: &[f32]) -> Scale<'_> {
            match numbers {
                [one] => Scale::Tensor(*one),
                heads => Scale::Heads(heads),
            }
        }
        KvScales { keys: scale(self.0.as_ref()), values: scale(self.1.as_ref()) }
    }
}

/// A cache in host memory for queries of `E`: of the same type, or FP8 ([`E4m3`](crate::E4m3) or [`E5m2`](crate::E5m2)) with scales.
pub trait HostCache<E: Element> {
    #[doc(hidden)]
    fn pages(&self, geometry: &Geometry) -> impl KvPages<E>;
}

impl<E: Element> HostCache<E> for KvCache<'_, [E]> {
    fn pages(&self, geometry: &Geometry) -> impl KvPages<E> {
        tilewright_cpu::KvCache {
            keys: self.keys,
            values: self.values,
            strides: self.layout.strides(geometry),
        }
    }
}

impl<E: Element> HostCache<E> for KvCache<'_, Vec<E>> {
    fn pages(&self, geometry: &Geometry) -> impl KvPages<E> {
        tilewright_cpu::KvCache {
            keys: &self.keys[..],
            values: &self.values[..],
            strides: self.layout.strides(geometry),
        }
    }
}

/// Numbers of FP8 in host memory: a slice, a vector or an array of them.
pub trait HostFp8 {
    /// Their format.
    type Number: Fp8Number;

    #[doc(hidden)]
    fn numbers(&self) -> &[Self::Number];

    #[doc(hidden)]
    fn numbers_mut(&mut self) -> &mut [Self::Number];
}

impl<N: Fp8Number> HostFp8 for [N] {
    type Number = N;

    fn numbers(&self) -> &[N] {
        self
    }

    fn numbers_mut(&mut self) -> &mut [N] {
        self
    }
}

impl<N: Fp8Number> HostFp8 for Vec<N> {
    type Number = N;

    fn numbers(&self) -> &[N] {
        self
    }

    fn numbers_mut(&mut self) -> &mut [N] {
        self
    }
}

impl<N: Fp8Number, const COUNT: usize> HostFp8 for [N; COUNT] {
    type Number = N;

    fn numbers(&self) -> &[N] {
        self
    }

    fn numbers_mut(&mut self) -> &mut [N] {
        self
    }
}

impl<E: Element, F: AsRef<[f32]> + ?Sized, T: HostFp8 + ?Sized> HostCache<E> for KvCache<'_, T, (&F, &F)> {
    fn pages(&self, geometry: &Geometry) -> impl KvPages<E> {
        Fp8KvCache {
            keys: self.keys.numbers(),
            values: self.values.numbers(),
            strides: self.layout.strides(geometry),
            scales: self.scales.scales(),
        }
    }
}

impl Attention<Cpu> {
    /// Attention on the CPU. Says once, as a warning, if its tiles were not measured on this very processor.
    ///
    /// # Errors
    /// Heads that make no sense.
    pub fn cpu(heads: Heads, options: AttentionOptions) -> Result<Self, AttentionError> {
        Self::new(heads, options, Cpu::new(&options)?)
    }

    /// Computes one layer. Query and output are `[batch, query heads, dim]`; every element of the output is written. The CPU has no streams:
    /// `stream` is `&()`.
    ///
    /// # Errors
    /// Arguments that do not fit the plan.
    pub fn run<E: Element>(
        &self,
        plan: &impl Planned<Cpu>,
        stream: &(),
        query: &[E],
        cache: &impl HostCache<E>,
        output: &mut [E],
    ) -> Result<(), AttentionError> {
        self.run_with(plan, stream, query, cache, output, PerRow::default())
    }

    /// As [`Attention::run`], with LSE and sinks.
    ///
    /// # Errors
    /// Arguments that do not fit the plan.
    pub fn run_with<E: Element>(
        &self,
        plan: &impl Planned<Cpu>,
        _stream: &(),
        query: &[E],
        cache: &impl HostCache<E>,
        output: &mut [E],
        per_row: PerRow<'_, [f32]>,
    ) -> Result<(), AttentionError> {
        let AttentionOptions { scale, mask, .. } = self.options;
        let plan = plan.plan();
        let PerRow { lse, sinks } = per_row;
        let args = DecodeArgs {
            lse,
            scale,
            mask,
            sinks,
            ..DecodeArgs::new(query, cache.pages(plan.geometry()), output)
        };
        let mut backend = self.backend.backend.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(backend.decode(plan, args)?)
    }
}
