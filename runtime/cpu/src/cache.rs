//! K and V in host memory.

use super::timeline::Recorder;
use super::{CpuBackend, DecodeArgs, Element, ExecError, Fp8Number, Number};
use tilewright_heuristics::Dtype;
use tilewright_plan::{E4m3, KvScales, KvStrides, Plan};

/// The paged KV cache of one layer.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a, E> {
    /// K.
    pub keys: &'a [E],
    /// V, laid out like K.
    pub values: &'a [E],
    /// Where a page, token and head lies.
    pub strides: KvStrides,
}

/// The paged KV cache of one layer in FP8: half the memory and half the bytes to read of a cache of 16 bits. A number is its byte's value
/// times its head's scale. `F` is [`E4m3`] or [`E5m2`](tilewright_plan::E5m2); plans for it are of a [`Dtype`] with K and V in this format.
#[derive(Clone, Copy, Debug)]
pub struct Fp8KvCache<'a, F = E4m3> {
    /// K.
    pub keys: &'a [F],
    /// V, laid out like K.
    pub values: &'a [F],
    /// Where a page, token and head lies.
    pub strides: KvStrides,
    /// What the elements of each head are multiplied by.
    pub scales: KvScales<'a>,
}

/// A cache that queries of the type `E` can attend: [`KvCache`] of the same type, or [`Fp8KvCache`].
pub trait KvPages<E>: Copy {
    /// Of K and V.
    type Stored: Number;
    /// What a plan has to be made for.
    const DTYPE: Dtype;

    /// Pages as they are stored.
    fn stored(&self) -> KvCache<'_, Self::Stored>;

    /// What they are multiplied by, if by anything.
    fn scales(&self) -> Option<KvScales<'_>>;

    /// Executes a plan over it, by the code that this crate has for its type.
    #[doc(hidden)]
    fn execute(
        backend: &mut CpuBackend,
        plan: &Plan,
        args: DecodeArgs<'_, E, Self>,
        recorder: Option<&Recorder>,
    ) -> Result<(), ExecError>;
}

impl<E: Element> KvPages<E> for KvCache<'_, E> {
    type Stored = E;
    const DTYPE: Dtype = E::DTYPE;

    fn stored(&self) -> KvCache<'_, E> {
        *self
    }

    fn scales(&self) -> Option<KvScales<'_>> {
        None
    }

    fn execute(
        backend: &mut CpuBackend,
        plan: &Plan,
        args: DecodeArgs<'_, E, Self>,
        recorder: Option<&Recorder>,
    ) -> Result<(), ExecError> {
        E::decode(backend, plan, args, recorder)
    }
}

impl<E: Element, F: Fp8Number> KvPages<E> for Fp8KvCache<'_, F> {
    type Stored = F;
    const DTYPE: Dtype = E::DTYPE.with_kv(F::FORMAT);

    fn stored(&self) -> KvCache<'_, F> {
        KvCache { keys: self.keys, values: self.values, strides: self.strides }
    }

    fn scales(&self) -> Option<KvScales<'_>> {
        Some(self.scales)
    }

    fn execute(
        backend: &mut CpuBackend,
        plan: &Plan,
        args: DecodeArgs<'_, E, Self>,
        recorder: Option<&Recorder>,
    ) -> Result<(), ExecError> {
        F::decode(backend, plan, args, recorder)
    }
}
