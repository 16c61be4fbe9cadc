// What the emulated machine does for the kernels: `machine.cpp` has all of it, and is compiled once, with optimisation, while kernels are
// compiled by the hundred and run little code of their own.
#pragma once
#include "types.cuh"

#define TILEWRIGHT_DEVICE inline

namespace tilewright {

// A tensor as the emulated machine knows it: its words are its address, the strides of dimensions 1 to 4 in bytes, the sizes of dimensions
// 0 to 4, those of a box, and the bytes of an element.
struct alignas(64) TensorMap {
  u64 words[16];
};

// Where a byte of shared memory lies whose chunk of 16 is exchanged by its address, with rows of 128 or 64 bytes (swizzle modes).
constexpr u32 exchanged(u32 address, u32 row_bytes) { return address ^ address / 128 % (row_bytes / 16) * 16; }

// A matrix in shared memory, in panels of rows of 128 or 64 bytes that exchange their chunks by their addresses.
struct SharedMatrix {
  u32 address, panel, rows_8, row_bytes;

  template <u32 ROW_BYTES> TILEWRIGHT_DEVICE static SharedMatrix at(u32 address, u32 panel, u32 rows_8) {
    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64, "the swizzle modes that a device has as well");
    return SharedMatrix{address, panel, rows_8, ROW_BYTES};
  }
  TILEWRIGHT_DEVICE SharedMatrix further(u32 bytes) const { return SharedMatrix{address + bytes, panel, rows_8, row_bytes}; }

  // Where the element of a row and a column lies.
  u32 element(u32 row, u32 column) const {
    const u32 columns = row_bytes / 2;
    return exchanged(address + row / 8 * rows_8 + row % 8 * row_bytes + column / columns * panel + column % columns * 2, row_bytes);
  }
};

// How a launch ended.
struct Emulated {
  const char *error; // null, or what happened; valid until this thread's next launch
  u64 poison_reads;  // rows of matrices that were read before a copy had arrived, or without one
};

// Instructions that are functions of the machine as they are.
u32 thread_index();
u32 block_index();
void barrier();
void barrier_of_warps(u32 number, u32 warps);
template <u32 WARPS> TILEWRIGHT_DEVICE void barrier_of_warps(u32 number) { barrier_of_warps(number, WARPS); }
bool any_of_warps(u32 number, u32 warps, bool value);
template <u32 WARPS> TILEWRIGHT_DEVICE bool any_of_warps(u32 number, bool value) { return any_of_warps(number, WARPS, value); }
u8 *shared_memory();
u32 shared_address(const void *pointer);
void load_words(u32 &first, u32 &second, u32 address);
void load_four_words(u32 (&to)[4], u32 address);
void store_four_words(u32 address, const u32 (&from)[4]);
void mma_sync(F16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1);
void mma_sync(Bf16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1);
u32 narrow(F16, float low, float high);
u32 narrow(Bf16, float low, float high);
void widen(F16, u32 pair, float &low, float &high);
void widen(Bf16, u32 pair, float &low, float &high);
u32 multiply_pairs(F16, u32 a, u32 b);
u32 multiply_pairs(Bf16, u32 a, u32 b);
u32 subtract_pairs(Bf16, u32 a, u32 b);
u32 larger_magnitudes(Bf16, u32 a, u32 b);
u32 permute_bytes(u32 bytes, u32 selector);
void convert_fp8(F16, u32 bytes, u32 &low, u32 &high);
void sync_warp();
u32 from_lane(u32 value, u32 lane);
bool any_in_warp(bool value);
u32 same_in_warp(u32 value);
void init_mbarrier(u32 barrier, u32 threads);
void arrive_expect_tx(u32 barrier, u32 bytes);
void expect(u32 barrier, u32 bytes);
void arrive_after_cp_async(u32 barrier);
void wait_mbarrier(u32 barrier, u32 parity);
bool test_mbarrier(u32 barrier, u32 parity);
void fence_for_warpgroups();
void commit_wgmma();

namespace emulation {

// Barriers that this launch's CTA has passed, counted from 1.
u32 epoch();
void copy(u32 target, const void *source, bool valid);
void commit_copies();
// All but the last `pending` groups of this thread's copies arrive.
void deliver(u32 pending);
void ldmatrix(u32 (&to)[4], u32 row_address, bool transposed);
void stmatrix_transposed(u32 row_address, const u32 *from, u32 matrices);
u32 lane_xor(u32 value, u32 mask);
void begin_box(const TensorMap &map, const i32 (&from)[5], u32 target, u32 barrier);

// Products of a warpgroup, with `count` sums a thread.
void begin_wgmma(float *sum, u32 count);
// What a product multiplies: elements of both sides.
enum class Types : u32 { F16, Bf16, E4m3E4m3, E4m3E5m2, E5m2E4m3 };
// sum[64, columns] += a[64, 32 bytes] * b, by the sums from the given one on. The left side is in registers, or in shared memory.
void wgmma_async(const float *sum, u32 first, const u32 (&a)[4], const SharedMatrix &b, bool add, u32 columns, bool transposed, Types types);
void wgmma_async(const float *sum, u32 first, const SharedMatrix &a, const SharedMatrix &b, bool add, u32 columns, bool transposed, Types types);
void wait_wgmma(float *sum, u32 count);
bool has_begun_wgmma(const float *sum);
void wait_first_wgmma(float *sum, u32 count);
// Ends the launch with an error if products have begun that have not ended.
void no_more_wgmma();

struct Launch {
  u32 grid, threads, shared_bytes;
  u64 seed;
  bool early_read; // copies may be on their way when a thread ends
  void (*call)(const void *body);
  const void *body;
};

// Seed 0 runs warps and lanes in their order, others shuffle them at the start and after every barrier; with an even one warps also overtake
// each other in between.
Emulated run(const Launch &launch);

} // namespace emulation
} // namespace tilewright
