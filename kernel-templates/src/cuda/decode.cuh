// Forward of one work item: attention of up to M rows over KV segments in pages that lie anywhere.
//
// Rows are (request, query head) pairs of one KV head, padded to M. A segment is read once for all rows; those that do not share it are masked.
// Tokens of the KV range come in steps of N, each gathered through the page ids into one of STAGES buffers while earlier ones are computed.
// Each warp owns 16 rows and a share of the N tokens; warps that own the same rows are merged at the end by their maxima and sums.
//
// This header orders the parts that the other headers hold.
#pragma once
#include "tile_scheduler.cuh"
#include "softmax_step.cuh"
#include "producer_cp_async.cuh"
#include "cta.cuh"
#include "producer_tma.cuh"
#include "mainloop.cuh"
#include "epilogue.cuh"
#include "kernel_traits.cuh"
#include "timeline.cuh"
#include "widener.cuh"
#include "kv_range.cuh"
#include "transposed.cuh"

namespace tilewright {

// Registers of a thread of the producer warpgroup and of a consumer warp: a CTA reallocates its registers (setmaxnreg) when producers and consumers part.
// With few tokens of a step to each warp, consumer warps need fewer, and the producers use them.
// Long rows of sums take as many as long steps.
template <u32 WARPS, bool LONG_STEPS_> struct RegisterSplit {
  static constexpr bool LONG_STEPS = LONG_STEPS_;
  static constexpr u32 PRODUCER = WARPS > 4 ? 56 : LONG_STEPS ? 48 : 64;
  static constexpr u32 CONSUMER = WARPS > 4 ? 224 : LONG_STEPS ? 208 : 192;
};

template <u32 M, u32 N, u32 WARPS, u32 STAGES, u32 HEAD_DIM, class Element, class KvElement, class Options, u32 PRODUCERS_, bool MIXED = false>
struct Decode {
  static constexpr u32 PRODUCERS = PRODUCERS_, CONSUMER_WARPS = WARPS;
  using S = KernelTraits<M, N, WARPS, STAGES, HEAD_DIM, Element, KvElement, Options, PRODUCERS_, MIXED>;
  static constexpr u32 THREADS = S::THREADS;
  static constexpr u32 SHARED_BYTES = S::SHARED_BYTES;

  using Registers = RegisterSplit<WARPS, (S::WARP_N > 64 || HEAD_DIM > 128)>;

  // Not members of `Decode`: references to itself would keep an object out of the registers.
  struct Parts {
    KvRange<S> kv_range;
    ProducerCpAsync<S> producer;
    SoftmaxStep<S> softmax_step;
  };

  // Whether the compiler is told that code which depends on a warp's role does not diverge. With one consumer warp it then takes so many registers less
  // that the mainloop is slower (`docs/tried.md`).
  static constexpr bool UNIFORM_ROLES = WARPS > 1;

  const Cta<S> cta;
  const u32 unit; // this CTA's number among all, in the order of items

  TILEWRIGHT_DEVICE Decode(const Arguments &arguments, const ScheduledTile &scheduled, u32 thread)
      : cta(arguments, scheduled.item, scheduled.head, thread), unit(scheduled.unit(arguments)) {}

  // As a kernel of its own: one CTA an item and KV head. More CTAs than the plan has items do nothing.
  TILEWRIGHT_DEVICE static void run(const Arguments &arguments) {
    launch_dependents();
    const ScheduledTile scheduled = schedule(arguments);
    if (!scheduled.exists) return;
    Decode(arguments, scheduled, thread_index()).execute();
  }

  template <class Split = Registers> TILEWRIGHT_DEVICE void execute() const {
    if constexpr (S::TMA) execute_with_producers<Split>();
    else execute_cp_async();
  }

