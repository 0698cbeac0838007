// Linears over floats, once per level. See `linear.h` for layout and order of summation.
#include "linear_body.h"

#include "linear_float_tile_body.h"
#if LANES_LEVEL == 512
#include "linear_pairs_body.h"
#endif

constexpr int64_t FLOAT_PASS = 512;  // inputs of a piece of more rows than a tile has
// A lone tile goes on as long as its activations leave room in the first cache; at AVX2, whose tiles
// take longer over what they read, in the second.
constexpr int64_t LONE_PASS = 1536, LONE_BYTES = (LANES_LEVEL == 256 ? 40 : 16) << 10;
// In one stream the panel of a piece stays in the second cache, for the tiles after the first.
constexpr int64_t STREAM_PASS = 4096;
template <class W>
constexpr int64_t FEW_TILES = W::INPUTS == 2 ? 4 : 2;

// At AVX2 all tiles take the weights from the second cache, as they are: to widen them again takes less
// than to begin the many short pieces that the first one holds (16 rows of bf16 on a Zen 2: 1.1 times).
constexpr int64_t SHARED_INPUTS = 4096;  // of all panels of a piece

template <class W>
constexpr bool keeps = LANES_LEVEL != 256 && !std::is_void_v<typename W::Kept>;

// The chains of the even inputs of block b; or those of the odd ones, with which the block is done.
// A function of its own, so that nothing but the chains asks for registers. Weights that lie in the
// first cache leave time to fetch the activations of the next tile, half a block in each chain.
template <class W, int ROWS, int PANELS, bool KEEP, bool ODD>
__attribute__((noinline)) void add_chains(FloatTile<float>& t, int64_t b,
                                          Lanes (&even)[ROWS][PANELS]) {
  constexpr bool FETCH_X = LANES_LEVEL != 256 && !keeps<W> && 2 * ROWS >= FLOAT_ROWS;
  // Sixteen registers hold the weights of one panel beside the sums.
  constexpr int TOGETHER = LANES_LEVEL == 256 && ROWS > 1 ? 1 : PANELS;
  Stream fetch = t.fetch;
  const float* x = t.x + b * BLOCK * ROWS + ODD;
  const float* next_x = t.next_x + (2 * b + ODD) * (BLOCK / 2 * ROWS);
  const uint8_t* pair = t.weights + b * (BLOCK / 2 * W::PAIR_BYTES);
  float* kept = KEEP ? t.kept + (b * BLOCK + ODD) * PANEL : nullptr;
  Lanes sums[ROWS][PANELS];
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = zero();
  fetch.turn();
  for (int i = 0; i < BLOCK / 2; i += 2) {
    // Of several rows the first cache is full of what their tile works with.
    fetch.step<PANELS, ROWS == 1 ? FIRST_CACHE : SECOND_CACHE, W::PAIR_BYTES / Stream::LINE>();
    if constexpr (FETCH_X) __builtin_prefetch(next_x + i * ROWS);
#pragma GCC unroll 2
    for (int j = 0; j < 2; j++) {
#pragma GCC unroll 4
      for (int first = 0; first < PANELS; first += TOGETHER) {
        Lanes weights[TOGETHER];
#pragma GCC unroll 4
        for (int p = 0; p < TOGETHER; p++) {
          const uint8_t* from = pair + (first + p) * t.panel_stride + j * W::PAIR_BYTES;
          weights[p] = ODD ? W::odd(from) : W::even(from);
          if (KEEP) store(kept + (first + p) * KEPT_STRIDE + 2 * j * PANEL, weights[p]);
        }
#pragma GCC unroll 16
        for (int m = 0; m < ROWS; m++) {
          const float& value = x[m * BLOCK + 2 * j];
#pragma GCC unroll 4
          for (int p = 0; p < TOGETHER; p++)
            sums[m][first + p] = W::add(sums[m][first + p], value, weights[p]);
        }
      }
    }
    x += 4, pair += 2 * W::PAIR_BYTES;
    if (KEEP) kept += 4 * PANEL;
  }
  t.fetch = fetch;
  float* const to = t.sums;  // read once: a store might change it, for all the compiler knows
  const int64_t stride = t.sums_stride;
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      if constexpr (ODD) {
        float* sum = to + m * stride + p * PANEL;
        store(sum, load(sum) + (even[m][p] + sums[m][p]));
      } else {
        even[m][p] = sums[m][p];
      }
    }
}

