// BF16 on the tile unit.

template <class Block>
struct FloatTileThread {
  FullTiles tiles;
  UnitSums<Block> sums;
  alignas(64) typename Block::Sums done;
  SumsWriter<Block> writer;  // of `done`

  ~FloatTileThread() { writer.finish(); }
};

// One pass of some panels: for one group of row tiles after the other. Where the last group lacks a row
// tile, what lies in the place of it is multiplied and not written.
template <class Block>
class FloatTilePiece {
 public:
  FloatTilePiece(const TileLinear& a, const TilePlan& plan, const Piece& now,
                 const Piece& next, FloatTileThread<Block>& thread)
      : a_(a),
        plan_(plan),
        now_(now),
        thread_(thread),
        weights_(a, now, plan.padded),
        fetch_(a, plan.padded, ceil_div(plan.row_tiles, TILES), now, next) {}

  void compute() {
    bool is_last = now_.k + now_.num_inputs == plan_.padded;
    for (int64_t row = 0; row < plan_.num_rows; row += TILES * TILE_ROWS)
      is_last ? finish_rows(row) : add_rows(row);
  }

 private:
  static constexpr int TILES = Block::TILES, PANELS = Block::PANELS, COUNT = Block::COUNT;

  // `beside` is called with each product, `after` with each tile of inputs.
  template <class Beside, class After>
  TILE_INLINE void multiply(int64_t row, Beside&& beside, After&& after) {
    const uint8_t* x = plan_.tiles(a_.scratch, row, now_.k);
    int64_t stride = plan_.stride_of(row, now_);
    now_.k == 0 ? zero_tiles<COUNT>() : load_tiles<COUNT>(thread_.sums.of(row, now_));
    auto fetch = fetch_;
    for (int64_t step = 0; step < now_.num_inputs / BLOCK; step++) {
      add_inputs<Bf16Products>(Block(), x, stride, weights_, step, [&](auto product) TILE_INLINED {
        fetch.beside(product);
        beside(product);
      });
      fetch.step();
      after();
    }
    fetch_ = fetch;
  }

  void add_rows(int64_t row) {
    auto& sums = thread_.sums.of(row, now_);
    const float* soon = (&sums)[Order::MOST_PIECES][0];  // of the next rows
    auto ask = [&](auto product) TILE_INLINED { fetch_to_write(soon + product * PANEL); };
    multiply(row, ask, [&]() TILE_INLINED { soon += COUNT * PANEL; });
    store_tiles<COUNT>(sums);
  }

  void finish_rows(int64_t row) {
    auto writer = thread_.writer;  // a copy stays in registers
    if (writer.is_beside()) {
      auto write = [&](auto product) TILE_INLINED { writer.template beside<1>(product); };
      multiply(row, write, [&]() TILE_INLINED { writer.step(1); });
    } else {
      multiply(row, [](auto) {}, [] {});
    }
    writer.finish();
    store_tiles<COUNT>(thread_.done);
    writer.start(a_, thread_.done, row, min_of(TILES * TILE_ROWS, plan_.num_rows - row), now_);
    if (!writer.is_beside()) writer.finish();
    thread_.writer = writer;
  }

  const TileLinear& a_;
  const TilePlan& plan_;
  const Piece& now_;
  FloatTileThread<Block>& thread_;
  TileWeights<PANELS> weights_;
  TileFetch<Block, TILE_ROWS, 1024, SECOND_CACHE> fetch_;
};

// Inputs first..end-1 of a row of activations into its tiles, as bf16.
inline void round_row(const LinearArguments& a, const TilePlan& plan, int64_t row, int64_t first,
                      int64_t end) {
  const float* x = a.x + row * a.num_inputs;
  uint8_t* tiles = plan.tiles(a.scratch, row, first);
  for (int64_t k = first; k < end; k += 16) {
    int64_t count = a.num_inputs - k;
    Lanes values = count >= 16 ? load(x + k) : load_part(x + k, count, 0.0f);
    store_bf16((bf16*)tiles + k % BLOCK, values);
    if (k % BLOCK) tiles += TILE_BYTES;
  }
}

inline void float_tile_linear(const Run& run, const TileLinear& a, int64_t num_rows) {
  TilePlan plan(num_rows, padded_inputs(a.format, a.num_inputs, 0), sizeof(bf16));
  prepare_strips(run, plan, [&](int64_t row, int64_t first, int64_t end) {
    round_row(a, plan, row, first, end);
  });
  with_block(plan.row_tiles, [&](auto block) {
    using Block = decltype(block);
    walk<FloatTileThread<Block>>(
        run, plan.order(a, Block::PANELS),
        [&](const Piece& now, const Piece& next, FloatTileThread<Block>& thread) {
          FloatTilePiece<Block>(a, plan, now, next, thread).compute();
        });
  });
}
