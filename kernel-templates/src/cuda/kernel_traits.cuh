// Kernel traits: what a tile and a kernel class decide at compile time, and the layout of shared memory.
//
// The other headers are templates over one such type, `S`.
#pragma once
#include "chunk.cuh"
#include "options.cuh"
#include "prelude.cuh"

namespace tilewright {

template <u32 M_, u32 N_, u32 WARPS_, u32 STAGES_, u32 HEAD_DIM_, class Element_, class KvElement_, class Options, u32 PRODUCERS_, bool MIXED_ = false>
struct KernelTraits : Options {
  // The parameters, for what knows the shape as one type.
  static constexpr u32 M = M_, N = N_, WARPS = WARPS_, STAGES = STAGES_, HEAD_DIM = HEAD_DIM_, PRODUCERS = PRODUCERS_;
  static constexpr bool MIXED = MIXED_;
  using Element = Element_;
  using KvElement = KvElement_;
  // What tensor cores multiply. FP8 is exact in f16, and made of it by one instruction; a query in bf16 is, too, within f16's range.
  using MmaElement = typename Multiplied<Element, KvElement>::Type;

  static_assert(M % 16 == 0 && M > 0, "tensor cores take 16 rows at once");
  static_assert(HEAD_DIM == 64 || HEAD_DIM == 96 || HEAD_DIM == 128 || HEAD_DIM == 192 || HEAD_DIM == 256 || HEAD_DIM == 512,
                "rows of a power of two of chunks of 16 bytes, or of three times as many");
  static constexpr u32 THREADS = (WARPS + PRODUCERS) * 32;
  // Whether producer warps load whole granules by TMA; else all threads copy tokens by cp.async.
  static constexpr bool TMA = PRODUCERS > 0;
  static constexpr u32 COPIERS = WARPS * 32;
  static constexpr u32 WARPS_Q = M / 16; // warps side by side along the rows
  static_assert(WARPS % WARPS_Q == 0 && WARPS >= WARPS_Q, "each warp owns 16 rows: warps are a multiple of M / 16");
  using KvBits = typename Bits<KvElement>::Type;
  static constexpr bool FP8 = sizeof(KvBits) == 1;
  // Warps that share their rows have a part of the tokens each, or a part of the head's elements where one warp has no registers for its sums
  // (split-D): it multiplies all tokens by its part of K, adds up the logits with the others (`split_dim.cuh`), and sums its part of V.
  static constexpr bool SPLIT_DIM = HEAD_DIM > 256;
  // Or they make the weights of a part of the tokens each, leave them to each other (`split_step.cuh`), and sum a part of V's elements over all tokens: where
  // bits matter, as each number is made as one warp alone would make it; and beside long heads in FP8, whose sums, with what widens V, take most registers.
  static constexpr bool SPLIT_STEP = !SPLIT_DIM && WARPS > WARPS_Q &&
                                     (Options::INVARIANT || (FP8 && HEAD_DIM > 128 && M == 16 && N % (16 * WARPS) == 0 && HEAD_DIM % (16 * WARPS) == 0));
  static constexpr u32 WARPS_D = SPLIT_DIM || SPLIT_STEP ? WARPS / WARPS_Q : 1;
  static constexpr u32 WARPS_KV = SPLIT_DIM || SPLIT_STEP ? 1 : WARPS / WARPS_Q;
  static constexpr u32 WARP_DIM = HEAD_DIM / WARPS_D;                   // elements of V that a warp sums,
  static constexpr u32 WARP_KEY_DIM = SPLIT_STEP ? HEAD_DIM : WARP_DIM; // and of K that it multiplies
  static_assert(WARP_DIM % 64 == 0 || !SPLIT_DIM, "a warp has whole panels of 64 elements");
  static_assert(WARP_DIM <= 256, "the sums of 16 rows fit a warp's registers");
  static constexpr u32 WARP_N = N / WARPS_KV;
  static constexpr u32 WARP_KEYS = SPLIT_STEP ? N / WARPS_D : WARP_N; // tokens whose logits it makes
  // Where bits matter, a chunk ends with the last granule of a part of a step: a long step has several.
  static constexpr u32 PART_N = Options::INVARIANT ? smaller(N, longest_part(HEAD_DIM)) : WARP_N, PARTS = WARP_N / PART_N;
  static_assert(PARTS == 1 || (SPLIT_STEP && N % PART_N == 0), "a chunk may end within a step of warps that share it out");
  static_assert(N % WARPS_KV == 0 && WARP_N % 16 == 0 && WARP_KEYS % 16 == 0, "tensor cores take 16 tokens of a warp at once");
  static_assert(STAGES > 0, "at least one buffer");

