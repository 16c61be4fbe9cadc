// The KV range of a work item: its rows, its KV segments, and the steps in which the tokens come.
//
// Where warps own different rows, segments private to the rows of one warp come last. In this private KV phase each step brings as many
// tokens for every Q warp, so that none waits while another computes. Batch-invariant kernels have no such phase.
#pragma once
#include "cta.cuh"

namespace tilewright {

// How the tokens of the KV range come in steps.
struct Steps {
  u32 first, last; // one past
  u32 shared_end;  // one past the last token that is for all Q warps
  u32 private_phase, private_steps; // the first step of the private KV phase, and how many there are
  u32 begin, end, segment; // of the KV range: what this thread's Q warp has for itself, and in which segment it begins

  TILEWRIGHT_DEVICE bool in_private_phase(u32 step) const { return step - private_phase < private_steps; }
  // The number of a step for all Q warps among such steps.
  TILEWRIGHT_DEVICE u32 shared_step(u32 step) const { return step < private_phase ? step : step - private_steps; }
};

template <class S> struct KvRange {
  const Cta<S> &cta;

  // Rows of the item that share a segment: first, and one past the last (12 bits).
  TILEWRIGHT_DEVICE u32 rows_of(const KvSegment &segment) const {
    const i32 first = static_cast<i32>(segment.members % 4096 * cta.args.gqa_ratio) - cta.item.row_begin;
    const i32 last = static_cast<i32>(segment.members / 4096 % 4096 * cta.args.gqa_ratio) - cta.item.row_begin;
    return static_cast<u32>(larger(first, 0)) | static_cast<u32>(larger(smaller(last, static_cast<i32>(cta.row_count())), 0)) << 12;
  }

  // Whether the private KV phase comes before the other steps.
  TILEWRIGHT_DEVICE bool begins_privately() const { return cta.item.private_phase_first; }

  // First steps whose tokens, of the first segment, some row sees for certain, whatever lengths are.
  TILEWRIGHT_DEVICE u32 certain_steps() const {
    if (S::HIDES_FIRST || cta.item.certain_end < cta.item.kv_begin) return 0;
    // They may be the private KV phase.
    if constexpr (S::PRIVATE_PHASE) {
      if (cta.item.segment_count > 1 && (begins_privately() || owner(rows_of(cta.item.first)) != S::WARPS_Q)) return 0;
    }
    return (cta.item.certain_end - cta.item.kv_begin) / S::N;
  }

  // Finds what the segments are, whose the rows are, and where they go. All of it is asked for before any of it is waited for.
  TILEWRIGHT_DEVICE void describe() const {
    if constexpr (S::PRIVATE_PHASE) {
      if (cta.describer() < S::WARPS_Q) {
        const u32 none = cta.describer();
        cta.private_phase().begin[none] = cta.private_phase().end[none] = cta.private_phase().segment[none] = 0;
      }
      if (cta.describer() == 0) {
        cta.private_phase().shared_end = cta.item.kv_begin;
        cta.private_phase().early = S::TMA ? smaller(certain_steps(), S::EARLY_KEYS) : 0;
      }
    }
    const u32 row_count = cta.row_count(), segment_count = cta.item.segment_count;
    for (u32 index = cta.describer(); index < larger(row_count, segment_count); index += S::DESCRIBERS) {
      const bool is_segment = index < segment_count, is_row = index < row_count, is_last = index + 1 >= segment_count;
      KvSegment segment = cta.item.first;
      u32 next_begin = 0, request = 0;
      OutputTarget output_target = {};
      if (is_segment && index > 0) segment = cta.args.segments[cta.item.segments + index];
      if (!is_last) next_begin = cta.args.segments[cta.item.segments + index + 1].begin;
      if (is_row) {
        const u32 member = cta.args.gqa_ratio.quotient(cta.item.row_begin + index);
        request = cta.args.requests[cta.item.requests + member];
        output_target = cta.args.output_targets[cta.item.output_targets + member];
      }
      if (is_segment) {
        prefetch(cta.args.page_ids + segment.pages % EVICT_FIRST);
        const u32 end = is_last ? cta.item.kv_end : next_begin - segment.members / (4096 * 4096);
        const i32 position = static_cast<i32>(segment.position - segment.begin);
        cta.segments()[index] = SegmentInShared{segment.begin, end - segment.begin, segment.pages, position, rows_of(segment), 0, 0};
      }
      if (is_row) {
        prefetch(cta.args.lengths + request);
        cta.rows()[index].request = request;
        cta.rows()[index].output_target = output_target;
      }
    }
  }

  // Then, by the same threads, what each row sees. Lengths are read here, so a plan holds while requests grow inside their pages.
  // `meanwhile` is done while the first ones are on their way.
  template <class Meanwhile> TILEWRIGHT_DEVICE void find_lengths(const Meanwhile &meanwhile) const {
    const auto see = [&](u32 row, i32 length) {
      cta.rows()[row].begin = S::first_seen(cta.args.mask, length);
      cta.rows()[row].end = length;
    };
    const u32 first = cta.describer();
    const i32 length = first < cta.row_count() ? cta.args.lengths[cta.rows()[first].request] : 0;
    meanwhile();
    if (first < cta.row_count()) see(first, length);
    for (u32 row = first + S::DESCRIBERS; row < cta.row_count(); row += S::DESCRIBERS) see(row, cta.args.lengths[cta.rows()[row].request]);
  }

  // What some row sees of each segment. Rows of a request see the same, and its queries are requests here.
  TILEWRIGHT_DEVICE void find_seen() const {
    if (cta.item.segment_count == 1) {
      if (cta.describer() < 32) find_seen_of_one();
      return;
    }
    for (u32 begin = cta.describer() / 32 * 32; begin < cta.item.segment_count; begin += S::DESCRIBERS) {
      const u32 index = begin + cta.lane;
      const bool exists = index < cta.item.segment_count;
      SegmentInShared segment{};
      if (exists) segment = cta.segments()[index];
      i32 seen = 0x7fffffff, end = 0;
      const u32 first = segment.rows % 4096, last = segment.rows / 4096;
      const i32 whole = static_cast<i32>(segment.begin + segment.tokens) + segment.position; // one past its last token
      if (exists && first < last) seen = cta.rows()[first].begin, end = cta.rows()[first].end;
      // Where its first row sees a segment to the end, no other sees more. Other segments that several requests share are few: all lanes of a warp look at one
      // together.
      const bool shared = last - first > cta.args.gqa_ratio && (S::HIDES_FIRST || end < whole);
      for (u32 left = lanes_with(shared); left > 0; left &= left - 1) {
        const u32 its_lane = lowest_bit(left), its_rows = from_lane(segment.rows, its_lane);
        i32 its_seen = 0x7fffffff, its_end = 0;
        for (u32 row = its_rows % 4096 + cta.lane * cta.args.gqa_ratio; row < its_rows / 4096; row += 32 * cta.args.gqa_ratio) {
          if constexpr (S::HIDES_FIRST) its_seen = smaller(its_seen, cta.rows()[row].begin);
          its_end = larger(its_end, cta.rows()[row].end);
        }
        if constexpr (S::HIDES_FIRST) its_seen = smallest_in_warp(its_seen);
        its_end = largest_in_warp(its_end);
        if (cta.lane == its_lane) seen = its_seen, end = its_end;
      }
      if (!exists) continue;
      const u32 before = index > 0 ? cta.segments()[index - 1].rows : 0;
      const u32 after = index + 1 < cta.item.segment_count ? cta.segments()[index + 1].rows : 0;
      limit_segment(segment, seen, end);
      cta.segments()[index].seen = segment.seen;
      cta.segments()[index].end = segment.end;
      if constexpr (S::PRIVATE_PHASE) find_private_phase(index, segment, before, after);
    }
  }

  // The same for the only segment, by one warp.
  TILEWRIGHT_DEVICE void find_seen_of_one() const {
    SegmentInShared &segment = cta.segments()[0];
    i32 seen = 0x7fffffff, end = 0;
    for (u32 row = segment.rows % 4096 + cta.lane; row < segment.rows / 4096; row += 32) {
      if constexpr (S::HIDES_FIRST) seen = smaller(seen, cta.rows()[row].begin);
      end = larger(end, cta.rows()[row].end);
    }
    if constexpr (S::HIDES_FIRST) seen = smallest_in_warp(seen);
    end = largest_in_warp(end);
    if (cta.lane == 0) limit_segment(segment, seen, end);
  }

  TILEWRIGHT_DEVICE void limit_segment(SegmentInShared &segment, i32 seen, i32 end) const {
    segment.seen = S::HIDES_FIRST ? seen : 0;
    segment.end = smaller(end, static_cast<i32>(segment.begin + segment.tokens) + segment.position);
  }

  // The Q warp whose rows alone share a segment; ROW_WARPS where several do.
  TILEWRIGHT_DEVICE static u32 owner(u32 rows) {
    const u32 first = rows % 4096 / 16, last = (rows / 4096 - 1) / 16;
    return first == last ? first : S::WARPS_Q;
  }

  // Notes where a segment is the first or the last one of its owner.
  TILEWRIGHT_DEVICE void find_private_phase(u32 index, const SegmentInShared &segment, u32 before, u32 after) const {
    const u32 own = owner(segment.rows);
    const i32 begin = static_cast<i32>(larger(segment.begin, cta.item.kv_begin));
    const u32 end = static_cast<u32>(larger(smaller(segment.end - segment.position, static_cast<i32>(cta.item.kv_end)), begin));
    const bool is_first = index == 0 || owner(before) != own;
    const bool is_last = index + 1 == cta.item.segment_count || owner(after) != own;
    if (own == S::WARPS_Q) {
      if (is_last) cta.private_phase().shared_end = end;
    } else {
      if (is_first) {
        cta.private_phase().begin[own] = static_cast<u32>(begin);
        cta.private_phase().segment[own] = index;
      }
      if (is_last) cta.private_phase().end[own] = end;
    }
  }

  // The steps of the KV range. There is no private KV phase where warps have so different numbers of tokens behind the shared ones that it has a quarter
  // more steps: each takes as long, with whatever tokens.
  TILEWRIGHT_DEVICE Steps find_steps() const {
    Steps steps{S::HIDES_FIRST ? first_step() : 0, last_step(), cta.item.kv_end, 0, 0, 0, 0, 0};
    if constexpr (S::PRIVATE_PHASE) {
      if (cta.item.segment_count == 1) return steps;
      u32 most = 0, all = 0;
#pragma unroll
      for (u32 w = 0; w < S::WARPS_Q; w++) {
        const u32 tokens = cta.private_phase().end[w] - cta.private_phase().begin[w];
        most = larger(most, tokens);
        all += tokens;
      }
      const u32 in_private_phase = divide_up(most, S::PRIVATE_STEP);
      if (4 * in_private_phase >= 5 * divide_up(all, S::N)) return steps;
      steps.shared_end = cta.private_phase().shared_end;
      // Where lengths are shorter than the plan allows, what was asked for early stays as many steps of all warps.
      const u32 for_all = larger(divide_up(steps.shared_end - cta.item.kv_begin, S::N), cta.private_phase().early);
      steps.private_steps = in_private_phase;
      steps.private_phase = begins_privately() ? 0 : for_all;
      steps.last = for_all + in_private_phase;
      const u32 own = cta.looks_at % S::WARP_N / S::WARP_PRIVATE_STEP;
      steps.begin = cta.private_phase().begin[own] + cta.looks_at / S::WARP_N * S::WARP_PRIVATE_STEP + cta.looks_at % S::WARP_PRIVATE_STEP;
      steps.end = cta.private_phase().end[own];
      steps.segment = cta.private_phase().segment[own];
    }
    return steps;
  }

  // The first step with a token that some row's mask does not hide.
  TILEWRIGHT_DEVICE u32 first_step() const {
    u32 first = cta.item.kv_end - cta.item.kv_begin;
    for (u32 index = 0; index < cta.item.segment_count; index++) {
      const SegmentInShared &segment = cta.segments()[index];
      const i32 token = larger(segment.seen - segment.position, static_cast<i32>(larger(segment.begin, cta.item.kv_begin)));
      if (token + segment.position < segment.end) first = smaller(first, static_cast<u32>(token) - cta.item.kv_begin);
    }
    return first / S::N;
  }

  // One past the last step with a token that some row sees, as far as the last segment tells: its last page may be nearly empty, and early
  // queries of a request see nothing of it. Segments before it are read to their ends.
  TILEWRIGHT_DEVICE u32 last_step() const {
    const SegmentInShared &segment = cta.segments()[cta.item.segment_count - 1];
    const i32 end = larger(smaller(segment.end - segment.position, static_cast<i32>(cta.item.kv_end)), static_cast<i32>(segment.begin));
    return divide_up(static_cast<u32>(larger(end - static_cast<i32>(cta.item.kv_begin), 0)), S::N);
  }
};

} // namespace tilewright
