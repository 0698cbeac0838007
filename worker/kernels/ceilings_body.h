// What the machine can do at best, measured by loops that do nothing else. Once per level.
#include "pair_lanes.h"

// Read `bytes` of memory in pieces of PIECE, four streams in each; returns something of all of it.
inline float read_piece(const uint8_t* from, int64_t bytes) {
  constexpr int64_t AHEAD = 2048;
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

// `count` times twelve independent fused multiply-adds; returns something of all of them.
inline float multiply_add(int64_t count) {
  Lanes sums[12], factor = splat(0.999f), term = splat(0.001f);
  for (int i = 0; i < 12; i++) sums[i] = splat(float(i));
  for (int64_t n = 0; n < count; n++)
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) sums[i] = fma(sums[i], factor, term);
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
