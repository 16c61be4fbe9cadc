// Which tokens of a step a warp computes, and which of them its rows see.
//
// A run is read once for all rows of an item; those that do not share it are masked.
#pragma once
#include "walk.cuh"

namespace tilewright {

// What a lane's two rows see, and what all of the warp's rows see.
struct Sight {
  i32 begin[2], end[2];
  i32 all_begin, all_end;
  // Tokens of the walk that all of them see, where that is plain: in its first runs, as far as all rows multiplied together share them.
  i32 plain_begin, plain_end;
};

template <class S> struct Visibility {
  const Cta<S> &cta;

  TILEWRIGHT_DEVICE u32 first_row_together() const { return cta.row_warp * 16 / S::ROWS_TOGETHER * S::ROWS_TOGETHER; }

  TILEWRIGHT_DEVICE Sight sight(const Steps &steps) const {
    Sight sight{{0, 0}, {0, 0}, 0, 0x7fffffff, 0, 0};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const u32 row = cta.row_warp * 16 + cta.fragment_row + half * 8;
      // Rows that only pad are computed like the others, from zeros, and never written.
      sight.begin[half] = row < cta.row_count() ? cta.rows()[row].begin : 0;
      sight.end[half] = row < cta.row_count() ? cta.rows()[row].end : 0x7fffffff;
      sight.all_begin = larger(sight.all_begin, sight.begin[half]);
      sight.all_end = smaller(sight.all_end, sight.end[half]);
    }
#pragma unroll
    for (u32 mask = 4; mask < 32; mask *= 2) {
      sight.all_begin = larger(sight.all_begin, from_lane_xor(sight.all_begin, mask));
      sight.all_end = smaller(sight.all_end, from_lane_xor(sight.all_end, mask));
    }
    const u32 first = first_row_together(), last = smaller(first + S::ROWS_TOGETHER, cta.row_count());
    for (u32 index = 0; index < cta.item.run_count; index++) {
      const SharedRun &run = cta.runs()[index];
      const bool shared_by_all = run.rows % 4096 <= first && run.rows / 4096 >= last && run.position == cta.runs()[0].position;
      if (!shared_by_all) break;
      // A warp whose rows all pad sees anything; what others of its group do not multiply, it must not either.
      sight.plain_begin = larger(sight.plain_begin, larger(sight.all_begin, run.seen) - run.position);
      sight.plain_end = smaller(sight.all_end, run.end) - run.position;
      // What is beyond a run's last page is not the next one's.
      if (sight.plain_end < static_cast<i32>(run.begin + run.tokens)) break;
    }
    sight.plain_end = smaller(sight.plain_end, static_cast<i32>(steps.shared_end));
    return sight;
  }

  // A bit for each of a warp's granules.
  static constexpr u32 all_granules(u32 count) { return (1u << count) - 1; }
  static_assert(S::WARP_GRANULES <= 16, "granules of a warp are the bits of a mask");

  // Which of these granules some of the rows that are multiplied at once share, a bit each; and whether some row of the warp does not see
  // all of them.
  template <u32 GRANULES_HERE, bool WITH_GROUP>
  TILEWRIGHT_DEVICE u32 active_granules(const Rings<S> &at, u32 first, const Sight &sight, bool &masked) const {
    const u32 first_row = cta.row_warp * 16, last_row = smaller(first_row + 16, cta.row_count());
    const u32 first_active = WITH_GROUP ? first_row_together() : first_row;
    const u32 last_active = WITH_GROUP ? smaller(first_active + S::ROWS_TOGETHER, cta.row_count()) : last_row;
    u32 active = 0;
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) {
      const Granule granule = cta.granules(at)[first + n];
      const u32 begin = granule.first_row(), end = granule.last_row();
      const bool some = begin < last_active && end > first_active;
      const bool all = begin <= first_row && end >= last_row && granule.tokens() == S::GRANULE &&
                       granule.position + static_cast<i32>(S::GRANULE) <= sight.all_end && (!S::WINDOW || granule.position >= sight.all_begin);
      active |= static_cast<u32>(some) << n;
      masked = masked || !all;
    }
    return active;
  }

  // Makes -inf of the logits that a row has with tokens that it does not see.
  template <u32 GRANULES_HERE>
  TILEWRIGHT_DEVICE void mask_scores(float (&scores)[GRANULES_HERE * 2][4], const Rings<S> &at, u32 first, const Sight &sight) const {
#pragma unroll
    for (u32 n = 0; n < GRANULES_HERE; n++) {
      const Granule granule = cta.granules(at)[first + n];
#pragma unroll
      for (u32 half = 0; half < 2; half++) {
        const u32 row = cta.row_warp * 16 + cta.fragment_row + half * 8;
        const bool shares = row >= granule.first_row() && row < granule.last_row();
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
          const u32 within = cta.fragment_column + e / 2 * 8 + e % 2;
          const i32 token = granule.position + static_cast<i32>(within);
          const bool visible = shares && within < granule.tokens() && token < sight.end[half] && (!S::WINDOW || token >= sight.begin[half]);
          if (!visible) scores[2 * n + e / 2][2 * half + e % 2] = negative_infinity();
        }
      }
    }
  }
};

} // namespace tilewright
