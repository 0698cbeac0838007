// Linears on the tile unit: BF16 and the integer formats from five rows up; below that, and for the
// other formats, the vector kernels stream as fast as memory gives, to the same bits.
//
// Activations are packed in tiles of 16 rows and 64 bytes, [row tile][input tile][16][64 bytes]; rows
// that do not exist hold what lay there before and reach no other row.

constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 1024, TILE_INPUTS = 64;
constexpr int64_t MIN_TILE_ROWS = 5;
constexpr int64_t QUAD = 4;  // panels that are summed side by side

// A 16 x 16 piece of the output, straight where it lies or, at the edges, through a copy.
struct Corner {
  float* out;
  int64_t stride;   // floats
  int64_t rows;     // valid ones
  int64_t columns;

  bool is_whole() const { return rows >= TILE_ROWS && columns >= PANEL; }
};

template <int T>
void load_sums(const Corner& c) {
  if (c.is_whole()) return tile_load<T>(c.out, c.stride * 4);
  alignas(64) float copy[TILE_ROWS][PANEL] = {};
  for (int64_t m = 0; m < min_of(c.rows, TILE_ROWS); m++)
    store(copy[m], load_columns(c.out + m * c.stride, c.columns));
  tile_load<T>(copy, sizeof copy[0]);
}

template <int T>
void store_sums(const Corner& c) {
  if (c.is_whole()) return tile_store<T>(c.out, c.stride * 4);
  alignas(64) float copy[TILE_ROWS][PANEL];
  tile_store<T>(copy, sizeof copy[0]);
  for (int64_t m = 0; m < min_of(c.rows, TILE_ROWS); m++)
    store_columns(c.out + m * c.stride, load(copy[m]), c.columns);
}

inline void prefetch_tile(const uint8_t* tile) {
  for (int64_t line = 0; line < TILE_BYTES; line += 64) __builtin_prefetch(tile + line);
}

// Two row tiles by two panels over `count` input tiles; sums lie at corners[row tile][panel].
// A second panel or row tile that does not exist is the first one again, and is not stored.
struct Bf16Square {
  const uint8_t* x[2];
  const uint8_t* weights[2];
  Corner corners[2][2];
  int64_t count;
  int64_t ahead;  // bytes to prefetch ahead of the weights, 0 = they are in the cache
  bool first, has_row, has_panel;
};

inline void bf16_square(const Bf16Square& s) {
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  if (!s.first) {
    load_sums<0>(s.corners[0][0]);
    if (s.has_panel) load_sums<1>(s.corners[0][1]);
    if (s.has_row) load_sums<2>(s.corners[1][0]);
    if (s.has_row && s.has_panel) load_sums<3>(s.corners[1][1]);
  }
  for (int64_t k = 0; k < s.count; k++) {
    if (s.ahead) {
      prefetch_tile(s.weights[0] + k * TILE_BYTES + s.ahead);
      prefetch_tile(s.weights[1] + k * TILE_BYTES + s.ahead);
    }
    tile_load<4>(s.x[0] + k * TILE_BYTES, 64);
    tile_load<6>(s.weights[0] + k * TILE_BYTES, 64);
    tile_product_bf16<0, 4, 6>();
    tile_load<7>(s.weights[1] + k * TILE_BYTES, 64);
    tile_product_bf16<1, 4, 7>();
    if (s.has_row) {
      tile_load<5>(s.x[1] + k * TILE_BYTES, 64);
      tile_product_bf16<2, 5, 6>();
      tile_product_bf16<3, 5, 7>();
    }
  }
  store_sums<0>(s.corners[0][0]);
  if (s.has_panel) store_sums<1>(s.corners[0][1]);
  if (s.has_row) store_sums<2>(s.corners[1][0]);
  if (s.has_row && s.has_panel) store_sums<3>(s.corners[1][1]);
}

