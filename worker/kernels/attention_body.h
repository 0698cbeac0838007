// Paged attention, once per level. See `attention.h` for the order of operations.
#include "attention_ahead_body.h"
#include "pair_lanes.h"

#include "attention_cells_body.h"
#include "attention_products_body.h"

// The largest score of one row over its keys `from` .. `to` of the split. Scores beside these, of the
// same groups, become -inf.
inline float largest_score(float* scores, int64_t from, int64_t to) {
  float nothing = -__builtin_inff();
  int64_t start = from / GROUP * GROUP, stop = ceil_div(to, GROUP) * GROUP;
  for (int64_t j = start; j < from; j++) scores[j] = nothing;
  for (int64_t j = to; j < stop; j++) scores[j] = nothing;
  Lanes most = splat(nothing);
  for (int64_t j = start; j < stop; j += GROUP) most = larger(load(scores + j), most);
  return largest(most);
}

// The scores of all rows become e^(score - maximum), whose sums are found too.
template <class C>
__attribute__((noinline)) void make_weights(float (*scores)[SPLIT], const RunOfKeys& run,
                                            int64_t num_rows, Ahead* ahead, Partial* out) {
  Ahead soon = *ahead;
  for (int64_t r = 0; r < num_rows; r++) {
    Lanes sums = zero(), top = splat(out->maximum[r]);
    for (int64_t j = run.from[r] / GROUP * GROUP; j < run.to[r]; j += GROUP) {
      soon.step<1>();
      Lanes weight = C::rounded(exponential_of_negative(load(scores[r] + j) - top));
      store(scores[r] + j, weight);
      sums = sums + weight;
    }
    out->sum[r] = sum(sums);
  }
  *ahead = soon;
}

template <class C, class Products = VectorProducts<C>>
struct Attention {
  RowMap rows;
  bool past_caches;  // where results go

  // One key head of a tile: its queries, what a split comes to, and all of them.
  struct Head {
    RowTile tile;
    Queries queries;
    Products products;
    RunOfKeys run;
    alignas(64) float scores[TILE_ROWS][SPLIT];
    alignas(64) Partial part, all;
    Partial* out = &part;  // of a split

    Head(const Attention& a, const RowTile& of_tile)
        : tile(of_tile),
          products((a.read_queries(tile, &queries), queries.q), tile.num_rows, a.rows.a.head_dim) {}
  };

  void see(const RowTile& tile, Seen* out) const {
    for (int64_t r = 0; r < tile.num_rows; r++)
      out->begin[r] = rows.begin(tile, r), out->end[r] = rows.end(tile, r);
  }

  void read_queries(const RowTile& tile, Queries* out) const {
    see(tile, out);
    int64_t head_dim = rows.a.head_dim;
    Lanes scale = splat(float(1.0 / __builtin_sqrt(double(head_dim))));
    for (int64_t r = 0; r < tile.num_rows; r++) {
      const float* source =
          rows.a.q + (rows.token(tile, r) * rows.a.num_heads + rows.head(tile, r)) * head_dim;
      for (int64_t k = 0; k < MAX_HEAD_DIM; k += 16) {
        int64_t n = head_dim - k;
        Lanes x = n >= 16 ? load(source + k) : n > 0 ? load_part(source + k, n, 0.0f) : zero();
        store(out->q[r] + k, C::rounded(x * scale));
        if (n <= 16 && k % 32 == 16) break;
      }
    }
  }

  // The keys of one or two groups, as a page holds them.
  void read_keys(const SplitCells& cells, int64_t head, int64_t group, int64_t count,
                 uint32_t* turned, const uint32_t** panels) const {
    for (int64_t i = 0; i < count; i++) {
      panels[i] = (const uint32_t*)(cells.keys[group + i] + head * cells.head_bytes);
      if (rows.step.block_size == GROUP) continue;
      uint32_t* panel = turned + i * MAX_HEAD_DIM * GROUP;
      turn_keys<C>(cells, head, group + i, rows.a.head_dim, panel);
      panels[i] = panel;
    }
  }

