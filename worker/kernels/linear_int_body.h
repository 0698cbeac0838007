// Linears over quantised weights, once per level. See `linear.h` for layout and order of summation.
#include "linear_body.h"

#include "int_lanes.h"

struct Int8Weights {
  using Input = Activation;
  static constexpr Format FORMAT = Format::INT8;
  static constexpr int64_t LINE_INPUTS = 4;
  static constexpr int32_t OFFSET = 128;
};

struct Int4Weights {
  using Input = int8_t;
  static constexpr Format FORMAT = Format::INT4;
  static constexpr int64_t LINE_INPUTS = 8;
  static constexpr int32_t OFFSET = 8;
};

// Weights of INT4 that a tile has made bytes of, for those after it.
struct Int4Bytes {
  using Input = int8_t;
  static constexpr Format FORMAT = Format::INT4;
  static constexpr int64_t LINE_INPUTS = 4;
};

// As in `linear_float_body.h`: one sum for every row and panel fills the registers.
#if LANES_LEVEL == 512
constexpr int64_t INT_ROWS = 8;
constexpr int int_width(int rows) { return rows <= 2 ? 4 : 3; }
constexpr int64_t TALLEST = 16;  // of one panel: its sums alone leave registers for the rest
#elif LANES_LEVEL == 256
constexpr int64_t INT_ROWS = 4;
// One stream of a thread is two thirds of what a Zen 2 reads, four are all of it.
constexpr int int_width(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
constexpr int64_t TALLEST = INT_ROWS;
#else
constexpr int64_t INT_ROWS = 4;
constexpr int int_width(int) { return 1; }
constexpr int64_t TALLEST = INT_ROWS;
#endif

// The scales of INT4 that one panel takes, asked for.
inline void fetch_scales(const uint8_t* scales, int64_t num_groups) {
  for (int64_t i = 0; i < num_groups * PANEL * 2; i += 64) __builtin_prefetch(scales + i);
}

// One group more.
template <class W>
inline Lanes scaled(Lanes sum, Lanes products, Lanes x_scale, Lanes weight_scale) {
  if constexpr (W::FORMAT == Format::INT8) return fma(products, x_scale, sum);
  return fma(products * x_scale, weight_scale, sum);
}

// A rectangle of the output and the groups of one pass over it.
struct IntTile {
  const uint8_t* x;        // [inputs of the pass / CHUNK][rows][CHUNK] of W::Input
  const float* x_scales;   // [groups][rows]
  const int32_t* starts;   // [groups][rows]
  const uint8_t* weights;  // first panel, first group of the pass
  int64_t panel_stride;    // bytes
  const bf16* scales;      // of INT4: [groups][16]
  int64_t scales_stride;   // from panel to panel
  int64_t num_groups;
  int64_t group;
  float* sums;             // of the passes so far, [rows][width of the tile][16]
  int64_t sums_stride;     // from row to row
  Stream fetch;
  bool first;              // the weights are not in the first cache yet
  bool keep;               // write the weights as bytes, for the tiles after this one
  uint8_t* kept;
};

constexpr int64_t INT_PASS = 512;                 // inputs of a piece
constexpr int64_t LONG_PASS = 1536;  // at AVX2, where nothing is kept for the next tile (Zen 2: 2 to 5 %)
constexpr int64_t CHUNK = 64;                     // inputs of a row that stand side by side
constexpr int64_t KEPT_BYTES = INT_PASS * PANEL;  // of a panel
// Weights are fetched to the first cache at once on AMD: by way of the second, 8 rows of int8 take 15 %
// longer. Elsewhere they are fetched again when they are SOON bytes of a panel away.
constexpr int64_t SOON = 1024;
// Of so few tiles each makes bytes of INT4: 9 vector operations beside 48 products of eight rows. AMD
// does them on other ports, and a vector that is stored costs it more (16 rows: 8 %).
inline int64_t unkept_tiles() { return ON_AMD ? 2 : 1; }
template <class W>
constexpr bool keeps_bytes = W::LINE_INPUTS == 8 && LANES_LEVEL != 256;  // there bytes are of no use

// Whether rows are tall tiles that go through one panel after the other. On AMD those of one tile wait
// for memory, which one stream asks for best, and weights of INT4 are made bytes of once for all of
// them; on Zen 4 more tiles are faster so, too.
template <class W>
bool ints_in_one_stream(int64_t num_rows, int64_t weight_bytes) {
  return LANES_LEVEL == 512 && ON_AMD && (ON_ZEN4 || num_rows <= TALLEST) &&
         is_in_memory(weight_bytes);
}

// sums[m][p] += weights[p] · x[m]
template <int ROWS, int PANELS>
inline void add_products(Ints (&sums)[ROWS][PANELS], const Bytes (&weights)[PANELS],
                         const Activation* x) {
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = dot(sums[m][p], weights[p], x + CHUNK * m);
}

// One step more of the sums of all groups: int8 has one scale per output and takes it last, int4 one
// per group. `starts` are added here: products that begin with them wait for them (3 % on Zen 5).
template <class W, int ROWS, int PANELS>
inline void finish_group(const IntTile& t, int64_t g, const Ints (&products)[ROWS][PANELS]) {
  float* sums = t.sums;  // read once: a store might change it, for all the compiler knows
  // The full width is known here: a factor would cost 3 %.
  const int64_t stride = PANELS < int_width(ROWS) ? t.sums_stride : int_width(ROWS) * PANEL;
  const float* x_scales = t.x_scales + g * ROWS;
  const int32_t* starts = t.starts + g * ROWS;
  Lanes scales[PANELS];
#pragma GCC unroll 4
  for (int p = 0; p < PANELS; p++)
    if (W::FORMAT == Format::INT4) scales[p] = load_bf16(t.scales + p * t.scales_stride + g * PANEL);
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++) {
    Lanes x_scale = splat(x_scales[m]);
    Ints start = splat(starts[m]);
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      float* sum = sums + m * stride + p * PANEL;
      Lanes whole = to_lanes(add(products[m][p], start));
      store(sum, scaled<W>(load(sum), whole, x_scale, scales[p]));
    }
  }
}

