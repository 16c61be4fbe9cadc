// Forward of one work item: attention of up to M rows over a walk along runs of pages that lie anywhere.
//
// Rows are (request, query head) pairs of one KV head, padded to M. A run is read once for all rows; those that do not share it are masked.
// Tokens of the walk come in steps of N, each gathered through the page ids into one of STAGES buffers while earlier ones are computed.
// Each warp owns 16 rows and a share of the N tokens; warps that own the same rows are merged at the end by their maxima and sums.
//
// Here is the order of it all, of the parts that the headers are about.
#pragma once
#include "assignment.cuh"
#include "attention.cuh"
#include "copying.cuh"
#include "cta.cuh"
#include "loader.cuh"
#include "pipeline.cuh"
#include "results.cuh"
#include "shape.cuh"
#include "timeline.cuh"
#include "walk.cuh"

namespace tilewright {

// Registers of a thread of the producer warpgroup and of a math warp: those of a CTA are shared out anew when its warps part (setmaxnreg).
// With few tokens of a step to each warp, math warps need fewer, and the producers use them.
template <u32 WARPS, bool LONG_STEPS_> struct RegisterSplit {
  static constexpr bool LONG_STEPS = LONG_STEPS_;
  static constexpr u32 PRODUCER = WARPS > 4 ? 56 : LONG_STEPS ? 48 : 64;
  static constexpr u32 MATH = WARPS > 4 ? 224 : LONG_STEPS ? 208 : 192;
};

template <u32 M, u32 N, u32 WARPS, u32 STAGES, u32 HEAD_DIM, class Element, class KvElement, bool WINDOW, bool SOFTCAP, bool SINKS,
          u32 LOADERS_ = 0, bool TIMELINE = false, bool MIXED = false>
struct Decode {
  static constexpr u32 LOADERS = LOADERS_, MATH_WARPS = WARPS;
  using S = Shape<M, N, WARPS, STAGES, HEAD_DIM, Element, KvElement, WINDOW, SOFTCAP, SINKS, LOADERS_, MIXED>;
  static constexpr u32 THREADS = S::THREADS;
  static constexpr u32 SHARED_BYTES = S::SHARED_BYTES;

  using Registers = RegisterSplit<WARPS, (S::WARP_N > 64)>;

  // Not members of `Decode`: references to itself would keep an object out of the registers.
  struct Parts {
    Walk<S> walk;
    Copying<S> copying;
    Attention<S> attention;
  };

  const Cta<S> cta;
  const u32 unit; // this CTA's number among all, in the order of items

  TILEWRIGHT_DEVICE Decode(const Arguments &arguments, const Assignment &assigned, u32 thread)
      : cta(arguments, assigned.item, assigned.head, thread), unit(assigned.unit(arguments)) {}

  // As a kernel of its own: one CTA an item and KV head. More CTAs than the plan has items do nothing.
  TILEWRIGHT_DEVICE static void run(const Arguments &arguments) {
    let_dependents_begin();
    const Assignment assigned = assignment(arguments);
    if (!assigned.exists) return;
    Decode(arguments, assigned, thread_index()).execute();
  }

  template <class Split = Registers> TILEWRIGHT_DEVICE void execute() const {
    if constexpr (S::TENSORS) execute_beside_loader<Split>();
    else execute_copying();
  }

  // One or two warps have the machine copy, the others multiply. Both find out by themselves what they need first: the former where the
  // tokens are, and what is seen of them; the latter whose the queries are.
  template <class Split> TILEWRIGHT_DEVICE void execute_beside_loader() const {
    const Timeline<TIMELINE> timeline(cta.args, unit);
    const Walk<S> walk{cta};
    const Pipeline<S> pipeline{cta};
    const Loader<S> loader{cta};
    const bool loads = cta.warp >= WARPS;
    const Rings<S> query_at = Rings<S>{}.template ahead<STAGES - 1>(); // in the buffers that are filled last
    typename Loader<S>::Early early{0, 0};
    if (loads) {
      const bool copies_keys = cta.warp == WARPS, copies_values = cta.warp == WARPS + (LOADERS > 1 ? 1 : 0);
      if (cta.lane == 0 && copies_keys) loader.stages.init_keys();
      if (cta.lane == 0 && copies_values) loader.stages.init_values();
      const auto first = loader.find_early();
      walk.describe();
      walk.find_lengths([&] {
        if constexpr (S::HANDS_OVER) {
          meet_warp(); // the barriers are there
          if (copies_keys) early = loader.template copy_early<true, false>(first);
          if (copies_values) early = loader.template copy_early<false, true>(first);
        }
      });
      if constexpr (LOADERS == 1) meet_warp();
      else barrier_of_some<S::DESCRIBERS>();
      walk.find_seen();
    } else {
      pipeline.attention.products.begin_query(query_at);
    }
    barrier();
    if (cta.item.run_count == 1) walk.find_seen_of_one();
    const Steps steps = cta.item.run_count > 0 ? walk.find_steps() : Steps{};
    if (loads) {
      if constexpr (S::HANDS_OVER) leave_registers<Split::PRODUCER>();
      return anew<false>(cta, [&](const Cta<S> &here) {
        const Loader<S> producer{here};
        if constexpr (LOADERS == 1) {
          producer.template run<true, true>(steps, early);
        } else {
          if (here.warp == WARPS) producer.template run<true, false>(steps, early);
          if (here.warp == WARPS + 1) producer.template run<false, true>(steps, early);
        }
      });
    }
    arrive_behind_copies(loader.stages.query_arrived());
    if constexpr (S::HANDS_OVER) take_registers<Split::MATH>();
    anew<false>(cta, [&](const Cta<S> &here) {
      const Pipeline<S> math{here};
      const Sight seen = math.attention.visibility.sight(steps);
      u32 query[S::QUERY_FRAGMENTS][4];
      math.stages.await_query();
      math.attention.products.copy_query(query, query_at);
      math.stages.free_query();
      Accumulators<S> acc = Accumulators<S>::empty();
      if (TIMELINE && steps.first < steps.last) {
        math.stages.await_keys(Rings<S>{});
        timeline.ready(true);
      }
      math.accumulate(acc, query, steps, seen);
      finish(here, acc, timeline);
    });
  }

