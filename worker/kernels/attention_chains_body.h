// The products of attention one chain at a time, where the registers do not hold two of many rows. As
// `score_rows` and `weigh_outputs`, for one group of keys; memory is asked for between the chains, as
// often as there between their steps. Included by `attention_products_body.h`.

// Times to ask before a chain of the even inputs or keys, and of the odd ones.
constexpr int64_t ASKS_EVEN = 3, ASKS_ODD = 2;

// The chains of the even inputs or keys go to `even`; those of the odd ones with them to the sums.
template <bool ODD, int ROWS>
inline void end_chain(const Lanes (&chain)[ROWS], float* even, float* sums, int64_t stride) {
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++) {
    if (!ODD) {
      store(even + m * 16, chain[m]);
    } else {
      float* sum = sums + m * stride;
      store(sum, load(sum) + (load(even + m * 16) + chain[m]));
    }
  }
}

// q[m] · key of the lane over the even inputs of a block, or the odd ones.
template <class C, int ROWS, bool ODD>
__attribute__((noinline)) void score_chain(const float* q, const uint32_t* pairs, int64_t num_pairs,
                                           float* even, float* scores) {
  Lanes chain[ROWS];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++) chain[m] = zero();
#pragma GCC unroll 2
  for (int64_t i = 0; i < num_pairs; i++, q += 2, pairs += C::LINES * 16) {
    Lanes keys = ODD ? C::odd(pairs) : C::even(pairs);
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++) chain[m] = C::add(chain[m], q[m * MAX_HEAD_DIM + ODD], keys);
  }
  end_chain<ODD>(chain, even, scores, SPLIT);
}

template <class C, int ROWS>
void score_in_chains(const float* q, const uint32_t* panel, int64_t head_dim, Ahead* ahead,
                     float* scores) {
  alignas(64) float even[ROWS * 16];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++) store(scores + m * SPLIT, zero());
  for (int64_t k = 0; k < head_dim; k += 32, q += 32, panel += 16 * C::LINES * 16) {
    int64_t num_pairs = min_of(16, (head_dim - k) / 2);
    ahead->ask(ASKS_EVEN * C::LINES);
    score_chain<C, ROWS, false>(q, panel, num_pairs, even, scores);
    ahead->ask(ASKS_ODD * C::LINES);
    score_chain<C, ROWS, true>(q, panel, num_pairs, even, scores);
  }
}

// weights[m] · values over the even keys of a run, or the odd ones.
template <class C, class How, bool WHOLE, int ROWS, bool ODD>
__attribute__((noinline)) void weigh_chain(const uint8_t* const* values, int64_t from, int64_t to,
                                           const float* weights, int64_t start, float* even,
                                           float* sums) {
  Lanes chain[ROWS];
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++) chain[m] = zero();
#pragma GCC unroll 2
  for (int64_t j = ODD; j < PAIR_RUN; j += 2) {
    if (!WHOLE && (j < from || j >= to)) continue;
    Lanes v;
    How::read(values[j] + start, &v);
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
      chain[m] = add_product(chain[m], weights[m * SPLIT + j], v);
  }
  end_chain<ODD>(chain, even, sums, MAX_HEAD_DIM);
}

template <class C, class How, bool WHOLE, int ROWS>
void weigh_in_chains(const uint8_t* const* values, int64_t from, int64_t to, const float* weights,
                     int64_t start, Ahead* ahead, float* sums) {
  alignas(64) float even[ROWS * 16];
  ahead->ask(ASKS_EVEN * C::LINES);
  weigh_chain<C, How, WHOLE, ROWS, false>(values, from, to, weights, start, even, sums);
  ahead->ask(ASKS_ODD * C::LINES);
  weigh_chain<C, How, WHOLE, ROWS, true>(values, from, to, weights, start, even, sums);
}
