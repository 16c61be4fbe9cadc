// Append: K and V of new tokens, written to their places in the pages of a cache. K is rotated on its way (RoPE), and both are divided by
// their scales and narrowed where the cache is FP8. One launch does both; a thread takes 16 bytes of K and of V.
#pragma once
#include "fp8_narrow.cuh"

namespace tilewright {

// Which elements of a key are rotated together.
struct NotRotated {};
struct Halves {};      // i and i + rotary_dim / 2 (GPT-NeoX)
struct Interleaved {}; // 2 i and 2 i + 1 (GPT-J)

constexpr bool is_rotated(NotRotated) { return false; }
constexpr bool is_rotated(Halves) { return true; }
constexpr bool is_rotated(Interleaved) { return true; }
constexpr bool is_interleaved(Interleaved) { return true; }
constexpr bool is_interleaved(Halves) { return false; }

struct AppendArguments {
  const u16 *keys;           // [tokens, kv_heads, HEAD_DIM]
  const u16 *values;         // [tokens, kv_heads, HEAD_DIM]
  u8 *key_pages;             // aligned to 16 bytes
  u8 *value_pages;           // aligned to 16 bytes
  const i64 *slots;          // [tokens]: page x page_size + place in the page; a token whose slot is negative or in no page is not written
  const float *key_scales;   // [kv_heads], or one; of FP8 alone
  const float *value_scales; // [kv_heads], or one; of FP8 alone
  const float *table;        // [table_rows, rotary_dim], aligned to 16 bytes: cosines of rotary_dim / 2 angles, then their sines
  const i64 *positions;      // [tokens], or null; a token whose position is not in the table is not written
  const i32 *lengths;        // [tokens], without positions: the token is the last of so many
  i64 key_token;             // strides of the tokens, in elements
  i64 key_head;
  i64 value_token;
  i64 value_head;
  i64 page; // strides of the pages, in elements
  i64 token;
  i64 head;
  i64 scale_head; // 1, or 0 where all heads have one scale
  u64 table_rows;
  u32 tokens;
  u32 kv_heads;
  u32 page_size;
  u32 pages;
  u32 rotary_dim; // 16 to HEAD_DIM, a multiple of 16
  u32 wide;       // whether K and V of tokens can be read 16 bytes at a time
};
static_assert(sizeof(AppendArguments) == 19 * 8 + 6 * 4, "the host lays out the same struct");

template <u32 HEAD_DIM, class Element, class KvElement, class Rotary> struct Append {
  using Stored = typename Bits<KvElement>::Type;
  static constexpr u32 THREADS = 128;
  static constexpr u32 SHARED_BYTES = 0;
  static constexpr u32 CHUNK = 8; // elements of a thread
  static constexpr u32 CHUNKS = HEAD_DIM / CHUNK;
  static constexpr bool FP8 = sizeof(Stored) == 1;
  static_assert(HEAD_DIM % CHUNK == 0, "a head is of whole chunks");

  struct alignas(16) Elements {
    u32 pairs[CHUNK / 2];
  };
  struct alignas(16) Numbers {
    float of[4];
  };

  TILEWRIGHT_DEVICE static Elements load(const u16 *from, bool wide) {
    if (wide) return *reinterpret_cast<const Elements *>(from);
    Elements loaded;
#pragma unroll
    for (u32 i = 0; i < CHUNK / 2; i++) loaded.pairs[i] = from[2 * i] | u32(from[2 * i + 1]) << 16;
    return loaded;
  }

  TILEWRIGHT_DEVICE static void widen_all(const Elements &from, float (&to)[CHUNK]) {
#pragma unroll
    for (u32 i = 0; i < CHUNK / 2; i++) widen(Element{}, from.pairs[i], to[2 * i], to[2 * i + 1]);
  }

  TILEWRIGHT_DEVICE static Elements narrow_all(const float (&from)[CHUNK]) {
    Elements to;
#pragma unroll
    for (u32 i = 0; i < CHUNK / 2; i++) to.pairs[i] = narrow(Element{}, from[2 * i], from[2 * i + 1]);
    return to;
  }

  TILEWRIGHT_DEVICE static void store_fp8(Stored *to, float (&numbers)[CHUNK], float scale) {
    divide_by_scale(numbers, scale);
    store_words(to, narrow_fp8<KvElement>(numbers, 0), narrow_fp8<KvElement>(numbers, 4));
  }

  // Sums are rounded once, so that every backend gives the same bits.
  TILEWRIGHT_DEVICE static float rotate_first(float first, float second, float cosine, float sine) {
    return multiply_add(first, cosine, -(second * sine));
  }
  TILEWRIGHT_DEVICE static float rotate_second(float first, float second, float cosine, float sine) {
    return multiply_add(second, cosine, first * sine);
  }

  // A chunk of a key; `vector` is its whole head, `row` the table's of its position.
  TILEWRIGHT_DEVICE static void rotate(const AppendArguments &args, const u16 *vector, u32 at, const float *row, float (&key)[CHUNK]) {
    const u32 half = args.rotary_dim / 2;
    if constexpr (is_interleaved(Rotary{})) {
      const Numbers cosines = *reinterpret_cast<const Numbers *>(row + at / 2);
      const Numbers sines = *reinterpret_cast<const Numbers *>(row + half + at / 2);
#pragma unroll
      for (u32 i = 0; i < CHUNK / 2; i++) {
        const float first = key[2 * i], second = key[2 * i + 1];
        key[2 * i] = rotate_first(first, second, cosines.of[i], sines.of[i]);
        key[2 * i + 1] = rotate_second(first, second, cosines.of[i], sines.of[i]);
      }
    } else {
      const bool is_second = at >= half;
      const u32 angle = is_second ? at - half : at;
      float other[CHUNK]; // a thread of the same warp reads the same
      widen_all(load(vector + (is_second ? angle : at + half), args.wide), other);
#pragma unroll
      for (u32 four = 0; four < CHUNK; four += 4) {
        const Numbers cosines = *reinterpret_cast<const Numbers *>(row + angle + four);
        const Numbers sines = *reinterpret_cast<const Numbers *>(row + half + angle + four);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          const float own = key[four + i], its = other[four + i];
          key[four + i] = is_second ? rotate_second(its, own, cosines.of[i], sines.of[i]) : rotate_first(own, its, cosines.of[i], sines.of[i]);
        }
      }
    }
  }