// Exact sums of products over group g, then their step.
template <class W, int ROWS, int PANELS, bool KEEP>
inline __attribute__((always_inline)) void add_group(IntTile& t, int64_t g) {
  Stream fetch = t.fetch;
  const bool near = ON_AMD, soon = t.first;
  const auto* x = (const typename W::Input*)t.x + g * t.group * ROWS;
  const uint8_t* line = t.weights + g * (t.group / W::LINE_INPUTS * 64);
  uint8_t* kept = KEEP ? t.kept + g * t.group * PANEL : nullptr;
  Ints sums[ROWS][PANELS];
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = splat(0);
  for (int64_t i = 0; i < t.group / CHUNK; i++, x += CHUNK * (ROWS - 1)) {
    fetch.turn();
#pragma GCC unroll 2
    for (int j = 0; j < CHUNK / W::LINE_INPUTS; j++) {
      if (__builtin_expect(near, 1)) {
        fetch.step<PANELS, ONCE>();
      } else {
        fetch.step<PANELS, SECOND_CACHE>();
        if (soon)
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++) __builtin_prefetch(line + p * t.panel_stride + SOON);
      }
      Bytes weights[PANELS];
      if constexpr (W::LINE_INPUTS == 4) {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) weights[p] = bytes(line + p * t.panel_stride);
      } else {
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          weights[p] = low_halves(line + p * t.panel_stride);
          if (KEEP) store_bytes(kept + p * KEPT_BYTES, weights[p]);
        }
        add_products(sums, weights, x);
        x += 4;
        if (KEEP) kept += 64;
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          weights[p] = high_halves(line + p * t.panel_stride);
          if (KEEP) store_bytes(kept + p * KEPT_BYTES, weights[p]);
        }
      }
      add_products(sums, weights, x);
      x += 4, line += 64;
      if (KEEP) kept += 64;
    }
  }
  t.fetch = fetch;
  finish_group<W>(t, g, sums);
}

#if LANES_LEVEL == 512
#include "linear_int_panel_body.h"
#elif LANES_LEVEL == 256
#include "linear_int_words_body.h"
#endif

template <class W, int ROWS, int PANELS, bool KEEP>
__attribute__((noinline)) void add_groups(IntTile& t) {
#if LANES_LEVEL == 512
  if constexpr (PANELS == 1 && !KEEP) return add_panel_of_ints<W, ROWS, ONCE>(t);
#endif
  for (int64_t g = 0; g < t.num_groups; g++) {
#if LANES_LEVEL == 256
    if constexpr (W::FORMAT == Format::INT4)
      add_group_of_halves<ROWS, PANELS>(t, g);
    else
      add_group_of_words<ROWS, PANELS>(t, g);
#else
    add_group<W, ROWS, PANELS, KEEP>(t, g);
#endif
  }
}

