//! K or V of new tokens, written to their places in the pages of a cache.

use super::{Element, ExecError, Number};
use tilewright_heuristics::Geometry;
use tilewright_kernel_templates::RotaryPairs;
use tilewright_plan::{AppendError, KvStrides, Scale};

/// Rotary position embedding of keys: pair i of an element's first `dim` ones is rotated by the angle that the table has of its position.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// `[positions, dim]`: cosines of `dim / 2` angles, then their sines.
    pub table: &'a [f32],
    /// Elements that are rotated, from the first on: a multiple of 16, up to the head dimension.
    pub dim: u32,
    /// Which of them together.
    pub pairs: RotaryPairs,
    /// Where the tokens stand.
    pub positions: Positions<'a>,
}

/// Where tokens stand in their requests. That of a token without a slot does not matter.
#[derive(Clone, Copy, Debug)]
pub enum Positions<'a> {
    /// `[tokens]`.
    Given(&'a [i64]),
    /// `[tokens]`: each token is the last of so many.
    OfLengths(&'a [i32]),
}

impl Positions<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::Given(positions) => positions.len(),
            Self::OfLengths(lengths) => lengths.len(),
        }
    }

    const fn of(&self, token: usize) -> i64 {
        match self {
            Self::Given(positions) => positions[token],
            Self::OfLengths(lengths) => lengths[token] as i64 - 1,
        }
    }
}

impl Rotary<'_> {
    /// Checks the table, and the position of each token that has a slot.
    fn check(&self, slots: &[i64], head_dim: u32) -> Result<(), AppendError> {
        let Self { table, dim, positions, .. } = *self;
        if !RotaryPairs::serves(dim, head_dim) {
            return Err(AppendError::RotaryDim { dim, head_dim });
        }
        if !table.len().is_multiple_of(dim as usize) {
            return Err(AppendError::Table { found: table.len(), dim });
        }
        check_length("positions", positions.len(), slots.len())?;
        let rows = table.len() / dim as usize;
        let inside = |token| usize::try_from(positions.of(token)).is_ok_and(|position| position < rows);
        match (0..slots.len()).find(|&token| slots[token] >= 0 && !inside(token)) {
            Some(token) => Err(AppendError::Position { token, position: positions.of(token), rows }),
            None => Ok(()),
        }
    }

    /// Rotates a head of a token. Each sum is rounded once, as on every backend.
    fn rotate(&self, token: usize, head: &mut [f32]) {
        let dim = self.dim as usize;
        let (cosines, sines) = self.table[self.positions.of(token) as usize * dim..][..dim].split_at(dim / 2);
        for (angle, (cosine, sine)) in cosines.iter().zip(sines).enumerate() {
            let (first, second) = self.pairs.elements(angle, dim);
            let (a, b) = (head[first], head[second]);
            head[first] = a.mul_add(*cosine, -(b * sine));
            head[second] = b.mul_add(*cosine, a * sine);
        }
    }
}

fn check_length(name: &'static str, found: usize, needed: usize) -> Result<(), AppendError> {
    if found == needed { Ok(()) } else { Err(AppendError::Length { name, found, needed }) }
}

/// Writes K or V of tokens, `[tokens, kv_heads, head_dim]`, to the pages of a cache: token i to `slots[i]`, which is its page times
/// `page_size` plus its place in the page, as vLLM's slot mappings have it. A negative slot is no place, as padding has it. Of tokens with
/// one slot the last one stays. K is rotated on its way if `rotary` says how.
///
/// Pages of another type than the tokens' are FP8: numbers are divided by their head's scale and rounded to the nearest, those beyond the
/// format's largest (448 or 57344) to that; of rotated ones nothing is rounded before. Without FP8 the scale is 1.
///
/// ```
/// use tilewright_cpu::append;
/// use tilewright_heuristics::{Dtype, Geometry};
/// use tilewright_plan::{KvStrides, Scale};
///
/// let geometry = Geometry { q_heads: 1, kv_heads: 1, head_dim: 2, page_size: 4, dtype: Dtype::F32 };
/// let mut pages = [0.0f32; 2 * 4 * 2]; // two pages
/// append(&geometry, &[1.0f32, 2.0], &[5], &mut pages, &KvStrides::nhd(&geometry), Scale::Tensor(1.0), None)?;
/// assert_eq!(pages[5 * 2..6 * 2], [1.0, 2.0]);
/// # Ok::<(), tilewright_cpu::ExecError>(())
/// ```
///
/// # Errors
/// Another number of elements, scales or positions than the tokens need, a slot beyond the pages, or a position beyond the table; nothing is
/// written then.
pub fn append<E: Element, S: Number>(
    geometry: &Geometry,
    tokens: &[E],
    slots: &[i64],
    pages: &mut [S],
    strides: &KvStrides,
    scale: Scale<'_>,
    rotary: Option<&Rotary<'_>>,
) -> Result<(), ExecError> {
    let (heads, dim, page_size) =
        (geometry.kv_heads as usize, geometry.head_dim as usize, i64::from(geometry.page_size));
    check_length("tokens", tokens.len(), slots.len().saturating_mul(heads * dim))?;
    if scale.heads() < heads {
        return Err(AppendError::Length { name: "scales", found: scale.heads(), needed: heads }.into());
    }
    rotary.map_or(Ok(()), |rotary| rotary.check(slots, geometry.head_dim))?;
    let within = |slot: i64| {
        let page = i32::try_from(slot / page_size).ok()?;
        strides.end_of_page(geometry, page).filter(|end| *end <= pages.len())
    };
    if let Some((token, &slot)) =
        slots.iter().enumerate().find(|(_, slot)| **slot >= 0 && within(**slot).is_none())
    {
        return Err(ExecError::Slot { token, slot, found: pages.len() });
    }
    let mut wide = vec![0.0; dim];
    for (token, (elements, &slot)) in tokens.chunks_exact(heads * dim).zip(slots).enumerate() {
        let Ok(slot) = usize::try_from(slot) else { continue };
        let page_size = geometry.page_size as usize;
        let first = slot / page_size * strides.page + slot % page_size * strides.token;
        for (head, vector) in elements.chunks_exact(dim).enumerate() {
            let place = &mut pages[first + head * strides.head..][..dim];
            let scale = scale.of_head(head);
            E::widen(vector, &mut wide);
            rotary.inspect(|rotary| rotary.rotate(token, &mut wide));
            for (place, number) in place.iter_mut().zip(&wide) {
                *place = S::from_f32(number / scale);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "append_tests.rs"]
mod tests;
