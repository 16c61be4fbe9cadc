// Merge of states: attention over several parts of the KV, each normalised and with its LSE, becomes attention over all of it
// (Hydragen, section 3.1). They may come from anywhere: plans, other kernels, other devices. Their order is that of the sums, so the
// same states give the same bits.
#pragma once
#include "softmax.cuh"

namespace tilewright {

constexpr u32 MAX_STATES = 8;

// States come from separate buffers, so each has a pointer of its own; a common buffer is the special case of equal strides.
struct StatesArguments {
  const u16 *outputs[MAX_STATES]; // each [rows, HEAD_DIM], aligned to 16 bytes
  const float *lses[MAX_STATES];  // each [rows], natural logarithm; -inf where nothing was attended
  u16 *output;                    // [rows, HEAD_DIM], aligned to 16 bytes; may be outputs[0]
  float *lse;                     // [rows]; may be null, or lses[0]
  u32 rows;
  u32 count; // of states, at least one
};
static_assert(sizeof(StatesArguments) == 2 * MAX_STATES * 8 + 2 * 8 + 2 * 4, "the host lays out the same struct");

// One row (request, query head) a group of lanes, 16 bytes a lane, or several times 16 where a warp has fewer lanes; of 96 and 192 elements the
// last lanes have none.
template <u32 HEAD_DIM, class Element> struct MergeStates {
  static constexpr u32 THREADS = 128;
  static constexpr u32 LANES = smaller(power_of_two_from(HEAD_DIM / 8), 32u); // of one row
  static constexpr u32 VECTORS = divide_up(HEAD_DIM / 8, LANES); // of 16 bytes, of one lane
  static constexpr bool ALL_LANES = LANES * VECTORS * 8 == HEAD_DIM; // have elements
  static constexpr u32 ROWS = THREADS / LANES; // of one CTA
  static constexpr u32 SHARED_BYTES = 0;
  static_assert(HEAD_DIM % 8 == 0 && 32 % LANES == 0, "a warp is shared among whole rows");
  static_assert(LANES >= MAX_STATES, "each state's LSE has a lane of its row");

  struct alignas(16) Elements {
    u32 pairs[4];
  };

  TILEWRIGHT_DEVICE static void run(const StatesArguments &args) {
    const u32 lane = thread_index() % LANES, first_lane = thread_index() % 32 - lane;
    const u32 row = block_index() * ROWS + thread_index() / LANES;
    const bool valid = row < args.rows;
    const bool has_elements = valid && (ALL_LANES || lane * 8 < HEAD_DIM);
    const u64 at = u64(row) * HEAD_DIM + lane * 8; // and the same of each LANES * 8 elements

    // All loads of a row are on their way at once, so that their latency is paid once; those of empty states are thrown away. A lane
    // reads what it will overwrite in place, and no thread else does: lane 0 has the LSE of state 0, each lane its elements.
    const float own = valid && lane < args.count ? args.lses[lane][row] : negative_infinity();
    Elements loaded[MAX_STATES][VECTORS];
#pragma unroll
    for (u32 s = 0; s < MAX_STATES; s++) {
#pragma unroll
      for (u32 v = 0; v < VECTORS; v++)
        if (has_elements && s < args.count) loaded[s][v] = *reinterpret_cast<const Elements *>(args.outputs[s] + at + v * LANES * 8);
    }

    float max = own;
#pragma unroll
    for (u32 mask = LANES / 2; mask > 0; mask /= 2) max = larger(max, from_lane_xor(max, mask));
    const float own_weight = exp2_fast((own - finite_or_zero(max)) * LOG2_E);

    float total = 0.f, sum[VECTORS][8] = {};
#pragma unroll
    for (u32 s = 0; s < MAX_STATES; s++) {
      if (s >= args.count) break;
      const float weight = from_lane(own_weight, first_lane + s);
      total += weight;
      // What weighs nothing is not even multiplied: it may be NaN.
      if (weight != 0.f && (ALL_LANES || has_elements)) {
#pragma unroll
        for (u32 v = 0; v < VECTORS; v++) {
#pragma unroll
          for (u32 e = 0; e < 4; e++) {
            float low, high;
            widen(Element{}, loaded[s][v].pairs[e], low, high);
            sum[v][2 * e] += weight * low;
            sum[v][2 * e + 1] += weight * high;
          }
        }
      }
    }
    if (!has_elements) return;
    // The largest state weighs 1: the total is 0 only where all are empty.
    const bool empty = total == 0.f;
    const float factor = empty ? 0.f : 1.f / total;
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
      Elements merged;
#pragma unroll
      for (u32 e = 0; e < 4; e++) merged.pairs[e] = narrow(Element{}, sum[v][2 * e] * factor, sum[v][2 * e + 1] * factor);
      *reinterpret_cast<Elements *>(args.output + at + v * LANES * 8) = merged;
    }
    if (lane == 0 && args.lse) args.lse[row] = empty ? negative_infinity() : max + log2_fast(total) * LN_2;
  }
};

} // namespace tilewright
