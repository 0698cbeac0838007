// Paged attention, once per level. See `attention.h` for the order of operations.
#include "attention_cells_body.h"
#include "attention_products_body.h"

// The weights of one row over its keys `from` .. `to` of the split: scores become e^(score - max).
template <class C>
void weights_of(float* scores, int64_t from, int64_t to, Ahead* ahead, float* maximum,
                float* total) {
  float nothing = -__builtin_inff();
  int64_t start = from / GROUP * GROUP, stop = ceil_div(to, GROUP) * GROUP;
  for (int64_t j = start; j < from; j++) scores[j] = nothing;
  for (int64_t j = to; j < stop; j++) scores[j] = nothing;
  Lanes most = splat(nothing);
  for (int64_t j = start; j < stop; j += GROUP) most = larger(load(scores + j), most);
  *maximum = largest(most);
  Lanes sums = zero(), top = splat(*maximum);
  for (int64_t j = start; j < stop; j += GROUP) {
    ahead->ask(C::LINES);
    Lanes weight = C::rounded(exponential_of_negative(load(scores + j) - top));
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

  // The keys of one or two groups, as a page holds them.
  void read_keys(const SplitCells& cells, int64_t group, int64_t count, uint32_t* turned,
                 const uint32_t** panels) const {
    for (int64_t i = 0; i < count; i++) {
      panels[i] = (const uint32_t*)cells.keys[group + i];
      if (rows.step.block_size == GROUP) continue;
      uint32_t* panel = turned + i * MAX_HEAD_DIM * GROUP;
      turn_keys<C>(cells, group + i, rows.a.head_dim, panel);
      panels[i] = panel;
    }
  }

  // One split of a tile. `is_first`: nobody has asked for its keys yet.
  void compute(const RowTile& tile, int64_t split, bool is_first, const float (*q)[MAX_HEAD_DIM],
               Partial* out) const {
    SplitCells cells;
    find_cells(rows, tile, split, sizeof(typename C::Item), &cells);
    Ahead now = cells.ahead(cells.keys);
    while (is_first && now.next < now.end) now.ask(1);
    int64_t head_dim = rows.a.head_dim, num_rows = tile.num_rows;
    alignas(64) float scores[TILE_ROWS][SPLIT];
    alignas(64) uint32_t turned[2 * MAX_HEAD_DIM * GROUP];
    const uint32_t* panels[2];
    Products products(q, num_rows, head_dim);
    Ahead values = cells.ahead(cells.value_parts), keys = cells.ahead(cells.next_keys);
    for (int64_t g = cells.begin / GROUP, stop = ceil_div(cells.end, GROUP); g < stop; g += 2) {
      int64_t count = min_of(2, stop - g);
      read_keys(cells, g, count, turned, panels);
      products.score(panels, count, &values, scores[0] + g * GROUP);
    }
    RunOfKeys run;
    int64_t first = split * SPLIT;
    for (int64_t r = 0; r < num_rows; r++) {
      int64_t from = run.from[r] = max_of(0, rows.begin(tile, r) - first);
      int64_t to = run.to[r] = min_of(SPLIT, rows.end(tile, r) - first);
      out->maximum[r] = -__builtin_inff();
      out->sum[r] = 0.0f;
      if (from < to) weights_of<C>(scores[r], from, to, &keys, &out->maximum[r], &out->sum[r]);
      memset(out->values[r], 0, size_t(ceil_div(head_dim, 16)) * 64);
    }
    for (int64_t j = cells.begin / PAIR_RUN * PAIR_RUN; j < cells.end; j += PAIR_RUN) {
      run.first = j;
      products.weigh(cells.values + j, run, 0, num_rows, scores, &keys, out);
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
      compute(tile, s, s == tile.first_split, q, &part);
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
      int64_t run = max_of(1, count / (4 * pool.num_threads()));  // of splits, read one by one
      pool.each(ceil_div(count, run), [&](int64_t piece, int) {
        for (int64_t i = piece * run; i < min_of(count, (piece + 1) * run); i++)
          compute(tile, first + i, i == piece * run, q, parts + i);
      });
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
