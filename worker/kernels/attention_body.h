// Paged attention, once per level. See `attention.h` for the order of operations.

// A cache of float32: a pair of inputs of sixteen keys is two lines.
struct FloatCache {
  using Item = float;
  static constexpr int64_t LINES = 2;
  static Lanes even(const uint32_t* pair) { return load((const float*)pair); }
  static Lanes odd(const uint32_t* pair) { return load((const float*)pair + 16); }
  static Lanes value(const float* p) { return load(p); }
  static Lanes value_part(const float* p, int64_t n) { return load_part(p, n, 0.0f); }
  static Lanes rounded(Lanes a) { return a; }
};

// A cache of bfloat16: a pair is one line of words.
struct Bf16Cache {
  using Item = bf16;
  static constexpr int64_t LINES = 1;
  static Lanes even(const uint32_t* pair) { return even_bf16((const bf16*)pair); }
  static Lanes odd(const uint32_t* pair) { return odd_bf16((const bf16*)pair); }
  static Lanes value(const bf16* p) { return load_bf16(p); }
  static Lanes value_part(const bf16* p, int64_t n) {
    bf16 v[16] = {};
    memcpy(v, p, size_t(n) * 2);
    return load_bf16(v);
  }
  static Lanes rounded(Lanes a) {
    bf16 v[16];
    store_bf16(v, a);
    return load_bf16(v);
  }
};

