//! Awkward cases on the CPU backend.

use super::values::kv_scales;
use super::{CaseCache, ConformanceCase};
use tilewright_cpu::{CpuBackend, DecodeArgs, Element, Fp8KvCache, KvCache, KvPages};
use tilewright_heuristics::Tile;

/// A case with its K, V and Q, to be computed under many tiles.
#[derive(Clone, Debug)]
pub struct CpuCase<E> {
    /// The case.
    pub case: ConformanceCase,
    /// Its K and V.
    pub cache: CaseCache<E>,
    /// Its queries.
    pub query: Vec<E>,
}

impl<E: Element> CpuCase<E> {
    /// Draws K, V and Q.
    pub fn new(case: ConformanceCase) -> Self {
        Self { cache: case.cache(), query: case.query(), case }
    }

    /// Output and LSE under one tile, for [`ConformanceCase::check`].
    ///
    /// # Errors
    /// Why it cannot be planned or executed.
    pub fn run(&self, backend: &mut CpuBackend, tile: &Tile) -> Result<(Vec<f64>, Vec<f64>), String> {
        let strides = self.case.strides();
        match &self.cache {
            CaseCache::Plain { keys, values } => {
                self.run_over(KvCache { keys, values, strides }, backend, tile)
            }
            CaseCache::Fp8 { keys, values, key_scales, value_scales } => {
                let scales = kv_scales(key_scales, value_scales);
                self.run_over(Fp8KvCache { keys, values, strides, scales }, backend, tile)
            }
        }
    }

    fn run_over<C: KvPages<E>>(
        &self,
        cache: C,
        backend: &mut CpuBackend,
        tile: &Tile,
    ) -> Result<(Vec<f64>, Vec<f64>), String> {
        let plan = self.case.plan(*tile).map_err(|error| error.to_string())?;
        let heads = self.case.queries() * self.case.geometry.q_heads as usize;
        // Poison shows what was never written.
        let mut output = vec![E::from_f32(f32::NAN); self.query.len()];
        let mut lse = vec![f32::NAN; heads];
        let sinks = self.case.sinks();
        let args = DecodeArgs {
            lse: Some(&mut lse),
            scale: Some(self.case.scale()),
            mask: self.case.mask,
            sinks: sinks.as_deref(),
            ..DecodeArgs::new(&self.query, cache, &mut output)
        };
        backend.decode(&plan, args).map_err(|error| error.to_string())?;
        let output = output.iter().map(|x| f64::from(x.to_f32())).collect();
        Ok((output, lse.into_iter().map(f64::from).collect()))
    }
}
