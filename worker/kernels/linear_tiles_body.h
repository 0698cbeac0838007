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
  TilePlan(int64_t num_rows, int64_t padded, int64_t long_rows, int64_t short_pass,
           int64_t item_bytes)
      : num_rows(num_rows),
        row_tiles(ceil_div(num_rows, TILE_ROWS)),
        padded(padded),
        pass(num_rows <= long_rows ? padded : short_pass),
        item_bytes(item_bytes) {}

  // Row `row` from input k on, where a pass or a tile of inputs begins: 64 bytes of every tile.
  uint8_t* tiles(uint8_t* scratch, int64_t row, int64_t k) const {
    int64_t start = k / pass * pass, inputs = min_of(pass, padded - start);
    int64_t values = start * row_tiles + row / TILE_ROWS * inputs + (k - start);
    return scratch + values * TILE_ROWS * item_bytes + row % TILE_ROWS * 64;
  }

  Order order(int64_t num_panels, int64_t width) const {
    int64_t sum_bytes = num_rows * Order::MOST_PIECES * width * PANEL * 4;
    int64_t cached = (TILE_CACHE_BYTES - sum_bytes) / (num_rows * item_bytes);
    return Order(num_panels, padded, width, pass, cached);
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
template <int64_t PANELS>
struct TileWeights {
  const uint8_t* panels[PANELS];

  TileWeights(const LinearArguments& a, const Piece& piece, int64_t padded) {
    for (int64_t i = 0; i < PANELS; i++)
      panels[i] = a.weight + panel_bytes(a.format, piece.k) +
                  (piece.panel + min_of(i, piece.num_panels - 1)) * panel_bytes(a.format, padded);
  }
};

// Weights that are wanted soon, a line of every panel at a time, into the second cache: the first
// one is full of what is multiplied now. One row tile fetches what is AHEAD of it in its piece and
// then in the next; several share the piece after theirs.
template <int64_t PANELS>
struct TileFetch {
  const uint8_t* from;
  const uint8_t* end;
  const uint8_t* next;
  int64_t stride, turns, credit;

  // The rows go by in that many turns.
  TileFetch(const LinearArguments& a, int64_t padded, int64_t turns, const Piece& now,
            const Piece& after)
      : stride(panel_bytes(a.format, padded)), turns(turns), credit(0) {
    const uint8_t* here = TileWeights<PANELS>(a, now, padded).panels[0];
    int64_t num_bytes = panel_bytes(a.format, now.num_inputs);
    next = after.num_panels ? TileWeights<PANELS>(a, after, padded).panels[0] : here;
    end = turns == 1 ? here + num_bytes : next;
    from = turns == 1 && num_bytes > AHEAD ? here + AHEAD : next;
  }

  // The time of `count` lines of a panel has come, once in every turn.
  void lines(int64_t count) {
    for (credit += count; credit >= turns; credit -= turns) {
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) __builtin_prefetch(from + p * stride, 0, SECOND_CACHE);
      from += 64;
      if (from == end) from = next;
    }
  }

 private:
  static constexpr int64_t AHEAD = 1024;
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

inline void zero_sums() { tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>(); }

#include "linear_bf16_tiles_body.h"
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
