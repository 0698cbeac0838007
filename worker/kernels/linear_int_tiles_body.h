// Integer linears on the tile unit. A group's sums leave the unit as integers; scaling them is work
// for the vectors, done while the unit multiplies the next group.

// Quantised activations: the values in tiles, then for every group and row tile the scales and the
// starts of its rows, [group][row tile][2][16].
struct QuantisedRows {
  TilePlan plan;
  int64_t group;

  QuantisedRows(int64_t num_rows, int64_t padded, int64_t group)
      : plan(num_rows, padded, 1), group(group) {}

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
template <class Block>
struct GroupSums {
  const int32_t (*sums)[PANEL];  // [row tile][panel][16][16], as the totals
  float (*totals)[PANEL];
  const float* x_scales;  // of each row tile 16 and, after them, as many starts
  const bf16* scales[Block::PANELS];  // of INT4
  int64_t num_rows;  // 0: none wait
};

// Rows first..end-1 of them.
template <class W, class Block>
TILE_INLINE void add_scaled(const GroupSums<Block>& g, int64_t first, int64_t end) {
  if (first >= end) return;
  constexpr int PANELS = Block::PANELS;
  Lanes scales[PANELS];
#pragma GCC unroll 4
  for (int p = 0; p < PANELS; p++)
    scales[p] = W::FORMAT == Format::INT4 ? load_bf16(g.scales[p]) : zero();
  for (int64_t row = first; row < end; row++) {
    int64_t tile = row / TILE_ROWS, m = row % TILE_ROWS;
    const float* x = g.x_scales + tile * 2 * TILE_ROWS + m;
    int32_t x_start;
    memcpy(&x_start, x + TILE_ROWS, sizeof x_start);
    Lanes x_scale = splat(*x);
    Ints start = splat(x_start);
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      int64_t line = (tile * PANELS + p) * TILE_ROWS + m;
      Lanes sum = to_lanes(add(load_ints(g.sums[line]), start));
      store(g.totals[line], scaled<W>(load(g.totals[line]), sum, x_scale, scales[p]));
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

template <class Block>
struct IntTileThread {
  FullTiles tiles;
  UnitSums<Block> totals;
  alignas(64) int32_t sums[Block::COUNT * TILE_ROWS][PANEL];
  alignas(64) uint8_t bytes[TILE_PASS_BYTES * PANEL * 2];  // of INT4
};

// One pass of some panels: all groups for a group of row tiles, then for the next one. After each product
// comes a share of what the vectors and the memory have to do meanwhile.
template <class W, int64_t GROUP, class Block>
class IntTilePiece {
 public:
  IntTilePiece(const LinearArguments& a, const QuantisedRows& x, const Piece& now,
               const Piece& next, IntTileThread<Block>& thread)
      : a_(a),
        x_(x),
        now_(now),
        thread_(thread),
        weights_(a, now, x.plan.padded),
        fetch_(a, x.plan.padded, ceil_div(x.plan.row_tiles, TILES), now, next),
        num_groups_(now.num_inputs / GROUP) {
    for (int64_t p = 0; p < PANELS && HALVES; p++) {
      int64_t panel = now.panel + min_of(p, now.num_panels - 1);
      scales_[p] = (const bf16*)a.scales + panel * (x.plan.padded / GROUP) * PANEL;
    }
  }

  void compute() {
    bool is_last = now_.k + now_.num_inputs == x_.plan.padded;
    if (HALVES) unpack(0);
    for (int64_t row = 0; row < x_.plan.num_rows; row += TILES * TILE_ROWS) {
      auto& totals = thread_.totals.of(row, now_);
      if (now_.k == 0) memset(totals, 0, sizeof totals);
      for (int64_t g = 0; g < num_groups_; g++) add_group(row, g);
      if (is_last) complete_ = row;
    }
    add_scaled<W>(waiting_, 0, waiting_.num_rows);
    write_complete();
    writer_.finish();
  }

 private:
  static constexpr int TILES = Block::TILES, PANELS = Block::PANELS, COUNT = Block::COUNT;
  static constexpr bool HALVES = W::FORMAT == Format::INT4;
  static constexpr int64_t SHARES = GROUP / 64 * COUNT;  // one for every product of a group
  static constexpr int64_t SHARE_ROWS = ceil_div(TILES * TILE_ROWS, SHARES);
  static constexpr int64_t PANEL_LINES = GROUP / W::LINE_INPUTS;
  static constexpr int64_t SHARE_LINES = PANEL_LINES * PANELS / SHARES;
  static_assert(!HALVES || (PANEL_LINES * PANELS % SHARES == 0 && PANEL_LINES % SHARE_LINES == 0),
                "a share is whole lines of one panel");
  static constexpr int64_t LINES_WRITTEN = ceil_div(COUNT * TILE_ROWS, SHARES);

  // Bytes of a group of INT4: one turn of rows needs no more than a group and the next, many keep a pass.
  uint8_t* slot(int64_t g) {
    return thread_.bytes + (Block::HAS_PASSES ? g : g % 2) * (PANELS * PANEL * GROUP);
  }

  void unpack_share(int64_t g, int64_t share) {
    int64_t line = share * SHARE_LINES;
    const uint8_t* panel = weights_.panels[line / PANEL_LINES] + g * PANEL_LINES * 64;
    unpack_lines<SHARE_LINES>(panel + line % PANEL_LINES * 64, slot(g) + line * 128);
  }
  void unpack(int64_t g) {
    for (int64_t share = 0; share < SHARES; share++) unpack_share(g, share);
  }

  TileWeights<PANELS> weights_of(int64_t g) {
    TileWeights<PANELS> weights = weights_;
    for (int64_t p = 0; p < PANELS; p++)
      weights.panels[p] = HALVES ? slot(g) + p * PANEL * GROUP
                                 : weights.panels[p] + panel_bytes(W::FORMAT, g * GROUP);
    return weights;
  }

  // What goes on beside the products is in copies, which stay in registers.
  void add_group(int64_t row, int64_t g) {
    bool unpacks = HALVES && row == 0 && g + 1 < num_groups_;
    const uint8_t* x = x_.plan.tiles(a_.scratch, row, now_.k) + g * GROUP * TILE_ROWS;
    int64_t stride = x_.plan.stride_of(row, now_), share = 0, lines = 0;
    TileWeights<PANELS> weights = weights_of(g);
    auto fetch = fetch_;
    auto writer = writer_;
    const auto waiting = waiting_;
    zero_tiles<COUNT>();
    for (int64_t place = 0; place < GROUP * PANEL; place += TILE_BYTES)
      add_inputs<ByteProducts>(Block(), x, stride, weights, place, [&]() TILE_INLINED {
        lines += PANEL_LINES;
        fetch.lines(lines / SHARES);
        lines %= SHARES;
        int64_t first = share * SHARE_ROWS;
        add_scaled<W>(waiting, first, min_of(waiting.num_rows, first + SHARE_ROWS));
        if (writer.line < writer.num_lines)
          for (int64_t i = 0; i < LINES_WRITTEN; i++) writer.step();
        if (unpacks) unpack_share(g + 1, share);
        share++;
      });
    fetch_ = fetch, writer_ = writer;
    write_complete();
    keep_group(row, now_.k / GROUP + g);
  }

  // The sums leave the unit and wait.
  void keep_group(int64_t row, int64_t group) {
    store_tiles<COUNT>(thread_.sums);
    waiting_.sums = thread_.sums;
    waiting_.totals = thread_.totals.of(row, now_);
    for (int64_t p = 0; p < PANELS && HALVES; p++) waiting_.scales[p] = scales_[p] + group * PANEL;
    waiting_.x_scales = x_.scales(a_.scratch, row, group);
    waiting_.num_rows = min_of(TILES * TILE_ROWS, x_.plan.num_rows - row);
  }

  // The rows whose last group has been scaled, if there are any, go to the output.
  void write_complete() {
    if (complete_ < 0) return;
    int64_t row = complete_, num_rows = min_of(TILES * TILE_ROWS, x_.plan.num_rows - row);
    complete_ = -1;
    writer_.finish();
    writer_.start(a_, thread_.totals.of(row, now_), row, num_rows, now_, Block::HAS_PASSES);
  }

  const LinearArguments& a_;
  const QuantisedRows& x_;
  const Piece& now_;
  IntTileThread<Block>& thread_;
  TileWeights<PANELS> weights_;
  TileFetch<PANELS, 2048, Block::HAS_PASSES ? SECOND_CACHE : FIRST_CACHE> fetch_;
  int64_t num_groups_, complete_ = -1;
  const bf16* scales_[PANELS] = {};
  GroupSums<Block> waiting_ = {};
  SumsWriter<PANELS> writer_;
};

template <class W>
void int_tile_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  QuantisedRows x(num_rows, padded_inputs(a.format, a.num_inputs, a.group), a.group);
  prepare_strips(run, x.plan, [&](int64_t row, int64_t first, int64_t end) {
    quantise_strip<W>(a, x, row, first, end);
  });
  with_block(x.plan.row_tiles, [&](auto block) {
    using Block = decltype(block);
    walk<IntTileThread<Block>>(
        run, x.plan.order(ceil_div(a.num_outputs, PANEL), Block::PANELS),
        [&](const Piece& now, const Piece& next, IntTileThread<Block>& thread) {
          if constexpr (W::FORMAT == Format::INT8) {
            if (a.group == 256)
              return IntTilePiece<W, 256, Block>(a, x, now, next, thread).compute();
          }
          a.group == 128 ? IntTilePiece<W, 128, Block>(a, x, now, next, thread).compute()
                         : IntTilePiece<W, 64, Block>(a, x, now, next, thread).compute();
        });
  });
}