  TILEWRIGHT_DEVICE static void run(const AppendArguments &args) {
    const u32 index = block_index() * THREADS + thread_index();
    const u32 vector = index / CHUNKS, at = index % CHUNKS * CHUNK;
    const u32 token = vector / args.kv_heads, head = vector % args.kv_heads;
    if (token >= args.tokens) return;

    // All loads are on their way before the first is waited for.
    const u16 *const key_vector = args.keys + token * args.key_token + head * args.key_head;
    const Elements key = load(key_vector + at, args.wide);
    const Elements value = load(args.values + token * args.value_token + head * args.value_head + at, args.wide);
    const i64 slot = args.slots[token];
    i64 position = 0;
    if constexpr (is_rotated(Rotary{})) position = args.positions ? args.positions[token] : i64(args.lengths[token]) - 1;

    if (slot < 0) return; // which is in no page either
    // Divisions of 64 bits take several times as long.
    const u64 page = u64(slot) >> 32 ? u64(slot) / args.page_size : u32(slot) / args.page_size;
    if (page >= args.pages) return;
    const u32 place = u32(u64(slot) - page * args.page_size);
    const i64 to = i64(page) * args.page + place * args.token + head * args.head + at;
    Stored *const key_to = reinterpret_cast<Stored *>(args.key_pages) + to;
    Stored *const value_to = reinterpret_cast<Stored *>(args.value_pages) + to;

    bool rotated = false;
    float numbers[CHUNK] = {};
    if constexpr (is_rotated(Rotary{})) {
      if (position < 0 || u64(position) >= args.table_rows) return;
      rotated = at < args.rotary_dim;
      widen_all(key, numbers);
      if (rotated) rotate(args, key_vector, at, args.table + position * args.rotary_dim, numbers);
    }
    if constexpr (FP8) {
      if constexpr (!is_rotated(Rotary{})) widen_all(key, numbers);
      store_fp8(key_to, numbers, args.key_scales[head * args.scale_head]);
      widen_all(value, numbers);
      store_fp8(value_to, numbers, args.value_scales[head * args.scale_head]);
    } else {
      *reinterpret_cast<Elements *>(key_to) = rotated ? narrow_all(numbers) : key;
      *reinterpret_cast<Elements *>(value_to) = value;
    }
  }
};

} // namespace tilewright
