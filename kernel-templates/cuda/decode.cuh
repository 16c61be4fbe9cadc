// Forward of one work item: attention of up to M rows over a walk along runs of pages that lie anywhere.
//
// Rows are (request, query head) pairs of one KV head, padded to M. A run is read once for all rows; those that do not share it are masked.
// Tokens of the walk come in steps of N, each gathered through the page ids into one of STAGES buffers while earlier ones are computed.
// Each warp owns 16 rows and a share of the N tokens; warps that own the same rows are merged at the end by their maxima and sums.
//
// Here is the order of it all, of the parts that the headers are about.
#pragma once
#include "attention.cuh"
#include "copying.cuh"
#include "cta.cuh"
#include "results.cuh"
#include "shape.cuh"
#include "timeline.cuh"
#include "walk.cuh"

namespace tilewright {

template <u32 M, u32 N, u32 WARPS, u32 STAGES, u32 HEAD_DIM, class Element, class KvElement, bool WINDOW, bool SOFTCAP, bool SINKS,
          u32 LOADERS = 0, bool TIMELINE = false>
struct Decode {
  using S = Shape<M, N, WARPS, STAGES, HEAD_DIM, Element, KvElement, WINDOW, SOFTCAP, SINKS, LOADERS, TIMELINE>;
  static constexpr u32 THREADS = S::THREADS;
  static constexpr u32 SHARED_BYTES = S::SHARED_BYTES;

  // Registers of a thread that multiplies and of one that copies: those of a CTA are shared out anew when its warps part.
  static constexpr u32 LOADER_REGISTERS = 56;
  static constexpr u32 MATH_REGISTERS = WARPS == 4 ? 200 : 224;

  // Not members of `Decode`: references to itself would keep an object out of the registers.
  struct Parts {
    Walk<S> walk;
    Copying<S> copying;
    Attention<S> attention;
    Results<S> results;
  };

  const Cta<S> cta;

  TILEWRIGHT_DEVICE Decode(const Arguments &arguments, const WorkItem &work_item, u32 head) : cta(arguments, work_item, head) {}

  // As a kernel of its own: one CTA an item and KV head, those of an item side by side. More CTAs than the plan has items do nothing.
  TILEWRIGHT_DEVICE static void run(const Arguments &arguments) {
    let_dependents_begin();
    const u32 index = block_index() / arguments.kv_heads;
    const WorkItem item = arguments.items[index];
    if (index >= arguments.counts[1 + arguments.group]) return;
    Decode(arguments, item, block_index() % arguments.kv_heads).execute();
  }

  TILEWRIGHT_DEVICE void execute() const {
    Timeline<TIMELINE> timeline;
    const Parts parts{{cta}, {cta}, {cta}, {cta}};
    const bool any = cta.item.run_count > 0;
    const bool early = !WINDOW && cta.item.run_count == 1; // the first steps' pages are known before anything else is
    i32 first_ids[STAGES][S::TOKENS_A_THREAD] = {};
    Ahead<S> ahead = {};
    if (early) {
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) parts.copying.fetch_first_pages(first_ids[s], s);
      parts.copying.fetch_first_pages(ahead.ids, STAGES);
    }
    parts.walk.describe_runs();
    parts.walk.describe_rows();
    barrier();
    if (any) parts.walk.find_seen();
    const Steps steps = any ? parts.walk.find_steps() : Steps{};
    const u32 first = steps.first;
    if constexpr (LOADERS > 0) {
      if (cta.warp < WARPS) {
        take_registers<MATH_REGISTERS>();
        barrier(); // as the loaders do, for each other's offsets
        return finish(parts, steps, timeline, [&](auto &acc, auto &query, const Sight &seen) {
          parts.attention.products.read_query(query, first);
          for (u32 step = first; step < steps.last; step++) {
            parts.copying.await_step();
            timeline.ready();
            parts.attention.compute(acc, query, steps, step, seen, [] {});
          }
        });
      }
      leave_registers<LOADER_REGISTERS>();
    }
    parts.copying.load_query(first);
    if (any) {
      ahead.fetched = ahead.stored = Cursor{0, parts.copying.next_run(0)};
      if (!early) {
#pragma unroll
        for (u32 s = 0; s < STAGES; s++) parts.copying.fetch_pages(first_ids[s], steps, first + s, ahead.fetched);
        parts.copying.fetch_pages(ahead.ids, steps, first + STAGES, ahead.fetched);
      }
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) parts.copying.store_offsets(first_ids[s], steps, first + s, ahead.stored);
    }
    barrier();
#pragma unroll
    for (u32 s = 0; s + 1 < STAGES; s++) {
      if (first + s < steps.last) parts.copying.load_step(first + s);
      copy_async_commit(); // the query travels in the first group
    }
    if constexpr (STAGES == 1) copy_async_commit();
    if constexpr (S::QUERY_IN_REGISTERS) copy_async_wait<STAGES == 1 ? 0 : STAGES - 2>();
    if constexpr (LOADERS > 0) {
      if constexpr (S::QUERY_IN_REGISTERS) barrier(); // in `read_query`
#pragma unroll 1
      for (u32 step = first; step < steps.last; step++) {
        parts.copying.next_step(ahead, steps, step);
        if constexpr (STAGES > 1) parts.copying.copy_ahead(ahead, steps, step);
      }
      copy_async_wait<0>();
    } else {
      finish(parts, steps, timeline, [&](auto &acc, auto &query, const Sight &seen) {
        parts.attention.products.read_query(query, first);
#pragma unroll 1
        for (u32 step = first; step < steps.last; step++) {
          parts.copying.next_step(ahead, steps, step);
          timeline.ready();
          parts.attention.compute(acc, query, steps, step, seen, [&] {
            if constexpr (STAGES > 1) parts.copying.copy_ahead(ahead, steps, step);
          });
        }
        copy_async_wait<0>();
      });
    }
  }

  // Accumulates as `accumulate` does, and writes what comes of it. Threads that copy only have ended by then, or will.
  template <class Accumulate>
  TILEWRIGHT_DEVICE void finish(const Parts &parts, const Steps &steps, Timeline<TIMELINE> &timeline, const Accumulate &accumulate) const {
    const Sight seen = parts.attention.visibility.sight(steps);
    Accumulators<S> acc = {};
    acc.softmax[0].max = acc.softmax[1].max = negative_infinity();
    u32 query[S::QUERY_FRAGMENTS][4];
    accumulate(acc, query, seen);
    timeline.computed();
    parts.results.write(acc);
    if (cta.args.arrivals) parts.results.merge_arrived();
    timeline.leave(cta.args, block_index());
  }
};

} // namespace tilewright
