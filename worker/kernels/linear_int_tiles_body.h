// Integer linears on the tile unit. A group's sums leave the unit as integers; scaling them is work
// for the vectors, done while the unit multiplies the next group.

constexpr int64_t INT_TILE_PASS = 256;  // inputs of a pass of many rows

// Quantised activations: the values in tiles, then for every group and row tile the scales and the
// starts of its rows, [group][row tile][2][16].
struct QuantisedRows {
  TilePlan plan;
  int64_t group;

  QuantisedRows(int64_t num_rows, int64_t padded, int64_t group)
      : plan(num_rows, padded, TILE_ROWS, INT_TILE_PASS, 1), group(group) {}

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
  uint8_t* tiles = x.plan.tiles(a.scratch, row, first);
  quantise_groups<W>(a, row, first / a.group, end / a.group, [&](int64_t g) {
    uint8_t* values = tiles + (g * a.group - first) / CHUNK * TILE_BYTES;
    int64_t m = row % TILE_ROWS;
    return GroupPlace{values, TILE_BYTES, x.scales(a.scratch, row, g) + m,
                      x.starts(a.scratch, row, g) + m};
  });
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

// Rows first..end-1 of them.
template <class W>
inline void add_scaled(const GroupSums& g, int64_t first, int64_t end) {
  if (first >= end) return;
  Lanes scales[QUAD];
#pragma GCC unroll 4
  for (int p = 0; p < QUAD; p++)
    scales[p] = W::FORMAT == Format::INT4 ? load_bf16(g.scales[p]) : zero();
  for (int64_t m = first; m < end; m++) {
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

// Lines of INT4 weights as bytes: each becomes two rows of a tile.
template <int64_t LINES>
inline void unpack_lines(const uint8_t* from, uint8_t* to) {
#pragma GCC unroll 8
  for (int i = 0; i < LINES; i++) {
    store_bytes(to + i * 128, low_halves(from + i * 64));
    store_bytes(to + i * 128 + 64, high_halves(from + i * 64));
  }
}

// One pass of a quad: all groups for a row tile, then for the next one. After each product comes a
// share of what the vectors and the memory have to do meanwhile.
template <class W, int64_t GROUP>
class IntTilePiece {
 public:
  IntTilePiece(const LinearArguments& a, const QuantisedRows& x, const Piece& now,
               const Piece& next, UnitSums& totals)
      : a_(a),
        x_(x),
        now_(now),
        totals_(totals),
        weights_(a, now, x.plan.padded),
        fetch_(a, x.plan.padded, x.plan.row_tiles, now, next),
        num_groups_(now.num_inputs / GROUP) {
    for (int64_t p = 0; p < QUAD && HALVES; p++) {
      int64_t panel = now.panel + min_of(p, now.num_panels - 1);
      scales_[p] = (const bf16*)a.scales + panel * (x.plan.padded / GROUP) * PANEL;
    }
  }

  void compute() {
    bool is_last = now_.k + now_.num_inputs == x_.plan.padded;
    if (HALVES) unpack(0);
    for (int64_t row = 0; row < x_.plan.num_rows; row += TILE_ROWS) {
      if (is_last) fetch_output(a_, row, x_.plan.num_rows, now_);
      if (now_.k == 0) clear(row);
      const uint8_t* x = x_.plan.tiles(a_.scratch, row, now_.k);
      for (int64_t g = 0; g < num_groups_; g++) add_group(row, g, x + g * GROUP * TILE_ROWS);
      if (is_last) finish(row);
    }
    scale_rest();
  }

 private:
  static constexpr bool HALVES = W::FORMAT == Format::INT4;
  static constexpr int64_t SHARES = GROUP / 64 * QUAD;  // one for every product of a group
  static constexpr int64_t SHARE_ROWS = TILE_ROWS / SHARES;
  static constexpr int64_t PANEL_LINES = GROUP / W::LINE_INPUTS;
  static constexpr int64_t SHARE_LINES = PANEL_LINES * QUAD / SHARES;

  void clear(int64_t row) {
    for (int64_t p = 0; p < QUAD; p++)
      memset(totals_.at(row, now_.panel + p), 0, TILE_BYTES);
  }

  // Bytes of a group of INT4: few rows need no more than one group and the next, many keep a pass.
  uint8_t* slot(int64_t g) {
    return bytes_ + (x_.plan.row_tiles == 1 ? g % 2 : g) * (QUAD * PANEL * GROUP);
  }

  void unpack_share(int64_t g, int64_t share) {
    int64_t line = share * SHARE_LINES;
    const uint8_t* panel = weights_.panels[line / PANEL_LINES] + g * PANEL_LINES * 64;
    unpack_lines<SHARE_LINES>(panel + line % PANEL_LINES * 64, slot(g) + line * 128);
  }
  void unpack(int64_t g) {
    for (int64_t share = 0; share < SHARES; share++) unpack_share(g, share);
  }

  // Beside a product: part of the scaling of the group before and of the unpacking of the next one.
  void do_share(int64_t share, int64_t unpacked) {
    fetch_.lines(PANEL_LINES / SHARES);
    int64_t first = share * SHARE_ROWS;
    add_scaled<W>(waiting_, first, min_of(waiting_.num_rows, first + SHARE_ROWS));
    if (unpacked) unpack_share(unpacked, share);
  }

  void add_group(int64_t row, int64_t g, const uint8_t* x) {
    int64_t unpacked = HALVES && row == 0 && g + 1 < num_groups_ ? g + 1 : 0, share = 0;
    const uint8_t* weights[QUAD];
    for (int64_t p = 0; p < QUAD; p++)
      weights[p] = HALVES ? slot(g) + p * PANEL * GROUP
                          : weights_.panels[p] + panel_bytes(W::FORMAT, g * GROUP);
    zero_sums();
    for (int64_t place = 0; place < GROUP * PANEL; place += TILE_BYTES) {
      tile_load<4>(x + place, 64);
      tile_load<5>(weights[0] + place, 64);
      tile_product_bytes<0, 4, 5>();
      do_share(share++, unpacked);
      tile_load<6>(weights[1] + place, 64);
      tile_product_bytes<1, 4, 6>();
      do_share(share++, unpacked);
      tile_load<7>(weights[2] + place, 64);
      tile_product_bytes<2, 4, 7>();
      do_share(share++, unpacked);
      tile_load<5>(weights[3] + place, 64);
      tile_product_bytes<3, 4, 5>();
      do_share(share++, unpacked);
    }
    keep_group(row, now_.k / GROUP + g);
  }

  // The sums leave the unit and wait.
  void keep_group(int64_t row, int64_t group) {
    tile_store<0>(sums_[0], 64), tile_store<1>(sums_[1], 64);
    tile_store<2>(sums_[2], 64), tile_store<3>(sums_[3], 64);
    waiting_.sums = sums_;
    for (int64_t p = 0; p < QUAD; p++) {
      waiting_.totals[p] = totals_.at(row, now_.panel + p);
      if (HALVES) waiting_.scales[p] = scales_[p] + group * PANEL;
    }
    waiting_.x_scales = x_.scales(a_.scratch, row, group);
    waiting_.starts = x_.starts(a_.scratch, row, group);
    waiting_.num_rows = min_of(TILE_ROWS, x_.plan.num_rows - row);
  }

  void scale_rest() {
    add_scaled<W>(waiting_, 0, waiting_.num_rows);
    waiting_.num_rows = 0;
  }

  void finish(int64_t row) {
    scale_rest();
    write_tile(a_, row, x_.plan.num_rows, now_, totals_, [&](Lanes sum, int64_t panel) {
      return HALVES ? sum : sum * load((const float*)a_.scales + panel * PANEL);
    });
  }

  const LinearArguments& a_;
  const QuantisedRows& x_;
  const Piece& now_;
  UnitSums& totals_;
  TileWeights<QUAD> weights_;
  TileFetch<QUAD> fetch_;
  int64_t num_groups_;
  const bf16* scales_[QUAD] = {};
  GroupSums waiting_ = {};
  alignas(64) int32_t sums_[QUAD][TILE_ROWS][PANEL];
  alignas(64) uint8_t bytes_[HALVES ? INT_TILE_PASS * PANEL * QUAD : 1];
};

template <class W>
void int_tile_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  QuantisedRows x(num_rows, padded_inputs(a.format, a.num_inputs, a.group), a.group);
  prepare_strips(run, x.plan, [&](int64_t row, int64_t first, int64_t end) {
    quantise_strip<W>(a, x, row, first, end);
  });
  auto compute = [&](const Piece& now, const Piece& next, TileThread& thread) {
    if constexpr (W::FORMAT == Format::INT8) {
      if (a.group == 256) return IntTilePiece<W, 256>(a, x, now, next, thread.sums).compute();
    }
    a.group == 128 ? IntTilePiece<W, 128>(a, x, now, next, thread.sums).compute()
                   : IntTilePiece<W, 64>(a, x, now, next, thread.sums).compute();
  };
  walk<TileThread>(run, x.plan.order(ceil_div(a.num_outputs, PANEL), QUAD), compute);
}