// out[w][r] = rows[r][w] for sixteen rows of sixteen words.
inline void turn_words(const uint32_t* const* rows, int64_t start, uint32_t* out) {
#if LANES_LEVEL == 512
  __m512i a[16], b[16];
  for (int r = 0; r < 16; r++) a[r] = _mm512_loadu_si512(rows[r] + start);
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
  for (int r = 0; r < 16; r += 4)
    for (int i = 0; i < 2; i++) {
      a[r + 2 * i] = _mm512_unpacklo_epi64(b[r + i], b[r + i + 2]);
      a[r + 2 * i + 1] = _mm512_unpackhi_epi64(b[r + i], b[r + i + 2]);
    }
  for (int i = 0; i < 4; i++) {
    __m512i low = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
    __m512i high = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    __m512i low2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    __m512i high2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    _mm512_storeu_si512(out + i * 16, _mm512_shuffle_i32x4(low, low2, 0x88));
    _mm512_storeu_si512(out + (i + 4) * 16, _mm512_shuffle_i32x4(high, high2, 0x88));
    _mm512_storeu_si512(out + (i + 8) * 16, _mm512_shuffle_i32x4(low, low2, 0xdd));
    _mm512_storeu_si512(out + (i + 12) * 16, _mm512_shuffle_i32x4(high, high2, 0xdd));
  }
#elif LANES_LEVEL == 256
  for (int half = 0; half < 2; half++)
    for (int side = 0; side < 2; side++) {
      __m256i a[8], b[8];
      for (int r = 0; r < 8; r++)
        a[r] = _mm256_loadu_si256((const __m256i*)(rows[half * 8 + r] + start + side * 8));
      for (int r = 0; r < 8; r += 2) {
        b[r] = _mm256_unpacklo_epi32(a[r], a[r + 1]);
        b[r + 1] = _mm256_unpackhi_epi32(a[r], a[r + 1]);
      }
      for (int r = 0; r < 8; r += 4)
        for (int i = 0; i < 2; i++) {
          a[r + 2 * i] = _mm256_unpacklo_epi64(b[r + i], b[r + i + 2]);
          a[r + 2 * i + 1] = _mm256_unpackhi_epi64(b[r + i], b[r + i + 2]);
        }
      for (int i = 0; i < 4; i++) {
        uint32_t* line = out + (side * 8 + i) * 16 + half * 8;
        _mm256_storeu_si256((__m256i*)line, _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
        _mm256_storeu_si256((__m256i*)(line + 64),
                            _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
      }
    }
#else
  for (int w = 0; w < 16; w++)
    for (int r = 0; r < 16; r++) out[w * 16 + r] = rows[r][start + w];
#endif
}

// The keys of one group as lines of sixteen lanes; inputs past the head's end, and keys that no row
// sees, are zero.
template <class C>
void turn_keys(const SplitCells& cells, int64_t group, int64_t head_dim, uint32_t* panel) {
  alignas(64) static const uint32_t zeros[MAX_HEAD_DIM] = {};
  int64_t words = head_dim * int64_t(sizeof(typename C::Item)) / 4;
  int64_t unit = 16 * C::LINES, padded = ceil_div(words, unit) * unit;
  const uint32_t* rows[GROUP];
  for (int64_t r = 0; r < GROUP; r++) {
    int64_t j = group * GROUP + r;
    bool seen = j >= cells.begin && j < cells.end;
    rows[r] = seen ? (const uint32_t*)cells.keys[j] : zeros;
  }
  int64_t w = 0;
  for (; w + 16 <= words; w += 16) turn_words(rows, w, panel + w * 16);
  for (; w < padded; w += 16) {
    alignas(64) uint32_t tail[GROUP][16] = {};
    const uint32_t* tails[GROUP];
    for (int64_t r = 0; r < GROUP; r++) {
      if (w < words) memcpy(tail[r], rows[r] + w, size_t(words - w) * 4);
      tails[r] = tail[r];
    }
    turn_words(tails, 0, panel + w * 16);
  }
}

// Ask for the part of a cell that is to be read soon: a few lines between the products, so that
// memory and arithmetic work at the same time.
template <class C>
void ask_for(const uint8_t* cell, int64_t part) {
  for (int64_t line = 0; line < C::LINES; line++)
    __builtin_prefetch(cell + (part * C::LINES + line) * 64);
}

// scores[m][lane] = q[m] · key of the lane; `blocks` runs of 32 inputs. `ahead`: a group of cells
// that are read next, or null.
template <class C, int ROWS>
void score_rows(const float* q, const uint32_t* panel, int64_t blocks,
                const uint8_t* const* ahead, float* scores) {
  Lanes sums[ROWS];
  for (int m = 0; m < ROWS; m++) sums[m] = zero();
  for (int64_t b = 0; b < blocks; b++) {
    Lanes even[ROWS], odd[ROWS];
    for (int m = 0; m < ROWS; m++) even[m] = odd[m] = zero();
#pragma GCC unroll 4
    for (int i = 0; i < 16; i++) {
      const uint32_t* pair = panel + (b * 16 + i) * C::LINES * 16;
      Lanes x = C::even(pair), y = C::odd(pair);
      if (ahead) ask_for<C>(ahead[i], b);
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; m++) {
        const float* inputs = q + m * MAX_HEAD_DIM + b * 32 + 2 * i;
        even[m] = fma(splat(inputs[0]), x, even[m]);
        odd[m] = fma(splat(inputs[1]), y, odd[m]);
      }
    }
    for (int m = 0; m < ROWS; m++) sums[m] = sums[m] + (even[m] + odd[m]);
  }
  for (int m = 0; m < ROWS; m++) store(scores + m * SPLIT, sums[m]);
}

// Sixteen values of a cell from `k` on, of which `n` are the head's.
template <class C>
Lanes value_lanes(const uint8_t* cell, int64_t k, int64_t n) {
  auto p = (const typename C::Item*)cell + k;
  return n >= 16 ? C::value(p) : C::value_part(p, n);
}

// out[m] += weights[m] · values, over one run of 32 keys, of which keys `from` .. `to` count.
// `ahead`: a run of cells that are read next, or null.
template <class C, int ROWS>
void weigh_rows(const uint8_t* const* values, int64_t from, int64_t to, const float* weights,
                int64_t head_dim, const uint8_t* const* ahead, float* out) {
  for (int64_t k = 0; k < head_dim; k += 16) {
    Lanes even[ROWS], odd[ROWS];
    for (int m = 0; m < ROWS; m++) even[m] = odd[m] = zero();
    int64_t n = head_dim - k;
    auto take = [&](int64_t j, Lanes v, Lanes* chain) {
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; m++) chain[m] = fma(splat(weights[m * SPLIT + j]), v, chain[m]);
    };
    if (from == 0 && to == PAIR_RUN && n >= 16) {
#pragma GCC unroll 2
      for (int64_t j = 0; j < PAIR_RUN; j += 2) {
        if (ahead) ask_for<C>(ahead[j + k / 16 % 2], k / 32);
        take(j, C::value((const typename C::Item*)values[j] + k), even);
        take(j + 1, C::value((const typename C::Item*)values[j + 1] + k), odd);
      }
    } else {
      for (int64_t j = from; j < to; j++)
        take(j, value_lanes<C>(values[j], k, n), j % 2 ? odd : even);
    }
    for (int m = 0; m < ROWS; m++) {
      float* sum = out + m * MAX_HEAD_DIM + k;
      store(sum, load(sum) + (even[m] + odd[m]));
    }
  }
}

#if LANES_LEVEL == 512
constexpr int MOST_ROWS = 8;
#else
constexpr int MOST_ROWS = 2;
#endif

// Call one(rows, first) for runs of rows that a kernel takes at once: a constant and a place.
template <int ROWS, class One>
void in_runs(int64_t first, int64_t stop, One&& one) {
  for (; first + ROWS <= stop; first += ROWS) one(std::integral_constant<int, ROWS>(), first);
  if constexpr (ROWS > 1) in_runs<ROWS - 1>(first, stop, one);
}

