// Merge: online softmax over the partials of each row (PAT, section 7), in the plan's order, so the same plan gives the same bits.
#pragma once
#include "abi.cuh"
#include "chunk.cuh"
#include "softmax.cuh"

namespace tilewright {

// Elements of a row that a lane has: a power of two, so that they are read at once. Of 96 and 192 the last eight lanes have none.
TILEWRIGHT_DEVICE constexpr u32 lane_elements(u32 head_dim) { return power_of_two_from(head_dim) / 32; }
template <u32 HEAD_DIM> TILEWRIGHT_DEVICE constexpr bool lane_has_elements(u32 lane) {
  return lane_elements(HEAD_DIM) * 32 == HEAD_DIM || lane * lane_elements(HEAD_DIM) < HEAD_DIM;
}

// What a lane has of a row: some neighbouring elements, and the softmax that all lanes have.
template <u32 ELEMENTS> struct MergedRow {
  Softmax softmax;
  float sum[ELEMENTS];
};

// Partials of a row (request, query head), as a lane of the warp that merges them finds them.
template <u32 HEAD_DIM> struct Partials {
  static constexpr u32 ELEMENTS = lane_elements(HEAD_DIM);
  static constexpr u32 BATCH = 32 / ELEMENTS; // partials that are read before they are waited for

  const u32 lane = thread_index() % 32;
  const float *softmaxes, *outputs; // of the first one; the lane's elements
  const u32 next_softmax, next_output;

  TILEWRIGHT_DEVICE Partials(const Arguments &args, const MergeItem &item, u32 head)
      : softmaxes(args.partial_softmax + (u64(item.partial_begin) * args.q_heads + head) * 2),
        outputs(args.partial_output + (u64(item.partial_begin) * args.q_heads + head) * HEAD_DIM + lane * ELEMENTS), next_softmax(args.q_heads * 2),
        next_output(args.q_heads * HEAD_DIM) {}

  // The softmax of a partial; an empty range, and what is no partial, has the maximum -inf and weighs nothing.
  TILEWRIGHT_DEVICE Softmax softmax(u32 partial, u32 count) const {
    float pair[2] = {negative_infinity(), 0.f};
    if (partial < count) load_coherent(pair, softmaxes + u64(partial) * next_softmax);
    return Softmax{pair[0], pair[1]};
  }

  // Reads every `stride`-th partial, from `first` on; zeros for those that do not exist. There are predicates for the loads of a few: the compiler would
  // put others behind what waits for the first ones.
  TILEWRIGHT_DEVICE void read(float (&parts)[BATCH][ELEMENTS], u32 first, u32 stride, u32 count) const {
    constexpr u32 GROUP = 4;
#pragma unroll
    for (u32 j = 0; j < BATCH; j++) {
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e++) parts[j][e] = 0.f;
    }
#pragma unroll
    for (u32 group = 0; group < BATCH; group += GROUP) {
      if (group > 0 && first + group * stride >= count) break;
#pragma unroll
      for (u32 j = group; j < smaller(group + GROUP, BATCH); j++) {
        const u32 partial = first + j * stride;
        if (partial < count && lane_has_elements<HEAD_DIM>(lane)) load_coherent(parts[j], outputs + u64(partial) * next_output);
      }
    }
  }
};

// Sums every `stride`-th partial of a row (request, query head), from `from` on, under the maximum of all of them. By one warp, whose lanes
// look at the softmaxes of 32 partials at once.
template <u32 HEAD_DIM>
TILEWRIGHT_DEVICE MergedRow<lane_elements(HEAD_DIM)> sum_partials(const Partials<HEAD_DIM> &partials, u32 count, u32 from, u32 stride) {
  constexpr u32 ELEMENTS = lane_elements(HEAD_DIM), BATCH = Partials<HEAD_DIM>::BATCH;
  MergedRow<ELEMENTS> row = {};
  row.softmax.max = negative_infinity();
  for (u32 begin = 0; begin < count; begin += 32) {
    const u32 end = begin + smaller(count - begin, 32u);
    float parts[BATCH][ELEMENTS];
    const Softmax mine = partials.softmax(begin + partials.lane, count);
    partials.read(parts, begin + from, stride, end); // they arrive with their softmaxes
    float max = mine.max;
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) max = larger(max, from_lane_xor(max, mask));
    max = larger(max, row.softmax.max);
    const float factor = exp2_fast(row.softmax.max - finite_or_zero(max)), weight = exp2_fast(mine.max - finite_or_zero(max));
    float sum = weight * mine.sum;
#pragma unroll
    for (u32 mask = 16; mask > 0; mask /= 2) sum += from_lane_xor(sum, mask);
    row.softmax = Softmax{max, row.softmax.sum * factor + sum};
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) row.sum[e] *= factor;
    for (u32 i = begin + from; i < end; i += BATCH * stride) {
      if (i > begin + from) partials.read(parts, i, stride, end);
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
        const float its_weight = from_lane(weight, (i + j * stride) % 32); // of what is not there, zeros are weighed
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) row.sum[e] += its_weight * parts[j][e];
      }
    }
  }
  return row;
}

