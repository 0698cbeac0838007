// What the machine can do at best, measured by loops that do nothing else. Once per level.
#include "pair_lanes.h"

// Read `bytes` of memory in pieces of PIECE, four streams in each; returns something of all of it. From
// 2048 ahead a Zen 2 reads at 43 GB/s, from 768 at 50.
inline float read_piece(const uint8_t* from, int64_t bytes) {
  constexpr int64_t AHEAD = LANES_LEVEL == 256 ? 768 : 2048;
  Lanes sums[4] = {zero(), zero(), zero(), zero()};
  int64_t quarter = bytes / 4;
  for (int64_t i = 0; i + 64 <= quarter; i += 64)
    for (int s = 0; s < 4; s++) {
      const uint8_t* line = from + s * quarter + i;
      __builtin_prefetch(line + AHEAD);
      sums[s] = larger(sums[s], load((const float*)line));
    }
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// `count` times twelve fused multiply-adds, in as many chains as the registers hold; returns something
// of all of them.
inline float multiply_add(int64_t count) {
  constexpr int CHAINS = LANES_LEVEL == 256 ? 6 : 12;
  float start[16];
  for (int i = 0; i < 16; i++) start[i] = float(i);  // halves that are equal are computed once
  Lanes sums[CHAINS], factor = splat(0.999f), term = splat(0.001f);
#pragma GCC unroll 12
  for (int i = 0; i < CHAINS; i++) sums[i] = load(start) + splat(float(i));
  for (int64_t n = 0; n < count; n++)
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) sums[i % CHAINS] = fma(sums[i % CHAINS], factor, term);
  Lanes total = zero();
  for (Lanes part : sums) total = total + part;
  return sum(total);
}

#if LANES_LEVEL == 512
// The same with products of pairs, twice as many operations.
inline float multiply_add_pairs(int64_t count) {
  Lanes sums[12], factor = {_mm512_castsi512_ps(_mm512_set1_epi32(0x3f7f3f7f))};
  for (int i = 0; i < 12; i++) sums[i] = splat(float(i));
  for (int64_t n = 0; n < count; n++)
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) sums[i] = InputPairs::add(sums[i], 0x3f7f3f7f, factor);
  Lanes total = zero();
  for (Lanes part : sums) total = total + part;
  return sum(total);
}
#endif

#if LANES_LEVEL == 256
// Volatile: nobody needs the products one by one.
#define PRODUCT(instruction, out) \
  asm volatile(instruction " %2, %1, %0" : "=x"(out) : "x"(factor), "x"(term))

// `count` times products of words in pairs, each added to a sum: 6 * 16 * 2 operations.
inline float multiply_words(int64_t count) {
  __m256i sums[6] = {}, factor = _mm256_set1_epi16(3), term = _mm256_set1_epi16(5);
  for (int64_t n = 0; n < count; n++)
#pragma GCC unroll 6
    for (int i = 0; i < 6; i++) {
      __m256i product;
      PRODUCT("vpmaddwd", product);
      sums[i] = _mm256_add_epi32(sums[i], product);
    }
  __m256i total = sums[0];
  for (int i = 1; i < 6; i++) total = _mm256_add_epi32(total, sums[i]);
  return float(_mm256_extract_epi32(total, 0));
}

// The same of bytes, of which eight are added before they become whole numbers: 6 * 8 * 32 * 2.
inline float multiply_halves(int64_t count) {
  __m256i sums[6] = {}, factor = _mm256_set1_epi8(3), term = _mm256_set1_epi8(5);
  for (int64_t n = 0; n < count; n++) {
    __m256i words[6] = {};
#pragma GCC unroll 8
    for (int64_t eight = 0; eight < 8; eight++)
#pragma GCC unroll 6
      for (int i = 0; i < 6; i++) {
        __m256i product;
        PRODUCT("vpmaddubsw", product);
        asm("vpaddw %1, %0, %0" : "+x"(words[i]) : "x"(product));  // in this order, as in `add_pairs`
      }
#pragma GCC unroll 6
    for (int i = 0; i < 6; i++)
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(words[i], _mm256_set1_epi16(1)));
  }
  __m256i total = sums[0];
  for (int i = 1; i < 6; i++) total = _mm256_add_epi32(total, sums[i]);
  return float(_mm256_extract_epi32(total, 0));
}
#undef PRODUCT
#endif
