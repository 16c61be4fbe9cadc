//! K or V of new tokens, written to their places in the pages of a cache.

use super::{Element, ExecError, Number};
use tilewright_heuristics::Geometry;
use tilewright_plan::{KvStrides, Scale};

/// Writes K or V of tokens, `[tokens, kv_heads, head_dim]`, to the pages of a cache: token i to `slots[i]`, which is its page times
/// `page_size` plus its place in the page, as vLLM's slot mappings have it. A negative slot is no place, as padding has it. Of tokens with
/// one slot the last one stays.
///
/// Pages of another type than the tokens' are FP8: numbers are divided by their head's scale and rounded to the nearest, those beyond 448
/// to 448. Without FP8 the scale is 1.
///
/// ```
/// use tilewright_cpu::append;
/// use tilewright_heuristics::{Dtype, Geometry};
/// use tilewright_plan::{KvStrides, Scale};
///
/// let geometry = Geometry { q_heads: 1, kv_heads: 1, head_dim: 2, page_size: 4, dtype: Dtype::F32 };
/// let mut pages = [0.0f32; 2 * 4 * 2]; // two pages
/// append(&geometry, &[1.0f32, 2.0], &[5], &mut pages, &KvStrides::nhd(&geometry), Scale::Tensor(1.0))?;
/// assert_eq!(pages[5 * 2..6 * 2], [1.0, 2.0]);
/// # Ok::<(), tilewright_cpu::ExecError>(())
/// ```
///
/// # Errors
/// Another number of elements or scales than the tokens need, or a slot beyond the pages; nothing is written then.
pub fn append<E: Element, S: Number>(
    geometry: &Geometry,
    tokens: &[E],
    slots: &[i64],
    pages: &mut [S],
    strides: &KvStrides,
    scale: Scale<'_>,
) -> Result<(), ExecError> {
    let (heads, dim, page_size) =
        (geometry.kv_heads as usize, geometry.head_dim as usize, i64::from(geometry.page_size));
    let needed = slots.len().saturating_mul(heads * dim);
    if tokens.len() != needed {
        return Err(ExecError::Length { name: "tokens", found: tokens.len(), needed });
    }
    if scale.heads() < heads {
        return Err(ExecError::Length { name: "scales", found: scale.heads(), needed: heads });
    }
    let within = |slot: i64| {
        let page = i32::try_from(slot / page_size).ok()?;
        strides.end_of_page(geometry, page).filter(|end| *end <= pages.len())
    };
    if let Some((token, &slot)) =
        slots.iter().enumerate().find(|(_, slot)| **slot >= 0 && within(**slot).is_none())
    {
        return Err(ExecError::Slot { token, slot, found: pages.len() });
    }
    for (token, &slot) in tokens.chunks_exact(heads * dim).zip(slots) {
        let Ok(slot) = usize::try_from(slot) else { continue };
        let page_size = geometry.page_size as usize;
        let first = slot / page_size * strides.page + slot % page_size * strides.token;
        for (head, vector) in token.chunks_exact(dim).enumerate() {
            let place = &mut pages[first + head * strides.head..][..dim];
            let scale = scale.of_head(head);
            for (place, element) in place.iter_mut().zip(vector) {
                *place = S::from_f32(element.to_f32() / scale);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use tilewright_heuristics::Dtype;
    use tilewright_plan::E4m3;

    const GEOMETRY: Geometry =
        Geometry { q_heads: 2, kv_heads: 2, head_dim: 16, page_size: 4, dtype: Dtype::F32 };

    /// Three tokens of two heads: numbers from 1 on.
    fn tokens<E: Element>() -> Vec<E> {
        (1..=3 * 2 * 16).map(|number| E::from_f32(number as f32)).collect()
    }

    /// Every element that was written, as (page, token of the page, head, first number).
    fn found<S: Number>(pages: &[S], strides: &KvStrides) -> Vec<(usize, usize, usize, f32)> {
        let mut found = Vec::new();
        for (page, token, head) in
            (0..3).flat_map(|page| (0..4).flat_map(move |token| (0..2).map(move |head| (page, token, head))))
        {
            let at = page * strides.page + token * strides.token + head * strides.head;
            let vector = &pages[at..at + 16];
            if vector.iter().any(|number| number.to_f32() != 0.0) {
                found.push((page, token, head, vector[0].to_f32()));
            }
        }
        found
    }

    fn written<E: Element>() {
        for strides in [KvStrides::nhd(&GEOMETRY), KvStrides::hnd(&GEOMETRY)] {
            let mut pages = vec![E::from_f32(0.0); 3 * 4 * 2 * 16];
            append(&GEOMETRY, &tokens::<E>(), &[9, -1, 2], &mut pages, &strides, Scale::Tensor(1.0)).unwrap();
            let expected = [(0, 2, 0, 65.0), (0, 2, 1, 81.0), (2, 1, 0, 1.0), (2, 1, 1, 17.0)];
            assert_eq!(found(&pages, &strides), expected);
        }
    }

    #[test]
    fn tokens_go_to_their_slots_in_every_layout_and_type() {
        written::<f32>();
        written::<f16>();
        written::<bf16>();
    }

    #[test]
    fn fp8_pages_hold_what_the_scales_make_of_it() {
        let strides = KvStrides::nhd(&GEOMETRY);
        let mut pages = vec![E4m3::from_f32(0.0); 3 * 4 * 2 * 16];
        let scales = [0.125, 0.5];
        append(&GEOMETRY, &tokens::<f32>(), &[0, 1, 2], &mut pages, &strides, Scale::Heads(&scales)).unwrap();
        // 65 / 0.125 is beyond 448; 49 / 0.5 = 98 lies between 96 and 104.
        let first = [(1.0 / 0.125, 17.0 / 0.5), (264.0, 49.0 / 0.5), (448.0, 162.0)];
        for (token, (one, other)) in first.into_iter().enumerate() {
            let at = token * strides.token;
            assert_eq!(pages[at].to_f32(), E4m3::from_f32(one).to_f32());
            assert_eq!(pages[at + 16].to_f32(), E4m3::from_f32(other).to_f32());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_before_anything_is_written() {
        let strides = KvStrides::nhd(&GEOMETRY);
        let mut pages = vec![0.0f32; 3 * 4 * 2 * 16];
        let mut refused = |slots: &[i64], scale: Scale<'_>| {
            append(&GEOMETRY, &tokens::<f32>(), slots, &mut pages, &strides, scale).unwrap_err()
        };
        let one = Scale::Tensor(1.0);
        assert_eq!(refused(&[0, 1], one), ExecError::Length { name: "tokens", found: 96, needed: 64 });
        assert_eq!(refused(&[0, 1, 12], one), ExecError::Slot { token: 2, slot: 12, found: 384 });
        assert_eq!(refused(&[0, 1, i64::MAX], one), ExecError::Slot { token: 2, slot: i64::MAX, found: 384 });
        let short = ExecError::Length { name: "scales", found: 1, needed: 2 };
        assert_eq!(refused(&[0, 1, 2], Scale::Heads(&[1.0])), short);
        assert!(pages.iter().all(|number| *number == 0.0));
    }
}
