// BF16 on the tile unit. Of up to 16 rows each tile of activations meets four panels of weights; of more,
// two tiles meet two panels, so that each tile that is loaded serves two products.
//
// Up to two row tiles go through all inputs in one go, and weights come straight from memory. Of more,
// a pass of a pair of panels stays in the first cache while the rows go by from the second.

constexpr int64_t PAIR = 2;                     // row tiles, and panels
constexpr int64_t FLOAT_TILE_PASS = 512;  // inputs: 32 KiB of weights
constexpr int64_t PAGE_LINES = 4 * TILE_ROWS;   // of sums: four tiles

// What a thread keeps: the sums of a unit from pass to pass, and those that wait to be written; four
// tiles have a page, [row tile][panel][16][16].
struct FloatTileThread {
  using Page = float[PAGE_LINES][PANEL];
  FullTiles tiles;
  alignas(64) Page sums[TILE_ROWS_PER_PASS / TILE_ROWS / PAIR][Order::MOST_PIECES];
  alignas(64) Page done;
};

inline void load_sums(const float (*sums)[PANEL]) {
  tile_load<0>(sums[0], 64), tile_load<1>(sums[16], 64);
  tile_load<2>(sums[32], 64), tile_load<3>(sums[48], 64);
}
inline void store_sums(float (*sums)[PANEL]) {
  tile_store<0>(sums[0], 64), tile_store<1>(sums[16], 64);
  tile_store<2>(sums[32], 64), tile_store<3>(sums[48], 64);
}

// Sums that are done, on their way to the output: a line beside every product. In one go the stores
// would stand in the way of what is loaded meanwhile, whose addresses look alike to the processor.
template <int64_t PANELS>
struct PageWriter {
  const float (*done)[PANEL];
  const LinearArguments* a;
  bool past_caches;
  int64_t row = 0, panel = 0, num_panels = 0, line = 0, num_lines = 0;

  void start(int64_t first_row, int64_t num_rows, const Piece& piece) {
    row = first_row, panel = piece.panel, num_panels = piece.num_panels;
    line = 0, num_lines = PANELS * num_rows;
  }
  void step() {
    if (line == num_lines) return;
    int64_t m = line / PANELS, p = line % PANELS;
    line++;
    if (p >= num_panels) return;
    int64_t column = (panel + p) * PANEL;
    Lanes sum = load(done[(m / TILE_ROWS * PANELS + p) * TILE_ROWS + m % TILE_ROWS]);
    if (a->bias) sum = sum + load(a->bias + column);
    float* out = a->out + (row + m) * a->num_outputs + column;
    store_columns(out, sum, a->num_outputs - column, past_caches);
  }
  void finish() {
    while (line < num_lines) step();
  }
};

// One tile of weights, and its product with one or two of activations.
template <int TILES, int64_t PANELS, int PANEL_NUMBER, class Beside>
inline void add_panel(const uint8_t* weights, Beside&& beside) {
  constexpr int WEIGHTS = 6 + PANEL_NUMBER % 2;
  tile_load<WEIGHTS>(weights, 64);
  tile_product_bf16<PANEL_NUMBER, 4, WEIGHTS>();
  beside();
  if constexpr (TILES > 1) {
    tile_product_bf16<PANELS + PANEL_NUMBER, 5, WEIGHTS>();
    beside();
  }
}

// `count` tiles of inputs more of one or two row tiles; `x_stride` bytes lie between the two. The order
// of products is the canonical one: an instruction takes 32 inputs and adds their two chains to the sum.
template <int TILES, int64_t PANELS, class Beside>
inline void add_float_tiles(const uint8_t* x, int64_t x_stride, const TileWeights<PANELS>& weights,
                            int64_t count, Beside&& beside) {
  for (int64_t place = 0; place < count * TILE_BYTES; place += TILE_BYTES) {
    tile_load_once<4>(x + place, 64);
    if constexpr (TILES > 1) tile_load_once<5>(x + x_stride + place, 64);
    add_panel<TILES, PANELS, 0>(weights.panels[0] + place, beside);
    if constexpr (PANELS > 1) add_panel<TILES, PANELS, 1>(weights.panels[1] + place, beside);
    if constexpr (PANELS > 2) {
      add_panel<TILES, PANELS, 2>(weights.panels[2] + place, beside);
      add_panel<TILES, PANELS, 3>(weights.panels[3] + place, beside);
    }
  }
}

