// BF16 on the tile unit. Six tiles of sums, or four, meet the activations that one or two tiles hold.
//
// Up to two row tiles go through all inputs in one go, and weights come straight from memory, in as
// many streams as there are sums for. Of more, a pass of two panels stays in the first cache while the
// rows go by from the second, two tiles at a time: each tile that is loaded serves two products.

constexpr int64_t FLOAT_TILE_PASS = 512;  // inputs; 32 KiB of two panels

// Row tiles and panels that are summed at once.
template <int ROWS, int COLUMNS>
struct TileBlock {
  static constexpr int TILES = ROWS, PANELS = COLUMNS;
};
using FewRows = TileBlock<1, 4>;   // up to 16; six panels are no faster
using SomeRows = TileBlock<2, 3>;  // up to 32
using ManyRows = TileBlock<2, 2>;

// Sums that are done, on their way to the output. Of many rows a line goes beside every product, and
// past the caches, which do not hold them all: stores in one go would stand in the way of what is
// loaded meanwhile, whose addresses look alike to the processor.
template <int PANELS>
struct SumsWriter {
  const LinearArguments* a = nullptr;
  bool past_caches = false;
  int64_t row = 0, panel = 0, num_panels = 0, line = 0, num_lines = 0;

  void start(const LinearArguments& arguments, int64_t first_row, int64_t num_rows,
             const Piece& piece, bool past) {
    a = &arguments, past_caches = past;
    row = first_row, panel = piece.panel, num_panels = piece.num_panels;
    line = 0, num_lines = PANELS * num_rows;
  }
  void step(const float (*sums)[PANEL]) {
    if (line == num_lines) return;
    int64_t m = line / PANELS, p = line % PANELS;
    line++;
    if (p >= num_panels) return;
    int64_t column = (panel + p) * PANEL;
    Lanes sum = load(sums[(m / TILE_ROWS * PANELS + p) * TILE_ROWS + m % TILE_ROWS]);
    if (a->bias) sum = sum + load(a->bias + column);
    float* out = a->out + (row + m) * a->num_outputs + column;
    store_columns(out, sum, a->num_outputs - column, past_caches);
  }
  void finish(const float (*sums)[PANEL]) {
    while (line < num_lines) step(sums);
  }
};

// What a thread keeps: sums from pass to pass, [row tile][panel][16][16], and those on their way out.
template <class Block>
struct FloatTileThread {
  static constexpr bool HAS_PASSES = std::is_same<Block, ManyRows>::value;
  static constexpr int64_t GROUPS = TILE_ROWS_PER_PASS / TILE_ROWS / Block::TILES;
  using Sums = float[Block::TILES * Block::PANELS * TILE_ROWS][PANEL];
  FullTiles tiles;
  SumsWriter<Block::PANELS> writer;
  alignas(64) Sums done;
  alignas(64) Sums sums[HAS_PASSES ? GROUPS : 1][HAS_PASSES ? Order::MOST_PIECES : 1];

  ~FloatTileThread() { writer.finish(done); }
};

template <int COUNT>
inline void zero_tiles() {
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  if constexpr (COUNT > 4) tile_zero<4>(), tile_zero<5>();
}
inline void load_tiles(const float (*sums)[PANEL]) {
  tile_load<0>(sums[0], 64), tile_load<1>(sums[16], 64);
  tile_load<2>(sums[32], 64), tile_load<3>(sums[48], 64);
}
template <int COUNT>
inline void store_tiles(float (*sums)[PANEL]) {
  tile_store<0>(sums[0], 64), tile_store<1>(sums[16], 64);
  tile_store<2>(sums[32], 64), tile_store<3>(sums[48], 64);
  if constexpr (COUNT > 4) tile_store<4>(sums[64], 64), tile_store<5>(sums[80], 64);
}

// A call in these loops would cost as much as a product.
#define TILE_INLINE inline __attribute__((always_inline))

// Products of a tile of activations with panels P.. of a block; the first one's sum is tile SUM.
template <int SUM, int P, class Block, class Beside>
TILE_INLINE void add_row_tile(const TileWeights<Block::PANELS>& weights, int64_t place,
                             Beside&& beside) {
  tile_load<7>(weights.panels[P] + place, 64);
  tile_product_bf16<SUM + P, 6, 7>();
  beside();
  if constexpr (P + 1 < Block::PANELS) add_row_tile<SUM, P + 1, Block>(weights, place, beside);
}

