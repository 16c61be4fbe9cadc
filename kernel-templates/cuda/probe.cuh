// What a device gives at most: reading, latency, and nothing at all.
#pragma once
#include "types.cuh"

namespace tilewright {

// Reads all of `data` once, 16 bytes a load, eight loads of a thread in flight. With KEEP the lines stay in the second-level cache.
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

} // namespace tilewright
