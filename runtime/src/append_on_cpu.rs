//! Appends on the CPU.

use crate::attention::Attention;
use crate::{AttentionError, Cpu, HostFp8, HostScales, KvCacheMut, NewTokens, Positions};
use tilewright_cpu::{Element, ExecError, Fp8Number, Number, append};
use tilewright_heuristics::{Dtype, Geometry};
use tilewright_plan::{KvScales, KvStrides};

/// A cache in host memory that tokens of `E` can be appended to: of the same type, or FP8 with scales.
pub trait HostCacheMut<E: Element> {
    #[doc(hidden)]
    fn append(&mut self, geometry: &Geometry, tokens: &NewTokens<'_, Cpu, E>) -> Result<(), ExecError>;
}

impl<E: Element> HostCacheMut<E> for KvCacheMut<'_, [E]> {
    fn append(&mut self, geometry: &Geometry, tokens: &NewTokens<'_, Cpu, E>) -> Result<(), ExecError> {
        let scales = KvScales::new(1.0, 1.0);
        append_both(geometry, E::DTYPE, tokens, self.keys, self.values, self.layout.strides(geometry), scales)
    }
}

impl<E: Element> HostCacheMut<E> for KvCacheMut<'_, Vec<E>> {
    fn append(&mut self, geometry: &Geometry, tokens: &NewTokens<'_, Cpu, E>) -> Result<(), ExecError> {
        let scales = KvScales::new(1.0, 1.0);
        append_both(geometry, E::DTYPE, tokens, self.keys, self.values, self.layout.strides(geometry), scales)
    }
}

impl<E: Element, F: AsRef<[f32]> + ?Sized, T: HostFp8 + ?Sized> HostCacheMut<E>
    for KvCacheMut<'_, T, (&F, &F)>
{
    fn append(&mut self, geometry: &Geometry, tokens: &NewTokens<'_, Cpu, E>) -> Result<(), ExecError> {
        let (strides, scales) = (self.layout.strides(geometry), self.scales.scales());
        let dtype = E::DTYPE.with_kv(T::Number::FORMAT);
        let (keys, values) = (self.keys.numbers_mut(), self.values.numbers_mut());
        append_both(geometry, dtype, tokens, keys, values, strides, scales)
    }
}

/// K, rotated if it is to be, and V.
fn append_both<E: Element, S: Number>(
    geometry: &Geometry,
    dtype: Dtype,
    tokens: &NewTokens<'_, Cpu, E>,
    keys: &mut [S],
    values: &mut [S],
    strides: KvStrides,
    scales: KvScales<'_>,
) -> Result<(), ExecError> {
    if geometry.dtype != dtype {
        return Err(ExecError::Dtype { planned: geometry.dtype, given: dtype });
    }
    let rotary = tokens.rotary.as_ref().map(|rotary| tilewright_cpu::Rotary {
        table: rotary.table,
        dim: rotary.dim,
        pairs: rotary.pairs,
        positions: match rotary.positions {
            Positions::Given(positions) => tilewright_cpu::Positions::Given(positions),
            Positions::OfLengths(lengths) => tilewright_cpu::Positions::OfLengths(lengths),
        },
    });
    append(geometry, tokens.keys, tokens.slots, keys, &strides, scales.keys, rotary.as_ref())?;
    append(geometry, tokens.values, tokens.slots, values, &strides, scales.values, None)
}

impl Attention<Cpu> {
    /// Writes K and V of new tokens to the pages of a cache, before the step that attends them. `stream` is `&()`.
    ///
    /// Where the cache is FP8, numbers are divided by their head's scale and rounded to the nearest, 448 at most (57344 in e5m2). Of tokens with one slot the last
    /// one stays.
    ///
    /// # Errors
    /// Another number of elements, scales or positions than the tokens need, a slot beyond the pages, or a position beyond the table. The cache
    /// is as it was then, unless K fits and V does not.
    pub fn append<E: Element>(
        &self,
        page_size: u32,
        _stream: &(),
        tokens: &NewTokens<'_, Cpu, E>,
        cache: &mut impl HostCacheMut<E>,
    ) -> Result<(), AttentionError> {
        let geometry = self.geometry(page_size);
        geometry.validate()?;
        Ok(cache.append(&geometry, tokens)?)
    }
}
