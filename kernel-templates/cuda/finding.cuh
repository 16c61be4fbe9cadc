// Where the tokens of a step lie: the pages of a walk's runs, as those threads look for them that copy.
#pragma once
#include "walk.cuh"

namespace tilewright {

// Goes along the runs with the tokens that one thread looks at, forwards only.
struct Cursor {
  u32 run = 0;
  u32 next; // where the next run begins
};

// A token of a step.
struct Place {
  u32 page;       // where in `page_ids` its page stands
  u32 within;     // which token of the page it is
  i32 position;   // its place in the requests that share it
  i32 seen, end;  // first token of these requests that some row sees, and one past the last one
  u32 rows;       // that share it
  u32 streamed;   // `STREAMED`, if nobody else reads it
  bool exists;    // not behind the last token of the step's kind, nor behind the last one that some row sees

  // As the first token of a granule.
  template <class S> TILEWRIGHT_DEVICE Granule granule() const {
    const bool some = exists && (!S::WINDOW || position + static_cast<i32>(S::GRANULE) > seen);
    const u32 tokens = some ? smaller(static_cast<u32>(end - position), S::GRANULE) : 0;
    return Granule{position, some ? rows | tokens << 24 : 0};
  }
};

template <class S> struct Finding {
  const Cta<S> &cta;

  TILEWRIGHT_DEVICE Cursor at_run(u32 run) const { return Cursor{run, next_run(run)}; }
  TILEWRIGHT_DEVICE u32 next_run(u32 run) const { return run + 1 < cta.item.run_count ? cta.runs()[run + 1].begin : 0xffffffffu; }

  // To the run of a token. A loader's lanes may have many to pass by, so they look at several at once.
  TILEWRIGHT_DEVICE void advance(Cursor &cursor, u32 token) const {
    constexpr u32 AT_ONCE = S::TENSORS ? 4 : 1;
    while (token >= cursor.next) {
      u32 next[AT_ONCE];
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) next[i] = next_run(cursor.run + 1 + i);
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) {
        if (token < cursor.next) break;
        cursor.run++;
        cursor.next = next[i];
      }
    }
  }

  // The token of a step that is so many behind the first one that this thread looks at; not before the one asked for last. What is no token
  // at all gets a page before it.
  TILEWRIGHT_DEVICE Place find(Cursor &cursor, const Steps &steps, u32 step, u32 more) const {
    // Where the tokens of all warps begin behind the turns, they are before the ones that were asked for last. Turns may be many runs further.
    if (S::TURNS && more == 0 && steps.shared > 0 && step - steps.shared < S::STEPS_AT_ONCE) cursor = at_run(0);
    const bool in_turns = S::TURNS && steps.in_turns(step);
    if (in_turns && step - steps.turns < S::STEPS_AT_ONCE) cursor = at_run(steps.run);
    const u32 end = in_turns ? steps.end : steps.shared_end;
    const u32 asked = in_turns ? steps.begin + (step - steps.turns) * S::TURN
                               : cta.item.walk_begin + (step - steps.shared) * S::N + cta.looks_at + more;
    const u32 token = smaller(asked, end - 1);
    advance(cursor, token);
    const SharedRun &run = cta.runs()[cursor.run];
    const i32 position = static_cast<i32>(asked) + run.position;
    const u32 within = smaller(token - run.begin, run.tokens - 1), page = cta.page_size.quotient(within);
    const bool exists = asked < end && position < run.end;
    const u32 streamed = run.pages & STREAMED;
    return Place{run.pages % STREAMED + page, within - page * cta.page_size.by, position, run.seen, run.end, run.rows, streamed, exists};
  }
};

} // namespace tilewright
