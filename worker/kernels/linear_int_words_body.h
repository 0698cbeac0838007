// Products at AVX2, which multiplies words in pairs, and bytes in pairs with saturation. Weights of a byte
// are made words of. Half a byte is small enough to be multiplied as it is: 0 .. 15 times -127 .. 127
// leave room for eight such pairs in a word, so one product more makes whole numbers of every eight.
// That is nearly twice as fast as words. Included by `linear_int_body.h`.

constexpr int64_t WORD_INPUTS = 32;  // that a sum in words has room for

// Ask for a line of each panel.
template <int PANELS>
inline __attribute__((always_inline)) void ask(bool near, Stream& fetch, const uint8_t* line,
                                               const IntTile& t) {
  if (__builtin_expect(near, 1)) return fetch.step<PANELS, ONCE>();
  fetch.step<PANELS, SECOND_CACHE>();
  if (t.first)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) __builtin_prefetch(line + p * t.panel_stride + SOON);
}

// sums[m][p] += weights[p] · x[m] over a chunk of the inputs. NEAR as a branch in every step takes 2 to 5 %
// of 8 rows on a Zen 3; half bytes are no faster without.
template <bool NEAR, int ROWS, int PANELS>
inline __attribute__((always_inline)) void add_chunk(Ints (&sums)[ROWS][PANELS], const Activation* x,
                                                     const uint8_t* line, const IntTile& t,
                                                     Stream& fetch) {
  for (int j = 0; j < CHUNK / 4; j++, x += 4, line += 64) {
    ask<PANELS>(NEAR, fetch, line, t);
    // Sixteen registers hold the words of one panel beside the sums.
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      Bytes weights = bytes(line + p * t.panel_stride);
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; m++) sums[m][p] = dot(sums[m][p], weights, x + CHUNK * m);
    }
  }
}

// As `add_group`.
template <int ROWS, int PANELS>
inline __attribute__((always_inline)) void add_group_of_words(IntTile& t, int64_t g) {
  Stream fetch = t.fetch;
  const auto* x = (const Activation*)t.x + g * t.group * ROWS;
  const uint8_t* line = t.weights + g * (t.group / 4 * 64);
  Ints sums[ROWS][PANELS];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = splat(0);
  for (int64_t k = 0; k < t.group; k += CHUNK, x += CHUNK * ROWS, line += CHUNK / 4 * 64) {
    fetch.turn();
    ON_AMD ? add_chunk<true>(sums, x, line, t, fetch) : add_chunk<false>(sums, x, line, t, fetch);
  }
  t.fetch = fetch;
  finish_group<Int8Weights>(t, g, sums);
}

// The same of half bytes.
template <int ROWS, int PANELS>
inline __attribute__((always_inline)) void add_group_of_halves(IntTile& t, int64_t g) {
  Stream fetch = t.fetch;
  const bool near = ON_AMD;
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
#pragma GCC unroll 4
    for (int j = 0; j < WORD_INPUTS / 8; j++, x += 8, line += 64) {
      ask<PANELS>(near, fetch, line, t);
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) {
        Halves weights = low_halves(line + p * t.panel_stride);
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; m++) {
          Words products = pairs(weights, x + CHUNK * m);
          words[m][p] = j == 0 ? products : add(words[m][p], products);
        }
        weights = high_halves(line + p * t.panel_stride);
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; m++)
          words[m][p] = add(words[m][p], pairs(weights, x + CHUNK * m + 4));
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) sums[m][p] = add_whole(sums[m][p], words[m][p]);
    if ((k + WORD_INPUTS) % CHUNK == 0) x += CHUNK * (ROWS - 1);
  }
  t.fetch = fetch;
  finish_group<Int4Weights>(t, g, sums);
}
