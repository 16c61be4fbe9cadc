// wgmma: four warps multiply 64 rows at once by a matrix in shared memory, which is read once for all of them (compute capability 9.0a).
// `emulation_wgmma.hpp` has the same names.
//
// Operand A and the accumulators lie in registers as those of `mma_sync` do, warp by warp: warp w of the group has rows 16 w and on. Operand A may
// lie in shared memory, too.
#pragma once
#include "types.cuh"

namespace tilewright {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool HAS_WGMMA = true;
#else
constexpr bool HAS_WGMMA = false;
#endif

// What this thread's copies have brought is visible to wgmma, too, after the next barrier.
TILEWRIGHT_DEVICE void fence_for_warpgroups() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Two or four 8x8 matrices of 16-bit elements, as `ldmatrix_transposed` reads them; lane 8 i + r names row r of matrix i.
TILEWRIGHT_DEVICE void stmatrix_transposed(u32 row_address, const u32 (&from)[2]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row_address), "r"(from[0]), "r"(from[1]) : "memory");
#endif
}
TILEWRIGHT_DEVICE void stmatrix_transposed(u32 row_address, const u32 (&from)[4]) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
#endif
}

// Changes how many registers the threads of this warpgroup have: up, once others have left as many, or down.
template <u32 REGISTERS> TILEWRIGHT_DEVICE void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <u32 REGISTERS> TILEWRIGHT_DEVICE void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

// What all lanes of the warp have anyway, in a uniform register, where products want their matrices: where the compiler knows already that all have the
// same, a shuffle (`same_in_warp`) leaves it in a register of each lane, and each product moves it.
TILEWRIGHT_DEVICE u32 in_uniform_register(u32 value) {
  u32 same;
  asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(same) : "r"(value));
  return same;
}

// A matrix in panels of rows of 128 or 64 bytes, whose chunks of 16 bytes are exchanged by their addresses (swizzle modes).
struct SharedMatrix {
  u32 low, high; // as the instruction takes them: what differs is all in `low`

  TILEWRIGHT_DEVICE u64 bits() const {
    u64 both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
    return both;
  }

  // At a multiple of 8 rows of a panel; the bytes from one panel to the next, and from 8 rows to the next.
  template <u32 ROW_BYTES> TILEWRIGHT_DEVICE static SharedMatrix at(u32 address, u32 panel, u32 rows_8) {
    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64, "the swizzle modes that are written down here");
    return SharedMatrix{in_uniform_register(address / 16 | panel / 16 << 16), rows_8 / 16 | (ROW_BYTES == 128 ? 1u : 2u) << 30};
  }
  // The same matrix `bytes` bytes further on: with a multiple of 8 rows, or in its first row.
  TILEWRIGHT_DEVICE SharedMatrix further(u32 bytes) const { return SharedMatrix{low + bytes / 16, high}; }
};