  // One split of a tile. Its heads take turns at each run, because their parts lie side by side.
  void compute(const SplitCells& cells, Head* const* heads, int64_t num_heads,
               Lookahead* soon) const {
    Ahead* ahead = &soon->ahead;
    alignas(64) uint32_t turned[2 * MAX_HEAD_DIM * GROUP];
    const uint32_t* panels[2];
    for (int64_t g = cells.begin / GROUP, stop = ceil_div(cells.end, GROUP); g < stop; g += 2) {
      int64_t count = min_of(2, stop - g);
      soon->turn_at_keys(g * GROUP);
      for (int64_t h = 0; h < num_heads; h++) {
        read_keys(cells, h, g, count, turned, panels);
        heads[h]->products.score(panels, count, ahead, heads[h]->scores[0] + g * GROUP);
      }
    }
    soon->turn_at_weights();
    for (int64_t h = 0; h < num_heads; h++) weights_of(cells, heads[h], ahead);
    for (int64_t j = cells.first_run(); j < cells.end; j += PAIR_RUN) {
      soon->turn_at_values(j);
      for (int64_t h = 0; h < num_heads; h++) {
        const uint8_t* values[PAIR_RUN];
        cells.values_of(h, j, values);
        Head& one = *heads[h];
        one.run.first = j;
        one.products.weigh(values, one.run, 0, one.tile.num_rows, one.scores, ahead, one.out);
      }
    }
  }

  // The scores of a split become weights, and its sums of values begin.
  void weights_of(const SplitCells& cells, Head* one, Ahead* ahead) const {
    int64_t first = cells.split * SPLIT;
    for (int64_t r = 0; r < one->tile.num_rows; r++) {
      int64_t from = one->run.from[r] = min_of(SPLIT, max_of(0, one->queries.begin[r] - first));
      int64_t to = one->run.to[r] = min_of(SPLIT, one->queries.end[r] - first);
      one->out->maximum[r] = largest_score(one->scores[r], from, max_of(from, to));
      memset(one->out->values[r], 0, size_t(ceil_div(rows.a.head_dim, 16)) * 64);
    }
    make_weights<C>(one->scores, one->run, one->tile.num_rows, ahead, one->out);
  }

  void clear(const RowTile& tile, Partial* all) const {
    for (int64_t r = 0; r < tile.num_rows; r++) {
      all->maximum[r] = -__builtin_inff();
      all->sum[r] = 0.0f;
      memset(all->values[r], 0, size_t(ceil_div(rows.a.head_dim, 16)) * 64);
    }
  }

  // all += split, rows that see nothing of it apart.
  void join(const Seen& seen, int64_t num_rows, int64_t split, const Partial& part, Ahead* ahead,
            Partial* all) const {
    alignas(64) float top[TILE_ROWS], sums[TILE_ROWS], fades[TILE_ROWS], grows[TILE_ROWS];
    for (int64_t r = 0; r < num_rows; r += 16) {
      Lanes before = load(all->maximum + r), here = load(part.maximum + r);
      Lanes most = larger(before, here);
      Lanes fade = exponential(before - most), grow = exponential(here - most);
      store(top + r, most), store(fades + r, fade), store(grows + r, grow);
      store(sums + r, load(all->sum + r) * fade + load(part.sum + r) * grow);
    }
    for (int64_t r = 0; r < num_rows; r++) {
      if (seen.begin[r] >= (split + 1) * SPLIT || seen.end[r] <= split * SPLIT) continue;
      all->maximum[r] = top[r], all->sum[r] = sums[r];
      Lanes fade = splat(fades[r]), grow = splat(grows[r]);
      for (int64_t k = 0; k < rows.a.head_dim; k += 16) {
        ahead->step<2>();
        store(all->values[r] + k, load(all->values[r] + k) * fade + load(part.values[r] + k) * grow);
      }
    }
  }

