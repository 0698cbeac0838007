// Integer linears on the tile unit. A group's sums leave the unit as integers; scaling them is work
// for the vectors, done while the unit multiplies the next group.

// Quantised activations: the values in tiles, then for every group and row tile the scales and the
// starts of its rows, [group][row tile][2][16].
struct QuantisedRows {
  TilePlan plan;
  int64_t group;

  QuantisedRows(int64_t num_rows, int64_t padded, int64_t group)
      : plan(num_rows, padded, 384, 1), group(group) {}

  float* scales(uint8_t* scratch, int64_t row, int64_t g) const {
    float* all = (float*)(scratch + plan.row_tiles * TILE_ROWS * plan.padded);
    return all + (g * plan.row_tiles + row / TILE_ROWS) * 2 * TILE_ROWS;
  }
  int32_t* starts(uint8_t* scratch, int64_t row, int64_t g) const {
    return (int32_t*)scales(scratch, row, g) + TILE_ROWS;
  }
};

template <class W>
void quantise_strip(const LinearArguments& a, const QuantisedRows& x, int64_t row, int64_t first,
                    int64_t end) {
  constexpr int64_t LINE = 64;
  for (int64_t k = first; k < end; k += a.group) {
    int8_t values[128];
    int32_t sum;
    x.scales(a.scratch, row, k / a.group)[row % TILE_ROWS] =
        quantise_values(a.x + row * a.num_inputs + k, min_of(a.group, a.num_inputs - k), a.group,
                        values, &sum);
    x.starts(a.scratch, row, k / a.group)[row % TILE_ROWS] = -W::OFFSET * sum;
    for (int64_t i = 0; i < a.group; i += LINE)
      memcpy(x.plan.line(a.scratch, row, k + i), values + i, LINE);
  }
}

// The exact sums of a group that wait to be scaled and added to the totals.
struct GroupSums {
  int32_t (*sums)[TILE_ROWS][PANEL];  // of each panel
  float* totals[QUAD];
  const float* x_scales;
  const int32_t* starts;
  const bf16* scales[QUAD];  // of INT4
  int64_t num_rows;          // 0: none wait
};

template <class W>
inline void add_scaled(GroupSums& group) {
  GroupSums g = group;
  if (g.num_rows == 0) return;
  group.num_rows = 0;
  Lanes scales[QUAD];
#pragma GCC unroll 4
  for (int p = 0; p < QUAD; p++)
    scales[p] = W::FORMAT == Format::INT4 ? load_bf16(g.scales[p]) : zero();
  for (int64_t m = 0; m < g.num_rows; m++) {
    Lanes x_scale = splat(g.x_scales[m]);
    Ints start = splat(g.starts[m]);
#pragma GCC unroll 4
    for (int p = 0; p < QUAD; p++) {
      float* total = g.totals[p] + m * PANEL;
      Lanes sum = to_lanes(add(load_ints(g.sums[p][m]), start));
      store(total, scaled<W>(load(total), sum, x_scale, scales[p]));
    }
  }
}

// A group of a quad's weights as bytes. INT4: each line becomes two rows of a tile.
inline void unpack_group(const QuadWeights& packed, int64_t place, int64_t num_lines, uint8_t* out) {
  for (const uint8_t* panel : packed.panels)
    for (int64_t i = 0; i < num_lines; i++, out += 128) {
      store_bytes(out, low_halves(panel + place + i * 64));
      store_bytes(out + 64, high_halves(panel + place + i * 64));
    }
}

// One pass of a quad: all groups for a row tile, then for the next one.
template <class W>
class IntTilePiece {
 public:
  IntTilePiece(const LinearArguments& a, const QuantisedRows& x, const Piece& now,
               const Piece& next, UnitSums& totals)
      : a_(a),
        x_(x),
        now_(now),
        totals_(totals),
        weights_(a, now, x.plan.padded),
        fetch_(fetch_of(a, x.plan, now, next)),
        num_groups_(now.num_inputs / a.group),
        slots_(x.plan.row_tiles == 1 ? 2 : num_groups_) {
    for (int64_t p = 0; p < QUAD && HALVES; p++) {
      int64_t panel = now.panel + min_of(p, now.num_panels - 1);
      scales_[p] = (const bf16*)a.scales + panel * (x.plan.padded / a.group) * PANEL;
    }
  }

  void compute() {
    bool is_last = now_.k + now_.num_inputs == x_.plan.padded;
    for (int64_t row = 0; row < x_.plan.num_rows; row += TILE_ROWS) {
      if (now_.k == 0) clear(row);
      if (HALVES && row == 0) unpack(0);
      for (int64_t g = 0; g < num_groups_; g++) add_group(row, g);
      if (is_last) finish(row);
    }
    add_scaled<W>(waiting_);
  }

