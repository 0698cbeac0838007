// Linears over quantised weights, once per level. See `linear.h` for layout and order of summation.
#include "int_lanes.h"

struct Int8Weights {
  static constexpr Format FORMAT = Format::INT8;
  static constexpr int64_t LINE_INPUTS = 4;
  static constexpr int32_t OFFSET = 128;
};

struct Int4Weights {
  static constexpr Format FORMAT = Format::INT4;
  static constexpr int64_t LINE_INPUTS = 8;
  static constexpr int32_t OFFSET = 8;
};

// Weights of INT4 that a tile has made bytes of, for those after it.
struct Int4Bytes {
  static constexpr Format FORMAT = Format::INT4;
  static constexpr int64_t LINE_INPUTS = 4;
};

// As in `linear_float_body.h`: one sum for every row and panel fills the registers.
#if LANES_LEVEL == 512
constexpr int64_t INT_ROWS = 8;
constexpr int int_width(int rows) { return rows <= 2 ? 4 : 3; }
#else
constexpr int64_t INT_ROWS = 4;
constexpr int int_width(int) { return 1; }
#endif

// One group more.
template <class W>
inline Lanes scaled(Lanes sum, Lanes products, Lanes x_scale, Lanes weight_scale) {
  if constexpr (W::FORMAT == Format::INT8) return fma(products, x_scale, sum);
  return fma(products * x_scale, weight_scale, sum);
}

// A rectangle of the output and the groups of one pass over it.
struct IntTile {
  const Activation* x;     // [inputs of the pass / CHUNK][rows][CHUNK]
  const float* x_scales;   // [groups][rows]
  const int32_t* starts;   // [groups][rows]
  const uint8_t* weights;  // first panel, first group of the pass
  int64_t panel_stride;    // bytes
  const bf16* scales;      // of INT4: [groups][16]
  int64_t scales_stride;   // from panel to panel
  int64_t num_groups;
  int64_t group;
  float* sums;             // of the passes so far
  int64_t sums_stride;
  Fetch fetch;
  bool first;              // the weights are not in the first cache yet
  bool keep;               // write the weights as bytes, for the tiles after this one
  uint8_t* kept;
};

constexpr int64_t INT_PASS = 512;                 // inputs of a piece
constexpr int64_t CHUNK = 64;                     // inputs of a row that stand side by side
constexpr int64_t KEPT_BYTES = INT_PASS * PANEL;  // of a panel
constexpr int64_t SOON = 1024;  // bytes of a panel until its weights are wanted in the first cache

// sums[m][p] += weights[p] · x[m]
template <int ROWS, int PANELS>
inline void add_products(Ints (&sums)[ROWS][PANELS], const Bytes (&weights)[PANELS],
                         const Activation* x) {
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = dot(sums[m][p], weights[p], x + CHUNK * m);
}

// Exact sums of products over group g, then one step more of the sums of all groups: int8 has one
// scale per output and takes it last, int4 one per group.
template <class W, int ROWS, int PANELS, bool KEEP>
inline __attribute__((always_inline)) void add_group(IntTile& t, int64_t g) {
  Fetch fetch = t.fetch;
  const Activation* x = t.x + g * t.group * ROWS;
  const uint8_t* line = t.weights + g * (t.group / W::LINE_INPUTS * 64);
  uint8_t* kept = KEEP ? t.kept + g * t.group * PANEL : nullptr;
  Ints sums[ROWS][PANELS];
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = splat(t.starts[g * ROWS + m]);
  for (int64_t i = 0; i < t.group / CHUNK; i++, x += CHUNK * (ROWS - 1))
#pragma GCC unroll 2
    for (int j = 0; j < CHUNK / W::LINE_INPUTS; j++) {
      fetch.step<PANELS>();
      if (t.first)
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) __builtin_prefetch(line + p * t.panel_stride + SOON);
      Bytes weights[PANELS];
      if constexpr (W::LINE_INPUTS == 4) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) weights[p] = bytes(line + p * t.panel_stride);
      } else {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          weights[p] = low_halves(line + p * t.panel_stride);
          if (KEEP) store_bytes(kept + p * KEPT_BYTES, weights[p]);
        }
        add_products(sums, weights, x);
        x += 4;
        if (KEEP) kept += 64;
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          weights[p] = high_halves(line + p * t.panel_stride);
          if (KEEP) store_bytes(kept + p * KEPT_BYTES, weights[p]);
        }
      }
      add_products(sums, weights, x);
      x += 4, line += 64;
      if (KEEP) kept += 64;
    }
  t.fetch = fetch;
  Lanes scales[PANELS];