template <class W, int ROWS, int PANELS, bool KEEP>
void float_tile(FloatTile<float>& t) {
  for (int64_t b = 0; b < t.num_blocks; b++) {
    Lanes even[ROWS][PANELS];
    add_chains<W, ROWS, PANELS, KEEP, false>(t, b, even);
    add_chains<W, ROWS, PANELS, KEEP, true>(t, b, even);
  }
}

// One tile over all panels of a piece, side by side while as many are left.
template <class W, int ROWS, bool KEEP>
void float_panels(FloatTile<typename W::Input>& t, int64_t num_panels) {
  constexpr int WIDTH = float_width(ROWS);
  Stream begin = t.fetch;
  for (int64_t p = 0, done; p < num_panels; p += done) {
    done = num_panels - p >= WIDTH ? WIDTH : 1;
    t.fetch = begin.moved(p);
    done == WIDTH ? float_tile<W, ROWS, WIDTH, KEEP>(t) : float_tile<W, ROWS, 1, KEEP>(t);
    t.fetch = t.fetch.moved(-p);
    t.weights += done * t.panel_stride;
    if (KEEP) t.kept += done * KEPT_STRIDE;
    t.sums += done * PANEL;
  }
}

// The same one panel after the other, as they lie.
template <class W, int ROWS>
void floats_in_a_row(FloatTile<typename W::Input>& t, int64_t num_panels) {
  for (int64_t p = 0; p < num_panels; p++, t.weights += t.panel_stride, t.sums += PANEL)
    float_tile<W, ROWS, 1, false>(t);
}

template <class W, int ROWS = FLOAT_ROWS>
void float_rows(FloatTile<typename W::Input>& t, int64_t num_rows, int64_t num_panels) {
  if constexpr (ROWS > 1) {
    if (num_rows < ROWS) return float_rows<W, ROWS - 1>(t, num_rows, num_panels);
  }
  if constexpr (keeps<W> && 2 * ROWS >= FLOAT_ROWS) {
    if (t.keep) return float_panels<W, ROWS, true>(t, num_panels);
  }
  if constexpr (W::INPUTS == 2) {
    if (t.in_a_row) return floats_in_a_row<W, ROWS>(t, num_panels);
  }
  float_panels<W, ROWS, false>(t, num_panels);
}

// Inputs first..end-1 of some rows as the products take them: a block of each beside that of the
// next, rounded for BF16, filled up with zeros. out: [inputs / BLOCK][rows][those of a BLOCK]
template <class W>
void prepare_tile(const LinearArguments& a, int64_t row, int64_t num_rows, int64_t first,
                  int64_t end, typename W::Input* out) {
  auto write = a.inputs_past_caches ? W::write_past_caches : W::write;
  for (int64_t m = 0; m < num_rows; m++)
    for (int64_t k = first; k < end; k += 16) {
      const float* x = a.x + (row + m) * a.num_inputs + k;
      Lanes values = k + 16 <= a.num_inputs ? load(x) : load_part(x, a.num_inputs - k, 0.0f);
      if (W::FORMAT == Format::BF16) values = nearest_bf16(values);
      write(values, out + (k / BLOCK * num_rows * BLOCK + m * BLOCK + k % BLOCK) / W::INPUTS);
    }
}

// Whether a thread reads one panel after the other. On AMD rows of pairs wait for memory, which one
// stream asks for best, as long as few tiles share what it brings; on Zen 4 it is best for all.
template <class W>
bool floats_in_one_stream(int64_t num_tiles, int64_t weight_bytes) {
  return W::INPUTS == 2 && ON_AMD && (ON_ZEN4 || num_tiles <= FEW_TILES<W>) &&
         is_in_memory(weight_bytes);
}

