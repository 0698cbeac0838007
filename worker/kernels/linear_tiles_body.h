// Linears on the tile unit: BF16 and the integer formats from five rows up; below that, and for the
// other formats, the vector kernels stream as fast as memory gives, to the same bits.
//
// One shape serves every number of rows: a tile of 16 rows against a quad, four panels of weights.
// Of few rows each byte of weights is read once, in four long streams. Of many, a quad's inputs of
// one pass stay in the first cache and the rows go by: a product then takes a quarter of a tile
// from the second cache, whose width bounds the unit; a square of two by two tiles takes half.
//
// Activations are packed in tiles of 16 rows and 64 bytes, a pass after the other: [row tile][input
// tile][16][64 bytes]; rows that do not exist hold what lay there before and reach no other row.

constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 1024;
constexpr int64_t MIN_TILE_ROWS = 5;
constexpr int64_t TILE_ROWS_PER_PASS = 512;  // fewer would make the unit wait for weights
constexpr int64_t QUAD = 4;  // panels that are summed side by side

// What a thread keeps from piece to piece: sums of the panels of a unit, in tiles. The last quad of a
// unit may lack panels; they have places too, for a unit is whole quads at most.
struct UnitSums {
  static constexpr int64_t UNIT = 32;
  alignas(64) float tiles[TILE_ROWS_PER_PASS / TILE_ROWS][UNIT][TILE_ROWS][PANEL];

  float* at(int64_t row, int64_t panel) { return tiles[row / TILE_ROWS][panel % UNIT][0]; }
};

// Where activations of `item_bytes` lie, and in which order panels and inputs are gone through.
struct TilePlan {
  int64_t num_rows, row_tiles, padded, pass, item_bytes;

  // Many rows: `short_pass` inputs of a quad, of a row tile and its sums share the first cache.
  TilePlan(int64_t num_rows, int64_t padded, int64_t short_pass, int64_t item_bytes)
      : num_rows(num_rows),
        row_tiles(ceil_div(num_rows, TILE_ROWS)),
        padded(padded),
        pass(num_rows <= TILE_ROWS ? padded : short_pass),
        item_bytes(item_bytes) {}

  // Row `row` from input k on, where a pass or a tile of inputs begins: 64 bytes of every tile.
  uint8_t* tiles(uint8_t* scratch, int64_t row, int64_t k) const {
    int64_t start = k / pass * pass, inputs = min_of(pass, padded - start);
    int64_t values = start * row_tiles + row / TILE_ROWS * inputs + (k - start);
    return scratch + values * TILE_ROWS * item_bytes + row % TILE_ROWS * 64;
  }

  Order order(int64_t num_panels) const {
    int64_t sum_bytes = num_rows * UnitSums::UNIT * PANEL * 4;
    int64_t cached = (TILE_CACHE_BYTES - sum_bytes) / (num_rows * item_bytes);
    Order order(num_panels, padded, QUAD, pass, cached);
    order.unit = min_of(order.unit, UnitSums::UNIT);
    return order;
  }
};

// What a thread has while it walks.
struct TileThread {
  FullTiles tiles;
  UnitSums sums;
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

// The weights of a piece's panels, for one pass. Panels that do not exist are the last one again.
struct QuadWeights {
  const uint8_t* panels[QUAD];

  QuadWeights(const LinearArguments& a, const Piece& piece, int64_t padded) {
    for (int64_t i = 0; i < QUAD; i++)
      panels[i] = a.weight + panel_bytes(a.format, piece.k) +
                  (piece.panel + min_of(i, piece.num_panels - 1)) * panel_bytes(a.format, padded);
  }
};

// Weights that are wanted soon, a line of every panel at a time, into the second cache: the first
// one is full of what is multiplied now. One row tile fetches what is AHEAD of it in its piece and
// then in the next; several share the piece after theirs.
struct QuadFetch {
  const uint8_t* from;
  const uint8_t* end;
  const uint8_t* next;
  int64_t stride, row_tiles, credit;

  QuadFetch(const LinearArguments& a, const TilePlan& plan, const Piece& now, const Piece& after)
      : stride(panel_bytes(a.format, plan.padded)), row_tiles(plan.row_tiles), credit(0) {
    const uint8_t* here = QuadWeights(a, now, plan.padded).panels[0];
    int64_t num_bytes = panel_bytes(a.format, now.num_inputs);
    next = after.num_panels ? QuadWeights(a, after, plan.padded).panels[0] : here;
    end = row_tiles == 1 ? here + num_bytes : next;
    from = row_tiles == 1 && num_bytes > AHEAD ? here + AHEAD : next;
  }

  // The time of `count` lines has come, once for every row tile.
  void lines(int64_t count) {
    for (credit += count; credit >= row_tiles; credit -= row_tiles) {
#pragma GCC unroll 4
      for (int p = 0; p < QUAD; p++) __builtin_prefetch(from + p * stride, 0, SECOND_CACHE);
      from += 64;
      if (from == end) from = next;
    }
  }

