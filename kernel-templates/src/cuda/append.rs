//! Host side of `append.cuh`.

use super::Kernel;
use super::kernel::{element, identifier, kv_element};
use crate::{Class, RotaryPairs};

/// The argument of an append, as `cuda/append.cuh` declares it. Addresses are of device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendArguments {
    /// Elements `[tokens, kv_heads, head_dim]`.
    pub keys: u64,
    /// Elements `[tokens, kv_heads, head_dim]`.
    pub values: u64,
    /// Pages of K, aligned to 16 bytes.
    pub key_pages: u64,
    /// Pages of V, aligned to 16 bytes.
    pub value_pages: u64,
    /// i64 `[tokens]`: page x page_size + place in the page. A token whose slot is negative or in no page is not written.
    pub slots: u64,
    /// f32 `[kv_heads]`, or one; read if the pages are FP8.
    pub key_scales: u64,
    /// f32 `[kv_heads]`, or one; read if the pages are FP8.
    pub value_scales: u64,
    /// f32 `[table_rows, rotary_dim]`, aligned to 16 bytes: cosines of `rotary_dim / 2` angles, then their sines.
    pub table: u64,
    /// i64 `[tokens]`, or 0. A token whose position is not in the table is not written.
    pub positions: u64,
    /// i32 `[tokens]`, read without positions: the token is the last of so many.
    pub lengths: u64,
    /// From token to token of K.
    pub key_token: i64,
    /// From head to head of a token's K.
    pub key_head: i64,
    /// From token to token of V.
    pub value_token: i64,
    /// From head to head of a token's V.
    pub value_head: i64,
    /// From page to page.
    pub page: i64,
    /// From token to token of a page.
    pub token: i64,
    /// From KV head to KV head of a page.
    pub head: i64,
    /// From KV head to KV head of the scales: 1, or 0 where all heads have the same.
    pub scale_head: i64,
    /// Positions of the table.
    pub table_rows: u64,
    /// New tokens.
    pub tokens: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Tokens of a page.
    pub page_size: u32,
    /// Pages of the cache.
    pub pages: u32,
    /// Elements of a key that are rotated, from its first on: a multiple of 16, up to the head dimension.
    pub rotary_dim: u32,
    /// 1 if K and V of tokens can be read 16 bytes at a time, else 0.
    pub wide: u32,
}

const _: () = assert!(size_of::<AppendArguments>() == 19 * 8 + 6 * 4, "as in cuda/append.cuh");

/// Threads of a CTA.
const THREADS: u32 = 128;

impl Kernel {
    /// Append: K and V of new tokens to the pages of a cache, K rotated if `rotary` says how. Takes an [`AppendArguments`]; each CTA serves
    /// [`Kernel::chunks_of_append`] chunks of 8 elements of a token's K and V.
    pub fn append(class: &Class, rotary: Option<RotaryPairs>) -> Self {
        let (pairs, suffix) = match rotary {
            None => ("NotRotated", ""),
            Some(RotaryPairs::Halves) => ("Halves", "_halves"),
            Some(RotaryPairs::Interleaved) => ("Interleaved", "_interleaved"),
        };
        let Class { head_dim, dtype } = *class;
        let template = format!("Append<{head_dim}, {}, {}, {pairs}>", element(dtype), kv_element(dtype));
        let name = format!("append_d{head_dim}_{}{suffix}", identifier(dtype));
        let text = format!(
            "#include \"append.cuh\"\n\
             using namespace tilewright;\n\
             using Variant = {template};\n\
             static_assert(Variant::THREADS == {THREADS} && Variant::CHUNK == 8, \"the host launches as many CTAs as that takes\");\n\
             extern \"C\" __global__ void __launch_bounds__({THREADS})\n\
             {name}(const __grid_constant__ tilewright::AppendArguments arguments) {{ Variant::run(arguments); }}\n"
        );
        Self { name, text, threads: THREADS, shared_bytes: 0, template }
    }

    /// Chunks of 8 elements, of K and of V, that a CTA of [`Kernel::append`] writes: one a thread.
    pub const fn chunks_of_append() -> u32 {
        THREADS
    }
}
