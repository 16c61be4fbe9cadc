// When a CTA did what, for those who look into a launch: compiled in on demand.
#pragma once
#include "arguments.cuh"
#include "prelude.cuh"

namespace tilewright {

// Without it nothing is compiled.
template <bool ON> struct Timeline {
  TILEWRIGHT_DEVICE void ready() {}
  TILEWRIGHT_DEVICE void computed() {}
  TILEWRIGHT_DEVICE void leave(const Arguments &, u32) {}
};

// Of the thread that notes it, the first one of a CTA.
template <> struct Timeline<true> {
  TimelineEntry entry{nanoseconds(), 0, 0, 0, multiprocessor(), 0};

  // The first tokens have arrived. Only the first call counts.
  TILEWRIGHT_DEVICE void ready() {
    if (entry.ready == 0) entry.ready = nanoseconds();
  }
  // All tokens are computed.
  TILEWRIGHT_DEVICE void computed() { entry.computed = nanoseconds(); }
  // The results are written.
  TILEWRIGHT_DEVICE void leave(const Arguments &args, u32 cta) {
    entry.end = nanoseconds();
    if (thread_index() == 0) args.timeline[cta] = entry;
  }
};

} // namespace tilewright
