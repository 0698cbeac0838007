// The products of attention with the vectors of the level: scores of keys, sums of weighted values.

// How many rows, groups of keys and halves of 32 outputs a kernel takes at once: as many chains as
// the registers hold beside what they are fed with.
#if LANES_LEVEL == 512
constexpr int MOST_ROWS = 7, MOST_GROUPS = 2, HALVES = 2;
#elif LANES_LEVEL == 256
constexpr int MOST_ROWS = 6, MOST_GROUPS = 1, HALVES = 1;
constexpr int MOST_IN_TWO_CHAINS = 2;  // rows; more take one chain after the other
#include "attention_chains_body.h"
#else
constexpr int MOST_ROWS = 2, MOST_GROUPS = 1, HALVES = 1;
#endif

// scores[m][lane] = q[m] · key of the lane, for GROUPS groups of keys side by side.
template <class C, int ROWS, int GROUPS>
void score_rows(const typename C::Input* q, const uint32_t* const* panels, int64_t head_dim,
                Ahead* ahead, float* scores) {
#if LANES_LEVEL == 256
  if constexpr (ROWS > MOST_IN_TWO_CHAINS)
    return score_in_chains<C, ROWS>(q, panels[0], head_dim, ahead, scores);
#endif
  constexpr int64_t WORDS = C::LINES * 16, STRIDE = MAX_HEAD_DIM / C::INPUTS;
  Ahead soon = *ahead;
  for (int64_t b = 0; b * 32 < head_dim; b++) {
    Lanes even[ROWS][GROUPS], odd[ROWS][GROUPS];
    for (int m = 0; m < ROWS; m++)
      for (int g = 0; g < GROUPS; g++) even[m][g] = odd[m][g] = zero();
    int64_t num_pairs = min_of(16, (head_dim - b * 32) / 2);
    for (int64_t i = 0; i < num_pairs; i += C::INPUTS) {
      int64_t word = (b * 16 + i) * WORDS, place = 2 * (b * 16 + i) / C::INPUTS;
      soon.step<3 / (C::LINES * C::INPUTS)>();
      Lanes x[GROUPS];
      for (int g = 0; g < GROUPS; g++) x[g] = C::even(panels[g] + word);
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; m++) {
        auto input = q[m * STRIDE + place];
        for (int g = 0; g < GROUPS; g++) even[m][g] = C::add(even[m][g], input, x[g]);
      }
      for (int g = 0; g < GROUPS; g++) x[g] = C::odd(panels[g] + word);
#pragma GCC unroll 8
      for (int m = 0; m < ROWS; m++) {
        auto input = q[m * STRIDE + place + 1];
        for (int g = 0; g < GROUPS; g++) odd[m][g] = C::add(odd[m][g], input, x[g]);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++)
      for (int g = 0; g < GROUPS; g++) {
        float* sum = scores + m * SPLIT + g * GROUP;
        store(sum, (b ? load(sum) : zero()) + (even[m][g] + odd[m][g]));
      }
  }
  *ahead = soon;
}

// How sixteen outputs of a cell are read: both halves of a run of 32, one of them, or plainly.
template <class C>
struct BothHalves {
  static constexpr int COUNT = 2;
  static void read(const uint8_t* p, Lanes* v) {
    v[0] = C::even((const uint32_t*)p), v[1] = C::odd((const uint32_t*)p);
  }
};
template <class C, int HALF>
struct OneHalf {
  static constexpr int COUNT = 1;
  static void read(const uint8_t* p, Lanes* v) {
    v[0] = HALF ? C::odd((const uint32_t*)p) : C::even((const uint32_t*)p);
  }
};
template <class C>
struct Plain {
  static constexpr int COUNT = 1;
  static void read(const uint8_t* p, Lanes* v) { v[0] = C::value((const typename C::Item*)p); }
};

// sums[m] += weights[m] · values, over one run of 32 keys, of which keys `from` .. `to` count, and
// over the outputs that `How` reads `start` bytes into a cell.
template <class C, class How, bool WHOLE, int ROWS>
void weigh_outputs(const uint8_t* const* values, int64_t from, int64_t to, const float* weights,
                   int64_t start, Ahead* ahead, float* sums) {
#if LANES_LEVEL == 256
  if constexpr (ROWS > MOST_IN_TWO_CHAINS)
    return weigh_in_chains<C, How, WHOLE, ROWS>(values, from, to, weights, start, ahead, sums);
#endif
  Lanes even[ROWS][How::COUNT], odd[ROWS][How::COUNT];
  for (int m = 0; m < ROWS; m++)
    for (int i = 0; i < How::COUNT; i++) even[m][i] = odd[m][i] = zero();
  auto take = [&](int64_t key, auto& chain) __attribute__((always_inline)) {
    Lanes v[How::COUNT];
    How::read(values[key] + start, v);
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; m++) {
      Lanes weight = splat(weights[m * SPLIT + key]);
      for (int i = 0; i < How::COUNT; i++) chain[m][i] = fma(weight, v[i], chain[m][i]);
    }
  };
  Ahead soon = *ahead;
  int64_t j = WHOLE ? 0 : from / 2 * 2, stop = WHOLE ? PAIR_RUN : to;
  for (; j < stop; j += 2) {
    soon.step<3 / C::LINES>();
    if (WHOLE || j >= from) take(j, even);
    if (WHOLE || j + 1 < to) take(j + 1, odd);
  }
  *ahead = soon;