// One tile over all panels of a piece, side by side while as many are left.
template <class W, int ROWS, bool KEEP>
void int_panels(IntTile& t, int64_t num_panels) {
  constexpr int WIDTH = int_width(ROWS);
  Stream begin = t.fetch;
  for (int64_t p = 0, done; p < num_panels; p += done) {
    done = num_panels - p >= WIDTH ? WIDTH : 1;
    t.fetch = begin.moved(p);
    done == WIDTH ? add_groups<W, ROWS, WIDTH, KEEP>(t) : add_groups<W, ROWS, 1, KEEP>(t);
    t.fetch = t.fetch.moved(-p);
    t.weights += done * t.panel_stride;
    t.scales += done * t.scales_stride;
    if (KEEP) t.kept += done * KEPT_BYTES;
    t.sums += done * PANEL;
  }
}

template <class W, int ROWS = INT_ROWS>
void int_rows(IntTile& t, int64_t num_rows, int64_t num_panels) {
  if constexpr (ROWS > 1) {
    if (num_rows < ROWS) return int_rows<W, ROWS - 1>(t, num_rows, num_panels);
  }
  if constexpr (keeps_bytes<W> && 2 * ROWS >= INT_ROWS) {
    if (t.keep) return int_panels<W, ROWS, true>(t, num_panels);
  }
  int_panels<W, ROWS, false>(t, num_panels);
}

#include "linear_quantise_body.h"

// How far ahead of a lone tile its weights are asked for.
inline int64_t tile_ahead(int64_t num_rows) {
  if (!ON_AMD) return 2048;
  return LANES_LEVEL == 256 && num_rows <= 2 ? few_rows_ahead(num_rows) : 3072;
}

// One piece for the rows of `tiles`, from row `first` on. Of INT4 the first tile keeps its weights for
// the others.
template <class W>
void int_piece(const LinearArguments& a, int64_t first, const Tiles& tiles, const QuantisedRow& layout,
               const Piece& now, const Piece& next, const Order& order, PassSums& pass_sums) {
  constexpr bool HALVES = W::FORMAT == Format::INT4;
  alignas(64) uint8_t kept[keeps_bytes<W> ? MOST_WIDTH * KEPT_BYTES : 1];
  int64_t padded = order.num_inputs, panel = panel_bytes(W::FORMAT, padded);
  int64_t stride = order.stride * panel;
  int64_t first_group = now.k / a.group, num_groups = now.num_inputs / a.group;
  int64_t scale_bytes = HALVES ? layout.num_groups * PANEL * 2 : 0;
  const uint8_t* weights = a.weight + now.panel * panel + panel_bytes(W::FORMAT, now.k);
  const uint8_t* scales = a.scales + now.panel * scale_bytes + first_group * PANEL * 2;
  const uint8_t* wanted = weights;
  bool one = order.one_stream;
  if (next.num_panels) {
    wanted = a.weight + next.panel * panel + panel_bytes(W::FORMAT, next.k);
    const uint8_t* soon = a.scales + next.panel * scale_bytes + next.k / a.group * PANEL * 2;
    for (int64_t p = 0; HALVES && !one && p < next.num_panels; p++)
      fetch_scales(soon + p * order.stride * scale_bytes, next.num_inputs / a.group);
  }
  for (int64_t p = 0; !HALVES && p < now.num_panels; p++)
    __builtin_prefetch(a.scales + (now.panel + p * order.stride) * PANEL * 4);  // wanted at the end
  bool keep = keeps_bytes<W> && !one && tiles.count > unkept_tiles();
  int64_t in_a_row = one ? now.num_panels : 1;
  int64_t ahead = one ? stream_ahead(tiles.num_rows * W::LINE_INPUTS / 4) : tile_ahead(tiles.num_rows);
  Stream fetch(weights, in_a_row * panel_bytes(W::FORMAT, now.num_inputs), wanted, stride, Stream::LINE,
               keep ? 2 * tiles.count - 1 : tiles.count, ahead);
  PieceSums sums(a, first, tiles.num_rows, now, order, pass_sums);
  for (int64_t i = 0; i < tiles.count; i++) {
    int64_t row = tiles.first(i), rows = tiles.height(i);
    QuantisedTile x(a, first, tiles, i, layout);
    sums.fetch_output(row, rows);
    bool kept_before = keep && i > 0;
    IntTile t{x.at + now.k * rows * int64_t(sizeof(typename W::Input)),
              x.scales() + first_group * rows,
              x.starts() + first_group * rows,
              kept_before ? kept : weights,
              kept_before ? KEPT_BYTES : stride,
              (const bf16*)scales,
              order.stride * scale_bytes / 2,
              num_groups,
              a.group,
              sums.of(row),
              sums.stride,
              fetch,
              i == 0,
              keep,
              kept};
    if constexpr (keeps_bytes<W>) {
      if (kept_before) int_rows<Int4Bytes>(t, rows, now.num_panels);
    }
#if LANES_LEVEL == 512
    if (one) ints_in_a_row<W>(t, rows, now.num_panels);
#endif
    if (!one && !kept_before) int_rows<W>(t, rows, now.num_panels);
    fetch = t.fetch;
    sums.finish(row, rows, [&](Lanes sum, int64_t column) {
      if (!HALVES) sum = sum * load((const float*)a.scales + column);
      return a.bias ? sum + load(a.bias + column) : sum;
    });
  }
}

