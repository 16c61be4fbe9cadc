// The query on its way to products: to shared memory, where some are multiplied from, and to registers.
//
// Beside K in FP8 most products take both in f16. Where a warpgroup multiplies K in FP8 as it is (`KEYS_IN_FP8`), a row of bf16 is the sum of two rows of e4m3,
// of four bits each: what is nearest to it, and the rest. Rows are brought to less than 256 by a power of two, each by its own, so that no row depends on
// another; its factor of the logits takes that back. An element keeps all its bits down to 2^-9 of the largest one of its row; below, it is off by up to 2^-16
// of that.
#pragma once
#include "cta.cuh"
#include "fp8.cuh"
#include "fp8_narrow.cuh"

namespace tilewright {

// What makes logits in base 2 of a row's products: the same for all rows, or not.
template <bool EACH_ROW> struct RowFactors {};
template <> struct RowFactors<true> {
  float factors[2];
};

// What a warp has of its rows of the query in registers. Of two parts the fragments of 32 elements come in turn, the larger part first.
template <class S> struct Query : RowFactors<S::KEYS_IN_FP8> {
  u32 fragments[S::QUERY_FRAGMENTS][4];

  TILEWRIGHT_DEVICE float scale(const Cta<S> &cta, u32 half) const {
    if constexpr (S::KEYS_IN_FP8) return this->factors[half];
    else return cta.scale;
  }
};

// Four numbers in bf16, below 256, as a sum in e4m3.
struct Fp8Parts {
  u32 high, low;

  TILEWRIGHT_DEVICE static Fp8Parts of(u32 first, u32 second) {
    // The upper four of eight bits, a half rounded up. What is carried goes into the exponent.
    const u32 high[2] = {(first + 0x00080008) & 0xfff0fff0, (second + 0x00080008) & 0xfff0fff0};
    return Fp8Parts{narrowed(high[0], high[1]), narrowed(subtract_pairs(Bf16{}, first, high[0]), subtract_pairs(Bf16{}, second, high[1]))};
  }

  TILEWRIGHT_DEVICE static u32 narrowed(u32 first, u32 second) {
    float numbers[4];
    widen(Bf16{}, first, numbers[0], numbers[1]);
    widen(Bf16{}, second, numbers[2], numbers[3]);
    return narrow_fp8<E4m3>(numbers, 0);
  }
};

// What brings a row to numbers from 128 to 256, as a pair in bf16, and back: by its largest magnitude, one of two.
struct RowScale {
  u32 pair;
  float back;

