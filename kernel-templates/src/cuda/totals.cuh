// Totals of batch-invariant attention: what a CTA has of its rows' chunks before the one that it sums.
//
// They lie in shared memory, each thread's where only it looks: the accumulators in registers begin anew with each chunk.
#pragma once
#include "chunk.cuh"
#include "mma.cuh"

namespace tilewright {

template <class S> struct Totals {
  const Cta<S> &cta;

  // Two neighbouring elements of one of the thread's rows.
  struct alignas(8) Pair {
    float element[2];
  };
  TILEWRIGHT_DEVICE Pair &pair(u32 half, u32 d) const {
    return reinterpret_cast<Pair *>(cta.shared + S::TOTALS_AT)[(half * (S::HEAD_DIM / 8) + d) * S::COPIERS + cta.thread];
  }

  // Which of the thread's rows begin a chunk with which of a step's granules: bit 2n + half of granule n. What no row sees begins nothing.
  template <u32 GRANULES_HERE> TILEWRIGHT_DEVICE u32 beginnings(const PipelineState<S> &at, u32 first) const {
    u32 begins = 0;
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) {
      const Granule granule = cta.granules(at)[first + n];
      const bool here = granule.rows > 0 && begins_chunk(static_cast<u32>(granule.position));
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        const u32 row = cta.warp_q * 16 + cta.fragment_row + half * 8;
        begins |= static_cast<u32>(here && row >= granule.first_row() && row < granule.last_row()) << (2 * n + half);
      }
    }
    return begins;
  }

  // The same where all rows see all tokens from a position on.
  template <u32 GRANULES_HERE> TILEWRIGHT_DEVICE static u32 beginnings_from(u32 position) {
    const u32 candidate = divide_up(position, SHORTEST_CHUNK) * SHORTEST_CHUNK, tokens = candidate - position;
    return tokens < GRANULES_HERE * S::GRANULE && begins_chunk(candidate) ? 3u << tokens / S::GRANULE * 2 : 0;
  }

  // Whether the CTA's first token is not the first one of its requests. It leaves each chunk apart then, as only the first ones have a total to be
  // added to; all its requests that have several chunks here begin one with that token.
  TILEWRIGHT_DEVICE bool leaves_chunks() const { return cta.item.first.position + (cta.item.kv_begin - cta.item.first.begin) > 0; }

  // Leaves the chunk of a row as a partial, if `wanted` and if the row has seen some of it. The next one goes to the partial behind it.
  TILEWRIGHT_DEVICE void leave(Accumulators<S> &acc, u32 half, bool wanted, float value_scale) const {
    Softmax &chunk = acc.softmax[half];
    float sum = chunk.sum;
    sum += from_lane_xor(sum, 1);
    sum += from_lane_xor(sum, 2);
    const u32 row = cta.warp_q * 16 + cta.fragment_row + half * 8;
    wanted = wanted && row < cta.row_count() && chunk.max != negative_infinity();
    if (wanted) {
      const OutputTarget target = cta.rows()[row].output_target;
      const u64 partial = u64(target.partial) * cta.args.q_heads + cta.query_head(row);
      if (cta.lane % 4 == 0) {
        cta.args.partial_softmax[partial * 2] = chunk.max;
        cta.args.partial_softmax[partial * 2 + 1] = sum;
      }
      float *const to = cta.args.partial_output + partial * S::HEAD_DIM;
#pragma unroll
      for (u32 d = 0; d < S::HEAD_DIM / 8; d++) {
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
          // Of FP8, even elements are sums of one product, odd ones of the other.
          const u32 element = S::FP8 ? d / 2 * 16 + 2 * cta.fragment_column + 2 * e + d % 2 : d * 8 + cta.fragment_column + e;
          to[element] = rounded_product(acc.output[d][2 * half + e], value_scale);
          acc.output[d][2 * half + e] = 0.f;
        }
      }
      chunk = Softmax{negative_infinity(), 0.f};
    }
    sync_warp(); // all lanes of the row have read where it goes
    if (wanted && cta.lane % 4 == 0) {
      cta.rows()[row].output_target.partial += 1;
      cta.rows()[row].output_target.merge -= FURTHER_PARTIAL;
    }
    sync_warp();
  }

  // At the end: the accumulators are all chunks, with the sums of whole rows.
  TILEWRIGHT_DEVICE void finish(Accumulators<S> &acc, float value_scale) const {
    // Mostly there is but one: what `add` would make of it, which has no negative zeros.
    if (!any_in_warp(acc.total[0].max != negative_infinity() || acc.total[1].max != negative_infinity())) {
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        acc.softmax[half].sum += from_lane_xor(acc.softmax[half].sum, 1);
        acc.softmax[half].sum += from_lane_xor(acc.softmax[half].sum, 2);
      }
#pragma unroll
      for (u32 d = 0; d < S::HEAD_DIM / 8; d++) {
#pragma unroll
        for (u32 e = 0; e < 4; e++) acc.output[d][e] = rounded_product(acc.output[d][e], value_scale) + 0.f;
      }
      return;
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      add(acc, half, true, false, value_scale);
      acc.softmax[half] = acc.total[half];
    }
  }

  // Adds the chunk of a row to its total, if `wanted` and if the row has seen some of it: in shared memory, where the next chunk begins from
  // nothing, or else in the accumulators.
  TILEWRIGHT_DEVICE void add(Accumulators<S> &acc, u32 half, bool wanted, bool keep, float value_scale) const {
    Softmax chunk = acc.softmax[half];
    chunk.sum += from_lane_xor(chunk.sum, 1);
    chunk.sum += from_lane_xor(chunk.sum, 2);
    const bool has_tokens = chunk.max != negative_infinity(), has_total = acc.total[half].max != negative_infinity();
    if (!wanted || (!has_tokens && keep)) return;
    // What has no tokens adds nothing, not even a zero of another sign.
    const ChunkFactors factors = has_tokens ? add_chunk(acc.total[half], chunk) : ChunkFactors{1.f, 0.f};
    constexpr u32 AT_ONCE = smaller(power_of_two_in(S::HEAD_DIM / 8), 8u); // pairs that are asked for before the first one is waited for
#pragma unroll
    for (u32 begin = 0; begin < S::HEAD_DIM / 8; begin += AT_ONCE) {
      Pair sums[AT_ONCE];
#pragma unroll
      for (u32 d = 0; d < AT_ONCE; d++) sums[d] = Pair{{0.f, 0.f}};
      if (has_total) {
#pragma unroll
        for (u32 d = 0; d < AT_ONCE; d++) sums[d] = pair(half, begin + d);
      }
#pragma unroll
      for (u32 d = 0; d < AT_ONCE; d++) {
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
          float &element = acc.output[begin + d][2 * half + e];
          if (has_tokens) sums[d].element[e] = add_chunk_element(sums[d].element[e], rounded_product(element, value_scale), factors);
          element = keep ? 0.f : sums[d].element[e];
        }
        if (keep) pair(half, begin + d) = sums[d];
      }
    }
    if (keep) acc.softmax[half] = Softmax{negative_infinity(), 0.f};
  }
};

} // namespace tilewright