  // Does it with what threads know of themselves: found out anew in a kernel of several tiles, where the compiler would keep it in registers
  // from the beginning to the end, and spill it. Threads without a number of registers of their own have them to spare until they write.
  template <bool MIXED_ALWAYS, class Do> TILEWRIGHT_DEVICE static void anew(const Cta<S> &before, const Do &body) {
    if constexpr (MIXED && (MIXED_ALWAYS || S::HANDS_OVER)) body(Cta<S>(before, computed_here(thread_index())));
    else body(before);
  }

  TILEWRIGHT_DEVICE void execute_copying() const {
    const Timeline<TIMELINE> timeline(cta.args, unit);
    const Parts parts{{cta}, {cta}, {cta}};
    const bool any = cta.item.run_count > 0;
    const bool early = !WINDOW && cta.item.run_count == 1; // the first steps' pages are known before anything else is
    Ahead<S> begin[STAGES] = {}; // of the first steps
    if (early) {
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) parts.copying.fetch_first_pages(begin[s], s);
    }
    parts.walk.describe();
    parts.walk.find_lengths([] {});
    barrier();
    if (cta.item.run_count > 1) {
      parts.walk.find_seen();
      barrier();
    } else if (any) {
      parts.walk.find_seen_of_one();
    }
    const Steps steps = any ? parts.walk.find_steps() : Steps{};
    const u32 first = steps.first;
    Rings<S> at; // of what is computed
    const Rings<S> query_at = at.template ahead<STAGES - 1>(); // in the buffer that is filled last
    parts.copying.load_query(query_at);
    if (any) {
      begin[0].cursor = parts.copying.finding.at_run(0);
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) {
        if (s > 0) begin[s].cursor = begin[s - 1].cursor;
        if (early) parts.copying.find_tokens(begin[s], steps, first + s, Rings<S>{0, s}, [](u32, u32) {});
        else parts.copying.fetch_pages(begin[s], steps, first + s, Rings<S>{0, s});
      }
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) parts.copying.store_offsets(begin[s], Rings<S>{0, s});
    }
    Ahead<S> ahead = begin[STAGES - 1];
    const auto column = parts.copying.column();
    barrier();
#pragma unroll
    for (u32 s = 0; s + 1 < STAGES; s++) {
      if (first + s < steps.last) parts.copying.load_step(column, Rings<S>{s, s});
      copy_async_commit(); // the query travels in the first group
    }
    if constexpr (STAGES == 1) copy_async_commit();
    if (first + STAGES < steps.last) parts.copying.fetch_pages(ahead, steps, first + STAGES, at.template ahead<STAGES>());
    if constexpr (S::QUERY_IN_REGISTERS) copy_async_wait<STAGES == 1 ? 0 : STAGES - 2>();
    const Sight seen = parts.attention.visibility.sight(steps);
    Accumulators<S> acc = Accumulators<S>::empty();
    u32 query[S::QUERY_FRAGMENTS][4];
    if constexpr (S::QUERY_IN_REGISTERS) {
      barrier(); // the query has arrived
      parts.attention.products.copy_query(query, query_at);
    }
#pragma unroll 1
    for (u32 step = first; step < steps.last; step++) {
      parts.copying.next_step(ahead, steps, step, column, at);
      timeline.ready(step == first);
      const auto meanwhile = [&] {
        if constexpr (STAGES > 1) parts.copying.copy_ahead(ahead, steps, step, column, at);
      };
      parts.attention.compute(acc, query, steps, step, at, seen, CommonBuffers<decltype(meanwhile)>{meanwhile});
      at = at.template ahead<1>();
    }
    copy_async_wait<0>();
    finish(cta, acc, timeline);
  }

  // Writes what was accumulated.
  TILEWRIGHT_DEVICE void finish(const Cta<S> &before, Accumulators<S> &acc, const Timeline<TIMELINE> &timeline) const {
    timeline.computed();
    anew<true>(before, [&](const Cta<S> &here) {
      const Results<S> results{here};
      results.write(acc);
      if (here.args.arrivals) results.merge_arrived();
    });
    timeline.leave();
  }
};

} // namespace tilewright
