//! Merge of states on the CPU: attention over several parts of the KV, combined into attention over all of it.

use super::Element;
use pulp::{Arch, Simd, WithSimd};
use tilewright_plan::StatesError;

/// Elements that are summed at a time: whole rows of the usual head dimensions, without an allocation for others.
const BLOCK: usize = 256;

/// Attention over one part of the KV.
#[derive(Clone, Copy, Debug)]
pub struct State<'a, E> {
    /// `[rows, head_dim]`, a row being (request, query head). What a row of an empty part holds does not matter; it may be NaN.
    pub output: &'a [E],
    /// Natural-log sum of exponentials of the part's logits, `[rows]`; -inf where the part is empty.
    pub lse: &'a [f32],
}

/// Merges states of separate parts of the KV into attention over all of them (Hydragen, section 3.1). They may come from plans over
/// parts of a page table, from other kernels or from other devices; no token may be in two of them.
///
/// `output` is `[rows, head_dim]` and `lse` `[rows]`; each row of the output is `sum_s exp(lse_s) output_s / sum_s exp(lse_s)`, and its
/// LSE `ln sum_s exp(lse_s)`. A row that is empty in all states becomes zeros and -inf. An LSE that is NaN or +inf makes NaN of its
/// row. Sums are in f32 and in the order of the states, so the same states give the same bits.
///
/// ```
/// use tilewright_cpu::{State, merge_states};
///
/// // Two tokens with the logits ln 1 and ln 3, each a part of its own; one row with two elements.
/// let first = State { output: &[4.0f32, 8.0], lse: &[1f32.ln()] };
/// let second = State { output: &[8.0, 0.0], lse: &[3f32.ln()] };
/// let (mut output, mut lse) = ([0.0; 2], [0.0]);
/// merge_states(&[first, second], 2, &mut output, Some(&mut lse))?;
/// assert!((output[0] - 7.0).abs() < 1e-5 && (output[1] - 2.0).abs() < 1e-5 && (lse[0] - 4f32.ln()).abs() < 1e-6);
/// # Ok::<(), tilewright_plan::StatesError>(())
/// ```
///
/// # Errors
/// No state, or lengths that do not fit the output; nothing is written then.
pub fn merge_states<E: Element>(
    states: &[State<'_, E>],
    head_dim: u32,
    output: &mut [E],
    lse: Option<&mut [f32]>,
) -> Result<(), StatesError> {
    E::merge_states(states, head_dim, output, lse)
}

/// What [`merge_states`] is instantiated from.
pub(super) fn merge<E: Element>(
    states: &[State<'_, E>],
    head_dim: u32,
    output: &mut [E],
    lse: Option<&mut [f32]>,
) -> Result<(), StatesError> {
    let dim = usize::try_from(head_dim).unwrap_or(usize::MAX);
    if dim == 0 {
        return Err(StatesError::HeadDim { head_dim, supported: "at least 1" });
    }
    let rows = output.len() / dim;
    if !output.len().is_multiple_of(dim) {
        return Err(StatesError::Rows { found: output.len(), head_dim });
    }
    if states.is_empty() {
        return Err(StatesError::NoState);
    }
    for (state, State { output: part, lse }) in states.iter().enumerate() {
        for (name, found, needed) in [("output", part.len(), output.len()), ("lse", lse.len(), rows)] {
            if found != needed {
                return Err(StatesError::Length { name, state: Some(state), found, needed });
            }
        }
    }
    if let Some(found) = lse.as_ref().map(|lse| lse.len()).filter(|&found| found != rows) {
        return Err(StatesError::Length { name: "lse", state: None, found, needed: rows });
    }
    Arch::new().dispatch(Merge { states, head_dim: dim, output, lse });
    Ok(())
}

struct Merge<'a, 's, E> {
    states: &'a [State<'s, E>],
    head_dim: usize,
    output: &'a mut [E],
    lse: Option<&'a mut [f32]>,
}

impl<E: Element> WithSimd for Merge<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { states, head_dim, output, mut lse } = self;
        for (row, output) in output.chunks_exact_mut(head_dim).enumerate() {
            let max = states.iter().map(|state| state.lse[row]).fold(f32::NEG_INFINITY, f32::max);
            let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
            let weight = |state: &State<'_, E>| (state.lse[row] - base).exp();
            let total: f32 = states.iter().map(weight).sum();
            // The largest state weighs 1: the total is 0 only where all are empty.
            let empty = total == 0.0;
            let factor = if empty { 0.0 } else { 1.0 / total };
            for (block, output) in output.chunks_mut(BLOCK).enumerate() {
                let first = row * head_dim + block * BLOCK;
                let mut sum = [0.0; BLOCK];
                for state in states {
                    let weight = weight(state);
                    // What weighs nothing is not even multiplied: it may be NaN.
                    if weight != 0.0 {
                        let part = &state.output[first..first + output.len()];
                        add_weighted(part, weight, &mut sum[..output.len()]);
                    }
                }
                for (output, sum) in output.iter_mut().zip(sum) {
                    *output = E::from_f32(sum * factor);
                }
            }
            if let Some(lse) = lse.as_deref_mut() {
                lse[row] = if empty { f32::NEG_INFINITY } else { max + total.ln() };
            }
        }
    }
}

#[inline(always)]
fn add_weighted<E: Element>(part: &[E], weight: f32, sum: &mut [f32]) {
    let mut wide = [0.0; BLOCK];
    let wide = &mut wide[..part.len()];
    E::widen(part, wide);
    for (sum, wide) in sum.iter_mut().zip(wide) {
        *sum += weight * *wide;
    }
}

#[cfg(test)]
#[path = "merge_states_tests.rs"]
mod tests;