  void write(const RowTile& tile, const Partial& all) const {
    int64_t head_dim = rows.a.head_dim;
    for (int64_t r = 0; r < tile.num_rows; r++) {
      float* out =
          rows.a.out + (rows.token(tile, r) * rows.a.num_heads + rows.head(tile, r)) * head_dim;
      for (int64_t k = 0; k < head_dim; k += 16) {
        Lanes value = load(all.values[r] + k) / splat(all.sum[r]);
        if (past_caches)
          store_past_caches(out + k, value);
        else
          head_dim - k >= 16 ? store(out + k, value) : store_part(out + k, value, head_dim - k);
      }
    }
  }

  // Call `then` once the heads of a tile have begun, each in the frame of a call of its own: in one
  // frame there would be room for more of them than a small stack has.
  template <class Then>
  __attribute__((noinline)) void with_heads(const RowTile& tile, int64_t begun, Head** heads,
                                            Then&& then) const {
    if (begun == tile.num_heads) return then();
    Head one(*this, tile.of_head(begun));
    heads[begun] = &one;
    with_heads(tile, begun + 1, heads, then);
  }

  // A whole tile in one thread. `next`: as in Lookahead.
  template <class Next>
  void tile_alone(Place place, Lookahead* soon, Next&& next) const {
    RowTile tile = place.tile;
    Head* heads[MOST_HEADS];
    with_heads(tile, 0, heads, [&] {
      for (int64_t h = 0; h < tile.num_heads; h++) clear(tile, &heads[h]->all);
      for (int64_t i = 0; i < tile.num_splits; i++, place.split++) {
        compute(soon->reach(place, next), heads, tile.num_heads, soon);
        for (int64_t h = 0; h < tile.num_heads; h++)
          join(heads[h]->queries, tile.num_rows, place.split, heads[h]->part, &soon->ahead,
               &heads[h]->all);
      }
      for (int64_t h = 0; h < tile.num_heads; h++) write(heads[h]->tile, heads[h]->all);
    });
  }

  // The tiles of a thread's run that have at most `limit` splits.
  void tiles_alone(Shares* shares, int64_t own, int64_t limit) const {
    Lookahead soon(rows, sizeof(typename C::Item));
    auto next = [&](Place& at) {
      if (at.split + 1 < at.tile.first_split + at.tile.num_splits) return at.split++, true;
      if (!shares->has(own, at.number + 1)) return false;
      at.number++, at.tile = rows.after(at.tile), at.split = at.tile.first_split;
      return at.tile.work() <= limit;
    };
    Place place{.number = -2};  // of no tile, and before none
    for (Piece p = shares->take(own, 1); p.num_panels > 0; p = shares->take(own, 1)) {
      place.tile = p.panel == place.number + 1 ? rows.after(place.tile) : rows.tile(p.panel);
      place.number = p.panel, place.split = place.tile.first_split;
      if (place.tile.work() <= limit) tile_alone(place, &soon, next);
    }
  }

  // Some splits of a long tile, shared out; each leaves a part for each head.
  void splits_shared(Pool& pool, const RowTile& tile, int64_t first, int64_t count,
                     Partial* parts) const {
    int64_t threads = threads_of(pool, count);
    Shares shares(count, threads);
    pool.each(threads, [&](int64_t own, int) {
      Lookahead soon(rows, sizeof(typename C::Item));
      auto next = [&](Place& at) {
        if (!shares.has(own, at.number + 1)) return false;
        return at.number++, at.split++, true;
      };
      Head* heads[MOST_HEADS];
      with_heads(tile, 0, heads, [&] {
        for (Piece p = shares.take(own, 1); p.num_panels > 0; p = shares.take(own, 1)) {
          for (int64_t h = 0; h < tile.num_heads; h++)
            heads[h]->out = parts + p.panel * tile.num_heads + h;
          compute(soon.reach({p.panel, first + p.panel, tile}, next), heads, tile.num_heads, &soon);
        }
      });
    });
  }