  static constexpr u32 QUERY_ROW_BYTES = HEAD_DIM * 2;
  static constexpr u32 QUERY_CHUNKS = QUERY_ROW_BYTES / 16; // 16 bytes each
  static constexpr u32 ROW_BYTES = HEAD_DIM * sizeof(KvBits); // of K or V
  static constexpr u32 CHUNKS = ROW_BYTES / 16;
  static constexpr u32 CHUNK_ELEMENTS = 16 / sizeof(KvBits);
  static constexpr u32 TOKENS_A_THREAD = divide_up(N, COPIERS);
  static constexpr u32 STAGE_BYTES = N * ROW_BYTES; // of K or of V
  // Eight rows of a step lie together, in panels of up to 128 bytes a row, as products of warpgroups and TMA loads want them. Chunks are exchanged
  // inside of a panel, so that it has a power of two of them: rows of 192 bytes have three panels of 64.
  static constexpr u32 PANEL_CHUNKS = smaller(power_of_two_in(CHUNKS), 8u);
  static constexpr u32 PANELS = CHUNKS / PANEL_CHUNKS;
  static constexpr u32 PANEL_ROW_BYTES = PANEL_CHUNKS * 16;
  static constexpr u32 PANEL_BYTES = 8 * PANEL_ROW_BYTES;
  // Threads that copy a row by cp.async: a power of two, each with a chunk of the row, or of each panel of it.
  static constexpr u32 ROW_COPIERS = power_of_two_in(CHUNKS) == CHUNKS ? CHUNKS : PANEL_CHUNKS, ROW_PARTS = CHUNKS / ROW_COPIERS;
  static constexpr u32 ROWS_AT_ONCE = COPIERS / ROW_COPIERS; // rows that the threads copy at once
  static constexpr u32 WARP_CHUNKS = CHUNKS / WARPS_D, WARP_KEY_CHUNKS = CHUNKS * WARP_KEY_DIM / HEAD_DIM;
  // Whether a warpgroup multiplies with K and V on the left, widened in registers (`transposed.cuh`): FP8 beside 32 rows, which products of 64 rows would pad.
  static constexpr bool TRANSPOSED =
      HAS_WGMMA && FP8 && TMA && M == 32 && N == 64 && WARPS == 4 && HEAD_DIM % 64 == 0 && !SPLIT_DIM && !Options::INVARIANT;
  // Whether K in FP8 is multiplied as it is wherever a warpgroup multiplies, by a query in two parts of e4m3, which have all bits of bf16 (`query.cuh`).
  // Batch-invariant kernels of 16 rows widen K, so those of 64, which have the same bits, do as well. Of four warps with 128 elements and more than 96
  // tokens a step, `ptxas` (13.0) lets the weights of a step overwrite the query's parts in their registers.
  static constexpr bool KEYS_IN_FP8 = HAS_WGMMA && FP8 && IS_BF16<Element> && !Options::INVARIANT && (HEAD_DIM == 64 || HEAD_DIM == 128) &&
                                      (TRANSPOSED || (PRODUCERS == 4 && WARPS_Q % 4 == 0 && (WARPS > 4 || WARP_N * HEAD_DIM <= 96 * 128)));
  // Beyond 128 elements the fragments of Q do not fit the registers beside the accumulators: they are loaded when needed.
  static constexpr bool QUERY_IN_REGISTERS = WARP_KEY_DIM <= 128 && !TRANSPOSED;
  static constexpr u32 QUERY_FRAGMENTS = QUERY_IN_REGISTERS ? WARP_KEY_DIM / 16 : 1;
  static constexpr u32 OUTPUT_STRIDE = HEAD_DIM + 8; // f32; 8 more keep the rows of a store in different banks
  static constexpr u32 GRANULE = 16; // tokens by which segments are aligned and masked: what tensor cores take at once
  static constexpr u32 GRANULES = N / GRANULE;
  static constexpr u32 WARP_GRANULES = WARP_N / GRANULE, PART_GRANULES = PART_N / GRANULE;
  // Warps that share out a step have as many granules each.
  static constexpr u32 OWN_GRANULES = SPLIT_STEP ? WARP_GRANULES / WARPS_D : WARP_GRANULES;
  // The maxima of a row's logits that such warps tell each other: of each granule, where bits matter, or of all that a warp has.
  static constexpr u32 MAXIMA = Options::INVARIANT ? WARP_GRANULES : WARPS_D, OWN_MAXIMA = SPLIT_STEP ? MAXIMA / WARPS_D : 1;
  static_assert(CHUNKS % WARPS_D == 0 && WARP_DIM % 16 == 0, "a warp has whole chunks, and writes pairs of eight elements");
  static_assert(WARP_CHUNKS % 2 == 0 || (SPLIT_STEP && GRANULES % 2 == 0), "V is read by two chunks of a granule, or one of two");
  // Steps of which it is noted what they are: what is computed, and up to STAGES (+ 1) later ones.
  static constexpr u32 MAX_SEGMENTS = M + 32;         // the host cuts KV ranges of more
  // Steps whose granules the lanes of a producer look up at once.
  static constexpr u32 STEPS_AT_ONCE = TMA ? 32 / GRANULES : 1;
  // Whether there is a private KV phase, and how many tokens a step of it has for each Q warp, and for each of its warps. A thread looks at the
  // tokens of one warp only, so that it goes along the segments forwards. Batch-invariant kernels have none: all tokens of a step are under one maximum.
  static constexpr bool PRIVATE_PHASE =
      !Options::HIDES_FIRST && !Options::INVARIANT && WARPS_Q > 1 && !TRANSPOSED && WARP_GRANULES % WARPS_Q == 0 && (TMA || N <= COPIERS);
  static constexpr u32 PRIVATE_STEP = N / WARPS_Q;
  static constexpr u32 WARP_PRIVATE_STEP = larger(WARP_N / WARPS_Q, GRANULE);

