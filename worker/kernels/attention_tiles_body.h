// The products of attention on the tile unit, for a cache of bf16: sixteen rows at a time, the same
// bits as `VectorProducts`, which keeps what fills no tile.

class TileProducts {
 public:
  TileProducts(const float (*q)[MAX_HEAD_DIM], int64_t num_rows, int64_t head_dim)
      : tiles_(num_rows),
        vectors_(q, num_rows, head_dim),
        num_rows_(num_rows),
        head_dim_(head_dim) {
    for (int64_t r = 0; r < num_rows; r++)
      for (int64_t k = 0; k < head_dim; k += 32) upper_halves(q[r] + k, q_[r] + k);
  }

  void score(const uint32_t* const* panels, int64_t num_groups, Ahead* ahead, float* scores) {
    if (num_rows_ < MIN_UNIT_ROWS) return vectors_.score(panels, num_groups, ahead, scores);
    num_rows_ > UNIT_ROWS ? score_groups<true>(panels, num_groups, ahead, scores)
                          : score_groups<false>(panels, num_groups, ahead, scores);
  }

  void weigh(const uint8_t* const* values, const RunOfKeys& run, int64_t first, int64_t stop,
             const float (*weights)[SPLIT], Ahead* ahead, Partial* out) {
    bool paired = false;
    for (int64_t r = first; r < stop; r += UNIT_ROWS) {
      int64_t end = min_of(stop, r + UNIT_ROWS);
      if (end - r < MIN_UNIT_ROWS || !run.is_whole(r, end)) {
        vectors_.weigh(values, run, r, end, weights, ahead, out);
        continue;
      }
      if (!paired) pair_values(values, ahead);
      paired = true;
      weigh_unit(run.first, r, end, weights, ahead, out);
    }
  }

 private:
  static constexpr int64_t UNIT_ROWS = 16, MIN_UNIT_ROWS = 3;

  // 32 floats that are rounded to bf16.
  static void upper_halves(const float* from, bf16* to) {
    uint32_t words[32];
    memcpy(words, from, sizeof words);
    for (int64_t i = 0; i < 32; i++) to[i] = bf16(words[i] >> 16);
  }

  // A group of keys is the right factor as it is: a block of 32 inputs is sixteen lines of pairs.
  // The products of one group wait for each other, so two groups go side by side; a second group
  // that does not exist is the first one again.
  template <bool BOTH>
  void score_groups(const uint32_t* const* panels, int64_t num_groups, Ahead* ahead,
                    float* scores) {
    int64_t other = num_groups - 1;
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
    for (int64_t b = 0; b < ceil_div(head_dim_, 32); b++) {
      tile_load<4>(q_[0] + b * 32, sizeof q_[0]);
      tile_load<6>(whole_block(panels[0], b), 64);
      tile_product_bf16<0, 4, 6>();
      ahead->ask(2);
      tile_load<7>(whole_block(panels[other], b), 64);
      tile_product_bf16<1, 4, 7>();
      ahead->ask(2);
      if (!BOTH) continue;
      tile_load<5>(q_[UNIT_ROWS] + b * 32, sizeof q_[0]);
      tile_product_bf16<2, 5, 6>();
      tile_product_bf16<3, 5, 7>();
    }
    tile_store<0>(scores, SPLIT * 4), tile_store<1>(scores + other * GROUP, SPLIT * 4);
    if (!BOTH) return;
    scores += UNIT_ROWS * SPLIT;
    tile_store<2>(scores, SPLIT * 4), tile_store<3>(scores + other * GROUP, SPLIT * 4);
  }

  // Sixteen pairs of inputs from a page, zero past the head's end.
  const uint32_t* whole_block(const uint32_t* panel, int64_t b) {
    int64_t num_words = (head_dim_ - b * 32) / 2 * GROUP;
    if (num_words >= 16 * GROUP) return panel + b * 256;
    memset(tail_, 0, sizeof tail_);
    memcpy(tail_, panel + b * 256, size_t(num_words) * 4);
    return tail_;
  }

  // Two keys' values side by side, as the right factor of a product over keys. A run of 32 outputs
  // is sixteen words of output i beside 16 + i.
  void pair_values(const uint8_t* const* values, Ahead* ahead) {
    int64_t whole = head_dim_ / 32 * 32;
    Ahead soon = *ahead;
    for (int64_t j = 0; j < PAIR_RUN; j += 2) {
      uint32_t even[16], odd[16];
      for (int64_t k = 0; k < whole; k += 32) {
        soon.step<5>();
        memcpy(even, values[j] + k * 2, sizeof even);
        memcpy(odd, values[j + 1] + k * 2, sizeof odd);
        uint32_t *low = pairs_[k / 16][j / 2], *high = pairs_[k / 16 + 1][j / 2];
        for (int64_t i = 0; i < 16; i++) low[i] = (even[i] & 0xffff) | odd[i] << 16;
        for (int64_t i = 0; i < 16; i++) high[i] = even[i] >> 16 | (odd[i] & 0xffff0000);
      }
      auto even_rest = (const bf16*)values[j], odd_rest = (const bf16*)values[j + 1];
      for (int64_t k = whole; k < head_dim_; k++)
        pairs_[k / 16][j / 2][k % 16] = even_rest[k] | uint32_t(odd_rest[k]) << 16;
      for (int64_t k = head_dim_; k % 16; k++) pairs_[k / 16][j / 2][k % 16] = 0;
    }
    *ahead = soon;
  }

  void weigh_unit(int64_t j, int64_t first, int64_t stop, const float (*weights)[SPLIT],
                  Ahead* ahead, Partial* out) {
    alignas(64) bf16 left[UNIT_ROWS][PAIR_RUN];  // what rows there are not has no meaning
    for (int64_t r = first; r < stop; r++) upper_halves(weights[r] + j, left[r - first]);
    tile_load<4>(left, sizeof left[0]);
    int64_t count = ceil_div(head_dim_, 16);
    for (int64_t d = 0; d < count; d += 4) {
      weigh_outputs<0, 5>(d, first, ahead, out);
      if (d + 1 < count) weigh_outputs<1, 6>(d + 1, first, ahead, out);
      if (d + 2 < count) weigh_outputs<2, 7>(d + 2, first, ahead, out);
      if (d + 3 < count) weigh_outputs<3, 5>(d + 3, first, ahead, out);
    }
  }

  // Sixteen outputs; those next to each other use other tiles, so that none waits for another.
  template <int SUMS, int VALUES>
  void weigh_outputs(int64_t d, int64_t first, Ahead* ahead, Partial* out) {
    float* sums = out->values[first] + d * 16;
    tile_load<SUMS>(sums, sizeof out->values[0]);
    tile_load<VALUES>(pairs_[d], 64);
    tile_product_bf16<SUMS, 4, VALUES>();
    ahead->ask(1);
    tile_store<SUMS>(sums, sizeof out->values[0]);
  }

  LowTiles tiles_;
  VectorProducts<Bf16Cache> vectors_;
  int64_t num_rows_, head_dim_;
  alignas(64) bf16 q_[TILE_ROWS][MAX_HEAD_DIM];
  alignas(64) uint32_t tail_[16 * GROUP];
  alignas(64) uint32_t pairs_[MAX_HEAD_DIM / 16][PAIR_RUN / 2][16];
};

void attention_tiles(const Run& run, const Op& op) {
  auto a = op.as<AttentionArguments>();
  if (a.cache_format == Format::F32) return attention(run, op);
  attend<Attention<Bf16Cache, TileProducts>>(run, a);
}
