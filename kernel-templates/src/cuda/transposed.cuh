// Transposed products, for FP8 beside few rows: a warpgroup multiplies S^T = K Q^T and O^T += V^T P^T.
//
// `wgmma` takes 64 rows on its left side, and that side from registers. With K and V there, 64 tokens and 64 elements of a head fill it whatever
// the rows of the item: these are columns, as few as eight. What a warp reads of K and V in FP8 it widens in registers, for all rows and once in the CTA;
// beside a query in two parts K stays as it is, in shared memory (`query.cuh`). On the right lie the query, and the weights of a step, which the warps leave in
// shared memory for each other.
//
// Each warp has 16 of a step's 64 tokens, and 16 of each 64 elements of a head. A lane has tokens, or elements, `fragment_row` and 8 below, for
// rows `fragment_column` and the next of each tile of eight.
#pragma once
#include "fp8.cuh"
#include "kv_range.cuh"
#include "pipeline.cuh"
#include "softmax_step.cuh"

namespace tilewright {

// What a warp accumulates for some row tiles: its elements of all their rows, and its tokens' share of each row's sum.
template <class S, u32 TILES_ = S::M / 8> struct TransposedAccumulators {
  static constexpr u32 TILES = TILES_, PARTS = S::HEAD_DIM / 64;
  float output[PARTS * TILES][4];
  float sum[TILES][2];
};

template <class S> struct TransposedMainloop {
  static constexpr u32 ROW_TILES = S::M / 8, PARTS = S::HEAD_DIM / 64, TILE_BYTES = 8 * 128;

  const Cta<S> &cta;
  const Pipeline<S> pipeline{cta};
  // Where a lane's parts lie: of K and V in the first buffer, and of weights. The compiler would find them anew in each step.
  const u32 its_keys = computed_here(cta.chunk_address(cta.keys_at({}), cta.warp * S::GRANULE + cta.lane % 16, cta.lane / 16));
  const u32 its_values = computed_here(cta.chunk_address(cta.values_at({}), cta.lane, cta.warp * PARTS));
  const u32 its_weights = computed_here(weights_place(cta.lane / 16 * 8 + cta.lane % 8, cta.warp * 2 + cta.lane / 8 % 2));

  // Chunks of 8 tokens of a row of weights are exchanged as `wgmma` wants them.
  TILEWRIGHT_DEVICE static u32 weights_place(u32 row, u32 chunk) { return row * 128 + (chunk ^ row % 8) * 16; }

  static constexpr float LOWEST = -3e38f; // below all logits, and it may be subtracted

  // What a lane's rows are computed by, the same for all warps: the maxima that their accumulators are under, and what makes logits of their scores. It is in shared
  // memory, as steps of all rows have no registers for it.
  template <u32 TILES> struct RowStates {
    static constexpr bool KEPT = TILES < ROW_TILES; // from step to step
    float max[TILES][2], factor[TILES][2];
  };
  template <u32 TILES> TILEWRIGHT_DEVICE void load(RowStates<TILES> &rows, u32 first) const {
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 2; e++) {
        rows.max[j][e] = cta.row_max(first + j * 8 + cta.fragment_column + e);
        rows.factor[j][e] = S::BENDS ? 1.f : scale(first + j * 8, e);
      }
    }
  }

  // What all rows of the item see.
  struct SeenByAll {
    i32 begin, end;
  };

  TILEWRIGHT_DEVICE SeenByAll seen_by_all() const {
    SeenByAll all{0, 0x7fffffff};
    for (u32 row = cta.lane; row < cta.row_count(); row += 32) {
      if constexpr (S::HIDES_FIRST) all.begin = larger(all.begin, cta.rows()[row].begin);
      all.end = smaller(all.end, cta.rows()[row].end);
    }
    if constexpr (S::HIDES_FIRST) all.begin = largest_in_warp(all.begin);
    all.end = smallest_in_warp(all.end);
    return all;
  }

  // The first of eight rows that alone share a step, as requests have tokens of their own; M where others do. They are a row tile if one has them
  // all, so that neighbours are summed together, and may begin in any row. All warps find the same.
  TILEWRIGHT_DEVICE u32 only_rows(const PipelineState<S> &at) const {
    const Granule granule = cta.granules(at)[cta.lane % S::GRANULES];
    const u32 first = smallest_in_warp(granule.tokens() > 0 ? granule.first_row() : S::M);
    const u32 last = largest_in_warp(granule.tokens() > 0 ? granule.last_row() : 0);
    const u32 begin = smaller(last <= first / 8 * 8 + 8 ? first / 8 * 8 : first, S::M - 8);
    return same_in_warp(last <= begin + 8 ? begin : S::M);
  }

  // Makes -inf of the logits that a row has with tokens of the warp's granule that it does not see. Scores are of rows from `first_row` on.
  template <u32 TILES> TILEWRIGHT_DEVICE void mask_scores(float (&scores)[TILES][4], u32 first_row, const PipelineState<S> &at, const SeenByAll &all) const {
    const Granule granule = cta.granules(at)[cta.warp];
    const u32 first = granule.first_row(), rows = larger(granule.last_row(), first) - first, tokens = granule.tokens();
    // Rows of one request see the same, and none of it is beyond the granule's tokens.
    const bool limited = granule.position + static_cast<i32>(S::GRANULE) > all.end && rows > cta.args.gqa_ratio;
    const bool windowed = S::HIDES_FIRST && granule.position < all.begin;
    const bool for_all = first <= first_row && first + rows >= smaller(first_row + TILES * 8, cta.row_count());
    if (for_all && tokens == S::GRANULE && !limited && !windowed) return;
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 2; e++) {
        const u32 row = first_row + j * 8 + cta.fragment_column + e;
        const bool shares = row - first < rows;
        i32 begin = 0, end = granule.position + static_cast<i32>(shares ? tokens : 0);
        if (limited && shares) end = smaller(end, cta.rows()[row].end);
        if (windowed && shares) begin = cta.rows()[row].begin;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
          const i32 token = granule.position + static_cast<i32>(cta.fragment_row + half * 8);
          if (token >= end || (S::HIDES_FIRST && token < begin)) scores[j][2 * half + e] = negative_infinity();
        }
      }
    }
  }

  // The query from a row on, as the right side of products: its rows are columns there. `wgmma` finds chunks by their addresses, so any row will do. Behind the
  // larger parts of TILES row tiles come the smaller ones.
  template <u32 TILES> TILEWRIGHT_DEVICE SharedMatrix query(u32 row) const {
    const u32 begin = cta.own_query_at();
    if constexpr (!S::KEYS_IN_FP8) return SharedMatrix::at<128>(begin + row * 128, S::QUERY_PANEL_BYTES, TILE_BYTES);
    static_assert(TILES == 1 || TILES == ROW_TILES, "one distance from any eight rows to the next");
    constexpr u32 NEXT = (TILES == 1 ? S::M : 8) * S::PANEL_ROW_BYTES;
    return SharedMatrix::at<S::PANEL_ROW_BYTES>(begin + row * S::PANEL_ROW_BYTES, S::PARTS_PANEL_BYTES, NEXT);
  }

  // Weights of a step: 64 tokens of each row. Steps have two buffers in turn, so that one barrier a step is enough.
  TILEWRIGHT_DEVICE u32 weights_at(u32 turn) const { return shared_address(cta.shared + S::WEIGHTS_AT) + turn * S::M * 128; }

  // S^T of a step, whose K has arrived, and is free again: of as many row tiles as there are scores of, from `columns` on.
  template <u32 TILES> TILEWRIGHT_DEVICE void multiply_keys(float (&scores)[TILES][4], SharedMatrix columns, const PipelineState<S> &at) const {
    if constexpr (S::KEYS_IN_FP8) multiply_keys_in_fp8(scores, columns, at);
    else widen_and_multiply_keys(scores, columns, at);
  }

  // K as it is, by both parts of the query beside each other.
  template <u32 TILES> TILEWRIGHT_DEVICE void multiply_keys_in_fp8(float (&scores)[TILES][4], SharedMatrix columns, const PipelineState<S> &at) const {
    constexpr u32 OF_PANEL = S::PANEL_ROW_BYTES / 32;
    const SharedMatrix keys = SharedMatrix::at<S::PANEL_ROW_BYTES>(cta.keys_at(at), S::PANEL_BYTES, 8 * S::ROW_BYTES);
    float parts[2 * TILES][4];
    begin_wgmma(parts);
#pragma unroll
    for (u32 k = 0; k < S::HEAD_DIM / 32; k++) {
      const u32 panel = k / OF_PANEL, within = k % OF_PANEL * 32;
      const SharedMatrix left = keys.further(panel * S::PANEL_BYTES + within), right = columns.further(panel * S::PARTS_PANEL_BYTES + within);
      wgmma_async<2 * TILES * 8, false, 0>(typename S::KvElement{}, E4m3{}, parts, left, right, k > 0);
    }
    commit_wgmma();
    wait_wgmma(parts);
    pipeline.template release_keys<false>(at);
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) scores[j][e] = parts[j][e] + parts[TILES + j][e];
    }
  }

  template <u32 TILES> TILEWRIGHT_DEVICE void widen_and_multiply_keys(float (&scores)[TILES][4], SharedMatrix columns, const PipelineState<S> &at) const {
    u32 keys[S::CHUNKS][4], read = 0;
    const u32 place = its_keys + at.buffer * 2 * S::STAGE_BYTES;
#pragma unroll
    for (u32 chunk = 0; chunk < S::CHUNKS; chunk += 2) {
      u32 bytes[4]; // tokens 0 to 7 and 8 to 15 with a chunk, then with the next one
      ldmatrix(bytes, (place ^ chunk % S::PANEL_CHUNKS * 16) + chunk / S::PANEL_CHUNKS * S::PANEL_BYTES);
      read ^= bytes[0];
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        u32(&fragment)[4] = keys[chunk + i / 2];
        widen_neighbours(typename S::KvElement{}, typename S::MmaElement{}, bytes[i], fragment[i % 2], fragment[2 + i % 2]);
      }
    }
    pipeline.template release_keys<false>(at, read);
    hold_left(keys);
    begin_wgmma(scores);