#pragma GCC unroll 4
  for (int p = 0; p < PANELS; p++)
    if (W::FORMAT == Format::INT4) scales[p] = load_bf16(t.scales + p * t.scales_stride + g * PANEL);
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++) {
    Lanes x_scale = splat(t.x_scales[g * ROWS + m]);
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      float* sum = t.sums + m * t.sums_stride + p * PANEL;
      store(sum, scaled<W>(load(sum), to_lanes(sums[m][p]), x_scale, scales[p]));
    }
  }
}

template <class W, int ROWS, int PANELS, bool KEEP>
__attribute__((noinline)) void add_groups(IntTile& t) {
  for (int64_t g = 0; g < t.num_groups; g++) add_group<W, ROWS, PANELS, KEEP>(t, g);
}

// One tile over all panels of a piece, side by side while as many are left.
template <class W, int ROWS, bool KEEP>
void int_panels(IntTile& t, int64_t num_panels) {
  constexpr int WIDTH = int_width(ROWS);
  Fetch begin = t.fetch;
  for (int64_t p = 0, done; p < num_panels; p += done) {
    done = num_panels - p >= WIDTH ? WIDTH : 1;
    t.fetch = begin.moved(p);
    done == WIDTH ? add_groups<W, ROWS, WIDTH, KEEP>(t) : add_groups<W, ROWS, 1, KEEP>(t);
    t.fetch = t.fetch.moved(-p);
    t.weights += done * t.panel_stride;
    t.scales += done * t.scales_stride;
    if (KEEP) t.kept += done * KEPT_BYTES;
    t.sums += done * PANEL;
  }
}

template <class W, int ROWS = INT_ROWS>
void int_rows(IntTile& t, int64_t num_rows, int64_t num_panels) {
  if constexpr (ROWS > 1) {
    if (num_rows < ROWS) return int_rows<W, ROWS - 1>(t, num_rows, num_panels);
  }
  if constexpr (W::LINE_INPUTS == 8 && 2 * ROWS >= INT_ROWS) {
    if (t.keep) return int_panels<W, ROWS, true>(t, num_panels);
  }
  int_panels<W, ROWS, false>(t, num_panels);
}

// Quantise one group of activations, `count` of which exist; give back the scale and the sum of the
// values. A group that holds what is not finite gets a scale that is not a number.
inline float quantise_values(const float* x, int64_t count, int64_t group, int8_t* values,
                             int32_t* sum_of_values) {
  constexpr float TINY = 1e-30f;  // 127 over less would overflow
  constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  float filled[MOST_GROUP];
  if (count < group) {
    for (int64_t k = 0; k < group; k++) filled[k] = k < count ? x[k] : 0.0f;
    x = filled;
  }
  Lanes sizes = zero(), nothing = zero();
  for (int64_t k = 0; k < group; k += PANEL) {
    Lanes part = load(x + k);
    sizes = larger(sizes, larger(part, zero() - part));
    nothing = nothing + part * zero();  // zero of what is finite only
  }
  float most = largest(sizes);
  if (sum(nothing) != 0.0f) {
    memset(values, 0, size_t(group));
    *sum_of_values = 0;
    return from_bits(0x7fc00000);
  }
  Lanes inverse = splat(most > TINY ? 127.0f / most : 0.0f), total = zero();
  for (int64_t k = 0; k < group; k += PANEL) {
    Lanes whole = (load(x + k) * inverse + splat(ROUND)) - splat(ROUND);
    store_as_bytes(values + k, whole);
    total = total + whole;
  }
  *sum_of_values = int32_t(sum(total));
  return most > TINY ? most / 127.0f : 0.0f;
}

// A tile of activations in scratch memory, see `QuantisedRow`: of each array that of all its rows.
struct QuantisedTile {
  uint8_t* at;
  int64_t num_rows;

  QuantisedTile(const LinearArguments& a, int64_t first, const Tiles& tiles, int64_t tile,
                int64_t padded)
      : num_rows(tiles.height(tile)), layout_(padded, a.group, sizeof(Activation)) {
    at = a.scratch + (first + tiles.first(tile)) * layout_.stride;
  }

  float* scales() const { return (float*)(at + num_rows * layout_.values_bytes); }
  int32_t* starts() const { return (int32_t*)(scales() + num_rows * layout_.num_groups); }

 private:
  QuantisedRow layout_;
};

// Groups first..end-1 of one row into its tile.
template <class W>
void quantise_row(const LinearArguments& a, const QuantisedTile& tile, int64_t row, int64_t m,
                  int64_t first, int64_t end) {
  for (int64_t g = first; g < end; g++) {
    int8_t values[MOST_GROUP];
    int32_t sum;
    int64_t k = g * a.group;
    tile.scales()[g * tile.num_rows + m] = quantise_values(
        a.x + row * a.num_inputs + k, min_of(a.group, a.num_inputs - k), a.group, values, &sum);
    tile.starts()[g * tile.num_rows + m] = -W::OFFSET * sum;
    Activation* to = (Activation*)tile.at + k * tile.num_rows + CHUNK * m;
    for (int64_t i = 0; i < a.group; i += CHUNK, to += CHUNK * tile.num_rows)
      take_activations(to, values + i, CHUNK);
  }
}

