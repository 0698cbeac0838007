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

// Halves of bytes as the unit takes them: signed, in the upper half, so 16 times what they are. The
// scale of the activations makes up for it, exactly.
struct Int4Tiles : Int4Weights {
  static constexpr int32_t OFFSET = 0;
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
  for (int64_t g = first / a.group; W::FORMAT == Format::INT4 && g < end / a.group; g++)
    x.scales(a.scratch, row, g)[row % TILE_ROWS] *= 1.0f / 16;
}

// The exact sums of a group that wait to be scaled and added to the totals.
template <class Block>
struct GroupSums {
  const int32_t (*sums)[PANEL];  // [row tile][panel][16][16], as the totals
  float (*totals)[PANEL];
  const float* x_scales;  // of each row tile 16 and, after them, as many starts
  const bf16* scales[Block::PANELS];  // of INT4
  int64_t row, num_rows;  // 0: none wait
  Piece piece;
  bool is_last;  // of these rows
};

// LINES of a tile of sums.
template <class W, bool IS_SIGNED, int TILE, int LINES, class Block>
TILE_INLINE void add_scaled(const GroupSums<Block>& g, int64_t first) {
  constexpr int ROW_TILE = TILE / Block::PANELS;
  const float* x = g.x_scales + ROW_TILE * 2 * TILE_ROWS + first;
  const int32_t (*sums)[PANEL] = g.sums + TILE * TILE_ROWS + first;
  float (*totals)[PANEL] = g.totals + TILE * TILE_ROWS + first;
  Lanes scale = W::FORMAT == Format::INT4 ? load_bf16(g.scales[TILE % Block::PANELS]) : zero();
  auto add_line = [&](int64_t i) TILE_INLINED {
    Ints sum = load_ints(sums[i]);
    int32_t start;
    memcpy(&start, x + TILE_ROWS + i, sizeof start);
    if constexpr (!IS_SIGNED) sum = add(sum, splat(start));
    store(totals[i], scaled<W>(load(totals[i]), to_lanes(sum), splat(x[i]), scale));
  };
  int64_t count = g.num_rows - ROW_TILE * TILE_ROWS - first;
  if (count < LINES) {
    for (int64_t i = 0; i < count; i++) add_line(i);
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < LINES; i++) add_line(i);
}

// Lines of weights as signed bytes. One of INT4 becomes two rows of a tile.
template <class W, int64_t LINES>
inline void unpack_lines(const uint8_t* from, uint8_t* to) {
#pragma GCC unroll 16
  for (int i = 0; i < LINES; i++) {
    if constexpr (W::FORMAT == Format::INT4) {
      store_bytes(to + i * 128, signed_low_halves(from + i * 64));
      store_bytes(to + i * 128 + 64, signed_high_halves(from + i * 64));
    } else {
      store_bytes(to + i * 64, signed_bytes(from + i * 64));
    }
  }
}

template <class Block>
struct IntTileThread {
  FullTiles tiles;
  UnitSums<Block> totals;
  alignas(64) int32_t sums[Block::COUNT * TILE_ROWS][PANEL];
  alignas(64) uint8_t bytes[TILE_PASS_BYTES * PANEL * 2];
  GroupSums<Block> waiting = {};
  SumsWriter<Block> writer;
  int64_t num_groups = 0;    // of the pieces before
  bool is_unpacked = false;  // the first group of the piece
};

// One pass of some panels: all groups for a group of row tiles, then for the next one. With each product
// goes a share of what the vectors have to do meanwhile, for the group before and the one after, which
// may be of other pieces.
template <class W, int64_t GROUP, class Block>
class IntTilePiece {
 public:
  IntTilePiece(const TileLinear& a, const QuantisedRows& x, const Piece& now,
               const Piece& next, IntTileThread<Block>& thread)
      : a_(a),
        x_(x),
        now_(now),
        next_(next),
        thread_(thread),
        weights_(a, now, x.plan.padded),
        fetch_(a, x.plan.padded, ceil_div(x.plan.row_tiles, TILES), now, next),
        num_groups_(now.num_inputs / GROUP) {}

  void compute() {
    if (IS_SIGNED && !thread_.is_unpacked) unpack({weights_, tile_slot(0)});
    thread_.is_unpacked = false;
    for (int64_t row = 0; row < x_.plan.num_rows; row += TILES * TILE_ROWS)
      for (int64_t g = 0; g < num_groups_; g++) add_group(row, g);
    thread_.num_groups += num_groups_;
    if (next_.num_panels == 0) finish();
  }