  // One or two producer warps issue TMA loads, consumer warps multiply. Each finds what it needs first by itself: those that copy where the first
  // tokens are, consumers whose queries they have. What rows see of the tokens is found by warps that have less to do: those of a producer warpgroup
  // that do not copy, or consumers.
  template <class Split> TILEWRIGHT_DEVICE void execute_with_producers() const {
    const Timeline<S::TIMELINE> timeline(cta.args, unit);
    const KvRange<S> kv_range{cta};
    const Mainloop<S> mainloop{cta};
    const ProducerTma<S> producer{cta};
    const u32 role = UNIFORM_ROLES ? same_in_warp(cta.warp) : cta.warp;
    const bool produces = role >= WARPS;
    const PipelineState<S> query_at = PipelineState<S>{}.template ahead<STAGES - 1>(); // in the buffers that are filled last
    typename ProducerTma<S>::Early early{0, 0};
    if (produces) {
      const bool copies_keys = role == WARPS, copies_values = role == WARPS + (PRODUCERS > 1 ? 1 : 0);
      typename ProducerTma<S>::GranuleLoad first{};
      const u32 certain = kv_range.certain_steps();
      if (copies_keys || copies_values) first = producer.find_early(certain);
      if (cta.lane == 0 && copies_keys) producer.pipeline.init_keys();
      if (cta.lane == 0 && copies_values) producer.pipeline.init_values();
      if constexpr (S::SETMAXNREG) kv_range.describe();
      const auto copy_early = [&] {
        sync_warp(); // the barriers are there
        if (copies_keys || copies_values) early = producer.copy_early({copies_keys, copies_values}, first, certain);
      };
      if constexpr (S::SETMAXNREG) kv_range.find_lengths(copy_early);
      else copy_early();
    } else {
      mainloop.softmax_step.mma.query_loader.begin(query_at);
      if constexpr (!S::SETMAXNREG) {
        kv_range.describe();
        kv_range.find_lengths([] {});
      }
    }
    // Lengths of rows are there for the other warps that describe the item. The others have nothing to do until all is found, so the whole CTA meets.
    const bool describes = produces == S::SETMAXNREG;
    if constexpr (S::DESCRIBERS > 32) barrier();
    else if (describes) sync_warp();
    if (describes) kv_range.find_seen();
    barrier();
    const Steps steps = cta.item.segment_count > 0 ? kv_range.find_steps() : Steps{};
    if (produces) {
      if constexpr (S::SETMAXNREG && !S::ALONE_ON_SM) setmaxnreg_dec<Split::PRODUCER>();
      return anew<false>(cta, [&](const Cta<S> &here) {
        const ProducerTma<S> producer{here};
        if (PRODUCERS == 1 || role < WARPS + 2) producer.run({PRODUCERS == 1 || role == WARPS, PRODUCERS == 1 || role != WARPS}, steps, early);
        if constexpr (S::WIDENED) {
          const Widener<S> widener{here};
          if constexpr (S::KEYS_IN_FP8) {
            if (role >= WARPS + 2) widener.template run<true>(steps, role - WARPS - 2);
          } else {
            if (role == WARPS + 2) widener.template run<false>(steps, 0);
            if (role == WARPS + 3) widener.template run<true>(steps, 0);
          }
        }
      });
    }
    if constexpr (S::QUERY_SHARED) {
      mainloop.softmax_step.mma.query_loader.end(query_at);
      arrive(producer.pipeline.query_full());
    } else {
      arrive_after_cp_async(producer.pipeline.query_full());
    }
    if constexpr (S::SETMAXNREG && !S::ALONE_ON_SM) setmaxnreg_inc<Split::CONSUMER>();
    if constexpr (S::TRANSPOSED) return anew<false>(cta, [&](const Cta<S> &here) { consume_transposed(here, steps, timeline); });
    else anew<false>(cta, [&](const Cta<S> &here) {
      const Mainloop<S> consumer{here};
      const MaskState seen = consumer.softmax_step.masking.mask_state(steps);
      Query<S> query;
      consumer.pipeline.wait_query_full();
      const u32 query_read = consumer.softmax_step.mma.query_loader.copy(query, query_at);
      if constexpr (S::QUERY_IN_BUFFER) consumer.pipeline.release_query(query_read);
      Accumulators<S> acc = Accumulators<S>::empty();
      if (S::TIMELINE && steps.first < steps.last) {
        if (S::PRIVATE_PHASE && steps.in_private_phase(steps.first)) consumer.pipeline.template wait_keys_full<false>(PipelineState<S>{});
        else consumer.pipeline.template wait_keys_full<true>(PipelineState<S>{});
        timeline.ready(true);
      }
      consumer.accumulate(acc, query, steps, seen);
      finish(here, acc, timeline);
    });
  }

  TILEWRIGHT_DEVICE void consume_transposed(const Cta<S> &here, const Steps &steps, const Timeline<S::TIMELINE> &timeline) const {
    const TransposedMainloop<S> consumer{here};
    consumer.pipeline.wait_query_full();
    TransposedAccumulators<S> acc = {};
    if (S::TIMELINE && steps.first < steps.last) {
      consumer.pipeline.template wait_keys_full<false>(PipelineState<S>{});
      timeline.ready(true);
    }
    consumer.accumulate(acc, steps);
    finish(here, acc, timeline);
  }

