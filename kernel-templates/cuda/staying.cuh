// Forward by CTAs that stay for one item after the other: a warpgroup that only copies goes on to the next one while the others compute and
// write.
//
// What a CTA copies comes in elements, counted on from item to item: the query of an item, then the steps of its walk, each into one of STAGES
// buffers. All threads meet at a barrier before each of them; then the ones that compute have it, and the others copy the element that is
// STAGES - 1 ahead. What the next item is takes several loads, each from where the one before says: they are done in phases, one an
// element, so that each has the time of an element to arrive.
#pragma once
#include "attention.cuh"
#include "copying.cuh"
#include "results.cuh"
#include "timeline.cuh"
#include "walk.cuh"

namespace tilewright {

// An item in shared memory.
struct Task {
  WorkItem item;
  u32 unit;     // item x KV heads + KV head; there is none from `units` on
  u32 kv_head;
  u32 elements; // the query, its steps, and some without anything, as there are at least LEAST_ELEMENTS
  u32 unused;
  Steps steps; // of no thread's own
};

template <class S, bool TIMELINE> struct Staying {
  static_assert(sizeof(Task) == S::TASK_BYTES, "the layout of shared memory has this much");

  // Registers of a thread that computes and of one that copies: those of a CTA are shared out anew when its warps part.
  static constexpr u32 COPYING_REGISTERS = S::TURNS ? 80 : 56;
  static constexpr u32 COMPUTING_REGISTERS = S::WARPS == 4 ? 256 - COPYING_REGISTERS : (504 - COPYING_REGISTERS) / 16 * 8;

  // Pages are looked up this many elements before these are computed.
  static constexpr u32 AHEAD = S::STAGES + 1;
  // Nobody leaves an item for the one after the next: two are known at once. It is left by looking up the pages of its last element.
  static constexpr u32 LEAST_ELEMENTS = AHEAD + 1;

  // What an element is.
  enum Kind : u32 { NOTHING, QUERY, TOKENS };

  // Where the pages of elements are looked up, and what a thread that copies knows of the item there.
  struct Place {
    u32 set;
    u32 element;  // of that item,
    u32 elements; // and how many it has: none behind the last item
    WorkItem item;
    Steps steps;
    Rings<S> at;

    TILEWRIGHT_DEVICE bool exists() const { return elements > 0; }
  };

  // What is being found out of the next item.
  enum Phase : u32 { CLAIM, NAME, FETCH, DESCRIBE, ARRANGE, DONE };
  struct Next {
    u32 phase = CLAIM;
    u32 claimed = 0; // of the first thread that copies
  };

  const Arguments &args;
  const Divisor page_size{args.page_size};
  const u32 units = args.counts[1 + args.group] * args.kv_heads;

  // As a kernel of its own: as many CTAs as the device holds, or as there are items and KV heads.
  TILEWRIGHT_DEVICE static void run(const Arguments &arguments) {
    let_dependents_begin();
    const Staying staying{arguments};
    if (thread_index() == S::WARPS * 32) staying.prefetch_item(block_index()); // while it is found out whether there is one
    if (block_index() >= staying.units) return;
    if (thread_index() < S::WARPS * 32) {
      take_registers<COMPUTING_REGISTERS>();
      staying.compute_all();
    } else {
      leave_registers<COPYING_REGISTERS>();
      staying.copy_all();
    }
  }

  TILEWRIGHT_DEVICE static Task &task(u32 set) { return reinterpret_cast<Task *>(shared_memory() + S::TASKS_AT)[set]; }
  TILEWRIGHT_DEVICE Cta<S> cta_of(u32 set) const { return Cta<S>(args, task(set).item, task(set).kv_head, page_size, set); }
  TILEWRIGHT_DEVICE static u32 copier() { return thread_index() % S::COPIERS; }

  // ---- of the threads that copy

  // An item that no other CTA has, or none. The last of all CTAs that ask leaves the counter as it was.
  TILEWRIGHT_DEVICE u32 claim() const {
    u32 *const counter = args.claims + args.group;
    const u32 before = count_one(counter);
    if (before + 1 == units) *counter = 0; // each claims until it gets none, so that there are as many claims as items
    return before + smaller(block_count(), units);
  }

  TILEWRIGHT_DEVICE void prefetch_item(u32 unit) const { prefetch(args.items + unit / args.kv_heads); }

  // Does the next thing that has to be known of the next item. Each phase has what it reads brought near by the one before.
  TILEWRIGHT_DEVICE void prepare(Next &next, u32 set) const {
    Task &its = task(set);
    const u32 worker = copier();
    if (next.phase == CLAIM) {
      if (worker == 0) next.claimed = claim();
    } else if (next.phase == NAME) {
      if (worker == 0) its.unit = next.claimed;
      if (worker == 0 && next.claimed < units) prefetch_item(next.claimed);
      Walk<S>::meet();
      if (its.unit >= units) {
        next.phase = DONE;
        return;
      }
    } else if (next.phase == FETCH) {
      const u32 unit = its.unit, index = unit / args.kv_heads;
      const u32 *const from = reinterpret_cast<const u32 *>(args.items + index);
      if (worker < sizeof(WorkItem) / 4) reinterpret_cast<u32 *>(&its.item)[worker] = from[worker];
      if (worker == 0) its.kv_head = unit - index * args.kv_heads;
      Walk<S>::meet();
      const Cta<S> cta = cta_of(set);
      Walk<S>{cta}.prefetch_description();
    } else if (next.phase == DESCRIBE) {
      const Cta<S> cta = cta_of(set);
      Walk<S>{cta}.describe();
    } else if (next.phase == ARRANGE) {
      const Cta<S> cta = cta_of(set);
      const Walk<S> walk{cta};
      walk.find_lengths();
      Walk<S>::meet();
      Steps steps = {};
      if (cta.item.run_count > 0) {
        walk.find_seen();
        steps = walk.find_steps();
      }
      if (worker == 0) {
        its.steps = steps;
        its.elements = larger(1 + steps.last - steps.first, LEAST_ELEMENTS);
      }
      Walk<S>::meet();
    }
    next.phase++;
  }

  // The same for the item after the one whose pages are looked up: a phase an element before its last ones, and all that are left before the
  // very last.
  TILEWRIGHT_DEVICE void prepare_next(Next &next, const Place &place) const {
    const u32 left = place.elements - place.element;
    if (left > DONE) return;
    bool again = true;
#pragma unroll 1
    while (again && next.phase != DONE) {
      prepare(next, place.set ^ 1);
      again = left == 1;
    }
    if (left == 1) next = Next{};
  }

  // Looks up the pages of an element, and goes on to the next one.
  TILEWRIGHT_DEVICE Kind look_up(Ahead<S> &ahead, Place &place) const {
    Kind kind = NOTHING;
    const Rings<S> at = place.at;
    place.at = at.template ahead<1>();
    if (!place.exists()) return kind;
    const Cta<S> cta(args, place.item, 0, page_size, place.set);
    if (place.element == 0) {
      kind = QUERY;
      place.item = task(place.set).item;
      place.steps = task(place.set).steps;
      Walk<S>{cta}.find_own(place.steps);
      ahead.cursor = Copying<S>{cta}.first_run();
    } else if (place.steps.first + place.element <= place.steps.last) {
      kind = TOKENS;
      Copying<S>{cta}.fetch_pages(ahead, place.steps, place.steps.first + place.element - 1, at);
    }
    if (++place.element == place.elements) {
      place.element = 0;
      place.set ^= 1;
      place.elements = task(place.set).unit < units ? task(place.set).elements : 0;
    }
    return kind;
  }

  // All that the CTA copies: for each element, the pages of the one AHEAD are looked up, what was looked up before is noted as offsets, and what
  // was noted before is copied. The first item comes as if another one went before: all that has to be known of it is found out when the last
  // element of that one would be looked up.
  TILEWRIGHT_DEVICE void copy_all() const {
    Ahead<S> ahead = {};
    Place place = {};
    place.set = 1, place.element = AHEAD, place.elements = LEAST_ELEMENTS;
    place.at = place.at.template before<1>();
    Next next{NAME, block_index()};
    Kind noted = NOTHING, looked_up = NOTHING;
    u32 set = 1; // of what is copied
    typename Copying<S>::Column column = {};
    i32 computed = -static_cast<i32>(AHEAD) - 1; // what the others compute: elements from 0 on
#pragma unroll 1
    for (u32 left = AHEAD; left > 0; computed++) {
      if (computed >= 0) {
        if constexpr (S::STAGES > 1) Copying<S>::template wait_for_copies<S::STAGES - 2>();
        barrier();
      } else {
        Walk<S>::meet();
      }
      const Rings<S> at = place.at.template before<2>(), then = place.at.template before<1>();
      if (noted == TOKENS) {
        const Cta<S> cta(args, place.item, 0, page_size, set);
        Copying<S>{cta}.load_step(column, at);
      } else if (noted == QUERY) {
        set ^= 1;
        const Cta<S> cta = cta_of(set);
        const Copying<S> copying{cta};
        copying.load_query(at);
        column = copying.column();
      }
      copy_async_commit();
      if (looked_up == TOKENS) {
        const Cta<S> cta(args, place.item, 0, page_size, set);
        Copying<S>{cta}.store_offsets(ahead, then);
      }
      noted = looked_up;
      if (!place.exists()) left--; // elements that are known and not computed yet
      // What the set after next was of is computed by now.
      if (place.exists() && place.element >= AHEAD) prepare_next(next, place);
      looked_up = look_up(ahead, place);
      if constexpr (S::STAGES == 1) {
        if (computed >= 0) {
          Copying<S>::template wait_for_copies<0>();
          barrier();
        }
      }
    }
    copy_async_wait<0>();
  }

  // ---- of the threads that compute

  TILEWRIGHT_DEVICE void compute_all() const {
    Rings<S> at; // of what is computed
    u32 unit = block_index();
    for (u32 set = 0;; set ^= 1) {
      const Timeline<TIMELINE> timeline(args, unit);
      Copying<S>::await_step(); // the query, and all that is known of its item
      const Task &its = task(set);
      const WorkItem item = its.item;
      const Steps steps = its.steps;
      const u32 elements = its.elements;
      const Cta<S> cta(args, item, its.kv_head, page_size, set);
      const Attention<S> attention{cta};
      u32 query[S::QUERY_FRAGMENTS][4];
      attention.products.copy_query(query, at);
      at = at.template ahead<1>();
      const Sight seen = attention.visibility.sight(steps);
      Accumulators<S> acc = Accumulators<S>::empty();
#pragma unroll 1
      for (u32 step = steps.first; step < steps.last; step++) {
        Copying<S>::await_step();
        timeline.ready(step == steps.first);
        attention.compute(acc, query, steps, step, at, seen, [] {});
        at = at.template ahead<1>();
      }
      for (u32 element = 1 + steps.last - steps.first; element < elements; element++) {
        Copying<S>::await_step();
        at = at.template ahead<1>();
      }
      timeline.computed();
      const Results<S> results{cta};
      results.write(acc);
      if (args.arrivals) results.merge_arrived();
      timeline.leave();
      unit = task(set ^ 1).unit;
      if (unit >= units) return;
    }
  }
};

} // namespace tilewright
