// Linears over floats, once per level. See `linear.h` for layout and order of summation.

// `Kept` is what the first of many tiles makes of its weights, for the others; void: nothing.
struct F32Weights : FloatInputs {
  using Kept = void;
  static constexpr Format FORMAT = Format::F32;
  static constexpr int64_t PAIR_BYTES = 128;
  static Lanes even(const uint8_t* pair) { return load((const float*)pair); }
  static Lanes odd(const uint8_t* pair) { return load((const float*)pair + 16); }
};

struct F16Weights : FloatInputs {
  using Kept = F32Weights;
  static constexpr Format FORMAT = Format::F16;
  static constexpr int64_t PAIR_BYTES = 64;
  static Lanes even(const uint8_t* pair) { return load_f16((const f16*)pair); }
  static Lanes odd(const uint8_t* pair) { return load_f16((const f16*)pair + 16); }
};

struct Bf16Weights : FloatInputs {
  using Kept = F32Weights;
  static constexpr Format FORMAT = Format::BF16;
  static constexpr int64_t PAIR_BYTES = 64;
  static Lanes even(const uint8_t* pair) { return even_bf16((const bf16*)pair); }
  static Lanes odd(const uint8_t* pair) { return odd_bf16((const bf16*)pair); }
};

#if LANES_LEVEL == 512
struct KeptPairs : InputPairs {
  using Kept = void;
  static constexpr Format FORMAT = Format::BF16;
  static constexpr int64_t PAIR_BYTES = 64;
  static Lanes even(const uint8_t* pair) { return load((const float*)pair); }
  static Lanes odd(const uint8_t* pair) { return load((const float*)(pair + PAIR_BYTES)); }
};

struct Bf16Pairs : InputPairs {
  using Kept = KeptPairs;
  static constexpr Format FORMAT = Format::BF16;
  static constexpr int64_t PAIR_BYTES = 64;
  static Lanes even(const uint8_t* pair) { return even_pairs(pair, pair + PAIR_BYTES); }
  static Lanes odd(const uint8_t* pair) { return odd_pairs(pair, pair + PAIR_BYTES); }
};
#endif

// The tallest tile, and how many panels of it are summed side by side: one chain for every row and
// panel fills the registers, and every value that is read goes into several products.
#if LANES_LEVEL == 512
constexpr int64_t FLOAT_ROWS = 8;
constexpr int float_width(int rows) { return rows <= 2 ? 4 : 3; }
#elif LANES_LEVEL == 256
constexpr int64_t FLOAT_ROWS = 6;
constexpr int float_width(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#else
constexpr int64_t FLOAT_ROWS = 4;
constexpr int float_width(int) { return 1; }
#endif

// A rectangle of the output and the inputs of one pass over it.
template <class Input>
struct FloatTile {
  const Input* x;          // [inputs of the pass / BLOCK][rows][those of a BLOCK]
  const Input* next_x;     // of the tile after it
  const uint8_t* weights;  // first panel, first input of the pass
  int64_t panel_stride;    // bytes
  int64_t num_blocks;
  float* sums;             // of the passes so far
  int64_t sums_stride;
  Fetch fetch;
  bool keep;               // write the weights as W::Kept, for the tiles after this one
  float* kept;
};

// Inputs of a piece: where weights are kept they stay in the first cache beside the activations.
constexpr int64_t FLOAT_PASS = 512, KEPT_INPUTS = 128;
constexpr int64_t UNKEPT_TILES = 2;                   // so few make their own
constexpr int64_t KEPT_STRIDE = KEPT_INPUTS * PANEL;  // of W::INPUTS each

template <class W>
constexpr bool keeps = !std::is_void_v<typename W::Kept>;

// The chains of the even inputs of block b; or those of the odd ones, with which the block is done.
// A function of its own, so that nothing but the chains asks for registers. Weights that lie in the
// first cache leave time to fetch the activations of the next tile, half a block in each chain.
template <class W, int ROWS, int PANELS, bool KEEP, bool ODD>
__attribute__((noinline)) void add_chains(FloatTile<typename W::Input>& t, int64_t b, Lanes (&even)[ROWS][PANELS]) {
  constexpr int64_t OF_ROW = BLOCK / W::INPUTS;
  Fetch fetch = t.fetch;
  auto x = t.x + b * OF_ROW * ROWS + ODD;
  auto next_x = t.next_x + (2 * b + ODD) * (OF_ROW / 2 * ROWS);
  const uint8_t* pair = t.weights + b * (BLOCK / 2 * W::PAIR_BYTES);
  float* kept = KEEP ? t.kept + (b * OF_ROW + ODD) * PANEL : nullptr;
  Lanes sums[ROWS][PANELS];
  for (int m = 0; m < ROWS; m++)
    for (int p = 0; p < PANELS; p++) sums[m][p] = zero();
  for (int i = 0; i < BLOCK / 2; i += 2) {
    fetch.step<PANELS, ROWS == 1 ? 1 : 2>();
    if constexpr (!keeps<W> && 2 * ROWS >= FLOAT_ROWS)
      __builtin_prefetch(next_x + i / W::INPUTS * ROWS);
#pragma GCC unroll 2
    for (int j = 0; j < 2; j += W::INPUTS) {
      Lanes weights[PANELS];
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) {
        const uint8_t* from = pair + p * t.panel_stride + j * W::PAIR_BYTES;
        weights[p] = ODD ? W::odd(from) : W::even(from);
        if (KEEP) store(kept + p * KEPT_STRIDE + 2 * j * PANEL, weights[p]);
      }
#pragma GCC unroll 16
      for (int m = 0; m < ROWS; m++) {
        typename W::Input value = x[m * OF_ROW + 2 * j];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) sums[m][p] = W::add(sums[m][p], value, weights[p]);
      }
    }
    x += 4 / W::INPUTS, pair += 2 * W::PAIR_BYTES;
    if (KEEP) kept += 4 / W::INPUTS * PANEL;
  }
  t.fetch = fetch;
  float* const to = t.sums;
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