 private:
  static constexpr bool HALVES = W::FORMAT == Format::INT4;
  static constexpr int64_t INPUTS = 64;     // of a tile
  static constexpr int64_t SLOT_BYTES = 384 * PANEL * QUAD;

  void clear(int64_t row) {
    for (int64_t p = 0; p < QUAD; p++)
      memset(totals_.at(row, now_.panel + p), 0, TILE_BYTES);
  }

  // Bytes of a group of INT4: few rows need no more than one group and the next, many keep a pass.
  uint8_t* slot(int64_t g) { return bytes_ + g % slots_ * (QUAD * PANEL * a_.group); }
  void unpack(int64_t g) {
    unpack_group(weights_, panel_bytes(W::FORMAT, g * a_.group), a_.group / W::LINE_INPUTS, slot(g));
  }

  // The products of a group; beside them, by the vectors, the unpacking of the next one and the
  // scaling of the one before.
  void add_group(int64_t row, int64_t g) {
    const uint8_t* weights[QUAD];
    for (int64_t p = 0; p < QUAD; p++)
      weights[p] = HALVES ? slot(g) + p * PANEL * a_.group
                          : weights_.panels[p] + panel_bytes(W::FORMAT, g * a_.group);
    multiply(x_.plan.line(a_.scratch, row, now_.k + g * a_.group), weights);
    if (HALVES && row == 0 && g + 1 < num_groups_) unpack(g + 1);
    add_scaled<W>(waiting_);
    turn_ ^= 1;
    store_group(sums_[turn_]);
    int64_t group = now_.k / a_.group + g;
    waiting_.sums = sums_[turn_];
    for (int64_t p = 0; p < QUAD; p++) {
      waiting_.totals[p] = totals_.at(row, now_.panel + p);
      if (HALVES) waiting_.scales[p] = scales_[p] + group * PANEL;
    }
    waiting_.x_scales = x_.scales(a_.scratch, row, group);
    waiting_.starts = x_.starts(a_.scratch, row, group);
    waiting_.num_rows = min_of(TILE_ROWS, x_.plan.num_rows - row);
  }

  void multiply(const uint8_t* x, const uint8_t* const (&weights)[QUAD]) {
    constexpr int LINES = HALVES ? 2 : 4;
    Fetch fetch = fetch_;
    zero_sums();
    for (int64_t place = 0; place < a_.group * PANEL; place += TILE_BYTES) {
      tile_load<4>(x + place, 64);
      tile_load<5>(weights[0] + place, 64);
      tile_product_bytes<0, 4, 5>();
      fetch_lines<LINES>(fetch);
      tile_load<6>(weights[1] + place, 64);
      tile_product_bytes<1, 4, 6>();
      fetch_lines<LINES>(fetch);
      tile_load<7>(weights[2] + place, 64);
      tile_product_bytes<2, 4, 7>();
      fetch_lines<LINES>(fetch);
      tile_load<5>(weights[3] + place, 64);
      tile_product_bytes<3, 4, 5>();
      fetch_lines<LINES>(fetch);
    }
    fetch_ = fetch;
  }

  static void store_group(int32_t (*sums)[TILE_ROWS][PANEL]) {
    tile_store<0>(sums[0], 64), tile_store<1>(sums[1], 64);
    tile_store<2>(sums[2], 64), tile_store<3>(sums[3], 64);
  }

  void finish(int64_t row) {
    add_scaled<W>(waiting_);
    write_tile(a_, row, x_.plan.num_rows, now_, totals_, [&](Lanes sum, int64_t panel) {
      return HALVES ? sum : sum * load((const float*)a_.scales + panel * PANEL);
    });
  }

  const LinearArguments& a_;
  const QuantisedRows& x_;
  const Piece& now_;
  UnitSums& totals_;
  QuadWeights weights_;
  Fetch fetch_;
  int64_t num_groups_, slots_;
  const bf16* scales_[QUAD] = {};
  GroupSums waiting_ = {};
  int turn_ = 0;
  alignas(64) int32_t sums_[2][QUAD][TILE_ROWS][PANEL];
  alignas(64) uint8_t bytes_[HALVES ? SLOT_BYTES : 1];
};

template <class W>
void int_tile_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  QuantisedRows x(num_rows, padded_inputs(a.format, a.num_inputs, a.group), a.group);
  prepare_strips(run, num_rows, x.plan.padded, [&](int64_t row, int64_t first, int64_t end) {
    quantise_strip<W>(a, x, row, first, end);
  });
  tile_walk(run, x.plan.order(ceil_div(a.num_outputs, PANEL)),
            [&](const Piece& now, const Piece& next, UnitSums& sums) {
              IntTilePiece<W>(a, x, now, next, sums).compute();
            });
}