// One row of activations into its tiles, as bf16.
inline void prepare_tile_row(const LinearArguments& a, int64_t row, int64_t padded) {
  const float* x = a.x + row * a.num_inputs;
  bf16* tiles = (bf16*)a.scratch + row / TILE_ROWS * TILE_ROWS * padded + row % TILE_ROWS * BLOCK;
  for (int64_t k = 0; k < padded; k += 16) {
    Lanes values = k + 16 <= a.num_inputs ? load(x + k) : load_part(x + k, a.num_inputs - k, 0.0f);
    store_bf16(tiles + k / BLOCK * TILE_ROWS * BLOCK + k % BLOCK, values);
  }
}

inline void add_bias(const LinearArguments& a, int64_t num_rows, int64_t panel, int64_t panels) {
  for (int64_t m = 0; m < num_rows; m++)
    for (int64_t p = panel; p < panel + panels; p++) {
      float* out = a.out + m * a.num_outputs + p * PANEL;
      int64_t columns = a.num_outputs - p * PANEL;
      store_columns(out, load_columns(out, columns) + load(a.bias + p * PANEL), columns);
    }
}

// Panels first..first+panels-1 of all rows. The weights of a pass and pair of panels, 32 KiB, stay in
// the first cache while all rows go by.
inline void bf16_tiles(const LinearArguments& a, int64_t num_rows, int64_t first, int64_t panels) {
  constexpr int64_t INPUTS_PER_PASS = 512;
  int64_t padded = padded_inputs(a.format, a.num_inputs, 0);
  int64_t stride = panel_bytes(a.format, padded), step = num_rows <= 32 ? padded : INPUTS_PER_PASS;
  FullTiles tiles;
  for (int64_t k = 0; k < padded; k += step)
    for (int64_t p = first; p < first + panels; p += 2)
      for (int64_t m = 0; m < num_rows; m += 2 * TILE_ROWS) {
        Bf16Square s;
        s.has_row = m + TILE_ROWS < num_rows, s.has_panel = p + 1 < first + panels;
        s.first = k == 0, s.count = min_of(step, padded - k) / BLOCK, s.ahead = m == 0 ? 2048 : 0;
        for (int64_t i = 0; i < 2; i++) {
          s.x[i] = a.scratch + (m + i * s.has_row * TILE_ROWS) * padded * 2 +
                   k / BLOCK * TILE_BYTES;
          s.weights[i] = a.weight + (p + i * s.has_panel) * stride + panel_bytes(a.format, k);
          for (int64_t j = 0; j < 2; j++)
            s.corners[i][j] = {a.out + (m + i * TILE_ROWS) * a.num_outputs + (p + j) * PANEL,
                               a.num_outputs, num_rows - m - i * TILE_ROWS,
                               a.num_outputs - (p + j) * PANEL};
        }
        bf16_square(s);
      }
  if (a.bias) add_bias(a, num_rows, first, panels);
}

// Quantised activations: values in tiles, then a scale and a start per row and group.
struct QuantisedTiles {
  int64_t padded, num_groups, values_bytes;

  QuantisedTiles(int64_t padded, int64_t group, int64_t num_rows)
      : padded(padded),
        num_groups(padded / group),
        values_bytes(ceil_div(num_rows, TILE_ROWS) * TILE_ROWS * padded) {}

  const uint8_t* tile(const uint8_t* scratch, int64_t row, int64_t k) const {
    return scratch + row / TILE_ROWS * TILE_ROWS * padded + k / TILE_INPUTS * TILE_BYTES;
  }
  float* scales(uint8_t* scratch, int64_t row) const {
    return (float*)(scratch + values_bytes) + row * num_groups * 2;
  }
  int32_t* starts(uint8_t* scratch, int64_t row) const {
    return (int32_t*)scales(scratch, row) + num_groups;
  }
};

template <class W>
void quantise_tile_row(const LinearArguments& a, const QuantisedTiles& layout, int64_t row) {
  const float* x = a.x + row * a.num_inputs;
  for (int64_t g = 0; g < layout.num_groups; g++) {
    int64_t first = g * a.group;
    int8_t values[128];
    int32_t sum;
    layout.scales(a.scratch, row)[g] = quantise_values(
        x + first, min_of(a.group, a.num_inputs - first), a.group, values, &sum);
    layout.starts(a.scratch, row)[g] = -W::OFFSET * sum;
    for (int64_t k = 0; k < a.group; k += TILE_INPUTS)
      memcpy(const_cast<uint8_t*>(layout.tile(a.scratch, row, first + k)) +
                 row % TILE_ROWS * TILE_INPUTS,
             values + k, TILE_INPUTS);
  }
}