#if LANES_LEVEL == 512
// Rows first..first+ROWS-1 of a tile of HEIGHT, whose weights lie in the first cache: so few rows that
// their sums and both chains stay in registers over all blocks.
template <int ROWS, int PANELS, int HEIGHT>
__attribute__((noinline)) void add_kept_blocks(FloatTile<uint32_t>& t, int first) {
  constexpr int64_t OF_ROW = BLOCK / KeptPairs::INPUTS;
  Fetch fetch = t.fetch;
  const uint32_t *x = t.x + first * OF_ROW, *next_x = t.next_x;
  const uint8_t* pair = t.weights;
  float* to = t.sums + first * t.sums_stride;
  int64_t stride = t.sums_stride, panel_stride = t.panel_stride;
  Lanes sums[ROWS][PANELS];
#pragma GCC unroll 4
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) sums[m][p] = load(to + m * stride + p * PANEL);
  for (int64_t b = 0; b < t.num_blocks; b++, x += (HEIGHT - 1) * OF_ROW) {
    Lanes chains[2][ROWS][PANELS];
    for (int odd = 0; odd < 2; odd++)
      for (int m = 0; m < ROWS; m++)
        for (int p = 0; p < PANELS; p++) chains[odd][m][p] = zero();
    for (int64_t i = 0; i < OF_ROW; i += 2, x += 2, pair += 2 * KeptPairs::PAIR_BYTES) {
      if (first < 2 * ROWS) fetch.step<PANELS>();  // what is left of a tile after two is fetched
      if (first == 0) __builtin_prefetch(next_x), next_x += HEIGHT * OF_ROW / 8;
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; odd++) {
        Lanes weights[PANELS];
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          const uint8_t* from = pair + p * panel_stride;
          weights[p] = odd ? KeptPairs::odd(from) : KeptPairs::even(from);
          asm("" : "+v"(weights[p].v));  // or gcc 12 reads it again for every row
        }
#pragma GCC unroll 4
        for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
          for (int p = 0; p < PANELS; p++)
            chains[odd][m][p] =
                KeptPairs::add(chains[odd][m][p], x[m * OF_ROW + odd], weights[p]);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++)
        sums[m][p] = sums[m][p] + (chains[0][m][p] + chains[1][m][p]);
  }
#pragma GCC unroll 4
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) store(to + m * stride + p * PANEL, sums[m][p]);
  t.fetch = fetch;
}

template <int PANELS, int HEIGHT, int FIRST = 0>
void kept_tile(FloatTile<uint32_t>& t) {
  constexpr int LEFT = HEIGHT - FIRST, ROWS = LEFT == 4 ? 2 : LEFT < 3 ? LEFT : 3;
  if constexpr (LEFT > 0) {
    add_kept_blocks<ROWS, PANELS, HEIGHT>(t, FIRST);
    kept_tile<PANELS, HEIGHT, FIRST + ROWS>(t);
  }
}
#endif

