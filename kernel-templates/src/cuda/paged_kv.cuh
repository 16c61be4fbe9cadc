// Paged KV: where the tokens of a step lie, as producers look them up.
#pragma once
#include "kv_range.cuh"
#include "chunk.cuh"

namespace tilewright {

// Goes along the segments with the tokens that one thread looks at, forwards only.
struct Cursor {
  u32 segment = 0;
  u32 next; // where the next segment begins
};

// A token of a step.
struct TokenLocation {
  u32 page;       // where in `page_ids` its page stands
  u32 within;     // which token of the page it is
  i32 position;   // its place in the requests that share it
  i32 seen, end;  // first token of these requests that some row sees, and one past the last one
  u32 rows;       // that share it
  u32 evict_first;   // `EVICT_FIRST`, if one item alone reads it
  bool exists;    // not behind the last token of the step's kind, nor behind the last one that some row sees

  // As the first token of a granule.
  template <class S> TILEWRIGHT_DEVICE Granule granule(const Cta<S> &cta) const {
    const bool some = exists && (!S::HIDES_FIRST || position + static_cast<i32>(S::GRANULE) > seen);
    const u32 tokens = some ? smaller(static_cast<u32>(end - position), S::GRANULE) : 0;
    u32 noted = rows | tokens << 24;
    // Found here, where many are looked up at once: each consumer warp would wait for it behind each step.
    if constexpr (S::INVARIANT) noted |= begins_chunk(static_cast<u32>(position) + tokens, cta.args.kv_heads) ? Granule::ENDS_CHUNK : 0;
    return Granule{position, some ? noted : 0};
  }
};

template <class S> struct PagedKv {
  const Cta<S> &cta;

  TILEWRIGHT_DEVICE Cursor at_segment(u32 segment) const { return Cursor{segment, next_segment(segment)}; }
  TILEWRIGHT_DEVICE u32 next_segment(u32 segment) const { return segment + 1 < cta.item.segment_count ? cta.segments()[segment + 1].begin : 0xffffffffu; }

  // To the segment of a token. A producer's lanes may have many to pass by, so they look at several at once.
  TILEWRIGHT_DEVICE void advance(Cursor &cursor, u32 token) const {
    constexpr u32 AT_ONCE = S::TMA ? 4 : 1;
    while (token >= cursor.next) {
      u32 next[AT_ONCE];
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) next[i] = next_segment(cursor.segment + 1 + i);
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) {
        if (token < cursor.next) break;
        cursor.segment++;
        cursor.next = next[i];
      }
    }
  }

  // The token of a step at an offset from the first one that this thread looks at; not before the one asked for last. What is no token
  // at all gets a page before it.
  TILEWRIGHT_DEVICE TokenLocation find(Cursor &cursor, const Steps &steps, u32 step, u32 more) const {
    // Where the tokens of all warps begin behind the private KV phase, they are before the ones that were asked for last. The private KV phase may be many segments further.
    if (S::PRIVATE_PHASE && more == 0 && steps.private_steps > 0 && step - steps.private_phase - steps.private_steps < S::STEPS_AT_ONCE) cursor = at_segment(0);
    const bool in_private_phase = S::PRIVATE_PHASE && steps.in_private_phase(step);
    if (in_private_phase && step - steps.private_phase < S::STEPS_AT_ONCE) cursor = at_segment(steps.segment);
    const u32 end = in_private_phase ? steps.end : steps.shared_end;
    const u32 asked = in_private_phase ? steps.begin + (step - steps.private_phase) * S::PRIVATE_STEP
                               : cta.item.kv_begin + steps.shared_step(step) * S::N + cta.looks_at + more;
    const u32 token = smaller(asked, end - 1);
    advance(cursor, token);
    const SegmentInShared &segment = cta.segments()[cursor.segment];
    const i32 position = static_cast<i32>(asked) + segment.position;
    const u32 within = smaller(token - segment.begin, segment.tokens - 1), page = cta.page_size.quotient(within);
    const bool exists = asked < end && position < segment.end;
    const u32 evict_first = segment.pages & EVICT_FIRST;
    return TokenLocation{segment.pages % EVICT_FIRST + page, within - page * cta.page_size.by, position, segment.seen, segment.end, segment.rows, evict_first, exists};
  }
};

} // namespace tilewright
