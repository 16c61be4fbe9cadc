// Chunks of batch-invariant attention: where they begin, and how one is added to those before it.
//
// The tokens of a request are cut at positions that nothing but the position decides. Each chunk is summed from nothing, granule by granule,
// and the chunks are added up in their order: by the CTA that computed them (`totals.cuh`), or from
// partials (`merge.cuh`). Both call `add_chunk`, so where one ends and the other begins changes no bit.
#pragma once
#include "softmax.cuh"

namespace tilewright {

// The host has the same numbers: `heuristics/src/chunk.rs`.
constexpr u32 SHORTEST_CHUNK = 512; // tokens
// Tokens of a part of a step at most: a chunk ends with the last granule of one.
constexpr u32 longest_part(u32 head_dim) { return head_dim > 64 && head_dim <= 192 ? 64 : 128; }

// Chunks from a position to twice it, once they are longer than that.
TILEWRIGHT_DEVICE u32 chunks_an_octave(u32 kv_heads) { return kv_heads < 8 ? 32 : 16; }

// Whether a chunk begins at a position.
TILEWRIGHT_DEVICE bool begins_chunk(u32 position, u32 kv_heads) {
  // One less than a chunk's length there: all bits below the highest one of its share of the position.
  u32 within = position / chunks_an_octave(kv_heads) | (2 * SHORTEST_CHUNK - 1);
#pragma unroll
  for (u32 shift = 1; shift < 32; shift *= 2) within |= within >> shift;
  return (position & within / 2) == 0;
}

// The factors of what was summed before a chunk, and of the chunk.
struct ChunkFactors {
  float before, chunk;
};

// Adds the softmax of a chunk that has tokens. Each operation is rounded as it is written: in no kernel does the compiler join others.
TILEWRIGHT_DEVICE ChunkFactors add_chunk(Softmax &total, const Softmax &chunk) {
  const float max = larger(total.max, chunk.max);
  const ChunkFactors factors{exp2_fast(total.max - max), exp2_fast(chunk.max - max)};
  total.sum = fused_multiply_add(total.sum, factors.before, rounded_product(chunk.sum, factors.chunk));
  total.max = max;
  return factors;
}

// The same of an element of the output.
TILEWRIGHT_DEVICE float add_chunk_element(float total, float chunk, const ChunkFactors &factors) {
  return fused_multiply_add(total, factors.before, rounded_product(chunk, factors.chunk));
}

} // namespace tilewright