#pragma GCC unroll 8
  for (int m = 0; m < ROWS; m++)
    for (int i = 0; i < How::COUNT; i++) {
      float* sum = sums + m * MAX_HEAD_DIM + i * 16;
      store(sum, load(sum) + (even[m][i] + odd[m][i]));
    }
}

// The last `n` outputs, fewer than 16.
template <class C, int ROWS>
void weigh_tail(const uint8_t* const* values, int64_t from, int64_t to, const float* weights,
                int64_t k, int64_t n, float* out) {
  Lanes chains[2][ROWS];
  for (int m = 0; m < ROWS; m++) chains[0][m] = chains[1][m] = zero();
  for (int64_t j = from; j < to; j++) {
    Lanes v = C::value_part((const typename C::Item*)values[j] + k, n);
    for (int m = 0; m < ROWS; m++)
      chains[j % 2][m] = fma(splat(weights[m * SPLIT + j]), v, chains[j % 2][m]);
  }
  for (int m = 0; m < ROWS; m++) {
    float* sum = out + m * MAX_HEAD_DIM + k;
    store(sum, load(sum) + (chains[0][m] + chains[1][m]));
  }
}

// The same over all outputs.
template <class C, bool WHOLE, int ROWS>
void weigh_rows(const uint8_t* const* values, int64_t from, int64_t to, const float* weights,
                int64_t head_dim, Ahead* ahead, float* out) {
  auto weigh = [&](auto how, int64_t k, int64_t shift) {
    int64_t start = k * int64_t(sizeof(typename C::Item));
    weigh_outputs<C, decltype(how), WHOLE, ROWS>(values, from, to, weights, start, ahead,
                                                 out + k + shift);
  };
  int64_t k = 0;
  for (; k + 32 <= head_dim; k += 32) {
    if constexpr (HALVES == 2) {
      weigh(BothHalves<C>(), k, 0);
    } else {
      weigh(OneHalf<C, 0>(), k, 0);
      weigh(OneHalf<C, 1>(), k, 16);
    }
  }
  for (; k + 16 <= head_dim; k += 16) weigh(Plain<C>(), k, 0);
  if (k < head_dim) weigh_tail<C, ROWS>(values, from, to, weights, k, head_dim - k, out);
}

// Call one(rows, first) for runs of rows that a kernel takes at once: a constant and a place.
template <int ROWS, class One>
void in_runs(int64_t first, int64_t stop, One&& one) {
  for (; first + ROWS <= stop; first += ROWS) one(std::integral_constant<int, ROWS>(), first);
  if constexpr (ROWS > 1) in_runs<ROWS - 1>(first, stop, one);
}

// scores[row][lane] of one or two groups of keys, each as a page holds it.
template <class C, int GROUPS, class Queries>
void score_side_by_side(const Queries& q, int64_t num_rows, const uint32_t* const* panels,
                        int64_t head_dim, Ahead* ahead, float* scores) {
  in_runs<MOST_ROWS>(0, num_rows, [&](auto count, int64_t r) {
    score_rows<C, count.value, GROUPS>(q[r], panels, head_dim, ahead, scores + r * SPLIT);
  });
}
template <class C, class Queries>
void score_groups(const Queries& q, int64_t num_rows, const uint32_t* const* panels,
                  int64_t num_groups, int64_t head_dim, Ahead* ahead, float* scores) {
  if (num_groups == MOST_GROUPS)
    return score_side_by_side<C, MOST_GROUPS>(q, num_rows, panels, head_dim, ahead, scores);
  for (int64_t g = 0; g < num_groups; g++)
    score_side_by_side<C, 1>(q, num_rows, panels + g, head_dim, ahead, scores + g * GROUP);
}

// The products of a tile's rows with the vectors of the level.
template <class C>
class VectorProducts {
 public:
  VectorProducts(const float (*q)[MAX_HEAD_DIM], int64_t num_rows, int64_t head_dim)
      : q_(q), num_rows_(num_rows), head_dim_(head_dim) {}

  void score(const uint32_t* const* panels, int64_t num_groups, Ahead* ahead, float* scores) {
    score_groups<C>(q_, num_rows_, panels, num_groups, head_dim_, ahead, scores);
  }

  // Add one run of keys to rows `first` .. `stop`; those that see the same keys of it together.
  void weigh(const uint8_t* const* values, const RunOfKeys& run, int64_t first, int64_t stop,
             const float (*weights)[SPLIT], Ahead* ahead, Partial* out) {
    for (int64_t r = first, next; r < stop; r = next) {
      int64_t begin = run.begin(r), end = run.end(r);
      for (next = r + 1; next < stop && run.begin(next) == begin && run.end(next) == end;) next++;
      if (begin >= end) continue;
      in_runs<MOST_ROWS>(r, next, [&](auto count, int64_t m) {
        auto rows = begin == 0 && end == PAIR_RUN ? weigh_rows<C, true, count.value>
                                                  : weigh_rows<C, false, count.value>;
        rows(values, begin, end, weights[m] + run.first, head_dim_, ahead, out->values[m]);
      });
    }
  }

 private:
  const float (*q_)[MAX_HEAD_DIM];
  int64_t num_rows_, head_dim_;
};