// The products of a tile's rows with the vectors of the level.
template <class C>
class VectorProducts {
 public:
  VectorProducts(const float (*q)[MAX_HEAD_DIM], int64_t num_rows, int64_t head_dim)
      : q_(q), num_rows_(num_rows), head_dim_(head_dim) {}

  // scores[row][lane] of one group of keys.
  void score(const uint32_t* panel, const uint8_t* const* ahead, float* scores) {
    in_runs<MOST_ROWS>(0, num_rows_, [&](auto count, int64_t r) {
      score_rows<C, count.value>(q_[r], panel, ceil_div(head_dim_, 32), r ? nullptr : ahead,
                                 scores + r * SPLIT);
    });
  }

  // Add one run of keys to rows `first` .. `stop`; those that see the same keys of it together.
  void weigh(const uint8_t* const* values, const RunOfKeys& run, int64_t first, int64_t stop,
             const float (*weights)[SPLIT], const uint8_t* const* ahead, Partial* out) {
    for (int64_t r = first, next; r < stop; r = next) {
      int64_t begin = run.begin(r), end = run.end(r);
      for (next = r + 1; next < stop && run.begin(next) == begin && run.end(next) == end;) next++;
      if (begin >= end) continue;
      in_runs<MOST_ROWS>(r, next, [&](auto count, int64_t m) {
        weigh_rows<C, count.value>(values, begin, end, weights[m] + run.first, head_dim_,
                                   m ? nullptr : ahead, out->values[m]);
      });
    }
  }

 private:
  const float (*q_)[MAX_HEAD_DIM];
  int64_t num_rows_, head_dim_;
};

// The weights of one row over its keys `from` .. `to` of the split: scores become e^(score - max).
template <class C>
void weights_of(float* scores, int64_t from, int64_t to, float* maximum, float* total) {
  float nothing = -__builtin_inff();
  int64_t start = from / GROUP * GROUP, stop = ceil_div(to, GROUP) * GROUP;
  for (int64_t j = start; j < from; j++) scores[j] = nothing;
  for (int64_t j = to; j < stop; j++) scores[j] = nothing;
  Lanes most = splat(nothing);
  for (int64_t j = start; j < stop; j += GROUP) most = larger(load(scores + j), most);
  *maximum = largest(most);
  Lanes sums = zero(), top = splat(*maximum);
  for (int64_t j = start; j < stop; j += GROUP) {
    Lanes weight = C::rounded(exponential(load(scores + j) - top));
    store(scores + j, weight);
    sums = sums + weight;
  }
  *total = sum(sums);
}

template <class C, class Products = VectorProducts<C>>
struct Attention {
  RowMap rows;

  // Queries of a tile, scaled, and as the products take them.
  void read_queries(const RowTile& tile, float (*q)[MAX_HEAD_DIM]) const {
    int64_t head_dim = rows.a.head_dim;
    Lanes scale = splat(float(1.0 / __builtin_sqrt(double(head_dim))));
    for (int64_t r = 0; r < tile.num_rows; r++) {
      const float* source =
          rows.a.q + (rows.token(tile, r) * rows.a.num_heads + rows.head(tile, r)) * head_dim;
      for (int64_t k = 0; k < MAX_HEAD_DIM; k += 16) {
        int64_t n = head_dim - k;
        Lanes x = n >= 16 ? load(source + k) : n > 0 ? load_part(source + k, n, 0.0f) : zero();
        store(q[r] + k, C::rounded(x * scale));
        if (n <= 16 && k % 32 == 16) break;
      }
    }
  }

  // One split of a tile.
  void compute(const RowTile& tile, int64_t split, const float (*q)[MAX_HEAD_DIM],
               Partial* out) const {
    SplitCells cells;
    find_cells(rows, tile, split, sizeof(typename C::Item), &cells);
    int64_t head_dim = rows.a.head_dim, num_rows = tile.num_rows;
    alignas(64) float scores[TILE_ROWS][SPLIT];
    alignas(64) uint32_t panel[MAX_HEAD_DIM * GROUP];
    Products products(q, num_rows, head_dim);
    for (int64_t g = cells.begin / GROUP; g * GROUP < cells.end; g++) {
      turn_keys<C>(cells, g, head_dim, panel);
      products.score(panel, cells.after_group(g), scores[0] + g * GROUP);
    }
    RunOfKeys run;
    int64_t first = split * SPLIT;
    for (int64_t r = 0; r < num_rows; r++) {
      int64_t from = run.from[r] = max_of(0, rows.begin(tile, r) - first);
      int64_t to = run.to[r] = min_of(SPLIT, rows.end(tile, r) - first);
      out->maximum[r] = -__builtin_inff();
      out->sum[r] = 0.0f;
      if (from < to) weights_of<C>(scores[r], from, to, &out->maximum[r], &out->sum[r]);
      memset(out->values[r], 0, size_t(ceil_div(head_dim, 16)) * 64);
    }
    for (int64_t j = cells.begin / PAIR_RUN * PAIR_RUN; j < cells.end; j += PAIR_RUN) {
      run.first = j;
      products.weigh(cells.values + j, run, 0, num_rows, scores, cells.after_run(j), out);
    }
  }

