// PTX instructions without a C++ equivalent (compute capability 8.0 and up). `emulation.hpp` has the same names.
#pragma once
#include "types.cuh"

#define TILEWRIGHT_DEVICE __device__ __forceinline__

namespace tilewright {

constexpr u32 FULL_WARP = 0xffffffffu;

TILEWRIGHT_DEVICE float negative_infinity() { return __int_as_float(0xff800000); }
TILEWRIGHT_DEVICE u32 thread_index() { return threadIdx.x; }
// The same, read anew: what is computed of it late takes no register before. Where nothing spills anyway (9.0a) the compiler decides.
TILEWRIGHT_DEVICE u32 thread_index_again() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  return threadIdx.x;
#else
  u32 index;
  asm volatile("mov.u32 %0, %tid.x;" : "=r"(index));
  return index;
#endif
}
TILEWRIGHT_DEVICE u32 block_index() { return blockIdx.x; }
TILEWRIGHT_DEVICE void barrier() { __syncthreads(); }
// Of WARPS warps that name the same number from 1 to 15.
template <u32 WARPS> TILEWRIGHT_DEVICE void barrier_of_warps(u32 number) { asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(WARPS * 32) : "memory"); }
TILEWRIGHT_DEVICE u32 float_bits(float value) { return __float_as_uint(value); }
TILEWRIGHT_DEVICE float bits_float(u32 bits) { return __uint_as_float(bits); }
TILEWRIGHT_DEVICE u64 nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
  return now;
}
TILEWRIGHT_DEVICE u32 multiprocessor() {
  u32 number;
  asm volatile("mov.u32 %0, %smid;" : "=r"(number));
  return number;
}

// Dynamic shared memory of the CTA, aligned as wgmma wants it.
TILEWRIGHT_DEVICE u8 *shared_memory() {
  extern __shared__ __align__(1024) u8 memory[];
  return memory;
}

// Address of shared memory as the instructions below take it.
TILEWRIGHT_DEVICE u32 shared_address(const void *pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// Copies 16 bytes to shared memory on their way past the registers and the L1 cache; zeros where `sign` is negative, wherever
// `source` points to then. They may be read after `cp_async_wait` and a barrier.
TILEWRIGHT_DEVICE void cp_async_16(u32 target, const void *source, i32 sign) {
  asm volatile("{\n\t.reg .pred ignored;\n\tsetp.lt.s32 ignored, %2, 0;\n\t"
               "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignored;\n\t}" ::"r"(target),
               "l"(source), "r"(sign)
               : "memory");
}
TILEWRIGHT_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> TILEWRIGHT_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane 8 i + r names row r of matrix i.
TILEWRIGHT_DEVICE void ldmatrix(u32 (&to)[4], u32 row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row_address)
               : "memory");
}
TILEWRIGHT_DEVICE void ldmatrix_transposed(u32 (&to)[4], u32 row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row_address)
               : "memory");
}

// Eight bytes of shared memory.
TILEWRIGHT_DEVICE void load_words(u32 &first, u32 &second, u32 address) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(first), "=r"(second) : "r"(address) : "memory");
}

// Sixteen bytes of shared memory, and to it.
TILEWRIGHT_DEVICE void load_four_words(u32 (&to)[4], u32 address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
TILEWRIGHT_DEVICE void store_four_words(u32 address, const u32 (&from)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]) : "memory");
}

