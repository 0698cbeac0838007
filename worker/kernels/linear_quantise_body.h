// Activations as the integer linears take them. Included by `linear_int_body.h`.

// Quantise one group of activations, `count` of which exist, writing a chunk every `stride`; give
// back the scale and the sum of the values. A group that holds what is not finite becomes zeros with
// a scale that is not a number.
inline float quantise_group(const float* x, int64_t count, int64_t group, Activation* to,
                            int64_t stride, int32_t* sum_of_values) {
  constexpr float TINY = 1e-30f;  // 127 over less would overflow
  constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  float filled[MOST_GROUP];
  if (count < group) {
    for (int64_t k = 0; k < group; k++) filled[k] = k < count ? x[k] : 0.0f;
    x = filled;
  }
  Lanes sizes[4], nothing[4], totals[4];  // four chains each: one would wait for itself
  for (int i = 0; i < 4; i++) sizes[i] = nothing[i] = totals[i] = zero();
  for (int64_t k = 0; k < group; k += CHUNK)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      Lanes part = load(x + k + i * PANEL);
      sizes[i] = larger(sizes[i], larger(part, zero() - part));
      nothing[i] = fma(part, zero(), nothing[i]);  // zero of what is finite only
    }
  float most = largest(larger(larger(sizes[0], sizes[1]), larger(sizes[2], sizes[3])));
  float inverse = most > TINY ? 127.0f / most : 0.0f, scale = most > TINY ? most / 127.0f : 0.0f;
  if (sum((nothing[0] + nothing[1]) + (nothing[2] + nothing[3])) != 0.0f) {
    memset(filled, 0, sizeof filled);
    x = filled, scale = from_bits(0x7fc00000);
  }
  for (int64_t k = 0; k < group; k += CHUNK, to += stride) {
    Lanes whole[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      whole[i] = (load(x + k + i * PANEL) * splat(inverse) + splat(ROUND)) - splat(ROUND);
      totals[i] = totals[i] + whole[i];
    }
    store_activations(to, whole);
  }
  *sum_of_values = int32_t(sum((totals[0] + totals[1]) + (totals[2] + totals[3])));
  return scale;
}

// A tile of activations in scratch memory, see `QuantisedRow`: of each array that of all its rows.
struct QuantisedTile {
  uint8_t* at;
  int64_t num_rows;

  QuantisedTile(const LinearArguments& a, int64_t first, const Tiles& tiles, int64_t tile,
                const QuantisedRow& layout)
      : at(a.scratch + (first + tiles.first(tile)) * layout.stride),
        num_rows(tiles.height(tile)),
        layout_(layout) {}

  float* scales() const { return (float*)(at + num_rows * layout_.values_bytes); }
  int32_t* starts() const { return (int32_t*)(scales() + num_rows * layout_.num_groups); }

 private:
  const QuantisedRow& layout_;
};

// Groups first..end-1 of one row into its tile.
template <class W>
void quantise_row(const LinearArguments& a, const QuantisedTile& tile, int64_t row, int64_t m,
                  int64_t first, int64_t end) {
  for (int64_t g = first; g < end; g++) {
    int32_t sum;
    int64_t k = g * a.group, place = g * tile.num_rows + m;
    Activation* to = (Activation*)tile.at + k * tile.num_rows + CHUNK * m;
    tile.scales()[place] =
        quantise_group(a.x + row * a.num_inputs + k, min_of(a.group, a.num_inputs - k), a.group, to,
                       CHUNK * tile.num_rows, &sum);
    tile.starts()[place] = -W::OFFSET * sum;
  }
}