template <class W>
void int_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  constexpr int64_t CACHED = 1 << 20;  // activations
  int64_t padded = padded_inputs(W::FORMAT, a.num_inputs, a.group);
  QuantisedRow layout(padded, a.group, sizeof(typename W::Input));
  int64_t num_groups = layout.num_groups;
  for (int64_t first = 0; first < num_rows; first += ROWS_PER_PASS) {
    int64_t rows = min_of(ROWS_PER_PASS, num_rows - first);
    int64_t panels = ceil_div(a.num_outputs, PANEL), bytes = panel_bytes(W::FORMAT, padded);
    bool one = ints_in_one_stream<W>(rows, panels * bytes);
    Tiles tiles(rows, one ? TALLEST : INT_ROWS);
    int64_t threads = run.pool.num_threads(), strip = strip_of(num_groups, rows, threads);
    run.pool.each(ceil_div(num_groups, strip), [&](int64_t piece, int) {
      int64_t group = piece * strip, end = min_of(num_groups, group + strip);
      for (int64_t i = 0; i < tiles.count; i++) {
        QuantisedTile x(a, first, tiles, i, layout);
        for (int64_t m = 0; m < x.num_rows; m++)
          quantise_row<W>(a, x, first + tiles.first(i) + m, m, group, end);
      }
    });
    int64_t width = int_width(int(tiles.height(tiles.count - 1)));
    int64_t pass = LANES_LEVEL == 256 ? like_pass(padded, LONG_PASS, a.group) : INT_PASS;
    Order order = one ? Order::in_a_row(panels, padded, bytes, threads)
                  : tiles.count == 1  // and nobody reads the weights once more
                      ? Order::of_streams(panels, padded, width, padded, bytes, threads)
                      : Order(panels, padded, width, pass, CACHED / rows);
    walk<PassSums>(run, order, [&](const Piece& now, const Piece& next, PassSums& sums) {
      int_piece<W>(a, first, tiles, layout, now, next, order, sums);
    });
  }
}

void linear_ints(const Run& run, const Op& op) {
  auto a = arguments_of(run, op);
  int64_t num_rows = run.step.count(op.rows);
  if (a.format == Format::INT8)
    int_linear<Int8Weights>(run, a, num_rows);
  else
    int_linear<Int4Weights>(run, a, num_rows);
  gate_outputs(run, a, num_rows);
}

#if LANES_LEVEL == TILES_BESIDE
#include "linear_tiles_body.h"

#include "linear_int_tiles_body.h"

void linear_int_tiles(const Run& run, const Op& op) {
  if (run.step.count(op.rows) < MIN_TILE_ROWS) return linear_ints(run, op);
  each_tile_pass(run, op, [&](const TileLinear& part, int64_t rows) {
    if (part.format == Format::INT8)
      int_tile_linear<Int8Weights>(run, part, rows);
    else
      int_tile_linear<Int4Tiles>(run, part, rows);
  });
}
#endif