// By a lone tile.
template <class W>
int64_t fetched_ahead(bool one_stream, int64_t num_rows) {
  if (one_stream) return stream_ahead(num_rows);
  if (LANES_LEVEL == 256 && ON_AMD) return num_rows <= 2 ? few_rows_ahead(num_rows) : 4096;
  return W::INPUTS == 2 && num_rows > 2 ? 4096 : 2048;
}

// One piece for the rows of `tiles`, from row `first` on. Of more than FEW_TILES the weights stay in the
// first cache: as they are, or as the first tile has kept them for the others.
template <class W>
void float_piece(const LinearArguments& a, int64_t first, const Tiles& tiles, const Piece& now,
                 const Piece& next, const Order& order, PassSums& pass_sums) {
  using Input = typename W::Input;
  alignas(64) float kept[keeps<W> ? MOST_WIDTH * KEPT_STRIDE : 1];
  int64_t padded = order.num_inputs, panel = panel_bytes(W::FORMAT, padded);
  int64_t stride = order.stride * panel;
  const uint8_t* weights = a.weight + now.panel * panel + panel_bytes(W::FORMAT, now.k);
  const uint8_t* wanted = weights;
  if (next.num_panels) wanted = a.weight + next.panel * panel + panel_bytes(W::FORMAT, next.k);
  bool one = order.one_stream;
  bool keep = (keeps<W> || W::INPUTS == 2) && !one && tiles.count > FEW_TILES<W>;
  int64_t in_a_row = one ? now.num_panels : 1;
  Stream fetch(weights, in_a_row * panel_bytes(W::FORMAT, now.num_inputs), wanted, stride,
               W::PAIR_BYTES, tiles.count, fetched_ahead<W>(one, tiles.num_rows));
  auto x = [&](int64_t tile, int64_t k) {
    int64_t start = (first + tiles.first(tile)) * padded + k * tiles.height(tile);
    return (const Input*)a.scratch + start / W::INPUTS;
  };
  PieceSums sums(a, first, tiles.num_rows, now, order, pass_sums);
  for (int64_t tile = 0; tile < tiles.count; tile++) {
    int64_t row = tiles.first(tile), rows = tiles.height(tile);
    sums.fetch_output(row, rows);
    FloatTile<Input> t{x(tile, now.k),
                       tile + 1 < tiles.count ? x(tile + 1, now.k) : x(0, next.k),
                       weights,
                       stride,
                       now.num_inputs / BLOCK,
                       sums.of(row),
                       sums.stride,
                       fetch,
                       keep,
                       kept,
                       one};
    bool kept_before = keeps<W> && keep && tile > 0;
    if constexpr (keeps<W>) {
      if (kept_before) {
        t.weights = (const uint8_t*)kept, t.panel_stride = KEPT_STRIDE * 4;
        float_rows<typename W::Kept>(t, rows, now.num_panels);
      }
    }
    if (!kept_before) float_rows<W>(t, rows, now.num_panels);
    fetch = t.fetch;
    sums.finish(row, rows, [&](Lanes sum, int64_t column) {
      return a.bias ? sum + load(a.bias + column) : sum;
    });
  }
}

// At AVX2 a tile of up to three rows takes panels side by side, and fills the registers as the tallest
// does; four and five rows do not (8 rows of bf16 on a Zen 2: 1.13 times, 13 rows 1.09).
inline Tiles float_tiles(int64_t num_rows) {
  int64_t rest = num_rows % FLOAT_ROWS;
  bool uneven = LANES_LEVEL == 256 && num_rows > FLOAT_ROWS && rest >= 1 && rest <= 3;
  return uneven ? Tiles::uneven(num_rows, FLOAT_ROWS) : Tiles(num_rows, FLOAT_ROWS);
}

