//! Host side of `kernel_traits.cuh`: threads, shared memory and producer warps of a CTA.
//!
//! With TMA (compute capability 9.0a), one or two producer warps copy K and V; the others of their warpgroup leave their registers to the consumers.

use super::abi::{GRANULE, max_segments};
use super::{KernelOptions, KvLoad};
use crate::space::WARP_THREADS;
use crate::{Arch, Class};
use tilewright_heuristics::{Dtype, Tile};

/// Elements of a query's row that a warp has registers for, beside its sums.
const MOST_QUERY_DIM: u32 = 128;

/// Heads of more elements are split among the warps that share rows: one warp has no registers for sums of 16 rows of them.
const MOST_WARP_DIM: u32 = 256;

/// How the warps of a CTA share out a step: as many side by side along its rows; those that have the same rows share out its tokens, the elements of a head
/// (split-D), or the tokens of K and the elements of V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarpSplit {
    /// Warps of 16 rows each.
    pub warps_q: u32,
    /// Warps that have the same rows, and a softmax of tokens of their own.
    pub warps_kv: u32,
    /// Warps that have the same rows, and elements of V of their own.
    pub warps_d: u32,
    /// Warps that have the same rows, and tokens of K of their own.
    pub warps_keys: u32,
    /// Whether they share out the tokens of K and the elements of V (`cuda/split_step.cuh`): in batch-invariant kernels, and beside long heads in FP8.
    pub splits_step: bool,
}

impl WarpSplit {
    /// Whether the warps that share rows split the elements of a head of that dimension among themselves.
    pub const fn splits_heads(head_dim: u32) -> bool {
        head_dim > MOST_WARP_DIM
    }

    /// Of a tile whose warps are a multiple of `m / 16`.
    pub const fn of(tile: &Tile, class: &Class, invariant: bool) -> Self {
        let warps_q = if tile.m < 16 { 1 } else { tile.m as u32 / 16 };
        let beside = if (tile.warps as u32) < warps_q { 1 } else { tile.warps as u32 / warps_q };
        let splits_heads = Self::splits_heads(class.head_dim);
        let divides =
            (tile.n as u32).is_multiple_of(16 * beside) && class.head_dim.is_multiple_of(16 * beside);
        let long_in_fp8 =
            class.dtype.has_fp8_kv() && class.head_dim > MOST_QUERY_DIM && tile.m == 16 && divides;
        let splits_step = !splits_heads && beside > 1 && (invariant || long_in_fp8);
        let (warps_kv, warps_d) = if splits_heads || splits_step { (1, beside) } else { (beside, 1) };
        Self { warps_q, warps_kv, warps_d, warps_keys: if splits_heads { 1 } else { beside }, splits_step }
    }
}

/// Dynamic shared memory of a tile in bytes: the buffers of K and V (or, at the end, the outputs of warps that share rows), the query, and
/// what is known of rows, of each warp's private KV, and of tokens; of transposed products the weights of two steps, the rows' maxima and, where each row has its own, factors of logits; in batch-invariant kernels also the totals of the rows' chunks, in f32; and the
/// logits that warps add up which share out the elements of a head, or weights that they leave to each other.
/// `cuda/kernel_traits.cuh` computes the same, and asserts it.
pub const fn shared_bytes(tile: &Tile, class: &Class, producers: u32, options: KernelOptions) -> u32 {
    let Tile { m, n, warps, stages } = *tile;
    let (m, n, warps, stages) = (m as u32, n as u32, warps as u32, stages as u32);
    // Two bytes an element of Q: no tile is feasible for f32.
    let (query_row_bytes, kv_bytes) = (class.head_dim * 2, if class.dtype.has_fp8_kv() { 1 } else { 2 });
    let wide = wide_buffers(tile, class, producers, options);
    let transposed = producers > 0 && transposes(tile, class, options);
    let keys_in_fp8 = multiplies_keys_in_fp8(tile, class, producers, options);
    let wide_matrices = if keys_in_fp8 { 1 } else { 2 };
    let buffers = stages * 2 * n * class.head_dim * kv_bytes + wide * wide_matrices * n * class.head_dim * 2;
    let WarpSplit { warps_kv, warps_d, splits_step, .. } = WarpSplit::of(tile, class, options.invariant);
    let maxima = if options.invariant { n / GRANULE } else { warps_d };
    let key_dim =
        if WarpSplit::splits_heads(class.head_dim) { class.head_dim / warps_d } else { class.head_dim };
    let outputs = if warps_kv > 1 { warps * 16 * (class.head_dim + 8) * 4 } else { 0 };
    // It passes through a buffer on its way to registers, where it fits, and is not wanted once more.
    let fits = !transposed
        && !keys_in_fp8
        && key_dim <= MOST_QUERY_DIM
        && m * query_row_bytes <= 2 * n * class.head_dim * kv_bytes;
    let query = if fits { 0 } else { m * query_row_bytes };
    // What is noted of later steps: offsets of tokens, or only granules, and what has arrived of each buffer and of the query.
    let notes = if producers > 0 {
        let ahead = match wide {
            0 => stages,
            _ if keys_in_fp8 => stages,
            _ if wide > stages => stages + wide,
            _ => 2 * stages,
        };
        (ahead + 1) * n / GRANULE * 8 + ((stages + wide) * 4 + 2) * 8
    } else {
        (stages + 2) * (n + n / GRANULE) * 8
    };
    ((if buffers > outputs { buffers } else { outputs })
        + query
        + if transposed { 2 * m * n * 2 + m * 4 } else { 0 }
        + if transposed && keys_in_fp8 { m * 4 } else { 0 }
        + notes
        + warps * if transposed { m } else { 16 } * 8
        + (2 + 3 * (m / 16)) * 4
        + m * 20
        + max_segments(m) * 28)
        .next_multiple_of(16)
        + if options.invariant && !totals_in_registers(tile, class) { m * class.head_dim * 4 } else { 0 }
        + if WarpSplit::splits_heads(class.head_dim) { warps * 16 * n * 4 } else { 0 }
        + if splits_step { 2 * m * n * 3 + m * maxima * 4 } else { 0 }
}