 private:
  static constexpr int TILES = Block::TILES, PANELS = Block::PANELS, COUNT = Block::COUNT;
  static constexpr bool HALVES = W::FORMAT == Format::INT4;
  static constexpr bool IS_SIGNED = HALVES || Block::HAS_PASSES;  // made bytes of beside the products
  using Products = std::conditional_t<IS_SIGNED, SignedProducts, ByteProducts>;
  static constexpr int STEPS = GROUP / 64;
  static constexpr int SHARE = TILE_ROWS / STEPS;                // lines of each tile of sums
  static constexpr int LINES = 64 / W::LINE_INPUTS;              // of a panel, in a tile of inputs
  static constexpr int64_t STEP_BYTES = PANELS * TILE_BYTES;     // of a tile of inputs as bytes

  // Tiles of all panels that become bytes.
  struct Unpacking {
    TileWeights<PANELS> from;  // as they are packed
    uint8_t* to;               // none: there is nothing to do

    template <int I>
    TILE_INLINE void share(Product<I>) const {
      constexpr int COUNT_OF_SHARE = LINES / TILES, FIRST = I % TILES * COUNT_OF_SHARE;
      constexpr int P = I / TILES;
      unpack_lines<W, COUNT_OF_SHARE>(
          from.panels[P] + FIRST * 64, to + P * TILE_BYTES + I % TILES * (TILE_BYTES / TILES));
    }
    void step() {
      for (const uint8_t*& panel : from.panels) panel += LINES * 64;
      to += STEP_BYTES;
    }
  };

  // Bytes of a tile of inputs, numbered in the piece: many turns of rows keep a pass, one turn needs no
  // more than what is multiplied and what comes next, and what the first cache keeps is better small.
  uint8_t* tile_slot(int64_t tile) {
    bool is_odd = (thread_.num_groups * STEPS + tile) % 2;
    return thread_.bytes + (Block::HAS_PASSES ? tile : is_odd) * STEP_BYTES;
  }
  TileWeights<PANELS> tile_of(TileWeights<PANELS> weights, int64_t tile) {
    for (const uint8_t*& panel : weights.panels) panel += tile * LINES * 64;
    return weights;
  }

  template <int I = 0>
  void unpack_tile(const Unpacking& unpacking) {
    unpacking.share(Product<I>());
    if constexpr (I + 1 < COUNT) unpack_tile<I + 1>(unpacking);
  }
  // What the products of a piece begin with.
  void unpack(Unpacking unpacking) {
    for (int64_t i = 0; i < (Block::HAS_PASSES ? STEPS : 1); i++, unpacking.step())
      unpack_tile(unpacking);
  }

  // What can become bytes beside group g of these rows, of many: the next group, that of the next piece
  // included. Should that go where this one lies, each tile is loaded before it is written over.
  Unpacking beside_group(int64_t row, int64_t g) {
    int64_t tile = (g + 1) * STEPS;
    bool ends = g + 1 == num_groups_;
    if (IS_SIGNED && row == 0 && !ends) return {tile_of(weights_, tile), tile_slot(tile)};
    bool are_last = row + TILES * TILE_ROWS >= x_.plan.num_rows;
    if (!IS_SIGNED || !ends || !are_last || next_.num_panels == 0) return {weights_, nullptr};
    thread_.is_unpacked = true;
    return {TileWeights<PANELS>(a_, next_, x_.plan.padded), thread_.bytes};
  }
  // The same beside a tile of inputs, of few rows: the one after it. After the last one there is any.
  Unpacking beside_tile(int64_t tile) {
    bool ends = tile + 1 == num_groups_ * STEPS;
    if (!ends) return {tile_of(weights_, tile + 1), tile_slot(tile + 1)};
    thread_.is_unpacked = next_.num_panels > 0;
    return {TileWeights<PANELS>(a_, next_.num_panels ? next_ : now_, x_.plan.padded),
            tile_slot(tile + 1)};
  }

  void add_group(int64_t row, int64_t g) {
    auto& writer = thread_.writer;
    // Of few rows each tile of inputs finds by itself what goes beside it.
    Unpacking unpacking =
        Block::HAS_PASSES ? beside_group(row, g) : Unpacking{weights_, nullptr};
    bool unpacks = Block::HAS_PASSES ? unpacking.to != nullptr : IS_SIGNED;
    if (unpacks) {
      writer.finish();
      multiply<true, false>(row, g, unpacking);
    } else if (writer.is_beside()) {
      multiply<false, true>(row, g, unpacking);
    } else {
      multiply<false, false>(row, g, unpacking);
    }
    write_complete();
    keep_group(row, g);
  }

