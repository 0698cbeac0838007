// BF16 on the tile unit.

template <class Block>
struct FloatTileThread {
  FullTiles tiles;
  UnitSums<Block> sums;
  alignas(64) typename Block::Sums done;
  SumsWriter<Block::PANELS> writer;  // of `done`

  ~FloatTileThread() { writer.finish(); }
};

// One pass of some panels: for one group of row tiles after the other. Where the last group lacks a row
// tile, what lies in the place of it is multiplied and not written.
template <class Block>
class FloatTilePiece {
 public:
  FloatTilePiece(const LinearArguments& a, const TilePlan& plan, const Piece& now,
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

  template <class Beside>
  TILE_INLINE void multiply(int64_t row, Beside&& beside) {
    const uint8_t* x = plan_.tiles(a_.scratch, row, now_.k);
    int64_t stride = plan_.stride_of(row, now_);
    now_.k == 0 ? zero_tiles<COUNT>() : load_tiles(thread_.sums.of(row, now_));
    auto fetch = fetch_;
    int64_t lines = 0;
    for (int64_t place = 0; place < now_.num_inputs / BLOCK * TILE_BYTES; place += TILE_BYTES)
      add_inputs<Bf16Products>(Block(), x, stride, weights_, place, [&]() TILE_INLINED {
        lines += TILE_ROWS;
        fetch.lines(lines / COUNT);
        lines %= COUNT;
        beside();
      });
    fetch_ = fetch;
  }

  void add_rows(int64_t row) {
    auto& sums = thread_.sums.of(row, now_);
    const float* soon = (&sums)[Order::MOST_PIECES][0];  // of the next rows
    multiply(row, [&] { fetch_to_write(soon), soon += PANEL; });
    store_tiles<COUNT>(sums);
  }

  void finish_rows(int64_t row) {
    bool are_many = plan_.row_tiles > TILES;
    auto writer = thread_.writer;
    are_many ? multiply(row, [&] { writer.step(); }) : multiply(row, [] {});
    writer.finish();
    store_tiles<COUNT>(thread_.done);
    int64_t num_rows = min_of(TILES * TILE_ROWS, plan_.num_rows - row);
    writer.start(a_, thread_.done, row, num_rows, now_, are_many);
    if (!are_many) writer.finish();
    thread_.writer = writer;
  }

  const LinearArguments& a_;
  const TilePlan& plan_;
  const Piece& now_;
  FloatTileThread<Block>& thread_;
  TileWeights<PANELS> weights_;
  TileFetch<PANELS, 1024, SECOND_CACHE> fetch_;
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

inline void float_tile_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  TilePlan plan(num_rows, padded_inputs(a.format, a.num_inputs, 0), sizeof(bf16));
  prepare_strips(run, plan, [&](int64_t row, int64_t first, int64_t end) {
    round_row(a, plan, row, first, end);
  });
  with_block(plan.row_tiles, [&](auto block) {
    using Block = decltype(block);
    walk<FloatTileThread<Block>>(
        run, plan.order(ceil_div(a.num_outputs, PANEL), Block::PANELS),
        [&](const Piece& now, const Piece& next, FloatTileThread<Block>& thread) {
          FloatTilePiece<Block>(a, plan, now, next, thread).compute();
        });
  });
}
