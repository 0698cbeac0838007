// Linears on the tile unit: BF16 and the integer formats from five rows up; below that, and for the
// other formats, the vector kernels stream as fast as memory gives, to the same bits.
//
// Six tiles of sums, or four, meet the activations that one or two tiles hold. Up to two row tiles go
// through all inputs in one go, and weights come straight from memory, in as many streams as a block
// has panels. Of more, a pass of two panels stays in the first cache while the rows go by from the
// second, two tiles at a time: each tile that is loaded serves two products.
//
// Activations are packed in tiles of 16 rows and 64 bytes, a pass after the other: [row tile][input
// tile][16][64 bytes]; rows that do not exist hold what lay there before and reach no other row.

constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 1024;
constexpr int64_t MIN_TILE_ROWS = 5;
constexpr int64_t TILE_ROWS_PER_PASS = 512;  // fewer would make the unit wait for weights
constexpr int64_t TILE_PASS_BYTES = 1024;    // of a row; of two panels 32 KiB

// Row tiles and panels that are summed at once.
template <int ROWS, int COLUMNS>
struct TileBlock {
  static constexpr int TILES = ROWS, PANELS = COLUMNS, COUNT = ROWS * COLUMNS;
  static constexpr bool HAS_PASSES = COUNT == 4 && ROWS == 2;
  using Sums = float[COUNT * TILE_ROWS][PANEL];  // [row tile][panel][16][16]
};
using FewRows = TileBlock<1, 4>;   // up to 16; six panels are no faster
using SomeRows = TileBlock<2, 3>;  // up to 32
using ManyRows = TileBlock<2, 2>;

// What a thread keeps from piece to piece: the sums of a unit.
template <class Block>
struct UnitSums {
  static constexpr int64_t GROUPS = TILE_ROWS_PER_PASS / TILE_ROWS / Block::TILES;
  static constexpr int64_t PIECES = Block::HAS_PASSES ? Order::MOST_PIECES : 1;
  alignas(64) typename Block::Sums sums[Block::HAS_PASSES ? GROUPS : 1][PIECES];

  auto& of(int64_t row, const Piece& piece) {
    return sums[row / (Block::TILES * TILE_ROWS)][piece.number];
  }
};

// Some rows of a linear. Where it gates at once its pieces are pairs of panels, of gate and up, and
// only what they make together is written.
struct TileLinear : LinearArguments {
  bool gates = false;
  int64_t panel_stride = 1;  // from panel to panel of a piece

  TileLinear(const LinearArguments& a, int64_t first_row, int64_t num_rows) : LinearArguments(a) {
    int64_t width = num_outputs / 2;
    x += first_row * num_inputs, out += first_row * num_outputs;
    if (!gated) return;
    gated += first_row * width;
    gates = num_rows > 2 * TILE_ROWS && are_whole_lines(gated, width);
    if (gates) panel_stride = width / PANEL;
  }
};

// Where activations of `item_bytes` lie, and in which order panels and inputs are gone through.
struct TilePlan {
  int64_t num_rows, row_tiles, padded, pass, item_bytes;

  TilePlan(int64_t num_rows, int64_t padded, int64_t item_bytes)
      : num_rows(num_rows),
        row_tiles(ceil_div(num_rows, TILE_ROWS)),
        padded(padded),
        pass(row_tiles <= 2 ? padded : TILE_PASS_BYTES / item_bytes),
        item_bytes(item_bytes) {}

  // Row `row` from input k on, where a pass or a tile of inputs begins: 64 bytes of every tile.
  uint8_t* tiles(uint8_t* scratch, int64_t row, int64_t k) const {
    int64_t start = k / pass * pass, inputs = min_of(pass, padded - start);
    int64_t values = start * row_tiles + row / TILE_ROWS * inputs + (k - start);
    return scratch + values * TILE_ROWS * item_bytes + row % TILE_ROWS * 64;
  }

  // Bytes from a row tile of a piece to the next one, none where there is no next one.
  int64_t stride_of(int64_t row, const Piece& piece) const {
    return row + TILE_ROWS < num_rows ? piece.num_inputs * TILE_ROWS * item_bytes : 0;
  }

