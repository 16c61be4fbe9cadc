// Timestamps of a CTA, compiled in on demand.
#pragma once
#include "abi.cuh"
#include "prelude.cuh"

namespace tilewright {

// Without the option nothing is compiled.
template <bool ON> struct Timeline {
  TILEWRIGHT_DEVICE Timeline(const Arguments &, u32) {}
  TILEWRIGHT_DEVICE void ready(bool) const {}
  TILEWRIGHT_DEVICE void computed() const {}
  TILEWRIGHT_DEVICE void leave() const {}
};

// Of the thread that notes it, the first one of a CTA.
template <> struct Timeline<true> {
  TimelineEntry *const entry; // of an item and KV head

  TILEWRIGHT_DEVICE Timeline(const Arguments &args, u32 unit) : entry(args.timeline + unit) {
    if (thread_index() != 0) return;
    entry->begin = nanoseconds();
    entry->ready = 0;
    entry->multiprocessor = multiprocessor();
  }

  // The first tokens have arrived.
  TILEWRIGHT_DEVICE void ready(bool first) const {
    if (first && thread_index() == 0) entry->ready = nanoseconds();
  }
  // All tokens are computed.
  TILEWRIGHT_DEVICE void computed() const {
    if (thread_index() == 0) entry->computed = nanoseconds();
  }
  // The results are written.
  TILEWRIGHT_DEVICE void leave() const {
    if (thread_index() == 0) entry->end = nanoseconds();
  }
};

} // namespace tilewright
