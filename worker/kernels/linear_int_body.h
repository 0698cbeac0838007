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

// A rectangle of the output and the groups of one pass over it.
struct IntTile {
  const uint8_t* x;        // first quantised row
  QuantisedRow layout;
  const uint8_t* weights;  // first panel, first group of the pass
  int64_t panel_stride;    // bytes
  const uint8_t* scales;   // of the first panel
  int64_t first_group;
  int64_t num_groups;
  int64_t group;
  float* out;
  int64_t out_stride;
  int64_t num_columns;     // valid ones, at most 16 per panel
  const float* bias;
  bool last;               // scale and add the bias
};

// Exact sums of products over one group.
template <class W, int ROWS, int PANELS>
inline void group_sums(const IntTile& t, int64_t group, const uint8_t* weights,
                       Ints (&sums)[ROWS][PANELS]) {
  constexpr int64_t AHEAD = 2048;
  for (int m = 0; m < ROWS; m++) {
    int32_t start = t.layout.starts(t.x + m * t.layout.stride)[group];
    for (int p = 0; p < PANELS; p++) sums[m][p] = splat(start);
  }
  const Activation* x = (const Activation*)t.x + group * t.group;
  int64_t x_stride = t.layout.stride / int64_t(sizeof(Activation));
  int64_t num_lines = t.group / W::LINE_INPUTS;
#pragma GCC unroll 2
  for (int64_t i = 0; i < num_lines; i++, x += W::LINE_INPUTS) {
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      const uint8_t* line = weights + p * t.panel_stride + i * 64;
      __builtin_prefetch(line + AHEAD);
      if constexpr (W::FORMAT == Format::INT8) {
        Bytes a = bytes(line);
#pragma GCC unroll 16
        for (int m = 0; m < ROWS; m++) sums[m][p] = dot(sums[m][p], a, x + m * x_stride);
      } else {
        Bytes low = low_halves(line), high = high_halves(line);
#pragma GCC unroll 16
        for (int m = 0; m < ROWS; m++) {
          sums[m][p] = dot(sums[m][p], low, x + m * x_stride);
          sums[m][p] = dot(sums[m][p], high, x + m * x_stride + 4);
        }
      }
    }
  }
}

// One group more: int8 has one scale per output and takes it last, int4 one per group.
template <class W>
inline Lanes add_group(Lanes total, Lanes sum, float x_scale, Lanes weight_scale) {
  if constexpr (W::FORMAT == Format::INT8) return fma(sum, splat(x_scale), total);
  return fma(sum * splat(x_scale), weight_scale, total);
}

inline Lanes group_scales(const IntTile& t, int64_t panel, int64_t group) {
  return load_bf16((const bf16*)t.scales + (panel * t.layout.num_groups + group) * PANEL);
}

template <class W>
inline Lanes finished(const IntTile& t, Lanes total, int64_t panel) {
  if (W::FORMAT == Format::INT8) total = total * load((const float*)t.scales + panel * PANEL);
  return t.bias ? total + load(t.bias + panel * PANEL) : total;
}

template <class W, int ROWS, int PANELS>
void int_tile(const IntTile& t) {
  Lanes totals[ROWS][PANELS];
  for (int m = 0; m < ROWS; m++)
    for (int p = 0; p < PANELS; p++)
      totals[m][p] = t.first_group == 0 ? zero()
                                        : load_columns(t.out + m * t.out_stride + p * PANEL,
                                                       t.num_columns - p * PANEL);
  int64_t group_bytes = panel_bytes(W::FORMAT, t.group);
  for (int64_t g = 0; g < t.num_groups; g++) {
    int64_t group = t.first_group + g;
    Ints sums[ROWS][PANELS];
    group_sums<W, ROWS, PANELS>(t, group, t.weights + g * group_bytes, sums);
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      Lanes scale = W::FORMAT == Format::INT4 ? group_scales(t, p, group) : zero();
#pragma GCC unroll 16
      for (int m = 0; m < ROWS; m++) {
        float x_scale = t.layout.scales(t.x + m * t.layout.stride)[group];
        totals[m][p] = add_group<W>(totals[m][p], to_lanes(sums[m][p]), x_scale, scale);
      }
    }
  }
  for (int m = 0; m < ROWS; m++)
    for (int p = 0; p < PANELS; p++)
      store_columns(t.out + m * t.out_stride + p * PANEL,
                    t.last ? finished<W>(t, totals[m][p], p) : totals[m][p],
                    t.num_columns - p * PANEL);
}

template <class W, int ROWS, int PANELS>
void int_panels(IntTile t, int64_t num_panels) {
  int64_t scale_bytes = W::FORMAT == Format::INT8 ? PANEL * 4 : t.layout.num_groups * PANEL * 2;
  for (; num_panels >= PANELS; num_panels -= PANELS) {
    int_tile<W, ROWS, PANELS>(t);
    t.weights += PANELS * t.panel_stride;
    t.scales += PANELS * scale_bytes;
    t.out += PANELS * PANEL;
    t.num_columns -= PANELS * PANEL;
    if (t.bias) t.bias += PANELS * PANEL;
  }
  if constexpr (PANELS > 1) {
    if (num_panels > 0) int_panels<W, ROWS, 1>(t, num_panels);
  }
}

