// What `ptx.cuh` gives the kernels, on a host: numerics, tails and the order of the pipeline are checked without a GPU.
//
// Each CUDA thread is a fiber. Operations of a warp are a rendezvous of its 32 lanes; the last one to arrive computes for all.
// Copies arrive as late as the hardware allows: when the thread that issued them waits for their group. Until then their
// destination is poison (all bits set, a NaN of both element types). One CTA runs at a time. What would hang, diverge or race on a
// device ends the launch with an error, and so does an address that nothing lies at.
//
// Whether something races is found by vector clocks: each warp knows how far it has seen each other warp, by the barriers at which they met.
#pragma once
#include "types.cuh"
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#define TILEWRIGHT_DEVICE inline

// Saves the registers that a function has to keep, and the stack, then goes on where `to` was saved.
extern "C" void tilewright_switch(void **save, void *to) __asm__("tilewright_switch") __attribute__((masking("hidden")));
#if defined(__x86_64__)
__asm__(".text\n.p2align 4\ntilewright_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
#elif defined(__aarch64__)
__asm__(".text\n.p2align 4\ntilewright_switch:\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\n"
        "stp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\n"
        "ldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\nret\n");
#else
#error "the emulation switches stacks on x86-64 and AArch64 only; add the few lines for this processor above"
#endif

namespace tilewright {

struct SharedMatrix; // in emulation_wgmma.hpp

// A tensor as the emulated machine knows it: its words are its address, the strides of dimensions 1 to 4 in bytes, the sizes of dimensions
// 0 to 4, those of a box, and the bytes of an element.
struct alignas(64) TensorMap {
  u64 words[16];
};

namespace emulation {

typedef u32 u32x4 __attribute__((vector_size(16)));
typedef i32 i32x4 __attribute__((vector_size(16)));
typedef float f32x4 __attribute__((vector_size(16)));

template <class To, class From> inline To bits_as(const From &from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

inline f32x4 widen(F16, u32x4 half) {
  const u32x4 magnitude = half & 0x7fffu;
  // The exponent's bias is put right by a multiplication, which normalises small numbers too.
  const f32x4 scaled = bits_as<f32x4>(magnitude << 13) * 0x1p112f;
  const i32x4 special = bits_as<i32x4>(magnitude) > 0x7bff; // infinity and NaN
  return bits_as<f32x4>(bits_as<u32x4>(scaled) | (bits_as<u32x4>(special) & 0x7f800000u) | (half & 0x8000u) << 16);
}
inline f32x4 widen(Bf16, u32x4 half) { return bits_as<f32x4>(half << 16); }

inline u32 rounded(F16, float value) {
  const u32 bits = bits_as<u32>(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;  // NaN
  if (magnitude >= 0x47800000u) return sign | 0x7c00u; // 65536 and more, infinity
  // Below the smallest normal number: adding 0.5 leaves multiples of 2^-24 in the lowest bits, rounded to nearest even.
  if (magnitude < 0x38800000u) return sign | (bits_as<u32>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u);
  return sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13; // may carry into infinity, as it should
}
inline u32 rounded(Bf16, float value) {
  const u32 bits = bits_as<u32>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

// What the lanes of a warp meet for.
enum class Meeting { LoadMatrices, LoadMatricesTransposed, MultiplyAdd, MultiplyAddTogether, LaneXor, Lane, Any, Warp };

inline const char *name(Meeting meeting) {
  switch (meeting) {
  case Meeting::LoadMatrices: return "load_matrices";
  case Meeting::LoadMatricesTransposed: return "load_matrices_transposed";
  case Meeting::MultiplyAdd: return "multiply_add";
  case Meeting::MultiplyAddTogether: return "multiply_add_together";
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
  const SharedMatrix *matrices[32];
  void *result[32];
  Numbers reading[2]; // cells that products read, which have begun and not ended, by their place in `Fiber::begun`
};

constexpr u32 MAX_WARPS = 32;
constexpr u32 MAX_ARRIVALS = 32; // barriers in shared memory
constexpr u32 PARTIES = MAX_WARPS + MAX_ARRIVALS;

// How far each party has been seen: a warp by how often it told of itself, a barrier in shared memory by its phases.
struct Clock {
  u32 of[PARTIES];

  void join(const Clock &other) {
    for (u32 i = 0; i < PARTIES; i++) of[i] = larger(of[i], other.of[i]);
  }
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
constexpr u32 GUARD = 1024; // bytes on either side of shared memory that no thread may touch
constexpr u8 GUARD_BYTE = 0xa5;
constexpr u32 STACK = 64 * 1024;
// Not a power of two, or the stacks of a warp would compete for the same lines of the cache.
constexpr u32 STACK_STRIDE = STACK + 17 * 64;

// All of one launch.
struct Machine {
  u32 grid, block, threads, shared_bytes;
  void (*call)(void *);
  void *body;
  u64 random_state;
  bool shuffled, preempted;

  u8 *shared;
  // For each 16 bytes of shared memory, called a cell: whose clock said what when they arrived, or PARTIES; whether they are on their way; what the
  // clock of each warp said when it read them last; and who brought them.
  u32 *deliverer, *delivered, *read;
  bool *flying;
  Delivery *deliveries;
  Clock clocks[MAX_WARPS];
  Arrivals arrivals[MAX_ARRIVALS];
  u32 arrivals_count;
  // The barrier of some threads: which fibers wait at it, and what they have seen.
  u32 epoch; // barriers so far, counted from 1
  u8 *stacks;
  void *host;
  Fiber *current;
  Fiber *fibers;
  Warp *warps;
  u32 warp_order[MAX_WARPS];
  u32 at_barrier, ended;
  u64 poison_reads;
  bool running; // fibers, and not the host
  bool failed;
  char *message;

  u64 random() {
    u64 z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  template <class T> void shuffle(T *values, u32 count) {
    for (u32 i = count; shuffled && i > 1; i--) {
      const u32 other = random() % i;
      const T value = values[i - 1];
      values[i - 1] = values[other];
      values[other] = value;
    }
  }

  u32 warp_count() const { return threads / 32; }
  u32 warp_of(const Fiber *fiber) const { return (fiber - fibers) / 32; }

  void go_to(Fiber *next) {
    Fiber *const from = current;
    if (next == from) return;
    current = next;
    tilewright_switch(&from->stack_pointer, next->stack_pointer);
  }

  // Ends the launch. The fibers stay where they are; nothing of theirs has to be cleaned up.
  [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char *format, ...) {
    va_list values;
    va_start(values, format);
    const int used = snprintf(message, 256, "block %u, thread %u: ", block, current->thread);
    vsnprintf(message + used, 256 - used, format, values);
    va_end(values);
    failed = true;
    tilewright_switch(&current->stack_pointer, host);
    __builtin_unreachable();
  }

  Fiber *take(u32 warp) {
    const u32 place = __builtin_ctz(warps[warp].ready);
    warps[warp].ready &= warps[warp].ready - 1;
    return &fibers[warp * 32 + place];
  }
  // The next fiber that can go on, of the warps in their order from the given place on; null if there is none.
  Fiber *take_any(u32 from) {
    for (u32 i = 0; i < warp_count(); i++) {
      const u32 warp = warp_order[(from + i) % warp_count()];
      if (warps[warp].ready) return take(warp);
    }
    return nullptr;
  }

  // The current fiber cannot go on: lets another one segment, of its own warp if possible.
  void block_current() {
    const u32 own = warp_of(current);
    if (warps[own].ready) return go_to(take(own));
    if (warps[own].arrived % 32)
      fail("warp %u diverges: %u of its lanes are at %s, the others at a barrier or at their end", own, warps[own].arrived,
           name(warps[own].meeting));
    Fiber *const next = take_any(0);
    if (!next) fail("nobody can go on: %u threads wait at a barrier, %u have ended", at_barrier, ended);
    go_to(next);
  }

  // All lanes of the warp arrive; the last one does the work.
  template <class Work> void meet(Meeting meeting, Work work) {
    Warp &warp = warps[warp_of(current)];
    if (warp.arrived == 0) warp.meeting = meeting;
    if (warp.meeting != meeting)
      fail("warp %u diverges: a lane is at %s, others at %s", warp_of(current), name(meeting), name(warp.meeting));
    if (++warp.arrived < 32) return block_current();
    work(warp);
    warp.arrived = 0;
    warp.ready = ~(1u << (current - fibers) % 32);
    if (preempted && random() % 16 == 0) {
      warp.ready = ~0u;
      go_to(take_any(random() % warp_count()));
    }
  }

  // All lanes of a warpgroup arrive; the last one does the work. Its other warps may be elsewhere until then.
  template <class Work> void meet_together(Work work) {
    const u32 own = warp_of(current), first = own / 4 * 4;
    Warp &warp = warps[own];
    if (warp.arrived == 0) warp.meeting = Meeting::MultiplyAddTogether;
    if (warp.meeting != Meeting::MultiplyAddTogether)
      fail("warp %u diverges: a lane is at %s, others at %s", own, name(Meeting::MultiplyAddTogether), name(warp.meeting));
    if (first + 4 > warp_count()) fail("warp %u is in no whole warpgroup", own);
    bool all = ++warp.arrived == 32;
    for (u32 i = first; i < first + 4; i++) all = all && warps[i].arrived == 32 && warps[i].meeting == Meeting::MultiplyAddTogether;
    if (!all) return block_current();
    work(first);
    for (u32 i = first; i < first + 4; i++) {
      warps[i].arrived = 0;
      warps[i].ready = ~0u;
    }
    warp.ready = ~(1u << (current - fibers) % 32);
  }

  void barrier() {
    if (current->begun[0].products || current->begun[1].products) fail("a barrier between begin_products and end_products");
    at_barrier++;
    if (!barrier_complete()) return block_current();
    pass_barrier();
    go_to(take_any(0));
  }

  // Threads that have ended are not waited for, as on a device (compute capability 7.0 and up).
  bool barrier_complete() const { return at_barrier > 0 && at_barrier + ended == threads; }

  void pass_barrier() {
    for (u32 warp = 0; warp < warp_count(); warp++)
      if (warps[warp].ended && ~warps[warp].ended)
        fail("warp %u diverges: some of its lanes are at a barrier, the others have ended", warp);
    at_barrier = 0;
    epoch++;
    Clock all = clocks[0];
    for (u32 warp = 1; warp < warp_count(); warp++) all.join(clocks[warp]);
    for (u32 warp = 0; warp < warp_count(); warp++) {
      clocks[warp] = all;
      clocks[warp].of[warp]++;
    }
    release();
  }

  void release() {
    for (u32 warp = 0; warp < warp_count(); warp++) warps[warp].ready = ~warps[warp].ended;
    shuffle(warp_order, warp_count());
  }

  u8 *at(u32 address, const char *what) {
    if (address % 16) fail("%s: address %u of shared memory is no multiple of 16", what, address);
    if (address > shared_bytes || shared_bytes - address < 16)
      fail("%s: address %u is beyond the %u bytes of shared memory", what, address, shared_bytes);
    return shared + address;
  }

  // Whether the current warp has seen what a party's clock said then, or, of itself, whether it has told of it since.
  bool has_seen(u32 party, u32 then) const {
    const u32 own = warp_of(current), seen = clocks[own].of[party];
    return party == own ? seen > then : seen >= then;
  }

  // A copy to 16 bytes begins.
  u8 *overwrite(u32 target, const char *what) {
    u8 *const bytes = at(target, what);
    const u32 cell = target / 16;
    if (flying[cell]) fail("%s overwrites address %u, which another box is on its way to", what, target);
    for (u32 warp = 0; warp < warp_count(); warp++) {
      const u32 then = read[cell * warp_count() + warp];
      if (then > 0 && !has_seen(warp, then)) fail("%s overwrites address %u, which warp %u has read without telling since", what, target, warp);
    }
    memset(bytes, 0xff, 16);
    return bytes;
  }

  // Sixteen bytes are read by the current warp.
  const u8 *read_cell(u32 address, const char *what) {
    const u8 *const bytes = at(address, what);
    const u32 cell = address / 16;
    if (deliverer[cell] < PARTIES && !has_seen(deliverer[cell], delivered[cell]))
      fail("%s reads address %u, which a copy filled without a barrier since", what, address);
    const u32 own = warp_of(current);
    read[cell * warp_count() + own] = clocks[own].of[own];
    return bytes;
  }

  void copy(u32 target, const void *source, bool valid) {
    overwrite(target, "copy_async");
    if (valid && reinterpret_cast<u64>(source) % 16) fail("copy_async: a source is not aligned to 16 bytes");
    Fiber &fiber = *current;
    if (fiber.copy_count == fiber.copy_capacity) {
      fiber.copy_capacity = larger(2 * fiber.copy_capacity, 64u);
      fiber.copies = static_cast<Copy *>(realloc(fiber.copies, fiber.copy_capacity * sizeof(Copy)));
    }
    fiber.copies[fiber.copy_count++] = Copy{valid ? source : nullptr, fiber.committed, target};
  }

  void deliver(u64 pending) {
    const u32 own = warp_of(current);
    deliver_of(*current, pending, own, clocks[own].of[own]);
  }

  // The copies of a fiber, but for the last groups, arrive as far as a party has told of itself.
  void deliver_of(Fiber &fiber, u64 pending, u32 party, u32 told) {
    u32 done = 0;
    for (; done < fiber.copy_count && fiber.copies[done].group + pending < fiber.committed; done++) {
      const Copy &copy = fiber.copies[done];
      if (copy.source) memcpy(shared + copy.target, copy.source, 16);
      else memset(shared + copy.target, 0, 16);
      deliverer[copy.target / 16] = party;
      delivered[copy.target / 16] = told;
      deliveries[copy.target / 16] = Delivery{static_cast<u32>(&fiber - fibers), ++fiber.delivered};
    }
    fiber.copy_count -= done;
    memmove(fiber.copies, fiber.copies + done, fiber.copy_count * sizeof(Copy));
  }

  // What this thread's copies have brought so far may be read by warpgroups.
  void fence_copies() { current->fenced = current->delivered; }

  // Sixteen bytes, read by a warpgroup until its products end.
  const u8 *read_together(u32 first_warp, u32 products, u32 address) {
    const u8 *const bytes = at(address, "multiply_add_together");
    Fiber *const own = current;
    for (u32 warp = first_warp; warp < first_warp + 4; warp++) {
      current = &fibers[warp * 32];
      read_cell(address, "multiply_add_together");
      warps[warp].reading[products].add(address / 16);
    }
    current = own;
    const Delivery delivery = deliveries[address / 16];
    if (delivery.number > fibers[delivery.fiber].fenced)
      fail("multiply_add_together reads address %u, which a copy filled without a fence", address);
    return bytes;
  }

  // What they read was read up to now: as the first lane of a warp says, which may tell others of it then.
  void end_reading(u32 products) {
    const u32 own = warp_of(current);
    Numbers &reading = warps[own].reading[products];
    for (u32 i = 0; i < reading.count; i++) read[reading.at[i] * warp_count() + own] = clocks[own].of[own];
    reading.count = 0;
  }

  void ldmatrix(const Warp &warp, bool transposed) {
    const u8 *rows[32];
    for (u32 lane = 0; lane < 32; lane++) {
      const u32 address = warp.operands[lane][0];
      rows[lane] = read_cell(address, "load_matrices");
      u64 halves[2];
      memcpy(halves, rows[lane], 16);
      const u64 one = 0x0001000100010001u;
      // A 16-bit element of ones is a zero in the complement.
      poison_reads += ((~halves[0] - one) & halves[0] & one << 15) != 0 || ((~halves[1] - one) & halves[1] & one << 15) != 0;
    }
    for (u32 lane = 0; lane < 32; lane++) {
      u32 *const to = static_cast<u32 *>(warp.result[lane]);
      for (u32 i = 0; i < 4; i++) {
        if (transposed) {
          u16 low, high;
          memcpy(&low, rows[8 * i + lane % 4 * 2] + lane / 4 * 2, 2);
          memcpy(&high, rows[8 * i + lane % 4 * 2 + 1] + lane / 4 * 2, 2);
          to[i] = low | u32(high) << 16;
        } else {
          memcpy(&to[i], rows[8 * i + lane / 4] + lane % 4 * 4, 4);
        }
      }
    }
  }

  // By one lane, which meets no thread.
  void load_words(u32 &first, u32 &second, u32 address) {
    if (address % 8) fail("load_words reads address %u, which is no multiple of 8", address);
    const u8 *const bytes = read_cell(address / 16 * 16, "load_words") + address % 16;
    memcpy(&first, bytes, 4);
    memcpy(&second, bytes + 4, 4);
    poison_reads += first == 0xffffffffu && second == 0xffffffffu;
  }

  template <class Element> static void mma_sync(const Warp &warp) {
    float a[16][16];
    alignas(16) float b[16][8], sum[16][8];
    for (u32 lane = 0; lane < 32; lane++) {
      const u32 row = lane / 4, column = lane % 4 * 2;
      u32x4 pairs;
      memcpy(&pairs, warp.left[lane], 16);
      f32x4 low = widen(Element{}, pairs & 0xffffu), high = widen(Element{}, pairs >> 16);
      for (u32 i = 0; i < 4; i++) {
        a[row + i % 2 * 8][column + i / 2 * 8] = low[i];
        a[row + i % 2 * 8][column + i / 2 * 8 + 1] = high[i];
      }
      const u32 b0 = warp.operands[lane][0], b1 = warp.operands[lane][1];
      low = widen(Element{}, u32x4{b0 & 0xffffu, b0 >> 16, b1 & 0xffffu, b1 >> 16});
      b[column][row] = low[0];
      b[column + 1][row] = low[1];
      b[column + 8][row] = low[2];
      b[column + 9][row] = low[3];
      const float *const c = static_cast<const float *>(warp.result[lane]);
      sum[row][column] = c[0];
      sum[row][column + 1] = c[1];
      sum[row + 8][column] = c[2];
      sum[row + 8][column + 1] = c[3];
    }
    for (u32 row = 0; row < 16; row++) {
      f32x4 *const out = reinterpret_cast<f32x4 *>(sum[row]);
      f32x4 left = out[0], right = out[1];
      for (u32 k = 0; k < 16; k++) {
        const f32x4 *const of_k = reinterpret_cast<const f32x4 *>(b[k]);
        left += a[row][k] * of_k[0];
        right += a[row][k] * of_k[1];
      }
      out[0] = left;
      out[1] = right;
    }
    for (u32 lane = 0; lane < 32; lane++) {
      const u32 row = lane / 4, column = lane % 4 * 2;
      float *const c = static_cast<float *>(warp.result[lane]);
      c[0] = sum[row][column];
      c[1] = sum[row][column + 1];
      c[2] = sum[row + 8][column];
      c[3] = sum[row + 8][column + 1];
    }
  }

  void lane_xor(const Warp &warp) {
    for (u32 lane = 0; lane < 32; lane++) {
      const u32 mask = warp.operands[lane][1];
      if (mask != warp.operands[0][1] || mask > 31) fail("from_lane_xor: lanes ask for different masks, or beyond the warp");
      *static_cast<u32 *>(warp.result[lane]) = warp.operands[lane ^ mask][0];
    }
  }

  void any(const Warp &warp) {
    u32 result = 0;
    for (u32 lane = 0; lane < 32; lane++) result |= warp.operands[lane][0];
    for (u32 lane = 0; lane < 32; lane++) *static_cast<u32 *>(warp.result[lane]) = result;
  }

  void lane(const Warp &warp) {
    for (u32 lane = 0; lane < 32; lane++) {
      const u32 from = warp.operands[lane][1];
      if (from > 31) fail("from_lane: lane %u asks for lane %u, beyond the warp", lane, from);
      *static_cast<u32 *>(warp.result[lane]) = warp.operands[from][0];
    }
  }

  Arrivals &arrivals_at(u32 address, const char *what) {
    for (u32 i = 0; i < arrivals_count; i++)
      if (arrivals[i].address == address) return arrivals[i];
    fail("%s: no barrier was initialised at address %u", what, address);
  }

  void init_mbarrier(u32 address, u32 expected_threads) {
    if (address % 8) fail("init_arrivals: address %u is no multiple of 8", address);
    at(address / 16 * 16, "init_arrivals");
    for (u32 i = 0; i < arrivals_count; i++)
      if (arrivals[i].address == address) fail("init_arrivals: the barrier at %u is initialised twice", address);
    if (arrivals_count == MAX_ARRIVALS) fail("init_arrivals: more than %u barriers", MAX_ARRIVALS);
    Arrivals &made = arrivals[arrivals_count++];
    Box *const boxes = made.boxes;
    const u32 capacity = made.box_capacity;
    made = Arrivals{};
    made.boxes = boxes, made.box_capacity = capacity;
    made.address = address;
    made.threads = made.missing = expected_threads;
  }

  // Ends a phase if all that it waits for has come. Boxes arrive here, as late as the hardware allows.
  bool end_phase(Arrivals &barrier) {
    if (barrier.missing > 0 || barrier.flying < barrier.expected) return false;
    if (barrier.flying > barrier.expected) fail("%u bytes arrive at the barrier at %u, which expects %u", barrier.flying, barrier.address, barrier.expected);
    const u32 party = MAX_WARPS + (&barrier - arrivals);
    barrier.phases++;
    for (u32 i = 0; i < barrier.box_count; i++) deliver_box(barrier.boxes[i], party, barrier.phases);
    for (u32 i = 0; i < threads; i++)
      if (barrier.bringing[i / 32] >> i % 32 & 1) deliver_of(fibers[i], 0, party, barrier.phases);
    memset(barrier.bringing, 0, sizeof barrier.bringing);
    barrier.late = false;
    barrier.box_count = barrier.expected = barrier.flying = 0;
    barrier.missing = barrier.threads;
    barrier.over.join(barrier.arrived);
    barrier.over.of[party] = barrier.phases;
    wake(barrier);
    return true;
  }

  // Waiting threads look again.
  void wake(Arrivals &barrier) {
    for (u32 warp = 0; warp < warp_count(); warp++) {
      warps[warp].ready |= barrier.waiting[warp];
      barrier.waiting[warp] = 0;
    }
  }

  // Once the copies are there that the current fiber has begun: as late as the hardware allows, when another thread waits.
  void arrive_after_cp_async(u32 address) {
    current->committed++;
    Arrivals &barrier = arrivals_at(address, "arrive_behind_copies");
    barrier.bringing[warp_of(current)] |= 1u << (current - fibers) % 32;
    barrier.late = true;
    arrive(address, 0);
  }

  void arrive(u32 address, u32 bytes) {
    Arrivals &barrier = arrivals_at(address, "arrive");
    // Its bytes may be late.
    if (barrier.missing == 0) fail("more threads arrive at the barrier at %u than a phase has, and nobody has waited for its end", address);
    const u32 own = warp_of(current);
    barrier.arrived.join(clocks[own]);
    clocks[own].of[own]++;
    barrier.missing--;
    barrier.expected += bytes;
    // Where bytes are awaited, the next thread that waits finds whether they have all begun.
    if (barrier.missing > 0) return;
    if (barrier.expected == 0 && barrier.flying == 0 && !barrier.late) end_phase(barrier);
    else wake(barrier);
  }

  void expect(u32 address, u32 bytes) {
    Arrivals &barrier = arrivals_at(address, "expect");
    if (barrier.missing == 0) fail("the barrier at %u is told to expect more when all threads have arrived", address);
    barrier.expected += bytes;
  }

  void await(u32 address, u32 parity) {
    Arrivals &barrier = arrivals_at(address, "await_arrivals");
    while (barrier.phases % 2 == parity && !end_phase(barrier)) {
      barrier.waiting[warp_of(current)] |= 1u << (current - fibers) % 32;
      block_current();
    }
    clocks[warp_of(current)].join(barrier.over);
  }

  void begin_box(const Box &box, u32 address) {
    Arrivals &barrier = arrivals_at(address, "copy_box");
    if (box.target % 128) fail("copy_box: address %u of shared memory is no multiple of 128", box.target);
    for (u32 byte = 0; byte < box.bytes; byte += 16) {
      overwrite(box.target + byte, "copy_box");
      flying[(box.target + byte) / 16] = true;
    }
    if (barrier.box_count == barrier.box_capacity) {
      barrier.box_capacity = larger(2 * barrier.box_capacity, 64u);
      barrier.boxes = static_cast<Box *>(realloc(barrier.boxes, barrier.box_capacity * sizeof(Box)));
    }
    barrier.boxes[barrier.box_count++] = box;
    barrier.flying += box.bytes;
    wake(barrier);
  }

  // Brings a box in rows of 128 bytes, whose chunks of 16 bytes are exchanged by their addresses. What lies outside of the tensor is zeros.
  void deliver_box(const Box &box, u32 party, u32 phase) {
    const u64 *const words = box.map->words;
    const u32 row_bytes = words[10] * words[15];
    if (row_bytes != 128) fail("copy_box: rows of %u bytes, not of 128", row_bytes);
    u32 target = box.target;
    for (u32 d4 = 0; d4 < words[14]; d4++)
      for (u32 d3 = 0; d3 < words[13]; d3++)
        for (u32 d2 = 0; d2 < words[12]; d2++)
          for (u32 d1 = 0; d1 < words[11]; d1++) {
            const i64 place[5] = {box.from[0], box.from[1] + i64(d1), box.from[2] + i64(d2), box.from[3] + i64(d3), box.from[4] + i64(d4)};
            bool inside = true;
            u64 from = words[0] + place[0] * words[15];
            for (u32 d = 0; d < 5; d++) inside = inside && place[d] >= 0 && u64(place[d]) < words[5 + d];
            for (u32 d = 1; d < 5; d++) from += place[d] * words[d];
            for (u32 byte = 0; byte < row_bytes; byte += 16, target += 16) {
              const u32 to = target ^ (target / 128 % 8) * 16;
              if (inside) memcpy(shared + to, reinterpret_cast<const u8 *>(from) + byte, 16);
              else memset(shared + to, 0, 16);
              deliverer[to / 16] = party;
              delivered[to / 16] = phase;
              deliveries[to / 16] = Delivery{0, 0};
              flying[to / 16] = false;
            }
          }
  }

  // What a fiber does: one thread of each Q tile.
  [[noreturn]] void run_fiber() {
    for (;;) {
      call(body);
#ifndef TILEWRIGHT_EMULATE_EARLY_READ
      if (current->copy_count) fail("ends with %u copies still on their way", current->copy_count);
#endif
      current->copy_count = 0;
      warps[warp_of(current)].ended |= 1u << (current - fibers) % 32;
      ended++;
      if (barrier_complete()) pass_barrier();
      if (ended == threads) tilewright_switch(&current->stack_pointer, host);
      else block_current();
    }
  }

  void start_fiber(Fiber *fiber, void (*entry)()) {
    u8 *top = stacks + (fiber - fibers + 1) * STACK_STRIDE;
    top -= reinterpret_cast<u64>(top) % 16;
#if defined(__x86_64__)
    void **frame = reinterpret_cast<void **>(top) - 8; // six registers, the entry, and the place of its return address
    frame[6] = reinterpret_cast<void *>(entry);
#else
    void **frame = reinterpret_cast<void **>(top) - 20;
    frame[11] = reinterpret_cast<void *>(entry);
#endif
    fiber->stack_pointer = frame;
  }

  void run_block() {
    memset(shared, 0xff, shared_bytes);
    const u32 cells = shared_bytes / 16 + 1;
    for (u32 cell = 0; cell < cells; cell++) deliverer[cell] = PARTIES;
    memset(read, 0, cells * warp_count() * sizeof(u32));
    memset(flying, 0, cells * sizeof(bool));
    memset(deliveries, 0, cells * sizeof(Delivery));
    memset(clocks, 0, sizeof clocks);
    for (u32 warp = 0; warp < warp_count(); warp++) {
      clocks[warp].of[warp] = 1;
      for (Numbers &reading : warps[warp].reading) reading.count = 0;
    }
    arrivals_count = 0;
    epoch = 1;
    at_barrier = ended = 0;
    for (u32 warp = 0; warp < warp_count(); warp++) warps[warp].ended = 0;
    u8 lanes[32];
    for (u32 lane = 0; lane < 32; lane++) lanes[lane] = lane;
    for (u32 thread = 0; thread < threads; thread++) {
      if (thread % 32 == 0) shuffle(lanes, 32);
      fibers[thread].thread = thread / 32 * 32 + lanes[thread % 32];
      fibers[thread].committed = 0;
      fibers[thread].delivered = fibers[thread].fenced = 0;
      for (Begun &begun : fibers[thread].begun) begun.products = nullptr;
    }
    release();
    current = take_any(0);
    running = true;
    tilewright_switch(&host, current->stack_pointer);
    running = false;
    for (u32 i = 0; i < arrivals_count && !failed; i++) {
      if (arrivals[i].box_count == 0) continue;
      snprintf(message, 256, "block %u: it ends with %u boxes still on their way", block, arrivals[i].box_count);
      failed = true;
    }
    for (u32 i = 0; i < GUARD && !failed; i++) {
      if (shared[i - i64(GUARD)] == GUARD_BYTE && shared[shared_bytes + i] == GUARD_BYTE) continue;
      snprintf(message, 256, "block %u: something was written beyond the %u bytes of shared memory", block, shared_bytes);
      failed = true;
    }
  }
};

// The launch that this thread of the host runs.
inline __thread Machine *machine = nullptr;

inline void fiber_entry() { machine->run_fiber(); }

inline struct sigaction previous_actions[2];

// Makes an error of an access to memory that is not there; one that no kernel did goes to the handler that was installed before.
inline void on_bad_address(int signal, siginfo_t *info, void *context) {
  if (machine && machine->running) machine->fail("nothing lies at the address %p that it uses", info->si_addr);
  const struct sigaction &previous = previous_actions[signal == SIGBUS];
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  sigaction(signal, &previous, nullptr); // the access is repeated under it
}

// Once, when the library is loaded; it has to stay.
inline bool watch_addresses() {
  struct sigaction action = {};
  action.sa_sigaction = on_bad_address;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  return sigaction(SIGSEGV, &action, &previous_actions[0]) == 0 && sigaction(SIGBUS, &action, &previous_actions[1]) == 0;
}
inline const bool addresses_watched = watch_addresses();
inline u32 current_lane() { return machine->current->thread % 32; }
inline Warp &current_warp() { return machine->warps[machine->warp_of(machine->current)]; }

template <class Element> inline void mma_sync(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  warp.left[lane] = a;
  warp.operands[lane][0] = b0;
  warp.operands[lane][1] = b1;
  warp.result[lane] = sum;
  machine->meet(Meeting::MultiplyAdd, Machine::mma_sync<Element>);
}

inline void ldmatrix(u32 (&to)[4], u32 row_address, bool transposed) {
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  warp.operands[lane][0] = row_address;
  warp.result[lane] = to;
  machine->meet(transposed ? Meeting::LoadMatricesTransposed : Meeting::LoadMatrices,
                [transposed](const Warp &all) { machine->ldmatrix(all, transposed); });
}

inline u32 lane_xor(u32 value, u32 mask) {
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  u32 result;
  warp.operands[lane][0] = value;
  warp.operands[lane][1] = mask;
  warp.result[lane] = &result;
  machine->meet(Meeting::LaneXor, [](const Warp &all) { machine->lane_xor(all); });
  return result;
}

inline bool any(bool value) {
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  u32 result;
  warp.operands[lane][0] = value;
  warp.result[lane] = &result;
  machine->meet(Meeting::Any, [](const Warp &all) { machine->any(all); });
  return result != 0;
}

inline u32 lane(u32 value, u32 from) {
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  u32 result;
  warp.operands[lane][0] = value;
  warp.operands[lane][1] = from;
  warp.result[lane] = &result;
  machine->meet(Meeting::Lane, [](const Warp &all) { machine->lane(all); });
  return result;
}

} // namespace emulation

TILEWRIGHT_DEVICE float negative_infinity() { return -__builtin_inff(); }
TILEWRIGHT_DEVICE u32 thread_index() { return emulation::machine->current->thread; }
TILEWRIGHT_DEVICE u32 thread_index_again() { return thread_index(); }
TILEWRIGHT_DEVICE u32 block_index() { return emulation::machine->block; }
TILEWRIGHT_DEVICE u32 block_count() { return emulation::machine->grid; }
TILEWRIGHT_DEVICE void barrier() { emulation::machine->barrier(); }
// Barriers so far stand for time.
TILEWRIGHT_DEVICE u64 nanoseconds() { return emulation::machine->epoch; }
TILEWRIGHT_DEVICE u32 multiprocessor() { return 0; }

TILEWRIGHT_DEVICE u8 *shared_memory() { return emulation::machine->shared; }
TILEWRIGHT_DEVICE u32 shared_address(const void *pointer) {
  return static_cast<u32>(static_cast<const u8 *>(pointer) - emulation::machine->shared);
}

TILEWRIGHT_DEVICE void cp_async_16(u32 target, const void *source, i32 sign) {
  emulation::machine->copy(target, source, sign >= 0);
}
TILEWRIGHT_DEVICE void cp_async_commit() { emulation::machine->current->committed++; }
// With TILEWRIGHT_EMULATE_EARLY_READ every wait is for one group fewer than it should be: a pipeline that is wrong on purpose.
template <int PENDING> TILEWRIGHT_DEVICE void cp_async_wait() {
#ifdef TILEWRIGHT_EMULATE_EARLY_READ
  emulation::machine->deliver(PENDING + 1);
#else
  emulation::machine->deliver(PENDING);
#endif
}

TILEWRIGHT_DEVICE void ldmatrix(u32 (&to)[4], u32 row_address) { emulation::ldmatrix(to, row_address, false); }
TILEWRIGHT_DEVICE void ldmatrix_transposed(u32 (&to)[4], u32 row_address) { emulation::ldmatrix(to, row_address, true); }

TILEWRIGHT_DEVICE void load_words(u32 &first, u32 &second, u32 address) {
  emulation::machine->load_words(first, second, address);
}

TILEWRIGHT_DEVICE void mma_sync(F16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulation::mma_sync<F16>(sum, a, b0, b1);
}
TILEWRIGHT_DEVICE void mma_sync(Bf16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  emulation::mma_sync<Bf16>(sum, a, b0, b1);
}

TILEWRIGHT_DEVICE u32 narrow(F16, float low, float high) {
  return emulation::rounded(F16{}, low) | emulation::rounded(F16{}, high) << 16;
}
TILEWRIGHT_DEVICE u32 narrow(Bf16, float low, float high) {
  return emulation::rounded(Bf16{}, low) | emulation::rounded(Bf16{}, high) << 16;
}

// CTAs run one after the other here, so these have nothing to order.
template <u32 COUNT> TILEWRIGHT_DEVICE void load_coherent(float (&to)[COUNT], const float *source) { memcpy(to, source, sizeof to); }
TILEWRIGHT_DEVICE void launch_dependents() {}
TILEWRIGHT_DEVICE void wait_for_launch_before() {}
TILEWRIGHT_DEVICE void memory_fence() {}
TILEWRIGHT_DEVICE void prefetch(const void *) {}
TILEWRIGHT_DEVICE const u8 *computed_once(const u8 *pointer) { return pointer; }
TILEWRIGHT_DEVICE u32 computed_here(u32 value) { return value; }
TILEWRIGHT_DEVICE void store_words(void *to, u32 first, u32 second) {
  const u32 words[2] = {first, second};
  memcpy(to, words, sizeof words);
}
TILEWRIGHT_DEVICE void store_four(float *to, const float (&from)[4]) { memcpy(to, from, sizeof from); }
TILEWRIGHT_DEVICE u32 float_bits(float value) { return emulation::bits_as<u32>(value); }
TILEWRIGHT_DEVICE float bits_float(u32 bits) { return emulation::bits_as<float>(bits); }
TILEWRIGHT_DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// The device has no instruction that makes FP8 of f32.
constexpr bool has_fp8_narrowing() { return false; }
TILEWRIGHT_DEVICE u32 narrow_fp8_pair(float, float) { return 0; }
TILEWRIGHT_DEVICE u32 multiply_high(u32 a, u32 b) { return u64(a) * b >> 32; }
TILEWRIGHT_DEVICE u32 count_arrival(u32 *counter) { return (*counter)++; }

TILEWRIGHT_DEVICE void widen(F16, u32 pair, float &low, float &high) {
  const emulation::f32x4 wide = emulation::widen(F16{}, emulation::u32x4{pair & 0xffffu, pair >> 16, 0, 0});
  low = wide[0];
  high = wide[1];
}
TILEWRIGHT_DEVICE void widen(Bf16, u32 pair, float &low, float &high) {
  const emulation::f32x4 wide = emulation::widen(Bf16{}, emulation::u32x4{pair & 0xffffu, pair >> 16, 0, 0});
  low = wide[0];
  high = wide[1];
}

TILEWRIGHT_DEVICE u32 permute_bytes(u32 bytes, u32 selector) {
  u32 result = 0;
  for (u32 i = 0; i < 4; i++) {
    const u32 from = selector >> 4 * i & 7;
    result |= (from < 4 ? bytes >> 8 * from & 0xff : 0) << 8 * i;
  }
  return result;
}

template <class Element> inline u32 multiply_pairs(Element type, u32 a, u32 b) {
  float left[2], right[2];
  widen(type, a, left[0], left[1]);
  widen(type, b, right[0], right[1]);
  return narrow(type, left[0] * right[0], left[1] * right[1]);
}

// Without TILEWRIGHT_EMULATE_FP8_CONVERSION an older device is emulated, which has none.
constexpr bool has_fp8_conversion(F16) {
#ifdef TILEWRIGHT_EMULATE_FP8_CONVERSION
  return true;
#else
  return false;
#endif
}
constexpr bool has_fp8_conversion(Bf16) { return false; }
template <class Element> inline u32 convert_fp8(Element type, u32 bytes) {
  float wide[2];
  for (u32 i = 0; i < 2; i++) {
    const u32 byte = bytes >> 8 * i & 0xff, exponent = byte >> 3 & 15, mantissa = byte & 7;
    const float magnitude = exponent ? __builtin_ldexpf(8 + mantissa, i32(exponent) - 10) : __builtin_ldexpf(mantissa, -9);
    wide[i] = (byte & 0x7f) == 0x7f ? __builtin_nanf("") : byte & 0x80 ? -magnitude : magnitude;
  }
  return narrow(type, wide[0], wide[1]);
}

TILEWRIGHT_DEVICE float larger(float a, float b) { return __builtin_fmaxf(a, b); }

// Like the device's, they have no subnormal numbers.
TILEWRIGHT_DEVICE float rounded_product(float a, float b) { return a * b; }
TILEWRIGHT_DEVICE float fused_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

TILEWRIGHT_DEVICE float exp2_fast(float x) {
  const float y = __builtin_exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
}
TILEWRIGHT_DEVICE float log2_fast(float x) { return __builtin_log2f(x < 0x1p-126f && x >= 0.f ? 0.f : x); }

TILEWRIGHT_DEVICE float from_lane_xor(float value, u32 mask) {
  return emulation::bits_as<float>(emulation::lane_xor(emulation::bits_as<u32>(value), mask));
}
TILEWRIGHT_DEVICE i32 from_lane_xor(i32 value, u32 mask) {
  return static_cast<i32>(emulation::lane_xor(static_cast<u32>(value), mask));
}
TILEWRIGHT_DEVICE void sync_warp() {
  emulation::machine->meet(emulation::Meeting::Warp, [](const emulation::Warp &) {});
}
TILEWRIGHT_DEVICE float from_lane(float value, u32 lane) {
  return emulation::bits_as<float>(emulation::lane(emulation::bits_as<u32>(value), lane));
}
TILEWRIGHT_DEVICE u32 from_lane(u32 value, u32 lane) { return emulation::lane(value, lane); }
TILEWRIGHT_DEVICE bool any_in_warp(bool value) { return emulation::any(value); }
TILEWRIGHT_DEVICE i32 largest_in_warp(i32 value) {
  for (u32 mask = 16; mask > 0; mask /= 2) value = larger(value, from_lane_xor(value, mask));
  return value;
}
TILEWRIGHT_DEVICE i32 smallest_in_warp(i32 value) {
  for (u32 mask = 16; mask > 0; mask /= 2) value = smaller(value, from_lane_xor(value, mask));
  return value;
}
TILEWRIGHT_DEVICE u32 lanes_with(bool value) {
  i32 lanes = value ? static_cast<i32>(1u << thread_index() % 32) : 0;
  for (u32 mask = 16; mask > 0; mask /= 2) lanes |= from_lane_xor(lanes, mask);
  return static_cast<u32>(lanes);
}
TILEWRIGHT_DEVICE u32 lowest_bit(u32 lanes) { return static_cast<u32>(__builtin_ctz(lanes)); }
TILEWRIGHT_DEVICE u32 same_in_warp(u32 value) {
  const u32 first = emulation::lane(value, 0);
  if (first != value) emulation::machine->fail("same_in_warp: a lane has %u, the first %u", value, first);
  return first;
}

// How a launch ended.
struct Emulated {
  const char *error; // null, or what happened; valid until this thread's next launch
  u64 poison_reads;  // rows of matrices that were read before a copy had arrived, or without one
};

// Launches `body` as `grid` Q tiles of `threads`. Seed 0 runs warps and lanes in their order, others shuffle them at the start and
// after every barrier; with an even one warps also overtake each other in between.
template <class Body> Emulated emulate(u32 grid, u32 threads, u32 shared_bytes, const Body &body, u64 seed) {
  using namespace emulation;
  static __thread char message[256];
  if (threads == 0 || threads % 32 || threads / 32 > MAX_WARPS) return Emulated{"a block is of 1 to 32 whole warps", 0};
  Machine launch = {};
  launch.grid = grid;
  launch.threads = threads;
  launch.shared_bytes = shared_bytes;
  launch.body = const_cast<void *>(static_cast<const void *>(&body));
  launch.call = [](void *of) { (*static_cast<const Body *>(of))(); };
  launch.random_state = seed;
  launch.shuffled = seed != 0;
  launch.preempted = seed != 0 && seed % 2 == 0;
  launch.message = message;
  const u64 cells = shared_bytes / 16 + 1;
  u8 *const memory = static_cast<u8 *>(aligned_alloc(128, (2 * GUARD + u64(shared_bytes) + 127) / 128 * 128));
  const u64 stack_bytes = u64(threads) * STACK_STRIDE;
  void *const stacks = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!memory || stacks == MAP_FAILED) return Emulated{"no memory for the fibers", 0};
  memset(memory, GUARD_BYTE, 2 * GUARD + shared_bytes);
  launch.shared = memory + GUARD;
  launch.stacks = static_cast<u8 *>(stacks);
  launch.deliverer = static_cast<u32 *>(malloc(cells * sizeof(u32)));
  launch.delivered = static_cast<u32 *>(malloc(cells * sizeof(u32)));
  launch.read = static_cast<u32 *>(malloc(cells * (threads / 32) * sizeof(u32)));
  launch.flying = static_cast<bool *>(malloc(cells * sizeof(bool)));
  launch.deliveries = static_cast<Delivery *>(malloc(cells * sizeof(Delivery)));
  launch.fibers = static_cast<Fiber *>(calloc(threads, sizeof(Fiber)));
  launch.warps = static_cast<Warp *>(calloc(threads / 32, sizeof(Warp)));
  for (u32 thread = 0; thread < threads; thread++) launch.start_fiber(&launch.fibers[thread], fiber_entry);
  for (u32 warp = 0; warp < threads / 32; warp++) launch.warp_order[warp] = warp;

  Machine *const outer = machine;
  machine = &launch;
  for (; launch.block < grid && !launch.failed; launch.block++) launch.run_block();
  machine = outer;

  for (u32 thread = 0; thread < threads; thread++) free(launch.fibers[thread].copies);
  for (u32 warp = 0; warp < threads / 32; warp++)
    for (Numbers &reading : launch.warps[warp].reading) free(reading.at);
  for (Arrivals &arrivals : launch.arrivals) free(arrivals.boxes);
  free(launch.warps);
  free(launch.fibers);
  free(launch.deliveries);
  free(launch.flying);
  free(launch.read);
  free(launch.delivered);
  free(launch.deliverer);
  munmap(stacks, stack_bytes);
  free(memory);
  return Emulated{launch.failed ? message : nullptr, launch.poison_reads};
}

} // namespace tilewright