  TILEWRIGHT_DEVICE static RowScale of(u32 magnitudes) {
    float low, high;
    widen(Bf16{}, magnitudes, low, high);
    const u32 exponent = larger(float_bits(larger(magnitude_of(low), magnitude_of(high))) >> 23, 8u);
    return RowScale{(127 + 7 + 127 - exponent) * 0x00800080, bits_float((exponent - 7) << 23)};
  }
};

template <class S> struct QueryLoader {
  const Cta<S> &cta;

  static constexpr u32 SIGNS = 0x80008000; // both of a pair

  // A pair of the query as it is multiplied.
  TILEWRIGHT_DEVICE static u32 multiplied(F16, u32 pair) { return pair; }
  TILEWRIGHT_DEVICE static u32 multiplied(Bf16, u32 pair) {
    float low, high;
    widen(Bf16{}, pair, low, high);
    return narrow(F16{}, larger(smaller(low, F16_MAX), -F16_MAX), larger(smaller(high, F16_MAX), -F16_MAX));
  }

  // Sixteen elements of the warp's rows. Beside K in FP8 a lane takes four neighbours, as it does there.
  TILEWRIGHT_DEVICE void fragment(u32 (&to)[4], u32 k, const PipelineState<S> &at) const {
    if constexpr (S::KEYS_IN_FP8) {
      load_four_words(to, own_place(k, at));
    } else if constexpr (S::FP8 && !S::QUERY_SHARED) {
      const u32 row = cta.warp_q * 16 + cta.fragment_row, chunk = k * 2 + cta.lane % 4 / 2, within = cta.lane % 2 * 8;
      load_words(to[0], to[2], cta.query_address(at, row, chunk) + within);
      load_words(to[1], to[3], cta.query_address(at, row + 8, chunk) + within);
#pragma unroll
      for (u32 i = 0; i < 4; i++) to[i] = multiplied(typename S::Element{}, to[i]);
    } else {
      ldmatrix(to, cta.query_address(at, cta.warp_q * 16 + cta.lane % 16, k * 2 + cta.lane / 16));
    }
    if (!S::QUERY_SHARED && !S::KEYS_IN_FP8 && cta.signed_scale < 0.f) {
#pragma unroll
      for (u32 i = 0; i < 4; i++) to[i] ^= SIGNS;
    }
  }

  // Chunks of its warp's rows of the query that a lane copies, a few neighbours at once: two where the thread changes what it has copied, as K in FP8 has its
  // elements in another order for a warpgroup, within sixteen.
  struct QueryParts {
    static constexpr u32 CHUNKS = S::QUERY_SHARED ? 2 : 1, OF_ROW = S::QUERY_CHUNKS / CHUNKS;
    static constexpr u32 WARP_ROWS = S::M / S::WARPS, ALL = WARP_ROWS * OF_ROW, OF_LANE = divide_up(ALL, 32);
    static_assert(!S::TMA || (S::M % S::WARPS == 0 && WARP_ROWS <= 32), "each warp copies whole rows, for each of which it has a lane");

    const u32 warp, index;
    TILEWRIGHT_DEVICE QueryParts(const Cta<S> &cta, u32 i) : warp(cta.warp), index(cta.lane + i * 32) {}
    TILEWRIGHT_DEVICE u32 of_warp() const { return 32 % OF_ROW == 0 ? index % 32 / OF_ROW + index / 32 * (32 / OF_ROW) : index / OF_ROW; }
    TILEWRIGHT_DEVICE u32 row() const { return warp * WARP_ROWS + of_warp(); }
    TILEWRIGHT_DEVICE u32 chunk() const { return index % OF_ROW * CHUNKS; }
    TILEWRIGHT_DEVICE bool exists() const { return ALL % 32 == 0 || index < ALL; }
  };

  // Begins to copy the query to its place in shared memory, beside producers: by all consumer threads, before rows are known. Where a row lies each
  // lane finds out for one of its warp's: so all requests are asked for before any is waited for, and little code has to be fetched.
  TILEWRIGHT_DEVICE void begin(const PipelineState<S> &at) const {
    const u32 its_row = cta.warp * QueryParts::WARP_ROWS + cta.lane;
    i64 its_place = 0;
    if (cta.lane < QueryParts::WARP_ROWS && its_row < cta.row_count()) {
      const u32 request = cta.args.requests[cta.item.requests + cta.args.gqa_ratio.quotient(cta.item.row_begin + its_row)];
      its_place = request * cta.args.query_request + cta.query_head(its_row) * cta.args.query_head;
    }
#pragma unroll
    for (u32 i = 0; i < QueryParts::OF_LANE; i++) {
      const QueryParts part(cta, i);
      const u16 *const source = cta.args.query + static_cast<i64>(from_lane(static_cast<u64>(its_place), part.of_warp() % 32)) + part.chunk() * 8;
      if (!part.exists()) break;
      const i32 sign = part.row() < cta.row_count() ? 0 : -1;
#pragma unroll
      for (u32 chunk = 0; chunk < QueryParts::CHUNKS; chunk++) cp_async_16(cta.query_address(at, part.row(), part.chunk() + chunk), source + chunk * 8, sign);
    }
  }

  // What this thread has begun to copy is there, and may be multiplied by warpgroups once they are told. No instruction between here and the product
  // would change its type, its sign, or the order of its elements.
  TILEWRIGHT_DEVICE void end(const PipelineState<S> &at) const {
    cp_async_commit();
    cp_async_wait<0>();
    if constexpr (S::KEYS_IN_FP8) {
      split_shared(at);
    } else if (S::FP8 || cta.signed_scale < 0.f) {
#pragma unroll 1
      for (u32 i = 0; i < QueryParts::OF_LANE; i++) {
        const QueryParts part(cta, i);
        if (!part.exists()) break;
        const u32 places[2] = {cta.query_address(at, part.row(), part.chunk()), cta.query_address(at, part.row(), part.chunk() + 1)};
        u32 words[2][4], changed[2][4];
        load_four_words(words[0], places[0]);
        load_four_words(words[1], places[1]);
#pragma unroll
        for (u32 word = 0; word < 8; word++) {
          const u32 pair = S::FP8 ? multiplied(typename S::Element{}, words[word / 4][word % 4]) : words[word / 4][word % 4];
          (S::FP8 ? changed[word % 2][word / 2] : changed[word / 4][word % 4]) = pair ^ signs();
        }
        store_four_words(places[0], changed[0]);
        store_four_words(places[1], changed[1]);
      }
    }
    fence_for_warpgroups();
  }

  TILEWRIGHT_DEVICE static u32 of_lane_xor(u32 pair, u32 mask) { return static_cast<u32>(from_lane_xor(static_cast<i32>(pair), mask)); }

  // The signs that a negative factor of the logits gives both of a pair.
  TILEWRIGHT_DEVICE u32 signs() const { return cta.signed_scale < 0.f ? SIGNS : 0; }

  // Where a chunk of a part of a row lies as the right side of products: in each panel all rows' larger parts, then the smaller ones.
  TILEWRIGHT_DEVICE u32 part_address(u32 row, u32 part, u32 chunk) const {
    const u32 panel = cta.own_query_at() + chunk / S::PANEL_CHUNKS * S::PARTS_PANEL_BYTES;
    return panel + (part * S::M + row) * S::PANEL_ROW_BYTES + (chunk % S::PANEL_CHUNKS ^ cta.exchange(row)) * 16;
  }

  // What this thread has copied becomes two parts. Lanes of a warp have copied whole rows.
  TILEWRIGHT_DEVICE void split_shared(const PipelineState<S> &at) const {
    static_assert(QueryParts::CHUNKS == 2 && QueryParts::ALL % 32 == 0 && 32 % QueryParts::OF_ROW == 0, "lanes have whole rows of sixteen elements each");
#pragma unroll 1
    for (u32 i = 0; i < QueryParts::OF_LANE; i++) {
      const QueryParts part(cta, i);
      u32 words[2][4], high[4], low[4], most = 0;
#pragma unroll
      for (u32 chunk = 0; chunk < 2; chunk++) load_four_words(words[chunk], cta.query_address(at, part.row(), part.chunk() + chunk));
#pragma unroll
      for (u32 word = 0; word < 8; word++) most = larger_magnitudes(Bf16{}, most, words[word / 4][word % 4]);
#pragma unroll
      for (u32 mask = 1; mask < QueryParts::OF_ROW; mask *= 2) most = larger_magnitudes(Bf16{}, most, of_lane_xor(most, mask));
      const RowScale scale = RowScale::of(most);
      const u32 factors = scale.pair ^ signs();
#pragma unroll
      for (u32 two = 0; two < 4; two++) {
        const u32(&of)[4] = words[two / 2];
        const Fp8Parts parts = Fp8Parts::of(multiply_pairs(Bf16{}, of[two % 2 * 2], factors), multiply_pairs(Bf16{}, of[two % 2 * 2 + 1], factors));
        high[two] = parts.high, low[two] = parts.low;
      }
      store_four_words(part_address(part.row(), 0, part.chunk() / 2), high);
      store_four_words(part_address(part.row(), 1, part.chunk() / 2), low);
      if (part.chunk() == 0) cta.row_factor(part.row()) = cta.scale * scale.back;
    }
  }

  // Copies the warp's rows to registers, where they have their place there. Returns bits of what all of these reads have brought (`Pipeline::release_query`).
  TILEWRIGHT_DEVICE u32 copy(Query<S> &query, const PipelineState<S> &at) const {
    u32 read = 0;
    if constexpr (S::KEYS_IN_FP8 && !S::TRANSPOSED) {
      copy_parts(query, at);
    } else if constexpr (S::QUERY_IN_REGISTERS) {
#pragma unroll
      for (u32 k = 0; k < S::QUERY_FRAGMENTS; k++) {
        fragment(query.fragments[k], S::SPLIT_DIM ? cta.warp_d * S::QUERY_FRAGMENTS + k : k, at);
        read ^= query.fragments[k][0] ^ query.fragments[k][1];
      }
    }
    return read;
  }

  // Where a lane leaves a fragment of its warp's rows in f16 for itself: in place of those rows.
  TILEWRIGHT_DEVICE u32 own_place(u32 k, const PipelineState<S> &at) const { return cta.query_address(at, cta.warp_q * 16, 0) + (k * 32 + cta.lane) * 16; }

  // The same in two parts. What each warp multiplies by itself wants the rows in f16: they stay in shared memory.
  TILEWRIGHT_DEVICE void copy_parts(Query<S> &query, const PipelineState<S> &at) const {
    constexpr u32 FRAGMENTS = S::HEAD_DIM / 16;
    u32 words[FRAGMENTS][4], most[2] = {0, 0}, factors[2];
#pragma unroll
    for (u32 k = 0; k < FRAGMENTS; k++) {
      const u32 row = cta.warp_q * 16 + cta.fragment_row, chunk = k * 2 + cta.lane % 4 / 2, within = cta.lane % 2 * 8;
      load_words(words[k][0], words[k][2], cta.query_address(at, row, chunk) + within);
      load_words(words[k][1], words[k][3], cta.query_address(at, row + 8, chunk) + within);
#pragma unroll
      for (u32 i = 0; i < 4; i++) most[i % 2] = larger_magnitudes(Bf16{}, most[i % 2], words[k][i]);
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      most[half] = larger_magnitudes(Bf16{}, most[half], of_lane_xor(most[half], 1));
      most[half] = larger_magnitudes(Bf16{}, most[half], of_lane_xor(most[half], 2));
      const RowScale scale = RowScale::of(most[half]);
      factors[half] = scale.pair ^ signs();
      query.factors[half] = cta.scale * scale.back;
    }
    // All of the rows is read, by the other warps that share them, too.
    constexpr bool SHARED = S::PRIVATE_PHASE && S::WARPS_KV > 1;
    if constexpr (SHARED) meet();
    else sync_warp();
#pragma unroll
    for (u32 k = 0; k < FRAGMENTS; k++) {
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        u32 &first = words[k][half], &second = words[k][half + 2];
        first = multiply_pairs(Bf16{}, first, factors[half]), second = multiply_pairs(Bf16{}, second, factors[half]);
        const Fp8Parts parts = Fp8Parts::of(first, second);
        query.fragments[k / 2 * 2][half + k % 2 * 2] = parts.high;
        query.fragments[k / 2 * 2 + 1][half + k % 2 * 2] = parts.low;
        first = in_f16(first), second = in_f16(second);
      }
      if (S::PRIVATE_PHASE && cta.warp_kv == 0) store_four_words(own_place(k, at), words[k]);
    }
    if constexpr (SHARED) meet(); // it is there for them
  }
  TILEWRIGHT_DEVICE static u32 in_f16(u32 pair) {
    float low, high;
    widen(Bf16{}, pair, low, high);
    return narrow(F16{}, low, high);
  }
  // Barrier 0 is the whole CTA's.
  TILEWRIGHT_DEVICE void meet() const { barrier_of_warps<S::WARPS>(1); }
};

} // namespace tilewright
