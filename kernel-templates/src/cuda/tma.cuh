// TMA loads of boxes of a tensor, and mbarriers that count bytes (compute capability 9.0). `emulation_tma.hpp` has the same names.
#pragma once
#include "types.cuh"

namespace tilewright {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool HAS_TMA = true;
#else
constexpr bool HAS_TMA = false;
#endif

// A tensor map, made by the host.
struct alignas(64) TensorMap {
  u64 words[16];
};

// A barrier of eight bytes of shared memory. Its phase ends when `threads` threads and all bytes that they expect have arrived.
TILEWRIGHT_DEVICE void init_mbarrier(u32 barrier, u32 threads) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Once, by the thread that has initialised them; a barrier of the CTA has to follow before others use them.
TILEWRIGHT_DEVICE void fence_mbarriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
TILEWRIGHT_DEVICE void arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// The same without a branch, behind which the compiler would take a warp for diverged.
TILEWRIGHT_DEVICE void arrive_if(bool wanted, u32 barrier) {
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.u32 wanted, %1, 0;\n@wanted mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(barrier), "r"(static_cast<u32>(wanted)) : "memory");
}
// For COUNT threads.
template <u32 COUNT> TILEWRIGHT_DEVICE void arrive_for(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}
TILEWRIGHT_DEVICE void arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// The phase waits for `bytes` more bytes. No thread arrives by that.
TILEWRIGHT_DEVICE void expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives once all that this thread copied so far (`cp_async_16`) is there.
TILEWRIGHT_DEVICE void arrive_after_cp_async(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Waits until the phase of that parity has ended; the one before the first has.
TILEWRIGHT_DEVICE void wait_mbarrier(u32 barrier, u32 parity) {
  asm volatile("{\n\t.reg .pred done;\n\tagain:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@!done bra again;\n\t}" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

// Whether that phase is over, at once.
TILEWRIGHT_DEVICE bool test_mbarrier(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{\n\t.reg .pred done;\n\tmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\tselp.u32 %0, 1, 0, done;\n\t}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

// L2 eviction policy of a load: evict first, or normal. The upper half of a policy, as
// `createpolicy` makes them.
TILEWRIGHT_DEVICE u32 cache_policy(bool evict_first) { return evict_first ? 0x12f00000u : 0x10000000u; }

// Copies a box to shared memory, at a multiple of 128; what lies outside of the tensor becomes zeros. Its bytes arrive at the barrier.
TILEWRIGHT_DEVICE void tma_load(u32 target, const TensorMap &map, u32 token, u32 panel, u32 eighth, i32 page_and_head, u32 policy, u32 barrier) {
  asm volatile("{\n\t.reg .b64 policy;\n\tmov.b64 policy, {0, %8};\n\t"
               "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], "
               "policy;\n\t}" ::"r"(target),
               "l"(&map), "r"(0), "r"(token), "r"(panel), "r"(eighth), "r"(page_and_head), "r"(barrier), "r"(policy)
               : "memory");
}

} // namespace tilewright
