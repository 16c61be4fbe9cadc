//! Where a page, token and head of K and V lie: strides, not a fixed layout.

use tilewright_heuristics::Geometry;

/// Distances in elements. The elements of one head's vector are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStrides {
    /// From page to page.
    pub page: usize,
    /// From token to token of a page.
    pub token: usize,
    /// From KV head to KV head.
    pub head: usize,
}

impl KvStrides {
    /// `[page, token, head, element]`, as most engines keep it.
    pub const fn nhd(geometry: &Geometry) -> Self {
        let head = geometry.head_dim as usize;
        let token = head * geometry.kv_heads as usize;
        Self { page: token * geometry.page_size as usize, token, head }
    }

    /// `[page, head, token, element]`.
    pub const fn hnd(geometry: &Geometry) -> Self {
        let token = geometry.head_dim as usize;
        let head = token * geometry.page_size as usize;
        Self { page: head * geometry.kv_heads as usize, token, head }
    }

    /// One past the last element of the page with this id; `None` if it is beyond what memory can address.
    pub fn end_of_page(&self, geometry: &Geometry, page: i32) -> Option<usize> {
        let last_token = self.token.checked_mul(geometry.page_size as usize - 1)?;
        let last_head = self.head.checked_mul(geometry.kv_heads as usize - 1)?;
        let within = last_token.checked_add(last_head)?.checked_add(geometry.head_dim as usize)?;
        self.page.checked_mul(usize::try_from(page).ok()?)?.checked_add(within)
    }
}