 private:
  static constexpr int64_t AHEAD = 2048;
};

// Write finished(sum, panel) of a row tile and a quad.
template <class Finished>
void write_tile(const LinearArguments& a, int64_t row, int64_t num_rows, const Piece& piece,
                UnitSums& sums, Finished&& finished) {
  for (int64_t m = row; m < min_of(num_rows, row + TILE_ROWS); m++)
    for (int64_t panel = piece.panel; panel < piece.panel + piece.num_panels; panel++) {
      Lanes sum = finished(load(sums.at(row, panel) + (m - row) * PANEL), panel);
      if (a.bias) sum = sum + load(a.bias + panel * PANEL);
      store_columns(a.out + m * a.num_outputs + panel * PANEL, sum, a.num_outputs - panel * PANEL);
    }
}

// Ask for the lines of the output that the row tile after `row` writes: there are more of them than
// of weights, and each is fetched before it is written.
inline void fetch_output(const LinearArguments& a, int64_t row, int64_t num_rows,
                         const Piece& piece) {
  for (int64_t m = row + TILE_ROWS; m < min_of(num_rows, row + 2 * TILE_ROWS); m++)
    for (int64_t p = 0; p < piece.num_panels; p++)
      fetch_to_write(a.out + m * a.num_outputs + (piece.panel + p) * PANEL);
}

// Sums of 16 rows and a quad, from one pass to the next.
inline void load_sums(UnitSums& sums, int64_t row, int64_t panel) {
  tile_load<0>(sums.at(row, panel), 64), tile_load<1>(sums.at(row, panel + 1), 64);
  tile_load<2>(sums.at(row, panel + 2), 64), tile_load<3>(sums.at(row, panel + 3), 64);
}
inline void store_sums(UnitSums& sums, int64_t row, int64_t panel) {
  tile_store<0>(sums.at(row, panel), 64), tile_store<1>(sums.at(row, panel + 1), 64);
  tile_store<2>(sums.at(row, panel + 2), 64), tile_store<3>(sums.at(row, panel + 3), 64);
}
inline void zero_sums() { tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>(); }

// `count` tiles of inputs more. The order of products is the canonical one: an instruction takes 32
// inputs and adds their two chains to the sum.
inline void add_float_tiles(const uint8_t* x, const QuadWeights& weights, int64_t count,
                            QuadFetch& ahead) {
  QuadFetch fetch = ahead;
  for (int64_t place = 0; place < count * TILE_BYTES; place += TILE_BYTES) {
    tile_load<4>(x + place, 64);
    tile_load<5>(weights.panels[0] + place, 64);
    tile_product_bf16<0, 4, 5>();
    fetch.lines(4);
    tile_load<6>(weights.panels[1] + place, 64);
    tile_product_bf16<1, 4, 6>();
    fetch.lines(4);
    tile_load<7>(weights.panels[2] + place, 64);
    tile_product_bf16<2, 4, 7>();
    fetch.lines(4);
    tile_load<5>(weights.panels[3] + place, 64);
    tile_product_bf16<3, 4, 5>();
    fetch.lines(4);
  }
  ahead = fetch;
}

inline void float_tile_piece(const LinearArguments& a, const TilePlan& plan, const Piece& now,
                             const Piece& next, UnitSums& sums) {
  QuadWeights weights(a, now, plan.padded);
  QuadFetch fetch(a, plan, now, next);
  bool is_last = now.k + now.num_inputs == plan.padded;
  for (int64_t row = 0; row < plan.num_rows; row += TILE_ROWS) {
    if (is_last) fetch_output(a, row, plan.num_rows, now);
    now.k == 0 ? zero_sums() : load_sums(sums, row, now.panel);
    add_float_tiles(plan.tiles(a.scratch, row, now.k), weights, now.num_inputs / BLOCK, fetch);
    store_sums(sums, row, now.panel);
    if (is_last)
      write_tile(a, row, plan.num_rows, now, sums, [](Lanes sum, int64_t) { return sum; });
  }
}

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
  TilePlan plan(num_rows, padded_inputs(a.format, a.num_inputs, 0), 256, sizeof(bf16));
  prepare_strips(run, plan, [&](int64_t row, int64_t first, int64_t end) {
    round_row(a, plan, row, first, end);
  });
  walk<TileThread>(run, plan.order(ceil_div(a.num_outputs, PANEL)),
                   [&](const Piece& now, const Piece& next, TileThread& thread) {
                     float_tile_piece(a, plan, now, next, thread.sums);
                   });
}

#include "linear_int_tiles_body.h"

void linear_tiles(const Run& run, const Op& op) {
  auto a = op.as<LinearArguments>();
  int64_t num_rows = run.step.count(op.rows);
  bool has_tiles = a.format == Format::BF16 || a.format == Format::INT8 || a.format == Format::INT4;
  if (num_rows < MIN_TILE_ROWS || !has_tiles) return linear(run, op);
  for (int64_t first = 0; first < num_rows; first += TILE_ROWS_PER_PASS) {
    int64_t rows = min_of(TILE_ROWS_PER_PASS, num_rows - first);
    LinearArguments part = a;
    part.x += first * a.num_inputs, part.out += first * a.num_outputs;
    switch (a.format) {
      case Format::INT8: int_tile_linear<Int8Weights>(run, part, rows); break;
      case Format::INT4: int_tile_linear<Int4Weights>(run, part, rows); break;
      default: float_tile_linear(run, part, rows);
    }
  }
}