  // A producer warpgroup leaves registers to the consumers; two of its warps load, one K and one V. Of FP8 the other two widen what is loaded for
  // products of a warpgroup, which take 16-bit elements from shared memory: one K and one V, or both V. In the private KV phase each warp widens its own in
  // registers.
  static constexpr bool SETMAXNREG = PRODUCERS == 4;
  // Totals of longer heads leave no room for another CTA on an SM: four consumer warps and the producers have as many registers as threads can have.
  static constexpr bool ALONE_ON_SM = Options::INVARIANT && SETMAXNREG && WARPS == 4 && HEAD_DIM > 128;
  // Threads that read the item's description: a producer warpgroup's, or those that multiply, as one warp that copies alone has enough to do.
  static constexpr u32 DESCRIBERS = (SETMAXNREG ? PRODUCERS : WARPS) * 32;
  static constexpr bool WIDENED = HAS_WGMMA && FP8 && SETMAXNREG && WARPS_Q % 4 == 0;
  // Two where an SM still has room for two CTAs, or has room for one anyway: longer heads have their query in shared memory, too, batch-invariant kernels
  // the totals of their rows.
  static constexpr u32 WIDE_BUFFERS = !WIDENED ? 0 : (Options::INVARIANT ? HEAD_DIM > 128 : HEAD_DIM > 128 ? N * HEAD_DIM <= 32 * 192 : N <= 64) ? 2 : 1;
  static constexpr u32 WIDE_ROW_BYTES = HEAD_DIM * 2, WIDE_STAGE_BYTES = N * WIDE_ROW_BYTES;
  // What a step widens: K and V, or V alone, and how many warps share one of them.
  static constexpr u32 WIDE_MATRICES = KEYS_IN_FP8 ? 1 : 2, WIDENERS = WIDENED ? 2 / WIDE_MATRICES : 0;
  // Panels of what a warpgroup multiplies.
  static constexpr u32 WIDE_PANEL_ROW_BYTES = smaller(power_of_two_in(WIDE_ROW_BYTES), 128u), WIDE_PANEL_BYTES = 8 * WIDE_PANEL_ROW_BYTES;
  static constexpr u32 WIDE_PANEL_COLUMNS = WIDE_PANEL_ROW_BYTES / 2;
  // Whether a warpgroup multiplies its query from shared memory: where it does not fit the registers, or is a right side.
  static constexpr bool QUERY_SHARED = TRANSPOSED || (HAS_WGMMA && (!FP8 || WIDENED) && SETMAXNREG && WARPS_Q % 4 == 0 && !QUERY_IN_REGISTERS);
  static constexpr u32 QUERY_PANEL_BYTES = M * 128; // of 64 elements of all rows
  static constexpr u32 PARTS_PANEL_BYTES = 2 * M * PANEL_ROW_BYTES; // of both parts of all rows, as wide as K's
  // Whether the four warps of a warpgroup multiply their 64 rows together, but for the private KV phase.
  static constexpr bool TOGETHER = HAS_WGMMA && (!FP8 || WIDENED) && WARPS_Q % 4 == 0 && (QUERY_IN_REGISTERS || QUERY_SHARED) && !SPLIT_STEP;
  static_assert(!(TOGETHER && SPLIT_DIM) || WARPS_Q == 4, "a warpgroup has one part of a head");
  // Rows that are multiplied by the same steps: the warp's, or the warpgroup's.
  static constexpr u32 ROWS_TOGETHER = TOGETHER ? 64 : 16;
  // Steps of which it is noted what they are: what is computed, and up to STAGES later ones, or one more. Where K and V are widened, their
  // buffers are free again before the step is computed: the first steps behind a private KV phase as early as STAGES steps ahead.
  static constexpr u32 NOTES = (WIDENED && !KEYS_IN_FP8 ? larger(2 * STAGES, STAGES + WIDE_BUFFERS) : STAGES) + (TMA ? 1 : 2);

