// MMA of a step: S = QK^T and O += PV, by each warp (mma) or by a warpgroup (wgmma).
//
// K and V in FP8 stay bytes up to the registers, but for products of a warpgroup (`widener.cuh`). Their scales cost nothing a token: K's is part of the factor of the logits, V's is
// multiplied into the sums at the end. Bytes reach lanes four at a time, where the tensor cores want pairs of 16 bits: a product does not
// care in which order its elements are summed, so both of its sides take K's and Q's in another order; and of V a lane gets two
// neighbouring elements of each token, so even and odd elements are products of their own.
#pragma once
#include "cta.cuh"
#include "fp8.cuh"
#include "query.cuh"
#include "softmax.cuh"

namespace tilewright {

// The softmaxes of the chunks before, where they are summed apart.
template <bool INVARIANT> struct ChunksBefore {};
template <> struct ChunksBefore<true> {
  Softmax total[2];
};

// Two neighbouring elements of a row.
struct alignas(8) Pair {
  float element[2];
};
template <u32 PAIRS> struct TotalsInRegisters {
  Pair pairs[2][PAIRS];
};
template <> struct TotalsInRegisters<0> {};

// What a warp accumulates.
template <class S> struct Accumulators : ChunksBefore<S::INVARIANT>, TotalsInRegisters<S::TOTALS_IN_REGISTERS ? S::WARP_DIM / 8 : 0> {
  float output[S::WARP_DIM / 8][4];
  Softmax softmax[2];
  u32 turn; // where warps that share out a step leave their weights of the next one (`split_step.cuh`)

  TILEWRIGHT_DEVICE static Accumulators empty() {
    Accumulators none = {};
    // Where bits matter, rows begin under 0 (`softmax_step.cuh`).
    if constexpr (!S::INVARIANT) none.softmax[0].max = none.softmax[1].max = negative_infinity();
    else none.total[0].max = none.total[1].max = negative_infinity();
    return none;
  }
};

// What sums of V in FP8 are multiplied by.
template <class S> TILEWRIGHT_DEVICE float value_scale(const Cta<S> &cta) {
  return S::FP8 ? cta.args.value_scales[cta.kv_head * cta.args.scale_head] : 1.f;
}

template <class S> struct Mma {
  const Cta<S> &cta;
  const QueryLoader<S> query_loader{cta};

  // Where the warp's elements of a head begin: in fragments of the query, and in chunks of K and V.
  TILEWRIGHT_DEVICE u32 first_fragment() const { return S::SPLIT_DIM ? cta.warp_d * (S::WARP_KEY_DIM / 16) : 0; }
  TILEWRIGHT_DEVICE u32 first_key_chunk() const { return S::SPLIT_DIM ? cta.warp_d * S::WARP_KEY_CHUNKS : 0; }
  TILEWRIGHT_DEVICE u32 first_value_chunk() const { return cta.warp_d * S::WARP_CHUNKS; }

  // The lane, as addresses of fragments are computed of it. Of several tiles in one kernel the compiler would keep all addresses in registers
  // for the whole KV range: it computes none of them anew in so long a code.
  TILEWRIGHT_DEVICE u32 fragment_lane() const { return S::MIXED ? computed_here(cta.lane) : cta.lane; }

  // Logits of the warp's rows with GRANULES_HERE granules of a step, `first` and its next ones; those outside of `active` stay zero. Of a head that
  // warps share out, the warp's part of them. Returns bits of what the last reads have brought (`Pipeline::release_keys`).
  template <bool ALL, u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE u32 multiply_keys(float (&scores)[GRANULES_HERE * 2][4], const Query<S> &query, const PipelineState<S> &at, u32 first,
                                       u32 active) const {
    constexpr u32 PRODUCTS = S::CHUNK_ELEMENTS / 8; // that two parts are enough for
    const u32 lane = fragment_lane();
    u32 read = 0;
#pragma unroll
    for (u32 j = 0; j < GRANULES_HERE * 2; j++) scores[j][0] = scores[j][1] = scores[j][2] = scores[j][3] = 0.f;
#pragma unroll
    for (u32 k = 0; k < S::WARP_KEY_CHUNKS / 2; k++) {
      u32 a[PRODUCTS][4];
#pragma unroll
      for (u32 p = 0; p < PRODUCTS; p++) {
        if constexpr (S::QUERY_IN_REGISTERS && !S::KEYS_IN_FP8) {
#pragma unroll
          for (u32 i = 0; i < 4; i++) a[p][i] = query.fragments[k * PRODUCTS + p][i];
        } else {
          query_loader.fragment(a[p], first_fragment() + k * PRODUCTS + p, at); // in a place of its own
          if (k + 1 == S::WARP_KEY_CHUNKS / 2) read ^= a[p][0];
        }
      }
#pragma unroll
      for (u32 n = 0; n < GRANULES_HERE; n++) {
        if (!ALL && !(active >> n & 1)) continue;
        const u32 row = (first + n) * S::GRANULE + lane % 8 + lane / 16 * 8;
        u32 b[4];
        ldmatrix(b, cta.chunk_address(cta.keys_at(at), row, first_key_chunk() + k * 2 + lane / 8 % 2));
        if (k + 1 == S::WARP_KEY_CHUNKS / 2) read ^= b[0]; // the compiler may change their order
        if constexpr (S::FP8) {
#pragma unroll
          for (u32 i = 0; i < 4; i++) { // tokens 0 to 7 with both parts, then 8 to 15
            u32 low, high;
            widen_neighbours(typename S::KvElement{}, typename S::MmaElement{}, b[i], low, high);
            mma_sync(typename S::MmaElement{}, scores[2 * n + i / 2], a[i % 2], low, high);
          }
        } else {
          mma_sync(typename S::MmaElement{}, scores[2 * n], a[0], b[0], b[1]);
          mma_sync(typename S::MmaElement{}, scores[2 * n + 1], a[0], b[2], b[3]);
        }
      }
    }
    return read;
  }

  // The weights of a granule: accumulators of two products lie as the left side of the next one wants them.
  template <u32 TILES> TILEWRIGHT_DEVICE static void narrow_weights(u32 (&a)[4], const float (&scores)[TILES][4], u32 n) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) a[i] = narrow(typename S::MmaElement{}, scores[2 * n + i / 2][i % 2 * 2], scores[2 * n + i / 2][i % 2 * 2 + 1]);
  }

  // Adds the values of these granules under their weights, which `fragment` makes left sides of. Returns bits of what the last read of V has brought.
  template <bool ALL, u32 GRANULES_HERE, class Fragment>
  TILEWRIGHT_DEVICE u32 multiply_values(Accumulators<S> &acc, const Fragment &fragment, const PipelineState<S> &at, u32 first, u32 active) const {
    const u32 lane = fragment_lane();
    u32 read = 0, last[4]; // the last chunk of two granules, where the warp has an odd number of chunks
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) {
      if (!ALL && !(active >> n & 1)) continue;
      u32 a[4];
      fragment(a, n);
      const u32 row = (first + n) * S::GRANULE;
#pragma unroll
      for (u32 d = 0; d < S::WARP_CHUNKS / 2; d++) {
        u32 b[4];
        ldmatrix_transposed(b, cta.chunk_address(cta.values_at(at), row + lane % 16, first_value_chunk() + d * 2 + lane / 16));
        read = b[0];
        multiply_chunk(acc, a, 2 * d, b[0], b[1]);
        multiply_chunk(acc, a, 2 * d + 1, b[2], b[3]);
      }
      if constexpr (S::WARP_CHUNKS % 2 != 0) {
        if (n % 2 == 0 || (!ALL && !(active >> (n - 1) & 1))) {
          ldmatrix_transposed(last, cta.chunk_address(cta.values_at(at), row - n % 2 * S::GRANULE + lane, first_value_chunk() + S::WARP_CHUNKS - 1));
          read ^= last[0];
        }
        multiply_chunk(acc, a, S::WARP_CHUNKS - 1, last[n % 2 * 2], last[n % 2 * 2 + 1]);
      }
    }
    return read;
  }

  // Adds one of the warp's chunks of a granule, of which a lane has elements of tokens 0 to 7, and of 8 to 15.
  TILEWRIGHT_DEVICE void multiply_chunk(Accumulators<S> &acc, const u32 (&a)[4], u32 chunk, u32 upper, u32 lower) const {
    if constexpr (S::FP8) { // its even elements, and its odd ones
      u32 even[2], odd[2];
      widen_alternate(typename S::KvElement{}, typename S::MmaElement{}, upper, even[0], odd[0]);
      widen_alternate(typename S::KvElement{}, typename S::MmaElement{}, lower, even[1], odd[1]);
      mma_sync(typename S::MmaElement{}, acc.output[2 * chunk], a, even[0], even[1]);
      mma_sync(typename S::MmaElement{}, acc.output[2 * chunk + 1], a, odd[0], odd[1]);
    } else {
      mma_sync(typename S::MmaElement{}, acc.output[chunk], a, upper, lower);
    }
  }

  // Adds the values of a granule as a warpgroup would, by the warp alone: from where the warpgroup reads them.
  TILEWRIGHT_DEVICE void multiply_granule_of_group(Accumulators<S> &acc, const u32 (&a)[4], const PipelineState<S> &at, u32 granule) const {
    const u32 row = granule * S::GRANULE + cta.lane % 16;
#pragma unroll
    for (u32 d = 0; d < S::WARP_DIM / 16; d++) {
      const u32 chunk = cta.warp_d * (S::WARP_DIM / 8) + d * 2 + cta.lane / 16;
      u32 b[4];
      ldmatrix_transposed(b, S::WIDENED ? cta.wide_chunk_address(cta.wide_values_at(at), row, chunk) : cta.chunk_address(cta.values_at(at), row, chunk));
      mma_sync(typename S::MmaElement{}, acc.output[2 * d], a, b[0], b[1]);
      mma_sync(typename S::MmaElement{}, acc.output[2 * d + 1], a, b[2], b[3]);
    }
  }

  // As many columns at once as there are products for.
  static constexpr u32 widest_product(u32 columns) { return columns >= 128 ? 128 : columns >= 64 ? 64 : columns >= 32 ? 32 : 16; }

  // The product of a warpgroup's rows with the columns of a matrix, from COLUMN on; added to `sum`, or in its place. The columns are tokens'
  // keys, or elements of values.
  template <bool VALUES, u32 COLUMN, u32 TILES, class Left>
  TILEWRIGHT_DEVICE static void multiply_columns(float (&sum)[TILES][4], const Left &a, SharedMatrix matrix, bool add) {
    if constexpr (COLUMN < TILES * 8) {
      constexpr u32 COLUMNS = widest_product(TILES * 8 - COLUMN);
      if constexpr (VALUES) {
        const SharedMatrix columns = matrix.further(COLUMN / S::WIDE_PANEL_COLUMNS * S::WIDE_PANEL_BYTES);
        wgmma_async<COLUMNS, true, COLUMN / 8>(typename S::MmaElement{}, typename S::MmaElement{}, sum, a, columns, add);
      } else {
        wgmma_async<COLUMNS, false, COLUMN / 8>(typename OfKeys::Query{}, typename OfKeys::Key{}, sum, a, matrix.further(COLUMN * KEY_ROW_BYTES), add);
      }
      multiply_columns<VALUES, COLUMN + COLUMNS>(sum, a, matrix, add);
    }
  }
  using OfKeys = KeyProduct<S::KEYS_IN_FP8, typename S::Element, typename S::KvElement>;
  static constexpr u32 KEY_ROW_BYTES = S::KEYS_IN_FP8 ? S::ROW_BYTES : S::WIDE_ROW_BYTES;
  TILEWRIGHT_DEVICE static SharedMatrix matrix_at(u32 address) { return SharedMatrix::at<S::WIDE_PANEL_ROW_BYTES>(address, S::WIDE_PANEL_BYTES, 8 * S::WIDE_ROW_BYTES); }

  // Keys of a step from its granule `first` on, as a warpgroup multiplies them, and the values of the same tokens. Of a head that warpgroups share out they begin
  // with the warpgroup's panels.
  TILEWRIGHT_DEVICE SharedMatrix keys_together(const PipelineState<S> &at, u32 first) const {
    if constexpr (S::KEYS_IN_FP8) return SharedMatrix::at<S::PANEL_ROW_BYTES>(cta.keys_at(at) + first * S::GRANULE * S::ROW_BYTES, S::PANEL_BYTES, 8 * S::ROW_BYTES);
    else return matrix_at(cta.wide_keys_at(at) + first * S::GRANULE * S::WIDE_ROW_BYTES + cta.warp_d * (S::WARP_DIM / S::WIDE_PANEL_COLUMNS * S::WIDE_PANEL_BYTES));
  }
  TILEWRIGHT_DEVICE SharedMatrix values_of(SharedMatrix keys, const PipelineState<S> &at, u32 first) const {
    if constexpr (S::KEYS_IN_FP8) return matrix_at(cta.wide_values_at(at) + first * S::GRANULE * S::WIDE_ROW_BYTES);
    else return keys.further(S::WIDENED ? S::WIDE_STAGE_BYTES : S::STAGE_BYTES);
  }

  // Begins the same as `multiply_keys` does, by a warpgroup.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void begin_keys_together(float (&scores)[GRANULES_HERE * 2][4], const Query<S> &query, SharedMatrix keys) const {
    SharedMatrix rows = keys; // the query's, where it is in shared memory
    if constexpr (S::QUERY_SHARED) rows = SharedMatrix::at<128>(cta.query_address({}, cta.warp_q / 4 * 64, first_fragment() * 2), S::QUERY_PANEL_BYTES, 8 * 128);
    constexpr u32 A_PANEL = S::WIDE_PANEL_COLUMNS / 16; // products
    begin_wgmma(scores);
    if constexpr (S::KEYS_IN_FP8) {
      constexpr u32 FP8_A_PANEL = S::PANEL_ROW_BYTES / 32;
      // Smaller terms first: tensor cores cut sums of FP8 off some 13 bits below the largest.
#pragma unroll
      for (u32 i = 0; i < S::QUERY_FRAGMENTS; i++) {
        const u32 part = i < S::QUERY_FRAGMENTS / 2, k = i % (S::QUERY_FRAGMENTS / 2);
        multiply_columns<false, 0>(scores, query.fragments[2 * k + part], keys.further(k / FP8_A_PANEL * S::PANEL_BYTES + k % FP8_A_PANEL * 32), i > 0);
      }
      return commit_wgmma();
    }