// sum[16, 8] += a[16, 16] * b[16, 8], spread over the warp.
TILEWRIGHT_DEVICE void mma_sync(F16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
TILEWRIGHT_DEVICE void mma_sync(Bf16, float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers rounded to 16 bits each, the first in the lower half.
TILEWRIGHT_DEVICE u32 narrow(F16, float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
TILEWRIGHT_DEVICE u32 narrow(Bf16, float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Bytes 0 to 3 of a result, each chosen by four bits of `selector`: 0 to 3 are those of `bytes`, 4 is zero.
TILEWRIGHT_DEVICE u32 permute_bytes(u32 bytes, u32 selector) { return __byte_perm(bytes, 0, selector); }

// Products of two pairs, rounded.
TILEWRIGHT_DEVICE u32 multiply_pairs(F16, u32 a, u32 b) {
  u32 product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Of pairs of bf16, where there are warpgroups: products, differences, and the larger magnitudes, with some sign.
TILEWRIGHT_DEVICE u32 multiply_pairs(Bf16, u32 a, u32 b) {
  u32 product = 0;
#if __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#endif
  return product;
}
TILEWRIGHT_DEVICE u32 subtract_pairs(Bf16, u32 a, u32 b) {
  u32 difference = 0;
#if __CUDA_ARCH__ >= 900
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
#endif
  return difference;
}
TILEWRIGHT_DEVICE u32 larger_magnitudes(Bf16, u32 a, u32 b) {
  u32 magnitudes = 0;
#if __CUDA_ARCH__ >= 900
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(magnitudes) : "r"(a), "r"(b));
#endif
  return magnitudes;
}

// Whether there is an instruction that makes a pair of these of two FP8 numbers (e4m3). It takes either half of a register.
TILEWRIGHT_DEVICE constexpr bool has_fp8_conversion(F16) { return __CUDA_ARCH__ >= 890; }
TILEWRIGHT_DEVICE void convert_fp8(F16, u32 bytes, u32 &low, u32 &high) {
#if __CUDA_ARCH__ >= 890
  asm("{\n\t.reg .b16 first, second;\n\tmov.b32 {first, second}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, first;\n\tcvt.rn.f16x2.e4m3x2 %1, second;\n\t}"
      : "=r"(low), "=r"(high)
      : "r"(bytes));
#endif
}

// Asks for it here: a plain load the compiler would put behind the branch that tells whether it is needed, which may wait for another load.
template <class T> TILEWRIGHT_DEVICE T load_now(const T &source) {
  static_assert(sizeof(T) % 16 == 0 && alignof(T) >= 16, "whole loads of 16 bytes");
  u32 words[sizeof(T) / 4];
#pragma unroll
  for (u32 i = 0; i < sizeof(T) / 4; i += 4)
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                 : "l"(reinterpret_cast<const u32 *>(&source) + i));
  T value;
  memcpy(&value, words, sizeof value);
  return value;
}

// What other CTAs of the same launch may have written: past the L1 cache, which knows nothing of it.
TILEWRIGHT_DEVICE void load_coherent(float (&to)[2], const float *source) {
  const float2 pair = __ldcg(reinterpret_cast<const float2 *>(source));
  to[0] = pair.x, to[1] = pair.y;
}
template <u32 COUNT> TILEWRIGHT_DEVICE void load_coherent(float (&to)[COUNT], const float *source) {
  static_assert(COUNT % 4 == 0, "whole loads of 16 bytes");
#pragma unroll
  for (u32 i = 0; i < COUNT; i += 4) {
    const float4 four = __ldcg(reinterpret_cast<const float4 *>(source + i));
    to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
  }
}

// A launch may begin before the one it depends on has ended, once all CTAs of that one let it. What they write is there after the wait.
TILEWRIGHT_DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
TILEWRIGHT_DEVICE void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Brings the line of an address to the L2.
TILEWRIGHT_DEVICE void prefetch(const void *address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// The same pointer, in registers of its own: the compiler does not put it together from its parts at each use.
TILEWRIGHT_DEVICE const u8 *computed_once(const u8 *pointer) {
  asm("" : "+l"(pointer));
  return pointer;
}

// The same number, of which the compiler knows nothing here: what is computed of it is computed where it stands, not before a loop around it.
TILEWRIGHT_DEVICE u32 computed_here(u32 value) {
  asm volatile("" : "+r"(value));
  return value;
}

TILEWRIGHT_DEVICE void store_words(void *to, u32 first, u32 second) { *reinterpret_cast<uint2 *>(to) = make_uint2(first, second); }
TILEWRIGHT_DEVICE void store_four(float *to, const float (&from)[4]) {
  *reinterpret_cast<float4 *>(to) = make_float4(from[0], from[1], from[2], from[3]);
}

// The upper half of a product.
TILEWRIGHT_DEVICE u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }

// What this thread wrote so far is visible to every thread that sees its next write.
TILEWRIGHT_DEVICE void memory_fence() { __threadfence(); }

// Adds one; what was there before.
TILEWRIGHT_DEVICE u32 count_arrival(u32 *counter) { return atomicAdd(counter, 1u); }

// What `narrow` rounded, exactly.
TILEWRIGHT_DEVICE void widen(F16, u32 pair, float &low, float &high) {
  asm("{\n\t.reg .b16 first, second;\n\tmov.b32 {first, second}, %2;\n\tcvt.f32.f16 %0, first;\n\tcvt.f32.f16 %1, second;\n\t}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
}
TILEWRIGHT_DEVICE void widen(Bf16, u32 pair, float &low, float &high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}

// One instruction, unlike the comparison that `types.cuh` has for other types.
TILEWRIGHT_DEVICE float larger(float a, float b) { return fmaxf(a, b); }

// Operations that the compiler joins with no others, so that all kernels round them alike.
TILEWRIGHT_DEVICE float rounded_product(float a, float b) { return __fmul_rn(a, b); }
TILEWRIGHT_DEVICE float fused_multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }

TILEWRIGHT_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TILEWRIGHT_DEVICE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

TILEWRIGHT_DEVICE float from_lane_xor(float value, u32 mask) { return __shfl_xor_sync(FULL_WARP, value, mask); }
TILEWRIGHT_DEVICE i32 from_lane_xor(i32 value, u32 mask) { return __shfl_xor_sync(FULL_WARP, value, mask); }
// The value of a lane of the warp; each lane says which.
TILEWRIGHT_DEVICE float from_lane(float value, u32 lane) { return __shfl_sync(FULL_WARP, value, lane); }
TILEWRIGHT_DEVICE u32 from_lane(u32 value, u32 lane) { return __shfl_sync(FULL_WARP, value, lane); }
TILEWRIGHT_DEVICE u64 from_lane(u64 value, u32 lane) { return __shfl_sync(FULL_WARP, value, lane); }
// The largest and the smallest value of the warp's lanes.
TILEWRIGHT_DEVICE i32 largest_in_warp(i32 value) { return __reduce_max_sync(FULL_WARP, value); }
TILEWRIGHT_DEVICE i32 smallest_in_warp(i32 value) { return __reduce_min_sync(FULL_WARP, value); }
// Lanes of the warp of which something is true, a bit each; and the first one of such.
TILEWRIGHT_DEVICE u32 lanes_with(bool value) { return __ballot_sync(FULL_WARP, value); }
TILEWRIGHT_DEVICE u32 lowest_bit(u32 lanes) { return static_cast<u32>(__ffs(static_cast<int>(lanes))) - 1; }
TILEWRIGHT_DEVICE bool any_in_warp(bool value) { return __any_sync(FULL_WARP, value); }
// The same of WARPS warps that meet at a barrier. That all lanes have the same answer is not known to the compiler: the vote tells it, and code that depends on
// it does not diverge.
template <u32 WARPS> TILEWRIGHT_DEVICE bool any_of_warps(u32 number, bool value) {
  u32 any;
  asm volatile("{\n\t.reg .pred own, all;\n\tsetp.ne.u32 own, %2, 0;\n\tbar.red.or.pred all, %1, %3, own;\n\tselp.u32 %0, 1, 0, all;\n\t}"
               : "=r"(any)
               : "r"(number), "r"(static_cast<u32>(value)), "n"(WARPS * 32)
               : "memory");
  return any_in_warp(any != 0);
}
// What the lanes of the warp wrote before is there for all of them.
TILEWRIGHT_DEVICE void sync_warp() { __syncwarp(); }
// What all lanes of the warp have anyway, said in a way that the compiler can tell: code that depends on it does not diverge.
TILEWRIGHT_DEVICE u32 same_in_warp(u32 value) { return __shfl_sync(FULL_WARP, value, 0); }

} // namespace tilewright