// Keeps the compiler from moving what is done with these registers to the other side.
template <u32 TILES> TILEWRIGHT_DEVICE void hold(float (&sum)[TILES][4]) {
#pragma unroll
  for (u32 j = 0; j < TILES; j++) asm volatile("" : "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3])::"memory");
}

// The same of left sides: what makes them stays before the products.
template <u32 COUNT> TILEWRIGHT_DEVICE void hold_left(u32 (&a)[COUNT][4]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; i++) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

// Before the first of some products that add to `sum`, whose left sides are computed by then.
template <u32 TILES> TILEWRIGHT_DEVICE void begin_wgmma(float (&sum)[TILES][4]) {
  hold(sum);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// After the last of them, at once.
TILEWRIGHT_DEVICE void commit_wgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until `sum` holds all products, and until shared memory is no longer read.
template <u32 TILES> TILEWRIGHT_DEVICE void wait_wgmma(float (&sum)[TILES][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  hold(sum);
}

// The same where some other branch may have waited.
template <u32 TILES> TILEWRIGHT_DEVICE void wait_wgmma_if_any(float (&sum)[TILES][4]) { wait_wgmma(sum); }

// The same while products that have begun later go on.
template <u32 TILES> TILEWRIGHT_DEVICE void wait_first_wgmma(float (&sum)[TILES][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
  hold(sum);
}

#define TILEWRIGHT_SUM_1(sum, j) "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3])
#define TILEWRIGHT_SUM_2(sum, j) TILEWRIGHT_SUM_1(sum, j), TILEWRIGHT_SUM_1(sum, j + 1)
#define TILEWRIGHT_SUM_4(sum, j) TILEWRIGHT_SUM_2(sum, j), TILEWRIGHT_SUM_2(sum, j + 2)
#define TILEWRIGHT_SUM_8(sum, j) TILEWRIGHT_SUM_4(sum, j), TILEWRIGHT_SUM_4(sum, j + 4)
#define TILEWRIGHT_SUM_16(sum, j) TILEWRIGHT_SUM_8(sum, j), TILEWRIGHT_SUM_8(sum, j + 8)
#define TILEWRIGHT_0_3 "%0, %1, %2, %3"
#define TILEWRIGHT_0_7 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TILEWRIGHT_8_15 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TILEWRIGHT_16_31 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TILEWRIGHT_32_47 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TILEWRIGHT_48_63 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TILEWRIGHT_16 TILEWRIGHT_0_7 TILEWRIGHT_8_15
#define TILEWRIGHT_32 TILEWRIGHT_16 TILEWRIGHT_16_31
#define TILEWRIGHT_64 TILEWRIGHT_32 TILEWRIGHT_32_47 TILEWRIGHT_48_63
// The registers of a thread's sums, then those of `left`, `right`, what says whether `right` is transposed, and whether to add. `types` names how
// many elements of a row are multiplied, and what they are.
#define TILEWRIGHT_WGMMA(columns, types, registers, left, right, order, adding, sums)                                                        \
  asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.u32 add, " adding ", 0;\n\twgmma.mma_async.sync.aligned.m64n" columns types                  \
               " {" registers "}, {" left "}, " right ", add, 1, 1" order ";\n\t}"                                                           \
               : sums                                                                                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()), "n"(TRANSPOSED ? 1 : 0), "r"(static_cast<u32>(add)))

// The same with the left side in shared memory.
#define TILEWRIGHT_WGMMA_SHARED(columns, types, registers, left, right, order, adding, sums)                                                 \
  asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.u32 add, " adding ", 0;\n\twgmma.mma_async.sync.aligned.m64n" columns types                  \
               " {" registers "}, " left ", " right ", add, 1, 1" order ";\n\t}"                                                             \
               : sums                                                                                                                        \
               : "l"(a.bits()), "l"(b.bits()), "n"(TRANSPOSED ? 1 : 0), "r"(static_cast<u32>(add)))

// Either side of 16-bit elements may be transposed; FP8 has its rows as they are.
#define TILEWRIGHT_ORDER(right) ", " right
#define TILEWRIGHT_ORDER_SHARED(right) ", 0, " right
#define TILEWRIGHT_AS_IT_IS(right) ""

// sum[64, COLUMNS] += a[64, 32 bytes] * b, or = without `add`, from tile FIRST of `sum` on, of 8 columns each. Column j and step k of b are a row
// and a column of the matrix that lies there; TRANSPOSED, they are a column and a row.
#define TILEWRIGHT_MULTIPLY_TOGETHER(Left, Right, types, ORDER, ORDER_SHARED)                                                                \
  template <u32 COLUMNS, bool TRANSPOSED, u32 FIRST, u32 TILES>                                                                              \
  TILEWRIGHT_DEVICE void wgmma_async(Left, Right, float (&sum)[TILES][4], const u32 (&a)[4], SharedMatrix b, bool add) {                     \
    static_assert(COLUMNS == 8 || COLUMNS == 16 || COLUMNS == 32 || COLUMNS == 64 || COLUMNS == 128, "the widths that are written down here"); \
    static_assert(FIRST + COLUMNS / 8 <= TILES, "columns that there are");                                                                   \
    if constexpr (COLUMNS == 8)                                                                                                              \
      TILEWRIGHT_WGMMA("8", types, TILEWRIGHT_0_3, "%4, %5, %6, %7", "%8", ORDER("%9"), "%10", TILEWRIGHT_SUM_1(sum, FIRST));                 \
    else if constexpr (COLUMNS == 16)                                                                                                        \
      TILEWRIGHT_WGMMA("16", types, TILEWRIGHT_0_7, "%8, %9, %10, %11", "%12", ORDER("%13"), "%14", TILEWRIGHT_SUM_2(sum, FIRST));            \
    else if constexpr (COLUMNS == 32)                                                                                                        \
      TILEWRIGHT_WGMMA("32", types, TILEWRIGHT_16, "%16, %17, %18, %19", "%20", ORDER("%21"), "%22", TILEWRIGHT_SUM_4(sum, FIRST));           \
    else if constexpr (COLUMNS == 64)                                                                                                        \
      TILEWRIGHT_WGMMA("64", types, TILEWRIGHT_32, "%32, %33, %34, %35", "%36", ORDER("%37"), "%38", TILEWRIGHT_SUM_8(sum, FIRST));           \
    else                                                                                                                                     \
      TILEWRIGHT_WGMMA("128", types, TILEWRIGHT_64, "%64, %65, %66, %67", "%68", ORDER("%69"), "%70", TILEWRIGHT_SUM_16(sum, FIRST));         \
  }                                                                                                                                          \
  template <u32 COLUMNS, bool TRANSPOSED, u32 FIRST, u32 TILES>                                                                              \
  TILEWRIGHT_DEVICE void wgmma_async(Left, Right, float (&sum)[TILES][4], SharedMatrix a, SharedMatrix b, bool add) {                        \
    static_assert(COLUMNS == 8 || COLUMNS == 16 || COLUMNS == 32 || COLUMNS == 64 || COLUMNS == 128, "the widths that are written down here"); \
    static_assert(FIRST + COLUMNS / 8 <= TILES, "columns that there are");                                                                   \
    if constexpr (COLUMNS == 8)                                                                                                              \
      TILEWRIGHT_WGMMA_SHARED("8", types, TILEWRIGHT_0_3, "%4", "%5", ORDER_SHARED("%6"), "%7", TILEWRIGHT_SUM_1(sum, FIRST));                \
    else if constexpr (COLUMNS == 16)                                                                                                        \
      TILEWRIGHT_WGMMA_SHARED("16", types, TILEWRIGHT_0_7, "%8", "%9", ORDER_SHARED("%10"), "%11", TILEWRIGHT_SUM_2(sum, FIRST));             \
    else if constexpr (COLUMNS == 32)                                                                                                        \
      TILEWRIGHT_WGMMA_SHARED("32", types, TILEWRIGHT_16, "%16", "%17", ORDER_SHARED("%18"), "%19", TILEWRIGHT_SUM_4(sum, FIRST));            \
    else if constexpr (COLUMNS == 64)                                                                                                        \
      TILEWRIGHT_WGMMA_SHARED("64", types, TILEWRIGHT_32, "%32", "%33", ORDER_SHARED("%34"), "%35", TILEWRIGHT_SUM_8(sum, FIRST));            \
    else                                                                                                                                     \
      TILEWRIGHT_WGMMA_SHARED("128", types, TILEWRIGHT_64, "%64", "%65", ORDER_SHARED("%66"), "%67", TILEWRIGHT_SUM_16(sum, FIRST));          \
  }
TILEWRIGHT_MULTIPLY_TOGETHER(F16, F16, "k16.f32.f16.f16", TILEWRIGHT_ORDER, TILEWRIGHT_ORDER_SHARED)
TILEWRIGHT_MULTIPLY_TOGETHER(Bf16, Bf16, "k16.f32.bf16.bf16", TILEWRIGHT_ORDER, TILEWRIGHT_ORDER_SHARED)
TILEWRIGHT_MULTIPLY_TOGETHER(E4m3, E4m3, "k32.f32.e4m3.e4m3", TILEWRIGHT_AS_IT_IS, TILEWRIGHT_AS_IT_IS)
TILEWRIGHT_MULTIPLY_TOGETHER(E4m3, E5m2, "k32.f32.e4m3.e5m2", TILEWRIGHT_AS_IT_IS, TILEWRIGHT_AS_IT_IS)
TILEWRIGHT_MULTIPLY_TOGETHER(E5m2, E4m3, "k32.f32.e5m2.e4m3", TILEWRIGHT_AS_IT_IS, TILEWRIGHT_AS_IT_IS)

} // namespace tilewright