template <class W>
int64_t int_rows(const IntTile& t, int64_t num_rows, int64_t num_panels) {
#if LANES_LEVEL == 512
  if (num_rows >= 12) return int_panels<W, 12, 1>(t, num_panels), 12;
  if (num_rows >= 8) return int_panels<W, 8, 1>(t, num_panels), 8;
  if (num_rows >= 4) return int_panels<W, 4, 2>(t, num_panels), 4;
  if (num_rows >= 2) return int_panels<W, 2, 4>(t, num_panels), 2;
#endif
  if (num_rows >= 3) return int_panels<W, 3, 1>(t, num_panels), 3;
  return int_panels<W, 1, LANES_LEVEL == 512 ? 4 : 1>(t, num_panels), 1;
}

// The largest size of a group as bits: integers compare like the floats they are, and what is not
// finite is larger than all that is.
inline uint32_t largest_size(const float* x, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; i++) {
    uint32_t size = to_bits(x[i]) & 0x7fffffff;
    most = size > most ? size : most;
  }
  return most;
}

// Quantise one group of activations, `count` of which exist; give back the scale and the sum of the
// values. A group that holds what is not finite gets a scale that is not a number.
inline float quantise_values(const float* x, int64_t count, int64_t group, int8_t* values,
                             int32_t* sum) {
  constexpr float TINY = 1e-30f;  // 127 over less would overflow
  constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  float most = from_bits(largest_size(x, count));
  bool finite = to_bits(most) < 0x7f800000;
  float inverse = finite && most > TINY ? 127.0f / most : 0.0f;
  int32_t total = 0;
  for (int64_t k = 0; k < group; k++) {
    float value = k < count && finite ? x[k] * inverse : 0.0f;
    values[k] = int8_t((value + ROUND) - ROUND);
    total += values[k];
  }
  *sum = total;
  return finite ? (most > TINY ? most / 127.0f : 0.0f) : from_bits(0x7fc00000);
}

template <class W>
void quantise_row(const LinearArguments& a, const QuantisedRow& layout, const float* x,
                  uint8_t* out) {
  float* scales = const_cast<float*>(layout.scales(out));
  int32_t* starts = const_cast<int32_t*>(layout.starts(out));
  for (int64_t g = 0; g < layout.num_groups; g++) {
    int64_t first = g * a.group;
    int8_t values[128];
    int32_t sum;
    scales[g] = quantise_values(x + first, min_of(a.group, a.num_inputs - first), a.group, values,
                                &sum);
    starts[g] = -W::OFFSET * sum;
    Activation* to = (Activation*)out + first;
    for (int64_t k = 0; k < a.group; k++) to[k] = values[k / 4 * 4 + ACTIVATION_ORDER[k % 4]];
  }
}

template <class W>
void int_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  constexpr int64_t ROWS_PER_PASS = 384, INPUTS_PER_PASS = 2048;
  int64_t padded = padded_inputs(W::FORMAT, a.num_inputs, a.group);
  QuantisedRow layout(padded, a.group, sizeof(Activation));
  int64_t together = num_rows <= 8 ? num_rows : 8;
  run.pool.each(ceil_div(num_rows, together), [&](int64_t piece, int) {
    for (int64_t m = piece * together; m < min_of(num_rows, (piece + 1) * together); m++)
      quantise_row<W>(a, layout, a.x + m * a.num_inputs, a.scratch + m * layout.stride);
  });
  int64_t num_panels = ceil_div(a.num_outputs, PANEL), num_groups = layout.num_groups;
  int64_t chunk = panels_per_piece(num_panels, run.pool.num_threads());
  int64_t stride = panel_bytes(W::FORMAT, padded);
  int64_t scale_bytes = W::FORMAT == Format::INT8 ? PANEL * 4 : num_groups * PANEL * 2;
  run.pool.each(ceil_div(num_panels, chunk), [&](int64_t piece, int) {
    int64_t first = piece * chunk, panels = min_of(chunk, num_panels - first);
    for (int64_t row = 0; row < num_rows; row += ROWS_PER_PASS) {
      int64_t rows = min_of(ROWS_PER_PASS, num_rows - row);
      int64_t step = rows <= 4 ? num_groups : INPUTS_PER_PASS / a.group;
      for (int64_t g = 0; g < num_groups; g += step) {
        int64_t groups = min_of(step, num_groups - g), width = rows <= 7 ? 4 : 1;
        for (int64_t p = first; p < first + panels; p += width)
          for (int64_t m = row, left = rows; left > 0;) {
            IntTile t{a.scratch + m * layout.stride,
                      layout,
                      a.weight + p * stride + panel_bytes(W::FORMAT, g * a.group),
                      stride,
                      a.scales + p * scale_bytes,
                      g,
                      groups,
                      a.group,
                      a.out + m * a.num_outputs + p * PANEL,
                      a.num_outputs,
                      a.num_outputs - p * PANEL,
                      a.bias ? a.bias + p * PANEL : nullptr,
                      g + groups == num_groups};
            int64_t done = int_rows<W>(t, left, min_of(width, first + panels - p));
            m += done, left -= done;
          }
      }
    }
  });
}
