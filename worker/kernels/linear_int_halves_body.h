// Weights of half a byte where bytes are multiplied in pairs, with saturation: 0 .. 15 times -127 .. 127
// leave room for eight such pairs in a word, so one product more makes whole numbers of every eight.
// That is nearly twice as fast as words. Included by `linear_int_body.h`.

constexpr int64_t WORD_INPUTS = 32;  // that a sum in words has room for

// As `add_group`. It asks for weights as that does: in a function of their own these lines
// give `add_group` other code at AVX512.
template <int ROWS, int PANELS>
inline __attribute__((always_inline)) void add_group_of_halves(IntTile& t, int64_t g) {
  Stream fetch = t.fetch;
  const bool near = ON_AMD, first = t.first;
  const int8_t* x = (const int8_t*)t.x + g * t.group * ROWS;
  const uint8_t* line = t.weights + g * (t.group / 8 * 64);
  Ints sums[ROWS][PANELS];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = splat(0);
  for (int64_t k = 0; k < t.group; k += WORD_INPUTS) {
    fetch.turn();
    Words words[ROWS][PANELS];
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++)
        words[m][p] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 4
    for (int j = 0; j < WORD_INPUTS / 8; j++, x += 8, line += 64) {
      if (__builtin_expect(near, 1)) {
        fetch.step<PANELS, ONCE>();
      } else {
        fetch.step<PANELS, SECOND_CACHE>();
        if (first)
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++) __builtin_prefetch(line + p * t.panel_stride + SOON);
      }
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) {
        Halves weights = low_halves(line + p * t.panel_stride);
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; m++)
          words[m][p] = add_pairs(words[m][p], weights, x + CHUNK * m);
        weights = high_halves(line + p * t.panel_stride);
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; m++)
          words[m][p] = add_pairs(words[m][p], weights, x + CHUNK * m + 4);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) sums[m][p] = add_words(sums[m][p], words[m][p]);
    if ((k + WORD_INPUTS) % CHUNK == 0) x += CHUNK * (ROWS - 1);
  }
  t.fetch = fetch;
  finish_group<Int4Weights>(t, g, sums);
}