/// Whether the totals of batch-invariant kernels are in registers: where an SM then holds a CTA more.
const fn totals_in_registers(tile: &Tile, class: &Class) -> bool {
    let WarpSplit { warps_d, splits_step, .. } = WarpSplit::of(tile, class, true);
    splits_step && warps_d == 4 && class.head_dim == 128 && !class.dtype.has_fp8_kv() && tile.stages > 1
}

/// Whether a warpgroup multiplies with K and V in FP8 on the left (`cuda/transposed.cuh`) in kernels of a tile that have TMA producer warps: beside
/// 32 rows, which products of 64 would pad.
pub const fn transposes(tile: &Tile, class: &Class, options: KernelOptions) -> bool {
    let Tile { m, n, warps, .. } = *tile;
    let whole_parts = class.head_dim.is_multiple_of(64) && !WarpSplit::splits_heads(class.head_dim);
    class.dtype.has_fp8_kv() && m == 32 && n == 64 && warps == 4 && whole_parts && !options.invariant
}

/// Whether K in FP8 is multiplied as it is wherever a warpgroup multiplies, in kernels of a tile that have `producers` TMA producer warps: beside queries in
/// bf16, which are the sum of two parts in e4m3 (`cuda/query.cuh`). Where `ptxas` loses these parts, K is widened (`cuda/kernel_traits.cuh`).
const fn multiplies_keys_in_fp8(tile: &Tile, class: &Class, producers: u32, options: KernelOptions) -> bool {
    let keeps_query = tile.warps > 4 || tile.n as u32 * class.head_dim <= 96 * 128;
    let warpgroups = producers == 4 && tile.m.is_multiple_of(64) && keeps_query;
    class.dtype.has_fp8_kv()
        && matches!(class.dtype.query(), Dtype::Bf16)
        && !options.invariant
        && matches!(class.head_dim, 64 | 128)
        && (warpgroups || producers > 0 && transposes(tile, class, options))
}

/// Buffers of K and V in FP8 that are widened for `wgmma`: two warps of a producer warpgroup widen a step once for all rows.
const fn wide_buffers(tile: &Tile, class: &Class, producers: u32, options: KernelOptions) -> u32 {
    let widened = class.dtype.has_fp8_kv() && producers == 4 && tile.m.is_multiple_of(64);
    match widened {
        false => 0,
        // Beside the totals of longer heads an SM holds one CTA anyway.
        true if options.invariant && class.head_dim > MOST_QUERY_DIM => 2,
        true if options.invariant => 1,
        true if class.head_dim <= MOST_QUERY_DIM && tile.n <= 64 => 2,
        true if class.head_dim > MOST_QUERY_DIM && tile.n as u32 * class.head_dim <= 32 * 192 => 2,
        true => 1,
    }
}

