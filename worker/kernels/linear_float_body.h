// Linears over floats, once per level. See `linear.h` for layout and order of summation.

struct F32Weights {
  static constexpr Format FORMAT = Format::F32;
  static constexpr int64_t PAIR_BYTES = 128;
  static Lanes even(const uint8_t* pair) { return load((const float*)pair); }
  static Lanes odd(const uint8_t* pair) { return load((const float*)pair + 16); }
};

struct F16Weights {
  static constexpr Format FORMAT = Format::F16;
  static constexpr int64_t PAIR_BYTES = 64;
  static Lanes even(const uint8_t* pair) { return load_f16((const f16*)pair); }
  static Lanes odd(const uint8_t* pair) { return load_f16((const f16*)pair + 16); }
};

struct Bf16Weights {
  static constexpr Format FORMAT = Format::BF16;
  static constexpr int64_t PAIR_BYTES = 64;
  static Lanes even(const uint8_t* pair) { return even_bf16((const bf16*)pair); }
  static Lanes odd(const uint8_t* pair) { return odd_bf16((const bf16*)pair); }
};

// A rectangle of the output and the inputs of one pass over it.
struct FloatTile {
  const float* x;          // first row, first input of the pass
  int64_t x_stride;
  const uint8_t* weights;  // first panel, first input of the pass
  int64_t panel_stride;    // bytes
  int64_t num_blocks;
  float* out;
  int64_t out_stride;
  int64_t num_columns;     // valid ones, at most 16 per panel
  const float* bias;       // null unless this pass is the last
  bool first;              // the sums begin here
};

inline Lanes load_columns(const float* p, int64_t count) {
  return count >= PANEL ? load(p) : load_part(p, count, 0.0f);
}
inline void store_columns(float* p, Lanes a, int64_t count) {
  count >= PANEL ? store(p, a) : store_part(p, a, count);
}

template <class W, int ROWS, int PANELS>
void float_tile(const FloatTile& t) {
  constexpr int64_t BLOCK_BYTES = BLOCK / 2 * W::PAIR_BYTES, AHEAD = 2048;
  Lanes sums[ROWS][PANELS];
  for (int m = 0; m < ROWS; m++)
    for (int p = 0; p < PANELS; p++)
      sums[m][p] = t.first ? zero()
                           : load_columns(t.out + m * t.out_stride + p * PANEL,
                                          t.num_columns - p * PANEL);
  for (int64_t b = 0; b < t.num_blocks; b++) {
    Lanes even[ROWS][PANELS], odd[ROWS][PANELS];
    for (int m = 0; m < ROWS; m++)
      for (int p = 0; p < PANELS; p++) even[m][p] = odd[m][p] = zero();
    const float* x = t.x + b * BLOCK;
    const uint8_t* block = t.weights + b * BLOCK_BYTES;
#pragma GCC unroll 2
    for (int i = 0; i < BLOCK / 2; i++) {
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) {
        const uint8_t* pair = block + p * t.panel_stride + i * W::PAIR_BYTES;
        for (int64_t line = 0; line < W::PAIR_BYTES; line += 64)
          __builtin_prefetch(pair + AHEAD + line);
        Lanes a = W::even(pair), c = W::odd(pair);
#pragma GCC unroll 16
        for (int m = 0; m < ROWS; m++) {
          even[m][p] = fma(splat(x[m * t.x_stride + 2 * i]), a, even[m][p]);
          odd[m][p] = fma(splat(x[m * t.x_stride + 2 * i + 1]), c, odd[m][p]);
        }
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) sums[m][p] = sums[m][p] + (even[m][p] + odd[m][p]);
  }
  for (int m = 0; m < ROWS; m++)
    for (int p = 0; p < PANELS; p++) {
      if (t.bias) sums[m][p] = sums[m][p] + load(t.bias + p * PANEL);
      store_columns(t.out + m * t.out_stride + p * PANEL, sums[m][p], t.num_columns - p * PANEL);
    }
}

// Rows first, `PANELS` panels at a time while as many are left.
template <class W, int ROWS, int PANELS>
void float_panels(FloatTile t, int64_t num_panels) {
  for (; num_panels >= PANELS; num_panels -= PANELS) {
    float_tile<W, ROWS, PANELS>(t);
    t.weights += PANELS * t.panel_stride;
    t.out += PANELS * PANEL;
    t.num_columns -= PANELS * PANEL;
    if (t.bias) t.bias += PANELS * PANEL;
  }
  if constexpr (PANELS > 1) {
    if (num_panels > 0) float_panels<W, ROWS, 1>(t, num_panels);
  }
}