template <class W, int ROWS, int PANELS, bool KEEP>
void float_tile(FloatTile<typename W::Input>& t) {
#if LANES_LEVEL == 512
  if constexpr (std::is_same_v<W, KeptPairs>) return kept_tile<PANELS, ROWS>(t);
#endif
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
  Fetch begin = t.fetch;
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

template <class W, int ROWS = FLOAT_ROWS>
void float_rows(FloatTile<typename W::Input>& t, int64_t num_rows, int64_t num_panels) {
  if constexpr (ROWS > 1) {
    if (num_rows < ROWS) return float_rows<W, ROWS - 1>(t, num_rows, num_panels);
  }
  if constexpr (keeps<W> && 2 * ROWS >= FLOAT_ROWS) {
    if (t.keep) return float_panels<W, ROWS, true>(t, num_panels);
  }
  float_panels<W, ROWS, false>(t, num_panels);
}

// Inputs first..end-1 of some rows as the products take them: a block of each beside that of the
// next, rounded for BF16, filled up with zeros. out: [inputs / BLOCK][rows][those of a BLOCK]
template <class W>
void prepare_tile(const LinearArguments& a, int64_t row, int64_t num_rows, int64_t first,
                  int64_t end, typename W::Input* out) {
  for (int64_t m = 0; m < num_rows; m++)
    for (int64_t k = first; k < end; k += 16) {
      const float* x = a.x + (row + m) * a.num_inputs + k;
      Lanes values = k + 16 <= a.num_inputs ? load(x) : load_part(x, a.num_inputs - k, 0.0f);
      if (W::FORMAT == Format::BF16) values = nearest_bf16(values);
      W::write(values, out + (k / BLOCK * num_rows * BLOCK + m * BLOCK + k % BLOCK) / W::INPUTS);
    }
}

// One piece for rows first..first+num_rows-1. Of more than UNKEPT_TILES the first keeps its weights
// for the others.
template <class W>
void float_piece(const LinearArguments& a, int64_t first, int64_t num_rows, const Piece& now,
                 const Piece& next, const Order& order, PassSums& pass_sums) {
  using Input = typename W::Input;
  alignas(64) float kept[keeps<W> ? MOST_WIDTH * KEPT_STRIDE : 1];
  int64_t padded = order.num_inputs, stride = panel_bytes(W::FORMAT, padded);
  const uint8_t* weights = a.weight + now.panel * stride + panel_bytes(W::FORMAT, now.k);
  const uint8_t* wanted = weights;
  if (next.num_panels) wanted = a.weight + next.panel * stride + panel_bytes(W::FORMAT, next.k);
  Tiles tiles(num_rows, FLOAT_ROWS);
  bool keep = keeps<W> && tiles.count > UNKEPT_TILES;
  Fetch fetch(weights, panel_bytes(W::FORMAT, now.num_inputs), wanted, stride, W::PAIR_BYTES,
              tiles.count);
  auto x = [&](int64_t tile, int64_t k) {
    int64_t start = (first + tiles.first(tile)) * padded + k * tiles.height(tile);
    return (const Input*)a.scratch + start / W::INPUTS;
  };
  for (int64_t tile = 0; tile < tiles.count; tile++) {
    int64_t row = first + tiles.first(tile), rows = tiles.height(tile);
    TileSums sums(a, row, rows, now, order, pass_sums);
    FloatTile<Input> t{x(tile, now.k),
                       tile + 1 < tiles.count ? x(tile + 1, now.k) : x(0, next.k),
                       weights,
                       stride,
                       now.num_inputs / BLOCK,
                       sums.at,
                       sums.stride,
                       fetch,
                       keep,
                       kept};
    bool kept_before = keep && tile > 0;
    if constexpr (keeps<W>) {
      if (kept_before) {
        t.weights = (const uint8_t*)kept, t.panel_stride = KEPT_STRIDE * 4;
        float_rows<typename W::Kept>(t, rows, now.num_panels);
      }
    }
    if (!kept_before) float_rows<W>(t, rows, now.num_panels);
    fetch = t.fetch;
    sums.finish([&](Lanes sum, int64_t panel) {
      return a.bias ? sum + load(a.bias + panel * PANEL) : sum;
    });
  }
}

template <class W>
void float_linear(const Run& run, const LinearArguments& a, int64_t num_rows) {
  constexpr int64_t INPUTS_PER_STRIP = 1024, CACHED = 1 << 18;  // activations
  int64_t padded = padded_inputs(W::FORMAT, a.num_inputs, 0);
  for (int64_t first = 0; first < num_rows; first += ROWS_PER_PASS) {
    int64_t rows = min_of(ROWS_PER_PASS, num_rows - first);
    Tiles tiles(rows, FLOAT_ROWS);
    int64_t strip = rows == 1 ? padded : INPUTS_PER_STRIP, strips = ceil_div(padded, strip);
    run.pool.each(tiles.count * strips, [&](int64_t piece, int) {
      int64_t row = first + tiles.first(piece / strips), k = piece % strips * strip;
      prepare_tile<W>(a, row, tiles.height(piece / strips), k, min_of(padded, k + strip),
                      (typename W::Input*)a.scratch + row * padded / W::INPUTS);
    });
    int64_t width = float_width(int(tiles.height(tiles.count - 1)));
    int64_t pass = tiles.count <= UNKEPT_TILES ? FLOAT_PASS : KEPT_INPUTS * W::INPUTS;
    Order order(ceil_div(a.num_outputs, PANEL), padded, width, pass, CACHED / rows);
    walk<PassSums>(run, order, [&](const Piece& now, const Piece& next, PassSums& sums) {
      float_piece<W>(a, first, rows, now, next, order, sums);
    });
  }
}