/// Bytes of a row of a panel, in which K and V lie in shared memory: the largest power of two that rows of a head are multiples of, and at most
/// the 128 that `wgmma` and TMA exchange chunks in.
pub const fn panel_row_bytes(class: &Class) -> u32 {
    let row = class.head_dim * class.dtype.kv_bytes() as u32;
    let whole = 1 << row.trailing_zeros();
    if whole > 128 { 128 } else { whole }
}

/// Whether a class has kernels with TMA producer warps: on architectures with TMA, where rows have panels of 64 or 128 bytes, which those of 96 elements in FP8
/// have not. [`KvLoad::CpAsync`] chooses the `cp.async` producer even there.
pub const fn has_tma_producers(class: &Class, arch: Arch) -> bool {
    arch.has_warpgroups() && panel_row_bytes(class) >= 64
}

/// TMA producer warps of a CTA beside a tile's consumer warps: a warpgroup beside warpgroups, so that it can leave them its registers, two of
/// whose warps copy, and two widen FP8; else one warp; none with the `cp.async` producer. With 256 elements in FP8 warps of few rows take 255
/// registers, and a producer warp beside four of them keeps another CTA off the SM; not those of transposed products, nor those that share out a
/// step.
pub fn producer_warps(tile: &Tile, class: &Class, options: KernelOptions, arch: Arch) -> u32 {
    let warpgroups = tile.m.is_multiple_of(64);
    let crowded = class.dtype.has_fp8_kv()
        && class.head_dim == 256
        && !warpgroups
        && !transposes(tile, class, options)
        && !WarpSplit::of(tile, class, options.invariant).splits_step;
    if !has_tma_producers(class, arch) || options.kv_load == KvLoad::CpAsync || crowded {
        return 0;
    }
    if warpgroups { 4 } else { 1 }
}

/// Threads of a CTA of a tile's kernel.
pub fn threads(tile: &Tile, class: &Class, options: KernelOptions, arch: Arch) -> u32 {
    (u32::from(tile.warps) + producer_warps(tile, class, options, arch)) * WARP_THREADS
}

/// TMA producer warps of a CTA that computes any of several tiles: as many for each of them as the greediest has alone, so that a CTA has
/// the same threads and shares out the same registers whichever tile its work item names. None if one of the tiles has none alone: a CTA
/// copies in one way.
pub fn mix_producer_warps(tiles: &[Tile], class: &Class, options: KernelOptions, arch: Arch) -> u32 {
    let alone = tiles.iter().map(|tile| producer_warps(tile, class, options, arch));
    if alone.clone().any(|warps| warps == 0) { 0 } else { alone.max().unwrap_or(0) }
}

/// Threads of a CTA that computes any of several tiles, beside `producers` producer warps.
pub fn mix_threads(tiles: &[Tile], producers: u32) -> u32 {
    (most_warps(tiles) + producers) * WARP_THREADS
}

/// Its dynamic shared memory in bytes: [`shared_bytes`] of the greediest tile.
pub fn mix_shared_bytes(tiles: &[Tile], class: &Class, producers: u32, options: KernelOptions) -> u32 {
    tiles.iter().map(|tile| shared_bytes(tile, class, producers, options)).max().unwrap_or(0)
}

fn most_warps(tiles: &[Tile]) -> u32 {
    tiles.iter().map(|tile| u32::from(tile.warps)).max().unwrap_or(1)
}

/// Warps of an SM of compute capability 9.0 whose threads have 168 registers each, as those of tiles of few rows have alone: three in each of
/// its four parts.
const WARPS_OF_168_REGISTERS: u32 = 12;