  Order order(const TileLinear& a, int64_t width) const {
    int64_t sum_bytes = num_rows * Order::MOST_PIECES * width * PANEL * 4;
    int64_t cached = (TILE_CACHE_BYTES - sum_bytes) / (num_rows * item_bytes);
    Order order(ceil_div(a.num_outputs, PANEL), padded, width, pass, cached);
    return a.gates ? order.in_pairs() : order;
  }
};

// Call prepare(row, first input, end) for all rows, in strips that suit few rows and many and that
// end where a pass does.
template <class Prepare>
void prepare_strips(const Run& run, const TilePlan& plan, Prepare&& prepare) {
  constexpr int64_t ROWS = 8, INPUTS = 512;
  int64_t inputs = min_of(plan.pass, INPUTS), strips = ceil_div(plan.padded, inputs);
  run.pool.each(ceil_div(plan.num_rows, ROWS) * strips, [&](int64_t piece, int) {
    int64_t k = piece % strips * inputs, first = piece / strips * ROWS;
    for (int64_t m = first; m < min_of(plan.num_rows, first + ROWS); m++)
      prepare(m, k, min_of(plan.padded, k + inputs));
  });
}

// A call in these loops would cost as much as a product.
#define TILE_INLINED __attribute__((always_inline))
#define TILE_INLINE inline TILE_INLINED

// The weights of a piece's panels, for one pass: tile after tile of inputs, `step` bytes apart. Panels
// that do not exist are the last one again.
template <int64_t PANELS>
struct TileWeights {
  const uint8_t* panels[PANELS];
  int64_t step = TILE_BYTES;

  TileWeights(const TileLinear& a, const Piece& piece, int64_t padded) {
    for (int64_t i = 0; i < PANELS; i++) {
      int64_t panel = piece.panel + min_of(i, piece.num_panels - 1) * a.panel_stride;
      panels[i] = a.weight + panel_bytes(a.format, piece.k) + panel * panel_bytes(a.format, padded);
    }
  }
  // Tiles that lie in the order in which a block takes them.
  explicit TileWeights(const uint8_t* tiles) : step(PANELS * TILE_BYTES) {
    for (int64_t i = 0; i < PANELS; i++) panels[i] = tiles + i * TILE_BYTES;
  }
};

// The number of a product in a tile of inputs: what is done beside it follows from it when compiled.
template <int I>
using Product = std::integral_constant<int, I>;

// Weights that are wanted soon, LINES of every panel for a tile of inputs. Where the rows go by in one
// turn, what is AHEAD of them in their piece and then in the next; in several, these share the piece
// after theirs, which goes into the second cache: the first one is full of what is multiplied now.
template <class Block, int LINES, int64_t AHEAD, int WHERE>
struct TileFetch {
  const uint8_t* from;
  const uint8_t* end;
  const uint8_t* next;
  int64_t stride, turns, credit = 0;

  TileFetch(const TileLinear& a, int64_t padded, int64_t turns, const Piece& now,
            const Piece& after)
      : stride(a.panel_stride * panel_bytes(a.format, padded)), turns(turns) {
    const uint8_t* here = TileWeights<1>(a, now, padded).panels[0];
    int64_t num_bytes = panel_bytes(a.format, now.num_inputs);
    next = after.num_panels ? TileWeights<1>(a, after, padded).panels[0] : here;
    end = Block::HAS_PASSES ? next : here + num_bytes;
    from = !Block::HAS_PASSES && num_bytes > AHEAD ? here + AHEAD : next;
  }

  // Beside a product, where there is one turn.
  template <int I>
  TILE_INLINE void beside(Product<I>) {
    constexpr int FIRST = I * LINES / Block::COUNT, END = (I + 1) * LINES / Block::COUNT;
    if constexpr (!Block::HAS_PASSES) {
#pragma GCC unroll 16
      for (int i = FIRST; i < END; i++) line(from + i * 64);
    }
  }
  // After a tile of inputs.
  TILE_INLINE void step() {
    if constexpr (Block::HAS_PASSES) {
      for (credit += LINES; credit >= turns; credit -= turns) line(from), move(1);
    } else {
      move(LINES);
    }
  }

