// Masking: which tokens of a step a warp computes, and which of them its rows see.
//
// A KV segment is read once for all rows of an item; rows that do not share it are masked.
#pragma once
#include "kv_range.cuh"

namespace tilewright {

// What a lane's two rows see, and what all of the warp's rows see.
struct MaskState {
  i32 begin[2], end[2];
  i32 all_begin, all_end;
  // Tokens of the KV range that all of them see, where that is plain: in its first segments, as far as all rows multiplied together share them.
  i32 plain_begin, plain_end;
};

template <class S> struct Mask {
  const Cta<S> &cta;

  TILEWRIGHT_DEVICE u32 first_row_together() const { return cta.warp_q * 16 / S::ROWS_TOGETHER * S::ROWS_TOGETHER; }

  TILEWRIGHT_DEVICE MaskState mask_state(const Steps &steps) const {
    MaskState mask_state{{0, 0}, {0, 0}, 0, 0x7fffffff, 0, 0};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const u32 row = cta.warp_q * 16 + cta.fragment_row + half * 8;
      // Rows that only pad are computed like the others, from zeros, and never written.
      mask_state.begin[half] = row < cta.row_count() ? cta.rows()[row].begin : 0;
      mask_state.end[half] = row < cta.row_count() ? cta.rows()[row].end : 0x7fffffff;
      mask_state.all_begin = larger(mask_state.all_begin, mask_state.begin[half]);
      mask_state.all_end = smaller(mask_state.all_end, mask_state.end[half]);
    }
#pragma unroll
    for (u32 mask = 4; mask < 32; mask *= 2) {
      mask_state.all_begin = larger(mask_state.all_begin, from_lane_xor(mask_state.all_begin, mask));
      mask_state.all_end = smaller(mask_state.all_end, from_lane_xor(mask_state.all_end, mask));
    }
    const u32 first = first_row_together(), last = smaller(first + S::ROWS_TOGETHER, cta.row_count());
    for (u32 index = 0; index < cta.item.segment_count; index++) {
      const SegmentInShared &segment = cta.segments()[index];
      const bool shared_by_all = segment.rows % 4096 <= first && segment.rows / 4096 >= last && segment.position == cta.segments()[0].position;
      if (!shared_by_all) break;
      // A warp whose rows all pad sees anything; what others of its group do not multiply, it must not either.
      mask_state.plain_begin = larger(mask_state.plain_begin, larger(mask_state.all_begin, segment.seen) - segment.position);
      mask_state.plain_end = smaller(mask_state.all_end, segment.end) - segment.position;
      // What is beyond a segment's last page is not the next one's.
      if (mask_state.plain_end < static_cast<i32>(segment.begin + segment.tokens)) break;
    }
    mask_state.plain_end = smaller(mask_state.plain_end, static_cast<i32>(steps.shared_end));
    return mask_state;
  }

  // A bit for each of a warp's granules.
  static constexpr u32 all_granules(u32 count) { return (1u << count) - 1; }
  static_assert(S::WARP_GRANULES <= 16, "granules of a warp are the bits of a mask");

  // Which of these granules some of the rows that are multiplied at once share, a bit each; and whether some row of the warp does not see
  // all of them.
  template <u32 GRANULES_HERE, bool WITH_GROUP>
  TILEWRIGHT_DEVICE u32 active_granules(const PipelineState<S> &at, u32 first, const MaskState &mask_state, bool &masked) const {
    const u32 first_row = cta.warp_q * 16, last_row = smaller(first_row + 16, cta.row_count());
    const u32 first_active = WITH_GROUP ? first_row_together() : first_row;
    const u32 last_active = WITH_GROUP ? smaller(first_active + S::ROWS_TOGETHER, cta.row_count()) : last_row;
    u32 active = 0;
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) {
      const Granule granule = cta.granules(at)[first + n];
      const u32 begin = granule.first_row(), end = granule.last_row();
      const bool some = begin < last_active && end > first_active;
      const bool all = begin <= first_row && end >= last_row && granule.tokens() == S::GRANULE &&
                       granule.position + static_cast<i32>(S::GRANULE) <= mask_state.all_end && (!S::HIDES_FIRST || granule.position >= mask_state.all_begin);
      active |= static_cast<u32>(some) << n;
      masked = masked || !all;
    }
    return active;
  }

  // Makes -inf of the logits that a row has with tokens that it does not see.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void mask_scores(float (&scores)[GRANULES_HERE * 2][4], const PipelineState<S> &at, u32 first, const MaskState &mask_state) const {
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) {
      const Granule granule = cta.granules(at)[first + n];
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        const u32 row = cta.warp_q * 16 + cta.fragment_row + half * 8;
        const bool shares = row >= granule.first_row() && row < granule.last_row();
        // From the lane's first column on: one past the last token that the row sees, and the first one.
        const i32 column = granule.position + static_cast<i32>(cta.fragment_column);
        const i32 end = shares ? smaller(granule.position + static_cast<i32>(granule.tokens()), mask_state.end[half]) - column : 0;
        const i32 begin = S::HIDES_FIRST ? mask_state.begin[half] - column : 0;
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
          const i32 within = e / 2 * 8 + e % 2;
          if (within >= end || (S::HIDES_FIRST && within < begin)) scores[2 * n + e / 2][2 * half + e % 2] = negative_infinity();
        }
      }
    }
  }
};

} // namespace tilewright