/// What a kernel of one tile or several says of itself to the compiler. A producer warpgroup leaves registers to the consumer warps, so there
/// is a number of them to begin with: the one that lets an SM hold two CTAs of four consumer warps, or one of eight, or one with the totals
/// of longer heads. Several tiles beside one producer warp would get up to 255, and an SM half as many CTAs as of one of them. Transposed
/// products of up to 128 elements take some registers more or less than let an SM hold three CTAs, by the compiler's version. Batch-invariant tiles of 16 rows
/// and 96 elements, or 192 in FP8, would get so few registers that they spill, for CTAs that shared memory has no room for.
pub(super) fn launch_bounds(tiles: &[Tile], class: &Class, producers: u32, options: KernelOptions) -> String {
    let threads = mix_threads(tiles, producers);
    let ctas = match (producers, tiles) {
        (4, _) if options.invariant && class.head_dim > MOST_QUERY_DIM => Some(1),
        (4, _) => Some(if most_warps(tiles) == 4 { 2 } else { 1 }),
        (1, [tile]) if transposes(tile, class, options) && class.head_dim <= 128 => Some(3),
        (1, [_, _, ..]) => Some((WARPS_OF_168_REGISTERS / (most_warps(tiles) + 1)).max(1)),
        (1, [_]) if options.invariant && class.head_dim == 96 && !class.dtype.has_fp8_kv() => Some(5),
        (1, [_]) if options.invariant && class.head_dim == 192 && class.dtype.has_fp8_kv() => Some(2),
        _ => None,
    };
    match ctas {
        Some(ctas) => format!("__launch_bounds__({threads}, {ctas})"),
        None => format!("__launch_bounds__({threads})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;
    use tilewright_heuristics::Backend;

    const TMA: KernelOptions = KernelOptions::for_pages(16);
    const CP_ASYNC: KernelOptions = KernelOptions::for_pages(1);
    const CLASS: Class = Class { head_dim: 128, dtype: Dtype::F16 };
    const TILE: Tile = Tile::of("m64n64w4s2");

    fn hopper() -> Arch {
        "sm_90a".parse().unwrap()
    }

    #[test]
    fn one_producer_warp_or_a_warpgroup_beside_warpgroups() {
        let (hopper, ampere): (Arch, Arch) = (hopper(), "sm_80".parse().unwrap());
        let threads = |tile: Tile, class: Class, arch: Arch| threads(&tile, &class, TMA, arch);
        assert_eq!((threads(TILE, CLASS, hopper), threads(TILE, CLASS, ampere)), (256, 128));
        assert_eq!(threads(Tile { m: 128, warps: 8, ..TILE }, CLASS, hopper), 384);
        for m in [16, 32] {
            assert_eq!(producer_warps(&Tile { m, ..TILE }, &CLASS, TMA, hopper), 1);
            assert_eq!(threads(Tile { m, ..TILE }, CLASS, hopper), 160);
            assert_eq!(threads(Tile { m, ..TILE }, CLASS, ampere), 128);
        }
        assert_eq!(threads(TILE, Class { head_dim: 256, ..CLASS }, hopper), 256);
        assert_eq!(threads(TILE, Class { dtype: Dtype::Fp8F16, ..CLASS }, hopper), 256);
        let fp8 = Class { dtype: Dtype::Fp8F16, ..CLASS };
        assert_eq!(threads(Tile { n: 128, ..TILE }, fp8, hopper), 256);
        let of_fp8 =
            |m| move |head_dim| threads(Tile { m, ..TILE }, Class { head_dim, dtype: Dtype::Fp8F16 }, hopper);
        assert_eq!([64, 96, 192, 256, 512].map(of_fp8(64)), [256, 128, 256, 256, 256]);
        assert_eq!([64, 96, 192, 256, 512].map(of_fp8(16)), [160, 128, 160, 160, 160]);
        let long_heads = Class { head_dim: 256, ..fp8 };
        let invariant = KernelOptions { invariant: true, ..TMA };
        assert_eq!(producer_warps(&TILE, &long_heads, invariant, hopper), 4);
        assert_eq!(launch_bounds(&[TILE], &long_heads, 4, invariant), "__launch_bounds__(256, 1)");
        assert_eq!(launch_bounds(&[TILE], &CLASS, 4, invariant), "__launch_bounds__(256, 2)");
        let low = Tile { m: 16, n: 128, stages: 1, ..TILE };
        let long_in_fp8 = Class { head_dim: 192, dtype: Dtype::Fp8Bf16 };
        assert_eq!(launch_bounds(&[low], &long_in_fp8, 1, invariant), "__launch_bounds__(160, 2)");
        assert_eq!(threads(TILE, CLASS, "sm_90".parse().unwrap()), 128);
        assert_eq!(launch_bounds(&[TILE], &CLASS, 4, TMA), "__launch_bounds__(256, 2)");
        assert_eq!(launch_bounds(&[TILE], &CLASS, 0, TMA), "__launch_bounds__(128)");
        let narrow = Tile { m: 32, ..TILE };
        assert_eq!(launch_bounds(&[narrow], &CLASS, 1, TMA), "__launch_bounds__(160)");
        assert_eq!(launch_bounds(&[narrow, TILE], &CLASS, 4, TMA), "__launch_bounds__(256, 2)");
        assert_eq!(
            launch_bounds(&[narrow, Tile { m: 16, ..TILE }], &CLASS, 1, TMA),
            "__launch_bounds__(160, 2)"
        );
        let wide = Tile { m: 128, warps: 8, ..TILE };
        assert_eq!(
            launch_bounds(&[Tile { warps: 8, ..TILE }, wide], &CLASS, 4, TMA),
            "__launch_bounds__(384, 1)"
        );
    }

    #[test]
    fn mixes_have_the_producer_warps_of_the_greediest_or_none() {
        let hopper = hopper();
        let [few, some] = [16, 32].map(|m| Tile { m, ..TILE });
        let warps =
            |tiles: &[Tile], class: &Class, options| mix_producer_warps(tiles, class, options, hopper);
        assert_eq!(warps(&[few, some], &CLASS, TMA), 1);
        assert_eq!(warps(&[few, some, TILE], &CLASS, TMA), 4);
        assert_eq!(warps(&[few, some, TILE], &CLASS, CP_ASYNC), 0);
        assert_eq!(warps(&[], &CLASS, TMA), 0);
        assert_eq!(mix_producer_warps(&[few, TILE], &CLASS, TMA, "sm_80".parse().unwrap()), 0);
        let fp8 = Class { dtype: Dtype::Fp8F16, ..CLASS };
        assert_eq!(warps(&[few, TILE], &fp8, TMA), 4);
        assert_eq!((mix_threads(&[few, TILE], 4), mix_threads(&[few, some], 1)), (256, 160));
        let [short, long] = [64, 128].map(|n| Tile { n, warps: 1, ..few });
        let bytes = |options| mix_shared_bytes(&[short, long], &CLASS, 1, options);
        assert_eq!(bytes(TMA), shared_bytes(&long, &CLASS, 1, TMA));
        let totals = u32::from(few.m) * CLASS.head_dim * 4;
        assert_eq!(bytes(KernelOptions { invariant: true, ..TMA }), bytes(TMA) + totals);
    }

    #[test]
    fn warps_that_share_out_a_step_have_room_for_its_weights() {
        let invariant = KernelOptions { invariant: true, ..TMA };
        let low = Tile { m: 16, ..TILE };
        let more = |tile: Tile, class: &Class| {
            shared_bytes(&tile, class, 1, invariant) - shared_bytes(&tile, class, 1, TMA)
        };
        // Of two steps weights of 16 bits, and a sum a granule and lane of either half; a maximum a row and granule.
        let weights = 2 * (16 * 64 * 2 + 4 * 32 * 8) + 16 * 4 * 4;
        let totals = 16 * 128 * 4;
        let fp8 = Class { dtype: Dtype::Fp8F16, ..CLASS };
        assert_eq!(more(low, &CLASS), weights, "totals are in registers");
        assert_eq!(more(Tile { stages: 3, n: 128, ..low }, &fp8), 2 * weights + totals);
        let short = Class { head_dim: 64, ..fp8 };
        assert_eq!(more(Tile { n: 128, ..low }, &short), 2 * weights + totals / 2);
        // Of long heads in FP8 warps share a step out anyway.
        let long = Class { head_dim: 256, ..fp8 };
        assert_eq!(more(low, &long), 2 * totals);
        assert!(!WarpSplit::of(&low, &Class { head_dim: 256, ..CLASS }, false).splits_step);
        assert!(!WarpSplit::of(&Tile { n: 32, ..low }, &long, false).splits_step, "16 tokens a warp");
        assert!(WarpSplit::of(&Tile { n: 32, warps: 2, ..low }, &long, false).splits_step);
    }

    #[test]
    fn fp8_is_widened_once_beside_warpgroups() {
        let fp8 = Class { dtype: Dtype::Fp8F16, ..CLASS };
        let bytes = |tile: Tile, producers| shared_bytes(&tile, &fp8, producers, TMA);
        // Two buffers of K and of V in 16 bits beside two in FP8, more notes and barriers, against offsets of tokens.
        assert_eq!(bytes(TILE, 4) - bytes(TILE, 0), 2 * 2 * 64 * 256 + 5 * 4 * 8 + 18 * 8 - 4 * (64 + 4) * 8);
        let long = Tile { n: 96, ..TILE };
        assert_eq!(bytes(long, 4) - bytes(long, 0), 2 * 96 * 256 + 5 * 6 * 8 + 14 * 8 - 4 * (96 + 6) * 8);
        // Beside the query of longer heads in shared memory there is room for two of 192 elements, one of 256.
        for (head_dim, buffers) in [(192, 2), (256, 1)] {
            let class = Class { head_dim, ..fp8 };
            let bytes = |producers| shared_bytes(&Tile { n: 32, ..TILE }, &class, producers, TMA);
            let barriers = (2 + buffers) * 4 + 2;
            let wide = buffers * 2 * 32 * 2 * head_dim;
            assert_eq!(bytes(4) - bytes(0), wide + 5 * 2 * 8 + barriers * 8 - 4 * (32 + 2) * 8);
        }
        // Fewer rows are multiplied by each warp for itself.
        let few = Tile { m: 16, ..TILE };
        assert!(bytes(few, 4) < bytes(few, 0));
        // One of each beside the totals of rows, two where an SM holds one CTA anyway.
        let invariant = |class| shared_bytes(&TILE, &class, 4, KernelOptions { invariant: true, ..TMA });
        assert_eq!(bytes(TILE, 4) - (invariant(fp8) - 64 * 128 * 4), 2 * 64 * 256 + 4 * 8);
        let long_heads = Class { head_dim: 192, ..fp8 };
        let one = shared_bytes(&TILE, &long_heads, 4, TMA);
        assert_eq!(invariant(long_heads) - 64 * 192 * 4 - one, 2 * 64 * 384 + 4 * 8);
    }

    #[test]
    fn transposed_products_have_their_query_and_weights_in_shared_memory() {
        let tile = Tile { m: 32, ..TILE };
        let fp8 = Class { dtype: Dtype::Fp8F16, ..CLASS };
        let bytes = |class, producers| shared_bytes(&tile, &class, producers, TMA);
        // A query in a place of its own, two steps' weights, the rows' maxima, and all rows' softmaxes for each warp, beside fewer notes.
        let notes = |producers| if producers > 0 { 3 * 4 * 8 + 10 * 8 } else { 4 * (64 + 4) * 8 };
        let more = 32 * 256 + 2 * 32 * 64 * 2 + 32 * 4 + 4 * (32 - 16) * 8;
        assert_eq!(bytes(fp8, 1) + notes(0) - notes(1), bytes(fp8, 0) + more);
        let invariant = KernelOptions { invariant: true, ..TMA };
        let transposed = |tile: Tile, class, options| transposes(&tile, &class, options);
        assert!(
            transposed(tile, fp8, TMA) && !transposed(tile, CLASS, TMA) && !transposed(tile, fp8, invariant)
        );
        assert!(
            [TILE, Tile { n: 128, ..tile }, Tile { warps: 8, ..tile }]
                .iter()
                .all(|&t| !transposed(t, fp8, TMA))
        );
        let by_dim = |head_dim| {
            let class = Class { head_dim, ..fp8 };
            (producer_warps(&tile, &class, TMA, hopper()), launch_bounds(&[tile], &class, 1, TMA))
        };
        let free = || "__launch_bounds__(160)".to_owned();
        let three = || "__launch_bounds__(160, 3)".to_owned();
        assert_eq!(by_dim(64), (1, three()));
        assert_eq!(by_dim(128), (1, three()));
        assert_eq!([192, 256].map(by_dim), [(1, free()), (1, free())]);
        assert_eq!(by_dim(96), (0, free()));
    }

    #[test]
    fn cp_async_has_no_producer_warps() {
        for m in [16, 32, 64, 128] {
            let tile = Tile { m, warps: 8, ..TILE };
            assert_eq!(producer_warps(&tile, &CLASS, CP_ASYNC, hopper()), 0);
            assert_eq!(threads(&tile, &CLASS, CP_ASYNC, hopper()), 256);
            assert_eq!(launch_bounds(&[tile], &CLASS, 0, TMA), "__launch_bounds__(256)");
        }
    }

    #[test]
    fn cp_async_needs_the_most_shared_memory_where_nothing_is_widened() {
        for tile in Space::of(Backend::Cuda).tiles() {
            for class in Class::all(Backend::Cuda) {
                let producers = producer_warps(tile, &class, TMA, hopper());
                let bytes = |producers| shared_bytes(tile, &class, producers, TMA);
                let more = wide_buffers(tile, &class, producers, TMA) > 0 || transposes(tile, &class, TMA);
                assert!(more || bytes(producers) <= bytes(0), "{class} {tile}");
            }
        }
    }
}
