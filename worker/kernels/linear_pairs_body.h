// Tiles of bf16 pairs, where products of pairs are.

constexpr int64_t PAIRS_OF_ROW = BLOCK / InputPairs::INPUTS;  // in a block
constexpr int PAIR_ROWS = 4;  // of the rows of a tile, so many at a time

// Block b for `ROWS` rows of a tile, from row `first` on. Both chains of all their sums stay in
// registers: written down between the two they would cost a tenth of the time.
template <int ROWS, int PANELS>
__attribute__((noinline)) void add_pairs(FloatTile<uint32_t>& t, int64_t b, int first, int height) {
  Stream fetch = t.fetch;
  const uint32_t* x = t.x + (b * height + first) * PAIRS_OF_ROW;
  const uint8_t* pair = t.weights + b * (BLOCK / 2 * Bf16Pairs::PAIR_BYTES);
  const int64_t panel_stride = t.panel_stride;
  Lanes chains[2][ROWS][PANELS];
  for (int odd = 0; odd < 2; odd++)
    for (int m = 0; m < ROWS; m++)
      for (int p = 0; p < PANELS; p++) chains[odd][m][p] = zero();
  fetch.turn();
  for (int64_t i = 0; i < PAIRS_OF_ROW; i += 2, x += 2, pair += 2 * Bf16Pairs::PAIR_BYTES) {
    fetch.step<PANELS, FIRST_CACHE>();
    if (height == ROWS) fetch.step<PANELS, FIRST_CACHE>();  // nobody else fetches the other half
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++) {
      Lanes weights[PANELS];
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) {
        const uint8_t* from = pair + p * panel_stride;
        weights[p] = odd ? Bf16Pairs::odd(from) : Bf16Pairs::even(from);
        asm("" : "+v"(weights[p].v));  // or gcc 12 reads it again for every row
      }
#pragma GCC unroll 4
      for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++)
          chains[odd][m][p] =
              Bf16Pairs::add(chains[odd][m][p], x[m * PAIRS_OF_ROW + odd], weights[p]);
    }
  }
  t.fetch = fetch;
  float* const to = t.sums + first * t.sums_stride;  // read once: a store might change it
  const int64_t stride = t.sums_stride;
#pragma GCC unroll 4
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      float* sum = to + m * stride + p * PANEL;
      store(sum, load(sum) + (chains[0][m][p] + chains[1][m][p]));
    }
}

// Pair `I` of four, for all rows, of which the first `SPREAD` are spread.
template <int I, int SPREAD, int ROWS>
inline __attribute__((always_inline)) void add_pair(Lanes (&chains)[ROWS], Lanes weights,
                                                    const Fours (&fours)[MOST_SPREAD],
                                                    const uint32_t* x) {
  asm("" : "+v"(weights.v));  // or gcc 12 reads it again for every row
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++) {
    if (m < SPREAD) {
      chains[m] = InputPairs::add(chains[m], spread<I>(fours[m % MOST_SPREAD]), weights);
    } else {
      chains[m] = InputPairs::add(chains[m], x + m * PAIRS_OF_ROW + I, weights);
    }
  }
}

// One panel for all rows of a tile: little enough that their sums and both chains stay in registers
// over all blocks.
template <int ROWS, int WHERE>
__attribute__((noinline)) void add_panel(FloatTile<uint32_t>& t) {
  constexpr int64_t LINE = Bf16Pairs::PAIR_BYTES;
  constexpr int SPREAD = spread_rows(ROWS, WHERE);
  Stream fetch = t.fetch;
  const uint32_t* x = t.x;
  const uint8_t* line = t.weights;
  float* to = t.sums;
  int64_t stride = t.sums_stride;
  Lanes sums[ROWS];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++) sums[m] = load(to + m * stride);
  for (int64_t b = 0; b < t.num_blocks; b++, x += (ROWS - 1) * PAIRS_OF_ROW) {
    Lanes even[ROWS], odd[ROWS];
    for (int m = 0; m < ROWS; m++) even[m] = odd[m] = zero();
    fetch.turn();
    for (int64_t i = 0; i < PAIRS_OF_ROW; i += 4, x += 4, line += 4 * LINE) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; j++) fetch.step<1, WHERE>();
      Fours fours[MOST_SPREAD];
      for (int m = 0; m < SPREAD; m++) fours[m] = read_fours(x + m * PAIRS_OF_ROW);
      add_pair<0, SPREAD>(even, Bf16Pairs::even(line), fours, x);
      add_pair<1, SPREAD>(odd, Bf16Pairs::odd(line), fours, x);
      add_pair<2, SPREAD>(even, Bf16Pairs::even(line + 2 * LINE), fours, x);
      add_pair<3, SPREAD>(odd, Bf16Pairs::odd(line + 2 * LINE), fours, x);
    }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++) sums[m] = sums[m] + (even[m] + odd[m]);
  }
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++) store(to + m * stride, sums[m]);
  t.fetch = fetch;
}