// Four panels of weights as unsigned bytes, from `first` on, for one pass.
struct Quad {
  const uint8_t* panels[QUAD];
  int64_t stride_groups;  // bytes from group to group
};

// The exact sums of one group, 16 rows by four panels.
inline void quad_sums(const uint8_t* x, const Quad& quad, int64_t g, int64_t group, bool prefetch,
                      int32_t (*sums)[TILE_ROWS][PANEL]) {
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (int64_t k = 0; k < group; k += TILE_INPUTS) {
    int64_t place = g * quad.stride_groups + k / TILE_INPUTS * TILE_BYTES;
    if (prefetch)
      for (const uint8_t* panel : quad.panels) prefetch_tile(panel + place + 2048);
    tile_load<4>(x + k / TILE_INPUTS * TILE_BYTES, 64);
    tile_load<5>(quad.panels[0] + place, 64);
    tile_product_bytes<0, 4, 5>();
    tile_load<6>(quad.panels[1] + place, 64);
    tile_product_bytes<1, 4, 6>();
    tile_load<7>(quad.panels[2] + place, 64);
    tile_product_bytes<2, 4, 7>();
    tile_load<5>(quad.panels[3] + place, 64);
    tile_product_bytes<3, 4, 5>();
  }
  tile_store<0>(sums[0], 64), tile_store<1>(sums[1], 64);
  tile_store<2>(sums[2], 64), tile_store<3>(sums[3], 64);
}

// int4: write four panels of a pass as unsigned bytes, each line becoming two rows of a tile.
inline void unpack_quad(const Quad& packed, int64_t num_lines, uint8_t* out, int64_t out_stride) {
  for (int64_t p = 0; p < QUAD; p++)
    for (int64_t i = 0; i < num_lines; i++) {
      const uint8_t* line = packed.panels[p] + i * 64;
      uint8_t* rows = out + p * out_stride + i * 128;
      for (int64_t j = 0; j < 64; j++) rows[j] = line[j] & 15, rows[64 + j] = line[j] >> 4;
    }
}

// What one pass over some groups adds to 16 rows by four panels of the output.
template <class W>
void quad_pass(const LinearArguments& a, const QuantisedTiles& layout, const Quad& quad,
               int64_t row, int64_t panel, int64_t num_panels, int64_t group, int64_t num_groups,
               bool prefetch, int64_t num_rows) {
  int64_t rows = min_of(TILE_ROWS, num_rows - row);
  alignas(64) int32_t sums[QUAD][TILE_ROWS][PANEL];
  alignas(64) float totals[QUAD][TILE_ROWS][PANEL];
  for (int64_t p = 0; p < num_panels; p++)
    for (int64_t m = 0; m < rows; m++)
      store(totals[p][m], group == 0 ? zero()
                                     : load_columns(a.out + (row + m) * a.num_outputs +
                                                        (panel + p) * PANEL,
                                                    a.num_outputs - (panel + p) * PANEL));
  for (int64_t g = 0; g < num_groups; g++) {
    int64_t now = group + g;
    quad_sums(layout.tile(a.scratch, row, now * a.group), quad, g, a.group, prefetch, sums);
    for (int64_t p = 0; p < num_panels; p++) {
      Lanes scale = zero();
      if (W::FORMAT == Format::INT4)
        scale = load_bf16((const bf16*)a.scales +
                          ((panel + p) * layout.num_groups + now) * PANEL);
      for (int64_t m = 0; m < rows; m++) {
        Ints sum = add(load_ints(sums[p][m]), splat(layout.starts(a.scratch, row + m)[now]));
        float x_scale = layout.scales(a.scratch, row + m)[now];
        store(totals[p][m],
              scaled<W>(load(totals[p][m]), to_lanes(sum), splat(x_scale), scale));
      }
    }
  }
  bool last = group + num_groups == layout.num_groups;
  for (int64_t p = 0; p < num_panels; p++)
    for (int64_t m = 0; m < rows; m++) {
      Lanes total = load(totals[p][m]);
      int64_t column = (panel + p) * PANEL;
      if (last && W::FORMAT == Format::INT8) total = total * load((const float*)a.scales + column);
      if (last && a.bias) total = total + load(a.bias + column);
      store_columns(a.out + (row + m) * a.num_outputs + column, total, a.num_outputs - column);
    }
}

