// The emulated machine, as kernels call it, and launches on it.
#include "machine.hpp"
#include "machine_numbers.hpp"
#include "machine_products.hpp"
#include <csignal>
#include <sys/mman.h>

namespace tilewright {
namespace emulation {

// The launch that this thread of the host runs.
static __thread Machine *machine = nullptr;

static void fiber_entry() { machine->run_fiber(); }

static struct sigaction previous_actions[2];

// Makes an error of an access to memory that is not there; one that no kernel did goes to the handler that was installed before.
static void on_bad_address(int signal, siginfo_t *info, void *context) {
  if (machine && machine->running) machine->fail("nothing lies at the address %p that it uses", info->si_addr);
  const struct sigaction &previous = previous_actions[signal == SIGBUS];
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  sigaction(signal, &previous, nullptr); // the access is repeated under it
}

// Once, when the library is loaded; it has to stay.
static bool watch_addresses() {
  struct sigaction action = {};
  action.sa_sigaction = on_bad_address;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  return sigaction(SIGSEGV, &action, &previous_actions[0]) == 0 && sigaction(SIGBUS, &action, &previous_actions[1]) == 0;
}
[[maybe_unused]] static const bool addresses_watched = watch_addresses();

static u32 current_lane() { return machine->current->thread % 32; }
static Warp &current_warp() { return machine->warps[machine->warp_of(machine->current)]; }

template <class Element> static void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  warp.left[lane] = a;
  warp.operands[lane][0] = b0;
  warp.operands[lane][1] = b1;
  warp.result[lane] = sum;
  machine->meet(Meeting::MultiplyAdd, emulation::mma_sync<Element>);
}

void ldmatrix(u32 (&to)[4], u32 row_address, bool transposed) {
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  warp.operands[lane][0] = row_address;
  warp.result[lane] = to;
  machine->meet(transposed ? Meeting::LoadMatricesTransposed : Meeting::LoadMatrices,
                [transposed](const Warp &all) { machine->ldmatrix(all, transposed); });
}

void stmatrix_transposed(u32 row_address, const u32 *from, u32 matrices) {
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  warp.operands[lane][0] = row_address;
  warp.left[lane] = from;
  machine->meet(Meeting::StoreMatricesTransposed, [matrices](const Warp &all) { machine->stmatrix_transposed(all, matrices); });
}

u32 lane_xor(u32 value, u32 mask) {
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  u32 result;
  warp.operands[lane][0] = value;
  warp.operands[lane][1] = mask;
  warp.result[lane] = &result;
  machine->meet(Meeting::LaneXor, [](const Warp &all) { machine->lane_xor(all); });
  return result;
}

u32 epoch() { return machine->epoch; }
void copy(u32 target, const void *source, bool valid) { machine->copy(target, source, valid); }
void commit_copies() { machine->current->committed++; }
void deliver(u32 pending) { machine->deliver(pending); }

void begin_box(const TensorMap &map, const i32 (&from)[5], u32 target, u32 barrier) {
  u32 bytes = map.words[15];
  for (u32 d = 10; d < 15; d++) bytes *= map.words[d];
  machine->begin_box(Box{&map, {from[0], from[1], from[2], from[3], from[4]}, target, bytes}, barrier);
}

void begin_wgmma(float *sum, u32 count) {
  Fiber &fiber = *machine->current;
  if (fiber.begun_of(sum)) machine->fail("begin_products: earlier products of the same sums have not ended");
  Begun *const begun = fiber.begun_of(nullptr);
  if (!begun) machine->fail("begin_products: two earlier ones have not ended");
  if (!fiber.begun[0].products && !fiber.begun[1].products) fiber.first = sum;
  begun->products = sum;
  memcpy(begun->sums, sum, count * sizeof(float));
  memset(sum, 0xff, count * sizeof(float));
}

void wait_wgmma(float *sum, u32 count) {
  Fiber &fiber = *machine->current;
  Begun *const begun = fiber.begun_of(sum);
  if (!begun) machine->fail("end_products: these did not begin");
  begun->products = nullptr;
  memcpy(sum, begun->sums, count * sizeof(float));
  machine->end_reading(begun - fiber.begun);
  fiber.first = fiber.begun[0].products ? fiber.begun[0].products : fiber.begun[1].products;
}

bool has_begun_wgmma(const float *sum) { return machine->current->begun_of(sum) != nullptr; }

void wait_first_wgmma(float *sum, u32 count) {
  if (machine->current->first != sum) machine->fail("end_first_products: others began before these");
  wait_wgmma(sum, count);
}

void no_more_wgmma() {
  const Fiber &fiber = *machine->current;
  if (fiber.begun[0].products || fiber.begun[1].products) machine->fail("end_products: this would wait for others too");
}

// What one product of a warpgroup is computed by.
typedef void (*Together)(Machine &, u32 first_warp, u32 products);
template <class Left, class Right, bool TRANSPOSED> static Together together(u32 columns) {
  switch (columns) {
  case 8: return multiply_together<Left, Right, 8, TRANSPOSED>;
  case 16: return multiply_together<Left, Right, 16, TRANSPOSED>;
  case 32: return multiply_together<Left, Right, 32, TRANSPOSED>;
  case 64: return multiply_together<Left, Right, 64, TRANSPOSED>;
  case 128: return multiply_together<Left, Right, 128, TRANSPOSED>;
  }
  machine->fail("multiply_add_together: no product has %u columns", columns);
}

static Together together(Types types, u32 columns, bool transposed) {
  switch (types) {
  case Types::F16: return transposed ? together<F16, F16, true>(columns) : together<F16, F16, false>(columns);
  case Types::Bf16: return transposed ? together<Bf16, Bf16, true>(columns) : together<Bf16, Bf16, false>(columns);
  case Types::E4m3E4m3: return together<E4m3, E4m3, false>(columns);
  case Types::E4m3E5m2: return together<E4m3, E5m2, false>(columns);
  case Types::E5m2E4m3: return together<E5m2, E4m3, false>(columns);
  }
}

static void wgmma_async(const float *sum, u32 first, const u32 *registers, const SharedMatrix *a, const SharedMatrix &b, bool add, u32 columns, bool transposed,
                        Types types) {
  Fiber &fiber = *machine->current;
  Begun *const begun = fiber.begun_of(sum);
  if (!begun) machine->fail("multiply_add_together: its sums were not begun");
  const u32 lane = current_lane();
  Warp &warp = current_warp();
  warp.left[lane] = registers;
  warp.matrices[lane][0] = a;
  warp.matrices[lane][1] = &b;
  warp.result[lane] = begun->sums + first;
  if (!add) memset(begun->sums + first, 0, columns / 2 * sizeof(float));
  if (transposed && types > Types::Bf16) machine->fail("multiply_add_together: FP8 is not transposed");
  const Together multiply = together(types, columns, transposed);
  const u32 products = begun - fiber.begun;
  machine->meet_together([multiply, products](u32 first_warp) { multiply(*machine, first_warp, products); });
}

void wgmma_async(const float *sum, u32 first, const u32 (&a)[4], const SharedMatrix &b, bool add, u32 columns, bool transposed, Types types) {
  wgmma_async(sum, first, a, nullptr, b, add, columns, transposed, types);
}
void wgmma_async(const float *sum, u32 first, const SharedMatrix &a, const SharedMatrix &b, bool add, u32 columns, bool transposed, Types types) {
  wgmma_async(sum, first, nullptr, &a, b, add, columns, transposed, types);
}

Emulated run(const Launch &wanted) {
  const auto [grid, threads, shared_bytes, seed, early_read, call, body] = wanted;
  static __thread char message[256];
  if (threads == 0 || threads % 32 || threads / 32 > MAX_WARPS) return Emulated{"a block is of 1 to 32 whole warps", 0};
  Machine launch = {};
  launch.grid = grid;
  launch.threads = threads;
  launch.shared_bytes = shared_bytes;
  launch.body = body;
  launch.call = call;
  launch.early_read = early_read;
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

} // namespace emulation

using emulation::machine;

u32 thread_index() { return machine->current->thread; }
u32 block_index() { return machine->block; }
void barrier() { machine->barrier(); }
void barrier_of_warps(u32 number, u32 warps) { machine->barrier_of_warps(number, warps, false); }
bool any_of_warps(u32 number, u32 warps, bool value) { return machine->barrier_of_warps(number, warps, value); }
u8 *shared_memory() { return machine->shared; }
u32 shared_address(const void *pointer) { return static_cast<u32>(static_cast<const u8 *>(pointer) - machine->shared); }
void load_words(u32 &first, u32 &second, u32 address) { machine->load_words(first, second, address); }
void load_four_words(u32 (&to)[4], u32 address) { machine->load_four_words(to, address); }
void store_four_words(u32 address, const u32 (&from)[4]) { machine->store_four_words(address, from); }

void mma_sync(F16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) { emulation::multiply_add<F16>(sum, a, b0, b1); }
void mma_sync(Bf16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) { emulation::multiply_add<Bf16>(sum, a, b0, b1); }

u32 narrow(F16, float low, float high) { return emulation::rounded(F16{}, low) | emulation::rounded(F16{}, high) << 16; }
u32 narrow(Bf16, float low, float high) { return emulation::rounded(Bf16{}, low) | emulation::rounded(Bf16{}, high) << 16; }

template <class Element> static void widen_pair(Element, u32 pair, float &low, float &high) {
  const emulation::f32x4 wide = emulation::widen(Element{}, emulation::u32x4{pair & 0xffffu, pair >> 16, 0, 0});
  low = wide[0];
  high = wide[1];
}
void widen(F16, u32 pair, float &low, float &high) { widen_pair(F16{}, pair, low, high); }
void widen(Bf16, u32 pair, float &low, float &high) { widen_pair(Bf16{}, pair, low, high); }

u32 permute_bytes(u32 bytes, u32 selector) {
  u32 result = 0;
  for (u32 i = 0; i < 4; i++) {
    const u32 from = selector >> 4 * i & 7;
    result |= (from < 4 ? bytes >> 8 * from & 0xff : 0) << 8 * i;
  }
  return result;
}

template <class Element, class Operation> static u32 of_pairs(Element type, u32 a, u32 b, Operation operation) {
  float left[2], right[2];
  widen(type, a, left[0], left[1]);
  widen(type, b, right[0], right[1]);
  return narrow(type, operation(left[0], right[0]), operation(left[1], right[1]));
}
u32 multiply_pairs(F16 type, u32 a, u32 b) {
  return of_pairs(type, a, b, [](float x, float y) { return x * y; });
}
u32 multiply_pairs(Bf16 type, u32 a, u32 b) {
  return of_pairs(type, a, b, [](float x, float y) { return x * y; });
}
u32 subtract_pairs(Bf16 type, u32 a, u32 b) {
  return of_pairs(type, a, b, [](float x, float y) { return x - y; });
}
u32 larger_magnitudes(Bf16 type, u32 a, u32 b) {
  return of_pairs(type, a, b, [](float x, float y) { return __builtin_copysignf(__builtin_fmaxf(__builtin_fabsf(x), __builtin_fabsf(y)), x * y); });
}

// Every byte of FP8 (e4m3) as a number of two bytes, which has them all.
struct Converted {
  u16 of[256];