 private:
  TILE_INLINE void line(const uint8_t* at) {
#pragma GCC unroll 4
    for (int p = 0; p < Block::PANELS; p++) __builtin_prefetch(at + p * stride, 0, WHERE);
  }
  TILE_INLINE void move(int64_t lines) {
    from += lines * 64;
    if (from == end) from = next;
  }
};

// Sums that are done, on their way to the output. Of many rows lines go beside the products, and past
// the caches, which do not hold them all: stores in one go would stand in the way of what is loaded
// meanwhile, whose addresses look alike to the processor.
template <class Block>
class SumsWriter {
 public:
  void start(const TileLinear& a, const float (*sums)[PANEL], int64_t row, int64_t num_rows,
             const Piece& piece) {
    int64_t first = piece.panel * PANEL;
    gates_ = a.gates, sums_ = sums, num_rows_ = num_rows, line_ = 0;
    stride_ = gates_ ? a.num_outputs / 2 : a.num_outputs;
    num_columns_ = gates_ ? PANEL : min_of(piece.num_panels * PANEL, a.num_outputs - first);
    out_ = (gates_ ? a.gated : a.out) + row * stride_ + first;
    past_caches_ = Block::HAS_PASSES && are_whole_lines(a.out, a.num_outputs);
    is_whole_ = past_caches_ && num_rows == Block::TILES * TILE_ROWS &&
                piece.num_panels == Block::PANELS && num_columns_ % PANEL == 0;
    for (int64_t p = 0; p < piece.num_panels; p++) {
      int64_t column = first + p * a.panel_stride * PANEL;
      bool has_scales = a.format == Format::INT8;
      store(scales_[p], has_scales ? load((const float*)a.scales + column) : splat(1.0f));
      store(bias_[p], a.bias ? load(a.bias + column) : splat(-0.0f));  // adds nothing
    }
  }

  // Whether there are lines to go beside products.
  bool is_beside() const { return is_whole_ && line_ < TILE_ROWS; }

  // The next lines of one tile of sums; after those of all tiles `step`.
  template <int LINES, int I>
  TILE_INLINE void beside(Product<I>) {
    constexpr int P = I % Block::PANELS, ROW = I / Block::PANELS * TILE_ROWS;
    float* out = out_ + (ROW + line_) * stride_;
    if (gates_) {  // each product of a pair has half of the lines
      constexpr int FIRST = ceil_div(P * LINES, Block::PANELS);
      constexpr int END = ceil_div((P + 1) * LINES, Block::PANELS);
      for (int i = FIRST; i < END; i++)
        store_past_caches(out + i * stride_, finished_pair(ROW + line_ + i));
      return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LINES; i++)
      store_past_caches(out + P * PANEL + i * stride_, finished(ROW + line_ + i, P));
  }
  void step(int64_t lines) { line_ += lines; }
  void finish_beside() { num_rows_ = 0, is_whole_ = false; }

  void finish() {
    for (int64_t m = 0; m < num_rows_; m++)
      for (int64_t p = 0; p * PANEL < num_columns_ && m % TILE_ROWS >= line_; p++) {
        Lanes line = gates_ ? finished_pair(m) : finished(m, p);
        store_columns(out_ + m * stride_ + p * PANEL, line, num_columns_ - p * PANEL, past_caches_);
      }
    finish_beside();
  }

 private:
  Lanes finished(int64_t m, int64_t p) const {
    int64_t line = (m / TILE_ROWS * Block::PANELS + p) * TILE_ROWS + m % TILE_ROWS;
    return load(sums_[line]) * load(scales_[p]) + load(bias_[p]);
  }
  Lanes finished_pair(int64_t m) const { return gated(finished(m, 0), finished(m, 1)); }

  const float (*sums_)[PANEL] = nullptr;
  float* out_ = nullptr;
  int64_t stride_ = 0, num_rows_ = 0, num_columns_ = 0, line_ = 0;  // of each tile, next
  bool gates_ = false, past_caches_ = false, is_whole_ = false;
  alignas(64) float scales_[Block::PANELS][PANEL], bias_[Block::PANELS][PANEL];
};