  void clear(const RowTile& tile, Partial* all) const {
    for (int64_t r = 0; r < tile.num_rows; r++) {
      all->maximum[r] = -__builtin_inff();
      all->sum[r] = 0.0f;
      memset(all->values[r], 0, size_t(ceil_div(rows.a.head_dim, 16)) * 64);
    }
  }

  // all += split, rows that see nothing of it apart.
  void join(const RowTile& tile, int64_t split, const Partial& part, Partial* all) const {
    for (int64_t r = 0; r < tile.num_rows; r++) {
      if (rows.begin(tile, r) >= (split + 1) * SPLIT || rows.end(tile, r) <= split * SPLIT) continue;
      float top = largest_of(all->maximum[r], part.maximum[r]);
      Lanes fade = exponential(splat(all->maximum[r] - top));
      Lanes grow = exponential(splat(part.maximum[r] - top));
      all->maximum[r] = top;
      float sums[16];
      store(sums, splat(all->sum[r]) * fade + splat(part.sum[r]) * grow);
      all->sum[r] = sums[0];
      for (int64_t k = 0; k < rows.a.head_dim; k += 16)
        store(all->values[r] + k, load(all->values[r] + k) * fade + load(part.values[r] + k) * grow);
    }
  }

  static float largest_of(float a, float b) { return a > b ? a : b; }

  void write(const RowTile& tile, const Partial& all) const {
    int64_t head_dim = rows.a.head_dim;
    for (int64_t r = 0; r < tile.num_rows; r++) {
      float* out =
          rows.a.out + (rows.token(tile, r) * rows.a.num_heads + rows.head(tile, r)) * head_dim;
      for (int64_t k = 0; k < head_dim; k += 16) {
        Lanes value = load(all.values[r] + k) / splat(all.sum[r]);
        head_dim - k >= 16 ? store(out + k, value) : store_part(out + k, value, head_dim - k);
      }
    }
  }

  // A whole tile in one thread.
  void tile_alone(const RowTile& tile) const {
    alignas(64) float q[TILE_ROWS][MAX_HEAD_DIM];
    alignas(64) Partial part, all;
    read_queries(tile, q);
    clear(tile, &all);
    for (int64_t s = tile.first_split; s < tile.first_split + tile.num_splits; s++) {
      compute(tile, s, q, &part);
      join(tile, s, part, &all);
    }
    write(tile, all);
  }

  // A long tile, its splits shared out.
  void tile_shared(Pool& pool, const RowTile& tile) const {
    alignas(64) float q[TILE_ROWS][MAX_HEAD_DIM];
    Partial* parts = (Partial*)rows.a.scratch;
    Partial* all = parts + SHARED_SPLITS;
    read_queries(tile, q);
    clear(tile, all);
    int64_t stop = tile.first_split + tile.num_splits;
    for (int64_t first = tile.first_split; first < stop; first += SHARED_SPLITS) {
      int64_t count = min_of(SHARED_SPLITS, stop - first);
      pool.each(count, [&](int64_t i, int) { compute(tile, first + i, q, parts + i); });
      for (int64_t i = 0; i < count; i++) join(tile, first + i, parts[i], all);
    }
    write(tile, *all);
  }

  // A tile that alone would keep a thread busy past the others' end is shared, the rest are not.
  void run(Pool& pool) const {
    int64_t count = rows.count(), total = 0;
    for (int64_t i = 0; i < count; i++) total += rows.tile(i).num_splits;
    int64_t limit = max_of(1, total / (4 * pool.num_threads()));
    if (pool.num_threads() == 1) limit = total;
    pool.each(count, [&](int64_t i, int) {
      RowTile tile = rows.tile(i);
      if (tile.num_splits <= limit) tile_alone(tile);
    });
    for (int64_t i = 0; i < count; i++) {
      RowTile tile = rows.tile(i);
      if (tile.num_splits > limit) tile_shared(pool, tile);
    }
  }
};

void attention(const Run& run, const Op& op) {
  auto a = op.as<AttentionArguments>();
  a.cache_format == Format::F32 ? Attention<FloatCache>{RowMap(a, run.step)}.run(run.pool)
                                : Attention<Bf16Cache>{RowMap(a, run.step)}.run(run.pool);
}

#if LANES_LEVEL == TILES_BESIDE
#include "attention_tiles_body.h"
#endif