// A tile of inputs more. The order of products is the canonical one: an instruction takes 32 inputs and
// adds their two chains to the sum. `x_stride` bytes lie between row tiles.
template <class Block, class Beside>
TILE_INLINE void add_inputs(const Block&, const uint8_t* x, int64_t x_stride,
                            const TileWeights<Block::PANELS>& weights, int64_t place,
                            Beside&& beside) {
  tile_load_once<6>(x + place, 64);
  add_row_tile<0, 0, Block>(weights, place, beside);
  if constexpr (Block::TILES > 1) {
    tile_load_once<6>(x + x_stride + place, 64);
    add_row_tile<Block::PANELS, 0, Block>(weights, place, beside);
  }
}
template <class Beside>
TILE_INLINE void add_inputs(const ManyRows&, const uint8_t* x, int64_t x_stride,
                            const TileWeights<2>& weights, int64_t place,
                            Beside&& beside) {
  tile_load_once<4>(x + place, 64);
  tile_load<6>(weights.panels[0] + place, 64);
  tile_product_bf16<0, 4, 6>();
  beside();
  tile_load_once<5>(x + x_stride + place, 64);
  tile_product_bf16<2, 5, 6>();
  beside();
  tile_load<7>(weights.panels[1] + place, 64);
  tile_product_bf16<1, 4, 7>();
  beside();
  tile_product_bf16<3, 5, 7>();
  beside();
}

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
  static constexpr int TILES = Block::TILES, PANELS = Block::PANELS, COUNT = TILES * PANELS;

  auto& sums_of(int64_t row) { return thread_.sums[row / (TILES * TILE_ROWS)][now_.number]; }

  template <class Beside>
  TILE_INLINE void multiply(int64_t row, Beside&& beside) {
    const uint8_t* x = plan_.tiles(a_.scratch, row, now_.k);
    bool has_two = TILES > 1 && row + TILE_ROWS < plan_.num_rows;
    int64_t stride = has_two ? now_.num_inputs * TILE_ROWS * plan_.item_bytes : 0;
    now_.k == 0 ? zero_tiles<COUNT>() : load_tiles(sums_of(row));
    TileFetch<PANELS> fetch = fetch_;
    int64_t lines = 0;
    for (int64_t place = 0; place < now_.num_inputs / BLOCK * TILE_BYTES; place += TILE_BYTES)
      add_inputs(Block(), x, stride, weights_, place, [&]() __attribute__((always_inline)) {
        lines += 16;
        fetch.lines(lines / COUNT);
        lines %= COUNT;
        beside();
      });
    fetch_ = fetch;
  }

  void add_rows(int64_t row) {
    auto& sums = sums_of(row);
    const float* soon = (&sums)[Order::MOST_PIECES][0];  // of the next rows
    multiply(row, [&] { fetch_to_write(soon), soon += PANEL; });
    store_tiles<COUNT>(sums);
  }

  void finish_rows(int64_t row) {
    bool are_many = plan_.row_tiles > TILES;
    auto writer = thread_.writer;
    are_many ? multiply(row, [&] { writer.step(thread_.done); }) : multiply(row, [] {});
    writer.finish(thread_.done);
    store_tiles<COUNT>(thread_.done);
    bool whole = uint64_t(a_.out) % 64 == 0 && a_.num_outputs % PANEL == 0;
    int64_t num_rows = min_of(TILES * TILE_ROWS, plan_.num_rows - row);
    writer.start(a_, row, num_rows, now_, are_many && whole);
    if (!are_many) writer.finish(thread_.done);
    thread_.writer = writer;
  }

  const LinearArguments& a_;
  const TilePlan& plan_;
  const Piece& now_;
  FloatTileThread<Block>& thread_;
  TileWeights<PANELS> weights_;
  TileFetch<PANELS> fetch_;
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

template <class Block>
void float_tile_walk(const Run& run, const LinearArguments& a, const TilePlan& plan) {
  walk<FloatTileThread<Block>>(
      run, plan.order(ceil_div(a.num_outputs, PANEL), Block::PANELS),
      [&](const Piece& now, const Piece& next, FloatTileThread<Block>& thread) {
        FloatTilePiece<Block>(a, plan, now, next, thread).compute();
      });
}

inline void float_tile_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  int64_t padded = padded_inputs(a.format, a.num_inputs, 0);
  TilePlan plan(num_rows, padded, 2 * TILE_ROWS, FLOAT_TILE_PASS, sizeof(bf16));
  prepare_strips(run, plan, [&](int64_t row, int64_t first, int64_t end) {
    round_row(a, plan, row, first, end);
  });
  if (plan.row_tiles == 1) return float_tile_walk<FewRows>(run, a, plan);
  if (plan.row_tiles == 2) return float_tile_walk<SomeRows>(run, a, plan);
  float_tile_walk<ManyRows>(run, a, plan);
}