// The tallest tiles that fit the registers of the level: two chains for every row and panel.
template <class W>
int64_t float_rows(const FloatTile& t, int64_t num_rows, int64_t num_panels) {
#if LANES_LEVEL == 512
  if (num_rows >= 12) return float_panels<W, 12, 1>(t, num_panels), 12;
  if (num_rows >= 8) return float_panels<W, 8, 1>(t, num_panels), 8;
  if (num_rows >= 6) return float_panels<W, 6, 1>(t, num_panels), 6;
  if (num_rows >= 4) return float_panels<W, 4, 2>(t, num_panels), 4;
#endif
  if (num_rows >= 3) return float_panels<W, 3, LANES_LEVEL == 512 ? 2 : 1>(t, num_panels), 3;
  if (num_rows == 2) return float_panels<W, 2, LANES_LEVEL == 512 ? 2 : 1>(t, num_panels), 2;
  return float_panels<W, 1, LANES_LEVEL == 512 ? 4 : 2>(t, num_panels), 1;
}

// Activations as the products take them: rounded for BF16, inputs filled up to whole blocks.
template <class W>
void prepare_row(const float* x, float* out, int64_t num_inputs, int64_t padded) {
  int64_t k = 0;
  for (; k + 16 <= num_inputs; k += 16) {
    if (W::FORMAT == Format::BF16) {
      bf16 rounded[16];
      store_bf16(rounded, load(x + k));
      store(out + k, load_bf16(rounded));
    } else {
      store(out + k, load(x + k));
    }
  }
  for (; k < padded; k++) {
    float value = k < num_inputs ? x[k] : 0.0f;
    out[k] = W::FORMAT == Format::BF16 ? from_bf16(to_bf16(value)) : value;
  }
}

template <class W>
void float_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  constexpr int64_t ROWS_PER_PASS = 384, INPUTS_PER_PASS = 512;
  int64_t padded = padded_inputs(W::FORMAT, a.num_inputs, 0);
  const float* x = a.x;
  if (W::FORMAT == Format::BF16 || padded != a.num_inputs) {
    float* prepared = (float*)a.scratch;
    x = prepared;
    int64_t rows = num_rows <= 8 ? num_rows : 8;
    run.pool.each(ceil_div(num_rows, rows), [&](int64_t piece, int) {
      for (int64_t m = piece * rows; m < min_of(num_rows, (piece + 1) * rows); m++)
        prepare_row<W>(a.x + m * a.num_inputs, prepared + m * padded, a.num_inputs, padded);
    });
  }
  int64_t num_panels = ceil_div(a.num_outputs, PANEL);
  int64_t chunk = panels_per_piece(num_panels, run.pool.num_threads());
  int64_t stride = panel_bytes(W::FORMAT, padded);
  run.pool.each(ceil_div(num_panels, chunk), [&](int64_t piece, int) {
    int64_t first = piece * chunk, panels = min_of(chunk, num_panels - first);
    for (int64_t row = 0; row < num_rows; row += ROWS_PER_PASS) {
      int64_t rows = min_of(ROWS_PER_PASS, num_rows - row);
      int64_t step = rows <= 2 ? padded : INPUTS_PER_PASS;
      for (int64_t k = 0; k < padded; k += step) {
        int64_t inputs = min_of(step, padded - k);
        int64_t together = rows <= 4 ? 4 : 1;
        for (int64_t p = first; p < first + panels; p += together)
          for (int64_t m = row, left = rows; left > 0;) {
            FloatTile t{x + m * padded + k,
                        padded,
                        a.weight + p * stride + panel_bytes(W::FORMAT, k),
                        stride,
                        inputs / BLOCK,
                        a.out + m * a.num_outputs + p * PANEL,
                        a.num_outputs,
                        a.num_outputs - p * PANEL,
                        a.bias && k + inputs == padded ? a.bias + p * PANEL : nullptr,
                        k == 0};
            int64_t done = float_rows<W>(t, left, min_of(together, first + panels - p));
            m += done, left -= done;
          }
      }
    }
  });
}