#pragma unroll
    for (u32 k = 0; k < S::WARP_DIM / 16; k++) {
      const SharedMatrix of_k = keys.further(k / A_PANEL * S::WIDE_PANEL_BYTES + k % A_PANEL * 32);
      if constexpr (S::QUERY_SHARED) multiply_columns<false, 0>(scores, rows.further(k / 4 * S::QUERY_PANEL_BYTES + k % 4 * 32), of_k, k > 0);
      else multiply_columns<false, 0>(scores, query.fragments[k], of_k, k > 0);
    }
    commit_wgmma();
  }

  template <u32 GRANULES_HERE> TILEWRIGHT_DEVICE static void narrow_all(u32 (&weights)[GRANULES_HERE][4], const float (&scores)[GRANULES_HERE * 2][4]) {
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) narrow_weights(weights[n], scores, n);
  }

  // Begins the same as `multiply_values` does, by a warpgroup.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void begin_values_together(Accumulators<S> &acc, const u32 (&weights)[GRANULES_HERE][4], SharedMatrix values) const {
    begin_wgmma(acc.output);
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) multiply_columns<true, 0>(acc.output, weights[n], values.further(n * S::GRANULE * S::WIDE_ROW_BYTES), true);
    commit_wgmma();
  }
};

} // namespace tilewright
