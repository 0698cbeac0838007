// Activations as the integer linears take them. Included by `linear_int_body.h`.

// What a group of activations is multiplied with to become whole numbers, and these to come back.
struct GroupScale {
  float inverse, scale;
};

// The first `count` of a group, filled up with zeros in `filled` where they are not all.
inline const float* whole_group(const float* x, int64_t count, int64_t group,
                                float (&filled)[MOST_GROUP]) {
  if (count >= group) return x;
  for (int64_t k = 0; k < group; k++) filled[k] = k < count ? x[k] : 0.0f;
  return filled;
}

// Its largest magnitude becomes 127. A group that holds what is not finite becomes zeros, with a scale
// that is not a number.
inline GroupScale scale_of(const float* x, int64_t count, int64_t group) {
  constexpr float TINY = 1e-30f;  // 127 over less would overflow
  float filled[MOST_GROUP];
  x = whole_group(x, count, group, filled);
  Lanes sizes[4];  // four chains: one would wait for itself
  for (Lanes& size : sizes) size = zero();
  for (int64_t k = 0; k < group; k += CHUNK)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
      sizes[i] = larger_magnitude(sizes[i], magnitude(load(x + k + i * PANEL)));
  float most = largest_magnitude(larger_magnitude(larger_magnitude(sizes[0], sizes[1]),
                                                  larger_magnitude(sizes[2], sizes[3])));
  if (!(most < __builtin_inff())) return {0.0f, from_bits(0x7fc00000)};
  if (most <= TINY) return {0.0f, 0.0f};
  return {127.0f / most, most / 127.0f};
}

// Write a group, a chunk every `stride`; return the sum of its whole numbers.
template <class Input>
inline int32_t write_group(const float* x, int64_t count, int64_t group, float inverse, Input* to,
                           int64_t stride, bool past_caches) {
  alignas(64) float filled[MOST_GROUP];
  x = whole_group(x, inverse == 0.0f ? 0 : count, group, filled);  // zero times no number is none
  Ints sum = splat(0);
  for (int64_t k = 0; k < group; k += CHUNK, to += stride) {
    Lanes scaled[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) scaled[i] = load(x + k + i * PANEL) * splat(inverse);
    sum = store_activations(to, scaled, sum, past_caches);
  }
  return total(sum);
}

// Where a group goes.
struct GroupPlace {
  uint8_t* values;  // W::Input
  int64_t stride;   // from chunk to chunk, in values
  float* scale;
  int32_t* start;
};

// Quantise groups first..end-1 of one row. First the scales of several, then their values: with one
// group after the other each step of the way to a scale would wait for the one before.
template <class W, class PlaceOf>
inline void quantise_groups(const LinearArguments& a, int64_t row, int64_t first, int64_t end,
                            PlaceOf&& place_of) {
  constexpr int64_t MOST = 8;
  const float* x = a.x + row * a.num_inputs;
  for (int64_t done; first < end; first += done) {
    done = min_of(MOST, end - first);
    GroupScale scales[MOST];
    for (int64_t i = 0; i < done; i++) {
      int64_t k = (first + i) * a.group;
      scales[i] = scale_of(x + k, a.num_inputs - k, a.group);
    }
    for (int64_t i = 0; i < done; i++) {
      int64_t k = (first + i) * a.group;
      GroupPlace to = place_of(first + i);
      *to.scale = scales[i].scale;
      *to.start = -W::OFFSET * write_group(x + k, a.num_inputs - k, a.group, scales[i].inverse,
                                           (typename W::Input*)to.values, to.stride,
                                           a.inputs_past_caches);
    }
  }
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
  quantise_groups<W>(a, row, first, end, [&](int64_t g) {
    int64_t place = g * tile.num_rows + m;
    int64_t start = g * a.group * tile.num_rows + CHUNK * m;
    uint8_t* values = tile.at + start * int64_t(sizeof(typename W::Input));
    return GroupPlace{values, CHUNK * tile.num_rows, tile.scales() + place, tile.starts() + place};
  });
}