#pragma unroll
    for (u32 chunk = 0; chunk < S::CHUNKS; chunk++) {
      wgmma_async<TILES * 8, false, 0>(typename S::MmaElement{}, typename S::MmaElement{}, scores, keys[chunk], columns.further(chunk / 4 * S::QUERY_PANEL_BYTES + chunk % 4 * 32), chunk > 0);
    }
    commit_wgmma();
    wait_wgmma(scores);
  }

  // Makes logits of scores that are bent.
  template <u32 TILES> TILEWRIGHT_DEVICE void bend(float (&scores)[TILES][4], u32 first) const {
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) scores[j][e] = S::bent(cta.args.mask, scores[j][e], scale(first + j * 8, e % 2));
    }
  }

  // The lane's rows of a part of V in the first buffer. The warp's chunks begin at a multiple of a power of two.
  TILEWRIGHT_DEVICE u32 values_of(u32 part) const {
    if constexpr (power_of_two_in(PARTS) == PARTS) return its_values ^ part * 16;
    return cta.chunk_address(cta.values_at({}), cta.lane, cta.warp * PARTS + part);
  }

  // O^T += V^T P^T of a step, 64 elements of a head after the other.
  template <u32 TILES> TILEWRIGHT_DEVICE void multiply_values(TransposedAccumulators<S, TILES> &acc, u32 weights, const PipelineState<S> &at) const {
    u32 values[PARTS][S::GRANULES][4], read = 0; // of 16 tokens and a chunk each
    pipeline.template wait_values_full<false>(at);
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) {
#pragma unroll
      for (u32 n = 0; n < S::GRANULES; n += 2) {
        u32 bytes[4]; // neighbouring elements of two tokens each
        ldmatrix_transposed(bytes, values_of(part) + at.buffer * 2 * S::STAGE_BYTES + n * S::GRANULE * S::ROW_BYTES);
        read ^= bytes[0];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          u32(&fragment)[4] = values[part][n + i / 2];
          widen_alternate(typename S::KvElement{}, typename S::MmaElement{}, bytes[i], fragment[i % 2 * 2], fragment[i % 2 * 2 + 1]);
        }
      }
    }
    pipeline.template release_values<false>(at, read);