template <int COUNT, int I = 0>
inline void zero_tiles() {
  tile_zero<I>();
  if constexpr (I + 1 < COUNT) zero_tiles<COUNT, I + 1>();
}
template <int COUNT, int I = 0, class Line>
inline void load_tiles(const Line* sums) {
  tile_load<I>(sums[I * TILE_ROWS], 64);
  if constexpr (I + 1 < COUNT) load_tiles<COUNT, I + 1>(sums);
}
template <int COUNT, int I = 0, class Line>
inline void store_tiles(Line* sums) {
  tile_store<I>(sums[I * TILE_ROWS], 64);
  if constexpr (I + 1 < COUNT) store_tiles<COUNT, I + 1>(sums);
}

struct Bf16Products {
  template <int SUM, int X, int WEIGHTS>
  static void add() {
    tile_product_bf16<SUM, X, WEIGHTS>();
  }
};
struct ByteProducts {
  template <int SUM, int X, int WEIGHTS>
  static void add() {
    tile_product_bytes<SUM, X, WEIGHTS>();
  }
};
struct SignedProducts {
  template <int SUM, int X, int WEIGHTS>
  static void add() {
    tile_product_signed<SUM, X, WEIGHTS>();
  }
};

// Products of a tile of activations with panels P.. of a block; the first one's sum is tile SUM.
template <class Products, int SUM, int P, class Block, class Beside>
TILE_INLINE void add_row_tile(const TileWeights<Block::PANELS>& weights, int64_t step,
                              Beside&& beside) {
  tile_load<7>(weights.panels[P] + step * weights.step, 64);
  Products::template add<SUM + P, 6, 7>();
  beside(Product<SUM + P>());
  if constexpr (P + 1 < Block::PANELS)
    add_row_tile<Products, SUM, P + 1, Block>(weights, step, beside);
}

// Tile number `step` of inputs more. The order of products is the canonical one: an instruction of bf16
// takes 32 inputs and adds their two chains to the sum. `x_stride` bytes lie between row tiles.
template <class Products, class Block, class Beside>
TILE_INLINE void add_inputs(Block, const uint8_t* x, int64_t x_stride,
                            const TileWeights<Block::PANELS>& weights, int64_t step,
                            Beside&& beside) {
  tile_load_once<6>(x + step * TILE_BYTES, 64);
  add_row_tile<Products, 0, 0, Block>(weights, step, beside);
  if constexpr (Block::TILES > 1) {
    tile_load_once<6>(x + x_stride + step * TILE_BYTES, 64);
    add_row_tile<Products, Block::PANELS, 0, Block>(weights, step, beside);
  }
}
template <class Products, class Beside>
TILE_INLINE void add_inputs(ManyRows, const uint8_t* x, int64_t x_stride,
                            const TileWeights<2>& weights, int64_t step, Beside&& beside) {
  tile_load_once<4>(x + step * TILE_BYTES, 64);
  tile_load<6>(weights.panels[0] + step * weights.step, 64);
  Products::template add<0, 4, 6>();
  beside(Product<0>());
  tile_load_once<5>(x + x_stride + step * TILE_BYTES, 64);
  Products::template add<2, 5, 6>();
  beside(Product<1>());
  tile_load<7>(weights.panels[1] + step * weights.step, 64);
  Products::template add<1, 4, 7>();
  beside(Product<2>());
  Products::template add<3, 5, 7>();
  beside(Product<3>());
}

// Call walk(block) with the one for that many row tiles.
template <class Walk>
void with_block(int64_t row_tiles, Walk&& walk) {
  if (row_tiles == 1) return walk(FewRows());
  if (row_tiles == 2) return walk(SomeRows());
  walk(ManyRows());
}

// Call linear(part, rows) for all rows, as many at a time as go by the weights together.
template <class Part>
void each_tile_pass(const Run& run, const Op& op, Part&& linear) {
  auto a = op.as<LinearArguments>();
  int64_t num_rows = run.step.count(op.rows);
  for (int64_t first = 0; first < num_rows; first += TILE_ROWS_PER_PASS) {
    int64_t rows = min_of(TILE_ROWS_PER_PASS, num_rows - first);
    TileLinear part(a, first, rows);
    linear(part, rows);
    if (!part.gates) gate_outputs(run, part, rows);
  }
}
