// What a device gives at most: reading, latency, and nothing at all; and what its prices are made of.
#pragma once
#include "ptx.cuh"

namespace tilewright {

// Reads all of `data` once, 16 bytes a load, eight loads of a thread in flight. With KEEP the lines stay in the L2.
template <bool KEEP> struct ReadProbe {
  __device__ __forceinline__ static uint4 load(const uint4 *from) { return KEEP ? __ldcg(from) : __ldcs(from); }

  __device__ __forceinline__ static void run(const uint4 *data, u64 count, u32 *sink) {
    const u64 stride = u64(gridDim.x) * blockDim.x;
    u64 index = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    u32 sum = 0;
    for (; index + 7 * stride < count; index += 8 * stride) {
      uint4 loaded[8];
#pragma unroll
      for (u32 i = 0; i < 8; i++) loaded[i] = load(data + index + i * stride);
#pragma unroll
      for (u32 i = 0; i < 8; i++) sum ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    }
    for (; index < count; index += stride) {
      const uint4 loaded = load(data + index);
      sum ^= loaded.x ^ loaded.y ^ loaded.z ^ loaded.w;
    }
    // Never true for random data in practice; without it the loads would be removed.
    if (sum == 0x9e3779b9u) *sink = sum;
  }
};

// Follows a chain of indices with one thread: the time of a step is the latency of memory.
struct LatencyProbe {
  __device__ __forceinline__ static void run(const u32 *chain, u32 steps, u64 *cycles) {
    u32 at = 0;
    for (u32 i = 0; i < 64; i++) at = __ldcg(chain + at); // the first steps also pay for address translation
    const long long begin = clock64();
    for (u32 i = 0; i < steps; i++) at = __ldcg(chain + at);
    const long long end = clock64();
    cycles[0] = static_cast<u64>(end - begin);
    cycles[1] = at;
  }
};

// Reads all of `data` in each round; it should stay in the L2. A CTA reads another range in each round than before, as a
// page is read again by another CTA than the first.
struct AgainProbe {
  __device__ __forceinline__ static void run(const uint4 *data, u64 count, u32 rounds, u32 *sink) {
    const u64 stride = u64(gridDim.x) * blockDim.x;
    u32 part = blockIdx.x, sum = 0;
    for (u32 round = 0; round < rounds; round++) {
      part = part + 1 < gridDim.x ? part + 1 : 0;
      u64 index = u64(part) * blockDim.x + threadIdx.x;
      for (; index + 3 * stride < count; index += 4 * stride) {
        uint4 loaded[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) loaded[i] = __ldcg(data + index + i * stride);
#pragma unroll
        for (u32 i = 0; i < 4; i++) sum += loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
      }
      for (; index < count; index += stride) {
        const uint4 loaded = __ldcg(data + index);
        sum += loaded.x ^ loaded.y ^ loaded.z ^ loaded.w;
      }
    }
    if (sum == 0x9e3779b9u) *sink = sum;
  }
};

// Writes all of `data` in each round and reads it back, each thread what it wrote: partials, which a merge reads soon after.
struct WriteProbe {
  // Past the L1 cache, and not before what was written: the compiler moves neither.
  __device__ __forceinline__ static u32 read_back(const uint4 *from) {
    uint4 loaded;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "l"(from)
                 : "memory");
    return loaded.x ^ loaded.y ^ loaded.z ^ loaded.w;
  }

  __device__ __forceinline__ static void run(uint4 *data, u64 count, u32 rounds, u32 *sink) {
    const u64 stride = u64(gridDim.x) * blockDim.x, begin = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    u32 sum = 0;
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll 4
      for (u64 index = begin; index < count; index += stride) data[index] = make_uint4(round, threadIdx.x, blockIdx.x, 1);
#pragma unroll 4
      for (u64 index = begin; index < count; index += stride) sum += read_back(data + index);
    }
    if (sum == 0x9e3779b9u) *sink = sum;
  }
};

// Products of 16-bit matrices from registers: 4096 operations a product, warp and round, with PRODUCTS products in flight.
struct FlopProbe {
  static constexpr u32 PRODUCTS = 8;

  __device__ __forceinline__ static void run(u32 rounds, float *sink) {
    // Halves near 0.06: numbers with bits in them, as zeros take less power.
    const u32 pair = 0x2c012c03u + threadIdx.x;
    const u32 a[4] = {pair, pair + 1, pair + 2, pair + 3};
    float sums[PRODUCTS][4] = {};
    for (u32 round = 0; round < rounds; round++) {
#pragma unroll
      for (u32 i = 0; i < PRODUCTS; i++) mma_sync(F16{}, sums[i], a, pair + i, pair);
    }
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < PRODUCTS; i++) sum += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    // Sums of positive products are positive.
    if (sum < 0) *sink = sum;
  }
};

// A CTA that finds its work and waits for its first tokens: five loads, each from where the one before says, a barrier, and two stages of
// tokens. All of it is from memory that no thread read before, one of `regions` regions.
template <u32 STAGES_BYTES, u32 REGION_BYTES> struct CtaProbe {
  static constexpr u32 PRODUCES = 5, LINE_BYTES = 1024;
  static_assert(STAGES_BYTES + PRODUCES * LINE_BYTES <= REGION_BYTES, "both are different memory");

  __device__ __forceinline__ static void run(const u8 *data, u32 regions, u32 *sink) {
    const u8 *const region = data + u64(blockIdx.x % regions) * REGION_BYTES;
    u32 at = 0; // stays 0 in practice, which the compiler does not know
    for (u32 i = 0; i < PRODUCES; i++) at += __ldcg(reinterpret_cast<const u32 *>(region + i * LINE_BYTES) + at) == 0x9e3779b9u;
    __syncthreads();
    const uint4 *const tokens = reinterpret_cast<const uint4 *>(region + REGION_BYTES - STAGES_BYTES) + threadIdx.x;
    u32 sum = 0;
#pragma unroll 16
    for (u32 i = 0; i < STAGES_BYTES / 16; i += 128) {
      const uint4 loaded = __ldcs(tokens + i);
      sum ^= loaded.x ^ loaded.y ^ loaded.z ^ loaded.w;
    }
    if (sum + at == 0x9e3779b9u) *sink = sum;
  }
};

} // namespace tilewright
