// Tiles of bf16 pairs whose weights another tile has made, where products of pairs are.

// Rows first..first+ROWS-1 of a tile of HEIGHT, whose weights lie in the first cache: so few rows that
// their sums and both chains stay in registers over all blocks.
template <int ROWS, int PANELS, int HEIGHT>
__attribute__((noinline)) void add_kept_blocks(FloatTile<uint32_t>& t, int first) {
  constexpr int64_t OF_ROW = BLOCK / KeptPairs::INPUTS;
  Fetch fetch = t.fetch;
  const uint32_t *x = t.x + first * OF_ROW, *next_x = t.next_x;
  const uint8_t* pair = t.weights;
  float* to = t.sums + first * t.sums_stride;
  int64_t stride = t.sums_stride, panel_stride = t.panel_stride;
  Lanes sums[ROWS][PANELS];
#pragma GCC unroll 4
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = load(to + m * stride + p * PANEL);
  for (int64_t b = 0; b < t.num_blocks; b++, x += (HEIGHT - 1) * OF_ROW) {
    Lanes chains[2][ROWS][PANELS];
    for (int odd = 0; odd < 2; odd++)
      for (int m = 0; m < ROWS; m++)
        for (int p = 0; p < PANELS; p++) chains[odd][m][p] = zero();
    for (int64_t i = 0; i < OF_ROW; i += 2, x += 2, pair += 2 * KeptPairs::PAIR_BYTES) {
      if (first < 2 * ROWS) fetch.step<PANELS>();  // what is left of a tile after two is fetched
      if (first == 0) __builtin_prefetch(next_x), next_x += HEIGHT * OF_ROW / 8;
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; odd++) {
        Lanes weights[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          const uint8_t* from = pair + p * panel_stride;
          weights[p] = odd ? KeptPairs::odd(from) : KeptPairs::even(from);
          asm("" : "+v"(weights[p].v));  // or gcc 12 reads it again for every row
        }
#pragma GCC unroll 4
        for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++)
            chains[odd][m][p] =
                KeptPairs::add(chains[odd][m][p], x[m * OF_ROW + odd], weights[p]);
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
void kept_tile(FloatTile<uint32_t>& t) {
  constexpr int LEFT = HEIGHT - FIRST, ROWS = LEFT == 4 ? 2 : LEFT < 3 ? LEFT : 3;
  if constexpr (LEFT > 0) {
    add_kept_blocks<ROWS, PANELS, HEIGHT>(t, FIRST);
    kept_tile<PANELS, HEIGHT, FIRST + ROWS>(t);
  }
}
