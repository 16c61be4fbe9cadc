// The walk of a work item: its rows, the runs of pages that they share, and the steps in which the tokens come.
//
// Where warps own different rows, runs that the rows of one of them share alone stand behind all others. There the warps take turns: each
// step brings as many tokens for every row warp, so that none of them waits while another computes.
#pragma once
#include "cta.cuh"

namespace tilewright {

// How the tokens of the walk come in steps.
struct Steps {
  u32 first, last; // one past
  u32 shared;      // the first one whose tokens are for all row warps,
  u32 shared_end;  // and one past the last such token
  u32 turns, turn_count; // the first one in which warps take turns, and how many there are
  u32 begin, end, run; // of the walk: what this thread's row warp has for itself, and in which run it begins

  TILEWRIGHT_DEVICE bool in_turns(u32 step) const { return step - turns < turn_count; }
};

template <class S> struct Walk {
  const Cta<S> &cta;

  // Finds what the runs are, whose the rows are, and where they go. All of it is asked for before any of it is waited for.
  TILEWRIGHT_DEVICE void describe() const {
    if constexpr (S::TURNS) {
      if (cta.describer() < S::ROW_WARPS) {
        const u32 none = cta.describer();
        cta.turns().begin[none] = cta.turns().end[none] = cta.turns().run[none] = 0;
      }
      if (cta.describer() == 0) cta.turns().shared_end = cta.item.walk_begin;
    }
    const u32 row_count = cta.row_count(), run_count = cta.item.run_count;
    for (u32 index = cta.describer(); index < larger(row_count, run_count); index += S::DESCRIBERS) {
      const bool is_run = index < run_count, is_row = index < row_count, is_last = index + 1 >= run_count;
      Run run = cta.item.first;
      u32 next_begin = 0, request = 0;
      Slot slot = {};
      if (is_run && index > 0) run = cta.args.runs[cta.item.runs + index];
      if (!is_last) next_begin = cta.args.runs[cta.item.runs + index + 1].begin;
      if (is_row) {
        const u32 member = (cta.item.row_begin + index) / cta.args.gqa_ratio;
        request = cta.args.requests[cta.item.requests + member];
        slot = cta.args.slots[cta.item.slots + member];
      }
      if (is_run) {
        prefetch(cta.args.page_ids + run.pages % STREAMED);
        const i32 first = static_cast<i32>(run.members % 4096 * cta.args.gqa_ratio) - cta.item.row_begin;
        const i32 last = static_cast<i32>(run.members / 4096 % 4096 * cta.args.gqa_ratio) - cta.item.row_begin;
        const u32 end = is_last ? cta.item.walk_end : next_begin - run.members / (4096 * 4096);
        const u32 rows = static_cast<u32>(larger(first, 0)) | static_cast<u32>(larger(smaller(last, static_cast<i32>(row_count)), 0)) << 12;
        cta.runs()[index] = SharedRun{run.begin, end - run.begin, run.pages, static_cast<i32>(run.position - run.begin), rows, 0, 0};
      }
      if (is_row) {
        prefetch(cta.args.lengths + request);
        cta.rows()[index].request = request;
        cta.rows()[index].slot = slot;
      }
    }
  }

  // Then, by the same threads, what each row sees. Lengths are read here, so a plan holds while requests grow inside their pages.
  // `meanwhile` is done while the first ones are on their way.
  template <class Meanwhile> TILEWRIGHT_DEVICE void find_lengths(const Meanwhile &meanwhile) const {
    const auto see = [&](u32 row, i32 length) {
      cta.rows()[row].begin = S::WINDOW ? larger(length - static_cast<i32>(cta.args.window), 0) : 0;
      cta.rows()[row].end = length;
    };
    const u32 first = cta.describer();
    const i32 length = first < cta.row_count() ? cta.args.lengths[cta.rows()[first].request] : 0;
    meanwhile();
    if (first < cta.row_count()) see(first, length);
    for (u32 row = first + S::DESCRIBERS; row < cta.row_count(); row += S::DESCRIBERS) see(row, cta.args.lengths[cta.rows()[row].request]);
  }

  // What some row sees of each run, where there are several. Rows of a request see the same, and its queries are requests here.
  TILEWRIGHT_DEVICE void find_seen() const {
    if (cta.item.run_count == 1) return;
    for (u32 begin = cta.describer() / 32 * 32; begin < cta.item.run_count; begin += S::DESCRIBERS) {
      const u32 index = begin + cta.lane;
      const bool exists = index < cta.item.run_count;
      SharedRun run{};
      if (exists) run = cta.runs()[index];
      i32 seen = 0x7fffffff, end = 0;
      const u32 first = run.rows % 4096, last = run.rows / 4096;
      // Runs that several requests share are few, and all lanes look at one of them together.
      const bool shared = last - first > cta.args.gqa_ratio;
      for (u32 left = lanes_with(shared); left > 0; left &= left - 1) {
        const u32 its_lane = lowest_bit(left), its_rows = from_lane(run.rows, its_lane);
        i32 its_seen = 0x7fffffff, its_end = 0;
        for (u32 row = its_rows % 4096 + cta.lane * cta.args.gqa_ratio; row < its_rows / 4096; row += 32 * cta.args.gqa_ratio) {
          if constexpr (S::WINDOW) its_seen = smaller(its_seen, cta.rows()[row].begin);
          its_end = larger(its_end, cta.rows()[row].end);
        }
        if constexpr (S::WINDOW) its_seen = smallest_in_warp(its_seen);
        its_end = largest_in_warp(its_end);
        if (cta.lane == its_lane) seen = its_seen, end = its_end;
      }
      if (!exists) continue;
      if (!shared && first < last) seen = cta.rows()[first].begin, end = cta.rows()[first].end;
      const u32 before = index > 0 ? cta.runs()[index - 1].rows : 0;
      const u32 after = index + 1 < cta.item.run_count ? cta.runs()[index + 1].rows : 0;
      limit_run(run, seen, end);
      cta.runs()[index].seen = run.seen;
      cta.runs()[index].end = run.end;
      if constexpr (S::TURNS) find_turns(index, run, before, after);
    }
  }

  // The same for the only run, by every warp for itself: that needs no barrier.
  TILEWRIGHT_DEVICE void find_seen_of_one() const {
    SharedRun &run = cta.runs()[0];
    i32 seen = 0x7fffffff, end = 0;
    for (u32 row = run.rows % 4096 + cta.lane; row < run.rows / 4096; row += 32) {
      if constexpr (S::WINDOW) seen = smaller(seen, cta.rows()[row].begin);
      end = larger(end, cta.rows()[row].end);
    }
    if constexpr (S::WINDOW) seen = smallest_in_warp(seen);
    end = largest_in_warp(end);
    limit_run(run, seen, end);
  }

  TILEWRIGHT_DEVICE void limit_run(SharedRun &run, i32 seen, i32 end) const {
    run.seen = S::WINDOW ? seen : 0;
    run.end = smaller(end, static_cast<i32>(run.begin + run.tokens) + run.position);
  }

  // The row warp whose rows alone share a run; ROW_WARPS where several do.
  TILEWRIGHT_DEVICE static u32 owner(u32 rows) {
    const u32 first = rows % 4096 / 16, last = (rows / 4096 - 1) / 16;
    return first == last ? first : S::ROW_WARPS;
  }

  // Notes where a run is the first or the last one of its owner.
  TILEWRIGHT_DEVICE void find_turns(u32 index, const SharedRun &run, u32 before, u32 after) const {
    const u32 own = owner(run.rows);
    const i32 begin = static_cast<i32>(larger(run.begin, cta.item.walk_begin));
    const u32 end = static_cast<u32>(larger(smaller(run.end - run.position, static_cast<i32>(cta.item.walk_end)), begin));
    const bool is_first = index == 0 || owner(before) != own;
    const bool is_last = index + 1 == cta.item.run_count || owner(after) != own;
    if (own == S::ROW_WARPS) {
      if (is_last) cta.turns().shared_end = end;
    } else {
      if (is_first) {
        cta.turns().begin[own] = static_cast<u32>(begin);
        cta.turns().run[own] = index;
      }
      if (is_last) cta.turns().end[own] = end;
    }
  }

  // Whether an item begins with its turns, as about half of them do. What is read in turns is read once, from device memory, while most of
  // the other tokens come from the second-level cache and keep the matrix unit busy: so both go on at any time. It goes by the first
  // request, because where an item stands in a plan must change no bit.
  TILEWRIGHT_DEVICE bool turns_first() const { return cta.rows()[0].request * 0x9e3779b9u >> 31; }

  // The steps of the walk. Warps take turns unless most of the tokens behind the shared ones are one warp's: then steps would be half empty.
  TILEWRIGHT_DEVICE Steps find_steps() const {
    Steps steps{S::WINDOW ? first_step() : 0, last_step(), 0, cta.item.walk_end, 0, 0, 0, 0, 0};
    if constexpr (S::TURNS) {
      if (cta.item.run_count == 1) return steps;
      u32 most = 0, all = 0;
#pragma unroll
      for (u32 w = 0; w < S::ROW_WARPS; w++) {
        const u32 tokens = cta.turns().end[w] - cta.turns().begin[w];
        most = larger(most, tokens);
        all += tokens;
      }
      const u32 in_turns = divide_up(most, S::TURN);
      if (in_turns >= 2 * divide_up(all, S::N)) return steps;
      steps.shared_end = cta.turns().shared_end;
      const u32 for_all = divide_up(steps.shared_end - cta.item.walk_begin, S::N);
      steps.turn_count = in_turns;
      const bool begins_with_turns = turns_first();
      steps.turns = begins_with_turns ? 0 : for_all;
      steps.shared = begins_with_turns ? in_turns : 0;
      steps.last = for_all + in_turns;
      const u32 own = cta.looks_at % S::WARP_N / S::WARP_TURN;
      steps.begin = cta.turns().begin[own] + cta.looks_at / S::WARP_N * S::WARP_TURN + cta.looks_at % S::WARP_TURN;
      steps.end = cta.turns().end[own];
      steps.run = cta.turns().run[own];
    }
    return steps;
  }

  // The first step with a token that some row's window reaches.
  TILEWRIGHT_DEVICE u32 first_step() const {
    u32 first = cta.item.walk_end - cta.item.walk_begin;
    for (u32 index = 0; index < cta.item.run_count; index++) {
      const SharedRun &run = cta.runs()[index];
      const i32 token = larger(run.seen - run.position, static_cast<i32>(larger(run.begin, cta.item.walk_begin)));
      if (token + run.position < run.end) first = smaller(first, static_cast<u32>(token) - cta.item.walk_begin);
    }
    return first / S::N;
  }

  // One past the last step with a token that some row sees, as far as the last run tells: its last page may be nearly empty, and early
  // queries of a request see nothing of it. Runs before it are walked to their ends.
  TILEWRIGHT_DEVICE u32 last_step() const {
    const SharedRun &run = cta.runs()[cta.item.run_count - 1];
    const i32 end = larger(smaller(run.end - run.position, static_cast<i32>(cta.item.walk_end)), static_cast<i32>(run.begin));
    return divide_up(static_cast<u32>(larger(end - static_cast<i32>(cta.item.walk_begin), 0)), S::N);
  }
};

} // namespace tilewright
