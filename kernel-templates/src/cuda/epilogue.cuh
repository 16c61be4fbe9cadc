// Epilogue: accumulators become rows of the output, or partials, and the last CTA of a row merges its partials.
//
// Warps that own the same rows are merged by their maxima and sums.
#pragma once
#include "merge.cuh"
#include "mma.cuh"
#include "softmax.cuh"
#include "transposed.cuh"

namespace tilewright {

template <class S> struct Epilogue {
  const Cta<S> &cta;

  // How often each row is gathered, by the warps that share it or by a warpgroup; and how many warps have softmaxes of it.
  static constexpr u32 GATHERED = S::TRANSPOSED ? 1 : S::WARPS_KV, SHARERS = S::TRANSPOSED ? S::WARPS : S::WARPS_KV;

  // A row of the CTA as one of those that share it has it.
  TILEWRIGHT_DEVICE Softmax *softmax_of(u32 sharer, u32 row) const {
    return S::TRANSPOSED ? cta.warp_softmax(sharer, row) : cta.warp_softmax(sharer * S::WARPS_Q + row / 16, row % 16);
  }
  TILEWRIGHT_DEVICE float *gathered_output(u32 sharer, u32 row) const { return reinterpret_cast<float *>(cta.shared) + (sharer * S::M + row) * S::OUTPUT_STRIDE; }

  // `value_scale(cta)` written out: a call of it changes the machine code of all kernels with the `cp.async` producer.
  TILEWRIGHT_DEVICE float value_scale() const { return S::FP8 ? cta.args.value_scales[cta.kv_head * cta.args.scale_head] : 1.f; }

  // All warps have left the mainloop, and nothing is on its way to the buffers: they may be written.
  TILEWRIGHT_DEVICE void leave_mainloop() const { barrier(); }

  // Leaves each warp's rows in shared memory, all warps that share rows under one maximum.
  TILEWRIGHT_DEVICE void gather_warps(Accumulators<S> &acc) const {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      if (cta.lane % 4 == 0) *cta.warp_softmax(cta.warp, cta.fragment_row + half * 8) = acc.softmax[half];
    }
    leave_mainloop(); // all maxima are there, too
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const u32 row = cta.warp_q * 16 + cta.fragment_row + half * 8;
      const float factor = exp2_fast(acc.softmax[half].max - finite_or_zero(common_softmax(row).max)) * value_scale();
      if constexpr (S::FP8) {
#pragma unroll
        for (u32 d = 0; d < S::HEAD_DIM / 16; d++) {
          float *target = gathered_output(cta.warp_kv, row) + d * 16 + 2 * cta.fragment_column;
#pragma unroll
          for (u32 e = 0; e < 4; e++) target[e] = acc.output[2 * d + e % 2][2 * half + e / 2] * factor;
        }
      } else {
#pragma unroll
        for (u32 d = 0; d < S::HEAD_DIM / 8; d++) {
          float *target = gathered_output(cta.warp_kv, row) + d * 8 + cta.fragment_column;
          target[0] = acc.output[d][2 * half] * factor;
          target[1] = acc.output[d][2 * half + 1] * factor;
        }
      }
    }
    barrier();
  }

  // Softmax of a row over all warps that share it.
  TILEWRIGHT_DEVICE Softmax common_softmax(u32 row) const {
    Softmax common{negative_infinity(), 0.f};
#pragma unroll
    for (u32 w = 0; w < SHARERS; w++) common.max = larger(common.max, softmax_of(w, row)->max);
#pragma unroll
    for (u32 w = 0; w < SHARERS; w++) {
      const Softmax *one = softmax_of(w, row);
      common.sum += one->sum * exp2_fast(one->max - finite_or_zero(common.max));
    }
    return common;
  }

  // Where a row goes, and the factor of what was summed for it.
  struct Destination {
    u32 partial; // DIRECT, a partial or UNTOUCHED
    float factor;
    u64 first; // its first element, of the output or of the partials

    TILEWRIGHT_DEVICE Destination of_lane(u32 lane) const { return Destination{from_lane(partial, lane), from_lane(factor, lane), from_lane(first, lane)}; }
  };

  // A row has one destination, which the thread with its first elements tells its LSE, or its softmax.
  TILEWRIGHT_DEVICE Destination destination(u32 row, Softmax softmax, bool tells) const {
    const Row found = cta.rows()[row];
    const u32 head = cta.query_head(row);
    if (found.output_target.partial == DIRECT) {
      float factor = 1.f;
      if constexpr (S::SINKS) factor = add_sink(softmax, cta.args.sinks[head]);
      factor = softmax.sum > 0.f ? factor / softmax.sum : 0.f;
      if (tells && cta.args.lse) cta.args.lse[u64(found.request) * cta.args.q_heads + head] = log_sum_exp(softmax);
      return Destination{DIRECT, factor, static_cast<u64>(found.request * cta.args.output_request + head * cta.args.output_head)};
    }
    const u64 partial = u64(found.output_target.partial) * cta.args.q_heads + head;
    if (tells && found.output_target.partial != UNTOUCHED) {
      cta.args.partial_softmax[partial * 2] = softmax.max;
      cta.args.partial_softmax[partial * 2 + 1] = softmax.sum;
    }
    return Destination{found.output_target.partial, 1.f, partial * S::HEAD_DIM};
  }

  // Four neighbouring elements: final where the row has one partial, else as a partial.
  TILEWRIGHT_DEVICE void write_four(const Destination &to, u32 element, const float (&sum)[4]) const {
    if (to.partial == DIRECT) {
      store_words(cta.args.output + to.first + element, narrow(typename S::Element{}, sum[0] * to.factor, sum[1] * to.factor),
                  narrow(typename S::Element{}, sum[2] * to.factor, sum[3] * to.factor));
    } else if (to.partial != UNTOUCHED) {
      store_four(cta.args.partial_output + to.first + element, sum);
    }
  }

  // Rows that warps share, from where they were gathered. Each lane finds out where one of its warp's rows goes, before they are written.
  TILEWRIGHT_DEVICE void write_gathered() const {
    constexpr u32 QUADS = power_of_two_from(S::HEAD_DIM / 4); // threads of a row, four elements each; of 96 and 192 elements the last ones have none
    constexpr u32 ROWS_AT_ONCE = S::WARPS * 32 / QUADS;      // of the CTA,
    constexpr u32 WARP_ROWS = QUADS < 32 ? 32 / QUADS : 1;   // and of a warp
    constexpr u32 ROUNDS = S::M / ROWS_AT_ONCE;
    static_assert(S::M % ROWS_AT_ONCE == 0 && ROUNDS * WARP_ROWS <= 32, "a lane for each row of a warp");
    const u32 its_row = cta.lane / WARP_ROWS * ROWS_AT_ONCE + cta.warp * 32 / QUADS + cta.lane % WARP_ROWS;
    const bool tells = QUADS <= 32 || cta.warp % (QUADS / 32) == 0; // several warps may write a row
    Destination its{UNTOUCHED, 0.f, 0};
    if (cta.lane < ROUNDS * WARP_ROWS && its_row < cta.row_count()) its = destination(its_row, common_softmax(its_row), tells);
    const u32 element = cta.thread % QUADS * 4;
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
      const u32 row = cta.thread / QUADS + round * ROWS_AT_ONCE;
      const Destination to = its.of_lane(round * WARP_ROWS + cta.lane / QUADS % WARP_ROWS);
      if (to.partial == UNTOUCHED || (S::HEAD_DIM / 4 < QUADS && element >= S::HEAD_DIM)) continue;
      float sum[4] = {};
#pragma unroll
      for (u32 w = 0; w < GATHERED; w++) {
        const float *part = gathered_output(w, row) + element;
#pragma unroll
        for (u32 e = 0; e < 4; e++) sum[e] += part[e];
      }
      write_four(to, element, sum);
    }
  }

  // Rows that one warp has alone, from its registers. Of 16 columns a lane writes four: neighbours of even and odd lanes change places, so
  // that four lanes write 32 bytes of a row at once. Each of 16 lanes finds out where one of the rows goes: code that runs once has to be fetched
  // first, so there is one piece of it.
  TILEWRIGHT_DEVICE void write_own(const Accumulators<S> &acc) const {
    const float scale = S::INVARIANT ? 1.f : value_scale(); // chunks were summed with it
    const u32 thread = thread_index_again(), lane = thread % 32, odd = lane % 2;
    const u32 its_d = S::WARPS_D == 1 ? 0 : thread / 32 / S::WARPS_Q;
    Destination its{UNTOUCHED, 0.f, 0};
    {
      // Lane 4 r + h has row r of half h.
      Softmax softmax = acc.softmax[0];
      if (odd) softmax = acc.softmax[1];
      const u32 row = thread / 32 % S::WARPS_Q * 16 + lane / 4 + odd * 8;
      if (lane % 4 < 2 && row < cta.row_count()) its = destination(row, softmax, its_d == 0);
    }
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const Destination to = its.of_lane(lane / 4 * 4 + half);
      float sums[S::WARP_DIM / 16][4];
#pragma unroll
      for (u32 d = 0; d < S::WARP_DIM / 16; d++) {
        const float(&one)[4] = acc.output[2 * d], (&two)[4] = acc.output[2 * d + 1];
        const float first = one[2 * half] * scale, second = one[2 * half + 1] * scale;
        const float third = two[2 * half] * scale, fourth = two[2 * half + 1] * scale;
        if constexpr (S::FP8) {
          // Even elements are sums of one product, odd ones of the other.
          sums[d][0] = first, sums[d][1] = third, sums[d][2] = second, sums[d][3] = fourth;
        } else {
          const float other_first = from_lane_xor(odd ? first : third, 1), other_second = from_lane_xor(odd ? second : fourth, 1);
          sums[d][0] = odd ? other_first : first, sums[d][1] = odd ? other_second : second;
          sums[d][2] = odd ? third : other_first, sums[d][3] = odd ? fourth : other_second;
        }
      }
      const u32 column = its_d * S::WARP_DIM + (S::FP8 ? 2 * cta.fragment_column : odd * 8 + lane % 4 / 2 * 4);
      if (to.partial == DIRECT) {
        u16 *const target = cta.args.output + to.first + column;
#pragma unroll
        for (u32 d = 0; d < S::WARP_DIM / 16; d++)
          store_words(target + d * 16, narrow(typename S::Element{}, sums[d][0] * to.factor, sums[d][1] * to.factor),
                      narrow(typename S::Element{}, sums[d][2] * to.factor, sums[d][3] * to.factor));
      } else if (to.partial != UNTOUCHED) {
        float *const target = cta.args.partial_output + to.first + column;
#pragma unroll
        for (u32 d = 0; d < S::WARP_DIM / 16; d++) store_four(target + d * 16, sums[d]);
      }
    }
  }

  // All of it, by the warps that have accumulated.
  TILEWRIGHT_DEVICE void write(Accumulators<S> &acc) const {
    if constexpr (!S::INVARIANT) { // chunks were added up with the sums of whole rows
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        Softmax &softmax = acc.softmax[half];
        softmax.sum += from_lane_xor(softmax.sum, 1);
        softmax.sum += from_lane_xor(softmax.sum, 2);
      }
    }
    if constexpr (S::WARPS_KV == 1) {
      write_own(acc);
    } else {
      gather_warps(acc);
      write_gathered();
    }
  }

  // Leaves the rows of transposed products in shared memory, and each warp's softmaxes.
  TILEWRIGHT_DEVICE void gather_transposed(const TransposedAccumulators<S> &acc) const {
    constexpr u32 ROW_TILES = TransposedAccumulators<S>::TILES, PARTS = TransposedAccumulators<S>::PARTS;
    leave_mainloop();
    const float scale = value_scale();
#pragma unroll
    for (u32 j = 0; j < ROW_TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 2; e++) {
        const u32 row = j * 8 + cta.fragment_column + e;
        Softmax own{cta.row_max(row), acc.sum[j][e]};
#pragma unroll
        for (u32 mask = 4; mask < 32; mask *= 2) own.sum += from_lane_xor(own.sum, mask);
        own.max = own.sum > 0.f ? own.max : negative_infinity();
        if (cta.fragment_row == 0) *cta.warp_softmax(cta.warp, row) = own;
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) {
          float *const target = gathered_output(0, row) + (cta.warp * PARTS + part) * 16 + cta.fragment_row * 2;
          target[0] = acc.output[part * ROW_TILES + j][e] * scale;
          target[1] = acc.output[part * ROW_TILES + j][e + 2] * scale;
        }
      }
    }
    barrier();
  }

  TILEWRIGHT_DEVICE void write(const TransposedAccumulators<S> &acc) const {
    gather_transposed(acc);
    write_gathered();
  }

  // The CTA that leaves the last partial of a request and KV head merges them all.
  TILEWRIGHT_DEVICE void merge_arrived() const {
    u32 *const last = reinterpret_cast<u32 *>(cta.shared + S::SOFTMAX_AT); // no thread reads the warps' softmaxes any more
    memory_fence();
    barrier(); // all of this CTA's partials are written
    // Rows of whole requests, or some of one.
    const u32 count = cta.args.gqa_ratio.quotient(cta.row_count() + cta.args.gqa_ratio - 1);
    for (u32 member = cta.thread; member < count; member += S::WARPS * 32) {
      const Row &row = cta.rows()[member * cta.args.gqa_ratio];
      bool arrived_last = false;
      if (row.output_target.partial < UNTOUCHED) {
        u32 *const counter = cta.args.arrivals + row.output_target.merge * cta.args.kv_heads + cta.kv_head;
        arrived_last = count_arrival(counter) + 1 == cta.args.merges[row.output_target.merge].arrivals;
        if (arrived_last) *counter = 0; // ready for the next launch
      }
      last[member] = arrived_last ? row.output_target.merge : DIRECT;
    }
    memory_fence();
    barrier();
    for (u32 index = cta.warp; index < count * cta.args.gqa_ratio; index += S::WARPS) { // of those that are left
      const u32 merge = last[cta.args.gqa_ratio.quotient(index)];
      if (merge == DIRECT) continue;
      const MergeItem merged = cta.args.merges[merge];
      const u32 head = cta.kv_head * cta.args.gqa_ratio + cta.args.gqa_ratio.remainder(index);
      const u32 there = merged.partial_end - merged.partial_begin;
      const Partials<S::HEAD_DIM> partials(cta.args, merged, head);
      MergedRow<lane_elements(S::HEAD_DIM)> row = S::INVARIANT ? add_partials(partials, there) : sum_partials(partials, there, 0, 1);
      write_merged<S::HEAD_DIM, typename S::Element, S::SINKS>(cta.args, merged.request, head, row);
    }
  }
  static_assert(S::M <= S::WARPS * 32, "a flag for each request of a block fits in the place of the warps' softmaxes");
};

} // namespace tilewright