  // A long tile.
  void tile_shared(Pool& pool, const RowTile& tile) const {
    Partial* parts = (Partial*)rows.a.scratch;
    Partial* all = parts + SHARED_SPLITS;
    Seen seen;
    see(tile, &seen);
    for (int64_t h = 0; h < tile.num_heads; h++) clear(tile, all + h);
    int64_t most = SHARED_SPLITS / tile.num_heads, stop = tile.first_split + tile.num_splits;
    for (int64_t first = tile.first_split; first < stop; first += most) {
      int64_t count = min_of(most, stop - first);
      splits_shared(pool, tile, first, count, parts);
      pool.each(tile.num_heads, [&](int64_t h, int) {
        Ahead nothing;
        for (int64_t i = 0; i < count; i++)
          join(seen, tile.num_rows, first + i, parts[i * tile.num_heads + h], &nothing, all + h);
        if (first + count == stop) write(tile.of_head(h), all[h]);
      });
    }
  }

  static int64_t threads_of(Pool& pool, int64_t count) {
    return min_of(count, min_of(Shares::MOST, pool.num_threads()));
  }

  // A tile that alone would keep a thread busy past the others' end is shared, the rest are not. Where
  // every thread has as much to do as any other sharing only costs: a tile has as many heads as leave
  // it so. Where only one head would, or nothing does, long tiles keep theirs and are shared.
  void run(Pool& pool) {
    Load load = load_with(pool, HEADS_OF_A_TILE), shared = load;
    int64_t most = rows.most_heads;
    while (rows.most_heads > 1 && !load.is_even) load = load_with(pool, rows.most_heads / 2);
    if (rows.most_heads == 1 && most > 1 && shared.longest >= LONG_TILE) load = load_with(pool, most);
    int64_t limit = load.is_even ? load.total : max_of(1, load.total / (4 * pool.num_threads()));
    int64_t count = rows.count(), threads = threads_of(pool, count);
    Shares shares(count, threads);
    pool.each(threads, [&](int64_t own, int) { tiles_alone(&shares, own, limit); });
    each_tile(count, [&](const RowTile& tile, int64_t) {
      if (tile.work() > limit) tile_shared(pool, tile);
    });
  }

  // Splits of all tiles, and whether each thread has as many.
  struct Load {
    int64_t total, longest;
    bool is_even;
  };
  Load load_with(Pool& pool, int64_t most_heads) {
    rows.limit_heads(most_heads);
    int64_t count = rows.count(), threads = threads_of(pool, count);
    int64_t total = 0, longest = 0, busiest = 0, run = 0, own = 0;
    each_tile(count, [&](const RowTile& tile, int64_t number) {
      if (number == count * (own + 1) / threads) own++, run = 0;
      total += tile.work(), run += tile.work();
      longest = max_of(longest, tile.work());
      busiest = max_of(busiest, run);
    });
    return {total, longest, 8 * busiest * pool.num_threads() <= 9 * total};
  }

  template <class One>
  void each_tile(int64_t count, One&& one) const {
    RowTile tile = rows.tile(0);
    for (int64_t i = 0; i < count; i++) {
      if (i) tile = rows.after(tile);
      one(tile, i);
    }
  }
};

template <class Of>
void attend(const Run& run, const AttentionArguments& a) {
  int64_t width = a.num_heads * a.head_dim;
  bool past_caches =
      a.head_dim % 16 == 0 && go_past_caches(run, a.out, run.step.num_tokens, width);
  Of{RowMap(a, run.step), past_caches}.run(run.pool);
}

void attention(const Run& run, const Op& op) {
  auto a = op.as<AttentionArguments>();
  a.cache_format == Format::F32 ? attend<Attention<FloatCache>>(run, a)
                                : attend<Attention<Bf16Cache>>(run, a);
}

#if LANES_LEVEL == 512
#include "attention_pairs_body.h"
#endif

#if LANES_LEVEL == TILES_BESIDE
#include "attention_tiles_body.h"
#endif
