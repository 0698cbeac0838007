// One panel of quantised weights for all rows of a tile. Included by `linear_int_body.h`.

// Four inputs more, number `I` of four, for all rows, of which the first `SPREAD` are spread.
template <int I, int SPREAD, int ROWS>
inline __attribute__((always_inline)) void add_fours(Ints (&sums)[ROWS], Bytes weights,
                                                     const Fours (&fours)[MOST_SPREAD],
                                                     const Activation* x) {
  asm("" : "+v"(weights.v));  // or gcc 12 reads it again for every row
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++) {
    if (m < SPREAD) {
      sums[m] = dot(sums[m], weights, spread<I>(fours[m % MOST_SPREAD]));
    } else {
      sums[m] = dot_read(sums[m], weights, x + m * CHUNK + 4 * I);
    }
  }
}

// Exact sums of products over one group. The chains of a row are several: one product waits for the
// one before it longer than few rows keep the multipliers busy.
template <class W, int ROWS, int WHERE>
inline __attribute__((always_inline)) void add_group_of_panel(Stream& fetch, const Activation*& x,
                                                              const uint8_t*& line, int64_t group,
                                                              Ints (&products)[ROWS][1]) {
  constexpr int CHAINS = ROWS <= 4 ? 4 : ROWS <= 8 ? 2 : 1;
  constexpr int SPREAD = spread_rows(ROWS, WHERE);
  Ints sums[CHAINS][ROWS];
  for (int c = 0; c < CHAINS; c++)
    for (int m = 0; m < ROWS; m++) sums[c][m] = splat(0);
  for (int64_t i = 0; i < group / CHUNK; i++, x += CHUNK * (ROWS - 1)) {
    fetch.turn();
    for (int j = 0; j < CHUNK / 16; j++, x += 16, line += 16 / W::LINE_INPUTS * 64) {
      Fours fours[MOST_SPREAD];
      for (int m = 0; m < SPREAD; m++) fours[m] = read_fours(x + m * CHUNK);
      if constexpr (W::LINE_INPUTS == 4) {
        fetch.step<1, WHERE>();
        add_fours<0, SPREAD>(sums[0], bytes(line), fours, x);
        fetch.step<1, WHERE>();
        add_fours<1, SPREAD>(sums[1 % CHAINS], bytes(line + 64), fours, x);
        fetch.step<1, WHERE>();
        add_fours<2, SPREAD>(sums[2 % CHAINS], bytes(line + 128), fours, x);
        fetch.step<1, WHERE>();
        add_fours<3, SPREAD>(sums[3 % CHAINS], bytes(line + 192), fours, x);
      } else {
        fetch.step<1, WHERE>();
        add_fours<0, SPREAD>(sums[0], low_halves(line), fours, x);
        add_fours<1, SPREAD>(sums[1 % CHAINS], high_halves(line), fours, x);
        fetch.step<1, WHERE>();
        add_fours<2, SPREAD>(sums[2 % CHAINS], low_halves(line + 64), fours, x);
        add_fours<3, SPREAD>(sums[3 % CHAINS], high_halves(line + 64), fours, x);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++) {
    products[m][0] = sums[0][m];
    if constexpr (CHAINS > 1) products[m][0] = add(sums[0][m], sums[1][m]);
    if constexpr (CHAINS > 2) products[m][0] = add(products[m][0], add(sums[2][m], sums[3][m]));
  }
}

template <class W, int ROWS, int WHERE>
__attribute__((noinline)) void add_panel_of_ints(IntTile& t) {
  Stream fetch = t.fetch;
  const Activation* x = (const Activation*)t.x;
  const uint8_t* line = t.weights;
  for (int64_t g = 0; g < t.num_groups; g++) {
    Ints products[ROWS][1];
    add_group_of_panel<W, ROWS, WHERE>(fetch, x, line, t.group, products);
    finish_group<W>(t, g, products);
  }
  t.fetch = fetch;
}

// One panel after the other. They lie in a row, and so does what comes after the piece, mostly.
template <class W, int ROWS = TALLEST>
void ints_in_a_row(IntTile& t, int64_t num_rows, int64_t num_panels) {
  if constexpr (ROWS > 1) {
    if (num_rows < ROWS) return ints_in_a_row<W, ROWS - 1>(t, num_rows, num_panels);
  }
  constexpr int PRODUCTS = ROWS * W::LINE_INPUTS / 4;  // that a line of weights is in
  for (int64_t p = 0; p < num_panels; p++, t.weights += t.panel_stride, t.sums += PANEL) {
    if (W::FORMAT == Format::INT4)
      fetch_scales((const uint8_t*)(t.scales + t.scales_stride), t.num_groups);
    by_second_cache(PRODUCTS) ? add_panel_of_ints<W, ROWS, SECOND_CACHE>(t)
                              : add_panel_of_ints<W, ROWS, ONCE>(t);
    t.scales += t.scales_stride;
  }
}