// One piece for rows first..first+num_rows-1. Of INT4 the first tile keeps its weights for the others.
template <class W>
void int_piece(const LinearArguments& a, int64_t first, int64_t num_rows, const Piece& now,
               const Piece& next, const Order& order, PassSums& pass_sums) {
  constexpr bool HALVES = W::FORMAT == Format::INT4;
  alignas(64) uint8_t kept[HALVES ? MOST_WIDTH * KEPT_BYTES : 1];
  int64_t padded = order.num_inputs, stride = panel_bytes(W::FORMAT, padded);
  int64_t num_groups = padded / a.group;
  int64_t scale_bytes = HALVES ? num_groups * PANEL * 2 : 0;
  const uint8_t* weights = a.weight + now.panel * stride + panel_bytes(W::FORMAT, now.k);
  const uint8_t* scales = a.scales + now.panel * scale_bytes + now.k / a.group * PANEL * 2;
  const uint8_t* wanted = weights;
  if (next.num_panels) {
    wanted = a.weight + next.panel * stride + panel_bytes(W::FORMAT, next.k);
    const uint8_t* soon = a.scales + next.panel * scale_bytes + next.k / a.group * PANEL * 2;
    for (int64_t p = 0; HALVES && p < next.num_panels; p++)
      for (int64_t i = 0; i < next.num_inputs / a.group * PANEL * 2; i += 64)
        __builtin_prefetch(soon + p * scale_bytes + i, 0, 2);
  }
  Tiles tiles(num_rows, INT_ROWS);
  bool keep = HALVES && tiles.count > 1;
  Fetch fetch(weights, panel_bytes(W::FORMAT, now.num_inputs), wanted, stride, 64,
              keep ? 2 * tiles.count - 1 : tiles.count);
  for (int64_t i = 0; i < tiles.count; i++) {
    int64_t row = first + tiles.first(i), rows = tiles.height(i), group = now.k / a.group;
    QuantisedTile x(a, first, tiles, i, padded);
    TileSums sums(a, row, rows, now, order, pass_sums);
    bool kept_before = keep && i > 0;
    IntTile t{(const Activation*)x.at + now.k * rows,
              x.scales() + group * rows,
              x.starts() + group * rows,
              kept_before ? kept : weights,
              kept_before ? KEPT_BYTES : stride,
              (const bf16*)scales,
              scale_bytes / 2,
              now.num_inputs / a.group,
              a.group,
              sums.at,
              sums.stride,
              fetch,
              i == 0,
              keep,
              kept};
    if constexpr (HALVES) {
      if (kept_before) int_rows<Int4Bytes>(t, rows, now.num_panels);
    }
    if (!kept_before) int_rows<W>(t, rows, now.num_panels);
    fetch = t.fetch;
    sums.finish([&](Lanes sum, int64_t panel) {
      if (!HALVES) sum = sum * load((const float*)a.scales + panel * PANEL);
      return a.bias ? sum + load(a.bias + panel * PANEL) : sum;
    });
  }
}

template <class W>
void int_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  constexpr int64_t GROUPS_PER_STRIP = 4, CACHED = 1 << 20;  // activations
  int64_t padded = padded_inputs(W::FORMAT, a.num_inputs, a.group), num_groups = padded / a.group;
  for (int64_t first = 0; first < num_rows; first += ROWS_PER_PASS) {
    int64_t rows = min_of(ROWS_PER_PASS, num_rows - first);
    Tiles tiles(rows, INT_ROWS);
    int64_t strip = rows == 1 ? num_groups : GROUPS_PER_STRIP, strips = ceil_div(num_groups, strip);
    run.pool.each(tiles.count * strips, [&](int64_t piece, int) {
      int64_t row = first + tiles.first(piece / strips), group = piece % strips * strip;
      QuantisedTile x(a, first, tiles, piece / strips, padded);
      for (int64_t m = 0; m < x.num_rows; m++)
        quantise_row<W>(a, x, row + m, m, group, min_of(num_groups, group + strip));
    });
    int64_t width = int_width(int(tiles.height(tiles.count - 1)));
    Order order(ceil_div(a.num_outputs, PANEL), padded, width, INT_PASS, CACHED / rows);
    walk<PassSums>(run, order, [&](const Piece& now, const Piece& next, PassSums& sums) {
      int_piece<W>(a, first, rows, now, next, order, sums);
    });
  }
}