  // Does it with what threads know of themselves: found out anew in a kernel of several tiles, where the compiler would keep it in registers
  // from the beginning to the end, and spill it. Threads without a number of registers of their own have them to spare until they write.
  template <bool MIXED_ALWAYS, class Do> TILEWRIGHT_DEVICE static void anew(const Cta<S> &before, const Do &body) {
    if constexpr (MIXED && (MIXED_ALWAYS || S::SETMAXNREG)) body(Cta<S>(before, computed_here(thread_index())));
    else body(before);
  }

  TILEWRIGHT_DEVICE void execute_cp_async() const {
    const Timeline<S::TIMELINE> timeline(cta.args, unit);
    const Parts parts{{cta}, {cta}, {cta}};
    const bool any = cta.item.segment_count > 0;
    const bool early = !S::HIDES_FIRST && cta.item.segment_count == 1; // the first steps' pages are known before anything else is
    Ahead<S> begin[STAGES] = {}; // of the first steps
    if (early) {
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) parts.producer.fetch_first_pages(begin[s], s);
    }
    parts.kv_range.describe();
    parts.kv_range.find_lengths([] {});
    barrier();
    if (any) {
      parts.kv_range.find_seen();
      barrier();
    }
    const Steps steps = any ? parts.kv_range.find_steps() : Steps{};
    const u32 first = steps.first;
    PipelineState<S> at; // of what is computed
    const PipelineState<S> query_at = at.template ahead<STAGES - 1>(); // in the buffer that is filled last
    parts.producer.load_query(query_at);
    if (any) {
      begin[0].cursor = parts.producer.paged_kv.at_segment(0);
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) {
        if (s > 0) begin[s].cursor = begin[s - 1].cursor;
        if (early) parts.producer.find_tokens(begin[s], steps, first + s, PipelineState<S>{0, s}, [](u32, u32) {});
        else parts.producer.fetch_pages(begin[s], steps, first + s, PipelineState<S>{0, s});
      }
#pragma unroll
      for (u32 s = 0; s < STAGES; s++) parts.producer.store_offsets(begin[s], PipelineState<S>{0, s});
    }
    Ahead<S> ahead = begin[STAGES - 1];
    const auto column = parts.producer.column();
    barrier();
#pragma unroll
    for (u32 s = 0; s + 1 < STAGES; s++) {
      if (first + s < steps.last) parts.producer.load_step(column, PipelineState<S>{s, s});
      cp_async_commit(); // the query travels in the first group
    }
    if constexpr (STAGES == 1) cp_async_commit();
    if (first + STAGES < steps.last) parts.producer.fetch_pages(ahead, steps, first + STAGES, at.template ahead<STAGES>());
    if constexpr (S::QUERY_IN_REGISTERS) cp_async_wait<STAGES == 1 ? 0 : STAGES - 2>();
    const MaskState seen = parts.softmax_step.masking.mask_state(steps);
    Accumulators<S> acc = Accumulators<S>::empty();
    Query<S> query;
    if constexpr (S::QUERY_IN_REGISTERS) {
      barrier(); // the query has arrived
      parts.softmax_step.mma.query_loader.copy(query, query_at);
    }
#pragma unroll 1
    for (u32 step = first; step < steps.last; step++) {
      parts.producer.next_step(ahead, steps, step, column, at);
      timeline.ready(step == first);
      const auto meanwhile = [&] {
        if constexpr (STAGES > 1) parts.producer.copy_ahead(ahead, steps, step, column, at);
      };
      parts.softmax_step.compute(acc, query, steps, step, at, seen, SharedBuffers<decltype(meanwhile)>{meanwhile});
      if constexpr (S::INVARIANT) {
        const Totals<S> totals{cta};
        if (step + 1 < steps.last && totals.ends_chunk(at)) totals.leave_chunk(acc, totals.last_granule(at), value_scale(cta));
      }
      at = at.template ahead<1>();
    }
    cp_async_wait<0>();
    if constexpr (S::INVARIANT) Totals<S>{cta}.leave_chunks(acc, value_scale(cta));
    finish(cta, acc, timeline);
  }

  // Writes what was accumulated.
  template <class Accumulated> TILEWRIGHT_DEVICE void finish(const Cta<S> &before, Accumulated &acc, const Timeline<S::TIMELINE> &timeline) const {
    timeline.computed();
    anew<true>(before, [&](const Cta<S> &here) {
      const Epilogue<S> epilogue{here};
      epilogue.write(acc);
      if constexpr (S::MERGES_LAST) {
        if (here.args.arrivals) epilogue.merge_arrived();
      }
    });
    timeline.leave();
  }
};

} // namespace tilewright