#pragma unroll
    for (u32 part = 0; part < PARTS; part++) hold_left(values[part]);
    begin_wgmma(acc.output);
    multiply_parts<0>(acc, values, SharedMatrix::at<128>(weights, S::M * 128, TILE_BYTES));
    commit_wgmma();
    wait_wgmma(acc.output);
  }
  template <u32 PART, u32 TILES>
  TILEWRIGHT_DEVICE static void multiply_parts(TransposedAccumulators<S, TILES> &acc, const u32 (&values)[PARTS][S::GRANULES][4], SharedMatrix weights) {
    if constexpr (PART < PARTS) {
#pragma unroll
      for (u32 n = 0; n < S::GRANULES; n++) {
        wgmma_async<TILES * 8, false, PART * TILES>(typename S::MmaElement{}, typename S::MmaElement{}, acc.output, values[PART][n], weights.further(n * 32), true);
      }
      multiply_parts<PART + 1>(acc, values, weights);
    }
  }

  // What makes logits of the products of a lane's rows among eight.
  TILEWRIGHT_DEVICE float scale(u32 first, u32 e) const {
    if constexpr (S::KEYS_IN_FP8) return cta.row_factor(first + cta.fragment_column + e);
    else return cta.scale;
  }

  // Makes weights under the rows' maxima. Whether some row has to be brought under a larger logit.
  template <u32 TILES> TILEWRIGHT_DEVICE bool make_weights(float (&weights)[TILES][4], const float (&scores)[TILES][4], const RowStates<TILES> &rows) const {
    float largest = 0.f;
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) {
        weights[j][e] = exp2_fast(SoftmaxStep<S>::multiply_subtract(scores[j][e], rows.factor[j][e % 2], rows.max[j][e % 2]));
        largest = larger(largest, weights[j][e]);
      }
    }
    return largest > SoftmaxStep<S>::MOST_WEIGHT;
  }

  // Leaves weights of the warp's tokens for all warps.
  template <u32 TILES> TILEWRIGHT_DEVICE void leave_weights(const float (&weights)[TILES][4], u32 target) const {
    u32 pairs[TILES][2]; // rows of a tile with tokens 0 to 7, and with 8 to 15
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 half = 0; half < 2; half++) pairs[j][half] = narrow(typename S::MmaElement{}, weights[j][2 * half], weights[j][2 * half + 1]);
    }
    const u32 place = target + its_weights;
    if constexpr (TILES == 1) {
      stmatrix_transposed(place, pairs[0]);
    } else {
#pragma unroll
      for (u32 j = 0; j < TILES; j += 2) {
        const u32 two[4] = {pairs[j][0], pairs[j][1], pairs[j + 1][0], pairs[j + 1][1]};
        stmatrix_transposed(place + j * TILE_BYTES, two);
      }
    }
    fence_for_warpgroups();
  }

  // Brings the rows under the largest logits of all warps, those that are too far below them.
  template <u32 TILES>
  TILEWRIGHT_DEVICE void raise(TransposedAccumulators<S, TILES> &acc, RowStates<TILES> &rows, const float (&scores)[TILES][4], u32 first) const {
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 2; e++) {
        float max = larger(scores[j][e], scores[j][e + 2]) * rows.factor[j][e];
#pragma unroll
        for (u32 mask = 4; mask < 32; mask *= 2) max = larger(max, from_lane_xor(max, mask));
        if (cta.fragment_row == 0) cta.warp_softmax(cta.warp, j * 8 + cta.fragment_column + e)->max = max;
      }
    }
    meet();
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 2; e++) {
        float max = LOWEST;
#pragma unroll
        for (u32 w = 0; w < S::WARPS; w++) max = larger(max, cta.warp_softmax(w, j * 8 + cta.fragment_column + e)->max);
        float &before = rows.max[j][e];
        const bool raises = max > before + SoftmaxStep<S>::SLACK;
        const float scale = raises ? exp2_fast(before - max) : 1.f;
        before = raises ? max : before;
        // The others have read what was there before.
        if (cta.warp == 0 && cta.fragment_row == 0) cta.row_max(first + j * 8 + cta.fragment_column + e) = before;
        acc.sum[j][e] *= scale;
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) {
          float(&output)[4] = acc.output[part * TILES + j];
          output[e] *= scale, output[e + 2] *= scale;
        }
      }
    }
  }

  // Barrier 0 is the whole CTA's.
  TILEWRIGHT_DEVICE void meet() const { barrier_of_warps<S::WARPS>(1); }

  // A step whose K has arrived, for some row tiles from a row on.
  template <u32 TILES>
  TILEWRIGHT_DEVICE void compute(TransposedAccumulators<S, TILES> &acc, RowStates<TILES> &rows, u32 first, const PipelineState<S> &at, const SeenByAll &all,
                                 u32 turn) const {
    float scores[TILES][4], weights[TILES][4];
    multiply_keys(scores, query<TILES>(first), at);
    if constexpr (S::BENDS) bend(scores, first);
    mask_scores(scores, first, at, all);
    // Most steps raise no row: weights are left before that is known, and again where one does.
    const u32 place = weights_at(turn);
    if constexpr (!RowStates<TILES>::KEPT) load(rows, first);
    const bool far = make_weights(weights, scores, rows);
    leave_weights(weights, place);
    // All lanes have the answer: the vote says so to the compiler, as do the shuffles of steps below.
    if (any_of_warps<S::WARPS>(1, far)) {
      if constexpr (!RowStates<TILES>::KEPT) load(rows, first);
      raise(acc, rows, scores, first);
      make_weights(weights, scores, rows);
      leave_weights(weights, place);
      meet();
    }
#pragma unroll
    for (u32 j = 0; j < TILES; j++) {
#pragma unroll
      for (u32 e = 0; e < 4; e++) acc.sum[j][e % 2] += weights[j][e];
    }
    multiply_values(acc, place, at);
  }

  // Adds what eight rows had alone, and brings what they had before under their maxima, by these factors. Where they are no row tile, a row is of another
  // lane there.
  TILEWRIGHT_DEVICE void add_rows(TransposedAccumulators<S> &acc, const TransposedAccumulators<S, 1> &one, const float (&factors)[2], u32 row) const {
    const u32 shift = row % 8;
#pragma unroll
    for (u32 e = 0; e < 2; e++) {
      const u32 column = cta.fragment_column + e, from = (column - shift) % 8, lane = cta.lane / 4 * 4 + from / 2;
      const auto moved = [&](float first, float second) {
        const float even = from_lane(first, lane), odd = from_lane(second, lane);
        return from % 2 == 0 ? even : odd;
      };
      const u32 tile = row / 8 + (column < shift ? 1 : 0);
      const float its_scale = moved(factors[0], factors[1]), its_sum = moved(one.sum[0][0], one.sum[0][1]);
      float its_output[PARTS][2];
#pragma unroll
      for (u32 part = 0; part < PARTS; part++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) its_output[part][half] = moved(one.output[part][2 * half], one.output[part][2 * half + 1]);
      }
#pragma unroll
      for (u32 j = 0; j < ROW_TILES; j++) {
        const float scale = j == tile ? its_scale : 1.f;
        acc.sum[j][e] = acc.sum[j][e] * scale + (j == tile ? its_sum : 0.f);
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) {
          float(&output)[4] = acc.output[part * ROW_TILES + j];
          output[e] = output[e] * scale + (j == tile ? its_output[part][0] : 0.f);
          output[e + 2] = output[e + 2] * scale + (j == tile ? its_output[part][1] : 0.f);
        }
      }
    }
  }

  TILEWRIGHT_DEVICE void accumulate(TransposedAccumulators<S> &acc, const Steps &steps) const {
    if (cta.warp == 0) cta.row_max(cta.lane) = LOWEST;
    meet();
    const SeenByAll all = seen_by_all();
    PipelineState<S> at;
    const u32 last = same_in_warp(steps.last);
    u32 turn = 0, step = same_in_warp(steps.first);
    while (step < last) {
      pipeline.template wait_keys_full<false>(at);
      u32 rows = only_rows(at);
#pragma unroll 1
      while (rows == S::M) {
        RowStates<ROW_TILES> states;
        compute(acc, states, 0, at, all, turn);
        turn ^= 1;
        at = at.template ahead<1>();
        if (++step == last) return;
        pipeline.template wait_keys_full<false>(at);
        rows = only_rows(at);
      }
      // Steps of the same rows are neighbours.
      const u32 only = rows;
      TransposedAccumulators<S, 1> one = {};
      RowStates<1> states;
      load(states, only);
      const float before[2] = {states.max[0][0], states.max[0][1]};
#pragma unroll 1
      while (rows == only) {
        compute(one, states, only, at, all, turn);
        turn ^= 1;
        at = at.template ahead<1>();
        if (++step == last) break;
        pipeline.template wait_keys_full<false>(at);
        rows = only_rows(at);
      }
      add_rows(acc, one, {exp2_fast(before[0] - states.max[0][0]), exp2_fast(before[1] - states.max[0][1])}, only);
    }
  }
};

} // namespace tilewright
