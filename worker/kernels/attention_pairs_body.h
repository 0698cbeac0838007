// The products of attention for a cache of bf16, two keys or inputs in one instruction: the bits of
// `VectorProducts`, which keeps runs of keys that a row does not see all of.

struct PairCache : Bf16Cache, InputPairs {
  using InputPairs::add, InputPairs::write, InputPairs::Input, InputPairs::INPUTS;
  static Lanes even(const uint32_t* pair) { return even_pairs(pair, pair + 16); }
  static Lanes odd(const uint32_t* pair) { return odd_pairs(pair, pair + 16); }
};

// sums[m] += weights[m] · values, over a whole run of keys and 32 outputs.
template <int ROWS>
void weigh_pairs(const uint8_t* const* values, const uint32_t (*weights)[PAIR_RUN / 2],
                 int64_t start, Ahead* ahead, float* sums) {
  Lanes even[ROWS][2], odd[ROWS][2];
  for (int m = 0; m < ROWS; m++)
    for (int i = 0; i < 2; i++) even[m][i] = odd[m][i] = zero();
  auto take = [&](int64_t key, int64_t place, auto& chain) __attribute__((always_inline)) {
    const uint8_t *first = values[key] + start, *second = values[key + 2] + start;
    Lanes v[2] = {even_pairs(first, second), odd_pairs(first, second)};
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
      for (int i = 0; i < 2; i++)
        chain[m][i] = InputPairs::add(chain[m][i], weights[m][place], v[i]);
  };
  Ahead soon = *ahead;
  for (int64_t j = 0; j < PAIR_RUN; j += 4) {
    soon.step<1>();
    take(j, j / 2, even);
    take(j + 1, j / 2 + 1, odd);
  }
  *ahead = soon;
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++)
    for (int i = 0; i < 2; i++) {
      float* sum = sums + m * MAX_HEAD_DIM + i * 16;
      store(sum, load(sum) + (even[m][i] + odd[m][i]));
    }
}

class PairProducts {
 public:
  PairProducts(const float (*q)[MAX_HEAD_DIM], int64_t num_rows, int64_t head_dim)
      : vectors_(q, num_rows, head_dim), num_rows_(num_rows), head_dim_(head_dim) {
    for (int64_t r = 0; r < num_rows; r++)
      for (int64_t k = 0; k < head_dim; k += 16) PairCache::write(load(q[r] + k), q_[r] + k / 2);
  }

  void score(const uint32_t* const* panels, int64_t num_groups, Ahead* ahead, float* scores) {
    score_groups<PairCache>(q_, num_rows_, panels, num_groups, head_dim_, ahead, scores);
  }

  void weigh(const uint8_t* const* values, const RunOfKeys& run, int64_t first, int64_t stop,
             const float (*weights)[SPLIT], Ahead* ahead, Partial* out) {
    if (head_dim_ % 32 || !run.is_whole(first, stop))
      return vectors_.weigh(values, run, first, stop, weights, ahead, out);
    uint32_t pairs[TILE_ROWS][PAIR_RUN / 2];
    for (int64_t r = first; r < stop; r++)
      for (int64_t j = 0; j < PAIR_RUN; j += 16)
        PairCache::write(load(weights[r] + run.first + j), pairs[r] + j / 2);
    in_runs<MOST_ROWS>(first, stop, [&](auto count, int64_t m) {
      for (int64_t k = 0; k < head_dim_; k += 32)
        weigh_pairs<count.value>(values, pairs + m, k * 2, ahead, out->values[m] + k);
    });
  }

 private:
  VectorProducts<Bf16Cache> vectors_;
  int64_t num_rows_, head_dim_;
  alignas(64) uint32_t q_[TILE_ROWS][MAX_HEAD_DIM / 2];
};

void attention_pairs(const Run& run, const Op& op) {
  auto a = op.as<AttentionArguments>();
  if (a.cache_format == Format::F32 || a.head_dim % 4) return attention(run, op);
  attend<Attention<Bf16Cache, PairProducts>>(run, a);
}