template <int ROWS>
void panel_tile(FloatTile<uint32_t>& t) {
  if constexpr (2 * ROWS >= FLOAT_ROWS) {  // or there are no other tiles
    int64_t num_tiles = t.fetch.num_tiles;
    if (num_tiles <= 2 && by_second_cache(ROWS * num_tiles)) return add_panel<ROWS, SECOND_CACHE>(t);
    if (num_tiles > 1) return add_panel<ROWS, FIRST_CACHE>(t);  // they read weights again
  }
  add_panel<ROWS, ONCE>(t);
}

// Rows first..first+ROWS-1 of a tile of HEIGHT, whose weights stay in the first cache: so few rows that
// their sums and both chains stay in registers over all blocks.
template <int ROWS, int PANELS, int HEIGHT>
__attribute__((noinline)) void add_blocks(FloatTile<uint32_t>& t, int first) {
  Stream fetch = t.fetch;
  const uint32_t *x = t.x + first * PAIRS_OF_ROW, *next_x = t.next_x;
  const uint8_t* pair = t.weights;
  float* to = t.sums + first * t.sums_stride;
  int64_t stride = t.sums_stride, panel_stride = t.panel_stride;
  Lanes sums[ROWS][PANELS];
#pragma GCC unroll 4
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = load(to + m * stride + p * PANEL);
  for (int64_t b = 0; b < t.num_blocks; b++, x += (HEIGHT - 1) * PAIRS_OF_ROW) {
    Lanes chains[2][ROWS][PANELS];
    for (int odd = 0; odd < 2; odd++)
      for (int m = 0; m < ROWS; m++)
        for (int p = 0; p < PANELS; p++) chains[odd][m][p] = zero();
    fetch.turn();
    for (int64_t i = 0; i < PAIRS_OF_ROW; i += 2, x += 2, pair += 2 * Bf16Pairs::PAIR_BYTES) {
      if (first < 2 * ROWS)  // what is left of a tile after two is fetched
        fetch.step<PANELS, SECOND_CACHE>();
      if (first == 0) __builtin_prefetch(next_x), next_x += HEIGHT * PAIRS_OF_ROW / 8;
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; odd++) {
        Lanes weights[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          const uint8_t* from = pair + p * panel_stride;
          weights[p] = odd ? Bf16Pairs::odd(from) : Bf16Pairs::even(from);
          asm("" : "+v"(weights[p].v));  // or gcc 12 reads it again for every row
        }
#pragma GCC unroll 4
        for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++)
            chains[odd][m][p] =
                Bf16Pairs::add(chains[odd][m][p], x[m * PAIRS_OF_ROW + odd], weights[p]);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++)
        sums[m][p] = sums[m][p] + (chains[0][m][p] + chains[1][m][p]);
  }
#pragma GCC unroll 4
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) store(to + m * stride + p * PANEL, sums[m][p]);
  t.fetch = fetch;
}

template <int PANELS, int HEIGHT, int FIRST = 0>
void tile_in_parts(FloatTile<uint32_t>& t) {
  constexpr int LEFT = HEIGHT - FIRST, ROWS = LEFT == 4 ? 2 : LEFT < 3 ? LEFT : 3;
  if constexpr (LEFT > 0) {
    add_blocks<ROWS, PANELS, HEIGHT>(t, FIRST);
    tile_in_parts<PANELS, HEIGHT, FIRST + ROWS>(t);
  }
}

template <class W, int ROWS, int PANELS, bool KEEP>
void float_tile(FloatTile<uint32_t>& t) {
  constexpr int FIRST = ROWS > PAIR_ROWS ? (ROWS + 1) / 2 : ROWS, REST = ROWS - FIRST;
  if constexpr (PANELS == 1) {
    panel_tile<ROWS>(t);
  } else if (t.keep) {
    tile_in_parts<PANELS, ROWS>(t);
  } else {
    for (int64_t b = 0; b < t.num_blocks; b++) {
      add_pairs<FIRST, PANELS>(t, b, 0, ROWS);
      if constexpr (REST > 0) add_pairs<REST, PANELS>(t, b, FIRST, ROWS);
    }
  }
}
