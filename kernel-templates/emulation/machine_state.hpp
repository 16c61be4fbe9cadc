// What the emulated machine knows of its threads, of copies on their way and of barriers.
#pragma once
#include "emulation.hpp"
#include <cstdlib>

namespace tilewright::emulation {

// What the lanes of a warp meet for.
enum class Meeting { LoadMatrices, LoadMatricesTransposed, MultiplyAdd, MultiplyAddTogether, StoreMatricesTransposed, LaneXor, Lane, Any, Warp };

inline const char *name(Meeting meeting) {
  switch (meeting) {
  case Meeting::LoadMatrices: return "load_matrices";
  case Meeting::LoadMatricesTransposed: return "load_matrices_transposed";
  case Meeting::MultiplyAdd: return "multiply_add";
  case Meeting::MultiplyAddTogether: return "multiply_add_together";
  case Meeting::StoreMatricesTransposed: return "store_matrices_transposed";
  case Meeting::LaneXor: return "from_lane_xor";
  case Meeting::Lane: return "from_lane";
  case Meeting::Any: return "any_in_warp";
  case Meeting::Warp: return "meet_warp";
  }
  return "?";
}

// A copy on its way.
struct Copy {
  const void *source; // null: zeros
  u64 group;
  u32 target;
};

// A copy that has arrived: of which fiber, and which one of its copies, counted from 1.
struct Delivery {
  u32 fiber, number;
};

// Products of a warpgroup that have begun and not ended.
struct Begun {
  const void *products; // their sums, or null
  float sums[128];      // what these are by now
};

struct Fiber {
  void *stack_pointer;
  u32 thread;
  u64 committed; // groups
  Copy *copies;  // in the order of their groups
  u32 copy_count, copy_capacity;
  u32 delivered, fenced; // copies that have arrived, and those that warpgroups may read
  Begun begun[2];                // in any order
  const void *first;             // which of two began first

  Begun *begun_of(const void *products) {
    return begun[0].products == products ? &begun[0] : begun[1].products == products ? &begun[1] : nullptr;
  }
};

// A list of numbers that grows.
struct Numbers {
  u32 *at, count, capacity;

  void add(u32 number) {
    if (count == capacity) {
      capacity = larger(2 * capacity, 64u);
      at = static_cast<u32 *>(realloc(at, capacity * sizeof(u32)));
    }
    at[count++] = number;
  }
};

struct Warp {
  u32 ready;   // bit i: its fiber i can go on
  u32 ended;   // bit i: its fiber i is done with the Q tile
  u32 arrived; // lanes that wait for the others; all 32 where they wait for the other warps of their warpgroup
  Meeting meeting;
  // What each lane brought to the meeting, and where it wants the result.
  u32 operands[32][2];
  const u32 *left[32];
  const SharedMatrix *matrices[32][2]; // the left side, if it is none of registers, and the right one
  void *result[32];
  Numbers reading[2]; // cells that products read, which have begun and not ended, by their place in `Fiber::begun`
};

constexpr u32 MAX_WARPS = 32;
constexpr u32 NAMED_BARRIERS = 16; // of a CTA, with that of all its threads
constexpr u32 MAX_ARRIVALS = 32; // barriers in shared memory
constexpr u32 PARTIES = MAX_WARPS + MAX_ARRIVALS;

// How far each party has been seen: a warp by how often it told of itself, a barrier in shared memory by its phases.
struct Clock {
  u32 of[PARTIES];

  void join(const Clock &other) {
    for (u32 i = 0; i < PARTIES; i++) of[i] = larger(of[i], other.of[i]);
  }
};

// A barrier of some warps of a CTA, by its number.
struct NamedBarrier {
  u32 warps, arrived;     // how many it is of, and threads that have arrived
  bool any, any_before;   // whether something is true of any of them, and of any of those that met before
  u32 waiting[MAX_WARPS]; // fibers
};

// A box on its way. What it brings is a function of its bytes' places.
struct Box {
  const TensorMap *map;
  i32 from[5];
  u32 target, bytes;
};

// A barrier in shared memory.
struct Arrivals {
  u32 address, threads;
  u32 missing;           // threads that have not arrived in this phase
  u32 expected, flying;  // bytes
  u32 phases;            // that are over
  Box *boxes;
  u32 box_count, box_capacity;
  u32 waiting[MAX_WARPS]; // fibers
  u32 bringing[MAX_WARPS]; // fibers whose copies have to be there before the phase ends,
  bool late;               // and whether there are such
  Clock arrived, over;    // what those had seen that arrived, and those of the last phase that is over
};

} // namespace tilewright::emulation