template <class W>
void int_tiles(const LinearArguments& a, const QuantisedTiles& layout, int64_t num_rows,
               int64_t first, int64_t panels) {
  constexpr int64_t INPUTS_PER_PASS = 1024;
  int64_t stride = panel_bytes(W::FORMAT, layout.padded), step = INPUTS_PER_PASS / a.group;
  alignas(64) uint8_t unpacked[QUAD * INPUTS_PER_PASS * PANEL];
  FullTiles tiles;
  for (int64_t g = 0; g < layout.num_groups; g += step) {
    int64_t groups = min_of(step, layout.num_groups - g);
    for (int64_t p = first; p < first + panels; p += QUAD) {
      int64_t count = min_of(QUAD, first + panels - p);
      Quad quad{{}, panel_bytes(W::FORMAT, a.group)};
      for (int64_t i = 0; i < QUAD; i++)  // panels that do not exist: the last one again
        quad.panels[i] = a.weight + (p + min_of(i, count - 1)) * stride +
                         panel_bytes(W::FORMAT, g * a.group);
      if constexpr (W::FORMAT == Format::INT4) {
        unpack_quad(quad, groups * a.group / W::LINE_INPUTS, unpacked, INPUTS_PER_PASS * PANEL);
        for (int64_t i = 0; i < QUAD; i++) quad.panels[i] = unpacked + i * INPUTS_PER_PASS * PANEL;
        quad.stride_groups = a.group * PANEL;
      }
      bool prefetch = W::FORMAT == Format::INT8;
      for (int64_t m = 0; m < num_rows; m += TILE_ROWS)
        quad_pass<W>(a, layout, quad, m, p, count, g, groups, prefetch && m == 0, num_rows);
    }
  }
}

template <class Prepare, class Compute>
void tile_linear(const Run& run, const LinearArguments& a, int64_t num_rows, Prepare&& prepare,
                 Compute&& compute) {
  run.pool.each(ceil_div(num_rows, 8), [&](int64_t piece, int) {
    for (int64_t m = piece * 8; m < min_of(num_rows, piece * 8 + 8); m++) prepare(m);
  });
  int64_t num_panels = ceil_div(a.num_outputs, PANEL);
  int64_t chunk = panels_per_piece(num_panels, run.pool.num_threads());
  run.pool.each(ceil_div(num_panels, chunk), [&](int64_t piece, int) {
    compute(piece * chunk, min_of(chunk, num_panels - piece * chunk));
  });
}

template <class W>
void int_tile_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  QuantisedTiles layout(padded_inputs(a.format, a.num_inputs, a.group), a.group, num_rows);
  tile_linear(
      run, a, num_rows, [&](int64_t m) { quantise_tile_row<W>(a, layout, m); },
      [&](int64_t first, int64_t count) { int_tiles<W>(a, layout, num_rows, first, count); });
}

void linear_tiles(const Run& run, const Op& op) {
  auto a = op.as<LinearArguments>();
  int64_t num_rows = run.step.count(op.rows);
  if (num_rows < MIN_TILE_ROWS) return linear(run, op);
  switch (a.format) {
    case Format::BF16: {
      int64_t padded = padded_inputs(a.format, a.num_inputs, 0);
      return tile_linear(
          run, a, num_rows, [&](int64_t m) { prepare_tile_row(a, m, padded); },
          [&](int64_t first, int64_t count) { bf16_tiles(a, num_rows, first, count); });
    }
    case Format::INT8: return int_tile_linear<Int8Weights>(run, a, num_rows);
    case Format::INT4: return int_tile_linear<Int4Weights>(run, a, num_rows);
    default: return linear(run, op);
  }
}