  Converted() {
    for (u32 byte = 0; byte < 256; byte++) {
      const u32 exponent = byte >> 3 & 15, mantissa = byte & 7;
      const float magnitude = exponent ? __builtin_ldexpf(8 + mantissa, i32(exponent) - 10) : __builtin_ldexpf(mantissa, -9);
      const float wide = (byte & 0x7f) == 0x7f ? __builtin_nanf("") : byte & 0x80 ? -magnitude : magnitude;
      of[byte] = static_cast<u16>(emulation::rounded(F16{}, wide));
    }
  }

  u32 pair(u32 bytes) const { return of[bytes & 0xff] | u32(of[bytes >> 8 & 0xff]) << 16; }
};
static const Converted converted_f16;
void convert_fp8(F16, u32 bytes, u32 &low, u32 &high) {
  low = converted_f16.pair(bytes & 0xffff);
  high = converted_f16.pair(bytes >> 16);
}

void sync_warp() {
  // Lanes may write now what others of them have read.
  machine->meet(emulation::Meeting::Warp, [](const emulation::Warp &) { machine->tell_lanes(); });
}

u32 from_lane(u32 value, u32 from) {
  const u32 lane = emulation::current_lane();
  emulation::Warp &warp = emulation::current_warp();
  u32 result;
  warp.operands[lane][0] = value;
  warp.operands[lane][1] = from;
  warp.result[lane] = &result;
  machine->meet(emulation::Meeting::Lane, [](const emulation::Warp &all) { machine->lane(all); });
  return result;
}

bool any_in_warp(bool value) {
  const u32 lane = emulation::current_lane();
  emulation::Warp &warp = emulation::current_warp();
  u32 result;
  warp.operands[lane][0] = value;
  warp.result[lane] = &result;
  machine->meet(emulation::Meeting::Any, [](const emulation::Warp &all) { machine->any(all); });
  return result != 0;
}

u32 same_in_warp(u32 value) {
  const u32 first = from_lane(value, 0);
  if (first != value) machine->fail("same_in_warp: a lane has %u, the first %u", value, first);
  return first;
}

void init_mbarrier(u32 barrier, u32 threads) { machine->init_mbarrier(barrier, threads); }
void arrive_expect_tx(u32 barrier, u32 bytes) { machine->arrive(barrier, bytes); }
void expect(u32 barrier, u32 bytes) { machine->expect(barrier, bytes); }
void arrive_after_cp_async(u32 barrier) { machine->arrive_after_cp_async(barrier); }
void wait_mbarrier(u32 barrier, u32 parity) { machine->await(barrier, parity); }
bool test_mbarrier(u32 barrier, u32 parity) { return machine->test(barrier, parity); }

void fence_for_warpgroups() { machine->fence_copies(); }
void commit_wgmma() {
  const emulation::Fiber &fiber = *machine->current;
  if (!fiber.begun[0].products && !fiber.begun[1].products) machine->fail("commit_products: none have begun");
}

} // namespace tilewright