// Adds up the partials of a row in their order, as a CTA adds up chunks (`totals.cuh`). By one warp. Of none it is the empty row, by the same instructions.
template <u32 HEAD_DIM> TILEWRIGHT_DEVICE MergedRow<lane_elements(HEAD_DIM)> add_partials(const Partials<HEAD_DIM> &partials, u32 count) {
  constexpr u32 ELEMENTS = lane_elements(HEAD_DIM), BATCH = Partials<HEAD_DIM>::BATCH;
  MergedRow<ELEMENTS> row = {};
  row.softmax.max = negative_infinity();
  u32 i = 0;
  do {
    const u32 begin = i;
    const Softmax mine = partials.softmax(begin + partials.lane, count);
    do {
      float parts[BATCH][ELEMENTS];
      partials.read(parts, i, 1, count);
#pragma unroll
      for (u32 j = 0; j < BATCH; j++) {
        const Softmax partial{from_lane(mine.max, (i + j) % 32), from_lane(mine.sum, (i + j) % 32)};
        if (partial.max == negative_infinity()) continue; // it has no tokens, or does not exist
        const ChunkFactors factors = add_chunk(row.softmax, partial);
#pragma unroll
        for (u32 e = 0; e < ELEMENTS; e++) row.sum[e] = add_chunk_element(row.sum[e], parts[j][e], factors);
      }
      i += BATCH;
    } while (i < count && i < begin + 32);
  } while (i < count);
  return row;
}

// Normalises a row and writes it, its LSE too if another thread wants it. By one warp.
template <u32 HEAD_DIM, class Element, bool SINKS>
TILEWRIGHT_DEVICE void write_merged(const Arguments &args, u32 request, u32 head, MergedRow<lane_elements(HEAD_DIM)> &row) {
  constexpr u32 ELEMENTS = lane_elements(HEAD_DIM);
  static_assert(ELEMENTS % 2 == 0, "elements are written in pairs");
  const u32 lane = thread_index() % 32;
  float factor = 1.f;
  if constexpr (SINKS) factor = add_sink(row.softmax, args.sinks[head]);
  factor = row.softmax.sum > 0.f ? factor / row.softmax.sum : 0.f;
  u16 *target = args.output + request * args.output_request + head * args.output_head + lane * ELEMENTS;
#pragma unroll
  for (u32 e = 0; e < ELEMENTS; e += 2)
    if (lane_has_elements<HEAD_DIM>(lane)) *reinterpret_cast<u32 *>(target + e) = narrow(Element{}, row.sum[e] * factor, row.sum[e + 1] * factor);
  if (lane == 0 && args.lse) args.lse[u64(request) * args.q_heads + head] = log_sum_exp(row.softmax);
}

// One row (request, query head) a group of WARPS_A_ROW warps. One warp serves the usual few partials; with more, a long row is read
// by several at once.
template <u32 WARPS_A_ROW, u32 HEAD_DIM, class Element, bool SINKS, bool INVARIANT = false> struct Merge {
  static_assert(!INVARIANT || WARPS_A_ROW == 1, "partials are added one after the other");
  static constexpr u32 WARPS = 4;
  static constexpr u32 THREADS = WARPS * 32;
  static constexpr u32 ROWS = WARPS / WARPS_A_ROW; // of one CTA
  static constexpr u32 ELEMENTS = lane_elements(HEAD_DIM);   // of one lane
  static constexpr u32 ROW = ELEMENTS * 32;        // of all lanes
  static constexpr u32 SHARED_BYTES = WARPS * ROW * 4;
  static_assert(WARPS % WARPS_A_ROW == 0, "warps of a CTA are shared among whole rows");

  TILEWRIGHT_DEVICE static void run(const Arguments &args) {
    const u32 lane = thread_index() % 32, warp = thread_index() / 32;
    const u32 index = block_index() * ROWS + warp / WARPS_A_ROW;
    const u32 part = warp % WARPS_A_ROW;
    // The host leaves room behind the last item, so that this load does not wait for the count.
    const MergeItem item = args.merges[args.q_heads.quotient(index)];
    const bool valid = index < args.counts[0] * args.q_heads;
    const u32 head = args.q_heads.remainder(index);
    // Chunks are merged in two turns, of which the first merges none: it fetches the instructions while the launch before still works.
    const Partials<HEAD_DIM> partials(args, item, head);
    const u32 partials_there = same_in_warp(valid ? item.partial_end - item.partial_begin : 0);
    const u32 turns = INVARIANT ? computed_here(2) : 1;
    MergedRow<ELEMENTS> row;
#pragma unroll 1
    for (u32 turn = 1; turn <= turns; turn++) {
      u32 count = 0;
      if (turn == turns) {
        wait_for_launch_before(); // up to here only what the plan says was read
        count = partials_there;
      }
      row = INVARIANT ? add_partials(partials, count) : sum_partials(partials, count, part, WARPS_A_ROW);
    }
    if constexpr (WARPS_A_ROW > 1) {
      float *parts = reinterpret_cast<float *>(shared_memory());
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e++) parts[warp * ROW + lane * ELEMENTS + e] = row.sum[e];
      barrier();
#pragma unroll
      for (u32 e = 0; e < ELEMENTS; e++) {
        row.sum[e] = 0.f;
#pragma unroll
        for (u32 w = 0; w < WARPS_A_ROW; w++) row.sum[e] += parts[(warp - part + w) * ROW + lane * ELEMENTS + e];
      }
    }
    if (valid && part == 0) write_merged<HEAD_DIM, Element, SINKS>(args, item.request, head, row);
  }
};

} // namespace tilewright