  // What goes on beside the products is in copies, which stay in registers.
  template <bool UNPACKS, bool WRITES>
  void multiply(int64_t row, int64_t g, const Unpacking& unpacking) {
    const uint8_t* x = x_.plan.tiles(a_.scratch, row, now_.k) + g * GROUP * TILE_ROWS;
    int64_t stride = x_.plan.stride_of(row, now_);
    auto weights = tile_of(weights_, g * STEPS);
    auto fetch = fetch_;
    auto writer = thread_.writer;
    const auto waiting = thread_.waiting;
    auto bytes = unpacking;
    zero_tiles<COUNT>();
    for (int64_t step = 0; step < STEPS; step++, x += TILE_BYTES) {
      if (IS_SIGNED) weights = TileWeights<PANELS>(tile_slot(g * STEPS + step));
      if (UNPACKS && !Block::HAS_PASSES) bytes = beside_tile(g * STEPS + step);
      add_inputs<Products>(Block(), x, stride, weights, 0, [&](auto product) TILE_INLINED {
        fetch.beside(product);
        if (waiting.num_rows) add_scaled<W, IS_SIGNED, product, SHARE>(waiting, step * SHARE);
        if constexpr (WRITES) writer.template beside<SHARE>(product);
        if constexpr (UNPACKS) bytes.share(product);
      });
      fetch.step();
      if (!IS_SIGNED) weights = tile_of(weights, 1);
      if constexpr (UNPACKS) bytes.step();
      if constexpr (WRITES) writer.step(SHARE);
    }
    fetch_ = fetch;
    if (WRITES) thread_.writer.finish_beside();
  }

  int64_t panel_of(int64_t p) const {
    return now_.panel + min_of(p, now_.num_panels - 1) * a_.panel_stride;
  }

  // The sums leave the unit and wait.
  void keep_group(int64_t row, int64_t g) {
    auto& w = thread_.waiting;
    int64_t group = now_.k / GROUP + g, num_groups = x_.plan.padded / GROUP;
    store_tiles<COUNT>(thread_.sums);
    auto& totals = thread_.totals.of(row, now_);
    if (group == 0) memset(totals, 0, sizeof totals);
    w.sums = thread_.sums, w.totals = totals;
    w.x_scales = x_.scales(a_.scratch, row, group);
    for (int64_t p = 0; p < PANELS && HALVES; p++)
      w.scales[p] = (const bf16*)a_.scales + (panel_of(p) * num_groups + group) * PANEL;
    w.row = row, w.num_rows = min_of(TILES * TILE_ROWS, x_.plan.num_rows - row);
    w.piece = now_, w.is_last = group + 1 == num_groups;
  }

  // Rows whose last group has been scaled, if there are any, go to the output.
  void write_complete() {
    const auto& w = thread_.waiting;
    if (!w.num_rows || !w.is_last) return;
    thread_.writer.finish();
    thread_.writer.start(a_, w.totals, w.row, w.num_rows, w.piece);
    if (!thread_.writer.is_beside()) thread_.writer.finish();
  }

  template <int I = 0>
  void add_waiting() {
    add_scaled<W, IS_SIGNED, I, TILE_ROWS>(thread_.waiting, 0);
    if constexpr (I + 1 < COUNT) add_waiting<I + 1>();
  }
  void finish() {
    add_waiting();
    write_complete();
    thread_.writer.finish();
  }

  const TileLinear& a_;
  const QuantisedRows& x_;
  const Piece& now_;
  const Piece& next_;
  IntTileThread<Block>& thread_;
  TileWeights<PANELS> weights_;
  TileFetch<Block, LINES, 3072, Block::HAS_PASSES ? SECOND_CACHE : FIRST_CACHE> fetch_;
  int64_t num_groups_;
};

template <class W>
void int_tile_linear(const Run& run, const TileLinear& a, int64_t num_rows) {
  QuantisedRows x(num_rows, padded_inputs(a.format, a.num_inputs, a.group), a.group);
  prepare_strips(run, x.plan, [&](int64_t row, int64_t first, int64_t end) {
    quantise_strip<W>(a, x, row, first, end);
  });
  with_block(x.plan.row_tiles, [&](auto block) {
    using Block = decltype(block);
    walk<IntTileThread<Block>>(
        run, x.plan.order(a, Block::PANELS),
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
