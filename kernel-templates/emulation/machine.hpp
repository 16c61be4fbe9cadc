// The emulated machine: fibers, shared memory, barriers.
#pragma once
#include "machine_state.hpp"
#include <cstdarg>
#include <cstdio>

// Saves the registers that a function has to keep, and the stack, then goes on where `to` was saved.
extern "C" void tilewright_switch(void **save, void *to) __asm__("tilewright_switch") __attribute__((visibility("hidden")));
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

namespace tilewright::emulation {

constexpr u32 GUARD = 1024; // bytes on either side of shared memory that no thread may touch
constexpr u8 GUARD_BYTE = 0xa5;
constexpr u32 STACK = 64 * 1024;
// Not a power of two, or the stacks of a warp would compete for the same lines of the cache.
constexpr u32 STACK_STRIDE = STACK + 17 * 64;

// All of one launch.
struct Machine {
  u32 grid, block, threads, shared_bytes;
  void (*call)(const void *);
  const void *body;
  u64 random_state;
  bool shuffled, preempted, early_read;

  u8 *shared;
  // For each 16 bytes of shared memory, called a cell: whose clock said what when they arrived, or PARTIES; whether they are on their way; what the
  // clock of each warp said when it read them last; and who brought them.
  u32 *deliverer, *delivered, *read;
  bool *flying;
  Delivery *deliveries;
  Clock clocks[MAX_WARPS];
  Arrivals arrivals[MAX_ARRIVALS];
  u32 arrivals_count;
  NamedBarrier named[NAMED_BARRIERS];
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

  // The last thread wakes all that wait, and goes on itself. Products of warpgroups may go on meanwhile. Whether something is true of any thread.
  bool barrier_of_warps(u32 number, u32 warps_of_it, bool value) {
    if (number == 0 || number >= NAMED_BARRIERS) fail("there is no barrier %u of some warps", number);
    NamedBarrier &barrier = named[number];
    if (barrier.arrived == 0) barrier.warps = warps_of_it;
    if (barrier.warps != warps_of_it) fail("barrier %u is of %u warps to some threads, and of %u to others", number, barrier.warps, warps_of_it);
    barrier.waiting[warp_of(current)] |= 1u << (current - fibers) % 32;
    barrier.any = barrier.any || value;
    if (++barrier.arrived < warps_of_it * 32) {
      block_current();
      return barrier.any_before; // it stays until this thread comes again
    }
    Clock all = {};
    for (u32 warp = 0; warp < warp_count(); warp++) {
      if (!barrier.waiting[warp]) continue;
      if (~barrier.waiting[warp]) fail("warp %u diverges: some of its lanes are at barrier %u, the others are not", warp, number);
      all.join(clocks[warp]);
    }
    for (u32 warp = 0; warp < warp_count(); warp++) {
      if (!barrier.waiting[warp]) continue;
      clocks[warp] = all;
      clocks[warp].of[warp]++;
      warps[warp].ready = ~0u;
    }
    warps[warp_of(current)].ready &= ~(1u << (current - fibers) % 32);
    const bool any = barrier.any;
    barrier = NamedBarrier{};
    return barrier.any_before = any;
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

  // The current warp tells itself of what it has done.
  void tell_lanes() {
    const u32 own = warp_of(current);
    clocks[own].of[own]++;
  }

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

  // Each lane writes the row that it names.
  void stmatrix_transposed(const Warp &warp, u32 matrices) {
    Fiber *const last = current;
    for (u32 lane = 0; lane < matrices * 8; lane++) {
      u16 row[8];
      for (u32 i = 0; i < 8; i++) row[i] = warp.left[i * 4 + lane % 8 / 2][lane / 8] >> lane % 2 * 16;
      u32 words[4];
      memcpy(words, row, 16);
      current = &fibers[warp_of(last) * 32 + lane];
      store_four_words(warp.operands[lane][0], words);
    }
    current = last;
  }

  // By one lane, which meets no thread.
  void load_words(u32 &first, u32 &second, u32 address) {
    if (address % 8) fail("load_words reads address %u, which is no multiple of 8", address);
    const u8 *const bytes = read_cell(address / 16 * 16, "load_words") + address % 16;
    memcpy(&first, bytes, 4);
    memcpy(&second, bytes + 4, 4);
    poison_reads += first == 0xffffffffu && second == 0xffffffffu;
  }

  // Whether the current thread has brought, or written, sixteen bytes that nobody was told of since: it may read them, and write them anew.
  bool is_own(u32 address) const {
    const u32 own = warp_of(current), cell = address / 16;
    return deliverer[cell] == own && deliveries[cell].fiber == current - fibers && !has_seen(own, delivered[cell]);
  }

  // Sixteen bytes, likewise.
  void load_four_words(u32 (&to)[4], u32 address) {
    const u8 *const bytes = at(address, "load_four_words");
    memcpy(to, is_own(address) ? bytes : read_cell(address, "load_four_words"), 16);
    poison_reads += to[0] == 0xffffffffu && to[1] == 0xffffffffu;
  }

  // What a lane writes is like a copy that has arrived: other warps read it once this one has told of it, and warpgroups once it is fenced.
  void store_four_words(u32 address, const u32 (&from)[4]) {
    memcpy(overwrite(address, "store_four_words"), from, 16);
    const u32 own = warp_of(current), cell = address / 16;
    deliverer[cell] = own;
    delivered[cell] = clocks[own].of[own];
    deliveries[cell] = Delivery{static_cast<u32>(current - fibers), ++current->delivered};
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

  // Boxes arrive as late as may be: only where another thread has waited for them.
  bool test(u32 address, u32 parity) {
    Arrivals &barrier = arrivals_at(address, "test_arrivals");
    if (barrier.phases % 2 == parity) return false;
    clocks[warp_of(current)].join(barrier.over);
    return true;
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

  // Brings a box in rows of 128 or 64 bytes, whose chunks of 16 bytes are exchanged by their addresses. What lies outside of the tensor is zeros.
  void deliver_box(const Box &box, u32 party, u32 phase) {
    const u64 *const words = box.map->words;
    const u32 row_bytes = words[10] * words[15];
    if (row_bytes != 128 && row_bytes != 64) fail("copy_box: rows of %u bytes, not of 128 or 64", row_bytes);
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
              const u32 to = exchanged(target, row_bytes);
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
      if (current->copy_count && !early_read) fail("ends with %u copies still on their way", current->copy_count);
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

} // namespace tilewright::emulation
