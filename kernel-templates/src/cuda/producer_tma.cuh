// TMA producer warps: each lane looks up a granule of one of the next steps, and copies it from its page when the buffer is empty.
// One warp copies K and V, or one warp each.
#pragma once
#include "paged_kv.cuh"
#include "pipeline.cuh"

namespace tilewright {

template <class S> struct ProducerTma {
  const Cta<S> &cta;
  const PagedKv<S> paged_kv{cta};
  const Pipeline<S> pipeline{cta};

  // A granule of a step.
  struct GranuleLoad {
    u32 page;   // and whether it is `EVICT_FIRST`
    u32 within; // its first token in the page
    u32 before; // tokens of it before the first one that some row sees
    Granule granule;
  };

  TILEWRIGHT_DEVICE u32 page(u32 at, u32 evict_first) const { return static_cast<u32>(cta.args.page_ids[at]) | evict_first; }

  TILEWRIGHT_DEVICE GranuleLoad find(Cursor &cursor, const Steps &steps, u32 step) const {
    if (cta.lane >= S::GRANULES * S::STEPS_AT_ONCE || step >= steps.last) return GranuleLoad{};
    const TokenLocation place = paged_kv.find(cursor, steps, step, 0);
    const Granule granule = place.template granule<S>(cta);
    const u32 before = S::HIDES_FIRST ? static_cast<u32>(larger(place.seen - place.position, 0)) : 0;
    return GranuleLoad{page(place.page, place.evict_first), place.within, before, granule};
  }

  // Some tokens of a panel, or of all panels; those that no row sees become zeros, as their memory may hold anything, NaN too.
  TILEWRIGHT_DEVICE void copy(const TensorMap &map, u32 base, const GranuleLoad &piece, u32 token, u32 panel, bool seen, u32 policy, u32 barrier) const {
    const u32 target = base + cta.row_at(cta.looks_at + token) + panel * S::PANEL_BYTES;
    const i32 page = seen ? static_cast<i32>(piece.page % EVICT_FIRST * cta.args.heads_a_page + cta.kv_head) : -1;
    tma_load(target, map, token % 8, panel, (piece.within + token) / 8, page, policy, barrier);
  }

  TILEWRIGHT_DEVICE static u32 policy(const GranuleLoad &piece) { return cache_policy(piece.page >= EVICT_FIRST); }

  // All tokens of a granule, of K or of V.
  TILEWRIGHT_DEVICE void copy_whole(bool keys, const PipelineState<S> &at, const GranuleLoad &piece, bool seen) const {
    const TensorMap &map = keys ? cta.args.key_maps : cta.args.value_maps[WHOLE_VALUES];
    copy(map, keys ? cta.keys_at(at) : cta.values_at(at), piece, 0, 0, seen, policy(piece), pipeline.full(keys, at));
  }

  // Two tokens of a panel whose rows share 128 bytes, of which rows see one or none: a box must begin where such a pair does. In its tensor
  // each token stands alone, with zeros before and behind.
  TILEWRIGHT_DEVICE void copy_pair(u32 base, const GranuleLoad &piece, u32 token, u32 panel, bool first, bool second, u32 barrier) const {
    const u32 target = base + cta.row_at(cta.looks_at + token) + panel * S::PANEL_BYTES;
    const i32 page = first || second ? static_cast<i32>(piece.page % EVICT_FIRST * cta.args.heads_a_page + cta.kv_head) : -1;
    const u32 one = second ? 1 : 0;
    tma_load(target, cta.args.value_maps[0], 0 - one, panel, piece.within + token + one, page, cache_policy(false), barrier);
  }

  // Eight tokens of all panels, of which rows see those before `to`: some, not all. In the map's tensor eight tokens that begin anywhere in the page, or
  // up to eight before it, are a dimension of their own: the box begins so near to its end that the others lie outside. A box without any of the tensor
  // would have its first address read all the same, which may be no memory; one that begins before the dimension does reads such memory, too.
  TILEWRIGHT_DEVICE void copy_clipped(u32 base, const GranuleLoad &piece, u32 token, u32 to, u32 barrier) const {
    const u32 from = 8 - to, target = base + cta.row_at(cta.looks_at + token);
    const i32 page = static_cast<i32>(piece.page % EVICT_FIRST * cta.args.heads_a_page + cta.kv_head);
    tma_load(target, cta.args.value_maps[CLIPPED_VALUES], from, 0, piece.within + token + to, page, cache_policy(false), barrier);
  }

  // A granule of which rows see some tokens, or all or none. Of V those that none sees become zeros.
  TILEWRIGHT_DEVICE void copy_granule(bool keys, const PipelineState<S> &at, const GranuleLoad &piece) const {
    const u32 tokens = piece.granule.tokens();
    const u32 to = tokens > 0 ? tokens : S::GRANULE, from = tokens == 0 ? S::GRANULE : S::HIDES_FIRST ? piece.before : 0;
    if (keys || (to == S::GRANULE && (from == 0 || from == S::GRANULE))) return copy_whole(keys, at, piece, tokens > 0);
    const u32 base = cta.values_at(at), barrier = pipeline.full(false, at);
#pragma unroll 1
    for (u32 token = 0; token < S::GRANULE; token += 8) {
      const u32 first = S::HIDES_FIRST && from > token ? smaller(from - token, 8u) : 0, last = to > token ? smaller(to - token, 8u) : 0;
      const bool some = first < last;
      if (!some || last - first == 8) copy(cta.args.value_maps[EIGHT_VALUES], base, piece, token, 0, some, cache_policy(false), barrier);
      else if (S::HIDES_FIRST && first > 0) copy_by_boxes(base, piece, token, token + first, token + last, barrier);
      else copy_clipped(base, piece, token, last, barrier);
    }
  }

  // Eight tokens of which rows do not see the first, by the largest boxes whose tokens are seen, all or none.
  TILEWRIGHT_DEVICE void copy_by_boxes(u32 base, const GranuleLoad &piece, u32 begin, u32 from, u32 to, u32 barrier) const {
    const u32 end = begin + 8;
#pragma unroll 1
    for (u32 token = begin; token < end;) {
      const u32 next = token < from ? from : token < to ? to : end;
      const bool seen = token >= from && token < to;
      u32 box = 2;
      while (token % (1u << box) != 0 || token + (1u << box) > next) box--;
      if constexpr (S::PANEL_ROW_BYTES < 128) {
        if (box == 0) {
#pragma unroll 1
          for (u32 panel = 0; panel < S::PANELS; panel++) copy_pair(base, piece, token, panel, seen, token + 1 >= from && token + 1 < to, barrier);
          token += 2;
          continue;
        }
      }
#pragma unroll 1
      for (u32 panel = 0; panel < S::PANELS; panel++) {
        copy(cta.args.value_maps[box], base, piece, token, panel, seen, cache_policy(false), barrier);
      }
      token += 1u << box;
    }
  }

  // Steps whose copies begin before lengths are known: as many as have all their tokens for certain, and buffers.
  struct Early {
    u32 keys, values; // steps whose K is on its way, and whose V
  };

  // Asks for a granule of them.
  TILEWRIGHT_DEVICE GranuleLoad find_early(u32 certain) const {
    if (cta.lane / S::GRANULES >= certain) return GranuleLoad{};
    const u32 within = cta.item.kv_begin + cta.lane * S::GRANULE - cta.item.first.begin, number = cta.page_size.quotient(within);
    const Granule whole{0, S::GRANULE << 24};
    const u32 pages = cta.item.first.pages;
    return GranuleLoad{page(pages % EVICT_FIRST + number, pages & EVICT_FIRST), within - number * cta.page_size.by, 0, whole};
  }

  // What a producer warp copies: K and V, or one of them. One piece of code serves the two warps of a warpgroup that copy, as code has to be fetched, too.
  struct Task {
    bool keys, values;
    // Whether the next of what it does for a step is about K.
    template <class Do> TILEWRIGHT_DEVICE void for_each(const Do &body) const {
      if constexpr (S::PRODUCERS == 1) body(true), body(false);
      else body(keys);
    }
  };

  // What rows see of them is noted later.
  TILEWRIGHT_DEVICE Early copy_early(const Task &task, const GranuleLoad &piece, u32 certain) const {
    if (certain == 0) return Early{0, 0};
    const Early early{task.keys ? smaller(certain, S::EARLY_KEYS) : 0, task.values ? smaller(certain, S::EARLY_VALUES) : 0};
    PipelineState<S> at;
#pragma unroll 1
    for (u32 i = 0; i < larger(early.keys, early.values); i++) {
      const bool looks = cta.lane / S::GRANULES == i;
      task.for_each([&](bool keys) {
        if (i >= (keys ? early.keys : early.values)) return;
        if (cta.lane == 0) {
          // Lanes arrive for K when they note what rows see.
          if (keys) expect(pipeline.full(true, at), S::STAGE_BYTES);
          else arrive_expect_tx(pipeline.full(false, at), S::STAGE_BYTES);
        }
        if (looks) copy_whole(keys, at, piece, true);
      });
      at = at.template ahead<1>();
    }
    return early;
  }

  TILEWRIGHT_DEVICE void run(const Task &task, const Steps &steps, const Early &early) const {
    Cursor cursor = paged_kv.at_segment(0);
    const u32 of_step = cta.lane / S::GRANULES; // of as many as are looked up at once
    GranuleLoad next = find(cursor, steps, steps.first + of_step);
    PipelineState<S> at;
#pragma unroll 1
    for (u32 begin = steps.first; begin < steps.last; begin += S::STEPS_AT_ONCE) {
      const GranuleLoad piece = next;
      const u32 count = smaller(S::STEPS_AT_ONCE, steps.last - begin);
#pragma unroll 1
      for (u32 i = 0; i < count; i++) {
        copy_step(task, at, begin + i - steps.first, piece, of_step == i, early);
        at = at.template ahead<1>();
        // Once the buffers have something to wait for, and long before it is needed.
        if (i == smaller(S::STAGES, S::STEPS_AT_ONCE) - 1) next = find(cursor, steps, begin + S::STEPS_AT_ONCE + of_step);
      }
    }
    await_unneeded(task, steps, early);
  }

  // A step, by its number from the first one.
  TILEWRIGHT_DEVICE void copy_step(const Task &task, const PipelineState<S> &at, u32 number, const GranuleLoad &piece, bool looks, const Early &early) const {
    const bool behind_query = S::QUERY_IN_BUFFER && number == S::STAGES - 1;
    task.for_each([&](bool keys) {
      const bool copied = number < (keys ? early.keys : early.values);
      if (!keys && copied) return;
      if (behind_query && !(keys && S::QUERY_IN_VALUES)) pipeline.wait_query_empty();
      pipeline.wait_empty(keys, at);
      const u32 full = pipeline.full(keys, at);
      if (keys && looks) {
        // Each lane that writes a granule arrives itself, which releases what it wrote.
        cta.granules(at)[cta.lane % S::GRANULES] = piece.granule;
        if (!copied && cta.lane % S::GRANULES == 0) expect(full, S::STAGE_BYTES);
        arrive(full);
      }
      if (!keys && cta.lane == 0) arrive_expect_tx(full, S::STAGE_BYTES);
      if (looks && !copied) copy_granule(keys, at, piece);
    });
  }

  // Lengths may be shorter than the plan allows. What was begun for certain arrives even then before the CTA ends: its memory is another's next.
  TILEWRIGHT_DEVICE void await_unneeded(const Task &task, const Steps &steps, const Early &early) const {
    task.for_each([&](bool keys) {
      for (u32 step = steps.last; step < (keys ? early.keys : early.values); step++) {
        const u32 full = pipeline.full(keys, PipelineState<S>{step});
        if (keys && cta.lane < S::GRANULES) arrive(full);
        wait_mbarrier(full, 0);
      }
    });
  }
};

} // namespace tilewright