  static_assert(PRODUCERS <= 1 || (SETMAXNREG && WARPS % 4 == 0), "one producer warp, or a warpgroup");
  static_assert(!TMA || (HAS_TMA && PANEL_ROW_BYTES >= 64 && GRANULES <= 32), "what tensor copies are written for");

  // Shared memory, in this order. At the end the buffers are used again for the outputs of warps that share rows.
  static constexpr u32 WIDE_AT = STAGES * 2 * STAGE_BYTES;
  static constexpr u32 BUFFER_BYTES = larger(WIDE_AT + WIDE_BUFFERS * WIDE_MATRICES * WIDE_STAGE_BYTES, WARPS_KV > 1 ? WARPS * 16 * OUTPUT_STRIDE * 4 : 0);
  // The query is copied to its registers through the buffer that is filled last, where it fits there, and is not wanted once more.
  static constexpr bool QUERY_IN_BUFFER = QUERY_IN_REGISTERS && !KEYS_IN_FP8 && M * QUERY_ROW_BYTES <= 2 * STAGE_BYTES;
  static constexpr bool QUERY_IN_VALUES = QUERY_IN_BUFFER && M * QUERY_ROW_BYTES <= STAGE_BYTES; // so that the first keys need not wait for it
  // Steps whose keys, or values, TMA producers can ask for before lengths are known.
  static constexpr u32 EARLY_KEYS = TMA ? smaller(STAGES - (QUERY_IN_BUFFER && !QUERY_IN_VALUES), STEPS_AT_ONCE) : 0;
  static constexpr u32 EARLY_VALUES = TMA ? smaller(STAGES - QUERY_IN_BUFFER, STEPS_AT_ONCE) : 0;
  static constexpr u32 WEIGHTS_AT = BUFFER_BYTES + (QUERY_IN_BUFFER ? 0 : M * QUERY_ROW_BYTES);
  static constexpr u32 MAXIMA_AT = WEIGHTS_AT + (TRANSPOSED ? 2 * M * N * 2 : 0); // behind two steps' weights
  static constexpr u32 FACTORS_AT = MAXIMA_AT + (TRANSPOSED ? M * 4 : 0);
  static constexpr u32 OFFSETS_AT = FACTORS_AT + (TRANSPOSED && KEYS_IN_FP8 ? M * 4 : 0);
  static constexpr u32 GRANULES_AT = OFFSETS_AT + (TMA ? 0 : NOTES * N * 8);
  static constexpr u32 ARRIVALS_AT = GRANULES_AT + NOTES * GRANULES * 8;
  static constexpr u32 SOFTMAX_AT = ARRIVALS_AT + (TMA ? ((STAGES + WIDE_BUFFERS) * 4 + 2) * 8 : 0);
  // A place of its own: the producers read what it says while the first warps leave their softmaxes.
  static constexpr u32 WARP_ROWS = TRANSPOSED ? M : 16; // whose softmaxes a warp has
  static constexpr u32 PRIVATE_PHASE_AT = SOFTMAX_AT + WARPS * WARP_ROWS * 8;
  static constexpr u32 ROWS_AT = PRIVATE_PHASE_AT + (2 + 3 * WARPS_Q) * 4;
  static constexpr u32 SEGMENTS_AT = ROWS_AT + M * 20;
  static constexpr u32 TOTALS_AT = round_up(SEGMENTS_AT + MAX_SEGMENTS * 28, 16);
  // Totals are in registers where an SM then holds a CTA more: with two stages of 128 elements of 16 bits, three of an H200's.
  static constexpr bool TOTALS_IN_REGISTERS = Options::INVARIANT && SPLIT_STEP && WARPS_D == 4 && HEAD_DIM == 128 && !FP8 && STAGES > 1;
  static constexpr u32 LOGITS_AT = TOTALS_AT + (Options::INVARIANT && !TOTALS_IN_REGISTERS ? M * HEAD_DIM * 4 : 0);
  // Weights and sums of each granule of two steps, and the maxima of each row.
  static constexpr u32 GRANULE_SUMS_AT = LOGITS_AT + 2 * M * N * 2, SHARED_MAXIMA_AT = GRANULE_SUMS_AT + 2 * M * N;
  static constexpr u32 SHARED_BYTES = LOGITS_AT + (SPLIT_DIM ? WARPS * 16 * N * 4 : SPLIT_STEP ? 2 * M * N * 3 + M * MAXIMA * 4 : 0);
  static_assert(!Options::INVARIANT || WARPS_KV == 1, "warps that share rows would each have a sum of their own");
};

} // namespace tilewright