// How rows of a few tiles go through the weights, or of many.
template <class W>
Order order_of(const LinearArguments& a, int64_t padded, const Tiles& tiles, int64_t num_threads) {
  constexpr int64_t CACHED = 1 << 18;  // activations
  int64_t panels = ceil_div(a.num_outputs, PANEL), bytes = panel_bytes(W::FORMAT, padded);
  int64_t width = float_width(int(tiles.height(0)));
  if (floats_in_one_stream<W>(tiles.count, panels * bytes)) {
    int64_t pass = like_pass(padded, STREAM_PASS, BLOCK);
    // Of short panels several are a piece: to begin one takes 3 to 5 % of what a panel does.
    bool several = tiles.count == 1 && pass == padded;
    Order order = several ? Order::in_a_row(panels, padded, bytes, num_threads)
                          : Order::of_streams(panels, padded, 1, pass, bytes, num_threads);
    order.one_stream = true;
    return order;
  }
  if (tiles.count == 1) {
    int64_t row_bytes = tiles.num_rows * int64_t(sizeof(typename W::Input)) / W::INPUTS;
    int64_t pass = min_of(LONE_PASS, LONE_BYTES / row_bytes / 256 * 256);
    return Order::of_streams(panels, padded, width, pass, bytes, num_threads);
  }
  int64_t pass = tiles.count > FEW_TILES<W> ? KEPT_INPUTS * W::INPUTS : FLOAT_PASS;
  if (LANES_LEVEL == 256) pass = like_pass(padded, SHARED_INPUTS / width, BLOCK);
  return Order(panels, padded, width, pass, CACHED / tiles.num_rows);
}

template <class W>
void float_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  int64_t padded = padded_inputs(W::FORMAT, a.num_inputs, 0);
  for (int64_t first = 0; first < num_rows; first += ROWS_PER_PASS) {
    int64_t rows = min_of(ROWS_PER_PASS, num_rows - first);
    Tiles tiles = float_tiles(rows);
    int64_t threads = run.pool.num_threads();
    int64_t strip = BLOCK * strip_of(padded / BLOCK, rows, threads);
    run.pool.each(ceil_div(padded, strip), [&](int64_t piece, int) {
      int64_t k = piece * strip, end = min_of(padded, k + strip);
      for (int64_t i = 0; i < tiles.count; i++) {
        int64_t row = first + tiles.first(i);
        prepare_tile<W>(a, row, tiles.height(i), k, end,
                        (typename W::Input*)a.scratch + row * padded / W::INPUTS);
      }
    });
    Order order = order_of<W>(a, padded, tiles, threads);
    walk<PassSums>(run, order, [&](const Piece& now, const Piece& next, PassSums& sums) {
      float_piece<W>(a, first, tiles, now, next, order, sums);
    });
  }
}

void linear_floats(const Run& run, const Op& op) {
  auto a = arguments_of(run, op);
  int64_t num_rows = run.step.count(op.rows);
  switch (a.format) {
    case Format::F32: float_linear<F32Weights>(run, a, num_rows); break;
    case Format::F16: float_linear<F16Weights>(run, a, num_rows); break;
    default: float_linear<Bf16Weights>(run, a, num_rows);
  }
  gate_outputs(run, a, num_rows);
}

#if LANES_LEVEL == 512
void linear_pairs(const Run& run, const Op& op) {
  auto a = arguments_of(run, op);
  if (a.format != Format::BF16) return linear_floats(run, op);
  float_linear<Bf16Pairs>(run, a, run.step.count(op.rows));
  gate_outputs(run, a, run.step.count(op.rows));
}
#endif

#if LANES_LEVEL == TILES_BESIDE
#include "linear_tiles_body.h"

#include "linear_bf16_tiles_body.h"

void linear_float_tiles(const Run& run, const Op& op) {
  bool on_tiles = op.as<LinearArguments>().format == Format::BF16;
  if (!on_tiles || run.step.count(op.rows) < MIN_TILE_ROWS) return linear_floats(run, op);
  each_tile_pass(run, op, [&](const TileLinear& part, int64_t rows) {
    float_tile_linear(run, part, rows);
  });
}
#endif