// One pass of some panels: for one group of row tiles after the other.
template <int64_t PANELS>
class FloatTilePiece {
 public:
  FloatTilePiece(const LinearArguments& a, const TilePlan& plan, const Piece& now,
                 const Piece& next, FloatTileThread& thread)
      : a_(a),
        plan_(plan),
        now_(now),
        thread_(thread),
        weights_(a, now, plan.padded),
        fetch_(a, plan.padded, ceil_div(plan.row_tiles, TILES), now, next),
        writer_{thread.done, &a, plan.row_tiles > TILES && a.num_outputs % PANEL == 0 && uint64_t(a.out) % 64 == 0},
        is_last_(now.k + now.num_inputs == plan.padded) {}

  void compute() {
    for (int64_t row = 0; row < plan_.num_rows; row += TILES * TILE_ROWS)
      plan_.num_rows - row > TILE_ROWS ? rows<TILES>(row) : rows<1>(row);
    writer_.finish();
  }

 private:
  static constexpr int TILES = 4 / PANELS;

  template <int COUNT>
  void rows(int64_t row) {
    auto& sums = thread_.sums[row / (TILES * TILE_ROWS)][now_.number];
    int64_t tile = now_.num_inputs * TILE_ROWS * plan_.item_bytes, count = now_.num_inputs / BLOCK;
    const uint8_t* x = plan_.tiles(a_.scratch, row, now_.k);
    now_.k == 0 ? zero_sums() : load_sums(sums);
    TileFetch<PANELS> fetch = fetch_;
    constexpr int LINES = 16 / (COUNT * PANELS);
    if (is_last_) {
      PageWriter<PANELS> writer = writer_;
      add_float_tiles<COUNT>(x, tile, weights_, count, [&] { fetch.lines(LINES), writer.step(); });
      writer_ = writer;
    } else {
      const float* soon = (&sums)[Order::MOST_PIECES][0];
      add_float_tiles<COUNT>(x, tile, weights_, count, [&] {
        fetch.lines(LINES);
        fetch_to_write(soon), soon += PANEL;
      });
    }
    fetch_ = fetch;
    if (!is_last_) return store_sums(sums);
    writer_.finish();
    store_sums(thread_.done);
    writer_.start(row, min_of(COUNT * TILE_ROWS, plan_.num_rows - row), now_);
  }

  const LinearArguments& a_;
  const TilePlan& plan_;
  const Piece& now_;
  FloatTileThread& thread_;
  TileWeights<PANELS> weights_;
  TileFetch<PANELS> fetch_;
  PageWriter<PANELS> writer_;
  bool is_last_;
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
  int64_t padded = padded_inputs(a.format, a.num_inputs, 0);
  TilePlan plan(num_rows, padded, PAIR * TILE_ROWS, FLOAT_TILE_PASS, sizeof(bf16));
  prepare_strips(run, plan, [&](int64_t row, int64_t first, int64_t end) {
    round_row(a, plan, row, first, end);
  });
  int64_t num_panels = ceil_div(a.num_outputs, PANEL);
  auto all = [&](auto panels) {
    constexpr int PANELS = decltype(panels)::value;
    walk<FloatTileThread>(run, plan.order(num_panels, PANELS),
                          [&](const Piece& now, const Piece& next, FloatTileThread& thread) {
                            FloatTilePiece<PANELS>(a, plan, now, next, thread).compute();
                          });
  };
  num_rows <= TILE_ROWS ? all(std::integral_constant<int, 4>()) : all(std::integral_constant<int, 2>());
}
